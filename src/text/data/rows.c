/* rows.c - which tokens are in row i.
 *
 * A stretch of n tokens needs rows for the n - 1 that have a target; the last one may be only a target. So every row
 * has something to learn from, and every token but the first of each document is trained on exactly once per epoch.
 * An epoch visits the rows in the order of a seeded permutation, a different one every epoch. */
#include "data/rows.h"

#include <stdlib.h>

void row_space_init(row_space *r, int64_t T, bool pack, int32_t eos, uint64_t order_key) {
    *r = (row_space){.T = T, .pack = pack, .eos = eos, .order_key = order_key};
}

void row_space_fini(row_space *r) {
    free(r->texts);
    free(r->records);
    free(r->text_rows);
    free(r->mismatched);
    row_packing_free(&r->packing);
}

void row_space_add(row_space *r, segment s) {
    if (s.n_tokens == 0) return;
    s.report->n_documents += s.n_documents / documents_per_example(r->kind);
    s.report->n_tokens += s.n_tokens;
    if (s.store->has_prompts) {
        s.number = r->n_record_documents;
        r->n_record_documents += s.n_documents;
        r->records = array_grow(r->records, &r->records_capacity, r->n_records + 1, sizeof s);
        r->records[r->n_records++] = s;
        return;
    }
    s.number = r->n_text_documents;
    s.place = r->n_text_tokens;
    r->n_text_documents += s.n_documents;
    r->n_text_tokens += s.n_tokens;
    r->texts = array_grow(r->texts, &r->texts_capacity, r->n_texts + 1, sizeof s);
    r->texts[r->n_texts++] = s;
}

/* ---- documents ----------------------------------------------------------------------------------------------- */

/* The last of n items (beginning at `first`, `stride` bytes apart) that is not above `value`. */
static size_t last_not_above(const uint64_t *first, size_t stride, size_t n, uint64_t value) {
    size_t low = 0, high = n;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (*(const uint64_t *)((const char *)first + middle * stride) <= value) low = middle;
        else high = middle;
    }
    return low;
}

const segment *row_space_record(const row_space *r, uint64_t number) {
    return &r->records[last_not_above(&r->records[0].number, sizeof *r->records, r->n_records, number)];
}

/* The document of a segment that holds the token `offset` of it. */
static uint64_t document_at(const segment *s, uint64_t offset) {
    if (s->store->is_text) return 0;
    const store_document *d = s->store->documents + s->first_document;
    uint64_t at = s->begin + offset;
    if (at < d[0].end) return 0;
    return last_not_above(&d[0].end, sizeof *d, s->n_documents, at) + 1;
}

/* ---- layout -------------------------------------------------------------------------------------------------- */

static uint64_t rows_for(uint64_t n_tokens, uint64_t T) { return (n_tokens - 1 + T - 1) / T; }

static void count_text(row_space *r, data_report *report, uint64_t begin, uint64_t n, uint64_t rows) {
    uint64_t T = (uint64_t)r->T, end = MIN(begin + n, rows * T), first_row_end = (begin / T + 1) * T;
    end = MAX(end, begin);
    r->n_placed += end - begin;
    report->n_trained_tokens += n - 1;
    if (end > first_row_end) report->n_cut_tokens += end - first_row_end;
    if (end == begin) report->n_dropped_tokens++; /* a document of one token: no target, and nothing before it */
}

static void lay_out_texts(row_space *r) {
    uint64_t T = (uint64_t)r->T, place = 0, number = 0;
    if (r->n_texts == 0) return;
    if (r->pack) {
        r->n_text_rows = rows_for(r->n_text_tokens, T);
    } else {
        r->text_rows = mem_alloc((r->n_text_documents + 1) * sizeof *r->text_rows);
        r->n_heap_bytes += (r->n_text_documents - r->n_texts) * sizeof *r->text_rows;
    }
    for (size_t i = 0; i < r->n_texts; i++) {
        const segment *s = &r->texts[i];
        for (uint64_t k = 0; k < s->n_documents; k++, number++) {
            document d = document_of(s, k);
            /* Places are counted from the start of the stretch: the whole stream, or the document alone. */
            count_text(r, s->report, r->pack ? place : 0, d.n, r->pack ? r->n_text_rows : rows_for(d.n, T));
            place += d.n;
            if (r->pack) continue;
            r->text_rows[number] = r->n_text_rows;
            r->n_text_rows += rows_for(d.n, T);
        }
    }
    if (!r->pack) r->text_rows[number] = r->n_text_rows;
}

/* Trained tokens of a record that a row can hold: its first T tokens and one more as a target. */
static uint64_t trained_within(const document *d, uint64_t n_trained, uint64_t T) {
    if (d->n <= T + 1) return n_trained - trained_at(d, 0); /* nothing comes before the first token */
    n_trained = 0;
    for (uint64_t i = 1; i <= T; i++) n_trained += trained_at(d, i);
    return n_trained;
}

static status lay_out_records(row_space *r) {
    uint64_t T = (uint64_t)r->T;
    if (r->n_records == 0) return OK;
    if (r->n_record_documents >= UINT32_MAX)
        return ERR(ERR_INPUT,
                   "data: found %llu records, expected fewer than 2^32 in files that share rows; give weights",
                   (unsigned long long)r->n_record_documents);
    uint32_t n = 0, *sizes = mem_alloc(r->n_record_documents * sizeof *sizes);
    for (size_t i = 0; i < r->n_records; i++) {
        const segment *s = &r->records[i];
        for (uint64_t k = 0; k < s->n_documents; k++, n++) {
            document d = document_of(s, k);
            uint64_t trained = trained_within(&d, s->store->documents[s->first_document + k].n_trained, T);
            if (trained == 0) {
                s->report->n_dropped_documents++;
                s->report->n_dropped_tokens += d.n;
                continue;
            }
            sizes[n] = (uint32_t)MIN(d.n, T);
            r->n_placed += sizes[n];
            s->report->n_trained_tokens += trained;
            if (d.n <= T + 1) continue;
            s->report->n_cut_documents++;
            s->report->n_dropped_tokens += d.n - (T + 1);
        }
    }
    pack_rows(sizes, n, (uint32_t)T, !r->pack, &r->packing);
    free(sizes);
    r->n_heap_bytes += n * sizeof(uint32_t) + r->packing.n_rows * sizeof(uint64_t);
    return OK;
}

void row_space_lengths(row_space *r, uint64_t *lengths) {
    uint64_t n = 0;
    if (row_space_n_lengths(r) == 0) return;
    if (r->kind != DATA_TEXT) {
        row_space_example_sizes(r, lengths);
        return;
    }
    for (size_t i = 0; i < r->n_records; i++)
        for (uint64_t k = 0; k < r->records[i].n_documents; k++) lengths[n++] = document_of(&r->records[i], k).n;
}

status row_space_lay_out(row_space *r) {
    lay_out_texts(r);
    TRY(r->kind == DATA_TEXT ? lay_out_records(r) : row_space_lay_out_examples(r));
    r->n_rows = r->n_text_rows + r->packing.n_rows;
    return OK;
}

/* ---- rows ---------------------------------------------------------------------------------------------------- */

int64_t row_fill_document(const row_space *r, const document *d, uint64_t offset, int64_t at, const data_row *out) {
    int64_t start = at;
    for (; at < r->T && offset < d->n; at++, offset++) {
        bool has_target = offset + 1 < d->n && trained_at(d, offset + 1);
        out->tokens[at] = token_at(d, offset, r->eos);
        out->targets[at] = has_target ? token_at(d, offset + 1, r->eos) : -1;
        out->doc_start[at] = (int32_t)start;
    }
    return at;
}

static int64_t fill_stream(const row_space *r, uint64_t row, const data_row *out) {
    uint64_t place = row * (uint64_t)r->T;
    size_t i = last_not_above(&r->texts[0].place, sizeof *r->texts, r->n_texts, place);
    uint64_t offset = place - r->texts[i].place, k = document_at(&r->texts[i], offset);
    int64_t at = 0;
    document d = document_of(&r->texts[i], k);
    offset -= d.begin - r->texts[i].begin;
    for (;;) {
        at = row_fill_document(r, &d, offset, at, out);
        if (at == r->T) return at;
        if (++k == r->texts[i].n_documents) {
            if (++i == r->n_texts) return at;
            k = 0;
        }
        d = document_of(&r->texts[i], k);
        offset = 0;
    }
}

static int64_t fill_alone(const row_space *r, uint64_t row, const data_row *out) {
    uint64_t number = last_not_above(r->text_rows, sizeof *r->text_rows, r->n_text_documents, row);
    const segment *s = &r->texts[last_not_above(&r->texts[0].number, sizeof *r->texts, r->n_texts, number)];
    document d = document_of(s, number - s->number);
    return row_fill_document(r, &d, (row - r->text_rows[number]) * (uint64_t)r->T, 0, out);
}

static int64_t fill_records(const row_space *r, uint64_t row, const data_row *out) {
    int64_t at = 0;
    for (uint64_t k = r->packing.row_begin[row]; k < r->packing.row_begin[row + 1]; k++) {
        uint64_t number = r->packing.documents[k];
        const segment *s = row_space_record(r, number);
        document d = document_of(s, number - s->number);
        at = row_fill_document(r, &d, 0, at, out);
    }
    return at;
}

uint64_t row_space_place(const row_space *r, uint64_t index) {
    return rng_permute(rng_u64(r->order_key, index / r->n_rows), index % r->n_rows, r->n_rows);
}

int64_t row_space_fill(const row_space *r, uint64_t index, const data_row *out) {
    if (r->n_rows == 0) return 0;
    uint64_t row = row_space_place(r, index);
    if (r->kind != DATA_TEXT) return row_space_fill_examples(r, row, out);
    if (row >= r->n_text_rows) return fill_records(r, row - r->n_text_rows, out);
    return r->pack ? fill_stream(r, row, out) : fill_alone(r, row, out);
}
