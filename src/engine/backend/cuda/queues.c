/* queues.c - streams, events and graphs.
 *
 * Inside a section ops of a stream are counted from 1, and a wait names a count. For a wait between two queues the awaited
 * op records an event of its own (events are kept by stream and count, and serve every section). For waits between the
 * device and the host there is one counter per stream in pinned memory: the device writes it with a stream operation and
 * waits for it with another, both of which a graph can hold, so that a recorded section still works hand in hand with
 * threads of the host.
 *
 * While a section is recorded every queue that takes part must branch off the first one and come back to it at the end:
 * `joined` remembers which did. */
#include "backend/cuda/queues.h"
#include "backend/cuda/check.h"
#include "backend/cuda/joined.h"

#include <cuda.h>
#include <stdatomic.h>
#include <stdlib.h>

typedef struct event_list {
    cudaEvent_t *items;
    size_t n;
} event_list;

struct queues {
    cudaStream_t streams[STREAM_COUNT]; /* those of the device; NULL for the host's */
    _Atomic uint32_t *counts;           /* pinned; STREAM_COUNT of them */
    CUdeviceptr counts_on_device;
    event_list marks[STREAM_COUNT]; /* [n - 1]: the n-th op of the stream is done */
    cudaEvent_t branch, join[STREAM_COUNT];
    bool joined[STREAM_COUNT];
    bool recording;
    cudaGraphExec_t sections[SECTION_COUNT];
    event_list stamps;
    status failed; /* of a call that could not return it */
    error_record failure;
};

static bool is_queue(stream s) { return s == STREAM_COMPUTE || s == STREAM_H2D || s == STREAM_D2H || s == STREAM_COMM; }

/* Calls while a section is queued have nobody to return to; the first failure is kept for synchronize. */
static void note(backend_context *c, status rc) {
    if (rc == OK || c->queues->failed != OK) return;
    c->queues->failed = rc;
    error_take(&c->queues->failure);
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

status queues_open(backend_context *c) {
    struct queues *q = c->queues = mem_alloc(sizeof *q);
    void *counts;
    for (stream s = 0; s < STREAM_COUNT; s++) {
        if (!is_queue(s)) continue;
        /* Copies before kernels: they are short on the multiprocessors and long on the way. */
        int least, greatest;
        CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
        int priority = s == STREAM_COMPUTE ? least : greatest;
        CUDA_TRY(cudaStreamCreateWithPriority(&q->streams[s], cudaStreamNonBlocking, priority));
        CUDA_TRY(cudaEventCreateWithFlags(&q->join[s], cudaEventDisableTiming));
    }
    CUDA_TRY(cudaEventCreateWithFlags(&q->branch, cudaEventDisableTiming));
    CUDA_TRY(cudaHostAlloc(&counts, STREAM_COUNT * sizeof *q->counts, cudaHostAllocMapped | cudaHostAllocPortable));
    memset(counts, 0, STREAM_COUNT * sizeof *q->counts);
    q->counts = counts;
    void *mapped;
    CUDA_TRY(cudaHostGetDevicePointer(&mapped, counts, 0));
    q->counts_on_device = (CUdeviceptr)mapped;
    c->selected = STREAM_COMPUTE;
    c->stream = q->streams[STREAM_COMPUTE];
    return OK;
}

static void events_close(event_list *l) {
    for (size_t i = 0; i < l->n; i++)
        if (l->items[i]) cudaEventDestroy(l->items[i]);
    free(l->items);
}

void queues_forget_sections(backend_context *c) {
    struct queues *q = c->queues;
    for (section s = 0; s < SECTION_COUNT; s++) {
        if (q->sections[s]) cudaGraphExecDestroy(q->sections[s]);
        q->sections[s] = NULL;
    }
}

void queues_close(backend_context *c) {
    struct queues *q = c->queues;
    if (!q) return;
    queues_forget_sections(c);
    for (stream s = 0; s < STREAM_COUNT; s++) {
        events_close(&q->marks[s]);
        if (q->join[s]) cudaEventDestroy(q->join[s]);
        if (q->streams[s]) cudaStreamDestroy(q->streams[s]);
    }
    events_close(&q->stamps);
    if (q->branch) cudaEventDestroy(q->branch);
    if (q->counts) cudaFreeHost((void *)q->counts);
    free(q);
    c->queues = NULL;
}

/* Event i of the list, made when first asked for. */
static status event_at(event_list *l, size_t i, unsigned flags, cudaEvent_t *out) {
    if (i >= l->n) {
        size_t n = l->n;
        l->items = array_grow(l->items, &l->n, i + 1, sizeof *l->items);
        memset(l->items + n, 0, (l->n - n) * sizeof *l->items);
    }
    if (!l->items[i]) CUDA_TRY(cudaEventCreateWithFlags(&l->items[i], flags));
    *out = l->items[i];
    return OK;
}

/* ---- queueing ---------------------------------------------------------------------------------------------------- */

static _Atomic uint32_t *queues_counts(backend_context *c) { return c->queues->counts; }

static status join_in(backend_context *c, stream s) {
    struct queues *q = c->queues;
    if (q->joined[s] || s == STREAM_COMPUTE || !q->recording) return OK;
    q->joined[s] = true;
    CUDA_TRY(cudaStreamWaitEvent(q->streams[s], q->branch, 0));
    return OK;
}

/* Whoever opened the context need not be the thread that uses it, and each thread has a device of its own: launches, and
 * events that are made here, belong to the current one. */
static status try_select(backend_context *c, stream s) {
    int current;
    CUDA_TRY(cudaGetDevice(&current));
    if (current != c->device) CUDA_TRY(cudaSetDevice(c->device));
    return join_in(c, s);
}

static void queues_select(backend_context *c, stream s) {
    ASSERT(is_queue(s));
    c->selected = s;
    c->stream = c->queues->streams[s];
    note(c, try_select(c, s));
}

static status try_copy(backend_context *c, void *dst, const void *src, size_t n_bytes) {
    CUDA_TRY(cudaMemcpyAsync(dst, src, n_bytes, cudaMemcpyDefault, c->stream));
    return OK;
}

static void queues_copy(backend_context *c, void *dst, const void *src, size_t n_bytes) {
    note(c, try_copy(c, dst, src, n_bytes));
}

static status try_wait(backend_context *c, stream s, uint32_t n, bool on_host) {
    struct queues *q = c->queues;
    if (on_host) {
        CUDA_DRIVER_TRY(
            cuStreamWaitValue32(c->stream, q->counts_on_device + s * sizeof(uint32_t), n, CU_STREAM_WAIT_VALUE_GEQ));
        return OK;
    }
    cudaEvent_t event = NULL;
    TRY(event_at(&q->marks[s], n - 1, cudaEventDisableTiming, &event));
    CUDA_TRY(cudaStreamWaitEvent(c->stream, event, 0));
    return OK;
}

static void queues_wait(backend_context *c, stream s, uint32_t n, bool on_host) { note(c, try_wait(c, s, n, on_host)); }

static status try_mark(backend_context *c, uint32_t n, bool tell) {
    struct queues *q = c->queues;
    cudaEvent_t event = NULL;
    TRY(event_at(&q->marks[c->selected], n - 1, cudaEventDisableTiming, &event));
    CUDA_TRY(cudaEventRecord(event, c->stream));
    if (tell)
        CUDA_DRIVER_TRY(cuStreamWriteValue32(c->stream, q->counts_on_device + c->selected * sizeof(uint32_t), n,
                                             CU_STREAM_WRITE_VALUE_DEFAULT));
    return OK;
}

static void queues_mark(backend_context *c, uint32_t n, bool tell) { note(c, try_mark(c, n, tell)); }

/* ---- recording --------------------------------------------------------------------------------------------------- */

static status queues_record(backend_context *c) {
    struct queues *q = c->queues;
    TRY(queues_check(c));
    memset(q->joined, 0, sizeof q->joined);
    queues_select(c, STREAM_COMPUTE);
    CUDA_TRY(cudaStreamBeginCapture(q->streams[STREAM_COMPUTE], cudaStreamCaptureModeThreadLocal));
    q->recording = true;
    CUDA_TRY(cudaEventRecord(q->branch, q->streams[STREAM_COMPUTE]));
    return OK;
}

static status queues_record_end(backend_context *c, section s) {
    struct queues *q = c->queues;
    cudaGraph_t graph = NULL;
    for (stream k = 0; k < STREAM_COUNT; k++) {
        if (!q->joined[k]) continue;
        CUDA_TRY(cudaEventRecord(q->join[k], q->streams[k]));
        CUDA_TRY(cudaStreamWaitEvent(q->streams[STREAM_COMPUTE], q->join[k], 0));
    }
    q->recording = false;
    cudaError_t ended = cudaStreamEndCapture(q->streams[STREAM_COMPUTE], &graph);
    if (q->failed != OK) { /* names the call that broke the recording */
        q->failed = OK;
        return error_give(&q->failure);
    }
    CUDA_TRY(ended);
    cudaError_t made = cudaGraphInstantiate(&q->sections[s], graph, 0);
    cudaGraphDestroy(graph);
    CUDA_TRY(made);
    CUDA_TRY(cudaGraphUpload(q->sections[s], q->streams[STREAM_COMPUTE]));
    return queues_check(c);
}

static status try_start(backend_context *c, section s) {
    CUDA_TRY(cudaGraphLaunch(c->queues->sections[s], c->queues->streams[STREAM_COMPUTE]));
    return OK;
}

static void queues_start(backend_context *c, section s) { note(c, try_start(c, s)); }

/* ---- the end of a section ---------------------------------------------------------------------------------------- */

status queues_check(backend_context *c) {
    struct queues *q = c->queues;
    for (stream s = 0; s < STREAM_COUNT; s++)
        if (q->streams[s]) CUDA_TRY(cudaStreamSynchronize(q->streams[s]));
    CUDA_TRY(cudaGetLastError()); /* of a launch that was refused */
    if (q->failed == OK) return OK;
    q->failed = OK;
    return error_give(&q->failure);
}

static bool queues_failed(backend_context *c) {
    struct queues *q = c->queues;
    cudaSetDevice(c->device); /* the thread that asks may be a lane, which never chose one */
    if (q->failed != OK) return true;
    for (stream s = 0; s < STREAM_COUNT; s++) {
        if (!q->streams[s]) continue;
        cudaError_t e = cudaStreamQuery(q->streams[s]);
        if (e != cudaSuccess && e != cudaErrorNotReady) return true;
    }
    return false;
}

/* ---- stamps ------------------------------------------------------------------------------------------------------ */

static status try_stamp(backend_context *c, size_t i) {
    cudaEvent_t event = NULL;
    TRY(event_at(&c->queues->stamps, i, cudaEventDefault, &event));
    CUDA_TRY(cudaEventRecord(event, c->stream));
    return OK;
}

static void queues_stamp(backend_context *c, size_t i) { note(c, try_stamp(c, i)); }

static uint64_t queues_stamp_ns(backend_context *c, size_t i) {
    const event_list *l = &c->queues->stamps;
    float ms = 0;
    if (i >= l->n || cudaEventElapsedTime(&ms, l->items[0], l->items[i]) != cudaSuccess) return 0;
    return ms > 0 ? (uint64_t)((double)ms * 1e6) : 0;
}

const backend_queues *queues_table(void) {
    static const backend_queues t = {
        .counts = queues_counts,
        .select = queues_select,
        .join = joined_run,
        .copy = queues_copy,
        .wait = queues_wait,
        .mark = queues_mark,
        .record = queues_record,
        .record_end = queues_record_end,
        .start = queues_start,
        .failed = queues_failed,
        .stamp = queues_stamp,
        .stamp_ns = queues_stamp_ns,
    };
    return &t;
}
