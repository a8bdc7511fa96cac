/* join.c - an activation function that is computed again is written by its own backward.
 *
 * In: a section after recompute. `again` copies of SWIGLU write the input of a weight gradient, and SWIGLU_BWD reads the same
 * gate and up. Out: SWIGLU_BWD writes that input too, on the bytes of dy where these are free, and the copy is gone: instead of three
 * passes over (N, F) the repetition costs one. Ops that read the value (a weight gradient, its accumulation) move behind the backward.
 *
 * The op writes with the forward's own formula, so bits are the same. Where what stands between the two does not allow it, the copy
 * stays. */
#include "pass/pass.h"

#include <stdlib.h>

typedef struct joiner {
    const program *p;
    op *ops;
    size_t n_ops;
    size_t *after;    /* per op: the op behind which it moves; itself: it stays */
    bool *is_dropped; /* per op: its backward writes its result */
    bool *is_late;    /* per root: read or written by an op that moves */
    bool *is_made;    /* ... written by it */
} joiner;

static bool is_candidate(const op *o) {
    return o->again && o->kind == OP_SWIGLU && o->section == SECTION_MICRO && !o->rows && !o->out[SWIGLU_AMAX];
}

/* The backward of the function that op i repeats: of the same layer, so it is near. SIZE_MAX: there is none. */
static size_t backward_of(const joiner *w, size_t i) {
    const op *o = &w->ops[i];
    for (size_t k = i + 1; k < w->n_ops && w->ops[k].section == o->section && w->ops[k].layer == o->layer; k++) {
        const op *b = &w->ops[k];
        if (b->kind == OP_SWIGLU_BWD && b->in[SWIGLU_BWD_GU] == o->in[SWIGLU_GU] && !b->out[SWIGLU_BWD_Y]) return k;
    }
    return SIZE_MAX;
}

static value_id root(const joiner *w, value_id v) { return program_root(w->p, v, NULL); }

/* Reads what an op that moves writes, or writes what such an op reads or writes. */
static bool must_follow(const joiner *w, const op *o) {
    for (int k = 0; k < op_input_count(o->kind); k++)
        if (o->in[k] && w->is_made[root(w, o->in[k])]) return true;
    for (int k = 0; k < op_output_count(o->kind); k++)
        if (o->out[k] && w->is_late[root(w, o->out[k])]) return true;
    return false;
}

static void note_moved(joiner *w, const op *o, bool is) {
    for (int k = 0; k < op_input_count(o->kind); k++)
        if (o->in[k]) w->is_late[root(w, o->in[k])] = is;
    for (int k = 0; k < op_output_count(o->kind); k++)
        if (o->out[k]) w->is_late[root(w, o->out[k])] = w->is_made[root(w, o->out[k])] = is;
}

/* Ops between op i and its backward that must follow what the backward will write; false: the backward is one of them, or one of
 * them has been moved already. */
static bool find_moves(joiner *w, size_t i, size_t backward) {
    bool possible = true;
    w->is_made[root(w, w->ops[i].out[SWIGLU_Y])] = w->is_late[root(w, w->ops[i].out[SWIGLU_Y])] = true;
    for (size_t k = i + 1; k <= backward; k++) {
        if (w->is_dropped[k] || !must_follow(w, &w->ops[k])) continue;
        possible &= k != backward && w->after[k] == k;
        note_moved(w, &w->ops[k], true);
        if (possible) w->after[k] = backward;
    }
    for (size_t k = i; k <= backward; k++) {
        note_moved(w, &w->ops[k], false);
        if (!possible && w->after[k] == backward) w->after[k] = k;
    }
    return possible;
}

static void join(joiner *w, size_t i) {
    size_t backward = backward_of(w, i);
    if (backward == SIZE_MAX || !find_moves(w, i, backward)) return;
    w->is_dropped[i] = true;
    w->ops[backward].out[SWIGLU_BWD_Y] = w->ops[i].out[SWIGLU_Y];
}

static void append_all(const joiner *w, program *p) {
    for (size_t i = 0; i < w->n_ops; i++) {
        if (w->is_dropped[i] || w->after[i] != i) continue;
        program_append(p, &w->ops[i]);
        if (w->ops[i].kind != OP_SWIGLU_BWD) continue;
        size_t first = i; /* what moves behind an op stood before it, in the same layer */
        while (first > 0 && w->ops[first - 1].section == w->ops[i].section &&
               w->ops[first - 1].layer == w->ops[i].layer)
            first--;
        for (size_t k = first; k < i; k++)
            if (w->after[k] == i) program_append(p, &w->ops[k]);
    }
}

status pass_join(program *p, const pass_options *options, step_interface *step) {
    bool any = false;
    for (size_t i = 0; i < p->n_ops && !any; i++) any = is_candidate(&p->ops[i]);
    if (!any) return OK;
    joiner w = {.p = p};
    w.ops = program_take_ops(p, &w.n_ops);
    w.after = mem_alloc(w.n_ops * sizeof *w.after);
    w.is_dropped = mem_alloc(w.n_ops * sizeof *w.is_dropped);
    w.is_late = mem_alloc(p->n_values * sizeof *w.is_late);
    w.is_made = mem_alloc(p->n_values * sizeof *w.is_made);
    for (size_t i = 0; i < w.n_ops; i++) w.after[i] = i;
    for (size_t i = 0; i < w.n_ops; i++)
        if (is_candidate(&w.ops[i])) join(&w, i);
    append_all(&w, p);
    free(w.ops);
    free(w.after);
    free(w.is_dropped);
    free(w.is_late);
    free(w.is_made);
    return OK;
}
