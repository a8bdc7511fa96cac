/* params.c - first values, hash and checkpoint list of the parameters.
 *
 * Initial values depend on (seed, name, element) only, never on layout, precision or thread count: every precision
 * starts from the same fp32 numbers, rounded once. */
#include "train/params.h"

#include <stdlib.h>

#define FILL_TASK 16384             /* elements per task */
#define FILL_CHUNK (64 * FILL_TASK) /* elements staged at once: 4 MiB of fp32 */

typedef struct fill {
    const model_param *param;
    uint64_t seed;
    int64_t first, n; /* this chunk */
    float *wide;
    void *narrow;
    dtype type;
} fill;

static void fill_task(void *context, int64_t task, int thread) {
    (void)thread;
    fill *f = context;
    int64_t at = task * FILL_TASK, n = MIN(f->n - at, (int64_t)FILL_TASK);
    model_param_initial(f->param, f->seed, f->first + at, n, f->wide + at);
    if (f->type != DTYPE_F32)
        tensor_convert((char *)f->narrow + (size_t)at * dtype_bytes(f->type), f->type, f->wide + at, DTYPE_F32,
                       (size_t)n);
}

static void write_zeros(exec *e, const program *p, value_id v, const void *zeros, size_t n_zeros) {
    size_t n = value_bytes(program_get(p, v));
    for (size_t at = 0; at < n; at += n_zeros) exec_write(e, v, at, zeros, MIN(n - at, n_zeros));
}

void params_initialize(exec *e, const plan *p, uint64_t seed) {
    const program *g = &p->program;
    fill f = {.seed = seed, .wide = mem_alloc(FILL_CHUNK * sizeof(float)), .narrow = mem_alloc(FILL_CHUNK * 2)};
    for (size_t i = 0; i < p->model.n_params; i++) {
        f.param = &p->model.params[i];
        const value *v = program_get(g, f.param->value);
        f.type = v->type;
        int64_t total = shape_count(&v->shape);
        for (f.first = 0; f.first < total; f.first += FILL_CHUNK) {
            f.n = MIN(total - f.first, (int64_t)FILL_CHUNK);
            exec_parallel(e, fill_task, &f, (f.n + FILL_TASK - 1) / FILL_TASK);
            size_t width = dtype_bytes(f.type);
            exec_write(e, f.param->value, (size_t)f.first * width, f.type == DTYPE_F32 ? (void *)f.wide : f.narrow,
                       (size_t)f.n * width);
            if (p->passes.masters[i])
                exec_write(e, p->passes.masters[i], (size_t)f.first * sizeof(float), f.wide,
                           (size_t)f.n * sizeof(float));
        }
    }
    free(f.wide);
    free(f.narrow);
}

void params_clear_states(exec *e, const plan *p) {
    void *zeros = mem_alloc(FILL_CHUNK * sizeof(float));
    const pass_context *c = &p->passes;
    const value_id *groups[] = {c->moments, c->variances, c->moment_scales, c->variance_scales};
    for (size_t i = 0; i < p->model.n_params; i++)
        for (size_t k = 0; k < ARRAY_LENGTH(groups); k++)
            if (groups[k][i]) write_zeros(e, &p->program, groups[k][i], zeros, FILL_CHUNK * sizeof(float));
    free(zeros);
}

uint64_t params_hash(exec *e, const plan *p) {
    uint64_t h = 0;
    for (size_t i = 0; i < p->model.n_params; i++) {
        value_id v = p->passes.masters[i] ? p->passes.masters[i] : p->model.params[i].value;
        h = (h ^ exec_hash(e, v)) * 0x9e3779b97f4a7c15ull; /* order matters: h is mixed before the next is added */
        h ^= h >> 29;
    }
    return h;
}

checkpoint_tensor *params_checkpoint_tensors(const plan *p, arena *memory, size_t *n) {
    const struct {
        const char *kind;
        const value_id *values;
    } groups[] = {{"param", NULL},
                  {"master", p->passes.masters},
                  {"m", p->passes.moments},
                  {"v", p->passes.variances},
                  {"m_scale", p->passes.moment_scales},
                  {"v_scale", p->passes.variance_scales}};
    checkpoint_tensor *list = mem_alloc(ARRAY_LENGTH(groups) * p->model.n_params * sizeof *list);
    *n = 0;
    for (size_t i = 0; i < p->model.n_params; i++)
        for (size_t k = 0; k < ARRAY_LENGTH(groups); k++) {
            const model_param *param = &p->model.params[i];
            value_id v = groups[k].values ? groups[k].values[i] : param->value;
            if (v == NO_VALUE) continue;
            const value *a = program_get(&p->program, v);
            list[(*n)++] =
                (checkpoint_tensor){arena_format(memory, "%s/%s", groups[k].kind, param->name), v, a->type, a->shape};
        }
    return list;
}
