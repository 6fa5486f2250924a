/* SPDX-License-Identifier: Apache-2.0 */
/*
 * multi_tensor_apply_kernel<TensorListMetadata<2>, ..., Copy<in, out>> (MultiTensorApply.cuh): what
 * torch._foreach_copy_ launches. Only whole tensors are copied here, each with the blocks it has in
 * the launch. Releases that keep the parameters below 4 KiB, as 2.11, have room for fewer tensors.
 */
#include "tools/simcuda/torch/host.h"

enum { CHUNK = 65536 };

struct metadata {
    CUdeviceptr addresses[2][448]; /* from, to */
    int64_t numel[448];
    uint16_t block_to_tensor[2240];
    int32_t block_to_chunk[2240];
    int32_t start_tensor;
};

struct small_metadata {
    CUdeviceptr addresses[2][64];
    int64_t numel[64];
    uint8_t block_to_tensor[320];
    int32_t block_to_chunk[320];
    int32_t start_tensor;
};

/* The elements that one block of the launch copies. */
struct chunk {
    CUdeviceptr from, to;
    int64_t numel; /* of the tensor */
    int32_t number;
};

static struct chunk chunk_of(const struct simcuda_launch *launch, const void *list, unsigned block)
{
    if (launch->args_bytes < sizeof(struct metadata)) {
        const struct small_metadata *small = list;
        const unsigned tensor = small->block_to_tensor[block];
        return (struct chunk){small->addresses[0][tensor], small->addresses[1][tensor],
                              small->numel[tensor], small->block_to_chunk[block]};
    }
    const struct metadata *large = list;
    const unsigned tensor = large->block_to_tensor[block];
    return (struct chunk){large->addresses[0][tensor], large->addresses[1][tensor],
                          large->numel[tensor], large->block_to_chunk[block]};
}

/* The type of the destination is first; CopyFunctor is of two types, and has both in full. */
static bool read_types(const char *name, enum host_type *to_out, enum host_type *from_out)
{
    enum host_type types[2];
    const char *at = strstr(name, "4CopyI");
    if (host_types_behind(name, "11CopyFunctorI", types, 2)) {
        *to_out = types[0];
        *from_out = types[1];
        return true;
    }
    if (at == NULL)
        return false;
    at += strlen("4CopyI");
    *to_out = host_parse_type(&at, host_type_behind(name, "FunctorI"));
    *from_out = host_parse_type(&at, *to_out);
    return *to_out != HOST_NONE && *from_out != HOST_NONE;
}

static void copy_chunk(const struct simcuda_launch *launch, const struct chunk *chunk,
                       enum host_type to_type, enum host_type from_type)
{
    const size_t begin = (size_t)chunk->number * CHUNK;
    size_t count = (size_t)chunk->numel - begin;
    if (count > CHUNK)
        count = CHUNK;
    const size_t from_size = host_size(from_type);
    const size_t to_size = host_size(to_type);
    const unsigned char *from =
        launch->touch(launch, chunk->from + begin * from_size, count * from_size);
    unsigned char *to =
        from == NULL ? NULL : launch->touch(launch, chunk->to + begin * to_size, count * to_size);
    if (to != NULL && from_type == to_type)
        memcpy(to, from, count * to_size);
    for (size_t i = 0; to != NULL && from_type != to_type && i < count; i++)
        host_store(to + i * to_size, to_type, host_load(from + i * from_size, from_type));
}

static void run(const struct simcuda_launch *launch, void **args)
{
    enum host_type to, from;
    if (!read_types(launch->name, &to, &from))
        return;
    for (unsigned block = 0; block < launch->grid[0]; block++) {
        const struct chunk chunk = chunk_of(launch, args[0], block);
        copy_chunk(launch, &chunk, to, from);
    }
}

simcuda_kernel *host_find_foreach(const char *name)
{
    enum host_type to, from;
    return strstr(name, "25multi_tensor_apply_kernelI") != NULL &&
                   strstr(name, "18TensorListMetadataILi2EE") != NULL &&
                   read_types(name, &to, &from)
               ? run
               : NULL;
}
