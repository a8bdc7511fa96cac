/* nvml_stand_in.c - NVIDIA's management library for tests: one GPU, whose power it may not know. */
#include <string.h>

static int device;
int nvml_stand_in_power = 0; /* what asking for the power returns; 3: not supported */
int nvml_stand_in_open = 0;  /* inits that were not shut down */

int nvmlInit_v2(void) {
    nvml_stand_in_open++;
    return 0;
}
int nvmlShutdown(void) {
    nvml_stand_in_open--;
    return 0;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **out) {
    if (strcmp(uuid, "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f") != 0) return 6; /* not found */
    *out = &device;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *of, unsigned out[2]) {
    out[0] = 97, out[1] = 40;
    return of != &device;
}
int nvmlDeviceGetPowerUsage(void *of, unsigned *milliwatts) {
    *milliwatts = 640250;
    return nvml_stand_in_power;
}
int nvmlDeviceGetTemperature(void *of, int sensor, unsigned *celsius) {
    *celsius = 61;
    return sensor;
}
