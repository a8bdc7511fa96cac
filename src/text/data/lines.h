#pragma once
/* lines.h - private to data: the records of a file one after the other, each as one JSON object.
 *
 * A line of JSON Lines is handed out as it is, an element of a JSON list with spaces for its line breaks. A row of a table becomes an object whose keys are the columns (lines.c says which cells
 * become something else than strings). So everything behind it reads all of them alike, and names the line in the file. */
#include "data/csv.h"
#include "data/json_list.h"
#include "data/records.h"

typedef struct record_lines {
    reader *in; /* the caller's */
    const record_options *options;
    csv *table;   /* NULL: JSON */
    bool is_list; /* one JSON list, not JSON Lines */
    json_list list;
    strbuf object;
} record_lines;
status record_lines_open(record_lines *l, reader *in, const record_options *o); /* reads the header of a table */
void record_lines_close(record_lines *l);                                       /* also of a zeroed one */
status record_lines_next(record_lines *l, line *out, bool *found);              /* as reader_line; empty lines too */
bool record_lines_are_made(const record_lines *l); /* they do not stand in the file as they are handed out */
/* The error of a line or row that is none; OK otherwise. */
status record_line_check(const char *path, const line *l, const record_options *o);
/* "JSON objects, one on each line": what a file without a record lacks. */
const char *record_file_expected(const char *path, const record_options *o);
