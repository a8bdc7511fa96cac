#pragma once
/* norm_places.h - the places of operands in each of the norms and their gradients, for tests that go through all of them. */
#include "program/program.h"

typedef struct norm_places {
    int x, b, gamma, beta;      /* inputs; b: what is added to x, beta: of a LayerNorm */
    int s, y, mean, rstd, amax; /* outputs; s: the sum, mean: of a LayerNorm */
} norm_places;

static inline norm_places norm_places_of(bool centered, bool add) {
    if (centered && add)
        return (norm_places){.x = ADD_LAYERNORM_A,
                             .b = ADD_LAYERNORM_B,
                             .gamma = ADD_LAYERNORM_GAMMA,
                             .beta = ADD_LAYERNORM_BETA,
                             .s = ADD_LAYERNORM_S,
                             .y = ADD_LAYERNORM_Y,
                             .mean = ADD_LAYERNORM_MEAN,
                             .rstd = ADD_LAYERNORM_RSTD,
                             .amax = ADD_LAYERNORM_AMAX};
    if (add)
        return (norm_places){.x = ADD_RMSNORM_A,
                             .b = ADD_RMSNORM_B,
                             .gamma = ADD_RMSNORM_GAMMA,
                             .s = ADD_RMSNORM_S,
                             .y = ADD_RMSNORM_Y,
                             .rstd = ADD_RMSNORM_RSTD,
                             .amax = ADD_RMSNORM_AMAX};
    if (centered)
        return (norm_places){.x = LAYERNORM_X,
                             .gamma = LAYERNORM_GAMMA,
                             .beta = LAYERNORM_BETA,
                             .y = LAYERNORM_Y,
                             .mean = LAYERNORM_MEAN,
                             .rstd = LAYERNORM_RSTD,
                             .amax = LAYERNORM_AMAX};
    return (norm_places){
        .x = RMSNORM_X, .gamma = RMSNORM_GAMMA, .y = RMSNORM_Y, .rstd = RMSNORM_RSTD, .amax = RMSNORM_AMAX};
}

typedef struct norm_bwd_places {
    int x, gamma, mean, rstd, dy, dres; /* inputs */
    int dx, dgamma, dbeta, amax;        /* outputs */
} norm_bwd_places;

static inline norm_bwd_places norm_bwd_places_of(bool centered) {
    if (centered)
        return (norm_bwd_places){.x = LAYERNORM_BWD_X,
                                 .gamma = LAYERNORM_BWD_GAMMA,
                                 .mean = LAYERNORM_BWD_MEAN,
                                 .rstd = LAYERNORM_BWD_RSTD,
                                 .dy = LAYERNORM_BWD_DY,
                                 .dres = LAYERNORM_BWD_DRES,
                                 .dx = LAYERNORM_BWD_DX,
                                 .dgamma = LAYERNORM_BWD_DGAMMA,
                                 .dbeta = LAYERNORM_BWD_DBETA,
                                 .amax = LAYERNORM_BWD_AMAX};
    return (norm_bwd_places){.x = RMSNORM_BWD_X,
                             .gamma = RMSNORM_BWD_GAMMA,
                             .rstd = RMSNORM_BWD_RSTD,
                             .dy = RMSNORM_BWD_DY,
                             .dres = RMSNORM_BWD_DRES,
                             .dx = RMSNORM_BWD_DX,
                             .dgamma = RMSNORM_BWD_DGAMMA,
                             .amax = RMSNORM_BWD_AMAX};
}
