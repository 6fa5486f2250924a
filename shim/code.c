/* SPDX-License-Identifier: Apache-2.0 */
/* Code: tracks which handles are kernels, and runs recorded launches before an unload. */
#include "runtime/calls/launch.h"
#include "runtime/driver/flags.h"
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

#define UNLOAD(symbol, type, library)                                                       \
    CUresult symbol(type code)                                                              \
    {                                                                                       \
        MS_ENTER(#symbol);                                                                  \
        const CUresult result = ms_is_started() ? ms_launch_unload(library) : CUDA_SUCCESS; \
        return result != CUDA_SUCCESS ? result : MS_REAL(symbol)(code);                     \
    }
UNLOAD(cuModuleUnload, CUmodule, NULL)
UNLOAD(cuLibraryUnload, CUlibrary, code)
