#pragma once
/* draw.h - what DRAW_TOKENS reads and writes for a row of logits. */

/* A row of draws, fp64. */
enum {
    DRAW_UNIFORM,     /* in [0, 1): decides which token is drawn */
    DRAW_TEMPERATURE, /* the logits are divided by it; 0: the largest logit is taken */
    DRAW_COUNT
};
/* Below it quotients may leave the range of fp32. */
#define DRAW_TEMPERATURE_LEAST 0.001

/* A row of drawn, fp64. Nothing but DRAWN_LOG_SUM is defined where that is not finite. */
enum {
    DRAWN_TOP,       /* id of the largest logit, the first of equals */
    DRAWN_TOP_LOGIT, /* that logit */
    DRAWN_LOG_SUM,   /* log of the sum of all exp(logit) */
    DRAWN_TOKEN,     /* id of the drawn one */
    DRAWN_LOGIT,     /* its logit */
    DRAWN_TEMPERED,  /* log of its probability at the temperature; temperature 0: at 1 */
    DRAWN_COUNT
};
