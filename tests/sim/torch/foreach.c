/* SPDX-License-Identifier: Apache-2.0 */
/*
 * multi_tensor_apply_kernel<TensorListMetadata<2>, ..., Copy<in, out>> (MultiTensorApply.cuh): what
 * torch._foreach_copy_ launches. Only whole tensors are copied here, each with the blocks it has in the
 * launch.
 */
#include "tests/sim/torch/host.h"

enum { MAX_TENSORS = 448, MAX_BLOCKS = 2240, CHUNK = 65536 };

struct metadata {
    CUdeviceptr addresses[2][MAX_TENSORS]; /* from, to */
    int64_t numel[MAX_TENSORS];
    uint16_t block_to_tensor[MAX_BLOCKS];
    int32_t block_to_chunk[MAX_BLOCKS];
    int32_t start_tensor;
};

/* "4CopyI" has the type of the destination first. */
static bool read_types(const char *name, enum host_type *to_out, enum host_type *from_out)
{
    const char *at = strstr(name, "4CopyI");
    if (at == NULL)
        return false;
    at += strlen("4CopyI");
    *to_out = host_parse_type(&at, host_type_behind(name, "FunctorI"));
    *from_out = host_parse_type(&at, *to_out);
    return *to_out != HOST_NONE && *from_out != HOST_NONE;
}

static void copy_chunk(const struct simcuda_launch *launch, const struct metadata *list,
                       unsigned block, enum host_type to_type, enum host_type from_type)
{
    const unsigned tensor = list->block_to_tensor[block];
    const size_t begin = (size_t)list->block_to_chunk[block] * CHUNK;
    size_t count = (size_t)list->numel[tensor] - begin;
    if (count > CHUNK)
        count = CHUNK;
    const size_t from_size = host_size(from_type);
    const size_t to_size = host_size(to_type);
    const unsigned char *from =
        launch->touch(launch, list->addresses[0][tensor] + begin * from_size, count * from_size);
    unsigned char *to =
        from == NULL
            ? NULL
            : launch->touch(launch, list->addresses[1][tensor] + begin * to_size, count * to_size);
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
    for (unsigned block = 0; block < launch->grid[0]; block++)
        copy_chunk(launch, args[0], block, to, from);
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
