#pragma once
/* arguments.h - private to cli: options of commands that take no settings file, as a table.
 *
 *     int64_t n = 3;
 *     argument_row rows[] = {{"count", ARG_INTEGER, &n, 1, 100}};
 *     TRY(arguments_parse("generate", rows, ARRAY_LENGTH(rows), argc, argv, &rest));
 *
 * --name value and --name=value; a name of one letter may be written -n value. Texts are borrowed from argv. */
#include "cli/cli.h"

typedef struct text_list {
    const char **items;
    size_t n, capacity;
} text_list;
void text_list_add(text_list *l, const char *text);
void text_list_fini(text_list *l);

typedef enum argument_kind {
    ARG_TEXT,      /* const char * */
    ARG_TEXTS,     /* text_list, one entry per use */
    ARG_INTEGER,   /* int64_t in [least, most] */
    ARG_REAL,      /* double in [least, most] */
    ARG_BYTES,     /* uint64_t: 8G, 512M */
    ARG_PRECISION, /* precision */
    ARG_SWITCH,    /* bool, takes no value */
} argument_kind;
typedef struct argument_row {
    const char *name;
    argument_kind kind;
    void *to;
    double least, most;
} argument_row;
/* rest: what is no option, in order. */
status arguments_parse(const char *command, const argument_row *rows, size_t n_rows, int argc, char **argv,
                       text_list *rest);
bool argument_given(const char *name, int argc, char **argv);
