/* op_cost.c - what an op costs: its arithmetic, the bytes that it moves, the bytes that it sends to other ranks.
 *
 * Every op has a row, COST_<OP>, and every message SENT_<OP>: one that is missing does not compile. The arithmetic is a number
 * per element of an operand, or a function where a product is counted by its shapes. exp, tanh and the like count as the ten or
 * so operations of their polynomials, a root or a division as a few. */
#include "program/program.h"

typedef struct cost_row {
    double per_element; /* operations for each element of the operand that gives the op its size */
    int operand;
    bool is_output;                                 /* is that operand an output */
    double (*flops)(const program *p, const op *o); /* instead; NULL: per_element */
    double (*saved)(const program *p, const op *o); /* of its operands' bytes, those that are not moved; NULL: none */
    double (*sent)(const program *p, const op *o);  /* of a message; NULL of all other ops */
} cost_row;

static double count_of(const program *p, value_id v) { return v ? (double)shape_count(&program_get(p, v)->shape) : 0; }
static double bytes_of(const program *p, value_id v) { return v ? (double)value_bytes(program_get(p, v)) : 0; }
static double rows_of(const program *p, value_id v) { return (double)program_get(p, v)->shape.dim[0]; }

double op_noise(const program *p, const op *o) {
    double n = 0;
    if (o->kind != OP_ADAMW && o->kind != OP_ACCUMULATE) return 0;
    if (o->kind == OP_ADAMW && o->out[ADAMW_MASTER]) return 0; /* with a master everything is rounded to nearest */
    for (int i = 0; i < op_output_count(o->kind); i++)
        if (o->out[i] && program_get(p, o->out[i])->type == DTYPE_BF16) n += count_of(p, o->out[i]);
    return n;
}

/* ---- arithmetic ---------------------------------------------------------------------------------------------------- */

static double linear(const program *p, const op *o) { /* x (N, in), w (out, in) */
    return 2.0 * rows_of(p, o->in[LINEAR_X]) * count_of(p, o->in[LINEAR_W]);
}
static double linear_dx(const program *p, const op *o) { /* dy (N, out), w (out, in) */
    return 2.0 * rows_of(p, o->in[LINEAR_DX_DY]) * count_of(p, o->in[LINEAR_DX_W]);
}
static double linear_dw(const program *p, const op *o) { /* dy (N, out), x (N, in) */
    SAME_PLACE(LINEAR_DW_DY, LINEAR_DW_ADD_DY);
    SAME_PLACE(LINEAR_DW_X, LINEAR_DW_ADD_X);
    return 2.0 * count_of(p, o->in[LINEAR_DW_DY]) * (double)program_get(p, o->in[LINEAR_DW_X])->shape.dim[1];
}
static double linear8(const program *p, const op *o) { /* x (N, in), w (out, in) */
    return 2.0 * rows_of(p, o->in[LINEAR8_X]) * count_of(p, o->in[LINEAR8_W]);
}

static double logits(const program *p, const op *o) { /* h (N, C), w (V, C) */
    return 2.0 * rows_of(p, o->in[LOGITS_H]) * count_of(p, o->in[LOGITS_W]);
}
/* dh and dw; it computes the logits of STATS again, which the model itself does not need. */
static double logits_grad(const program *p, const op *o) {
    return 4.0 * rows_of(p, o->in[UNEMBED_GRAD_H]) * count_of(p, o->in[UNEMBED_GRAD_W]);
}
static double logits_and_grad(const program *p, const op *o) {
    return 6.0 * rows_of(p, o->in[UNEMBED_LOSS_GRAD_H]) * count_of(p, o->in[UNEMBED_LOSS_GRAD_W]);
}
static double picked_logits(const program *p, const op *o) { /* only the rows that are sampled */
    return 2.0 * rows_of(p, o->out[UNEMBED_LOGITS_LOGITS]) * count_of(p, o->in[UNEMBED_LOGITS_W]);
}

/* Over the causal half of each row, as if it held one document: document boundaries are only known with the data, and shorter
 * documents cost less. In a ring, a run of tokens from the front and one from the back attend to half of any rank's keys. */
static double attention_square(const op_attr *a) {
    return (double)a->batch * a->n_heads * (double)a->seq_len * (double)a->seq_len * a->head_dim;
}
static double attention(const program *p, const op *o) { return 2.0 * attention_square(&o->attr); } /* two products */
static double attention_bwd(const program *p, const op *o) { return 5.0 * attention_square(&o->attr); } /* five */

/* Two products over as many positions as the page table can hold. */
static double attention_paged(const program *p, const op *o) {
    return 4.0 * rows_of(p, o->in[ATTENTION_PAGED_QKV]) * o->attr.n_heads * o->attr.head_dim *
           (double)program_get(p, o->in[ATTENTION_PAGED_TABLE])->shape.dim[1] *
           (double)program_get(p, o->in[ATTENTION_PAGED_CACHE])->shape.dim[2];
}

static double accumulate(const program *p, const op *o) {
    return count_of(p, o->in[ACCUMULATE_X]) + NOISE_FLOPS * op_noise(p, o);
}
static double adamw(const program *p, const op *o) {
    return 14 * count_of(p, o->in[ADAMW_G]) + NOISE_FLOPS * op_noise(p, o);
}

/* ---- bytes --------------------------------------------------------------------------------------------------------- */

/* Only the table rows of these tokens are read. */
static double embed_saved(const program *p, const op *o) {
    double row_bytes = bytes_of(p, o->out[EMBED_X]), n = bytes_of(p, o->in[EMBED_TABLE]) - row_bytes;
    return o->in[EMBED_POSITIONS] ? n + (bytes_of(p, o->in[EMBED_POSITIONS]) - row_bytes) : n;
}

/* Rows without a token stay as they are. */
static double embed_add_saved(const program *p, const op *o) {
    const value *table = program_get(p, o->out[EMBED_BWD_ADD_DTABLE]);
    double touched = count_of(p, o->in[EMBED_BWD_ADD_DY]) * (double)dtype_bytes(table->type);
    double whole = (double)value_bytes(table);
    return touched < whole ? 2 * (whole - touched) : 0;
}

/* With a master copy the parameter is written, not read. */
static double adamw_saved(const program *p, const op *o) {
    return o->out[ADAMW_MASTER] ? bytes_of(p, o->out[ADAMW_P]) : 0;
}

/* ---- messages ------------------------------------------------------------------------------------------------------ */

static double share_of_others(const op *o) {
    double n = o->attr.group_size;
    return n > 1 ? (n - 1) / n : 0;
}
static double sent_gather(const program *p, const op *o) {
    return share_of_others(o) * bytes_of(p, o->out[ALL_GATHER_Y]);
}
static double sent_parts(const program *p, const op *o) {
    return share_of_others(o) * bytes_of(p, o->in[MESSAGE_SENT]);
}
static double sent_twice(const program *p, const op *o) { /* there and back */
    return 2 * share_of_others(o) * bytes_of(p, o->in[ALL_REDUCE_X]);
}
static double sent_whole(const program *p, const op *o) { return bytes_of(p, o->in[MESSAGE_SENT]); }
static double sent_nothing(const program *p, const op *o) { return 0; }

/* ---- the rows ------------------------------------------------------------------------------------------------------ */

/* clang-format off */
#define PER_INPUT(n, name)  .per_element = (n), .operand = (name)
#define PER_OUTPUT(n, name) .per_element = (n), .operand = (name), .is_output = true
#define NO_ARITHMETIC       .per_element = 0
#define FLOPS(function)     .flops = (function)

#define COST_ROPE_TABLE         {PER_OUTPUT(20, ROPE_TABLE_TABLE)}
#define COST_EMBED              {PER_OUTPUT(1, EMBED_X), .saved = embed_saved}
#define COST_RMSNORM            {PER_INPUT(4, RMSNORM_X)}
#define COST_LAYERNORM          {PER_INPUT(7, LAYERNORM_X)}
#define COST_ADD                {PER_INPUT(1, ADD_A)}
#define COST_ADD_RMSNORM        {PER_INPUT(5, ADD_RMSNORM_A)}
#define COST_ADD_LAYERNORM      {PER_INPUT(8, ADD_LAYERNORM_A)}
#define COST_LINEAR             {FLOPS(linear)}
#define COST_ADD_BIAS           {PER_INPUT(1, ADD_BIAS_X)}
#define COST_QK_NORM            {PER_INPUT(4, QK_NORM_QKV)}
#define COST_ROPE               {PER_INPUT(3, ROPE_QKV)} /* two products and a sum; v is copied */
#define COST_QK_NORM_ROPE       {PER_INPUT(7, QK_NORM_ROPE_QKV)}
#define COST_ATTENTION          {FLOPS(attention)}
#define COST_SWIGLU             {PER_INPUT(8, SWIGLU_GU)} /* one exp for two elements of gate, up */
#define COST_GELU               {PER_INPUT(20, GELU_X)}
#define COST_UNEMBED_LOSS       {FLOPS(logits)}
#define COST_HEAD_PARTS         {NO_ARITHMETIC}
#define COST_TOKEN_PARTS        {NO_ARITHMETIC}
#define COST_KV_PART            {NO_ARITHMETIC}
#define COST_ATTENTION_RING     {FLOPS(attention)}
#define COST_ATTENTION_RING_BWD {FLOPS(attention_bwd)}
#define COST_QKV_JOIN           {NO_ARITHMETIC}
#define COST_KV_STORE           {NO_ARITHMETIC}
#define COST_ATTENTION_PAGED    {FLOPS(attention_paged)}
#define COST_UNEMBED_LOGITS     {FLOPS(picked_logits)}
#define COST_LOGITS_TOP         {PER_INPUT(12, LOGITS_TOP_LOGITS)}
#define COST_UNEMBED_LOSS_GRAD  {FLOPS(logits_and_grad)}
#define COST_LOSS_REDUCE        {PER_INPUT(4, LOSS_REDUCE_LOSSES)}
#define COST_UNEMBED_STATS      {FLOPS(logits)}
#define COST_UNEMBED_JOIN       {PER_INPUT(20, UNEMBED_JOIN_STATS)}
#define COST_UNEMBED_GRAD       {FLOPS(logits_grad)}
#define COST_LINEAR_DX          {FLOPS(linear_dx)}
#define COST_LINEAR_DW          {FLOPS(linear_dw)}
#define COST_LINEAR_DW_ADD      {FLOPS(linear_dw)}
#define COST_BIAS_GRAD          {PER_INPUT(1, BIAS_GRAD_DY)}
#define COST_RMSNORM_BWD        {PER_INPUT(9, RMSNORM_BWD_X)}
#define COST_LAYERNORM_BWD      {PER_INPUT(12, LAYERNORM_BWD_X)}
#define COST_QK_NORM_BWD        {PER_INPUT(9, QK_NORM_BWD_QKV)}
#define COST_QK_NORM_ROPE_BWD   {PER_INPUT(12, QK_NORM_ROPE_BWD_QKV)}
#define COST_ATTENTION_BWD      {FLOPS(attention_bwd)}
#define COST_SWIGLU_BWD         {PER_INPUT(11, SWIGLU_BWD_GU)}
#define COST_GELU_BWD           {PER_INPUT(30, GELU_BWD_X)}
#define COST_EMBED_BWD          {PER_INPUT(1, EMBED_BWD_DY)}
#define COST_EMBED_BWD_ADD      {PER_INPUT(1, EMBED_BWD_ADD_DY), .saved = embed_add_saved}
#define COST_POSITION_BWD       {PER_INPUT(1, POSITION_BWD_DY)}
#define COST_ABSMAX             {PER_INPUT(1, ABSMAX_X)}
#define COST_QUANTIZE           {PER_INPUT(2, QUANTIZE_X)} /* a product, a rounding */
#define COST_LINEAR8            {FLOPS(linear8)}
#define COST_ACCUMULATE         {FLOPS(accumulate)}
#define COST_SUM_PARTS          {PER_INPUT(1, SUM_PARTS_X)}
#define COST_GRAD_SUMSQ         {PER_INPUT(2, GRAD_SUMSQ_G)}
#define COST_NORM_SUM           {PER_INPUT(1, NORM_SUM_PARTIALS)}
#define COST_CLIP               {PER_INPUT(2, CLIP_PARTIALS)}
#define COST_ADAMW              {FLOPS(adamw), .saved = adamw_saved}
#define COST_CAST               {PER_INPUT(1, CAST_X)}
#define COST_COPY               {NO_ARITHMETIC}

/* Messages: what a rank sends. Sums on the way count as time of the message. */
#define SENT_ALL_GATHER         sent_gather
#define SENT_REDUCE_SCATTER     sent_parts
#define SENT_ALL_REDUCE         sent_twice
#define SENT_ALL_TO_ALL         sent_parts
#define SENT_SHIFT              sent_whole
#define SENT_SEND               sent_whole
#define SENT_RECV               sent_nothing
/* clang-format on */

static const cost_row costs[OP_COUNT] = {
#define OP(id, in, out, inplace, doc) [OP_##id] = COST_##id,
#define COMM_OP(id, in, out, inplace, doc) [OP_##id] = {.sent = SENT_##id},
#include "program/ops.def"
#undef OP
};

double op_flops(const program *p, const op *o) {
    const cost_row *r = &costs[o->kind];
    if (r->flops) return r->flops(p, o);
    return r->per_element * count_of(p, r->is_output ? o->out[r->operand] : o->in[r->operand]);
}

double op_bytes(const program *p, const op *o) {
    double n = 0;
    for (int i = 0; i < op_input_count(o->kind); i++) n += bytes_of(p, o->in[i]);
    for (int i = 0; i < op_output_count(o->kind); i++)
        n += bytes_of(p, o->out[i]) * (op_output_updates(o->kind, i) ? 2 : 1);
    return costs[o->kind].saved ? n - costs[o->kind].saved(p, o) : n;
}

double op_sent(const program *p, const op *o) { return costs[o->kind].sent ? costs[o->kind].sent(p, o) : 0; }
