/* SPDX-License-Identifier: Apache-2.0 */

#include "runtime/calls/vmm.h"

#include <time.h>

#include "runtime/base/clock.h"
#include "runtime/base/lock.h"
#include "runtime/base/log.h"
#include "runtime/calls/alloc.h"
#include "runtime/calls/handles.h"
#include "runtime/driver/device_memory.h"
#include "runtime/files/host_snapshot.h"
#include "runtime/fill/evict.h"
#include "runtime/fill/materialise.h"
#include "runtime/memory/allocation.h"
#include "runtime/memory/mappings.h"
#include "runtime/memory/publish.h"
#include "runtime/order/examining.h"
#include "runtime/order/order.h"
#include "runtime/shard/shard.h"
#include "runtime/state/caller.h"
#include "runtime/state/why.h"

static struct ms_lock turn = MS_LOCK_INIT(vmm);

/* --- handles */

/* True for whole granules of the program's memory, and of the shim's, which may be larger. */
static bool is_granules(const CUmemAllocationProp *prop, size_t bytes)
{
    size_t granule;
    return ms_driver.mem_get_granularity(&granule, prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) ==
               CUDA_SUCCESS &&
           bytes % granule == 0 && ms_device_memory_rounded(prop->location.id, bytes) == bytes;
}

struct created {
    const CUmemAllocationProp *prop;
    CUmemGenericAllocationHandle *number_out;
};

static bool create(const struct ms_promise *promise, void *argument)
{
    const struct created *created = argument;
    ms_lock_take(&turn);
    const struct ms_handle *handle =
        ms_handle_create(promise->bytes, created->prop, promise->context);
    if (handle != NULL)
        *created->number_out = handle->number;
    ms_lock_drop(&turn);
    if (handle != NULL)
        ms_space_count_promised(promise->device, (int64_t)promise->bytes);
    return handle != NULL;
}

bool ms_vmm_defer(size_t bytes, const CUmemAllocationProp *prop,
                  CUmemGenericAllocationHandle *handle_out, CUresult *result_out)
{
    struct ms_promise promise;
    struct created created = {prop, handle_out};
    return handle_out != NULL && ms_alloc_may_defer(bytes, &promise) &&
           ms_handle_serves(prop, promise.device) && is_granules(prop, bytes) &&
           ms_alloc_promise(&promise, create, &created, result_out);
}

/* Ends a handle that the program can no longer reach, and the promise of its bytes. */
static void end_if_unused(struct ms_handle *handle)
{
    if (handle->users == 0 && handle->mappings == 0 && handle->real == 0)
        ms_space_count_promised(handle->prop.location.id, -(int64_t)handle->bytes);
    ms_handle_end_if_unused(handle);
}

bool ms_vmm_release(CUmemGenericAllocationHandle number, CUresult *result_out)
{
    if (!ms_handle_is_ours(number))
        return false;
    ms_lock_take(&turn);
    struct ms_handle *handle = ms_handle_find(number);
    *result_out = handle != NULL && handle->users > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (*result_out == CUDA_SUCCESS && handle->users == 1 && handle->real != 0)
        *result_out = ms_driver.mem_release(handle->real);
    if (*result_out == CUDA_SUCCESS) {
        handle->users--;
        end_if_unused(handle);
    }
    ms_lock_drop(&turn);
    return true;
}

bool ms_vmm_retain(CUdeviceptr address, CUmemGenericAllocationHandle *handle_out,
                   CUresult *result_out)
{
    struct ms_program_mapping mapping;
    struct ms_allocation_facts facts;
    ms_lock_take(&turn);
    struct ms_handle *handle =
        ms_space_find_mapping(address, &mapping, &facts) ? ms_handle_find(mapping.handle) : NULL;
    const bool is_ours = handle_out != NULL && handle != NULL;
    if (is_ours) {
        *result_out = handle->real != 0 && handle->users == 0
                          ? ms_driver.mem_retain(&handle->real, (void *)(uintptr_t)address)
                          : CUDA_SUCCESS;
        *handle_out = handle->number;
        handle->users += *result_out == CUDA_SUCCESS;
    }
    ms_lock_drop(&turn);
    return is_ours;
}

bool ms_vmm_handle_properties(CUmemGenericAllocationHandle number, CUmemAllocationProp *prop_out,
                              CUresult *result_out)
{
    if (!ms_handle_is_ours(number))
        return false;
    ms_lock_take(&turn);
    const struct ms_handle *handle = ms_handle_find(number);
    const bool is_known = handle != NULL && handle->users > 0 && prop_out != NULL;
    if (is_known)
        *prop_out = handle->prop;
    *result_out = is_known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    ms_lock_drop(&turn);
    return true;
}

bool ms_vmm_mapping_properties(const struct ms_program_mapping *mapping,
                               CUmemAllocationProp *prop_out)
{
    ms_lock_take(&turn);
    const struct ms_handle *handle = ms_handle_find(mapping->handle);
    if (handle != NULL)
        *prop_out = handle->prop;
    ms_lock_drop(&turn);
    return handle != NULL;
}

/* False for a handle of the shim's that was not created for such an export. */
static bool can_export(CUmemGenericAllocationHandle number, CUmemAllocationHandleType type)
{
    CUmemAllocationProp prop;
    CUresult result;
    return !ms_vmm_handle_properties(number, &prop, &result) || result != CUDA_SUCCESS ||
           (prop.requestedHandleTypes & type) != 0;
}

/* --- real handles */

/* Attempts of a program's call, and the reasons for which the next one waits. The wait holds
 * neither the turn nor a claim, because other threads must be able to go on. */
struct attempt {
    CUcontext wanted; /* whose work must end before bytes move; NULL: none */
    CUcontext waited; /* whose work has ended */
    bool joins;       /* chunks were to be joined by way of a host copy */
    bool is_last;     /* last try: the mapping's memory may be given back */
    int attempts;
};

/* Waits for the context's work. A wait during a capture would end the capture, but the driver
 * allows the program's call then. So the call waits for captures to end, for a while: the capturing
 * thread may wait for this thread, or be this thread. */
static CUresult wait_for_context(CUcontext context)
{
    enum { STEP_NS = MS_NS_PER_MS, MOST_SECONDS = 2 };
    const uint64_t end = ms_clock_ns(CLOCK_MONOTONIC) + (uint64_t)MOST_SECONDS * MS_NS_PER_S;
    CUresult result;
    while ((result = ms_order_context_wait(context)) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
           ms_clock_ns(CLOCK_MONOTONIC) < end)
        nanosleep(&(struct timespec){.tv_nsec = STEP_NS}, NULL);
    if (result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        ms_log(MS_ERROR,
               "%s failed: memory of a handle that the program keeps is in several "
               "pieces, which are not joined while a stream captures; end the capture first",
               ms_caller);
    return result;
}

/* True if the call is to be tried again. */
static bool again(CUresult *result, struct attempt *attempt)
{
    if (attempt->wanted != NULL) {
        *result = wait_for_context(attempt->wanted);
        attempt->waited = attempt->wanted;
        attempt->wanted = NULL;
        return *result == CUDA_SUCCESS;
    }
    if (*result == CUDA_ERROR_OUT_OF_MEMORY && attempt->joins && !attempt->is_last) {
        attempt->is_last = !ms_evict_try_again(*result, &attempt->attempts);
        return true;
    }
    return ms_evict_try_bytes_again(*result, &attempt->attempts);
}

/* Joins the handle's pieces under one new handle. The pieces stay until the handle is real
 * (make_real). */
static CUresult join_pieces(const struct ms_handle *handle, CUmemGenericAllocationHandle *real)
{
    struct ms_driver_scope scope;
    CUresult result = ms_driver_enter(handle->context, &scope);
    if (result != CUDA_SUCCESS)
        return result;
    struct ms_host_snapshot *copy = ms_host_snapshot_create(handle->bytes, MS_SNAPSHOT_ANY);
    result = ms_mappings_unite(handle->prop.location.id, handle->bytes, &handle->pieces,
                               copy != NULL ? ms_host_snapshot_data(copy) : NULL, real);
    if (copy != NULL)
        ms_host_snapshot_drop(copy);
    ms_driver_leave(&scope);
    return result;
}

static CUresult create_memory(const struct ms_handle *handle, CUmemGenericAllocationHandle *real)
{
    return handle->pieces.count > 0 ? join_pieces(handle, real)
                                    : ms_driver.mem_create(real, handle->bytes, &handle->prop, 0);
}

/* Makes room for the bytes of a mapping that are to be joined into one chunk, once the context's
 * work has ended. *copy_out stays NULL if they lie in one. */
static CUresult prepare_join(const struct ms_allocation *allocation,
                             const struct ms_program_mapping *mapping, struct attempt *attempt,
                             struct ms_host_snapshot **copy_out)
{
    if (ms_backing_is_one_chunk(ms_allocation_backing(allocation), mapping->begin, mapping->end))
        return CUDA_SUCCESS;
    if (attempt->waited != allocation->context) {
        attempt->wanted = allocation->context;
        return CUDA_ERROR_NOT_READY;
    }
    *copy_out = ms_host_snapshot_create(mapping->end - mapping->begin, MS_SNAPSHOT_ANY);
    attempt->joins = *copy_out != NULL;
    return attempt->joins ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Brings the mapping's bytes into memory, all under one handle. */
static CUresult gather(struct ms_allocation *allocation, const struct ms_program_mapping *mapping,
                       struct attempt *attempt, CUmemGenericAllocationHandle *real)
{
    struct ms_driver_scope scope;
    struct ms_host_snapshot *copy = NULL;
    CUresult result = ms_materialise(allocation, mapping->begin, mapping->end, MS_NEED_HANDLE);
    if (result == CUDA_SUCCESS)
        result = ms_driver_enter(allocation->context, &scope);
    if (result != CUDA_SUCCESS)
        return result;
    result = prepare_join(allocation, mapping, attempt, &copy);
    if (result == CUDA_SUCCESS)
        result = ms_mappings_pin(allocation, mapping, copy, attempt->is_last, real);
    if (copy != NULL)
        ms_host_snapshot_drop(copy);
    ms_driver_leave(&scope);
    return result;
}

/* Gives a mapping that the program cannot use yet its real handle. */
static CUresult map_unused(struct ms_allocation *allocation,
                           const struct ms_program_mapping *mapping, const struct ms_handle *handle,
                           CUmemGenericAllocationHandle *real)
{
    struct ms_program_mapping mapped = *mapping;
    CUresult result = create_memory(handle, real);
    if (result != CUDA_SUCCESS)
        return result;
    mapped.is_real = true;
    result = ms_driver.mem_map(allocation->address + mapping->begin, handle->bytes, 0, *real, 0);
    if (result == CUDA_SUCCESS)
        ms_mappings_add(allocation, &mapped);
    else
        ms_driver.mem_release(*real);
    return result;
}

static CUresult make_mapping_real(const struct ms_handle *handle, struct attempt *attempt,
                                  CUmemGenericAllocationHandle *real)
{
    struct ms_program_mapping mapping;
    struct ms_allocation_facts facts;
    if (!ms_space_find_mapping(handle->address, &mapping, &facts))
        return CUDA_ERROR_INVALID_VALUE;
    MS_CLAIMED struct ms_allocation *allocation = ms_space_claim(handle->address);
    const CUresult result = mapping.is_accessible ? gather(allocation, &mapping, attempt, real)
                                                  : map_unused(allocation, &mapping, handle, real);
    if (result == CUDA_SUCCESS)
        ms_publish_event(MS_EVENT_PIN, allocation, mapping.begin, handle->bytes,
                         "a handle that the driver must know");
    return result;
}

static CUresult make_real(struct ms_handle *handle, struct attempt *attempt)
{
    CUmemGenericAllocationHandle real = 0;
    if (handle->real != 0)
        return CUDA_SUCCESS;
    CUresult result = handle->address == 0 ? create_memory(handle, &real)
                                           : make_mapping_real(handle, attempt, &real);
    if (result != CUDA_SUCCESS)
        return result;
    /* A mapped handle counts as promised until it is unmapped (unmap_one). */
    if (handle->address == 0)
        ms_space_count_promised(handle->prop.location.id, -(int64_t)handle->bytes);
    ms_backing_end_pieces(&handle->pieces, handle->prop.location.id);
    handle->real = real;
    handle->address = 0;
    /* The program's last reference is gone: only the mapping holds the memory. */
    if (handle->users == 0)
        ms_driver.mem_release(real);
    return CUDA_SUCCESS;
}

/* True for a number of the shim's that the program has given back, or was never given. The driver
 * must not see such a number: a call with an unknown handle may end the process. */
static bool is_gone(CUmemGenericAllocationHandle number, const struct ms_handle *handle)
{
    return handle != NULL ? handle->users == 0 : ms_handle_is_ours(number);
}

/* For a number that is the shim's. */
static CUresult make_number_real(CUmemGenericAllocationHandle *number, struct attempt *attempt)
{
    ms_lock_take(&turn);
    struct ms_handle *handle = ms_handle_find(*number);
    const CUresult result = handle == NULL || handle->users == 0 ? CUDA_ERROR_INVALID_VALUE
                                                                 : make_real(handle, attempt);
    if (result == CUDA_SUCCESS)
        *number = handle->real;
    ms_lock_drop(&turn);
    return result;
}

CUresult ms_vmm_make_handle_real(CUmemGenericAllocationHandle *number,
                                 const CUmemAllocationHandleType *exported)
{
    struct attempt attempt = {0};
    CUresult result;
    if (!ms_handle_is_ours(*number))
        return CUDA_SUCCESS;
    if (exported != NULL && !can_export(*number, *exported))
        return CUDA_ERROR_INVALID_VALUE;
    do
        result = make_number_real(number, &attempt);
    while (again(&result, &attempt));
    return result;
}

/* --- ranges of mappings */

/* Makes the handles of all mappings that meet the range real. */
static CUresult make_range_real(CUdeviceptr at, CUdeviceptr end, struct attempt *attempt)
{
    struct ms_program_mapping mapping;
    struct ms_allocation_facts facts;
    CUresult result = CUDA_SUCCESS;
    while (at < end && result == CUDA_SUCCESS && ms_space_find_mapping(at, &mapping, &facts)) {
        struct ms_handle *handle = mapping.is_real ? NULL : ms_handle_find(mapping.handle);
        result = handle != NULL ? make_real(handle, attempt) : CUDA_SUCCESS;
        at = facts.address + mapping.end;
    }
    return result;
}

CUresult ms_vmm_make_real(CUdeviceptr address, size_t bytes)
{
    struct attempt attempt = {0};
    CUresult result;
    do {
        ms_lock_take(&turn);
        result = make_range_real(address, address + bytes, &attempt);
        ms_lock_drop(&turn);
    } while (again(&result, &attempt));
    return result;
}

/* True if the range consists of whole mappings, without a gap. */
static bool is_whole_mappings(CUdeviceptr address, size_t bytes)
{
    struct ms_program_mapping mapping;
    struct ms_allocation_facts facts;
    const CUdeviceptr end = address + bytes;
    while (address < end) {
        if (!ms_space_find_mapping(address, &mapping, &facts) ||
            facts.address + mapping.begin != address)
            return false;
        address = facts.address + mapping.end;
    }
    return address == end && bytes > 0;
}

static bool has_mapping(const struct ms_allocation *allocation, size_t begin, size_t end)
{
    const struct ms_program_mapping *mapping =
        ms_backing_mapping(ms_allocation_backing(allocation), begin);
    return mapping != NULL && mapping->begin < end;
}

static bool meets_mapping(const struct ms_reservation *reservation, CUdeviceptr at, size_t bytes)
{
    MS_CLAIMED struct ms_allocation *allocation = ms_space_claim(reservation->address);
    const size_t begin = at - reservation->address;
    return allocation != NULL && has_mapping(allocation, begin, begin + bytes);
}

/* --- addresses */

void ms_vmm_reserved(CUdeviceptr address, size_t bytes)
{
    ms_lock_take(&turn);
    ms_handle_add_reservation(address, bytes);
    ms_lock_drop(&turn);
}

bool ms_vmm_free_addresses(CUdeviceptr address, size_t bytes, CUresult *result_out)
{
    ms_lock_take(&turn);
    const struct ms_reservation *reservation = ms_handle_find_reservation(address, bytes);
    if (reservation != NULL && meets_mapping(reservation, address, bytes))
        *result_out = CUDA_ERROR_INVALID_VALUE;
    else
        *result_out = ms_driver.mem_address_free(address, bytes);
    if (*result_out == CUDA_SUCCESS && reservation != NULL)
        ms_handle_remove_reservation(address);
    ms_lock_drop(&turn);
    return true;
}

/* --- mapping */

/* Claims the allocation of the reservation, or makes one for a handle of the shim's. NULL: neither
 * is possible. */
static struct ms_allocation *claim_or_make(const struct ms_reservation *reservation,
                                           const struct ms_handle *handle)
{
    struct ms_allocation *allocation = ms_space_claim(reservation->address);
    if (allocation != NULL || handle == NULL || reservation->has_others)
        return allocation;
    const struct ms_promise promise = {.bytes = reservation->bytes,
                                       .context = handle->context,
                                       .device = handle->prop.location.id,
                                       .address = reservation->address};
    const struct ms_allocation *made;
    return ms_allocation_create(&promise, &made) == CUDA_SUCCESS ? ms_space_claim(made->address)
                                                                 : NULL;
}

/* Ends the claim on the allocation; if nothing is mapped in it any more, ends the allocation. */
static void release_or_free(struct ms_allocation *allocation)
{
    if (has_mapping(allocation, 0, allocation->bytes)) {
        ms_space_release(allocation);
        return;
    }
    ms_alloc_forget(allocation);
    ms_allocation_destroy(allocation);
}

/* Returns false if the handle must be made real. */
static bool defer_mapping(const struct ms_reservation *reservation, CUdeviceptr address,
                          struct ms_handle *handle)
{
    struct ms_allocation *allocation = claim_or_make(reservation, handle);
    if (allocation == NULL)
        return false;
    const size_t begin = address - allocation->address;
    const struct ms_program_mapping mapping = {.begin = begin,
                                               .end = begin + handle->bytes,
                                               .handle = handle->number};
    const bool is_deferred = allocation->device == handle->prop.location.id &&
                             allocation->context == handle->context &&
                             ms_mappings_add(allocation, &mapping);
    if (is_deferred) {
        handle->address = address;
        handle->mappings++;
    }
    release_or_free(allocation);
    return is_deferred;
}

/* Records that the driver has mapped memory in a reservation. */
static void add_real_mapping(struct ms_reservation *reservation, CUdeviceptr address, size_t bytes,
                             CUmemGenericAllocationHandle number)
{
    struct ms_handle *handle = ms_handle_find(number);
    MS_CLAIMED struct ms_allocation *allocation = claim_or_make(reservation, handle);
    if (allocation == NULL) {
        reservation->has_others = true;
        return;
    }
    const size_t begin = address - allocation->address;
    const struct ms_program_mapping mapping = {
        .begin = begin, .end = begin + bytes, .handle = number, .is_real = true};
    ms_mappings_add(allocation, &mapping);
    if (handle != NULL)
        handle->mappings++;
    ms_space_count_promised(allocation->device, (int64_t)bytes);
}

static CUresult map_locked(CUdeviceptr address, size_t bytes, size_t offset,
                           CUmemGenericAllocationHandle number, unsigned long long flags,
                           struct attempt *attempt)
{
    struct ms_reservation *reservation = ms_handle_find_reservation(address, bytes);
    struct ms_handle *handle = ms_handle_find(number);
    CUmemGenericAllocationHandle real = number;
    CUresult result = CUDA_SUCCESS;
    if (is_gone(number, handle))
        return CUDA_ERROR_INVALID_VALUE;
    const bool is_whole = handle == NULL || (offset == 0 && bytes == handle->bytes);
    /* The driver looks at the size first. */
    if (reservation != NULL && meets_mapping(reservation, address, bytes))
        return is_whole || flags != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
    if (handle != NULL) {
        if (reservation != NULL && handle->real == 0 && handle->address == 0 && is_whole &&
            flags == 0 && defer_mapping(reservation, address, handle))
            return CUDA_SUCCESS;
        result = make_real(handle, attempt);
        real = handle->real;
    }
    if (result == CUDA_SUCCESS)
        result = ms_driver.mem_map(address, bytes, offset, real, flags);
    if (result == CUDA_SUCCESS && reservation != NULL)
        add_real_mapping(reservation, address, bytes, number);
    return result;
}

bool ms_vmm_map(CUdeviceptr address, size_t bytes, size_t offset,
                CUmemGenericAllocationHandle handle, unsigned long long flags, CUresult *result_out)
{
    struct attempt attempt = {0};
    do {
        ms_lock_take(&turn);
        *result_out = map_locked(address, bytes, offset, handle, flags, &attempt);
        ms_lock_drop(&turn);
    } while (again(result_out, &attempt));
    return true;
}

/* --- access */

static CUresult set_mapping_access(CUdeviceptr address, const struct ms_program_mapping *mapping,
                                   const CUmemAccessDesc *desc)
{
    struct ms_handle *handle = mapping->is_real ? NULL : ms_handle_find(mapping->handle);
    const size_t bytes = mapping->end - mapping->begin;
    CUresult result = CUDA_SUCCESS;
    MS_CLAIMED struct ms_allocation *allocation = ms_space_claim(address);
    if (mapping->is_real)
        result = ms_driver.mem_set_access(address, bytes, desc, 1);
    if (result == CUDA_SUCCESS && !mapping->is_accessible) {
        result = ms_mappings_set_access(allocation, mapping, true,
                                        handle != NULL ? &handle->pieces : NULL);
        if (result == CUDA_SUCCESS)
            ms_publish_event(MS_EVENT_ALLOCATE, allocation, mapping->begin, bytes, NULL);
    }
    return result;
}

/* Records the access to real mappings that the driver has changed. */
static void follow_access(CUdeviceptr address, CUdeviceptr end, bool is_accessible)
{
    struct ms_program_mapping mapping;
    struct ms_allocation_facts facts;
    while (address < end && ms_space_find_mapping(address, &mapping, &facts)) {
        if (mapping.is_accessible != is_accessible) {
            MS_CLAIMED struct ms_allocation *allocation = ms_space_claim(address);
            ms_mappings_set_access(allocation, &mapping, is_accessible, NULL);
        }
        address = facts.address + mapping.end;
    }
}

static bool is_of_device(const CUmemAccessDesc *desc, CUdevice device)
{
    return desc->location.type == CU_MEM_LOCATION_TYPE_DEVICE && desc->location.id == device;
}

static bool is_for_device_alone(const CUmemAccessDesc *desc, size_t count, CUdevice device)
{
    return count == 1 && is_of_device(desc, device) &&
           desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

static CUresult set_other_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *desc,
                                 size_t count, CUdevice device, struct attempt *attempt)
{
    CUresult result = make_range_real(address, address + bytes, attempt);
    if (result == CUDA_SUCCESS)
        result = ms_driver.mem_set_access(address, bytes, desc, count);
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        if (is_of_device(&desc[i], device))
            follow_access(address, address + bytes, desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE);
    }
    return result;
}

/* Makes a mapping accessible. Queued work that was not examined may come to its addresses from now
 * on, so the mapping becomes real unless it may be deferred. */
static CUresult grant(CUdeviceptr address, struct ms_program_mapping *mapping, CUdeviceptr end,
                      bool may_defer, const CUmemAccessDesc *desc, struct attempt *attempt)
{
    CUresult result = CUDA_SUCCESS;
    if (!may_defer && !mapping->is_accessible && !mapping->is_real) {
        ms_why_fall_back(MS_REASON_UNEXAMINED, end - address);
        result = make_range_real(address, end, attempt);
        mapping->is_real = true;
    }
    return result == CUDA_SUCCESS ? set_mapping_access(address, mapping, desc) : result;
}

static CUresult set_access_locked(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *desc,
                                  size_t count, const struct ms_allocation_facts *first,
                                  struct attempt *attempt)
{
    struct ms_program_mapping mapping;
    struct ms_allocation_facts facts;
    CUresult result = CUDA_SUCCESS;
    if (desc == NULL || count == 0 || !is_whole_mappings(address, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_for_device_alone(desc, count, first->device))
        return set_other_access(address, bytes, desc, count, first->device, attempt);
    const CUdeviceptr end = address + bytes;
    const bool may_defer = ms_examining_is_complete(first->context, first->device);
    while (address < end && result == CUDA_SUCCESS &&
           ms_space_find_mapping(address, &mapping, &facts)) {
        const CUdeviceptr next = facts.address + mapping.end;
        result = grant(address, &mapping, next, may_defer, desc, attempt);
        address = next;
    }
    return result;
}

bool ms_vmm_set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *desc, size_t count,
                       CUresult *result_out)
{
    struct ms_program_mapping mapping;
    struct ms_allocation_facts facts;
    struct attempt attempt = {0};
    bool is_ours;
    do {
        ms_lock_take(&turn);
        is_ours = ms_space_find_mapping(address, &mapping, &facts);
        ms_examining_begin();
        if (is_ours)
            *result_out = set_access_locked(address, bytes, desc, count, &facts, &attempt);
        ms_examining_end();
        ms_lock_drop(&turn);
    } while (is_ours && again(result_out, &attempt));
    return is_ours;
}

static bool is_device(int id)
{
    int value;
    return ms_driver.device_get_attribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, id) ==
           CUDA_SUCCESS;
}

bool ms_vmm_get_access(CUdeviceptr address, const CUmemLocation *location,
                       unsigned long long *flags_out, CUresult *result_out)
{
    struct ms_program_mapping mapping;
    struct ms_allocation_facts facts;
    if (!ms_space_find_mapping(address, &mapping, &facts) || mapping.is_real || flags_out == NULL ||
        location == NULL || location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
        !is_device(location->id))
        return false;
    *flags_out = mapping.is_accessible && location->id == facts.device
                     ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                     : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    *result_out = CUDA_SUCCESS;
    return true;
}

/* --- unmapping */

/* The handle, if the program keeps the content of the mapping by this handle alone; else NULL. */
static struct ms_handle *find_keeper(struct ms_allocation *allocation,
                                     const struct ms_program_mapping *mapping)
{
    struct ms_handle *handle = mapping->is_real ? NULL : ms_handle_find(mapping->handle);
    return handle != NULL && handle->users > 0 && ms_mappings_is_alive(allocation, mapping) ? handle
                                                                                            : NULL;
}

/* Brings the content that the program keeps by its handle into memory. *handle_out: the handle to
 * make real, or NULL. Content in several pieces stays so: no bytes move, so nothing is waited
 * for. */
static CUresult fill_kept(CUdeviceptr address, const struct ms_program_mapping *mapping,
                          struct ms_handle **handle_out)
{
    MS_CLAIMED struct ms_allocation *allocation = ms_space_claim(address);
    struct ms_handle *handle = find_keeper(allocation, mapping);
    const CUresult result =
        handle != NULL ? ms_materialise(allocation, mapping->begin, mapping->end, MS_NEED_HANDLE)
                       : CUDA_SUCCESS;
    const bool is_one =
        ms_backing_is_one_chunk(ms_allocation_backing(allocation), mapping->begin, mapping->end);
    *handle_out = result == CUDA_SUCCESS && is_one ? handle : NULL;
    return result;
}

/* Keeps the content of a mapping that is about to be unmapped, if the program keeps its handle. */
static CUresult keep_content(CUdeviceptr address, const struct ms_program_mapping *mapping,
                             struct attempt *attempt)
{
    struct ms_handle *handle;
    const CUresult result = fill_kept(address, mapping, &handle);
    return handle != NULL ? make_real(handle, attempt) : result;
}

/* Moves the address on to the first mapping at or behind it, in the same allocation. False if no
 * mapping begins before the end. */
static bool next_mapping(CUdeviceptr *at, CUdeviceptr end, struct ms_program_mapping *mapping_out)
{
    struct ms_allocation_facts facts;
    if (*at >= end || !ms_space_next_mapping(*at, mapping_out, &facts))
        return false;
    *at = facts.address + mapping_out->begin;
    return *at < end;
}

static CUresult keep_contents(CUdeviceptr at, CUdeviceptr end, struct attempt *attempt)
{
    struct ms_program_mapping mapping;
    CUresult result = CUDA_SUCCESS;
    while (result == CUDA_SUCCESS && next_mapping(&at, end, &mapping)) {
        result = keep_content(at, &mapping, attempt);
        at += mapping.end - mapping.begin;
    }
    return result;
}

/* Unmaps one mapping, and ends the claim. */
static CUresult unmap_one(struct ms_allocation *allocation,
                          const struct ms_program_mapping *mapping)
{
    const size_t bytes = mapping->end - mapping->begin;
    struct ms_handle *handle = ms_handle_find(mapping->handle);
    struct ms_handle *keeper = find_keeper(allocation, mapping);
    const CUresult result =
        ms_mappings_remove(allocation, mapping, keeper != NULL ? &keeper->pieces : NULL);
    if (result == CUDA_SUCCESS) {
        ms_publish_event(MS_EVENT_FREE, allocation, mapping->begin, bytes, NULL);
        ms_shard_forget(allocation, mapping->begin, mapping->end);
        if (mapping->is_real)
            ms_space_count_promised(allocation->device, -(int64_t)bytes);
        if (handle != NULL) {
            handle->address = 0;
            handle->mappings--;
            end_if_unused(handle);
        }
    }
    release_or_free(allocation);
    return result;
}

/* True if the range cuts no mapping, and so may be unmapped. It may have holes within one
 * reservation. */
static bool cuts_nothing(CUdeviceptr address, size_t bytes)
{
    struct ms_program_mapping mapping;
    struct ms_allocation_facts facts;
    if (bytes == 0 || !ms_space_look_up(address, &facts))
        return false;
    if (bytes > facts.bytes - (address - facts.address))
        return is_whole_mappings(address, bytes);
    const CUdeviceptr end = address + bytes;
    return (!ms_space_find_mapping(address, &mapping, &facts) ||
            facts.address + mapping.begin == address) &&
           (!ms_space_find_mapping(end - 1, &mapping, &facts) ||
            facts.address + mapping.end == end);
}

static CUresult unmap_locked(CUdeviceptr address, size_t bytes, struct attempt *attempt)
{
    struct ms_program_mapping mapping;
    const CUdeviceptr end = address + bytes;
    if (!cuts_nothing(address, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = keep_contents(address, end, attempt);
    while (result == CUDA_SUCCESS && next_mapping(&address, end, &mapping)) {
        result = unmap_one(ms_space_claim(address), &mapping);
        address += mapping.end - mapping.begin;
    }
    return result;
}

bool ms_vmm_unmap(CUdeviceptr address, size_t bytes, CUresult *result_out)
{
    struct ms_allocation_facts facts;
    struct attempt attempt = {0};
    bool is_ours;
    do {
        ms_lock_take(&turn);
        is_ours = ms_space_first_behind(address, &facts) && facts.address < address + bytes;
        if (is_ours)
            *result_out = unmap_locked(address, bytes, &attempt);
        ms_lock_drop(&turn);
    } while (is_ours && again(result_out, &attempt));
    return is_ours;
}
