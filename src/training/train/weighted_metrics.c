/* weighted_metrics.c - what a step with weighed losses reports, by head, by selection and by weight. */
#include "train/weighted_task.h"

#include <math.h>

#define HEAD_METRIC(k, label)                                   \
    [METRIC_HEAD + k - 1] = {"train/head" #k "_ce_loss", label, \
                             "mean cross entropy of head " #k ", which predicts token t + " #k}
#define HEAD_SELECTED(k)                                                 \
    [METRIC_HEAD_SELECTED + k - 1] = {"train/head" #k "_selected", NULL, \
                                      "rho1: tokens of the step that head " #k " trains on"}
const task_metric weighted_metrics[WEIGHTED_METRICS] = {
    [METRIC_WEIGHTED] = {"train/weighted_ce_loss", NULL, "the loss: mean over heads of their weighted cross entropy"},
    [METRIC_UNWEIGHTED] = {"train/unweighted_ce_loss", NULL, "mean over heads of their cross entropy without weights"},
    HEAD_METRIC(1, "head 1"),
    HEAD_METRIC(2, "head 2"),
    HEAD_METRIC(3, NULL),
    HEAD_METRIC(4, NULL),
    HEAD_METRIC(5, NULL),
    HEAD_METRIC(6, NULL),
    HEAD_METRIC(7, NULL),
    HEAD_METRIC(8, NULL),
    [METRIC_SELECTION_RATIO] = {"train/selection_ratio", "selected",
                                "rho1: share of the tokens that are trained on, over all heads"},
    [METRIC_AVG_HEADS] = {"train/avg_heads_per_position", NULL, "rho1: heads that train at a position, in the mean"},
    [METRIC_EXCESS] = {"train/excess_loss", NULL,
                       "rho1: mean excess loss of all tokens, selected or not, over all heads"},
    [METRIC_THRESHOLD] = {"train/threshold", NULL, "rho1: mean excess loss from which on tokens were selected"},
    HEAD_SELECTED(1),
    HEAD_SELECTED(2),
    HEAD_SELECTED(3),
    HEAD_SELECTED(4),
    HEAD_SELECTED(5),
    HEAD_SELECTED(6),
    HEAD_SELECTED(7),
    HEAD_SELECTED(8),
    [METRIC_WEIGHT_MEAN] = {"weight/mean", NULL,
                            "verifiable, shuffled, random: mean weight of the targets of the step"},
    [METRIC_WEIGHT_STD] = {"weight/std", NULL, "their standard deviation"},
    [METRIC_WEIGHT_LEAST] = {"weight/min", NULL, "the smallest weight"},
    [METRIC_WEIGHT_MOST] = {"weight/max", NULL, "the largest weight"},
    [METRIC_WEIGHT_ENTROPY] =
        {"weight/entropy", NULL,
         "entropy of the weights as shares of their sum, in nats: the log of the number of targets "
         "where all are equal"},
    [METRIC_TD_MEAN] = {"td/mean", NULL, "verifiable, shuffled: mean advantage of the targets of the step"},
    [METRIC_TD_STD] = {"td/std", NULL, "standard deviation of the advantages"},
    [METRIC_TD_EMA_MEAN] = {"td/ema_mean", NULL,
                            "moving average of td/mean that the weights of the step were made with"},
    [METRIC_TD_EMA_STD] = {"td/ema_std", NULL, "the same of td/std"},
};
_Static_assert(MTP_HEADS_MAX == 8 && (int)WEIGHTED_METRICS <= (int)METRICS_MOST, "a row for every head");

/* What selection left of the step, behind the sums of all losses. */
static status report_selection(const weighted_task *t, double n_valid, double n_positions, train_metrics *to) {
    const plan *p = t->rows.host.plan;
    float sums[MTP_HEADS_MAX][SELECT_SUM_COUNT];
    double all[SELECT_SUM_COUNT] = {0};
    int n = p->net.n_losses;
    exec_read(t->rows.host.exec, p->step.clip, (size_t)(CLIP_COUNT + n * SUM_COUNT) * sizeof(float), sums,
              (size_t)n * sizeof *sums);
    TRY(exec_check(t->rows.host.exec));
    for (int k = 0; k < n; k++)
        for (int i = 0; i < SELECT_SUM_COUNT; i++) all[i] += (double)sums[k][i];
    train_metrics_add(to, &weighted_metrics[METRIC_SELECTION_RATIO], all[SELECT_COUNT] / n_valid);
    train_metrics_add(to, &weighted_metrics[METRIC_AVG_HEADS], all[SELECT_COUNT] / n_positions);
    train_metrics_add(to, &weighted_metrics[METRIC_EXCESS], all[SELECT_EXCESS] / n_valid);
    train_metrics_add(to, &weighted_metrics[METRIC_THRESHOLD], all[SELECT_THRESHOLD] / all[SELECT_MICROS]);
    for (int k = 0; k < n; k++)
        train_metrics_add(to, &weighted_metrics[METRIC_HEAD_SELECTED + k], (double)sums[k][SELECT_COUNT]);
    return OK;
}

static void report_weights(const weighted_task *t, const weighted_step *s, train_metrics *to) {
    const value_sums *v = &s->sums;
    train_metrics_add(to, &weighted_metrics[METRIC_WEIGHT_MEAN], value_mean(v->n, v->weight));
    train_metrics_add(to, &weighted_metrics[METRIC_WEIGHT_STD], value_deviation(v->n, v->weight, v->weight_squares));
    train_metrics_add(to, &weighted_metrics[METRIC_WEIGHT_LEAST], v->n > 0 ? v->weight_least : NAN);
    train_metrics_add(to, &weighted_metrics[METRIC_WEIGHT_MOST], v->n > 0 ? v->weight_most : NAN);
    train_metrics_add(to, &weighted_metrics[METRIC_WEIGHT_ENTROPY], value_entropy(v));
    if (!t->how->by_value) return;
    train_metrics_add(to, &weighted_metrics[METRIC_TD_MEAN], value_mean(v->n, v->advantage));
    train_metrics_add(to, &weighted_metrics[METRIC_TD_STD], value_deviation(v->n, v->advantage, v->advantage_squares));
    train_metrics_add(to, &weighted_metrics[METRIC_TD_EMA_MEAN], s->before.mean);
    train_metrics_add(to, &weighted_metrics[METRIC_TD_EMA_STD], s->before.deviation);
}

status weighted_report(const weighted_task *t, const weighted_step *s, train_step_report *report) {
    const plan *p = t->rows.host.plan;
    float sums[MTP_HEADS_MAX][SUM_COUNT];
    double mean = 0, n_counted = 0, n_valid = 0;
    int n = p->net.n_losses;
    bool selects = p->net.selection.kind != SELECTION_NONE;
    train_metrics_add(&report->metrics, &weighted_metrics[METRIC_WEIGHTED], report->loss);
    if (n == 1 && !selects && !t->weights) { /* the program of an ordinary model, which has one loss */
        train_metrics_add(&report->metrics, &weighted_metrics[METRIC_UNWEIGHTED], report->loss);
        train_metrics_add(&report->metrics, &weighted_metrics[METRIC_HEAD], report->loss);
        return OK;
    }
    exec_read(t->rows.host.exec, p->step.clip, CLIP_COUNT * sizeof(float), sums, (size_t)n * sizeof *sums);
    TRY(exec_check(t->rows.host.exec));
    for (int k = 0; k < n; k++) {
        double loss = sums[k][SUM_VALID] > 0 ? (double)sums[k][SUM_LOSS] / (double)sums[k][SUM_VALID] : NAN;
        if (sums[k][SUM_VALID] > 0) mean += loss, n_counted++;
        n_valid += (double)sums[k][SUM_VALID];
        train_metrics_add(&report->metrics, &weighted_metrics[METRIC_HEAD + k], loss);
    }
    train_metrics_add(&report->metrics, &weighted_metrics[METRIC_UNWEIGHTED], mean / n_counted);
    if (t->weights) report_weights(t, s, &report->metrics);
    return selects ? report_selection(t, n_valid, (double)sums[0][SUM_VALID], &report->metrics) : OK;
}
