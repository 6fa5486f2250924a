/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fused_dropout_kernel<T, A, uint32, ...> and fused_dropout_kernel_vec<T, A, uint32, 1, V, mask>
 * (Dropout.cu):
 *
 *     (TensorInfo in, TensorInfo out, TensorInfo kept, uint32 elements, A probability of being kept, PhiloxCudaState)
 *
 * A thread draws four numbers at a time. They are for V elements side by side, or for elements as
 * far apart as there are threads.
 */
#include "tools/simcuda/torch/host.h"

#include <stdlib.h>

struct job {
    struct host_vector in, out, kept;
    const struct host_tensor_info *in_info;
    size_t elements;
    double probability;
};

static void decide(const struct job *job, size_t element, float number)
{
    if (element >= job->elements)
        return;
    const bool is_kept = (double)number < job->probability;
    const double value = host_get(&job->in, host_info_place(job->in_info, element));
    host_set(&job->out, element, is_kept ? value * (double)(float)(1 / job->probability) : 0);
    host_set(&job->kept, element, is_kept);
}

/* V; 0 of the kernel without. */
static size_t elements_of_vector(const char *name)
{
    const char *at = strstr(name, "24fused_dropout_kernel_vecI");
    at = at == NULL ? NULL : strstr(at, "Li1ELi");
    return at == NULL ? 0 : strtoul(at + strlen("Li1ELi"), NULL, 10);
}

static void draw(const struct job *job, const struct host_philox *state, size_t threads,
                 size_t wide)
{
    const size_t in_turn = wide == 0 ? 4 : wide;
    for (size_t thread = 0; thread < threads; thread++) {
        uint64_t drawn = 0;
        float numbers[4] = {0};
        for (size_t turn = 0; turn * threads * in_turn < job->elements; turn++) {
            for (size_t i = 0; i < in_turn; i++, drawn++) {
                if (drawn % 4 == 0)
                    host_draw_uniform(state, thread, drawn / 4, numbers);
                const size_t first = turn * threads * in_turn;
                decide(job, wide == 0 ? first + i * threads + thread : first + thread * wide + i,
                       numbers[drawn % 4]);
            }
        }
    }
}

/* "...ffjLi1ELi4EbEE": the mask's type ends the list. */
static enum host_type mask_type(const char *name)
{
    return strstr(name, "EbEEv") != NULL ? HOST_BOOL : HOST_UINT8;
}

static bool read_types(const char *name, enum host_type *types)
{
    return host_types_behind(name, "20fused_dropout_kernelI", types, 2) ||
           host_types_behind(name, "24fused_dropout_kernel_vecI", types, 2);
}

static void run(const struct simcuda_launch *launch, void **args)
{
    enum host_type types[2];
    if (!read_types(launch->name, types))
        return;
    const struct host_tensor_info *infos[] = {args[0], args[1], args[2]};
    struct job job = {.in_info = infos[0],
                      .elements = SIMCUDA_ARG(args, 3, uint32_t),
                      .probability = host_load(args[4], types[1])};
    if (job.elements == 0)
        return;
    if (host_open(launch, &job.in, infos[0]->data, types[0], host_info_extent(infos[0])) &&
        host_open(launch, &job.out, infos[1]->data, types[0], job.elements) &&
        host_open(launch, &job.kept, infos[2]->data, mask_type(launch->name), job.elements))
        draw(&job, args[5], (size_t)launch->grid[0] * launch->block[0],
             elements_of_vector(launch->name));
}

/* Kernels with 64-bit indices are not known here. */
simcuda_kernel *host_find_dropout(const char *name)
{
    enum host_type types[2];
    return read_types(name, types) && strstr(name, "mLi1ELi") == NULL &&
                   strstr(name, "mLin1ELi") == NULL
               ? run
               : NULL;
}
