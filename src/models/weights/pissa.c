/* pissa.c - the principal part of every adapted weight, one module at a time.
 *
 * The host holds one module of the base as fp32 and the factors of one weight. */
#include "weights/pissa.h"
#include "weights/match.h"
#include "weights/params.h"
#include "weights/svd.h"

#include <math.h>
#include <stdlib.h>

enum { BLOCK_ELEMENTS = 1 << 20, ROW_TASK = 16 };

/* Nothing of these programs runs: their sizes are the smallest. */
static status build_names(net *m, program *g, const model_config *c, const lora_options *o) {
    lora_options plain = *o;
    plain.pissa = false;
    TRY(model_build(m, g, c, &(net_options){.batch = 1, .seq_len = 1, .compute = DTYPE_F32, .lora = plain}));
    return OK;
}

static status open_base(pissa *s, const param_origin *from) {
    s->base = (param_reader){
        .m = &s->m, .g = &s->g, .base = {.r = from->reader, .seed = from->seed}, .block = BLOCK_ELEMENTS};
    s->base.raw = mem_alloc(BLOCK_ELEMENTS * sizeof(float));
    if (!from->dir) return OK;
    TRY(weight_files_open(&s->files, from->dir));
    s->parts = mem_alloc(match_part_count(&s->m) * sizeof *s->parts);
    TRY(match_weights(&s->m, s->files.files, s->files.n_files, "", s->parts));
    s->base.base.files = s->parts;
    return OK;
}

status pissa_open(pissa *s, const model_config *c, const lora_options *o, const param_origin *base) {
    *s = (pissa){.scale = (double)lora_scale(o), .rank = o->rank, .weight = SIZE_MAX};
    lora_options wide = lora_exported(o);
    program_init(&s->g);
    program_init(&s->wide_g);
    status rc = build_names(&s->m, &s->g, c, o);
    if (rc == OK) rc = build_names(&s->wide, &s->wide_g, c, &wide);
    if (rc == OK) rc = pool_open(&s->threads, 0, false);
    if (rc == OK) rc = open_base(s, base);
    if (rc != OK) pissa_close(s);
    return rc;
}

void pissa_close(pissa *s) {
    weight_files_close(&s->files);
    free(s->parts);
    free(s->base.raw);
    free(s->a0);
    free(s->b0);
    if (s->threads) pool_close(s->threads);
    net_fini(&s->m);
    net_fini(&s->wide);
    program_fini(&s->g);
    program_fini(&s->wide_g);
    *s = (pissa){0};
}

/* ---- one module -------------------------------------------------------------------------------------------------- */

typedef struct module {
    float *w;     /* (n, m), in the end without its principal part */
    int64_t n, m; /* rows, columns */
    int64_t rank;
    double scale;
    float *a; /* (rank, m) */
    float *b; /* (n, rank) */
} module;

static void residual_task(void *context, int64_t task, int thread) {
    (void)thread;
    const module *x = context;
    for (int64_t i = task * ROW_TASK; i < MIN((task + 1) * ROW_TASK, x->n); i++)
        for (int64_t c = 0; c < x->m; c++) {
            double sum = 0;
            for (int64_t k = 0; k < x->rank; k++) sum += (double)x->b[i * x->rank + k] * (double)x->a[k * x->m + c];
            x->w[i * x->m + c] = (float)((double)x->w[i * x->m + c] - x->scale * sum);
        }
}

static void factor_module(pool *threads, module *x) {
    double *u = mem_alloc((size_t)(x->n * x->rank) * sizeof *u), *v = mem_alloc((size_t)(x->rank * x->m) * sizeof *v);
    double *sigma = mem_alloc((size_t)x->rank * sizeof *sigma);
    svd_first(threads, x->w, x->n, x->m, x->rank, u, sigma, v);
    for (int64_t k = 0; k < x->rank; k++) {
        double root = sqrt(sigma[k] / x->scale);
        for (int64_t c = 0; c < x->m; c++) x->a[k * x->m + c] = (float)(root * v[k * x->m + c]);
        for (int64_t i = 0; i < x->n; i++) x->b[i * x->rank + k] = (float)(root * u[i * x->rank + k]);
    }
    free(u);
    free(v);
    free(sigma);
}

static status read_module(pissa *s, size_t i, const param_part *part, module *x) {
    int64_t block = MAX((int64_t)1, BLOCK_ELEMENTS / x->m);
    for (int64_t row = 0; row < x->n; row += block)
        TRY(param_reader_read(&s->base, i, (part->first_row + row) * x->m, MIN(block, x->n - row) * x->m,
                              x->w + row * x->m));
    for (int64_t k = 0; k < x->n * x->m; k++)
        if (!isfinite(x->w[k]))
            return ERR(
                ERR_INPUT,
                "model.lora.init: found %g in the tensor '%s', expected finite numbers: pissa takes its singular "
                "values",
                (double)x->w[k], part->file_name);
    return OK;
}

/* ---- one weight -------------------------------------------------------------------------------------------------- */

/* What a module has without its principal part. */
typedef void module_rest(void *context, const param_part *part, const module *x);

/* SIZE_MAX: it has none. */
static size_t find_adapter(const net *m, size_t weight, adapter_part which) {
    if (m->params[weight].adapter != ADAPTER_NONE || !str_ends_with(m->params[weight].name, ".w")) return SIZE_MAX;
    for (size_t k = weight + 1; k < m->n_params && m->params[k].unit == m->params[weight].unit; k++)
        if (m->params[k].adapter == which && param_is_adapter_of(&m->params[weight], &m->params[k])) return k;
    return SIZE_MAX;
}

/* Fills a0 and b0, laid out as the adapters of m are. */
static status factor_weight(pissa *s, size_t i, module_rest *rest, void *context) {
    status rc = OK;
    const net_param *w = &s->m.params[i];
    const net_param *a = &s->m.params[find_adapter(&s->m, i, ADAPTER_A)];
    const net_param *b = &s->m.params[find_adapter(&s->m, i, ADAPTER_B)];
    int64_t columns = w->shape.dim[1];
    s->weight = SIZE_MAX;
    free(s->a0);
    free(s->b0);
    s->a0 = mem_alloc((size_t)shape_count(&a->shape) * sizeof *s->a0);
    s->b0 = mem_alloc((size_t)shape_count(&b->shape) * sizeof *s->b0);
    TRY(param_reader_begin(&s->base, i));
    for (int k = 0; k < w->n_parts && rc == OK; k++) {
        int at = param_adapted_part(b, &w->parts[k]);
        if (at < 0) continue;
        module x = {.n = w->parts[k].n_rows, .m = columns, .rank = s->rank, .scale = s->scale};
        if (x.rank > MIN(x.n, x.m))
            return ERR(
                ERR_INPUT,
                "model.lora.init: found pissa with model.lora.rank %lld, expected at most %lld, the singular values "
                "of '%s'",
                (long long)x.rank, (long long)MIN(x.n, x.m), w->parts[k].file_name);
        x.w = mem_alloc((size_t)(x.n * x.m) * sizeof *x.w);
        x.a = s->a0 + a->parts[at].first_row * columns;
        x.b = s->b0 + b->parts[at].first_row * s->rank;
        rc = read_module(s, i, &w->parts[k], &x);
        if (rc == OK) factor_module(s->threads, &x);
        if (rc == OK && rest) {
            pool_run(s->threads, residual_task, &x, divide_up(x.n, ROW_TASK));
            rest(context, &w->parts[k], &x);
        }
        free(x.w);
    }
    param_reader_end(&s->base, i);
    if (rc == OK) s->weight = i;
    return rc;
}

/* ---- into a program ---------------------------------------------------------------------------------------------- */

typedef struct starter {
    exec *e;
    const plan *p;
    size_t weight; /* of the program */
} starter;

/* SIZE_MAX: another stage of a pipeline has it. */
static size_t find_param(const net *m, const char *name) {
    for (size_t i = 0; i < m->n_params; i++)
        if (!m->params[i].of_reference && strcmp(m->params[i].name, name) == 0) return i;
    return SIZE_MAX;
}

/* Elements [first, first + n) of the whole parameter, rounded once to its dtype; and to its master. */
static void write_param(const starter *t, size_t i, int64_t first, int64_t n, const float *from) {
    dtype type = program_get(&t->p->program, t->p->net.params[i].value)->type;
    void *narrow = mem_alloc((size_t)BLOCK_ELEMENTS * sizeof(float));
    for (int64_t at = 0; at < n; at += BLOCK_ELEMENTS) {
        int64_t k = MIN(n - at, (int64_t)BLOCK_ELEMENTS);
        tensor_convert(narrow, type, from + at, DTYPE_F32, (size_t)k);
        params_write_whole(t->e, t->p, i, false, first + at, k, narrow);
        if (t->p->step.masters[i]) params_write_whole(t->e, t->p, i, true, first + at, k, from + at);
    }
    free(narrow);
}

static void write_rest(void *context, const param_part *part, const module *x) {
    const starter *t = context;
    write_param(t, t->weight, part->first_row * x->m, x->n * x->m, x->w);
}

static status start_weight(pissa *s, starter *t, size_t i) {
    TRY(factor_weight(s, i, write_rest, t));
    for (adapter_part which = ADAPTER_A; which <= ADAPTER_B; which++) {
        const net_param *q = &s->m.params[find_adapter(&s->m, i, which)];
        write_param(t, find_param(&t->p->net, q->name), 0, shape_count(&q->shape), which == ADAPTER_A ? s->a0 : s->b0);
    }
    return OK;
}

status pissa_start(exec *e, const plan *p, const param_origin *base) {
    pissa s;
    starter t = {.e = e, .p = p};
    TRY(pissa_open(&s, model_of(&p->request.source), &p->request.lora, base));
    status rc = OK;
    for (size_t i = 0; i < s.m.n_params && rc == OK; i++) {
        t.weight = find_param(&p->net, s.m.params[i].name);
        if (t.weight == SIZE_MAX || find_adapter(&s.m, i, ADAPTER_B) == SIZE_MAX) continue;
        rc = start_weight(&s, &t, i);
    }
    pissa_close(&s);
    return rc == OK ? exec_check(e) : rc;
}

status pissa_check_base(pissa *s, const lora_base *then, const char *checkpoint) {
    status rc = OK;
    uint64_t sum = 0;
    float *rows = mem_alloc(BLOCK_ELEMENTS * sizeof *rows);
    for (size_t i = 0; i < s->m.n_params && rc == OK; i++) {
        const net_param *q = &s->m.params[i];
        int64_t n = shape_count(&q->shape), columns = q->shape.rank == 2 ? q->shape.dim[1] : 1;
        int64_t block = MAX((int64_t)1, BLOCK_ELEMENTS / columns) * columns;
        if (q->beside_base) continue;
        ASSERT(columns <= BLOCK_ELEMENTS);
        rc = param_reader_begin(&s->base, i);
        for (int64_t at = 0; at < n && rc == OK; at += block) {
            rc = param_reader_read(&s->base, i, at, MIN(block, n - at), rows);
            if (rc == OK) sum += params_hash_elements(q->name, at, rows, MIN(block, n - at), then->type);
        }
        if (rc == OK) param_reader_end(&s->base, i);
    }
    free(rows);
    uint64_t now = params_hash_finish(sum);
    if (rc == OK && now != then->hash) rc = lora_base_changed(checkpoint, then, now);
    return rc;
}

/* ---- of an export ------------------------------------------------------------------------------------------------ */

/* "layers.0.mlp.down.lora_a" -> the weight "layers.0.mlp.down.w" of m. */
static size_t weight_of(const pissa *s, const net_param *adapter) {
    for (size_t i = 0; i < s->m.n_params; i++) {
        const net_param *w = &s->m.params[i];
        if (w->adapter == ADAPTER_NONE && str_ends_with(w->name, ".w") && param_is_adapter_of(w, adapter)) return i;
    }
    return SIZE_MAX;
}

/* A critic's head, which is what it is. */
static status read_whole(pissa *s, size_t own, float *out) {
    float *now;
    TRY(param_reader_adapter(&s->adapters, own, &now));
    memcpy(out, now, (size_t)shape_count(&s->adapters.m->params[own].shape) * sizeof *out);
    free(now);
    return OK;
}

status pissa_widen(pissa *s, size_t i, float *out) {
    const net_param *q = &s->wide.params[i], *narrow = &s->m.params[i];
    int64_t r = s->rank, columns = q->shape.rank == 2 ? q->shape.dim[1] : 1;
    size_t weight = weight_of(s, q), own = find_param(s->adapters.m, q->name);
    ASSERT(strcmp(q->name, narrow->name) == 0 && own != SIZE_MAX);
    if (q->adapter == ADAPTER_NONE) return read_whole(s, own, out);
    ASSERT(weight != SIZE_MAX);
    if (s->weight != weight) TRY(factor_weight(s, weight, NULL, NULL));
    float *now;
    TRY(param_reader_adapter(&s->adapters, own, &now));
    if (q->adapter == ADAPTER_A) {
        for (int k = 0; k < q->n_parts; k++) {
            float *to = out + q->parts[k].first_row * columns;
            size_t n = (size_t)(r * columns), from = (size_t)(narrow->parts[k].first_row * columns);
            memcpy(to, now + from, n * sizeof *to);
            memcpy(to + n, s->a0 + from, n * sizeof *to);
        }
    } else {
        for (int64_t row = 0; row < q->shape.dim[0]; row++)
            for (int64_t k = 0; k < r; k++) {
                out[row * columns + k] = now[row * r + k];
                out[row * columns + r + k] = -s->b0[row * r + k];
            }
    }
    free(now);
    return OK;
}
