/* SPDX-License-Identifier: Apache-2.0 */

#include "runtime/calls/alloc.h"

#include <string.h>

#include "runtime/calls/recurring.h"
#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/driver/pool.h"
#include "runtime/fill/compare.h"
#include "runtime/fill/materialise.h"
#include "runtime/fill/overcommit.h"
#include "runtime/fill/replay.h"
#include "runtime/fill/scratch.h"
#include "runtime/fill/settle.h"
#include "runtime/kernel/parameters.h"
#include "runtime/loading/pinned_pool.h"
#include "runtime/fill/delayed_free.h"
#include "runtime/memory/publish.h"
#include "runtime/order/examining.h"
#include "runtime/order/order.h"
#include "runtime/shard/shard.h"
#include "runtime/state/counters.h"
#include "runtime/state/device.h"
#include "runtime/state/window.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"

/* The nth allocation of a record fails; the linker's --wrap leads here. */
static unsigned failing, seen;
WRAPS(ms_heap_zalloc, ms_scratch_drop, ms_state_event, ms_overcommit_allows, ms_recurring_expects);
WRAPS(ms_examining_is_complete);
void *__wrap_ms_heap_zalloc(size_t bytes)
{
    return ++seen == failing ? NULL : __real_ms_heap_zalloc(bytes);
}

/* --- what it tells others, which then act as ever */

enum told {
    TOLD_PUBLISH_FREED,
    TOLD_DEVICE_PUBLISH,
    TOLD_SHARD_FORGET,
    TOLD_COMPARE,
    TOLD_REPLAY_FORGET,
    TOLD_POOL_FORGET,
    TOLD_POOL_GIVE_BACK,
    TOLD_SCRATCH_DROP,
    TOLD_PARAMETERS_FORGET,
    TOLD_RECURRING_FORGET,
    TOLD_RECURRING_END,
    TOLD_DELAYED_FORGET,
    TOLD_EXAMINING_FORGET,
    TOLD_SETTLE,
    TOLD
};
static unsigned told[TOLD];
static size_t told_bytes; /* by the last that has some */
static struct ms_event events[64];
static size_t event_count;

#define TELLS(name, number, parameters, arguments, note) \
    void __real_##name parameters;                       \
    void __wrap_##name parameters;                       \
    void __wrap_##name parameters                        \
    {                                                    \
        told[number]++;                                  \
        note;                                            \
        __real_##name arguments;                         \
    }

static CUcontext told_context;
#define IS_OURS told_context = context
TELLS(ms_publish_freed, TOLD_PUBLISH_FREED, (struct ms_allocation * allocation), (allocation), )
TELLS(ms_device_publish, TOLD_DEVICE_PUBLISH, (CUdevice device), (device), CHECK_EQ(device, 0))
TELLS(ms_shard_forget, TOLD_SHARD_FORGET,
      (const struct ms_allocation *allocation, size_t begin, size_t end), (allocation, begin, end),
      told_bytes = end - begin)
TELLS(ms_compare, TOLD_COMPARE,
      (struct ms_allocation * allocation, size_t begin, size_t end, enum ms_compared what),
      (allocation, begin, end, what), told_bytes = end - begin)
TELLS(ms_replay_forget_stream, TOLD_REPLAY_FORGET, (CUcontext context), (context), IS_OURS)
TELLS(ms_pinned_pool_forget, TOLD_POOL_FORGET, (CUcontext context), (context), IS_OURS)
TELLS(ms_pinned_pool_give_back, TOLD_POOL_GIVE_BACK, (CUcontext context), (context), IS_OURS)
TELLS(ms_parameters_forget, TOLD_PARAMETERS_FORGET, (CUlibrary library), (library),
      CHECK(library == NULL))
TELLS(ms_recurring_forget, TOLD_RECURRING_FORGET, (void), (), )
TELLS(ms_delayed_free_forget, TOLD_DELAYED_FORGET, (CUcontext context), (context), IS_OURS)
TELLS(ms_examining_forget_context, TOLD_EXAMINING_FORGET, (CUcontext context), (context), IS_OURS)
TELLS(ms_settle_now, TOLD_SETTLE, (const char *why), (why), )

static bool has_saved;
TELLS(ms_recurring_end, TOLD_RECURRING_END, (size_t bytes, bool saved), (bytes, saved),
      has_saved = saved)

bool __wrap_ms_scratch_drop(void)
{
    told[TOLD_SCRATCH_DROP]++;
    return __real_ms_scratch_drop();
}

void __wrap_ms_state_event(const struct ms_event *event)
{
    if (event_count < sizeof(events) / sizeof(events[0]))
        events[event_count] = *event;
    event_count++;
}

/* Answers of wrapped functions; by default the real ones. */
static bool is_answering, is_tight, is_recurring, is_unexamined;
static bool copies_pass; /* when the shim asks about queued work */
static unsigned asks, refusals;

bool __wrap_ms_overcommit_allows(CUdevice device, size_t bytes, bool *is_tight_out)
{
    if (!is_answering)
        return __real_ms_overcommit_allows(device, bytes, is_tight_out);
    CHECK(device == 0 && bytes == FAKE_GRANULE);
    *is_tight_out = is_tight;
    return ++asks > refusals;
}

bool __wrap_ms_recurring_expects(size_t bytes)
{
    return is_recurring && bytes == FAKE_GRANULE;
}

bool __wrap_ms_examining_is_complete(CUcontext current, CUdevice device)
{
    copies_pass = ms_is_quiet_for_copies();
    return !is_unexamined && __real_ms_examining_is_complete(current, device);
}

static void configure(void)
{
    ms_config.min_bytes = 1;
    ms_config.overcommit = 16;
    ms_config.self_check = MS_SELF_CHECK_OFF;
}

static bool allocate(CUdeviceptr *address_out)
{
    CUresult result;
    configure();
    return ms_alloc(FAKE_GRANULE, address_out, &result) && result == CUDA_SUCCESS;
}

MS_TEST_AFTER(fake_start, addresses_go_back_where_there_is_no_record_of_them)
{
    CUdeviceptr address;
    CUresult result;
    seen = 0;
    failing = 1;
    CHECK(!allocate(&address));
    CHECK(seen > 0);
    fake_check_empty();
    CHECK(allocate(&address));
    CHECK_EQ(fake.reservations, 1);
    CHECK(ms_alloc_free(address, &result) && result == CUDA_SUCCESS);
    fake_check_empty();
}

/* It takes as much memory as the driver's own would. */
static void fill(CUdeviceptr address)
{
    struct ms_allocation *allocation = ms_space_claim(address);
    ms_space_release(allocation);
    fake_set(allocation, 0, FAKE_GRANULE, &(struct ms_content){.kind = MS_RESIDENT});
}

MS_TEST_AFTER(fake_start, a_size_that_comes_again_and_again_is_left_to_the_driver)
{
    enum { ENOUGH = 16 };
    CUdeviceptr address;
    CUresult result;
    atomic_store(&ms_hot.started, 1);
    for (int i = 0; i < ENOUGH; i++) {
        CHECK(ms_recurring_take(FAKE_GRANULE) == NULL);
        CHECK(allocate(&address));
        fill(address);
        CHECK(ms_alloc_free(address, &result) && result == CUDA_SUCCESS);
    }
    CHECK(ms_recurring_take(FAKE_GRANULE) != NULL);
    CHECK(ms_recurring_take(FAKE_GRANULE) == NULL); /* it never had two */
}

/* --- freeing */

static CUdeviceptr freed;

/* Another thread has freed it, and allocated at the same address. */
static void replace_meanwhile(void)
{
    fake.on_wait = NULL;
    struct ms_allocation *allocation = ms_space_claim(freed);
    allocation->id += 1000;
    ms_space_release(allocation);
}

MS_TEST_AFTER(fake_start, a_free_spares_an_allocation_that_took_its_place_meanwhile)
{
    CUresult result;
    CHECK(allocate(&freed));
    fake.on_wait = replace_meanwhile;
    CHECK(ms_alloc_free(freed, &result));
    CHECK_EQ(result, CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(fake.reservations, 1);
    CHECK(ms_alloc_free(freed, &result) && result == CUDA_SUCCESS);
    fake_check_empty();
}

MS_TEST_AFTER(fake_start, nothing_is_freed_where_the_wait_fails)
{
    CUresult result;
    CHECK(allocate(&freed));
    fake.wait_result = CUDA_ERROR_LAUNCH_FAILED;
    CHECK(ms_alloc_free(freed, &result));
    CHECK_EQ(result, CUDA_ERROR_LAUNCH_FAILED);
    CHECK_EQ(fake.reservations, 1);
    CHECK(ms_alloc_free(freed + 1, &result) && result == CUDA_ERROR_INVALID_VALUE);
    fake.wait_result = CUDA_SUCCESS;
    CHECK(ms_alloc_free(freed, &result) && result == CUDA_SUCCESS);
    fake_check_empty();
}

MS_TEST_AFTER(fake_start, a_free_refuses_other_addresses_and_memory_of_others)
{
    CUresult result;
    CHECK(allocate(&freed));
    CHECK(!ms_alloc_free(freed - FAKE_GRANULE * 4, &result));
    struct ms_allocation *allocation = ms_space_claim(freed);
    allocation->is_opened = true; /* another process has it */
    ms_space_release(allocation);
    CHECK(ms_alloc_free(freed, &result) && result == CUDA_ERROR_INVALID_VALUE);
    CHECK(!ms_alloc_free_in_stream(freed, FAKE_STREAM, &result));
    allocation->is_opened = false;
    allocation->is_programs = true; /* the program has mapped it */
    CHECK(!ms_alloc_free(freed, &result));
    CHECK(!ms_alloc_free_in_stream(freed, FAKE_STREAM, &result));
    allocation->is_programs = false;
    CHECK(!ms_alloc_free_in_stream(freed + 1, FAKE_STREAM, &result));
    CHECK_EQ(fake.reservations, 1);
    CHECK(ms_alloc_free(freed, &result) && result == CUDA_SUCCESS);
}

MS_TEST_AFTER(fake_start, an_allocation_and_its_free_are_counted)
{
    CUresult result;
    CHECK(allocate(&freed));
    CHECK_EQ(ms_counter_get(MS_COUNT_ALLOCATIONS), 1);
    CHECK_EQ(ms_counter_get(MS_COUNT_REQUESTED_BYTES), FAKE_GRANULE);
    CHECK_EQ(ms_counter_get(MS_COUNT_FREES), 0);
    CHECK(ms_alloc_free(freed, &result) && result == CUDA_SUCCESS);
    CHECK_EQ(ms_counter_get(MS_COUNT_FREES), 1);
}

/* The wait would end it. */
MS_TEST_AFTER(fake_start, an_allocation_freed_in_a_capture_keeps_memory_until_its_end)
{
    CUresult result;
    CHECK(allocate(&freed));
    fill(freed);
    ms_order_set_capture(true);
    CHECK(ms_alloc_free(freed, &result) && result == CUDA_SUCCESS);
    CHECK(fake.reservations == 1 && fake.physical_bytes == FAKE_GRANULE);
    CHECK(!ms_alloc_free(freed, &result));
    ms_order_set_capture(false);
    ms_delayed_free_run(NULL);
    fake_check_empty();
}

/* --- what may be deferred */

static struct ms_promise promise;

static bool may_defer(size_t bytes)
{
    return ms_alloc_may_defer(bytes, &promise);
}

static void start(void)
{
    fake_start();
    configure();
}

static int supports; /* of the device */

static CUresult device_get_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    CHECK(device >= 0 && device < MS_MAX_DEVICES);
    CHECK_EQ(attribute, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
    *value = supports;
    return supports < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

MS_TEST_AFTER(start, an_allocation_is_not_deferred_if_small_or_captured)
{
    ms_config.min_bytes = 100;
    CHECK(may_defer(100) && promise.bytes == 100);
    CHECK(promise.context == FAKE_CONTEXT && promise.device == 0 && promise.pool == NULL);
    CHECK(!may_defer(99));
    ms_config.min_bytes = 0;
    CHECK(may_defer(1) && !may_defer(0));
    ms_order_set_capture(true);
    CHECK(!may_defer(100));
    ms_order_set_capture(false);
    CHECK(may_defer(100));
}

MS_TEST_AFTER(start, an_allocation_is_not_deferred_without_a_context_or_mapping)
{
    CUcontext popped;
    CHECK_EQ(ms_driver.ctx_push_current(NULL), CUDA_SUCCESS);
    CHECK(!may_defer(100));
    CHECK_EQ(ms_driver.ctx_pop_current(&popped), CUDA_SUCCESS);
    fake_fail(FAKE_ctx_get_current, 1, CUDA_ERROR_NOT_INITIALIZED);
    CHECK(!may_defer(100));
    fake_fail(FAKE_ctx_get_device, 1, CUDA_ERROR_NOT_INITIALIZED);
    CHECK(!may_defer(100));
    ms_driver.device_get_attribute = device_get_attribute;
    for (supports = -1; supports <= 1; supports++)
        CHECK_EQ(may_defer(100), supports > 0);
    supports = 1;
    fake.device = MS_MAX_DEVICES - 1;
    CHECK(may_defer(100) && promise.device == MS_MAX_DEVICES - 1);
    fake.device = MS_MAX_DEVICES;
    CHECK(!may_defer(100));
    fake.device = -1;
    CHECK(!may_defer(100));
}

/* It shares its memory with others, and may end before it. */
MS_TEST_AFTER(start, an_allocation_in_a_green_context_is_not_deferred)
{
    enum { MOST = 64 };
    for (uintptr_t i = 0; i < MOST; i++) {
        ms_alloc_add_green_context((CUcontext)(100 + i));
        CHECK(may_defer(100));
    }
    for (uintptr_t i = 0; i < MOST; i += MOST - 1) {
        CUcontext popped;
        CHECK_EQ(ms_driver.ctx_push_current((CUcontext)(100 + i)), CUDA_SUCCESS);
        CHECK(!may_defer(100));
        CHECK_EQ(ms_driver.ctx_pop_current(&popped), CUDA_SUCCESS);
    }
    ms_alloc_add_green_context((CUcontext)300); /* more than are known */
    CHECK(!may_defer(100));
}

MS_TEST_AFTER(start, the_driver_answers_an_allocation_without_a_pointer)
{
    CUresult result;
    CHECK(!ms_alloc(FAKE_GRANULE, NULL, &result));
    CHECK(!ms_alloc_in_stream(FAKE_GRANULE, NULL, FAKE_STREAM, NULL, &result));
    CHECK_EQ(fake.reservations, 0);
}

/* A program that allocates until it fails must fail. */
MS_TEST_AFTER(start, more_than_the_device_may_owe_is_refused)
{
    CUdeviceptr address = 0;
    CUresult result = CUDA_SUCCESS;
    ms_config.overcommit = 1;
    fake.total_bytes = 4 * FAKE_GRANULE;
    CHECK(ms_alloc(5 * FAKE_GRANULE, &address, &result));
    CHECK(result == CUDA_ERROR_OUT_OF_MEMORY && address == 0 && fake.reservations == 0);
    CHECK_EQ(ms_counter_get(MS_COUNT_ALLOCATIONS), 0);
    CHECK(ms_alloc(4 * FAKE_GRANULE, &address, &result) && result == CUDA_SUCCESS);
    CHECK(ms_alloc_free(address, &result) && result == CUDA_SUCCESS);
}

MS_TEST_AFTER(start, calls_are_examined_only_while_something_is_deferred)
{
    CUdeviceptr address = 0;
    CUresult result;
    CHECK(!ms_defers_any());
    ms_config.overcommit = 1;
    CHECK(ms_alloc(2 * fake.total_bytes, &address, &result) && result == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(!ms_defers_any());
    CHECK(allocate(&address) && ms_defers_any());
    CHECK(ms_alloc_free(address, &result) && !ms_defers_any());
}

/* --- pools */

static CUresult trim_result;
static unsigned trims;

static CUresult mem_pool_trim_to(CUmemoryPool pool, size_t bytes)
{
    CHECK(pool == FAKE_POOL && bytes == 0);
    trims++;
    if (trim_result == CUDA_SUCCESS)
        fake.physical_bytes = 0; /* what the driver keeps for it */
    return trim_result;
}

static CUresult stream_is_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
    CHECK(stream == FAKE_STREAM || stream == fake.refused_stream);
    *status = fake.is_busy ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return stream == fake.refused_stream ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

static void start_pool(void)
{
    start();
    ms_driver.mem_pool_trim_to = mem_pool_trim_to;
    ms_driver.stream_is_capturing = stream_is_capturing;
    trims = 0;
    trim_result = CUDA_SUCCESS;
}

static CUdeviceptr take(size_t bytes)
{
    CUdeviceptr address;
    CUresult result;
    CHECK(ms_alloc_in_stream(bytes, NULL, FAKE_STREAM, &address, &result));
    CHECK_EQ(result, CUDA_SUCCESS);
    return address;
}

static void give_back(CUdeviceptr address)
{
    CUresult result;
    CHECK(ms_alloc_free_in_stream(address, FAKE_STREAM, &result));
    CHECK_EQ(result, CUDA_SUCCESS);
}

static struct ms_allocation_facts facts_of(CUdeviceptr address)
{
    struct ms_allocation_facts facts;
    CHECK(ms_space_look_up(address, &facts));
    return facts;
}

MS_TEST_AFTER(start_pool, an_allocation_of_a_pool_is_freed_when_its_stream_gets_there)
{
    const CUdeviceptr address = take(FAKE_GRANULE);
    CHECK(facts_of(address).pool == FAKE_POOL);
    fill(address);
    fake.is_busy = true;
    give_back(address);
    CHECK(fake.reservations == 1 && fake.events > 0);
    CHECK_EQ(ms_counter_get(MS_COUNT_FREES), 1);
    fake.is_busy = false;
    ms_delayed_free_pass(false);
    fake_check_empty();
}

/* Without an event it waits for its context. */
MS_TEST_AFTER(start_pool, a_free_waits_for_its_context_where_no_event_can_be_recorded)
{
    for (unsigned i = 0; i < 2; i++) {
        const CUdeviceptr address = take(FAKE_GRANULE);
        fill(address);
        fake_fail(i == 0 ? FAKE_event_create : FAKE_event_record, 1, CUDA_ERROR_OUT_OF_MEMORY);
        give_back(address);
        CHECK_EQ(fake.reservations, 1);
        ms_delayed_free_run(FAKE_CONTEXT);
        fake_check_empty();
    }
}

MS_TEST_AFTER(start_pool, a_free_in_a_stream_that_is_captured_or_gone_is_the_drivers)
{
    CUresult result;
    const CUdeviceptr address = take(FAKE_GRANULE);
    ms_order_set_capture(true);
    fake.is_busy = true;
    CHECK(!ms_alloc_free_in_stream(address, FAKE_STREAM, &result));
    fake.is_busy = false;
    fake.refused_stream = (CUstream)8;
    CHECK(!ms_alloc_free_in_stream(address, fake.refused_stream, &result));
    ms_order_set_capture(false);
    CHECK(!ms_alloc_free_in_stream(address, fake.refused_stream, &result));
    CHECK_EQ(fake.reservations, 1);
    ms_order_set_capture(true); /* of another stream */
    CHECK(ms_alloc_free_in_stream(address, FAKE_STREAM, &result) && result == CUDA_SUCCESS);
    ms_order_set_capture(false);
    ms_delayed_free_run(NULL);
    fake_check_empty();
}

/* Work that a stream has not reached yet may point to the allocation. */
MS_TEST_AFTER(start_pool, a_freed_allocation_is_materialised_for_late_copies)
{
    CUresult result;
    const CUdeviceptr address = take(FAKE_GRANULE);
    fake_set(fake_find(address), 0, FAKE_GRANULE,
             &(struct ms_content){.kind = MS_FILL, .pattern = 7});
    fake.is_busy = true;
    atomic_fetch_add(&ms_hot.late_payloads, 1);
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    CHECK(ms_alloc_free_in_stream(address, FAKE_STREAM, &result) && result == CUDA_ERROR_UNKNOWN);
    CHECK_EQ(facts_of(address).bytes, FAKE_GRANULE);
    give_back(address);
    CHECK_EQ(fake.physical_bytes, FAKE_GRANULE);
    atomic_fetch_sub(&ms_hot.late_payloads, 1);
    fake.is_busy = false;
    ms_delayed_free_pass(false);
    fake_check_empty();
}

MS_TEST_AFTER(start_pool, a_stream_of_another_context_and_another_pool_are_the_drivers)
{
    CUdeviceptr address;
    CUresult result;
    fake.refused_stream = (CUstream)8;
    CHECK(!ms_alloc_in_stream(FAKE_GRANULE, NULL, fake.refused_stream, &address, &result));
    CHECK(!ms_alloc_in_stream(FAKE_GRANULE, (CUmemoryPool)5, FAKE_STREAM, &address, &result));
    fake_fail(FAKE_device_get_default_mem_pool, 1, CUDA_ERROR_UNKNOWN);
    CHECK(!ms_alloc_in_stream(FAKE_GRANULE, NULL, FAKE_STREAM, &address, &result));
    CHECK_EQ(fake.reservations, 0);
    CHECK(ms_alloc_in_stream(FAKE_GRANULE, FAKE_POOL, FAKE_STREAM, &address, &result));
    give_back(address);
}

/* Memory that the driver keeps for the pool has room for the allocation. */
MS_TEST_AFTER(start_pool, a_pool_gives_kept_memory_back_before_it_is_refused)
{
    CUdeviceptr address;
    CUresult result;
    ms_config.overcommit = 1;
    fake.total_bytes = 4 * FAKE_GRANULE;
    CHECK(ms_alloc_in_stream(5 * FAKE_GRANULE, NULL, FAKE_STREAM, &address, &result));
    CHECK(result == CUDA_ERROR_OUT_OF_MEMORY && trims == 1);
    trim_result = CUDA_ERROR_UNKNOWN;
    CHECK(ms_alloc_in_stream(5 * FAKE_GRANULE, NULL, FAKE_STREAM, &address, &result));
    CHECK(result == CUDA_ERROR_OUT_OF_MEMORY && trims == 2);
    give_back(take(FAKE_GRANULE));
    CHECK_EQ(trims, 2);
}

/* A training step frees what the next one takes. */
MS_TEST_AFTER(start_pool, an_allocation_of_a_size_freed_often_is_recurring)
{
    enum { ROUNDS = 4 };
    for (int i = 0; i < ROUNDS; i++) {
        const CUdeviceptr address = take(FAKE_GRANULE);
        CHECK(!facts_of(address).is_recurring);
        fill(address);
        give_back(address);
    }
    CUdeviceptr address = take(2 * FAKE_GRANULE); /* more than ever */
    CHECK(!facts_of(address).is_recurring);
    give_back(address);
    for (int i = 0; i < 2 * ROUNDS; i++) {
        address = take(FAKE_GRANULE);
        CHECK_EQ(facts_of(address).is_recurring, i >= ROUNDS);
        fill(address);
        give_back(address);
    }
    const CUdeviceptr both[] = {take(FAKE_GRANULE), take(FAKE_GRANULE)};
    CHECK(facts_of(both[0]).is_recurring && facts_of(both[1]).is_recurring);
    const CUdeviceptr one_more = take(FAKE_GRANULE);
    CHECK(!facts_of(one_more).is_recurring);
    give_back(both[0]);
    give_back(both[1]);
    give_back(one_more);
}

/* In a loop that only sets it, it counts in the end. */
MS_TEST_AFTER(start_pool, a_free_of_an_allocation_without_memory_counts_little)
{
    enum { UNUSED = 64, TIMES = 4 };
    for (int i = 0; i < UNUSED * TIMES; i++) {
        const CUdeviceptr address = take(FAKE_GRANULE);
        CHECK(!facts_of(address).is_recurring);
        give_back(address);
    }
    const CUdeviceptr address = take(FAKE_GRANULE);
    CHECK(facts_of(address).is_recurring);
    give_back(address);
}

/* The program has launched for a while, and allocated nothing. */
static void move_on(void)
{
    ms_config.settle_ms = 1;
    for (int i = 0; i < 64; i++)
        ms_window_is_due();
    while (!ms_window_is_due())
        ;
    CHECK(ms_window_now().has_moved_on);
}

MS_TEST_AFTER(start_pool, the_driver_serves_pools_after_loading_until_the_model_is_freed)
{
    CUdeviceptr addresses[16];
    CHECK(ms_alloc_wants_pooled());
    for (int i = 0; i < 16; i++)
        addresses[i] = take(FAKE_GRANULE);
    move_on();
    CHECK(!ms_alloc_wants_pooled());
    for (int i = 0; i < 14; i++) {
        give_back(addresses[i]);
        CHECK(!ms_alloc_wants_pooled()); /* an eighth is left */
    }
    give_back(addresses[14]);
    CHECK(ms_alloc_wants_pooled());
    give_back(addresses[15]);
    CHECK(ms_alloc_wants_pooled());
    addresses[0] = take(FAKE_GRANULE);
    CHECK(!ms_window_now().has_moved_on && !facts_of(addresses[0]).is_recurring);
    CHECK(ms_alloc_wants_pooled());
    give_back(addresses[0]);
}

/* --- who may reach what */

static unsigned sets;
static CUresult set_result;

static CUresult set_access(CUmemoryPool handle, const CUmemAccessDesc *map, size_t count)
{
    CHECK(handle == FAKE_POOL && map != NULL && count > 0);
    sets++;
    return set_result;
}

static CUmemAccessDesc for_device(int device, bool is_allowed)
{
    return (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, device},
                             is_allowed ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                        : CU_MEM_ACCESS_FLAGS_PROT_NONE};
}

static CUresult share(const CUmemAccessDesc *map, size_t count)
{
    sets = 0;
    return ms_alloc_set_pool_access(FAKE_POOL, map, count, set_access);
}

MS_TEST_AFTER(start_pool, a_pool_for_its_own_device_stays_deferred)
{
    const CUmemAccessDesc own[] = {for_device(0, true), for_device(0, true)};
    const CUdeviceptr address = take(FAKE_GRANULE);
    CHECK_EQ(share(own, 2), CUDA_SUCCESS);
    CHECK(sets == 1 && fake.physical_bytes == 0);
    set_result = CUDA_ERROR_INVALID_VALUE;
    CHECK_EQ(share(own, 2), CUDA_ERROR_INVALID_VALUE);
    CHECK(ms_pool_find(FAKE_POOL, 0) != NULL);
    give_back(address);
}

MS_TEST_AFTER(start_pool, access_for_another_device_brings_a_pool_into_memory)
{
    const CUmemAccessDesc others[] = {for_device(0, true), for_device(1, true),
                                      for_device(2, true)};
    CUmemAccessDesc forbidden[] = {for_device(1, false), for_device(0, false)};
    const CUdeviceptr address = take(FAKE_GRANULE), second = take(FAKE_GRANULE);
    CUdeviceptr alone;
    CUresult result;
    CHECK(ms_alloc(FAKE_GRANULE, &alone, &result));
    CHECK_EQ(share(others, 3), CUDA_SUCCESS);
    CHECK(sets == 1 && fake.physical_bytes == 2 * FAKE_GRANULE);
    CHECK(fake_access_at(address) == 7 && fake_access_at(second) == 7);
    CHECK(!ms_alloc_in_stream(FAKE_GRANULE, NULL, FAKE_STREAM, &freed, &result));
    CHECK_EQ(share(forbidden, 2), CUDA_SUCCESS);
    CHECK(fake_access_at(address) == 5 && fake_access_at(second) == 5);
    forbidden[0].location.type = CU_MEM_LOCATION_TYPE_HOST;
    CHECK_EQ(share(forbidden, 1), CUDA_SUCCESS);
    CHECK_EQ(fake_access_at(address), 5);
    give_back(address);
    give_back(second);
    CHECK(ms_alloc_free(alone, &result));
    fake_check_empty();
}

MS_TEST_AFTER(start_pool, pool_access_returns_the_error_of_any_step)
{
    const CUmemAccessDesc others[] = {for_device(1, true), for_device(2, true)};
    const CUdeviceptr address = take(FAKE_GRANULE), second = take(FAKE_GRANULE);
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(share(others, 2), CUDA_ERROR_UNKNOWN);
    CHECK(sets == 0 && fake.physical_bytes == 0);
    set_result = CUDA_ERROR_INVALID_VALUE;
    CHECK_EQ(share(others, 2), CUDA_ERROR_INVALID_VALUE);
    CHECK(sets == 1 && fake_access_at(address) == 1);
    set_result = CUDA_SUCCESS;
    for (unsigned nth = 1; nth <= 2; nth++) {
        fake_fail(FAKE_mem_set_access, nth, CUDA_ERROR_UNKNOWN);
        CHECK_EQ(share(others, 2), CUDA_ERROR_UNKNOWN);
    }
    CHECK_EQ(share(others, 2), CUDA_SUCCESS);
    give_back(address);
    give_back(second);
    fake_check_empty();
}

MS_TEST_AFTER(start_pool, a_peer_reaches_what_the_device_has_beside_pools)
{
    const CUdeviceptr pooled = take(FAKE_GRANULE);
    CUdeviceptr alone;
    CUresult result;
    CHECK(allocate(&alone));
    fill(pooled);
    fill(alone);
    CHECK_EQ(ms_alloc_set_peer_access(1, 2, true), CUDA_SUCCESS);
    CHECK_EQ(fake_access_at(alone), 1);
    CHECK_EQ(ms_alloc_set_peer_access(0, 3, true), CUDA_SUCCESS);
    CHECK(fake_access_at(alone) == 9 && fake_access_at(pooled) == 1);
    fake_find(alone)->is_opened = true;
    CHECK_EQ(ms_alloc_set_peer_access(0, 3, false), CUDA_SUCCESS);
    CHECK_EQ(fake_access_at(alone), 9);
    CHECK_EQ(ms_alloc_set_peer_access(0, 4, true), CUDA_SUCCESS);
    CHECK_EQ(fake_access_at(alone), 25);
    fake_find(alone)->is_opened = false;
    fake_fail(FAKE_mem_set_access, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(ms_alloc_set_peer_access(0, 3, false), CUDA_ERROR_UNKNOWN);
    CHECK_EQ(ms_alloc_set_peer_access(0, 3, false), CUDA_SUCCESS);
    CHECK_EQ(ms_alloc_set_peer_access(0, 4, false), CUDA_SUCCESS);
    CHECK_EQ(fake_access_at(alone), 1);
    give_back(pooled);
    CHECK(ms_alloc_free(alone, &result));
    fake_check_empty();
}

/* --- the end of a context */

MS_TEST_AFTER(start, the_end_of_a_context_frees_its_allocations_alone)
{
    CUdeviceptr first, second, last;
    CUresult result;
    CHECK(allocate(&first) && allocate(&second) && allocate(&last));
    fill(first);
    fake_find(second)->context = (CUcontext)2;
    ms_alloc_end_context(FAKE_CONTEXT);
    CHECK(!ms_alloc_free(first, &result) && !ms_alloc_free(last, &result));
    CHECK(fake.reservations == 1 && fake.physical_bytes == 0);
    fake_find(second)->context = FAKE_CONTEXT;
    ms_alloc_end_context((CUcontext)2);
    CHECK(ms_alloc_free(second, &result) && result == CUDA_SUCCESS);
    fake_check_empty();
}

/* --- what it tells others, and does as they say */

static void forget_told(void)
{
    memset(told, 0, sizeof(told));
    event_count = 0;
}

MS_TEST_AFTER(start, an_allocation_is_told_from_its_begin_to_its_end)
{
    CUdeviceptr address;
    CUresult result;
    CHECK(allocate(&address));
    CHECK(event_count == 1 && events[0].kind == MS_EVENT_ALLOCATE);
    CHECK(events[0].bytes == FAKE_GRANULE && told[TOLD_DEVICE_PUBLISH] == 1);
    forget_told();
    fake_set(fake_find(address), 0, 100, &(struct ms_content){.kind = MS_FILL});
    CHECK(ms_alloc_free(address, &result) && result == CUDA_SUCCESS);
    CHECK(event_count == 1 && events[0].kind == MS_EVENT_FREE && events[0].bytes == FAKE_GRANULE);
    CHECK(told[TOLD_COMPARE] == 1 && told_bytes == FAKE_GRANULE);
    CHECK(told[TOLD_SHARD_FORGET] == 1 && told[TOLD_PUBLISH_FREED] == 1);
    CHECK(told[TOLD_RECURRING_END] == 1 && has_saved); /* it never had memory */
}

/* It may be allocated again: what serves all of them stays. */
MS_TEST_AFTER(start, a_free_of_the_last_allocation_drops_the_shims_own_memory)
{
    CUdeviceptr first, second;
    CUresult result;
    CHECK(allocate(&first) && allocate(&second));
    CHECK(ms_alloc_free(first, &result));
    CHECK(told[TOLD_POOL_GIVE_BACK] == 0 && told[TOLD_SCRATCH_DROP] == 0);
    fill(second);
    forget_told();
    CHECK(ms_alloc_free(second, &result));
    CHECK(told[TOLD_POOL_GIVE_BACK] == 1 && told[TOLD_SCRATCH_DROP] == 1);
    CHECK(!has_saved);
    fake_check_empty();
}

MS_TEST_AFTER(start, an_allocation_has_saved_if_partly_written_and_without_memory)
{
    enum { G = FAKE_GRANULE, BYTES = 2 * FAKE_GRANULE };
    static const struct ms_content nothing = {.kind = MS_UNDEFINED}, fill_ = {.kind = MS_FILL},
                                   cached = {.kind = MS_FILL, .cached = true},
                                   resident = {.kind = MS_RESIDENT};
    static const struct {
        const struct ms_content *content;
        size_t bytes, unwritten;
        bool wanted;
    } rows[] = {{&nothing, G, 0, false},      {&fill_, G, 0, true},
                {&resident, G, 0, true},      {&cached, BYTES, 0, false},
                {&resident, BYTES, 0, false}, {&resident, BYTES, 8, false}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        CUdeviceptr address;
        CUresult result;
        CHECK(ms_alloc(BYTES, &address, &result) && result == CUDA_SUCCESS);
        struct ms_allocation *allocation = ms_space_claim(address);
        ms_space_release(allocation);
        fake_set(allocation, 0, rows[i].bytes, rows[i].content);
        fake_set(allocation, 0, rows[i].unwritten, &nothing);
        CHECK(ms_alloc_free(address, &result) && result == CUDA_SUCCESS);
        CHECK_EQ(has_saved, rows[i].wanted);
    }
}

/* The device is not waited for. */
MS_TEST_AFTER(start, a_free_in_a_capture_compares_and_gives_back_nothing)
{
    CUdeviceptr address;
    CUresult result;
    CHECK(allocate(&address));
    fill(address);
    ms_order_set_capture(true);
    forget_told();
    CHECK(ms_alloc_free(address, &result) && result == CUDA_SUCCESS);
    CHECK(told[TOLD_COMPARE] == 0 && told[TOLD_POOL_GIVE_BACK] == 0);
    CHECK(told[TOLD_SCRATCH_DROP] == 0 && told[TOLD_SHARD_FORGET] == 1);
    ms_order_set_capture(false);
    ms_delayed_free_run(NULL);
}

MS_TEST_AFTER(start_pool, allocations_of_pools_and_of_others_are_not_recurring)
{
    CUdeviceptr address = take(FAKE_GRANULE);
    CUresult result;
    CHECK(ms_alloc_free(address, &result) && result == CUDA_SUCCESS);
    CHECK(allocate(&address));
    struct ms_allocation_facts facts = facts_of(address);
    facts.is_opened = true;
    CHECK_EQ(ms_alloc_end(&facts), CUDA_SUCCESS);
    CHECK_EQ(told[TOLD_RECURRING_END], 0);
    fake_check_empty();
}

MS_TEST_AFTER(start, the_end_of_a_context_forgets_all_that_belongs_to_it)
{
    ms_alloc_end_context(FAKE_CONTEXT);
    static const enum told all[] = {TOLD_REPLAY_FORGET,    TOLD_POOL_FORGET,
                                    TOLD_SCRATCH_DROP,     TOLD_PARAMETERS_FORGET,
                                    TOLD_RECURRING_FORGET, TOLD_DELAYED_FORGET,
                                    TOLD_EXAMINING_FORGET};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        CHECK_EQ(told[all[i]], 1);
    CHECK(told_context == FAKE_CONTEXT);
}

MS_TEST_AFTER(start, memory_the_program_has_mapped_outlives_its_context)
{
    CUdeviceptr address;
    CUresult result;
    CHECK(allocate(&address));
    fill(address);
    struct ms_allocation *allocation = fake_find(address);
    allocation->is_programs = true;
    ms_alloc_end_context(FAKE_CONTEXT);
    CHECK_EQ(ms_alloc_set_peer_access(0, 3, true), CUDA_SUCCESS);
    CHECK_EQ(fake_access_at(address), 1); /* the program says who may reach it */
    allocation->is_programs = false;
    CHECK(ms_alloc_free(address, &result) && result == CUDA_SUCCESS);
    CHECK(allocate(&address)); /* of the device, whose peer may */
    fill(address);
    CHECK_EQ(fake_access_at(address), 9);
    CHECK_EQ(ms_alloc_set_peer_access(0, 3, false), CUDA_SUCCESS);
    CHECK(ms_alloc_free(address, &result) && result == CUDA_SUCCESS);
}

MS_TEST_AFTER(start, an_allocation_settles_all_where_memory_is_nearly_used_up)
{
    CUdeviceptr address;
    CUresult result;
    is_answering = true;
    CHECK(ms_alloc(FAKE_GRANULE, &address, &result) && result == CUDA_SUCCESS);
    CHECK_EQ(told[TOLD_SETTLE], 0);
    CHECK(ms_alloc_free(address, &result));
    is_tight = true;
    CHECK(ms_alloc(FAKE_GRANULE, &address, &result) && result == CUDA_SUCCESS);
    CHECK_EQ(told[TOLD_SETTLE], 1);
    CHECK(ms_alloc_free(address, &result));
    forget_told();
    asks = 0;
    refusals = 1;
    CHECK(ms_alloc(FAKE_GRANULE, &address, &result) && result == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(asks == 1 && told[TOLD_SETTLE] == 0);
    CHECK(event_count == 1 && events[0].kind == MS_EVENT_FAIL);
    CHECK(events[0].reason == MS_REASON_OVERCOMMIT && events[0].bytes == FAKE_GRANULE);
}

MS_TEST_AFTER(start_pool, a_pool_is_asked_for_again_only_when_it_was_trimmed)
{
    CUdeviceptr address;
    CUresult result;
    is_answering = true;
    refusals = 1;
    CHECK(ms_alloc_in_stream(FAKE_GRANULE, NULL, FAKE_STREAM, &address, &result));
    CHECK(result == CUDA_SUCCESS && asks == 2 && trims == 1);
    give_back(address);
    asks = 0;
    trim_result = CUDA_ERROR_UNKNOWN;
    CHECK(ms_alloc_in_stream(FAKE_GRANULE, NULL, FAKE_STREAM, &address, &result));
    CHECK(result == CUDA_ERROR_OUT_OF_MEMORY && asks == 1 && trims == 2);
}

MS_TEST_AFTER(start, queued_work_that_is_not_known_forbids_to_defer)
{
    CUdeviceptr address;
    CUresult result;
    is_unexamined = true;
    CHECK(!ms_alloc(FAKE_GRANULE, &address, &result));
    CHECK(!ms_defers_any() && fake.reservations == 0);
    CHECK_EQ(ms_counter_get(MS_COUNT_FALLBACKS), 1);
    CHECK(event_count == 1 && events[0].reason == MS_REASON_UNEXAMINED);
    CHECK_EQ(events[0].bytes, FAKE_GRANULE);
    CHECK_EQ(ms_counter_get(MS_COUNT_ALLOCATIONS), 0);
}

/* A copy of another thread could bring an address to the device that the shim does not look for. */
MS_TEST_AFTER(start, copies_are_examined_while_an_allocation_is_made)
{
    CUdeviceptr address;
    CUresult result;
    atomic_store(&ms_hot.gated_copies, 1);
    is_unexamined = true;
    CHECK(ms_is_quiet_for_copies());
    CHECK(!ms_alloc(FAKE_GRANULE, &address, &result));
    CHECK(!copies_pass && ms_is_quiet_for_copies());
    is_unexamined = false;
    CHECK(allocate(&address));
    CHECK(!copies_pass && !ms_is_quiet_for_copies());
    CHECK(ms_alloc_free(address, &result));
    CHECK(ms_is_quiet_for_copies());
    atomic_store(&ms_hot.gated_copies, 0);
}

/* As while another thread suspends: the shim owns nothing any more, but what it was told of queued
 * work still counts. */
MS_TEST_AFTER(start, copies_are_examined_while_calls_are_and_nothing_is_owned)
{
    CUdeviceptr address;
    CUresult result;
    atomic_store(&ms_hot.gated_copies, 1);
    CHECK(allocate(&address));
    ms_examining_begin();
    CHECK(ms_alloc_free(address, &result));
    CHECK(!ms_is_quiet_for_copies());
    ms_examining_end();
    CHECK(ms_is_quiet_for_copies());
    atomic_store(&ms_hot.gated_copies, 0);
}

MS_TEST_AFTER(start, a_recurring_allocation_opens_no_window)
{
    CUdeviceptr address;
    CUresult result;
    ms_window_end(false);
    is_recurring = true;
    CHECK(allocate(&address) && facts_of(address).is_recurring);
    CHECK(ms_window_now().is_settled);
    CHECK(ms_alloc_free(address, &result));
    is_recurring = false;
    CHECK(allocate(&address) && !facts_of(address).is_recurring);
    CHECK(!ms_window_now().is_settled);
    CHECK(ms_alloc_free(address, &result));
}

STORY_AFTER(start, sizes_that_the_settings_exclude_are_not_deferred, ms_config.excluded.count = 1,
            ms_config.excluded.ranges[0].first = 100, ms_config.excluded.ranges[0].last = 200,
            IS(may_defer(99) && !may_defer(100) && !may_defer(200) && may_defer(201)),
            ms_config.excluded.count = 0)

/* --- streams of other contexts */

static CUcontext its_context;

static CUresult stream_get_ctx(CUstream stream, CUcontext *context)
{
    CHECK(stream == FAKE_STREAM);
    *context = its_context;
    return CUDA_SUCCESS;
}

/* A green context may end, and its events with it, unseen. */
MS_TEST_AFTER(start_pool, a_free_in_a_stream_of_a_green_context_waits)
{
    CUresult result;
    const CUdeviceptr first = take(FAKE_GRANULE), second = take(FAKE_GRANULE);
    ms_alloc_add_green_context((CUcontext)5);
    ms_driver.stream_get_ctx = stream_get_ctx;
    its_context = (CUcontext)5;
    fake.wait_result = CUDA_ERROR_LAUNCH_FAILED;
    CHECK(!ms_alloc_free_in_stream(first, FAKE_STREAM, &result));
    fake.wait_result = CUDA_SUCCESS;
    CHECK(ms_alloc_free_in_stream(first, FAKE_STREAM, &result) && result == CUDA_SUCCESS);
    CHECK(fake.reservations == 1 && fake.events == 0);
    its_context = (CUcontext)6; /* another one, which does not end unseen */
    fake.is_busy = true;
    fill(second);
    CHECK(ms_alloc_free_in_stream(second, FAKE_STREAM, &result) && result == CUDA_SUCCESS);
    CHECK(fake.reservations == 1 && fake.events > 0);
    fake.is_busy = false;
    ms_delayed_free_pass(false);
    fake_check_empty();
}
