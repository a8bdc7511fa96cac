/* work.c - scratch of the CUDA kernels: pure, so that a plan for a GPU can be made where there is none. */
#include "backend/cuda/work.h"

size_t cuda_work_bytes(const program *p, const op *o, int n_threads) {
    (void)n_threads; /* of the host; a GPU's kernels have as many as they like */
    switch (o->kind) {
    default: return 0;
    }
}
