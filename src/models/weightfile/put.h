#pragma once
/* put.h - private to format: bytes at their places in a file whose size is known before. */
#include "base/base.h"

/* path: for messages. */
status put_at(int fd, const char *path, const void *data, size_t n_bytes, uint64_t offset);
/* Blocks for the whole file, so that a full disk is found now; only its size where the file system cannot reserve. */
status put_reserve(int fd, const char *path, uint64_t n_bytes);
