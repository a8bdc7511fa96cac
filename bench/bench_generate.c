/* bench_generate.c - completions of 64 prompts: all in one batch against one after the other, in one run.
 *
 * The model is random (its weights do not change the time), about 13 million parameters of a Llama. Both ways give the same
 * tokens, which is checked. Counted is the time of the steps with their sampling, as generation_report has it. Prefill is
 * measured over the same prompts. The two take turns; the best round of each counts. */
#include "model/model.h"
#include "roofline.h"
#include "train/train.h"
#include "weights/export.h"
#include "weights/params.h"

#include <unistd.h>

enum { PROMPTS = 64, NEW = 24, CONTEXT = 256 };

static void must(status rc) {
    if (rc == OK) return;
    error_print(stderr);
    exit(1);
}

static void write_model(const char *dir) {
    model_config c = {.name = "bench",
                      .family = FAMILY_LLAMA,
                      .vocab = BYTE_VOCAB,
                      .hidden = 384,
                      .n_layers = 8,
                      .n_heads = 6,
                      .n_kv_heads = 2,
                      .head_dim = 64,
                      .ffn = 1024,
                      .max_positions = CONTEXT,
                      .norm_eps = 1e-5,
                      .tied = true,
                      .rope = {.type = ROPE_DEFAULT, .theta = 10000}};
    const backend *b = backend_cpu();
    plan_request r = {.source = net_source_of(&c),
                      .choice.micro_batch = 1,
                      .choice.accumulation = 1,
                      .seq_len = 8,
                      .with_eval = true,
                      .no_training = true,
                      .target = {b->name, 1, 64, b->work_bytes}};
    plan p;
    exec *e;
    export_report report;
    must(plan_build(&p, &r));
    must(exec_open(&e, &p.program, &(exec_options){.backend = b, .n_threads = 1}));
    params_initialize(e, &p, 1);
    json_t *description = json_pack("{s:o}", "config", model_config_to_json(&c));
    char *text = json_dumps(description, 0);
    must(export_running(e, &p, text, NULL, &(export_options){.dir = dir, .type = DTYPE_F32}, &report));
    json_decref(description);
    free(text);
    exec_close(e);
    plan_close(&p);
}

typedef struct result {
    double prefill_rate, decode_rate, rate; /* tokens per second; rate: new tokens over everything */
} result;

static void take_best(result *best, const generation_report *r) {
    double all = r->prefill_seconds + r->decode_seconds;
    best->prefill_rate = MAX(best->prefill_rate, (double)r->prompt_tokens / r->prefill_seconds);
    best->decode_rate = MAX(best->decode_rate, (double)(r->new_tokens - PROMPTS) / r->decode_seconds);
    best->rate = MAX(best->rate, (double)r->new_tokens / all);
}

static void add(generation_report *sum, const generation_report *r) {
    sum->prompt_tokens += r->prompt_tokens;
    sum->new_tokens += r->new_tokens;
    sum->prefill_seconds += r->prefill_seconds;
    sum->decode_seconds += r->decode_seconds;
}

static void measure(const roofline *r, const char *dir, precision q, const prompt *prompts) {
    static const int64_t widths[] = {1, 8, PROMPTS};
    generator *g[ARRAY_LENGTH(widths)];
    result best[ARRAY_LENGTH(widths)] = {{0}};
    sampling_options s = SAMPLING_DEFAULTS;
    s.max_new = NEW;
    s.ignore_eos = true;
    for (size_t i = 0; i < ARRAY_LENGTH(widths); i++)
        must(generator_open(&g[i], &(generator_options){.source = dir,
                                                        .precision = q,
                                                        .max_sequences = widths[i],
                                                        .n_threads = r->n_threads,
                                                        .backend = backend_cpu()}));
    uint64_t different = 0;
    for (int round = 0; round < r->rounds; round++) {
        completion *first = NULL;
        for (size_t i = 0; i < ARRAY_LENGTH(widths); i++) {
            generation_report sum = {0}, one;
            completion *c = mem_alloc(PROMPTS * sizeof *c), *part;
            size_t step = widths[i] == 1 ? 1 : PROMPTS; /* one by one really is one call for each */
            for (size_t k = 0; k < PROMPTS; k += step) {
                must(generator_run(g[i], prompts + k, step, &s, NULL, &part, &one));
                memcpy(c + k, part, step * sizeof *c);
                free(part);
                add(&sum, &one);
            }
            take_best(&best[i], &sum);
            for (size_t k = 0; k < PROMPTS && first; k++)
                different += memcmp(c[k].tokens, first[k].tokens, NEW * sizeof(int32_t)) != 0;
            if (!first) first = c;
            else completions_free(c, PROMPTS);
        }
        completions_free(first, PROMPTS);
    }
    for (size_t i = 0; i < ARRAY_LENGTH(widths); i++) {
        printf("%-4s batch %2d: %8.1f tokens/s (%5.2fx one by one), prefill %8.1f, decode %8.1f tokens/s\n",
               precision_name(q), (int)widths[i], best[i].rate, best[i].rate / best[0].rate, best[i].prefill_rate,
               best[i].decode_rate);
        if (r->json)
            fprintf(r->json,
                    "{\"precision\": \"%s\", \"batch\": %d, \"tokens_per_second\": %.2f, \"ratio\": %.3f, "
                    "\"prefill\": %.2f, \"decode\": %.2f}\n",
                    precision_name(q), (int)widths[i], best[i].rate, best[i].rate / best[0].rate, best[i].prefill_rate,
                    best[i].decode_rate);
        generator_close(g[i]);
    }
    printf("%-4s completions that differ between batches: %llu\n", precision_name(q), (unsigned long long)different);
}

int main(int argc, char **argv) {
    roofline r;
    if (!roofline_open(&r, argc, argv)) return 2;
    char base[] = "/tmp/ralo-bench-XXXXXX", dir[64];
    static int32_t tokens[PROMPTS][CONTEXT];
    prompt prompts[PROMPTS];
    if (!mkdtemp(base)) return 2;
    snprintf(dir, sizeof dir, "%s/model", base);
    write_model(dir);
    size_t total = 0;
    for (size_t i = 0; i < PROMPTS; i++) {
        size_t n = 8 + i * 29 % 96;
        for (size_t k = 0; k < n; k++) tokens[i][k] = (int32_t)rng_below(i, k, 256);
        prompts[i] = (prompt){tokens[i], n};
        total += n;
    }
    printf("generate: %d prompts of %.1f tokens on average, %d new ones each, %d threads, best of %d rounds\n", PROMPTS,
           (double)total / PROMPTS, NEW, r.n_threads, r.rounds);
    measure(&r, dir, PRECISION_FP32, prompts);
    measure(&r, dir, PRECISION_BF16, prompts);
    must(dir_remove_all(base));
    roofline_close(&r);
    return 0;
}
