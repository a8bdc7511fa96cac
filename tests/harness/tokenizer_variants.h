#pragma once
/* tokenizer_variants.h - the small tokenizers of fixtures/tokenizer_cases.json, one for every component that is supported.
 *
 *     if (!tokenizer_cases_open()) return 1;
 *     tokenizer *t = open_variant(variant_named("llama2")); */
#include "data/data.h"
#include "files.h"

extern json_t *fixture;

bool tokenizer_cases_open(void);        /* false: said on stderr */
json_t *compose(const json_t *variant); /* the tokenizer.json of a variant, as compose() of the script */
void write_json(const char *path, const json_t *root);
const json_t *variant_named(const char *name);
tokenizer *open_variant(const json_t *variant);
