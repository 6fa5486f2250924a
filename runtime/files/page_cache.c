/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/page_cache.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef SYS_cachestat
#define SYS_cachestat 451 /* since Linux 6.5; the same number everywhere */
#endif

int64_t ms_page_cache_count(int descriptor, uint64_t offset, uint64_t bytes)
{
    struct {
        uint64_t offset, bytes;
    } range = {offset, bytes};
    struct {
        uint64_t cached, dirty, writeback, evicted, recently_evicted;
    } pages = {0};
    if (syscall(SYS_cachestat, (unsigned)descriptor, &range, &pages, 0U) != 0)
        return -1;
    return (int64_t)pages.cached;
}

/* False: not cached. True also if the kernel hides this, for a read-only file of another user. */
static bool is_perhaps_cached(int descriptor, uint64_t offset)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    unsigned char is_there = 1;
    const long mapped =
        syscall(SYS_mmap, NULL, 1UL, PROT_READ, MAP_SHARED, descriptor, offset & ~(page - 1));
    if (mapped == -1)
        return true;
    if (mincore((void *)mapped, 1, &is_there) != 0)
        is_there = 1;
    munmap((void *)mapped, 1);
    return (is_there & 1) != 0;
}

/* Reads without waiting. On a miss the kernel begins to read this page and some after it. */
static bool can_be_read_at_once(int descriptor, uint64_t offset)
{
    char byte;
    const struct iovec vector = {&byte, 1};
    return preadv2(descriptor, &vector, 1, (off_t)offset, RWF_NOWAIT) >= 0 || errno != EAGAIN;
}

/* True also if this is unknown. */
static bool is_byte_cached(int descriptor, uint64_t offset)
{
    const int64_t pages = ms_page_cache_count(descriptor, offset, 1);
    if (pages >= 0)
        return pages > 0;
    return is_perhaps_cached(descriptor, offset) && can_be_read_at_once(descriptor, offset);
}

bool ms_page_cache_has_ends(int descriptor, uint64_t begin, uint64_t end)
{
    return is_byte_cached(descriptor, begin) && is_byte_cached(descriptor, end - 1);
}

enum { STEP_BYTES = 64 << 10 };

bool ms_page_cache_has(int descriptor, uint64_t begin, uint64_t end)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    const int64_t pages = ms_page_cache_count(descriptor, begin, end - begin);
    if (pages >= 0)
        return (uint64_t)pages == (end - 1) / page - begin / page + 1;
    bool is_cached = true;
    for (uint64_t next; begin < end && is_cached; begin = next) {
        next = end - begin < STEP_BYTES ? end : begin + STEP_BYTES;
        is_cached = ms_page_cache_has_ends(descriptor, begin, next);
    }
    return is_cached;
}
