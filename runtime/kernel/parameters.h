/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameter layouts: where the parameters of a kernel lie, as the driver reports
 * (cuFuncGetParamInfo, CUDA 12.4), with the rule for its name. A layout is kept per function, also
 * if the driver reports nothing, because the driver builds its answer anew for each query. It is
 * forgotten when code is unloaded, since handles are reused.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/counted.h"
#include "runtime/driver/driver.h"
#include "runtime/kernel/rules.h"

struct ms_param {
    uint32_t offset, bytes; /* in the packed parameters */
};

/* Immutable but for written_place and is_forgotten. */
struct ms_param_layout {
    struct ms_counted counted; /* must be first: cast */
    bool is_kernel;            /* the handle is a CUkernel */
    bool known;                /* false: the driver does not report the parameters */
    enum ms_rule rule;         /* MS_RULE_RUN if the name is unknown */
    char *name;                /* "?" if unknown */
    /* MS_RULE_WRITE_ONLY: the offset of the written pointer, plus 1; 0: not known. launch.c */
    _Atomic uint32_t written_place;
    _Atomic bool is_forgotten; /* code was unloaded: the handle may be another function's by now */
    size_t bytes;              /* of the packed parameters */
    uint32_t count;
    struct ms_param params[];
};

/* Returns a reference to the layout of a function, or of a CUkernel cast to one, or NULL if out of
 * memory. Calls the driver the first time. */
struct ms_param_layout *ms_parameters_take(CUfunction function);

/* True if an aligned pointer may lie at this offset: within one parameter, if those are known. */
bool ms_parameters_has_word(const struct ms_param_layout *layout, size_t offset);

/* Remembers that the handle is a CUkernel of that library. */
void ms_parameters_add_kernel(CUkernel kernel, CUlibrary library);

/*
 * How many calls are about to unload code. Such a call brings the results of all recorded launches
 * into memory, allocation by allocation. Meanwhile no thread may copy such a result by its record,
 * or record a launch over one: the record might come to an allocation that was looked at already.
 * To be asked under the claims of the allocations, for which the call waits.
 */
extern _Atomic uint32_t ms_parameters_unloads;
static inline bool ms_parameters_is_unloading(void)
{
    return atomic_load(&ms_parameters_unloads) > 0;
}

/* After code was unloaded: forgets all layouts, and the kernels of `library` (may be NULL). */
void ms_parameters_forget(CUlibrary library);
