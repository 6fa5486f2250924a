/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/selfcheck/checks.h"

#include <string.h>

#include "runtime/driver/flags.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"

static struct ms_driver right; /* the fake driver's functions, which the faulty ones call */
static struct ms_check_report report;

static void begin(void)
{
    fake_needs_hints();
    fake_start();
    right = ms_driver;
}

static void run(void)
{
    ms_checks_run(FAKE_CONTEXT, 0, &report);
}

/* Everything was given back, and this fact alone does not hold. */
static void expect(enum ms_fact fact)
{
    run();
    CHECK_EQ(report.unknown, 0);
    CHECK_EQ(report.unmet, MS_FACT_BIT(fact));
    CHECK(report.seen[fact][0] != '\0');
    CHECK_EQ(fake.streams, 0);
    fake_check_empty();
}

MS_TEST_AFTER(begin, all_facts_hold_and_everything_is_given_back)
{
    run();
    CHECK_EQ(report.unmet | report.refused | report.unknown, 0);
    CHECK_EQ(fake.calls[FAKE_mem_create], 3);
    CHECK_EQ(fake.calls[FAKE_stream_create], 2);
    CHECK_EQ(fake.calls[FAKE_ctx_synchronize], 0);
    CHECK_EQ(fake.calls[FAKE_launch_kernel], 0);
    CHECK_EQ(fake.streams, 0);
    fake_check_empty();
}

/* --- planted faults: each is found, and nothing else */

#define PLANTED(name, field, function, fact) \
    MS_TEST_AFTER(begin, name)               \
    {                                        \
        ms_driver.field = function;          \
        expect(fact);                        \
    }

static size_t to_end_of_handle(CUdeviceptr address, size_t bytes)
{
    const size_t left = FAKE_GRANULE - address % FAKE_GRANULE;
    return left < bytes ? left : bytes;
}

static CUresult short_set(CUdeviceptr address, unsigned value, size_t count, CUstream stream)
{
    return right.memset_d32_async(address, value, to_end_of_handle(address, 4 * count) / 4, stream);
}

PLANTED(a_set_that_ends_with_its_handle, memset_d32_async, short_set, MS_FACT_SET)

static CUresult short_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return right.memcpy_dtod_async(to, from, to_end_of_handle(from, bytes), stream);
}

PLANTED(a_copy_on_the_device_that_ends_with_its_handle, memcpy_dtod_async, short_copy, MS_FACT_COPY)

static CUresult short_read(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return right.memcpy_dtoh_async(to, from, to_end_of_handle(from, bytes), stream);
}

PLANTED(a_copy_to_the_host_that_ends_with_its_handle, memcpy_dtoh_async, short_read, MS_FACT_COPY)

static CUresult one_row_less(const CUDA_MEMCPY2D *copy, CUstream stream)
{
    CUDA_MEMCPY2D less = *copy;
    less.Height -= copy->srcMemoryType == CU_MEMORYTYPE_DEVICE;
    return right.memcpy_2d_async(&less, stream);
}

PLANTED(a_2d_copy_that_leaves_out_a_row, memcpy_2d_async, one_row_less, MS_FACT_COPY_2D)

static CUresult small_granules(size_t *granule, const CUmemAllocationProp *prop,
                               CUmemAllocationGranularity_flags option)
{
    const CUresult result = right.mem_get_granularity(granule, prop, option);
    *granule /= prop->allocFlags.gpuDirectRDMACapable != 0 ? 1 : 2;
    return result;
}

static CUresult has_rdma(int *value, CUdevice_attribute attribute, CUdevice device)
{
    *value = attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
    return *value ? CUDA_SUCCESS : right.device_get_attribute(value, attribute, device);
}

MS_TEST_AFTER(begin, a_granularity_of_its_own)
{
    ms_driver.mem_get_granularity = small_granules;
    ms_driver.device_get_attribute = has_rdma;
    expect(MS_FACT_GRANULARITY);
}

static CUresult low_addresses(CUdeviceptr *address, size_t bytes, size_t alignment,
                              __attribute__((unused)) CUdeviceptr wish, unsigned long long flags)
{
    enum { LOW = 1 << 30 };
    return right.mem_address_reserve(address, bytes, alignment, LOW, flags);
}

PLANTED(a_hint_that_is_not_honoured, mem_address_reserve, low_addresses, MS_FACT_HINT)

/* Maps a copy of the memory where it is mapped already. */
static CUresult map_apart(CUdeviceptr address, size_t bytes, size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    static const CUmemAllocationProp prop = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemGenericAllocationHandle other;
    if (fake.mappings < 3)
        return right.mem_map(address, bytes, offset, handle, flags);
    CHECK_EQ(right.mem_create(&other, bytes, &prop, 0), CUDA_SUCCESS);
    const CUresult result = right.mem_map(address, bytes, offset, other, flags);
    right.mem_release(other);
    return result;
}

PLANTED(memory_that_is_another_at_a_second_address, mem_map, map_apart, MS_FACT_ALIAS)

static CUresult refuse_fourth(CUdeviceptr address, size_t bytes, size_t offset,
                              CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    return fake.mappings < 3 ? right.mem_map(address, bytes, offset, handle, flags)
                             : CUDA_ERROR_INVALID_VALUE;
}

MS_TEST_AFTER(begin, a_second_address_that_is_refused)
{
    ms_driver.mem_map = refuse_fourth;
    expect(MS_FACT_ALIAS);
    CHECK_EQ(report.refused, MS_FACT_BIT(MS_FACT_ALIAS));
}

/* A copy that waits: it runs when the stream is asked. */
static struct {
    CUdeviceptr to;
    const void *from;
    size_t bytes; /* 0: none waits */
} late;

static CUresult copy_late(CUdeviceptr to, const void *from, size_t bytes,
                          __attribute__((unused)) CUstream stream)
{
    late.to = to;
    late.from = from;
    late.bytes = bytes;
    return CUDA_SUCCESS;
}

static CUresult query_late(CUstream stream)
{
    if (late.bytes > 0)
        right.memcpy_htod_async(late.to, late.from, late.bytes, stream);
    late.bytes = 0;
    return right.stream_query(stream);
}

MS_TEST_AFTER(begin, a_source_that_is_read_late)
{
    ms_driver.memcpy_htod_async = copy_late;
    ms_driver.stream_query = query_late;
    expect(MS_FACT_SOURCE);
}

/* Sets that run when the stream in which they are is asked. Events do not wait for them. */
static struct set {
    CUdeviceptr address;
    unsigned char value;
    size_t bytes;
    CUstream stream; /* NULL: none waits */
} last_set;

static CUresult set_late(CUdeviceptr address, unsigned char value, size_t bytes, CUstream stream)
{
    last_set = (struct set){address, value, bytes, stream};
    return CUDA_SUCCESS;
}

static void run_set(void)
{
    if (last_set.stream != NULL)
        right.memset_d8_async(last_set.address, last_set.value, last_set.bytes, last_set.stream);
    last_set.stream = NULL;
}

static CUresult query_sets(CUstream stream)
{
    if (stream == last_set.stream)
        run_set();
    return right.stream_query(stream);
}

static CUresult record_after_sets(CUevent event, CUstream stream)
{
    run_set();
    return right.event_record(event, stream);
}

static CUresult record_context_after_sets(CUcontext context, CUevent event)
{
    run_set();
    return right.ctx_record_event(context, event);
}

static void make_sets_late(void)
{
    begin();
    ms_driver.memset_d8_async = set_late;
    ms_driver.stream_query = query_sets;
}

MS_TEST(an_event_that_is_complete_too_early)
{
    make_sets_late();
    ms_driver.ctx_record_event = record_context_after_sets;
    expect(MS_FACT_EVENT);
}

MS_TEST(an_event_of_the_context_that_is_complete_too_early)
{
    make_sets_late();
    ms_driver.event_record = record_after_sets;
    expect(MS_FACT_CONTEXT_EVENT);
}

STORY_AFTER(begin, a_driver_without_events_of_the_context,
            fake_fail(FAKE_ctx_record_event, 1, CUDA_ERROR_NOT_SUPPORTED), run(),
            IS(fake_has_failed()), EQUALS(report.unmet | report.unknown, 0), fake_check_empty())

/* After an unmapping, this driver maps the memory that was there before. */
static CUmemGenericAllocationHandle mapped_first;
static unsigned unmapped;

static CUresult map_stale(CUdeviceptr address, size_t bytes, size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    if (mapped_first == 0)
        mapped_first = handle;
    return right.mem_map(address, bytes, offset, unmapped > 1 ? mapped_first : handle, flags);
}

static CUresult unmap_counted(CUdeviceptr address, size_t bytes)
{
    unmapped++;
    return right.mem_unmap(address, bytes);
}

MS_TEST_AFTER(begin, an_address_that_leads_to_what_was_unmapped)
{
    ms_driver.mem_map = map_stale;
    ms_driver.mem_unmap = unmap_counted;
    expect(MS_FACT_REMAP);
}

static CUresult refuse_granules(CUmemGenericAllocationHandle *handle, size_t bytes,
                                const CUmemAllocationProp *prop, unsigned long long flags)
{
    return bytes == FAKE_GRANULE ? CUDA_ERROR_INVALID_VALUE
                                 : right.mem_create(handle, bytes, prop, flags);
}

MS_TEST_AFTER(begin, memory_that_cannot_be_made)
{
    ms_driver.mem_create = refuse_granules;
    run();
    CHECK_EQ(report.unmet, MS_FACT_BIT(MS_FACT_MEMORY));
    CHECK(strstr(report.seen[MS_FACT_MEMORY], "cuMemCreate of 65536 bytes") != NULL);
    CHECK_EQ(report.unknown & MS_FACT_BIT(MS_FACT_SET), MS_FACT_BIT(MS_FACT_SET));
    fake_check_empty();
}

/* --- no answer */

MS_TEST_AFTER(begin, no_memory_is_taken_where_little_is_free)
{
    fake.total_bytes = (size_t)15 * FAKE_GRANULE;
    run();
    CHECK_EQ(report.unmet, 0);
    CHECK_EQ(report.unknown, MS_FACT_BIT(MS_FACT_RESOLVER) - 1);
    CHECK_EQ(fake.calls[FAKE_mem_create], 0);
    fake_check_empty();
}

MS_TEST(an_error_of_the_program_is_no_answer_and_nothing_is_left)
{
    bool has_failed = true;
    for (unsigned nth = 1; has_failed; nth++) {
        begin();
        fake_fail(FAKE_ANY, nth, CUDA_ERROR_LAUNCH_FAILED);
        run();
        has_failed = fake_has_failed();
        CHECK_EQ(report.unmet & ~MS_FACT_BIT(MS_FACT_HINT),
                 0); /* it was refused, or not honoured */
        CHECK_EQ(fake.streams, 0);
        fake_check_empty();
    }
}

MS_TEST_AFTER(begin, a_capture_leaves_the_events_of_the_context_alone)
{
    ms_hot.captures = 1;
    run();
    ms_hot.captures = 0;
    CHECK_EQ(fake.calls[FAKE_ctx_record_event], 0);
    CHECK_EQ(report.unknown, MS_FACT_BIT(MS_FACT_CONTEXT_EVENT));
    CHECK_EQ(report.unmet, 0);
    fake_check_empty();
}

MS_TEST_AFTER(begin, a_device_that_does_not_finish_is_left_alone)
{
    fake.is_busy = true;
    run();
    CHECK_EQ(report.unmet, 0);
    CHECK_EQ(report.unknown, MS_FACT_BIT(MS_FACT_RESOLVER) - 1);
    CHECK(report.is_stuck);
    CHECK_EQ(fake.calls[FAKE_mem_unmap], 0); /* queued work may still write there */
}

/* The one that writes, or the one that reads: it may have been queued by a call that failed. */
MS_TEST(a_stream_that_does_not_finish_keeps_its_memory)
{
    static const uintptr_t streams[] = {101, 104}; /* of the first two, and the next two */
    for (int i = 0; i < 2; i++) {
        begin();
        fake.busy_stream = (CUstream)streams[i];
        fake_fail(FAKE_memcpy_dtoh_async, 1, CUDA_ERROR_UNKNOWN);
        run();
        CHECK_EQ(fake.calls[FAKE_mem_unmap], 0);
        CHECK_EQ(fake.streams, 2);
    }
}
