#pragma once
/* work.h - scratch bytes of the CUDA kernels by family; no CUDA in here. */
#include "backend/backend.h"

size_t cuda_work_bytes(const program *p, const op *o, int n_threads);
/* LINEAR, LINEAR_DX, LINEAR_DW, UNEMBED_LOSS, UNEMBED_LOSS_GRAD, UNEMBED_LOGITS */
size_t cuda_gemm_work_bytes(const program *p, const op *o);
/* ATTENTION, ATTENTION_BWD, ATTENTION_PAGED */
size_t cuda_attention_work_bytes(const program *p, const op *o);
