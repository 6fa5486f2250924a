/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for libnvidia-ml.so.1, which PyTorch's expandable segments ask whether the device is
 * part of a fabric: it is not. Numbers are those of nvml.h.
 */
#include <stddef.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3 };

int nvmlInit_v2(void);
int nvmlInit_v2(void)
{
    return SUCCESS;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **device_out);
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **device_out)
{
    *device_out = (void *)bus_id;
    return SUCCESS;
}

/* None is known. PyTorch 2.11 insists on an answer when memory is out. */
int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, void *processes);
int nvmlDeviceGetComputeRunningProcesses(__attribute__((unused)) void *device, unsigned *count,
                                         __attribute__((unused)) void *processes)
{
    *count = 0;
    return SUCCESS;
}

#define NOT_HERE(name)        \
    int name(void);           \
    int name(void)            \
    {                         \
        return NOT_SUPPORTED; \
    }
NOT_HERE(nvmlDeviceGetNvLinkRemoteDeviceType)
NOT_HERE(nvmlDeviceGetNvLinkRemotePciInfo_v2)
NOT_HERE(nvmlDeviceGetComputeRunningProcesses_v3)
NOT_HERE(nvmlSystemGetCudaDriverVersion_v2)
NOT_HERE(nvmlDeviceGetGpuFabricInfoV)
NOT_HERE(nvmlDeviceGetGpuFabricInfo)
