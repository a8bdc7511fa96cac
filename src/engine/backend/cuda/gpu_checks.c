/* gpu_checks.c - what a GPU host may lack: a driver, one that is new enough, a GPU, kernels for it, memory. */
#include "backend/cuda/gpu_checks.h"

status gpu_check_driver(int driver, int runtime) {
    if (driver == 0) return ERR(ERR_INPUT, "no NVIDIA driver is running here; install one, or set run.device to cpu");
    /* Within one major version an older driver runs newer runtimes. */
    if (driver / 1000 >= runtime / 1000) return OK;
    return ERR(ERR_INPUT,
               "the NVIDIA driver serves CUDA %d.%d, ralo's CUDA backend was built with %d.%d; update the driver, or "
               "build ralo with an older toolkit, or set run.device to cpu",
               driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
}

status gpu_check_index(int device, int n_devices) {
    if (n_devices == 0)
        return ERR(ERR_INPUT,
                   "the NVIDIA driver shows no GPU (CUDA_VISIBLE_DEVICES may hide it); set run.device to cpu");
    if (device >= 0 && device < n_devices) return OK;
    return ERR(ERR_INPUT, "run.gpu: found %d, expected 0 to %d: this machine shows %d GPU%s", device, n_devices - 1,
               n_devices, n_devices == 1 ? "" : "s");
}

status gpu_check_kernels(int device, const char *name, int capability, bool compiled) {
    if (compiled) return OK;
    if (capability < 80)
        return ERR(ERR_INPUT,
                   "GPU %d, %s, has compute capability %d.%d, expected 8.0 or later: ralo has no kernels for older "
                   "GPUs; set run.device to cpu",
                   device, name, capability / 10, capability % 10);
    return ERR(ERR_INPUT,
               "GPU %d, %s, has compute capability %d.%d, for which this build has no kernels; build with "
               "RALO_CUDA_ARCHS=%d, or set run.device to cpu",
               device, name, capability / 10, capability % 10, capability);
}

status gpu_error_context(int device, const char *name, uint64_t total) {
    char all[32];
    return ERR(
        ERR_FIT,
        "GPU %d, %s, has none of its %s free for one more process, which takes about 500 MiB before any plan; other "
        "processes hold them (nvidia-smi names them): end one, use fewer ranks on this GPU, or set run.device to cpu",
        device, name, str_format_bytes(all, total));
}

status gpu_error_memory(uint64_t needed, uint64_t free_bytes, uint64_t total) {
    char need[32], have[32], all[32];
    return ERR(ERR_FIT,
               "the plan needs %s of GPU memory and %s of %s are free; another process may hold the rest (nvidia-smi "
               "names it): end it, or set memory.device to what is free",
               str_format_bytes(need, needed), str_format_bytes(have, free_bytes), str_format_bytes(all, total));
}
