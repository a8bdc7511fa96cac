#pragma once
/* request.h - private to settings: what the steps from settings to a request share (resolve.c, request_model.c,
 * request.c). */
#include "settings/settings.h"

int64_t config_seq_len(const config *c); /* tokens of a row */
/* Does run.resume=auto find a checkpoint in run.dir? */
bool config_goes_on(const config *c);
/* Does a resumed run need the weights that it began from? */
bool config_needs_same_weights(const config *c);
/* Weights belong to the ids of their tokenizer. */
status config_check_tokenizer(const config *c, const model_config *m);
status lora_from_config(const config *c, const model_config *m, lora_options *out);
