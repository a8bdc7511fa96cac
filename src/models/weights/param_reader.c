/* param_reader.c - read parameters from a program, a checkpoint, files or a seed, and merge adapters into them.
 *
 * fp32 masters are the source if there are any: bf16 and fp16 runs have them, and their rounding is the parameter itself,
 * so they are right for every dtype. */
#include "weights/param_reader.h"
#include "weights/file_tensor.h"
#include "weights/params.h"
#include "weights/pissa.h"

#include <stdlib.h>

enum { TILE_COLUMNS = 16, TILE_ROWS = 64, SUM_COLUMNS = 1024 };

static const param_place *place_of(const param_reader *s, size_t i) {
    return s->m->params[i].beside_base ? &s->adapters : &s->base;
}

static int64_t columns_of(const net_param *q) { return q->shape.rank == 2 ? q->shape.dim[1] : 1; }

/* ---- from files -------------------------------------------------------------------------------------------------- */

static const safetensor *const *files_of(const param_reader *s, const param_place *from, size_t i) {
    size_t n = 0;
    for (size_t k = 0; k < i; k++) n += (size_t)s->m->params[k].n_parts;
    return from->files + n;
}

/* Rows [row, row + n) of a part whose file holds (columns, rows). */
static void read_transposed(const safetensor *t, int64_t rows, int64_t columns, int64_t row, int64_t n, float *out) {
    float tile[TILE_COLUMNS][TILE_ROWS];
    for (int64_t r = 0; r < n; r += TILE_ROWS)
        for (int64_t c = 0; c < columns; c += TILE_COLUMNS) {
            int64_t h = MIN(n - r, (int64_t)TILE_ROWS), w = MIN(columns - c, (int64_t)TILE_COLUMNS);
            for (int64_t k = 0; k < w; k++) file_tensor_read(t, (c + k) * rows + row + r, tile[k], h);
            for (int64_t j = 0; j < h; j++)
                for (int64_t k = 0; k < w; k++) out[(r + j) * columns + c + k] = tile[k][j];
        }
}

static void read_files(const param_reader *s, const param_place *from, size_t i, int64_t first, int64_t n, float *out) {
    const net_param *q = &s->m->params[i];
    const safetensor *const *files = files_of(s, from, i);
    int64_t columns = columns_of(q), begin = first / columns, end = begin + n / columns;
    for (int k = 0; k < q->n_parts; k++) {
        const param_part *part = &q->parts[k];
        int64_t row = MAX(begin, part->first_row), last = MIN(end, part->first_row + part->n_rows);
        if (row >= last) continue;
        float *to = out + (row - begin) * columns;
        int64_t at = row - part->first_row;
        if (q->transposed && q->shape.rank == 2) read_transposed(files[k], part->n_rows, columns, at, last - row, to);
        else file_part_read(files[k], part, columns, at * columns, to, (last - row) * columns);
    }
}

static void forget_files(const param_reader *s, const param_place *from, size_t i) {
    const safetensor *const *files = files_of(s, from, i);
    for (int k = 0; k < s->m->params[i].n_parts; k++) file_tensor_release(files[k], 0, files[k]->n_bytes);
}

/* ---- any place --------------------------------------------------------------------------------------------------- */

static status find(param_reader *s, size_t i, checkpoint_found *out) {
    const param_place *from = place_of(s, i);
    if (!from->r) return OK;
    TRY(checkpoint_param_find(from->r, s->m->params[i].name, &s->m->params[i].shape, out));
    return OK;
}

static status read_plain(param_reader *s, size_t i, const checkpoint_found *found, int64_t first, int64_t n,
                         float *out) {
    const param_place *from = place_of(s, i);
    if (from->files) {
        read_files(s, from, i, first, n, out);
        return OK;
    }
    if (!from->e && !from->r) {
        model_param_initial(&s->m->params[i], from->seed, first, n, out);
        return OK;
    }
    value_id v = NO_VALUE;
    dtype t = found->type;
    if (from->e) {
        v = from->p->step.masters[i] ? from->p->step.masters[i] : s->m->params[i].value;
        t = program_get(s->g, v)->type;
    }
    size_t width = dtype_bytes(t);
    for (int64_t at = 0; at < n; at += s->block) {
        size_t k = (size_t)MIN(n - at, s->block);
        if (from->e) exec_read(from->e, v, (size_t)(first + at) * width, s->raw, k * width);
        else checkpoint_reader_read(from->r, found, (uint64_t)(first + at) * width, s->raw, k * width);
        tensor_convert(out + at, DTYPE_F32, s->raw, t, k);
    }
    return from->e ? exec_check(from->e) : OK;
}

static void forget(param_reader *s, size_t i, const checkpoint_found *found) {
    const param_place *from = place_of(s, i);
    if (from->r) checkpoint_reader_forget(from->r, found);
    if (from->files) forget_files(s, from, i);
}

/* ---- merging ----------------------------------------------------------------------------------------------------- */

/* Adapters are small. */
status param_reader_adapter(param_reader *s, size_t i, float **out) {
    checkpoint_found found = {0};
    int64_t n = shape_count(&s->m->params[i].shape);
    if (!s->pissa) TRY(find(s, i, &found));
    *out = mem_alloc((size_t)n * sizeof **out);
    status rc = s->pissa ? pissa_widen(s->pissa, i, *out) : read_plain(s, i, &found, 0, n, *out);
    if (!s->pissa) forget(s, i, &found);
    if (rc != OK) {
        free(*out);
        *out = NULL;
    }
    return rc;
}

bool param_is_adapter_of(const net_param *w, const net_param *q) {
    size_t n = (size_t)(strrchr(w->name, '.') - w->name);
    return q->adapter != ADAPTER_NONE && strncmp(w->name, q->name, n + 1) == 0 && !strchr(q->name + n + 1, '.');
}

static status find_adapters(param_reader *s, size_t i) {
    const net_param *w = &s->m->params[i];
    if (w->adapter != ADAPTER_NONE || !str_ends_with(w->name, ".w")) return OK;
    for (size_t k = i + 1; k < s->m->n_params && s->m->params[k].unit == w->unit; k++) {
        const net_param *q = &s->m->params[k];
        if (!param_is_adapter_of(w, q)) continue;
        if (q->adapter == ADAPTER_A) s->param_a = q;
        else s->param_b = q;
        TRY(param_reader_adapter(s, k, q->adapter == ADAPTER_A ? &s->a : &s->b));
    }
    return OK;
}

int param_adapted_part(const net_param *b, const param_part *part) {
    for (int k = 0; k < b->n_parts; k++)
        if (b->parts[k].module == part->module) return k;
    return -1;
}

/* out += scale b A of one row: b (rank), A (rank, columns). */
static void add_row(const param_reader *s, const float *b, const float *a, int64_t rank, int64_t columns, float *out) {
    double sums[SUM_COLUMNS];
    for (int64_t c = 0; c < columns; c += SUM_COLUMNS) {
        int64_t n = MIN(columns - c, (int64_t)SUM_COLUMNS);
        memset(sums, 0, (size_t)n * sizeof *sums);
        for (int64_t j = 0; j < rank; j++) {
            const double x = b[j];
            const float *row = a + j * columns + c;
            for (int64_t k = 0; k < n; k++) sums[k] += x * (double)row[k];
        }
        for (int64_t k = 0; k < n; k++) out[c + k] = (float)((double)out[c + k] + s->scale * sums[k]);
    }
}

static void merge_rows(const param_reader *s, const net_param *w, int64_t first_row, int64_t n_rows, float *out) {
    int64_t columns = columns_of(w), rank = s->param_b->shape.dim[1];
    for (int k = 0; k < w->n_parts; k++) {
        const param_part *part = &w->parts[k];
        int at = param_adapted_part(s->param_b, part);
        int64_t row = MAX(first_row, part->first_row), end = MIN(first_row + n_rows, part->first_row + part->n_rows);
        for (; at >= 0 && row < end; row++)
            add_row(s, s->b + (s->param_b->parts[at].first_row + row - part->first_row) * rank,
                    s->a + s->param_a->parts[at].first_row * columns, rank, columns, out + (row - first_row) * columns);
    }
}

/* ---- face -------------------------------------------------------------------------------------------------------- */

status param_reader_begin(param_reader *s, size_t i) {
    if (s->pissa && s->m->params[i].beside_base) return param_reader_adapter(s, i, &s->whole);
    TRY(find(s, i, &s->found));
    if (s->merge) TRY(find_adapters(s, i));
    return OK;
}

status param_reader_read(param_reader *s, size_t i, int64_t first, int64_t n, float *out) {
    const net_param *q = &s->m->params[i];
    if (s->whole) {
        memcpy(out, s->whole + first, (size_t)n * sizeof *out);
        return OK;
    }
    TRY(read_plain(s, i, &s->found, first, n, out));
    bool is_hashed =
        s->merge && s->hash_as != DTYPE_COUNT && !q->of_other_head && !q->beside_base; /* as params.c hashes a base */
    if (is_hashed) s->hash += params_hash_elements(q->name, first, out, n, s->hash_as);
    if (s->hash_stored && s->base.r) s->stored += params_hash_elements(q->name, first, out, n, s->found.type);
    if (s->param_b) merge_rows(s, q, first / columns_of(q), n / columns_of(q), out);
    return OK;
}

void param_reader_end(param_reader *s, size_t i) {
    if (!s->whole) forget(s, i, &s->found);
    param_reader_drop(s);
}

void param_reader_drop(param_reader *s) {
    free(s->a);
    free(s->b);
    free(s->whole);
    s->a = s->b = s->whole = NULL;
    s->param_a = s->param_b = NULL;
}
