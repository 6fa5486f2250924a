/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that processes share by handles of cuIpcGetMemHandle. */
#include "runtime/base/log.h"
#include "runtime/calls/ipc.h"
#include "runtime/calls/pointer.h"
#include "runtime/driver/flags.h"
#include "shim/init.h"
#include "shim/quick.h"

CUresult cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr)
{
    CUresult result;
    MS_ENTER("cuIpcGetMemHandle");
    if (ms_owns_any() && ms_ipc_share(dptr, pHandle, &result))
        return result;
    return MS_REAL(cuIpcGetMemHandle)(pHandle, ms_bounded(dptr, 1));
}

/* A handle of the driver's, or one that nobody can open here, is the driver's to judge. */
static bool is_ours(const CUipcMemHandle *handle)
{
    return ms_ipc_is_handle(handle) && ms_ready_to_defer();
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
    MS_ENTER("cuIpcOpenMemHandle");
    return is_ours(&handle) ? ms_ipc_open(&handle, Flags, pdptr)
                            : MS_REAL(cuIpcOpenMemHandle)(pdptr, handle, Flags);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
    MS_ENTER("cuIpcOpenMemHandle_v2");
    return is_ours(&handle) ? ms_ipc_open(&handle, Flags, pdptr)
                            : MS_REAL(cuIpcOpenMemHandle_v2)(pdptr, handle, Flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr)
{
    CUresult result;
    MS_ENTER("cuIpcCloseMemHandle");
    if (ms_owns_any() && ms_ipc_close(dptr, &result))
        return result;
    return MS_REAL(cuIpcCloseMemHandle)(dptr);
}
