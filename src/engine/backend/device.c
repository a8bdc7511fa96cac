/* device.c - choose the backend, and what a plan must know of it: alignment, scratch, memory. */
#include "backend/backend.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Memory that the operating system and the rest of the process need; on a GPU, what libraries allocate while the
 * program is prepared. */
#define HOST_RESERVE (512ull << 20)
#define GPU_RESERVE (512ull << 20)

/* The driver's files, as a container or machine without a GPU does not have them. */
bool backend_gpu_is_there(const char *root) {
    static const char *const files[] = {"/dev/nvidiactl", "/proc/driver/nvidia/version"};
    char path[4096];
    for (size_t i = 0; i < ARRAY_LENGTH(files); i++) {
        snprintf(path, sizeof path, "%s%s", root, files[i]);
        if (access(path, F_OK) == 0) return true;
    }
    return false;
}

/* Without a GPU the CPU is what auto means. Beside one, a run on the CPU takes a hundred times as long, and its cause is a build or an
 * installation that can be mended: it is said, once. */
static void report_unused_gpu(void) {
    static atomic_bool said;
    const char *plugin = getenv("RALO_CUDA_PLUGIN");
    bool unwanted = plugin && strcmp(plugin, "none") == 0;
    if (unwanted || !backend_gpu_is_there("") || atomic_exchange(&said, true))
        log_debug("no GPU is used: %s", error_message());
    else
        log_warn(
            "an NVIDIA GPU is there but cannot be used, so the CPU is: %s (run.device=cpu or --device cpu turns this "
            "warning off)",
            error_message());
}

status backend_choose(device_kind wish, int gpu, const backend **out) {
    const backend *b;
    device_info info;
    error_record before; /* not finding a GPU is not an error of the caller */
    *out = backend_cpu();
    if (wish == DEVICE_CPU) return OK;
    error_take(&before);
    status rc = backend_cuda(&b);
    if (rc == OK) rc = b->describe(gpu, &info);
    if (rc == OK) *out = b;
    else if (wish == DEVICE_CUDA) {
        *out = NULL;
        return error_trail(rc, __FILE__, __LINE__, __func__);
    } else report_unused_gpu();
    error_give(&before);
    return OK;
}

device_kind backend_kind(const backend *b) { return b->discrete ? DEVICE_CUDA : DEVICE_CPU; }

target backend_target(device_kind k, int n_threads) {
    const backend *host = backend_cpu();
    target t = {.name = host->name,
                .n_threads = n_threads,
                .alignment = host->alignment,
                .work_bytes = host->work_bytes,
                .host_work_bytes = host->work_bytes};
    if (k == DEVICE_CUDA) {
        t.name = "cuda";
        t.discrete = true;
        t.alignment = CUDA_ALIGNMENT;
        t.logits_rows = 2048; /* 40 times faster at products than a CPU, 10 times at memory */
        t.work_bytes = cuda_work_bytes;
        t.head_dim_most = CUDA_HEAD_DIM_MOST;
        t.ring_slowness =
            1.3; /* measured on an H200: less than full tiles at the border of a rank, partial sums in fp32 */
    }
    return t;
}

int backend_gpu_of(int process) {
    const backend *b;
    error_record before;
    error_take(&before);
    int n = backend_cuda(&b) == OK ? b->count() : 0;
    error_give(&before);
    return n > 0 ? process % n : 0;
}

status backend_memory_limit(const backend *b, int gpu, int n_processes, uint64_t *out) {
    uint64_t free_bytes, reserve = HOST_RESERVE;
    if (b->discrete) {
        device_info info;
        TRY(b->describe(gpu, &info));
        free_bytes = info.free_memory;
        reserve = GPU_RESERVE;
    } else {
        sys_info machine;
        sys_info_get(&machine);
        free_bytes = machine.memory_available;
    }
    free_bytes /= (uint64_t)n_processes; /* the reserve is each one's own */
    *out = free_bytes > 2 * reserve ? free_bytes - reserve : reserve;
    return OK;
}
