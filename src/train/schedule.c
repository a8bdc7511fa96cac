/* schedule.c - learning rate by step, and the fp16 loss scale. Both are pure functions of their state: a resumed run
 * continues them without a trace. */
#include "train/train.h"

#include <math.h>

/* Share of the way from warmup's end to the last step: 0 right after warmup, 1 at the last step. */
static double progress(const train_options *o, int64_t step, int64_t from) {
    if (step >= o->steps) return 1;
    int64_t span = o->steps - from;
    return span <= 0 ? 1 : (double)(step - from) / (double)span;
}

double schedule_lr(const train_options *o, int64_t step) {
    if (step <= o->warmup) return o->lr * (double)step / (double)o->warmup;
    double floor = o->min_lr_ratio, share = progress(o, step, o->warmup);
    switch (o->schedule) {
    case SCHEDULE_COSINE: return o->lr * (floor + (1 - floor) * 0.5 * (1 + cos(M_PI * share)));
    case SCHEDULE_LINEAR: return o->lr * (1 - (1 - floor) * share);
    case SCHEDULE_WSD: { /* warm up, stay, decay linearly over the last decay_share of the steps, at least the last one */
        int64_t n_decay = (int64_t)llround(o->decay_share * (double)o->steps),
                decay_from = o->steps - MAX(n_decay, (int64_t)1);
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
    if (++s->clean_steps % o->loss_scale_window == 0) {
        s->scale *= 2;
        s->hysteresis_left = o->hysteresis;
    }
    return OK;
}
