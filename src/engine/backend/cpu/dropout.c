/* dropout.c - elements that become 0 at random, the others scaled up so that the mean stays.
 *
 * Whether an element stays follows from the run's seed, the step, the micro-batch, the tensor and the element's place in it
 * (noise.h) and from nothing else: the backward applies the op to dy, recompute repeats it, and a GPU has the same mask. */
#include "backend/cpu/noise.h"

enum { TASK_ELEMENTS = 32768 };

typedef struct dropout_job {
    const op *op;
    const step_scalars *scalars;
    dtype type;
    void *y;
    const void *x;
    size_t n;
    int64_t columns;
    uint32_t limit;
    float factor;
} dropout_job;

/* Elements first .. first + n, from `place` of one block of noise on. A NaN that is dropped is 0 as well. */
VEC_INLINE void dropout_run(dtype t, const dropout_job *j, rng_noise noise, size_t place, size_t first, size_t n) {
    void *y = element_at(j->y, t, (int64_t)first);
    const void *x = element_at(j->x, t, (int64_t)first);
    vec_u32 at = noise_at(noise, place, 1);
    EACH_VEC(i, lanes, n, {
        noise_halves word = noise_words(at, noise.key);
        vec_u32 stays = (vec_u32)((word.high << 16 | word.low) >= j->limit);
        typed_store(y, t, i, lanes, (vec)((vec_u32)(typed_load(x, t, i, lanes) * j->factor) & stays));
        at += NOISE_WORDS(VEC_WIDTH);
    });
}

/* n elements from `first` on, which lie one behind the other from `at` on in the whole tensor too. */
static void dropout_stretch(const dropout_job *j, size_t first, size_t n, uint64_t at) {
    uint64_t key = j->op->attr.noise_key ^ ((uint64_t)j->scalars->noise_hi << 32 | j->scalars->noise_lo);
    uint64_t counter = (uint64_t)(NOISE_DROPOUT | j->scalars->micro_of_all << 8) << 32 | j->scalars->step;
    for (size_t done = 0, k; done < n; done += k) {
        size_t place = (size_t)((at + done) % RNG_NOISE_BLOCK);
        k = MIN(n - done, (size_t)RNG_NOISE_BLOCK - place);
        rng_noise noise = rng_noise_block(key, counter, (at + done) / RNG_NOISE_BLOCK);
        BY_TYPE(j->type, dropout_run, j, noise, place, first + done, k);
    }
}

static void dropout_task(void *context, int64_t task, int thread) {
    const dropout_job *j = context;
    size_t at = (size_t)task * TASK_ELEMENTS, end = MIN(at + TASK_ELEMENTS, j->n);
    dropout_stretch(j, at, end - at, (uint64_t)j->op->attr.first_element + at);
}

/* A part of a tensor: each row lies elsewhere. */
static void dropout_row(void *context, int64_t row, int thread) {
    const dropout_job *j = context;
    int64_t at = op_dropout_place(j->op, row, j->columns);
    dropout_stretch(j, (size_t)(row * j->columns), (size_t)j->columns, (uint64_t)at);
}

void cpu_kernel_DROPOUT(backend_context *c, const kernel_call *k) {
    const value *y = call_out(k, DROPOUT_Y);
    dropout_job j = {.op = k->op,
                     .scalars = k->in[DROPOUT_SCALARS],
                     .type = y->type,
                     .y = k->out[DROPOUT_Y],
                     .x = k->in[DROPOUT_X],
                     .n = (size_t)shape_count(&y->shape),
                     .columns = y->shape.dim[1],
                     .limit = op_dropout_limit(k->op),
                     .factor = op_dropout_factor(k->op)};
    ASSERT(call_in(k, DROPOUT_X)->type == y->type);
    if (op_dropout_in_rows(k->op)) pool_run(c->threads, dropout_row, &j, y->shape.dim[0]);
    else pool_run(c->threads, dropout_task, &j, divide_up((int64_t)j.n, TASK_ELEMENTS));
}
