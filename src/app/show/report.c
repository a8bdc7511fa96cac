/* report.c - the plan as text for people and as JSON for programs. */
#include "plan/timeline.h"
#include "show/parts.h"

#include <math.h>
#include <stdlib.h>

#define NAMED_AT_PEAK 8

static void print_row(FILE *out, const char *name, uint64_t n_bytes, uint64_t total) {
    char buf[32];
    fprintf(out, "    %-12s %12s  %5.1f %%\n", name, str_format_bytes(buf, n_bytes),
            total ? 100.0 * (double)n_bytes / (double)total : 0.0);
}

static void print_recompute(const plan *p, FILE *out) {
    strbuf policy;
    strbuf_init(&policy);
    recompute_print(&p->request.choice.recompute, &policy);
    fprintf(out, "recompute %s%s: %.1f %% more FLOP\n", policy.text,
            p->asked.recompute.kind == RECOMPUTE_AUTO ? " (auto)" : "", 100 * p->flops_again / p->flops_per_step);
    if (p->n_candidates && p->candidates[0].saved_bytes) {
        char saved[32];
        fprintf(out,
                "          it fits without; this saves %s for %.1f %% of the step's time (memory.recompute=none: keep "
                "everything)\n",
                str_format_bytes(saved, p->candidates[0].saved_bytes), 100 * p->candidates[0].saved_for);
    }
    strbuf_fini(&policy);
}

#define NAMED_KINDS 5

/* Kinds of ops, longest first, as shares of the sum of all ops. */
static void print_kinds(const cost *c, FILE *out) {
    bool shown[OP_COUNT] = {false};
    double total = 0;
    for (int k = 0; k < OP_COUNT; k++) total += c->kinds[k].seconds;
    for (int i = 0; i < NAMED_KINDS; i++) {
        int longest = -1;
        for (int k = 0; k < OP_COUNT; k++)
            if (!shown[k] && c->kinds[k].n && (longest < 0 || c->kinds[k].seconds > c->kinds[longest].seconds))
                longest = k;
        if (longest < 0) break;
        shown[longest] = true;
        fprintf(out, "%s%s %.0f %%", i ? ", " : "    ", op_name((op_kind)longest),
                100 * c->kinds[longest].seconds / total);
    }
    fputc('\n', out);
}

static bool is_built_in(const hardware *h) {
    for (size_t i = 0; hardware_at(i); i++)
        if (strcmp(hardware_at(i)->name, h->name) == 0) return true;
    return false;
}

void plan_explain_no_time(const hardware *h, const char *missing, strbuf *out) {
    strbuf_printf(out, "the description of %s has no %s; ", h->name, missing);
    if (is_built_in(h))
        strbuf_printf(out, "plan with --hardware FILE.yaml and in that file the lines 'base: %s' and '%s: NUMBER'",
                      h->name, missing);
    else strbuf_add(out, "add it to the file that --hardware names ('ralo devices --hardware h100' prints an example)");
}

static void print_prediction(const plan *p, FILE *out) {
    const cost *c = &p->cost;
    const hardware *h = p->request.hardware;
    char a[32], b[32];
    int n_streams = 0;
    if (c->missing) {
        strbuf text;
        strbuf_init(&text);
        plan_explain_no_time(h, c->missing, &text);
        fprintf(out, "predicted nothing: %s\n", text.text);
        strbuf_fini(&text);
        return;
    }
    fprintf(out, "predicted %s per %s, %s tokens/s on %s", str_format_seconds(b, c->step_s),
            p->request.rollout ? "update" : "step", str_format_count(a, (double)plan_tokens_per_step(p) / c->step_s),
            h->name);
    if (p->request.rollout) fputs("; generation and rewards are not predicted", out);
    else if (p->request.run_steps > 1 && (double)p->request.run_steps * c->step_s >= 1)
        fprintf(out, "; %lld steps take about %s", (long long)p->request.run_steps,
                str_format_duration(b, (double)p->request.run_steps * c->step_s));
    fputc('\n', out);
    fprintf(out, "    machine: %s\n", *h->source ? h->source : "described by a file");
    print_kinds(c, out);
    for (stream l = 0; l < STREAM_COUNT; l++) n_streams += c->busy_s[l] > 0;
    for (stream l = 0; l < STREAM_COUNT && n_streams > 1; l++)
        if (c->busy_s[l] > 0)
            fprintf(out, "    %-8s busy %s, %.0f %% of the step\n", stream_name(l), str_format_seconds(a, c->busy_s[l]),
                    100 * c->busy_s[l] / c->step_s);
}

/* Which parameters are trained, where not all are. */
static void print_adapters(const plan *p, FILE *out) {
    const lora_options *o = &p->request.lora;
    const model_config *c = model_of(&p->request.source);
    char a[32];
    if (!o->rank) return;
    double n = (double)lora_param_count(c, o);
    fprintf(out, "lora      rank %lld, alpha %g%s%s, on", (long long)o->rank, o->alpha, o->rslora ? " (rslora)" : "",
            o->pissa ? ", first values by pissa" : "");
    for (lora_module m = 0, first = true; m < LORA_MODULE_COUNT; m++)
        if (o->modules & 1u << m) fprintf(out, "%s %s", first ? "" : ",", lora_module_name(c, m)), first = false;
    bool trains = !plan_generates(&p->request) && !p->request.no_training;
    fprintf(out, ": %s parameters%s (%.2g %%)%s\n", str_format_count(a, n), trains ? " trained" : "",
            100 * n / (double)model_param_count(c),
            trains ? "; the others are frozen, without gradients and states" : "");
    if (p->request.base != BASE_COMPUTE)
        fprintf(out, "base      linear layers stored as %s, %s\n", base_format_name(p->request.base),
                trains && precision_fp8(p->request.choice.precision)
                    ? "converted once to the 8-bit weights of the products; dequantised for evaluation"
                : net_multiplies_codes(p->request.generation.weights, p->request.base, p->request.target.discrete)
                    ? "multiplied as codes"
                    : "dequantised before each use");
}

/* What comparing with a reference costs. */
static void print_reference(const plan *p, FILE *out) {
    model_config c = model_main_config(model_of(&p->request.source));
    uint64_t n = model_param_count(&c) * dtype_bytes(precision_compute(p->request.choice.precision));
    tier own = p->request.choice.offload.reference;
    char a[32];
    if (p->request.reference == REFERENCE_COPY)
        fprintf(out, "reference: %s, %s of parameters%s%s and one more forward pass\n",
                p->request.reference_dir ? p->request.reference_dir : "a frozen copy of the model",
                str_format_bytes(a, n), own == TIER_DEVICE ? "" : " on ", own == TIER_DEVICE ? "" : tier_name(own));
    else if (p->request.reference == REFERENCE_BASE)
        fprintf(out, "reference: the base without adapters, no parameters and one more forward pass\n");
    else if (p->request.reference == REFERENCE_INPUT)
        fprintf(out, "reference: its log-probabilities, computed once before the first step and kept on disk\n");
    else fprintf(out, "no reference\n");
    if (plan_shares_z(&p->request))
        fprintf(out, "          z is over all examples of a step: they are evaluated before it, a forward pass more\n");
}

/* The loss over completions with advantages. */
static void print_policy(const plan *p, FILE *out) {
    static const char *const levels[] = {"token", "completion", "completion, a mean over its tokens"};
    const policy_options *o = &p->request.policy;
    if (!o->on) return;
    fprintf(out, "loss      completions with advantages, one ratio per %s, clipped to %g .. %g; ", levels[o->level],
            1 - (double)o->low, 1 + (double)o->high);
    print_reference(p, out);
}

/* The loss over whole responses, and what comparing costs. */
static void print_preference(const plan *p, FILE *out) {
    const preference_options *o = &p->request.preference;
    if (!o->kind) return;
    fprintf(out, "loss      %s, ", preference_name(o->kind));
    if (o->kind == PREFERENCE_ORPO) fprintf(out, "lambda %g", (double)o->lambda);
    else fprintf(out, "beta %g", (double)o->beta);
    if (o->kind == PREFERENCE_SIMPO) fprintf(out, ", gamma %g", (double)o->gamma);
    fprintf(out, " over %s%s; ", o->kind == PREFERENCE_KTO ? "single responses" : "pairs of responses",
            p->request.share_prompts ? " that share their prompt in a row" : "");
    print_reference(p, out);
}

/* A critic: its head, and what its values are fitted to. */
static void print_critic(const plan *p, FILE *out) {
    const critic_options *o = &p->request.critic;
    const char *head = value_head_name(model_of(&p->request.source)->value_head);
    if (o->kind == CRITIC_PAIRWISE)
        fprintf(out, "loss      critic, values of a %s head, ranked in pairs of solutions\n", head);
    if (o->kind == CRITIC_LAMBDA)
        fprintf(out, "loss      critic, values of a %s head, fitted to returns with lambda %g, gamma %g, %s\n", head,
                (double)o->lam, (double)o->gamma, o->smooth ? "smooth-l1" : "mse");
}

/* Heads of multi-token prediction, and how their tokens are selected. */
static void print_heads(const plan *p, FILE *out) {
    const model_config *c = model_of(&p->request.source);
    const selection_options *s = &p->request.selection;
    if (c->mtp_heads > 1)
        fprintf(out, "heads     the last %lld layers predict 1 to %lld tokens ahead over a trunk of %lld; %s\n",
                (long long)c->mtp_heads, (long long)c->mtp_heads, (long long)model_first_head(c),
                p->request.generation.heads > 1 ? "those after the first draft tokens" : "one at a time is in memory");
    if (!s->kind) return;
    fprintf(out, "weighting rho1, %g of the tokens of each head; ", s->share);
    print_reference(p, out);
}

static void print_generation(const plan *p, FILE *out) {
    const generation_shape *g = &p->request.generation;
    char a[32], b[32];
    fprintf(
        out, "generate  %lld sequences of at most %lld tokens, %s%s%s, prompts by %lld tokens, %s FLOP per full step\n",
        (long long)g->slots, (long long)g->context, precision_name(p->request.choice.precision),
        g->weights != BASE_COMPUTE ? ", weights " : "", g->weights != BASE_COMPUTE ? base_format_name(g->weights) : "",
        (long long)g->prefill_tokens, str_format_count(a, p->flops_per_step));
    fprintf(out, "cache     %lld pages of %lld tokens, %s each\n", (long long)g->pages, (long long)g->page_size,
            str_format_bytes(b, generation_page_bytes(model_of(&p->request.source), g,
                                                      precision_compute(p->request.choice.precision))));
}

/* What rollout and update need on the same bytes. */
static void print_rollout_peak(const plan *p, FILE *out) {
    uint64_t rollout = plan_rollout_bytes(p, true), update = plan_rollout_bytes(p, false);
    char a[32], b[32];
    fprintf(
        out,
        "          full pages of a prompt are stored once for its completions; the rollout needs %s, the update %s: "
        "the %s sets the peak\n",
        str_format_bytes(a, rollout), str_format_bytes(b, update), rollout > update ? "rollout" : "update");
}

/* rl.baseline_memory: what grows with rl.k. */
static void print_baseline(const plan *p, FILE *out) {
    const plan_request *r = &p->request;
    uint64_t row = (uint64_t)(r->seq_len * model_of(&r->source)->vocab) * sizeof(float);
    char a[32], b[32];
    fprintf(
        out,
        "baseline  rl.baseline_memory: %lld completions in a micro-batch, each with its own copy of the prompt, and "
        "the logits of all tokens at once: %s for each, %s in all\n",
        (long long)r->choice.micro_batch, str_format_bytes(a, row),
        str_format_bytes(b, row * (uint64_t)r->choice.micro_batch));
}

/* Generation beside training: what its cache takes, and that it takes it from the activations. */
static void print_samples(const plan *p, FILE *out) {
    const generation_shape *g = &p->request.generation;
    char a[32];
    uint64_t page =
        generation_page_bytes(model_of(&p->request.source), g, precision_compute(p->request.choice.precision));
    if (p->request.rollout) {
        long long n = p->request.rollout, waves = divide_up(n, g->slots);
        fprintf(out, "rollout   %lld completions: %lld wave%s of %lld,", n, waves, waves == 1 ? "" : "s",
                (long long)MIN(n, g->slots));
    } else {
        fprintf(out, "samples   %lld at once,", (long long)g->slots);
    }
    fprintf(out, " at most %lld tokens each; cache %s: %lld pages of %lld tokens, on the bytes of activations\n",
            (long long)g->context, str_format_bytes(a, page * (uint64_t)g->pages), (long long)g->pages,
            (long long)g->page_size);
    if (p->request.rollout) print_rollout_peak(p, out);
}

static void print_ranks(const plan *p, FILE *out) {
    const plan_request *r = &p->request;
    char a[32];
    double volume = plan_volume(p);
    fprintf(out, "ranks     %d, this is rank %d; zero %d; each sends %s per step", mesh_world(&r->mesh),
            mesh_rank(&r->mesh), r->choice.shard.zero, str_format_bytes(a, (uint64_t)p->sent_per_step));
    if (volume > 0) fprintf(out, ", %.3g times the parameters", volume);
    fputs("\n", out);
}

/* "embed, layers 0-5, head": what a device computes. False: nothing. */
static bool list_parts(const plan_request *r, const place_options *l, tier t, strbuf *out) {
    if (place_tier(l->embed, &r->target) == t) strbuf_add(out, ", embed");
    for (int64_t i = 0, end; i < r->source.n_layers; i = end) {
        for (end = i; end < r->source.n_layers && place_tier(l->layers[end], &r->target) == t;) end++;
        if (end == i + 1) strbuf_printf(out, ", layer %lld", (long long)i);
        else if (end > i) strbuf_printf(out, ", layers %lld-%lld", (long long)i, (long long)end - 1);
        else end++;
    }
    if (place_tier(l->head, &r->target) == t) strbuf_add(out, ", head");
    return out->length > 0;
}

/* Which device computes what (memory.place), under the names of its memory. */
static void print_place(const plan *p, FILE *out) {
    const plan_request *r = &p->request;
    const char *next = "place     ";
    place_options l = plan_place(r);
    for (tier t = 0; t < TIER_COUNT; t++) {
        strbuf parts;
        strbuf_init(&parts);
        if (list_parts(r, &l, t, &parts)) {
            fprintf(out, "%s%s (", next, tier_name(t));
            if (t >= TIER_DEVICE_1) fprintf(out, "cpu:%d", (int)(t - TIER_DEVICE_1) + 1);
            else fputs(t == TIER_HOST ? "cpu" : r->target.discrete ? "cuda" : "cpu:0", out);
            fprintf(out, "): %s", parts.text + strlen(", "));
            next = "; ";
        }
        strbuf_fini(&parts);
    }
    fputs("\n", out);
}

/* What stands in the arena of a further device at its own peak. */
static void print_roles(const plan *p, tier t, FILE *out) {
    const program *g = &p->program;
    plan_alive *alive = plan_alive_at_ops(g, t);
    size_t peak = 0;
    for (size_t i = 0; i < g->n_ops; i++)
        if (plan_alive_sum(&alive[i]) > plan_alive_sum(&alive[peak])) peak = i;
    for (role i = 0; i < ROLE_COUNT; i++)
        if (alive[peak].by_role[i]) print_row(out, role_name(i), alive[peak].by_role[i], p->planned[t]);
    print_row(out, "gaps", g->arena_bytes[t] - plan_alive_sum(&alive[peak]), p->planned[t]);
    if (p->planned[t] > g->arena_bytes[t]) print_row(out, "other", p->planned[t] - g->arena_bytes[t], p->planned[t]);
    free(alive);
}

/* The limit stands beside it where it is the host's own, not all that device and host share. */
static void print_host(const plan *p, FILE *out) {
    const plan_request *r = &p->request;
    char a[32], b[32];
    fprintf(out, "host      %s planned", str_format_bytes(a, p->planned[TIER_HOST]));
    if (r->host_limit && (!r->together_limit || r->host_limit < r->together_limit))
        fprintf(out, " of %s", str_format_bytes(b, r->host_limit));
    if (r->host_limit && r->host_is_assumed && r->hardware)
        fprintf(out, " (assumed for %s; set yours with memory.host)", r->hardware->name);
    const char *arena = p->program.arena_bytes[TIER_HOST] == 0 ? ""
                        : plan_is_placed(&p->request)          ? "parts on cpu, "
                                                               : "offloaded values, ";
    if (plan_is_placed(&p->request) && *arena && offload_any(&r->choice.offload))
        arena = "parts on cpu, offloaded values, ";
    fprintf(out, ": %s%s%s\n", arena, plan_generates(r) ? "logits, sampling" : "loader, evaluation, text",
            r->state_copies ? ", the copy for background checkpoints" : "");
}

static void print_step(const plan *p, FILE *out) {
    const plan_request *r = &p->request;
    int n_ranks = mesh_size(&r->mesh, AXIS_DATA);
    char a[32], b[32];
    fprintf(out, "step      %s", r->rollout ? "at most " : "");
    if (n_ranks > 1) fprintf(out, "%d data ranks x ", n_ranks);
    fprintf(out, "%lld x %lld tokens x accumulation %lld = %s tokens, %s, %s FLOP\n", (long long)r->choice.micro_batch,
            (long long)r->seq_len, (long long)r->choice.accumulation,
            str_format_count(a, (double)plan_tokens_per_step(p)), precision_name(r->choice.precision),
            str_format_count(b, p->flops_per_step));
}

static void print_model(const plan *p, FILE *out) {
    const model_config *c = model_of(&p->request.source);
    char a[32];
    fprintf(
        out,
        "model     %s: %s parameters, %lld layers, hidden %lld, %lld heads (%lld kv) of %lld, vocabulary %lld, %s\n",
        c->name, str_format_count(a, (double)model_param_count(c)), (long long)c->n_layers, (long long)c->hidden,
        (long long)c->n_heads, (long long)c->n_kv_heads, (long long)c->head_dim, (long long)c->vocab,
        c->tied ? "tied" : "untied");
}

/* What is offloaded or computed again, in the words of a candidate. */
static void print_memory_choice(const plan *p, FILE *out) {
    const step_choice *c = &p->request.choice;
    bool is_plain = !offload_any(&c->offload) && c->recompute.kind == RECOMPUTE_NONE && !c->chunk_tokens &&
                    !plan_is_placed(&p->request);
    strbuf text;
    strbuf_init(&text);
    step_choice_print(c, CHOICE_RECOMPUTE | CHOICE_OFFLOAD | CHOICE_PREFETCH | CHOICE_CPU_LAYERS | CHOICE_CHUNK_TOKENS,
                      &text);
    fprintf(out, "strategy  %s\n", is_plain ? "nothing is offloaded or recomputed" : text.text);
    strbuf_fini(&text);
}

/* All roles on one line. */
static void print_device_roles(const plan *p, FILE *out) {
    const char *before = ": ";
    char a[32], b[32];
    fprintf(out, "device    %s planned", str_format_bytes(a, p->planned[TIER_DEVICE]));
    if (p->request.device_limit) fprintf(out, " of %s", str_format_bytes(b, p->request.device_limit));
    for (role i = 0; i < ROLE_COUNT; i++) {
        if (!p->by_role[i]) continue;
        fprintf(out, "%s%s %s", before, role_name(i), str_format_bytes(a, p->by_role[i]));
        before = ", ";
    }
    fprintf(out, "%sgaps %s\n", before, str_format_bytes(a, p->gap_bytes));
}

void plan_print_attention(const plan *p, FILE *out) {
    const attention_choice *c = &p->attention;
    char a[32], b[32];
    fprintf(out, "rows      %d ranks share each; attention by %s, %s: per layer %s sent by heads, %s by a ring",
            mesh_size(&p->request.mesh, AXIS_SEQUENCE),
            c->kind == ATTENTION_RING ? "a ring of keys and values" : "heads", c->why,
            str_format_bytes(a, (uint64_t)c->heads_bytes), str_format_bytes(b, (uint64_t)c->ring_bytes));
    if (isfinite(c->heads_s) && isfinite(c->ring_s))
        fprintf(out, "; %.3g and %.3g ms", 1e3 * c->heads_s, 1e3 * c->ring_s);
    fputc('\n', out);
}

void plan_print_brief(const plan *p, FILE *out) {
    print_model(p, out);
    print_adapters(p, out);
    print_step(p, out);
    print_memory_choice(p, out);
    print_device_roles(p, out);
    print_host(p, out);
}

void plan_print(const plan *p, FILE *out) {
    const plan_request *r = &p->request;
    char a[32], b[32];
    print_model(p, out);
    print_adapters(p, out);
    print_critic(p, out);
    print_preference(p, out);
    print_policy(p, out);
    print_heads(p, out);
    if (plan_generates(r)) print_generation(p, out);
    else print_step(p, out);
    if (plan_samples(r)) print_samples(p, out);
    if (r->baseline) print_baseline(p, out);
    if (mesh_world(&r->mesh) > 1) print_ranks(p, out);
    if (mesh_size(&r->mesh, AXIS_SEQUENCE) > 1) plan_print_attention(p, out);
    if (mesh_size(&r->mesh, AXIS_PIPELINE) > 1) plan_print_pipeline(p, out);
    fprintf(out, "program   %zu ops over %zu values for %s, %d thread%s\n", p->program.n_ops, p->program.n_values - 1,
            r->target.name, r->target.n_threads, r->target.n_threads == 1 ? "" : "s");
    if (plan_is_placed(&p->request)) print_place(p, out);
    if (p->request.choice.recompute.kind != RECOMPUTE_NONE) print_recompute(p, out);
    if (p->request.choice.chunk_tokens)
        fprintf(out, "chunks    the MLP takes %lld tokens at a time\n", (long long)p->request.choice.chunk_tokens);
    if (p->step.turn_scalars)
        fprintf(out, "update    %s starts the next step (memory.overlap_update)\n",
                r->target.discrete ? "the CPU's optimizer runs while the GPU" : "the optimizer runs while the device");
    plan_print_candidates(p, out);
    fprintf(out, "device    %s planned", str_format_bytes(a, p->planned[TIER_DEVICE]));
    if (r->device_limit) fprintf(out, " of %s", str_format_bytes(b, r->device_limit));
    fprintf(out, " (%llu bytes)\n", (unsigned long long)p->planned[TIER_DEVICE]);
    for (role i = 0; i < ROLE_COUNT; i++)
        if (p->by_role[i]) print_row(out, role_name(i), p->by_role[i], p->planned[TIER_DEVICE]);
    print_row(out, "gaps", p->gap_bytes, p->planned[TIER_DEVICE]);
    const op *o = &p->program.ops[p->peak_op];
    fprintf(out, "  peak at op %zu: %s", p->peak_op, op_name(o->kind));
    if (o->layer >= 0) fprintf(out, " of layer %d", o->layer);
    if (plan_samples(r)) fprintf(out, ", section %s", section_name(o->section));
    fputs("; largest values alive there\n", out);
    for (size_t i = 0; i < MIN(p->n_at_peak, (size_t)NAMED_AT_PEAK); i++) {
        const value *v = &p->program.values[p->at_peak[i]];
        char s[64];
        fprintf(out, "    %-34s %-11s %-5s %-22s %12s\n", v->name, role_name(v->role), dtype_name(v->type),
                shape_format(s, &v->shape), str_format_bytes(a, value_bytes(v)));
    }
    print_host(p, out);
    if (plan_is_placed(&p->request) && p->program.arena_bytes[TIER_HOST]) print_roles(p, TIER_HOST, out);
    if (r->together_limit)
        fprintf(out, "memory    %s planned of %s, which device and host share\n",
                str_format_bytes(a, plan_joint_bytes(p)), str_format_bytes(b, r->together_limit));
    if (p->planned[TIER_NVME]) fprintf(out, "nvme      %s planned\n", str_format_bytes(a, p->planned[TIER_NVME]));
    for (tier t = TIER_DEVICE_1; t < TIER_COUNT; t++) {
        if (!p->planned[t]) continue;
        fprintf(out, "%-9s %s planned\n", tier_name(t), str_format_bytes(a, p->planned[t]));
        print_roles(p, t, out);
    }
    if (r->hardware) print_prediction(p, out);
}

/* Machine, tokens/s, ms per stream and per kind of op. */
static json_t *prediction_json(const plan *p) {
    const cost *c = &p->cost;
    json_t *j = json_object(), *busy = json_object(), *ops = json_object();
    json_object_set_new(j, "hardware", json_string(p->request.hardware->name));
    json_object_set_new(j, "source", json_string(p->request.hardware->source));
    if (c->missing) json_object_set_new(j, "missing", json_string(c->missing));
    else json_object_set_new(j, "tokens_per_second", json_real((double)plan_tokens_per_step(p) / c->step_s));
    for (stream l = 0; l < STREAM_COUNT && !c->missing; l++)
        if (c->busy_s[l] > 0) json_object_set_new(busy, stream_name(l), json_real(1e3 * c->busy_s[l]));
    for (int k = 0; k < OP_COUNT && !c->missing; k++)
        if (c->kinds[k].n) json_object_set_new(ops, op_name((op_kind)k), json_real(1e3 * c->kinds[k].seconds));
    json_object_set_new(j, "busy_ms", busy);
    json_object_set_new(j, "op_ms", ops);
    return j;
}

json_t *plan_memory_json(const plan *p) {
    json_t *memory = json_object(), *roles = json_object();
    for (tier t = 0; t < TIER_COUNT; t++) {
        if (t > TIER_NVME && !p->planned[t]) continue; /* further devices only where there are any */
        json_t *one = json_object();
        json_object_set_new(one, "planned", json_integer((json_int_t)p->planned[t]));
        json_object_set_new(memory, tier_name(t), one);
    }
    for (role i = 0; i < ROLE_COUNT; i++)
        json_object_set_new(roles, role_name(i), json_integer((json_int_t)p->by_role[i]));
    json_object_set_new(roles, "gaps", json_integer((json_int_t)p->gap_bytes));
    json_object_set_new(memory, "by_role", roles);
    return memory;
}

static void add_generation_json(const generation_shape *g, json_t *s) {
    json_object_set_new(s, "sequences", json_integer(g->slots));
    json_object_set_new(s, "context", json_integer(g->context));
    json_object_set_new(s, "page_size", json_integer(g->page_size));
    json_object_set_new(s, "pages", json_integer(g->pages));
    json_object_set_new(s, "prefill_tokens", json_integer(g->prefill_tokens));
}

static void add_rollout_json(const plan *p, json_t *s) {
    const plan_request *r = &p->request;
    json_object_set_new(s, "completions", json_integer(r->rollout));
    json_object_set_new(s, "waves", json_integer(divide_up(r->rollout, r->generation.slots)));
    json_object_set_new(s, "rollout_bytes", json_integer((json_int_t)plan_rollout_bytes(p, true)));
    json_object_set_new(s, "update_bytes", json_integer((json_int_t)plan_rollout_bytes(p, false)));
    json_object_set_new(s, "baseline_memory", json_boolean(r->baseline));
}

json_t *plan_strategy_json(const plan *p) {
    const plan_request *r = &p->request;
    json_t *s = json_object();
    step_choice_json(&r->choice, CHOICE_PRECISION, s);
    if (plan_generates(r)) {
        add_generation_json(&r->generation, s);
        json_object_set_new(s, "threads", json_integer(r->target.n_threads));
        return s;
    }
    step_choice_json(&r->choice, CHOICE_STATES | CHOICE_MICRO_BATCH | CHOICE_ACCUMULATION, s);
    json_object_set_new(s, "seq_len", json_integer(r->seq_len));
    json_object_set_new(s, "logits_chunk", json_integer(r->logits_chunk_bytes));
    step_choice_json(&r->choice, CHOICE_RECOMPUTE | CHOICE_OFFLOAD | CHOICE_KEEP_LAYERS | CHOICE_KEEP_STATES, s);
    step_choice_json(&r->choice, CHOICE_CHUNK_TOKENS, s); /* prefetch comes after it here */
    step_choice_json(&r->choice, CHOICE_PREFETCH, s);
    /* Those of techniques that this function does not know. A bucket is not told; the others stand above or below. */
    unsigned told = CHOICE_PRECISION | CHOICE_STATES | CHOICE_MICRO_BATCH | CHOICE_ACCUMULATION | CHOICE_RECOMPUTE |
                    CHOICE_OFFLOAD | CHOICE_KEEP_LAYERS | CHOICE_KEEP_STATES | CHOICE_CHUNK_TOKENS | CHOICE_PREFETCH |
                    CHOICE_SHARD | CHOICE_SEQUENCE | CHOICE_BUCKET_BYTES | CHOICE_OVERLAP_UPDATE;
    step_choice_json(&r->choice, CHOICE_ALL & ~told, s);
    json_object_set_new(s, "overlap_update", json_boolean(p->step.turn_scalars));
    json_object_set_new(s, "threads", json_integer(r->target.n_threads));
    if (mesh_world(&r->mesh) > 1) {
        json_object_set_new(s, "data_ranks", json_integer(mesh_size(&r->mesh, AXIS_DATA)));
        step_choice_json(&r->choice, CHOICE_SHARD, s);
        json_object_set_new(s, "tensor", json_integer(mesh_size(&r->mesh, AXIS_TENSOR)));
        step_choice_json(&r->choice, CHOICE_SEQUENCE, s);
    }
    if (mesh_size(&r->mesh, AXIS_SEQUENCE) > 1)
        json_object_set_new(s, "attention", json_string(p->attention.kind == ATTENTION_RING ? "ring" : "heads"));
    if (mesh_size(&r->mesh, AXIS_PIPELINE) > 1) {
        json_object_set_new(s, "stages", json_integer(mesh_size(&r->mesh, AXIS_PIPELINE)));
        json_object_set_new(s, "virtual_stages", json_integer(MAX(r->virtual_stages, 1)));
        json_object_set_new(s, "bubble", json_real(plan_bubble(r)));
    }
    if (plan_samples(r)) {
        add_generation_json(&r->generation, s);
        json_object_set_new(s, "peak_section", json_string(section_name(p->program.ops[p->peak_op].section)));
        if (r->rollout) add_rollout_json(p, s);
    }
    return s;
}

void plan_note(const plan *p, strbuf *out) {
    const plan_request *r = &p->request;
    char a[32], b[32];
    if (r->together_limit && r->device_asked > r->together_limit)
        strbuf_printf(out,
                      "memory.device is %s, and this machine has %s for device and host together%s: planned for that; "
                      "ralo plan --hardware rtx-4090 plans for another machine",
                      str_format_bytes(a, r->device_asked), str_format_bytes(b, r->together_limit),
                      mesh_world(&r->mesh) > 1 ? " on each rank" : "");
    if (!precision_fp8(r->choice.precision) || r->target.discrete) return;
    strbuf_printf(
        out,
        "%sprecision %s on a CPU is emulated: numbers are rounded to 8 bits and multiplied in 16, with the same "
        "rounding and more work; bf16 is faster here",
        out->length > 0 ? "; " : "", precision_name(r->choice.precision));
}

static json_t *notes_json(const plan *p) {
    json_t *list = json_array();
    strbuf note;
    strbuf_init(&note);
    plan_note(p, &note);
    if (note.length > 0) json_array_append_new(list, json_string(note.text));
    strbuf_fini(&note);
    return list;
}

json_t *plan_json(const plan *p, const plan_rung *rungs) {
    json_t *root = json_object();
    json_object_set_new(root, "model", json_string(p->request.source.name));
    json_object_set_new(root, "parameters", json_integer((json_int_t)model_param_count(model_of(&p->request.source))));
    json_object_set_new(root, "trained_parameters", json_integer((json_int_t)plan_trained_params(&p->request)));
    json_object_set_new(root, "tokens_per_step", json_integer(plan_tokens_per_step(p)));
    json_object_set_new(root, "flops_per_step", json_real(p->flops_per_step));
    json_object_set_new(root, "flops_again", json_real(p->flops_again));
    json_object_set_new(root, "strategy", plan_strategy_json(p));
    json_object_set_new(root, "memory", plan_memory_json(p));
    if (rungs) json_object_set_new(root, "recompute", plan_rungs_json(p, rungs));
    if (p->request.hardware) {
        json_object_set_new(root, "step_ms", p->cost.missing ? json_null() : json_real(1e3 * p->cost.step_s));
        json_object_set_new(root, "prediction", prediction_json(p));
    }
    if (p->n_candidates) json_object_set_new(root, "candidates", plan_candidates_json(p));
    json_object_set_new(root, "fits", json_boolean(plan_fits(p)));
    json_object_set_new(root, "notes", notes_json(p));
    return root;
}
