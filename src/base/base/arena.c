/* arena.c - memory for objects that die together, and the two allocators for code outside the step.
 *
 * An arena is a list of zeroed blocks that double in size up to 1 MiB; a request that would waste a block gets one of
 * its own. Nothing is freed before arena_fini, so pointers stay valid while the arena lives.
 * Out of memory ends the program with the size that was asked for: these are small host objects (plans, names,
 * configs), and no caller could do anything better. Tensors never live here. */
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ARENA_ALIGN 16
#define ARENA_BLOCK_MIN ((size_t)16 << 10)
#define ARENA_BLOCK_MAX ((size_t)1 << 20)
#define MEM_LARGE ((size_t)256 << 10) /* smaller ones are always there */

struct arena_block {
    arena_block *next;
    size_t used, capacity;
    _Alignas(ARENA_ALIGN) unsigned char bytes[];
};

static int exit_code_of_refusal; /* 0: abort */

void mem_exit_when_refused(int exit_code) { exit_code_of_refusal = exit_code; }

_Noreturn void mem_refused(size_t n_bytes) {
    fprintf(
        stderr,
        "ralo: out of host memory: %zu bytes were refused by the system; free some, or raise the limit (ulimit -v)\n",
        n_bytes);
    /* Not exit: its handlers want memory, and other threads may be waiting for it. */
    if (exit_code_of_refusal) _exit(exit_code_of_refusal);
    abort();
}

bool mem_is_there(size_t n_bytes) {
    void *p = n_bytes < MEM_LARGE ? NULL : malloc(n_bytes); /* large ones are mapped, and untouched they cost nothing */
    free(p);
    return n_bytes < MEM_LARGE || p;
}

void *mem_alloc(size_t n_bytes) {
    void *p = calloc(1, MAX(n_bytes, (size_t)1));
    if (!p) mem_refused(n_bytes);
    return p;
}

char *mem_string(const char *s) {
    size_t n = strlen(s) + 1;
    return memcpy(mem_alloc(n), s, n);
}

void *array_grow(void *items, size_t *capacity, size_t needed, size_t item_bytes) {
    if (needed <= *capacity) return items;
    size_t grown = MAX(needed, MAX((size_t)8, *capacity + *capacity / 2)), n_bytes;
    if (__builtin_mul_overflow(grown, item_bytes, &n_bytes)) mem_refused(SIZE_MAX);
    unsigned char *p = realloc(items, MAX(n_bytes, (size_t)1));
    if (!p) mem_refused(n_bytes);
    /* New items are zero, as everywhere else in this file. */
    memset(p + *capacity * item_bytes, 0, (grown - *capacity) * item_bytes);
    *capacity = grown;
    return p;
}

void arena_init(arena *a) { *a = (arena){0}; }

void arena_fini(arena *a) {
    for (arena_block *b = a->blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    arena_init(a);
}

void *arena_alloc(arena *a, size_t n_bytes) {
    if (n_bytes > SIZE_MAX / 2) mem_refused(n_bytes); /* a negative count became huge */
    size_t room = MAX(align_up(n_bytes, ARENA_ALIGN), (size_t)ARENA_ALIGN);
    arena_block *b = a->blocks;
    if (!b || b->capacity - b->used < room) {
        size_t capacity = b ? MIN(b->capacity * 2, ARENA_BLOCK_MAX) : ARENA_BLOCK_MIN;
        bool alone = room > capacity / 4;
        if (alone) capacity = room;
        arena_block *fresh = mem_alloc(sizeof *fresh + capacity);
        fresh->capacity = capacity;
        if (alone && b) { /* after the open block, which still has room for small objects */
            fresh->next = b->next;
            b->next = fresh;
        } else {
            fresh->next = b;
            a->blocks = fresh;
        }
        b = fresh;
    }
    void *p = b->bytes + b->used;
    b->used += room;
    a->n_bytes += n_bytes;
    return p;
}

void *arena_copy(arena *a, const void *src, size_t n_bytes) {
    void *p = arena_alloc(a, n_bytes);
    if (n_bytes) memcpy(p, src, n_bytes);
    return p;
}

char *arena_string(arena *a, const char *s) { return arena_copy(a, s, strlen(s) + 1); }

char *arena_format(arena *a, const char *fmt, ...) {
    ASSERT(fmt); /* gcc 13 with sanitizers otherwise warns of a null format */
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    ASSERT(length >= 0);
    char *text = arena_alloc(a, (size_t)length + 1);
    vsnprintf(text, (size_t)length + 1, fmt, again);
    va_end(again);
    return text;
}
