/* build_check.c - what a model can be built as: sizes, ranks that share it, tasks and stored bases that go together. What does not is
 * refused by the key of the setting, with a value that works where there is one. */
#include "model/builder.h"

static status check_generation(const model_config *c, const generation_shape *g, const mesh *m) {
    int ranks = mesh_size(m, AXIS_TENSOR) * mesh_size(m, AXIS_SEQUENCE) * mesh_size(m, AXIS_PIPELINE);
    if (ranks > 1 && g->beside_training)
        return ERR(ERR_INPUT,
                   "train.sample_every: found %d ranks that share the model (parallel.tensor, sequence, pipeline), "
                   "expected 1: a rank generates with all layers; set train.sample_every=none, or use parallel.data",
                   ranks);
    if (ranks > 1)
        return ERR(ERR_INPUT, "model %s: found generation on %d ranks that share the model, expected 1", c->name,
                   ranks);
    const struct {
        const char *name;
        int64_t found, most;
    } limits[] = {{"sequences", g->slots, 1 << 16},
                  {"page_size", g->page_size, 1 << 16},
                  {"pages", g->pages, 1 << 30},
                  {"prefill_tokens", g->prefill_tokens, 1 << 20},
                  {"heads", generation_heads(g), model_loss_count(c)},
                  {"context", g->context, c->max_positions}};
    for (size_t i = 0; i < ARRAY_LENGTH(limits); i++)
        if (limits[i].found < 1 || limits[i].found > limits[i].most)
            return ERR(ERR_INPUT, "model %s: generation with %s %lld, expected 1 to %lld%s", c->name, limits[i].name,
                       (long long)limits[i].found, (long long)limits[i].most,
                       limits[i].found > c->max_positions ? ", the positions the model has" : "");
    return OK;
}

/* Advice names a valid value: ", such as key=value", or nothing where there is none. */
static const char *such_as(char out[64], const char *key, int64_t value) {
    out[0] = 0;
    if (value > 0) snprintf(out, 64, ", such as %s=%lld", key, (long long)value);
    return out;
}

/* The next longer row that S ranks can share, or where the model has no positions for it the next shorter one. */
static int64_t shared_seq_len(const model_config *c, int64_t seq_len, int64_t S) {
    int64_t longer = divide_up(seq_len, 2 * S) * 2 * S;
    return longer <= c->max_positions ? longer : seq_len / (2 * S) * 2 * S;
}

/* The next larger micro-batch whose rows of `tokens` n ranks can share. */
static int64_t shared_batch(int64_t batch, int64_t tokens, int64_t n) {
    while (batch * tokens % n) batch++;
    return batch;
}

/* The most ranks below those asked for that can share rows and heads. */
static int64_t fewer_sequence(const model_config *c, const net_options *o) {
    mesh m = o->mesh;
    while (m.size[AXIS_SEQUENCE] > 1) {
        m.size[AXIS_SEQUENCE]--;
        if (o->seq_len % (2 * m.size[AXIS_SEQUENCE]) == 0 && net_heads_divide(c->n_heads, c->n_kv_heads, &m)) break;
    }
    return m.size[AXIS_SEQUENCE];
}

/* A second answer looks back at the keys of a prompt in its row. */
static status check_preference(const net_options *o) {
    int S = mesh_size(&o->mesh, AXIS_SEQUENCE);
    if (!o->share_prompts || S == 1) return OK;
    return ERR(
        ERR_INPUT,
        "preference.share_prompt: found prompts that stand in a row once with parallel.sequence %d, expected off: "
        "the keys of a prompt would be on another rank than its second answer; set preference.share_prompt=off",
        S);
}

static status check_critic(const model_config *c, const net_options *o) {
    if (!c->value_head) return OK;
    if (o->generation.slots)
        return ERR(ERR_INPUT,
                   "%s is a critic: it gives values to tokens and has no next-token head to generate with; "
                   "expected a language model (with train.task critic, train.sample_every=none)",
                   c->name);
    return OK;
}

/* A rank generates with all layers, and its completions are whole. */
static status check_policy(const net_options *o) {
    static const axis shared[] = {AXIS_TENSOR, AXIS_SEQUENCE, AXIS_PIPELINE};
    for (size_t i = 0; i < ARRAY_LENGTH(shared) && o->policy.on; i++)
        if (mesh_size(&o->mesh, shared[i]) > 1)
            return ERR(ERR_INPUT,
                       "train.task: found rloo with parallel.%s %d, expected 1: a rank generates completions with all "
                       "layers; use parallel.data",
                       axis_name(shared[i]), mesh_size(&o->mesh, shared[i]));
    return OK;
}

/* Codes stand for whole weights of a file, of which a tensor rank would have a part. */
static status check_base(const net_options *o) {
    const char *name = base_format_name(o->base);
    if (o->base == BASE_COMPUTE) return OK;
    if (!o->lora.rank)
        return ERR(
            ERR_INPUT,
            "model.base: found %s, which needs model.lora.rank: only frozen weights are stored in fewer bits; set "
            "model.lora.rank=16, or model.base=bf16 to train all parameters",
            name);
    if (o->lora.pissa)
        return ERR(ERR_INPUT,
                   "model.base: found %s with model.lora.init pissa, expected bf16: the principal part is taken out of "
                   "weights that are stored as numbers; set model.base=bf16, or model.lora.init=default",
                   name);
    if (mesh_size(&o->mesh, AXIS_TENSOR) > 1)
        return ERR(ERR_INPUT,
                   "model.base: found %s with parallel.tensor %d, expected 1: a quantised weight is not cut; use "
                   "parallel.data or parallel.pipeline, or set model.base=bf16",
                   name, mesh_size(&o->mesh, AXIS_TENSOR));
    return OK;
}

static status check_training(const model_config *c, const net_options *o) {
    if (o->batch < 1 || o->seq_len < 1 || o->batch * o->seq_len > (1 << 28))
        return ERR(ERR_INPUT, "model %s: micro-batch of %lld x %lld tokens, expected 1 to 2^28 in all", c->name,
                   (long long)o->batch, (long long)o->seq_len);
    if (o->seq_len > c->max_positions)
        return ERR(ERR_INPUT, "model %s: seq_len %lld is longer than the %lld positions it has; lower data.seq_len",
                   c->name, (long long)o->seq_len, (long long)c->max_positions);
    int n = mesh_size(&o->mesh, AXIS_TENSOR), S = mesh_size(&o->mesh, AXIS_SEQUENCE);
    char such[64];
    TRY(model_cut_check(c, n));
    if (n > 1 && model_family_traits(c->family)->wide_qk_norm)
        return ERR(ERR_INPUT,
                   "parallel.tensor: found %d with model %s, expected 1: the norm of q and k goes over all heads; use "
                   "parallel.data or parallel.pipeline",
                   n, c->name);
    if (S > 1 && o->seq_len % (2 * S))
        return ERR(
            ERR_INPUT,
            "parallel.sequence: rows of %lld tokens cannot be shared by %d ranks; set data.seq_len to a multiple "
            "of %d%s",
            (long long)o->seq_len, S, 2 * S, such_as(such, "data.seq_len", shared_seq_len(c, o->seq_len, S)));
    if (o->batch * o->seq_len / S % n)
        return ERR(ERR_INPUT,
                   "parallel.tensor: a micro-batch of %lld x %lld tokens cannot be shared by %d ranks; change "
                   "train.micro_batch or data.seq_len%s",
                   (long long)o->batch, (long long)o->seq_len / S, n,
                   such_as(such, "train.micro_batch", shared_batch(o->batch, o->seq_len / S, n)));
    if (!o->ring && !net_heads_divide(c->n_heads, c->n_kv_heads, &o->mesh))
        return ERR(ERR_INPUT,
                   "parallel.sequence: %lld heads and %lld kv heads%s cannot be shared by %d ranks; set a divisor of "
                   "both%s, or "
                   "parallel.attention=ring",
                   (long long)c->n_heads / n, (long long)MAX(c->n_kv_heads / n, (int64_t)1),
                   n > 1 ? " of each tensor rank" : "", S, such_as(such, "parallel.sequence", fewer_sequence(c, o)));
    TRY(check_preference(o));
    return model_stages_check(c, mesh_size(&o->mesh, AXIS_PIPELINE), MAX(o->virtual_stages, 1));
}

status builder_check(const model_config *c, const net_options *o) {
    bool generates = o->generation.slots > 0;
    TRY(model_config_check(c));
    TRY(check_base(o));
    TRY(check_policy(o));
    TRY(check_critic(c, o));
    if (generates) TRY(check_generation(c, &o->generation, &o->mesh));
    return !generates || o->generation.beside_training ? check_training(c, o) : OK;
}
