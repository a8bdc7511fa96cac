/* fsdp.c - keys of PyTorch's FSDP as settings: one row for each value of each key.
 *
 * What FSDP calls a sharding strategy is a stage of ZeRO here. Keys about how PyTorch wraps modules have no counterpart: layers are
 * the units of sharding by construction. Such a key is accepted with a warning, because the run is what it would be with it; a value
 * that asks for something else than ralo does is refused. */
#include "migrate/dialect.h"

#include <string.h>
#include <strings.h>

typedef struct row {
    const char *key, *word; /* word "*": any value */
    const char *value;      /* of the settings; NULL: refused */
    const char *settings[FSDP_SETTINGS_MOST];
    const char *why; /* why it is refused, or has no effect */
} row;

#define ZERO \
    { "parallel.zero" }
#define RECOMPUTE \
    { "memory.recompute" }
#define PRECISION \
    { "precision" }
#define PREFETCH \
    { "parallel.prefetch" }
#define OFFLOADS \
    { "memory.offload.params", "memory.offload.grads", "memory.offload.states" }
#define NOTHING \
    { NULL }
#define LAYERS "layers are the units of sharding"
#define HYBRID                                                                                                        \
    "it shards inside a node and copies between nodes, which ralo does not do; use FULL_SHARD (ZeRO-3 over all data " \
    "ranks) or SHARD_GRAD_OP"

/* clang-format off */
static const row rows[] = {
    {"sharding_strategy", "FULL_SHARD", "3", ZERO, NULL},
    {"sharding_strategy", "SHARD_GRAD_OP", "2", ZERO, NULL},
    {"sharding_strategy", "NO_SHARD", "0", ZERO, NULL},
    {"sharding_strategy", "HYBRID_SHARD", NULL, NOTHING, HYBRID},
    {"sharding_strategy", "HYBRID_SHARD_ZERO2", NULL, NOTHING, HYBRID},
    {"sharding_strategy", "_HYBRID_SHARD_ZERO2", NULL, NOTHING, HYBRID},
    {"reshard_after_forward", "FULL_SHARD", "3", ZERO, NULL},
    {"reshard_after_forward", "SHARD_GRAD_OP", "2", ZERO, NULL},
    {"reshard_after_forward", "NO_SHARD", "0", ZERO, NULL},
    {"reshard_after_forward", "true", "3", ZERO, NULL},
    {"reshard_after_forward", "false", "2", ZERO, NULL},
    {"activation_checkpointing", "true", "full", RECOMPUTE, NULL},
    {"activation_checkpointing", "false", "none", RECOMPUTE, NULL},
    {"mixed_precision", "true", "bf16", PRECISION, NULL},
    {"mixed_precision", "bf16", "bf16", PRECISION, NULL},
    {"mixed_precision", "bfloat16", "bf16", PRECISION, NULL},
    {"mixed_precision", "fp16", "fp16", PRECISION, NULL},
    {"mixed_precision", "float16", "fp16", PRECISION, NULL},
    {"mixed_precision", "false", "fp32", PRECISION, NULL},
    {"mixed_precision", "no", "fp32", PRECISION, NULL},
    {"mixed_precision", "fp32", "fp32", PRECISION, NULL},
    {"cpu_offload", "true", "host", OFFLOADS, NULL},
    {"cpu_offload", "false", "none", OFFLOADS, NULL},
    {"offload_params", "true", "host", OFFLOADS, NULL},
    {"offload_params", "false", "none", OFFLOADS, NULL},
    {"backward_prefetch", "BACKWARD_PRE", "1", PREFETCH, NULL},
    {"backward_prefetch", "BACKWARD_POST", "1", PREFETCH, NULL},
    {"backward_prefetch", "NO_PREFETCH", "0", PREFETCH, NULL},
    {"forward_prefetch", "*", "", NOTHING, "parallel.prefetch counts layers, forward and backward"},
    {"limit_all_gathers", "*", "", NOTHING, "parallel.prefetch bounds them always"},
    {"auto_wrap_policy", "*", "", NOTHING, LAYERS},
    {"transformer_layer_cls_to_wrap", "*", "", NOTHING, LAYERS},
    {"min_num_params", "*", "", NOTHING, LAYERS},
    {"use_orig_params", "*", "", NOTHING, "parameters are always those of the model"},
    {"sync_module_states", "*", "", NOTHING, "all ranks always begin with the same parameters"},
    {"cpu_ram_efficient_loading", "*", "", NOTHING, "every rank reads its own part of the files"},
    {"state_dict_type", "*", "", NOTHING, "a checkpoint goes to any number of ranks"},
    {"final_state_dict_type", "*", "", NOTHING, "a checkpoint goes to any number of ranks"},
    {"cpu_offload_pin_memory", "*", "", NOTHING, "the backend decides how host memory is allocated"},
    {"mixed_precision_policy", "*", "", NOTHING, "precision says it"},
    {"version", "*", "", NOTHING, "it is a matter of PyTorch"},
    {"ignored_modules", "*", NULL, NOTHING, "every module is sharded; leave it out"},
};
/* clang-format on */

/* The part of a key behind "distributed.fsdp." and the like; launchers begin it with fsdp_ once more. NULL: it is none. */
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
    strbuf words;
    str_nearest nearest = {.wanted = own};
    strbuf_init(&words);
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
        str_nearest_try(&nearest, rows[i].key);
        if (strcmp(rows[i].key, own) == 0 && rows[i].value)
            strbuf_printf(&words, "%s%s", words.length ? ", " : "", rows[i].word);
    }
    status rc =
        words.length ? ERR(ERR_INPUT, "%s: %s: found '%.100s', expected one of %s", where, key, text, words.text)
        : *nearest.name
            ? ERR(ERR_INPUT, "%s: unknown setting '%.100s' of FSDP; did you mean '%s'?", where, key, nearest.name)
            : ERR(ERR_INPUT,
                  "%s: unknown setting '%.100s' of FSDP; remove it, or use a setting of ralo ('ralo "
                  "help settings')",
                  where, key);
    strbuf_fini(&words);
    return rc;
}

status fsdp_translate(const char *where, const char *key, const char *text, fsdp_translation *out) {
    const char *own = own_key(key);
    *out = (fsdp_translation){.is_fsdp = own != NULL};
    if (!own) return OK;
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
        const row *r = &rows[i];
        if (strcmp(r->key, own) != 0 || (strcmp(r->word, "*") != 0 && strcasecmp(r->word, text) != 0)) continue;
        if (!r->value) return ERR(ERR_INPUT, "%s: %s: found %.100s; %s", where, key, text, r->why);
        out->why = r->why;
        out->value = r->value;
        while (out->n < FSDP_SETTINGS_MOST && r->settings[out->n])
            out->settings[out->n] = r->settings[out->n], out->n++;
        return OK;
    }
    return refuse(where, key, own, text);
}
