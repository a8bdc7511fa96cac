#pragma once
/* work.h - scratch bytes of the CUDA kernels by family; no CUDA in here. */
#include "backend/backend.h"

size_t cuda_gemm_work_bytes(const program *p, const op *o);      /* LINEAR*, UNEMBED_* */
size_t cuda_attention_work_bytes(const program *p, const op *o); /* ATTENTION, ATTENTION_BWD, ATTENTION_PAGED */
size_t cuda_norm_work_bytes(const program *p, const op *o);      /* *NORM_BWD, BIAS_GRAD */
size_t cuda_embed_work_bytes(const program *p, const op *o);     /* EMBED_BWD*, POSITION_BWD */
