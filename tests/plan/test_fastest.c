/* test_fastest.c - no strategy by hand is predicted faster than the one that auto takes.
 *
 * Requests are drawn at random: model, machine, rows, precision, ranks, and limits of device and host between what is
 * needed with nothing moved and with everything moved. Everything about a step but its memory is closed. For each,
 * auto's winner is compiled, and so are strategies by hand: random ones, and random changes of the winner. One that
 * fits may be predicted faster by at most the share of the time that cheap recompute may cost. RALO_MATRIX=large draws
 * 300 requests and large models. */
#include "backend/backend.h"
#include "change_model.h"
#include "must.h"
#include "plan/plan.h"
#include "training.h"

#include <math.h>

#define ALLOWED 0.0075 /* CHEAP_TIME of mix.c */

typedef struct dice {
    uint64_t key, n;
} dice;
static int64_t below(dice *d, int64_t n) { return (int64_t)rng_below(d->key, d->n++, (uint64_t)n); }
static double uniform(dice *d) { return rng_uniform(d->key, d->n++); }
static bool one_in(dice *d, int64_t n) { return below(d, n) == 0; }
#define ONE_OF(d, list) ((list)[below(d, (int64_t)ARRAY_LENGTH(list))])

/* ---- requests ---------------------------------------------------------------------------------------------------- */

/* Most bytes and least bytes of the device, and the host bytes of the latter. */
static bool extremes(const plan_request *r, uint64_t *most, uint64_t *least, uint64_t *host) {
    plan_request q = *r;
    plan p;
    q.open = (plan_open){0};
    q.choice.recompute.kind = RECOMPUTE_NONE;
    if (plan_build(&p, &q) != OK) return false;
    *most = p.planned[TIER_DEVICE];
    plan_close(&p);
    q.choice.recompute.kind = RECOMPUTE_FULL;
    q.choice.offload = (offload_tiers)OFFLOAD(TIER_HOST, TIER_HOST, TIER_HOST, TIER_HOST);
    must(plan_build(&p, &q));
    *least = MIN(p.planned[TIER_DEVICE], *most);
    *host = p.planned[TIER_HOST];
    plan_close(&p);
    return true;
}

static uint64_t at_share(uint64_t from, uint64_t to, double share) {
    return from + (uint64_t)((double)(to - from) * share);
}

/* Everything about memory is open. */
static plan_request open_request(const char *preset, const hardware *h) {
    return (plan_request){.source = net_source_of(model_preset_find(preset)),
                          .choice = {.recompute.kind = RECOMPUTE_AUTO,
                                     .prefetch = 1,
                                     .overlap_update = OVERLAP_AUTO,
                                     .shard = {.overlap = true, .prefetch = 1}},
                          .optimizer = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .clip = 1},
                          .open = {.params = true,
                                   .grads = true,
                                   .states = true,
                                   .activations = true,
                                   .keep_layers = true,
                                   .keep_states = true,
                                   .keep_params = true,
                                   .keep_embed = true,
                                   .chunk = true,
                                   .prefetch = true},
                          .attention = ATTENTION_AUTO,
                          .hardware = h,
                          .target = backend_target(h->unified ? DEVICE_CPU : DEVICE_CUDA, 8)};
}

/* False: the model cannot be cut like this. */
static bool draw_request(dice *d, bool large, plan_request *r) {
    static const char *const small_models[] = {"test-llama", "test-gpt2", "test-qwen3", "gpt2", "gemma-3-1b"},
                             *const large_models[] = {"gpt2-xl",    "llama3.2-1b", "llama3-8b",
                                                      "gemma-2-9b", "qwen2.5-14b", "llama3-70b"};
    static const precision precisions[] = {PRECISION_FP32, PRECISION_BF16, PRECISION_BF16, PRECISION_BF16_SR,
                                           PRECISION_FP8};
    static const int64_t lengths[] = {256, 512, 1024, 2048, 4096, 8192}, rows[] = {1, 1, 2, 4, 8, 16};
    static const int worlds[] = {2, 8, 64, 512};
    int n_machines = 0;
    while (hardware_at((size_t)n_machines)) n_machines++;
    bool is_large = large && !one_in(d, 4), is_alone = !one_in(d, 3);
    const hardware *h = hardware_at((size_t)below(d, n_machines));
    *r = open_request(is_large ? ONE_OF(d, large_models) : ONE_OF(d, small_models), h);
    r->choice.precision = ONE_OF(d, precisions);
    r->choice.micro_batch = ONE_OF(d, rows);
    r->choice.accumulation = ONE_OF(d, rows);
    r->seq_len = ONE_OF(d, lengths);
    r->seq_len = MIN(r->seq_len, model_of(&r->source)->max_positions);
    if (!is_large || !one_in(d, 3)) CHANGE_MODEL(r->source, c.n_layers = 2 + below(d, is_large ? 23 : 9));
    if (!is_alone && (h->network_bandwidth > 0 || !h->overlap)) {
        r->mesh.size[AXIS_DATA] = ONE_OF(d, worlds);
        r->choice.shard.zero = (int)below(d, 4);
    }
    r->may_nvme = one_in(d, 8);
    uint64_t most, least, host;
    if (!extremes(r, &most, &least, &host)) {
        error_clear();
        return false;
    }
    r->device_limit = at_share(least, most, 1.05 * uniform(d));
    if (!one_in(d, 3)) r->host_limit = (uint64_t)((double)host * (0.1 + 1.2 * uniform(d)));
    if (h->unified) r->together_limit = r->device_limit + (r->host_limit ? r->host_limit : host);
    return true;
}

/* ---- strategies -------------------------------------------------------------------------------------------------- */

static recompute_policy draw_recompute(dice *d, int64_t n_layers) {
    recompute_kind heavy = (recompute_kind)below(d, RECOMPUTE_FULL + 1);
    if (heavy == RECOMPUTE_NONE || one_in(d, 2)) return (recompute_policy){.kind = heavy};
    return (recompute_policy){.kind = RECOMPUTE_MIX,
                              .heavy = heavy,
                              .light = (recompute_kind)below(d, heavy),
                              .n_heavy = 1 + below(d, n_layers - 1)};
}

static tier draw_tier(dice *d, bool may_nvme) {
    if (may_nvme && one_in(d, 4)) return TIER_NVME;
    return one_in(d, 2) ? TIER_HOST : TIER_DEVICE;
}

static int64_t draw_kept(dice *d, int64_t now, int64_t n_layers) {
    int64_t near = now + below(d, 9) - 4, any = below(d, n_layers + 1);
    if (one_in(d, 2)) return MIN(MAX(near, 0), n_layers);
    return one_in(d, 2) ? 0 : any;
}

/* Changes one field. */
static void draw_change(dice *d, const plan_request *r, step_choice *c) {
    int64_t L = r->source.n_layers;
    offload_tiers *o = &c->offload;
    switch (below(d, 10)) {
    case 0: c->recompute = draw_recompute(d, L); break;
    case 1: {
        recompute_policy *p = &c->recompute;
        int64_t n = p->n_heavy + below(d, 9) - 4;
        if (p->kind == RECOMPUTE_MIX) p->n_heavy = MIN(MAX(n, 1), L - 1);
        else if (p->kind > RECOMPUTE_NONE && p->kind <= RECOMPUTE_FULL)
            *p = (recompute_policy){.kind = RECOMPUTE_MIX,
                                    .heavy = p->kind,
                                    .light = (recompute_kind)below(d, p->kind),
                                    .n_heavy = L - 1 - below(d, L / 2)};
        break;
    }
    case 2: o->params = draw_tier(d, r->may_nvme); break;
    case 3: o->grads = draw_tier(d, r->may_nvme); break;
    case 4: o->states = draw_tier(d, r->may_nvme); break;
    case 5: o->activations = draw_tier(d, r->may_nvme); break;
    case 6: c->keep_layers = draw_kept(d, c->keep_layers, L); break;
    case 7: c->keep_states = draw_kept(d, c->keep_states, L); break;
    case 8: c->keep_params = draw_kept(d, c->keep_params, L); break;
    default:
        if (one_in(d, 2)) c->keep_embed = !c->keep_embed;
        else c->prefetch = 1 + (int)below(d, 4);
    }
}

static step_choice draw_strategy(dice *d, const plan_request *r, const step_choice *winner) {
    step_choice c = *winner;
    int64_t n = 1 + below(d, 3);
    if (one_in(d, 2)) {
        int64_t L = r->source.n_layers;
        step_choice_copy_memory(&c, &r->choice);
        c.recompute = draw_recompute(d, L);
        c.offload = (offload_tiers)OFFLOAD(draw_tier(d, r->may_nvme), draw_tier(d, r->may_nvme),
                                           draw_tier(d, r->may_nvme), draw_tier(d, r->may_nvme));
        n = below(d, 4);
    }
    for (int64_t i = 0; i < n; i++) draw_change(d, r, &c);
    return c;
}

/* The time of a closed strategy; INFINITY: it does not fit. */
static double seconds_of(const plan_request *r, const step_choice *c) {
    plan_request q = *r;
    plan p;
    q.open = (plan_open){0};
    q.choice = *c;
    must(plan_build(&p, &q));
    double s = plan_fits(&p) && !p.cost.missing ? p.cost.step_s : INFINITY;
    plan_close(&p);
    return s;
}

/* With nothing moved and nothing computed again. What moves without need counts as no faster. */
static double plain_seconds(const plan_request *r, const step_choice *like) {
    step_choice c = *like;
    step_choice_copy_memory(&c, &r->choice);
    c.recompute.kind = RECOMPUTE_NONE;
    double s = seconds_of(r, &c);
    return isfinite(s) ? s : 0;
}

static void describe(const step_choice *c, double seconds, const char *who) {
    strbuf text;
    strbuf_init(&text);
    step_choice_print(c, CHOICE_ALL, &text);
    print_message("    %s, %.6g s: %s\n", who, seconds, text.text);
    strbuf_fini(&text);
}

/* Tries strategies by hand; false: one is faster. */
static bool auto_is_fastest(dice *d, const plan_request *r, const step_choice *winner, double winner_s) {
    enum { HANDS = 12 };
    double plain = plain_seconds(r, winner), best_s = winner_s;
    step_choice best = *winner;
    for (int k = 0; k < HANDS; k++) {
        step_choice c = draw_strategy(d, r, winner);
        double s = seconds_of(r, &c);
        if (offload_any(&c.offload)) s = fmax(s, plain);
        if (s < best_s) best_s = s, best = c;
    }
    if (best_s >= (1 - ALLOWED) * winner_s) return true;
    print_message("%s of %lld layers on %d x %s, %.3f and %.3f GiB:\n", r->source.name, (long long)r->source.n_layers,
                  mesh_world(&r->mesh), r->hardware->name, (double)r->device_limit * 0x1p-30,
                  (double)r->host_limit * 0x1p-30);
    describe(winner, winner_s, "auto");
    describe(&best, best_s, "by hand");
    return false;
}

static void no_strategy_by_hand_is_faster(void **state) {
    (void)state;
    const int n = matrix_is_large() ? 300 : SANITIZED ? 4 : 24;
    int n_tried = 0, n_missed = 0;
    for (int i = 0; i < n; i++) {
        char name[64];
        snprintf(name, sizeof name, "request %d", i);
        dice d = {.key = rng_key(49, name)};
        plan_request r;
        plan p;
        if (!draw_request(&d, matrix_is_large(), &r)) continue;
        must(plan_choose(&p, &r));
        bool fits = plan_fits(&p) && !p.cost.missing;
        step_choice winner = p.request.choice;
        double winner_s = p.cost.step_s;
        plan_close(&p);
        if (!fits) continue;
        n_tried++;
        if (!auto_is_fastest(&d, &r, &winner, winner_s)) {
            print_message("    request %d\n", i);
            n_missed++;
        }
    }
    print_message("%d of %d requests fit; by hand faster in %d\n", n_tried, n, n_missed);
    assert_true(n_tried > n / 2);
    assert_int_equal(n_missed, 0);
}

/* llama3.1-405b on 576 and 512 ranks: activations go to the host but those of the last layers, so that more of them
 * fit, with a lighter rung. Before the search tried such combinations it took 27.6 and 145.4 s. */
static void kept_layers_are_combined_with_activations_on_the_host(void **state) {
    (void)state;
    static const struct {
        const char *machine;
        int ranks;
        int64_t accumulation;
        double by_hand_s;
    } rows[] = {{"gb200", 576, 2, 24.4}, {"h100x8", 512, 4, 137.1}};
    if (!matrix_is_large()) skip();
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
        hardware h;
        plan p;
        must(hardware_load(&h, rows[i].machine));
        plan_request r = open_request("llama3-70b", &h);
        CHANGE_MODEL(r.source, (c.hidden = 16384, c.ffn = 53248, c.n_layers = 126, c.n_heads = 128));
        r.seq_len = 8192;
        r.choice.precision = PRECISION_BF16;
        r.choice.micro_batch = 1, r.choice.accumulation = rows[i].accumulation;
        r.mesh.size[AXIS_DATA] = rows[i].ranks;
        r.choice.shard.zero = 3;
        r.device_limit = h.device_bytes;
        r.host_limit = h.host_bytes / (uint64_t)h.devices_per_node;
        must(plan_choose(&p, &r));
        print_message("%s: %.2f s\n", rows[i].machine, p.cost.step_s);
        assert_true(plan_fits(&p));
        assert_true(p.cost.step_s < (1 + ALLOWED) * rows[i].by_hand_s);
        plan_close(&p);
    }
}

/* The largest relative difference between a listed candidate and the same one compiled alone: of its time, of the
 * device's bytes and of the host's. */
typedef struct difference {
    double seconds, device, host;
} difference;

static double relative(double found, double expected) {
    return expected > 0 ? fabs(found - expected) / expected : found > 0;
}

static difference compare_candidate(const plan_request *r, const plan_candidate *c) {
    plan_request q = plan_request_of(r, &c->choice);
    plan p;
    must(plan_build(&p, &q));
    difference d = {relative(c->step_s, p.cost.step_s),
                    relative((double)c->planned[TIER_DEVICE], (double)p.planned[TIER_DEVICE]),
                    relative((double)c->planned[TIER_HOST], (double)p.planned[TIER_HOST])};
    plan_close(&p);
    return d;
}

/* Layers with a window and without one have different prices, so that a few layers stand for all only if they mix them
 * in the same way. */
static void listed_candidates_are_priced_as_if_compiled_alone(void **state) {
    (void)state;
    static const struct {
        int64_t n_layers, full_every, window_from;
    } rows[] = {
        {26, 6, 0},  /* four whole periods and two layers */
        {32, 4, 0},  /* whole periods alone */
        {31, 7, 0},  /* four whole periods and three layers */
        {36, 12, 0}, /* a period longer than the smallest sample */
        {24, 0, 15}, /* no period */
    };
    hardware h;
    must(hardware_load(&h, "h200"));
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
        plan_request r = open_request("gemma-3-1b", &h);
        plan p;
        difference most = {0};
        CHANGE_MODEL(r.source, (c.n_layers = rows[i].n_layers, c.full_every = rows[i].full_every,
                                c.window_from = rows[i].window_from));
        r.seq_len = 32768;
        r.choice.precision = PRECISION_BF16;
        r.choice.micro_batch = r.choice.accumulation = 1;
        r.compare = true;
        must(plan_choose(&p, &r));
        size_t n = SANITIZED ? MIN(p.n_candidates, (size_t)4) : p.n_candidates;
        for (size_t k = 0; k < n; k++) {
            difference d = compare_candidate(&r, &p.candidates[k]);
            most = (difference){fmax(most.seconds, d.seconds), fmax(most.device, d.device), fmax(most.host, d.host)};
        }
        print_message("%lld layers of period %lld: %zu candidates differ by at most %.2g of the time, %.2g of the "
                      "device, %.2g of the host\n",
                      (long long)rows[i].n_layers, (long long)rows[i].full_every, n, most.seconds, most.device,
                      most.host);
        plan_close(&p);
        assert_true(most.seconds < 0.01);
        assert_true(most.device < 0.035); /* buffers that two layers take in turn: odd numbers of layers */
        assert_true(most.host < 0.005);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_strategy_by_hand_is_faster),
                                       cmocka_unit_test(listed_candidates_are_priced_as_if_compiled_alone),
                                       cmocka_unit_test(kept_layers_are_combined_with_activations_on_the_host)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
