/* command_plan.c - ralo plan: compile and show, allocate nothing. */
#include "cli/cli.h"

static void print_json(const common_options *o, const plan *p) {
    json_t *root = json_object();
    json_object_set_new(root, "model", json_string(p->request.model.name));
    json_object_set_new(root, "parameters", json_integer((json_int_t)model_param_count(&p->request.model)));
    json_object_set_new(root, "tokens_per_step", json_integer(plan_tokens_per_step(p)));
    json_object_set_new(root, "flops_per_step", json_real(p->flops_per_step));
    json_object_set_new(root, "strategy", plan_strategy_json(p));
    json_object_set_new(root, "memory", plan_memory_json(p));
    json_object_set_new(root, "fits",
                        json_boolean(!p->request.device_limit || p->planned[TIER_DEVICE] <= p->request.device_limit));
    if (foreign_was_read(&o->foreign)) json_object_set_new(root, "translated", foreign_json(&o->foreign, &o->config));
    json_dumpf(root, stdout, JSON_PRESERVE_ORDER);
    putchar('\n');
    json_decref(root);
}

status command_plan(int argc, char **argv) {
    common_options o;
    train_request r;
    plan p = {0};
    status rc;
    TRY_GOTO(rc, options_parse(&o, argc, argv, "set,override,deepspeed,json,preset,device-memory,program,help"), done);
    if (o.help) {
        config_print_help(stdout);
        goto done;
    }
    TRY_GOTO(rc, request_from_config(&o.config, &r), done);
    r.plan.host_bytes += dataset_host_bytes_at_most(&r.data);
    TRY_GOTO(rc, plan_compile(&p, &r.plan), done);
    if (o.program_text) program_print(&p.program, stdout);
    plan_print(&p, stderr);
    rc = plan_check_fit(&p);
    if (o.json) print_json(&o, &p);
    plan_close(&p);
done:
    options_fini(&o);
    return rc;
}
