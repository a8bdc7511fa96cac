/* plugin_stand_in.c - a plug-in in the place of libralo-cuda.so: it says what it is asked in its log, and knows no GPU but the first. */
#include "backend/plugin.h"

static status describe(int device, device_info *out) {
    log_debug("asked for GPU %d", device);
    log_info("looking for GPU %d", device);
    if (device > 0) {
        log_warn("GPU %d is none", device);
        return ERR(ERR_INPUT, "no GPU %d: found 1 of 100%%", device);
    }
    *out = (device_info){.capability = 90};
    return OK;
}

__attribute__((visibility("default"))) const backend_plugin *ralo_backend_plugin(void) {
    static const backend_queues queues;
    static const backend_links links;
    static const backend table = {.name = "stand-in", .queues = &queues, .links = &links, .describe = describe};
    static backend_plugin p = {
        .backend = &table, .take_error = error_take, .set_log_sink = log_set_sink, .set_log_level = log_set_level};
    plugin_stamp(p.stamp);
    return &p;
}
