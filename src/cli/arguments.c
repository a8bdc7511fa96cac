/* arguments.c - a table of options, read from the command line. */
#include "cli/arguments.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void text_list_add(text_list *l, const char *text) {
    l->items = array_grow(l->items, &l->capacity, l->n + 1, sizeof *l->items);
    l->items[l->n++] = text;
}

void text_list_fini(text_list *l) {
    free(l->items);
    *l = (text_list){0};
}

static status parse_integer(const char *command, const argument_row *row, const char *text) {
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (!*text || *end || errno || (double)n < row->least || (double)n > row->most)
        return ERR(ERR_INPUT, "%s: --%s: found '%s', expected a whole number from %.0f to %.0f", command, row->name,
                   text, row->least, row->most);
    *(int64_t *)row->to = n;
    return OK;
}

static status parse_real(const char *command, const argument_row *row, const char *text) {
    char *end;
    double x = strtod(text, &end);
    if (!*text || *end || !isfinite(x) || x < row->least || x > row->most)
        return ERR(ERR_INPUT, "%s: --%s: found '%s', expected a number from %g to %g", command, row->name, text,
                   row->least, row->most);
    *(double *)row->to = x;
    return OK;
}

static status parse_precision(const char *command, const argument_row *row, const char *text) {
    static const precision known[] = {PRECISION_FP32, PRECISION_BF16, PRECISION_FP16};
    for (size_t i = 0; i < ARRAY_LENGTH(known); i++)
        if (strcmp(text, precision_name(known[i])) == 0) {
            *(precision *)row->to = known[i];
            return OK;
        }
    return ERR(ERR_INPUT, "%s: --%s: found '%s', expected one of: fp32, bf16, fp16", command, row->name, text);
}

static status store(const char *command, const argument_row *row, const char *text) {
    switch (row->kind) {
    case ARG_TEXT: *(const char **)row->to = text; return OK;
    case ARG_TEXTS: text_list_add(row->to, text); return OK;
    case ARG_INTEGER: return parse_integer(command, row, text);
    case ARG_REAL: return parse_real(command, row, text);
    case ARG_PRECISION: return parse_precision(command, row, text);
    case ARG_SWITCH: *(bool *)row->to = true; return OK;
    case ARG_BYTES:
        if (str_parse_bytes(text, row->to) == OK) return OK;
        return ERR(ERR_INPUT, "%s: --%s: found '%s', expected bytes, as 8G or 512M", command, row->name, text);
    }
    return OK;
}

/* The name in an option, without dashes and value; 0 when it is none. "-" alone is a file name. */
static size_t option_name(const char *text, const char **name) {
    if (text[0] != '-' || !text[1]) return 0;
    bool is_long = text[1] == '-';
    *name = text + (is_long ? 2 : 1);
    size_t n = strcspn(*name, "=");
    return is_long || n == 1 ? n : 0;
}

static const argument_row *find_row(const argument_row *rows, size_t n_rows, const char *name, size_t length) {
    for (size_t i = 0; i < n_rows; i++)
        if (strlen(rows[i].name) == length && strncmp(rows[i].name, name, length) == 0) return &rows[i];
    return NULL;
}

status arguments_parse(const char *command, const argument_row *rows, size_t n_rows, int argc, char **argv,
                       text_list *rest) {
    for (int i = 1; i < argc; i++) {
        const char *name = NULL;
        size_t length = option_name(argv[i], &name);
        if (!length && (argv[i][0] != '-' || !argv[i][1])) {
            text_list_add(rest, argv[i]);
            continue;
        }
        const argument_row *row = length ? find_row(rows, n_rows, name, length) : NULL;
        if (!row)
            return ERR(ERR_INPUT, "%s: unknown option '%s'; 'ralo %s --help' lists them", command, argv[i], command);
        const char *text = name[length] == '=' ? name + length + 1 : NULL;
        if (row->kind == ARG_SWITCH && text)
            return ERR(ERR_INPUT, "%s: --%s takes no value, found '%s'", command, row->name, text);
        if (row->kind != ARG_SWITCH && !text) {
            if (i + 1 == argc) return ERR(ERR_INPUT, "%s: %s needs a value", command, argv[i]);
            text = argv[++i];
        }
        TRY(store(command, row, text));
    }
    return OK;
}

bool argument_given(const char *name, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *found;
        size_t length = option_name(argv[i], &found);
        if (length == strlen(name) && strncmp(found, name, length) == 0) return true;
    }
    return false;
}
