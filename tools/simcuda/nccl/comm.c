/* SPDX-License-Identifier: Apache-2.0 */
/* The object that a communicator is, and what can be asked of it. */
#include "tools/simcuda/nccl/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMM_MAGIC 0x6d6d6f436c6363ull

NC_API(ncclGetVersion);
NC_API(ncclGetUniqueId);
NC_API(ncclGetErrorString);
NC_API(ncclGetLastError);
NC_API(ncclCommGetAsyncError);
NC_API(ncclCommCount);
NC_API(ncclCommCuDevice);
NC_API(ncclCommUserRank);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
/* Later headers make macros of it, unless NCCL's own build says that this is Linux. */
#undef ncclResetDebugInit
#undef pncclResetDebugInit
void ncclResetDebugInit(void);
NC_API(ncclResetDebugInit);

void ncclResetDebugInit(void)
{
}
#pragma GCC diagnostic pop

/* --- the library */

ncclResult_t ncclGetVersion(int *version)
{
    if (version == NULL)
        return ncclInvalidArgument;
    *version = nc_settings()->version;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId)
{
    NC_ENTER();
    nc_settings();
    return uniqueId == NULL ? ncclInvalidArgument : nc_id_create(uniqueId);
}

const char *ncclGetErrorString(ncclResult_t result)
{
    switch ((int)result) {
    case ncclSuccess:
        return "no error";
    case ncclUnhandledCudaError:
        return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
        return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
        return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
        return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
        return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
        return "remote process exited or there was a network error";
    case ncclInProgress:
        return "NCCL operation in progress";
    default:
        return "unknown result code";
    }
}

const char *ncclGetLastError(__attribute__((unused)) ncclComm_t comm)
{
    return nc_last_words();
}

/* --- objects */

static atomic_int comms_made;

static bool is_blocking(const ncclConfig_t *config, const struct ncclComm *parent)
{
    if (config != NULL && config->blocking != NCCL_CONFIG_UNDEF_INT)
        return config->blocking != 0;
    return parent == NULL || parent->blocking;
}

struct ncclComm *nc_comm_create(int nranks, int rank, const ncclConfig_t *config,
                                const struct ncclComm *parent)
{
    struct ncclComm *comm = nc_zalloc(sizeof(*comm));
    comm->magic = COMM_MAGIC;
    comm->references = 1;
    comm->number = atomic_fetch_add(&comms_made, 1);
    comm->nranks = nranks;
    comm->rank = rank;
    comm->blocking = is_blocking(config, parent);
    snprintf(comm->name, sizeof(comm->name), "communicator %d", comm->number);
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->turned, NULL);
    return comm;
}

void nc_comm_keep(struct ncclComm *comm)
{
    atomic_fetch_add(&comm->references, 1);
}

void nc_comm_drop(struct ncclComm *comm)
{
    if (atomic_fetch_sub(&comm->references, 1) != 1)
        return;
    comm->magic = 0;
    nc_leave(comm);
    free(comm->operators);
    pthread_cond_destroy(&comm->turned);
    pthread_mutex_destroy(&comm->lock);
    free(comm);
}

ncclResult_t nc_comm_check(const struct ncclComm *comm, const char *call)
{
    if (comm != NULL && comm->magic == COMM_MAGIC && !comm->destroyed)
        return ncclSuccess;
    nc_say("%s: this is no communicator", call);
    return ncclInvalidArgument;
}

ncclResult_t nc_comm_ready(struct ncclComm *comm, const char *call)
{
    ncclResult_t state;
    NC_TRY(nc_comm_check(comm, call));
    NC_TRY(ncclCommGetAsyncError(comm, &state));
    if (state == ncclInProgress) {
        nc_say("%s: the communicator is still busy with what came before", call);
        return ncclInvalidArgument;
    }
    return state;
}

/* --- questions */

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError)
{
    NC_TRY(nc_comm_check(comm, "ncclCommGetAsyncError"));
    if (asyncError == NULL)
        return ncclInvalidArgument;
    const bool is_busy = atomic_load(&comm->jobs) > 0;
    if (!is_busy)
        nc_comm_listen(comm);
    *asyncError = (ncclResult_t)atomic_load(&comm->async_error);
    if (*asyncError == ncclSuccess && is_busy)
        *asyncError = ncclInProgress;
    return ncclSuccess;
}

static ncclResult_t ask(ncclComm_t comm, const void *place, const char *call)
{
    NC_TRY(nc_comm_ready(comm, call));
    return place == NULL ? ncclInvalidArgument : ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    NC_ENTER();
    NC_TRY(ask(comm, count, "ncclCommCount"));
    *count = comm->nranks;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    NC_TRY(ask(comm, device, "ncclCommCuDevice"));
    *device = comm->device;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    NC_ENTER();
    NC_TRY(ask(comm, rank, "ncclCommUserRank"));
    *rank = comm->rank;
    return ncclSuccess;
}
