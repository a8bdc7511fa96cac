/* plan_view.c - what `ralo plan` and ralo_plan show of one plan: the plan, disk space, levels of recompute, pipeline
 * stages. */
#include "train/frozen.h"

#include <stdlib.h>

status plan_view_init(plan_view *v, const train_request *r, const plan *p) {
    *v = (plan_view){.plan = p, .disk = train_disk_of(r, p), .frozen = r->frozen};
    if (r->frozen.dir) TRY(frozen_plan_bytes(r, p, v->frozen_planned));
    TRY(plan_rungs(p, v->rungs));
    if (mesh_size(&p->request.mesh, AXIS_PIPELINE) > 1) TRY(plan_stages(p, &v->stages));
    return OK;
}

void plan_view_fini(plan_view *v) {
    free(v->stages);
    v->stages = NULL;
}

status plan_view_check(const plan_view *v) {
    TRY(plan_check_fit(v->plan));
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

void plan_view_print(const plan_view *v, FILE *out) {
    plan_print(v->plan, out);
    print_frozen(v, out);
    train_disk_print(&v->disk, out);
    plan_print_rungs(v->plan, v->rungs, out);
    if (v->stages) plan_print_stages(v->plan, v->stages, out);
}

json_t *plan_view_json(const plan_view *v) {
    json_t *root = plan_json(v->plan, v->rungs);
    json_object_set_new(root, "disk", train_disk_json(&v->disk));
    if (v->frozen.dir)
        json_object_set_new(root, "frozen",
                            json_pack("{s:s, s:I, s:I}", "path", v->frozen.dir, "device",
                                      (json_int_t)v->frozen_planned[TIER_DEVICE], "host",
                                      (json_int_t)v->frozen_planned[TIER_HOST]));
    json_object_set_new(
        root, "fits",
        json_boolean(plan_fits(v->plan) && (!v->stages || plan_stage_without_room(v->plan, v->stages) < 0)));
    if (v->stages) json_object_set_new(root, "pipeline", plan_stages_json(v->plan, v->stages));
    return root;
}
