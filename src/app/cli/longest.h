#pragma once
/* longest.h - `ralo plan --longest`: the longest sequence that fits. */
#include "cli/cli.h"

/* Makes a request from the current settings, for the machine that is planned for. */
typedef status (*longest_request)(command_line *l, train_request *r, hardware *machine);

typedef struct longest_row {
    int64_t fits;      /* tokens; 0: not even the shortest that was tried */
    int64_t too_long;  /* the shortest that was found not to fit; 0: the bound itself fits */
    int64_t positions; /* positions of the model itself */
    int64_t micro_batch;
    bool is_one_row; /* the micro-batch was not given */
} longest_row;

/* Sets data.seq_len to the longest length, or to the shortest tried if not even that fits, and raises
 * model.max_positions if needed. */
status longest_find(command_line *l, longest_request request, longest_row *out);
void longest_print(const longest_row *row, FILE *out);
json_t *longest_json(const longest_row *row);
