/* fuzz_csv.c - a table with commas or tabs.
 *
 * Sections: "tab" or anything else, then the file. Whatever it holds: columns have names of which no two are alike; a row has a cell for every
 * column, in UTF-8, or says what is wrong; lines ascend. Rows written again with every cell in quotes are read as the same rows. */
#include "data/csv.h"
#include "fuzz/fuzz.h"

#include <string.h>

enum { ROW_MOST = 4096 };

static void add_quoted(strbuf *out, span cell) {
    strbuf_add(out, "\"");
    for (size_t i = 0; i < cell.length; i++)
        strbuf_add_bytes(out, cell.text[i] == '"' ? "\"\"" : cell.text + i, cell.text[i] == '"' ? 2 : 1);
    strbuf_add(out, "\"");
}

static void check_header(const csv *c) {
    for (size_t i = 0; i < csv_columns(c); i++) {
        span name = csv_name(c, i);
        ASSERT(name.length > 0 || i == 0);
        ASSERT(utf8_check(name.text, name.length).n_bad == 0);
        for (size_t k = 0; k < i && csv_columns(c) < 64; k++)
            ASSERT(csv_name(c, k).length != name.length || memcmp(csv_name(c, k).text, name.text, name.length) != 0);
    }
}

/* again: the good rows, every cell in quotes; plain: the same without separators, to compare. */
static uint64_t read_rows(csv *c, char delimiter, strbuf *again, strbuf *plain) {
    uint64_t n = 0, last = 0;
    for (bool found = true; found;) {
        line l;
        const char *problem;
        status rc = csv_row(c, &l, &problem, &found);
        ASSERT(rc == OK);
        if (!found) break;
        ASSERT(l.number > last);
        last = l.number;
        ASSERT(!problem || *problem);
        if (l.too_long || problem) continue;
        n++;
        for (size_t i = 0; i < csv_columns(c); i++) {
            span cell = csv_cell(c, i);
            ASSERT(cell.length <= ROW_MOST && utf8_check(cell.text, cell.length).n_bad == 0);
            if (i) strbuf_add_bytes(again, &delimiter, 1);
            add_quoted(again, cell);
            strbuf_printf(plain, "%zu ", cell.length);
            strbuf_add_bytes(plain, cell.text, cell.length);
        }
        strbuf_add(again, "\r\n");
    }
    return n;
}

static bool open_table(csv **c, reader *in, const char *path, char delimiter, uint64_t max_row) {
    status rc = reader_open(in, path);
    if (rc != OK) fuzz_refused(rc);
    if (rc != OK) return false;
    rc = csv_open(c, in, delimiter, max_row);
    if (rc == OK) return true;
    fuzz_refused(rc);
    reader_close(in);
    return false;
}

void fuzz_one(const uint8_t *data, size_t size) {
    fuzz_input in = {data, size};
    span options = fuzz_section(&in), file = fuzz_rest(&in);
    char delimiter = options.length == 3 && memcmp(options.text, "tab", 3) == 0 ? '\t' : ',';
    strbuf again, plain, second, ignored;
    strbuf *all[] = {&again, &plain, &second, &ignored};
    reader r;
    csv *c;
    for (size_t i = 0; i < ARRAY_LENGTH(all); i++) strbuf_init(all[i]);
    if (open_table(&c, &r, fuzz_file(0, file.text, file.length), delimiter, ROW_MOST)) {
        check_header(c);
        for (size_t i = 0; i < csv_columns(c); i++) {
            if (i) strbuf_add_bytes(&again, &delimiter, 1);
            add_quoted(&again, csv_name(c, i));
        }
        strbuf_add(&again, "\n");
        bool is_named = csv_columns(c) > 1; /* one quoted name may look like columns with another separator */
        uint64_t n = read_rows(c, delimiter, &again, &plain);
        csv_close(c);
        reader_close(&r);
        if (is_named) {
            ASSERT(open_table(&c, &r, fuzz_file(1, again.text, again.length), delimiter, 3 * ROW_MOST));
            ASSERT(read_rows(c, delimiter, &ignored, &second) == n);
            ASSERT(second.length == plain.length &&
                   (!plain.length || memcmp(second.text, plain.text, plain.length) == 0));
            csv_close(c);
            reader_close(&r);
        }
    }
    for (size_t i = 0; i < ARRAY_LENGTH(all); i++) strbuf_fini(all[i]);
}
