#pragma once
/* output.h - private to cli: pieces of JSON that several commands print. */
#include "cli/cli.h"

json_t *json_text(const char *text, size_t n_bytes); /* bytes that are not UTF-8 become U+FFFD */
/* Adds what was used to plan_memory_json; host_bytes: held beside the arenas. */
void memory_json_add(json_t *memory, const ledger *used, uint64_t host_bytes);
json_t *memory_json(const plan *p, const ledger *used); /* planned and peak per tier, roles, the process */
