/* test_base.c - errors, log, memory, strings, files, the machine and the thread pool keep their promises. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/base.h"
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- whole units --------------------------------------------------------------------------------------------- */

static void test_units_are_filled_and_none_is_added(void **state) {
    (void)state;
    static const int64_t n[] = {0, 1, 7, 8, 9, 16}, units[] = {0, 1, 1, 1, 2, 2};
    for (size_t i = 0; i < ARRAY_LENGTH(n); i++) {
        assert_int_equal(divide_up(n[i], 8), units[i]);
        assert_int_equal(round_up(n[i], 8), 8 * units[i]);
        assert_int_equal(align_up((size_t)n[i], 8), 8 * units[i]);
    }
    assert_int_equal(divide_up(7, 3), 3);
    assert_int_equal(round_up(7, 3), 9);
    assert_int_equal(align_up(((size_t)1 << 40) + 1, 4096), ((size_t)1 << 40) + 4096);
}

/* ---- errors -------------------------------------------------------------------------------------------------- */

static status fail_at_depth(int depth) {
    if (depth == 0) return ERR(ERR_FIT, "%d bytes are missing", 42);
    TRY(fail_at_depth(depth - 1));
    return OK;
}

static void test_error_keeps_message_and_trail(void **state) {
    error_clear();
    assert_string_equal(error_message(), "");
    assert_int_equal(fail_at_depth(2), ERR_FIT);
    assert_int_equal(error_code(), ERR_FIT);
    assert_string_equal(error_message(), "42 bytes are missing");
    assert_int_equal(error_trail_length(), 3);
    for (int i = 0; i < 3; i++) {
        assert_true(str_starts_with(error_trail_at(i), "tests/test_base.c:"));
        assert_true(str_ends_with(error_trail_at(i), " fail_at_depth"));
    }
    assert_string_not_equal(error_trail_at(0), error_trail_at(1));
    assert_string_equal(error_trail_at(3), "");
    assert_string_equal(error_trail_at(-1), "");
}

static void test_error_trail_overflow_keeps_both_ends(void **state) {
    assert_int_equal(fail_at_depth(40), ERR_FIT);
    assert_int_equal(error_trail_length(), 16);
    status rc = OK;
    TRY_GOTO(rc, fail_at_depth(40), out);
out:
    assert_int_equal(rc, ERR_FIT);
    assert_int_equal(error_trail_length(), 16);
    assert_true(str_ends_with(error_trail_at(0), " fail_at_depth"));
    assert_true(str_ends_with(error_trail_at(15), " test_error_trail_overflow_keeps_both_ends"));
}

static void test_error_message_may_be_built_from_the_previous_one(void **state) {
    ERR(ERR_INPUT, "inner");
    assert_int_equal(ERR(ERR_IO, "outer of [%s]", error_message()), ERR_IO);
    assert_string_equal(error_message(), "outer of [inner]");
    assert_int_equal(error_trail_length(), 1);

    char *longer = mem_alloc(5000);
    memset(longer, 'x', 4999);
    ERR(ERR_IO, "%s", longer);
    assert_int_equal(strlen(error_message()), sizeof((error_record *)0)->message - 1);
    free(longer);
}

static status returns_bare_code(void) { return ERR_RUN; }

static status passes_bare_code(void) {
    TRY(returns_bare_code());
    return OK;
}

static void test_error_without_message_does_not_show_an_old_one(void **state) {
    ERR(ERR_IO, "old news");
    assert_int_equal(passes_bare_code(), ERR_RUN);
    assert_null(strstr(error_message(), "old news"));
    assert_string_not_equal(error_message(), "");
}

static void *fail_on_thread(void *out) {
    assert_string_equal(error_message(), "");
    fail_at_depth(1);
    error_take(out);
    assert_string_equal(error_message(), "");
    assert_int_equal(error_code(), OK);
    return NULL;
}

static void test_error_is_per_thread_and_can_be_carried(void **state) {
    error_record carried;
    pthread_t thread;
    ERR(ERR_IO, "mine");
    assert_int_equal(pthread_create(&thread, NULL, fail_on_thread, &carried), 0);
    pthread_join(thread, NULL);
    assert_string_equal(error_message(), "mine");
    assert_int_equal(error_give(&carried), ERR_FIT);
    assert_string_equal(error_message(), "42 bytes are missing");
    assert_int_equal(error_trail_length(), 2);
}

static char *printed_error(void) {
    static char text[4096];
    memset(text, 0, sizeof text);
    FILE *f = fmemopen(text, sizeof text - 1, "w");
    assert_non_null(f);
    error_print(f);
    fclose(f);
    return text;
}

static void test_error_print_shows_the_trail_on_wish_and_for_bugs(void **state) {
    unsetenv("RALO_TRAIL");
    fail_at_depth(1);
    assert_string_equal(printed_error(), "error: 42 bytes are missing\n");
    setenv("RALO_TRAIL", "1", 1);
    assert_non_null(strstr(printed_error(), " fail_at_depth\n"));
    unsetenv("RALO_TRAIL");
    ERR(ERR_BUG, "impossible");
    assert_non_null(strstr(printed_error(), "test_error_print_shows_the_trail"));
    error_clear();
    assert_string_equal(printed_error(), "");
}

static void test_exit_codes(void **state) {
    assert_int_equal(error_exit_code(OK), 0);
    assert_int_equal(error_exit_code(ERR_RUN), 1);
    assert_int_equal(error_exit_code(ERR_INPUT), 2);
    assert_int_equal(error_exit_code(ERR_IO), 2);
    assert_int_equal(error_exit_code(ERR_FIT), 3);
    assert_int_equal(error_exit_code(ERR_INTERRUPTED), 130);
    assert_int_equal(error_exit_code(ERR_BUG), 1);
}

/* Runs fn in a child with a quiet stderr; true when it aborted. */
static bool aborts(void (*fn)(void)) {
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        signal(SIGABRT, SIG_DFL);
        int quiet = open("/dev/null", O_WRONLY);
        dup2(quiet, STDERR_FILENO);
        fn();
        _exit(0);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    return WIFSIGNALED(how) && WTERMSIG(how) == SIGABRT;
}

static void break_an_invariant(void) {
    volatile int one = 1;
    ASSERT(one == 2);
}

static void keep_an_invariant(void) {
    volatile int one = 1;
    ASSERT(one == 1);
}

static void test_assert_is_on(void **state) {
    assert_true(aborts(break_an_invariant));
    assert_false(aborts(keep_an_invariant));
}

/* ---- log ----------------------------------------------------------------------------------------------------- */

/* What `say` writes to stderr. The pipe takes it whole: every case stays under PIPE_BUF. */
static char *capture_stderr(void (*say)(void)) {
    static char text[8192];
    int ends[2], kept = dup(STDERR_FILENO);
    assert_int_equal(pipe(ends), 0);
    fflush(stderr);
    dup2(ends[1], STDERR_FILENO);
    say();
    dup2(kept, STDERR_FILENO);
    close(kept);
    close(ends[1]);
    size_t length = 0;
    for (ssize_t n; (n = read(ends[0], text + length, sizeof text - 1 - length)) > 0;) length += (size_t)n;
    close(ends[0]);
    text[length] = 0;
    return text;
}

static void say_three(void) {
    log_debug("hidden");
    errno = EXDEV;
    log_info("%d lines\nin one\n", 2);
    assert_int_equal(errno, EXDEV);
    log_warn("careful");
}

static void say_long(void) {
    char text[6000];
    memset(text, 'y', sizeof text - 1);
    text[sizeof text - 1] = 0;
    log_error("%s", text);
}

static void test_log_writes_one_line_per_call(void **state) {
    log_set_level(LOG_INFO);
    assert_string_equal(capture_stderr(say_three), "2 lines in one\nwarning: careful\n");
    log_set_level(LOG_WARN);
    assert_string_equal(capture_stderr(say_three), "warning: careful\n");
    log_set_level(LOG_INFO);
    char *line = capture_stderr(say_long);
    assert_true(str_starts_with(line, "error: yyy"));
    assert_true(str_ends_with(line, "y...\n"));
    assert_true(strlen(line) <= 4096);
}

/* ---- memory -------------------------------------------------------------------------------------------------- */

static void test_arena_gives_zeroed_aligned_disjoint_memory(void **state) {
    enum { N = 3000 };
    static struct {
        unsigned char *at;
        size_t n;
    } given[N];
    arena a;
    arena_init(&a);
    size_t total = 0;
    for (int i = 0; i < N; i++) {
        size_t n = rng_below(7, (uint64_t)i, 100);
        if (i % 500 == 0) n = 100000 * (size_t)(i / 500); /* blocks of their own, and zero bytes */
        given[i].at = arena_alloc(&a, n);
        given[i].n = n;
        total += n;
        assert_non_null(given[i].at);
        assert_int_equal((uintptr_t)given[i].at % 16, 0);
        for (size_t k = 0; k < n; k++) assert_int_equal(given[i].at[k], 0);
        memset(given[i].at, i % 251 + 1, n);
    }
    assert_int_equal(a.n_bytes, total);
    for (int i = 0; i < N; i++) /* nothing was written twice */
        for (size_t k = 0; k < given[i].n; k++) assert_int_equal(given[i].at[k], i % 251 + 1);

    assert_string_equal(arena_string(&a, "name"), "name");
    assert_string_equal(arena_format(&a, "h.%d.%s", 3, "weight"), "h.3.weight");
    int numbers[] = {1, 2, 3};
    assert_memory_equal(arena_copy(&a, numbers, sizeof numbers), numbers, sizeof numbers);
    arena_fini(&a);
    assert_null(a.blocks);
    assert_int_equal(a.n_bytes, 0);
    assert_int_equal(*arena_new(&a, int), 0); /* usable again */
    arena_fini(&a);
}

static void ask_arena_for_a_negative_count(void) {
    arena a;
    arena_init(&a);
    volatile int n = -1;
    arena_array(&a, char, n);
}

static void test_arena_refuses_a_negative_count(void **state) { assert_true(aborts(ask_arena_for_a_negative_count)); }

static void test_array_grow_keeps_items_and_zeroes_new_ones(void **state) {
    size_t capacity = 0;
    int *xs = NULL;
    for (size_t n = 0; n < 1000; n++) {
        xs = array_grow(xs, &capacity, n + 1, sizeof *xs);
        assert_true(capacity > n);
        assert_int_equal(xs[n], 0);
        xs[n] = (int)n + 1;
    }
    for (int i = 0; i < 1000; i++) assert_int_equal(xs[i], i + 1);
    free(xs);
}

/* ---- sort ---------------------------------------------------------------------------------------------------- */

/* Keys that differ in all their bytes, in the highest alone, in a few low values that many share, and in none. */
static uint64_t key_of(int kind, uint64_t i) {
    uint64_t x = rng_below(11, i, (uint64_t)1 << 62) * 4 + i % 4;
    return kind == 0 ? x : kind == 1 ? x << 56 : kind == 2 ? x % 5 : 77;
}

static void test_rows_are_sorted_and_equal_ones_keep_their_order(void **state) {
    static const size_t counts[] = {0, 1, 2, 3, 255, 256, 1000, 5000};
    for (size_t k = 0; k < ARRAY_LENGTH(counts); k++)
        for (int kind = 0; kind < 4; kind++) {
            size_t n = counts[k];
            sort_row *rows = mem_alloc(n * sizeof *rows);
            bool *seen = mem_alloc(n * sizeof *seen);
            for (size_t i = 0; i < n; i++) rows[i] = (sort_row){key_of(kind, i), i};
            sort_rows(rows, n);
            for (size_t i = 0; i < n; i++) {
                assert_true(rows[i].item < n && !seen[rows[i].item]);
                seen[rows[i].item] = true;
                assert_true(rows[i].key == key_of(kind, rows[i].item));
                if (i == 0) continue;
                const sort_row *before = &rows[i - 1];
                assert_true(before->key < rows[i].key || (before->key == rows[i].key && before->item < rows[i].item));
            }
            free(rows);
            free(seen);
        }
}

/* ---- strings ------------------------------------------------------------------------------------------------- */

static void test_words_of_a_shell(void **state) {
    static const char *const words[][2] = {{"runs/a-1", "runs/a-1"},
                                           {"run.dir=x", "run.dir=x"},
                                           {"a b", "'a b'"},
                                           {"it's", "'it'\\''s'"},
                                           {"", "''"},
                                           {"$x", "'$x'"}};
    for (size_t i = 0; i < ARRAY_LENGTH(words); i++) {
        strbuf b;
        strbuf_init(&b);
        strbuf_add_word(&b, words[i][0]);
        assert_string_equal(b.text, words[i][1]);
        strbuf_fini(&b);
    }
}

static void test_strbuf_grows_and_hands_over(void **state) {
    strbuf b;
    strbuf_init(&b);
    for (int i = 0; i < 500; i++) strbuf_printf(&b, "%d,", i);
    strbuf_add(&b, "end");
    strbuf_add_bytes(&b, "\0x", 2);
    assert_int_equal(b.length, 10 * 2 + 90 * 3 + 400 * 4 + 3 + 2);
    assert_int_equal(b.text[b.length], 0);
    char *text = strbuf_take(&b);
    assert_true(str_starts_with(text, "0,1,2,"));
    assert_true(str_ends_with(text, ",499,end"));
    free(text);
    assert_null(b.text);
    text = strbuf_take(&b);
    assert_string_equal(text, "");
    free(text);
    strbuf_add(&b, "again");
    assert_string_equal(b.text, "again");
    strbuf_fini(&b);
    strbuf_fini(&b);
}

static void test_prefix_suffix(void **state) {
    assert_true(str_starts_with("abc", ""));
    assert_true(str_starts_with("abc", "abc"));
    assert_false(str_starts_with("ab", "abc"));
    assert_true(str_ends_with("abc", "bc"));
    assert_true(str_ends_with("abc", ""));
    assert_false(str_ends_with("bc", "abc"));
}

static void test_edit_distance(void **state) {
    assert_int_equal(str_edit_distance("", ""), 0);
    assert_int_equal(str_edit_distance("", "abc"), 3);
    assert_int_equal(str_edit_distance("kitten", "sitting"), 3);
    assert_int_equal(str_edit_distance("learning_rate", "learnign_rate"), 1); /* a swap is one slip */
    assert_int_equal(str_edit_distance("ca", "ac"), 1);
    assert_int_equal(str_edit_distance("batch", "batches"), 2);
    char a[400], b[400];
    memset(a, 'a', sizeof a);
    a[399] = 0;
    memcpy(b, a, sizeof a);
    assert_int_equal(str_edit_distance(a, b), 0);
    b[0] = 'b';
    assert_int_equal(str_edit_distance(a, b), 399);
    for (uint64_t i = 0; i < 200; i++) { /* symmetric, and within the bounds of any edit distance */
        char s[12] = {0}, t[12] = {0};
        size_t n = rng_below(1, i, 11), m = rng_below(2, i, 11);
        for (size_t k = 0; k < n; k++) s[k] = (char)('a' + rng_below(3, i * 16 + k, 3));
        for (size_t k = 0; k < m; k++) t[k] = (char)('a' + rng_below(4, i * 16 + k, 3));
        int d = str_edit_distance(s, t);
        assert_int_equal(d, str_edit_distance(t, s));
        assert_true(d <= (int)MAX(n, m) && d >= abs((int)n - (int)m));
        assert_int_equal(d == 0, strcmp(s, t) == 0);
    }
}

static void test_nearest_name(void **state) {
    static const char *const names[] = {"train",        "plan",       "train.lr",    "train.steps",
                                        "data.seq_len", "model.path", "qwen2.5-1.5b"};
    static const struct {
        const char *wanted, *plain, *grouped;
    } cases[] = {
        {"trian", "train", "train"},
        {"plann", "plan", "plan"},
        {"train.stpes", "train.steps", "train.steps"},
        {"steps", "", "train.steps"}, /* its group is missing, or wrong, or its name is misspelt too */
        {"data.steps", "", "train.steps"},
        {"step", "", "train.steps"},
        {"far_away.rats", "", ""},      /* however long the group is, the name must be near */
        {"train.plum", "train.lr", ""}, /* the group's letters are no slips to spare for the name's */
        {"model.mlr", "", ""},          /* another group and another letter are too much for a short name */
        {"train_lr", "train.lr", "train.lr"},
        {"finetune", "", ""},
        {"lr", "", "train.lr"},
        {"xx", "", ""}, /* all of a short name is no slip */
        {"x", "", ""},
        {"", "", ""},
        {"qwen25-15b", "qwen2.5-1.5b", "qwen2.5-1.5b"},
        {"mine.5b", "", "qwen2.5-1.5b"}, /* names with dots that are no groups must say so */
    };
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++)
        for (int grouped = 0; grouped < 2; grouped++) {
            str_nearest n = {.wanted = cases[i].wanted, .has_groups = grouped};
            for (size_t k = 0; k < ARRAY_LENGTH(names); k++) str_nearest_try(&n, names[k]);
            assert_string_equal(n.name, grouped ? cases[i].grouped : cases[i].plain);
        }
    str_nearest n = {.wanted = "abcd"}; /* the nearest so far, and the first of equals */
    assert_false(str_nearest_try(&n, "wxyz"));
    assert_true(str_nearest_try(&n, "abxy"));
    assert_true(str_nearest_try(&n, "abcx"));
    assert_false(str_nearest_try(&n, "abxd"));
    assert_string_equal(n.name, "abcx");
    assert_true(str_nearest_try(&n, "abcd"));
    char endless[1000];
    memset(endless, 'a', sizeof endless);
    endless[999] = 0;
    n = (str_nearest){.wanted = endless};
    assert_false(str_nearest_try(&n, "aaaa"));
    n.wanted = "aaaa";
    assert_false(str_nearest_try(&n, endless));
    n = (str_nearest){.wanted = "memory.nvme", .has_groups = true}; /* a beginning is one slip, whatever is missing */
    assert_true(str_nearest_try(&n, "model.name"));
    assert_true(str_nearest_try(&n, "memory.nvme_path"));
    n = (str_nearest){.wanted = "train", .has_groups = true}; /* but not of another group's key */
    assert_false(str_nearest_try(&n, "trainer.algorithm"));
    assert_true(str_nearest_try(&n, "trainer"));
    n = (str_nearest){.wanted = "me"};
    assert_false(str_nearest_try(&n, "memory"));
    assert_string_equal(str_after_last_dot("a.b.c"), "c");
    assert_string_equal(str_after_last_dot("abc"), "abc");
    assert_string_equal(str_after_last_dot("abc."), "");
}

static void test_parse_bytes_accepts(void **state) {
    /* clang-format off */
    static const struct {
        const char *text;
        uint64_t bytes;
    } cases[] = {
        {"0", 0}, {"4096", 4096}, {"512M", 512ull << 20}, {"8G", 8ull << 30}, {"1.5 GiB", 3ull << 29},
        {"1.5GiB", 3ull << 29}, {" 2 kb ", 2048}, {"2KB", 2048}, {"2kib", 2048}, {"12B", 12}, {"12 b", 12},
        {"0.5T", 1ull << 39}, {"3P", 3ull << 50}, {"15E", 15ull << 60}, {"0.3K", 307}, {"0.1G", 107374182},
        {"18446744073709551615", UINT64_MAX}, {"17179869183G", 17179869183ull << 30},
        {"15.999999999999999999999999E", UINT64_MAX - 1}, {"00012", 12},
    };
    /* clang-format on */
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        uint64_t got = 1;
        if (str_parse_bytes(cases[i].text, &got) != OK) fail_msg("%s refused: %s", cases[i].text, error_message());
        if (got != cases[i].bytes) fail_msg("%s gave %llu", cases[i].text, (unsigned long long)got);
    }
}

static void test_parse_bytes_refuses(void **state) {
    /* clang-format off */
    static const char *const bad[] = {
        "", " ", "-1", "-8G", "+8G", "G", ".5G", "5.G", "1.5", "1.5B", "0x10", "1e9", "nan", "inf", "8GG", "8Gi", "8X",
        "8 G x", "1,5G", "8iB", "1 2", "8G\n", "18446744073709551616", "17179869184G", "16E", "--8",
        "99999999999999999999999999",
    };
    /* clang-format on */
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
        uint64_t kept = 77;
        if (str_parse_bytes(bad[i], &kept) != ERR_INPUT)
            fail_msg("'%s' was taken as %llu", bad[i], (unsigned long long)kept);
        assert_int_equal(kept, 77);
        assert_non_null(strstr(error_message(), bad[i]));
    }
}

static void test_format_bytes_and_counts(void **state) {
    char buf[32];
    assert_string_equal(str_format_bytes(buf, 0), "0 B");
    assert_string_equal(str_format_bytes(buf, 1023), "1023 B");
    assert_string_equal(str_format_bytes(buf, 1536), "1.5 KiB");
    assert_string_equal(str_format_bytes(buf, (1u << 20) - 1), "1.0 MiB"); /* not 1024.0 KiB */
    assert_string_equal(str_format_bytes(buf, 8ull << 30), "8.0 GiB");
    assert_string_equal(str_format_bytes(buf, UINT64_MAX), "16.0 EiB");
    assert_string_equal(str_format_count(buf, 124439808), "124.4M");
    assert_string_equal(str_format_count(buf, 0), "0");
    assert_string_equal(str_format_count(buf, 999), "999");
    assert_string_equal(str_format_count(buf, 12.5), "12.5");
    assert_string_equal(str_format_count(buf, 999960), "1.0M");
    assert_string_equal(str_format_count(buf, 6738415616.0), "6.7B");
    assert_string_equal(str_format_count(buf, -1500), "-1.5K");
    assert_string_equal(str_format_count(buf, 999.9e12), "999.9T");
    assert_string_equal(str_format_count(buf, 1.5243e18), "1.52e+18");
    assert_true(strlen(str_format_count(buf, 1e300)) < 16);
    assert_non_null(strstr(str_format_count(buf, (double)NAN), "nan"));
    assert_non_null(strstr(str_format_count(buf, (double)INFINITY), "inf"));
}

/* ---- files --------------------------------------------------------------------------------------------------- */

static void test_file_read_all(void **state) {
    char *text;
    size_t n;
    const char *path = path_of("a.txt");
    write_bytes(path, "ab\0cd", 5);
    assert_int_equal(file_read_all(path, 5, &text, &n), OK);
    assert_int_equal(n, 5);
    assert_memory_equal(text, "ab\0cd", 6); /* the sixth is the NUL that was added */
    free(text);

    assert_int_equal(file_read_all(path, 4, &text, &n), ERR_INPUT);
    assert_null(text);
    assert_non_null(strstr(error_message(), path));
    assert_non_null(strstr(error_message(), "5 bytes"));

    write_bytes(path, "", 0);
    assert_int_equal(file_read_all(path, 0, &text, &n), OK);
    assert_int_equal(n, 0);
    assert_string_equal(text, "");
    free(text);

    char *big = mem_alloc(300000);
    for (size_t i = 0; i < 300000; i++) big[i] = (char)(rng_u64(5, i) & 0xff);
    write_bytes(path, big, 300000);
    assert_int_equal(file_read_all(path, 1 << 20, &text, &n), OK);
    assert_int_equal(n, 300000);
    assert_memory_equal(text, big, 300000);
    free(text);
    free(big);

    assert_int_equal(file_read_all(path_of("absent"), 10, &text, &n), ERR_IO);
    assert_non_null(strstr(error_message(), "absent"));
    assert_non_null(strstr(error_message(), "No such file"));
    assert_int_equal(file_read_all(test_dir, 10, &text, &n), ERR_INPUT);
    assert_non_null(strstr(error_message(), "directory"));
}

static void test_only_regular_files_are_opened(void **state) {
    int fd, ends[2];
    uint64_t n_bytes;
    char path[64], *text;
    size_t n;
    assert_int_equal(mkfifo(path_of("pipe"), 0600), 0);
    expect_error(file_open(path_of("pipe"), &fd), ERR_INPUT, "pipe is a pipe, expected a regular file");
    assert_int_equal(fd, -1);
    expect_error(file_open("/dev/null", &fd), ERR_INPUT, "is a device");
    expect_error(file_open(test_dir, &fd), ERR_INPUT, "is a directory");
    write_text(path_of("file"), "text");
    assert_int_equal(symlink("file", path_of("link")), 0);
    assert_int_equal(file_open(path_of("link"), &fd), OK);
    assert_int_equal(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    close(fd);
    expect_error(file_open_at(AT_FDCWD, path_of("link"), "it", &fd, &n_bytes), ERR_INPUT, "it is a link");
    assert_int_equal(file_open_at(AT_FDCWD, path_of("file"), "it", &fd, &n_bytes), OK);
    assert_int_equal(n_bytes, 4);
    close(fd);
    assert_int_equal(pipe(ends), 0); /* of the caller's own, as a shell's <(command) */
    assert_int_equal(write(ends[1], "some", 4), 4);
    close(ends[1]);
    snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
    assert_int_equal(file_read_all(path, 10, &text, &n), OK);
    assert_string_equal(text, "some");
    free(text);
    close(ends[0]);
}

static void expect_shown(const char *text, size_t n_bytes, const char *shown) {
    strbuf b;
    strbuf_init(&b);
    strbuf_add_escaped(&b, text, n_bytes);
    assert_string_equal(b.text ? b.text : "", shown);
    strbuf_fini(&b);
}

static void test_what_is_shown_does_nothing_to_a_terminal(void **state) {
    expect_shown("a\tb\n", 4, "a\tb\n");
    expect_shown("\x1b[31m\r\a\0x", 9, "\\x1b[31m\\x0d\\x07\\x00x");
    expect_shown("\x7f\xc2\x9b\xc2\x80\xc2\xa0", 7, "\\u007f\\u009b\\u0080\xc2\xa0");
    expect_shown("\xed\x95\x9c \xf0\x9f\xa9\xb7", 8, "\xed\x95\x9c \xf0\x9f\xa9\xb7");
    expect_shown("\xff\xc0\xaf\xed\xa0\x80", 6, "\\xff\\xc0\\xaf\\xed\\xa0\\x80");
    expect_shown("a\xe2\x82", 3, "a\\xe2\\x82");
    char out[8];
    size_t taken;
    assert_int_equal(text_escape("a\xe2\x82", 3, true, out, sizeof out, &taken), 1); /* the rest may come */
    assert_int_equal(taken, 1);
    assert_int_equal(text_escape("abc\x1b", 4, false, out, 6, &taken), 3); /* no half escape */
    assert_int_equal(taken, 3);
    for (size_t n = 0; n < 600; n++) { /* whatever is cut where */
        char bytes[64], shown[64];
        for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)rng_u64(n, i);
        size_t used = text_escape(bytes, sizeof bytes, n % 2, shown, n % sizeof shown, &taken);
        assert_true(used <= n % sizeof shown && taken <= sizeof bytes);
        assert_int_equal(utf8_check(shown, used).n_valid, used);
        for (size_t i = 0; i < used; i++)
            assert_true((unsigned char)shown[i] >= 0x20 || shown[i] == '\n' || shown[i] == '\t');
    }
    assert_int_equal(ERR(ERR_INPUT, "%s", "\x1b]0;x\a"), ERR_INPUT);
    assert_string_equal(error_message(), "\\x1b]0;x\\x07");
}

static void test_file_read_all_bounds_files_that_hide_their_size(void **state) {
    char *text;
    size_t n;
    assert_int_equal(file_read_all("/dev/zero", 10000, &text, &n), ERR_INPUT); /* endless */
    assert_null(text);
    assert_non_null(strstr(error_message(), "/dev/zero"));
    assert_int_equal(file_read_all("/proc/self/status", 1 << 20, &text, &n), OK); /* says it has 0 bytes */
    assert_true(n > 100 && strlen(text) == n);
    free(text);
}

static void test_what_is_printed_is_taken_or_saved(void **state) {
    memstream m;
    fprintf(memstream_open(&m), "%d", 12);
    fputs(" apples", m.out);
    char *text = memstream_take(&m), *read;
    assert_string_equal(text, "12 apples");
    free(text);
    memstream_open(&m);
    text = memstream_take(&m);
    assert_string_equal(text, "");
    free(text);

    size_t n;
    fwrite("a\0b", 1, 3, memstream_open(&m));
    assert_int_equal(memstream_save(&m, path_of("saved")), OK);
    assert_int_equal(file_read_all(path_of("saved"), 100, &read, &n), OK);
    assert_int_equal(n, 3);
    assert_memory_equal(read, "a\0b", 3);
    free(read);
    memstream_open(&m);
    assert_int_equal(memstream_save(&m, path_of("nowhere/saved")), ERR_IO);
}

static void test_dir_make_makes_parents(void **state) {
    struct stat st;
    assert_int_equal(dir_make(path_of("a/b//c/")), OK);
    assert_int_equal(stat(path_of("a/b/c"), &st), 0);
    assert_true(S_ISDIR(st.st_mode));
    assert_int_equal(dir_make(path_of("a/b")), OK);
    write_bytes(path_of("a/file"), "x", 1);
    assert_int_equal(dir_make(path_of("a/file")), ERR_IO);
    assert_int_equal(dir_make(path_of("a/file/below")), ERR_IO);
    assert_non_null(strstr(error_message(), "a/file"));
    assert_int_equal(dir_make(""), ERR_INPUT);
}

static void test_dir_remove_all_does_not_follow_links(void **state) {
    struct stat st;
    assert_int_equal(dir_make(path_of("kept")), OK);
    write_bytes(path_of("kept/precious"), "x", 1);
    assert_int_equal(dir_make(path_of("gone/deep/er")), OK);
    char name[64];
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "gone/deep/f%d", i);
        write_bytes(path_of(name), "x", 1);
    }
    assert_int_equal(symlink(path_of("kept"), path_of("gone/deep/link")), 0);
    assert_int_equal(symlink("nowhere", path_of("gone/dangling")), 0);
    assert_int_equal(dir_remove_all(path_of("gone")), OK);
    assert_int_equal(lstat(path_of("gone"), &st), -1);
    assert_int_equal(stat(path_of("kept/precious"), &st), 0);

    /* A link itself is removed, also when it is written as a directory. */
    assert_int_equal(symlink("kept", path_of("link")), 0);
    assert_int_equal(dir_remove_all(path_of("link/")), OK);
    assert_int_equal(lstat(path_of("link"), &st), -1);
    assert_int_equal(stat(path_of("kept/precious"), &st), 0);

    assert_int_equal(dir_remove_all(path_of("absent")), OK);
    assert_int_equal(dir_remove_all(path_of("absent/too")), OK);
    assert_int_equal(dir_remove_all(path_of("kept/precious")), OK); /* a file */
    assert_int_equal(stat(path_of("kept"), &st), 0);
    static const char *const refused[] = {"", "/", "//", ".", "..", "/tmp/..", "/tmp/./"};
    for (size_t i = 0; i < ARRAY_LENGTH(refused); i++) assert_int_equal(dir_remove_all(refused[i]), ERR_INPUT);
}

static void test_the_room_of_a_place_that_is_not_there_yet(void **state) {
    static const char *const from_here[][2] = {
        {"absent", "."}, {"absent/too", "."}, {"", "."}, {"..", ".."}, {"/", "/"}};
    strbuf found;
    dir_space there, above;
    for (size_t i = 0; i < ARRAY_LENGTH(from_here); i++) {
        strbuf_init(&found);
        dir_nearest(from_here[i][0], &found);
        assert_string_equal(found.text, from_here[i][1]);
        assert_int_equal(found.length, strlen(found.text));
        strbuf_fini(&found);
    }
    strbuf_init(&found);
    dir_nearest("/no-such-directory-of-ralo/below", &found);
    assert_string_equal(found.text, "/");
    strbuf_fini(&found);
    assert_int_equal(dir_make(path_of("near")), OK);
    strbuf_init(&found);
    dir_nearest(path_of("near/far/away/"), &found);
    assert_string_equal(found.text, path_of("near"));
    assert_true(dir_space_get(found.text, &there) && dir_space_get(test_dir, &above));
    assert_int_equal(there.file_system, above.file_system);
    assert_true(there.free <= there.total && there.reserve <= there.total - there.free);
    strbuf_fini(&found);
    assert_false(dir_space_get(path_of("near/far"), &there));
    assert_int_equal(errno, ENOENT);
}

/* ---- clock and machine --------------------------------------------------------------------------------------- */

static void test_clock_does_not_go_back(void **state) {
    uint64_t last = clock_ns();
    for (int i = 0; i < 1000; i++) {
        uint64_t now = clock_ns();
        assert_true(now >= last);
        last = now;
    }
    double seconds = clock_s();
    assert_true(fabs(seconds - (double)clock_ns() * 1e-9) < 10);
}

static void test_machine_is_described(void **state) {
    sys_info info;
    sys_info_get(&info);
    assert_true(strlen(info.cpu_name) > 0);
    assert_string_equal(info.arch,
#if defined(__aarch64__)
                        "aarch64"
#else
                        "x86_64"
#endif
    );
    assert_true(info.n_cores >= 1 && info.n_cores <= sysconf(_SC_NPROCESSORS_CONF));
    assert_true(info.memory_total > 64u << 20);
    assert_true(info.memory_available > 0 && info.memory_available <= info.memory_total);

    enum { BYTES = 32 << 20 };
    uint64_t before = sys_rss_bytes();
    char *block = mem_alloc(BYTES);
    memset(block, 1, BYTES);
    uint64_t with = sys_rss_bytes();
    assert_true(before > 0 && with >= before + BYTES / 10 * 9); /* sanitizers add shadow memory */
    free(block);
    assert_true(sys_rss_peak_bytes() + (1 << 20) >= with); /* the kernel updates its counters in batches */
}

static void test_cores_are_counted(void **state) {
    (void)state;
    sys_cores before, after;
    sys_cores_get(&before);
    if (before.busy == 0) skip(); /* a sandbox that hides it */
    assert_true(before.own >= 0 && before.idle >= 0 && before.stolen >= 0);
    volatile double work = 0;
    do {
        for (int i = 0; i < 1000000; i++) work += i;
        sys_cores_get(&after);
    } while (after.own < before.own + 0.1);
    assert_true(after.busy > before.busy && after.idle >= before.idle && after.stolen >= before.stolen);
}

static void check_contention(sys_cores since, double others, double stolen, const char *expected) {
    char text[128];
    sys_cores before = {.own = 5, .busy = 1000, .idle = 300, .stolen = 7}, after = before;
    after.own += since.own;
    after.busy += since.busy;
    after.idle += since.idle;
    after.stolen += since.stolen;
    sys_contention c = sys_contention_between(&before, &after);
    assert_true(fabs(c.others - others) < 1e-9 && fabs(c.stolen - stolen) < 1e-9);
    assert_string_equal(sys_contention_text(text, &c), expected);
}

static void test_contention_is_what_others_had_of_busy_cores(void **state) {
    (void)state;
    check_contention((sys_cores){.own = 60, .busy = 60, .idle = 4}, 0, 0, "");
    check_contention((sys_cores){.own = 40, .busy = 60, .idle = 4}, 20.0 / 64, 0,
                     "other programs used 31 % of the CPU time");
    check_contention((sys_cores){.own = 40, .busy = 60, .idle = 60}, 0, 0, ""); /* there were cores for all */
    check_contention((sys_cores){.own = 60, .busy = 60, .idle = 60, .stolen = 20}, 0, 0.25,
                     "other virtual machines used 25 % of the CPU time");
    check_contention((sys_cores){.own = 40, .busy = 60, .stolen = 20}, 0.25, 0.25,
                     "other programs used 25 % of the CPU time, other virtual machines 25 %");
    check_contention((sys_cores){.own = 60, .busy = 60, .stolen = 1}, 0, 1.0 / 61, "");
    check_contention((sys_cores){.own = 0.1, .busy = 0.9}, 0, 0, "");          /* too short */
    check_contention((sys_cores){.own = 61, .busy = 60, .idle = 4}, 0, 0, ""); /* counted a little later */
}

/* ---- threads ------------------------------------------------------------------------------------------------- */

typedef struct counting {
    _Atomic int hits[2000];
    _Atomic int by_thread[64];
    int n_threads;
    _Atomic bool bad_thread;
} counting;

static void count_task(void *context, int64_t task, int thread) {
    counting *c = context;
    if (thread < 0 || thread >= c->n_threads) {
        atomic_store(&c->bad_thread, true);
        return;
    }
    atomic_fetch_add(&c->hits[task], 1);
    atomic_fetch_add(&c->by_thread[thread], 1);
}

static void check_counts(pool *p, int64_t n_tasks) {
    static counting c;
    memset(&c, 0, sizeof c);
    c.n_threads = pool_threads(p);
    pool_run(p, count_task, &c, n_tasks);
    assert_false(atomic_load(&c.bad_thread));
    for (int64_t i = 0; i < (int64_t)ARRAY_LENGTH(c.hits); i++) assert_int_equal(c.hits[i], i < n_tasks);
}

static void test_pool_runs_every_task_once(void **state) {
    static const int threads[] = {1, 2, 3, 16}; /* 16: more than there are cores on a small machine */
    static const int64_t tasks[] = {0, 1, 2, 3, 17, 2000};
    for (size_t t = 0; t < ARRAY_LENGTH(threads); t++) {
        pool *p;
        assert_int_equal(pool_open(&p, threads[t], t % 2 == 0), OK);
        assert_int_equal(pool_threads(p), threads[t]);
        for (size_t k = 0; k < ARRAY_LENGTH(tasks); k++)
            for (int again = 0; again < 5; again++) check_counts(p, tasks[k]);
        pool_close(p);
    }
}

static void test_tasks_begin_at_all_places_and_come_once(void **state) {
    static const int64_t n_tasks[] = {1, 2, 15, 16, 17, 113, 128, 2000}, n_places[] = {1, 2, 16, 125, 3000};
    for (size_t t = 0; t < ARRAY_LENGTH(n_tasks); t++)
        for (size_t k = 0; k < ARRAY_LENGTH(n_places); k++) {
            int64_t n = n_tasks[t], p = n_places[k], before = -1;
            bool taken[2000] = {0};
            for (int64_t i = 0; i < n; i++) {
                int64_t task = task_spread(i, n, p);
                assert_in_range(task, 0, n - 1);
                assert_false(taken[task]);
                taken[task] = true;
                if (i < p) assert_true(task - before >= MAX(n / p, 1) || i == 0); /* the places, evenly apart */
                else assert_int_equal(task, task_spread(i - p, n, p) + 1);        /* on from there */
                before = task;
            }
        }
}

typedef struct sums {
    int64_t plain[4096]; /* not atomic on purpose: each task owns its slot, pool_run orders the rest */
    int64_t round;
} sums;

static void add_round(void *context, int64_t task, int thread) {
    sums *s = context;
    s->plain[task] += s->round;
}

static void test_pool_run_orders_memory_between_runs(void **state) {
    /* Short runs in a row meet every state of the gate: late workers, spinning, asleep. Plain memory, so the thread
     * sanitizer sees any pair of runs that is not ordered. */
    static const int threads[] = {2, 5};
    for (size_t t = 0; t < ARRAY_LENGTH(threads); t++) {
        static sums s;
        memset(&s, 0, sizeof s);
        pool *p;
        int64_t total = 0;
        assert_int_equal(pool_open(&p, threads[t], false), OK);
        for (int64_t round = 1; round <= 3000; round++) {
            int64_t n_tasks = 2 + (int64_t)rng_below(8, (uint64_t)round, 7);
            s.round = round;
            pool_run(p, add_round, &s, n_tasks);
            total += round * n_tasks;
            if (round % 500 == 0) usleep(500); /* let the workers fall asleep */
        }
        for (size_t i = 0; i < ARRAY_LENGTH(s.plain); i++) total -= s.plain[i];
        assert_int_equal(total, 0);
        pool_close(p);
    }
}

typedef struct meeting {
    _Atomic int arrived;
    int expected;
} meeting;

static void meet(void *context, int64_t task, int thread) {
    meeting *m = context;
    atomic_fetch_add(&m->arrived, 1);
    for (double until = clock_s() + 20; atomic_load(&m->arrived) < m->expected && clock_s() < until;) usleep(100);
}

static void test_pool_threads_all_take_part(void **state) {
    /* Each task waits for all the others, so it only ends early when every thread holds one of them: also after the
     * workers fell asleep, which walks the whole chain of wake-ups. */
    enum { THREADS = 24 };
    pool *p;
    assert_int_equal(pool_open(&p, THREADS, false), OK);
    for (int round = 0; round < 3; round++) {
        meeting m = {.expected = THREADS};
        usleep(2000);
        pool_run(p, meet, &m, THREADS);
        assert_int_equal(m.arrived, THREADS);
        double began = clock_s();
        m.arrived = 0;
        pool_run(p, meet, &m, THREADS);
        assert_true(clock_s() - began < 15); /* nobody waited for the 20 s limit */
    }
    pool_close(p);
}

static _Atomic int hooks_open, hooks_called;
static _Thread_local int hook_depth;
static _Atomic bool hook_missed;

static void hook_enter(void) {
    hook_depth++;
    atomic_fetch_add(&hooks_open, 1);
    atomic_fetch_add(&hooks_called, 1);
}

static void hook_leave(void) {
    hook_depth--;
    atomic_fetch_sub(&hooks_open, 1);
}

static void check_hook(void *context, int64_t task, int thread) {
    if (hook_depth != (thread == 0 ? 0 : 1)) atomic_store(&hook_missed, true);
    usleep(50);
}

static void test_pool_hooks_surround_the_work_of_workers(void **state) {
    pool *p;
    assert_int_equal(pool_open(&p, 3, false), OK);
    pool_set_hook(p, hook_enter, hook_leave);
    for (int round = 0; round < 20; round++) {
        pool_run(p, check_hook, NULL, 12);
        assert_int_equal(atomic_load(&hooks_open), 0); /* all left before pool_run returns */
    }
    assert_false(atomic_load(&hook_missed));
    int called = atomic_load(&hooks_called);
    assert_true(called > 0);
    pool_run(p, check_hook, NULL, 1); /* inline on the caller: no hook */
    pool_set_hook(p, NULL, NULL);
    atomic_store(&hook_missed, false);
    pool_run(p, check_hook, NULL, 12);
    assert_int_equal(atomic_load(&hooks_called), called);
    assert_int_equal(atomic_load(&hooks_open), 0);
    pool_close(p);
}

static void read_mask(void *context, int64_t task, int thread) {
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    if (thread > 0 && !sigismember(&blocked, SIGINT)) atomic_store((_Atomic bool *)context, true);
    if (thread == 0 && sigismember(&blocked, SIGINT)) atomic_store((_Atomic bool *)context, true);
    usleep(200);
}

static void test_pool_leaves_signals_to_the_caller(void **state) {
    pool *p;
    _Atomic bool wrong = false;
    assert_int_equal(pool_open(&p, 3, false), OK);
    pool_run(p, read_mask, &wrong, 30);
    assert_false(atomic_load(&wrong));
    pool_close(p);
}

static pool *nested_pool;

static void run_again(void *context, int64_t task, int thread) { pool_run(nested_pool, count_task, context, 2); }

static void nest_runs_inline(void) {
    static counting c;
    pool_open(&nested_pool, 1, false);
    pool_run(nested_pool, run_again, &c, 2);
}

static void nest_runs_threaded(void) {
    static counting c;
    pool_open(&nested_pool, 2, false);
    pool_run(nested_pool, run_again, &c, 2);
}

static void test_pool_refuses_a_run_inside_a_task(void **state) {
    assert_true(aborts(nest_runs_inline)); /* also with one thread, where it would happen to work */
    assert_true(aborts(nest_runs_threaded));
}

static void test_pool_open_counts_cores_and_refuses_nonsense(void **state) {
    pool *p;
    sys_info info;
    sys_info_get(&info);
    assert_int_equal(pool_open(&p, 0, true), OK);
    assert_int_equal(pool_threads(p), info.n_cores);
    pool_close(p);
    assert_int_equal(pool_open(&p, -1, false), ERR_INPUT);
    assert_null(p);
    assert_int_equal(pool_open(&p, 1 << 20, false), ERR_INPUT);
    assert_non_null(strstr(error_message(), "1048576"));
    pool_close(NULL);
}

/* Each removes what dead ones left, and must not take a live one's for that. */
static void test_writers_of_one_file_beside_each_other(void **state) {
    enum { ROUNDS = 60, WRITERS = 4, WRITES = 20, N = 5000 };
    char dir[] = "/tmp/ralo_base_XXXXXX", path[64], *text;
    snprintf(path, sizeof path, "%s/file", mkdtemp(dir));
    for (int round = 0; round < ROUNDS; round++) {
        pid_t writers[WRITERS];
        for (int i = 0; i < WRITERS; i++) {
            if ((writers[i] = fork()) != 0) continue;
            char bytes[N];
            memset(bytes, 'a' + i, sizeof bytes);
            for (int k = 0; k < WRITES; k++)
                if (file_write_whole(path, bytes, sizeof bytes) != OK) _exit(1);
            _exit(0);
        }
        usleep((useconds_t)round * 7);
        kill(writers[0], SIGKILL);
        for (int i = 0; i < WRITERS; i++) {
            int result;
            assert_int_equal(waitpid(writers[i], &result, 0), writers[i]);
            if (i > 0) assert_int_equal(result, 0);
        }
        size_t n;
        assert_int_equal(file_read_all(path, 1 << 20, &text, &n), OK);
        assert_int_equal(n, N);
        for (size_t k = 1; k < n; k++) assert_int_equal(text[k], text[0]);
        free(text);
    }
    assert_int_equal(file_write_whole(path, "end", 3), OK);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0); /* nothing is left of those that were killed */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_units_are_filled_and_none_is_added),
        cmocka_unit_test(test_error_keeps_message_and_trail),
        cmocka_unit_test(test_error_trail_overflow_keeps_both_ends),
        cmocka_unit_test(test_error_message_may_be_built_from_the_previous_one),
        cmocka_unit_test(test_error_without_message_does_not_show_an_old_one),
        cmocka_unit_test(test_error_is_per_thread_and_can_be_carried),
        cmocka_unit_test(test_error_print_shows_the_trail_on_wish_and_for_bugs),
        cmocka_unit_test(test_exit_codes),
        cmocka_unit_test(test_assert_is_on),
        cmocka_unit_test(test_log_writes_one_line_per_call),
        cmocka_unit_test(test_arena_gives_zeroed_aligned_disjoint_memory),
        cmocka_unit_test(test_arena_refuses_a_negative_count),
        cmocka_unit_test(test_array_grow_keeps_items_and_zeroes_new_ones),
        cmocka_unit_test(test_rows_are_sorted_and_equal_ones_keep_their_order),
        cmocka_unit_test(test_strbuf_grows_and_hands_over),
        cmocka_unit_test(test_words_of_a_shell),
        cmocka_unit_test(test_prefix_suffix),
        cmocka_unit_test(test_edit_distance),
        cmocka_unit_test(test_nearest_name),
        cmocka_unit_test(test_parse_bytes_accepts),
        cmocka_unit_test(test_parse_bytes_refuses),
        cmocka_unit_test(test_format_bytes_and_counts),
        cmocka_unit_test_setup_teardown(test_file_read_all, test_dir_open, test_dir_close),
        cmocka_unit_test_setup_teardown(test_only_regular_files_are_opened, test_dir_open, test_dir_close),
        cmocka_unit_test(test_what_is_shown_does_nothing_to_a_terminal),
        cmocka_unit_test(test_file_read_all_bounds_files_that_hide_their_size),
        cmocka_unit_test_setup_teardown(test_what_is_printed_is_taken_or_saved, test_dir_open, test_dir_close),
        cmocka_unit_test_setup_teardown(test_dir_make_makes_parents, test_dir_open, test_dir_close),
        cmocka_unit_test_setup_teardown(test_dir_remove_all_does_not_follow_links, test_dir_open, test_dir_close),
        cmocka_unit_test(test_the_room_of_a_place_that_is_not_there_yet),
        cmocka_unit_test(test_clock_does_not_go_back),
        cmocka_unit_test(test_machine_is_described),
        cmocka_unit_test(test_cores_are_counted),
        cmocka_unit_test(test_contention_is_what_others_had_of_busy_cores),
        cmocka_unit_test(test_pool_runs_every_task_once),
        cmocka_unit_test(test_tasks_begin_at_all_places_and_come_once),
        cmocka_unit_test(test_pool_run_orders_memory_between_runs),
        cmocka_unit_test(test_pool_threads_all_take_part),
        cmocka_unit_test(test_pool_hooks_surround_the_work_of_workers),
        cmocka_unit_test(test_pool_leaves_signals_to_the_caller),
        cmocka_unit_test(test_pool_refuses_a_run_inside_a_task),
        cmocka_unit_test(test_pool_open_counts_cores_and_refuses_nonsense),
        cmocka_unit_test(test_writers_of_one_file_beside_each_other),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
