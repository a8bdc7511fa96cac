/* recompute.c - drop activations after the forward and compute them again where the backward reads them.
 *
 * In: a training section with forward, backward and fused ops. Out: the same, where copies of the forward ops compute every
 * activation that the policy does not keep a second time: same kinds, same shapes, same constants, so the same kernels and
 * the same bits. The readers in the backward read the copy ("again.layers.3.mlp.up"), and the lifetime of the original ends
 * with the forward.
 *
 * Copies are inserted on demand: before the backward op that reads the first of them, and only those it needs that do not
 * exist yet. That is as late as possible, so that lifetimes are short, and values that no backward op reads (the last product
 * and sum of a layer) are not computed again. Evaluation has no backward and is left alone.
 *
 * Tokens that tensor ranks gather before a product are dropped under every policy, none included: their shares are kept, and
 * not holding the whole on every rank is the purpose of sharing the tokens.
 *
 * The data flow shows what is backward: an op that reads a value that the loss has written, or that the stage with the loss
 * has sent. */
#include "pass/pass.h"

#include <ctype.h>
#include <stdlib.h>

/* ---- the policy as text ------------------------------------------------------------------------------------------ */

static const char *const kind_names[RECOMPUTE_COUNT] = {"none",  "norms",  "selective", "full", "ratio",
                                                        "every", "nested", "keep",      "mix",  "auto"};

const char *recompute_name(recompute_kind k) { return kind_names[k]; }

static bool takes_argument(recompute_kind k) {
    return k == RECOMPUTE_RATIO || k == RECOMPUTE_EVERY || k == RECOMPUTE_NESTED || k == RECOMPUTE_KEEP ||
           k == RECOMPUTE_MIX;
}

enum { LAYERS_MOST = 1024 }; /* no model has so many: NET_LAYERS_MAX */

static status refuse(const char *text) {
    return ERR(ERR_INPUT,
               "memory.recompute: found '%.100s', expected none, norms, selective, full, auto, ratio:R with R from 0 "
               "to 1, every:N or nested:N with N from 1, keep:NAMES separated by commas, or mix:RUNG,N,LIGHTER with N "
               "from 0 to %d, such as mix:full,12,selective",
               text, LAYERS_MOST);
}

/* The kind of the name of n characters; RECOMPUTE_COUNT: there is none. */
static recompute_kind kind_named(const char *name, size_t n) {
    recompute_kind k = 0;
    while (k < RECOMPUTE_COUNT && (strlen(kind_names[k]) != n || memcmp(kind_names[k], name, n) != 0)) k++;
    return k;
}

/* "full,12,selective" */
static bool parse_mix(recompute_policy *out, const char *text) {
    char *end;
    size_t length = strcspn(text, ",");
    out->heavy = kind_named(text, length);
    if (!text[length]) return false;
    const char *number = text + length + 1;
    out->n_heavy = strtoll(number, &end, 10);
    if (!isdigit((unsigned char)*number) || *end != ',' || out->n_heavy > LAYERS_MOST) return false;
    out->light = kind_named(end + 1, strlen(end + 1));
    return out->heavy <= RECOMPUTE_FULL && out->light < out->heavy;
}

status recompute_parse(recompute_policy *out, const char *text) {
    size_t length = strcspn(text, ":");
    const char *argument = text[length] ? text + length + 1 : NULL;
    recompute_kind k = kind_named(text, length);
    if (k == RECOMPUTE_COUNT || takes_argument(k) != (argument != NULL)) return refuse(text);
    *out = (recompute_policy){.kind = k};
    char *end = NULL;
    if (k == RECOMPUTE_RATIO) {
        out->ratio = strtod(argument, &end);
        if (end == argument || *end || !(out->ratio >= 0 && out->ratio <= 1)) return refuse(text);
    } else if (k == RECOMPUTE_EVERY || k == RECOMPUTE_NESTED) {
        out->every = strtoll(argument, &end, 10);
        if (end == argument || *end || out->every < 1) return refuse(text);
    } else if (k == RECOMPUTE_KEEP) {
        if (!*argument) return refuse(text);
        out->keep = argument;
    } else if (k == RECOMPUTE_MIX && !parse_mix(out, argument)) {
        return refuse(text);
    }
    return OK;
}

void recompute_write(const recompute_policy *r, strbuf *out) {
    strbuf_add(out, kind_names[r->kind]);
    if (r->kind == RECOMPUTE_RATIO) strbuf_printf(out, ":%.17g", r->ratio);
    if (r->kind == RECOMPUTE_EVERY || r->kind == RECOMPUTE_NESTED) strbuf_printf(out, ":%lld", (long long)r->every);
    if (r->kind == RECOMPUTE_KEEP) strbuf_printf(out, ":%s", r->keep);
    if (r->kind == RECOMPUTE_MIX)
        strbuf_printf(out, ":%s,%lld,%s", kind_names[r->heavy], (long long)r->n_heavy, kind_names[r->light]);
}

void recompute_print(const recompute_policy *r, strbuf *out) {
    if (r->kind != RECOMPUTE_MIX) {
        recompute_write(r, out);
        return;
    }
    strbuf_printf(out, "%s in the first ", kind_names[r->heavy]);
    if (r->n_heavy == 1) strbuf_add(out, "layer");
    else strbuf_printf(out, "%lld layers", (long long)r->n_heavy);
    strbuf_printf(out, ", %s in the others", kind_names[r->light]);
}

/* ---- what the program says ----------------------------------------------------------------------------------------- */

typedef struct rewriter {
    program *p;
    const recompute_policy *policy;
    int64_t n_layers;
    op *ops;
    size_t first, end;    /* the training section */
    bool *is_backward;    /* per op */
    bool *is_activation;  /* per value: made by a forward op in a layer; may be dropped */
    bool *is_read_back;   /* read by a backward op */
    bool *is_handed_over; /* ... of another layer than its own */
    bool *is_kept;
    bool *is_wanted;  /* to be made again now */
    value_id *again;  /* the copy; NO_VALUE while there is none */
    lifetime *makers; /* per value: its first and last forward op */
    lifetime wanted;  /* ops in between make all that is wanted */
    bool of_heads;    /* the last rewrite: norms of heads (remake_head_norms) */
} rewriter;

static bool is_fused(op_kind k) { return op_norm_output(k) > 0; } /* behind the sum */
/* In a fused add and norm, inputs before GAMMA belong to the sum and the others to the norm; outputs before Y likewise. */
SAME_PLACE(ADD_RMSNORM_A, ADD_LAYERNORM_A);
SAME_PLACE(ADD_RMSNORM_B, ADD_LAYERNORM_B);
SAME_PLACE(ADD_RMSNORM_GAMMA, ADD_LAYERNORM_GAMMA);
SAME_PLACE(ADD_RMSNORM_S, ADD_LAYERNORM_S);
SAME_PLACE(ADD_RMSNORM_Y, ADD_LAYERNORM_Y);
SAME_PLACE(RMSNORM_X, LAYERNORM_X);
SAME_PLACE(RMSNORM_GAMMA, LAYERNORM_GAMMA);
SAME_PLACE(RMSNORM_Y, LAYERNORM_Y);

/* The inputs that output `out` of a forward op depends on; returns how many. A fused add and norm is two ops in one: the sum
 * comes from a and b, the norm and its statistics come from the sum. */
static int sources(const op *o, int out, value_id from[OP_MAX_IN]) {
    int n = 0, first = 0, end = op_input_count(o->kind);
    if (is_fused(o->kind) && out == ADD_RMSNORM_S) end = ADD_RMSNORM_GAMMA;
    else if (is_fused(o->kind)) first = ADD_RMSNORM_GAMMA, from[n++] = o->out[ADD_RMSNORM_S];
    for (int k = first; k < end; k++)
        if (o->in[k]) from[n++] = o->in[k];
    return n;
}

/* An op that reads what the loss wrote, or what such an op wrote, is backward. */
static void find_backward(rewriter *w) {
    bool *from_loss = mem_alloc(w->p->n_values * sizeof *from_loss);
    for (size_t i = w->first; i < w->end; i++) {
        const op *o = &w->ops[i];
        w->is_backward[i] = op_brings_gradient(o);
        for (int k = 0; k < op_input_count(o->kind); k++) w->is_backward[i] |= from_loss[o->in[k]];
        if (w->is_backward[i] || op_is_loss_gradient(o->kind))
            for (int k = 0; k < op_output_count(o->kind); k++) from_loss[o->out[k]] = o->out[k] != NO_VALUE;
    }
    free(from_loss);
}

static bool is_gather(const op *o) { return o->kind == OP_ALL_GATHER && o->attr.axis == AXIS_TENSOR; }

/* A single number (the largest of a tensor, its scale) is not worth making twice. */
static bool is_number(const value *a) { return shape_count(&a->shape) == 1; }

static bool can_drop(const program *p, value_id v) {
    const value *a = &p->values[v];
    return v && a->role == ROLE_ACTIVATION && !a->persistent && a->layer >= 0 && a->view_of == NO_VALUE &&
           !is_number(a);
}

/* Only ops whose outputs are all such values can be repeated without side effects. */
static bool can_repeat(const program *p, const op *o) {
    for (int k = 0; k < op_output_count(o->kind); k++) {
        const value *a = &p->values[o->out[k]];
        if (o->out[k] && (op_reads_output(o, k) || a->persistent || a->role != ROLE_ACTIVATION)) return false;
    }
    return !op_is_loss_gradient(o->kind);
}

static void find_activations(rewriter *w) {
    const program *p = w->p;
    for (size_t i = w->first; i < w->end; i++) {
        const op *o = &w->ops[i];
        for (int k = 0; k < op_output_count(o->kind) && !w->is_backward[i]; k++) {
            lifetime *m = &w->makers[o->out[k]];
            m->first = MIN(m->first, i);
            m->last = i;
            if (can_repeat(p, o)) w->is_activation[o->out[k]] = can_drop(p, o->out[k]);
        }
        for (int k = 0; k < op_input_count(o->kind) && w->is_backward[i]; k++) {
            w->is_read_back[o->in[k]] = true;
            if (p->values[o->in[k]].layer != o->layer) w->is_handed_over[o->in[k]] = true;
        }
    }
    for (value_id v = 1; v < p->n_values; v++) /* readers of a part would have to be found through views */
        if (p->values[v].view_of) w->is_activation[program_root(p, v, NULL)] = false;
}

/* ---- what is kept ---------------------------------------------------------------------------------------------------- */

/* The policy of one layer: the policy itself, or for mix and ratio the one of that layer. */
static recompute_kind kind_in(const rewriter *w, int64_t layer) {
    const recompute_policy *r = w->policy;
    if (r->kind == RECOMPUTE_MIX) return layer < r->n_heavy ? r->heavy : r->light;
    if (r->kind != RECOMPUTE_RATIO) return r->kind;
    return layer < w->n_layers - (int64_t)(r->ratio * (double)w->n_layers) ? RECOMPUTE_NONE : RECOMPUTE_FULL;
}

static bool is_by_cost(recompute_kind k) { return k == RECOMPUTE_NORMS || k == RECOMPUTE_SELECTIVE; }

/* norms and selective: drops the outputs of cheap ops whose inputs the backward reads anyway. Where another value would have
 * to be kept instead (a rotation whose input has no other reader), dropping saves nothing. */
static void keep_by_cost(rewriter *w) {
    const program *p = w->p;
    bool *is_read_forward = mem_alloc(p->n_values * sizeof *is_read_forward);
    bool *is_there = mem_alloc(p->n_values * sizeof *is_there);
    bool *feeds_activation = mem_alloc(p->n_values * sizeof *feeds_activation); /* read by an activation function */
    for (value_id v = 1; v < p->n_values; v++)
        is_there[v] = p->values[v].persistent || w->is_read_back[v] || is_number(&p->values[v]);
    for (size_t i = w->first; i < w->end; i++) {
        for (int k = 0; k < op_input_count(w->ops[i].kind) && !w->is_backward[i]; k++)
            is_read_forward[w->ops[i].in[k]] = true;
        if (op_class_of(w->ops[i].kind) == OP_CLASS_ACTIVATION)
            feeds_activation[w->ops[i].in[op_rows_input(w->ops[i].kind)]] = true;
    }
    for (size_t i = w->first; i < w->end; i++) /* the product that an adapter adds to is made again with it */
        if (w->ops[i].kind == OP_LORA_UP && feeds_activation[w->ops[i].out[LORA_UP_Y]])
            feeds_activation[w->ops[i].in[LORA_UP_BASE]] = true;
    for (size_t i = w->first; i < w->end; i++) {
        const op *o = &w->ops[i];
        bool is_used =
            false; /* a copy for the backward alone begins where it is read: dropping it would save nothing */
        for (int k = 0; k < op_output_count(o->kind); k++) is_used |= is_read_forward[o->out[k]];
        if (w->is_backward[i] || !is_used) continue;
        bool before_activation = op_class_of(o->kind) == OP_CLASS_PRODUCT && feeds_activation[op_main_value(o)];
        for (int k = 0; k < op_output_count(o->kind) && (op_is_cheap(o->kind) || before_activation); k++) {
            value_id v = o->out[k], from[OP_MAX_IN];
            if (!v || !w->is_activation[v] || w->is_handed_over[v]) continue;
            recompute_kind here = kind_in(w, p->values[v].layer);
            if (!is_by_cost(here) || (before_activation && here != RECOMPUTE_SELECTIVE)) continue;
            bool possible = true;
            for (int n = sources(o, k, from); n-- > 0;) possible &= is_there[from[n]];
            if (possible) is_there[v] = true, w->is_kept[v] = false;
        }
    }
    free(is_read_forward);
    free(feeds_activation);
    free(is_there);
}

/* "layers.3.attn.qkv.biased", "layers.3.attn.qkv.lora" -> "attn.qkv", by its length: users do not see what a layer is made of. */
static const char *local_name(const value *v, size_t *length) {
    char prefix[32];
    snprintf(prefix, sizeof prefix, "layers.%d.", v->layer);
    const char *name = v->name + (str_starts_with(v->name, prefix) ? strlen(prefix) : 0);
    *length = strlen(name);
    if (str_ends_with(name, ".lora")) *length -= strlen(".lora");
    else if (str_ends_with(name, ".biased")) *length -= strlen(".biased");
    return name;
}

static bool has_name(const value *v, const char *name, size_t n) {
    size_t length;
    const char *own = local_name(v, &length);
    return length == n && memcmp(own, name, n) == 0;
}

/* The first layer on this rank; -1: none, as in a last stage that has only the head. */
static int first_layer(const rewriter *w) {
    int first = -1;
    for (value_id v = 1; v < w->p->n_values; v++) {
        int layer = w->p->values[v].layer;
        if (w->is_activation[v] && layer >= 0 && (first < 0 || layer < first)) first = layer;
    }
    return first;
}

static status unknown_name(const rewriter *w, const char *name, size_t n) {
    strbuf names;
    strbuf_init(&names);
    int first = first_layer(w);
    for (value_id v = 1; v < w->p->n_values; v++) {
        if (!w->is_activation[v] || w->p->values[v].layer != first) continue;
        size_t length;
        const char *own = local_name(&w->p->values[v], &length);
        strbuf_printf(&names, "%s%.*s", names.length ? ", " : "", (int)length, own);
    }
    status rc = ERR(ERR_INPUT, "memory.recompute: keep names '%.*s', which no layer has; its values are: %s",
                    (int)MIN(n, (size_t)64), name, names.text);
    strbuf_fini(&names);
    return rc;
}

/* A kept output keeps the row statistics of its op too (rstd, mean, lse): without them the op would run again. */
static void keep_statistics(rewriter *w) {
    for (size_t i = w->first; i < w->end; i++) {
        const op *o = &w->ops[i];
        int y = MAX(op_norm_output(o->kind), 0);
        for (int k = y + 1; k < op_output_count(o->kind); k++)
            if (o->out[k] && o->out[y] && w->is_kept[o->out[y]]) w->is_kept[o->out[k]] = true;
    }
}

static status keep_by_name(rewriter *w) {
    for (const char *list = w->policy->keep; *list;) {
        list += strspn(list, " ,");
        size_t n = strcspn(list, ", ");
        bool found = false;
        for (value_id v = 1; v < w->p->n_values && n; v++) {
            if (!w->is_activation[v] || !has_name(&w->p->values[v], list, n)) continue;
            found = w->is_kept[v] = true;
        }
        if (n && !found && first_layer(w) >= 0) return unknown_name(w, list, n);
        list += n;
    }
    keep_statistics(w);
    return OK;
}

/* The last layer of a group that is computed again together: its values are still there when its backward begins. */
static bool ends_group(const rewriter *w, int64_t layer) {
    return layer == w->n_layers - 1 || (layer + 1) % w->policy->every == 0;
}

/* Does the op make the 8-bit numbers of a tensor that is dropped? They go with it. */
static bool rounds_dropped(const rewriter *w, const op *o) {
    return op_class_of(o->kind) == OP_CLASS_ROUNDING && !w->is_kept[o->in[op_rows_input(o->kind)]];
}

static status decide(rewriter *w) {
    const program *p = w->p;
    const recompute_policy *r = w->policy;
    for (value_id v = 1; v < p->n_values; v++) {
        int64_t layer = p->values[v].layer;
        recompute_kind here = kind_in(w, layer);
        w->is_kept[v] = !w->is_activation[v] || w->is_handed_over[v] || here == RECOMPUTE_NONE || is_by_cost(here);
        if (r->kind == RECOMPUTE_EVERY && w->is_activation[v] && !ends_group(w, layer)) w->is_kept[v] = false;
        if (r->kind == RECOMPUTE_NESTED && ends_group(w, layer)) w->is_kept[v] = true;
    }
    keep_by_cost(w);
    for (size_t i = w->first; i < w->end && !w->of_heads; i++) {
        const op *o = &w->ops[i];
        bool dropped = is_gather(o) || rounds_dropped(w, o);
        for (int k = 0; k < op_output_count(o->kind) && dropped; k++)
            if (w->is_activation[o->out[k]]) w->is_kept[o->out[k]] = false;
    }
    return r->kind == RECOMPUTE_KEEP ? keep_by_name(w) : OK;
}

/* ---- the rewrite ------------------------------------------------------------------------------------------------------ */

static value_id make_again(rewriter *w, value_id of) {
    const value v = *program_get(w->p, of);
    ASSERT(w->again[of] == NO_VALUE);
    char name[256];
    snprintf(name, sizeof name, "again.%s", v.name);
    value_id a = program_value(w->p, name, v.type, v.shape, v.role, v.section);
    w->p->values[a].layer = v.layer;
    return w->again[of] = a;
}

static bool wants_output(const rewriter *w, const op *o, int first) {
    for (int k = first; k < op_output_count(o->kind); k++)
        if (o->out[k] && w->is_wanted[o->out[k]]) return true;
    return false;
}

/* The wanted half of a fused add and norm. The sum is rounded before the norm sees it, so the plain norm of the sum has
 * the bits of the fused one. */
static op wanted_part(const rewriter *w, const op *o) {
    value_id sum = o->out[ADD_RMSNORM_S];
    if (!is_fused(o->kind) || (w->is_wanted[sum] && wants_output(w, o, ADD_RMSNORM_Y))) return *o;
    if (w->is_wanted[sum]) {
        op half = op_instead(o, OP_ADD);
        half.layer = w->p->values[sum].layer;
        half.in[ADD_A] = o->in[ADD_RMSNORM_A], half.in[ADD_B] = o->in[ADD_RMSNORM_B];
        half.out[ADD_Y] = sum;
        return half;
    }
    op half = op_instead(o, o->kind == OP_ADD_LAYERNORM ? OP_LAYERNORM : OP_RMSNORM);
    half.in[RMSNORM_X] = sum;
    const value_id *norm_in = o->in + ADD_RMSNORM_GAMMA, *norm_out = o->out + ADD_RMSNORM_Y;
    for (int k = RMSNORM_GAMMA; k < op_input_count(half.kind); k++) half.in[k] = norm_in[k - RMSNORM_GAMMA];
    for (int k = RMSNORM_Y; k < op_output_count(half.kind); k++) half.out[k] = norm_out[k - RMSNORM_Y];
    return half;
}

/* What the backward, or a copy, reads instead of v. */
static value_id kept_or_again(const rewriter *w, value_id v) {
    return v == NO_VALUE || w->is_kept[v] ? v : w->again[v];
}

static const lifetime NOTHING_WANTED = {SIZE_MAX, 0};

static void mark_wanted(rewriter *w, value_id v) {
    if (!v || w->is_kept[v] || w->again[v] != NO_VALUE) return;
    w->is_wanted[v] = true;
    w->wanted.first = MIN(w->wanted.first, w->makers[v].first);
    w->wanted.last = MAX(w->wanted.last, w->makers[v].last);
}

/* Computes every wanted value, and its inputs, in the order of the forward. Only the ops between the first and last maker are
 * visited, which are those of a layer or a few: visiting the whole forward would make the pass quadratic in the layers. */
static void repeat_wanted(rewriter *w) {
    value_id from[OP_MAX_IN];
    size_t end = w->wanted.last + 1;
    for (size_t i = end; i-- > w->wanted.first;)
        for (int k = op_output_count(w->ops[i].kind); k-- > 0 && !w->is_backward[i];) {
            if (!w->is_wanted[w->ops[i].out[k]]) continue; /* last to first: a fused norm asks for its sum */
            for (int n = sources(&w->ops[i], k, from); n-- > 0;) mark_wanted(w, from[n]);
        }
    for (size_t i = w->wanted.first; i < end; i++) {
        if (w->is_backward[i] || !wants_output(w, &w->ops[i], 0)) continue;
        op copy = wanted_part(w, &w->ops[i]);
        copy.again = true;
        for (int k = 0; k < op_input_count(copy.kind); k++) copy.in[k] = kept_or_again(w, copy.in[k]);
        for (int k = 0; k < op_output_count(copy.kind); k++) {
            if (!copy.out[k]) continue;
            bool wanted = w->is_wanted[copy.out[k]];
            w->is_wanted[copy.out[k]] = false;
            copy.out[k] = wanted || !op_output_optional(copy.kind, k) ? make_again(w, copy.out[k]) : NO_VALUE;
        }
        program_append(w->p, &copy);
    }
    w->wanted = NOTHING_WANTED;
}

static void rewrite(rewriter *w, size_t n_ops) {
    for (size_t i = 0; i < n_ops; i++) {
        op o = w->ops[i];
        bool any = false;
        for (int k = 0; k < op_input_count(o.kind) && w->is_backward[i]; k++) {
            mark_wanted(w, o.in[k]);
            any |= o.in[k] && w->is_wanted[o.in[k]];
        }
        if (any) repeat_wanted(w);
        for (int k = 0; k < op_input_count(o.kind) && w->is_backward[i]; k++) o.in[k] = kept_or_again(w, o.in[k]);
        program_append(w->p, &o);
    }
}

static status recompute_once(program *p, const pass_options *options, const recompute_policy *policy, bool of_heads) {
    size_t n_ops, n = p->n_values;
    rewriter w = {.p = p, .policy = policy, .n_layers = options->net->source.n_layers, .of_heads = of_heads};
    program_section(p, SECTION_MICRO, &w.first, &w.end);
    w.ops = program_take_ops(p, &n_ops);
    w.is_backward = mem_alloc((n_ops + 1) * sizeof(bool));
    bool **flags[] = {&w.is_activation, &w.is_read_back, &w.is_handed_over, &w.is_kept, &w.is_wanted};
    for (size_t i = 0; i < ARRAY_LENGTH(flags); i++) *flags[i] = mem_alloc(n * sizeof(bool));
    w.again = mem_alloc(n * sizeof *w.again);
    w.makers = mem_alloc(n * sizeof *w.makers);
    for (size_t v = 0; v < n; v++) w.makers[v].first = SIZE_MAX;
    w.wanted = NOTHING_WANTED;
    find_backward(&w);
    find_activations(&w);
    status rc = decide(&w);
    if (rc == OK) rewrite(&w, n_ops);
    for (size_t i = 0; i < ARRAY_LENGTH(flags); i++) free(*flags[i]);
    free(w.again);
    free(w.makers);
    free(w.is_backward);
    free(w.ops);
    return rc;
}

/* Beside the activations of a head lie gradients that other heads left: the sum of those that reach the trunk, one value (N, C), and
 * with accumulation that of the unembedding. Heads that are computed again whole do not hold their two norms, also (N, C), while the rest of the
 * layer is computed: they are made a third time where the backward reads them. So a step with heads needs no more than one without, for
 * two norms per head. */
static status remake_head_norms(program *p, const pass_options *options) {
    const net_source *c = &options->net->source;
    rewriter w = {.policy = &options->choice.recompute, .n_layers = c->n_layers};
    int64_t trunk = net_trunk(c);
    if (c->prediction_heads == 0 || kind_in(&w, trunk) != RECOMPUTE_FULL) return OK;
    recompute_policy norms = {
        .kind = RECOMPUTE_MIX, .heavy = RECOMPUTE_NONE, .n_heavy = trunk, .light = RECOMPUTE_NORMS};
    return recompute_once(p, options, &norms, true);
}

status pass_recompute(program *p, const pass_options *options, step_interface *step) {
    const recompute_policy *r = &options->choice.recompute;
    if (r->kind == RECOMPUTE_NONE && mesh_size(&options->mesh, AXIS_TENSOR) == 1) return OK;
    if (r->kind >= RECOMPUTE_AUTO)
        return ERR(ERR_BUG, "recompute: policy %d is not a recompute level; the plan has to choose one first",
                   (int)r->kind);
    /* The second rewrite treats the copies of the first one as a forward. */
    if (r->kind == RECOMPUTE_NESTED)
        TRY(recompute_once(p, options, &(recompute_policy){.kind = RECOMPUTE_EVERY, .every = r->every}, false));
    TRY(recompute_once(p, options, r, false));
    return remake_head_norms(p, options);
}
