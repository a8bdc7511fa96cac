/* hardware_table.c - machines known by name.
 *
 * A table in the program, not files beside it: the program works alone wherever it is copied, and there is no path to
 * search or to get wrong. Whoever wants to change a number prints a row with `ralo devices --hardware NAME`, edits it and
 * gives the file to --hardware; `base: NAME` in a file takes all other numbers from here.
 *
 * Matrix rates: what cuBLAS reaches on large products in a warm device, below the sheet's dense number in `sheet`. fp32
 * is IEEE fp32 on the vector units, not TF32. Of the devices, the H200's matrix and attention rates, its copies and its host
 * were measured, what its small sums cost was read from a trace; every other achievable number is taken from the sheet times
 * the share that published runs of that device reach, and `source` says so. Memory bandwidths are about nine tenths of the
 * sheet. half_* of GPUs stand for the tiles of 128 x 256 that a whole device needs enough of; they are guesses until measured
 * there. Memory hides the cost of rounding noise on the H200 (AdamW of bf16 22 us in a trace, of fp32 21), so no row names a rate. */
#include "machine/hardware.h"

#define G 1e9
#define T 1e12
#define US 1e-6
#define GIB (1ull << 30)
#define RATES(f32, b16, f16) \
    { [DTYPE_F32] = f32, [DTYPE_BF16] = b16, [DTYPE_F16] = f16 }
#define GPU_HALF \
    { 128, 128, 64 }
#define ESTIMATE "data-sheet numbers times a typical efficiency; not measured"

static const hardware machines[] = {
    {.name = "h200",
     .source = "matrix, attention, copies and host measured on an H200 SXM; sums from a trace; the rest data sheet",
     .devices_per_node = 8,
     .overlap = true,
     .device_bytes = 139 * GIB, /* what the driver leaves of 141 GB */
     .host_bytes = 1024 * GIB,
     .device_bandwidth = 4.3 * T, /* sheet 4.8 */
     .launch_s = 3 * US,
     .sum_s = 16 * US, /* GRAD_SUMSQ of a trace: 23 us for 31 MB */
     /* Measured: AdamW and sums over arrays of 1 to 2 GB 120 to 160, of fp32 more than of bf16. */
     .host_bandwidth = 150 * G,
     .host_adamw = 10.3 * G,
     .host_noise = 26.7 * G,
     /* What steps reach at 700 W: products alone sustain 670, one at a time 790. */
     .host_matrix = RATES(1.15 * T, 3.7 * T, 1.2 * T), /* 16 cores, measured: AVX-512, AMX for bf16 */
     .matrix = RATES(51 * T, 740 * T, 740 * T),
     .sheet = RATES(67 * T, 989.4 * T, 989.4 * T),
     .matrix_fp8 = 1350 * T,
     .sheet_fp8 = 1978.9 * T,
     .half = GPU_HALF,
     /* Measured: 440 at rows of 128K to 1M, D 128; at 1024 275, forward 341. */
     .attention = RATES(40 * T, 440 * T, 440 * T),
     .attention_half = 614,
     .vector = RATES(30 * T, 30 * T, 30 * T),
     .copy_to_device = 55 * G, /* measured, PCIe 5 x16 */
     .copy_to_host = 55 * G,
     .copy_both = 87 * G,
     .disk_read = 6 * G,
     .disk_write = 3 * G,
     .link_bandwidth = 400 * G, /* NVLink 4: 450 each way */
     .link_latency = 5 * US,
     .network_bandwidth = 45 * G, /* 400 Gbit/s per device */
     .network_latency = 10 * US},
    {.name = "h100",
     .source = "as h200, with the H100 SXM's memory; " ESTIMATE,
     .devices_per_node = 8,
     .overlap = true,
     .device_bytes = 79 * GIB,
     .host_bytes = 1024 * GIB,
     .device_bandwidth = 3.0 * T, /* sheet 3.35 */
     .launch_s = 3 * US,
     .host_bandwidth = 150 * G,
     .host_adamw = 10.3 * G,
     .host_noise = 26.7 * G,
     .host_matrix = RATES(1.15 * T, 3.7 * T, 1.2 * T),
     .matrix = RATES(51 * T, 760 * T, 760 * T),
     .sheet = RATES(67 * T, 989.4 * T, 989.4 * T),
     .matrix_fp8 = 1300 * T,
     .sheet_fp8 = 1978.9 * T,
     .half = GPU_HALF,
     .attention = RATES(25 * T, 400 * T, 400 * T),
     .vector = RATES(30 * T, 30 * T, 30 * T),
     .copy_to_device = 55 * G,
     .copy_to_host = 55 * G,
     .copy_both = 87 * G,
     .disk_read = 6 * G,
     .disk_write = 3 * G,
     .link_bandwidth = 400 * G,
     .link_latency = 5 * US,
     .network_bandwidth = 45 * G,
     .network_latency = 10 * US},
    {.name = "a100-80",
     .source = ESTIMATE,
     .devices_per_node = 8,
     .overlap = true,
     .device_bytes = 79 * GIB,
     .host_bytes = 1024 * GIB,
     .device_bandwidth = 1.8 * T, /* sheet 2.039 */
     .launch_s = 4 * US,
     .host_bandwidth = 150 * G,
     .host_matrix = RATES(1 * T, 1 * T, 1 * T), /* 16 cores without AMX */
     .matrix = RATES(17 * T, 260 * T, 260 * T),
     .sheet = RATES(19.5 * T, 312 * T, 312 * T),
     .half = GPU_HALF,
     .attention = RATES(9 * T, 180 * T, 180 * T), /* flash attention 2 */
     .vector = RATES(10 * T, 10 * T, 10 * T),
     .copy_to_device = 25 * G, /* PCIe 4 x16 */
     .copy_to_host = 25 * G,
     .copy_both = 42 * G,
     .disk_read = 5 * G,
     .disk_write = 2.5 * G,
     .link_bandwidth = 270 * G, /* NVLink 3: 300 each way */
     .link_latency = 5 * US,
     .network_bandwidth = 22 * G, /* 200 Gbit/s per device */
     .network_latency = 10 * US},
    {.name = "a100-40",
     .source = ESTIMATE,
     .devices_per_node = 8,
     .overlap = true,
     .device_bytes = 39 * GIB,
     .host_bytes = 1024 * GIB,
     .device_bandwidth = 1.4 * T, /* sheet 1.555 */
     .launch_s = 4 * US,
     .host_bandwidth = 150 * G,
     .host_matrix = RATES(1 * T, 1 * T, 1 * T),
     .matrix = RATES(17 * T, 260 * T, 260 * T),
     .sheet = RATES(19.5 * T, 312 * T, 312 * T),
     .half = GPU_HALF,
     .attention = RATES(9 * T, 180 * T, 180 * T),
     .vector = RATES(10 * T, 10 * T, 10 * T),
     .copy_to_device = 25 * G,
     .copy_to_host = 25 * G,
     .copy_both = 42 * G,
     .disk_read = 5 * G,
     .disk_write = 2.5 * G,
     .link_bandwidth = 270 * G,
     .link_latency = 5 * US,
     .network_bandwidth = 22 * G,
     .network_latency = 10 * US},
    {.name = "rtx-5090",
     .source = ESTIMATE,
     .devices_per_node = 1,
     .overlap = true,
     .device_bytes = 31 * GIB,
     .host_bytes = 128 * GIB,
     .device_bandwidth = 1.6 * T, /* sheet 1.792 */
     .launch_s = 4 * US,
     .host_bandwidth = 60 * G,                        /* two channels of DDR5 */
     .host_matrix = RATES(1.2 * T, 1.2 * T, 1.2 * T), /* 16 cores of a desktop */
     .matrix = RATES(75 * T, 195 * T, 195 * T),
     .sheet = RATES(104.8 * T, 209.5 * T, 209.5 * T), /* 16 bits with fp32 sums */
     .matrix_fp8 = 380 * T,                           /* fp32 sums, as for 16 bits */
     .sheet_fp8 = 419 * T,
     .half = GPU_HALF,
     .attention = RATES(40 * T, 140 * T, 140 * T),
     .vector = RATES(45 * T, 45 * T, 45 * T),
     .copy_to_device = 50 * G, /* PCIe 5 x16 */
     .copy_to_host = 50 * G,
     .copy_both = 55 * G, /* bounded by the host's memory */
     .disk_read = 6 * G,
     .disk_write = 5 * G},
    {.name = "rtx-4090",
     .source = ESTIMATE,
     .devices_per_node = 1,
     .overlap = true,
     .device_bytes = 23 * GIB,
     .host_bytes = 128 * GIB,
     .device_bandwidth = 0.92 * T, /* sheet 1.008 */
     .launch_s = 4 * US,
     .host_bandwidth = 60 * G,
     .host_matrix = RATES(1.2 * T, 1.2 * T, 1.2 * T),
     .matrix = RATES(60 * T, 155 * T, 155 * T),
     .sheet = RATES(82.6 * T, 165.2 * T, 165.2 * T),
     .matrix_fp8 = 290 * T, /* fp32 sums, as for 16 bits */
     .sheet_fp8 = 330.3 * T,
     .half = GPU_HALF,
     .attention = RATES(35 * T, 110 * T, 110 * T),
     .vector = RATES(40 * T, 40 * T, 40 * T),
     .copy_to_device = 25 * G, /* PCIe 4 x16 */
     .copy_to_host = 25 * G,
     .copy_both = 42 * G,
     .disk_read = 6 * G,
     .disk_write = 5 * G},
    {.name = "rtx-3090",
     .source = ESTIMATE,
     .devices_per_node = 1,
     .overlap = true,
     .device_bytes = 23 * GIB,
     .host_bytes = 64 * GIB,
     .device_bandwidth = 0.84 * T, /* sheet 0.936 */
     .launch_s = 5 * US,
     .host_bandwidth = 40 * G,                        /* two channels of DDR4 */
     .host_matrix = RATES(0.5 * T, 0.5 * T, 0.5 * T), /* 8 cores with AVX2 */
     .matrix = RATES(25 * T, 62 * T, 62 * T),
     .sheet = RATES(35.6 * T, 71 * T, 71 * T),
     .half = GPU_HALF,
     .attention = RATES(14 * T, 45 * T, 45 * T),
     .vector = RATES(17 * T, 17 * T, 17 * T),
     .copy_to_device = 25 * G,
     .copy_to_host = 25 * G,
     .copy_both = 38 * G,
     .disk_read = 5 * G,
     .disk_write = 3 * G,
     .link_bandwidth = 50 * G, /* the bridge between two cards: 56 each way */
     .link_latency = 6 * US},
    {.name = "apple-m4-max",
     .source = "memory bandwidth from the data sheet; rates from published measurements, not by ralo",
     .devices_per_node = 1,
     .unified = true, /* a copy between tiers only moves bytes inside the one memory */
     .overlap = true,
     .device_bytes = 96 * GIB, /* three quarters of 128: what the system lets a GPU hold */
     .host_bytes = 128 * GIB,
     .device_bandwidth = 0.48 * T, /* sheet 0.546 */
     .launch_s = 8 * US,
     .host_bandwidth = 300 * G,
     .matrix = RATES(14 * T, 15 * T, 16 * T),
     .sheet = RATES(18.4 * T, 18.4 * T, 18.4 * T),
     .half = {64, 64, 64},
     .attention = RATES(7 * T, 8 * T, 8 * T),
     .vector = RATES(8 * T, 8 * T, 8 * T),
     .copy_to_device = 150 * G,
     .copy_to_host = 150 * G,
     .copy_both = 200 * G,
     .disk_read = 6 * G,
     .disk_write = 5 * G},
    /* Rates of one core times two: the machine was shared. Memory and AdamW on both cores, quiet. */
    {.name = "cpu-2",
     .source = "measured by ralo on two Neoverse-N1 cores of a virtual machine",
     .devices_per_node = 1,
     .unified = true,
     .overlap = false,
     .device_bytes = 8 * GIB,
     .host_bytes = 8 * GIB,
     .device_bandwidth = 48 * G,
     .launch_s = 1 * US,
     .host_bandwidth = 48 * G,
     .host_adamw = 1.57 * G,
     .host_noise = 2.1 * G,
     .matrix = RATES(75 * G, 75 * G, 75 * G), /* no bf16 instructions: 16 bits become fp32 */
     .half = {10, 15, 13},
     .attention = RATES(47 * G, 44 * G, 48 * G),
     .vector = RATES(16.6 * G, 10.6 * G, 11.6 * G),
     .copy_to_device = 16 * G, /* one core's memcpy */
     .copy_to_host = 16 * G,
     .copy_both = 24 * G,
     .disk_read = 3.9 * G,
     .disk_write = 2.8 * G},
};

const hardware *hardware_at(size_t i) { return i < ARRAY_LENGTH(machines) ? &machines[i] : NULL; }
