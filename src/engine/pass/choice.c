/* choice.c - compare, copy and print a step's choice, by the table in choice.def; and the dtypes of each precision. */
#include "pass/choice.h"

/* One row per precision. Gradients are fp32 wherever there is a master copy: they are sums. */
static const struct {
    const char *name;
    dtype compute, grad;
    state_format states;
    bool master, fp8;
} precisions[PRECISION_COUNT] = {
    [PRECISION_FP32] = {.name = "fp32", .compute = DTYPE_F32, .grad = DTYPE_F32, .states = STATES_FP32},
    [PRECISION_BF16] =
        {.name = "bf16", .compute = DTYPE_BF16, .grad = DTYPE_F32, .states = STATES_FP32, .master = true},
    [PRECISION_BF16_SR] = {.name = "bf16_sr", .compute = DTYPE_BF16, .grad = DTYPE_BF16, .states = STATES_BF16},
    [PRECISION_FP16] = {.name = "fp16", .compute = DTYPE_F16, .grad = DTYPE_F32, .states = STATES_FP32, .master = true},
    [PRECISION_FP8] =
        {.name = "fp8", .compute = DTYPE_BF16, .grad = DTYPE_F32, .states = STATES_FP32, .master = true, .fp8 = true},
    [PRECISION_FP8_SR] =
        {.name = "fp8_sr", .compute = DTYPE_BF16, .grad = DTYPE_BF16, .states = STATES_BF16, .fp8 = true},
};

static const char *const state_formats[STATES_COUNT] = {"auto", "fp32", "bf16", "int8"};
const char *state_format_name(state_format f) { return state_formats[f]; }
state_format state_format_of(precision p, state_format asked) {
    return asked == STATES_AUTO ? precisions[p].states : asked;
}

const char *precision_name(precision p) { return precisions[p].name; }
dtype precision_compute(precision p) { return precisions[p].compute; }
dtype precision_grad(precision p) { return precisions[p].grad; }
bool precision_master(precision p) { return precisions[p].master; }
bool precision_fp8(precision p) { return precisions[p].fp8; }

/* ---- compared and copied ----------------------------------------------------------------------------------------- */

#define same_scalar(a, b) (*(a) == *(b))

static bool same_recompute(const recompute_policy *a, const recompute_policy *b) {
    bool names = a->keep && b->keep ? strcmp(a->keep, b->keep) == 0 : a->keep == b->keep;
    return names && a->kind == b->kind && a->ratio == b->ratio && a->every == b->every && a->heavy == b->heavy &&
           a->light == b->light && a->n_heavy == b->n_heavy;
}

static bool same_offload(const offload_tiers *a, const offload_tiers *b) {
    return a->params == b->params && a->grads == b->grads && a->states == b->states &&
           a->activations == b->activations && a->reference == b->reference;
}

static bool same_shard(const shard_options *a, const shard_options *b) {
    return a->zero == b->zero && a->reduce_bucket == b->reduce_bucket && a->allgather_bucket == b->allgather_bucket &&
           a->overlap == b->overlap && a->prefetch == b->prefetch && a->persist_below == b->persist_below;
}

bool step_choice_equal(const step_choice *a, const step_choice *b, unsigned but) {
#define CHOICE(NAME, type, field, group, same, ...) \
    if (!(but & CHOICE_##NAME) && !same(&a->field, &b->field)) return false;
#include "pass/choice.def"
#undef CHOICE
    return true;
}

enum { STEP, MEMORY };

void step_choice_copy_memory(step_choice *to, const step_choice *from) {
#define CHOICE(NAME, type, field, group, ...) \
    if (group == MEMORY) to->field = from->field;
#include "pass/choice.def"
#undef CHOICE
}

/* ---- as text ------------------------------------------------------------------------------------------------------ */

/* Adds the comma before the next part of the line. */
static strbuf *next_part(strbuf *out) {
    if (out->length) strbuf_add(out, ", ");
    return out;
}

static void print_sequence(const step_choice *c, strbuf *out) {
    if (c->sequence > 1) strbuf_printf(next_part(out), "%d ranks share a row", c->sequence);
}

static void print_recompute(const step_choice *c, strbuf *out) {
    strbuf_add(next_part(out), "recompute ");
    recompute_print(&c->recompute, out);
}

/* What stays on the device although its kind is offloaded to t: " except params of 6 layers and the embedding". */
static void print_kept(const step_choice *c, tier t, strbuf *out) {
    const offload_tiers *o = &c->offload;
    const struct {
        bool here;
        int64_t n; /* layers, or 1 */
        const char *what, *whose;
    } kept[] = {
        {o->params == t, c->keep_params, "params", "of"},
        {o->states == t, c->keep_states, "states", "of the first"},
        {o->activations == t, c->keep_layers, "activations", "of the last"},
        {(o->params != TIER_DEVICE ? o->params : o->grads) == t, c->keep_embed, "the embedding", NULL},
    };
    const char *before = " except ";
    for (size_t i = 0; i < ARRAY_LENGTH(kept); i++) {
        if (!kept[i].here || !kept[i].n) continue;
        strbuf_printf(out, "%s%s", before, kept[i].what);
        if (kept[i].whose)
            strbuf_printf(out, " %s %lld layer%s", kept[i].whose, (long long)kept[i].n, kept[i].n == 1 ? "" : "s");
        before = " and ";
    }
}

static void print_offload(const step_choice *c, strbuf *out) {
    static const char *const names[] = {"params", "reference", "grads", "states", "activations"};
    const tier tiers[] = {c->offload.params, c->offload.reference, c->offload.grads, c->offload.states,
                          c->offload.activations};
    if (!offload_any(&c->offload)) strbuf_add(next_part(out), "nothing offloaded");
    for (tier t = TIER_HOST; t <= TIER_NVME; t++) {
        bool first = true;
        for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
            if (tiers[i] != t) continue;
            strbuf_printf(first ? next_part(out) : out, "%s%s", first ? "" : " + ", names[i]);
            first = false;
        }
        if (first) continue;
        strbuf_printf(out, " on %s", tier_name(t));
        print_kept(c, t, out);
    }
}

static void print_fp8_logits(const step_choice *c, strbuf *out) {
    if (c->fp8_logits) strbuf_add(next_part(out), "8-bit logits");
}

static void print_fp8_attention(const step_choice *c, strbuf *out) {
    if (c->fp8_attention) strbuf_add(next_part(out), "8-bit attention");
}

static const char *fp8_scales_name(fp8_scales s) {
    return s == FP8_POWER ? "power" : s == FP8_BLOCKS ? "block" : "exact";
}
static void print_fp8_scales(const step_choice *c, strbuf *out) {
    if (c->fp8_scales == FP8_POWER) strbuf_add(next_part(out), "scales of powers of two");
    if (c->fp8_scales == FP8_BLOCKS) strbuf_add(next_part(out), "scales of blocks");
}

static void print_prefetch(const step_choice *c, strbuf *out) {
    if (offload_any(&c->offload))
        strbuf_printf(next_part(out), "copies %d layer%s ahead", c->prefetch, c->prefetch == 1 ? "" : "s");
}

static void print_cpu_layers(const step_choice *c, strbuf *out) {
    if (c->cpu_layers)
        strbuf_printf(next_part(out), "the last %lld layer%s on cpu", (long long)c->cpu_layers,
                      c->cpu_layers == 1 ? "" : "s");
}

static void print_chunks(const step_choice *c, strbuf *out) {
    if (c->chunk_tokens) strbuf_printf(next_part(out), "MLP in chunks of %lld tokens", (long long)c->chunk_tokens);
}

#define NO_TEXT ((void)0)

void step_choice_print(const step_choice *c, unsigned fields, strbuf *out) {
#define CHOICE(NAME, type, field, group, same, key, json, print) \
    if (fields & CHOICE_##NAME) print;
#include "pass/choice.def"
#undef CHOICE
}

/* ---- as JSON ------------------------------------------------------------------------------------------------------ */

static json_t *json_recompute(const recompute_policy *r) {
    strbuf text;
    strbuf_init(&text);
    recompute_write(r, &text);
    json_t *out = json_string(text.text);
    strbuf_fini(&text);
    return out;
}

static json_t *json_offload(const offload_tiers *o) {
    tier reference = o->reference == TIER_DEVICE ? o->params : o->reference;
    return json_pack("{s:s, s:s, s:s, s:s, s:s}", "params", tier_name(o->params), "reference", tier_name(reference),
                     "grads", tier_name(o->grads), "states", tier_name(o->states), "activations",
                     tier_name(o->activations));
}

void step_choice_json(const step_choice *c, unsigned fields, json_t *out) {
#define CHOICE(NAME, type, field, group, same, key, json, print) \
    if (fields & CHOICE_##NAME) json_object_set_new(out, key, json);
#include "pass/choice.def"
#undef CHOICE
}
