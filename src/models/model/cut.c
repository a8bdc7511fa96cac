/* cut.c - which part of a parameter a tensor rank has, and its place in the whole.
 *
 * Code outside the program that reads or writes parameters (initial values, weight files, checkpoints, hashes) works on the
 * whole tensor and asks here which ranges of it a rank has. Initial values depend on the place in the whole, so a model
 * starts with the same numbers however many ranks share it. */
#include "model/model.h"

/* NULL: n tensor ranks can share the model. Else the part that cannot be divided, and its count. */
static const char *uncut_part(const model_config *c, int64_t n, int64_t *count) {
    if (c->n_heads % n) return *count = c->n_heads, "heads";
    if (c->n_kv_heads % n && n % c->n_kv_heads) return *count = c->n_kv_heads, "kv heads";
    if (c->ffn % n) return *count = c->ffn, "feed-forward columns";
    if ((n - 1) * divide_up(c->vocab, n) >= c->vocab) return *count = c->vocab, "tokens in its vocabulary";
    return NULL;
}

status model_cut_check(const model_config *c, int ranks) {
    int64_t count, most = ranks - 1, ignored;
    const char *part = uncut_part(c, ranks, &count);
    if (!part) return OK;
    while (uncut_part(c, most, &ignored)) most--; /* one rank shares with nobody */
    return ERR(
        ERR_INPUT,
        "parallel.tensor: model %s has %lld %s, which %d ranks cannot share; set parallel.tensor=%lld or another "
        "divisor",
        c->name, (long long)count, part, ranks, (long long)most);
}

void model_param_initial(const net_param *p, uint64_t seed, int64_t first, int64_t n, float *out) {
    const char *name = p->of_reference ? p->name + strlen(REFERENCE_PREFIX) : p->name; /* a copy has the same numbers */
    for (int64_t i = 0; i < n; i++) out[i] = 0;                                        /* padding stays so */
    for (int64_t at = 0, run; at < n; at += run) {
        int64_t whole = param_cut_place(&p->cut, first + at, &run);
        run = MIN(run, n - at);
        if (whole < 0 || p->init == INIT_ZERO) continue;
        if (p->init == INIT_ONE)
            for (int64_t i = at; i < at + run; i++) out[i] = 1;
        else if (p->init == INIT_UNIFORM)
            rng_uniform_fill(rng_key(seed, name), (uint64_t)whole, out + at, (size_t)run, p->init_std);
        else rng_normal_fill(rng_key(seed, name), (uint64_t)whole, out + at, (size_t)run, 0.0f, p->init_std);
    }
}
