/* gpu_meter.c - see gpu_meter.h. Devices are found by the identity that CUDA reports, because NVML counts all GPUs of a
 * machine and CUDA those of CUDA_VISIBLE_DEVICES. NVML's header is not needed: what is used of it has not changed since
 * 2013. */
#include "track/gpu_meter.h"

#include <math.h>

#define LIBRARY "libnvidia-ml.so.1"
enum { NVML_SUCCESS = 0, NVML_TEMPERATURE_GPU = 0 };

typedef struct nvml_utilization {
    unsigned gpu, memory; /* percent of the time */
} nvml_utilization;

static struct {
    int (*init)(void);
    int (*shutdown)(void);
    int (*find)(const char *uuid, void **device);
    int (*utilization)(void *device, nvml_utilization *out);
    int (*power)(void *device, unsigned *milliwatts);
    int (*temperature)(void *device, int sensor, unsigned *celsius);
} nvml;

static bool load(void) {
    static const library_symbol symbols[] = {{"nvmlInit_v2", &nvml.init},
                                             {"nvmlShutdown", &nvml.shutdown},
                                             {"nvmlDeviceGetHandleByUUID", &nvml.find},
                                             {"nvmlDeviceGetUtilizationRates", &nvml.utilization},
                                             {"nvmlDeviceGetPowerUsage", &nvml.power},
                                             {"nvmlDeviceGetTemperature", &nvml.temperature}};
    char why[400];
    return library_load(LIBRARY, symbols, ARRAY_LENGTH(symbols), why, sizeof why);
}

/* GPU-01234567-89ab-cdef-0123-456789abcdef */
static void write_uuid(const uint8_t id[16], char out[48]) {
    int n = snprintf(out, 48, "GPU-");
    for (int i = 0; i < 16; i++) {
        bool dash = i == 4 || i == 6 || i == 8 || i == 10;
        n += snprintf(out + n, 48 - (size_t)n, "%s%02x", dash ? "-" : "", id[i]);
    }
}

void gpu_meter_open(gpu_meter *m, const uint8_t id[16]) {
    char uuid[48];
    *m = (gpu_meter){0};
    if (!load() || nvml.init() != NVML_SUCCESS) return;
    write_uuid(id, uuid);
    if (nvml.find(uuid, &m->device) == NVML_SUCCESS && m->device) return;
    m->device = NULL;
    nvml.shutdown();
}

gpu_reading gpu_meter_read(const gpu_meter *m) {
    gpu_reading r = {NAN, NAN, NAN};
    nvml_utilization share;
    unsigned n;
    if (!m->device) return r;
    if (nvml.utilization(m->device, &share) == NVML_SUCCESS) r.busy_percent = share.gpu;
    if (nvml.power(m->device, &n) == NVML_SUCCESS) r.watts = n * 1e-3;
    if (nvml.temperature(m->device, NVML_TEMPERATURE_GPU, &n) == NVML_SUCCESS) r.celsius = n;
    return r;
}

void gpu_meter_close(gpu_meter *m) {
    if (m->device) nvml.shutdown();
    m->device = NULL;
}
