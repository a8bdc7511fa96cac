/* backend_choice.c - which backend is under test, and which of a program's tests run. */
#include "backend_choice.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

/* RALO_TEST_FILTER='norms_*': under a sanitizer of the device one test takes minutes. */
__attribute__((constructor)) static void take_filter(void) {
    const char *pattern = getenv("RALO_TEST_FILTER");
    if (pattern) cmocka_set_test_filter(pattern);
}

const backend *backend_under_test(void) {
    const char *name = getenv("RALO_TEST_BACKEND");
    const backend *b;
    if (!name || strcmp(name, "cuda") != 0) return backend_cpu();
    if (backend_choose(DEVICE_CUDA, 0, &b) == OK) return b;
    fprintf(stderr, "skipped: %s\n", error_message());
    exit(77);
}

backend_context *backend_under_test_context(int n_threads) {
    static backend_context *gpu; /* opening one takes a second, and tests open thousands */
    const backend *b = backend_under_test();
    backend_context *c = b->discrete ? gpu : NULL;
    if (!c && b->open(&c, &(backend_options){.n_threads = n_threads}) != OK) {
        error_print(stderr);
        abort();
    }
    if (b->discrete) gpu = c;
    return c;
}

void backend_under_test_close(backend_context *c) {
    const backend *b = backend_under_test();
    if (!b->discrete) b->close(c);
}
