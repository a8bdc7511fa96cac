#pragma once
/* example_rows.h - rows of preferences, read back as text. */
#include "data/data.h"
#include "files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { T_MOST = 512 };
typedef struct full_row {
    int32_t tokens[T_MOST], targets[T_MOST], doc_start[T_MOST], segments[T_MOST], examples[T_MOST / PART_STRIDE];
} full_row;

static char path[128]; /* the file that a test writes */

static inline dataset *open_data(data_options o) {
    dataset *d;
    if (!o.source) o.source = path;
    if (dataset_open(&d, &o) != OK) fail_msg("%s", error_message());
    return d;
}

static inline void get_row(const dataset *d, split s, uint64_t index, full_row *r) {
    memset(r, 0x7f, sizeof *r);
    dataset_row_get(d, s, index, &(data_row){r->tokens, r->targets, r->doc_start, r->segments, r->examples, NULL});
}

static inline uint64_t rows_of(const dataset *d, split s) {
    data_report report;
    dataset_report(d, s, &report);
    return report.rows_per_epoch;
}

/* A document of a row as text: the prompt, then the targets without their end. */
typedef struct seen_part {
    char prompt[T_MOST], response[T_MOST];
    data_part part;
} seen_part;

/* Reads the document at `at` of slot `slot` and returns its end. Byte tokens only: EOS ends it. */
static inline int64_t read_part(const full_row *r, int64_t T, int64_t at, int64_t slot, seen_part *out) {
    int64_t start = at, n_prompt = 0, n_response = 0;
    memset(out, 0, sizeof *out);
    for (; at < T && r->doc_start[at] == start; at++) {
        bool is_last = r->tokens[at] == TOKEN_EOS;
        assert_int_equal(is_last, at + 1 == T || r->doc_start[at + 1] != start);
        assert_int_equal(r->segments[at] == -1, r->targets[at] == -1);
        if (r->targets[at] == -1) {
            assert_true(n_response == 0 || is_last); /* the prompt comes first */
        } else {
            assert_int_equal(r->targets[at], r->tokens[at + 1]);
            assert_int_equal(r->segments[at] / PART_STRIDE, slot);
            out->part = (data_part)(r->segments[at] % PART_STRIDE);
            if (r->targets[at] != TOKEN_EOS) out->response[n_response++] = (char)r->targets[at];
        }
        if (n_response == 0 || (n_response == 1 && r->targets[at] != -1 && r->targets[at] != TOKEN_EOS))
            out->prompt[n_prompt++] = (char)r->tokens[at];
    }
    assert_true(n_prompt > 0 && n_response > 0);
    return at;
}

static inline int64_t count_slots(const full_row *r, int64_t T) {
    int64_t n = 0;
    while (n < data_example_slots(T) && r->examples[n] != -1) n++;
    for (int64_t i = n; i < data_example_slots(T); i++) assert_int_equal(r->examples[i], -1);
    return n;
}

static inline void check_padding(const full_row *r, int64_t T, int64_t at) {
    for (int64_t t = at; t < T; t++) {
        assert_int_equal(r->tokens[t], TOKEN_PAD);
        assert_int_equal(r->targets[t], -1);
        assert_int_equal(r->segments[t], -1);
        assert_int_equal(r->doc_start[t], at);
    }
    for (int64_t t = T; t < T_MOST; t++) assert_int_equal(r->segments[t], 0x7f7f7f7f);
}
