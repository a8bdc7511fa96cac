/* verify.c - check that a program is well formed before it gets memory.
 *
 * Checked for every op: operands are present and valid for the op (rules_layers.c, rules_step.c); for every value: defined
 * before use within its section, written once (a `+` output any number of times), never used in a section it does not
 * belong to; for every trained parameter: a gradient that is written and read. A failure is a bug of ralo (ERR_BUG)
 * and names the op, the operand and both shapes. */
#include "program/rules.h"

#include <stdlib.h>

status verify_fail(const checker *c, const char *what, value_id v) {
    char buf[64] = "-";
    if (v && v < c->p->n_values) shape_format(buf, &c->p->values[v].shape);
    return ERR(ERR_BUG, "program op %zu (%s, section %s, layer %d): %s: value '%s' %s %s", c->index,
               op_name(c->o->kind), section_name(c->o->section), c->o->layer, what, v ? c->p->values[v].name : "none",
               v ? dtype_name(c->p->values[v].type) : "", buf);
}

/* A kernel can only use memory of the tier it runs on. */
static status check_place(const checker *c) {
    const op *o = c->o;
    if (o->kind == OP_COPY) return OK;
    for (int k = 0; k < op_input_count(o->kind); k++)
        if (o->in[k]) REQUIRE(program_tier(c->p, o->in[k]) == o->at, "operand lies elsewhere", o->in[k]);
    for (int k = 0; k < op_output_count(o->kind); k++)
        if (o->out[k]) REQUIRE(program_tier(c->p, o->out[k]) == o->at, "result lies elsewhere", o->out[k]);
    return OK;
}

/* TURN repeats sections of the step over their own values. */
static bool lives_in(const value *root, section s) {
    return root->persistent || (root->of_generation && section_of_generation(s)) || root->section == s ||
           (s == SECTION_TURN && section_of_step(root->section));
}

/* A transient value must be defined earlier in its section; the others always hold something. */
static status check_use(const checker *c, value_id v, const unsigned char *defined) {
    value_id root = program_root(c->p, v, NULL);
    const value *r = &c->p->values[root];
    REQUIRE(lives_in(r, c->o->section), "used outside its section", v);
    REQUIRE(r->persistent || r->of_generation || defined[v] || defined[root], "used before it is defined", v);
    return OK;
}

/* A copy may store a value twice; in TURN two steps write persistent values. */
static bool may_be_written_again(const program *p, const op *o, value_id root) {
    return p->values[root].persistent && (o->kind == OP_COPY || o->section == SECTION_TURN);
}

static status check_flow(const program *p) {
    unsigned char *defined = mem_alloc(p->n_values), *written = mem_alloc(p->n_values);
    status rc = OK;
    section previous = SECTION_COUNT;
    for (size_t i = 0; i < p->n_ops && rc == OK; i++) {
        const op *o = &p->ops[i];
        checker at = {p, o, i}, *c = &at;
        if (o->section != previous) { /* per section: sections are separate runs */
            memset(defined, 0, p->n_values);
            memset(written, 0, p->n_values);
            previous = o->section;
        }
        for (int k = 0; k < op_input_count(o->kind) && rc == OK; k++)
            if (o->in[k]) rc = check_use(c, o->in[k], defined);
        for (int k = 0; k < op_output_count(o->kind) && rc == OK; k++) {
            value_id v = o->out[k];
            if (!v) continue;
            value_id root = program_root(p, v, NULL);
            if (op_reads_output(o, k)) rc = check_use(c, v, defined);
            else if (op_output_updates(o->kind, k)) rc = OK;
            else if (written[v] && !may_be_written_again(p, o, root)) rc = verify_fail(c, "written twice", v);
            else if (!lives_in(&p->values[root], o->section)) rc = verify_fail(c, "written outside its section", v);
            defined[v] = defined[root] = written[v] =
                1; /* a whole written through views counts as defined from its first part */
        }
    }
    free(defined);
    free(written);
    return rc;
}

/* Every gradient must be both written and read: a lost gradient trains nothing and causes no error. Where ops use it in
 * parts, any part counts. A parameter without one is frozen, or a copy that comes from the rank that trains it. */
static status check_gradients(const program *p) {
    unsigned char *written = mem_alloc(p->n_values), *read = mem_alloc(p->n_values);
    bool has_update = false;
    for (size_t i = 0; i < p->n_ops; i++) {
        const op *o = &p->ops[i];
        has_update |= o->section == SECTION_UPDATE;
        for (int k = 0; k < op_input_count(o->kind); k++) read[program_root(p, o->in[k], NULL)] = 1;
        for (int k = 0; k < op_output_count(o->kind); k++) written[program_root(p, o->out[k], NULL)] = 1;
    }
    status rc = OK;
    for (value_id v = 1; v < p->n_values && rc == OK; v++) {
        const value *a = &p->values[v];
        if (a->role != ROLE_GRAD || !has_update || a->view_of != NO_VALUE) continue;
        if (!written[v]) rc = ERR(ERR_BUG, "program: gradient '%s' is never written", a->name);
        else if (!read[v]) rc = ERR(ERR_BUG, "program: gradient '%s' is lost: nothing reads it", a->name);
    }
    free(written);
    free(read);
    return rc;
}

static status check_operands(const checker *c) {
    const op *o = c->o;
    for (int k = 0; k < op_input_count(o->kind); k++) {
        REQUIRE(o->in[k] < c->p->n_values, "input is no value", NO_VALUE);
        REQUIRE(o->in[k] || op_input_optional(o->kind, k), op_input_name(o->kind, k), NO_VALUE);
    }
    for (int k = 0; k < op_output_count(o->kind); k++) {
        REQUIRE(o->out[k] < c->p->n_values, "output is no value", NO_VALUE);
        REQUIRE(o->out[k] || op_output_optional(o->kind, k), op_output_name(o->kind, k), NO_VALUE);
    }
    REQUIRE(o->rows < c->p->n_values, "rows is no value", NO_VALUE);
    return OK;
}

/* The row count, where it is known only at run time. */
static status check_row_count(const checker *c) {
    value_id rows = c->o->rows;
    if (!rows) return OK;
    REQUIRE(has_type(c, rows, DTYPE_I32) && is_shape1(c, rows, 1), "rows is not an int32 (1)", rows);
    return OK;
}

static status (*const verifiers[OP_COUNT])(const checker *c) = {
#define OP(id, ...) [OP_##id] = verify_##id,
#include "program/ops.def"
#undef OP
};

status program_verify(const program *p) {
    section last = SECTION_START;
    for (size_t i = 0; i < p->n_ops; i++) {
        const checker at = {p, &p->ops[i], i}, *c = &at;
        REQUIRE(c->o->section >= last, "sections out of order", NO_VALUE);
        last = c->o->section;
        TRY(check_operands(c));
        TRY(check_row_count(c));
        TRY(verifiers[c->o->kind](c));
        TRY(check_place(c));
    }
    TRY(check_flow(p));
    return check_gradients(p);
}
