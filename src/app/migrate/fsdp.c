/* fsdp.c - keys of PyTorch's FSDP as settings: one row for each value of each key.
 *
 * What FSDP calls a sharding strategy is a stage of ZeRO here. Keys about how PyTorch wraps modules have no
 * counterpart: layers are the units of sharding by construction. Such a key is accepted with a warning, because the run
 * is what it would be with it; a value that asks for something else than ralo does is refused. */
#include "migrate/trainer.h"

#include <string.h>
#include <strings.h>

typedef struct row {
    const char *keys, *words; /* separated by spaces; words "*": any value */
    const char *value;        /* of the settings; NULL: refused */
    const char *settings[FSDP_SETTINGS_MOST];
    const char *why; /* why it is refused, or has no effect */
} row;

#define ON_HOST \
    { "memory.offload.params", "memory.offload.grads", "memory.offload.states" }
#define HYBRID                                                                                                        \
    "it shards inside a node and copies between nodes, which ralo does not do; use FULL_SHARD (ZeRO-3 over all data " \
    "ranks) or SHARD_GRAD_OP"

/* clang-format off */
static const row rows[] = {
    {"sharding_strategy reshard_after_forward", "FULL_SHARD", "3", {"parallel.zero"}, NULL},
    {"sharding_strategy reshard_after_forward", "SHARD_GRAD_OP", "2", {"parallel.zero"}, NULL},
    {"sharding_strategy reshard_after_forward", "NO_SHARD", "0", {"parallel.zero"}, NULL},
    {"sharding_strategy", "HYBRID_SHARD HYBRID_SHARD_ZERO2 _HYBRID_SHARD_ZERO2", NULL, {NULL}, HYBRID},
    {"reshard_after_forward", "true", "3", {"parallel.zero"}, NULL},
    {"reshard_after_forward", "false", "2", {"parallel.zero"}, NULL},
    {"activation_checkpointing", "true", "full", {"memory.recompute"}, NULL},
    {"activation_checkpointing", "false", "none", {"memory.recompute"}, NULL},
    {"mixed_precision", "true bf16 bfloat16", "bf16", {"precision"}, NULL},
    {"mixed_precision", "fp16 float16", "fp16", {"precision"}, NULL},
    {"mixed_precision", "false no fp32", "fp32", {"precision"}, NULL},
    {"cpu_offload offload_params", "true", "host", ON_HOST, NULL},
    {"cpu_offload offload_params", "false", "none", ON_HOST, NULL},
    {"backward_prefetch", "BACKWARD_PRE BACKWARD_POST", "1", {"parallel.prefetch"}, NULL},
    {"backward_prefetch", "NO_PREFETCH", "0", {"parallel.prefetch"}, NULL},
    {"forward_prefetch", "*", "", {NULL}, "parallel.prefetch counts layers, forward and backward"},
    {"limit_all_gathers", "*", "", {NULL}, "parallel.prefetch bounds them always"},
    {"auto_wrap_policy transformer_layer_cls_to_wrap min_num_params", "*", "", {NULL}, "layers are the units of sharding"},
    {"use_orig_params", "*", "", {NULL}, "parameters are always those of the model"},
    {"sync_module_states", "*", "", {NULL}, "all ranks always begin with the same parameters"},
    {"cpu_ram_efficient_loading", "*", "", {NULL}, "every rank reads its own part of the files"},
    {"state_dict_type final_state_dict_type", "*", "", {NULL}, "a checkpoint goes to any number of ranks"},
    {"cpu_offload_pin_memory", "*", "", {NULL}, "the backend decides how host memory is allocated"},
    {"mixed_precision_policy", "*", "", {NULL}, "precision says it"},
    {"version", "*", "", {NULL}, "it is a matter of PyTorch"},
    {"ignored_modules", "*", NULL, {NULL}, "every module is sharded; leave it out"},
};
/* clang-format on */

/* The part of a key behind "distributed.fsdp." and the like; launchers begin it with fsdp_ once more. NULL: it is
 * none. */
static const char *own_key(const char *key) {
    static const char *const prefixes[] = {"distributed.fsdp.", "fsdp_config.", "fsdp."};
    for (size_t i = 0; i < ARRAY_LENGTH(prefixes); i++) {
        if (!str_starts_with(key, prefixes[i])) continue;
        key += strlen(prefixes[i]);
        return str_starts_with(key, "fsdp_") ? key + strlen("fsdp_") : key;
    }
    return NULL;
}

static status refuse(const char *where, const char *key, const char *own, const char *text) {
    char word[64];
    strbuf words;
    str_nearest nearest = {.wanted = own};
    strbuf_init(&words);
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
        for (const char *rest = rows[i].keys; (rest = part_next(rest, ' ', word, sizeof word));)
            str_nearest_try(&nearest, word);
        if (!trainer_word_in(own, rows[i].keys) || !rows[i].value) continue;
        for (const char *rest = rows[i].words; (rest = part_next(rest, ' ', word, sizeof word));)
            strbuf_printf(&words, "%s%s", words.length ? ", " : "", word);
    }
    char advice[160] = "remove it, or use a setting of ralo ('ralo help settings')";
    if (*nearest.name) snprintf(advice, sizeof advice, "did you mean '%s'?", nearest.name);
    status rc = words.length
                    ? ERR(ERR_INPUT, "%s: %s: found '%.100s', expected one of %s", where, key, text, words.text)
                    : ERR(ERR_INPUT, "%s: unknown setting '%.100s' of FSDP; %s", where, key, advice);
    strbuf_fini(&words);
    return rc;
}

static bool takes(const row *r, const char *text) {
    char word[64];
    for (const char *rest = r->words; (rest = part_next(rest, ' ', word, sizeof word));)
        if (strcasecmp(word, text) == 0 || strcmp(word, "*") == 0) return true;
    return false;
}

status fsdp_translate(const char *where, const char *key, const char *text, fsdp_translation *out) {
    const char *own = own_key(key);
    *out = (fsdp_translation){.is_fsdp = own != NULL};
    if (!own) return OK;
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
        const row *r = &rows[i];
        if (!trainer_word_in(own, r->keys) || !takes(r, text)) continue;
        if (!r->value) return ERR(ERR_INPUT, "%s: %s: found %.100s; %s", where, key, text, r->why);
        out->why = r->why;
        out->value = r->value;
        while (out->n < FSDP_SETTINGS_MOST && r->settings[out->n])
            out->settings[out->n] = r->settings[out->n], out->n++;
        return OK;
    }
    return refuse(where, key, own, text);
}
