/* adamw.cu - AdamW on a parameter or a part of it, with states in fp32, bf16 or 8 bits.
 *
 * The order of operations is the one at the top of the host's adamw.c, the codes of 8-bit states those of its state8.h:
 * same bits on both sides. Everything is fp32 round to nearest, denormals kept, division and square root IEEE, fma
 * written where it is meant. noise.cuh says which thread has which elements. */
#include "backend/cuda/noise.cuh"

#include <float.h>

/* ---- the step ---------------------------------------------------------------------------------------------------- */

struct adamw_constants {
    float beta1, gm, beta2, gv, eps2, decay, rate;
};

DEVICE adamw_constants adamw_prepare(const launch_adamw_args &a) {
    const launch_scalars &s = *a.scalars;
    float s2 = __fsqrt_rn(s.bias2), factor = a.clip[LAUNCH_CLIP_FACTOR];
    adamw_constants k;
    k.beta1 = a.beta1;
    k.gm = (1.0f - a.beta1) * factor;
    k.beta2 = a.beta2;
    k.gv = __fsqrt_rn(1.0f - a.beta2) * factor;
    k.eps2 = a.eps * s2;
    k.decay = __fdiv_rn(a.weight_decay * s.bias1, s2);
    k.rate = __fdiv_rn(s.lr * a.lr_scale * s2, s.bias1);
    return k;
}

struct moments {
    float m, v, root; /* root: of v */
};

DEVICE float adamw_step(const adamw_constants &k, float x, moments *s, float g) {
    float t = k.gv * g;
    s->v = fmaf(t, t, k.beta2 * s->v);
    s->m = fmaf(k.beta1, s->m, k.gm * g);
    s->root = __fsqrt_rn(s->v);
    float u = fmaf(k.decay, x, __fdiv_rn(s->m, s->root + k.eps2));
    return fmaf(-k.rate, u, x);
}

/* ---- 8-bit states ------------------------------------------------------------------------------------------------ */

#define STATE8_M_LARGEST 61440.0f /* code 127 */
#define STATE8_M_LEAST 1.125f     /* code 1 */
#define STATE8_V_LARGEST 63488.0f /* code 255 */

DEVICE float state8_m(uint32_t code, float scale) {
    uint32_t size = code & 127u, bits = size ? (size << 20) + 0x3f800000u : 0;
    return __uint_as_float(bits | (code & 128u) << 24) * scale;
}
DEVICE float state8_v(uint32_t code, float scale) {
    float root = __uint_as_float((code << 19) + 0x3f800000u) * scale;
    return root * root;
}

struct state8_scale {
    float scale, inverse;
};
DEVICE state8_scale state8_scale_of(float largest, float code_largest) {
    if (largest > FLT_MAX) largest = FLT_MAX; /* an infinity takes the largest code and no neighbour with it */
    if (largest < 0x1p-100f) return {0, 0};
    return {__fdiv_rn(largest, code_largest), __fdiv_rn(code_largest, largest)};
}

/* Stochastic rounding to the leading bits of a float: `drop` low bits fall, the noise has 16. */
DEVICE uint32_t state8_round(float x, uint32_t noise, int drop, uint32_t code_largest) {
    uint32_t code = ((__float_as_uint(x) + (noise << (drop - 16))) >> drop) - (0x3f800000u >> drop);
    return code <= code_largest ? code : code_largest; /* the rounding of a scale may lift the largest by one */
}
DEVICE uint8_t state8_m_code(float m, float inverse, uint32_t noise) {
    uint32_t bits = __float_as_uint(m), sign = bits >> 24 & 128u;
    float x = __uint_as_float(bits & 0x7fffffffu) * inverse;
    /* between 0 and the smallest code: up with the chance x / smallest */
    if (x < STATE8_M_LEAST) return (uint8_t)(sign | ((float)(int)noise < x * (65536 / STATE8_M_LEAST)));
    return (uint8_t)(sign | state8_round(x, noise, 20, 127));
}
DEVICE uint8_t state8_v_code(float root, float inverse, uint32_t noise) {
    float x = root * inverse;
    return (uint8_t)state8_round(x < 1 ? 1.0f : x, noise, 19, 255); /* NaN stays NaN, and takes the largest code */
}

/* Steps over NaN, as the host's does. */
DEVICE float lanes_max(float x) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

/* ---- the op ------------------------------------------------------------------------------------------------------ */

/* A step that is left out: p becomes the copy of its master, for where p lives elsewhere it is not here yet. */
template <typename P, bool VECTOR> DEVICE void adamw_skipped(const launch_adamw_args &a, chunk_place chunk) {
    for (int turn = 0; turn < CHUNK_TURNS; turn++) {
        tile_place at = tile_at(chunk, turn);
        if (at.begin < 0 || at.begin >= a.n) continue;
#pragma unroll
        for (int q = 0; q < 2; q++) {
            int64_t i = at.first + 16 * q, left = a.n - i;
            quad<float> x = quad_load<VECTOR>((const float *)a.master + i, left);
            quad<P> p;
#pragma unroll
            for (int e = 0; e < 4; e++) narrow_exact(&p.e[e], x.e[e]);
            quad_store<VECTOR>((P *)a.p + i, p, left);
        }
    }
}

/* S: float, bf16 or uint8_t. MASTER: x is the master and p its rounded copy. */
template <typename P, bool MASTER> constexpr bool takes_noise = !MASTER && std::is_same_v<P, bf16>;
template <typename S> constexpr bool state_takes_noise = !std::is_same_v<S, float>;

/* WHOLE: no element of the chunk lies outside. */
template <typename P, typename G, typename S, bool MASTER, bool VECTOR, bool WHOLE>
DEVICE void adamw_tiles(const launch_adamw_args &a, const chunk_place &chunk, const adamw_constants &k,
                        const noise_key &param_key, const noise_key &states_key) {
    constexpr bool STOCHASTIC = takes_noise<P, MASTER>, NOISY_STATES = state_takes_noise<S>;
    constexpr bool CODES = std::is_same_v<S, uint8_t>;
    using X = std::conditional_t<MASTER, float, P>;
    X *x_data = MASTER ? (X *)a.master : (X *)a.p;
    for (int turn = 0; turn < CHUNK_TURNS; turn++) {
        tile_place at = tile_at(chunk, turn);
        if (!WHOLE && (at.begin < 0 || at.begin >= a.n)) continue; /* the same for all lanes */
        quad<X> x[2];
        quad<G> g[2];
        quad<S> m[2], v[2];
        float m_scale = 0, v_scale = 0;
        if (CODES) {
            m_scale = a.m_scale[at.begin / TILE];
            v_scale = a.v_scale[at.begin / TILE];
        }
#pragma unroll
        for (int q = 0; q < 2; q++) {
            int64_t i = at.first + 16 * q, left = a.n - i;
            x[q] = quad_load<VECTOR, WHOLE>(x_data + i, left);
            g[q] = quad_load<VECTOR, WHOLE>((const G *)a.g + i, left);
            m[q] = quad_load<VECTOR, WHOLE>((const S *)a.m + i, left);
            v[q] = quad_load<VECTOR, WHOLE>((const S *)a.v + i, left);
        }
        quad<P> p[2];
        moments s[2][4];
        float m_most = 0, root_most = 0;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            uint32_t word = STOCHASTIC ? noise_value_word(param_key, at.r + e) : 0;
#pragma unroll
            for (int q = 0; q < 2; q++) {
                moments &t = s[q][e];
                if constexpr (CODES) t = {state8_m(m[q].e[e], m_scale), state8_v(v[q].e[e], v_scale), 0};
                else t = {widen(m[q].e[e]), widen(v[q].e[e]), 0};
                if (CODES && !WHOLE && at.first + 16 * q + e >= a.n) t = {0, 0, 0}; /* a v code of 0 is not 0 */
                float next = adamw_step(k, widen(x[q].e[e]), &t, widen(g[q].e[e]));
                if constexpr (MASTER) narrow_exact(&p[q].e[e], next);
                if constexpr (STOCHASTIC) x[q].e[e] = round_stochastic(next, q ? word >> 16 : word & 0xffffu);
                else x[q].e[e] = next;
                m_most = fmaxf(m_most, fabsf(t.m));
                root_most = fmaxf(root_most, t.root);
            }
        }
        state8_scale m_new = {}, v_new = {};
        if (CODES) {
            m_new = state8_scale_of(lanes_max(m_most), STATE8_M_LARGEST);
            v_new = state8_scale_of(lanes_max(root_most), STATE8_V_LARGEST);
            if (threadIdx.x % WARP == 0) {
                a.m_scale[at.begin / TILE] = m_new.scale;
                a.v_scale[at.begin / TILE] = v_new.scale;
            }
        }
#pragma unroll
        for (int q = 0; q < 2; q++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                uint32_t word = NOISY_STATES ? noise_word(states_key, at.r + 16 * q + e) : 0;
                if constexpr (CODES) {
                    m[q].e[e] = state8_m_code(s[q][e].m, m_new.inverse, word & 0xffffu);
                    v[q].e[e] = state8_v_code(s[q][e].root, v_new.inverse, word >> 16);
                } else if constexpr (NOISY_STATES) {
                    m[q].e[e] = round_stochastic(s[q][e].m, word & 0xffffu);
                    v[q].e[e] = round_stochastic(s[q][e].v, word >> 16);
                } else {
                    m[q].e[e] = s[q][e].m;
                    v[q].e[e] = s[q][e].v;
                }
            }
            int64_t i = at.first + 16 * q, left = a.n - i;
            quad_store<VECTOR, WHOLE>(x_data + i, x[q], left);
            if constexpr (MASTER) quad_store<VECTOR, WHOLE>((P *)a.p + i, p[q], left);
            quad_store<VECTOR, WHOLE>((S *)a.m + i, m[q], left);
            quad_store<VECTOR, WHOLE>((S *)a.v + i, v[q], left);
        }
    }
}

template <typename P, typename G, typename S, bool MASTER, bool VECTOR>
DEVICE void adamw_chunk(const launch_adamw_args &a, unsigned index) {
    __shared__ adamw_constants constants;
    __shared__ noise_key param_key, states_key;
    chunk_place chunk = chunk_open(a.noise, index);
    if (a.clip[LAUNCH_CLIP_SKIP] != 0) {
        if constexpr (MASTER) adamw_skipped<P, VECTOR>(a, chunk);
        return;
    }
    if (threadIdx.x == 0) constants = adamw_prepare(a);
    if (takes_noise<P, MASTER> && threadIdx.x == WARP)
        param_key = noise_open(a.noise, *a.scalars, NOISE_PARAM, chunk.noise_block);
    if (state_takes_noise<S> && threadIdx.x == 2 * WARP)
        states_key = noise_open(a.noise, *a.scalars, NOISE_STATES, chunk.noise_block);
    __syncthreads();
    const adamw_constants k = constants;
    if constexpr (VECTOR)
        if (chunk_is_whole(chunk, a.n))
            return adamw_tiles<P, G, S, MASTER, true, true>(a, chunk, k, param_key, states_key);
    adamw_tiles<P, G, S, MASTER, VECTOR, false>(a, chunk, k, param_key, states_key);
}

template <typename P, typename G, typename S, bool MASTER, bool VECTOR>
static __global__ void __launch_bounds__(CHUNK_THREADS, 4) adamw_kernel(launch_adamw_args a) {
    adamw_chunk<P, G, S, MASTER, VECTOR>(a, blockIdx.x);
}

/* ---- many small tensors at once ---------------------------------------------------------------------------------- */

/* Larger ones have enough work for a launch of their own, with the registers that finding a tensor takes here. */
enum { SMALL_TENSOR = 1 << 20 };

/* What one launch takes: as many tensors as 4 KiB of arguments hold. */
enum { ADAMW_TENSORS = 32 };
struct adamw_tensors {
    struct {
        void *p, *m, *v;
        float *master, *m_scale, *v_scale;
        const void *g;
        uint64_t noise_key;
        int64_t first_element, n;
        float weight_decay, lr_scale;
        unsigned end; /* the block of threads behind the last one of this tensor */
    } of[ADAMW_TENSORS];
    const float *clip;
    const launch_scalars *scalars;
    int64_t noise_block;
    float beta1, beta2, eps;
};

/* The tensor of this block of threads, and which of its chunks. */
DEVICE launch_adamw_args adamw_own(const adamw_tensors &all, unsigned *chunk) {
    int i = 0;
    while (blockIdx.x >= all.of[i].end) i++;
    const auto &t = all.of[i];
    *chunk = blockIdx.x - (i ? all.of[i - 1].end : 0);
    launch_adamw_args a;
    a.p = t.p, a.m = t.m, a.v = t.v, a.master = t.master, a.m_scale = t.m_scale, a.v_scale = t.v_scale, a.g = t.g;
    a.clip = all.clip, a.scalars = all.scalars;
    a.noise = {t.noise_key, t.first_element, all.noise_block};
    a.n = t.n;
    a.beta1 = all.beta1, a.beta2 = all.beta2, a.eps = all.eps, a.weight_decay = t.weight_decay, a.lr_scale = t.lr_scale;
    return a;
}

template <typename P, typename G, typename S, bool MASTER>
static __global__ void __launch_bounds__(CHUNK_THREADS, 3)
    adamw_small_kernel(const __grid_constant__ adamw_tensors all) {
    unsigned index;
    const launch_adamw_args a = adamw_own(all, &index);
    adamw_chunk<P, G, S, MASTER, true>(a, index);
}

static bool adamw_in_vectors(const launch_adamw_args *a) {
    const void *operands[] = {a->p, a->master, a->g, a->m, a->v};
    for (const void *p : operands)
        if (!aligned(p, 16)) return false;
    return true;
}
static bool adamw_small(const launch_adamw_args *a) { return a->n <= SMALL_TENSOR && adamw_in_vectors(a); }

static bool adamw_alike(const launch_adamw_args *a, const launch_adamw_args *b) {
    return a->p_type == b->p_type && a->states == b->states && !a->master == !b->master && a->clip == b->clip &&
           a->scalars == b->scalars && a->noise.block == b->noise.block && a->beta1 == b->beta1 &&
           a->beta2 == b->beta2 && a->eps == b->eps;
}

/* Small tensors from a on that are like it; *n_chunks: of all of them. */
static int adamw_collect(adamw_tensors *all, const launch_adamw_args *a, int n_args, unsigned *n_chunks) {
    unsigned end = 0;
    int n = 0;
    all->clip = a->clip, all->scalars = a->scalars, all->noise_block = a->noise.block;
    all->beta1 = a->beta1, all->beta2 = a->beta2, all->eps = a->eps;
    for (; n < n_args && n < ADAMW_TENSORS && adamw_small(&a[n]) && adamw_alike(a, &a[n]); n++) {
        const launch_adamw_args &t = a[n];
        end += chunk_count(t.noise, t.n);
        all->of[n] = {t.p,
                      t.m,
                      t.v,
                      t.master,
                      t.m_scale,
                      t.v_scale,
                      t.g,
                      t.noise.key,
                      t.noise.first_element,
                      t.n,
                      t.weight_decay,
                      t.lr_scale,
                      end};
    }
    *n_chunks = end;
    return n;
}

template <typename P, typename G, typename S, bool MASTER>
static int adamw_launch(cudaStream_t s, const launch_adamw_args *a, int n_args) {
    adamw_tensors all;
    unsigned n_chunks;
    int n = adamw_collect(&all, a, n_args, &n_chunks);
    if (n > 1) {
        launch(adamw_small_kernel<P, G, S, MASTER>, dim3(n_chunks), dim3(CHUNK_THREADS), s, all);
        return n;
    }
    by_flag(adamw_in_vectors(a), [&](auto vector) {
        launch(adamw_kernel<P, G, S, MASTER, decltype(vector)::value>, dim3(chunk_count(a->noise, a->n)),
               dim3(CHUNK_THREADS), s, *a);
    });
    return 1;
}

template <typename P, typename G, bool MASTER>
static int adamw_by_states(cudaStream_t s, const launch_adamw_args *a, int n_args) {
    if (a->states == LAUNCH_STATES_F32) return adamw_launch<P, G, float, MASTER>(s, a, n_args);
    if (a->states == LAUNCH_STATES_BF16) return adamw_launch<P, G, bf16, MASTER>(s, a, n_args);
    return adamw_launch<P, G, uint8_t, MASTER>(s, a, n_args);
}

/* Those from a on that one launch can take; returns how many. */
static int adamw_by_types(cudaStream_t s, const launch_adamw_args *a, int n_args) {
    if (!a->master && a->p_type == LAUNCH_F32) return adamw_by_states<float, float, false>(s, a, n_args);
    if (!a->master) return adamw_by_states<bf16, bf16, false>(s, a, n_args);
    if (a->p_type == LAUNCH_BF16) return adamw_by_states<bf16, float, true>(s, a, n_args);
    return adamw_by_states<f16, float, true>(s, a, n_args);
}

void launch_adamw(cudaStream_t s, const launch_adamw_args *a, int n_args) {
    for (int at = 0; at < n_args;) at += adamw_by_types(s, a + at, n_args - at);
}
