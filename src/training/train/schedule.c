/* schedule.c - learning rate by step, and the fp16 loss scale. Both are pure functions of their state: a resumed run
 * continues them without a trace. */
#include "train/train.h"

#include <math.h>

static int64_t schedule_end(const train_options *o) { return o->schedule_steps ? o->schedule_steps : o->steps; }

/* Share of the way from warmup's end to the last step: 0 right after warmup, 1 at the last step. */
static double progress(const train_options *o, int64_t step, int64_t from) {
    int64_t end = schedule_end(o), span = end - from;
    if (step >= end) return 1;
    return span <= 0 ? 1 : (double)(step - from) / (double)span;
}

static double warmup_lr(const train_options *o, double part, double whole) {
    return o->warmup_min_lr + (o->lr - o->warmup_min_lr) * part / whole;
}

static double cosine(const train_options *o, double share) {
    return o->lr * (o->min_lr_ratio + (1 - o->min_lr_ratio) * 0.5 * (1 + cos(M_PI * share)));
}

static double deepspeed_lr(const train_options *o, int64_t step) {
    int64_t i = step - 2, w = MAX(o->warmup, (int64_t)2), span = MAX(schedule_end(o) - w, (int64_t)1);
    if (i < 0) return o->schedule == SCHEDULE_COSINE ? 0 : o->warmup_min_lr;
    if (i < w && o->warmup_kind == WARMUP_LOG) return warmup_lr(o, log((double)(i + 1)), log((double)w));
    if (i < w) return warmup_lr(o, (double)i, (double)w);
    switch (o->schedule) {
    case SCHEDULE_COSINE: return cosine(o, fmin(1, (double)(i - w + 1) / (double)span));
    case SCHEDULE_LINEAR: {
        double left = fmax(0, (double)(schedule_end(o) - i) / (double)span);
        return o->lr * (o->min_lr_ratio + (1 - o->min_lr_ratio) * left);
    }
    case SCHEDULE_WSD: /* DeepSpeed has none; the settings refuse the pair */
    case SCHEDULE_CONSTANT:
    case SCHEDULE_COUNT: break;
    }
    return o->lr;
}

double schedule_lr(const train_options *o, int64_t step) {
    if (o->style == STYLE_DEEPSPEED) return deepspeed_lr(o, step);
    if (step <= o->warmup && o->warmup_kind == WARMUP_LOG)
        return warmup_lr(o, log((double)(step + 1)), log((double)(o->warmup + 1)));
    if (step <= o->warmup) return warmup_lr(o, (double)step, (double)o->warmup);
    double floor = o->min_lr_ratio, share = progress(o, step, o->warmup);
    switch (o->schedule) {
    case SCHEDULE_COSINE: return cosine(o, share);
    case SCHEDULE_LINEAR: return o->lr * (1 - (1 - floor) * share);
    case SCHEDULE_WSD: { /* warm up, stay, decay linearly over the last decay_share of the steps, at least the last one */
        int64_t end = schedule_end(o), n_decay = (int64_t)llround(o->decay_share * (double)end),
                decay_from = end - MAX(n_decay, (int64_t)1);
        if (decay_from < o->warmup) decay_from = o->warmup;
        if (step <= decay_from) return o->lr;
        return o->lr * (1 - (1 - floor) * progress(o, step, decay_from));
    }
    case SCHEDULE_CONSTANT:
    case SCHEDULE_COUNT: break;
    }
    return o->lr;
}

void scaler_init(loss_scaler *s, const train_options *o) {
    s->scale = o->loss_scale > 0 ? o->loss_scale : ldexp(1.0, (int)o->initial_scale_power);
    s->clean_steps = 0;
    s->hysteresis_left = o->hysteresis;
}

status scaler_update(loss_scaler *s, const train_options *o, bool overflow) {
    if (o->loss_scale > 0) return OK; /* static: the step is skipped, the scale stays */
    if (overflow) {
        s->clean_steps = 0;
        if (s->hysteresis_left > 1) {
            s->hysteresis_left--;
            return OK;
        }
        if (s->scale <= o->min_loss_scale)
            return ERR(ERR_RUN,
                       "fp16: gradients overflow at the smallest loss scale %g; lower train.lr, or use precision=bf16, "
                       "whose range needs no scale",
                       s->scale);
        s->scale = fmax(s->scale / 2, o->min_loss_scale);
        return OK;
    }
    if (o->consecutive_hysteresis) s->hysteresis_left = o->hysteresis;
    if (++s->clean_steps % o->loss_scale_window == 0) {
        s->scale *= 2;
        s->hysteresis_left = o->hysteresis;
    }
    return OK;
}
