/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FSDP2 puts tensors together for a collective, and takes them apart behind it (TensorShape.cu).
 * The addresses of its tensors lie in device memory, and so do all other lists with an entry for
 * each tensor:
 *
 *     split_with_sizes_copy_out_contiguous_no_cast_kernel(char *out[], char *in[], int64 bytes[],
 *         int64 tensor_of_block[], int64 first_block[], int64 distance of chunks in, int64 chunks)
 *     chunk_cat_cuda_kernel<D, S>(S *in[], D *out, int64 tensor_of_block[], int64 begin in a chunk[],
 *         int64 first_block[], int64 bytes in[], int64 bytes out[], int64 blocks[],
 *         int64 bytes of a slice, int64 bytes of a chunk, int64 size of D by that of S)
 *
 * In chunk_cat, y is the chunk and z the slice. Missing bytes of the last chunk are zero.
 */
#include "tools/simcuda/torch/host.h"

/* A number, or an address, of a list in device memory. False when it may not be touched. */
static bool read_number(const struct simcuda_launch *launch, void **args, int list, size_t index,
                        size_t *number_out)
{
    const void *place =
        launch->touch(launch, SIMCUDA_ARG(args, list, CUdeviceptr) + 8 * index, sizeof(uint64_t));
    if (place != NULL)
        *number_out = host_word(place, 0);
    return place != NULL;
}

/* The tensor of a block, and whether the block is its first: the others have nothing to do here. */
static bool read_tensor(const struct simcuda_launch *launch, void **args, int tensors, int firsts,
                        size_t block, size_t *tensor_out, bool *is_first_out)
{
    size_t first;
    if (!read_number(launch, args, tensors, block, tensor_out) ||
        !read_number(launch, args, firsts, *tensor_out, &first))
        return false;
    *is_first_out = first == block;
    return true;
}

static bool take_apart(const struct simcuda_launch *launch, void **args, size_t tensor)
{
    size_t to, from, bytes;
    const size_t distance = (size_t)SIMCUDA_ARG(args, 5, int64_t);
    const size_t chunks = (size_t)SIMCUDA_ARG(args, 6, int64_t);
    if (!read_number(launch, args, 0, tensor, &to) ||
        !read_number(launch, args, 1, tensor, &from) ||
        !read_number(launch, args, 2, tensor, &bytes))
        return false;
    for (size_t chunk = 0; bytes > 0 && chunk < chunks; chunk++) {
        const void *in = launch->touch(launch, from + chunk * distance, bytes);
        void *out = in == NULL ? NULL : launch->touch(launch, to + chunk * bytes, bytes);
        if (out == NULL)
            return false;
        memcpy(out, in, bytes);
    }
    return true;
}

static void split(const struct simcuda_launch *launch, void **args)
{
    for (size_t block = 0; block < launch->grid[0]; block++) {
        size_t tensor;
        bool is_first;
        if (!read_tensor(launch, args, 3, 4, block, &tensor, &is_first) ||
            (is_first && !take_apart(launch, args, tensor)))
            return;
    }
}

/* --- together */

static const char together_name[] = "21chunk_cat_cuda_kernelI";

/* Plain bytes, "Icc", or a cast. */
static bool read_types(const char *name, enum host_type *types)
{
    if (strstr(name, "21chunk_cat_cuda_kernelIccE") != NULL) {
        types[0] = types[1] = HOST_UINT8;
        return true;
    }
    return host_types_behind(name, together_name, types, 2);
}

/* One tensor's part of one chunk of one slice. */
struct piece {
    enum host_type to, from;
    size_t in, out;       /* addresses */
    size_t there, wanted; /* bytes of each */
};

static bool put(const struct simcuda_launch *launch, const struct piece *piece)
{
    struct host_vector in = {.data = NULL}, out;
    const size_t count = piece->wanted / host_size(piece->to);
    const size_t there = piece->there / host_size(piece->from);
    if (count == 0)
        return true;
    if ((there > 0 && !host_open(launch, &in, piece->in, piece->from, there)) ||
        !host_open(launch, &out, piece->out, piece->to, count))
        return false;
    memset(out.data, 0, piece->wanted);
    if (piece->to == piece->from)
        memcpy(out.data, in.data == NULL ? out.data : in.data, piece->there);
    for (size_t i = 0; piece->to != piece->from && i < there; i++)
        host_set(&out, i, host_get(&in, i));
    return true;
}

static bool put_together(const struct simcuda_launch *launch, void **args, size_t tensor,
                         size_t chunk, size_t slice)
{
    enum host_type types[2];
    size_t address, begin, actual, padded;
    if (!read_types(launch->name, types) || !read_number(launch, args, 0, tensor, &address) ||
        !read_number(launch, args, 3, tensor, &begin) ||
        !read_number(launch, args, 5, tensor, &actual) ||
        !read_number(launch, args, 6, tensor, &padded))
        return false;
    const size_t of_chunk = padded / (size_t)SIMCUDA_ARG(args, 10, int64_t);
    const size_t left = chunk * of_chunk < actual ? actual - chunk * of_chunk : 0;
    const struct piece piece = {.to = types[0],
                                .from = types[1],
                                .in = address + slice * actual + chunk * of_chunk,
                                .out = SIMCUDA_ARG(args, 1, CUdeviceptr) +
                                       slice * (size_t)SIMCUDA_ARG(args, 8, int64_t) +
                                       chunk * (size_t)SIMCUDA_ARG(args, 9, int64_t) + begin,
                                .there = left < of_chunk ? left : of_chunk,
                                .wanted = padded};
    return put(launch, &piece);
}

static void concatenate(const struct simcuda_launch *launch, void **args)
{
    const size_t chunks = launch->grid[1];
    for (size_t block = 0; block < launch->grid[0]; block++) {
        size_t tensor;
        bool is_first;
        if (!read_tensor(launch, args, 2, 4, block, &tensor, &is_first))
            return;
        for (size_t i = 0; is_first && i < chunks * launch->grid[2]; i++) {
            if (!put_together(launch, args, tensor, i % chunks, i / chunks))
                return;
        }
    }
}

simcuda_kernel *host_find_shards(const char *name)
{
    enum host_type types[2];
    if (strstr(name, "51split_with_sizes_copy_out_contiguous_no_cast_kernelE") != NULL)
        return split;
    return strstr(name, together_name) != NULL && read_types(name, types) ? concatenate : NULL;
}
