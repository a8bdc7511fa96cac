/* params.c - first values, hash and checkpoint list of the parameters.
 *
 * Initial values depend on (seed, name, element) only, never on layout, precision or thread count: every precision
 * starts from the same fp32 numbers, rounded once. */
#include "train/params.h"

#include <stdlib.h>
#include <xxhash.h>

#define FILL_TASK 16384             /* elements per task */
#define FILL_CHUNK (64 * FILL_TASK) /* elements staged at once: 4 MiB of fp32 */
#define HASH_ELEMENTS (1 << 18)     /* handed around at once */

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

void params_write(exec *e, const plan *p, value_id v, param_share held, int64_t first, int64_t n, const void *from) {
    size_t width = dtype_bytes(program_get(&p->program, v)->type);
    int64_t begin = MAX(first, held.first), end = MIN(first + n, held.first + held.n);
    if (begin >= end) return;
    exec_write(e, v, (size_t)(begin - held.first) * width, (const char *)from + (size_t)(begin - first) * width,
               (size_t)(end - begin) * width);
}

void params_initialize(exec *e, const plan *p, uint64_t seed) {
    const program *g = &p->program;
    fill f = {.seed = seed, .wide = mem_alloc(FILL_CHUNK * sizeof(float)), .narrow = mem_alloc(FILL_CHUNK * 2)};
    for (size_t i = 0; i < p->model.n_params; i++) {
        f.param = &p->model.params[i];
        f.type = program_get(g, f.param->value)->type;
        int64_t total = shape_count(&f.param->shape);
        for (f.first = 0; f.first < total; f.first += FILL_CHUNK) {
            f.n = MIN(total - f.first, (int64_t)FILL_CHUNK);
            exec_parallel(e, fill_task, &f, (f.n + FILL_TASK - 1) / FILL_TASK);
            params_write(e, p, f.param->value, p->passes.held[i], f.first, f.n,
                         f.type == DTYPE_F32 ? (void *)f.wide : f.narrow);
            if (p->passes.masters[i])
                params_write(e, p, p->passes.masters[i], p->passes.updated[i], f.first, f.n, f.wide);
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

/* Order matters: h is mixed before the next is added. */
static uint64_t mix(uint64_t h, uint64_t next) {
    h = (h ^ next) * 0x9e3779b97f4a7c15ull;
    return h ^ h >> 29;
}

uint64_t params_hash(exec *e, const plan *p) {
    uint64_t h = 0;
    for (size_t i = 0; i < p->model.n_params; i++)
        h = mix(h, exec_hash(e, p->passes.masters[i] ? p->passes.masters[i] : p->model.params[i].value));
    return h;
}

/* What an element is hashed as: its fp32 master where there are masters. */
static dtype hashed_type(const plan *p) {
    precision q = p->request.precision;
    return precision_master(q) ? DTYPE_F32 : precision_compute(q);
}

/* Each owner in turn hands its part of the parameter to all. */
static status hash_shares(exec *e, const plan *p, comm *c, size_t i, XXH3_state_t *hash, char *chunk) {
    const pass_context *x = &p->passes;
    value_id v = precision_master(p->request.precision) ? x->masters[i] : p->model.params[i].value;
    param_share here = precision_master(p->request.precision) ? x->updated[i] : x->held[i];
    size_t width = dtype_bytes(hashed_type(p));
    for (int owner = 0; owner < mesh_size(&x->mesh, AXIS_DATA); owner++) {
        param_share share = shard_share(x, i, owner);
        for (int64_t at = 0; at < share.n; at += HASH_ELEMENTS) {
            size_t n = (size_t)MIN(share.n - at, (int64_t)HASH_ELEMENTS) * width;
            if (owner == x->mesh.index[AXIS_DATA])
                exec_read(e, v, (size_t)(share.first + at - here.first) * width, chunk, n);
            TRY(comm_broadcast(c, chunk, n, comm_rank_at(c, AXIS_DATA, owner)));
            ASSERT(XXH3_64bits_update(hash, chunk, n) == XXH_OK);
        }
    }
    return OK;
}

uint64_t params_hash_all(exec *e, const plan *p, comm *c) {
    if (!c || p->request.shard.zero == 0) return params_hash(e, p);
    uint64_t h = 0;
    status rc = OK;
    char *chunk = mem_alloc(HASH_ELEMENTS * sizeof(float));
    XXH3_state_t *hash = XXH3_createState();
    for (size_t i = 0; i < p->model.n_params && rc == OK; i++) {
        ASSERT(hash && XXH3_64bits_reset(hash) == XXH_OK);
        rc = hash_shares(e, p, c, i, hash, chunk);
        h = mix(h, XXH3_64bits_digest(hash));
    }
    XXH3_freeState(hash);
    free(chunk);
    return rc == OK ? h : 0;
}

static int64_t entries(int64_t n_elements, int64_t per) { return (n_elements + per - 1) / per; }

/* Shares begin at whole blocks, so their entries are their own. */
static param_share in_entries(param_share share, int64_t per) {
    return (param_share){share.first / per, entries(share.n, per)};
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
            list[(*n)++] =
                (checkpoint_tensor){.name = arena_format(memory, "%s/%s", groups[k].kind, param->name),
                                    .value = v,
                                    .type = program_get(&p->program, v)->type,
                                    .shape = per == 1 ? param->shape : SHAPE(entries(shape_count(&param->shape), per)),
                                    .held = in_entries(held, per),
                                    .saved = in_entries(shard_saved(c, i), per)};
        }
    return list;
}
