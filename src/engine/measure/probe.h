#pragma once
/* probe.h - private to measure: the parts of measure_machine: one op on operands of its own, timed; the host and its copies; the disk.
 *
 *     probe r;
 *     TRY(probe_open(&r, m, OP_ADD, &attr, (operand[]){x, x}, 2, (operand[]){x}, 1));
 *     double seconds = probe_seconds(&r, 1);   // the best of many tries
 *     TRY(probe_close(&r));                    // one of them may have failed */
#include "measure/measure.h"

#define LEAST_TRIES 4

typedef struct operand { /* of no dimension: the op does without */
    dtype type;
    shape shape;
} operand;

/* Where measuring happens, and what one number may take, all its tries together. */
typedef struct bench {
    const backend *b;
    backend_context *c;
    const backend *host; /* whose memory copies come from and go to */
    backend_context *host_context;
    double try_s;
} bench;

typedef struct probe {
    const backend *b;
    backend_context *c;
    double try_s;
    program p;
    kernel_call call;
    void *memory;
    size_t n_bytes;
    status failed; /* of the first try that did, and why: its seconds are worth nothing */
    error_record failure;
} probe;

status probe_open(probe *r, const bench *m, op_kind kind, const op_attr *attr, const operand *in, int n_in,
                  const operand *out, int n_out);
status probe_close(probe *r);          /* fails where a try has */
double probe_try(probe *r, int times); /* seconds of one of so many runs in a row */
/* Seconds of one run of each: the best of as many tries as fit into try_s apiece, each of `times` runs in a row. They
 * take turns, so that other work on the machine disturbs all alike. */
void probe_seconds_each(probe *r, int n, const int *times, double *best);
double probe_seconds(probe *r, int times);
double probe_mean_seconds(probe *r, int times); /* of the tries, but the first */
/* Of those in the second half of the time: a device has the clock by then that its power leaves it. */
double probe_settled_seconds(probe *r, int times);

/* Read and write bandwidth of the disk that holds `dir`; direct: past the page cache. */
status measure_disk(const char *dir, hardware *h, bool *direct);
status measure_copies(const bench *m, hardware *h);
status measure_host(const bench *host, hardware *h); /* its cores and memory, whatever the device is */
status measure_host_beside_copies(const bench *m, const bench *host, hardware *h);
