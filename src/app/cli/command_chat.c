/* command_chat.c - ralo chat: a conversation with a model, one line of stdin a turn.
 *
 * Every turn is answered from the whole conversation, written in the chat format of the training: what the model sees is what a record of
 * messages would be. The cache of keys and values does not outlive a turn, so a turn costs a prefill of all before it.
 * Answers go to stdout and everything else to stderr, so that a file of questions can be piped through. Nothing of a conversation is ever
 * dropped to make room: one that has become too long for the context is told so, and goes on without the line. */
#include "cli/console.h"
#include "cli/questions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ANSWER_TOKENS = 1024 }; /* without --max-new */

typedef struct conversation {
    record_message *messages;
    size_t n, capacity;
    json_t *turns; /* the same for a template */
    arena memory;
} conversation;

static void conversation_init(conversation *c) {
    *c = (conversation){.turns = json_array()};
    arena_init(&c->memory);
}

static void conversation_fini(conversation *c) {
    free(c->messages);
    json_decref(c->turns);
    arena_fini(&c->memory);
}

static status add_turn(conversation *c, turn_role role, const char *text, size_t n_bytes) {
    char *copy = arena_alloc(&c->memory, n_bytes + 1);
    memcpy(copy, text, n_bytes);
    span content = {copy, n_bytes};
    json_t *turn = record_turn(turn_role_name(role), content);
    if (!turn)
        return ERR(ERR_INPUT, "chat: found a turn of the %s that is not UTF-8, expected UTF-8", turn_role_name(role));
    json_array_append_new(c->turns, turn);
    c->messages = array_grow(c->messages, &c->capacity, c->n + 1, sizeof *c->messages);
    c->messages[c->n++] = (record_message){.role = role, .content = content};
    return OK;
}

static void drop_last_turn(conversation *c) { json_array_remove(c->turns, --c->n); }

static status begin(conversation *c, const command_line *l) {
    conversation_fini(c);
    conversation_init(c);
    return l->system ? add_turn(c, TURN_SYSTEM, l->system, strlen(l->system)) : OK;
}

static status encode(const conversation *c, const chat *format, const generator *g, chat_tokens *out) {
    data_record r = {.kind = RECORD_MESSAGES,
                     .path = "chat",
                     .line = c->n,
                     .messages = c->messages,
                     .n_messages = c->n,
                     .n_context = c->n,
                     .turns = c->turns};
    TRY(chat_encode_prompt(format, &r, out));
    if ((int64_t)out->n < generator_context(g)) return OK;
    return ERR(
        ERR_INPUT,
        "the conversation has %zu tokens, the context holds %lld with at least one new token; /new begins another "
        "one, --context N makes room where the model has the positions",
        out->n, (long long)generator_context(g));
}

static void stream_text(void *context, size_t prompt, size_t index, const char *text, size_t n_bytes) {
    console_write_text(text, n_bytes);
}

/* The answer to the last turn, shown while it is made, and as a turn of its own. */
static status answer(conversation *c, const chat *format, generator *g, const command_line *l) {
    chat_tokens tokens = {0};
    completion *out = NULL;
    generation_report report;
    sampling_options s = l->sampling;
    int32_t end = chat_end_of_turn(format);
    s.first_prompt = c->n; /* other random numbers in every turn */
    if (end >= 0) s.ends = &end, s.n_ends = 1;
    status rc = encode(c, format, g, &tokens);
    if (rc == OK)
        rc = generator_run(g, &(prompt){tokens.ids, tokens.n}, 1, &s, &(generation_observer){.on_text = stream_text},
                           &out, &report);
    chat_tokens_free(&tokens);
    TRY(rc);
    if (out->text_bytes == 0 || out->text[out->text_bytes - 1] != '\n') putchar('\n');
    fflush(stdout);
    if (out->stop == STOP_LENGTH)
        fprintf(stderr,
                "cut       the answer stopped after %zu token%s (--max-new, or the context), not by the model\n",
                out->n_tokens, out->n_tokens == 1 ? "" : "s");
    rc = add_turn(c, TURN_ASSISTANT, out->text, out->text_bytes);
    completions_free(out, 1);
    return rc;
}

/* A line that cannot be asked (too long, not UTF-8) is told and forgotten: the conversation is as before it. */
static status take_line(conversation *c, const char *line, size_t n, const chat *format, generator *g,
                        const command_line *l) {
    size_t before = c->n;
    status rc = add_turn(c, TURN_USER, line, n);
    if (rc == OK) rc = answer(c, format, g, l);
    if (rc != ERR_INPUT) return rc;
    fprintf(stderr, "%s\n", error_message());
    error_clear();
    while (c->n > before) drop_last_turn(c);
    return OK;
}

static status talk(conversation *c, const chat *format, generator *g, const command_line *l) {
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    status rc = begin(c, l);
    bool is_terminal = isatty(STDIN_FILENO);
    if (is_terminal) fputs("/new begins another conversation; /exit or Ctrl-D ends\n", stderr);
    while (rc == OK) {
        if (is_terminal) fputs("> ", stderr);
        if ((n = getline(&line, &capacity, stdin)) < 0) break;
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) line[--n] = 0;
        if (n == 0) continue;
        if (strcmp(line, "/exit") == 0) break;
        if (strcmp(line, "/new") == 0) rc = begin(c, l);
        else rc = take_line(c, line, (size_t)n, format, g, l);
    }
    free(line);
    return rc;
}

static status open_format(const generator *g, const command_line *l, chat **out) {
    chat_options wanted = {.format = l->chat < 0 ? CHAT_AUTO : (chat_format)l->chat, .kwargs = l->chat_kwargs};
    status rc = generator_chat(g, &wanted, out);
    if (rc != OK) return questions_name_flags(rc);
    if (chat_format_of(*out) != CHAT_NONE) return OK;
    if (l->chat == CHAT_NONE)
        return ERR(ERR_INPUT,
                   "chat: found --chat none, expected a format: a conversation is made of turns; leave it out, "
                   "or continue a text with ralo generate");
    return ERR(ERR_INPUT,
               "chat: %s has no chat format: neither a chat template nor control tokens; continue a text with ralo "
               "generate, or put a chat_template.jinja into the directory of its tokenizer",
               l->generation.source);
}

status command_chat(command_line *l) {
    generator *g = NULL;
    chat *format = NULL;
    conversation c;
    status rc;
    TRY(generation_from_flags(l));
    l->generation.max_sequences = 1;
    if (!command_line_given(l, "max-new") && !command_line_given(l, "max-new-tokens"))
        l->sampling.max_new = ANSWER_TOKENS;
    TRY(sampling_check(&l->sampling));
    conversation_init(&c);
    TRY_GOTO(rc, generator_open(&g, &l->generation), done);
    TRY_GOTO(rc, open_format(g, l, &format), done);
    rc = talk(&c, format, g, l);
done:
    conversation_fini(&c);
    chat_close(format);
    generator_close(g);
    return rc;
}
