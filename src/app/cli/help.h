#pragma once
/* help.h - private to cli: pieces of help that the terminal, the man page and the reference pages share. */
#include "cli/cli.h"

typedef struct exit_code {
    int code;
    const char *what;
} exit_code;
const exit_code *exit_code_at(size_t i); /* NULL past the end */

extern const char help_about[];
extern const char help_trail[]; /* what the environment variable RALO_TRAIL does */

void flag_spelling(const flag *f, char *out, size_t n); /* "--dtype fp32|bf16|fp16" */
void flag_facts(const flag *f, strbuf *out); /* range and default where the value's name does not say them; or "" */
enum { USAGE_COLUMNS = 110 };
void usage_print(const command *c, int width, FILE *out); /* lines of at most width columns */
/* Writes settings.md, cli.md, json.md and metrics.md into a directory, which is made (reference.c). */
status reference_write(const char *dir);
