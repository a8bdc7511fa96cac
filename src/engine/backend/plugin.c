/* plugin.c - find, load and check libralo-cuda.so, and carry its errors and log lines over.
 *
 * It is never linked: a machine without CUDA must start the same program. It is loaded once and stays loaded,
 * because a started CUDA driver cannot be unloaded. */
#define _GNU_SOURCE /* dladdr */
#include "backend/plugin.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };
#define LIBRARY "libralo-cuda.so"

static struct {
    pthread_mutex_t lock;
    bool tried;
    status rc;
    error_record why;
    const backend_plugin *plugin;
    backend face; /* the plug-in's table, with the functions that return a status wrapped */
} cuda = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- errors across the border ------------------------------------------------------------------------------------ */

static status carried(status rc) {
    if (rc == OK) return OK;
    error_record r;
    cuda.plugin->take_error(&r);
    return error_give(&r);
}

static status face_open(backend_context **out, const backend_options *o) {
    return carried(cuda.plugin->backend->open(out, o));
}
static status face_memory_open(backend_context *c, tier t, size_t n_bytes, void **out) {
    return carried(cuda.plugin->backend->memory_open(c, t, n_bytes, out));
}
static status face_write(backend_context *c, void *device_dst, const void *host_src, size_t n_bytes) {
    return carried(cuda.plugin->backend->write(c, device_dst, host_src, n_bytes));
}
static status face_read(backend_context *c, void *host_dst, const void *device_src, size_t n_bytes) {
    return carried(cuda.plugin->backend->read(c, host_dst, device_src, n_bytes));
}
static status face_clear(backend_context *c, void *device_dst, size_t n_bytes) {
    return carried(cuda.plugin->backend->clear(c, device_dst, n_bytes));
}
static status face_synchronize(backend_context *c) { return carried(cuda.plugin->backend->synchronize(c)); }
static status face_pin(backend_context *c, void *memory, size_t n_bytes) {
    return carried(cuda.plugin->backend->pin(c, memory, n_bytes));
}
static status face_prepare(backend_context *c, const kernel_call *k) {
    return carried(cuda.plugin->backend->prepare(c, k));
}
static status face_describe(int device, device_info *out) {
    return carried(cuda.plugin->backend->describe(device, out));
}
static status face_record(backend_context *c) { return carried(cuda.plugin->backend->queues->record(c)); }
static status face_record_end(backend_context *c, section s) {
    return carried(cuda.plugin->backend->queues->record_end(c, s));
}

static status face_links_present(void) { return carried(cuda.plugin->backend->links->present()); }
static status face_links_make_id(uint8_t id[LINK_ID_BYTES]) {
    return carried(cuda.plugin->backend->links->make_id(id));
}
static status face_links_open(backend_context *c, axis a, const uint8_t id[LINK_ID_BYTES], int n_ranks, int index) {
    return carried(cuda.plugin->backend->links->open(c, a, id, n_ranks, index));
}
static status face_links_recordable(bool *out) { return carried(cuda.plugin->backend->links->recordable(out)); }
static status face_links_check(backend_context *c) { return carried(cuda.plugin->backend->links->check(c)); }

/* A function that is new in a table and returns a status needs a face too, or its message stays on the other side. */
_Static_assert(sizeof(backend_queues) == 12 * sizeof(void *),
               "wrap the new function of backend_queues if it returns a status");
_Static_assert(sizeof(backend_links) == 9 * sizeof(void *),
               "wrap the new function of backend_links if it returns a status");

static void make_face(void) {
    static backend_queues queues;
    static backend_links links;
    cuda.face = *cuda.plugin->backend;
    cuda.face.open = face_open;
    cuda.face.memory_open = face_memory_open;
    cuda.face.write = face_write;
    cuda.face.read = face_read;
    cuda.face.clear = face_clear;
    cuda.face.synchronize = face_synchronize;
    cuda.face.pin = face_pin;
    cuda.face.prepare = face_prepare;
    cuda.face.describe = face_describe;
    queues = *cuda.plugin->backend->queues;
    queues.record = face_record;
    queues.record_end = face_record_end;
    cuda.face.queues = &queues;
    links = *cuda.plugin->backend->links;
    links.present = face_links_present;
    links.make_id = face_links_make_id;
    links.open = face_links_open;
    links.recordable = face_links_recordable;
    links.check = face_links_check;
    cuda.face.links = &links;
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

/* Beside the program or library that this code is part of: where it is built, and with `lib` for where it is installed. */
static void *open_beside_us(const char *relative, char path[PATH_BYTES]) {
    Dl_info us;
    if (!dladdr((void *)plugin_stamp, &us) || !us.dli_fname) return NULL;
    /* Of a library this is its path. Of a program it is argv[0]: a bare name if the shell found it in PATH. */
    char *self = strchr(us.dli_fname, '/') ? realpath(us.dli_fname, NULL) : NULL;
    if (!self) self = realpath("/proc/self/exe", NULL);
    if (!self) return NULL;
    char *slash = strrchr(self, '/');
    if (slash) *slash = 0;
    snprintf(path, PATH_BYTES, "%s/%s" LIBRARY, self, relative);
    free(self);
    return access(path, R_OK) == 0 ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

static status load_library(void **out) {
    char path[PATH_BYTES] = LIBRARY;
    const char *wish = getenv("RALO_CUDA_PLUGIN");
    void *library = NULL;
    if (wish && strcmp(wish, "none") == 0) return ERR(ERR_INPUT, "RALO_CUDA_PLUGIN=none: no CUDA backend is wanted");
    if (wish && *wish) {
        snprintf(path, sizeof path, "%s", wish);
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!library) return ERR(ERR_INPUT, "RALO_CUDA_PLUGIN: %s", dlerror());
    }
    const char *why = NULL;
    static const char *const places[] = {"", "../lib/", "../lib/ralo/"};
    for (size_t i = 0; !library && i < ARRAY_LENGTH(places); i++) {
        dlerror();
        library = open_beside_us(places[i], path);
        if (!library && access(path, R_OK) == 0) why = dlerror(); /* it exists but does not load: report that */
        if (why) break;
    }
    if (!library && !why) library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library && !why)
        return ERR(ERR_INPUT,
                   "the CUDA backend (" LIBRARY ") is not beside ralo; build it on a machine with nvcc: make");
    if (!library)
        return ERR(ERR_INPUT,
                   "the CUDA backend does not load: %s; is the NVIDIA driver (libcuda.so.1) installed, and "
                   "cuBLAS of the CUDA version it was built with?",
                   why);
    *out = library;
    return OK;
}

static void log_carried(void *context, log_level level, const char *line) { log_write(level, "%s", line); }

static status load(void) {
    void *library;
    char stamp[128];
    TRY(load_library(&library));
    backend_plugin_fn hand_over;
    *(void **)&hand_over = dlsym(library, PLUGIN_SYMBOL);
    if (!hand_over) return ERR(ERR_INPUT, LIBRARY ": has no symbol " PLUGIN_SYMBOL "; it is not a plug-in of ralo");
    plugin_stamp(stamp);
    const backend_plugin *p = hand_over();
    if (strncmp(stamp, p->stamp, sizeof stamp) != 0)
        return ERR(ERR_INPUT,
                   LIBRARY ": found build '%.127s', expected '%s'; build and install ralo and its plug-in together",
                   p->stamp, stamp);
    p->set_log_level(LOG_DEBUG); /* all lines come; our level decides what is shown */
    p->set_log_sink(log_carried, NULL);
    cuda.plugin = p;
    make_face();
    return OK;
}

status backend_cuda(const backend **out) {
    pthread_mutex_lock(&cuda.lock);
    if (!cuda.tried) {
        cuda.tried = true;
        cuda.rc = load();
        if (cuda.rc != OK) error_take(&cuda.why);
    }
    status rc = cuda.rc == OK ? OK : error_give(&cuda.why);
    pthread_mutex_unlock(&cuda.lock);
    *out = rc == OK ? &cuda.face : NULL;
    return rc;
}
