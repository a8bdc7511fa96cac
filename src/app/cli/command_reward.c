/* command_reward.c - ralo reward: score completions of a file, to try a reward before a run uses it.
 *
 * A line holds a prompt as data.source takes it, the completion as a text, and columns; n_tokens and truncated may stand there too. */
#include "cli/output.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 256 };

typedef struct scores {
    const command_line *l;
    const char *completion; /* its key */
    rewards *r;
    size_t n_rewards;
    bool needs_tokens;
    double *all; /* (n, n_rewards) */
    size_t n, capacity;
    uint64_t n_unscorable, n_failed, n_restarts;
    double seconds;
    char first_failure[sizeof((reward_report *)0)->first_failure],
        first_restart[sizeof((reward_report *)0)->first_restart];
} scores;

/* Of a chunk; its texts are those of the JSON. */
typedef struct chunk {
    reward_item items[CHUNK];
    json_t *columns[CHUNK], *texts[CHUNK];
    uint64_t lines[CHUNK];
    size_t n;
} chunk;

static void chunk_clear(chunk *c) {
    for (size_t i = 0; i < c->n; i++) {
        json_decref(c->columns[i]);
        json_decref(c->texts[i]);
    }
    c->n = 0;
}

static span span_of(const json_t *string) { return (span){json_string_value(string), json_string_length(string)}; }

static status add_item(scores *s, chunk *c, const data_record *r) {
    const json_t *completion = json_object_get(r->object, s->completion), *n = json_object_get(r->object, "n_tokens");
    if (!json_is_string(completion))
        return ERR(
            ERR_INPUT,
            "%s:%llu: key '%.100s': found %s, expected the completion as text (data.response_column names another key)",
            r->path, (unsigned long long)r->line, s->completion, completion ? "something else" : "nothing");
    if (s->needs_tokens && !(json_is_integer(n) && json_integer_value(n) >= 0))
        return ERR(
            ERR_INPUT,
            "%s:%llu: key 'n_tokens': found %s, expected the tokens of the completion, which reward length needs",
            r->path, (unsigned long long)r->line, n ? "something else" : "nothing");
    span prompt = r->kind == RECORD_TEXT       ? r->text
                  : r->kind == RECORD_MESSAGES ? r->messages[r->n_messages - 1].content
                                               : r->prompt;
    json_t *texts = json_pack("[s%, O]", prompt.length ? prompt.text : "", prompt.length, completion);
    if (!texts) mem_refused(0);
    json_t *columns = json_copy(r->object);
    size_t i = c->n++;
    c->items[i] = (reward_item){.prompt = span_of(json_array_get(texts, 0)),
                                .completion = span_of(completion),
                                .n_tokens = json_integer_value(n),
                                .truncated = json_is_true(json_object_get(r->object, "truncated")),
                                .columns = columns};
    const char *const own[] = {r->prompt_keys[0], r->prompt_keys[1], s->completion, "n_tokens", "truncated"};
    for (size_t k = 0; k < ARRAY_LENGTH(own); k++)
        if (own[k]) json_object_del(columns, own[k]);
    c->columns[i] = columns;
    c->texts[i] = texts;
    c->lines[i] = r->line;
    return OK;
}

static void print_score(FILE *out, double score) {
    if (isnan(score)) fprintf(out, "none");
    else fprintf(out, "%.6g", score);
}

static status score_chunk(scores *s, chunk *c) {
    reward_report report;
    s->all = array_grow(s->all, &s->capacity, (s->n + c->n) * s->n_rewards, sizeof *s->all);
    double *at = s->all + s->n * s->n_rewards;
    TRY(rewards_score(s->r, c->items, c->n, at, &report));
    s->n_unscorable += report.n_unscorable;
    s->n_failed += report.n_failed;
    s->n_restarts += report.n_restarts;
    s->seconds += report.seconds;
    if (!*s->first_failure) memcpy(s->first_failure, report.first_failure, sizeof s->first_failure);
    if (!*s->first_restart) memcpy(s->first_restart, report.first_restart, sizeof s->first_restart);
    for (size_t i = 0; i < c->n && !s->l->json; i++, at += s->n_rewards) {
        printf("%s:%llu: ", s->l->data, (unsigned long long)c->lines[i]);
        print_score(stdout, rewards_total(s->r, at));
        for (size_t f = 0; f < s->n_rewards && s->n_rewards > 1; f++) {
            printf("%s%s ", f ? ", " : " (", rewards_name(s->r, f));
            print_score(stdout, at[f]);
        }
        printf("%s\n", s->n_rewards > 1 ? ")" : "");
    }
    s->n += c->n;
    chunk_clear(c);
    return OK;
}

static status score_file(scores *s) {
    status rc = OK;
    record_options o = s->l->config.data.records;
    o.may_lack_response = o.ignores_response = true;
    o.response_column = NULL; /* add_item reads it: a model's answer may be empty */
    records *file;
    TRY(records_open(&file, s->l->data, &o));
    chunk *c = mem_alloc(sizeof *c);
    for (uint64_t i = 0; i < records_count(file); i++) {
        data_record r;
        TRY_GOTO(rc, records_get(file, i, &r), done);
        TRY_GOTO(rc, add_item(s, c, &r), done);
        if (c->n == CHUNK || i + 1 == records_count(file)) TRY_GOTO(rc, score_chunk(s, c), done);
    }
done:
    chunk_clear(c);
    free(c);
    records_close(file);
    return rc;
}

/* ---- the report -------------------------------------------------------------------------------------------------- */

/* Of the completions that have one; f: a reward, or all of them together. */
static double mean_of(const scores *s, size_t f) {
    double sum = 0, n = 0;
    for (size_t i = 0; i < s->n; i++) {
        const double *at = s->all + i * s->n_rewards;
        double x = f < s->n_rewards ? at[f] : rewards_total(s->r, at);
        if (isnan(x)) continue;
        sum += x;
        n++;
    }
    return n > 0 ? sum / n : NAN;
}

static void print_report(const scores *s) {
    printf("%zu completions, mean reward ", s->n);
    print_score(stdout, mean_of(s, s->n_rewards));
    for (size_t f = 0; f < s->n_rewards; f++) {
        printf("%s%s ", f ? ", " : ": ", rewards_name(s->r, f));
        print_score(stdout, mean_of(s, f));
        printf(" (weight %g)", rewards_weight(s->r, f));
    }
    printf("\n");
    if (s->n_unscorable)
        printf("%llu completions have no reward; %llu answers failed%s%s\n", (unsigned long long)s->n_unscorable,
               (unsigned long long)s->n_failed, *s->first_failure ? ", the first: " : "", s->first_failure);
    if (s->n_restarts)
        printf("the program was started again %llu times, the first: %s\n", (unsigned long long)s->n_restarts,
               s->first_restart);
}

static void print_json(const scores *s) {
    json_t *list = json_object(), *totals = json_array();
    for (size_t f = 0; f < s->n_rewards; f++) {
        json_t *own = json_array();
        for (size_t i = 0; i < s->n; i++) json_array_append_new(own, json_real_or_null(s->all[i * s->n_rewards + f]));
        json_object_set_new(list, rewards_name(s->r, f),
                            json_pack("{s:f, s:o, s:o}", "weight", rewards_weight(s->r, f), "mean",
                                      json_real_or_null(mean_of(s, f)), "scores", own));
    }
    for (size_t i = 0; i < s->n; i++)
        json_array_append_new(totals, json_real_or_null(rewards_total(s->r, s->all + i * s->n_rewards)));
    json_print(json_pack("{s:o, s:I, s:o, s:o, s:o, s:I, s:I, s:I, s:s, s:f}", "data", json_name(s->l->data),
                         "completions", (json_int_t)s->n, "reward", json_real_or_null(mean_of(s, s->n_rewards)),
                         "scores", totals, "rewards", list, "unscorable", (json_int_t)s->n_unscorable, "failed",
                         (json_int_t)s->n_failed, "restarts", (json_int_t)s->n_restarts, "first_failure",
                         s->first_failure, "seconds", s->seconds),
               "reward", ALL_DIGITS);
}

status command_reward(command_line *l) {
    const char *column = l->config.data.records.response_column;
    scores s = {.l = l, .completion = column && *column ? column : "completion"};
    TRY(rewards_open(&s.r, &l->config.reward));
    s.n_rewards = rewards_count(s.r);
    for (size_t f = 0; f < s.n_rewards; f++) s.needs_tokens |= strcmp(rewards_name(s.r, f), "length") == 0;
    status rc = score_file(&s);
    if (rc == OK && l->json) print_json(&s);
    else if (rc == OK) print_report(&s);
    rewards_close(s.r);
    free(s.all);
    return rc;
}
