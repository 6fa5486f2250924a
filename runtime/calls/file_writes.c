/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/file_writes.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>

#include "runtime/base/lock.h"
#include "runtime/base/log.h"
#include "runtime/fill/evict.h"
#include "runtime/fill/materialise.h"
#include "runtime/memory/publish.h"
#include "runtime/memory/recorded_launch.h"
#include "runtime/shard/active_plan.h"
#include "runtime/state/caller.h"

/* The size of one host copy, taken when out of device memory, at most. */
static const size_t copied_bytes = (size_t)16 << 20;

static bool lineage_needs(const struct ms_lineage *lineage);

/* True if content needs the file with closed sources. Recursion ends at MS_MAX_LAUNCH_DEPTH. */
static bool needs(const struct ms_content *content)
{
    if (content->kind == MS_SOURCE)
        return ms_source_is_closed(content->source);
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
    return may_need(lineage) && ms_lineage_any(lineage, 0, lineage->bytes, needs);
}

/* Finds the next extents from `from` on, side by side, that need the file and are not remote. */
static bool find_needing(const struct ms_lineage *lineage, size_t from, struct ms_range *range_out)
{
    bool found = false;
    struct ms_extent extent;
    while (may_need(lineage) && ms_lineage_next(lineage, &from, lineage->bytes, &extent)) {
        const bool is_needing = extent.content.locality != MS_REMOTE && needs(&extent.content);
        if (found && !is_needing)
            break;
        if (is_needing)
            *range_out = (struct ms_range){found ? range_out->begin : extent.begin, extent.end};
        found = is_needing;
    }
    return found;
}

/* Makes a host copy the source of a part of an extent that comes from the file itself. */
static CUresult copy_part(struct ms_allocation *allocation, const struct ms_extent *extent)
{
    struct ms_source *copy;
    CUresult result = ms_source_copy(extent->content.source, extent->content.source_offset,
                                     extent->end - extent->begin, &copy);
    if (result != CUDA_SUCCESS)
        return result;
    struct ms_content content = extent->content;
    content.source = copy;
    content.source_offset = 0;
    if (!ms_lineage_set(&allocation->lineage, extent->begin, extent->end, &content))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    ms_source_drop(copy);
    return result;
}

/* Bytes in memory stay there; the result of a launch cannot be kept on the host. */
static CUresult copy_range(struct ms_allocation *allocation, struct ms_range range)
{
    static const struct ms_content resident = {.kind = MS_RESIDENT};
    CUresult result = CUDA_SUCCESS;
    for (size_t at = range.begin; at < range.end && result == CUDA_SUCCESS;) {
        struct ms_extent extent = ms_lineage_at(&allocation->lineage, at);
        if (extent.end > range.end)
            extent.end = range.end;
        if (extent.content.kind == MS_SOURCE && !extent.content.cached &&
            extent.end > at + copied_bytes)
            extent.end = at + copied_bytes;
        at = extent.end;
        if (!extent.content.cached)
            result = extent.content.kind == MS_SOURCE ? copy_part(allocation, &extent)
                                                      : CUDA_ERROR_OUT_OF_MEMORY;
        else if (!ms_lineage_set(&allocation->lineage, extent.begin, extent.end, &resident))
            result = CUDA_ERROR_OUT_OF_MEMORY;
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
    if (may_need(&allocation->lineage))
        ms_shard_query_placement(allocation, 0, allocation->bytes);
    while (result == CUDA_SUCCESS && find_needing(&allocation->lineage, range.end, &range)) {
        result = save_range(allocation, range);
        if (result == CUDA_SUCCESS)
            *bytes += range.end - range.begin;
    }
    return result;
}

static CUresult save_all(way *save_range, uint64_t *bytes)
{
    CUresult result = CUDA_SUCCESS;
    struct ms_allocation *allocation = NULL;
    while (result == CUDA_SUCCESS && (allocation = ms_space_claim_after(allocation)) != NULL)
        result = save(allocation, save_range, bytes);
    ms_space_release(allocation);
    return result;
}

/* Repeats until a walk finds nothing, because other threads may copy lineage behind the walk. */
static CUresult save_until_clean(way *save_range, uint64_t *bytes)
{
    enum { MANY = 16 };
    CUresult result = CUDA_SUCCESS;
    uint64_t before = UINT64_MAX;
    int attempts = 0;
    for (int i = 0; i < MANY && result == CUDA_SUCCESS && *bytes != before; i++) {
        before = *bytes;
        do
            result = save_all(save_range, bytes);
        while (ms_try_again(result, &attempts));
    }
    return result;
}

/* Nothing can be read from the device any more, so the file's old bytes are not needed. */
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

static const char another_process[] = "another process";

static int answer(const char *call, const char *path, uint64_t bytes, CUresult result)
{
    if (bytes > 0)
        ms_log(MS_INFO,
               "%s: it is about to change (%s), so %llu bytes that come from it were materialised",
               path, call, (unsigned long long)bytes);
    if (result == CUDA_SUCCESS || is_device_lost(result))
        return 0;
    if (call == another_process) {
        ms_log(
            MS_ERROR,
            "%s: another process is about to change it, and bytes that were copied from there to "
            "the device cannot be materialised (CUDA error %d): they will be lost",
            path, (int)result);
        return ETXTBSY;
    }
    ms_log(MS_ERROR,
           "%s: %s fails with ETXTBSY: the change would destroy bytes that were copied from this "
           "file to the device and cannot be materialised (CUDA error %d): write to another file, "
           "free what is not needed, or raise METASHARD_SNAPSHOT_BYTES",
           path, call, (int)result);
    return ETXTBSY;
}

/* One file at a time. Taken before claims, and held while the thread waits for them. */
static struct ms_lock turn = MS_LOCK_INIT(file_writes);

MS_HOLDS(turn) static int prepare_locked(const char *call, dev_t device, ino_t inode)
{
    char path[MS_PATH_BYTES];
    uint64_t bytes = 0;
    if (!ms_source_close(device, inode, path))
        return 0;
    const struct ms_why why = ms_why_begin(MS_REASON_FILE_WRITE);
    CUresult result = save_until_clean(into_memory, &bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        result = save_until_clean(copy_range, &bytes);
    ms_why_end(why);
    const int error = answer(call, path, bytes, result);
    ms_source_end_close(device, inode, error == 0);
    return error;
}

int ms_prepare_file_write(const char *call, dev_t device, ino_t inode)
{
    int cancel_state;
    if (!ms_source_may_be_of(device, inode))
        return 0;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    const char *caller = ms_caller;
    ms_caller = call;
    ms_lock_take(&turn);
    const int error = prepare_locked(call, device, inode);
    ms_lock_drop(&turn);
    ms_caller = caller;
    pthread_setcancelstate(cancel_state, NULL);
    return error;
}

void ms_answer_file_write(dev_t device, ino_t inode)
{
    ms_prepare_file_write(another_process, device, inode);
    ms_source_drop_leases_of(device, inode);
}
