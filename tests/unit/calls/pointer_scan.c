/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/pointer_scan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/calls/host_memory.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/memory/space.h"
#include "runtime/state/counters.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"

#define FAR ((CUdeviceptr)0x5a5b00200000)
#define NEAR ((CUdeviceptr)0x302200000)
#define HOST_MEMORY ((CUdeviceptr)0x7f1234500000)
enum { BYTES = 1 << 20, PARAM_BYTES = 128 };

static struct ms_inside far = {.facts = {.address = FAR, .bytes = BYTES, .id = 1},
                               .backing = {.address = FAR, .bytes = BYTES, .granule = 4096},
                               .lineage = {.bytes = BYTES}};
static struct ms_inside near = {.facts = {.address = NEAR, .bytes = BYTES, .id = 2},
                                .backing = {.address = NEAR, .bytes = BYTES, .granule = 4096},
                                .lineage = {.bytes = BYTES}};
static struct ms_packed packed;
static struct ms_param_layout *layout;
static struct ms_arguments arguments;
static struct ms_pointer_scan reach;

/* (int, struct of the rest) */
static void start(void)
{
    CHECK(ms_space_add(&far.facts) && ms_space_add(&near.facts));
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

MS_TEST_AFTER(start, far_addresses_count_wherever_they_lie)
{
    for (size_t at = 0; at + 8 <= PARAM_BYTES; at++) {
        CHECK_EQ(hits(at, FAR + 4711), 1);
        CHECK_EQ(hits(at, FAR + 2 * BYTES), 0);
    }
}

MS_TEST_AFTER(start, near_addresses_count_where_a_pointer_can_lie)
{
    for (size_t at = 0; at + 8 <= PARAM_BYTES; at++)
        CHECK_EQ(hits(at, NEAR + 4711), at % 8 == 0 && at >= 8);
    layout->known = false; /* the program has packed them, of a kernel that tells nothing */
    layout->count = 0;
    CHECK_EQ(hits(0, NEAR), 1);
    CHECK_EQ(hits(4, NEAR), 0);
}

MS_TEST_AFTER(start, numbers_are_no_addresses)
{
    arguments.numbers = (struct ms_range){16, 48};
    for (size_t at = 0; at + 8 <= PARAM_BYTES; at++)
        CHECK_EQ(hits(at, FAR), at + 8 <= 16 || at >= 48);
    CHECK_EQ(hits(8, NEAR), 1);
    CHECK_EQ(hits(40, NEAR), 0);
}

MS_TEST_AFTER(start, host_memory_means_everything)
{
    ms_host_memory_add(HOST_MEMORY, 4096);
    for (size_t at = 0; at + 8 <= PARAM_BYTES; at++) {
        CHECK_EQ(hits(at, HOST_MEMORY + 100), 0);
        CHECK(reach.everything);
        CHECK_EQ(hits(at, HOST_MEMORY + 4096), 0);
        CHECK(!reach.everything);
    }
}

static struct ms_inside more[2]; /* carved, and in memory */

static void add_more(struct ms_inside *inside, CUdeviceptr address, enum ms_kind kind)
{
    struct ms_allocation *allocation = &inside->facts;
    *inside = (struct ms_inside){
        .facts = {.address = address, .bytes = BYTES, .id = address},
        .backing = {.address = address, .bytes = BYTES, .granule = 4096, .mapped_bytes = BYTES}};
    const struct ms_content content = {.kind = kind};
    CHECK(ms_lineage_init(&inside->lineage, BYTES) &&
          ms_lineage_set(&inside->lineage, 0, BYTES, &content) && ms_space_add(allocation));
    CHECK(ms_space_claim(address) == allocation);
    for (size_t at = 0; kind == MS_UNDEFINED && at < BYTES; at += 8192)
        CHECK(ms_carve_add_block(allocation, at, at + 4096));
    ms_space_unclaim(allocation);
}

/* --- how often what there is is looked up, each time under a lock */

static unsigned gaps, lookups;
WRAPS(ms_host_memory_gap, ms_space_find_all_pointed);
struct ms_range __wrap_ms_host_memory_gap(uint64_t address)
{
    gaps++;
    return __real_ms_host_memory_gap(address);
}

size_t __wrap_ms_space_find_all_pointed(struct ms_pointed *pointed, size_t count,
                                        struct ms_range *nothing_out)
{
    lookups++;
    return __real_ms_space_find_all_pointed(pointed, count, nothing_out);
}

/* Forty words behind another. */
static void scan(uint64_t first, uint64_t others, uint64_t step)
{
    static unsigned char bytes[8 * 42];
    layout->params[1].bytes = sizeof(bytes) - 8;
    packed.bytes = bytes;
    packed.count = sizeof(bytes);
    memcpy(bytes + 8, &first, 8);
    for (size_t i = 2; i < 42; i++, others += step)
        memcpy(bytes + 8 * i, &others, 8);
    gaps = lookups = 0;
    ms_pointer_scan_find(&arguments, &reach);
}

MS_TEST_AFTER(start, words_are_looked_up_together_more_of_them_each_time)
{
    scan(FAR, FAR + 8, 8);
    CHECK_EQ(lookups, 6); /* 1, 2, 4, 8, 16 and 10 */
    CHECK(gaps == 0 && reach.count > 0);
    scan(0, FAR + 8, 8);
    CHECK_EQ(lookups, 6);
}

MS_TEST_AFTER(start, a_scan_skips_neighbours_of_a_word_that_means_nothing)
{
    add_more(&more[0], FAR + 16 * BYTES, MS_UNDEFINED);
    ms_host_memory_add(HOST_MEMORY, 4096);
    scan(FAR + 3 * BYTES, FAR + 3 * BYTES + 8, 8);
    CHECK(lookups == 1 && gaps == 1);
    CHECK(reach.count == 0 && !reach.everything);
    scan(FAR, FAR + 8, 8);
    CHECK(lookups == 6 && gaps == 6); /* once for each */
}

STORY_AFTER(start, a_scan_ends_at_a_word_that_means_everything,
            ms_host_memory_add(HOST_MEMORY, 4096), scan(HOST_MEMORY, FAR, 8),
            IS(reach.everything &&lookups == 1))

/* Tracked memory lies on either side of a range that means nothing. */
MS_TEST_AFTER(start, a_scan_finds_host_memory_beside_a_word_that_means_nothing)
{
    static const CUdeviceptr tracked = FAR + 10 * BYTES,
                             first[] = {FAR + 8 * BYTES, FAR + 12 * BYTES};
    add_more(&more[0], FAR + 16 * BYTES, MS_UNDEFINED);
    ms_host_memory_add(HOST_MEMORY, 4096);
    ms_host_memory_add(tracked, 4096);
    for (int i = 0; i < 2; i++) {
        scan(first[i], tracked + 4095, 0);
        CHECK(reach.everything && lookups == 2);
        scan(first[i], tracked - 1, 0);
        CHECK(!reach.everything);
        scan(first[i], tracked + 4096, 0);
        CHECK(!reach.everything);
        scan(first[i], FAR + BYTES - 1, 0);
        CHECK_EQ(reach.count, 40 > MS_MAX_HITS / 2 ? MS_MAX_HITS / 2 : 40);
    }
}

/* True if one of the first hits is of the block there. */
static bool is_among(size_t count, CUdeviceptr block)
{
    size_t at = 0;
    while (at < count && reach.hits[at].block.address != block)
        at++;
    return at < count;
}

/* As if each were looked up alone. */
MS_TEST(words_in_any_order_mean_what_they_mean)
{
    enum { WORDS = MS_MAX_HITS, ROUNDS = 5000 };
    static unsigned char bytes[8 * WORDS];
    const CUdeviceptr carved = FAR + 16 * BYTES, in_memory = FAR + 20 * BYTES;
    const CUdeviceptr near_words[] = {FAR,        FAR + BYTES,    FAR + 8 * BYTES,
                                      carved,     carved,         in_memory,
                                      NEAR,       carved + BYTES, NEAR - 1,
                                      HOST_MEMORY};
    enum { KINDS = sizeof(near_words) / sizeof(near_words[0]) };
    const unsigned seed = 20261123;
    printf("# seed %u\n", seed);
    srand(seed);
    start();
    add_more(&more[0], carved, MS_UNDEFINED);
    add_more(&more[1], in_memory, MS_RESIDENT);
    ms_host_memory_add(HOST_MEMORY, 4096);
    ms_host_memory_add(FAR + 10 * BYTES, 4096); /* between the allocations */
    layout->params[1].bytes = sizeof(bytes) - 8;
    packed.bytes = bytes;
    packed.count = sizeof(bytes);
    for (int round = 0; round < ROUNDS; round++) {
        const int kinds = 1 + rand() % KINDS;
        const uint64_t spread = (uint64_t)8 << rand() % 18;
        bool is_host = false;
        size_t wanted = 0;
        struct ms_allocation_facts facts;
        for (size_t i = 1; i < WORDS; i++) {
            const uint64_t word = near_words[rand() % kinds] + (uint64_t)rand() % spread;
            memcpy(bytes + 8 * i, &word, 8);
            is_host |= ms_host_memory_holds(word);
        }
        ms_pointer_scan_find(&arguments, &reach);
        CHECK_EQ(reach.everything, is_host);
        for (size_t i = 1; i < WORDS && !is_host; i++) {
            uint64_t word;
            memcpy(&word, bytes + 8 * i, 8);
            if (!ms_space_find_pointed(word, &facts) ||
                (wanted >= MS_MAX_HITS / 2 && is_among(wanted, facts.address)))
                continue;
            CHECK_EQ(reach.hits[wanted].offset, 8 * i);
            CHECK_EQ(reach.hits[wanted].block.address, facts.address);
            CHECK_EQ(reach.hits[wanted++].block.bytes, facts.bytes);
        }
        CHECK(is_host || reach.count == wanted);
    }
}

/* More than are looked up at a time, in both allocations and beside them. */
MS_TEST(many_pointers_are_found_in_their_order)
{
    static unsigned char bytes[400];
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

MS_TEST_AFTER(start, the_highest_word_is_behind_all_allocations)
{
    struct ms_allocation_facts facts;
    CHECK(!ms_space_find_pointed(UINT64_MAX, &facts));
    CHECK(!ms_space_strays(UINT64_MAX, 1));
}

MS_TEST(more_blocks_than_fit_mean_everything)
{
    static unsigned char bytes[8 * (2 * MS_MAX_HITS + 2)];
    const CUdeviceptr carved = FAR + 16 * BYTES;
    start();
    add_more(&more[0], carved, MS_UNDEFINED);
    layout->params[1].bytes = sizeof(bytes) - 8;
    packed.bytes = bytes;
    packed.count = sizeof(bytes);
    for (size_t i = 1; i < sizeof(bytes) / 8; i++) {
        const uint64_t word = FAR + 8 * i;
        memcpy(bytes + 8 * i, &word, 8);
    }
    ms_pointer_scan_find(&arguments, &reach);
    CHECK(reach.count == MS_MAX_HITS / 2 && !reach.everything);
    for (size_t i = 1; i <= MS_MAX_HITS + 1; i++) {
        const uint64_t word = carved + 8192 * i;
        memcpy(bytes + 8 * i, &word, 8);
        ms_pointer_scan_find(&arguments, &reach);
        CHECK_EQ(reach.everything, i + 1 > MS_MAX_HITS); /* the rest are of one more */
    }
}
