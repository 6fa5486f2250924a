/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wrappers of NCCL's functions. The buffers that each call touches, by the comments of nccl.h:
 *
 *     Bcast, Broadcast    the root reads its send buffer; all write their receive buffer
 *     Reduce, Gather      all read; the root writes
 *     AllReduce           reads and writes `count` elements
 *     AllGather           reads count, writes count of each rank
 *     ReduceScatter       reads count for each rank, writes count
 *     AlltoAll            both count of each rank
 *     Scatter             the root reads count for each rank; all write count
 *
 * nccl*Config touches the same buffers.
 *
 * Inside a group, a call returns before anything has happened; prepared buffers stay as they are.
 */
#include "shim/nccl_wrappers.h"

#include <stdint.h>
#include <string.h>

#include "runtime/base/log.h"
#include "runtime/collective/collective.h"
#include "runtime/collective/communicator.h"
#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/access.h"
#include "runtime/state/caller.h"
#include "shim/cancellation.h"
#include "shim/nccl_real.h"
#include "shim/off.h"

/* The nesting depth of NCCL calls in this thread. */
static _Thread_local unsigned depth __attribute__((tls_model("initial-exec")));

bool ms_nccl_is_inside(const void *return_address)
{
    return depth > 0 || ms_nccl_at(return_address) != NULL;
}

bool ms_nccl_is_calling(void)
{
    return depth > 0;
}

/* The function that a call goes on to, and whether the shim handles the call. */
struct way {
    const struct ms_nccl *nccl;
    void *real; /* NULL if this NCCL has no such function */
    bool is_ours;
};

static struct way find_way(enum ms_nccl_id id, ncclComm_t comm, const void *return_address,
                           const char *name)
{
    const struct ms_nccl *nccl = ms_nccl_at(return_address);
    const bool is_ours = nccl == NULL && depth == 0 && !ms_is_off() && ms_is_started();
    if (nccl == NULL)
        nccl = ms_nccl_of(comm, return_address);
    if (nccl == NULL || nccl->functions[id] == NULL)
        ms_log(MS_ERROR, "%s was called, but no NCCL in the process has it", name);
    else if (is_ours)
        ms_caller = name;
    return (struct way){nccl, nccl != NULL ? nccl->functions[id] : NULL, is_ours};
}

#define RETURN_ADDRESS __builtin_extract_return_addr(__builtin_return_address(0))
#define FIND(name, comm)                                                          \
    MS_INSIDE;                                                                    \
    const struct way way = find_way(MS_NCCL_##name, comm, RETURN_ADDRESS, #name); \
    if (way.real == NULL)                                                         \
    return ncclSystemError
#define GO_ON(name, arguments) (depth++, go_on(((__typeof__(&name))way.real)arguments))

#define GO_ON_IF(prepared, name, arguments) \
    ((prepared) != ncclSuccess ? (prepared) : GO_ON(name, arguments))

static ncclResult_t go_on(ncclResult_t result)
{
    depth--;
    return result;
}

/* Forwards a call that waits for other ranks. The thread holds nothing, so it may be cancelled. */
#define GO_OUT(name, arguments) \
    (ms_cancellation_restore(&door), depth++, come_back(((__typeof__(&name))way.real)arguments))

static ncclResult_t come_back(ncclResult_t result)
{
    ms_cancellation_disable();
    return go_on(result);
}

/* --- sizes */

/* False for an unknown type or on overflow: everything is prepared, or NCCL refuses the call. */
static bool find_bytes(size_t count, ncclDataType_t type, size_t times, size_t *bytes_out)
{
    static const unsigned char sizes[] = MS_NCCL_TYPE_BYTES;
    *bytes_out = 0;
    return type >= 0 && (size_t)type < sizeof(sizes) &&
           !__builtin_mul_overflow(count, sizes[type], bytes_out) &&
           !__builtin_mul_overflow(*bytes_out, times, bytes_out);
}

static bool query(const struct way *way, ncclComm_t comm, struct ms_communicator *found)
{
    typedef ncclResult_t query(ncclComm_t comm, int *value);
    if (way->nccl->comm_count == NULL || way->nccl->comm_user_rank == NULL)
        return false;
    depth++;
    const bool is_good = ((query *)way->nccl->comm_count)(comm, &found->ranks) == ncclSuccess &&
                         ((query *)way->nccl->comm_user_rank)(comm, &found->rank) == ncclSuccess;
    depth--;
    return is_good;
}

/* Finds a communicator's record, or makes one from NCCL's answers, as of a communicator that does
 * not block. */
static bool ask(const struct way *way, ncclComm_t comm, struct ms_communicator *found)
{
    if (ms_communicator_find(comm, found))
        return true;
    if (!query(way, comm, found))
        return false;
    found->is_blocking = false;
    found->origin = MS_MET;
    ms_communicator_set(comm, found);
    return true;
}

/* --- preparing */

/* Called after each forwarded call. `cudaStream_t` 0 is the legacy stream: NCCL is compiled so. */
static ncclResult_t called(const struct way *way, cudaStream_t stream, ncclResult_t result)
{
    if (way->is_ours)
        ms_collective_called(stream != NULL ? stream : CU_STREAM_LEGACY);
    return result;
}

static ncclResult_t prepare(const struct ms_operation *operation)
{
    const CUresult result = ms_collective_prepare(operation);
    if (result == CUDA_SUCCESS)
        return ncclSuccess;
    ms_log(MS_ERROR, "%s: cannot prepare its buffers: CUDA error %d", ms_caller, (int)result);
    return ncclUnhandledCudaError;
}

static ncclResult_t prepare_everything(void)
{
    return prepare(&(struct ms_operation){.read_bytes = SIZE_MAX});
}

/* Prepares an operation that reads `reads` times, and writes `writes` times, `count` elements. */
static ncclResult_t prepare_times(const struct way *way, struct ms_operation operation,
                                  size_t count, ncclDataType_t type, size_t reads, size_t writes)
{
    if (!way->is_ours || !ms_collective_matters() || count == 0)
        return ncclSuccess;
    if (!find_bytes(count, type, reads, &operation.read_bytes) ||
        !find_bytes(count, type, writes, &operation.written_bytes))
        return prepare_everything();
    return prepare(&operation);
}

/* How often the root and the other ranks read and write `count` elements. */
enum { NOTHING, ONCE, OF_ALL };
struct kind {
    unsigned char root_reads, others_read, root_writes, others_write;
    bool sends, receives, gathers; /* as in struct ms_operation */
};
#define KIND(name, ...) [MS_NCCL_##name] = __VA_ARGS__, [MS_NCCL_##name##Config] = __VA_ARGS__
static const struct kind kinds[MS_NCCL_COUNT] = {
    [MS_NCCL_ncclBcast] = {ONCE, NOTHING, NOTHING, ONCE, true, true},
    KIND(ncclBroadcast, {ONCE, NOTHING, ONCE, ONCE, true, true}),
    KIND(ncclReduce, {ONCE, ONCE, ONCE, NOTHING, false, false}),
    KIND(ncclAllReduce, {ONCE, ONCE, ONCE, ONCE, false, false}),
    KIND(ncclAllGather, {ONCE, ONCE, OF_ALL, OF_ALL, .sends = true, .gathers = true}),
    KIND(ncclReduceScatter, {OF_ALL, OF_ALL, ONCE, ONCE, false, false}),
    KIND(ncclAlltoAll, {OF_ALL, OF_ALL, OF_ALL, OF_ALL, false, false}),
    KIND(ncclGather, {ONCE, ONCE, OF_ALL, NOTHING, false, false}),
    KIND(ncclScatter, {OF_ALL, NOTHING, ONCE, ONCE, true, false}),
};
#undef KIND

static size_t times(unsigned char how_often, int ranks)
{
    return how_often == OF_ALL ? (size_t)ranks : how_often;
}

/* --- collectives */

static ncclResult_t prepare_collective(const struct way *way, enum ms_nccl_id id, ncclComm_t comm,
                                       int root, struct ms_operation operation, size_t count,
                                       ncclDataType_t type)
{
    struct ms_communicator self;
    const struct kind *kind = &kinds[id];
    if (!way->is_ours || !ms_collective_matters())
        return ncclSuccess;
    if (!ask(way, comm, &self))
        return prepare_everything();
    /* A broadcast to a single rank, in place, does nothing. */
    if (self.ranks == 1 && kind->receives && operation.read == operation.written)
        return ncclSuccess;
    const bool is_root = self.rank == root;
    operation.sends = kind->sends;
    operation.receives = kind->receives;
    operation.gathers = kind->gathers;
    operation.ranks = self.ranks;
    operation.rank = self.rank;
    operation.is_late = !self.is_blocking;
    return prepare_times(way, operation, count, type,
                         times(is_root ? kind->root_reads : kind->others_read, self.ranks),
                         times(is_root ? kind->root_writes : kind->others_write, self.ranks));
}

enum { NO_ROOT = -1 };

#define MS_NCCL(name, parameters, arguments)
#define MS_NCCL_COLLECTIVE(name, parameters, arguments, send_, receive_, count_, root_)         \
    ncclResult_t name parameters                                                                \
    {                                                                                           \
        FIND(name, comm);                                                                       \
        const struct ms_operation operation = {.read = send_, .written = receive_};             \
        const ncclResult_t prepared =                                                           \
            prepare_collective(&way, MS_NCCL_##name, comm, root_, operation, count_, datatype); \
        return called(&way, stream, GO_ON_IF(prepared, name, arguments));                       \
    }
#include "shim/nccl.def"
#undef MS_NCCL

ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    FIND(ncclSend, comm);
    struct ms_communicator self;
    const struct ms_operation operation = {
        .read = sendbuff,
        .sends = true,
        .is_late = ms_defers_any() && (!ms_communicator_find(comm, &self) || !self.is_blocking)};
    const ncclResult_t prepared = prepare_times(&way, operation, count, datatype, 1, 0);
    return called(&way, stream,
                  GO_ON_IF(prepared, ncclSend, (sendbuff, count, datatype, peer, comm, stream)));
}

ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    FIND(ncclRecv, comm);
    const struct ms_operation operation = {.written = recvbuff};
    const ncclResult_t prepared = prepare_times(&way, operation, count, datatype, 0, 1);
    return GO_ON_IF(prepared, ncclRecv, (recvbuff, count, datatype, peer, comm, stream));
}

/* The peer's window came into memory when the peer registered the window. */
ncclResult_t ncclPutSignal(const void *localbuff, size_t count, ncclDataType_t datatype, int peer,
                           ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx,
                           unsigned int flags, ncclComm_t comm, cudaStream_t stream)
{
    FIND(ncclPutSignal, comm);
    const struct ms_operation operation = {.read = localbuff};
    const ncclResult_t prepared = prepare_times(&way, operation, count, datatype, 1, 0);
    return GO_ON_IF(prepared, ncclPutSignal,
                    (localbuff, count, datatype, peer, peerWin, peerWinOffset, sigIdx, ctx, flags,
                     comm, stream));
}

/* --- groups */

ncclResult_t ncclGroupStart(void)
{
    FIND(ncclGroupStart, NULL);
    const ncclResult_t result = GO_ON(ncclGroupStart, ());
    if (way.is_ours && result == ncclSuccess)
        ms_collective_group(true);
    return result;
}

ncclResult_t ncclGroupEnd(void)
{
    FIND(ncclGroupEnd, NULL);
    const ncclResult_t result = GO_ON(ncclGroupEnd, ());
    if (way.is_ours)
        ms_collective_group(false);
    return result;
}

/* --- communicators: which copy of NCCL made them, their size and rank */

/* `blocking` exists since 2.14; values other than 0 and 1 mean the default, 1. */
static bool is_blocking(const ncclConfig_t *config)
{
    return config == NULL || config->size < offsetof(ncclConfig_t, blocking) + sizeof(int) ||
           config->blocking != 0;
}

/* True if *comm is set: NCCL sets it before the communicator is complete, also in a group. */
static bool is_made(const struct way *way, ncclResult_t result)
{
    return way->is_ours && (result == ncclSuccess || result == ncclInProgress);
}

static ncclResult_t made(const struct way *way, ncclResult_t result, const ncclComm_t *comm,
                         struct ms_communicator self)
{
    if (is_made(way, result) && *comm != NULL) {
        ms_nccl_add_comm(*comm, way->nccl);
        ms_communicator_set(*comm, &self);
    }
    return result;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank)
{
    FIND(ncclCommInitRank, NULL);
    const ncclResult_t result = GO_OUT(ncclCommInitRank, (comm, nranks, commId, rank));
    return made(&way, result, comm, (struct ms_communicator){nranks, rank, result == ncclSuccess});
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t *config)
{
    FIND(ncclCommInitRankConfig, NULL);
    return made(&way, GO_OUT(ncclCommInitRankConfig, (comm, nranks, commId, rank, config)), comm,
                (struct ms_communicator){nranks, rank, is_blocking(config)});
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId,
                                      ncclUniqueId *commIds, ncclConfig_t *config)
{
    FIND(ncclCommInitRankScalable, NULL);
    const ncclResult_t result =
        GO_OUT(ncclCommInitRankScalable, (newcomm, nranks, myrank, nId, commIds, config));
    return made(&way, result, newcomm,
                (struct ms_communicator){nranks, myrank, is_blocking(config)});
}

/* All ranks are in this process, so none of them is the rank of a plan. */
ncclResult_t ncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist)
{
    FIND(ncclCommInitAll, NULL);
    const ncclResult_t result = GO_OUT(ncclCommInitAll, (comm, ndev, devlist));
    for (int i = 0; is_made(&way, result) && i < ndev; i++)
        ms_nccl_add_comm(comm[i], way.nccl);
    return result;
}

/* Finds a child's rank here only if the child blocks; otherwise a thread of NCCL may still be
 * writing to it, and the first use finds the rank (ask). */
static ncclResult_t set_child(const struct way *way, ncclResult_t result, ncclComm_t parent,
                              const ncclConfig_t *config, ncclComm_t *newcomm)
{
    struct ms_communicator self, of_parent;
    if (!way->is_ours || result != ncclSuccess || newcomm == NULL || *newcomm == NULL)
        return result;
    ms_nccl_add_comm(*newcomm, way->nccl);
    if (is_blocking(config) && ms_communicator_find(parent, &of_parent) && of_parent.is_blocking &&
        query(way, *newcomm, &self)) {
        self.is_blocking = true;
        self.origin = MS_SPLIT_OFF;
        ms_communicator_set(*newcomm, &self);
    }
    return result;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm,
                           ncclConfig_t *config)
{
    FIND(ncclCommSplit, comm);
    return set_child(&way, GO_OUT(ncclCommSplit, (comm, color, key, newcomm, config)), comm, config,
                     newcomm);
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount,
                            ncclComm_t *newcomm, ncclConfig_t *config, int shrinkFlags)
{
    FIND(ncclCommShrink, comm);
    const ncclResult_t result = GO_OUT(ncclCommShrink, (comm, excludeRanksList, excludeRanksCount,
                                                        newcomm, config, shrinkFlags));
    return set_child(&way, result, comm, config, newcomm);
}

ncclResult_t ncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank,
                          ncclComm_t *newcomm, ncclConfig_t *config)
{
    FIND(ncclCommGrow, comm);
    const ncclResult_t result =
        GO_OUT(ncclCommGrow, (comm, nRanks, uniqueId, rank, newcomm, config));
    return set_child(&way, result, comm, config, newcomm);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    FIND(ncclCommFinalize, comm);
    return GO_OUT(ncclCommFinalize, (comm));
}

/* Forgets the communicator first, because the next one may get the same handle at once. */
#define END(name)                            \
    ncclResult_t name(ncclComm_t comm)       \
    {                                        \
        FIND(name, comm);                    \
        if (way.is_ours) {                   \
            ms_communicator_set(comm, NULL); \
            ms_nccl_forget_comm(comm);       \
        }                                    \
        return GO_OUT(name, (comm));         \
    }
END(ncclCommDestroy)
END(ncclCommAbort)

/* --- memory that NCCL keeps */

/* Brings the buffer into memory for good: NCCL maps it for other ranks by its handle (2.28 takes
 * one handle a buffer). */
static ncclResult_t pin(const struct way *way, const void *buff, size_t size)
{
    bool is_one_handle;
    if (!way->is_ours || !ms_owns_any())
        return ncclSuccess;
    const CUresult result = ms_access_export((CUdeviceptr)(uintptr_t)buff, size, &is_one_handle);
    if (result != CUDA_SUCCESS)
        ms_log(MS_ERROR, "%s: cannot materialise the buffer: CUDA error %d", ms_caller,
               (int)result);
    else if (!is_one_handle)
        ms_log(MS_WARN,
               "%s: the buffer was materialised in pieces earlier, and NCCL up to 2.29 cannot "
               "register it",
               ms_caller);
    return result == CUDA_SUCCESS ? ncclSuccess : ncclUnhandledCudaError;
}

/*
 * Registration only makes NCCL faster, and NCCL may decline it: with NCCL_LOCAL_REGISTER=0 the call
 * succeeds and gives no handle (nccl tag v2.28.9-1, src/register/register.cc; deregistering no
 * handle succeeds, too). PyTorch 2.15 registers every segment of its allocator with each
 * communicator, which would leave nothing deferred. All ranks must do alike, so the answer does not
 * depend on whether this buffer is in an allocation.
 */
ncclResult_t ncclCommRegister(ncclComm_t comm, void *buff, size_t size, void **handle)
{
    FIND(ncclCommRegister, comm);
    if (way.is_ours && !ms_config.nccl_register && handle != NULL) {
        *handle = NULL;
        return ncclSuccess;
    }
    const ncclResult_t pinned = pin(&way, buff, size);
    return GO_ON_IF(pinned, ncclCommRegister, (comm, buff, size, handle));
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
                                    int winFlags)
{
    FIND(ncclCommWindowRegister, comm);
    const ncclResult_t pinned = pin(&way, buff, size);
    return GO_ON_IF(pinned, ncclCommWindowRegister, (comm, buff, size, win, winFlags));
}

/* The collective reads the scalar when it runs. */
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm)
{
    FIND(ncclRedOpCreatePreMulSum, comm);
    const struct ms_operation operation = {.read = scalar};
    const ncclResult_t prepared =
        prepare_times(&way, operation, residence == NCCL_SCALAR_DEVICE, datatype, 1, 0);
    return GO_ON_IF(prepared, ncclRedOpCreatePreMulSum, (op, scalar, datatype, residence, comm));
}

/* --- looking up */

static void *wrapper_of(const char *wanted)
{
#define MS_NCCL(name, parameters, arguments) \
    if (strcmp(wanted, #name) == 0)          \
        return (void *)name;
#include "shim/nccl.def"
#undef MS_NCCL
    return NULL;
}

/* A call by an address from dlsym does not say which copy of NCCL it means, so only the first
 * copy's functions are replaced. Launches of other copies are handled as any other launch. */
void *ms_nccl_substitute(void *found, const char *name)
{
    void *wrapper = wrapper_of(name);
    return wrapper != NULL && ms_nccl_is_first(ms_nccl_detect(found)) ? wrapper : found;
}
