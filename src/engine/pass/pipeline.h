#pragma once
/* pipeline.h - private to pass: the order in which the stages of a pipeline run the micro-batches of a step.
 *
 * The ops of one micro-batch at a stage form jobs. Each job begins with a message from another stage (except the first) and
 * ends with a message to another (except the last); where a reference passes beside the model, with one more directly before. 1F1B: a stage runs as many forwards as there are stages after it, then
 * alternates one forward and one backward, then runs the remaining backwards. A stage never has more micro-batches in flight
 * than there are stages from it to the last. Interleaved 1F1B: the same with several chunks of layers per stage; each chunk
 * runs as many micro-batches as there are stages before the next chunk runs. It divides the bubble by the number of chunks. */
#include "pass/pass.h"

typedef enum job_kind {
    JOB_FORWARD,  /* of one chunk */
    JOB_LOSS,     /* forward and backward of the last chunk together */
    JOB_BACKWARD, /* of one chunk */
    JOB_EMBED,    /* tied tables, on the last stage: the embedding's part of the gradient */
} job_kind;

typedef struct pipeline_shape {
    int n_stages, n_chunks; /* chunk k is at stage k modulo n_stages */
    int64_t n_micros;
    bool tied; /* and the table is trained: its gradient has a part on both ends */
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
    pipeline_job job; /* the job that runs, or whose message this is */
    int64_t micro;
    /* of the order: see pipeline_order.c */
    int64_t time, id;
} pipeline_entry;
/* All jobs and messages of a step at one stage. The caller frees. */
pipeline_entry *pipeline_order(const pipeline_shape *s, int stage, size_t *n);
