/* sink_records.c - what sinks are told, as lines of JSON: so a queue of them can wait on disk and be sent by another process.
 *
 * Numbers are written as in metrics.jsonl, so that every sink shows the same curve; but NaN and infinities, which JSON lacks, stay
 * what they are, as texts. A line is read back as if anyone had written it. */
#include "track/sink.h"

#include <stdlib.h>
#include <string.h>

static const char *const end_names[SINK_END_COUNT] = {"FINISHED", "FAILED", "KILLED"};
const char *sink_end_name(sink_end how) { return end_names[how]; }

/* Files of a run that a sink may be handed: a line from elsewhere must not name another one. */
static const char *const artefacts[] = {"config.yaml", "plan.json", "memory.json", "samples.jsonl",
                                        "completions.jsonl"};

/* ---- writing ------------------------------------------------------------------------------------------------------ */

static void add_key(strbuf *b, const char *name) {
    strbuf_printf(b, "%s\"%s\": ", b->text[b->length - 1] == '{' ? "" : ", ", name);
}

static void add_whole(strbuf *b, const char *name, uint64_t x) {
    add_key(b, name);
    strbuf_printf(b, "%llu", (unsigned long long)x);
}

static void add_real(strbuf *b, const char *name, double x) {
    add_key(b, name);
    if (isfinite(x)) strbuf_printf(b, "%.9g", x);
    else strbuf_add(b, isnan(x) ? "\"NaN\"" : x > 0 ? "\"Infinity\"" : "\"-Infinity\"");
}

static void add_flag(strbuf *b, const char *name, bool x) { add_whole(b, name, x); }

static void begin_metrics(strbuf *b, double time, int64_t step) {
    strbuf_printf(b, "{\"time\": %.3f, \"step\": %lld, \"metrics\": {", time, (long long)step);
}

static void end_metrics(strbuf *b, const train_metrics *m) {
    for (int i = 0; i < m->n; i++) /* NaN of a task: not known in this step */
        if (!isnan(m->list[i].value)) add_real(b, m->list[i].row->name, m->list[i].value);
    strbuf_add(b, "}}\n");
}

/* The step is said once, beside the values. */
#define ADD(type, name, value, when) \
    if ((when) && strcmp(name, "step") != 0) add_##type(b, name, value);

void sink_add_step(strbuf *b, double time, const train_step_report *s, uint64_t memory_used) {
    begin_metrics(b, time, s->step);
#define METRIC_STEP(name, type, value, when, help) ADD(type, name, value, when)
#define METRIC_EVAL(...)
#include "track/metrics.def"
#undef METRIC_STEP
#undef METRIC_EVAL
    end_metrics(b, &s->metrics);
}

void sink_add_eval(strbuf *b, double time, const train_eval_report *e) {
    begin_metrics(b, time, e->step);
#define METRIC_STEP(...)
#define METRIC_EVAL(name, type, value, when, help) ADD(type, name, value, when)
#include "track/metrics.def"
#undef METRIC_STEP
#undef METRIC_EVAL
    end_metrics(b, &e->metrics);
}

static void add_object(strbuf *b, json_t *o) {
    char *text = json_dumps(o, JSON_PRESERVE_ORDER);
    if (!text) mem_refused(0);
    strbuf_printf(b, "%s\n", text);
    free(text);
    json_decref(o);
}

void sink_add_params(strbuf *b, double time, const json_t *params) {
    add_object(b, json_pack("{s:f, s:O}", "time", time, "params", (json_t *)params));
}

void sink_add_artefact(strbuf *b, double time, const char *name) {
    add_object(b, json_pack("{s:f, s:s}", "time", time, "artefact", name));
}

void sink_add_end(strbuf *b, double time, sink_end how) {
    add_object(b, json_pack("{s:f, s:s}", "time", time, "end", end_names[how]));
}

/* As code, indented: a completion is no markup, whatever it looks like. */
static void add_code(strbuf *b, const char *title, const char *text) {
    strbuf_printf(b, "**%s**\n\n    ", title);
    for (; *text; text++) {
        strbuf_add_bytes(b, text, 1);
        if (*text == '\n') strbuf_add(b, "    ");
    }
    strbuf_add(b, "\n\n");
}

void sink_add_sample(strbuf *b, double time, const char *line) {
    json_t *sample = json_loads(line, JSON_ALLOW_NUL, NULL);
    if (!sample) return;
    const char *prompt = json_string_value(json_object_get(sample, "prompt"));
    const char *completion = json_string_value(json_object_get(sample, "completion"));
    strbuf text;
    strbuf_init(&text);
    add_code(&text, "prompt", prompt ? prompt : "");
    add_code(&text, "completion", completion ? completion : "");
    add_object(b, json_pack("{s:f, s:I, s:s, s:s}", "time", time, "step",
                            json_integer_value(json_object_get(sample, "step")), "name", "samples", "text", text.text));
    strbuf_fini(&text);
    json_decref(sample);
}

/* ---- reading ------------------------------------------------------------------------------------------------------ */

double sink_number(const json_t *v) {
    const char *text = json_string_value(v);
    if (!text) return json_is_number(v) ? json_number_value(v) : NAN;
    return strcmp(text, "Infinity") == 0 ? INFINITY : strcmp(text, "-Infinity") == 0 ? -INFINITY : NAN;
}

static bool all_texts(const json_t *object) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value) if (!json_is_string(value)) return false;
    return json_is_object(object);
}

static bool all_numbers(const json_t *object) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value) {
        if (!json_is_number(value) && !json_is_string(value)) return false;
    }
    return json_is_object(object);
}

static bool is_artefact(const char *name) {
    for (size_t i = 0; i < ARRAY_LENGTH(artefacts); i++)
        if (strcmp(artefacts[i], name) == 0) return true;
    return false;
}

static status deliver(const sink_kind *kind, void *self, const json_t *o, bool *damaged) {
    const json_t *params = json_object_get(o, "params"), *metrics = json_object_get(o, "metrics");
    const char *name = json_string_value(json_object_get(o, "name")),
               *text = json_string_value(json_object_get(o, "text")),
               *artefact = json_string_value(json_object_get(o, "artefact")),
               *end = json_string_value(json_object_get(o, "end"));
    const json_t *at = json_object_get(o, "step");
    double time = json_number_value(json_object_get(o, "time")), step = json_number_value(at);
    bool has_step = json_is_number(at) && step >= 0 && step <= 1e15, has_time = time >= 0 && time <= 1e11;
    if (has_time && all_texts(params)) return kind->params(self, time, params);
    if (has_time && has_step && all_numbers(metrics)) return kind->metrics(self, time, (int64_t)step, metrics);
    if (has_time && has_step && name && text) return kind->text(self, time, (int64_t)step, name, text);
    if (artefact && is_artefact(artefact)) return kind->artefact ? kind->artefact(self, artefact) : OK;
    for (int i = 0; has_time && end && i < SINK_END_COUNT; i++)
        if (strcmp(end, end_names[i]) == 0) return kind->end(self, time, i);
    *damaged = true;
    return OK;
}

status sink_deliver(const sink_kind *kind, void *self, const char *line, size_t n_bytes, uint64_t *n_damaged) {
    bool damaged = false;
    json_t *o = json_loadb(line, n_bytes, JSON_DECODE_INT_AS_REAL, NULL);
    status rc = o ? deliver(kind, self, o, &damaged) : OK;
    if (!o || damaged) ++*n_damaged;
    json_decref(o);
    return rc;
}
