/* ops.c - ops.def as data: names, operands and in-place pairs read from the strings of the table, and what an op costs.
 *
 * The operand strings are parsed on first use of each question; they are short, and the answers are needed by passes
 * and tests, never inside a step. */
#include "program/program.h"

#include <math.h>

typedef struct op_row {
    const char *name, *in, *out, *in_place, *doc;
    bool comm;
} op_row;

static const op_row rows[OP_COUNT] = {
#define OP(id, in, out, inplace, doc) {#id, in, out, inplace, doc, false},
#define COMM_OP(id, in, out, inplace, doc) {#id, in, out, inplace, doc, true},
#include "program/ops.def"
#undef OP
};

#define MAX_WORDS 8
#define WORD_BYTES 16
typedef struct operands {
    int count;
    char name[MAX_WORDS][WORD_BYTES];
    bool optional[MAX_WORDS], updates[MAX_WORDS];
} operands;

static operands parse_operands(const char *s) {
    operands r = {0};
    while (*s) {
        ASSERT(r.count < MAX_WORDS);
        int n = 0;
        for (; *s && *s != ' '; s++) {
            if (*s == '?') r.optional[r.count] = true;
            else if (*s == '+') r.updates[r.count] = true;
            else {
                ASSERT(n < WORD_BYTES - 1);
                r.name[r.count][n++] = *s;
            }
        }
        r.count++;
        while (*s == ' ') s++;
    }
    return r;
}

/* The table is constant, so the parsed form is made once, before main, and is safe to read from any thread. */
static operands inputs[OP_COUNT], outputs[OP_COUNT];
static char lower_names[OP_COUNT][24];
static bool in_place[OP_COUNT][OP_MAX_OUT][OP_MAX_IN];

static int find_operand(const operands *list, const char *word, size_t n) {
    for (int i = 0; i < list->count; i++)
        if (strlen(list->name[i]) == n && memcmp(list->name[i], word, n) == 0) return i;
    return -1;
}

__attribute__((constructor)) static void parse_table(void) {
    for (int k = 0; k < OP_COUNT; k++) {
        inputs[k] = parse_operands(rows[k].in);
        outputs[k] = parse_operands(rows[k].out);
        ASSERT(inputs[k].count <= OP_MAX_IN && outputs[k].count <= OP_MAX_OUT);
        for (int i = 0; rows[k].name[i]; i++) {
            char ch = rows[k].name[i];
            lower_names[k][i] = (char)(ch >= 'A' && ch <= 'Z' ? ch - 'A' + 'a' : ch);
        }
        for (const char *s = rows[k].in_place; *s;) {
            size_t a = strcspn(s, "="), b = strcspn(s + a + 1, " ");
            int out = find_operand(&outputs[k], s, a), in = find_operand(&inputs[k], s + a + 1, b);
            ASSERT(out >= 0 && in >= 0);
            in_place[k][out][in] = true;
            s += a + 1 + b;
            while (*s == ' ') s++;
        }
    }
}

const char *op_name(op_kind k) { return lower_names[k]; }
const char *op_doc(op_kind k) { return rows[k].doc; }
int op_input_count(op_kind k) { return inputs[k].count; }
int op_output_count(op_kind k) { return outputs[k].count; }
const char *op_input_name(op_kind k, int i) { return inputs[k].name[i]; }
const char *op_output_name(op_kind k, int i) { return outputs[k].name[i]; }
bool op_input_optional(op_kind k, int i) { return inputs[k].optional[i]; }
bool op_output_optional(op_kind k, int i) { return outputs[k].optional[i]; }
bool op_output_updates(op_kind k, int i) { return outputs[k].updates[i]; }
bool op_reads_output(const op *o, int i) {
    if (o->kind == OP_ADAMW && i == 0 && o->out[1]) return false; /* the parameter is the rounded master */
    if (o->kind == OP_REDUCE_SCATTER && !o->in[1]) return false;  /* nothing to add to */
    if (o->kind == OP_ATTENTION_RING_BWD && o->attr.peer == o->attr.index) return false; /* the first step */
    return op_output_updates(o->kind, i);
}
bool op_in_place(op_kind k, int out, int in) { return in_place[k][out][in]; }
bool op_is_comm(op_kind k) { return rows[k].comm; }
bool op_is_loss_gradient(op_kind k) { return k == OP_UNEMBED_LOSS_GRAD || k == OP_UNEMBED_GRAD; }
bool op_brings_gradient(const op *o) {
    if (o->kind == OP_KV_PART || o->kind == OP_SHIFT) return o->attr.tag == TAG_BACKWARD;
    return o->kind == OP_RECV && o->attr.axis == AXIS_PIPELINE &&
           (o->attr.tag == TAG_BACKWARD || o->attr.tag == TAG_EMBED);
}

static double count_of(const program *p, value_id v) { return v ? (double)shape_count(&program_get(p, v)->shape) : 0; }

double op_bytes(const program *p, const op *o) {
    double n = 0;
    for (int i = 0; i < op_input_count(o->kind); i++)
        if (o->in[i]) n += (double)value_bytes(program_get(p, o->in[i]));
    for (int i = 0; i < op_output_count(o->kind); i++)
        if (o->out[i]) n += (double)value_bytes(program_get(p, o->out[i])) * (op_output_updates(o->kind, i) ? 2 : 1);
    switch (o->kind) {
    case OP_EMBED: { /* of the tables only the rows of these tokens are read */
        double row_bytes = (double)value_bytes(program_get(p, o->out[0]));
        for (int i = 1; i <= 3; i += 2)
            if (o->in[i]) n += row_bytes - (double)value_bytes(program_get(p, o->in[i]));
        return n;
    }
    case OP_EMBED_BWD_ADD: { /* rows without a token stay as they are */
        const value *table = program_get(p, o->out[0]);
        double touched = count_of(p, o->in[1]) * (double)dtype_bytes(table->type), whole = (double)value_bytes(table);
        return touched < whole ? n - 2 * (whole - touched) : n;
    }
    case OP_ADAMW: /* beside a master the parameter is written, not read */
        return o->out[1] ? n - (double)value_bytes(program_get(p, o->out[0])) : n;
    default: return n;
    }
}

double op_sent(const program *p, const op *o) {
    double n = o->attr.group_size, others = n > 1 ? (n - 1) / n : 0;
    switch (o->kind) {
    case OP_ALL_GATHER: return others * (double)value_bytes(program_get(p, o->out[0]));
    case OP_REDUCE_SCATTER:
    case OP_ALL_TO_ALL: return others * (double)value_bytes(program_get(p, o->in[0]));
    case OP_ALL_REDUCE: return 2 * others * (double)value_bytes(program_get(p, o->in[0])); /* there and back */
    case OP_SHIFT:
    case OP_SEND: return (double)value_bytes(program_get(p, o->in[0]));
    default: return 0;
    }
}

void op_row_sums(const program *p, const op *o, int64_t *n_rows, int64_t *line) {
    int64_t width;
    switch (o->kind) {
    case OP_RMSNORM_BWD:
    case OP_LAYERNORM_BWD:
        width = (int64_t)count_of(p, o->in[1]);
        *line = o->kind == OP_LAYERNORM_BWD ? 2 * width : width;
        break;
    case OP_QK_NORM_BWD:
    case OP_QK_NORM_ROPE_BWD:
        width = (o->attr.n_heads + 2 * o->attr.n_kv_heads) * (int64_t)o->attr.head_dim;
        *line = 2 * (int64_t)o->attr.head_dim;
        break;
    default: ASSERT(o->kind == OP_BIAS_GRAD); *line = width = (int64_t)count_of(p, o->out[0]);
    }
    *n_rows = (int64_t)count_of(p, o->in[0]) / width;
}

int64_t op_logits_rows(const program *p, const op *o) {
    int64_t N = program_get(p, o->in[0])->shape.dim[0], V = program_get(p, o->in[1])->shape.dim[0];
    int64_t fit = o->attr.chunk_bytes / (4 * V), n_chunks;
    fit = MIN(MAX(fit, 1), N);
    n_chunks = divide_up(N, fit);
    return divide_up(N, n_chunks); /* chunks of equal size rather than a small last one */
}

/* Arithmetic per element of the operand that gives an op its size. exp, tanh and the like count as the ten or so
 * operations of their polynomials, a root or a division as a few. */
static double element_flops(op_kind k) {
    switch (k) {
    case OP_ADD:
    case OP_ADD_BIAS:
    case OP_BIAS_GRAD:
    case OP_EMBED:
    case OP_EMBED_BWD:
    case OP_EMBED_BWD_ADD:
    case OP_POSITION_BWD:
    case OP_ACCUMULATE:
    case OP_SUM_PARTS:
    case OP_NORM_SUM:
    case OP_ABSMAX:
    case OP_CAST: return 1;
    case OP_GRAD_SUMSQ:
    case OP_CLIP: return 2;
    case OP_QUANTIZE: return 2; /* a product, a rounding */
    case OP_ROPE: return 3;     /* two products and a sum; v passes */
    case OP_RMSNORM:
    case OP_QK_NORM:
    case OP_LOSS_REDUCE: return 4;
    case OP_ADD_RMSNORM: return 5;
    case OP_QK_NORM_ROPE:
    case OP_LAYERNORM: return 7;
    case OP_ADD_LAYERNORM: return 8;
    case OP_SWIGLU: return 8; /* per element of gate|up: one exp for two of them */
    case OP_RMSNORM_BWD:
    case OP_QK_NORM_BWD: return 9;
    case OP_SWIGLU_BWD: return 11;
    case OP_LAYERNORM_BWD:
    case OP_QK_NORM_ROPE_BWD:
    case OP_LOGITS_TOP: return 12;
    case OP_ADAMW: return 14;
    case OP_GELU:
    case OP_UNEMBED_JOIN:
    case OP_ROPE_TABLE: return 20;
    case OP_GELU_BWD: return 30;
    default: return 0; /* COPY; the products are counted by shape */
    }
}

static value_id sizing_operand(const op *o) {
    switch (o->kind) {
    case OP_ROPE_TABLE:
    case OP_EMBED: return o->out[0];
    case OP_EMBED_BWD:
    case OP_EMBED_BWD_ADD:
    case OP_POSITION_BWD: return o->in[1];
    default: return o->in[0];
    }
}

double op_noise(const program *p, const op *o) {
    double n = 0;
    if (o->kind != OP_ADAMW && o->kind != OP_ACCUMULATE) return 0;
    if (o->kind == OP_ADAMW && o->out[1]) return 0; /* with a master everything is rounded to nearest */
    for (int i = 0; i < op_output_count(o->kind); i++)
        if (o->out[i] && program_get(p, o->out[i])->type == DTYPE_BF16) n += count_of(p, o->out[i]);
    return n;
}

double op_flops(const program *p, const op *o) {
    const op_attr *a = &o->attr;
    double square = (double)a->batch * a->n_heads * (double)a->seq_len * (double)a->seq_len * a->head_dim;
    switch (o->kind) {
    case OP_UNEMBED_LOGITS: /* only the rows that are sampled */
        return 2.0 * (double)program_get(p, o->out[0])->shape.dim[0] * count_of(p, o->in[1]);
    case OP_ATTENTION_PAGED: /* two products over as many positions as the page table can hold */
        return 4.0 * (double)program_get(p, o->in[0])->shape.dim[0] * a->n_heads * a->head_dim *
               (double)program_get(p, o->in[3])->shape.dim[1] * (double)program_get(p, o->in[1])->shape.dim[2];
    case OP_LINEAR:       /* x (N, in), w (out, in) */
    case OP_LINEAR_DX:    /* dy (N, out), w (out, in) */
    case OP_UNEMBED_LOSS: /* h (N, C), w (V, C) */
    case OP_UNEMBED_STATS: return 2.0 * (double)program_get(p, o->in[0])->shape.dim[0] * count_of(p, o->in[1]);
    case OP_LINEAR8: /* x (N, in), its scale, w (out, in) */
        return 2.0 * (double)program_get(p, o->in[0])->shape.dim[0] * count_of(p, o->in[2]);
    case OP_UNEMBED_GRAD: /* dh and dw; its logits are those of STATS once more, which the model does not ask for */
        return 4.0 * (double)program_get(p, o->in[0])->shape.dim[0] * count_of(p, o->in[1]);
    case OP_UNEMBED_LOSS_GRAD: return 6.0 * (double)program_get(p, o->in[0])->shape.dim[0] * count_of(p, o->in[1]);
    case OP_LINEAR_DW: /* dy (N, out), x (N, in) */
    case OP_LINEAR_DW_ADD: return 2.0 * count_of(p, o->in[0]) * (double)program_get(p, o->in[1])->shape.dim[1];
    /* Over the causal half of each row, as if it held one document: where documents begin is known only with the data,
     * and shorter ones cost less. In a ring, a run of tokens from the front and one from the back see half of any rank's keys. */
    case OP_ATTENTION:
    case OP_ATTENTION_RING: return 2.0 * square; /* two products */
    case OP_ATTENTION_BWD:
    case OP_ATTENTION_RING_BWD: return 5.0 * square; /* five */
    case OP_ADAMW:
    case OP_ACCUMULATE: return element_flops(o->kind) * count_of(p, o->in[0]) + NOISE_FLOPS * op_noise(p, o);
    default: return element_flops(o->kind) * count_of(p, sizing_operand(o));
    }
}

double rope_inverse_frequency(const rope_options *r, int head_dim, int i) {
    double freq = 1.0 / pow(r->theta, 2.0 * i / head_dim);
    if (r->type == ROPE_LINEAR) return freq / r->factor;
    if (r->type != ROPE_LLAMA3) return freq;
    /* Llama 3.1: long waves are stretched by `factor`, short ones kept, the band between is blended. */
    double wavelength = 2 * M_PI / freq, original = (double)r->original_max_positions;
    double low_wavelength = original / r->low_freq_factor, high_wavelength = original / r->high_freq_factor;
    if (wavelength < high_wavelength) return freq;
    if (wavelength > low_wavelength) return freq / r->factor;
    double smooth = (original / wavelength - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
    return (1 - smooth) * freq / r->factor + smooth * freq;
}
