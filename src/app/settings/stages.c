/* stages.c - a CONFIG with stages: which there are, and one of them as settings. */
#include "settings/stages.h"

#include <ctype.h>
#include <string.h>

static yaml_node *child(const yaml_node *map, const char *key) {
    for (yaml_node *n = map->kind == YAML_MAP ? map->first_child : NULL; n; n = n->next)
        if (strcmp(n->key, key) == 0) return n;
    return NULL;
}

bool stages_are_in(const yaml_node *root) { return child(root, "stages") != NULL; }

/* Names become directories. */
static bool is_name(const char *name) {
    for (const char *c = name; *c; c++)
        if (!isalnum((unsigned char)*c) && *c != '_' && *c != '-') return false;
    return *name && strlen(name) <= 64;
}

static status list_stages(stage_list *out, const yaml_node *root, const char *path, const char *dir) {
    const yaml_node *pipeline = child(root, "pipeline"), *stages = child(root, "stages");
    *out = (stage_list){.dir = dir};
    if (pipeline && pipeline->kind != YAML_MAP)
        return ERR(ERR_INPUT, "%s:%d: pipeline: expected a map, such as {dir: DIR}", path, pipeline->line);
    for (const yaml_node *n = pipeline ? pipeline->first_child : NULL; n; n = n->next) {
        if (strcmp(n->key, "dir") != 0 || n->kind != YAML_SCALAR || !*n->text)
            return ERR(ERR_INPUT, "%s:%d: pipeline: found '%.100s', expected dir: DIR alone", path, n->line, n->key);
        if (!dir) out->dir = n->text;
    }
    if (stages->kind != YAML_MAP || !stages->first_child)
        return ERR(ERR_INPUT, "%s:%d: stages: expected a map from names to their settings", path, stages->line);
    for (const yaml_node *n = stages->first_child; n; n = n->next) {
        if (out->n == STAGES_MOST)
            return ERR(ERR_INPUT, "%s:%d: stages: found more than %d, expected fewer", path, n->line, STAGES_MOST);
        if (!is_name(n->key))
            return ERR(ERR_INPUT, "%s:%d: stages: '%.100s' is no name of letters, digits, _ and -", path, n->line,
                       n->key);
        if (n->kind == YAML_LIST || (n->kind == YAML_SCALAR && *n->text))
            return ERR(ERR_INPUT, "%s:%d: stages.%s: found %s, expected a map of settings", path, n->line, n->key,
                       n->kind == YAML_LIST ? "a list" : "a single value");
        out->names[out->n++] = n->key;
    }
    if (out->dir) return OK;
    return ERR(ERR_INPUT, "%s: found stages without a place; set pipeline.dir, or give --dir DIR", path);
}

const char *stage_run_dir(const stage_list *l, const char *name, arena *memory) {
    return arena_format(memory, "%s/%s", l->dir, name);
}

const char *stage_model_dir(const stage_list *l, const char *name, arena *memory) {
    return arena_format(memory, "%s/%s-model", l->dir, name);
}

/* "{NAME}", with a dot and more or without: it stands for a stage, whose name may be mistyped. */
static bool is_reference(const char *text) {
    size_t n = strlen(text);
    if (n < 3 || text[0] != '{' || text[n - 1] != '}') return false;
    for (size_t i = 1; i < n - 1; i++)
        if (!isalnum((unsigned char)text[i]) && !strchr("_-.", text[i])) return false;
    return true;
}

/* Now, and not when the stages before it have run for hours. */
static status unknown_stage(const stage_list *l, const yaml_node *n, const char *path) {
    strbuf names;
    strbuf_init(&names);
    for (size_t i = 0; i < l->n; i++) strbuf_printf(&names, "%s%s", i ? ", " : "", l->names[i]);
    status rc = ERR(ERR_INPUT,
                    "%s:%d: %s: found %.100s, expected a stage of this file: %s, as {NAME}, its run directory, or "
                    "{NAME.model}, its exported model",
                    path, n->line, n->key ? n->key : "a list", n->text, names.text);
    strbuf_fini(&names);
    return rc;
}

/* "{NAME}" and "{NAME.model}" anywhere below n become directories. before: only the first so many stages are done by then. */
static status fill_in(stage_list *l, yaml_node *n, size_t before, const char *path, arena *memory) {
    for (yaml_node *c = n->first_child; c; c = c->next) TRY(fill_in(l, c, before, path, memory));
    if (n->kind != YAML_SCALAR || n->text[0] != '{') return OK;
    for (size_t i = 0; i < l->n; i++) {
        bool run = strcmp(n->text, arena_format(memory, "{%s}", l->names[i])) == 0,
             model = strcmp(n->text, arena_format(memory, "{%s.model}", l->names[i])) == 0;
        if (!run && !model) continue;
        if (i >= before)
            return ERR(ERR_INPUT, "%s:%d: %s: found %s, expected a stage that comes before", path, n->line,
                       n->key ? n->key : "a list", n->text);
        l->exported[i] |= model;
        n->text = (run ? stage_run_dir : stage_model_dir)(l, l->names[i], memory);
        return OK;
    }
    return is_reference(n->text) ? unknown_stage(l, n, path) : OK;
}

/* Settings of all stages stand beside `stages`, and are as early as the first. */
static status fill_in_all(stage_list *l, yaml_node *root, const char *path, arena *memory) {
    size_t i = 0;
    for (yaml_node *n = root->first_child; n; n = n->next)
        if (strcmp(n->key, "stages") != 0 && strcmp(n->key, "pipeline") != 0) TRY(fill_in(l, n, 0, path, memory));
    for (yaml_node *n = child(root, "stages")->first_child; n; n = n->next) TRY(fill_in(l, n, i++, path, memory));
    return OK;
}

status stages_read(stage_list *out, const char *path, const char *dir, arena *memory) {
    yaml_node *root;
    TRY(yaml_read_file(path, memory, &root));
    if (!stages_are_in(root)) return ERR(ERR_INPUT, "%s has no stages; a CONFIG of one run is for ralo train", path);
    TRY(list_stages(out, root, path, dir ? arena_string(memory, dir) : NULL));
    return fill_in_all(out, root, path, memory);
}

status stages_apply(config *c, yaml_node *root, const char *path, const char *stage, const char *dir, arena *memory) {
    stage_list l;
    strbuf names;
    TRY(list_stages(&l, root, path, dir));
    if (!stage && l.n == 1) stage = l.names[0];
    yaml_node *own = stage ? child(child(root, "stages"), stage) : NULL;
    if (!own) {
        strbuf_init(&names);
        for (size_t i = 0; i < l.n; i++) strbuf_printf(&names, "%s%s", i ? ", " : "", l.names[i]);
        status rc = stage ? ERR(ERR_INPUT, "--stage %.100s: %s has no such stage, only %s", stage, path, names.text)
                          : ERR(ERR_INPUT, "%s has stages (%s): choose one with --stage, or run all: ralo pipeline %s",
                                path, names.text, path);
        strbuf_fini(&names);
        return rc;
    }
    TRY(fill_in_all(&l, root, path, memory));
    yaml_node common = *root, **at = &common.first_child;
    while (*at) /* what is no setting is left out */
        if (strcmp((*at)->key, "stages") == 0 || strcmp((*at)->key, "pipeline") == 0) *at = (*at)->next;
        else at = &(*at)->next;
    TRY(config_read_tree(c, &common, path));
    if (own->kind == YAML_MAP) TRY(config_read_tree(c, own, path));
    if (config_was_given(c, "run.dir"))
        return ERR(ERR_INPUT, "%s: run.dir: a stage goes to DIR/NAME; set pipeline.dir, or give --dir DIR", path);
    return config_set(c, arena_format(memory, "run.dir=%s", stage_run_dir(&l, stage, memory)), path);
}
