#pragma once
/* export.h - private to weights, part of its face: a directory that Hugging Face's transformers loads; of a run with
 * adapters one that PEFT loads, or, merged, the whole model.
 *
 * config.json, generation_config.json, model.safetensors (or shards and their index), README.md (a model card) and, if the
 * run used a tokenizer directory, its files, from the copy that the checkpoint keeps. Packed parameters are split, transposed
 * ones transposed back, tied ones stored once. fp32 masters are the source if there are any. The directory is
 * complete or does not exist. */
#include "checkpoint/checkpoint.h"

typedef enum export_heads {
    EXPORT_FIRST_HEAD, /* the ordinary model: trunk and first head */
    EXPORT_ALL_HEADS,  /* the same, with the others as extra_heads.* in the same files, which transformers leaves out */
    EXPORT_META,       /* Meta's layout: params.json and consolidated.safetensors */
} export_heads;

/* One file for llama.cpp instead of a directory. */
typedef enum gguf_format {
    GGUF_NONE,
    GGUF_F16_FILE,
    GGUF_BF16_FILE,
    GGUF_F32_FILE,
    GGUF_Q8_0_FILE,
    GGUF_Q4_K_FILE, /* what llama.cpp calls Q4_K_M */
} gguf_format;

/* What README.md of an exported directory says beside the model itself. NULL, NAN and 0: not known, and left out. */
typedef struct export_card {
    const char *version; /* of ralo */
    const char *task, *data;
    const char *settings; /* lines "train.lr: 0.001", those that differ from the defaults */
    int64_t steps;
    double loss, eval_loss;
    uint64_t param_hash;
} export_card;

typedef struct export_options {
    const char *dir;      /* must not exist, or be empty; called *.gguf: a file that does not exist */
    gguf_format gguf;     /* of such a file; NONE: f16. Adapters are merged, type and heads do not count */
    dtype type;           /* fp32, bf16, fp16; DTYPE_COUNT: as the parameters were trained; merged: as the base is */
    bool merge;           /* W + scale B A instead of the adapters alone */
    export_heads heads;   /* of a run with prediction heads */
    const char *adapter;  /* merge: PEFT's directory or a run, over the model given; NULL: that of the run given */
    uint64_t shard_bytes; /* a file grows no larger, unless one tensor is; 0: 5 GB */
    const export_card *card;
    const char *tokenizer; /* tokenizer directory that the user gave; "none": no tokenizer. NULL: the run's own files */
} export_options;
typedef struct export_report {
    char from[4096]; /* the checkpoint */
    int64_t step;
    dtype type;         /* DTYPE_COUNT: a GGUF file */
    const char *format; /* "fp32" ..., of a GGUF file "q4_k" */
    bool is_adapter;    /* adapter_config.json and adapter_model.safetensors */
    uint64_t n_parameters, n_bytes;
    int n_files; /* of weights */
} export_report;
/* A directory that is not empty is refused, by the name of the setting; NULL: it was an argument. */
status export_check_dir(const char *setting, const char *dir);
/* Can the directory, which does not exist, be made? what: who asks, for the message. */
status export_check_place(const char *what, const char *dir);
bool export_is_gguf_name(const char *path); /* does it end in .gguf? */
/* Can this model, with this tokenizer, be written as such a file? The setting names it in messages. */
status export_check_gguf(const char *setting, const char *path, const model_config *c, const char *tokenizer);
/* from: a run directory (its newest checkpoint) or a checkpoint directory; merge and gguf: also a Hugging Face directory. Merging
 * holds a block of rows and the adapters of one layer; the base is read from its files, at their precision, and each number is
 * rounded once. */
status export_checkpoint(const char *from, const export_options *o, export_report *out);

/* {"config": config.json, "generation": generation_config.json, "tokenizer": DIR or absent (where it came from, a note:
 * nothing is copied from there), "chat": the format its turns were trained in, absent where it saw none, "chat_kwargs":
 * the template's variables then, as JSON text, "end": dataset_ending, with "is_given": true where data.eos_token names
 * the end token} as JSON text, to be kept in every checkpoint; the caller frees. Token ids are those of the directory
 * the model came from (then d may be NULL: no data), else the tokenizer's; an export changes them to those of "end"
 * (export_align.c). */
/* Writes the directory of a checkpoint's model without its weights: what a run needs of a base that is gone, and whose
 * weights it holds (own_dir.c). One that is there already stays as it is. */
status weights_write_own_dir(const char *checkpoint, const char *dir);
status export_describe(const model_config *m, const char *model_dir, const data_options *o, const dataset *d,
                       char **out);
/* The parameters as they are now, as a directory. tokenizer: files that go along; NULL: none. */
status export_running(exec *e, const plan *p, const char *description, const tokenizer_files *tokenizer,
                      const export_options *o, export_report *out);
