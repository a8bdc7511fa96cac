/* command_plan.c - ralo plan: compile and show, allocate nothing. */
#include "cli/cli.h"

static void print_json(const plan *p) {
    json_t *root = json_object();
    json_object_set_new(root, "model", json_string(p->request.model.name));
    json_object_set_new(root, "parameters", json_integer((json_int_t)model_param_count(&p->request.model)));
    json_object_set_new(root, "tokens_per_step", json_integer(plan_tokens_per_step(p)));
    json_object_set_new(root, "flops_per_step", json_real(p->flops_per_step));
    json_object_set_new(root, "strategy", plan_strategy_json(p));
    json_object_set_new(root, "memory", plan_memory_json(p));
    json_object_set_new(root, "fits",
                        json_boolean(!p->request.device_limit || p->planned[TIER_DEVICE] <= p->request.device_limit));
    json_dumpf(root, stdout, JSON_PRESERVE_ORDER);
    putchar('\n');
    json_decref(root);
}

status command_plan(command_line *l) {
    train_request r;
    plan p = {0};
    TRY(request_from_config(&l->config, &r));
    r.plan.host_bytes += dataset_host_bytes_at_most(&r.data);
    TRY(plan_compile(&p, &r.plan));
    if (l->program) program_print(&p.program, stdout);
    plan_print(&p, stderr);
    status rc = plan_check_fit(&p);
    if (l->json) print_json(&p);
    plan_close(&p);
    return rc;
}
