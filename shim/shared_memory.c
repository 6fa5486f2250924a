/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that processes share by handles of cuIpcGetMemHandle. */
#include "runtime/base/log.h"
#include "runtime/calls/ipc.h"
#include "runtime/calls/pointer.h"
#include "runtime/driver/flags.h"
#include "shim/init.h"
#include "shim/quick.h"

MS_ANSWERED(cuIpcGetMemHandle, ms_owns_any() && ms_ipc_share(dptr, pHandle, &result),
            (CUipcMemHandle * pHandle, CUdeviceptr dptr), (pHandle, ms_bounded(dptr, 1)))

/* False for the driver's handles, and while the shim cannot defer: the driver judges these. */
static bool is_ours(const CUipcMemHandle *handle)
{
    return ms_ipc_is_handle(handle) && ms_ready_to_defer();
}

#define OPEN(symbol)                                                               \
    CUresult symbol(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags) \
    {                                                                              \
        MS_ENTER(#symbol);                                                         \
        return is_ours(&handle) ? ms_ipc_open(&handle, Flags, pdptr)               \
                                : MS_REAL(symbol)(pdptr, handle, Flags);           \
    }
OPEN(cuIpcOpenMemHandle)
OPEN(cuIpcOpenMemHandle_v2)

MS_ANSWERED(cuIpcCloseMemHandle, ms_owns_any() && ms_ipc_close(dptr, &result), (CUdeviceptr dptr),
            (dptr))
