/* state.c - everything in a checkpoint that is not a tensor, as JSON: one table for the writer and the reader.
 *
 * A checkpoint may come from anyone, so every number has a range, and one outside of it is refused by its name: a
 * loss scale of -1 would flip the sign of every gradient, and a step with too many digits for a directory name could
 * not be saved again. The ranges are wide enough for everything that a run can write. */
#include "checkpoint/seal.h"
#include "checkpoint/directory.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#define METRIC_CHARACTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_/+.-"

typedef enum scalar_kind { WHOLE, WHOLE_IF_THERE, COUNT, REAL, REAL_OR_NONE } scalar_kind;
/* WHOLE: int64_t. WHOLE_IF_THERE: that, or 0 where an older ralo wrote none. COUNT: uint64_t, as text, because integers of JSON
 * end at 2^63. REAL: double. REAL_OR_NONE: that, or one of the words nan, inf and -inf, which JSON has no numbers for. */
typedef struct scalar {
    const char *group, *key; /* group NULL: the state itself */
    size_t offset;
    scalar_kind kind;
    double min, max;
} scalar;

#define AT(field) offsetof(train_state, field)
static const scalar scalars[] = {
    {NULL, "step", AT(step), WHOLE, 0, 0x1p59}, /* 18 digits, as many as the name of a directory may have */
    {NULL, "updates", AT(updates), WHOLE, 0, 0x1p59},
    {NULL, "data_row", AT(data_row), COUNT, 0, 0x1p62}, /* positions and sums are counted on from here */
    {NULL, "tokens", AT(tokens), COUNT, 0, 0x1p62},
    {NULL, "seed", AT(seed), COUNT, 0, 0x1p64},
    {NULL, "first_loss", AT(first_loss), REAL_OR_NONE, -INFINITY, INFINITY}, /* weights of tokens may be negative */
    {NULL, "last_loss", AT(last_loss), REAL_OR_NONE, -INFINITY, INFINITY},
    {"scaler", "scale", AT(scaler.scale), REAL, 0x1p-200, 0x1p200},
    {"scaler", "clean_steps", AT(scaler.clean_steps), WHOLE, 0, 0x1p59},
    {"scaler", "hysteresis_left", AT(scaler.hysteresis_left), WHOLE, 0, 1e9},
    {NULL, "micro_batch", AT(micro_batch), WHOLE_IF_THERE, 0, 1e9},
    {NULL, "accumulation", AT(accumulation), WHOLE_IF_THERE, 0, 1e9},
    {NULL, "placed", AT(placed), WHOLE_IF_THERE, 0, 1e9},
    {NULL, "unevaluated", AT(unevaluated), WHOLE_IF_THERE, 0, 1},
};

/* ---- writing --------------------------------------------------------------------------------------------------- */

static json_t *scalar_to_json(const scalar *s, const void *at) {
    char text[32];
    double x;
    switch (s->kind) {
    case WHOLE:
    case WHOLE_IF_THERE: return json_integer(*(const int64_t *)at);
    case COUNT: snprintf(text, sizeof text, "%" PRIu64, *(const uint64_t *)at); return json_string(text);
    case REAL:
    case REAL_OR_NONE: break;
    }
    x = *(const double *)at;
    if (isfinite(x)) return json_real(x);
    return json_string(isnan(x) ? "nan" : x > 0 ? "inf" : "-inf");
}

json_t *state_to_json(const train_state *s) {
    json_t *root = json_object();
    for (size_t i = 0; i < ARRAY_LENGTH(scalars); i++) {
        const scalar *row = &scalars[i];
        json_t *group = row->group ? json_object_get(root, row->group) : root;
        if (!group) json_object_set_new(root, row->group, group = json_object());
        json_object_set_new(group, row->key, scalar_to_json(row, (const char *)s + row->offset));
    }
    if (*s->best.metric)
        json_object_set_new(root, "best",
                            json_pack("{s:s, s:f, s:I}", "metric", s->best.metric, "value", s->best.value, "step",
                                      (json_int_t)s->best.step));
    const checkpoint_patience *p = &s->patience;
    if (!*p->metric) return root;
    json_t *waits = json_pack("{s:s, s:I, s:I}", "metric", p->metric, "worse", (json_int_t)p->worse, "evaluated",
                              (json_int_t)p->evaluated);
    if (isfinite(p->value)) {
        json_object_set_new(waits, "value", json_real(p->value));
        json_object_set_new(waits, "step", json_integer(p->step));
    }
    json_object_set_new(root, "patience", waits);
    return root;
}

json_t *task_to_json(const char *name, const char *state) {
    json_t *task = json_pack("{s:s}", "name", name), *object = state ? json_loads(state, 0, NULL) : NULL;
    ASSERT(task && (object || !state)); /* made and checked by checkpointer_save */
    if (object) json_object_set_new(task, "state", object);
    return task;
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

static status refuse(const scalar *s, const char *where, const char *found) {
    return ERR(ERR_INPUT, "%s: state: %s%s%s: found %s, expected a number from %.18g to %.18g; take another checkpoint",
               where, s->group ? s->group : "", s->group ? "." : "", s->key, found, s->min, s->max);
}

static status read_count(const scalar *s, const json_t *object, const char *where, uint64_t *out) {
    const char *text;
    char *end;
    TRY(json_get_string(object, s->key, where, &text));
    errno = 0;
    *out = strtoull(text, &end, 10);
    bool above = s->max < 0x1p64 && *out > (uint64_t)s->max; /* as whole numbers: a double rounds 2^62 + 1 */
    if (errno || text[0] < '0' || text[0] > '9' || *end || above) return refuse(s, where, text);
    return OK;
}

static status read_real(const scalar *s, const json_t *object, const char *where, double *out) {
    const char *word = json_string_value(json_object_get(object, s->key));
    char found[32];
    if (word && s->kind == REAL_OR_NONE) {
        bool negative = strcmp(word, "-inf") == 0, infinite = negative || strcmp(word, "inf") == 0;
        *out = infinite ? negative ? -INFINITY : INFINITY : NAN;
        return infinite || strcmp(word, "nan") == 0 ? OK : refuse(s, where, word);
    }
    if (word) return refuse(s, where, word);
    TRY(json_get_real(object, s->key, where, out));
    if (*out >= s->min && *out <= s->max) return OK;
    snprintf(found, sizeof found, "%.17g", *out);
    return refuse(s, where, found);
}

static status read_metric(const json_t *o, const char *group, const char *where, char out[64]) {
    const char *metric;
    TRY(json_get_string(o, "metric", where, &metric));
    size_t n = strlen(metric);
    if (n == 0 || n >= 64 || strspn(metric, METRIC_CHARACTERS) != n)
        return ERR(ERR_INPUT,
                   "%s: state: %s.metric: found another name than a metric can have; take another checkpoint", where,
                   group);
    memcpy(out, metric, n + 1);
    return OK;
}

/* As below. */
static status read_patience(const json_t *state, const char *where, checkpoint_patience *out) {
    const json_t *o = json_object_get(state, "patience");
    int64_t most = (int64_t)1 << 59;
    if (!o) return OK;
    out->value = NAN;
    TRY(json_get_int(o, "worse", 0, most, where, &out->worse));
    TRY(json_get_int(o, "evaluated", 0, most, where, &out->evaluated));
    if (json_object_get(o, "value")) {
        TRY(json_get_real(o, "value", where, &out->value));
        TRY(json_get_int(o, "step", 0, most, where, &out->step));
    }
    return read_metric(o, "patience", where, out->metric);
}

/* Nothing where no run asked for it. */
static status read_best(const json_t *state, const char *where, checkpoint_best *out) {
    const json_t *o = json_object_get(state, "best");
    if (!o) return OK;
    TRY(json_get_real(o, "value", where, &out->value));
    TRY(json_get_int(o, "step", 0, (int64_t)1 << 59, where, &out->step));
    return read_metric(o, "best", where, out->metric);
}

status state_from_json(const json_t *root, const char *where, train_state *out) {
    const json_t *state = json_object_get(root, "state");
    *out = (train_state){0};
    for (size_t i = 0; i < ARRAY_LENGTH(scalars); i++) {
        const scalar *row = &scalars[i];
        const json_t *object = row->group ? json_object_get(state, row->group) : state;
        void *at = (char *)out + row->offset;
        if (row->kind == WHOLE_IF_THERE && !json_object_get(object, row->key)) continue;
        if (row->kind == COUNT) TRY(read_count(row, object, where, at));
        else if (row->kind == REAL || row->kind == REAL_OR_NONE) TRY(read_real(row, object, where, at));
        else TRY(json_get_int(object, row->key, (int64_t)row->min, (int64_t)row->max, where, at));
    }
    if (out->updates > out->step)
        return ERR(ERR_INPUT, "%s: state: updates: found %lld, expected at most the %lld steps", where,
                   (long long)out->updates, (long long)out->step);
    TRY(read_patience(state, where, &out->patience));
    return read_best(state, where, &out->best);
}

status task_from_json(const json_t *root, const char *where, const char **name, const json_t **state) {
    const json_t *task = json_object_get(root, "task");
    *name = CHECKPOINT_DEFAULT_TASK;
    *state = NULL;
    if (!task) return OK;
    TRY(json_get_string(task, "name", where, name));
    size_t length = strlen(*name);
    *state = json_object_get(task, "state");
    if (length == 0 || length > CHECKPOINT_TASK_NAME || (!*state && strcmp(*name, CHECKPOINT_DEFAULT_TASK) == 0))
        return ERR(ERR_INPUT, "%s: task: name: found '%.64s', expected 1 to %d bytes, other than '%s' without a state",
                   where, *name, CHECKPOINT_TASK_NAME, CHECKPOINT_DEFAULT_TASK);
    if (!*state) return OK;
    if (!json_is_object(*state)) return ERR(ERR_INPUT, "%s: task: state: expected an object", where);
    size_t n_bytes = json_dumpb(*state, NULL, 0, JSON_COMPACT);
    if (n_bytes > CHECKPOINT_TASK_BYTES)
        return ERR(ERR_INPUT, "%s: task: state: found %zu bytes, expected at most %d", where, n_bytes,
                   CHECKPOINT_TASK_BYTES);
    return OK;
}
