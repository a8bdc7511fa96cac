#pragma once
/* rows.h - rows of a dataset, and what holds for each of them. */
#include "data/data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { T_MAX = 512 };
typedef struct row {
    int32_t tokens[T_MAX], targets[T_MAX], doc_start[T_MAX];
} row;

static inline dataset *open_data(data_options o) {
    dataset *d;
    if (dataset_open(&d, &o) != OK) fail_msg("%s", error_message());
    return d;
}

static inline void get_row(const dataset *d, split s, uint64_t index, row *r) {
    memset(r, 0x7f, sizeof *r);
    dataset_row(d, s, index, r->tokens, r->targets, r->doc_start);
}

static inline bool rows_equal(const row *a, const row *b) { return memcmp(a, b, sizeof *a) == 0; }

/* What holds for every row of every source: documents are runs, a target is the next token of the same document or
 * absent, padding is one run at the end that trains nothing, and nothing is written behind the row. */
static inline void check_row(const row *r, int64_t T) {
    bool padding = false;
    for (int64_t t = 0; t < T; t++) {
        assert_in_range(r->tokens[t], 0, BYTE_VOCAB - 1);
        assert_true(r->doc_start[t] == t || (t > 0 && r->doc_start[t] == r->doc_start[t - 1]));
        bool ends = t + 1 < T && r->doc_start[t + 1] == t + 1;
        if (r->targets[t] != -1 && t + 1 < T) {
            assert_false(ends);
            assert_int_equal(r->targets[t], r->tokens[t + 1]);
        }
        if (r->tokens[t] == TOKEN_EOS) {
            assert_int_equal(r->targets[t], -1);
            assert_true(t + 1 == T || ends);
        }
        if (padding) assert_int_equal(r->tokens[t], TOKEN_PAD);
        if (r->tokens[t] == TOKEN_PAD) {
            if (!padding) assert_int_equal(r->doc_start[t], t);
            padding = true;
            assert_int_equal(r->targets[t], -1);
        }
    }
    for (int64_t t = T; t < T_MAX; t++) assert_int_equal(r->tokens[t], 0x7f7f7f7f);
}
