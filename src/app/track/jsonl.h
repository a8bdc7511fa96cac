#pragma once
/* jsonl.h - private to track: a file of JSON Lines that grows in a run directory, each step once.
 *
 *     jsonl_init(&j, "metrics");
 *     TRY(jsonl_open(&j, run_dir));
 *     jsonl_cut_from(&j, step, false);
 *     strbuf_add(&j.lines, "{\"step\": 1}\n");
 *     if (!jsonl_flush(&j, warning, sizeof warning)) ...
 *     jsonl_close(&j);
 */
#include "base/base.h"

#include <sys/types.h>

typedef struct jsonl {
    const char *name; /* the file is called name.jsonl */
    char *path;
    int fd;       /* -1: not open, or given up */
    off_t whole;  /* bytes of the file that are whole lines */
    bool begun;   /* this run has added one */
    strbuf lines; /* not yet written */
} jsonl;

void jsonl_init(jsonl *j, const char *name);
status jsonl_open(jsonl *j, const char *dir);
void jsonl_close(jsonl *j); /* also what was only initialized */
static inline bool jsonl_is_open(const jsonl *j) { return j->fd >= 0; }
/* Before the first line of this run, which is of this step: removes the lines of this step and later ones. evaluation: the line of the
 * step itself, which has no "val/" key, stays. */
void jsonl_cut_from(jsonl *j, int64_t step, bool evaluation);
/* Writes the lines. False: the file is given up, and `warning` says why. */
bool jsonl_flush(jsonl *j, char *warning, size_t n);
