/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/addresses.h"

#include "runtime/memory/far_address.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/memory/space.h"
#include "tools/simcuda/harness/test.h"

#define GIB ((size_t)1 << 30)
#define GRANULE ((size_t)2 << 20)
#define AREA ((size_t)32 << 20) /* of a driver */
#define LOW ((CUdeviceptr)0x302000000)

static enum { HONOURS, PLACES_FAR, DECLINES, REFUSES } driver;
static int wishes, calls;
static size_t wanted_alignment = GRANULE;

static CUresult reserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr wish,
                        unsigned long long flags)
{
    calls++;
    wishes += wish != 0;
    CHECK(bytes > 0 && alignment == wanted_alignment && flags == 0 && wish % AREA == 0);
    CHECK(wish % alignment == 0);
    CHECK(wish == 0 || wish + bytes < (CUdeviceptr)1 << 47);
    if (wish != 0 && driver == REFUSES)
        return CUDA_ERROR_INVALID_VALUE;
    *address = wish == 0 || driver == DECLINES ? LOW : driver == HONOURS ? wish : wish + GIB;
    return CUDA_SUCCESS;
}

static CUdeviceptr reserved(size_t bytes)
{
    CUdeviceptr address = 0;
    ms_driver.mem_address_reserve = reserve;
    CHECK_EQ(ms_addresses_reserve(&address, bytes, GRANULE, false), CUDA_SUCCESS);
    return address;
}

MS_TEST(wishes_are_far_and_do_not_meet)
{
    CUdeviceptr end = 0;
    for (size_t i = 1; i < 100; i++) {
        const CUdeviceptr address = reserved(i * GRANULE);
        CHECK(ms_address_is_far(address) && address >= end);
        end = address + i * GRANULE;
    }
}

MS_TEST(wishes_go_round_what_is_in_use)
{
    const CUdeviceptr first = reserved(3 * GRANULE);
    struct ms_inside inside = {
        .facts = {.address = first + GRANULE, .bytes = GRANULE - 100},
        .backing = {.address = first + GRANULE, .bytes = GRANULE, .granule = GRANULE},
        .lineage = {.bytes = GRANULE}};
    CHECK(ms_space_add(&inside.facts));
    bool went_round = false;
    for (int i = 0; i < 20; i++) {
        const CUdeviceptr address = reserved(1000 * GIB);
        CHECK(address >= first + 3 * GRANULE || address + 1000 * GIB <= first);
        went_round |= address == first + AREA && i > 0;
    }
    CHECK(went_round);
    CHECK_EQ(wishes, calls);
}

MS_TEST(a_driver_that_honours_no_wish_is_asked_for_none)
{
    driver = DECLINES;
    for (int i = 0; i < 20; i++)
        CHECK_EQ(reserved(GIB), LOW);
    CHECK_EQ(calls, 20);
    CHECK_EQ(wishes, 4);
}

/* As one does that has room left in an area of its own. */
MS_TEST(a_driver_that_chooses_far_addresses_is_asked_on)
{
    driver = PLACES_FAR;
    for (int i = 0; i < 20; i++)
        CHECK(ms_address_is_far(reserved(GIB)));
    CHECK_EQ(wishes, 20);
}

MS_TEST(a_driver_that_refuses_wishes_is_asked_again)
{
    driver = REFUSES;
    for (int i = 0; i < 20; i++)
        CHECK_EQ(reserved(GIB), LOW);
    CHECK_EQ(calls, 24);
    CHECK_EQ(wishes, 4);
}

MS_TEST(a_wish_in_vain_does_not_end_wishes)
{
    for (int i = 0; i < 20; i++) {
        driver = i % 3 == 0 ? DECLINES : HONOURS;
        CHECK_EQ(ms_address_is_far(reserved(GIB)), driver == HONOURS);
    }
    CHECK_EQ(wishes, 20);
    CHECK(reserved((size_t)100 << 40) == LOW); /* more than there is room for */
}

/* --- for the program */

static CUdeviceptr reserved_for_program(size_t bytes, size_t alignment)
{
    CUdeviceptr address = 0;
    ms_driver.mem_address_reserve = reserve;
    wanted_alignment = alignment;
    CHECK_EQ(ms_addresses_reserve(&address, bytes, alignment, true), CUDA_SUCCESS);
    wanted_alignment = GRANULE;
    return address;
}

/* In an area of their own, and as the program wants them to lie. */
MS_TEST(the_programs_addresses_are_far_as_well)
{
    static const size_t alignments[] = {0x1000, GRANULE, AREA, GIB};
    CUdeviceptr end = 0;
    for (size_t i = 0; i < 4; i++) {
        const CUdeviceptr address = reserved_for_program(3 * GIB, alignments[i]);
        CHECK(ms_address_is_far(address) && address >= end);
        CHECK_EQ(address % alignments[i], 0);
        end = address + 3 * GIB;
        CHECK(reserved(GIB) + GIB <= address);
    }
    CHECK_EQ(wishes, 8);
}

/* The program's lies behind the shim's; at its end each begins again. */
MS_TEST(wishes_stay_in_their_area)
{
    const CUdeviceptr border = reserved_for_program(GRANULE, GRANULE);
    const CUdeviceptr first = reserved(GRANULE);
    int rounds = 0;
    for (int i = 0; i < 20; i++) {
        const CUdeviceptr address = reserved(1000 * GIB);
        CHECK(address >= first && address + 1000 * GIB <= border);
        rounds += address == first;
        CHECK(reserved_for_program(1000 * GIB, GRANULE) >= border);
    }
    CHECK(rounds > 0);
}

MS_TEST(each_area_counts_its_own_wishes_in_vain)
{
    driver = DECLINES;
    for (int i = 0; i < 10; i++)
        CHECK_EQ(reserved(GIB), LOW);
    CHECK_EQ(wishes, 4);
    for (int i = 0; i < 10; i++)
        CHECK_EQ(reserved_for_program(GIB, GRANULE), LOW);
    CHECK_EQ(wishes, 8);
}
