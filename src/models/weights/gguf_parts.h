#pragma once
/* gguf_parts.h - private to weights: what a GGUF file says about a model and its tokenizer, and how its tensors are called. */
#include "weightfile/weightfile.h"
#include "weights/export.h"
#include "weights/source.h"

/* What a tensor is for: the types of a quantised file go by it. */
typedef enum gguf_role {
    GGUF_ROLE_PLAIN,
    GGUF_ROLE_EMBED,
    GGUF_ROLE_OUTPUT,
    GGUF_ROLE_POSITIONS,
    GGUF_ROLE_V, /* also q|k|v as one tensor */
    GGUF_ROLE_DOWN
} gguf_role;
typedef struct gguf_name {
    char text[64]; /* "blk.0.attn_q.weight" */
    gguf_role role;
    bool interleaved; /* rows of a head as pairs side by side (meta_row) */
} gguf_name;

/* What llama.cpp does not compute as the model does is refused by its name, before anything is written. */
status gguf_check_model(const model_config *c);
/* general.* but the name, which stands with the tokenizer, and the keys of the architecture. */
void gguf_describe_model(gguf_header *h, const model_config *c, gguf_format f);
bool gguf_needs_output(const model_config *c); /* a tied model whose file must have the table twice */
/* Tensors of what the frequencies of the rotated pairs are divided by, and how many of them there are; the model was checked. */
enum { GGUF_ROPE_TENSORS = 2, GGUF_ROPE_PAIRS = 512 };
typedef struct gguf_rope_tensor {
    const char *name;
    int n;
    float factors[GGUF_ROPE_PAIRS];
} gguf_rope_tensor;
int gguf_rope_tensors(const model_config *c, gguf_rope_tensor out[GGUF_ROPE_TENSORS]);
/* A part of a parameter by its Hugging Face name. */
status gguf_tensor_name(const model_config *c, const net_param *q, const param_part *part, gguf_name *out);
gguf_type gguf_tensor_type(const model_config *c, gguf_format f, gguf_role role, int64_t layer, bool is_vector,
                           int64_t columns);

/* general.name and tokenizer.*. s->tokenizer is the one to write; none: the file gets no vocabulary. */
status gguf_describe_tokenizer(gguf_header *h, const model_source *s, bool none);
