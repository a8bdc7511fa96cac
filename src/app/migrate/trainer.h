#pragma once
/* trainer.h - private to the dialects: what the files of trainers of the Hugging Face family say in the same way: model
 * and data by name, epochs, schedules, optimizers by name, adapters, how often to save. Items may be NULL: the key is
 * not there. */
#include "migrate/dialect.h"

#define ONE_STEP "the step is one compiled program with its own kernels"
#define LOADER "ralo reads and tokenizes data by itself, without worker processes to set up"
#define NUMBERS "metrics.jsonl of the run has every number"
#define NO_HUB "ralo uploads nothing; `hf upload` takes the directory that `ralo export` writes"
#define NO_CODE "ralo runs no code of a model's directory"
#define RANKS_HERE "ranks are started by --ranks, mpirun or srun, and talk by comm.*"
#define NO_IMAGES "ralo trains models of text, without images, video and sound"
#define ONLY_ADAMW "ralo has AdamW only; memory.states is the format of its m and v"
#define ROUNDED "no fp32 copy of the weights; they are rounded at random"
#define NO_CPO "SimPO here has no term of the chosen answer's loss; set it to 0, or use preference.loss=orpo"

/* One dataset of the file. */
typedef struct trainer_source {
    const foreign_item *path;           /* a file, or a name of the Hugging Face hub */
    const foreign_item *config, *split; /* of the hub */
    const foreign_item *files;          /* which of its files */
    bool is_again;                      /* another part of a data set that stands before it */
    const char *name;                   /* instead of path's own text; NULL: that */
    const char *convert;                /* the command that makes a .jsonl of it; NULL: trainer_data finds one */
} trainer_source;

/* A key of the i-th entry of a list of datasets ("datasets", "test_datasets"); -1: it is one map and no list. */
const foreign_item *trainer_dataset_of(const foreign_reader *r, const char *list, int i, const char *key);
/* The i-th dataset of a list. keys: "path config split files" as the list calls them, the last may be missing. Where
 * there is none, its path is NULL. */
trainer_source trainer_source_find(const foreign_reader *r, const char *list, int i, const char *keys);
status trainer_model(foreign_reader *r, const foreign_item *i);
status trainer_data(foreign_reader *r, const trainer_source *sources, size_t n);      /* data.source */
status trainer_eval_data(foreign_reader *r, const trainer_source *sources, size_t n); /* data.eval_source */
/* What is held out where no file is named to evaluate on: a share, none by default. named: is there such a file? */
status trainer_held_out(foreign_reader *r, const foreign_item *share, bool named);
status trainer_length(foreign_reader *r, const foreign_item *epochs, const foreign_item *steps, const char *otherwise);
/* ratio and steps may both be there; steps below 1 are a ratio, as in transformers 5. otherwise: where neither is;
 * NULL: the schedule has no warmup. */
status trainer_warmup(foreign_reader *r, const foreign_item *steps, const foreign_item *ratio, const char *otherwise);
/* Is it on, off or one of `words`? Anything else is a slip that would count as on: refused. */
bool trainer_is_switch(foreign_reader *r, const foreign_item *i, const char *words);
/* otherwise: where neither is on. */
status trainer_precision(foreign_reader *r, const foreign_item *bf16, const foreign_item *fp16, const char *otherwise);
status trainer_betas(foreign_reader *r); /* adam_beta1 and adam_beta2 */
status trainer_optimizer(foreign_reader *r, const foreign_item *i);
status trainer_deepspeed(foreign_reader *r, const foreign_item *i); /* reads that file too */
status trainer_fsdp(foreign_reader *r, const foreign_item *i);      /* "full_shard auto_wrap" */
status trainer_report_to(foreign_reader *r, const foreign_item *i);
status trainer_resume(foreign_reader *r, const foreign_item *i);
status trainer_weights(foreign_reader *r, const foreign_item *four, const foreign_item *eight, bool has_adapter);

/* How often to save or evaluate: strategy is no, steps, epoch or best. otherwise: where the file has none. usual: steps
 * where only the strategy is given. */
typedef struct trainer_rhythm {
    const foreign_item *strategy, *steps;
    const char *setting, *per_epoch, *otherwise, *usual; /* the settings that count steps, and times in an epoch */
} trainer_rhythm;
status trainer_every(foreign_reader *r, const trainer_rhythm *e);
/* The length at which records are cut, once train.task and data.pack are known; usual: where the file does not say
 * it. */
status trainer_row_length(foreign_reader *r, const foreign_item *said, const char *usual);

/* Adapters: on says whether the file asks for them; keys that are there without have no effect. */
typedef struct trainer_adapter {
    bool is_on;
    const char *why_off;                                                  /* for the report */
    const char *rank, *alpha, *dropout, *targets;                         /* the keys; NULL: not read */
    const char *usual_rank, *usual_alpha, *usual_dropout, *usual_targets; /* NULL: as ralo has it */
} trainer_adapter;
status trainer_lora(foreign_reader *r, const trainer_adapter *a);

/* What the program does where the file says nothing: rows of setting, value, why. */
status trainer_implied(foreign_reader *r, const char *const rows[][3], size_t n);
/* Those of these keys that are there, separated by spaces, have no effect. */
void trainer_report_keys(foreign_reader *r, const char *prefix, const char *keys, const char *note);
const char *trainer_list(const foreign_reader *r, const foreign_item *i); /* "[a, b]" and "a, b" as "a,b" */
bool trainer_word_in(const char *word, const char *words);                /* is it one of words separated by spaces */
bool trainer_has_any(const foreign_reader *r, const char *prefix, const char *keys); /* of keys separated by spaces */
