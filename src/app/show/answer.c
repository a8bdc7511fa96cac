/* answer.c - the first line of a plan: does it fit, how long does the run take, what would be faster.
 *
 *     Fits: 20.2 of 23.0 GiB on the GPU, 119.7 of 128.0 GiB of host RAM (assumed), with bf16, rows of 256 tokens and
 *     micro-batches of 8 rows. Predicted 333 tokens/s; 3 epochs of 7,100 records in 1 h 40 min. Faster with
 * precision=bf16_sr: at most 3.0 s a step instead of 6.2 s.
 *
 * Everything in it stands in the tables below it too, or was compared by faster.c. Numbers of a machine that nobody
 * looked at are marked as assumed, and speeds as predicted. */
#include "show/show.h"

#include <math.h>
#include <string.h>

enum { MINUTE = 60, HOUR = 3600, DAY = 86400 };

/* 7100 -> "7,100". */
static char *format_whole(char buf[32], double n) {
    char digits[32];
    int length = snprintf(digits, sizeof digits, "%.0f", fmin(n, 1e15)), k = 0;
    for (int i = 0; i < length; i++) {
        if (i && (length - i) % 3 == 0) buf[k++] = ',';
        buf[k++] = digits[i];
    }
    buf[k] = 0;
    return buf;
}

/* Three digits: a prediction has no more. */
static char *format_rate(char buf[32], double n) {
    if (n < 100) {
        snprintf(buf, 32, "%.3g", n);
        return buf;
    }
    double unit = pow(10, floor(log10(n)) - 2);
    return format_whole(buf, unit * round(n / unit));
}

/* A step: "147 ms", "6.2 s", "2.5 min". */
static char *format_step(char buf[32], double s) {
    if (s < 1) snprintf(buf, 32, "%.3g ms", 1e3 * s);
    else if (s < 100) snprintf(buf, 32, "%.1f s", s);
    else snprintf(buf, 32, "%.1f min", s / MINUTE);
    return buf;
}

/* A run: "less than 1 s", "26 s", "42 min", "1 h 40 min", "5.2 days". */
static char *format_run(char buf[32], double s) {
    double minutes = round(s / MINUTE);
    if (s < 1) snprintf(buf, 32, "less than 1 s");
    else if (s < 1.5 * MINUTE) snprintf(buf, 32, "%.0f s", s);
    else if (minutes < 60) snprintf(buf, 32, "%.0f min", minutes);
    else if (s < 2.0 * DAY) snprintf(buf, 32, "%.0f h %.0f min", floor(minutes / 60), fmod(minutes, 60));
    else snprintf(buf, 32, "%.1f days", s / DAY);
    return buf;
}

/* "20.2 of 23.0 GiB", or "827.5 MiB of 1.0 GiB"; without a limit "20.2 GiB". */
static void add_share(strbuf *out, uint64_t n_bytes, uint64_t limit) {
    char a[32], b[32];
    str_format_bytes(a, n_bytes);
    str_format_bytes(b, limit);
    char *unit = strchr(a, ' '), *same = strchr(b, ' ');
    if (limit && unit && same && strcmp(unit, same) == 0) *unit = 0;
    strbuf_add(out, a);
    if (limit) strbuf_printf(out, " of %s", b);
}

/* What the rank, or the stage, that needs most takes. */
static uint64_t largest(const plan *p, const plan_outlook *o, bool is_device) {
    uint64_t most = 0;
    for (tier t = 0; t < TIER_COUNT; t++)
        if (is_device ? tier_is_device(t) : t == TIER_HOST) most = MAX(most, p->planned[t]);
    int n = o->stages ? mesh_size(&p->request.mesh, AXIS_PIPELINE) : 0;
    for (int i = 0; i < n; i++) most = MAX(most, o->stages[i].numbers.planned[is_device ? TIER_DEVICE : TIER_HOST]);
    return most;
}

/* Devices with bytes of their own; with memory.place there may be several. */
static int device_count(const plan *p) {
    int n = 0;
    for (tier t = 0; t < TIER_COUNT; t++) n += tier_is_device(t) && p->planned[t] > 0;
    return n;
}

static bool fits(const plan *p, const plan_outlook *o) {
    return plan_fits(p) && (!o->stages || plan_stage_without_room(p, o->stages) < 0);
}

/* " with bf16, rows of 4,096 tokens and micro-batches of 2 rows": what the numbers depend on. */
static void add_shape(const plan *p, strbuf *out) {
    const plan_request *r = &p->request;
    char a[32], b[32];
    if (plan_generates(r)) return;
    strbuf_printf(out, " with %s, rows of %s tokens and micro-batches of %s row%s", precision_name(r->choice.precision),
                  format_whole(a, (double)r->seq_len), format_whole(b, (double)r->choice.micro_batch),
                  r->choice.micro_batch == 1 ? "" : "s");
}

static void add_memory(const plan *p, const plan_outlook *o, strbuf *out) {
    const plan_request *r = &p->request;
    char a[32];
    int n_devices = device_count(p);
    bool is_gpu = r->target.discrete, is_one = !is_gpu && r->together_limit && !r->device_asked && n_devices <= 1;
    uint64_t host = largest(p, o, false);
    if (is_one) {
        add_share(out, o->stages ? largest(p, o, true) + host : plan_joint_bytes(p), r->together_limit);
        strbuf_add(out, " of memory");
    } else {
        add_share(out, largest(p, o, true), r->device_limit);
        if (n_devices > 1) strbuf_printf(out, " on the fullest of %d devices", n_devices);
        else strbuf_printf(out, " on the %s", is_gpu ? "GPU" : "device");
        strbuf_add(out, ", ");
        add_share(out, host, r->host_limit);
        strbuf_printf(out, " of host RAM%s", r->host_limit && r->host_is_assumed ? " (assumed)" : "");
    }
    if (p->planned[TIER_NVME]) strbuf_printf(out, ", %s on NVMe", str_format_bytes(a, p->planned[TIER_NVME]));
    if (o->stages) strbuf_printf(out, " for the fullest of %d pipeline stages", mesh_size(&r->mesh, AXIS_PIPELINE));
    else if (mesh_world(&r->mesh) > 1) strbuf_printf(out, " for one of %d ranks", mesh_world(&r->mesh));
}

static double step_seconds(const plan *p, const plan_outlook *o) {
    if (!p->request.hardware || p->cost.missing) return NAN;
    return o->stages ? plan_stages_seconds(p, o->stages) : p->cost.step_s;
}

/* Of rollouts only the updates are predicted: generation and rewards are not. */
static double run_seconds(const plan *p, const plan_outlook *o) {
    if (p->request.rollout) return NAN;
    return (double)p->request.run_steps * step_seconds(p, o);
}

/* "Predicted 2,200 tokens/s; 3 epochs of 7,100 records in 1 h 40 min." */
static void add_time(const plan *p, const plan_outlook *o, strbuf *out) {
    const plan_request *r = &p->request;
    double step_s = step_seconds(p, o), run_s = run_seconds(p, o);
    char a[32], b[32];
    if (plan_generates(r)) return;
    if (r->hardware && p->cost.missing) {
        strbuf_add(out, " No time is predicted: ");
        plan_explain_no_time(r->hardware, p->cost.missing, out);
        strbuf_add(out, ".");
    }
    if (!isfinite(step_s)) return;
    strbuf_printf(out, " Predicted %s%s tokens/s", r->rollout ? "at most " : "",
                  format_rate(a, (double)plan_tokens_per_step(p) / step_s));
    if (r->rollout) strbuf_add(out, " in updates; generation and rewards are not predicted");
    else if (r->run_steps > 1) {
        if (o->epochs > 0 && o->n)
            strbuf_printf(out, "; %.*g epoch%s of %s %s in ", o->epochs < 100 ? 2 : 3, o->epochs,
                          fabs(o->epochs - 1) < 0.05 ? "" : "s", format_whole(a, (double)o->n), o->unit);
        else strbuf_printf(out, "; %s steps in ", format_whole(a, (double)r->run_steps));
        strbuf_add(out, format_run(b, run_s));
    }
    strbuf_add(out, ".");
}

static void add_faster(const plan *p, const plan_outlook *o, strbuf *out) {
    char a[32], b[32];
    if (!*p->faster.settings) return;
    if (p->faster.tokens != plan_tokens_per_step(p)) {
        strbuf_printf(out, " Faster with %s: %s%s tokens/s instead of %s.", p->faster.settings,
                      p->faster.is_bound ? "at least " : "",
                      format_rate(a, (double)p->faster.tokens / p->faster.step_s),
                      format_rate(b, (double)plan_tokens_per_step(p) / step_seconds(p, o)));
        return;
    }
    strbuf_printf(out, " Faster with %s: %s%s a step instead of %s.", p->faster.settings,
                  p->faster.is_bound ? "at most " : "", format_step(a, p->faster.step_s),
                  format_step(b, step_seconds(p, o)));
}

void plan_answer(const plan *p, const plan_outlook *o, strbuf *out) {
    const plan_request *r = &p->request;
    char count[32];
    if (r->names_no_model)
        strbuf_printf(out, "No model is named (--model DIR, --preset NAME), so this is about the built-in %s of %s. ",
                      r->source.name, str_format_count(count, (double)model_param_count(model_of(&r->source))));
    bool is_limited = r->device_limit || r->together_limit;
    if (!fits(p, o)) {
        strbuf_add(out, "Does not fit");
        add_shape(p, out);
        strbuf_add(out, ": ");
        if (o->explanation && *o->explanation) strbuf_add(out, o->explanation);
        else {
            strbuf_add(out, "it needs ");
            add_memory(p, o, out);
        }
        strbuf_add(out, ".");
        return;
    }
    strbuf_add(out, is_limited ? "Fits: " : "Needs ");
    add_memory(p, o, out);
    if (!plan_generates(r)) strbuf_add(out, ",");
    add_shape(p, out);
    strbuf_add(out, ".");
    if (!is_limited)
        strbuf_add(out, " No limit of the device is known: give --hardware NAME or --device-memory BYTES.");
    add_time(p, o, out);
    add_faster(p, o, out);
}

void plan_print_answer(const plan *p, const plan_outlook *o, FILE *out) {
    strbuf text;
    strbuf_init(&text);
    plan_answer(p, o, &text);
    fprintf(out, "%s\n", text.text);
    strbuf_fini(&text);
}

static json_t *bytes_or_null(uint64_t n) { return n ? json_integer((json_int_t)n) : json_null(); }

void plan_answer_json(const plan *p, const plan_outlook *o, json_t *root) {
    const plan_request *r = &p->request;
    strbuf text;
    strbuf_init(&text);
    plan_answer(p, o, &text);
    json_object_set_new(root, "answer", json_text(text.text, text.length));
    strbuf_fini(&text);
    json_object_set_new(root, "limits",
                        json_pack("{s:o, s:o, s:o, s:b}", "device", bytes_or_null(r->device_limit), "host",
                                  bytes_or_null(r->host_limit), "together", bytes_or_null(r->together_limit),
                                  "host_assumed", r->host_limit && r->host_is_assumed));
    if (r->run_steps)
        json_object_set_new(root, "run",
                            json_pack("{s:I, s:o, s:o, s:o, s:o}", "steps", (json_int_t)r->run_steps, "epochs",
                                      o->epochs > 0 ? json_real(o->epochs) : json_null(), "per_epoch",
                                      bytes_or_null(o->n), "unit", o->n ? json_string(o->unit) : json_null(), "seconds",
                                      json_real_or_null(run_seconds(p, o))));
    if (*p->faster.settings)
        json_object_set_new(root, "faster",
                            json_pack("{s:s, s:f, s:I, s:b}", "settings", p->faster.settings, "step_ms",
                                      1e3 * p->faster.step_s, "tokens_per_step", (json_int_t)p->faster.tokens,
                                      "at_most", p->faster.is_bound));
}
