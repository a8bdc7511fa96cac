#pragma once
/* fuzz.h - what the fuzz targets share.
 *
 * A target is one file fuzz_<what>.c with fuzz_one: bytes in, a reader over them, and then the promises of
 * its header checked on whatever the reader accepted. Broken promises end the process (ASSERT), as a sanitizer would.
 *
 * An input is text in sections that end with the byte 0xff, which no UTF-8 has: a file and the texts to encode with it,
 * a header and its data. So a corpus can be read and written by hand, and the mutator knows where JSON begins and ends.
 * Lengths and checksums are put in by the target: no mutation would get past them otherwise.
 *
 *     fuzz_input in = {data, size};
 *     span file = fuzz_section(&in), text = fuzz_section(&in);
 *     status rc = json_read_file(fuzz_file(0, file.text, file.length), 1 << 20, &root);
 *     if (rc != OK) fuzz_refused(rc);
 */
#include "format/format.h"

typedef struct fuzz_input {
    const uint8_t *at;
    size_t n_left;
} fuzz_input;
span fuzz_section(fuzz_input *in); /* up to the next 0xff or the end; empty when nothing is left */
span fuzz_rest(fuzz_input *in);    /* everything that is left */
char *fuzz_text(const span *s);    /* a copy with a NUL behind it; the caller frees */

/* A file in memory with these bytes: its path, good until the slot is used again. */
enum { FUZZ_SLOTS = 4 };
const char *fuzz_file(int slot, const void *bytes, size_t n_bytes);
/* A directory of this process in which each name leads to the file of the slot with its number. */
const char *fuzz_directory(const char *const names[], int n);

/* For checks that cost much more than the reader: true for one input in so many, always the same ones, and for all of them where
 * a corpus or a finding is replayed (driver.c). */
bool fuzz_sometimes(const uint8_t *data, size_t size, unsigned one_in);
extern bool fuzz_checks_all;

/* A refusal is a message about the input; anything else (a broken invariant of ours, no message) is a finding. */
void fuzz_refused(status rc);

void fuzz_one(const uint8_t *data, size_t size); /* the target */
/* What libFuzzer and driver.c call: the target, with ten seconds of processor time for each input. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);
