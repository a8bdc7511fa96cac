/* ops.c - ops.def as data: names, operands and in-place pairs read from the strings of the table, and what an op costs.
 *
 * The operand strings are parsed on first use of each question; they are short, and the answers are needed by passes
 * and tests, never inside a step. */
#include "program/program.h"

#include <math.h>

typedef struct op_row {
    const char *name, *in, *out, *in_place, *doc;
} op_row;

static const op_row rows[OP_COUNT] = {
#define OP(id, in, out, inplace, doc) {#id, in, out, inplace, doc},
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
    return op_output_updates(o->kind, i);
}
bool op_in_place(op_kind k, int out, int in) { return in_place[k][out][in]; }

double op_bytes(const program *p, const op *o) {
    double n = 0;
    for (int i = 0; i < op_input_count(o->kind); i++)
        if (o->in[i]) n += (double)value_bytes(program_get(p, o->in[i]));
    for (int i = 0; i < op_output_count(o->kind); i++)
        if (o->out[i]) n += (double)value_bytes(program_get(p, o->out[i])) * (op_output_updates(o->kind, i) ? 2 : 1);
    return n;
}

double op_flops(const program *p, const op *o) {
    const value *a = o->in[0] ? program_get(p, o->in[0]) : NULL;
    const value *b = o->in[1] ? program_get(p, o->in[1]) : NULL;
    switch (o->kind) {
    case OP_LINEAR: /* x (N, in), w (out, in) */
    case OP_UNEMBED_LOSS: return 2.0 * (double)a->shape.dim[0] * (double)shape_count(&b->shape);
    case OP_UNEMBED_LOSS_GRAD: return 6.0 * (double)a->shape.dim[0] * (double)shape_count(&b->shape);
    case OP_LINEAR_DX: /* dy (N, out), w (out, in) */
        return 2.0 * (double)a->shape.dim[0] * (double)shape_count(&b->shape);
    case OP_LINEAR_DW: /* dy (N, out), x (N, in) */
        return 2.0 * (double)shape_count(&a->shape) * (double)b->shape.dim[1];
    case OP_ATTENTION: /* two products over the causal half */
        return 2.0 * (double)o->attr.batch * o->attr.n_heads * (double)o->attr.seq_len * (double)o->attr.seq_len *
               o->attr.head_dim;
    case OP_ATTENTION_BWD: /* five products */
        return 5.0 * (double)o->attr.batch * o->attr.n_heads * (double)o->attr.seq_len * (double)o->attr.seq_len *
               o->attr.head_dim;
    case OP_ADAMW: return 14.0 * (double)shape_count(&a->shape);
    default: return a ? 8.0 * (double)shape_count(&a->shape) : 0; /* a few operations per element */
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
