/* questions.c - prompts from files of lines. What a line holds is decided in read_object alone. */
#include "cli/questions.h"

#include <stdlib.h>
#include <string.h>

#define FILE_MOST ((size_t)4 << 30)

void questions_init(questions *q) {
    *q = (questions){0};
    arena_init(&q->memory);
}

void questions_fini(questions *q) {
    free(q->items);
    arena_fini(&q->memory);
    *q = (questions){0};
}

static question *add(questions *q, size_t line) {
    q->items = array_grow(q->items, &q->capacity, q->n + 1, sizeof *q->items);
    question *item = &q->items[q->n++];
    *item = (question){.line = line};
    return item;
}

static const char *keep(questions *q, const char *text, size_t n) {
    char *copy = arena_alloc(&q->memory, n + 1);
    memcpy(copy, text, n);
    return copy;
}

void questions_add(questions *q, const char *prompt, size_t n_bytes) {
    question *item = add(q, 0);
    item->prompt = keep(q, prompt, n_bytes);
    item->n_prompt = n_bytes;
}

static status read_object(questions *q, const char *path, size_t line, const json_t *root, bool with_answers) {
    static const char *const pairs[][2] = {{"prompt", "completion"}, {"question", "answer"}, {"prompt", "answer"}};
    const json_t *prompt = NULL, *answer = NULL;
    for (size_t i = 0; i < ARRAY_LENGTH(pairs) && !answer; i++) {
        if (!json_is_string(json_object_get(root, pairs[i][0]))) continue;
        prompt = json_object_get(root, pairs[i][0]);
        answer = json_object_get(root, pairs[i][1]);
    }
    if (!prompt && json_object_get(root, "messages"))
        return ERR(ERR_INPUT, "%s:%zu: found 'messages', which need the model's chat template; expected 'prompt'", path,
                   line);
    if (!prompt) return ERR(ERR_INPUT, "%s:%zu: found no text under 'prompt' or 'question', expected one", path, line);
    if (with_answers && !json_is_string(answer))
        return ERR(ERR_INPUT, "%s:%zu: found no text under 'completion' or 'answer', expected the right answer", path,
                   line);
    question *item = add(q, line);
    item->n_prompt = json_string_length(prompt);
    item->prompt = keep(q, json_string_value(prompt), item->n_prompt);
    if (json_is_string(answer)) item->answer = keep(q, json_string_value(answer), json_string_length(answer));
    return OK;
}

static status read_line(questions *q, const char *path, size_t line, const char *text, size_t n, bool is_jsonl,
                        bool with_answers) {
    if (!is_jsonl) {
        question *item = add(q, line);
        item->prompt = keep(q, text, n);
        item->n_prompt = n;
        return OK;
    }
    json_error_t why;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    if (!root) return ERR(ERR_INPUT, "%s:%zu: %s, expected one JSON object per line", path, line, why.text);
    status rc = read_object(q, path, line, root, with_answers);
    json_decref(root);
    return rc;
}

status questions_read(questions *q, const char *path, bool with_answers) {
    char *text;
    size_t n, line = 1;
    status rc = OK;
    bool is_jsonl = str_ends_with(path, ".jsonl");
    if (with_answers && !is_jsonl)
        return ERR(ERR_INPUT, "%s: answers are read from .jsonl files, one object per line", path);
    TRY(file_read_all(path, FILE_MOST, &text, &n));
    for (size_t at = 0; at < n && rc == OK; line++) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t next = end ? (size_t)(end - text) + 1 : n, length = (end ? next - 1 : n) - at;
        while (length > 0 && text[at + length - 1] == '\r') length--;
        if (length > 0) rc = read_line(q, path, line, text + at, length, is_jsonl, with_answers);
        at = next;
    }
    free(text);
    TRY(rc);
    if (q->n == 0) return ERR(ERR_INPUT, "%s: found no prompt, expected one per line", path);
    return OK;
}

status questions_encode(const questions *q, const generator *g, prompt *prompts) {
    for (size_t i = 0; i < q->n; i++) {
        int32_t *tokens = NULL;
        size_t n = 0, capacity = 0;
        status rc = generator_encode(g, q->items[i].prompt, q->items[i].n_prompt, &tokens, &n, &capacity);
        prompts[i] = (prompt){tokens, n};
        TRY(rc);
    }
    return OK;
}

void questions_free_prompts(prompt *prompts, size_t n) {
    for (size_t i = 0; prompts && i < n; i++) free((void *)prompts[i].tokens);
    free(prompts);
}
