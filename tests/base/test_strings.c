/* test_strings.c - whole units, memory, sorting and strings: parsed, compared, printed and shown. */
#include "base/base.h"
#include "child.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
        {"1.5GiB", 3ull << 29}, {" 2 kb ", 2048}, {"2KB", 2048}, {"2kib", 2048}, {"12B", 12}, {"12 b", 12}, {"8Gi", 8ull << 30}, {"1.5 mi", 3ull << 19},
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
        "", " ", "-1", "-8G", "+8G", "G", ".5G", "5.G", "1.5", "1.5B", "0x10", "1e9", "nan", "inf", "8GG", "8i", "8X",
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
    /* A limit is rounded up: what is read back is never less. */
    static const uint64_t limits[] = {1, 1000, 1024, 6190000, (1u << 20) - 1, (5ull << 30) + 1, 7ull << 40};
    for (size_t i = 0; i < ARRAY_LENGTH(limits); i++) {
        uint64_t back = 0;
        assert_int_equal(str_parse_bytes(str_format_limit(buf, limits[i]), &back), OK);
        assert_true(back >= limits[i] && back <= limits[i] + limits[i] / 9 + 1024);
    }
    assert_string_equal(str_format_limit(buf, 6190000), "6.0M");
    assert_string_equal(str_format_duration(buf, 5), "5 s");
    assert_string_equal(str_format_duration(buf, 2760), "46 min");
    assert_string_equal(str_format_duration(buf, 5400), "1.5 h");
    assert_string_equal(str_format_duration(buf, 259200), "3.0 days");
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
    /* Marks of writing direction, which show text in another order than it has; what stands beside them stays. */
    expect_shown("\xd8\x9c\xe2\x80\x8e\xe2\x80\x8f\xe2\x80\xaa\xe2\x80\xae\xe2\x81\xa6\xe2\x81\xa9", 20,
                 "\\u061c\\u200e\\u200f\\u202a\\u202e\\u2066\\u2069");
    expect_shown("\xd8\x9b\xe2\x80\x8d\xe2\x80\xaf\xe2\x81\xa5\xe2\x81\xaa", 14,
                 "\xd8\x9b\xe2\x80\x8d\xe2\x80\xaf\xe2\x81\xa5\xe2\x81\xaa");
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_units_are_filled_and_none_is_added),
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
        cmocka_unit_test(test_what_is_shown_does_nothing_to_a_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
