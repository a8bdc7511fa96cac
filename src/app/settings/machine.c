/* machine.c - which machine a prediction is for.
 *
 * In order: what --hardware names; this user's measurement of this machine (its threads, or its GPU); for a GPU the
 * built-in description of that name; an estimate from the number of cores or multiprocessors. The plan prints which
 * one it was. A measurement that cannot be read gives a warning and is not used: a missing prediction must not stop
 * a run. */
#include "settings/settings.h"

#include <ctype.h>
#include <math.h>
#include <unistd.h>

/* "h200" is in "NVIDIA H200": the longest built-in name wins, so that h100x8 does not stand for an h100. */
static const hardware *built_in_for(const char *gpu) {
    char lower[64];
    const hardware *best = NULL;
    size_t n = 0;
    for (; gpu[n] && n + 1 < sizeof lower; n++) lower[n] = (char)tolower((unsigned char)gpu[n]);
    lower[n] = 0;
    for (size_t i = 0; hardware_at(i); i++)
        if (strstr(lower, hardware_at(i)->name) && (!best || strlen(hardware_at(i)->name) > strlen(best->name)))
            best = hardware_at(i);
    return best;
}

/* An unknown GPU is estimated as an H200 with its number of multiprocessors, and the source says so. */
static status estimate_gpu(const train_request *r, const sys_info *machine, hardware *out) {
    enum { H200_MULTIPROCESSORS = 132 };
    device_info info;
    TRY(r->backend->describe(r->gpu.index, &info));
    const hardware *known = built_in_for(info.name);
    if (known) *out = *known;
    else {
        TRY(hardware_load(out, "h200"));
        hardware_scale_device(out, (double)info.n_multiprocessors / H200_MULTIPROCESSORS);
        snprintf(out->source, sizeof out->source, "a guess: an H200 of %d multiprocessors", info.n_multiprocessors);
    }
    snprintf(out->name, sizeof out->name, "%s", info.name);
    out->device_bytes = info.memory;
    out->host_bytes = machine->memory_total;
    out->devices_per_node = 1;
    return OK;
}

/* The user's measurement in place of an estimate, where it is one of this machine. */
static void use_measurement(hardware *out) {
    char path[4096];
    hardware measured;
    hardware_cache_path(path, sizeof path);
    if (!*path || access(path, F_OK) != 0) return;
    if (hardware_read_file(&measured, path) != OK) {
        log_warn("the measurement of this machine is not used: %s; `ralo devices --measure` writes a new one",
                 error_message());
        error_clear();
    } else if (strcmp(measured.name, out->name) == 0) {
        *out = measured;
    } else {
        log_debug("%s is of %s, this is %s: not used", path, measured.name, out->name);
    }
}

status machine_describe(const char *asked, const train_request *r, const node_ranks *ranks, hardware *out) {
    if (asked) return hardware_load(out, asked);
    sys_info machine;
    sys_info_get(&machine);
    if (!r->backend) return hardware_load(out, "h200"); /* planned for a GPU, and none is here to be looked at */
    if (r->backend->discrete) TRY(estimate_gpu(r, &machine, out));
    else hardware_estimate(out, &machine, r->n_threads);
    use_measurement(out);
    if (ranks && !r->backend->discrete) {
        hardware_scale_cores(out, fmin(1, ranks->cores / r->n_threads));
        out->devices_per_node = ranks->n;
    }
    return OK;
}
