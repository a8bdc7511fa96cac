/* no_kernels.c - a CPU backend without kernels, for `make fuzz`: clang before 16 cannot compile all of those there are, and no
 * target runs one. */
#include "backend/backend.h"

const backend *backend_cpu(void) {
    static const backend none = {.name = "none"};
    return &none;
}
