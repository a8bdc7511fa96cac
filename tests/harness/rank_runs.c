/* rank_runs.c - see rank_runs.h. */
#include "model/model.h"
#include "rank_runs.h"
#include "train/batch.h"
#include "weights/params.h"

#include <math.h>
#include <stdlib.h>

/* ---- gradients of one micro-batch -------------------------------------------------------------------------------- */

typedef struct micro {
    config c;
    train_request r;
    plan p;
    exec *e;
} micro;

/* The second matrix of an adapter begins with zeros, and then the first has no gradient: draws it, as a rank alone would. */
static void draw_adapters(const micro *m) {
    for (size_t i = 0; i < m->p.net.n_params; i++) {
        const net_param *q = &m->p.net.params[i];
        int64_t n = shape_count(&q->cut.whole);
        if (q->adapter != ADAPTER_B) continue;
        float *x = mem_alloc((size_t)n * sizeof *x);
        rng_normal_fill(rng_key(5, q->name), 0, x, (size_t)n, 0, 0.1f);
        params_write_whole(m->e, &m->p, i, false, 0, n, x);
        free(x);
    }
}

static void micro_open(micro *m, const training *t, bool weighted) {
    static const float some[] = {0.3f, 2, 0, -1, 1};
    must(training_request(t, &m->c, &m->r));
    m->r.plan.token_weights = weighted;
    must(plan_choose(&m->p, &m->r.plan));
    must(exec_open(&m->e, &m->p.program, &(exec_options){.backend = m->r.backend, .n_threads = 1, .comm = t->comm}));
    params_initialize(m->e, &m->p, 7);
    draw_adapters(m);
    int64_t n = m->p.request.choice.micro_batch * m->p.request.seq_len, T = m->p.request.seq_len;
    int32_t *rows[3]; /* tokens, targets, doc_start: two documents per row, some tokens not trained on */
    for (int k = 0; k < 3; k++) {
        rows[k] = mem_alloc((size_t)n * sizeof *rows[k]);
        for (int64_t i = 0; i < n; i++) {
            int64_t token = (i * 37 + i / 5 * 11 + k) % model_of(&m->p.request.source)->vocab;
            rows[k][i] = k == 2 ? (int32_t)(i % T < T / 3 ? 0 : T / 3) : k == 1 && i % 7 == 3 ? -1 : (int32_t)token;
        }
    }
    float *weights = mem_alloc((size_t)n * sizeof *weights);
    for (int64_t i = 0; i < n; i++) weights[i] = some[i % 5];
    batch_rows from = {rows[0], rows[1], rows[2], weighted ? weights : NULL, .first_row = 0};
    must(batch_write(m->e, &m->p, &m->p.step.inputs[0], &from));
    free(weights);
    for (int k = 0; k < 3; k++) free(rows[k]);
    step_scalars s = step_scalars_of(1, 0);
    exec_write(m->e, m->p.step.inputs[0].scalars, 0, &s, sizeof s);
    must(exec_run(m->e, SECTION_MICRO));
}

static void micro_close(micro *m) {
    exec_close(m->e);
    plan_close(&m->p);
    config_fini(&m->c);
}

/* The parameter with that number in the whole model, where this rank has it and trains it. */
static const net_param *find_param(const micro *m, size_t number) {
    for (size_t i = 0; i < m->p.net.n_params; i++)
        if (m->p.net.params[i].number == number && !m->p.net.params[i].is_copy) return &m->p.net.params[i];
    return NULL;
}

/* In room for all of the model's; zeros where this rank has nothing of it. */
static double *read_gradient(const micro *m, const net_param *q, size_t room) {
    double *out = mem_alloc(room * sizeof *out);
    if (!q) return out;
    size_t n = (size_t)shape_count(&q->shape);
    float *narrow = mem_alloc(n * sizeof *narrow);
    exec_read(m->e, m->p.step.grads[q - m->p.net.params], 0, narrow, n * sizeof *narrow);
    /* Every data rank was given the same rows, and has the sum of what they all found. */
    for (size_t k = 0; k < n; k++) out[k] = (double)narrow[k] / mesh_size(&m->p.request.mesh, AXIS_DATA);
    free(narrow);
    return out;
}

/* Sequence ranks have a part of the sum each, until the update. All ranks come here, whatever they have. */
static void sum_over_sequence(double *x, size_t n) {
    int n_ranks = mesh_size(comm_mesh(ranks), AXIS_SEQUENCE);
    if (n_ranks == 1) return;
    double *all = mem_alloc((size_t)comm_size(ranks) * n * sizeof *all);
    must(comm_all_gather_bytes(ranks, x, n * sizeof *x, all));
    for (size_t i = 0; i < n; i++) {
        x[i] = 0;
        for (int s = 0; s < n_ranks; s++) x[i] += all[(size_t)comm_rank_at(ranks, AXIS_SEQUENCE, s) * n + i];
    }
    free(all);
}

/* Cosine of a rank's gradient with the same elements of the whole, and the largest difference beside the largest element. */
static void compare_gradient(const char *preset, const net_param *q, const double *mine, const double *whole) {
    double dot = 0, a = 0, b = 0, worst = 0, largest = 0;
    for (int64_t at = 0, n, count = shape_count(&q->shape); at < count; at += n) {
        int64_t from = param_cut_place(&q->cut, at, &n);
        for (int64_t k = 0; k < n; k++) {
            double x = mine[at + k], y = from < 0 ? 0 : whole[from + k];
            dot += x * y, a += x * x, b += y * y;
            worst = fmax(worst, fabs(x - y)), largest = fmax(largest, fabs(y));
        }
    }
    double cosine = a == 0 && b == 0 ? 1 : dot / sqrt(a * b);
    if (!(cosine > 0.99999) || !(worst <= 1e-4 * largest))
        FAIL("%s: gradient of %s: cosine %.9f with one rank's, differs by %g of %g", preset, q->name, cosine, worst,
             largest);
}

static void compare_gradients(const training *t, const char *const *more, bool weighted) {
    const char *settings[SETTINGS_MOST];
    training all = *t;
    micro alone, shared;
    settings_join(settings, t->more, more);
    all.comm = ranks;
    all.more = settings;
    micro_open(&alone, t, weighted);
    micro_open(&shared, &all, weighted);
    for (size_t i = 0; i < alone.p.net.n_params; i++) {
        const net_param *whole_param = &alone.p.net.params[i], *q = find_param(&shared, whole_param->number);
        size_t room = (size_t)shape_count(&whole_param->shape);
        if (whole_param->frozen) continue;
        double *whole = read_gradient(&alone, whole_param, room), *mine = read_gradient(&shared, q, room);
        sum_over_sequence(mine, room);
        if (q) compare_gradient(t->preset, q, mine, whole);
        free(whole);
        free(mine);
    }
    micro_close(&alone);
    micro_close(&shared);
}

void gradients_shared(const training *t, const char *const *more) {
    compare_gradients(t, more, false);
    compare_gradients(t, more, true);
}

/* ---- whole runs ------------------------------------------------------------------------------------------------------ */

static void on_step(void *context, const train_step_report *r) {
    curve *c = context;
    c->loss[r->step - 1] = r->loss;
    c->norm[r->step - 1] = r->grad_norm;
}

void run_alone(training t, train_result *out) {
    t.comm = NULL;
    if (comm_rank(ranks) == 0) must(training_run(&t, out));
    must(comm_broadcast(ranks, out, sizeof *out, 0));
}

uint64_t run_in_turn(training t, bool alone) {
    train_result r = {0};
    t.comm = ranks;
    must(comm_barrier(ranks));
    if (alone) {
        run_alone(t, &r);
        return r.param_hash;
    }
    must(training_run(&t, &r));
    must(comm_broadcast(ranks, &r, sizeof r, 0));
    return r.param_hash;
}

void check_as_planned(const train_result *r, const char *name) {
    const char *problem = ledger_problem(&r->memory);
    if (problem) FAIL("%s: %s", name, problem);
}

static train_result run_curve(training t, curve *out) {
    train_result r;
    train_observer o = {.context = out, .on_step = on_step};
    t.steps = CURVE_STEPS;
    t.observer = &o;
    must(training_run(&t, &r));
    out->eval = r.eval.loss;
    return r;
}

void curve_alone(const training *t, curve *out) {
    *out = (curve){0};
    if (comm_rank(ranks) == 0) run_curve(*t, out);
    must(comm_broadcast(ranks, out, sizeof *out, 0));
}

void curve_shared(const training *t, const char *const *more, const curve *alone, double bound) {
    curve c = {0};
    const char *settings[SETTINGS_MOST];
    training all = *t;
    char name[512];
    settings_join(settings, t->more, more);
    all.more = settings;
    all.comm = ranks;
    size_t at = (size_t)snprintf(name, sizeof name, "%s %s", t->preset, precision_name(t->precision));
    for (const char *const *s = settings; *s && at < sizeof name; s++)
        at += (size_t)snprintf(name + at, sizeof name - at, " %s", *s);
    train_result r = run_curve(all, &c);
    for (int i = 0; i < CURVE_STEPS; i++)
        if (!(fabs(c.loss[i] - alone->loss[i]) <= bound) || !(fabs(c.norm[i] / alone->norm[i] - 1) <= 10 * bound)) {
            FAIL("%s: step %d: loss %.7f, norm %.6f, alone %.7f, %.6f", name, i + 1, c.loss[i], c.norm[i],
                 alone->loss[i], alone->norm[i]);
            break;
        }
    if (isfinite(alone->eval) && !(fabs(c.eval - alone->eval) <= bound))
        FAIL("%s: held-out loss %.7f, alone %.7f", name, c.eval, alone->eval);
    check_as_planned(&r, name);
}

char *shared_dir(void) {
    char *dir = mem_alloc(512);
    if (comm_rank(ranks) == 0) {
        char *made = training_dir();
        snprintf(dir, 512, "%s", made);
        free(made);
    }
    must(comm_broadcast(ranks, dir, 512, 0));
    return dir;
}

void shared_dir_remove(char *dir) {
    must(comm_barrier(ranks));
    if (comm_rank(ranks) == 0) must(dir_remove_all(dir));
    free(dir);
}
