/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/host_snapshot.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/base/headroom.h"
#include "runtime/base/heap.h"
#include "runtime/files/file_internal.h"
#include "runtime/state/counters.h"

static _Atomic uint64_t snapshot_bytes;
static _Atomic uint64_t snapshot_limit = UINT64_MAX;
static _Atomic uint64_t snapshot_known; /* snapshot_bytes were found to fit up to here */

/* Room in host memory is asked for in such steps, because asking takes some system calls. */
enum { ASK_BYTES = 16 << 20 };

/* `bytes` of a new snapshot are counted already. */
static bool is_room_for(uint64_t bytes)
{
    const uint64_t all = atomic_load(&snapshot_bytes);
    if (all <= atomic_load(&snapshot_known))
        return true;
    const uint64_t room = ms_headroom_find(MS_HEADROOM_MEMORY).bytes, before = all - bytes;
    if (room < UINT64_MAX - before && all > ms_headroom_share(before + room))
        return false;
    atomic_store(&snapshot_known, all + ASK_BYTES);
    return true;
}

/* Asks for room again later: others may take memory that a snapshot has given back. */
static void forget_known(void)
{
    const uint64_t most = atomic_load(&snapshot_bytes) + ASK_BYTES;
    if (atomic_load(&snapshot_known) > most)
        atomic_store(&snapshot_known, most);
}

bool ms_host_snapshot_count(int64_t change, enum ms_snapshot_limit limit)
{
    const bool is_within = atomic_fetch_add(&snapshot_bytes, (uint64_t)change) + (uint64_t)change <=
                           atomic_load(&snapshot_limit);
    const bool is_allowed =
        (is_within || limit == MS_SNAPSHOT_ANY) && (change <= 0 || is_room_for((uint64_t)change));
    if (is_allowed)
        ms_counter_move(MS_GAUGE_SNAPSHOT, change);
    else
        atomic_fetch_sub(&snapshot_bytes, (uint64_t)change);
    if (change < 0)
        forget_known();
    return is_allowed;
}

static void destroy_snapshot(struct ms_counted *counted)
{
    struct ms_source *snapshot = (struct ms_source *)counted;
    ms_host_snapshot_count(-(int64_t)snapshot->bytes, MS_SNAPSHOT_ANY);
    ms_heap_free(snapshot);
}

/*
 * The kernel fills new memory with zeros before it is copied to, and with pages of 4 KiB most of
 * that time goes into faults. So a large snapshot gets huge pages where the system has them. The
 * next snapshot may get the same memory of the heap.
 */
static void use_huge_pages(const struct ms_source *snapshot)
{
    enum { HUGE_PAGE_BYTES = 2 << 20 };
    const uintptr_t end = (uintptr_t)ms_snapshot_bytes(snapshot) + snapshot->bytes;
    const uintptr_t first = ((uintptr_t)ms_snapshot_bytes(snapshot) + HUGE_PAGE_BYTES - 1) /
                            HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    const uintptr_t last = end / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if (first < last)
        madvise((void *)first, last - first, MADV_HUGEPAGE);
}

struct ms_source *ms_host_snapshot_create(size_t bytes, enum ms_snapshot_limit limit)
{
    const size_t head = offsetof(struct ms_source, descriptor);
    if (!ms_host_snapshot_count((int64_t)bytes, limit))
        return NULL;
    struct ms_source *snapshot = ms_heap_alloc(head + bytes);
    if (snapshot == NULL) {
        ms_host_snapshot_count(-(int64_t)bytes, MS_SNAPSHOT_ANY);
        return NULL;
    }
    memset(snapshot, 0, head);
    ms_counted_init(&snapshot->counted, destroy_snapshot);
    snapshot->bytes = bytes;
    use_huge_pages(snapshot);
    return snapshot;
}

void *ms_host_snapshot_data(const struct ms_source *snapshot)
{
    return ms_snapshot_bytes(snapshot);
}

static void destroy_stored(struct ms_counted *counted)
{
    struct ms_source *source = (struct ms_source *)counted;
    const struct ms_stored *stored = ms_source_stored(source);
    madvise(stored->memory, stored->pages_bytes, stored->is_file ? MADV_REMOVE : MADV_DONTNEED);
    ms_counted_drop(stored->store);
    ms_heap_free(source);
}

struct ms_source *ms_host_snapshot_create_stored(const struct ms_stored *stored)
{
    const size_t head = offsetof(struct ms_source, descriptor);
    struct ms_source *source = ms_heap_alloc(head + sizeof(struct ms_stored));
    if (source == NULL)
        return NULL;
    memset(source, 0, head);
    ms_counted_init(&source->counted, destroy_stored);
    ms_counted_take(stored->store);
    source->is_stored = true;
    source->bytes = stored->bytes;
    *ms_source_stored(source) = *stored;
    return source;
}

void ms_host_snapshot_set_limit(uint64_t bytes)
{
    atomic_store(&snapshot_limit, bytes);
}
