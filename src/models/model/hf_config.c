/* hf_config.c - a model's sizes and choices from Hugging Face's config.json, and back.
 *
 * Where a key is absent the default is the one transformers 5 has for that family; sizes have no default here, because a
 * model of guessed size is never what was meant. Rotary positions are read and written by hf_rope.c.
 *
 * Anything that would change what the model computes and that ralo does not compute is refused by name: other model
 * types, rope types, activations, windows without a rule, attention both ways, biases, experts, quantization.
 * Taken without effect, because the result is the same: reorder_and_upcast_attn (attention scores are fp32 here always),
 * pretraining_tp, use_cache. Dropout of any kind is not applied: ralo trains without it.
 * What is written carries both spellings, so that either generation of transformers reads it. */
#include "model/hf_reading.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONFIG_MAX_BYTES (4u << 20)

/* ---- the families ---------------------------------------------------------------------------------------------- */

/* Types that people have, and the first thing in them that ralo does not compute. */
#define EXPERTS "mixture of experts is not supported yet"
#define DELTA_RULE "delta-rule layers (linear attention) are not supported yet"
#define STATE_SPACE "state-space layers (Mamba) are not supported yet"
#define IMAGES "models of images, video or sound are not supported"
#define LATENT "latent attention (MLA) is not supported yet"
#define ENCODER "ralo trains decoders, which predict the next token; an encoder is not one"
#define PARALLEL "attention and MLP that run side by side are not supported"
#define ALIBI "ALiBi positions are not supported"
#define MULTIPLIERS "its scalar multipliers are not supported yet"
#define NO_ROPE "layers without rotary positions are not supported yet"
static const struct {
    const char *types, *missing; /* types: between spaces */
} not_supported[] = {
    {" mixtral qwen2_moe qwen3_moe olmoe phimoe glm4_moe granitemoe granitemoeshared dbrx llama4 llama4_text gpt_oss "
     "ernie4_5_moe hunyuan_v1_moe minimax minimax_m2 flex_olmo bailing_moe dots1 afmoe ",
     EXPERTS},
    {" deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 kimi_k2 glm4_moe_lite mistral4 longcat_flash ",
     "latent attention (MLA) and mixture of experts are not supported yet"},
    {" minicpm3 youtu ", LATENT},
    {" qwen3_next qwen3_5_moe qwen3_5_moe_text kimi_linear ",
     "delta-rule layers (linear attention) and mixture of experts are not supported yet"},
    {" qwen3_5 qwen3_5_text olmo_hybrid ", DELTA_RULE},
    {" mamba mamba2 falcon_mamba falcon_h1 bamba zamba zamba2 ", STATE_SPACE},
    {" jamba nemotron_h granitemoehybrid ", "state-space layers (Mamba) and mixture of experts are not supported yet"},
    {" lfm2 lfm2_moe ", "short convolutions are not supported yet"},
    {" rwkv recurrent_gemma ", "recurrent layers are not supported"},
    {" gemma3 gemma3n gemma4 gemma4_unified llava llava_next llava_onevision qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe "
     "mllama paligemma idefics2 idefics3 smolvlm internvl mistral3 pixtral qwen2_audio qwen2_5_omni qwen3_omni_moe "
     "phi4_multimodal whisper ",
     IMAGES "; a directory with the text model alone (gemma3_text, qwen2 ...) is"},
    {" gemma3n_text gemma4_text ", "its attention (shared keys and values, embeddings per layer) is not supported yet"},
    {" bert roberta xlm-roberta distilbert electra deberta-v2 modernbert t5 mt5 umt5 bart mbart pegasus t5gemma ",
     ENCODER},
    {" gpt_neox gptj phi falcon cohere cohere2 codegen ", PARALLEL},
    {" bloom mpt ", ALIBI},
    {" granite ", MULTIPLIERS},
    {" smollm3 exaone4 ", NO_ROPE},
    {" gemma ", "the first Gemma is not supported; gemma2 and gemma3_text are"},
    {" olmo ", "norms without weights are not supported; olmo2 is"},
    {" gpt_neo opt gpt_bigcode starcoder2 stablelm ", "this mix of LayerNorm, biases and positions is not supported"},
    {" ministral3 ", "queries scaled by their position are not supported yet"},
};

/* NULL: the type is not one of the known ones, and its other keys show nothing either. */
static const char *what_is_missing(const json_t *root, const char *type) {
    char word[64];
    snprintf(word, sizeof word, " %.60s ", type);
    for (size_t i = 0; i < ARRAY_LENGTH(not_supported); i++)
        if (strstr(not_supported[i].types, word)) return not_supported[i].missing;
    if (hf_get(root, "num_experts") || hf_get(root, "num_local_experts") || hf_get(root, "n_routed_experts"))
        return EXPERTS;
    if (hf_get(root, "vision_config") || hf_get(root, "audio_config")) return IMAGES;
    if (hf_get(root, "linear_num_value_heads")) return DELTA_RULE;
    if (hf_get(root, "mamba_d_state") || hf_get(root, "ssm_state_size")) return STATE_SPACE;
    if (hf_get(root, "kv_lora_rank")) return LATENT;
    return NULL;
}

static status read_family(const hf_reading *r, model_family *out) {
    const char *type = json_string_value(hf_get(r->root, "model_type"));
    char text[256];
    strbuf known;
    for (model_family f = 0; f < FAMILY_COUNT && type; f++)
        if (strcmp(type, model_family_traits(f)->name) == 0) {
            *out = f;
            return OK;
        }
    const char *missing = type ? what_is_missing(r->root, type) : NULL;
    if (missing) {
        snprintf(text, sizeof text, "a family that `ralo help presets` lists: %s", missing);
        return hf_refuse(r->path, "model_type", json_object_get(r->root, "model_type"), text);
    }
    strbuf_init(&known);
    strbuf_add(&known, "one of: ");
    for (model_family f = 0; f < FAMILY_COUNT; f++)
        strbuf_printf(&known, "%s\"%s\"", f ? ", " : "", model_family_traits(f)->name);
    status rc = hf_refuse(r->path, "model_type", json_object_get(r->root, "model_type"), known.text);
    strbuf_fini(&known);
    return rc;
}

/* Where both names are there, transformers 5 takes the long one. */
static status read_gpt2_size(const hf_reading *r, const char *const *names, const char *long_name, int64_t max,
                             int64_t *out) {
    return hf_read_size(r, hf_get(r->root, long_name) ? NAMES(long_name) : names, max, out);
}

static status read_gpt2(const hf_reading *r, model_config *c) {
    TRY(read_gpt2_size(r, NAMES("n_embd"), "hidden_size", 1 << 20, &c->hidden));
    TRY(read_gpt2_size(r, NAMES("n_layer"), "num_hidden_layers", NET_LAYERS_MAX, &c->n_layers));
    TRY(read_gpt2_size(r, NAMES("n_head"), "num_attention_heads", 4096, &c->n_heads));
    TRY(read_gpt2_size(r, NAMES("n_positions", "n_ctx"), "max_position_embeddings", 1 << 24, &c->max_positions));
    TRY(hf_read_size_or(r, "n_inner", 1 << 22, 4 * c->hidden, &c->ffn));
    TRY(hf_read_real(r, r->root, "", "layer_norm_epsilon", 0, 1e-5, &c->norm_eps));
    TRY(hf_read_bool(r, "tie_word_embeddings", true, &c->tied));
    TRY(hf_demand_word(r, "activation_function", NAMES("gelu_new", "gelu_pytorch_tanh"),
                       "\"gelu_new\" or \"gelu_pytorch_tanh\" (the tanh form of gelu)"));
    TRY(hf_demand_bool(r, "scale_attn_weights", true, "true: scores divided by the root of the head width"));
    TRY(hf_demand_bool(r, "scale_attn_by_inverse_layer_idx", false, "false: every layer scales its scores alike"));
    TRY(hf_demand_bool(r, "add_cross_attention", false, "false: a decoder alone"));
    c->n_kv_heads = c->n_heads;
    if (c->hidden % c->n_heads) return hf_refuse(r->path, "n_head", hf_get(r->root, "n_head"), "a divisor of n_embd");
    c->head_dim = c->hidden / c->n_heads;
    return OK;
}

/* ---- windows ----------------------------------------------------------------------------------------------------- */

/* A word per layer; which layers have a window must follow the rule of model_config. */
static status read_layer_types(const hf_reading *r, const json_t *types, model_config *c) {
    static const char sliding[] = "sliding_attention", full[] = "full_attention";
    if (!json_is_array(types) || (int64_t)json_array_size(types) < c->n_layers)
        return hf_refuse(r->path, "layer_types", types, "a list with a word per layer");
    int64_t window = c->window;
    c->window_from = c->n_layers, c->full_every = 0;
    for (int64_t l = 0; l < c->n_layers; l++) {
        const json_t *type = json_array_get(types, (size_t)l);
        const char *word = json_string_value(type);
        bool is_sliding = word && strcmp(word, sliding) == 0;
        if (!is_sliding && !(word && strcmp(word, full) == 0))
            return hf_refuse(r->path, "layer_types", type,
                             "\"full_attention\" or \"sliding_attention\" in every layer");
        if (is_sliding && !window)
            return hf_refuse(r->path, "layer_types", type, "\"full_attention\": sliding_window gives no window");
        if (is_sliding && c->window_from == c->n_layers) c->window_from = l;
        if (!is_sliding && c->window_from < l && !c->full_every) c->full_every = l + 1;
    }
    if (c->window_from == c->n_layers) window = 0;
    c->window = window;
    for (int64_t l = 0; l < c->n_layers; l++) {
        bool is_sliding = strcmp(json_string_value(json_array_get(types, (size_t)l)), sliding) == 0;
        if (window && is_sliding != (model_layer_window(c, l) > 0))
            return hf_refuse(r->path, "layer_types", types,
                             "\"full_attention\" in the first layers and in every n-th layer after them, "
                             "\"sliding_attention\" in the others");
    }
    if (!window) c->window_from = 0, c->full_every = 0;
    return OK;
}

/* An absent window is as wide as the family's usual one, null is none. */
static status read_windows(const hf_reading *r, model_config *c) {
    const model_traits *t = model_family_traits(c->family);
    const json_t *types = hf_get(r->root, "layer_types"), *from = hf_get(r->root, "max_window_layers");
    bool use = t->windows != WINDOWS_FROM, has_key = json_object_get(r->root, "sliding_window");
    if (t->windows == WINDOWS_NONE) return OK;
    TRY(hf_read_size_or(r, "sliding_window", 1 << 24, has_key ? 0 : t->usual_window, &c->window));
    if (t->windows == WINDOWS_ALL) return OK;
    if (t->windows == WINDOWS_TYPES) {
        if (types) return read_layer_types(r, types, c);
        TRY(hf_read_size_or(r, "sliding_window_pattern", NET_LAYERS_MAX, t->usual_full_every, &c->full_every));
        if (!c->window) c->full_every = 0;
        return OK;
    }
    TRY(hf_read_bool(r, "use_sliding_window", use, &use));
    if (from && (!json_is_integer(from) || json_integer_value(from) < 0))
        return hf_refuse(r->path, "max_window_layers", from, "a whole number");
    if (!use) c->window = 0;
    if (types) return read_layer_types(r, types, c); /* it decides, where given */
    c->window_from = from ? json_integer_value(from) : 28;
    if (c->window_from >= c->n_layers) c->window = 0;
    if (!c->window) c->window_from = 0;
    return OK;
}

/* ---- Llama and those like it ------------------------------------------------------------------------------------- */

/* Absent: the family's usual one; null: none. */
static status read_softcap(const hf_reading *r, const char *key, bool has, double usual, double *out) {
    if (!has) return hf_demand_absent(r, key, "nothing: this family has no such cap");
    if (json_object_get(r->root, key)) usual = 0;
    return hf_read_real(r, r->root, "", key, 0, usual, out);
}

static status read_softcaps(const hf_reading *r, model_config *c) {
    const model_traits *t = model_family_traits(c->family);
    TRY(read_softcap(r, "attn_logit_softcapping", t->attention_softcap_key, t->usual_attention_softcap,
                     &c->attention_softcap));
    TRY(read_softcap(r, "final_logit_softcapping", t->final_softcap_key, t->usual_final_softcap, &c->final_softcap));
    TRY(hf_demand_bool(r, "use_bidirectional_attention", false, "false: no token looks at those behind it"));
    return t->query_scalar_key ? hf_read_real(r, r->root, "", "query_pre_attn_scalar", 0, 256, &c->query_scalar) : OK;
}

static status read_llama_like(const hf_reading *r, model_config *c) {
    const model_traits *t = model_family_traits(c->family);
    TRY(hf_read_size(r, NAMES("hidden_size"), 1 << 20, &c->hidden));
    TRY(hf_read_size(r, NAMES("num_hidden_layers"), NET_LAYERS_MAX, &c->n_layers));
    TRY(hf_read_size(r, NAMES("num_attention_heads"), 4096, &c->n_heads));
    TRY(hf_read_size(r, NAMES("intermediate_size"), 1 << 22, &c->ffn));
    TRY(hf_read_size(r, NAMES("max_position_embeddings"), 1 << 24, &c->max_positions));
    /* null means one per query head; so does absence in Llama, whose first configs did not have the key. */
    if (t->kv_heads_optional || json_object_get(r->root, "num_key_value_heads"))
        TRY(hf_read_size_or(r, "num_key_value_heads", 4096, c->n_heads, &c->n_kv_heads));
    else TRY(hf_read_size(r, NAMES("num_key_value_heads"), 4096, &c->n_kv_heads));
    if (c->n_heads % c->n_kv_heads)
        return hf_refuse(r->path, "num_key_value_heads", hf_get(r->root, "num_key_value_heads"),
                         "a divisor of num_attention_heads");
    /* An absent head_dim is 128 in Qwen3; null, and absent in the others, means an equal share of the width. */
    bool wide = t->usual_head_dim && !json_object_get(r->root, "head_dim");
    TRY(hf_read_size_or(r, "head_dim", 1024, wide ? t->usual_head_dim : c->hidden / c->n_heads, &c->head_dim));
    if (!hf_get(r->root, "head_dim") && !wide && c->hidden % c->n_heads)
        return hf_refuse(r->path, "num_attention_heads", hf_get(r->root, "num_attention_heads"),
                         "a divisor of hidden_size");
    TRY(hf_read_real(r, r->root, "", "rms_norm_eps", 0, t->usual_eps > 0 ? t->usual_eps : 1e-6, &c->norm_eps));
    TRY(hf_read_bool(r, "tie_word_embeddings", t->tied, &c->tied));
    const char *activation = t->activation_key ? t->activation_key : "hidden_act";
    if (t->gelu_gate)
        TRY(hf_demand_word(r, activation, NAMES("gelu_pytorch_tanh", "gelu_new"), "\"gelu_pytorch_tanh\""));
    else TRY(hf_demand_word(r, activation, NAMES("silu", "swish"), "\"silu\""));
    TRY(read_softcaps(r, c));
    /* Qwen2 has biases on q, k and v whatever its config says. */
    if (t->no_attention_bias_key)
        TRY(hf_demand_bool(r, t->no_attention_bias_key, false, "false: attention without biases in this family"));
    if (t->no_mlp_bias_key) TRY(hf_demand_bool(r, t->no_mlp_bias_key, false, "false: an MLP without biases"));
    TRY(read_windows(r, c));
    return hf_read_rope(r, c);
}

/* ralo's own key: a critic. */
static status read_value_head(const hf_reading *r, model_config *c) {
    const json_t *v = hf_get(r->root, "value_head");
    const char *name = json_string_value(v);
    if (!v) return OK;
    for (value_head h = VALUE_HEAD_MLP; h < VALUE_HEAD_COUNT && name; h++)
        if (strcmp(name, value_head_name(h)) == 0) {
            c->value_head = h;
            return OK;
        }
    return hf_refuse(r->path, "value_head", v, "\"mlp\", \"linear\" or \"sigmoid\", or nothing");
}

/* Newer versions of transformers write dtype, older ones torch_dtype. Other words than these mean nothing here. */
static bool read_is_16_bit(const hf_reading *r) {
    const char *name, *word = json_string_value(hf_get_any(r->root, NAMES("dtype", "torch_dtype"), &name));
    return word && (strcmp(word, "bfloat16") == 0 || strcmp(word, "float16") == 0);
}

static status read_config(const hf_reading *r, model_config *c) {
    static const char *const experts[] = {"num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok",
                                          "moe_intermediate_size"};
    if (!json_is_object(r->root)) return ERR(ERR_INPUT, "%s: found no object, expected a model's config.json", r->path);
    TRY(read_family(r, &c->family));
    TRY(hf_demand_absent(r, "quantization_config",
                         "nothing: quantized weights cannot be trained; use the original model"));
    for (size_t i = 0; i < ARRAY_LENGTH(experts); i++)
        TRY(hf_demand_absent(r, experts[i], "nothing: mixtures of experts are not supported"));
    TRY(hf_demand_bool(r, "is_causal", true, "true: no token looks at those behind it"));
    TRY(hf_read_size(r, NAMES("vocab_size"), 1 << 24, &c->vocab));
    TRY(model_family_traits(c->family)->gpt2_config ? read_gpt2(r, c) : read_llama_like(r, c));
    TRY(read_value_head(r, c));
    c->is_16_bit = read_is_16_bit(r);
    /* Layers are counted as transformers does, which loads the first head and leaves out extra_heads.* */
    int64_t heads;
    TRY(hf_read_size_or(r, "n_future_tokens", MTP_HEADS_MAX, 1, &heads));
    if (heads > 1) c->mtp_heads = c->file_heads = heads, c->n_layers += heads - 1;
    return model_config_check(c);
}

status model_config_from_json(model_config *out, const json_t *root, const char *name, const char *path) {
    const hf_reading r = {path, root};
    *out = (model_config){.name = name};
    TRY(read_config(&r, out));
    return OK;
}

bool model_dir_is(const char *dir) { return dir_holds(dir, "config.json") || dir_holds(dir, "params.json"); }

#define SAVE_AGAIN \
    "it is not read: save the model as safetensors, with transformers' save_pretrained, and name that directory"
#define OF_GGUF                                                                                                      \
    "training reads safetensors; name the directory of the model that it was made of (hf download NAME --local-dir " \
    "DIR)"

static bool has_gguf(const char *dir) {
    DIR *d = opendir(dir);
    bool found = false;
    for (struct dirent *e; d && !found && (e = readdir(d));) found = str_ends_with(e->d_name, ".gguf");
    if (d) closedir(d);
    return found;
}

/* What stands in the place of a model, a file or a directory of another kind, and what to do. */
typedef struct other_thing {
    const char *found, *advice;
} other_thing;

static other_thing what_instead(const char *dir) {
    struct stat st;
    bool is_file = stat(dir, &st) == 0 && !S_ISDIR(st.st_mode);
    if (is_file && str_ends_with(dir, ".gguf")) return (other_thing){"a GGUF file", OF_GGUF};
    if (is_file && (str_ends_with(dir, ".bin") || str_ends_with(dir, ".pt") || str_ends_with(dir, ".pth")))
        return (other_thing){"a file of PyTorch", SAVE_AGAIN};
    if (is_file) return (other_thing){"a file", "name the directory of a model"};
    if (dir_holds(dir, "pytorch_model.bin")) return (other_thing){"no config.json, but pytorch_model.bin", SAVE_AGAIN};
    if (dir_holds(dir, "adapter_config.json"))
        return (other_thing){"an adapter", "name its base with --model, and this with --set model.adapter=DIR"};
    if (dir_holds(dir, "checkpoint.json") || dir_holds(dir, "checkpoints"))
        return (other_thing){"a run or a checkpoint",
                             "`ralo train RUN` goes on with it, `ralo export RUN DIR` makes a model of it"};
    if (dir_holds(dir, "model.safetensors") || dir_holds(dir, "model.safetensors.index.json"))
        return (other_thing){"weights alone", "put the config.json of the model beside them"};
    if (has_gguf(dir)) return (other_thing){"GGUF files", OF_GGUF};
    return (other_thing){"no config.json", "download a model: hf download NAME --local-dir DIR"};
}

status model_config_read(model_config *out, const char *dir) {
    strbuf path;
    json_t *root = NULL;
    status rc;
    size_t end = strlen(dir), start;
    while (end > 1 && dir[end - 1] == '/') end--;
    for (start = end; start > 0 && dir[start - 1] != '/';) start--;
    strbuf_init(&path);
    bool meta = !dir_holds(dir, "config.json") && dir_holds(dir, "params.json");
    strbuf_printf(&path, "%s/%s.json", dir, meta ? "params" : "config");
    if (access(path.text, F_OK) != 0) {
        int why = errno;
        other_thing it = what_instead(dir);
        if (why != ENOENT && why != ENOTDIR) it.found = strerror(why);
        rc = ERR(ERR_INPUT, "%s: found %s, expected a Hugging Face model directory with config.json; %s", dir, it.found,
                 it.advice);
        goto done;
    }
    TRY_GOTO(rc, json_read_file(path.text, CONFIG_MAX_BYTES, &root), done);
    rc = meta ? model_config_from_meta(out, root, dir + start, path.text)
              : model_config_from_json(out, root, dir + start, path.text);
done:
    json_decref(root);
    strbuf_fini(&path);
    return rc;
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

static void put(json_t *o, const char *key, json_t *value) {
    int rc = json_object_set_new(o, key, value);
    ASSERT(rc == 0);
}

static void put_int(json_t *o, const char *key, int64_t n) { put(o, key, json_integer(n)); }

static void put_gpt2(json_t *o, const model_config *c) {
    put_int(o, "n_embd", c->hidden);
    put_int(o, "n_layer", model_main_layers(c));
    put_int(o, "n_head", c->n_heads);
    put_int(o, "n_inner", c->ffn);
    put_int(o, "n_positions", c->max_positions);
    put_int(o, "n_ctx", c->max_positions);
    put(o, "layer_norm_epsilon", json_real(c->norm_eps));
    put(o, "activation_function", json_string("gelu_new"));
    put(o, "scale_attn_weights", json_true());
    put(o, "scale_attn_by_inverse_layer_idx", json_false());
    put(o, "reorder_and_upcast_attn", json_false());
    static const char *const dropouts[] = {"resid_pdrop", "embd_pdrop", "attn_pdrop"};
    for (size_t i = 0; i < ARRAY_LENGTH(dropouts); i++) put(o, dropouts[i], json_real(0));
}

static void put_windows(json_t *o, const model_config *c) {
    window_keys keys = model_family_traits(c->family)->windows;
    if (keys == WINDOWS_NONE) return;
    put(o, "sliding_window", c->window ? json_integer(c->window) : json_null());
    if (keys == WINDOWS_ALL) return;
    if (keys == WINDOWS_FROM) {
        put(o, "use_sliding_window", json_boolean(c->window > 0));
        put_int(o, "max_window_layers", c->window ? c->window_from : model_main_layers(c));
    }
    json_t *types = json_array();
    for (int64_t l = 0; l < model_main_layers(c); l++)
        json_array_append_new(types, json_string(model_layer_window(c, l) ? "sliding_attention" : "full_attention"));
    put(o, "layer_types", types);
}

/* transformers takes no 256.0 for a whole number. */
static void put_whole(json_t *o, const char *key, double x) {
    put(o, key, x == floor(x) && x < 0x1p53 ? json_integer((json_int_t)x) : json_real(x));
}

static void put_cap(json_t *o, const char *key, double cap) { put(o, key, cap > 0 ? json_real(cap) : json_null()); }

static void put_llama_like(json_t *o, const model_config *c) {
    put_int(o, "hidden_size", c->hidden);
    put_int(o, "num_hidden_layers", model_main_layers(c));
    put_int(o, "num_attention_heads", c->n_heads);
    put_int(o, "num_key_value_heads", c->n_kv_heads);
    put_int(o, "head_dim", c->head_dim);
    put_int(o, "intermediate_size", c->ffn);
    /* Dynamic positions are stretched by how much longer than these a row is. */
    bool dynamic = c->rope.type == ROPE_DYNAMIC;
    put_int(o, "max_position_embeddings", dynamic ? c->rope.original_max_positions : c->max_positions);
    put(o, "rms_norm_eps", json_real(c->norm_eps));
    const model_traits *t = model_family_traits(c->family);
    put(o, t->activation_key ? t->activation_key : "hidden_act",
        json_string(t->gelu_gate ? "gelu_pytorch_tanh" : "silu"));
    put(o, "attention_dropout", json_real(0));
    if (t->query_scalar_key) put_whole(o, "query_pre_attn_scalar", c->query_scalar);
    if (t->attention_softcap_key) put_cap(o, "attn_logit_softcapping", c->attention_softcap);
    if (t->final_softcap_key) put_cap(o, "final_logit_softcapping", c->final_softcap);
    if (t->no_attention_bias_key) put(o, t->no_attention_bias_key, json_false());
    if (t->no_mlp_bias_key) put(o, t->no_mlp_bias_key, json_false());
    put_windows(o, c);
    hf_put_rope(o, c);
}

json_t *model_config_to_json(const model_config *c) {
    const model_traits *t = model_family_traits(c->family);
    json_t *o = json_object();
    char architecture[64]; /* of a critic the one of transformers that has `score` in the place of the unembedding */
    const char *end = strstr(t->architecture, t->gpt2_config ? "LMHeadModel" : "ForCausalLM");
    snprintf(architecture, sizeof architecture, "%.*sForTokenClassification", (int)(end ? end - t->architecture : 0),
             t->architecture);
    put(o, "architectures", json_pack("[s]", c->value_head ? architecture : t->architecture));
    put(o, "model_type", json_string(t->name));
    put_int(o, "vocab_size", c->vocab);
    if (t->gpt2_config) put_gpt2(o, c);
    else put_llama_like(o, c);
    if (c->mtp_heads > 1) put_int(o, "n_future_tokens", c->mtp_heads);
    put(o, "initializer_range", json_real(0.02));
    put(o, "tie_word_embeddings", json_boolean(c->tied));
    put(o, "use_cache", json_true());
    if (c->value_head) put_int(o, "num_labels", 1), put(o, "value_head", json_string(value_head_name(c->value_head)));
    return o;
}
