/* fuzz_config_json.c - a model's config.json, or Meta's params.json where it has "dim".
 *
 * Of a config that is accepted: written out and read again it is the same, and it compiles to a verified plan (or is
 * refused with a reason): a few layers of it, whose sizes may be anything, because nothing is allocated for them. */
#include "fuzz/fuzz.h"
#include "model/model.h"
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

enum { LAYERS_MOST = 3, CONFIG_MOST = 1 << 20 };

static void check_round_trip(const model_config *c) {
    model_config again;
    json_t *root = model_config_to_json(c);
    ASSERT(model_config_from_json(&again, root, c->name, "again") == OK);
    ASSERT(again.family == c->family && again.vocab == c->vocab && again.hidden == c->hidden);
    ASSERT(again.n_layers == c->n_layers && again.n_heads == c->n_heads && again.n_kv_heads == c->n_kv_heads);
    ASSERT(again.head_dim == c->head_dim && again.ffn == c->ffn && again.max_positions == c->max_positions);
    ASSERT(again.norm_eps == c->norm_eps && again.tied == c->tied && again.rope.type == c->rope.type);
    ASSERT(again.rope.theta == c->rope.theta && again.rope.factor == c->rope.factor);
    ASSERT(again.rope.low_freq_factor == c->rope.low_freq_factor);
    ASSERT(again.rope.high_freq_factor == c->rope.high_freq_factor);
    ASSERT(again.rope.original_max_positions == c->rope.original_max_positions);
    ASSERT(again.rope.attention_factor == c->rope.attention_factor && again.rotary_share == c->rotary_share);
    ASSERT(memcmp(&again.long_rope, &c->long_rope, sizeof c->long_rope) == 0);
    json_decref(root);
}

static size_t some_work(const program *p, const op *o, int n_threads) {
    return (size_t)n_threads * (64 + 37 * (size_t)o->kind);
}

static void check_plan(const model_config *c) {
    model_config few = *c;
    few.n_layers = MIN(c->n_layers, (int64_t)LAYERS_MOST);
    plan_request r = {.source = net_source_of(&few),
                      .choice.micro_batch = 1 + c->vocab % 2,
                      .choice.accumulation = 1 + c->hidden % 3,
                      .seq_len = MIN(c->max_positions, (int64_t)24),
                      .choice.precision = (precision)(c->ffn % PRECISION_COUNT),
                      .with_eval = true,
                      .verify = true,
                      .target = {"fuzz", 3, 64, some_work}};
    plan p;
    status rc = plan_build(&p, &r);
    if (rc != OK) {
        fuzz_refused(rc);
        return;
    }
    uint64_t params = 0;
    for (size_t i = 0; i < p.net.n_params; i++)
        params += (uint64_t)shape_count(&program_get(&p.program, p.net.params[i].value)->shape);
    ASSERT(params == model_param_count(model_of(&r.source)));
    plan_close(&p);
}

void fuzz_one(const uint8_t *data, size_t size) {
    json_t *root;
    model_config c;
    status rc = json_read_file(fuzz_file(0, data, size), CONFIG_MOST, &root);
    if (rc == OK) {
        rc = json_object_get(root, "dim") ? model_config_from_meta(&c, root, "fuzz", "params.json")
                                          : model_config_from_json(&c, root, "fuzz", "config.json");
        json_decref(root);
    }
    if (rc != OK) {
        fuzz_refused(rc);
        return;
    }
    ASSERT(model_config_check(&c) == OK);
    check_round_trip(&c);
    if (fuzz_sometimes(data, size, 8)) check_plan(&c);
}
