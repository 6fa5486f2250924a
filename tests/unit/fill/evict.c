/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/evict.h"

#include <string.h>

#include "runtime/config/config.h"
#include "runtime/fill/access.h"
#include "runtime/fill/overcommit.h"
#include "runtime/fill/scratch.h"
#include "runtime/fill/shadow.h"
#include "runtime/memory/carve.h"
#include "runtime/fill/delayed_free.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/memory/ready.h"
#include "runtime/memory/recorded_launch.h"
#include "runtime/order/order.h"
#include "runtime/state/caller.h"
#include "runtime/state/counters.h"
#include "tests/state/page_folder.h"
#include "tests/unit/story.h"

#define ALL (8 * G)

/* Who waits for reads that are not queued lets other threads run. */
static int yields;
WRAPS(sched_yield, clock_gettime);
int __wrap_sched_yield(void)
{
    yields++;
    return __real_sched_yield();
}

static time_t later; /* than it is, in seconds */
int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    const int result = __real_clock_gettime(clock, time);
    time->tv_sec += later;
    return result;
}

static void begin(void)
{
    fake_start();
}

static void reads(size_t begin, size_t end)
{
    claims(0);
    CHECK_EQ(ms_materialise(all[0], begin, end, MS_NEED_READ), CUDA_SUCCESS);
    releases(0);
}

/* Four granules that can be replayed again, in memory; two that cannot; two without memory. */
static void loads(void)
{
    has(ALL), writes(0, 0, 4 * G, sevens), writes(0, 4 * G, 6 * G, resident);
    memset(byte_of(0, 4 * G), 3, 2 * G);
    reads(0, 4 * G), has_memory(0, 6 * G);
}

/* A granule that can be restored, in a context. */
static void has_cached_granule(CUcontext context)
{
    has(G), writes(all_count - 1, 0, G, cached);
    lies_in(all_count - 1, context);
}

/* --- a call that the driver has no memory for */

static bool try_again(void)
{
    int attempts = 0;
    return ms_evict_try_again(CUDA_ERROR_OUT_OF_MEMORY, &attempts);
}

static void lets_go(size_t left)
{
    CHECK(try_again());
    device_lends(left);
}

static void gives_up(void)
{
    CHECK(!try_again());
}

static void keeps_all(void)
{
    gives_up(), has_memory(0, 6 * G), has_cached(0, 4 * G);
}

STORY(an_eviction_gives_back_memory_that_lineage_restores, loads(), lets_go(2 * G),
      has_memory(0, 2 * G), has_cached(0, 0), has_resident(0, 2 * G),
      EQUALS(ms_counter_get(MS_COUNT_EVICTED_BYTES), 4 * G), fake_check_allocation(all[0]),
      reads(0, 6 * G), IS(*byte_of(0, 0) == 7 && *byte_of(0, 4 * G - 1) == 7),
      IS(*byte_of(0, 4 * G) == 3 && *byte_of(0, 6 * G - 1) == 3))

/* Checks the state page's events of that kind: how many, and their bytes. */
static void shows(enum ms_event_kind kind, uint64_t count, uint64_t bytes)
{
    struct ms_snapshot snapshot = page_read(getpid());
    uint64_t seen = 0, seen_bytes = 0;
    for (size_t i = 0; i < snapshot.event_count; i++) {
        seen += snapshot.events[i].kind == kind;
        seen_bytes += snapshot.events[i].kind == kind ? snapshot.events[i].bytes : 0;
    }
    ms_snapshot_cleanup(&snapshot);
    CHECK_EQ(seen, count);
    CHECK_EQ(seen_bytes, bytes);
}

/* Nothing goes the second time. */
STORY(pressure_and_what_it_freed_are_on_the_state_page, loads(), page_folder_make(),
      page_start(MS_STATE_LEAST_BYTES), lets_go(2 * G), shows(MS_EVENT_PRESSURE, 1, 4 * G),
      shows(MS_EVENT_EVICT, 1, 4 * G), shows(MS_EVENT_FAIL, 0, 0), gives_up(),
      shows(MS_EVENT_EVICT, 1, 4 * G), shows(MS_EVENT_PRESSURE, 2, 4 * G),
      shows(MS_EVENT_FAIL, 1, 0))

MS_TEST(only_a_call_without_memory_is_tried_again_and_not_for_ever)
{
    int attempts = 0, tries = 0;
    begin();
    CHECK(!ms_evict_try_again(CUDA_ERROR_OUT_OF_MEMORY, &attempts)); /* nothing is ours */
    loads();
    CHECK(!ms_evict_try_again(CUDA_SUCCESS, &attempts));
    CHECK(!ms_evict_try_again(CUDA_ERROR_INVALID_VALUE, &attempts));
    CHECK_EQ(attempts, 0);
    for (; ms_evict_try_again(CUDA_ERROR_OUT_OF_MEMORY, &attempts); tries++)
        reads(0, 4 * G); /* what the try itself takes */
    CHECK_EQ(tries, 2);
    end_story();
}

STORY(the_device_is_waited_for_first, loads(), fake.wait_result = CUDA_ERROR_LAUNCH_FAILED,
      keeps_all(), was_called(FAKE_mem_unmap, 0), IS(fake.calls[FAKE_event_synchronize] > 0),
      fake.wait_result = CUDA_SUCCESS, lets_go(2 * G))
/* Who may have no wait loses nothing. */
STORY(nothing_is_taken_when_a_call_before_it_fails, loads(), lies_in(0, (CUcontext)2),
      fake_fail(FAKE_ctx_get_current, 1, CUDA_ERROR_INVALID_CONTEXT), keeps_all(),
      IS(fake_has_failed()), fake_fail(FAKE_ctx_push_current, 1, CUDA_ERROR_INVALID_CONTEXT),
      keeps_all(), IS(fake_has_failed()))
/* Nor is anything waited for. */
STORY(nothing_is_taken_during_a_capture, loads(), ms_order_set_capture(true), keeps_all(),
      was_called(FAKE_event_create, 0), ms_order_set_capture(false))
STORY(nothing_is_taken_between_a_read_and_its_call, loads(), ms_evict_hold(), keeps_all(),
      ms_evict_let_go(), lets_go(2 * G))

static void reads_are_queued(bool are_queued, int yields_by_now)
{
    CHECK_EQ(ms_evict_reads_are_queued(), are_queued);
    CHECK_EQ(yields, yields_by_now);
}

/* Where nothing could go, no read is waited for. */
STORY(reads_that_are_not_queued_are_waited_for_for_a_while, loads(), reads_are_queued(true, 0),
      ms_evict_hold(), ms_evict_hold(), ms_evict_let_go(), reads_are_queued(false, 10000),
      gives_up(), EQUALS(yields, 20000), writes(0, 0, 4 * G, resident),
      writes(0, 6 * G, ALL, resident), gives_up(), EQUALS(yields, 20000), ms_evict_let_go(),
      reads_are_queued(true, 20000))

STORY(a_read_that_fails_holds_nothing, loads(), driver_fails(FAKE_mem_create),
      EQUALS(ms_access(all[0]->address + 6 * G, G, MS_NEED_READ), CUDA_ERROR_UNKNOWN),
      lets_go(2 * G))

/* --- what happens during the wait */

static void (*meanwhile)(void);

static void happen_once(void)
{
    fake.on_wait = NULL;
    meanwhile();
}

static void in_the_wait(void (*happens)(void))
{
    meanwhile = happens;
    fake.on_wait = happen_once;
}

static void read_granule(void)
{
    reads(0, G);
}

static void touch(void)
{
    all[0]->notes.touches++;
}

/* Freed, and another one lies there. */
static void replace(void)
{
    all[0]->id++;
}

static void free_second(void)
{
    frees(1);
}

STORY(an_eviction_keeps_memory_used_during_its_wait, loads(), in_the_wait(read_granule),
      keeps_all(), IS(fake.on_wait == NULL), in_the_wait(touch), keeps_all(), in_the_wait(replace),
      keeps_all(), lets_go(2 * G))
STORY(an_allocation_may_go_during_the_wait, loads(), has_cached_granule(FAKE_CONTEXT),
      in_the_wait(free_second), lets_go(2 * G), has_memory(0, 2 * G))

/* --- which contexts are waited for */

/* An eviction does not wait for the context of an allocation that has nothing to give back. */
STORY(an_eviction_waits_for_no_context_that_has_nothing_to_give, loads(), has(G),
      writes(1, 0, G, resident), lies_in(1, (CUcontext)2), lets_go(3 * G),
      was_called(FAKE_ctx_push_current, 0))

/* The calls that it takes to wait, while there are so many in another context. */
static unsigned count_pushes(size_t count)
{
    begin(), loads();
    const unsigned before = fake.calls[FAKE_ctx_push_current];
    for (size_t i = 0; i < count; i++)
        has_cached_granule((CUcontext)2);
    lets_go(2 * G);
    const unsigned pushes = fake.calls[FAKE_ctx_push_current] - before;
    end_story();
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
STORY(an_eviction_waits_for_all_contexts, loads(), has_cached_granule((CUcontext)2),
      fake_fail(FAKE_ctx_push_current, 1, CUDA_ERROR_INVALID_CONTEXT), gives_up(),
      IS(fake_has_failed()), device_lends(7 * G), lets_go(2 * G))

enum { MANY = 600 };
static void has_many(void)
{
    for (size_t i = 0; i < MANY; i++)
        has_cached_granule(FAKE_CONTEXT);
}

/* More than are looked at at once. */
STORY(an_eviction_looks_at_very_many_allocations, loads(), has_many(), device_lends((6 + MANY) * G),
      lets_go(2 * G), EQUALS(ms_counter_get(MS_COUNT_EVICTED_BYTES), (4 + MANY) * G))

static CUresult load_nothing(CUlibrary *library, const void *code, CUjit_option *jit_options,
                             void **jit_values, unsigned jit_count, CUlibraryOption *options,
                             void **values, unsigned count)
{
    (void)library, (void)code, (void)jit_options, (void)jit_values, (void)jit_count;
    (void)options, (void)values, (void)count;
    return CUDA_ERROR_NOT_SUPPORTED;
}

static const struct ms_content shadowed = {
    .kind = MS_FILL, .pattern = 0x07070707, .cached = true, .is_shadowed = true};

/* In verify mode, while its bytes are there: 6 granules and 8 shadows. */
STORY(an_eviction_compares_bytes_before_they_go, loads(), ms_config.mode = MS_VERIFY,
      ms_config.verify_percent = 100, ms_driver.library_load_data = load_nothing,
      open_log(MS_DEBUG), claims(0),
      ms_shadow_write(all[0], &(struct ms_extent){0, ALL, sevens}, NULL, FAKE_STREAM), releases(0),
      writes(0, 6 * G, ALL, shadowed), memset(byte_of(0, 6 * G), 7, 2 * G), IS(try_again()),
      EQUALS(ms_counter_get(MS_COUNT_VERIFY_BYTES), 2 * G),
      EQUALS(ms_counter_get(MS_COUNT_VERIFY_DIFFER), 0),
      said(1, "out of device memory: 917504 bytes"), ms_config.mode = MS_ON)

STORY(a_claimed_allocation_is_left_out, loads(), claims(0), keeps_all(), releases(0))

STORY(an_eviction_takes_the_sink_and_runs_delayed_frees, loads(), lets_go(2 * G), gives_up(),
      EQUALS(ms_backing_sink_map(ms_allocation_memory(all[0]), 0, G), CUDA_SUCCESS),
      ms_backing_sink_unmap(ms_allocation_memory(all[0]), 0, G), device_lends(3 * G),
      lets_go(2 * G), has(G), writes(1, 0, G, resident),
      ms_space_remove(ms_space_claim(all[1]->address)), ms_delayed_free_add(all[1], NULL, NULL),
      all[1] = NULL, device_lends(3 * G), lets_go(2 * G))

/* --- what cannot be restored */

STORY(an_eviction_keeps_bytes_a_changed_file_cannot_restore, loads(), reads_file(0, 7 * G, ALL, G),
      reads(7 * G, ALL), EQUALS(truncate(story_file.path, 5), 0), lets_go(3 * G),
      has_memory(0, 3 * G), has_resident(0, 3 * G), has_bytes_of_file(0, 7 * G, G))

static void gets_bytes(bool is_tried_again, CUresult result, int attempts)
{
    CHECK_EQ(ms_evict_try_bytes_again(result, &attempts), is_tried_again);
}

STORY(a_failure_for_bytes_is_told, loads(), open_log(MS_ERROR),
      gets_bytes(true, CUDA_ERROR_OUT_OF_MEMORY, 0), said(0, "no memory for the bytes"),
      gets_bytes(false, CUDA_ERROR_OUT_OF_MEMORY, 1), said(1, "no memory for the bytes"),
      gets_bytes(false, CUDA_ERROR_UNKNOWN, 1), said(1, "no memory for the bytes"))

static const char one[] = "cuOne", another[] = "cuAnother";

/* It was tried before. */
static void fails(const char *caller, time_t after, int news)
{
    later += after;
    ms_caller = caller;
    gets_bytes(false, CUDA_ERROR_OUT_OF_MEMORY, 2);
    ms_caller = NULL;
    said(news, "fails: there is no memory for the bytes");
}

/* Each time, it was told or not, is the last time. */
STORY(a_call_that_fails_again_and_again_is_told_once, loads(), open_log(MS_ERROR), fails(one, 0, 1),
      IS(ms_overcommit_take_failed()), fails(one, 0, 1), fails(one, 8, 1), fails(one, 8, 1),
      fails(another, 0, 2), fails(one, 0, 3), fails(one, 12, 4), said(3, "cuOne fails"),
      said(1, "cuAnother fails"), fails(NULL, 0, 5), said(1, "a call fails"))

/* --- what blocks left behind */

/* Granules 0-1 and 4-7 are blocks; 2-3 were one, and are in memory. */
static void carves(void)
{
    has(ALL), takes_block(0, 2 * G), takes_block(2 * G, 4 * G), takes_block(4 * G, ALL);
    for (size_t at = 0; at < ALL; at += 2 * G)
        writes(0, at, at + 2 * G, resident);
    returns_block(2 * G);
}

/* Some granules behind the first two are dead. */
static void leaves(size_t granules)
{
    writes(0, 2 * G, (2 + granules) * G, resident), claims(0);
    ms_carve_set_dead(all[0], granules * G);
    releases(0);
}

static size_t count_asked(struct ms_allocation *allocation, void *count)
{
    (void)allocation;
    return ++*(int *)count, 0;
}

/* Whether the first allocation is asked for memory. */
static bool is_asked(void)
{
    int count = 0;
    ms_evict_all(NULL, count_asked, &count);
    return count == 1;
}

STORY(memory_is_asked_of_what_has_some_to_give_back, has(ALL), IS(!is_asked()),
      writes(0, 0, 1, resident), IS(is_asked()), writes(0, 0, ALL - 1, resident), IS(is_asked()),
      writes(0, 0, ALL, resident), IS(!is_asked()))
STORY(memory_is_asked_of_blocks_unless_a_graph_uses_it, has(ALL), takes_block(0, ALL),
      writes(0, 0, ALL, resident), IS(is_asked()), all[0]->notes.keeps_dead = true, IS(!is_asked()))

STORY(dead_memory_goes_back_unless_a_graph_uses_it, carves(), writes(0, 0, 2 * G, cached),
      all[0]->notes.keeps_dead = true, lets_go(6 * G), has_memory(0, 6 * G),
      IS(fake_memory_at(all[0]->address + 2 * G) > 0), gives_up(), all[0]->notes.keeps_dead = false,
      lets_go(4 * G), has_memory(0, 4 * G),
      EQUALS(ms_allocation_lineage(all[0])->kind_bytes[MS_DEAD], 2 * G),
      EQUALS(fake_memory_at(all[0]->address + 2 * G), 0), EQUALS(ms_carve_dead_memory(), 0))

/* Trims, with so much memory and so much dead memory afterwards. */
static void trims_to(CUdeviceptr address, size_t memory, size_t dead)
{
    ms_evict_dead(address);
    has_memory(0, memory), EQUALS(ms_carve_dead_memory(), dead);
}

static void trims(size_t memory, size_t dead)
{
    trims_to(0, memory, dead);
}

static void trims_one(size_t memory, size_t dead)
{
    trims_to(all[0]->address, memory, dead);
}

/* In vain once, it does so not before there is more. */
STORY(dead_memory_is_trimmed_when_there_are_many_and_the_device_is_idle, carves(),
      ms_config.dead_bytes = 2 * G, trims(ALL, 2 * G), ms_config.dead_bytes = 2 * G - 1,
      fake.is_busy = true, trims(ALL, 2 * G), fake.is_busy = false, trims(ALL, 2 * G),
      trims_one(6 * G, 0))
STORY(trimming_in_vain_waits_for_more_than_the_limit, carves(), returns_block(4 * G), leaves(2),
      ms_config.dead_bytes = G, fake.is_busy = true, trims(ALL, 2 * G), fake.is_busy = false,
      leaves(3), trims(ALL, 3 * G), leaves(4), trims(2 * G, 0), leaves(2), trims(2 * G, 0))

/* They are used again. */
static void wants_again(size_t granules)
{
    claims(0);
    CHECK_EQ(ms_allocation_cover(all[0], 2 * G, (2 + granules) * G), CUDA_SUCCESS);
    releases(0), leaves(granules);
}

/* A program that trains: after trims of four times its memory, memory stays where it is. */
static void trims_for_ever(void (*trim)(size_t memory, size_t dead))
{
    ms_config.dead_bytes = G;
    for (int round = 0; round < 16; round++)
        IS(!ms_keeps_memory()), trim(6 * G, 0), leaves(2);
    IS(!ms_keeps_memory()), trim(ALL, 2 * G), IS(ms_keeps_memory());
}

/* All that went comes again. */
static void trims_in_vain(void (*trim)(size_t memory, size_t dead))
{
    ms_config.dead_bytes = G, trim(6 * G, 0), wants_again(2), IS(!ms_keeps_memory());
    trim(ALL, 2 * G), IS(ms_keeps_memory()), EQUALS(ms_counter_get(MS_COUNT_EVICTED_BYTES), 2 * G);
}

STORY(trimming_ends, carves(), trims_for_ever(trims))
STORY(trimming_of_one_allocation_ends, carves(), trims_for_ever(trims_one))
STORY(trimming_ends_when_what_goes_comes_again, carves(), trims_in_vain(trims))
STORY(trimming_of_one_allocation_ends_when_what_goes_comes_again, carves(),
      trims_in_vain(trims_one))

/* An eighth of what the program has may be lost: one granule. */
STORY(trimming_goes_on_while_it_pays, carves(), ms_config.dead_bytes = 0, trims(6 * G, 0),
      wants_again(1), trims(6 * G, 0), IS(!ms_keeps_memory()), wants_again(1), trims(6 * G, 0),
      IS(!ms_keeps_memory()), EQUALS(ms_carve_trim_gain(0), 0), wants_again(1),
      EQUALS(ms_carve_trim_gain(0), -2 * FAKE_GRANULE), trims(7 * G, G), IS(ms_keeps_memory()))
/* The same, but a block did without the memory meanwhile. */
STORY(trimming_goes_on_if_blocks_do_without, carves(), ms_config.dead_bytes = 0, trims(6 * G, 0),
      takes_block(2 * G, 4 * G), returns_block(2 * G),
      EQUALS(ms_carve_trim_gain(0), 4 * FAKE_GRANULE), wants_again(2), trims(6 * G, 0),
      IS(!ms_keeps_memory()))

static bool was_ready;

static void hand_out(void)
{
    was_ready = ms_ready_report(all[0]->address + 4 * G, 100);
}

/* From the look at it on, before the wait: whose memory is to go is not handed out unseen. */
STORY(a_block_that_may_go_is_not_ready, carves(), returns_block(4 * G),
      IS(ms_ready_report(all[0]->address + 4 * G, 100)),
      IS(ms_ready_report(all[0]->address + 4 * G, 0)), in_the_wait(hand_out), lets_go(2 * G),
      IS(fake.on_wait == NULL && !was_ready), has_memory(0, 2 * G))
STORY(trimming_polls_those_with_dead_memory_alone, carves(), has(G), lies_in(1, (CUcontext)2),
      ms_config.dead_bytes = G, trims(6 * G, 0), was_called(FAKE_ctx_push_current, 0))
/* Nor what is gone. */
STORY(an_allocation_another_thread_uses_is_not_trimmed, carves(), claims(0), trims_one(ALL, 2 * G),
      releases(0), trims_to(all[0]->address + ALL + (64 << 20), ALL, 2 * G), trims_one(6 * G, 0))
STORY(trimming_leaves_what_is_cached, carves(), writes(0, 0, 2 * G, cached),
      ms_config.dead_bytes = G, trims(6 * G, 0), has_cached(0, 2 * G))

static void needs(enum ms_need need, CUstream stream, enum ms_need wanted)
{
    CHECK_EQ(ms_evict_need_in(all[0], need, stream), wanted);
}

/* An overwrite is the same anywhere: nobody is asked. */
STORY(a_read_in_another_context_is_for_good, loads(),
      needs(MS_NEED_READ, FAKE_STREAM, MS_NEED_READ),
      needs(MS_NEED_READ, CU_STREAM_LEGACY, MS_NEED_READ), lies_in(0, (CUcontext)2),
      needs(MS_NEED_READ, FAKE_STREAM, MS_NEED_READ_WRITE),
      needs(MS_NEED_READ, CU_STREAM_LEGACY, MS_NEED_READ_WRITE), lies_in(0, FAKE_CONTEXT),
      fake.refused_stream = FAKE_STREAM, needs(MS_NEED_READ, FAKE_STREAM, MS_NEED_READ_WRITE),
      fake.calls[FAKE_stream_get_ctx] = 0, needs(MS_NEED_OVERWRITE, FAKE_STREAM, MS_NEED_OVERWRITE),
      was_called(FAKE_stream_get_ctx, 0))

/* --- scratch memory that was refused */

static int attempts;

/* All that the program has is in memory, so that each byte more is refused. */
static void is_refused_scratch(size_t bytes)
{
    writes(0, 6 * G, ALL, resident);
    ms_scratch_may_refuse(true);
    EQUALS(ms_scratch_ask(0, bytes), CUDA_ERROR_OUT_OF_MEMORY);
}

static void tries_again(size_t left, int attempts_by_now)
{
    CHECK(ms_evict_for_scratch(CUDA_ERROR_OUT_OF_MEMORY, &attempts));
    CHECK_EQ(attempts, attempts_by_now);
    has_memory(0, left);
}

/* At first nothing was refused. */
STORY(an_eviction_for_scratch_memory_takes_restorable_bytes, loads(),
      IS(!ms_evict_for_scratch(CUDA_ERROR_OUT_OF_MEMORY, &attempts)), is_refused_scratch(G),
      IS(!ms_evict_for_scratch(CUDA_ERROR_UNKNOWN, &attempts)), has_memory(0, ALL),
      is_refused_scratch(G), tries_again(4 * G, 1))
STORY(scratch_memory_is_not_refused_again_if_nothing_can_go, loads(), writes(0, 0, 4 * G, resident),
      is_refused_scratch(G), tries_again(ALL, 0), EQUALS(ms_scratch_ask(0, G), CUDA_SUCCESS))

static void tries_round(int round, CUresult then)
{
    reads(0, 4 * G), is_refused_scratch(G), tries_again(4 * G, round),
        EQUALS(ms_scratch_ask(0, ALL), then);
    ms_scratch_take_refusal();
}

STORY(scratch_memory_is_not_refused_for_ever, loads(), tries_round(1, CUDA_ERROR_OUT_OF_MEMORY),
      tries_round(2, CUDA_ERROR_OUT_OF_MEMORY), tries_round(3, CUDA_SUCCESS))

/* Enough of it, and what comes from a file, or lies on another device, stays. */
STORY(an_eviction_for_scratch_memory_takes_no_more_than_enough, loads(),
      has_cached_granule(FAKE_CONTEXT), has_cached_granule(FAKE_CONTEXT),
      writes(0, 0, ALL, resident), reads_file(0, 0, G, G), reads(0, G), ms_scratch_may_refuse(true),
      EQUALS(ms_scratch_ask(0, 0), CUDA_ERROR_OUT_OF_MEMORY) /* the sink */, tries_again(ALL, 1),
      device_lends(9 * G))

/* The result of a launch in memory, which may need bytes of files. */
static void has_result(bool has_sources)
{
    struct ms_recorded_launch *recorded = ms_recorded_launch_create();
    recorded->has_sources = has_sources;
    CHECK(ms_lineage_init(&recorded->before, G));
    writes(0, 0, G, (struct ms_content){.kind = MS_LAUNCHED, .cached = true, .recorded = recorded});
    ms_recorded_launch_drop(recorded);
}

STORY(a_result_goes_for_scratch_memory_if_nothing_is_sent_for_it, loads(), has_result(false),
      is_refused_scratch(G), tries_again(4 * G, 1))
STORY(a_result_of_bytes_of_files_stays, loads(), has_result(true), is_refused_scratch(G),
      tries_again(ALL, 0))

/* No work of the program is waited for longer than for a moment. */
STORY(nothing_goes_for_scratch_memory_while_the_device_is_busy, loads(), is_refused_scratch(G),
      fake.is_busy = true, tries_again(ALL, 0), fake.is_busy = false)
