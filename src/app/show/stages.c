/* stages.c - the stages of a pipeline as lines and as JSON. */
#include "show/parts.h"

#include <stdlib.h>

static int n_stages(const plan_request *r) { return mesh_size(&r->mesh, AXIS_PIPELINE); }

/* "0-2 8-10": the layers of a stage, a run for each of its chunks. */
static void write_layers(const plan *p, int stage, strbuf *out) {
    const plan_request *r = &p->request;
    int n_chunks = p->net.n_chunks;
    int64_t *first = mem_alloc((size_t)(n_chunks + 1) * sizeof *first);
    model_stages_cut(model_of(&r->source), r->seq_len, n_chunks, first);
    for (int k = stage; k < n_chunks; k += n_stages(r)) {
        long long begin = first[k], last = first[k + 1] - 1;
        if (k > stage) strbuf_add(out, " ");
        if (last < begin) strbuf_add(out, "none");
        else if (last == begin) strbuf_printf(out, "%lld", begin);
        else strbuf_printf(out, "%lld-%lld", begin, last);
    }
    free(first);
}

void plan_print_pipeline(const plan *p, FILE *out) {
    const plan_request *r = &p->request;
    strbuf layers;
    strbuf_init(&layers);
    write_layers(p, r->mesh.index[AXIS_PIPELINE], &layers);
    fprintf(out,
            "pipeline  stage %d of %d, layers %s; %s, %lld micro-batches: stages wait %.1f %% of forward and backward",
            r->mesh.index[AXIS_PIPELINE], n_stages(r), layers.text, r->virtual_stages > 1 ? "interleaved 1F1B" : "1F1B",
            (long long)r->choice.accumulation, 100 * plan_bubble(r));
    if (plan_built_micros(r) < r->choice.accumulation)
        fprintf(out, "; planned from %lld of them, which the others repeat", (long long)plan_built_micros(r));
    fputc('\n', out);
    strbuf_fini(&layers);
}

void plan_print_stages(const plan *p, const plan_stage *list, FILE *out) {
    for (int i = 0; i < n_stages(&p->request); i++) {
        char a[32];
        strbuf layers;
        strbuf_init(&layers);
        write_layers(p, i, &layers);
        const plan_candidate *c = &list[i].numbers;
        fprintf(out, "    stage %-3d layers %-20s %s%12s device, %3.0f %% of the most arithmetic%s\n", i, layers.text,
                c->estimated ? "about " : "", str_format_bytes(a, c->planned[TIER_DEVICE]), 100 * list[i].load,
                !c->fits            ? ", does not fit"
                : list[i].by_itself ? ", with choices of its own"
                                    : "");
        strbuf_fini(&layers);
    }
}

json_t *plan_stages_json(const plan *p, const plan_stage *list) {
    const plan_request *r = &p->request;
    json_t *stages = json_array();
    for (int i = 0; i < n_stages(r); i++) {
        strbuf layers;
        strbuf_init(&layers);
        write_layers(p, i, &layers);
        const plan_candidate *c = &list[i].numbers;
        json_t *one = json_pack("{s:s, s:f, s:b, s:b}", "layers", layers.text, "load", list[i].load, "fits", c->fits,
                                "estimated", c->estimated);
        for (tier t = TIER_DEVICE; t <= TIER_NVME; t++)
            json_object_set_new(one, tier_name(t), json_integer((json_int_t)c->planned[t]));
        json_object_set_new(one, "step_ms", json_real_or_null(1e3 * c->step_s));
        json_array_append_new(stages, one);
        strbuf_fini(&layers);
    }
    return json_pack("{s:f, s:o, s:I, s:o}", "bubble", plan_bubble(r), "step_ms",
                     json_real_or_null(1e3 * plan_stages_seconds(p, list)), "compiled_micro_batches",
                     (json_int_t)plan_built_micros(r), "stages", stages);
}
