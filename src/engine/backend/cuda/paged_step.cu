/* paged_step.cu - attention of a decode step in one kernel: q and k are rotated (and normed before), k and v go to their pages,
 * every token attends through the page table, and the splits of its positions are joined.
 *
 * The query heads of one kv head, for one token or for neighbouring tokens of one slot, are the rows of a tile. A team of four warps takes a
 * split: each has the scores of a quarter of its keys, tells the others, and then sums a quarter of the columns of the values. Two ways to
 * deal out the splits, by shape alone:
 *   side by side  few tokens: a cluster of blocks with three teams each has the splits of a tile, and joins them when all are there
 *   walking       many tokens: one team walks the splits of a tile, with the keys of the next under way, and joins as it goes
 * Keys are under way before the kernels in front are done, whatever lies there; what this step itself has for the cache is
 * put over them afterwards. Scores of a split, their sums and the way splits join are those of paged_device.cuh and paged_mma.cu: the
 * same bits.
 *
 * Few multiprocessors run this once a layer, so its code comes from far away: as few instructions as possible behind the wait. */
#include "backend/cuda/paged_step.cuh"

using namespace paged_step;

namespace {

enum { TEAMS_MOST = 3, CLUSTER_MOST = 4 }; /* teams of a block, blocks of a cluster */
enum { MULTIPROCESSORS = 132, ROUNDS_MOST = 8, GRID_DEEPEST = 65535 };
/* Clusters take so many blocks in all, one a multiprocessor: of the groups that multiprocessors stand in, of 16 or 18, some are left over.
 * Where there are more, the blocks of a multiprocessor walk with so many teams and splits under way. */
enum { CLUSTER_BLOCKS = 99, WALK_TEAMS = 3, WALK_STAGES = 6 };
enum { SCORES_BYTES = ROWS * KEYS * (int)sizeof(float) }; /* of a split */

/* Sums of a split: pieces of 16 columns, the team's warps in turn. A lane has a pair of each half of a piece's columns. */
template <int D> struct split_pieces {
    enum { ALL = D / 16, PIECES = (ALL + TEAM - 1) / TEAM, PAIRS = 2 * PIECES, PAIR_BYTES = WARP * 8 };
};
/* Where the splits of a cluster meet: of each its pieces that a block has, then the states of all. */
template <int D> struct meeting_bytes {
    enum { PLACES = CLUSTER_MOST * TEAMS_MOST, PIECE = 4 * split_pieces<D>::PAIR_BYTES };
    /* Of a cluster of n blocks. */
    static constexpr int pieces(int n) { return n * TEAMS_MOST * ((split_pieces<D>::ALL + n - 1) / n); }
    static constexpr int larger(int a, int b) { return a > b ? a : b; }
    static constexpr int SUMS = PIECE * larger(pieces(2), larger(pieces(3), pieces(4))),
                         BYTES = SUMS + PLACES * ROWS * 8;
};
/* The total that walking teams hand on: of a thread its four columns of two rows of each pair, and two states. */
template <int D> struct relay_bytes {
    enum { BYTES = (split_pieces<D>::PAIRS + 1) * TEAM_THREADS * 16 };
};

/* What a block has in shared memory, in this order: stages of keys and values, queries, scores of every team, sums that splits meet in,
 * the slot's token, rows of the tile, barriers of stages and of the meeting. */
template <int D> constexpr uint32_t shared_bytes(int n_teams, int n_stages, int sums) {
    return (uint32_t)n_stages * (2 * tile_bytes<D>(KEYS) + 16) + tile_bytes<D>(ROWS) +
           (uint32_t)(n_teams * SCORES_BYTES + sums + 4 * D + ROWS * 12 + 8);
}

#if WGMMA_HERE

/* ---- one split, and how they join ------------------------------------------------------------------------------------ */

/* One value after the other: few models have a cap, and for all of them its code would lie in the way. */
__device__ inline void cap_quarter(float softcap, float scale, float (&s)[2][4]) {
    const struct { float softcap, scale; } a = {kept_here(softcap), kept_here(scale)};
#pragma unroll 1
    for (int n = 0; n < 8; n++) {
        const float capped = cap_score(a, s[0][0]);
#pragma unroll
        for (int i = 0; i < 7; i++) s[i / 4][i % 4] = s[(i + 1) / 4][(i + 1) % 4];
        s[1][3] = capped;
    }
}

/* Scores of this warp's quarter of a tile's keys from k0 on, as product_of_rows has them; -inf where a row does not see one. */
template <typename E, int D, bool BOXES>
__device__ void score_quarter(float (&s)[2][4], const launch_paged &a, uint32_t q_tile, uint32_t k_tile, int k0,
                              const tile_row *rows, bool all_seen, const team_place &t) {
    const int lane = t.lane;
#pragma unroll
    for (int i = 0; i < 8; i++) s[i / 4][i % 4] = 0;
    const int row = t.warp * 16 + lane % 8 + lane / 16 * 8, odd = lane / 8 % 2;
    const uint32_t k_start = kept_here(k_tile + key_tile_at<D, BOXES>(row, odd)),
                   q_start = kept_here(q_tile + tile_at<D>(lane % 16, lane / 16));
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
        uint32_t q[4], k[4];
        if constexpr (D % 64 == 0) {
            load_matrices(q, step_at<false>(q_start, step));
            load_matrices(k, step_at<BOXES>(k_start, step));
        } else {
            fragment_rows<D>(q, q_tile, 0, step, lane);
            load_matrices(k, k_tile + key_tile_at<D, BOXES>(row, 2 * step + odd));
        }
        mma<E>(s[0], q, k[0], k[1]);
        mma<E>(s[1], q, k[2], k[3]);
    }
    if (a.softcap > 0) cap_quarter(a.softcap, a.scale, s);
    if (all_seen) return; /* by every row that there is */
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int position = rows[half * 8 + lane / 4].position, start = first_seen(a, position);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int key = k0 + t.warp * 16 + i / 2 * 8 + lane % 4 * 2 + i % 2;
            if (key > position || key < start) s[i / 2][2 * half + i % 2] = -INFINITY;
        }
    }
}

/* Scores of a team: lane by lane what each warp has of half a tile's rows; so a lane finds those of its own rows. */
__device__ inline uint32_t scores_at(const team_place &t, int half, int warp) {
    return t.scores + (uint32_t)((half * TEAM + warp) * WARP + t.lane) * 16;
}
__device__ inline void give_scores(const float (&s)[2][4], const team_place &t, bool upper) {
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (half == 0 || upper)
            store_shared_16(scores_at(t, half, t.warp),
                            make_uint4(__float_as_uint(s[0][2 * half]), __float_as_uint(s[0][2 * half + 1]),
                                       __float_as_uint(s[1][2 * half]), __float_as_uint(s[1][2 * half + 1])));
}

/* Weights of all keys of the split for half the rows, rounded, as a left operand has them. */
template <typename E>
__device__ softmax_state take_weights(uint32_t (&weights)[KEYS / 16][4], const team_place &t, int half, float factor) {
    float s[1][KEYS / 8][4];
    row_state state = {-INFINITY, 0};
#pragma unroll
    for (int w = 0; w < TEAM; w++) {
        const uint4 raw = load_shared_16(scores_at(t, half, w));
        s[0][2 * w][2 * half] = __uint_as_float(raw.x), s[0][2 * w][2 * half + 1] = __uint_as_float(raw.y);
        s[0][2 * w + 1][2 * half] = __uint_as_float(raw.z), s[0][2 * w + 1][2 * half + 1] = __uint_as_float(raw.w);
    }
    softmax_row<1, KEYS>(s, 0, half, state, factor);
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++) {
        weights[step][half] = pack<E>(s[0][2 * step][2 * half], s[0][2 * step][2 * half + 1]);
        weights[step][2 + half] = pack<E>(s[0][2 * step + 1][2 * half], s[0][2 * step + 1][2 * half + 1]);
    }
    return {state.max * factor, quad_sum(state.sum)};
}

template <int D> struct split_sums : split_pieces<D> {
    using split_pieces<D>::PIECES;
    float sum[PIECES][2][4];
    softmax_state state[2];

    __device__ float2 pair(int i, int half) const {
        return make_float2(sum[i / 2][i % 2][2 * half], sum[i / 2][i % 2][2 * half + 1]);
    }
    static __device__ bool has(int piece, int warp) { return D / 16 % TEAM == 0 || piece * TEAM + warp < D / 16; }
    /* Where a lane's pair of the piece's columns begins. */
    static __device__ int column(int piece, int n, const team_place &t) {
        return (piece * TEAM + t.warp) * 16 + n * 8 + t.lane % 4 * 2;
    }
};

/* sum = w v, as product_with_rows has it. */
template <typename E, int D, bool BOXES>
__device__ void sum_values(split_sums<D> &out, const uint32_t (&weights)[KEYS / 16][4], uint32_t v_tile,
                           const team_place &t) {
#pragma unroll
    for (int i = 0; i < split_sums<D>::PIECES * 8; i++) out.sum[i / 8][i / 4 % 2][i % 4] = 0;
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++)
#pragma unroll
        for (int piece = 0; piece < split_sums<D>::PIECES; piece++) {
            if (!out.has(piece, t.warp)) continue;
            uint32_t v[4];
            load_matrices_transposed(
                v, v_tile + key_tile_at<D, BOXES>(step * 16 + t.lane % 16, 2 * (piece * TEAM + t.warp) + t.lane / 16));
            mma<E>(out.sum[piece][0], weights[step], v[0], v[1]);
            mma<E>(out.sum[piece][1], weights[step], v[2], v[3]);
        }
}

/* What a team does with a split. */
struct split_task {
    int split, later; /* later: whose keys and values come where these were, -1: none */
    bool more;        /* the team has another one */
};

/* READY: all that belongs to the tile is there. */
template <bool READY, typename E, int D, bool BOXES>
__device__ void attend_split(split_sums<D> &out, const key_tiles<E, D, BOXES> &tiles, const launch_paged_step &a,
                             const step_rows &b, const CUtensorMap *cache, uint32_t q_tile, const tile_row *rows,
                             const split_task &task, int n_tokens, uint32_t aside, const team_place &t) {
    const int k0 = task.split * KEYS;
    const bool whole = k0 >= b.least && k0 + KEYS - 1 <= b.last, upper = b.n_rows > 8;
    const bool has_new = !READY && k0 + KEYS > b.first_new;
    if (!READY) tiles.wait_keys();
    if (has_new) {
        tiles.wait_values();
        if (!BOXES) t.meet(); /* zeros are written where keys were not seen */
        if (t.warp == TEAM - 1) {
            if (b.n_new == 1) put_aside<E, D, BOXES>(tiles, aside, b.last - k0, t.lane);
            else put_several<E, D, BOXES>(tiles, a, b, k0, n_tokens, t.lane);
        }
    }
    if (has_new || (!BOXES && !READY)) t.meet();
    const key_places<D, BOXES> later(a.paged, b, task.later >= 0 ? task.later * KEYS : -1, t);
    float s[2][4];
    score_quarter<E, D, BOXES>(s, a.paged, q_tile, tiles.k, k0, rows, whole && b.n == 1, t);
    give_scores(s, t, upper);
    if (!READY) {
        tiles.wait_values();
        if (!whole) tiles.clear_unseen(b, k0, t.thread);
    }
    if (BOXES && task.later >= 0) fence_bulk(); /* keys were read, and perhaps written, before others come there */
    t.meet();
    if (task.later >= 0) tiles.fetch(false, later, a.paged, cache, t);
    uint32_t weights[KEYS / 16][4];
    const float factor = score_scale(a.paged);
    out.state[0] = take_weights<E>(weights, t, 0, factor);
    if (upper) out.state[1] = take_weights<E>(weights, t, 1, factor);
    else
#pragma unroll
        for (int step = 0; step < KEYS / 16; step++) weights[step][1] = weights[step][3] = 0;
    sum_values<E, D, BOXES>(out, weights, tiles.v(), t);
    if (!task.more) return;
    if (BOXES && task.later >= 0) fence_bulk();
    t.meet(); /* all have read scores and values */
    if (task.later >= 0) tiles.fetch(true, later, a.paged, cache, t);
}

/* Sums and states of a split into scratch, for the rows that see it. */
template <int D>
__device__ void give_split(const launch_paged &a, const step_rows &b, const tile_row *rows, int split, int n_splits,
                           const split_sums<D> &of, const team_place &t) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (half == 1 && b.n_rows <= 8) return;
        const int r = half * 8 + t.lane / 4, position = rows[r].position;
        if (split * KEYS > position || (split + 1) * KEYS <= first_seen(a, position)) continue;
        const int64_t partial = (int64_t)rows[r].y * n_splits + split; /* as partial_of */
        float *values = partial_values(a, partial);
#pragma unroll
        for (int i = 0; i < of.PAIRS; i++)
            if (of.has(i / 2, t.warp)) *(float2 *)(values + of.column(i / 2, i % 2, t)) = of.pair(i, half);
        if (t.warp == 0 && t.lane % 4 == 0) *partial_state(a, partial, n_splits) = of.state[half];
    }
}

/* Two columns of a row over the splits that it sees, in order. */
struct joined_pair {
    softmax_state total = {-INFINITY, 0};
    float2 sum = {0, 0};
    /* there: else nothing is added. Without a branch, so that the powers of several splits are under way together. */
    __device__ void add(float2 state, float2 values, bool there = true) {
        softmax_state after = total;
        const join_factors f = join(after, softmax_state{state.x, state.y});
        total.max = there ? after.max : total.max;
        total.sum = there ? after.sum : total.sum;
        sum.x = there ? fmaf(sum.x, f.total, values.x * f.part) : sum.x;
        sum.y = there ? fmaf(sum.y, f.total, values.y * f.part) : sum.y;
    }
    template <typename E> __device__ void store(E *y) const {
        *(uint32_t *)y = pack<E>(sum.x / total.sum, sum.y / total.sum);
    }
};

/* All splits of a row have been given: what other blocks wrote to scratch is in L2. */
template <typename E, int D>
__device__ void join_scratch(const launch_paged &a, const step_rows &b, const tile_row *rows, int n_splits, int first,
                             int step) {
    for (int i = first; i < b.n_rows * (D / 2); i += step) {
        const tile_row row = rows[i / (D / 2)];
        const int column = i % (D / 2) * 2;
        joined_pair joined;
#pragma unroll 4
        for (int split = first_seen(a, row.position) / KEYS; split <= row.position / KEYS; split++) {
            const int64_t partial = (int64_t)row.y * n_splits + split;
            joined.add(__ldcg((const float2 *)partial_state(a, partial, n_splits)),
                       __ldcg((const float2 *)(partial_values(a, partial) + column)));
        }
        joined.store((E *)a.y + (int64_t)row.y * D + column);
    }
}

/* A cluster that has all splits at once sends them to each other: block `rank` has the pieces rank, rank + n_blocks, .. of every split,
 * its barrier counts the bytes, and no block waits for another but for those. */
template <int D> struct meeting {
    using P = split_pieces<D>;
    using M = meeting_bytes<D>;
    uint32_t sums, barrier; /* of this block */
    const unsigned char *here;
    int rank, n_blocks; /* 2 to 4 */

    __device__ int nth_of(int piece) const { return n_blocks == 3 ? piece * 11 >> 5 : piece >> n_blocks / 2; }
    __device__ uint32_t place_bytes() const { return (uint32_t)(nth_of(P::ALL - 1) + 1) * M::PIECE; }
    __device__ int n_pieces() const { return nth_of(P::ALL - 1 - rank) + 1; } /* of this block */
    /* Once, before anything comes. */
    __device__ void expect(int n_places, bool upper) const {
        const int of_half = n_pieces() * 2 * P::PAIR_BYTES + ROWS / 2 * 8;
        barrier_arrive_expecting(barrier, (uint32_t)(n_places * (upper ? 2 : 1) * of_half));
    }
    __device__ void send(const split_sums<D> &of, int place, bool upper, const team_place &t) const {
#pragma unroll
        for (int i = 0; i < P::PIECES; i++) {
            if (!of.has(i, t.warp)) continue;
            const int piece = i * TEAM + t.warp, nth = nth_of(piece);
            const uint32_t to = (uint32_t)(piece - nth * n_blocks), there = cluster_address(sums, to),
                           counts = cluster_address(barrier, to);
            const uint32_t first =
                there + (uint32_t)place * place_bytes() + (uint32_t)nth * M::PIECE + (uint32_t)t.lane * 8;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                if (half == 1 && !upper) break;
                cluster_send(first + (uint32_t)(half * 2) * P::PAIR_BYTES, of.pair(2 * i, half), counts);
                cluster_send(first + (uint32_t)(half * 2 + 1) * P::PAIR_BYTES, of.pair(2 * i + 1, half), counts);
                if (nth == 0 && t.lane % 4 == 0) /* the first piece of a block brings the state */
                    cluster_send(there + M::SUMS + (uint32_t)(place * ROWS + half * 8 + t.lane / 4) * 8,
                                 make_float2(of.state[half].max, of.state[half].sum), counts);
            }
        }
    }
    /* A warp of the block has a pair of columns of half the rows. */
    template <typename E>
    __device__ void join(const launch_paged &a, const step_rows &b, const tile_row *rows, bool upper, int lane) const {
        const int n = 2 * n_pieces();
        for (int i = (int)(threadIdx.x / WARP); i < (upper ? 2 * n : n); i += TEAMS_MOST * TEAM) {
            const int half = i >= n, nth = (i - half * n) / 2, odd = (i - half * n) % 2;
            const int column = (nth * n_blocks + rank) * 16 + odd * 8 + lane % 4 * 2;
            const tile_row row = rows[half * 8 + lane / 4];
            const unsigned char *values = here + nth * M::PIECE + (half * 2 + odd) * P::PAIR_BYTES + lane * 8;
            const float2 *states = (const float2 *)(here + M::SUMS + (half * 8 + lane / 4) * 8);
            const int first = b.least / KEYS, from = first_seen(a, row.position) / KEYS - first,
                      to = row.position / KEYS - first;
            if (row.position < 0) continue;
            float2 value[M::PLACES], state[M::PLACES];
#pragma unroll
            for (int place = 0; place < M::PLACES; place++) { /* all at once */
                const bool there = place >= from && place <= to;
                value[place] = there ? *(const float2 *)(values + place * place_bytes()) : make_float2(0, 0);
                state[place] = there ? states[place * ROWS] : make_float2(0, 0);
            }
            joined_pair joined;
#pragma unroll
            for (int place = 0; place < M::PLACES; place++)
                joined.add(state[place], value[place], place >= from && place <= to);
            joined.store((E *)a.y + (int64_t)row.y * D + column);
        }
    }
};

/* A split on to the total of those before it. */
template <int D> __device__ void join_split(split_sums<D> &total, const split_sums<D> &of, bool upper) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (half == 1 && !upper) return;
        const join_factors f = join(total.state[half], of.state[half]);
#pragma unroll
        for (int i = 0; i < split_sums<D>::PIECES * 4; i++) {
            float &sum = total.sum[i / 4][i / 2 % 2][2 * half + i % 2];
            sum = fmaf(sum, f.total, of.sum[i / 4][i / 2 % 2][2 * half + i % 2] * f.part);
        }
    }
}
template <typename E, int D>
__device__ void store_joined(const launch_paged &a, const tile_row *rows, const split_sums<D> &total, bool upper,
                             const team_place &t) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const tile_row row = rows[half * 8 + t.lane / 4];
        if (half == 1 && !upper) return;
        if (row.position < 0) continue;
        const float sum = total.state[half].sum;
#pragma unroll
        for (int i = 0; i < 2 * split_sums<D>::PIECES; i++)
            if (total.has(i / 2, t.warp))
                *(uint32_t *)((E *)a.y + (int64_t)row.y * D + total.column(i / 2, i % 2, t)) =
                    pack<E>(total.sum[i / 2][i % 2][2 * half] / sum, total.sum[i / 2][i % 2][2 * half + 1] / sum);
    }
}

/* Teams that walk together take splits in turn; each waits for the total of those before its own and hands it on, thread by thread. */
template <int D> struct relay {
    enum { PAIRS = split_pieces<D>::PAIRS, FIRST_BARRIER = 1 + TEAMS_MOST };
    uint32_t at;
    int n_teams;
    __device__ uint32_t word(int i, const team_place &t) const {
        return at + (uint32_t)(i * TEAM_THREADS + t.thread) * 16;
    }
    __device__ void take(split_sums<D> &total, const team_place &t) const {
        threads_meet(FIRST_BARRIER + t.nth, 2 * TEAM_THREADS);
#pragma unroll
        for (int i = 0; i <= PAIRS; i++) {
            const uint4 raw = load_shared_16(word(i, t));
            float *four = i < PAIRS ? total.sum[i / 2][i % 2] : &total.state[0].max;
            four[0] = __uint_as_float(raw.x), four[1] = __uint_as_float(raw.y);
            four[2] = __uint_as_float(raw.z), four[3] = __uint_as_float(raw.w);
        }
    }
    __device__ void hand_on(const split_sums<D> &total, const team_place &t) const {
#pragma unroll
        for (int i = 0; i <= PAIRS; i++) {
            const float *four = i < PAIRS ? total.sum[i / 2][i % 2] : &total.state[0].max;
            store_shared_16(word(i, t), make_uint4(__float_as_uint(four[0]), __float_as_uint(four[1]),
                                                   __float_as_uint(four[2]), __float_as_uint(four[3])));
        }
        threads_come(FIRST_BARRIER + (t.nth + 1 == n_teams ? 0 : t.nth + 1), 2 * TEAM_THREADS);
    }
};

/* ---- blocks ------------------------------------------------------------------------------------------------------- */

/* What this block has to do: the token `b.token` and its neighbours of the same slot up to the next multiple of shape.tokens;
 * blocks of those find that there is nothing to do. All that is known of tokens is asked for at once, a lane has one of them, the
 * first the one before. False: there is nothing to attend to, and rows without a slot are zeros. The same for all blocks of a cluster. */
template <typename E, int D>
__device__ bool rows_find(step_rows &b, tile_row *rows, const launch_paged &a, const row_shape &shape, int lane) {
    const int first = (int)blockIdx.z, nth = first % shape.tokens, token = first - 1 + lane;
    const bool in_table = token >= 0 && token < (int)a.N && lane <= shape.tokens;
    const int slot_there = in_table ? a.slots[token] : -2, at = in_table ? -a.doc_start[token] : 0;
    const int n_tokens = (int)token_count(a);
    const int slot = token < n_tokens ? slot_there : -2; /* no token */
    b.part = (int)blockIdx.x % shape.parts;
    b.g = (int)blockIdx.x / shape.parts;
    b.token = first;
    b.slot = __shfl_sync(0xffffffff, slot, 1);
    const bool served = first >= n_tokens || (nth != 0 && __shfl_sync(0xffffffff, slot, 0) == b.slot);
    const uint32_t others = ~(__ballot_sync(0xffffffff, slot == b.slot) >> 1); /* bit n: token + n is of another slot */
    b.n = served ? 0 : min(__ffs((int)others) - 1, shape.tokens - nth);
    if (b.n == 0) {
        chain_wait();
        return false;
    }
    const int n_heads = min(shape.heads, shape.group - b.part * shape.heads);
    const int r = (int)threadIdx.x, nth_token = r / shape.heads, nth_head = r % shape.heads;
    const bool there = nth_token < b.n && nth_head < n_heads;
    const int head = b.g * shape.group + b.part * shape.heads + nth_head;
    const int y = (first + nth_token) * a.H + head;
    b.n_rows = (b.n - 1) * shape.heads + n_heads;
    if (b.slot < 0) {
        chain_wait();
        if (cluster_rank() == 0 && r < ROWS && there)
            for (int i = 0; i < D / 8; i++) *(uint4 *)((E *)a.y + (int64_t)y * D + i * 8) = make_uint4(0, 0, 0, 0);
        return false;
    }
    const bool own = lane >= 1 && lane <= b.n;
    if (own && (at < 0 || at >= a.pages_per_slot * a.page_size || b.slot >= a.n_slots)) __trap();
    b.last = __reduce_max_sync(0xffffffff, own ? at : 0);
    b.least = __reduce_min_sync(0xffffffff, own ? first_seen(a, at) : ATTENTION_NO_WINDOW);
    const int position = __shfl_sync(0xffffffff, at, 1 + min(nth_token, b.n - 1));
    if (r < ROWS) rows[r] = {there ? position : -1, y + (first + nth_token) * 2 * a.G, y};
    return true;
}

template <typename E, int D, bool BOXES> struct block_memory {
    enum { STAGE = 2 * tile_bytes<D>(KEYS) };
    uint32_t tiles, queries, scores, sums, aside, barriers, meets;
    unsigned char *first;
    tile_row *rows;
    int n_stages;

    __device__ block_memory(unsigned char *shared, int n_teams, int stages, uint32_t n_sums)
        : first(shared), n_stages(stages) {
        tiles = shared_address(shared), queries = tiles + (uint32_t)n_stages * STAGE;
        scores = queries + tile_bytes<D>(ROWS), sums = scores + (uint32_t)n_teams * SCORES_BYTES;
        aside = sums + n_sums;
        rows = (tile_row *)(shared + (aside - tiles) + 4 * D);
        barriers = aside + 4 * D + ROWS * (uint32_t)sizeof(tile_row), meets = barriers + (uint32_t)n_stages * 16;
    }
    __device__ key_tiles<E, D, BOXES> stage(int nth, int round) const {
        return {tiles + (uint32_t)nth * STAGE, barriers + (uint32_t)nth * 16, round};
    }
    /* Rows were written, too: all threads come here. */
    __device__ void open() const {
        if ((int)threadIdx.x <= 2 * n_stages) {
            barrier_init(barriers + threadIdx.x * 8, 1);
            barriers_publish();
        }
        __syncthreads();
    }
};

__device__ inline team_place team_of(uint32_t scores) {
    const uint32_t nth = threadIdx.x / TEAM_THREADS, in_team = threadIdx.x % TEAM_THREADS;
    return {(int)nth, (int)(in_team / WARP), (int)(in_team % WARP), (int)in_team, scores + nth * SCORES_BYTES};
}

#endif

/* Splits side by side: the teams of a cluster have one each. */
template <typename E, int D, bool BOXES>
__global__ void __launch_bounds__(TEAMS_MOST *TEAM_THREADS, 1)
    attention_step(const __grid_constant__ launch_paged_step a, const __grid_constant__ CUtensorMap cache,
                   const __grid_constant__ row_shape shape, int n_splits) {
#if WGMMA_HERE
    extern __shared__ __align__(1024) unsigned char shared[];
    const launch_paged &p = a.paged;
    const block_memory<E, D, BOXES> m(shared, TEAMS_MOST, TEAMS_MOST, meeting_bytes<D>::BYTES);
    const team_place t = team_of(m.scores);
    const int rank = (int)cluster_rank(), n_blocks = (int)cluster_size(), n_tokens = (int)token_count(p);
    const meeting<D> meets = {m.sums, m.meets, m.first + (m.sums - m.tiles), rank, n_blocks};
    step_rows b;
    chain_next();
    if (BOXES && threadIdx.x == 0) prefetch_map(&cache);
    if (!rows_find<E, D>(b, m.rows, p, shape, t.lane)) return;
    m.open();
    cluster_arrive_relaxed();

    key_tiles<E, D, BOXES> tiles = m.stage(t.nth, 0);
    const int first_split = b.least / KEYS, last_split = b.last / KEYS, in_round = n_blocks * TEAMS_MOST;
    int split = first_split + t.nth * n_blocks + rank; /* blocks in turn: each has as few teams at work as can be */
    const bool at_once = last_split - first_split<in_round, upper = b.n_rows> 8;
    if (split <= last_split) tiles.fetch_both(p, b, &cache, split * KEYS, t);
    if (at_once && threadIdx.x == 0) meets.expect(last_split - first_split + 1, upper);
    find_new(b, p, n_tokens, t.lane);
    clear_queries<D>(m.queries, m.rows);
    if (split <= last_split) {
        if (BOXES) tiles.wait_keys();
        tiles.wait_values();
        tiles.clear_unseen(b, split * KEYS, t.thread);
    }
    cluster_wait(); /* barriers of all blocks are there */
    const bool has_key =
        t.warp == TEAM - 1 && b.n_new == 1 && split <= last_split && (last_split - split) % in_round == 0;
    bring_heads<E, D, BOXES>(tiles, m.queries, m.aside, a, b, m.rows, has_key,
                             split == last_split ? b.last - split * KEYS : -1, t.lane);
    if (t.warp == TEAM - 1 && b.n_new > 1 && split <= last_split && (split + 1) * KEYS > b.first_new)
        put_several<E, D, BOXES>(tiles, a, b, split * KEYS, n_tokens, t.lane);
    __syncthreads();
    split_sums<D> of;
    if (at_once) {
        if (split <= last_split) {
            attend_split<true, E, D, BOXES>(of, tiles, a, b, &cache, m.queries, m.rows, {split, -1, false}, n_tokens,
                                            m.aside, t);
            meets.send(of, split - first_split, upper, t);
        }
        barrier_wait_cluster(meets.barrier, 0);
        meets.template join<E>(p, b, m.rows, upper, t.lane);
        return;
    }
    for (; split <= last_split; tiles.round++, split += in_round) {
        const bool more = split + in_round <= last_split;
        attend_split<false, E, D, BOXES>(of, tiles, a, b, &cache, m.queries, m.rows,
                                         {split, more ? split + in_round : -1, more}, n_tokens, m.aside, t);
        give_split<D>(p, b, m.rows, split, n_splits, of, t);
    }
    cluster_sync();
    join_scratch<E, D>(p, b, m.rows, n_splits, rank * (int)blockDim.x + (int)threadIdx.x, n_blocks * (int)blockDim.x);
#endif
}

/* The teams of a block walk all splits of its tile, in turn. */
template <typename E, int D, bool BOXES, int TEAMS>
__global__ void __launch_bounds__(TEAMS *TEAM_THREADS, 4 / TEAMS)
    attention_walk(const __grid_constant__ launch_paged_step a, const __grid_constant__ CUtensorMap cache,
                   const __grid_constant__ row_shape shape, int n_stages) {
#if WGMMA_HERE
    extern __shared__ __align__(1024) unsigned char shared[];
    const launch_paged &p = a.paged;
    const int n_tokens = (int)token_count(p);
    const block_memory<E, D, BOXES> m(shared, TEAMS, n_stages, TEAMS > 1 ? relay_bytes<D>::BYTES : 0);
    const team_place t = team_of(m.scores);
    const relay<D> totals = {m.sums, TEAMS};
    step_rows b;
    chain_next();
    if (BOXES && threadIdx.x == 0) prefetch_map(&cache);
    if (!rows_find<E, D>(b, m.rows, p, shape, t.lane)) return;
    m.open();

    const int first_split = b.least / KEYS, last_split = b.last / KEYS;
    for (int i = t.nth; i < n_stages && first_split + i <= last_split; i += TEAMS)
        m.stage(i, 0).fetch_both(p, b, &cache, (first_split + i) * KEYS, t);
    find_new(b, p, n_tokens, t.lane);
    clear_queries<D>(m.queries, m.rows);
    const bool has_key = t.nth == 0 && t.warp == TEAM - 1 && b.n_new == 1, upper = b.n_rows > 8;
    bring_heads<E, D, BOXES>(m.stage(0, 0), m.queries, m.aside, a, b, m.rows, has_key, -1, t.lane);
    __syncthreads();
    split_sums<D> total = {};
    total.state[0] = total.state[1] = {-INFINITY, 0};
    for (int split = first_split + t.nth, stage = t.nth, round = 0; split <= last_split; split += TEAMS) {
        split_sums<D> of;
        const split_task task = {split, split + n_stages <= last_split ? split + n_stages : -1,
                                 split + TEAMS <= last_split};
        attend_split<false, E, D, BOXES>(of, m.stage(stage, round), a, b, &cache, m.queries, m.rows, task, n_tokens,
                                         m.aside, t);
        if (TEAMS > 1 && split > first_split) totals.take(total, t);
        join_split(total, of, upper);
        if (split == last_split) store_joined<E, D>(p, m.rows, total, upper, t);
        else if (TEAMS > 1) totals.hand_on(total, t);
        stage += TEAMS;
        if (stage >= n_stages) stage -= n_stages, round++;
    }
#endif
}

/* ---- launches ------------------------------------------------------------------------------------------------------- */

int64_t tiles_of(const launch_paged *a) { return a->N * a->G * row_shape_of(*a, ROWS).parts; }
int64_t splits_of(const launch_paged *a) { return (a->page_size * a->pages_per_slot + KEYS - 1) / KEYS; }

dim3 grid_of(const launch_paged *a, unsigned cluster) {
    return dim3((unsigned)(a->G * row_shape_of(*a, ROWS).parts), cluster, (unsigned)a->N);
}

/* Blocks for one tile: as many as have a split, where there are so many multiprocessors that the teams of a block need not share one.
 * Changes no bit. */
unsigned cluster_of(const launch_paged *a) {
    const int of_block = tiles_of(a) * CLUSTER_MOST <= CLUSTER_BLOCKS ? 1 : TEAMS_MOST;
    const int64_t n = (splits_of(a) + of_block - 1) / of_block;
    return (unsigned)(n < 2 ? 2 : n > CLUSTER_MOST ? CLUSTER_MOST : n);
}

/* Too many tiles for a cluster each. */
bool walks(const launch_paged *a) { return tiles_of(a) * cluster_of(a) > CLUSTER_BLOCKS; }

/* Of a walking block: as many as fit beside those of the other blocks of a multiprocessor. */
struct walk_shape {
    int teams, stages;
};
walk_shape walk_of(const launch_paged *a, bool boxes) {
    const int blocks = (int)((tiles_of(a) + MULTIPROCESSORS - 1) / MULTIPROCESSORS);
    walk_shape w = {WALK_TEAMS / blocks > 1 ? WALK_TEAMS / blocks : 1,
                    WALK_STAGES / blocks > 1 ? WALK_STAGES / blocks : 1};
    if (!boxes) w.stages = w.teams; /* copies of lanes are waited for in the order of one stage */
    return w;
}

template <typename E, int D, bool BOXES, int TEAMS>
void launch_walk(const launch_paged_step *a, const CUtensorMap &cache, walk_shape w, cudaStream_t s) {
    launch_chained(attention_walk<E, D, BOXES, TEAMS>, grid_of(&a->paged, 1), dim3(TEAMS * TEAM_THREADS),
                   shared_bytes<D>(TEAMS, w.stages, TEAMS > 1 ? relay_bytes<D>::BYTES : 0), 1, s, *a, cache,
                   row_shape_of(a->paged, ROWS), w.stages);
}

template <typename E, int D, bool BOXES> void launch_step(const launch_paged_step *a, cudaStream_t s) {
    const launch_paged *p = &a->paged;
    tensor_box box = {.data = p->cache,
                      .columns = D,
                      .rows = p->n_pages * 2 * p->G * p->page_size,
                      .sequences = 1,
                      .box_columns = 64,
                      .box_rows = (int)(p->page_size < KEYS ? p->page_size : KEYS),
                      .type = p->type};
    const CUtensorMap cache = BOXES ? tensor_map_make(&box) : CUtensorMap{};
    if (walks(p)) {
        const walk_shape w = walk_of(p, BOXES);
        if (w.teams == 1) launch_walk<E, D, BOXES, 1>(a, cache, w, s);
        else if (w.teams == 2) launch_walk<E, D, BOXES, 2>(a, cache, w, s);
        else launch_walk<E, D, BOXES, 3>(a, cache, w, s);
        return;
    }
    const unsigned cluster = cluster_of(p);
    launch_chained(attention_step<E, D, BOXES>, grid_of(p, cluster), dim3(TEAMS_MOST * TEAM_THREADS),
                   shared_bytes<D>(TEAMS_MOST, TEAMS_MOST, meeting_bytes<D>::BYTES), cluster, s, *a, cache,
                   row_shape_of(*p, ROWS), (int)paged_split_count(p->N, p->n_slots, p->page_size * p->pages_per_slot));
}

template <typename E, int D> void attend(const launch_paged_step *a, cudaStream_t s) {
    const int64_t page = a->paged.page_size;
    if constexpr (D % 64 == 0) {
        if (page % KEYS == 0 ||
            (KEYS % page == 0 && page % 8 == 0)) { /* whole pages, of whole groups of swizzled rows */
            launch_step<E, D, true>(a, s);
            return;
        }
    }
    launch_step<E, D, false>(a, s);
}

} // namespace

/* Side by side, many positions of few tokens need more blocks than a cluster has, and scratch where they do not have all at once. */
extern "C" bool paged_step_takes(const launch_paged *a) {
    const bool shaped = a->type != LAUNCH_F32 && (a->D == 64 || a->D == 80 || a->D == 96 || a->D == 128);
    if (!shaped || a->N > a->n_slots || a->H % a->G != 0 || a->N > GRID_DEEPEST) return false;
    return walks(a) || (paged_split_count(a->N, a->n_slots, a->page_size * a->pages_per_slot) > 1 &&
                        splits_of(a) <= (int64_t)cluster_of(a) * TEAMS_MOST * ROUNDS_MOST);
}

extern "C" void launch_attention_step(const launch_paged_step *a, cudaStream_t s) {
    by_head(a->paged.type, a->paged.D,
            [&](auto zero, auto length) { attend<decltype(zero), decltype(length)::value>(a, s); });
}
