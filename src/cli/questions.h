#pragma once
/* questions.h - private to cli: prompts, and answers where there are any, from a file. */
#include "cli/cli.h"

typedef struct question {
    const char *prompt; /* n_prompt bytes, NUL behind them */
    size_t n_prompt;
    const char *answer; /* NULL: the file has none */
    size_t line;
} question;
typedef struct questions {
    question *items;
    size_t n, capacity;
    arena memory;
} questions;

/* .jsonl: one object per line, {"prompt", "completion"}, {"question", "answer"} or {"prompt"}; any other file: one prompt
 * per line. Empty lines are passed over. with_answers: a line without one is an error. */
status questions_read(questions *q, const char *path, bool with_answers);
void questions_init(questions *q);
void questions_add(questions *q, const char *prompt, size_t n_bytes);
void questions_fini(questions *q);
/* Prompts as tokens; free_prompts also after an error. prompts comes zeroed, q->n of them, from mem_alloc. */
status questions_encode(const questions *q, const generator *g, prompt *prompts);
void questions_free_prompts(prompt *prompts, size_t n);
