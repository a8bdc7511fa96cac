/* params.c - initial values, hash and checkpoint list of the parameters.
 *
 * Initial values depend on (seed, name, element) only, never on layout, ranks, precision or thread count: every
 * precision starts from the same fp32 numbers, rounded once. */
#include "weights/params.h"

#include <stdlib.h>

#define FILL_TASK 16384 /* elements per task */
#define HASH_TASKS 64
#define FILL_CHUNK (HASH_TASKS * FILL_TASK) /* elements staged at once: 4 MiB of fp32 */

/* Memory that host threads cannot access is written a chunk at a time, by one thread: the first task of a run writes
 * the previous chunk while the others generate the next. */
typedef struct fill_chunk {
    size_t i; /* of the parameter */
    int64_t first, n;
    dtype type;
    bool near; /* each task writes what it has made */
    float *wide;
    void *narrow;
} fill_chunk;

typedef struct fill {
    exec *e;
    const plan *p;
    uint64_t seed;
    fill_chunk *drawn;
    fill_chunk *carried; /* drawn before, and far; NULL: none */
} fill;

/* Elements [first, first + n) of a parameter to the value that holds `held` of it: what they have in common. */
static void write_share(exec *e, const plan *p, value_id v, param_share held, int64_t first, int64_t n,
                        const void *from) {
    size_t width = dtype_bytes(program_get(&p->program, v)->type);
    int64_t begin = MAX(first, held.first), end = MIN(first + n, held.first + held.n);
    if (begin >= end) return;
    exec_write(e, v, (size_t)(begin - held.first) * width, (const char *)from + (size_t)(begin - first) * width,
               (size_t)(end - begin) * width);
}

/* n elements of the chunk to where the parameter and its master live. */
static void fill_write(const fill *f, const fill_chunk *k, int64_t at, int64_t n) {
    const step_interface *step = &f->p->step;
    const char *narrow = (const char *)k->narrow + (size_t)at * dtype_bytes(k->type);
    write_share(f->e, f->p, f->p->net.params[k->i].value, step->held[k->i], k->first + at, n,
                k->type == DTYPE_F32 ? (const char *)(k->wide + at) : narrow);
    if (step->masters[k->i])
        write_share(f->e, f->p, step->masters[k->i], step->updated[k->i], k->first + at, n, k->wide + at);
}

static void fill_draw(const fill *f, const fill_chunk *k, int64_t at) {
    int64_t n = MIN(k->n - at, (int64_t)FILL_TASK);
    model_param_initial(&f->p->net.params[k->i], f->seed, k->first + at, n, k->wide + at);
    if (k->type != DTYPE_F32)
        tensor_convert((char *)k->narrow + (size_t)at * dtype_bytes(k->type), k->type, k->wide + at, DTYPE_F32,
                       (size_t)n);
    if (k->near) fill_write(f, k, at, n);
}

static void fill_task(void *context, int64_t task, int thread) {
    (void)thread;
    const fill *f = context;
    if (f->carried && task == 0) fill_write(f, f->carried, 0, f->carried->n);
    else fill_draw(f, f->drawn, (task - (f->carried != NULL)) * FILL_TASK);
}

/* Draws f->drawn, and leaves there the chunk whose buffers are free. */
static void fill_run(fill *f, fill_chunk chunks[2]) {
    exec_parallel(f->e, fill_task, f, divide_up(f->drawn->n, FILL_TASK) + (f->carried != NULL));
    f->carried = f->drawn->near ? NULL : f->drawn;
    if (f->carried) f->drawn = f->carried == &chunks[0] ? &chunks[1] : &chunks[0];
}

void params_write_whole(exec *e, const plan *p, size_t i, bool master, int64_t first, int64_t n, const void *from) {
    const step_interface *step = &p->step;
    value_id v = master ? step->masters[i] : p->net.params[i].value;
    size_t width = dtype_bytes(program_get(&p->program, v)->type);
    for (param_run run = {0}; param_cut_next(&p->net.params[i].cut, first, first + n, &run);)
        write_share(e, p, v, master ? step->updated[i] : step->held[i], run.here, run.n,
                    (const char *)from + (size_t)(run.whole - first) * width);
}

static bool is_in(const net_param *q, param_group group) {
    if (group == PARAMS_VALUE_HEAD) return q->of_value_head;
    return group == PARAMS_ALL || group == PARAMS_FROZEN || (q->adapter == ADAPTER_NONE) == (group == PARAMS_BASE);
}

void params_initialize(exec *e, const plan *p, uint64_t seed) { params_draw(e, p, seed, PARAMS_ALL, NULL); }

typedef struct drawn_rows {
    exec *e;
    const net_param *param;
    uint64_t seed;
    int64_t first, n; /* elements */
    float *out;
} drawn_rows;

static void draw_task(void *context, int64_t task, int thread) {
    (void)thread;
    const drawn_rows *d = context;
    int64_t at = task * FILL_TASK;
    model_param_initial(d->param, d->seed, d->first + at, MIN(d->n - at, (int64_t)FILL_TASK), d->out + at);
}

static void draw_rows(void *context, int64_t first, int64_t n, float *out) {
    drawn_rows *d = context;
    int64_t columns = d->param->shape.dim[1];
    d->first = first * columns, d->n = n * columns, d->out = out;
    exec_parallel(d->e, draw_task, d, divide_up(d->n, FILL_TASK));
}

static void draw_quantized(exec *e, const plan *p, size_t i, uint64_t seed, base_hash *hash) {
    drawn_rows d = {.e = e, .param = &p->net.params[i], .seed = seed};
    status rc = quantized_write(e, p, i, draw_rows, &d, hash);
    ASSERT(rc == OK); /* drawn numbers are finite */
}

void params_draw(exec *e, const plan *p, uint64_t seed, param_group group, base_hash *hash) {
    const program *g = &p->program;
    fill_chunk chunks[2];
    for (size_t k = 0; k < ARRAY_LENGTH(chunks); k++)
        chunks[k] = (fill_chunk){.wide = mem_alloc(FILL_CHUNK * sizeof(float)), .narrow = mem_alloc(FILL_CHUNK * 2)};
    fill f = {.e = e, .p = p, .seed = seed, .drawn = &chunks[0]};
    for (size_t i = 0; i < p->net.n_params; i++) {
        const net_param *param = &p->net.params[i];
        value_id master = p->step.masters[i];
        if (is_in(param, group) && quantized_is(p, i)) {
            draw_quantized(e, p, i, seed, hash);
            continue;
        }
        int64_t total = is_in(param, group) ? shape_count(&param->shape) : 0;
        for (int64_t first = 0; first < total; first += FILL_CHUNK) {
            f.drawn->i = i;
            f.drawn->first = first;
            f.drawn->n = MIN(total - first, (int64_t)FILL_CHUNK);
            f.drawn->type = program_get(g, param->value)->type;
            f.drawn->near = exec_is_host_accessible(e, param->value) && (!master || exec_is_host_accessible(e, master));
            fill_run(&f, chunks);
        }
    }
    if (f.carried) fill_write(&f, f.carried, 0, f.carried->n);
    for (size_t k = 0; k < ARRAY_LENGTH(chunks); k++) {
        free(chunks[k].wide);
        free(chunks[k].narrow);
    }
}

/* ---- hash ------------------------------------------------------------------------------------------------------- */

/* A sum over elements of a hash of parameter, position in the model's tensor and bits. A sum has no order, so each
 * rank adds up its own share, and any mesh and any layout give the same result. */
typedef struct hash_chunk {
    value_id v;
    bool near;          /* each task reads for itself */
    int64_t held_first; /* element of what the rank has that v begins with */
    const param_cut *cut;
    param_cut whole; /* of codes, which nothing cuts */
    uint64_t key;    /* of the parameter */
    int64_t first;   /* element of what the rank has, at the chunk's start */
    int64_t n;
    size_t width;
    dtype narrow; /* hashed as if rounded to this from fp32; DTYPE_COUNT: as it is */
    uint8_t *bytes;
} hash_chunk;

/* As with initial values: memory that is not accessible is read by the first task of a run, while the others hash
 * the chunk before. */
typedef struct hash_job {
    exec *e;
    hash_chunk *fetched; /* NULL: none */
    hash_chunk *hashed;  /* NULL: none */
    uint64_t sums[HASH_TASKS];
    uint64_t sum; /* of all that was hashed */
} hash_job;

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* Elements [first, first + n) of a tensor, each mixed with its place, in their sum. */
static inline __attribute__((always_inline)) uint64_t mixed_sum_of(uint64_t key, int64_t first, const uint8_t *bytes,
                                                                   size_t width, int64_t n) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = 0;
        memcpy(&bits, bytes + (size_t)i * width, width);
        sum += mix(key + (uint64_t)(first + i) * 0x9e3779b97f4a7c15ull + bits);
    }
    return sum;
}

/* A width that the compiler knows is a load instead of a call. */
static uint64_t mixed_sum(uint64_t key, int64_t first, const uint8_t *bytes, size_t width, int64_t n) {
    if (width == 2) return mixed_sum_of(key, first, bytes, 2, n);
    if (width == 4) return mixed_sum_of(key, first, bytes, 4, n);
    return mixed_sum_of(key, first, bytes, width, n);
}

static void hash_read(exec *e, const hash_chunk *k, int64_t at, int64_t n) {
    exec_read(e, k->v, (size_t)(k->first + at - k->held_first) * k->width, k->bytes + (size_t)at * k->width,
              (size_t)n * k->width);
}

static uint64_t hash_part(exec *e, const hash_chunk *k, int64_t at) {
    int64_t begin = at, end = MIN(at + FILL_TASK, k->n);
    uint64_t sum = 0;
    uint16_t narrow[FILL_TASK];
    const uint8_t *bytes = k->bytes + (size_t)at * k->width;
    size_t width = k->width;
    if (k->near) hash_read(e, k, at, end - at);
    if (k->narrow != DTYPE_COUNT) {
        tensor_convert(narrow, k->narrow, bytes, DTYPE_F32, (size_t)(end - at));
        bytes = (const uint8_t *)narrow, width = sizeof *narrow;
    }
    while (at < end) {
        int64_t n, whole = param_cut_place(k->cut, k->first + at, &n);
        n = MIN(n, end - at);
        sum += mixed_sum(k->key, whole, bytes + (size_t)(at - begin) * width, width, n);
        at += n;
    }
    return sum;
}

static void hash_task(void *context, int64_t task, int thread) {
    (void)thread;
    hash_job *j = context;
    if (j->fetched && task == 0) {
        hash_read(j->e, j->fetched, 0, j->fetched->n);
        return;
    }
    task -= j->fetched != NULL;
    j->sums[task] = hash_part(j->e, j->hashed, task * FILL_TASK);
}

static void hash_run(hash_job *j, hash_chunk *fetched, hash_chunk *hashed) {
    int64_t n_parts = hashed ? divide_up(hashed->n, FILL_TASK) : 0;
    j->fetched = fetched;
    j->hashed = hashed;
    exec_parallel(j->e, hash_task, j, n_parts + (fetched != NULL));
    for (int64_t k = 0; k < n_parts; k++) j->sum += j->sums[k];
}

uint64_t params_hash_elements(const char *name, int64_t first, const float *x, int64_t n, dtype as) {
    uint16_t narrow[FILL_TASK];
    uint64_t sum = 0, key = rng_key(0, name);
    size_t width = dtype_bytes(as);
    for (int64_t at = 0; at < n; at += FILL_TASK) {
        int64_t k = MIN(n - at, (int64_t)FILL_TASK);
        const uint8_t *bytes = (const uint8_t *)(x + at);
        if (as != DTYPE_F32) {
            tensor_convert(narrow, as, x + at, DTYPE_F32, (size_t)k);
            bytes = (const uint8_t *)narrow;
        }
        sum += mixed_sum(key, first + at, bytes, width, k);
    }
    return sum;
}

uint64_t params_hash_finish(uint64_t sum) { return mix(sum); }

/* What an element is hashed as: its fp32 master where there are masters. The chunk has no elements yet. */
static hash_chunk hash_begin(exec *e, const plan *p, size_t i) {
    const step_interface *step = &p->step;
    bool master = precision_master(p->request.choice.precision) && !p->net.params[i].frozen && !p->request.no_training;
    value_id v = master ? step->masters[i] : p->net.params[i].value;
    return (hash_chunk){.v = v,
                        .near = exec_is_host_accessible(e, v),
                        .held_first = master ? step->updated[i].first : step->held[i].first,
                        .cut = &p->net.params[i].cut,
                        .key = rng_key(0, p->net.params[i].name),
                        .width = dtype_bytes(program_get(&p->program, v)->type),
                        .narrow = DTYPE_COUNT};
}

/* The same for a value with codes or scales of a quantised weight. */
static hash_chunk hash_begin_codes(exec *e, const plan *p, value_id v) {
    const value *a = program_get(&p->program, v);
    int64_t n = shape_count(&a->shape);
    return (hash_chunk){.v = v,
                        .near = exec_is_host_accessible(e, v),
                        .whole = {.here = SHAPE(n), .whole = SHAPE(n), .dim = -1},
                        .key = rng_key(0, a->name),
                        .width = dtype_bytes(a->type),
                        .narrow = DTYPE_COUNT};
}

typedef struct hasher {
    hash_job j;
    hash_chunk chunks[2], *waiting; /* fetched, not hashed yet */
    uint8_t *bytes[2];
} hasher;

/* n elements from `first`, a chunk at a time. */
static void hash_range(hasher *h, const hash_chunk *of, int64_t first, int64_t n) {
    for (int64_t at = 0; at < n; at += FILL_CHUNK) {
        size_t spare = h->waiting == &h->chunks[0];
        hash_chunk *k = &h->chunks[spare];
        *k = *of;
        if (!k->cut) k->cut = &k->whole;
        k->bytes = h->bytes[spare];
        k->first = first + at;
        k->n = MIN(n - at, (int64_t)FILL_CHUNK);
        if (k->near) {
            hash_run(&h->j, NULL, k);
        } else {
            hash_run(&h->j, k, h->waiting);
            h->waiting = k;
        }
    }
}

static void hash_codes(hasher *h, const plan *p, size_t i) {
    value_id values[QUANTIZED_VALUES];
    int n = quantized_values(p, i, values);
    for (int k = 0; k < n; k++) {
        hash_chunk of = hash_begin_codes(h->j.e, p, values[k]);
        hash_range(h, &of, 0, shape_count(&of.whole.whole));
    }
}

static bool is_hashed(const net_param *q, param_group group) {
    if (group == PARAMS_BASE && q->beside_base) return false;
    if (group == PARAMS_BASE && q->of_other_head)
        return false; /* not in what generates, nor in ordinary files, where it begins as the first */
    return group == PARAMS_REFERENCE ? q->of_reference : !q->of_reference && is_in(q, group);
}

static uint64_t copy_key(const net_param *q) {
    char name[160];
    snprintf(name, sizeof name, "%s%s", REFERENCE_PREFIX, q->name);
    return rng_key(0, name);
}

/* Of what this rank counts for. as: what fp32 parameters are rounded to first; DTYPE_COUNT: nothing. Of the base alone,
 * quantised parameters are left out. */
static uint64_t hash_share(exec *e, const plan *p, param_group group, dtype as) {
    hasher h = {.j = {.e = e}};
    for (size_t k = 0; k < ARRAY_LENGTH(h.bytes); k++) h.bytes[k] = mem_alloc(FILL_CHUNK * sizeof(float));
    for (size_t i = 0; i < p->net.n_params; i++) {
        param_share mine = shard_counted(&p->step, &p->net, &p->request.mesh, i);
        if (mine.n == 0 || !is_hashed(&p->net.params[i], group)) continue;
        if (quantized_is(p, i)) {
            if (group != PARAMS_BASE) hash_codes(&h, p, i);
            continue;
        }
        hash_chunk of = hash_begin(e, p, i);
        if (group == PARAMS_FROZEN) of.key = copy_key(&p->net.params[i]);
        if (program_get(&p->program, of.v)->type == DTYPE_F32) of.narrow = as;
        hash_range(&h, &of, mine.first, mine.n);
    }
    if (h.waiting) hash_run(&h.j, NULL, h.waiting);
    for (size_t k = 0; k < ARRAY_LENGTH(h.bytes); k++) free(h.bytes[k]);
    return h.j.sum;
}

/* more: the sum of what is hashed elsewhere. */
static uint64_t hash_all(exec *e, const plan *p, comm *c, param_group group, dtype as, uint64_t more) {
    uint64_t sum = hash_share(e, p, group, as) + more;
    if (!c) return mix(sum);
    uint64_t *all = mem_alloc((size_t)comm_size(c) * sizeof *all);
    status rc = comm_all_gather_bytes(c, &sum, sizeof sum, all);
    sum = 0;
    for (int r = 0; r < comm_size(c); r++) sum += all[r];
    free(all);
    return rc == OK ? mix(sum) : 0;
}

uint64_t params_hash(exec *e, const plan *p, comm *c) { return hash_all(e, p, c, PARAMS_ALL, DTYPE_COUNT, 0); }

uint64_t params_base_hash(exec *e, const plan *p, comm *c, const base_hash *h) {
    return hash_all(e, p, c, PARAMS_BASE, h->as == DTYPE_F32 ? DTYPE_COUNT : h->as, h->sum);
}

uint64_t params_reference_hash(exec *e, const plan *p, comm *c) {
    return hash_all(e, p, c, PARAMS_REFERENCE, DTYPE_COUNT, 0);
}

uint64_t params_frozen_hash(exec *e, const plan *p) { return hash_all(e, p, NULL, PARAMS_FROZEN, DTYPE_COUNT, 0); }

/* Shares begin at whole blocks, so their entries are their own. */
static param_share in_entries(param_share share, int64_t per) {
    return (param_share){share.first / per, divide_up(share.n, per)};
}

checkpoint_tensor *params_checkpoint_tensors(const plan *p, arena *memory, size_t *n) {
    const step_interface *step = &p->step;
    const struct {
        const char *kind;
        const value_id *values; /* NULL: the parameters themselves */
        int64_t per_entry;      /* elements of the parameter that one entry serves */
    } groups[] = {{"param", NULL, 1},
                  {"master", step->masters, 1},
                  {"m", step->moments, 1},
                  {"v", step->variances, 1},
                  {"m_scale", step->moment_scales, STATE_BLOCK},
                  {"v_scale", step->variance_scales, STATE_BLOCK}};
    checkpoint_tensor *list = mem_alloc(ARRAY_LENGTH(groups) * p->net.n_params * sizeof *list);
    *n = 0;
    for (size_t i = 0; i < p->net.n_params; i++)
        for (size_t k = 0; k < ARRAY_LENGTH(groups); k++) {
            const net_param *param = &p->net.params[i];
            int64_t per = groups[k].per_entry;
            value_id v = groups[k].values ? groups[k].values[i] : param->value;
            param_share held = groups[k].values ? step->updated[i] : step->held[i];
            if (v == NO_VALUE || held.n == 0 || param->frozen)
                continue; /* frozen ones come from where they came from */
            list[(*n)++] = (checkpoint_tensor){
                .name = arena_format(memory, "%s/%s", groups[k].kind, param->name),
                .value = v,
                .type = program_get(&p->program, v)->type,
                .shape = per == 1 ? param->cut.whole : SHAPE(divide_up(shape_count(&param->shape), per)),
                .cut = param->cut.dim < 0 ? NULL : &param->cut,
                .held = in_entries(held, per),
                .saved = in_entries(shard_counted(step, &p->net, &p->request.mesh, i), per)};
        }
    return list;
}
