/* request.c - which choices a request leaves open, and a request with one of the allowed choices. */
#include "plan/search.h"

bool plan_generates(const plan_request *r) { return r->generation.slots > 0 && !r->generation.beside_training; }
bool plan_samples(const plan_request *r) { return r->generation.slots > 0 && r->generation.beside_training; }

bool plan_shares_z(const plan_request *r) {
    return r->preference.kind == PREFERENCE_KTO && (r->choice.accumulation > 1 || mesh_size(&r->mesh, AXIS_DATA) > 1);
}

bool plan_asks_own_reference(const plan_request *r) { return r->preference.kind && r->reference == REFERENCE_INPUT; }

place_options plan_place(const plan_request *r) {
    place_options out = r->place;
    int64_t n = MIN(net_trunk(&r->source), (int64_t)PLACE_LAYERS_MAX);
    for (int64_t i = MAX(n - r->choice.cpu_layers, 0); i < n; i++) out.layers[i] = PLACE_CPU;
    return out;
}

bool plan_is_placed(const plan_request *r) {
    place_options l = plan_place(r);
    return place_splits(&l, r->source.n_layers, &r->target);
}

int plan_row_ranks(const plan_request *r) {
    return mesh_size(&r->mesh, AXIS_DATA) * mesh_size(&r->mesh, AXIS_SEQUENCE);
}

/* The mesh is never open in a pipeline: each stage plans on its own, and all must use the same mesh. */
bool plan_ranks_open(const plan_request *r) {
    return (r->open.zero || r->open.sequence) && plan_row_ranks(r) > 1 && mesh_size(&r->mesh, AXIS_PIPELINE) == 1;
}

bool plan_is_open(const plan_request *r) {
    const plan_open *o = &r->open;
    return r->choice.recompute.kind == RECOMPUTE_AUTO || o->params || o->grads || o->states || o->activations ||
           o->keep_layers || o->chunk || o->place || o->precision || o->micro_batch || plan_ranks_open(r);
}

plan_request plan_request_complete(const plan_request *r) {
    plan_request q = *r;
    int n = r->choice.sequence;
    if (n && n != mesh_size(&r->mesh, AXIS_SEQUENCE)) {
        int rank = mesh_rank(&r->mesh);
        q.mesh.size[AXIS_DATA] = plan_row_ranks(r) / n;
        q.mesh.size[AXIS_SEQUENCE] = n;
        mesh_set_rank(&q.mesh, rank);
    }
    q.choice.sequence = mesh_size(&q.mesh, AXIS_SEQUENCE);
    if (plan_shares_z(&q) && q.choice.overlap_update == OVERLAP_AUTO) q.choice.overlap_update = OVERLAP_FALSE;
    if (!q.choice.bucket_bytes) q.choice.bucket_bytes = offload_bucket(net_param_count(&r->source));
    return q;
}

plan_request plan_request_of(const plan_request *r, const step_choice *c) {
    plan_request q = *r;
    q.open = (plan_open){0};
    q.choice = *c;
    return plan_request_complete(&q);
}

plan_request plan_request_reopen(const plan *p) {
    plan_request q = p->request;
    step_choice_copy_memory(&q.choice, &p->asked);
    return q;
}

offload_tiers plan_offload_tiers(const plan_request *r, const offload_tiers *wanted) {
    offload_tiers o = r->choice.offload;
    if (r->open.params) o.params = wanted->params;
    if (r->open.grads) o.grads = wanted->grads;
    if (r->open.states) o.states = wanted->states;
    if (r->open.activations) o.activations = wanted->activations;
    return o;
}
