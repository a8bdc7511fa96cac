#pragma once
/* checkpoint_world.h - a small state to save and load: a big tensor that must be cut over shards, odd sizes, a scalar, an
 * empty one.
 *
 *     world w;
 *     world_init(&w, 1);
 *     save_steps(&w, 2, 1, 5);
 *     expect_loads(&w, 5);
 *     world_fini(&w);
 *     ...
 *     cmocka_unit_test_setup_teardown(f, make_run_dir, remove_run_dir) */
#include "checkpoint/directory.h"

enum { N_TENSORS = 6, SHARD_BYTES = 6000 };
#define IDENTITY "gpt2 2 layers, bf16 \"mixed\""

extern char run_dir[64]; /* a fresh one per test */
int make_run_dir(void **state);
int remove_run_dir(void **state);

typedef struct world {
    program p;
    checkpoint_tensor tensors[N_TENSORS];
    exec *e;
} world;
void world_init(world *w, int n_threads);
void world_fini(world *w);
void world_fill(world *w, uint64_t key); /* bytes that depend on tensor, position and key */
uint64_t world_hash(world *w);
uint64_t value_hash(exec *e, const program *p, value_id v);
train_state state_of(int64_t step);

extern bool background; /* of the checkpointers that open_or_die opens; true at first */
checkpointer *open_or_die(world *w, int64_t keep);
void save_or_die(checkpointer *c, world *w, int64_t step);
void save_steps(world *w, int64_t keep, int64_t first, int64_t last);
void expect_loads(world *w, int64_t step); /* what save_or_die saved */

char *step_path(int64_t step, const char *file); /* one at a time */
bool path_exists(const char *path);
int count_entries(const char *dir, const char *prefix);
int count_in_run(const char *prefix);
int64_t newest_step(void);                           /* 0: none */
void flip(const char *path, off_t at, uint8_t mask); /* changes bits of a byte */
