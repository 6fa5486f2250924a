/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations of cudaGL.h, cudaEGL.h and cudaVDPAU.h, which need headers of the other API that a
 * build of the shim must not require. */
#pragma once

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

CUresult cuGLCtxCreate(CUcontext *pCtx, unsigned int Flags, CUdevice device);
CUresult cuGLCtxCreate_v2(CUcontext *pCtx, unsigned int Flags, CUdevice device);
CUresult cuVDPAUCtxCreate(CUcontext *pCtx, unsigned int flags, CUdevice device,
                          cuuint32_t vdpDevice, void *vdpGetProcAddress);
CUresult cuVDPAUCtxCreate_v2(CUcontext *pCtx, unsigned int flags, CUdevice device,
                             cuuint32_t vdpDevice, void *vdpGetProcAddress);

CUresult cuGLMapBufferObject_v2(CUdeviceptr *dptr, size_t *size, unsigned int buffer);
CUresult cuGLMapBufferObject_v2_ptds(CUdeviceptr *dptr, size_t *size, unsigned int buffer);
CUresult cuGLMapBufferObjectAsync_v2(CUdeviceptr *dptr, size_t *size, unsigned int buffer,
                                     CUstream hStream);
CUresult cuGLMapBufferObjectAsync_v2_ptsz(CUdeviceptr *dptr, size_t *size, unsigned int buffer,
                                          CUstream hStream);

enum { MS_FRAME_PLANES = 3, MS_FRAME_PITCH = 1 };
struct ms_egl_frame {
    void *planes[MS_FRAME_PLANES]; /* arrays, or addresses if the type is MS_FRAME_PITCH */
    unsigned int width, height, depth, pitch, plane_count, channels;
    int type, color_format, format;
};
CUresult cuGraphicsResourceGetMappedEglFrame(struct ms_egl_frame *eglFrame,
                                             CUgraphicsResource resource, unsigned int index,
                                             unsigned int mipLevel);
