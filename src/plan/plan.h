#pragma once
/* plan.h - from a request to a compiled program and its memory, without touching a device.
 *
 * plan_build compiles a request in which nothing is open; plan_choose searches what is open and builds the best. This is the
 * one road from settings to a runnable program: `ralo plan` prints what it returns and `ralo train` runs it, so what is
 * printed is what runs.
 *
 *     plan p;
 *     TRY(plan_choose(&p, &request));
 *     plan_print(&p, stderr);
 *     TRY(plan_check_fit(&p));      // ERR_FIT with the largest contributors and the smallest change that fits
 *     plan_close(&p);
 */
#include "format/format.h"
#include "pass/pass.h"
#include "plan/cost.h"

/* What the settings leave to the plan. Recompute is open where its kind is auto. Precision and micro-batch change the
 * numbers of a run, so they are open only where they were set to auto. */
typedef struct plan_open {
    bool params, grads, states, activations; /* where these live */
    bool keep_layers;                        /* which of the activations stay */
    bool keep_states;                        /* ... and of the states; only where it is open where those live */
    bool chunk;                              /* may the MLP take fewer tokens at a time */
    bool prefetch;                           /* how far ahead copies run */
    bool precision;
    bool micro_batch; /* with accumulation: their product, the rows of a step, stays */
    bool zero;        /* what data ranks keep a part of */
    bool sequence;    /* how many of the data ranks share their rows; accumulation makes up for them: the rows stay */
} plan_open;

/* How sequence ranks attend to rows that they share (model.h). */
typedef enum attention_way { ATTENTION_AUTO = -1, ATTENTION_HEADS, ATTENTION_RING } attention_way;
typedef struct attention_choice {
    attention_way way;              /* never auto */
    const char *why;                /* in words */
    double heads_bytes, ring_bytes; /* that a rank sends for one layer of a micro-batch, forward and backward */
    double heads_s, ring_s;         /* what they and the copies around them take; NAN without hardware */
} attention_choice;

typedef struct plan_request {
    model_config model;
    int64_t seq_len;
    step_choice choice; /* how the step is held, as far as it is not open */
    optimizer_options optimizer;
    plan_open open;
    bool manual; /* memory.strategy: nothing is open, but with auto this would be ... */
    plan_open left_open;
    bool left_open_recompute; /* ... and recompute */
    bool shorten;  /* a pipeline may be compiled with few micro-batches and continued: a plan that is not run */
    bool compare;  /* cost every candidate, also where the plain one fits: for `ralo plan` */
    bool may_nvme; /* the user named a directory for it */
    place_options place;
    mesh mesh; /* of all ranks, and this one's place on it; where it is open, one of those that may be chosen */
    int virtual_stages; /* chunks of layers of each pipeline stage; 0 is 1 */
    int64_t step_rows;  /* of a step of all ranks, for tables of other meshes; 0: each rank has its own, as above */
    attention_way attention;
    bool with_eval, token_weights, verify;
    bool no_training;            /* evaluation only: parameters and one forward */
    generation_shape generation; /* slots > 0: generation, and what is about training says nothing */
    int64_t logits_chunk_bytes;  /* most logits alive at once; 0 = chosen from the vocabulary */
    target target;
    uint64_t device_limit;    /* bytes of each device; 0 = no limit */
    uint64_t host_limit;      /* bytes; 0 = no limit */
    uint64_t together_limit;  /* bytes of both, where they are the same memory; 0 = they are not */
    uint64_t device_asked;    /* memory.device as it was set, which may be more than there is; 0 = auto */
    uint64_t host_bytes;      /* held outside the arenas: text and the like, and ... */
    uint64_t host_row_bytes;  /* ... per row of a micro-batch: loader, evaluation */
    uint64_t state_copies;    /* copies of params and states on the host (background checkpoints) */
    const hardware *hardware; /* the machine whose time is predicted, borrowed; NULL: no prediction */
} plan_request;
bool plan_generates(const plan_request *r);

/* One way to run the step, and its numbers. */
typedef struct plan_candidate {
    step_choice choice;
    uint64_t planned[TIER_COUNT];
    uint64_t by_role[ROLE_COUNT];
    double step_s;     /* predicted; NAN without hardware */
    double plain_s;    /* that of the same way with nothing moved, where that fits as well; else 0 */
    double more_flops; /* what recompute adds, as a share of the step */
    bool fits;
    bool estimated; /* from two smaller models, not compiled itself */
    size_t order;   /* in which it was tried, which decides between equals */
} plan_candidate;

typedef struct plan {
    plan_request request; /* as asked, but for its choice and mesh, which are those that were taken */
    step_choice asked;    /* the choice of the request; the same where nothing was open */
    attention_choice attention;
    program program;
    model model;
    step_interface step; /* what the program is told and leaves, by parameter */
    uint64_t planned[TIER_COUNT];
    uint64_t by_role[ROLE_COUNT]; /* bytes of each role alive at the device peak */
    uint64_t gap_bytes;           /* planned minus the sum of by_role: alignment and holes */
    size_t peak_op;               /* where the most bytes are alive */
    value_id *at_peak;            /* what is alive there, largest first */
    size_t n_at_peak;
    double flops_per_step;      /* what the model needs for one optimizer step, all micro-batches */
    double flops_again;         /* and what recompute adds to it */
    double bytes_per_step;      /* of everything that runs */
    double sent_per_step;       /* bytes that this rank sends to others */
    cost cost;                  /* predicted; all 0 without request.hardware */
    plan_candidate *candidates; /* what was compared, this plan first, then by time; those that do not fit last */
    size_t n_candidates;        /* 0: nothing was open */
} plan;

status plan_build(plan *p, const plan_request *r); /* nothing may be open; p holds nothing after a failure */
void plan_close(plan *p);
int64_t plan_tokens_per_step(const plan *p); /* of all ranks */
/* Of a checkpoint, of all ranks together and without its files' headers. With states of 8 bits a little less than that: what is
 * too small for them counts as if it had them. */
uint64_t plan_checkpoint_bytes(const plan *p);
double plan_volume(const plan *p); /* parameters and gradients sent to data ranks per step, over all it has */
bool plan_fits(const plan *p);     /* in every tier that has a limit */

/* ---- limits.c: the memory that a rank may plan with --------------------------------------------------------------- */

/* What a node has for its ranks. */
typedef struct plan_memory {
    uint64_t device_bytes; /* of a device, for each rank on it, where no setting says less; 0: not known */
    uint64_t host_bytes;   /* of the node; 0: not known */
    int n_ranks;           /* on the node */
    bool unified;          /* device and host are the same memory */
    bool is_run_here;      /* else settings for both may describe a machine that is not here */
} plan_memory;
typedef struct plan_limits {
    uint64_t device, host, together; /* as in plan_request */
} plan_limits;
/* device, host: memory.device and memory.host, 0 where they are auto. The limits of one rank. */
plan_limits plan_limits_find(const plan_memory *m, uint64_t device, uint64_t host);
uint64_t plan_joint_bytes(const plan *p); /* bytes of all devices and the host */
bool plan_limits_hold(const plan_limits *limits, const uint64_t planned[TIER_COUNT]);
plan_limits plan_limits_of(const plan_request *r);

/* ---- request.c: what is open -------------------------------------------------------------------------------------- */

bool plan_is_open(const plan_request *r);
plan_request plan_request_of(const plan_request *r, const step_choice *c); /* with this choice and nothing open */
/* What was asked of a plan's memory, for the step that it has: a request to plan once more, with the same things open. */
plan_request plan_question(const plan *p);

/* ---- strategy.c: the fastest way that fits ---------------------------------------------------------------------- */

/* The plan of a request that may leave something open: of the ways that fit the fastest, or where none does the smallest. p
 * holds nothing after a failure. */
status plan_choose(plan *p, const plan_request *r);
plan_candidate plan_chosen(const plan *p); /* the way that a plan takes, without numbers */
/* p was built for one way of this request: for reports, what was open and what was asked. */
void plan_remember(plan *p, const plan_request *asked);

/* ---- strategy_report.c ---------------------------------------------------------------------------------------------- */

void plan_print_candidates(const plan *p, FILE *out); /* the choice and its two runners-up in words and numbers */

/* ---- attention.c: rows shared by sequence ranks ------------------------------------------------------------------ */

/* The way that is asked for, or the faster of those that the model and the device allow. The same on every rank. */
attention_choice plan_attention(const plan_request *r);

/* ---- tight.c: where nothing of the ladder fits ------------------------------------------------------------------- */

/* Does any way fit that needs less memory than the ladder? Quicker than a plan, which has to find the fastest. */
status plan_can_fit(const plan_request *r, bool *fits);

/* ---- stages.c: a pipeline ------------------------------------------------------------------------------------------- */

double plan_micro_runs(const plan *p); /* of SECTION_MICRO in a step; not whole where a pipeline was shortened */
/* The share of forward and backward in which each of S equal stages with V chunks waits: (S - 1) / (V M + S - 1) with M
 * micro-batches. */
double plan_bubble(const plan_request *r);
/* How long this stage waits, in times of what it works: for that, and for the slowest stage. */
double plan_waiting(const plan_request *r);
/* Micro-batches that are compiled: all of a step, or of a pipeline that may be shortened as many as it takes until they
 * repeat. */
int64_t plan_built_micros(const plan_request *r);
typedef struct plan_stage {
    plan_candidate numbers; /* planned with the choices of the stage that was asked for, or ... */
    bool by_itself;         /* ... where these do not fit and something is open, with its own */
    double load;            /* arithmetic, as a share of the stage that has most */
} plan_stage;
/* Every stage of the pipeline that p plans one of; the caller frees. */
status plan_stages(const plan *p, plan_stage **out);
/* The first stage that has no room, or -1. */
int plan_stage_without_room(const plan *p, const plan_stage *list);
status plan_check_stages(const plan *p, const plan_stage *list);
double plan_stages_seconds(const plan *p,
                           const plan_stage *list); /* of a step: the slowest stage's; NAN without hardware */
void plan_print_stages(const plan *p, const plan_stage *list, FILE *out);
json_t *plan_stages_json(const plan *p, const plan_stage *list); /* "pipeline": {...} */

/* ---- rungs.c: how much of the forward is kept ------------------------------------------------------------------- */

/* The rungs from the cheapest in time to the smallest in memory, with this request otherwise as it is. */
enum { PLAN_RUNGS = 4 };
typedef struct plan_rung {
    recompute_kind kind;
    uint64_t activations; /* bytes at the device peak */
    uint64_t device;
    double more_flops; /* as a share of the step without recompute */
    bool fits;
} plan_rung;
status plan_rungs(const plan *p, plan_rung out[PLAN_RUNGS]);
void plan_print_rungs(const plan *p, const plan_rung rungs[PLAN_RUNGS], FILE *out);

/* ---- report.c: a plan in words and as JSON ---------------------------------------------------------------------- */

void plan_print(const plan *p, FILE *out);
json_t *plan_memory_json(const plan *p); /* "memory": planned per tier, by_role; the caller takes it */
json_t *plan_strategy_json(const plan *p);
/* What is done as it was asked for, but not what it is usually asked for: a line, or nothing. out is empty before. */
void plan_note(const plan *p, strbuf *out);
/* All that a plan says; rungs: NULL where they were not asked for. */
json_t *plan_json(const plan *p, const plan_rung *rungs);

/* ---- fit.c: where it does not fit ------------------------------------------------------------------------------- */

/* ERR_FIT when the device limit is too small, naming the largest contributors and the smallest change that fits. */
status plan_check_fit(const plan *p);
bool plan_variant_fits(const plan_request *r, uint64_t *planned); /* compiled; planned: bytes of the device */

/* ---- timeline_svg.c: bytes alive over the ops, as a picture ------------------------------------------------------ */

status plan_timeline_check(const char *path);                /* can it be the name of such a file? */
status plan_timeline_write(const plan *p, const char *path); /* whole or not at all */

/* ---- many ranks that are not here ------------------------------------------------------------------------------ */

/* What one rank of N holds, in bytes, from plans of its own: nothing is measured and no rank is started. */
enum { WORLD_STAGES = 4, WORLD_LAYOUTS = 4, WORLD_RUNGS = 5 };
typedef struct plan_world_share { /* the fullest rank */
    uint64_t params, grads, states;
    uint64_t window;      /* gathered parameters, gradients on their way, scratch of messages: at the peak */
    uint64_t activations; /* and scratch: whatever lives inside a step */
    uint64_t total;
} plan_world_share;
typedef struct plan_world_stage {
    const char *name;
    plan_world_share bytes;
    uint64_t textbook; /* params, grads and states without the fp32 master; 0 where there is no master */
    double volume;     /* parameters and gradients sent per rank and step, in P (N - 1) / N */
    bool fits;
    double volume_bytes, comm_s; /* comm_s: over the link of the hardware; NAN where there is none */
} plan_world_stage;
typedef struct plan_world_layout {
    char name[64];
    int data, tensor, pipeline, sequence; /* ranks in each direction */
    int zero;
    int64_t micro_batch, accumulation; /* of each data rank */
    plan_world_share bytes;
    double bubble;        /* share of a pipeline's time in which a stage waits */
    double step_s;        /* predicted, of the slowest stage; NAN without hardware */
    int64_t built_micros; /* how many micro-batches were compiled */
    bool fits;            /* every stage, in all memory that has a limit */
    char why_not[384];    /* "" where it can be cut so */
} plan_world_layout;
typedef struct plan_world_rung {
    char name[96];
    uint64_t bytes;
    bool fits;
    double step_s; /* predicted; NAN without hardware */
} plan_world_rung;
typedef struct plan_world {
    int n_ranks;
    plan_request request;
    uint64_t n_params;
    double kept_per_layer_token, formula_per_layer_token; /* activation bytes; formula 0 outside the Llama family */
    plan_world_stage stages[WORLD_STAGES];                /* DDP, ZeRO-1, 2, 3 */
    plan_world_layout layouts[WORLD_LAYOUTS];
    int n_layouts;
    plan_world_rung rungs[WORLD_RUNGS];
} plan_world;
status plan_world_compile(plan_world *w, const plan_request *r, int n_ranks);
void plan_world_print(const plan_world *w, FILE *out);
json_t *plan_world_json(const plan_world *w); /* the caller takes it */
