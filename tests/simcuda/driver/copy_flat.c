/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of one range of bytes to another. */
#include "tests/simcuda/driver/copy.h"
#include "tests/simcuda/driver/state.h"

#define HOST CU_MEMORYTYPE_HOST
#define DEVICE CU_MEMORYTYPE_DEVICE
#define ANY CU_MEMORYTYPE_UNIFIED

CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount)
{
    SIM_ENTER(cuMemcpyHtoD_v2);
    return sim_copy_flat("cuMemcpyHtoD", DEVICE, dstDevice, HOST, (uint64_t)srcHost, ByteCount,
                         false, NULL, false);
}

CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount)
{
    SIM_ENTER(cuMemcpyHtoD_v2_ptds);
    return sim_copy_flat("cuMemcpyHtoD", DEVICE, dstDevice, HOST, (uint64_t)srcHost, ByteCount,
                         false, NULL, true);
}

CUresult cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
{
    SIM_ENTER(cuMemcpyDtoH_v2);
    return sim_copy_flat("cuMemcpyDtoH", HOST, (uint64_t)dstHost, DEVICE, srcDevice, ByteCount,
                         false, NULL, false);
}

CUresult cuMemcpyDtoH_v2_ptds(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
{
    SIM_ENTER(cuMemcpyDtoH_v2_ptds);
    return sim_copy_flat("cuMemcpyDtoH", HOST, (uint64_t)dstHost, DEVICE, srcDevice, ByteCount,
                         false, NULL, true);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount)
{
    SIM_ENTER(cuMemcpyDtoD_v2);
    return sim_copy_flat("cuMemcpyDtoD", DEVICE, dstDevice, DEVICE, srcDevice, ByteCount, false,
                         NULL, false);
}

CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount)
{
    SIM_ENTER(cuMemcpyDtoD_v2_ptds);
    return sim_copy_flat("cuMemcpyDtoD", DEVICE, dstDevice, DEVICE, srcDevice, ByteCount, false,
                         NULL, true);
}

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
    SIM_ENTER(cuMemcpy);
    return sim_copy_flat("cuMemcpy", ANY, dst, ANY, src, ByteCount, false, NULL, false);
}

CUresult cuMemcpy_ptds(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
    SIM_ENTER(cuMemcpy_ptds);
    return sim_copy_flat("cuMemcpy", ANY, dst, ANY, src, ByteCount, false, NULL, true);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount,
                              CUstream hStream)
{
    SIM_ENTER(cuMemcpyHtoDAsync_v2);
    return sim_copy_flat("cuMemcpyHtoDAsync", DEVICE, dstDevice, HOST, (uint64_t)srcHost, ByteCount,
                         true, hStream, false);
}

CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount,
                                   CUstream hStream)
{
    SIM_ENTER(cuMemcpyHtoDAsync_v2_ptsz);
    return sim_copy_flat("cuMemcpyHtoDAsync", DEVICE, dstDevice, HOST, (uint64_t)srcHost, ByteCount,
                         true, hStream, true);
}

CUresult cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount,
                              CUstream hStream)
{
    SIM_ENTER(cuMemcpyDtoHAsync_v2);
    return sim_copy_flat("cuMemcpyDtoHAsync", HOST, (uint64_t)dstHost, DEVICE, srcDevice, ByteCount,
                         true, hStream, false);
}

CUresult cuMemcpyDtoHAsync_v2_ptsz(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount,
                                   CUstream hStream)
{
    SIM_ENTER(cuMemcpyDtoHAsync_v2_ptsz);
    return sim_copy_flat("cuMemcpyDtoHAsync", HOST, (uint64_t)dstHost, DEVICE, srcDevice, ByteCount,
                         true, hStream, true);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                              CUstream hStream)
{
    SIM_ENTER(cuMemcpyDtoDAsync_v2);
    return sim_copy_flat("cuMemcpyDtoDAsync", DEVICE, dstDevice, DEVICE, srcDevice, ByteCount, true,
                         hStream, false);
}

CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                                   CUstream hStream)
{
    SIM_ENTER(cuMemcpyDtoDAsync_v2_ptsz);
    return sim_copy_flat("cuMemcpyDtoDAsync", DEVICE, dstDevice, DEVICE, srcDevice, ByteCount, true,
                         hStream, true);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream)
{
    SIM_ENTER(cuMemcpyAsync);
    return sim_copy_flat("cuMemcpyAsync", ANY, dst, ANY, src, ByteCount, true, hStream, false);
}

CUresult cuMemcpyAsync_ptsz(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream)
{
    SIM_ENTER(cuMemcpyAsync_ptsz);
    return sim_copy_flat("cuMemcpyAsync", ANY, dst, ANY, src, ByteCount, true, hStream, true);
}

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

CUresult cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                      CUcontext srcContext, size_t ByteCount)
{
    SIM_ENTER(cuMemcpyPeer);
    return copy_peer(dstDevice, dstContext, srcDevice, srcContext, ByteCount, false, NULL, false);
}

CUresult cuMemcpyPeer_ptds(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                           CUcontext srcContext, size_t ByteCount)
{
    SIM_ENTER(cuMemcpyPeer_ptds);
    return copy_peer(dstDevice, dstContext, srcDevice, srcContext, ByteCount, false, NULL, true);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                           CUcontext srcContext, size_t ByteCount, CUstream hStream)
{
    SIM_ENTER(cuMemcpyPeerAsync);
    return copy_peer(dstDevice, dstContext, srcDevice, srcContext, ByteCount, true, hStream, false);
}

CUresult cuMemcpyPeerAsync_ptsz(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                                CUcontext srcContext, size_t ByteCount, CUstream hStream)
{
    SIM_ENTER(cuMemcpyPeerAsync_ptsz);
    return copy_peer(dstDevice, dstContext, srcDevice, srcContext, ByteCount, true, hStream, true);
}
