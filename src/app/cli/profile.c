/* profile.c - the memory of a step as micro-batches grow.
 *
 * More rows never need fewer bytes, so the largest micro-batch is found by doubling and bisection, as the longest sequence is: for
 * each size it asks whether a strategy fits, of those that the settings leave open. The rows of a step are what the optimizer sees;
 * accumulation keeps them when the micro-batch changes, so the size to take is the largest that fits and divides them. */
#include "cli/profile.h"

enum { MOST = 65536, TOKENS_MOST = 1 << 28 }; /* of train.micro_batch; of one micro-batch */

/* A request with micro-batches of this size, and as many as keep the rows of a step, at least one. */
static status request_with(command_line *l, longest_request request, int64_t micro_batch, int64_t step_rows,
                           train_request *r, hardware *machine) {
    l->config.train.batch = 0;
    l->config.train.micro_batch = micro_batch;
    l->config.train.accumulation = MAX(step_rows / micro_batch, (int64_t)1);
    return request(l, r, machine);
}

static status ask(command_line *l, longest_request request, int64_t micro_batch, profile *out) {
    train_request r;
    hardware machine;
    bool fits;
    uint64_t planned;
    TRY(request_with(l, request, micro_batch, out->step_rows, &r, &machine));
    r.plan.hardware = NULL;
    if (plan_is_open(&r.plan)) TRY(plan_can_fit(&r.plan, &fits));
    else fits = plan_variant_fits(&r.plan, &planned);
    if (fits) out->largest = micro_batch;
    else out->too_large = micro_batch;
    return OK;
}

static status search(command_line *l, longest_request request, int64_t most, profile *out) {
    for (int64_t next = 1; !out->too_large && out->largest < most;) {
        TRY(ask(l, request, next, out));
        next = MIN(next * 2, most);
    }
    while (out->too_large - out->largest > 1 && out->largest)
        TRY(ask(l, request, (out->largest + out->too_large) / 2, out));
    return OK;
}

static status add_row(command_line *l, longest_request request, int64_t micro_batch, profile *out) {
    train_request r;
    hardware machine;
    plan p;
    for (int i = 0; i < out->n_rows; i++)
        if (out->rows[i].micro_batch == micro_batch) return OK;
    TRY(request_with(l, request, micro_batch, out->step_rows, &r, &machine));
    r.plan.hardware = &machine;
    r.plan.shorten = true;
    TRY(plan_choose(&p, &r.plan));
    profile_row *row = &out->rows[out->n_rows++];
    *row = (profile_row){.micro_batch = micro_batch,
                         .accumulation = p.request.choice.accumulation,
                         .planned = p.planned[TIER_DEVICE],
                         .gap_bytes = p.gap_bytes,
                         .fits = plan_fits(&p),
                         .memory = plan_memory_json(&p)};
    memcpy(row->by_role, p.by_role, sizeof row->by_role);
    plan_close(&p);
    return OK;
}

status profile_find(command_line *l, longest_request request, profile *out) {
    train_request r;
    hardware machine;
    *out = (profile){0};
    if (l->config.task == TASK_RLOO)
        return ERR(ERR_INPUT, "plan: --profile counts the rows of a step, and train.task rloo has completions; set "
                              "train.micro_batch and rl.prompts yourself");
    TRY(request(l, &r, &machine));
    out->limit = r.plan.device_limit;
    out->step_rows = r.plan.choice.micro_batch * r.plan.choice.accumulation;
    out->n_ranks = mesh_size(&r.plan.mesh, AXIS_DATA);
    TRY(search(l, request, MAX(MIN((int64_t)MOST, (int64_t)TOKENS_MOST / r.plan.seq_len), (int64_t)1), out));
    for (int64_t m = MIN(out->largest, out->step_rows); m > 0 && !out->micro_batch; m--)
        if (out->step_rows % m == 0) out->micro_batch = m;
    TRY(add_row(l, request, 1, out));
    if (out->micro_batch) TRY(add_row(l, request, out->micro_batch, out));
    if (out->largest) TRY(add_row(l, request, out->largest, out));
    l->config.train.micro_batch = MAX(out->micro_batch, (int64_t)1);
    l->config.train.accumulation = out->step_rows / l->config.train.micro_batch;
    return OK;
}

void profile_print(const profile *p, FILE *out) {
    static const role shown[] = {ROLE_PARAM, ROLE_GRAD, ROLE_STATE, ROLE_ACTIVATION, ROLE_WORK};
    char a[32], b[32];
    fprintf(out, "profile   device memory at the peak, by micro-batch; limit %s, %lld rows per step%s\n",
            str_format_bytes(a, p->limit), (long long)p->step_rows, p->n_ranks > 1 ? " on each data rank" : "");
    fprintf(out, "    %11s %12s %11s", "micro-batch", "accumulation", "peak");
    for (size_t i = 0; i < ARRAY_LENGTH(shown); i++) fprintf(out, " %11s", role_name(shown[i]));
    fprintf(out, " %11s\n", "other");
    for (int k = 0; k < p->n_rows; k++) {
        const profile_row *r = &p->rows[k];
        uint64_t other = r->planned;
        fprintf(out, "    %11lld %12lld %11s", (long long)r->micro_batch, (long long)r->accumulation,
                str_format_bytes(a, r->planned));
        for (size_t i = 0; i < ARRAY_LENGTH(shown); i++) {
            fprintf(out, " %11s", str_format_bytes(b, r->by_role[shown[i]]));
            other -= r->by_role[shown[i]];
        }
        fprintf(out, " %11s%s\n", str_format_bytes(b, other), r->fits ? "" : "  does not fit");
    }
    if (!p->largest) {
        fprintf(out, "largest   none: a micro-batch of one row does not fit\n");
        return;
    }
    fprintf(out, "largest   train.micro_batch=%lld fits", (long long)p->largest);
    if (p->too_large) fprintf(out, ", %lld does not", (long long)p->too_large);
    fprintf(out, "\nkeep      train.micro_batch=%lld and train.accumulation=%lld: %lld rows per step, as before\n",
            (long long)p->micro_batch, (long long)(p->step_rows / p->micro_batch), (long long)p->step_rows);
}

json_t *profile_json(const profile *p) {
    json_t *rows = json_array();
    for (int k = 0; k < p->n_rows; k++)
        json_array_append_new(rows, json_pack("{s:I, s:I, s:b, s:O}", "micro_batch", (json_int_t)p->rows[k].micro_batch,
                                              "accumulation", (json_int_t)p->rows[k].accumulation, "fits",
                                              p->rows[k].fits, "memory", p->rows[k].memory));
    return json_pack("{s:I, s:I, s:I, s:o, s:I, s:I, s:o}", "limit", (json_int_t)p->limit, "step_rows",
                     (json_int_t)p->step_rows, "largest", (json_int_t)p->largest, "too_large",
                     p->too_large ? json_integer((json_int_t)p->too_large) : json_null(), "micro_batch",
                     (json_int_t)p->micro_batch, "accumulation",
                     (json_int_t)(p->micro_batch ? p->step_rows / p->micro_batch : 0), "rows", rows);
}

void profile_fini(profile *p) {
    for (int k = 0; k < p->n_rows; k++) json_decref(p->rows[k].memory);
    *p = (profile){0};
}
