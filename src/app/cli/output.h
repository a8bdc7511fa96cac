#pragma once
/* output.h - private to cli: JSON on stdout, and pieces of it that several commands print. */
#include "cli/cli.h"

/* Prints the one object of --json as a line on stdout, and releases it. kind: its rows in json_keys.def; a key that
 * is missing there gives a warning. digits: of numbers that are not whole. */
enum { ALL_DIGITS = 0 }; /* they read back to the same bits */
void json_print(json_t *root, const char *kind, int digits);

/* Where a command prints its lines, such as a plan: stdout, or stderr with --json, which has stdout for itself. */
static inline FILE *report_stream(bool json) { return json ? stderr : stdout; }

json_t *json_name(const char *name); /* as json_text: the name of a file may be any bytes */
/* Adds the used bytes to plan_memory_json; host_bytes: held beside the arenas. */
void memory_json_add(json_t *memory, const ledger *used, uint64_t host_bytes);
json_t *memory_json(const plan *p, const ledger *used); /* planned and peak per tier, roles, the process */
