/* pipeline_order.c - one global order of all jobs and messages of all stages, and the part of one stage.
 *
 * A SEND ends when its bytes were received, and a rank sends one message after the other. So the order of messages matters:
 * two neighbours that both send to each other first wait forever. All stages are simulated together, with a backward twice as
 * long as a forward, which gives every job a start time and every message a time, the end of its sender's job. A stage's list
 * is its part of that one order. No deadlock is possible, however long jobs really take: of all that remains, the first in
 * the order can always run. */
#include "pass/pipeline.h"

#include <stdlib.h>

enum { FORWARD_TIME = 1, BACKWARD_TIME = 2, UNKNOWN = -1 };

typedef struct simulation {
    const pipeline_shape *s;
    int64_t *forward_end, *backward_end; /* of chunk k, micro-batch m: [k * n_micros + m] */
} simulation;

static int n_virtual(const pipeline_shape *s) { return s->n_chunks / s->n_stages; }
static bool is_last(const pipeline_shape *s, int chunk) { return chunk == s->n_chunks - 1; }
static bool has_embed_job(const pipeline_shape *s, int stage) { return s->tied && stage == s->n_stages - 1; }

int pipeline_jobs(const pipeline_shape *s, int stage, pipeline_job *out) {
    int n = 0;
    for (int k = stage; k < s->n_chunks; k += s->n_stages)
        out[n++] = (pipeline_job){is_last(s, k) ? JOB_LOSS : JOB_FORWARD, k};
    for (int k = s->n_chunks - s->n_stages + stage; k >= 0; k -= s->n_stages)
        if (!is_last(s, k)) out[n++] = (pipeline_job){JOB_BACKWARD, k};
    if (has_embed_job(s, stage)) out[n++] = (pipeline_job){JOB_EMBED, 0};
    return n;
}

/* ---- the jobs of one stage, in order --------------------------------------------------------------------------------- */

/* The i-th forward or backward of a stage: each chunk runs as many micro-batches as there are stages, then the next chunk. */
static pipeline_entry nth_job(const pipeline_shape *s, int stage, bool forward, int64_t i) {
    int64_t round = (int64_t)s->n_chunks, at = i % round, v = at / s->n_stages;
    if (!forward) v = n_virtual(s) - 1 - v;
    int chunk = (int)v * s->n_stages + stage;
    job_kind kind = is_last(s, chunk) ? JOB_LOSS : forward ? JOB_FORWARD : JOB_BACKWARD;
    return (pipeline_entry){ACT_RUN, {kind, chunk}, i / round * s->n_stages + at % s->n_stages, UNKNOWN, 0};
}

/* Returns how many. The backward of the last chunk is part of its forward's job. */
static size_t list_jobs(const pipeline_shape *s, int stage, pipeline_entry *out) {
    size_t n = 0;
    int v = n_virtual(s), behind = s->n_stages - 1 - stage;
    int64_t total = s->n_micros * v, ahead = v == 1 ? behind : 2 * behind + (v - 1) * s->n_stages;
    ahead = MIN(ahead, total);
    for (int64_t i = 0; i < total + ahead; i++) {
        if (i < total) out[n++] = nth_job(s, stage, true, i);
        if (i < ahead) continue;
        pipeline_entry back = nth_job(s, stage, false, i - ahead);
        if (back.job.kind == JOB_BACKWARD) out[n++] = back;
    }
    return n;
}

/* ---- all stages ------------------------------------------------------------------------------------------------------ */

/* When the input of a job arrives; UNKNOWN while its sender was not simulated. */
static int64_t arrival(const simulation *p, const pipeline_job *j, int64_t micro) {
    int64_t M = p->s->n_micros;
    if (j->kind == JOB_EMBED) return p->backward_end[micro];
    if (j->kind == JOB_BACKWARD) return p->backward_end[(j->chunk + 1) * M + micro];
    return j->chunk == 0 ? 0 : p->forward_end[(j->chunk - 1) * M + micro];
}

static int64_t end_of(const pipeline_entry *e) {
    int64_t forward = e->job.kind == JOB_FORWARD || e->job.kind == JOB_LOSS ? FORWARD_TIME : 0;
    int64_t backward = e->job.kind == JOB_BACKWARD || e->job.kind == JOB_LOSS ? BACKWARD_TIME : 0;
    return e->time + forward + backward;
}

/* Simulates a job if it can begin. */
static bool simulate_job(simulation *p, pipeline_entry *e, int64_t *free_from) {
    int64_t there = arrival(p, &e->job, e->micro), at = e->job.chunk * p->s->n_micros + e->micro;
    if (there == UNKNOWN) return false;
    e->time = MAX(there, *free_from);
    *free_from = end_of(e);
    if (e->job.kind != JOB_BACKWARD) p->forward_end[at] = *free_from;
    if (e->job.kind != JOB_FORWARD) p->backward_end[at] = *free_from;
    return true;
}

/* The number of a message, the same for sender and receiver. */
static int64_t message_id(const pipeline_shape *s, int direction, int sender_chunk, int64_t micro) {
    return ((int64_t)direction * s->n_chunks + sender_chunk) * s->n_micros + micro;
}

static void add_messages(const simulation *p, const pipeline_entry *run, pipeline_entry *out, size_t *n) {
    const pipeline_shape *s = p->s;
    const pipeline_job *j = &run->job;
    pipeline_entry e = *run;
    bool forward = j->kind == JOB_FORWARD || j->kind == JOB_LOSS;
    if (j->kind == JOB_EMBED || j->kind == JOB_BACKWARD || j->chunk > 0) {
        e.act = ACT_RECV;
        e.time = arrival(p, j, run->micro);
        e.id = j->kind == JOB_EMBED ? message_id(s, 2, 0, run->micro)
                                    : message_id(s, !forward, forward ? j->chunk - 1 : j->chunk + 1, run->micro);
        out[(*n)++] = e;
    }
    if (j->kind == JOB_EMBED || (j->kind == JOB_BACKWARD && j->chunk == 0 && !s->tied)) return;
    e.act = ACT_SEND;
    e.time = end_of(run);
    e.id = j->kind == JOB_BACKWARD && j->chunk == 0 ? message_id(s, 2, 0, run->micro)
                                                    : message_id(s, j->kind != JOB_FORWARD, j->chunk, run->micro);
    out[(*n)++] = e;
}

/* By time; at the same time messages first, by their numbers, then jobs. */
static int by_time(const void *a, const void *b) {
    const pipeline_entry *x = a, *y = b;
    if (x->time != y->time) return x->time < y->time ? -1 : 1;
    if ((x->act == ACT_RUN) != (y->act == ACT_RUN)) return x->act == ACT_RUN ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* The jobs of every stage with their times. */
static void simulate_all(simulation *p, pipeline_entry *jobs, const size_t *n_jobs, size_t room) {
    const pipeline_shape *s = p->s;
    size_t *next = mem_alloc((size_t)s->n_stages * sizeof *next);
    int64_t *free_from = mem_alloc((size_t)s->n_stages * sizeof *free_from);
    for (bool any = true; any;) {
        any = false;
        for (int i = 0; i < s->n_stages; i++)
            while (next[i] < n_jobs[i] && simulate_job(p, &jobs[(size_t)i * room + next[i]], &free_from[i]))
                next[i]++, any = true;
    }
    for (int i = 0; i < s->n_stages; i++) ASSERT(next[i] == n_jobs[i]); /* every job's sender comes before it */
    free(next);
    free(free_from);
}

pipeline_entry *pipeline_order(const pipeline_shape *s, int stage, size_t *n) {
    size_t cells = (size_t)s->n_chunks * (size_t)s->n_micros;
    size_t room = 2 * (size_t)n_virtual(s) * (size_t)s->n_micros; /* for the jobs of a stage */
    simulation p = {s, mem_alloc(cells * sizeof(int64_t)), mem_alloc(cells * sizeof(int64_t))};
    pipeline_entry *jobs = mem_alloc((size_t)s->n_stages * room * sizeof *jobs);
    size_t *n_jobs = mem_alloc((size_t)s->n_stages * sizeof *n_jobs);
    for (size_t i = 0; i < cells; i++) p.forward_end[i] = p.backward_end[i] = UNKNOWN;
    for (int i = 0; i < s->n_stages; i++) n_jobs[i] = list_jobs(s, i, jobs + (size_t)i * room);
    simulate_all(&p, jobs, n_jobs, room);

    pipeline_entry *out = mem_alloc(3 * (room + (size_t)s->n_micros) * sizeof *out);
    *n = 0;
    for (size_t i = 0; i < n_jobs[stage]; i++) {
        pipeline_entry run = jobs[(size_t)stage * room + i];
        run.id = (int64_t)i;
        add_messages(&p, &run, out, n);
        out[(*n)++] = run;
    }
    for (int64_t m = 0; m < s->n_micros && has_embed_job(s, stage); m++) {
        pipeline_entry run = {ACT_RUN, {JOB_EMBED, 0}, m, p.backward_end[m], (int64_t)room + m};
        add_messages(&p, &run, out, n);
        out[(*n)++] = run;
    }
    qsort(out, *n, sizeof *out, by_time);
    free(n_jobs);
    free(jobs);
    free(p.forward_end);
    free(p.backward_end);
    return out;
}
