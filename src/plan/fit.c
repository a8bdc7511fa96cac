/* fit.c - the error of a plan that does not fit: how much is missing, what takes the memory, and the smallest change that
 * fits.
 *
 * Changes are tried from the cheapest to the one that changes most: fewer logits at once, more recompute (same bits), a
 * smaller micro-batch with more accumulation (same step, same result up to summation order), then fewer bytes per parameter,
 * then both, then a shorter sequence. Where memory.recompute is auto, every try also chooses the recompute. Each try is a
 * full compile, so the numbers in the message are as exact as any plan. */
#include "plan/search.h"

#define NAMED 5
#define SMALL_CHUNK (4ll << 20)

/* Compiles a variant and tells whether it fits. */
bool plan_variant_fits(const plan_request *r, uint64_t *planned) {
    plan p;
    plan_request q = *r;
    q.compare = false;                         /* the question is whether it fits, not which candidate is best */
    q.open.chunk = q.open.keep_layers = false; /* the candidates of tight.c take long to search */
    if (plan_choose(&p, &q) != OK) {
        error_clear();
        return false;
    }
    *planned = p.planned[TIER_DEVICE];
    bool fits = plan_fits(&p);
    plan_close(&p);
    return fits;
}

/* The largest micro-batch below the asked one that fits, keeping the tokens per step. */
static bool shrink_batch(plan_request *r, uint64_t *planned) {
    int64_t rows = r->choice.micro_batch * r->choice.accumulation, batch = r->choice.micro_batch;
    while (batch > 1) {
        do batch--;
        while (batch > 1 && rows % batch);
        r->choice.micro_batch = batch;
        r->choice.accumulation = rows / batch;
        if (plan_variant_fits(r, planned)) return true;
    }
    return false;
}

/* How a change is written in the message: as settings, or as options of `ralo eval`. */
typedef struct change_names {
    const char *precision, *seq_len, *chunk, *batch;
} change_names;
static const change_names by_settings = {
    "--set precision=", "--set data.seq_len=", "--set memory.logits_chunk=", "--set train.micro_batch="};
static const change_names by_options = {"--precision ", "--seq-len ", NULL, "--batch "};

static void describe(strbuf *b, const plan_request *from, const plan_request *to, uint64_t planned) {
    const change_names *names = from->no_training ? &by_options : &by_settings;
    char buf[32];
    if (from->choice.precision != to->choice.precision)
        strbuf_printf(b, "%s%s ", names->precision, precision_name(to->choice.precision));
    if (from->seq_len != to->seq_len) strbuf_printf(b, "%s%lld ", names->seq_len, (long long)to->seq_len);
    if (from->manual && plan_is_open(to)) strbuf_add(b, "--set memory.strategy=auto ");
    else if (from->choice.recompute.kind != to->choice.recompute.kind)
        strbuf_printf(b, "--set memory.recompute=%s ", recompute_name(to->choice.recompute.kind));
    if (from->logits_chunk_bytes != to->logits_chunk_bytes)
        strbuf_printf(b, "%s%lldM ", names->chunk, (long long)(to->logits_chunk_bytes >> 20));
    if (from->choice.micro_batch != to->choice.micro_batch)
        strbuf_printf(b, "%s%lld ", names->batch, (long long)to->choice.micro_batch);
    if (from->choice.micro_batch != to->choice.micro_batch && !from->no_training)
        strbuf_printf(b, "--set train.accumulation=%lld ", (long long)to->choice.accumulation);
    strbuf_printf(b, "(%s)", str_format_bytes(buf, planned));
}

/* Stochastic rounding only exists in training. */
static bool allowed(const plan_request *r, precision q) {
    return q != r->choice.precision && !(r->no_training && q == PRECISION_BF16_SR);
}

/* Writes the smallest change that fits; false when none of them does. `least` is the smallest plan seen. */
static bool smallest_change(const plan_request *r, strbuf *b, uint64_t *least) {
    static const precision order[] = {PRECISION_BF16, PRECISION_BF16_SR};
    uint64_t planned = 0;
    plan_request t = *r, chosen = *r;
    if (r->manual) chosen.open = r->left_open; /* memory.strategy=auto */
    if (!r->manual || r->left_open_recompute) chosen.choice.recompute = (recompute_policy){.kind = RECOMPUTE_AUTO};
    const plan_request *bases[] = {r, &chosen}; /* as asked first: change nothing that may stay */
    /* Without a backward there is nothing to recompute. */
    bool is_chosen = !r->manual && r->choice.recompute.kind == RECOMPUTE_AUTO;
    size_t n_bases = is_chosen || r->no_training ? 1 : 2;
    t.logits_chunk_bytes = SMALL_CHUNK;
    if (r->logits_chunk_bytes > SMALL_CHUNK && !r->no_training && plan_variant_fits(&t, &planned)) goto found;
    for (recompute_kind k = RECOMPUTE_NORMS; k <= RECOMPUTE_FULL && n_bases > 1; k++) {
        t = *r;
        t.choice.recompute = (recompute_policy){.kind = k};
        if (k != r->choice.recompute.kind && plan_variant_fits(&t, &planned)) goto found;
    }
    t = chosen;
    if (r->manual && plan_variant_fits(&t, &planned)) goto found;
    for (size_t k = 0; k < n_bases; k++) {
        t = *bases[k];
        if (shrink_batch(&t, &planned)) goto found;
    }
    for (size_t i = 0; i < ARRAY_LENGTH(order); i++)
        for (size_t k = 0; k < n_bases && allowed(r, order[i]); k++) {
            t = *bases[k];
            t.choice.precision = order[i];
            if (plan_variant_fits(&t, &planned) || shrink_batch(&t, &planned)) goto found;
        }
    t = *bases[n_bases - 1]; /* the cheapest of everything above, with shorter rows */
    t.choice.precision = r->no_training ? PRECISION_BF16 : PRECISION_BF16_SR;
    t.choice.accumulation *= t.choice.micro_batch;
    t.choice.micro_batch = 1;
    while (t.seq_len > 16) {
        t.seq_len /= 2;
        if (plan_variant_fits(&t, &planned)) goto found;
    }
    *least = planned;
    return false;
found:
    describe(b, r, &t, planned);
    return true;
}

/* Advises an nvme directory; false: a drive does not help. Alone it helps only where the plan may choose what to offload. */
static bool advise_nvme(const plan_request *r, strbuf *b) {
    uint64_t planned;
    plan_request t = *r;
    t.may_nvme = true;
    if (r->manual) t.open = r->left_open, t.manual = false;
    if (r->manual && r->left_open_recompute) t.choice.recompute = (recompute_policy){.kind = RECOMPUTE_AUTO};
    if (r->may_nvme || !plan_is_open(&t) || !plan_variant_fits(&t, &planned)) return false;
    strbuf_printf(b, "Name a directory on a fast drive with memory.nvme_path%s, or use",
                  r->manual ? " and set memory.strategy=auto" : "");
    return true;
}

/* The bytes that no change removes: a parameter and its gradient in 16 bits each, and two moments in memory.states. Says so
 * where device and host together are smaller, which saves compiling every change. */
static bool has_no_room(const plan_request *r, strbuf *b) {
    static const uint64_t moment_bytes[STATES_COUNT] = {[STATES_FP32] = 4, [STATES_BF16] = 2, [STATES_INT8] = 1};
    char needed[32], there[32];
    bool alone = mesh_world(&r->mesh) == 1 && r->place.n_devices <= 1;
    if (!alone || r->no_training || plan_generates(r) || r->may_nvme || offload_on_nvme(&r->choice.offload) ||
        r->host_limit == 0)
        return false;
    uint64_t per_parameter = 2 + 2 + 2 * moment_bytes[state_format_of(PRECISION_BF16_SR, r->choice.states)];
    uint64_t least = model_param_count(&r->model) * per_parameter, all = r->device_limit + r->host_limit;
    if (r->together_limit) all = MIN(all, r->together_limit);
    if (least <= all) return false;
    strbuf_printf(b,
                  "none of recompute, batch, precision and length is enough: parameters, gradients and states take at "
                  "least %s, device and host together have %s. ",
                  str_format_bytes(needed, least), str_format_bytes(there, all));
    if (!advise_nvme(r, b)) strbuf_add(b, "Use");
    strbuf_add(b, " more or larger machines");
    return true;
}

/* Settings with fewer bytes per parameter, from the smallest change to the largest. */
static const struct {
    const char *settings;
    bool sr, int8;
} fewer_bytes[] = {{"--set memory.states=int8", false, true},
                   {"--set precision=bf16_sr", true, false},
                   {"--set precision=bf16_sr --set memory.states=int8", true, true}};

/* The first of these that fits; NULL: none does, so none is advised. */
static const char *find_fewer_bytes(const plan_request *r) {
    uint64_t planned;
    for (size_t i = 0; i < ARRAY_LENGTH(fewer_bytes); i++) {
        plan_request t = *r;
        if (fewer_bytes[i].sr) t.choice.precision = PRECISION_BF16_SR;
        if (fewer_bytes[i].int8) t.choice.states = STATES_INT8;
        bool is_new = t.choice.precision != r->choice.precision || t.choice.states != r->choice.states;
        bool is_cut = mesh_size(&r->mesh, AXIS_TENSOR) > 1; /* blocks of 8-bit states cannot be cut */
        bool possible = is_new && !(fewer_bytes[i].int8 && is_cut);
        if (possible && plan_variant_fits(&t, &planned)) return fewer_bytes[i].settings;
    }
    return NULL;
}

/* The plan itself is the candidate that needs the least device memory. */
static uint64_t least_host(const plan *p) {
    uint64_t least = p->planned[TIER_HOST], limit = p->request.device_limit;
    for (size_t i = 0; i < p->n_candidates; i++) {
        const uint64_t *planned = p->candidates[i].planned;
        if (limit == 0 || planned[TIER_DEVICE] <= limit) least = MIN(least, planned[TIER_HOST]);
    }
    return least;
}

static status host_is_too_small(const plan *p, const plan_request *r) {
    const char *fewer = find_fewer_bytes(r);
    char a[32], b[32];
    strbuf advice;
    strbuf_init(&advice);
    if (fewer) strbuf_printf(&advice, "Fewer bytes per parameter fit: %s. ", fewer);
    if (!advise_nvme(r, &advice)) strbuf_add(&advice, fewer ? "Or use" : "Use");
    strbuf_add(&advice, " more or larger machines");
    status rc = ERR(ERR_FIT, "%s fits the device with %s on the host, which has %s. %s", r->model.name,
                    str_format_bytes(a, least_host(p)), str_format_bytes(b, r->host_limit), advice.text);
    strbuf_fini(&advice);
    return rc;
}

/* Where the limit comes from: a setting, or the memory of this machine. */
static const char *limit_name(const plan_request *r, bool together) {
    if (together) return "which are one memory here, of";
    if (r->together_limit && (!r->device_asked || r->device_asked > r->device_limit)) return "this machine has";
    return plan_generates(r) || r->no_training ? "--device-memory is" : "memory.device is";
}

status plan_check_fit(const plan *p) {
    const plan_request reopened = plan_request_reopen(p), *r = &reopened;
    char a[32], b[32];
    if (plan_fits(p)) return OK;
    bool device_holds = r->device_limit == 0 || p->planned[TIER_DEVICE] <= r->device_limit;
    if (device_holds && r->host_limit && p->planned[TIER_HOST] > r->host_limit) return host_is_too_small(p, r);
    strbuf names, change;
    strbuf_init(&names);
    strbuf_init(&change);
    uint64_t least = 0;
    for (size_t i = 0; i < MIN(p->n_at_peak, (size_t)NAMED); i++) {
        const value *v = &p->program.values[p->at_peak[i]];
        strbuf_printf(&names, "%s%s (%s) %s", i ? ", " : "", v->name, role_name(v->role),
                      str_format_bytes(a, value_bytes(v)));
    }
    for (role i = 0; i < ROLE_COUNT; i++)
        if (p->by_role[i])
            strbuf_printf(&names, "%s%s %s", i == 0 ? "; by role: " : ", ", role_name(i),
                          str_format_bytes(a, p->by_role[i]));
    bool hopeless = has_no_room(r, &change), found = false;
    if (plan_generates(r)) found = plan_generation_change(r, &change, &least);
    else if (!hopeless) found = smallest_change(r, &change, &least);
    if (!found && !hopeless)
        strbuf_printf(&change,
                      "None of recompute, batch, precision and length is enough: the smallest needs %s; raise the "
                      "limit to that, or take a smaller model",
                      str_format_bytes(a, least));
    uint64_t needed = device_holds ? plan_joint_bytes(p) : p->planned[TIER_DEVICE];
    uint64_t limit = device_holds ? r->together_limit : r->device_limit;
    status rc = ERR(ERR_FIT, "%s needs %s on %s, %s %s. Largest at the peak: %s. %s%s", r->model.name,
                    str_format_bytes(a, needed), device_holds ? "device and host together" : "the device",
                    limit_name(r, device_holds), str_format_bytes(b, limit), names.text,
                    found ? "The smallest change that fits: " : "", change.text);
    strbuf_fini(&names);
    strbuf_fini(&change);
    return rc;
}
