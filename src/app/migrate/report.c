/* report.c - prints what became of every key of a foreign file, for a terminal and as JSON.
 *
 * The report asks the config for values when it is printed, so it shows what will be used, even if a default changed
 * later. */
#include "migrate/dialect.h"

#include <string.h>

/* The value of a setting as --set takes it. */
static void value_show(const config *c, const char *setting, strbuf *out) {
    status rc = config_get(c, setting, out, "");
    ASSERT(rc == OK); /* it was offered before */
}

static size_t parent_length(const char *key) {
    const char *dot = strrchr(key, '.');
    return dot ? (size_t)(dot - key) + 1 : 0;
}

/* Are two keys without effect in one map, for the same reason? */
static bool same_map_and_reason(const foreign_entry *a, const foreign_entry *b) {
    if (a->setting || b->setting || !a->key || !b->key || a->file != b->file || strcmp(a->note, b->note) != 0)
        return false;
    size_t n = parent_length(a->key);
    return n == parent_length(b->key) && strncmp(a->key, b->key, n) == 0;
}

/* Text of a file for a terminal: shortened, and without control characters. */
static void text_show(strbuf *out, const char *text) {
    enum { MOST = 60 };
    size_t n = strlen(text), shown = MIN(n, (size_t)MOST);
    while (shown < n && shown && ((unsigned char)text[shown] & 0xc0) == 0x80) shown--; /* not inside a character */
    for (size_t i = 0; i < shown; i++)
        strbuf_printf(out, "%c", (unsigned char)text[i] < 0x20 || text[i] == 0x7f ? '?' : text[i]);
    if (shown < n) strbuf_add(out, "...");
}

/* The left side of line i, and how many entries the line stands for. */
static size_t left_write(const foreign *f, size_t i, strbuf *out) {
    const foreign_entry *first = &f->entries[i];
    size_t n = 1;
    if (!first->key) {
        strbuf_printf(out, "(%s itself)", first->file->dialect->name);
        return 1;
    }
    while (i + n < f->n_entries && same_map_and_reason(first, first + n)) n++;
    size_t parent = parent_length(first->key);
    if (n == 1) {
        strbuf_printf(out, "%s%s", first->key, *first->given ? " = " : "");
        text_show(out, first->given);
    } else {
        strbuf_printf(out, "%.*s{", (int)parent, first->key);
        for (size_t k = 0; k < n; k++) strbuf_printf(out, "%s%s", k ? ", " : "", first[k].key + parent);
        strbuf_add(out, "}");
    }
    return n;
}

void foreign_print(const foreign *f, const config *c, FILE *out) {
    enum { WIDEST = 60 }; /* longer left sides stand out of the column */
    strbuf left, value;
    size_t width = 0;
    strbuf_init(&left);
    strbuf_init(&value);
    for (size_t i = 0; i < f->n_entries; left.length = 0) {
        i += left_write(f, i, &left);
        if (left.length <= WIDEST) width = MAX(width, left.length);
    }
    for (size_t i = 0; i < f->n_entries; left.length = 0) {
        const foreign_entry *e = &f->entries[i];
        if (i == 0 || e->file != e[-1].file) fprintf(out, "from      %s (%s)\n", e->file->path, e->file->dialect->name);
        i += left_write(f, i, &left);
        fprintf(out, "    %-*s  ", (int)width, left.text);
        if (!e->setting) {
            fprintf(out, "%s%s\n", e->is_file ? "-> " : "no effect here: ", e->note);
            continue;
        }
        value.length = 0;
        if (config_is_chosen_later(c, e->setting)) strbuf_add(&value, "auto");
        else value_show(c, e->setting, &value);
        fprintf(out, "-> %s = %s%s%s%s\n", e->setting, value.text, e->note ? "  (" : "", e->note ? e->note : "",
                e->note ? ")" : "");
    }
    strbuf_fini(&left);
    strbuf_fini(&value);
}

json_t *foreign_json(const foreign *f, const config *c) {
    json_t *list = json_array();
    strbuf value;
    strbuf_init(&value);
    for (size_t i = 0; i < f->n_entries; i++) {
        const foreign_entry *e = &f->entries[i];
        json_t *one = json_object();
        json_object_set_new(one, "file", json_string(e->file->path));
        if (e->key) {
            json_object_set_new(one, "key", json_string(e->key));
            json_object_set_new(one, "line", json_integer(e->line));
            json_object_set_new(one, "given", json_string(e->given));
        }
        if (e->setting) {
            value.length = 0;
            value_show(c, e->setting, &value);
            json_object_set_new(one, "setting", json_string(e->setting));
            json_object_set_new(one, "value", json_string(value.text));
            if (e->note) json_object_set_new(one, "note", json_string(e->note));
        } else {
            json_object_set_new(one, "no_effect", json_string(e->note));
        }
        json_array_append_new(list, one);
    }
    strbuf_fini(&value);
    return list;
}
