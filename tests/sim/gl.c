/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two exports of cudaGL.h, which drivers have although the toolkit's stub library has not: programs
 * that load the driver by name (ffmpeg) give up when they are missing. Nothing here knows OpenGL,
 * so they read none of their arguments and need none of that header's types.
 */
#include <cuda.h>

CUresult cuGLGetDevices_v2(void);
CUresult cuGraphicsGLRegisterImage(void);

__attribute__((visibility("default"))) CUresult cuGLGetDevices_v2(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

__attribute__((visibility("default"))) CUresult cuGraphicsGLRegisterImage(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}
