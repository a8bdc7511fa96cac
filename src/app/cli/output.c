/* output.c - JSON on stdout, and pieces of it that several commands print. */
#include "cli/output.h"
#include "cli/json_keys.h"

#include <string.h>

void json_print(json_t *root, const char *kind, int digits) {
    strbuf wrong;
    strbuf_init(&wrong);
    if (!json_keys_check(root, kind, &wrong))
        log_warn("--json: %s is not as json_keys.def describes it; this is a bug of ralo", wrong.text);
    strbuf_fini(&wrong);
    json_dumpf(root, stdout, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(digits));
    putchar('\n');
    json_decref(root);
}

json_t *json_name(const char *name) { return json_text(name, strlen(name)); }

void memory_json_add(json_t *memory, const ledger *used, uint64_t host_bytes) {
    for (tier t = 0; t < TIER_COUNT; t++) {
        uint64_t peak = used->peak[t];
        if (t == TIER_HOST) peak += host_bytes; /* taken in full when the model is opened */
        json_object_set_new(json_object_get(memory, tier_name(t)), "peak", json_integer((json_int_t)peak));
    }
    json_object_set_new(memory, "rss_peak", json_integer((json_int_t)sys_rss_peak_bytes()));
    json_object_set_new(memory, "allocations_in_steps", json_integer((json_int_t)used->n_allocations));
}

json_t *memory_json(const plan *p, const ledger *used) {
    json_t *memory = plan_memory_json(p);
    memory_json_add(memory, used, p->request.host_bytes);
    return memory;
}
