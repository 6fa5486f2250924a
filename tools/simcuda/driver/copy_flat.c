/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of one range of bytes to another. */
#include "tools/simcuda/driver/copy.h"
#include "tools/simcuda/driver/state.h"

#define HOST CU_MEMORYTYPE_HOST
#define DEVICE CU_MEMORYTYPE_DEVICE
#define ANY CU_MEMORYTYPE_UNIFIED

SIM_TWINS(cuMemcpyHtoD_v2, _ptds, (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount),
          sim_copy_flat("cuMemcpyHtoD", DEVICE, dstDevice, HOST, (uint64_t)srcHost, ByteCount,
                        false, NULL, per_thread))

SIM_TWINS(cuMemcpyDtoH_v2, _ptds, (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount),
          sim_copy_flat("cuMemcpyDtoH", HOST, (uint64_t)dstHost, DEVICE, srcDevice, ByteCount,
                        false, NULL, per_thread))

SIM_TWINS(cuMemcpyDtoD_v2, _ptds, (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount),
          sim_copy_flat("cuMemcpyDtoD", DEVICE, dstDevice, DEVICE, srcDevice, ByteCount, false,
                        NULL, per_thread))

SIM_TWINS(cuMemcpy, _ptds, (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount),
          sim_copy_flat("cuMemcpy", ANY, dst, ANY, src, ByteCount, false, NULL, per_thread))

SIM_TWINS(cuMemcpyHtoDAsync_v2, _ptsz,
          (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream),
          sim_copy_flat("cuMemcpyHtoDAsync", DEVICE, dstDevice, HOST, (uint64_t)srcHost, ByteCount,
                        true, hStream, per_thread))

SIM_TWINS(cuMemcpyDtoHAsync_v2, _ptsz,
          (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream),
          sim_copy_flat("cuMemcpyDtoHAsync", HOST, (uint64_t)dstHost, DEVICE, srcDevice, ByteCount,
                        true, hStream, per_thread))

SIM_TWINS(cuMemcpyDtoDAsync_v2, _ptsz,
          (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream),
          sim_copy_flat("cuMemcpyDtoDAsync", DEVICE, dstDevice, DEVICE, srcDevice, ByteCount, true,
                        hStream, per_thread))

SIM_TWINS(cuMemcpyAsync, _ptsz,
          (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream),
          sim_copy_flat("cuMemcpyAsync", ANY, dst, ANY, src, ByteCount, true, hStream, per_thread))

/* --- between contexts */

static CUresult copy_peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                          CUcontext from_context, size_t bytes, bool is_async, CUstream stream,
                          bool per_thread)
{
    const CUresult result = sim_contexts_check(to_context, from_context);
    if (result != CUDA_SUCCESS)
        return result;
    return sim_copy_flat("cuMemcpyPeer", ANY, to, ANY, from, bytes, is_async, stream, per_thread);
}

SIM_TWINS(cuMemcpyPeer, _ptds,
          (CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
           size_t ByteCount),
          copy_peer(dstDevice, dstContext, srcDevice, srcContext, ByteCount, false, NULL,
                    per_thread))

SIM_TWINS(cuMemcpyPeerAsync, _ptsz,
          (CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
           size_t ByteCount, CUstream hStream),
          copy_peer(dstDevice, dstContext, srcDevice, srcContext, ByteCount, true, hStream,
                    per_thread))
