/* test_chat_templates.c - chat templates are rendered to the byte, found where transformers finds them, and refused with their
 * line where they cannot be rendered. */
#include "chat_fixtures.h"

#include <stdlib.h>

#include <setjmp.h>
#include <cmocka.h>

#define TURNS(more) \
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}" more
#define ASKS "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
static const char a_pair[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, "
                             "{\"role\": \"assistant\", \"content\": \"b\"}]}";

static tokenizer *tokenizer_with(const char *template) {
    json_t *config = json_pack("{s:s, s:s, s:s}", "bos_token", "<|begin_of_text|>", "eos_token", "<|end_of_text|>",
                               "chat_template", template);
    tokenizer *t = open_tokenizer("bytes.json", config);
    json_decref(config);
    return t;
}

static char *text_of(const tokenizer *t, const chat_tokens *tokens) {
    strbuf shown;
    strbuf_init(&shown);
    assert_int_equal(tokenizer_decode_with(t, tokens->ids, tokens->n, DECODE_KEEP_SPECIALS, &shown), OK);
    return strbuf_take(&shown);
}

/* What training sees of a record, with the trained stretches in brackets. */
static char *shown_record(const tokenizer *t, const chat *c, const char *record) {
    record_parser p = {0};
    chat_tokens out = {0};
    strbuf shown;
    strbuf_init(&shown);
    data_record r = parse_record(&p, record);
    if (chat_encode(c, &r, TRAIN_ON_RESPONSE, &out) != OK) fail_msg("%s", error_message());
    for (size_t i = 0; i < out.n; i++) {
        bool was = i > 0 && out.trained[i - 1];
        if (out.trained[i] != was) strbuf_add(&shown, was ? "]" : "[");
        assert_int_equal(tokenizer_decode_with(t, &out.ids[i], 1, DECODE_KEEP_SPECIALS, &shown), OK);
    }
    if (out.n > 0 && out.trained[out.n - 1]) strbuf_add(&shown, "]");
    chat_tokens_free(&out);
    record_parser_close(&p);
    return strbuf_take(&shown);
}

static void expect_shown(const char *template, const chat_options *o, const char *record, const char *want) {
    tokenizer *t = tokenizer_with(template);
    chat *c = open_chat_with(t, o);
    char *got = shown_record(t, c, record);
    assert_string_equal(got, want);
    free(got);
    chat_close(c);
    tokenizer_close(t);
}

/* Texts do not need it; what does is refused by its name, or written by a format that is asked for. */
static void a_template_that_cannot_be_rendered_is_named(void **state) {
    static const struct {
        const char *template, *named;
    } cases[] = {{"{% include 'other.jinja' %}", "include"},
                 {"{{ messages | urlize }}", "urlize"},
                 {"{% for m in messages %}{{ m.content }}", "tokenizer_config.json"}};
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        tokenizer *t = tokenizer_with(cases[i].template);
        chat *c = open_chat(t, CHAT_AUTO), *none;
        record_parser p = {0};
        chat_tokens out = {0};
        char wanted[256];
        snprintf(wanted, sizeof wanted, "file.jsonl:7|cannot be rendered|tokenizer_config.json|%s|data.chat",
                 cases[i].named);
        data_record r = parse_record(&p, a_pair);
        expect_error(chat_encode(c, &r, TRAIN_ON_RESPONSE, &out), ERR_INPUT, wanted);
        r = parse_record(&p, "{\"prompt\": \"a\", \"completion\": \"b\"}");
        expect_error(chat_encode(c, &r, TRAIN_ON_RESPONSE, &out), ERR_INPUT, wanted);
        assert_int_equal(out.n, 0);
        r = parse_record(&p, "{\"text\": \"a\"}");
        assert_int_equal(chat_encode(c, &r, TRAIN_ON_RESPONSE, &out), OK);
        chat_close(c);
        expect_error(chat_open(&none, t, test_dir, &(chat_options){.format = CHAT_TEMPLATE}), ERR_INPUT,
                     cases[i].named);
        c = open_chat(t, CHAT_LLAMA3);
        r = parse_record(&p, a_pair);
        assert_int_equal(chat_encode(c, &r, TRAIN_ON_RESPONSE, &out), OK);
        assert_int_equal(out.ids[out.n - 1], tokenizer_special(t, "<|eot_id|>"));
        chat_tokens_free(&out);
        record_parser_close(&p);
        chat_close(c);
        tokenizer_close(t);
    }
}

static void what_a_template_refuses_is_told_with_the_line(void **state) {
    tokenizer *t = tokenizer_with("{{ raise_exception('no ' + messages[0].role + ' first') }}");
    chat *c = open_chat(t, CHAT_TEMPLATE);
    record_parser p = {0};
    chat_tokens out = {0};
    data_record r = parse_record(&p, a_pair);
    expect_error(chat_encode(c, &r, TRAIN_ON_RESPONSE, &out), ERR_INPUT, "file.jsonl:7|refuses|no user first");
    expect_error(chat_encode_prompt(c, &r, &out), ERR_INPUT, "file.jsonl:7|refuses|no user first");
    assert_int_equal(out.n, 0);
    assert_int_equal(chat_end_of_turn(c), tokenizer_eos(t)); /* nothing could be seen of it */
    record_parser_close(&p);
    chat_close(c);
    tokenizer_close(t);
}

/* The answer comes first, or only its length is written: nobody can say what is to be learned. With every token trained
 * that does not matter. */
static void an_answer_that_is_not_found_is_refused(void **state) {
    static const char *const templates[] = {
        "{{ messages | length }}{% for m in messages %}{{ m.content | length }}{% endfor %}",
        "{{ messages | length }}{% for m in messages %}{% if m.content %}x{% endif %}{% endfor %}",
    };
    for (size_t i = 0; i < ARRAY_LENGTH(templates); i++) {
        tokenizer *t = tokenizer_with(templates[i]);
        chat *c = open_chat(t, CHAT_AUTO);
        record_parser p = {0};
        chat_tokens out = {0};
        data_record r = parse_record(&p, a_pair);
        expect_error(chat_encode(c, &r, TRAIN_ON_RESPONSE, &out), ERR_INPUT,
                     "file.jsonl:7|turn 2|data.train_on=all|generation|data.chat");
        assert_int_equal(chat_encode(c, &r, TRAIN_ON_ALL, &out), OK);
        chat_tokens_free(&out);
        record_parser_close(&p);
        chat_close(c);
        tokenizer_close(t);
    }
}

/* What others took for ChatML and is not. */
static void templates_are_rendered_to_the_byte(void **state) {
    static const struct {
        const char *template, *want;
    } cases[] = {
        {TURNS(ASKS),
         "<|im_start|>system\n s<|im_end|>\n<|im_start|>user\n a <|im_end|>\n<|im_start|>assistant\n[b<|im_end|>]\n"},
        {"{{ bos_token }}" TURNS(ASKS),
         "<|begin_of_text|><|im_start|>system\n s<|im_end|>\n<|im_start|>user\n a <|im_end|>\n"
         "<|im_start|>assistant\n[b<|im_end|>]\n"},
        {TURNS(ASKS) "{% if not add_generation_prompt %}{{ eos_token }}{% endif %}",
         "<|im_start|>system\n s<|im_end|>\n<|im_start|>user\n a "
         "<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>\n<|end_of_text|>]"},
        {"{% for m in messages %}{{ m.role ~ ':' ~ m.content | trim ~ eos_token }}{% endfor %}"
         "{% if add_generation_prompt %}assistant:{% endif %}",
         "system:s<|end_of_text|>user:a<|end_of_text|>assistant:[b<|end_of_text|>]"},
        {"{% for m in messages %}{{ '### ' ~ m.role | title ~ '\n' ~ m.content.strip() ~ '\n' }}{% endfor %}"
         "{% if add_generation_prompt %}{{ '### Assistant\n' }}{% endif %}",
         "### System\ns\n### User\na\n### Assistant\n[b\n]"},
        {"{% for m in messages %}{{ ('Q: ' + m.content) | upper if m.role == 'user' else m.content.lstrip() "
         "}}<|eot_id|>{% endfor %}",
         "s<|eot_id|>Q:  A <|eot_id|>[b<|eot_id|>]"},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++)
        expect_shown(
            cases[i].template, &(chat_options){0},
            "{\"messages\": [{\"role\": \"system\", \"content\": \" s\"}, {\"role\": \"user\", \"content\": \" a \"}, "
            "{\"role\": \"assistant\", \"content\": \"b\"}]}",
            cases[i].want);
}

static void the_newline_behind_an_answer_is_trained_where_asked(void **state) {
    static const char with[] = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>\n]";
    static const char without[] = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>]\n";
    for (int format = CHAT_CHATML; format <= CHAT_TEMPLATE; format += CHAT_TEMPLATE - CHAT_CHATML) {
        expect_shown(TURNS(ASKS), &(chat_options){.format = (chat_format)format, .train_on_newline = true}, a_pair,
                     with);
        expect_shown(TURNS(ASKS), &(chat_options){.format = (chat_format)format}, a_pair, without);
    }
}

#define USER "{\"role\": \"user\", \"content\": \"a\"}"
#define ANSWER "{\"role\": \"assistant\", \"content\": \"b\"}"
#define CALLS(calls) "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [" calls "]}"
#define CALL(name) "{\"function\": {\"name\": \"" name "\", \"arguments\": {\"n\": 1}}}"
#define RECORD(turns) "{\"messages\": [" turns "]}"
#define TOOL5 "{\"name\": \"p\"}, {\"name\": \"q\"}, {\"name\": \"r\"}, {\"name\": \"s\"}, {\"name\": \"t\"}"
/* Writes tools and calls, but not those called "x". */
#define WRITES                                                                                                    \
    "{% for t in tools or [] if t.name != 'x' %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.role }}:" \
    "{{ m.content if m.content is string else m.content[0].text }}"                                               \
    "{% for c in m.tool_calls or [] if c.function.name != 'x' %}{{ c.function.arguments | tojson }}{% endfor %}"  \
    "{{ eos_token }}{% endfor %}"
#define DROPS_EARLIER                                                                            \
    "{% for m in messages %}{{ m.role }}:{% if loop.last %}{{ m.reasoning_content }}{% endif %}" \
    "{{ m.content.split('</think>')[-1] | trim }}{{ eos_token }}{% endfor %}"

/* What would be lost without a word: by its turn and key, whether it is trained on or asked; and what is written, if
 * only by an
 * {% if %}, is not refused. */
static void what_a_template_leaves_out_is_refused(void **state) {
    static const struct {
        const char *template, *record, *lost; /* NULL: nothing */
        bool in_prompt;                       /* and a prompt loses it too */
    } cases[] = {
        {TURNS(""), "{\"prompt\": \"a\", \"completion\": \"b\", \"tools\": [{\"name\": \"f\"}]}", "found tools[0]",
         true},
        {TURNS(""), RECORD(USER ", " CALLS(CALL("f"))), "turn 2: found tool_calls[0]", false},
        {TURNS(""), RECORD(USER ", {\"role\": \"assistant\", \"content\": \"\", \"function_call\": {\"name\": \"f\"}}"),
         "turn 2: found function_call", false},
        {"{% for m in messages if m.role != 'tool' %}{{ m.content }}{% endfor %}",
         RECORD(USER ", " ANSWER ", {\"role\": \"tool\", \"content\": \"r\"}, " ANSWER), "turn 3: found content", true},
        {"{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}",
         RECORD("{\"role\": \"system\", \"content\": \"s\"}, " USER ", " ANSWER), "turn 1: found content", true},
        {"{% for m in messages %}{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}{% endif %}{% "
         "endfor %}",
         RECORD(USER ", " CALLS(CALL("f") ", " CALL("f"))), "turn 2: found tool_calls[1]", false},
        {WRITES, RECORD(USER ", " CALLS(CALL("f") ", " CALL("x")) ", " ANSWER), "turn 2: found tool_calls[1]", true},
        {WRITES, RECORD(USER ", " CALLS(CALL("f") ", " CALL("f")) ", " ANSWER), NULL, false},
        {WRITES,
         "{\"prompt\": \"a\", \"completion\": \"b\", \"tools\": [" TOOL5 ", " TOOL5 ", " TOOL5 ", " TOOL5 ", " TOOL5
         ", {\"name\": \"x\"}, " TOOL5 "]}",
         "found tools[25]", true},
        {WRITES,
         RECORD("{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"type\": \"text\", "
                "\"text\": \"c\"}]}, " ANSWER),
         "turn 1: found content[1]", true},
        {"{% for m in messages %}{% if loop.index != 3 %}{{ m.content }}{% endif %}{% endfor %}", /* the same text stands elsewhere */
         RECORD(USER ", " ANSWER ", " USER ", " ANSWER), "turn 3: found content", true},
        {DROPS_EARLIER,
         RECORD(USER ", {\"role\": \"assistant\", \"content\": \"b\", \"reasoning_content\": \"t\"}, " USER
                     ", {\"role\": \"assistant\", \"content\": \"<think>u</think>\\n\"}, " USER
                     ", {\"role\": \"assistant\", \"content\": \"c\", \"reasoning_content\": \"v\"}"),
         NULL, false},
        {TURNS(""), RECORD(USER ", {\"role\": \"assistant\", \"content\": \"b\", \"reasoning_content\": \"t\"}"),
         "turn 2: found reasoning_content", false},
        {"{% for m in messages %}{{ m.content.split('</think>')[-1] | trim }}{{ eos_token }}{% endfor %}",
         RECORD(USER ", {\"role\": \"assistant\", \"content\": \"<think>u</think>b\"}, " USER
                     ", {\"role\": \"assistant\", \"content\": \"<think>\\nv\\n</think>\\n\\nb\"}"),
         "turn 4: found <think> in content", false},
        {"{% for m in messages %}{{ m.content | upper }}{{ eos_token }}{% endfor %}",
         RECORD(USER ", {\"role\": \"assistant\", \"content\": \"<think>v</think>b\"}"), NULL, false},
        {"{% for m in messages %}{{ m.content.split('</think>')[-1] | trim }}{{ eos_token }}{% endfor %}",
         RECORD(USER ", {\"role\": \"assistant\", \"content\": \"<think>\\n\\n</think>b\"}"), NULL, false},
        {WRITES,
         "{\"messages\": [{\"role\": \"system\", \"content\": \" \\u3000\"}, {\"role\": \"user\", \"content\": "
         "\"\"}, " ANSWER "], \"tools\": [{}]}",
         NULL, false},
        {"{% for m in messages %}{{ m.content }}{% if m.tool_calls %}[call]{% endif %}{% endfor %}{{ tools is none }}",
         "{\"messages\": [" USER ", " CALLS(CALL("f")) "], \"tools\": [{\"name\": \"f\"}]}", NULL, false},
        {"{% for m in messages %}{{ m.content or raise_exception('empty') }}{% endfor %}", RECORD(USER ", " ANSWER),
         NULL, false},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        char words[256];
        tokenizer *t = tokenizer_with(cases[i].template);
        chat *c = open_chat(t, CHAT_AUTO);
        record_parser p = {0};
        chat_tokens out = {0};
        data_record r = parse_record(&p, cases[i].record);
        snprintf(words, sizeof words,
                 "file.jsonl:7|%s, which the chat template|tokenizer_config.json does not write|on_error",
                 cases[i].lost);
        status rc = chat_encode(c, &r, TRAIN_ON_ALL, &out);
        if (cases[i].lost) expect_error(rc, ERR_INPUT, words);
        else if (rc != OK) fail_msg("case %zu: %s", i, error_message());
        rc = chat_encode_prompt(c, &r, &out);
        if (cases[i].in_prompt) expect_error(rc, ERR_INPUT, words);
        else if (rc != OK) fail_msg("prompt of case %zu: %s", i, error_message());
        chat_tokens_free(&out);
        record_parser_close(&p);
        chat_close(c);
        tokenizer_close(t);
    }
}

/* As GLM-4.5's: a turn has no end of its own, the next one's header ends it, and earlier thoughts are dropped. */
#define GLM                                                                                                         \
    "{% for m in messages %}<|im_start|>{% if m.role == 'assistant' %}A\n<think>{% if loop.last %}{{ "              \
    "m.reasoning_content"                                                                                           \
    " or '' }}{% endif %}</think>\n{{ m.content.split('</think>')[-1] }}{% for c in m.tool_calls or [] %}<call>{{ " \
    "c.name }}</call>"                                                                                              \
    "{% endfor %}{% else %}{{ m.role }}\n{{ m.content }}{% endif %}{% endfor %}"                                    \
    "{% if add_generation_prompt %}<|im_start|>A\n<think>{% endif %}"
#define ASKED "<|im_start|>user\na<|im_start|>A\n<think>"

/* Whether earlier thoughts were dropped or not; and where the template gives an earlier answer another end than the
 * last, each answer learns its own. */
static void what_follows_an_answer_is_trained_alike_in_every_turn(void **state) {
    static const struct {
        const char *template, *record, *want;
    } cases[] = {
        {GLM, RECORD(USER ", " ANSWER ", " USER ", " ANSWER), ASKED "[</think>\nb]" ASKED "[</think>\nb]"},
        {GLM,
         RECORD(USER ", {\"role\": \"assistant\", \"content\": \"b\", \"reasoning_content\": \"t\"}, " USER
                     ", {\"role\": \"assistant\", \"content\": \"b\", \"reasoning_content\": \"t\"}"),
         ASKED "[</think>\nb]" ASKED "[t</think>\nb]"},
        {GLM, RECORD(USER ", {\"role\": \"assistant\", \"content\": \"<think>t</think>b\"}, " USER ", " ANSWER),
         ASKED "[</think>\nb]" ASKED "[</think>\nb]"},
        {GLM,
         RECORD(USER ", {\"role\": \"assistant\", \"content\": \"\", \"reasoning_content\": \"t\", \"tool_calls\": "
                     "[{\"name\": \"f\"}]}, {\"role\": \"tool\", \"content\": \"f\"}, " ANSWER),
         ASKED "[</think>\n<call>f</call>]<|im_start|>tool\nf<|im_start|>A\n<think>[</think>\nb]"},
        {"{% for m in messages %}{% if loop.last %}{{ m.reasoning_content }}{% endif %}{{ m.content }}{% if m.role == "
         "'assistant' %}"
         "{% if loop.last %}<|end_of_text|>{% else %}<|eot_id|>{% endif %}{% endif %}{% endfor %}",
         RECORD(USER ", {\"role\": \"assistant\", \"content\": \"b\", \"reasoning_content\": \"t\"}, " USER
                     ", " ANSWER),
         "a[b<|eot_id|>]a[b<|end_of_text|>]"},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++)
        expect_shown(cases[i].template, &(chat_options){0}, cases[i].record, cases[i].want);
}

/* Variables of the template: of all records, of one, and those that are not theirs to set. */
static void variables_reach_the_template(void **state) {
    static const char template[] = "{{ bos_token }}{{ mood | default('none') }},{{ n is defined }},{{ tools is none }},"
                                   "{{ documents is none }}{% for m in messages %}|{{ m.content }}{% endfor %}";
    static const char record[] = "{\"prompt\": \"a\", \"completion\": \"b\", \"chat_template_kwargs\": {\"n\": 3}}";
    expect_shown(template, &(chat_options){0}, "{\"prompt\": \"a\", \"completion\": \"b\"}",
                 "<|begin_of_text|>none,False,True,True|a[|b]");
    expect_shown(template, &(chat_options){.kwargs = "{\"mood\": \"calm\"}"}, record,
                 "<|begin_of_text|>calm,True,True,True|a[|b]");
    tokenizer *t = tokenizer_with(template);
    chat *none;
    static const char *const wrong[] = {"[]", "{", "{\"eos_token\": \"x\"}", "{\"messages\": 1}"};
    for (size_t i = 0; i < ARRAY_LENGTH(wrong); i++)
        expect_error(chat_open(&none, t, test_dir, &(chat_options){.kwargs = wrong[i]}), ERR_INPUT, "data.chat_kwargs");
    expect_error(chat_open(&none, t, test_dir, &(chat_options){.format = CHAT_CHATML, .kwargs = "{\"n\": 1}"}),
                 ERR_INPUT, "data.chat_kwargs|data.chat=chatml");
    tokenizer_close(t);
}

/* Tools, their calls and names are content too. */
static void control_tokens_in_tools_are_text(void **state) {
    static const char template[] =
        "{% for t in tools %}{{ t | tojson }}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content "
        "}}"
        "{% for c in m.tool_calls or [] %}{{ c.arguments | tojson }}{{ c.name | replace('x', '<|im_end|>') }}{% endfor "
        "%}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    static const char record[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a<|im_end|>\"}, {\"role\": \"assistant\", \"content\": "
        "\"<|im_\", "
        "\"tool_calls\": [{\"name\": \"<|im_end|>\", \"arguments\": {\"<|im_start|>\": \"<|im_end|>\", \"role\": "
        "\"<|im_end|>\"}}]}], \"tools\": [{\"d\": \"<|im_start|>\"}]}";
    tokenizer *t = tokenizer_with(template);
    chat *c = open_chat(t, CHAT_AUTO);
    record_parser p = {0};
    chat_tokens out = {0};
    data_record r = parse_record(&p, record);
    if (chat_encode(c, &r, TRAIN_ON_RESPONSE, &out) != OK) fail_msg("%s", error_message());
    assert_int_equal(count_id(&out, tokenizer_special(t, "<|im_end|>")), 2);
    assert_int_equal(count_id(&out, tokenizer_special(t, "<|im_start|>")), 2);
    char *text = text_of(t, &out);
    assert_string_equal(text,
                        "{\"d\": \"<|im_start|>\"}<|im_start|>user\na<|im_end|><|im_end|>\n<|im_start|>assistant\n<|im_"
                        "{\"<|im_start|>\": \"<|im_end|>\", \"role\": \"<|im_end|>\"}<|im_end|><|im_end|>\n");
    free(text);
    chat_tokens_free(&out);
    record_parser_close(&p);
    chat_close(c);
    tokenizer_close(t);
}

/* A format that is no template writes the text of three roles. */
static void built_in_formats_refuse_what_they_cannot_write(void **state) {
    static const struct {
        const char *record, *words;
    } cases[] = {
        {"{\"messages\": [{\"role\": \"tool\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}",
         "turn 1|role tool|system, user or assistant"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": null, "
         "\"tool_calls\": [{}]}]}",
         "turn 2|tool_calls|plain text"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"reasoning_content\": \"t\"}]}",
         "reasoning_content|<think>"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}]}]}",
         "content|a string"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}], \"tools\": \"[{}]\"}", "'tools'|del(.tools)"},
        {"{\"prompt\": \"a\", \"completion\": \"b\", \"chat_template_kwargs\": {\"x\": 1}}", "chat_template_kwargs"},
    };
    tokenizer *t = open_tokenizer("bytes.json", NULL);
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        chat *c = open_chat(t, CHAT_AUTO);
        record_parser p = {0};
        chat_tokens out = {0};
        char words[256];
        snprintf(words, sizeof words, "file.jsonl:7|%s", cases[i].words);
        data_record r = parse_record(&p, cases[i].record);
        expect_error(chat_encode(c, &r, TRAIN_ON_RESPONSE, &out), ERR_INPUT, words);
        chat_close(c);
        record_parser_close(&p);
        chat_tokens_free(&out);
    }
    tokenizer_close(t);
}

/* Numbers are written as they stand in the record; one that cannot be is refused. */
static void numbers_keep_their_digits(void **state) {
    static const char template[] = "{% for m in messages %}{{ m.n | tojson }}{{ m.content }}{% endfor %}";
    expect_shown(template, &(chat_options){0},
                 "{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"n\": [10, 10.0, 9007199254740993]}, "
                 "{\"role\": \"assistant\", \"content\": \"b\", \"n\": 1}]}",
                 "[10, 10.0, 9007199254740993]a[1b]");
    expect_shown("{% for m in messages %}{{ m.content }}{% endfor %}", &(chat_options){0},
                 "{\"id\": 123456789012345678901234567890, \"messages\": [{\"role\": \"user\", \"content\": \"a\"}, "
                 "{\"role\": \"assistant\", \"content\": \"b\"}]}",
                 "a[b]");
    tokenizer *t = tokenizer_with(template);
    chat *c = open_chat(t, CHAT_AUTO);
    record_parser p = {0};
    chat_tokens out = {0};
    data_record r = parse_record(
        &p, "{\"messages\": [{\"role\": \"assistant\", \"content\": \"b\", \"n\": 123456789012345678901234}]}");
    expect_error(chat_encode(c, &r, TRAIN_ON_RESPONSE, &out), ERR_INPUT, "file.jsonl:7|64 bits");
    chat_close(c);
    record_parser_close(&p);
    tokenizer_close(t);
}

static void described(const tokenizer *t, const chat_options *o, strbuf *out) {
    chat *c = open_chat_with(t, o);
    out->length = 0;
    chat_describe(c, out);
    chat_close(c);
}

/* The token cache asks this: other text, other words. */
static void everything_that_changes_tokens_is_described(void **state) {
    strbuf a, b;
    strbuf_init(&a);
    strbuf_init(&b);
    tokenizer *t = tokenizer_with(TURNS(""));
    described(t, &(chat_options){0}, &a);
    described(t, &(chat_options){0}, &b);
    assert_string_equal(a.text, b.text);
    assert_null(strstr(a.text, " on 2"));
    described(t, &(chat_options){.train_on_newline = true}, &b);
    assert_string_not_equal(a.text, b.text);
    described(t, &(chat_options){.kwargs = "{\"x\": 1}"}, &b);
    assert_string_not_equal(a.text, b.text);
    tokenizer_close(t);
    t = tokenizer_with(TURNS(" "));
    described(t, &(chat_options){0}, &b);
    assert_string_not_equal(a.text, b.text);
    tokenizer_close(t);
    t = tokenizer_with("{{ strftime_now('%Y') }}" TURNS(""));
    described(t, &(chat_options){0}, &b);
    assert_non_null(strstr(b.text, ", on 2"));
    tokenizer_close(t);
    strbuf_fini(&a);
    strbuf_fini(&b);
}

static void expect_text(const tokenizer *t, const char *record, const char *want) {
    chat *c = open_chat(t, CHAT_AUTO);
    char *got = shown_record(t, c, record);
    assert_string_equal(got, want);
    free(got);
    chat_close(c);
}

static void a_template_is_found_where_transformers_finds_it(void **state) {
    static const char tools[] = "{\"prompt\": \"a\", \"completion\": \"b\", \"tools\": [{}]}";
    static const char pair[] = "{\"prompt\": \"a\", \"completion\": \"b\"}";
    tokenizer *t = open_tokenizer("bytes.json", NULL);
    chat *c = open_chat(t, CHAT_AUTO), *none;
    assert_int_equal(chat_format_of(c), CHAT_CHATML); /* as its special tokens say */
    chat_close(c);
    expect_error(chat_open(&none, t, test_dir, &(chat_options){.format = CHAT_TEMPLATE}), ERR_INPUT,
                 "chat_template.jinja");
    tokenizer_close(t);
#define SAYS(x) "{% for m in messages %}" x "{{ eos_token }}{{ m.content }}{% endfor %}"
    json_t *config = json_pack("{s:s, s:[{s:s, s:s}, {s:s, s:s}]}", "eos_token", "<|end_of_text|>", "chat_template",
                               "name", "tool_use", "template", SAYS("t"), "name", "default", "template", SAYS("d"));
    t = open_tokenizer("bytes.json", config);
    expect_text(t, pair, "d<|end_of_text|>a[d<|end_of_text|>b]");
    expect_text(t, tools, "t<|end_of_text|>a[t<|end_of_text|>b]");
    /* a file of its own comes before tokenizer_config.json, the tokens stay those of the config */
    write_bytes(path_of("chat_template.jinja"), SAYS("f"), strlen(SAYS("f")));
    expect_text(t, pair, "f<|end_of_text|>a[f<|end_of_text|>b]");
    expect_text(t, tools, "f<|end_of_text|>a[f<|end_of_text|>b]");
    assert_int_equal(dir_make(path_of("additional_chat_templates")), OK);
    write_bytes(path_of("additional_chat_templates/tool_use.jinja"), SAYS("u"), strlen(SAYS("u")));
    expect_text(t, pair, "f<|end_of_text|>a[f<|end_of_text|>b]");
    expect_text(t, tools, "u<|end_of_text|>a[u<|end_of_text|>b]");
    /* an old tokenizer_config.json leaves the tokens to special_tokens_map.json */
    const char *map = "{\"eos_token\": {\"content\": \"<|eot_id|>\"}}";
    write_bytes(path_of("special_tokens_map.json"), map, strlen(map));
    expect_text(t, pair, "f<|eot_id|>a[f<|eot_id|>b]");
    tokenizer_close(t);
    json_decref(config);
    t = open_tokenizer("pieces.json", NULL);
    expect_error(chat_open(&none, t, test_dir, &(chat_options){.format = CHAT_LLAMA3}), ERR_INPUT,
                 "data.chat=llama3|<|start_header_id|>");
    tokenizer_close(t);
}

static void llama2_turns_alternate(void **state) {
    static const char *const wrong[] = {
        "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"user\", \"content\": \"a\"}, "
        "{\"role\": \"assistant\", \"content\": \"a\"}]}",
    };
    tokenizer *t = tokenizer_of(template_of("inst"));
    chat *c = open_chat(t, CHAT_LLAMA2);
    for (size_t i = 0; i < ARRAY_LENGTH(wrong); i++) {
        record_parser p = {0};
        chat_tokens out = {0};
        data_record r = parse_record(&p, wrong[i]);
        expect_error(chat_encode(c, &r, TRAIN_ON_RESPONSE, &out), ERR_INPUT,
                     i == 0 ? "file.jsonl:7|turn 1:|take turns" : "file.jsonl:7|turn 2:|take turns");
        chat_tokens_free(&out);
        record_parser_close(&p);
    }
    chat_close(c);
    tokenizer_close(t);
}

/* Everything before the last response is asked, an earlier turn of the assistant too; and what is asked is what was
 * trained, up to the first token of that response. */
static void the_last_response_alone_is_left_to_the_model(void **state) {
    tokenizer *t = tokenizer_of(template_of("chatml"));
    chat *c = open_chat(t, CHAT_AUTO);
    record_parser p = {0};
    chat_tokens whole = {0}, asked = {0};
    data_record r =
        parse_record(&p, "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
                         "\"content\": \"b\"}, {\"role\": \"assistant\", \"content\": \"c\"}]}");
    assert_int_equal(chat_encode(c, &r, TRAIN_ON_RESPONSE, &whole), OK);
    assert_int_equal(chat_encode_prompt(c, &r, &asked), OK);
    assert_true(asked.n < whole.n);
    assert_memory_equal(asked.ids, whole.ids, asked.n * sizeof *asked.ids);
    size_t last = whole.n;
    while (!whole.trained[last - 1]) last--; /* behind the end of the last turn */
    while (whole.trained[last - 1]) last--;
    assert_int_equal(asked.n, last);
    chat_tokens_free(&whole);
    chat_tokens_free(&asked);
    record_parser_close(&p);
    chat_close(c);
    tokenizer_close(t);
}

/* The conversations of transformers' fixtures cut at every place: the ids stay, and of the answers those behind the cut
 * are trained on. */
static void the_completion_alone_is_trained_on(void **state) {
    size_t i, k, n_cuts = 0;
    json_t *template, *row;
    json_array_foreach(json_object_get(chat_fixtures, "templates"), i, template) {
        tokenizer *t = tokenizer_of(template);
        chat *c = open_chat(t, CHAT_AUTO);
        json_array_foreach(json_object_get(template, "cases"), k, row) {
            json_t *messages = json_object_get(row, "messages"), *trained = json_object_get(row, "trained");
            size_t n_messages = json_array_size(messages), n_answers = 0; /* before the cut */
            for (size_t cut = 1; cut < n_messages; cut++) {
                json_t *record = json_pack("{s:[], s:[], s:O*, s:O*}", "prompt", "completion", "tools",
                                           json_object_get(row, "tools"), "chat_template_kwargs",
                                           json_object_get(row, "chat_template_kwargs")),
                       *want = json_deep_copy(trained), *m;
                size_t j;
                json_array_foreach(messages, j, m)
                    json_array_append(json_object_get(record, j < cut ? "prompt" : "completion"), m);
                n_answers += strcmp(json_string_value(json_object_get(json_array_get(messages, cut - 1), "role")),
                                    "assistant") == 0;
                for (size_t at = 0, run = 0; at < json_array_size(want); at++) {
                    bool is_trained = json_integer_value(json_array_get(trained, at));
                    bool was = at > 0 && json_integer_value(json_array_get(trained, at - 1));
                    run += is_trained && !was;
                    if (run <= n_answers) json_array_set_new(want, at, json_integer(0));
                }
                char *text = json_dumps(record, 0);
                record_parser p = {0};
                chat_tokens out = {0};
                data_record r = parse_record(&p, text);
                if (chat_encode(c, &r, TRAIN_ON_RESPONSE, &out) != OK) fail_msg("%s", error_message());
                compare_tokens(&out, json_object_get(row, "ids"), want, text);
                out.n = 0;
                assert_int_equal(chat_encode_prompt(c, &r, &out), OK);
                compare_tokens(&out, json_object_get(row, "prompt"), NULL, text);
                out.n = 0;
                assert_int_equal(chat_encode(c, &r, TRAIN_ON_ALL, &out), OK);
                assert_int_equal(out.n, json_array_size(want));
                assert_null(memchr(out.trained, 0, out.n));
                n_cuts++;
                chat_tokens_free(&out);
                record_parser_close(&p);
                free(text);
                json_decref(want);
                json_decref(record);
            }
        }
        chat_close(c);
        tokenizer_close(t);
    }
    assert_true(n_cuts >= 4 * (1 + 2 + 3 + 2 + 6));
}

/* A turn of the assistant at the end of a prompt is asked with it; at the end of messages it is the response. */
static void a_prompt_is_asked_whole(void **state) {
    static const char *const texts[] = {
        "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}"};
    tokenizer *t = tokenizer_of(template_of("headers"));
    chat *c = open_chat(t, CHAT_AUTO);
    for (size_t i = 0; i < ARRAY_LENGTH(texts); i++) {
        record_parser p = {0};
        chat_tokens out = {0};
        data_record r;
        assert_int_equal(record_parse(&p, texts[i], strlen(texts[i]), "file.jsonl", 7,
                                      &(record_options){.may_lack_response = true}, &r),
                         OK);
        assert_int_equal(chat_encode_prompt(c, &r, &out), OK);
        assert_int_equal(count_id(&out, tokenizer_special(t, "<|eot_id|>")), i == 0 ? 2 : 1);
        chat_tokens_free(&out);
        record_parser_close(&p);
    }
    chat_close(c);
    tokenizer_close(t);
}

static void a_response_ends_with_the_end_of_its_turn(void **state) {
    static const char *const templates[] = {"chatml", "thinking", "headers", "inst", "loud", "parts"};
    for (size_t k = 0; k < ARRAY_LENGTH(templates); k++) {
        tokenizer *t = tokenizer_of(template_of(templates[k]));
        for (int format = CHAT_AUTO; format <= CHAT_NONE; format++) {
            chat *c = open_chat(t, (chat_format)format);
            record_parser p = {0};
            chat_tokens out = {0};
            data_record r = parse_record(&p, "{\"prompt\": \"p\", \"completion\": \"c\"}");
            assert_int_equal(chat_encode(c, &r, TRAIN_ON_RESPONSE, &out), OK);
            size_t n = out.n;
            while (!out.trained[n - 1]) n--;
            assert_int_equal(out.ids[n - 1], chat_end_of_turn(c));
            chat_tokens_free(&out);
            record_parser_close(&p);
            chat_close(c);
        }
        tokenizer_close(t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_template_that_cannot_be_rendered_is_named),
        cmocka_unit_test(what_a_template_refuses_is_told_with_the_line),
        cmocka_unit_test(an_answer_that_is_not_found_is_refused),
        cmocka_unit_test(templates_are_rendered_to_the_byte),
        cmocka_unit_test(the_newline_behind_an_answer_is_trained_where_asked),
        cmocka_unit_test(what_a_template_leaves_out_is_refused),
        cmocka_unit_test(what_follows_an_answer_is_trained_alike_in_every_turn),
        cmocka_unit_test(variables_reach_the_template),
        cmocka_unit_test(control_tokens_in_tools_are_text),
        cmocka_unit_test(built_in_formats_refuse_what_they_cannot_write),
        cmocka_unit_test(numbers_keep_their_digits),
        cmocka_unit_test(everything_that_changes_tokens_is_described),
        cmocka_unit_test(a_template_is_found_where_transformers_finds_it),
        cmocka_unit_test(llama2_turns_alternate),
        cmocka_unit_test(the_last_response_alone_is_left_to_the_model),
        cmocka_unit_test(the_completion_alone_is_trained_on),
        cmocka_unit_test(a_prompt_is_asked_whole),
        cmocka_unit_test(a_response_ends_with_the_end_of_its_turn),
    };
    return cmocka_run_group_tests(tests, chat_fixtures_open, chat_fixtures_close);
}
