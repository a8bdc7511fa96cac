/* adapter_config.c - PEFT's adapter_config.json to options and back.
 *
 * The file says how the numbers beside it are to be used, so a key that ralo would not honour is an error: the model would
 * silently be another one. */
#include "weights/adapter.h"

#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

enum { JSON_MOST_BYTES = 4 << 20 };
#define OTHER_INIT                                                                                                 \
    "true, false, \"gaussian\", \"orthogonal\" or \"eva\": others change the base model too; save it with PEFT's " \
    "path_initial_model_for_weight_conversion"

/* "found X, expected Y" for any value. */
static status refuse(const char *path, const char *key, const json_t *found, const char *expected) {
    char *text = found ? json_dumps(found, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    status rc =
        ERR(ERR_INPUT, "%s: key '%.100s': found %.100s, expected %s", path, key, text ? text : "nothing", expected);
    free(text);
    return rc;
}

/* null, false, 0, "", [] and {}: the feature is not used. */
static bool is_unused(const json_t *v) {
    if (json_is_string(v)) return json_string_length(v) == 0;
    if (json_is_array(v)) return json_array_size(v) == 0;
    if (json_is_object(v)) return json_object_size(v) == 0;
    if (json_is_number(v)) return json_number_value(v) == 0;
    return json_is_null(v) || json_is_false(v);
}

/* Keys read elsewhere, and those that change nothing of what is computed: notes, how the adapter was made, sizes of
 * features that other keys turn on. */
static bool is_harmless(const char *key) {
    static const char *const keys[] = {"peft_type",
                                       "r",
                                       "lora_alpha",
                                       "lora_dropout",
                                       "target_modules",
                                       "use_rslora",
                                       "bias",
                                       "task_type",
                                       "init_lora_weights",
                                       "base_model_name_or_path",
                                       "fan_in_fan_out",
                                       "auto_mapping",
                                       "revision",
                                       "inference_mode",
                                       "peft_version",
                                       "megatron_core",
                                       "eva_config",
                                       "value_head", /* of a critic; other programs do not know it */
                                       "qalora_group_size"};
    for (size_t i = 0; i < ARRAY_LENGTH(keys); i++)
        if (strcmp(key, keys[i]) == 0) return true;
    return false;
}

/* A key that must hold one of these words, or be absent or null. */
static status check_word(const json_t *root, const char *path, const char *key, const char *const *words,
                         const char *expected) {
    const json_t *v = json_object_get(root, key);
    if (!v || json_is_null(v)) return OK;
    for (; *words; words++)
        if (json_is_string(v) && strcmp(json_string_value(v), *words) == 0) return OK;
    return refuse(path, key, v, expected);
}

/* The modules that PEFT trains whole and stores beside its adapters: a critic's head. NULL: none. */
static const char *saved_module(const model_config *c) {
    if (!c->value_head) return NULL;
    return c->value_head == VALUE_HEAD_MLP ? "value_head" : "score";
}

static status check_value_head(const json_t *root, const char *path, const model_config *c) {
    const json_t *kind = json_object_get(root, "value_head"), *saved = json_object_get(root, "modules_to_save");
    const char *name = json_string_value(kind), *module = saved_module(c);
    if (kind && (!name || !module || strcmp(name, value_head_name(c->value_head)) != 0))
        return refuse(path, "value_head", kind,
                      module ? value_head_name(c->value_head) : "nothing: the model is no critic");
    if (!module) return OK;
    const char *first = json_string_value(json_array_get(saved, 0));
    if (json_array_size(saved) == 1 && first && strcmp(first, module) == 0) return OK;
    return refuse(path, "modules_to_save", saved, c->value_head == VALUE_HEAD_MLP ? "[\"value_head\"]" : "[\"score\"]");
}

static status check_keys(const json_t *root, const char *path, const model_config *c) {
    const char *key;
    json_t *v;
    const json_t *init = json_object_get(root, "init_lora_weights"), *kind = json_object_get(root, "peft_type");
    if (!json_is_string(kind) || strcmp(json_string_value(kind), "LORA") != 0)
        return refuse(path, "peft_type", kind, "\"LORA\"");
    TRY(check_word(root, path, "bias", (const char *const[]){"none", NULL}, "\"none\": biases are not trained"));
    TRY(check_value_head(root, path, c));
    if (c->value_head)
        TRY(check_word(root, path, "task_type", (const char *const[]){"TOKEN_CLS", NULL}, "\"TOKEN_CLS\" or null"));
    else TRY(check_word(root, path, "task_type", (const char *const[]){"CAUSAL_LM", NULL}, "\"CAUSAL_LM\" or null"));
    if (!json_is_boolean(init)) /* pissa, olora, corda and loftq also change the base */
        TRY(check_word(root, path, "init_lora_weights",
                       (const char *const[]){"gaussian", "orthogonal", "eva", "pissa", NULL}, OTHER_INIT));
    json_object_foreach((json_t *)root, key, v) {
        bool read = is_harmless(key) || (c->value_head && strcmp(key, "modules_to_save") == 0);
        if (!read && !is_unused(v)) return refuse(path, key, v, "null, false or empty: ralo does not compute it");
    }
    return OK;
}

/* ---- target modules ---------------------------------------------------------------------------------------------- */

/* "model.layers.3.self_attn.q_proj", as PEFT writes all-linear: the layer, and in *rest what follows it. -1: no such name. */
static int64_t layer_of(const model_config *c, const char *name, const char **rest) {
    const tensor_names *names = model_family_traits(c->family)->names;
    const char *format = names->norm1, *number = strstr(format, "%d."); /* all of a layer begin alike */
    if (!str_starts_with(name, names->prefix) && str_starts_with(format, names->prefix))
        format += strlen(names->prefix);
    size_t n = (size_t)(number - format);
    char *end;
    if (strncmp(name, format, n) != 0 || name[n] < '0' || name[n] > '9') return -1;
    long layer = strtol(name + n, &end, 10);
    if (*end != '.' || layer >= c->n_layers) return -1;
    *rest = end + 1;
    return layer;
}

static status add_target(const model_config *c, const json_t *v, const char *path, uint32_t *of_layers) {
    const char *name = json_string_value(v), *rest = name;
    uint32_t found;
    strbuf where;
    if (!name || !*name || strpbrk(name, ", "))
        return refuse(path, "target_modules", v, "names of modules in the list");
    int64_t layer = layer_of(c, name, &rest);
    strbuf_init(&where);
    strbuf_printf(&where, "%s: key 'target_modules'", path);
    status rc = lora_modules_parse(c, rest, where.text, &found);
    strbuf_fini(&where);
    TRY(rc);
    for (int64_t l = 0; l < c->n_layers; l++)
        if (layer < 0 || l == layer) of_layers[l] |= found;
    return OK;
}

/* Every layer has the same modules here. */
static status same_in_all_layers(const model_config *c, const uint32_t *of_layers, const char *path,
                                 uint32_t *modules) {
    *modules = of_layers[0];
    for (int64_t l = 1; l < c->n_layers; l++)
        if (of_layers[l] != *modules)
            return ERR(
                ERR_INPUT,
                "%s: key 'target_modules': found other modules in layer %lld than in layer 0, expected the same in "
                "all %lld",
                path, (long long)l, (long long)c->n_layers);
    return OK;
}

/* A list of names, or "all-linear". Any other string is a regular expression. */
static status read_targets(const model_config *c, const json_t *root, const char *path, uint32_t *modules) {
    const json_t *v = json_object_get(root, "target_modules"), *name;
    size_t i;
    status rc = OK;
    if (json_is_string(v) && strcmp(json_string_value(v), "all-linear") == 0)
        return lora_modules_parse(c, "all-linear", path, modules);
    if (json_is_string(v))
        return refuse(path, "target_modules", v,
                      "\"all-linear\" or a list of module names; regular expressions are not read");
    if (json_array_size(v) == 0) return refuse(path, "target_modules", v, "\"all-linear\" or a list of module names");
    uint32_t *of_layers = mem_alloc((size_t)c->n_layers * sizeof *of_layers);
    json_array_foreach(v, i, name) TRY_GOTO(rc, add_target(c, name, path, of_layers), done);
    rc = same_in_all_layers(c, of_layers, path, modules);
done:
    free(of_layers);
    return rc;
}

/* ---- the whole file ---------------------------------------------------------------------------------------------- */

static status read_number(const json_t *root, const char *path, const char *key, double least, double most,
                          const char *expected, double *out) {
    const json_t *v = json_object_get(root, key);
    if (!v || json_is_null(v)) return OK;
    if (!json_is_number(v)) return refuse(path, key, v, expected);
    double x = json_number_value(v);
    if (!(x >= least && x <= most)) return refuse(path, key, v, expected);
    *out = x;
    return OK;
}

status adapter_config_of_run(adapter_config *out, const model_config *c, const json_t *root, const char *path) {
    *out = (adapter_config){0};
    if (!json_is_object(root)) return ERR(ERR_INPUT, "%s: found no object, expected PEFT's adapter_config.json", path);
    TRY(check_keys(root, path, c));
    lora_options *o = &out->lora;
    TRY(json_get_int(root, "r", 1, LORA_RANK_MOST, path, &o->rank));
    o->alpha = 8; /* PEFT's default */
    TRY(read_number(root, path, "lora_alpha", 1e-9, 1e9, "a number above 0", &o->alpha));
    TRY(read_number(root, path, "lora_dropout", 0, 0.999999, "a number from 0 up to 1", &o->dropout));
    const json_t *rslora = json_object_get(root, "use_rslora");
    if (rslora && !json_is_null(rslora) && !json_is_boolean(rslora))
        return refuse(path, "use_rslora", rslora, "true or false");
    o->rslora = json_is_true(rslora);
    const char *init = json_string_value(json_object_get(root, "init_lora_weights"));
    o->pissa = init && strcmp(init, "pissa") == 0;
    TRY(read_targets(c, root, path, &o->modules));
    const char *base = json_string_value(json_object_get(root, "base_model_name_or_path"));
    if (base) snprintf(out->base, sizeof out->base, "%s", base);
    return OK;
}

status adapter_config_from_json(adapter_config *out, const model_config *c, const json_t *root, const char *path) {
    TRY(adapter_config_of_run(out, c, root, path));
    if (!out->lora.pissa) return OK;
    return refuse(path, "init_lora_weights", json_object_get(root, "init_lora_weights"), OTHER_INIT);
}

static status read_root(const char *dir, char *path, size_t n, json_t **root) {
    snprintf(path, n, "%s/adapter_config.json", dir);
    TRY(json_read_file(path, JSON_MOST_BYTES, root));
    return OK;
}

status adapter_config_read(adapter_config *out, const model_config *c, const char *dir) {
    char path[4200];
    json_t *root;
    TRY(read_root(dir, path, sizeof path, &root));
    status rc = adapter_config_from_json(out, c, root, path);
    json_decref(root);
    return rc;
}

status adapter_value_head(const char *dir, value_head *out) {
    char path[4200];
    json_t *root;
    TRY(read_root(dir, path, sizeof path, &root));
    const json_t *v = json_object_get(root, "value_head");
    const char *name = json_string_value(v);
    status rc = OK;
    *out = VALUE_HEAD_NONE;
    for (value_head h = VALUE_HEAD_MLP; h < VALUE_HEAD_COUNT && name; h++)
        if (strcmp(name, value_head_name(h)) == 0) *out = h;
    if (v && !*out) rc = refuse(path, "value_head", v, "\"mlp\", \"linear\" or \"sigmoid\", or nothing");
    json_decref(root);
    return rc;
}

status adapter_base_dir(const char *dir, char *out, size_t n) {
    char path[4200];
    json_t *root;
    TRY(read_root(dir, path, sizeof path, &root));
    const char *base = json_string_value(json_object_get(root, "base_model_name_or_path"));
    snprintf(out, n, "%s", base ? base : "");
    status rc = OK;
    if (!*out || strlen(base) >= n || !model_dir_is(out))
        rc = ERR(ERR_INPUT,
                 "%s is an adapter, and its base '%.300s' is not a directory with config.json here; give the directory "
                 "of the base as the model and the adapter with --adapter %s",
                 dir, out, dir);
    json_decref(root);
    return rc;
}

/* Is a part of this path the name, or that of the hub's cache for it, "models--ORG--NAME"? */
static bool path_has_name(const char *path, const char *name, size_t n) {
    while (*path) {
        size_t part = strcspn(path, "/");
        bool ends = part >= n && strncmp(path + part - n, name, n) == 0;
        if (ends && (part == n || (part > n + 1 && strncmp(path + part - n - 2, "--", 2) == 0))) return true;
        path += part + (path[part] == '/');
    }
    return false;
}

void adapter_warn_base(const adapter_config *c, const char *dir, const char *model) {
    char real[PATH_MAX];
    size_t end = strlen(c->base), begin;
    while (end > 0 && c->base[end - 1] == '/') end--;
    for (begin = end; begin > 0 && c->base[begin - 1] != '/';) begin--;
    if (begin == end || path_has_name(model, c->base + begin, end - begin)) return;
    if (realpath(model, real) && path_has_name(real, c->base + begin, end - begin)) return;
    log_warn("%s names '%.300s' as its base and is used on %s: on other weights an adapter does not do what it was "
             "trained for",
             dir, c->base, model);
}

json_t *adapter_config_to_json(const model_config *c, const lora_options *o, const char *base) {
    const char *names[LORA_MODULE_COUNT];
    size_t n = lora_targets(c, o->modules, names);
    json_t *targets = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(targets, json_string(names[i]));
    bool whole = o->alpha == (double)(int64_t)o->alpha; /* 16, not 16.0: as people write it */
    json_t *alpha = whole ? json_integer((json_int_t)o->alpha) : json_real(o->alpha);
    json_t *init = o->pissa ? json_string("pissa") : json_true();
    const char *module = saved_module(c);
    json_t *saved = module ? json_pack("[s]", module) : NULL;
    json_t *out = json_pack(
        "{s:{}, s:n, s:o?, s:s, s:b, s:b, s:o, s:n, s:n, s:n, s:{}, s:o, s:f, s:n, s:s, s:o?, s:s, s:I, s:{}, "
        "s:n, s:o, s:s, s:b, s:b}",
        "alpha_pattern", "auto_mapping", "base_model_name_or_path", base ? json_string(base) : NULL, "bias", "none",
        "fan_in_fan_out", model_family_traits(c->family)->transposed_files, "inference_mode", 1, "init_lora_weights",
        init, "layer_replication", "layers_pattern", "layers_to_transform", "loftq_config", "lora_alpha", alpha,
        "lora_dropout", o->dropout, "megatron_config", "megatron_core", "megatron.core", "modules_to_save", saved,
        "peft_type", "LORA", "r", (json_int_t)o->rank, "rank_pattern", "revision", "target_modules", targets,
        "task_type", module ? "TOKEN_CLS" : "CAUSAL_LM", "use_dora", 0, "use_rslora", o->rslora);
    if (module) json_object_set_new(out, "value_head", json_string(value_head_name(c->value_head)));
    return out;
}
