#pragma once
/* plugin.h - private to backend: how a backend in a library of its own is handed over.
 *
 * The library carries copies of base and program compiled with it, so both sides must be of one build: `stamp` is compared
 * before anything else is looked at. Errors live in a copy of base, per thread; take_error carries one across. The log is
 * a copy, too: its lines are passed on to the program's log, which has the level and the sink that were asked for. */
#include "backend/backend.h"

#define PLUGIN_SYMBOL "ralo_backend_plugin"
typedef struct backend_plugin {
    char stamp[128]; /* plugin_stamp of the build it belongs to; first, and never moved */
    const backend *backend;
    void (*take_error)(error_record *out);
    void (*set_log_sink)(log_sink sink, void *context);
    void (*set_log_level)(log_level level);
} backend_plugin;
typedef const backend_plugin *(*backend_plugin_fn)(void); /* what PLUGIN_SYMBOL is */

void plugin_stamp(char stamp[128]);
