/* reward.c - a list of rewards with weights: opened by name, each fills its own column of scores. */
#include "reward/kind.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    const reward_kind *kind;
} kinds[] = {
#define REWARD(id, name, help) {name, &reward_kind_##id},
#include "reward/rewards.def"
#undef REWARD
};
enum { KINDS = ARRAY_LENGTH(kinds) };

typedef struct one {
    size_t kind;
    double weight;
    void *self;
    bool is_open;
} one;

struct rewards {
    one list[KINDS];
    size_t n;
    reward_on_error on_error;
};

const char reward_list_help[] = "rewards that are added up, with or without weights: numeric:1, format:0.2"
#define REWARD(id, name, help) "; " name ": " help
#include "reward/rewards.def"
#undef REWARD
    ;

/* ---- the list ---------------------------------------------------------------------------------------------------- */

static span trim(const char *text, size_t n) {
    while (n > 0 && (*text == ' ' || *text == '\t')) text++, n--;
    while (n > 0 && (text[n - 1] == ' ' || text[n - 1] == '\t')) n--;
    return (span){text, n};
}

static status unknown_kind(span name) {
    strbuf known;
    strbuf_init(&known);
    for (size_t i = 0; i < KINDS; i++) strbuf_printf(&known, "%s%s", i ? ", " : "", kinds[i].name);
    status rc = ERR(ERR_INPUT,
                    "reward.list: found '%.*s', expected some of %s, separated by commas, with or without weights: "
                    "numeric:1, format:0.2",
                    (int)MIN(name.length, 100), name.text, known.text);
    strbuf_fini(&known);
    return rc;
}

static status read_weight(span text, double *out) {
    char number[64] = "", *end = number;
    if (text.length > 0 && text.length < sizeof number) memcpy(number, text.text, text.length);
    if (*number && !number[strspn(number, "0123456789.eE+-")]) *out = strtod(number, &end);
    if (end != number && !*end && isfinite(*out)) return OK;
    return ERR(ERR_INPUT, "reward.list: found the weight '%.*s', expected a number", (int)MIN(text.length, 60),
               text.text);
}

static status add_entry(rewards *r, span text) {
    const char *colon = text.length ? memchr(text.text, ':', text.length) : NULL;
    size_t n = colon ? (size_t)(colon - text.text) : text.length;
    span name = trim(text.text, n);
    one *o = &r->list[r->n];
    *o = (one){.weight = 1};
    while (o->kind < KINDS &&
           (strlen(kinds[o->kind].name) != name.length || memcmp(kinds[o->kind].name, name.text, name.length) != 0))
        o->kind++;
    if (o->kind == KINDS) return unknown_kind(name);
    for (size_t i = 0; i < r->n; i++)
        if (r->list[i].kind == o->kind)
            return ERR(ERR_INPUT, "reward.list: found %s twice, expected each reward once", kinds[o->kind].name);
    if (colon) TRY(read_weight(trim(colon + 1, text.length - n - 1), &o->weight));
    r->n++;
    return OK;
}

static status read_list(rewards *r, const char *list) {
    if (!list || !*list) return unknown_kind((span){"nothing", 7});
    for (const char *at = list;; at++) {
        size_t n = strcspn(at, ",");
        TRY(add_entry(r, trim(at, n)));
        at += n;
        if (!*at) return OK;
    }
}

status reward_url_check(const char *url, const char *from) {
    if (strchr(url, '@'))
        return ERR(
            ERR_INPUT,
            "%s: found an address with a user name or password, which would be saved in config.yaml; leave it out and "
            "set RALO_REWARD_USERNAME and RALO_REWARD_PASSWORD, or RALO_REWARD_TOKEN",
            from);
    if (url[strcspn(url, "?#\\ \t\r\n\"")])
        return ERR(
            ERR_INPUT,
            "%s: found an address with a query, a fragment or blanks, expected http://HOST:PORT/PATH; a login comes "
            "from RALO_REWARD_TOKEN",
            from);
    if ((str_starts_with(url, "http://") && url[7] && url[7] != '/') ||
        (str_starts_with(url, "https://") && url[8] && url[8] != '/'))
        return OK;
    return ERR(ERR_INPUT, "%s: found '%.200s', expected http://... or https://...", from, url);
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

status rewards_open(rewards **out, const reward_options *o) {
    status rc = OK;
    rewards *r = mem_alloc(sizeof *r);
    *out = NULL;
    r->on_error = o->on_error;
    TRY_GOTO(rc, read_list(r, o->list), fail);
    for (size_t i = 0; i < r->n; i++) {
        TRY_GOTO(rc, kinds[r->list[i].kind].kind->open(&r->list[i].self, o), fail);
        r->list[i].is_open = true;
    }
    *out = r;
    return OK;
fail:
    rewards_close(r);
    return rc;
}

void rewards_close(rewards *r) {
    if (!r) return;
    for (size_t i = 0; i < r->n; i++)
        if (r->list[i].is_open) kinds[r->list[i].kind].kind->close(r->list[i].self);
    free(r);
}

size_t rewards_count(const rewards *r) { return r->n; }
const char *rewards_name(const rewards *r, size_t f) { return kinds[r->list[f].kind].name; }
double rewards_weight(const rewards *r, size_t f) { return r->list[f].weight; }

/* ---- scores ------------------------------------------------------------------------------------------------------ */

status rewards_score(rewards *r, const reward_item *items, size_t n, double *scores, reward_report *report) {
    reward_report own;
    if (!report) report = &own;
    *report = (reward_report){0};
    double start = clock_s();
    status rc = OK;
    for (size_t i = 0; i < n * r->n; i++) scores[i] = NAN;
    for (size_t f = 0; f < r->n && rc == OK; f++) {
        scoring s = {items, n, scores + f, r->n, r->on_error, rewards_name(r, f), report};
        rc = kinds[r->list[f].kind].kind->score(r->list[f].self, &s);
    }
    for (size_t i = 0; i < n; i++) report->n_unscorable += isnan(rewards_total(r, scores + i * r->n));
    report->seconds = clock_s() - start;
    return rc == OK ? OK : error_trail(rc, __FILE__, __LINE__, __func__);
}

double rewards_total(const rewards *r, const double *scores) {
    double total = 0;
    for (size_t f = 0; f < r->n; f++) total += r->list[f].weight * scores[f];
    return total;
}

status scoring_fail(scoring *s, size_t i, const char *fmt, ...) {
    char why[200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    scoring_put(s, i, NAN);
    s->report->n_failed++;
    return scoring_note(s, why);
}

status scoring_note(scoring *s, const char *why) {
    if (!*s->report->first_failure)
        snprintf(s->report->first_failure, sizeof s->report->first_failure, "%s: %s", s->name, why);
    if (s->on_error == REWARD_UNSCORABLE) return OK;
    return ERR(ERR_RUN, "reward %s: %s (reward.on_error=stop)", s->name, why);
}

/* ---- items ------------------------------------------------------------------------------------------------------- */

static status no_column(const scoring *s, size_t i, const char *column) {
    strbuf keys, prompt;
    const char *key;
    json_t *v;
    strbuf_init(&keys);
    strbuf_init(&prompt);
    strbuf_add(&prompt, "");
    strbuf_add_escaped(&prompt, s->items[i].prompt.text, MIN(s->items[i].prompt.length, 60));
    json_object_foreach((json_t *)(uintptr_t)s->items[i].columns, key, v) if (keys.length < 200)
        strbuf_printf(&keys, "%s'%.50s'", keys.length ? ", " : "", key);
    status rc = ERR(ERR_INPUT, "reward.answer: the record of the prompt '%s' has no column '%.100s'; it has %s",
                    prompt.text, column, keys.length ? keys.text : "none");
    strbuf_fini(&keys);
    strbuf_fini(&prompt);
    return rc;
}

status scoring_answer(scoring *s, size_t i, const char *column, const json_t **out) {
    const json_t *v = json_object_get(s->items[i].columns, column);
    *out = NULL;
    if (!v) return no_column(s, i, column);
    if (json_is_null(v)) return OK;
    if (!json_is_string(v) && !json_is_number(v))
        return scoring_fail(s, i, "the column '%.50s' holds %s, expected a string or a number", column,
                            json_is_array(v)    ? "a list"
                            : json_is_object(v) ? "an object"
                                                : "true or false");
    *out = v;
    return OK;
}

json_t *item_json(const reward_item *item) {
    json_t *out = json_object(), *v;
    const char *key;
    char renamed[256];
    json_object_set_new(out, "prompt", json_text(item->prompt.text, item->prompt.length));
    json_object_set_new(out, "completion", json_text(item->completion.text, item->completion.length));
    json_object_set_new(out, "n_tokens", json_integer(item->n_tokens));
    json_object_set_new(out, "truncated", json_boolean(item->truncated));
    json_object_foreach((json_t *)(uintptr_t)item->columns, key, v) {
        bool taken = strcmp(key, "prompt") == 0 || strcmp(key, "completion") == 0 || strcmp(key, "n_tokens") == 0 ||
                     strcmp(key, "truncated") == 0;
        snprintf(renamed, sizeof renamed, "data_%s", taken ? key : "");
        json_object_set(out, taken ? renamed : key, v);
    }
    return out;
}
