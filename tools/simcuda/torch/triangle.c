/* SPDX-License-Identifier: Apache-2.0 */
/*
 * triu_tril_kernel<T, int, upper, ..., in place> (TriangularOps.cu): the upper or lower triangles
 * of matrices, zero elsewhere.
 *
 *     (TensorInfo out, TensorInfo in, int64 diagonal, int64 elements, int last dimension, both with padding)
 */
#include "tools/simcuda/torch/host.h"

#include <stdlib.h>

static const char name_begin[] = "16triu_tril_kernelI";

static void run(const struct simcuda_launch *launch, void **args)
{
    const struct host_tensor_info *out = args[0];
    const struct host_tensor_info *in = args[1];
    const int64_t diagonal = SIMCUDA_ARG(args, 2, int64_t);
    const enum host_type type = host_type_behind(launch->name, name_begin);
    const bool is_upper = strstr(launch->name, "iLb1ELi") != NULL;
    const size_t size = host_size(type);
    size_t elements = 1;
    for (int i = 0; i < out->dims; i++)
        elements *= out->sizes[i];
    const size_t columns = out->sizes[out->dims - 1];
    const size_t rows = out->sizes[out->dims - 2];
    const unsigned char *from = launch->touch(launch, in->data, host_info_extent(in) * size);
    unsigned char *to =
        from == NULL ? NULL : launch->touch(launch, out->data, host_info_extent(out) * size);
    for (size_t i = 0; to != NULL && i < elements; i++) {
        const int64_t right = (int64_t)(i % columns) - (int64_t)(i / columns % rows);
        unsigned char *place = to + host_info_place(out, i) * size;
        if (is_upper ? right >= diagonal : right <= diagonal)
            memmove(place, from + host_info_place(in, i) * size, size);
        else
            memset(place, 0, size);
    }
}

/* Finds only kernels with 32-bit indices. */
simcuda_kernel *host_find_triangle(const char *name)
{
    const char *at = strstr(name, name_begin);
    if (at == NULL)
        return NULL;
    at += strlen(name_begin);
    return host_parse_type(&at, HOST_NONE) != HOST_NONE && *at == 'i' ? run : NULL;
}
