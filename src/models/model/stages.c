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

/* Forward arithmetic per token, of the mean layer; the backward is twice that for both. */
static double layer_flops(const model_config *c, int64_t seq_len) {
    double keys = 0; /* twice those that a query sees; causal: half of each row */
    for (int64_t l = 0; l < c->n_layers; l++) {
        double T = (double)seq_len, W = (double)model_layer_window(c, l);
        keys += W > 0 && W < T ? (2 - W / T) * W : T;
    }
    keys /= (double)c->n_layers;
    int64_t HD = c->n_heads * c->head_dim, Q = HD + 2 * c->n_kv_heads * c->head_dim;
    int64_t F = c->ffn * (model_family_traits(c->family)->gelu ? 2 : 3);
    return 2.0 * (double)(c->hidden * (Q + HD + F)) + 2.0 * keys * (double)HD;
}

static double chunk_flops(const model_config *c, int64_t seq_len, int64_t n_layers, bool with_head) {
    double head = with_head ? 2.0 * (double)(c->vocab * c->hidden) * model_loss_count(c) : 0;
    return (double)n_layers * layer_flops(c, seq_len) + head;
}

void model_stages_cut(const model_config *c, int64_t seq_len, int n_chunks, int64_t *first) {
    int64_t *n = first + 1; /* of layers, until they are added up */
    for (int k = 0; k < n_chunks - 1; k++) n[k] = 1;
    n[n_chunks - 1] = c->n_layers - model_first_head(c); /* none: the unembedding alone may be enough */
    for (int64_t left = model_first_head(c) - (n_chunks - 1); left > 0; left--) {
        int least = 0;
        double least_flops = 0;
        for (int k = 0; k < n_chunks; k++) {
            double flops = chunk_flops(c, seq_len, n[k], k == n_chunks - 1);
            /* The later of equals: it holds fewer micro-batches at a time. */
            if (k == 0 || flops <= least_flops) least = k, least_flops = flops;
        }
        n[least]++;
    }
    first[0] = 0;
    for (int k = 0; k < n_chunks; k++) first[k + 1] += first[k];
}

double model_stages_slowest(const model_config *c, int64_t seq_len, int n_stages, int n_chunks, int stage) {
    int64_t *first = mem_alloc((size_t)(n_chunks + 1) * sizeof *first);
    double *flops = mem_alloc((size_t)n_stages * sizeof *flops), most = 0;
    model_stages_cut(c, seq_len, n_chunks, first);
    for (int k = 0; k < n_chunks; k++)
        flops[k % n_stages] += chunk_flops(c, seq_len, first[k + 1] - first[k], k == n_chunks - 1);
    for (int i = 0; i < n_stages; i++) most = MAX(most, flops[i]);
    double times = most / flops[stage];
    free(flops);
    free(first);
    return times;
}
