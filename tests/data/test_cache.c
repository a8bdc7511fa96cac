/* test_cache.c - tokens on disk: read back bit for bit, and never from a file that is damaged, cut off, foreign or of a
 * text that has changed; several processes at once and full disks do no harm. */
#include "data/store.h"
#include "files.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

enum { T = 64 };
static char cache[80], source[80], tokens[80];

static char *read_bytes(const char *path, size_t *n) {
    char *text = NULL;
    assert_int_equal(file_read_all(path, 1 << 26, &text, n), OK);
    return text;
}

static data_options options(void) {
    return (data_options){
        .source = source, .tokenizer = tokens, .seq_len = T, .pack = true, .cache = cache, .n_threads = 2, .seed = 1};
}

/* What rows a data set gives, as one number; n_cached says whether it came from the cache. */
static uint64_t digest(const data_options *o, uint64_t *n_cached, uint64_t *host_bytes) {
    dataset *d;
    data_report report;
    if (dataset_open(&d, o) != OK) fail_msg("%s", error_message());
    dataset_report(d, SPLIT_TRAIN, &report);
    uint64_t hash = dataset_fingerprint(d);
    for (uint64_t i = 0; i < report.rows_per_epoch; i++) {
        int32_t row[3 * T];
        dataset_row(d, SPLIT_TRAIN, i, row, row + T, row + 2 * T);
        for (int k = 0; k < 3 * T; k++) hash = rng_u64(hash, (uint64_t)(uint32_t)row[k]);
    }
    if (n_cached) *n_cached = report.n_cached;
    if (host_bytes) *host_bytes = dataset_host_bytes(d);
    dataset_close(d);
    return hash;
}

/* The files of the cache; the name of the last one. */
static int count_files(const char *ending, char *name, size_t n) {
    int count = 0;
    DIR *d = opendir(cache);
    if (!d) return 0;
    for (struct dirent *e; (e = readdir(d));) {
        if (!strstr(e->d_name, ending)) continue;
        if (name) snprintf(name, n, "%s/%.255s", cache, e->d_name);
        count++;
    }
    closedir(d);
    return count;
}

static void write_source(uint64_t seed, const char *kind) {
    FILE *f = fopen(source, "wb");
    for (uint64_t i = 0; i < 400; i++) {
        int a = (int)rng_below(seed, i, 90) + 10, b = (int)rng_below(seed + 1, i, 90) + 10;
        if (strcmp(kind, "text") == 0) fprintf(f, "The answer is %d, you say. What is %d?\n", a, b);
        else
            fprintf(f, "{\"question\": \"What is %d plus %d?\", \"answer\": \"The answer is %d.\"}\n", a, b,
                    (a + b) % 90 + 10);
    }
    fclose(f);
}

static void fresh(const char *kind) {
    assert_int_equal(dir_remove_all(cache), OK);
    snprintf(source, sizeof source, "%s/source.%s", test_dir, strcmp(kind, "text") == 0 ? "txt" : "jsonl");
    write_source(1, kind);
}

static void the_second_opening_gives_the_same_rows_from_the_cache(void **state) {
    static const char *const kinds[] = {"text", "records"};
    for (int k = 0; k < 2; k++) {
        fresh(kinds[k]);
        data_options o = options(), without = options();
        without.cache = NULL;
        uint64_t n_cached, in_memory, mapped;
        uint64_t plain = digest(&without, &n_cached, &in_memory);
        assert_int_equal(n_cached, 0);
        assert_int_equal(count_files("", NULL, 0), 0);
        assert_int_equal(digest(&o, &n_cached, &mapped), plain);
        assert_int_equal(n_cached, 0);
        assert_int_equal(count_files(".tokens", NULL, 0), 1);
        assert_int_equal(digest(&o, &n_cached, &mapped), plain);
        assert_int_equal(n_cached, 1);
        assert_true(mapped < in_memory);                                /* what is mapped is not held */
        assert_true(k == 1 || mapped == 0);                             /* records have a table of rows */
        assert_true(in_memory <= dataset_host_bytes_at_most(&without)); /* and the plan knows it before */
        assert_true(mapped <= dataset_host_bytes_at_most(&o));
        struct stat info;
        char name[400];
        count_files(".tokens", name, sizeof name);
        assert_int_equal(stat(name, &info), 0);
        assert_int_equal(info.st_mode & 077, 0);
    }
    /* bytes of a text are their own tokens: kept only where a directory was named */
    data_options o = options();
    fresh("text");
    o.tokenizer = "byte";
    assert_int_equal(setenv("XDG_CACHE_HOME", cache, 1), 0);
    o.cache = "auto";
    digest(&o, NULL, NULL);
    assert_int_equal(count_files("", NULL, 0), 0);
    o.cache = cache;
    uint64_t n_cached, host, first = digest(&o, NULL, NULL);
    assert_int_equal(digest(&o, &n_cached, &host), first);
    assert_true(n_cached == 1 && host == 0);
}

static void a_damaged_file_is_built_again(void **state) {
    static const char *const kinds[] = {"text", "records"};
    log_set_level(LOG_ERROR);
    for (int k = 0; k < 2; k++) {
        fresh(kinds[k]);
        data_options o = options();
        uint64_t n_cached, good = digest(&o, NULL, NULL);
        char name[400];
        size_t n;
        assert_int_equal(count_files(".tokens", name, sizeof name), 1);
        char *bytes = read_bytes(name, &n);
        for (size_t i = 0; i < 120; i++) {
            /* every word of the header, then bytes anywhere, and ends everywhere */
            size_t at = i < 30 ? i * 6 : rng_below(4, i, n);
            if (i < 80) {
                bytes[at] ^= (char)(1 << i % 8);
                write_bytes(name, bytes, n);
                bytes[at] ^= (char)(1 << i % 8);
            } else {
                write_bytes(name, bytes, i == 80 ? 0 : i == 81 ? 4096 : i == 82 ? n - 1 : at);
            }
            assert_int_equal(digest(&o, &n_cached, NULL), good);
            assert_int_equal(n_cached, 0);
            if (i % 10) continue;
            assert_int_equal(digest(&o, &n_cached, NULL), good); /* and now it is whole */
            assert_int_equal(n_cached, 1);
        }
        char *longer = mem_alloc(n + 8);
        memcpy(longer, bytes, n);
        write_bytes(name, longer, n + 8);
        assert_int_equal(digest(&o, &n_cached, NULL), good);
        assert_int_equal(n_cached, 0);
        free(longer);
        free(bytes);
        /* something else stands there */
        unlink(name);
        assert_int_equal(symlink("/dev/zero", name), 0);
        assert_int_equal(digest(&o, &n_cached, NULL), good);
        assert_int_equal(n_cached, 0);
        assert_int_equal(digest(&o, &n_cached, NULL), good);
        assert_int_equal(n_cached, 1);
    }
    log_set_level(LOG_INFO);
}

/* A whole and rightly sealed file of another text, put in the place of ours. */
static void a_foreign_file_is_not_taken(void **state) {
    fresh("records");
    data_options o = options();
    char name[400], *bytes;
    size_t n;
    uint64_t n_cached, all = digest(&o, NULL, NULL);
    count_files(".tokens", name, sizeof name);
    bytes = read_bytes(name, &n);
    o.train_on = TRAIN_ON_ALL;
    uint64_t other = digest(&o, NULL, NULL);
    assert_true(other != all);
    assert_int_equal(count_files(".tokens", NULL, 0), 2);
    DIR *d = opendir(cache);
    for (struct dirent *e; (e = readdir(d));) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", cache, e->d_name);
        if (e->d_name[0] != '.' && strcmp(path, name) != 0) write_bytes(path, bytes, n);
    }
    closedir(d);
    log_set_level(LOG_ERROR);
    assert_int_equal(digest(&o, &n_cached, NULL), other);
    log_set_level(LOG_INFO);
    assert_int_equal(n_cached, 0);
    free(bytes);
}

static void a_text_that_changed_is_read_again(void **state) {
    fresh("records");
    data_options o = options();
    uint64_t n_cached, first = digest(&o, NULL, NULL);
    struct stat before, after;
    assert_int_equal(stat(source, &before), 0);
    write_source(2, "records");
    assert_int_equal(stat(source, &after), 0);
    assert_int_equal(before.st_size, after.st_size); /* all numbers have two digits */
    struct timespec times[2] = {before.st_atim, before.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, source, times, 0), 0); /* the same size and the same time */
    uint64_t second = digest(&o, &n_cached, NULL);
    assert_true(second != first);
    assert_int_equal(n_cached, 0);
    assert_int_equal(digest(&o, &n_cached, NULL), second);
    assert_int_equal(n_cached, 1);
    times[1].tv_sec = 1000; /* touched, but the same bytes */
    assert_int_equal(utimensat(AT_FDCWD, source, times, 0), 0);
    assert_int_equal(digest(&o, &n_cached, NULL), second);
    assert_int_equal(n_cached, 1);
    assert_int_equal(count_files(".tokens", NULL, 0), 1); /* one per text, however often it changes */
}

static void another_tokenizer_or_option_has_a_file_of_its_own(void **state) {
    fresh("records");
    data_options o = options();
    uint64_t n_cached, first = digest(&o, NULL, NULL);
    size_t n;
    char *json = read_bytes(tokens, &n);
    const char *from = "\"<|endoftext|>\",\"single_word\":false";
    size_t at = 0;
    while (at < n && strncmp(json + at, from, strlen(from)) != 0) at++;
    assert_true(at < n);
    at += strlen(from) - 5;
    memcpy(json + at, "true ", 5); /* the same ids, but who knows that */
    write_bytes(tokens, json, n);
    assert_true(digest(&o, &n_cached, NULL) == first && n_cached == 0);
    memcpy(json + at, "false", 5);
    write_bytes(tokens, json, n);
    free(json);
    o.chat = CHAT_NONE;
    assert_true(digest(&o, &n_cached, NULL) != first && n_cached == 0);
    o.records = (record_options){.prompt_column = "answer", .response_column = "question"};
    assert_true(digest(&o, &n_cached, NULL) != first && n_cached == 0);
    o = options();
    assert_true(digest(&o, &n_cached, NULL) == first && n_cached == 1);
}

static void what_was_left_out_is_not_hidden_by_the_cache(void **state) {
    fresh("records");
    FILE *f = fopen(source, "ab");
    fputs("no record\n", f);
    fclose(f);
    data_options o = options();
    dataset *d;
    log_set_level(LOG_ERROR);
    o.records.on_error = RECORDS_SKIP;
    uint64_t n_cached;
    digest(&o, NULL, NULL);
    digest(&o, &n_cached, NULL);
    assert_int_equal(n_cached, 1);
    data_report report;
    assert_int_equal(dataset_open(&d, &o), OK);
    dataset_report(d, SPLIT_TRAIN, &report);
    assert_int_equal(report.n_skipped, 1); /* counted from the cache too */
    dataset_close(d);
    o.records.on_error = RECORDS_STOP;
    expect_error(dataset_open(&d, &o), ERR_INPUT, ":401:|not JSON");
    log_set_level(LOG_INFO);
    assert_int_equal(count_files(".tmp.", NULL, 0), 0);
}

static void a_directory_that_cannot_be_written_is_an_error_or_no_cache(void **state) {
    fresh("records");
    data_options o = options();
    char bad[128];
    dataset *d;
    o.cache = NULL;
    uint64_t n_cached, good = digest(&o, NULL, NULL);
    snprintf(bad, sizeof bad, "%s/below", source); /* below a file */
    o.cache = bad;
    expect_error(dataset_open(&d, &o), ERR_IO, "below");
    log_set_level(LOG_ERROR);
    assert_int_equal(setenv("XDG_CACHE_HOME", source, 1), 0);
    o.cache = "auto";
    assert_int_equal(digest(&o, &n_cached, NULL), good);
    assert_int_equal(setenv("XDG_CACHE_HOME", "relative", 1), 0); /* counts as not set */
    assert_int_equal(setenv("HOME", test_dir, 1), 0);
    assert_int_equal(digest(&o, &n_cached, NULL), good);
    char name[160];
    snprintf(name, sizeof name, "%s/.cache/ralo", test_dir);
    assert_int_equal(access(name, F_OK), 0);
    unsetenv("HOME");
    assert_int_equal(digest(&o, &n_cached, NULL), good);
    log_set_level(LOG_INFO);
}

/* In a child, so that the limit ends with it; exits 0 when all is well. */
static void full_disk_child(uint64_t good) {
    struct rlimit limit = {.rlim_cur = 6000, .rlim_max = RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    log_set_level(LOG_ERROR);
    data_options o = options();
    dataset *d;
    bool refused = dataset_open(&d, &o) == ERR_IO && strstr(error_message(), "write");
    setenv("XDG_CACHE_HOME", cache, 1);
    o.cache = "auto";
    _exit(refused && digest(&o, NULL, NULL) == good ? 0 : 1);
}

static void a_full_disk_leaves_nothing_behind(void **state) {
    fresh("records");
    data_options o = options();
    o.cache = NULL;
    uint64_t good = digest(&o, NULL, NULL);
    pid_t child = fork();
    if (child == 0) full_disk_child(good);
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFEXITED(result) && WEXITSTATUS(result) == 0);
    assert_int_equal(count_files(".tokens", NULL, 0), 0);
}

static void processes_that_build_at_once_do_no_harm(void **state) {
    fresh("records");
    data_options o = options();
    o.cache = NULL;
    uint64_t good = digest(&o, NULL, NULL), n_cached;
    o.cache = cache;
    pid_t children[6];
    for (int i = 0; i < 6; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            bool same = true;
            for (int k = 0; k < 3; k++) same &= digest(&o, NULL, NULL) == good;
            _exit(same ? 0 : 1);
        }
    }
    for (int i = 0; i < 6; i++) {
        int result;
        assert_int_equal(waitpid(children[i], &result, 0), children[i]);
        assert_true(WIFEXITED(result) && WEXITSTATUS(result) == 0);
    }
    assert_int_equal(count_files(".tmp.", NULL, 0), 0);
    assert_true(digest(&o, &n_cached, NULL) == good && n_cached == 1);
}

static void files_of_dead_writers_are_removed(void **state) {
    fresh("records");
    data_options o = options();
    digest(&o, NULL, NULL);
    char name[400], left[420], alive[420];
    count_files(".tokens", name, sizeof name);
    snprintf(left, sizeof left, "%s.tmp.1.0", name);
    snprintf(alive, sizeof alive, "%s.tmp.1.1", name);
    write_bytes(left, "half", 4);
    write_bytes(alive, "half", 4);
    int writer = open(alive, O_RDWR | O_CLOEXEC);
    assert_int_equal(flock(writer, LOCK_EX | LOCK_NB), 0);
    unlink(name);
    digest(&o, NULL, NULL);
    assert_int_not_equal(access(left, F_OK), 0);
    assert_int_equal(access(alive, F_OK), 0); /* its writer is at work */
    close(writer);
    unlink(name);
    digest(&o, NULL, NULL);
    assert_int_not_equal(access(alive, F_OK), 0);
}

static int setup(void **state) {
    char path[512], *text;
    size_t n;
    if (test_dir_open(state) != 0) return -1;
    snprintf(cache, sizeof cache, "%s/cache", test_dir);
    snprintf(tokens, sizeof tokens, "%s/tokenizer.json", test_dir);
    snprintf(path, sizeof path, "%s/chat/bytes.json", TEST_FIXTURES);
    if (file_read_all(path, 1 << 20, &text, &n) != OK) return -1;
    write_bytes(tokens, text, n);
    free(text);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_second_opening_gives_the_same_rows_from_the_cache),
        cmocka_unit_test(a_damaged_file_is_built_again),
        cmocka_unit_test(a_foreign_file_is_not_taken),
        cmocka_unit_test(a_text_that_changed_is_read_again),
        cmocka_unit_test(another_tokenizer_or_option_has_a_file_of_its_own),
        cmocka_unit_test(what_was_left_out_is_not_hidden_by_the_cache),
        cmocka_unit_test(a_directory_that_cannot_be_written_is_an_error_or_no_cache),
        cmocka_unit_test(a_full_disk_leaves_nothing_behind),
        cmocka_unit_test(processes_that_build_at_once_do_no_harm),
        cmocka_unit_test(files_of_dead_writers_are_removed),
    };
    return cmocka_run_group_tests(tests, setup, test_dir_close);
}
