#pragma once
/* program.h - a training step as data: a flat list of ops over values.
 *
 * Promises
 *   - Nothing here knows a device, a rank or an address; a program can be built for a machine that is not here.
 *   - A program is several sections over one table of values. A section runs as a whole: PREPARE computes what all
 *     micro-batches of a step read and none of them changes, MICRO is forward and backward of one micro-batch (in a
 *     pipeline of all of a step), UPDATE the optimizer, EVAL a forward with losses, PREFILL and DECODE the two halves of
 *     generation. Values of one section share bytes with those of other sections, because only one section
 *     runs at a time. TURN is the exception: it repeats other sections one after the other, over their values. PREFILL and
 *     DECODE are a group: the cache keeps its bytes from one run of them to the next, and beside training no longer.
 *   - program_verify proves shapes, dtypes, define-before-use and single write for the program after any pass.
 *
 *     program p;
 *     program_init(&p);
 *     value_id x = program_value(&p, "x", DTYPE_F32, SHAPE(8, 64), ROLE_ACTIVATION, SECTION_MICRO);
 *     ...
 *     op *o = program_emit(&p, OP_GELU, SECTION_MICRO);
 *     op_in(o, GELU_X, x); op_out(o, GELU_Y, y);
 *     TRY(program_verify(&p));
 *     program_print(&p, stdout);
 *     program_fini(&p);
 */
#include "program/operands.h" /* made from ops.def: LINEAR_X, ADAMW_M ... */
#include "program/policy.h"
#include "program/critic.h"
#include "program/draw.h"
#include "program/fp8_scale.h"
#include "program/preference.h"
#include "program/select.h"
#include "tensor/tensor.h"

typedef enum op_kind {
#define OP(id, ...) OP_##id,
#include "program/ops.def"
#undef OP
    OP_COUNT
} op_kind;

/* What an op is. A class decides the price of an op (plan/cost.c) and which passes take it up. */
typedef enum op_class {
    OP_CLASS_PRODUCT,     /* one matrix product: rules.h has product_<OP> */
    OP_CLASS_LOGITS,      /* products with the vocabulary in chunks of tokens: rules.h has logits_<OP> */
    OP_CLASS_ATTENTION,   /* scores of tokens against each other */
    OP_CLASS_ACTIVATION,  /* the function between the two products of an MLP, and its backward */
    OP_CLASS_NORM,        /* a norm of rows, with a sum in front or without */
    OP_CLASS_EMBEDDING,   /* rows of a table, or their gradient */
    OP_CLASS_ROUNDING,    /* makes the 8-bit numbers of a tensor */
    OP_CLASS_UPDATE,      /* writes gradients, parameters or states, with stochastic rounding */
    OP_CLASS_ELEMENTWISE, /* any other arithmetic on each number, sums included */
    OP_CLASS_COPYING,     /* moves bytes between tiers or places */
    OP_CLASS_MESSAGE,     /* between ranks: rules.h has sent_<OP> */
} op_class;

typedef enum role {
    ROLE_INPUT,
    ROLE_PARAM,
    ROLE_GRAD,
    ROLE_STATE,
    ROLE_ACTIVATION,
    ROLE_WORK,
    ROLE_COMM,
    ROLE_CACHE, /* keys and values of generation */
    ROLE_COUNT
} role;
/* Where bytes live. The first device is TIER_DEVICE; layers placed by hand may lie on others, each with its own arena. */
typedef enum tier { TIER_DEVICE, TIER_HOST, TIER_NVME, TIER_DEVICE_1, TIER_DEVICE_2, TIER_DEVICE_3, TIER_COUNT } tier;
enum { DEVICES_MAX = 4 };
/* Ops of one stream run in the order of the list; streams run in parallel and wait where op.wait says so. */
typedef enum stream {
    STREAM_COMPUTE, /* kernels on a device */
    STREAM_HOST,    /* kernels on host memory */
    STREAM_H2D,     /* copies to a device */
    STREAM_D2H,     /* copies from a device */
    STREAM_READ,    /* nvme to host */
    STREAM_WRITE,   /* host to nvme */
    STREAM_COMM,
    STREAM_COUNT
} stream;
typedef enum section {
    SECTION_START,
    SECTION_LOADED,  /* once, when the parameters are there and before the first step */
    SECTION_PREPARE, /* once per step, before its first micro-batch */
    SECTION_MICRO,
    SECTION_EVAL,
    SECTION_UPDATE,
    SECTION_TURN,    /* UPDATE of one step, PREPARE and the first MICRO of the next, in one go; see pass/turn.c */
    SECTION_PREFILL, /* generation: a chunk of prompt tokens of several sequences */
    SECTION_DECODE,  /* generation: one token of every sequence */
    SECTION_COUNT
} section;

/* A file is read and written in whole sectors: values on nvme begin at one, and a transfer also moves the bytes after the
 * value in its last sector, on both sides. */
enum { NVME_SECTOR = 4096 };
static inline size_t sectors_up(size_t n_bytes) { return align_up(n_bytes, NVME_SECTOR); }

const char *role_name(role r); /* "params", "grads" ...: the keys of memory.by_role */
const char *tier_name(tier t);
bool tier_is_device(tier t);
tier tier_of_device(int index); /* 0 .. DEVICES_MAX - 1 */
const char *stream_name(stream s);
const char *section_name(section s);
bool section_of_step(section s); /* is it a part of a training step? TURN is not: it repeats parts of two */
bool section_of_generation(section s);

typedef uint32_t value_id; /* index into program.values; 0 is "none" */
#define NO_VALUE 0u

typedef struct value {
    const char *name; /* unique in the program: "layers.3.attn.qkv", its gradient "d.layers.3.attn.qkv" */
    dtype type;
    shape shape;
    role role;
    tier tier;
    section section;      /* where a transient value lives; ignored when persistent */
    bool persistent;      /* keeps its bytes between sections: params, grads, states, inputs */
    bool of_generation;   /* keeps them between runs of PREFILL and DECODE; every other section may overwrite them */
    int layer;            /* -1 outside the blocks */
    size_t alignment;     /* of its offset; 0: as the target says */
    value_id view_of;     /* these bytes are part of that value's ... */
    size_t view_offset;   /* ... starting here */
    value_id gradient;    /* of this value, written by autodiff */
    value_id in_place_of; /* the value whose bytes this one takes over, written by layout; NO_VALUE: bytes of its own */
    size_t offset;        /* in its tier's arena, written by layout; VALUE_NOT_PLACED before */
} value;
#define VALUE_NOT_PLACED SIZE_MAX

/* The mesh has four axes: every rank has an index on each, and a group is the ranks that differ on one axis only. World rank
 * = ((pipeline * D + data) * S + sequence) * T + tensor, with the sizes D, S, T. */
typedef enum axis { AXIS_DATA, AXIS_TENSOR, AXIS_PIPELINE, AXIS_SEQUENCE, AXIS_COUNT } axis;
typedef struct mesh {
    int size[AXIS_COUNT], index[AXIS_COUNT]; /* sizes of 0 are 1: a zeroed mesh is one rank alone */
} mesh;
const char *axis_name(axis a);
int mesh_size(const mesh *m, axis a);
int mesh_world(const mesh *m);          /* ranks in all */
int mesh_rank(const mesh *m);           /* world rank of this index */
void mesh_set_rank(mesh *m, int rank);  /* sets the index of that world rank */
int mesh_stride(const mesh *m, axis a); /* from one rank of a group to the next, in the world */
/* Ranks that share a row of tokens cut it into two chunks each; a rank has one from the front and its counterpart from the
 * back, so that causal attention costs each rank the same. Returns the position in the row of token i of that rank. */
int64_t sequence_token(int64_t i, int rank, int n_ranks, int64_t seq_len);

/* Tags of SEND and RECV on the pipeline axis. */
enum {
    TAG_FORWARD,   /* hidden states, to the stage with the next layers */
    TAG_BACKWARD,  /* their gradient, back */
    TAG_EMBED,     /* tied tables: the embedding's gradient, to the stage that has the unembedding */
    TAG_TABLE,     /* ... and the table that it has updated, back */
    TAG_ANSWER,    /* evaluation: losses and best tokens, from the last stage to all others */
    TAG_REFERENCE, /* hidden states of a frozen reference, directly before those of the model; no gradient comes back */
};

/* How positions become angles; llama3 stretches low frequencies as Llama 3.1 does, yarn those that turn less than beta_fast times
 * in the original positions, dynamic the base where a row is longer than the original positions, longrope every pair by a factor of
 * its own. */
typedef enum rope_type {
    ROPE_DEFAULT,
    ROPE_LLAMA3,
    ROPE_LINEAR,
    ROPE_YARN,
    ROPE_DYNAMIC,
    ROPE_LONG,
    ROPE_TYPE_COUNT
} rope_type;
typedef struct rope_options {
    rope_type type;
    double theta;
    double factor, low_freq_factor, high_freq_factor; /* llama3; the other types use factor */
    int64_t original_max_positions;
    double beta_fast, beta_slow; /* yarn */
    double attention_factor;     /* yarn, longrope: of cosines and sines; 0: 1 */
    const double *pair_factors;  /* longrope: of each pair; memory of the program */
    bool untruncated;            /* yarn: the bounds between kept and stretched are no whole numbers */
} rope_options;
/* The inverse frequency of pair i of head_dim / 2, in double, in a table of n_positions rows; head_dim: dimensions that are turned. */
double rope_inverse_frequency(const rope_options *r, int head_dim, int64_t n_positions, int i);
static inline double rope_amplitude(const rope_options *r) { return r->attention_factor > 0 ? r->attention_factor : 1; }

/* Constants of an op. Each op reads the few that concern it. */
typedef struct op_attr {
    int64_t batch, seq_len;            /* attention, rope, embed: N = batch * seq_len */
    int n_heads, n_kv_heads, head_dim; /* attention, rope, qk_norm */
    float eps;                         /* norms, adamw */
    float scale;                       /* attention: 1 / sqrt(D); lora_*; embed: of the table's rows, 0: 1 */
    float gain_offset;                 /* rms norms: added to every gain */
    bool wide;                         /* qk_norm: one norm over all q heads and one over all k heads */
    bool gelu_gate;                    /* swiglu: gelu, its tanh form, in the place of silu */
    int64_t window;       /* attention: a query sees so many keys, itself the last; 0: all of its document */
    float softcap;        /* attention: scores become softcap * tanh(score / softcap); 0: they stay */
    bool inverse;         /* rope */
    rope_options rope;    /* rope_table */
    int64_t chunk_bytes;  /* unembed_loss: budget for one chunk of logits and their gradient */
    float logits_scale;   /* unembed_loss, _stats, _grad: logits are multiplied by it; 0: they are not */
    float logits_softcap; /* unembed_*: before that logits become cap * tanh(logit / cap); 0: they stay */
    float beta1, beta2, weight_decay; /* adamw; weight_decay 0 on norms and biases */
    float lr_scale;                   /* adamw: multiplies the learning rate; 0: it does not */
    uint64_t noise_key;               /* stochastic rounding, dropout: which tensor this is */
    /* accumulate, grad_sumsq, adamw: place of a part in the whole parameter; dropout: in the tensor */
    int64_t first_element;
    /* embed, unembed_*: ranks share the vocabulary. Row 0 of the table is id first_id, and padding follows n_ids rows. vocab
     * is the size of the whole; 0: the table is the whole. */
    int64_t vocab, first_id, n_ids;
    /* embed: only these rows get positions, because ranks share the tokens; position_bwd: row 0 of dy is that token. 0: all
     * do. */
    int64_t first_token, n_tokens;
    bool counts_part; /* grad_sumsq: elements of the parameter from `counted` on are another rank's */
    int64_t counted;
    base_format base_format; /* dequantize, linear_codes: how the codes are stored */
    bool lanes;              /* linear, unembed_logits, embed: the weight is in the order of lanes (pass lanes) */
    bool over_tokens;        /* linear8: the gradient of a weight, a sum over all tokens */
    bool power;              /* quantize, swiglu8, rmsnorm8: scales are powers of two */
    bool square;             /* quantize_blocks: a scale for 128 x 128 numbers, not for 128 of a row */
    bool fp8;                /* attention: its two products are of 8-bit numbers */
    bool adapter;            /* linear and its gradients: of an adapter, which stays in the compute dtype */
    int first_part, n_parts; /* sum_parts: which of them */
    /* lora_*: n_parts (1 to LORA_PARTS) products side by side. Part i has these columns of y or dy, in ascending order, columns
     * i r .. (i + 1) r of xa, and the next part_columns[i] rows of b. scale multiplies the products.
     * linear_codes: parts that were quantised by themselves; part i is these rows of w, columns of y. */
    int64_t part_first[3], part_columns[3];
    float rate; /* dropout: the probability of 0 */
    /* dropout: x begins at first_element of its tensor, which is a whole row. It is a part of a wider tensor, whose columns
     * first_column to first_column + C these are; 0: it is the whole.
     * Sequence ranks (index of group_size, seq_len tokens each) draw for their tokens of the whole rows. */
    int64_t all_columns, first_column;
    float clip;                /* clip: largest global norm, 0 = never */
    bool normalize_by_weights; /* clip: divide by the sum of weights instead of valid tokens */
    /* Several losses over one model: loss_reduce writes the sums of loss `loss` of n_losses, clip adds them up. 0: one. adds:
     * the gradient of the unembedding is added to that of the losses before this one. */
    int loss, n_losses;
    bool adds;
    axis axis;      /* communication: the group */
    int group_size; /* ... and how many ranks it has */
    int peer, tag;  /* send, recv, attention_ring: rank in the group; which of several messages */
    int index;      /* attention_ring, dropout, select_tokens: this rank's place in the group */
    bool
        spans; /* attention_ring: two steps on one rank; doc_start (2 N) has the first key of every token, then the end */
    bool sigmoid; /* value, value_bwd */
    critic_options critic;
    preference_options preference;
    policy_options policy;
    selection_options selection; /* select_tokens */
} op_attr;

/* The scales of an e4m3 tensor (n_rows, n_columns), multiples of FP8_BLOCK, in blocks: their shape and where they lie. Rows of
 * square ones are padded to a multiple of 4, with ones. */
shape fp8_scales_shape(int64_t n_rows, int64_t n_columns, bool square);
fp8_blocks fp8_blocks_of(int64_t n_rows, int64_t n_columns, bool square);

#define OP_MAX_IN 9
#define OP_MAX_OUT 7
typedef struct op {
    op_kind kind;
    section section;
    stream stream;
    tier at;    /* where it runs; its operands are there. A COPY is the exception: it connects two tiers */
    int layer;  /* -1 outside the blocks */
    bool again; /* repeats an op of the forward: written by recompute */
    value_id in[OP_MAX_IN], out[OP_MAX_OUT];
    value_id work; /* scratch bytes, given by the workspace pass */
    /* Written by the waits pass: how many ops of each other stream, counted in this section, must be done before. */
    uint32_t wait[STREAM_COUNT];
    /* int32 (1): how many leading rows of the op are in use in this run; NO_VALUE: all. A value and not a constant, so that a
     * partly filled step costs only its rows and is still the planned program. A kernel may compute the other rows too, which
     * nobody reads; they must not influence the rows in use. Where it is given, the bits of a row depend on that row alone,
     * never on the number of others. */
    value_id rows;
    op_attr attr;
} op;

typedef struct program {
    arena memory; /* names and other small things */
    value *values;
    size_t n_values, values_capacity; /* values[0] is unused */
    op *ops;                          /* sections in order, each contiguous */
    size_t n_ops, ops_capacity;
    int current_layer;              /* stamped on new values and ops; -1 outside the blocks */
    size_t arena_bytes[TIER_COUNT]; /* written by layout: the exact peak of each tier */
} program;

/* What changes from step to step reaches the kernels through this one input value, so that a captured step can be
 * replayed with new numbers. Host and device see the same 64 bytes. */
typedef struct step_scalars {
    float lr;
    float seed;                  /* multiplies dlogits: 1, or the fp16 loss scale times a power of two */
    float grad_unscale;          /* undoes seed; the division by the token count happens in CLIP */
    float bias1, bias2;          /* AdamW: 1 - beta^t */
    uint32_t step;               /* 1-based; keys the stochastic rounding */
    uint32_t micro;              /* 0-based micro-batch inside the step */
    uint32_t noise_lo, noise_hi; /* run seed for stochastic rounding and dropout */
    uint32_t micro_of_all;       /* this micro-batch among those of all data ranks in the step; keys dropout */
    float one, keep;             /* 1, and how much of what accumulators hold stays: 0 where micro is 0, else 1 */
    uint32_t reserved[4];
} step_scalars;
_Static_assert(sizeof(step_scalars) == 64, "one cache line");
step_scalars step_scalars_of(uint32_t step,
                             uint32_t micro); /* of that micro-batch; nothing scaled, bias 1, the rest 0 */

enum { LORA_PARTS = 3, LORA_RANK_MOST = 512 }; /* parts of a LORA_UP; its largest r */
#define NORM_BLOCK 2048 /* elements per fp64 partial sum of the global norm; where parameters may be cut */
#define CLIP_LANES 1024 /* sums that CLIP adds the partial sums in, before it folds them in halves */
#define STATE_BLOCK 256 /* elements per scale of 8-bit optimizer states */
_Static_assert(NORM_BLOCK * 2 % NVME_SECTOR == 0, "16-bit numbers too are cut where a sector begins");
enum { CLIP_NORM, CLIP_FACTOR, CLIP_SKIP, CLIP_LOSS, CLIP_COUNT = 8 }; /* fields of the `clip` value */
enum { STAT_MAX, STAT_SUM, STAT_TARGET, STAT_ARGMAX };                 /* of one row of logits: see UNEMBED_STATS */

void program_init(program *p);
void program_fini(program *p);
value_id program_value(program *p, const char *name, dtype t, shape s, role r, section where);
value_id program_persistent(program *p, const char *name, dtype t, shape s, role r);
value_id program_generation_value(program *p, const char *name, dtype t, shape s, role r); /* value.of_generation */
value_id program_view(program *p, const char *name, value_id of, size_t byte_offset, shape s);
op *program_emit(program *p, op_kind kind, section where); /* valid until the next emit */
void op_in(op *o, int i, value_id v);
void op_out(op *o, int i, value_id v);
/* An op of this kind in the place of `o`: its section, layer and attributes, no operands. */
op op_instead(const op *o, op_kind kind);
/* For code that serves up to four ops with this operand at the same index: asserts that, so that the name of the first may be
 * used. */
#define SAME_PLACE(first, ...) SAME_PLACE_OF_4(first, __VA_ARGS__, first, first, first)
#define SAME_PLACE_OF_4(a, b, c, d, ...)                                                 \
    _Static_assert((int)(a) == (int)(b) && (int)(a) == (int)(c) && (int)(a) == (int)(d), \
                   #a " has another place in an op that shares its kernel")
value *program_get(const program *p, value_id id);
size_t value_bytes(const value *v);
value_id program_root(const program *p, value_id id, size_t *byte_offset); /* follows views to the bytes */
tier program_tier(const program *p, value_id id);                          /* of its bytes: that of the root */
value_id program_find(const program *p, const char *name);                 /* NO_VALUE when absent */
void program_section(const program *p, section s, size_t *first, size_t *end);
/* For passes: hands over the op list (caller frees with free) and leaves the program without ops. */
op *program_take_ops(program *p, size_t *n_ops);
op *program_append(program *p, const op *o);

/* ops.def as data */
const char *op_name(op_kind k);
const char *op_summary(op_kind k);
int op_input_count(op_kind k);
int op_lanes_input(op_kind k); /* the weight that may be in the order of lanes; -1: none */
int op_output_count(op_kind k);
int op_norm_output(op_kind k); /* y of a norm of rows, with a sum in front or without; -1: the op is none */
const char *op_input_name(op_kind k, int i);
const char *op_output_name(op_kind k, int i);
bool op_input_optional(op_kind k, int i);
bool op_output_optional(op_kind k, int i);
bool op_output_updates(op_kind k, int i); /* '+': read and written */
bool op_output_is_sum(op_kind k, int i);  /* '/': a second kernel finishes it */
bool op_input_has_rows(op_kind k, int i); /* '#': one row per token, or one number per element of a parameter */
bool op_output_has_rows(op_kind k, int i);
int op_rows_input(op_kind k); /* the first input with rows; -1: none */
/* '@': offload runs the op where this operand is stored; NO_VALUE: the op stays on the device. An op with a home and rows may be
 * cut into slices of elements (attr.first_element). */
value_id op_home(const op *o);
bool op_in_slices(const op *o);
bool op_reads_output(const op *o,
                     int i); /* is the old content of the output read: `+`, except a rounded copy of a master */
bool op_in_place(op_kind k, int out, int in); /* may output take the bytes of that input */
op_class op_class_of(op_kind k);
bool op_is_comm(op_kind k);       /* between ranks: run by comm, not by a kernel of the backend */
bool op_goes_round(op_kind k);    /* ... round a ring of ranks, not directly to each peer */
bool op_sums_ranks(op_kind k);    /* ... whose result is a sum over ranks */
bool op_is_one_to_one(op_kind k); /* ... with rank attr.peer alone */
bool op_is_cheap(op_kind k);      /* recompute may drop its outputs if the backward reads its inputs anyway */
/* The operands of every op between ranks; NO_VALUE where it has none, as RECV and SEND. */
enum { MESSAGE_SENT = SEND_X, MESSAGE_RECEIVED = RECV_Y };
value_id op_message(const op *o);    /* what it sends, or else what it receives */
value_id op_main_value(const op *o); /* of any op, for traces and errors: its first output, or else its first input */
bool op_is_loss_gradient(op_kind k); /* the backward begins with it */
/* The backward of this rank begins with it: a message from another stage, or keys and values that go round the ring once
 * more. */
bool op_brings_gradient(const op *o);

double op_flops(const program *p, const op *o);       /* arithmetic of one run */
double op_flops_again(const program *p, const op *o); /* ... of which recompute has added these */
double op_bytes(const program *p, const op *o); /* bytes that must move: what is read once, what is written once */
double op_noise(const program *p, const op *o); /* numbers that are rounded stochastically */
/* FLOP that op_flops counts for each of them: a word of rng_noise_word, eleven integer operations, serves two. */
#define NOISE_FLOPS 6.0
/* Part i of LORA_UP and its gradients: where its columns, its r columns of xa and its rows of b begin, and how many columns it has. */
typedef struct lora_part {
    int64_t first, columns, small, row;
} lora_part;
lora_part op_lora_part(const op *o, int64_t r, int i);
/* DROPOUT: an element whose word of noise is below the limit becomes 0, others are multiplied by the factor. */
uint32_t op_dropout_limit(const op *o);
float op_dropout_factor(const op *o);
/* Is x a part of a tensor, whose rows lie apart? And the place of the first element of a row in that tensor. */
bool op_dropout_in_rows(const op *o);
int64_t op_dropout_place(const op *o, int64_t row, int64_t columns);
double op_sent(const program *p, const op *o);        /* bytes that this rank sends to others; 0 where there are none */
double op_bytes_twice(const program *p, const op *o); /* of op_bytes, those that a GPU reads a second time */
/* The product (m, k) (k, n) of an op of class PRODUCT. */
typedef struct op_product {
    int64_t m, n, k;
    bool blocks; /* 8-bit numbers with a scale per block */
} op_product;
op_product op_product_of(const program *p, const op *o);
/* An op of class LOGITS: the gradient of the unembedding that it writes or adds to, NO_VALUE: none. */
value_id op_logits_gradient(const op *o);
bool op_logits_again(
    const op *o); /* the statistics of its logits are known before: it makes the logits only for the gradient */
/* Ops with outputs that are finished sums over rows (of norms, of biases): how many rows, and the numbers that one partial sum has,
 * 0 if no gradient is requested. */
void op_row_sums(const program *p, const op *o, int64_t *n_rows, int64_t *line);
/* Hidden states and unembedding of every op UNEMBED_* that makes logits. */
enum { LOGITS_H = UNEMBED_LOSS_H, LOGITS_W = UNEMBED_LOSS_W };
/* UNEMBED_LOSS and its gradient: tokens whose logits are held at once, from attr.chunk_bytes. */
int64_t op_logits_rows(const program *p, const op *o);
/* Kernels of a GPU keep the gradient of all logits in 16 bits where attr.chunk_bytes holds it beside chunks that are thick enough:
 * dh and dw are one product each then. Rows of logits are padded to LOGITS_UNIT floats. rows: tokens of such a chunk. */
enum { LOGITS_UNIT = 32, LOGITS_CHUNKS_MOST = 16 };
bool op_logits_stored(const program *p, const op *o, int64_t *rows);
/* UNEMBED8_LOSS_GRAD on a GPU, by attr.chunk_bytes: fp16 logits of `rows` tokens at once, their gradient in 8 bits and its transpose
 * of `group` tokens, for which dh and dw are one product each. A thin chunk of logits serves; a thin group does not: each reads and
 * writes all of an fp32 dw, and dh would have fewer tiles than a GPU has multiprocessors. A dw of 16 bits is rounded once: the
 * transpose is kept of all tokens (stored), or made again for v_block columns of the vocabulary at a time. */
enum { LOGITS8_UNIT = 64, GRADIENT8_UNIT = 128, LOGITS8_ROWS = 1024, LOGITS8_GROUP = 8192 };
typedef struct logits8_cut {
    int64_t rows, group;
    bool stored;
    int64_t v_block; /* 0: dw needs no second walk */
} logits8_cut;
logits8_cut op_logits8_cut(const program *p, const op *o);
int64_t logits8_bytes(int64_t tokens, int64_t vocab); /* the budget for groups of LOGITS8_GROUP tokens */

status program_verify(const program *p); /* ERR_BUG naming op and value */
void program_print(const program *p, FILE *out);
/* A short hash of ops, shapes and dtypes: equal programs give equal hashes. */
uint64_t program_hash(const program *p);
/* Hash of all messages between ranks, in order: ranks of one group with different hashes would deadlock. */
uint64_t program_comm_hash(const program *p);
