/* file_tensor.c - read a tensor of a mapped file. Views into a file have no alignment, so elements are copied out before
 * they are converted. */
#include "weights/file_tensor.h"

#include <sys/mman.h>
#include <unistd.h>

enum { PIECE = 1024 }; /* elements copied to aligned memory at once */

void file_tensor_read(const safetensor *t, int64_t first, float *out, int64_t n) {
    uint64_t raw[PIECE / 2]; /* aligned, and large enough for PIECE fp32 */
    size_t width = dtype_bytes(t->type);
    for (int64_t at = 0; at < n; at += PIECE) {
        size_t k = (size_t)MIN(n - at, (int64_t)PIECE);
        const char *from = (const char *)t->data + (size_t)(first + at) * width;
        if (t->type == DTYPE_F32) {
            memcpy(out + at, from, k * width);
        } else {
            memcpy(raw, from, k * width);
            tensor_convert(out + at, DTYPE_F32, raw, t->type, k);
        }
    }
}

/* Row by row where the file has its rows in another order. */
void file_part_read(const safetensor *t, const param_part *part, int64_t columns, int64_t first, float *out,
                    int64_t n) {
    if (!part->interleaved) {
        file_tensor_read(t, first, out, n);
        return;
    }
    for (int64_t at = 0; at < n;) {
        int64_t row = (first + at) / columns, column = (first + at) % columns, k = MIN(n - at, columns - column);
        file_tensor_read(t, meta_row(row, part->interleaved) * columns + column, out + at, k);
        at += k;
    }
}

void file_tensor_release(const safetensor *t, size_t from, size_t to) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), base = (uintptr_t)t->data;
    uintptr_t start = (base + from) & ~(page - 1), end = (base + to) & ~(page - 1);
    if (end > start) madvise((void *)start, end - start, MADV_DONTNEED); /* advice: refusal costs memory only */
}
