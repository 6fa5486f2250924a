/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/write.h"

#include <string.h>

#include "runtime/memory/space.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"

enum { BYTES = 2 * FAKE_GRANULE };

static struct ms_allocation *allocation;
static unsigned char host[BYTES];

static void start(void)
{
    const struct ms_content nines = {.kind = MS_FILL, .pattern = 0x09090909};
    fake_start();
    allocation = fake_allocation(BYTES);
    fake_set(allocation, 0, BYTES, &nines);
    ms_source_set_snapshot_limit(16 * BYTES);
    for (size_t i = 0; i < BYTES; i++)
        host[i] = (unsigned char)(i * 13);
}

static void end(void)
{
    fake_check_allocation(allocation);
    fake_allocation_free(allocation);
    fake_check_empty();
}

static struct ms_content content(void)
{
    return ms_lineage_at(&allocation->lineage, 0).content;
}

/* --- sets */

static bool set(CUdeviceptr address, uint32_t value, unsigned element, size_t count,
                CUresult *result_out)
{
    const struct ms_movement movement = {.kind = MS_SET,
                                         .stream = FAKE_STREAM,
                                         .value = value,
                                         .element = element,
                                         .width = count * element,
                                         .height = 1,
                                         .depth = 1,
                                         .to = ms_side_of_device(address)};
    return ms_write_set(&movement, result_out);
}

MS_TEST_BETWEEN(start, end, a_set_is_recorded)
{
    CUresult result;
    CHECK(set(allocation->address, 0x0102, 2, BYTES / 2, &result));
    CHECK(result == CUDA_SUCCESS && content().kind == MS_FILL);
    CHECK_EQ(content().pattern, 0x01020102);
    CHECK_EQ(fake.work_count, 0);
}

MS_TEST_BETWEEN(start, end, a_set_beyond_an_allocation_is_refused_and_changes_nothing)
{
    CUresult result = CUDA_SUCCESS;
    CHECK(set(allocation->address + 1, 3, 1, BYTES, &result));
    CHECK_EQ(result, CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(content().pattern, 0x09090909);
}

/* It knows who has access. */
MS_TEST_BETWEEN(start, end, memory_of_another_device_is_set_by_the_driver)
{
    CUresult result;
    fake.device = 1;
    CHECK(!set(allocation->address, 3, 1, BYTES, &result));
    CHECK_EQ(result, CUDA_SUCCESS);
    fake.device = 0;
    CHECK_EQ(content().kind, MS_RESIDENT);
}

/* --- copies from the host */

static bool copy(CUdeviceptr to, bool waits, CUresult *result_out)
{
    const struct ms_movement movement = {.kind = MS_COPY_FROM_HOST,
                                         .stream = FAKE_STREAM,
                                         .waits = waits,
                                         .width = BYTES,
                                         .height = 1,
                                         .depth = 1,
                                         .to = ms_side_of_device(to),
                                         .from = ms_side_of_host(host)};
    return ms_write_from_host(&movement, result_out);
}

MS_TEST_BETWEEN(start, end, an_address_in_a_snapshot_brings_what_it_means_into_memory)
{
    CUresult result;
    fake_needs_hints();
    struct ms_allocation *other = fake_allocation(BYTES);
    const CUdeviceptr address = allocation->address + 100;
    memcpy(host + 4711, &address, sizeof(address));
    CHECK(copy(other->address, false, &result));
    CHECK_EQ(result, CUDA_SUCCESS);
    CHECK_EQ(ms_lineage_at(&other->lineage, 0).content.kind, MS_SOURCE);
    CHECK(!ms_lineage_any(&allocation->lineage, 0, BYTES, MS_MISSING));
    fake_allocation_free(other);
}

MS_TEST(a_copy_that_waits_has_waited_for_what_is_before_it)
{
    for (int waits = 0; waits < 2; waits++) {
        CUresult result;
        start();
        CHECK(copy(allocation->address, waits, &result));
        CHECK(result == CUDA_SUCCESS && content().kind == MS_SOURCE);
        CHECK_EQ(fake.calls[FAKE_stream_synchronize], waits);
        end();
    }
}
