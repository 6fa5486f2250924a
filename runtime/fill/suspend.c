/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/suspend.h"

#include <inttypes.h>
#include <time.h>

#include "runtime/base/array.h"
#include "runtime/base/clock.h"
#include "runtime/base/heap.h"
#include "runtime/base/lock.h"
#include "runtime/base/log.h"
#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/evict.h"
#include "runtime/fill/hold_up.h"
#include "runtime/fill/prefetch.h"
#include "runtime/fill/replay.h"
#include "runtime/fill/restore.h"
#include "runtime/fill/shadow.h"
#include "runtime/loading/pinned_pool.h"
#include "runtime/loading/store.h"
#include "runtime/memory/allocation.h"
#include "runtime/memory/bytes.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/parked.h"
#include "runtime/memory/publish.h"
#include "runtime/state/why.h"

_Atomic bool ms_suspend_is_set;

/* Lets one thread take memory back at a time; held while the thread waits for claims. */
static struct ms_lock turn = MS_LOCK_INIT(suspend);

/* The device is read in pieces of this size. */
enum { PIECE_BYTES = 4 << 20 };

/* New content for a range. The range gets it when everything has been read from the device. */
struct kept {
    struct ms_allocation *allocation;
    struct ms_range range;
    struct ms_content content; /* with a reference */
};

struct suspension {
    struct ms_allocation **claimed; /* all allocations, by address */
    size_t claimed_count, claimed_capacity;
    struct kept *kept;
    size_t kept_count, kept_capacity;
    struct ms_restoring restoring;
    bool can_restore;
    struct ms_store *store;
    struct ms_suspended *told;
    struct ms_fault *fault;
};

static bool is_short_of_memory(const struct suspension *suspension)
{
    return ms_fault_set(suspension->fault, "out of host memory");
}

/* --- holding the program up */

static bool claim_all(struct suspension *suspension)
{
    struct ms_allocation *allocation;
    CUdeviceptr at = 0;
    while ((allocation = ms_space_claim_next(at)) != NULL) {
        at = allocation->address + allocation->bytes;
        if (!MS_ARRAY_GROW(suspension->claimed, suspension->claimed_count,
                           suspension->claimed_capacity)) {
            ms_space_release(allocation);
            return is_short_of_memory(suspension);
        }
        suspension->claimed[suspension->claimed_count++] = allocation;
    }
    return true;
}

static void release_all(struct suspension *suspension)
{
    for (size_t i = 0; i < suspension->claimed_count; i++)
        ms_space_release(suspension->claimed[i]);
    suspension->claimed_count = 0;
}

/* Holds the program up and claims all allocations. False: neither. */
static bool hold_up(struct suspension *suspension)
{
    enum { ATTEMPTS = 100 };
    for (int i = 0; i < ATTEMPTS; i++) {
        if (!ms_hold_up_begin(suspension->fault))
            return false;
        const bool is_claimed = claim_all(suspension);
        if (is_claimed && ms_hold_up_is_quiet())
            return true;
        release_all(suspension);
        ms_hold_up_end();
        if (!is_claimed)
            return false;
    }
    return ms_fault_set(suspension->fault, "MetaShard itself keeps the device busy");
}

/* --- reading the bytes that have to wait */

static bool add_kept(struct suspension *suspension, struct ms_allocation *allocation,
                     struct ms_range range, const unsigned char *bytes)
{
    const size_t count = range.end - range.begin;
    struct ms_content content = {.kind = MS_FILL};
    if (!MS_ARRAY_GROW(suspension->kept, suspension->kept_count, suspension->kept_capacity))
        return is_short_of_memory(suspension);
    if (ms_bytes_are_zero(bytes, count)) {
        suspension->told->zeros += count;
    } else {
        content = (struct ms_content){.kind = MS_SOURCE,
                                      .source = ms_store_add(suspension->store, bytes, count,
                                                             suspension->fault)};
        if (content.source == NULL)
            return false;
        suspension->told->stored += count;
    }
    suspension->kept[suspension->kept_count++] = (struct kept){allocation, range, content};
    return true;
}

/* Finds the address in device memory of an extent's bytes; 0: they have none that can go. *end is
 * where that answer ends. */
static CUresult find_address(const struct ms_allocation *allocation, const struct ms_extent *extent,
                             CUdeviceptr *address_out, size_t *end)
{
    const struct ms_content *content = &extent->content;
    CUresult result = CUDA_SUCCESS;
    *address_out = 0;
    *end = extent->end;
    if (content->kind == MS_PARKED) {
        result = ms_parked_read(content->parked, address_out);
        *address_out += content->source_offset;
    } else if (content->kind == MS_RESIDENT &&
               !ms_evict_is_pinned(ms_allocation_backing(allocation), extent->begin, end)) {
        *address_out = allocation->address + extent->begin;
    }
    return result;
}

static bool read_range(struct suspension *suspension, struct ms_allocation *allocation,
                       struct ms_range range, CUdeviceptr from, CUstream stream,
                       const struct ms_pinned_area *area)
{
    for (size_t at = range.begin, next; at < range.end; at = next) {
        next = at + PIECE_BYTES < range.end ? at + PIECE_BYTES : range.end;
        CUresult result =
            ms_driver.memcpy_dtoh_async(area->memory, from + (at - range.begin), next - at, stream);
        result = ms_replay_end(stream, result);
        if (result != CUDA_SUCCESS)
            return ms_fault_set(suspension->fault, "device memory cannot be read: CUDA error %d",
                                (int)result);
        if (!add_kept(suspension, allocation, (struct ms_range){at, next}, area->memory))
            return false;
    }
    return true;
}

static bool read_extents(struct suspension *suspension, struct ms_allocation *allocation,
                         CUstream stream, const struct ms_pinned_area *area)
{
    struct ms_extent extent;
    bool is_good = true;
    for (size_t at = 0, end; is_good && at < allocation->bytes; at = end) {
        extent = ms_lineage_at(ms_allocation_lineage(allocation), at);
        CUdeviceptr from;
        const CUresult found = find_address(allocation, &extent, &from, &end);
        if (found == CUDA_ERROR_NOT_PERMITTED)
            return ms_fault_set(suspension->fault, "an NCCL group of the program is open");
        if (found != CUDA_SUCCESS)
            return ms_fault_set(suspension->fault, "device memory cannot be read: CUDA error %d",
                                (int)found);
        if (from != 0)
            is_good =
                read_range(suspension, allocation, (struct ms_range){at, end}, from, stream, area);
    }
    return is_good;
}

static bool read_allocation(struct suspension *suspension, struct ms_allocation *allocation)
{
    struct ms_driver_scope scope;
    struct ms_pinned_area area;
    CUstream stream;
    if (!ms_lineage_any(ms_allocation_lineage(allocation), 0, allocation->bytes,
                        MS_OF_KIND(MS_RESIDENT) | MS_OF_KIND(MS_PARKED)))
        return true;
    if (ms_driver_enter(allocation->context, &scope) != CUDA_SUCCESS)
        return ms_fault_set(suspension->fault, "a context of the program cannot be used");
    bool is_good =
        ms_replay_stream(allocation->context, &stream) == CUDA_SUCCESS &&
        ms_pinned_pool_take(allocation->context, PIECE_BYTES, PIECE_BYTES, &area) == CUDA_SUCCESS;
    if (!is_good)
        is_short_of_memory(suspension);
    else {
        is_good = read_extents(suspension, allocation, stream, &area);
        ms_pinned_pool_drop(&area);
    }
    ms_driver_leave(&scope);
    return is_good;
}

/* True if the memory belongs to another process, or others use it. */
static bool stays(const struct ms_allocation *allocation)
{
    return allocation->is_opened || allocation->notes.is_exported;
}

/* The bytes cannot be sent again, so they are read as all that is only in device memory. */
static void keep_snapshot(struct ms_content *content)
{
    if (ms_content_is_kept_snapshot(content))
        *content = (struct ms_content){.kind = MS_RESIDENT};
}

/* Frees dead memory, restores lineage, then reads the bytes that have to wait. */
static bool prepare(struct suspension *suspension, struct ms_allocation *allocation)
{
    if (stays(allocation))
        return true;
    ms_carve_settle(allocation, 0, allocation->bytes);
    if (ms_backing_sink_wait(ms_allocation_memory(allocation), 0, allocation->granule_bytes) !=
        CUDA_SUCCESS)
        return ms_fault_set(suspension->fault, "an NCCL group of the program is open");
    suspension->told->freed += ms_carve_give_back(allocation, NULL);
    if (ms_bytes_change_range(allocation, 0, allocation->bytes, keep_snapshot) != CUDA_SUCCESS)
        return is_short_of_memory(suspension);
    if (suspension->can_restore)
        ms_restore(allocation, &suspension->restoring);
    return read_allocation(suspension, allocation);
}

/* Parked bytes have memory of their own. */
static size_t backed_bytes(const struct suspension *suspension)
{
    size_t bytes = 0;
    for (size_t i = 0; i < suspension->claimed_count; i++) {
        const struct ms_allocation *allocation = suspension->claimed[i];
        bytes += ms_backing_bytes(ms_allocation_backing(allocation)) +
                 ms_allocation_lineage(allocation)->kind_bytes[MS_PARKED];
    }
    return bytes;
}

/* Reads all bytes that have to wait. Changes nothing that a program could see. */
static bool read_all(struct suspension *suspension, const char *folder)
{
    suspension->store = ms_store_create(folder, backed_bytes(suspension), ms_config.suspend_bytes,
                                        suspension->fault);
    bool is_good = suspension->store != NULL;
    suspension->can_restore = ms_restore_begin(&suspension->restoring, true);
    for (size_t i = 0; is_good && i < suspension->claimed_count; i++)
        is_good = prepare(suspension, suspension->claimed[i]);
    if (suspension->can_restore)
        ms_restore_end(&suspension->restoring);
    return is_good && ms_store_finish(suspension->store, suspension->fault);
}

/* --- giving memory back */

/* Bytes outside of blocks count as used: a captured graph may use returned blocks. A range over
 * blocks side by side uses each block alone. */
static void add_uses(struct ms_allocation *allocation, size_t begin, size_t end)
{
    struct ms_range block;
    while (begin < end) {
        const bool ends = ms_carve_next_block(allocation, begin, &block) && block.end < end;
        const size_t stop = ends ? block.end : end;
        ms_carve_add_use(allocation, begin, stop);
        begin = stop;
    }
}

static void set_kept(const struct kept *kept)
{
    struct ms_allocation *allocation = kept->allocation;
    const size_t begin = kept->range.begin, end = kept->range.end;
    add_uses(allocation, begin, end);
    if (ms_bytes_set(allocation, begin, end, &kept->content) == CUDA_SUCCESS)
        allocation->notes.was_resident = true;
}

static size_t pinned_bytes(const struct ms_backing *backing)
{
    size_t bytes = 0;
    for (size_t at = 0, end; at < backing->bytes; at = end) {
        end = backing->bytes;
        if (ms_evict_is_pinned(backing, at, &end))
            bytes += end - at;
    }
    return bytes;
}

static void tell_what_stays(struct ms_suspended *told, const struct ms_allocation *allocation)
{
    const size_t backed = ms_backing_bytes(ms_allocation_backing(allocation));
    const size_t pinned = pinned_bytes(ms_allocation_backing(allocation));
    told->stays_exported += stays(allocation) ? backed : 0;
    told->stays_mapped += stays(allocation) ? 0 : pinned;
    told->stays_otherwise += stays(allocation) ? 0 : backed - pinned;
}

static void tell_what_comes_back(struct ms_suspended *told, const struct ms_allocation *allocation)
{
    struct ms_walk walk = {ms_allocation_lineage(allocation), 0, SIZE_MAX};
    for (const struct ms_extent *extent; (extent = ms_lineage_walk(&walk)) != NULL;) {
        const size_t bytes = extent->content.cached ? extent->end - extent->begin : 0;
        told->replayed += bytes;
        told->made += extent->content.kind != MS_SOURCE ? bytes : 0;
    }
}

static void give_back_all(struct suspension *suspension)
{
    struct ms_suspended *told = suspension->told;
    for (size_t i = 0; i < suspension->kept_count; i++)
        set_kept(&suspension->kept[i]);
    for (size_t i = 0; i < suspension->claimed_count; i++) {
        struct ms_allocation *allocation = suspension->claimed[i];
        if (!stays(allocation)) {
            tell_what_comes_back(told, allocation);
            told->freed += ms_carve_give_back(allocation, ms_replay_is_current);
        }
        tell_what_stays(told, allocation);
    }
}

static void forget_kept(struct suspension *suspension)
{
    for (size_t i = 0; i < suspension->kept_count; i++) {
        if (suspension->kept[i].content.kind == MS_SOURCE)
            ms_source_drop(suspension->kept[i].content.source);
    }
    ms_heap_free(suspension->kept);
    if (suspension->store != NULL)
        ms_store_drop(suspension->store);
}

static bool suspend(struct suspension *suspension, const char *folder)
{
    const bool was_set = atomic_exchange(&ms_suspend_is_set, true);
    const bool is_good = read_all(suspension, folder);
    if (is_good)
        give_back_all(suspension);
    release_all(suspension);
    forget_kept(suspension);
    ms_evict_drop_sinks();
    if (!is_good && !was_set && ms_restore_keep() == CUDA_SUCCESS)
        atomic_store(&ms_suspend_is_set, false);
    return is_good;
}

static void log_suspended(const struct ms_suspended *told)
{
    ms_log(MS_INFO,
           "suspended: %" PRIu64 " bytes of device memory were given back; %" PRIu64
           " come back from files and recorded launches, %" PRIu64
           " wait outside of the device, %" PRIu64 " were zeros; %" PRIu64
           " stay, because others use them, %" PRIu64 " because the program has their handle",
           told->freed, told->replayed, told->stored, told->zeros, told->stays_exported,
           told->stays_mapped);
}

bool ms_suspend(const char *folder, struct ms_suspended *told_out, struct ms_fault *fault)
{
    struct suspension suspension = {.told = told_out, .fault = fault};
    *told_out = (struct ms_suspended){0};
    if (ms_verifies())
        return ms_fault_set(fault, "METASHARD=verify keeps everything twice: nothing is suspended");
    if (!ms_owns_any())
        return true;
    ms_examining_begin();
    const bool is_held_up = hold_up(&suspension);
    const bool is_good = is_held_up && suspend(&suspension, folder);
    ms_heap_free(suspension.claimed);
    ms_examining_end();
    if (is_held_up)
        ms_hold_up_end();
    if (is_good)
        log_suspended(told_out);
    return is_good;
}

/* --- taking memory back */

/* Without bytes that the plan gives to other ranks: they stay without memory, written or not. */
static uint64_t missing_bytes_of(const struct ms_lineage *lineage)
{
    uint64_t bytes = 0;
    struct ms_walk walk = {lineage, 0, SIZE_MAX};
    for (const struct ms_extent *extent; (extent = ms_lineage_walk(&walk)) != NULL;) {
        const struct ms_content *content = &extent->content;
        if (!ms_content_is_present(content) && !ms_content_is_nothing(content) &&
            content->locality != MS_REMOTE)
            bytes += extent->end - extent->begin;
    }
    return bytes;
}

/* The least bytes that have to come back to a device, and a context of the device. */
static uint64_t missing_bytes(CUdevice device, CUcontext *context_out)
{
    uint64_t bytes = 0;
    struct ms_allocation *allocation = NULL;
    *context_out = NULL;
    while ((allocation = ms_space_walk(allocation)) != NULL) {
        if (!allocation->notes.was_resident || allocation->device != device)
            continue;
        bytes += missing_bytes_of(ms_allocation_lineage(allocation));
        *context_out = allocation->context;
    }
    return bytes;
}

/* Checked before anything comes back: a half-resumed process would take memory that another process
 * needs. */
static bool has_room(CUdevice device)
{
    CUcontext context;
    struct ms_driver_scope scope;
    size_t unused = SIZE_MAX, total;
    const uint64_t missing = missing_bytes(device, &context);
    if (context == NULL || ms_driver_enter(context, &scope) != CUDA_SUCCESS)
        return true;
    if (ms_driver.mem_get_info(&unused, &total) != CUDA_SUCCESS)
        unused = SIZE_MAX;
    ms_driver_leave(&scope);
    return unused >= missing;
}

static bool have_room(void)
{
    CUdevice device = 0;
    while (device < MS_MAX_DEVICES && has_room(device))
        device++;
    return device == MS_MAX_DEVICES;
}

static CUresult take_back(void)
{
    int attempts = 0;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (!have_room() && (!ms_evict_try_again(result, &attempts) || !have_room()))
        return result;
    MS_WHY const struct ms_why reason = ms_why_begin(MS_REASON_PREFETCH);
    ms_prefetch_residents();
    do
        result = ms_restore_keep();
    while (ms_evict_try_again(result, &attempts));
    return result;
}

static CUresult take_back_patiently(void)
{
    static const struct timespec pause = {.tv_nsec = 50 * 1000 * 1000};
    const uint64_t until = ms_clock_ns(CLOCK_MONOTONIC) + ms_config.resume_ms * MS_NS_PER_MS;
    CUresult result;
    while ((result = take_back()) == CUDA_ERROR_OUT_OF_MEMORY &&
           ms_clock_ns(CLOCK_MONOTONIC) < until)
        nanosleep(&pause, NULL);
    return result;
}

CUresult ms_suspend_take_back(void)
{
    CUresult result = CUDA_SUCCESS;
    if (!ms_suspend_is_active())
        return result;
    ms_lock_take(&turn);
    if (ms_suspend_is_active()) {
        ms_examining_begin();
        result = take_back_patiently();
        if (result == CUDA_SUCCESS)
            atomic_store(&ms_suspend_is_set, false);
        ms_examining_end();
    }
    ms_lock_drop(&turn);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        ms_log(MS_ERROR, "this process is suspended, and the device has no memory for its data: "
                         "nothing is lost, and a later metashard_resume may succeed");
    else if (result == CUDA_SUCCESS)
        ms_log(MS_DEBUG, "the suspended data is back");
    return result;
}
