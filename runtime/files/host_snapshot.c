/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/host_snapshot.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/base/headroom.h"
#include "runtime/base/heap.h"
#include "runtime/base/number.h"
#include "runtime/state/counters.h"

static _Atomic uint64_t snapshot_bytes;
_Atomic uint64_t ms_host_snapshot_limit = UINT64_MAX;
static _Atomic uint64_t snapshot_known; /* snapshot_bytes were found to fit up to here */

/* To send a smaller snapshot again costs as much as to search for a place that has its bytes. */
enum { LEAST_SHARED = 256 << 10 };

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
                           atomic_load(&ms_host_snapshot_limit);
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

/* The bytes follow, because there may be very many snapshots. */
struct ms_host_snapshot {
    struct ms_source source; /* must be first: ms_host_snapshot_source */
    _Atomic size_t bytes;    /* 0: they were forgotten */
};

/* Of MS_SOURCE_STORED. */
struct stored_snapshot {
    struct ms_host_snapshot snapshot;
    struct ms_stored stored;
};

_Static_assert(offsetof(struct ms_host_snapshot, source) == 0, "ms_host_snapshot_source casts");

void *ms_host_snapshot_data(const struct ms_host_snapshot *snapshot)
{
    if (snapshot->source.kind == MS_SOURCE_STORED)
        return ((const struct stored_snapshot *)snapshot)->stored.memory;
    return snapshot->bytes > 0 ? (void *)(uintptr_t)(snapshot + 1) : NULL;
}

static void destroy_snapshot(struct ms_counted *counted)
{
    struct ms_host_snapshot *snapshot = (struct ms_host_snapshot *)counted;
    ms_host_snapshot_count(-(int64_t)snapshot->bytes, MS_SNAPSHOT_ANY);
    ms_heap_free(snapshot);
}

/* Advises on the pages, or huge pages, that lie wholly in the memory. */
static void advise(uintptr_t begin, size_t bytes, size_t page_bytes, int advice)
{
    const uintptr_t first = ms_round_up(begin, page_bytes);
    const uintptr_t last = ms_round_down(begin + bytes, page_bytes);
    if (first < last)
        madvise((void *)first, last - first, advice);
}

/* Leaves the last reference to be dropped, which frees the memory whole. */
void ms_host_snapshot_forget(struct ms_source *source)
{
    struct ms_host_snapshot *snapshot = ms_source_snapshot(source);
    if (atomic_load(&source->counted.references) == 1)
        return;
    const size_t bytes = atomic_exchange(&snapshot->bytes, 0);
    advise((uintptr_t)(snapshot + 1), bytes, (size_t)sysconf(_SC_PAGESIZE), MADV_DONTNEED);
    ms_host_snapshot_count(-(int64_t)bytes, MS_SNAPSHOT_ANY);
}

/*
 * The kernel fills new memory with zeros before it is copied to, and with pages of 4 KiB most of
 * that time goes into faults. So a large snapshot gets huge pages where the system has them. The
 * next snapshot may get the same memory of the heap.
 */
enum { HUGE_PAGE_BYTES = 2 << 20 };

struct ms_host_snapshot *ms_host_snapshot_create(size_t bytes, enum ms_snapshot_limit limit)
{
    if (!ms_host_snapshot_count((int64_t)bytes, limit))
        return NULL;
    struct ms_host_snapshot *snapshot = ms_heap_alloc(sizeof(*snapshot) + bytes);
    if (snapshot == NULL) {
        ms_host_snapshot_count(-(int64_t)bytes, MS_SNAPSHOT_ANY);
        return NULL;
    }
    snapshot->source =
        (struct ms_source){.kind = MS_SOURCE_SNAPSHOT, .may_be_shared = bytes >= LEAST_SHARED};
    ms_counted_init(&snapshot->source.counted, destroy_snapshot);
    snapshot->bytes = bytes;
    advise((uintptr_t)(snapshot + 1), bytes, HUGE_PAGE_BYTES, MADV_HUGEPAGE);
    return snapshot;
}

static void destroy_stored(struct ms_counted *counted)
{
    struct stored_snapshot *snapshot = (struct stored_snapshot *)counted;
    const struct ms_stored *stored = &snapshot->stored;
    advise((uintptr_t)stored->memory, stored->bytes, (size_t)sysconf(_SC_PAGESIZE),
           stored->is_file ? MADV_REMOVE : MADV_DONTNEED);
    ms_counted_drop(stored->store);
    ms_heap_free(snapshot);
}

struct ms_host_snapshot *ms_host_snapshot_create_stored(const struct ms_stored *stored)
{
    struct stored_snapshot *made = ms_heap_alloc(sizeof(*made));
    if (made == NULL)
        return NULL;
    made->snapshot.source = (struct ms_source){.kind = MS_SOURCE_STORED};
    ms_counted_init(&made->snapshot.source.counted, destroy_stored);
    ms_counted_take(stored->store);
    made->snapshot.bytes = stored->bytes;
    made->stored = *stored;
    return &made->snapshot;
}
