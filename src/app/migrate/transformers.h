#pragma once
/* transformers.h - private to the dialects: what transformers' TrainingArguments say together. */
#include "migrate/trainer.h"

/* What the program that wrote the file does where it says nothing. */
typedef struct transformers_defaults {
    const char *lr, *precision, *micro_batch;
    bool counts_completions; /* the batch is of completions: the caller reads its keys */
} transformers_defaults;
status transformers_translate(foreign_reader *r, const transformers_defaults *d);
