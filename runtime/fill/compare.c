/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/compare.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/log.h"
#include "runtime/files/file.h"
#include "runtime/fill/replay.h"
#include "runtime/fill/shadow.h"
#include "runtime/loading/pinned_pool.h"
#include "runtime/memory/allocation.h"
#include "runtime/memory/bytes.h"
#include "runtime/memory/publish.h"
#include "runtime/memory/recorded_launch.h"
#include "runtime/order/order.h"
#include "runtime/shard/placement_query.h"
#include "runtime/shard/shard.h"
#include "runtime/state/caller.h"
#include "runtime/state/counters.h"

/* Two ranges of device memory that should hold the same. */
struct pair {
    CUdeviceptr memory, shadow;
    size_t bytes;
};

struct difference {
    uint64_t count, first; /* bytes; offset of the first */
};

/* --- on the device */

extern const char ms_compare_ptx[];

static CUfunction kernel; /* NULL: the driver does not take the kernel; immutable after once */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Loads a library, because that belongs to no context. */
static void load_kernel(void)
{
    CUlibrary library;
    CUkernel loaded = NULL;
    CUresult result =
        ms_driver.library_load_data(&library, ms_compare_ptx, NULL, NULL, 0, NULL, NULL, 0);
    if (result == CUDA_SUCCESS)
        result = ms_driver.library_get_kernel(&loaded, library, "metashard_compare");
    if (result == CUDA_SUCCESS)
        kernel = (CUfunction)loaded;
    else
        ms_log(MS_INFO,
               "bytes are compared on the host, because the driver does not take "
               "the shim's kernel: CUDA error %d",
               (int)result);
}

/* The kernel writes its result to pinned memory. */
static CUresult compare_on_device(const struct pair *pair, CUcontext context, CUstream stream,
                                  struct difference *found_out)
{
    enum { THREADS = 256, MOST_BLOCKS = 4096 };
    const size_t blocks = (pair->bytes + THREADS - 1) / THREADS;
    struct ms_pinned_area area;
    pthread_once(&once, load_kernel);
    CUresult result =
        kernel != NULL ? ms_pinned_pool_take(context, sizeof(*found_out), sizeof(*found_out), &area)
                       : CUDA_ERROR_NOT_SUPPORTED;
    if (result != CUDA_SUCCESS)
        return result;
    struct difference *found = (struct difference *)(void *)area.memory;
    *found = (struct difference){0, UINT64_MAX};
    struct pair copy = *pair;
    CUdeviceptr place = (uintptr_t)found;
    void *params[] = {&copy.memory, &copy.shadow, &copy.bytes, &place};
    result = CUDA_ERROR_NOT_SUPPORTED;
    if (area.is_pinned)
        result =
            ms_driver.launch_kernel(kernel, blocks < MOST_BLOCKS ? (unsigned)blocks : MOST_BLOCKS,
                                    1, 1, THREADS, 1, 1, 0, stream, params, NULL);
    result = ms_replay_end(stream, result);
    *found_out = *found;
    ms_pinned_pool_drop(&area);
    return result;
}

/* --- on the host */

static CUresult read_both(const struct pair *pair, size_t offset, size_t bytes, void *memory,
                          void *shadow, CUstream stream)
{
    CUresult result = ms_driver.memcpy_dtoh_async(memory, pair->memory + offset, bytes, stream);
    if (result == CUDA_SUCCESS)
        result = ms_driver.memcpy_dtoh_async(shadow, pair->shadow + offset, bytes, stream);
    return ms_replay_end(stream, result);
}

static void compare_bytes(const unsigned char *memory, const unsigned char *shadow, size_t bytes,
                          size_t offset, struct difference *found)
{
    for (size_t i = 0; i < bytes; i++) {
        if (memory[i] != shadow[i] && found->count++ == 0)
            found->first = offset + i;
    }
}

static CUresult compare_on_host(const struct pair *pair, CUcontext context, CUstream stream,
                                struct difference *found)
{
    enum { PIECE = 1 << 20 };
    struct ms_pinned_area area;
    CUresult result = ms_pinned_pool_take(context, (size_t)2 * PIECE, (size_t)2 * PIECE, &area);
    if (result != CUDA_SUCCESS)
        return result;
    unsigned char *memory = area.memory, *shadow = area.memory + PIECE;
    *found = (struct difference){0, UINT64_MAX};
    for (size_t done = 0; done < pair->bytes && result == CUDA_SUCCESS; done += PIECE) {
        const size_t now = pair->bytes - done < PIECE ? pair->bytes - done : PIECE;
        result = read_both(pair, done, now, memory, shadow, stream);
        if (result == CUDA_SUCCESS && memcmp(memory, shadow, now) != 0)
            compare_bytes(memory, shadow, now, done, found);
    }
    ms_pinned_pool_drop(&area);
    return result;
}

static CUresult find_differences(const struct pair *pair, bool is_plain, CUcontext context,
                                 CUstream stream, struct difference *found_out)
{
    const CUresult result =
        is_plain ? compare_on_device(pair, context, stream, found_out) : CUDA_ERROR_NOT_SUPPORTED;
    return result == CUDA_SUCCESS ? result : compare_on_host(pair, context, stream, found_out);
}

bool ms_compare_is_equal(CUdeviceptr one, CUdeviceptr other, size_t bytes, CUcontext context,
                         CUstream stream)
{
    const struct pair pair = {one, other, bytes};
    struct difference found;
    return find_differences(&pair, true, context, stream, &found) == CUDA_SUCCESS &&
           found.count == 0;
}

/* --- telling differences */

static void describe(const struct ms_extent *extent, char *text, size_t bytes)
{
    const struct ms_content *content = &extent->content;
    const unsigned long long offset = content->source_offset;
    if (content->kind == MS_FILL)
        snprintf(text, bytes, "a fill with 0x%08x", (unsigned)content->pattern);
    else if (content->kind == MS_LAUNCHED)
        snprintf(text, bytes, "byte %llu of a recorded launch of %s", offset,
                 ms_call_name(content->recorded->launch));
    else if (ms_content_file(content) != NULL)
        snprintf(text, bytes, "byte %llu of %s", offset, ms_file_path(ms_content_file(content)));
    else if (content->kind == MS_SOURCE)
        snprintf(text, bytes, "a host copy of what the program wrote");
    else
        snprintf(text, bytes, "what the call has just put there");
}

enum { SHOWN = 8 };

static void hex(const unsigned char *values, size_t count, char *text)
{
    enum { ONE = sizeof(" ff") };
    for (size_t i = 0; i < count; i++)
        text += snprintf(text, ONE, i > 0 ? " %02x" : "%02x", values[i]);
}

static void report(const struct ms_allocation *allocation, struct ms_range range,
                   const struct pair *pair, const struct difference *found, CUstream stream)
{
    const struct ms_extent extent =
        ms_lineage_at(ms_allocation_lineage(allocation), range.begin + found->first);
    unsigned char values[2][SHOWN] = {{0}};
    char texts[2][3 * SHOWN] = {"?", "?"}, lineage[512], name[120], tensor[136] = "";
    size_t shown = pair->bytes - found->first;
    shown = shown < SHOWN ? shown : SHOWN;
    if (read_both(pair, found->first, shown, values[0], values[1], stream) == CUDA_SUCCESS) {
        hex(values[0], shown, texts[0]);
        hex(values[1], shown, texts[1]);
    }
    describe(&extent, lineage, sizeof(lineage));
    if (ms_placement_query_name(allocation, extent.begin, extent.end, name, sizeof(name)))
        snprintf(tensor, sizeof(tensor), ", tensor %s", name);
    ms_log(MS_ERROR,
           "verify: %llu of the bytes %llu to %llu of the allocation of %zu bytes at 0x%llx%s are "
           "not what the program wrote: from byte %zu on %s instead of %s; by the lineage they are "
           "%s; %s needs them",
           (unsigned long long)found->count, (unsigned long long)range.begin,
           (unsigned long long)range.end, allocation->bytes, allocation->address, tensor,
           extent.begin, texts[0], texts[1], lineage, ms_caller != NULL ? ms_caller : "a call");
    ms_publish_event(MS_EVENT_DIFFER, allocation, extent.begin, found->count, lineage);
}

/* pair->memory is the range of the allocation, or a copy of that range. */
static void compare(struct ms_allocation *allocation, struct ms_range range,
                    const struct pair *pair, bool is_plain)
{
    struct ms_driver_scope scope;
    struct difference found;
    CUstream stream;
    if (ms_driver_enter(allocation->context, &scope) != CUDA_SUCCESS)
        return;
    CUresult result = ms_replay_stream(allocation->context, &stream);
    if (result == CUDA_SUCCESS)
        result = find_differences(pair, is_plain, allocation->context, stream, &found);
    if (result == CUDA_SUCCESS) {
        ms_counter_add(MS_COUNT_VERIFY_RANGES, 1);
        ms_counter_add(MS_COUNT_VERIFY_BYTES, pair->bytes);
    } else {
        ms_counter_add(MS_COUNT_VERIFY_LEFT_OUT_BYTES, pair->bytes);
    }
    if (result == CUDA_SUCCESS && found.count > 0) {
        ms_counter_add(MS_COUNT_VERIFY_DIFFER, 1);
        report(allocation, range, pair, &found, stream);
        ms_bytes_change(allocation, &range, 1, ms_content_forget_shadow);
    }
    ms_driver_leave(&scope);
}

static void compare_range(struct ms_allocation *allocation, struct ms_range range)
{
    const struct pair pair = {allocation->address + range.begin,
                              ms_shadow_address(allocation, range.begin), range.end - range.begin};
    if (pair.bytes > 0)
        compare(allocation, range, &pair, true);
}

/* Compares extents side by side together. */
void ms_compare(struct ms_allocation *allocation, size_t begin, size_t end, enum ms_compared what)
{
    struct ms_range run = {0, 0};
    struct ms_extent extent;
    if (ms_shadow_address(allocation, 0) == 0)
        return;
    while (ms_lineage_next(ms_allocation_lineage(allocation), &begin, end, &extent)) {
        if (!extent.content.is_shadowed || extent.content.cached != (what == MS_COMPARE_CACHED))
            continue;
        if (extent.begin != run.end) {
            compare_range(allocation, run);
            run.begin = extent.begin;
        }
        run.end = extent.end;
    }
    compare_range(allocation, run);
}

void ms_compare_copy(struct ms_allocation *from, const struct ms_extent *extent, CUdeviceptr copy,
                     bool is_plain, CUstream stream)
{
    const struct ms_range range = {extent->begin, extent->end};
    const struct pair pair = {copy, ms_shadow_address(from, range.begin), range.end - range.begin};
    if (extent->content.is_shadowed && ms_shadow_wait(stream) == CUDA_SUCCESS)
        compare(from, range, &pair, is_plain);
}

/* False: another thread has the claim (NULL), or the device stays busy for longer than the
 * patience. */
static bool compare_cached_of(struct ms_allocation *allocation, uint64_t patience_ms)
{
    if (allocation == NULL)
        return false;
    if (ms_shadow_address(allocation, 0) == 0 ||
        !ms_lineage_any(ms_allocation_lineage(allocation), 0, allocation->bytes, MS_CACHED))
        return true;
    if (!ms_order_context_ends_within(allocation->context, patience_ms))
        return false;
    ms_compare(allocation, 0, allocation->bytes, MS_COMPARE_CACHED);
    return true;
}

/* Waits for a busy device only once, because the device may be busy for ever. */
static void compare_cached(void)
{
    enum { PATIENCE_MS = 1000 };
    uint64_t patience_ms = PATIENCE_MS;
    struct ms_allocation_facts facts;
    for (CUdeviceptr at = 0; ms_space_first_behind(at, &facts);) {
        at = facts.address + facts.bytes;
        MS_CLAIMED struct ms_allocation *allocation = ms_space_try_claim(facts.address);
        if (!compare_cached_of(allocation, patience_ms)) {
            ms_counter_add(MS_COUNT_VERIFY_LEFT_OUT_BYTES, facts.bytes);
            patience_ms = 0;
        }
    }
}

void ms_compare_finish(void)
{
    char left_out[80] = "";
    if (!ms_verifies())
        return;
    ms_caller = "the end of the process";
    compare_cached();
    const unsigned long long bytes = ms_counter_get(MS_COUNT_VERIFY_LEFT_OUT_BYTES);
    if (bytes > 0)
        snprintf(left_out, sizeof(left_out), "; %llu bytes were left out", bytes);
    ms_log_say("verify", "%llu ranges, %llu bytes compared, %llu differ%s",
               (unsigned long long)ms_counter_get(MS_COUNT_VERIFY_RANGES),
               (unsigned long long)ms_counter_get(MS_COUNT_VERIFY_BYTES),
               (unsigned long long)ms_counter_get(MS_COUNT_VERIFY_DIFFER), left_out);
}
