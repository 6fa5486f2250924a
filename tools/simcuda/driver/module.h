/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Modules, libraries and their functions, as module.c, library.c, function.c, launch.c and the
 * graph files share them. A CUfunction and a CUkernel are both a struct sim_function; the kernel of
 * a library and its function in the library's module are two objects, so that their handles differ
 * as a driver's do.
 */
#pragma once

#include "tools/simcuda/driver/kernel.h"
#include "tools/simcuda/driver/sim.h"

#include <stdatomic.h>

enum { SIM_MAX_PARAM_BYTES = 32764, SIM_MAX_THREADS = 1024, SIM_MAX_SHARED_BYTES = 232448 };
enum { SIM_DEFAULT_SHARED_BYTES = 48 * 1024 }; /* that a launch has without asking for more */

/* Arguments that the calls of CUDA 3 set one by one before cuLaunch; guarded by sim_lock. */
struct sim_legacy_args {
    unsigned block[3];
    unsigned shared_bytes;
    unsigned size;
    unsigned char bytes[4096];
};

struct sim_function {
    struct sim_function *next;          /* in its module; guarded by sim_lock */
    struct sim_module *module;          /* guarded by sim_lock; NULL once that is unloaded */
    atomic_int references;              /* the module's, and one for each launch or graph node */
    simcuda_kernel *run;                /* this and the next three: immutable */
    const struct simcuda_param *params; /* NULL: the layout is not known */
    size_t params_count, params_bytes;
    int attributes[CU_FUNC_ATTRIBUTE_MAX]; /* guarded by sim_lock */
    bool is_loaded;                        /* loading is lazy; guarded by sim_lock */
    struct sim_legacy_args legacy;
    char name[];
};

/* A variable of a module, put into device memory when it is first asked for. */
struct sim_global {
    struct sim_global *next;
    CUdeviceptr address;
    size_t bytes;
    char name[];
};

/* A CUmodule or a CUlibrary; everything here is guarded by sim_lock. */
struct sim_module {
    struct sim_module *next;
    void *image;    /* of dlopen. Never unmapped, launches may outlive the module */
    bool is_fatbin; /* then it has no image, and its kernels are those that fatbin.c finds */
    bool is_library;
    struct sim_module *library; /* of the module that a library has: that library */
    struct sim_module *inner;   /* of a library: its module, or NULL until somebody asks */
    struct sim_function *functions;
    struct sim_global *globals;
};

/* NULL for a handle that is not live, or not live any more. */
struct sim_module *sim_module_find_locked(const void *handle, bool is_library);
struct sim_function *sim_function_find_locked(const void *handle);

/* From a path, or from what cuModuleLoadData is given. The new module is live. */
CUresult sim_module_open_file(const char *path, bool is_library, struct sim_module **module_out);
CUresult sim_module_open_data(const void *data, bool is_library, struct sim_module **module_out);
struct sim_module *sim_module_open_inner_locked(struct sim_module *library);
CUresult sim_module_close(const void *handle, bool is_library);

/* The function of that name, made when it is first asked for. */
CUresult sim_module_function_locked(struct sim_module *module, const char *name,
                                    struct sim_function **function_out);
/* Allocates device memory of the current context. Both outputs may be NULL. */
CUresult sim_module_global(const void *handle, bool is_library, const char *name,
                           CUdeviceptr *address_out, size_t *bytes_out);

/* The address of a module's variable that the program has asked for before; or 0. */
CUdeviceptr sim_module_global_address(const void *handle, const char *name);
/* Up to `room` functions of the module's list of kernels; count_out says how many there are. */
CUresult sim_module_list_locked(struct sim_module *module, unsigned room, void **handles,
                                unsigned *count_out);

/* The host version of a kernel in a fat binary, and its layout; NULL, after a complaint, when there
 * is none. */
simcuda_kernel *sim_fatbin_find(const char *name, const struct simcuda_param **params_out);

/* Every kernel of a dry run. */
simcuda_kernel sim_dry_kernel;

void sim_function_drop(struct sim_function *function);
