/* command_plan.c - ralo plan: compile and show, allocate nothing. */
#include "cli/cli.h"

status command_plan(command_line *l) {
    train_request r;
    plan p = {0};
    TRY(request_from_config(&l->config, &r));
    r.plan.host_bytes += dataset_host_bytes_at_most(&r.data);
    TRY(plan_compile(&p, &r.plan));
    if (l->program) program_print(&p.program, stdout);
    plan_print(&p, stderr);
    status rc = plan_check_fit(&p);
    if (l->json) {
        json_t *root = plan_json(&p);
        json_dumpf(root, stdout, JSON_PRESERVE_ORDER);
        putchar('\n');
        json_decref(root);
    }
    plan_close(&p);
    return rc;
}
