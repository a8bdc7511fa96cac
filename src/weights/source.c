/* source.c - a model from a Hugging Face directory, a run directory or a checkpoint.
 *
 * A directory with config.json is Hugging Face's; anything else must be a checkpoint or a run that holds one. Weights of
 * a checkpoint are its fp32 masters where it has them, rounded once to what the program computes in, exactly as if the
 * model had been exported and loaded again. */
#include "weights/source.h"
#include "weights/load.h"

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

static status open_directory(model_source *s, const char *path, const char *given) {
    TRY(model_config_read(&s->config, path));
    const char *tokenizer = arena_format(&s->memory, "%s/tokenizer.json", path);
    const char *generation = arena_format(&s->memory, "%s/generation_config.json", path);
    if (given) s->tokenizer = arena_string(&s->memory, given);
    else if (access(tokenizer, F_OK) == 0) s->tokenizer = arena_string(&s->memory, path);
    else if (s->config.vocab == BYTE_VOCAB) s->tokenizer = "byte"; /* an export of a model trained on bytes */
    else
        return ERR(ERR_INPUT, "%s: found no tokenizer.json, and a vocabulary of %lld is not that of bytes (%d)", path,
                   (long long)s->config.vocab, BYTE_VOCAB);
    if (access(generation, F_OK) == 0) TRY(json_read_file(generation, JSON_MOST_BYTES, &s->generation));
    else TRY(read_config_eos(s, path));
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
static status checkpoint_tokenizer(model_source *s, const json_t *description) {
    const json_t *files = checkpoint_reader_tokenizer(s->reader);
    const char *path = json_string_value(json_object_get(description, "tokenizer"));
    if (json_array_size(files) > 0) {
        tokenizer_files copy;
        status rc = tokenizer_files_load(&copy, s->dir, files, true);
        tokenizer_files_fini(&copy);
        s->tokenizer = arena_format(&s->memory, "%s/tokenizer", s->dir);
        return rc;
    }
    s->tokenizer = path ? arena_string(&s->memory, path) : "byte";
    if (!path || access(path, R_OK) == 0) return OK;
    return ERR(ERR_INPUT,
               "%s keeps no copy of its tokenizer, an older ralo wrote it, and %s, which it was trained with, does not "
               "exist; give the directory of the tokenizer with --tokenizer DIR",
               s->dir, path);
}

static status open_checkpoint(model_source *s, const char *path, const char *given) {
    const json_t *description;
    TRY(checkpoint_locate("a model", path,
                          "a directory with config.json, a run or a checkpoint; download a model of the hub first: hf "
                          "download NAME --local-dir DIR",
                          s->dir, sizeof s->dir));
    TRY(checkpoint_reader_open(&s->reader, s->dir));
    TRY(checkpoint_description(s->reader, s->dir, &description));
    TRY(model_config_from_json(&s->config, json_object_get(description, "config"), last_part(path), s->dir));
    if (given) s->tokenizer = arena_string(&s->memory, given);
    else TRY(checkpoint_tokenizer(s, description));
    s->generation = json_incref(json_object_get(description, "generation"));
    s->chat = find_chat(json_string_value(json_object_get(description, "chat")), s->dir);
    const char *kwargs = json_string_value(json_object_get(description, "chat_kwargs"));
    s->chat_kwargs = kwargs ? arena_string(&s->memory, kwargs) : NULL;
    return OK;
}

status model_source_open(model_source *s, const char *path, const char *tokenizer) {
    *s = (model_source){0};
    arena_init(&s->memory);
    status rc = OK;
    if (strlen(path) >= sizeof s->dir) rc = ERR(ERR_INPUT, "a path of %zu characters is too long", strlen(path));
    else if (access(arena_format(&s->memory, "%s/config.json", path), F_OK) == 0) {
        snprintf(s->dir, sizeof s->dir, "%s", path);
        rc = open_directory(s, path, tokenizer);
    } else {
        rc = open_checkpoint(s, path, tokenizer);
    }
    if (rc == OK) return OK;
    model_source_close(s);
    return error_trail(rc, __FILE__, __LINE__, __func__);
}

void model_source_close(model_source *s) {
    checkpoint_reader_close(s->reader);
    json_decref(s->generation);
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

static status load_param(const model_source *s, exec *e, const plan *p, size_t i, char *raw, float *wide) {
    const model_param *q = &p->model.params[i];
    const value *v = program_get(&p->program, q->value);
    checkpoint_found found;
    TRY(checkpoint_param_find(s->reader, q->name, &v->shape, &found));
    size_t from = dtype_bytes(found.type), to = dtype_bytes(v->type);
    int64_t total = shape_count(&v->shape);
    for (int64_t at = 0; at < total; at += BLOCK_ELEMENTS) {
        size_t n = (size_t)MIN(total - at, (int64_t)BLOCK_ELEMENTS);
        checkpoint_reader_read(s->reader, &found, (uint64_t)at * from, raw, n * from);
        tensor_convert(wide, DTYPE_F32, raw, found.type, n);
        if (v->type != DTYPE_F32) tensor_convert(raw, v->type, wide, DTYPE_F32, n);
        exec_write(e, q->value, (size_t)at * to, v->type == DTYPE_F32 ? (void *)wide : raw, n * to);
    }
    checkpoint_reader_forget(s->reader, &found);
    return OK;
}

status model_source_load(const model_source *s, exec *e, const plan *p) {
    if (!s->reader) return weights_load_dir(e, p, s->dir);
    status rc = OK;
    char *raw = mem_alloc(BLOCK_ELEMENTS * sizeof(float));
    float *wide = mem_alloc(BLOCK_ELEMENTS * sizeof *wide);
    for (size_t i = 0; i < p->model.n_params && rc == OK; i++) rc = load_param(s, e, p, i, raw, wide);
    free(raw);
    free(wide);
    return rc;
}

/* ---- end of text ------------------------------------------------------------------------------------------------- */

/* Adds an id. Ids of a larger vocabulary are often left over in these files: an id that is not a token is ignored. */
static status read_id(const model_source *s, const json_t *id, int32_t *ids, size_t *n) {
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
    status rc = OK;
    *ids = mem_alloc((count + 1) * sizeof **ids);
    *n = 0;
    for (size_t i = 0; i < count && rc == OK; i++)
        rc = read_id(s, json_is_array(eos) ? json_array_get(eos, i) : eos, *ids, n);
    if (rc != OK) {
        free(*ids);
        *ids = NULL;
        return rc;
    }
    if (*n == 0 && tokenizer_eos(t) >= 0) (*ids)[(*n)++] = tokenizer_eos(t);
    return OK;
}
