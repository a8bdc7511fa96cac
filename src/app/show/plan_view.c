/* plan_view.c - what `ralo plan` and ralo_plan show of one plan: the plan, disk space, levels of recompute, pipeline
 * stages. */
#include "show/show.h"

#include <stdlib.h>

/* 0: rows are counted. */
static double prompts_per_step(const train_request *r, const plan *p) {
    return p->request.policy.on ? (double)r->train.rl.prompts / (double)r->train.rl.updates : 0;
}

status plan_view_init(plan_view *v, const train_request *r, const plan *p) {
    *v = (plan_view){.plan = p, .disk = train_disk_of(r, p), .frozen = r->frozen, .survey = r->survey};
    strbuf_init(&v->explanation);
    plan_explain(p, &v->explanation);
    v->prompts_per_step = prompts_per_step(r, p);
    if (r->frozen.dir) TRY(frozen_plan_bytes(r, p, v->frozen_planned));
    TRY(plan_rungs(p, v->rungs));
    if (mesh_size(&p->request.mesh, AXIS_PIPELINE) > 1) TRY(plan_stages(p, &v->stages));
    return OK;
}

void plan_view_fini(plan_view *v) {
    free(v->stages);
    v->stages = NULL;
    strbuf_fini(&v->explanation);
}

status plan_view_check(const plan_view *v) {
    TRY(plan_check_explained(v->plan, v->explanation.text));
    return v->stages ? plan_check_stages(v->plan, v->stages) : OK;
}

static void print_frozen(const plan_view *v, FILE *out) {
    char a[32], b[32];
    if (!v->frozen.dir) return;
    fprintf(
        out,
        "first     %s %s: one forward pass over the rows of the run takes %s on the device and %s on the host; it is "
        "closed before training is opened, so the larger of the two counts, not their sum\n",
        v->frozen.key, v->frozen.dir, str_format_bytes(a, v->frozen_planned[TIER_DEVICE]),
        str_format_bytes(b, v->frozen_planned[TIER_HOST]));
}

/* How often the run sees its data: of rollouts prompts are counted, else rows. */
static double epochs_of(const plan *p, const data_survey *s, double prompts) {
    double rows = (double)plan_tokens_per_step(p) / (double)p->request.seq_len;
    return (double)p->request.run_steps * (prompts > 0 ? prompts : rows) / (double)s->rows_per_epoch;
}

static plan_outlook outlook(const plan *p, const data_survey *s, double prompts) {
    if (!s->rows_per_epoch) return (plan_outlook){0};
    return (plan_outlook){.epochs = epochs_of(p, s, prompts),
                          .n = s->n ? s->n_trained : s->rows_per_epoch,
                          .unit = s->n ? s->unit : "rows"};
}

plan_outlook plan_outlook_of(const train_request *r, const plan *p, const data_survey *s) {
    return outlook(p, s, prompts_per_step(r, p));
}

static plan_outlook outlook_of(const plan_view *v) {
    plan_outlook o = outlook(v->plan, &v->survey, v->prompts_per_step);
    o.explanation = v->explanation.text;
    o.stages = v->stages;
    return o;
}

static void print_survey(const plan_view *v, FILE *out) {
    const data_survey *s = &v->survey;
    const char *indent = "data      ";
    strbuf text;
    strbuf_init(&text);
    data_survey_describe(s, &text);
    if (text.length) {
        fprintf(out, "%s%s\n", indent, text.text);
        indent = "          ";
    }
    strbuf_fini(&text);
    if (s->rows_per_epoch)
        fprintf(out, "%s%llu %s per epoch; %lld steps are %.4g epochs\n", indent, (unsigned long long)s->rows_per_epoch,
                v->prompts_per_step > 0 ? "prompts" : "rows", (long long)v->plan->request.run_steps,
                epochs_of(v->plan, s, v->prompts_per_step));
}

static json_t *survey_json(const data_survey *s) {
    return json_pack("{s:s, s:I, s:I, s:b, s:{s:I, s:I, s:I, s:I, s:I}, s:I, s:I, s:I}", "unit", s->unit, "n",
                     (json_int_t)s->n, "seq_len", (json_int_t)s->seq_len, "seq_len_auto", s->is_chosen, "tokens", "min",
                     (json_int_t)s->min, "median", (json_int_t)s->median, "p95", (json_int_t)s->p95, "p99",
                     (json_int_t)s->p99, "max", (json_int_t)s->max, "cut", (json_int_t)s->n_cut, "dropped",
                     (json_int_t)s->n_dropped, "rows_per_epoch", (json_int_t)s->rows_per_epoch);
}

void plan_view_print(const plan_view *v, FILE *out) {
    plan_outlook o = outlook_of(v);
    plan_print_answer(v->plan, &o, out);
    plan_print(v->plan, out);
    print_survey(v, out);
    print_frozen(v, out);
    train_disk_print(&v->disk, out);
    plan_print_rungs(v->plan, v->rungs, out);
    if (v->stages) plan_print_stages(v->plan, v->stages, out);
}

json_t *plan_view_json(const plan_view *v) {
    json_t *root = plan_json(v->plan, v->rungs);
    plan_outlook o = outlook_of(v);
    plan_answer_json(v->plan, &o, root);
    json_object_set_new(root, "disk", train_disk_json(&v->disk));
    if (v->frozen.dir)
        json_object_set_new(root, "frozen",
                            json_pack("{s:s, s:I, s:I}", "path", v->frozen.dir, "device",
                                      (json_int_t)v->frozen_planned[TIER_DEVICE], "host",
                                      (json_int_t)v->frozen_planned[TIER_HOST]));
    if (v->survey.n) json_object_set_new(root, "data", survey_json(&v->survey));
    json_object_set_new(
        root, "fits",
        json_boolean(plan_fits(v->plan) && (!v->stages || plan_stage_without_room(v->plan, v->stages) < 0)));
    if (v->stages) json_object_set_new(root, "pipeline", plan_stages_json(v->plan, v->stages));
    return root;
}
