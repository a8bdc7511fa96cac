/* command_plan.c - ralo plan: compile and show, allocate nothing. */
#include "cli/longest.h"
#include "cli/output.h"
#include "cli/planning.h"
#include "cli/profile.h"
#include "cli/train_report.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What the ranks would choose, after the tables. The fullest stage of a pipeline decides whether it fits, the slowest how
 * long it takes. */
static status show_chosen(const plan *p, const plan_world *w, FILE *out, json_t *json) {
    plan_stage *stages = NULL;
    if (mesh_size(&p->request.mesh, AXIS_PIPELINE) > 1) TRY(plan_stages(p, &stages));
    plan_outlook outlook = {.stages = stages};
    plan_print_answer(p, &outlook, out);
    plan_answer_json(p, &outlook, json);
    plan_world_print(w, out);
    plan_print_candidates(p, out);
    if (stages) {
        plan_print_stages(p, stages, out);
        json_object_set_new(json, "fits", json_boolean(plan_fits(p) && plan_stage_without_room(p, stages) < 0));
        json_object_set_new(json, "step_ms", json_real_or_null(1e3 * plan_stages_seconds(p, stages)));
        json_object_set_new(json, "pipeline", plan_stages_json(p, stages));
        free(stages);
    }
    fflush(out); /* lines on stderr then follow it */
    note_say(p);
    return OK;
}

/* --world: tables for ranks that are not here, instead of one plan. */
static status show_world(const command_line *l, const plan_request *from) {
    plan_world w;
    plan_request r = *from;
    if (!l->hardware && !l->config.memory.device)
        r.device_limit = r.together_limit = 0; /* this machine's memory says nothing about theirs */
    status rc = plan_world_compile(&w, &r, l->world);
    planning_hide();
    if (rc != OK) return rc;
    FILE *out = report_stream(l->json);
    plan p; /* what `train` would do on as many ranks */
    rc = plan_choose(&p, &r);
    planning_hide();
    if (rc != OK) return rc;
    json_t *chosen = plan_json(&p, NULL);
    rc = show_chosen(&p, &w, out, chosen);
    if (rc == OK) planning_print_launch(l, &p, out);
    fflush(out);
    plan_close(&p);
    if (rc != OK) {
        json_decref(chosen);
        return rc;
    }
    if (!l->json) {
        json_decref(chosen);
        return OK;
    }
    json_t *root = json_object();
    json_object_set_new(root, "model", json_string(r.source.name));
    json_object_set_new(root, "precision", json_string(precision_name(r.choice.precision)));
    json_object_set_new(root, "world", plan_world_json(&w));
    json_object_set_new(root, "chosen", chosen);
    json_print(root, "world", ALL_DIGITS);
    return OK;
}

static status show(const command_line *l, const train_request *r, const plan *p, const longest_row *row,
                   const profile *sizes) {
    status rc;
    plan_view view;
    FILE *out = report_stream(l->json || l->program);
    if (l->program) program_print(&p->program, l->json ? stderr : stdout); /* stdout is for the JSON object */
    if (l->longest) longest_print(row, out);
    if (l->profile) profile_print(sizes, out);
    TRY_GOTO(rc, plan_view_init(&view, r, p), done);
    plan_view_print(&view, out);
    planning_print_launch(l, p, out);
    fflush(out); /* lines on stderr then follow it */
    note_say(p);
    if (l->timeline) /* also if it does not fit: there it is needed most */
        TRY_GOTO(rc, plan_timeline_write(p, l->timeline), done);
    rc = plan_view_check(&view);
    if (l->json) {
        json_t *root = plan_view_json(&view);
        if (l->longest) json_object_set_new(root, "longest", longest_json(row));
        if (l->profile) json_object_set_new(root, "profile", profile_json(sizes));
        if (foreign_was_read(&l->foreign))
            json_object_set_new(root, "translated", foreign_json(&l->foreign, &l->config));
        if (l->timeline) json_object_set_new(root, "timeline", json_text(l->timeline, strlen(l->timeline)));
        json_print(root, "plan", ALL_DIGITS);
    }
done:
    plan_view_fini(&view);
    return rc;
}

static status make_request(command_line *l, train_request *r, hardware *machine) {
    return request_for_plan(r, &l->config, l->hardware, l->world, machine);
}

/* --longest needs these to be fixed: the longest sequence depends on them. */
static status check_longest(const config *c) {
    mesh m = {0};
    memcpy(m.size, c->parallel.size, sizeof m.size);
    if (mesh_world(&m) > 1)
        return ERR(ERR_INPUT,
                   "plan: --longest works for one rank, found parallel.* for %d ranks; leave parallel.* out, or set "
                   "data.seq_len yourself",
                   mesh_world(&m));
    if ((int)c->choice.precision < 0)
        return ERR(ERR_INPUT, "precision: found auto, expected a name with --longest, such as bf16");
    return OK;
}

/* Hundreds of programs are compiled one after the other, all of about the same size. Keep freed memory in the
 * process: returning it to the system and getting it back zeroed page by page took a tenth of the time. */
static void keep_freed_memory(void) {
    enum { KEPT_BYTES = 256 << 20, BLOCK_BYTES = 32 << 20 };
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES);
    mallopt(M_MMAP_THRESHOLD, BLOCK_BYTES);
}

/* A stage may be planned before the one whose model it compares with has run. */
static bool waits_for_stage(const command_line *l, const train_request *r) {
    return l->stage && r->plan.reference_dir && access(r->plan.reference_dir, F_OK) != 0;
}

status command_plan(command_line *l) {
    train_request r;
    hardware machine;
    longest_row row = {0};
    profile sizes = {0};
    plan p = {0};
    keep_freed_memory();
    if ((l->timeline || l->longest || l->profile) && l->world)
        return ERR(ERR_INPUT, "plan: --%s needs a single plan, --world %d compares many; leave one out",
                   l->timeline  ? "timeline"
                   : l->longest ? "longest"
                                : "profile",
                   l->world);
    if (l->longest && l->profile)
        return ERR(
            ERR_INPUT,
            "plan: --longest takes one micro-batch for all lengths, --profile one data.seq_len for all micro-batches; "
            "leave one out");
    TRY(train_sinks_check(&l->config));
    if (l->longest) TRY(check_longest(&l->config));
    if (l->timeline) TRY(plan_timeline_check(l->timeline));
    config_resolve_model(&l->config, l->hardware, !l->longest && !l->profile);
    if (!l->longest) TRY(config_fit_data(&l->config, true));
    if (l->longest) TRY(longest_find(l, make_request, &row));
    status rc = OK;
    if (l->profile) TRY_GOTO(rc, profile_find(l, make_request, &sizes), done);
    TRY_GOTO(rc, make_request(l, &r, &machine), done);
    if (!l->longest) TRY_GOTO(rc, plan_check_input(&r, &l->config), done); /* which has no length of rows of its own */
    if (!waits_for_stage(l, &r)) TRY_GOTO(rc, train_check_reference(&r), done);
    r.plan.hardware = &machine;
    r.plan.names_no_model = !config_names_model(&l->config);
    r.plan.compare = true;
    r.plan.on_candidate = planning_show;
    r.plan.shorten = !l->program && !l->timeline; /* what is shown op by op is shown whole */
    if (l->world) return show_world(l, &r.plan);
    rc = plan_choose(&p, &r.plan);
    if (rc == OK) plan_find_faster(&p);
    planning_hide();
    if (rc != OK) goto done;
    if (!waits_for_stage(l, &r)) rc = plan_check_weights(&r, &p);
    if (rc == OK) rc = show(l, &r, &p, &row, &sizes);
    plan_close(&p);
done:
    profile_fini(&sizes);
    return rc;
}
