/* SPDX-License-Identifier: Apache-2.0 */
/* Code: tracks which handles are kernels, and runs recorded launches before an unload. */
#include "runtime/driver/flags.h"
#include "runtime/fill/access.h"
#include "runtime/kernel/parameters.h"
#include "shim/quick.h"

CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name)
{
    const CUresult result = MS_REAL(cuLibraryGetKernel)(pKernel, library, name);
    if (result == CUDA_SUCCESS && ms_is_started())
        ms_parameters_add_kernel(*pKernel, library);
    return result;
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int numKernels, CUlibrary lib)
{
    const CUresult result = MS_REAL(cuLibraryEnumerateKernels)(kernels, numKernels, lib);
    unsigned count = 0;
    if (result == CUDA_SUCCESS && ms_is_started() &&
        MS_REAL(cuLibraryGetKernelCount)(&count, lib) == CUDA_SUCCESS) {
        for (unsigned i = 0; i < numKernels && i < count; i++)
            ms_parameters_add_kernel(kernels[i], lib);
    }
    return result;
}

/* Runs recorded launches before the code of `library` (NULL: of some module) is unloaded. */
static CUresult prepare_unload(CUlibrary library)
{
    if (!ms_is_started())
        return CUDA_SUCCESS;
    const CUresult result = ms_access(0, SIZE_MAX, MS_NEED_LAUNCHED);
    if (result == CUDA_SUCCESS)
        ms_parameters_forget(library);
    return result;
}

#define UNLOADS(symbol, library, parameters, arguments) \
    CUresult symbol parameters                          \
    {                                                   \
        MS_ENTER(#symbol);                              \
        atomic_fetch_add(&ms_parameters_unloads, 1);    \
        CUresult result = prepare_unload(library);      \
        if (result == CUDA_SUCCESS)                     \
            result = MS_REAL(symbol) arguments;         \
        atomic_fetch_sub(&ms_parameters_unloads, 1);    \
        return result;                                  \
    }

UNLOADS(cuModuleUnload, NULL, (CUmodule hmod), (hmod))
UNLOADS(cuLibraryUnload, library, (CUlibrary library), (library))
