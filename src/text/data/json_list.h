#pragma once
/* json_list.h - private to data: the elements of a file that is one JSON list, one after the other.
 *
 * Data sets such as Alpaca's are a list over many lines, or all on one. Only where an element begins and ends is found here, by brackets
 * outside of strings; what it holds is checked by whoever parses it. So a list of any size is read with the memory of one element.
 *
 * Promises: what is handed out has no line break outside of strings, and is never longer than the limit; what is wrong with the list itself
 * (no comma, no end, something behind it) is said once with its line, and what comes before it is handed out. */
#include "data/reader.h"

typedef struct json_list {
    reader *in;    /* the caller's */
    uint64_t most; /* bytes of an element */
    strbuf element;
    enum { LIST_BEGIN, LIST_RECORD_OR_END, LIST_RECORD, LIST_COMMA_OR_END } expected;
    bool has_ended;
} json_list;
status json_list_begins(reader *in, bool *out); /* is '[' the first byte that is no space? Nothing is consumed */
void json_list_open(json_list *l, reader *in, uint64_t most);
void json_list_close(json_list *l); /* also of a zeroed one */
/* As csv_row: *problem is what is wrong with the list here, NULL: nothing. The text lives until the next call. */
status json_list_next(json_list *l, line *out, const char **problem, bool *found);
