/* stages.c - which layers each stage of a pipeline has.
 *
 * The layers are cut into chunks, one or more for each stage: chunk k is at stage k modulo the number of stages. The first has
 * the embedding as well, the last the final norm, the unembedding and the loss. A step is as slow as its slowest stage, so
 * chunks are made equal in arithmetic: where the vocabulary is large, the last has fewer layers, or none. Heads of multi-token
 * prediction all read the trunk's output and share the unembedding: the last chunk has all of them. */
#include "model/model.h"

#include <stdlib.h>

status model_stages_check(const model_config *c, int n_stages, int n_virtual) {
    if (n_virtual > 1 && n_stages == 1)
        return ERR(ERR_INPUT,
                   "parallel.virtual_stages: found %d with parallel.pipeline 1, expected 1: one stage cannot "
                   "interleave",
                   n_virtual);
    int64_t n_layers = model_main_layers(c);
    bool is_deep = n_virtual > 1 && n_layers >= n_stages; /* enough for fewer chunks */
    if ((int64_t)n_stages * n_virtual > n_layers)
        return ERR(
            ERR_INPUT,
            "parallel.pipeline: model %s has %lld layers%s, too few for %d stages of %d; lower parallel.pipeline or "
            "parallel.virtual_stages, such as parallel.%s=%lld",
            c->name, (long long)n_layers, c->mtp_heads > 1 ? " up to its first prediction head" : "", n_stages,
            n_virtual, is_deep ? "virtual_stages" : "pipeline",
            is_deep ? (long long)n_layers / n_stages : (long long)MAX(n_layers / n_virtual, (int64_t)1));
    return OK;
}

/* Forward arithmetic per token; the backward is twice that for layers and head. */
static double layer_flops(const model_config *c, int64_t seq_len, int64_t layer) {
    double T = (double)seq_len, W = (double)model_layer_window(c, layer);
    double keys = W > 0 && W < T ? (2 - W / T) * W : T; /* twice those that a query sees; causal: half of each row */
    int64_t HD = c->n_heads * c->head_dim, Q = HD + 2 * c->n_kv_heads * c->head_dim;
    int64_t F = c->ffn * (model_family_traits(c->family)->gelu ? 2 : 3);
    return 2.0 * (double)(c->hidden * (Q + HD + F)) + 2.0 * keys * (double)HD;
}

/* Of layers [first, end), by their kinds. */
static double chunk_flops(const model_config *c, int64_t seq_len, int64_t first, int64_t end, bool with_head) {
    double flops = with_head ? 2.0 * (double)(c->vocab * c->hidden) * model_loss_count(c) : 0;
    for (int64_t l = first; l < end; l++) flops += layer_flops(c, seq_len, l);
    return flops;
}

/* Moves the boundary before chunk k by one layer if that makes the slower of the two chunks beside it faster. */
static bool move_boundary(const model_config *c, int64_t seq_len, int n_chunks, int64_t *first, int k, int64_t by) {
    bool is_last = k == n_chunks - 1;
    int64_t begin = first[k - 1], end = first[k + 1], at = first[k], to = at + by;
    if (to <= begin || to > (is_last ? model_first_head(c) : end - 1)) return false;
    double now = MAX(chunk_flops(c, seq_len, begin, at, false), chunk_flops(c, seq_len, at, end, is_last));
    double then = MAX(chunk_flops(c, seq_len, begin, to, false), chunk_flops(c, seq_len, to, end, is_last));
    bool is_faster = then < (1 - 1e-9) * now; /* less is rounding */
    if (is_faster) first[k] = to;
    return is_faster;
}

/* First by the mean layer; where layers are of several kinds, boundaries then move by what their layers cost. */
void model_stages_cut(const model_config *c, int64_t seq_len, int n_chunks, int64_t *first) {
    double mean = chunk_flops(c, seq_len, 0, c->n_layers, false) / (double)c->n_layers;
    double head = chunk_flops(c, seq_len, 0, 0, true);
    int64_t *n = first + 1; /* of layers, until they are added up */
    for (int k = 0; k < n_chunks - 1; k++) n[k] = 1;
    n[n_chunks - 1] = c->n_layers - model_first_head(c); /* none: the unembedding alone may be enough */
    for (int64_t left = model_first_head(c) - (n_chunks - 1); left > 0; left--) {
        int least = 0;
        double least_flops = 0;
        for (int k = 0; k < n_chunks; k++) {
            double flops = (double)n[k] * mean + (k == n_chunks - 1 ? head : 0);
            /* The later of equals: it holds fewer micro-batches at a time. */
            if (k == 0 || flops <= least_flops) least = k, least_flops = flops;
        }
        n[least]++;
    }
    first[0] = 0;
    for (int k = 0; k < n_chunks; k++) first[k + 1] += first[k];
    for (bool any = model_period(c) > 1; any;) {
        any = false;
        for (int k = 1; k < n_chunks; k++)
            for (int64_t by = -1; by <= 1; by += 2) any |= move_boundary(c, seq_len, n_chunks, first, k, by);
    }
}

double model_stages_slowest(const model_config *c, int64_t seq_len, int n_stages, int n_chunks, int stage) {
    int64_t *first = mem_alloc((size_t)(n_chunks + 1) * sizeof *first);
    double *flops = mem_alloc((size_t)n_stages * sizeof *flops), most = 0;
    model_stages_cut(c, seq_len, n_chunks, first);
    for (int k = 0; k < n_chunks; k++)
        flops[k % n_stages] += chunk_flops(c, seq_len, first[k], first[k + 1], k == n_chunks - 1);
    for (int i = 0; i < n_stages; i++) most = MAX(most, flops[i]);
    double times = most / flops[stage];
    free(flops);
    free(first);
    return times;
}
