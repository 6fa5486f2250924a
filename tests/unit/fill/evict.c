/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/evict.h"

#include <string.h>

#include "runtime/config/config.h"
#include "runtime/fill/access.h"
#include "runtime/fill/overcommit.h"
#include "runtime/fill/scratch.h"
#include "runtime/fill/shadow.h"
#include "runtime/memory/allocation.h"
#include "runtime/memory/carve.h"
#include "runtime/fill/delayed_free.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/memory/ready.h"
#include "runtime/order/order.h"
#include "runtime/state/caller.h"
#include "runtime/state/counters.h"
#include "tests/state/page_folder.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/files/files.h"

enum { GRANULES = 8, BYTES = GRANULES * FAKE_GRANULE };

/* Who waits for reads that are not queued lets other threads run. */
static int yields;
int __real_sched_yield(void);
int __wrap_sched_yield(void);
int __wrap_sched_yield(void)
{
    yields++;
    return __real_sched_yield();
}

static time_t later; /* than it is, in seconds */
int __real_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    const int result = __real_clock_gettime(clock, time);
    time->tv_sec += later;
    return result;
}

static const struct ms_content fill = {.kind = MS_FILL, .pattern = 0x07070707};
static const struct ms_content resident = {.kind = MS_RESIDENT};
static struct ms_allocation *allocation;

static void set(size_t first, size_t end, const struct ms_content *content)
{
    fake_set(allocation, first * FAKE_GRANULE, end * FAKE_GRANULE, content);
}

static CUresult read_bytes(size_t first, size_t end)
{
    CHECK(ms_space_claim(allocation->address) == allocation);
    const CUresult result =
        ms_materialise(allocation, first * FAKE_GRANULE, end * FAKE_GRANULE, MS_NEED_READ);
    ms_space_release(allocation);
    return result;
}

/* Four granules that can be replayed again, in memory; two that cannot; two without memory. */
static void start(void)
{
    fake_start();
    allocation = fake_allocation(BYTES);
    set(0, 4, &fill);
    set(4, 6, &resident);
    memset((void *)(uintptr_t)(allocation->address + 4 * FAKE_GRANULE), 3, 2 * FAKE_GRANULE);
    CHECK_EQ(read_bytes(0, 4), CUDA_SUCCESS);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 6 * FAKE_GRANULE);
}

static void end(void)
{
    fake_check_allocation(allocation);
    fake_allocation_free(allocation);
    fake_check_empty();
}

static bool try_again(void)
{
    int attempts = 0;
    return ms_evict_try_again(CUDA_ERROR_OUT_OF_MEMORY, &attempts);
}

static void check_kept(void)
{
    CHECK(!try_again());
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 6 * FAKE_GRANULE);
    CHECK_EQ(ms_allocation_lineage(allocation)->cached_bytes, 4 * FAKE_GRANULE);
}

MS_TEST_BETWEEN(start, end, an_eviction_gives_back_memory_that_lineage_restores)
{
    CHECK(try_again());
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 2 * FAKE_GRANULE);
    CHECK_EQ(fake.physical_bytes, 2 * FAKE_GRANULE);
    CHECK_EQ(ms_allocation_lineage(allocation)->cached_bytes, 0);
    CHECK_EQ(ms_allocation_lineage(allocation)->resident_bytes, 2 * FAKE_GRANULE);
    CHECK_EQ(ms_counter_get(MS_COUNT_EVICTED_BYTES), 4 * FAKE_GRANULE);
    fake_check_allocation(allocation);
    CHECK_EQ(read_bytes(0, 6), CUDA_SUCCESS);
    const unsigned char *bytes = (const unsigned char *)(uintptr_t)allocation->address;
    CHECK(bytes[0] == 7 && bytes[4 * FAKE_GRANULE - 1] == 7);
    CHECK(bytes[4 * FAKE_GRANULE] == 3 && bytes[6 * FAKE_GRANULE - 1] == 3);
}

/* What the state page has of that kind: how many, and their bytes. */
static uint64_t count_events(enum ms_event_kind kind, uint64_t *bytes_out)
{
    struct ms_snapshot snapshot = page_read(getpid());
    uint64_t count = 0;
    *bytes_out = 0;
    for (size_t i = 0; i < snapshot.event_count; i++) {
        count += snapshot.events[i].kind == kind;
        *bytes_out += snapshot.events[i].kind == kind ? snapshot.events[i].bytes : 0;
    }
    ms_snapshot_cleanup(&snapshot);
    return count;
}

MS_TEST_BETWEEN(start, end, pressure_and_what_it_freed_are_on_the_state_page)
{
    uint64_t bytes;
    page_folder_make();
    page_start(MS_STATE_LEAST_BYTES);
    CHECK(try_again());
    CHECK_EQ(count_events(MS_EVENT_PRESSURE, &bytes), 1);
    CHECK_EQ(bytes, 4 * FAKE_GRANULE);
    CHECK_EQ(count_events(MS_EVENT_EVICT, &bytes), 1);
    CHECK_EQ(bytes, 4 * FAKE_GRANULE);
    CHECK_EQ(count_events(MS_EVENT_FAIL, &bytes), 0);
    CHECK(!try_again());
    CHECK_EQ(count_events(MS_EVENT_EVICT, &bytes), 1); /* nothing went */
    CHECK_EQ(count_events(MS_EVENT_PRESSURE, &bytes), 2);
    CHECK_EQ(bytes, 4 * FAKE_GRANULE);
    CHECK_EQ(count_events(MS_EVENT_FAIL, &bytes), 1);
}

MS_TEST(only_a_call_without_memory_is_tried_again_and_not_for_ever)
{
    int attempts = 0;
    fake_start();
    CHECK(!ms_evict_try_again(CUDA_ERROR_OUT_OF_MEMORY, &attempts)); /* nothing is ours */
    start();
    CHECK(!ms_evict_try_again(CUDA_SUCCESS, &attempts));
    CHECK(!ms_evict_try_again(CUDA_ERROR_INVALID_VALUE, &attempts));
    CHECK_EQ(attempts, 0);
    int tries = 0;
    while (ms_evict_try_again(CUDA_ERROR_OUT_OF_MEMORY, &attempts)) {
        CHECK_EQ(read_bytes(0, 4), CUDA_SUCCESS); /* what the try itself takes */
        tries++;
    }
    CHECK_EQ(tries, 2);
    end();
}

MS_TEST_BETWEEN(start, end, the_device_is_waited_for_first)
{
    const unsigned unmaps = fake.calls[FAKE_mem_unmap];
    fake.wait_result = CUDA_ERROR_LAUNCH_FAILED;
    check_kept();
    CHECK_EQ(fake.calls[FAKE_mem_unmap], unmaps);
    CHECK(fake.calls[FAKE_event_synchronize] > 0);
    fake.wait_result = CUDA_SUCCESS;
    CHECK(try_again());
}

/* Who may have no wait loses nothing. */
MS_TEST(nothing_is_taken_when_a_call_before_it_fails)
{
    static const enum fake_call calls[] = {FAKE_ctx_get_current, FAKE_ctx_push_current};
    for (size_t i = 0; i < 2; i++) {
        start();
        allocation->context = (CUcontext)2; /* not the current one */
        fake_fail(calls[i], 1, CUDA_ERROR_INVALID_CONTEXT);
        check_kept();
        CHECK(fake_has_failed());
        allocation->context = FAKE_CONTEXT;
        end();
    }
}

MS_TEST_BETWEEN(start, end, nothing_is_taken_during_a_capture)
{
    ms_order_set_capture(true);
    const unsigned events = fake.calls[FAKE_event_create];
    check_kept();
    CHECK_EQ(fake.calls[FAKE_event_create], events); /* nor is anything waited for */
    ms_order_set_capture(false);
}

MS_TEST_BETWEEN(start, end, nothing_is_taken_between_a_read_and_its_call)
{
    ms_evict_hold();
    check_kept();
    ms_evict_let_go();
    CHECK(try_again());
}

MS_TEST_BETWEEN(start, end, reads_that_are_not_queued_are_waited_for_for_a_while)
{
    CHECK(ms_evict_reads_are_queued());
    CHECK_EQ(yields, 0);
    ms_evict_hold();
    ms_evict_hold();
    ms_evict_let_go();
    CHECK(!ms_evict_reads_are_queued());
    CHECK_EQ(yields, 10000);
    CHECK(!try_again());
    CHECK_EQ(yields, 20000);
    set(0, 4, &resident);
    set(6, 8, &resident); /* where nothing could go, no read is waited for */
    CHECK(!try_again());
    CHECK_EQ(yields, 20000);
    ms_evict_let_go();
    CHECK(ms_evict_reads_are_queued());
}

MS_TEST_BETWEEN(start, end, a_read_that_fails_holds_nothing)
{
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(ms_access(allocation->address + 6 * FAKE_GRANULE, FAKE_GRANULE, MS_NEED_READ),
             CUDA_ERROR_UNKNOWN);
    CHECK(try_again());
}

static void read_meanwhile(void)
{
    fake.on_wait = NULL;
    CHECK_EQ(read_bytes(0, 1), CUDA_SUCCESS);
}

static void change_meanwhile(void)
{
    fake.on_wait = NULL;
    ms_allocation_touch(allocation);
}

/* Freed, and another one lies there. */
static void replace_meanwhile(void)
{
    fake.on_wait = NULL;
    allocation->id++;
}

MS_TEST_BETWEEN(start, end, an_eviction_keeps_memory_used_during_its_wait)
{
    fake.on_wait = read_meanwhile;
    check_kept();
    CHECK(fake.on_wait == NULL);
    fake.on_wait = change_meanwhile;
    check_kept();
    fake.on_wait = replace_meanwhile;
    check_kept();
    CHECK(try_again());
}

static struct ms_allocation *other;

static void free_meanwhile(void)
{
    fake.on_wait = NULL;
    fake_allocation_free(other);
}

MS_TEST_BETWEEN(start, end, an_allocation_may_go_during_the_wait)
{
    other = fake_allocation(FAKE_GRANULE);
    fake_set(other, 0, FAKE_GRANULE, &(struct ms_content){.kind = MS_FILL, .cached = true});
    fake.on_wait = free_meanwhile;
    CHECK(try_again());
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 2 * FAKE_GRANULE);
}

/* Of what has nothing to give back no context is waited for. */
MS_TEST_BETWEEN(start, end, an_eviction_waits_for_no_context_that_has_nothing_to_give)
{
    other = fake_allocation(FAKE_GRANULE);
    fake_set(other, 0, FAKE_GRANULE, &resident);
    other->context = (CUcontext)2;
    CHECK(try_again());
    CHECK_EQ(fake.calls[FAKE_ctx_push_current], 0);
    other->context = FAKE_CONTEXT;
    fake_allocation_free(other);
}

/* A granule that can be restored, in a context. */
static struct ms_allocation *add_cached(CUcontext context)
{
    struct ms_allocation *added = fake_allocation(FAKE_GRANULE);
    fake_set(added, 0, FAKE_GRANULE, &(struct ms_content){.kind = MS_FILL, .cached = true});
    added->context = context;
    return added;
}

/* The calls that it takes to wait, while there are so many in another context. */
static unsigned count_pushes(size_t count)
{
    struct ms_allocation *added[3];
    start();
    for (size_t i = 0; i < count; i++)
        added[i] = add_cached((CUcontext)2);
    CHECK(try_again());
    CHECK_EQ(fake.physical_bytes, 2 * FAKE_GRANULE);
    const unsigned pushes = fake.calls[FAKE_ctx_push_current];
    for (size_t i = 0; i < count; i++) {
        added[i]->context = FAKE_CONTEXT;
        fake_allocation_free(added[i]);
    }
    end();
    return pushes;
}

MS_TEST(allocations_of_one_context_are_waited_for_once)
{
    fake_needs_hints(); /* they lie side by side */
    CHECK_EQ(count_pushes(0), 0);
    const unsigned one = count_pushes(1);
    CHECK(one > 0);
    CHECK_EQ(count_pushes(2), one);
    CHECK_EQ(count_pushes(3), one);
}

/* Whichever comes first. */
MS_TEST_BETWEEN(start, end, an_eviction_waits_for_all_contexts)
{
    other = add_cached((CUcontext)2);
    fake_fail(FAKE_ctx_push_current, 1, CUDA_ERROR_INVALID_CONTEXT);
    CHECK(!try_again());
    CHECK(fake_has_failed());
    CHECK_EQ(fake.physical_bytes, 7 * FAKE_GRANULE);
    CHECK(try_again());
    CHECK_EQ(fake.physical_bytes, 2 * FAKE_GRANULE);
    other->context = FAKE_CONTEXT;
    fake_allocation_free(other);
}

/* More than are looked at at once. */
MS_TEST_BETWEEN(start, end, an_eviction_looks_at_very_many_allocations)
{
    enum { MANY = 600 };
    static struct ms_allocation *many[MANY];
    for (size_t i = 0; i < MANY; i++)
        many[i] = add_cached(FAKE_CONTEXT);
    CHECK_EQ(fake.physical_bytes, (6 + MANY) * FAKE_GRANULE);
    CHECK(try_again());
    CHECK_EQ(fake.physical_bytes, 2 * FAKE_GRANULE);
    CHECK_EQ(ms_counter_get(MS_COUNT_EVICTED_BYTES), (4 + MANY) * FAKE_GRANULE);
    for (size_t i = 0; i < MANY; i++)
        fake_allocation_free(many[i]);
}

static CUresult load_nothing(CUlibrary *library, const void *code, CUjit_option *jit_options,
                             void **jit_values, unsigned jit_count, CUlibraryOption *options,
                             void **values, unsigned count)
{
    (void)library, (void)code, (void)jit_options, (void)jit_values, (void)jit_count;
    (void)options, (void)values, (void)count;
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* In verify mode, while its bytes are there. */
MS_TEST_BETWEEN(start, end, an_eviction_compares_bytes_before_they_go)
{
    ms_config.mode = MS_VERIFY;
    ms_config.verify_percent = 100;
    ms_driver.library_load_data = load_nothing;
    open_log(MS_DEBUG);
    struct ms_content content = fill;
    content.cached = content.is_shadowed = true;
    CHECK(ms_space_claim(allocation->address) == allocation);
    CHECK(ms_shadow_write(allocation, 0, BYTES, &fill, NULL, FAKE_STREAM));
    ms_space_release(allocation);
    set(6, 8, &content);
    memset((void *)(uintptr_t)(allocation->address + 6 * FAKE_GRANULE), 7, 2 * FAKE_GRANULE);
    CHECK(try_again());
    CHECK_EQ(ms_counter_get(MS_COUNT_VERIFY_BYTES), 2 * FAKE_GRANULE);
    CHECK_EQ(ms_counter_get(MS_COUNT_VERIFY_DIFFER), 0);
    CHECK_EQ(count_log_lines("out of device memory: 917504 bytes"), 1); /* 6 granules, 8 shadows */
    ms_config.mode = MS_ON;
}

MS_TEST_BETWEEN(start, end, a_claimed_allocation_is_left_out)
{
    CHECK(ms_space_claim(allocation->address) == allocation);
    check_kept();
    ms_space_release(allocation);
}

MS_TEST_BETWEEN(start, end, an_eviction_takes_the_sink_and_runs_delayed_frees)
{
    CHECK(try_again());
    CHECK(!try_again());
    CHECK_EQ(ms_backing_sink_map(ms_allocation_memory(allocation), 0, FAKE_GRANULE), CUDA_SUCCESS);
    ms_backing_sink_unmap(ms_allocation_backing(allocation), 0, FAKE_GRANULE);
    CHECK_EQ(fake.physical_bytes, 3 * FAKE_GRANULE);
    CHECK(try_again());
    CHECK_EQ(fake.physical_bytes, 2 * FAKE_GRANULE);

    other = fake_allocation(FAKE_GRANULE);
    fake_set(other, 0, FAKE_GRANULE, &resident);
    ms_space_remove(ms_space_claim(other->address));
    ms_delayed_free_add(other, NULL, NULL);
    CHECK_EQ(fake.physical_bytes, 3 * FAKE_GRANULE);
    CHECK(try_again());
    CHECK_EQ(fake.physical_bytes, 2 * FAKE_GRANULE);
}

/* --- what cannot be restored */

MS_TEST_AFTER(start, an_eviction_keeps_bytes_a_changed_file_cannot_restore)
{
    static struct test_file file;
    make_test_file(&file, "/tmp", FAKE_GRANULE);
    const struct ms_content content = {.kind = MS_SOURCE, .source = file.source};
    set(7, 8, &content);
    CHECK_EQ(read_bytes(7, 8), CUDA_SUCCESS);
    CHECK_EQ(truncate(file.path, 5), 0);
    CHECK(try_again());
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 3 * FAKE_GRANULE);
    CHECK_EQ(ms_allocation_lineage(allocation)->resident_bytes, 3 * FAKE_GRANULE);
    CHECK_BYTES((void *)(uintptr_t)(allocation->address + 7 * FAKE_GRANULE), file.data,
                FAKE_GRANULE);
    end();
    ms_source_drop(file.source);
}

MS_TEST_BETWEEN(start, end, a_failure_for_bytes_is_told)
{
    int attempts = 0;
    open_log(MS_ERROR);
    CHECK(ms_evict_try_bytes_again(CUDA_ERROR_OUT_OF_MEMORY, &attempts));
    CHECK_EQ(count_log_lines("no memory for the bytes"), 0);
    CHECK(!ms_evict_try_bytes_again(CUDA_ERROR_OUT_OF_MEMORY, &attempts));
    CHECK_EQ(count_log_lines("no memory for the bytes"), 1);
    CHECK(!ms_evict_try_bytes_again(CUDA_ERROR_UNKNOWN, &attempts));
    CHECK_EQ(count_log_lines("no memory for the bytes"), 1);
}

static int news_of(const char *caller, time_t after)
{
    int attempts = 2; /* it was tried before */
    later += after;
    ms_caller = caller;
    CHECK(!ms_evict_try_bytes_again(CUDA_ERROR_OUT_OF_MEMORY, &attempts));
    ms_caller = NULL;
    return count_log_lines("fails: there is no memory for the bytes");
}

MS_TEST_BETWEEN(start, end, a_call_that_fails_again_and_again_is_told_once)
{
    static const char one[] = "cuOne", another[] = "cuAnother";
    open_log(MS_ERROR);
    CHECK_EQ(news_of(one, 0), 1);
    CHECK(ms_overcommit_take_failed()); /* the program looks for what fits from now on */
    CHECK_EQ(news_of(one, 0), 1);
    CHECK_EQ(news_of(one, 8), 1); /* each time, it was told or not, is the last time */
    CHECK_EQ(news_of(one, 8), 1);
    CHECK_EQ(news_of(another, 0), 2);
    CHECK_EQ(news_of(one, 0), 3);
    CHECK_EQ(news_of(one, 12), 4);
    CHECK_EQ(count_log_lines("cuOne fails"), 3);
    CHECK_EQ(count_log_lines("cuAnother fails"), 1);
    CHECK_EQ(news_of(NULL, 0), 5);
    CHECK_EQ(count_log_lines("a call fails"), 1);
}

/* --- what blocks left behind */

/* Granules 0-1 and 4-7 are blocks; 2-3 were one, and are in memory. */
static void carve(void)
{
    fake_start();
    allocation = fake_allocation(BYTES);
    CHECK(ms_space_claim(allocation->address) == allocation);
    CHECK(ms_carve_add_block(allocation, 0, 2 * FAKE_GRANULE));
    CHECK(ms_carve_add_block(allocation, 4 * FAKE_GRANULE, BYTES));
    for (size_t i = 0; i < GRANULES; i += 2)
        CHECK_EQ(ms_backing_cover(ms_allocation_memory(allocation), i * FAKE_GRANULE,
                                  (i + 2) * FAKE_GRANULE),
                 CUDA_SUCCESS);
    CHECK(ms_lineage_set(&MS_OWN(allocation)->lineage, 0, BYTES, &resident));
    ms_carve_set_leftover(allocation, 2 * FAKE_GRANULE);
    ms_space_release(allocation);
}

MS_TEST_BETWEEN(carve, end, dead_memory_goes_back_unless_a_graph_uses_it)
{
    set(0, 2, &(struct ms_content){.kind = MS_FILL, .cached = true});
    ms_allocation_set(allocation, MS_TRAIT_KEEPS_DEAD, true);
    CHECK(try_again());
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 6 * FAKE_GRANULE);
    CHECK(fake_memory_at(allocation->address + 2 * FAKE_GRANULE) > 0);
    CHECK(!try_again());
    ms_allocation_set(allocation, MS_TRAIT_KEEPS_DEAD, false);
    CHECK(try_again());
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 4 * FAKE_GRANULE);
    CHECK_EQ(ms_allocation_lineage(allocation)->dead_bytes, 2 * FAKE_GRANULE);
    CHECK_EQ(fake_memory_at(allocation->address + 2 * FAKE_GRANULE), 0);
    CHECK_EQ(ms_carve_leftover_bytes(), 0);
}

MS_TEST_BETWEEN(carve, end, leftovers_are_trimmed_when_there_are_many_and_the_device_is_idle)
{
    ms_config.leftover_bytes = 2 * FAKE_GRANULE;
    ms_evict_leftover(0);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, BYTES);
    ms_config.leftover_bytes = 2 * FAKE_GRANULE - 1;
    fake.is_busy = true;
    ms_evict_leftover(0);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, BYTES);
    CHECK_EQ(ms_carve_leftover_bytes(), 2 * FAKE_GRANULE);
    fake.is_busy = false;
    ms_evict_leftover(0); /* in vain the last time: not before there is more */
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, BYTES);
    ms_evict_leftover(allocation->address);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 6 * FAKE_GRANULE);
    CHECK_EQ(ms_carve_leftover_bytes(), 0);
}

/* Some granules of it are left over. */
static void leave(size_t granules)
{
    set(2, 2 + granules, &resident);
    CHECK(ms_space_claim(allocation->address) == allocation);
    ms_carve_set_leftover(allocation, granules * FAKE_GRANULE);
    ms_space_release(allocation);
}

MS_TEST_BETWEEN(carve, end, trimming_in_vain_waits_for_more_than_the_limit)
{
    size_t block_end;
    CHECK(ms_space_claim(allocation->address) == allocation);
    CHECK(ms_carve_return(allocation, 4 * FAKE_GRANULE, &block_end));
    ms_carve_set_leftover(allocation, 2 * FAKE_GRANULE);
    ms_space_release(allocation);
    ms_config.leftover_bytes = FAKE_GRANULE;
    fake.is_busy = true;
    ms_evict_leftover(0);
    fake.is_busy = false;
    leave(3);
    ms_evict_leftover(0);
    CHECK_EQ(ms_carve_leftover_bytes(), 3 * FAKE_GRANULE);
    leave(4);
    ms_evict_leftover(0);
    CHECK_EQ(ms_carve_leftover_bytes(), 0);
    leave(2);
    ms_evict_leftover(0); /* not in vain the last time */
    CHECK_EQ(ms_carve_leftover_bytes(), 0);
}

/* Of one that trains: after four times what it has, memory stays where it is. */
static void trim_for_ever(bool of_one)
{
    carve();
    ms_config.leftover_bytes = FAKE_GRANULE;
    for (int round = 0; round < 4 * GRANULES / 2; round++) {
        CHECK(!ms_keeps_memory());
        ms_evict_leftover(of_one ? allocation->address : 0);
        CHECK_EQ(ms_carve_leftover_bytes(), 0);
        leave(2);
    }
    CHECK(!ms_keeps_memory());
    ms_evict_leftover(of_one ? allocation->address : 0);
    CHECK(ms_keeps_memory());
    CHECK_EQ(ms_carve_leftover_bytes(), 2 * FAKE_GRANULE);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, BYTES);
    end();
}

MS_TEST(trimming_ends)
{
    trim_for_ever(false);
}

MS_TEST(trimming_of_one_allocation_ends)
{
    trim_for_ever(true);
}

/* They are used again. */
static void want_again(size_t granules)
{
    CHECK(ms_space_claim(allocation->address) == allocation);
    CHECK_EQ(ms_allocation_cover(allocation, 2 * FAKE_GRANULE, (2 + granules) * FAKE_GRANULE),
             CUDA_SUCCESS);
    ms_space_release(allocation);
    leave(granules);
}

/* All that went comes again. */
static void trim_in_vain(bool of_one)
{
    carve();
    ms_config.leftover_bytes = FAKE_GRANULE;
    ms_evict_leftover(of_one ? allocation->address : 0);
    want_again(2);
    CHECK(!ms_keeps_memory());
    ms_evict_leftover(of_one ? allocation->address : 0);
    CHECK(ms_keeps_memory());
    CHECK_EQ(ms_carve_leftover_bytes(), 2 * FAKE_GRANULE);
    CHECK_EQ(ms_counter_get(MS_COUNT_EVICTED_BYTES), 2 * FAKE_GRANULE);
    end();
}

MS_TEST(trimming_ends_when_what_goes_comes_again)
{
    trim_in_vain(false);
}

MS_TEST(trimming_of_one_allocation_ends_when_what_goes_comes_again)
{
    trim_in_vain(true);
}

/* An eighth of what the program has may be lost: one granule. */
MS_TEST_BETWEEN(carve, end, trimming_goes_on_while_it_pays)
{
    ms_config.leftover_bytes = 0;
    ms_evict_leftover(0);
    for (unsigned round = 0; round < 2; round++) {
        want_again(1);
        ms_evict_leftover(0);
        CHECK(!ms_keeps_memory());
        CHECK_EQ(ms_carve_leftover_bytes(), 0);
    }
    CHECK_EQ(ms_carve_trim_gain(), 0);
    want_again(1);
    CHECK_EQ(ms_carve_trim_gain(), -2 * FAKE_GRANULE);
    ms_evict_leftover(0);
    CHECK(ms_keeps_memory());
    CHECK_EQ(ms_carve_leftover_bytes(), FAKE_GRANULE);
}

/* The same, but a block did without the memory meanwhile. */
MS_TEST_BETWEEN(carve, end, trimming_goes_on_if_blocks_do_without)
{
    size_t block_end;
    ms_config.leftover_bytes = 0;
    ms_evict_leftover(0);
    CHECK(ms_space_claim(allocation->address) == allocation);
    CHECK_EQ(ms_carve_take(allocation, 2 * FAKE_GRANULE, 4 * FAKE_GRANULE), MS_CARVED);
    CHECK(ms_carve_return(allocation, 2 * FAKE_GRANULE, &block_end));
    ms_space_release(allocation);
    CHECK_EQ(ms_carve_trim_gain(), 4 * FAKE_GRANULE);
    want_again(2);
    ms_evict_leftover(0);
    CHECK(!ms_keeps_memory());
    CHECK_EQ(ms_carve_leftover_bytes(), 0);
}

static bool was_ready;

static void hand_out_meanwhile(void)
{
    fake.on_wait = NULL;
    was_ready = ms_ready_report(allocation->address + 4 * FAKE_GRANULE, 100);
}

/* From the look at it on, before the wait: whose memory is to go is not handed out unseen. */
MS_TEST_BETWEEN(carve, end, a_block_that_may_go_is_not_ready)
{
    size_t block_end;
    CHECK(ms_space_claim(allocation->address) == allocation);
    CHECK(ms_carve_return(allocation, 4 * FAKE_GRANULE, &block_end));
    ms_space_release(allocation);
    CHECK(ms_ready_report(allocation->address + 4 * FAKE_GRANULE, 100));
    CHECK(ms_ready_report(allocation->address + 4 * FAKE_GRANULE, 0));
    fake.on_wait = hand_out_meanwhile;
    CHECK(try_again());
    CHECK(fake.on_wait == NULL && !was_ready);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 2 * FAKE_GRANULE);
}

MS_TEST_BETWEEN(carve, end, trimming_polls_those_with_leftovers_alone)
{
    other = fake_allocation(FAKE_GRANULE);
    other->context = (CUcontext)2;
    ms_config.leftover_bytes = FAKE_GRANULE;
    ms_evict_leftover(0);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 6 * FAKE_GRANULE);
    CHECK_EQ(fake.calls[FAKE_ctx_push_current], 0);
    other->context = FAKE_CONTEXT;
    fake_allocation_free(other);
}

MS_TEST_BETWEEN(carve, end, an_allocation_another_thread_uses_is_not_trimmed)
{
    CHECK(ms_space_claim(allocation->address) == allocation);
    ms_evict_leftover(allocation->address);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, BYTES);
    ms_space_release(allocation);
    ms_evict_leftover(allocation->address + BYTES + (64 << 20)); /* nor what is gone */
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, BYTES);
    ms_evict_leftover(allocation->address);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 6 * FAKE_GRANULE);
}

MS_TEST_BETWEEN(carve, end, trimming_leaves_what_is_cached)
{
    set(0, 2, &(struct ms_content){.kind = MS_FILL, .cached = true});
    ms_config.leftover_bytes = FAKE_GRANULE;
    ms_evict_leftover(0);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 6 * FAKE_GRANULE);
    CHECK_EQ(ms_allocation_lineage(allocation)->cached_bytes, 2 * FAKE_GRANULE);
}

MS_TEST_BETWEEN(start, end, a_read_in_another_context_is_for_good)
{
    CHECK_EQ(ms_evict_need_in(allocation, MS_NEED_READ, FAKE_STREAM), MS_NEED_READ);
    CHECK_EQ(ms_evict_need_in(allocation, MS_NEED_READ, CU_STREAM_LEGACY), MS_NEED_READ);
    allocation->context = (CUcontext)2;
    CHECK_EQ(ms_evict_need_in(allocation, MS_NEED_READ, FAKE_STREAM), MS_NEED_READ_WRITE);
    CHECK_EQ(ms_evict_need_in(allocation, MS_NEED_READ, CU_STREAM_LEGACY), MS_NEED_READ_WRITE);
    allocation->context = FAKE_CONTEXT;
    fake.refused_stream = FAKE_STREAM;
    CHECK_EQ(ms_evict_need_in(allocation, MS_NEED_READ, FAKE_STREAM), MS_NEED_READ_WRITE);
    const unsigned asked = fake.calls[FAKE_stream_get_ctx];
    CHECK_EQ(ms_evict_need_in(allocation, MS_NEED_OVERWRITE, FAKE_STREAM), MS_NEED_OVERWRITE);
    CHECK_EQ(fake.calls[FAKE_stream_get_ctx], asked); /* it is the same anywhere */
}

/* --- scratch memory that was refused */

/* All that the program has is in memory, so that each byte more is refused. */
static void refuse(size_t bytes)
{
    fake_set(allocation, 6 * FAKE_GRANULE, BYTES, &resident);
    ms_scratch_may_refuse(true);
    CHECK_EQ(ms_scratch_ask(0, bytes), CUDA_ERROR_OUT_OF_MEMORY);
}

MS_TEST_BETWEEN(start, end, an_eviction_for_scratch_memory_takes_restorable_bytes)
{
    int attempts = 0;
    CHECK(!ms_evict_for_scratch(CUDA_ERROR_OUT_OF_MEMORY, &attempts)); /* nothing was refused */
    refuse(FAKE_GRANULE);
    CHECK(!ms_evict_for_scratch(CUDA_ERROR_UNKNOWN, &attempts));
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, BYTES);
    CHECK_EQ(attempts, 0);
    refuse(FAKE_GRANULE);
    CHECK(ms_evict_for_scratch(CUDA_ERROR_OUT_OF_MEMORY, &attempts));
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 4 * FAKE_GRANULE);
    CHECK_EQ(attempts, 1);
}

/* Then nothing is refused any more. */
MS_TEST_BETWEEN(start, end, scratch_memory_is_not_refused_again_if_nothing_can_go)
{
    int attempts = 0;
    set(0, 4, &resident);
    refuse(FAKE_GRANULE);
    CHECK(ms_evict_for_scratch(CUDA_ERROR_OUT_OF_MEMORY, &attempts));
    CHECK_EQ(ms_scratch_ask(0, FAKE_GRANULE), CUDA_SUCCESS);
}

MS_TEST_BETWEEN(start, end, scratch_memory_is_not_refused_for_ever)
{
    int attempts = 0;
    for (unsigned i = 1; i <= 3; i++) {
        CHECK_EQ(read_bytes(0, 4), CUDA_SUCCESS);
        refuse(FAKE_GRANULE);
        CHECK(ms_evict_for_scratch(CUDA_ERROR_OUT_OF_MEMORY, &attempts));
        CHECK_EQ(ms_scratch_ask(0, 8 * FAKE_GRANULE),
                 i < 3 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS);
        ms_scratch_take_refusal();
    }
}

/* Enough of it, and what comes from a file, or lies on another device, stays. */
MS_TEST_BETWEEN(start, end, an_eviction_for_scratch_memory_takes_no_more_than_enough)
{
    struct test_file file;
    int attempts = 0;
    make_test_file(&file, "/tmp", FAKE_GRANULE);
    struct ms_allocation *first = add_cached(FAKE_CONTEXT), *second = add_cached(FAKE_CONTEXT);
    set(0, 8, &resident);
    set(0, 1, &(struct ms_content){.kind = MS_SOURCE, .cached = true, .source = file.source});
    ms_scratch_may_refuse(true);
    CHECK_EQ(ms_scratch_ask(0, 0), CUDA_ERROR_OUT_OF_MEMORY); /* the sink */
    CHECK(ms_evict_for_scratch(CUDA_ERROR_OUT_OF_MEMORY, &attempts));
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, BYTES);
    CHECK_EQ(ms_allocation_backing(first)->backed_bytes +
                 ms_allocation_backing(second)->backed_bytes,
             FAKE_GRANULE);
    set(0, 1, &resident);
    fake_allocation_free(first);
    fake_allocation_free(second);
    ms_source_drop(file.source);
}

/* No work of the program is waited for longer than for a moment. */
MS_TEST_BETWEEN(start, end, nothing_goes_for_scratch_memory_while_the_device_is_busy)
{
    int attempts = 0;
    refuse(FAKE_GRANULE);
    fake.is_busy = true;
    CHECK(ms_evict_for_scratch(CUDA_ERROR_OUT_OF_MEMORY, &attempts));
    fake.is_busy = false;
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, BYTES);
}
