/* deepspeed_memory.c - where DeepSpeed's JSON keeps things: ZeRO stage, offload, buckets, recompute.
 *
 * Thresholds and buckets of DeepSpeed count elements of the tensors as Hugging Face names them, so the model is built
 * to count them. */
#include "migrate/deepspeed.h"

#include <math.h>
#include <string.h>

#define DEFAULT_PERSISTENCE 100000 /* elements */

/* The sizes of the model's tensors as Hugging Face names them, which is what DeepSpeed partitions. */
typedef struct model_sizes {
    uint64_t total, block; /* parameters in all, in block 0 */
    uint64_t small;        /* in tensors of at most `threshold` elements */
    int64_t layers;
} model_sizes;

static status measure_model(const config *c, uint64_t threshold, model_sizes *out) {
    model_config config;
    program p;
    net m;
    *out = (model_sizes){0};
    TRY(model_from_config(c, &config));
    program_init(&p);
    status rc = model_build(&m, &p, &config, &(net_options){.batch = 1, .seq_len = 2, .compute = DTYPE_BF16});
    if (rc == OK) {
        out->layers = config.n_layers;
        for (size_t i = 0; i < m.n_params; i++) {
            const value *v = &p.values[m.params[i].value];
            uint64_t n = (uint64_t)shape_count(&v->shape), rows = (uint64_t)v->shape.dim[0];
            out->total += n;
            if (str_starts_with(m.params[i].name, "layers.0.")) out->block += n;
            for (int k = 0; k < m.params[i].n_parts; k++) {
                uint64_t part = n / rows * (uint64_t)m.params[i].parts[k].n_rows;
                if (part <= threshold) out->small += part;
            }
        }
        net_fini(&m);
    } else {
        error_trail(rc, __FILE__, __LINE__, __func__);
    }
    program_fini(&p);
    return rc;
}

static status device_tier(foreign_reader *r, const foreign_item *i, const char **out) {
    *out = i ? foreign_word(r, "none=none|cpu=host|nvme=nvme", i->text, false) : NULL;
    if (i && !*out && !i->is_auto)
        return ERR(ERR_INPUT, "%s: %s: found '%.100s', expected none, cpu or nvme", foreign_where(r, i), i->key,
                   i->text);
    return OK;
}

/* Bytes per parameter. A precision that is not chosen yet counts as its wider choice. */
static size_t element_bytes(const config *c) {
    return dtype_bytes((int)c->choice.precision < 0 ? DTYPE_F32 : precision_compute(c->choice.precision));
}

static bool moves_to(const char *tier, const char *name) { return tier && strcmp(tier, name) == 0; }

static status translate_nvme_paths(foreign_reader *r, const char *states, const char *params) {
    const foreign_item *paths[] = {foreign_find(r, STATES "nvme_path"), foreign_find(r, PARAMS "nvme_path")};
    const char *tiers[] = {states, params};
    if (paths[0] && paths[1] && strcmp(paths[0]->text, paths[1]->text) != 0 && moves_to(states, "nvme") &&
        moves_to(params, "nvme"))
        return ERR(
            ERR_INPUT,
            "%s: %s is %.200s, but %s (line %d) is %.200s: the nvme tier has one directory; give the same path twice",
            foreign_where(r, paths[0]), paths[0]->key, paths[0]->text, paths[1]->key, paths[1]->line, paths[1]->text);
    for (int i = 0; i < 2; i++) {
        if (!paths[i]) continue;
        if (paths[i]->is_auto || moves_to(tiers[i], "nvme"))
            TRY(foreign_offer_text(r, paths[i], "memory.nvme_path", NULL));
        else foreign_report_no_effect(r, paths[i], "its device is not nvme");
    }
    return OK;
}

/* The share of the parameters that the host updates; here whole layers, and the embedding and the head always. */
static status translate_offload_ratio(foreign_reader *r, bool states_move) {
    const foreign_item *ratio = foreign_find(r, STATES "ratio");
    model_config model;
    if (!ratio) return OK;
    if (ratio->is_auto) return foreign_offer_text(r, ratio, "memory.offload.keep_states", NULL);
    double share = item_real(ratio);
    if (!(share >= 0 && share <= 1)) return foreign_expected(r, ratio, "a number in [0, 1]");
    if (!states_move) {
        foreign_report_no_effect(r, ratio, "states stay on the device");
        return OK;
    }
    TRY(model_from_config(r->c, &model));
    return deepspeed_offer_whole(r, ratio, "memory.offload.keep_states", llround((1 - share) * (double)model.n_layers),
                                 foreign_format(r, "of %lld layers", (long long)model.n_layers));
}

/* As many elements, in bytes, where the file says it. 0 bytes would read as auto. */
static status offer_elements(foreign_reader *r, const foreign_item *i, const char *setting, size_t element) {
    if (!i || i->is_auto) return foreign_offer_text(r, i, setting, NULL);
    if (item_whole(i) < 1) return foreign_expected(r, i, "a whole number from 1, or \"auto\"");
    return deepspeed_offer_whole(r, i, setting, multiply_saturating(item_whole(i), (int64_t)element),
                                 foreign_format(r, "%s elements of %zu bytes", i->text, element));
}

/* As many elements ahead, in blocks. */
static status offer_ahead(foreign_reader *r, const foreign_item *i, const char *setting) {
    enum { MOST = 16 };
    model_sizes m;
    char a[32];
    TRY(measure_model(r->c, 0, &m));
    if (item_whole(i) < 0) return foreign_expected(r, i, "a whole number from 0");
    uint64_t blocks = ((uint64_t)item_whole(i) + m.block - 1) / m.block;
    return deepspeed_offer_whole(r, i, setting, (int64_t)MIN(blocks, (uint64_t)MOST),
                                 foreign_format(r, "blocks of %s elements, rounded up%s",
                                                str_format_count(a, (double)m.block),
                                                blocks > MOST ? ", at most 16" : ""));
}

/* A key of ZeRO-3: as documented, or as the field is called in DeepSpeed's code. */
static const foreign_item *find_stage3(foreign_reader *r, const char *name) {
    return foreign_find_either(r, foreign_format(r, ZERO "stage3_%s", name), foreign_format(r, ZERO "%s", name));
}

/* How many offloaded and how many sharded parameters are prefetched. */
static status translate_prefetch(foreign_reader *r, int64_t stage, const char *params) {
    const foreign_item *size = foreign_find(r, PARAMS "buffer_size"), *ahead = find_stage3(r, "prefetch_bucket_size");
    bool params_move = moves_to(params, "host") || moves_to(params, "nvme");
    if (size && !size->is_auto && params_move) TRY(offer_elements(r, size, "memory.bucket", element_bytes(r->c)));
    else if (size)
        foreign_report_no_effect(r, size, size->is_auto ? "auto: the plan sizes it" : "parameters stay on the device");
    if (ahead && !ahead->is_auto && params_move) TRY(offer_ahead(r, ahead, "memory.prefetch"));
    if (ahead && !ahead->is_auto && stage == 3) return offer_ahead(r, ahead, "parallel.prefetch");
    if (ahead && (ahead->is_auto || !params_move))
        foreign_report_no_effect(r, ahead,
                                 ahead->is_auto ? "auto: the plan chooses" : "parameters are whole and stay there");
    return OK;
}

/* Size of one message. DeepSpeed counts the elements that it sends; like ralo it sums gradients in fp32 if there is
 * a master copy. */
static status translate_buckets(foreign_reader *r) {
    const foreign_item *reduce = foreign_find(r, ZERO "reduce_bucket_size"),
                       *gather = foreign_find(r, ZERO "allgather_bucket_size"),
                       *overlap = foreign_find(r, ZERO "overlap_comm");
    size_t gradient = dtype_bytes((int)r->c->choice.precision < 0 ? DTYPE_F32 : precision_grad(r->c->choice.precision));
    TRY(offer_elements(r, reduce, "parallel.reduce_bucket", gradient));
    TRY(offer_elements(r, gather, "parallel.allgather_bucket", element_bytes(r->c)));
    return foreign_offer_text(r, overlap, "parallel.overlap", NULL);
}

/* ZeRO-3 leaves small tensors whole on every rank. A threshold above the model's tensors leaves the model whole. */
static status translate_persistence(foreign_reader *r, int64_t stage) {
    const foreign_item *threshold = find_stage3(r, "param_persistence_threshold"),
                       *limit = find_stage3(r, "model_persistence_threshold");
    foreign_report_no_effect(r, limit, "parallel.persist_below is the one threshold");
    if (!threshold) return OK;
    if (threshold->is_auto) return foreign_offer_text(r, threshold, "parallel.persist_below", NULL);
    if (stage != 3) {
        foreign_report_no_effect(r, threshold, "parameters are whole in this stage");
        return OK;
    }
    model_sizes m;
    char a[32], b[32];
    if (item_whole(threshold) < 0) return foreign_expected(r, threshold, "a whole number from 0");
    TRY(measure_model(r->c, (uint64_t)item_whole(threshold), &m));
    double share = 100.0 * (double)m.small / (double)m.total;
    const char *note =
        foreign_format(r, "%s of %s parameters (%.0f %%) whole on every rank; ralo packs q, k, v and gate, up",
                       str_format_count(a, (double)m.small), str_format_count(b, (double)m.total), share);
    /* DeepSpeed keeps tensors of up to so many elements, ralo those of fewer. */
    TRY(deepspeed_offer_whole(r, threshold, "parallel.persist_below", MIN(item_whole(threshold), INT64_MAX - 1) + 1,
                              note));
    if (2 * m.small > m.total && item_whole(threshold) > DEFAULT_PERSISTENCE)
        log_warn("%s: stage3_param_persistence_threshold %s defeats stage 3: %s of %s parameters (%.0f %%, %s) are in "
                 "tensors that small and stay whole on every rank; DeepSpeed's default is 1e5",
                 foreign_where(r, threshold), threshold->text, str_format_count(a, (double)m.small),
                 str_format_count(b, (double)m.total), share,
                 str_format_bytes((char[32]){0}, m.small * element_bytes(r->c)));
    return OK;
}

static status translate_zero(foreign_reader *r) {
    const foreign_item *stage_item = foreign_find(r, ZERO "stage"), *states_item = foreign_find(r, STATES "device"),
                       *params_item = foreign_find(r, PARAMS "device");
    int64_t stage = deepspeed_whole_or_zero(stage_item);
    const char *states, *params;
    if (stage < 0 || stage > 3) return foreign_expected(r, stage_item, "0, 1, 2 or 3");
    if (stage_item)
        TRY(foreign_offer_unless_auto(r, stage_item, "parallel.zero", foreign_format(r, "%lld", (long long)stage),
                                      foreign_row_ranks(r) > 1 ? NULL : "on one rank every stage is the same"));
    TRY(device_tier(r, states_item, &states));
    TRY(device_tier(r, params_item, &params));
    if (states_item) TRY(foreign_offer_unless_auto(r, states_item, "memory.offload.states", states, NULL));
    if (states && stage >= 2)
        TRY(foreign_offer(r, states_item, "memory.offload.grads", states, "from stage 2 on gradients go along"));
    if (params_item) TRY(foreign_offer_unless_auto(r, params_item, "memory.offload.params", params, NULL));
    bool left_open = states_item && !states; /* to the rest of the configuration */
    TRY(translate_offload_ratio(r, left_open || moves_to(states, "host") || moves_to(states, "nvme")));
    TRY(translate_nvme_paths(r, states, params));
    TRY(translate_prefetch(r, stage, params));
    TRY(translate_buckets(r));
    return translate_persistence(r, stage);
}

static status translate_activations(foreign_reader *r) {
    const foreign_item *count = foreign_find(r, "activation_checkpointing.number_checkpoints"),
                       *host = foreign_find(r, "activation_checkpointing.cpu_checkpointing");
    if (!foreign_has_group(r, "activation_checkpointing")) return OK;
    if (count && !count->is_auto) {
        model_sizes m;
        TRY(measure_model(r->c, 0, &m));
        if (item_whole(count) < 1) return foreign_expected(r, count, "a whole number from 1");
        int64_t n = MIN(item_whole(count), m.layers), every = divide_up(m.layers, n);
        TRY(foreign_offer(r, count, "memory.recompute", foreign_format(r, "every:%lld", (long long)every),
                          foreign_format(r, "%lld checkpoints over %lld layers", (long long)n, (long long)m.layers)));
    } else {
        TRY(foreign_offer_text(r, count, "memory.recompute", NULL));
        TRY(foreign_offer(r, NULL, "memory.recompute", "full",
                          "activation_checkpointing is there, and here that alone turns recompute on"));
    }
    if (!host) return OK;
    return foreign_offer_unless_auto(r, host, "memory.offload.activations", item_is_true(host) ? "host" : "none", NULL);
}

status deepspeed_translate_memory(foreign_reader *r) {
    if (foreign_has_group(r, "zero_optimization") || foreign_has_group(r, "activation_checkpointing"))
        TRY(foreign_offer(r, NULL, "memory.strategy", "manual", "the file says where things lie"));
    TRY(translate_zero(r));
    return translate_activations(r);
}
