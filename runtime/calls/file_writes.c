/* SPDX-License-Identifier: Apache-2.0 */

#include "runtime/calls/file_writes.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#include "runtime/base/lock.h"
#include "runtime/base/log.h"
#include "runtime/files/change.h"
#include "runtime/files/file.h"
#include "runtime/files/file_thread.h"
#include "runtime/files/host_snapshot.h"
#include "runtime/files/lease_thread.h"
#include "runtime/files/mapping.h"
#include "runtime/fill/evict.h"
#include "runtime/fill/materialise.h"
#include "runtime/loading/source_read.h"
#include "runtime/memory/bytes.h"
#include "runtime/memory/publish.h"
#include "runtime/memory/recorded_launch.h"
#include "runtime/shard/placement_query.h"
#include "runtime/shard/shard.h"
#include "runtime/state/caller.h"
#include "runtime/state/why.h"

/* The largest size of one host copy, which is taken when device memory has run out. */
static const size_t copied_bytes = (size_t)16 << 20;

static bool lineage_needs(const struct ms_lineage *lineage);

/* True if the content needs the file whose sources are closed. Recursion ends at
 * MS_MAX_LAUNCH_DEPTH. */
static bool needs(const struct ms_content *content)
{
    if (content->kind == MS_SOURCE)
        return ms_content_file(content) != NULL &&
               ms_file_state(ms_content_file(content)) == MS_FILE_IS_CLOSED;
    if (content->kind != MS_LAUNCHED)
        return false;
    const struct ms_launch_input *input = content->recorded->input;
    return lineage_needs(&content->recorded->before) ||
           (input != NULL && lineage_needs(&input->lineage));
}

static bool may_need(const struct ms_lineage *lineage)
{
    return lineage->file_bytes > 0 || lineage->kind_bytes[MS_LAUNCHED] > 0;
}

static bool lineage_needs(const struct ms_lineage *lineage)
{
    bool found = false;
    struct ms_walk walk = {lineage, 0, SIZE_MAX};
    for (const struct ms_extent *extent;
         may_need(lineage) && !found && (extent = ms_lineage_walk(&walk)) != NULL;)
        found = needs(&extent->content);
    return found;
}

/* Finds the next run of adjacent extents, from `from` on, that need the file and are not remote. */
static bool find_needing(const struct ms_allocation *allocation, size_t from,
                         struct ms_range *range_out)
{
    bool found = false;
    struct ms_extent extent;
    while (ms_lineage_next(ms_allocation_lineage(allocation), &from, allocation->bytes, &extent)) {
        const bool is_needing = extent.content.locality != MS_REMOTE && needs(&extent.content);
        if (found && !is_needing)
            break;
        if (is_needing)
            *range_out = (struct ms_range){found ? range_out->begin : extent.begin, extent.end};
        found = is_needing;
    }
    return found;
}

/* Copies an extent's bytes of the file to the host, and makes the copy the extent's source. */
static CUresult copy_part(struct ms_allocation *allocation, const struct ms_extent *extent)
{
    const size_t bytes = extent->end - extent->begin;
    const void *unused;
    struct ms_host_snapshot *copy = ms_host_snapshot_create(bytes, MS_SNAPSHOT_LIMITED);
    if (copy == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct ms_content content = extent->content;
    CUresult result = ms_source_read(content.source, content.source_offset,
                                     ms_host_snapshot_data(copy), bytes, &unused);
    content.source = ms_host_snapshot_source(copy);
    content.source_offset = 0;
    if (result == CUDA_SUCCESS)
        result = ms_bytes_set(allocation, extent->begin, extent->end, &content);
    ms_host_snapshot_drop(copy);
    return result;
}

/* Keeps cached bytes in memory and copies others to the host, which cannot keep the result of a
 * launch. */
static CUresult copy_range(struct ms_allocation *allocation, struct ms_range range)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t at = range.begin; at < range.end && result == CUDA_SUCCESS;) {
        struct ms_extent extent = ms_lineage_at(ms_allocation_lineage(allocation), at);
        if (extent.end > range.end)
            extent.end = range.end;
        if (extent.content.kind == MS_SOURCE && !extent.content.cached &&
            extent.end > at + copied_bytes)
            extent.end = at + copied_bytes;
        at = extent.end;
        if (!extent.content.cached)
            result = extent.content.kind == MS_SOURCE ? copy_part(allocation, &extent)
                                                      : CUDA_ERROR_OUT_OF_MEMORY;
        else
            result = ms_bytes_set_kind(allocation, extent.begin, extent.end, MS_RESIDENT);
    }
    return result;
}

typedef CUresult way(struct ms_allocation *allocation, struct ms_range range);

static CUresult into_memory(struct ms_allocation *allocation, struct ms_range range)
{
    return ms_materialise(allocation, range.begin, range.end, MS_NEED_KEEP);
}

static CUresult save(struct ms_allocation *allocation, way *save_range, uint64_t *bytes)
{
    CUresult result = CUDA_SUCCESS;
    struct ms_range range = {0, 0};
    if (!ms_lineage_any(ms_allocation_lineage(allocation), 0, allocation->bytes,
                        MS_OF_KIND(MS_SOURCE) | MS_OF_KIND(MS_LAUNCHED)))
        return result;
    ms_placement_query(allocation, 0, allocation->bytes);
    while (result == CUDA_SUCCESS && find_needing(allocation, range.end, &range)) {
        result = save_range(allocation, range);
        if (result == CUDA_SUCCESS)
            *bytes += range.end - range.begin;
    }
    return result;
}

/* How often a walk may still sleep before it gives up waiting for another thread's claim. That
 * thread may be unable to go on before the change: it waits for the host function or the process
 * that makes the change, or the signal handler that makes the change has interrupted it. */
struct patience {
    bool is_endless;
    int sleeps;
};
enum { SLEEP_NS = 10 * 1000 * 1000, SLEEPS = 200 };
#define MS_STAYS_CLAIMED CUDA_ERROR_NOT_READY /* an allocation stays claimed */

/* Claims the first allocation at or after an address, or none if there is none. False: another
 * thread has claimed that allocation, or has just freed it. */
static bool try_claim_next(CUdeviceptr address, struct ms_allocation **allocation_out)
{
    struct ms_allocation_facts facts;
    *allocation_out = NULL;
    if (!ms_space_first_behind(address, &facts))
        return true;
    *allocation_out = ms_space_try_claim(facts.address);
    return *allocation_out != NULL;
}

/* Moves on to the next allocation, like ms_space_walk. */
static CUresult claim_after(struct ms_allocation **allocation, struct patience *patience)
{
    const CUdeviceptr at = *allocation != NULL ? (*allocation)->address + (*allocation)->bytes : 0;
    ms_space_release(*allocation);
    *allocation = NULL;
    if (patience->is_endless) {
        *allocation = ms_space_claim_next(at);
        return CUDA_SUCCESS;
    }
    while (!try_claim_next(at, allocation)) {
        if (patience->sleeps-- <= 0)
            return MS_STAYS_CLAIMED;
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    }
    return CUDA_SUCCESS;
}

static CUresult save_all(way *save_range, struct patience *patience, uint64_t *bytes)
{
    MS_CLAIMED struct ms_allocation *allocation = NULL;
    CUresult result = claim_after(&allocation, patience);
    while (result == CUDA_SUCCESS && allocation != NULL) {
        result = save(allocation, save_range, bytes);
        if (result == CUDA_SUCCESS)
            result = claim_after(&allocation, patience);
    }
    return result;
}

/* Repeats until a walk finds nothing, because other threads may copy lineage behind the walk.
 * Evicts only for into_memory: host copies need no device memory. */
static CUresult save_until_clean(way *save_range, struct patience *patience, uint64_t *bytes)
{
    enum { MANY = 16 };
    CUresult result = CUDA_SUCCESS;
    uint64_t before = UINT64_MAX;
    int attempts = 0;
    for (int i = 0; i < MANY && result == CUDA_SUCCESS && *bytes != before; i++) {
        before = *bytes;
        do
            result = save_all(save_range, patience, bytes);
        while (save_range == into_memory && ms_evict_try_again(result, &attempts));
    }
    return result;
}

/* True if nothing can be read from the device any more: the file's old bytes are not needed. */
static bool is_device_lost(CUresult result)
{
    switch (result) {
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_ASSERT:
        return true;
    default:
        return false;
    }
}

/* True in a host function and in a stream callback: other threads may wait for this thread. */
static bool may_not_call(void)
{
    size_t free_bytes, total_bytes;
    return ms_driver.mem_get_info(&free_bytes, &total_bytes) == CUDA_ERROR_NOT_PERMITTED;
}

static const char another_process[] = "another process";

static const char *const says[] = {
    [MS_FILE_CHANGES] = "is about to change",
    [MS_FILE_DELETED] = "was deleted",
    [MS_FILE_LEASED] = "gets a write lease",
};

/* Warns about a deletion or a lease; neither destroys the bytes. */
static void warn(enum ms_file_change what, const char *call, const char *path, CUresult result)
{
    if (what == MS_FILE_DELETED)
        ms_log(MS_WARN,
               "%s: it %s (%s), but bytes of the device still come from it and cannot be "
               "materialised (CUDA error %d): it keeps its space until they are needed no more; "
               "call metashard_materialise() before it is deleted, free what is not needed, or "
               "raise METASHARD_SNAPSHOT_BYTES",
               path, says[what], call, (int)result);
    else
        ms_log(MS_WARN,
               "%s: it %s (%s), but bytes of the device still come from it and cannot be "
               "materialised (CUDA error %d): the shim's lease is given up, and if the file "
               "changes, they are lost",
               path, says[what], call, (int)result);
}

static int answer(enum ms_file_change what, const char *call, const char *path, uint64_t bytes,
                  CUresult result)
{
    if (bytes > 0)
        ms_log(MS_INFO, "%s: it %s (%s), so %llu bytes that come from it were materialised", path,
               says[what], call, (unsigned long long)bytes);
    if (result == CUDA_SUCCESS || is_device_lost(result))
        return 0;
    if (what != MS_FILE_CHANGES)
        warn(what, call, path, result);
    else if (call == another_process)
        ms_log(
            MS_ERROR,
            "%s: another process is about to change it, and bytes that were copied from there to "
            "the device cannot be materialised (CUDA error %d): they will be lost",
            path, (int)result);
    else if (may_not_call())
        ms_log(MS_ERROR,
               "%s: %s fails with ETXTBSY: the change would destroy bytes that were copied from "
               "this file to the device; in a host function the driver takes no calls, so they can "
               "only be copied to the host, for which METASHARD_SNAPSHOT_BYTES is too small: raise "
               "it, or write to another file and rename it over this one",
               path, call);
    else
        ms_log(MS_ERROR,
               "%s: %s fails with ETXTBSY: the change would destroy bytes that were copied from "
               "this file to the device and cannot be materialised (CUDA error %d): write to "
               "another file, free what is not needed, or raise METASHARD_SNAPSHOT_BYTES",
               path, call, (int)result);
    return ETXTBSY;
}

/* For one file at a time. A thread takes the turn before claims, and holds it while it waits for
 * them. */
static struct ms_lock turn = MS_LOCK_INIT(file_writes);

static CUresult save_with(struct patience patience, uint64_t *bytes)
{
    const CUresult result =
        may_not_call() ? CUDA_ERROR_NOT_PERMITTED : save_until_clean(into_memory, &patience, bytes);
    if (result != CUDA_ERROR_OUT_OF_MEMORY && result != CUDA_ERROR_NOT_PERMITTED)
        return result;
    const CUresult copied = save_until_clean(copy_range, &patience, bytes);
    return copied == CUDA_ERROR_OUT_OF_MEMORY ? result : copied;
}

static CUresult save_everything(dev_t device, ino_t inode, const char *path, uint64_t *bytes)
{
    MS_WHY const struct ms_why why = ms_why_begin(MS_REASON_FILE_WRITE);
    const CUresult result = save_with((struct patience){.sleeps = SLEEPS}, bytes);
    if (result == CUDA_SUCCESS || is_device_lost(result))
        return result;
    if (ms_change_keep(device, inode)) {
        ms_log(MS_INFO, "%s: a copy of it was taken, because its bytes could not be materialised",
               path);
        return CUDA_SUCCESS;
    }
    return result == MS_STAYS_CLAIMED && !may_not_call()
               ? save_with((struct patience){.is_endless = true}, bytes)
               : result;
}

MS_HOLDS(turn)
static int prepare_locked(enum ms_file_change what, const char *call, dev_t device, ino_t inode)
{
    char path[MS_PATH_BYTES];
    uint64_t bytes = 0;
    if (!ms_change_begin(device, inode, what == MS_FILE_DELETED, path))
        return 0;
    const CUresult result = save_everything(device, inode, path, &bytes);
    const int error = answer(what, call, path, bytes, result);
    ms_change_end(device, inode, error == 0);
    return error;
}

/*
 * True if this thread cannot materialise the bytes: in a child that shares the memory (vfork,
 * posix_spawn), because the driver is the parent's; and in a signal handler that has interrupted a
 * call of the shim, because this thread holds the call's locks and claims. Such changes are handled
 * like those of another process: the lease thread brings the bytes in, or their use fails.
 */
static bool counts_as_another_process(void)
{
    return ms_calls_inside > 0 || ms_file_thread_is_of_parent();
}

static int prepare(enum ms_file_change what, const char *call, dev_t device, ino_t inode)
{
    int cancel_state;
    if (!ms_file_may_be_of(device, inode))
        return 0;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    const char *caller = ms_caller;
    ms_caller = call;
    ms_lock_take(&turn);
    const int error = prepare_locked(what, call, device, inode);
    ms_lock_drop(&turn);
    ms_caller = caller;
    pthread_setcancelstate(cancel_state, NULL);
    return error;
}

int ms_file_writes_prepare(enum ms_file_change what, const char *call, dev_t device, ino_t inode)
{
    if (what == MS_FILE_LEASED)
        ms_mapping_note_lease(device, inode);
    if (counts_as_another_process())
        return 0;
    ms_calls_inside++;
    const int error = prepare(what, call != NULL ? call : another_process, device, inode);
    ms_calls_inside--;
    if (what == MS_FILE_LEASED && error != 0)
        ms_lease_thread_give_back(device, inode);
    return error;
}

static bool can_have_turn(void)
{
    for (int i = 0; i < SLEEPS; i++) {
        if (ms_lock_try(&turn)) {
            ms_lock_drop(&turn);
            return true;
        }
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    }
    return false;
}

/* Takes a host copy without the turn: the signal handler that waits may have interrupted the thread
 * that has the turn. */
static bool keep_without_turn(dev_t device, ino_t inode)
{
    char path[MS_PATH_BYTES];
    const bool is_closed_here = ms_change_begin(device, inode, false, path);
    const bool is_kept = ms_change_keep(device, inode);
    if (is_closed_here && !is_kept)
        ms_change_end(device, inode, false);
    return is_kept;
}

/* Another process waits for the lease, and always gets it. */
static void answer_breaker(dev_t device, ino_t inode)
{
    if (can_have_turn() || !keep_without_turn(device, inode))
        ms_file_writes_prepare(MS_FILE_CHANGES, NULL, device, inode);
    ms_lease_thread_give_back(device, inode);
}

/* The lease thread has found a file without links. */
static void answer_deletion(dev_t device, ino_t inode)
{
    ms_file_writes_prepare(MS_FILE_DELETED, NULL, device, inode);
}

void ms_file_writes_start(void)
{
    ms_lease_thread_start(answer_breaker, answer_deletion);
}
