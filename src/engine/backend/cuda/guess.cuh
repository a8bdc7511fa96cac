#pragma once
/* guess.cuh - how an op that rounds by itself knows its scale, which follows from the largest number, which is known when all are
 * computed. So there are three kernels:
 *
 *   try     rounds with a guessed scale, the one of the last run, and finds the largest number
 *   again   if the guess was not the scale, computes everything again and rounds with it; else ends at once
 *   settle  writes the scale, also as the next guess
 *
 * What is written last was rounded with the scale, whatever the guess was. Where the largest number is given, again does all. */
#include "backend/cuda/absmax.cuh"
#include "backend/cuda/launch_fp8.h"
#include "program/fp8_scale.h"

/* What try multiplies with; of memory that nobody has written it may be anything. */
DEVICE float guess_factor(const launch_guess &g) { return g.guess ? 1.0f / *g.guess : 1.0f; }

DEVICE fp8_scale guess_scale(const launch_guess &g) { return fp8_scale_of(g.amax ? *g.amax : *g.largest, g.power); }

/* Has again nothing to do? */
DEVICE bool guess_is(const launch_guess &g, const fp8_scale &s) { return g.guess && *g.guess == s.scale; }

static __global__ void settle_kernel(launch_guess g) {
    fp8_scale s = guess_scale(g);
    if (g.scale) *g.scale = s.scale;
    if (g.guess) *g.guess = s.scale;
}

static void guess_settle(cudaStream_t s, const launch_guess *g) {
    if (g->scale || g->guess) launch(settle_kernel, dim3(1), dim3(1), s, *g);
}
