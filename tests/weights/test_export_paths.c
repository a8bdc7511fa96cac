/* test_export_paths.c - a checkpoint names files; none but its own are ever copied, and none that is no regular file is opened.
 *
 * The lies are sealed as a writer would seal them: whoever makes a checkpoint can make its checksums too. */
#include "files.h"
#include "must.h"
#include "checkpoint/directory.h"
#include "checkpoint/seal.h"
#include "checkpoint/tokenizer_files.h"
#include "training.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECRET "a secret of the user"

static char tokenizer_dir[128], run[128], checkpoint[256];

static void copy_text(const char *from, const char *to) {
    char *text;
    size_t n;
    must(file_read_all(from, 1 << 20, &text, &n));
    must(file_replace(to, text, n));
    free(text);
}

/* A run of one step with a tokenizer of three files, and its checkpoint. */
static int make_run(void **state) {
    char set[200];
    train_result r;
    if (test_dir_open(state) != 0) return -1;
    snprintf(tokenizer_dir, sizeof tokenizer_dir, "%s/tokenizer", test_dir);
    snprintf(run, sizeof run, "%s/run", test_dir);
    must(dir_make(path_of("tokenizer/additional_chat_templates")));
    copy_text(TEST_FIXTURES "/chat/bytes.json", path_of("tokenizer/tokenizer.json"));
    write_text(path_of("tokenizer/tokenizer_config.json"), "{\"eos_token\": \"<|im_end|>\"}");
    write_text(path_of("tokenizer/additional_chat_templates/tool.jinja"), "{{ messages }}");
    write_text(path_of("secret"), SECRET);
    write_text(path_of("secret.jinja"), SECRET);
    strbuf text;
    strbuf_init(&text);
    for (int i = 0; i < 60; i++) strbuf_printf(&text, "line %d of a text that says line %d of a text\n", i, i);
    write_text(path_of("text"), text.text);
    strbuf_fini(&text);
    snprintf(set, sizeof set, "data.tokenizer=%s", tokenizer_dir);
    training t = {.source = path_of("text"), .steps = 1, .dir = run, .more = SETTINGS("model.vocab=352", set)};
    must(training_run(&t, &r));
    must(checkpoint_find_newest(run, checkpoint, sizeof checkpoint));
    return *checkpoint ? 0 : -1;
}

static const char *in_checkpoint(const char *name) {
    static char path[400];
    snprintf(path, sizeof path, "%s/%s", checkpoint, name);
    return path;
}

static json_t *unsealed(void) {
    json_t *root;
    must(sealed_read(in_checkpoint("checkpoint.json"), &root));
    json_object_del(root, "checksum");
    return root;
}

static void reseal(json_t *root) {
    assert_int_equal(unlink(in_checkpoint("checkpoint.json")), 0);
    must(sealed_write(in_checkpoint("checkpoint.json"), root));
    json_decref(root);
}

/* Refused with these words, and nothing of it is there. */
static void expect_no_export(const char *fragments, const char *tokenizer) {
    export_report report;
    export_options o = {.dir = path_of("out"), .type = DTYPE_COUNT, .tokenizer = tokenizer};
    int before = files_in(test_dir);
    expect_error(export_checkpoint(checkpoint, &o, &report), ERR_INPUT, fragments);
    assert_null(strstr(error_message(), SECRET));
    assert_int_equal(files_in(test_dir), before);
}

static void must_export(const char *tokenizer) {
    export_report report;
    must(dir_remove_all(path_of("out")));
    export_options o = {.dir = path_of("out"), .type = DTYPE_COUNT, .tokenizer = tokenizer};
    must(export_checkpoint(checkpoint, &o, &report));
}

static void expect_equal_files(const char *a, const char *b) {
    char *x, *y;
    size_t n, m;
    must(file_read_all(a, 1 << 20, &x, &n));
    must(file_read_all(b, 1 << 20, &y, &m));
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
}

static void a_checkpoint_has_the_tokenizer_with_it(void **state) {
    must(dir_remove_all(path_of("gone")));
    assert_int_equal(rename(tokenizer_dir, path_of("gone")), 0);
    must_export(NULL);
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json",
                                        "additional_chat_templates/tool.jinja"};
    for (size_t i = 0; i < ARRAY_LENGTH(files); i++) {
        char a[300], b[300];
        snprintf(a, sizeof a, "%s/out/%s", test_dir, files[i]);
        snprintf(b, sizeof b, "%s/gone/%s", test_dir, files[i]);
        expect_equal_files(a, b);
    }
    must_export("none");
    assert_int_not_equal(access(path_of("out/tokenizer.json"), F_OK), 0);
    must(dir_remove_all(path_of("out")));
}

static void a_path_that_a_checkpoint_names_is_not_copied_from(void **state) {
    static const char *const paths[] = {"/dev/zero", "/etc", "."};
    json_t *root = unsealed();
    json_object_del(root, "tokenizer_files"); /* as an older ralo wrote it */
    assert_int_equal(mkfifo(path_of("pipe"), 0600), 0);
    for (size_t i = 0; i < ARRAY_LENGTH(paths) + 2; i++) {
        const char *path = i < ARRAY_LENGTH(paths) ? paths[i] : i == ARRAY_LENGTH(paths) ? path_of("pipe") : test_dir;
        json_object_set_new(json_object_get(root, "model"), "tokenizer", json_string(path));
        reseal(json_deep_copy(root));
        expect_no_export("keeps no copy|--tokenizer DIR", NULL);
    }
    expect_no_export("pipe, expected a regular file", path_of("pipe"));
    expect_no_export("--tokenizer|no/such", "no/such");
    must_export(tokenizer_dir); /* by the user's own word */
    expect_equal_files(path_of("out/tokenizer.json"), path_of("tokenizer/tokenizer.json"));
    must_export("none");
    must(dir_remove_all(path_of("out")));
    json_decref(root);
}

static void listed_names_stay_in_the_checkpoint(void **state) {
    static const char *const names[] = {"../../../../secret",
                                        "/etc/passwd",
                                        "",
                                        ".",
                                        "..",
                                        "checkpoint.json",
                                        "additional_chat_templates/../../../../../secret.jinja",
                                        "additional_chat_templates/.jinja",
                                        "additional_chat_templates/a/b.jinja",
                                        "tokenizer.json/"};
    json_t *root = unsealed();
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
        json_t *entry = json_array_get(json_object_get(root, "tokenizer_files"), 1);
        json_object_set_new(entry, "name", json_string(names[i]));
        reseal(json_deep_copy(root));
        expect_no_export("not a tokenizer file", NULL);
    }
    json_array_append(json_object_get(root, "tokenizer_files"),
                      json_array_get(json_object_get(root, "tokenizer_files"), 0));
    json_object_set_new(json_array_get(json_object_get(root, "tokenizer_files"), 1), "name",
                        json_string("tokenizer_config.json"));
    reseal(json_deep_copy(root));
    expect_no_export("listed twice", NULL);
    json_t *list = json_object_get(root, "tokenizer_files");
    while (json_array_size(list) < 1000) json_array_append(list, json_array_get(list, 0));
    reseal(json_deep_copy(root));
    expect_no_export("1000 entries", NULL);
    json_object_set_new(root, "tokenizer_files", json_string("all"));
    reseal(root);
    expect_no_export("list of tokenizer files", NULL);
}

static void what_is_listed_is_a_file_of_that_size_and_content(void **state) {
    char path[400];
    snprintf(path, sizeof path, "%s", in_checkpoint("tokenizer/tokenizer_config.json"));
    write_text(path, "{\"eos_token\": \"<|im_end|>\"\n"); /* one byte is another */
    expect_no_export("is damaged", NULL);
    assert_int_equal(checkpoint_check(checkpoint), OK); /* which looks at sizes alone */
    write_text(path, "{}");
    expect_no_export("found 2 bytes, expected 27", NULL);
    expect_error(checkpoint_check(checkpoint), ERR_INPUT, "found 2 bytes");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink(path_of("secret"), path), 0);
    expect_no_export("is a link, expected a regular file", NULL);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_no_export("is a pipe, expected a regular file", NULL);
    assert_int_equal(unlink(path), 0);
    write_text(path, "{\"eos_token\": \"<|im_end|>\"}");
    must_export(NULL);
    must(dir_remove_all(path_of("out")));
    assert_int_equal(symlink(path_of("secret"), in_checkpoint("tokenizer/vocab.json")), 0);
    expect_no_export("vocab.json|does not list", NULL);
    assert_int_equal(unlink(in_checkpoint("tokenizer/vocab.json")), 0);
    snprintf(path, sizeof path, "%s", in_checkpoint("tokenizer"));
    assert_int_equal(rename(path, path_of("tokenizer-moved")), 0);
    assert_int_equal(symlink(path_of("tokenizer-moved"), path), 0);
    expect_no_export("found a link", NULL);
}

/* A file with a hole has any size and takes none. */
static void sizes_are_bounded(void **state) {
    tokenizer_files files;
    assert_int_equal(truncate(path_of("tokenizer/tokenizer_config.json"), (off_t)1 << 40), 0);
    expect_error(tokenizer_files_read(&files, tokenizer_dir), ERR_INPUT, "tokenizer_config.json: found 1099511627776");
    tokenizer_files_fini(&files);
}

static void links_lead_nowhere_but_to_the_blobs_of_a_cache(void **state) {
    tokenizer_files files;
    must(dir_make(path_of("hub/snapshots/1")));
    must(dir_make(path_of("hub/blobs")));
    write_text(path_of("hub/blobs/a"), "{}");
    assert_int_equal(symlink("../../blobs/a", path_of("hub/snapshots/1/tokenizer.json")), 0);
    assert_int_equal(symlink("../../blobs/a", path_of("hub/snapshots/1/vocab.json")), 0);
    assert_int_equal(symlink("vocab.json", path_of("hub/snapshots/1/added_tokens.json")), 0);
    must(tokenizer_files_read(&files, path_of("hub/snapshots/1")));
    assert_int_equal(files.n, 3);
    tokenizer_files_fini(&files);
    must(tokenizer_files_read(&files, path_of("hub/snapshots/1/tokenizer.json"))); /* by the file */
    assert_int_equal(files.n, 3);
    assert_string_equal(files.items[0].name, "tokenizer.json");
    tokenizer_files_fini(&files);
    assert_int_equal(symlink(path_of("secret"), path_of("hub/snapshots/1/merges.txt")), 0);
    expect_error(tokenizer_files_read(&files, path_of("hub/snapshots/1")), ERR_INPUT, "merges.txt is a link to|secret");
    tokenizer_files_fini(&files);
    must(tokenizer_files_read(&files, "byte"));
    assert_int_equal(files.n, 0);
    tokenizer_files_fini(&files);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_run, test_dir_close)
int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_checkpoint_has_the_tokenizer_with_it),
        TEST(a_path_that_a_checkpoint_names_is_not_copied_from),
        TEST(listed_names_stay_in_the_checkpoint),
        TEST(what_is_listed_is_a_file_of_that_size_and_content),
        TEST(sizes_are_bounded),
        TEST(links_lead_nowhere_but_to_the_blobs_of_a_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
