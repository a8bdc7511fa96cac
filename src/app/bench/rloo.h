#pragma once
/* rloo.h - private to bench: the memory of RLOO for k completions of one long prompt, three ways.
 *
 *   base  what most programs do (rl.baseline_memory)
 *   cut   the same with prompts cut to a third: where a published saving of 55 % came from
 *   ours  whole prompts, a row at a time, logits of a few tokens at a time */
#include "bench/memory_line.h"

typedef enum rloo_mode { RLOO_BASE, RLOO_CUT, RLOO_OURS, RLOO_MODE_COUNT } rloo_mode;
const char *rloo_mode_name(rloo_mode m);

typedef struct rloo_scale {
    const char *name;
    int64_t prompt, cut, completion; /* tokens */
    int64_t vocab;                   /* 0: the preset's own */
    const char *logits_chunk;        /* of ours */
    uint64_t seed;
} rloo_scale;

/* One way for one k. */
typedef struct rloo_cell {
    rloo_mode mode;
    int64_t k, prompt; /* tokens of a prompt */
    json_t *settings;  /* those that differ from the other ways */
    bool fits;         /* else it did not run, and what is measured is 0 or NAN */
    uint64_t planned, host_planned, limit;
    uint64_t rollout_bytes, update_bytes;
    int64_t sequences, waves;
    char peak_section[32];
    uint64_t peak, host_peak, rss_peak, gpu_in_use;
    double step_s, rollout_s, update_s, grad_norm, reward, length; /* length: mean tokens of a completion */
    memory_line line;
} rloo_cell;

enum { RLOO_CELLS = 11, RLOO_KS = 4 };
extern const int64_t rloo_ks[RLOO_KS];
typedef struct rloo_result {
    const rloo_scale *scale;
    char machine[256];
    model_config model;
    int n_threads;
    rloo_cell cells[RLOO_CELLS];
    size_t n_cells;
} rloo_result;
const rloo_cell *rloo_find(const rloo_result *r, rloo_mode mode, int64_t k); /* NULL: there is no such case */
double rloo_saving(const rloo_cell *base, const rloo_cell *c); /* share of the planned bytes; NAN without either */

status bench_rloo(const bench_options *o, json_t **out);
bool bench_is_interrupted(void);

/* ---- rloo_report.c, rloo_charts.c ---------------------------------------------------------------------------------- */

enum { RLOO_EXPLANATION = 6 };
/* What was published and where its saving comes from, beside the numbers of this run; lines of text. */
void rloo_explain(const rloo_result *r, strbuf lines[RLOO_EXPLANATION]);
void rloo_print(const rloo_result *r, FILE *out);
json_t *rloo_json(const rloo_result *r, const bench_options *o);
status rloo_write_charts(const rloo_result *r, const char *dir);
extern const char *const rloo_files[3]; /* result, peaks, memory over time: names in bench_options.out */
