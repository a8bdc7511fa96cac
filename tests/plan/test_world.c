/* test_world.c - the tables for ranks that are not here: counted from shapes, against numbers counted another way. */
#include "change_model.h"
#include "plan/plan.h"
#include "show/show.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

#define P7B 6738415616ull /* parameters of llama2-7b */

/* Blocks of the norm in a layer of llama2-7b, in its embedding and in its head, filled up for n ranks; in elements. */
static uint64_t filled(uint64_t blocks, uint64_t n) { return (blocks + n - 1) / n * n * NORM_BLOCK; }
#define LAYER (4ull * 4096 * 4096 / NORM_BLOCK + 3ull * 4096 * 11008 / NORM_BLOCK + 2 * 4096 / NORM_BLOCK)
#define EMBEDDING (32000ull * 4096 / NORM_BLOCK)
#define HEAD (EMBEDDING + 4096 / NORM_BLOCK)
static uint64_t filled_7b(uint64_t n) { return 32 * filled(LAYER, n) + filled(EMBEDDING, n) + filled(HEAD, n); }

static plan_request request(const char *preset, precision precision, int64_t batch, int64_t accumulation,
                            int64_t seq_len) {
    return (plan_request){.source = net_source_of(model_preset_find(preset)),
                          .choice.micro_batch = batch,
                          .choice.accumulation = accumulation,
                          .seq_len = seq_len,
                          .choice.precision = precision,
                          .optimizer = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .clip = 1},
                          .choice.shard = {.overlap = true, .prefetch = 1},
                          .target = {.name = "test", .n_threads = 1, .alignment = 64}};
}

static plan_world compiled(plan_request r, int n_ranks) {
    plan_world w;
    assert_int_equal(plan_world_compile(&w, &r, n_ranks), OK);
    return w;
}

/* 18 bytes per parameter: 2 of bf16, 4 of gradient, 12 of master, m and v. What is sent in buckets is filled up. */
static void sharding_of_7b_on_4_ranks(void **state) {
    (void)state;
    plan_world w = compiled(request("llama2-7b", PRECISION_BF16, 1, 1, 1024), 4);
    uint64_t F = filled_7b(4);
    const uint64_t params[] = {2 * P7B, 2 * F, 2 * F, 2 * F / 4}, grads[] = {4 * F, 4 * F, F, F};
    static const double textbook_7e9[] = {98, 56, 35, 24.5}; /* GB for 7e9 parameters, as papers print it */
    assert_true(F > P7B && F - P7B < P7B / 100000);
    for (int i = 0; i < WORLD_STAGES; i++) {
        const plan_world_stage *s = &w.stages[i];
        assert_int_equal(s->bytes.params, params[i]);
        assert_int_equal(s->bytes.grads, grads[i]);
        if (i == 0) assert_int_equal(s->bytes.states, 12 * P7B);
        else assert_true(s->bytes.states <= 3 * F && s->bytes.states >= 3 * P7B); /* the fullest rank */
        assert_int_equal(s->bytes.total,
                         params[i] + grads[i] + s->bytes.states + s->bytes.window + s->bytes.activations);
        assert_float_equal((double)s->textbook * 7e9 / (double)P7B * 1e-9, textbook_7e9[i], 1e-9);
        assert_true(isnan(s->comm_s)); /* no machine, no time */
    }
    /* ZeRO-3 at the loss: the embedding and the last layer or the head, and gradients on their way. */
    assert_true(w.stages[3].bytes.window > 2 * filled(LAYER, 4));
    /* Gradients go in fp32, parameters in bf16; a rank sends three quarters of each, and little more for the norm. The
     * embedding and the head are gathered once, for they are not tied. */
    double once = (double)F, again = 32 * (double)filled(LAYER, 4), norm = 8 * once / NORM_BLOCK;
    const double bytes[] = {8 * once, 6 * once + norm, 6 * once + norm, 6 * once + 2 * again + norm};
    const double volume[] = {2 * once, 2 * once, 2 * once, 2 * once + again};
    for (int i = 0; i < WORLD_STAGES; i++) {
        assert_float_equal(w.stages[i].volume_bytes, 0.75 * bytes[i], 1e3);
        assert_float_equal(w.stages[i].volume, volume[i] / (double)P7B, 1e-9);
    }
}

/* Bytes on the host are no part of the device's table, and nothing is subtracted for them. */
static void what_is_offloaded_is_not_counted(void **state) {
    (void)state;
    plan_request r = request("gpt2", PRECISION_BF16, 1, 2, 128);
    r.choice.offload.grads = r.choice.offload.states = TIER_HOST;
    plan_world w = compiled(r, 4);
    for (int i = 0; i < WORLD_STAGES; i++) {
        const plan_world_share *b = &w.stages[i].bytes;
        assert_true(b->params > 0 && b->grads == 0 && b->states == 0 && b->activations < b->total);
        assert_int_equal(b->total, b->params + b->window + b->activations);
    }
}

static void shards_round_up(void **state) {
    (void)state;
    plan_request r = request("test-llama", PRECISION_BF16, 1, 1, 16);
    uint64_t n = model_param_count(model_of(&r.source));
    plan_world w = compiled(r, 7);
    assert_int_equal(w.stages[3].bytes.params % (2 * NORM_BLOCK), 0);
    assert_true(w.stages[3].bytes.params * 7 > 2 * n);
}

/* The textbook's shares, too: no rank has less than a whole parameter, gradient or state. */
static void textbook_shares_round_up(void **state) {
    (void)state;
    plan_request r = request("test-llama", PRECISION_BF16, 1, 1, 16);
    uint64_t n = model_param_count(model_of(&r.source)), share = n / 5 + 1;
    assert_true(n % 5 > 0);
    plan_world w = compiled(r, 5);
    const uint64_t textbook[] = {14 * n, 6 * n + 8 * share, 2 * n + 12 * share, 14 * share};
    for (int i = 0; i < WORLD_STAGES; i++) assert_int_equal(w.stages[i].textbook, textbook[i]);
}

/* What is cut has to be sent for every micro-batch; what is whole, once per step. */
static void accumulation_multiplies_what_is_sharded(void **state) {
    (void)state;
    plan_world one = compiled(request("test-llama", PRECISION_BF16, 1, 1, 16), 4);
    plan_world five = compiled(request("test-llama", PRECISION_BF16, 1, 5, 16), 4);
    double P = one.stages[0].volume / 2; /* in a small model the filling is not small */
    const double volume[] = {2 * P, 2 * P, (5 + 1) * P, 5 * one.stages[3].volume};
    for (int i = 0; i < WORLD_STAGES; i++) assert_float_equal(five.stages[i].volume, volume[i], 1e-9);
}

/* Layouts are compared by steps of the same rows, however many data ranks share them. */
static void rows_of_a_step_are_shared(void **state) {
    (void)state;
    plan_request r = request("test-llama", PRECISION_BF16, 2, 1, 16);
    r.step_rows = 16;
    plan_world w = compiled(r, 4);
    assert_true(w.n_layouts > 1);
    for (int i = 0; i < w.n_layouts; i++) {
        const plan_world_layout *l = &w.layouts[i];
        if (l->why_not[0]) continue;
        assert_int_equal(l->micro_batch, 2);
        assert_int_equal(l->micro_batch * l->accumulation * l->data, 16);
    }
}

static void other_precisions_have_their_own_bytes(void **state) {
    (void)state;
    plan_request r = request("test-qwen3", PRECISION_BF16_SR, 1, 1, 16);
    uint64_t n = model_param_count(model_of(&r.source));
    plan_world w = compiled(r, 2);
    assert_int_equal(w.stages[0].bytes.params + w.stages[0].bytes.states, 6 * n);
    assert_int_equal(w.stages[0].textbook, 0); /* no master to forget */
    r.choice.precision = PRECISION_FP32;
    w = compiled(r, 2);
    assert_int_equal(w.stages[0].bytes.params + w.stages[0].bytes.states, 12 * n);
}

/* The formula knows linears, norms' inputs and attention; a plan also keeps rstd of two norms and lse of every head. */
static void kept_activations_are_the_known_formula(void **state) {
    (void)state;
    plan_world w = compiled(request("llama2-7b", PRECISION_BF16, 1, 1, 512), 4);
    assert_float_equal(plan_world_formula(&w), 12 * 4096 + 4 * 4096 + 6 * 11008, 0);
    assert_float_equal(w.kept_per_layer_token, plan_world_formula(&w) + 2 * 4 + 32 * 4, 0);
    w = compiled(request("gpt2", PRECISION_BF16, 1, 1, 64), 4);
    assert_float_equal(plan_world_formula(&w), 0, 0); /* another kind of block */
}

static const plan_world_layout *find_layout(const plan_world *w, const char *name) {
    for (int i = 0; i < w->n_layouts; i++)
        if (strcmp(w->layouts[i].name, name) == 0) return &w->layouts[i];
    fail_msg("there is no layout %s", name);
    return NULL;
}

/* Matrices are cut, norms are not; the first stage has the embedding, the last the head and its norm. */
static uint64_t stage_params(const model_config *c, int64_t seq_len, int tp, int pp, int stage) {
    int64_t first[9], C = c->hidden, F = c->ffn, V = (c->vocab + tp - 1) / tp;
    assert_true(pp < 9);
    model_stages_cut(c, seq_len, pp, first);
    int64_t ends = (stage == 0 ? V * C : 0) + (stage == pp - 1 ? V * C + C : 0);
    return (uint64_t)((first[stage + 1] - first[stage]) * ((4 * C * C + 3 * C * F) / tp + 2 * C) + ends);
}

static void layouts_of_7b_on_8_ranks(void **state) {
    (void)state;
    plan_request r = request("llama2-7b", PRECISION_BF16, 1, 8, 1024);
    plan_world w = compiled(r, 8);
    assert_int_equal(w.n_layouts, 4);
    assert_int_equal(find_layout(&w, "DP8")->bytes.params, 2 * P7B);
    assert_int_equal(find_layout(&w, "DP8")->bytes.total, w.stages[0].bytes.total);
    assert_non_null(find_layout(&w, "TP4 PP2"));
    assert_non_null(find_layout(&w, "TP2 PP4"));
    assert_non_null(find_layout(&w, "TP2 PP2 SP2"));
    for (int i = 1; i < w.n_layouts; i++) {
        const plan_world_layout *l = &w.layouts[i];
        bool is_stage = false;
        for (int k = 0; k < l->pipeline; k++)
            is_stage |= l->bytes.params == 2 * stage_params(model_of(&r.source), r.seq_len, l->tensor, l->pipeline, k);
        assert_true(is_stage);
        assert_int_equal(l->data * l->tensor * l->pipeline * l->sequence, 8);
        assert_int_equal(l->bytes.grads, 2 * l->bytes.params);
        assert_int_equal(l->bytes.states, 6 * l->bytes.params);
        assert_int_equal(l->bytes.total,
                         l->bytes.params + l->bytes.grads + l->bytes.states + l->bytes.window + l->bytes.activations);
        assert_true(l->bytes.activations < w.layouts[0].bytes.activations);
        assert_float_equal(l->bubble, (l->pipeline - 1) / (8.0 + l->pipeline - 1), 1e-12);
        assert_int_equal(l->built_micros, l->pipeline + 1); /* the others repeat them */
        assert_true(isnan(l->step_s));
    }
    /* The first stage holds as many micro-batches as there are stages, but not more than there are. */
    plan_world single = compiled(request("llama2-7b", PRECISION_BF16, 1, 1, 1024), 8);
    assert_true(find_layout(&single, "TP2 PP4")->bytes.activations < find_layout(&w, "TP2 PP4")->bytes.activations);
    assert_int_equal(find_layout(&single, "TP2 PP4")->built_micros, 1);
}

/* What the table says of a stage is what its rank plans: of few micro-batches the same plan, of many its continuation. */
static void a_layout_is_the_plan_of_its_fullest_rank(void **state) {
    (void)state;
    hardware h;
    assert_int_equal(hardware_load(&h, "h100"), OK);
    for (int64_t accumulation = 3; accumulation <= 24; accumulation *= 8) {
        plan_request r = request("llama3-8b", PRECISION_BF16, 1, accumulation, 512);
        CHANGE_MODEL(r.source, c.n_layers = 8);
        r.hardware = &h;
        plan_world w = compiled(r, 4);
        const plan_world_layout *l = find_layout(&w, "TP2 PP2");
        uint64_t fullest = 0;
        double slowest = 0;
        for (int stage = 0; stage < 2; stage++) {
            plan p;
            r.mesh = (mesh){.size = {1, 2, 2, 1}, .index = {[AXIS_PIPELINE] = stage}};
            assert_int_equal(plan_choose(&p, &r), OK);
            fullest = MAX(fullest, p.planned[TIER_DEVICE]);
            slowest = fmax(slowest, p.cost.step_s);
            plan_close(&p);
        }
        if (accumulation == 3) assert_int_equal(l->bytes.total, fullest);
        else assert_float_equal((double)l->bytes.total, (double)fullest, 1e-3 * (double)fullest); /* gaps */
        assert_float_equal(l->step_s, slowest, 0.03 * slowest);
    }
}

static void tied_ends_are_counted_once_per_stage(void **state) {
    (void)state;
    plan_request r = request("gpt2", PRECISION_BF16, 1, 2, 64);
    const model_config *c = model_of(&r.source);
    plan_world w = compiled(r, 4);
    int64_t first[3];
    model_stages_cut(c, r.seq_len, 2, first);
    uint64_t C = (uint64_t)c->hidden, F = (uint64_t)c->ffn, V = (uint64_t)(c->vocab + 1) / 2;
    /* Columns' biases are cut with them; those of rows, norms and positions are whole. */
    uint64_t block = (4 * C * C + 2 * C * F + 3 * C + F) / 2 + 2 * C + 4 * C;
    /* The last stage is the fullest: its table, its gradients of every micro-batch, and the logits. */
    assert_int_equal(find_layout(&w, "TP2 PP2")->bytes.params,
                     2 * ((uint64_t)(first[2] - first[1]) * block + V * C + 2 * C));
}

static void what_cannot_be_cut_says_why(void **state) {
    (void)state;
    plan_world w = compiled(request("gpt2-xl", PRECISION_BF16, 1, 1, 64), 8); /* 25 heads */
    assert_non_null(strstr(find_layout(&w, "TP4 PP2")->why_not, "25 heads"));
    w = compiled(request("test-llama", PRECISION_BF16, 1, 1, 64), 8); /* 2 layers, 4 heads */
    assert_string_equal(find_layout(&w, "TP4 PP2")->why_not, "");     /* its 2 kv heads are on two ranks each */
    assert_non_null(strstr(find_layout(&w, "TP2 PP4")->why_not, "2 layers"));
    w = compiled(request("test-llama", PRECISION_BF16, 1, 1, 63), 8);
    assert_non_null(strstr(find_layout(&w, "TP2 PP2 SP2")->why_not, "63 tokens"));
    for (int n = 2; n <= 20; n++) { /* every number of ranks has a table */
        w = compiled(request("test-llama", PRECISION_BF16, 1, 1, 64), n);
        assert_true(w.n_layouts >= 1 && w.layouts[0].data == n);
    }
}

/* Nothing is cut wider than a node; the rest takes rows of its own. */
static void many_ranks_have_layouts_too(void **state) {
    (void)state;
    plan_request r = request("llama2-7b", PRECISION_BF16, 1, 1, 1024);
    r.open.zero = true;
    plan_world w = compiled(r, 1024);
    const plan_world_layout *l = find_layout(&w, "DP64 TP8 PP2");
    assert_int_equal(l->zero, 1);
    assert_true(l->bytes.states < l->bytes.params); /* a 64th of 12 bytes per parameter, against 2 */
    assert_int_equal(find_layout(&w, "DP64 TP2 PP8")->data, 64);
    assert_int_equal(find_layout(&w, "DP32 TP2 PP2 SP8")->sequence, 8);
}

static void the_ladder_of_gpt2_large_goes_down(void **state) {
    (void)state;
    hardware h;
    assert_int_equal(hardware_load(&h, "h200"), OK);
    plan_request r = request("gpt2-large", PRECISION_BF16, 4, 1, 1024);
    r.hardware = &h;
    plan_world w = compiled(r, 8);
    plan p;
    plan_request base = r;
    base.choice.precision = PRECISION_FP32;
    assert_int_equal(plan_choose(&p, &base), OK);
    assert_int_equal(w.ladder[0].bytes, p.planned[TIER_DEVICE]);
    plan_close(&p);
    for (int i = 1; i < WORLD_LADDER_ROWS; i++) assert_true(w.ladder[i].bytes < w.ladder[i - 1].bytes);
    r.choice.micro_batch = 1, r.choice.accumulation = 4;
    r.choice.recompute = (recompute_policy){.kind = RECOMPUTE_FULL};
    assert_int_equal(plan_choose(&p, &r), OK);
    assert_int_equal(w.ladder[3].bytes, p.planned[TIER_DEVICE]);
    plan_close(&p);
    assert_true(w.ladder[1].step_s < w.ladder[0].step_s / 5); /* matrix units */
    /* A third more arithmetic, less what small sums and the update take of a step of rows of 1. */
    assert_true(w.ladder[3].step_s > 1.08 * w.ladder[2].step_s && w.ladder[3].step_s < 1.4 * w.ladder[2].step_s);
    plan_request tight = r; /* a limit is what the rungs are held against: it moves nothing out of them */
    tight.device_limit = (uint64_t)1 << 30;
    tight.open = (plan_open){.params = true, .grads = true, .states = true, .activations = true};
    plan_world limited = compiled(tight, 8), plain = compiled(r, 8);
    for (int i = 0; i < WORLD_LADDER_ROWS; i++) assert_int_equal(limited.ladder[i].bytes, plain.ladder[i].bytes);
    assert_true(w.stages[1].comm_s > 0); /* 8 ranks on one node: over its links */
    double inside = w.stages[1].comm_s;
    w = compiled(r, 16); /* two nodes: all eight ways out of each carry a part of the ring */
    assert_true(w.stages[1].comm_s > 1.1 * inside && w.stages[1].comm_s < 2 * inside);
    h.devices_per_node = 1;
    w = compiled(r, 16);
    assert_true(w.stages[1].comm_s > 5 * inside); /* one way out */
}

/* ---- every stage counts -------------------------------------------------------------------------------------------- */

/* The emptier stage fits, the fuller one does not, whatever it chooses: the pipeline does not fit. */
static void a_pipeline_is_judged_by_every_stage(void **state) {
    (void)state;
    plan_request r = request("test-llama", PRECISION_FP32, 1, 4, 64);
    r.source.vocab = 50000; /* the embedding at one end, the head at the other: little is left to choose */
    r.mesh.size[AXIS_PIPELINE] = 2;
    r.choice.recompute.kind = RECOMPUTE_AUTO;
    plan p;
    plan_stage *list;
    uint64_t bytes[2];
    for (int i = 0; i < 2; i++) {
        plan_request full = r;
        full.mesh.index[AXIS_PIPELINE] = i;
        full.choice.recompute.kind = RECOMPUTE_FULL;
        assert_int_equal(plan_choose(&p, &full), OK);
        bytes[i] = p.planned[TIER_DEVICE];
        plan_close(&p);
    }
    assert_true(bytes[0] != bytes[1]);
    int emptier = bytes[0] < bytes[1] ? 0 : 1;
    r.mesh.index[AXIS_PIPELINE] = emptier;
    r.device_limit = bytes[emptier];
    assert_int_equal(plan_choose(&p, &r), OK);
    assert_true(plan_fits(&p)); /* the stage that was asked for */
    assert_int_equal(plan_stages(&p, &list), OK);
    assert_int_equal(plan_stage_without_room(&p, list), 1 - emptier);
    assert_true(list[1 - emptier].by_itself); /* it has tried more than the other one's choices */
    assert_int_equal(plan_check_stages(&p, list), ERR_FIT);
    free(list);
    plan_close(&p);
    r.device_limit = 0;
    assert_int_equal(plan_choose(&p, &r), OK);
    assert_int_equal(plan_stages(&p, &list), OK);
    assert_int_equal(plan_stage_without_room(&p, list), -1);
    free(list);
    plan_close(&p);
}

/* ---- what many ranks choose ---------------------------------------------------------------------------------------- */

static plan chosen(const plan_request *r) {
    plan p;
    assert_int_equal(plan_choose(&p, r), OK);
    return p;
}

static plan_request open_request(int n_ranks, const hardware *h) {
    plan_request r = request("test-llama", PRECISION_FP32, 1, 2, 2048);
    r.mesh.size[AXIS_DATA] = n_ranks;
    r.open.zero = r.open.sequence = true;
    r.hardware = h;
    return r;
}

/* Stages are compared where all fit; rows are not shared then, whatever the number of ranks. */
static void with_room_only_the_stage_is_chosen(void **state) {
    (void)state;
    hardware h;
    assert_int_equal(hardware_load(&h, "h100"), OK);
    plan_request r = open_request(4, &h);
    plan p = chosen(&r);
    assert_int_equal(p.n_candidates, 4);
    assert_int_equal(mesh_size(&p.request.mesh, AXIS_SEQUENCE), 1);
    for (size_t i = 0; i < 4; i++) {
        plan_request one = r;
        one.open = (plan_open){0};
        one.choice.shard.zero = p.candidates[i].choice.shard.zero;
        plan q = chosen(&one);
        assert_true(q.cost.step_s >= p.cost.step_s);
        assert_int_equal(q.planned[TIER_DEVICE], p.candidates[i].planned[TIER_DEVICE]);
        plan_close(&q);
    }
    plan_close(&p);
    r.hardware = NULL; /* no times: the least that is done to the step */
    p = chosen(&r);
    assert_int_equal(p.request.choice.shard.zero, 0);
    plan_close(&p);
    r.mesh.size[AXIS_PIPELINE] = 2; /* stages would have to agree */
    assert_false(plan_is_open(&r));
}

/* In less memory than a whole row needs they share it: accumulation keeps the rows of the step, every rank has its seat, and
 * as many share as it takes and the model can be cut for. */
static void without_room_ranks_share_rows(void **state) {
    (void)state;
    hardware h;
    assert_int_equal(hardware_load(&h, "h100"), OK);
    plan_request r = open_request(8, &h);
    plan whole = chosen(&r);
    r.device_limit = whole.planned[TIER_DEVICE] * 7 / 10;
    plan p = chosen(&r);
    const plan_request *q = &p.request;
    assert_true(plan_fits(&p));
    assert_int_equal(mesh_size(&q->mesh, AXIS_SEQUENCE), 2); /* of 2 kv heads */
    assert_int_equal(mesh_size(&q->mesh, AXIS_DATA), 4);
    assert_int_equal(q->choice.accumulation, 4);
    assert_int_equal(plan_tokens_per_step(&p), plan_tokens_per_step(&whole));
    for (size_t i = 0; i < p.n_candidates; i++) assert_true(p.candidates[i].choice.sequence <= 2);
    for (int rank = 0; rank < 8; rank++) {
        mesh_set_rank(&r.mesh, rank);
        plan other = chosen(&r);
        assert_int_equal(mesh_rank(&other.request.mesh), rank);
        assert_int_equal(other.request.choice.shard.zero, q->choice.shard.zero);
        assert_int_equal(other.request.mesh.size[AXIS_SEQUENCE], q->mesh.size[AXIS_SEQUENCE]);
        plan_close(&other);
    }
    /* A plan's own request is asked again where something does not fit: it leads to the same plan. */
    plan_request question = plan_request_reopen(&p);
    plan again = chosen(&question);
    assert_int_equal(again.planned[TIER_DEVICE], p.planned[TIER_DEVICE]);
    assert_int_equal(again.request.choice.accumulation, q->choice.accumulation);
    plan_close(&again);
    plan_close(&p);
    plan_close(&whole);
    r.open.sequence = false; /* by hand */
    mesh_set_rank(&r.mesh, 0);
    p = chosen(&r);
    assert_int_equal(mesh_size(&p.request.mesh, AXIS_SEQUENCE), 1);
    assert_false(plan_fits(&p));
    plan_close(&p);
    r.seq_len = 1 << 30; /* wrong in any way */
    assert_int_equal(plan_choose(&p, &r), ERR_INPUT);
}

static void text_and_json_have_every_row(void **state) {
    (void)state;
    plan_world w = compiled(request("llama2-7b", PRECISION_BF16, 1, 2, 128), 8);
    memstream printed;
    plan_world_print(&w, memstream_open(&printed));
    char *text = memstream_take(&printed);
    static const char *const rows[] = {
        "DDP",         "ZeRO-1", "ZeRO-2",          "ZeRO-3",         "DP8",         "TP4 PP2",    "TP2 PP4",
        "TP2 PP2 SP2", "base",   "mixed precision", "+ accumulation", "+ recompute", "+ sharding", "textbook"};
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) assert_non_null(strstr(text, rows[i]));
    free(text);
    json_t *j = plan_world_json(&w);
    assert_int_equal(json_array_size(json_object_get(j, "sharding")), WORLD_STAGES);
    assert_int_equal(json_array_size(json_object_get(j, "layouts")), 4);
    assert_int_equal(json_array_size(json_object_get(j, "ladder")), WORLD_LADDER_ROWS);
    const json_t *zero3 = json_array_get(json_object_get(j, "sharding"), 3);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(zero3, "bytes"), "params")),
                     2 * filled_7b(8) / 8);
    assert_true(json_is_null(json_object_get(zero3, "comm_ms")));
    json_decref(j);
}

/* The search ends early where everything fits with nothing moved; who compares goes on, and must find the same. With the host too small for
 * what must move, shared rows are not searched in vain: that, too, changes nothing. */
static void a_shorter_search_chooses_the_same(void **state) {
    (void)state;
    hardware h;
    assert_int_equal(hardware_load(&h, "h100"), OK);
    static const uint64_t limits[] = {0, 1ull << 30, 24ull << 20, 12ull << 20};
    for (size_t i = 0; i < ARRAY_LENGTH(limits); i++) {
        plan_request r = request("test-llama", PRECISION_BF16, 8, 1, 512);
        r.choice.recompute.kind = RECOMPUTE_AUTO;
        r.choice.prefetch = 1;
        r.open = (plan_open){.params = true,
                             .grads = true,
                             .states = true,
                             .activations = true,
                             .micro_batch = true,
                             .zero = true,
                             .sequence = true};
        r.mesh = (mesh){.size[AXIS_DATA] = 2};
        r.target.discrete = true;
        r.hardware = &h;
        r.device_limit = limits[i];
        r.host_limit = 1ull << 30;
        plan quick, all;
        assert_int_equal(plan_choose(&quick, &r), OK);
        r.compare = true;
        assert_int_equal(plan_choose(&all, &r), OK);
        assert_true(quick.n_candidates <= all.n_candidates && (limits[i] || quick.n_candidates < all.n_candidates));
        assert_true(step_choice_equal(&quick.request.choice, &all.request.choice, CHOICE_NONE));
        assert_true(quick.cost.step_s == all.cost.step_s);
        plan_close(&quick);
        plan_close(&all);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sharding_of_7b_on_4_ranks),
        cmocka_unit_test(what_is_offloaded_is_not_counted),
        cmocka_unit_test(a_shorter_search_chooses_the_same),
        cmocka_unit_test(shards_round_up),
        cmocka_unit_test(textbook_shares_round_up),
        cmocka_unit_test(accumulation_multiplies_what_is_sharded),
        cmocka_unit_test(rows_of_a_step_are_shared),
        cmocka_unit_test(other_precisions_have_their_own_bytes),
        cmocka_unit_test(kept_activations_are_the_known_formula),
        cmocka_unit_test(layouts_of_7b_on_8_ranks),
        cmocka_unit_test(a_layout_is_the_plan_of_its_fullest_rank),
        cmocka_unit_test(tied_ends_are_counted_once_per_stage),
        cmocka_unit_test(what_cannot_be_cut_says_why),
        cmocka_unit_test(many_ranks_have_layouts_too),
        cmocka_unit_test(the_ladder_of_gpt2_large_goes_down),
        cmocka_unit_test(a_pipeline_is_judged_by_every_stage),
        cmocka_unit_test(with_room_only_the_stage_is_chosen),
        cmocka_unit_test(without_room_ranks_share_rows),
        cmocka_unit_test(text_and_json_have_every_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
