#pragma once
/* builder.h - private to model: a model that is being written, shared by the files that write its parameters, its blocks and
 * the whole. */
#include "model/model.h"

typedef struct builder {
    net *m;
    program *p;
    const model_config *c;
    const model_traits *t;
    const net_options *o;
    section where;
    const char *prefix; /* of activation names: "", "eval.", "prefill.", "decode." */
    size_t params_capacity;
    lora_options lora;
    base_format base;
    bool of_reference; /* the parameters being added, or the ops being written, are the reference's */
    value_id rope_table, local_rope_table; /* the latter of layers with a window */
    /* of the section being written */
    int64_t batch, seq_len; /* seq_len: tokens of a row that this rank has, of n_sequence that share it */
    int n_sequence;
    /* what this tensor rank has: n_ranks = 1 has everything */
    int n_ranks, rank;
    int64_t heads, kv_heads, ffn;
    int64_t first_id, n_ids;
    /* what this stage has: n_stages = 1 has everything */
    int n_stages, stage;
    int64_t *first_layer; /* of each chunk of the model, and the number of layers */
    bool is_here;         /* ... the parameters being added ... */
    int unit;             /* ... which belong to this */
    value_id tokens, targets, doc_start;
    value_id rows;                   /* NO_VALUE: all rows hold something */
    const generation_section *paged; /* NULL: training or evaluation */
    value_id *caches;                /* per layer, where paged */
} builder;

typedef struct projection {
    value_id w, b;           /* b may be NO_VALUE */
    bool sums;               /* ranks share its columns: their products are parts of a sum */
    value_id lora_a, lora_b; /* NO_VALUE: no adapter */
    int n_adapted;           /* modules with an adapter, and the columns of y that belong to each */
    int64_t part_first[3], part_columns[3];
} projection;

typedef struct norm_params {
    value_id gamma, beta;
} norm_params;

typedef struct block_params {
    norm_params norm1, norm1_after, norm2, norm2_after; /* without a gamma: there is none */
    projection qkv, out, up, down;
    value_id q_norm, k_norm;
} block_params;

/* Of a value head: VALUE_LAYERS for mlp, else the last alone. */
enum { VALUE_LAYERS = 3 };
typedef struct value_params {
    value_id w[VALUE_LAYERS], b[VALUE_LAYERS];
} value_params;

typedef struct outer_params {
    value_id embed, positions, unembed; /* unembed: NO_VALUE of a critic */
    norm_params final_norm;
    value_params value;
    block_params *blocks;
} outer_params;

static inline int64_t n_tokens(const builder *b) { return b->batch * b->seq_len; }
/* Between two pairs of products a rank has a share of the tokens. */
static inline int64_t n_own_tokens(const builder *b) { return n_tokens(b) / b->n_ranks; }

/* ---- build_check.c ----------------------------------------------------------------------------------------------------- */

status builder_check(const model_config *c, const net_options *o);

/* ---- build_params.c ---------------------------------------------------------------------------------------------------- */

#define NAME_BYTES 96
/* "layers.3.attn.qkv.w" from a format with one %d for the layer. */
const char *builder_layer_name(char buf[NAME_BYTES], const char *format, int layer);
/* All parameters of the model, or of its reference; those of other stages without a value. */
void builder_add_params(builder *b, outer_params *w);
/* When all are added: puts those of this rank first, both groups in reading order. */
void builder_sort_params(builder *b);

/* ---- build_blocks.c ------------------------------------------------------------------------------------------------------ */

/* An activation of the section and layer at hand. */
value_id builder_value(builder *b, const char *name, dtype t, shape s);
op *builder_emit(builder *b, op_kind k);
op *builder_message(builder *b, op_kind k); /* between tensor ranks */
/* Rows of all tensor ranks; this rank's own rows of a sum over them. Without such ranks x itself. */
value_id builder_gather(builder *b, const char *name, value_id x);
value_id builder_scatter(builder *b, const char *name, value_id x);
value_id builder_norm(builder *b, const char *name, value_id x, norm_params n);
void builder_norm_into(builder *b, const char *name, value_id x, norm_params n, value_id y); /* y: its output */
/* The values (N) fp32 of all tokens, from the last hidden states of those that this rank has. */
value_id builder_values(builder *b, const value_params *w, value_id h);
value_id builder_layers(builder *b, const outer_params *w, int64_t first, int64_t end, value_id x);
