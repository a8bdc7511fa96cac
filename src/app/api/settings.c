/* settings.c - ralo_settings: a config that the caller fills. */
#include "api/api.h"

#include <stdlib.h>
#include <string.h>

ralo_status ralo_settings_new(ralo_settings **out) {
    API_NEED(out);
    api_call call = api_enter();
    ralo_settings *s = mem_alloc(sizeof *s);
    config_init(&s->config);
    strbuf_init(&s->text);
    *out = s;
    return api_leave(call, OK);
}

void ralo_settings_free(ralo_settings *s) {
    if (!s) return;
    config_fini(&s->config);
    strbuf_fini(&s->text);
    free(s);
}

ralo_status ralo_settings_load_file(ralo_settings *s, const char *path) {
    API_NEED(s);
    API_NEED(path);
    api_call call = api_enter();
    return api_leave(call, config_read_file(&s->config, path));
}

ralo_status ralo_settings_set(ralo_settings *s, const char *key, const char *value) {
    API_NEED(s);
    API_NEED(key);
    API_NEED(value);
    if (strchr(key, '='))
        return (ralo_status)ERR(ERR_INPUT, "ralo_settings_set: '%.100s' is not a key: it holds a '='", key);
    api_call call = api_enter();
    strbuf assignment;
    strbuf_init(&assignment);
    strbuf_printf(&assignment, "%s=%s", key, value);
    status rc = config_set(&s->config, assignment.text, "ralo_settings_set");
    strbuf_fini(&assignment);
    return api_leave(call, rc);
}

ralo_status ralo_settings_get(ralo_settings *s, const char *key, const char **out) {
    API_NEED(out);
    *out = NULL;
    API_NEED(s);
    API_NEED(key);
    api_call call = api_enter();
    s->text.length = 0;
    status rc = config_get(&s->config, key, &s->text, "ralo_settings_get");
    if (rc == OK) *out = s->text.text;
    return api_leave(call, rc);
}

const char *ralo_settings_key(size_t index) { return config_key(index); }

status api_config(config *out, const ralo_settings *s) {
    config_copy(out, &s->config);
    config_resolve(out);
    return config_check(out);
}
