/* pages.c - pages by reference count. */
#include "generate/pages.h"

#include <stdlib.h>

void page_pool_init(page_pool *p, size_t n_pages) {
    *p = (page_pool){.n_pages = n_pages, .n_free = n_pages};
    p->free_list = mem_alloc(n_pages * sizeof *p->free_list);
    p->readers = mem_alloc(n_pages * sizeof *p->readers);
    for (size_t i = 0; i < n_pages; i++) p->free_list[i] = (int32_t)(n_pages - 1 - i); /* page 0 is taken first */
}

void page_pool_fini(page_pool *p) {
    free(p->free_list);
    free(p->readers);
    *p = (page_pool){0};
}

void page_pool_take(page_pool *p, int32_t *out, size_t n) {
    ASSERT(n <= p->n_free);
    for (size_t i = 0; i < n; i++) {
        out[i] = p->free_list[--p->n_free];
        ASSERT(p->readers[out[i]] == 0);
        p->readers[out[i]] = 1;
    }
}

void page_pool_share(page_pool *p, const int32_t *pages, size_t n) {
    for (size_t i = 0; i < n; i++) {
        ASSERT(p->readers[pages[i]] > 0);
        p->readers[pages[i]]++;
    }
}

void page_pool_drop(page_pool *p, const int32_t *pages, size_t n) {
    for (size_t i = 0; i < n; i++) {
        ASSERT(p->readers[pages[i]] > 0);
        if (--p->readers[pages[i]] == 0) p->free_list[p->n_free++] = pages[i];
    }
}
