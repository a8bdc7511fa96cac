#pragma once
/* gpu_meter.h - private to track: how busy a GPU is, its power and its temperature, as NVIDIA's management library
 * (NVML) counts them.
 *
 * The library comes with the driver. Where it is missing, too old, or does not know the device, nothing is measured and
 * nothing is said: no run depends on it. Calls take milliseconds and no lock of the device's queues, so they belong on
 * a thread that no step waits for. */
#include "base/base.h"

typedef struct gpu_meter {
    void *device; /* NULL: nothing to read */
} gpu_meter;
typedef struct gpu_reading {
    double busy_percent; /* of the time since about a second ago, in which a kernel ran */
    double watts, celsius;
} gpu_reading; /* NAN: not known */

void gpu_meter_open(gpu_meter *m, const uint8_t id[16]); /* device_info.id */
gpu_reading gpu_meter_read(const gpu_meter *m);
void gpu_meter_close(gpu_meter *m);
