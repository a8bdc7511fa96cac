#pragma once
/* cost.h - how long a step takes on a machine that is only described.
 *
 * The scheduled program is simulated as the executor runs it: ops of one stream in order, streams in parallel, an op waiting
 * for as many ops of other streams as op.wait says. On a machine without overlap everything but the drive shares the cores,
 * and a section takes the sum of its ops. Times of single ops come from shapes and rates; nothing is measured here.
 *
 *     cost c;
 *     cost_program(&c, &plan.program, &hardware, &mesh, micro_runs);
 *     printf("%g s\n", c.step_s);   // INFINITY when c.missing names a number that the description lacks
 */
#include "machine/machine.h"
#include "program/program.h"

typedef struct cost_kind {
    double seconds; /* of one step, as if nothing overlapped */
    double n;       /* runs in one step */
} cost_kind;

typedef struct cost {
    double micro_s; /* one run of SECTION_MICRO */
    /* the rest of a step: SECTION_PREPARE and SECTION_UPDATE, or the part of SECTION_TURN that does not overlap */
    double update_s;
    double step_s; /* micro_runs x micro + update; for a pipeline the plan adds the bubble */
    double busy_s[STREAM_COUNT];
    cost_kind kinds[OP_COUNT];
    const char *missing; /* key of hardware.def that some op needed and the machine does not have; NULL: none */
} cost;

/* mesh: its ranks fill one node after the other; NULL: ranks of a group are neighbours. */

/* One op alone. *missing is set when a needed rate is not there, and the result is then INFINITY. */
double cost_op_seconds(const program *p, const op *o, const hardware *h, const mesh *m, const char **missing);
/* Each rank of a group sends n_bytes; in_pairs: directly to each peer, else round a ring. */
double cost_message_seconds(double n_bytes, int group_size, axis a, bool in_pairs, const hardware *h, const mesh *m,
                            const char **missing);
/* One run of a section after the waits pass, from the start of its first op to the end of its last. Adds to busy_s
 * (STREAM_COUNT). */
double cost_section(const program *p, section s, const hardware *h, const mesh *m, double *busy_s,
                    const char **missing);
void cost_program(cost *out, const program *p, const hardware *h, const mesh *m, double micro_runs);
