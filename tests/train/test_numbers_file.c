/* test_numbers_file.c - numbers of a frozen model by row: what was written is read, in any order of rows, and a file that is cut, damaged,
 * of other data, of another model or with another number of tokens is refused with what is wrong. */
#include "must.h"
#include "train/numbers_file.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <unistd.h>

enum { ROWS = 5, T = 700 }; /* longer than what is read at once */
static const numbers_words words = {"rho1.reference", "losses of a reference", "row"};
static const numbers_identity identity = {.data = 3, .model = 4, .n_entries = {ROWS, 0}};

/* Row r has a target at every (r + 1)th place; row 3 is not visited. */
static void make_marks(int row, int32_t *marks) {
    int32_t targets[T];
    for (int t = 0; t < T; t++) targets[t] = t % (row + 1) == 0 ? t : -1;
    numbers_file_marks(targets, T, marks);
}
static float number_of(int row, int t) { return (float)row * 1000 + (float)t / 4; }

static status write_file(const char *path, float more) {
    numbers_writer *w;
    int32_t marks[T];
    float numbers[T];
    uint64_t n_bytes;
    TRY(numbers_file_create(&w, path, &words, identity.n_entries));
    for (int32_t row = 0; row < ROWS; row++) {
        make_marks(row, marks);
        if (row != 3) numbers_file_count(w, SPLIT_TRAIN, marks, &row, T);
    }
    status rc = numbers_file_lay_out(w);
    for (int32_t row = ROWS - 1; row >= 0 && rc == OK; row--) {
        if (row == 3) continue;
        make_marks(row, marks);
        for (int t = 0; t < T; t++) numbers[t] = number_of(row, t) + more;
        rc = numbers_file_add(w, SPLIT_TRAIN, marks, &row, T, numbers);
    }
    if (rc == OK) rc = numbers_file_commit(w, &identity, &n_bytes);
    if (rc == OK) assert_int_equal(n_bytes, numbers_file_bytes(ROWS, 700 + 350 + 234 + 140));
    numbers_writer_close(w);
    return rc;
}

static void open_refused(const numbers_identity *id, const char *b) {
    numbers_file *f;
    must_refuse(numbers_file_open(&f, "numbers", &words, id), WORDS("numbers", b));
}

static void rows_are_read_as_they_were_written(void **state) {
    numbers_file *f;
    int32_t marks[T];
    float numbers[T];
    uint64_t n;
    must(write_file("numbers", 0));
    must(numbers_file_open(&f, "numbers", &words, &(numbers_identity){.data = 3, .n_entries = {ROWS, 0}}));
    assert_int_equal(numbers_file_model(f), 4);
    for (int32_t row = 0; row < ROWS; row++) {
        make_marks(row, marks);
        must(numbers_file_length(f, SPLIT_TRAIN, (uint64_t)row, &n));
        if (row == 3) {
            assert_int_equal(n, 0);
            must_refuse(numbers_file_read(f, SPLIT_TRAIN, marks, &row, T, numbers),
                        WORDS("found 0 numbers for row 3", "175"));
            continue;
        }
        must(numbers_file_read(f, SPLIT_TRAIN, marks, &row, T, numbers));
        for (int t = 0; t < T; t++) assert_true(numbers[t] == (marks[t] < 0 ? 0 : number_of(row, t)));
    }
    int32_t row = 1;
    make_marks(2, marks); /* tokens of another row */
    must_refuse(numbers_file_read(f, SPLIT_TRAIN, marks, &row, T, numbers),
                WORDS("found 350 numbers for row 1", "expected 234"));
    numbers_file_close(f);
}

static void other_files_are_refused(void **state) {
    char *bytes;
    size_t n;
    must(write_file("numbers", 0));
    must(file_read_all("numbers", 1 << 20, &bytes, &n));
    numbers_identity other = identity;
    other.data++;
    open_refused(&other, "other data");
    other = identity, other.model++;
    open_refused(&other, "the hash");
    other = identity, other.n_entries[0]++;
    open_refused(&other, "other data");
    must(file_replace("numbers", bytes, n - 4));
    open_refused(&identity, "size");
    must(file_replace("numbers", bytes, 40));
    open_refused(&identity, "header");
    bytes[n - 3] ^= 1;
    must(file_replace("numbers", bytes, n));
    open_refused(&identity, "checksum");
    free(bytes);
    assert_int_equal(unlink("numbers"), 0);
    must_refuse(write_file("numbers", INFINITY), WORDS("rho1.reference", "row 4"));
    assert_int_equal(access("numbers", F_OK), -1); /* whole, or not there */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_read_as_they_were_written),
        cmocka_unit_test(other_files_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
