/* pack.c - which documents share a row: best fit, the largest first.
 *
 * A document goes into the fullest row that still holds it, else into a new one; the rows that have n places left are
 * kept in a list per n, and two levels of bits find the next n that has any. So packing a document costs a few steps
 * whatever their number is. The result depends on the sizes and their order alone.
 * Measured on 7,100 GSM8K problems with GPT-2's tokens, in the order of the file and packed: rows of 256 are 73.2 and
 * 94.1 % full, of 512 83.1 and 98.1 %, of 2,048 95.7 and 99.3 %. */
#include "data/source.h"

#include <stdlib.h>
#include <string.h>

#define NO_ROW UINT32_MAX

typedef struct open_rows {
    uint32_t *first;  /* (T + 1) a row with that many places left */
    uint32_t *next;   /* per row: another one with as many */
    uint64_t *bits;   /* per number of places: is there a row? */
    uint64_t *groups; /* per word of bits: is it not zero? */
    size_t n_words, n_groups;
} open_rows;

static void push(open_rows *o, uint32_t row, uint32_t left) {
    o->next[row] = o->first[left];
    o->first[left] = row;
    o->bits[left / 64] |= UINT64_C(1) << left % 64;
    o->groups[left / 64 / 64] |= UINT64_C(1) << left / 64 % 64;
}

static uint32_t pop(open_rows *o, uint32_t left) {
    uint32_t row = o->first[left];
    o->first[left] = o->next[row];
    if (o->first[left] == NO_ROW) {
        o->bits[left / 64] &= ~(UINT64_C(1) << left % 64);
        if (!o->bits[left / 64]) o->groups[left / 64 / 64] &= ~(UINT64_C(1) << left / 64 % 64);
    }
    return row;
}

/* The smallest set bit at or after `from`; -1: none. */
static int64_t next_bit(const uint64_t *words, size_t n_words, size_t from) {
    size_t w = from / 64;
    if (w >= n_words) return -1;
    uint64_t rest = words[w] & (~UINT64_C(0) << from % 64);
    while (!rest && ++w < n_words) rest = words[w];
    return rest ? (int64_t)(w * 64) + __builtin_ctzll(rest) : -1;
}

/* The fewest places left, of rows with at least `size`; -1: there is no such row. */
static int64_t best_fit(const open_rows *o, uint32_t size) {
    uint64_t rest = o->bits[size / 64] & (~UINT64_C(0) << size % 64);
    if (rest) return (int64_t)(size / 64 * 64) + __builtin_ctzll(rest);
    int64_t word = next_bit(o->groups, o->n_groups, size / 64 + 1);
    return word < 0 ? -1 : word * 64 + __builtin_ctzll(o->bits[word]);
}

/* Documents by size, the largest first, equal ones in their order. */
static uint32_t *sort_by_size(const uint32_t *sizes, uint32_t n, uint32_t T, uint32_t *n_out) {
    uint32_t *order = mem_alloc(MAX(n, 1) * sizeof *order);
    uint32_t *place = mem_alloc(((size_t)T + 2) * sizeof *place); /* where documents of a size begin */
    for (uint32_t i = 0; i < n; i++) place[T - sizes[i] + 1]++;
    for (size_t s = 1; s <= (size_t)T + 1; s++) place[s] += place[s - 1];
    for (uint32_t i = 0; i < n; i++) order[place[T - sizes[i]]++] = i;
    *n_out = n;
    while (*n_out > 0 && sizes[order[*n_out - 1]] == 0) --*n_out;
    free(place);
    return order;
}

static void pack_best_fit(const uint32_t *sizes, uint32_t n, uint32_t T, const uint32_t *order, uint32_t *row_of,
                          uint64_t *n_rows) {
    open_rows o = {.n_words = T / 64 + 1};
    o.n_groups = o.n_words / 64 + 1;
    o.first = mem_alloc(((size_t)T + 1) * sizeof *o.first);
    o.next = mem_alloc(MAX(n, 1) * sizeof *o.next);
    o.bits = mem_alloc(o.n_words * sizeof *o.bits);
    o.groups = mem_alloc(o.n_groups * sizeof *o.groups);
    for (size_t i = 0; i <= T; i++) o.first[i] = NO_ROW;
    *n_rows = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t size = sizes[order[i]], row;
        int64_t left = best_fit(&o, size);
        if (left < 0) {
            row = (uint32_t)(*n_rows)++;
            left = T;
        } else {
            row = pop(&o, (uint32_t)left);
        }
        row_of[i] = row;
        if (left - size > 0) push(&o, row, (uint32_t)left - size);
    }
    free(o.first);
    free(o.next);
    free(o.bits);
    free(o.groups);
}

void pack_rows(const uint32_t *sizes, uint32_t n, uint32_t T, bool one_each, row_packing *out) {
    uint32_t n_packed = 0, *order, *row_of = mem_alloc(MAX(n, 1) * sizeof *row_of);
    *out = (row_packing){0};
    if (one_each) {
        order = mem_alloc(MAX(n, 1) * sizeof *order);
        for (uint32_t i = 0; i < n; i++)
            if (sizes[i]) row_of[n_packed] = n_packed, order[n_packed++] = i;
        out->n_rows = n_packed;
    } else {
        order = sort_by_size(sizes, n, T, &n_packed);
        pack_best_fit(sizes, n_packed, T, order, row_of, &out->n_rows);
    }
    out->documents = mem_alloc(MAX(n_packed, 1) * sizeof *out->documents);
    out->row_begin = mem_alloc((out->n_rows + 2) * sizeof *out->row_begin);
    for (uint32_t i = 0; i < n_packed; i++) out->row_begin[row_of[i] + 2]++;
    for (uint64_t r = 2; r <= out->n_rows + 1; r++) out->row_begin[r] += out->row_begin[r - 1];
    for (uint32_t i = 0; i < n_packed; i++) out->documents[out->row_begin[row_of[i] + 1]++] = order[i];
    free(order);
    free(row_of);
}

void row_packing_free(row_packing *p) {
    free(p->documents);
    free(p->row_begin);
    *p = (row_packing){0};
}
