/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that PyTorch links with and no test needs: each says so, and fails. */
#include <stdio.h>

#define ABSENT(name)                                                      \
    int name(void);                                                       \
    int name(void)                                                        \
    {                                                                     \
        fputs("cudart stand-in: " #name " is not implemented\n", stderr); \
        return 801; /* cudaErrorNotSupported */                           \
    }

ABSENT(cudaGetSymbolAddress)
ABSENT(cudaGraphAddEmptyNode)
ABSENT(cudaGraphAddNode)
ABSENT(cudaGraphConditionalHandleCreate)
ABSENT(cudaGraphDebugDotPrint)
ABSENT(cudaGraphNodeGetDependencies)
ABSENT(cudaGraphNodeGetType)
ABSENT(cudaKernelSetAttributeForDevice)
ABSENT(cudaLibraryGetGlobal)
ABSENT(cudaLibraryGetKernel)
ABSENT(cudaLibraryGetKernelCount)
ABSENT(cudaLibraryGetManaged)
ABSENT(cudaLibraryGetUnifiedFunction)
ABSENT(cudaLibraryLoadData)
ABSENT(cudaLibraryLoadFromFile)
ABSENT(cudaLibraryUnload)
ABSENT(cudaMemcpyToSymbol)
ABSENT(cudaStreamBeginCaptureToGraph)
ABSENT(cudaStreamUpdateCaptureDependencies)
