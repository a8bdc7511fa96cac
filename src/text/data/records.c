/* records.c - parse JSON Lines to records, with an error for every invalid line.
 *
 * jansson checks JSON and UTF-8 and refuses duplicate keys. Integers may have any size: if
 * one is beyond 64 bits all numbers of its line are read as reals, and a template that would print one refuses the
 * record. */
#include "data/record_parts.h"

#include <stdlib.h>
#include <string.h>

enum { NAMED_SKIPS = 3 };

/* ---- one record ---------------------------------------------------------------------------------------------- */

const char *record_kind_of(const json_t *v) {
    static const char *const kinds[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "a list", [JSON_STRING] = "a string", [JSON_INTEGER] = "a number",
        [JSON_REAL] = "a number",    [JSON_TRUE] = "true",    [JSON_FALSE] = "false",     [JSON_NULL] = "null"};
    return v ? kinds[json_typeof(v)] : "nothing";
}

static span span_of(const json_t *string) { return (span){json_string_value(string), json_string_length(string)}; }

static status get_string(const json_t *object, const char *key, place at, bool may_be_empty, span *out) {
    const json_t *v = json_object_get(object, key);
    if (!json_is_string(v))
        return ERR(ERR_INPUT, "%s:%llu: key '%.100s': found %s, expected a string" SKIP_HINT, at.path, at.line, key,
                   record_kind_of(v));
    *out = span_of(v);
    if (out->length == 0 && !may_be_empty)
        return ERR(ERR_INPUT, "%s:%llu: key '%.100s': found an empty string, expected text to learn from" SKIP_HINT,
                   at.path, at.line, key);
    return OK;
}

/* A list of turns: the key it stands under, those of a turn's role and text, and which turns of it are read. */
typedef struct turn_style {
    const char *list, *role, *content, *roles[TURN_OTHER];
    size_t first, end; /* 0: to the end of the list */
} turn_style;

static const turn_style messages_style = {"messages", "role", "content", {"system", "user", "assistant"}, 0, 0};
static const turn_style sharegpt_style = {"conversations", "from", "value", {"system", "human", "gpt"}, 0, 0};

const char *turn_role_name(turn_role r) { return messages_style.roles[r]; }

static turn_style messages_under(const char *key, size_t first, size_t end) {
    turn_style t = messages_style;
    t.list = key;
    t.first = first;
    t.end = end;
    return t;
}

static bool is_empty_value(const json_t *v) {
    return !v || json_is_null(v) || (json_is_array(v) && json_array_size(v) == 0) ||
           (json_is_string(v) && json_string_length(v) == 0);
}

/* Keys of a turn besides its text. The content beside tool_calls is often null, so these are checked first. */
static const struct {
    const char *key, *expected;
} beyond_text[] = {{"tool_calls", "plain text turns only"},
                   {"function_call", "plain text turns only"},
                   {"reasoning_content", "thoughts inside the text, as <think>...</think>, or none"},
                   {"reasoning", "thoughts inside the text, as <think>...</think>, or none"},
                   {"thinking", "thoughts inside the text, as <think>...</think>, or none"},
                   {"role", "system, user or assistant"},
                   {"content", "a string"}};

static const char *find_beyond_text(const json_t *m) {
    for (size_t i = 0; i < ARRAY_LENGTH(beyond_text) - 2; i++)
        if (!is_empty_value(json_object_get(m, beyond_text[i].key))) return beyond_text[i].key;
    return NULL;
}

static const char *expected_instead(const char *key) {
    for (size_t i = 0; i < ARRAY_LENGTH(beyond_text); i++)
        if (strcmp(key, beyond_text[i].key) == 0) return beyond_text[i].expected;
    return "nothing";
}

/* OpenAI's files leave a turn of the assistant out of the loss with "weight": 0. */
static status refuse_weight(const json_t *m, const turn_style *t, size_t index, place at) {
    const json_t *weight = json_object_get(m, "weight");
    if (is_empty_value(weight) || json_is_true(weight) || json_number_value(weight) == 1) return OK;
    char number[32] = "";
    if (json_is_number(weight)) snprintf(number, sizeof number, "%g", json_number_value(weight));
    return ERR(ERR_INPUT,
               "%s:%llu: %.100s[%zu]: found weight %s, expected 1 or none: every turn of the assistant is trained on; "
               "put turns that are only context in a list 'prompt' before a list 'completion'" SKIP_HINT,
               at.path, at.line, t->list, index, *number ? number : record_kind_of(weight));
}

/* A role is part of the template's own text (it writes "<|" + role + "|>"), so it must be a word. */
static bool is_role(const char *role) {
    size_t n = strspn(role, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-. ");
    return n > 0 && n <= 64 && role[n] == 0;
}

static status read_role(const json_t *role, const turn_style *t, size_t index, place at, turn_role *out) {
    const char *name = json_string_value(role);
    for (*out = 0; *out < TURN_OTHER; (*out)++)
        if (strcmp(name, t->roles[*out]) == 0) return OK;
    if (t == &sharegpt_style)
        return ERR(ERR_INPUT, "%s:%llu: %.100s[%zu]: found %s '%.50s', expected %s, %s or %s" SKIP_HINT, at.path,
                   at.line, t->list, index, t->role, name, t->roles[TURN_SYSTEM], t->roles[TURN_USER],
                   t->roles[TURN_ASSISTANT]);
    if (!is_role(name))
        return ERR(ERR_INPUT, "%s:%llu: %.100s[%zu]: found %s '%.50s', expected a word of letters and digits" SKIP_HINT,
                   at.path, at.line, t->list, index, t->role, name);
    return OK;
}

/* Text, or a list of parts that are text; nothing where something else is said. */
static status read_content(const json_t *content, const turn_style *t, size_t index, place at, record_message *out) {
    const json_t *part;
    size_t i;
    if (json_is_string(content)) {
        out->content = span_of(content);
        return OK;
    }
    if (is_empty_value(content) && !json_is_array(content) && out->beyond) return OK;
    if (!json_is_array(content))
        return ERR(ERR_INPUT, "%s:%llu: %.100s[%zu]: found %s %s, expected a string" SKIP_HINT, at.path, at.line,
                   t->list, index, t->content, record_kind_of(content));
    json_array_foreach((json_t *)(uintptr_t)content, i, part) {
        const char *type = json_string_value(json_object_get(part, "type"));
        if (type && strcmp(type, "text") == 0 && json_is_string(json_object_get(part, "text"))) continue;
        return ERR(ERR_INPUT,
                   "%s:%llu: %.100s[%zu]: %s[%zu]: found %s%.50s, expected {\"type\": \"text\", \"text\"}" SKIP_HINT,
                   at.path, at.line, t->list, index, t->content, i, type ? "type " : record_kind_of(part),
                   type ? type : "");
    }
    if (!out->beyond) out->beyond = "content";
    return OK;
}

/* Appends the turn to p->turns. */
static status read_message(record_parser *p, json_t *m, const turn_style *t, size_t index, place at,
                           record_message *out) {
    *out = (record_message){0};
    if (!json_is_object(m))
        return ERR(ERR_INPUT, "%s:%llu: %.100s[%zu]: found %s, expected {\"%s\", \"%s\"}" SKIP_HINT, at.path, at.line,
                   t->list, index, record_kind_of(m), t->role, t->content);
    const json_t *role = json_object_get(m, t->role), *content = json_object_get(m, t->content);
    if (!json_is_string(role))
        return ERR(ERR_INPUT, "%s:%llu: %.100s[%zu]: found %s %s and %s %s, expected two strings" SKIP_HINT, at.path,
                   at.line, t->list, index, t->role, record_kind_of(role), t->content, record_kind_of(content));
    TRY(read_role(role, t, index, at, &out->role));
    if (t == &sharegpt_style && !json_is_string(content))
        return ERR(ERR_INPUT, "%s:%llu: %.100s[%zu]: found %s %s, expected a string" SKIP_HINT, at.path, at.line,
                   t->list, index, t->content, record_kind_of(content));
    out->beyond = find_beyond_text(m);
    if (!out->beyond && out->role == TURN_OTHER) out->beyond = "role";
    bool says_more = out->beyond != NULL;
    TRY(read_content(content, t, index, at, out));
    if (out->role == TURN_ASSISTANT && is_empty_value(content) && !says_more)
        return ERR(ERR_INPUT, "%s:%llu: %.100s[%zu]: found an empty answer of the assistant, expected text" SKIP_HINT,
                   at.path, at.line, t->list, index);
    if (out->role == TURN_ASSISTANT) TRY(refuse_weight(m, t, index, at));
    if (t == &sharegpt_style) json_array_append_new(p->turns, record_turn(turn_role_name(out->role), out->content));
    else json_array_append(p->turns, m);
    return OK;
}

/* Appends a list of turns to the record. */
static status read_turns(record_parser *p, const turn_style *t, place at, data_record *out) {
    const json_t *list = json_object_get(p->root, t->list);
    if (!json_is_array(list) || json_array_size(list) == 0)
        return ERR(ERR_INPUT, "%s:%llu: key '%.100s': found %s, expected a list of {\"%s\", \"%s\"}" SKIP_HINT, at.path,
                   at.line, t->list, json_is_array(list) ? "an empty list" : record_kind_of(list), t->role, t->content);
    size_t n = out->n_messages, end = t->end ? t->end : json_array_size(list);
    p->messages = array_grow(p->messages, &p->capacity, n + end - t->first, sizeof *p->messages);
    for (size_t i = t->first; i < end; i++) TRY(read_message(p, json_array_get(list, i), t, i, at, &p->messages[n++]));
    out->kind = RECORD_MESSAGES;
    out->messages = p->messages;
    out->n_messages = n;
    out->turns = p->turns;
    return OK;
}

/* A list, or a string that holds one as JSON: so data sets keep tools of different shapes in one column. */
static status read_tools(record_parser *p, place at, data_record *out) {
    json_t *tools = json_object_get(p->root, "tools");
    if (!tools || json_is_null(tools) || (json_is_string(tools) && json_string_length(tools) == 0)) return OK;
    json_decref(p->tools);
    if (json_is_string(tools))
        p->tools = json_loadb(json_string_value(tools), json_string_length(tools),
                              JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    else p->tools = json_incref(tools);
    if (!json_is_array(p->tools))
        return ERR(ERR_INPUT,
                   "%s:%llu: key 'tools': found %s, expected a list of tools, or one as JSON in a string" SKIP_HINT,
                   at.path, at.line, json_is_string(tools) ? "a string that holds no list" : record_kind_of(tools));
    const json_t *tool;
    size_t i;
    json_array_foreach(p->tools, i, tool) {
        if (!json_is_object(tool))
            return ERR(ERR_INPUT, "%s:%llu: tools[%zu]: found %s, expected an object" SKIP_HINT, at.path, at.line, i,
                       record_kind_of(tool));
    }
    out->tools = p->tools;
    return OK;
}

/* Variables of the template, such as "enable_thinking". Variables that ralo sets are not allowed: a record must not
 * change the token that ends a turn. */
static status read_template_kwargs(record_parser *p, place at, data_record *out) {
    json_t *kwargs = json_object_get(p->root, "chat_template_kwargs");
    if (!kwargs || json_is_null(kwargs)) return OK;
    if (!json_is_object(kwargs))
        return ERR(ERR_INPUT, "%s:%llu: key 'chat_template_kwargs': found %s, expected an object" SKIP_HINT, at.path,
                   at.line, record_kind_of(kwargs));
    const char *bad = template_kwargs_reserved(kwargs);
    if (bad)
        return ERR(ERR_INPUT,
                   "%s:%llu: chat_template_kwargs: found '%.50s', which ralo sets itself, expected other variables of "
                   "the template" SKIP_HINT,
                   at.path, at.line, bad);
    out->template_kwargs = kwargs;
    return OK;
}

status record_read_beside(record_parser *p, place at, data_record *out) {
    TRY(read_tools(p, at, out));
    return read_template_kwargs(p, at, out);
}

static status need_answer(const data_record *r, const turn_style *t, place at) {
    for (size_t i = r->n_context; i < r->n_messages; i++)
        if (r->messages[i].role == TURN_ASSISTANT) return OK;
    strbuf roles;
    strbuf_init(&roles);
    for (size_t i = r->n_context; i < r->n_messages && roles.length < 100; i++) {
        const char *role = json_string_value(json_object_get(json_array_get(r->turns, i), messages_style.role));
        strbuf_printf(&roles, "%s'%.50s'", roles.length ? ", " : "", role ? role : "");
    }
    status rc =
        ERR(ERR_INPUT,
            "%s:%llu: key '%.100s': found no turn of the assistant among %zu (roles %s), expected at least one "
            "with %s '%s'" SKIP_HINT,
            at.path, at.line, t->list, r->n_messages - r->n_context, roles.text, t->role, t->roles[TURN_ASSISTANT]);
    strbuf_fini(&roles);
    return rc;
}

static status read_messages(record_parser *p, const turn_style *t, const record_options *o, place at,
                            data_record *out) {
    out->prompt_keys[0] = t->list;
    TRY(read_turns(p, t, at, out));
    return o->may_lack_response ? OK : need_answer(out, t, at);
}

static bool has(const json_t *object, const char *key) { return json_object_get(object, key) != NULL; }

/* response: NULL where no column has it. */
static status read_pair(const json_t *root, const char *prompt, const char *response, const record_options *o, place at,
                        data_record *out) {
    out->kind = RECORD_PAIR;
    out->prompt_keys[0] = prompt;
    TRY(get_string(root, prompt, at, true, &out->prompt));
    if (o->ignores_response || (o->may_lack_response && (!response || !has(root, response)))) return OK;
    TRY(get_string(root, response, at, false, &out->response));
    return OK;
}

/* The turns of the prompt are context, those of the response are trained on. response: NULL where there is none. */
static status read_two_lists(record_parser *p, const turn_style *prompt, const turn_style *response, place at,
                             data_record *out) {
    TRY(read_turns(p, prompt, at, out));
    out->n_context = out->n_messages;
    if (!response) return OK;
    TRY(read_turns(p, response, at, out));
    return need_answer(out, response, at);
}

status record_read_split(record_parser *p, const char *key, size_t n_context, place at, data_record *out) {
    turn_style prompt = messages_under(key, 0, n_context), response = messages_under(key, n_context, 0);
    return read_two_lists(p, &prompt, &response, at, out);
}

status record_read_answer(record_parser *p, const char *prompt, const char *response, const record_options *o, place at,
                          data_record *out) {
    const json_t *asked = json_object_get(p->root, prompt);
    const json_t *answer = response && !o->ignores_response ? json_object_get(p->root, response) : NULL;
    out->prompt_keys[0] = prompt;
    if (!json_is_array(asked) && !json_is_array(answer)) return read_pair(p->root, prompt, response, o, at, out);
    bool is_open = o->may_lack_response && !answer;
    if (!is_open && json_is_array(asked) != json_is_array(answer))
        return ERR(ERR_INPUT,
                   "%s:%llu: keys '%.100s' and '%.100s': found %s and %s, expected two texts or two lists of {\"%s\", "
                   "\"%s\"}" SKIP_HINT,
                   at.path, at.line, prompt, response, record_kind_of(asked), record_kind_of(answer),
                   messages_style.role, messages_style.content);
    turn_style of_prompt = messages_under(prompt, 0, 0), of_response = messages_under(response, 0, 0);
    return read_two_lists(p, &of_prompt, is_open ? NULL : &of_response, at, out);
}

/* "input" belongs to the prompt, on a line of its own. */
status record_read_instruction(record_parser *p, const char *response, const record_options *o, place at,
                               data_record *out) {
    const json_t *root = p->root, *input = json_object_get(root, "input");
    TRY(read_pair(root, "instruction", response, o, at, out));
    out->prompt_keys[1] = "input";
    if (!input || json_is_null(input)) return OK;
    span more = {0};
    TRY(get_string(root, "input", at, true, &more));
    if (more.length == 0) return OK;
    p->joined.length = 0;
    strbuf_add_bytes(&p->joined, out->prompt.text, out->prompt.length);
    strbuf_add(&p->joined, "\n");
    strbuf_add_bytes(&p->joined, more.text, more.length);
    out->prompt = (span){p->joined.text, p->joined.length};
    return OK;
}

/* Keys that other programs turn into the first turn of a conversation. A system turn makes them redundant. */
status record_refuse_beside(const json_t *root, const data_record *r, place at) {
    static const char *const keys[] = {"history", "system", "system_prompt"};
    bool turns = r->kind == RECORD_MESSAGES, told = turns && r->messages[0].role == TURN_SYSTEM;
    for (size_t i = 0; i < ARRAY_LENGTH(keys) && r->kind != RECORD_TEXT; i++) {
        if (told && str_starts_with(keys[i], "system")) continue;
        const json_t *v = json_object_get(root, keys[i]);
        if (is_empty_value(v) || !(json_is_string(v) || json_is_array(v))) continue;
        const char *list = r->prompt_keys[0];
        bool is_sharegpt = list && strcmp(list, sharegpt_style.list) == 0;
        const turn_style *t = is_sharegpt ? &sharegpt_style : &messages_style;
        if (turns && list && json_is_string(v) && str_starts_with(keys[i], "system"))
            return ERR(ERR_INPUT,
                       "%s:%llu: key '%s': found a string, which would be ignored, expected it to be the first turn of "
                       "the conversation (jq -c '.%s = [{%s: \"system\", %s: .%s}] + .%s | del(.%s)' IN >OUT makes it "
                       "that)" SKIP_HINT,
                       at.path, at.line, keys[i], list, t->role, t->content, keys[i], list, keys[i]);
        return ERR(ERR_INPUT,
                   "%s:%llu: key '%s': found %s, which would be ignored, expected %s (jq -c 'del(.%s)' removes the "
                   "key)" SKIP_HINT,
                   at.path, at.line, keys[i], record_kind_of(v),
                   turns ? "it to be the first turn of the conversation"
                         : "messages that begin with it, or data.prompt_column and data.response_column, which name "
                           "all that is read",
                   keys[i]);
    }
    return OK;
}

static status read_known_shape(record_parser *p, const record_options *o, place at, data_record *out) {
    const json_t *root = p->root;
    bool open = o->may_lack_response;
    if (has(root, messages_style.list)) return read_messages(p, &messages_style, o, at, out);
    if (has(root, sharegpt_style.list)) return read_messages(p, &sharegpt_style, o, at, out);
    if (has(root, "prompt") && (open || has(root, "completion")))
        return record_read_answer(p, "prompt", "completion", o, at, out);
    if (has(root, "question") && (open || has(root, "answer")))
        return read_pair(root, "question", "answer", o, at, out);
    if (has(root, "instruction") && (open || has(root, "output")))
        return record_read_instruction(p, "output", o, at, out);
    if (!has(root, "text") && has(root, "chosen") && has(root, "rejected")) return record_refuse_preference(root, at);
    if (!has(root, "text")) return record_refuse_shape(root, o, at);
    out->kind = RECORD_TEXT;
    out->prompt_keys[0] = "text";
    return get_string(root, "text", at, false, &out->text);
}

static status read_shape(record_parser *p, const record_options *o, place at, data_record *out) {
    if (o->prompt_column && *o->prompt_column) {
        bool named = o->response_column && *o->response_column;
        TRY(record_need_column(p->root, "data.prompt_column", o->prompt_column, at));
        if (named && !o->may_lack_response)
            TRY(record_need_column(p->root, "data.response_column", o->response_column, at));
        return record_read_answer(p, o->prompt_column, named ? o->response_column : NULL, o, at, out);
    }
    TRY(read_known_shape(p, o, at, out));
    return record_refuse_beside(p->root, out, at);
}

void record_parser_begin(record_parser *p, json_t *root) {
    json_decref(p->root);
    json_decref(p->turns);
    p->root = root;
    p->turns = json_array();
}

status record_load_line(record_parser *p, const char *text, size_t n_bytes, place at, bool *has_rounded_numbers) {
    TRY(record_refuse_list(text, n_bytes, at));
    const size_t flags = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL;
    json_error_t error;
    json_t *root = json_loadb(text, n_bytes, flags, &error);
    *has_rounded_numbers = !root && json_error_code(&error) == json_error_numeric_overflow;
    if (*has_rounded_numbers) root = json_loadb(text, n_bytes, flags | JSON_DECODE_INT_AS_REAL, &error);
    record_parser_begin(p, root);
    if (root) return OK;
    if (json_error_code(&error) == json_error_end_of_input_expected) TRY(record_refuse_rest(text, n_bytes, at));
    return ERR(
        ERR_INPUT,
        "%s:%llu: found text that is not JSON in UTF-8 (byte %d: %s), expected one JSON object on each line" SKIP_HINT,
        at.path, at.line, error.position, error.text);
}

status record_parse(record_parser *p, const char *text, size_t n_bytes, const char *path, uint64_t number,
                    const record_options *o, data_record *out) {
    place at = {path, (unsigned long long)number};
    *out = (data_record){.path = path, .line = number};
    TRY(record_load_line(p, text, n_bytes, at, &out->has_rounded_numbers));
    out->object = p->root;
    TRY(read_shape(p, o, at, out));
    if (out->kind == RECORD_TEXT) return OK;
    return record_read_beside(p, at, out);
}

void record_parser_close(record_parser *p) {
    json_decref(p->root);
    json_decref(p->turns);
    json_decref(p->tools);
    strbuf_fini(&p->joined);
    free(p->messages);
    *p = (record_parser){0};
}

/* ---- what only a template writes ------------------------------------------------------------------------------- */

const char *template_kwargs_reserved(const json_t *kwargs) {
    static const char *const own[] = {"messages", "tools", "documents", "add_generation_prompt"};
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)kwargs, key, v) {
        if (str_ends_with(key, "_token")) return key;
        for (size_t i = 0; i < ARRAY_LENGTH(own); i++)
            if (strcmp(key, own[i]) == 0) return key;
    }
    return NULL;
}

json_t *record_turn(const char *role, span content) {
    json_t *text = json_stringn(content.length ? content.text : "", content.length);
    return text ? json_pack("{s:s, s:o}", "role", role, "content", text) : NULL;
}

status record_check_plain(const data_record *r) {
    place at = {r->path, (unsigned long long)r->line};
    for (size_t i = 0; i < r->n_messages; i++) {
        const char *key = r->messages[i].beyond;
        if (!key) continue;
        const json_t *v = json_object_get(json_array_get(r->turns, i), key);
        bool is_role = strcmp(key, "role") == 0;
        return ERR(ERR_INPUT,
                   "%s:%llu: turn %zu: found %s%s%.50s, expected %s: only a model's own chat template writes more "
                   "(data.chat=auto with a tokenizer that has one)" SKIP_HINT,
                   at.path, at.line, i + 1, key, is_role ? " " : ": ",
                   is_role ? json_string_value(v) : record_kind_of(v), expected_instead(key));
    }
    if (r->tools && json_array_size(r->tools) > 0)
        return ERR(ERR_INPUT,
                   "%s:%llu: key 'tools': found a list, expected conversations without tools: only a model's own chat "
                   "template writes them (data.chat=auto with a tokenizer that has one; jq -c 'del(.tools)' removes "
                   "the key, if the turns contain everything)" SKIP_HINT,
                   at.path, at.line);
    if (r->template_kwargs && json_object_size(r->template_kwargs) > 0)
        return ERR(ERR_INPUT,
                   "%s:%llu: key 'chat_template_kwargs': found variables of a template, expected none where no chat "
                   "template is rendered (data.chat=auto with a tokenizer that has one)" SKIP_HINT,
                   at.path, at.line);
    return OK;
}

/* ---- what is left out ---------------------------------------------------------------------------------------- */

status record_options_check(const record_options *o) {
    bool prompt = o->prompt_column && *o->prompt_column, response = o->response_column && *o->response_column;
    if (prompt != response && !(prompt && o->may_lack_response))
        return ERR(ERR_INPUT,
                   "data: found data.%s_column alone, expected data.prompt_column and data.response_column "
                   "together or none of them",
                   prompt ? "prompt" : "response");
    return OK;
}

static uint64_t max_line_of(const record_options *o) { return o->max_line ? o->max_line : RECORD_MAX_LINE; }

status record_too_long(const char *path, uint64_t number, uint64_t n_bytes, const record_options *o) {
    return ERR(ERR_INPUT, "%s:%llu: found a line of %llu bytes, expected at most %llu (data.max_line)" SKIP_HINT, path,
               (unsigned long long)number, (unsigned long long)n_bytes, (unsigned long long)max_line_of(o));
}

bool record_line_is_empty(const char *text, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i++)
        if (!strchr(" \t\r\v\f", text[i]) || text[i] == 0) return false;
    return true;
}

const char *record_skips_text(uint64_t n, char out[static 48]) {
    snprintf(out, 48,
             n == 1 ? " (%llu line was skipped)"
             : n    ? " (%llu lines were skipped)"
                    : "",
             (unsigned long long)n);
    return out;
}

void record_skips_add(record_skips *s) {
    if (s->n < NAMED_SKIPS) {
        const char *m = error_message(), *hint = strstr(m, SKIP_HINT);
        log_warn("%.*s; left out", hint ? (int)(hint - m) : (int)strlen(m), m);
    }
    if (s->n == NAMED_SKIPS) log_warn("more records are skipped; the data line shows the total");
    s->n++;
    error_clear();
}
