/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/memory_internal.h"
#include "runtime/memory/space.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/memory/far_address.h"
#include "tools/simcuda/harness/test.h"

/* The slow, obvious twin: a place for each address that an allocation may have, in use or not. */
enum { PLACES = 300, ROUNDS = 20000, BYTES = 1000, STEP = 4096 };
/* Half of them are near addresses, the others far ones. */
#define FIRST (MS_FAR_ADDRESS - (CUdeviceptr)PLACES / 2 * STEP)

static struct ms_inside allocations[PLACES];
static bool used[PLACES];

static CUdeviceptr address_of(int place)
{
    return FIRST + (CUdeviceptr)place * STEP;
}

static void add(int place)
{
    allocations[place] = (struct ms_inside){
        .facts = {.address = address_of(place),
                  .bytes = BYTES,
                  .id = (uint64_t)place + 1,
                  .backing = {.address = address_of(place), .bytes = BYTES, .granule = 1},
                  .lineage = {.bytes = BYTES}},
    };
    CHECK(ms_space_add(&allocations[place].facts));
    used[place] = true;
}

static void drop(int place)
{
    struct ms_allocation *claimed = ms_space_claim(address_of(place) + BYTES - 1);
    CHECK(claimed == &allocations[place].facts);
    ms_space_remove(claimed);
    used[place] = false;
}

static int next_used(int place)
{
    while (place < PLACES && !used[place])
        place++;
    return place;
}

static void check_place(int place)
{
    struct ms_allocation_facts facts;
    const CUdeviceptr address = address_of(place);
    CHECK_EQ(ms_space_look_up(address, &facts), used[place]);
    CHECK(!used[place] || facts.id == (uint64_t)place + 1);
    CHECK_EQ(ms_space_look_up(address + BYTES, &facts), false);
    CHECK_EQ(ms_space_find_pointed(address + BYTES, &facts), used[place]); /* its guard */
    CHECK(!used[place] || facts.id == (uint64_t)place + 1);
    const int next = next_used(place);
    CHECK_EQ(ms_space_first_behind(address, &facts), next < PLACES);
    CHECK(next == PLACES || facts.id == (uint64_t)next + 1);
}

/* A walk finds all of them, in order. */
static void check_walk(void)
{
    CUdeviceptr at = 0;
    for (int place = next_used(0); place < PLACES; place = next_used(place + 1)) {
        struct ms_allocation *allocation = ms_space_claim_next(at);
        CHECK(allocation == &allocations[place].facts);
        at = allocation->address + allocation->bytes;
        ms_space_unclaim(allocation); /* they are a place and no more: not valid, nor published */
    }
    CHECK(ms_space_claim_next(at) == NULL);
}

/* Around what is used of [first, end). */
static void check_range(const struct ms_range *range, int first, int end)
{
    int last = end - 1;
    first = next_used(first);
    while (last >= first && !used[last])
        last--;
    if (first >= end)
        CHECK(range->begin == range->end);
    else
        CHECK(range->begin == address_of(first) - 1 && range->end == address_of(last) + BYTES + 1);
}

static void check_bounds(void)
{
    struct ms_range bounds[MS_BOUNDS];
    ms_space_bounds(bounds);
    check_range(&bounds[MS_NEAR], 0, PLACES / 2);
    check_range(&bounds[MS_FAR], PLACES / 2, PLACES);
}

static void check_all(void)
{
    for (int place = 0; place < PLACES; place++)
        check_place(place);
    check_walk();
    check_bounds();
}

MS_TEST(index_is_a_set_of_addresses)
{
    const unsigned seed = 20261121;
    printf("# seed %u\n", seed);
    srand(seed);
    for (int round = 0; round < ROUNDS; round++) {
        const int place = rand() % PLACES;
        if (used[place])
            drop(place);
        else
            add(place);
        check_place(rand() % PLACES);
        if (round % 500 == 0)
            check_all();
    }
    check_all();
}

/* Drivers give addresses in a row, upwards or downwards, and programs free in either order. */
MS_TEST(index_of_addresses_in_a_row)
{
    for (int way = 0; way < 4; way++) {
        for (int i = 0; i < PLACES; i++) {
            add(way % 2 == 0 ? i : PLACES - 1 - i);
            check_place(rand() % PLACES);
        }
        check_all();
        for (int i = 0; i < PLACES; i++) {
            drop(way / 2 == 0 ? i : PLACES - 1 - i);
            check_place(rand() % PLACES);
        }
        check_all();
    }
}
