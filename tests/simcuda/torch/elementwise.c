/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elementwise loops (CUDALoops.cuh), three families around one functor:
 *
 *     vectorized_elementwise_kernel<N, F, array<char *, K>, ...>(int numel, F, array)
 *     unrolled_elementwise_kernel<F, array<char *, K>, ...>(int numel, F, array, calculators, Load, Store)
 *     elementwise_kernel<..., lambda>(int numel, lambda{OffsetCalculator<K>, array<char *, K>, F})
 */
#include "tests/simcuda/torch/host.h"

#include <math.h>
#include <stdlib.h>

/* One element's value from the functor's captured bytes and the operands. */
typedef double operation(const unsigned char *functor, enum host_type type, const double *in);

struct functor {
    const char *name; /* part of the mangled name */
    enum {
        TYPES_BEHIND,  /* the type of all operands stands behind the name */
        TYPES_LAMBDA,  /* it is the argument of the innermost lambda: "EUlfE" */
        TYPES_TWO,     /* in, out behind the name */
        TYPES_COMPARE, /* in behind the name, out is bool */
        TYPES_WHERE,   /* arguments of the lambda: bool, in, in */
        TYPES_HALF,    /* in is the argument of the innermost lambda, out is half */
        TYPES_BFLOAT16 /* or bfloat16 */
    } types;
    unsigned operands;
    operation *run; /* NULL: in as it is */
};

static float float_at(const unsigned char *bytes, size_t offset)
{
    float value;
    memcpy(&value, bytes + offset, sizeof(value));
    return value;
}

/* The scalar of a functor that computes in `type`; bfloat16 and half compute in float. */
static double scalar_at(const unsigned char *bytes, size_t offset, enum host_type type)
{
    if (type == HOST_DOUBLE || type <= HOST_INT64)
        return host_load(bytes + offset, type);
    return float_at(bytes, offset);
}

/* Captured scalars begin at the alignment of their own type. */
static size_t scalar_size(enum host_type type)
{
    return type == HOST_DOUBLE || type <= HOST_INT64 ? host_size(type) : sizeof(float);
}

static double fill(const unsigned char *functor, enum host_type type,
                   __attribute__((unused)) const double *in)
{
    return host_load(functor, type);
}

/* AUnaryFunctor and BUnaryFunctor: {MulFunctor (empty), scalar} */
static double multiply(const unsigned char *functor, enum host_type type, const double *in)
{
    return host_round(type, in[0] * scalar_at(functor, scalar_size(type), type));
}

/* CUDAFunctorOnSelf_add: {other, alpha} */
static double add_on_self(const unsigned char *functor, enum host_type type, const double *in)
{
    const double other = scalar_at(functor, 0, type);
    const double alpha = scalar_at(functor, scalar_size(type), type);
    return host_round(type, in[0] + host_round(type, other * alpha));
}

/* CUDAFunctor_add: {alpha} */
static double add(const unsigned char *functor, enum host_type type, const double *in)
{
    return host_round(type, in[0] + host_round(type, in[1] * scalar_at(functor, 0, type)));
}

static double multiply_two(__attribute__((unused)) const unsigned char *functor,
                           enum host_type type, const double *in)
{
    return host_round(type, in[0] * in[1]);
}

/* launch_clamp_scalar: {ClampLimits (0 min, 1 max, 2 both), low, high} */
static double clamp(const unsigned char *functor, enum host_type type, const double *in)
{
    uint32_t limits;
    memcpy(&limits, functor, sizeof(limits));
    const size_t first = scalar_size(type) > 4 ? 8 : 4;
    const double low = scalar_at(functor, first, type);
    const double high = scalar_at(functor, first + scalar_size(type), type);
    double value = in[0];
    if (limits != 1 && value < low)
        value = low;
    if (limits != 0 && value > high)
        value = high;
    return value;
}

/* compare_scalar_kernel: {0 >=, 1 >, 2 <=, 3 <; scalar of the operands' type} */
static double compare(const unsigned char *functor, enum host_type type, const double *in)
{
    uint32_t kind;
    memcpy(&kind, functor, sizeof(kind));
    const double with = host_load(functor + (host_size(type) > 4 ? 8 : 4), type);
    return kind == 0   ? in[0] >= with
           : kind == 1 ? in[0] > with
           : kind == 2 ? in[0] <= with
                       : in[0] < with;
}

/* CompareFunctor: {kind, as above}, of two operands */
static double compare_two(const unsigned char *functor, __attribute__((unused)) enum host_type type,
                          const double *in)
{
    uint32_t kind;
    memcpy(&kind, functor, sizeof(kind));
    return kind == 0   ? in[0] >= in[1]
           : kind == 1 ? in[0] > in[1]
           : kind == 2 ? in[0] <= in[1]
                       : in[0] < in[1];
}

/* BinaryFunctor around CompareEqFunctor: {0 ==, 1 !=} */
static double equal_two(const unsigned char *functor, __attribute__((unused)) enum host_type type,
                        const double *in)
{
    uint32_t is_not;
    memcpy(&is_not, functor, sizeof(is_not));
    return (in[0] == in[1]) != (is_not != 0);
}

static double bitwise_or(__attribute__((unused)) const unsigned char *functor,
                         __attribute__((unused)) enum host_type type, const double *in)
{
    return (double)((int64_t)in[0] | (int64_t)in[1]);
}

static double where(__attribute__((unused)) const unsigned char *functor,
                    __attribute__((unused)) enum host_type type, const double *in)
{
    return in[0] != 0 ? in[1] : in[2];
}

static const struct functor functors[] = {
    {"11FillFunctorI", TYPES_BEHIND, 1, fill},
    {"23direct_copy_kernel_cuda", TYPES_LAMBDA, 2, NULL},
    {"27converting_copy_kernel_cudaI", TYPES_TWO, 2, NULL},
    {"24float16_copy_kernel_cuda", TYPES_HALF, 2, NULL}, /* these two of 2.11 */
    {"25bfloat16_copy_kernel_cuda", TYPES_BFLOAT16, 2, NULL},
    {"21CUDAFunctorOnSelf_addI", TYPES_BEHIND, 2, add_on_self},
    {"15CUDAFunctor_addI", TYPES_BEHIND, 3, add},
    {"19launch_clamp_scalar", TYPES_LAMBDA, 2, clamp},
    {"21compare_scalar_kernelI", TYPES_COMPARE, 2, compare},
    {"14CompareFunctorI", TYPES_COMPARE, 3, compare_two},
    {"16CompareEqFunctorI", TYPES_COMPARE, 3, equal_two},
    {"16BitwiseOrFunctorI", TYPES_BEHIND, 3, bitwise_or},
    {"17where_kernel_impl", TYPES_WHERE, 4, where},
};

/* Around MulFunctor, which is not asked for by itself: it stands for other operations in other
 * places. */
static const struct functor multiplications[] = {
    {"13AUnaryFunctorI", TYPES_BEHIND, 2, multiply},
    {"13BUnaryFunctorI", TYPES_BEHIND, 2, multiply},
    {"13BinaryFunctorI", TYPES_BEHIND, 3, multiply_two},
};

static const struct functor *find_functor(const char *name)
{
    for (size_t i = 0; i < sizeof(multiplications) / sizeof(multiplications[0]); i++) {
        if (strstr(name, multiplications[i].name) != NULL && strstr(name, "10MulFunctorI") != NULL)
            return &multiplications[i];
    }
    for (size_t i = 0; i < sizeof(functors) / sizeof(functors[0]); i++) {
        /* With a number for one operand it is another functor's, with the number in it. */
        if (strstr(name, functors[i].name) != NULL &&
            (functors[i].run != equal_two || strstr(name, "13BinaryFunctorI") != NULL))
            return &functors[i];
    }
    return NULL;
}

/* What the functor takes and gives. False for types that are not known here. */
static bool read_types(const struct functor *functor, const char *name, enum host_type *in_out,
                       enum host_type *out_out)
{
    const char *at = strstr(name, functor->name) + strlen(functor->name);
    if (functor->types == TYPES_LAMBDA || functor->types >= TYPES_WHERE) {
        at = strstr(at, "EUl"); /* the lambdas around it are "ENKUlvE" */
        if (at == NULL)
            return false;
        at += strlen("EUl");
    }
    if (functor->types == TYPES_WHERE)
        host_parse_type(&at, HOST_NONE); /* bool */
    /* Types with long names are named once, here by what is around the functor. */
    *in_out = *out_out = host_parse_type(&at, host_type_behind(name, "13BinaryFunctorI"));
    if (functor->types == TYPES_COMPARE)
        *out_out = HOST_BOOL;
    if (functor->types == TYPES_TWO)
        *out_out = host_parse_type(&at, *in_out);
    if (functor->types == TYPES_HALF)
        *out_out = HOST_HALF;
    if (functor->types == TYPES_BFLOAT16)
        *out_out = HOST_BFLOAT16;
    return *in_out != HOST_NONE && *out_out != HOST_NONE;
}

/* One launch, whatever its family. */
struct loop {
    const struct functor *functor;
    const unsigned char *captured; /* of the functor */
    enum host_type type;           /* in which it computes */
    struct host_operands operands;
    size_t numel;
};

static bool is_plain_copy(const struct loop *loop)
{
    return loop->functor->run == NULL && loop->operands.type[0] == loop->operands.type[1];
}

static void run_loop(const struct simcuda_launch *launch, struct loop *loop)
{
    struct host_operands *operands = &loop->operands;
    if (loop->numel == 0 || !host_touch(launch, operands, loop->numel))
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
        host_store(out, operands->type[0],
                   loop->functor->run == NULL ? in[0]
                                              : loop->functor->run(loop->captured, loop->type, in));
    }
}

static void start_loop(const struct simcuda_launch *launch, void **args, struct loop *loop)
{
    enum host_type in, out;
    *loop = (struct loop){.functor = find_functor(launch->name)};
    read_types(loop->functor, launch->name, &in, &out);
    const int numel = SIMCUDA_ARG(args, 0, int);
    loop->numel = numel > 0 ? (size_t)numel : 0;
    loop->type = in;
    loop->operands.count = loop->functor->operands;
    loop->operands.type[0] = out;
    for (unsigned k = 1; k < loop->operands.count; k++)
        loop->operands.type[k] = in;
    if (loop->functor->types == TYPES_WHERE)
        loop->operands.type[1] = HOST_BOOL;
}

static void vectorized(const struct simcuda_launch *launch, void **args)
{
    struct loop loop;
    start_loop(launch, args, &loop);
    loop.captured = args[1];
    memcpy(loop.operands.address, args[2], loop.operands.count * sizeof(CUdeviceptr));
    run_loop(launch, &loop);
}

/* gpu_kernel_impl, where the types are not those of the functor, which captures nothing: they stand
 * behind it. */
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
        read_types_of_closure(&loop, loop.captured + 1);
    run_loop(launch, &loop);
}

static bool begins_with(const char *text, const char *begin)
{
    return strncmp(text, begin, strlen(begin)) == 0;
}

simcuda_kernel *host_find_elementwise(const char *name)
{
    enum host_type in, out;
    const struct functor *functor = find_functor(name);
    if (functor == NULL || !read_types(functor, name, &in, &out))
        return NULL;
    if (begins_with(name, "_ZN2at6native29vectorized_elementwise_kernelI"))
        return vectorized;
    if (begins_with(name, "_ZN2at6native27unrolled_elementwise_kernelI") &&
        strstr(name, "23TrivialOffsetCalculatorI") != NULL)
        return unrolled;
    if (begins_with(name, "_ZN2at6native18elementwise_kernelI") &&
        (strstr(name, "22gpu_kernel_impl_nocastI") != NULL ||
         (functor->run == NULL && strstr(name, "15gpu_kernel_implI") != NULL)))
        return strided;
    return NULL;
}
