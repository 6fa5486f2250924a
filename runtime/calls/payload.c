/* SPDX-License-Identifier: Apache-2.0 */

#include "runtime/calls/payload.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/base/thread.h"
#include "runtime/calls/host_memory.h"
#include "runtime/calls/pointer.h"
#include "runtime/calls/pointer_scan.h"
#include "runtime/calls/word_scan.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/access.h"
#include "runtime/memory/far_address.h"
#include "runtime/order/order.h"
#include "runtime/state/counters.h"

/* `bounds`: the ranges of addresses that mean something (ms_pointer_scan_bounds). */
static bool is_bounded(const struct ms_range *bounds, uint64_t word)
{
    return ms_word_is_in(&bounds[MS_NEAR], word) || ms_word_is_in(&bounds[MS_FAR], word) ||
           ms_word_is_in(&bounds[MS_WORD_HOST], word);
}

/* --- addresses that two calls write in parts */

static uint64_t load(const unsigned char *bytes, size_t count)
{
    uint64_t word = 0;
    memcpy(&word, bytes, count);
    return word;
}

/* True if the value may be an address in this range without its lower `shift` bits. */
static bool is_upper_part(const struct ms_range *range, uint64_t value, unsigned shift)
{
    return range->end > range->begin && value >= range->begin >> shift &&
           value <= (range->end - 1) >> shift;
}

/* True if an allocation lies at an address with this upper part: the range may have wide gaps. */
static bool has_upper_part(uint64_t value, unsigned shift)
{
    struct ms_allocation_facts facts;
    return ms_space_first_behind(value << shift, &facts) && facts.address >> shift <= value;
}

/* True if these bytes may be the last three to seven of an address whose beginning an earlier call
 * wrote before them. Fewer bytes say less: three bytes, and the four of a near address, which are a
 * small number, count only if nothing else is written. */
static bool may_end_address(const struct ms_range *bounds, const unsigned char *bytes, size_t count)
{
    const struct ms_range *far = &bounds[MS_FAR];
    for (size_t at = 0; at < 4 && at + 4 <= count; at++) {
        if (is_upper_part(far, load(bytes + at, 4), 32))
            return true;
    }
    return (count == 4 && is_upper_part(&bounds[MS_NEAR], load(bytes, 4), 32)) ||
           (count == 3 && is_upper_part(far, load(bytes, 3), 40));
}

static bool ends_address(const struct ms_range *bounds, const unsigned char *bytes, size_t count)
{
    if (!may_end_address(bounds, bytes, count))
        return false;
    for (size_t at = 0; at < 4 && at + 4 <= count; at++) {
        if (has_upper_part(load(bytes + at, 4), 32))
            return true;
    }
    return count == 3 && has_upper_part(load(bytes, 3), 40);
}

/* --- bytes that kernels can read now */

static CUresult expose(uint64_t word)
{
    struct ms_allocation_facts facts;
    if (ms_space_find_pointed(word, &facts))
        return ms_access(facts.address, facts.bytes, MS_NEED_REACH);
    if (ms_host_memory_holds(word))
        ms_host_memory_add_reach(MS_REASON_UNBOUNDED);
    return CUDA_SUCCESS;
}

static CUresult expose_words(const struct ms_range *bounds, const void *bytes, size_t count)
{
    struct ms_words words;
    size_t at;
    uint64_t word;
    CUresult result = CUDA_SUCCESS;
    ms_word_scan_begin(&words, bytes, count, bounds);
    while (result == CUDA_SUCCESS && ms_defers_any() && ms_word_scan_next(&words, &at, &word)) {
        if (ms_address_is_far(word) || at % 4 == 0)
            result = expose(word);
    }
    return result;
}

/* Exposes an address that may begin in the last six or seven of these bytes; its other bytes are
 * zero. */
static CUresult expose_beginning(const unsigned char *bytes, size_t count)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t first = 6; first < 8 && first <= count && result == CUDA_SUCCESS; first++) {
        const uint64_t word = load(bytes + count - first, first);
        if (ms_address_is_far(word))
            result = expose(word);
    }
    return result;
}

bool ms_payload_is_clean(const void *bytes, size_t count)
{
    struct ms_range bounds[MS_WORD_WINDOWS];
    const unsigned char *end = (const unsigned char *)bytes + count;
    struct ms_words words;
    size_t at;
    uint64_t word;
    ms_pointer_scan_bounds(bounds);
    if (may_end_address(bounds, bytes, count))
        return false;
    for (size_t first = 6; first < 8 && first <= count; first++) {
        if (is_bounded(bounds, load(end - first, first)))
            return false;
    }
    ms_word_scan_begin(&words, bytes, count, bounds);
    return !ms_word_scan_next(&words, &at, &word);
}

static CUresult expose_all(void)
{
    ms_counter_add(MS_COUNT_PAYLOAD_SEALS, 1);
    return ms_access_all(MS_REASON_SEALED);
}

static CUresult expose_bytes(const void *bytes, size_t count)
{
    struct ms_range bounds[MS_WORD_WINDOWS];
    ms_pointer_scan_bounds(bounds);
    if (ends_address(bounds, bytes, count))
        return expose_all();
    const CUresult result = expose_words(bounds, bytes, count);
    return result == CUDA_SUCCESS ? expose_beginning(bytes, count) : result;
}

static CUresult expose_rows(const struct ms_rows *rows)
{
    const unsigned char *begin = (const unsigned char *)(uintptr_t)rows->begin;
    CUresult result = CUDA_SUCCESS;
    for (size_t z = 0; z < rows->depth; z++) {
        for (size_t y = 0; y < rows->height && result == CUDA_SUCCESS; y++)
            result = expose_bytes(begin + z * rows->slice + y * rows->pitch, rows->width);
    }
    return result;
}

CUresult ms_payload_copy(void *to, const void *bytes, size_t count)
{
    enum { BLOCK = 32 << 10, OVERLAP = 8 }; /* words may begin in one block and end in the next */
    struct ms_range bounds[MS_WORD_WINDOWS];
    const unsigned char *from = bytes;
    unsigned char *copy = to;
    if (to == NULL)
        return expose_bytes(bytes, count);
    ms_pointer_scan_bounds(bounds);
    CUresult result = ends_address(bounds, bytes, count) ? expose_all() : CUDA_SUCCESS;
    for (size_t begin = 0; begin < count && result == CUDA_SUCCESS; begin += BLOCK) {
        const size_t now = count - begin < BLOCK ? count - begin : BLOCK;
        const size_t before = begin > 0 ? OVERLAP : 0;
        memcpy(copy + begin, from + begin, now);
        result = expose_words(bounds, copy + begin - before, now + before);
    }
    return result == CUDA_SUCCESS ? expose_beginning(bytes, count) : result;
}

static CUresult expose_pattern(uint32_t pattern)
{
    struct ms_range bounds[MS_WORD_WINDOWS];
    ms_pointer_scan_bounds(bounds);
    const struct ms_range *far = &bounds[MS_FAR];
    const uint32_t pair = pattern & 0xffff;
    const bool may_be =
        is_upper_part(far, pattern, 32) || is_upper_part(&bounds[MS_NEAR], pattern, 32);
    /* A pattern of two bytes may be the nonzero part of an address's upper half. */
    const bool may_be_pair = pattern >> 16 == pair && is_upper_part(far, pair, 32);
    if ((may_be && has_upper_part(pattern, 32)) || (may_be_pair && has_upper_part(pair, 32)))
        return expose_all();
    return expose((uint64_t)pattern << 32 | pattern);
}

/* --- bytes that may still change */

static bool is_clean(const struct ms_rows *rows)
{
    const unsigned char *begin = (const unsigned char *)(uintptr_t)rows->begin;
    for (size_t z = 0; z < rows->depth; z++) {
        for (size_t y = 0; y < rows->height; y++) {
            if (!ms_payload_is_clean(begin + z * rows->slice + y * rows->pitch, rows->width))
                return false;
        }
    }
    return true;
}

/* The stream, and with it its context, waits for this thread: so it must not wait for them. */
static void *expose_late(void *argument)
{
    const struct ms_rows *rows = argument;
    ms_order_forbid_waits();
    const CUresult result = expose_rows(rows);
    if (result != CUDA_SUCCESS)
        ms_fatal("a copy of rows of %zu bytes is queued, they hold addresses of deferred memory, "
                 "and that cannot be brought into memory now: CUDA error %d",
                 rows->width, (int)result);
    return NULL;
}

static void expose_in_thread(struct ms_rows *rows)
{
    enum { PATIENCE_S = 10 };
    pthread_t thread;
    struct timespec until;
    const int error = ms_thread_create(&thread, expose_late, rows);
    if (error != 0)
        ms_fatal("a copy is queued that holds addresses of deferred memory, and no thread can be "
                 "started to bring that into memory: error %d",
                 error);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_S;
    if (pthread_timedjoin_np(thread, NULL, &until) == 0)
        return;
    ms_log(MS_WARN,
           "a stream waits for more than %d s until memory is there to which a copy of rows of "
           "%zu bytes points",
           PATIENCE_S, rows->width);
    pthread_join(thread, NULL);
}

/* The host function in front of a late payload. It must not call the driver, so a thread does. The
 * payload's memory still exists, because freeing it waits for the stream. */
static void CUDA_CB look(void *argument)
{
    struct ms_rows *rows = argument;
    if (ms_defers_any() && !is_clean(rows))
        expose_in_thread(rows);
    atomic_fetch_sub(&ms_hot.late_payloads, 1);
    ms_heap_free(rows);
}

/* Queues the host function, right before the copy is queued. False if the driver takes none there,
 * or out of memory. */
static bool look_later(const struct ms_rows *rows, CUstream stream)
{
    struct ms_rows *kept = ms_heap_alloc(sizeof(*kept));
    if (kept == NULL)
        return false;
    *kept = *rows;
    atomic_fetch_add(&ms_hot.late_payloads, 1);
    if (ms_driver.launch_host_func(stream, look, kept) != CUDA_SUCCESS) {
        atomic_fetch_sub(&ms_hot.late_payloads, 1);
        ms_heap_free(kept);
        return false;
    }
    ms_counter_add(MS_COUNT_LATE_PAYLOADS, 1);
    return true;
}

/* --- calls */

CUresult ms_payload_expose_unowned(CUdeviceptr source)
{
    const bool is_plain = ms_pointer_is_device(source) && !ms_pointer_is(source, MS_MANAGED) &&
                          !ms_host_memory_holds(source);
    return is_plain ? CUDA_SUCCESS : expose_all();
}

/* Exposes host memory that is copied in the order of the stream. */
static CUresult expose_host(const struct ms_rows *rows, CUstream stream)
{
    if (rows->begin == 0 || rows->width == 0)
        return CUDA_SUCCESS;
    /* Memory that is unreadable here may hold anything, and a captured copy may run at any time. */
    if (!ms_pointer_is_host(rows->begin) || ms_is_capturing())
        return expose_all();
    /* The driver has taken the bytes of pageable memory when the call returns. */
    if (!ms_host_memory_holds(rows->begin) || !ms_order_host_may_change(stream))
        return expose_rows(rows);
    return look_later(rows, stream) ? CUDA_SUCCESS : expose_all();
}

CUresult ms_payload_expose(const struct ms_movement *movement)
{
    const struct ms_side *from = &movement->from;
    const CUdeviceptr begin = from->begin;
    if (ms_movement_is_empty(movement))
        return CUDA_SUCCESS;
    if (movement->element != 0)
        return expose_pattern(ms_movement_pattern(movement));
    if (from->type == 0 || from->type == CU_MEMORYTYPE_ARRAY || begin == 0 ||
        ms_pointer_is_owned(begin))
        return CUDA_SUCCESS;
    if (ms_side_is_device(*from) &&
        (!ms_pointer_is_host(begin) ||
         (from->type == CU_MEMORYTYPE_DEVICE && !ms_pointer_is(begin, MS_PINNED))))
        return ms_payload_expose_unowned(begin);
    const struct ms_rows rows = ms_movement_rows(movement, from);
    return expose_host(&rows, movement->stream);
}
