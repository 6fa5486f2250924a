/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/payload.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "runtime/base/thread.h"
#include "runtime/calls/host_memory.h"
#include "runtime/driver/flags.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/state/counters.h"
#include "tests/unit/between.h"
#include "tests/unit/counted_heap.h"
#include "tests/unit/fake_driver.h"

#define FIRST ((CUdeviceptr)0x5a5b00200000)
#define SECOND ((CUdeviceptr)0x7f1234500000)
enum { BYTES = 1 << 20 };

#define AT(begin, number)                                                              \
    {                                                                                  \
        .facts = {.address = (begin), .bytes = BYTES, .id = (number)},                 \
        .backing = {.address = (begin), .bytes = BYTES, .granule = 4096}, .lineage = { \
            .bytes = BYTES                                                             \
        }                                                                              \
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
static uint64_t seals_before;

/* How often everything was brought in. */
static uint64_t seals(void)
{
    return ms_counter_get(MS_COUNT_PAYLOAD_SEALS) - seals_before;
}

static void defer(void)
{
    const struct ms_content fill = {.kind = MS_FILL, .pattern = 7};
    fake_start();
    fake_needs_hints();
    deferred = fake_allocation(FAKE_GRANULE);
    fake_set(deferred, 0, FAKE_GRANULE, &fill);
    seals_before = ms_counter_get(MS_COUNT_PAYLOAD_SEALS);
}

/* Whether the allocation that the bytes point to came into memory. Frees the allocation. */
static bool ends_in_memory(void)
{
    const bool is_there =
        !ms_lineage_any(ms_allocation_lineage(deferred), 0, FAKE_GRANULE, MS_MISSING);
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
    CHECK(ms_lineage_any(ms_allocation_lineage(second), 0, FAKE_GRANULE, MS_MISSING));
    CHECK_EQ(ms_payload_copy(NULL, addresses, sizeof(addresses)), CUDA_SUCCESS);
    CHECK(!ms_lineage_any(ms_allocation_lineage(second), 0, FAKE_GRANULE, MS_MISSING));
    fake_allocation_free(second);
    CHECK(ends_in_memory());
}

/* --- parts of an address */

#define MOST_BYTES 24

/* Bytes [begun, begun + count) of an address at a place among so many bytes, the others zero. */
struct piece {
    size_t begun, count, at, all;
    bool is_found, is_clean; /* is_clean may say less */
};

static void put(const struct piece *piece, unsigned char bytes[MOST_BYTES])
{
    memset(bytes, 0, MOST_BYTES);
    memcpy(bytes + piece->at, (const unsigned char *)&deferred->address + piece->begun,
           piece->count);
}

static void check_piece(const struct piece *piece)
{
    unsigned char bytes[MOST_BYTES], copied[MOST_BYTES];
    for (int copies = 0; copies < 2; copies++) {
        defer();
        put(piece, bytes);
        CHECK_EQ(ms_payload_is_clean(bytes, piece->all), piece->is_clean);
        CHECK_EQ(ms_payload_copy(copies ? copied : NULL, bytes, piece->all), CUDA_SUCCESS);
        CHECK(!copies || memcmp(copied, bytes, piece->all) == 0);
        CHECK_EQ(ends_in_memory(), piece->is_found);
    }
}

MS_TEST(a_part_of_an_address_counts_where_another_call_may_have_written_the_rest)
{
    static const struct piece pieces[] = {
        {5, 3, 0, 3, true, false}, /* three bytes alone */
        {5, 3, 0, 4, false, true}, /* and a zero: a small number */
        {5, 3, 0, 5, false, true},   {6, 2, 0, 2, false, true},   {4, 4, 0, 4, true, false},
        {4, 4, 1, 4, false, true}, /* its last byte is missing */
        {4, 4, 1, 5, true, false},   {4, 4, 2, 6, true, false},   {4, 4, 3, 7, true, false},
        {4, 4, 3, 8, true, false},   {4, 4, 4, 8, false, true}, /* the lower half is here */
        {0, 6, 0, 6, true, false},   {0, 6, 1, 6, false, true},   {0, 7, 0, 7, true, false},
        {0, 6, 14, 20, true, false}, {0, 7, 17, 24, true, false}, {0, 5, 0, 5, false, true},
        {0, 6, 13, 20, true, false}, /* the seventh byte is there */
        {0, 6, 12, 20, true, false}, /* the whole */
        {0, 8, 0, 8, true, false},   {0, 8, 1, 9, true, false},   {0, 8, 13, 24, true, false},
    };
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++)
        check_piece(&pieces[i]);
}

MS_TEST(a_payload_of_no_bytes_is_clean)
{
    const unsigned char byte = 0;
    unsigned char bytes[] = {1};
    defer();
    CHECK(ms_payload_is_clean(&byte, 0));
    CHECK_EQ(ms_payload_copy(NULL, &byte, 0), CUDA_SUCCESS);
    CHECK_EQ(ms_payload_copy(bytes, &byte, 0), CUDA_SUCCESS);
    CHECK_EQ(bytes[0], 1);
    CHECK(!ends_in_memory());
}

/* All that is deferred, not only what lies there. */
MS_TEST(the_end_of_an_address_is_counted_and_brings_in_what_lies_elsewhere)
{
    defer();
    const uint32_t upper = (uint32_t)(deferred->address >> 32);
    struct ms_allocation *second = fake_allocation(FAKE_GRANULE);
    fake_set(second, 0, FAKE_GRANULE, &(struct ms_content){.kind = MS_FILL, .pattern = 7});
    CHECK_EQ(ms_payload_copy(NULL, &upper, sizeof(upper)), CUDA_SUCCESS);
    CHECK(!ms_lineage_any(ms_allocation_lineage(second), 0, FAKE_GRANULE, MS_MISSING));
    CHECK_EQ(seals(), 1);
    fake_allocation_free(second);
    CHECK(ends_in_memory());
}

/* --- near addresses, as a driver gives them that honours no hint */

#define NEAR ((CUdeviceptr)0x300000000)
static CUresult (*reserve)(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr wish,
                           unsigned long long flags);

static CUresult reserve_near(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr wish,
                             unsigned long long flags)
{
    (void)wish;
    return reserve(address, bytes, alignment, NEAR, flags);
}

static void defer_near(void)
{
    fake_start();
    reserve = ms_driver.mem_address_reserve;
    ms_driver.mem_address_reserve = reserve_near;
    deferred = fake_allocation(FAKE_GRANULE);
    if (deferred->address >> 32 != NEAR >> 32)
        ms_test_skip("these addresses are taken");
    fake_set(deferred, 0, FAKE_GRANULE, &(struct ms_content){.kind = MS_FILL, .pattern = 7});
}

static void check_near(size_t at, size_t first, size_t count, bool is_found)
{
    unsigned char bytes[MOST_BYTES] = {0};
    defer_near();
    memcpy(bytes + at, &deferred->address, 8);
    CHECK_EQ(ms_payload_copy(NULL, bytes + first, count), CUDA_SUCCESS);
    CHECK_EQ(ends_in_memory(), is_found);
}

MS_TEST(a_near_address_counts_where_a_pointer_can_lie)
{
    check_near(0, 0, 8, true);
    check_near(4, 0, 16, true);
    check_near(2, 0, 16, false);
    check_near(7, 0, 16, false);
    check_near(0, 0, 6, false); /* small numbers */
    check_near(0, 0, 7, false);
    check_near(0, 4, 4, true); /* its upper half, and nothing else */
    check_near(0, 4, 5, false);
    check_near(0, 5, 3, false);
}

/* A kernel's number below it is none. */
MS_TEST(a_payload_with_part_of_a_near_address_is_not_clean)
{
    uint32_t halves[2] = {0, 0};
    defer_near();
    memcpy(halves, &deferred->address, 8);
    CHECK(!ms_payload_is_clean(halves, 8));
    CHECK(!ms_payload_is_clean(halves, 6) && !ms_payload_is_clean(halves, 7));
    CHECK(ms_payload_is_clean(halves, 5) && ms_payload_is_clean(halves, 4));
    CHECK(!ms_payload_is_clean(&halves[1], 4) && ms_payload_is_clean(&halves[1], 3));
    halves[1]++;
    CHECK(ms_payload_is_clean(halves, 8) && ms_payload_is_clean(&halves[1], 4));
    CHECK(!ends_in_memory());
}

/* --- addresses of tracked host memory */

static enum ms_reason reach_after(uint64_t word, size_t count)
{
    CHECK_EQ(ms_payload_copy(NULL, &word, count), CUDA_SUCCESS);
    return ms_host_memory_reach();
}

MS_TEST(a_payload_with_tracked_host_memory_lets_kernels_reach_anything)
{
    const uint64_t host = 0x123400000000;
    defer();
    ms_host_memory_add(host, 100);
    CHECK(!ms_payload_is_clean(&host, 8) && !ms_payload_is_clean(&host, 6));
    CHECK_EQ(reach_after(host - 1, 8), MS_REASON_CALL);
    CHECK_EQ(reach_after(host + 100, 8), MS_REASON_CALL);
    CHECK_EQ(reach_after(host + 99, 5), MS_REASON_CALL);
    CHECK_EQ(reach_after(host + 99, 8), MS_REASON_UNBOUNDED);
    CHECK(!ends_in_memory());
}

STORY_ALONE(the_beginning_of_such_an_address_counts_too, defer(),
            ms_host_memory_add(0x123400000000, 100),
            EQUALS(reach_after(0x123400000000, 6), MS_REASON_UNBOUNDED), IS(!ends_in_memory()))

/* --- sets */

static void set_to(uint32_t value, unsigned element)
{
    const struct ms_movement set = {
        .kind = MS_SET, .value = value, .element = element, .width = 64, .height = 1, .depth = 1};
    CHECK_EQ(ms_payload_expose(&set), CUDA_SUCCESS);
}

/* A set may write the upper half of an address, and another call the lower half. */
MS_TEST(a_set_to_the_upper_half_of_an_address_means_everything)
{
    for (int i = 0; i < 4; i++) {
        defer();
        const uint32_t upper = (uint32_t)(deferred->address >> 32);
        const uint32_t values[] = {upper, upper, upper + 1, upper + 1};
        set_to(values[i], i % 2 == 0 ? 4 : 2);
        CHECK_EQ(seals(), i < 2);
        CHECK_EQ(ends_in_memory(), i < 2);
    }
    defer_near();
    set_to(NEAR >> 32, 4);
    CHECK(ends_in_memory());
}

/* Two bytes of one word and two of the next make no upper half of an address. */
MS_TEST(a_set_to_other_bytes_means_nothing)
{
    defer();
    const uint32_t upper = (uint32_t)(deferred->address >> 32);
    set_to(upper << 16, 4);
    set_to(upper | UINT32_C(0x10000), 4);
    set_to(upper & 0xff, 1);
    set_to(0, 1);
    CHECK(!ends_in_memory());
}

STORY_ALONE(a_set_that_repeats_to_an_address_of_the_host_lets_kernels_reach_anything, defer(),
            ms_host_memory_add(0x0000123400000000, UINT64_C(1) << 32), set_to(0x1235, 4),
            EQUALS(ms_host_memory_reach(), MS_REASON_CALL), set_to(0x1234, 4),
            EQUALS(ms_host_memory_reach(), MS_REASON_UNBOUNDED), IS(!ends_in_memory()))

/* --- copies from memory of some kind */

static unsigned type, managed; /* of each address, as the driver says: 0: it does not know it */

static CUresult pointer_get_attribute(void *value, CUpointer_attribute attribute,
                                      CUdeviceptr address)
{
    CHECK(address != 0);
    *(unsigned *)value = attribute == CU_POINTER_ATTRIBUTE_IS_MANAGED ? managed : type;
    return CUDA_SUCCESS;
}

static uint64_t words[8]; /* rows of 2, planes of 4 */

/* The address stands in that word. */
static void start_copy(size_t at)
{
    defer();
    ms_driver.pointer_get_attribute = pointer_get_attribute;
    type = managed = 0;
    memset(words, 0, sizeof(words));
    words[at] = deferred->address;
}

static struct ms_movement copy_from(CUmemorytype kind, const void *begin)
{
    return (struct ms_movement){
        .kind = MS_COPY_BOX,
        .stream = FAKE_STREAM,
        .width = 8,
        .height = 2,
        .depth = 2,
        .from = {.type = kind, .begin = (uintptr_t)begin, .pitch = 16, .slice = 32}};
}

static CUresult expose(CUmemorytype kind, const void *begin)
{
    const struct ms_movement movement = copy_from(kind, begin);
    return ms_payload_expose(&movement);
}

MS_TEST(each_row_of_each_plane_is_looked_at_and_nothing_between_them)
{
    for (size_t at = 0; at < 8; at++) {
        start_copy(at);
        CHECK_EQ(expose(CU_MEMORYTYPE_HOST, words), CUDA_SUCCESS);
        CHECK_EQ(seals(), 0);
        CHECK_EQ(ends_in_memory(), at % 2 == 0);
    }
}

MS_TEST(a_row_that_fails_is_told_though_the_next_ones_would_not)
{
    for (size_t at = 0; at < 8; at += 2) {
        start_copy(at);
        fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
        CHECK_EQ(expose(CU_MEMORYTYPE_HOST, words), CUDA_ERROR_UNKNOWN);
        CHECK(!ends_in_memory());
    }
}

static bool exposes(CUmemorytype kind, const void *begin)
{
    CHECK_EQ(expose(kind, begin), CUDA_SUCCESS);
    return ends_in_memory();
}

MS_TEST(memory_that_is_not_the_programs_holds_no_address)
{
    static const CUmemorytype device[] = {CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_UNIFIED};
    start_copy(0);
    CHECK(!exposes(0, words));
    start_copy(0);
    CHECK(!exposes(CU_MEMORYTYPE_ARRAY, words));
    start_copy(0);
    CHECK(!exposes(CU_MEMORYTYPE_HOST, NULL));
    for (int i = 0; i < 2; i++) {
        start_copy(0);
        type = CU_MEMORYTYPE_HOST; /* whatever it says of ours */
        CHECK(!exposes(device[i], (void *)(uintptr_t)(deferred->address + 8)));
        start_copy(0);
        type = CU_MEMORYTYPE_DEVICE;
        CHECK(!exposes(device[i], words));
    }
}

/* Its bytes cannot be looked at here, and the host may have written an address. */
MS_TEST(device_memory_the_host_can_write_may_hold_any_address)
{
    for (int i = 0; i < 2; i++) {
        start_copy(1);
        type = CU_MEMORYTYPE_DEVICE;
        managed = i == 0;
        if (i == 1)
            ms_host_memory_add((uintptr_t)words, sizeof(words));
        CHECK(exposes(CU_MEMORYTYPE_DEVICE, words));
    }
    start_copy(1); /* the driver does not know it */
    CHECK(exposes(CU_MEMORYTYPE_DEVICE, words));
    start_copy(1); /* here neither */
    type = CU_MEMORYTYPE_DEVICE;
    CHECK(exposes(CU_MEMORYTYPE_HOST, words));
}

MS_TEST(a_payload_the_host_can_read_is_scanned_whatever_its_type)
{
    static const CUmemorytype kinds[] = {CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_UNIFIED,
                                         CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_UNIFIED,
                                         CU_MEMORYTYPE_DEVICE};
    for (int i = 0; i < 10; i++) {
        start_copy((size_t)i / 5);
        type = i % 5 < 2 ? 0 : CU_MEMORYTYPE_HOST;
        CHECK_EQ(exposes(kinds[i % 5], words), i < 5);
    }
}

MS_TEST(an_empty_copy_looks_at_nothing)
{
    for (int i = 0; i < 3; i++) {
        start_copy(0);
        struct ms_movement movement = copy_from(CU_MEMORYTYPE_HOST, words);
        *(size_t *[]){&movement.width, &movement.height, &movement.depth}[i] = 0;
        CHECK_EQ(ms_payload_expose(&movement), CUDA_SUCCESS);
        CHECK(!ends_in_memory());
    }
}

/* It is copied whenever the graph is launched. */
STORY_ALONE(a_captured_payload_may_hold_any_address, start_copy(1),
            atomic_store(&ms_hot.captures, 1),
            EQUALS(expose(CU_MEMORYTYPE_HOST, words), CUDA_SUCCESS),
            atomic_store(&ms_hot.captures, 0), IS(ends_in_memory()))

/* --- bytes that may still change */

static CUhostFn queued;
static void *queued_argument;
static CUresult queue_result;

static CUresult launch_host_func(CUstream stream, CUhostFn function, void *argument)
{
    CHECK(stream == FAKE_STREAM);
    if (queue_result != CUDA_SUCCESS)
        return queue_result;
    queued = function;
    queued_argument = argument;
    return CUDA_SUCCESS;
}

static unsigned threads;
static uint64_t late_before;
WRAPS(ms_thread_create, pthread_timedjoin_np);
int __wrap_ms_thread_create(pthread_t *thread_out, void *(*run)(void *), void *argument)
{
    threads++;
    return __real_ms_thread_create(thread_out, run, argument);
}

static bool is_slow; /* the thread takes longer than anyone waits before he says so */
int __wrap_pthread_timedjoin_np(pthread_t thread, void **result, const struct timespec *until)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    CHECK(until->tv_sec > now.tv_sec && until->tv_sec <= now.tv_sec + 11);
    return is_slow ? ETIMEDOUT : __real_pthread_timedjoin_np(thread, result, until);
}

/* A copy of tracked memory, in a stream that has not got to it. */
static void start_late(void)
{
    start_copy(1);
    ms_driver.launch_host_func = launch_host_func;
    queued = NULL;
    queue_result = CUDA_SUCCESS;
    threads = 0;
    late_before = ms_counter_get(MS_COUNT_LATE_PAYLOADS);
    type = CU_MEMORYTYPE_HOST;
    ms_host_memory_add((uintptr_t)words, sizeof(words));
    atomic_store(&ms_hot.gated, 1);
    fake.is_busy = true;
    live = 0;
}

/* The stream gets there, when the memory holds that. */
static void get_there(uint64_t word)
{
    CHECK(queued != NULL && live == 1);
    CHECK(ms_has_late_payloads() && ms_counter_get(MS_COUNT_LATE_PAYLOADS) == late_before + 1);
    words[6] = word;
    fake.is_busy = false;
    queued(queued_argument);
    CHECK(!ms_has_late_payloads());
}

MS_TEST(a_payload_that_may_change_is_scanned_when_its_stream_is_there)
{
    for (int i = 0; i < 2; i++) {
        is_slow = i == 1;
        start_late();
        CHECK_EQ(expose(CU_MEMORYTYPE_HOST, words), CUDA_SUCCESS);
        CHECK(ms_lineage_any(ms_allocation_lineage(deferred), 0, FAKE_GRANULE, MS_MISSING));
        get_there(deferred->address);
        CHECK_EQ(threads, 1);
        CHECK(ends_in_memory());
        atomic_store(&ms_hot.gated, 0);
    }
}

MS_TEST(no_thread_is_started_for_bytes_without_an_address)
{
    start_late();
    CHECK_EQ(expose(CU_MEMORYTYPE_HOST, words), CUDA_SUCCESS);
    get_there(5);
    CHECK(threads == 0 && live == 0);
    CHECK(!ends_in_memory());
}

MS_TEST(a_late_payload_starts_no_thread_once_nothing_is_deferred)
{
    start_late();
    CHECK_EQ(expose(CU_MEMORYTYPE_HOST, words), CUDA_SUCCESS);
    const CUdeviceptr address = deferred->address;
    CHECK_EQ(ms_payload_copy(NULL, &address, sizeof(address)), CUDA_SUCCESS);
    get_there(address);
    CHECK_EQ(threads, 0);
    CHECK(ends_in_memory());
}

MS_TEST(a_payload_that_cannot_be_scanned_later_may_hold_any_address)
{
    for (int i = 0; i < 2; i++) {
        start_late();
        if (i == 0)
            queue_result = CUDA_ERROR_NOT_SUPPORTED;
        else
            may_make = 0, fails_once = true;
        CHECK_EQ(expose(CU_MEMORYTYPE_HOST, words), CUDA_SUCCESS);
        may_make = 1000000;
        CHECK(!ms_has_late_payloads() && queued == NULL);
        CHECK_EQ(ms_counter_get(MS_COUNT_LATE_PAYLOADS), late_before);
        fake.is_busy = false;
        CHECK(ends_in_memory());
        atomic_store(&ms_hot.gated, 0);
    }
}

MS_TEST(a_payload_that_no_work_can_change_is_scanned_at_once)
{
    for (int i = 0; i < 3; i++) {
        start_late();
        words[4] = deferred->address;
        if (i == 0)
            ms_host_memory_forget((uintptr_t)words);
        else if (i == 1)
            fake.is_busy = false;
        else
            atomic_store(&ms_hot.gated, 0);
        CHECK_EQ(expose(CU_MEMORYTYPE_HOST, words), CUDA_SUCCESS);
        CHECK(queued == NULL && seals() == 0);
        fake.is_busy = false;
        CHECK(ends_in_memory());
        atomic_store(&ms_hot.gated, 0);
    }
}
