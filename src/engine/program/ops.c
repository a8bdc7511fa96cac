/* ops.c - ops.def as data: names, operands and in-place pairs read from the strings of the table (costs: op_cost.c).
 *
 * The operand strings are parsed on first use of each question; they are short, and the answers are needed by passes
 * and tests, never inside a step. */
#include "program/program.h"

#include <math.h>

typedef struct op_row {
    const char *name, *in, *out, *in_place, *summary;
    bool comm;
} op_row;

static const op_row rows[OP_COUNT] = {
#define OP(id, in, out, inplace, scratch, summary) {#id, in, out, inplace, summary, false},
#define COMM_OP(id, in, out, inplace, scratch, summary) {#id, in, out, inplace, summary, true},
#include "program/ops.def"
#undef OP
};

#define MAX_WORDS OP_MAX_IN
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
const char *op_summary(op_kind k) { return rows[k].summary; }
int op_input_count(op_kind k) { return inputs[k].count; }
int op_output_count(op_kind k) { return outputs[k].count; }
const char *op_input_name(op_kind k, int i) { return inputs[k].name[i]; }
const char *op_output_name(op_kind k, int i) { return outputs[k].name[i]; }
bool op_input_optional(op_kind k, int i) { return inputs[k].optional[i]; }
bool op_output_optional(op_kind k, int i) { return outputs[k].optional[i]; }
bool op_output_updates(op_kind k, int i) { return outputs[k].updates[i]; }
bool op_reads_output(const op *o, int i) {
    if (o->kind == OP_ADAMW && i == ADAMW_P && o->out[ADAMW_MASTER])
        return false; /* the parameter is the rounded master */
    if (o->kind == OP_REDUCE_SCATTER && !o->in[REDUCE_SCATTER_SCALARS]) return false;    /* nothing to add to */
    if (o->kind == OP_ATTENTION_RING_BWD && o->attr.peer == o->attr.index) return false; /* the first step */
    if (o->kind == OP_UNEMBED_LOSS_GRAD && i == UNEMBED_LOSS_GRAD_DW) return o->attr.adds;
    if (o->kind == OP_UNEMBED8_LOSS_GRAD && i == UNEMBED8_LOSS_GRAD_DW) return o->attr.adds;
    if (o->kind == OP_UNEMBED_GRAD && i == UNEMBED_GRAD_DW) return o->attr.adds;
    return op_output_updates(o->kind, i);
}
int op_lanes_input(op_kind k) {
    switch (k) {
    case OP_LINEAR: return LINEAR_W;
    case OP_UNEMBED_LOGITS: return UNEMBED_LOGITS_W;
    case OP_EMBED: return EMBED_TABLE;
    case OP_LINEAR_INT8: return LINEAR_INT8_CODES;
    case OP_EMBED_INT8: return EMBED_INT8_CODES;
    default: return -1;
    }
}
int op_norm_output(op_kind k) {
    switch (k) {
    case OP_RMSNORM: return RMSNORM_Y;
    case OP_LAYERNORM: return LAYERNORM_Y;
    case OP_ADD_RMSNORM: return ADD_RMSNORM_Y;
    case OP_ADD_LAYERNORM: return ADD_LAYERNORM_Y;
    default: return -1;
    }
}
bool op_in_place(op_kind k, int out, int in) { return in_place[k][out][in]; }
bool op_is_comm(op_kind k) { return rows[k].comm; }
SAME_PLACE(MESSAGE_SENT, ALL_GATHER_X);
SAME_PLACE(MESSAGE_SENT, REDUCE_SCATTER_X);
SAME_PLACE(MESSAGE_SENT, ALL_REDUCE_X);
SAME_PLACE(MESSAGE_SENT, ALL_TO_ALL_X);
SAME_PLACE(MESSAGE_SENT, SHIFT_X);
SAME_PLACE(MESSAGE_RECEIVED, ALL_GATHER_Y);
SAME_PLACE(MESSAGE_RECEIVED, REDUCE_SCATTER_ACC);
SAME_PLACE(MESSAGE_RECEIVED, ALL_REDUCE_Y);
SAME_PLACE(MESSAGE_RECEIVED, ALL_TO_ALL_Y);
SAME_PLACE(MESSAGE_RECEIVED, SHIFT_Y);
lora_part op_lora_part(const op *o, int64_t r, int i) {
    lora_part p = {.first = o->attr.part_first[i], .columns = o->attr.part_columns[i], .small = i * r};
    for (int k = 0; k < i; k++) p.row += o->attr.part_columns[k];
    return p;
}
value_id op_main_value(const op *o) { return *o->out ? *o->out : *o->in; }
value_id op_message(const op *o) { return o->in[MESSAGE_SENT] ? o->in[MESSAGE_SENT] : o->out[MESSAGE_RECEIVED]; }
bool op_is_loss_gradient(op_kind k) {
    return k == OP_UNEMBED_LOSS_GRAD || k == OP_UNEMBED8_LOSS_GRAD || k == OP_UNEMBED_GRAD || k == OP_CRITIC;
}
bool op_brings_gradient(const op *o) {
    if (o->kind == OP_KV_PART || o->kind == OP_SHIFT) return o->attr.tag == TAG_BACKWARD;
    return o->kind == OP_RECV && o->attr.axis == AXIS_PIPELINE &&
           (o->attr.tag == TAG_BACKWARD || o->attr.tag == TAG_EMBED);
}

static int64_t count_of(const program *p, value_id v) { return shape_count(&program_get(p, v)->shape); }

SAME_PLACE(QK_NORM_BWD_QKV, QK_NORM_ROPE_BWD_QKV);
SAME_PLACE(QK_NORM_BWD_DGQ, QK_NORM_ROPE_BWD_DGQ);
SAME_PLACE(QK_NORM_BWD_DGK, QK_NORM_ROPE_BWD_DGK);

void op_row_sums(const program *p, const op *o, int64_t *n_rows, int64_t *line) {
    int64_t width, heads = (o->attr.n_heads + 2 * o->attr.n_kv_heads) * (int64_t)o->attr.head_dim;
    value_id x;
    switch (o->kind) {
    case OP_RMSNORM_BWD:
        x = o->in[RMSNORM_BWD_X];
        width = count_of(p, o->in[RMSNORM_BWD_GAMMA]);
        *line = o->out[RMSNORM_BWD_DGAMMA] ? width : 0;
        break;
    case OP_LAYERNORM_BWD:
        x = o->in[LAYERNORM_BWD_X];
        width = count_of(p, o->in[LAYERNORM_BWD_GAMMA]);
        *line = (!!o->out[LAYERNORM_BWD_DGAMMA] + !!o->out[LAYERNORM_BWD_DBETA]) * width;
        break;
    case OP_QK_NORM_BWD:
    case OP_QK_NORM_ROPE_BWD:
        x = o->in[QK_NORM_BWD_QKV];
        width = heads;
        *line = o->out[QK_NORM_BWD_DGQ] ? count_of(p, o->out[QK_NORM_BWD_DGQ]) : 0;
        if (o->out[QK_NORM_BWD_DGK]) *line += count_of(p, o->out[QK_NORM_BWD_DGK]);
        break;
    default:
        ASSERT(o->kind == OP_BIAS_GRAD);
        x = o->in[BIAS_GRAD_DY];
        *line = width = count_of(p, o->out[BIAS_GRAD_DB]);
    }
    *n_rows = count_of(p, x) / width;
}

SAME_PLACE(LOGITS_H, UNEMBED_LOSS_GRAD_H);
SAME_PLACE(LOGITS_H, UNEMBED8_LOSS_GRAD_H);
SAME_PLACE(LOGITS_H, UNEMBED_STATS_H);
SAME_PLACE(LOGITS_H, UNEMBED_GRAD_H);
SAME_PLACE(LOGITS_H, UNEMBED_LOGITS_H);
SAME_PLACE(LOGITS_W, UNEMBED_LOSS_GRAD_W);
SAME_PLACE(LOGITS_W, UNEMBED8_LOSS_GRAD_W);
SAME_PLACE(LOGITS_W, UNEMBED_STATS_W);
SAME_PLACE(LOGITS_W, UNEMBED_GRAD_W);
SAME_PLACE(LOGITS_W, UNEMBED_LOGITS_W);
int64_t op_logits_rows(const program *p, const op *o) {
    int64_t N = program_get(p, o->in[LOGITS_H])->shape.dim[0], V = program_get(p, o->in[LOGITS_W])->shape.dim[0];
    int64_t fit = o->attr.chunk_bytes / (4 * V), n_chunks;
    fit = MIN(MAX(fit, 1), N);
    n_chunks = divide_up(N, fit);
    return divide_up(N, n_chunks); /* chunks of equal size rather than a small last one */
}

bool op_logits_stored(const program *p, const op *o, int64_t *rows) {
    const value *h = program_get(p, o->in[LOGITS_H]);
    int64_t N = h->shape.dim[0], V = o->attr.vocab > 0 ? o->attr.n_ids : program_get(p, o->in[LOGITS_W])->shape.dim[0];
    int64_t ld = round_up(V, LOGITS_UNIT), left = o->attr.chunk_bytes - N * ld * (int64_t)dtype_bytes(h->type);
    if (!op_is_loss_gradient(o->kind) || h->type == DTYPE_F32 || op_logits_rows(p, o) == N) return false;
    int64_t fit = left / (ld * (int64_t)sizeof(float));
    if (left <= 0 || fit < divide_up(N, LOGITS_CHUNKS_MOST)) return false;
    *rows = divide_up(N, divide_up(N, fit));
    return true;
}

/* Of n, parts of one size that are multiples of unit and at most `fit`. */
static int64_t even_part(int64_t n, int64_t fit, int64_t unit) {
    fit = MIN(MAX(fit / unit * unit, unit), n);
    return MIN(round_up(divide_up(n, divide_up(n, fit)), unit), n);
}

/* Chunks start at multiples of ROWS_UNIT tokens where they are that large, so that a part of the transposed hidden states is aligned. */
static void cut_group(logits8_cut *c, int64_t N, int64_t budget, int64_t logits_row, int64_t gradient_row) {
    enum { ROWS_UNIT = 128, ROWS_LEAST = 16 /* of a product of 8 bits */ };
    int64_t fit = budget / (logits_row + gradient_row);
    if (fit > LOGITS8_ROWS) fit = (budget - LOGITS8_ROWS * logits_row) / gradient_row;
    int64_t unit = fit >= ROWS_UNIT ? ROWS_UNIT : ROWS_LEAST;
    c->group = even_part(N, fit, unit);
    c->rows = even_part(c->group, LOGITS8_ROWS, unit);
}

static int64_t logits8_row(int64_t V) { return round_up(V, LOGITS8_UNIT) * (int64_t)dtype_bytes(DTYPE_F16); }

logits8_cut op_logits8_cut(const program *p, const op *o) {
    enum { V_BLOCK_MIN = 128 /* columns: one tile of a product */ };
    int64_t N = program_get(p, o->in[LOGITS_H])->shape.dim[0], V = program_get(p, o->in[LOGITS_W])->shape.dim[0];
    int64_t budget = o->attr.chunk_bytes, logits = logits8_row(V), gradient = round_up(V, GRADIENT8_UNIT);
    value_id dw = o->out[UNEMBED8_LOSS_GRAD_DW];
    logits8_cut c = {0};
    cut_group(&c, N, budget, logits, gradient + (dw ? V : 0));
    if (!dw || c.group == N || program_get(p, dw)->type == DTYPE_F32) return c;
    int64_t all = round_up(N, GRADIENT8_UNIT), left = budget - V * all;
    c.stored = left > 0 && left / (logits + gradient) >= divide_up(N, LOGITS_CHUNKS_MOST);
    int64_t fit = budget / (all * (int64_t)(dtype_bytes(DTYPE_F16) + 1)) / V_BLOCK_MIN * V_BLOCK_MIN;
    if (!c.stored) c.v_block = MIN(MAX(fit, V_BLOCK_MIN), V);
    cut_group(&c, N, c.stored ? left : budget, logits, gradient);
    return c;
}

int64_t logits8_bytes(int64_t tokens, int64_t vocab) {
    int64_t group = round_up(MIN(tokens, LOGITS8_GROUP), GRADIENT8_UNIT), rows = MIN(group, LOGITS8_ROWS);
    return rows * logits8_row(vocab) + group * (round_up(vocab, GRADIENT8_UNIT) + vocab);
}

uint32_t op_dropout_limit(const op *o) { return (uint32_t)((double)o->attr.rate * 0x1p32); }
bool op_dropout_in_rows(const op *o) { return o->attr.all_columns > 0 || o->attr.group_size > 1; }
int64_t op_dropout_place(const op *o, int64_t row, int64_t columns) {
    const op_attr *a = &o->attr;
    int64_t T = a->seq_len * a->group_size, token = row += a->first_element / columns;
    if (a->group_size > 1) token = row / a->seq_len * T + sequence_token(row % a->seq_len, a->index, a->group_size, T);
    return token * (a->all_columns ? a->all_columns : columns) + a->first_column;
}
float op_dropout_factor(const op *o) { return 1.0f / (1.0f - o->attr.rate); }

/* The pair that turns so many times in the original positions, as a real number. */
static double yarn_pair(const rope_options *r, int head_dim, double turns) {
    return head_dim * log((double)r->original_max_positions / (turns * 2 * M_PI)) / (2 * log(r->theta));
}

/* Pairs before `low` keep their frequency, those from `high` on are stretched, and between them it is a line. */
static double yarn_frequency(const rope_options *r, double freq, int head_dim, int i) {
    double low = yarn_pair(r, head_dim, r->beta_fast), high = yarn_pair(r, head_dim, r->beta_slow);
    if (!r->untruncated) low = floor(low), high = ceil(high);
    low = fmax(low, 0), high = fmin(high, head_dim - 1);
    if (low == high) high += 0.001;
    double stretched = fmin(fmax((i - low) / (high - low), 0), 1);
    return freq / r->factor * stretched + freq * (1 - stretched);
}

double rope_inverse_frequency(const rope_options *r, int head_dim, int64_t n_positions, int i) {
    double theta = r->theta;
    if (r->type == ROPE_DYNAMIC && n_positions > r->original_max_positions) {
        double longer = (double)n_positions / (double)r->original_max_positions;
        theta *= pow(r->factor * longer - (r->factor - 1), (double)head_dim / (head_dim - 2));
    }
    double freq = 1.0 / pow(theta, 2.0 * i / head_dim);
    if (r->type == ROPE_LINEAR) return freq / r->factor;
    if (r->type == ROPE_LONG) return freq / r->pair_factors[i];
    if (r->type == ROPE_YARN) return yarn_frequency(r, freq, head_dim, i);
    if (r->type != ROPE_LLAMA3) return freq;
    /* Llama 3.1: stretches long wavelengths by `factor`, keeps short ones, and blends between them. */
    double wavelength = 2 * M_PI / freq, original = (double)r->original_max_positions;
    double low_wavelength = original / r->low_freq_factor, high_wavelength = original / r->high_freq_factor;
    if (wavelength < high_wavelength) return freq;
    if (wavelength > low_wavelength) return freq / r->factor;
    double smooth = (original / wavelength - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
    return (1 - smooth) * freq / r->factor + smooth * freq;
}
