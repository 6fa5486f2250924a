/* SPDX-License-Identifier: Apache-2.0 */
/* The entry points of operations: arguments, and what becomes of them. */
#include "tools/simcuda/nccl/internal.h"

#include <stdlib.h>
#include <string.h>

NC_API(ncclAllReduce);
NC_API(ncclBroadcast);
NC_API(ncclBcast);
NC_API(ncclReduce);
NC_API(ncclAllGather);
NC_API(ncclReduceScatter);
NC_API(ncclAlltoAll);
NC_API(ncclGather);
NC_API(ncclScatter);
NC_API(ncclSend);
NC_API(ncclRecv);
NC_API(ncclRedOpCreatePreMulSum);
NC_API(ncclRedOpDestroy);

/* One call, before anything is checked. */
struct call {
    const char *name;
    enum nc_kind kind;
    const void *send;
    void *recv;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int root; /* or the peer */
    ncclComm_t comm;
    cudaStream_t stream;
};

static bool has_operator(enum nc_kind kind)
{
    return kind == NC_ALL_REDUCE || kind == NC_REDUCE || kind == NC_REDUCE_SCATTER;
}

/* --- checks */

static ncclResult_t check_pointer(const struct call *call, const void *pointer)
{
    unsigned type = 0;
    if (nc_cuda.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      (CUdeviceptr)pointer) == CUDA_SUCCESS)
        return ncclSuccess;
    nc_say("%s: %p is no pointer of the device", call->name, pointer);
    return ncclInvalidArgument;
}

static ncclResult_t check_pointers(const struct call *call)
{
    const int rank = call->comm->rank;
    const bool is_root = call->root == rank;
    const bool sends = call->kind != NC_RECV &&
                       ((call->kind != NC_BROADCAST && call->kind != NC_SCATTER) || is_root);
    const bool receives =
        call->kind != NC_SEND && ((call->kind != NC_REDUCE && call->kind != NC_GATHER) || is_root);
    if (!nc_settings()->check_pointers || call->count == 0)
        return ncclSuccess;
    if (sends)
        NC_TRY(check_pointer(call, call->send));
    return receives ? check_pointer(call, call->recv) : ncclSuccess;
}

static ncclResult_t find_operator(const struct call *call, struct nc_reduction *reduction_out)
{
    struct ncclComm *comm = call->comm;
    const int index = (int)call->op - (int)ncclNumOps;
    ncclResult_t result = ncclSuccess;
    *reduction_out = (struct nc_reduction){.op = call->op};
    if (!has_operator(call->kind))
        return ncclSuccess;
    if (call->op == ncclAvg)
        nc_average(call->type, comm->nranks, reduction_out);
    if ((unsigned)call->op < ncclNumOps)
        return ncclSuccess;
    pthread_mutex_lock(&comm->lock);
    if (index < 0 || index >= comm->operators_count || !comm->operators[index].used ||
        comm->operators[index].type != call->type)
        result = ncclInvalidArgument;
    else
        *reduction_out = comm->operators[index].reduction;
    pthread_mutex_unlock(&comm->lock);
    if (result != ncclSuccess)
        nc_say("%s: no such operator for %s: %d", call->name, nc_type_name(call->type),
               (int)call->op);
    return result;
}

static ncclResult_t check(const struct call *call)
{
    const size_t size = nc_type_bytes(call->type);
    size_t bytes;
    NC_TRY(nc_comm_ready(call->comm, call->name));
    if (atomic_load(&call->comm->stop) != NC_RUN || call->comm->finalized) {
        nc_say("%s: the communicator was finalized or revoked", call->name);
        return ncclInvalidUsage;
    }
    if (atomic_load(&call->comm->suspended)) {
        nc_say("%s: the communicator is suspended", call->name);
        return ncclInvalidUsage;
    }
    if (size == 0) {
        nc_say("%s: no such type: %d", call->name, (int)call->type);
        return ncclInvalidArgument;
    }
    if (call->root < 0 || call->root >= call->comm->nranks) {
        nc_say("%s: rank %d of %d", call->name, call->root, call->comm->nranks);
        return ncclInvalidArgument;
    }
    if (__builtin_mul_overflow(call->count, size * (size_t)call->comm->nranks, &bytes)) {
        nc_say("%s: %zu elements are too many", call->name, call->count);
        return ncclInvalidArgument;
    }
    if (call->kind == NC_ALL_TO_ALL && call->send == call->recv && nc_settings()->strict) {
        nc_say("%s: not possible in place", call->name);
        return ncclInvalidArgument;
    }
    return check_pointers(call);
}

/* --- one rank: a copy, at the call also inside a group */

static ncclResult_t run_alone(const struct call *call, const struct nc_op *op)
{
    CUcontext popped;
    const CUdeviceptr from = (CUdeviceptr)call->send;
    const CUdeviceptr to = (CUdeviceptr)call->recv;
    if (op->reduction.is_scaled) {
        struct nc_op *own = nc_zalloc(sizeof(*own));
        *own = *op;
        nc_comm_keep(own->comm);
        return nc_group_add_op(own);
    }
    if (from == to)
        return ncclSuccess;
    NC_TRY(nc_driver_done(nc_cuda.cuCtxPushCurrent(call->comm->context), "cuCtxPushCurrent"));
    const CUresult result =
        nc_cuda.cuMemcpyDtoDAsync(to, from, call->count * nc_type_bytes(call->type), call->stream);
    nc_cuda.cuCtxPopCurrent(&popped);
    return nc_driver_done(result, "cuMemcpyDtoDAsync");
}

/* --- several ranks */

static ncclResult_t add(const struct nc_op *op)
{
    struct nc_op *own = nc_zalloc(sizeof(*own));
    *own = *op;
    nc_comm_keep(own->comm);
    return nc_group_add_op(own);
}

static ncclResult_t add_part(const struct nc_op *whole, enum nc_kind kind, CUdeviceptr address,
                             int peer)
{
    struct nc_op part = *whole;
    part.kind = kind;
    part.root = peer;
    part.send = kind == NC_SEND ? address : 0;
    part.recv = kind == NC_RECV ? address : 0;
    return add(&part);
}

/* AlltoAll, Gather and Scatter are sends and receives, as in NCCL. */
static ncclResult_t add_parts(const struct nc_op *op)
{
    const struct ncclComm *comm = op->comm;
    const size_t bytes = op->count * nc_type_bytes(op->type);
    const bool is_root = comm->rank == op->root;
    for (int rank = 0; rank < comm->nranks; rank++) {
        const CUdeviceptr piece = (CUdeviceptr)rank * bytes;
        const bool is_all = op->kind == NC_ALL_TO_ALL;
        if (is_all || (op->kind == NC_SCATTER && is_root))
            NC_TRY(add_part(op, NC_SEND, op->send + piece, rank));
        if (is_all || (op->kind == NC_GATHER && is_root))
            NC_TRY(add_part(op, NC_RECV, op->recv + piece, rank));
    }
    if (op->kind == NC_GATHER)
        return add_part(op, NC_SEND, op->send, op->root);
    return op->kind == NC_SCATTER ? add_part(op, NC_RECV, op->recv, op->root) : ncclSuccess;
}

static ncclResult_t enqueue_checked(const struct call *call, const struct nc_op *op)
{
    const bool is_peer = call->kind == NC_SEND || call->kind == NC_RECV;
    unsigned value;
    if (call->count == 0 && !is_peer)
        return ncclSuccess;
    if (call->comm->nranks == 1 && !is_peer)
        return run_alone(call, op);
    if (nc_fault_find(call->comm, call->comm->calls++, true, &value) == NC_FAULT_ERROR) {
        nc_say("%s rank %d: %s returns the wanted error %u", call->comm->name, call->comm->rank,
               call->name, value);
        return (ncclResult_t)value;
    }
    if (call->kind != NC_ALL_TO_ALL && call->kind != NC_GATHER && call->kind != NC_SCATTER)
        return add(op);
    nc_group_start_quietly();
    nc_group_note(add_parts(op));
    return nc_group_end_quietly();
}

static ncclResult_t enqueue(const struct call *call)
{
    struct nc_op op = {
        .comm = call->comm,
        .stream = (CUstream)call->stream,
        .kind = call->kind,
        .send = (CUdeviceptr)call->send,
        .recv = (CUdeviceptr)call->recv,
        .count = call->count,
        .type = call->type,
        .op = call->op,
        .root = call->root,
    };
    ncclResult_t result = check(call);
    if (result == ncclSuccess)
        result = find_operator(call, &op.reduction);
    if (result == ncclSuccess)
        result = enqueue_checked(call, &op);
    nc_group_note(result);
    if ((result == ncclSuccess || result == ncclInProgress) && !call->comm->blocking)
        ncclCommGetAsyncError(call->comm, &result);
    return result;
}

ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count,
                           ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream)
{
    NC_ENTER();
    const struct call call = {
        "ncclAllReduce", NC_ALL_REDUCE, sendbuff, recvbuff, count, datatype, op, 0, comm, stream};
    return enqueue(&call);
}

ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count,
                           ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream)
{
    NC_ENTER();
    const struct call call = {"ncclBroadcast", NC_BROADCAST, sendbuff, recvbuff, count,
                              datatype,        ncclSum,      root,     comm,     stream};
    return enqueue(&call);
}

/* Through the public name, as in NCCL: whoever interposes that sees it. */
ncclResult_t ncclBcast(void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                       cudaStream_t stream)
{
    NC_ENTER();
    return ncclBroadcast(buff, buff, count, datatype, root, comm, stream);
}

ncclResult_t ncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
    NC_ENTER();
    const struct call call = {"ncclReduce", NC_REDUCE, sendbuff, recvbuff, count,
                              datatype,     op,        root,     comm,     stream};
    return enqueue(&call);
}

ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount,
                           ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream)
{
    NC_ENTER();
    const struct call call = {"ncclAllGather", NC_ALL_GATHER, sendbuff, recvbuff, sendcount,
                              datatype,        ncclSum,       0,        comm,     stream};
    return enqueue(&call);
}

ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                               ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream)
{
    NC_ENTER();
    const struct call call = {"ncclReduceScatter",
                              NC_REDUCE_SCATTER,
                              sendbuff,
                              recvbuff,
                              recvcount,
                              datatype,
                              op,
                              0,
                              comm,
                              stream};
    return enqueue(&call);
}

ncclResult_t ncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count,
                          ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream)
{
    NC_ENTER();
    const struct call call = {"ncclAlltoAll", NC_ALL_TO_ALL, sendbuff, recvbuff, count,
                              datatype,       ncclSum,       0,        comm,     stream};
    return enqueue(&call);
}

ncclResult_t ncclGather(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                        int root, ncclComm_t comm, cudaStream_t stream)
{
    NC_ENTER();
    const struct call call = {"ncclGather", NC_GATHER, sendbuff, recvbuff, count,
                              datatype,     ncclSum,   root,     comm,     stream};
    return enqueue(&call);
}

ncclResult_t ncclScatter(const void *sendbuff, void *recvbuff, size_t count,
                         ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream)
{
    NC_ENTER();
    const struct call call = {"ncclScatter", NC_SCATTER, sendbuff, recvbuff, count,
                              datatype,      ncclSum,    root,     comm,     stream};
    return enqueue(&call);
}

ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    NC_ENTER();
    const struct call call = {"ncclSend", NC_SEND, sendbuff, NULL, count,
                              datatype,   ncclSum, peer,     comm, stream};
    return enqueue(&call);
}

ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    NC_ENTER();
    const struct call call = {"ncclRecv", NC_RECV, NULL, recvbuff, count,
                              datatype,   ncclSum, peer, comm,     stream};
    return enqueue(&call);
}

/* --- operators of the program */

static int take_place_locked(struct ncclComm *comm)
{
    for (int i = 0; i < comm->operators_count; i++) {
        if (!comm->operators[i].used)
            return i;
    }
    const size_t bytes = (size_t)comm->operators_count * sizeof(comm->operators[0]);
    struct nc_operator *grown = nc_zalloc(bytes + sizeof(grown[0]));
    if (bytes > 0)
        memcpy(grown, comm->operators, bytes);
    free(comm->operators);
    comm->operators = grown;
    return comm->operators_count++;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm)
{
    NC_ENTER();
    struct nc_operator made = {true, datatype, {.op = ncclSum, .is_scaled = true}};
    NC_TRY(nc_comm_ready(comm, "ncclRedOpCreatePreMulSum"));
    if (op == NULL || scalar == NULL || nc_type_bytes(datatype) == 0)
        return ncclInvalidArgument;
    if (residence == ncclScalarHostImmediate)
        memcpy(made.reduction.scalar, scalar, nc_type_bytes(datatype));
    else if (residence == ncclScalarDevice)
        made.reduction.scalar_address = (CUdeviceptr)scalar;
    else
        return ncclInvalidArgument;
    pthread_mutex_lock(&comm->lock);
    const int place = take_place_locked(comm);
    comm->operators[place] = made;
    pthread_mutex_unlock(&comm->lock);
    *op = (ncclRedOp_t)((int)ncclNumOps + place);
    return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    const int place = (int)op - (int)ncclNumOps;
    NC_TRY(nc_comm_check(comm, "ncclRedOpDestroy"));
    pthread_mutex_lock(&comm->lock);
    const bool is_there =
        place >= 0 && place < comm->operators_count && comm->operators[place].used;
    if (is_there)
        comm->operators[place].used = false;
    pthread_mutex_unlock(&comm->lock);
    if (!is_there)
        nc_say("ncclRedOpDestroy: no such operator: %d", (int)op);
    return is_there ? ncclSuccess : ncclInvalidArgument;
}
