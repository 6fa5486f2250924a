/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/machine/reach.h"

#include <stdatomic.h>
#include <string.h>

#include "runtime/hot.h"
#include "runtime/machine/host.h"
#include "runtime/machine/machine.h"

static _Atomic bool unbounded;

struct bounds {
    uint64_t begin, bytes; /* of blocks */
    uint64_t host_begin, host_bytes;
};

static struct bounds get_bounds(void)
{
    CUdeviceptr begin, end;
    uint64_t host_begin, host_end;
    ms_space_bounds(&begin, &end);
    ms_host_bounds(&host_begin, &host_end);
    return (struct bounds){.begin = begin,
                           .bytes = end - begin,
                           .host_begin = host_begin,
                           .host_bytes = host_end > host_begin ? host_end - host_begin : 0};
}

static bool is_in(const struct bounds *bounds, uint64_t word)
{
    return word - bounds->begin < bounds->bytes || word - bounds->host_begin < bounds->host_bytes;
}

static uint64_t load(const unsigned char *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof(word));
    return word;
}

/*
 * Whether one of the words that begin in these 64 bytes may be in bounds, by its upper half: plain loops
 * over 4-byte words, which compilers turn into vector instructions.
 */
static bool any_near(const struct bounds *bounds, const unsigned char *bytes)
{
    const uint32_t begin = (uint32_t)(bounds->begin >> 32);
    const uint32_t span = (uint32_t)((bounds->begin + bounds->bytes) >> 32) - begin;
    const uint32_t host_begin = (uint32_t)(bounds->host_begin >> 32);
    const uint32_t host_span =
        (uint32_t)((bounds->host_begin + bounds->host_bytes) >> 32) - host_begin;
    uint32_t halves[16];
    uint32_t found = 0;
    memcpy(halves, bytes + 4, sizeof(halves));
    for (int i = 0; i < 16; i++)
        found |= halves[i] - begin <= span;
    for (int i = 0; i < 16 && bounds->host_bytes > 0; i++)
        found |= halves[i] - host_begin <= host_span;
    return found != 0;
}

/* The offset of the first word at or behind `at` that is in bounds; count when there is none. */
static size_t next_word(const struct bounds *bounds, const unsigned char *bytes, size_t at,
                        size_t count, uint64_t *word_out)
{
    while (at + 8 <= count) {
        const bool is_group = at + 72 <= count;
        const size_t end = is_group ? at + 64 : count - 7;
        if (is_group && !any_near(bounds, bytes + at))
            at = end;
        for (; at < end; at += 4) {
            *word_out = load(bytes + at);
            if (is_in(bounds, *word_out))
                return at;
        }
    }
    return count;
}

void ms_reach_find(const void *bytes, size_t count, struct ms_reach *reach_out)
{
    const struct bounds bounds = get_bounds();
    reach_out->count = 0;
    reach_out->everything = false;
    uint64_t word;
    for (size_t at = 0; (at = next_word(&bounds, bytes, at, count, &word)) < count; at += 4) {
        struct ms_hit hit = {.offset = at, .pointer = word};
        if (ms_space_reach(word, &hit.block)) {
            if (reach_out->count == MS_MAX_HITS) {
                reach_out->everything = true;
                return;
            }
            reach_out->hits[reach_out->count++] = hit;
        } else if (ms_host_holds(word)) {
            reach_out->everything = true;
        }
    }
}

static CUresult expose(uint64_t word)
{
    struct ms_block_facts facts;
    if (ms_space_reach(word, &facts))
        return ms_prepare_reach(facts.address, facts.bytes);
    if (ms_host_holds(word))
        atomic_store(&unbounded, true);
    return CUDA_SUCCESS;
}

/* True for the upper half of an address of a block: with a lower half that is written next to it, it
 * becomes one, and no call shows both. */
static bool is_upper_half(const struct bounds *bounds, uint32_t half)
{
    return bounds->bytes > 0 && half >= bounds->begin >> 32 &&
           half <= (bounds->begin + bounds->bytes - 1) >> 32;
}

CUresult ms_reach_expose(const void *bytes, size_t count)
{
    const struct bounds bounds = get_bounds();
    uint64_t word;
    uint32_t half;
    CUresult result = CUDA_SUCCESS;
    if (count >= sizeof(half)) {
        memcpy(&half, bytes, sizeof(half));
        if (is_upper_half(&bounds, half))
            return ms_prepare_touch_all();
    }
    for (size_t at = 0; result == CUDA_SUCCESS && ms_defers_any() &&
                        (at = next_word(&bounds, bytes, at, count, &word)) < count;
         at += 4)
        result = expose(word);
    return result;
}

CUresult ms_reach_expose_pattern(uint32_t pattern)
{
    const struct bounds bounds = get_bounds();
    if (is_upper_half(&bounds, pattern))
        return ms_prepare_touch_all();
    return expose((uint64_t)pattern << 32 | pattern);
}

bool ms_reach_is_unbounded(void)
{
    return atomic_load_explicit(&unbounded, memory_order_relaxed);
}
