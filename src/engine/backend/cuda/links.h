#pragma once
/* links.h - private to the CUDA backend: messages between GPUs by NCCL, which is loaded where it is found. */
#include "backend/cuda/cuda.h"

void links_close(backend_context *c);
const backend_links *links_table(void);
