/* guard_malloc.c - puts the guard between the program and malloc.
 *
 * Linked into the ralo program and the tests, never into the library. The functions below take the place of glibc's for
 * the whole process (libraries included: OpenBLAS allocating inside a kernel is what we want to see) and hand the work
 * to glibc's own entry points, so memory is glibc's and free needs no replacement. Nothing here may allocate, lock or
 * need set-up: the first call comes from the dynamic loader, before any constructor.
 *
 * Sanitizers bring their own malloc, which must stay: there the guard hangs on the hook they offer. */
#include "exec/guard.h"

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZER_MALLOC 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer) || \
    __has_feature(leak_sanitizer) || __has_feature(hwaddress_sanitizer)
#define SANITIZER_MALLOC 1
#endif
#endif

__attribute__((constructor)) static void announce(void) { guard_set_present(); }

#ifdef SANITIZER_MALLOC

/* gcc ships no header for it. */
int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void *, size_t),
                                              void (*free_hook)(const volatile void *));

static void on_malloc(const volatile void *p, size_t n_bytes) { guard_note(); }
static void on_free(const volatile void *p) {} /* the runtime insists on both */

__attribute__((constructor)) static void hook_sanitizer(void) {
    ASSERT(__sanitizer_install_malloc_and_free_hooks(on_malloc, on_free) > 0);
}

#else

void *__libc_malloc(size_t n_bytes);
void *__libc_calloc(size_t n, size_t n_bytes);
void *__libc_realloc(void *p, size_t n_bytes);
void *__libc_memalign(size_t alignment, size_t n_bytes);
void *__libc_valloc(size_t n_bytes);
void *__libc_pvalloc(size_t n_bytes);

void *malloc(size_t n_bytes) {
    guard_note();
    return __libc_malloc(n_bytes);
}

void *calloc(size_t n, size_t n_bytes) {
    guard_note();
    return __libc_calloc(n, n_bytes);
}

void *realloc(void *p, size_t n_bytes) {
    guard_note();
    return __libc_realloc(p, n_bytes);
}

void *reallocarray(void *p, size_t n, size_t n_bytes) {
    size_t total;
    if (__builtin_mul_overflow(n, n_bytes, &total)) {
        errno = ENOMEM;
        return NULL;
    }
    guard_note();
    return __libc_realloc(p, total);
}

void *memalign(size_t alignment, size_t n_bytes) {
    guard_note();
    return __libc_memalign(alignment, n_bytes);
}

void *aligned_alloc(size_t alignment, size_t n_bytes) {
    guard_note();
    return __libc_memalign(alignment, n_bytes);
}

int posix_memalign(void **out, size_t alignment, size_t n_bytes) {
    if (alignment < sizeof(void *) || (alignment & (alignment - 1))) return EINVAL;
    guard_note();
    int errno_before = errno; /* POSIX: the error is returned, errno is not touched */
    void *p = __libc_memalign(alignment, n_bytes);
    errno = errno_before;
    if (!p) return ENOMEM;
    *out = p;
    return 0;
}

void *valloc(size_t n_bytes) {
    guard_note();
    return __libc_valloc(n_bytes);
}

void *pvalloc(size_t n_bytes) {
    guard_note();
    return __libc_pvalloc(n_bytes);
}

#endif
