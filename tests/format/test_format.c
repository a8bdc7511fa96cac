/* test_format.c - files that lie: every reader answers with a message that names file, place, found and expected,
 * and never with a crash, a hang or a view outside the file. Writers leave a whole file or none. */
#include "files.h"
#include "format/format.h"
#include "weightfile/weightfile.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

static char *repeated(const char *unit, size_t times, const char *tail, size_t *n_bytes) {
    size_t n = strlen(unit);
    char *text = mem_alloc(n * times + strlen(tail) + 1);
    for (size_t i = 0; i < times; i++) memcpy(text + n * i, unit, n);
    strcpy(text + n * times, tail);
    *n_bytes = strlen(text);
    return text;
}

/* ---- JSON ---------------------------------------------------------------------------------------------------- */

static void json_refuses_bad_files_with_their_place(void **state) {
    static const struct {
        const char *text, *fragments;
    } cases[] = {
        {"", "bad.json:1:|end of file|expected"},
        {"   \n ", "bad.json:2:|end of file"},
        {"{\"a\": 1", "bad.json:1:|end of file"},
        {"{\"a\": 1,\n \"b\": [1, 2}", "bad.json:2:|']' expected"},
        {"{\"a\": 1, \"a\": 2}", "bad.json:1:|duplicate"},
        {"{\"a\": 1} x", "bad.json:1:|end of file expected"},
        {"7", "'[' or '{' expected"},
        {"{\"a\": 123456789012345678901234567890}", "too big integer"},
        {"{\"a\": 1e999}", "real number overflow"},
        {"{\"a\": NaN}", "bad.json:1:"},
        {"{\"a\": \"\xff\"}", "UTF-8"},
        {"{\"a\": \"\\u0000\"}", "NUL|bad.json:1:"},
        {"{'a': 1}", "bad.json:1:"},
    };
    json_t *root;
    const char *path = path_of("bad.json");
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        write_bytes(path, cases[i].text, strlen(cases[i].text));
        expect_error(json_read_file(path, 1 << 20, &root), ERR_INPUT, cases[i].fragments);
        assert_null(root);
    }
    size_t n_bytes;
    char *deep = repeated("[", 1000000, "", &n_bytes);
    write_bytes(path, deep, n_bytes);
    free(deep);
    expect_error(json_read_file(path, 1 << 20, &root), ERR_INPUT, "bad.json:1:|depth");
    expect_error(json_read_file(path, 1000, &root), ERR_INPUT, "bad.json|1000000|1000");
    expect_error(json_read_file(test_dir, 1000, &root), ERR_INPUT, "directory");
    unlink(path);
    expect_error(json_read_file(path, 1000, &root), ERR_IO, "bad.json|No such file");
}

static void json_members_are_checked_for_kind_and_range(void **state) {
    json_t *o = json_pack("{s:i, s:f, s:s, s:n}", "n", 7, "x", 0.5, "s", "text", "nil");
    int64_t n;
    double x;
    const char *s;
    assert_int_equal(json_get_int(o, "n", 0, 10, "c.json", &n), OK);
    assert_int_equal(n, 7);
    assert_int_equal(json_get_real(o, "x", "c.json", &x), OK);
    assert_true(x == 0.5);
    assert_int_equal(json_get_real(o, "n", "c.json", &x), OK);
    assert_true(x == 7.0);
    assert_int_equal(json_get_string(o, "s", "c.json", &s), OK);
    assert_string_equal(s, "text");
    expect_error(json_get_int(o, "n", 8, 10, "c.json", &n), ERR_INPUT, "c.json|'n'|found 7|from 8 to 10");
    expect_error(json_get_int(o, "x", 0, 10, "c.json", &n), ERR_INPUT, "c.json|'x'|real number|expected an integer");
    expect_error(json_get_int(o, "absent", 0, 10, "c.json", &n), ERR_INPUT, "c.json|'absent' is missing|an integer");
    expect_error(json_get_real(o, "nil", "c.json", &x), ERR_INPUT, "c.json|'nil'|found null|a number");
    expect_error(json_get_string(o, "n", "c.json", &s), ERR_INPUT, "c.json|'n'|an integer|expected a string");
    expect_error(json_get_string(NULL, "n", "c.json", &s), ERR_INPUT, "c.json|nothing|'n'");
    assert_int_equal(n, 7); /* a failed call leaves the output alone */
    json_decref(o);
    json_t *list = json_array();
    expect_error(json_get_real(list, "k", "c.json", &x), ERR_INPUT, "c.json|an array|an object");
    json_decref(list);
}

static void json_written_is_read_back_to_the_same_bits(void **state) {
    const char *path = path_of("round.json");
    json_t *root =
        json_pack("{s:f, s:I, s:[i, s]}", "x", 0.1 + 0.2, "n", (json_int_t)INT64_MIN, "l", 1, "\xc3\xa9\n\"");
    json_t *again;
    assert_int_equal(json_write_file(path, root), OK);
    assert_int_equal(json_read_file(path, 4096, &again), OK);
    assert_true(json_equal(root, again));
    json_decref(again);
    assert_int_equal(files_in(test_dir), 1); /* no temporary file stayed */
    json_t *scalar = json_integer(3);
    expect_error(json_write_file(path, scalar), ERR_INPUT, "round.json|an integer");
    json_decref(scalar);
    expect_error(json_write_file("/nonexistent/x.json", root), ERR_IO, "/nonexistent/x.json|No such file");
    json_decref(root);
    unlink(path);
}

/* A full disk, played by a limit on the size of files. */
static void json_write_that_fails_keeps_the_old_file(void **state) {
    static char old_text[] = "{\"old\": 1}\n";
    const char *path = path_of("kept.json");
    write_bytes(path, old_text, strlen(old_text));
    json_t *big = json_array(), *again;
    for (int i = 0; i < 4000; i++) json_array_append_new(big, json_integer(i));
    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_IGN);
    small = (struct rlimit){.rlim_cur = 4096, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    status rc = json_write_file(path, big);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    expect_error(rc, ERR_IO, "kept.json|write|File too large");
    assert_int_equal(json_read_file(path, 4096, &again), OK);
    assert_int_equal(json_integer_value(json_object_get(again, "old")), 1);
    assert_int_equal(files_in(test_dir), 1);
    json_decref(again);
    json_decref(big);
    unlink(path);
}

static void json_writer_killed_leaves_a_whole_file(void **state) {
    const char *path = path_of("killed.json");
    json_t *big = json_array(), *again;
    for (int i = 0; i < 2000; i++) json_array_append_new(big, json_integer(i));
    assert_int_equal(json_write_file(path, big), OK);
    for (int round = 0; round < 5; round++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0)
            for (;;)
                if (json_write_file(path, big) != OK) _exit(1);
        usleep(3000 + 1700 * (unsigned)round);
        kill(child, SIGKILL);
        int how;
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_true(WIFSIGNALED(how));
        assert_int_equal(json_read_file(path, 1 << 20, &again), OK);
        assert_true(json_equal(big, again));
        json_decref(again);
    }
    json_decref(big);
    assert_int_equal(dir_remove_all(test_dir), OK); /* a killed writer may leave its temporary file */
    assert_int_equal(dir_make(test_dir), OK);
}

/* ---- YAML ---------------------------------------------------------------------------------------------------- */

static void yaml_tree_keeps_order_places_and_quotes(void **state) {
    static const char text[] = "# a run\nmodel:\n  layers: 4\n  name: \"8\"\nlist: [a, 'b', {c: d}]\nempty:\n"
                               "block: |\n  two\n  lines\n";
    arena memory;
    yaml_node *root;
    arena_init(&memory);
    assert_int_equal(yaml_read_text(text, strlen(text), "t.yaml", &memory, &root), OK);
    assert_int_equal(root->kind, YAML_MAP);
    const yaml_node *model = root->first_child, *list = model->next, *empty = list->next, *block = empty->next;
    assert_string_equal(model->key, "model");
    assert_int_equal(model->kind, YAML_MAP);
    assert_int_equal(model->line, 2);
    const yaml_node *layers = model->first_child, *name = layers->next;
    assert_string_equal(layers->text, "4");
    assert_false(layers->quoted);
    assert_int_equal(layers->line, 3);
    assert_int_equal(layers->column, 3);
    assert_string_equal(name->text, "8");
    assert_true(name->quoted);
    assert_null(name->next);
    assert_int_equal(list->kind, YAML_LIST);
    const yaml_node *a = list->first_child, *b = a->next, *c = b->next;
    assert_null(a->key);
    assert_string_equal(a->text, "a");
    assert_int_equal(a->line, 5);
    assert_int_equal(a->column, 8);
    assert_true(b->quoted);
    assert_string_equal(c->first_child->key, "c");
    assert_string_equal(c->first_child->text, "d");
    assert_string_equal(empty->text, "");
    assert_false(empty->quoted);
    assert_string_equal(block->text, "two\nlines\n");
    assert_null(block->next);
    arena_fini(&memory);
}

static void yaml_reads_json_and_nothing(void **state) {
    static const char json[] = "\xef\xbb\xbf{\"train\": {\"lr\": 3e-4, \"list\": [1, \"x\"]}}";
    static const char *const nothing[] = {"", "\n\n", "# only a comment\n", "---\n"};
    arena memory;
    yaml_node *root;
    arena_init(&memory);
    assert_int_equal(yaml_read_text(json, strlen(json), "t.json", &memory, &root), OK); /* with a byte order mark */
    assert_string_equal(root->first_child->key, "train");
    assert_string_equal(root->first_child->first_child->text, "3e-4");
    assert_true(root->first_child->first_child->next->first_child->next->quoted);
    for (size_t i = 0; i < ARRAY_LENGTH(nothing); i++) {
        assert_int_equal(yaml_read_text(nothing[i], strlen(nothing[i]), "t.yaml", &memory, &root), OK);
        assert_int_equal(root->kind, YAML_MAP);
        assert_null(root->first_child);
    }
    arena_fini(&memory);
}

static void yaml_refuses_what_it_would_half_understand(void **state) {
    static const struct {
        const char *text, *fragments;
    } cases[] = {
        {"a: 1\nb: 2\na: 3\n", "bad.yaml:3:1|'a' again|line 1"},
        {"x:\n  b: 1\n  c: 2\n  b: 3\n", "bad.yaml:4:3|'b' again|line 2, column 3"},
        {"{a: 1, \"a\": 2}", "bad.yaml:1:8|'a' again"},
        {"a: &x 1\nb: *x\n", "bad.yaml:1:4|anchor '&x'|written out"},
        {"b: *x\n", "bad.yaml:1:4|alias '*x'"},
        {"*x : 1\n", "alias '*x' as a key"},
        {"a: !!int 3\n", "bad.yaml:1:4|tag"},
        {"a: !shell {b: 1}\n", "bad.yaml:1:4|tag '!shell'"},
        {"a: 1\n---\nb: 2\n", "bad.yaml:2:1|second document|expected one"},
        {"? [a, b]\n: 1\n", "bad.yaml:1:3|as a key|expected text"},
        {"a: \"x\\0y\"\n", "bad.yaml:1:4|NUL"},
        {"a: \xff\xfe\n", "bad.yaml:1:|UTF-8|0xff"},
        {"ok: 1\nb: \xc3(\n", "bad.yaml:2:5|UTF-8|0x28"},
        {"a: \x01\n", "bad.yaml:1:|control characters"},
        {"a: [1, 2\nb: 3\n", "bad.yaml:2:|expected ',' or ']'|began at line 1, column 4"},
        {"a:\n\t- b\n", "bad.yaml:2:"},
        {"a: \"open\n", "bad.yaml:|end of stream"},
        {"a: b: c\n", "bad.yaml:1:5|mapping values are not allowed"},
    };
    arena memory;
    yaml_node *root;
    const char *path = path_of("bad.yaml");
    arena_init(&memory);
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        write_bytes(path, cases[i].text, strlen(cases[i].text));
        expect_error(yaml_read_file(path, &memory, &root), ERR_INPUT, cases[i].fragments);
        assert_null(root);
    }
    unlink(path);
    expect_error(yaml_read_file(path, &memory, &root), ERR_IO, "bad.yaml|No such file");
    static const char utf16[] = {'\xff', '\xfe', 'a', 0, ':', 0, ' ', 0, '1', 0};
    expect_error(yaml_read_text(utf16, sizeof utf16, "bad.yaml", &memory, &root), ERR_INPUT, "bad.yaml|UTF-8");
    static const char nul[] = "a: 1\n\0b: 2\n";
    expect_error(yaml_read_text(nul, sizeof nul - 1, "bad.yaml", &memory, &root), ERR_INPUT, "bad.yaml:2:1|control");
    arena_fini(&memory);
}

static void yaml_bounds_depth_and_size(void **state) {
    arena memory;
    yaml_node *root;
    size_t n_bytes;
    arena_init(&memory);
    char text[128];
    for (int depth = 31; depth <= 34; depth++) { /* the root is level 1 */
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        status rc = yaml_read_text(text, 2 * (size_t)depth, "deep.yaml", &memory, &root);
        if (depth <= 32) assert_int_equal(rc, OK);
        else expect_error(rc, ERR_INPUT, "deep.yaml:1:33|deeper than 32");
    }
    char *deep = repeated("{a: ", 100000, "", &n_bytes);
    expect_error(yaml_read_text(deep, n_bytes, "deep.yaml", &memory, &root), ERR_INPUT, "deep.yaml:1:|deeper than 32");
    free(deep);
    deep = repeated("- ", 100000, "", &n_bytes);
    expect_error(yaml_read_text(deep, n_bytes, "deep.yaml", &memory, &root), ERR_INPUT, "deep.yaml:1:|deeper than 32");
    free(deep);
    char *big = repeated("# comment\n", 420000, "", &n_bytes); /* 4.2 MB: over 4 MiB */
    expect_error(yaml_read_text(big, n_bytes, "big.yaml", &memory, &root), ERR_INPUT, "big.yaml|4200000|4194304");
    write_bytes(path_of("big.yaml"), big, n_bytes);
    expect_error(yaml_read_file(path_of("big.yaml"), &memory, &root), ERR_INPUT, "big.yaml|4200000|4194304");
    unlink(path_of("big.yaml"));
    free(big);
    /* Many keys in one map: the search for duplicates must not be quadratic (40,000 keys, and the last is the first). */
    strbuf wide;
    strbuf_init(&wide);
    for (int i = 0; i < 40000; i++) strbuf_printf(&wide, "k%d: 1\n", i);
    strbuf_add(&wide, "k0: 2\n");
    expect_error(yaml_read_text(wide.text, wide.length, "wide.yaml", &memory, &root), ERR_INPUT,
                 "wide.yaml:40001:1|'k0' again|line 1");
    strbuf_fini(&wide);
    arena_fini(&memory);
}

/* ---- safetensors --------------------------------------------------------------------------------------------- */

static size_t make_file(char *out, const char *header, size_t data_bytes) {
    uint64_t n = strlen(header);
    memcpy(out, &n, 8);
    memcpy(out + 8, header, n);
    for (size_t i = 0; i < data_bytes; i++) out[8 + n + i] = (char)(i + 1);
    return 8 + n + data_bytes;
}

static const char good_header[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                                  "\"w\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[4,20]},"
                                  "\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]},"
                                  "\"none\":{\"dtype\":\"F64\",\"shape\":[3,0],\"data_offsets\":[20,20]},"
                                  "\"one\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[20,21]}}  ";

static void safetensors_reads_a_file_others_wrote(void **state) {
    char file[1024];
    safetensors st;
    const char *path = path_of("good.safetensors");
    size_t n = make_file(file, good_header, 21);
    write_bytes(path, file, n);
    assert_int_equal(safetensors_open(&st, path), OK);
    assert_int_equal(st.n_tensors, 4);
    static const char *const sorted[] = {"b", "none", "one", "w"};
    for (size_t i = 0; i < 4; i++) assert_string_equal(st.tensors[i].name, sorted[i]);
    assert_string_equal(json_string_value(json_object_get(st.metadata, "format")), "pt");
    const safetensor *w = safetensors_find(&st, "w"), *one = safetensors_find(&st, "one");
    assert_int_equal(w->type, DTYPE_F32);
    assert_true(shape_equal(&w->shape, &SHAPE(2, 2)));
    assert_int_equal(w->n_bytes, 16);
    assert_int_equal(w->file_offset, 8 + strlen(good_header) + 4);
    assert_memory_equal(w->data, file + w->file_offset, 16);
    assert_int_equal(one->shape.rank, 0);
    assert_int_equal(*(const unsigned char *)one->data, 21);
    assert_int_equal(safetensors_find(&st, "none")->n_bytes, 0);
    assert_null(safetensors_find(&st, "absent"));
    assert_null(safetensors_find(&st, ""));
    safetensors_close(&st);
    n = make_file(file, "{}", 0);
    write_bytes(path, file, n);
    assert_int_equal(safetensors_open(&st, path), OK);
    assert_int_equal(st.n_tensors, 0);
    assert_null(st.metadata);
    assert_null(safetensors_find(&st, "w"));
    safetensors_close(&st);
    unlink(path);
}

static void safetensors_refuses_headers_that_lie(void **state) {
#define T(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *fragments;
    } cases[] = {
        {"[1, 2]", 0, "begins with byte 0x5b|expected '{'"},
        {" {}", 0, "begins with byte 0x20"},
        {"{\"w\":", 0, "header, line 1|expected"},
        {"{} x", 0, "header, line 1|end of file expected"},
        {"{\"w\":7}", 0, "'w'|no object"},
        {"{" T("w", "F32", "[1]", "[0,4]") "," T("w", "F32", "[1]", "[4,8]") "}", 8, "header|duplicate"},
        {"{" T("w", "F33", "[1]", "[0,4]") "}", 4, "'w'|'F33'|expected one of F32, BF16"},
        {"{" T("w", "f32", "[1]", "[0,4]") "}", 4, "'w'|'f32'"},
        {"{\"w\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "'w'|(no string)|F32"},
        {"{\"w\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "'w'|(nothing)"},
        {"{\"w\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "'w'|nothing as shape"},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "'w'|nothing as data_offsets"},
        {"{" T("w", "F32", "{}", "[0,4]") "}", 4, "'w'|no array as shape"},
        {"{" T("w", "F32", "[1,1,1,1,1]", "[0,4]") "}", 4, "'w'|5 dimensions|at most 4"},
        {"{" T("w", "F32", "[-1]", "[0,4]") "}", 4, "'w'|dimension 0"},
        {"{" T("w", "F32", "[1,1.5]", "[0,4]") "}", 4, "'w'|dimension 1"},
        {"{" T("w", "F32", "[1,\"1\"]", "[0,4]") "}", 4, "'w'|dimension 1"},
        /* 2^33 * 2^33 wraps to 4 in 64 bits with four-byte elements */
        {"{" T("w", "F32", "[8589934592,8589934592]", "[0,0]") "}", 0, "'w'|more than 2^63"},
        {"{" T("w", "F32", "[4611686018427387904]", "[0,0]") "}", 0, "'w'|more than 2^63"},
        {"{" T("w", "U8", "[4294967296,2147483648]", "[0,4]") "}", 4, "'w'|more than 2^63"},
        {"{" T("w", "F32", "[9223372036854775808]", "[0,4]") "}", 4, "header|too big integer"},
        {"{" T("w", "F32", "[1]", "[0,8]") "}", 4, "'w'|0 to 8|4 bytes of data"},
        {"{" T("w", "F32", "[1]", "[4,8]") "}", 4, "'w'|4 to 8|inside the 4 bytes"},
        {"{" T("w", "F32", "[1]", "[4,0]") "}", 4, "'w'|4 to 0"},
        {"{" T("w", "F32", "[1]", "[-4,0]") "}", 4, "'w'|-4 to 0"},
        {"{" T("w", "F32", "[1]", "[9223372036854775807,-9223372036854775808]") "}", 4, "'w'|9223372036854775807"},
        {"{" T("w", "F32", "[1]", "[9223372036854775803,9223372036854775807]") "}", 4, "'w'|inside the 4 bytes"},
        {"{" T("w", "F32", "[1]", "[0]") "}", 4, "'w'|two integers"},
        {"{" T("w", "F32", "[1]", "[0,2,4]") "}", 4, "'w'|two integers"},
        {"{" T("w", "F32", "[1]", "[0.0,4.0]") "}", 4, "'w'|two integers"},
        {"{" T("w", "F32", "[2]", "[0,4]") "}", 4, "'w'|hold 4 bytes|expected 8|(2) of F32"},
        {"{" T("w", "BF16", "[2]", "[0,8]") "}", 8, "'w'|hold 8 bytes|expected 4"},
        {"{" T("w", "F32", "[0]", "[0,4]") "}", 4, "'w'|hold 4 bytes|expected 0"},
        {"{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[2]", "[4,12]") "}", 12,
         "'b'|overlap tensor 'a'|ends at 8"},
        {"{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[2]", "[0,8]") "}", 8, "overlap"},
        {"{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[100,104]") "}", 104, "'b'|96 bytes after|64"},
        {"{" T("a", "F32", "[1]", "[64,68]") "}", 68, "'a'|64 bytes after"},
        {"{" T("a", "F32", "[1]", "[0,4]") "}", 68, "64 bytes after the last tensor"},
        {"{}", 64, "64 bytes after the last tensor"},
        {"{\"__metadata__\":[]}", 0, "__metadata__|not an object"},
        {"{\"__metadata__\":{\"k\":1}}", 0, "__metadata__|'k'|not a string"},
        {"{\"__metadata__\":{\"k\":\"v\"},\"w\":1}", 0, "'w'|no object"},
    };
    char file[1024];
    safetensors st;
    const char *path = path_of("bad.safetensors");
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        write_bytes(path, file, make_file(file, cases[i].header, cases[i].data_bytes));
        status rc = safetensors_open(&st, path);
        expect_error(rc, ERR_INPUT, cases[i].fragments);
        expect_error(rc, ERR_INPUT, "bad.safetensors|expected");
        assert_null(st.map); /* closed again, and closing twice is harmless */
        safetensors_close(&st);
    }
    /* Padding below 64 bytes is no hole. */
    write_bytes(path, file,
                make_file(file, "{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[64,68]") "}", 68 + 63));
    assert_int_equal(safetensors_open(&st, path), OK);
    safetensors_close(&st);
    unlink(path);
#undef T
}

static void safetensors_refuses_lengths_that_lie(void **state) {
    static const struct {
        uint64_t length;
        size_t n_bytes;
        const char *fragments;
    } cases[] = {
        {0, 0, "0 bytes|at least 10"},
        {2, 9, "9 bytes|at least 10"},
        {0, 64, "length of 0 bytes|did not finish"},
        {1, 64, "length of 1 bytes|expected 2 to 56"},
        {57, 64, "length of 57 bytes|expected 2 to 56|64 bytes"},
        {UINT64_MAX, 64, "length of 18446744073709551615 bytes"},
        {UINT64_MAX - 7, 64, "length of 18446744073709551608 bytes"}, /* + 8 wraps to 0 */
        {(uint64_t)1 << 63, 64, "length of 9223372036854775808 bytes"},
        {100000001, 64, "length of 100000001 bytes"},
    };
    char file[64];
    safetensors st;
    const char *path = path_of("length.safetensors");
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        memset(file, ' ', sizeof file);
        memcpy(file, &cases[i].length, 8);
        write_bytes(path, file, cases[i].n_bytes);
        expect_error(safetensors_open(&st, path), ERR_INPUT, cases[i].fragments);
    }
    /* The header limit holds although the (sparse) file is large enough. */
    uint64_t length = 100000001;
    write_bytes(path, &length, 8);
    assert_int_equal(truncate(path, 100001024), 0);
    expect_error(safetensors_open(&st, path), ERR_INPUT, "length.safetensors|100000001|2 to 100000000|100001024");
    unlink(path);
    expect_error(safetensors_open(&st, path), ERR_IO, "length.safetensors|No such file");
    expect_error(safetensors_open(&st, test_dir), ERR_INPUT, "a directory, expected a regular file");
}

/* Every truncation and every single-byte change of a good file: refused with a message, or views inside the file. */
static void safetensors_survives_any_small_damage(void **state) {
    static const unsigned char changes[] = {0x00, 0x01, 0x20, 0x80, 0xff};
    char good[1024], file[1024];
    safetensors st;
    const char *path = path_of("damaged.safetensors");
    size_t n = make_file(good, good_header, 21), n_refused = 0;
    for (size_t cut = 0; cut < n; cut++) {
        write_bytes(path, good, cut);
        expect_error(safetensors_open(&st, path), ERR_INPUT, "damaged.safetensors|expected");
    }
    for (size_t at = 0; at < n - 21; at++) {
        for (size_t c = 0; c < ARRAY_LENGTH(changes); c++) {
            memcpy(file, good, n);
            file[at] = (char)(file[at] ^ changes[c]);
            write_bytes(path, file, n);
            if (safetensors_open(&st, path) != OK) {
                expect_error(error_code(), ERR_INPUT, "damaged.safetensors");
                n_refused++;
                continue;
            }
            for (size_t i = 0; i < st.n_tensors; i++) {
                const safetensor *t = &st.tensors[i];
                assert_true(t->file_offset + t->n_bytes <= n);
                assert_int_equal(shape_bytes(&t->shape, t->type), t->n_bytes);
            }
            safetensors_close(&st);
        }
    }
    assert_true(n_refused > n); /* the loop did meet damage */
    unlink(path);
}

static void safetensors_written_is_read_back(void **state) {
    static const safetensors_entry entries[] = {
        {"layer.0.w", DTYPE_F32, {2, {2, 3}}},
        {"empty", DTYPE_I64, {2, {0, 5}}},
        {"\xc3\xa9", DTYPE_U8, {1, {3}}},
        {"scalar", DTYPE_BF16, {0, {0}}},
    };
    static const char *const metadata[] = {"format", "pt", "step", "12", NULL};
    static const float w[6] = {1, 2, 3, 4, 5, 6};
    const char *path = path_of("out.safetensors");
    safetensors_writer wr;
    safetensors st;
    write_bytes(path, "old", 3); /* an old file is replaced */
    assert_int_equal(safetensors_writer_open(&wr, path, entries, 4, metadata), OK);
    assert_int_equal(wr.data_start % 64, 0);
    assert_int_equal(wr.offsets[4], 24 + 0 + 3 + 2);
    assert_int_equal(safetensors_writer_put(&wr, 3, 0, &(uint16_t){0x3f80}, 2), OK); /* any order */
    assert_int_equal(safetensors_writer_put(&wr, 0, 8, w + 2, 16), OK);              /* and in pieces */
    assert_int_equal(safetensors_writer_put(&wr, 0, 0, w, 8), OK);
    assert_int_equal(safetensors_writer_put(&wr, 2, 0, "abc", 3), OK);
    expect_error(safetensors_open(&st, path), ERR_INPUT, "did not finish"); /* not readable before it is whole */
    assert_int_equal(safetensors_writer_close(&wr), OK);
    assert_int_equal(safetensors_open(&st, path), OK);
    assert_int_equal(st.n_tensors, 4);
    assert_string_equal(json_string_value(json_object_get(st.metadata, "step")), "12");
    const safetensor *t = safetensors_find(&st, "layer.0.w");
    assert_true(shape_equal(&t->shape, &SHAPE(2, 3)));
    assert_memory_equal(t->data, w, sizeof w);
    assert_int_equal((uintptr_t)t->data % 64, 0);
    assert_memory_equal(safetensors_find(&st, "\xc3\xa9")->data, "abc", 3);
    assert_true(tensor_get_f32(safetensors_find(&st, "layer.0.w")->data, DTYPE_F32, 5) == 6.0f);
    assert_int_equal(safetensors_find(&st, "scalar")->n_bytes, 2);
    safetensors_close(&st);
    assert_int_equal(safetensors_writer_open(&wr, path, NULL, 0, NULL), OK); /* no tensors at all is a file too */
    assert_int_equal(safetensors_writer_close(&wr), OK);
    assert_int_equal(safetensors_open(&st, path), OK);
    assert_int_equal(st.n_tensors, 0);
    safetensors_close(&st);
    unlink(path);
}

static void safetensors_writer_leaves_nothing_half_done(void **state) {
    static const safetensors_entry one[] = {{"w", DTYPE_F32, {1, {4096}}}},
                                   twice[] = {{"w", DTYPE_F32, {1, {1}}}, {"w", DTYPE_F32, {1, {1}}}};
    static const safetensors_entry reserved[] = {{"__metadata__", DTYPE_F32, {1, {1}}}},
                                   not_utf8[] = {{"\xff", DTYPE_U8, {0, {0}}}};
    static const safetensors_entry huge[] = {{"w", DTYPE_U8, {1, {INT64_MAX - 1}}},
                                             {"x", DTYPE_U8, {1, {INT64_MAX - 1}}}};
    static const char *const bad_metadata[] = {"k", "\xff", NULL};
    const char *path = path_of("half.safetensors");
    safetensors_writer w;
    safetensors st;
    expect_error(safetensors_writer_open(&w, path, twice, 2, NULL), ERR_INPUT, "half.safetensors|'w'|twice");
    expect_error(safetensors_writer_open(&w, path, reserved, 1, NULL), ERR_INPUT, "'__metadata__'|reserved");
    expect_error(safetensors_writer_open(&w, path, not_utf8, 1, NULL), ERR_INPUT, "half.safetensors|UTF-8");
    expect_error(safetensors_writer_open(&w, path, huge, 2, NULL), ERR_INPUT, "half.safetensors|2^62");
    expect_error(safetensors_writer_open(&w, path, one, 1, bad_metadata), ERR_INPUT, "metadata 'k'|UTF-8");
    expect_error(safetensors_writer_open(&w, "/nonexistent/w", one, 1, NULL), ERR_IO, "/nonexistent/w|No such file");
    assert_int_equal(files_in(test_dir), 0);

    /* A full disk is found when the file is reserved, and nothing stays. */
    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_IGN);
    small = (struct rlimit){.rlim_cur = 8192, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    status rc = safetensors_writer_open(&w, path, one, 1, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    expect_error(rc, ERR_IO, "half.safetensors|16|File too large");
    assert_int_equal(files_in(test_dir), 0);

    assert_int_equal(safetensors_writer_open(&w, path, one, 1, NULL), OK);
    assert_int_equal(safetensors_writer_put(&w, 0, 0, &(float){1}, 4), OK);
    safetensors_writer_abort(&w);
    safetensors_writer_abort(&w); /* harmless */
    assert_int_equal(files_in(test_dir), 0);

    /* A writer that dies leaves a file that no reader takes. */
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        static float zeros[4096];
        if (safetensors_writer_open(&w, path, one, 1, NULL) != OK) _exit(1);
        _exit(safetensors_writer_put(&w, 0, 0, zeros, sizeof zeros) != OK);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    expect_error(safetensors_open(&st, path), ERR_INPUT, "half.safetensors|length of 0|did not finish");
    unlink(path);
}

/* An open view of an old file survives the writing of its successor under the same name. */
static void safetensors_views_survive_a_rewrite(void **state) {
    static const safetensors_entry e[] = {{"w", DTYPE_I32, {1, {1}}}};
    const char *path = path_of("same.safetensors");
    safetensors_writer w;
    safetensors old;
    for (int32_t i = 1; i <= 2; i++) {
        assert_int_equal(safetensors_writer_open(&w, path, e, 1, NULL), OK);
        assert_int_equal(safetensors_writer_put(&w, 0, 0, &i, 4), OK);
        assert_int_equal(safetensors_writer_close(&w), OK);
        if (i == 1) assert_int_equal(safetensors_open(&old, path), OK);
    }
    assert_true(tensor_get_f32(old.tensors[0].data, DTYPE_I32, 0) == 1.0f);
    safetensors_close(&old);
    assert_int_equal(safetensors_open(&old, path), OK);
    assert_true(tensor_get_f32(old.tensors[0].data, DTYPE_I32, 0) == 2.0f);
    safetensors_close(&old);
    unlink(path);
}

/* ---- GGUF ---------------------------------------------------------------------------------------------------- */

/* From subnormal numbers to the largest that are allowed: no scale overflows, nothing is divided by zero, and zeros stay zeros. cli_gguf
 * reads blocks by their formulas. */
static void gguf_blocks_take_any_magnitude(void **state) {
    static const gguf_type types[] = {GGUF_TYPE_Q8_0, GGUF_TYPE_Q5_0, GGUF_TYPE_Q4_K, GGUF_TYPE_Q6_K};
    static const float most[] = {0,      1e-45f, 1e-40f, 1e-38f, 1e-33f, 1e-30f,
                                 1e-20f, 1e-8f,  1e-5f,  1,      1e3f,   0.99f * GGUF_MOST};
    enum { N = 256, SHAPES = 6 };
    for (size_t t = 0; t < ARRAY_LENGTH(types); t++)
        for (size_t m = 0; m < ARRAY_LENGTH(most); m++)
            for (int shape = 0; shape < SHAPES; shape++) {
                float x[N];
                uint8_t out[N * 2];
                uint16_t d;
                size_t bytes = gguf_row_bytes(types[t], N);
                memset(out, 0xa5, sizeof out);
                for (int i = 0; i < N; i++) {
                    float r = (float)rng_uniform(7, (uint64_t)i);
                    const float shapes[SHAPES] = {2 * r - 1, r, -r, 1, -1, i == 7};
                    x[i] = most[m] * shapes[shape];
                }
                gguf_quantize(types[t], x, N, out);
                assert_int_equal(out[bytes], 0xa5);
                memcpy(&d, out + (types[t] == GGUF_TYPE_Q6_K ? 208 : 0), sizeof d);
                assert_true((d & 0x7c00) != 0x7c00); /* finite */
                if (most[m] == 0) assert_int_equal(d & 0x7fff, 0);
                if (most[m] >= 1e-3f) assert_true((d & 0x7fff) != 0);
            }
}

static void gguf_file_can_be_read_when_it_is_whole(void **state) {
    const char *path = path_of("w.gguf");
    const float w[] = {1, 2, 3};
    char head[4];
    gguf_header h;
    gguf_writer f;
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    gguf_header_init(&h);
    gguf_add_text(&h, "general.architecture", "llama");
    assert_int_equal(gguf_add_tensor(&h, "w", GGUF_TYPE_F32, 0, 3), 0);
    assert_int_equal(gguf_writer_open(&f, fd, path, &h), OK);
    assert_int_equal(gguf_writer_put(&f, 0, 0, w, sizeof w), OK);
    assert_int_equal(pread(fd, head, sizeof head, 0), sizeof head);
    assert_memory_equal(head, "\0\0\0\0", sizeof head);
    assert_int_equal(gguf_writer_finish(&f), OK);
    assert_int_equal(pread(fd, head, sizeof head, 0), sizeof head);
    assert_memory_equal(head, "GGUF", sizeof head);
    assert_int_equal(lseek(fd, 0, SEEK_END), gguf_file_bytes(&h));
    gguf_header_fini(&h);
    close(fd);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_refuses_bad_files_with_their_place),
        cmocka_unit_test(json_members_are_checked_for_kind_and_range),
        cmocka_unit_test(json_written_is_read_back_to_the_same_bits),
        cmocka_unit_test(json_write_that_fails_keeps_the_old_file),
        cmocka_unit_test(json_writer_killed_leaves_a_whole_file),
        cmocka_unit_test(yaml_tree_keeps_order_places_and_quotes),
        cmocka_unit_test(yaml_reads_json_and_nothing),
        cmocka_unit_test(yaml_refuses_what_it_would_half_understand),
        cmocka_unit_test(yaml_bounds_depth_and_size),
        cmocka_unit_test(safetensors_reads_a_file_others_wrote),
        cmocka_unit_test(safetensors_refuses_headers_that_lie),
        cmocka_unit_test(safetensors_refuses_lengths_that_lie),
        cmocka_unit_test(safetensors_survives_any_small_damage),
        cmocka_unit_test(safetensors_written_is_read_back),
        cmocka_unit_test(safetensors_writer_leaves_nothing_half_done),
        cmocka_unit_test(safetensors_views_survive_a_rewrite),
        cmocka_unit_test(gguf_blocks_take_any_magnitude),
        cmocka_unit_test(gguf_file_can_be_read_when_it_is_whole),
    };
    return cmocka_run_group_tests(tests, test_dir_open, test_dir_close);
}
