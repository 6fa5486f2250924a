/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/host_snapshot.h"

#include "runtime/base/headroom.h"
#include "runtime/state/counters.h"
#include "tests/unit/counted_pages.h"
#include "tools/simcuda/harness/test.h"
#include "tests/unit/between.h"

static struct ms_headroom host = {UINT64_MAX, "the test"};
static int asked;
WRAPS(ms_headroom_find, madvise);
struct ms_headroom __wrap_ms_headroom_find(enum ms_headroom_kind kind)
{
    CHECK_EQ(kind, MS_HEADROOM_MEMORY);
    asked++;
    return host;
}

static uint64_t snapshot_bytes(void)
{
    return ms_counter_get(MS_GAUGE_SNAPSHOT);
}

MS_TEST(a_snapshot_is_bytes_that_the_caller_sets)
{
    struct ms_host_snapshot *snapshot = ms_host_snapshot_create(1000, MS_SNAPSHOT_LIMITED);
    CHECK(snapshot != NULL);
    memset(ms_host_snapshot_data(snapshot), 1, 1000);
    CHECK_EQ(snapshot_bytes(), 1000);
    struct ms_source *source = ms_host_snapshot_source(snapshot);
    CHECK(ms_source_snapshot(source) == snapshot);
    CHECK(ms_source_file(source) == NULL && ms_source_name(source) == NULL);
    CHECK_EQ(live, 1);
    ms_host_snapshot_drop(snapshot);
    CHECK_EQ(live, 0);
    CHECK_EQ(snapshot_bytes(), 0);
}

/* Whatever limit they have of their own. */
MS_TEST(snapshots_are_taken_where_host_memory_has_room)
{
    enum { MIB = 1 << 20 };
    static const enum ms_snapshot_limit limits[] = {MS_SNAPSHOT_LIMITED, MS_SNAPSHOT_ANY};
    for (int i = 0; i < 2; i++) {
        host.bytes = 8 * MIB;
        CHECK(ms_host_snapshot_create(7 * MIB + 1, limits[i]) == NULL);
        CHECK_EQ(snapshot_bytes(), 0);
    }
    struct ms_host_snapshot *snapshot = ms_host_snapshot_create(7 * MIB, MS_SNAPSHOT_LIMITED);
    CHECK(snapshot != NULL);
    ms_host_snapshot_drop(snapshot);
}

/* Not for each of them, but again when others may have taken what was there. */
MS_TEST(snapshots_ask_for_room_by_16_mib)
{
    enum { MIB = 1 << 20 };
    struct ms_host_snapshot *small[40], *large;
    for (int i = 0; i < 40; i++) {
        small[i] = ms_host_snapshot_create(MIB, MS_SNAPSHOT_LIMITED);
        CHECK_EQ(asked, 1 + i / 17);
    }
    host.bytes = MIB;
    CHECK(ms_host_snapshot_create(20 * MIB, MS_SNAPSHOT_LIMITED) == NULL);
    for (int i = 0; i < 40; i++)
        ms_host_snapshot_drop(small[i]);
    asked = 0;
    host.bytes = 64 * MIB;
    large = ms_host_snapshot_create(17 * MIB, MS_SNAPSHOT_LIMITED);
    CHECK(large != NULL && asked == 1);
    ms_host_snapshot_drop(large);
}

MS_TEST(snapshots_have_so_many_bytes_at_most)
{
    ms_host_snapshot_set_limit(100);
    struct ms_host_snapshot *whole = ms_host_snapshot_create(100, MS_SNAPSHOT_LIMITED);
    CHECK(whole != NULL);
    CHECK(ms_host_snapshot_create(1, MS_SNAPSHOT_LIMITED) == NULL);
    CHECK_EQ(snapshot_bytes(), 100);
    struct ms_host_snapshot *one = ms_host_snapshot_create(1, MS_SNAPSHOT_ANY);
    CHECK(one != NULL);
    CHECK_EQ(snapshot_bytes(), 101);
    ms_host_snapshot_drop(whole);
    CHECK(ms_host_snapshot_create(100, MS_SNAPSHOT_LIMITED) == NULL);
    ms_host_snapshot_drop(one);
    ms_host_snapshot_drop(ms_host_snapshot_create(100, MS_SNAPSHOT_LIMITED));
    CHECK_EQ(snapshot_bytes(), 0);
    CHECK_EQ(live, 0);
}

STORY_ALONE(a_snapshot_that_gets_no_memory_counts_for_nothing, ms_host_snapshot_set_limit(100),
            may_make = 0, IS(ms_host_snapshot_create(100, MS_SNAPSHOT_LIMITED) == NULL),
            IS(ms_host_snapshot_create(100, MS_SNAPSHOT_ANY) == NULL), EQUALS(snapshot_bytes(), 0),
            may_make = 1, ms_host_snapshot_drop(ms_host_snapshot_create(100, MS_SNAPSHOT_LIMITED)),
            EQUALS(live, 0))

/* The last advice. */
static struct {
    uintptr_t begin, bytes;
    int advice, count;
} advised;

int __wrap_madvise(void *address, size_t bytes, int advice)
{
    if (advice == MADV_HUGEPAGE) {
        advised.begin = (uintptr_t)address;
        advised.bytes = bytes;
        advised.count++;
    }
    return __real_madvise(address, bytes, advice);
}

MS_TEST(a_large_snapshot_has_huge_pages_where_they_are_whole)
{
    enum { HUGE = 2 << 20 };
    struct ms_host_snapshot *small = ms_host_snapshot_create(HUGE / 2, MS_SNAPSHOT_ANY);
    const uintptr_t begin = (uintptr_t)ms_host_snapshot_data(small), end = begin + HUGE / 2;
    CHECK_EQ(advised.count, 0 + (begin % HUGE == 0 && end % HUGE == 0));
    ms_host_snapshot_drop(small);
    struct ms_host_snapshot *large = ms_host_snapshot_create(4 * HUGE + 5, MS_SNAPSHOT_ANY);
    const uintptr_t first = (uintptr_t)ms_host_snapshot_data(large), last = first + 4 * HUGE + 5;
    memset(ms_host_snapshot_data(large), 1, 4 * HUGE + 5);
    CHECK(advised.count > 0);
    CHECK_EQ(advised.begin % HUGE, 0);
    CHECK_EQ(advised.bytes % HUGE, 0);
    CHECK(first <= advised.begin && advised.begin < first + HUGE);
    CHECK(advised.begin + advised.bytes <= last && last - HUGE < advised.begin + advised.bytes);
    ms_host_snapshot_drop(large);
}
