/* world.c - the tables of world.c as text and as JSON. */
#include "show/show.h"

#include <math.h>

static const char *gib(char buf[24], uint64_t n_bytes) {
    snprintf(buf, 24, "%.2f", (double)n_bytes * 0x1p-30);
    return buf;
}

static const char *verdict(const plan_world *w, bool fits) {
    return !w->request.device_limit ? "" : fits ? "  fits" : "  does not fit";
}

static void print_share(const plan_world_share *b, bool with_window, FILE *out) {
    char t[6][24];
    fprintf(out, " %8s %8s %8s", gib(t[0], b->params), gib(t[1], b->grads), gib(t[2], b->states));
    if (with_window) fprintf(out, " %8s", gib(t[3], b->window));
    fprintf(out, " %11s %8s", gib(t[4], b->activations), gib(t[5], b->total));
}

static void print_stages(const plan_world *w, FILE *out) {
    char t[24];
    bool textbook = w->stages[0].textbook != 0;
    fprintf(out, "sharding over %d ranks, GiB per rank\n", w->n_ranks);
    fprintf(out, "  %-18s %8s %8s %8s %8s %11s %8s%s  %s\n", "", "params", "grads", "states", "window", "activations",
            "total", textbook ? "  textbook" : "", "sent per step");
    for (int i = 0; i < WORLD_STAGES; i++) {
        const plan_world_stage *s = &w->stages[i];
        fprintf(out, "  %-18s", s->name);
        print_share(&s->bytes, true, out);
        if (textbook) fprintf(out, "  %8s", gib(t, s->textbook));
        fprintf(out, "  %.3gP = %s GiB", s->volume, gib(t, (uint64_t)s->volume_bytes));
        if (isfinite(s->comm_s)) fprintf(out, ", %.4g ms", 1e3 * s->comm_s);
        fprintf(out, "%s\n", verdict(w, s->fits));
    }
    fprintf(out, "  P: %llu parameters; a rank sends (N - 1) / N of what is given\n", (unsigned long long)w->n_params);
    if (textbook)
        fputs("  textbook: 14 bytes per parameter (2 + 4 + 8), without the fp32 master copy that mixed precision "
              "needs; with it 18.\n  It counts no activations and no window either.\n",
              out);
    fputs("  window: gathered parameters, gradients on their way and scratch of messages, at the peak\n", out);
}

/* Tokens of a step on all ranks. */
static double layout_tokens(const plan_world *w, const plan_world_layout *l) {
    return (double)(l->micro_batch * l->accumulation * w->request.seq_len * l->data);
}

static void print_layouts(const plan_world *w, FILE *out) {
    fprintf(out, "layouts of %d ranks, GiB per rank (the fullest)\n", w->n_ranks);
    fprintf(out, "  %-18s %8s %8s %8s %11s %8s\n", "", "params", "grads", "states", "activations", "total");
    for (int i = 0; i < w->n_layouts; i++) {
        const plan_world_layout *l = &w->layouts[i];
        fprintf(out, "  %-18s", l->name);
        if (l->why_not[0]) {
            fprintf(out, " not possible: %s\n", l->why_not);
            continue;
        }
        print_share(&l->bytes, false, out);
        if (l->pipeline > 1)
            fprintf(out, "  %lld x %lld  idle %.0f %%", (long long)l->micro_batch, (long long)l->accumulation,
                    100 * l->bubble);
        if (l->zero) fprintf(out, "  zero %d", l->zero);
        if (isfinite(l->step_s)) {
            char n[32];
            fprintf(out, "  %.4g s  %s tokens/s", l->step_s, str_format_count(n, layout_tokens(w, l) / l->step_s));
        }
        if (l->built_micros < l->accumulation) fprintf(out, "  (from %lld micro-batches)", (long long)l->built_micros);
        fprintf(out, "%s\n", verdict(w, l->fits));
    }
    fputs("  idle: of a pipeline's time, with so many rows x micro-batches per step (train.accumulation)\n", out);
}

static void print_ladder(const plan_world *w, FILE *out) {
    const plan_request *r = &w->request;
    double tokens = (double)(r->choice.micro_batch * r->choice.accumulation * r->seq_len);
    char t[24], n[32];
    fputs("ladder, GiB on one rank\n", out);
    for (int i = 0; i < WORLD_LADDER_ROWS; i++) {
        const plan_world_ladder_row *g = &w->ladder[i];
        fprintf(out, "  %-34s %8s", g->name, gib(t, g->bytes));
        if (isfinite(g->step_s))
            fprintf(out, "  %8.4g s  %8s tokens/s", g->step_s, str_format_count(n, tokens / g->step_s));
        fprintf(out, "%s\n", verdict(w, g->fits));
    }
    fputs("  the last one sends messages: its time includes them\n", out);
}

double plan_world_formula(const plan_world *w) {
    const plan_request *r = &w->request;
    const model_config *m = model_of(&r->source);
    if (model_family_traits(m->family)->gelu || dtype_bytes(precision_compute(r->choice.precision)) != 2) return 0;
    return 12.0 * (double)m->hidden + 4.0 * (double)(m->n_kv_heads * m->head_dim) + 6.0 * (double)m->ffn;
}

void plan_world_print(const plan_world *w, FILE *out) {
    const plan_request *r = &w->request;
    char a[32];
    double formula = plan_world_formula(w);
    fprintf(out, "world     %d ranks; %s, %s parameters, %s, %lld x %lld tokens x accumulation %lld on each rank\n",
            w->n_ranks, r->source.name, str_format_count(a, (double)w->n_params), precision_name(r->choice.precision),
            (long long)r->choice.micro_batch, (long long)r->seq_len, (long long)r->choice.accumulation);
    if (r->hardware) fprintf(out, "machine   %s: %s\n", r->hardware->name, r->hardware->source);
    fprintf(out, "kept      %.0f bytes of activations per layer and token", w->kept_per_layer_token);
    if (formula > 0) fprintf(out, " (the usual formula 12 h + 4 h_kv + 6 f: %.0f)", formula);
    fputc('\n', out);
    print_stages(w, out);
    print_layouts(w, out);
    print_ladder(w, out);
    if (!w->missing) return;
    strbuf text;
    strbuf_init(&text);
    plan_explain_no_time(r->hardware, w->missing, &text);
    fprintf(out, "  no time, where none is given: %s\n", text.text);
    strbuf_fini(&text);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static json_t *share_json(const plan_world_share *b) {
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "params", (json_int_t)b->params, "grads", (json_int_t)b->grads,
                     "states", (json_int_t)b->states, "window", (json_int_t)b->window, "activations",
                     (json_int_t)b->activations, "total", (json_int_t)b->total);
}

json_t *plan_world_json(const plan_world *w) {
    json_t *root = json_object(), *stages = json_array(), *layouts = json_array(), *ladder = json_array();
    json_object_set_new(root, "ranks", json_integer(w->n_ranks));
    json_object_set_new(root, "parameters", json_integer((json_int_t)w->n_params));
    json_object_set_new(root, "activation_bytes_per_layer_token", json_real(w->kept_per_layer_token));
    for (int i = 0; i < WORLD_STAGES; i++) {
        const plan_world_stage *s = &w->stages[i];
        json_t *one = json_pack("{s:s, s:o, s:f, s:f}", "name", s->name, "bytes", share_json(&s->bytes),
                                "volume_params", s->volume, "volume_bytes", s->volume_bytes);
        json_object_set_new(one, "textbook_bytes", s->textbook ? json_integer((json_int_t)s->textbook) : json_null());
        json_object_set_new(one, "comm_ms", json_real_or_null(1e3 * s->comm_s));
        json_array_append_new(stages, one);
    }
    for (int i = 0; i < w->n_layouts; i++) {
        const plan_world_layout *l = &w->layouts[i];
        json_t *one = json_pack("{s:s, s:i, s:i, s:i, s:i}", "name", l->name, "data", l->data, "tensor", l->tensor,
                                "pipeline", l->pipeline, "sequence", l->sequence);
        if (l->why_not[0]) json_object_set_new(one, "not_possible", json_string(l->why_not));
        else {
            json_object_set_new(one, "bytes", share_json(&l->bytes));
            json_object_set_new(one, "fits", json_boolean(l->fits));
            json_object_set_new(one, "zero", json_integer(l->zero));
            json_object_set_new(one, "micro_batch", json_integer(l->micro_batch));
            json_object_set_new(one, "accumulation", json_integer(l->accumulation));
            json_object_set_new(one, "idle", json_real(l->bubble));
            json_object_set_new(one, "step_ms", json_real_or_null(1e3 * l->step_s));
            json_object_set_new(one, "compiled_micro_batches", json_integer(l->built_micros));
        }
        json_array_append_new(layouts, one);
    }
    for (int i = 0; i < WORLD_LADDER_ROWS; i++) {
        const plan_world_ladder_row *g = &w->ladder[i];
        json_array_append_new(ladder, json_pack("{s:s, s:I, s:o}", "name", g->name, "bytes", (json_int_t)g->bytes,
                                                "step_ms", json_real_or_null(1e3 * g->step_s)));
    }
    json_object_set_new(root, "sharding", stages);
    json_object_set_new(root, "layouts", layouts);
    json_object_set_new(root, "ladder", ladder);
    if (w->missing) json_object_set_new(root, "missing", json_string(w->missing));
    return root;
}
