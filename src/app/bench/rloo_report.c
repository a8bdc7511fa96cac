/* rloo_report.c - the result of `ralo bench rloo` as a table, as an explanation and as JSON.
 *
 * The published numbers are of TRL's RLOO trainer on a GPU of 32 GB. They are a line in k each, a + b k, before and after, with the
 * same a and with b in the ratio of the tokens of a row: nothing else had changed but the length of the prompts. */
#include "bench/rloo.h"

#include <math.h>
#include <string.h>

enum { PUBLISHED_PROMPT = 3012, PUBLISHED_CUT = 1024, PUBLISHED_COMPLETION = 100 };
/* GB for k = 2, 4, 8; NAN: out of memory. */
static const double published_base[] = {14.38, 26.99, NAN}, published_cut[] = {6.40, 11.01, 20.25};

/* a + b k, through k = 2 and k = 4. */
typedef struct line_in_k {
    double a, b;
} line_in_k;
static line_in_k line_through(const double gb[]) {
    double b = (gb[1] - gb[0]) / 2;
    return (line_in_k){gb[0] - 2 * b, b};
}

/* ---- what holds of all cases -------------------------------------------------------------------------------------- */

/* How far the peaks of one way are apart, as a share of the smallest. */
static double spread(const rloo_result *r, rloo_mode mode) {
    double low = INFINITY, high = 0;
    for (size_t i = 0; i < r->n_cells; i++) {
        if (r->cells[i].mode != mode) continue;
        low = fmin(low, (double)r->cells[i].planned);
        high = fmax(high, (double)r->cells[i].planned);
    }
    return high / low - 1;
}

/* Largest relative difference of the gradient norms of base and ours; NAN: no k ran both ways. */
static double gradient_difference(const rloo_result *r) {
    double most = NAN;
    for (size_t i = 0; i < RLOO_KS; i++) {
        const rloo_cell *b = rloo_find(r, RLOO_BASE, rloo_ks[i]), *x = rloo_find(r, RLOO_OURS, rloo_ks[i]);
        if (b && x && x->grad_norm > 0) most = fmax(most, fabs(b->grad_norm / x->grad_norm - 1));
    }
    return most;
}

/* ---- the explanation ----------------------------------------------------------------------------------------------- */

static void explain_published(strbuf lines[2]) {
    line_in_k base = line_through(published_base), cut = line_through(published_cut);
    strbuf_printf(
        &lines[0],
        "Published (TRL, GPU of 32 GB): %.2f and %.2f GB at k = 2 and 4, out of memory at 8; after a change %.2f, "
        "%.2f and %.2f GB: %.1f and %.1f %% less.",
        published_base[0], published_base[1], published_cut[0], published_cut[1], published_cut[2],
        100 * (1 - published_cut[0] / published_base[0]), 100 * (1 - published_cut[1] / published_base[1]));
    strbuf_printf(
        &lines[1],
        "That change cut the prompts from about 3,010 to 1,024 tokens. The numbers say so themselves: they are "
        "%.2f + %.2f k GB before and %.2f + %.2f k GB after, so a completion costs %.3f of what it did, and its row "
        "has (%d + %d) / (%d + %d) = %.3f of the tokens.",
        base.a, base.b, cut.a, cut.b, cut.b / base.b, PUBLISHED_CUT, PUBLISHED_COMPLETION, PUBLISHED_PROMPT,
        PUBLISHED_COMPLETION,
        (double)(PUBLISHED_CUT + PUBLISHED_COMPLETION) / (PUBLISHED_PROMPT + PUBLISHED_COMPLETION));
}

static void explain_here(const rloo_result *r, strbuf lines[4]) {
    const rloo_scale *s = r->scale;
    const rloo_cell *base[2], *cut[2], *ours[2];
    char a[32], b[32];
    for (int i = 0; i < 2; i++) {
        base[i] = rloo_find(r, RLOO_BASE, rloo_ks[i]);
        cut[i] = rloo_find(r, RLOO_CUT, rloo_ks[i]);
        ours[i] = rloo_find(r, RLOO_OURS, rloo_ks[i]);
    }
    strbuf_printf(&lines[0],
                  "Here cutting them from %lld to %lld tokens saves %.1f and %.1f %% at k = 2 and 4; what is learned "
                  "is no longer "
                  "the same. Ours saves %.1f and %.1f %% and cuts nothing.",
                  (long long)s->prompt, (long long)s->cut, 100 * rloo_saving(base[0], cut[0]),
                  100 * rloo_saving(base[1], cut[1]), 100 * rloo_saving(base[0], ours[0]),
                  100 * rloo_saving(base[1], ours[1]));
    strbuf_printf(
        &lines[1],
        "Base holds the logits of all tokens, %s per completion: %lld x %lld numbers. Their gradient takes their "
        "place, which PyTorch does not do, so base is kinder than a common implementation.",
        str_format_bytes(a, (uint64_t)((s->prompt + s->completion) * r->model.vocab) * sizeof(float)),
        (long long)(s->prompt + s->completion), (long long)r->model.vocab);
    strbuf_printf(
        &lines[2],
        "Ours is planned with %s for every k of 2 to 16 (largest and smallest differ by %.2f %%): %s for the rollout "
        "on the same bytes.",
        str_format_bytes(a, ours[0]->planned), 100 * spread(r, RLOO_OURS), str_format_bytes(b, ours[0]->rollout_bytes));
    double difference = gradient_difference(r);
    if (difference == 0)
        strbuf_add(&lines[3], "Both make the same update: their gradient norms are equal to the last bit.");
    else if (isfinite(difference))
        strbuf_printf(&lines[3],
                      "Both make the same update: their gradient norms differ by at most %.1e of themselves.",
                      difference);
}

void rloo_explain(const rloo_result *r, strbuf lines[RLOO_EXPLANATION]) {
    for (int i = 0; i < RLOO_EXPLANATION; i++) {
        strbuf_init(&lines[i]);
        strbuf_add(&lines[i], "");
    }
    explain_published(lines);
    explain_here(r, lines + 2);
}

/* ---- text ---------------------------------------------------------------------------------------------------------- */

static void print_cell(const rloo_cell *x, FILE *out) {
    char a[32], b[32];
    fprintf(out, "  %12s  %12s", x ? str_format_bytes(a, x->planned) : "",
            !x         ? ""
            : !x->fits ? "does not fit"
                       : str_format_bytes(b, x->peak));
}

static void print_saving(double share, FILE *out) {
    if (isnan(share)) fprintf(out, "  %8s", "");
    else fprintf(out, "  %6.1f %%", 100 * share);
}

/* Breaks a line at its spaces. */
static void print_wrapped(const char *text, FILE *out) {
    enum { COLUMNS = 110 };
    while (*text) {
        size_t n = strlen(text);
        if (n > COLUMNS)
            for (n = COLUMNS; n > 0 && text[n] != ' ';) n--;
        fprintf(out, "%.*s\n", (int)n, text);
        text += n;
        while (*text == ' ') text++;
    }
}

void rloo_print(const rloo_result *r, FILE *out) {
    const rloo_scale *s = r->scale;
    strbuf lines[RLOO_EXPLANATION];
    fprintf(out,
            "\n%s, vocabulary %lld, prompt %lld + completion %lld tokens, fp32, one rollout and one update each on %s\n"
            "base: rl.baseline_memory; cut: base with prompts of %lld tokens; ours: whole prompts\n\n",
            r->model.name, (long long)r->model.vocab, (long long)s->prompt, (long long)s->completion, r->machine,
            (long long)s->cut);
    fprintf(out, "      %-26s  %-26s  %-26s  %s\n", "  base", "  cut", "  ours", "  less than base");
    fprintf(out, "   k");
    for (int m = 0; m < RLOO_MODE_COUNT; m++) fprintf(out, "  %12s  %12s", "planned", "measured");
    fprintf(out, "  %8s  %8s\n", "cut", "ours");
    for (size_t i = 0; i < RLOO_KS; i++) {
        const rloo_cell *row[RLOO_MODE_COUNT];
        fprintf(out, "  %2lld", (long long)rloo_ks[i]);
        for (rloo_mode m = 0; m < RLOO_MODE_COUNT; m++) {
            row[m] = rloo_find(r, m, rloo_ks[i]);
            print_cell(row[m], out);
        }
        print_saving(rloo_saving(row[RLOO_BASE], row[RLOO_CUT]), out);
        print_saving(rloo_saving(row[RLOO_BASE], row[RLOO_OURS]), out);
        fputc('\n', out);
    }
    fputc('\n', out);
    rloo_explain(r, lines);
    for (int i = 0; i < RLOO_EXPLANATION; i++) {
        print_wrapped(lines[i].text, out);
        strbuf_fini(&lines[i]);
    }
}

/* ---- JSON ---------------------------------------------------------------------------------------------------------- */

static json_t *bytes_json(uint64_t n) { return json_integer((json_int_t)n); }
static json_t *measured_json(const rloo_cell *x, uint64_t n) { return x->fits ? bytes_json(n) : json_null(); }

static json_t *cell_json(const rloo_cell *x) {
    json_t *j = json_object();
    json_object_set_new(j, "mode", json_string(rloo_mode_name(x->mode)));
    json_object_set_new(j, "k", json_integer(x->k));
    json_object_set_new(j, "prompt_tokens", json_integer(x->prompt));
    json_object_set(j, "settings", x->settings);
    json_object_set_new(j, "fits", json_boolean(x->fits));
    json_object_set_new(j, "limit", bytes_json(x->limit));
    json_object_set_new(j, "planned", bytes_json(x->planned));
    json_object_set_new(j, "host_planned", bytes_json(x->host_planned));
    json_object_set_new(j, "rollout_bytes", bytes_json(x->rollout_bytes));
    json_object_set_new(j, "update_bytes", bytes_json(x->update_bytes));
    json_object_set_new(j, "peak_section", json_string(x->peak_section));
    json_object_set_new(j, "sequences", json_integer(x->sequences));
    json_object_set_new(j, "waves", json_integer(x->waves));
    json_object_set_new(j, "peak", measured_json(x, x->peak));
    json_object_set_new(j, "host_peak", measured_json(x, x->host_peak));
    json_object_set_new(j, "rss_peak", measured_json(x, x->rss_peak));
    if (x->gpu_in_use) json_object_set_new(j, "gpu_in_use", bytes_json(x->gpu_in_use));
    json_object_set_new(j, "step_seconds", json_real_or_null(x->step_s));
    json_object_set_new(j, "rollout_seconds", json_real_or_null(x->rollout_s));
    json_object_set_new(j, "update_seconds", json_real_or_null(x->update_s));
    json_object_set_new(j, "mean_length", json_real_or_null(x->length));
    json_object_set_new(j, "reward", json_real_or_null(x->reward));
    json_object_set_new(j, "grad_norm", json_real_or_null(x->grad_norm));
    json_object_set_new(j, "timeline", x->fits ? memory_line_json(&x->line) : json_null());
    return j;
}

static json_t *numbers_json(const double *list, size_t n) {
    json_t *j = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(j, json_real_or_null(list[i]));
    return j;
}

static json_t *published_json(void) {
    line_in_k base = line_through(published_base), cut = line_through(published_cut);
    return json_pack("{s:o, s:o, s:o, s:f, s:f}", "k", json_pack("[i, i, i]", 2, 4, 8), "base_gb",
                     numbers_json(published_base, ARRAY_LENGTH(published_base)), "cut_gb",
                     numbers_json(published_cut, ARRAY_LENGTH(published_cut)), "cost_of_completion", cut.b / base.b,
                     "tokens_of_row",
                     (double)(PUBLISHED_CUT + PUBLISHED_COMPLETION) / (PUBLISHED_PROMPT + PUBLISHED_COMPLETION));
}

json_t *rloo_json(const rloo_result *r, const bench_options *o) {
    const rloo_scale *s = r->scale;
    json_t *cells = json_array(), *explanation = json_array(), *files = json_array();
    strbuf lines[RLOO_EXPLANATION];
    rloo_explain(r, lines);
    for (int i = 0; i < RLOO_EXPLANATION; i++) {
        if (lines[i].length) json_array_append_new(explanation, json_string(lines[i].text));
        strbuf_fini(&lines[i]);
    }
    for (size_t i = 0; i < r->n_cells; i++) json_array_append_new(cells, cell_json(&r->cells[i]));
    for (size_t i = 0; o->out && i < ARRAY_LENGTH(rloo_files); i++)
        json_array_append_new(files, json_string(rloo_files[i]));
    json_t *j = json_pack("{s:s, s:s, s:o, s:i, s:s, s:I, s:I, s:I, s:I}", "bench", "rloo", "scale", s->name, "machine",
                          json_text(r->machine, strlen(r->machine)), "threads", r->n_threads, "model", r->model.name,
                          "vocabulary", (json_int_t)r->model.vocab, "prompt_tokens", (json_int_t)s->prompt,
                          "cut_prompt_tokens", (json_int_t)s->cut, "completion_tokens", (json_int_t)s->completion);
    json_object_set_new(j, "cells", cells);
    json_object_set_new(j, "spread", json_real(spread(r, RLOO_OURS)));
    json_object_set_new(j, "grad_norm_difference", json_real_or_null(gradient_difference(r)));
    json_object_set_new(j, "published", published_json());
    json_object_set_new(j, "explanation", explanation);
    json_object_set_new(j, "files", files);
    return j;
}
