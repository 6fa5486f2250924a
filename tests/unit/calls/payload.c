/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/payload.h"

#include <string.h>

#include "runtime/memory/memory_internal.h"
#include "runtime/state/counters.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"

#define FIRST ((CUdeviceptr)0x5a5b00200000)
#define SECOND ((CUdeviceptr)0x7f1234500000)
enum { BYTES = 1 << 20 };

#define AT(begin, number)                                                     \
    {                                                                         \
        .facts = {                                                            \
            .address = (begin),                                               \
            .bytes = BYTES,                                                   \
            .id = (number),                                                   \
            .backing = {.address = (begin), .bytes = BYTES, .granule = 4096}, \
            .lineage = {.bytes = BYTES}                                       \
        }                                                                     \
    }

/* The upper half of an address may be copied on its own. Between two allocations there is none. */
MS_TEST(upper_halves_count_where_an_allocation_lies)
{
    static struct ms_inside first = AT(FIRST, 1), second = AT(SECOND, 2);
    CHECK(ms_space_add(&first.facts) && ms_space_add(&second.facts));
    const uint32_t here = FIRST >> 32, between = 0x5b5b;
    const struct ms_movement set = {
        .kind = MS_SET, .value = 0x5b5b5b5b, .element = 4, .width = 4, .height = 1, .depth = 1};
    CHECK(!ms_payload_is_clean(&here, sizeof(here)));
    CHECK(!ms_payload_is_clean(&between, sizeof(between))); /* it may not ask */
    CHECK_EQ(ms_payload_copy(NULL, &between, sizeof(between)), CUDA_SUCCESS);
    CHECK_EQ(ms_payload_expose(&set), CUDA_SUCCESS);
    CHECK_EQ(ms_counter_get(MS_COUNT_PAYLOAD_SEALS), 0);
}

static struct ms_allocation *deferred;

static void defer(void)
{
    const struct ms_content fill = {.kind = MS_FILL, .pattern = 7};
    fake_start();
    fake_needs_hints();
    deferred = fake_allocation(FAKE_GRANULE);
    fake_set(deferred, 0, FAKE_GRANULE, &fill);
}

/* What the bytes point to came into memory. */
static bool ends_in_memory(void)
{
    const bool is_there = !ms_lineage_any(&deferred->lineage, 0, FAKE_GRANULE, MS_MISSING);
    fake_allocation_free(deferred);
    fake_check_empty();
    return is_there;
}

MS_TEST(an_address_across_two_blocks_of_a_snapshot_is_found)
{
    enum { BLOCK = 32 << 10 }; /* that are copied and examined at a time */
    static unsigned char bytes[2 * BLOCK + 100], copied[sizeof(bytes)];
    for (size_t at = BLOCK - 9; at <= BLOCK + 1; at++) {
        defer();
        memset(bytes, 0, sizeof(bytes));
        memcpy(bytes + at, &deferred->address, 8);
        CHECK_EQ(ms_payload_copy(copied, bytes, sizeof(bytes)), CUDA_SUCCESS);
        CHECK_BYTES(copied, bytes, sizeof(bytes));
        CHECK(ends_in_memory());
    }
    defer();
    memset(bytes, 0, sizeof(bytes));
    CHECK_EQ(ms_payload_copy(copied, bytes, sizeof(bytes)), CUDA_SUCCESS);
    CHECK(!ends_in_memory());
}

MS_TEST(the_end_of_an_address_means_everything)
{
    unsigned char bytes[16];
    for (size_t begun = 1; begun <= 4; begun++) { /* bytes of it that another call has written */
        defer();
        memset(bytes, 0, sizeof(bytes));
        memcpy(bytes, (const unsigned char *)&deferred->address + begun, 8 - begun);
        CHECK_EQ(ms_payload_copy(NULL, bytes, sizeof(bytes)), CUDA_SUCCESS);
        CHECK(ends_in_memory());
    }
}

/* The first of two addresses cannot come into memory: the call fails, though the second one can. */
MS_TEST(an_address_that_cannot_come_into_memory_fails_the_call)
{
    CUdeviceptr addresses[2];
    defer();
    struct ms_allocation *second = fake_allocation(FAKE_GRANULE);
    fake_set(second, 0, FAKE_GRANULE, &(struct ms_content){.kind = MS_FILL, .pattern = 7});
    addresses[0] = deferred->address;
    addresses[1] = second->address;
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(ms_payload_copy(NULL, addresses, sizeof(addresses)), CUDA_ERROR_UNKNOWN);
    CHECK(ms_lineage_any(&second->lineage, 0, FAKE_GRANULE, MS_MISSING));
    CHECK_EQ(ms_payload_copy(NULL, addresses, sizeof(addresses)), CUDA_SUCCESS);
    CHECK(!ms_lineage_any(&second->lineage, 0, FAKE_GRANULE, MS_MISSING));
    fake_allocation_free(second);
    CHECK(ends_in_memory());
}
