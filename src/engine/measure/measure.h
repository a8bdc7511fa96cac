#pragma once
/* measure.h - what this machine can do, measured with the kernels, the copies and the file that training uses.
 *
 *     hardware h;
 *     TRY(measure_machine(b, &(measure_options){.disk_path = "."}, &h));
 *     TRY(hardware_write_file(&h, "my.yaml"));
 */
#include "exec/exec.h"

/* FLOP/s of a large matrix product in this dtype on this machine, best of a few: the peak that progress is measured by. It takes
 * `most_s`, but some milliseconds at least and half a second at most. */
status measure_peak(const backend *b, const backend_options *o, dtype t, double most_s, double *flops_per_second);

/* This machine as a hardware description, in some ten seconds: products, attention, elements, memory, copies, AdamW, disk. */
typedef struct measure_options {
    int n_threads; /* 0: one per core */
    bool bind;
    gpu_options gpu;
    const char *disk_path; /* a directory on the disk in question */
    const hardware *known; /* measured before: copies and the host's cores are measured again; NULL: everything */
    double try_s;          /* time for each number; 0: enough for a good one */
    void (*on_part)(void *context, const char *part); /* what is measured now; NULL: nobody asks */
    void *context;
} measure_options;
status measure_machine(const backend *b, const measure_options *o, hardware *out);
