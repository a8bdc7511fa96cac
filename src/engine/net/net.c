/* net.c - what can be said of a model without its configuration (net.h). */
#include "net/net.h"

#include <stdlib.h>

bool net_heads_divide(int64_t n_heads, int64_t n_kv_heads, const mesh *m) {
    int tensor = mesh_size(m, AXIS_TENSOR), S = mesh_size(m, AXIS_SEQUENCE);
    return n_heads / tensor % S == 0 && MAX(n_kv_heads / tensor, (int64_t)1) % S == 0;
}

bool net_trains_tied(const net *m) {
    for (size_t i = 0; i < m->n_all_params; i++)
        if (m->params[i].number == 0) return net_is_tied(&m->source) && !m->params[i].frozen;
    return false;
}

void net_fini(net *m) {
    free(m->params);
    arena_fini(&m->memory);
    *m = (net){0};
}

int64_t generation_pages_per_slot(const generation_shape *g) { return divide_up(g->context, g->page_size); }

int64_t generation_pages_wanted(const generation_shape *g) {
    int64_t each = generation_pages_per_slot(g), shared = g->group > 1 ? g->shared_tokens / g->page_size : 0;
    if (shared == 0) return g->slots * each;
    int64_t n_prompts = MIN(g->prompts, divide_up(g->slots, g->group) + 1); /* one begins before another has ended */
    return n_prompts * shared + g->slots * (each - shared);
}
