/* train_report.c - the first line that `ralo train` prints before a run, and its summary and JSON object after. */
#include "cli/train_report.h"
#include "cli/output.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *plural(uint64_t n) { return n == 1 ? "" : "s"; }

void train_report_answer(job *j) {
    data_survey survey;
    dataset_survey(j->data, &survey);
    if (!j->request.resume) plan_find_faster(&j->plan); /* a run that goes on keeps its precision */
    plan_outlook o = plan_outlook_of(&j->request, &j->plan, &survey);
    plan_print_answer(&j->plan, &o, stderr);
}

/* ---- in words -------------------------------------------------------------------------------------------------------- */

/* ratio: measured over predicted time. */
static const char *compare_to_predicted(char out[48], double ratio) {
    enum { CLOSE_PERCENT = 5 };
    if (100 * fabs(ratio - 1) <= CLOSE_PERCENT) return "as predicted";
    if (100 * fabs(ratio - 2) <= CLOSE_PERCENT) return "twice as long as predicted";
    double times = ratio < 1 ? 1 / ratio : ratio;
    snprintf(out, 48, "%.*f times as %s as predicted", times < 1.1 ? 2 : 1, times, ratio < 1 ? "fast" : "long");
    return out;
}

/* Four digits, and never as 1.629e+04. */
static const char *format_ms(char out[32], double ms) {
    snprintf(out, 32, ms < 1e4 ? "%.4g ms" : "%.0f ms", ms);
    return out;
}

/* With memory.place: the arenas of the other devices, the host's among them. */
static void print_other_devices(const plan *p, const train_result *t) {
    char a[32], b[32];
    if (!plan_is_placed(&p->request)) return;
    for (tier k = TIER_HOST; k < TIER_COUNT; k++)
        if (p->program.arena_bytes[k])
            fprintf(stderr, "          %s %s planned, %s used\n", tier_name(k),
                    str_format_bytes(a, p->program.arena_bytes[k]), str_format_bytes(b, t->memory.peak[k]));
}

void train_report_summary(const plan *p, const dataset *d, const train_result *t, const char *run_dir) {
    char a[32], b[32], c[32], comparison[48];
    double epochs = train_epochs(d, p, t->steps);
    fprintf(stderr, "done      %lld step%s", (long long)t->steps, plural((uint64_t)t->steps));
    if (epochs > 0) fprintf(stderr, " (%.1f epochs)", epochs);
    fprintf(stderr, ", %s tokens", str_format_count(a, (double)t->tokens));
    if (t->tokens_per_second > 0) fprintf(stderr, ", %s tokens/s", str_format_count(b, t->tokens_per_second));
    fprintf(stderr, ", loss %.4f -> %.4f\n", t->first_loss, t->last_loss);
    fprintf(stderr, "memory    device %s planned, %s used; process peak %s\n",
            str_format_bytes(a, p->planned[TIER_DEVICE]), str_format_bytes(b, t->memory.peak[TIER_DEVICE]),
            str_format_bytes(c, t->rss_peak));
    print_other_devices(p, t);
    if (t->gpu_in_use) {
        uint64_t expected = p->planned[TIER_DEVICE] + t->gpu_context;
        fprintf(
            stderr,
            "driver    %s in use: %s planned and %s for context, libraries, graphs and other programs on the GPU, a "
            "difference of %.2f %%\n",
            str_format_bytes(a, t->gpu_in_use), str_format_bytes(b, p->planned[TIER_DEVICE]),
            str_format_bytes(c, t->gpu_context), 100 * fabs((double)t->gpu_in_use / (double)expected - 1));
    }
    bool is_comparable = p->request.hardware && !p->cost.missing && t->step_ms > 0;
    if (is_comparable && p->request.rollout)
        fprintf(stderr, "time      a step took %s with generation and rewards; %s was predicted for its update on %s\n",
                format_ms(a, t->step_ms), format_ms(b, 1e3 * p->cost.step_s), p->request.hardware->name);
    else if (is_comparable)
        fprintf(stderr, "time      a step took %s, %s (%s) for %s\n", format_ms(a, t->step_ms),
                compare_to_predicted(comparison, t->step_ms / (1e3 * p->cost.step_s)),
                format_ms(b, 1e3 * p->cost.step_s), p->request.hardware->name);
    char contention[128];
    if (*sys_contention_text(contention, &t->contention))
        fprintf(stderr, "cores     %s; a quiet machine is faster\n", contention);
    if (mesh_size(&p->request.mesh, AXIS_PIPELINE) > 1 && isfinite(t->idle))
        fprintf(stderr, "pipeline  this stage waited %.1f %% of forward and backward, %.1f planned\n", 100 * t->idle,
                100 * plan_bubble(&p->request));
    if (*t->best.metric)
        fprintf(stderr, "best      %s/best  (step %lld, %s %.6g)\n", run_dir, (long long)t->best.step, t->best.metric,
                t->best.value);
    fprintf(stderr, "%s%s  (%sparam_hash %016llx)\n", t->saved ? "saved     " : "run       ", run_dir,
            t->saved ? "" : "last step not saved; ", (unsigned long long)t->param_hash);
}

/* Seconds that the plan predicts for ops of a kind in a step; NAN where it predicts nothing. */
static double predicted_seconds(const plan *p, op_kind k) {
    return p->request.hardware && !p->cost.missing ? p->cost.kinds[k].seconds : NAN;
}

/* Time of each kind of op, longest first, beside the prediction. */
void train_report_breakdown(const plan *p, const train_result *t) {
    double sum = 0, longest;
    bool shown[OP_COUNT] = {0};
    for (op_kind k = 0; k < OP_COUNT; k++) sum += t->step_seconds[k];
    fprintf(stderr, "time      %.4g ms of a step in ops, without overlap: measured, share, predicted\n", 1e3 * sum);
    do {
        op_kind best = 0;
        longest = 0;
        for (op_kind k = 0; k < OP_COUNT; k++)
            if (!shown[k] && t->step_seconds[k] > longest) longest = t->step_seconds[best = k];
        shown[best] = true;
        if (longest <= 0) break;
        fprintf(stderr, "    %-20s %10.3f ms  %5.1f %%", op_name(best), 1e3 * longest, 100 * longest / sum);
        double predicted = predicted_seconds(p, best);
        if (isfinite(predicted) && predicted > 0)
            fprintf(stderr, "  %10.3f ms predicted, took %.2f times that", 1e3 * predicted, longest / predicted);
        fputc('\n', stderr);
    } while (longest > 0);
}

/* ---- memory of all ranks --------------------------------------------------------------------------------------------- */

status train_report_gather(comm *ranks, const plan *p, const train_result *t, rank_memory **all) {
    rank_memory mine = {.n_allocations = t->memory.n_allocations,
                        .idle = t->idle,
                        .gpu_context = t->gpu_context,
                        .gpu_in_use = t->gpu_in_use};
    memcpy(mine.planned, t->memory.planned, sizeof mine.planned);
    memcpy(mine.peak, t->memory.peak, sizeof mine.peak);
    memcpy(mine.by_role, p->by_role, sizeof mine.by_role);
    *all = mem_alloc((size_t)(ranks ? comm_size(ranks) : 1) * sizeof **all);
    **all = mine;
    if (!ranks) return OK;
    status rc = comm_all_gather_bytes(ranks, &mine, sizeof mine, *all);
    if (rc != OK) free(*all), *all = NULL;
    return rc;
}

/* ---- as JSON --------------------------------------------------------------------------------------------------------- */

static json_t *breakdown_json(const plan *p, const train_result *t) {
    json_t *kinds = json_object();
    for (op_kind k = 0; k < OP_COUNT; k++)
        if (t->step_seconds[k] > 0)
            json_object_set_new(kinds, op_name(k),
                                json_pack("{s:f, s:o}", "ms", 1e3 * t->step_seconds[k], "predicted_ms",
                                          json_real_or_null(1e3 * predicted_seconds(p, k))));
    return kinds;
}

static json_t *ranks_json(const rank_memory *all, int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        json_t *one = json_object(), *roles = json_object();
        for (tier t = 0; t < TIER_COUNT; t++)
            if (t <= TIER_NVME || all[i].planned[t])
                json_object_set_new(one, tier_name(t),
                                    json_pack("{s:I, s:I}", "planned", (json_int_t)all[i].planned[t], "peak",
                                              (json_int_t)all[i].peak[t]));
        for (role k = 0; k < ROLE_COUNT; k++)
            json_object_set_new(roles, role_name(k), json_integer((json_int_t)all[i].by_role[k]));
        json_object_set_new(one, "by_role", roles);
        json_object_set_new(one, "allocations_in_steps", json_integer((json_int_t)all[i].n_allocations));
        json_object_set_new(one, "idle", json_real_or_null(all[i].idle));
        if (all[i].gpu_in_use) {
            json_object_set_new(one, "gpu_context", json_integer((json_int_t)all[i].gpu_context));
            json_object_set_new(one, "gpu_in_use", json_integer((json_int_t)all[i].gpu_in_use));
        }
        json_array_append_new(list, one);
    }
    return list;
}

static json_t *best_json(const checkpoint_best *b, const char *run_dir) {
    strbuf path;
    strbuf_init(&path);
    strbuf_printf(&path, "%s/best", run_dir);
    json_t *out = json_pack("{s:o, s:I, s:s, s:f}", "run", json_name(path.text), "step", (json_int_t)b->step, "metric",
                            b->metric, "value", b->value);
    strbuf_fini(&path);
    return out;
}

void train_report_json(const command_line *l, const plan *p, const train_request *r, const train_result *t,
                       const char *run_dir, const rank_memory *all) {
    int n_ranks = mesh_world(&p->request.mesh);
    json_t *root = json_object(), *memory = plan_memory_json(p);
    json_object_set_new(root, "run", json_name(run_dir));
    if (r->export_dir) json_object_set_new(root, "export", json_name(r->export_dir));
    if (*t->best.metric) json_object_set_new(root, "best", best_json(&t->best, run_dir));
    json_object_set_new(root, "steps", json_integer(t->steps));
    json_object_set_new(
        root, "loss",
        json_pack("{s:o, s:o}", "first", json_real_or_null(t->first_loss), "last", json_real_or_null(t->last_loss)));
    json_object_set_new(root, "tokens", json_integer((json_int_t)t->tokens));
    json_object_set_new(root, "tokens_per_second", json_real_or_null(t->tokens_per_second));
    json_object_set_new(root, "step_ms", json_real_or_null(t->step_ms));
    json_object_set_new(root, "predicted_step_ms", json_real_or_null(1e3 * p->cost.step_s));
    json_object_set_new(root, "cores",
                        json_pack("{s:f, s:f}", "others", t->contention.others, "stolen", t->contention.stolen));
    json_object_set_new(root, "eval",
                        json_pack("{s:o, s:o}", "loss", json_real_or_null(t->eval.loss), "exact_match",
                                  json_real_or_null(t->eval.exact_match)));
    json_object_set_new(root, "strategy", plan_strategy_json(p));
    char hash[17];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)t->param_hash);
    json_object_set_new(root, "param_hash", json_string(hash));
    json_object_set_new(root, "world", json_integer(n_ranks));
    if (n_ranks > 1) {
        json_object_set_new(root, "ranks", ranks_json(all, n_ranks));
        json_object_set_new(root, "sent_per_step", json_integer((json_int_t)p->sent_per_step));
        json_object_set_new(root, "volume_params", json_real(plan_volume(p)));
    }
    uint64_t peaks[TIER_COUNT] = {t->memory.peak[TIER_DEVICE], t->memory.peak[TIER_HOST] + t->host_peak,
                                  t->memory.peak[TIER_NVME]};
    for (tier i = TIER_DEVICE_1; i < TIER_COUNT; i++) peaks[i] = t->memory.peak[i];
    for (tier i = 0; i < TIER_COUNT; i++)
        if (json_object_get(memory, tier_name(i)))
            json_object_set_new(json_object_get(memory, tier_name(i)), "peak", json_integer((json_int_t)peaks[i]));
    json_object_set_new(memory, "rss_peak", json_integer((json_int_t)t->rss_peak));
    if (t->gpu_in_use) {
        json_object_set_new(memory, "gpu_context", json_integer((json_int_t)t->gpu_context));
        json_object_set_new(memory, "gpu_in_use", json_integer((json_int_t)t->gpu_in_use));
    }
    json_object_set_new(memory, "allocations_in_steps", json_integer((json_int_t)t->memory.n_allocations));
    json_object_set_new(root, "memory", memory);
    if (l->config.run.breakdown) json_object_set_new(root, "breakdown", breakdown_json(p, t));
    if (foreign_was_read(&l->foreign)) json_object_set_new(root, "translated", foreign_json(&l->foreign, &l->config));
    json_print(root, "train", 9);
}
