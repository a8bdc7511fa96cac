#pragma once
/* plan.h - from a request to a compiled program and its memory, without touching a device.
 *
 * plan_build compiles a request in which nothing is open; plan_choose searches what is open and builds the best candidate.
 * There is no other path from settings to a runnable program: `ralo plan` prints what it returns and `ralo train` runs it, so
 * what is printed is what runs.
 *
 *     plan p;
 *     TRY(plan_choose(&p, &request));
 *     plan_print(&p, stderr);    // show/show.h
 *     TRY(plan_check_fit(&p));      // ERR_FIT with the largest contributors and the smallest change that fits
 *     plan_close(&p);
 */
#include "pass/pass.h"
#include "plan/cost.h"

/* What the settings leave to the plan to choose. Recompute is open where its kind is auto. Precision changes the
 * numbers of a run, so it is open only where it was set to auto. The micro-batch changes the order of sums alone: it is
 * open unless it was given, and a run keeps what was chosen. */
typedef struct plan_open {
    bool params, grads, states, activations; /* offload target of each */
    bool keep_layers;                        /* how many layers keep their activations on the device */
    bool keep_states;                        /* ... and their states; only where the offload target of states is open */
    bool keep_params;                        /* ... and their parameters */
    bool keep_embed;                         /* does the embedding stay on the device */
    bool chunk;                              /* may the MLP run in chunks of tokens */
    bool prefetch;                           /* how far ahead copies run */
    /* how many of the last layers the host's cores compute; it changes rounding, so only where it was set to auto */
    bool place;
    bool precision;
    bool micro_batch; /* together with accumulation; their product, the rows of a step, is fixed */
    bool zero;        /* ZeRO stage */
    bool sequence;    /* how many data ranks share their rows; accumulation changes with it, the rows of a step stay */
} plan_open;

/* How sequence ranks attend to rows that they share (model.h). */
typedef enum attention_kind { ATTENTION_AUTO = -1, ATTENTION_HEADS, ATTENTION_RING } attention_kind;
typedef struct attention_choice {
    attention_kind kind;            /* never auto */
    const char *why;                /* in words */
    double heads_bytes, ring_bytes; /* bytes sent per rank, layer and micro-batch, forward and backward */
    double heads_s, ring_s;         /* time of these messages and the copies around them; NAN without hardware */
} attention_choice;

typedef struct plan_request {
    net_source source; /* the model */
    int64_t seq_len;
    step_choice choice; /* the chosen values, where they are not open */
    optimizer_options optimizer;
    plan_open open;
    bool manual; /* memory.strategy=manual: nothing is open, but with auto this would be ... */
    plan_open left_open;
    bool left_open_recompute; /* ... and recompute */
    bool shorten;             /* for plans that do not run: compile few micro-batches of a pipeline and extrapolate */
    bool compare;             /* evaluate every candidate, even where the plain one fits: for `ralo plan` */
    bool names_no_model;      /* the model is the built-in default: the first line says so */
    bool may_nvme;            /* the user named a directory for it */
    place_options place;
    mesh mesh;          /* of all ranks, and this rank's index; where it is open, one of the possible meshes */
    int virtual_stages; /* chunks of layers of each pipeline stage; 0 is 1 */
    int64_t step_rows; /* rows of a step on all ranks, for tables of other meshes; 0: each rank has its own, as above */
    attention_kind attention;
    bool with_eval, token_weights, verify;
    lora_options lora;             /* rank > 0: adapters are trained, everything else is frozen */
    base_format base;              /* ... and how its linear layers are stored */
    critic_options critic;         /* kind not none: the loss of a critic, whose model has a value head */
    double value_dropout;          /* ... and dropout in that */
    preference_options preference; /* kind not none: losses over pairs of responses ... */
    bool share_prompts;            /* ... whose prompt may stand in a row once */
    policy_options policy;         /* on: the loss of completions with advantages */
    reference_kind reference;      /* what either is compared with */
    const char *reference_dir;     /* Hugging Face directory of a copy; NULL: where the model begins */
    selection_options selection;   /* kind not none: tokens are selected by comparing with the reference */
    bool no_training;              /* evaluation only: parameters and one forward */
    int64_t rollout;               /* policy: completions that this rank generates for a step */
    bool baseline;               /* policy: rl.baseline_memory, which set micro_batch, logits_chunk_bytes and manual */
    generation_shape generation; /* slots > 0: generation; unless beside_training, fields about training are ignored */
    int64_t logits_chunk_bytes;  /* largest bytes of logits at once; 0 = chosen from the vocabulary */
    target target;
    uint64_t device_limit;    /* bytes of each device; 0 = no limit */
    uint64_t host_limit;      /* bytes; 0 = no limit */
    bool host_is_assumed;     /* host_limit is that of a described machine: no setting gave it, nothing was looked at */
    uint64_t together_limit;  /* bytes of both, where they are the same memory; 0 = they are not */
    uint64_t device_asked;    /* memory.device as it was set, which may be more than there is; 0 = auto */
    uint64_t host_bytes;      /* host bytes outside the arenas: text and the like, and ... */
    uint64_t host_row_bytes;  /* ... per row of a micro-batch: loader, evaluation */
    uint64_t generator_bytes; /* ... of a generator beside training */
    uint64_t state_copies;    /* copies of params and states on the host (background checkpoints) */
    const hardware *hardware; /* the machine whose time is predicted, borrowed; NULL: no prediction */
    int64_t
        longer_rows; /* tokens of rows that would hold more records each; 0: rows are not filled that way, or are long */
    int64_t run_steps;          /* steps of the run, whose time is predicted too; 0: there is no such run */
    void (*on_candidate)(void); /* before each candidate of a search, for a sign of life; NULL: nobody waits */
} plan_request;
/* memory.place and the layers that the plan itself has placed. */
place_options plan_place(const plan_request *r);
bool plan_is_placed(const plan_request *r); /* is any part on another device than the first? */
bool plan_generates(const plan_request *r); /* and does nothing else */
bool plan_samples(const plan_request *r);   /* training and generation in one program */
/* kto over several micro-batches or data ranks: SECTION_EVAL finds its z before the step. */
bool plan_shares_z(const plan_request *r);
/* The reference's losses of preferences are an input, and those of the model as it begins: SECTION_EVAL computes them. */
bool plan_asks_own_reference(const plan_request *r);

/* What a plan needs beyond its limits. */
typedef struct plan_excess {
    uint64_t device; /* of the device that lacks most */
    uint64_t host;   /* of the host, or of device and host together where they are one memory */
} plan_excess;

/* One candidate, and its numbers. */
typedef struct plan_candidate {
    step_choice choice;
    uint64_t planned[TIER_COUNT];
    uint64_t by_role[ROLE_COUNT];
    double step_s;     /* predicted; NAN without hardware */
    double plain_s;    /* step_s of the same candidate with nothing moved, where that fits; else 0 */
    double more_flops; /* what recompute adds, as a share of the step */
    /* Chosen although the same with every activation kept fits too and is a little faster: what that saves, and its share of
     * the step's time. 0 bytes: no such choice. */
    uint64_t saved_bytes;
    double saved_for;
    bool fits;
    plan_excess excess; /* nothing where it fits */
    bool estimated;     /* from two smaller models, not compiled itself */
    size_t order;       /* in which it was tried; breaks ties */
} plan_candidate;

/* A change with which a step is predicted to take less time (faster.c). */
typedef struct plan_faster {
    char settings[96]; /* "precision=bf16_sr"; "": none was found, or none was looked for */
    double step_s;
    int64_t tokens; /* of such a step, which has more where rows are longer */
    bool is_bound;  /* the time is at most that: more strategies are open than were tried */
} plan_faster;

typedef struct plan {
    plan_request request; /* as asked, with the choice and mesh that the plan uses */
    step_choice asked;    /* the choice of the request; the same where nothing was open */
    attention_choice attention;
    program program;
    net net;
    step_interface step; /* values that the executor reads and writes */
    uint64_t planned[TIER_COUNT];
    uint64_t by_role[ROLE_COUNT]; /* bytes of each role alive at the device peak */
    uint64_t gap_bytes;           /* planned minus the sum of by_role: alignment and holes */
    size_t peak_op;               /* where the most bytes are alive */
    value_id *at_peak;            /* values alive there, largest first */
    size_t n_at_peak;
    double flops_per_step;      /* what the model needs for one optimizer step, all micro-batches */
    double flops_again;         /* and what recompute adds to it */
    double bytes_per_step;      /* of everything that runs */
    double sent_per_step;       /* bytes that this rank sends to others */
    cost cost;                  /* predicted; all 0 without request.hardware */
    plan_candidate *candidates; /* all candidates, this plan first, then by time; those that do not fit last */
    size_t n_candidates;        /* 0: nothing was open */
    plan_faster faster;         /* as plan_find_faster found it */
} plan;

status plan_build(plan *p, const plan_request *r); /* nothing may be open; p holds nothing after a failure */
void plan_close(plan *p);
int64_t plan_tokens_per_step(const plan *p); /* of all ranks */
uint64_t plan_trained_params(const plan_request *r);
/* Size of a checkpoint of all ranks, without file headers. With 8-bit states slightly too small: tensors too small for 8 bits
 * are counted as if they had them. */
uint64_t plan_checkpoint_bytes(const plan *p);
double
plan_volume(const plan *p); /* parameters and gradients sent between data ranks per step, divided by the parameters */
bool plan_fits(const plan *p); /* in every tier that has a limit */

/* ---- limits.c: the memory that a rank may plan with --------------------------------------------------------------- */

/* The memory of a node. */
typedef struct plan_memory {
    uint64_t device_bytes; /* of a device, per rank on it, before settings limit it; 0: not known */
    uint64_t host_bytes;   /* of the node; 0: not known */
    int n_ranks;           /* on the node */
    bool unified;          /* device and host are the same memory */
    bool is_run_here;      /* false: settings of both may describe another machine */
} plan_memory;
typedef struct plan_limits {
    uint64_t device, host, together; /* as in plan_request */
} plan_limits;
/* The limits of one rank. device, host: memory.device and memory.host; 0: auto. */
plan_limits plan_limits_find(const plan_memory *m, uint64_t device, uint64_t host);
uint64_t plan_joint_bytes(const plan *p); /* bytes of all devices and the host */
plan_excess plan_limits_excess(const plan_limits *limits, const uint64_t planned[TIER_COUNT]);
bool plan_limits_hold(const plan_limits *limits, const uint64_t planned[TIER_COUNT]);
/* It fits the device, and the host has no room for the rest. */
bool plan_host_is_short(const plan_request *r, const uint64_t planned[TIER_COUNT]);
plan_limits plan_limits_of(const plan_request *r);

/* ---- request.c: open choices -------------------------------------------------------------------------------------- */

bool plan_is_open(const plan_request *r);
plan_request plan_request_of(const plan_request *r, const step_choice *c); /* with this choice and nothing open */
/* The request of a plan with everything open again that was open, to plan its step once more. */
plan_request plan_request_reopen(const plan *p);

/* ---- strategy.c: the fastest candidate that fits -------------------------------------------------------------- */

/* Plans a request with open choices: the fastest candidate that fits, or the smallest where none fits. p holds nothing after
 * a failure. */
status plan_choose(plan *p, const plan_request *r);
plan_candidate plan_chosen(const plan *p); /* the candidate that a plan uses, without numbers */
/* p was built for one candidate of this request: records what was open and what was asked, for reports. */
void plan_remember(plan *p, const plan_request *asked);

/* ---- attention.c: rows shared by sequence ranks ------------------------------------------------------------------ */

/* The kind that was asked for, or the faster of those that the model and the device support. The same on every rank. */
attention_choice plan_attention(const plan_request *r);

/* ---- tight.c: candidates with the least memory ------------------------------------------------------------------ */

/* Does any candidate of tight.c fit? Faster than a plan, which must find the fastest. */
status plan_can_fit(const plan_request *r, bool *fits);

/* ---- stages.c: a pipeline ------------------------------------------------------------------------------------------- */

double plan_micro_runs(const plan *p); /* runs of SECTION_MICRO in a step; a fraction where a pipeline was shortened */
/* The pipeline bubble: share of forward and backward in which each of S equal stages with V chunks waits, (S - 1) / (V M + S
 * - 1) with M micro-batches. */
double plan_bubble(const plan_request *r);
/* How long this stage waits, as a multiple of its work: for the bubble, and for the slowest stage. */
double plan_waiting(const plan_request *r);
/* Number of micro-batches that are compiled: all of a step, or for a shortened pipeline as many as it takes until they
 * repeat. */
int64_t plan_built_micros(const plan_request *r);
typedef struct plan_stage {
    plan_candidate numbers; /* planned with the choices of the stage that was asked for, or ... */
    bool by_itself;         /* ... with its own, where those do not fit and something is open */
    double load;            /* arithmetic, relative to the stage with the most */
} plan_stage;
/* All stages of the pipeline of p; the caller frees. */
status plan_stages(const plan *p, plan_stage **out);
/* The first stage that does not fit, or -1. */
int plan_stage_without_room(const plan *p, const plan_stage *list);
status plan_check_stages(const plan *p, const plan_stage *list);
double plan_stages_seconds(const plan *p,
                           const plan_stage *list); /* of a step: the slowest stage's; NAN without hardware */

/* ---- rungs.c: levels of recompute ------------------------------------------------------------------------------- */

/* The rungs from the fastest to the smallest in memory, with everything else as in this plan. */
enum { PLAN_RUNGS = 4 };
typedef struct plan_rung {
    recompute_kind kind;
    uint64_t activations; /* bytes at the device peak */
    uint64_t device;
    double more_flops; /* as a share of the step without recompute */
    bool fits;
    bool host_is_short; /* it fits the device; the host has no room for the rest */
} plan_rung;
plan_rung plan_rung_of(const plan *p); /* the plan's own */
status plan_rungs(const plan *p, plan_rung out[PLAN_RUNGS]);

/* ---- faster.c: one change that would save time --------------------------------------------------------------------- */

void plan_find_faster(plan *p); /* fills p->faster; at most a few tenths of a second */

/* ---- timeline.c: bytes alive over the ops ------------------------------------------------------------------------ */

/* On the device at every op of the program, without the gaps between values; the caller frees. The largest is what the plan
 * counts at its peak. */
uint64_t *plan_bytes_at_ops(const plan *p);
/* Most bytes alive in the sections of a rollout (prefill, decode), or in those of everything else. */
uint64_t plan_rollout_bytes(const plan *p, bool of_rollout);

/* ---- fit.c: when it does not fit -------------------------------------------------------------------------------- */

/* ERR_FIT when the device limit is too small, naming the largest contributors and the smallest change that fits. */
status plan_check_fit(const plan *p);
/* Why it does not fit and what would, for people: "it needs 30.1 GiB, memory.device is 23.0 GiB. Fits with: ..."; nothing where it
 * fits. Compiles many variants. */
void plan_explain(const plan *p, strbuf *out);
status plan_check_explained(const plan *p, const char *explanation); /* plan_check_fit with what plan_explain wrote */
bool plan_variant_fits(const plan_request *r, uint64_t *planned);    /* compiled; planned: bytes of the device */

/* ---- world.c: N ranks of a machine that is not here ------------------------------------------------------------- */

/* Bytes of one rank of N, from compiled plans; nothing is measured and no rank is started. */
enum { WORLD_STAGES = 4, WORLD_LAYOUTS = 4, WORLD_LADDER_ROWS = 5 };
typedef struct plan_world_share { /* the fullest rank */
    uint64_t params, grads, states;
    uint64_t window;      /* parameters and gradients gathered for a moment, and message buffers: at the peak */
    uint64_t activations; /* and scratch: everything that lives only inside a step */
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
    int data, tensor, pipeline, sequence; /* ranks on each axis */
    int zero;
    int64_t micro_batch, accumulation; /* of each data rank */
    plan_world_share bytes;
    double bubble;        /* share of a pipeline's time in which a stage waits */
    double step_s;        /* predicted, of the slowest stage; NAN without hardware */
    int64_t built_micros; /* how many micro-batches were compiled */
    bool fits;            /* every stage, in all memory that has a limit */
    char why_not[384];    /* "" where the layout is possible */
} plan_world_layout;
typedef struct plan_world_ladder_row {
    char name[96];
    uint64_t bytes;
    bool fits;
    double step_s; /* predicted; NAN without hardware */
} plan_world_ladder_row;
typedef struct plan_world {
    int n_ranks;
    plan_request request;
    uint64_t n_params;
    double kept_per_layer_token;           /* activation bytes */
    plan_world_stage stages[WORLD_STAGES]; /* DDP, ZeRO-1, 2, 3 */
    plan_world_layout layouts[WORLD_LAYOUTS];
    int n_layouts;
    plan_world_ladder_row ladder[WORLD_LADDER_ROWS];
    const char
        *missing; /* what the machine's description lacks, where that leaves some of them without a time; else NULL */
} plan_world;
status plan_world_compile(plan_world *w, const plan_request *r, int n_ranks);
