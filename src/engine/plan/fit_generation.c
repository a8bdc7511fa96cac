/* fit_generation.c - the smallest change of `ralo generate` with which a plan of generation fits.
 *
 * Fewer sequences at once only take longer, so that is tried first; then parameters and cache in bf16; then weights in 8 and in 4 bits;
 * each with fewer sequences, too; then shorter sequences. The cache shrinks with them. */
#include "plan/search.h"

static void cut_sequences(plan_request *r, int64_t slots, int64_t context) {
    generation_shape *g = &r->generation;
    g->slots = slots;
    g->context = context;
    g->pages = MIN(g->pages, generation_pages_wanted(g));
}

/* The most sequences that fit, found by halving. */
static bool fewer_sequences(plan_request *r, uint64_t *planned) {
    for (int64_t slots = r->generation.slots; slots >= 1; slots /= 2) {
        cut_sequences(r, slots, r->generation.context);
        if (plan_variant_fits(r, planned)) return true;
    }
    return false;
}

/* Each with a space after it. */
static void list_changes(strbuf *b, const plan_request *from, const plan_request *to) {
    if (from->choice.precision != to->choice.precision)
        strbuf_printf(b, "--precision %s ", precision_name(to->choice.precision));
    if (from->generation.weights != to->generation.weights)
        strbuf_printf(b, "--weights %s ", base_format_name(to->generation.weights));
    if (from->generation.slots != to->generation.slots)
        strbuf_printf(b, "--batch %lld ", (long long)to->generation.slots);
    if (from->generation.context != to->generation.context)
        strbuf_printf(b, "--context %lld ", (long long)to->generation.context);
}

static void describe(strbuf *b, const plan_request *from, const plan_request *to, uint64_t planned) {
    char buf[32];
    list_changes(b, from, to);
    strbuf_printf(b, "(%s)", str_format_bytes(buf, planned));
}

/* What was tried last, which needs least and does not fit either. */
static void describe_least(strbuf *b, const plan_request *from, const plan_request *to, uint64_t planned) {
    char buf[32];
    strbuf_printf(b, "%s with ", str_format_bytes(buf, planned));
    list_changes(b, from, to);
    b->text[--b->length] = 0; /* the last space */
}

/* What generator_open would not refuse. */
static bool may_store_codes(const plan_request *r) {
    return r->generation.weights == BASE_COMPUTE && r->base == BASE_COMPUTE && !r->lora.pissa &&
           (!r->target.discrete || r->source.rows_fit_codes);
}

bool plan_generation_change(const plan_request *r, strbuf *out) {
    enum { AS_IT_IS, HALF, CODES_8, CODES_4, WAYS };
    static const base_format weights[WAYS] = {[CODES_8] = BASE_INT8, [CODES_4] = BASE_NF4};
    plan_request t;
    uint64_t planned = 0;
    for (int64_t context = r->generation.context; context >= 16; context /= 2)
        for (int way = AS_IT_IS; way < (may_store_codes(r) ? WAYS : CODES_8); way++) {
            t = *r;
            if (way >= HALF && r->choice.precision == PRECISION_FP32) t.choice.precision = PRECISION_BF16;
            if (weights[way]) t.generation.weights = weights[way];
            cut_sequences(&t, r->generation.slots, context);
            if (!fewer_sequences(&t, &planned)) continue;
            describe(out, r, &t, planned);
            return true;
        }
    if (planned) describe_least(out, r, &t, planned);
    return false;
}
