/* test_records.c - JSON Lines become records, and every line that is none is named with its number, or counted. */
#include "data/data.h"
#include "files.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

static char path[128];

static records *open_records(record_options o) {
    records *r;
    if (records_open(&r, path, &o) != OK) fail_msg("%s", error_message());
    return r;
}

static void assert_span(span s, const char *text) {
    if (s.length != strlen(text) || memcmp(s.text, text, s.length) != 0)
        fail_msg("found '%.*s', expected '%s'", (int)s.length, s.text, text);
}

static data_record get(records *r, uint64_t i) {
    data_record q;
    if (records_get(r, i, &q) != OK) fail_msg("%s", error_message());
    return q;
}

/* ShareGPT's turns are the same record. */
static void conversations_are_messages(void **state) {
    write_text(path, "{\"id\": \"x\", \"conversations\": [{\"from\": \"system\", \"value\": \"s\"}, "
                     "{\"from\": \"human\", \"value\": \"u\"}, {\"from\": \"gpt\", \"value\": \"a\"}]}\n");
    records *r = open_records((record_options){0});
    data_record q = get(r, 0);
    assert_int_equal(q.kind, RECORD_MESSAGES);
    assert_int_equal(q.n_messages, 3);
    static const turn_role roles[] = {TURN_SYSTEM, TURN_USER, TURN_ASSISTANT};
    static const char *const said[] = {"s", "u", "a"};
    for (size_t i = 0; i < q.n_messages; i++) {
        assert_int_equal(q.messages[i].role, roles[i]);
        assert_span(q.messages[i].content, said[i]);
    }
    records_close(r);
}

/* TRL's conversational prompts and completions: one conversation that knows where its completion begins. */
static void lists_of_prompt_and_completion_are_one_conversation(void **state) {
    write_text(path,
               "{\"prompt\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"u\"}], "
               "\"completion\": [{\"role\": \"assistant\", \"content\": \"a\"}], \"tools\": []}\n"
               "{\"prompt\": [{\"role\": \"assistant\", \"content\": \"a\"}], \"completion\": "
               "[{\"role\": \"user\", \"content\": \"u\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}\n"
               "{\"messages\": [{\"role\": \"user\", \"content\": \"u\"}, "
               "{\"role\": \"assistant\", \"content\": \"a\", \"tool_calls\": []}], \"tools\": null}\n");
    static const struct {
        size_t n_context;
        const char *roles, *said;
    } want[] = {{2, "sua", "sua"}, {1, "aua", "aub"}, {0, "ua", "ua"}};
    static const char initials[TURN_COUNT] = {'s', 'u', 'a'};
    records *r = open_records((record_options){0});
    assert_int_equal(records_count(r), ARRAY_LENGTH(want));
    for (uint64_t i = ARRAY_LENGTH(want);
         i-- > 0;) { /* the longest last: the parser's memory is used again and grows */
        data_record q = get(r, i);
        assert_int_equal(q.kind, RECORD_MESSAGES);
        assert_int_equal(q.n_context, want[i].n_context);
        assert_int_equal(q.n_messages, strlen(want[i].roles));
        for (size_t k = 0; k < q.n_messages; k++) {
            assert_int_equal(initials[q.messages[k].role], want[i].roles[k]);
            assert_span(q.messages[k].content, (char[]){want[i].said[k], 0});
        }
    }
    records_close(r);

    /* Named columns may hold them too. */
    write_text(path, "{\"ask\": [{\"role\": \"user\", \"content\": \"u\"}], "
                     "\"chosen\": [{\"role\": \"assistant\", \"content\": \"a\"}], \"rejected\": []}\n");
    r = open_records((record_options){.prompt_column = "ask", .response_column = "chosen"});
    data_record q = get(r, 0);
    assert_int_equal(q.n_messages, 2);
    assert_int_equal(q.n_context, 1);
    records_close(r);
    expect_error(records_open(&r, path, &(record_options){.prompt_column = "ask", .response_column = "rejected"}),
                 ERR_INPUT, ":1|'rejected'|empty list");
}

static void every_shape_is_recognised(void **state) {
    write_text(path,
               "\xef\xbb\xbf{\"text\": \"plain \\u00e9\", \"id\": 123456789012345678901234567890}\r\n"
               "\n"
               "{\"prompt\": \"p\", \"completion\": \"c\"}\n"
               "   \t\r\n"
               "{\"question\": \"q\", \"answer\": \"a\", \"text\": \"passed over\"}\n"
               "{\"instruction\": \"do\", \"output\": \"done\"}\n"
               "{\"instruction\": \"do\", \"input\": \"\", \"output\": \"done\"}\n"
               "{\"instruction\": \"do\", \"input\": \"it\", \"output\": \"done\"}\n"
               "{\"instruction\": \"do\", \"input\": null, \"output\": \"done\"}\n"
               "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"\"}, "
               "{\"role\": \"assistant\", \"content\": \"b\\u0000b\"}]}"); /* no end of line behind the last */
    records *r = open_records((record_options){0});
    assert_int_equal(records_count(r), 8);
    assert_int_equal(records_skipped(r), 0);
    data_record q = get(r, 7); /* in any order */
    assert_int_equal(q.kind, RECORD_MESSAGES);
    assert_int_equal(q.line, 10);
    assert_int_equal(q.n_messages, 3);
    assert_int_equal(q.messages[0].role, TURN_SYSTEM);
    assert_int_equal(q.messages[2].role, TURN_ASSISTANT);
    assert_int_equal(q.messages[2].content.length, 3);
    assert_memory_equal(q.messages[2].content.text, "b\0b", 3);
    q = get(r, 0);
    assert_int_equal(q.kind, RECORD_TEXT);
    assert_int_equal(q.line, 1);
    assert_span(q.text, "plain \xc3\xa9");
    q = get(r, 1);
    assert_int_equal(q.kind, RECORD_PAIR);
    assert_int_equal(q.line, 3);
    assert_span(q.prompt, "p");
    assert_span(q.response, "c");
    q = get(r, 2);
    assert_span(q.prompt, "q");
    assert_span(q.response, "a");
    static const char *const prompts[] = {"do", "do", "do\nit", "do"};
    for (uint64_t i = 0; i < 4; i++) {
        q = get(r, 3 + i);
        assert_span(q.prompt, prompts[i]);
        assert_span(q.response, "done");
    }
    records_close(r);
}

static void columns_can_be_named(void **state) {
    write_text(path, "{\"src\": \"a\", \"dst\": \"b\", \"prompt\": 1, \"completion\": 2}\n");
    records *r = open_records((record_options){.prompt_column = "src", .response_column = "dst"}), *none;
    data_record q = get(r, 0);
    assert_span(q.prompt, "a");
    assert_span(q.response, "b");
    records_close(r);
    expect_error(records_open(&none, path, &(record_options){.prompt_column = "src", .response_column = ""}), ERR_INPUT,
                 "data.prompt_column|data.response_column|together");
    expect_error(records_open(&none, path, &(record_options){.prompt_column = "src", .response_column = "no"}),
                 ERR_INPUT, ":1 has no key 'no'|data.response_column|it has 'src', 'dst', 'prompt'");
}

static const struct {
    const char *line, *fragments;
} bad[] = {
    {"{\"prompt\": \"p\", \"completion\": ", ":2|not JSON|byte|one JSON object on each line"},
    {"not json", ":2|not JSON"},
    {"[1, 2]", ":2|a list|one JSON object"},
    {"\"text\"", ":2|not JSON|one JSON object"},
    {"{}{}", ":2|text after the object: '{}'"},
    {"{\"text\": \"a\"},", ":2|text after the object: ','"},
    {"{\"text\": \"a\", \"text\": \"b\"}", ":2|duplicate"},
    {"{\"text\": \"\xff\"}", ":2|UTF-8"},
    {"{\"text\": \"a\xed\xa0\x80\"}", ":2|UTF-8"},
    {"{\"text\": \"\\ud800\"}", ":2|not JSON"},
    {"{}", ":2|no key|question and answer"},
    {"{\"title\": \"t\", \"body\": \"b\"}",
     ":2|'title', 'body'|data.prompt_column=title and data.response_column=body|data.on_error=skip"},
    {"{\"prompt\": \"p\"}", ":2|'prompt'|completion"},
    {"{\"prompt\": 3, \"completion\": \"c\"}", ":2|'prompt'|a number|a string"},
    {"{\"prompt\": \"p\", \"completion\": [\"c\"]}", ":2|'completion'|a string and a list|two texts or two lists"},
    {"{\"prompt\": \"p\", \"completion\": null}", ":2|'completion'|null"},
    {"{\"question\": \"q\", \"answer\": \"\"}", ":2|'answer'|empty"},
    {"{\"text\": \"\"}", ":2|'text'|empty"},
    {"{\"instruction\": \"i\", \"input\": 5, \"output\": \"o\"}", ":2|'input'|a number"},
    {"{\"messages\": []}", ":2|'messages'|empty list"},
    {"{\"messages\": {\"role\": \"user\"}}", ":2|'messages'|an object"},
    {"{\"messages\": [\"hello\"]}", ":2|messages[0]|a string"},
    {"{\"messages\": [{\"role\": \"user\"}]}", ":2|messages[0]|content nothing"},
    {"{\"messages\": [{\"role\": \"user\", \"content\": [1]}]}", ":2|messages[0]|content[0]|a number|text"},
    {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}", ":2|'messages'|no turn of the assistant among 1"},
    {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]}",
     ":2|messages[0]|content[0]|image|text"},
    {"{\"messages\": [{\"role\": \"<|im_end|>\", \"content\": \"a\"}]}", ":2|messages[0]|'<|im_end|>'|a word"},
    {"{\"messages\": [{\"role\": \"\", \"content\": \"a\"}]}", ":2|messages[0]|a word"},
    {"{\"messages\": [{\"role\": \"robot\", \"content\": \"a\"}]}",
     ":2|'messages'|no turn of the assistant among 1|'robot'|role 'assistant'"},
    {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"\"}]}",
     ":2|messages[1]|empty answer"},
    {"{\"messages\": [{\"role\": \"assistant\", \"content\": null, \"tool_calls\": []}]}",
     ":2|messages[0]|content null"},
    {"{\"messages\": [{\"role\": \"assistant\", \"content\": []}]}", ":2|messages[0]|empty answer"},
    {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}], \"tools\": {\"name\": \"f\"}}",
     ":2|'tools'|an object|a list"},
    {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}], \"tools\": [1]}",
     ":2|tools[0]|a number|an object"},
    {"{\"prompt\": \"a\", \"completion\": \"b\", \"tools\": \"[{}\"}", ":2|'tools'|holds no list"},
    {"{\"prompt\": \"a\", \"completion\": \"b\", \"chat_template_kwargs\": [1]}",
     ":2|'chat_template_kwargs'|a list|an object"},
    {"{\"prompt\": \"a\", \"completion\": \"b\", \"chat_template_kwargs\": {\"eos_token\": \"x\"}}",
     ":2|chat_template_kwargs|'eos_token'|sets itself"},
    {"{\"prompt\": \"a\", \"completion\": \"b\", \"chat_template_kwargs\": {\"messages\": []}}",
     ":2|chat_template_kwargs|'messages'"},
    {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"weight\": 0}]}", ":2|messages[0]|weight 0|1"},
    {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"weight\": false}]}",
     ":2|messages[0]|weight false"},
    {"{\"system\": \"s\", \"conversations\": [{\"from\": \"gpt\", \"value\": \"a\"}]}",
     ":2|key 'system'|a string|first turn|.conversations = [{from: \"system\", value: .system}] + .conversations"},
    {"{\"system_prompt\": \"s\", \"question\": \"q\", \"answer\": \"a\"}", ":2|key 'system_prompt'|data.prompt_column"},
    {"{\"instruction\": \"i\", \"output\": \"o\", \"history\": [[\"a\", \"b\"]]}", ":2|key 'history'|a list"},
    {"{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], \"completion\": \"b\"}",
     ":2|'prompt' and 'completion'|a list and a string|two texts or two lists"},
    {"{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], \"completion\": null}", ":2|a list and null"},
    {"{\"prompt\": 3, \"completion\": [{\"role\": \"assistant\", \"content\": \"b\"}]}", ":2|a number and a list"},
    {"{\"prompt\": [], \"completion\": []}", ":2|'prompt'|empty list"},
    {"{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], \"completion\": []}", ":2|'completion'|empty list"},
    {"{\"prompt\": [{\"role\": \"user\"}], \"completion\": [{}]}", ":2|prompt[0]|content nothing"},
    {"{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], \"completion\": [\"b\"]}", ":2|completion[0]|a string"},
    {"{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], \"completion\": [{\"role\": \"assistant\", "
     "\"content\": \"\"}]}",
     ":2|completion[0]|empty answer"},
    {"{\"prompt\": [{\"role\": \"assistant\", \"content\": \"a\"}], \"completion\": [{\"role\": \"user\", "
     "\"content\": \"b\"}]}",
     ":2|'completion'|no turn of the assistant among 1"},
    {"{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}]}", ":2|'prompt'|completion"},
    {"{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"b\"}",
     ":2|a preference|data.prompt_column=prompt|data.response_column=chosen"},
    {"{\"prompt\": \"p\", \"chosen\": [], \"rejected\": []}", ":2|a preference|{messages: .chosen}"},
    {"{\"chosen\": \"a\", \"rejected\": \"b\"}", ":2|a preference|{text: .chosen}"},
    {"{\"conversations\": \"a\"}", ":2|'conversations'|a string|{\"from\", \"value\"}"},
    {"{\"conversations\": [{\"role\": \"user\", \"content\": \"a\"}]}", ":2|conversations[0]|from nothing"},
    {"{\"conversations\": [{\"from\": \"user\", \"value\": \"a\"}]}",
     ":2|conversations[0]|from 'user'|system, human or gpt"},
    {"{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}]}",
     ":2|'conversations'|no turn of the assistant among 1"},
};

static void a_bad_line_is_named_or_counted(void **state) {
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
        char text[1024];
        snprintf(text, sizeof text, "{\"text\": \"one\"}\n%s\n{\"text\": \"three\"}\n", bad[i].line);
        write_text(path, text);
        records *r;
        expect_error(records_open(&r, path, &(record_options){0}), ERR_INPUT, bad[i].fragments);
        expect_error(ERR_INPUT, ERR_INPUT, "data.on_error=skip");
        assert_null(r);
        log_set_level(LOG_ERROR);
        r = open_records((record_options){.on_error = RECORDS_SKIP});
        log_set_level(LOG_INFO);
        assert_int_equal(records_count(r), 2);
        assert_int_equal(records_skipped(r), 1);
        data_record q = get(r, 1);
        assert_int_equal(q.line, 3);
        assert_span(q.text, "three");
        records_close(r);
    }
}

/* What only a template can write is kept for it, and refused by name where there is none. */
static void turns_keep_what_templates_need(void **state) {
    static const struct {
        const char *line, *beyond; /* the key that a built-in format names */
    } cases[] = {
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"tool_calls\": [{}]}]}", "turn 1|tool_calls"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": null, \"tool_calls\": {\"name\": \"f\"}}]}",
         "turn 1|tool_calls"},
        {"{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [1]}]}", "turn 1|tool_calls"},
        {"{\"messages\": [{\"role\": \"tool\", \"content\": \"5\"}, {\"role\": \"assistant\", \"content\": \"a\"}]}",
         "turn 1|role tool|system, user or assistant"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}], \"tools\": [{\"name\": \"f\"}]}",
         "'tools'|del(.tools)"},
        {"{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], \"completion\": [{\"role\": \"assistant\", "
         "\"content\": \"b\"}], \"tools\": \"[{}]\"}",
         "'tools'|a list"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"function_call\": {\"name\": \"f\"}}]}",
         "turn 1|function_call"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"reasoning_content\": \"t\"}]}",
         "turn 1|reasoning_content|<think>"},
        {"{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], \"completion\": [{\"role\": \"assistant\", "
         "\"content\": \"b\", \"thinking\": \"t\"}]}",
         "turn 2|thinking"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}]}]}",
         "turn 1|content|a string"},
        {"{\"prompt\": \"a\", \"completion\": \"b\", \"chat_template_kwargs\": {\"x\": 1}}", "chat_template_kwargs"},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        write_text(path, cases[i].line);
        records *r = open_records((record_options){0});
        data_record q = get(r, 0);
        expect_error(record_check_plain(&q), ERR_INPUT, cases[i].beyond);
        expect_error(ERR_INPUT, ERR_INPUT, "records.jsonl:1");
        assert_int_equal(json_array_size(q.turns), q.n_messages);
        json_t *all = json_loads(cases[i].line, 0, NULL), *own = json_object_get(all, "messages");
        if (own) assert_true(json_equal(own, q.turns));
        json_decref(all);
        records_close(r);
    }
    write_text(path,
               "{\"conversations\": [{\"from\": \"human\", \"value\": \"u\"}, {\"from\": \"gpt\", \"value\": \"a\"}]}");
    records *r = open_records((record_options){0});
    data_record q = get(r, 0);
    assert_int_equal(record_check_plain(&q), OK);
    json_t *want = json_loads(
        "[{\"role\": \"user\", \"content\": \"u\"}, {\"role\": \"assistant\", \"content\": \"a\"}]", 0, NULL);
    assert_true(json_equal(want, q.turns));
    json_decref(want);
    records_close(r);
}

/* What is empty, says nothing new, or stands beside columns that were named is no loss. */
static void keys_without_a_message_are_left(void **state) {
    static const char *const good[] = {
        "{\"messages\": [{\"role\": \"user\", \"content\": \"u\", \"name\": \"n\", \"weight\": 0}, {\"role\": "
        "\"assistant\", "
        "\"content\": \"a\", \"reasoning_content\": \"\", \"thinking\": null, \"weight\": 1}], \"tools\": \"\"}",
        "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"assistant\", \"content\": \"a\"}], "
        "\"system\": \"s\", \"history\": []}",
        "{\"instruction\": \"i\", \"output\": \"o\", \"system\": \"\", \"system_prompt\": null}",
        "{\"text\": \"t\", \"system\": \"s\"}"};
    for (size_t i = 0; i < ARRAY_LENGTH(good); i++) {
        write_text(path, good[i]);
        records_close(open_records((record_options){0}));
    }
    write_text(path, "{\"a\": \"p\", \"b\": \"r\", \"system\": \"s\"}");
    records_close(open_records((record_options){.prompt_column = "a", .response_column = "b"}));
}

static void deep_nesting_is_refused(void **state) {
    static const char *const heads[] = {"{\"text\": ", "{\"messages\": ", "{\"completion\": [], \"prompt\": "};
    for (size_t i = 0; i < ARRAY_LENGTH(heads); i++) {
        strbuf b;
        records *r;
        strbuf_init(&b);
        strbuf_add(&b, heads[i]);
        for (int k = 0; k < 1000000; k++) strbuf_add(&b, "[");
        write_bytes(path, b.text, b.length);
        expect_error(records_open(&r, path, &(record_options){0}), ERR_INPUT, "records.jsonl:1:|not JSON|depth");
        strbuf_fini(&b);
    }
}

static void the_line_number_is_that_of_the_file(void **state) {
    strbuf b;
    records *r;
    strbuf_init(&b);
    for (int i = 1; i <= 13000; i++) strbuf_add(&b, i == 12345 ? "{\"text\": \n" : "{\"text\": \"x\"}\n");
    write_bytes(path, b.text, b.length);
    expect_error(records_open(&r, path, &(record_options){0}), ERR_INPUT, ":12345:");
    strbuf_fini(&b);
}

static void long_lines_work_up_to_the_limit(void **state) {
    enum { N = 10 << 20 };
    char *text = mem_alloc(N + 64);
    int head = sprintf(text, "{\"text\": \"one\"}\n{\"text\": \"");
    memset(text + head, 'x', N);
    size_t n = (size_t)(head + N + sprintf(text + head + N, "\"}\n{\"text\": \"z\"}\n"));
    write_bytes(path, text, n);
    records *r = open_records((record_options){0});
    assert_int_equal(records_count(r), 3);
    assert_int_equal(get(r, 1).text.length, N);
    assert_span(get(r, 2).text, "z");
    records_close(r);
    expect_error(records_open(&r, path, &(record_options){.max_line = 1 << 20}), ERR_INPUT,
                 ":2|found a line of 10485772 bytes|at most 1048576|data.max_line");
    log_set_level(LOG_ERROR);
    r = open_records((record_options){.max_line = 1 << 20, .on_error = RECORDS_SKIP});
    log_set_level(LOG_INFO);
    assert_int_equal(records_count(r), 2);
    assert_int_equal(records_skipped(r), 1);
    data_record q = get(r, 1);
    assert_int_equal(q.line, 3);
    assert_span(q.text, "z");
    records_close(r);
    r = open_records((record_options){.max_line = 10485772}); /* exactly as long as it may be */
    records_close(r);
    free(text);
}

static void files_without_records_are_refused(void **state) {
    records *r;
    write_text(path, "");
    expect_error(records_open(&r, path, &(record_options){0}), ERR_INPUT, "no record");
    write_text(path, "\xef\xbb\xbf\n\r\n  \n");
    expect_error(records_open(&r, path, &(record_options){0}), ERR_INPUT, "no record");
    write_text(path, "x\ny\n");
    log_set_level(LOG_ERROR);
    expect_error(records_open(&r, path, &(record_options){.on_error = RECORDS_SKIP}), ERR_INPUT, "no record|2 lines");
    log_set_level(LOG_INFO);
    expect_error(records_open(&r, "/nowhere/x.jsonl", &(record_options){0}), ERR_IO, "/nowhere/x.jsonl");
    expect_error(records_open(&r, test_dir, &(record_options){0}), ERR_INPUT, "directory");
    expect_error(records_open(&r, "/dev/null", &(record_options){0}), ERR_INPUT, "/dev/null|regular file");
}

static void a_file_that_changes_is_noticed(void **state) {
    static const char text[] = "{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
    data_record q;
    for (int k = 0; k < 3; k++) {
        write_text(path, text);
        records *r = open_records((record_options){0});
        assert_span(get(r, 1).text, "two");
        if (k == 0) { /* grows */
            FILE *f = fopen(path, "ab");
            fputs(text, f);
            fclose(f);
        } else if (k == 1) { /* another file takes its name */
            char other[160];
            snprintf(other, sizeof other, "%s.new", path);
            assert_int_equal(rename(path, other), 0);
            write_text(path, text);
            unlink(other);
        } else { /* the same size, another time */
            struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
            assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
        }
        expect_error(records_get(r, 0, &q), ERR_INPUT, "changed after it was opened");
        records_close(r);
    }
}

static void prompts_need_no_response_where_they_are_to_be_answered(void **state) {
    data_record q;
    records *r;
    write_text(path, "{\"prompt\": \"p\"}\n"
                     "{\"question\": \"q\", \"answer\": \"a\"}\n"
                     "{\"instruction\": \"do\", \"input\": \"it\"}\n"
                     "{\"messages\": [{\"role\": \"user\", \"content\": \"u\"}]}\n"
                     "{\"text\": \"t\"}\n"
                     "{\"prompt\": [{\"role\": \"user\", \"content\": \"u\"}], \"chosen\": 1, \"rejected\": 2}\n");
    expect_error(records_open(&r, path, &(record_options){0}), ERR_INPUT, "records.jsonl:1:|'prompt'");
    r = open_records((record_options){.may_lack_response = true});
    assert_int_equal(records_count(r), 6);
    q = get(r, 0);
    assert_int_equal(q.kind, RECORD_PAIR);
    assert_span(q.prompt, "p");
    assert_int_equal(q.response.length, 0);
    q = get(r, 1);
    assert_span(q.prompt, "q");
    assert_span(q.response, "a");
    assert_span(get(r, 2).prompt, "do\nit");
    q = get(r, 3);
    assert_int_equal(q.kind, RECORD_MESSAGES);
    assert_int_equal(q.n_messages, 1);
    assert_int_equal(get(r, 4).kind, RECORD_TEXT);
    q = get(r, 5);
    assert_int_equal(q.kind, RECORD_MESSAGES);
    assert_int_equal(q.n_messages, 1);
    assert_int_equal(q.n_context, 1);
    records_close(r);

    write_text(path, "{\"ask\": \"p\"}\n");
    expect_error(records_open(&r, path, &(record_options){.prompt_column = "ask"}), ERR_INPUT, "data.response_column");
    r = open_records((record_options){.prompt_column = "ask", .may_lack_response = true});
    assert_span(get(r, 0).prompt, "p");
    records_close(r);
    expect_error(records_open(&r, path, &(record_options){.response_column = "ask", .may_lack_response = true}),
                 ERR_INPUT, "data.prompt_column");

    /* What is there must still be right. */
    static const char *const wrong[] = {"{\"prompt\": 3}",
                                        "{\"prompt\": \"p\", \"completion\": \"\"}",
                                        "{\"prompt\": \"p\", \"completion\": null}",
                                        "{\"messages\": []}",
                                        "{}",
                                        "{\"prompt\": []}",
                                        "{\"prompt\": [1]}",
                                        "{\"prompt\": [{\"role\": \"user\", \"content\": \"u\"}], \"completion\": []}",
                                        "{\"prompt\": [{\"role\": \"user\", \"content\": \"u\"}], \"completion\": "
                                        "[{\"role\": \"user\", \"content\": \"u\"}]}"};
    for (size_t i = 0; i < ARRAY_LENGTH(wrong); i++) {
        write_text(path, wrong[i]);
        expect_error(records_open(&r, path, &(record_options){.may_lack_response = true}), ERR_INPUT,
                     "records.jsonl:1:");
    }
}

static int setup(void **state) {
    if (test_dir_open(state) != 0) return -1;
    snprintf(path, sizeof path, "%s/records.jsonl", test_dir);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_is_recognised),
        cmocka_unit_test(conversations_are_messages),
        cmocka_unit_test(lists_of_prompt_and_completion_are_one_conversation),
        cmocka_unit_test(columns_can_be_named),
        cmocka_unit_test(a_bad_line_is_named_or_counted),
        cmocka_unit_test(turns_keep_what_templates_need),
        cmocka_unit_test(keys_without_a_message_are_left),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(the_line_number_is_that_of_the_file),
        cmocka_unit_test(long_lines_work_up_to_the_limit),
        cmocka_unit_test(files_without_records_are_refused),
        cmocka_unit_test(a_file_that_changes_is_noticed),
        cmocka_unit_test(prompts_need_no_response_where_they_are_to_be_answered),
    };
    return cmocka_run_group_tests(tests, setup, test_dir_close);
}
