#pragma once
/* longest.h - `ralo plan --longest`: the longest row that fits. */
#include "cli/cli.h"

/* Makes a request of the settings as they are, for the machine that is planned for. */
typedef status (*longest_request)(command_line *l, train_request *r, hardware *machine);

typedef struct longest_row {
    int64_t fits;      /* tokens; 0: not even the shortest that was tried */
    int64_t too_long;  /* the shortest that was found not to fit; 0: the bound itself fits */
    int64_t positions; /* that the model has by itself */
} longest_row;

/* Leaves data.seq_len at the longest, or at the shortest that was tried where that does not fit either, and
 * model.max_positions where the model has fewer. */
status longest_find(command_line *l, longest_request request, longest_row *out);
void longest_print(const longest_row *row, FILE *out);
json_t *longest_json(const longest_row *row);
