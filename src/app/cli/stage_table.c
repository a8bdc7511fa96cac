/* stage_table.c - metrics of several runs, one column each. Rows are the metrics that people compare runs of a task by, as far as any
 * of the runs has them. */
#include "cli/stage_table.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define METRICS_MOST ((size_t)1 << 30)

static const char *const rows[] = {
    "step",
    "tokens",
    "train/loss",
    "train/weighted_ce_loss",
    "train/unweighted_ce_loss",
    "train/head1_ce_loss",
    "train/selection_ratio",
    "train/avg_heads_per_position",
    "train/excess_loss",
    "train/threshold",
    "weight/mean",
    "weight/std",
    "weight/min",
    "weight/max",
    "weight/entropy",
    "td/mean",
    "td/std",
    "td/ema_mean",
    "td/ema_std",
    "value/mean_pos",
    "value/mean_neg",
    "value/margin",
    "train/pairwise_accuracy",
    "reward",
    "kl",
    "completions/mean_length",
    "rewards/accuracies",
    "rewards/margins",
    "val/loss",
    "val/pairwise_accuracy",
    "val/reward",
    "val/pass_rate",
    "val/rewards/accuracies",
    "val/rewards/margins",
    "val/exact_match",
    "train/learning_rate",
    "train/grad_norm",
    "system/gpu_memory_allocated_gb",
    "memory/device_bytes",
    "perf/tokens_per_sec",
};

status stage_metrics_read(const char *run_dir, json_t **out) {
    char path[4200], *text;
    size_t n;
    *out = json_object();
    snprintf(path, sizeof path, "%s/metrics.jsonl", run_dir);
    if (access(path, F_OK) != 0) return OK;
    status rc = file_read_all(path, METRICS_MOST, &text, &n);
    if (rc != OK) {
        json_decref(*out);
        *out = NULL;
        return rc;
    }
    for (char *line = text, *end; *line; line = end) {
        end = line + strcspn(line, "\n");
        json_t *object = json_loadb(line, (size_t)(end - line), 0, NULL);
        if (json_is_object(object)) json_object_update(*out, object);
        json_decref(object);
        if (*end) end++;
    }
    free(text);
    return OK;
}

static const char *cell(char out[32], const json_t *metrics, const char *name) {
    const json_t *v = json_object_get(metrics, name);
    if (json_is_integer(v)) snprintf(out, 32, "%lld", (long long)json_integer_value(v));
    else if (json_is_real(v)) snprintf(out, 32, "%.4g", json_real_value(v));
    else snprintf(out, 32, "-");
    return out;
}

void stage_table_print(const stage_column *columns, size_t n, FILE *out) {
    char text[32];
    fprintf(out, "\n%-30s", "last value");
    for (size_t k = 0; k < n; k++)
        fprintf(out, "  %*s", (int)MAX(strlen(columns[k].name), (size_t)12), columns[k].name);
    fputc('\n', out);
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
        bool any = false;
        for (size_t k = 0; k < n; k++) any |= json_object_get(columns[k].metrics, rows[i]) != NULL;
        if (!any) continue;
        fprintf(out, "%-30s", rows[i]);
        for (size_t k = 0; k < n; k++)
            fprintf(out, "  %*s", (int)MAX(strlen(columns[k].name), (size_t)12),
                    cell(text, columns[k].metrics, rows[i]));
        fputc('\n', out);
    }
}
