/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions that NCCL has had since 2.29 to 2.32, which programs built with those import. They
 * answer as a machine without NVLink multicast, and without network cards that reach the device's
 * memory: where such a machine says ncclInvalidUsage, so do these functions.
 */
#include "tools/simcuda/nccl/internal.h"

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 29, 0)
#define SUSPEND_MEM 0x01 /* NCCL_SUSPEND_MEM */
/* As in nccl.h of 2.30.7. */
typedef enum {
    ncclStatGpuMemSuspend = 0,
    ncclStatGpuMemSuspended = 1,
    ncclStatGpuMemPersist = 2,
    ncclStatGpuMemTotal = 3
} ncclCommMemStat_t;
typedef struct {
    int opCnt, peer, sigIdx, ctx;
} ncclWaitSignalDesc_t;
ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *uniqueId);
ncclResult_t ncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank,
                          ncclComm_t *newcomm, ncclConfig_t *config);
ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags);
ncclResult_t ncclCommResume(ncclComm_t comm);
ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value);
ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void **outUserPtr);
ncclResult_t ncclPutSignal(const void *localbuff, size_t count, ncclDataType_t datatype, int peer,
                           ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx,
                           unsigned int flags, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
                        cudaStream_t stream);
ncclResult_t ncclWaitSignal(int nDesc, ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm,
                            cudaStream_t stream);
#else
#define SUSPEND_MEM NCCL_SUSPEND_MEM
#endif
/* As in nccl_device/core.h of 2.30.7, whose types are the device's business. */
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const void *reqs, void *outDevComm);
ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const void *devComm);
ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void **outPtr);
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void **outPtr);

NC_API(ncclCommGetUniqueId);
NC_API(ncclCommGrow);
NC_API(ncclCommSuspend);
NC_API(ncclCommResume);
NC_API(ncclCommMemStats);
NC_API(ncclWinGetUserPtr);
NC_API(ncclPutSignal);
NC_API(ncclSignal);
NC_API(ncclWaitSignal);
NC_API(ncclDevCommCreate);
NC_API(ncclDevCommDestroy);
NC_API(ncclGetLsaMultimemDevicePointer);
NC_API(ncclGetPeerDevicePointer);

/* --- collectives with a configuration of the call */

/* As in nccl.h of 2.32.3: how to run it, not what it does. */
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 32, 0)
typedef struct {
    size_t size;
    unsigned int magic, version;
} ncclCollConfig_t;
#endif
enum { MAGIC = 0xcafebeef };

static ncclResult_t check_config(const char *call, const ncclCollConfig_t *config)
{
    if (config == NULL || (config->size >= sizeof(*config) && config->magic == (unsigned)MAGIC))
        return ncclSuccess;
    nc_say("%s: the configuration is not initialised", call);
    return ncclInvalidArgument;
}

/* Not through the public names: who interposes those alone sees nothing of these. */
#define CONFIGURED(name, parameters, arguments)                                          \
    extern __typeof__(name) p##name;                                                     \
    ncclResult_t name##Config parameters;                                                \
    NC_API(name##Config);                                                                \
    ncclResult_t name##Config parameters                                                 \
    {                                                                                    \
        const ncclResult_t result = nc_group_note(check_config(#name "Config", config)); \
        return result != ncclSuccess ? result : p##name arguments;                       \
    }
CONFIGURED(ncclReduce,
           (const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
            ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config),
           (from, to, count, type, op, root, comm, stream))
CONFIGURED(ncclBroadcast,
           (const void *from, void *to, size_t count, ncclDataType_t type, int root,
            ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config),
           (from, to, count, type, root, comm, stream))
CONFIGURED(ncclAllReduce,
           (const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
            ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config),
           (from, to, count, type, op, comm, stream))
CONFIGURED(ncclReduceScatter,
           (const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
            ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config),
           (from, to, count, type, op, comm, stream))
CONFIGURED(ncclAllGather,
           (const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
            cudaStream_t stream, const ncclCollConfig_t *config),
           (from, to, count, type, comm, stream))
CONFIGURED(ncclAlltoAll,
           (const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
            cudaStream_t stream, const ncclCollConfig_t *config),
           (from, to, count, type, comm, stream))
CONFIGURED(ncclGather,
           (const void *from, void *to, size_t count, ncclDataType_t type, int root,
            ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config),
           (from, to, count, type, root, comm, stream))
CONFIGURED(ncclScatter,
           (const void *from, void *to, size_t count, ncclDataType_t type, int root,
            ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config),
           (from, to, count, type, root, comm, stream))

/* --- memory of the communicator */

/* It takes none of the device, so there is nothing to give back; operations must wait all the
 * same. */
ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags)
{
    NC_TRY(nc_comm_ready(comm, "ncclCommSuspend"));
    if (flags != SUSPEND_MEM)
        return ncclInvalidArgument;
    if (atomic_exchange(&comm->suspended, true)) {
        nc_say("ncclCommSuspend: %s is suspended already", comm->name);
        return ncclInvalidUsage;
    }
    return ncclSuccess;
}

ncclResult_t ncclCommResume(ncclComm_t comm)
{
    NC_TRY(nc_comm_ready(comm, "ncclCommResume"));
    if (!atomic_exchange(&comm->suspended, false)) {
        nc_say("ncclCommResume: %s is not suspended", comm->name);
        return ncclInvalidUsage;
    }
    return ncclSuccess;
}

ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value)
{
    NC_TRY(nc_comm_ready(comm, "ncclCommMemStats"));
    if (value == NULL || (int)stat < ncclStatGpuMemSuspend || (int)stat > ncclStatGpuMemTotal)
        return ncclInvalidArgument;
    *value = stat == ncclStatGpuMemSuspended && atomic_load(&comm->suspended);
    return ncclSuccess;
}

ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void **outUserPtr)
{
    NC_TRY(nc_comm_check(comm, "ncclWinGetUserPtr"));
    if (win == NULL || outUserPtr == NULL)
        return ncclInvalidArgument;
    return nc_registration_begin(comm, win, outUserPtr);
}

/* A rank reaches its own memory only. Where it cannot load from a peer's or store to it, and where
 * there is no multicast, NCCL succeeds with NULL; XLA's collectives depend on that. */
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void **outPtr)
{
    const struct nc_registration *made = (const struct nc_registration *)window;
    if (made == NULL || outPtr == NULL || peer < 0 || peer >= made->comm->nranks ||
        offset >= made->bytes)
        return ncclInvalidArgument;
    *outPtr = peer == made->comm->rank ? (void *)(made->begin + offset) : NULL;
    return ncclSuccess;
}

ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void **outPtr)
{
    const struct nc_registration *made = (const struct nc_registration *)window;
    if (made == NULL || outPtr == NULL || offset >= made->bytes)
        return ncclInvalidArgument;
    *outPtr = NULL;
    return ncclSuccess;
}

/* --- what this machine has not */

static ncclResult_t refuse(const char *call, const char *what)
{
    nc_say("%s: %s", call, what);
    return ncclInvalidUsage;
}

#define UNUSED __attribute__((unused))

ncclResult_t ncclCommGetUniqueId(UNUSED ncclComm_t comm, UNUSED ncclUniqueId *uniqueId)
{
    return refuse("ncclCommGetUniqueId", "communicators do not grow here");
}

ncclResult_t ncclCommGrow(UNUSED ncclComm_t comm, UNUSED int nRanks,
                          UNUSED const ncclUniqueId *uniqueId, UNUSED int rank,
                          UNUSED ncclComm_t *newcomm, UNUSED ncclConfig_t *config)
{
    return nc_group_note(refuse("ncclCommGrow", "communicators do not grow here"));
}

static ncclResult_t refuse_one_sided(const char *call)
{
    return nc_group_note(refuse(call, "no rank can reach the memory of another here"));
}

ncclResult_t ncclPutSignal(UNUSED const void *localbuff, UNUSED size_t count,
                           UNUSED ncclDataType_t datatype, UNUSED int peer,
                           UNUSED ncclWindow_t peerWin, UNUSED size_t peerWinOffset,
                           UNUSED int sigIdx, UNUSED int ctx, UNUSED unsigned int flags,
                           UNUSED ncclComm_t comm, UNUSED cudaStream_t stream)
{
    return refuse_one_sided("ncclPutSignal");
}

ncclResult_t ncclSignal(UNUSED int peer, UNUSED int sigIdx, UNUSED int ctx,
                        UNUSED unsigned int flags, UNUSED ncclComm_t comm,
                        UNUSED cudaStream_t stream)
{
    return refuse_one_sided("ncclSignal");
}

ncclResult_t ncclWaitSignal(UNUSED int nDesc, UNUSED ncclWaitSignalDesc_t *signalDescs,
                            UNUSED ncclComm_t comm, UNUSED cudaStream_t stream)
{
    return refuse_one_sided("ncclWaitSignal");
}

ncclResult_t ncclDevCommCreate(UNUSED ncclComm_t comm, UNUSED const void *reqs,
                               UNUSED void *outDevComm)
{
    return refuse("ncclDevCommCreate", "kernels do not communicate here");
}

ncclResult_t ncclDevCommDestroy(UNUSED ncclComm_t comm, UNUSED const void *devComm)
{
    return refuse("ncclDevCommDestroy", "kernels do not communicate here");
}
