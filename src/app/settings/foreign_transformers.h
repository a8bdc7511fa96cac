#pragma once
/* foreign_transformers.h - private to foreign_*.c: what transformers' TrainingArguments say together. */
#include "settings/foreign_trainer.h"

/* What the program that wrote the file does where it says nothing. */
typedef struct transformers_defaults {
    const char *lr, *precision, *micro_batch;
    bool counts_completions; /* the batch is of completions: the caller reads its keys */
} transformers_defaults;
status transformers_translate(foreign_reader *r, const transformers_defaults *d);
