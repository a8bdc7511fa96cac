/* chat_written.c - refuse a record if the chat template leaves a part of it out.
 *
 * Templates skip what they do not know: one drops tools, calls and results, another writes the first of two calls. The
 * model would learn from another conversation than the one in the file, such as an empty answer where a call was.
 *
 * The parts are each turn's text, each tool, each call, and the thoughts of the last answer, beside its text or in it.
 * The render that is needed anyway says which parts have bytes in the text (jinja_part). Only a part without any is
 * taken out of the record for another render; if the text stays the same, the part is lost, and the record is refused.
 * So a record that is written in full costs no render more, or one per JINJA_MAX_PARTS parts if it has more of them.
 * Exempt are empty values and thoughts of earlier turns, which templates drop on purpose. */
#define _GNU_SOURCE 1 /* memmem */
#include "data/chat_parts.h"
#include "data/record_parts.h"

#include <string.h>

#define BESIDE SIZE_MAX         /* no turn: a key of the record */
#define WHOLE SIZE_MAX          /* no element: the value of the key itself */
#define THOUGHTS (SIZE_MAX - 1) /* of a text: what stands in it before "</think>" */

typedef struct written_part {
    json_t *value;
    size_t turn, index;
    const char *key;
} written_part;

/* ---- the parts ------------------------------------------------------------------------------------------------- */

static bool is_blank_text(const char *text, size_t n) { return chat_strip((span){text, n}).length == 0; }

static bool is_blank(const json_t *v) {
    const json_t *text = json_object_get(v, "text");
    if (json_is_string(text)) v = text; /* a part of a content */
    return !v || (json_is_string(v) && is_blank_text(json_string_value(v), json_string_length(v))) ||
           (json_is_array(v) && json_array_size(v) == 0) || (json_is_object(v) && json_object_size(v) == 0) ||
           !(json_is_string(v) || json_is_array(v) || json_is_object(v));
}

static void add_part(rendering *s, json_t *value, size_t turn, const char *key, size_t index) {
    if (is_blank(value)) return;
    s->parts = array_grow(s->parts, &s->parts_capacity, s->n_parts + 1, sizeof *s->parts);
    s->parts[s->n_parts++] = (written_part){value, turn, index, key};
}

/* Each element of a list, else the value. */
static void add_parts(rendering *s, const json_t *object, size_t turn, const char *key) {
    json_t *v = json_object_get(object, key), *element;
    size_t i;
    if (!json_is_array(v)) add_part(s, v, turn, key, WHOLE);
    json_array_foreach(v, i, element) add_part(s, element, turn, key, i);
}

/* "<think>thoughts</think>rest"; false: the text is none of this kind. */
static bool split_thoughts(const json_t *content, span *thoughts, const char **rest) {
    static const char begin[] = "<think>", end[] = "</think>";
    const char *text = json_string_value(content), *last = NULL;
    for (const char *at = text; at && (at = strstr(at, end)); at += strlen(end)) last = at;
    if (!last) return false;
    const char *first = strstr(text, begin), *from = first && first < last ? first + strlen(begin) : text;
    *thoughts = chat_strip((span){from, (size_t)(last - from)});
    *rest = last + strlen(end);
    return true;
}

static bool is_thoughts(const json_t *content) {
    span thoughts;
    const char *rest;
    return split_thoughts(content, &thoughts, &rest) && is_blank_text(rest, strlen(rest));
}

static void add_thoughts(rendering *s, json_t *turn, size_t i) {
    span thoughts;
    const char *rest;
    json_t *content = json_object_get(turn, "content");
    add_parts(s, turn, i, "reasoning_content");
    if (split_thoughts(content, &thoughts, &rest) && thoughts.length > 0) add_part(s, content, i, "content", THOUGHTS);
}

/* The answer that nothing but results of tools follows; t->n: there is none, as in a prompt. */
static size_t find_last_answer(const turns *t) {
    for (size_t i = t->open ? 0 : t->n; i-- > 0 && t->messages[i].role != TURN_USER;)
        if (t->messages[i].role == TURN_ASSISTANT) return i;
    return t->n;
}

void chat_written_collect(rendering *s) {
    static const char *const keys[] = {"tool_calls", "function_call", "tool_responses", "tools"};
    size_t last = find_last_answer(s->t);
    add_parts(s, s->variables, BESIDE, "tools");
    for (size_t i = 0; i < s->t->n; i++) {
        json_t *turn = json_array_get(s->messages, i);
        bool is_earlier = s->t->messages[i].role == TURN_ASSISTANT && i != last;
        if (!is_earlier || !is_thoughts(json_object_get(turn, "content"))) add_parts(s, turn, i, "content");
        for (size_t k = 0; k < ARRAY_LENGTH(keys); k++) add_parts(s, turn, i, keys[k]);
        if (i == last) add_thoughts(s, turn, i);
    }
}

/* ---- are they in the text? ------------------------------------------------------------------------------------- */

static size_t ask_parts(const rendering *s, size_t first, jinja_part *asked) {
    size_t n = MIN(s->n_parts - first, (size_t)JINJA_MAX_PARTS);
    for (size_t i = 0; i < n; i++)
        if (s->parts[first + i].index == THOUGHTS) asked[i] = (jinja_part){0}; /* inside of a part */
        else asked[i] = (jinja_part){.value = s->parts[first + i].value};
    return n;
}

/* A part that has bytes in the text needs no other look. */
static void forget_written(rendering *s, size_t first, const jinja_part *asked, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (asked[i].is_written) s->parts[first + i].value = NULL;
}

status chat_written_render(rendering *s) {
    jinja_part asked[JINJA_MAX_PARTS];
    size_t n = ask_parts(s, 0, asked);
    TRY(jinja_render_parts(s->template, s->variables, asked, n, &s->whole));
    forget_written(s, 0, asked, n);
    return OK;
}

static json_t *list_without(const json_t *list, size_t index) {
    json_t *out = json_copy((json_t *)(uintptr_t)list);
    json_array_remove(out, index);
    return out;
}

static json_t *turn_without(const json_t *turn, const written_part *p) {
    json_t *out = json_copy((json_t *)(uintptr_t)turn);
    span thoughts;
    const char *rest;
    if (p->index == THOUGHTS && split_thoughts(p->value, &thoughts, &rest))
        json_object_set_new(out, p->key, json_string(rest));
    else if (p->index != WHOLE) json_object_set_new(out, p->key, list_without(json_object_get(turn, p->key), p->index));
    else if (strcmp(p->key, "content") == 0) json_object_set_new(out, p->key, json_string(""));
    else json_object_del(out, p->key);
    if (strcmp(p->key, "reasoning_content") == 0) json_object_del(out, "thinking"), json_object_del(out, "reasoning");
    return out;
}

/* Most templates write thoughts as they are. */
static bool shows_thoughts(const rendering *s, const written_part *p) {
    span thoughts;
    const char *rest;
    return p->index == THOUGHTS && split_thoughts(p->value, &thoughts, &rest) &&
           memmem(s->whole.text.text, s->whole.text.length, thoughts.text, thoughts.length);
}

/* Is the text the same without the part? If the template refuses the record then, the part matters. */
static bool is_lost(rendering *s, const written_part *p) {
    const char *name = p->turn == BESIDE ? p->key : "messages";
    json_t *value = json_object_get(s->variables, name), *less;
    if (p->turn != BESIDE) {
        less = json_copy(value);
        json_array_set_new(less, p->turn, turn_without(json_array_get(value, p->turn), p));
    } else {
        less = p->index != WHOLE && json_array_size(value) > 1 ? list_without(value, p->index) : json_null();
    }
    json_incref(value);
    json_object_set_new(s->variables, name, less);
    bool renders = jinja_render(s->template, s->variables, &s->part) == OK;
    json_object_set_new(s->variables, name, value);
    if (!renders) error_clear();
    return renders && s->part.text.length == s->whole.text.length &&
           memcmp(s->part.text.text, s->whole.text.text, s->whole.text.length) == 0;
}

static status refuse(const rendering *s, const written_part *p) {
    const data_record *r = s->t->record;
    char turn[32] = "", index[32] = "";
    const char *what = p->index == THOUGHTS ? "<think> in " : "";
    if (p->turn != BESIDE) snprintf(turn, sizeof turn, "turn %zu: ", p->turn + 1);
    if (p->index < THOUGHTS) snprintf(index, sizeof index, "[%zu]", p->index);
    return ERR(
        ERR_INPUT,
        "%s:%llu: %sfound %s%s%s, which the chat template %s does not write: the text is the same without it, so "
        "training would not see it; expected parts that the template writes: put it into the text, or use a "
        "template that writes it" SKIP_HINT,
        r->path, (unsigned long long)r->line, turn, what, p->key, index, jinja_name(s->template));
}

status chat_written_check(rendering *s) {
    jinja_part asked[JINJA_MAX_PARTS];
    for (size_t first = JINJA_MAX_PARTS; first < s->n_parts; first += JINJA_MAX_PARTS) {
        size_t n = ask_parts(s, first, asked);
        TRY(jinja_render_parts(s->template, s->variables, asked, n, &s->part));
        forget_written(s, first, asked, n);
    }
    for (size_t i = 0; i < s->n_parts; i++)
        if (s->parts[i].value && !shows_thoughts(s, &s->parts[i]) && is_lost(s, &s->parts[i]))
            return refuse(s, &s->parts[i]);
    return OK;
}
