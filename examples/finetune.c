/* finetune.c - train a model with libralo in a hundred lines.
 *
 *     cc finetune.c -o finetune $(pkg-config --cflags --libs ralo)
 *     ./finetune MODEL DATA OUT [KEY=VALUE]...
 *
 * MODEL   a Hugging Face directory (config.json, safetensors), whose weights are the start; or the name of a preset, such
 *         as gpt2, which starts from random weights
 * DATA    text files separated by commas, or builtin:arithmetic, builtin:grammar
 * OUT     a new directory: OUT/run gets a checkpoint, OUT/model the trained model as transformers loads it
 * KEY=VALUE   any setting that `ralo help settings` lists, such as train.steps=200 */
#include <ralo.h>

#include <stdio.h>
#include <string.h>

/* Every function that can fail returns a ralo_status; the message belongs to this thread and says what to do. */
static int failed(const char *what) {
    fprintf(stderr, "finetune: %s: %s\n", what, ralo_error_message());
    return 1;
}

/* The library itself prints nothing; it tells us, and we decide. */
static void on_log(void *context, ralo_log_level level, const char *line) {
    (void)context;
    fprintf(stderr, "%s%s\n", level == RALO_LOG_WARNING ? "warning: " : "", line);
}

static int is_directory_of_model(const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", name);
    FILE *f = fopen(path, "r");
    if (f) fclose(f);
    return f != NULL;
}

/* What `ralo train` reads from a file and from --set, we say in calls. A setting that does not exist, or a value out of its
 * range, is refused here. */
static ralo_status fill(ralo_settings *s, const char *model, const char *data, const char *out, char **more) {
    char text[4096];
    ralo_status rc = ralo_settings_set(s, is_directory_of_model(model) ? "model.path" : "model.preset", model);
    if (rc == RALO_OK) rc = ralo_settings_set(s, "data.source", data);
    snprintf(text, sizeof text, "%s/run", out);
    if (rc == RALO_OK) rc = ralo_settings_set(s, "run.dir", text);
    for (; *more && rc == RALO_OK; more++) {
        const char *equals = strchr(*more, '=');
        snprintf(text, sizeof text, "%.*s", (int)(equals ? equals - *more : (long)strlen(*more)), *more);
        rc = ralo_settings_set(s, text, equals ? equals + 1 : "");
    }
    return rc;
}

/* The loop is ours: we could change it, stop early, or write the numbers anywhere. */
static ralo_status train(ralo_trainer *t) {
    ralo_step step;
    ralo_evaluation e;
    ralo_status rc = RALO_OK;
    while (rc == RALO_OK && ralo_trainer_steps_left(t) > 0) {
        rc = ralo_trainer_step(t, &step);
        if (rc == RALO_OK)
            printf("step %lld  loss %.4f  grad %.3g  lr %.2e  %.0f ms\n", (long long)step.step, step.loss,
                   step.grad_norm, step.lr, step.seconds * 1e3);
    }
    if (rc == RALO_OK) rc = ralo_trainer_evaluate(t, &e);
    if (rc == RALO_OK) printf("held out  loss %.4f\n", e.loss);
    return rc;
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: finetune MODEL DATA OUT [KEY=VALUE]...\n");
        return 2;
    }
    char model_dir[4096];
    uint64_t hash;
    ralo_settings *settings = NULL;
    ralo_trainer *trainer = NULL;
    int rc = 0;
    snprintf(model_dir, sizeof model_dir, "%s/model", argv[3]);
    ralo_set_log(on_log, NULL);

    if (ralo_settings_new(&settings) != RALO_OK || fill(settings, argv[1], argv[2], argv[3], argv + 4) != RALO_OK)
        rc = failed("settings");
    /* Plans the step, allocates exactly that, and loads the weights. What does not fit is refused here, before a step. */
    else if (ralo_trainer_open(&trainer, settings) != RALO_OK) rc = failed("open");
    else {
        fputs(ralo_plan_text(ralo_trainer_plan(trainer)), stdout);
        if (train(trainer) != RALO_OK) rc = failed("train");
        else if (ralo_trainer_save(trainer) != RALO_OK) rc = failed("save");
        else if (ralo_trainer_export(trainer, model_dir, NULL) != RALO_OK) rc = failed("export");
        else if (ralo_trainer_param_hash(trainer, &hash) != RALO_OK) rc = failed("hash");
        else printf("saved     %s  (param_hash %016llx)\n", argv[3], (unsigned long long)hash);
    }
    /* Both take NULL, so one way out is enough. */
    ralo_trainer_close(trainer);
    ralo_settings_free(settings);
    return rc;
}
