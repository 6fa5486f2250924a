/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/pointer_scan.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/calls/host_memory.h"
#include "tests/simcuda/harness/test.h"

#define FAR ((CUdeviceptr)0x5a5b00200000)
#define NEAR ((CUdeviceptr)0x302200000)
#define HOST_MEMORY ((CUdeviceptr)0x7f1234500000)
enum { BYTES = 1 << 20, PARAM_BYTES = 128 };

static struct ms_allocation far = {.address = FAR,
                                   .bytes = BYTES,
                                   .id = 1,
                                   .backing = {.address = FAR, .bytes = BYTES, .granule = 4096},
                                   .lineage = {.bytes = BYTES}};
static struct ms_allocation near = {.address = NEAR,
                                    .bytes = BYTES,
                                    .id = 2,
                                    .backing = {.address = NEAR, .bytes = BYTES, .granule = 4096},
                                    .lineage = {.bytes = BYTES}};
static struct ms_packed packed;
static struct ms_param_layout *layout;
static struct ms_arguments arguments;
static struct ms_pointer_scan reach;

/* (int, struct of the rest) */
static void start(void)
{
    CHECK(ms_space_add(&far) && ms_space_add(&near));
    layout = calloc(1, sizeof(*layout) + 2 * sizeof(layout->params[0]));
    CHECK(layout != NULL);
    layout->known = true;
    layout->count = 2;
    layout->params[0] = (struct ms_param){0, 4};
    layout->params[1] = (struct ms_param){8, PARAM_BYTES - 8};
    packed.bytes = packed.local;
    packed.count = PARAM_BYTES;
    arguments = (struct ms_arguments){.layout = layout, .packed = &packed};
}

/* How many hits there are when the word lies there. */
static size_t hits(size_t at, uint64_t word)
{
    memset(packed.local, 0, sizeof(packed.local));
    memcpy(packed.local + at, &word, sizeof(word));
    ms_pointer_scan_find(&arguments, &reach);
    CHECK(reach.count == 0 || (reach.hits[0].offset == at && reach.hits[0].pointer == word));
    return reach.count;
}

MS_TEST(far_addresses_count_wherever_they_lie)
{
    start();
    for (size_t at = 0; at + 8 <= PARAM_BYTES; at++) {
        CHECK_EQ(hits(at, FAR + 4711), 1);
        CHECK_EQ(hits(at, FAR + 2 * BYTES), 0);
    }
}

MS_TEST(near_addresses_count_where_a_pointer_can_lie)
{
    start();
    for (size_t at = 0; at + 8 <= PARAM_BYTES; at++)
        CHECK_EQ(hits(at, NEAR + 4711), at % 8 == 0 && at >= 8);
    layout->known = false; /* the program has packed them, of a kernel that tells nothing */
    layout->count = 0;
    CHECK_EQ(hits(0, NEAR), 1);
    CHECK_EQ(hits(4, NEAR), 0);
}

MS_TEST(numbers_are_no_addresses)
{
    start();
    arguments.numbers = (struct ms_range){16, 48};
    for (size_t at = 0; at + 8 <= PARAM_BYTES; at++)
        CHECK_EQ(hits(at, FAR), at + 8 <= 16 || at >= 48);
    CHECK_EQ(hits(8, NEAR), 1);
    CHECK_EQ(hits(40, NEAR), 0);
}

MS_TEST(host_memory_means_everything)
{
    start();
    ms_host_add(HOST_MEMORY, 4096);
    for (size_t at = 0; at + 8 <= PARAM_BYTES; at++) {
        CHECK_EQ(hits(at, HOST_MEMORY + 100), 0);
        CHECK(reach.everything);
        CHECK_EQ(hits(at, HOST_MEMORY + 4096), 0);
        CHECK(!reach.everything);
    }
}

/* More than are looked up at a time, in both allocations and beside them. */
MS_TEST(many_pointers_are_found_in_their_order)
{
    static unsigned char bytes[600];
    const uint64_t words[] = {FAR + 8, NEAR + 16, FAR + 3 * BYTES, FAR + BYTES - 1, NEAR - 4097};
    enum { KINDS = sizeof(words) / sizeof(words[0]), WORDS = sizeof(bytes) / 8 };
    start();
    layout->params[1].bytes = sizeof(bytes) - 8;
    packed.bytes = bytes;
    packed.count = sizeof(bytes);
    size_t wanted = 0;
    for (size_t i = 1; i < WORDS; i++)
        memcpy(bytes + 8 * i, &words[i * i % KINDS], 8);
    ms_pointer_scan_find(&arguments, &reach);
    for (size_t i = 1; i < WORDS; i++) {
        const uint64_t word = words[i * i % KINDS];
        if (word == FAR + 3 * BYTES || word == NEAR - 4097)
            continue;
        CHECK_EQ(reach.hits[wanted].offset, 8 * i);
        CHECK_EQ(reach.hits[wanted].pointer, word);
        CHECK_EQ(reach.hits[wanted++].block.id, word >= FAR ? 1 : 2);
    }
    CHECK_EQ(reach.count, wanted);
    CHECK(wanted > 16 && !reach.everything);
}

MS_TEST(more_hits_than_fit_mean_everything)
{
    static unsigned char bytes[8 * (MS_MAX_HITS + 2)];
    const uint64_t word = FAR + 8;
    start();
    layout->params[1].bytes = sizeof(bytes) - 8;
    packed.bytes = bytes;
    packed.count = sizeof(bytes);
    for (size_t at = 8; at < 8 * (MS_MAX_HITS + 1); at += 8)
        memcpy(bytes + at, &word, 8);
    ms_pointer_scan_find(&arguments, &reach);
    CHECK(reach.count == MS_MAX_HITS && !reach.everything);
    memcpy(bytes + 8 * (MS_MAX_HITS + 1), &word, 8);
    ms_pointer_scan_find(&arguments, &reach);
    CHECK(reach.everything);
}
