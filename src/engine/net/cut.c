/* cut.c - which part of a parameter a tensor rank has, and its place in the whole. */
#include "net/net.h"

int64_t param_cut_place(const param_cut *c, int64_t at, int64_t *n) {
    int64_t columns = c->here.rank == 2 ? c->here.dim[1] : 1, row = at / columns, column = at % columns;
    *n = shape_count(&c->here) - at;
    if (c->dim < 0) return at;
    int64_t place = c->dim == 0 ? row : column;
    for (int i = 0; i < c->n_slices; i++) {
        const param_slice *s = &c->slices[i];
        if (place < s->at || place >= s->at + s->n) continue;
        if (c->dim == 1) {
            *n = s->at + s->n - column;
            return row * c->whole.dim[1] + s->from + column - s->at;
        }
        *n = (s->at + s->n - row) * columns - column;
        return (s->from + row - s->at) * columns + column;
    }
    return -1; /* and nothing but padding follows */
}

bool param_cut_next(const param_cut *c, int64_t begin, int64_t end, param_run *run) {
    int64_t at = run->here + run->n, count = shape_count(&c->here);
    if (c->dim == 1) at = MAX(at, begin / c->whole.dim[1] * c->here.dim[1]); /* rows before are not in it */
    for (int64_t n; at < count; at += n) {
        int64_t whole = param_cut_place(c, at, &n);
        int64_t first = MAX(whole, begin), last = MIN(whole + n, end);
        if (whole >= 0 && first < last) {
            *run = (param_run){at + first - whole, first, last - first};
            return true;
        }
        if (c->dim == 1 && whole >= end) break;
    }
    return false;
}

int64_t net_param_counted(const net_param *p, int tensor_index) {
    const param_cut *c = &p->cut;
    int64_t count = shape_count(&p->shape), valid = count;
    if (c->dim == 0) /* without padding */
        valid = count / c->here.dim[0] * (c->slices[c->n_slices - 1].at + c->slices[c->n_slices - 1].n);
    return tensor_index == p->first_holder ? valid : MIN(valid, p->shared_from);
}
