/* linear.c - y = x w^T (+ b), dx = dy w (+ add), dw = dy^T x: the three GEMMs of a linear layer, dw also added to what is there.
 *
 * Weights are (out, in) with rows contiguous, activations (N, ...) with rows contiguous; the three directions differ
 * only in the strides they hand to gemm.c, nothing is transposed in memory. dw is the finished sum over all tokens:
 * adding it to an accumulator is another op, so that micro-batches and ranks are summed in one order.
 * An adapter beside a product is added behind it (adapted.h). A LINEAR that says how many rows hold something is generation's:
 * gemm_rows.c, whose rows know nothing of each other. */
#include "backend/adapted.h"
#include "backend/cpu/gemm.h"

SAME_PLACE(LINEAR_X, LINEAR_DX_DY, LINEAR_DW_DY, LINEAR_DW_ADD_DY);
SAME_PLACE(LINEAR_W, LINEAR_DX_W, LINEAR_DW_X, LINEAR_DW_ADD_X);
SAME_PLACE(LINEAR_Y, LINEAR_DX_DX, LINEAR_DW_DW, LINEAR_DW_ADD_DW);

/* m, n, k and the operands as they lie; data pointers are the caller's. */
static gemm_call linear_call(op_kind kind, const value *first, const value *second) {
    gemm_call g = {.a = {.type = first->type}, .b = {.type = second->type}};
    int64_t first_row = shape_row_length(&first->shape), second_row = shape_row_length(&second->shape);
    switch (kind) {
    case OP_LINEAR: /* x (N, in), w (out, in) */
        g.m = shape_row_count(&first->shape), g.n = shape_row_count(&second->shape), g.k = first_row;
        g.a.row_stride = first_row, g.a.col_stride = 1;
        g.b.row_stride = 1, g.b.col_stride = second_row;
        ASSERT(first_row == second_row);
        break;
    case OP_LINEAR_DX: /* dy (N, out), w (out, in) */
        g.m = shape_row_count(&first->shape), g.n = second_row, g.k = first_row;
        g.a.row_stride = first_row, g.a.col_stride = 1;
        g.b.row_stride = second_row, g.b.col_stride = 1;
        ASSERT(first_row == shape_row_count(&second->shape));
        break;
    default: /* dy (N, out), x (N, in) */
        ASSERT(kind == OP_LINEAR_DW || kind == OP_LINEAR_DW_ADD);
        g.m = first_row, g.n = second_row, g.k = shape_row_count(&first->shape);
        g.a.row_stride = 1, g.a.col_stride = first_row;
        g.b.row_stride = second_row, g.b.col_stride = 1;
        ASSERT(shape_row_count(&first->shape) == shape_row_count(&second->shape));
    }
    g.ldc = g.n;
    return g;
}

static size_t linear_work_bytes(const program *p, const op *o, int n_threads) {
    if (op_is_adapted(o)) {
        op parts[ADAPTED_CALLS];
        adapted_ops(o, parts);
        size_t second = parts[1].kind == OP_LORA_UP ? cpu_work_LORA_UP(p, &parts[1], n_threads)
                                                    : linear_work_bytes(p, &parts[1], n_threads);
        return MAX(linear_work_bytes(p, &parts[0], n_threads), second);
    }
    gemm_call g = linear_call(o->kind, &p->values[o->in[LINEAR_X]], &p->values[o->in[LINEAR_W]]);
    if (o->rows) return gemm_rows_work_bytes(g.m, g.n, g.k, g.a.type, o->attr.lanes, n_threads);
    return gemm_work_bytes(g.m, g.n, g.k, g.a.type, p->values[o->out[LINEAR_Y]].type, n_threads);
}

static void linear_run(backend_context *c, const kernel_call *k) {
    if (op_is_adapted(k->op)) {
        adapted_calls two;
        adapted_split(k, &two);
        linear_run(c, &two.calls[0]);
        if (two.ops[1].kind == OP_LORA_UP) cpu_kernel_LORA_UP(c, &two.calls[1]);
        else linear_run(c, &two.calls[1]);
        return;
    }
    gemm_call g = linear_call(k->op->kind, call_in(k, LINEAR_X), call_in(k, LINEAR_W));
    g.a.data = k->in[LINEAR_X];
    g.b.data = k->in[LINEAR_W];
    g.lanes = k->op->attr.lanes;
    g.c = k->out[LINEAR_Y];
    g.c_type = call_out(k, LINEAR_Y)->type;
    if (k->op->kind == OP_LINEAR && k->in[LINEAR_B]) g.bias = k->in[LINEAR_B], g.bias_type = call_in(k, LINEAR_B)->type;
    if (k->op->kind == OP_LINEAR_DX && k->in[LINEAR_DX_ADD]) g.add = k->in[LINEAR_DX_ADD], g.ld_add = g.n;
    g.accumulate = k->op->kind == OP_LINEAR_DW_ADD;
    g.m = cpu_rows(k, g.m);
    if (k->rows) gemm_rows_run(c, &g, k->work);
    else gemm_run(c, &g, k->work);
}

const cpu_work_fn cpu_work_LINEAR = linear_work_bytes;
const cpu_work_fn cpu_work_LINEAR_DX = linear_work_bytes;
const cpu_work_fn cpu_work_LINEAR_DW = linear_work_bytes;
const cpu_work_fn cpu_work_LINEAR_DW_ADD = linear_work_bytes;

void cpu_kernel_LINEAR(backend_context *c, const kernel_call *k) { linear_run(c, k); }        /* y = */
void cpu_kernel_LINEAR_DX(backend_context *c, const kernel_call *k) { linear_run(c, k); }     /* dx = */
void cpu_kernel_LINEAR_DW(backend_context *c, const kernel_call *k) { linear_run(c, k); }     /* dw = */
void cpu_kernel_LINEAR_DW_ADD(backend_context *c, const kernel_call *k) { linear_run(c, k); } /* dw += */
