/* export_card.c - export of a run, with what its directory says in the model card: settings, data, losses at that step. A run directory may come
 * from anyone and lack anything; then the card says less. */
#include "cli/export_card.h"
#include "ralo.h"
#include "report/report.h"

#include <math.h>
#include <unistd.h>

/* The run that a path belongs to: itself, RUN/best, RUN/checkpoints/step-00000040. False: none. */
static bool find_run(const char *from, char *out, size_t n) {
    static const char *const up[] = {"", "/..", "/../.."};
    char file[4300];
    for (size_t i = 0; i < ARRAY_LENGTH(up); i++) {
        if (snprintf(out, n, "%s%s", from, up[i]) >= (int)n) return false;
        snprintf(file, sizeof file, "%s/config.yaml", out);
        if (access(file, R_OK) == 0) return true;
    }
    return false;
}

static int64_t step_of(const char *from) {
    char found[4096];
    int64_t step = 0;
    if (checkpoint_step_of(from, &step)) return step;
    if (checkpoint_find_newest_quietly(from, found, sizeof found) != OK) error_clear();
    else checkpoint_step_of(found, &step);
    return step;
}

/* Settings of a later ralo, or of anyone, may not be readable here. */
static void read_settings(const char *dir, strbuf *out) {
    config c;
    char file[4300];
    snprintf(file, sizeof file, "%s/config.yaml", dir);
    config_init(&c);
    if (config_read_file(&c, file) == OK) config_write_changes(&c, out);
    else error_clear();
    config_fini(&c);
}

status export_from_run(const char *from, export_options *o, export_report *out) {
    export_card card = {.version = RALO_VERSION, .loss = NAN, .eval_loss = NAN};
    const char *trained = o->adapter ? o->adapter : from;
    char dir[4200];
    run r = {0};
    strbuf settings;
    strbuf_init(&settings);
    bool is_run = !export_is_gguf_name(o->dir) && find_run(trained, dir, sizeof dir);
    if (is_run && run_open(&r, dir, RUN_METRICS) == OK) {
        card.steps = step_of(trained);
        card.task = r.task, card.data = r.data;
        card.loss = series_at(run_metrics_find(&r.metrics, "train/loss"), (double)card.steps);
        card.eval_loss = series_at(run_metrics_find(&r.metrics, "val/loss"), (double)card.steps);
        read_settings(dir, &settings);
        card.settings = settings.text;
    } else {
        error_clear();
    }
    o->card = &card;
    status rc = export_checkpoint(from, o, out);
    o->card = NULL;
    if (is_run) run_close(&r);
    strbuf_fini(&settings);
    return rc;
}
