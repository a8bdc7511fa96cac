#pragma once
/* model.h - one decoder family, described by a table, written as forward ops.
 *
 * The families differ in a handful of choices (norm, positions, biases, activation, qk-norm, windows); a
 * variant is one row of choices and the builder is one function. Weights are packed where one product serves several
 * (q|k|v, gate|up); each parameter knows the Hugging Face tensors that make it up.
 *
 *     model_config c = *model_preset_find("gpt2");
 *     program p; net n;
 *     program_init(&p);
 *     TRY(model_build(&n, &p, &c, &(net_options){.batch = 4, .seq_len = 1024, .compute = DTYPE_BF16}));
 *     ... passes ...
 *     net_fini(&n); program_fini(&p);
 *
 * On a mesh with several tensor ranks the program is that of one of them. Of q|k|v, gate|up and the vocabulary it has its
 * rows, of the products behind them (attention output, down) its columns; between these products the tokens are cut, so
 * that norms, residuals and what the forward leaves behind are a share as well:
 *
 *     norm (N/tp, C) -> ALL_GATHER -> rows of w ... columns of w -> REDUCE_SCATTER -> + residual (N/tp, C)
 *
 * Sequence ranks share each row of tokens (sequence_token). Every op but attention works on tokens alone; for attention
 * ranks either exchange tokens for heads and back (ALL_TO_ALL), so that each looks back through whole rows with its own heads:
 *
 *     HEAD_PARTS -> ALL_TO_ALL -> TOKEN_PARTS -> ATTENTION -> TOKEN_PARTS -> ALL_TO_ALL -> HEAD_PARTS
 *
 * or keep their queries, and keys and values go round: any number of heads, and no rank ever has those of a whole row.
 *
 *     KV_PART -> ATTENTION_RING -> SHIFT, ATTENTION_RING -> ... as often as there are ranks
 *
 * A parameter of a rank is one or more slices of the model's, and knows where they belong (cut.c).
 *
 * On a mesh with several pipeline stages the program has the layers of one of them (stages.c), one or more runs of them called
 * chunks. What comes from the chunk before is a RECV, what goes to the next a SEND:
 *
 *     embedding or RECV -> layers of the chunk -> SEND, or the loss
 */
#include "format/format.h"
#include "net/net.h"

typedef enum model_family {
#define FAMILY(id, ...) FAMILY_##id,
#include "model/families.def"
#undef FAMILY
    FAMILY_COUNT
} model_family;

/* What a critic makes the value of a token from its last hidden state h with.
 *     mlp      h -> C/4 -> C/8 -> 1 with GELU between them; the last layer begins with zeros
 *     linear   h -> 1
 *     sigmoid  the sigmoid of that: between 0 and 1 */
typedef enum value_head {
    VALUE_HEAD_NONE,
    VALUE_HEAD_MLP,
    VALUE_HEAD_LINEAR,
    VALUE_HEAD_SIGMOID,
    VALUE_HEAD_COUNT
} value_head;
const char *value_head_name(value_head h); /* "mlp" */

/* Longrope: what the inverse frequencies of the rotated pairs are divided by; rope_options points to the list that a run needs. */
enum { LONG_ROPE_PAIRS_MAX = 128 };
typedef struct long_rope {
    int64_t n; /* pairs: half of model_rotary_dim */
    double short_factors[LONG_ROPE_PAIRS_MAX], long_factors[LONG_ROPE_PAIRS_MAX];
} long_rope;

typedef struct model_config {
    const char *name;
    model_family family;
    int64_t vocab, hidden, n_layers, n_heads, n_kv_heads, head_dim, ffn, max_positions;
    double norm_eps;
    bool tied;
    bool is_16_bit;      /* published in bfloat16 or float16: as config.json says, or the row of a preset */
    rope_options rope;   /* unused by learned positions */
    double rotary_share; /* of a head, its first dimensions, which rope turns; 0: all of them */
    long_rope long_rope;
    /* Layers whose queries see so many keys, themselves the last: those from window_from on, but every full_every-th layer of
     * the model sees all. 0: no layer has a window; every one of those has. */
    int64_t window, window_from, full_every;
    double local_theta;  /* of rope in layers with a window, without stretching; 0: as in the others */
    double query_scalar; /* scores are divided by its root; 0: head_dim */
    double attention_softcap, final_softcap; /* of scores and of logits; 0: none */
    /* Multi-token prediction: the last so many layers are heads, each of which reads the output of the layers before all of
     * them (the trunk); head k predicts the k-th token from here. 0 and 1: an ordinary model. */
    int64_t mtp_heads;
    /* How the weight files of this model are laid out. */
    int64_t file_heads;    /* heads they hold, as extra_heads.* behind the first; 0 and 1: an ordinary model's files */
    bool meta_files;       /* Meta's names, and rows of q and k in Meta's order (meta.c); else Hugging Face's */
    value_head value_head; /* a critic: values of tokens instead of the unembedding */
} model_config;
/* The embedding's table is the unembedding as well; a critic has none. */
static inline bool model_is_tied(const model_config *c) { return c->tied && !c->value_head; }
/* Dimensions of a head that rope turns. */
static inline int64_t model_rotary_dim(const model_config *c) {
    return c->rotary_share > 0 ? (int64_t)((double)c->head_dim * c->rotary_share) : c->head_dim;
}
/* Losses of a training step: one for each head. */
static inline int model_loss_count(const model_config *c) { return c->mtp_heads > 1 ? (int)c->mtp_heads : 1; }
/* The first layer that is a head: so many layers has the trunk. n_layers of an ordinary model. */
static inline int64_t model_first_head(const model_config *c) {
    return c->mtp_heads > 1 ? c->n_layers - c->mtp_heads : c->n_layers;
}
/* Trunk and first head: the layers that generate and are evaluated. */
static inline int64_t model_main_layers(const model_config *c) {
    return c->mtp_heads > 1 ? c->n_layers - c->mtp_heads + 1 : c->n_layers;
}
/* Of a layer; 0: it sees all. Heads after the first are the last layer of the ordinary model once more. */
static inline int64_t model_layer_window(const model_config *c, int64_t layer) {
    layer = MIN(layer, model_main_layers(c) - 1);
    bool is_full = layer < c->window_from || (c->full_every && (layer + 1) % c->full_every == 0);
    return is_full ? 0 : c->window;
}
/* The smallest p for which layers l and l + p of trunk and first head are always of one kind: 1 where all are alike, the number
 * of these layers where they do not repeat. */
int64_t model_period(const model_config *c);
model_config model_main_config(const model_config *c); /* of the ordinary model that these are */

/* How the weight files of a family name its tensors, without ".weight" and ".bias"; %d stands for the layer. */
typedef struct tensor_names {
    const char *prefix; /* that files of the bare decoder leave out */
    const char *embed, *positions, *final_norm, *unembed;
    /* Norms before attention and MLP and after them, where there are any; qkv: three tensors, or one with all rows. */
    const char *norm1, *qkv[3], *q_norm, *k_norm, *out, *norm1_after, *norm2, *norm2_after;
    const char *up[2], *down; /* up: gate and up, or one with all rows, which of gelu without a gate are those of up */
} tensor_names;

/* How config.json says which layers have a window. */
typedef enum window_keys {
    WINDOWS_NONE,  /* it does not: no layer has one */
    WINDOWS_ALL,   /* sliding_window: every layer */
    WINDOWS_FROM,  /* use_sliding_window: layers from max_window_layers on; or layer_types */
    WINDOWS_TYPES, /* layer_types; where absent, every layer but each usual_full_every-th */
} window_keys;

/* What a family is made of: a row of families.def. */
typedef struct model_traits {
    const char *name;         /* "gpt2": also model_type in config.json */
    const char *architecture; /* "GPT2LMHeadModel": in `architectures` of config.json */
    const tensor_names *names;
    bool layernorm;             /* else rmsnorm */
    bool learned_positions;     /* else rope */
    bool gelu;                  /* one up projection and gelu; else gate|up and swiglu */
    bool gelu_gate;             /* gate|up with gelu, its tanh form, in the place of silu */
    bool scaled_embed;          /* rows of the embedding times the root of their width */
    float gain_offset;          /* added to the gains of norms, which begin as 1 less it */
    bool qkv_bias, other_bias;  /* biases on q|k|v; on every other projection */
    bool qk_norm, wide_qk_norm; /* of q and k: every head by itself, or wide: all heads as one row */
    bool transposed_files;      /* weight files hold (in, out), as GPT-2's Conv1D does */
    bool scaled_residual_init;  /* projections into the residual stream start smaller by sqrt(2 L) */
    /* what its config.json has */
    bool gpt2_config;                                    /* GPT-2's keys; else Llama's */
    bool kv_heads_optional;                              /* absent: one per query head */
    const char *no_attention_bias_key, *no_mlp_bias_key; /* must be false where it is there; NULL: not looked at */
    window_keys windows;
    int64_t usual_window; /* where sliding_window is absent; 0: none */
    int64_t usual_full_every;
    bool tied;                        /* where tie_word_embeddings is absent */
    bool long_rope_alone;             /* no other way of stretching positions */
    bool partial_rope;                /* partial_rotary_factor */
    int64_t usual_original_positions; /* original_max_position_embeddings; 0: as config.json has it */
    bool two_ropes;                   /* rotary parameters of each type of layer */
    const char *activation_key;       /* "hidden_act" unless given */
    bool query_scalar_key;            /* query_pre_attn_scalar, usually 256 */
    double usual_eps, usual_theta;    /* 1e-6 and 10000 unless given */
    double usual_attention_softcap, usual_final_softcap; /* where the key is absent */
    bool attention_softcap_key, final_softcap_key;       /* it has them at all */
    int64_t usual_head_dim;                              /* where head_dim is absent; 0: an equal share of the width */
} model_traits;
const model_traits *model_family_traits(model_family f);

const model_config *model_preset_find(const char *name); /* NULL when unknown */
const model_config *model_preset_at(size_t i);           /* NULL at the end */
status model_config_check(const model_config *c);        /* shapes that cannot be built, named */
/* Do all linear layers have rows that a GPU multiplies as codes? */
bool model_rows_fit_codes(const model_config *c);
uint64_t model_param_count(const model_config *c);

/* Hugging Face's config.json. What ralo does not compute is refused with file, key, what was found and what is expected.
 * The name is the last part of dir and points into it; `path` is shown in messages. */
status model_config_read(model_config *out, const char *dir); /* dir/config.json, or else Meta's dir/params.json */
status model_config_from_json(model_config *out, const json_t *root, const char *name, const char *path);
json_t *model_config_to_json(const model_config *c); /* without dtype and token ids; the caller takes it */
bool model_hub_name(const char *text);               /* ORG/NAME, as the Hugging Face hub names a model */
/* Appends the directory in the cache of huggingface_hub that holds this model; false: it is not there. (hub.c) */
bool model_hub_find(const char *name, strbuf *out);
bool model_dir_is(const char *dir); /* it holds config.json, or Meta's params.json */

/* ---- meta.c: Meta's layout of a Llama, ordinary or with prediction heads ------------------------------------------------ */

status model_config_from_meta(model_config *out, const json_t *root, const char *name, const char *path);
/* params.json; ERR_INPUT: Meta's layout has no place for this model. */
status model_config_to_meta(const model_config *c, json_t **out);
/* Meta's name of a tensor that Hugging Face's files call so (a format with one %d); NULL: it has none. *interleaved: rows of a
 * head are in the order x0 y0 x1 y1, where Hugging Face has x0 x1 .. y0 y1. */
const char *meta_tensor_name(const char *format, bool *interleaved);
/* Where row `row` of such a tensor stands in Meta's file. */
static inline int64_t meta_row(int64_t row, int64_t head_dim) {
    int64_t first = row / head_dim * head_dim, at = row - first, half = head_dim / 2;
    return first + at % half * 2 + at / half;
}

/* ---- lora.c: adapters beside frozen linear layers ---------------------------------------------------------------------
 *
 * LoRA: y = x W^T + scale (dropout(x) A^T) B^T with W frozen, A (rank, in) and B (out, rank) trained. A packed projection
 * (q|k|v, gate|up) has an adapter for each of its modules that is adapted; their A are packed by rows, and so are their B. */

/* The linear layers of a block by their place in tensor_names; a set of them is a mask of 1 << module. */
typedef enum lora_module {
    LORA_MODULE_QKV,                       /* q, k, v; the first alone where the files have them as one */
    LORA_MODULE_OUT = LORA_MODULE_QKV + 3, /* attention output */
    LORA_MODULE_UP,                        /* gate, up; the first alone where there is no gate */
    LORA_MODULE_DOWN = LORA_MODULE_UP + 2,
    LORA_MODULE_COUNT
} lora_module;
float lora_scale(const lora_options *o);
/* Is the model without its adapters the one that a run begins with? Of PiSSA it is not. */
bool lora_base_is_beginning(const lora_options *o);
lora_options lora_exported(const lora_options *o); /* what an export has: with pissa an adapter of twice the rank */
/* "all-linear", or modules separated by commas: the last parts of their names in weight files (q_proj, mlp.c_proj), or q, k, v,
 * o, gate, up, down. ERR_INPUT names those that the model has; `where` is the setting or the file and key. */
status lora_modules_parse(const model_config *c, const char *text, const char *where, uint32_t *modules);
/* The last part of a module's name in weight files: "q_proj"; NULL where the family has no such module. */
uint64_t lora_param_count(const model_config *c, const lora_options *o); /* of all adapters */
const char *lora_module_name(const model_config *c, lora_module m);
/* The modules as PEFT's target_modules: sorted names that lora_modules_parse reads back to the same set. Returns how many. */
size_t lora_targets(const model_config *c, uint32_t modules, const char *out[LORA_MODULE_COUNT]);

uint64_t generation_page_bytes(const model_config *c, const generation_shape *g,
                               dtype compute); /* of one page, all layers */

/* The engine's way to this model, and back to its configuration. */
net_source net_source_of(const model_config *c);
static inline const model_config *model_of(const net_source *s) { return (const model_config *)s->description; }
status model_build(net *m, program *p, const model_config *c, const net_options *o);
/* Initial values of elements [first, first + n) of what a rank has; an element of the model is the same whoever has it. */
void model_param_initial(const net_param *p, uint64_t seed, int64_t first, int64_t n, float *out);

/* ---- stages.c: layers as chunks of a pipeline ------------------------------------------------------------------------ */

/* Can the layers be split into these stages? ERR_INPUT says why not. */
status model_stages_check(const model_config *c, int n_stages, int n_virtual);
/* Chunk k has layers first[k] to first[k + 1]; n_chunks + 1 numbers. */
void model_stages_cut(const model_config *c, int64_t seq_len, int n_chunks, int64_t *first);
/* Arithmetic of the slowest stage divided by that of this stage. */
double model_stages_slowest(const model_config *c, int64_t seq_len, int n_stages, int n_chunks, int stage);

/* ---- cut.c: parameters as slices of the model's --------------------------------------------------------------------- */

/* Can `ranks` tensor ranks share this model? ERR_INPUT names what cannot be cut. */
status model_cut_check(const model_config *c, int ranks);
