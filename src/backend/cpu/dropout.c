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
    uint32_t limit;
    float factor;
} dropout_job;

/* Elements first .. first + n, all of one block of noise. A NaN that is dropped is 0 as well. */
VEC_INLINE void dropout_run(dtype t, const dropout_job *j, rng_noise noise, size_t first, size_t n) {
    void *y = element_at(j->y, t, (int64_t)first);
    const void *x = element_at(j->x, t, (int64_t)first);
    vec_u32 at = noise_at(noise, noise_place(j->op, first), 1);
    EACH_VEC(i, lanes, n, {
        noise_halves word = noise_words(at, noise.key);
        vec_u32 stays = (vec_u32)((word.high << 16 | word.low) >= j->limit);
        typed_store(y, t, i, lanes, (vec)((vec_u32)(typed_load(x, t, i, lanes) * j->factor) & stays));
        at += NOISE_WORDS(VEC_WIDTH);
    });
}

static void dropout_task(void *context, int64_t task, int thread) {
    const dropout_job *j = context;
    size_t at = (size_t)task * TASK_ELEMENTS, end = MIN(at + TASK_ELEMENTS, j->n);
    while (at < end) {
        size_t stop = noise_end(j->op, at, end);
        rng_noise noise = noise_open(j->op, j->scalars, NOISE_DROPOUT | j->scalars->micro_of_all << 8, at);
        BY_TYPE(j->type, dropout_run, j, noise, at, stop - at);
        at = stop;
    }
}

void cpu_kernel_DROPOUT(backend_context *c, const kernel_call *k) {
    const value *y = call_out(k, DROPOUT_Y);
    dropout_job j = {.op = k->op,
                     .scalars = k->in[DROPOUT_SCALARS],
                     .type = y->type,
                     .y = k->out[DROPOUT_Y],
                     .x = k->in[DROPOUT_X],
                     .n = (size_t)shape_count(&y->shape),
                     .limit = op_dropout_limit(k->op),
                     .factor = op_dropout_factor(k->op)};
    ASSERT(call_in(k, DROPOUT_X)->type == y->type);
    pool_run(c->threads, dropout_task, &j, divide_up((int64_t)j.n, TASK_ELEMENTS));
}
