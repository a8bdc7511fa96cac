/* batch.c - copy rows of tokens, for one rank or for one of several sequence ranks that share them.
 *
 * A rank's tokens of a row are two runs (sequence_token), so they are copied run by run. The program's value `doc_start`
 * gives positions: the index among the rank's own tokens minus doc_start is the position in the document. */
#include "train/batch.h"

enum { PIECE = 256 };

typedef struct rows {
    int64_t batch, length; /* of whole rows */
    int n_ranks, rank;     /* that share them */
    int64_t own, run;      /* tokens of a row that each has, in two runs */
} rows;

static rows rows_of(const plan *p) {
    const plan_request *q = &p->request;
    rows r = {.batch = q->choice.micro_batch,
              .length = q->seq_len,
              .n_ranks = mesh_size(&q->mesh, AXIS_SEQUENCE),
              .rank = q->mesh.index[AXIS_SEQUENCE]};
    r.own = r.length / r.n_ranks;
    r.run = r.own / 2;
    return r;
}

static void write_own(exec *e, const rows *r, value_id v, const int32_t *from) {
    for (int64_t b = 0; b < r->batch; b++)
        for (int64_t i = 0; i < r->own; i += r->run)
            exec_write(e, v, (size_t)(b * r->own + i) * sizeof *from,
                       from + b * r->length + sequence_token(i, r->rank, r->n_ranks, r->length),
                       (size_t)r->run * sizeof *from);
}

static void write_positions(exec *e, const rows *r, value_id v, const int32_t *doc_start) {
    int32_t piece[PIECE];
    for (int64_t b = 0; b < r->batch; b++)
        for (int64_t i = 0; i < r->own; i += PIECE) {
            int64_t n = MIN(r->own - i, (int64_t)PIECE);
            for (int64_t k = 0; k < n; k++) {
                int64_t token = sequence_token(i + k, r->rank, r->n_ranks, r->length);
                piece[k] = (int32_t)(i + k - (token - doc_start[b * r->length + token]));
            }
            exec_write(e, v, (size_t)(b * r->own + i) * sizeof *piece, piece, (size_t)n * sizeof *piece);
        }
}

void batch_write(exec *e, const plan *p, const micro_inputs *to, const int32_t *tokens, const int32_t *targets,
                 const int32_t *doc_start) {
    rows r = rows_of(p);
    size_t n = (size_t)(r.batch * r.length) * sizeof *tokens;
    if (r.n_ranks == 1) {
        exec_write(e, to->tokens, 0, tokens, n);
        exec_write(e, to->targets, 0, targets, n);
        exec_write(e, to->doc_start, 0, doc_start, n);
        return;
    }
    write_own(e, &r, to->tokens, tokens);
    write_own(e, &r, to->targets, targets);
    write_positions(e, &r, to->doc_start, doc_start);
    if (to->doc_start_all) exec_write(e, to->doc_start_all, 0, doc_start, n);
}

void batch_read(exec *e, const plan *p, value_id v, void *out) {
    rows r = rows_of(p);
    const size_t width = sizeof(int32_t);
    if (r.n_ranks == 1) {
        exec_read(e, v, 0, out, (size_t)(r.batch * r.length) * width);
        return;
    }
    for (int rank = 0; rank < r.n_ranks; rank++)
        for (int64_t b = 0; b < r.batch; b++)
            for (int64_t i = 0; i < r.own; i += r.run) {
                int64_t token = b * r.length + sequence_token(i, rank, r.n_ranks, r.length);
                exec_read(e, v, (size_t)((rank * r.batch + b) * r.own + i) * width, (char *)out + (size_t)token * width,
                          (size_t)r.run * width);
            }
}
