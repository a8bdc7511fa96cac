#pragma once
/* world.h - what one rank of many would hold, on a machine that is only described.
 *
 *     world w;
 *     TRY(world_compile(&w, &request, 8));
 *     world_print(&w, stderr);
 */
#include "plan/plan.h"

/* What one rank of N holds, in bytes, from plans of its own shapes: nothing is measured and no rank is started. */
enum { WORLD_STAGES = 4, WORLD_LAYOUTS = 4, WORLD_RUNGS = 5 };
typedef struct world_share { /* the fullest rank */
    uint64_t params, grads, states;
    uint64_t window;      /* ZeRO-3: gathered parameters, one unit in use and one on its way */
    uint64_t activations; /* and scratch: whatever lives inside a step */
    uint64_t total;
} world_share;
typedef struct world_stage {
    const char *name;
    world_share bytes;
    uint64_t textbook;           /* params, grads and states without the fp32 master; 0 where there is no master */
    double volume;               /* parameters sent and received per rank and step, in P; times (N - 1) / N */
    double volume_bytes, comm_s; /* comm_s: over the link of the hardware; NAN where there is none */
} world_stage;
typedef struct world_layout {
    char name[48];
    int data, tensor, pipeline, sequence; /* ranks in each direction */
    world_share bytes;
    double bubble;     /* share of a pipeline's time in which a stage waits */
    char why_not[128]; /* "" where it can be cut so */
} world_layout;
typedef struct world_rung {
    char name[64];
    uint64_t bytes;
    double step_s;   /* predicted; NAN without hardware */
    bool is_formula; /* not compiled: the pass is not there yet */
} world_rung;
typedef struct world {
    int n_ranks;
    plan_request request;
    uint64_t n_params;
    double kept_per_layer_token, formula_per_layer_token; /* activation bytes; formula 0 outside the Llama family */
    world_stage stages[WORLD_STAGES];                     /* DDP, ZeRO-1, 2, 3 */
    world_layout layouts[WORLD_LAYOUTS];
    int n_layouts;
    world_rung rungs[WORLD_RUNGS];
} world;
status world_compile(world *w, const plan_request *r, int n_ranks);
void world_print(const world *w, FILE *out);
json_t *world_json(const world *w); /* the caller takes it */
