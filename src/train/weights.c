/* weights.c - stream parameters from files to their place.
 *
 * One tensor at a time: mapped file -> fp32 rows -> parameter dtype -> arena. Packed parameters are filled part by part,
 * and files that hold (in, out) are turned while they are read, so nothing larger than a block of rows is held. */
#include "train/weights.h"

#include <stdlib.h>

#define BLOCK_ELEMENTS (1 << 20)

typedef struct sink {
    exec *e;
    const program *g;
    value_id param, master;
    float *wide;
    void *narrow;
} sink;

/* Elements [first, first + n) of the parameter, from s->wide. */
static void write_elements(sink *s, int64_t first, int64_t n) {
    dtype t = program_get(s->g, s->param)->type;
    tensor_convert(s->narrow, t, s->wide, DTYPE_F32, (size_t)n);
    exec_write(s->e, s->param, (size_t)first * dtype_bytes(t), s->narrow, (size_t)n * dtype_bytes(t));
    if (s->master) exec_write(s->e, s->master, (size_t)first * sizeof(float), s->wide, (size_t)n * sizeof(float));
}

static const safetensor *find(const safetensors *files, size_t n_files, const char *prefix, const char *name) {
    char full[512];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    for (size_t i = 0; i < n_files; i++) {
        const safetensor *t = safetensors_find(&files[i], full);
        if (t) return t;
    }
    return NULL;
}

static status check_part(const safetensor *t, const char *name, const char *path, shape want) {
    char a[64], b[64];
    if (!t) return ERR(ERR_INPUT, "%s: tensor '%s' is missing", path, name);
    if (!shape_equal(&t->shape, &want))
        return ERR(ERR_INPUT, "%s: tensor '%s' has shape %s, the model needs %s", path, name, shape_format(a, &t->shape), shape_format(b, &want));
    if (t->type != DTYPE_F32 && t->type != DTYPE_BF16 && t->type != DTYPE_F16)
        return ERR(ERR_INPUT, "%s: tensor '%s' is %s, expected fp32, bf16 or fp16", path, name, dtype_name(t->type));
    return OK;
}

static void load_part(sink *s, const safetensor *t, const param_part *part, int64_t columns, bool transposed) {
    int64_t block = MAX((int64_t)1, BLOCK_ELEMENTS / columns), width = (int64_t)dtype_bytes(t->type);
    for (int64_t row = 0; row < part->n_rows; row += block) {
        int64_t n = MIN(block, part->n_rows - row);
        if (!transposed) {
            tensor_convert(s->wide, DTYPE_F32, (const char *)t->data + row * columns * width, t->type, (size_t)(n * columns));
        } else { /* file is (columns, rows) */
            for (int64_t c = 0; c < columns; c++)
                for (int64_t r = 0; r < n; r++)
                    s->wide[r * columns + c] = tensor_get_f32(t->data, t->type, (size_t)(c * part->n_rows + row + r));
        }
        write_elements(s, (part->first_row + row) * columns, n * columns);
    }
}

status weights_load(exec *e, const plan *p, const safetensors *files, size_t n_files, const char *prefix) {
    status rc = OK;
    int64_t widest = BLOCK_ELEMENTS;
    for (size_t i = 0; i < p->model.n_params; i++) {
        const shape *s = &program_get(&p->program, p->model.params[i].value)->shape;
        widest = MAX(widest, s->rank == 2 ? s->dim[1] : 1);
    }
    sink s = {.e = e, .g = &p->program, .wide = mem_alloc((size_t)widest * 4), .narrow = mem_alloc((size_t)widest * 4)};
    for (size_t i = 0; i < p->model.n_params && rc == OK; i++) {
        const model_param *q = &p->model.params[i];
        const value *v = program_get(&p->program, q->value);
        int64_t columns = v->shape.rank == 2 ? v->shape.dim[1] : 1;
        s.param = q->value;
        s.master = p->passes.masters[i];
        for (int k = 0; k < q->n_parts && rc == OK; k++) {
            const param_part *part = &q->parts[k];
            const safetensor *t = find(files, n_files, prefix, part->file_name);
            shape want = v->shape.rank == 1 ? SHAPE(part->n_rows)
                         : q->transposed    ? SHAPE(columns, part->n_rows)
                                            : SHAPE(part->n_rows, columns);
            rc = check_part(t, part->file_name, n_files ? files[0].path : "?", want);
            if (rc == OK) load_part(&s, t, part, columns, q->transposed && v->shape.rank == 2);
        }
    }
    free(s.wide);
    free(s.narrow);
    return rc;
}
