/* buckets.c - the flat order of parameters and its cut into buckets. */
#include "pass/buckets.h"

#include <stdlib.h>

typedef struct placed {
    int unit;
    int64_t count;
    size_t number; /* in reading order */
    size_t param;
} placed;

int64_t norm_blocks(int64_t n_elements) { return divide_up(n_elements, NORM_BLOCK); }

static int by_place(const void *a, const void *b) {
    const placed *x = a, *y = b;
    if (x->unit != y->unit) return x->unit < y->unit ? -1 : 1;
    if (x->count != y->count) return x->count > y->count ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

/* Those of the first n parameters that are frozen, or are not, in the order of the whole model; *n_placed of them. */
static placed *place_params(const net *m, size_t n, bool frozen, size_t *n_placed) {
    placed *list = mem_alloc((n + 1) * sizeof *list);
    *n_placed = 0;
    for (size_t i = 0; i < n; i++) {
        const net_param *q = &m->params[i];
        if (q->frozen == frozen) list[(*n_placed)++] = (placed){q->unit, shape_count(&q->shape), q->number, i};
    }
    qsort(list, *n_placed, sizeof *list, by_place);
    return list;
}

flat_place *bucket_places(const net *m, int64_t *n_blocks) {
    size_t n;
    placed *list = place_params(m, m->n_all_params, false, &n);
    flat_place *places = mem_alloc(m->n_all_params * sizeof *places);
    *n_blocks = 0;
    for (size_t i = 0; i < n; i++) {
        const placed *before = i && list[i - 1].unit == list[i].unit ? &list[i - 1] : NULL;
        int64_t at = before ? places[before->param].offset + norm_blocks(before->count) * NORM_BLOCK : 0;
        places[list[i].param] = (flat_place){list[i].unit, at, *n_blocks};
        *n_blocks += norm_blocks(list[i].count);
    }
    free(list);
    return places;
}

uint64_t bucket_noise_key(int unit) {
    char name[24];
    snprintf(name, sizeof name, "unit %d", unit);
    return rng_key(1, name);
}

/* The most elements of a bucket by the two settings, each in bytes of its messages; INT64_MAX: a whole unit. */
static int64_t largest_bucket(const pass_options *options) {
    const shard_options *o = &options->choice.shard;
    int64_t most = INT64_MAX;
    if (o->reduce_bucket)
        most = MIN(most, o->reduce_bucket / (int64_t)dtype_bytes(precision_grad(options->choice.precision)));
    if (o->allgather_bucket)
        most = MIN(most, o->allgather_bucket / (int64_t)dtype_bytes(precision_compute(options->choice.precision)));
    return most;
}

/* Micro-batches read the 8-bit weights of a layer and, of its parameters, only gains and biases. In a bucket with the
 * weights, gathering these would gather the weights too. */
static bool is_read_beside_fp8(const pass_options *options, size_t param) {
    return precision_fp8(options->choice.precision) && options->net->params[param].shape.rank == 1;
}

/* Fills buckets with the trained parameters, or with the frozen ones that ranks share. */
static void fill_buckets(buckets *b, const pass_options *options, const flat_place *places, bool frozen) {
    const net *m = options->net;
    size_t n;
    placed *list = place_params(m, m->n_params, frozen, &n);
    int64_t most = largest_bucket(options);
    for (size_t i = 0; i < n; i++) {
        const placed *q = &list[i];
        if (m->params[q->param].is_copy) continue; /* the stage that trains it sends it */
        bucket *last = b->n && b->list[b->n - 1].frozen == frozen ? &b->list[b->n - 1] : NULL;
        bool small = options->choice.shard.zero == 3 &&
                     (q->count < options->choice.shard.persist_below || is_read_beside_fp8(options, q->param));
        if (frozen && (small || m->params[q->param].base != BASE_COMPUTE))
            continue; /* it stays as it is: nothing of it is ever sent; codes are not cut */
        int64_t blocks = norm_blocks(q->count);
        if (!last || last->unit != q->unit || last->small != small || blocks > most / NORM_BLOCK - last->n_blocks) {
            const flat_place *at = &places[q->param];
            b->list[b->n] = (bucket){.first = b->n_params,
                                     .unit = q->unit,
                                     .small = small,
                                     .frozen = frozen,
                                     .offset = at->offset,
                                     .norm_block = at->block};
            if (last && last->unit == q->unit) b->list[b->n].part = last->part + 1;
            last = &b->list[b->n++];
        }
        b->order[b->n_params++] = q->param;
        b->bucket[q->param] = b->n - 1;
        b->offset[q->param] = last->n_blocks * NORM_BLOCK;
        last->n_blocks += blocks;
        last->n++;
    }
    free(list);
}

void buckets_init(buckets *b, const pass_options *options) {
    size_t n = options->net->n_params;
    int64_t ranks = mesh_size(&options->mesh, AXIS_DATA);
    *b = (buckets){.order = mem_alloc(n * sizeof *b->order),
                   .bucket = mem_alloc(n * sizeof *b->bucket),
                   .offset = mem_alloc(n * sizeof *b->offset),
                   .list = mem_alloc(n * sizeof *b->list)};
    for (size_t i = 0; i < n; i++) b->bucket[i] = NO_BUCKET;
    flat_place *places = bucket_places(options->net, &b->n_norm_blocks);
    fill_buckets(b, options, places, false);
    b->n_trained = b->n;
    if (options->choice.shard.zero == 3) fill_buckets(b, options, places, true);
    for (size_t i = 0; i < b->n; i++) b->list[i].per_rank = divide_up(b->list[i].n_blocks, ranks) * NORM_BLOCK;
    free(places);
}

void buckets_fini(buckets *b) {
    free(b->order);
    free(b->bucket);
    free(b->offset);
    free(b->list);
    *b = (buckets){0};
}

const char *bucket_name(char buf[BUCKET_NAME_BYTES], const bucket *b, int64_t n_layers) {
    char unit[32];
    const char *kind = b->frozen ? "frozen." : "";
    if (b->unit == 0) snprintf(unit, sizeof unit, "%sembed", kind);
    else if (b->unit > n_layers) snprintf(unit, sizeof unit, "%shead", kind);
    else snprintf(unit, sizeof unit, "%slayers.%d", kind, b->unit - 1);
    if (b->part) snprintf(buf, BUCKET_NAME_BYTES, "%s.%d", unit, b->part);
    else snprintf(buf, BUCKET_NAME_BYTES, "%s", unit);
    return buf;
}
