/* config_read.c - files of settings and --set.
 *
 * Every map of a file may be nested or dotted. All errors of a file are reported at once.
 * Refused: unknown keys (with the nearest known one), a key given twice in one file in any spelling. */
#include "settings/assign.h"
#include "settings/form.h"

#include <stdlib.h>

status config_unknown(const char *where, const char *key) {
    strbuf how;
    strbuf_init(&how);
    if (config_foreign_names.explain_key(key, false, &how)) {
        status rc = ERR(ERR_INPUT, "%s: unknown setting '%.100s'; %s", where, key, how.text);
        strbuf_fini(&how);
        return rc;
    }
    strbuf_fini(&how);
    char alias[64];
    str_nearest nearest = {.wanted = key, .has_groups = true};
    const setting *s;
    for (size_t i = 0; (s = setting_at(i)); i++) {
        str_nearest_try(&nearest, s->key);
        for (const char *rest = s->aliases; (rest = part_next(rest, ' ', alias, sizeof alias));) {
            char *at = strchr(alias, '@');
            if (at) *at = 0;
            /* An alias stands for the key, but for one half of a pair there is no other name. */
            if (str_nearest_try(&nearest, alias) && !at) snprintf(nearest.name, sizeof nearest.name, "%s", s->key);
        }
    }
    if (*nearest.name)
        return ERR(ERR_INPUT, "%s: unknown setting '%.100s'; did you mean '%s'?", where, key, nearest.name);
    return ERR(ERR_INPUT, "%s: unknown setting '%.100s'; `ralo help settings` lists them all", where, key);
}

typedef struct file_reader {
    config *c;
    const char *path;
    int line[CONFIG_ROWS_MOST][PAIR]; /* where each setting was given; 0 = not yet */
    arena *memory;
    strbuf problems; /* all are reported at once, each in a line */
    size_t n_problems;
    const char *first; /* of them */
} file_reader;

enum { PROBLEMS_MOST = 16 }; /* each looks for the nearest setting; a file with more is no file of settings */

/* An error of the user's file joins the others; any other one is passed on. */
static status problem_take(file_reader *r, status rc) {
    if (rc != ERR_INPUT) return rc;
    if (r->n_problems++ == 0) r->first = arena_string(r->memory, error_message());
    strbuf_printf(&r->problems, "\n    %s", error_message());
    error_clear();
    return OK;
}

static status problems_report(const file_reader *r, const char *path) {
    if (r->n_problems == 0) return OK;
    if (r->n_problems == 1) return ERR(ERR_INPUT, "%s", r->first);
    return ERR(ERR_INPUT, "%s: %zu errors%s:%s", path, r->n_problems,
               r->n_problems == PROBLEMS_MOST ? ", and what follows was not read" : "", r->problems.text);
}

/* A list of two scalars as the text "[a, b]", which is what the row's own reader takes. */
static const char *list_text(const yaml_node *list, arena *memory) {
    const yaml_node *a = list->first_child, *b = a ? a->next : NULL;
    if (!b || b->next || a->kind != YAML_SCALAR || b->kind != YAML_SCALAR) return NULL;
    return arena_format(memory, "[%s, %s]", a->text, b->text);
}

static bool takes_pairs(const setting *s) { return s->type == TYPE_TEXT && strcmp(s->range, "pairs") == 0; }

/* A JSON object as text; in a file the map itself will do. */
static bool takes_json(const setting *s) { return s->type == TYPE_TEXT && strcmp(s->range, "json") == 0; }

static bool takes_list(const setting *s) { return s->type == TYPE_TEXT && strcmp(s->range, "list") == 0; }

/* A list of scalars as the text "a,b,c". */
static const char *names_text(const yaml_node *list, arena *memory) {
    strbuf text;
    strbuf_init(&text);
    const yaml_node *n = list->first_child;
    for (; n && n->kind == YAML_SCALAR && *n->text && !strpbrk(n->text, ", "); n = n->next)
        strbuf_printf(&text, "%s%s", text.length ? "," : "", n->text);
    const char *out = n || !text.length ? NULL : arena_string(memory, text.text);
    strbuf_fini(&text);
    return out;
}

/* A map of scalars as the text "a=b, c=d". */
static const char *map_text(const yaml_node *map, arena *memory) {
    strbuf text;
    strbuf_init(&text);
    const yaml_node *n = map->first_child;
    for (; n && n->kind == YAML_SCALAR && !strpbrk(n->key, "=,") && !strpbrk(n->text, "=,"); n = n->next)
        strbuf_printf(&text, "%s%s=%s", text.length ? ", " : "", n->key, n->text);
    const char *out = n || !text.length ? NULL : arena_string(memory, text.text);
    strbuf_fini(&text);
    return out;
}

static status file_assign(file_reader *r, const setting *s, int element, const yaml_node *n, const char *key) {
    const char *where = arena_format(r->memory, "%s:%d", r->path, n->line), *text = n->text;
    int *line = r->line[setting_row(s)];
    for (int i = 0; i < PAIR; i++) {
        if (element != WHOLE && element != i) continue;
        if (line[i])
            return ERR(ERR_INPUT, "%s: %s was given already in line %d; keep one of the two", where, key, line[i]);
        line[i] = n->line;
    }
    if (n->kind == YAML_LIST && s->type == TYPE_PAIR && element == WHOLE) {
        if (!(text = list_text(n, r->memory))) return setting_refuse(s, where, key, "a list that is not two numbers");
    } else if (n->kind == YAML_LIST && takes_list(s)) {
        if (!(text = names_text(n, r->memory)))
            return setting_refuse(s, where, key, "a list with something else than names");
    } else if (n->kind == YAML_MAP && takes_pairs(s)) {
        if (!(text = map_text(n, r->memory)))
            return setting_refuse(s, where, key, "a map with something else than text");
    } else if (n->kind == YAML_MAP && takes_json(s)) {
        if (!(text = map_json(n, r->memory))) return setting_refuse(s, where, key, "a map that is no JSON");
    } else if (n->kind == YAML_MAP && s->type == TYPE_FORM) {
        if (!(text = form_from_map(n, r->memory)))
            return setting_refuse(s, where, key, "a map that does not have exactly one entry with a value or a list");
    } else if (n->kind != YAML_SCALAR) {
        return setting_refuse(s, where, key, n->kind == YAML_MAP ? "a map" : "a list");
    }
    return config_assign(r->c, s, element, text, n->quoted, where, key, ORIGIN_FILE);
}

static void warn_no_effect(const char *where, const char *key, const fsdp_translation *t) {
    if (t->why) log_warn("%s: %s has no effect: %s", where, key, t->why);
}

/* A key of FSDP stands for others; each counts as given in its line. */
static status file_fsdp(file_reader *r, const yaml_node *n, const char *key, bool *taken) {
    fsdp_translation t;
    bool is_value = n->kind != YAML_MAP; /* a map is walked into */
    *taken = false;
    if (!is_value) return OK;
    const char *where = arena_format(r->memory, "%s:%d", r->path, n->line);
    TRY(config_foreign_names.translate_fsdp(where, key, n->kind == YAML_SCALAR ? n->text : "a list", &t));
    *taken = t.is_fsdp;
    warn_no_effect(where, key, &t);
    for (int i = 0; i < t.n; i++) {
        int element;
        yaml_node value = {.kind = YAML_SCALAR, .text = t.value, .line = n->line};
        TRY(file_assign(r, setting_find(t.settings[i], &element), WHOLE, &value, key));
    }
    return OK;
}

static status file_walk(file_reader *r, const yaml_node *map, const char *prefix);

static status file_key(file_reader *r, const yaml_node *n, const char *key) {
    const char *where = arena_format(r->memory, "%s:%d", r->path, n->line);
    int element;
    const setting *s = setting_find(key, &element);
    bool is_fsdp = false;
    if (s) return file_assign(r, s, element, n, key);
    TRY(file_fsdp(r, n, key, &is_fsdp));
    if (is_fsdp) return OK;
    if (n->kind == YAML_MAP && n->first_child)
        return file_walk(r, n, key); /* an unknown map is reported by its settings, where a guess can be made */
    if (!setting_group_exists(key)) return config_unknown(where, key);
    if (n->kind == YAML_LIST || (n->kind == YAML_SCALAR && (n->quoted || !text_is_null(n->text))))
        return ERR(ERR_INPUT, "%s: '%s' is a group of settings: found %s, expected a map", where, key,
                   n->kind == YAML_LIST ? "a list" : "a single value");
    return OK;
}

static status file_walk(file_reader *r, const yaml_node *map, const char *prefix) {
    for (const yaml_node *n = map->first_child; n && r->n_problems < PROBLEMS_MOST; n = n->next) {
        const char *key = *prefix ? arena_format(r->memory, "%s.%s", prefix, n->key) : n->key;
        TRY(problem_take(r, file_key(r, n, key)));
    }
    return OK;
}

status config_read_tree(config *c, const yaml_node *root, const char *path) {
    arena memory;
    status rc;
    if (root->kind != YAML_MAP)
        return ERR(ERR_INPUT, "%s:%d: found %s, expected a map of settings", path, root->line,
                   root->kind == YAML_LIST ? "a list" : "a single value");
    arena_init(&memory);
    file_reader *r = mem_alloc(sizeof *r);
    *r = (file_reader){.c = c, .path = path, .memory = &memory};
    strbuf_init(&r->problems);
    rc = file_walk(r, root, "");
    if (rc == OK) rc = problems_report(r, path);
    if (rc != OK) error_trail(rc, __FILE__, __LINE__, __func__);
    strbuf_fini(&r->problems);
    free(r);
    arena_fini(&memory);
    return rc;
}

status config_read_file(config *c, const char *path) {
    arena memory;
    yaml_node *root;
    status rc;
    arena_init(&memory);
    TRY_GOTO(rc, yaml_read_file(path, &memory, &root), done);
    TRY_GOTO(rc, config_read_tree(c, root, path), done);
done:
    arena_fini(&memory);
    return rc;
}

/* "{a: b, c: d}" and "[a, b]" on a command line, as a map and a list in a file. */
static status set_flow(config *c, const setting *s, const char *flow, const char *where, const char *key) {
    arena memory;
    yaml_node *root;
    const char *text = NULL;
    arena_init(&memory);
    if (yaml_read_text(flow, strlen(flow), where, &memory, &root) != OK) error_clear();
    else if (root->kind == YAML_MAP) text = map_text(root, &memory);
    else if (root->kind == YAML_LIST) text = names_text(root, &memory);
    status rc = text ? config_assign(c, s, WHOLE, text, false, where, key, ORIGIN_COMMAND)
                     : setting_refuse(s, where, key, arena_format(&memory, "'%.100s'", flow));
    arena_fini(&memory);
    return rc;
}

/* On a command line nothing after the = is a variable that was not set, not null as in a file: --model "$DIR" without a
 * DIR is not a run from random values. */
static bool takes_nothing(const setting *s) {
    return s->type == TYPE_TEXT && strcmp(s->range, "some") != 0 && !takes_json(s);
}

status config_set(config *c, const char *assignment, const char *where) {
    const char *equals = strchr(assignment, '=');
    if (!equals || equals == assignment)
        return ERR(ERR_INPUT, "%s %.100s: expected key=value, such as train.lr=3e-4", where, assignment);
    status rc = OK;
    char *copy = mem_alloc(strlen(assignment) + 1);
    memcpy(copy, assignment, (size_t)(equals - assignment));
    char *key = spaces_trim(copy);
    int element;
    const setting *s = setting_find(key, &element);
    const char *text = equals + 1 + strspn(equals + 1, " ");
    bool is_flow = s && ((takes_pairs(s) && *text == '{') || (takes_list(s) && *text == '['));
    fsdp_translation fsdp = {0};
    if (!s) TRY_GOTO(rc, config_foreign_names.translate_fsdp(where, key, text, &fsdp), done);
    warn_no_effect(where, key, &fsdp);
    for (int i = 0; i < fsdp.n; i++)
        TRY_GOTO(rc,
                 config_assign(c, setting_find(fsdp.settings[i], &element), WHOLE, fsdp.value, false, where, key,
                               ORIGIN_COMMAND),
                 done);
    if (fsdp.is_fsdp) goto done;
    if (s && !*text && !takes_nothing(s)) TRY_GOTO(rc, setting_refuse(s, where, key, "''"), done);
    if (is_flow) TRY_GOTO(rc, set_flow(c, s, text, where, key), done);
    else if (s) TRY_GOTO(rc, config_assign(c, s, element, equals + 1, false, where, key, ORIGIN_COMMAND), done);
    else if (setting_group_exists(key))
        rc = ERR(ERR_INPUT, "%s: '%s' is a group of settings; set one of them, such as %s.NAME=value", where, key, key);
    else TRY_GOTO(rc, config_unknown(where, key), done);
done:
    free(copy);
    return rc;
}
