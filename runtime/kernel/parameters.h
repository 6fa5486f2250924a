/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameter layouts: where the parameters of a kernel lie, as the driver tells (cuFuncGetParamInfo,
 * CUDA 12.4), with the rule for its name. Kept per function, also when there is nothing to know,
 * because the driver builds its answer anew at every question. Forgotten when code is unloaded:
 * handles are used again.
 */
#ifndef METASHARD_RUNTIME_KERNEL_PARAMETERS_H
#define METASHARD_RUNTIME_KERNEL_PARAMETERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/driver/driver.h"
#include "runtime/kernel/rules.h"

struct ms_param {
    uint32_t offset, bytes; /* in the packed parameters */
};

/* Immutable; by reference count. */
struct ms_param_layout {
    _Atomic uint32_t references;
    bool is_kernel;    /* the handle is a CUkernel */
    bool known;        /* false: the driver cannot tell the parameters */
    enum ms_rule rule; /* MS_RULE_RUN when the name is not known */
    char *name;        /* "?" when it is not known */
    size_t bytes;      /* of the packed parameters */
    uint32_t count;
    struct ms_param params[];
};

/* The layout of a function, or of a CUkernel that was cast to one. NULL when memory is out. The caller
 * gets a reference. Calls the driver the first time. */
struct ms_param_layout *ms_param_layout_take(CUfunction function);
void ms_param_layout_hold(struct ms_param_layout *layout);
void ms_param_layout_drop(struct ms_param_layout *layout);

/* True when an aligned pointer may lie at this offset: whole inside of one parameter, as far as parameters are known. */
bool ms_param_layout_has_word(const struct ms_param_layout *layout, size_t offset);

/* The handle is a CUkernel of that library. */
void ms_param_layout_add_kernel(CUkernel kernel, CUlibrary library);

/* Code was unloaded: nothing is known of any function; kernels of `library` (may be NULL) are gone. */
void ms_param_layout_forget(CUlibrary library);

#endif
