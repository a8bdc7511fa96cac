#pragma once
/* checkpoint.h - the state of a run on disk: written completely or not at all, found again, and read back to the same
 * bits.
 *
 * Promises
 *   - A checkpoint directory is either complete and checksummed, or is never used.
 *   - It is written by one rank or by many, and read by any number of them: readers find tensors by name. */
#include "checkpoint/tokenizer_files.h"
#include "data/data.h"
#include "exec/exec.h"
#include "model/model.h"
#include "plan/plan.h"
#include "weightfile/weightfile.h"

/* fp16: what the loss is multiplied by. */
typedef struct loss_scaler {
    double scale;
    int64_t clean_steps; /* since the last overflow */
    int64_t hysteresis_left;
} loss_scaler;

/* The best evaluation so far, by a number that rises or falls; metric "": none. */
typedef struct checkpoint_best {
    char metric[64];
    double value; /* finite */
    int64_t step;
} checkpoint_best;

/* How long a run has waited for a better evaluation (train.patience); metric "": it does not wait. */
typedef struct checkpoint_patience {
    char metric[64];
    double value;      /* the best so far; NaN: none yet */
    int64_t step;      /* ... of this step */
    int64_t worse;     /* evaluations since then */
    int64_t evaluated; /* the last step whose evaluation was counted */
} checkpoint_patience;

/* Everything that is not a tensor. */
typedef struct train_state {
    int64_t step;    /* finished steps */
    int64_t updates; /* of them, those that changed the parameters (none when gradients overflowed) */
    uint64_t data_row;
    uint64_t tokens;
    loss_scaler scaler;
    double first_loss, last_loss;
    uint64_t seed;
    int64_t micro_batch, accumulation; /* of each rank, in the last step; 0: an older ralo did not write them */
    int64_t placed; /* 1 and the layers that the plan had put on the host's cores (memory.place: auto); 0: as above */
    int64_t unevaluated; /* 1: a signal interrupted the evaluation after this step, which comes before the next one */
    checkpoint_best best;
    checkpoint_patience patience;
} train_state;

/* One named tensor of a checkpoint and its value in the running program. Packed parameters are stored under their
 * own name and slice; readers use names, never positions. On many ranks each holds a range of the tensor's elements,
 * or all of them, and writes its share: the shares of all ranks are the tensor. */
typedef struct checkpoint_tensor {
    const char *name; /* "param/layers.0.attn.qkv", "master/...", "m/...", "v/..." */
    value_id value;
    dtype type;
    shape shape;             /* of the whole tensor */
    param_share held, saved; /* elements that the value holds, and those of them that this rank writes */
    const param_cut *cut;    /* they are counted in what this rank has of the tensor; NULL: in the whole */
} checkpoint_tensor;

/* What a run is for, and what it has to remember beside the tensors and train_state: a small object of its own, the same on
 * all ranks. The default task stores its name only with an object, and neither where it remembers nothing, as in checkpoints from before there
 * were others. */
#define CHECKPOINT_DEFAULT_TASK "sft"
enum { CHECKPOINT_TASK_NAME = 64, CHECKPOINT_TASK_BYTES = 64 << 10 }; /* the most of both: of the object as text */
typedef struct checkpoint_task {
    const char *name;
    void *context;
    json_t *(*save)(void *context); /* the caller takes it; NULL: it remembers nothing */
    /* Gets what `save` gave, or anything that somebody wrote: an object of at most those bytes. `where` opens messages. */
    status (*load)(void *context, const json_t *state, const char *where);
} checkpoint_task;

/* One program at a time writes in a run directory. A caller that has files of its own there takes the lock before the first of them
 * and keeps it to the end; of ranks, the first. *fd: to close, -1 after an error. ERR_INPUT: another program has it. */
status run_lock_take(int *fd, const char *run_dir);

typedef struct checkpointer checkpointer;
typedef struct checkpoint_options {
    const char *run_dir;
    int64_t keep;         /* newest N whole ones kept; 0 = all */
    bool only_one;        /* what is saved replaces all others, newer ones too; keep is 1 */
    const char *identity; /* model and precision in words: resuming another model is refused */
    const char *model;    /* JSON that export needs (export_describe); NULL: such a checkpoint cannot be exported */
    bool background;      /* stage a copy and write while training continues; false: write at once, nothing staged */
    comm *comm;           /* of the ranks that write together, each its share; NULL: this one writes all */
    const tokenizer_files *tokenizer; /* goes into each; NULL: none. Borrowed */
    const checkpoint_task *task;      /* NULL: the default task. Copied; its context is borrowed */
    bool fresh;                       /* a new run: refused if run_dir holds a complete checkpoint by now */
    bool locked;                      /* the caller holds the lock of run_dir (run_lock_take); false: taken at open */
} checkpoint_options;
/* open, save, wait and poll are collective with several ranks; close is not. */
status checkpointer_open(checkpointer **out, const checkpoint_options *o, const checkpoint_tensor *tensors, size_t n);
/* Background: copies the state (the only part the step waits for), then writes while training continues. An earlier
 * save is finished first. Either way: temporary directory, XXH3 per tensor, fsync, rename. */
status checkpointer_save(checkpointer *c, exec *e, const train_state *s);
status checkpointer_wait(checkpointer *c); /* until the last save is on disk; its error, if any */
/* Called between steps: ranks that write in the background check whether all are done, and publish the checkpoint. */
status checkpointer_poll(checkpointer *c);
/* A run continues from its own checkpoint of `step`: removes older ones beyond `keep`, as a save does. A run that is killed
 * between publishing and removing leaves one more each time. */
void checkpointer_prune(const checkpointer *c, int64_t step);
void checkpointer_close(checkpointer *c);
uint64_t
checkpointer_staged_bytes(const checkpointer *c); /* host memory held for background writing: part of the plan */
/* dir: a checkpoint directory. Verifies every checksum before anything is loaded; the task's object comes before the tensors.
 * A checkpoint of another task is refused. task NULL: the default one. */
status checkpoint_load(const char *dir, exec *e, const checkpoint_tensor *tensors, size_t n, const char *identity,
                       const checkpoint_task *task, train_state *out);
/* The state alone, without a look at the tensors. */
status checkpoint_read_state(const char *dir, train_state *out);
/* The newest complete checkpoint under run_dir that has the name of its own step, or OK with an empty string if there
 * is none. */
status checkpoint_find_newest(const char *run_dir, char *out, size_t out_bytes);
/* The same without warnings about incomplete ones, for callers who only ask whether there is one. */
status checkpoint_find_newest_quietly(const char *run_dir, char *out, size_t out_bytes);
/* The step in a checkpoint directory's name; false: it is not the name of one. */
bool checkpoint_step_of(const char *path, int64_t *step);
/* What a run finds in its directory. */
typedef struct checkpoint_survey {
    int64_t n, newest; /* whole checkpoints; newest 0 of none */
    /* directories with the name of one that are not whole: no writer leaves such a one, damage does */
    int64_t n_broken;
    uint64_t leftover_bytes; /* on disk, of writers that died: checkpointer_open removes it */
} checkpoint_survey;
status checkpoint_survey_make(checkpoint_survey *out, const char *run_dir);

/* ---- reading without a program ---------------------------------------------------------------------------------- */

/* Reading a checkpoint without a program to put it in. Open checks everything but the tensors' checksums. */
typedef struct checkpoint_reader checkpoint_reader;
typedef struct checkpoint_found {
    dtype type;
    shape shape;
    size_t first_piece, n_pieces;
} checkpoint_found;
status checkpoint_reader_open(checkpoint_reader **out, const char *dir);
void checkpoint_reader_close(checkpoint_reader *r);
const json_t *checkpoint_reader_model(const checkpoint_reader *r);     /* NULL: written without one */
const json_t *checkpoint_reader_tokenizer(const checkpoint_reader *r); /* for tokenizer_files_load; NULL: none */
int64_t checkpoint_reader_step(const checkpoint_reader *r);
bool checkpoint_reader_find(const checkpoint_reader *r, const char *name, checkpoint_found *out);
status checkpoint_reader_verify(const checkpoint_reader *r, const checkpoint_found *t); /* its checksums */
/* Whole elements: offset and length are multiples of the dtype's bytes. */
void checkpoint_reader_read(const checkpoint_reader *r, const checkpoint_found *t, uint64_t byte_offset, void *dst,
                            size_t n_bytes);
void checkpoint_reader_forget(const checkpoint_reader *r, const checkpoint_found *t); /* gives its mapped pages back */

/* ---- params.c: the parameters of a checkpoint ------------------------------------------------------------------- */

/* The checkpoint that `from` names: itself, or the newest complete one of a run directory. `why` begins the
 * messages, `expected` ends those that report nothing found. */
status checkpoint_locate(const char *why, const char *from, const char *expected, char *out, size_t n);
/* What the checkpoint says about its model; an error when an older ralo wrote none. */
status checkpoint_description(const checkpoint_reader *r, const char *dir, const json_t **out);
/* A parameter: its fp32 master if there is one. Its shape, dtype and checksums are verified. */
status checkpoint_param_find(const checkpoint_reader *r, const char *name, const shape *want, checkpoint_found *out);
