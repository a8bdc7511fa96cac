/* command_bench.c - ralo bench: the list of published experiments, or one of them repeated here. */
#include "bench/bench.h"
#include "cli/output.h"

#include <signal.h>

static void on_signal(int number) { bench_interrupt(); }

/* The first signal ends after the present step, so that what was made for the run is removed; a second one ends the process. */
static void catch_signals(void) {
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
}

static void list_benches(bool json) {
    json_t *list = json_array();
    const bench *b;
    for (size_t i = 0; (b = bench_at(i)); i++) {
        if (!json) printf("  ralo bench %-8s %s\n", b->name, b->what);
        json_array_append_new(list, json_pack("{s:s, s:s}", "name", b->name, "what", b->what));
    }
    if (json) json_print(json_pack("{s:o}", "benches", list), "bench list", ALL_DIGITS);
    else json_decref(list);
}

static status unknown(const char *name) {
    str_nearest nearest = {.wanted = name};
    for (size_t i = 0; bench_at(i); i++) str_nearest_try(&nearest, bench_at(i)->name);
    return ERR(ERR_INPUT, "bench: '%.100s' is not known%s%s%s; 'ralo bench' lists them", name,
               *nearest.name ? "; did you mean '" : "", nearest.name, *nearest.name ? "'?" : "");
}

status command_bench(command_line *l) {
    const char *name = l->arguments[0];
    json_t *result;
    char kind[64];
    if (!name) {
        list_benches(l->json);
        return OK;
    }
    const bench *b = bench_find(name);
    if (!b) return unknown(name);
    catch_signals();
    TRY(b->run(&(bench_options){.scale = (bench_scale)l->scale,
                                .device = l->device,
                                .gpu = l->gpu,
                                .n_threads = l->generation.n_threads,
                                .device_limit = l->generation.device_limit,
                                .out = l->out,
                                .report = report_stream(l->json),
                                .progress = stderr},
               &result));
    snprintf(kind, sizeof kind, "bench %s", b->name);
    if (l->json) json_print(result, kind, ALL_DIGITS);
    else json_decref(result);
    return OK;
}
