/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/ranks/flows/scatter.h"

#include <stdlib.h>

enum { ELEMENT = sizeof(float) };

struct chunk {
    CUdeviceptr address;
    bool is_copy;
};

/* The shape of all chunks together, with the padding. */
static struct region padded_shape(const struct parameter *parameter)
{
    const uint64_t *shape = parameter->shape;
    if (flow_by_columns(parameter)) {
        const size_t row_bytes = flow_chunk_length(shape[1], flow.ranks) * ELEMENT;
        return (struct region){0, shape[0], row_bytes, row_bytes};
    }
    return (struct region){0, flow_chunk_length(shape[0], flow.ranks), shape[1] * ELEMENT,
                           shape[1] * ELEMENT};
}

/* Shard._split_tensor(with_padding, contiguous): whole rows stay where they are, everything else is
 * a copy. */
static struct chunk split(const struct parameter *parameter, CUdeviceptr whole, int index)
{
    const struct region part = flow_part(parameter, whole, index, flow.ranks);
    struct region padded = padded_shape(parameter);
    const size_t bytes = flow_region_bytes(&padded);
    const bool is_short = flow_region_bytes(&part) < bytes;
    if (!is_short && !flow_by_columns(parameter) && !flow.copies)
        return (struct chunk){part.address, false};
    padded.address = flow_allocate(bytes);
    if (is_short)
        flow_zero(padded.address, bytes);
    flow_copy_region(&padded, &part);
    return (struct chunk){padded.address, true};
}

/* dist.scatter: a group of sends and receives, with the root's own copy inside. */
static void scatter(const struct chunk *chunks, CUdeviceptr output, size_t bytes)
{
    const cudaStream_t stream = (cudaStream_t)flow.stream;
    int ranks, rank;
    NCCL(ncclCommCount(flow.world, &ranks));
    NCCL(ncclCommUserRank(flow.world, &rank));
    NCCL(ncclGroupStart());
    for (int i = 0; rank == 0 && i < ranks; i++) {
        if (i == rank)
            flow_copy(output, chunks[i].address, bytes);
        else
            NCCL(ncclSend((const void *)chunks[i].address, bytes / ELEMENT, ncclFloat, i,
                          flow.world, stream));
    }
    if (rank != 0)
        NCCL(ncclRecv((void *)output, bytes / ELEMENT, ncclFloat, 0, flow.world, stream));
    NCCL(ncclGroupEnd());
}

/* Rows are a view of the output; fewer columns become a tensor of their own. */
static struct region unpad(const struct parameter *parameter, CUdeviceptr output)
{
    const struct region padded = padded_shape(parameter);
    struct region own = flow_part(parameter, 0, flow.rank, flow.ranks);
    own.address = output;
    own.pitch = own.row_bytes;
    if (own.row_bytes == padded.row_bytes)
        return own;
    const struct region narrow = {output, own.rows, own.row_bytes, padded.pitch};
    own.address = flow_allocate(flow_region_bytes(&own));
    flow_copy_region(&own, &narrow);
    flow_free(output);
    return own;
}

struct region scatter_tensor(const struct parameter *parameter, CUdeviceptr whole)
{
    const struct region padded = padded_shape(parameter);
    struct chunk *chunks = calloc((size_t)flow.ranks, sizeof(*chunks));
    if (chunks == NULL)
        exit(1);
    for (int i = 0; i < flow.ranks; i++)
        chunks[i] = split(parameter, whole, i);
    const CUdeviceptr output = flow_allocate(flow_region_bytes(&padded));
    scatter(chunks, output, flow_region_bytes(&padded));
    for (int i = 0; i < flow.ranks; i++) {
        if (chunks[i].is_copy)
            flow_free(chunks[i].address);
    }
    free(chunks);
    return unpad(parameter, output);
}
