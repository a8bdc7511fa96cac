/* stages.c - the pipeline part of a plan: layers, memory and arithmetic of every stage, and the bubble. */
#include "plan/report.h"
#include "plan/search.h"

#include <math.h>
#include <stdlib.h>

static int n_stages(const plan_request *r) { return mesh_size(&r->mesh, AXIS_PIPELINE); }

double plan_micro_runs(const plan *p) {
    return (double)p->request.choice.accumulation / (double)p->step.micros_per_run;
}

static int n_chunks_of(const plan_request *r) { return n_stages(r) * MAX(r->virtual_stages, 1); }

double plan_bubble(const plan_request *r) {
    double behind = n_stages(r) - 1, turns = (double)(r->choice.accumulation * MAX(r->virtual_stages, 1));
    return behind / (turns + behind);
}

double plan_waiting(const plan_request *r) {
    int S = n_stages(r);
    if (S == 1) return 0;
    double slowest = model_stages_slowest(&r->model, r->seq_len, S, n_chunks_of(r), r->mesh.index[AXIS_PIPELINE]);
    return slowest / (1 - plan_bubble(r)) - 1;
}

/* As many as are in flight at the first stage, plus one; with several chunks a multiple of the stages. */
int64_t plan_built_micros(const plan_request *r) {
    int S = n_stages(r);
    if (S == 1 || !r->shorten) return r->choice.accumulation;
    return MIN(r->choice.accumulation, (int64_t)(r->virtual_stages > 1 ? 2 * S : S + 1));
}

/* "0-2 8-10": the layers of a stage, a run for each of its chunks. */
static void write_layers(const plan_request *r, int stage, strbuf *out) {
    int n_chunks = n_chunks_of(r);
    int64_t *first = mem_alloc((size_t)(n_chunks + 1) * sizeof *first);
    model_stages_cut(&r->model, r->seq_len, n_chunks, first);
    for (int k = stage; k < n_chunks; k += n_stages(r)) {
        long long begin = first[k], last = first[k + 1] - 1;
        if (k > stage) strbuf_add(out, " ");
        if (last < begin) strbuf_add(out, "none");
        else if (last == begin) strbuf_printf(out, "%lld", begin);
        else strbuf_printf(out, "%lld-%lld", begin, last);
    }
    free(first);
}

/* Each stage may choose for itself: used where the choices of the plan do not fit this stage. */
static status choose_for_stage(const plan *of, int stage, plan_stage *s) {
    plan p;
    plan_request r = plan_request_reopen(of);
    r.mesh.index[AXIS_PIPELINE] = stage;
    r.compare = false;
    TRY(plan_choose(&p, &r));
    s->numbers = plan_chosen(&p);
    plan_candidate_set_numbers(&s->numbers, &p);
    s->by_itself = true;
    plan_close(&p);
    return OK;
}

status plan_stages(const plan *of, plan_stage **out) {
    const plan_request reopened = plan_request_reopen(of);
    plan_request r = of->request;
    int n = n_stages(&r);
    r.open = (plan_open){0}; /* as this stage was planned */
    *out = mem_alloc((size_t)n * sizeof **out);
    status rc = OK;
    for (int i = 0; i < n && rc == OK; i++) {
        plan_stage *s = &(*out)[i];
        r.mesh.index[AXIS_PIPELINE] = i;
        s->load = 1 / model_stages_slowest(&r.model, r.seq_len, n, n_chunks_of(&r), i);
        rc = plan_evaluate(&r, &s->numbers);
        if (rc == OK && !s->numbers.fits && plan_is_open(&reopened)) rc = choose_for_stage(of, i, s);
    }
    if (rc == OK) return OK;
    free(*out);
    *out = NULL;
    return rc;
}

void plan_print_pipeline(const plan *p, FILE *out) {
    const plan_request *r = &p->request;
    strbuf layers;
    strbuf_init(&layers);
    write_layers(r, r->mesh.index[AXIS_PIPELINE], &layers);
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
        write_layers(&p->request, i, &layers);
        const plan_candidate *c = &list[i].numbers;
        fprintf(out, "    stage %-3d layers %-20s %s%12s device, %3.0f %% of the most arithmetic%s\n", i, layers.text,
                c->estimated ? "about " : "", str_format_bytes(a, c->planned[TIER_DEVICE]), 100 * list[i].load,
                !c->fits            ? ", does not fit"
                : list[i].by_itself ? ", with choices of its own"
                                    : "");
        strbuf_fini(&layers);
    }
}

int plan_stage_without_room(const plan *p, const plan_stage *list) {
    for (int i = 0; i < n_stages(&p->request); i++)
        if (!list[i].numbers.fits) return i;
    return -1;
}

status plan_check_stages(const plan *p, const plan_stage *list) {
    const plan_request *r = &p->request;
    char device[32], host[32], device_limit[32], host_limit[32];
    int i = plan_stage_without_room(p, list);
    if (i < 0) return OK;
    const uint64_t *needed = list[i].numbers.planned;
    return ERR(
        ERR_FIT,
        "stage %d of %d does not fit: it needs %s of device memory and %s of host memory, the limits are %s and %s; "
        "raise them%s",
        i, n_stages(r), str_format_bytes(device, needed[TIER_DEVICE]), str_format_bytes(host, needed[TIER_HOST]),
        r->device_limit ? str_format_bytes(device_limit, r->device_limit) : "none",
        r->host_limit ? str_format_bytes(host_limit, r->host_limit) : "none",
        r->manual ? ", or let every stage choose for itself with memory.strategy=auto"
                  : ", use more stages, or lower train.micro_batch");
}

double plan_stages_seconds(const plan *p, const plan_stage *list) {
    double most = p->request.hardware && !p->cost.missing ? p->cost.step_s : NAN;
    for (int i = 0; i < n_stages(&p->request); i++) most = fmax(most, list[i].numbers.step_s);
    return most;
}

json_t *plan_stages_json(const plan *p, const plan_stage *list) {
    const plan_request *r = &p->request;
    json_t *stages = json_array();
    for (int i = 0; i < n_stages(r); i++) {
        strbuf layers;
        strbuf_init(&layers);
        write_layers(r, i, &layers);
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
