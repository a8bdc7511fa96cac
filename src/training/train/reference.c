/* reference.c - is the reference of a resumed run the one that it began with? */
#include "train/reference.h"

#include <stdio.h>
#include <stdlib.h>

uint64_t reference_hash(const task_host *h) {
    bool has_copy = h->plan->request.reference == REFERENCE_COPY;
    return has_copy ? params_reference_hash(h->exec, h->plan, h->request->comm) : 0;
}

json_t *reference_save(uint64_t hash) {
    char text[20];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    return json_pack("{s:s}", "reference", text);
}

status reference_read(const json_t *state, const char *where, uint64_t *hash) {
    const char *text = json_string_value(json_object_get(state, "reference"));
    if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
        return ERR(ERR_INPUT, "%s: key 'reference': found no hash, expected 16 hexadecimal digits", where);
    *hash = strtoull(text, NULL, 16);
    return OK;
}

status reference_check(const task_host *h, const json_t *state, const char *where, const char *settings) {
    return reference_compare(reference_hash(h), state, where, settings);
}

status reference_compare(uint64_t now, const json_t *state, const char *where, const char *settings) {
    uint64_t then = 0;
    TRY(reference_read(state, where, &then));
    if (now == then) return OK;
    return ERR(ERR_INPUT,
               "%s: the run compares with a reference whose parameters have the hash %016llx; those loaded now have "
               "%016llx. %s has changed: bring the old one back, or start a new run",
               where, (unsigned long long)then, (unsigned long long)now, settings);
}
