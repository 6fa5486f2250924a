/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transpose_copy_tiled_kernel<T, P, ...> (Copy.cu): copies of a transposed matrix.
 *
 *     (const T *in, T *out, int64 columns, int64 rows, int64 row length of in, int64 row length of out)
 *
 * A word of type T has P elements, and the numbers count words.
 */
#include "tools/simcuda/torch/host.h"

#include <stdlib.h>

static const char name_begin[] = "27transpose_copy_tiled_kernelI";

/* Bytes of an element and elements of a word: "...kernelIjLi2E...". 0 for types that are not known
 * here. */
static size_t read_name(const char *name, size_t *per_word_out)
{
    const char *at = strstr(name, name_begin);
    if (at == NULL)
        return 0;
    at += strlen(name_begin);
    const size_t word = *at == 'h' ? 1 : *at == 't' ? 2 : *at == 'j' ? 4 : *at == 'm' ? 8 : 0;
    if (word == 0 || strncmp(at + 1, "Li", 2) != 0)
        return 0;
    *per_word_out = strtoul(at + 3, NULL, 10);
    return *per_word_out > 0 ? word / *per_word_out : 0;
}

static void run(const struct simcuda_launch *launch, void **args)
{
    size_t per_word = 1;
    const size_t size = read_name(launch->name, &per_word);
    const size_t columns = (size_t)SIMCUDA_ARG(args, 2, int64_t) * per_word;
    const size_t rows = (size_t)SIMCUDA_ARG(args, 3, int64_t) * per_word;
    const size_t in_row = (size_t)SIMCUDA_ARG(args, 4, int64_t) * per_word;
    const size_t out_row = (size_t)SIMCUDA_ARG(args, 5, int64_t) * per_word;
    const unsigned char *in = launch->touch(launch, SIMCUDA_ARG(args, 0, CUdeviceptr),
                                            ((rows - 1) * in_row + columns) * size);
    unsigned char *out = in == NULL ? NULL
                                    : launch->touch(launch, SIMCUDA_ARG(args, 1, CUdeviceptr),
                                                    ((columns - 1) * out_row + rows) * size);
    for (size_t row = 0; out != NULL && row < rows; row++) {
        for (size_t column = 0; column < columns; column++)
            memcpy(out + (column * out_row + row) * size, in + (row * in_row + column) * size,
                   size);
    }
}

simcuda_kernel *host_find_transpose(const char *name)
{
    size_t per_word;
    return read_name(name, &per_word) > 0 && strstr(name, "ELb0EEEvPKT_") != NULL ? run : NULL;
}
