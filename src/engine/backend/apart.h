#pragma once
/* apart.h - which ops of one kind touch nothing of each other, so that a device may do them in any order, or at once. */
#include "backend/backend.h"

static inline bool values_overlap(const void *x, const value *of_x, const void *y, const value *of_y) {
    uintptr_t a = (uintptr_t)x, b = (uintptr_t)y;
    return x && y && a < b + value_bytes(of_y) && b < a + value_bytes(of_x);
}

/* Does call a write what call b reads or writes? By addresses: two values may share bytes where one is over before the other begins. */
static inline bool call_writes_into(const kernel_call *a, const kernel_call *b) {
    for (int i = 0; i < op_output_count(a->op->kind); i++) {
        for (int k = 0; k < op_input_count(b->op->kind); k++)
            if (values_overlap(a->out[i], call_out(a, i), b->in[k], call_in(b, k))) return true;
        for (int k = 0; k < op_output_count(b->op->kind); k++)
            if (values_overlap(a->out[i], call_out(a, i), b->out[k], call_out(b, k))) return true;
    }
    return false;
}

/* Of n calls in a row, how many from the first on are of its kind and touch nothing of each other, without scratch. */
static inline size_t calls_apart(const kernel_call *calls, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (calls[i].op->kind != calls[0].op->kind || calls[i].op->work) return i;
        for (size_t k = 0; k < i; k++)
            if (call_writes_into(&calls[k], &calls[i]) || call_writes_into(&calls[i], &calls[k])) return i;
    }
    return n;
}
