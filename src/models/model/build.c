/* build.c - the forward of one micro-batch as ops, for every family.
 *
 * The same functions write the training section, the evaluation section and those of generation, so what is evaluated and
 * what generates is what is trained. In generation every token is a row of its own (seq_len 1) with its position in doc_start;
 * only attention differs: it stores keys and values in pages and looks back through them.
 * It writes the plain form (linear, bias, add, norm each on its own); the fuse pass joins what belongs together.
 * q|k|v and gate|up are packed at birth, not by a pass: packing changes the parameters, and parameters have names that
 * checkpoints and files rely on. */
#include "model/builder.h"

#include <stdlib.h>

/* An op on this rank's part of the vocabulary; attributes are set only where that is not all of it. */
static op *emit_on_vocabulary(builder *b, op_kind k) {
    op *o = builder_emit(b, k);
    bool is_whole = k == OP_EMBED || k == OP_UNEMBED_LOSS; /* where it may be: the statistics are those of a part */
    if (b->n_ranks == 1 && is_whole) return o;
    o->attr.vocab = b->c->vocab;
    o->attr.first_id = b->first_id;
    o->attr.n_ids = b->n_ids;
    return o;
}

/* Rounded as transformers rounds it: to the type of the table. */
static float embed_scale(const builder *b) {
    if (!b->t->scaled_embed) return 0;
    float root = __builtin_sqrtf((float)b->c->hidden);
    if (b->o->compute == DTYPE_BF16) return bf16_to_f32(f32_to_bf16(root));
    return b->o->compute == DTYPE_F16 ? f16_to_f32(f32_to_f16(root)) : root;
}

/* Each rank has the rows of its own ids, and zeros; the rank that keeps a token adds its position. So no sum has more than
 * two nonzero numbers, and every order gives the same bits. */
static value_id write_embed(builder *b, const outer_params *w) {
    value_id x = builder_value(b, "embed", b->o->compute, SHAPE(n_tokens(b), b->c->hidden));
    op *o = emit_on_vocabulary(b, OP_EMBED);
    o->attr.scale = b->m->embed_scale;
    op_in(o, EMBED_TOKENS, b->tokens), op_in(o, EMBED_TABLE, w->embed);
    if (w->positions) op_in(o, EMBED_DOC_START, b->doc_start), op_in(o, EMBED_POSITIONS, w->positions);
    if (b->n_ranks > 1) o->attr.n_tokens = n_own_tokens(b), o->attr.first_token = b->rank * n_own_tokens(b);
    op_out(o, EMBED_X, x);
    return builder_scatter(b, "embed.sum", x);
}

static op *emit_between_stages(builder *b, op_kind k, int peer, int tag) {
    op *o = builder_emit(b, k);
    o->attr.axis = AXIS_PIPELINE;
    o->attr.group_size = b->n_stages;
    o->attr.peer = peer;
    o->attr.tag = tag;
    return o;
}

/* The hidden states that a chunk begins with, of the model or of a reference that passes the stages beside it. */
static value_id write_entry(builder *b, const outer_params *w, int chunk, int tag) {
    char name[NAME_BYTES];
    if (chunk == 0) return write_embed(b, w);
    snprintf(name, sizeof name, "chunk.%d.x", chunk);
    value_id x = builder_value(b, name, b->o->compute, SHAPE(n_own_tokens(b), b->c->hidden));
    op *o = emit_between_stages(b, OP_RECV, (chunk - 1) % b->n_stages, tag);
    op_out(o, RECV_Y, x);
    return x;
}

static void write_exit(builder *b, value_id x, int chunk, int tag) {
    op *o = emit_between_stages(b, OP_SEND, (chunk + 1) % b->n_stages, tag);
    op_in(o, SEND_X, x);
}

/* Embedding and layers up to `end`, which is in the last chunk. On a stage that does not have that: NO_VALUE. */
static value_id write_layers(builder *b, const outer_params *w, int64_t end) {
    value_id x = NO_VALUE;
    int n = b->m->n_chunks;
    for (int k = b->stage; k < n; k += b->n_stages) {
        x = builder_layers(b, w, b->first_layer[k], MIN(b->first_layer[k + 1], end), write_entry(b, w, k, TAG_FORWARD));
        if (k == n - 1) break;
        write_exit(b, x, k, TAG_FORWARD);
    }
    return b->stage == (n - 1) % b->n_stages ? x : NO_VALUE;
}

/* Values and ops from here on are those of the reference, until end_reference is called with what this returns. */
static const char *begin_reference(builder *b, const char *prefix) {
    const char *before = b->prefix;
    b->of_reference = true, b->prefix = prefix;
    return before;
}
static void end_reference(builder *b, const char *before) { b->of_reference = false, b->prefix = before; }

/* The same with all layers of a reference: a job of the pipeline is both models on one chunk, the reference first, and their messages
 * stand side by side. So a step has the jobs and the order of one model. *reference: its last hidden states. */
static value_id write_layers_of_both(builder *b, const outer_params *w, int64_t end, const outer_params *other,
                                     value_id *reference) {
    value_id x = NO_VALUE, y = NO_VALUE;
    int n = b->m->n_chunks;
    for (int k = b->stage; k < n; k += b->n_stages) {
        const char *before = begin_reference(b, REFERENCE_PREFIX);
        y = write_entry(b, other, k, TAG_REFERENCE);
        end_reference(b, before);
        x = write_entry(b, w, k, TAG_FORWARD);
        begin_reference(b, REFERENCE_PREFIX);
        y = builder_layers(b, other, b->first_layer[k], MIN(b->first_layer[k + 1], model_main_layers(b->c)), y);
        end_reference(b, before);
        x = builder_layers(b, w, b->first_layer[k], MIN(b->first_layer[k + 1], end), x);
        if (k == n - 1) break;
        write_exit(b, y, k, TAG_REFERENCE);
        write_exit(b, x, k, TAG_FORWARD);
    }
    bool is_last = b->stage == (n - 1) % b->n_stages;
    *reference = is_last ? y : NO_VALUE;
    return is_last ? x : NO_VALUE;
}

static value_id write_final_norm(builder *b, const outer_params *w, value_id x) {
    return builder_gather(b, "final_norm.all", builder_norm(b, "final_norm", x, w->final_norm));
}

/* The values (N) of the tokens of a sequence rank, or NO_VALUE on a stage without them; the head works on the tokens
 * that a tensor rank has between two products. */
static value_id write_values(builder *b, const outer_params *w) {
    value_id x = write_layers(b, w, model_main_layers(b->c));
    return x == NO_VALUE ? NO_VALUE : builder_values(b, &w->value, builder_norm(b, "final_norm", x, w->final_norm));
}

/* The last hidden states (N, C) of the ordinary model, or NO_VALUE on a stage without them. */
static value_id write_hidden(builder *b, const outer_params *w) {
    value_id x = write_layers(b, w, model_main_layers(b->c));
    return x ? write_final_norm(b, w, x) : NO_VALUE;
}

/* Log-probabilities of a policy are at the temperature that its completions are sampled at. */
static float logits_scale(const builder *b) {
    const policy_options *p = &b->o->policy;
    return p->on && p->temperature != 1 ? 1 / p->temperature : 0;
}

/* Ranks that share the vocabulary exchange a few numbers per token, never logits. */
static void write_shared_loss(builder *b, const outer_params *w, value_id h, value_id losses, value_id argmax) {
    int64_t N = n_tokens(b), n = argmax ? STAT_ARGMAX + 1 : STAT_TARGET + 1;
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%sstats.all", b->prefix);
    value_id own = builder_value(b, "stats", DTYPE_F64, SHAPE(N, n));
    value_id all = b->n_ranks > 1 ? builder_value(b, "stats.all", DTYPE_F64, SHAPE(b->n_ranks, N, n))
                                  : program_view(b->p, name, own, 0, SHAPE(1, N, n));
    op *o = emit_on_vocabulary(b, OP_UNEMBED_STATS);
    o->attr.chunk_bytes = b->o->logits_chunk_bytes;
    o->attr.logits_scale = logits_scale(b);
    o->attr.logits_softcap = (float)b->c->final_softcap;
    op_in(o, UNEMBED_STATS_H, h), op_in(o, UNEMBED_STATS_W, w->unembed);
    op_in(o, UNEMBED_STATS_TARGETS, b->targets);
    op_out(o, UNEMBED_STATS_STATS, own);
    if (b->n_ranks > 1) {
        o = builder_message(b, OP_ALL_GATHER);
        op_in(o, ALL_GATHER_X, own);
        op_out(o, ALL_GATHER_Y, all);
    }
    o = emit_on_vocabulary(b, OP_UNEMBED_JOIN);
    op_in(o, UNEMBED_JOIN_STATS, all), op_in(o, UNEMBED_JOIN_TARGETS, b->targets);
    op_out(o, UNEMBED_JOIN_LOSSES, losses), op_out(o, UNEMBED_JOIN_ARGMAX, argmax);
}

/* x of the tokens of every sequence rank, one rank behind the other, in y. */
static void emit_gather_tokens(builder *b, value_id x, value_id y) {
    op *o = builder_emit(b, OP_ALL_GATHER);
    o->attr.axis = AXIS_SEQUENCE;
    o->attr.group_size = b->n_sequence;
    op_in(o, ALL_GATHER_X, x);
    op_out(o, ALL_GATHER_Y, y);
}

/* Results: persistent, because nothing in the program reads them. */
static value_id write_all_tokens(builder *b, const char *name, value_id x) {
    if (b->n_sequence == 1) return x;
    dtype t = program_get(b->p, x)->type;
    value_id y = program_persistent(b->p, name, t, SHAPE(n_tokens(b) * b->n_sequence), ROLE_ACTIVATION);
    emit_gather_tokens(b, x, y);
    return y;
}

/* The same for ops of the section at hand. */
static value_id gather_tokens(builder *b, const char *name, value_id x) {
    if (b->n_sequence == 1) return x;
    value_id y = builder_value(b, name, program_get(b->p, x)->type, SHAPE(n_tokens(b) * b->n_sequence));
    emit_gather_tokens(b, x, y);
    return y;
}

/* Results of an evaluation, on every stage. Persistent where nothing in the program reads them. */
static value_id write_answer(builder *b, const char *name, dtype t, value_id x) {
    int last = b->n_stages - 1;
    value_id y = x ? write_all_tokens(b, name, x)
                   : program_persistent(b->p, name, t, SHAPE(n_tokens(b) * b->n_sequence), ROLE_ACTIVATION);
    for (int i = 0; i < last && b->stage == last; i++) {
        op *o = emit_between_stages(b, OP_SEND, i, TAG_ANSWER);
        op_in(o, SEND_X, y);
    }
    if (b->stage == last) return y;
    op *o = emit_between_stages(b, OP_RECV, last, TAG_ANSWER);
    op_out(o, RECV_Y, y);
    return y;
}

static void write_loss(builder *b, const outer_params *w, value_id h, value_id losses, value_id argmax) {
    if (b->n_ranks > 1) {
        write_shared_loss(b, w, h, losses, argmax);
        return;
    }
    op *o = builder_emit(b, OP_UNEMBED_LOSS);
    o->attr.chunk_bytes = b->o->logits_chunk_bytes;
    o->attr.logits_scale = logits_scale(b);
    o->attr.logits_softcap = (float)b->c->final_softcap;
    op_in(o, UNEMBED_LOSS_H, h), op_in(o, UNEMBED_LOSS_W, w->unembed), op_in(o, UNEMBED_LOSS_TARGETS, b->targets);
    op_out(o, UNEMBED_LOSS_LOSSES, losses), op_out(o, UNEMBED_LOSS_ARGMAX, argmax);
}

/* The losses of the reference from its last hidden states, of which a stage may have none. */
static value_id write_reference_loss(builder *b, const outer_params *w, value_id x) {
    if (x == NO_VALUE) return NO_VALUE;
    value_id losses = builder_value(b, "losses", DTYPE_F32, SHAPE(n_tokens(b)));
    write_loss(b, w, write_final_norm(b, w, x), losses, NO_VALUE);
    return losses;
}

/* ... with its own parameters, or those of the model without adapters. */
static value_id write_reference(builder *b, const outer_params *w, const char *prefix) {
    const char *before = begin_reference(b, prefix);
    value_id losses = write_reference_loss(b, w, write_layers(b, w, model_main_layers(b->c)));
    end_reference(b, before);
    return losses;
}

static bool has_reference_model(const builder *b) {
    return b->o->reference == REFERENCE_BASE || b->o->reference == REFERENCE_COPY;
}

/* The layers of the model up to `end`, as write_layers; *losses: of the reference for all tokens, which are an input of the program or made
 * here, first, while no activation of the model is there. On a stage without the last layers both are NO_VALUE, but for an input. */
static value_id write_layers_and_reference(builder *b, const outer_params *w, int64_t end,
                                           const outer_params *reference, value_id *losses) {
    value_id x = NO_VALUE, y;
    bool beside = b->n_stages > 1;
    *losses = b->m->reference;
    if (!has_reference_model(b)) return write_layers(b, w, end);
    if (beside) {
        x = write_layers_of_both(b, w, end, reference, &y);
        const char *before = begin_reference(b, REFERENCE_PREFIX);
        *losses = write_reference_loss(b, reference, y);
        end_reference(b, before);
    } else {
        *losses = write_reference(b, reference, REFERENCE_PREFIX);
    }
    if (*losses) *losses = gather_tokens(b, REFERENCE_PREFIX "losses.all", *losses);
    return beside ? x : write_layers(b, w, end);
}

/* The loss of whole responses: weights of tokens are known after their losses, so the logits are made once more for the
 * gradient. The reference comes first, while no activation of the model is there. Sequence ranks gather the losses of their tokens, four
 * bytes each, and judge whole responses. */
static void write_preference(builder *b, const outer_params *w, const outer_params *reference) {
    net *m = b->m;
    value_id other, x = write_layers_and_reference(b, w, model_main_layers(b->c), reference, &other);
    m->loss_sums = program_persistent(b->p, "loss.sums", DTYPE_F64, SHAPE(PREFERENCE_SUM_COUNT), ROLE_WORK);
    if (x == NO_VALUE) return;
    value_id h = write_final_norm(b, w, x);
    m->losses = builder_value(b, "losses", DTYPE_F32, SHAPE(n_tokens(b)));
    write_shared_loss(b, w, h, m->losses, NO_VALUE);
    value_id weights = builder_value(b, "preference.weights", DTYPE_F32, SHAPE(n_tokens(b)));
    value_id losses = gather_tokens(b, "losses.all", m->losses);
    op *o = builder_emit(b, OP_PREFERENCE);
    o->attr.preference = b->o->preference;
    if (b->n_sequence > 1) o->attr.group_size = b->n_sequence, o->attr.index = b->o->mesh.index[AXIS_SEQUENCE];
    op_in(o, PREFERENCE_LOSSES, losses), op_in(o, PREFERENCE_REFERENCE, other);
    op_in(o, PREFERENCE_SEGMENTS, m->segments), op_in(o, PREFERENCE_SCALARS, m->scalars), op_in(o, PREFERENCE_Z, m->z);
    op_out(o, PREFERENCE_WEIGHTS, weights), op_out(o, PREFERENCE_SUMS, m->loss_sums);
}

/* Tokens are selected when their losses are known, so the logits are made once more for the gradient. Sequence ranks gather four
 * bytes for each loss and target: every rank finds the threshold of all tokens, and the reference's loss of a target that stands in
 * another rank's part of the row. reference: of all tokens. */
static void write_selected_loss(builder *b, const outer_params *w, value_id h, value_id losses, value_id reference,
                                int k) {
    net *m = b->m;
    value_id weights = builder_value(b, "selected", DTYPE_F32, SHAPE(n_tokens(b)));
    write_shared_loss(b, w, h, losses, NO_VALUE);
    value_id all_losses = gather_tokens(b, "losses.all", losses),
             all_targets = gather_tokens(b, "targets.all", b->targets);
    op *o = builder_emit(b, OP_SELECT_TOKENS);
    if (b->n_sequence > 1) o->attr.group_size = b->n_sequence, o->attr.index = b->o->mesh.index[AXIS_SEQUENCE];
    o->attr.selection = m->selection;
    o->attr.loss = k;
    if (m->n_losses > 1) o->attr.n_losses = m->n_losses;
    op_in(o, SELECT_TOKENS_LOSSES, all_losses), op_in(o, SELECT_TOKENS_REFERENCE, reference);
    op_in(o, SELECT_TOKENS_TARGETS, all_targets), op_in(o, SELECT_TOKENS_BEFORE, m->loss[k].weights);
    op_in(o, SELECT_TOKENS_SCALARS, m->scalars);
    op_out(o, SELECT_TOKENS_WEIGHTS, weights), op_out(o, SELECT_TOKENS_SUMS, m->loss_sums);
}

/* The heads one after the other, each up to its loss: autodiff writes the backward of each behind it, so that the activations
 * of one head and one chunk of logits are alive at a time. The reference comes first, while there are none. */
static void write_heads(builder *b, const outer_params *w, const outer_params *other) {
    int64_t first = model_main_layers(b->c) - 1, n_sums = SUM_COUNT + SELECT_SUM_COUNT;
    bool selects = b->m->selection.kind != SELECTION_NONE;
    value_id reference = NO_VALUE;
    if (selects)
        b->m->loss_sums = program_persistent(b->p, "loss.sums", DTYPE_F64, SHAPE(n_sums * b->m->n_losses), ROLE_WORK);
    value_id trunk = selects ? write_layers_and_reference(b, w, first, other, &reference) : write_layers(b, w, first);
    for (int k = 0; k < b->m->n_losses && trunk; k++) {
        char prefix[32];
        value_id x = builder_layers(b, w, first + k, first + k + 1, trunk);
        snprintf(prefix, sizeof prefix, "head.%d.", k + 1);
        b->prefix = prefix, b->targets = b->m->loss[k].targets;
        value_id h = write_final_norm(b, w, x), losses = builder_value(b, "losses", DTYPE_F32, SHAPE(n_tokens(b)));
        if (selects) write_selected_loss(b, w, h, losses, reference, k);
        else write_loss(b, w, h, losses, NO_VALUE);
        if (k == 0) b->m->losses = losses;
        b->prefix = "";
    }
    b->targets = b->m->targets;
}

/* The same for completions with advantages. The losses outlive the section: the first update of a rollout gives the
 * log-probabilities that later ones compare with. */
static void write_policy(builder *b, const outer_params *w, const outer_params *reference) {
    net *m = b->m;
    const policy_options *p = &b->o->policy;
    value_id other = p->beta > 0 ? write_reference(b, reference, REFERENCE_PREFIX) : NO_VALUE;
    value_id h = write_hidden(b, w);
    m->loss_sums = program_persistent(b->p, "loss.sums", DTYPE_F64, SHAPE(POLICY_SUM_COUNT), ROLE_WORK);
    m->losses = program_persistent(b->p, "losses", DTYPE_F32, SHAPE(n_tokens(b)), ROLE_WORK);
    write_shared_loss(b, w, h, m->losses, NO_VALUE);
    value_id weights = builder_value(b, "policy.weights", DTYPE_F32, SHAPE(n_tokens(b)));
    op *o = builder_emit(b, OP_POLICY);
    o->attr.policy = *p;
    op_in(o, POLICY_LOSSES, m->losses), op_in(o, POLICY_OLD, m->old), op_in(o, POLICY_REFERENCE, other);
    op_in(o, POLICY_ADVANTAGES, m->advantages), op_in(o, POLICY_SEGMENTS, m->segments);
    op_in(o, POLICY_ROLLOUT, m->rollout), op_in(o, POLICY_SCALARS, m->scalars);
    op_out(o, POLICY_WEIGHTS, weights), op_out(o, POLICY_SUMS, m->loss_sums);
}

/* Sequence ranks gather the values of their tokens, four bytes each, and judge whole solutions. */
static void write_critic(builder *b, const outer_params *w) {
    net *m = b->m;
    value_id own = write_values(b, w);
    m->loss_sums = program_persistent(b->p, "loss.sums", DTYPE_F64, SHAPE(CRITIC_SUM_COUNT), ROLE_WORK);
    if (own == NO_VALUE) return;
    value_id values = gather_tokens(b, "values.rows", own);
    value_id dvalues = builder_value(b, "d.values", DTYPE_F32, program_get(b->p, values)->shape);
    op *o = builder_emit(b, OP_CRITIC);
    o->attr.critic = b->o->critic;
    if (b->n_sequence > 1) o->attr.group_size = b->n_sequence, o->attr.index = b->o->mesh.index[AXIS_SEQUENCE];
    op_in(o, CRITIC_VALUES, values), op_in(o, CRITIC_SEGMENTS, m->segments), op_in(o, CRITIC_SCALARS, m->scalars);
    op_out(o, CRITIC_DVALUES, dvalues), op_out(o, CRITIC_SUMS, m->loss_sums);
}

static void write_training(builder *b, const outer_params *w, const outer_params *reference) {
    b->where = SECTION_MICRO, b->prefix = "";
    if (b->c->value_head) {
        if (b->o->critic.kind) write_critic(b, w); /* else parameters alone are wanted, and no step */
        return;
    }
    if (b->o->policy.on) {
        write_policy(b, w, reference);
        return;
    }
    if (b->o->preference.kind) {
        write_preference(b, w, reference);
        return;
    }
    if (b->m->n_losses > 1 || b->m->selection.kind) {
        write_heads(b, w, reference);
        return;
    }
    value_id h = write_hidden(b, w);
    if (h == NO_VALUE) return;
    b->m->losses = builder_value(b, "losses", DTYPE_F32, SHAPE(n_tokens(b)));
    write_loss(b, w, h, b->m->losses, NO_VALUE);
}

static void write_evaluation(builder *b, const outer_params *w, const outer_params *reference) {
    b->where = SECTION_EVAL, b->prefix = "eval.";
    if (b->c->value_head) {
        b->m->eval_values = write_answer(b, "eval.values.rows", DTYPE_F32, write_values(b, w));
        return;
    }
    if (has_reference_model(b) && !b->m->selection.kind)
        b->m->eval_reference = write_answer(b, "eval.reference.losses.all", DTYPE_F32,
                                            write_reference(b, reference, "eval." REFERENCE_PREFIX));
    if (b->m->eval_reference)
        b->p->values[b->m->eval_reference].persistent = true; /* until the model has been evaluated too */
    /* The log-probabilities of a policy are those of completions; an argmax would need the logits of prompts too. */
    bool has_argmax = !b->o->policy.on;
    value_id h = write_hidden(b, w), losses = NO_VALUE, argmax = NO_VALUE;
    if (h) {
        losses = builder_value(b, "losses", DTYPE_F32, SHAPE(n_tokens(b)));
        if (has_argmax) argmax = builder_value(b, "argmax", DTYPE_I32, SHAPE(n_tokens(b)));
        write_loss(b, w, h, losses, argmax);
    }
    b->m->eval_losses = write_answer(b, "eval.losses.all", DTYPE_F32, losses);
    if (has_argmax) b->m->eval_argmax = write_answer(b, "eval.argmax.all", DTYPE_I32, argmax);
}

static void add_inputs(builder *b) {
    net *m = b->m;
    int64_t N = n_tokens(b);
    m->tokens = program_persistent(b->p, "tokens", DTYPE_I32, SHAPE(N), ROLE_INPUT);
    m->targets = program_persistent(b->p, "targets", DTYPE_I32, SHAPE(N), ROLE_INPUT);
    m->doc_start = program_persistent(b->p, "doc_start", DTYPE_I32, SHAPE(N), ROLE_INPUT);
    if (b->n_sequence > 1 && !b->o->ring)
        m->doc_start_all = program_persistent(b->p, "doc_start.all", DTYPE_I32, SHAPE(N * b->n_sequence), ROLE_INPUT);
    for (int k = 0; b->o->share_prompts && k < 2; k++)
        m->spans[k] = program_persistent(b->p, k ? "spans.prompt" : "spans.own", DTYPE_I32, SHAPE(2 * N), ROLE_INPUT);
    const policy_options *policy = &b->o->policy;
    if (b->o->preference.kind || policy->on || b->o->critic.kind)
        m->segments = program_persistent(b->p, "segments", DTYPE_I32, SHAPE(N * b->n_sequence), ROLE_INPUT);
    if (policy->on) m->advantages = program_persistent(b->p, "advantages", DTYPE_F32, SHAPE(N), ROLE_INPUT);
    if (policy->on && policy->is_old) m->old = program_persistent(b->p, "old", DTYPE_F32, SHAPE(N), ROLE_INPUT);
    if (policy->on && policy->cap > 0)
        m->rollout = program_persistent(b->p, "rollout", DTYPE_F32, SHAPE(N), ROLE_INPUT);
    if (b->o->reference == REFERENCE_INPUT)
        m->reference = program_persistent(b->p, "reference", DTYPE_F32, SHAPE(N * b->n_sequence), ROLE_INPUT);
    if (b->o->z_input) m->z = program_persistent(b->p, "preference.z", DTYPE_F64, SHAPE(1), ROLE_INPUT);
    m->n_losses = model_loss_count(b->c);
    bool weighted =
        b->o->token_weights || m->n_losses > 1; /* several losses: their weights also say how each is divided */
    if (weighted) m->weights = program_persistent(b->p, "weights", DTYPE_F32, SHAPE(N), ROLE_INPUT);
    m->loss[0] = (net_loss){m->targets, m->weights};
    for (int k = 1; k < m->n_losses; k++) {
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "head.%d.targets", k + 1);
        m->loss[k].targets = program_persistent(b->p, name, DTYPE_I32, SHAPE(N), ROLE_INPUT);
        snprintf(name, sizeof name, "head.%d.weights", k + 1);
        m->loss[k].weights = program_persistent(b->p, name, DTYPE_F32, SHAPE(N), ROLE_INPUT);
    }
    m->scalars = program_persistent(b->p, "scalars", DTYPE_U8, SHAPE(sizeof(step_scalars)), ROLE_INPUT);
}

/* ---- generation ------------------------------------------------------------------------------------------------ */

/* Layers with keys and values in the cache: the trunk and the heads that generate. */
static int64_t cached_layers(const model_config *c, const generation_shape *g) {
    return model_main_layers(c) + generation_heads(g) - 1;
}

uint64_t generation_page_bytes(const model_config *c, const generation_shape *g, dtype compute) {
    return (uint64_t)(2 * cached_layers(c, g) * c->n_kv_heads * g->page_size * c->head_dim) * dtype_bytes(compute);
}

/* What lasts from one run of PREFILL or DECODE to the next. Beside training it need not outlast them. */
static value_id add_lasting(builder *b, const char *name, dtype t, shape s, role r) {
    if (b->o->generation.beside_training) return program_generation_value(b->p, name, t, s, r);
    return program_persistent(b->p, name, t, s, r);
}

enum { INPUT_ALIGNMENT = 64 };

/* What a section reads from the host: named parts of one value. */
typedef struct input_part {
    value_id *id;
    const char *name;
    dtype type;
    shape shape;
} input_part;

static void add_input_parts(builder *b, const char *section, value_id *all, const input_part *parts, size_t n) {
    char name[NAME_BYTES];
    size_t n_bytes = 0;
    for (size_t i = 0; i < n; i++) n_bytes += align_up(shape_bytes(&parts[i].shape, parts[i].type), INPUT_ALIGNMENT);
    snprintf(name, sizeof name, "%sinputs", section);
    *all = add_lasting(b, name, DTYPE_U8, SHAPE((int64_t)n_bytes), ROLE_INPUT);
    for (size_t i = 0, at = 0; i < n; i++) {
        size_t part_bytes = shape_bytes(&parts[i].shape, parts[i].type);
        snprintf(name, sizeof name, "%s%s", section, parts[i].name);
        value_id v = *parts[i].id = program_view(b->p, name, *all, at, SHAPE((int64_t)part_bytes));
        program_get(b->p, v)->type = parts[i].type, program_get(b->p, v)->shape = parts[i].shape;
        at += align_up(part_bytes, INPUT_ALIGNMENT);
    }
}

/* n_pick 0: the logits of every token are wanted. */
static void add_section_inputs(builder *b, const char *prefix, int64_t n, int64_t n_pick, generation_section *s) {
    const input_part parts[] = {{&s->tokens, "tokens", DTYPE_I32, SHAPE(n)},
                                {&s->doc_start, "doc_start", DTYPE_I32, SHAPE(n)},
                                {&s->slots, "slots", DTYPE_I32, SHAPE(n)},
                                {&s->n_tokens, "n_tokens", DTYPE_I32, SHAPE(1)},
                                {&s->draws, "draws", DTYPE_F64, SHAPE(n_pick ? n_pick : n, DRAW_COUNT)},
                                {&s->pick, "pick", DTYPE_I32, SHAPE(n_pick)},
                                {&s->n_pick, "n_pick", DTYPE_I32, SHAPE(1)}};
    add_input_parts(b, prefix, &s->inputs, parts, ARRAY_LENGTH(parts) - (n_pick ? 0 : 2));
}

/* The last hidden states of every head that generates, one behind the other, so that one product makes all logits: (heads N, C). */
static value_id write_hidden_of_heads(builder *b, const outer_params *w, const char *prefix, int64_t n_heads) {
    int64_t first = model_first_head(b->c), N = n_tokens(b), C = b->c->hidden;
    value_id trunk = write_layers(b, w, first);
    value_id all = builder_value(b, "final_norm.heads", b->o->compute, SHAPE(n_heads * N, C));
    for (int64_t k = 0; k < n_heads; k++) {
        char name[NAME_BYTES];
        value_id x = builder_layers(b, w, first + k, first + k + 1, trunk);
        snprintf(name, sizeof name, "%shead.%lld.", prefix, (long long)k + 1);
        b->prefix = name;
        char norm[2 * NAME_BYTES];
        snprintf(norm, sizeof norm, "%sfinal_norm", name);
        value_id y = program_view(b->p, norm, all, (size_t)(k * N * C) * dtype_bytes(b->o->compute), SHAPE(N, C));
        builder_norm_into(b, "final_norm", x, w->final_norm, y);
        b->prefix = prefix;
    }
    return all;
}

static void write_generation(builder *b, const outer_params *w, section where, const char *prefix,
                             generation_section *s) {
    int64_t n_heads = generation_heads(&b->o->generation);
    b->where = where, b->prefix = prefix;
    b->batch = program_get(b->p, s->tokens)->shape.dim[0], b->seq_len = 1;
    b->tokens = s->tokens, b->doc_start = s->doc_start, b->rows = s->n_tokens, b->paged = s;
    value_id h = n_heads > 1 ? write_hidden_of_heads(b, w, prefix, n_heads) : write_hidden(b, w);
    int64_t n = s->pick ? program_get(b->p, s->pick)->shape.dim[0] : b->batch;
    s->logits = builder_value(b, "logits", DTYPE_F32, SHAPE(n, b->c->vocab));
    op *o = builder_emit(b, OP_UNEMBED_LOGITS);
    o->attr.logits_softcap = (float)b->c->final_softcap;
    if (s->pick) o->rows = s->n_pick;
    op_in(o, UNEMBED_LOGITS_H, h), op_in(o, UNEMBED_LOGITS_W, w->unembed), op_in(o, UNEMBED_LOGITS_PICK, s->pick);
    op_out(o, UNEMBED_LOGITS_LOGITS, s->logits);
    s->drawn = builder_value(b, "drawn", DTYPE_F64, SHAPE(n, DRAWN_COUNT));
    o = builder_emit(b, OP_DRAW_TOKENS);
    if (s->pick) o->rows = s->n_pick;
    op_in(o, DRAW_TOKENS_LOGITS, s->logits), op_in(o, DRAW_TOKENS_DRAWS, s->draws);
    op_out(o, DRAW_TOKENS_DRAWN, s->drawn);
}

static void add_caches(builder *b, const generation_shape *g) {
    const model_config *c = b->c;
    for (int l = 0; l < cached_layers(c, g); l++) {
        char name[NAME_BYTES];
        b->p->current_layer = l;
        b->caches[l] = add_lasting(b, builder_layer_name(name, "layers.%d.cache", l), b->o->compute,
                                   SHAPE(g->pages, 2 * c->n_kv_heads, g->page_size, c->head_dim), ROLE_CACHE);
    }
    b->p->current_layer = -1;
}

static void build_generation(builder *b, const outer_params *w) {
    const generation_shape *g = &b->o->generation;
    net *m = b->m;
    m->page_table = add_lasting(b, "page_table", DTYPE_I32, SHAPE(g->slots, generation_pages_per_slot(g)), ROLE_INPUT);
    int64_t n = generation_heads(g);
    add_section_inputs(b, "prefill.", g->prefill_tokens, n * MIN(g->slots, g->prefill_tokens), &m->prefill);
    add_section_inputs(b, "decode.", n * g->slots, n > 1 ? n * n * g->slots : 0, &m->decode);
    b->caches = arena_array(&m->memory, value_id, b->c->n_layers);
    add_caches(b, g);
    write_generation(b, w, SECTION_PREFILL, "prefill.", &m->prefill);
    write_generation(b, w, SECTION_DECODE, "decode.", &m->decode);
}

/* ---- the whole ------------------------------------------------------------------------------------------------- */

static value_id add_rope_table(builder *b, const char *name, int64_t n_positions, const rope_options *rope) {
    value_id table = program_persistent(b->p, name, DTYPE_F32, SHAPE(n_positions, model_rotary_dim(b->c)), ROLE_INPUT);
    op *t = builder_emit(b, OP_ROPE_TABLE);
    t->attr.seq_len = n_positions;
    t->attr.rope = *rope;
    op_out(t, ROPE_TABLE_TABLE, table);
    return table;
}

/* Longrope has one list for rows of up to the original positions and one for longer ones. Which it is, the rows of the run decide
 * once, all of the same length; keys of a cache were turned by one list and cannot be turned by another later. */
static const double *long_rope_factors(builder *b, int64_t length) {
    const long_rope *all = &b->c->long_rope;
    double *factors = arena_array(&b->p->memory, double, all->n);
    bool is_long = length > b->c->rope.original_max_positions;
    memcpy(factors, is_long ? all->long_factors : all->short_factors, (size_t)all->n * sizeof *factors);
    return factors;
}

static void add_rope_tables(builder *b, int64_t row_length, int64_t context) {
    const rope_options local = {.theta = b->c->local_theta};
    rope_options rope = b->c->rope;
    int64_t n_positions = MAX(row_length, context);
    if (b->t->learned_positions) return;
    if (rope.type == ROPE_LONG) rope.pair_factors = long_rope_factors(b, row_length ? row_length : context);
    b->rope_table = add_rope_table(b, "rope.table", n_positions, &rope);
    if (b->c->window && local.theta > 0)
        b->local_rope_table = add_rope_table(b, "rope.local_table", n_positions, &local);
}

static void build_training(builder *b, const outer_params *w, const outer_params *reference) {
    b->tokens = b->m->tokens, b->targets = b->m->targets, b->doc_start = b->m->doc_start;
    if (!b->o->no_training) write_training(b, w, reference);
    if (b->o->with_eval) write_evaluation(b, w, reference);
}

/* What this rank has of the model: its share of every layer of its stage. */
static void share_model(builder *b, const mesh *m) {
    const model_config *c = b->c;
    b->n_ranks = mesh_size(m, AXIS_TENSOR);
    b->rank = m->index[AXIS_TENSOR];
    b->n_sequence = mesh_size(m, AXIS_SEQUENCE);
    b->seq_len /= b->n_sequence;
    b->heads = c->n_heads / b->n_ranks;
    b->kv_heads = MAX(c->n_kv_heads / b->n_ranks, (int64_t)1);
    b->ffn = c->ffn / b->n_ranks;
    int64_t n = divide_up(c->vocab, b->n_ranks);
    b->first_id = b->rank * n;
    b->n_ids = MIN(n, c->vocab - b->first_id);
    b->n_stages = mesh_size(m, AXIS_PIPELINE);
    b->stage = m->index[AXIS_PIPELINE];
    b->m->n_chunks = b->n_stages * MAX(b->o->virtual_stages, 1);
    b->first_layer = arena_array(&b->m->memory, int64_t, b->m->n_chunks + 1);
    model_stages_cut(c, b->o->seq_len, b->m->n_chunks, b->first_layer);
}

status model_build(net *m, program *p, const model_config *c, const net_options *o) {
    bool generates = o->generation.slots > 0, trains = !generates || o->generation.beside_training;
    TRY(builder_check(c, o));
    *m = (net){.source = net_source_of(c),
               .codes = o->generation.weights,
               .lanes = o->generation.lanes,
               .selection = o->selection};
    arena_init(&m->memory);
    builder b = {.m = m,
                 .p = p,
                 .c = model_of(&m->source),
                 .t = model_family_traits(c->family),
                 .o = o,
                 .lora = o->lora,
                 .base = o->generation.weights != BASE_COMPUTE ? o->generation.weights : o->base,
                 .where = SECTION_START};
    b.batch = o->batch, b.seq_len = o->seq_len;
    m->embed_scale = embed_scale(&b);
    share_model(&b, &o->mesh);
    outer_params w = {.blocks = mem_alloc((size_t)c->n_layers * sizeof(block_params))}, copy = w, *reference = &w;
    if (trains) add_inputs(&b);
    builder_add_params(&b, &w);
    if (o->reference == REFERENCE_COPY) {
        reference = &copy;
        copy.blocks = mem_alloc((size_t)c->n_layers * sizeof(block_params));
        b.of_reference = true;
        b.unit = 0;
        builder_add_params(&b, &copy);
        b.of_reference = false;
    }
    builder_sort_params(&b);
    add_rope_tables(&b, trains ? o->seq_len : 0, generates ? o->generation.context : 0);
    if (trains) build_training(&b, &w, reference);
    if (generates) build_generation(&b, &w);
    if (reference == &copy) free(copy.blocks);
    free(w.blocks);
    return OK;
}
