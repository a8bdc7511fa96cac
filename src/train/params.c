/* params.c - first values, hash and checkpoint list of the parameters.
 *
 * Initial values depend on (seed, name, element) only, never on layout, ranks, precision or thread count: every precision
 * starts from the same fp32 numbers, rounded once. */
#include "train/params.h"

#include <stdlib.h>

#define FILL_TASK 16384 /* elements per task */
#define HASH_TASKS 64
#define FILL_CHUNK (HASH_TASKS * FILL_TASK) /* elements staged at once: 4 MiB of fp32 */

typedef struct fill {
    exec *e;
    const plan *p;
    size_t i; /* of the parameter */
    uint64_t seed;
    int64_t first, n; /* this chunk */
    float *wide;
    void *narrow;
    dtype type;
    bool near; /* each task writes what it has made; otherwise the chunk travels as one */
} fill;

/* n elements of the chunk to where the parameter and its master live. */
static void fill_write(const fill *f, int64_t at, int64_t n) {
    const pass_context *c = &f->p->passes;
    const char *narrow = (const char *)f->narrow + (size_t)at * dtype_bytes(f->type);
    params_write(f->e, f->p, f->p->model.params[f->i].value, c->held[f->i], f->first + at, n,
                 f->type == DTYPE_F32 ? (const char *)(f->wide + at) : narrow);
    if (c->masters[f->i]) params_write(f->e, f->p, c->masters[f->i], c->updated[f->i], f->first + at, n, f->wide + at);
}

static void fill_task(void *context, int64_t task, int thread) {
    (void)thread;
    fill *f = context;
    int64_t at = task * FILL_TASK, n = MIN(f->n - at, (int64_t)FILL_TASK);
    model_param_initial(&f->p->model.params[f->i], f->seed, f->first + at, n, f->wide + at);
    if (f->type != DTYPE_F32)
        tensor_convert((char *)f->narrow + (size_t)at * dtype_bytes(f->type), f->type, f->wide + at, DTYPE_F32,
                       (size_t)n);
    if (f->near) fill_write(f, at, n);
}

void params_write(exec *e, const plan *p, value_id v, param_share held, int64_t first, int64_t n, const void *from) {
    size_t width = dtype_bytes(program_get(&p->program, v)->type);
    int64_t begin = MAX(first, held.first), end = MIN(first + n, held.first + held.n);
    if (begin >= end) return;
    exec_write(e, v, (size_t)(begin - held.first) * width, (const char *)from + (size_t)(begin - first) * width,
               (size_t)(end - begin) * width);
}

void params_write_whole(exec *e, const plan *p, size_t i, bool master, int64_t first, int64_t n, const void *from) {
    const pass_context *c = &p->passes;
    value_id v = master ? c->masters[i] : p->model.params[i].value;
    size_t width = dtype_bytes(program_get(&p->program, v)->type);
    for (param_run run = {0}; param_cut_next(&p->model.params[i].cut, first, first + n, &run);)
        params_write(e, p, v, master ? c->updated[i] : c->held[i], run.here, run.n,
                     (const char *)from + (size_t)(run.whole - first) * width);
}

void params_initialize(exec *e, const plan *p, uint64_t seed) {
    const program *g = &p->program;
    fill f = {.e = e,
              .p = p,
              .seed = seed,
              .wide = mem_alloc(FILL_CHUNK * sizeof(float)),
              .narrow = mem_alloc(FILL_CHUNK * 2)};
    for (f.i = 0; f.i < p->model.n_params; f.i++) {
        const model_param *param = &p->model.params[f.i];
        value_id master = p->passes.masters[f.i];
        f.type = program_get(g, param->value)->type;
        f.near = exec_is_near(e, param->value) && (!master || exec_is_near(e, master));
        int64_t total = shape_count(&param->shape);
        for (f.first = 0; f.first < total; f.first += FILL_CHUNK) {
            f.n = MIN(total - f.first, (int64_t)FILL_CHUNK);
            exec_parallel(e, fill_task, &f, divide_up(f.n, FILL_TASK));
            if (!f.near) fill_write(&f, 0, f.n);
        }
    }
    free(f.wide);
    free(f.narrow);
}

/* ---- hash ------------------------------------------------------------------------------------------------------- */

/* A sum over elements of a number that mixes parameter, place in the model's tensor and bits. A sum has no order, so each
 * rank adds up what it counts for, and any mesh and any layout give one result. */
typedef struct hash_job {
    exec *e;
    value_id v;
    bool near;          /* each task reads for itself */
    int64_t held_first; /* element of what the rank has that v begins with */
    const param_cut *cut;
    uint64_t key;  /* of the parameter */
    int64_t first; /* element of what the rank has, at the chunk's start */
    int64_t n;
    size_t width;
    uint8_t *bytes;
    uint64_t sums[HASH_TASKS];
} hash_job;

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static void hash_read(const hash_job *j, int64_t at, int64_t n) {
    exec_read(j->e, j->v, (size_t)(j->first + at - j->held_first) * j->width, j->bytes + (size_t)at * j->width,
              (size_t)n * j->width);
}

static void hash_task(void *context, int64_t task, int thread) {
    (void)thread;
    hash_job *j = context;
    int64_t at = task * FILL_TASK, end = MIN(at + FILL_TASK, j->n);
    uint64_t sum = 0;
    if (j->near) hash_read(j, at, end - at);
    while (at < end) {
        int64_t n, whole = param_cut_place(j->cut, j->first + at, &n);
        n = MIN(n, end - at);
        for (int64_t k = 0; k < n; k++) {
            uint64_t bits = 0;
            memcpy(&bits, j->bytes + (size_t)(at + k) * j->width, j->width);
            sum += mix(j->key + (uint64_t)(whole + k) * 0x9e3779b97f4a7c15ull + bits);
        }
        at += n;
    }
    j->sums[task] = sum;
}

/* What an element is hashed as: its fp32 master where there are masters. */
static uint64_t hash_param(exec *e, const plan *p, size_t i, uint8_t *chunk) {
    const pass_context *c = &p->passes;
    bool master = precision_master(p->request.precision);
    value_id v = master ? c->masters[i] : p->model.params[i].value;
    param_share held = master ? c->updated[i] : c->held[i], mine = shard_saved(c, i);
    uint64_t sum = 0;
    if (mine.n == 0) return 0;
    hash_job j = {.e = e,
                  .v = v,
                  .near = exec_is_near(e, v),
                  .held_first = held.first,
                  .cut = &p->model.params[i].cut,
                  .key = rng_key(0, p->model.params[i].name),
                  .width = dtype_bytes(program_get(&p->program, v)->type),
                  .bytes = chunk};
    for (int64_t at = 0; at < mine.n; at += FILL_CHUNK) {
        j.first = mine.first + at;
        j.n = MIN(mine.n - at, (int64_t)FILL_CHUNK);
        if (!j.near) hash_read(&j, 0, j.n);
        int64_t n_tasks = divide_up(j.n, FILL_TASK);
        exec_parallel(e, hash_task, &j, n_tasks);
        for (int64_t k = 0; k < n_tasks; k++) sum += j.sums[k];
    }
    return sum;
}

uint64_t params_hash(exec *e, const plan *p, comm *c) {
    uint64_t sum = 0;
    uint8_t *chunk = mem_alloc(FILL_CHUNK * sizeof(float));
    for (size_t i = 0; i < p->model.n_params; i++) sum += hash_param(e, p, i, chunk);
    free(chunk);
    if (!c) return mix(sum);
    uint64_t *all = mem_alloc((size_t)comm_size(c) * sizeof *all);
    status rc = comm_all_gather_bytes(c, &sum, sizeof sum, all);
    sum = 0;
    for (int r = 0; r < comm_size(c); r++) sum += all[r];
    free(all);
    return rc == OK ? mix(sum) : 0;
}

/* Shares begin at whole blocks, so their entries are their own. */
static param_share in_entries(param_share share, int64_t per) {
    return (param_share){share.first / per, divide_up(share.n, per)};
}

checkpoint_tensor *params_checkpoint_tensors(const plan *p, arena *memory, size_t *n) {
    const pass_context *c = &p->passes;
    const struct {
        const char *kind;
        const value_id *values; /* NULL: the parameters themselves */
        int64_t per_entry;      /* elements of the parameter that one entry serves */
    } groups[] = {{"param", NULL, 1},
                  {"master", c->masters, 1},
                  {"m", c->moments, 1},
                  {"v", c->variances, 1},
                  {"m_scale", c->moment_scales, STATE_BLOCK},
                  {"v_scale", c->variance_scales, STATE_BLOCK}};
    checkpoint_tensor *list = mem_alloc(ARRAY_LENGTH(groups) * p->model.n_params * sizeof *list);
    *n = 0;
    for (size_t i = 0; i < p->model.n_params; i++)
        for (size_t k = 0; k < ARRAY_LENGTH(groups); k++) {
            const model_param *param = &p->model.params[i];
            int64_t per = groups[k].per_entry;
            value_id v = groups[k].values ? groups[k].values[i] : param->value;
            param_share held = groups[k].values ? c->updated[i] : c->held[i];
            if (v == NO_VALUE || held.n == 0) continue;
            list[(*n)++] = (checkpoint_tensor){.name = arena_format(memory, "%s/%s", groups[k].kind, param->name),
                                               .value = v,
                                               .type = program_get(&p->program, v)->type,
                                               .shape = per == 1 ? param->cut.whole
                                                                 : SHAPE(divide_up(shape_count(&param->shape), per)),
                                               .cut = param->cut.dim < 0 ? NULL : &param->cut,
                                               .held = in_entries(held, per),
                                               .saved = in_entries(shard_saved(c, i), per)};
        }
    return list;
}
