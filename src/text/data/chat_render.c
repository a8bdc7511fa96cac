/* chat_render.c - a conversation as the model's own chat template writes it, and what in it the assistant says.
 *
 * The whole is rendered once; its text is encoded as one, with the bytes that come out of the record kept from forming
 * special tokens. Which of it is trained is told by the template's {% generation %} blocks. Without them each response is
 * found by rendering the conversation up to it: what comes before it is the prompt that the model will get
 * (add_generation_prompt), what is added by the response ends with its end-of-turn token. Most templates write a
 * conversation's beginning the same way whatever follows, so both are beginnings of the whole. Some rewrite earlier turns
 * (they drop earlier thoughts, or put tools before the last question): there the bytes that the turn itself gave to the
 * whole are found, and the template's text around them is compared with that around them in the shorter renders. A response
 * that still is not found is an error, never a guess.
 *
 * What the template leaves out of the record is an error too (chat_written.c).
 *
 * Costs two renders per response, so a conversation's time is quadratic in its turns; rendering is about as fast as
 * encoding. */
#include "data/chat_parts.h"

#include <stdlib.h>
#include <string.h>

/* ---- variables ------------------------------------------------------------------------------------------------- */

/* As transformers does: thoughts are known to templates as reasoning_content, and to some as thinking. */
static json_t *with_thought_names(json_t *m) {
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    json_t *thoughts = NULL;
    for (size_t i = 0; i < ARRAY_LENGTH(names) && !thoughts; i++) {
        json_t *v = json_object_get(m, names[i]);
        if (v && !json_is_null(v)) thoughts = v;
    }
    if (!thoughts) return json_incref(m);
    json_t *out = json_object();
    json_object_set(out, "thinking", thoughts);
    json_object_update(out, m);
    json_object_set(out, "reasoning_content", thoughts);
    return out;
}

static status make_messages(rendering *s) {
    const data_record *r = s->t->record;
    s->messages = json_array();
    for (size_t i = 0; i < s->t->n; i++) {
        const record_message *m = &s->t->messages[i];
        json_t *turn = r->turns ? with_thought_names(json_array_get(r->turns, i))
                                : record_turn(turn_role_name(m->role), m->content);
        if (!turn)
            return ERR(ERR_INPUT, "%s:%llu: turn %zu is not valid UTF-8", r->path, (unsigned long long)r->line, i + 1);
        json_array_append_new(s->messages, turn);
    }
    if (r->has_rounded_numbers &&
        (json_has_number(s->messages) || json_has_number(r->tools) || json_has_number(r->template_kwargs)))
        return ERR(ERR_INPUT,
                   "%s:%llu: found an integer of more than 64 bits, expected a smaller one, which the chat template "
                   "can write; write it as a string",
                   r->path, (unsigned long long)r->line);
    return OK;
}

static void make_variables(rendering *s) {
    const data_record *r = s->t->record;
    s->variables = json_deep_copy(s->c->own.tokens); /* shared by all threads: no reference to it is taken */
    if (s->c->kwargs) {
        json_t *kwargs = json_deep_copy(s->c->kwargs);
        json_object_update(s->variables, kwargs);
        json_decref(kwargs);
    }
    if (r->template_kwargs) json_object_update(s->variables, r->template_kwargs);
    json_object_set_new(s->variables, "messages", json_null());
    json_object_set_new(s->variables, "tools", r->tools ? json_incref(r->tools) : json_null());
    json_object_set_new(s->variables, "documents", json_null());
    json_object_set_new(s->variables, "add_generation_prompt", json_false());
}

static status rendering_open(rendering *s, const chat *c, const turns *t) {
    const data_record *r = t->record;
    *s = (rendering){.c = c, .t = t, .template = chat_template_choose(&c->own, r->tools != NULL)};
    if (!s->template)
        return ERR(ERR_INPUT,
                   "%s:%llu: found a chat template only for conversations with tools, and a conversation without "
                   "tools, expected a template named 'default'; set data.chat to a built-in format",
                   r->path, (unsigned long long)r->line);
    TRY(make_messages(s));
    make_variables(s);
    chat_written_collect(s);
    return OK;
}

static void rendering_close(rendering *s) {
    json_decref(s->messages);
    json_decref(s->variables);
    jinja_output_free(&s->whole);
    jinja_output_free(&s->part);
    jinja_output_free(&s->own);
    free(s->cuts);
    free(s->parts);
}

/* ---- renders --------------------------------------------------------------------------------------------------- */

static void set_turns(rendering *s, size_t n, bool open) {
    json_t *first = s->messages;
    if (n < s->t->n) {
        first = json_array();
        for (size_t i = 0; i < n; i++) json_array_append(first, json_array_get(s->messages, i));
        json_object_set_new(s->variables, "messages", first);
    } else {
        json_object_set(s->variables, "messages", first);
    }
    json_object_set_new(s->variables, "add_generation_prompt", json_boolean(open));
}

/* The first n turns. */
static status render_first(rendering *s, size_t n, bool open, jinja_output *out) {
    set_turns(s, n, open);
    return jinja_render(s->template, s->variables, out);
}

/* The same, but a refusal is no error: a template may require a question before an answer. */
static bool try_render_first(rendering *s, size_t n, bool open, jinja_output *out) {
    if (n > 0 && render_first(s, n, open, out) == OK) return true;
    if (n > 0) error_clear();
    return false;
}

/* Many templates take text as content and nothing else, where the records of others have null beside tool_calls, or a list of parts. */
static const char *content_advice(const rendering *s, size_t *turn) {
    for (*turn = 0; *turn < json_array_size(s->messages); (*turn)++) {
        const json_t *content = json_object_get(json_array_get(s->messages, *turn), "content");
        if (json_is_null(content)) return "null content: write \"\"";
        if (json_is_array(content)) return "a list of parts as content: write their text as one string";
    }
    return NULL;
}

static status render_whole(rendering *s) {
    const data_record *r = s->t->record;
    size_t turn;
    set_turns(s, s->t->n, s->t->open);
    status rc = chat_written_render(s);
    if (rc == OK) return chat_written_check(s);
    const char *advice = content_advice(s, &turn),
               *raised = s->whole.raised ? "the chat template refuses the conversation: " : "";
    if (!advice) return ERR(rc, "%s:%llu: %s%s", r->path, (unsigned long long)r->line, raised, error_message());
    return ERR(rc, "%s:%llu: %s%s; this chat template may not take what turn %zu has, %s", r->path,
               (unsigned long long)r->line, raised, error_message(), turn + 1, advice);
}

static bool begins_with(const strbuf *text, const strbuf *beginning) {
    return beginning->length <= text->length &&
           (beginning->length == 0 || memcmp(text->text, beginning->text, beginning->length) == 0);
}

/* The end of the last variable's text before `at`; 0: there is none. */
static size_t variables_end(const jinja_output *o, size_t at) {
    size_t end = 0;
    for (size_t i = 0; i < o->n_from_variables && o->from_variables[i].begin < at; i++)
        end = MIN(o->from_variables[i].end, at);
    return end;
}

static size_t common_prefix(const char *a, size_t n_a, const char *b, size_t n_b) {
    size_t n = 0;
    while (n < n_a && n < n_b && a[n] == b[n]) n++;
    return n;
}

/* ---- a turn that later turns change ---------------------------------------------------------------------------- */

/* Marks the turn's own text in the whole; false: there is none. */
static status find_own_text(rendering *s, size_t i, bool *found) {
    set_turns(s, s->t->n, false);
    TRY(jinja_render_message(s->template, s->variables, i, &s->own));
    *found = s->own.n_from_variables > 0;
    return OK;
}

/* Two texts never differ inside a token: "<|channel|>" and "<|call|>" differ before both. */
static size_t before_token(const rendering *s, size_t from, size_t at, size_t stop) {
    size_t start, behind;
    while (tokenizer_find_special(s->c->t, s->whole.text.text + from, stop - from, true, &start, &behind) >= 0) {
        if (from + start >= at) break;
        if (from + behind > at) return from + start;
        from += behind;
    }
    return at;
}

/* Behind the last `text` that ends in [from, first]; false: it does not stand there. */
static bool find_header(const rendering *s, const char *text, size_t n, size_t from, size_t first, size_t *begin) {
    for (*begin = first; n > 0 && *begin >= from + n; (*begin)--)
        if (memcmp(s->whole.text.text + *begin - n, text, n) == 0) return true;
    *begin = first;
    return false;
}

/* Begin of response i: after the header that the prompt for it ends with. The first turn of all has no prompt: it begins
 * after the usual header, or with its own text. */
static bool find_begin(rendering *s, size_t i, size_t *begin) {
    const char *whole = s->whole.text.text;
    size_t first = s->own.from_variables[0].begin, from = variables_end(&s->whole, first);
    if (i == 0) {
        find_header(s, s->c->header, s->c->header ? strlen(s->c->header) : 0, from, first, begin);
        return true;
    }
    if (!try_render_first(s, i, true, &s->part)) return false;
    size_t tail = variables_end(&s->part, s->part.text.length), n = s->part.text.length - tail;
    size_t same = common_prefix(s->part.text.text + tail, n, whole + from, first - from);
    *begin = same < n ? before_token(s, from, from + same, first) : from + same;
    return *begin > from || n == 0 || find_header(s, s->part.text.text + tail, n, from, first, begin);
}

/* What the template writes after the response where it is the last turn, at the end of one of its own texts: a later
 * turn may write one of them again, such as the name of the tool that it answers. Where it writes nothing, as GLM's,
 * the response ends with its own text: what follows is the header of the next turn, which is not there when the
 * response is the last. */
static bool find_same_end(rendering *s, size_t i, size_t *end) {
    if (!try_render_first(s, i + 1, false, &s->part)) return false;
    const char *whole = s->whole.text.text;
    size_t tail = variables_end(&s->part, s->part.text.length), n = s->part.text.length - tail;
    *end = s->own.from_variables[s->own.n_from_variables - 1].end;
    if (n == 0) return true;
    for (size_t k = s->own.n_from_variables; k-- > 0;) {
        size_t at = s->own.from_variables[k].end;
        *end = at + n;
        if (n <= s->whole.text.length - at && memcmp(s->part.text.text + tail, whole + at, n) == 0) return true;
    }
    return false;
}

/* Else a special token ends it. */
static bool find_end(rendering *s, size_t i, size_t *end) {
    const char *whole = s->whole.text.text;
    size_t last = s->own.from_variables[s->own.n_from_variables - 1].end, stop = s->whole.text.length, start, behind;
    if (find_same_end(s, i, end)) return true;
    for (size_t k = s->whole.n_from_variables; k-- > 0 && s->whole.from_variables[k].end > last;)
        stop = MAX(s->whole.from_variables[k].begin, last);
    if (tokenizer_find_special(s->c->t, whole + last, stop - last, false, &start, &behind) < 0) return false;
    *end = last + behind;
    return true;
}

/* ---- responses ------------------------------------------------------------------------------------------------- */

static void add_stretch(rendering *s, size_t begin, size_t end) {
    s->cuts = array_grow(s->cuts, &s->cuts_capacity, s->n_cuts + 2, sizeof *s->cuts);
    s->cuts[s->n_cuts++] = (text_cut){.at = begin, .splits = true};
    s->cuts[s->n_cuts++] = (text_cut){.at = end};
}

static status not_found(const rendering *s, size_t i) {
    const data_record *r = s->t->record;
    return ERR(
        ERR_INPUT,
        "%s:%llu: turn %zu: the chat template does not show where this answer of the assistant begins and ends; "
        "set data.train_on=all, use a template that marks answers with {%% generation %%}, or set data.chat to a "
        "built-in format",
        r->path, (unsigned long long)r->line, i + 1);
}

/* Behind the last special token of the response's end, or all of it where it has none. A template that always writes the
 * header of the next answer has more of them there: the first one counts. */
static size_t trained_end(const rendering *s, size_t begin, size_t end) {
    const char *whole = s->whole.text.text;
    size_t at = MAX(begin, variables_end(&s->whole, end)), stop = 0, start, behind;
    if (s->c->trains_newline && !s->c->asks_always) return end;
    for (size_t from = at; tokenizer_find_special(s->c->t, whole + from, end - from, false, &start, &behind) >= 0;) {
        from += behind;
        stop = from;
        if (s->c->asks_always) break;
    }
    return stop ? stop : end;
}

static status find_response(rendering *s, size_t i, size_t from) {
    size_t begin = 0, end = s->whole.text.length;
    bool found = false, begins = try_render_first(s, i, true, &s->part) && begins_with(&s->whole.text, &s->part.text);
    if (begins) begin = s->part.text.length;
    bool ends = i + 1 == s->t->n;
    if (!ends && try_render_first(s, i + 1, false, &s->part) && begins_with(&s->whole.text, &s->part.text)) {
        end = s->part.text.length;
        ends = true;
    }
    if (!begins || !ends) {
        TRY(find_own_text(s, i, &found));
        if (!found || (!begins && !find_begin(s, i, &begin)) || (!ends && !find_end(s, i, &end)))
            return not_found(s, i);
    }
    if (begin < from || begin >= end) return not_found(s, i);
    add_stretch(s, begin, trained_end(s, begin, end));
    return OK;
}

/* The {% generation %} blocks of this conversation, after those of the context. */
static status find_generated(rendering *s) {
    size_t n_context = s->t->record->n_context, skip = 0;
    if (n_context > 0 && try_render_first(s, n_context, false, &s->part)) skip = s->part.n_generated;
    for (size_t i = skip; i < s->whole.n_generated; i++)
        add_stretch(s, s->whole.generated[i].begin, s->whole.generated[i].end);
    if (s->n_cuts > 0) return OK;
    return ERR(
        ERR_INPUT,
        "%s:%llu: the chat template marks nothing of this conversation with {%% generation %%}, expected an answer "
        "to learn; set data.train_on=all, or leave the record out (data.on_error=skip)",
        s->t->record->path, (unsigned long long)s->t->record->line);
}

static status find_trained(rendering *s) {
    if (jinja_marks_generation(s->template)) return find_generated(s);
    for (size_t i = 0, from = 0; i < s->t->n; i++) {
        if (!chat_is_response(s->t, i)) continue;
        TRY(find_response(s, i, from));
        from = s->cuts[s->n_cuts - 1].at;
    }
    return OK;
}

/* ---- tokens ---------------------------------------------------------------------------------------------------- */

static status encode_whole(rendering *s, chat_tokens *out) {
    size_t from = out->n;
    text_marks marks = {.content = s->whole.from_variables,
                        .n_content = s->whole.n_from_variables,
                        .cuts = s->cuts,
                        .n_cuts = s->n_cuts};
    TRY(tokenizer_encode_marked(s->c->t, s->whole.text.text, s->whole.text.length, &marks, &out->ids, &out->n,
                                &out->capacity));
    chat_mark(out, from, false);
    for (size_t i = 0; i < s->n_cuts; i += 2)
        for (size_t k = s->cuts[i].n_before; k < s->cuts[i + 1].n_before; k++) out->trained[k] = 1;
    return OK;
}

status chat_render(const chat *c, const turns *t, data_train_on on, chat_tokens *out) {
    rendering s;
    status rc = OK;
    TRY_GOTO(rc, rendering_open(&s, c, t), done);
    TRY_GOTO(rc, render_whole(&s), done);
    if (!t->open && on == TRAIN_ON_RESPONSE) TRY_GOTO(rc, find_trained(&s), done);
    rc = encode_whole(&s, out);
done:
    rendering_close(&s);
    return rc;
}

/* ---- what the template does, seen once ------------------------------------------------------------------------- */

static void find_answer_header(chat *c, rendering *s) {
    if (!try_render_first(s, 1, false, &s->whole) || !try_render_first(s, 1, true, &s->part)) return;
    if (begins_with(&s->part.text, &s->whole.text))
        c->header = mem_string(s->part.text.text + s->whole.text.length); /* templates hold no NUL */
}

/* A template that refuses a conversation of one question and answer is still usable: its model ends with EOS. */
status chat_render_probe(chat *c) {
    static const record_message probe[] = {{.role = TURN_USER, .content = {"question", 8}},
                                           {.role = TURN_ASSISTANT, .content = {"answer", 6}}};
    data_record r = {.kind = RECORD_PAIR, .path = "probe", .line = 1};
    turns t = {.record = &r, .messages = probe, .n = 2};
    rendering s;
    if (!c->own.usual) return OK;
    TRY(rendering_open(&s, c, &t));
    if (try_render_first(&s, 2, false, &s.whole)) {
        size_t end = variables_end(&s.whole, s.whole.text.length), start, behind;
        c->end =
            tokenizer_find_special(c->t, s.whole.text.text + end, s.whole.text.length - end, false, &start, &behind);
    }
    find_answer_header(c, &s);
    rendering_close(&s);
    return OK;
}
