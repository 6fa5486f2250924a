/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers that the program registers, and memory for them. NCCL 2.28.9 takes one
 * allocation handle for a buffer: the one at its first byte.
 */
#include "tools/simcuda/nccl/internal.h"

#include <stdlib.h>
#include <string.h>

NC_API(ncclMemAlloc);
NC_API(ncclMemFree);
NC_API(ncclCommRegister);
NC_API(ncclCommDeregister);

/* --- what is registered */

/* The piece of memory that holds the whole range. */
static ncclResult_t find_whole(const struct ncclComm *comm, const char *call, CUdeviceptr begin,
                               size_t bytes, struct simcuda_piece *piece_out)
{
    if (!nc_cuda.find_piece(begin, piece_out)) {
        nc_say("%s: nothing is mapped at 0x%llx", call, begin);
        return ncclInvalidArgument;
    }
    if (bytes <= piece_out->bytes - (begin - piece_out->begin) || !nc_settings()->strict)
        return ncclSuccess;
    nc_say(
        "%s rank %d: %s: 0x%llx, %zu bytes goes beyond the one allocation at its begin, which ends "
        "at 0x%llx; NCCL 2.28.9 would give others that one only",
        comm->name, comm->rank, call, begin, bytes, piece_out->begin + piece_out->bytes);
    return ncclInvalidUsage;
}

static ncclResult_t add(struct ncclComm *comm, const char *call, void *buffer, size_t bytes,
                        struct nc_registration **registration_out)
{
    struct simcuda_piece piece;
    const CUdeviceptr begin = (CUdeviceptr)buffer;
    NC_TRY(find_whole(comm, call, begin, bytes, &piece));
    struct nc_registration *made = nc_zalloc(sizeof(*made));
    /* Other ranks have this memory mapped from now on: it stays when the program unmaps it. */
    if (nc_cuda.cuMemRetainAllocationHandle(&made->handle, buffer) != CUDA_SUCCESS)
        made->handle = 0;
    made->comm = comm;
    made->begin = begin;
    made->bytes = bytes;
    made->identity = piece.identity;
    pthread_mutex_lock(&comm->lock);
    made->next = comm->registrations;
    comm->registrations = made;
    pthread_mutex_unlock(&comm->lock);
    *registration_out = made;
    return ncclSuccess;
}

static void free_registration(struct nc_registration *registration)
{
    if (registration->handle != 0)
        nc_cuda.cuMemRelease(registration->handle);
    free(registration);
}

static ncclResult_t take_away(struct ncclComm *comm, const void *handle, const char *call)
{
    pthread_mutex_lock(&comm->lock);
    struct nc_registration **link = &comm->registrations;
    while (*link != NULL && *link != handle)
        link = &(*link)->next;
    struct nc_registration *found = *link;
    if (found != NULL)
        *link = found->next;
    pthread_mutex_unlock(&comm->lock);
    if (found == NULL) {
        nc_say("%s: no such registration: %p", call, handle);
        return ncclInvalidUsage;
    }
    free_registration(found);
    return ncclSuccess;
}

ncclResult_t nc_registration_begin(struct ncclComm *comm, const void *handle, void **begin_out)
{
    ncclResult_t result = ncclInvalidArgument;
    pthread_mutex_lock(&comm->lock);
    for (const struct nc_registration *row = comm->registrations; row != NULL; row = row->next) {
        if (row == handle) {
            *begin_out = (void *)row->begin;
            result = ncclSuccess;
        }
    }
    pthread_mutex_unlock(&comm->lock);
    return result;
}

void nc_registrations_end(struct ncclComm *comm)
{
    while (comm->registrations != NULL) {
        struct nc_registration *next = comm->registrations->next;
        free_registration(comm->registrations);
        comm->registrations = next;
    }
}

/* --- operations on registered buffers */

static bool find_registered_locked(const struct ncclComm *comm, const struct nc_touch *touch,
                                   uint64_t *identity_out)
{
    for (const struct nc_registration *row = comm->registrations; row != NULL; row = row->next) {
        if (touch->begin >= row->begin && touch->begin - row->begin <= row->bytes &&
            touch->bytes <= row->bytes - (touch->begin - row->begin)) {
            *identity_out = row->identity;
            return true;
        }
    }
    return false;
}

/* Under capture NCCL registers by itself what lies in one allocation. */
static bool is_captured_whole(const struct nc_op *op, const struct nc_touch *touch,
                              uint64_t *identity_out)
{
    struct simcuda_piece piece;
    if (!op->captured || !nc_settings()->graph_register ||
        !nc_cuda.find_piece(touch->begin, &piece) ||
        touch->bytes > piece.bytes - (touch->begin - piece.begin))
        return false;
    *identity_out = piece.identity;
    return true;
}

void nc_registration_apply(struct nc_op *op)
{
    struct nc_touch touches[2];
    const int count = nc_op_touches(op, touches);
    int found = 0;
    pthread_mutex_lock(&op->comm->lock);
    for (int i = 0; i < count; i++) {
        uint64_t identity;
        if (find_registered_locked(op->comm, &touches[i], &identity) ||
            is_captured_whole(op, &touches[i], &identity))
            op->pieces[found++] = (struct nc_registered_piece){touches[i].begin, identity};
    }
    pthread_mutex_unlock(&op->comm->lock);
    op->registered = count > 0 && found == count;
    op->pieces_count = op->registered ? found : 0;
}

/* --- entry points */

static ncclResult_t register_buffer(ncclComm_t comm, void *buffer, size_t size, void **handle)
{
    struct nc_registration *made;
    NC_TRY(nc_comm_check(comm, "ncclCommRegister"));
    if (buffer == NULL || size == 0 || handle == NULL)
        return ncclInvalidArgument;
    NC_TRY(add(comm, "ncclCommRegister", buffer, size, &made));
    *handle = made;
    return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle)
{
    NC_ENTER();
    return register_buffer(comm, buff, size, handle);
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    NC_TRY(nc_comm_check(comm, "ncclCommDeregister"));
    if (handle == NULL) /* what NCCL itself gives where it does not register */
        return ncclSuccess;
    return take_away(comm, handle, "ncclCommDeregister");
}

/* --- memory that can be registered */

static CUmemAllocationProp memory_properties(CUdevice device)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
    };
}

static CUresult map_memory(CUdeviceptr address, size_t bytes, CUmemGenericAllocationHandle handle,
                           CUdevice device)
{
    const CUmemAccessDesc access = {.location = memory_properties(device).location,
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult result = nc_cuda.cuMemMap(address, bytes, 0, handle, 0);
    if (result != CUDA_SUCCESS)
        return result;
    result = nc_cuda.cuMemSetAccess(address, bytes, &access, 1);
    if (result != CUDA_SUCCESS)
        nc_cuda.cuMemUnmap(address, bytes);
    return result;
}

static CUresult allocate(size_t size, CUdeviceptr *address_out)
{
    CUdevice device;
    size_t granule;
    CUmemGenericAllocationHandle handle;
    CUresult result = nc_cuda.cuCtxGetDevice(&device);
    const CUmemAllocationProp prop = memory_properties(device);
    if (result == CUDA_SUCCESS)
        result = nc_cuda.cuMemGetAllocationGranularity(&granule, &prop,
                                                       CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    if (result != CUDA_SUCCESS)
        return result;
    const size_t bytes = (size + granule - 1) / granule * granule;
    result = nc_cuda.cuMemCreate(&handle, bytes, &prop, 0);
    if (result != CUDA_SUCCESS)
        return result;
    result = nc_cuda.cuMemAddressReserve(address_out, bytes, granule, 0, 0);
    if (result == CUDA_SUCCESS) {
        result = map_memory(*address_out, bytes, handle, device);
        if (result != CUDA_SUCCESS)
            nc_cuda.cuMemAddressFree(*address_out, bytes);
    }
    nc_cuda.cuMemRelease(handle);
    return result;
}

ncclResult_t ncclMemAlloc(void **ptr, size_t size)
{
    CUdeviceptr address;
    if (ptr == NULL || size == 0)
        return ncclInvalidArgument;
    NC_TRY(nc_driver_enter());
    NC_TRY(nc_driver_done(allocate(size, &address), "ncclMemAlloc"));
    *ptr = (void *)address;
    return ncclSuccess;
}

ncclResult_t ncclMemFree(void *ptr)
{
    CUdeviceptr begin;
    size_t bytes;
    if (ptr == NULL)
        return ncclSuccess;
    NC_TRY(nc_driver_enter());
    NC_TRY(nc_driver_done(nc_cuda.cuMemGetAddressRange(&begin, &bytes, (CUdeviceptr)ptr),
                          "cuMemGetAddressRange"));
    NC_TRY(nc_driver_done(nc_cuda.cuMemUnmap(begin, bytes), "cuMemUnmap"));
    return nc_driver_done(nc_cuda.cuMemAddressFree(begin, bytes), "cuMemAddressFree");
}
