/* layout.c - give every value an address before anything is allocated.
 *
 * In: a scheduled program. Out: an offset per value and the exact size of each tier's arena.
 * Persistent values are stacked at the bottom. Above them each section packs its own transient values by lifetime, and
 * the sections lie on top of each other, because only one runs at a time. PREFILL and DECODE begin above what lasts between
 * them, the cache, which therefore lies on the bytes that training uses for activations. An output that may be computed in place takes
 * the bytes of an input that dies there.
 *
 * Packing is interval colouring with sizes, which is NP-hard; a few greedy orders are tried and the lowest peak wins.
 * The result is compared with the lower bound (the most bytes alive at one op) and the difference is shown as gaps.
 * Nothing here touches a device, so `ralo plan` works on a laptop. */
#include "pass/moves.h"
#include "pass/occupancy.h"

#include <stdlib.h>

/* All ops of generation; they are the last of the program. */
static lifetime generation_lifetime(const program *p) {
    size_t first = p->n_ops;
    while (first > 0 && section_of_generation(p->ops[first - 1].section)) first--;
    return first < p->n_ops ? (lifetime){first, p->n_ops - 1} : (lifetime){SIZE_MAX, 0};
}

/* A message may begin when its inputs are written, which can be long before its place in the list: kernels in between run beside
 * it. Its scratch must be free from then on; on the bytes of one of those kernels the message would wait for it. Messages
 * come one after the other, so they may share the scratch. */
static void extend_message_scratch(const program *p, lifetime *life) {
    size_t *written = mem_alloc(p->n_values * sizeof *written); /* per value: behind which op */
    for (size_t i = 0, free_from = 0; i < p->n_ops; i++) {
        const op *o = &p->ops[i];
        if (o->section == SECTION_TURN) continue;
        if (i > 0 && o->section != p->ops[i - 1].section) free_from = i;
        if (op_is_comm(o->kind) && o->work != NO_VALUE) {
            size_t begin = free_from;
            for (int k = 0; k < op_input_count(o->kind); k++)
                if (o->in[k] != NO_VALUE) begin = MAX(begin, written[program_root(p, o->in[k], NULL)]);
            life[o->work].first = MIN(life[o->work].first, begin);
            free_from = i + 1;
        }
        for (int k = 0; k < op_output_count(o->kind); k++)
            if (o->out[k] != NO_VALUE) written[program_root(p, o->out[k], NULL)] = i + 1;
    }
    free(written);
}

void layout_lifetimes(const program *p, lifetime *out) {
    for (size_t v = 0; v < p->n_values; v++) out[v] = (lifetime){SIZE_MAX, 0};
    for (size_t i = 0; i < p->n_ops; i++) {
        const op *o = &p->ops[i];
        if (o->section == SECTION_TURN) continue; /* repeats others, where their values lie */
        value_id used[OP_MAX_IN + OP_MAX_OUT + 2];
        int n = 0;
        for (int k = 0; k < op_input_count(o->kind); k++) used[n++] = o->in[k];
        for (int k = 0; k < op_output_count(o->kind); k++) used[n++] = o->out[k];
        used[n++] = o->work;
        used[n++] = o->rows;
        for (int k = 0; k < n; k++) {
            if (used[k] == NO_VALUE) continue;
            lifetime *l = &out[program_root(p, used[k], NULL)];
            if (i < l->first) l->first = i;
            if (i > l->last) l->last = i;
        }
    }
    extend_message_scratch(p, out);
    lifetime generation = generation_lifetime(p);
    for (size_t v = 1; v < p->n_values; v++) {
        if (p->values[v].view_of != NO_VALUE) continue;
        if (p->values[v].persistent) out[v] = (lifetime){0, p->n_ops ? p->n_ops - 1 : 0};
        if (p->values[v].of_generation) out[v] = generation;
    }
}

/* A GPU computes SWIGLU of a decode step in the kernel of the product in front of it, where it has one for so few rows, and rounds x of
 * LINEAR_CODES in the kernel of the norm in front of it (backend/cuda/joined.c): y is then written while x is still read, and the scratch
 * in which LINEAR_CODES has the rounded x while the norm still reads and the gate already writes. */
static void extend_joined(const program *p, const pass_options *options, lifetime *life) {
    for (size_t i = 1; options->target->discrete && i + 1 < p->n_ops; i++) {
        const op *o = &p->ops[i];
        SAME_PLACE(LINEAR_X, LINEAR_CODES_X);
        bool gated = p->ops[i + 1].kind == OP_SWIGLU, codes = o->kind == OP_LINEAR_CODES && o->work;
        if (o->section != SECTION_DECODE || (o->kind != OP_LINEAR && o->kind != OP_LINEAR_CODES)) continue;
        if (codes && op_norm_output(p->ops[i - 1].kind) >= 0) life[o->work].first = MIN(life[o->work].first, i - 1);
        if (!gated) continue;
        lifetime *x = &life[program_root(p, o->in[LINEAR_X], NULL)];
        x->last = MAX(x->last, i + 1);
        if (codes) life[o->work].last = MAX(life[o->work].last, i + 1);
    }
}

/* A block is one range of bytes: a value, or several computed in place one after the other. */
typedef struct block {
    value_id owner;
    size_t n_bytes, first, last, offset, alignment;
    size_t from, to; /* first and last, counted in moments of the packing */
    size_t best;     /* offset in the lowest packing so far */
    section section;
    tier tier;
    bool persistent, of_generation; /* as of the value */
} block;

typedef struct packer {
    program *p;
    size_t alignment;
    lifetime *life;
    value_id *owner; /* of each value: the value whose block it uses */
    block *blocks;
    size_t n_blocks;
    sort_row *in_order; /* the blocks by their first ops */
} packer;

static value_id owner_of(const packer *k, value_id v) {
    while (k->owner[v] != v) v = k->owner[v];
    return v;
}

static bool is_transient(const value *v) { return !v->persistent && !v->of_generation; }

/* May output `out` of op i take the bytes of input `in`? */
static bool can_share(const packer *k, const op *o, size_t i, value_id out, value_id in) {
    const program *p = k->p;
    const value *a = &p->values[in], *b = &p->values[out];
    if (!is_transient(a) || !is_transient(b) || a->view_of || b->view_of || a->tier != b->tier) return false;
    if (a->type != b->type) return false; /* elements would overwrite others that are still read */
    if (k->life[in].last != i || k->life[out].first != i) return false;
    if (value_bytes(b) > value_bytes(&p->values[owner_of(k, in)])) return false;
    int readers = 0; /* the same value twice among the inputs would be overwritten while still read */
    for (int n = 0; n < op_input_count(o->kind); n++) readers += o->in[n] == in;
    return readers == 1;
}

static void share_in_place(packer *k) {
    const program *p = k->p;
    for (size_t i = 0; i < p->n_ops; i++) {
        const op *o = &p->ops[i];
        bool taken[OP_MAX_IN] = {false};
        for (int out = 0; out < op_output_count(o->kind); out++)
            for (int in = 0; in < op_input_count(o->kind); in++) {
                if (!o->out[out] || !o->in[in] || taken[in] || !op_in_place(o->kind, out, in)) continue;
                if (!can_share(k, o, i, o->out[out], o->in[in])) continue;
                k->owner[o->out[out]] = owner_of(k, o->in[in]);
                taken[in] = true;
                break;
            }
    }
}

static size_t alignment_of(const packer *k, const value *v) {
    return MAX(k->alignment, v->tier == TIER_NVME ? (size_t)NVME_SECTOR : v->alignment);
}

static void make_blocks(packer *k) {
    const program *p = k->p;
    size_t *index = mem_alloc(p->n_values * sizeof *index);
    k->blocks = mem_alloc(p->n_values * sizeof *k->blocks);
    for (value_id v = 1; v < p->n_values; v++) {
        const value *a = &p->values[v];
        if (a->view_of || k->life[v].first > k->life[v].last) continue;
        value_id owner = owner_of(k, v);
        if (owner == v) {
            index[v] = k->n_blocks;
            k->blocks[k->n_blocks++] = (block){.owner = v,
                                               .n_bytes = value_bytes(a),
                                               .first = k->life[v].first,
                                               .last = k->life[v].last,
                                               .alignment = alignment_of(k, a),
                                               .section = a->section,
                                               .tier = a->tier,
                                               .persistent = a->persistent,
                                               .of_generation = a->of_generation};
        }
    }
    for (value_id v = 1; v < p->n_values; v++) { /* a block lives as long as any value in it */
        if (p->values[v].view_of || k->life[v].first > k->life[v].last) continue;
        block *b = &k->blocks[index[owner_of(k, v)]];
        b->first = MIN(b->first, k->life[v].first);
        b->last = MAX(b->last, k->life[v].last);
    }
    free(index);
}

/* ---- longer lifetimes on the host ---------------------------------------------------------------------------------- */

/* Per op: the last op of its section within `distance` blocks (moves.h) behind it. */
static void find_block_ends(const program *p, size_t distance, size_t *end_of) {
    size_t *begins = mem_alloc((p->n_ops + 1) * sizeof *begins), n = 0, block = 0;
    int layer = 0;
    for (size_t i = 0; i < p->n_ops; i++) {
        const op *o = &p->ops[i];
        bool is_first = i == 0 || o->section != p->ops[i - 1].section;
        if (o->kind == OP_COPY && !is_first) continue;
        if (moves_begins_block(o, is_first, &layer)) begins[n++] = i;
    }
    for (size_t i = 0; i < p->n_ops; i++) {
        while (block + 1 < n && begins[block + 1] <= i) block++;
        size_t next = block + distance + 1, last = next < n ? begins[next] - 1 : p->n_ops - 1;
        while (p->ops[last].section != p->ops[i].section) last--;
        end_of[i] = last;
    }
    free(begins);
}

/* Per value that owns a block: does a copy read or write it? */
static bool *find_copied(const packer *k) {
    const program *p = k->p;
    bool *copied = mem_alloc(p->n_values * sizeof *copied);
    for (size_t i = 0; i < p->n_ops; i++) {
        const op *o = &p->ops[i];
        if (o->kind != OP_COPY) continue;
        copied[owner_of(k, program_root(p, o->in[COPY_X], NULL))] = true;
        copied[owner_of(k, program_root(p, o->out[COPY_Y], NULL))] = true;
    }
    return copied;
}

/* Copies run ahead of the list and behind it. If one copy writes bytes that another has just read, the two must wait for each
 * other, and with them streams that are otherwise independent: gradients could not leave before an activation three layers
 * later had arrived. So host values keep their bytes for as long as copies may run ahead. Device memory is too scarce for
 * that, and what only layers placed on the host use needs none of it. */
static void extend_host_lifetimes(packer *k, const pass_options *options) {
    size_t prefetch = (size_t)options->choice.prefetch;
    bool any = false, placed = place_splits(&options->place, options->net->source.n_layers, options->target);
    for (size_t i = 0; i < k->n_blocks; i++) any |= k->blocks[i].tier == TIER_HOST && !k->blocks[i].persistent;
    if (!any || prefetch == 0) return;
    size_t *end_of = mem_alloc(k->p->n_ops * sizeof *end_of);
    bool *copied = find_copied(k);
    find_block_ends(k->p, prefetch + 1, end_of);
    for (size_t i = 0; i < k->n_blocks; i++) {
        block *b = &k->blocks[i];
        if (b->tier == TIER_HOST && !b->persistent && (!placed || copied[b->owner])) b->last = end_of[b->last];
    }
    free(copied);
    free(end_of);
}

/* ---- greedy packing ------------------------------------------------------------------------------------------------ */

/* The sort key of blocks, smallest first; of equals the one that begins first. */
typedef uint64_t (*block_key)(const block *b);

static uint64_t by_first(const block *b) { return b->first; }
static uint64_t by_size(const block *b) { return ~(uint64_t)b->n_bytes; }
static uint64_t by_length(const block *b) { return ~(uint64_t)(b->last - b->first); }
/* Long and large first: what lives through the whole backward goes to the bottom. */
static uint64_t by_area(const block *b) {
    double area = (double)b->n_bytes * (double)(b->last - b->first + 1);
    uint64_t bits; /* of numbers that are not negative: in their order */
    memcpy(&bits, &area, sizeof bits);
    return ~bits;
}

static void sort_list(block *const *list, sort_row *rows, size_t n, block_key key) {
    for (size_t i = 0; i < n; i++) rows[i].key = key(list[rows[i].item]);
    sort_rows(rows, n);
}

static void sort_blocks(packer *k) {
    k->in_order = mem_alloc((k->n_blocks + 1) * sizeof *k->in_order);
    for (size_t i = 0; i < k->n_blocks; i++) k->in_order[i] = (sort_row){by_first(&k->blocks[i]), i};
    sort_rows(k->in_order, k->n_blocks);
}

/* Moments are the ops of a list at which a block begins; several count as one where no block ends in between, because then
 * the same blocks are alive. Two blocks are alive together at some moment or never. The list is in the order of first ops.
 * Returns how many moments there are. */
static size_t number_moments(block *const *list, size_t n, size_t n_ops) {
    bool *ends = mem_alloc(n_ops * sizeof *ends);
    size_t *moment = mem_alloc(n_ops * sizeof *moment); /* of each op: the last moment up to it */
    size_t now = 0, at = 0;
    for (size_t i = 0; i < n; i++) ends[list[i]->last] = true;
    for (size_t i = 0; i < n; i++) {
        bool any = false;
        for (; at < list[i]->first; at++) {
            any |= ends[at];
            moment[at] = now;
        }
        now += any && i > 0;
        list[i]->from = now;
    }
    for (; at < n_ops; at++) moment[at] = now;
    for (size_t i = 0; i < n; i++) list[i]->to = moment[list[i]->last];
    free(moment);
    free(ends);
    return now + 1;
}

/* Puts every block at the lowest offset that is free during its lifetime, in the order of rows. Returns the highest end, or
 * stops early with a number of at least `enough` once that is certain. */
static size_t pack(block *const *list, const sort_row *rows, size_t n, size_t base, size_t enough, occupancy *taken) {
    size_t top = base;
    occupancy_clear(taken);
    for (size_t i = 0; i < n && top < enough; i++) {
        block *b = list[rows[i].item];
        b->offset = occupancy_place(taken, b->from, b->to, base, b->n_bytes, b->alignment);
        top = MAX(top, b->offset + b->n_bytes);
    }
    return top;
}

/* The most bytes alive at once: no packing can be lower. */
static size_t lower_bound(block *const *list, size_t n, size_t n_ops) {
    size_t *delta = mem_alloc((n_ops + 2) * sizeof *delta), alive = 0, most = 0;
    for (size_t i = 0; i < n; i++) {
        delta[list[i]->first] += align_up(list[i]->n_bytes, list[i]->alignment);
        delta[list[i]->last + 1] -= align_up(list[i]->n_bytes, list[i]->alignment);
    }
    for (size_t i = 0; i <= n_ops; i++) {
        alive += delta[i]; /* unsigned wrap-around adds up to the true sum */
        most = MAX(most, alive);
    }
    free(delta);
    return most;
}

/* Packs the blocks of one section in one tier above base, in the order of their first ops. Returns their highest end. */
static size_t pack_section(const packer *k, block *const *list, size_t n, size_t base) {
    static const struct {
        block_key key, then;
    } orders[] = {{by_size, NULL}, {by_area, NULL}, {by_length, by_size}, {by_first, NULL}};
    size_t best = SIZE_MAX, floor = base + lower_bound(list, n, k->p->n_ops);
    sort_row *rows = mem_alloc(n * sizeof *rows);
    occupancy *taken = occupancy_open(number_moments(list, n, k->p->n_ops), k->alignment);
    for (size_t i = 0; i < n; i++) occupancy_expect(taken, list[i]->from, list[i]->to);
    for (size_t j = 0; j < ARRAY_LENGTH(orders) && best > floor; j++) {
        for (size_t i = 0; i < n; i++) rows[i].item = i;
        if (orders[j].then) sort_list(list, rows, n, orders[j].then);
        sort_list(list, rows, n, orders[j].key);
        size_t top = pack(list, rows, n, base, best, taken);
        if (top >= best) continue;
        best = top;
        for (size_t i = 0; i < n; i++) list[i]->best = list[i]->offset;
    }
    for (size_t i = 0; i < n; i++) list[i]->offset = list[i]->best;
    occupancy_close(taken);
    free(rows);
    return best;
}

/* Values of a tier that last, one behind the other from `at` on; returns their end. */
static size_t stack(packer *k, tier t, bool of_generation, size_t at) {
    for (size_t i = 0; i < k->n_blocks; i++) {
        block *b = &k->blocks[i];
        if (b->tier != t || !(of_generation ? b->of_generation : b->persistent)) continue;
        b->offset = align_up(at, b->alignment);
        at = b->offset + b->n_bytes;
    }
    return at;
}

/* The highest end of any section of a tier; sections share the same bytes. */
static size_t pack_tier(packer *k, tier t, size_t base) {
    size_t n[SECTION_COUNT] = {0}, lasting = stack(k, t, true, base), above = align_up(lasting, k->alignment),
           top = lasting;
    block **list = mem_alloc((SECTION_COUNT * k->n_blocks + 1) * sizeof *list);
    for (size_t i = 0; i < k->n_blocks; i++) {
        block *b = &k->blocks[k->in_order[i].item];
        if (!b->persistent && !b->of_generation && b->tier == t) list[b->section * k->n_blocks + n[b->section]++] = b;
    }
    for (section s = 0; s < SECTION_COUNT; s++)
        if (n[s] > 0)
            top = MAX(top, pack_section(k, list + s * k->n_blocks, n[s], section_of_generation(s) ? above : base));
    free(list);
    return top;
}

status pass_layout(program *p, const pass_options *options, step_interface *step) {
    packer k = {.p = p, .alignment = options->target->alignment};
    if (k.alignment == 0 || (k.alignment & (k.alignment - 1)))
        return ERR(ERR_BUG, "layout: alignment %zu of target %s is no power of two", k.alignment,
                   options->target->name);
    k.life = mem_alloc(p->n_values * sizeof *k.life);
    k.owner = mem_alloc(p->n_values * sizeof *k.owner);
    for (value_id v = 0; v < p->n_values; v++) k.owner[v] = v;
    layout_lifetimes(p, k.life);
    share_in_place(&k);
    extend_joined(p, options, k.life);
    make_blocks(&k);
    extend_host_lifetimes(&k, options);
    sort_blocks(&k);
    for (tier t = 0; t < TIER_COUNT; t++) {
        size_t end = stack(&k, t, false, 0), base = align_up(end, k.alignment), peak = pack_tier(&k, t, base);
        p->arena_bytes[t] = peak == base ? end : peak;
    }
    size_t *offset_of = mem_alloc(p->n_values * sizeof *offset_of);
    for (size_t i = 0; i < k.n_blocks; i++) offset_of[k.blocks[i].owner] = k.blocks[i].offset;
    for (value_id v = 1; v < p->n_values; v++) {
        size_t inside;
        value_id root = program_root(p, v, &inside);
        bool used = k.life[root].first <= k.life[root].last;
        p->values[v].in_place_of = owner_of(&k, v) == v ? NO_VALUE : owner_of(&k, v);
        p->values[v].offset = used ? offset_of[owner_of(&k, root)] + inside : VALUE_NOT_PLACED;
    }
    free(offset_of);
    free(k.in_order);
    free(k.blocks);
    free(k.owner);
    free(k.life);
    return OK;
}
