/* chunk.c - run the MLP of a block over a few tokens at a time, so that its wide values exist only for these.
 *
 * In: a section after recompute. Out: the same, where every run of ops around an activation function - product, function,
 * product, and their backward - is repeated for each chunk of rows. Wide values (N, ffn) that only such a run uses become one
 * value per chunk, and the next chunk reuses its bytes; values that other ops use too are read and written as row slices of
 * the whole. Evaluation is chunked like training.
 *
 * Rows do not depend on each other in the products, but a weight gradient is a sum over all rows. It is summed chunk by
 * chunk, in order, in fp32, and rounded once: a different order than one product over all tokens, so the last bits differ.
 * This is the only memory technique that changes bits, so it is used only where nothing else fits. The chunks depend on the
 * tokens alone, so runs with the same chunks have the same bits whatever else is recomputed or offloaded.
 *
 * With adapters the rows of a chunk pass through those too: what one adds to gate|up, the small side (n, r) of the one behind the
 * function, and on the way back the gradients of both small sides, which wide gradients are made of.
 *
 * Other ops stand between the ops of a run: those that need its results (sums over micro-batches, messages) move after it,
 * those that it needs (a recomputed norm) before it. */
#include "pass/pass.h"

#include <stdlib.h>

/* Every chunk begins where a value could: 64 rows of any width and type are whole lines of a cache. */
enum { CHUNK_UNIT = 64 };

typedef enum place { PLACE_INSIDE, PLACE_BEFORE, PLACE_BEHIND } place;

typedef struct chunker {
    program *p;
    const pass_options *options;
    op *ops;
    size_t n_ops;
    size_t n_values; /* before this pass */
    /* per value: goes into or comes out of an activation function, or lies between such and an adapter */
    bool *is_wide;
    unsigned *n_uses;    /* per root: by all ops */
    unsigned *n_in_run;  /* ... by the ops of the current run */
    bool *is_made;       /* per root: by the current run ... */
    bool *is_made_later; /* ... or by ops that must come after it */
    value_id *own;       /* per value: its value in the current chunk */
    value_id *sums;      /* per gradient that the run writes: where its chunks are summed */
    place *places;       /* of the ops of the current run */
} chunker;

int64_t chunk_rows(int64_t asked) { return round_up(asked, CHUNK_UNIT); }

static bool is_function(op_kind k) { return op_class_of(k) == OP_CLASS_ACTIVATION; }

/* The first input with one row per token, which every op of a run has. */
static value_id tokens_of(const op *o) { return o->in[op_rows_input(o->kind)]; }

/* The gradient that an op makes as a sum over rows: its output without rows, of those that are always there. NO_VALUE: none. */
static value_id row_sum_of(const op *o) {
    for (int k = 0; k < op_output_count(o->kind); k++)
        if (!op_output_has_rows(o->kind, k) && !op_output_optional(o->kind, k)) return o->out[k];
    return NO_VALUE;
}

static int64_t rows_of(const chunker *w, value_id v) { return w->p->values[v].shape.dim[0]; }

/* ---- which ops belong together --------------------------------------------------------------------------------------- */

/* Not generation: op.rows limits its steps, which are short. */
static bool is_cut(const op *o) { return (o->section == SECTION_MICRO || o->section == SECTION_EVAL) && !o->rows; }

/* b is of the run because a is; true where that is new. */
static bool spread(chunker *w, value_id a, value_id b) {
    if (!a || !b || !w->is_wide[a] || w->is_wide[b]) return false;
    return w->is_wide[b] = true;
}

/* What lies between a wide value and an adapter: only with it inside is the run whole, and the wide value its own. */
static bool spread_wide(chunker *w) {
    bool any = false;
    for (size_t i = 0; i < w->n_ops; i++) {
        const op *o = &w->ops[i];
        if (!is_cut(o)) continue;
        if (o->kind == OP_LORA_UP) any |= spread(w, o->out[LORA_UP_Y], o->in[LORA_UP_BASE]);
        if (o->kind == OP_LINEAR && o->attr.adapter) any |= spread(w, o->in[LINEAR_X], o->out[LINEAR_Y]);
        if (o->kind == OP_LORA_BWD) {
            any |= spread(w, o->in[LORA_BWD_DY], o->out[LORA_BWD_DXA]);
            any |= spread(w, o->in[LORA_BWD_XA], o->out[LORA_BWD_DXA]);
        }
        if (o->kind == OP_LINEAR_DX) {
            any |= spread(w, o->in[LINEAR_DX_DY], o->in[LINEAR_DX_ADD]);
            any |= spread(w, o->out[LINEAR_DX_DX], o->in[LINEAR_DX_ADD]);
        }
        if (o->kind == OP_DROPOUT) {
            any |= spread(w, o->in[DROPOUT_X], o->out[DROPOUT_Y]);
            any |= spread(w, o->out[DROPOUT_Y], o->in[DROPOUT_X]);
        }
    }
    return any;
}

static void find_wide(chunker *w) {
    for (size_t i = 0; i < w->n_ops; i++) {
        const op *o = &w->ops[i];
        for (int k = 0; k < op_input_count(o->kind); k++) w->n_uses[program_root(w->p, o->in[k], NULL)]++;
        for (int k = 0; k < op_output_count(o->kind); k++) w->n_uses[program_root(w->p, o->out[k], NULL)]++;
        if (!is_function(o->kind) || !is_cut(o) || rows_of(w, tokens_of(o)) <= w->options->choice.chunk_tokens)
            continue;
        for (int k = 0; k < op_input_count(o->kind); k++) w->is_wide[o->in[k]] = true;
        w->is_wide[op_main_value(o)] = true;
    }
    while (spread_wide(w)) {}
}

/* LORA_UP behind the function reads a wide small side but adds to narrow rows, so it stays outside. */
static bool is_inside(const chunker *w, const op *o) {
    if (!is_cut(o)) return false;
    if (o->kind == OP_LORA_UP) return w->is_wide[o->out[LORA_UP_Y]];
    for (int k = 0; k < op_input_count(o->kind); k++)
        if (op_input_has_rows(o->kind, k) && w->is_wide[o->in[k]]) return true;
    for (int k = 0; k < op_output_count(o->kind); k++)
        if (op_output_has_rows(o->kind, k) && w->is_wide[o->out[k]]) return true;
    return false;
}

static bool reads_any(const chunker *w, const op *o, const bool *of_root) {
    for (int k = 0; k < op_input_count(o->kind); k++)
        if (o->in[k] && of_root[program_root(w->p, o->in[k], NULL)]) return true;
    for (int k = 0; k < op_output_count(o->kind); k++)
        if (o->out[k] && op_reads_output(o, k) && of_root[program_root(w->p, o->out[k], NULL)]) return true;
    return false;
}

static void note_outputs(const chunker *w, const op *o, bool *of_root, bool is) {
    for (int k = 0; k < op_output_count(o->kind); k++)
        if (o->out[k]) of_root[program_root(w->p, o->out[k], NULL)] = is;
}

/* The run that begins with op `first`: returns its end and gives each of its ops a place. The run ends before an op that
 * needs a result of the whole run. */
static size_t find_run(chunker *w, size_t first) {
    size_t end = first, i = first;
    for (; i < w->n_ops; i++) {
        const op *o = &w->ops[i];
        if (o->section != w->ops[first].section || o->layer != w->ops[first].layer) break;
        if (is_inside(w, o)) {
            bool same_rows = rows_of(w, tokens_of(o)) == rows_of(w, tokens_of(&w->ops[first]));
            if (reads_any(w, o, w->is_made_later) || !same_rows) break;
            w->places[i] = PLACE_INSIDE;
            note_outputs(w, o, w->is_made, true);
            end = i + 1;
        } else if (reads_any(w, o, w->is_made) || reads_any(w, o, w->is_made_later)) {
            w->places[i] = PLACE_BEHIND;
            note_outputs(w, o, w->is_made_later, true);
        } else {
            w->places[i] = PLACE_BEFORE;
        }
    }
    for (size_t k = first; k < i; k++)
        note_outputs(w, &w->ops[k], w->is_made, false), note_outputs(w, &w->ops[k], w->is_made_later, false);
    return end;
}

/* ---- one chunk -------------------------------------------------------------------------------------------------------- */

typedef struct rows {
    int64_t first, n;
} rows;

/* A name that no other value has. */
static const char *chunk_name(const chunker *w, char out[256], const char *what, value_id of) {
    snprintf(out, 256, "%s.%zu.%.180s", what, w->p->n_values, w->p->values[of].name);
    return out;
}

/* Used only by this run, and written by it. */
static bool is_own(const chunker *w, value_id v) {
    const value *a = &w->p->values[v];
    return w->is_wide[v] && !a->persistent && !a->view_of && w->n_in_run[v] == w->n_uses[v];
}

static value_id in_rows(chunker *w, value_id v, rows r) {
    const value a = w->p->values[v];
    char name[256];
    if (w->own[v]) return w->own[v];
    shape s = a.shape;
    s.dim[0] = r.n;
    size_t row_bytes = value_bytes(&a) / (size_t)a.shape.dim[0];
    if (is_own(w, v)) w->own[v] = program_value(w->p, chunk_name(w, name, "chunk", v), a.type, s, a.role, a.section);
    else w->own[v] = program_view(w->p, chunk_name(w, name, "rows", v), v, (size_t)r.first * row_bytes, s);
    w->p->values[w->own[v]].layer = a.layer;
    return w->own[v];
}

/* Where the chunks of a gradient are summed: in the gradient itself where it is fp32 and nothing moves it after each
 * micro-batch. */
static value_id sum_of(chunker *w, const op *o, int64_t n_chunks) {
    value_id dw = row_sum_of(o);
    const value a = w->p->values[dw];
    char name[256];
    bool stays = !a.persistent ||
                 (w->options->choice.offload.grads == TIER_DEVICE && mesh_size(&w->options->mesh, AXIS_DATA) == 1);
    if (w->sums[dw]) return w->sums[dw];
    if (o->kind == OP_LINEAR_DW && a.type == DTYPE_F32 && stays) return w->sums[dw] = dw;
    shape s = o->kind == OP_BIAS_GRAD ? SHAPE(n_chunks, a.shape.dim[0]) : a.shape;
    w->sums[dw] = program_value(w->p, chunk_name(w, name, "sum", dw), DTYPE_F32, s, ROLE_WORK, o->section);
    w->p->values[w->sums[dw]].layer = o->layer;
    return w->sums[dw];
}

static value_id sum_like(chunker *w, const char *what, value_id of, value_id db) {
    const value a = w->p->values[of];
    char name[256];
    value_id v = program_value(w->p, chunk_name(w, name, what, db), a.type, a.shape, a.role, a.section);
    w->p->values[v].layer = a.layer;
    return v;
}

/* The gradient of an adapter's matrix is small: each chunk makes its own, and they are added one after the other. */
static void append_adapter_sum(chunker *w, op part, int64_t chunk, int64_t n_chunks) {
    value_id db = part.out[LORA_BWD_DB], before = sum_of(w, &part, n_chunks);
    value_id own = chunk > 0 ? sum_like(w, "part", before, db) : before;
    part.out[LORA_BWD_DB] = own;
    program_append(w->p, &part);
    if (chunk == 0) return;
    op add = {.kind = OP_ADD, .section = part.section, .layer = part.layer, .at = part.at};
    add.in[ADD_A] = before, add.in[ADD_B] = own;
    add.out[ADD_Y] = w->sums[db] = sum_like(w, "sum", before, db);
    program_append(w->p, &add);
}

static void append_row_sum(chunker *w, const op *o, rows r, int64_t chunk, int64_t n_chunks) {
    op part = *o;
    char name[256];
    part.in[op_rows_input(o->kind)] = in_rows(w, tokens_of(o), r);
    if (o->kind == OP_LORA_BWD) {
        part.in[LORA_BWD_XA] = in_rows(w, o->in[LORA_BWD_XA], r);
        part.out[LORA_BWD_DXA] = in_rows(w, o->out[LORA_BWD_DXA], r);
        append_adapter_sum(w, part, chunk, n_chunks);
        return;
    }
    value_id sum = sum_of(w, o, n_chunks);
    if (o->kind == OP_LINEAR_DW) {
        part.in[LINEAR_DW_X] = in_rows(w, o->in[LINEAR_DW_X], r);
        part.out[LINEAR_DW_DW] = sum;
        if (chunk > 0) part.kind = OP_LINEAR_DW_ADD;
    } else { /* one row of sums per chunk, summed at the end */
        int64_t n = w->p->values[o->out[BIAS_GRAD_DB]].shape.dim[0];
        size_t line = (size_t)n * sizeof(float);
        value_id own = program_view(w->p, chunk_name(w, name, "line", sum), sum, (size_t)chunk * line, SHAPE(n));
        part.out[BIAS_GRAD_DB] = own;
    }
    program_append(w->p, &part);
}

static void append_chunk(chunker *w, size_t first, size_t end, rows r, int64_t chunk, int64_t n_chunks) {
    for (size_t i = first; i < end; i++) {
        const op *o = &w->ops[i];
        if (w->places[i] != PLACE_INSIDE) continue;
        if (row_sum_of(o)) {
            append_row_sum(w, o, r, chunk, n_chunks);
            continue;
        }
        op part = *o;
        for (int k = 0; k < op_input_count(o->kind); k++)
            if (o->in[k] && op_input_has_rows(o->kind, k)) part.in[k] = in_rows(w, o->in[k], r);
        for (int k = 0; k < op_output_count(o->kind); k++)
            if (o->out[k] && op_output_has_rows(o->kind, k)) part.out[k] = in_rows(w, o->out[k], r);
        if (o->kind == OP_DROPOUT) part.attr.first_element += r.first * w->p->values[o->in[DROPOUT_X]].shape.dim[1];
        program_append(w->p, &part);
    }
    for (size_t i = first; i < end; i++) {
        for (int k = 0; k < op_input_count(w->ops[i].kind); k++) w->own[w->ops[i].in[k]] = NO_VALUE;
        for (int k = 0; k < op_output_count(w->ops[i].kind); k++) w->own[w->ops[i].out[k]] = NO_VALUE;
    }
}

/* The finished sums, in the type of the gradient. */
static void append_finish(chunker *w, const op *o) {
    value_id dw = row_sum_of(o), sum = w->sums[dw];
    w->sums[dw] = NO_VALUE;
    if (sum == dw) return;
    op finish = {.section = o->section, .layer = o->layer, .at = o->at, .attr = o->attr};
    bool rounds = w->p->values[dw].type != DTYPE_F32;
    finish.kind = o->kind == OP_BIAS_GRAD ? OP_BIAS_GRAD : rounds ? OP_CAST : OP_COPY;
    SAME_PLACE(BIAS_GRAD_DY, CAST_X);
    SAME_PLACE(CAST_X, COPY_X);
    SAME_PLACE(BIAS_GRAD_DB, CAST_Y);
    SAME_PLACE(CAST_Y, COPY_Y);
    finish.in[BIAS_GRAD_DY] = sum;
    finish.out[BIAS_GRAD_DB] = dw;
    program_append(w->p, &finish);
}

static void count_in_run(chunker *w, size_t first, size_t end, bool count) {
    for (size_t i = first; i < end; i++) {
        const op *o = &w->ops[i];
        if (w->places[i] != PLACE_INSIDE) continue;
        for (int k = 0; k < op_input_count(o->kind); k++) w->n_in_run[o->in[k]] = count ? w->n_in_run[o->in[k]] + 1 : 0;
        for (int k = 0; k < op_output_count(o->kind); k++)
            w->n_in_run[o->out[k]] = count ? w->n_in_run[o->out[k]] + 1 : 0;
    }
}

static void append_run(chunker *w, size_t first, size_t end) {
    int64_t N = rows_of(w, tokens_of(&w->ops[first])), step = w->options->choice.chunk_tokens,
            n_chunks = divide_up(N, step);
    for (size_t i = first; i < end; i++)
        if (w->places[i] == PLACE_BEFORE) program_append(w->p, &w->ops[i]);
    count_in_run(w, first, end, true);
    for (int64_t k = 0; k < n_chunks; k++)
        append_chunk(w, first, end, (rows){k * step, MIN(step, N - k * step)}, k, n_chunks);
    count_in_run(w, first, end, false);
    for (size_t i = first; i < end; i++)
        if (w->places[i] == PLACE_INSIDE && row_sum_of(&w->ops[i])) append_finish(w, &w->ops[i]);
    for (size_t i = first; i < end; i++)
        if (w->places[i] == PLACE_BEHIND) program_append(w->p, &w->ops[i]);
}

/* With 256 chunks the wide values are small beside what a block keeps of every token; smaller chunks only add ops, and the
 * layout of a program of millions of ops would take too long. */
static status check_count(const program *p, int64_t step) {
    for (size_t i = 0; i < p->n_ops; i++) {
        const op *o = &p->ops[i];
        if (!is_function(o->kind) || !is_cut(o)) continue;
        int64_t N = p->values[tokens_of(o)].shape.dim[0];
        if (divide_up(N, step) <= MLP_CHUNKS_MOST) continue;
        return ERR(ERR_INPUT,
                   "memory.chunk_tokens: found %lld, expected at least %lld for micro-batches of %lld tokens, or 0: an "
                   "MLP has at most %d chunks",
                   (long long)step, (long long)chunk_rows(divide_up(N, MLP_CHUNKS_MOST)), (long long)N,
                   MLP_CHUNKS_MOST);
    }
    return OK;
}

status pass_chunk(program *p, const pass_options *options, step_interface *step) {
    const step_choice *c = &options->choice;
    if (c->chunk_tokens == 0) return OK;
    if (c->chunk_tokens % CHUNK_UNIT)
        return ERR(ERR_BUG, "chunk: %lld tokens are no multiple of %d", (long long)c->chunk_tokens, CHUNK_UNIT);
    if (precision_fp8(c->precision))
        return ERR(ERR_INPUT,
                   "memory.chunk_tokens: found %lld with precision %s, expected 0: the scale of 8-bit numbers is of "
                   "all tokens; "
                   "set memory.chunk_tokens=0 or precision=%s",
                   (long long)c->chunk_tokens, precision_name(c->precision),
                   precision_master(c->precision) ? "bf16" : "bf16_sr");
    TRY(check_count(p, c->chunk_tokens));
    chunker w = {.p = p, .options = options, .n_values = p->n_values};
    w.ops = program_take_ops(p, &w.n_ops);
    bool **flags[] = {&w.is_wide, &w.is_made, &w.is_made_later};
    for (size_t i = 0; i < ARRAY_LENGTH(flags); i++) *flags[i] = mem_alloc(w.n_values * sizeof(bool));
    w.n_uses = mem_alloc(w.n_values * sizeof *w.n_uses);
    w.n_in_run = mem_alloc(w.n_values * sizeof *w.n_in_run);
    w.own = mem_alloc(w.n_values * sizeof *w.own);
    w.sums = mem_alloc(w.n_values * sizeof *w.sums);
    w.places = mem_alloc((w.n_ops + 1) * sizeof *w.places);
    find_wide(&w);
    for (size_t i = 0; i < w.n_ops;) {
        if (!is_inside(&w, &w.ops[i])) {
            program_append(p, &w.ops[i++]);
            continue;
        }
        size_t end = find_run(&w, i);
        append_run(&w, i, end);
        i = end;
    }
    for (size_t i = 0; i < ARRAY_LENGTH(flags); i++) free(*flags[i]);
    free(w.n_uses);
    free(w.n_in_run);
    free(w.own);
    free(w.sums);
    free(w.places);
    free(w.ops);
    return OK;
}
