/* round.c - SwiGLU, its backward and RMS norms write the 8-bit numbers that the next product reads, and nothing else.
 *
 * In: a micro section whose scales are powers of two, with SWIGLU, SWIGLU_BWD, RMSNORM or ADD_RMSNORM and the QUANTIZE of what it
 * wrote. Out: SWIGLU8 or RMSNORM8 in the place of both, where nobody else reads the 16-bit numbers: they leave the plan. Of other
 * numbers, ABSMAX and QUANTIZE become one QUANTIZE, which reads them once.
 *
 * A scale must be known before the first number is rounded, and follows from the largest. Of the op's first run nobody knows it, so
 * the op keeps the scale of its last run as a guess: a power of two is the same from one micro-batch to the next, mostly, and
 * where it is not the op does its work again. So a guess changes no bit, and is in no checkpoint. An op that recompute
 * repeats is given the largest number. A norm has to see its row before it rounds anyway, and guesses nothing.
 *
 * Behind recompute, which knows SWIGLU, the norms and QUANTIZE. Layers that are placed on the host get no guess: it would travel. */
#include "pass/pass.h"

#include <stdlib.h>

typedef struct reader {
    uint32_t n;
    size_t last; /* op */
} reader;

/* Who reads each value; a value that others are views of is read by more than one. */
static reader *find_readers(const program *p) {
    reader *readers = mem_alloc(p->n_values * sizeof *readers);
    for (size_t i = 0; i < p->n_ops; i++)
        for (int k = 0; k < op_input_count(p->ops[i].kind); k++) {
            reader *r = &readers[p->ops[i].in[k]];
            r->n++;
            r->last = i;
        }
    for (value_id v = 1; v < p->n_values; v++)
        if (p->values[v].view_of) readers[p->values[v].view_of].n += 2;
    return readers;
}

static value_id add_guess(program *p, const value *of, int layer) {
    char name[256];
    snprintf(name, sizeof name, "%.200s.guess", of->name);
    value_id v = program_persistent(p, name, DTYPE_F32, SHAPE(1), ROLE_WORK);
    p->values[v].layer = layer;
    return v;
}

/* The ops that this pass rewrites, with the 16-bit numbers that each writes and the output for the largest of them. */
typedef struct rounded {
    op_kind kind;
    int written, amax;
} rounded;
static const rounded all_rounded[] = {{OP_SWIGLU, SWIGLU_Y, SWIGLU_AMAX},
                                      {OP_SWIGLU_BWD, SWIGLU_BWD_DGU, SWIGLU_BWD_AMAX},
                                      {OP_RMSNORM, RMSNORM_Y, RMSNORM_AMAX},
                                      {OP_ADD_RMSNORM, ADD_RMSNORM_Y, ADD_RMSNORM_AMAX}};

/* NULL if the op writes nothing that could be rounded. */
static const rounded *find_rounded(const op *o) {
    if (o->kind == OP_SWIGLU_BWD && o->out[SWIGLU_BWD_Y]) return NULL;
    for (size_t i = 0; i < ARRAY_LENGTH(all_rounded); i++)
        if (all_rounded[i].kind == o->kind) return &all_rounded[i];
    return NULL;
}

static bool is_norm(const op *o) { return op_class_of(o->kind) == OP_CLASS_NORM; }

static op join_gated(const op *gated, const op *rounding, value_id found) {
    op o = op_instead(gated, OP_SWIGLU8);
    SAME_PLACE(SWIGLU_GU, SWIGLU_BWD_GU);
    op_in(&o, SWIGLU8_GU, gated->in[SWIGLU_GU]);
    if (gated->kind == OP_SWIGLU_BWD) op_in(&o, SWIGLU8_DY, gated->in[SWIGLU_BWD_DY]);
    if (found) op_out(&o, SWIGLU8_LARGEST, found);
    else op_in(&o, SWIGLU8_AMAX, rounding->in[QUANTIZE_AMAX]);
    op_out(&o, SWIGLU8_Q, rounding->out[QUANTIZE_Q]), op_out(&o, SWIGLU8_T, rounding->out[QUANTIZE_T]);
    op_out(&o, SWIGLU8_SCALE, rounding->out[QUANTIZE_SCALE]);
    return o;
}

static op join_norm(const op *norm, const op *rounding, value_id found) {
    bool add = norm->kind == OP_ADD_RMSNORM;
    op o = op_instead(norm, OP_RMSNORM8);
    SAME_PLACE(RMSNORM_X, ADD_RMSNORM_A);
    op_in(&o, RMSNORM8_A, norm->in[RMSNORM_X]);
    if (add) op_in(&o, RMSNORM8_B, norm->in[ADD_RMSNORM_B]), op_out(&o, RMSNORM8_S, norm->out[ADD_RMSNORM_S]);
    op_in(&o, RMSNORM8_GAMMA, norm->in[add ? (int)ADD_RMSNORM_GAMMA : (int)RMSNORM_GAMMA]);
    op_out(&o, RMSNORM8_RSTD, norm->out[add ? (int)ADD_RMSNORM_RSTD : (int)RMSNORM_RSTD]);
    if (found) op_out(&o, RMSNORM8_LARGEST, found);
    else op_in(&o, RMSNORM8_AMAX, rounding->in[QUANTIZE_AMAX]);
    op_out(&o, RMSNORM8_Q, rounding->out[QUANTIZE_Q]), op_out(&o, RMSNORM8_T, rounding->out[QUANTIZE_T]);
    op_out(&o, RMSNORM8_SCALE, rounding->out[QUANTIZE_SCALE]);
    return o;
}

static op join_absmax(const op *absmax, const op *rounding) {
    op o = *rounding;
    o.in[QUANTIZE_AMAX] = NO_VALUE;
    op_out(&o, QUANTIZE_LARGEST, absmax->out[ABSMAX_AMAX]);
    return o;
}

/* The pair as one op. */
static op join(program *p, const op *writer, const op *rounding, bool guesses) {
    if (writer->kind == OP_ABSMAX) {
        op o = join_absmax(writer, rounding);
        if (guesses) op_out(&o, QUANTIZE_GUESS, add_guess(p, program_get(p, rounding->in[QUANTIZE_X]), o.layer));
        return o;
    }
    bool norm = is_norm(writer);
    value_id found = writer->out[find_rounded(writer)->amax];
    op o = norm ? join_norm(writer, rounding, found) : join_gated(writer, rounding, found);
    o.attr.power = rounding->attr.power;
    if (found && guesses && !norm)
        op_out(&o, SWIGLU8_GUESS, add_guess(p, program_get(p, rounding->in[QUANTIZE_X]), o.layer));
    return o;
}

/* The op that rounds the numbers of an ABSMAX: the next one of its section that reads both. */
static const op *rounding_behind(const program *p, const op *ops, size_t n_ops, const op *o) {
    const shape *s = &program_get(p, o->in[ABSMAX_X])->shape;
    if (s->rank != 2 || s->dim[0] % 16 || s->dim[1] % 16) return NULL;
    const op *next = o + 1;
    while (next < ops + n_ops && next->section == o->section && next->kind == OP_ABSMAX) next++;
    bool fits = next < ops + n_ops && next->section == o->section && next->kind == OP_QUANTIZE && next->attr.power &&
                next->in[QUANTIZE_X] == o->in[ABSMAX_X] && next->in[QUANTIZE_AMAX] == o->out[ABSMAX_AMAX];
    return fits ? next : NULL;
}

/* The op that rounds what this one wrote, if that is all that happens to it. */
static const op *rounding_of(const program *p, const op *ops, size_t n_ops, const reader *readers, const op *o) {
    const rounded *of = find_rounded(o);
    if (o->kind == OP_ABSMAX && o->section == SECTION_MICRO) return rounding_behind(p, ops, n_ops, o);
    if (!of || o->section != SECTION_MICRO || o->rows) return NULL;
    value_id written = o->out[of->written];
    const reader *r = &readers[written];
    const op *next = &ops[r->last];
    bool fits = r->n == 1 && next->kind == OP_QUANTIZE && next->attr.power && next->in[QUANTIZE_X] == written;
    if (!fits) return NULL;
    const shape *s = &program_get(p, written)->shape;
    if (is_norm(o) && (s->rank != 2 || s->dim[0] % 16 || s->dim[1] % 16)) return NULL;
    return next;
}

status pass_round(program *p, const pass_options *options, step_interface *step) {
    if (!precision_fp8(options->choice.precision) || options->choice.fp8_scales != FP8_POWER || !step->grads) return OK;
    bool guesses =
        !place_splits(&options->place, options->net->source.n_layers, options->target) && !options->choice.cpu_layers;
    reader *readers = find_readers(p);
    size_t n_ops;
    op *ops = program_take_ops(p, &n_ops);
    bool *is_joined = mem_alloc(n_ops * sizeof *is_joined); /* a QUANTIZE that the op before does */
    for (size_t i = 0; i < n_ops; i++) {
        const op *rounding = rounding_of(p, ops, n_ops, readers, &ops[i]);
        if (is_joined[i]) continue;
        if (rounding) is_joined[rounding - ops] = true;
        op joined = rounding ? join(p, &ops[i], rounding, guesses) : ops[i];
        program_append(p, &joined);
    }
    free(is_joined);
    free(ops);
    free(readers);
    return OK;
}
