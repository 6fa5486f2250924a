/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/calls.h"

#include <string.h>

#include "tests/simcuda/harness/test.h"
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

MS_TEST(a_set_is_recorded)
{
    CUresult result;
    start();
    CHECK(ms_fill(allocation->address, 0x0102, 2, BYTES / 2, FAKE_STREAM, &result));
    CHECK(result == CUDA_SUCCESS && content().kind == MS_FILL);
    CHECK_EQ(content().pattern, 0x01020102);
    CHECK_EQ(fake.work_count, 0);
    end();
}

MS_TEST(a_set_beyond_an_allocation_is_refused_and_changes_nothing)
{
    CUresult result = CUDA_SUCCESS;
    start();
    CHECK(ms_fill(allocation->address + 1, 3, 1, BYTES, FAKE_STREAM, &result));
    CHECK_EQ(result, CUDA_ERROR_INVALID_VALUE);
    CHECK(!ms_fill(allocation->address, 3, 4, SIZE_MAX / 2, FAKE_STREAM, &result));
    CHECK_EQ(content().pattern, 0x09090909);
    end();
}

/* It knows who has access. */
MS_TEST(memory_of_another_device_is_set_by_the_driver)
{
    CUresult result;
    start();
    fake.device = 1;
    CHECK(!ms_fill(allocation->address, 3, 1, BYTES, FAKE_STREAM, &result));
    CHECK_EQ(result, CUDA_SUCCESS);
    fake.device = 0;
    CHECK_EQ(content().kind, MS_RESIDENT);
    end();
}

/* --- copies from the host */

MS_TEST(an_address_in_a_snapshot_brings_what_it_means_into_memory)
{
    CUresult result;
    start();
    fake_needs_hints();
    struct ms_allocation *other = fake_allocation(BYTES);
    const CUdeviceptr address = allocation->address + 100;
    memcpy(host + 4711, &address, sizeof(address));
    CHECK(ms_copy_from_host(other->address, host, BYTES, FAKE_STREAM, false, &result));
    CHECK_EQ(result, CUDA_SUCCESS);
    CHECK_EQ(ms_lineage_at(&other->lineage, 0).content.kind, MS_SOURCE);
    CHECK(ms_lineage_is_present(&allocation->lineage, 0, BYTES));
    fake_allocation_free(other);
    end();
}

MS_TEST(a_copy_that_waits_has_waited_for_what_is_before_it)
{
    for (int waits = 0; waits < 2; waits++) {
        CUresult result;
        start();
        CHECK(ms_copy_from_host(allocation->address, host, BYTES, FAKE_STREAM, waits, &result));
        CHECK(result == CUDA_SUCCESS && content().kind == MS_SOURCE);
        CHECK_EQ(fake.calls[FAKE_stream_synchronize], waits);
        end();
    }
}
