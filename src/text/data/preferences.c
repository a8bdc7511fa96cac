/* preferences.c - builtin:preferences: right and wrong answers to the problems of builtin:arithmetic.
 *
 * A pair is a problem with its right answer (chosen) and one near it (rejected): off by one, two or ten, as a slip in the
 * last digit or a lost carry is. Labelled, a problem has one of the two, each as often.
 * There are 10,000 examples for training, drawn once for all seeds, and those of evaluation are the problems that
 * builtin:arithmetic never trains on. Their number is finite and does not depend on the seed, so that what is kept by
 * example (see data_row) stays valid; the seed decides the order. All examples have one size: a row takes the next ones
 * of the shuffled epoch, and the last row of an epoch may hold fewer. */
#include "data/arithmetic.h"

#include <stdlib.h>

enum { TRAIN_EXAMPLES = 10000, ANSWERS = 2 };

typedef struct preferences {
    arithmetic problems; /* first: a source */
    data_kind kind;
    uint64_t n[2]; /* examples, per split */
    uint64_t n_undesirable[2];
    uint64_t order_key[2];
    uint64_t wrong_key[2]; /* the same for every seed */
} preferences;

static problem problem_of(const preferences *s, split which, uint64_t example) {
    uint64_t draw = 0;
    if (which == SPLIT_EVAL) return s->problems.held_out[example];
    return arithmetic_draw(&s->problems, which, example, &draw);
}

/* Answers have digits for all numbers below ten times the end of an operand. */
static int64_t wrong_answer(const preferences *s, split which, uint64_t example, int64_t right) {
    static const int64_t slips[4] = {1, 1, 2, 10};
    uint64_t word = rng_u64(s->wrong_key[which], example);
    int64_t slip = slips[word & 3], wrong = word & 4 ? right + slip : right - slip;
    if (wrong < 0) wrong = right + slip;
    if (wrong >= 10 * s->problems.operand_end) wrong = right - slip;
    return wrong;
}

static bool is_undesirable(const preferences *s, split which, uint64_t example) {
    return rng_u64(s->wrong_key[which], example) & 8;
}

/* What a labelled example says. */
static int64_t labelled_answer(const preferences *s, split which, uint64_t example) {
    int64_t right = arithmetic_answer(problem_of(s, which, example));
    return is_undesirable(s, which, example) ? wrong_answer(s, which, example, right) : right;
}

static int64_t examples_per_row(const preferences *s) {
    const source *base = &s->problems.base;
    return base->pack ? base->seq_len / (ANSWERS * s->problems.document_size) : 1;
}

static uint64_t rows_of(const preferences *s, split which) {
    uint64_t each = (uint64_t)examples_per_row(s);
    return (s->n[which] + each - 1) / each;
}

static void put_example(const preferences *s, split which, uint64_t example, uint64_t slot, int64_t at,
                        const data_row *out) {
    problem q = problem_of(s, which, example);
    int64_t right = arithmetic_answer(q), answers[ANSWERS] = {right, wrong_answer(s, which, example, right)};
    data_part parts[ANSWERS] = {PART_CHOSEN, PART_REJECTED};
    if (s->kind == DATA_LABELLED) {
        answers[0] = labelled_answer(s, which, example);
        answers[1] = labelled_answer(s, which, (example + 1) % s->n[which]);
        parts[0] = is_undesirable(s, which, example) ? PART_REJECTED : PART_CHOSEN;
        parts[1] = PART_MISMATCHED;
    }
    if (out->examples) out->examples[slot] = (int32_t)example;
    for (int i = 0; i < ANSWERS; i++, at += s->problems.document_size) {
        arithmetic_put(&s->problems, q, answers[i], at, out);
        row_mark_segment(out, at, at + s->problems.document_size, slot, parts[i]);
    }
}

static void preferences_row(const source *base, split which, uint64_t index, const data_row *out) {
    const preferences *s = (const preferences *)base;
    uint64_t each = (uint64_t)examples_per_row(s), n_rows = rows_of(s, which), row = index % n_rows;
    uint64_t key = rng_u64(s->order_key[which], index / n_rows), n = MIN(each, s->n[which] - row * each);
    int64_t size = ANSWERS * s->problems.document_size;
    for (uint64_t slot = 0; slot < n; slot++)
        put_example(s, which, rng_permute(key, row * each + slot, s->n[which]), slot, (int64_t)slot * size, out);
    row_pad(base, (int64_t)n * size, out);
}

static void preferences_report(const source *base, split which, data_report *out) {
    const preferences *s = (const preferences *)base;
    uint64_t size = ANSWERS * (uint64_t)s->problems.document_size;
    out->n_documents = s->n[which];
    out->n_tokens = s->n[which] * size;
    out->n_trained_tokens = s->n[which] * ANSWERS * (uint64_t)(s->problems.digits + 2); /* with EOS */
    out->n_undesirable = s->n_undesirable[which];
    out->rows_per_epoch = rows_of(s, which);
    out->fill = (double)out->n_tokens / ((double)out->rows_per_epoch * (double)base->seq_len);
}

static uint64_t preferences_n_examples(const source *base, split which) {
    return ((const preferences *)base)->n[which];
}

status preferences_open(source **out, const data_options *o) {
    static const source_kind kind = {.row = preferences_row,
                                     .report = preferences_report,
                                     .problem = arithmetic_problem,
                                     .close = arithmetic_close,
                                     .n_examples = preferences_n_examples};
    TRY(arithmetic_check(o, ANSWERS));
    preferences *s = mem_alloc(sizeof *s);
    arithmetic_init(&s->problems, &kind, o);
    s->kind = o->kind;
    s->n[SPLIT_TRAIN] = TRAIN_EXAMPLES;
    s->n[SPLIT_EVAL] = s->problems.n_held_out;
    for (split which = SPLIT_TRAIN; which <= SPLIT_EVAL; which++) {
        s->problems.key[which] = builtin_split_key(0, "preferences", which);
        s->wrong_key[which] = builtin_split_key(0, "preferences.wrong", which);
        s->order_key[which] = builtin_split_key(o->seed, "preferences.order", which);
        for (uint64_t i = 0; o->kind == DATA_LABELLED && i < s->n[which]; i++)
            s->n_undesirable[which] += is_undesirable(s, which, i);
    }
    s->problems.base.fingerprint =
        rng_u64(rng_key(0, "data.preferences"), (uint64_t)o->difficulty * PART_STRIDE + (uint64_t)o->kind);
    *out = &s->problems.base;
    return OK;
}
