/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/write.h"

#include <string.h>

#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/files/host_snapshot.h"
#include "runtime/fill/compare.h"
#include "runtime/fill/materialise.h"
#include "runtime/fill/shadow.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/memory/space.h"
#include "runtime/order/order.h"
#include "runtime/state/counters.h"
#include "runtime/state/state.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/files/files.h"
#include "tests/unit/use_plan.h"

enum { BYTES = 2 * FAKE_GRANULE };

static struct ms_allocation *allocation;
static unsigned char host[BYTES];

static void start(void)
{
    const struct ms_content nines = {.kind = MS_FILL, .pattern = 0x09090909};
    fake_start();
    allocation = fake_allocation(BYTES);
    fake_set(allocation, 0, BYTES, &nines);
    ms_host_snapshot_set_limit(16 * BYTES);
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
    return ms_lineage_at(ms_allocation_lineage(allocation), 0).content;
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

static bool copy_bytes(CUdeviceptr to, const void *from, size_t bytes, CUresult *result_out)
{
    const struct ms_movement movement = {.kind = MS_COPY_FROM_HOST,
                                         .stream = FAKE_STREAM,
                                         .width = bytes,
                                         .height = 1,
                                         .depth = 1,
                                         .to = ms_side_of_device(to),
                                         .from = ms_side_of_host(from)};
    return ms_write_from_host(&movement, result_out);
}

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
    CHECK_EQ(ms_lineage_at(ms_allocation_lineage(other), 0).content.kind, MS_SOURCE);
    CHECK(!ms_lineage_any(ms_allocation_lineage(allocation), 0, BYTES, MS_MISSING));
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

/* --- the rest of sets */

/* There are shadows where the test says so. */
static unsigned shadows, trims, comparisons;
static bool has_shadow;
static size_t shadow_begin, shadow_end, trim_begin, trim_end, compared_begin, compared_bytes;
static const void *shadow_host;

WRAPS(ms_shadow_write, ms_shadow_trim, ms_compare_copy, ms_state_event);
void __wrap_ms_shadow_write(struct ms_allocation *of, struct ms_extent *written, const void *from,
                            CUstream stream)
{
    struct ms_content *what = &written->content;
    CHECK(of == allocation && stream == FAKE_STREAM && !what->is_shadowed);
    CHECK(what->kind == MS_FILL || what->source_offset == written->begin - 100);
    shadows++;
    shadow_begin = written->begin;
    shadow_end = written->end;
    shadow_host = from;
    what->is_shadowed = has_shadow;
}

void __wrap_ms_shadow_trim(struct ms_allocation *of, size_t begin, size_t behind)
{
    trims += of == allocation;
    trim_begin = begin;
    trim_end = behind;
}

void __wrap_ms_compare_copy(struct ms_allocation *from, const struct ms_extent *extent,
                            CUdeviceptr at, bool is_plain, CUstream stream)
{
    CHECK(from == allocation && at == allocation->address + extent->begin);
    CHECK(is_plain && stream == FAKE_STREAM);
    comparisons += extent->content.is_shadowed;
    compared_begin = extent->begin;
    compared_bytes = extent->end - extent->begin;
}

static struct ms_event event; /* the last */

void __wrap_ms_state_event(const struct ms_event *happened)
{
    event = *happened;
}

static struct ms_content content_at(size_t offset)
{
    return ms_lineage_at(ms_allocation_lineage(allocation), offset).content;
}

static void be_busy(bool is_busy)
{
    atomic_store(&ms_hot.gated, is_busy);
    fake.is_busy = is_busy;
}

static CUresult read_all(void)
{
    CHECK(ms_space_claim(allocation->address) == allocation);
    const CUresult result = ms_materialise(allocation, 0, BYTES, MS_NEED_READ);
    ms_space_release(allocation);
    return result;
}

static const unsigned char *bytes_at(size_t offset)
{
    return (const unsigned char *)(uintptr_t)(allocation->address + offset);
}

MS_TEST_BETWEEN(start, end, a_set_of_a_part_leaves_what_is_around_it)
{
    CUresult result;
    CHECK(set(allocation->address + 4, 0x01020304, 4, 100, &result) && result == CUDA_SUCCESS);
    CHECK_EQ(ms_counter_get(MS_COUNT_RECORDED_FILL_BYTES), 400);
    CHECK(event.kind == MS_EVENT_RECORD && event.address == allocation->address + 4);
    CHECK(event.bytes == 400 && !event.loads);
    CHECK(content_at(3).pattern == 0x09090909 && content_at(404).pattern == 0x09090909);
    CHECK_EQ(read_all(), CUDA_SUCCESS);
    CHECK(*bytes_at(3) == 9 && *bytes_at(4) == 4 && *bytes_at(403) == 1 && *bytes_at(404) == 9);
}

MS_TEST_BETWEEN(start, end, a_set_of_nothing_or_of_other_memory_is_for_the_driver)
{
    CUresult result;
    CHECK(!set(allocation->address, 3, 1, 0, &result));
    const CUdeviceptr program = fake_program_memory(FAKE_GRANULE);
    CHECK(!set(program, 3, 1, 100, &result) && result == CUDA_SUCCESS);
    fake_program_memory_free(program);
    CHECK_EQ(content().pattern, 0x09090909);
}

MS_TEST_BETWEEN(start, end, a_set_of_elements_that_are_not_aligned_is_refused)
{
    CUresult result;
    CHECK(set(allocation->address + 1, 3, 2, 4, &result) && result == CUDA_ERROR_INVALID_VALUE);
    CHECK(set(allocation->address + 2, 3, 4, 4, &result) && result == CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(content_at(4).pattern, 0x09090909);
    CHECK(set(allocation->address + 2, 3, 2, 4, &result) && result == CUDA_SUCCESS);
}

MS_TEST_BETWEEN(start, end, the_driver_sets_bytes_in_memory)
{
    CUresult result;
    CHECK_EQ(read_all(), CUDA_SUCCESS);
    CHECK(!set(allocation->address, 3, 1, BYTES, &result) && result == CUDA_SUCCESS);
    CHECK_EQ(content().kind, MS_RESIDENT);
    CHECK_EQ(ms_counter_get(MS_COUNT_RECORDED_FILL_BYTES), 0);
}

MS_TEST_BETWEEN(start, end, the_driver_sets_behind_work_that_may_wait)
{
    CUresult result;
    be_busy(true);
    CHECK(!set(allocation->address, 3, 1, FAKE_GRANULE, &result) && result == CUDA_SUCCESS);
    CHECK(content().kind == MS_RESIDENT && content_at(FAKE_GRANULE).kind == MS_FILL);
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    CHECK(set(allocation->address + FAKE_GRANULE, 3, 1, 5, &result));
    CHECK_EQ(result, CUDA_ERROR_UNKNOWN);
    be_busy(false);
}

/* Another process may have set half of an address before. */
MS_TEST_BETWEEN(start, end, a_set_to_a_part_of_an_address_that_has_no_memory_is_refused)
{
    CUresult result;
    fake_needs_hints();
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    CHECK(set(allocation->address, (uint32_t)(allocation->address >> 32), 4, 4, &result));
    CHECK_EQ(result, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(content().pattern, 0x09090909);
}

/* --- the rest of copies from the host */

static void check_copied(size_t to, const void *from, size_t bytes)
{
    CUresult result = CUDA_ERROR_UNKNOWN;
    CHECK(copy_bytes(allocation->address + to, from, bytes, &result));
    CHECK_EQ(result, CUDA_SUCCESS);
}

MS_TEST_BETWEEN(start, end, a_copy_of_bytes_is_a_snapshot_of_them)
{
    const uint64_t before = ms_counter_get(MS_COUNT_RECORDED_SNAPSHOT_BYTES);
    check_copied(100, host + 7, 1000);
    CHECK_EQ(ms_counter_get(MS_COUNT_RECORDED_SNAPSHOT_BYTES) - before, 1000);
    CHECK(event.kind == MS_EVENT_RECORD && event.address == allocation->address + 100);
    CHECK(event.bytes == 1000 && event.loads && event.block == allocation->id);
    CHECK_EQ(strcmp(event.text, "bytes of memory"), 0);
    CHECK(content_at(99).kind == MS_FILL && content_at(1100).kind == MS_FILL);
    unsigned char wanted[1000];
    memcpy(wanted, host + 7, sizeof(wanted));
    memset(host, 0, sizeof(host)); /* the program uses them again */
    CHECK_EQ(read_all(), CUDA_SUCCESS);
    CHECK_BYTES(bytes_at(100), wanted, sizeof(wanted));
    CHECK(*bytes_at(99) == 9 && *bytes_at(1100) == 9);
}

MS_TEST_BETWEEN(start, end, a_copy_of_zeros_is_a_fill)
{
    const uint64_t before = ms_counter_get(MS_COUNT_RECORDED_FILL_BYTES);
    memset(host, 0, sizeof(host));
    check_copied(0, host, 4096);
    CHECK(content().kind == MS_FILL && content().pattern == 0);
    CHECK_EQ(ms_counter_get(MS_COUNT_RECORDED_FILL_BYTES) - before, 4096);
    CHECK(strcmp(event.text, "memory of zeros") == 0 && !event.loads);
    host[4095] = 1;
    check_copied(0, host, 4096);
    CHECK_EQ(content().kind, MS_SOURCE);
}

MS_TEST_BETWEEN(start, end, a_copy_of_a_file_is_a_part_of_that)
{
    static struct test_file file;
    make_test_file(&file, "/tmp", BYTES);
    void *mapped = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, file.descriptor, 0);
    CHECK(mapped != MAP_FAILED);
    const uint64_t before = ms_counter_get(MS_COUNT_RECORDED_FILE_BYTES);
    check_copied(0, mapped, FAKE_GRANULE);
    if (content().kind == MS_SOURCE && ms_source_file(content().source) != NULL) {
        CHECK_EQ(ms_counter_get(MS_COUNT_RECORDED_FILE_BYTES) - before, FAKE_GRANULE);
        CHECK_EQ(strcmp(event.text, "bytes of a file"), 0);
    }
    check_copied(FAKE_GRANULE, mapped, FAKE_GRANULE - 1); /* it is not looked for */
    CHECK(ms_source_file(content_at(FAKE_GRANULE).source) == NULL);
    if (ms_source_file(content().source) != NULL) {
        use_plan(0, BYTES); /* which wants to know */
        check_copied(FAKE_GRANULE, mapped, 4096);
        CHECK(ms_source_file(content_at(FAKE_GRANULE).source) != NULL);
        check_copied(FAKE_GRANULE, mapped, 4095);
        CHECK(ms_source_file(content_at(FAKE_GRANULE).source) == NULL);
        check_copied(FAKE_GRANULE, mapped, FAKE_GRANULE - 1);
    }
    CHECK_EQ(read_all(), CUDA_SUCCESS);
    CHECK_BYTES(bytes_at(0), file.data, FAKE_GRANULE);
    CHECK_BYTES(bytes_at(FAKE_GRANULE), file.data, FAKE_GRANULE - 1);
    munmap(mapped, BYTES);
    ms_source_drop(file.source);
}

static void check_for_driver(CUdeviceptr to, const void *from, size_t bytes)
{
    CUresult result = CUDA_SUCCESS;
    CHECK(!copy_bytes(to, from, bytes, &result));
    CHECK_EQ(result, CUDA_SUCCESS);
}

MS_TEST_BETWEEN(start, end, a_copy_of_nothing_or_from_nowhere_or_to_other_memory_is_for_the_driver)
{
    check_for_driver(allocation->address, host, 0);
    check_for_driver(allocation->address, NULL, 5);
    const CUdeviceptr program = fake_program_memory(FAKE_GRANULE);
    check_for_driver(program, host, 100);
    CHECK_EQ(content().kind, MS_FILL);
    check_for_driver(allocation->address, (const void *)(uintptr_t)program, 100); /* no host's */
    CHECK(content().kind == MS_RESIDENT || content().cached);
    fake_program_memory_free(program);
}

/* The driver says whether an address of the device may be the host's. */
MS_TEST_BETWEEN(start, end, a_copy_from_an_allocation_finds_both_in_memory)
{
    CUresult result;
    struct ms_allocation *other = fake_allocation(BYTES);
    fake_set(other, 0, BYTES, &(struct ms_content){.kind = MS_FILL, .pattern = 7});
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    CHECK(copy_bytes(allocation->address, (const void *)(uintptr_t)other->address, 100, &result));
    CHECK_EQ(result, CUDA_ERROR_UNKNOWN);
    check_for_driver(allocation->address, (const void *)(uintptr_t)other->address, 100);
    CHECK_EQ(content().kind, MS_RESIDENT);
    CHECK_EQ(ms_lineage_at(ms_allocation_lineage(other), 0).content.kind, MS_RESIDENT);
    fake_allocation_free(other);
}

MS_TEST_BETWEEN(start, end, the_driver_writes_bytes_in_memory)
{
    CHECK_EQ(read_all(), CUDA_SUCCESS);
    const uint64_t before = ms_counter_get(MS_COUNT_RECORDED_SNAPSHOT_BYTES);
    check_for_driver(allocation->address, host, BYTES);
    CHECK_EQ(ms_counter_get(MS_COUNT_RECORDED_SNAPSHOT_BYTES), before);
    fake_set(allocation, BYTES - 1, BYTES, &(struct ms_content){.kind = MS_FILL});
    check_copied(0, host, BYTES); /* some of it is not */
    CHECK_EQ(ms_counter_get(MS_COUNT_RECORDED_SNAPSHOT_BYTES), before + BYTES);
    CHECK_EQ(read_all(), CUDA_SUCCESS);
    CHECK_BYTES(bytes_at(0), host, BYTES);
}

MS_TEST_BETWEEN(start, end, the_driver_copies_behind_work_that_may_wait)
{
    CUresult result;
    be_busy(true);
    check_for_driver(allocation->address, host, FAKE_GRANULE);
    CHECK(content().kind == MS_RESIDENT && content_at(FAKE_GRANULE).kind == MS_FILL);
    CHECK_EQ(fake.work_count, 0); /* what is overwritten is not brought in */
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    CHECK(copy_bytes(allocation->address + FAKE_GRANULE, host, 100, &result));
    CHECK_EQ(result, CUDA_ERROR_UNKNOWN);
    be_busy(false);
}

MS_TEST_BETWEEN(start, end, the_driver_writes_where_a_snapshot_has_no_room)
{
    ms_host_snapshot_set_limit(100);
    const uint64_t before = ms_counter_get(MS_COUNT_FALLBACKS);
    check_for_driver(allocation->address, host, 101);
    CHECK_EQ(ms_counter_get(MS_COUNT_FALLBACKS) - before, 1);
    CHECK(event.reason == MS_REASON_SNAPSHOT_LIMIT && event.bytes == 101);
    check_copied(FAKE_GRANULE, host, 100);
    CHECK_EQ(ms_counter_get(MS_COUNT_FALLBACKS) - before, 1);
}

MS_TEST_BETWEEN(start, end, a_copy_beyond_an_allocation_is_refused)
{
    CUresult result;
    CHECK(copy_bytes(allocation->address + 1, host, BYTES, &result));
    CHECK_EQ(result, CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(content_at(1).kind, MS_FILL);
}

MS_TEST_BETWEEN(start, end, a_write_fails_if_memory_it_points_to_cannot_come_in)
{
    fake_needs_hints();
    CUresult result;
    struct ms_allocation *other = fake_allocation(BYTES);
    fake_set(other, 0, BYTES, &(struct ms_content){.kind = MS_FILL, .pattern = 7});
    memcpy(host + 64, &other->address, 8);
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    CHECK(copy_bytes(allocation->address, host, 4096, &result));
    CHECK(result == CUDA_ERROR_UNKNOWN && content().kind == MS_FILL);
    be_busy(true);
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    CHECK(copy_bytes(allocation->address, host, 4096, &result));
    CHECK(result == CUDA_ERROR_UNKNOWN && content().kind == MS_FILL);
    be_busy(false);
    fake_allocation_free(other);
}

/* It has waited for earlier work as the driver would, and says what that says. */
MS_TEST_BETWEEN(start, end, a_copy_that_waits_says_what_the_stream_says)
{
    CUresult result;
    fake.wait_result = CUDA_ERROR_LAUNCH_FAILED;
    CHECK(copy(allocation->address, true, &result));
    CHECK_EQ(result, CUDA_ERROR_LAUNCH_FAILED);
    CHECK(copy(allocation->address, false, &result));
    CHECK_EQ(result, CUDA_SUCCESS);
    fake.wait_result = CUDA_SUCCESS;
}

/* --- blocks in very many pieces */

/* Of [2 G, 4 G) each byte is another fill than that before it. */
MS_TEST(a_block_in_very_many_pieces_is_brought_into_memory_as_a_whole)
{
    enum { G = FAKE_GRANULE, PIECES = (1 << 17) + 2 };
    CUresult result;
    start();
    struct ms_allocation *large = fake_allocation(8 * G);
    CHECK(ms_space_claim(large->address) == large);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(ms_carve_take(large, i == 0 ? G : 5 * G, i == 0 ? 5 * G : 6 * G), MS_CARVED);
    ms_space_release(large);
    for (size_t i = 0; i < PIECES; i++)
        CHECK(ms_lineage_set(&MS_OWN(large)->lineage, G + i, G + i + 1,
                             &(struct ms_content){.kind = MS_FILL, .pattern = i % 2 * 0x01010101}));
    fake_set(large, 5 * G, 6 * G, &(struct ms_content){.kind = MS_FILL, .pattern = 3});
    CHECK(!set(large->address + 2 * G, 7, 1, 10, &result));
    CHECK_EQ(result, CUDA_SUCCESS);
    CHECK_EQ(ms_allocation_backing(large)->backed_bytes, 4 * G);
    CHECK_EQ(ms_allocation_lineage(large)->kind_bytes[MS_FILL], G);
    const unsigned char *bytes = (const unsigned char *)(uintptr_t)large->address;
    CHECK(bytes[G] == 0 && bytes[G + PIECES - 2] == 0 && bytes[G + PIECES - 1] != bytes[G]);
    fake_allocation_free(large);
    end();
}

/* --- where it is verified */

static void start_verified(void)
{
    start();
    ms_config.mode = MS_VERIFY;
    has_shadow = true;
}

static void end_verified(void)
{
    fake_set(allocation, 0, BYTES, &(struct ms_content){.kind = MS_FILL});
    ms_config.mode = MS_ON;
    end();
}

MS_TEST_BETWEEN(start_verified, end_verified, a_recorded_write_has_its_shadow)
{
    check_copied(100, host, 1000);
    CHECK(shadows == 1 && shadow_begin == 100 && shadow_end == 1100 && shadow_host == host);
    CHECK(content_at(100).is_shadowed && comparisons == 0 && trims == 0);
    CUresult result;
    has_shadow = false;
    CHECK(set(allocation->address, 3, 1, 50, &result));
    CHECK(shadows == 2 && shadow_begin == 0 && shadow_end == 50 && shadow_host == NULL);
    CHECK(!content().is_shadowed);
}

/* A copy to [100, 1100), of which [500, 700) is in memory. */
static void copy_around(void)
{
    static const struct ms_content zeros = {.kind = MS_FILL}, resident = {.kind = MS_RESIDENT};
    fake_set(allocation, 0, BYTES, &zeros);
    fake_set(allocation, 500, 700, &resident);
    check_copied(100, host, 1000);
}

/* Bytes that went to memory from where the shim has found them. */
MS_TEST_BETWEEN(start_verified, end_verified, a_write_to_memory_is_compared_with_the_programs_bytes)
{
    copy_around();
    CHECK_EQ(comparisons, 1);
    CHECK(compared_begin == 500 && compared_bytes == 200);
    CHECK(trims == 1 && trim_begin == 500 && trim_end == 700);
    CHECK(shadows == 3 && shadow_host == host + 600);
    has_shadow = false;
    copy_around();
    CHECK(comparisons == 1 && trims == 2);
}

STORY_BETWEEN(start, end, a_write_that_is_not_verified_has_no_shadow, has_shadow = true,
              copy_around(), IS(shadows == 0 && comparisons == 0 && !content_at(100).is_shadowed))
