/* checkpoint_world.c - see checkpoint_world.h. */
#include "checkpoint_world.h"
#include "fake_backend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>
#include <xxhash.h>

char run_dir[64];
bool background = true;

void world_init(world *w, int n_threads) {
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

void world_fini(world *w) {
    exec_close(w->e);
    program_fini(&w->p);
}

void world_fill(world *w, uint64_t key) {
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

uint64_t value_hash(exec *e, const program *p, value_id v) {
    size_t n_bytes = value_bytes(program_get(p, v));
    uint8_t *bytes = mem_alloc(n_bytes);
    exec_read(e, v, 0, bytes, n_bytes);
    uint64_t hash = XXH3_64bits(bytes, n_bytes);
    free(bytes);
    return hash;
}

uint64_t world_hash(world *w) {
    uint64_t h = 0;
    for (int i = 0; i < N_TENSORS; i++) h = h * 0x9e3779b97f4a7c15u + value_hash(w->e, &w->p, w->tensors[i].value);
    return h;
}

train_state state_of(int64_t step) {
    return (train_state){.step = step,
                         .updates = step - 1,
                         .data_row = (UINT64_C(1) << 62) - 1,
                         .tokens = 123456789012345u + (uint64_t)step,
                         .scaler = {.scale = 65536.0, .clean_steps = 17, .hysteresis_left = 2},
                         .first_loss = 0.1 + 0.2,
                         .last_loss = NAN,
                         .seed = 0xffffffffffffffffu,
                         .best = {.metric = "val/reward", .value = -0.1, .step = step / 2},
                         .patience = {"val/loss", 0.3, step / 2, 3, step}};
}

checkpointer *open_or_die(world *w, int64_t keep) {
    checkpointer *c;
    checkpoint_options o = {.run_dir = run_dir, .keep = keep, .identity = IDENTITY, .background = background};
    if (checkpointer_open_sharded(&c, &o, w->tensors, N_TENSORS, SHARD_BYTES) != OK) fail_msg("%s", error_message());
    return c;
}

void save_or_die(checkpointer *c, world *w, int64_t step) {
    train_state s = state_of(step);
    world_fill(w, (uint64_t)step);
    if (checkpointer_save(c, w->e, &s) != OK) fail_msg("%s", error_message());
    if (checkpointer_wait(c) != OK) fail_msg("%s", error_message());
}

void save_steps(world *w, int64_t keep, int64_t first, int64_t last) {
    checkpointer *c = open_or_die(w, keep);
    for (int64_t step = first; step <= last; step++) save_or_die(c, w, step);
    checkpointer_close(c);
}

char *step_path(int64_t step, const char *file) {
    static char path[256];
    snprintf(path, sizeof path, "%s/checkpoints/step-%08lld%s%s", run_dir, (long long)step, *file ? "/" : "", file);
    return path;
}

bool path_exists(const char *path) { return access(path, F_OK) == 0; }

int count_entries(const char *dir, const char *prefix) {
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) n += str_starts_with(e->d_name, prefix);
    closedir(d);
    return n;
}

int count_in_run(const char *prefix) {
    char dir[128];
    snprintf(dir, sizeof dir, "%s/checkpoints", run_dir);
    return count_entries(dir, prefix);
}

int64_t newest_step(void) {
    char path[256];
    if (checkpoint_find_newest(run_dir, path, sizeof path) != OK) fail_msg("%s", error_message());
    return path[0] ? strtoll(strrchr(path, '-') + 1, NULL, 10) : 0;
}

int make_run_dir(void **state) {
    snprintf(run_dir, sizeof run_dir, "/tmp/ralo-test-checkpoint-XXXXXX");
    log_set_level(LOG_ERROR); /* warnings are expected here */
    return mkdtemp(run_dir) ? 0 : 1;
}

int remove_run_dir(void **state) { return dir_remove_all(run_dir) == OK ? 0 : 1; }

void expect_loads(world *w, int64_t step) {
    world_fill(w, (uint64_t)step);
    uint64_t expected = world_hash(w);
    world_fill(w, 9999);
    train_state s = {0};
    if (checkpoint_load(step_path(step, ""), w->e, w->tensors, N_TENSORS, IDENTITY, NULL, &s) != OK)
        fail_msg("%s", error_message());
    assert_true(world_hash(w) == expected);
    train_state want = state_of(step);
    assert_true(s.step == want.step && s.updates == want.updates);
    assert_true(s.data_row == want.data_row && s.tokens == want.tokens && s.seed == want.seed);
    assert_true(s.first_loss == want.first_loss && isnan(s.last_loss));
    assert_string_equal(s.best.metric, want.best.metric);
    assert_true(s.best.value == want.best.value && s.best.step == want.best.step);
    assert_string_equal(s.patience.metric, want.patience.metric);
    assert_true(s.patience.value == want.patience.value && s.patience.step == want.patience.step);
    assert_true(s.patience.worse == want.patience.worse && s.patience.evaluated == want.patience.evaluated);
    assert_true(s.scaler.scale == want.scaler.scale && s.scaler.clean_steps == 17 && s.scaler.hysteresis_left == 2);
}

void flip(const char *path, off_t at, uint8_t mask) {
    uint8_t byte;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= mask;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}
