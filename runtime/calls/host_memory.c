/* SPDX-License-Identifier: Apache-2.0 */

#include "runtime/calls/host_memory.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "runtime/base/array.h"
#include "runtime/base/lock.h"
#include "runtime/order/examining.h"

struct range {
    uint64_t begin, end;
    uint64_t owner; /* `address` of ms_host_memory_add_alias */
};

static struct {
    struct ms_lock lock;  /* guards ranges, count, capacity; nothing is called while it is held */
    struct range *ranges; /* in no order */
    size_t count, capacity;
    bool all;                    /* out of memory: a range is missing from the list */
    _Atomic uint64_t begin, end; /* around all ranges */
    _Atomic uint32_t reach;      /* enum ms_reason */
} host = {.lock = MS_LOCK_INIT(host_memory), .reach = MS_REASON_CALL};

MS_HOLDS(host.lock) static void set_bounds_locked(void)
{
    uint64_t begin = host.all ? 0 : UINT64_MAX;
    uint64_t end = host.all ? UINT64_MAX : 0;
    for (size_t i = 0; i < host.count; i++) {
        if (host.ranges[i].begin < begin)
            begin = host.ranges[i].begin;
        if (host.ranges[i].end > end)
            end = host.ranges[i].end;
    }
    atomic_store(&host.begin, begin);
    atomic_store(&host.end, end);
}

MS_HOLDS(host.lock) static void add_locked(struct range range)
{
    for (size_t i = 0; i < host.count; i++) {
        const struct range *other = &host.ranges[i];
        if (other->begin == range.begin && other->end == range.end && other->owner == range.owner)
            return;
    }
    if (MS_ARRAY_GROW(host.ranges, host.count, host.capacity))
        host.ranges[host.count++] = range;
    else
        host.all = true;
}

void ms_host_memory_add_alias(uint64_t address, uint64_t alias, size_t bytes)
{
    ms_examining_expect();
    ms_lock_take(&host.lock);
    add_locked((struct range){.begin = alias, .end = alias + bytes, .owner = address});
    set_bounds_locked();
    ms_lock_drop(&host.lock);
}

static bool is_out_of_bounds(uint64_t begin, uint64_t end)
{
    return end <= atomic_load(&host.begin) || begin >= atomic_load(&host.end);
}

void ms_host_memory_forget(uint64_t address)
{
    if (is_out_of_bounds(address, address + 1))
        return;
    ms_lock_take(&host.lock);
    for (size_t i = 0; i < host.count; i++) {
        if (host.ranges[i].owner == address)
            host.ranges[i--] = host.ranges[--host.count];
    }
    set_bounds_locked();
    ms_lock_drop(&host.lock);
}

void ms_host_memory_cut(uint64_t address, size_t bytes)
{
    const uint64_t end = address + bytes;
    if (is_out_of_bounds(address, end))
        return;
    ms_lock_take(&host.lock);
    for (size_t i = host.count; i-- > 0;) {
        const struct range range = host.ranges[i];
        if (range.end <= address || range.begin >= end)
            continue;
        host.ranges[i] = host.ranges[--host.count];
        if (range.begin < address)
            add_locked((struct range){range.begin, address, range.owner});
        if (range.end > end)
            add_locked((struct range){end, range.end, end});
    }
    set_bounds_locked();
    ms_lock_drop(&host.lock);
}

void ms_host_memory_add_reach(enum ms_reason why)
{
    uint32_t none = MS_REASON_CALL;
    ms_examining_expect();
    if (!atomic_compare_exchange_strong(&host.reach, &none, why) && why == MS_REASON_UNBOUNDED)
        atomic_store(&host.reach, why);
}

enum ms_reason ms_host_memory_reach(void)
{
    return (enum ms_reason)atomic_load_explicit(&host.reach, memory_order_relaxed);
}

bool ms_host_memory_holds(uint64_t address)
{
    ms_lock_take(&host.lock);
    bool held = host.all;
    for (size_t i = 0; i < host.count && !held; i++)
        held = address >= host.ranges[i].begin && address < host.ranges[i].end;
    ms_lock_drop(&host.lock);
    return held;
}

struct ms_range ms_host_memory_gap(uint64_t address)
{
    struct ms_range gap = {0, UINT64_MAX};
    ms_lock_take(&host.lock);
    for (size_t i = 0; i < host.count; i++) {
        const struct range *range = &host.ranges[i];
        if (range->end <= address && range->end > gap.begin)
            gap.begin = range->end;
        if (range->end > address && range->begin < gap.end)
            gap.end = range->begin;
    }
    if (host.all || gap.end <= address)
        gap.end = gap.begin;
    ms_lock_drop(&host.lock);
    return gap;
}

/* True if the page is mapped: if the system refuses the read, every mapping counts as readable. */
static bool is_mapped(uint64_t address)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    unsigned char state;
    return mincore((void *)(uintptr_t)(address & ~(page - 1)), 1, &state) == 0;
}

bool ms_host_memory_is_readable(uint64_t address)
{
    const int error = errno;
    unsigned char byte;
    const struct iovec to = {&byte, 1}, from = {(void *)(uintptr_t)address, 1};
    const bool is_read = process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1;
    const bool is_readable = is_read || (errno != EFAULT && is_mapped(address));
    errno = error;
    return is_readable;
}

void ms_host_memory_bounds(uint64_t *begin_out, uint64_t *end_out)
{
    *begin_out = atomic_load_explicit(&host.begin, memory_order_relaxed);
    *end_out = atomic_load_explicit(&host.end, memory_order_relaxed);
}
