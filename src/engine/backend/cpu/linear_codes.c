/* linear_codes.c - LINEAR_CODES on a CPU: the op without any rounding of x or of the codes' numbers, for tests and for the device made of
 * threads (tests/harness/queued_backend.c). Generation on a CPU has LINEAR_INT8 or dequantises whole weights (pass/base.c).
 *
 * Some rows of the weight at a time become numbers in scratch, and every row of x is multiplied with them: every row of y is sums of its
 * own, the same beside any others. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/typed.h"

enum { ROWS = 16 };

typedef struct codes_job {
    const kernel_call *call;
    base_format format;
    dtype x_type, y_type;
    int64_t m, n, k;
} codes_job;

static size_t row_floats(int64_t k) { return (size_t)round_up(k, (int64_t)VEC_WIDTH); }

static size_t codes_work_bytes(const program *p, const op *o, int n_threads) {
    size_t k = row_floats(program_get(p, o->in[LINEAR_CODES_X])->shape.dim[1]);
    return (size_t)n_threads * (ROWS + 1) * k * sizeof(float);
}
const cpu_work_fn cpu_work_LINEAR_CODES = codes_work_bytes;

/* Row `row` of the weight as numbers. */
static void row_numbers(const codes_job *j, int64_t row, float *to) {
    const kernel_call *c = j->call;
    const op_attr *a = &c->op->attr;
    base_sizes first = {0};
    int i = 0;
    for (; row >= a->part_first[i] + a->part_columns[i]; i++) {
        base_sizes n = base_sizes_of(j->format, a->part_columns[i], j->k);
        first.codes += n.codes, first.scales += n.scales, first.scale_codes += n.scale_codes,
            first.offsets += n.offsets;
    }
    const bool nf4 = j->format == BASE_NF4;
    base_codes from = {.codes = (char *)c->in[LINEAR_CODES_CODES] + first.codes,
                       .scale = (float *)c->in[LINEAR_CODES_SCALE] + first.scales,
                       .scale_codes = nf4 ? (uint8_t *)c->in[LINEAR_CODES_SCALE_CODES] + first.scale_codes : NULL,
                       .offset = nf4 ? (float *)c->in[LINEAR_CODES_OFFSET] + first.offsets : NULL};
    base_dequantize(j->format, a->part_columns[i], j->k, &from, to, (row - a->part_first[i]) * j->k, j->k);
}

VEC_INLINE void widen_row(dtype t, float *to, const void *x, size_t n) {
    EACH_VEC(i, lanes, n, { typed_store(to, DTYPE_F32, i, lanes, typed_load(x, t, i, lanes)); });
}

static float dot(const float *a, const float *b, size_t n) {
    vec sum = vec_set(0);
    EACH_VEC(i, lanes, n,
             { sum = vec_fma(typed_load(a, DTYPE_F32, i, lanes), typed_load(b, DTYPE_F32, i, lanes), sum); });
    return vec_sum(sum);
}

static void codes_task(void *context, int64_t task, int thread) {
    const codes_job *j = context;
    const kernel_call *c = j->call;
    const int32_t *pick = c->in[LINEAR_CODES_PICK];
    const void *bias = c->in[LINEAR_CODES_B];
    size_t row = row_floats(j->k);
    float *w = (float *)c->work + (size_t)thread * (ROWS + 1) * row, *x = w + ROWS * row;
    int64_t first = task * ROWS, n = MIN((int64_t)ROWS, j->n - first);
    for (int64_t i = 0; i < n; i++) row_numbers(j, first + i, w + (size_t)i * row);
    for (int64_t r = 0; r < j->m; r++) {
        float y[ROWS];
        int64_t from = pick ? pick[r] : r;
        ASSERT(from >= 0 && from < call_in(c, LINEAR_CODES_X)->shape.dim[0]);
        BY_TYPE(j->x_type, widen_row, x, element_at(c->in[LINEAR_CODES_X], j->x_type, from * j->k), (size_t)j->k);
        for (int64_t i = 0; i < n; i++) {
            y[i] = dot(x, w + (size_t)i * row, (size_t)j->k);
            if (bias) y[i] += tensor_get_f32(bias, j->y_type, (size_t)(first + i));
        }
        typed_round(j->y_type, element_at(c->out[LINEAR_CODES_Y], j->y_type, r * j->n + first), y, (size_t)n);
    }
}

void cpu_kernel_LINEAR_CODES(backend_context *c, const kernel_call *k) { /* y = */
    const value *x = call_in(k, LINEAR_CODES_X), *y = call_out(k, LINEAR_CODES_Y);
    codes_job j = {.call = k,
                   .format = k->op->attr.base_format,
                   .x_type = x->type,
                   .y_type = y->type,
                   .m = cpu_rows(k, y->shape.dim[0]),
                   .n = y->shape.dim[1],
                   .k = x->shape.dim[1]};
    pool_run(c->threads, codes_task, &j, divide_up(j.n, (int64_t)ROWS));
    float softcap = k->op->attr.logits_softcap;
    if (softcap > 0) cpu_cap_logits(c, k->out[LINEAR_CODES_Y], j.m * j.n, softcap);
}
