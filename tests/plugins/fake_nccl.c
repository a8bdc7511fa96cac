/* fake_nccl.c - a libnccl.so.2 without other ranks: sends go nowhere, and a receive takes what fake_nccl_offer laid ready
 * for that peer, one piece after the other. cli_gpu_links.sh builds it; what it copies with is the driver, which is loaded
 * as it is where there is a GPU. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { PEERS_MOST = 16 };
static const char *offers[PEERS_MOST];

void fake_nccl_offer(int peer, const void *device_bytes);
void fake_nccl_offer(int peer, const void *device_bytes) { offers[peer] = device_bytes; }

typedef struct id {
    char bytes[128];
} id;

int ncclGetVersion(int *version);
int ncclGetVersion(int *version) { return *version = 22800, 0; }
int ncclGetUniqueId(id *out);
int ncclGetUniqueId(id *out) { return memset(out, 1, sizeof *out), 0; }
int ncclCommInitRank(void **group, int n_ranks, id given, int rank);
int ncclCommInitRank(void **group, int n_ranks, id given, int rank) {
    *group = offers;
    return n_ranks <= PEERS_MOST && rank < n_ranks && given.bytes[0] == 1 ? 0 : 4;
}
int ncclCommDestroy(void *group);
int ncclCommDestroy(void *group) { return group == offers ? 0 : 4; }
int ncclCommAbort(void *group);
int ncclCommAbort(void *group) { return group == offers ? 0 : 4; }
int ncclCommGetAsyncError(void *group, int *result);
int ncclCommGetAsyncError(void *group, int *result) { return *result = 0, group == offers ? 0 : 4; }
const char *ncclGetErrorString(int result);
const char *ncclGetErrorString(int result) { return result ? "a fake error" : "no error"; }
int ncclGroupStart(void);
int ncclGroupStart(void) { return 0; }
int ncclGroupEnd(void);
int ncclGroupEnd(void) { return 0; }

int ncclAllGather(const void *from, void *to, size_t n, int type, void *group, void *stream);
int ncclAllGather(const void *from, void *to, size_t n, int type, void *group, void *stream) {
    (void)from, (void)to, (void)n, (void)type, (void)group, (void)stream;
    return 3; /* the test does not ask for it */
}

int ncclSend(const void *from, size_t n, int type, int peer, void *group, void *stream);
int ncclSend(const void *from, size_t n, int type, int peer, void *group, void *stream) {
    (void)n, (void)type, (void)stream;
    return from && peer < PEERS_MOST && group == offers ? 0 : 4;
}

int ncclRecv(void *to, size_t n, int type, int peer, void *group, void *stream);
int ncclRecv(void *to, size_t n, int type, int peer, void *group, void *stream) {
    static int (*copy)(uint64_t to, uint64_t from, size_t n, void *stream);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!copy && driver) *(void **)&copy = dlsym(driver, "cuMemcpyDtoDAsync_v2");
    if (!copy || type != 0 || group != offers || !offers[peer]) return 3;
    int rc = copy((uint64_t)(uintptr_t)to, (uint64_t)(uintptr_t)offers[peer], n, stream);
    offers[peer] += n;
    return rc ? 1 : 0;
}
