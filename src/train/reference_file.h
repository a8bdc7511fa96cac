#pragma once
/* reference_file.h - private to train: what a reference says of every example, computed once and kept in a file.
 *
 * The file holds the loss of every trained token, by example: its number in the split is the same in every epoch
 * (data_row.examples), whichever row it is in.
 *
 *     TRY(reference_file_create(&w, path, n_examples));
 *     reference_file_count(w, split, segments, examples, T);               // every row, to know the sizes
 *     TRY(reference_file_lay_out(w));
 *     TRY(reference_file_add(w, split, segments, examples, T, losses));    // every row again
 *     TRY(reference_file_commit(w, &identity));                            // now it is there, whole
 *     TRY(reference_file_open(&f, path, &identity));
 *     TRY(reference_file_read(f, split, segments, examples, T, losses));   // one row; allocates nothing
 */
#include "data/data.h"

/* Which data and which parameters a file belongs to. */
typedef struct reference_identity {
    uint64_t data, model;
    uint64_t n_examples[2]; /* per split */
} reference_identity;

typedef struct reference_writer reference_writer;
status reference_file_create(reference_writer **out, const char *path, const uint64_t n_examples[2]);
void reference_file_count(reference_writer *w, split s, const int32_t *segments, const int32_t *examples, int64_t T);
status reference_file_lay_out(reference_writer *w);
/* An example that comes again is written again. Losses that are not finite are refused. */
status reference_file_add(reference_writer *w, split s, const int32_t *segments, const int32_t *examples, int64_t T,
                          const float *losses);
status reference_file_commit(reference_writer *w, const reference_identity *id, uint64_t *n_bytes);
void reference_writer_close(reference_writer *w); /* without a commit nothing is left behind */

typedef struct reference_file reference_file;
/* Reads and checks all of it: a file from anyone is refused with what is wrong. ERR_INPUT also where it is of other data or another
 * model; `id->model` 0: whichever model it is of, which reference_file_model then says. */
status reference_file_open(reference_file **out, const char *path, const reference_identity *id);
uint64_t reference_file_model(const reference_file *f);
status reference_file_read(const reference_file *f, split s, const int32_t *segments, const int32_t *examples,
                           int64_t T, float *losses);
void reference_file_close(reference_file *f);
