/* hf_config.c - a model's sizes and choices from Hugging Face's config.json, and back.
 *
 * Both spellings in circulation are read: rope_theta and rope_scaling {type | rope_type} (transformers 4), and
 * rope_parameters {rope_type, rope_theta} (transformers 5). Where a key is absent the default is the one transformers 5
 * has for that family; sizes have no default here, because a model of guessed size is never what was meant.
 *
 * Anything that would change what the model computes and that ralo does not compute is refused by name: other model
 * types, rope types, activations, windows without a rule, attention both ways, biases, experts, quantization, partial rotary
 * embeddings.
 * Taken without effect, because the result is the same: reorder_and_upcast_attn (attention scores are fp32 here always),
 * pretraining_tp, use_cache. Dropout of any kind is not applied: ralo trains without it.
 * What is written carries both spellings, so that either generation of transformers reads it. */
#include "model/model.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONFIG_MAX_BYTES (4u << 20)

typedef struct reading {
    const char *path;
    const json_t *root;
} reading;

static status refuse(const char *path, const char *key, const json_t *found, const char *expected) {
    char *text = found ? json_dumps(found, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    status rc = ERR(ERR_INPUT, "%s: key '%s': found %.120s, expected %s", path, key,
                    !found ? "nothing"
                    : text ? text
                           : "something that is no JSON",
                    expected);
    free(text);
    return rc;
}

/* Absent and null are the same to every reader of this format. */
static const json_t *get(const json_t *object, const char *key) {
    const json_t *v = json_object_get(object, key);
    return json_is_null(v) ? NULL : v;
}

/* The first of the names that is there, and which it was; where none is, NULL and the last name. */
static const json_t *get_any(const json_t *object, const char *const *names, const char **name) {
    for (;; names++) {
        *name = *names;
        const json_t *v = get(object, *names);
        if (v || !names[1]) return v;
    }
}

#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

static status read_size(const reading *r, const char *const *names, int64_t max, int64_t *out) {
    const char *name;
    const json_t *v = get_any(r->root, names, &name);
    char expected[96];
    snprintf(expected, sizeof expected, "a whole number from 1 to %lld", (long long)max);
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > max)
        return refuse(r->path, v ? name : names[0], v, expected);
    *out = json_integer_value(v);
    return OK;
}

static status read_size_or(const reading *r, const char *key, int64_t max, int64_t otherwise, int64_t *out) {
    if (get(r->root, key)) return read_size(r, NAMES(key), max, out);
    *out = otherwise;
    return OK;
}

static status read_bool(const reading *r, const char *key, bool otherwise, bool *out) {
    const json_t *v = get(r->root, key);
    if (v && !json_is_boolean(v)) return refuse(r->path, key, v, "true or false");
    *out = v ? json_is_true(v) : otherwise;
    return OK;
}

/* A number above `above`; absent: `otherwise`, and where that is NAN the key is needed. `where` is shown before it. */
static status read_real(const reading *r, const json_t *object, const char *where, const char *key, double above,
                        double otherwise, double *out) {
    const json_t *v = get(object, key);
    char full[96], expected[64];
    snprintf(full, sizeof full, "%s%s", where, key);
    snprintf(expected, sizeof expected, "a finite number above %g", above);
    *out = otherwise;
    if (!v && !isnan(otherwise)) return OK;
    if (!json_is_number(v)) return refuse(r->path, full, v, expected);
    *out = json_number_value(v);
    if (!isfinite(*out) || *out <= above) return refuse(r->path, full, v, expected);
    return OK;
}

/* A flag that must have the one value ralo computes. */
static status demand_bool(const reading *r, const char *key, bool wanted, const char *why) {
    bool found = wanted;
    TRY(read_bool(r, key, wanted, &found));
    if (found != wanted) return refuse(r->path, key, json_object_get(r->root, key), why);
    return OK;
}

static status demand_word(const reading *r, const char *key, const char *const *words, const char *expected) {
    const json_t *v = get(r->root, key);
    if (!v) return OK;
    for (; *words; words++)
        if (json_is_string(v) && strcmp(json_string_value(v), *words) == 0) return OK;
    return refuse(r->path, key, v, expected);
}

static status demand_absent(const reading *r, const char *key, const char *why) {
    const json_t *v = get(r->root, key);
    bool none = !v || json_is_false(v) || (json_is_integer(v) && json_integer_value(v) == 0) ||
                (json_is_array(v) && json_array_size(v) == 0) || (json_is_object(v) && json_object_size(v) == 0);
    return none ? OK : refuse(r->path, key, v, why);
}

/* ---- the families ---------------------------------------------------------------------------------------------- */

static status read_family(const reading *r, model_family *out) {
    const char *type = json_string_value(get(r->root, "model_type"));
    strbuf known;
    for (model_family f = 0; f < FAMILY_COUNT && type; f++)
        if (strcmp(type, model_family_traits(f)->name) == 0) {
            *out = f;
            return OK;
        }
    strbuf_init(&known);
    strbuf_add(&known, "one of: ");
    for (model_family f = 0; f < FAMILY_COUNT; f++)
        strbuf_printf(&known, "%s\"%s\"", f ? ", " : "", model_family_traits(f)->name);
    status rc = refuse(r->path, "model_type", json_object_get(r->root, "model_type"), known.text);
    strbuf_fini(&known);
    return rc;
}

/* Where both names are there, transformers 5 takes the long one. */
static status read_gpt2_size(const reading *r, const char *const *names, const char *long_name, int64_t max,
                             int64_t *out) {
    return read_size(r, get(r->root, long_name) ? NAMES(long_name) : names, max, out);
}

static status read_gpt2(const reading *r, model_config *c) {
    TRY(read_gpt2_size(r, NAMES("n_embd"), "hidden_size", 1 << 20, &c->hidden));
    TRY(read_gpt2_size(r, NAMES("n_layer"), "num_hidden_layers", MODEL_LAYERS_MAX, &c->n_layers));
    TRY(read_gpt2_size(r, NAMES("n_head"), "num_attention_heads", 4096, &c->n_heads));
    TRY(read_gpt2_size(r, NAMES("n_positions", "n_ctx"), "max_position_embeddings", 1 << 24, &c->max_positions));
    TRY(read_size_or(r, "n_inner", 1 << 22, 4 * c->hidden, &c->ffn));
    TRY(read_real(r, r->root, "", "layer_norm_epsilon", 0, 1e-5, &c->norm_eps));
    TRY(read_bool(r, "tie_word_embeddings", true, &c->tied));
    TRY(demand_word(r, "activation_function", NAMES("gelu_new", "gelu_pytorch_tanh"),
                    "\"gelu_new\" or \"gelu_pytorch_tanh\" (the tanh form of gelu)"));
    TRY(demand_bool(r, "scale_attn_weights", true, "true: scores divided by the root of the head width"));
    TRY(demand_bool(r, "scale_attn_by_inverse_layer_idx", false, "false: every layer scales its scores alike"));
    TRY(demand_bool(r, "add_cross_attention", false, "false: a decoder alone"));
    c->n_kv_heads = c->n_heads;
    if (c->hidden % c->n_heads) return refuse(r->path, "n_head", get(r->root, "n_head"), "a divisor of n_embd");
    c->head_dim = c->hidden / c->n_heads;
    return OK;
}

/* ---- rotary positions ------------------------------------------------------------------------------------------ */

/* transformers 5 lets a non-empty rope_scaling win over rope_parameters; so do we. */
static status find_rope(const reading *r, bool two_ropes, const json_t **object, const char **name) {
    static const char *const names[] = {"rope_scaling", "rope_parameters"};
    static const char full[] = "full_attention";
    *object = NULL;
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
        const json_t *v = get(r->root, names[i]);
        if (v && !json_is_object(v)) return refuse(r->path, names[i], v, "an object or null");
        if (*object || !v || json_object_size(v) == 0) continue;
        *object = v;
        *name = names[i];
        if (two_ropes && json_is_object(get(v, full))) *object = get(v, full), *name = "rope_parameters.full_attention";
        else if (two_ropes && get(v, "sliding_attention")) *object = NULL;
    }
    return OK;
}

/* Those of layers with a window are never stretched. */
static status read_local_rope(const reading *r, model_config *c) {
    static const char name[] = "rope_parameters.sliding_attention.";
    const json_t *local = get(get(r->root, "rope_parameters"), "sliding_attention");
    TRY(read_real(r, r->root, "", "rope_local_base_freq", 0, 10000, &c->local_theta));
    if (!local) return OK;
    TRY(read_real(r, local, name, "rope_theta", 0, c->local_theta, &c->local_theta));
    const json_t *type = get(local, "rope_type");
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "default") != 0))
        return refuse(r->path, "rope_parameters.sliding_attention.rope_type", type, "\"default\"");
    return OK;
}

static const char *const rope_types[ROPE_TYPE_COUNT] = {[ROPE_DEFAULT] = "default",
                                                        [ROPE_LLAMA3] = "llama3",
                                                        [ROPE_LINEAR] = "linear",
                                                        [ROPE_YARN] = "yarn",
                                                        [ROPE_DYNAMIC] = "dynamic"};

static status read_rope_type(const reading *r, const json_t *object, const char *name, bool plain, rope_type *out) {
    const char *key;
    const json_t *v = get_any(object, NAMES("rope_type", "type"), &key);
    char full[96];
    const char *inner;
    json_t *member;
    json_object_foreach((json_t *)object, inner, member) {
        snprintf(full, sizeof full, "%s.%.60s", name, inner);
        if (json_is_object(member)) return refuse(r->path, full, member, "one set of rotary parameters for all layers");
    }
    *out = ROPE_DEFAULT;
    if (!v) return OK;
    for (rope_type i = 0; i < (plain ? ROPE_DEFAULT + 1 : ROPE_TYPE_COUNT); i++)
        if (json_is_string(v) && strcmp(json_string_value(v), rope_types[i]) == 0) {
            *out = i;
            return OK;
        }
    snprintf(full, sizeof full, "%s.%s", name, key);
    return refuse(
        r->path, full, v,
        plain ? "\"default\": other ways of stretching positions are not supported in this family"
              : "\"default\", \"llama3\", \"linear\", \"yarn\" or \"dynamic\"; other ways of stretching positions "
                "are not supported");
}

static double yarn_scale(double factor, double by) { return factor <= 1 ? 1 : 0.1 * by * log(factor) + 1; }

static status read_yarn(const reading *r, const json_t *object, const char *where, rope_options *o) {
    double by, by_all;
    const reading inner = {r->path, object};
    bool truncate;
    if (o->theta <= 1)
        return ERR(ERR_INPUT, "%s: key 'rope_theta': found %g, expected more than 1 with yarn", r->path, o->theta);
    TRY(read_real(r, object, where, "beta_fast", 0, 32, &o->beta_fast));
    TRY(read_real(r, object, where, "beta_slow", 0, 1, &o->beta_slow));
    TRY(read_real(r, object, where, "mscale", 0, 0, &by));
    TRY(read_real(r, object, where, "mscale_all_dim", 0, 0, &by_all));
    bool both = by > 0 && by_all > 0;
    double usual = both ? yarn_scale(o->factor, by) / yarn_scale(o->factor, by_all) : yarn_scale(o->factor, 1);
    TRY(read_real(r, object, where, "attention_factor", 0, usual, &o->attention_factor));
    TRY(read_bool(&inner, "truncate", true, &truncate));
    o->untruncated = !truncate;
    return OK;
}

static status read_rope(const reading *r, model_config *c) {
    const json_t *object;
    const char *name = "";
    char where[64];
    rope_options *o = &c->rope;
    const model_traits *t = model_family_traits(c->family);
    TRY(find_rope(r, t->two_ropes, &object, &name));
    if (t->two_ropes) TRY(read_local_rope(r, c));
    snprintf(where, sizeof where, "%s.", name);
    TRY(read_real(r, r->root, "", "rope_theta", 0, t->usual_theta > 0 ? t->usual_theta : 10000, &o->theta));
    double turned;
    TRY(read_real(r, r->root, "", "partial_rotary_factor", 0, 1, &turned));
    if (object) {
        TRY(read_real(r, object, where, "rope_theta", 0, o->theta, &o->theta));
        TRY(read_real(r, object, where, "partial_rotary_factor", 0, turned, &turned));
        TRY(read_rope_type(r, object, name, t->plain_rope, &o->type));
    }
    if (turned != 1)
        return ERR(ERR_INPUT, "%s: key 'partial_rotary_factor': found %g, expected 1: the whole head is rotated",
                   r->path, turned);
    if (o->type == ROPE_DEFAULT) return OK;
    TRY(read_real(r, object, where, "factor", 0, NAN, &o->factor));
    if (o->type == ROPE_LINEAR) return OK;
    if (o->type == ROPE_DYNAMIC) {
        if (c->head_dim < 4)
            return refuse(r->path, "head_dim", get(r->root, "head_dim"), "at least 4 with dynamic positions");
        o->original_max_positions = c->max_positions;
        return OK;
    }
    if (o->type == ROPE_YARN) TRY(read_yarn(r, object, where, o));
    if (o->type == ROPE_LLAMA3) {
        TRY(read_real(r, object, where, "low_freq_factor", 0, NAN, &o->low_freq_factor));
        TRY(read_real(r, object, where, "high_freq_factor", o->low_freq_factor, NAN, &o->high_freq_factor));
    }
    /* transformers 5 lets the one beside the rotary parameters win over theirs. */
    static const char key[] = "original_max_position_embeddings";
    const reading inner = {r->path, object};
    return read_size_or(get(r->root, key) ? r : &inner, key, 1 << 24, c->max_positions, &o->original_max_positions);
}

/* ---- windows ----------------------------------------------------------------------------------------------------- */

/* A word per layer; which layers have a window must follow the rule of model_config. */
static status read_layer_types(const reading *r, const json_t *types, model_config *c) {
    static const char sliding[] = "sliding_attention", full[] = "full_attention";
    if (!json_is_array(types) || (int64_t)json_array_size(types) < c->n_layers)
        return refuse(r->path, "layer_types", types, "a list with a word per layer");
    int64_t window = c->window;
    c->window_from = c->n_layers, c->full_every = 0;
    for (int64_t l = 0; l < c->n_layers; l++) {
        const json_t *type = json_array_get(types, (size_t)l);
        const char *word = json_string_value(type);
        bool is_sliding = word && strcmp(word, sliding) == 0;
        if (!is_sliding && !(word && strcmp(word, full) == 0))
            return refuse(r->path, "layer_types", type, "\"full_attention\" or \"sliding_attention\" in every layer");
        if (is_sliding && !window)
            return refuse(r->path, "layer_types", type, "\"full_attention\": sliding_window gives no window");
        if (is_sliding && c->window_from == c->n_layers) c->window_from = l;
        if (!is_sliding && c->window_from < l && !c->full_every) c->full_every = l + 1;
    }
    if (c->window_from == c->n_layers) window = 0;
    c->window = window;
    for (int64_t l = 0; l < c->n_layers; l++) {
        bool is_sliding = strcmp(json_string_value(json_array_get(types, (size_t)l)), sliding) == 0;
        if (window && is_sliding != (model_layer_window(c, l) > 0))
            return refuse(r->path, "layer_types", types,
                          "\"full_attention\" in the first layers and in every n-th layer after them, "
                          "\"sliding_attention\" in the others");
    }
    if (!window) c->window_from = 0, c->full_every = 0;
    return OK;
}

/* An absent window is as wide as the family's usual one, null is none. */
static status read_windows(const reading *r, model_config *c) {
    const model_traits *t = model_family_traits(c->family);
    const json_t *types = get(r->root, "layer_types"), *from = get(r->root, "max_window_layers");
    bool use = t->windows != WINDOWS_FROM, has_key = json_object_get(r->root, "sliding_window");
    if (t->windows == WINDOWS_NONE) return OK;
    TRY(read_size_or(r, "sliding_window", 1 << 24, has_key ? 0 : t->usual_window, &c->window));
    if (t->windows == WINDOWS_ALL) return OK;
    if (t->windows == WINDOWS_TYPES) {
        if (types) return read_layer_types(r, types, c);
        TRY(read_size_or(r, "sliding_window_pattern", MODEL_LAYERS_MAX, t->usual_full_every, &c->full_every));
        if (!c->window) c->full_every = 0;
        return OK;
    }
    TRY(read_bool(r, "use_sliding_window", use, &use));
    if (from && (!json_is_integer(from) || json_integer_value(from) < 0))
        return refuse(r->path, "max_window_layers", from, "a whole number");
    if (!use) c->window = 0;
    if (types) return read_layer_types(r, types, c); /* it decides, where given */
    c->window_from = from ? json_integer_value(from) : 28;
    if (c->window_from >= c->n_layers) c->window = 0;
    if (!c->window) c->window_from = 0;
    return OK;
}

/* ---- Llama and those like it ------------------------------------------------------------------------------------- */

/* Absent: the family's usual one; null: none. */
static status read_softcap(const reading *r, const char *key, bool has, double usual, double *out) {
    if (!has) return demand_absent(r, key, "nothing: this family has no such cap");
    if (json_object_get(r->root, key)) usual = 0;
    return read_real(r, r->root, "", key, 0, usual, out);
}

static status read_softcaps(const reading *r, model_config *c) {
    const model_traits *t = model_family_traits(c->family);
    TRY(read_softcap(r, "attn_logit_softcapping", t->attention_softcap_key, t->usual_attention_softcap,
                     &c->attention_softcap));
    TRY(read_softcap(r, "final_logit_softcapping", t->final_softcap_key, t->usual_final_softcap, &c->final_softcap));
    TRY(demand_bool(r, "use_bidirectional_attention", false, "false: no token looks at those behind it"));
    return t->query_scalar_key ? read_real(r, r->root, "", "query_pre_attn_scalar", 0, 256, &c->query_scalar) : OK;
}

static status read_llama_like(const reading *r, model_config *c) {
    const model_traits *t = model_family_traits(c->family);
    TRY(read_size(r, NAMES("hidden_size"), 1 << 20, &c->hidden));
    TRY(read_size(r, NAMES("num_hidden_layers"), MODEL_LAYERS_MAX, &c->n_layers));
    TRY(read_size(r, NAMES("num_attention_heads"), 4096, &c->n_heads));
    TRY(read_size(r, NAMES("intermediate_size"), 1 << 22, &c->ffn));
    TRY(read_size(r, NAMES("max_position_embeddings"), 1 << 24, &c->max_positions));
    /* null means one per query head; so does absence in Llama, whose first configs did not have the key. */
    if (t->kv_heads_optional || json_object_get(r->root, "num_key_value_heads"))
        TRY(read_size_or(r, "num_key_value_heads", 4096, c->n_heads, &c->n_kv_heads));
    else TRY(read_size(r, NAMES("num_key_value_heads"), 4096, &c->n_kv_heads));
    if (c->n_heads % c->n_kv_heads)
        return refuse(r->path, "num_key_value_heads", get(r->root, "num_key_value_heads"),
                      "a divisor of num_attention_heads");
    /* An absent head_dim is 128 in Qwen3; null, and absent in the others, means an equal share of the width. */
    bool wide = t->usual_head_dim && !json_object_get(r->root, "head_dim");
    TRY(read_size_or(r, "head_dim", 1024, wide ? t->usual_head_dim : c->hidden / c->n_heads, &c->head_dim));
    if (!get(r->root, "head_dim") && !wide && c->hidden % c->n_heads)
        return refuse(r->path, "num_attention_heads", get(r->root, "num_attention_heads"), "a divisor of hidden_size");
    TRY(read_real(r, r->root, "", "rms_norm_eps", 0, t->usual_eps > 0 ? t->usual_eps : 1e-6, &c->norm_eps));
    TRY(read_bool(r, "tie_word_embeddings", t->tied, &c->tied));
    const char *activation = t->activation_key ? t->activation_key : "hidden_act";
    if (t->gelu_gate) TRY(demand_word(r, activation, NAMES("gelu_pytorch_tanh", "gelu_new"), "\"gelu_pytorch_tanh\""));
    else TRY(demand_word(r, activation, NAMES("silu", "swish"), "\"silu\""));
    TRY(read_softcaps(r, c));
    /* Qwen2 has biases on q, k and v whatever its config says. */
    if (t->no_attention_bias_key)
        TRY(demand_bool(r, t->no_attention_bias_key, false, "false: attention without biases in this family"));
    if (t->no_mlp_bias_key) TRY(demand_bool(r, t->no_mlp_bias_key, false, "false: an MLP without biases"));
    TRY(read_windows(r, c));
    return read_rope(r, c);
}

/* ralo's own key: a critic. */
static status read_value_head(const reading *r, model_config *c) {
    const json_t *v = get(r->root, "value_head");
    const char *name = json_string_value(v);
    if (!v) return OK;
    for (value_head h = VALUE_HEAD_MLP; h < VALUE_HEAD_COUNT && name; h++)
        if (strcmp(name, value_head_name(h)) == 0) {
            c->value_head = h;
            return OK;
        }
    return refuse(r->path, "value_head", v, "\"mlp\", \"linear\" or \"sigmoid\", or nothing");
}

static status read_config(const reading *r, model_config *c) {
    static const char *const experts[] = {"num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok",
                                          "moe_intermediate_size"};
    if (!json_is_object(r->root)) return ERR(ERR_INPUT, "%s: found no object, expected a model's config.json", r->path);
    TRY(read_family(r, &c->family));
    TRY(demand_absent(r, "quantization_config",
                      "nothing: quantized weights cannot be trained; use the original model"));
    for (size_t i = 0; i < ARRAY_LENGTH(experts); i++)
        TRY(demand_absent(r, experts[i], "nothing: mixtures of experts are not supported"));
    TRY(demand_bool(r, "is_causal", true, "true: no token looks at those behind it"));
    TRY(read_size(r, NAMES("vocab_size"), 1 << 24, &c->vocab));
    TRY(model_family_traits(c->family)->gpt2_config ? read_gpt2(r, c) : read_llama_like(r, c));
    TRY(read_value_head(r, c));
    /* Layers are counted as transformers does, which loads the first head and leaves out extra_heads.* */
    int64_t heads;
    TRY(read_size_or(r, "n_future_tokens", MTP_HEADS_MAX, 1, &heads));
    if (heads > 1) c->mtp_heads = c->file_heads = heads, c->n_layers += heads - 1;
    return model_config_check(c);
}

status model_config_from_json(model_config *out, const json_t *root, const char *name, const char *path) {
    const reading r = {path, root};
    *out = (model_config){.name = name};
    TRY(read_config(&r, out));
    return OK;
}

bool model_dir_is(const char *dir) { return dir_holds(dir, "config.json") || dir_holds(dir, "params.json"); }

#define SAVE_AGAIN \
    "; it is not read: save the model as safetensors, with transformers' save_pretrained, and name that directory"

#define OF_GGUF                                                                                                        \
    ": training reads safetensors; name the directory of the model that it was made of (hf download NAME --local-dir " \
    "DIR)"

static bool has_gguf(const char *dir) {
    DIR *d = opendir(dir);
    bool found = false;
    for (struct dirent *e; d && !found && (e = readdir(d));) found = str_ends_with(e->d_name, ".gguf");
    if (d) closedir(d);
    return found;
}

/* What stands in the place of a model: a file, or a directory of another kind. */
static const char *what_instead(const char *dir) {
    struct stat st;
    bool is_file = stat(dir, &st) == 0 && !S_ISDIR(st.st_mode);
    if (is_file && str_ends_with(dir, ".gguf")) return ", but a file of GGUF" OF_GGUF;
    if (is_file && (str_ends_with(dir, ".bin") || str_ends_with(dir, ".pt") || str_ends_with(dir, ".pth")))
        return ", but a file of PyTorch" SAVE_AGAIN;
    if (is_file) return ", but a file; name the directory of a model";
    if (dir_holds(dir, "pytorch_model.bin")) return ", but pytorch_model.bin" SAVE_AGAIN;
    if (dir_holds(dir, "adapter_config.json"))
        return ", but an adapter: name its base with --model, and this with --set model.adapter=DIR";
    if (dir_holds(dir, "checkpoint.json") || dir_holds(dir, "checkpoints"))
        return ", but a run or a checkpoint: `ralo train RUN` goes on with it, `ralo export RUN DIR` makes a model of "
               "it";
    if (dir_holds(dir, "model.safetensors") || dir_holds(dir, "model.safetensors.index.json"))
        return ", but weights alone: put the config.json of the model beside them";
    if (has_gguf(dir)) return ", but GGUF" OF_GGUF;
    return "; download one: hf download NAME --local-dir DIR";
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
        rc = ERR(ERR_INPUT, "%s: found no config.json (%s), expected a Hugging Face model directory%s", dir,
                 strerror(errno), what_instead(dir));
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

static json_t *rope_json(const rope_options *r, bool with_theta) {
    json_t *o = json_object();
    put(o, "rope_type", json_string(rope_types[r->type]));
    if (with_theta) put(o, "rope_theta", json_real(r->theta));
    if (r->type != ROPE_DEFAULT) put(o, "factor", json_real(r->factor));
    if (r->type == ROPE_LLAMA3) {
        put(o, "low_freq_factor", json_real(r->low_freq_factor));
        put(o, "high_freq_factor", json_real(r->high_freq_factor));
    }
    if (r->type == ROPE_YARN) {
        put(o, "beta_fast", json_real(r->beta_fast));
        put(o, "beta_slow", json_real(r->beta_slow));
        put(o, "attention_factor", json_real(r->attention_factor));
        put(o, "truncate", json_boolean(!r->untruncated));
    }
    if (r->type == ROPE_LLAMA3 || r->type == ROPE_YARN)
        put_int(o, "original_max_position_embeddings", r->original_max_positions);
    return o;
}

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
    put(o, "rope_theta", json_real(c->rope.theta));
    put(o, "rope_scaling", c->rope.type == ROPE_DEFAULT ? json_null() : rope_json(&c->rope, false));
    if (t->two_ropes) {
        const rope_options local = {.theta = c->local_theta};
        put(o, "rope_local_base_freq", json_real(c->local_theta));
        put(o, "rope_parameters",
            json_pack("{s:o, s:o}", "full_attention", rope_json(&c->rope, true), "sliding_attention",
                      rope_json(&local, true)));
        return;
    }
    put(o, "rope_parameters", rope_json(&c->rope, true));
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
