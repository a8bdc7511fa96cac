/* reference.c - is the reference of a resumed run the one that it began with? */
#include "train/reference.h"

#include <stdio.h>

uint64_t reference_hash(const task_host *h) {
    bool has_copy = h->plan->request.reference == REFERENCE_COPY;
    return has_copy ? params_reference_hash(h->exec, h->plan, h->request->comm) : 0;
}

json_t *reference_save(uint64_t hash) {
    char text[20];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    return json_pack("{s:s}", "reference", text);
}

status reference_check(const task_host *h, const json_t *state, const char *where, const char *settings) {
    char now[20];
    const char *then = json_string_value(json_object_get(state, "reference"));
    snprintf(now, sizeof now, "%016llx", (unsigned long long)reference_hash(h));
    if (!then || strlen(then) != 16)
        return ERR(ERR_INPUT, "%s: key 'reference': found no hash, expected 16 hexadecimal digits", where);
    if (strcmp(now, then) == 0) return OK;
    return ERR(ERR_INPUT,
               "%s: the run compares with a reference whose parameters have the hash %s; those loaded now have %s. "
               "%s has changed: bring the old one back, or start a new run",
               where, then, now, settings);
}
