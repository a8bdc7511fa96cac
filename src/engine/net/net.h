#pragma once
/* net.h - what the engine knows of a model: how to have its program written, and what was written.
 *
 * A net_source stands for a model that the engine never looks into. It says the sizes that a plan counts with, and has
 * functions that write the program of this rank with as many layers as asked for. models/model/model.h makes one of a
 * configuration.
 *
 *     net_source s = net_source_of(&config);
 *     program p; net n;
 *     program_init(&p);
 *     TRY(s.by->write(&n, &p, &s, &(net_options){.batch = 4, .seq_len = 1024, .compute = DTYPE_BF16}));
 *     ... passes ...
 *     net_fini(&n); program_fini(&p);
 */
#include "program/program.h"

/* More than any model has; settings, files and presets are held to it. */
enum { NET_LAYERS_MAX = 1000 };

enum { MTP_HEADS_MAX = 8 };

/* ---- a model to be written -------------------------------------------------------------------------------------- */

typedef struct net_source net_source;
typedef struct net net;
typedef struct net_options net_options;
typedef struct lora_options lora_options;

/* The functions by which a model serves the engine. The models storey implements them in model/source.c. */
typedef struct net_writer {
    /* Writes the program of this rank, and its parameters and inputs into *n; the caller calls net_fini. */
    status (*write)(net *n, program *p, const net_source *s, const net_options *o);
    void (*set_trunk)(net_source *s, int64_t n_layers); /* n_layers: those before the prediction heads */
    uint64_t (*count_params)(const net_source *s);
    uint64_t (*count_adapters)(const net_source *s, const lora_options *o); /* parameters of all adapters */
    status (*adapt_all)(const net_source *s, lora_options *o); /* sets o->modules to all linear layers of the blocks */
    /* Returns the arithmetic of the slowest stage of a pipeline divided by that of this stage. */
    double (*slowest_stage)(const net_source *s, int64_t seq_len, int n_stages, int n_chunks, int stage);
} net_writer;

/* A net_source is copied by value. The engine copies `description` with it and never reads it, as a program does with a
 * sockaddr_storage. */
enum { NET_DESCRIPTION_BYTES = 4096 };
struct net_source {
    const net_writer *by;
    const char *name;         /* "llama3-8b" */
    int64_t n_layers;         /* including the prediction heads */
    int64_t prediction_heads; /* how many of the last layers are heads; 0: an ordinary model */
    int64_t period;           /* layers l and l + period are always of one kind; 1: all layers are alike */
    int64_t vocab, hidden, n_heads, n_kv_heads, head_dim;
    bool tied;           /* the embedding's table is the unembedding as well, where it has one ... */
    bool has_values;     /* ... and not a value head in its place: a critic */
    bool rows_fit_codes; /* all linear layers have rows that a GPU multiplies as codes */
    _Alignas(16) unsigned char description[NET_DESCRIPTION_BYTES];
};
/* Layers before the prediction heads. */
static inline int64_t net_trunk(const net_source *s) { return s->n_layers - s->prediction_heads; }
static inline bool net_is_tied(const net_source *s) { return s->tied && !s->has_values; }
static inline uint64_t net_param_count(const net_source *s) { return s->by->count_params(s); }
/* Can sequence ranks exchange tokens for heads: do they divide the heads that a tensor rank has? */
bool net_heads_divide(int64_t n_heads, int64_t n_kv_heads, const mesh *m);
enum { NET_CODES_UNIT = 64 }; /* of rows_fit_codes */
/* Are codes of this format multiplied as they are, in a program that generates with weights as `asked`? Else they are
 * dequantised before each use: a CPU multiplies int8 alone. */
static inline bool net_multiplies_codes(base_format asked, base_format codes, bool discrete) {
    return asked != BASE_COMPUTE && (discrete || codes == BASE_INT8);
}

/* ---- what may be asked for -------------------------------------------------------------------------------------- */

struct lora_options {
    int64_t rank; /* 0: no adapters, every parameter is trained */
    double alpha, dropout;
    bool rslora;      /* scale = alpha / sqrt(rank) instead of alpha / rank */
    uint32_t modules; /* those that are adapted */
    bool pissa; /* adapters begin as the principal part of the weights, and the base is without it (weights/pissa.h) */
};

/* Generation: sequences live in slots, their keys and values in pages of one cache. */
typedef struct generation_shape {
    int64_t slots;            /* sequences at once; 0: not for generation */
    bool beside_training;     /* in one program with training, over the same parameters; else instead of it */
    int64_t pages, page_size; /* of the cache; tokens per page */
    int64_t context;          /* most tokens of one sequence */
    int64_t prefill_tokens;   /* prompt tokens of one run of SECTION_PREFILL */
    base_format
        weights; /* linear layers are stored as codes, which pass/base.c says how to use, the tables of the vocabulary as int8; not beside training */
    bool lanes;  /* weights are put in the order in which products take them when loaded; CPU, not beside training */
    int64_t heads; /* > 1: prediction heads that generate, those after the first as drafts; else the first alone */
    /* Prompts, completions of each, and the tokens of a prompt that those share; 0 where nothing is shared. */
    int64_t prompts, group, shared_tokens;
} generation_shape;
static inline int64_t generation_heads(const generation_shape *g) { return MAX(g->heads, (int64_t)1); }
int64_t generation_pages_per_slot(const generation_shape *g);
/* Pages with which all slots are at work, the full pages of a prompt stored once for its group. With fewer some
 * wait. */
int64_t generation_pages_wanted(const generation_shape *g);

/* What the responses of a preference are compared with. */
typedef enum reference_kind {
    REFERENCE_NONE,  /* the loss needs none */
    REFERENCE_BASE,  /* the model without its adapters: costs no parameter */
    REFERENCE_COPY,  /* a frozen copy of the model, with parameters of its own */
    REFERENCE_INPUT, /* its losses were computed before, and are an input */
    REFERENCE_KIND_COUNT
} reference_kind;

struct net_options {
    int64_t batch, seq_len;
    dtype compute;                 /* params and activations */
    bool with_eval;                /* also write SECTION_EVAL: forward with losses and argmax */
    bool no_training;              /* no SECTION_MICRO: a program that only evaluates */
    int virtual_stages;            /* chunks of layers of each pipeline stage; 0 is 1 */
    bool token_weights;            /* per-token loss weights as an input */
    lora_options lora;             /* rank > 0: all parameters but the adapters are frozen */
    base_format base;              /* ... and how the frozen linear layers of the blocks are stored */
    critic_options critic;         /* kind: not none: the loss of a critic; config.value_head is one */
    double value_dropout;          /* critic: in its value head */
    preference_options preference; /* kind: not none: losses over pairs of responses */
    policy_options policy;         /* on: the loss of completions with advantages */
    reference_kind reference;      /* of either; with policy.beta 0 it is in SECTION_EVAL alone */
    bool share_prompts; /* an answer may follow a prompt that stands before another one: attention by spans of keys */
    bool z_input;       /* kto: its z is over more rows than those of a micro-batch, and an input */
    selection_options selection; /* kind: not none: tokens are selected by their losses and those of the reference */
    int64_t logits_chunk_bytes;
    mesh mesh; /* of all ranks, and the place of the one whose program is written */
    bool ring; /* sequence ranks use ring attention instead of an exchange of heads */
    /* slots > 0: PREFILL and DECODE are written; beside training with its sections, else with START and nothing
     * else. */
    generation_shape generation;
};

/* ---- what was written ------------------------------------------------------------------------------------------- */

typedef enum param_init { INIT_NORMAL, INIT_ZERO, INIT_ONE, INIT_UNIFORM } param_init;
#define REFERENCE_PREFIX "reference."
typedef enum adapter_part { ADAPTER_NONE, ADAPTER_A, ADAPTER_B } adapter_part;
typedef struct param_part {
    const char *file_name;     /* Hugging Face tensor name */
    int64_t first_row, n_rows; /* rows of the packed parameter it fills, in the model */
    int module;                /* which of the projection's modules it is, or is the adapter of */
    int64_t interleaved;       /* > 0: the rows of each so many are in Meta's order in the file (meta_row) */
} param_part;
/* The part of a parameter on a tensor rank: slices along one dimension, one after the other, possibly followed by rows
 * of padding, which stay zero. Rows (columns) [at, at + n) are [from, from + n) of the whole. */
typedef struct param_slice {
    int64_t at, from, n;
} param_slice;
typedef struct param_cut {
    shape here, whole;
    int dim; /* of the slices; -1: there are none, here is the whole */
    int n_slices;
    param_slice slices[3];
} param_cut;
typedef struct net_param {
    value_id value;
    shape shape; /* cut.here, whatever a data rank holds of it in `value` */
    param_cut cut;
    /* Elements from shared_from on (of those on this rank) are held by n_holders tensor ranks, each of which computes a
     * part of their gradient; the sum belongs to all. The first holder counts them where each element counts once. */
    int64_t shared_from;
    int first_holder, n_holders;
    int unit;      /* 0: of the embedding, 1 + l: of layer l, then the head */
    size_t number; /* in the whole model, in reading order */
    bool is_copy;  /* of a tied table that the stage with the unembedding trains */
    bool frozen;   /* not trained: no gradient, no states, no master */
    /* of a head after the first: no part of the ordinary model, and begins as the first in its files */
    bool of_other_head;
    bool of_value_head; /* of a critic; begins as drawn where the files have none */
    bool
        beside_base; /* trained over a frozen base, and with it in checkpoints and PEFT's files: an adapter, or a value head */
    bool
        of_reference; /* of the frozen copy that a preference compares with; it begins as the parameter without the prefix */
    adapter_part adapter;
    base_format
        base; /* not BASE_COMPUTE: a frozen weight that is stored as codes, each of its parts by itself (pass/base.c) */
    const char *name;
    param_init init;
    float init_std;  /* INIT_UNIFORM: values lie between -init_std and init_std */
    bool decay;      /* weight decay: matrices and embeddings, not norms and biases */
    bool transposed; /* in files */
    int n_parts;
    param_part parts[3];
} net_param;

/* Inputs and outputs of PREFILL or DECODE. Token i is (slots[i], position -doc_start[i]). With several heads, row i of
 * the hidden states that are picked from is that of head i / N at token i % N, and DECODE has room for a token and its
 * drafts in each slot. */
typedef struct generation_section {
    value_id inputs; /* bytes: all that follow, each at its view_offset, so that one copy writes them */
    value_id tokens, doc_start, slots; /* int32 (N) */
    value_id n_tokens;                 /* int32 (1): how many of them there are */
    value_id pick, n_pick; /* PREFILL, several heads: the rows whose logits are wanted, int32 (R), and how many */
    value_id logits;       /* fp32 (R, V), one row per pick; DECODE: (N, V), one per token */
    value_id draws, drawn; /* of those rows, as DRAW_TOKENS has them */
} generation_section;

/* One of several losses of a step. */
typedef struct net_loss {
    value_id targets; /* int32 (N) */
    value_id weights; /* fp32 (N), of each token's loss; NO_VALUE: all 1 */
} net_loss;

struct net {
    net_source source;
    base_format codes; /* linear layers of a program that generates, as generation_shape.weights asks */
    bool lanes;        /* as generation_shape.lanes asks */
    net_param *params; /* those of this stage; after them, up to n_all_params, those of other stages, without a value */
    size_t n_params, n_all_params;
    int n_chunks;                                          /* of layers, of all stages; 1: there is no pipeline */
    value_id tokens, targets, doc_start, weights, scalars; /* inputs of one micro-batch */
    int n_losses;
    float embed_scale; /* of the rows of the embedding; 0: 1 */
    selection_options selection;
    net_loss loss[MTP_HEADS_MAX]; /* the first has targets and weights from above */
    /* Sequence ranks: those are of this rank's tokens, doc_start so that i % (T / S) - doc_start[i] is the position,
     * and this is doc_start of all tokens, in their order. NO_VALUE where no attention is over whole rows that are
     * shared: doc_start serves both. */
    value_id doc_start_all;
    value_id spans[2]; /* share_prompts: int32 (2 N), keys of its own document and of a shared prompt; see attr.spans */
    value_id eval_values; /* critic: of all tokens, fp32 (N); it has no losses and no argmax */
    value_id losses;      /* of SECTION_MICRO's UNEMBED_LOSS: where autodiff starts; policy: kept after it */
    value_id segments,
        reference; /* critic, preference, policy: which response a token belongs to; the reference's losses as an input */
    value_id advantages, old,
        rollout;             /* policy: of every token; old, rollout: NO_VALUE where the loss has no use for them */
    value_id z;              /* preference: kto's z, where it is an input; fp64 (1) */
    value_id loss_sums;      /* preference, policy: of the examples of a step; else autodiff adds those of tokens */
    value_id eval_reference; /* preference, policy: the reference's, as eval_losses; NO_VALUE where it is an input */
    /* Of all tokens, on every stage; those of sequence ranks one behind the other. A policy has no argmax. */
    value_id eval_losses, eval_argmax;
    generation_section prefill, decode; /* generation */
    value_id page_table;                /* int32 (slots, pages of a slot) */
    arena memory;
};
void net_fini(net *n);
bool net_trains_tied(const net *m); /* one table for embedding and unembedding that is not frozen */
/* Does this rank train it? A copy is trained by the stage that has the unembedding. */
static inline bool net_param_trained(const net_param *p) { return !p->frozen && !p->is_copy; }

/* ---- cut.c: parameters as slices of the model's ----------------------------------------------------------------- */

/* Where element `at` of what the rank has stands in the whole, -1 in padding; *n: it and how many behind it are a
 * run. */
int64_t param_cut_place(const param_cut *c, int64_t at, int64_t *n);
typedef struct param_run {
    int64_t here, whole, n; /* elements [here, here + n) of what the rank has are [whole, whole + n) of the model's */
} param_run;
/* Walks the runs that lie in [begin, end) of the whole. Start with an empty run; false: there is none left. */
bool param_cut_next(const param_cut *c, int64_t begin, int64_t end, param_run *run);
/* How many of its leading elements a tensor rank counts for: each element of the model has one rank that does. */
int64_t net_param_counted(const net_param *p, int tensor_index);
