#pragma once
/* export_job.h - private to weights: what is written to a directory of a model or of adapters, and from where. */
#include "weights/export.h"
#include "weights/param_reader.h"

typedef enum export_kind {
    EXPORT_MODEL,   /* all parameters: config.json, model.safetensors */
    EXPORT_ADAPTER, /* adapters alone: adapter_config.json, adapter_model.safetensors */
    EXPORT_MERGED,  /* all but adapters, which are merged into the others by the reader */
} export_kind;

typedef struct export_job export_job;
struct export_job {
    export_kind kind;
    param_reader from;
    lora_options lora;         /* EXPORT_ADAPTER */
    const json_t *description; /* export_describe */
    export_heads heads;
    const net *names; /* the same parameters by the names and in the layout of the output; NULL: those of the reader */
    const tokenizer_files *tokenizer; /* NULL: none */
    bool is_given;                    /* the user named the tokenizer's directory: its files stay as they are */
    status (*check)(
        const export_job *j); /* after all parameters were read, before the directory appears; may be NULL */
    lora_base trained_over;   /* for check */
    const char *adapters_dir;
};

/* README.md in `dir`, which will be called `name`. hash: of the parameters, where the card has none; 0: not known. */
status export_write_card(const export_job *j, const export_options *o, const export_report *report, const char *dir,
                         uint64_t hash);
/* ---- export_align.c: what the run trained instead of what the files of its model and tokenizer say ---- */
bool export_eos_changes(const json_t *description); /* does the model's list of end tokens lack one that was trained? */
/* "config" or "generation" of a description, with the end tokens that were trained, which the caller releases; NULL: it
 * has none */
json_t *export_aligned(const json_t *description, const char *part);
/* The files of the run's tokenizer, with the end token and the chat template that were trained, into `dir`. */
status export_write_tokenizer(const json_t *description, const tokenizer_files *t, const char *dir, arena *memory);
void export_say_aligned(const json_t *description, bool with_tokenizer); /* in the log, if anything changed */
/* report->type is the dtype to write. */
status export_write(export_job *j, const export_options *o, export_report *report);
/* A job over adapters that began by PiSSA writes ordinary ones, of twice the rank. `convert` is closed after the job, where it has
 * threads. from: names the run in errors. */
status export_convert_pissa(export_job *j, struct pissa *convert, const model_config *c, const char *from);
/* The files that the user named, or those that the run keeps. *read owns what was read; the caller frees it. */
status export_choose_tokenizer(const export_options *o, const tokenizer_files *kept, tokenizer_files *read,
                               const tokenizer_files **out);
