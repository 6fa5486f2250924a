/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/host_memory.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include "runtime/base/heap.h"
#include "runtime/order/examining.h"
#include "tools/simcuda/harness/test.h"
#include "tests/unit/between.h"

enum { BEGIN = 1000, END = 2000 };

/* --- what it calls */

static int may_grow = 1000000;
WRAPS(ms_heap_realloc, ms_examining_expect, pthread_mutex_lock, process_vm_readv);
void *__wrap_ms_heap_realloc(void *memory, size_t bytes)
{
    return may_grow-- > 0 ? __real_ms_heap_realloc(memory, bytes) : NULL;
}

static int expected;
void __wrap_ms_examining_expect(void)
{
    expected++;
}

static int locks;
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    locks++;
    return __real_pthread_mutex_lock(mutex);
}

static int refusal; /* errno, or 0: the system allows it */
ssize_t __wrap_process_vm_readv(pid_t process, const struct iovec *to, unsigned long to_count,
                                const struct iovec *from, unsigned long from_count,
                                unsigned long flags)
{
    CHECK(process == getpid() && to->iov_len == 1 && from->iov_len == 1 && flags == 0);
    if (refusal == 0)
        return __real_process_vm_readv(process, to, to_count, from, from_count, flags);
    errno = refusal;
    return -1;
}

/* --- what is tracked */

static void check_bounds(uint64_t wanted_begin, uint64_t wanted_end)
{
    uint64_t begin, end;
    ms_host_memory_bounds(&begin, &end);
    CHECK_EQ(begin, wanted_begin);
    CHECK_EQ(end, wanted_end);
}

static bool has_ends(uint64_t begin, uint64_t end)
{
    return !ms_host_memory_holds(begin - 1) && ms_host_memory_holds(begin) &&
           ms_host_memory_holds(end - 1) && !ms_host_memory_holds(end);
}

MS_TEST(a_range_that_is_added_is_tracked_up_to_its_end)
{
    CHECK(!ms_host_memory_holds(0) && !ms_host_memory_holds(BEGIN));
    ms_host_memory_add(BEGIN, END - BEGIN);
    CHECK_EQ(expected, 1); /* work may read what the host writes later */
    CHECK(has_ends(BEGIN, END));
    check_bounds(BEGIN, END);
    ms_host_memory_add(3000, 1);
    ms_host_memory_add(500, 100);
    CHECK(has_ends(3000, 3001) && has_ends(500, 600) && has_ends(BEGIN, END));
    check_bounds(500, 3001);
}

MS_TEST(a_range_added_twice_is_forgotten_at_once)
{
    ms_host_memory_add(BEGIN, END - BEGIN);
    ms_host_memory_add(BEGIN, END - BEGIN);
    ms_host_memory_add(BEGIN, 10);
    ms_host_memory_add(BEGIN, END - BEGIN + 10);
    ms_host_memory_add_alias(BEGIN, BEGIN - 10, END - BEGIN + 20);
    ms_host_memory_add(3000, 10);
    ms_host_memory_forget(BEGIN + 1); /* of nothing */
    CHECK(has_ends(BEGIN - 10, END + 10));
    ms_host_memory_forget(BEGIN);
    CHECK(!ms_host_memory_holds(BEGIN) && has_ends(3000, 3010));
    check_bounds(3000, 3010);
    ms_host_memory_forget(3000);
    check_bounds(UINT64_MAX, 0);
}

/* No more room is taken: the seventeenth would need some. */
MS_TEST(a_range_added_again_takes_no_memory)
{
    for (uint64_t i = 0; i < 16; i++)
        ms_host_memory_add(BEGIN + 10 * i, 5);
    may_grow = 0;
    for (uint64_t i = 0; i < 16; i++)
        ms_host_memory_add(BEGIN + 10 * i, 5);
    CHECK(has_ends(BEGIN, BEGIN + 5));
    ms_host_memory_add_alias(BEGIN, BEGIN, 6); /* another end */
    CHECK(ms_host_memory_holds(0));
}

MS_TEST(an_alias_is_forgotten_by_the_first_address)
{
    ms_host_memory_add_alias(BEGIN, 5000, 100);
    CHECK(has_ends(5000, 5100) && !ms_host_memory_holds(BEGIN));
    ms_host_memory_add(BEGIN, 100);
    ms_host_memory_add_alias(3000, BEGIN, 100); /* the same, for another one */
    ms_host_memory_forget(5000);
    CHECK(has_ends(5000, 5100));
    ms_host_memory_forget(BEGIN);
    CHECK(!ms_host_memory_holds(5000) && has_ends(BEGIN, BEGIN + 100));
}

MS_TEST(all_host_memory_is_tracked_after_a_range_was_lost)
{
    may_grow = 0;
    ms_host_memory_add(BEGIN, 1);
    CHECK(ms_host_memory_holds(0) && ms_host_memory_holds(UINT64_MAX));
    check_bounds(0, UINT64_MAX);
    const struct ms_range gap = ms_host_memory_gap(5);
    CHECK(gap.begin == gap.end);
}

/* --- cutting */

MS_TEST(a_cut_leaves_the_range_around_it)
{
    ms_host_memory_add(BEGIN, END - BEGIN);
    ms_host_memory_cut(0, BEGIN);
    ms_host_memory_cut(END, 10);
    CHECK(has_ends(BEGIN, END));
    ms_host_memory_cut(0, BEGIN + 1);
    CHECK(has_ends(BEGIN + 1, END));
    ms_host_memory_cut(END - 1, 100);
    CHECK(has_ends(BEGIN + 1, END - 1));
    ms_host_memory_cut(1400, 200);
    CHECK(has_ends(BEGIN + 1, 1400) && has_ends(1600, END - 1));
    check_bounds(BEGIN + 1, END - 1);
    ms_host_memory_forget(1600); /* what lies behind is a range of its own */
    CHECK(has_ends(BEGIN + 1, 1400) && !ms_host_memory_holds(1600));
    ms_host_memory_forget(BEGIN + 1);
    check_bounds(UINT64_MAX, 0);
}

MS_TEST(a_cut_through_many_leaves_the_others)
{
    for (uint64_t i = 0; i < 10; i++)
        ms_host_memory_add(BEGIN + 100 * i, 50);
    ms_host_memory_cut(BEGIN + 110, 690);
    CHECK(has_ends(BEGIN, BEGIN + 50) && has_ends(BEGIN + 100, BEGIN + 110));
    for (uint64_t i = 2; i < 8; i++)
        CHECK(!ms_host_memory_holds(BEGIN + 100 * i) &&
              !ms_host_memory_holds(BEGIN + 100 * i + 49));
    CHECK(has_ends(BEGIN + 800, BEGIN + 850) && has_ends(BEGIN + 900, BEGIN + 950));
    ms_host_memory_cut(BEGIN + 800, 50); /* exactly one */
    CHECK(!ms_host_memory_holds(BEGIN + 800) && has_ends(BEGIN + 900, BEGIN + 950));
    check_bounds(BEGIN, BEGIN + 950);
    ms_host_memory_cut(BEGIN, 50);
    ms_host_memory_cut(BEGIN + 900, 50);
    check_bounds(BEGIN + 100, BEGIN + 110);
}

/* Such calls are made for each piece of memory that is freed. */
MS_TEST(a_forget_or_cut_outside_of_all_ranges_takes_no_lock)
{
    ms_host_memory_forget(BEGIN);
    ms_host_memory_cut(0, UINT64_MAX);
    CHECK_EQ(locks, 0);
    ms_host_memory_add(BEGIN, END - BEGIN);
    locks = 0;
    ms_host_memory_forget(BEGIN - 1);
    ms_host_memory_forget(END);
    ms_host_memory_cut(BEGIN - 10, 10);
    ms_host_memory_cut(END, 10);
    CHECK_EQ(locks, 0);
    ms_host_memory_forget(END - 1); /* of nothing */
    ms_host_memory_cut(BEGIN, 1);
    CHECK_EQ(locks, 2);
}

STORY_ALONE(a_cut_beside_an_alias_leaves_it_with_its_first_address, ms_host_memory_add(BEGIN, 100),
            ms_host_memory_add_alias(BEGIN, 5000, 100), ms_host_memory_cut(4990, 10),
            ms_host_memory_cut(5100, 10), IS(has_ends(5000, 5100)), ms_host_memory_forget(BEGIN),
            IS(!ms_host_memory_holds(5000) && !ms_host_memory_holds(5099)))

/* --- gaps */

static void check_gap(uint64_t address, uint64_t begin, uint64_t end)
{
    const struct ms_range gap = ms_host_memory_gap(address);
    CHECK_EQ(gap.begin, begin);
    CHECK_EQ(gap.end, end);
}

static void check_no_gap(uint64_t address)
{
    const struct ms_range gap = ms_host_memory_gap(address);
    CHECK(gap.begin >= gap.end);
}

STORY_ALONE(a_gap_reaches_to_what_is_next_on_either_side, check_gap(5, 0, UINT64_MAX),
            ms_host_memory_add(BEGIN, END - BEGIN), ms_host_memory_add(5000, 100),
            ms_host_memory_add(200, 100), check_gap(0, 0, 200), check_gap(300, 300, BEGIN),
            check_gap(BEGIN - 1, 300, BEGIN), check_no_gap(BEGIN), check_no_gap(END - 1),
            check_gap(END, END, 5000), check_gap(UINT64_MAX - 1, 5100, UINT64_MAX))

/* --- reach */

MS_TEST(an_unbounded_reach_is_the_stronger_reason)
{
    CHECK_EQ(ms_host_memory_reach(), MS_REASON_CALL);
    ms_host_memory_add_reach(MS_REASON_GLOBALS);
    CHECK_EQ(expected, 1);
    CHECK_EQ(ms_host_memory_reach(), MS_REASON_GLOBALS);
    ms_host_memory_add_reach(MS_REASON_UNBOUNDED);
    CHECK_EQ(ms_host_memory_reach(), MS_REASON_UNBOUNDED);
    ms_host_memory_add_reach(MS_REASON_GLOBALS);
    CHECK_EQ(ms_host_memory_reach(), MS_REASON_UNBOUNDED);
}

/* --- what can be read */

static bool is_readable(const void *address)
{
    errno = 77;
    const bool is_readable = ms_host_memory_is_readable((uintptr_t)address);
    CHECK_EQ(errno, 77);
    return is_readable;
}

/* Three pages: with access, without, and none. */
static size_t page;

static char *map_pages(void)
{
    page = (size_t)sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED);
    CHECK_EQ(mprotect(pages + page, page, PROT_NONE), 0);
    CHECK_EQ(munmap(pages + 2 * page, page), 0);
    return pages;
}

MS_TEST(memory_mapped_with_access_is_readable)
{
    const char *pages = map_pages();
    CHECK(is_readable(pages) && is_readable(pages + page - 1));
    CHECK(!is_readable(pages + page) && !is_readable(pages + 2 * page) && !is_readable(NULL));
    errno = EFAULT; /* of another call */
    CHECK(ms_host_memory_is_readable((uintptr_t)pages));
    refusal = EFAULT;
    CHECK(!is_readable(pages));
}

MS_TEST(every_mapping_is_readable_where_the_call_is_refused)
{
    if (ms_test_is_watched())
        ms_test_skip("an emulator does not tell which pages there are");
    const char *pages = map_pages();
    refusal = EPERM;
    CHECK(is_readable(pages + 5) && is_readable(pages + page) && is_readable(pages + page - 1));
    CHECK(!is_readable(pages + 2 * page) && !is_readable(pages + 3 * page - 1));
}
