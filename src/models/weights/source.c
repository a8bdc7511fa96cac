/* source.c - a model from a Hugging Face directory, a run directory or a checkpoint, with an adapter or without.
 *
 * A directory with adapter_config.json is an adapter, as for transformers; one with config.json is a model; anything else
 * must be a checkpoint or a run that holds one. Weights of a checkpoint are its fp32 masters where it has them, rounded
 * once to what the program computes in, exactly as if the model had been exported and loaded again. */
#include "weights/source.h"
#include "weights/adapter.h"
#include "weights/load.h"
#include "weights/params.h"
#include "weights/pissa.h"

#include <stdlib.h>
#include <unistd.h>

#define JSON_MOST_BYTES (4u << 20)
#define BLOCK_ELEMENTS (1 << 20)

/* The last part of a path, which the model is called by; of "runs/x/" still "x/". */
static const char *last_part(const char *path) {
    size_t end = strlen(path);
    while (end > 0 && path[end - 1] == '/') end--;
    while (end > 0 && path[end - 1] != '/') end--;
    return path + end;
}

/* Without a generation config, config.json names the end-of-text token, as in transformers. */
static status read_config_eos(model_source *s, const char *path) {
    json_t *config;
    TRY(json_read_file(arena_format(&s->memory, "%s/config.json", path), JSON_MOST_BYTES, &config));
    s->generation = json_pack("{s:O?}", "eos_token_id", json_object_get(config, "eos_token_id"));
    json_decref(config);
    return OK;
}

/* What is generated with and evaluated is the first head. */
static void use_config(model_source *s, const model_config *c) {
    s->all_heads = *c;
    s->config = model_main_config(c);
}

static status open_directory(model_source *s, const char *path) {
    model_config c;
    TRY(model_config_read(&c, path));
    use_config(s, &c);
    const char *generation = arena_format(&s->memory, "%s/generation_config.json", path);
    s->base.dir = arena_string(&s->memory, path);
    if (access(generation, F_OK) == 0) TRY(json_read_file(generation, JSON_MOST_BYTES, &s->generation));
    else if (!c.meta_files) TRY(read_config_eos(s, path));
    return OK;
}

/* An unknown name, perhaps of a later ralo, is ignored: the tokenizer decides how turns are written. */
static chat_format find_chat(const char *name, const char *dir) {
    for (chat_format f = CHAT_NONE; name && f < CHAT_COUNT; f++)
        if (strcmp(name, chat_format_name(f)) == 0) return f;
    if (name) log_warn("%s: unknown chat format '%.50s'; the tokenizer's is used", dir, name);
    return CHAT_AUTO;
}

/* The copy that the checkpoint keeps, after its checksums are verified. A checkpoint of an older ralo has none and
 * names the directory it was trained with: it is only read as a tokenizer. */
static status checkpoint_tokenizer(model_source *s, const char *dir) {
    const char *path = json_string_value(json_object_get(s->description, "tokenizer"));
    if (json_array_size(s->kept) > 0) {
        tokenizer_files copy;
        status rc = tokenizer_files_load(&copy, dir, s->kept, true);
        tokenizer_files_fini(&copy);
        s->tokenizer = arena_format(&s->memory, "%s/tokenizer", dir);
        return rc;
    }
    s->tokenizer = path ? arena_string(&s->memory, path) : "byte";
    if (!path || access(path, R_OK) == 0) return OK;
    return ERR(ERR_INPUT,
               "%s keeps no copy of its tokenizer, an older ralo wrote it, and %s, which it was trained with, does not "
               "exist; give the directory of the tokenizer with --tokenizer DIR",
               dir, path);
}

/* What is used of a description, for the model, or for a base by the adapters trained over it. */
static void use_description(model_source *s, const char *dir) {
    json_decref(s->generation);
    s->generation = json_incref(json_object_get(s->description, "generation"));
    s->chat = find_chat(json_string_value(json_object_get(s->description, "chat")), dir);
    const char *kwargs = json_string_value(json_object_get(s->description, "chat_kwargs"));
    s->chat_kwargs = kwargs ? arena_string(&s->memory, kwargs) : NULL;
    s->template = json_string_value(json_object_get(json_object_get(s->description, "end"), "template"));
}

static status read_description(model_source *s, checkpoint_reader *r, const char *dir) {
    TRY(checkpoint_description(r, dir, &s->description));
    s->kept = checkpoint_reader_tokenizer(r);
    use_description(s, dir);
    return OK;
}

/* A run with adapters: its checkpoint holds nothing else, and says where the base is. */
static status open_base(model_source *s) {
    const lora_base *b = &s->trained_over;
    s->base = (param_origin){.dir = b->dir, .drawn = !b->dir, .seed = b->seed};
    if (!b->dir) return OK;
    if (model_dir_is(b->dir)) { /* its files may hold heads, or be Meta's */
        model_config files;
        TRY(model_config_read(&files, b->dir));
        s->config.file_heads = s->all_heads.file_heads = files.file_heads;
        s->config.meta_files = s->all_heads.meta_files = files.meta_files;
        return OK;
    }
    return ERR(
        ERR_INPUT,
        "%s holds adapters only; their base was %.1000s, which is no directory with config.json (any more): put it "
        "there again, or give the base as the model and this run with --adapter",
        s->dir, b->dir);
}

static status open_checkpoint(model_source *s, const char *path) {
    checkpoint_reader *r;
    TRY(checkpoint_locate("a model", path,
                          "a directory with config.json, a run or a checkpoint; download a model of the hub first: hf "
                          "download NAME --local-dir DIR",
                          s->dir, sizeof s->dir));
    TRY(checkpoint_reader_open(&r, s->dir));
    s->base.reader = r;
    TRY(read_description(s, r, s->dir));
    model_config c;
    TRY(model_config_from_json(&c, json_object_get(s->description, "config"), last_part(path), s->dir));
    use_config(s, &c);
    TRY(lora_from_description(s->description, &s->config, s->dir, &s->lora, &s->trained_over));
    if (!s->lora.rank) return OK;
    s->adapters.reader = r;
    snprintf(s->adapters_dir, sizeof s->adapters_dir, "%s", s->dir);
    return open_base(s);
}

/* ---- an adapter over the model ----------------------------------------------------------------------------------- */

/* Its tensors are found by name and checked by shape; this says why they would not fit. */
static status check_same_model(model_source *s, const json_t *config, const char *adapter) {
    model_config c;
    TRY(model_config_from_json(&c, config, "of the adapter", adapter));
    if (s->config.family != c.family)
        return ERR(ERR_INPUT, "%s is the adapter of another model than %s: a %s, found a %s", adapter, s->dir,
                   model_family_traits(c.family)->name, model_family_traits(s->config.family)->name);
    const struct {
        const char *name;
        int64_t here, there;
    } sizes[] = {{"vocabulary", s->config.vocab, c.vocab},
                 {"width", s->config.hidden, c.hidden},
                 {"layers", s->config.n_layers, model_main_layers(&c)},
                 {"heads", s->config.n_heads, c.n_heads},
                 {"key and value heads", s->config.n_kv_heads, c.n_kv_heads},
                 {"head size", s->config.head_dim, c.head_dim},
                 {"ffn", s->config.ffn, c.ffn},
                 {"value head", s->config.value_head ? s->config.value_head : c.value_head, c.value_head}};
    for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++)
        if (sizes[i].here != sizes[i].there)
            return ERR(ERR_INPUT, "%s is the adapter of another model than %s: %s %lld, found %lld", adapter, s->dir,
                       sizes[i].name, (long long)sizes[i].there, (long long)sizes[i].here);
    s->config.value_head = s->all_heads.value_head = c.value_head; /* which comes with the adapters */
    return OK;
}

static status open_adapter(model_source *s, const char *adapter) {
    if (s->lora.rank)
        return ERR(ERR_INPUT, "%s has adapters of its own; to use those of %s give the base as the model", s->dir,
                   adapter);
    if (adapter_is_dir(adapter)) {
        adapter_config config;
        value_head head;
        TRY(adapter_value_head(adapter, &head));
        if (!s->config.value_head) s->config.value_head = s->all_heads.value_head = head;
        TRY(adapter_config_read(&config, &s->config, adapter));
        if (s->base.dir) adapter_warn_base(&config, adapter, s->base.dir);
        s->lora = config.lora;
        s->adapters.dir = arena_string(&s->memory, adapter);
        const char *generation = arena_format(&s->memory, "%s/generation_config.json", adapter);
        if (access(generation, F_OK) == 0) {
            json_decref(s->generation);
            s->generation = NULL;
            TRY(json_read_file(generation, JSON_MOST_BYTES, &s->generation));
            s->adapters_name_ends = true;
        }
        snprintf(s->adapters_dir, sizeof s->adapters_dir, "%s", adapter);
        return OK;
    }
    if (!adapter_is_run(adapter)) return adapter_or_run_not_found(adapter);
    TRY(checkpoint_locate("an adapter", adapter, "PEFT's directory, a run or a checkpoint", s->adapters_dir,
                          sizeof s->adapters_dir));
    TRY(checkpoint_reader_open(&s->adapters.reader, s->adapters_dir));
    TRY(read_description(s, s->adapters.reader, s->adapters_dir));
    TRY(check_same_model(s, json_object_get(s->description, "config"), s->adapters_dir));
    TRY(lora_from_description(s->description, &s->config, s->adapters_dir, &s->lora, &s->trained_over));
    if (s->lora.rank) return OK;
    return ERR(ERR_INPUT, "%s holds no adapters: the run trained all parameters; give it as the model",
               s->adapters_dir);
}

/* ---- open -------------------------------------------------------------------------------------------------------- */

static status choose_tokenizer(model_source *s, const char *given) {
    if (given) {
        s->template = NULL;
        s->tokenizer = arena_string(&s->memory, given);
        return OK;
    }
    const char *dirs[] = {s->adapters.dir, s->description ? NULL : s->base.dir};
    for (size_t i = 0; i < ARRAY_LENGTH(dirs); i++)
        if (dirs[i] && access(arena_format(&s->memory, "%s/tokenizer.json", dirs[i]), F_OK) == 0) {
            s->template = NULL;
            s->tokenizer = dirs[i];
            return OK;
        }
    if (s->description) return checkpoint_tokenizer(s, s->adapters.reader ? s->adapters_dir : s->dir);
    if (s->config.vocab == BYTE_VOCAB) { /* an export of a model trained on bytes */
        s->tokenizer = "byte";
        return OK;
    }
    return ERR(ERR_INPUT, "%s: found no tokenizer.json, and a vocabulary of %lld is not that of bytes (%d)", s->dir,
               (long long)s->config.vocab, BYTE_VOCAB);
}

static status open_model(model_source *s, const char *path, const char *adapter, const char *tokenizer) {
    const char *model = path;
    if (strlen(path) >= sizeof s->dir || (adapter && strlen(adapter) >= sizeof s->dir))
        return ERR(ERR_INPUT, "a path of more than %zu characters is too long", sizeof s->dir - 1);
    if (adapter_is_dir(path)) {
        if (adapter)
            return ERR(ERR_INPUT, "%s is an adapter itself; to use %s give the base as the model", path, adapter);
        TRY(adapter_base_dir(path, s->dir, sizeof s->dir));
        model = arena_string(&s->memory, s->dir);
        adapter = path;
    }
    if (model_dir_is(model)) {
        snprintf(s->dir, sizeof s->dir, "%s", model);
        TRY(open_directory(s, model));
    } else {
        TRY(open_checkpoint(s, model));
    }
    s->config.name = s->all_heads.name = last_part(path);
    if (adapter) TRY(open_adapter(s, adapter));
    return choose_tokenizer(s, tokenizer);
}

status model_source_open(model_source *s, const char *path, const char *adapter, const char *tokenizer) {
    *s = (model_source){0};
    arena_init(&s->memory);
    status rc = open_model(s, path, adapter, tokenizer);
    if (rc == OK) return OK;
    model_source_close(s);
    return error_trail(rc, __FILE__, __LINE__, __func__);
}

void model_source_describe(model_source *s, const model_config *c, const char *description) {
    *s = (model_source){.config = *c};
    arena_init(&s->memory);
    snprintf(s->dir, sizeof s->dir, "the model %.1000s of the run", c->name);
    s->description = s->own_description = json_loads(description, JSON_REJECT_DUPLICATES, NULL);
    ASSERT(s->description);
    use_description(s, s->dir);
}

void model_source_close(model_source *s) {
    checkpoint_reader_close(s->base.reader);
    if (s->adapters.reader != s->base.reader) checkpoint_reader_close(s->adapters.reader);
    json_decref(s->generation);
    json_decref(s->own_description);
    arena_fini(&s->memory);
    *s = (model_source){0};
}

status model_source_tokenizer(const model_source *s, tokenizer **out) {
    TRY(tokenizer_open(out, s->tokenizer));
    long long n_tokens = tokenizer_vocab(*out), n_rows = s->config.vocab;
    if (n_tokens <= n_rows) return OK;
    tokenizer_close(*out);
    *out = NULL;
    return ERR(ERR_INPUT, "%s: the tokenizer %s has %lld tokens, the model only %lld", s->dir, s->tokenizer, n_tokens,
               n_rows);
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

static status load_param(const checkpoint_reader *r, exec *e, const plan *p, size_t i, char *raw, float *wide) {
    const net_param *q = &p->net.params[i];
    const value *v = program_get(&p->program, q->value);
    checkpoint_found found;
    TRY(checkpoint_param_find(r, q->name, &v->shape, &found));
    size_t from = dtype_bytes(found.type), to = dtype_bytes(v->type);
    int64_t total = shape_count(&v->shape);
    for (int64_t at = 0; at < total; at += BLOCK_ELEMENTS) {
        size_t n = (size_t)MIN(total - at, (int64_t)BLOCK_ELEMENTS);
        checkpoint_reader_read(r, &found, (uint64_t)at * from, raw, n * from);
        tensor_convert(wide, DTYPE_F32, raw, found.type, n);
        if (v->type != DTYPE_F32) tensor_convert(raw, v->type, wide, DTYPE_F32, n);
        exec_write(e, q->value, (size_t)at * to, v->type == DTYPE_F32 ? (void *)wide : raw, n * to);
    }
    checkpoint_reader_forget(r, &found);
    return OK;
}

typedef struct stored_rows {
    const checkpoint_reader *r;
    checkpoint_found found;
    int64_t columns;
    char *raw;
} stored_rows;

static void read_stored_rows(void *context, int64_t first, int64_t n, float *out) {
    const stored_rows *s = context;
    size_t width = dtype_bytes(s->found.type);
    for (int64_t at = 0, count = n * s->columns; at < count; at += BLOCK_ELEMENTS) {
        size_t k = (size_t)MIN(count - at, (int64_t)BLOCK_ELEMENTS);
        checkpoint_reader_read(s->r, &s->found, (uint64_t)(first * s->columns + at) * width, s->raw, k * width);
        tensor_convert(out + at, DTYPE_F32, s->raw, s->found.type, k);
    }
}

/* A weight that the program holds as codes, from a checkpoint that has all of its numbers. */
static status load_quantized(const checkpoint_reader *r, exec *e, const plan *p, size_t i, char *raw, base_hash *hash) {
    const net_param *q = &p->net.params[i];
    stored_rows s = {.r = r, .columns = q->shape.dim[1], .raw = raw};
    TRY(checkpoint_param_find(r, q->name, &q->shape, &s.found));
    TRY(quantized_write(e, p, i, read_stored_rows, &s, hash));
    checkpoint_reader_forget(r, &s.found);
    return OK;
}

static status load_checkpoint(const checkpoint_reader *r, exec *e, const plan *p, bool adapters, base_hash *hash) {
    status rc = OK;
    char *raw = mem_alloc(BLOCK_ELEMENTS * sizeof(float));
    float *wide = mem_alloc(BLOCK_ELEMENTS * sizeof *wide);
    for (size_t i = 0; i < p->net.n_params && rc == OK; i++)
        if (p->net.params[i].beside_base == adapters)
            rc = quantized_is(p, i) ? load_quantized(r, e, p, i, raw, hash) : load_param(r, e, p, i, raw, wide);
    free(raw);
    free(wide);
    return rc;
}

status model_source_load(const model_source *s, exec *e, const plan *p) {
    base_hash hash = {.as = s->trained_over.type};
    if (s->base.reader) TRY(load_checkpoint(s->base.reader, e, p, false, &hash));
    else if (s->base.drawn) params_draw(e, p, s->base.seed, PARAMS_BASE, &hash);
    else TRY(weights_load_base(e, p, s->base.dir, &hash));
    if (!s->lora.rank) return OK;
    if (!s->adapters.dir) TRY(lora_base_check_loaded(e, p, &s->trained_over, &hash, s->adapters_dir));
    if (s->lora.pissa) TRY(pissa_start(e, p, &s->base));
    return model_source_load_adapters(s, e, p);
}

/* ---- other adapters over the same base --------------------------------------------------------------------------- */

status model_source_load_adapters(const model_source *s, exec *e, const plan *p) {
    if (s->adapters.dir) return adapter_load_dir(e, p, s->adapters.dir);
    return load_checkpoint(s->adapters.reader, e, p, true, NULL);
}

/* B = 0: what an adapter adds is 0. */
void model_source_clear_adapters(exec *e, const plan *p) {
    static const char zeros[1 << 16];
    for (size_t i = 0; i < p->net.n_params; i++) {
        const net_param *q = &p->net.params[i];
        if (q->adapter != ADAPTER_B) continue;
        size_t n_bytes = value_bytes(program_get(&p->program, q->value));
        for (size_t at = 0; at < n_bytes; at += sizeof zeros)
            exec_write(e, q->value, at, zeros, MIN(n_bytes - at, sizeof zeros));
    }
}

status model_source_shares_base(const model_source *s, const model_source *other) {
    const lora_options *a = &s->lora, *b = &other->lora;
    const lora_base *x = &s->trained_over, *y = &other->trained_over;
    const char *what = NULL;
    if (a->pissa || b->pissa)
        return ERR(
            ERR_INPUT,
            "%s began by pissa, over a base of its own, expected adapters that share one: export it (ralo export), "
            "which gives an ordinary adapter of twice the rank",
            a->pissa ? s->adapters_dir : other->adapters_dir);
    if (a->rank != b->rank || a->alpha != b->alpha || a->rslora != b->rslora)
        return ERR(
            ERR_INPUT,
            "%s has rank %lld and alpha %g%s, %s rank %lld and alpha %g%s, expected the same of all adapters of one "
            "process; use them in processes of their own",
            s->adapters_dir, (long long)a->rank, a->alpha, a->rslora ? " (rslora)" : "", other->adapters_dir,
            (long long)b->rank, b->alpha, b->rslora ? " (rslora)" : "");
    if (a->modules != b->modules) what = "adapts other modules";
    else if (x->format != y->format) what = "was trained over a base in another format";
    else if (s->config.value_head != other->config.value_head) what = "has another value head";
    else if (s->adapters.reader && other->adapters.reader && (x->hash != y->hash || x->type != y->type))
        what = "was trained over another base";
    if (!what) return OK;
    return ERR(ERR_INPUT,
               "%s %s than %s, expected the same of all adapters of one process; use them in processes of their own",
               other->adapters_dir, what, s->adapters_dir);
}

/* ---- end of text ------------------------------------------------------------------------------------------------- */

/* Adds an id. Ids of a larger vocabulary are often left over in these files: an id that is not a token is ignored. */
static status read_id(const model_source *s, const json_t *id, int32_t *ids, size_t *n) {
    for (size_t i = 0; i < *n && json_is_integer(id); i++)
        if (ids[i] == json_integer_value(id)) return OK;
    if (!json_is_integer(id))
        return ERR(ERR_INPUT,
                   "%s: key 'eos_token_id' of generation_config.json, or else of config.json: found no whole number, "
                   "expected token ids",
                   s->dir);
    if (json_integer_value(id) >= 0 && json_integer_value(id) < s->config.vocab)
        ids[(*n)++] = (int32_t)json_integer_value(id);
    return OK;
}

status model_source_eos(const model_source *s, const tokenizer *t, int32_t **ids, size_t *n) {
    const json_t *eos = json_object_get(s->generation, "eos_token_id");
    size_t count = json_is_array(eos) ? json_array_size(eos) : eos && !json_is_null(eos);
    const json_t *trained = json_object_get(json_object_get(s->description, "end"), "ids");
    size_t n_trained = json_array_size(trained);
    status rc = OK;
    *ids = mem_alloc((count + n_trained + 1) * sizeof **ids);
    *n = 0;
    for (size_t i = 0; i < count && rc == OK; i++)
        rc = read_id(s, json_is_array(eos) ? json_array_get(eos, i) : eos, *ids, n);
    for (size_t i = 0; i < n_trained && rc == OK; i++) rc = read_id(s, json_array_get(trained, i), *ids, n);
    if (rc != OK) {
        free(*ids);
        *ids = NULL;
        return rc;
    }
    if (*n == 0 && tokenizer_eos(t) >= 0) (*ids)[(*n)++] = tokenizer_eos(t);
    return OK;
}
