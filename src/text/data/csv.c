/* csv.c - one row at a time: a state machine over the reader's blocks, so a row may be longer than a block.
 *
 * A wrong row ends where its line ends, as far as quotes let one tell. A quote that is never closed would take the rest of the file as one
 * cell: it is an error of the row in which it was opened, and the row has the line of the quote in its message. */
#include "data/csv.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef enum cell_state {
    CELL_BEGIN,
    CELL_PLAIN,
    CELL_QUOTED,
    CELL_QUOTE,
    ROW_ENDED
} cell_state; /* QUOTE: one inside of quotes */

struct csv {
    reader *in;
    char delimiter;
    uint64_t max_row;
    strbuf header;
    size_t *names, n_columns; /* (n_columns + 1) where names begin in header */
    strbuf cells;             /* of the row, one after the other */
    size_t *ends, n_cells, capacity;
    strbuf problem;
    /* of the row that is read */
    cell_state state;
    bool is_wrong, is_header, after_cr;
    uint64_t n_bytes, row_line, quote_line;
};

/* A row of more cells than any table has is counted, not kept. */
static void add_cell(csv *c) {
    if (c->n_cells++ >= CSV_COLUMNS_MOST) return;
    c->ends = array_grow(c->ends, &c->capacity, c->n_cells, sizeof *c->ends);
    c->ends[c->n_cells - 1] = c->cells.length;
}

static span cell_of(const csv *c, size_t i) {
    size_t begin = i ? c->ends[i - 1] : 0;
    return (span){c->cells.text + begin, c->ends[i] - begin};
}

/* "column 3 ('output')" of the cell that is read. */
static void name_column(const csv *c, size_t column, strbuf *out) {
    strbuf_printf(out, "column %zu", column + 1);
    if (c->is_header || column >= c->n_columns) return;
    span name = csv_name(c, column);
    if (name.length > 0) strbuf_printf(out, " ('%.*s')", (int)MIN(name.length, (size_t)50), name.text);
}

/* Keeps the first thing that is wrong with a row. */
__attribute__((format(printf, 2, 3))) static void refuse(csv *c, const char *format, ...) {
    va_list args;
    if (c->is_wrong) return;
    c->is_wrong = true;
    c->problem.length = 0;
    name_column(c, c->n_cells, &c->problem);
    char text[400];
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    strbuf_printf(&c->problem, ": %s", text);
}

static void add_byte(csv *c, char byte) {
    if (c->cells.length < c->max_row) strbuf_add_bytes(&c->cells, &byte, 1);
}

/* One byte outside of quotes; the line end of a row is not among them. */
static void take_plain(csv *c, char byte) {
    if (byte == c->delimiter) {
        add_cell(c);
        c->state = CELL_BEGIN;
        return;
    }
    if (c->state == CELL_QUOTE) {
        refuse(c,
               "found '%c' after the closing quote, expected '%s' or the end of the row: a quote inside of quotes is "
               "written twice (\"\")",
               byte >= ' ' && byte < 127 ? byte : '?', c->delimiter == ',' ? "," : "<tab>");
        c->state = CELL_PLAIN;
        return;
    }
    if (byte == '"' && c->state == CELL_BEGIN) {
        c->state = CELL_QUOTED;
        c->quote_line = c->in->n_lines + 1;
        return;
    }
    if (byte == '"' && c->delimiter == ',')
        refuse(c,
               "found a quote inside of a value that does not begin with one, expected the whole value in quotes, and "
               "quotes in it twice (\"\")");
    c->state = CELL_PLAIN;
    add_byte(c, byte);
}

static void end_row(csv *c) {
    add_cell(c);
    c->state = ROW_ENDED;
}

/* A carriage return outside of quotes ends a row, if a newline follows. */
static void take_byte(csv *c, char byte) {
    if (byte == '\n') {
        c->in->n_lines++;
        if (c->state != CELL_QUOTED) end_row(c);
        else add_byte(c, byte);
        return;
    }
    if (c->state == CELL_QUOTED) {
        if (byte == '"') c->state = CELL_QUOTE;
        else add_byte(c, byte);
        return;
    }
    if (c->after_cr)
        refuse(c, "found a carriage return without a newline, expected rows that end in \"\\n\" or \"\\r\\n\" (tr "
                  "'\\r' '\\n' "
                  "makes such of them)");
    c->after_cr = byte == '\r';
    if (c->after_cr) return;
    if (c->state == CELL_QUOTE && byte == '"') {
        add_byte(c, byte);
        c->state = CELL_QUOTED;
        return;
    }
    take_plain(c, byte);
}

static void begin_row(csv *c) {
    c->cells.length = 0;
    c->n_cells = 0;
    c->state = CELL_BEGIN;
    c->is_wrong = c->after_cr = false;
    c->n_bytes = 0;
    c->row_line = c->in->n_lines + 1;
}

/* The bytes of the row, without its end, are in cells; false: the file has no more. */
static status read_row(csv *c, bool *found) {
    begin_row(c);
    *found = false;
    while (c->state != ROW_ENDED) {
        span text;
        size_t n = 0;
        TRY(reader_peek(c->in, 1, &text));
        if (text.length == 0) break;
        *found = true;
        while (n < text.length && c->state != ROW_ENDED) take_byte(c, text.text[n++]);
        reader_consume(c->in, n);
        c->n_bytes += n;
    }
    if (!*found || c->state == ROW_ENDED) return OK;
    if (c->state == CELL_QUOTED)
        refuse(c, "found no end of the quote that begins on line %llu, expected another one",
               (unsigned long long)c->quote_line);
    c->in->n_lines++; /* a last line without its end */
    end_row(c);
    return OK;
}

static bool is_empty_row(const csv *c) {
    return c->n_cells == 1 && c->cells.length == 0 && !c->is_wrong && c->n_bytes <= 2;
}

/* ---- the header ------------------------------------------------------------------------------------------------ */

static status check_name(const csv *c, size_t i) {
    span name = cell_of(c, i);
    if (name.length == 0 && i > 0)
        return ERR(ERR_INPUT, "%s:%llu: column %zu: found no name, expected the first row to name the columns",
                   c->in->path, (unsigned long long)c->row_line, i + 1);
    if (utf8_check(name.text, name.length).n_bad > 0 || memchr(name.text, 0, name.length))
        return ERR(ERR_INPUT,
                   "%s:%llu: column %zu: found a name that is not UTF-8, expected a table in UTF-8 (iconv -t UTF-8 "
                   "converts it)",
                   c->in->path, (unsigned long long)c->row_line, i + 1);
    for (size_t k = 0; k < i; k++) {
        span other = cell_of(c, k);
        if (other.length == name.length && memcmp(other.text, name.text, name.length) == 0)
            return ERR(ERR_INPUT, "%s:%llu: columns %zu and %zu: found the name '%.*s' twice, expected different names",
                       c->in->path, (unsigned long long)c->row_line, k + 1, i + 1, (int)MIN(name.length, (size_t)50),
                       name.text);
    }
    return OK;
}

/* Excel writes semicolons where a comma is in numbers. */
static status check_delimiter(const csv *c) {
    span only = cell_of(c, 0);
    char other = 0;
    if (c->n_cells != 1) return OK;
    if (c->delimiter == ',' && memchr(only.text, '\t', only.length)) other = '\t';
    else if (memchr(only.text, ';', only.length)) other = ';';
    else if (c->delimiter == '\t' && memchr(only.text, ',', only.length)) other = ',';
    if (!other) return OK;
    if (other == ';')
        return ERR(
            ERR_INPUT,
            "%s:%llu: found columns separated by ';', expected '%s'; write it again: python3 -c \"import csv, sys; "
            "csv.writer(sys.stdout).writerows(csv.reader(open(sys.argv[1], newline=''), delimiter=';'))\" FILE "
            ">FILE.csv",
            c->in->path, (unsigned long long)c->row_line, c->delimiter == ',' ? "," : "tabs");
    return ERR(ERR_INPUT, "%s:%llu: found columns separated by %s, expected %s; set data.format=%s", c->in->path,
               (unsigned long long)c->row_line, other == ',' ? "','" : "tabs", other == ',' ? "tabs" : "','",
               other == ',' ? "csv" : "tsv");
}

static status read_header(csv *c) {
    bool found;
    c->is_header = true;
    do TRY(read_row(c, &found));
    while (found && is_empty_row(c));
    if (!found || c->n_cells == 0)
        return ERR(ERR_INPUT, "%s: found an empty table, expected a row that names the columns, and rows under it",
                   c->in->path);
    if (c->is_wrong)
        return ERR(ERR_INPUT, "%s:%llu: %s", c->in->path, (unsigned long long)c->row_line, c->problem.text);
    if (c->cells.length >= c->max_row)
        return ERR(ERR_INPUT, "%s:%llu: found a first row of %llu bytes, expected at most %llu (data.max_line)",
                   c->in->path, (unsigned long long)c->row_line, (unsigned long long)c->n_bytes,
                   (unsigned long long)c->max_row);
    TRY(check_delimiter(c));
    if (c->n_cells > CSV_COLUMNS_MOST)
        return ERR(ERR_INPUT, "%s:%llu: found %zu columns, expected at most %d", c->in->path,
                   (unsigned long long)c->row_line, c->n_cells, CSV_COLUMNS_MOST);
    for (size_t i = 0; i < c->n_cells; i++) TRY(check_name(c, i));
    c->n_columns = c->n_cells;
    c->names = mem_alloc((c->n_columns + 1) * sizeof *c->names);
    for (size_t i = 0; i < c->n_columns; i++) c->names[i + 1] = c->ends[i];
    strbuf_add_bytes(&c->header, c->cells.text, c->cells.length);
    c->is_header = false;
    return OK;
}

status csv_open(csv **out, reader *in, char delimiter, uint64_t max_row) {
    csv *c = mem_alloc(sizeof *c);
    *c = (csv){.in = in, .delimiter = delimiter, .max_row = max_row};
    strbuf_init(&c->header);
    strbuf_init(&c->cells);
    strbuf_init(&c->problem);
    strbuf_add(&c->cells, "");
    *out = NULL;
    status rc = read_header(c);
    if (rc == OK) *out = c;
    else csv_close(c);
    return rc;
}

void csv_close(csv *c) {
    if (!c) return;
    strbuf_fini(&c->header);
    strbuf_fini(&c->cells);
    strbuf_fini(&c->problem);
    free(c->names);
    free(c->ends);
    free(c);
}

size_t csv_columns(const csv *c) { return c->n_columns; }
span csv_name(const csv *c, size_t i) { return (span){c->header.text + c->names[i], c->names[i + 1] - c->names[i]}; }
span csv_cell(const csv *c, size_t i) { return cell_of(c, i); }

/* ---- rows ------------------------------------------------------------------------------------------------------ */

static void check_cells(csv *c) {
    if (c->n_cells != c->n_columns) {
        if (c->is_wrong) return;
        c->is_wrong = true;
        c->problem.length = 0;
        strbuf_printf(&c->problem, "found %zu values, expected %zu, one for each column that the first row names%s",
                      c->n_cells, c->n_columns,
                      c->n_cells > c->n_columns ? "; a value with a separator in it stands in quotes" : "");
        return;
    }
    for (size_t i = 0; i < c->n_cells; i++) {
        span cell = cell_of(c, i);
        utf8_scan u = utf8_check(cell.text, cell.length);
        if (u.n_bad == 0) continue;
        c->n_cells = i; /* the column that is named */
        refuse(c, "found the byte 0x%02x, which is not UTF-8, expected a table in UTF-8 (iconv -t UTF-8 converts it)",
               (unsigned char)cell.text[u.n_valid]);
        return;
    }
}

status csv_row(csv *c, line *out, const char **problem, bool *found) {
    *problem = NULL;
    do {
        *out = (line){.offset = c->in->offset, .number = c->in->n_lines + 1};
        TRY(read_row(c, found));
    } while (*found && is_empty_row(c));
    if (!*found) return OK;
    out->n_bytes = c->n_bytes;
    out->too_long = c->n_bytes > c->max_row;
    if (out->too_long) return OK;
    check_cells(c);
    if (c->is_wrong) *problem = c->problem.text;
    return OK;
}
