/* gpu_few_codes.cu - products of few rows over weights in codes, beside the same in bf16, at the shapes of Qwen2.5 1.5B and 7B.
 *
 * By hand, on a machine with a GPU of capability 9.0, in a checkout that was built:
 *     F="-O3 -std=c++17 -arch=sm_90a -DHAVE_SM90A -fmad=false --expt-relaxed-constexpr -Isrc"
 *     gcc -O2 -Isrc -I/usr/local/cuda/include -c src/engine/backend/cuda/tensor_map.c -o /tmp/tensor_map.o
 *     nvcc $F bench/gpu_few_codes.cu src/engine/backend/cuda/few_{codes,codes_wgmma,rows}.cu /tmp/tensor_map.o build/libralo-engine.a build/libralo-base.a -lcuda -o /tmp/few_codes
 *     /tmp/few_codes [plain]
 *
 * A recorded graph of products one behind the other, as a decode step has them, over copies of a weight that do not fit the L2 cache
 * together; the best of some rounds. Rounding x to bytes is counted. GB/s: of the weight as it is stored, but for scales of nf4.
 * plain: by the kernel for other GPUs. */
#include "backend/cuda/launch_codes.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(CALL) must(CALL, #CALL)
static void must(cudaError_t rc, const char *call) {
    if (rc == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(rc));
    exit(1);
}

static __global__ void fill(uint32_t *words, size_t n, uint32_t keep, uint32_t set) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint32_t h = (uint32_t)i * 2654435761u + 12345;
        h ^= h >> 15, h *= 2246822519u, h ^= h >> 13;
        words[i] = (h & keep) | set;
    }
}

typedef struct weight {
    const char *name;
    int64_t n, k;
    bool gated, logits;
} weight;
static const weight weights[] = {{"1.5b qkv", 2048, 1536, false, false},     {"1.5b o", 1536, 1536, false, false},
                                 {"1.5b gate-up", 17920, 1536, true, false}, {"1.5b down", 1536, 8960, false, false},
                                 {"1.5b logits", 151936, 1536, false, true}, {"7b qkv", 4608, 3584, false, false},
                                 {"7b o", 3584, 3584, false, false},         {"7b gate-up", 37888, 3584, true, false},
                                 {"7b down", 3584, 18944, false, false}};
static const int64_t rows[] = {1, 4, 8, 16, 32, 64};
static const int8_t nf4_127ths[] = {-127, -88, -67, -50, -36, -23, -12, 0,
                                    10,   20,  31,  43,  56,  71,  92,  127}; /* the values of nf4, but for rounding */
static const char *names[] = {"fp8", "int8", "nf4"};                          /* by launch_codes */
enum { BF16 = -1, ROUNDS = 6, ROWS_MOST = 64, K_MOST = 20000 };
static const size_t POOL = (size_t)1200 << 20, SCALES = 16 << 20;

typedef struct memory {
    cudaStream_t s;
    unsigned char *w;
    void *x, *y, *work, *scales;
    launch_nf4_tables tables;
} memory;

static double bytes_of(const weight *h, int format) {
    return (format == BF16 ? 2.0 : format == LAUNCH_CODES_NF4 ? 0.5 : 1.0) * (double)h->n * (double)h->k;
}

static bool plain; /* the kernel for other GPUs */

static void launch(const memory *t, const weight *h, int64_t m, int format, const unsigned char *w) {
    const launch_type y_type = h->logits ? LAUNCH_F32 : LAUNCH_BF16;
    const int64_t ldy = h->gated ? h->n / 2 : h->n;
    if (format == BF16) {
        few_rows_product q = {m, h->n, h->k, t->x, w, t->y, ldy, NULL, 1, LAUNCH_BF16, y_type, h->gated, false};
        launch_few_rows(t->s, &q);
        return;
    }
    few_codes_product q = {m,           h->n,   h->k,     t->x,  w,       t->y, ldy, NULL, (launch_codes)format,
                           LAUNCH_BF16, y_type, h->gated, false, t->work, 1};
    q.parts[0].scale = q.parts[0].offset = (const float *)t->scales,
    q.parts[0].scale_codes = (const uint8_t *)t->scales;
    (plain ? launch_few_codes : launch_few_codes_wgmma)(t->s, &q, &t->tables);
}

static double measure_us(const memory *t, const weight *h, int64_t m, int format) {
    const double bytes = bytes_of(h, format);
    const int copies = (int)(POOL / (size_t)bytes), n = bytes > 2e8 ? 4 : 24;
    const size_t between = (size_t)bytes / 256 * 256;
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    cudaEvent_t begin, end;
    float best = 1e9;
    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    MUST(cudaStreamBeginCapture(t->s, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < n; i++) launch(t, h, m, format, t->w + (size_t)(i % copies) * between);
    MUST(cudaStreamEndCapture(t->s, &graph));
    MUST(cudaGraphInstantiate(&ready, graph, 0));
    for (int round = 0; round < ROUNDS; round++) {
        float ms;
        MUST(cudaEventRecord(begin, t->s));
        MUST(cudaGraphLaunch(ready, t->s));
        MUST(cudaEventRecord(end, t->s));
        MUST(cudaEventSynchronize(end));
        MUST(cudaEventElapsedTime(&ms, begin, end));
        if (round > 0 && ms < best) best = ms; /* the first only warms */
    }
    MUST(cudaGraphExecDestroy(ready));
    MUST(cudaGraphDestroy(graph));
    return best * 1e3 / n;
}

int main(int argc, char **argv) {
    plain = argc > 1 && strcmp(argv[1], "plain") == 0;
    memory t = {};
    MUST(cudaStreamCreate(&t.s));
    MUST(cudaMalloc(&t.w, POOL));
    MUST(cudaMalloc(&t.x, (size_t)ROWS_MOST * K_MOST * 2));
    MUST(cudaMalloc(&t.y, (size_t)ROWS_MOST * 152064 * 4));
    MUST(cudaMalloc(&t.work, FEW_CODES_WORK(K_MOST)));
    MUST(cudaMalloc(&t.scales, SCALES));
    MUST(cudaMemset(t.scales, 0, SCALES));
    for (int i = 0; i < 16; i++) t.tables.nf4[i] = nf4_127ths[i] / 127.0f;
    fill<<<1024, 256, 0, t.s>>>((uint32_t *)t.x, (size_t)ROWS_MOST * K_MOST / 2, 0x807f807fu, 0x3f003f00u);
    for (const weight &h : weights)
        for (int64_t m : rows) {
            printf("%-12s rows %2d:", h.name, (int)m);
            for (int format = BF16; format <= LAUNCH_CODES_NF4; format++) {
                const bool numbers = format == BF16; /* of ordinary size; codes of e4m3 that are numbers */
                fill<<<4096, 256, 0, t.s>>>((uint32_t *)t.w, POOL / 4, numbers ? 0x807f807fu : 0xbfbfbfbfu,
                                            numbers ? 0x3c003c00u : 0);
                const double us = measure_us(&t, &h, m, format);
                printf("  %s %7.2f us %5.0f GB/s", numbers ? "bf16" : names[format], us,
                       bytes_of(&h, format) / us * 1e-3);
            }
            printf("\n");
            fflush(stdout);
        }
    return 0;
}
