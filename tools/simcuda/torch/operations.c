/* SPDX-License-Identifier: Apache-2.0 */
/* A lambda that may capture ends, as nvcc makes it, with a pointer of its own. */
#include "tools/simcuda/torch/operations.h"

#include <math.h>
#include <stdlib.h>

static bool is_wide(enum host_type type)
{
    return type == HOST_DOUBLE || type <= HOST_INT64;
}

/* The scalar of a functor that computes in `type`; bfloat16 and half compute in float. */
static double scalar_at(const unsigned char *bytes, size_t offset, enum host_type type)
{
    return host_load(bytes + offset, is_wide(type) ? type : HOST_FLOAT);
}

/* Captured scalars begin at the alignment of their own type. */
static size_t scalar_size(enum host_type type)
{
    return is_wide(type) ? host_size(type) : sizeof(float);
}

static uint32_t number_at(const unsigned char *bytes)
{
    uint32_t number;
    memcpy(&number, bytes, sizeof(number));
    return number;
}

#define COMPUTE(name)                                                              \
    static double name(__attribute__((unused)) const struct host_functor *functor, \
                       __attribute__((unused)) const unsigned char *captured,      \
                       __attribute__((unused)) const double *in)

/* An operation that reads one or two inputs and nothing else. */
#define COMPUTE_PLAIN(name, value)               \
    COMPUTE(name)                                \
    {                                            \
        return host_round(functor->type, value); \
    }

/* --- arithmetic */

COMPUTE(fill)
{
    return host_load(captured, functor->type);
}

/* AUnaryFunctor and BUnaryFunctor: {functor (empty), scalar} */
COMPUTE(multiply)
{
    return host_round(functor->type,
                      in[0] * scalar_at(captured, scalar_size(functor->type), functor->type));
}

COMPUTE(divide_by)
{
    return host_round(functor->type,
                      in[0] / host_load(captured + host_size(functor->type), functor->type));
}

COMPUTE(divide_scalar)
{
    return host_round(functor->type,
                      host_load(captured + host_size(functor->type), functor->type) / in[0]);
}

/* CUDAFunctorOnSelf_add: {other, alpha} */
COMPUTE(add_on_self)
{
    const double other = scalar_at(captured, 0, functor->type);
    const double alpha = scalar_at(captured, scalar_size(functor->type), functor->type);
    return host_round(functor->type, in[0] + host_round(functor->type, other * alpha));
}

/* CUDAFunctorOnOther_add: {self, alpha} */
COMPUTE(add_on_other)
{
    const double self = scalar_at(captured, 0, functor->type);
    const double alpha = scalar_at(captured, scalar_size(functor->type), functor->type);
    return host_round(functor->type, self + host_round(functor->type, in[0] * alpha));
}

/* CUDAFunctor_add: {alpha} */
COMPUTE(add)
{
    const double alpha = scalar_at(captured, 0, functor->type);
    return host_round(functor->type, in[0] + host_round(functor->type, in[1] * alpha));
}

COMPUTE_PLAIN(multiply_two, in[0] * in[1])
COMPUTE_PLAIN(divide_two, in[0] / in[1])
/* The second argument of the lambda in a BUnaryFunctor, of the same type. */
static double second(const struct host_functor *functor, const unsigned char *captured)
{
    return host_load(captured + host_size(functor->type), functor->type);
}

/* The sign of the divisor, as Python's. */
static double remainder_of(enum host_type type, double value, double by)
{
    const double rest = fmod(value, by);
    return host_round(type, rest != 0 && (rest < 0) != (by < 0) ? rest + by : rest);
}

static double quotient_of(enum host_type type, double value, double by)
{
    return host_round(type, floor(value / by));
}

COMPUTE_PLAIN(remainder_two, remainder_of(functor->type, in[0], in[1]))
COMPUTE_PLAIN(remainder_by, remainder_of(functor->type, in[0], second(functor, captured)))
COMPUTE_PLAIN(quotient_two, quotient_of(functor->type, in[0], in[1]))
COMPUTE_PLAIN(quotient_by, quotient_of(functor->type, in[0], second(functor, captured)))
COMPUTE_PLAIN(truncated_two, trunc(in[0] / in[1]))
COMPUTE_PLAIN(truncated_by, trunc(in[0] / second(functor, captured)))
COMPUTE_PLAIN(round_down, floor(in[0]))
COMPUTE_PLAIN(round_up, ceil(in[0]))
COMPUTE_PLAIN(round_even, rint(in[0]))
COMPUTE_PLAIN(round_to_zero, trunc(in[0]))
COMPUTE_PLAIN(error_function, erf(in[0]))
COMPUTE_PLAIN(logarithm_of_two, log2(in[0]))
COMPUTE_PLAIN(logarithm_of_one_more, log1p(in[0]))
COMPUTE_PLAIN(negate, -in[0])
COMPUTE_PLAIN(absolute, fabs(in[0]))
COMPUTE_PLAIN(invert, 1 / in[0])
COMPUTE_PLAIN(root, sqrt(in[0]))
COMPUTE_PLAIN(inverse_root, 1 / sqrt(in[0]))
COMPUTE_PLAIN(cosine, cos(in[0]))
COMPUTE_PLAIN(sine, sin(in[0]))
COMPUTE_PLAIN(exponential, exp(in[0]))
COMPUTE_PLAIN(exponential_less_one, expm1(in[0]))
COMPUTE_PLAIN(logarithm, log(in[0]))
COMPUTE_PLAIN(sign, (in[0] > 0) - (in[0] < 0))
COMPUTE_PLAIN(most, isnan(in[0]) || in[0] > in[1] ? in[0] : in[1])
COMPUTE_PLAIN(least, isnan(in[0]) || in[0] < in[1] ? in[0] : in[1])

/* pow_tensor_scalar_kernel_impl: lambdas for 2, 3, -2, and for others, which are captured. */
COMPUTE(power)
{
    double value = in[0] * in[0];
    if (functor->variant == 1)
        value = host_round(functor->type, value) * in[0];
    if (functor->variant == 2)
        value = 1 / host_round(functor->type, value);
    if (functor->variant == 3)
        value = pow(in[0], host_load(captured, functor->type));
    return host_round(functor->type, value);
}

/* pow_scalar_tensor_impl: {base} */
COMPUTE(power_of_scalar)
{
    return host_round(functor->type, pow(host_load(captured, functor->type), in[0]));
}

COMPUTE_PLAIN(power_of_both, pow(in[0], in[1]))

/* {value} */
COMPUTE(add_product)
{
    const double value = scalar_at(captured, 0, functor->type);
    return host_round(functor->type, in[0] + value * host_round(functor->type, in[1] * in[2]));
}

COMPUTE(add_quotient)
{
    const double value = scalar_at(captured, 0, functor->type);
    return host_round(functor->type, in[0] + value * host_round(functor->type, in[1] / in[2]));
}

COMPUTE(interpolate)
{
    return host_round(functor->type, host_lerp(functor->type, in[0], in[1],
                                               scalar_at(captured, 0, functor->type)));
}

COMPUTE(interpolate_by)
{
    return host_round(functor->type, host_lerp(functor->type, in[0], in[1], in[2]));
}

/* masked_scale_kernel: {scale}; the input, and whether it is kept */
COMPUTE(scale_masked)
{
    return host_round(functor->type, in[1] * in[0] * scalar_at(captured, 0, functor->type));
}

/* {value of the operands' type} */
COMPUTE(fill_masked)
{
    return in[1] != 0 ? host_load(captured, functor->type) : in[0];
}

/* --- activations */

static double sigmoid(double value)
{
    return 1 / (1 + exp(-value));
}

COMPUTE_PLAIN(activate_sigmoid, sigmoid(in[0]))
COMPUTE_PLAIN(activate_silu, in[0] * sigmoid(in[0]))
COMPUTE_PLAIN(activate_tanh, tanh(in[0]))
/* in: the gradient from above, and the input; for tanh and sigmoid the result. */
COMPUTE_PLAIN(back_tanh, in[0] * (1 - in[1] * in[1]))
COMPUTE_PLAIN(back_sigmoid, in[0] * (1 - in[1]) * in[1])

COMPUTE(back_silu)
{
    const double part = sigmoid(in[1]);
    return host_round(functor->type, in[0] * part * (1 + in[1] * (1 - part)));
}

static const double root_of_half = 0.70710678118654752;
static const double root_of_two_by_pi = 0.79788456080286536;
static const double cubic = 0.044715;

COMPUTE_PLAIN(activate_gelu, in[0] * 0.5 * (1 + erf(in[0] * root_of_half)))
COMPUTE_PLAIN(activate_gelu_tanh,
              0.5 * in[0] * (1 + tanh(root_of_two_by_pi * (in[0] + cubic * in[0] * in[0] * in[0]))))

COMPUTE(back_gelu)
{
    const double x = in[1];
    const double part = 0.5 * (1 + erf(x * root_of_half));
    const double density = exp(-0.5 * x * x) * 0.5 * root_of_two_by_pi;
    return host_round(functor->type, in[0] * (part + x * density));
}

COMPUTE(back_gelu_tanh)
{
    const double x = in[1];
    const double bend = tanh(root_of_two_by_pi * (x + cubic * x * x * x));
    const double slope = root_of_two_by_pi * (1 + 3 * cubic * x * x);
    return host_round(functor->type,
                      in[0] * (0.5 * (1 + bend) + 0.5 * x * (1 - bend * bend) * slope));
}

/* --- decisions */

/* launch_clamp_scalar: {ClampLimits (0 min, 1 max, 2 both), low, high} */
COMPUTE(clamp)
{
    const uint32_t limits = number_at(captured);
    const size_t size = scalar_size(functor->type);
    const double low = scalar_at(captured, size > 4 ? 8 : 4, functor->type);
    const double high = scalar_at(captured, (size > 4 ? 8 : 4) + size, functor->type);
    double value = in[0];
    if (limits != 1 && value < low)
        value = low;
    if (limits != 0 && value > high)
        value = high;
    return value;
}

/* 0 >=, 1 >, 2 <=, 3 < */
static double decide(uint32_t kind, double a, double b)
{
    return kind == 0 ? a >= b : kind == 1 ? a > b : kind == 2 ? a <= b : a < b;
}

/* compare_scalar_kernel: {kind, scalar of the operands' type} */
COMPUTE(compare)
{
    return decide(number_at(captured), in[0],
                  host_load(captured + (host_size(functor->type) > 4 ? 8 : 4), functor->type));
}

/* CompareFunctor: {kind}, of two operands */
COMPUTE(compare_two)
{
    return decide(number_at(captured), in[0], in[1]);
}

/* CompareEqFunctor: {0 ==, 1 !=}; with a number for one operand, this is in front of it. */
COMPUTE(equal_two)
{
    return (in[0] == in[1]) != (number_at(captured) != 0);
}

COMPUTE(equal)
{
    const double with = scalar_at(captured, scalar_size(functor->type) > 4 ? 8 : 4, functor->type);
    return (in[0] == with) != (number_at(captured) != 0);
}

/* --- bits */

#define COMPUTE_BITS(name, op)                                                 \
    COMPUTE(name##_two)                                                        \
    {                                                                          \
        return (double)((int64_t)in[0] op(int64_t) in[1]);                     \
    }                                                                          \
    COMPUTE(name##_one)                                                        \
    {                                                                          \
        return (double)((int64_t)in[0] op(int64_t) second(functor, captured)); \
    }
COMPUTE_BITS(or, |)
COMPUTE_BITS(and, &)
COMPUTE_BITS(exclusive_or, ^)

COMPUTE(invert_bits)
{
    return functor->type == HOST_BOOL ? in[0] == 0 : (double)~(int64_t)in[0];
}

/* By as many bits as there are, or by a negative number: 0, or the sign of a value to the right. */
static double shift(enum host_type type, double value, double by, bool is_left)
{
    const double bits = 8.0 * (double)host_size(type);
    const int64_t number = (int64_t)value;
    if (by < 0 || by >= bits)
        return is_left || number >= 0 ? 0 : -1;
    return (double)(is_left ? (int64_t)((uint64_t)number << (int)by) : number >> (int)by);
}

COMPUTE_PLAIN(shift_left_two, shift(functor->type, in[0], in[1], true))
COMPUTE_PLAIN(shift_left_by, shift(functor->type, in[0], second(functor, captured), true))
COMPUTE_PLAIN(shift_left_of, shift(functor->type, second(functor, captured), in[0], true))
COMPUTE_PLAIN(shift_right_two, shift(functor->type, in[0], in[1], false))
COMPUTE_PLAIN(shift_right_by, shift(functor->type, in[0], second(functor, captured), false))
COMPUTE_PLAIN(shift_right_of, shift(functor->type, second(functor, captured), in[0], false))

/* --- */

/* clamp_kernel_impl: the value, and what it lies between. */
COMPUTE(clamp_between)
{
    if (isnan(in[0]) || isnan(in[1]))
        return isnan(in[0]) ? in[0] : in[1];
    const double value = in[0] < in[1] ? in[1] : in[0];
    return isnan(in[2]) || value > in[2] ? in[2] : value;
}

COMPUTE_PLAIN(logical_not, in[0] == 0)
COMPUTE_PLAIN(logical_and, in[0] != 0 && in[1] != 0)
COMPUTE_PLAIN(logical_or, in[0] != 0 || in[1] != 0)
COMPUTE_PLAIN(is_negative_infinity, in[0] == -INFINITY)

COMPUTE(where)
{
    return in[0] != 0 ? in[1] : in[2];
}

/* --- by name */

/* The first that fits. MulFunctor and others are not asked for by themselves: they stand for other
 * operations in other places. */
static const struct host_operation operations[] = {
    {"13AUnaryFunctorI", "10MulFunctorI", TYPES_BEHIND, 2, CAPTURES_TWO, multiply},
    {"13BUnaryFunctorI", "10MulFunctorI", TYPES_BEHIND, 2, CAPTURES_TWO, multiply},
    {"13BinaryFunctorI", "10MulFunctorI", TYPES_BEHIND, 3, CAPTURES_NOTHING, multiply_two},
    {"13AUnaryFunctorI", "10DivFunctorI", TYPES_BEHIND, 2, CAPTURES_TWO, divide_scalar},
    {"13BUnaryFunctorI", "10DivFunctorI", TYPES_BEHIND, 2, CAPTURES_TWO, divide_by},
    {"13BinaryFunctorI", "10DivFunctorI", TYPES_BEHIND, 3, CAPTURES_NOTHING, divide_two},
    {"11FillFunctorI", NULL, TYPES_BEHIND, 1, CAPTURES_SCALAR, fill},
    {"23direct_copy_kernel_cuda", NULL, TYPES_LAMBDA, 2, CAPTURES_NOTHING, NULL},
    {"27converting_copy_kernel_cudaI", NULL, TYPES_TWO, 2, CAPTURES_NOTHING, NULL},
    {"24float16_copy_kernel_cuda", NULL, TYPES_HALF, 2, CAPTURES_NOTHING,
     NULL}, /* these two of 2.11 */
    {"25bfloat16_copy_kernel_cuda", NULL, TYPES_BFLOAT16, 2, CAPTURES_NOTHING, NULL},
    {"23float8_copy_kernel_cuda", NULL, TYPES_LAMBDA, 2, CAPTURES_NOTHING, NULL},
    {"23ConvertToFloat8E4M3fnOpI", NULL, TYPES_E4M3FN, 2, CAPTURES_NOTHING, NULL},
    {"26ConvertFloatToFloat8E5M2Op", NULL, TYPES_E5M2, 2, CAPTURES_NOTHING, NULL},
    {"21CUDAFunctorOnSelf_addI", NULL, TYPES_BEHIND, 2, CAPTURES_TWO, add_on_self},
    {"22CUDAFunctorOnOther_addI", NULL, TYPES_BEHIND, 2, CAPTURES_TWO, add_on_other},
    {"15CUDAFunctor_addI", NULL, TYPES_BEHIND, 3, CAPTURES_SCALAR, add},
    {"15neg_kernel_cuda", NULL, TYPES_LAMBDA, 2, CAPTURES_NOTHING, negate},
    {"10AbsFunctorI", NULL, TYPES_BEHIND, 2, CAPTURES_NOTHING, absolute},
    {"22reciprocal_kernel_cuda", NULL, TYPES_LAMBDA, 2, CAPTURES_NOTHING, invert},
    {"16sqrt_kernel_cuda", NULL, TYPES_LAMBDA, 2, CAPTURES_NOTHING, root},
    {"17rsqrt_kernel_cuda", NULL, TYPES_LAMBDA, 2, CAPTURES_NOTHING, inverse_root},
    {"15cos_kernel_cuda", NULL, TYPES_LAMBDA, 2, CAPTURES_NOTHING, cosine},
    {"15sin_kernel_cuda", NULL, TYPES_LAMBDA, 2, CAPTURES_NOTHING, sine},
    {"15exp_kernel_cuda", NULL, TYPES_LAMBDA, 2, CAPTURES_NOTHING, exponential},
    {"17expm1_kernel_cuda", NULL, TYPES_LAMBDA, 2, CAPTURES_NOTHING, exponential_less_one},
    {"15log_kernel_cuda", NULL, TYPES_LAMBDA, 2, CAPTURES_NOTHING, logarithm},
    {"16log2_kernel_cuda", NULL, TYPES_LAMBDA, 2, CAPTURES_NOTHING, logarithm_of_two},
    {"17log1p_kernel_cuda", NULL, TYPES_LAMBDA, 2, CAPTURES_NOTHING, logarithm_of_one_more},
    {"15erf_kernel_cuda", NULL, TYPES_LAMBDA, 2, CAPTURES_NOTHING, error_function},
    {"17floor_kernel_cuda", NULL, TYPES_LAMBDA, 2, CAPTURES_NOTHING, round_down},
    {"16ceil_kernel_cuda", NULL, TYPES_LAMBDA, 2, CAPTURES_NOTHING, round_up},
    {"17round_kernel_cuda", NULL, TYPES_LAMBDA, 2, CAPTURES_NOTHING, round_even},
    {"17trunc_kernel_cuda", NULL, TYPES_LAMBDA, 2, CAPTURES_NOTHING, round_to_zero},
    {"19maximum_kernel_cuda", NULL, TYPES_LAMBDA, 3, CAPTURES_NOTHING, most},
    {"19minimum_kernel_cuda", NULL, TYPES_LAMBDA, 3, CAPTURES_NOTHING, least},
    {"29pow_tensor_scalar_kernel_implI", NULL, TYPES_LAMBDA, 2, CAPTURES_EMPTY, power},
    {"24pow_tensor_tensor_kernel", NULL, TYPES_LAMBDA, 3, CAPTURES_EMPTY, power_of_both},
    {"22pow_scalar_tensor_implI", NULL, TYPES_LAMBDA, 2, CAPTURES_ONE, power_of_scalar},
    {"19addcmul_cuda_kernel", NULL, TYPES_LAMBDA, 4, CAPTURES_ONE, add_product},
    {"19addcdiv_cuda_kernel", NULL, TYPES_LAMBDA, 4, CAPTURES_ONE, add_quotient},
    {"18lerp_scalar_kernel", NULL, TYPES_LAMBDA, 3, CAPTURES_ONE, interpolate},
    {"18lerp_tensor_kernel", NULL, TYPES_LAMBDA, 4, CAPTURES_NOTHING, interpolate_by},
    {"19masked_scale_kernelIb", NULL, TYPES_MASK, 3, CAPTURES_ONE, scale_masked}, /* of bool */
    {"19masked_scale_kernelIh", NULL, TYPES_MASK, 3, CAPTURES_ONE, scale_masked},
    {"18masked_fill_kernel", NULL, TYPES_MASK, 3, CAPTURES_ONE, fill_masked},
    {"19sigmoid_kernel_cuda", NULL, TYPES_LAMBDA, 2, CAPTURES_NOTHING, activate_sigmoid},
    {"28sigmoid_backward_kernel_cuda", NULL, TYPES_LAMBDA, 3, CAPTURES_NOTHING, back_sigmoid},
    {"16tanh_kernel_cuda", NULL, TYPES_LAMBDA, 2, CAPTURES_NOTHING, activate_tanh},
    {"25tanh_backward_kernel_cuda", NULL, TYPES_LAMBDA, 3, CAPTURES_NOTHING, back_tanh},
    {"11silu_kernel", NULL, TYPES_LAMBDA, 2, CAPTURES_NOTHING, activate_silu},
    {"20silu_backward_kernel", NULL, TYPES_LAMBDA, 3, CAPTURES_NOTHING, back_silu},
    {"18GeluCUDAKernelImpl", "GeluTypeEENKUlvE0_", TYPES_LAMBDA, 2, CAPTURES_NOTHING,
     activate_gelu},
    {"18GeluCUDAKernelImpl", NULL, TYPES_LAMBDA, 2, CAPTURES_NOTHING, activate_gelu_tanh},
    {"26GeluBackwardCUDAKernelImpl", "GeluTypeEENKUlvE0_", TYPES_LAMBDA, 3, CAPTURES_NOTHING,
     back_gelu},
    {"26GeluBackwardCUDAKernelImpl", NULL, TYPES_LAMBDA, 3, CAPTURES_NOTHING, back_gelu_tanh},
    {"19launch_clamp_scalar", NULL, TYPES_LAMBDA, 2, CAPTURES_LIMITS, clamp},
    {"21compare_scalar_kernelI", NULL, TYPES_COMPARE, 2, CAPTURES_ONE, compare},
    {"14CompareFunctorI", NULL, TYPES_COMPARE, 3, CAPTURES_SCALAR, compare_two},
    {"13BinaryFunctorI", "16CompareEqFunctorI", TYPES_COMPARE, 3, CAPTURES_SCALAR, equal_two},
    {"13BUnaryFunctorI", "16CompareEqFunctorI", TYPES_COMPARE, 2, CAPTURES_TWO, equal},
    {"13AUnaryFunctorI", "16CompareEqFunctorI", TYPES_COMPARE, 2, CAPTURES_TWO, equal},
    {"13BinaryFunctorI", "16BitwiseOrFunctorI", TYPES_BEHIND, 3, CAPTURES_NOTHING, or_two},
    {"UnaryFunctorI", "16BitwiseOrFunctorI", TYPES_BEHIND, 2, CAPTURES_TWO, or_one},
    {"13BinaryFunctorI", "17BitwiseAndFunctorI", TYPES_BEHIND, 3, CAPTURES_NOTHING, and_two},
    {"UnaryFunctorI", "17BitwiseAndFunctorI", TYPES_BEHIND, 2, CAPTURES_TWO, and_one},
    {"13BinaryFunctorI", "17BitwiseXorFunctorI", TYPES_BEHIND, 3, CAPTURES_NOTHING,
     exclusive_or_two},
    {"UnaryFunctorI", "17BitwiseXorFunctorI", TYPES_BEHIND, 2, CAPTURES_TWO, exclusive_or_one},
    {"23bitwise_not_kernel_cuda", NULL, TYPES_LAMBDA, 2, CAPTURES_NOTHING, invert_bits},
    {"13BinaryFunctorI", "18lshift_kernel_cuda", TYPES_BEHIND, 3, CAPTURES_NOTHING, shift_left_two},
    {"13BUnaryFunctorI", "18lshift_kernel_cuda", TYPES_BEHIND, 2, CAPTURES_TWO, shift_left_by},
    {"13AUnaryFunctorI", "18lshift_kernel_cuda", TYPES_BEHIND, 2, CAPTURES_TWO, shift_left_of},
    {"13BinaryFunctorI", "18rshift_kernel_cuda", TYPES_BEHIND, 3, CAPTURES_NOTHING,
     shift_right_two},
    {"13BUnaryFunctorI", "18rshift_kernel_cuda", TYPES_BEHIND, 2, CAPTURES_TWO, shift_right_by},
    {"13AUnaryFunctorI", "18rshift_kernel_cuda", TYPES_BEHIND, 2, CAPTURES_TWO, shift_right_of},
    {"13BinaryFunctorI", "21remainder_kernel_cuda", TYPES_BEHIND, 3, CAPTURES_NOTHING,
     remainder_two},
    {"13BUnaryFunctorI", "21remainder_kernel_cuda", TYPES_BEHIND, 2, CAPTURES_TWO, remainder_by},
    {"13BinaryFunctorI", "21div_floor_kernel_cuda", TYPES_BEHIND, 3, CAPTURES_NOTHING,
     quotient_two},
    {"13BUnaryFunctorI", "21div_floor_kernel_cuda", TYPES_BEHIND, 2, CAPTURES_TWO, quotient_by},
    {"13BinaryFunctorI", "21div_trunc_kernel_cuda", TYPES_BEHIND, 3, CAPTURES_NOTHING,
     truncated_two},
    {"13BUnaryFunctorI", "21div_trunc_kernel_cuda", TYPES_BEHIND, 2, CAPTURES_TWO, truncated_by},
    {"17clamp_kernel_impl", NULL, TYPES_LAMBDA, 4, CAPTURES_NOTHING, clamp_between},
    {"23logical_not_kernel_cuda", NULL, TYPES_DECIDE, 2, CAPTURES_NOTHING, logical_not},
    {"23logical_and_kernel_cuda", NULL, TYPES_DECIDE, 3, CAPTURES_NOTHING, logical_and},
    {"22logical_or_kernel_cuda", NULL, TYPES_DECIDE, 3, CAPTURES_NOTHING, logical_or},
    {"20isneginf_kernel_impl", NULL, TYPES_DECIDE, 2, CAPTURES_NOTHING, is_negative_infinity},
    {"16sign_kernel_cuda", NULL, TYPES_LAMBDA, 2, CAPTURES_NOTHING, sign},
    {"17where_kernel_impl", NULL, TYPES_WHERE, 4, CAPTURES_NOTHING, where},
};

static const struct host_operation *find(const char *name)
{
    for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]); i++) {
        const char *at = strstr(name, operations[i].name);
        if (at != NULL && (operations[i].other == NULL || strstr(at, operations[i].other) != NULL))
            return &operations[i];
    }
    return NULL;
}

/* Arguments of the innermost lambda, "EUlfbE0_": up to HOST_MAX_OPERANDS types, and its number. The
 * lambdas around it are "ENKUlvE". */
static bool read_lambda(const char *at, enum host_type same, enum host_type *types,
                        unsigned *number)
{
    at = strstr(at, "EUl");
    if (at == NULL)
        return false;
    at += strlen("EUl");
    for (unsigned i = 0; *at != 'E'; i++) {
        const enum host_type type = host_parse_type(&at, same);
        if (type == HOST_NONE || i == HOST_MAX_OPERANDS)
            return false;
        types[i] = type;
        same = type;
    }
    *number = at[1] == '_' ? 0 : (unsigned)strtoul(at + 1, NULL, 10) + 1;
    return true;
}

/* The types of a lambda's operands, from those of its arguments. */
static void set_types(struct host_functor *functor, const enum host_type *arguments)
{
    const unsigned inputs = functor->operation->operands - 1;
    enum host_type out = arguments[0];
    functor->type = arguments[0];
    for (unsigned i = 0; i < inputs; i++)
        functor->types[i + 1] = arguments[0];
    switch (functor->operation->types) {
    case TYPES_DECIDE:
        out = HOST_BOOL;
        break;
    case TYPES_WHERE:
        functor->type = functor->types[2] = functor->types[3] = out = arguments[1];
        break;
    case TYPES_MASK:
        functor->types[2] = arguments[1];
        break;
    case TYPES_HALF:
        out = HOST_HALF;
        break;
    case TYPES_BFLOAT16:
        out = HOST_BFLOAT16;
        break;
    default:
        break;
    }
    functor->types[0] = out;
}

static bool read_types_behind(const char *at, const char *name, struct host_functor *functor)
{
    /* Types with long names are named once, here by what is around the functor. */
    const enum host_type in = host_parse_type(&at, host_type_behind(name, "13BinaryFunctorI"));
    enum host_type out = in;
    if (functor->operation->types == TYPES_COMPARE)
        out = HOST_BOOL;
    if (functor->operation->types == TYPES_TWO)
        out = host_parse_type(&at, in);
    if (functor->operation->types == TYPES_E4M3FN)
        out = HOST_E4M3FN;
    functor->type = in;
    for (unsigned i = 1; i < functor->operation->operands; i++)
        functor->types[i] = in;
    functor->types[0] = out;
    return in != HOST_NONE && out != HOST_NONE;
}

bool host_read_functor(const char *name, struct host_functor *out)
{
    enum host_type arguments[HOST_MAX_OPERANDS] = {HOST_NONE};
    *out = (struct host_functor){.operation = find(name)};
    if (out->operation == NULL)
        return false;
    const char *at = strstr(name, out->operation->name) + strlen(out->operation->name);
    switch (out->operation->types) {
    case TYPES_BEHIND:
    case TYPES_TWO:
    case TYPES_COMPARE:
    case TYPES_E4M3FN:
        return read_types_behind(at, name, out);
    case TYPES_E5M2:
        out->type = out->types[1] = HOST_FLOAT;
        out->types[0] = HOST_E5M2;
        return true;
    default:
        break;
    }
    enum host_type same = host_type_behind(name, out->operation->name);
    if (same == HOST_NONE) /* a functor around the lambda has named it */
        same = host_type_behind(name, "13BinaryFunctorI");
    if (!read_lambda(at, same, arguments, &out->variant))
        return false;
    set_types(out, arguments);
    return true;
}

size_t host_captured_bytes(const struct host_functor *functor)
{
    const size_t size = scalar_size(functor->type);
    switch (functor->operation->captures) {
    case CAPTURES_NOTHING:
        return 1;
    case CAPTURES_SCALAR:
        return functor->operation->types == TYPES_COMPARE ? 4 : size;
    case CAPTURES_TWO:
        return functor->operation->types == TYPES_COMPARE && size < 4 ? 8 : 2 * size;
    case CAPTURES_EMPTY:
        return functor->variant == 3 ? 16 : 8;
    case CAPTURES_ONE:
        return functor->operation->types == TYPES_COMPARE && size > 4 ? 24 : 16;
    default:
        return size > 4 ? 32 : 24;
    }
}
