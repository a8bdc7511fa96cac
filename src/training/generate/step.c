/* step.c - the inputs of one run of PREFILL or DECODE, and its logits.
 *
 * Rows that hold nothing get token 0 at position 0 of no slot: the row count keeps the CPU kernels away from them, and for
 * a backend that computes them all the same they store nothing and see nothing. */
#include "generate/state.h"

static const generation_section *section_of(const generator *g) {
    return g->where == SECTION_PREFILL ? &g->plan->net.prefill : &g->plan->net.decode;
}

static int64_t length_of(const generator *g, value_id v) { return program_get(&g->plan->program, v)->shape.dim[0]; }

static void *input_at(const generator *g, value_id v) {
    return v ? g->inputs + program_get(&g->plan->program, v)->view_offset : NULL;
}

void step_begin(generator *g, section where) {
    g->where = where;
    g->n_tokens = g->n_pick = 0;
    const generation_section *s = section_of(g);
    g->tokens = input_at(g, s->tokens), g->doc_start = input_at(g, s->doc_start), g->slots = input_at(g, s->slots);
    g->pick = input_at(g, s->pick), g->draws = input_at(g, s->draws);
}

int64_t step_room(const generator *g) { return length_of(g, section_of(g)->tokens) - g->n_tokens; }

int64_t step_pick_room(const generator *g) { return length_of(g, section_of(g)->logits) - g->n_pick; }

void step_add(generator *g, int32_t token, int64_t slot, int64_t position) {
    ASSERT(step_room(g) > 0);
    g->tokens[g->n_tokens] = token;
    g->slots[g->n_tokens] = (int32_t)slot;
    g->doc_start[g->n_tokens++] = (int32_t)-position;
}

void step_pick(generator *g, int64_t n_heads, double uniform, double temperature) {
    const generation_section *s = section_of(g);
    ASSERT(step_pick_room(g) >= n_heads && g->n_tokens > 0);
    /* Without a list of picks the rows are the tokens themselves. */
    ASSERT(s->pick || (n_heads == 1 && g->n_pick == g->n_tokens - 1));
    for (int64_t k = 0; k < n_heads; k++, g->n_pick++) {
        if (s->pick) g->pick[g->n_pick] = (int32_t)(k * length_of(g, s->tokens) + g->n_tokens - 1);
        g->draws[g->n_pick][DRAW_UNIFORM] = k ? 0 : uniform;
        g->draws[g->n_pick][DRAW_TEMPERATURE] = k ? 0 : temperature;
    }
}

status step_run(generator *g, bool with_logits) {
    const generation_section *s = section_of(g);
    int64_t n = length_of(g, s->tokens);
    for (int64_t i = g->n_tokens; i < n; i++) g->tokens[i] = g->doc_start[i] = 0, g->slots[i] = -1;
    *(int32_t *)input_at(g, s->n_tokens) = (int32_t)g->n_tokens;
    for (int64_t i = g->n_pick; i < length_of(g, s->draws); i++) {
        if (s->pick) g->pick[i] = 0;
        g->draws[i][DRAW_UNIFORM] = g->draws[i][DRAW_TEMPERATURE] = 0;
    }
    if (s->pick) *(int32_t *)input_at(g, s->n_pick) = (int32_t)g->n_pick;
    exec_write(g->e, s->inputs, 0, g->inputs, (size_t)length_of(g, s->inputs));
    TRY(exec_run(g->e, g->where));
    size_t n_rows = (size_t)g->n_pick, row_bytes = (size_t)model_of(&g->plan->net.source)->vocab * sizeof(float);
    exec_read(g->e, s->drawn, 0, g->drawn, n_rows * sizeof *g->drawn);
    if (with_logits) exec_read(g->e, s->logits, 0, g->logits, n_rows * row_bytes);
    return exec_check(g->e);
}

const float *step_logits(const generator *g, int64_t row) {
    ASSERT(row < g->n_pick);
    return g->logits + row * model_of(&g->plan->net.source)->vocab;
}

void step_set_pages(generator *g, int64_t slot, const int32_t *pages, size_t n) {
    int64_t most = program_get(&g->plan->program, g->plan->net.page_table)->shape.dim[1];
    ASSERT((int64_t)n <= most);
    for (int64_t i = 0; i < most; i++) g->page_row[i] = i < (int64_t)n ? pages[i] : 0;
    exec_write(g->e, g->plan->net.page_table, (size_t)(slot * most) * sizeof *pages, g->page_row,
               (size_t)most * sizeof *pages);
}
