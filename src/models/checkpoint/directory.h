#pragma once
/* directory.h - private to checkpoint: one checkpoint directory, written from memory and read back.
 *
 *     step-00000100/
 *         tensors-00001-of-00002.safetensors     readable by anything that reads safetensors
 *         tensors-00002-of-00002.safetensors
 *         tokenizer/                             the files of the run's tokenizer, where it has some
 *         checkpoint.json                        identity, task (but of the default one), model, state, files,
 *                                                tokenizer_files, and for each tensor dtype, shape, pieces
 *
 * Ranks that write together put their own number into the names of their files, and each says in part-00003.json what it
 * wrote, until the first of them makes one checkpoint.json of all.
 *
 * A piece is {file, start, size, checksum}: the box of the tensor that this file holds; or {file, elements, checksum}, a run
 * of its elements, as ranks share them; or that with {of, dim, slices: [[at, from, n], ...]}: a run of elements of the tensor
 * of shape `of` that is made of these slices of the whole (param_cut). Readers find tensors by name
 * and put the pieces together, so who wrote which piece does not matter to them. */
#include "checkpoint/checkpoint.h"

#define CHECKPOINT_SHARD_BYTES (2ull << 30)

typedef struct checkpoint_piece {
    size_t tensor;
    int shard;            /* 0-based */
    bool flat;            /* rows are single elements */
    int64_t row, n_rows;  /* of the first dimension; a scalar is one row */
    uint64_t byte_offset; /* in the tensor */
    uint64_t n_bytes;
} checkpoint_piece;

size_t checkpoint_saved_bytes(const checkpoint_tensor *t);  /* of this rank's share */
size_t checkpoint_saved_offset(const checkpoint_tensor *t); /* of it in the value, in bytes */

/* Which tensor goes where, in a file and in the staging copy. */
typedef struct checkpoint_layout {
    checkpoint_tensor *tensors; /* own copies */
    size_t n_tensors;
    uint64_t *staging_offsets; /* one after the other, no gaps: the plan counts these bytes */
    uint64_t staging_bytes;
    checkpoint_piece *pieces; /* by shard, and by tensor within */
    size_t n_pieces;
    int n_shards;
} checkpoint_layout;
/* Refuses two tensors of one name and names that are not UTF-8. Lives in `memory`. */
status checkpoint_layout_make(checkpoint_layout *l, arena *memory, const checkpoint_tensor *tensors, size_t n,
                              uint64_t shard_bytes);

/* Where the bytes come from: a copy made earlier, or the running program itself. */
typedef struct checkpoint_source {
    const uint8_t *staging; /* NULL: read from e, a little at a time */
    exec *e;
} checkpoint_source;
/* What is said beside the tensors. model: checkpoint_options.model, may be NULL. task: its name, NULL for the default one;
 * task_state: its object as JSON text, NULL where it has none. */
typedef struct checkpoint_metadata {
    const char *identity, *model;
    const char *task, *task_state;
    const train_state *state;
    const tokenizer_files *tokenizer; /* may be NULL */
} checkpoint_metadata;
/* Fills the existing, empty directory `dir`; on success every file in it is on disk. The directory itself is not. */
status checkpoint_write(const char *dir, const checkpoint_layout *l, const checkpoint_source *source,
                        const checkpoint_metadata *w);
/* The same by many ranks: each writes its share, and when all are done, one of them joins their parts. */
status checkpoint_write_part(const char *dir, const checkpoint_layout *l, const checkpoint_source *source, int rank);
status checkpoint_join_parts(const char *dir, int n_ranks, const checkpoint_metadata *w);
/* train_state as checkpoint.json holds it. A number outside of its range is refused by its name; `where` opens the message. */
json_t *state_to_json(const train_state *s);
status state_from_json(const json_t *root, const char *where, train_state *out);
/* The task of a checkpoint: {"name", "state" (where it has one)}, absent for the default one. Anything else is refused. */
json_t *task_to_json(const char *name, const char *state);
status task_from_json(const json_t *root, const char *where, const char **name, const json_t **state);
/* checkpoint.json is whole and every file it names has the right size; reads no tensor. */
status checkpoint_check(const char *dir);

/* Renames RUN/checkpoints/`temporary` to `name`, replacing what is there. exchange: swap the two atomically if the
 * file system can; else the old one is first renamed to .old-NAME, which checkpointer_open restores after a crash. */
status checkpoint_publish(const char *dir, const char *temporary, const char *name, bool exchange);
/* checkpointer_open with another shard size, so that tests need no gigabytes. */
status checkpointer_open_sharded(checkpointer **out, const checkpoint_options *o, const checkpoint_tensor *tensors,
                                 size_t n, uint64_t shard_bytes);
