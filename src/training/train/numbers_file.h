#pragma once
/* numbers_file.h - private to train: what a frozen model says of every token, computed once and kept in a file.
 *
 * The file holds one number for every trained token, by entry: an example (data_row.examples) or a row (dataset_place), whose
 * number in the split is the same in every epoch. A row of examples says with segments which of its tokens belong to
 * which example; a row that is one entry has 0 for each of its targets (numbers_file_marks) and its place as the only example.
 *
 *     TRY(numbers_file_create(&w, path, &words, n_entries));
 *     numbers_file_count(w, split, segments, examples, T);               // every row, to know the sizes
 *     TRY(numbers_file_lay_out(w));
 *     TRY(numbers_file_add(w, split, segments, examples, T, numbers));   // every row again
 *     TRY(numbers_file_commit(w, &identity));                            // now it is there, whole
 *     TRY(numbers_file_open(&f, path, &words, &identity));
 *     TRY(numbers_file_read(f, split, segments, examples, T, numbers));  // one row; allocates nothing
 */
#include "data/data.h"

/* Which data and which parameters a file belongs to. */
typedef struct numbers_identity {
    uint64_t data, model;
    uint64_t n_entries[2]; /* per split */
} numbers_identity;

/* For messages. */
typedef struct numbers_words {
    const char *key;     /* the setting that names the model */
    const char *numbers; /* "log-probabilities of a reference" */
    const char *entry;   /* "example" */
} numbers_words;

typedef struct numbers_writer numbers_writer;
status numbers_file_create(numbers_writer **out, const char *path, const numbers_words *words,
                           const uint64_t n_entries[2]);
void numbers_file_count(numbers_writer *w, split s, const int32_t *segments, const int32_t *examples, int64_t T);
status numbers_file_lay_out(numbers_writer *w);
/* An entry that comes again is written again. Numbers that are not finite are refused. */
status numbers_file_add(numbers_writer *w, split s, const int32_t *segments, const int32_t *examples, int64_t T,
                        const float *numbers);
status numbers_file_commit(numbers_writer *w, const numbers_identity *id, uint64_t *n_bytes);
void numbers_writer_close(numbers_writer *w); /* without a commit nothing is left behind */

typedef struct numbers_file numbers_file;
/* Reads and checks all of it: a file from anyone is refused with what is wrong. ERR_INPUT also where it is of other data or another
 * model; `id->model` 0: whichever model it is of, which numbers_file_model then says. */
status numbers_file_open(numbers_file **out, const char *path, const numbers_words *words, const numbers_identity *id);
uint64_t numbers_file_model(const numbers_file *f);
status numbers_file_read(const numbers_file *f, split s, const int32_t *segments, const int32_t *examples, int64_t T,
                         float *numbers);
/* How many numbers an entry has. */
status numbers_file_length(const numbers_file *f, split s, uint64_t entry, uint64_t *out);
void numbers_file_close(numbers_file *f);

/* The segments of a row that is one entry. */
static inline void numbers_file_marks(const int32_t *targets, int64_t T, int32_t *segments) {
    for (int64_t t = 0; t < T; t++) segments[t] = targets[t] >= 0 ? 0 : -1;
}
/* Bytes of a file with so many entries and numbers. */
uint64_t numbers_file_bytes(uint64_t n_entries, uint64_t n_numbers);
