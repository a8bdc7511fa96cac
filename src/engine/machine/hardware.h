#pragma once
/* hardware.h - a machine as numbers, so that a step can be timed where the machine is not.
 *
 * Rates are what programs reach, not what data sheets promise; the sheet's number stands beside them where there is
 * one. `ralo devices --measure` writes such a description for the machine it runs on.
 *
 *     hardware h;
 *     TRY(hardware_load(&h, "h200"));           // a built-in name, or the path of a description file
 *     TRY(hardware_write_file(&h, "my.yaml"));  // hardware_load reads it back to the same numbers
 */
#include "tensor/tensor.h"

#define HARDWARE_DTYPES 3 /* fp32, bf16, fp16: arrays are indexed by dtype */
_Static_assert(DTYPE_F32 < HARDWARE_DTYPES && DTYPE_BF16 < HARDWARE_DTYPES && DTYPE_F16 < HARDWARE_DTYPES,
               "the compute dtypes come first");

/* FLOP/s, bytes/s, seconds, bytes. hardware.def says what each is; 0 in an optional one means "not there". */
typedef struct hardware {
    char name[64], source[256];
    int64_t devices_per_node;
    bool unified, overlap;
    uint64_t device_bytes, host_bytes;
    double device_bandwidth, launch_s, sum_s, noise_rate, host_bandwidth, host_total;
    double host_adamw, host_adamw8, host_noise;
    double host_matrix[HARDWARE_DTYPES];
    double matrix[HARDWARE_DTYPES], sheet[HARDWARE_DTYPES], attention[HARDWARE_DTYPES], vector[HARDWARE_DTYPES];
    double matrix_fp8, sheet_fp8; /* of products alone: nothing else is computed in 8 bits */
    double half[3]; /* m, n, k: rate(m, n, k) = matrix * m / (m + half_m) * n / (n + half_n) * k / (k + half_k) */
    double attention_half; /* rate(T) = attention * T / (T + attention_half) */
    double copy_to_device, copy_to_host, copy_both;
    double disk_read, disk_write;
    double link_bandwidth, link_latency, network_bandwidth, network_latency;
} hardware;

const hardware *hardware_at(size_t i); /* built in; NULL at the end */
/* A built-in name or what people call it ("4090", "H100-80GB"), perhaps with the devices of a node ("h100x8", "8xh100"), or a file when there is a '/' or a '.yaml' /
 * '.yml' / '.json' in it. Unknown names: ERR_INPUT with the list; files are checked key by key. */
status hardware_load(hardware *out, const char *name_or_path);
int64_t hardware_named_count(const char *name_or_path); /* the devices that such a name counts; 0: none, or a file */
status hardware_read_file(hardware *out, const char *path);
status hardware_write_file(const hardware *h, const char *path); /* whole or not at all */
void hardware_write(const hardware *h, FILE *out);               /* the same text */
void hardware_round(hardware *h, int digits);                    /* every rate and time, in the unit it is written in */

/* An estimate of this machine when nothing was measured: cores times the usual rate of such a core. */
void hardware_estimate(hardware *out, const sys_info *machine, int n_threads);
void hardware_scale_device(hardware *h, double share); /* a device with this share of the multiprocessors */
void hardware_scale_cores(hardware *h, double share);  /* a CPU that others use for the rest of the time */
/* "Arm Neoverse-N1, 2 threads": a measurement belongs to the machine and threads it was made with. */
void hardware_machine_name(char out[64], const sys_info *machine, int n_threads);
/* Where this user's measurement lies: $XDG_CACHE_HOME/ralo/hardware.yaml, or ~/.cache/...; "" when neither is known. */
void hardware_cache_path(char *out, size_t n);

/* FLOP/s of a product with a result (m, n) and sums of length k. */
double hardware_product_rate(const hardware *h, dtype t, double m, double n, double k);
double hardware_attention_rate(const hardware *h, dtype t, double row_tokens); /* FLOP/s */
#define HARDWARE_ADAMW_FLOPS 14.0 /* of one parameter without noise, as op_flops counts them */
