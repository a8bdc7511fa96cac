/* test_checkpoint.c - what is saved comes back bit for bit; what is damaged, cut or half written is never taken. */
#define _GNU_SOURCE 1 /* unshare, RTLD_NEXT */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "fake_backend.h"
#include "checkpoint/directory.h"
#include "checkpoint/seal.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <xxhash.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N_TENSORS = 6, SHARD_BYTES = 6000 };
#define IDENTITY "gpt2 2 layers, bf16 \"mixed\""

static char run_dir[64]; /* a fresh one per test */

/* A big tensor that must be cut over shards, odd sizes, a scalar, an empty one. */
typedef struct world {
    program p;
    checkpoint_tensor tensors[N_TENSORS];
    exec *e;
} world;

static void world_init(world *w, int n_threads) {
    static const struct {
        const char *name;
        dtype type;
        shape shape;
    } rows[N_TENSORS] = {
        {"param/wte", DTYPE_BF16, {2, {65, 100}}},
        {"master/wte", DTYPE_F32, {2, {65, 100}}},
        {"m/bias", DTYPE_F32, {1, {77}}},
        {"param/bytes", DTYPE_U8, {3, {3, 5, 7}}},
        {"scalar", DTYPE_F64, {0}},
        {"empty", DTYPE_F32, {2, {0, 8}}},
    };
    program_init(&w->p);
    for (int i = 0; i < N_TENSORS; i++) {
        value_id v = program_persistent(&w->p, rows[i].name, rows[i].type, rows[i].shape, ROLE_STATE);
        param_share all = {0, shape_count(&rows[i].shape)};
        w->tensors[i] = (checkpoint_tensor){rows[i].name, v, rows[i].type, rows[i].shape, all, all, NULL};
    }
    fake_layout(&w->p);
    if (exec_open(&w->e, &w->p, &(exec_options){.backend = fake_backend(), .n_threads = n_threads}) != OK) abort();
}

static void world_fini(world *w) {
    exec_close(w->e);
    program_fini(&w->p);
}

/* Bytes that depend on tensor, position and key. */
static void world_fill(world *w, uint64_t key) {
    for (int i = 0; i < N_TENSORS; i++) {
        size_t n = shape_bytes(&w->tensors[i].shape, w->tensors[i].type);
        uint8_t *bytes = mem_alloc(n + 8);
        for (size_t k = 0; k < n; k += 8) {
            uint64_t word = rng_u64(key * 100 + (uint64_t)i, k);
            memcpy(bytes + k, &word, 8);
        }
        exec_write(w->e, w->tensors[i].value, 0, bytes, n);
        free(bytes);
    }
}

static uint64_t value_hash(exec *e, const program *p, value_id v) {
    size_t n_bytes = value_bytes(program_get(p, v));
    uint8_t *bytes = mem_alloc(n_bytes);
    exec_read(e, v, 0, bytes, n_bytes);
    uint64_t hash = XXH3_64bits(bytes, n_bytes);
    free(bytes);
    return hash;
}

static uint64_t world_hash(world *w) {
    uint64_t h = 0;
    for (int i = 0; i < N_TENSORS; i++) h = h * 0x9e3779b97f4a7c15u + value_hash(w->e, &w->p, w->tensors[i].value);
    return h;
}

static train_state state_of(int64_t step) {
    return (train_state){.step = step,
                         .updates = step - 1,
                         .data_row = (UINT64_C(1) << 62) - 1,
                         .tokens = 123456789012345u + (uint64_t)step,
                         .scaler = {.scale = 65536.0, .clean_steps = 17, .hysteresis_left = 2},
                         .first_loss = 0.1 + 0.2,
                         .last_loss = NAN,
                         .seed = 0xffffffffffffffffu};
}

static bool background = true; /* of the checkpointers that open_or_die opens */

static checkpointer *open_or_die(world *w, int64_t keep) {
    checkpointer *c;
    checkpoint_options o = {.run_dir = run_dir, .keep = keep, .identity = IDENTITY, .background = background};
    if (checkpointer_open_sharded(&c, &o, w->tensors, N_TENSORS, SHARD_BYTES) != OK) fail_msg("%s", error_message());
    return c;
}

static void save_or_die(checkpointer *c, world *w, int64_t step) {
    train_state s = state_of(step);
    world_fill(w, (uint64_t)step);
    if (checkpointer_save(c, w->e, &s) != OK) fail_msg("%s", error_message());
    if (checkpointer_wait(c) != OK) fail_msg("%s", error_message());
}

static void save_steps(world *w, int64_t keep, int64_t first, int64_t last) {
    checkpointer *c = open_or_die(w, keep);
    for (int64_t step = first; step <= last; step++) save_or_die(c, w, step);
    checkpointer_close(c);
}

static char *step_path(int64_t step, const char *file) { /* one at a time */
    static char path[256];
    snprintf(path, sizeof path, "%s/checkpoints/step-%08lld%s%s", run_dir, (long long)step, *file ? "/" : "", file);
    return path;
}

static bool exists(const char *path) { return access(path, F_OK) == 0; }

static int count_entries(const char *dir, const char *prefix) {
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) n += str_starts_with(e->d_name, prefix);
    closedir(d);
    return n;
}

static int count_in_run(const char *prefix) {
    char dir[128];
    snprintf(dir, sizeof dir, "%s/checkpoints", run_dir);
    return count_entries(dir, prefix);
}

static int64_t newest_step(void) { /* 0: none */
    char path[256];
    if (checkpoint_find_newest(run_dir, path, sizeof path) != OK) fail_msg("%s", error_message());
    return path[0] ? strtoll(strrchr(path, '-') + 1, NULL, 10) : 0;
}

static int make_run_dir(void **state) {
    snprintf(run_dir, sizeof run_dir, "/tmp/ralo-test-checkpoint-XXXXXX");
    log_set_level(LOG_ERROR); /* warnings are expected here */
    return mkdtemp(run_dir) ? 0 : 1;
}

static int remove_run_dir(void **state) { return dir_remove_all(run_dir) == OK ? 0 : 1; }

/* ---- round trip ---------------------------------------------------------------------------------------------- */

static void expect_loads(world *w, int64_t step) {
    world_fill(w, (uint64_t)step);
    uint64_t expected = world_hash(w);
    world_fill(w, 9999);
    train_state s = {0};
    if (checkpoint_load(step_path(step, ""), w->e, w->tensors, N_TENSORS, IDENTITY, &s) != OK)
        fail_msg("%s", error_message());
    assert_true(world_hash(w) == expected);
    train_state want = state_of(step);
    assert_true(s.step == want.step && s.updates == want.updates);
    assert_true(s.data_row == want.data_row && s.tokens == want.tokens && s.seed == want.seed);
    assert_true(s.first_loss == want.first_loss && isnan(s.last_loss));
    assert_true(s.scaler.scale == want.scaler.scale && s.scaler.clean_steps == 17 && s.scaler.hysteresis_left == 2);
}

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
        assert_int_equal(checkpoint_load(step_path(1 + way, ""), e, &t, 1, IDENTITY, &s), OK);
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
    assert_int_equal(checkpoint_load(step_path(1, ""), w.e, &w.tensors[2], 1, IDENTITY, &s), OK);
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
    status rc = checkpoint_load(step_path(step, ""), w->e, tensors, n, identity, &s);
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

static void flip(const char *path, off_t at, uint8_t mask) {
    uint8_t byte;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= mask;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
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
            if (!exists(step_path(1, name))) continue;
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
    if (!exists(step_path(1, file))) file = "tensors-00001-of-00008.safetensors";
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
        {NULL, "first_loss", "-2.5"},
        {NULL, "first_loss", "\"-inf\""},
        {NULL, "last_loss", "\"none\""},
        {"scaler", "scale", "-1"},
        {"scaler", "scale", "0"},
        {"scaler", "scale", "1e300"},
        {"scaler", "scale", "\"nan\""},
        {"scaler", "scale", "\"inf\""},
        {"scaler", "clean_steps", "-1"},
        {"scaler", "hysteresis_left", "-1"},
        {"scaler", "hysteresis_left", "9223372036854775807"},
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
    const char *shard = exists(step_path(3, "tensors-00002-of-00008.safetensors"))
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
    char tiny[8];
    save_steps(&w, 0, 5, 5);
    assert_int_equal(checkpoint_find_newest(run_dir, tiny, sizeof tiny), ERR_BUG);
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

/* ---- keep, replace, leftovers -------------------------------------------------------------------------------- */

static void only_the_newest_are_kept(void **state) {
    world w;
    world_init(&w, 1);
    save_steps(&w, 2, 1, 5);
    assert_int_equal(count_in_run("step-"), 2);
    assert_int_equal(count_in_run(".tmp"), 0);
    expect_loads(&w, 4);
    expect_loads(&w, 5);
    save_steps(&w, 0, 6, 7); /* 0 keeps all */
    assert_int_equal(count_in_run("step-"), 4);
    save_steps(&w, 1, 6, 6); /* what was just written is never the one that goes, and later steps are not touched */
    assert_int_equal(count_in_run("step-"), 2);
    expect_loads(&w, 6);
    expect_loads(&w, 7);
    world_fini(&w);
}

static void one_that_is_not_whole_is_not_counted(void **state) {
    world w;
    checkpoint_survey found;
    world_init(&w, 1);
    save_steps(&w, 0, 1, 4);
    flip(step_path(4, "checkpoint.json"), 100, 1);
    flip(step_path(2, "checkpoint.json"), 100, 1);
    if (checkpoint_survey_make(&found, run_dir) != OK) fail_msg("%s", error_message());
    assert_int_equal(found.n, 2);
    assert_int_equal(found.newest, 3);
    save_steps(&w, 2, 5, 5); /* keeps 5 and 3; 4 may be looked at, 2 and 1 are older than what is kept */
    expect_loads(&w, 5);
    expect_loads(&w, 3);
    assert_true(exists(step_path(4, "")));
    assert_int_equal(count_in_run("step-"), 3);
    save_steps(&w, 2, 6, 6);
    expect_loads(&w, 5);
    expect_loads(&w, 6);
    assert_int_equal(count_in_run("step-"), 2);
    world_fini(&w);
}

static void saving_a_step_again_replaces_it(void **state) {
    world w;
    world_init(&w, 1);
    save_steps(&w, 1, 5, 5);
    flip(step_path(5, "checkpoint.json"), 50, 1); /* the reason why a run comes by here again */
    assert_int_equal(newest_step(), 0);
    save_steps(&w, 1, 5, 5);
    expect_loads(&w, 5);
    assert_int_equal(count_in_run(".tmp"), 0);

    /* File systems that cannot swap two names. */
    char dir[128], path[256];
    snprintf(dir, sizeof dir, "%s/checkpoints", run_dir);
    snprintf(path, sizeof path, "%s/.tmp-x", dir);
    assert_int_equal(rename(step_path(5, ""), path), 0);
    save_steps(&w, 0, 6, 6); /* its open removes .tmp-x */
    assert_false(exists(path));
    assert_int_equal(rename(step_path(6, ""), path), 0);
    assert_int_equal(dir_make(step_path(6, "full")), OK);
    assert_int_equal(checkpoint_publish(dir, ".tmp-x", "step-00000006", false), OK);
    expect_loads(&w, 6);
    assert_int_equal(count_in_run(".old"), 0);
    assert_int_equal(count_in_run(".tmp"), 0);
    /* Killed between the two renames: the old one is brought back. */
    snprintf(path, sizeof path, "%s/.old-step-00000006", dir);
    assert_int_equal(rename(step_path(6, ""), path), 0);
    assert_int_equal(newest_step(), 0);
    checkpointer_close(open_or_die(&w, 0));
    expect_loads(&w, 6);
    world_fini(&w);
}

static void a_directory_has_one_writer(void **state) {
    world w;
    world_init(&w, 1);
    checkpointer *first = open_or_die(&w, 0), *second;
    checkpoint_options o = {.run_dir = run_dir, .identity = IDENTITY};
    assert_int_equal(checkpointer_open(&second, &o, w.tensors, N_TENSORS), ERR_INPUT);
    assert_null(second);
    assert_non_null(strstr(error_message(), "another running"));
    checkpointer_close(first);
    checkpointer_close(open_or_die(&w, 0));
    /* Who begins a run and had looked before the other one saved looks again, once nobody else writes. */
    save_steps(&w, 0, 3, 3);
    o.fresh = true;
    assert_int_equal(checkpointer_open(&second, &o, w.tensors, N_TENSORS), ERR_INPUT);
    assert_null(second);
    assert_non_null(strstr(error_message(), "step-00000003"));
    o.fresh = false;
    assert_int_equal(checkpointer_open(&second, &o, w.tensors, N_TENSORS), OK);
    checkpointer_close(second);
    world_fini(&w);
}

/* ---- killed writers, full disks ------------------------------------------------------------------------------ */

/* Saves step after step from where the directory stands until it is killed. */
static void save_forever(int ready) {
    world w;
    world_init(&w, 1);
    checkpointer *c = open_or_die(&w, 2);
    int64_t step = newest_step() + 1;
    if (write(ready, "", 1) != 1) _exit(1);
    for (;; step++) {
        world_fill(&w, (uint64_t)step);
        train_state s = state_of(step);
        if (checkpointer_save(c, w.e, &s) != OK) _exit(1);
    }
}

static void a_killed_writer_loses_nothing(void **state) {
    world w;
    int64_t last = 0, n_leftovers = 0;
    for (int round = 0; round < 12; round++) {
        int ready[2];
        assert_int_equal(pipe(ready), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) save_forever(ready[1]);
        char byte;
        close(ready[1]);
        assert_int_equal(read(ready[0], &byte, 1), 1);
        close(ready[0]);
        if (round == 0)
            while (newest_step() == 0) usleep(1000);
        if (round % 2 == 0) usleep((useconds_t)rng_below(21, (uint64_t)round, 60000));
        else /* at a moment when a directory is half written, however slow the machine */
            for (int i = 0; i < 20000 && count_in_run(".tmp") == 0; i++) usleep(200);
        kill(child, SIGKILL);
        int how;
        waitpid(child, &how, 0);
        assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
        n_leftovers += count_in_run(".tmp");
        int64_t step = newest_step();
        assert_true(step >= last && step > 0); /* what was once whole stays, or a newer one is */
        last = step;
        world_init(&w, 1); /* threads come after the fork */
        expect_loads(&w, step);
        world_fini(&w);
    }
    assert_true(n_leftovers > 0); /* else the kills never came in the middle, and this test proved nothing */
    world_init(&w, 1);
    checkpointer_close(open_or_die(&w, 2));
    assert_int_equal(count_in_run(".tmp"), 0);
    expect_loads(&w, last);
    world_fini(&w);
}

#define CHECK(cond)                                                                  \
    do {                                                                             \
        if (!(cond)) {                                                               \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #cond, error_message()); \
            _exit(1);                                                                \
        }                                                                            \
    } while (0)

/* The error comes with the next call, the temporary directory is gone, the checkpoint before is whole, and when there
 * is room again saving works again. */
static void expect_recovery(void (*fill_disk)(void), void (*free_disk)(void), const char *reason) {
    world w;
    world_init(&w, 1);
    checkpointer *c = open_or_die(&w, 1);
    save_or_die(c, &w, 1);
    train_state s = state_of(2);
    fill_disk();
    CHECK(checkpointer_save(c, w.e, &s) == OK); /* only copied so far */
    CHECK(checkpointer_wait(c) == ERR_IO);
    CHECK(strstr(error_message(), "step 2") && strstr(error_message(), reason));
    CHECK(count_in_run(".tmp") == 0);
    CHECK(newest_step() == 1);
    expect_loads(&w, 1);
    CHECK(checkpointer_wait(c) == OK); /* said once */
    CHECK(checkpointer_save(c, w.e, &s) == OK);
    CHECK(checkpointer_save(c, w.e, &s) == ERR_IO); /* the next save hears of it too */
    free_disk();
    save_or_die(c, &w, 3);
    expect_loads(&w, 3);
    CHECK(count_in_run("step-") == 1);
    checkpointer_close(c);

    background = false; /* at once: save itself says so */
    c = open_or_die(&w, 1);
    fill_disk();
    s.step = 4;
    CHECK(checkpointer_save(c, w.e, &s) == ERR_IO);
    CHECK(strstr(error_message(), "step 4") && strstr(error_message(), reason));
    CHECK(count_in_run(".tmp") == 0);
    free_disk();
    save_or_die(c, &w, 5);
    checkpointer_close(c);
    world_fini(&w);
}

static void limit_files(void) { setrlimit(RLIMIT_FSIZE, &(struct rlimit){3000, RLIM_INFINITY}); }
static void unlimit_files(void) { setrlimit(RLIMIT_FSIZE, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY}); }

static void a_failed_write_is_reported_and_cleaned_up(void **state) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGXFSZ, SIG_IGN);
        expect_recovery(limit_files, unlimit_files, strerror(EFBIG));
        _exit(0);
    }
    int how;
    waitpid(child, &how, 0);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
}

static void fill_disk(void) {
    char path[128], block[4096] = {0};
    snprintf(path, sizeof path, "%s/ballast", run_dir);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    while (write(fd, block, sizeof block) > 0) {}
    close(fd);
}

static void free_disk(void) {
    char path[128];
    snprintf(path, sizeof path, "%s/ballast", run_dir);
    unlink(path);
}

static void a_full_disk_is_reported_and_cleaned_up(void **state) {
    enum { NO_MOUNT = 77 };
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) { /* a small file system of its own, seen by this process only */
        if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) _exit(NO_MOUNT);
        if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) _exit(NO_MOUNT);
        if (mount("tmpfs", run_dir, "tmpfs", 0, "size=512k") != 0) _exit(NO_MOUNT);
        expect_recovery(fill_disk, free_disk, strerror(ENOSPC));
        _exit(0);
    }
    int how;
    waitpid(child, &how, 0);
    assert_true(WIFEXITED(how));
    if (WEXITSTATUS(how) == NO_MOUNT) {
        print_message("needs the right to mount a tmpfs\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(how), 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_run_dir, remove_run_dir)
int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_killed_writer_loses_nothing), /* those that fork come first, before any thread */
        TEST(a_failed_write_is_reported_and_cleaned_up),
        TEST(a_full_disk_is_reported_and_cleaned_up),
        TEST(state_comes_back_bit_for_bit),
        TEST(without_background_nothing_is_staged),
        TEST(pieces_larger_than_a_chunk_come_back),
        TEST(one_file_holds_what_fits_in_it),
        TEST(part_of_the_tensors_can_be_asked_for),
        TEST(another_model_is_refused),
        TEST(a_flipped_byte_anywhere_is_found),
        TEST(a_changed_blank_in_a_header_is_found),
        TEST(damage_in_a_tensor_names_it),
        TEST(every_number_of_the_state_has_a_range),
        TEST(a_file_that_is_listed_often_is_opened_once_at_most),
        TEST(newest_whole_one_is_found),
        TEST(a_directory_that_cannot_be_read_is_not_empty),
        TEST(only_the_newest_are_kept),
        TEST(one_that_is_not_whole_is_not_counted),
        TEST(saving_a_step_again_replaces_it),
        TEST(a_directory_has_one_writer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
