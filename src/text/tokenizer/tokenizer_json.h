#pragma once
/* tokenizer_json.h - private to format: the two halves of reading a tokenizer.json.
 *
 * tokenizer_json.c walks the file and reads what is large (vocabulary, merges); tokenizer_parts.c reads what is small
 * from trees of jansson. */
#include "tokenizer/tokenizer.h"

/* Each takes the value of one key of the file (JSON null where the key is absent) and fills its table of f. */
status tokenizer_read_added(tokenizer_file *f, const json_t *value);
status tokenizer_read_normalizer(tokenizer_file *f, const json_t *value);
status tokenizer_read_pretokenizer(tokenizer_file *f, const json_t *value);
status tokenizer_read_postprocessor(tokenizer_file *f, const json_t *value);
status tokenizer_read_decoder(tokenizer_file *f, const json_t *value);
