/* fuzz_token_ids.c - files of token ids (.npy, .bin).
 *
 * Sections: "32" for ids of four bytes, then the file. Of a file that is accepted every row has tokens of the vocabulary and documents in order. */
#include "data/data.h"
#include "fuzz/fuzz.h"

#include <string.h>

enum { ROW = 16, ROWS_MOST = 64 };

void fuzz_one(const uint8_t *data, size_t size) {
    fuzz_input in = {data, size};
    span options = fuzz_section(&in), file = fuzz_rest(&in);
    bool is_wide = options.length == 2 && memcmp(options.text, "32", 2) == 0;
    data_options o = {.source = fuzz_file(0, file.text, file.length),
                      .tokenizer = "byte",
                      .seq_len = ROW,
                      .pack = size % 2 == 0,
                      .eval_fraction = 0.25,
                      .token_type = is_wide ? TOKEN_TYPE_UINT32 : TOKEN_TYPE_AUTO,
                      .n_threads = 1};
    o.records.format = FORMAT_TOKENS;
    dataset *d;
    status rc = dataset_open(&d, &o);
    if (rc != OK) {
        fuzz_refused(rc);
        return;
    }
    for (split which = SPLIT_TRAIN; which <= SPLIT_EVAL; which++) {
        data_report report;
        dataset_report(d, which, &report);
        for (uint64_t i = 0; i < MIN(report.rows_per_epoch, (uint64_t)ROWS_MOST); i++) {
            int32_t tokens[ROW], targets[ROW], doc_start[ROW];
            dataset_row(d, which, i, tokens, targets, doc_start);
            for (int k = 0; k < ROW; k++) {
                ASSERT(tokens[k] >= 0 && tokens[k] < BYTE_VOCAB && targets[k] >= -1 && targets[k] < BYTE_VOCAB);
                ASSERT(doc_start[k] >= 0 && doc_start[k] <= k && doc_start[doc_start[k]] == doc_start[k]);
            }
        }
    }
    dataset_close(d);
}
