#pragma once
/* target.h - private to machine: the device that a program is made for, as far as passes must know it. */
#include "program/program.h"

/* What a pass must know of the machine the program is for. A pure description: no device is touched. */
typedef struct target {
    const char *name;
    int n_threads;
    size_t alignment; /* of every value, a power of two */
    size_t (*work_bytes)(const program *p, const op *o, int n_threads);
    size_t (*host_work_bytes)(const program *p, const op *o,
                              int n_threads); /* of ops beside host memory; NULL: the same */
    int64_t logits_rows; /* whose logits are alive at once, where the user says nothing; 0: the plan's own number */
    size_t (*comm_bytes)(const program *p, const op *o); /* scratch of what runs between ranks; NULL: none */
    bool has_ring;                                       /* kernels for keys and values that go round, rank to rank */
    tier comm_at;  /* where messages find their bytes: TIER_HOST where a transport cannot reach the device's memory */
    int n_devices; /* that one process can drive; 0: as many as there are tiers for */
    bool discrete; /* the device is none of the host's cores: they work beside it */
} target;
