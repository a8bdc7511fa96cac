/* form.c - words and one-entry maps: read, check against the row's range, write back. */
#include "settings/form.h"
#include "settings/setting.h"

#include <ctype.h>

enum { MAX_PART = 64, MAX_FORM = 4096 };

/* One part of a range: "full=true" is {name full, rest true, mark =}, "ratio: [0, 1]" {ratio, [0, 1], :}. */
typedef struct part {
    char name[MAX_PART], rest[MAX_PART], mark;
} part;

static const char *alternative_next(const char *range, part *out) {
    if (!range || !*range) return NULL;
    char text[MAX_PART];
    size_t length = strcspn(range, "|");
    ASSERT(length < sizeof text);
    memcpy(text, range, length);
    text[length] = 0;
    size_t at = strcspn(text, "=:");
    *out = (part){.mark = text[at]};
    snprintf(out->name, sizeof out->name, "%.*s", (int)at, text);
    if (out->mark) snprintf(out->rest, sizeof out->rest, "%s", text + at + 1 + strspn(text + at + 1, " "));
    return range + length + (range[length] == '|');
}

/* Names separated by commas, "a,b" or "[a, b]", as "a,b"; false when one of them is empty or could not be a name. */
static bool names_read(const char *text, strbuf *out) {
    bool is_list = *text == '[';
    for (text += is_list;; strbuf_add(out, ",")) {
        text += strspn(text, " \t");
        size_t length = strcspn(text, ",] \t");
        if (length == 0) return false;
        for (size_t i = 0; i < length; i++)
            if (!isalnum((unsigned char)text[i]) && !strchr("._", text[i])) return false;
        strbuf_add_bytes(out, text, length);
        text += length;
        text += strspn(text, " \t");
        if (strcmp(text, is_list ? "]" : "") == 0) return true;
        if (*text++ != ',') return false;
    }
}

static const char whole_mark[] = "whole ";

static bool is_between(const char *interval, double x) {
    double low, high;
    ASSERT(sscanf(interval, "[%lf, %lf]", &low, &high) == 2);
    return x >= low && x <= high;
}

static size_t count_commas(const char *text) {
    size_t n = 0;
    for (; *text; text++) n += *text == ',';
    return n;
}

/* wanted: "names", "(a, b, c)" for a list of exactly so many, an interval, or a whole number in one. */
static bool argument_read(const char *wanted, const char *text, strbuf *out) {
    double real;
    int64_t whole;
    if (strcmp(wanted, "names") == 0) return names_read(text, out);
    size_t from = out->length;
    if (wanted[0] == '(') return names_read(text, out) && count_commas(out->text + from) == count_commas(wanted);
    if (!str_starts_with(wanted, whole_mark)) {
        if (!real_read(text, &real) || !is_between(wanted, real)) return false;
        strbuf_add(out, text);
        return true;
    }
    if (!int_read(text, &whole) || !is_between(wanted + strlen(whole_mark), (double)whole)) return false;
    strbuf_printf(out, "%lld", (long long)whole);
    return true;
}

static bool plain_read(const char *range, const char *text, strbuf *out) {
    char argument[MAX_FORM];
    size_t length = strcspn(text, ":");
    bool has_argument = text[length] == ':', flag, is_flag = bool_read(text, &flag);
    if (strlen(text) >= sizeof argument) return false;
    snprintf(argument, sizeof argument, "%s", has_argument ? text + length + 1 + strspn(text + length + 1, " \t") : "");
    for (size_t n = strlen(argument); n && strchr(" \t", argument[n - 1]);) argument[--n] = 0;
    part p;
    while ((range = alternative_next(range, &p))) {
        bool same = strlen(p.name) == length && memcmp(p.name, text, length) == 0;
        if (is_flag && p.mark == '=') same |= strcmp(p.rest, flag ? "true" : "false") == 0;
        if (!same || has_argument != (p.mark == ':')) continue;
        strbuf_add(out, p.name);
        if (!has_argument) return true;
        strbuf_add(out, ":");
        return argument_read(p.rest, argument, out);
    }
    return false;
}

bool form_read(const char *range, const char *text, strbuf *out) {
    if (*text != '{') return plain_read(range, text, out);
    arena memory;
    yaml_node *root;
    arena_init(&memory);
    const char *inside = NULL;
    if (strlen(text) >= MAX_FORM || yaml_read_text(text, strlen(text), "setting", &memory, &root) != OK) error_clear();
    else if (root->kind == YAML_MAP) inside = form_from_map(root, &memory);
    bool taken = inside && plain_read(range, inside, out);
    arena_fini(&memory);
    return taken;
}

const char *form_from_map(const yaml_node *map, arena *memory) {
    const yaml_node *entry = map->first_child;
    if (!entry || entry->next || entry->kind == YAML_MAP) return NULL;
    if (entry->kind == YAML_SCALAR) return arena_format(memory, "%s:%s", entry->key, entry->text);
    strbuf list; /* in brackets, so that a list of one stays a list */
    strbuf_init(&list);
    strbuf_printf(&list, "%s:[", entry->key);
    const yaml_node *n = entry->first_child;
    for (; n && n->kind == YAML_SCALAR; n = n->next)
        strbuf_printf(&list, "%s%s", n == entry->first_child ? "" : ", ", n->text);
    strbuf_add(&list, "]");
    const char *text = n ? NULL : arena_string(memory, list.text);
    strbuf_fini(&list);
    return text;
}

void form_write(const char *stored, strbuf *out) {
    size_t length = strcspn(stored, ":");
    if (!stored[length]) {
        strbuf_add(out, stored);
        return;
    }
    const char *argument = stored + length + 1;
    bool list = strchr(argument, ',') != NULL;
    strbuf_printf(out, "{%.*s: %s", (int)length, stored, list ? "[" : "");
    for (const char *s = argument; *s; s++) {
        if (*s == ',') strbuf_add(out, ", ");
        else strbuf_add_bytes(out, s, 1);
    }
    strbuf_add(out, list ? "]}" : "}");
}

void form_expected(const char *range, strbuf *out) {
    part p;
    strbuf_add(out, "one of: ");
    for (int i = 0; (range = alternative_next(range, &p)); i++) {
        if (i) strbuf_add(out, ", ");
        if (p.mark != ':') strbuf_printf(out, "%s%s%s", p.name, p.mark ? " or " : "", p.rest);
        else if (strcmp(p.rest, "names") == 0) strbuf_printf(out, "{%s: list of names}", p.name);
        else if (p.rest[0] == '(') strbuf_printf(out, "{%s: [%.*s]}", p.name, (int)strlen(p.rest) - 2, p.rest + 1);
        else if (str_starts_with(p.rest, whole_mark))
            strbuf_printf(out, "{%s: whole number in %s}", p.name, p.rest + strlen(whole_mark));
        else strbuf_printf(out, "{%s: number in %s}", p.name, p.rest);
    }
}
