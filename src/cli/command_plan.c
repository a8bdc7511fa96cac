/* command_plan.c - ralo plan: compile and show, allocate nothing. */
#include "cli/cli.h"

static void print_json(const plan *p, const plan_rung rungs[PLAN_RUNGS]) {
    json_t *root = json_object();
    json_object_set_new(root, "model", json_string(p->request.model.name));
    json_object_set_new(root, "parameters", json_integer((json_int_t)model_param_count(&p->request.model)));
    json_object_set_new(root, "tokens_per_step", json_integer(plan_tokens_per_step(p)));
    json_object_set_new(root, "flops_per_step", json_real(p->flops_per_step));
    json_object_set_new(root, "flops_again", json_real(p->flops_again));
    json_object_set_new(root, "strategy", plan_strategy_json(p));
    json_object_set_new(root, "memory", plan_memory_json(p));
    json_object_set_new(root, "recompute", plan_rungs_json(p, rungs));
    json_object_set_new(root, "step_ms", p->cost.missing ? json_null() : json_real(1e3 * p->cost.step_s));
    json_object_set_new(root, "prediction", plan_prediction_json(p));
    json_object_set_new(root, "candidates", plan_candidates_json(p));
    json_object_set_new(root, "fits", json_boolean(plan_fits(p)));
    json_dumpf(root, stdout, JSON_PRESERVE_ORDER);
    putchar('\n');
    json_decref(root);
}

/* Ranks that are not here: tables instead of one plan. Mixed precision is what they are about, so it is the default. */
static status show_world(const common_options *o, const plan_request *from) {
    plan_world w;
    plan_request r = *from;
    if (!config_was_given(&o->config, "precision")) r.precision = PRECISION_BF16;
    if (!o->hardware && !o->config.memory.device)
        r.device_limit = 0; /* this machine's memory says nothing about theirs */
    TRY(plan_world_compile(&w, &r, o->world));
    plan_world_print(&w, stderr);
    if (!o->json) return OK;
    json_t *root = json_object();
    json_object_set_new(root, "model", json_string(r.model.name));
    json_object_set_new(root, "precision", json_string(precision_name(r.precision)));
    json_object_set_new(root, "world", plan_world_json(&w));
    json_dumpf(root, stdout, JSON_PRESERVE_ORDER);
    putchar('\n');
    json_decref(root);
    return OK;
}

status command_plan(int argc, char **argv) {
    common_options o;
    train_request r;
    hardware machine;
    plan p = {0};
    plan_rung rungs[PLAN_RUNGS];
    status rc;
    TRY_GOTO(rc, options_parse(&o, argc, argv, "set,override,json,preset,device-memory,program,hardware,world,help"),
             done);
    if (o.help) {
        config_print_help(stdout);
        goto done;
    }
    TRY_GOTO(rc, request_from_config(&o.config, &r), done);
    TRY_GOTO(rc, machine_describe(o.hardware, r.n_threads, &machine), done);
    r.plan.hardware = &machine;
    r.plan.compare = true;
    if (o.hardware && !o.config.memory.device) r.plan.device_limit = machine.device_bytes;
    if (o.hardware) r.plan.host_limit = machine.host_bytes;
    r.plan.host_bytes += dataset_host_bytes_at_most(&r.data);
    if (o.world) {
        rc = show_world(&o, &r.plan);
        goto done;
    }
    TRY_GOTO(rc, plan_compile(&p, &r.plan), done);
    if (o.program_text) program_print(&p.program, stdout);
    plan_print(&p, stderr);
    TRY_GOTO(rc, plan_rungs(&p, rungs), done);
    plan_print_rungs(&p, rungs, stderr);
    rc = plan_check_fit(&p);
    if (o.json) print_json(&p, rungs);
done:
    plan_close(&p);
    options_fini(&o);
    return rc;
}
