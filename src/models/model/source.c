/* source.c - makes the net_source of a configuration, by which the engine reaches the model (net/net.h). */
#include "model/model.h"

_Static_assert(sizeof(model_config) <= NET_DESCRIPTION_BYTES, "a description has no room for the configuration");

static status write_net(net *n, program *p, const net_source *s, const net_options *o) {
    return model_build(n, p, model_of(s), o);
}
static void set_trunk(net_source *s, int64_t n_layers) {
    model_config c = *model_of(s);
    c.n_layers = n_layers + s->prediction_heads;
    *s = net_source_of(&c);
}
static uint64_t count_params(const net_source *s) { return model_param_count(model_of(s)); }
static uint64_t count_adapters(const net_source *s, const lora_options *o) { return lora_param_count(model_of(s), o); }
static status adapt_all(const net_source *s, lora_options *o) {
    return lora_modules_parse(model_of(s), "all-linear", "model.lora.targets", &o->modules);
}
static double slowest_stage(const net_source *s, int64_t seq_len, int n_stages, int n_chunks, int stage) {
    return model_stages_slowest(model_of(s), seq_len, n_stages, n_chunks, stage);
}

net_source net_source_of(const model_config *c) {
    static const net_writer writer = {write_net, set_trunk, count_params, count_adapters, adapt_all, slowest_stage};
    net_source s = {.by = &writer,
                    .name = c->name,
                    .n_layers = c->n_layers,
                    .prediction_heads = c->n_layers - model_first_head(c),
                    .period = model_period(c),
                    .vocab = c->vocab,
                    .hidden = c->hidden,
                    .n_heads = c->n_heads,
                    .n_kv_heads = c->n_kv_heads,
                    .head_dim = c->head_dim,
                    .tied = c->tied,
                    .has_values = c->value_head != VALUE_HEAD_NONE,
                    .rows_fit_codes = model_rows_fit_codes(c)};
    memcpy(s.description, c, sizeof *c);
    return s;
}
