#pragma once
/* show.h - a plan shown: in words, as JSON, as pictures. What it says was computed by plan; nothing is decided here. */
#include "format/format.h"
#include "train/train.h"

/* ---- answer.c: the first line ----------------------------------------------------------------------------------- */

/* What a plan does not know about its run. */
typedef struct plan_outlook {
    double epochs;            /* of the run; 0: the data is endless, or not known */
    uint64_t n;               /* of an epoch ... */
    const char *unit;         /* ... these: "records", "rows" */
    const char *explanation;  /* as plan_explain writes it; NULL: it follows elsewhere */
    const plan_stage *stages; /* NULL: no pipeline, or only this rank's part of it is known */
} plan_outlook;
/* Whether it fits, how long the run takes, what would be faster: sentences on one line, without its end. */
void plan_answer(const plan *p, const plan_outlook *o, strbuf *out);
void plan_print_answer(const plan *p, const plan_outlook *o, FILE *out); /* ... with its end */
void plan_answer_json(const plan *p, const plan_outlook *o,
                      json_t *root); /* adds "answer", "limits", "run", "faster" */

/* ---- report.c: a plan in words and as JSON ---------------------------------------------------------------------- */

void plan_print(const plan *p, FILE *out);
/* Which number the description of the machine lacks, and how to add it; a sentence without its end. */
void plan_explain_no_time(const hardware *h, const char *missing, strbuf *out);
void plan_print_brief(const plan *p, FILE *out); /* the model, the step, and what lies where: at most seven lines */
json_t *plan_memory_json(const plan *p);         /* "memory": planned per tier, by_role; the caller takes it */
json_t *plan_strategy_json(const plan *p);
/* Warnings about requests that are legal but unusual: one line, or nothing. out must be empty. */
void plan_note(const plan *p, strbuf *out);
/* The whole plan; rungs: NULL where they were not asked for. */
json_t *plan_json(const plan *p, const plan_rung *rungs);

/* ---- strategy_report.c ------------------------------------------------------------------------------------------ */

void plan_print_candidates(const plan *p, FILE *out); /* the chosen candidate and the next two, in words and numbers */

/* ---- stages.c, rungs.c ------------------------------------------------------------------------------------------ */

void plan_print_stages(const plan *p, const plan_stage *list, FILE *out);
json_t *plan_stages_json(const plan *p, const plan_stage *list); /* "pipeline": {...} */
void plan_print_rungs(const plan *p, const plan_rung rungs[PLAN_RUNGS], FILE *out);

/* ---- world.c ---------------------------------------------------------------------------------------------------- */

/* Activation bytes of a layer for each token by the usual formula of the Llama family; 0: another kind of block. */
double plan_world_formula(const plan_world *w);
void plan_world_print(const plan_world *w, FILE *out);
json_t *plan_world_json(const plan_world *w); /* the caller takes it */

/* ---- timeline_json.c: the same by role and tier, for programs --------------------------------------------------- */

/* memory.json of a run directory: every tier that the program uses, with the bytes alive at each op by role and the
 * values alive at its peak; measured: the peaks that the ledger saw, by tier, or NULL. The caller takes it. */
json_t *plan_timeline_json(const plan *p, const uint64_t *measured);

/* ---- timeline_svg.c: bytes alive over the ops, as a picture ------------------------------------------------------ */

void plan_timeline_draw(const plan *p, strbuf *out);         /* SVG */
status plan_timeline_check(const char *path);                /* does the name end in .svg? */
status plan_timeline_write(const plan *p, const char *path); /* whole or not at all */

/* ---- plan_view.c ------------------------------------------------------------------------------------------------ */

/* A plan with everything that `ralo plan` shows beside it (plan_view.c). Call fini also after an error. */
typedef struct plan_view {
    const plan *plan;
    train_disk disk;
    data_survey survey;
    double prompts_per_step; /* of a rollout task; 0: rows are counted */
    frozen_model frozen;
    uint64_t frozen_planned[TIER_COUNT]; /* what its program takes, before that of the plan is opened */
    plan_rung rungs[PLAN_RUNGS];
    plan_stage *stages; /* NULL: no pipeline */
    strbuf explanation; /* why it does not fit, and what would */
} plan_view;
/* The facts of its run that the first line of a plan needs; survey: of the data. */
plan_outlook plan_outlook_of(const train_request *r, const plan *p, const data_survey *survey);
status plan_view_init(plan_view *v, const train_request *r, const plan *p);
void plan_view_fini(plan_view *v);
status plan_view_check(const plan_view *v); /* ERR_FIT where the plan, or a stage beside it, has no room */
void plan_view_print(const plan_view *v, FILE *out);
json_t *plan_view_json(const plan_view *v);
