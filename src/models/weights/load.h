#pragma once
/* load.h - private to weights, part of its face: parameters from safetensors files, by Hugging Face name. */
#include "checkpoint/checkpoint.h"
#include "weightfile/weightfile.h"
#include "weights/quantized.h"

/* The weight files of a Hugging Face directory: model.safetensors, or the shards that model.safetensors.index.json
 * names; of Meta's, consolidated.safetensors. Names in the index are plain file names: a path would leave the directory. */
typedef struct weight_files {
    safetensors *files;
    size_t n_files, header_bytes;
} weight_files;
status weight_files_open(weight_files *w, const char *dir);
void weight_files_close(weight_files *w);

/* Fills every parameter (and its fp32 master) but adapters from `files`. Only tensors whose name begins with `prefix` count; what
 * follows is the Hugging Face name, with or without the family's own "model." or "transformer.". fp32, bf16 and fp16 are
 * read. Tensors that are missing, misshapen or not expected are one error that names up to ten of them, before anything
 * is loaded; buffers that old versions saved (attn.bias, attn.masked_bias, rotary inv_freq) and the copy of a tied
 * embedding are left out. Optimizer state is left as it is.
 * Holds a few megabytes at most, and of the files at most one tensor: pages already read are given back. A weight that is
 * quantised (model.base) goes through rows of fp32 into the codes of its tensor, which are held until it is done. */
status weights_load(exec *e, const plan *p, const safetensors *files, size_t n_files, const char *prefix);
status weights_load_dir(exec *e, const plan *p, const char *dir);
/* The same; hash: of the numbers that were quantised. */
status weights_load_base(exec *e, const plan *p, const char *dir, base_hash *hash);
/* Only the parameters of the frozen copy that a run compares with, from a model of the same sizes. e NULL: only checks. */
status weights_load_reference(exec *e, const plan *p, const char *dir);
/* What its description alone shows: another vocabulary, family or size than `m`. No weights are opened. */
status weights_check_reference(const model_config *m, const char *dir);
bool weights_are_in(const char *dir); /* any, also such as are not read; false: a description of a model alone */
status weights_check_dir(const plan *p, const char *dir); /* what load would refuse, without a program to load into */
