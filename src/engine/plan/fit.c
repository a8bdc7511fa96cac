/* fit.c - the error of a plan that does not fit: how much is missing, what takes the memory, and the smallest change
 * that fits.
 *
 * Changes are tried from the cheapest to the one that changes most: fewer logits at once, more recompute (same bits), a
 * smaller micro-batch with more accumulation (same step, same result up to summation order), then fewer bytes per
 * parameter, then both, then under adapters a frozen base in fewer bits, then a shorter sequence. Where
 * memory.recompute is auto, every try also chooses the recompute. A change that is named with its bytes was searched and
 * compiled like any plan, so they are exact; where only yes or no is asked, few compiles tell most of the answers.
 * Adapters over a base of 4 bits train something else than was asked for, so they are named beside those
 * changes and never among them. */
#include "plan/search.h"

#define NAMED 5
#define SHORT_ROWS 64 /* tokens: few records are that short */
#define SMALL_CHUNK (4ll << 20)

/* Parameters and states must lie somewhere. True if device and host together cannot hold those of an open strategy:
 * then no candidate fits, and one small compile saves the search. */
static bool is_too_large(const plan_request *r) {
    plan_candidate c;
    plan_request q = *r;
    bool may_move = plan_is_open(r) && plan_is_one_device(r);
    if (!may_move || r->open.precision || plan_ranks_open(r) || r->may_nvme || offload_on_nvme(&r->choice.offload) ||
        !r->device_limit || !r->host_limit)
        return false;
    q.open = (plan_open){0};
    if (q.choice.recompute.kind == RECOMPUTE_AUTO) q.choice.recompute = (recompute_policy){.kind = RECOMPUTE_NONE};
    if (plan_evaluate(&q, &c) != OK) {
        error_clear();
        return false;
    }
    uint64_t all = r->device_limit + r->host_limit;
    if (r->together_limit) all = MIN(all, r->together_limit);
    return c.by_role[ROLE_PARAM] + c.by_role[ROLE_STATE] > all;
}

/* The request that answers whether r fits. The question is not which candidate is best, so those that take long to
 * search are left out. More rows never need fewer bytes, so of an open micro-batch one row is asked. */
static plan_request as_question(const plan_request *r) {
    plan_request q = *r;
    if (q.open.micro_batch) {
        q.open.micro_batch = false;
        q.choice.accumulation *= q.choice.micro_batch;
        q.choice.micro_batch = 1;
    }
    q.compare = false;
    q.open.chunk = q.open.keep_layers = q.open.place = false;
    return q;
}

/* Compiles a variant and tells whether it fits, and the bytes of the fastest plan that does, or of the one that needs
 * least. */
bool plan_variant_fits(const plan_request *r, uint64_t *planned) {
    plan p;
    plan_request q = as_question(r);
    if (plan_choose(&p, &q) != OK) {
        error_clear();
        return false;
    }
    *planned = p.planned[TIER_DEVICE];
    bool fits = plan_fits(&p);
    plan_close(&p);
    return fits;
}

typedef enum fit_answer { IMPOSSIBLE, NO, YES } fit_answer; /* IMPOSSIBLE: the request is refused for another reason */

/* The same answer with few compiles for most variants that fit, and for those that are far too large. The bytes are
 * filled in only if the search was needed; else they stay. */
static fit_answer ask(const plan_request *r, uint64_t *planned) {
    plan_request q = as_question(r);
    uint64_t n_bytes = 0;
    bool fits;
    if (is_too_large(&q)) return NO;
    if (plan_fits_when_moved(&q, &fits) != OK) error_clear();
    if (fits) return YES;
    fits = plan_variant_fits(r, &n_bytes);
    if (n_bytes) *planned = n_bytes;
    return fits ? YES : n_bytes ? NO : IMPOSSIBLE;
}

static bool can_fit(const plan_request *r) {
    uint64_t planned;
    return ask(r, &planned) == YES;
}

/* The largest micro-batch below the asked one that fits, keeping the tokens per step. One row fits if any does. */
static bool shrink_batch(plan_request *r, uint64_t *planned) {
    int64_t rows = r->choice.micro_batch * r->choice.accumulation, batch = r->choice.micro_batch;
    if (batch == 1 || r->open.micro_batch) return false;
    plan_request one = *r;
    one.choice.micro_batch = 1;
    one.choice.accumulation = rows;
    if (ask(&one, planned) == NO) return false;
    while (batch > 1) {
        do batch--;
        while (batch > 1 && rows % batch);
        r->choice.micro_batch = batch;
        r->choice.accumulation = rows / batch;
        if (plan_variant_fits(r, planned)) return true;
    }
    return false;
}

static bool fits_or_shrinks(plan_request *r, uint64_t *planned) {
    plan_request q = as_question(r);
    if (is_too_large(&q)) return false; /* with fewer rows, too */
    return plan_variant_fits(r, planned) || shrink_batch(r, planned);
}

/* The longest rows below the asked ones that fit, found by halving. The shortest fit if any do: if they do not, r has
 * them and `planned` their bytes. */
static bool shorten_rows(plan_request *r, uint64_t *planned) {
    enum { SHORTEST = 16 };
    plan_request shortest = *r;
    while (shortest.seq_len > SHORTEST) shortest.seq_len /= 2;
    uint64_t least = 0;
    if (ask(&shortest, &least) == NO) {
        *r = shortest;
        if (least) *planned = least;
        else plan_variant_fits(r, planned);
        return false;
    }
    while (r->seq_len > SHORTEST) {
        r->seq_len /= 2;
        if (plan_variant_fits(r, planned)) return true;
    }
    return false;
}

/* How a change is written in the message: as settings, or as options of `ralo eval`. */
typedef struct change_names {
    const char *before, *precision, *seq_len, *chunk, *batch;
} change_names;
static const change_names by_settings = {"--set ",
                                         "precision=", "data.seq_len=", "memory.logits_chunk=", "train.micro_batch="};
static const change_names by_options = {"--", "precision ", "seq-len ", NULL, "batch "};

typedef struct change_list {
    strbuf *out;
    const char *before, *between;
} change_list;
static strbuf *next_change(const change_list *l) {
    if (l->out->length) strbuf_add(l->out, l->between);
    strbuf_add(l->out, l->before);
    return l->out;
}

static void list_changes(const change_list *l, const plan_request *from, const plan_request *to) {
    const change_names *names = from->no_training ? &by_options : &by_settings;
    if (from->choice.precision != to->choice.precision)
        strbuf_printf(next_change(l), "%s%s", names->precision, precision_name(to->choice.precision));
    if (from->lora.rank != to->lora.rank)
        strbuf_printf(next_change(l), "model.lora.rank=%lld", (long long)to->lora.rank);
    if (from->base != to->base) strbuf_printf(next_change(l), "model.base=%s", base_format_name(to->base));
    if (from->seq_len != to->seq_len) strbuf_printf(next_change(l), "%s%lld", names->seq_len, (long long)to->seq_len);
    if (from->manual && plan_is_open(to)) strbuf_add(next_change(l), "memory.strategy=auto");
    else if (from->choice.recompute.kind != to->choice.recompute.kind)
        strbuf_printf(next_change(l), "memory.recompute=%s", recompute_name(to->choice.recompute.kind));
    if (from->logits_chunk_bytes != to->logits_chunk_bytes)
        strbuf_printf(next_change(l), "%s%lldM", names->chunk, (long long)(to->logits_chunk_bytes >> 20));
    if (from->choice.micro_batch != to->choice.micro_batch)
        strbuf_printf(next_change(l), "%s%lld", names->batch, (long long)to->choice.micro_batch);
    if (from->generation.slots != to->generation.slots)
        strbuf_printf(next_change(l), "%s=%lld", to->rollout ? "rl.sequences" : "train.samples",
                      (long long)to->generation.slots);
    if (from->choice.micro_batch != to->choice.micro_batch && !from->no_training && !from->rollout)
        strbuf_printf(next_change(l), "train.accumulation=%lld", (long long)to->choice.accumulation);
}

void plan_list_changes(const plan_request *from, const plan_request *to, strbuf *out) {
    list_changes(&(change_list){out, "", ", "}, from, to);
}

static void warn_of_cuts(strbuf *b, const plan_request *from, const plan_request *to) {
    if (to->seq_len == from->seq_len || from->no_training) return;
    strbuf_printf(b, "; rows of %lld tokens cut %s records", (long long)to->seq_len,
                  to->seq_len <= SHORT_ROWS ? "most" : "longer");
}

/* As it is typed: --set precision=bf16_sr (4.8 MiB) */
static void describe(strbuf *b, const plan_request *from, const plan_request *to, uint64_t planned) {
    char buf[32];
    list_changes(&(change_list){b, from->no_training ? by_options.before : by_settings.before, " "}, from, to);
    strbuf_printf(b, " (%s", str_format_bytes(buf, planned));
    warn_of_cuts(b, from, to);
    strbuf_add(b, ")");
}

/* As it is not advised, because it is not enough: 2.3 MiB (precision=bf16_sr, data.seq_len=12; ...) */
static void describe_least(strbuf *b, const plan_request *from, const plan_request *to, uint64_t planned) {
    char buf[32];
    strbuf list;
    strbuf_init(&list);
    plan_list_changes(from, to, &list);
    strbuf_printf(b, "%s (%s", str_format_bytes(buf, planned), list.text);
    warn_of_cuts(b, from, to);
    strbuf_add(b, ")");
    strbuf_fini(&list);
}

/* Stochastic rounding only exists in training. */
static bool allowed(const plan_request *r, precision q) {
    return q != r->choice.precision && !(r->no_training && q == PRECISION_BF16_SR);
}

static const base_format smaller_bases[] = {BASE_INT8, BASE_NF4};

/* Only the frozen base of adapters may be stored in fewer bits, and not where its weights are cut or taken apart. */
static bool may_have_base(const plan_request *r, base_format base) {
    bool is_smaller = r->base == BASE_COMPUTE || (base == BASE_NF4 && r->base != BASE_NF4);
    return r->lora.rank && !r->lora.pissa && is_smaller && mesh_size(&r->mesh, AXIS_TENSOR) == 1;
}

/* Generation beside training: fewer sequences at once, where that is enough. */
static bool fewer_samples(plan_request *r, uint64_t *planned) {
    generation_shape *g = &r->generation;
    while (plan_samples(r) && g->slots > 1) {
        g->slots /= 2;
        g->pages = generation_pages_wanted(g);
        g->prefill_tokens = MIN(g->prefill_tokens, g->slots * g->context);
        if (plan_variant_fits(r, planned)) return true;
    }
    return false;
}

/* Writes the smallest change that fits; false when none of them does, with what needs least written. */
static bool smallest_change(const plan_request *r, strbuf *b) {
    static const precision order[] = {PRECISION_BF16, PRECISION_BF16_SR};
    uint64_t planned = 0;
    plan_request t = *r, chosen = *r;
    if (r->manual) chosen.open = r->left_open; /* memory.strategy=auto */
    if (!r->manual || r->left_open_recompute) chosen.choice.recompute = (recompute_policy){.kind = RECOMPUTE_AUTO};
    const plan_request *bases[] = {r, &chosen}; /* as asked first: change nothing that may stay */
    /* Without a backward there is nothing to recompute. */
    bool is_chosen = !r->manual && r->choice.recompute.kind == RECOMPUTE_AUTO;
    size_t n_bases = is_chosen || r->no_training ? 1 : 2;
    if (fewer_samples(&t, &planned)) goto found;
    t = *r;
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
            if (fits_or_shrinks(&t, &planned)) goto found;
        }
    for (size_t i = 0; i < ARRAY_LENGTH(smaller_bases); i++)
        for (size_t k = 0; k < n_bases && may_have_base(r, smaller_bases[i]); k++) {
            t = *bases[k];
            t.base = smaller_bases[i];
            if (fits_or_shrinks(&t, &planned)) goto found;
            t.choice.precision = PRECISION_BF16;
            if (allowed(r, PRECISION_BF16) && plan_variant_fits(&t, &planned)) goto found;
        }
    t = *bases[n_bases - 1]; /* the cheapest of everything above, with shorter rows */
    t.choice.precision = r->no_training ? PRECISION_BF16 : PRECISION_BF16_SR;
    if (may_have_base(r, BASE_NF4)) t.base = BASE_NF4;
    if (!r->open.micro_batch) {
        t.choice.accumulation *= t.choice.micro_batch;
        t.choice.micro_batch = 1;
    }
    if (shorten_rows(&t, &planned)) goto found;
    if (planned) describe_least(b, r, &t, planned);
    return false;
found:
    describe(b, r, &t, planned);
    return true;
}

/* Without rl.baseline_memory: a row per micro-batch, which works for every length, and everything open that it had closed. */
static plan_request without_baseline(const plan_request *r) {
    plan_request q = *r;
    q.baseline = q.manual = false;
    q.open = r->left_open;
    if (r->left_open_recompute) q.choice.recompute = (recompute_policy){.kind = RECOMPUTE_AUTO};
    q.logits_chunk_bytes = 0;
    q.choice.micro_batch = 1;
    q.choice.accumulation = r->rollout;
    return q;
}

/* The same where rl.baseline_memory asks for more memory than is needed: that goes first. */
static bool find_change(const plan_request *r, strbuf *b) {
    if (!r->baseline) return smallest_change(r, b);
    plan_request usual = without_baseline(r);
    uint64_t planned;
    char a[32];
    bool is_enough = plan_variant_fits(&usual, &planned);
    strbuf more;
    strbuf_init(&more);
    bool found = is_enough || smallest_change(&usual, &more);
    if (found) strbuf_add(b, "--set rl.baseline_memory=false --set train.micro_batch=1");
    if (is_enough) strbuf_printf(b, " (%s)", str_format_bytes(a, planned));
    else strbuf_printf(b, "%s%s", found ? " " : "", more.text);
    strbuf_fini(&more);
    return found;
}

/* Advises an nvme directory; false: a drive does not help. Alone it helps only where the plan may choose what to offload. */
static bool advise_nvme(const plan_request *r, strbuf *b) {
    plan_request t = *r;
    t.may_nvme = true;
    if (r->manual) t.open = r->left_open, t.manual = false;
    if (r->manual && r->left_open_recompute) t.choice.recompute = (recompute_policy){.kind = RECOMPUTE_AUTO};
    if (r->may_nvme || !plan_is_open(&t) || !can_fit(&t)) return false;
    strbuf_printf(b, "Name a directory on a fast drive with memory.nvme_path%s, or use",
                  r->manual ? " and set memory.strategy=auto" : "");
    return true;
}

/* The bytes that no change removes: a parameter and its gradient in 16 bits each, and two moments in memory.states. Says so
 * where device and host together are smaller, which saves compiling every change. */
static bool has_no_room(const plan_request *r, strbuf *b) {
    static const uint64_t moment_bytes[STATES_COUNT] = {[STATES_FP32] = 4, [STATES_BF16] = 2, [STATES_INT8] = 1};
    char needed[32], there[32];
    bool alone = mesh_world(&r->mesh) == 1 && !plan_is_placed(r);
    if (!alone || r->lora.rank || r->no_training || plan_generates(r) || r->may_nvme ||
        offload_on_nvme(&r->choice.offload) || r->host_limit == 0)
        return false;
    uint64_t per_parameter = 2 + 2 + 2 * moment_bytes[state_format_of(PRECISION_BF16_SR, r->choice.states)];
    uint64_t least = net_param_count(&r->source) * per_parameter, all = r->device_limit + r->host_limit;
    if (r->together_limit) all = MIN(all, r->together_limit);
    if (least <= all) return false;
    strbuf_printf(b,
                  "None of recompute, batch, precision and length is enough: parameters, gradients and states take at "
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
    base_format base; /* of adapters */
} fewer_bytes[] = {{"--set memory.states=int8", .int8 = true},
                   {"--set precision=bf16_sr", .sr = true},
                   {"--set precision=bf16_sr --set memory.states=int8", .sr = true, .int8 = true},
                   {"--set model.base=int8", .base = BASE_INT8},
                   {"--set model.base=nf4", .base = BASE_NF4}};

/* The first of these that fits; NULL: none does, so none is advised. */
static const char *find_fewer_bytes(const plan_request *r) {
    for (size_t i = 0; i < ARRAY_LENGTH(fewer_bytes); i++) {
        plan_request t = *r;
        if (fewer_bytes[i].sr) t.choice.precision = PRECISION_BF16_SR;
        if (fewer_bytes[i].int8) t.choice.states = STATES_INT8;
        if (fewer_bytes[i].base && may_have_base(r, fewer_bytes[i].base)) t.base = fewer_bytes[i].base;
        bool is_new =
            t.choice.precision != r->choice.precision || t.choice.states != r->choice.states || t.base != r->base;
        bool is_cut = mesh_size(&r->mesh, AXIS_TENSOR) > 1; /* blocks of 8-bit states cannot be cut */
        bool possible = is_new && !(fewer_bytes[i].int8 && is_cut);
        if (possible && can_fit(&t)) return fewer_bytes[i].settings;
    }
    return NULL;
}

/* The copy that a save in the background is written from; false: without it the host is too small as well. */
static bool advise_no_copy(const plan *p, const plan_request *r, strbuf *out) {
    plan_request t = *r;
    char a[32];
    t.state_copies = 0;
    if (!r->state_copies || !can_fit(&t)) return false;
    strbuf_printf(
        out,
        "%s of it is the copy for background checkpoints: without train.save_every (--set train.save_every=0) "
        "it fits. ",
        str_format_bytes(a, plan_staged_bytes(p)));
    return true;
}

static void explain_host(const plan *p, const plan_request *r, strbuf *out) {
    char a[32], b[32];
    strbuf advice;
    strbuf_init(&advice);
    bool is_copy = advise_no_copy(p, r, &advice);
    const char *fewer = is_copy ? NULL : find_fewer_bytes(r);
    if (fewer) strbuf_printf(&advice, "Fewer bytes per parameter fit: %s. ", fewer);
    if (!advise_nvme(r, &advice)) strbuf_add(&advice, fewer || is_copy ? "Or use" : "Use");
    strbuf_add(&advice, " more or larger machines");
    strbuf_printf(out, "the host has %s of memory, and %s would be enough. %s", str_format_bytes(b, r->host_limit),
                  str_format_bytes(a, p->planned[TIER_HOST]), advice.text);
    strbuf_fini(&advice);
}

/* Nothing tried is enough: the limit with which these settings fit, and what needs least of all that was tried. */
static void advise_limit(const plan_request *r, uint64_t needed, const char *least, strbuf *out) {
    char a[32];
    strbuf_printf(out, "None of %s is enough: raise the limit to %s for these settings, or take a smaller model",
                  plan_generates(r) ? "batch, precision and context" : "recompute, batch, precision and length",
                  str_format_limit(a, needed));
    if (*least) strbuf_printf(out, "; the least that fits with any of them is %s", least);
}

/* Adapters of the usual rank over a base of 4 bits, where all parameters were to be trained and that does not fit. */
static void advise_adapters(const plan_request *r, strbuf *out) {
    enum { USUAL_RANK = 16 };
    char buf[32];
    uint64_t planned;
    plan_request t = *r;
    bool is_plain = !r->lora.rank && !r->no_training && !plan_generates(r) && !r->critic.kind && !r->policy.on &&
                    !r->selection.kind && r->source.prediction_heads == 0 && mesh_size(&r->mesh, AXIS_TENSOR) == 1;
    if (!is_plain || r->source.by->adapt_all(&r->source, &t.lora) != OK) {
        error_clear();
        return;
    }
    t.lora.rank = USUAL_RANK;
    t.lora.alpha = 2.0 * USUAL_RANK;
    t.base = BASE_NF4;
    if (t.reference == REFERENCE_COPY) t.reference = REFERENCE_BASE; /* what the model is without its adapters */
    if (!plan_variant_fits(&t, &planned)) return;
    strbuf_printf(out,
                  ". Another kind of training fits, QLoRA, which trains adapters beside a frozen base of 4 bits: --set "
                  "model.lora.rank=%d --set model.base=nf4 (%s)",
                  USUAL_RANK, str_format_bytes(buf, planned));
}

/* Where the limit comes from: a setting, or the memory of this machine. */
static const char *limit_name(const plan_request *r, bool together) {
    if (together) return "which are one memory here, of";
    if (r->together_limit && (!r->device_asked || r->device_asked > r->device_limit)) return "this machine has";
    return plan_generates(r) || r->no_training ? "--device-memory is" : "memory.device is";
}

/* What takes the memory, on lines of their own. */
static void list_largest(const plan *p, strbuf *out) {
    char a[32];
    for (size_t i = 0; i < MIN(p->n_at_peak, (size_t)NAMED); i++) {
        const value *v = &p->program.values[p->at_peak[i]];
        strbuf_printf(out, "%s%s (%s) %s", i ? ", " : "\n    largest at the peak: ", v->name, role_name(v->role),
                      str_format_bytes(a, value_bytes(v)));
    }
    const char *before = "\n    by role: ";
    for (role i = 0; i < ROLE_COUNT; i++) {
        if (!p->by_role[i]) continue;
        strbuf_printf(out, "%s%s %s", before, role_name(i), str_format_bytes(a, p->by_role[i]));
        before = ", ";
    }
}

/* It fits the device, and lacks host memory. */
static bool lacks_host(const plan *p) {
    const plan_request *r = &p->request;
    bool device_holds = r->device_limit == 0 || p->planned[TIER_DEVICE] <= r->device_limit;
    return device_holds && r->host_limit && p->planned[TIER_HOST] > r->host_limit;
}

void plan_explain(const plan *p, strbuf *out) {
    const plan_request reopened = plan_request_reopen(p), *r = &reopened;
    char a[32], b[32];
    if (plan_fits(p)) return;
    if (lacks_host(p)) {
        explain_host(p, r, out);
        advise_adapters(r, out);
        return;
    }
    bool device_holds = r->device_limit == 0 || p->planned[TIER_DEVICE] <= r->device_limit;
    uint64_t needed = device_holds ? plan_joint_bytes(p) : p->planned[TIER_DEVICE];
    uint64_t limit = device_holds ? r->together_limit : r->device_limit;
    strbuf advice, change;
    strbuf_init(&advice);
    strbuf_init(&change);
    if (!has_no_room(r, &advice)) {
        bool found = plan_generates(r) ? plan_generation_change(r, &change) : find_change(r, &change);
        if (found) strbuf_printf(&advice, "Fits with: %s", change.text);
        else advise_limit(r, needed, change.text, &advice);
    }
    strbuf_printf(out, "it needs %s%s, %s %s", str_format_bytes(a, needed),
                  device_holds ? " on device and host together" : "", limit_name(r, device_holds),
                  str_format_bytes(b, limit));
    if (mesh_world(&r->mesh) > 1) strbuf_printf(out, " for each of %d ranks", mesh_world(&r->mesh));
    strbuf_printf(out, ". %s", advice.text);
    advise_adapters(r, out);
    strbuf_fini(&change);
    strbuf_fini(&advice);
}

status plan_check_explained(const plan *p, const char *explanation) {
    if (plan_fits(p)) return OK;
    strbuf largest;
    strbuf_init(&largest);
    strbuf_add(&largest, "");
    if (!lacks_host(p)) list_largest(p, &largest); /* of the device */
    status rc = ERR(ERR_FIT, "%s does not fit: %s%s", p->request.source.name, explanation, largest.text);
    strbuf_fini(&largest);
    return rc;
}

status plan_check_fit(const plan *p) {
    if (plan_fits(p)) return OK;
    strbuf explanation;
    strbuf_init(&explanation);
    plan_explain(p, &explanation);
    status rc = plan_check_explained(p, explanation.text);
    strbuf_fini(&explanation);
    return rc;
}
