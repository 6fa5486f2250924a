/* SPDX-License-Identifier: Apache-2.0 */

#include "runtime/calls/pointer_scan.h"

#include <stdatomic.h>
#include <string.h>

#include "runtime/calls/host_memory.h"
#include "runtime/calls/word_scan.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/access.h"
#include "runtime/memory/far_address.h"
#include "runtime/state/counters.h"

static _Atomic bool unbounded;

/* Only words in these ranges mean anything: addresses of blocks, and of the host's memory. */
enum { HOST = MS_BOUNDS };
struct bounds {
    struct ms_range ranges[MS_WORD_WINDOWS];
};
_Static_assert(HOST + 1 == MS_WORD_WINDOWS, "a window for each");

static struct bounds get_bounds(void)
{
    struct bounds bounds = {0};
    struct ms_range *host = &bounds.ranges[HOST];
    ms_space_bounds(bounds.ranges);
    ms_host_memory_bounds(&host->begin, &host->end);
    return bounds;
}

static bool is_in(const struct ms_range *range, uint64_t word)
{
    return word >= range->begin && word < range->end;
}

static bool is_bounded(const struct bounds *bounds, uint64_t word)
{
    return is_in(&bounds->ranges[MS_NEAR], word) || is_in(&bounds->ranges[MS_FAR], word) ||
           is_in(&bounds->ranges[HOST], word);
}

bool ms_pointer_scan_is_possible(const struct ms_arguments *arguments, size_t at, uint64_t word)
{
    const struct ms_range *numbers = &arguments->numbers;
    if (at < numbers->end && at + sizeof(word) > numbers->begin)
        return false;
    return ms_address_is_far(word) || ms_parameters_has_word(arguments->layout, at);
}

/* Words that may be pointers, looked up together, under one lock. What means nothing then means
 * nothing for the rest of the scan: the parameters were there before. */
struct batch {
    struct ms_pointed all[16];
    size_t count;
};
enum { BATCH = sizeof(((struct batch *)0)->all) / sizeof(struct ms_pointed) };

static bool is_known(const struct ms_pointer_scan *reach, const struct ms_allocation_facts *block)
{
    size_t at = 0;
    while (at < reach->count && (reach->hits[at].block.address != block->address ||
                                 reach->hits[at].block.bytes != block->bytes))
        at++;
    return at < reach->count;
}

/* No rule is about so many pointers that a block which is known has to be there again. */
static void add_hits(const struct ms_pointed *hits, size_t count, struct ms_pointer_scan *reach)
{
    enum { MANY = MS_MAX_HITS / 2 };
    for (size_t i = 0; i < count; i++) {
        if (reach->count >= MANY && is_known(reach, &hits[i].block))
            continue;
        if (reach->count < MS_MAX_HITS)
            reach->hits[reach->count++] = hits[i];
        else
            reach->everything = true;
    }
}

/* Returns addresses around the last word that mean nothing. */
static struct ms_range look_up(struct batch *batch, const struct bounds *bounds,
                               struct ms_pointer_scan *reach)
{
    const struct ms_range *host = &bounds->ranges[HOST];
    struct ms_range nothing, no_host = {0, host->end > host->begin ? 0 : UINT64_MAX};
    for (size_t i = 0; i < batch->count; i++) {
        if (!is_in(&no_host, batch->all[i].pointer))
            no_host = ms_host_memory_gap(batch->all[i].pointer);
        reach->everything |= no_host.end == no_host.begin;
    }
    const size_t found = ms_space_find_all_pointed(batch->all, batch->count, &nothing);
    add_hits(batch->all, found, reach);
    batch->count = 0;
    nothing.begin = nothing.begin > no_host.begin ? nothing.begin : no_host.begin;
    nothing.end = nothing.end < no_host.end ? nothing.end : no_host.end;
    return nothing.end > nothing.begin ? nothing : (struct ms_range){0, 0};
}

void ms_pointer_scan_find(const struct ms_arguments *arguments, struct ms_pointer_scan *reach_out)
{
    const struct bounds bounds = get_bounds();
    struct ms_words words;
    struct batch batch;
    size_t at, most = 1; /* in a batch: the first word may say that all others mean nothing */
    uint64_t word;
    batch.count = reach_out->count = 0;
    reach_out->everything = false;
    ms_word_scan_begin(&words, arguments->packed->bytes, arguments->packed->count, bounds.ranges);
    while (!reach_out->everything && ms_word_scan_next(&words, &at, &word)) {
        if (!ms_pointer_scan_is_possible(arguments, at, word))
            continue;
        batch.all[batch.count].offset = at;
        batch.all[batch.count++].pointer = word;
        if (batch.count == most) {
            words.skipped = look_up(&batch, &bounds, reach_out);
            most = 2 * most < BATCH ? 2 * most : BATCH;
        }
    }
    if (batch.count > 0)
        look_up(&batch, &bounds, reach_out);
}

static CUresult expose(uint64_t word)
{
    struct ms_allocation_facts facts;
    if (ms_space_find_pointed(word, &facts))
        return ms_access(facts.address, facts.bytes, MS_NEED_REACH);
    if (ms_host_memory_holds(word))
        atomic_store(&unbounded, true);
    return CUDA_SUCCESS;
}

static CUresult expose_words(const struct bounds *bounds, const void *bytes, size_t count)
{
    struct ms_words words;
    size_t at;
    uint64_t word;
    CUresult result = CUDA_SUCCESS;
    ms_word_scan_begin(&words, bytes, count, bounds->ranges);
    while (result == CUDA_SUCCESS && ms_defers_any() && ms_word_scan_next(&words, &at, &word)) {
        if (ms_address_is_far(word) || at % 4 == 0)
            result = expose(word);
    }
    return result;
}

/* --- addresses of which another call writes the rest */

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

/* True if there is an allocation at such an address: the range may have wide gaps. */
static bool has_upper_part(uint64_t value, unsigned shift)
{
    struct ms_allocation_facts facts;
    return ms_space_first_behind(value << shift, &facts) && facts.address >> shift <= value;
}

/*
 * Earlier writes before these bytes may be the beginning of an address whose last three to seven
 * bytes these are. Fewer bytes say less: three bytes, and the four of a near address, which are a
 * small number, count only if nothing else is written.
 */
static bool may_end_address(const struct bounds *bounds, const unsigned char *bytes, size_t count)
{
    const struct ms_range *far = &bounds->ranges[MS_FAR];
    for (size_t at = 0; at < 4 && at + 4 <= count; at++) {
        if (is_upper_part(far, load(bytes + at, 4), 32))
            return true;
    }
    return (count == 4 && is_upper_part(&bounds->ranges[MS_NEAR], load(bytes, 4), 32)) ||
           (count == 3 && is_upper_part(far, load(bytes, 3), 40));
}

static bool ends_address(const struct bounds *bounds, const unsigned char *bytes, size_t count)
{
    if (!may_end_address(bounds, bytes, count))
        return false;
    for (size_t at = 0; at < 4 && at + 4 <= count; at++) {
        if (has_upper_part(load(bytes + at, 4), 32))
            return true;
    }
    return count == 3 && has_upper_part(load(bytes, 3), 40);
}

/* These bytes may end with the first six or seven bytes of an address; the others are zero. */
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

bool ms_pointer_scan_is_clean(const void *bytes, size_t count)
{
    const struct bounds bounds = get_bounds();
    const unsigned char *end = (const unsigned char *)bytes + count;
    struct ms_words words;
    size_t at;
    uint64_t word;
    if (may_end_address(&bounds, bytes, count))
        return false;
    for (size_t first = 6; first < 8 && first <= count; first++) {
        if (is_bounded(&bounds, load(end - first, first)))
            return false;
    }
    ms_word_scan_begin(&words, bytes, count, bounds.ranges);
    return !ms_word_scan_next(&words, &at, &word);
}

CUresult ms_pointer_scan_expose_all(void)
{
    ms_counter_add(MS_COUNT_PAYLOAD_SEALS, 1);
    return ms_access_all(MS_REASON_SEALED);
}

CUresult ms_pointer_scan_expose(const void *bytes, size_t count)
{
    const struct bounds bounds = get_bounds();
    if (ends_address(&bounds, bytes, count))
        return ms_pointer_scan_expose_all();
    const CUresult result = expose_words(&bounds, bytes, count);
    return result == CUDA_SUCCESS ? expose_beginning(bytes, count) : result;
}

CUresult ms_pointer_scan_expose_rows(const struct ms_rows *rows)
{
    const unsigned char *begin = (const unsigned char *)(uintptr_t)rows->begin;
    CUresult result = CUDA_SUCCESS;
    for (size_t z = 0; z < rows->depth; z++) {
        for (size_t y = 0; y < rows->height && result == CUDA_SUCCESS; y++)
            result = ms_pointer_scan_expose(begin + z * rows->slice + y * rows->pitch, rows->width);
    }
    return result;
}

CUresult ms_pointer_scan_copy(void *to, const void *bytes, size_t count)
{
    enum { BLOCK = 32 << 10, OVERLAP = 8 }; /* words may begin in one block and end in the next */
    const struct bounds bounds = get_bounds();
    const unsigned char *from = bytes;
    unsigned char *copy = to;
    CUresult result =
        ends_address(&bounds, bytes, count) ? ms_pointer_scan_expose_all() : CUDA_SUCCESS;
    for (size_t begin = 0; begin < count && result == CUDA_SUCCESS; begin += BLOCK) {
        const size_t now = count - begin < BLOCK ? count - begin : BLOCK;
        const size_t before = begin > 0 ? OVERLAP : 0;
        memcpy(copy + begin, from + begin, now);
        result = expose_words(&bounds, copy + begin - before, now + before);
    }
    return result == CUDA_SUCCESS ? expose_beginning(bytes, count) : result;
}

CUresult ms_pointer_scan_expose_pattern(uint32_t pattern)
{
    const struct bounds bounds = get_bounds();
    const struct ms_range *far = &bounds.ranges[MS_FAR];
    const uint32_t pair = pattern & 0xffff;
    const bool may_be =
        is_upper_part(far, pattern, 32) || is_upper_part(&bounds.ranges[MS_NEAR], pattern, 32);
    /* A pattern of two bytes may be the nonzero part of an address's upper half. */
    const bool may_be_pair = pattern >> 16 == pair && is_upper_part(far, pair, 32);
    if ((may_be && has_upper_part(pattern, 32)) || (may_be_pair && has_upper_part(pair, 32)))
        return ms_pointer_scan_expose_all();
    return expose((uint64_t)pattern << 32 | pattern);
}

bool ms_pointer_scan_is_unbounded(void)
{
    return atomic_load_explicit(&unbounded, memory_order_relaxed);
}
