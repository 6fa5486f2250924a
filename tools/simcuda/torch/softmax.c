/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Softmax and its logarithm over the last dimension (SoftMax.cu, PersistentSoftmax.cuh), with a
 * block or a warp for each row:
 *
 *     cunn_SoftMaxForward...<..., in, computed, out, epilogue>(out *, in *, classes)
 *     cunn_SoftMaxBackward...<..., in, computed, out, epilogue>(in *gradient, out *result, out *above, int64 classes)
 *     softmax_warp_forward<in, out, computed, ..., is log, is masked, ...>(out *, in *, int rows, int row length,
 *                                                                        int classes, mask, ...)
 *     softmax_warp_backward<in, out, ...>(out *gradient, in *above, in *result, int rows, int row length,
 *                                         int classes, mask)
 */
#include "tools/simcuda/torch/host.h"

#include <math.h>

struct rows {
    size_t count, length, classes; /* length: from one row to the next */
};

static void forward(const struct rows *rows, const struct host_vector *out,
                    const struct host_vector *in, bool is_log)
{
    for (size_t row = 0; row < rows->count; row++) {
        const size_t first = row * rows->length;
        double highest = -INFINITY;
        double sum = 0;
        for (size_t i = 0; i < rows->classes; i++)
            highest = fmax(highest, host_get(in, first + i));
        for (size_t i = 0; i < rows->classes; i++)
            sum += exp(host_get(in, first + i) - highest);
        for (size_t i = 0; i < rows->classes; i++) {
            const double value = host_get(in, first + i) - highest;
            host_set(out, first + i, is_log ? value - log(sum) : exp(value) / sum);
        }
    }
}

/* Without a logarithm, `above` comes multiplied with the result. */
static void backward(const struct rows *rows, const struct host_vector *gradient,
                     const struct host_vector *above, const struct host_vector *result, bool is_log)
{
    for (size_t row = 0; row < rows->count; row++) {
        const size_t first = row * rows->length;
        double sum = 0;
        for (size_t i = 0; i < rows->classes; i++)
            sum += host_get(above, first + i);
        for (size_t i = 0; i < rows->classes; i++) {
            const double value = host_get(result, first + i);
            host_set(gradient, first + i,
                     host_get(above, first + i) - (is_log ? exp(value) : value) * sum);
        }
    }
}

static bool open_three(const struct simcuda_launch *launch, void **args,
                       const enum host_type *types, size_t elements, struct host_vector *vectors,
                       int count)
{
    for (int i = count - 1; i >= 0; i--) {
        if (!host_open(launch, &vectors[i], SIMCUDA_ARG(args, i, CUdeviceptr), types[i], elements))
            return false;
    }
    return true;
}

/* The types of a block's kernel: behind "ILi4E", or at once. */
static bool read_types(const char *name, enum host_type *types)
{
    const char *at = strstr(name, "cunn_SoftMax");
    at = at == NULL ? NULL : strchr(at, 'I');
    if (at == NULL)
        return false;
    const char *behind_number = strncmp(at, "ILi", 3) == 0 ? strchr(at, 'E') : at;
    char begin[2] = {*behind_number, '\0'};
    return host_types_behind(behind_number, begin, types, 3);
}

static bool is_logarithm(const char *name)
{
    return strstr(name, "LogSoftMax") != NULL;
}

static void block_forward(const struct simcuda_launch *launch, void **args)
{
    enum host_type types[3];
    struct host_vector vectors[2];
    if (!read_types(launch->name, types))
        return;
    const size_t classes = launch->args_bytes > 20 ? (size_t)SIMCUDA_ARG(args, 2, int64_t)
                                                   : (size_t)SIMCUDA_ARG(args, 2, int);
    const struct rows rows = {launch->grid[0], classes, classes};
    if (open_three(launch, args, (enum host_type[]){types[2], types[0]}, rows.count * classes,
                   vectors, 2))
        forward(&rows, &vectors[0], &vectors[1], is_logarithm(launch->name));
}

static void block_backward(const struct simcuda_launch *launch, void **args)
{
    enum host_type types[3];
    struct host_vector vectors[3];
    if (!read_types(launch->name, types))
        return;
    const size_t classes = (size_t)SIMCUDA_ARG(args, 3, int64_t);
    const struct rows rows = {launch->grid[0], classes, classes};
    if (open_three(launch, args, (enum host_type[]){types[0], types[2], types[2]},
                   rows.count * classes, vectors, 3))
        backward(&rows, &vectors[0], &vectors[2], &vectors[1], is_logarithm(launch->name));
}

/* "...fLi10ELb1ELb0ELi32E": of how many elements, is it the logarithm, is it masked */
static bool is_warp_logarithm(const char *name)
{
    return strstr(name, "ELb1ELb0ELi32E") != NULL;
}

static bool read_rows(void **args, int first, struct rows *rows)
{
    *rows = (struct rows){(size_t)SIMCUDA_ARG(args, first, int),
                          (size_t)SIMCUDA_ARG(args, first + 1, int),
                          (size_t)SIMCUDA_ARG(args, first + 2, int)};
    return rows->count > 0 && rows->classes > 0;
}

static void warp_forward(const struct simcuda_launch *launch, void **args)
{
    enum host_type types[2];
    struct host_vector vectors[2];
    struct rows rows;
    if (host_types_behind(launch->name, "20softmax_warp_forwardI", types, 2) &&
        read_rows(args, 2, &rows) &&
        open_three(launch, args, (enum host_type[]){types[1], types[0]},
                   (rows.count - 1) * rows.length + rows.classes, vectors, 2))
        forward(&rows, &vectors[0], &vectors[1], is_warp_logarithm(launch->name));
}

static void warp_backward(const struct simcuda_launch *launch, void **args)
{
    enum host_type types[2];
    struct host_vector vectors[3];
    struct rows rows;
    if (host_types_behind(launch->name, "21softmax_warp_backwardI", types, 2) &&
        read_rows(args, 3, &rows) &&
        open_three(launch, args, (enum host_type[]){types[1], types[0], types[0]},
                   (rows.count - 1) * rows.length + rows.classes, vectors, 3))
        backward(&rows, &vectors[0], &vectors[1], &vectors[2], is_warp_logarithm(launch->name));
}

simcuda_kernel *host_find_softmax(const char *name)
{
    enum host_type types[3];
    const bool is_masked = strstr(name, "ELb1ELi32E") != NULL;
    if (host_types_behind(name, "20softmax_warp_forwardI", types, 2))
        return is_masked ? NULL : warp_forward;
    if (host_types_behind(name, "21softmax_warp_backwardI", types, 2))
        return is_masked ? NULL : warp_backward;
    if (!read_types(name, types))
        return NULL;
    return strstr(name, "cunn_SoftMaxForward") != NULL    ? block_forward
           : strstr(name, "cunn_SoftMaxBackward") != NULL ? block_backward
                                                          : NULL;
}
