/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/shadow.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/fill/reuse.h"
#include "runtime/kernel/call.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/memory/recorded_launch.h"
#include "runtime/state/counters.h"
#include "tests/unit/between.h"
#include "tests/unit/counted_heap.h"
#include "tests/unit/fake_driver.h"

enum { G = FAKE_GRANULE, GRANULES = 4, BYTES = GRANULES * G - 100 };

static const struct ms_content fill = {.kind = MS_FILL, .pattern = 0x04030201};
static struct ms_allocation *allocation, *other;
static unsigned char host[3 * G];

static void start(void)
{
    fake_start();
    ms_config.mode = MS_VERIFY;
    ms_config.verify_percent = 100;
    allocation = fake_allocation(BYTES);
    other = fake_allocation(BYTES);
    for (size_t i = 0; i < sizeof(host); i++)
        host[i] = (unsigned char)(i % 251 + 1);
}

static void end(void)
{
    fake_allocation_free(allocation);
    fake_allocation_free(other);
    fake_check_empty();
}

static uint64_t left_out(void)
{
    return ms_counter_get(MS_COUNT_VERIFY_LEFT_OUT_BYTES);
}

static const unsigned char *shadow_at(const struct ms_allocation *of, size_t offset)
{
    return (const unsigned char *)(uintptr_t)ms_shadow_address(of, offset);
}

static void note(struct ms_allocation *of, size_t begin, size_t end)
{
    const struct ms_content content = {.kind = MS_FILL, .pattern = 5, .is_shadowed = true};
    CHECK(ms_lineage_set(&MS_OWN(of)->lineage, begin, end, &content));
}

/* A write of bytes, or a fill (NULL). True if the bytes have a shadow. */
static bool write(struct ms_allocation *to, size_t begin, size_t end, const void *bytes)
{
    struct ms_extent written = {begin, end, fill};
    ms_shadow_write(to, &written, bytes, FAKE_STREAM);
    return written.content.is_shadowed;
}

/* Writes the host's bytes. */
static void write_bytes(struct ms_allocation *to, size_t begin, size_t end)
{
    CHECK(write(to, begin, end, host));
    note(to, begin, end);
}

/* --- writes */

MS_TEST_BETWEEN(start, end, the_last_byte_has_a_shadow)
{
    struct ms_allocation *longer = fake_allocation(G + 1);
    write_bytes(longer, G - 1, G + 1);
    CHECK_EQ(longer->notes.shadow->bytes, 2 * G);
    CHECK_BYTES(shadow_at(longer, G - 1), host, 2);
    fake_allocation_free(longer);
}

MS_TEST_BETWEEN(start, end, a_write_is_in_the_shadow_when_it_returns)
{
    CHECK_EQ(ms_shadow_address(allocation, 5), 0);
    fake.is_busy = true;
    write_bytes(allocation, G + 10, G + 20);
    CHECK_BYTES(shadow_at(allocation, G + 10), host, 10);
    CHECK_EQ(shadow_at(allocation, G + 20)[0], 0);
    CHECK(fake.calls[FAKE_event_synchronize] == 1 && fake.events == 0);
    CHECK(fake.work[0].stream == FAKE_STREAM);
    CHECK_EQ(allocation->notes.shadow->backed_bytes, G);
    CHECK_EQ(allocation->notes.shadow->bytes, GRANULES * G);
    CHECK_EQ(ms_shadow_address(allocation, 5) - ms_shadow_address(allocation, 0), 5);
    CHECK(write(allocation, 1, 4, NULL));
    CHECK_BYTES(shadow_at(allocation, 0), "\0\2\3\4\0", 5);
    CHECK_EQ(allocation->notes.shadow->backed_bytes, 2 * G);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 0);
    CHECK(other->notes.shadow == NULL && left_out() == 0);
    write_bytes(allocation, 3 * G - 1, 3 * G + 1); /* a byte of each of two granules */
    CHECK_EQ(allocation->notes.shadow->backed_bytes, 4 * G);
}

/* Samples eight allocations in a row, whatever number the first one has. */
static unsigned count_sampled(unsigned percent, unsigned *last_out)
{
    struct ms_allocation *all[8];
    unsigned count = 0;
    ms_config.verify_percent = percent;
    for (unsigned i = 0; i < 8; i++) {
        const uint64_t before = left_out();
        all[i] = fake_allocation(G);
        const bool is_sampled = write(all[i], 0, 10, NULL);
        CHECK_EQ(left_out() - before, is_sampled ? 0 : 10);
        CHECK_EQ(is_sampled, all[i]->notes.shadow != NULL);
        *last_out = is_sampled ? (unsigned)all[i]->id : *last_out;
        count += is_sampled;
    }
    for (unsigned i = 0; i < 8; i++)
        fake_allocation_free(all[i]);
    return count;
}

MS_TEST_BETWEEN(start, end, so_many_of_a_hundred_allocations_have_one)
{
    unsigned last = 0;
    CHECK_EQ(count_sampled(0, &last), 0);
    CHECK_EQ(count_sampled(25, &last), 2);
    CHECK_EQ(last % 4, 0);
    CHECK_EQ(count_sampled(100, &last), 8);
    CHECK_EQ(count_sampled(UINT32_MAX, &last), 8);
}

MS_TEST(a_failure_leaves_nothing_half_done)
{
    bool has_failed = true;
    for (unsigned nth = 1; has_failed; nth++) {
        start();
        const uint64_t before = left_out();
        fake_fail(FAKE_ANY, nth, CUDA_ERROR_UNKNOWN);
        const bool is_written = write(allocation, G, 2 * G, host);
        has_failed = fake_has_failed();
        fake_fail(FAKE_ANY, 0, CUDA_SUCCESS);
        CHECK(is_written || has_failed);
        CHECK(left_out() - before == G || is_written || left_out() == before);
        CHECK(fake.pushed_contexts == 0 && fake.events == 0);
        CHECK_EQ(fake.capture_mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
        if (is_written)
            CHECK_BYTES(shadow_at(allocation, G), host, G);
        write_bytes(allocation, 0, G); /* as if nothing had been */
        CHECK_BYTES(shadow_at(allocation, 0), host, G);
        end();
    }
}

MS_TEST_BETWEEN(start, end, work_that_failed_is_no_shadow_and_is_waited_for)
{
    fake_fail(FAKE_memcpy_htod_async, 1, CUDA_ERROR_INVALID_VALUE);
    CHECK(!write(allocation, 0, G, host));
    CHECK_EQ(fake.calls[FAKE_event_synchronize], 1);
    CHECK_EQ(left_out(), G);
    fake.wait_result = CUDA_ERROR_LAUNCH_FAILED;
    CHECK(!write(allocation, 0, G, host));
    CHECK_EQ(left_out(), 2 * G);
}

/* Without memory of the host or the device, or addresses. */
MS_TEST_BETWEEN(start, end, an_allocation_has_no_shadow_without_memory)
{
    const int before = live;
    may_make = 0;
    CHECK(!write(allocation, 0, G, host));
    may_make = 1000000;
    fake_fail(FAKE_mem_get_granularity, 1, CUDA_ERROR_UNKNOWN);
    CHECK(!write(allocation, 0, G, host));
    CHECK(allocation->notes.shadow == NULL && live == before && left_out() == 2 * G);
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(!write(allocation, 0, G, host));
    CHECK(fake.calls[FAKE_event_synchronize] == 0 && fake.work_count == 0); /* nothing is queued */
    CHECK_EQ(left_out(), 3 * G);
}

/* --- waiting */

MS_TEST_BETWEEN(start, end, a_wait_without_an_event_waits_for_the_stream)
{
    CHECK_EQ(ms_shadow_wait(FAKE_STREAM), CUDA_SUCCESS);
    CHECK(fake.calls[FAKE_event_synchronize] == 1 && fake.calls[FAKE_stream_synchronize] == 0);
    fake_fail(FAKE_event_create, 1, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(ms_shadow_wait(FAKE_STREAM), CUDA_SUCCESS);
    CHECK_EQ(fake.calls[FAKE_stream_synchronize], 1);
    fake_fail(FAKE_event_record, 1, CUDA_ERROR_INVALID_HANDLE);
    CHECK_EQ(ms_shadow_wait(FAKE_STREAM), CUDA_SUCCESS);
    CHECK_EQ(fake.calls[FAKE_stream_synchronize], 2);
    CHECK_EQ(fake.calls[FAKE_event_synchronize], 1);
    fake.refused_stream = FAKE_STREAM;
    CHECK_EQ(ms_shadow_wait(FAKE_STREAM), CUDA_ERROR_INVALID_HANDLE);
    fake.refused_stream = NULL;
    fake.wait_result = CUDA_ERROR_LAUNCH_FAILED;
    CHECK_EQ(ms_shadow_wait(FAKE_STREAM), CUDA_ERROR_LAUNCH_FAILED);
    CHECK_EQ(fake.events, 0);
    fake.wait_result = CUDA_SUCCESS;
}

/* --- copies */

static bool copy(bool is_shadowed)
{
    const struct ms_content content = {.kind = MS_FILL, .is_shadowed = is_shadowed};
    struct ms_content moved = {.kind = MS_FILL};
    ms_shadow_copy(&(struct ms_copied){&content, allocation, G, other, 3 * G - 19, 20}, &moved,
                   FAKE_STREAM);
    return moved.is_shadowed;
}

MS_TEST_BETWEEN(start, end, a_copy_of_what_has_a_shadow_has_one)
{
    write_bytes(allocation, G, 2 * G);
    CHECK(copy(true));
    CHECK_BYTES(shadow_at(other, 3 * G - 19), host, 20);
    CHECK(other->notes.shadow->backed_bytes == 2 * G && left_out() == 0);
    CHECK_EQ(fake.work[fake.work_count - 1].bytes, 20);
}

MS_TEST_BETWEEN(start, end, a_copy_of_what_has_none_or_of_another_device_has_none)
{
    write_bytes(allocation, G, 2 * G);
    CHECK(!copy(false));
    other->device = 1;
    CHECK(!copy(true));
    other->device = 0;
    CHECK(other->notes.shadow == NULL && left_out() == 40);
    fake_fail(FAKE_memcpy_dtod_async, 1, CUDA_ERROR_INVALID_VALUE);
    CHECK(!copy(true));
    CHECK_EQ(left_out(), 60);
    fake_fail(FAKE_ctx_get_current, 1, CUDA_ERROR_DEINITIALIZED);
    CHECK(!copy(true));
    fake_fail(FAKE_exchange_capture_mode, 1, CUDA_ERROR_DEINITIALIZED);
    CHECK(!copy(true));
}

/* --- launches */

static CUdeviceptr wrote, took; /* where the kernel was to */
static CUresult launch_result;

static CUresult launch_kernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                              unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                              unsigned shared, CUstream stream, void **params, void **extra)
{
    CHECK(function != NULL && stream == FAKE_STREAM && extra == NULL);
    CHECK_EQ(grid_x + grid_y + grid_z + block_x + block_y + block_z + shared, 6);
    memcpy(&wrote, params[0], 8);
    memcpy(&took, params[1], 8);
    return launch_result;
}

static struct ms_launch *record(CUdeviceptr out, CUdeviceptr in)
{
    static char name[] = "kernel";
    struct ms_param_layout *layout = calloc(1, sizeof(*layout) + 2 * sizeof(layout->params[0]));
    *layout = (struct ms_param_layout){
        .counted = {.references = 1000}, .known = true, .count = 2, .bytes = 16, .name = name};
    layout->params[0] = (struct ms_param){0, 8};
    layout->params[1] = (struct ms_param){8, 8};
    const CUdeviceptr pointers[2] = {out, in};
    const struct ms_packed packed = {.bytes = (const unsigned char *)pointers, .count = 16};
    const struct ms_call call = {
        .function = (CUfunction)1, .grid = {1, 1, 1}, .block = {1, 1, 1}, .stream = FAKE_STREAM};
    const size_t offsets[2] = {0, 8};
    ms_driver.launch_kernel = launch_kernel;
    launch_result = CUDA_SUCCESS;
    return ms_call_record(&call, layout, &packed, offsets, 2);
}

static bool run(const struct ms_part *out, const struct ms_part *in, struct ms_launch *launch)
{
    struct ms_recorded_launch recorded = {.launch = launch};
    struct ms_content launched = {.kind = MS_LAUNCHED, .recorded = &recorded};
    ms_shadow_launch(out, in, &launched, FAKE_STREAM);
    return launched.is_shadowed;
}

MS_TEST_BETWEEN(start, end, a_launch_runs_over_the_shadows)
{
    const struct ms_part out = {allocation, 10, 3 * G}, in = {other, G, 2 * G};
    struct ms_launch *launch = record(allocation->address + 10, other->address + G);
    write_bytes(other, G, 2 * G);
    write_bytes(allocation, G, 2 * G);
    write_bytes(allocation, 2 * G, 3 * G + 1);
    CHECK(ms_lineage_set(&MS_OWN(allocation)->lineage, 2 * G, BYTES,
                         &(struct ms_content){.kind = MS_UNDEFINED}));
    CHECK(run(&out, &in, launch));
    CHECK_EQ(wrote, ms_shadow_address(allocation, 10));
    CHECK_EQ(took, ms_shadow_address(other, G));
    CHECK_BYTES(shadow_at(allocation, G), host, G);
    static const unsigned char zeros[G];
    CHECK_BYTES(shadow_at(allocation, 10), zeros, G - 10); /* what was never written */
    CHECK_BYTES(shadow_at(allocation, 2 * G), zeros, G);
    CHECK_BYTES(shadow_at(allocation, 3 * G), host + G, 1); /* behind it */
    CHECK_EQ(left_out(), 0);
    ms_call_forget(launch);
}

MS_TEST_BETWEEN(start, end, a_launch_over_one_block_alone_has_both_pointers_there)
{
    const struct ms_part out = {allocation, 10, G};
    struct ms_launch *launch = record(allocation->address + 10, allocation->address + 18);
    CHECK(run(&out, NULL, launch));
    CHECK_EQ(wrote, ms_shadow_address(allocation, 10));
    CHECK_EQ(took, ms_shadow_address(allocation, 18));
    CHECK(fake.calls[FAKE_event_synchronize] == 1);
    launch_result = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    CHECK(!run(&out, NULL, launch));
    CHECK_EQ(left_out(), G - 10);
    wrote = 0;
    fake_fail(FAKE_ctx_get_current, 1, CUDA_ERROR_DEINITIALIZED);
    CHECK(!run(&out, NULL, launch));
    CHECK(wrote == 0 && left_out() == G - 10);
    ms_call_forget(launch);
}

MS_TEST_BETWEEN(start, end, a_launch_runs_only_if_all_that_it_needs_has_a_shadow)
{
    const struct ms_part out = {allocation, 0, 2 * G}, in = {other, 0, G};
    struct ms_launch *launch = record(allocation->address, other->address);
    CHECK(ms_lineage_set(&MS_OWN(other)->lineage, G - 1, 2 * G, &fill));
    wrote = 0;
    CHECK(!run(&out, &in, launch));
    CHECK(run(&out, &(struct ms_part){other, 0, G - 1}, launch));
    CHECK(wrote != 0 && left_out() == 2 * G);
    wrote = 0;
    CHECK(ms_lineage_set(&MS_OWN(allocation)->lineage, G, G + 1, &fill));
    CHECK(!run(&out, NULL, launch));
    CHECK_EQ(wrote, 0);
    fake_fail(FAKE_memset_d8_async, 1, CUDA_ERROR_INVALID_VALUE);
    CHECK(!run(&(struct ms_part){allocation, 0, G}, NULL, launch));
    CHECK_EQ(wrote, 0);
    ms_config.verify_percent = 0;
    CHECK(!run(&(struct ms_part){allocation, 0, G}, NULL, launch));
    CHECK_EQ(wrote, 0);
    ms_call_forget(launch);
}

/* --- given back */

static CUstreamCaptureMode unmapped_in;
static CUresult (*unmap)(CUdeviceptr address, size_t bytes);

static CUresult note_unmap(CUdeviceptr address, size_t bytes)
{
    unmapped_in = fake.capture_mode;
    return unmap(address, bytes);
}

/* Each granule has memory of its own. */
static void cover(void)
{
    for (size_t at = 0; at < BYTES; at += G)
        write_bytes(allocation, at, at + G < BYTES ? at + G : BYTES);
}

MS_TEST_BETWEEN(start, end, a_trim_drops_the_shadow_of_whole_granules)
{
    ms_shadow_trim(allocation, 0, BYTES); /* there is none */
    cover();
    unmap = ms_driver.mem_unmap;
    ms_driver.mem_unmap = note_unmap;
    ms_shadow_trim(allocation, 1, 2 * G - 1);
    CHECK_EQ(allocation->notes.shadow->backed_bytes, 4 * G);
    ms_shadow_trim(allocation, 1, 2 * G);
    CHECK_EQ(allocation->notes.shadow->backed_bytes, 3 * G);
    CHECK_EQ(unmapped_in, CU_STREAM_CAPTURE_MODE_RELAXED);
    ms_shadow_trim(allocation, 3 * G, BYTES - 1);
    CHECK_EQ(allocation->notes.shadow->backed_bytes, 3 * G);
    fake_fail(FAKE_ctx_get_current, 1, CUDA_ERROR_DEINITIALIZED);
    ms_shadow_trim(allocation, 0, BYTES);
    CHECK_EQ(allocation->notes.shadow->backed_bytes, 3 * G);
    ms_shadow_trim(allocation, 3 * G, BYTES); /* the last granule reaches behind the end */
    CHECK_EQ(allocation->notes.shadow->backed_bytes, 2 * G);
    CHECK_EQ(fake.capture_mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

MS_TEST_BETWEEN(start, end, all_shadows_are_given_up_but_those_of_claimed_allocations)
{
    const int before = live;
    cover();
    write_bytes(other, 0, G);
    CHECK(ms_space_claim(other->address) == other);
    CHECK_EQ(ms_shadow_give_up(), 4 * G);
    CHECK(allocation->notes.shadow == NULL && other->notes.shadow != NULL && left_out() == 4 * G);
    CHECK(!ms_lineage_at(ms_allocation_lineage(allocation), 0).content.is_shadowed);
    CHECK(!ms_lineage_at(ms_allocation_lineage(allocation), BYTES - 1).content.is_shadowed);
    CHECK(ms_lineage_at(ms_allocation_lineage(other), 0).content.is_shadowed);
    ms_space_release(other);
    CHECK_EQ(ms_shadow_give_up(), G);
    CHECK(other->notes.shadow == NULL && live == before);
    CHECK(ms_space_try_claim(other->address) == other); /* nobody has it any more */
    ms_space_release(other);
    CHECK_EQ(ms_shadow_give_up(), 0);
}

MS_TEST_BETWEEN(start, end, none_is_given_up_during_a_capture_or_without_verify_mode)
{
    cover();
    ms_hot.captures = 1;
    CHECK_EQ(ms_shadow_give_up(), 0);
    ms_hot.captures = 0;
    ms_config.mode = MS_ON;
    CHECK_EQ(ms_shadow_give_up(), 0);
    ms_config.mode = MS_VERIFY;
    CHECK_EQ(allocation->notes.shadow->backed_bytes, 4 * G);
    ms_shadow_trim(allocation, 0, BYTES);
    CHECK_EQ(ms_shadow_give_up(), 0); /* it has no memory any more */
    CHECK(allocation->notes.shadow != NULL);
}
