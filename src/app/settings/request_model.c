/* request_model.c - from settings to a model and its adapters: a preset with other sizes, or a Hugging Face directory.
 *
 * Refused by the name of the setting: a directory that is not there, with what downloads or makes it; sizes, heads and
 * tokenizers that do not belong to the model; what an adapter that is trained further says otherwise. */
#include "settings/request.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* A run holds sizes, tokenizer and all that it trains, and can write a model directory in the place of one that is
 * gone. Frozen weights, and those that a run is compared with, are nowhere else. */
static status base_is_gone(const config *c) {
    if (config_needs_same_weights(c))
        return ERR(
            ERR_INPUT,
            "model.path: found no directory %s, which the run %s began from; it continues only with the same weights "
            "(adapters, a reference or values stand on them): bring the directory back, or set model.path to where it "
            "is now",
            c->model.path, c->run.dir);
    return ERR(
        ERR_INPUT,
        "model.path: found no directory %s, which the run %s began from; the run can make it again: ralo export %s %s",
        c->model.path, c->run.dir, c->run.dir, c->model.path);
}

/* Rope works for any length; learned positions are a tensor of the file. */
static status model_of_directory(const config *c, model_config *out) {
    bool known = model_preset_find(c->model.path) != NULL;
    if (config_goes_on(c) && access(c->model.path, F_OK) != 0) return base_is_gone(c);
    if (access(c->model.path, F_OK) != 0 && model_hub_name(c->model.path))
        return ERR(ERR_INPUT,
                   "model.path: found no directory %s, and no model of that name in the cache of the Hugging Face hub "
                   "(HF_HOME), expected one with config.json and safetensors; download it with: hf download %s%s%s",
                   c->model.path, c->model.path, known ? "; to plan without it: ralo plan --preset " : "",
                   known ? c->model.path : "");
    if (access(c->model.path, F_OK) != 0)
        return ERR(ERR_INPUT,
                   "model.path: found no directory %s (%s), expected one with config.json and safetensors; download a "
                   "model of the hub first: hf download NAME --local-dir DIR",
                   c->model.path, strerror(errno));
    TRY(model_config_read(out, c->model.path));
    int64_t asked = c->model.max_positions;
    if (asked && asked != out->max_positions && model_family_traits(out->family)->learned_positions)
        return ERR(
            ERR_INPUT,
            "model.max_positions: found %lld beside model.path, expected the %lld learned positions of %s; leave it "
            "out",
            (long long)asked, (long long)out->max_positions, c->model.path);
    if (asked) out->max_positions = asked;
    return OK;
}

/* Weights belong to the ids of their tokenizer. Bytes, the default without a tokenizer, would be other ids: the run
 * would look normal and ruin the model. */
status config_check_tokenizer(const config *c, const model_config *m) {
    bool builtin = str_starts_with(c->data.source, "builtin:"), pretrained = c->model.init != INIT_RANDOM;
    if (!*c->model.path || !pretrained || builtin || m->vocab == BYTE_VOCAB) return OK;
    if (config_was_given(c, "data.tokenizer") || strcmp(c->data.tokenizer, "byte") != 0) return OK;
    return ERR(
        ERR_INPUT,
        "%s has no tokenizer.json, and its vocabulary has %lld entries: set data.tokenizer to the directory of the "
        "model's tokenizer.json (transformers writes one: AutoTokenizer.from_pretrained(...).save_pretrained(...)), "
        "or, where it was trained on bytes, data.tokenizer=byte",
        c->model.path, (long long)m->vocab);
}

/* Weights of an ordinary model: its last layer is where every head begins; files that hold heads give each its own.
 * Without weights, layers are as they are counted. */
static status heads_from_config(const config *c, model_config *out) {
    int64_t heads = c->model.mtp_heads, found = out->file_heads;
    bool pretrained = *c->model.path && c->model.init != INIT_RANDOM;
    if (pretrained && heads > 1 && found > 1 && heads != found)
        return ERR(
            ERR_INPUT,
            "model.mtp.heads: found %lld, and %s holds %lld prediction heads; set %lld to go on with all of them, "
            "or begin from a directory with the first head alone (ralo export without --heads)",
            (long long)heads, c->model.path, (long long)found, (long long)found);
    if (pretrained && heads <= 1) *out = model_main_config(out);
    if (pretrained && heads > 1 && found <= 1) out->n_layers += heads - 1;
    out->mtp_heads = heads;
    return model_config_check(out);
}

/* A critic has a value head and no unembedding: no other task can go on with it. */
static status value_head_from_config(const config *c, model_config *out) {
    value_head found = out->value_head, asked = (value_head)(c->train.critic.head + 1);
    if (c->task != TASK_CRITIC && found)
        return ERR(ERR_INPUT,
                   "model.path: %s is a critic with a value head (%s), expected a language model for "
                   "train.task %s; train.task=critic continues it",
                   c->model.path, value_head_name(found), task_name(task_of(c->task)));
    if (c->task != TASK_CRITIC) return OK;
    if (found && found != asked && config_was_given(c, "critic.head"))
        return ERR(ERR_INPUT, "critic.head: found %s, expected %s, the value head that %s has; leave it out",
                   value_head_name(asked), value_head_name(found), c->model.path);
    if (!found) out->value_head = asked;
    return OK;
}

/* config.json of GPT-2 has neither head_dim nor kv heads. A model with others would train, and then neither its
 * checkpoints nor its export could be read: the sizes of a preset that --set leaves alone are easily such. */
static status check_gpt2_heads(const model_config *m) {
    if (!model_family_traits(m->family)->gpt2_config) return OK;
    long long heads = m->n_heads, kv = m->n_kv_heads, width = m->head_dim, hidden = m->hidden;
    if (heads * width == hidden && kv == heads) return OK;
    char advice[96] = "choose a model.heads that divides model.hidden";
    if (hidden % heads == 0)
        snprintf(advice, sizeof advice, "set model.head_dim=%lld, model.kv_heads=%lld", hidden / heads, heads);
    return ERR(ERR_INPUT,
               "model %s: found %lld heads of %lld, %lld of keys and values, and model.hidden %lld; GPT-2 has heads "
               "that share the width equally, each with its own keys and values: %s",
               m->name, heads, width, kv, hidden, advice);
}

bool config_names_model(const config *c) {
    static const char *const keys[] = {"model.preset", "model.path", "model.hidden", "model.layers"};
    bool named = false;
    for (size_t i = 0; i < ARRAY_LENGTH(keys); i++) named |= config_was_given(c, keys[i]);
    return named;
}

/* One of the same size, if there is one: llama3.1-405b rather than llama3-70b for llama3-405b. */
static str_nearest find_near_preset(const char *name) {
    const char *size = strrchr(name, '-');
    str_nearest n = {.wanted = name};
    for (size_t i = 0; size && model_preset_at(i); i++)
        if (str_ends_with(model_preset_at(i)->name, size)) str_nearest_try(&n, model_preset_at(i)->name);
    if (*n.name) return n;
    for (size_t i = 0; model_preset_at(i); i++) str_nearest_try(&n, model_preset_at(i)->name);
    return n;
}

status model_from_config(const config *c, model_config *out) {
    const char *name = config_preset(c);
    if (!name) {
        TRY(model_of_directory(c, out));
        TRY(value_head_from_config(c, out));
        return heads_from_config(c, out);
    }
    const model_config *preset = model_preset_find(name);
    if (!preset) {
        str_nearest nearest = find_near_preset(name);
        char guess[160] = "";
        if (*nearest.name) snprintf(guess, sizeof guess, " did you mean '%s'?", nearest.name);
        return ERR(ERR_INPUT,
                   "model.preset '%.100s' is not known;%s 'ralo help presets' lists them, and any other size is read "
                   "from a config.json (--model DIR)",
                   name, guess);
    }
    *out = *preset;
    const struct {
        int64_t given, *field;
    } overrides[] = {
        {c->model.layers, &out->n_layers},     {c->model.hidden, &out->hidden},     {c->model.heads, &out->n_heads},
        {c->model.kv_heads, &out->n_kv_heads}, {c->model.head_dim, &out->head_dim}, {c->model.ffn, &out->ffn},
        {c->model.vocab, &out->vocab},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(overrides); i++)
        if (overrides[i].given) *overrides[i].field = overrides[i].given;
    if (c->model.tied >= 0) out->tied = c->model.tied;
    if (c->model.max_positions) out->max_positions = c->model.max_positions;
    TRY(check_gpt2_heads(out));
    TRY(value_head_from_config(c, out));
    return heads_from_config(c, out);
}

/* An adapter that is trained further says what it is; only dropout may be set anew. */
static status lora_from_adapter(const config *c, const model_config *m, lora_options *out) {
    adapter_config a;
    if (!adapter_is_dir(c->model.adapter)) return adapter_not_found(c->model.adapter);
    TRY(adapter_config_read(&a, m, c->model.adapter));
    *out = a.lora;
    if (c->model.lora_pissa)
        return ERR(ERR_INPUT,
                   "model.lora.init: found pissa beside model.adapter, whose adapter has its values; leave one out");
    if (c->model.lora_dropout > 0) out->dropout = c->model.lora_dropout;
    if (c->model.lora_rank && c->model.lora_rank != out->rank)
        return ERR(ERR_INPUT, "model.lora.rank: found %lld beside model.adapter, expected the %lld of %s; leave it out",
                   (long long)c->model.lora_rank, (long long)out->rank, c->model.adapter);
    if (c->model.lora_alpha > 0 && c->model.lora_alpha != out->alpha)
        return ERR(ERR_INPUT, "model.lora.alpha: found %g beside model.adapter, expected the %g of %s; leave it out",
                   c->model.lora_alpha, out->alpha, c->model.adapter);
    return OK;
}

status lora_from_config(const config *c, const model_config *m, lora_options *out) {
    if (*c->model.adapter) return lora_from_adapter(c, m, out);
    *out = (lora_options){.rank = c->model.lora_rank,
                          .alpha = c->model.lora_alpha > 0 ? c->model.lora_alpha : 2.0 * (double)c->model.lora_rank,
                          .dropout = c->model.lora_dropout,
                          .rslora = c->model.lora_rslora,
                          .pissa = c->model.lora_pissa};
    if (!out->rank) return OK;
    if (out->pissa && out->rank > LORA_RANK_MOST / 2)
        return ERR(
            ERR_INPUT,
            "model.lora.init: found pissa with model.lora.rank %lld, expected at most %d: its export has twice the "
            "rank",
            (long long)out->rank, LORA_RANK_MOST / 2);
    return lora_modules_parse(m, c->model.lora_targets, "model.lora.targets", &out->modules);
}
