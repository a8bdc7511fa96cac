/* meta.c - Meta's layout of a Llama: params.json, and how its files name and order tensors.
 *
 * Multi-token models are published like this: n_layers counts the heads, `layers` holds the trunk and the first head,
 * `extra_heads` the others. Rotary pairs stand side by side in the rows of wq and wk; Hugging Face, and every model here, has
 * the two halves of a head one after the other. Nothing is computed differently, so rows are put in place while files are read
 * and written.
 * Keys that are not known are refused by name, as Meta's own loader does: they may change what the model computes. */
#include "model/model.h"

#include <math.h>
#include <stdlib.h>

static const struct {
    const char *ours, *meta; /* Hugging Face's and Meta's */
    bool interleaved;
} tensors[] = {
    {"model.embed_tokens", "tok_embeddings", false},
    {"model.norm", "norm", false},
    {"lm_head", "output", false},
    {"model.layers.%d.input_layernorm", "layers.%d.attention_norm", false},
    {"model.layers.%d.self_attn.q_proj", "layers.%d.attention.wq", true},
    {"model.layers.%d.self_attn.k_proj", "layers.%d.attention.wk", true},
    {"model.layers.%d.self_attn.v_proj", "layers.%d.attention.wv", false},
    {"model.layers.%d.self_attn.o_proj", "layers.%d.attention.wo", false},
    {"model.layers.%d.post_attention_layernorm", "layers.%d.ffn_norm", false},
    {"model.layers.%d.mlp.gate_proj", "layers.%d.feed_forward.w1", false},
    {"model.layers.%d.mlp.up_proj", "layers.%d.feed_forward.w3", false},
    {"model.layers.%d.mlp.down_proj", "layers.%d.feed_forward.w2", false},
};

const char *meta_tensor_name(const char *format, bool *interleaved) {
    for (size_t i = 0; i < ARRAY_LENGTH(tensors); i++)
        if (strcmp(tensors[i].ours, format) == 0) {
            *interleaved = tensors[i].interleaved;
            return tensors[i].meta;
        }
    return NULL;
}

/* ---- params.json ------------------------------------------------------------------------------------------------- */

typedef struct params {
    int64_t dim, n_layers, n_heads, n_kv_heads, vocab, multiple_of, n_future, max_seq, max_batch;
    double norm_eps, theta, multiplier; /* multiplier 0: none */
} params;

static status refuse(const char *path, const char *key, const json_t *found, const char *expected) {
    char *text = json_dumps(found, JSON_ENCODE_ANY | JSON_COMPACT);
    status rc =
        ERR(ERR_INPUT, "%s: key '%s': found %.120s, expected %s", path, key, text ? text : "something else", expected);
    free(text);
    return rc;
}

/* One key of params.json; *known: it is one. null is as if it were absent. */
static status read_key(params *p, const char *path, const char *key, const json_t *v, bool *known) {
    const struct {
        const char *key;
        int64_t most, *field;
    } sizes[] = {{"dim", 1 << 20, &p->dim},
                 {"n_layers", NET_LAYERS_MAX, &p->n_layers},
                 {"n_heads", 4096, &p->n_heads},
                 {"n_kv_heads", 4096, &p->n_kv_heads},
                 {"vocab_size", 1 << 24, &p->vocab},
                 {"multiple_of", 1 << 22, &p->multiple_of},
                 {"n_future_tokens", MTP_HEADS_MAX, &p->n_future},
                 {"max_seq_len", 1 << 24, &p->max_seq},
                 {"max_batch_size", INT64_MAX, &p->max_batch}};
    const struct {
        const char *key;
        double *field;
    } reals[] = {{"norm_eps", &p->norm_eps}, {"rope_theta", &p->theta}, {"ffn_dim_multiplier", &p->multiplier}};
    char expected[160];
    *known = true;
    for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++) {
        if (strcmp(key, sizes[i].key) != 0) continue;
        if (json_is_null(v)) return OK;
        *sizes[i].field = json_integer_value(v);
        if (json_is_integer(v) && *sizes[i].field >= 1 && *sizes[i].field <= sizes[i].most) return OK;
        snprintf(expected, sizeof expected, "a whole number from 1 to %lld%s", (long long)sizes[i].most,
                 sizes[i].field == &p->vocab ? ": the rows of tok_embeddings.weight (Llama 2: 32000)" : "");
        return refuse(path, key, v, expected);
    }
    for (size_t i = 0; i < ARRAY_LENGTH(reals); i++) {
        if (strcmp(key, reals[i].key) != 0) continue;
        if (json_is_null(v)) return OK;
        *reals[i].field = json_number_value(v);
        if (json_is_number(v) && isfinite(*reals[i].field) && *reals[i].field > 0) return OK;
        return refuse(path, key, v, "a finite number above 0");
    }
    if (strcmp(key, "use_scaled_rope") == 0)
        return json_is_false(v) ? OK
                                : refuse(path, key, v,
                                         "false: how far rope is scaled is not in this file; use the model's "
                                         "Hugging Face directory");
    *known = false;
    return OK;
}

/* The width of the MLP, as Meta's code has it. */
static double ffn_of(const params *p, double multiplier) {
    double n = (double)(8 * p->dim / 3);
    if (multiplier > 0) n = floor(multiplier * n);
    return (double)p->multiple_of * ceil(n / (double)p->multiple_of);
}

status model_config_from_meta(model_config *out, const json_t *root, const char *name, const char *path) {
    params p = {.multiple_of = 256, .norm_eps = 1e-5, .theta = 10000, .n_future = 1, .max_seq = 2048};
    const char *key;
    json_t *v;
    if (!json_is_object(root)) return ERR(ERR_INPUT, "%s: found no object, expected Meta's params.json", path);
    json_object_foreach((json_t *)root, key, v) {
        bool known;
        TRY(read_key(&p, path, key, v, &known));
        if (!known)
            return ERR(ERR_INPUT,
                       "%s: key '%.100s' is not known; expected those of Meta's Llama: dim, n_layers, n_heads, "
                       "n_kv_heads, vocab_size, multiple_of, ffn_dim_multiplier, norm_eps, rope_theta, "
                       "n_future_tokens, max_seq_len",
                       path, key);
    }
    const struct {
        const char *key;
        int64_t n;
    } needed[] = {{"dim", p.dim}, {"n_layers", p.n_layers}, {"n_heads", p.n_heads}, {"vocab_size", p.vocab}};
    for (size_t i = 0; i < ARRAY_LENGTH(needed); i++)
        if (!needed[i].n) return ERR(ERR_INPUT, "%s: key '%s' is missing", path, needed[i].key);
    if (p.dim % p.n_heads)
        return ERR(ERR_INPUT, "%s: key 'n_heads': found %lld, expected a divisor of dim, %lld", path,
                   (long long)p.n_heads, (long long)p.dim);
    double ffn = ffn_of(&p, p.multiplier);
    if (!(ffn >= 1 && ffn <= 1 << 22))
        return ERR(ERR_INPUT, "%s: key 'ffn_dim_multiplier': an MLP %g wide, expected 1 to %d", path, ffn, 1 << 22);
    *out = (model_config){.name = name,
                          .is_16_bit = true,
                          .family = FAMILY_LLAMA,
                          .vocab = p.vocab,
                          .hidden = p.dim,
                          .n_layers = p.n_layers,
                          .n_heads = p.n_heads,
                          .n_kv_heads = p.n_kv_heads ? p.n_kv_heads : p.n_heads,
                          .head_dim = p.dim / p.n_heads,
                          .ffn = (int64_t)ffn,
                          .max_positions = p.max_seq,
                          .norm_eps = p.norm_eps,
                          .rope = {.theta = p.theta},
                          .mtp_heads = p.n_future > 1 ? p.n_future : 0,
                          .file_heads = p.n_future > 1 ? p.n_future : 0,
                          .meta_files = true};
    return model_config_check(out);
}

status model_config_to_meta(const model_config *c, json_t **out) {
    const char *why = c->family != FAMILY_LLAMA               ? "the family is not llama"
                      : c->rope.type != ROPE_DEFAULT          ? "its rotary positions are scaled"
                      : c->tied                               ? "embedding and unembedding are one tensor (tied)"
                      : c->head_dim * c->n_heads != c->hidden ? "heads are not an equal share of the width"
                                                              : NULL;
    if (why)
        return ERR(ERR_INPUT,
                   "--heads meta: the model cannot be written in Meta's layout: %s; use --heads all, which ralo reads "
                   "back",
                   why);
    params p = {.dim = c->hidden, .multiple_of = 256};
    double multiplier = 0, usual = (double)(8 * c->hidden / 3);
    if (ffn_of(&p, 0) != (double)c->ffn) { /* rounded up from just below, or from anything below, to this width */
        p.multiple_of = c->ffn;
        if ((double)c->ffn < usual) multiplier = ((double)c->ffn - 0.5) / usual;
        if (ffn_of(&p, multiplier) != (double)c->ffn)
            return ERR(ERR_INPUT, "--heads meta: an MLP %lld wide cannot be written in Meta's layout; use --heads all",
                       (long long)c->ffn);
    }
    *out = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:I}", "dim", (json_int_t)c->hidden, "n_layers",
                     (json_int_t)c->n_layers, "n_heads", (json_int_t)c->n_heads, "n_kv_heads",
                     (json_int_t)c->n_kv_heads, "vocab_size", (json_int_t)c->vocab, "multiple_of",
                     (json_int_t)p.multiple_of, "norm_eps", c->norm_eps, "rope_theta", c->rope.theta, "n_future_tokens",
                     (json_int_t)model_loss_count(c), "max_seq_len", (json_int_t)c->max_positions);
    if (multiplier > 0) json_object_set_new(*out, "ffn_dim_multiplier", json_real(multiplier));
    return OK;
}
