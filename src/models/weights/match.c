/* match.c - find the tensor of every part of every parameter by its Hugging Face name.
 *
 * Nothing is loaded here. Files of a bare decoder leave the family's prefix out, a tied model may hold its table under
 * either name, adapters come with PEFT's prefix or without: whatever is in circulation is found; what is left over is
 * a problem, because it would be lost silently. */
#include "weights/match.h"
#include "weights/file_tensor.h"

#include <stdlib.h>

#define MOST_NAMED 10 /* problems told by name; the rest is counted */
enum { COMPARE_BYTES = 4 << 20 };

typedef struct matcher {
    const net *model;
    const safetensors *files;
    size_t n_files;
    const char *prefix;
    bool **used;         /* per file, per tensor */
    bool reference;      /* only the parameters of the frozen copy */
    bool has_value_head; /* the files are those of a critic: all of its head must be there, and it has no unembedding */
    json_t *names;       /* adapters: the tensor's index by the name that the model knows it by; else NULL */
    strbuf problems;
    size_t n_problems;
} matcher;

static void add_problem(matcher *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add_problem(matcher *m, const char *fmt, ...) {
    if (m->n_problems++ >= MOST_NAMED) return;
    char line[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    strbuf_printf(&m->problems, "\n  %.160s", line);
}

/* "model." of model.layers.0...; files of the bare decoder, the published GPT-2 among them, leave it out. */
static const char *family_prefix(const matcher *m) {
    return model_family_traits(model_of(&m->model->source)->family)->names->prefix;
}

static const safetensor *find_exact(const matcher *m, const char *name) {
    char full[512];
    if (m->names) {
        const json_t *at = json_object_get(m->names, name);
        if (!at) return NULL;
        m->used[0][json_integer_value(at)] = true;
        return &m->files[0].tensors[json_integer_value(at)];
    }
    snprintf(full, sizeof full, "%s%s", m->prefix, name);
    for (size_t i = 0; i < m->n_files; i++) {
        const safetensor *t = safetensors_find(&m->files[i], full);
        if (!t) continue;
        m->used[i][t - m->files[i].tensors] = true;
        return t;
    }
    return NULL;
}

static const safetensor *find(const matcher *m, const char *name) {
    const safetensor *t = find_exact(m, name);
    if (!t && str_starts_with(name, family_prefix(m))) t = find_exact(m, name + strlen(family_prefix(m)));
    return t;
}

static shape part_shape(const net_param *q, const param_part *part) {
    const shape *s = &q->cut.whole;
    if (s->rank == 1) return SHAPE(part->n_rows);
    return q->transposed ? SHAPE(s->dim[1], part->n_rows) : SHAPE(part->n_rows, s->dim[1]);
}

static const safetensor *match_part(matcher *m, const net_param *q, const param_part *part) {
    char a[64], b[64];
    const safetensor *t = find(m, part->file_name);
    /* A tied model has one matrix under two names: a file may hold either. */
    if (!t && q->number == 0 && model_of(&m->model->source)->tied && !m->names) t = find_exact(m, "lm_head.weight");
    shape want = part_shape(q, part);
    if (!t && q->of_value_head && !m->has_value_head) return NULL;
    if (!t) add_problem(m, "%s is missing", part->file_name);
    else if (!shape_equal(&t->shape, &want))
        add_problem(m, "%s has shape %s, expected %s", part->file_name, shape_format(a, &t->shape),
                    shape_format(b, &want));
    else if (t->type != DTYPE_F32 && t->type != DTYPE_BF16 && t->type != DTYPE_F16)
        add_problem(m, "%s is %s, expected fp32, bf16 or fp16", part->file_name, dtype_name(t->type));
    else return t;
    return NULL;
}

static bool is_buffer(const char *name) {
    return str_ends_with(name, ".attn.bias") || str_ends_with(name, ".attn.masked_bias") ||
           str_ends_with(name, "rotary_emb.inv_freq") || strcmp(name, "rope.freqs") == 0;
}

static bool same_bytes(const safetensor *a, const safetensor *b) {
    bool same = true;
    for (size_t at = 0; at < a->n_bytes && same; at += COMPARE_BYTES) {
        size_t end = MIN(a->n_bytes, at + COMPARE_BYTES);
        same = memcmp((const char *)a->data + at, (const char *)b->data + at, end - at) == 0;
        file_tensor_release(a, at, end);
        file_tensor_release(b, at, end);
    }
    return same;
}

/* A tied model's file may hold its embedding a second time, as lm_head.weight. If that matrix differs it is refused:
 * it would be lost silently, and transformers would use it. */
static void match_head(matcher *m, const safetensor *embedding) {
    const safetensor *head = model_of(&m->model->source)->tied ? find_exact(m, "lm_head.weight") : NULL;
    if (!head || !embedding || head == embedding) return;
    if (!shape_equal(&head->shape, &embedding->shape) || head->type != embedding->type || !same_bytes(head, embedding))
        add_problem(m, "lm_head.weight is not the embedding, though tie_word_embeddings is true");
}

/* A critic that begins from an ordinary model does not need its unembedding. */
static bool is_left_out(const matcher *m, const char *name) {
    const char *unembed = model_family_traits(model_of(&m->model->source)->family)->names->unembed;
    size_t n = unembed ? strlen(unembed) : 0;
    return model_of(&m->model->source)->value_head && n && strncmp(name, unembed, n) == 0 &&
           strcmp(name + n, ".weight") == 0;
}

static void find_value_head(matcher *m) {
    for (size_t i = 0; i < m->model->n_all_params; i++)
        for (int k = 0; k < m->model->params[i].n_parts && m->model->params[i].of_value_head; k++)
            m->has_value_head |= find(m, m->model->params[i].parts[k].file_name) != NULL;
}

/* A model that only has the first head leaves the others in the files. */
static void match_rest(matcher *m) {
    const model_config *c = model_of(&m->model->source);
    bool leaves_out_heads = m->reference || (c->file_heads > 1 && c->mtp_heads <= 1);
    for (size_t i = 0; i < m->n_files; i++)
        for (size_t k = 0; k < m->files[i].n_tensors; k++) {
            const char *name = m->files[i].tensors[k].name;
            if (m->used[i][k] || !str_starts_with(name, m->prefix) || is_buffer(name)) continue;
            if (leaves_out_heads && strstr(name, "extra_heads.")) continue;
            if (is_left_out(m, name + strlen(m->prefix))) continue;
            add_problem(m, "%.120s is not part of this %s", name, m->names ? "adapter" : "model");
        }
}

/* Appends "and 3 more" to the problems that are named. */
static const char *problem_text(matcher *m) {
    if (m->n_problems > MOST_NAMED) strbuf_printf(&m->problems, "\n  and %zu more", m->n_problems - MOST_NAMED);
    return m->problems.text;
}

static void matcher_init(matcher *m) {
    m->used = mem_alloc(m->n_files * sizeof *m->used);
    for (size_t i = 0; i < m->n_files; i++) m->used[i] = mem_alloc(m->files[i].n_tensors + 1);
    strbuf_init(&m->problems);
}

static void matcher_fini(matcher *m) {
    strbuf_fini(&m->problems);
    for (size_t i = 0; i < m->n_files; i++) free(m->used[i]);
    free(m->used);
    json_decref(m->names);
}

/* Those of an adapter's files, or those of a model's, among which a value head may be. */
static void match_params(matcher *m, bool adapters, const safetensor **sources) {
    size_t n = 0;
    const safetensor *embedding = NULL;
    for (size_t i = 0; i < m->model->n_all_params; i++) {
        const net_param *q = &m->model->params[i];
        bool wanted = adapters ? q->beside_base : q->adapter == ADAPTER_NONE && (!m->reference || q->of_reference);
        for (int k = 0; k < q->n_parts; k++) sources[n++] = wanted ? match_part(m, q, &q->parts[k]) : NULL;
        bool first = m->reference ? wanted && !embedding : q->number == 0;
        if (first) embedding = sources[n - 1];
    }
    if (!adapters) match_head(m, embedding);
    match_rest(m);
}

size_t match_part_count(const net *m) {
    size_t n = 0;
    for (size_t i = 0; i < m->n_all_params; i++) n += (size_t)m->params[i].n_parts;
    return n;
}

static status match(const net *model, const safetensors *files, size_t n_files, const char *prefix, bool reference,
                    const safetensor **sources) {
    matcher m = {.model = model, .files = files, .n_files = n_files, .prefix = prefix, .reference = reference};
    status rc = OK;
    matcher_init(&m);
    find_value_head(&m);
    match_params(&m, false, sources);
    if (m.n_problems)
        rc = ERR(ERR_INPUT, "%s%s does not hold the weights of %s:%s", n_files ? files[0].path : "no file",
                 n_files > 1 ? " and the files beside it" : "", model_of(&model->source)->name, problem_text(&m));
    matcher_fini(&m);
    return rc;
}

status match_weights(const net *model, const safetensors *files, size_t n_files, const char *prefix,
                     const safetensor **sources) {
    return match(model, files, n_files, prefix, false, sources);
}

status match_reference(const net *model, const safetensors *files, size_t n_files, const safetensor **sources) {
    return match(model, files, n_files, "", true, sources);
}

/* ---- adapters ---------------------------------------------------------------------------------------------------- */

#define ADAPTER_PREFIX "base_model.model."

/* "base_model.model.X.lora_A.default.weight" is the model's "X.lora_A.weight". */
static const char *model_name_of(const char *name, char *out, size_t n) {
    static const char *const middles[] = {".lora_A.", ".lora_B."};
    if (str_starts_with(name, ADAPTER_PREFIX)) name += strlen(ADAPTER_PREFIX);
    snprintf(out, n, "%s", name);
    for (size_t i = 0; i < ARRAY_LENGTH(middles); i++) {
        char *at = strstr(out, middles[i]);
        if (at && str_ends_with(name, ".weight")) snprintf(at, n - (size_t)(at - out), "%sweight", middles[i]);
    }
    return out;
}

/* Two tensors of one name: the adapters of two names in one file, which one is meant cannot be told. */
static void index_names(matcher *m) {
    const safetensors *file = &m->files[0];
    m->names = json_object();
    for (size_t k = 0; k < file->n_tensors; k++) {
        char name[512];
        model_name_of(file->tensors[k].name, name, sizeof name);
        const json_t *first = json_object_get(m->names, name);
        if (first) {
            add_problem(m, "%.70s and %.70s are the same tensor", file->tensors[json_integer_value(first)].name,
                        file->tensors[k].name);
            m->used[0][k] = true;
        } else if (json_object_set_new(m->names, name, json_integer((json_int_t)k)) != 0) {
            add_problem(m, "%.120s is not a name in UTF-8", file->tensors[k].name);
        }
    }
}

status match_adapter(const net *model, const safetensors *file, const char *base, const safetensor **sources) {
    matcher m = {.model = model, .files = file, .n_files = 1, .prefix = "", .has_value_head = true};
    status rc = OK;
    matcher_init(&m);
    index_names(&m);
    match_params(&m, true, sources);
    if (m.n_problems)
        rc =
            ERR(ERR_INPUT,
                "%s does not fit %s: it is the adapter of another model, or not as its adapter_config.json says, where "
                "its base is %s%.200s%s:%s",
                file->path, model_of(&model->source)->name, base ? "'" : "", base ? base : "not named", base ? "'" : "",
                problem_text(&m));
    matcher_fini(&m);
    return rc;
}
