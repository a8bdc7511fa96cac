/* plan.c - ralo_plan: what `ralo plan` shows, as numbers and text. */
#include "api/api.h"

#include <stdlib.h>
#include <string.h>

void api_plan_describe(ralo_plan *p) {
    memstream text;
    FILE *out = memstream_open(&text);
    json_t *root = p->view.plan ? plan_view_json(&p->view) : plan_json(p->plan, NULL);
    if (!p->view.plan) plan_answer_json(p->plan, &p->outlook, root);
    if (p->view.plan) plan_view_print(&p->view, out);
    else {
        plan_print_answer(p->plan, &p->outlook, out);
        plan_print(p->plan, out);
    }
    p->text = memstream_take(&text);
    p->json = json_dumps(root, JSON_PRESERVE_ORDER);
    json_decref(root);
}

ralo_status ralo_plan_open(ralo_plan **out, const ralo_settings *s) {
    API_NEED(out);
    *out = NULL;
    API_NEED(s);
    api_call call = api_enter();
    status rc;
    train_request r;
    ralo_plan *p = mem_alloc(sizeof *p);
    TRY_GOTO(rc, api_config(&p->config, s), done);
    config_resolve_model(&p->config, NULL, true);
    TRY_GOTO(rc, config_fit_data(&p->config, true), done);
    TRY_GOTO(rc, request_for_plan(&r, &p->config, NULL, 0, &p->machine), done);
    TRY_GOTO(rc, plan_check_input(&r, &p->config), done);
    TRY_GOTO(rc, train_check_reference(&r), done);
    r.plan.hardware = &p->machine;
    r.plan.compare = r.plan.shorten = true; /* as ralo plan does */
    TRY_GOTO(rc, plan_choose(&p->own, &r.plan), done);
    plan_find_faster(&p->own);
    p->plan = &p->own;
    note_say(p->plan);
    TRY_GOTO(rc, plan_view_init(&p->view, &r, p->plan), done);
    api_plan_describe(p);
    *out = p;
done:
    if (rc != OK) ralo_plan_close(p);
    return api_leave(call, rc);
}

void ralo_plan_close(ralo_plan *p) {
    if (!p || p->borrowed) return;
    plan_view_fini(&p->view);
    if (p->plan) plan_close(&p->own);
    config_fini(&p->config);
    free(p->text);
    free(p->json);
    free(p);
}

ralo_status ralo_plan_check(const ralo_plan *p) {
    API_NEED(p);
    api_call call = api_enter();
    return api_leave(call, p->view.plan ? plan_view_check(&p->view) : plan_check_fit(p->plan));
}

static status role_bytes(const plan *p, const char *name, uint64_t *out) {
    strbuf known;
    strbuf_init(&known);
    for (role r = 0; r < ROLE_COUNT; r++) {
        strbuf_printf(&known, "%s, ", role_name(r));
        if (strcmp(role_name(r), name) != 0) continue;
        *out = p->by_role[r];
        strbuf_fini(&known);
        return OK;
    }
    status rc = ERR(ERR_INPUT, "ralo_plan_bytes: found the role '%.100s', expected one of: %sgaps", name, known.text);
    strbuf_fini(&known);
    return rc;
}

ralo_status ralo_plan_bytes(const ralo_plan *p, const char *tier_text, const char *role_text, uint64_t *out) {
    API_NEED(p);
    API_NEED(tier_text);
    API_NEED(out);
    *out = 0;
    tier t = 0;
    while (t < TIER_COUNT && strcmp(tier_name(t), tier_text) != 0) t++;
    if (t == TIER_COUNT)
        return (ralo_status)ERR(ERR_INPUT, "ralo_plan_bytes: found the tier '%.100s', expected device, host or nvme",
                                tier_text);
    if (!role_text) {
        *out = p->plan->planned[t];
        return RALO_OK;
    }
    if (t != TIER_DEVICE)
        return (ralo_status)ERR(ERR_INPUT, "ralo_plan_bytes: %s has no roles; they are known for the device",
                                tier_text);
    if (strcmp(role_text, "gaps") == 0) {
        *out = p->plan->gap_bytes;
        return RALO_OK;
    }
    return (ralo_status)role_bytes(p->plan, role_text, out);
}

const char *ralo_plan_text(const ralo_plan *p) { return p ? p->text : NULL; }
const char *ralo_plan_json(const ralo_plan *p) { return p ? p->json : NULL; }
