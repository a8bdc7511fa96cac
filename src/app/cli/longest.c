/* longest.c - the longest sequence that fits, by bisection.
 *
 * For each length it asks whether any strategy fits, not which is fastest, so one answer takes a few compiles. If the
 * settings leave nothing open there is one strategy. More tokens never need fewer bytes, so the search can bisect
 * between a length that fits and one that does not; it ends within 1/64 of the answer, about as exactly as free memory
 * is known.
 *
 * A micro-batch that was not given is one row: the fewer rows, the longer they may be. A step keeps its rows.
 *
 * Rope has no last position, so lengths beyond model.max_positions are answered too, and reported as such. Learned
 * positions end with their table. */
#include "cli/longest.h"

enum { SHORTEST = 2, UNIT = 1024, LONGEST = 1 << 24, GROWTH = 8, PART = 64 };

/* Stores the answer in out. */
static status ask(command_line *l, longest_request request, int64_t tokens, longest_row *out) {
    train_request r;
    hardware machine;
    bool fits;
    uint64_t planned;
    l->config.data.seq_len = tokens;
    TRY(request(l, &r, &machine));
    model_config m = *model_of(&r.plan.source);
    m.max_positions = MAX(m.max_positions, tokens);
    r.plan.source = net_source_of(&m);
    r.plan.hardware = NULL;
    if (plan_is_open(&r.plan)) TRY(plan_can_fit(&r.plan, &fits));
    else fits = plan_variant_fits(&r.plan, &planned);
    if (fits) out->fits = tokens;
    else out->too_long = tokens;
    return OK;
}

status longest_find(command_line *l, longest_request request, longest_row *out) {
    train_request r;
    hardware machine;
    train_options *t = &l->config.train;
    TRY(request(l, &r, &machine));
    bool is_given = config_was_given(&l->config, "train.micro_batch") && t->micro_batch >= 0;
    if (!is_given && l->config.task != TASK_RLOO) {
        t->batch = r.plan.choice.micro_batch * r.plan.choice.accumulation;
        t->micro_batch = 1;
        t->accumulation = 0;
        TRY(request(l, &r, &machine));
    }
    const model_config *m = model_of(&r.plan.source);
    *out =
        (longest_row){.positions = m->max_positions, .micro_batch = r.plan.choice.micro_batch, .is_one_row = !is_given};
    int64_t most = model_family_traits(m->family)->learned_positions ? m->max_positions : LONGEST;
    if (most < SHORTEST)
        return ERR(ERR_INPUT, "model.max_positions: found %lld, expected at least %d, the shortest sequence",
                   (long long)most, SHORTEST);
    most = MIN(most, (int64_t)(1 << 28) / r.plan.choice.micro_batch); /* what one micro-batch may have */
    if (r.plan.choice.chunk_tokens) /* fewer tokens than one row: the plan reports that */
        most =
            MAX(MIN(most, MLP_CHUNKS_MOST * r.plan.choice.chunk_tokens / r.plan.choice.micro_batch), (int64_t)SHORTEST);
    int64_t next = MIN((int64_t)UNIT, most);
    TRY(ask(l, request, next, out));
    while (!out->too_long && next < most) {
        next = MIN(next * GROWTH, most);
        TRY(ask(l, request, next, out));
    }
    while (!out->fits && next > SHORTEST) {
        next = MAX(next / GROWTH, (int64_t)SHORTEST);
        TRY(ask(l, request, next, out));
    }
    while (out->fits && out->too_long) {
        int64_t unit = out->fits < UNIT ? SHORTEST : UNIT, step = MAX(out->fits / PART / unit * unit, unit);
        next = (out->fits + out->too_long) / 2 / step * step;
        if (next <= out->fits) break;
        TRY(ask(l, request, next, out));
    }
    l->config.data.seq_len = out->fits ? out->fits : next;
    l->config.model.max_positions = MAX(out->positions, l->config.data.seq_len);
    return OK;
}

void longest_print(const longest_row *row, FILE *out) {
    if (!row->fits) {
        fprintf(out, "longest   none: %lld tokens do not fit\n", (long long)row->too_long);
        return;
    }
    fprintf(out, "longest   data.seq_len=%lld fits", (long long)row->fits);
    if (row->too_long) fprintf(out, ", %lld does not", (long long)row->too_long);
    fprintf(out, ", with micro-batches of %lld row%s%s", (long long)row->micro_batch, row->micro_batch == 1 ? "" : "s",
            row->is_one_row ? ", as train.micro_batch is not given" : "");
    if (!row->too_long && row->fits == row->positions) fputs("; the model has no more positions", out);
    if (row->fits > row->positions)
        fprintf(out, "; the model was made for %lld positions: set model.max_positions=%lld", (long long)row->positions,
                (long long)row->fits);
    fputc('\n', out);
}

json_t *longest_json(const longest_row *row) {
    return json_pack("{s:I, s:o, s:I}", "seq_len", (json_int_t)row->fits, "too_long",
                     row->too_long ? json_integer((json_int_t)row->too_long) : json_null(), "positions",
                     (json_int_t)row->positions);
}
