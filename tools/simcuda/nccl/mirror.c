/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIMNCCL_MIRROR: this process is the only one. The other ranks of a communicator are taken to do
 * what it does, with the same numbers: they are there at once, and nobody is waited for.
 */
#include "tools/simcuda/nccl/internal.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

/* Larger operations move nothing: nobody looks at what a dry run has in so many bytes. */
enum { MOVED_MAX_BYTES = 1 << 20, ADDED_MAX_BYTES = 4096 };

ncclResult_t nc_mirror_take_buffers(const struct ncclComm *comm)
{
    CUdeviceptr buffers;
    const size_t bytes = (size_t)nc_settings()->mirror_mib << 20;
    return bytes == 0 || comm->nranks == 1
               ? ncclSuccess
               : nc_driver_done(nc_cuda.cuMemAlloc(&buffers, bytes), "cuMemAlloc");
}

ncclResult_t nc_mirror_join(struct ncclComm *comm)
{
    NC_TRY(nc_mirror_take_buffers(comm));
    comm->segment_bytes = sizeof(struct nc_segment) + (size_t)comm->nranks * sizeof(struct nc_rank);
    void *memory = mmap(NULL, comm->segment_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        nc_say("no memory for the ranks of a communicator: %s", strerror(errno));
        return ncclSystemError;
    }
    comm->segment = memory;
    comm->segment->nranks = (uint32_t)comm->nranks;
    comm->peers = nc_zalloc((size_t)comm->nranks * sizeof(comm->peers[0]));
    for (int rank = 0; rank < comm->nranks; rank++) {
        comm->peers[rank] = -1;
        atomic_store(&comm->segment->ranks[rank].state, NC_READY);
    }
    nc_comm_list(comm);
    return ncclSuccess;
}

/* Into `to`, which is what it was when the source or it may not be touched. */
static void give(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    if (to != from && to != 0 && from != 0 && nc_cuda.can_touch(from, bytes, false) &&
        nc_cuda.can_touch(to, bytes, true))
        memmove((void *)to, (const void *)from, bytes);
}

static void reduce(const struct nc_op *op, CUdeviceptr from, size_t bytes)
{
    unsigned char own[ADDED_MAX_BYTES];
    const bool is_sum = op->op == ncclSum && bytes <= sizeof(own);
    give(op->recv, from, bytes);
    if (!is_sum || !nc_cuda.can_touch(op->recv, bytes, true))
        return;
    memcpy(own, (const void *)op->recv, bytes);
    for (int rank = 1; rank < op->comm->nranks; rank++)
        nc_combine(op->type, ncclSum, (void *)op->recv, own, op->count);
}

/*
 * The memory that the root of a broadcast sends. In a group with a broadcast of this rank, as
 * PyTorch gathers a list, each rank sends its own part, and a peer's part is like this rank's.
 */
static CUdeviceptr sent_by_root(const struct nc_batch *batch, const struct nc_op *op)
{
    const int rank = op->comm->rank;
    for (size_t i = 0; op->root != rank && i < batch->count; i++) {
        const struct nc_op *own = batch->ops[i];
        if (own->kind == NC_BROADCAST && own->root == rank && own->count == op->count &&
            own->type == op->type)
            return own->send;
    }
    return op->send;
}

void nc_mirror_run(const struct nc_batch *batch, const struct nc_op *op)
{
    const size_t bytes = op->count * nc_type_bytes(op->type);
    const CUdeviceptr rank = (CUdeviceptr)op->comm->rank;
    if (bytes > MOVED_MAX_BYTES)
        return;
    switch (op->kind) {
    case NC_ALL_REDUCE:
    case NC_REDUCE:
        reduce(op, op->send, bytes);
        return;
    case NC_REDUCE_SCATTER:
        reduce(op, op->send + rank * bytes, bytes);
        return;
    case NC_BROADCAST:
        give(op->recv, sent_by_root(batch, op), bytes);
        return;
    case NC_ALL_GATHER:
        /* This rank's part first: in place, the source is one of the parts. */
        give(op->recv + rank * bytes, op->send, bytes);
        for (CUdeviceptr other = 0; other < (CUdeviceptr)op->comm->nranks; other++)
            give(op->recv + other * bytes, op->recv + rank * bytes, bytes);
        return;
    default:
        return; /* what a peer sends is not known */
    }
}
