#pragma once
/* file_tensor.h - private to weights: the elements of a tensor in a mapped file, as fp32. */
#include "model/model.h"
#include "weightfile/weightfile.h"

/* n elements from element `first`, converted exactly: the file holds fp32, bf16 or fp16. */
void file_tensor_read(const safetensor *t, int64_t first, float *out, int64_t n);
/* The same of a part of a parameter, in the order of its rows there; first and n in elements. */
void file_part_read(const safetensor *t, const param_part *part, int64_t columns, int64_t first, float *out, int64_t n);
/* Gives the mapped pages of bytes [from, to) back. Only whole pages at the end; at the start a neighbour's page may go
 * too, which only means reading it again. */
void file_tensor_release(const safetensor *t, size_t from, size_t to);
