/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that processes share by cuIpcGetMemHandle, which the driver does not offer for mapped
 * memory. So the handle of an allocation names this process (base/handout.h) and the allocation. A
 * process that opens the handle, under MetaShard too, asks this process for the descriptors of the
 * driver's handles under the allocation, one by one, and maps them at addresses of its own. There
 * the memory is an allocation, all of it resident. No descriptor is kept, and the memory lives as
 * long as one of the processes has it mapped.
 *
 * "bool ms_x(..., result_out)" is as in alloc.h.
 */
#pragma once

#include <stdbool.h>

#include "runtime/driver/device_memory.h"
#include "runtime/driver/driver.h"
#include "runtime/memory/backing.h"
#include "runtime/memory/space.h"

/* True if cuIpcGetMemHandle gives a handle of the allocation. */
static inline bool ms_ipc_can_share(const struct ms_allocation_facts *facts)
{
    return !facts->is_programs && !facts->is_opened && facts->pool == NULL &&
           ms_device_memory_properties(facts->device).requestedHandleTypes != 0;
}

/* cuIpcGetMemHandle: the whole allocation comes into memory, and stays there. */
bool ms_ipc_share(CUdeviceptr address, CUipcMemHandle *handle_out, CUresult *result_out);

/* True for a handle that ms_ipc_share has made, here or in another process. */
bool ms_ipc_is_handle(const CUipcMemHandle *handle);

/* cuIpcOpenMemHandle of such a handle. A handle that is open already gives the same address. */
CUresult ms_ipc_open(const CUipcMemHandle *handle, unsigned flags, CUdeviceptr *address_out);

/* cuIpcCloseMemHandle. The last close of an address ends the mapping. */
bool ms_ipc_close(CUdeviceptr address, CUresult *result_out);

/* True if the address lies in memory that ms_ipc_open has mapped. */
static inline bool ms_ipc_is_opened(CUdeviceptr address)
{
    struct ms_allocation_facts facts;
    return ms_space_look_up(address, &facts) && facts.is_opened;
}
