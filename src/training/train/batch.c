/* batch.c - copy rows of tokens, for one rank or for one of several sequence ranks that share them.
 *
 * A rank's tokens of a row are two runs (sequence_token), so they are copied run by run. The program's value `doc_start`
 * gives positions: the index among the rank's own tokens minus doc_start is the position in the document. */
#include "train/batch.h"
#include "train/ahead.h"

#include <math.h>

enum { PIECE = 256, WIDTH = sizeof(int32_t) };
_Static_assert(sizeof(float) == WIDTH, "tokens and weights are copied alike");

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

/* The tokens of one rank, from token `first` of v on. from: int32 or fp32, one for each token. */
static void write_tokens_of(exec *e, const rows *r, int rank, value_id v, int64_t first, const void *from) {
    for (int64_t b = 0; b < r->batch; b++)
        for (int64_t i = 0; i < r->own; i += r->run) {
            int64_t token = b * r->length + sequence_token(i, rank, r->n_ranks, r->length);
            exec_write(e, v, (size_t)(first + b * r->own + i) * WIDTH, (const char *)from + (size_t)token * WIDTH,
                       (size_t)r->run * WIDTH);
        }
}

static void write_own(exec *e, const rows *r, value_id v, const void *from) {
    write_tokens_of(e, r, r->rank, v, 0, from);
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

/* A loss weighted with NaN would be found after the step, in a tensor that says nothing of the row. */
static status check_weights(const rows *r, const batch_rows *from) {
    for (int64_t i = 0; i < r->batch * r->length; i++)
        if (!isfinite(from->weights[i]))
            return ERR(ERR_INPUT,
                       "row %llu, position %lld: found the token weight %g, expected a finite number; check what the "
                       "weights are made from",
                       (unsigned long long)from->first_row + (unsigned long long)(i / r->length),
                       (long long)(i % r->length), (double)from->weights[i]);
    return OK;
}

/* Not left at the zeros that every value begins with: nothing would be trained. */
static void write_ones(exec *e, const rows *r, value_id v) {
    float piece[PIECE];
    int64_t n = r->batch * r->own;
    for (int k = 0; k < PIECE; k++) piece[k] = 1;
    for (int64_t i = 0; i < n; i += PIECE)
        exec_write(e, v, (size_t)i * WIDTH, piece, (size_t)MIN(n - i, (int64_t)PIECE) * WIDTH);
}

/* Targets of head k, and the weights of their losses: a weight belongs to a target, whichever head predicts it. */
static void write_head(exec *e, const rows *r, const net_loss *to, const batch_rows *from, int k) {
    int32_t targets[PIECE];
    float weights[PIECE];
    for (int64_t b = 0; b < r->batch; b++)
        for (int64_t i = 0; i < r->own; i += PIECE) {
            int64_t n = MIN(r->own - i, (int64_t)PIECE), row = b * r->length;
            size_t at = (size_t)(b * r->own + i) * WIDTH;
            for (int64_t j = 0; j < n; j++) {
                int64_t token = r->n_ranks == 1 ? i + j : sequence_token(i + j, r->rank, r->n_ranks, r->length);
                targets[j] = ahead_target(from->targets + row, from->doc_start + row, r->length, token, k);
                weights[j] = from->scales[k - 1];
                if (from->weights && targets[j] >= 0) weights[j] *= from->weights[row + token + k - 1];
            }
            if (k > 1) exec_write(e, to->targets, at, targets, (size_t)n * WIDTH);
            exec_write(e, to->weights, at, weights, (size_t)n * WIDTH);
        }
}

status batch_write(exec *e, const plan *p, const micro_inputs *to, const batch_rows *from) {
    rows r = rows_of(p);
    size_t n = (size_t)(r.batch * r.length) * WIDTH;
    if (from->weights && !to->weights)
        return ERR(ERR_BUG, "token weights were given to a program that was planned without them");
    if (from->weights) TRY(check_weights(&r, from));
    bool several = p->net.n_losses > 1;
    for (int k = 0; k < p->net.n_losses && several && from->scales; k++) write_head(e, &r, &to->loss[k], from, k + 1);
    if (to->weights && !from->weights && !several) write_ones(e, &r, to->weights);
    if (r.n_ranks == 1) {
        if (from->weights && !several) exec_write(e, to->weights, 0, from->weights, n);
        exec_write(e, to->tokens, 0, from->tokens, n);
        exec_write(e, to->targets, 0, from->targets, n);
        exec_write(e, to->doc_start, 0, from->doc_start, n);
        return OK;
    }
    if (from->weights && !several) write_own(e, &r, to->weights, from->weights);
    write_own(e, &r, to->tokens, from->tokens);
    write_own(e, &r, to->targets, from->targets);
    write_positions(e, &r, to->doc_start, from->doc_start);
    if (to->doc_start_all) exec_write(e, to->doc_start_all, 0, from->doc_start, n);
    return OK;
}

void batch_write_all(exec *e, const plan *p, value_id v, const void *from) {
    rows r = rows_of(p);
    if (r.n_ranks == 1) {
        exec_write(e, v, 0, from, (size_t)(r.batch * r.length) * WIDTH);
        return;
    }
    for (int rank = 0; rank < r.n_ranks; rank++) write_tokens_of(e, &r, rank, v, rank * r.batch * r.own, from);
}

void batch_read(exec *e, const plan *p, value_id v, void *out) {
    rows r = rows_of(p);
    if (r.n_ranks == 1) {
        exec_read(e, v, 0, out, (size_t)(r.batch * r.length) * WIDTH);
        return;
    }
    for (int rank = 0; rank < r.n_ranks; rank++)
        for (int64_t b = 0; b < r.batch; b++)
            for (int64_t i = 0; i < r.own; i += r.run) {
                int64_t token = b * r.length + sequence_token(i, rank, r.n_ranks, r.length);
                exec_read(e, v, (size_t)((rank * r.batch + b) * r.own + i) * WIDTH, (char *)out + (size_t)token * WIDTH,
                          (size_t)r.run * WIDTH);
            }
}
