#pragma once
/* hf.h - a Hugging Face directory opened and run, for tests. */
#include "model/model.h"
#include "weights/export.h"
#include "weights/load.h"
#include "weights/params.h"

typedef struct hf_model {
    model_config config;
    plan plan;
    exec *e;
    int64_t batch, seq_len;
} hf_model;

const char *hf_fixture_dir(const char *name); /* of fixtures/hf; one at a time */
json_t *hf_fixture_config(const char *name);  /* its config.json; the caller releases it */
void hf_same_config(const model_config *a, const model_config *b);

/* config.json, plan and arenas; the weights are still to be loaded. */
status hf_open(hf_model *m, const char *dir, precision q, int64_t batch, int64_t seq_len);
/* The same with adapters beside its layers. */
status hf_open_adapted(hf_model *m, const char *dir, const lora_options *lora, precision q, int64_t batch,
                       int64_t seq_len);
void hf_close(hf_model *m);
/* Writes a model as the Hugging Face directory dir/model, without a tokenizer: its tokens are bytes. fill gives its weights. */
void hf_write_model(const char *dir, const model_config *c, void (*fill)(hf_model *m));
/* Runs the evaluation section on (batch, seq_len) tokens, one document per row. targets may be NULL. */
void hf_forward(hf_model *m, const int32_t *tokens, const int32_t *targets);
/* Runs the training section: plan.step.grads then hold the gradients of the sum of all losses. */
void hf_backward(hf_model *m, const int32_t *tokens, const int32_t *targets);
/* The program never holds (tokens, vocabulary): multiplied here from the last hidden states. (batch, seq_len, vocab). */
float *hf_logits(hf_model *m);
