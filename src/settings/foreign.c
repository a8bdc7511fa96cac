/* foreign.c - the engine that all dialects share: read, find the row of each key, offer, report.
 *
 * JSON is read twice: by jansson, which is strict (no comments, no trailing commas, no duplicate keys), and then by the
 * YAML reader, whose nodes know their line. A file is read from disk once, so that a pipe can be a CONFIG.
 * Values are offered after files and command line were read, and used only where those set nothing: that is the
 * whole precedence, and it lets "auto" mean what the rest of the configuration says. The report asks the config for
 * values when it is printed, so it shows what will be used, even if a default changed later. */
#include "settings/foreign_dialect.h"
#include "settings/form.h"
#include "settings/stages.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MAX_BYTES ((size_t)4 << 20)
#define IMPLIED SIZE_MAX

void foreign_init(foreign *f) {
    *f = (foreign){0};
    arena_init(&f->memory);
}

void foreign_fini(foreign *f) {
    for (size_t i = 0; i < f->n_files; i++) free(f->files[i].items);
    free(f->entries);
    arena_fini(&f->memory);
    *f = (foreign){0};
}

bool foreign_was_read(const foreign *f) { return f->n_files > 0; }

/* ---- rows ------------------------------------------------------------------------------------------------------ */

/* Calls what with every key of every row until it returns true. */
typedef bool (*key_visitor)(void *context, const foreign_row *row, const char *key);
static bool keys_visit(const foreign_dialect *d, key_visitor what, void *context) {
    char key[128];
    for (size_t i = 0; i < d->n_rows; i++) {
        const char *brace = strchr(d->rows[i].key, '{');
        if (!brace) {
            if (what(context, &d->rows[i], d->rows[i].key)) return true;
            continue;
        }
        for (const char *name = brace + 1; *name != '}' && *name;) {
            size_t length = strcspn(name, " }");
            snprintf(key, sizeof key, "%.*s%.*s", (int)(brace - d->rows[i].key), d->rows[i].key, (int)length, name);
            if (what(context, &d->rows[i], key)) return true;
            name += length + (name[length] == ' ');
        }
    }
    return false;
}

typedef struct key_search {
    const char *key;
    const foreign_row *found;
    bool is_group;
} key_search;

static bool find_visit(void *context, const foreign_row *row, const char *key) {
    key_search *s = context;
    size_t n = strlen(s->key);
    if (strcmp(key, s->key) == 0) s->found = row;
    if (strncmp(key, s->key, n) == 0 && key[n] == '.') s->is_group = true;
    return s->found != NULL;
}

static bool nearest_visit(void *context, const foreign_row *row, const char *key) {
    (void)row;
    char group[128];
    str_nearest_try(context, key);
    for (const char *dot = strchr(key, '.'); dot; dot = strchr(dot + 1, '.')) {
        snprintf(group, sizeof group, "%.*s", (int)(dot - key), key);
        str_nearest_try(context, group);
    }
    return false;
}

static status unknown_key(const foreign_file *file, const char *key, int line) {
    str_nearest nearest = {.wanted = key, .has_groups = true};
    keys_visit(file->dialect, nearest_visit, &nearest);
    if (*nearest.name)
        return ERR(ERR_INPUT, "%s:%d: unknown %s key '%.100s'; did you mean '%s'?", file->path, line,
                   file->dialect->name, key, nearest.name);
    return ERR(ERR_INPUT, "%s:%d: unknown %s key '%.100s'; remove it, or use a setting of ralo ('ralo help settings')",
               file->path, line, file->dialect->name, key);
}

/* ---- from a tree to items ---------------------------------------------------------------------------------------- */

static const char *node_text(const yaml_node *n, arena *memory) {
    if (n->kind == YAML_SCALAR) return n->text;
    if (n->kind == YAML_MAP) return "";
    strbuf b;
    strbuf_init(&b);
    strbuf_add(&b, "[");
    for (const yaml_node *c = n->first_child; c; c = c->next)
        strbuf_printf(&b, "%s%s", c == n->first_child ? "" : ", ", c->kind == YAML_SCALAR ? c->text : "...");
    strbuf_add(&b, "]");
    const char *text = arena_string(memory, b.text);
    strbuf_fini(&b);
    return text;
}

static bool node_is_null(const yaml_node *n) {
    return n->kind == YAML_SCALAR && !n->quoted &&
           (*n->text == 0 || strcmp(n->text, "~") == 0 || strcasecmp(n->text, "null") == 0);
}

static status type_check(const foreign_file *file, const foreign_item *i, const yaml_node *n) {
    static const char *const expected[] = {
        [FT_BOOL] = "true or false", [FT_INT] = "a whole number",         [FT_REAL] = "a number",
        [FT_TEXT] = "text",          [FT_PAIR] = "a list of two numbers", [FT_ANY] = ""};
    bool flag, right = true;
    int64_t whole;
    double real;
    switch (i->row->type) {
    case FT_BOOL: right = n->kind == YAML_SCALAR && bool_read(i->text, &flag); break;
    case FT_INT: right = n->kind == YAML_SCALAR && int_read(i->text, &whole); break;
    case FT_REAL: right = n->kind == YAML_SCALAR && real_read(i->text, &real); break;
    case FT_TEXT: right = n->kind == YAML_SCALAR; break;
    case FT_PAIR: right = n->kind == YAML_LIST; break; /* the setting's own reader looks at the two */
    case FT_ANY: right = n->kind != YAML_MAP; break;
    }
    if (right) return OK;
    const char *found = n->kind == YAML_MAP ? "a map" : n->kind == YAML_LIST ? "a list" : i->text;
    const char *quote = n->kind == YAML_SCALAR ? "'" : "";
    return ERR(ERR_INPUT, "%s:%d: %s: found %s%.100s%s, expected %s", file->path, i->line, i->key, quote, found, quote,
               i->row->type == FT_ANY ? "a single value or a list" : expected[i->row->type]);
}

static void item_add(foreign_file *file, foreign_item item) {
    file->items = array_grow(file->items, &file->capacity, file->n_items + 1, sizeof *file->items);
    file->items[file->n_items++] = item;
}

static status walk(foreign *f, foreign_file *file, const yaml_node *map, const char *prefix) {
    for (const yaml_node *n = map->first_child; n; n = n->next) {
        const char *key = *prefix ? arena_format(&f->memory, "%s.%s", prefix, n->key) : n->key;
        key_search s = {.key = key};
        if (!strchr(n->key, '.') && *n->key)
            keys_visit(file->dialect, find_visit, &s); /* maps are nested, never dotted */
        foreign_item item = {.key = key, .text = node_text(n, &f->memory), .line = n->line, .row = s.found};
        item.is_null = node_is_null(n);
        item.is_auto = file->dialect->has_auto && n->kind == YAML_SCALAR && strcmp(n->text, "auto") == 0;
        if (!s.found && !s.is_group) return unknown_key(file, key, n->line);
        if (s.found && s.found->kind == FOREIGN_OFF && n->kind == YAML_MAP)
            return ERR(ERR_INPUT, "%s:%d: %s: %s", file->path, n->line, key, s.found->text);
        if (s.found && s.found->kind == FOREIGN_WHOLE) {
            item_add(file, item);
        } else if (s.found) {
            if (!item.is_null && !item.is_auto) TRY(type_check(file, &item, n));
            item_add(file, item);
        } else if (n->kind == YAML_MAP && n->first_child) {
            TRY(walk(f, file, n, key));
        } else if (n->kind == YAML_MAP || item.is_null) {
            item_add(file, item);
        } else {
            return ERR(ERR_INPUT, "%s:%d: '%s' is a group of keys: found %s, expected a map", file->path, n->line, key,
                       n->kind == YAML_LIST ? "a list" : "a single value");
        }
    }
    return OK;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static int line_at(const char *text, size_t offset) {
    int line = 1;
    for (size_t i = 0; i < offset; i++) line += text[i] == '\n';
    return line;
}

/* Other programs accept comments and trailing commas in JSON; ralo does not, so that two readers never disagree. */
static status json_check(const char *path, char *text, size_t n_bytes) {
    json_error_t error;
    json_t *root = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);
    if (root) {
        json_decref(root);
        /* Tabs are blanks in JSON and never part of a string, but YAML takes offence at some. */
        for (size_t i = 0; i < n_bytes; i++)
            if (text[i] == '\t') text[i] = ' ';
        return OK;
    }
    /* The position after the wrong token. */
    size_t end = error.position < 0 ? 0 : MIN((size_t)error.position, n_bytes);
    char wrong = end ? text[end - 1] : 0;
    if (wrong == '/' || wrong == '#')
        return ERR(ERR_INPUT, "%s:%d: found a comment; JSON has none, remove it", path, line_at(text, end));
    size_t before = end ? end - 1 : 0;
    while (before && strchr(" \t\r\n", text[before - 1])) before--;
    if ((wrong == '}' || wrong == ']') && before && text[before - 1] == ',')
        return ERR(ERR_INPUT, "%s:%d: found a comma with nothing after it; JSON has no trailing commas, remove it",
                   path, line_at(text, before - 1));
    return ERR(ERR_INPUT, "%s:%d:%d: %s (expected one JSON object, in UTF-8, without duplicate keys)", path,
               MAX(error.line, 1), MAX(error.column, 1), error.text);
}

static const yaml_node *child_of(const yaml_node *map, const char *key) {
    if (!map || map->kind != YAML_MAP) return NULL;
    for (const yaml_node *n = map->first_child; n; n = n->next)
        if (strcmp(n->key, key) == 0) return n;
    return NULL;
}

/* The dialect by shape: RALO has trainer.params; DeepSpeed is a JSON object with one of its keys at the top and none
 * of ours. */
static const foreign_dialect *dialect_of(const yaml_node *root, bool is_json) {
    if (child_of(child_of(root, "trainer"), "params")) return &foreign_ralo;
    if (!is_json || root->kind != YAML_MAP) return NULL;
    int left = 256; /* a file with more keys than that at the top is neither */
    bool is_deepspeed = false;
    for (const yaml_node *n = root->first_child; n && left; n = n->next, left--) {
        key_search s = {.key = n->key};
        if (config_knows(n->key)) return NULL;
        keys_visit(&foreign_deepspeed, find_visit, &s);
        is_deepspeed |= s.found || s.is_group;
    }
    return is_deepspeed ? &foreign_deepspeed : NULL;
}

static status file_add(foreign *f, const foreign_dialect *d, const char *path, const yaml_node *root) {
    for (size_t i = 0; i < f->n_files; i++)
        if (f->files[i].dialect == d)
            return ERR(ERR_INPUT, "%s and %s are both %s files; keep one of them", f->files[i].path, path, d->name);
    ASSERT(f->n_files < FOREIGN_FILES);
    if (root->kind != YAML_MAP)
        return ERR(ERR_INPUT, "%s:%d: found %s, expected an object of %s keys", path, root->line,
                   root->kind == YAML_LIST ? "a list" : "a single value", d->name);
    foreign_file *file = &f->files[f->n_files++];
    *file = (foreign_file){.dialect = d, .path = arena_string(&f->memory, path)};
    return walk(f, file, root, "");
}

status foreign_read_config(foreign *f, config *c, const char *path) {
    char *text;
    size_t n_bytes;
    yaml_node *root;
    status rc = OK;
    TRY(file_read_all(path, MAX_BYTES, &text, &n_bytes));
    size_t blank = strspn(text, " \t\r\n");
    bool is_json = text[blank] == '{';
    bool is_strict = is_json && str_ends_with(path, ".json");
    if (is_strict) TRY_GOTO(rc, json_check(path, text, n_bytes), done);
    TRY_GOTO(rc, yaml_read_text(text, n_bytes, path, &f->memory, &root), done);
    const foreign_dialect *d = dialect_of(root, is_json);
    if (d == &foreign_deepspeed && !is_strict) TRY_GOTO(rc, json_check(path, text, n_bytes), done);
    if (d) TRY_GOTO(rc, file_add(f, d, path, root), done);
    else if (stages_are_in(root)) TRY_GOTO(rc, stages_apply(c, root, path, f->stage, f->stages_dir, &f->memory), done);
    else if (f->stage || f->stages_dir)
        rc = ERR(ERR_INPUT, "%s has no stages, which --%s is about", path, f->stage ? "stage" : "dir");
    else TRY_GOTO(rc, config_read_tree(c, root, path), done);
done:
    free(text);
    return rc;
}

status foreign_read_deepspeed(foreign *f, const char *path) {
    char *text;
    size_t n_bytes;
    yaml_node *root;
    status rc = OK;
    TRY(file_read_all(path, MAX_BYTES, &text, &n_bytes));
    TRY_GOTO(rc, json_check(path, text, n_bytes), done);
    TRY_GOTO(rc, yaml_read_text(text, n_bytes, path, &f->memory, &root), done);
    TRY_GOTO(rc, file_add(f, &foreign_deepspeed, path, root), done);
done:
    free(text);
    return rc;
}

/* The value of a setting as --set takes it. */
static void value_show(const config *c, const char *setting, strbuf *out) {
    status rc = config_get(c, setting, out, "");
    ASSERT(rc == OK); /* it was offered before */
}

/* ---- what translate functions use ----------------------------------------------------------------------------------- */

const foreign_item *foreign_find(const foreign_reader *r, const char *key) {
    for (size_t i = 0; i < r->file->n_items; i++)
        if (strcmp(r->file->items[i].key, key) == 0) return r->file->items[i].is_null ? NULL : &r->file->items[i];
    return NULL;
}

bool foreign_has_group(const foreign_reader *r, const char *prefix) {
    size_t n = strlen(prefix);
    for (size_t i = 0; i < r->file->n_items; i++) {
        const char *key = r->file->items[i].key;
        if (strncmp(key, prefix, n) == 0 && (key[n] == '.' || (key[n] == 0 && !r->file->items[i].is_null))) return true;
    }
    return false;
}

bool item_is_true(const foreign_item *i) {
    bool flag = false;
    return i && !i->is_auto && bool_read(i->text, &flag) && flag;
}

int64_t item_whole(const foreign_item *i) {
    int64_t whole = 0;
    ASSERT(int_read(i->text, &whole));
    return whole;
}

double item_real(const foreign_item *i) {
    double real = 0;
    ASSERT(real_read(i->text, &real));
    return real;
}

const char *foreign_where(const foreign_reader *r, const foreign_item *i) {
    return arena_format(&r->f->memory, "%s:%d", r->file->path, i->line);
}

const char *foreign_format(const foreign_reader *r, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return arena_string(&r->f->memory, text);
}

/* In 64 bits: that the axes fit together is checked when all settings are known. */
int64_t foreign_row_ranks(const foreign_reader *r) {
    const int *size = r->c->parallel.size;
    int64_t others = (int64_t)MAX(size[AXIS_TENSOR], 1) * MAX(size[AXIS_PIPELINE], 1);
    if (size[AXIS_DATA] > 0) return (int64_t)size[AXIS_DATA] * MAX(size[AXIS_SEQUENCE], 1);
    return MAX(r->f->n_ranks / others, (int64_t)1);
}

const char *foreign_value(const foreign_reader *r, const char *setting) {
    strbuf b;
    strbuf_init(&b);
    value_show(r->c, setting, &b);
    const char *text = arena_string(&r->f->memory, b.text);
    strbuf_fini(&b);
    return text;
}

static void entry_add(foreign_reader *r, const foreign_item *i, const char *setting, const char *note) {
    foreign *f = r->f;
    f->entries = array_grow(f->entries, &f->capacity, f->n_entries + 1, sizeof *f->entries);
    f->entries[f->n_entries++] = (foreign_entry){.file = r->file,
                                                 .place = i ? (size_t)(i - r->file->items) : IMPLIED,
                                                 .key = i ? i->key : NULL,
                                                 .given = i ? i->text : NULL,
                                                 .line = i ? i->line : 0,
                                                 .setting = setting,
                                                 .note = note};
}

void foreign_report_no_effect(foreign_reader *r, const foreign_item *i, const char *note) {
    entry_add(r, i, NULL, note);
}

void foreign_report_set(foreign_reader *r, const foreign_item *i, const char *setting, const char *note) {
    entry_add(r, i, setting, note);
}

status foreign_offer(foreign_reader *r, const foreign_item *i, const char *setting, const char *value,
                     const char *note) {
    const char *where = i ? foreign_where(r, i) : r->file->path, *who = config_given_by(r->c, setting);
    const char *name = i ? i->key : setting;
    config_offer_result result;
    /* A number that was converted is refused with the number in the file beside it. */
    if (i && strcmp(i->text, value) != 0) name = foreign_format(r, "%s = %.100s", i->key, i->text);
    TRY(config_offer(r->c, setting, value, where, name, &result));
    if (result == OFFER_REFUSED)
        note = foreign_format(r, "conflict: %s says so, %s would give %s%s%s", who, r->file->path, value,
                              note ? "; " : "", note ? note : "");
    entry_add(r, i, setting, note);
    return OK;
}

/* ---- apply ------------------------------------------------------------------------------------------------------- */

/* Items that their row translates completely. */
static status translate_plain(foreign_reader *r) {
    for (size_t k = 0; k < r->file->n_items; k++) {
        const foreign_item *i = &r->file->items[k];
        const foreign_row *row = i->row;
        if (i->is_null) {
            foreign_report_no_effect(r, i, "null: as if it were not there");
        } else if (!row) { /* an empty map; translate may still report more */
        } else if (row->kind == FOREIGN_IDLE || row->kind == FOREIGN_WHOLE) {
            foreign_report_no_effect(r, i, row->text);
        } else if (row->kind == FOREIGN_OFF) {
            if (item_is_true(i))
                return ERR(ERR_INPUT, "%s: %s: found true; %s", foreign_where(r, i), i->key, row->text);
            foreign_report_no_effect(r, i, "off");
        } else if (row->kind == FOREIGN_SET && i->is_auto) {
            foreign_report_set(r, i, row->setting, "auto");
        } else if (row->kind == FOREIGN_SET) {
            TRY(foreign_offer(r, i, row->setting, i->text, row->text));
        }
    }
    return OK;
}

/* No key may get lost between the tables and the translate functions. */
static status check_all_translated(foreign_reader *r) {
    for (size_t k = 0; k < r->file->n_items; k++) {
        const foreign_item *i = &r->file->items[k];
        bool reported = false;
        for (size_t e = 0; e < r->f->n_entries && !reported; e++)
            reported = r->f->entries[e].file == r->file && r->f->entries[e].place == k;
        if (reported) continue;
        if (i->row) return ERR(ERR_BUG, "%s: %s was read but not translated", foreign_where(r, i), i->key);
        foreign_report_no_effect(r, i, "empty");
    }
    return OK;
}

static int by_place(const void *a, const void *b) {
    const foreign_entry *x = a, *y = b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    if (x->place != y->place) return x->place < y->place ? -1 : 1;
    return strcmp(x->setting ? x->setting : "", y->setting ? y->setting : "");
}

status foreign_apply(foreign *f, config *c) {
    for (size_t i = 0; i < f->n_files; i++) {
        foreign_reader r = {.f = f, .file = &f->files[i], .c = c};
        TRY(translate_plain(&r));
        TRY(r.file->dialect->translate(&r));
        TRY(check_all_translated(&r));
    }
    if (f->n_entries) qsort(f->entries, f->n_entries, sizeof *f->entries, by_place);
    return OK;
}

status foreign_check_train(const foreign *f) { return f->refusal ? ERR(ERR_INPUT, "%s", f->refusal) : OK; }

/* ---- report ------------------------------------------------------------------------------------------------------ */

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
            fprintf(out, "no effect here: %s\n", e->note);
            continue;
        }
        value.length = 0;
        value_show(c, e->setting, &value);
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
