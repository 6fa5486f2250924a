/* SPDX-License-Identifier: Apache-2.0 */
/* The functors of elementwise loops, found by their mangled names (operations.c). */
#pragma once

#include "tools/simcuda/torch/host.h"

/* A functor as one kernel has it. */
struct host_functor {
    const struct host_operation *operation;
    enum host_type type; /* in which it computes: of its first input, or what it fills in */
    enum host_type types[HOST_MAX_OPERANDS]; /* of its operands, out first */
    unsigned variant;                        /* of several lambdas in one function: which */
};

/* One element's value from the functor's captured bytes and the inputs. */
typedef double host_compute(const struct host_functor *functor, const unsigned char *captured,
                            const double *in);

struct host_operation {
    const char *name;  /* part of the mangled name */
    const char *other; /* NULL, or what has to be behind it */
    enum {
        TYPES_BEHIND,   /* the type of all operands stands behind the name */
        TYPES_LAMBDA,   /* it is the argument of the innermost lambda: "EUlfE" */
        TYPES_TWO,      /* in, out behind the name */
        TYPES_COMPARE,  /* in behind the name, out is bool */
        TYPES_DECIDE,   /* in is the argument of the lambda, out is bool */
        TYPES_WHERE,    /* arguments of the lambda: bool, in, in */
        TYPES_MASK,     /* arguments of the lambda: in, bool or byte */
        TYPES_HALF,     /* in is the argument of the innermost lambda, out is half */
        TYPES_BFLOAT16, /* or bfloat16 */
        TYPES_E4M3FN,   /* in behind the name, out is of eight bits */
        TYPES_E5M2      /* in is float, out is of eight bits */
    } types;
    unsigned operands;
    enum {
        CAPTURES_NOTHING, /* a byte */
        CAPTURES_SCALAR,
        CAPTURES_TWO,   /* scalars, or something that has the alignment of one, and one */
        CAPTURES_EMPTY, /* a lambda that may capture, and does not: what nvcc adds, 8 bytes */
        CAPTURES_ONE,   /* a lambda: a scalar, and what nvcc adds */
        CAPTURES_LIMITS /* a lambda: three, and what nvcc adds */
    } captures;
    host_compute *compute; /* NULL: in as it is */
};

/* False for what is not known here. */
bool host_read_functor(const char *name, struct host_functor *out);

/* Bytes of its captured values. */
size_t host_captured_bytes(const struct host_functor *functor);
