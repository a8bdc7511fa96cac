#pragma once
/* limits.h - private to settings: the memory limits of a request. Every command uses these. */
#include "settings/settings.h"

typedef struct limits_ranks {
    int on_node;   /* that share its memory */
    int on_device; /* that share one GPU */
} limits_ranks;

/* What is free here. is_run_here: the plan will run on it; else it is only shown (plan_memory). */
status limits_of_machine(train_request *r, const config *c, limits_ranks ranks, bool is_run_here);
/* Memory of a described machine for each rank of the request's mesh; this machine's memory does not count. */
void limits_of_hardware(train_request *r, const config *c, const hardware *h);
