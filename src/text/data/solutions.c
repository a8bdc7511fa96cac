/* solutions.c - from solutions of problems to pairs of a correct and a wrong one. solutions.h says which. */
#include "data/solutions.h"
#include "data/record_parts.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- keys of a record -------------------------------------------------------------------------------------------- */

static const char *column_or(const char *column, const char *usual) { return column && *column ? column : usual; }

static status read_correct(const json_t *v, const char *key, place at, bool *out) {
    if (!json_is_boolean(v))
        return ERR(ERR_INPUT, "%s:%llu: key '%.100s': found %s, expected true or false%s" SKIP_HINT, at.path, at.line,
                   key, record_kind_of(v), v ? "" : "; data.correct_column names another key");
    *out = json_is_true(v);
    return OK;
}

status solution_may_imitate(const json_t *object, const record_options *o, const char *path, uint64_t line, bool *out) {
    const char *key = column_or(o->correct_column, "is_correct");
    const json_t *v = json_object_get(object, key);
    *out = true;
    if (!v && !(o->correct_column && *o->correct_column)) return OK;
    return read_correct(v, key, (place){path, (unsigned long long)line}, out);
}

/* A name or a whole number; 7 and "7" are the same. */
static bool hash_name(const json_t *v, uint64_t *out) {
    char number[32];
    if (json_is_string(v) && json_string_length(v) > 0) {
        *out = XXH3_64bits(json_string_value(v), json_string_length(v));
        return true;
    }
    if (!json_is_integer(v)) return false;
    int n = snprintf(number, sizeof number, "%lld", (long long)json_integer_value(v));
    *out = XXH3_64bits(number, (size_t)n);
    return true;
}

status solution_keys_read(const json_t *object, const record_options *o, const char *path, uint64_t line,
                          solution_keys *out) {
    place at = {path, (unsigned long long)line};
    const char *correct = column_or(o->correct_column, "is_correct"), *task = column_or(o->task_column, "task_id"),
               *difficulty = column_or(o->difficulty_column, "difficulty");
    const json_t *id = json_object_get(object, task), *hard = json_object_get(object, difficulty);
    *out = (solution_keys){0};
    TRY(read_correct(json_object_get(object, correct), correct, at, &out->is_correct));
    if (!hash_name(id, &out->task))
        return ERR(
            ERR_INPUT,
            "%s:%llu: key '%.100s': found %s, expected the name or the number of the problem, the same in all of "
            "its solutions%s" SKIP_HINT,
            at.path, at.line, task, record_kind_of(id), id ? "" : "; data.task_column names another key");
    if (!hard || json_is_null(hard)) return OK;
    double number = json_number_value(hard);
    if (json_is_real(hard)) out->difficulty = XXH3_64bits(&number, sizeof number);
    else if (!hash_name(hard, &out->difficulty))
        return ERR(ERR_INPUT, "%s:%llu: key '%.100s': found %s, expected a word or a number, or nothing" SKIP_HINT,
                   at.path, at.line, difficulty, record_kind_of(hard));
    return OK;
}

/* ---- all solutions ----------------------------------------------------------------------------------------------- */

typedef struct solution {
    uint64_t problem, difficulty, answer; /* hashes */
    uint64_t line, key;                   /* key: its place in the seeded order */
    uint32_t number;                      /* of its document */
    uint16_t length_bin;
    bool is_correct;
} solution;

typedef struct solution_pair {
    uint32_t chosen, rejected; /* documents */
    uint32_t number, rank;     /* of all pairs, and of those of its problem */
    uint64_t bin, key;         /* bin: difficulty and length */
    bool is_used;
} solution_pair;

typedef struct problem_group {
    size_t begin, n; /* of the sorted solutions */
    uint32_t first;  /* the document that comes first in the file */
} problem_group;

status solution_set_open(solution_set *s, uint32_t width) {
    *s = (solution_set){0};
    return store_builder_open(&s->builder, &s->store, width, NULL, 0);
}

void solution_set_close(solution_set *s) {
    if (s->builder.hash) store_builder_close(&s->builder);
    store_close(&s->store);
    free(s->items);
    *s = (solution_set){0};
}

/* Lengths in one bin differ by less than a half. */
static uint16_t length_bin(size_t n) {
    uint16_t octave = 0;
    while (n >> (octave + 1)) octave++;
    return (uint16_t)(2 * octave + (octave > 0 && (n >> (octave - 1) & 1)));
}

status solution_set_add(solution_set *s, const chat_tokens *t, const solution_keys *k, uint64_t line) {
    size_t first = 0, n = s->store.n_documents;
    while (first < t->n && !t->trained[first]) first++;
    if (n >= UINT32_MAX / 2) return ERR(ERR_INPUT, "data: found 2^31 solutions in a file, expected fewer");
    s->items = array_grow(s->items, &s->capacity, n + 1, sizeof *s->items);
    s->items[n] = (solution){.problem = XXH3_64bits_withSeed(t->ids, first * sizeof *t->ids, k->task),
                             .difficulty = k->difficulty,
                             .answer = XXH3_64bits(t->ids + first, (t->n - first) * sizeof *t->ids),
                             .line = line,
                             .number = (uint32_t)n,
                             .length_bin = length_bin(t->n - first),
                             .is_correct = k->is_correct};
    TRY(store_add(&s->builder, t->ids, t->trained, t->n));
    store_end_document(&s->builder);
    return OK;
}

static int compare_u64(uint64_t a, uint64_t b) { return (a > b) - (a < b); }

static int by_problem(const void *a, const void *b) {
    const solution *x = a, *y = b;
    int c = compare_u64(x->problem, y->problem);
    if (!c) c = compare_u64(x->answer, y->answer);
    return c ? c : compare_u64(x->number, y->number);
}

static int by_kind_and_length(const void *a, const void *b) {
    const solution *x = a, *y = b;
    if (x->is_correct != y->is_correct) return y->is_correct - x->is_correct;
    int c = compare_u64(x->length_bin, y->length_bin);
    if (!c) c = compare_u64(x->key, y->key);
    return c ? c : compare_u64(x->number, y->number);
}

static int by_first(const void *a, const void *b) {
    return compare_u64(((const problem_group *)a)->first, ((const problem_group *)b)->first);
}

/* Sorts by problem, and keeps one of solutions that are equal: the first. */
static status remove_repeated(solution_set *s, const data_options *o, const char *name, uint64_t *n_skipped,
                              size_t *n) {
    size_t kept = 0, all = s->store.n_documents;
    qsort(s->items, all, sizeof *s->items, by_problem);
    for (size_t i = 0; i < all; i++) {
        solution *last = kept ? &s->items[kept - 1] : NULL, *x = &s->items[i];
        if (!last || last->problem != x->problem || last->answer != x->answer) {
            s->items[kept++] = *x;
            continue;
        }
        if (last->is_correct == x->is_correct) continue;
        if (o->records.on_error == RECORDS_STOP)
            return ERR(ERR_INPUT,
                       "%s:%llu: found a solution that is %s here and %s in line %llu, expected one of them" SKIP_HINT,
                       name, (unsigned long long)x->line, x->is_correct ? "correct" : "wrong",
                       last->is_correct ? "correct" : "wrong", (unsigned long long)last->line);
        ++*n_skipped;
    }
    *n = kept;
    return OK;
}

static problem_group *find_problems(const solution_set *s, size_t n, size_t *n_groups) {
    problem_group *groups = NULL;
    size_t capacity = 0;
    *n_groups = 0;
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || s->items[i].problem != s->items[i - 1].problem) {
            groups = array_grow(groups, &capacity, *n_groups + 1, sizeof *groups);
            groups[(*n_groups)++] = (problem_group){i, 0, s->items[i].number};
        }
        problem_group *g = &groups[*n_groups - 1];
        g->n++;
        g->first = MIN(g->first, s->items[i].number);
    }
    qsort(groups, *n_groups, sizeof *groups, by_first);
    return groups;
}

/* ---- pairs of a problem ------------------------------------------------------------------------------------------ */

typedef struct pair_list {
    solution_pair *pairs;
    size_t n, capacity;
    uint32_t rank; /* pairs of the problem at hand */
    uint64_t most; /* ... */
} pair_list;

static void add_pair(pair_list *l, const solution *chosen, const solution *rejected, uint64_t difficulty) {
    l->pairs = array_grow(l->pairs, &l->capacity, l->n + 1, sizeof *l->pairs);
    l->pairs[l->n] = (solution_pair){.chosen = chosen->number,
                                     .rejected = rejected->number,
                                     .number = (uint32_t)l->n,
                                     .rank = l->rank++,
                                     .bin = difficulty * 64 + chosen->length_bin,
                                     .key = chosen->key ^ rejected->key * 3,
                                     .is_used = true};
    l->n++;
}

/* Number q of the pairs of n_a and n_b things: each once, and each thing about as often. */
static bool nth_pair(uint64_t q, uint64_t n_a, uint64_t n_b, uint64_t *a, uint64_t *b) {
    *a = q % n_a;
    *b = (*a + q / n_a) % n_b;
    return q < n_a * n_b;
}

/* One pair of each length, then a second of each ... Both lists are sorted by length. */
static void pair_equal_lengths(pair_list *l, const solution *right, size_t n_right, const solution *wrong,
                               size_t n_wrong) {
    bool any = true;
    for (uint64_t turn = 0; any && l->rank < l->most; turn++) {
        any = false;
        for (size_t i = 0, j = 0; i < n_right && j < n_wrong && l->rank < l->most;) {
            uint16_t bin = right[i].length_bin;
            size_t first_i = i, first_j;
            uint64_t a, b;
            while (i < n_right && right[i].length_bin == bin) i++;
            while (j < n_wrong && wrong[j].length_bin < bin) j++;
            first_j = j;
            while (j < n_wrong && wrong[j].length_bin == bin) j++;
            if (j == first_j || !nth_pair(turn, i - first_i, j - first_j, &a, &b)) continue;
            any = true;
            add_pair(l, &right[first_i + a], &wrong[first_j + b], right[0].difficulty);
        }
    }
}

/* Those of equal lengths are all taken by now and fewer than the most, so little is passed over. */
static void pair_other_lengths(pair_list *l, const solution *right, size_t n_right, const solution *wrong,
                               size_t n_wrong) {
    uint64_t a, b;
    for (uint64_t q = 0; l->rank < l->most && nth_pair(q, n_right, n_wrong, &a, &b); q++)
        if (right[a].length_bin != wrong[b].length_bin) add_pair(l, &right[a], &wrong[b], right[0].difficulty);
}

/* False: all solutions are correct, or all are wrong. */
static bool pair_problem(pair_list *l, solution *items, size_t n) {
    size_t n_right = 0;
    uint64_t difficulty = items[0].difficulty;
    for (size_t i = 0; i < n; i++) {
        n_right += items[i].is_correct;
        items[i].difficulty = difficulty; /* of a problem there is one */
    }
    if (n_right == 0 || n_right == n) return false;
    qsort(items, n, sizeof *items, by_kind_and_length);
    l->rank = 0;
    pair_equal_lengths(l, items, n_right, items + n_right, n - n_right);
    pair_other_lengths(l, items, n_right, items + n_right, n - n_right);
    return true;
}

/* ---- as many of each difficulty and length ----------------------------------------------------------------------- */

static int by_bin(const void *a, const void *b) {
    const solution_pair *x = a, *y = b;
    int c = compare_u64(x->bin, y->bin);
    if (!c) c = compare_u64(x->rank, y->rank); /* the first pairs of many problems before the second ones */
    if (!c) c = compare_u64(x->key, y->key);
    return c ? c : compare_u64(x->number, y->number);
}

static int by_number(const void *a, const void *b) {
    return compare_u64(((const solution_pair *)a)->number, ((const solution_pair *)b)->number);
}

/* Takes one pair of each bin in turn until there are enough. */
static void balance(pair_list *l, uint64_t most) {
    size_t n_bins = 0, *begin = mem_alloc((l->n + 1) * sizeof *begin);
    uint64_t taken = 0;
    qsort(l->pairs, l->n, sizeof *l->pairs, by_bin);
    for (size_t i = 0; i < l->n; i++) {
        if (i == 0 || l->pairs[i].bin != l->pairs[i - 1].bin) begin[n_bins++] = i;
        l->pairs[i].is_used = false;
    }
    begin[n_bins] = l->n;
    for (size_t turn = 0; taken < most; turn++)
        for (size_t b = 0; b < n_bins && taken < most; b++)
            if (begin[b] + turn < begin[b + 1]) l->pairs[begin[b] + turn].is_used = true, taken++;
    qsort(l->pairs, l->n, sizeof *l->pairs, by_number);
    free(begin);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static status write_document(const token_store *s, uint32_t number, chat_tokens *room, store_builder *out) {
    uint64_t begin = store_document_begin(s, number), n = s->documents[number].end - begin;
    room->ids = array_grow(room->ids, &room->capacity, n, sizeof *room->ids);
    room->trained = array_grow(room->trained, &room->trained_capacity, n, 1);
    for (uint64_t i = 0; i < n; i++) {
        room->ids[i] = store_token(s, begin + i);
        room->trained[i] = store_trained(s, begin + i);
    }
    TRY(store_add(out, room->ids, room->trained, n));
    store_end_document(out);
    return OK;
}

static status no_pairs(const char *name, uint64_t n_problems, size_t n_solutions, uint64_t n_correct) {
    return ERR(
        ERR_INPUT,
        "%s: found %zu solutions (%llu correct) of %llu problems and not one problem with a correct and a wrong "
        "one, expected at least one pair to compare; problems are told apart by 'task_id' (data.task_column) and "
        "their prompt",
        name, n_solutions, (unsigned long long)n_correct, (unsigned long long)n_problems);
}

status solution_set_write(solution_set *s, const data_options *o, const char *name, store_builder *out) {
    size_t n = 0, n_groups;
    uint64_t key = rng_key(o->seed, "data.solutions"), n_correct = 0;
    token_store *store = out->store;
    pair_list l = {.most = (uint64_t)(o->pairs_per_problem ? o->pairs_per_problem : PAIRS_PER_PROBLEM)};
    status rc = OK;
    TRY(remove_repeated(s, o, name, &store->n_skipped, &n));
    for (size_t i = 0; i < n; i++) {
        s->items[i].key = rng_u64(key, s->items[i].problem ^ s->items[i].answer);
        n_correct += s->items[i].is_correct;
    }
    TRY(store_builder_finish(&s->builder));
    problem_group *groups = find_problems(s, n, &n_groups);
    for (size_t g = 0; g < n_groups; g++)
        store->n_unpaired += !pair_problem(&l, s->items + groups[g].begin, groups[g].n);
    free(groups);
    store->n_problems = n_groups;
    if (l.n == 0) return no_pairs(name, n_groups, n, n_correct);
    if (o->max_pairs > 0 && l.n > (uint64_t)o->max_pairs) {
        store->n_unused_pairs = l.n - (uint64_t)o->max_pairs;
        balance(&l, (uint64_t)o->max_pairs);
    }
    chat_tokens room = {0};
    for (size_t i = 0; i < l.n && rc == OK; i++) {
        if (!l.pairs[i].is_used) continue;
        rc = write_document(&s->store, l.pairs[i].chosen, &room, out);
        if (rc == OK) rc = write_document(&s->store, l.pairs[i].rejected, &room, out);
    }
    store->kind = DATA_PAIRS;
    store->has_prompts = true;
    chat_tokens_free(&room);
    free(l.pairs);
    return rc;
}
