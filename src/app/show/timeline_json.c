/* timeline_json.c - memory over the ops of one step as JSON: memory.json of a run directory.
 *
 * Each tier has points of its own, because the op at which one tier is full is not the one at which another is. A point
 * is the fullest of the ops that it stands for, so no maximum is lost where they are thinned. "gaps" is a role as in
 * the plan's table: what the arena has beyond the bytes alive at the peak. It is added at every point, so that the
 * highest column is the arena. */
#include "plan/timeline.h"
#include "show/show.h"

#include <stdlib.h>

enum { POINTS_MOST = 2000, VALUES_MOST = 50 };

static json_t *whole(uint64_t n) { return json_integer((json_int_t)n); }

/* ---- values alive at the peak ----------------------------------------------------------------------------------- */

static json_t *values_json(const plan *p, tier t, size_t op_index, size_t at) {
    const program *g = &p->program;
    size_t n = 0;
    value_id *alive = plan_values_alive(g, t, op_index, &n);
    json_t *values = json_array();
    uint64_t others = 0;
    for (size_t i = 0; i < n; i++) {
        const value *v = &g->values[alive[i]];
        if (i >= VALUES_MOST) others += value_bytes(v);
        else
            json_array_append_new(values, json_pack("{s:s, s:s, s:o}", "name", v->name, "role", role_name(v->role),
                                                    "bytes", whole(value_bytes(v))));
    }
    free(alive);
    return json_pack("{s:o, s:o, s:o}", "at", whole(at), "values", values, "others_bytes", whole(others));
}

/* ---- points ----------------------------------------------------------------------------------------------------- */

static const char *part_of(const plan_timeline *t, size_t column) {
    for (size_t i = 0; i < t->n_parts; i++)
        if (column >= t->parts[i].first_column && column < t->parts[i].end_column) return t->parts[i].name;
    return "";
}

static json_t *points_json(const plan_timeline *t, const program *g, uint64_t gaps) {
    json_t *ops = json_array(), *indices = json_array(), *layers = json_array(), *sections = json_array(),
           *bytes = json_array();
    for (size_t i = 0; i < t->n_columns; i++) {
        const op *o = &g->ops[t->columns[i].op];
        json_array_append_new(ops, json_string(op_name(o->kind)));
        json_array_append_new(indices, whole(t->columns[i].op));
        json_array_append_new(layers, o->layer >= 0 ? json_integer(o->layer) : json_null());
        json_array_append_new(sections, json_string(part_of(t, i)));
    }
    for (int r = 0; r <= ROLE_COUNT; r++) {
        json_t *row = json_array();
        for (size_t i = 0; i < t->n_columns; i++)
            json_array_append_new(row, whole(r < ROLE_COUNT ? t->columns[i].alive.by_role[r] : gaps));
        json_array_append_new(bytes, row);
    }
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "op", ops, "index", indices, "layer", layers, "section", sections,
                     "bytes", bytes);
}

static uint64_t limit_of(const plan_request *r, tier t) {
    return tier_is_device(t) ? r->device_limit : t == TIER_HOST ? r->host_limit : 0;
}

static json_t *tier_json(const plan *p, tier at, const uint64_t *measured) {
    plan_timeline t;
    plan_timeline_init_tier(&t, p, at, POINTS_MOST);
    uint64_t arena = p->program.arena_bytes[at], most = 0, limit = limit_of(&p->request, at);
    size_t peak = 0;
    for (size_t i = 0; i < t.n_columns; i++)
        if (plan_alive_sum(&t.columns[i].alive) > most) most = plan_alive_sum(&t.columns[i].alive), peak = i;
    json_t *root =
        json_pack("{s:s, s:o, s:o, s:o}", "tier", tier_name(at), "planned_peak", whole(arena), "measured_peak",
                  measured ? whole(measured[at]) : json_null(), "limit", limit ? whole(limit) : json_null());
    if (at == TIER_HOST) json_object_set_new(root, "beside_arena", whole(p->planned[at] - arena));
    json_object_set_new(root, "points", points_json(&t, &p->program, arena - most));
    if (t.n_columns) json_object_set_new(root, "peak", values_json(p, at, t.columns[peak].op, peak));
    plan_timeline_fini(&t);
    return root;
}

json_t *plan_timeline_json(const plan *p, const uint64_t *measured) {
    json_t *roles = json_array(), *tiers = json_array();
    for (role r = 0; r < ROLE_COUNT; r++) json_array_append_new(roles, json_string(role_name(r)));
    json_array_append_new(roles, json_string("gaps"));
    for (tier t = 0; t < TIER_COUNT; t++)
        if (p->program.arena_bytes[t]) json_array_append_new(tiers, tier_json(p, t, measured));
    return json_pack("{s:i, s:o, s:o}", "version", 1, "roles", roles, "tiers", tiers);
}
