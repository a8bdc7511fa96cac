/* round.c - SwiGLU and its backward write the 8-bit numbers that the next product reads, and nothing else.
 *
 * In: a micro section whose scales are powers of two, with SWIGLU or SWIGLU_BWD and the QUANTIZE of what it wrote. Out: SWIGLU8 in
 * the place of both, where nobody else reads the 16-bit numbers: they leave the plan.
 *
 * A scale must be known before the first number is rounded, and follows from the largest. Of the op's first run nobody knows it, so
 * the op keeps the scale of its last run as a guess: a power of two is the same from one micro-batch to the next, mostly, and
 * where it is not the op does its work again. So a guess changes no bit, and is in no checkpoint. An op that recompute
 * repeats is given the largest number.
 *
 * Behind recompute, which knows SWIGLU and QUANTIZE. Layers that are placed on the host get no guess: it would travel. */
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

static value_id add_guess(program *p, const op *o) {
    char name[256];
    snprintf(name, sizeof name, "%.200s.guess", program_get(p, op_main_value(o))->name);
    value_id v = program_persistent(p, name, DTYPE_F32, SHAPE(1), ROLE_WORK);
    p->values[v].layer = o->layer;
    return v;
}

/* The pair as one op. */
static op join(program *p, const op *gated, const op *rounding, bool guesses) {
    bool backward = gated->kind == OP_SWIGLU_BWD;
    op o = *gated;
    o.kind = OP_SWIGLU8;
    o.attr.power = rounding->attr.power;
    memset(o.in, 0, sizeof o.in);
    memset(o.out, 0, sizeof o.out);
    SAME_PLACE(SWIGLU_GU, SWIGLU_BWD_GU);
    op_in(&o, SWIGLU8_GU, gated->in[SWIGLU_GU]);
    if (backward) op_in(&o, SWIGLU8_DY, gated->in[SWIGLU_BWD_DY]);
    value_id found = gated->out[backward ? (int)SWIGLU_BWD_AMAX : (int)SWIGLU_AMAX];
    if (found) op_out(&o, SWIGLU8_LARGEST, found);
    else op_in(&o, SWIGLU8_AMAX, rounding->in[QUANTIZE_AMAX]);
    op_out(&o, SWIGLU8_Q, rounding->out[QUANTIZE_Q]), op_out(&o, SWIGLU8_T, rounding->out[QUANTIZE_T]);
    op_out(&o, SWIGLU8_SCALE, rounding->out[QUANTIZE_SCALE]);
    if (found && guesses) op_out(&o, SWIGLU8_GUESS, add_guess(p, &o));
    return o;
}

/* The op that rounds what this one wrote, if that is all that happens to it. */
static const op *rounding_of(const op *ops, const reader *readers, const op *o) {
    if ((o->kind != OP_SWIGLU && o->kind != OP_SWIGLU_BWD) || o->section != SECTION_MICRO || o->rows) return NULL;
    SAME_PLACE(SWIGLU_Y, SWIGLU_BWD_DGU);
    const reader *r = &readers[o->out[SWIGLU_Y]];
    const op *next = &ops[r->last];
    bool fits = r->n == 1 && next->kind == OP_QUANTIZE && next->attr.power && next->in[QUANTIZE_X] == o->out[SWIGLU_Y];
    return fits ? next : NULL;
}

status pass_round(program *p, const pass_options *options, step_interface *step) {
    if (!precision_fp8(options->choice.precision) || options->choice.fp8_scales != FP8_POWER || !step->grads) return OK;
    bool guesses =
        !place_splits(&options->place, options->model->config.n_layers, options->target) && !options->choice.cpu_layers;
    reader *readers = find_readers(p);
    size_t n_ops;
    op *ops = program_take_ops(p, &n_ops);
    const op **gated_by = mem_alloc(n_ops * sizeof *gated_by); /* of a QUANTIZE: the op that it is joined with */
    for (size_t i = 0; i < n_ops; i++) {
        const op *rounding = rounding_of(ops, readers, &ops[i]);
        if (rounding) {
            gated_by[rounding - ops] = &ops[i];
            continue;
        }
        op joined = gated_by[i] ? join(p, gated_by[i], &ops[i], guesses) : ops[i];
        program_append(p, &joined);
    }
    free(gated_by);
    free(ops);
    free(readers);
    return OK;
}
