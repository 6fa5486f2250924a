/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/ipc.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/array.h"
#include "runtime/base/clock.h"
#include "runtime/base/handout.h"
#include "runtime/base/heap.h"
#include "runtime/base/lock.h"
#include "runtime/base/log.h"
#include "runtime/calls/alloc.h"
#include "runtime/driver/device_memory.h"
#include "runtime/fill/access.h"
#include "runtime/memory/allocation.h"
#include "runtime/memory/publish.h"
#include "runtime/order/order.h"
#include "runtime/state/caller.h"

/* The content of the program's handle: always equal for the same allocation. */
struct handle {
    unsigned char magic[16];
    struct ms_handout_key key;
    uint64_t address, id;
};
_Static_assert(sizeof(struct handle) == sizeof(CUipcMemHandle), "a handle is what the driver's is");

static const unsigned char magic[16] = {0x4d, 0x65, 0x74, 0x61, 0x53, 0x68, 0x61, 0x72,
                                        0xe7, 0x1c, 0x0d, 0xb2, 0x96, 0x5a, 0x33, 0x01};

/* A question to the other process: the memory from an offset on. */
struct wanted {
    uint64_t address, id, offset;
};

/* The answer, with a descriptor: its handle lies at [begin, end) of the allocation. */
struct part {
    uint64_t bytes, begin, end; /* bytes: of the whole allocation */
    CUuuid device;
};
_Static_assert(sizeof(struct wanted) <= sizeof(struct ms_handout_text) &&
                   sizeof(struct part) <= sizeof(struct ms_handout_text),
               "both are messages");

/* --- sharing */

/* Claims an allocation on the thread that answers other processes. Tries for a limited time,
 * because another thread may hold the claim while it waits for another process. */
static struct ms_allocation *claim_soon(CUdeviceptr address, uint64_t id)
{
    enum { STEP_NS = MS_NS_PER_MS, MOST_STEPS = 10000 };
    struct ms_allocation_facts facts;
    for (int i = 0; i < MOST_STEPS && ms_space_look_up(address, &facts) && facts.id == id; i++) {
        struct ms_allocation *allocation = ms_space_try_claim(address);
        if (allocation != NULL && allocation->id == id)
            return allocation;
        ms_space_release(allocation);
        nanosleep(&(struct timespec){.tv_nsec = STEP_NS}, NULL);
    }
    return NULL;
}

static CUresult take_descriptor(const struct ms_allocation *allocation, size_t offset,
                                int *descriptor_out)
{
    struct ms_driver_scope scope;
    CUmemGenericAllocationHandle handle;
    CUresult result = ms_driver_enter(allocation->context, &scope);
    if (result != CUDA_SUCCESS)
        return result;
    result = ms_driver.mem_retain(&handle, (void *)(uintptr_t)(allocation->address + offset));
    if (result == CUDA_SUCCESS) {
        result = ms_driver.mem_export(descriptor_out, handle,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        ms_driver.mem_release(handle);
    }
    ms_driver_leave(&scope);
    return result;
}

/* Describes the chunk that begins at the offset. */
static bool find_part(const struct ms_allocation *allocation, uint64_t offset,
                      struct part *part_out)
{
    struct ms_range chunk = {offset, allocation->granule_bytes};
    if (offset >= allocation->granule_bytes ||
        !ms_backing_next(ms_allocation_backing(allocation), &chunk) || chunk.begin != offset ||
        (offset > 0 &&
         ms_backing_is_one_chunk(ms_allocation_backing(allocation), offset - 1, offset + 1)))
        return false;
    *part_out = (struct part){.bytes = allocation->bytes, .begin = offset, .end = chunk.end};
    return ms_driver.device_get_uuid(&part_out->device, allocation->device) == CUDA_SUCCESS;
}

static bool answer(const struct ms_handout_text *request, struct ms_handout_text *answer_out,
                   int *descriptor_out)
{
    struct wanted wanted;
    struct part part;
    memcpy(&wanted, request, sizeof(wanted));
    MS_CLAIMED struct ms_allocation *allocation = claim_soon(wanted.address, wanted.id);
    if (allocation == NULL || !find_part(allocation, wanted.offset, &part))
        return false;
    const CUresult result = take_descriptor(allocation, wanted.offset, descriptor_out);
    if (result != CUDA_SUCCESS)
        ms_log(MS_WARN,
               "the allocation of %zu bytes at 0x%llx, of which another process has a handle, "
               "cannot be handed out: CUDA error %d",
               allocation->bytes, allocation->address, (int)result);
    memcpy(answer_out, &part, sizeof(part));
    return result == CUDA_SUCCESS;
}

static void say_who_can_open(const struct ms_allocation_facts *facts)
{
    static _Atomic bool is_said;
    if (!atomic_exchange(&is_said, true))
        ms_log(
            MS_WARN,
            "%s: the allocation of %zu bytes at 0x%llx can be opened by processes that run under "
            "MetaShard, too; for others, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, "
            "or leave it to the driver by METASHARD_EXCLUDE=%zu",
            ms_caller, facts->bytes, facts->address, facts->bytes);
}

bool ms_ipc_share(CUdeviceptr address, CUipcMemHandle *handle_out, CUresult *result_out)
{
    struct ms_allocation_facts facts;
    CUdevice current;
    bool is_one;
    if (!ms_space_look_up(address, &facts) || !ms_ipc_can_share(&facts))
        return false;
    *result_out = ms_driver.ctx_get_device(&current);
    if (*result_out == CUDA_SUCCESS && handle_out == NULL)
        *result_out = CUDA_ERROR_INVALID_VALUE;
    if (*result_out == CUDA_SUCCESS)
        *result_out = ms_access_export(facts.address, facts.bytes, &is_one);
    if (*result_out != CUDA_SUCCESS)
        return true;
    const struct ms_handout_key *key = ms_handout_key(answer);
    if (key == NULL) {
        *result_out = CUDA_ERROR_OPERATING_SYSTEM;
        return true;
    }
    struct handle handle = {.key = *key, .address = facts.address, .id = facts.id};
    memcpy(handle.magic, magic, sizeof(magic));
    memcpy(handle_out, &handle, sizeof(handle));
    say_who_can_open(&facts);
    return true;
}

bool ms_ipc_is_handle(const CUipcMemHandle *handle)
{
    return memcmp(handle, magic, sizeof(magic)) == 0;
}

/* --- opening */

/* A handle that is open here; `id` is that of the allocation in this process. */
struct opened {
    struct handle handle;
    CUdeviceptr address;
    uint64_t id;
    size_t users;
};

static struct {
    struct ms_lock lock; /* a turn */
    struct opened *all;
    size_t count, capacity;
} opened = {.lock = MS_LOCK_INIT(opened)};

static void remove_opened(struct opened *one)
{
    *one = opened.all[--opened.count];
}

/* Removes handles whose allocation has ended with its context. */
static void forget_ended(void)
{
    struct ms_allocation_facts facts;
    for (size_t i = 0; i < opened.count;) {
        if (ms_space_look_up(opened.all[i].address, &facts) && facts.id == opened.all[i].id)
            i++;
        else
            remove_opened(&opened.all[i]);
    }
}

static struct opened *find_by_handle(const struct handle *handle)
{
    for (size_t i = 0; i < opened.count; i++) {
        if (memcmp(&opened.all[i].handle, handle, sizeof(*handle)) == 0)
            return &opened.all[i];
    }
    return NULL;
}

/* Devices may have other numbers in the other process. */
static CUresult find_device(const CUuuid *wanted, CUdevice *device_out)
{
    CUuuid uuid;
    for (CUdevice device = 0; device < MS_MAX_DEVICES; device++) {
        if (ms_driver.device_get_uuid(&uuid, device) != CUDA_SUCCESS)
            break;
        *device_out = device;
        if (memcmp(&uuid, wanted, sizeof(uuid)) == 0)
            return CUDA_SUCCESS;
    }
    ms_log(MS_ERROR, "%s: the memory is on a device that this process does not have", ms_caller);
    return CUDA_ERROR_INVALID_HANDLE;
}

/* The memory of an allocation of another process, as its parts arrive. */
struct memory {
    CUdevice device;
    size_t bytes, granule, granule_bytes;
    struct ms_pieces pieces; /* each with a reference to its handle */
    size_t capacity;
};

static bool is_next(const struct part *part, const struct memory *memory, uint64_t offset)
{
    return part->bytes == memory->bytes && part->begin == offset && part->end > offset &&
           part->end <= memory->granule_bytes && part->end % memory->granule == 0;
}

static CUresult add_part(struct memory *memory, const struct part *part, int descriptor)
{
    struct ms_pieces *pieces = &memory->pieces;
    if (!MS_ARRAY_GROW(pieces->all, pieces->count, memory->capacity))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct ms_piece *piece = &pieces->all[pieces->count];
    *piece = (struct ms_piece){.begin = part->begin, .end = part->end};
    const CUresult result = ms_driver.mem_import(&piece->handle, (void *)(intptr_t)descriptor,
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    pieces->count += result == CUDA_SUCCESS;
    return result;
}

static void drop_parts(struct memory *memory)
{
    for (size_t i = 0; i < memory->pieces.count; i++)
        ms_driver.mem_release(memory->pieces.all[i].handle);
    ms_heap_free(memory->pieces.all);
}

static CUresult ask(const struct handle *handle, uint64_t offset, struct part *part_out,
                    int *descriptor_out)
{
    const struct wanted wanted = {handle->address, handle->id, offset};
    struct ms_handout_text request = {0}, text;
    memcpy(&request, &wanted, sizeof(wanted));
    const char *why = ms_handout_ask(&handle->key, &request, &text, descriptor_out);
    if (why != NULL) {
        ms_log(MS_ERROR, "%s: the process that shares the memory does not give it: %s", ms_caller,
               why);
        return CUDA_ERROR_MAP_FAILED;
    }
    memcpy(part_out, &text, sizeof(*part_out));
    return CUDA_SUCCESS;
}

/* Learns from the first part what the whole memory is like. */
static CUresult begin_memory(const struct part *first, struct memory *memory)
{
    size_t total;
    CUresult result = find_device(&first->device, &memory->device);
    if (result == CUDA_SUCCESS)
        result = ms_driver.device_total_mem(&total, memory->device);
    if (result != CUDA_SUCCESS)
        return result;
    if (first->bytes > total) /* no end of parts would follow */
        return CUDA_ERROR_INVALID_HANDLE;
    memory->bytes = first->bytes;
    memory->granule = ms_device_memory_rounded(memory->device, 1);
    memory->granule_bytes = ms_device_memory_rounded(memory->device, first->bytes);
    return CUDA_SUCCESS;
}

/* Gets all parts. A process that names another size with a later part does not share the memory
 * that the first part described. */
static CUresult get_memory(const struct handle *handle, struct memory *memory)
{
    struct part part = {.end = 0};
    CUresult result;
    do {
        const uint64_t offset = part.end;
        int descriptor;
        result = ask(handle, offset, &part, &descriptor);
        if (result != CUDA_SUCCESS)
            return result;
        if (offset == 0)
            result = begin_memory(&part, memory);
        if (result == CUDA_SUCCESS)
            result = is_next(&part, memory, offset) ? add_part(memory, &part, descriptor)
                                                    : CUDA_ERROR_INVALID_HANDLE;
        close(descriptor);
    } while (result == CUDA_SUCCESS && part.end < memory->granule_bytes);
    return result;
}

static CUresult open_new(const struct handle *handle, CUcontext context, struct opened **one_out)
{
    const struct ms_allocation *allocation;
    struct ms_driver_scope scope;
    struct memory memory = {.bytes = 0};
    if (!MS_ARRAY_GROW(opened.all, opened.count, opened.capacity))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = ms_driver_enter(context, &scope);
    if (result != CUDA_SUCCESS)
        return result;
    result = get_memory(handle, &memory);
    if (result == CUDA_SUCCESS)
        result = ms_allocation_create(&(struct ms_promise){.bytes = memory.bytes,
                                                           .context = context,
                                                           .device = memory.device,
                                                           .pieces = &memory.pieces},
                                      &allocation);
    drop_parts(&memory);
    ms_driver_leave(&scope);
    if (result != CUDA_SUCCESS)
        return result;
    ms_publish_event(MS_EVENT_ALLOCATE, allocation, 0, memory.bytes, "memory of another process");
    *one_out = &opened.all[opened.count++];
    **one_out =
        (struct opened){.handle = *handle, .address = allocation->address, .id = allocation->id};
    return CUDA_SUCCESS;
}

/* Lets the current device reach memory on another device, which its context has opened. */
static CUresult give_access(CUdeviceptr address, CUdevice device)
{
    MS_CLAIMED struct ms_allocation *allocation = ms_space_claim(address);
    return allocation == NULL || allocation->device == device
               ? CUDA_SUCCESS
               : ms_backing_apply_access(ms_allocation_memory(allocation), device, true);
}

static CUresult open_locked(const struct handle *handle, CUcontext context, CUdevice device,
                            CUdeviceptr *address_out)
{
    forget_ended();
    struct opened *one = find_by_handle(handle);
    CUresult result = one == NULL ? open_new(handle, context, &one) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        return result;
    result = give_access(one->address, device);
    if (result == CUDA_SUCCESS) {
        one->users++;
        *address_out = one->address;
    }
    return result;
}

static CUresult get_current(CUcontext *context_out, CUdevice *device_out)
{
    const CUresult result = ms_driver.ctx_get_device(device_out);
    return result == CUDA_SUCCESS ? ms_driver.ctx_get_current(context_out) : result;
}

CUresult ms_ipc_open(const CUipcMemHandle *handle, unsigned flags, CUdeviceptr *address_out)
{
    struct handle named;
    CUcontext context;
    CUdevice device;
    if (address_out == NULL || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = get_current(&context, &device);
    if (result != CUDA_SUCCESS)
        return result;
    memcpy(&named, handle, sizeof(named));
    if (ms_handout_is_own(&named.key))
        return CUDA_ERROR_INVALID_CONTEXT;
    result = ms_order_capture_allows();
    if (result != CUDA_SUCCESS)
        return result;
    ms_lock_take(&opened.lock);
    result = open_locked(&named, context, device, address_out);
    ms_lock_drop(&opened.lock);
    return result;
}

/* --- closing */

/* Removes one user of an open handle. True if it was the last user. */
static bool drop_user_locked(uint64_t id, CUresult *result_out)
{
    struct opened *one = opened.all;
    while (one < opened.all + opened.count && one->id != id)
        one++;
    const bool is_open = one < opened.all + opened.count;
    *result_out = is_open ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    const bool is_last = is_open && --one->users == 0;
    if (is_last)
        remove_opened(one);
    return is_last;
}

bool ms_ipc_close(CUdeviceptr address, CUresult *result_out)
{
    struct ms_allocation_facts facts;
    CUdevice device;
    if (!ms_space_look_up(address, &facts))
        return false;
    *result_out = ms_driver.ctx_get_device(&device);
    if (*result_out == CUDA_SUCCESS)
        *result_out = ms_order_capture_allows();
    if (*result_out == CUDA_SUCCESS && (!facts.is_opened || facts.address != address))
        *result_out = CUDA_ERROR_INVALID_VALUE;
    if (*result_out != CUDA_SUCCESS)
        return true;
    ms_lock_take(&opened.lock);
    const bool is_last = drop_user_locked(facts.id, result_out);
    ms_lock_drop(&opened.lock);
    if (is_last)
        *result_out = ms_alloc_end(&facts);
    return true;
}
