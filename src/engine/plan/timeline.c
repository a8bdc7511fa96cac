/* timeline.c - how many bytes are alive at every op, by role and tier.
 *
 * The peak of a plan and its picture use the same numbers, so the highest column is the peak. A program can have tens of
 * thousands of ops: a timeline has at most TIMELINE_COLUMNS columns, and a column of several ops shows all roles of the
 * fullest op. (The largest bytes of each role would add up to a sum that is never alive.) */
#include "plan/timeline.h"

#include <stdlib.h>

void plan_lifetimes(const program *g, lifetime *life) {
    layout_lifetimes(g, life);
    for (value_id v = 1; v < g->n_values; v++) {
        value_id owner = g->values[v].in_place_of;
        if (owner == NO_VALUE || life[v].first > life[v].last) continue;
        life[owner].first = MIN(life[owner].first, life[v].first);
        life[owner].last = MAX(life[owner].last, life[v].last);
        life[v] = (lifetime){SIZE_MAX, 0};
    }
}

plan_alive *plan_alive_at_ops(const program *g, tier t) {
    lifetime *life = mem_alloc(g->n_values * sizeof *life);
    plan_alive *alive = mem_alloc((g->n_ops + 2) * sizeof *alive);
    plan_lifetimes(g, life);
    for (value_id v = 1; v < g->n_values; v++) { /* bytes that begin and end at each op ... */
        const value *a = &g->values[v];
        if (a->view_of || a->tier != t || life[v].first > life[v].last) continue;
        alive[life[v].first].by_role[a->role] += value_bytes(a);
        alive[life[v].last + 1].by_role[a->role] -= value_bytes(a);
    }
    for (size_t i = 1; i < g->n_ops; i++) /* ... are summed; unsigned wrap-around gives the true sum */
        for (role r = 0; r < ROLE_COUNT; r++) alive[i].by_role[r] += alive[i - 1].by_role[r];
    free(life);
    return alive;
}

uint64_t plan_alive_sum(const plan_alive *a) {
    uint64_t sum = 0;
    for (role r = 0; r < ROLE_COUNT; r++) sum += a->by_role[r];
    return sum;
}

uint64_t *plan_bytes_at_ops(const plan *p) {
    size_t n = p->program.n_ops;
    plan_alive *alive = plan_alive_at_ops(&p->program, TIER_DEVICE);
    uint64_t *bytes = mem_alloc(MAX(n, (size_t)1) * sizeof *bytes);
    for (size_t i = 0; i < n; i++) bytes[i] = plan_alive_sum(&alive[i]);
    free(alive);
    return bytes;
}

uint64_t plan_rollout_bytes(const plan *p, bool of_rollout) {
    uint64_t *bytes = plan_bytes_at_ops(p), most = 0;
    for (size_t i = 0; i < p->program.n_ops; i++) {
        section s = p->program.ops[i].section;
        if ((s == SECTION_PREFILL || s == SECTION_DECODE) == of_rollout) most = MAX(most, bytes[i]);
    }
    free(bytes);
    return most;
}

/* ---- parts of the step ---------------------------------------------------------------------------------------------- */

static void add_part(plan_timeline *t, const char *name, size_t first_op, size_t end_op) {
    if (first_op >= end_op) return;
    ASSERT(t->n_parts < TIMELINE_PARTS);
    t->parts[t->n_parts++] = (plan_timeline_part){.name = name, .first_op = first_op, .end_op = end_op};
}

/* The op of the loss also writes the first gradient, so the backward begins with it. */
static void add_micro(plan_timeline *t, const plan *p) {
    const program *g = &p->program;
    size_t first, end, backward;
    program_section(g, SECTION_MICRO, &first, &end);
    if (mesh_size(&p->request.mesh, AXIS_PIPELINE) > 1) {
        add_part(t, "forward and backward", first, end); /* alternating */
        return;
    }
    for (backward = first; backward < end && !op_is_loss_gradient(g->ops[backward].kind);) backward++;
    add_part(t, "forward", first, backward);
    add_part(t, "backward", backward, end);
}

static void add_section(plan_timeline *t, const program *g, section s, const char *name) {
    size_t first, end;
    program_section(g, s, &first, &end);
    add_part(t, name, first, end);
}

/* What is shown of the sections that are no part of every step: those in which the most bytes are alive. */
typedef struct shown_sections {
    bool start, loaded, eval, turn;
} shown_sections;

static void note_section(shown_sections *s, section peak) {
    s->start |= peak == SECTION_START;
    s->loaded |= peak == SECTION_LOADED;
    s->eval |= peak == SECTION_EVAL;
    s->turn |= peak == SECTION_TURN;
}

static void find_parts(plan_timeline *t, const plan *p, shown_sections shown) {
    const program *g = &p->program;
    if (shown.start) add_section(t, g, SECTION_START, "start");
    if (shown.loaded) add_section(t, g, SECTION_LOADED, "frozen weights, once");
    add_section(t, g, SECTION_PREPARE, "prepare");
    add_micro(t, p);
    add_section(t, g, SECTION_UPDATE, "update");
    if (shown.turn) add_section(t, g, SECTION_TURN, "update and next step");
    if (shown.eval) add_section(t, g, SECTION_EVAL, "evaluation");
    add_section(t, g, SECTION_PREFILL, "prefill");
    add_section(t, g, SECTION_DECODE, "decode");
}

/* ---- columns -------------------------------------------------------------------------------------------------------- */

/* A column never mixes ops of two parts, and every part has at least one column. */
static void cut_columns(plan_timeline *t, size_t most) {
    size_t n_ops = 0;
    for (size_t i = 0; i < t->n_parts; i++) n_ops += t->parts[i].end_op - t->parts[i].first_op;
    t->columns = mem_alloc((most + 1) * sizeof *t->columns);
    for (size_t i = 0; i < t->n_parts; i++) {
        plan_timeline_part *part = &t->parts[i];
        size_t n = part->end_op - part->first_op, n_columns = n;
        if (n_ops > most) n_columns = MAX(n * (most - TIMELINE_PARTS) / n_ops, (size_t)1);
        part->first_column = t->n_columns;
        for (size_t k = 0; k < n_columns; k++)
            t->columns[t->n_columns++] = (plan_column){.first_op = part->first_op + k * n / n_columns,
                                                       .end_op = part->first_op + (k + 1) * n / n_columns};
        part->end_column = t->n_columns;
    }
}

static void fill_columns(plan_timeline *t, const plan_alive *alive) {
    for (size_t i = 0; i < t->n_columns; i++) {
        plan_column *c = &t->columns[i];
        c->op = c->first_op;
        for (size_t k = c->first_op; k < c->end_op; k++)
            if (plan_alive_sum(&alive[k]) > plan_alive_sum(&alive[c->op])) c->op = k;
        c->alive = alive[c->op];
    }
}

static void fill_other(plan_timeline *t, tier at, const plan_alive *alive) {
    for (size_t i = 0; i < t->n_columns; i++) {
        plan_column *c = &t->columns[i];
        for (size_t k = c->first_op; k < c->end_op; k++) c->others[at] = MAX(c->others[at], plan_alive_sum(&alive[k]));
    }
}

void plan_timeline_init(plan_timeline *t, const plan *p) {
    *t = (plan_timeline){0};
    shown_sections shown = {0};
    if (p->program.n_ops) note_section(&shown, p->program.ops[p->peak_op].section);
    find_parts(t, p, shown);
    cut_columns(t, TIMELINE_COLUMNS);
    for (tier at = 0; at < TIER_COUNT; at++) {
        if (at != TIER_DEVICE && !p->program.arena_bytes[at]) continue;
        plan_alive *alive = plan_alive_at_ops(&p->program, at);
        if (at == TIER_DEVICE) fill_columns(t, alive);
        else fill_other(t, at, alive);
        free(alive);
    }
}

static size_t fullest_op(const program *g, const plan_alive *alive) {
    size_t at = 0;
    for (size_t i = 1; i < g->n_ops; i++)
        if (plan_alive_sum(&alive[i]) > plan_alive_sum(&alive[at])) at = i;
    return at;
}

void plan_timeline_init_tier(plan_timeline *t, const plan *p, tier at, size_t most) {
    *t = (plan_timeline){0};
    shown_sections shown = {0};
    plan_alive *alive = plan_alive_at_ops(&p->program, at);
    if (p->program.n_ops) note_section(&shown, p->program.ops[fullest_op(&p->program, alive)].section);
    find_parts(t, p, shown);
    cut_columns(t, most);
    fill_columns(t, alive);
    free(alive);
}

void plan_timeline_fini(plan_timeline *t) {
    free(t->columns);
    *t = (plan_timeline){0};
}
