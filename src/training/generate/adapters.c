/* adapters.c - several adapters over one base in one generator, of which one is in use at a time.
 *
 * The program has the ops and the memory of one adapter, so all must have the same rank, alpha and modules; another one is put into the
 * same values between two runs, from its files. The base is loaded once. That is a few megabytes per change, and it is what a run with
 * that adapter alone computes, bit for bit. Adapters per sequence of a batch would need an op that picks them by row. */
#include "generate/generate.h"
#include "generate/state.h"

#include <stdlib.h>

const model_source *adapters_first(const generator *g) {
    for (size_t i = 0; i < g->n_adapters; i++)
        if (g->adapters[i].adapters.reader) return &g->adapters[i]; /* it knows the hash of its base */
    return &g->adapters[0];
}

static status check_names(const generator_options *o) {
    for (size_t i = 0; i < o->n_adapters; i++) {
        if (strcmp(o->adapters[i].name, ADAPTER_BASE) == 0)
            return ERR(ERR_INPUT, "adapter %s: that name is the model without adapters; give it another one",
                       o->adapters[i].name);
        for (size_t k = 0; k < i; k++)
            if (strcmp(o->adapters[i].name, o->adapters[k].name) == 0)
                return ERR(ERR_INPUT, "adapter %.100s: found the name twice, for %s and %s", o->adapters[i].name,
                           o->adapters[k].dir, o->adapters[i].dir);
    }
    return OK;
}

status adapters_open(generator *g, const generator_options *o) {
    TRY(check_names(o));
    g->adapters = mem_alloc((o->n_adapters + 1) * sizeof *g->adapters);
    g->adapter_names = arena_array(&g->memory, const char *, o->n_adapters);
    g->source_path = arena_string(&g->memory, o->source);
    g->tokenizer_given = o->tokenizer ? arena_string(&g->memory, o->tokenizer) : NULL;
    for (; g->n_adapters < o->n_adapters; g->n_adapters++) {
        const named_adapter *a = &o->adapters[g->n_adapters];
        TRY(model_source_open(&g->adapters[g->n_adapters], g->source_path, a->dir, g->tokenizer_given));
        g->adapter_names[g->n_adapters] = arena_string(&g->memory, a->name);
    }
    for (size_t i = 0; i < g->n_adapters; i++) TRY(model_source_shares_base(adapters_first(g), &g->adapters[i]));
    return OK;
}

void adapters_close(generator *g) {
    for (size_t i = 0; g->adapters && i <= g->n_adapters; i++)
        if (g->adapters[i].dir[0]) model_source_close(&g->adapters[i]);
    free(g->adapters);
}

static status unknown(const generator *g, const char *name) {
    strbuf names;
    strbuf_init(&names);
    for (size_t i = 0; i < g->n_adapters; i++) strbuf_printf(&names, "%s, ", g->adapter_names[i]);
    status rc =
        ERR(ERR_INPUT, "adapter: found '%.100s', expected one of %s" ADAPTER_BASE, name, names.text ? names.text : "");
    strbuf_fini(&names);
    return rc;
}

status generator_use(generator *g, const char *name) {
    size_t i = 0;
    bool base = strcmp(name, ADAPTER_BASE) == 0;
    while (i < g->n_adapters && (base || strcmp(name, g->adapter_names[i]) != 0)) i++;
    if (!g->adapters || (i == g->n_adapters && !base)) return unknown(g, name);
    model_source *s = &g->adapters[i];
    if (base && !s->dir[0]) TRY(model_source_open(s, g->source_path, NULL, g->tokenizer_given));
    TRY(generator_describe(g, s));
    if (base) model_source_clear_adapters(g->e, g->plan);
    else TRY(model_source_load_adapters(s, g->e, g->plan));
    return exec_check(g->e);
}
