/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a context, and with an argument allocates memory. start.py counts this program's work. */
#include <cuda.h>

int main(int argc, char **argv)
{
    CUcontext context;
    CUdeviceptr address;
    (void)argv;
    return cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
           cuCtxSetCurrent(context) != CUDA_SUCCESS ||
           (argc > 1 && cuMemAlloc(&address, (size_t)4 << 20) != CUDA_SUCCESS);
}
