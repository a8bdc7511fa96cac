/* strategy_report.c - the ways that were compared, in words for people and as JSON for programs. */
#include "plan/report.h"

#include <math.h>

enum { RUNNERS_UP = 2 };

static void describe(const plan *p, const plan_candidate *c, strbuf *out) {
    static const char *const names[] = {"params", "grads", "states", "activations"};
    const tier homes[] = {c->offload.params, c->offload.grads, c->offload.states, c->offload.activations};
    if (p->request.open.precision) strbuf_printf(out, "%s, ", precision_name(c->precision));
    if (p->request.open.micro_batch)
        strbuf_printf(out, "micro-batch %lld x %lld, ", (long long)c->micro_batch, (long long)c->accumulation);
    if (mesh_world(&p->request.mesh) > 1) {
        if (p->request.open.zero) strbuf_printf(out, "zero %d, ", c->zero);
        if (c->sequence > 1) strbuf_printf(out, "%d ranks share a row, ", c->sequence);
    }
    strbuf_printf(out, "recompute ");
    recompute_write(&c->recompute, out);
    bool moved = false;
    for (tier t = TIER_HOST; t <= TIER_NVME; t++) {
        bool first = true;
        for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
            if (homes[i] != t) continue;
            strbuf_printf(out, "%s%s", first ? ", " : " + ", names[i]);
            first = false;
            moved = true;
        }
        if (!first) strbuf_printf(out, " on %s", tier_name(t));
        if (c->offload.states == t && c->offload.keep_states)
            strbuf_printf(out, " but for states of the first %lld layer%s", (long long)c->offload.keep_states,
                          c->offload.keep_states == 1 ? "" : "s");
    }
    if (!moved) strbuf_add(out, ", nothing offloaded");
    if (moved && p->request.open.prefetch && c->offload.prefetch != p->request.offload.prefetch)
        strbuf_printf(out, ", copies %d layers ahead", c->offload.prefetch);
    if (c->offload.keep_layers)
        strbuf_printf(out, " but for those of the last %lld layers", (long long)c->offload.keep_layers);
    if (c->chunk_tokens) strbuf_printf(out, ", MLP in chunks of %lld tokens", (long long)c->chunk_tokens);
}

static void print_difference(const plan_candidate *c, const plan_candidate *best, FILE *out) {
    double percent = 100 * (c->step_s / best->step_s - 1);
    fprintf(out, " (%+.1f %%%s)", fabs(percent) < 0.05 ? 0 : percent,
            c->step_s < c->plain_s ? ", not relied on: nothing has to be moved" : "");
}

void plan_print_candidates(const plan *p, FILE *out) {
    if (p->n_candidates == 0) return;
    const plan_candidate *best = &p->candidates[0];
    size_t n_fit = 0;
    for (size_t i = 0; i < p->n_candidates; i++) n_fit += p->candidates[i].fits;
    if (p->n_candidates == 1) {
        bool is_plain = !offload_any(&best->offload) && best->recompute.kind == RECOMPUTE_NONE && !best->chunk_tokens;
        if (best->fits && is_plain) fputs("strategy  nothing moved: it all fits\n", out);
        return;
    }
    fprintf(out, "strategy  auto: of %zu ways %zu fit%s\n", p->n_candidates, n_fit,
            n_fit ? "; the fastest of them, and the next" : "; the smallest of them");
    for (size_t i = 0; i < MIN(p->n_candidates, (size_t)1 + RUNNERS_UP); i++) {
        const plan_candidate *c = &p->candidates[i];
        char a[32], b[32];
        strbuf text;
        if (!c->fits && i > 0) break;
        strbuf_init(&text);
        describe(p, c, &text);
        fprintf(out, "  %zu. %s\n     device %s, host %s", i + 1, text.text,
                str_format_bytes(a, c->planned[TIER_DEVICE]), str_format_bytes(b, c->planned[TIER_HOST]));
        if (c->planned[TIER_NVME]) fprintf(out, ", nvme %s", str_format_bytes(a, c->planned[TIER_NVME]));
        if (isfinite(c->step_s)) fprintf(out, ", predicted %s", str_format_seconds(a, c->step_s));
        if (i > 0 && isfinite(c->step_s) && best->step_s > 0) print_difference(c, best, out);
        fputs(c->fits ? "\n" : ", does not fit\n", out);
        strbuf_fini(&text);
    }
}

json_t *plan_candidates_json(const plan *p) {
    json_t *array = json_array();
    for (size_t i = 0; i < p->n_candidates; i++) {
        const plan_candidate *c = &p->candidates[i];
        json_t *one = json_object(), *memory = json_object(), *roles = json_object();
        strbuf policy;
        strbuf_init(&policy);
        recompute_write(&c->recompute, &policy);
        json_object_set_new(one, "precision", json_string(precision_name(c->precision)));
        json_object_set_new(one, "micro_batch", json_integer(c->micro_batch));
        json_object_set_new(one, "accumulation", json_integer(c->accumulation));
        json_object_set_new(one, "zero", json_integer(c->zero));
        json_object_set_new(one, "sequence", json_integer(c->sequence));
        json_object_set_new(one, "recompute", json_string(policy.text));
        json_object_set_new(one, "offload", plan_homes_json(&c->offload));
        json_object_set_new(one, "prefetch", json_integer(c->offload.prefetch));
        json_object_set_new(one, "keep_layers", json_integer(c->offload.keep_layers));
        json_object_set_new(one, "keep_states", json_integer(c->offload.keep_states));
        json_object_set_new(one, "chunk_tokens", json_integer(c->chunk_tokens));
        for (tier t = TIER_DEVICE; t <= TIER_NVME; t++)
            json_object_set_new(memory, tier_name(t), json_integer((json_int_t)c->planned[t]));
        for (role k = 0; k < ROLE_COUNT; k++)
            json_object_set_new(roles, role_name(k), json_integer((json_int_t)c->by_role[k]));
        json_object_set_new(memory, "by_role", roles);
        json_object_set_new(one, "memory", memory);
        json_object_set_new(one, "step_ms", json_real_or_null(1e3 * c->step_s));
        json_object_set_new(one, "fits", json_boolean(c->fits));
        json_object_set_new(one, "estimated", json_boolean(c->estimated));
        json_array_append_new(array, one);
        strbuf_fini(&policy);
    }
    return array;
}
