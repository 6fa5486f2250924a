/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/control/suspension.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/collective/collective.h"
#include "runtime/driver/driver.h"
#include "runtime/fill/suspend.h"
#include "runtime/memory/allocation.h"
#include "runtime/memory/backing.h"
#include "runtime/memory/space.h"

static bool is_folder(const char *folder, struct ms_fault *fault)
{
    struct stat found;
    return (folder[0] == '/' && stat(folder, &found) == 0 && S_ISDIR(found.st_mode) &&
            access(folder, W_OK) == 0) ||
           ms_fault_set(fault, "%s: expected the absolute path of a folder that can be written",
                        folder);
}

/* Device memory that is in use, but not by the shim. */
static uint64_t others_bytes_of(CUdevice device, CUcontext context)
{
    struct ms_driver_scope scope;
    size_t unused, total;
    if (ms_driver_enter(context, &scope) != CUDA_SUCCESS)
        return 0;
    const bool is_known = ms_driver.mem_get_info(&unused, &total) == CUDA_SUCCESS;
    ms_driver_leave(&scope);
    const uint64_t own = ms_space_sums(device).held;
    return is_known && total - unused > own ? total - unused - own : 0;
}

/* Includes other processes: no driver says which process uses memory. */
static uint64_t others_bytes(void)
{
    CUcontext contexts[MS_MAX_DEVICES] = {NULL};
    struct ms_allocation *allocation = NULL;
    uint64_t bytes = 0;
    while ((allocation = ms_space_walk(allocation)) != NULL)
        contexts[allocation->device] = allocation->context;
    for (CUdevice device = 0; device < MS_MAX_DEVICES; device++)
        bytes += contexts[device] != NULL ? others_bytes_of(device, contexts[device]) : 0;
    return bytes;
}

bool ms_suspension_begin(const char *folder, char *text, size_t bytes, struct ms_fault *fault)
{
    struct ms_suspended told;
    const bool has_folder = folder != NULL && folder[0] != '\0';
    if (has_folder && !is_folder(folder, fault))
        return false;
    if (ms_collective_is_in_group())
        return ms_fault_set(fault, "an NCCL group of the program is open");
    if (!ms_suspend(has_folder ? folder : NULL, &told, fault))
        return false;
    snprintf(text, bytes,
             "{\"freed_bytes\": %" PRIu64 ", \"replayed_bytes\": %" PRIu64
             ", \"made_bytes\": %" PRIu64 ", \"stored_bytes\": %" PRIu64
             ", \"zero_bytes\": %" PRIu64 ", \"stays_exported_bytes\": %" PRIu64
             ", \"stays_mapped_bytes\": %" PRIu64 ", \"stays_bytes\": %" PRIu64
             ", \"others_bytes\": %" PRIu64 "}",
             told.freed, told.replayed, told.made, told.stored, told.zeros, told.stays_exported,
             told.stays_mapped, told.stays_otherwise, others_bytes());
    return true;
}

bool ms_suspension_end(struct ms_fault *fault)
{
    const CUresult result = ms_suspend_take_back();
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return ms_fault_set(fault, "the device has no memory for the suspended data: nothing is "
                                   "lost, and it may be resumed later");
    return result == CUDA_SUCCESS ||
           ms_fault_set(fault, "the suspended data cannot be restored: CUDA error %d", (int)result);
}
