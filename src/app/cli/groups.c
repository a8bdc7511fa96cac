/* groups.c - several adapters by name: which prompts each answers, one adapter after the other, and all answers in order.
 *
 * A generator has one adapter in use at a time, so prompts are grouped and each adapter is read once. A prompt is encoded when its adapter
 * is in use: with that one's tokenizer and chat format. It keeps its number in the whole list, by which tokens are sampled, so an answer
 * does not depend on what other adapters answer. Answers are told by that number: one whose turn has not come waits. */
#include "cli/groups.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- flags ------------------------------------------------------------------------------------------------------- */

/* NAME=DIR: the length of NAME; 0: it is a directory alone, of which one that is there may have a '=' in its name. */
static size_t name_length(const char *text) {
    size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    return n > 0 && text[n] == '=' && text[n + 1] && access(text, F_OK) != 0 ? n : 0;
}

status adapters_from_flags(command_line *l) {
    const text_list *given = &l->adapters;
    generator_options *o = &l->generation;
    if (given->n == 1 && !name_length(given->items[0])) {
        o->adapter = given->items[0];
    } else if (given->n > 0) {
        named_adapter *list = arena_array(&l->memory, named_adapter, given->n);
        for (size_t i = 0; i < given->n; i++) {
            size_t n = name_length(given->items[i]);
            if (n == 0)
                return ERR(ERR_INPUT,
                           "generate: found %zu adapters and no name for '%.300s', expected NAME=DIR for each of "
                           "several, such as --adapter code=adapters/code",
                           given->n, given->items[i]);
            list[i] =
                (named_adapter){arena_format(&l->memory, "%.*s", (int)n, given->items[i]), given->items[i] + n + 1};
        }
        o->adapters = list;
        o->n_adapters = given->n;
    }
    if (l->use_adapter && o->n_adapters == 0)
        return ERR(ERR_INPUT, "generate: --use %.100s is for --adapter NAME=DIR, found none with a name",
                   l->use_adapter);
    return OK;
}

/* ---- which prompts ----------------------------------------------------------------------------------------------- */

static void add(group *g, const question *q) {
    g->q.items = array_grow(g->q.items, &g->q.capacity, g->q.n + 1, sizeof *g->q.items);
    g->q.items[g->q.n++] = *q;
}

static status find_group(const groups *a, const question *q, const char *otherwise, group **out) {
    const char *name = q->adapter ? q->adapter : otherwise;
    const data_record *r = &q->record;
    for (size_t i = 0; name && i < a->n; i++)
        if (strcmp(a->items[i].adapter, name) == 0) {
            *out = &a->items[i];
            return OK;
        }
    strbuf names;
    strbuf_init(&names);
    for (size_t i = 0; i < a->n; i++) strbuf_printf(&names, "%s%s", i ? ", " : "", a->items[i].adapter);
    status rc =
        name && !q->adapter ? ERR(ERR_INPUT, "--use: found the adapter '%.100s', expected one of %s", name, names.text)
        : name              ? ERR(ERR_INPUT, "%s:%llu: found the adapter '%.100s', expected one of %s", r->path,
                                  (unsigned long long)r->line, name, names.text)
                            : ERR(ERR_INPUT,
                                  "%s:%llu: found a prompt that names no adapter, expected --use NAME, or in a record the key "
                                               "\"adapter\", with one of %s",
                                  r->path, (unsigned long long)r->line, names.text);
    strbuf_fini(&names);
    return rc;
}

status groups_make(groups *out, const questions *q, const command_line *l) {
    size_t n = l->generation.n_adapters;
    answer_order order = {.n_numbers = q->n, .n_each = (size_t)l->sampling.n_completions};
    order.waiting = mem_alloc(order.n_numbers * order.n_each * sizeof *order.waiting);
    order.left_out = mem_alloc(order.n_numbers * sizeof *order.left_out);
    *out = (groups){.n = n ? n + 1 : 1, .order = order, .n_skipped = q->skips.n, .chat = CHAT_AUTO};
    out->items = mem_alloc(out->n * sizeof *out->items);
    for (size_t i = 0; n && i <= n; i++) out->items[i].adapter = i < n ? l->generation.adapters[i].name : ADAPTER_BASE;
    status rc = OK;
    for (size_t i = 0; i < q->n && rc == OK; i++) {
        group *to = out->items;
        if (n) rc = find_group(out, &q->items[i], l->use_adapter, &to);
        if (rc == OK) add(to, &q->items[i]);
    }
    if (rc != OK) groups_fini(out);
    return rc;
}

void groups_fini(groups *a) {
    for (size_t i = 0; i < a->n; i++) {
        group *g = &a->items[i];
        completions_free(g->completions, g->n_completions);
        asked_fini(&g->asked);
        free(g->q.items);
    }
    free(a->items);
    free(a->order.waiting);
    free(a->order.left_out);
    *a = (groups){0};
}

/* ---- answers that have ended ------------------------------------------------------------------------------------- */

/* One adapter's run, as its generator tells of it. */
typedef struct group_run {
    groups *all;
    const group *group;
    const groups_observer *observer;
} group_run;

static void tell_in_order(answer_order *o, const groups_observer *observer) {
    for (; o->next < o->n_numbers * o->n_each; o->next++) {
        const size_t number = o->next / o->n_each;
        ended_answer *a = &o->waiting[o->next];
        if (o->left_out[number]) {
            o->n_left_out += o->next % o->n_each == 0;
            continue;
        }
        if (!a->completion) return;
        a->prompt = number - o->n_left_out;
        observer->on_answer(a);
    }
}

static void answer_ended(void *context, size_t prompt, size_t index, const completion *c) {
    const group_run *r = context;
    answer_order *o = &r->all->order;
    o->waiting[r->group->q.items[prompt].number * o->n_each + index] = (ended_answer){
        .index = (int64_t)index, .n_each = (int64_t)o->n_each, .adapter = r->group->adapter, .completion = c};
    tell_in_order(o, r->observer);
}

static void text_grew(void *context, size_t prompt, size_t index, const char *text, size_t n_bytes) {
    ((const group_run *)context)->observer->on_text(text, n_bytes);
}

/* Until a group is encoded, nobody knows which of its prompts will be answered. */
static status encode_group(groups *a, group *x, const generator *g, command_line *l) {
    const size_t n = x->q.n;
    size_t *numbers = mem_alloc(n * sizeof *numbers);
    for (size_t i = 0; i < n; i++) numbers[i] = x->q.items[i].number;
    status rc = questions_encode(&x->q, g, l, &x->asked);
    for (size_t i = 0, kept = 0; i < n; i++) {
        const bool is_kept = kept < x->q.n && x->q.items[kept].number == numbers[i];
        kept += is_kept;
        a->order.left_out[numbers[i]] = !is_kept;
    }
    free(numbers);
    a->n_skipped += x->q.skips.n;
    return rc;
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static void add_report(generation_report *to, const generation_report *r) {
    to->prompt_tokens += r->prompt_tokens, to->new_tokens += r->new_tokens, to->shared_tokens += r->shared_tokens;
    to->prefill_steps += r->prefill_steps, to->decode_steps += r->decode_steps;
    to->verified += r->verified, to->drafted += r->drafted, to->accepted += r->accepted;
    to->prefill_seconds += r->prefill_seconds, to->decode_seconds += r->decode_seconds;
    to->memory = r->memory; /* peaks since the generator was opened */
}

static bool is_only(const groups *a, const group *x) {
    size_t n = 0;
    for (size_t i = 0; i < a->n; i++) n += a->items[i].q.n;
    return n == x->q.n;
}

static status run_group(groups *a, group *x, generator *g, command_line *l, const groups_observer *observer) {
    generation_report report;
    sampling_options s;
    size_t *numbers = NULL;
    if (x->adapter) TRY(generator_use(g, x->adapter));
    l->sampling.ends = NULL, l->sampling.n_ends = 0;
    TRY(encode_group(a, x, g, l));
    if (a->chat == CHAT_AUTO) a->chat = x->asked.chat;
    s = l->sampling;
    if (x->adapter) {
        s.numbers = numbers = mem_alloc(x->q.n * sizeof *numbers);
        for (size_t i = 0; i < x->q.n; i++) numbers[i] = x->q.items[i].number;
    }
    x->n_completions = x->q.n * (size_t)s.n_completions;
    a->streams = observer && x->n_completions == 1 && is_only(a, x);
    group_run run = {a, x, observer};
    const generation_observer told = {
        .context = &run, .on_text = a->streams ? text_grew : NULL, .on_completion = a->streams ? NULL : answer_ended};
    status rc = generator_run(g, x->asked.prompts, x->q.n, &s, observer ? &told : NULL, &x->completions, &report);
    free(numbers);
    TRY(rc);
    add_report(&a->report, &report);
    x->n_cut = completions_cut(g, x->completions, x->n_completions, s.max_new);
    return OK;
}

status groups_run(groups *a, generator *g, command_line *l, const groups_observer *observer) {
    for (size_t i = 0; i < a->n; i++)
        if (a->items[i].q.n > 0) TRY(run_group(a, &a->items[i], g, l, observer));
    return OK;
}

static int by_number(const void *a, const void *b) {
    size_t x = ((const answer *)a)->question->number, y = ((const answer *)b)->question->number;
    return (x > y) - (x < y);
}

answer *groups_answers(const groups *a, int64_t n_each, size_t *n) {
    size_t count = 0;
    for (size_t i = 0; i < a->n; i++) count += a->items[i].q.n;
    answer *list = mem_alloc(MAX(count, (size_t)1) * sizeof *list);
    *n = 0;
    for (size_t i = 0; i < a->n; i++)
        for (size_t k = 0; k < a->items[i].q.n; k++) {
            const group *x = &a->items[i];
            list[(*n)++] =
                (answer){&x->q.items[k], x->asked.prompts[k], x->completions + k * (size_t)n_each, x->adapter};
        }
    qsort(list, *n, sizeof *list, by_number);
    return list;
}
