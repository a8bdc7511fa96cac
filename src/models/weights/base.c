/* base.c - load the base of a LoRA run, describe it in checkpoints, and refuse another one. */
#include "weights/base.h"
#include "weights/adapter.h"
#include "weights/load.h"
#include "weights/params.h"
#include "weights/pissa.h"

#include <limits.h>
#include <stdlib.h>

/* ---- the first parameters ---------------------------------------------------------------------------------------- */

status weights_start_frozen(exec *e, const plan *p, const weights_origin *o, lora_base *out) {
    *out = (lora_base){0};
    if (!p->request.lora.rank) return OK;
    base_hash hash = {.as = precision_compute(p->request.choice.precision)};
    if (o->model_dir) {
        params_draw(e, p, o->seed, PARAMS_VALUE_HEAD, NULL); /* trained, and begins as the files have it, if they do */
        TRY(weights_load_base(e, p, o->model_dir, &hash));
    } else params_draw(e, p, o->seed, PARAMS_BASE, &hash);
    *out = (lora_base){.dir = o->model_dir,
                       .seed = o->seed,
                       .hash = params_base_hash(e, p, o->comm, &hash),
                       .type = hash.as,
                       .format = p->request.base};
    if (p->request.lora.pissa) TRY(pissa_start(e, p, &(param_origin){.dir = o->model_dir, .seed = o->seed}));
    if (o->reference) TRY(weights_load_reference(e, p, o->reference));
    return exec_check(e);
}

status weights_start_trained(exec *e, const plan *p, const weights_origin *o) {
    bool lora = p->request.lora.rank > 0;
    if (lora && o->adapter) TRY(adapter_load_dir(e, p, o->adapter));
    else if (lora && p->request.lora.pissa) return OK; /* made together with the base */
    else if (lora) params_draw(e, p, o->seed, PARAMS_ADAPTERS, NULL);
    else if (o->model_dir) {
        params_draw(e, p, o->seed, PARAMS_VALUE_HEAD, NULL); /* the files of an ordinary model have none */
        TRY(weights_load_dir(e, p, o->model_dir));
    } else params_initialize(e, p, o->seed);
    if (o->reference && !lora) TRY(weights_load_reference(e, p, o->reference));
    return OK;
}

status weights_start_check(const plan *p, const weights_origin *o, bool resumed) {
    bool lora = p->request.lora.rank > 0;
    bool again = lora || p->request.reference == REFERENCE_COPY; /* no checkpoint holds what is frozen */
    if (o->model_dir && (again || !resumed)) TRY(weights_check_dir(p, o->model_dir));
    if (o->reference) TRY(weights_load_reference(NULL, p, o->reference));
    bool first = !o->comm || comm_rank(o->comm) == 0; /* who warns */
    if (o->adapter && !resumed) TRY(adapter_check_dir(p, o->adapter, first ? o->model_dir : NULL));
    return OK;
}

/* ---- in checkpoints ---------------------------------------------------------------------------------------------- */

status lora_describe(const plan *p, const lora_base *b, char **description) {
    char dir[PATH_MAX], hash[20];
    if (!p->request.lora.rank) return OK;
    json_t *root = json_loads(*description, JSON_REJECT_DUPLICATES, NULL), *base = json_object();
    ASSERT(root);
    const char *path = b->dir && realpath(b->dir, dir) ? dir : NULL; /* absolute: a run may be used from elsewhere */
    if (path) json_object_set_new(base, "path", json_string(path));
    else json_object_set_new(base, "seed", json_integer((json_int_t)b->seed));
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)b->hash);
    json_object_set_new(base, "hash", json_string(hash));
    json_object_set_new(base, "dtype", json_string(dtype_name(b->type)));
    if (b->format != BASE_COMPUTE) json_object_set_new(base, "format", json_string(base_format_name(b->format)));
    status rc = OK;
    if (path && !json_object_get(base, "path"))
        rc = ERR(ERR_INPUT, "model.path: the path '%s' is not valid UTF-8", path);
    json_object_set_new(root, "base", base);
    json_object_set_new(root, "lora", adapter_config_to_json(model_of(&p->request.source), &p->request.lora, path));
    free(*description);
    *description = json_dumps(root, JSON_COMPACT);
    ASSERT(*description);
    json_decref(root);
    return rc;
}

static bool read_hash(const json_t *base, lora_base *out) {
    const char *hash = json_string_value(json_object_get(base, "hash")),
               *type = json_string_value(json_object_get(base, "dtype"));
    char *end;
    if (!hash || strlen(hash) != 16 || !type) return false;
    out->hash = strtoull(hash, &end, 16);
    const json_t *format = json_object_get(base, "format"); /* absent: as the precision computes */
    if (format && (!json_is_string(format) || !base_format_from_name(json_string_value(format), &out->format)))
        return false;
    for (out->type = 0; out->type < DTYPE_COUNT; out->type++)
        if (strcmp(type, dtype_name(out->type)) == 0) break;
    return !*end && out->type < DTYPE_COUNT;
}

status lora_from_description(const json_t *description, const model_config *c, const char *path, lora_options *o,
                             lora_base *base) {
    const json_t *lora = json_object_get(description, "lora"), *from = json_object_get(description, "base");
    adapter_config config;
    *o = (lora_options){0};
    *base = (lora_base){0};
    if (!lora) return OK;
    TRY(adapter_config_of_run(&config, c, lora, path));
    *o = config.lora;
    base->dir = json_string_value(json_object_get(from, "path"));
    const json_t *seed = json_object_get(from, "seed");
    base->seed = (uint64_t)json_integer_value(seed);
    if ((!base->dir && !json_is_integer(seed)) || !read_hash(from, base))
        return ERR(ERR_INPUT,
                   "%s: key 'base' of its model: found something else than a path or a seed with hash, dtype and "
                   "format, which "
                   "say what the adapters belong to",
                   path);
    return OK;
}

const char *lora_identity(arena *memory, const model_config *c, const lora_options *o, base_format base) {
    const char *names[LORA_MODULE_COUNT];
    strbuf text;
    if (!o->rank) return "";
    strbuf_init(&text);
    strbuf_printf(&text, ", lora rank %lld, alpha %g%s, dropout %g on", (long long)o->rank, o->alpha,
                  o->rslora ? " (rslora)" : "", o->dropout);
    size_t n = lora_targets(c, o->modules, names);
    for (size_t i = 0; i < n; i++) strbuf_printf(&text, " %s", names[i]);
    if (o->pissa) strbuf_add(&text, " by pissa");
    if (base != BASE_COMPUTE) strbuf_printf(&text, " over %s", base_format_name(base));
    const char *out = arena_string(memory, text.text);
    strbuf_fini(&text);
    return out;
}

/* ---- the same base as ever --------------------------------------------------------------------------------------- */

status lora_base_changed(const char *checkpoint, const lora_base *then, uint64_t now) {
    char from[64];
    snprintf(from, sizeof from, "random values of seed %llu", (unsigned long long)then->seed);
    return ERR(
        ERR_INPUT,
        "%s: its adapters were trained over %.1000s, whose parameters had the hash %016llx; those loaded now have "
        "%016llx. The base has changed: bring the old one back, or start a new run over the new one",
        checkpoint, then->dir ? then->dir : from, (unsigned long long)then->hash, (unsigned long long)now);
}

status lora_base_check(const char *checkpoint, const model_config *c, const lora_base *loaded) {
    checkpoint_reader *r;
    const json_t *description;
    lora_options o;
    lora_base then;
    TRY(checkpoint_reader_open(&r, checkpoint));
    status rc = checkpoint_description(r, checkpoint, &description);
    if (rc == OK) rc = lora_from_description(description, c, checkpoint, &o, &then);
    /* Another precision, or no adapters: the identity says so. */
    if (rc == OK && o.rank && then.type == loaded->type && then.hash != loaded->hash)
        rc = lora_base_changed(checkpoint, &then, loaded->hash);
    checkpoint_reader_close(r);
    return rc;
}

status lora_base_check_loaded(exec *e, const plan *p, const lora_base *then, const base_hash *loaded,
                              const char *checkpoint) {
    dtype here = precision_compute(p->request.choice.precision);
    if (here != then->type && here != DTYPE_F32) return OK; /* the bits of then cannot be made from these */
    uint64_t now = params_base_hash(e, p, NULL, loaded);
    TRY(exec_check(e));
    return now == then->hash ? OK : lora_base_changed(checkpoint, then, now);
}
