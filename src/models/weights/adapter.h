#pragma once
/* adapter.h - private to weights, part of its face: LoRA adapters as PEFT stores them.
 *
 *     DIR/adapter_config.json            rank, alpha, target modules ...
 *     DIR/adapter_model.safetensors      base_model.model.X.lora_A.weight (rank, in), ....lora_B.weight (out, rank)
 *
 * Whatever the config asks for that ralo does not compute (DoRA, other ranks by pattern, trained biases ...) is refused by
 * its key, with what was found and what is expected. Keys that this version does not know are accepted if they are null,
 * false or empty. GPT-2's layers are stored transposed by transformers, their adapters are not. A critic's value head is trained whole: it is
 * PEFT's modules_to_save, stored beside the adapters under its own names, and the key value_head, which PEFT does not know, says which it is. */
#include "checkpoint/checkpoint.h"
#include "weightfile/weightfile.h"

typedef struct adapter_config {
    lora_options lora;
    char base[4096]; /* base_model_name_or_path; "": not named */
} adapter_config;

bool adapter_is_dir(const char *dir); /* does it hold an adapter_config.json? */
/* dir/adapter_config.json; target modules are those of this model. */
status adapter_config_read(adapter_config *out, const model_config *c, const char *dir);
status adapter_config_from_json(adapter_config *out, const model_config *c, const json_t *root, const char *path);
/* The same of a checkpoint of ours, which says which base its adapters are for: pissa is accepted. */
status adapter_config_of_run(adapter_config *out, const model_config *c, const json_t *root, const char *path);
/* Tensors of the right sizes do not show over which weights they were trained: warns where the adapter of `dir` names another base than
 * `model`, the directory that it is used over. */
void adapter_warn_base(const adapter_config *c, const char *dir, const char *model);
/* As PEFT writes it. base: NULL where there is no name. The caller takes it. */
json_t *adapter_config_to_json(const model_config *c, const lora_options *o, const char *base);
/* Which value head it holds beside its adapters, where it is that of a critic. */
status adapter_value_head(const char *dir, value_head *out);
/* base_model_name_or_path alone, to find the model; ERR_INPUT unless it is a directory here. */
status adapter_base_dir(const char *dir, char *out, size_t n);
bool adapter_is_run(const char *dir); /* a run or a checkpoint */
/* What to give instead of `dir`, which holds no adapter itself: ERR_INPUT with the names of adapters below it, if any, or of a run
 * how to export its adapter. The second where a run would do as well. */
status adapter_not_found(const char *dir);
status adapter_or_run_not_found(const char *dir);

/* DIR/adapter_model.safetensors; the caller closes it. */
status adapter_file_open(safetensors *file, const char *dir);
/* Fills the adapters of p (and their fp32 masters); nothing else. Missing, misshapen and unexpected tensors are one
 * error that names up to ten, before anything is loaded. */
status adapter_load_dir(exec *e, const plan *p, const char *dir);
/* What load would refuse, without a program to load into. Warns of another base than `model`; NULL: does not. */
status adapter_check_dir(const plan *p, const char *dir, const char *model);
