/* rank_check.c - see rank_check.h. */
#include "rank_check.h"

#include <stdlib.h>

comm *ranks;
int n_failed;

void mesh_start(const comm_options *o) {
    if (comm_open(&ranks, o) == OK) return;
    fprintf(stderr, "%s\n", error_message());
    exit(1);
}

void must(status rc) {
    if (rc == OK) return;
    fprintf(stderr, "rank %d: %s\n", comm_rank(ranks), error_message());
    comm_fail(ranks, rc, error_message());
    comm_close(ranks);
    exit(1);
}

void mesh_end(void) {
    bool any;
    must(comm_any(ranks, n_failed > 0, &any));
    n_failed = any;
    comm_close(ranks);
}
