/* run_memory.c - memory.json and plan.json: bytes by role over the ops of a step, and what is asked of them.
 *
 * Lists of one length each, finite and not negative; a tier that is something else is named and left out, because areas drawn
 * from it would lie. */
#include "report/parts.h"

#include <math.h>
#include <string.h>

enum {
    MEMORY_BYTES = 64 << 20,
    ROLES_MOST = 16,
    TIERS_MOST = 8,
    POINTS_MOST = 16384,
    VALUES_MOST = 50,
};

static double number_or_nan(const json_t *v) { return json_is_number(v) ? json_number_value(v) : NAN; }

static const char *short_text(run *r, const json_t *v) {
    const char *text = json_string_value(v);
    return text ? arena_format(&r->memory, "%.100s", text) : "";
}

static status read_numbers(run *r, const json_t *list, size_t n, double **out) {
    *out = arena_array(&r->memory, double, n);
    if (!json_is_array(list) || json_array_size(list) != n)
        return ERR(ERR_INPUT, "found %zu numbers, expected %zu", json_array_size(list), n);
    for (size_t i = 0; i < n; i++) {
        (*out)[i] = number_or_nan(json_array_get(list, i));
        if (!((*out)[i] >= 0 && (*out)[i] < 1e20)) return ERR(ERR_INPUT, "entry %zu: expected a number of bytes", i);
    }
    return OK;
}

static void read_texts(run *r, const json_t *list, size_t n, const char ***out) {
    *out = arena_array(&r->memory, const char *, n);
    for (size_t i = 0; i < n; i++) (*out)[i] = short_text(r, json_array_get(list, i));
}

static status read_points(run *r, run_tier *t, const json_t *points) {
    const json_t *bytes = json_object_get(points, "bytes");
    t->n_points = json_array_size(json_array_get(bytes, 0));
    if (json_array_size(bytes) != r->n_roles || t->n_points == 0 || t->n_points > POINTS_MOST)
        return ERR(ERR_INPUT, "found %zu lists of %zu bytes, expected one for each of %zu roles",
                   json_array_size(bytes), t->n_points, r->n_roles);
    t->bytes = arena_array(&r->memory, double *, r->n_roles);
    t->total = arena_array(&r->memory, double, t->n_points);
    for (size_t k = 0; k < r->n_roles; k++) {
        TRY(read_numbers(r, json_array_get(bytes, k), t->n_points, &t->bytes[k]));
        for (size_t i = 0; i < t->n_points; i++) t->total[i] += t->bytes[k][i];
    }
    for (size_t i = 1; i < t->n_points; i++)
        if (t->total[i] > t->total[t->peak_at]) t->peak_at = i;
    if (read_numbers(r, json_object_get(points, "index"), t->n_points, &t->index) != OK) t->index = NULL, error_clear();
    for (size_t i = 1; t->index && i < t->n_points; i++)
        if (t->index[i] < t->index[i - 1]) t->index = NULL;
    read_texts(r, json_object_get(points, "op"), t->n_points, &t->op);
    read_texts(r, json_object_get(points, "section"), t->n_points, &t->section);
    return OK;
}

static void read_peak(run *r, run_tier *t, const json_t *peak) {
    const json_t *values = json_object_get(peak, "values"), *v;
    size_t i;
    t->values = arena_array(&r->memory, run_peak_value, VALUES_MOST);
    t->others = number_or_nan(json_object_get(peak, "others_bytes"));
    json_array_foreach(values, i, v) {
        double bytes = number_or_nan(json_object_get(v, "bytes"));
        if (t->n_values == VALUES_MOST || !(bytes >= 0)) continue;
        t->values[t->n_values++] = (run_peak_value){short_text(r, json_object_get(v, "name")),
                                                    short_text(r, json_object_get(v, "role")), bytes};
    }
}

static void read_tiers(run *r, const json_t *root) {
    const json_t *roles = json_object_get(root, "roles"), *tiers = json_object_get(root, "tiers"), *v;
    size_t i;
    r->n_roles = MIN(json_array_size(roles), (size_t)ROLES_MOST);
    read_texts(r, roles, r->n_roles, &r->roles);
    r->tiers = arena_array(&r->memory, run_tier, TIERS_MOST);
    json_array_foreach(tiers, i, v) {
        if (r->n_tiers == TIERS_MOST) break;
        run_tier t = {.name = short_text(r, json_object_get(v, "tier")),
                      .planned = number_or_nan(json_object_get(v, "planned_peak")),
                      .measured = number_or_nan(json_object_get(v, "measured_peak")),
                      .limit = number_or_nan(json_object_get(v, "limit"))};
        if (read_points(r, &t, json_object_get(v, "points")) != OK) {
            run_note(r, arena_format(&r->memory, "memory.json: tier '%s'", t.name));
            continue;
        }
        read_peak(r, &t, json_object_get(v, "peak"));
        r->tiers[r->n_tiers++] = t;
    }
}

void run_read_memory(run *r) {
    json_t *memory = run_read_object(r, "memory.json", MEMORY_BYTES);
    if (memory) read_tiers(r, memory);
    json_decref(memory);
    r->plan = run_read_object(r, "plan.json", MEMORY_BYTES);
}

const run_tier *run_tier_find(const run *r, const char *name) {
    for (size_t i = 0; i < r->n_tiers; i++)
        if (strcmp(r->tiers[i].name, name) == 0) return &r->tiers[i];
    return NULL;
}

double run_planned_bytes(const run *r, const char *tier) {
    const run_tier *t = run_tier_find(r, tier);
    if (t && isfinite(t->planned)) return t->planned;
    return number_or_nan(json_object_get(json_object_get(json_object_get(r->plan, "memory"), tier), "planned"));
}

static double measured_bytes(const run *r) {
    const run_tier *t = run_tier_find(r, "device");
    return fmax(series_most(run_metrics_find(&r->metrics, "memory/device_bytes")), t ? t->measured : NAN);
}

bool run_peak_is_measured(const run *r) { return isfinite(measured_bytes(r)); }

double run_peak_bytes(const run *r) {
    double measured = measured_bytes(r);
    return isfinite(measured) ? measured : run_planned_bytes(r, "device");
}

double run_role_bytes(const run *r, const char *role) {
    const run_tier *t = run_tier_find(r, "device");
    for (size_t k = 0; t && k < r->n_roles; k++)
        if (strcmp(r->roles[k], role) == 0) return t->bytes[k][t->peak_at];
    return number_or_nan(json_object_get(json_object_get(json_object_get(r->plan, "memory"), "by_role"), role));
}

double run_tokens_per_second(const run *r) {
    return series_median(run_metrics_find(&r->metrics, "perf/tokens_per_sec"));
}
