/* loader.c - micro-batches prepared ahead of the step, on a thread of their own.
 *
 * A ring of three batches, all allocated at loader_open: the caller holds one while the others are filled. Batch k
 * of part p of n always holds rows first_row + (k n + p) * rows_per_batch and on, so the position is computed, not
 * stored: batches that were filled but never used cost a resumed run nothing. The thread sleeps when the ring is
 * full and blocks all signals, which belong to the training thread. */
#include "data/source.h"

#include <stdlib.h>

enum { RING = 3, ARRAYS = 3 }; /* arrays of a batch: tokens, targets, doc_start; of examples also segments, examples */

struct loader {
    const dataset *data;
    split which;
    int64_t rows_per_batch, seq_len;
    uint64_t first_row;
    uint64_t part, n_parts;
    batch ring[RING];
    int32_t *memory;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t filled, freed;
    /* Under the lock. Batches are numbered from 0; number k stands in ring[k % RING]. */
    uint64_t n_filled, n_handed; /* the caller holds number n_handed - 1 */
    bool stop;
};

uint64_t loader_host_bytes(int64_t rows_per_batch, int64_t seq_len) {
    return (uint64_t)RING * ARRAYS * sizeof(int32_t) * (uint64_t)rows_per_batch * (uint64_t)seq_len;
}

uint64_t loader_examples_host_bytes(int64_t rows_per_batch, int64_t seq_len) {
    return (uint64_t)RING * sizeof(int32_t) * (uint64_t)rows_per_batch *
           (uint64_t)(seq_len + data_example_slots(seq_len));
}

uint64_t loader_shared_host_bytes(int64_t rows_per_batch, int64_t seq_len) {
    return (uint64_t)RING * sizeof(int32_t) * (uint64_t)rows_per_batch * (uint64_t)seq_len;
}

static void fill_batch(const loader *l, uint64_t number, batch *b) {
    int64_t T = l->seq_len, n_slots = data_example_slots(T);
    b->first_row = l->first_row + (number * l->n_parts + l->part) * (uint64_t)l->rows_per_batch;
    b->n_valid = 0;
    for (int64_t r = 0; r < l->rows_per_batch; r++) {
        int64_t at = r * T;
        data_row row = {.tokens = b->tokens + at,
                        .targets = b->targets + at,
                        .doc_start = b->doc_start + at,
                        .segments = b->segments ? b->segments + at : NULL,
                        .shared = b->shared ? b->shared + at : NULL,
                        .examples = b->examples ? b->examples + r * n_slots : NULL};
        dataset_row_get(l->data, l->which, b->first_row + (uint64_t)r, &row);
        for (int64_t t = 0; t < T; t++) b->n_valid += b->targets[at + t] >= 0;
    }
}

static void *loader_main(void *argument) {
    loader *l = argument;
    pthread_mutex_lock(&l->lock);
    for (;;) {
        /* The batch the caller holds is not free: it is given back by the next loader_next. */
        while (!l->stop && l->n_filled - (l->n_handed ? l->n_handed - 1 : 0) == RING)
            pthread_cond_wait(&l->freed, &l->lock);
        if (l->stop) break;
        uint64_t number = l->n_filled;
        pthread_mutex_unlock(&l->lock);
        fill_batch(l, number, &l->ring[number % RING]);
        pthread_mutex_lock(&l->lock);
        l->n_filled++;
        pthread_cond_signal(&l->filled);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static void allocate_ring(loader *l) {
    size_t n = (size_t)(l->rows_per_batch * l->seq_len);
    size_t n_examples = (size_t)(l->rows_per_batch * data_example_slots(l->seq_len));
    bool has_examples = dataset_kind(l->data) != DATA_TEXT, shares = dataset_shares_prompts(l->data);
    uint64_t n_bytes = loader_host_bytes(l->rows_per_batch, l->seq_len);
    if (has_examples) n_bytes += loader_examples_host_bytes(l->rows_per_batch, l->seq_len);
    if (shares) n_bytes += loader_shared_host_bytes(l->rows_per_batch, l->seq_len);
    int32_t *p = l->memory = mem_alloc((size_t)n_bytes);
    for (size_t i = 0; i < RING; i++) {
        l->ring[i] = (batch){.tokens = p, .targets = p + n, .doc_start = p + 2 * n};
        p += ARRAYS * n;
        if (shares) l->ring[i].shared = p, p += n;
        if (!has_examples) continue;
        l->ring[i].segments = p;
        l->ring[i].examples = p + n;
        p += n + n_examples;
    }
}

status loader_open(loader **out, const dataset *d, split s, int64_t rows_per_batch, uint64_t first_row, int part,
                   int n_parts) {
    *out = NULL;
    ASSERT(part >= 0 && part < n_parts);
    data_report report;
    dataset_report(d, s, &report);
    if (report.fill == 0)
        return ERR(ERR_INPUT,
                   "data: the %s split is empty, expected at least one row; eval_fraction 0 keeps no text for "
                   "evaluation",
                   s == SPLIT_TRAIN ? "training" : "evaluation");
    int64_t seq_len = dataset_seq_len(d);
    if (rows_per_batch < 1 || rows_per_batch > INT32_MAX / seq_len)
        return ERR(ERR_INPUT, "data: found micro-batches of %lld rows, expected 1 to %lld with rows of %lld tokens",
                   (long long)rows_per_batch, (long long)(INT32_MAX / seq_len), (long long)seq_len);
    loader *l = mem_alloc(sizeof *l);
    *l = (loader){.data = d,
                  .which = s,
                  .rows_per_batch = rows_per_batch,
                  .seq_len = seq_len,
                  .first_row = first_row,
                  .part = (uint64_t)part,
                  .n_parts = (uint64_t)n_parts};
    allocate_ring(l);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->filled, NULL);
    pthread_cond_init(&l->freed, NULL);
    int why = thread_start(&l->thread, loader_main, l);
    if (why != 0) {
        free(l->memory);
        free(l);
        return ERR(ERR_RUN, "data: start the loader's thread: %s", strerror(why));
    }
    *out = l;
    return OK;
}

void loader_close(loader *l) {
    if (!l) return;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_signal(&l->freed);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    pthread_cond_destroy(&l->freed);
    pthread_cond_destroy(&l->filled);
    pthread_mutex_destroy(&l->lock);
    free(l->memory);
    free(l);
}

const batch *loader_next(loader *l) {
    pthread_mutex_lock(&l->lock);
    while (l->n_filled == l->n_handed) pthread_cond_wait(&l->filled, &l->lock);
    const batch *b = &l->ring[l->n_handed++ % RING];
    pthread_cond_signal(&l->freed); /* the batch handed out before this one */
    pthread_mutex_unlock(&l->lock);
    return b;
}

uint64_t loader_position(const loader *l) {
    /* Only the caller's own thread changes n_handed. */
    return l->first_row + l->n_handed * l->n_parts * (uint64_t)l->rows_per_batch;
}
