/* questions.c - collect prompts, and encode them in the format of the training.
 *
 * The data room reads and checks records; they are copied here because its views end with the next record.
 * questions_encode alone decides which of them become turns and in which format: it needs the tokenizer, hence the
 * open model. */
#include "cli/questions.h"

#include <stdlib.h>
#include <string.h>

#define FILE_MOST ((size_t)4 << 30)

void questions_init(questions *q) {
    *q = (questions){0};
    arena_init(&q->memory);
    q->kept = json_array();
}

void questions_fini(questions *q) {
    free(q->items);
    arena_fini(&q->memory);
    json_decref(q->kept);
    *q = (questions){0};
}

const char *skipped_text(char out[48], uint64_t n) {
    *out = 0;
    if (n) snprintf(out, 48, ", %llu line%s skipped", (unsigned long long)n, n == 1 ? "" : "s");
    return out;
}

span question_text(const question *q) {
    const data_record *r = &q->record;
    if (r->kind == RECORD_TEXT) return r->text;
    return r->kind == RECORD_PAIR ? r->prompt : r->messages[r->n_messages - 1].content;
}

/* ---- collecting -------------------------------------------------------------------------------------------------- */

static span copy_span(questions *q, span s) {
    char *copy = arena_alloc(&q->memory, s.length + 1);
    if (s.length > 0) memcpy(copy, s.text, s.length);
    return (span){copy, s.length};
}

static question *add(questions *q, const char *path, uint64_t line) {
    q->items = array_grow(q->items, &q->capacity, q->n + 1, sizeof *q->items);
    question *item = &q->items[q->n++];
    *item = (question){.record = {.kind = RECORD_PAIR, .path = path, .line = line}, .number = q->n - 1};
    return item;
}

static void add_plain(questions *q, const char *path, uint64_t line, span text) {
    question *item = add(q, path, line);
    item->is_plain = true;
    item->record.prompt = copy_span(q, text);
}

void questions_add(questions *q, const char *text, size_t n_bytes) {
    add_plain(q, "--prompt", q->n + 1, (span){text, n_bytes});
}

static json_t *keep_json(questions *q, json_t *v) {
    if (v) json_array_append(q->kept, v);
    return v;
}

/* What a template gets besides the turns. */
static void keep_beside_turns(questions *q, data_record *out, const data_record *r) {
    out->tools = keep_json(q, r->tools);
    out->template_kwargs = keep_json(q, r->template_kwargs);
    out->has_rounded_numbers = r->has_rounded_numbers;
}

/* The last answer of a conversation is the one to predict; chat_encode_prompt leaves it out. */
static status add_messages(questions *q, const data_record *r, const char *path, bool with_answers) {
    size_t n = r->n_messages;
    while (with_answers && r->messages[n - 1].role != TURN_ASSISTANT) n--;
    if (with_answers && r->messages[n - 1].content.length == 0)
        return ERR(ERR_INPUT, "%s:%llu: turn %zu: found an answer that is not text, expected text to compare with",
                   path, (unsigned long long)r->line, n);
    record_message *copy = arena_array(&q->memory, record_message, n);
    json_t *turns = json_array();
    for (size_t i = 0; i < n; i++) {
        copy[i] = r->messages[i];
        copy[i].content = copy_span(q, r->messages[i].content);
        json_array_append(turns, json_array_get(r->turns, i));
    }
    question *item = add(q, path, r->line);
    item->record.kind = RECORD_MESSAGES;
    item->record.messages = copy;
    item->record.n_messages = n;
    item->record.n_context = MIN(r->n_context, n);
    item->record.turns = keep_json(q, turns);
    json_decref(turns);
    keep_beside_turns(q, &item->record, r);
    if (with_answers) item->answer = copy[n - 1].content;
    return OK;
}

static status add_record(questions *q, const data_record *r, const char *path, bool with_answers) {
    if (with_answers && r->kind == RECORD_TEXT)
        return ERR(ERR_INPUT,
                   "%s:%llu: found plain text, expected a question and its answer; for the loss on text, put it into a "
                   "text file (jq -r .text %s >TEXT.txt)",
                   path, (unsigned long long)r->line, path);
    if (r->kind == RECORD_MESSAGES) return add_messages(q, r, path, with_answers);
    question *item = add(q, path, r->line);
    item->record.kind = r->kind;
    keep_beside_turns(q, &item->record, r);
    if (r->kind == RECORD_TEXT) item->record.text = copy_span(q, r->text);
    else item->record.prompt = copy_span(q, r->prompt);
    if (with_answers) item->answer = copy_span(q, r->response);
    return OK;
}

/* The adapter that the last question is to be answered with. The key means nothing where none is chosen, so it may be anything. */
static void add_adapter(questions *q, const data_record *r) {
    const json_t *name = json_object_get(r->object, "adapter");
    if (!name || json_is_null(name)) return;
    const char *text = json_is_string(name) ? json_string_value(name) : "";
    q->items[q->n - 1].adapter = arena_string(&q->memory, text);
}

status questions_name_flags(status rc) {
    static const char *const names[][2] = {
        {RECORDS_SKIP_SETTING, "--on-error skip"},       {"data.prompt_column=", "--prompt-column "},
        {"data.response_column=", "--response-column "}, {"data.prompt_column", "--prompt-column"},
        {"data.response_column", "--response-column"},   {"data.chat=", "--chat "}};
    error_record why;
    strbuf text;
    strbuf_init(&text);
    error_take(&why);
    for (const char *at = why.message; *at;) {
        size_t i = 0;
        while (i < ARRAY_LENGTH(names) && !str_starts_with(at, names[i][0])) i++;
        if (i == ARRAY_LENGTH(names)) {
            strbuf_add_bytes(&text, at++, 1);
            continue;
        }
        strbuf_add(&text, names[i][1]);
        at += strlen(names[i][0]);
    }
    snprintf(why.message, sizeof why.message, "%s", text.text);
    strbuf_fini(&text);
    error_give(&why);
    return rc;
}

/* OK if the record may be skipped: it is counted. */
static status skip_or_stop(questions *q, status rc, record_policy policy) {
    if (rc != ERR_INPUT || policy == RECORDS_STOP) return questions_name_flags(rc);
    record_skips_add(&q->skips);
    return OK;
}

static status read_records(questions *q, const char *path, const record_options *o, bool with_answers, size_t limit) {
    status rc = OK;
    records *r;
    record_options own = *o;
    own.may_lack_response = !with_answers;
    rc = records_open(&r, path, &own);
    if (rc != OK) return questions_name_flags(rc);
    q->skips.n += records_skipped(r);
    for (uint64_t i = 0, n = 0; i < records_count(r) && rc == OK && (!limit || n < limit); i++) {
        data_record record;
        rc = records_get(r, i, &record);
        if (rc != OK) break;
        rc = add_record(q, &record, path, with_answers);
        if (rc == OK) add_adapter(q, &record);
        n += rc == OK;
        if (rc != OK) rc = skip_or_stop(q, rc, o->on_error);
    }
    records_close(r);
    return rc;
}

static status read_lines(questions *q, const char *path) {
    char *text;
    size_t n, line = 1;
    TRY(data_read_text(path, FILE_MOST, &text, &n));
    for (size_t at = 0; at < n; line++) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t next = end ? (size_t)(end - text) + 1 : n, length = (end ? next - 1 : n) - at;
        while (length > 0 && text[at + length - 1] == '\r') length--;
        if (length > 0) add_plain(q, path, line, (span){text + at, length});
        at = next;
    }
    free(text);
    return OK;
}

status questions_read(questions *q, const char *path, const record_options *o, bool with_answers, size_t limit) {
    size_t before = q->n;
    char skipped[48];
    const char *name = arena_string(&q->memory, path);
    if (data_is_records(path)) TRY(read_records(q, name, o, with_answers, limit));
    else TRY(read_lines(q, name));
    if (q->n == before && !with_answers && q->skips.n == 0)
        return ERR(ERR_INPUT, "%s: found no prompt, expected one per line", path);
    if (q->n == before)
        return ERR(ERR_INPUT, "%s: found no %s%s, expected one per line", path, with_answers ? "question" : "prompt",
                   record_skips_text(q->skips.n, skipped));
    return OK;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

typedef struct writer {
    const generator *g;
    chat *chat;  /* NULL: everything is plain */
    span system; /* text NULL: none was given */
    bool plain_as_turns;
    arena memory;  /* of turns that are put together, */
    json_t *turns; /* and as JSON */
} writer;

static status check_utf8(span text, const char *where, uint64_t line) {
    utf8_scan s = utf8_check(text.text, text.length);
    if (s.n_bad == 0) return OK;
    return ERR(ERR_INPUT, "%s:%llu: byte %zu is not UTF-8, expected UTF-8 in a conversation", where,
               (unsigned long long)line, s.n_valid + 1);
}

/* The record, with the given system turn in front if it has none. */
static status add_system(writer *w, data_record *r) {
    bool pair = r->kind == RECORD_PAIR;
    size_t n = pair ? 1 : r->n_messages;
    if (r->kind == RECORD_TEXT)
        return ERR(ERR_INPUT, "%s:%llu: found plain text, expected a conversation, because --system is given", r->path,
                   (unsigned long long)r->line);
    if (!pair && r->messages[0].role == TURN_SYSTEM) return OK;
    bool answered = pair && r->response.text;
    record_message *turns = arena_array(&w->memory, record_message, n + 2);
    turns[0] = (record_message){.role = TURN_SYSTEM, .content = w->system};
    if (pair) turns[1] = (record_message){.role = TURN_USER, .content = r->prompt};
    else memcpy(turns + 1, r->messages, n * sizeof *turns);
    if (answered) turns[2] = (record_message){.role = TURN_ASSISTANT, .content = r->response};
    json_decref(w->turns);
    w->turns = json_array();
    json_array_append_new(w->turns, record_turn("system", w->system));
    if (pair) json_array_append_new(w->turns, record_turn("user", r->prompt));
    if (answered) json_array_append_new(w->turns, record_turn("assistant", r->response));
    else json_array_extend(w->turns, r->turns);
    r->turns = w->turns;
    r->kind = RECORD_MESSAGES;
    r->messages = turns;
    r->n_messages = n + 1 + answered;
    r->n_context++;
    return OK;
}

static status write_turns(writer *w, const question *q, chat_tokens *out) {
    data_record r = q->record;
    if (q->is_plain) TRY(check_utf8(r.prompt, r.path, r.line));
    if (w->system.text) TRY(add_system(w, &r));
    TRY(chat_encode_prompt(w->chat, &r, out));
    if (q->is_plain) return OK; /* the generator refuses it and names its number */
    if (out->n == 0)
        return ERR(ERR_INPUT, "%s:%llu: found an empty prompt, expected at least one token", r.path,
                   (unsigned long long)r.line);
    if ((int64_t)out->n >= generator_context(w->g)) {
        char advice[CONTEXT_ADVICE];
        return ERR(ERR_INPUT,
                   "%s:%llu: the prompt has %zu tokens, the context holds %lld with at least one new token; %s", r.path,
                   (unsigned long long)r.line, out->n, (long long)generator_context(w->g),
                   generator_context_advice(w->g, advice));
    }
    return OK;
}

/* A record with its answer, as training sees it. */
static status write_answered(writer *w, const question *q, chat_tokens *out) {
    data_record r = q->record;
    if (r.kind == RECORD_PAIR) r.response = q->answer;
    if (w->system.text) TRY(add_system(w, &r));
    return chat_encode(w->chat, &r, TRAIN_ON_RESPONSE, out);
}

static status write_question(writer *w, const question *q, prompt *out) {
    chat_tokens tokens = {0};
    status rc;
    if (q->is_plain && !w->plain_as_turns) {
        rc = generator_encode(w->g, q->record.prompt.text, q->record.prompt.length, &tokens.ids, &tokens.n,
                              &tokens.capacity);
        if (rc != OK) rc = ERR(rc, "%s:%llu: %s", q->record.path, (unsigned long long)q->record.line, error_message());
    } else {
        rc = write_turns(w, q, &tokens);
    }
    free(tokens.trained);
    *out = (prompt){tokens.ids, tokens.n};
    return rc;
}

/* A model that learnt to answer in turns mostly continues a bare text badly, and nothing would say why. */
static void hint_chat(const generator *g) {
    chat *c = NULL;
    chat_options wanted = {.format = CHAT_AUTO};
    if (generator_chat(g, &wanted, &c) != OK) error_clear();
    else if (chat_format_of(c) != CHAT_NONE)
        log_info("the text is continued as it is; --chat auto writes it as a user's turn (%s), which the model knows",
                 chat_format_name(chat_format_of(c)));
    chat_close(c);
}

static status open_chat(writer *w, const questions *q, const command_line *l, asked *out) {
    bool any_plain = false, any_record = false;
    for (size_t i = 0; i < q->n; i++) *(q->items[i].is_plain ? &any_plain : &any_record) = true;
    out->chat = CHAT_AUTO;
    out->end = -1;
    if (any_record || l->chat >= 0) {
        chat_options wanted = {.format = l->chat < 0 ? CHAT_AUTO : (chat_format)l->chat, .kwargs = l->chat_kwargs};
        status rc = generator_chat(w->g, &wanted, &w->chat);
        if (rc != OK) return questions_name_flags(rc);
        out->chat = chat_format_of(w->chat);
        out->end = chat_end_of_turn(w->chat);
        w->plain_as_turns = l->chat >= 0 && out->chat != CHAT_NONE;
    }
    if (l->chat_kwargs && any_plain && !w->plain_as_turns)
        return ERR(ERR_INPUT,
                   "--chat-kwargs: found text that is continued as it is, expected turns for a chat template; "
                   "add --chat auto, or leave it out");
    if (any_plain && l->chat < 0 && !l->system) hint_chat(w->g);
    if (!l->system) return OK;
    if (out->chat == CHAT_AUTO || out->chat == CHAT_NONE || (any_plain && !w->plain_as_turns))
        return ERR(ERR_INPUT, "--system: found prompts without a chat format, expected one; give --chat chatml, llama3 "
                              "or llama2 if the tokenizer has its control tokens");
    w->system = (span){l->system, strlen(l->system)};
    return check_utf8(w->system, "--system", 1);
}

status questions_encode(questions *q, const generator *g, command_line *l, asked *out) {
    status rc = OK;
    size_t n = q->n;
    writer w = {.g = g};
    arena_init(&w.memory);
    bool answered = n > 0 && q->items[0].answer.text;
    *out = (asked){.prompts = mem_alloc(n * sizeof *out->prompts)};
    if (answered) out->records = mem_alloc(n * sizeof *out->records);
    TRY_GOTO(rc, open_chat(&w, q, l, out), done);
    q->n = 0;
    for (size_t i = 0; i < n; i++) {
        prompt *p = &out->prompts[out->n];
        rc = write_question(&w, &q->items[i], p);
        if (rc == OK && answered) rc = write_answered(&w, &q->items[i], &out->records[out->n]);
        if (rc == OK) {
            q->items[q->n++] = q->items[i];
            out->n++;
            continue;
        }
        free((void *)p->tokens);
        *p = (prompt){0};
        if (answered) chat_tokens_free(&out->records[out->n]);
        if (!q->items[i].is_plain) rc = skip_or_stop(q, rc, l->records.on_error);
        if (rc != OK) goto done;
    }
    if (q->n == 0)
        rc = ERR(ERR_INPUT, "found no question: all %llu records were skipped", (unsigned long long)q->skips.n);
    if (out->end >= 0) {
        l->sampling.ends = &out->end;
        l->sampling.n_ends = 1;
    }
done:
    chat_close(w.chat);
    json_decref(w.turns);
    arena_fini(&w.memory);
    return rc;
}

void asked_fini(asked *a) {
    for (size_t i = 0; i < a->n; i++) free((void *)a->prompts[i].tokens);
    for (size_t i = 0; a->records && i < a->n; i++) chat_tokens_free(&a->records[i]);
    free(a->records);
    free(a->prompts);
    *a = (asked){0};
}

size_t completions_cut(const generator *g, const completion *c, size_t n, int64_t max_new) {
    size_t cut = 0, early = 0;
    for (size_t i = 0; i < n; i++) {
        cut += c[i].stop == STOP_LENGTH;
        early += c[i].stop == STOP_LENGTH && (int64_t)c[i].n_tokens < max_new;
    }
    if (early)
        log_warn("%zu of %zu completions stop at the context limit of %lld tokens, before --max-new %lld (set by "
                 "--context; the model has %lld positions)",
                 early, n, (long long)generator_context(g), (long long)max_new,
                 (long long)model_of(&generator_plan(g)->net.source)->max_positions);
    return cut;
}
