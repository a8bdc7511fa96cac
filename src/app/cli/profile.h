#pragma once
/* profile.h - `ralo plan --profile`: what a step's memory is made of, the largest micro-batch that fits, and the accumulation that
 * keeps the rows of a step. */
#include "cli/longest.h"

enum { PROFILE_ROWS = 3 };
typedef struct profile_row {
    int64_t micro_batch, accumulation;
    uint64_t planned, by_role[ROLE_COUNT], gap_bytes;
    bool fits;
    json_t *memory; /* as in a plan; owned */
} profile_row;
typedef struct profile {
    uint64_t limit;                 /* of device memory */
    int64_t step_rows;              /* rows of an optimizer step on a rank */
    int n_ranks;                    /* that share the rows of a step */
    int64_t largest, too_large;     /* micro-batches; 0: none fits; 0: the bound fits */
    int64_t micro_batch;            /* the largest that fits and divides the rows of a step; 0: none fits */
    profile_row rows[PROFILE_ROWS]; /* one row, the one to take, the largest */
    int n_rows;
} profile;

/* Sets train.micro_batch and train.accumulation to what it found, or to one row if nothing fits. */
status profile_find(command_line *l, longest_request request, profile *out);
void profile_print(const profile *p, FILE *out);
json_t *profile_json(const profile *p);
void profile_fini(profile *p);
