/* ops.c - ops.def as data: classes, traits, names, operands with their marks and in-place pairs (costs: op_cost.c).
 *
 * The operand strings are parsed on first use of each question; they are short, and the answers are needed by passes
 * and tests, never inside a step. */
#include "program/program.h"

#include <math.h>

typedef struct op_row {
    const char *name, *in, *out, *in_place, *summary;
    op_class class;
    unsigned traits;
} op_row;

enum { CHEAP = 1, LOSS_GRADIENT = 2, RING = 4, SUMS = 8, ONE_TO_ONE = 16 };

static const op_row rows[OP_COUNT] = {
#define OP(id, in, out, inplace, scratch, class, traits, backward, summary) \
    {#id, in, out, inplace, summary, OP_CLASS_##class, traits},
#include "program/ops.def"
#undef OP
};

#define MAX_WORDS OP_MAX_IN
#define WORD_BYTES 16
typedef struct operands {
    int count;
    char name[MAX_WORDS][WORD_BYTES];
    unsigned char marks[MAX_WORDS];
} operands;

static const char mark_letters[] = "?+#@%&/";
enum { OPTIONAL = 1, UPDATES = 2, ROWS = 4, HOME = 8, LANES = 16, ADDS = 32, SUM = 64 }; /* in their order */

static operands parse_operands(const char *s) {
    operands r = {0};
    while (*s) {
        ASSERT(r.count < MAX_WORDS);
        int n = 0;
        for (; *s && *s != ' '; s++) {
            const char *mark = strchr(mark_letters, *s);
            ASSERT(n < WORD_BYTES - 1);
            if (mark) r.marks[r.count] |= (unsigned char)(1 << (mark - mark_letters));
            else r.name[r.count][n++] = *s;
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

static bool has_mark(const operands *list, int i, int mark) { return list->marks[i] & mark; }

/* The first operand with this mark; -1: there is none. */
static int find_mark(const operands *list, int mark) {
    for (int i = 0; i < list->count; i++)
        if (has_mark(list, i, mark)) return i;
    return -1;
}

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
bool op_input_optional(op_kind k, int i) { return has_mark(&inputs[k], i, OPTIONAL); }
bool op_output_optional(op_kind k, int i) { return has_mark(&outputs[k], i, OPTIONAL); }
bool op_output_updates(op_kind k, int i) { return has_mark(&outputs[k], i, UPDATES); }
bool op_output_is_sum(op_kind k, int i) { return has_mark(&outputs[k], i, SUM); }
bool op_input_has_rows(op_kind k, int i) { return has_mark(&inputs[k], i, ROWS); }
bool op_output_has_rows(op_kind k, int i) { return has_mark(&outputs[k], i, ROWS); }
int op_rows_input(op_kind k) { return find_mark(&inputs[k], ROWS); }
value_id op_home(const op *o) {
    int in = find_mark(&inputs[o->kind], HOME), out = find_mark(&outputs[o->kind], HOME);
    return in >= 0 ? o->in[in] : out >= 0 ? o->out[out] : NO_VALUE;
}
bool op_in_slices(const op *o) { return op_home(o) && op_rows_input(o->kind) >= 0; }
bool op_reads_output(const op *o, int i) {
    if (o->kind == OP_ADAMW && i == ADAMW_P && o->out[ADAMW_MASTER])
        return false; /* the parameter is the rounded master */
    if (o->kind == OP_REDUCE_SCATTER && !o->in[REDUCE_SCATTER_SCALARS]) return false;    /* nothing to add to */
    if (o->kind == OP_ATTENTION_RING_BWD && o->attr.peer == o->attr.index) return false; /* the first step */
    if (has_mark(&outputs[o->kind], i, ADDS)) return o->attr.adds;
    return op_output_updates(o->kind, i);
}
int op_lanes_input(op_kind k) { return find_mark(&inputs[k], LANES); }
int op_norm_output(op_kind k) { return op_class_of(k) == OP_CLASS_NORM ? find_operand(&outputs[k], "y", 1) : -1; }
bool op_in_place(op_kind k, int out, int in) { return in_place[k][out][in]; }
op_class op_class_of(op_kind k) { return rows[k].class; }
bool op_is_comm(op_kind k) { return op_class_of(k) == OP_CLASS_MESSAGE; }
bool op_is_cheap(op_kind k) { return rows[k].traits & CHEAP; }
bool op_is_loss_gradient(op_kind k) { return rows[k].traits & LOSS_GRADIENT; }
bool op_goes_round(op_kind k) { return rows[k].traits & RING; }
bool op_sums_ranks(op_kind k) { return rows[k].traits & SUMS; }
bool op_is_one_to_one(op_kind k) { return rows[k].traits & ONE_TO_ONE; }
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
bool op_brings_gradient(const op *o) {
    if (o->kind == OP_KV_PART || o->kind == OP_SHIFT) return o->attr.tag == TAG_BACKWARD;
    return o->kind == OP_RECV && o->attr.axis == AXIS_PIPELINE &&
           (o->attr.tag == TAG_BACKWARD || o->attr.tag == TAG_EMBED);
}

void op_row_sums(const program *p, const op *o, int64_t *n_rows, int64_t *line) {
    *n_rows = program_get(p, o->in[op_rows_input(o->kind)])->shape.dim[0];
    *line = 0;
    for (int k = 0; k < op_output_count(o->kind); k++)
        if (o->out[k] && op_output_is_sum(o->kind, k)) *line += shape_count(&program_get(p, o->out[k])->shape);
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
