/* gguf_model.c - a model as llama.cpp knows it: architecture, keys, names and types of tensors.
 *
 * Types of a file with q4_k are those that llama.cpp calls Q4_K_M: the unembedding, or the embedding that is also that, and half
 * of the v and down projections have 6 bits. Rows that are no multiple of 256 fall back to blocks of 32 (q5_0 for q4_k, q8_0 for
 * q6_k), others to fp16. Vectors and learned positions are fp32 always. */
#include "weights/gguf_parts.h"

#include <math.h>

typedef struct architecture {
    const char *name;
    bool interleaved;    /* rows of q and k as pairs side by side, as Meta's */
    bool square;         /* heads times head_dim is the width */
    bool rope_factors;   /* reads rope_freqs.weight */
    bool long_rope;      /* reads rope_factors_long.weight and rope_factors_short.weight */
    bool needs_output;   /* has no tied embeddings */
    bool is_tied;        /* has nothing else */
    bool windows;        /* sliding windows; else every layer sees all */
    int64_t full_every;  /* ... in all but every so many-th layer */
    int64_t wide_layers; /* a model of so many layers scales scores by hidden / heads instead of head_dim */
} architecture;

static const architecture architectures[FAMILY_COUNT] = {
    [FAMILY_GPT2] = {"gpt2", .square = true},
    [FAMILY_LLAMA] = {"llama", .interleaved = true, .rope_factors = true},
    [FAMILY_MISTRAL] = {"llama", .interleaved = true, .rope_factors = true},
    [FAMILY_PHI3] = {"phi3", .square = true, .long_rope = true},
    [FAMILY_OLMO2] = {"olmo2", .square = true, .needs_output = true},
    [FAMILY_GEMMA2] = {"gemma2", .is_tied = true, .windows = true, .full_every = 2, .wide_layers = 46},
    [FAMILY_GEMMA3] = {"gemma3", .windows = true, .full_every = 6, .wide_layers = 62},
    [FAMILY_QWEN2] = {"qwen2", .square = true},
    [FAMILY_QWEN3] = {"qwen3"},
};

bool gguf_needs_output(const model_config *c) { return c->tied && architectures[c->family].needs_output; }

/* ---- what is refused --------------------------------------------------------------------------------------------- */

static status refuse(const model_config *c, const char *what) {
    return ERR(ERR_INPUT, "export --gguf: %s: %s; export a Hugging Face directory instead, without --gguf",
               model_family_traits(c->family)->name, what);
}

static double usual_amplitude(const rope_options *r) { return 0.1 * log(r->factor) + 1; }

static status check_rope(const model_config *c, const architecture *a) {
    const rope_options *r = &c->rope;
    if (model_family_traits(c->family)->learned_positions) return OK;
    if (r->type == ROPE_LLAMA3 && !a->rope_factors)
        return refuse(c, "llama.cpp has rope_type \"llama3\" for the architecture llama alone");
    if (r->type == ROPE_DYNAMIC) return refuse(c, "llama.cpp has no rope_type \"dynamic\"");
    if (r->type == ROPE_LONG && !a->long_rope)
        return refuse(c, "llama.cpp has rope_type \"longrope\" for the architecture phi3 alone");
    if (r->type != ROPE_YARN) return OK;
    if (c->local_theta > 0)
        return refuse(c, "llama.cpp stretches layers with a window, too, where rope_type is \"yarn\"");
    if (r->untruncated || r->beta_fast != 32 || r->beta_slow != 1)
        return refuse(c, "of rope_type \"yarn\" llama.cpp has beta_fast 32, beta_slow 1 and truncate true alone");
    if (fabs(rope_amplitude(r) - usual_amplitude(r)) > 1e-6)
        return refuse(c, "of rope_type \"yarn\" llama.cpp has the attention factor 0.1 ln(factor) + 1 alone");
    return OK;
}

static status check_attention(const model_config *c, const architecture *a) {
    int64_t scalar = a->wide_layers && c->n_layers == a->wide_layers ? c->hidden / c->n_heads : c->head_dim;
    if (a->square && c->n_heads * c->head_dim != c->hidden)
        return refuse(c, "llama.cpp wants heads times head_dim to be hidden_size in this architecture");
    if (c->query_scalar > 0 && c->query_scalar != (double)scalar)
        return refuse(c, "llama.cpp takes query_pre_attn_scalar for head_dim (of 27B: hidden_size / heads)");
    if (a->windows && c->window && c->window_from > 0)
        return refuse(c, "llama.cpp has sliding windows in all but every so many-th layer, not from some layer on");
    if (a->windows && c->window && c->full_every != a->full_every)
        return refuse(c, a->full_every == 2 ? "llama.cpp has a sliding window in every other layer"
                                            : "llama.cpp has a sliding window in five of six layers");
    if (a->windows && c->window == 0 && c->local_theta > 0 && c->local_theta != c->rope.theta)
        return refuse(c, "llama.cpp has rope_local_base_freq for layers with a sliding window alone");
    if (c->family == FAMILY_GEMMA2 && (c->attention_softcap <= 0 || c->final_softcap <= 0))
        return refuse(c, "llama.cpp always has both soft-caps in this architecture");
    if (a->is_tied && !c->tied)
        return refuse(c, "llama.cpp ties the unembedding to the embedding in this architecture");
    return OK;
}

status gguf_check_model(const model_config *c) {
    const architecture *a = &architectures[c->family];
    if (!a->name) return refuse(c, "no GGUF architecture is known for this family");
    if (c->value_head) return refuse(c, "a critic has a value head, which llama.cpp does not know");
    TRY(check_attention(c, a));
    return check_rope(c, a);
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

typedef struct describing {
    gguf_header *h;
    const char *name; /* of the architecture */
    char key[96];
} describing;

static const char *key_of(describing *d, const char *key) {
    snprintf(d->key, sizeof d->key, "%s.%s", d->name, key);
    return d->key;
}
static void add_int(describing *d, const char *key, int64_t x) { gguf_add_u32(d->h, key_of(d, key), (uint32_t)x); }
static void add_real(describing *d, const char *key, double x) { gguf_add_f32(d->h, key_of(d, key), (float)x); }

static void describe_rope(describing *d, const model_config *c) {
    const rope_options *r = &c->rope;
    add_int(d, "rope.dimension_count", model_rotary_dim(c));
    add_real(d, "rope.freq_base", r->theta);
    if (r->type == ROPE_LONG) { /* the factors are tensors */
        add_int(d, "rope.scaling.original_context_length", r->original_max_positions);
        add_real(d, "rope.scaling.attn_factor", rope_amplitude(r));
    }
    if (r->type != ROPE_LINEAR && r->type != ROPE_YARN) return; /* llama3 is a tensor */
    gguf_add_text(d->h, key_of(d, "rope.scaling.type"), r->type == ROPE_YARN ? "yarn" : "linear");
    add_real(d, "rope.scaling.factor", r->factor);
    if (r->type == ROPE_YARN) add_int(d, "rope.scaling.original_context_length", r->original_max_positions);
}

/* Without windows in the architecture, up to so many tokens all is as in the model. */
static int64_t exact_context(const model_config *c) {
    if (architectures[c->family].windows || c->window == 0 || c->window >= c->max_positions) return c->max_positions;
    log_warn("llama.cpp has no sliding windows for this architecture: the file says context length %lld, the window; "
             "with more tokens it computes otherwise than the model",
             (long long)c->window);
    return c->window;
}

static void describe_windows(describing *d, const model_config *c) {
    if (c->family == FAMILY_PHI3) add_int(d, "attention.sliding_window", 0); /* its absence would mean an old default */
    if (!architectures[c->family].windows) return;
    if (c->window || c->family == FAMILY_GEMMA2) /* absent is 4096 there */
        add_int(d, "attention.sliding_window", c->window ? c->window : c->max_positions);
    if (c->window && c->local_theta > 0) add_real(d, "rope.freq_base_swa", c->local_theta);
}

void gguf_describe_model(gguf_header *h, const model_config *c, gguf_format f) {
    static const uint32_t file_types[] = {
        [GGUF_F16_FILE] = 1, [GGUF_BF16_FILE] = 32, [GGUF_F32_FILE] = 0, [GGUF_Q8_0_FILE] = 7, [GGUF_Q4_K_FILE] = 15};
    const model_traits *t = model_family_traits(c->family);
    describing state = {.h = h, .name = architectures[c->family].name}, *d = &state;
    gguf_add_text(h, "general.architecture", d->name);
    gguf_add_text(h, "general.type", "model");
    gguf_add_u32(h, "general.file_type", file_types[f]);
    gguf_add_u32(h, "general.quantization_version", 2);
    add_int(d, "context_length", exact_context(c));
    add_int(d, "embedding_length", c->hidden);
    add_int(d, "block_count", c->n_layers);
    add_int(d, "feed_forward_length", c->ffn);
    add_int(d, "vocab_size", c->vocab);
    add_int(d, "attention.head_count", c->n_heads);
    add_int(d, "attention.head_count_kv", c->n_kv_heads);
    add_real(d, t->layernorm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", c->norm_eps);
    if (!t->learned_positions) {
        add_int(d, "attention.key_length", c->head_dim);
        add_int(d, "attention.value_length", c->head_dim);
        describe_rope(d, c);
    }
    describe_windows(d, c);
    if (c->attention_softcap > 0) add_real(d, "attn_logit_softcapping", c->attention_softcap);
    if (c->final_softcap > 0) add_real(d, "final_logit_softcapping", c->final_softcap);
}

int gguf_rope_tensors(const model_config *c, gguf_rope_tensor out[GGUF_ROPE_TENSORS]) {
    const double *lists[] = {c->long_rope.long_factors, c->long_rope.short_factors};
    static const char *const names[] = {"rope_factors_long.weight", "rope_factors_short.weight"};
    int n = c->rope.type == ROPE_LLAMA3 ? 1 : c->rope.type == ROPE_LONG ? 2 : 0, dim = (int)model_rotary_dim(c);
    rope_options plain = {.type = ROPE_DEFAULT, .theta = c->rope.theta};
    for (int k = 0; k < n; k++) {
        out[k].name = c->rope.type == ROPE_LONG ? names[k] : "rope_freqs.weight";
        out[k].n = dim / 2;
        for (int i = 0; i < dim / 2; i++)
            out[k].factors[i] =
                (float)(c->rope.type == ROPE_LONG ? lists[k][i]
                                                  : rope_inverse_frequency(&plain, dim, c->max_positions, i) /
                                                        rope_inverse_frequency(&c->rope, dim, c->max_positions, i));
    }
    return n;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* "model.layers.3.mlp.down_proj" of "model.layers.3.mlp.down_proj.weight"? Then *suffix is ".weight". */
static bool is_named(const char *file_name, const char *format, int64_t layer, const char **suffix) {
    char name[160];
    if (!format) return false;
    const char *number = strstr(format, "%d");
    if (number) snprintf(name, sizeof name, "%.*s%lld%s", (int)(number - format), format, (long long)layer, number + 2);
    else snprintf(name, sizeof name, "%s", format);
    if (!str_starts_with(file_name, name)) return false;
    *suffix = file_name + strlen(name);
    return **suffix == '.';
}

status gguf_tensor_name(const model_config *c, const net_param *q, const param_part *part, gguf_name *out) {
    const tensor_names *n = model_family_traits(c->family)->names;
    const struct {
        const char *format, *name;
        gguf_role role;
        bool is_rotated;
    } rows[] = {{n->embed, "token_embd", GGUF_ROLE_EMBED, false},
                {n->positions, "position_embd", GGUF_ROLE_POSITIONS, false},
                {n->final_norm, "output_norm", GGUF_ROLE_PLAIN, false},
                {n->unembed, "output", GGUF_ROLE_OUTPUT, false},
                {n->norm1, "blk.%d.attn_norm", GGUF_ROLE_PLAIN, false},
                {n->qkv[1] ? NULL : n->qkv[0], "blk.%d.attn_qkv", GGUF_ROLE_V, false},
                {n->qkv[0], "blk.%d.attn_q", GGUF_ROLE_PLAIN, true},
                {n->qkv[1], "blk.%d.attn_k", GGUF_ROLE_PLAIN, true},
                {n->qkv[2], "blk.%d.attn_v", GGUF_ROLE_V, false},
                {n->q_norm, "blk.%d.attn_q_norm", GGUF_ROLE_PLAIN, false},
                {n->k_norm, "blk.%d.attn_k_norm", GGUF_ROLE_PLAIN, false},
                {n->out, "blk.%d.attn_output", GGUF_ROLE_PLAIN, false},
                {n->norm1_after, "blk.%d.post_attention_norm", GGUF_ROLE_PLAIN, false},
                {n->norm2, "blk.%d.ffn_norm", GGUF_ROLE_PLAIN, false},
                {n->norm2_after, "blk.%d.post_ffw_norm", GGUF_ROLE_PLAIN, false},
                {n->up[1] ? n->up[0] : NULL, "blk.%d.ffn_gate", GGUF_ROLE_PLAIN, false},
                {n->up[1] ? n->up[1] : n->up[0], "blk.%d.ffn_up", GGUF_ROLE_PLAIN, false},
                {n->down, "blk.%d.ffn_down", GGUF_ROLE_DOWN, false}};
    const char *suffix;
    int64_t layer = q->unit - 1;
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
        if (!is_named(part->file_name, rows[i].format, layer, &suffix)) continue;
        const char *number = strstr(rows[i].name, "%d");
        if (number) snprintf(out->text, sizeof out->text, "blk.%lld%s%s", (long long)layer, number + 2, suffix);
        else snprintf(out->text, sizeof out->text, "%s%s", rows[i].name, suffix);
        out->role = rows[i].role;
        out->interleaved = rows[i].is_rotated && architectures[c->family].interleaved;
        return OK;
    }
    return ERR(ERR_BUG, "export --gguf: no name for the tensor %s", part->file_name);
}

/* The layers whose v and down projections have more bits: the first and the last eighth, and every third between them. */
static bool has_more_bits(int64_t layer, int64_t n_layers) {
    return layer < n_layers / 8 || layer >= 7 * n_layers / 8 || (layer - n_layers / 8) % 3 == 2;
}

static gguf_type wanted_type(const model_config *c, gguf_format f, gguf_role role, int64_t layer) {
    static const gguf_type types[] = {[GGUF_F16_FILE] = GGUF_TYPE_F16,
                                      [GGUF_BF16_FILE] = GGUF_TYPE_BF16,
                                      [GGUF_F32_FILE] = GGUF_TYPE_F32,
                                      [GGUF_Q8_0_FILE] = GGUF_TYPE_Q8_0,
                                      [GGUF_Q4_K_FILE] = GGUF_TYPE_Q4_K};
    if (f != GGUF_Q4_K_FILE) return types[f];
    switch (role) {
    case GGUF_ROLE_OUTPUT: return GGUF_TYPE_Q6_K;
    case GGUF_ROLE_EMBED: return c->tied && !gguf_needs_output(c) ? GGUF_TYPE_Q6_K : GGUF_TYPE_Q4_K;
    case GGUF_ROLE_V:
    case GGUF_ROLE_DOWN: return has_more_bits(layer, c->n_layers) ? GGUF_TYPE_Q6_K : GGUF_TYPE_Q4_K;
    default: return GGUF_TYPE_Q4_K;
    }
}

gguf_type gguf_tensor_type(const model_config *c, gguf_format f, gguf_role role, int64_t layer, bool is_vector,
                           int64_t columns) {
    if (is_vector || role == GGUF_ROLE_POSITIONS) return GGUF_TYPE_F32;
    gguf_type t = wanted_type(c, f, role, layer);
    if (columns % gguf_layout_of(t).block) t = t == GGUF_TYPE_Q4_K ? GGUF_TYPE_Q5_0 : GGUF_TYPE_Q8_0;
    return columns % gguf_layout_of(t).block ? GGUF_TYPE_F16 : t;
}
