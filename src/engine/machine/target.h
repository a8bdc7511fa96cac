#pragma once
/* target.h - private to machine: the device that a program is compiled for, as passes see it. */
#include "program/program.h"

/* What passes need to know of the machine. A pure description: no device is touched. */
typedef struct target {
    const char *name;
    int n_threads;
    size_t alignment; /* of every value, a power of two */
    size_t (*work_bytes)(const program *p, const op *o, int n_threads);
    size_t (*host_work_bytes)(const program *p, const op *o,
                              int n_threads); /* of ops beside host memory; NULL: the same */
    int64_t logits_rows; /* rows of logits at once, where no setting says so; 0: the plan's own number */
    size_t (*comm_bytes)(const program *p, const op *o); /* scratch of what runs between ranks; NULL: none */
    double ring_slowness;  /* attention by a ring takes so many times as long as over whole rows; 0: as long */
    tier comm_at;          /* where messages read and write: TIER_HOST where a transport cannot reach device memory */
    int64_t head_dim_most; /* that its attention kernels take; 0: any */
    bool discrete;         /* the device is separate from the host's cores: both work in parallel */
} target;
