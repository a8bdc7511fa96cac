/* agree.c - check that all ranks have the same text, or report on all of them which rank differs and where.
 *
 * Ranks compare hashes first, so that agreement costs one exchange of 16 bytes. */
#include "comm/comm_state.h"

#include <stdlib.h>
#include <xxhash.h>

enum { LINE_BYTES = 200 };
typedef struct summary {
    uint64_t hash, n_bytes;
} summary;
/* The first line in which a rank differs from rank 0; empty lines where one text has ended. */
typedef struct difference {
    char zero[LINE_BYTES], mine[LINE_BYTES];
} difference;

static void copy_line(char out[LINE_BYTES], const char *line) {
    snprintf(out, LINE_BYTES, "%.*s", (int)MIN(strcspn(line, "\n"), (size_t)LINE_BYTES - 1), line);
}

static void find_difference(const char *zero, const char *mine, difference *out) {
    const char *z = zero, *m = mine;
    *out = (difference){0};
    for (;;) {
        size_t nz = strcspn(z, "\n"), nm = strcspn(m, "\n");
        if (nz != nm || memcmp(z, m, nz) != 0) break;
        if (!z[nz] || !m[nm]) {
            z += nz + (z[nz] != 0);
            m += nm + (m[nm] != 0);
            break;
        }
        z += nz + 1;
        m += nm + 1;
    }
    copy_line(out->zero, z + strspn(z, " "));
    copy_line(out->mine, m + strspn(m, " "));
}

static status report_difference(comm *c, const char *what, const char *text, int rank, uint64_t n_bytes) {
    char *zero = mem_alloc(n_bytes + 1);
    difference mine, *all = mem_alloc((size_t)c->size * sizeof *all);
    status rc;
    if (c->rank == 0) memcpy(zero, text, n_bytes);
    TRY_GOTO(rc, comm_broadcast(c, zero, n_bytes, 0), done);
    find_difference(zero, text, &mine);
    TRY_GOTO(rc, comm_all_gather_bytes(c, &mine, sizeof mine, all), done);
    const difference *d = &all[rank];
    rc = ERR(ERR_INPUT,
             "ranks differ in their %s: rank %d (%s) has '%.*s', rank 0 (%s) has '%.*s'; give every rank the same",
             what, rank, c->hosts[rank], LINE_BYTES - 1, d->mine, c->hosts[0], LINE_BYTES - 1, d->zero);
    /* All have the same message now; no rank continues and fails before the others have theirs. */
    error_record record;
    error_take(&record);
    comm_barrier(c);
    rc = error_give(&record);
done:
    free(zero);
    free(all);
    return rc;
}

status comm_agree(comm *c, const char *what, const char *text) {
    size_t n_bytes = strlen(text);
    summary mine = {XXH3_64bits(text, n_bytes), n_bytes}, *all = mem_alloc((size_t)c->size * sizeof *all);
    status rc = comm_all_gather_bytes(c, &mine, sizeof mine, all);
    int other = 0;
    for (int r = c->size - 1; rc == OK && r > 0; r--)
        if (all[r].hash != all[0].hash || all[r].n_bytes != all[0].n_bytes) other = r;
    uint64_t zero_bytes = all[0].n_bytes;
    free(all);
    if (rc != OK || other == 0) return rc;
    return report_difference(c, what, text, other, zero_bytes);
}
