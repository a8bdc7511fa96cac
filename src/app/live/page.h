#pragma once
/* page.h - private to live: the files of the page, which are part of the program. */
#include "base/base.h"

typedef struct page_file {
    const char *path, *type;
    const char *bytes;
    size_t n_bytes;
} page_file;
bool page_find(const char *path, page_file *out); /* false: no such file */
