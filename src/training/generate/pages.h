#pragma once
/* pages.h - private to generate: which pages of the cache are free, and how many sequences read each of the others. */
#include "base/base.h"

typedef struct page_pool {
    int32_t *free_list;
    size_t n_free, n_pages;
    uint32_t *readers;
} page_pool;

void page_pool_init(page_pool *p, size_t n_pages);
void page_pool_fini(page_pool *p);
/* n pages with one reader each. The caller has looked at n_free. */
void page_pool_take(page_pool *p, int32_t *out, size_t n);
void page_pool_share(page_pool *p, const int32_t *pages, size_t n); /* one reader more */
void page_pool_drop(page_pool *p, const int32_t *pages, size_t n);  /* one less; without readers a page is free */
