#pragma once
/* parts.h - private to report: the files of a run directory, each read by one function. */
#include "report/report.h"

/* Remembers why something was not read, and clears the error. */
void run_note(run *r, const char *what);
const char *run_file(run *r, const char *name); /* its path */
bool run_has_file(run *r, const char *name); /* a regular file, through no link; what else has that name gets a note */
/* An object of at most max_bytes, which the caller gives to json_decref; NULL where there is none: with a note where there is a file. */
json_t *run_read_object(run *r, const char *name, size_t max_bytes);

void run_read_info(run *r);     /* run.json (run_state.c): after settings, metrics and monitor */
void run_read_settings(run *r); /* config.yaml */
void run_read_memory(run *r);   /* memory.json and plan.json (run_memory.c) */
void run_read_monitor(run *r);
void run_read_texts(run *r); /* samples.jsonl and completions.jsonl */
