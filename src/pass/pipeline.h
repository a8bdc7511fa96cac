#pragma once
/* pipeline.h - private to pass: in which order the stages of a pipeline work on the micro-batches of a step.
 *
 * What a stage does for one micro-batch falls into jobs, each of which begins with a message from another stage (but for the
 * first) and ends with one to another (but for the last). 1F1B: a stage runs as many forwards as there are stages behind it,
 * then one forward and one backward in turn, then the backwards that are left. No stage ever has more micro-batches between
 * forward and backward than stages from it to the last. Interleaved: the same with several chunks of layers per stage, in turn
 * for as many micro-batches as there are stages; the time in which stages wait is divided by the number of chunks. */
#include "pass/pass.h"

typedef enum job_kind {
    JOB_FORWARD,  /* of one chunk */
    JOB_LOSS,     /* forward and backward of the last chunk, one behind the other */
    JOB_BACKWARD, /* of one chunk */
    JOB_EMBED,    /* tied tables, on the last stage: the embedding's part of the gradient */
} job_kind;

typedef struct pipeline_shape {
    int n_stages, n_chunks; /* chunk k is at stage k modulo n_stages */
    int64_t n_micros;
    bool tied;
} pipeline_shape;

typedef struct pipeline_job {
    job_kind kind;
    int chunk;
} pipeline_job;

/* The jobs of one micro-batch at a stage, in the order of its program; n_chunks * 2 + 1 are enough. */
int pipeline_jobs(const pipeline_shape *s, int stage, pipeline_job *out);

typedef enum pipeline_act { ACT_RECV, ACT_RUN, ACT_SEND } pipeline_act;
typedef struct pipeline_entry {
    pipeline_act act;
    pipeline_job job; /* which is run, or receives or sends */
    int64_t micro;
    /* of the order: see pipeline_order.c */
    int64_t time, id;
} pipeline_entry;
/* All of a step at one stage. The caller frees. */
pipeline_entry *pipeline_order(const pipeline_shape *s, int stage, size_t *n);
