/* rungs.c - levels of recompute as a table and as JSON. */
#include "show/parts.h"

/* The rungs, followed by the plan itself where it is none of them. */
static size_t rows_of(const plan *p, const plan_rung list[PLAN_RUNGS], plan_rung out[PLAN_RUNGS + 1]) {
    memcpy(out, list, PLAN_RUNGS * sizeof *list);
    out[PLAN_RUNGS] = plan_rung_of(p);
    for (size_t i = 0; i < PLAN_RUNGS; i++)
        if (list[i].kind == p->request.choice.recompute.kind) return PLAN_RUNGS;
    return PLAN_RUNGS + 1;
}

/* As the setting is written: with its argument, for the plan's own. */
static const char *rung_name(const plan *p, const plan_rung *row, strbuf *memory) {
    memory->length = 0;
    if (row->kind == p->request.choice.recompute.kind) recompute_write(&p->request.choice.recompute, memory);
    else strbuf_add(memory, recompute_name(row->kind));
    return memory->text;
}

void plan_print_rungs(const plan *p, const plan_rung list[PLAN_RUNGS], FILE *out) {
    char a[32], b[32];
    strbuf name;
    plan_rung rows[PLAN_RUNGS + 1];
    size_t n = rows_of(p, list, rows);
    strbuf_init(&name);
    fputs("  memory.recompute        activations at peak        device   more FLOP\n", out);
    for (size_t i = 0; i < n; i++)
        fprintf(out, "    %-22s %18s %13s %9.1f %%%s%s\n", rung_name(p, &rows[i], &name),
                str_format_bytes(a, rows[i].activations), str_format_bytes(b, rows[i].device), 100 * rows[i].more_flops,
                rows[i].fits            ? ""
                : rows[i].host_is_short ? "  host too small"
                                        : "  does not fit",
                rows[i].kind == p->request.choice.recompute.kind ? "  <- this plan" : "");
    strbuf_fini(&name);
}

json_t *plan_rungs_json(const plan *p, const plan_rung list[PLAN_RUNGS]) {
    plan_rung rows[PLAN_RUNGS + 1];
    size_t n = rows_of(p, list, rows);
    json_t *array = json_array();
    strbuf name;
    strbuf_init(&name);
    for (size_t i = 0; i < n; i++)
        json_array_append_new(array, json_pack("{s:s, s:I, s:I, s:f, s:b, s:b}", "rung", rung_name(p, &rows[i], &name),
                                               "activations", (json_int_t)rows[i].activations, "device",
                                               (json_int_t)rows[i].device, "more_flops", rows[i].more_flops, "fits",
                                               (int)rows[i].fits, "used",
                                               (int)(rows[i].kind == p->request.choice.recompute.kind)));
    strbuf_fini(&name);
    return array;
}
