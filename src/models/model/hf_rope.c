/* hf_rope.c - the rotary positions of a config.json, and back.
 *
 * Two spellings are in circulation: rope_theta, partial_rotary_factor and rope_scaling {type | rope_type, ...} (transformers 4),
 * and rope_parameters with all of them (transformers 5). Both are read, and both are written. A rope type or a partial rotation
 * that the family of the model does not have is refused: transformers would not compute it either. */
#include "model/hf_reading.h"

#include <math.h>

static const char original_key[] = "original_max_position_embeddings", share_key[] = "partial_rotary_factor";

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* transformers 5 lets a non-empty rope_scaling win over rope_parameters; so do we. */
static status find_rope(const hf_reading *r, bool two_ropes, const json_t **object, const char **name) {
    static const char *const names[] = {"rope_scaling", "rope_parameters"};
    static const char full[] = "full_attention";
    *object = NULL;
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
        const json_t *v = hf_get(r->root, names[i]);
        if (v && !json_is_object(v)) return hf_refuse(r->path, names[i], v, "an object or null");
        if (*object || !v || json_object_size(v) == 0) continue;
        *object = v;
        *name = names[i];
        if (two_ropes && json_is_object(hf_get(v, full)))
            *object = hf_get(v, full), *name = "rope_parameters.full_attention";
        else if (two_ropes && hf_get(v, "sliding_attention")) *object = NULL;
    }
    return OK;
}

/* Those of layers with a window are never stretched. */
static status read_local_rope(const hf_reading *r, model_config *c) {
    static const char name[] = "rope_parameters.sliding_attention.";
    const json_t *local = hf_get(hf_get(r->root, "rope_parameters"), "sliding_attention");
    TRY(hf_read_real(r, r->root, "", "rope_local_base_freq", 0, 10000, &c->local_theta));
    if (!local) return OK;
    TRY(hf_read_real(r, local, name, "rope_theta", 0, c->local_theta, &c->local_theta));
    const json_t *type = hf_get(local, "rope_type");
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "default") != 0))
        return hf_refuse(r->path, "rope_parameters.sliding_attention.rope_type", type, "\"default\"");
    return OK;
}

static const char *const rope_types[ROPE_TYPE_COUNT] = {
    [ROPE_DEFAULT] = "default", [ROPE_LLAMA3] = "llama3",   [ROPE_LINEAR] = "linear",
    [ROPE_YARN] = "yarn",       [ROPE_DYNAMIC] = "dynamic", [ROPE_LONG] = "longrope"};

/* Phi-3 has no other stretching than longrope, which its first files call su or yarn. */
static bool is_rope_type(const char *word, rope_type type, bool long_alone) {
    if (!long_alone) return strcmp(word, rope_types[type]) == 0;
    if (type == ROPE_LONG && (strcmp(word, "su") == 0 || strcmp(word, "yarn") == 0)) return true;
    return (type == ROPE_LONG || type == ROPE_DEFAULT) && strcmp(word, rope_types[type]) == 0;
}

static status read_rope_type(const hf_reading *r, const json_t *object, const char *name, bool long_alone,
                             rope_type *out) {
    const char *key;
    const json_t *v = hf_get_any(object, NAMES("rope_type", "type"), &key);
    char full[96];
    const char *inner;
    json_t *member;
    json_object_foreach((json_t *)object, inner, member) {
        snprintf(full, sizeof full, "%s.%.60s", name, inner);
        if (json_is_object(member))
            return hf_refuse(r->path, full, member, "one set of rotary parameters for all layers");
    }
    *out = ROPE_DEFAULT;
    if (!v) return OK;
    for (rope_type i = 0; i < ROPE_TYPE_COUNT; i++)
        if (json_is_string(v) && is_rope_type(json_string_value(v), i, long_alone)) {
            *out = i;
            return OK;
        }
    snprintf(full, sizeof full, "%s.%s", name, key);
    return hf_refuse(r->path, full, v,
                     long_alone ? "\"default\" or \"longrope\": this family has no other way of stretching positions"
                                : "\"default\", \"llama3\", \"linear\", \"yarn\", \"dynamic\" or \"longrope\"; other "
                                  "ways of stretching positions are not supported");
}

static double yarn_scale(double factor, double by) { return factor <= 1 ? 1 : 0.1 * by * log(factor) + 1; }

static status read_yarn(const hf_reading *r, const json_t *object, const char *where, rope_options *o) {
    double by, by_all;
    const hf_reading inner = {r->path, object};
    bool truncate;
    if (o->theta <= 1)
        return ERR(ERR_INPUT, "%s: key 'rope_theta': found %g, expected more than 1 with yarn", r->path, o->theta);
    TRY(hf_read_real(r, object, where, "beta_fast", 0, 32, &o->beta_fast));
    TRY(hf_read_real(r, object, where, "beta_slow", 0, 1, &o->beta_slow));
    TRY(hf_read_real(r, object, where, "mscale", 0, 0, &by));
    TRY(hf_read_real(r, object, where, "mscale_all_dim", 0, 0, &by_all));
    bool both = by > 0 && by_all > 0;
    double usual = both ? yarn_scale(o->factor, by) / yarn_scale(o->factor, by_all) : yarn_scale(o->factor, 1);
    TRY(hf_read_real(r, object, where, "attention_factor", 0, usual, &o->attention_factor));
    TRY(hf_read_bool(&inner, "truncate", true, &truncate));
    o->untruncated = !truncate;
    return OK;
}

static status read_factors(const hf_reading *r, const json_t *object, const char *where, const char *key, int64_t n,
                           double *out) {
    const json_t *list = hf_get(object, key);
    char full[96], expected[96];
    snprintf(full, sizeof full, "%s%s", where, key);
    snprintf(expected, sizeof expected, "a list of %lld numbers above 0, one for each pair that is rotated",
             (long long)n);
    if (!json_is_array(list) || (int64_t)json_array_size(list) != n) return hf_refuse(r->path, full, list, expected);
    for (int64_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, (size_t)i);
        out[i] = json_number_value(v);
        if (!json_is_number(v) || !isfinite(out[i]) || out[i] <= 0) return hf_refuse(r->path, full, v, expected);
    }
    return OK;
}

/* What cosines and sines are multiplied with where the file says nothing of it. */
static double long_amplitude(double factor, int64_t original) {
    return factor <= 1 ? 1 : sqrt(1 + log(factor) / log((double)original));
}

static status read_long(const hf_reading *r, const json_t *object, const char *where, model_config *c) {
    rope_options *o = &c->rope;
    int64_t n = model_rotary_dim(c) / 2;
    double factor;
    if (n > LONG_ROPE_PAIRS_MAX)
        return hf_refuse(r->path, "head_dim", hf_get(r->root, "head_dim"), "at most 256 with longrope");
    if (o->original_max_positions < 2)
        return hf_refuse(r->path, original_key, hf_get(r->root, original_key), "at least 2 with longrope");
    TRY(read_factors(r, object, where, "short_factor", n, c->long_rope.short_factors));
    TRY(read_factors(r, object, where, "long_factor", n, c->long_rope.long_factors));
    c->long_rope.n = n;
    double usual = (double)c->max_positions / (double)o->original_max_positions;
    TRY(hf_read_real(r, object, where, "factor", 0, usual, &factor));
    usual = long_amplitude(factor, o->original_max_positions);
    return hf_read_real(r, object, where, "attention_factor", 0, usual, &o->attention_factor);
}

/* transformers 5 lets the one beside the rotary parameters win over theirs, and Phi-3 has it there always. */
static status read_original(const hf_reading *r, const json_t *object, model_config *c) {
    const model_traits *t = model_family_traits(c->family);
    const hf_reading inner = {r->path, object};
    bool beside = t->usual_original_positions || hf_get(r->root, original_key);
    int64_t usual = t->usual_original_positions ? t->usual_original_positions : c->max_positions;
    return hf_read_size_or(beside ? r : &inner, original_key, 1 << 24, usual, &c->rope.original_max_positions);
}

static status read_stretching(const hf_reading *r, const json_t *object, const char *where, model_config *c) {
    rope_options *o = &c->rope;
    if (o->type == ROPE_LONG) {
        TRY(read_original(r, object, c));
        return read_long(r, object, where, c);
    }
    TRY(hf_read_real(r, object, where, "factor", 0, NAN, &o->factor));
    if (o->type == ROPE_LINEAR) return OK;
    if (o->type == ROPE_DYNAMIC) {
        if (c->head_dim < 4)
            return hf_refuse(r->path, "head_dim", hf_get(r->root, "head_dim"), "at least 4 with dynamic positions");
        o->original_max_positions = c->max_positions;
        return OK;
    }
    if (o->type == ROPE_YARN) TRY(read_yarn(r, object, where, o));
    if (o->type == ROPE_LLAMA3) {
        TRY(hf_read_real(r, object, where, "low_freq_factor", 0, NAN, &o->low_freq_factor));
        TRY(hf_read_real(r, object, where, "high_freq_factor", o->low_freq_factor, NAN, &o->high_freq_factor));
    }
    return read_original(r, object, c);
}

/* The share of a head that is rotated, its first dimensions. */
static status check_share(const hf_reading *r, model_config *c, double share) {
    const char *why = NULL;
    if (share == 1) return OK;
    c->rotary_share = share;
    if (!model_family_traits(c->family)->partial_rope) why = "1: this family rotates the whole head";
    else if (share > 1) why = "at most 1";
    else if (model_rotary_dim(c) < 2 || model_rotary_dim(c) % 2) why = "a share of head_dim that is a multiple of 2";
    if (!why) return OK;
    return ERR(ERR_INPUT, "%s: key '%s': found %g, expected %s", r->path, share_key, share, why);
}

status hf_read_rope(const hf_reading *r, model_config *c) {
    const json_t *object;
    const char *name = "";
    char where[64];
    rope_options *o = &c->rope;
    const model_traits *t = model_family_traits(c->family);
    TRY(find_rope(r, t->two_ropes, &object, &name));
    if (t->two_ropes) TRY(read_local_rope(r, c));
    snprintf(where, sizeof where, "%s.", name);
    TRY(hf_read_real(r, r->root, "", "rope_theta", 0, t->usual_theta > 0 ? t->usual_theta : 10000, &o->theta));
    double share;
    TRY(hf_read_real(r, r->root, "", share_key, 0, 1, &share));
    if (object) {
        TRY(hf_read_real(r, object, where, "rope_theta", 0, o->theta, &o->theta));
        TRY(hf_read_real(r, object, where, share_key, 0, share, &share));
        TRY(read_rope_type(r, object, name, t->long_rope_alone, &o->type));
    }
    TRY(check_share(r, c, share));
    return o->type == ROPE_DEFAULT ? OK : read_stretching(r, object, where, c);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static void put(json_t *o, const char *key, json_t *value) {
    int rc = json_object_set_new(o, key, value);
    ASSERT(rc == 0);
}

static void put_factors(json_t *o, const char *key, const double *factors, int64_t n) {
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++) json_array_append_new(list, json_real(factors[i]));
    put(o, key, list);
}

/* rope_scaling of transformers 4 has these keys and no other in Phi-3. */
static void put_long(json_t *o, const model_config *c) {
    const rope_options *r = &c->rope;
    put_factors(o, "short_factor", c->long_rope.short_factors, c->long_rope.n);
    put_factors(o, "long_factor", c->long_rope.long_factors, c->long_rope.n);
    double usual = (double)c->max_positions / (double)r->original_max_positions;
    if (r->attention_factor != long_amplitude(usual, r->original_max_positions))
        put(o, "attention_factor", json_real(r->attention_factor));
}

static json_t *scaling_json(const model_config *c) {
    json_t *o = json_object();
    const rope_options *r = &c->rope;
    put(o, r->type == ROPE_LONG ? "type" : "rope_type", json_string(rope_types[r->type]));
    if (r->type == ROPE_LONG) put_long(o, c);
    else if (r->type != ROPE_DEFAULT) put(o, "factor", json_real(r->factor));
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
    if (r->type == ROPE_LLAMA3 || r->type == ROPE_YARN) put(o, original_key, json_integer(r->original_max_positions));
    return o;
}

static json_t *parameters_json(const model_config *c) {
    json_t *o = scaling_json(c);
    put(o, "rope_type", json_string(rope_types[c->rope.type]));
    put(o, "rope_theta", json_real(c->rope.theta));
    if (c->rotary_share > 0) put(o, share_key, json_real(c->rotary_share));
    if (c->rope.type != ROPE_LONG) return o;
    json_object_del(o, "type");
    put(o, original_key, json_integer(c->rope.original_max_positions));
    return o;
}

void hf_put_rope(json_t *o, const model_config *c) {
    put(o, "rope_theta", json_real(c->rope.theta));
    put(o, "rope_scaling", c->rope.type == ROPE_DEFAULT ? json_null() : scaling_json(c));
    if (c->rotary_share > 0) put(o, share_key, json_real(c->rotary_share));
    if (c->rope.type == ROPE_LONG) put(o, original_key, json_integer(c->rope.original_max_positions));
    if (!model_family_traits(c->family)->two_ropes) {
        put(o, "rope_parameters", parameters_json(c));
        return;
    }
    put(o, "rope_local_base_freq", json_real(c->local_theta));
    put(o, "rope_parameters",
        json_pack("{s:o, s:{s:s, s:f}}", "full_attention", parameters_json(c), "sliding_attention", "rope_type",
                  "default", "rope_theta", c->local_theta));
}
