/* cut.c - what a tensor rank has of a parameter, and where it belongs in the model's.
 *
 * Whatever reads or writes parameters outside the program (first values, weight files, checkpoints, hashes) works on the
 * whole tensor and asks here which runs of it a rank has. Initial values are drawn by the place in the whole, so a model
 * starts with the same numbers however many ranks share it. */
#include "model/model.h"

status model_cut_check(const model_config *c, int ranks) {
    long long n = ranks;
    if (n == 1) return OK;
    if (c->n_heads % n)
        return ERR(ERR_INPUT,
                   "parallel.tensor: model %s has %lld heads, which %lld ranks cannot share; set a divisor of %lld",
                   c->name, (long long)c->n_heads, n, (long long)c->n_heads);
    if (c->n_kv_heads % n && n % c->n_kv_heads)
        return ERR(ERR_INPUT,
                   "parallel.tensor: model %s has %lld kv heads, which %lld ranks cannot share; set a divisor or a "
                   "multiple of %lld",
                   c->name, (long long)c->n_kv_heads, n, (long long)c->n_kv_heads);
    if (c->ffn % n)
        return ERR(ERR_INPUT,
                   "parallel.tensor: model %s has %lld feed-forward columns, which %lld ranks cannot share; set a "
                   "divisor of %lld",
                   c->name, (long long)c->ffn, n, (long long)c->ffn);
    if ((n - 1) * ((c->vocab + n - 1) / n) >= c->vocab)
        return ERR(ERR_INPUT, "parallel.tensor: model %s has %lld tokens in its vocabulary, too few for %lld ranks",
                   c->name, (long long)c->vocab, n);
    return OK;
}

int64_t model_param_whole(const model_param *p, int64_t first, int64_t *n) {
    int64_t columns = p->shape.rank == 2 ? p->shape.dim[1] : 1, row = first / columns, column = first % columns;
    if (p->cut < 0) {
        *n = shape_count(&p->shape) - first;
        return first;
    }
    int64_t place = p->cut == 0 ? row : column;
    for (int i = 0; i < p->n_slices; i++) {
        const param_slice *s = &p->slices[i];
        if (place < s->at || place >= s->at + s->n) continue;
        if (p->cut == 1) {
            *n = s->at + s->n - column;
            return row * p->whole.dim[1] + s->from + column - s->at;
        }
        *n = (s->at + s->n - row) * columns - column;
        return (s->from + row - s->at) * columns + column;
    }
    *n = shape_count(&p->shape) - first; /* nothing but padding follows */
    return -1;
}

bool model_param_counts(const model_param *p, int64_t element, int tensor_index) {
    return element < p->shared_from || tensor_index == p->first_holder;
}

static void initial_run(const model_param *p, uint64_t seed, int64_t whole, int64_t n, float *out) {
    if (p->init == INIT_NORMAL && whole >= 0) {
        rng_normal_fill(rng_key(seed, p->name), (uint64_t)whole, out, (size_t)n, 0.0f, p->init_std);
        return;
    }
    float fill = p->init == INIT_ONE && whole >= 0 ? 1.0f : 0.0f;
    for (int64_t i = 0; i < n; i++) out[i] = fill;
}

void model_param_initial(const model_param *p, uint64_t seed, int64_t first, int64_t n, float *out) {
    for (int64_t at = 0, run; at < n; at += run) {
        int64_t whole = model_param_whole(p, first + at, &run);
        run = MIN(run, n - at);
        initial_run(p, seed, whole, run, out + at);
    }
}
