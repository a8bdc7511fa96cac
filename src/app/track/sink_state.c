/* sink_state.c - what a sink must know to go on in the same place: ids, never a secret. */
#include "track/sink.h"

#include <string.h>
#include <sys/random.h>

enum { STATE_MOST = 1 << 16 };

static void state_path(strbuf *path, const char *run_dir, const char *sink) {
    strbuf_init(path);
    strbuf_printf(path, "%s/track/%s.json", run_dir, sink);
}

json_t *sink_state_read(const char *run_dir, const char *sink) {
    strbuf path;
    json_t *state = NULL;
    state_path(&path, run_dir, sink);
    if (json_read_file(path.text, STATE_MOST, &state) != OK) error_clear();
    strbuf_fini(&path);
    if (!json_is_object(state)) {
        json_decref(state);
        state = json_object();
    }
    return state;
}

status sink_state_write(const char *run_dir, const char *sink, const json_t *state) {
    strbuf path;
    state_path(&path, run_dir, sink);
    status rc = json_write_file(path.text, state);
    strbuf_fini(&path);
    return rc;
}

const char *sink_state_id(const json_t *state, const char *key) {
    const char *id = json_string_value(json_object_get(state, key));
    size_t n = id ? strlen(id) : 0;
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    return n >= 1 && n <= 64 && strspn(id, allowed) == n ? id : NULL;
}

void sink_id_make(char out[33]) {
    unsigned char bytes[16] = {0};
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) { /* before the system has any: the clock is unique enough */
        uint64_t now = clock_ns();
        memcpy(bytes, &now, sizeof now);
    }
    for (int i = 0; i < 16; i++) snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}
