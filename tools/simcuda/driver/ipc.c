/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of another process. A handle names the exporter's memory file by process and descriptor,
 * so it works as long as the exporter lives.
 */
#include "tools/simcuda/driver/state.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAGIC 0x53494d4950430001ull

struct ticket {
    uint64_t magic;
    uint64_t buffer_id;
    uint64_t file_offset; /* of the granules */
    uint64_t backed_bytes;
    uint64_t begin; /* of the memory, in the granules */
    uint64_t bytes;
    int32_t process;
    int32_t file;
    int32_t device;
    int32_t unused;
};
_Static_assert(sizeof(struct ticket) <= sizeof(CUipcMemHandle), "a ticket fits into a handle");

/* One opened memory; opening it again gives the same address. */
struct opened {
    struct opened *next;
    struct ticket ticket;
    CUdeviceptr address;
    unsigned users;
};
static struct opened *all_opened;

void sim_ipc_describe_locked(const struct sim_memory *memory, void *handle_out)
{
    struct ticket ticket = {.magic = MAGIC, .process = (int32_t)getpid()};
    struct sim_physical *physical = sim_memory_physical_locked(memory, &ticket.begin);
    physical->exported = true;
    ticket.buffer_id = memory->buffer_id;
    ticket.file_offset = physical->offset;
    ticket.backed_bytes = physical->bytes;
    ticket.bytes = memory->region.bytes;
    ticket.file = physical->file;
    ticket.device = physical->device;
    memset(handle_out, 0, sizeof(CUipcMemHandle));
    memcpy(handle_out, &ticket, sizeof(ticket));
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr)
{
    SIM_ENTER(cuIpcGetMemHandle);
    CUdevice device;
    const CUresult result = sim_current_device(&device);
    if (result != CUDA_SUCCESS || pHandle == NULL)
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    const struct sim_memory *memory = sim_memory_find_locked(dptr);
    const bool is_ours = memory != NULL && memory->kind == SIM_DEVICE && !memory->internal;
    if (is_ours)
        sim_ipc_describe_locked(memory, pHandle);
    pthread_mutex_unlock(&sim_lock);
    return is_ours ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult map_locked(const struct ticket *ticket, enum sim_kind kind,
                           struct CUctx_st *context, struct sim_memory **out)
{
    char path[64];
    CUdeviceptr address;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", ticket->process, ticket->file);
    const int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return CUDA_ERROR_MAP_FAILED;
    struct sim_physical *physical = sim_zalloc(sizeof(*physical));
    physical->device = ticket->device;
    physical->bytes = ticket->backed_bytes;
    physical->offset = ticket->file_offset;
    physical->file = file;
    physical->foreign = true;
    CUresult result = sim_space_take_locked(physical->bytes, SIM_GRANULE, &address);
    if (result == CUDA_SUCCESS && !sim_space_map_locked(address, physical, physical->bytes, true)) {
        sim_space_give_locked(address, physical->bytes);
        result = CUDA_ERROR_MAP_FAILED;
    }
    if (result != CUDA_SUCCESS) {
        sim_physical_drop_if_unused_locked(physical);
        return result;
    }
    struct sim_memory *memory =
        sim_memory_add_locked(kind, address + ticket->begin, ticket->bytes, context);
    memory->device = ticket->device;
    memory->physical = physical;
    memory->backed_bytes = physical->bytes;
    *out = memory;
    return CUDA_SUCCESS;
}

CUresult sim_ipc_map_locked(const void *handle, enum sim_kind kind, struct CUctx_st *context,
                            struct sim_memory **out)
{
    struct ticket ticket;
    memcpy(&ticket, handle, sizeof(ticket));
    return ticket.magic != MAGIC || ticket.device < 0 || ticket.device >= sim_config.devices
               ? CUDA_ERROR_INVALID_VALUE
               : map_locked(&ticket, kind, context, out);
}

static CUresult open_memory(CUdeviceptr *address_out, CUipcMemHandle handle, unsigned flags)
{
    struct CUctx_st *context;
    struct ticket ticket;
    memcpy(&ticket, &handle, sizeof(ticket));
    if (address_out == NULL || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_context_get(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (ticket.magic != MAGIC || ticket.device < 0 || ticket.device >= sim_config.devices)
        return CUDA_ERROR_INVALID_HANDLE;
    if (ticket.process == (int32_t)getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    result = sim_capture_refuse_unsafe();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim_lock);
    struct opened *opened = all_opened;
    while (opened != NULL && memcmp(&opened->ticket, &ticket, sizeof(ticket)) != 0)
        opened = opened->next;
    if (opened == NULL) {
        struct sim_memory *memory;
        result = map_locked(&ticket, SIM_IPC, context, &memory);
        if (result == CUDA_SUCCESS) {
            opened = sim_zalloc(sizeof(*opened));
            opened->ticket = ticket;
            opened->address = memory->region.begin;
            opened->next = all_opened;
            all_opened = opened;
        }
    }
    if (opened != NULL) {
        opened->users++;
        *address_out = opened->address;
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
    SIM_ENTER(cuIpcOpenMemHandle_v2);
    return open_memory(pdptr, handle, Flags);
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
    SIM_ENTER(cuIpcOpenMemHandle);
    return open_memory(pdptr, handle, Flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr)
{
    SIM_ENTER(cuIpcCloseMemHandle);
    struct CUctx_st *context;
    CUresult result = sim_context_get(&context);
    if (result == CUDA_SUCCESS)
        result = sim_capture_refuse_unsafe();
    if (result != CUDA_SUCCESS)
        return result;
    sim_context_drain(context);
    pthread_mutex_lock(&sim_lock);
    struct opened **link = &all_opened;
    while (*link != NULL && (*link)->address != dptr)
        link = &(*link)->next;
    struct opened *opened = *link;
    if (opened == NULL) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else if (--opened->users == 0) {
        *link = opened->next;
        free(opened);
        struct sim_memory *memory = sim_memory_find_locked(dptr);
        if (memory != NULL && memory->kind == SIM_IPC)
            sim_memory_destroy_locked(memory);
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}
