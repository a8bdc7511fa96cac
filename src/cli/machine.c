/* machine.c - which machine a prediction is for.
 *
 * In order: what --hardware names; this user's measurement of this machine with this number of threads; an estimate from
 * the number of cores. The plan prints which of them it was. A measurement that cannot be read is named and not used:
 * a prediction is no reason to refuse a run. */
#include "cli/cli.h"

#include <unistd.h>

status machine_describe(const char *asked, int n_threads, hardware *out) {
    if (asked) return hardware_load(out, asked);
    char path[4096];
    sys_info machine;
    sys_info_get(&machine);
    hardware_estimate(out, &machine, n_threads);
    hardware_cache_path(path, sizeof path);
    if (!*path || access(path, F_OK) != 0) return OK;
    hardware measured;
    if (hardware_read_file(&measured, path) != OK) {
        log_warn("the measurement of this machine is not used: %s; `ralo devices --measure` writes a new one",
                 error_message());
        error_clear();
    } else if (strcmp(measured.name, out->name) == 0) {
        *out = measured;
    } else {
        log_debug("%s is of %s, this is %s: not used", path, measured.name, out->name);
    }
    return OK;
}
