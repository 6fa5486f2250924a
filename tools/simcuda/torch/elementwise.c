/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elementwise loops (CUDALoops.cuh), three families around one functor:
 *
 *     vectorized_elementwise_kernel<N, F, array<char *, K>, ...>(int numel, F, array)
 *     unrolled_elementwise_kernel<F, array<char *, K>, ...>(int numel, F, array, calculators, Load, Store)
 *     elementwise_kernel<..., lambda>(int numel, lambda{OffsetCalculator<K>, array<char *, K>, F})
 */
#include "tools/simcuda/torch/operations.h"

/* One launch, whatever its family. */
struct loop {
    struct host_functor functor;
    const unsigned char *captured; /* of the functor */
    struct host_operands operands;
    size_t numel;
};

static bool is_plain_copy(const struct loop *loop)
{
    return loop->functor.operation->compute == NULL &&
           loop->operands.type[0] == loop->operands.type[1];
}

/* A cast names its type by a number at run time. For a type that is not known here the launch fails
 * as if it touched no memory of the program. */
static bool knows_types(const struct simcuda_launch *launch, const struct host_operands *operands)
{
    bool knows = true;
    for (unsigned k = 0; k < operands->count; k++)
        knows = knows && operands->type[k] != HOST_NONE;
    return knows || launch->touch(launch, 0, 1) != NULL;
}

static void run_loop(const struct simcuda_launch *launch, struct loop *loop)
{
    struct host_operands *operands = &loop->operands;
    if (loop->numel == 0 || !knows_types(launch, operands) ||
        !host_touch(launch, operands, loop->numel))
        return;
    const size_t size = host_size(operands->type[0]);
    if (is_plain_copy(loop) && operands->dims == 0) {
        memmove(operands->data[0], operands->data[1], loop->numel * size);
        return;
    }
    for (size_t i = 0; i < loop->numel; i++) {
        void *out = host_place(operands, 0, i);
        double in[HOST_MAX_OPERANDS] = {0};
        if (is_plain_copy(loop)) {
            memmove(out, host_place(operands, 1, i), size);
            continue;
        }
        for (unsigned k = 1; k < operands->count; k++)
            in[k - 1] = host_load(host_place(operands, k, i), operands->type[k]);
        host_compute *compute = loop->functor.operation->compute;
        host_store(out, operands->type[0],
                   compute == NULL ? in[0] : compute(&loop->functor, loop->captured, in));
    }
}

static void start_loop(const struct simcuda_launch *launch, void **args, struct loop *loop)
{
    *loop = (struct loop){.captured = NULL};
    host_read_functor(launch->name, &loop->functor);
    const int numel = SIMCUDA_ARG(args, 0, int);
    loop->numel = numel > 0 ? (size_t)numel : 0;
    loop->operands.count = loop->functor.operation->operands;
    memcpy(loop->operands.type, loop->functor.types, sizeof(loop->operands.type));
}

static void vectorized(const struct simcuda_launch *launch, void **args)
{
    struct loop loop;
    start_loop(launch, args, &loop);
    loop.captured = args[1];
    memcpy(loop.operands.address, args[2], loop.operands.count * sizeof(CUdeviceptr));
    run_loop(launch, &loop);
}

/* gpu_kernel_impl, where the types are not those of the functor: they stand behind it. */
static void read_types_of_closure(struct loop *loop, const unsigned char *bytes)
{
    for (unsigned k = 0; k < loop->operands.count; k++)
        loop->operands.type[k] = host_scalar_type(bytes[k]);
}

/* LoadWithCast and StoreWithCast: {array<ScalarType (one byte), N>, array<uint32_t, N> sizes} */
static void read_casts(struct loop *loop, const char *name, void **args)
{
    if (strstr(name, "12LoadWithCastI") != NULL) {
        for (unsigned k = 1; k < loop->operands.count; k++)
            loop->operands.type[k] = host_scalar_type(((const unsigned char *)args[5])[k - 1]);
    }
    if (strstr(name, "13StoreWithCastI") != NULL)
        loop->operands.type[0] = host_scalar_type(*(const unsigned char *)args[6]);
}

static void unrolled(const struct simcuda_launch *launch, void **args)
{
    struct loop loop;
    start_loop(launch, args, &loop);
    loop.captured = args[1];
    memcpy(loop.operands.address, args[2], loop.operands.count * sizeof(CUdeviceptr));
    read_casts(&loop, launch->name, args);
    run_loop(launch, &loop);
}

static void strided(const struct simcuda_launch *launch, void **args)
{
    struct loop loop;
    start_loop(launch, args, &loop);
    const unsigned char *lambda = args[1];
    size_t at = host_read_calculator(&loop.operands, lambda);
    at = (at + 7) / 8 * 8;
    memcpy(loop.operands.address, lambda + at, loop.operands.count * sizeof(CUdeviceptr));
    loop.captured = lambda + at + loop.operands.count * sizeof(CUdeviceptr);
    if (strstr(launch->name, "15gpu_kernel_implI") != NULL)
        read_types_of_closure(&loop, loop.captured + host_captured_bytes(&loop.functor));
    run_loop(launch, &loop);
}

static bool begins_with(const char *text, const char *begin)
{
    return strncmp(text, begin, strlen(begin)) == 0;
}

simcuda_kernel *host_find_elementwise(const char *name)
{
    struct host_functor functor;
    if (!host_read_functor(name, &functor))
        return NULL;
    if (begins_with(name, "_ZN2at6native29vectorized_elementwise_kernelI"))
        return vectorized;
    if (begins_with(name, "_ZN2at6native27unrolled_elementwise_kernelI") &&
        strstr(name, "23TrivialOffsetCalculatorI") != NULL)
        return unrolled;
    if (begins_with(name, "_ZN2at6native18elementwise_kernelI") &&
        (strstr(name, "22gpu_kernel_impl_nocastI") != NULL ||
         strstr(name, "15gpu_kernel_implI") != NULL))
        return strided;
    return NULL;
}
