/* candidates.c - the candidates that were compared, as text and as JSON. */
#include "show/parts.h"

#include <math.h>

enum { RUNNERS_UP = 2 };

/* Fields shown in the line of a candidate: what was open, and what differs from the request. */
static unsigned shown(const plan *p, const plan_candidate *c) {
    const plan_open *open = &p->request.open;
    unsigned set = CHOICE_ALL;
    if (!open->precision) set &= ~CHOICE_PRECISION;
    if (!open->micro_batch) set &= ~CHOICE_MICRO_BATCH;
    if (mesh_world(&p->request.mesh) == 1) set &= ~(CHOICE_SHARD | CHOICE_SEQUENCE);
    if (!open->zero) set &= ~CHOICE_SHARD;
    if (!open->prefetch || c->choice.prefetch == p->asked.prefetch) set &= ~CHOICE_PREFETCH;
    return set;
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
        const step_choice *c = &best->choice;
        bool is_plain = !offload_any(&c->offload) && c->recompute.kind == RECOMPUTE_NONE && !c->chunk_tokens;
        if (best->fits && is_plain) fputs("strategy  nothing moved: it all fits\n", out);
        return;
    }
    fprintf(out, "strategy  auto: %zu of %zu candidates fit; %s\n", n_fit, p->n_candidates,
            n_fit && isfinite(best->step_s) ? "the fastest of them, and the next"
            : n_fit                         ? "no time is predicted, so the first of them that was tried, and the next"
            : plan_host_is_short(&p->request, best->planned) ? "the host is too small; this one needs least of it"
            : best->excess.device                            ? "the device is too small; this one needs least of it"
                                                             : "memory is too small; this one needs least of it");
    for (size_t i = 0; i < MIN(p->n_candidates, (size_t)1 + RUNNERS_UP); i++) {
        const plan_candidate *c = &p->candidates[i];
        char a[32], b[32];
        strbuf text;
        if (!c->fits && i > 0) break;
        strbuf_init(&text);
        step_choice_print(&c->choice, shown(p, c), &text);
        fprintf(out, "  %zu. %s\n     device %s, host %s", i + 1, text.text,
                str_format_bytes(a, c->planned[TIER_DEVICE]), str_format_bytes(b, c->planned[TIER_HOST]));
        if (c->planned[TIER_NVME]) fprintf(out, ", nvme %s", str_format_bytes(a, c->planned[TIER_NVME]));
        if (isfinite(c->step_s)) fprintf(out, ", predicted %s", str_format_seconds(a, c->step_s));
        if (i > 0 && isfinite(c->step_s) && best->step_s > 0) print_difference(c, best, out);
        fputs(c->fits                                       ? "\n"
              : plan_host_is_short(&p->request, c->planned) ? ", host too small\n"
                                                            : ", does not fit\n",
              out);
        strbuf_fini(&text);
    }
}

json_t *plan_candidates_json(const plan *p) {
    json_t *array = json_array();
    for (size_t i = 0; i < p->n_candidates; i++) {
        const plan_candidate *c = &p->candidates[i];
        json_t *one = json_object(), *memory = json_object(), *roles = json_object();
        step_choice_json(&c->choice, CHOICE_ALL & ~(CHOICE_STATES | CHOICE_BUCKET_BYTES | CHOICE_OVERLAP_UPDATE), one);
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
    }
    return array;
}
