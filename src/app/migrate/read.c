/* read.c - from a file of another program to items: recognise whose it is, find the row of each key.
 *
 * A file is read from disk once, so that a pipe can be a CONFIG. JSON may have comments and trailing commas (json.c)
 * and is then read by the YAML reader, whose nodes know their line. Every unknown key and every value of the wrong type
 * of a file is collected, so that one look is enough to mend it. */
#include "migrate/dialect.h"
#include "migrate/json.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MAX_BYTES ((size_t)4 << 20)

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
        size_t stem = (size_t)(brace - d->rows[i].key);
        for (const char *name = brace + 1; *name != '}' && *name;) {
            size_t length = strcspn(name, " }");
            ASSERT(stem + length < sizeof key);
            memcpy(key, d->rows[i].key, stem); /* snprintf would take ten times as long, for each key of a file */
            memcpy(key + stem, name, length);
            key[stem + length] = 0;
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
    else if (str_ends_with(key, ".*") && strncmp(key, s->key, strlen(key) - 1) == 0) s->found = row;
    if (strncmp(key, s->key, n) == 0 && key[n] == '.') s->is_group = true;
    return s->found != NULL;
}

static bool nearest_visit(void *context, const foreign_row *row, const char *key) {
    (void)row;
    char group[128];
    if (!str_ends_with(key, ".*")) str_nearest_try(context, key);
    for (const char *dot = strchr(key, '.'); dot; dot = strchr(dot + 1, '.')) {
        snprintf(group, sizeof group, "%.*s", (int)(dot - key), key);
        str_nearest_try(context, group);
    }
    return false;
}

static void unknown_key(foreign *f, const foreign_file *file, const char *key, int line) {
    str_nearest nearest = {.wanted = key, .has_groups = true};
    if (f->n_problems < FOREIGN_PROBLEMS) keys_visit(file->dialect, nearest_visit, &nearest); /* else nobody reads it */
    const char *name = file->dialect->name;
    if (*nearest.name)
        foreign_problem(f, "%s:%d: unknown %s key '%.100s'; did you mean '%s'?", file->path, line, name, key,
                        nearest.name);
    else
        foreign_problem(f, "%s:%d: unknown %s key '%.100s'; remove it, or use a setting of ralo ('ralo help settings')",
                        file->path, line, name, key);
}

/* ---- from a tree to items ---------------------------------------------------------------------------------------- */

/* 500_000 is a number of YAML 1.1. */
static const char *number_text(const yaml_node *n, arena *memory) {
    const char *text = n->text;
    if (n->quoted || !strchr(text, '_') || *text == '_' || text[strspn(text, "0123456789_")]) return text;
    char *out = arena_string(memory, text), *to = out;
    for (; *text; text++)
        if (*text != '_') *to++ = *text;
    *to = 0;
    return out;
}

static const char *node_text(const yaml_node *n, arena *memory) {
    if (n->kind == YAML_SCALAR) return number_text(n, memory);
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

static bool type_is_right(foreign_type type, const char *text, const yaml_node *n) {
    bool flag, is_scalar = n->kind == YAML_SCALAR;
    int64_t whole;
    double real;
    switch (type) {
    case FT_BOOL: return is_scalar && bool_read(text, &flag);
    case FT_INT: return is_scalar && int_read(text, &whole);
    case FT_REAL: return is_scalar && real_read(text, &real);
    case FT_TEXT: return is_scalar;
    case FT_PAIR: return n->kind == YAML_LIST; /* the setting's own reader looks at the two */
    case FT_ANY: return n->kind != YAML_MAP;
    case FT_TREE: return true;
    case FT_JSON: return n->kind == YAML_MAP;
    }
    return false;
}

static bool type_check(foreign *f, const foreign_file *file, const foreign_item *i, const yaml_node *n) {
    static const char *const expected[] = {[FT_BOOL] = "true or false",
                                           [FT_INT] = "a whole number",
                                           [FT_REAL] = "a number",
                                           [FT_TEXT] = "text",
                                           [FT_PAIR] = "a list of two numbers",
                                           [FT_ANY] = "a single value or a list",
                                           [FT_TREE] = "",
                                           [FT_JSON] = "a map"};
    if (type_is_right(i->row->type, i->text, n)) return true;
    const char *found = n->kind == YAML_MAP ? "a map" : n->kind == YAML_LIST ? "a list" : i->text;
    const char *quote = n->kind == YAML_SCALAR ? "'" : "";
    foreign_problem(f, "%s:%d: %s: found %s%.100s%s, expected %s", file->path, i->line, i->key, quote, found, quote,
                    expected[i->row->type]);
    return false;
}

static void item_add(foreign_file *file, foreign_item item) {
    file->items = array_grow(file->items, &file->capacity, file->n_items + 1, sizeof *file->items);
    file->items[file->n_items++] = item;
}

static const yaml_node *child_of(const yaml_node *map, const char *key) {
    if (!map || map->kind != YAML_MAP) return NULL;
    for (const yaml_node *n = map->first_child; n; n = n->next)
        if (strcmp(n->key, key) == 0) return n;
    return NULL;
}

/* An empty section, or one that says enabled: false. */
static bool section_is_off(const yaml_node *map) {
    const yaml_node *enabled = child_of(map, "enabled");
    bool flag;
    if (map->kind != YAML_MAP) return false;
    return !map->first_child || (enabled && enabled->kind == YAML_SCALAR && bool_read(enabled->text, &flag) && !flag);
}

static void walk(foreign *f, foreign_file *file, const yaml_node *map, const char *shown, const char *prefix);

/* What no row takes whole: a map or a list of maps to walk into, something empty, or an error. */
static void walk_group(foreign *f, foreign_file *file, const yaml_node *n, foreign_item item, const char *row_key) {
    bool has_maps = n->kind == YAML_LIST && n->first_child && n->first_child->kind == YAML_MAP;
    int at = 0;
    if (n->kind == YAML_MAP && n->first_child) {
        walk(f, file, n, item.key, row_key);
    } else if (has_maps) {
        for (const yaml_node *c = n->first_child; c; c = c->next, at++) {
            if (at == LIST_MOST) {
                foreign_problem(f, "%s:%d: %s: more than %d entries are not read", file->path, c->line, item.key,
                                LIST_MOST);
                return;
            }
            const char *shown = arena_format(&f->memory, "%s[%d]", item.key, at);
            if (c->kind == YAML_MAP) walk(f, file, c, shown, row_key);
            else foreign_problem(f, "%s:%d: %s: found a single value, expected a map", file->path, c->line, shown);
        }
    } else if (n->kind == YAML_MAP || item.is_null || (n->kind == YAML_LIST && !n->first_child)) {
        item_add(file, item);
    } else {
        foreign_problem(f, "%s:%d: '%s' is a group of keys: found %s, expected a map", file->path, n->line, item.key,
                        n->kind == YAML_LIST ? "a list" : "a single value");
    }
}

/* shown and prefix: the key of the map, with and without the places in lists. */
static void walk(foreign *f, foreign_file *file, const yaml_node *map, const char *shown, const char *prefix) {
    for (const yaml_node *n = map->first_child; n; n = n->next) {
        const char *key = *shown ? arena_format(&f->memory, "%s.%s", shown, n->key) : n->key;
        const char *row_key = *prefix ? arena_format(&f->memory, "%s.%s", prefix, n->key) : n->key;
        key_search s = {.key = row_key};
        if (!strchr(n->key, '.') && *n->key)
            keys_visit(file->dialect, find_visit, &s); /* maps are nested, never dotted */
        foreign_item item = {.key = key, .text = node_text(n, &f->memory), .line = n->line, .row = s.found};
        if (s.found && s.found->type == FT_JSON && n->kind == YAML_MAP) item.text = map_json(n, &f->memory);
        item.is_null = node_is_null(n);
        item.is_auto = file->dialect->has_auto && n->kind == YAML_SCALAR && strcmp(n->text, "auto") == 0;
        if (!s.found && !s.is_group) {
            unknown_key(f, file, key, n->line);
        } else if (!s.found) {
            walk_group(f, file, n, item, row_key);
        } else if (s.found->kind == FOREIGN_OFF && section_is_off(n)) {
            item.text = "false";
            item_add(file, item);
        } else if (s.found->kind == FOREIGN_OFF && n->kind == YAML_MAP) {
            foreign_problem(f, "%s:%d: %s: %s", file->path, n->line, key, s.found->text);
        } else if (s.found->kind == FOREIGN_WHOLE || item.is_null || item.is_auto || type_check(f, file, &item, n)) {
            item_add(file, item);
        }
    }
}

/* ---- whose file it is -------------------------------------------------------------------------------------------- */

/* How many keys at the top a dialect knows. */
static int keys_known(const foreign_dialect *d, const yaml_node *root) {
    int known = 0;
    for (const yaml_node *n = root->first_child; n; n = n->next) {
        key_search s = {.key = n->key};
        keys_visit(d, find_visit, &s);
        known += s.found || s.is_group;
    }
    return known;
}

/* A word that only this dialect has at the top of its files. */
static bool has_signature(const foreign_dialect *d, const yaml_node *root) {
    char key[64];
    for (const char *rest = d->signature; rest && *rest;) {
        size_t length = strcspn(rest, " ");
        snprintf(key, sizeof key, "%.*s", (int)length, rest);
        if (child_of(root, key)) return true;
        rest += length + (rest[length] == ' ');
    }
    return false;
}

/* Is it a setting of ours, or a map of them? `rl: dpo` of another trainer is none, though rl is a map of ours. */
static bool is_ours(const yaml_node *n) { return config_has_key(n->key, n->kind == YAML_MAP); }

/* The dialect by shape. RALO has trainer.params. Else a word decides that one dialect alone has, or, where nothing at
 * the top is a setting of ours, the dialect that knows most of the keys, the first of equals. */
static const foreign_dialect *dialect_of(const yaml_node *root, bool is_json) {
    static const foreign_dialect *const all[] = {&foreign_deepspeed, &foreign_trl, &foreign_accelerate,
                                                 &foreign_llamafactory, &foreign_axolotl};
    enum { KEYS_MOST = 1024 }; /* a file with more keys than that at the top is no configuration */
    if (child_of(child_of(root, "trainer"), "params")) return &foreign_ralo;
    if (root->kind != YAML_MAP) return NULL;
    int n_keys = 0, most = 0;
    const foreign_dialect *best = NULL;
    for (const yaml_node *n = root->first_child; n; n = n->next)
        if (is_ours(n) || ++n_keys > KEYS_MOST) return NULL;
    for (size_t i = ARRAY_LENGTH(all); i-- > 0;) /* the last first: their words are rarer */
        if (has_signature(all[i], root)) return all[i];
    for (size_t i = 0; i < ARRAY_LENGTH(all); i++) {
        if (all[i]->is_json && !is_json) continue;
        int known = keys_known(all[i], root);
        if (!all[i]->is_json && (known < 2 || 2 * known < n_keys))
            continue; /* `seed: 3` alone is a slip in one of ours */
        if (known > most) most = known, best = all[i];
    }
    return best;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

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
    walk(f, file, root, "", "");
    return OK;
}

status foreign_read_config(foreign *f, config *c, const char *path) {
    char *text;
    size_t n_bytes;
    yaml_node *root;
    status rc = OK;
    TRY(file_read_all(path, MAX_BYTES, &text, &n_bytes));
    bool is_json = foreign_json_begins(text, n_bytes), is_clean = false;
    char *clean = mem_alloc(n_bytes + 1); /* YAML in braces is no JSON, but a configuration too */
    memcpy(clean, text, n_bytes);
    if (is_json) is_clean = (rc = foreign_json_clean(path, clean, n_bytes)) == OK;
    if (is_json && !is_clean && str_ends_with(path, ".json")) goto done;
    error_clear();
    TRY_GOTO(rc, yaml_read_text(is_clean ? clean : text, n_bytes, path, &f->memory, &root), done);
    const foreign_dialect *d = dialect_of(root, is_json);
    if (d && is_json && !is_clean) TRY_GOTO(rc, foreign_json_clean(path, text, n_bytes), done);
    if (d) TRY_GOTO(rc, file_add(f, d, path, root), done);
    else if (stages_are_in(root)) TRY_GOTO(rc, stages_apply(c, root, path, f->stage, f->stages_dir, &f->memory), done);
    else if (f->stage || f->stages_dir)
        rc = ERR(ERR_INPUT, "%s has no stages, which --%s is about", path, f->stage ? "stage" : "dir");
    else TRY_GOTO(rc, config_read_tree(c, root, path), done);
done:
    free(clean);
    free(text);
    return rc;
}

status foreign_read_deepspeed(foreign *f, const char *path) {
    char *text;
    size_t n_bytes;
    yaml_node *root;
    status rc = OK;
    TRY(file_read_all(path, MAX_BYTES, &text, &n_bytes));
    TRY_GOTO(rc, foreign_json_clean(path, text, n_bytes), done);
    TRY_GOTO(rc, yaml_read_text(text, n_bytes, path, &f->memory, &root), done);
    TRY_GOTO(rc, file_add(f, &foreign_deepspeed, path, root), done);
done:
    free(text);
    return rc;
}
