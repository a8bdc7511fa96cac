/* param_fixtures.c - see param_fixtures.h. */
#include "model/model.h"
#include "param_fixtures.h"
#include "programs.h"
#include "weightfile/weightfile.h"
#include "weights/params.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

const safetensor *fixture_tensor(const safetensors *f, const char *prefix, const char *name) {
    char full[512];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const safetensor *t = safetensors_find(f, full);
    if (!t) fail_msg("the fixture has no tensor '%s'", full);
    return t;
}

/* "model.layers.2.x" of head 3 is there as "model.layers.4.x". */
static const float *part_data(const plan *p, const safetensors *f, const char *prefix, const net_param *q, int part) {
    char digits[16], name[256];
    const char *file_name = q->parts[part].file_name;
    snprintf(digits, sizeof digits, ".%d.", (int)model_first_head(model_of(&p->net.source)));
    const char *at = q->of_other_head ? strstr(file_name, digits) : NULL;
    if (!at) return fixture_tensor(f, prefix, file_name)->data;
    snprintf(name, sizeof name, "%.*s.%d.%s", (int)(at - file_name), file_name, q->unit - 1, at + strlen(digits));
    return fixture_tensor(f, prefix, name)->data;
}

static int64_t columns_of(const net_param *q) { return q->shape.rank == 2 ? q->shape.dim[1] : 1; }

static float element(const net_param *q, const param_part *part, const float *data, int64_t row, int64_t column) {
    bool turned = q->transposed && q->shape.rank == 2;
    return turned ? data[column * part->n_rows + row] : data[row * columns_of(q) + column];
}

void fixture_load(exec *e, const plan *p, const safetensors *f, const char *prefix, bool of_reference) {
    for (size_t i = 0; i < p->net.n_params; i++) {
        const net_param *q = &p->net.params[i];
        int64_t columns = columns_of(q);
        if (q->of_reference != of_reference) continue;
        assert_true(!of_reference || (q->frozen && !p->step.grads[i]));
        for (int k = 0; k < q->n_parts; k++) {
            const param_part *part = &q->parts[k];
            const float *data = part_data(p, f, prefix, q, k);
            float *rows = mem_alloc((size_t)(part->n_rows * columns) * sizeof *rows);
            for (int64_t r = 0; r < part->n_rows; r++)
                for (int64_t c = 0; c < columns; c++) rows[r * columns + c] = element(q, part, data, r, c);
            params_write_whole(e, p, i, false, part->first_row * columns, part->n_rows * columns, rows);
            free(rows);
        }
    }
}

double fixture_gradient_error(exec *e, const plan *p, const safetensors *f, const char *prefix, double scale,
                              size_t *n) {
    double worst = 0;
    *n = 0;
    for (size_t i = 0; i < p->net.n_params; i++) {
        const net_param *q = &p->net.params[i];
        int64_t columns = columns_of(q);
        if (q->frozen) continue;
        float *grad = value_read_f32(e, &p->program, p->step.grads[i]);
        for (int k = 0; k < q->n_parts; k++, ++*n) {
            const param_part *part = &q->parts[k];
            const float *data = part_data(p, f, prefix, q, k);
            double distance = 0, norm = 0;
            for (int64_t r = 0; r < part->n_rows; r++)
                for (int64_t c = 0; c < columns; c++) {
                    double want = (double)element(q, part, data, r, c) * scale;
                    double found = (double)grad[(part->first_row + r) * columns + c];
                    distance += (found - want) * (found - want), norm += want * want;
                }
            assert_true(norm > 0);
            worst = !(sqrt(distance / norm) <= worst) ? sqrt(distance / norm) : worst;
        }
        free(grad);
    }
    return worst;
}
