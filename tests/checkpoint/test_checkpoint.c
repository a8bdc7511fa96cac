/* test_checkpoint.c - what is saved comes back bit for bit; what is damaged or cut is never taken. */
#define _GNU_SOURCE 1 /* RTLD_NEXT */
#include "checkpoint/seal.h"
#include "checkpoint_world.h"
#include "fake_backend.h"
#include "weightfile/weightfile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- round trip ---------------------------------------------------------------------------------------------- */

static void state_comes_back_bit_for_bit(void **state) {
    world w;
    world_init(&w, 2);
    checkpointer *c = open_or_die(&w, 0);
    train_state s = state_of(100);
    world_fill(&w, 100);
    assert_int_equal(checkpointer_save(c, w.e, &s), OK);
    world_fill(&w, 5); /* the step goes on at once: the copy is what is written */
    assert_int_equal(checkpointer_wait(c), OK);
    assert_int_equal(checkpointer_staged_bytes(c), 13000 + 26000 + 308 + 105 + 8);
    checkpointer_close(c);
    expect_loads(&w, 100);
    /* wte: 13000 bytes over 3 shards, master: 26000 over 5, the small ones in the last. */
    int n_shards = count_entries(step_path(100, ""), "tensors-");
    assert_in_range(n_shards, 8, 9);
    assert_int_equal(count_entries(step_path(100, ""), ""), n_shards + 3); /* json, ., .. */
    world_fini(&w);
}

static void without_background_nothing_is_staged(void **state) {
    world w;
    world_init(&w, 2);
    background = false;
    checkpointer *c = open_or_die(&w, 0);
    background = true;
    assert_int_equal(checkpointer_staged_bytes(c), 0);
    train_state s = state_of(7);
    world_fill(&w, 7);
    assert_int_equal(checkpointer_save(c, w.e, &s), OK);
    expect_loads(&w, 7); /* on disk when save returns, while the checkpointer is open */
    assert_int_equal(checkpointer_wait(c), OK);
    checkpointer_close(c);
    world_fini(&w);
}

static void pieces_larger_than_a_chunk_come_back(void **state) {
    enum { ROWS = 1000, COLUMNS = 2503 }; /* 5 MB of bf16: chunks that end inside rows */
    program p;
    program_init(&p);
    value_id v = program_persistent(&p, "big", DTYPE_BF16, SHAPE(ROWS, COLUMNS), ROLE_PARAM);
    fake_layout(&p);
    exec *e;
    assert_int_equal(exec_open(&e, &p, &(exec_options){.backend = fake_backend(), .n_threads = 2}), OK);
    uint16_t *numbers = mem_alloc(ROWS * COLUMNS * 2);
    for (int i = 0; i < ROWS * COLUMNS; i++) numbers[i] = (uint16_t)rng_u64(3, (uint64_t)i);
    param_share all = {0, ROWS * COLUMNS};
    checkpoint_tensor t = {"big", v, DTYPE_BF16, SHAPE(ROWS, COLUMNS), all, all, NULL};
    for (int way = 0; way < 2; way++) {
        checkpointer *c;
        checkpoint_options o = {.run_dir = run_dir, .identity = IDENTITY, .background = way == 1};
        assert_int_equal(checkpointer_open_sharded(&c, &o, &t, 1, 3 << 20), OK);
        exec_write(e, v, 0, numbers, ROWS * COLUMNS * 2);
        uint64_t before = value_hash(e, &p, v);
        train_state s = state_of(1 + way);
        assert_int_equal(checkpointer_save(c, e, &s), OK);
        memset(numbers, 0, 4096);
        exec_write(e, v, 0, numbers, ROWS * COLUMNS * 2);
        assert_int_equal(checkpointer_wait(c), OK);
        checkpointer_close(c);
        assert_int_equal(count_entries(step_path(1 + way, ""), "tensors-"), 2);
        assert_int_equal(checkpoint_load(step_path(1 + way, ""), e, &t, 1, IDENTITY, NULL, &s), OK);
        assert_true(value_hash(e, &p, v) == before);
        numbers[0] = 7; /* the second way saves other bytes */
    }
    free(numbers);
    exec_close(e);
    program_fini(&p);
}

static void one_file_holds_what_fits_in_it(void **state) {
    world w;
    world_init(&w, 1);
    checkpointer *c;
    checkpoint_options o = {.run_dir = run_dir, .identity = IDENTITY};
    assert_int_equal(checkpointer_open(&c, &o, w.tensors, N_TENSORS), OK);
    save_or_die(c, &w, 3);
    checkpointer_close(c);
    expect_loads(&w, 3);
    safetensors st; /* an ordinary safetensors file, under the tensors' own names */
    assert_int_equal(safetensors_open(&st, step_path(3, "tensors-00001-of-00001.safetensors")), OK);
    assert_int_equal(st.n_tensors, N_TENSORS);
    const safetensor *t = safetensors_find(&st, "master/wte");
    assert_true(t && t->type == DTYPE_F32 && shape_equal(&t->shape, &w.tensors[1].shape));
    safetensors_close(&st);
    world_fini(&w);
}

static void part_of_the_tensors_can_be_asked_for(void **state) {
    world w;
    world_init(&w, 2);
    save_steps(&w, 0, 1, 1);
    uint64_t bias = value_hash(w.e, &w.p, w.tensors[2].value);
    world_fill(&w, 9999);
    uint64_t others = value_hash(w.e, &w.p, w.tensors[1].value);
    train_state s;
    assert_int_equal(checkpoint_load(step_path(1, ""), w.e, &w.tensors[2], 1, IDENTITY, NULL, &s), OK);
    assert_true(value_hash(w.e, &w.p, w.tensors[2].value) == bias);
    assert_true(value_hash(w.e, &w.p, w.tensors[1].value) == others);
    world_fini(&w);
}

/* ---- refusals ------------------------------------------------------------------------------------------------ */

/* The load fails, says `what`, and the program's tensors keep every bit. */
static void expect_refusal(world *w, int64_t step, const checkpoint_tensor *tensors, size_t n, const char *identity,
                           const char *what) {
    world_fill(w, 4242);
    uint64_t before = world_hash(w);
    train_state s = {.step = -7};
    status rc = checkpoint_load(step_path(step, ""), w->e, tensors, n, identity, NULL, &s);
    if (rc != ERR_INPUT && rc != ERR_IO) fail_msg("load returned %d", rc);
    if (!strstr(error_message(), what)) fail_msg("'%s' is not in: %s", what, error_message());
    assert_true(world_hash(w) == before);
    assert_int_equal(s.step, -7);
}

static void another_model_is_refused(void **state) {
    world w;
    world_init(&w, 1);
    save_steps(&w, 0, 1, 1);
    expect_refusal(&w, 1, w.tensors, N_TENSORS, "llama 4 layers, fp32", "llama 4 layers, fp32");
    assert_non_null(strstr(error_message(), IDENTITY));
    checkpoint_tensor t = w.tensors[2];
    t.shape = SHAPE(78);
    expect_refusal(&w, 1, &t, 1, IDENTITY, "tensor 'm/bias': found fp32 (77), expected fp32 (78)");
    t = w.tensors[2];
    t.type = DTYPE_I32;
    expect_refusal(&w, 1, &t, 1, IDENTITY, "tensor 'm/bias': found fp32 (77), expected int32 (77)");
    t.name = "m/other";
    expect_refusal(&w, 1, &t, 1, IDENTITY, "'m/other' is missing");
    expect_refusal(&w, 2, w.tensors, N_TENSORS, IDENTITY, "step-00000002");
    checkpointer *c;
    checkpoint_tensor twice[2] = {w.tensors[0], w.tensors[0]};
    checkpoint_options o = {.run_dir = run_dir, .identity = IDENTITY};
    assert_int_equal(checkpointer_open(&c, &o, twice, 2), ERR_BUG);
    world_fini(&w);
}

/* ---- tasks --------------------------------------------------------------------------------------------------- */

typedef struct memo {
    int64_t count, loaded;
} memo;
static json_t *memo_save(void *context) { return json_pack("{s:I}", "count", (json_int_t)((memo *)context)->count); }
static status memo_load(void *context, const json_t *state, const char *where) {
    return json_get_int(state, "count", 0, 1000, where, &((memo *)context)->loaded);
}

static void save_of_task(world *w, const checkpoint_task *task, int64_t step, bool in_background) {
    checkpointer *c;
    train_state s = state_of(step);
    checkpoint_options o = {.run_dir = run_dir, .identity = IDENTITY, .background = in_background, .task = task};
    assert_int_equal(checkpointer_open(&c, &o, w->tensors, N_TENSORS), OK);
    assert_int_equal(checkpointer_save(c, w->e, &s), OK);
    assert_int_equal(checkpointer_wait(c), OK);
    checkpointer_close(c);
}

static status load_of_task(world *w, const checkpoint_task *task, int64_t step) {
    train_state s;
    return checkpoint_load(step_path(step, ""), w->e, w->tensors, N_TENSORS, IDENTITY, task, &s);
}

static void expect_task_refusal(world *w, const checkpoint_task *task, int64_t step, const char *what) {
    world_fill(w, 4242);
    uint64_t before = world_hash(w);
    assert_int_equal(load_of_task(w, task, step), ERR_INPUT);
    if (!strstr(error_message(), what)) fail_msg("'%s' is not in: %s", what, error_message());
    assert_true(world_hash(w) == before);
}

static void a_task_finds_what_it_remembered_and_no_other_task_does(void **state) {
    world w;
    world_init(&w, 1);
    memo m = {.count = 17};
    const checkpoint_task task = {"counting", &m, memo_save, memo_load}, plain = {"sft", NULL, NULL, NULL},
                          other = {"other", &m, memo_save, memo_load}, silent = {"counting", NULL, NULL, NULL};
    for (int64_t step = 1; step <= 2; step++) {
        save_of_task(&w, &task, step, step == 2);
        m.loaded = -1;
        assert_int_equal(load_of_task(&w, &task, step), OK);
        assert_int_equal(m.loaded, 17);
        const char *made = "was made with train.task=counting, this run has";
        expect_task_refusal(&w, NULL, step, made);
        expect_task_refusal(&w, &plain, step, made);
        expect_task_refusal(&w, &other, step, "set train.task=counting to continue it");
        expect_task_refusal(&w, &silent, step, "state: found one, expected none");
    }
    m.count = 1001; /* a number that the task refuses: no tensor has changed by then */
    save_of_task(&w, &task, 3, false);
    expect_task_refusal(&w, &task, 3, "count");
    /* The default task leaves nothing behind, whether it is named or not. */
    save_of_task(&w, &plain, 4, false);
    save_of_task(&w, NULL, 5, true);
    for (int64_t step = 4; step <= 5; step++) {
        char *text;
        size_t n_bytes;
        assert_int_equal(file_read_all(step_path(step, "checkpoint.json"), 1 << 20, &text, &n_bytes), OK);
        assert_null(strstr(text, "task"));
        free(text);
        assert_int_equal(load_of_task(&w, &plain, step), OK);
        assert_int_equal(load_of_task(&w, NULL, step), OK);
        expect_task_refusal(&w, &task, step, "was made with train.task=sft, this run has counting");
    }
    world_fini(&w);
}

/* A sealed checkpoint.json that somebody else wrote. */
static void tasks_from_elsewhere_are_checked(void **state) {
    static const char *const tasks[][2] = {
        {"7", "name"},
        {"{}", "name"},
        {"{\"name\": 3}", "name"},
        {"{\"name\": \"\"}", "name: found ''"},
        {"{\"name\": \"sft\"}", "name: found 'sft'"},
        {"{\"name\": \"0123456789012345678901234567890123456789012345678901234567890123X\"}", "1 to 64 bytes"},
        {"{\"name\": \"counting\"}", "state: found none, expected one"},
        {"{\"name\": \"counting\", \"state\": []}", "state: expected an object"},
        {"{\"name\": \"counting\", \"state\": null}", "state: expected an object"},
        {"{\"name\": \"counting\", \"state\": {\"count\": \"17\"}}", "count"},
        {"{\"name\": \"counting\", \"state\": {\"count\": 1, \"more\": \"?\"}}", "expected at most 65536"},
    };
    world w;
    world_init(&w, 1);
    memo m = {.count = 17};
    const checkpoint_task task = {"counting", &m, memo_save, memo_load};
    save_of_task(&w, &task, 1, false);
    char *long_text = mem_alloc(CHECKPOINT_TASK_BYTES + 1);
    memset(long_text, 'x', CHECKPOINT_TASK_BYTES);
    for (size_t i = 0; i < ARRAY_LENGTH(tasks); i++) {
        const char *path = step_path(1, "checkpoint.json");
        json_t *root, *found = json_loads(tasks[i][0], JSON_DECODE_ANY, NULL);
        assert_int_equal(sealed_read(path, &root), OK);
        assert_non_null(found);
        json_t *inner = json_object_get(found, "state");
        if (json_object_get(inner, "more")) json_object_set_new(inner, "more", json_string(long_text));
        json_object_del(root, "checksum");
        json_object_set_new(root, "task", found);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(sealed_write(path, root), OK);
        json_decref(root);
        expect_task_refusal(&w, &task, 1, tasks[i][1]);
    }
    free(long_text);
    world_fini(&w);
}

static void a_flipped_byte_anywhere_is_found(void **state) {
    world w;
    world_init(&w, 2);
    save_steps(&w, 0, 1, 1);
    uint64_t draw = 0;
    char dir[256];
    snprintf(dir, sizeof dir, "%s", step_path(1, ""));
    DIR *d = opendir(dir);
    assert_non_null(d);
    int n_files = 0;
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        n_files++;
        char path[512];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        assert_int_equal(stat(path, &st), 0);
        for (int k = 0; k < 40; k++) { /* the first 8 bytes, the last 8, and random places */
            off_t at = k < 8    ? k
                       : k < 16 ? st.st_size - 1 - (k - 8)
                                : (off_t)rng_below(11, draw++, (uint64_t)st.st_size);
            uint8_t mask = (uint8_t)(1 + rng_below(12, draw++, 255));
            flip(path, at, mask);
            expect_refusal(&w, 1, w.tensors, N_TENSORS, IDENTITY, e->d_name);
            flip(path, at, mask);
        }
    }
    closedir(d);
    assert_true(n_files >= 9);
    expect_loads(&w, 1); /* and mended again */
    world_fini(&w);
}

static void a_changed_blank_in_a_header_is_found(void **state) {
    world w;
    world_init(&w, 1);
    save_steps(&w, 0, 1, 1);
    int n_tried = 0;
    for (int shard = 1; shard <= 9; shard++)
        for (int n_shards = 8; n_shards <= 9; n_shards++) {
            char name[64];
            safetensors st;
            snprintf(name, sizeof name, "tensors-%05d-of-%05d.safetensors", shard, n_shards);
            if (!path_exists(step_path(1, name))) continue;
            assert_int_equal(safetensors_open(&st, step_path(1, name)), OK);
            uint64_t end = st.map_bytes;
            for (size_t i = 0; i < st.n_tensors; i++) end = MIN(end, st.tensors[i].file_offset);
            bool padded = ((const char *)st.map)[end - 1] == ' ';
            safetensors_close(&st);
            if (!padded) continue;
            n_tried++;
            flip(step_path(1, name), (off_t)end - 1, ' ' ^ '\t'); /* still the same JSON */
            expect_refusal(&w, 1, w.tensors, N_TENSORS, IDENTITY, "header");
            assert_non_null(strstr(error_message(), name));
            flip(step_path(1, name), (off_t)end - 1, ' ' ^ '\t');
        }
    assert_true(n_tried > 0);
    world_fini(&w);
}

static void damage_in_a_tensor_names_it(void **state) {
    world w;
    world_init(&w, 1);
    save_steps(&w, 0, 1, 1);
    const char *file = "tensors-00001-of-00009.safetensors";
    if (!path_exists(step_path(1, file))) file = "tensors-00001-of-00008.safetensors";
    struct stat st;
    assert_int_equal(stat(step_path(1, file), &st), 0);
    flip(step_path(1, file), st.st_size - 1, 0x80);
    expect_refusal(&w, 1, w.tensors, N_TENSORS, IDENTITY, "'param/wte'");
    assert_non_null(strstr(error_message(), file));
    assert_non_null(strstr(error_message(), "expected"));
    world_fini(&w);
}

/* checkpoint.json of a step as its writer would have sealed it with this change. */
static void reseal(int64_t step, json_t *root) {
    assert_int_equal(unlink(step_path(step, "checkpoint.json")), 0);
    json_object_del(root, "checksum");
    if (sealed_write(step_path(step, "checkpoint.json"), root) != OK) fail_msg("%s", error_message());
    json_decref(root);
}

static json_t *unsealed(int64_t step) {
    json_t *root;
    if (sealed_read(step_path(step, "checkpoint.json"), &root) != OK) fail_msg("%s", error_message());
    return root;
}

static void every_number_of_the_state_has_a_range(void **state) {
    static const struct {
        const char *group, *key, *value; /* as JSON */
    } rows[] = {
        {NULL, "step", "-1"},
        {NULL, "step", "1000000000000000000"},
        {NULL, "step", "\"1\""},
        {NULL, "updates", "-1"},
        {NULL, "updates", "2"}, /* of one step */
        {NULL, "data_row", "\"-1\""},
        {NULL, "data_row", "\"4611686018427387905\""}, /* 2^62 + 1 */
        {NULL, "data_row", "\"18446744073709551616\""},
        {NULL, "tokens", "\"18446744073709551615\""},
        {NULL, "tokens", "\" 1\""},
        {NULL, "seed", "\"18446744073709551616\""},
        {NULL, "seed", "\"1x\""},
        {NULL, "first_loss", "\"-nan\""},
        {NULL, "first_loss", "\"-1\""},
        {NULL, "last_loss", "\"none\""},
        {"scaler", "scale", "-1"},
        {"scaler", "scale", "0"},
        {"scaler", "scale", "1e300"},
        {"scaler", "scale", "\"nan\""},
        {"scaler", "scale", "\"inf\""},
        {"scaler", "clean_steps", "-1"},
        {"scaler", "hysteresis_left", "-1"},
        {"scaler", "hysteresis_left", "9223372036854775807"},
        {"best", "metric", "\"\""},
        {"best", "metric", "\"val/reward\\n\""},
        {"best", "metric", "\"val/a-name-of-many-many-many-many-many-many-many-many-many-letters\""},
        {"best", "metric", "1"},
        {"best", "value", "\"nan\""},
        {"best", "step", "-1"},
        {"patience", "metric", "\"val loss\""},
        {"patience", "value", "\"nan\""},
        {"patience", "step", "-1"},
        {"patience", "worse", "-1"},
        {"patience", "evaluated", "1e3"},
    };
    world w;
    world_init(&w, 1);
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
        save_steps(&w, 0, 1, 1);
        json_t *root = unsealed(1), *object = json_object_get(root, "state");
        if (rows[i].group) object = json_object_get(object, rows[i].group);
        assert_non_null(json_object_get(object, rows[i].key));
        json_object_set_new(object, rows[i].key, json_loads(rows[i].value, JSON_DECODE_ANY, NULL));
        reseal(1, root);
        expect_refusal(&w, 1, w.tensors, N_TENSORS, IDENTITY, rows[i].key);
    }
    world_fini(&w);
}

/* A sealed checkpoint.json may still describe a piece wrongly: no element is read from elsewhere, twice, or not at all. */
static void pieces_cover_their_tensor_in_order(void **state) {
    static const struct {
        const char *tensor, *change, *refusal; /* the change to its piece, as JSON; NULL: loads */
    } rows[] = {
        {"m/bias", "{'of': [77], 'dim': 0, 'slices': [[0, 0, 40], [40, 40, 37]]}",
         NULL}, /* [in the piece, in the tensor, n] */
        {"m/bias", "{'of': [77], 'dim': 0, 'slices': [[40, 0, 37], [0, 37, 40]]}", "not part of the tensor"},
        {"m/bias", "{'of': [77], 'dim': 0, 'slices': [[0, 0, 40], [40, 39, 37]]}", "not part of the tensor"},
        {"m/bias", "{'of': [77], 'dim': 0, 'slices': [[0, 0, 78]]}", "not part of the tensor"},
        {"m/bias", "{'of': [77], 'dim': 0, 'slices': [[0, 1, 77]]}", "not part of the tensor"},
        {"m/bias", "{'of': [77], 'dim': 1, 'slices': [[0, 0, 77]]}", "not part of the tensor"},
        {"m/bias", "{'of': [77], 'dim': 0, 'slices': [[0, 0, 40], [40, 41, 36]]}",
         "elements 0 to 40 and then leave a gap"},
        {"m/bias", "{'elements': [1, 77]}", "elements 0 to 0 and then leave a gap"},
        {"m/bias", "{'elements': [0]}", "'elements' has 1 numbers"},
        {"m/bias", "{'elements': [0, 76]}", "found fp32 (77), expected fp32 (76)"},
        {"param/bytes", "{'start': [1, 0, 0]}", "elements 0 to 0 and then leave a gap"},
        {"param/bytes", "{'start': [0, 1, 0]}", "cut along the first dimension"},
        {"param/bytes", "{'start': [-1, 0, 0]}", "'start' holds an entry that is not a count"},
    };
    world w;
    world_init(&w, 1);
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
        save_steps(&w, 0, 1, 1);
        json_t *root = unsealed(1), *tensor = json_object_get(json_object_get(root, "tensors"), rows[i].tensor);
        json_t *pieces = json_object_get(tensor, "pieces"), *change;
        char text[96];
        assert_int_equal(json_array_size(pieces), 1);
        snprintf(text, sizeof text, "%s", rows[i].change);
        for (char *c = text; *c; c++)
            if (*c == '\'') *c = '"';
        assert_non_null(change = json_loads(text, 0, NULL));
        json_object_update(json_array_get(pieces, 0), change);
        json_decref(change);
        reseal(1, root);
        if (rows[i].refusal) expect_refusal(&w, 1, w.tensors, N_TENSORS, IDENTITY, rows[i].refusal);
        else expect_loads(&w, 1);
    }
    world_fini(&w);
}

static void a_file_that_is_listed_often_is_opened_once_at_most(void **state) {
    world w;
    world_init(&w, 1);
    save_steps(&w, 0, 1, 1);
    json_t *root = unsealed(1), *files = json_object_get(root, "files");
    json_t *again = json_deep_copy(json_array_get(files, 0));
    for (int i = 0; i < 100000; i++) json_array_append(files, again);
    json_decref(again);
    reseal(1, root);
    uint64_t before = sys_rss_peak_bytes();
    expect_refusal(&w, 1, w.tensors, N_TENSORS, IDENTITY, "found 100");
    root = unsealed(1);
    files = json_object_get(root, "files");
    while (json_array_size(files) > 40000) json_array_remove(files, json_array_size(files) - 1);
    reseal(1, root);
    expect_refusal(&w, 1, w.tensors, N_TENSORS, IDENTITY, "listed twice");
    assert_in_range(sys_rss_peak_bytes() - before, 0,
                    (uint64_t)1 << 30); /* the JSON itself; the files took 50 KB each */
    world_fini(&w);
}

static void newest_whole_one_is_found(void **state) {
    world w;
    world_init(&w, 1);
    assert_int_equal(newest_step(), 0); /* not even a directory */
    save_steps(&w, 0, 1, 4);
    assert_int_equal(newest_step(), 4);
    flip(step_path(4, "checkpoint.json"), 100, 1);
    assert_int_equal(newest_step(), 3);
    struct stat st;
    const char *shard = path_exists(step_path(3, "tensors-00002-of-00008.safetensors"))
                            ? "tensors-00002-of-00008.safetensors"
                            : "tensors-00002-of-00009.safetensors";
    assert_int_equal(stat(step_path(3, shard), &st), 0);
    assert_int_equal(truncate(step_path(3, shard), st.st_size - 1), 0);
    expect_refusal(&w, 3, w.tensors, N_TENSORS, IDENTITY, shard); /* cut short by one byte */
    assert_int_equal(newest_step(), 2);
    assert_int_equal(unlink(step_path(2, shard)), 0);
    expect_refusal(&w, 2, w.tensors, N_TENSORS, IDENTITY, shard);
    assert_int_equal(newest_step(), 1);
    assert_int_equal(truncate(step_path(1, "checkpoint.json"), 0), 0);
    assert_int_equal(newest_step(), 0);
    save_steps(&w, 0, 1, 2);
    assert_int_equal(stat(step_path(2, shard), &st), 0);
    assert_int_equal(truncate(step_path(2, shard), st.st_size + 1), 0); /* a file that has grown */
    expect_refusal(&w, 2, w.tensors, N_TENSORS, IDENTITY, "bytes, expected");
    assert_int_equal(newest_step(), 1);
    char tiny[8];
    save_steps(&w, 0, 5, 5);
    assert_int_equal(checkpoint_find_newest(run_dir, tiny, sizeof tiny), ERR_BUG);
    world_fini(&w);
}

/* A resumed run would skip the steps in between, and an export would report the wrong step. */
static void a_renamed_one_is_refused_by_its_name(void **state) {
    world w;
    checkpoint_reader *r;
    checkpoint_survey found;
    char from[256], what[] = "is named as step 6 and holds step 4: it was renamed";
    world_init(&w, 1);
    save_steps(&w, 0, 3, 4);
    snprintf(from, sizeof from, "%s", step_path(4, ""));
    assert_int_equal(rename(from, step_path(6, "")), 0);
    expect_refusal(&w, 6, w.tensors, N_TENSORS, IDENTITY, what);
    assert_int_equal(checkpoint_reader_open(&r, step_path(6, "")), ERR_INPUT);
    assert_non_null(strstr(error_message(), what));
    assert_int_equal(newest_step(), 3);
    assert_int_equal(checkpoint_survey_make(&found, run_dir), OK);
    assert_int_equal(found.n_broken, 1);
    /* A copy under a name of its own says nothing about steps. */
    snprintf(from, sizeof from, "%s/copy", run_dir);
    assert_int_equal(rename(step_path(6, ""), from), 0);
    if (checkpoint_reader_open(&r, from) != OK) fail_msg("%s", error_message());
    assert_int_equal(checkpoint_reader_step(r), 4);
    checkpoint_reader_close(r);
    world_fini(&w);
}

/* ---- what is on disk when -------------------------------------------------------------------------------------------- */

/* In the place of libc's for all of this program: which files and directories were flushed, and renamed, in order. */
static char disk_log[1 << 14];
static bool disk_logged;
static void log_disk(const char *what, const char *path) {
    size_t n = strlen(disk_log);
    if (disk_logged) snprintf(disk_log + n, sizeof disk_log - n, "%s %s\n", what, strrchr(path, '/') + 1);
}

int fsync(int fd) {
    int (*next)(int);
    char link[64], path[4096];
    *(void **)&next = dlsym(RTLD_NEXT, "fsync");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[MAX(n, 0)] = 0;
    if (n > 0) log_disk("flush", path);
    return next(fd);
}

int rename(const char *from, const char *to) {
    int (*next)(const char *, const char *);
    *(void **)&next = dlsym(RTLD_NEXT, "rename");
    int rc = next(from, to);
    if (rc == 0) log_disk("rename to", to);
    return rc;
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    int (*next)(int, const char *, int, const char *, unsigned);
    *(void **)&next = dlsym(RTLD_NEXT, "renameat2");
    int rc = next(from_dir, from, to_dir, to, flags);
    if (rc == 0) log_disk("rename to", to);
    return rc;
}

/* line: where to begin; the place behind `what`, which is a whole line there. */
static const char *logged_after(const char *line, const char *what) {
    char whole[256];
    snprintf(whole, sizeof whole, "%s\n", what);
    const char *at = strstr(line, whole);
    if (!at) fail_msg("'%s' does not come where it should in:\n%s", what, disk_log);
    return at + strlen(whole);
}

/* A power cut at any moment: the name is not on disk before what it names is, and nothing older goes before the name
 * is. */
static void files_are_on_disk_before_the_name_and_the_name_before_older_ones_go(void **state) {
    world w;
    world_init(&w, 1);
    save_steps(&w, 1, 1, 1);
    for (int again = 0; again < 2; again++) { /* the second time in the place of one of this name */
        disk_log[0] = 0;
        disk_logged = true;
        save_steps(&w, 1, 2, 2);
        disk_logged = false;
        const char *at = disk_log;
        for (int shard = 1, n = count_entries(step_path(2, ""), "tensors-"); shard <= n; shard++) {
            char file[64];
            snprintf(file, sizeof file, "flush tensors-%05d-of-%05d.safetensors", shard, n);
            at = logged_after(at, file);
        }
        at = logged_after(at, "flush checkpoint.json");
        at = logged_after(at, "flush .tmp-step-00000002");
        at = logged_after(at, "rename to step-00000002");
        at = logged_after(at, "flush checkpoints");
        if (!again) logged_after(at, "rename to .tmp-old-step-00000001");
    }
    world_fini(&w);
}

/* In the place of libc's for all of this program: a drive that gives back no more of a directory. */
static bool directories_fail;
struct dirent *readdir(DIR *d) {
    struct dirent *(*next)(DIR *);
    *(void **)&next = dlsym(RTLD_NEXT, "readdir");
    if (!directories_fail) return next(d);
    errno = EIO;
    return NULL;
}

/* A run that takes it for an empty one begins anew. */
static void a_directory_that_cannot_be_read_is_not_empty(void **state) {
    world w;
    checkpointer *c;
    checkpoint_options o = {.run_dir = run_dir, .identity = IDENTITY};
    checkpoint_survey found;
    char path[256];
    world_init(&w, 1);
    save_steps(&w, 0, 1, 2);
    directories_fail = true;
    status newest = checkpoint_find_newest(run_dir, path, sizeof path),
           survey = checkpoint_survey_make(&found, run_dir);
    status opened = checkpointer_open(&c, &o, w.tensors, N_TENSORS);
    directories_fail = false;
    assert_int_equal(newest, ERR_IO);
    assert_int_equal(survey, ERR_IO);
    assert_int_equal(opened, ERR_IO);
    assert_non_null(strstr(error_message(), run_dir));
    assert_int_equal(newest_step(), 2);
    world_fini(&w);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_run_dir, remove_run_dir)
int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(state_comes_back_bit_for_bit),
        TEST(without_background_nothing_is_staged),
        TEST(pieces_larger_than_a_chunk_come_back),
        TEST(one_file_holds_what_fits_in_it),
        TEST(part_of_the_tensors_can_be_asked_for),
        TEST(another_model_is_refused),
        TEST(a_task_finds_what_it_remembered_and_no_other_task_does),
        TEST(tasks_from_elsewhere_are_checked),
        TEST(a_flipped_byte_anywhere_is_found),
        TEST(a_changed_blank_in_a_header_is_found),
        TEST(damage_in_a_tensor_names_it),
        TEST(every_number_of_the_state_has_a_range),
        TEST(pieces_cover_their_tensor_in_order),
        TEST(a_file_that_is_listed_often_is_opened_once_at_most),
        TEST(newest_whole_one_is_found),
        TEST(a_renamed_one_is_refused_by_its_name),
        TEST(files_are_on_disk_before_the_name_and_the_name_before_older_ones_go),
        TEST(a_directory_that_cannot_be_read_is_not_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
