#pragma once
/* nccl_abi.h - private to links.c: the part of NCCL's interface that is called, as NCCL 2.7 and all later ones have it.
 *
 * Declared here and not taken from nccl.h: NCCL is loaded where it is found and need not be there when ralo is built. Where
 * the header is there, what is said here is compared with it. */
#include <cuda_runtime_api.h>
#include <stddef.h>

typedef struct ncclComm *nccl_group;
typedef struct nccl_id {
    char bytes[128];
} nccl_id;
enum { NCCL_OK = 0, NCCL_IN_PROGRESS = 7 }; /* ncclResult_t */
enum { NCCL_BYTES = 0 };                    /* ncclDataType_t: ncclInt8 */

/* X(name, arguments): all return an ncclResult_t, but for ncclGetErrorString. */
#define NCCL_FUNCTIONS(X)                                                                                 \
    X(GetVersion, (int *version))                                                                         \
    X(GetUniqueId, (nccl_id * id))                                                                        \
    X(CommInitRank, (nccl_group * group, int n_ranks, nccl_id id, int rank))                              \
    X(CommDestroy, (nccl_group group))                                                                    \
    X(CommAbort, (nccl_group group))                                                                      \
    X(CommGetAsyncError, (nccl_group group, int *result))                                                 \
    X(AllGather, (const void *from, void *to, size_t n, int type, nccl_group group, cudaStream_t stream)) \
    X(Send, (const void *from, size_t n, int type, int peer, nccl_group group, cudaStream_t stream))      \
    X(Recv, (void *to, size_t n, int type, int peer, nccl_group group, cudaStream_t stream))              \
    X(GroupStart, (void))                                                                                 \
    X(GroupEnd, (void))

#if __has_include(<nccl.h>)
#include <nccl.h>
_Static_assert((int)ncclSuccess == NCCL_OK && (int)ncclInProgress == NCCL_IN_PROGRESS && (int)ncclInt8 == NCCL_BYTES &&
                   sizeof(ncclUniqueId) == sizeof(nccl_id) && sizeof(ncclResult_t) == sizeof(int) &&
                   sizeof(ncclDataType_t) == sizeof(int),
               "nccl.h says otherwise");
#endif
