/* example_rows.c - which examples of preferences are in row i.
 *
 * An example is one size to pack: that of all its documents, which stand one after the other in one row. So the rows are
 * those of records (pack.c, and the shuffled order of rows.c), and nothing but the documents of an example is new.
 *
 * With share_prompts the second document of an example is stored without what it has in common with the first one, up to the token
 * before the last of its prompt: that one is repeated, because it has a target in each of them (row.shared).
 *
 * DATA_LABELLED: the mismatched document is put together from two stored ones, the tokens before the response of one and
 * the response of another, as TRL does. Which other is decided here once: it must be the same in every epoch, or
 * log-probabilities of a reference could not be kept by example. Files often have several answers to one prompt one
 * after the other, and an answer to the same prompt does not mismatch: so it is the next example with another prompt. */
#include "data/rows.h"

#include <stdlib.h>
#include <string.h>

static document document_number(const row_space *r, uint64_t number) {
    const segment *s = row_space_record(r, number);
    return document_of(s, number - s->number);
}

static const store_document *stored(const row_space *r, uint64_t number) {
    const segment *s = row_space_record(r, number);
    return &s->store->documents[s->first_document + number - s->number];
}

/* ---- mismatched responses --------------------------------------------------------------------------------------- */

/* Every stored answer follows a token that is not trained on. */
static uint64_t response_begin(const document *d) {
    uint64_t i = 0;
    while (!trained_at(d, i)) i++;
    return i;
}

static bool same_prompt(const document *a, const document *b) {
    uint64_t n = response_begin(a);
    if (n != response_begin(b)) return false;
    for (uint64_t i = 0; i < n; i++)
        if (token_at(a, i, -1) != token_at(b, i, -1)) return false;
    return true;
}

/* For each example the next one with another prompt, or just the next one where all have the same. Twice backwards: the
 * second time around those before the end know what comes after it. */
static void find_next_prompts(row_space *r, uint32_t n) {
    bool any = false, *same = mem_alloc(n * sizeof *same);
    for (uint32_t e = 0; e < n; e++) {
        document a = document_number(r, e), b = document_number(r, (e + 1) % n);
        same[e] = same_prompt(&a, &b);
        any |= !same[e];
        r->mismatched[e] = (e + 1) % n;
    }
    for (uint64_t i = 2 * (uint64_t)n; any && i-- > 0;) {
        uint32_t e = (uint32_t)(i % n);
        if (same[e]) r->mismatched[e] = r->mismatched[(e + 1) % n];
    }
    free(same);
}

/* Tokens of the second document that stand at the beginning of the first one and need no second place: all that come before the last
 * one in front of the response. */
static uint64_t shared_tokens(const row_space *r, const document *first, const document *second) {
    uint64_t n = 0, most;
    if (!r->share_prompts) return 0;
    most = MIN(response_begin(first), response_begin(second)) - 1;
    while (n < most && token_at(first, n, r->eos) == token_at(second, n, r->eos)) n++;
    return n;
}

typedef struct response {
    uint64_t begin, n; /* tokens before it, and its own */
} response;

/* The two shortest: an example does not mismatch itself. */
static void find_shortest(const response *all, uint32_t n, uint32_t shortest[2]) {
    shortest[0] = shortest[1] = 0;
    for (uint32_t e = 1; e < n; e++) {
        if (all[e].n < all[shortest[0]].n) {
            shortest[1] = shortest[0];
            shortest[0] = e;
        } else if (shortest[1] == shortest[0] || all[e].n < all[shortest[1]].n) {
            shortest[1] = e;
        }
    }
}

/* Sizes of the examples, once each has its mismatched response. */
static void choose_mismatched(row_space *r, uint32_t n, uint64_t *sizes) {
    uint32_t shortest[2];
    response *all = mem_alloc(n * sizeof *all);
    r->mismatched = mem_alloc(n * sizeof *r->mismatched);
    r->n_heap_bytes += n * sizeof *r->mismatched;
    for (uint32_t e = 0; e < n; e++) {
        document d = document_number(r, e);
        uint64_t begin = response_begin(&d);
        all[e] = (response){begin, d.n - begin};
    }
    find_next_prompts(r, n);
    find_shortest(all, n, shortest);
    for (uint32_t e = 0; e < n; e++) {
        uint64_t shared = r->share_prompts ? all[e].begin - 1 : 0; /* the same document twice */
        uint64_t fixed = 2 * all[e].begin + all[e].n - shared;
        if (fixed + all[r->mismatched[e]].n > (uint64_t)r->T) r->mismatched[e] = shortest[shortest[0] == e];
        sizes[e] = fixed + all[r->mismatched[e]].n;
    }
    free(all);
}

/* ---- layout ----------------------------------------------------------------------------------------------------- */

static void add_pair_sizes(const row_space *r, uint32_t n, uint64_t *sizes) {
    for (uint32_t e = 0; e < n; e++) {
        document a = document_number(r, 2 * (uint64_t)e), b = document_number(r, 2 * (uint64_t)e + 1);
        sizes[e] = a.n + b.n - shared_tokens(r, &a, &b);
    }
}

void row_space_example_sizes(row_space *r, uint64_t *sizes) {
    uint32_t n = (uint32_t)row_space_n_examples(r);
    if (r->kind == DATA_PAIRS) {
        add_pair_sizes(r, n, sizes);
        return;
    }
    row_space any = *r; /* a row without an end: every example keeps the response of the next one */
    any.T = INT64_MAX;
    choose_mismatched(&any, n, sizes);
    free(any.mismatched);
}

/* Trained tokens of an example; all of its answers, because something comes before each of them. */
static uint64_t count_trained(const row_space *r, uint32_t e) {
    if (r->kind == DATA_PAIRS) return stored(r, 2 * (uint64_t)e)->n_trained + stored(r, 2 * (uint64_t)e + 1)->n_trained;
    return stored(r, e)->n_trained + stored(r, r->mismatched[e])->n_trained;
}

/* Of an example whose prompt is repeated. */
static uint64_t example_tokens(const row_space *r, uint32_t e) {
    if (r->kind == DATA_PAIRS) return document_number(r, 2 * (uint64_t)e).n + document_number(r, 2 * (uint64_t)e + 1).n;
    document d = document_number(r, e), other = document_number(r, r->mismatched[e]);
    return d.n + response_begin(&d) + other.n - response_begin(&other);
}

/* Counts what becomes of an example; its size in a row, 0: it is too long for one. */
static uint32_t place_example(row_space *r, uint32_t e, uint64_t size) {
    uint64_t number = e * documents_per_example(r->kind), all = example_tokens(r, e), own = all;
    data_report *report = row_space_record(r, number)->report;
    if (r->kind == DATA_LABELLED) {
        own = document_number(r, e).n;
        report->n_undesirable += stored(r, e)->is_undesirable;
    }
    ASSERT(size >= PART_STRIDE); /* two documents, each of an answer and what it follows: see data_example_slots */
    if (size > (uint64_t)r->T) {
        report->n_dropped_documents++;
        report->n_dropped_tokens += own;
        return 0;
    }
    r->n_placed += size;
    report->n_tokens += size - own; /* the stored ones were counted when they were added */
    report->n_shared_tokens += all - size;
    report->n_trained_tokens += count_trained(r, e);
    return (uint32_t)size;
}

static int compare_sizes(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

status row_space_lay_out_examples(row_space *r) {
    uint64_t n_examples = row_space_n_examples(r);
    if (n_examples == 0) return OK;
    if (r->first_example + n_examples > INT32_MAX)
        return ERR(ERR_INPUT, "data: found %llu examples of preferences, expected fewer than 2^31",
                   (unsigned long long)(r->first_example + n_examples));
    uint32_t n = (uint32_t)n_examples, *sizes = mem_alloc(n * sizeof *sizes);
    uint64_t *wanted = mem_alloc(n * sizeof *wanted);
    if (r->kind == DATA_PAIRS) add_pair_sizes(r, n, wanted);
    else choose_mismatched(r, n, wanted);
    for (uint32_t e = 0; e < n; e++) sizes[e] = place_example(r, e, wanted[e]);
    pack_rows(sizes, n, (uint32_t)r->T, !r->pack, &r->packing);
    r->n_heap_bytes += n * sizeof(uint32_t) + r->packing.n_rows * sizeof(uint64_t);
    if (r->packing.n_rows == 0) {
        qsort(wanted, n, sizeof *wanted, compare_sizes);
        r->size_half = wanted[(n - 1) / 2];
        r->size_all = wanted[n - 1];
    }
    free(wanted);
    free(sizes);
    return OK;
}

/* No data.seq_len is advised that the model would refuse: a row has at most its positions. */
static void advise_row(const row_space *r, int64_t positions, strbuf *out) {
    unsigned long long half = r->size_half, all = r->size_all;
    bool all_fit = !positions || r->size_all <= (uint64_t)positions;
    bool half_fit = half < all && (!positions || r->size_half <= (uint64_t)positions);
    if (half_fit) strbuf_printf(out, "data.seq_len=%llu would hold half of them, ", half);
    if (all_fit) strbuf_printf(out, "data.seq_len=%llu %s", all, half_fit ? "all" : "would hold all");
    if (all_fit) return;
    strbuf_printf(out, "the model has %lld positions, and rows of ", (long long)positions);
    bool names_half = half < all && !half_fit;
    if (names_half) strbuf_printf(out, "%llu would hold half of them, of ", half);
    strbuf_printf(out, "%llu %s: ", all, names_half ? "all" : "would hold all");
    strbuf_add(out,
               "give shorter ones, or more positions where they are rotary (model.max_positions, with data.seq_len)");
}

status row_space_none_fits(const row_space *r, const char *name, split which, int64_t positions) {
    uint64_t n = row_space_n_examples(r);
    strbuf advice;
    strbuf_init(&advice);
    advise_row(r, positions, &advice);
    status rc =
        ERR(ERR_INPUT,
            "%.500s: found %llu example%s of preferences for %s, each longer than a row of %lld tokens (all its "
            "answers with their prompts), expected one that fits; %s",
            name, (unsigned long long)n, n == 1 ? "" : "s", which == SPLIT_TRAIN ? "training" : "evaluation",
            (long long)r->T, advice.text);
    strbuf_fini(&advice);
    return rc;
}

/* ---- rows ------------------------------------------------------------------------------------------------------- */

static void mark_shared(const data_row *out, int64_t from, int64_t to, uint64_t n) {
    for (int64_t t = from; out->shared && t < to; t++) out->shared[t] = (int32_t)n;
}

/* Without its first `shared` tokens, which stand at the beginning of the document before it. */
static int64_t fill_part(const row_space *r, uint64_t number, uint64_t slot, data_part part, uint64_t shared,
                         int64_t at, const data_row *out) {
    document d = document_number(r, number);
    int64_t end = row_fill_document(r, &d, shared, at, out);
    row_mark_segment(out, at, end, slot, part);
    mark_shared(out, at, end, shared);
    return end;
}

static int64_t fill_pair(const row_space *r, uint64_t e, uint64_t slot, int64_t at, const data_row *out) {
    document a = document_number(r, 2 * e), b = document_number(r, 2 * e + 1);
    at = fill_part(r, 2 * e, slot, PART_CHOSEN, 0, at, out);
    return fill_part(r, 2 * e + 1, slot, PART_REJECTED, shared_tokens(r, &a, &b), at, out);
}

/* The prompt of one example and the response of another as one document. */
static int64_t fill_mismatched(const row_space *r, uint64_t number, uint64_t slot, int64_t at, const data_row *out) {
    document d = document_number(r, number), other = document_number(r, r->mismatched[number]);
    uint64_t n_before = response_begin(&d), begin = response_begin(&other),
             shared = r->share_prompts ? n_before - 1 : 0;
    int64_t start = at;
    for (uint64_t i = shared; i < n_before; i++, at++) {
        out->tokens[at] = token_at(&d, i, r->eos);
        out->targets[at] = -1;
    }
    out->targets[at - 1] = token_at(&other, begin, r->eos);
    at = row_fill_document(r, &other, begin, at, out);
    for (int64_t t = start; t < at; t++) out->doc_start[t] = (int32_t)start;
    row_mark_segment(out, start, at, slot, PART_MISMATCHED);
    mark_shared(out, start, at, shared);
    return at;
}

int64_t row_space_fill_examples(const row_space *r, uint64_t row, const data_row *out) {
    int64_t at = 0;
    uint64_t first = r->packing.row_begin[row], n = r->packing.row_begin[row + 1] - first;
    for (uint64_t slot = 0; slot < n; slot++) {
        uint64_t e = r->packing.documents[first + slot];
        if (out->examples) out->examples[slot] = (int32_t)(r->first_example + e);
        if (r->kind == DATA_PAIRS) {
            at = fill_pair(r, e, slot, at, out);
        } else {
            at = fill_part(r, e, slot, stored(r, e)->is_undesirable ? PART_REJECTED : PART_CHOSEN, 0, at, out);
            at = fill_mismatched(r, e, slot, at, out);
        }
    }
    return at;
}
