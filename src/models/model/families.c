/* families.c - families.def as data, and how their weight files name tensors. */
#include "model/model.h"

static const tensor_names gpt2_names = {
    .prefix = "transformer.",
    .embed = "transformer.wte",
    .positions = "transformer.wpe",
    .final_norm = "transformer.ln_f",
    .unembed = "lm_head",
    .norm1 = "transformer.h.%d.ln_1",
    .qkv = {"transformer.h.%d.attn.c_attn"},
    .out = "transformer.h.%d.attn.c_proj",
    .norm2 = "transformer.h.%d.ln_2",
    .up = {"transformer.h.%d.mlp.c_fc"},
    .down = "transformer.h.%d.mlp.c_proj",
};

static const tensor_names llama_names = {
    .prefix = "model.",
    .embed = "model.embed_tokens",
    .final_norm = "model.norm",
    .unembed = "lm_head",
    .norm1 = "model.layers.%d.input_layernorm",
    .qkv = {"model.layers.%d.self_attn.q_proj", "model.layers.%d.self_attn.k_proj", "model.layers.%d.self_attn.v_proj"},
    .q_norm = "model.layers.%d.self_attn.q_norm",
    .k_norm = "model.layers.%d.self_attn.k_norm",
    .out = "model.layers.%d.self_attn.o_proj",
    .norm2 = "model.layers.%d.post_attention_layernorm",
    .up = {"model.layers.%d.mlp.gate_proj", "model.layers.%d.mlp.up_proj"},
    .down = "model.layers.%d.mlp.down_proj",
};

static const tensor_names phi3_names = {
    .prefix = "model.",
    .embed = "model.embed_tokens",
    .final_norm = "model.norm",
    .unembed = "lm_head",
    .norm1 = "model.layers.%d.input_layernorm",
    .qkv = {"model.layers.%d.self_attn.qkv_proj"},
    .out = "model.layers.%d.self_attn.o_proj",
    .norm2 = "model.layers.%d.post_attention_layernorm",
    .up = {"model.layers.%d.mlp.gate_up_proj"},
    .down = "model.layers.%d.mlp.down_proj",
};

static const tensor_names olmo2_names = {
    .prefix = "model.",
    .embed = "model.embed_tokens",
    .final_norm = "model.norm",
    .unembed = "lm_head",
    .qkv = {"model.layers.%d.self_attn.q_proj", "model.layers.%d.self_attn.k_proj", "model.layers.%d.self_attn.v_proj"},
    .q_norm = "model.layers.%d.self_attn.q_norm",
    .k_norm = "model.layers.%d.self_attn.k_norm",
    .out = "model.layers.%d.self_attn.o_proj",
    .norm1_after = "model.layers.%d.post_attention_layernorm",
    .norm2_after = "model.layers.%d.post_feedforward_layernorm",
    .up = {"model.layers.%d.mlp.gate_proj", "model.layers.%d.mlp.up_proj"},
    .down = "model.layers.%d.mlp.down_proj",
};

static const tensor_names gemma_names = {
    .prefix = "model.",
    .embed = "model.embed_tokens",
    .final_norm = "model.norm",
    .unembed = "lm_head",
    .norm1 = "model.layers.%d.input_layernorm",
    .qkv = {"model.layers.%d.self_attn.q_proj", "model.layers.%d.self_attn.k_proj", "model.layers.%d.self_attn.v_proj"},
    .q_norm = "model.layers.%d.self_attn.q_norm",
    .k_norm = "model.layers.%d.self_attn.k_norm",
    .out = "model.layers.%d.self_attn.o_proj",
    .norm1_after = "model.layers.%d.post_attention_layernorm",
    .norm2 = "model.layers.%d.pre_feedforward_layernorm",
    .norm2_after = "model.layers.%d.post_feedforward_layernorm",
    .up = {"model.layers.%d.mlp.gate_proj", "model.layers.%d.mlp.up_proj"},
    .down = "model.layers.%d.mlp.down_proj",
};

/* A row without names of its own has Llama's: the later of two initializers of a field counts. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverride-init"
static const model_traits traits[FAMILY_COUNT] = {
#define FAMILY(id, type, class_name, ...) \
    [FAMILY_##id] = {.name = type, .architecture = class_name, .names = &llama_names, __VA_ARGS__},
#include "model/families.def"
#undef FAMILY
};
#pragma GCC diagnostic pop

const model_traits *model_family_traits(model_family f) { return &traits[f]; }
