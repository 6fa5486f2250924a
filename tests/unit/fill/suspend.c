/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/suspend.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/driver/quiesce.h"
#include "runtime/files/host_snapshot.h"
#include "runtime/fill/hold_up.h"
#include "runtime/fill/materialise.h"
#include "runtime/fill/origins.h"
#include "runtime/fill/restore.h"
#include "runtime/memory/allocation.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/order/examining.h"
#include "tests/unit/counted_heap.h"
#include "tests/unit/parked_of.h"
#include "tests/unit/story.h"

enum { BYTES = 8 * FAKE_GRANULE, PIECE_BYTES = 4 << 20 };

static struct ms_fault fault;
static struct ms_suspended told;

/* How often it is not quiet after all when everything is claimed. */
static int busy_times, asked_times;
WRAPS(ms_hold_up_is_quiet, nanosleep);
bool __wrap_ms_hold_up_is_quiet(void)
{
    asked_times++;
    return busy_times-- <= 0 && __real_ms_hold_up_is_quiet();
}

/* Who resumes pauses between its attempts. */
static int pauses, pauses_until_room;
static size_t room;
int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
    pauses++;
    CHECK(pauses < 1000);
    if (pauses == pauses_until_room)
        fake.total_bytes = room;
    return __real_nanosleep(&(struct timespec){.tv_nsec = time->tv_nsec / 50}, left);
}

static void *call(void *unused)
{
    ms_quiesce_enter();
    ms_quiesce_leave();
    return unused;
}

/* Calls of other threads get to the driver. */
static void check_calls_pass(void)
{
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, call, NULL), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
}

static void begin(void)
{
    fake_start();
    ms_config.suspend_ms = 60000;
    ms_config.suspend_bytes = 0;
    ms_config.resume_ms = 0;
    ms_examining_add_context(FAKE_CONTEXT, 0);
    ms_quiesce_start();
    at_end = check_calls_pass;
    has(BYTES);
}

static struct ms_extent at(size_t offset)
{
    return ms_lineage_at(ms_allocation_lineage(all[0]), offset);
}

/* Resident bytes of that value. */
static void fills(size_t begin, size_t end_, int value)
{
    writes(0, begin, end_, resident);
    memset(byte_of(0, begin), value, end_ - begin);
}

static void finds(size_t begin, size_t end_, int value)
{
    for (size_t offset = begin; offset < end_; offset++)
        CHECK_EQ(byte_of(0, offset)[0], value);
}

static void suspends_to(const char *folder)
{
    if (!ms_suspend(folder, &told, &fault))
        ms_test_fail(__FILE__, __LINE__, "%s", fault.text);
    CHECK(ms_suspend_is_active());
    CHECK_EQ(fake.pushed_contexts, 0);
    CHECK_EQ(told.stays_exported + told.stays_mapped + told.stays_otherwise,
             ms_backing_bytes(ms_allocation_backing(all[0])));
}

static void suspends(void)
{
    suspends_to(NULL);
}

static void tells(size_t freed, size_t replayed, size_t stored, size_t zeros)
{
    CHECK_EQ(told.freed, freed);
    CHECK_EQ(told.replayed, replayed);
    CHECK(told.made <= replayed);
    CHECK_EQ(told.stored, stored);
    CHECK_EQ(told.zeros, zeros);
}

static void resumes(void)
{
    CHECK_EQ(ms_suspend_take_back(), CUDA_SUCCESS);
    CHECK(!ms_suspend_is_active() && !all[0]->notes.was_resident);
}

static void fails_to(const char *folder, const char *why)
{
    const size_t backed = ms_backing_bytes(ms_allocation_backing(all[0]));
    const uint64_t kept = ms_allocation_lineage(all[0])->resident_bytes;
    CHECK(!ms_suspend(folder, &told, &fault));
    if (strstr(fault.text, why) == NULL)
        ms_test_fail(__FILE__, __LINE__, "expected %s, found %s", why, fault.text);
    CHECK_EQ(ms_backing_bytes(ms_allocation_backing(all[0])), backed);
    has_resident(0, kept);
    CHECK(!ms_suspend_is_active());
    CHECK(ms_space_try_claim(all[0]->address) == all[0]); /* nobody holds it */
    ms_space_release(all[0]);
    check_calls_pass();
}

static void fails(const char *why)
{
    fails_to(NULL, why);
}

/* --- what goes, and comes back */

STORY_ALONE(a_process_without_an_allocation_suspends_nothing, fake_start(), told.freed = 1,
            IS(ms_suspend(NULL, &told, &fault)), tells(0, 0, 0, 0), IS(!ms_suspend_is_active()),
            EQUALS(ms_suspend_take_back(), CUDA_SUCCESS))

STORY(suspending_stores_written_bytes_and_brings_them_back, fills(G, 3 * G, 5),
      fills(4 * G, 5 * G, 0), writes(0, 6 * G, 7 * G, sevens), suspends(),
      tells(3 * G, 0, 2 * G, G), device_lends(0), IS(all[0]->notes.was_resident),
      IS(at(G).content.kind == MS_SOURCE && at(G).end == 3 * G),
      IS(at(4 * G).content.kind == MS_FILL && at(4 * G).content.pattern == 0), resumes(),
      finds(G, 3 * G, 5), finds(4 * G, 5 * G, 0), finds(6 * G, 7 * G, 7), has_resident(0, 4 * G),
      has_memory(0, 4 * G) /* what was never written has none */)
/* Bytes of a snapshot are in memory, and another extent waits for them. */
static void has_kept_snapshot(void)
{
    struct ms_host_snapshot *snapshot = ms_host_snapshot_create(G, MS_SNAPSHOT_ANY);
    struct ms_content content = {.kind = MS_SOURCE, .source = ms_host_snapshot_source(snapshot)};
    memset(ms_host_snapshot_data(snapshot), 5, G);
    ms_host_snapshot_share(content.source);
    fills(0, G, 5);
    writes(0, 3 * G, 4 * G, content);
    content.cached = true;
    writes(0, 0, G, content);
    ms_host_snapshot_drop(snapshot);
}

STORY(suspending_stores_bytes_of_a_snapshot_that_are_in_memory, has_kept_snapshot(), suspends(),
      tells(G, 0, G, 0), device_lends(0), resumes(), finds(0, G, 5))
STORY(suspending_reads_no_allocation_without_written_bytes, writes(0, 0, 2 * G, sevens), suspends(),
      tells(0, 0, 0, 0),
      EQUALS(fake.calls[FAKE_memcpy_dtoh_async] + fake.calls[FAKE_mem_host_alloc], 0), resumes(),
      has_resident(0, 0) /* it was not before, either */)
STORY(the_log_tells_of_suspending_and_of_coming_back, open_log(MS_DEBUG), fills(0, G, 5),
      suspends(),
      said(1, "suspended: 65536 bytes of device memory were given back; 0 come "
              "back from files and recorded launches, 65536 wait outside"),
      said(0, "the suspended data is back"), resumes(), said(1, "the suspended data is back"),
      resumes(), said(1, "the suspended data is back"))
STORY(suspending_stores_bytes_in_a_folder_as_well, fills(0, 2 * G, 5),
      fails_to("/tmp/there/is/no/such/folder", "No such file"), suspends_to("/tmp"),
      tells(2 * G, 0, 2 * G, 0), resumes(), finds(0, 2 * G, 5))
STORY(suspending_stores_no_more_than_its_limit, fills(0, 2 * G, 5), fills(2 * G, 3 * G, 0),
      ms_config.suspend_bytes = 2 * G - 1, fails("METASHARD_SUSPEND_BYTES"), finds(0, 2 * G, 5),
      ms_config.suspend_bytes = 2 * G, suspends(), resumes())

enum { PIECES = 1000, STEP = 64 };

static void fills_pieces(void)
{
    for (size_t i = 0; i < PIECES; i++)
        fills(i * STEP, i * STEP + 8, 5);
}

static void finds_pieces(void)
{
    for (size_t i = 0; i < PIECES; i++)
        finds(i * STEP, i * STEP + 8, 5);
}

/* More pieces than the granule has pages: the pieces share the pages of the store. */
STORY(the_store_has_room_for_small_pieces, writes(0, 0, G, cached), fills_pieces(), suspends(),
      tells(G, G - PIECES * 8, PIECES * 8, 0), resumes(), finds_pieces())

enum { SECOND = FAKE_GRANULE + PIECE_BYTES, THIRD = SECOND + 2 * FAKE_GRANULE };

/* From no multiple of it on. */
STORY(suspending_reads_a_large_extent_in_pieces, has_only((size_t)2 * PIECE_BYTES),
      fills(G, THIRD, 0), memset(byte_of(0, SECOND), 5, G), suspends(),
      tells(THIRD - G, 0, 2 * G, PIECE_BYTES), EQUALS(fake.work_count, 2),
      IS(fake.work[0].from == all[0]->address + G && fake.work[0].bytes == PIECE_BYTES),
      IS(fake.work[1].from == all[0]->address + SECOND && fake.work[1].bytes == 2 * G), resumes(),
      finds(G, SECOND, 0), finds(SECOND, SECOND + G, 5), finds(SECOND + G, THIRD, 0))
STORY(a_whole_piece_is_read_at_once, has_only((size_t)2 * PIECE_BYTES), fills(0, PIECE_BYTES, 5),
      suspends(), EQUALS(fake.work_count, 1), EQUALS(fake.work[0].bytes, PIECE_BYTES), resumes())

static void has_twenty(void)
{
    for (size_t i = 1; i <= 20; i++) {
        has(G), writes(i, 0, G, resident);
        memset(byte_of(i, 0), (int)i, G);
    }
}

static void finds_twenty(void)
{
    for (size_t i = 1; i <= 20; i++)
        CHECK(*byte_of(i, 0) == i && *byte_of(i, G - 1) == i);
}

STORY(suspending_takes_several_allocations, has_twenty(), fills(0, G, 30),
      IS(ms_suspend(NULL, &told, &fault)), tells(21 * G, 0, 21 * G, 0), device_lends(0), resumes(),
      finds(0, G, 30), finds_twenty())
STORY(suspending_twice_gives_back_memory_taken_since, fills(0, 2 * G, 5), suspends(), suspends(),
      tells(0, 0, 0, 0), fills(4 * G, 5 * G, 6), suspends(), tells(G, 0, G, 0), resumes(),
      finds(0, 2 * G, 5), finds(4 * G, 5 * G, 6))

/* --- what comes back from files */

/* The file's bytes are resident from a granule on, and that they came from there is known. */
static void has_read_file(void)
{
    reads_file(0, G, 5 * G, 4 * G);
    claims(0);
    CHECK_EQ(ms_materialise(all[0], G, 5 * G, MS_NEED_READ), CUDA_SUCCESS);
    releases(0);
    const struct ms_extent extent = at(G);
    ms_origins_note(all[0], &extent);
    writes(0, G, 5 * G, resident);
    fake.work_count = 0;
}

STORY(suspending_stores_changed_bytes_of_a_file_alone, has_read_file(),
      memset(byte_of(0, 2 * G), 9, G), suspends(), tells(4 * G, 3 * G, G, 0), resumes(),
      has_bytes_of_file(0, G, G), finds(2 * G, 3 * G, 9),
      EQUALS(memcmp(byte_of(0, 3 * G), story_file.data + 2 * G, 2 * G), 0))
/* Bytes that were found to be the file's are resident again. */
STORY(suspending_that_fails_leaves_all_as_it_was, has_read_file(), memset(byte_of(0, 2 * G), 9, G),
      ms_config.suspend_bytes = 1, fails("METASHARD_SUSPEND_BYTES"),
      IS(!all[0]->notes.was_resident), has_cached(0, 0), has_bytes_of_file(0, G, G))
STORY(a_suspended_process_stays_so_after_a_failure, fills(0, G, 5), suspends(),
      fills(2 * G, 3 * G, 6), ms_config.suspend_bytes = 1, IS(!ms_suspend(NULL, &told, &fault)),
      IS(ms_suspend_is_active() && at(0).content.kind == MS_SOURCE),
      IS(at(2 * G).content.kind == MS_RESIDENT), resumes(), finds(0, G, 5), finds(2 * G, 3 * G, 6))

/* --- what stays */

static void leaves(size_t exported, size_t mapped, size_t otherwise)
{
    CHECK_EQ(told.stays_exported, exported);
    CHECK_EQ(told.stays_mapped, mapped);
    CHECK_EQ(told.stays_otherwise, otherwise);
}

static void stays_when(bool is_exported, bool is_opened)
{
    all[0]->notes.is_exported = is_exported;
    all[0]->is_opened = is_opened;
    suspends();
    tells(0, 0, 0, 0), leaves(3 * G, 0, 0), has_resident(0, G);
    CHECK(!all[0]->notes.was_resident);
    resumes();
}

STORY(suspending_leaves_memory_other_processes_use, fills(0, G, 5), writes(0, G, 3 * G, cached),
      stays_when(true, false), stays_when(false, true), all[0]->is_opened = false,
      EQUALS(fake.work_count, 0))
STORY(suspending_leaves_memory_behind_a_handle_of_the_program, fills(0, G, 5), fills(G, 3 * G, 6),
      fills(3 * G, 4 * G, 7), ms_backing_chunk(&MS_OWN(all[0])->backing, G)->is_pinned = true,
      suspends(), tells(2 * G, 0, 2 * G, 0), leaves(0, 2 * G, 0),
      EQUALS(at(G).content.kind, MS_RESIDENT), EQUALS(fake.work_count, 2), resumes(),
      finds(0, G, 5), finds(G, 3 * G, 6), finds(3 * G, 4 * G, 7))

/* --- blocks */

/* Granules 0 and 1 are blocks, 2 was one. */
static void carves(void)
{
    for (size_t i = 0; i < 3; i++)
        takes_block(i * G, (i + 1) * G), fills(i * G, (i + 1) * G, 5);
    returns_block(2 * G);
}

STORY(suspending_reads_no_memory_blocks_left_behind, carves(), suspends(),
      tells(3 * G, 0, 2 * G, 0), EQUALS(ms_carve_dead_memory(), 0),
      IS(!MS_OWN(all[0])->blocks.uses_dead), resumes(), finds(0, 2 * G, 5), has_memory(0, 2 * G))
/* Where the blocks begin: what stands before them is in none. */
STORY(suspending_an_allocation_of_blocks_strays_nowhere, takes_block(G, 3 * G), fills(G, 3 * G, 5),
      suspends(), IS(!MS_OWN(all[0])->blocks.uses_dead), resumes(), finds(G, 3 * G, 5))
STORY(memory_a_graph_uses_in_no_block_comes_back, carves(), all[0]->notes.keeps_dead = true,
      ms_carve_set_dead(all[0], 0), suspends(), EQUALS(told.stored, 3 * G),
      IS(MS_OWN(all[0])->blocks.uses_dead), resumes(), finds(0, 3 * G, 5))

/* --- parked bytes, and the sink */

static void parks(size_t begin, size_t end_, bool is_filled)
{
    struct ms_parked *parked;
    CHECK_EQ(ms_parked_create(FAKE_CONTEXT, 0, 2 * G, is_filled, &parked), CUDA_SUCCESS);
    unsigned char *bytes = bytes_of_parked(parked);
    memset(bytes, 1, G);
    memset(bytes + G, 2, G);
    const struct ms_content content = {.kind = MS_PARKED, .parked = parked, .source_offset = G};
    writes(0, begin, end_, content);
    ms_parked_drop(parked);
}

STORY(parked_bytes_wait_outside_as_well, fills(0, G, 5), parks(3 * G, 4 * G, true),
      device_lends(3 * G), suspends(), EQUALS(told.stored, 2 * G), device_lends(0), resumes(),
      finds(3 * G, 4 * G, 2))
STORY(parked_bytes_alone_have_room, parks(0, G, true), parks(2 * G, 3 * G, true), suspends(),
      EQUALS(told.stored, 2 * G), device_lends(0), resumes(), finds(0, G, 2),
      finds(2 * G, 3 * G, 2))

static CUevent new_event(void)
{
    CUevent event;
    CHECK_EQ(ms_driver.event_create(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    return event;
}

STORY(suspending_fails_while_an_open_group_receives, fills(0, G, 5), parks(3 * G, 4 * G, false),
      fails("an NCCL group of the program is open"),
      ms_parked_attach_event(at(3 * G).content.parked, new_event()), suspends(),
      EQUALS(told.stored, 2 * G), resumes())

static const struct ms_range range = {FAKE_GRANULE, 2 * FAKE_GRANULE};
static struct ms_sink_mapping *sink;

STORY(the_sink_of_an_open_group_cannot_go,
      EQUALS(ms_backing_lend(ms_allocation_memory(all[0]), NULL, &range, 1, FAKE_CONTEXT, &sink),
             CUDA_SUCCESS),
      fails("an NCCL group of the program is open"),
      ms_backing_lent(ms_allocation_memory(all[0]), sink, new_event()), suspends(),
      device_lends(0) /* nor does the sink's granule stay */, resumes())

/* --- what fails */

STORY(suspending_fails_in_verify_mode, fills(0, G, 5), ms_config.mode = MS_VERIFY,
      fails("METASHARD=verify"), ms_config.mode = MS_ON)
STORY(suspending_fails_during_a_capture, fills(0, G, 5), atomic_store(&ms_hot.captures, 1),
      fails("captured"), EQUALS(asked_times, 0), atomic_store(&ms_hot.captures, 0))
STORY(suspending_tries_a_busy_device_again, fills(0, 2 * G, 5), busy_times = 3, suspends(),
      EQUALS(asked_times, 4), tells(2 * G, 0, 2 * G, 0), resumes())

static int live_before;

STORY(suspending_fails_if_the_device_is_always_busy, fills(0, 2 * G, 5), busy_times = 1000,
      live_before = live, fails("MetaShard itself keeps the device busy"), EQUALS(asked_times, 100),
      EQUALS(live, live_before), busy_times = 0)
STORY(suspending_fails_if_memory_cannot_be_read, fills(0, G, 5),
      fake_fail(FAKE_memcpy_dtoh_async, 1, CUDA_ERROR_LAUNCH_FAILED),
      fails("device memory cannot be read: CUDA error 719"),
      fake.wait_result = CUDA_ERROR_ILLEGAL_ADDRESS,
      fails("device memory cannot be read: CUDA error 700"),
      fake_fail(FAKE_memcpy_dtoh_async, 1, CUDA_ERROR_LAUNCH_FAILED),
      fails("device memory cannot be read: CUDA error 719"), IS(fake_has_failed()),
      fake.wait_result = CUDA_SUCCESS, suspends(), resumes(), finds(0, G, 5))
STORY(suspending_fails_without_a_stream, fills(0, G, 5),
      fake_fail(FAKE_stream_create, 1, CUDA_ERROR_OUT_OF_MEMORY), fails("out of host memory"),
      IS(fake_has_failed()), EQUALS(fake.pushed_contexts, 0))
STORY(a_context_that_cannot_be_used_is_told, fills(0, G, 5), lies_in(0, (CUcontext)2),
      fake_fail(FAKE_ctx_push_current, 1, CUDA_ERROR_INVALID_CONTEXT),
      fails("a context of the program cannot be used"), IS(fake_has_failed()),
      lies_in(0, FAKE_CONTEXT))

/* For each piece of host memory: all is as it was, or gone; nothing is lost, and nothing leaks. */
MS_TEST(suspending_without_host_memory_loses_nothing)
{
    bool has_all = false;
    begin();
    fills(0, 2 * G, 5);
    fills(3 * G, 4 * G, 0);
    suspends(); /* makes what is kept */
    resumes();
    const int before = live;
    int refused = 0;
    for (int pieces = 0; !has_all; pieces++) {
        may_make = pieces;
        const bool is_good = ms_suspend(NULL, &told, &fault);
        has_all = may_make >= 0;
        may_make = 1000000;
        refused += !is_good;
        CHECK(is_good || strcmp(fault.text, "out of host memory") == 0);
        CHECK_EQ(is_good, ms_suspend_is_active());
        CHECK(is_good || live == before);
        if (is_good)
            CHECK_EQ(told.stays_otherwise, ms_backing_bytes(ms_allocation_backing(all[0])));
        CHECK_EQ(ms_suspend_take_back(), CUDA_SUCCESS);
        finds(0, 2 * G, 5);
        finds(3 * G, 4 * G, 0);
        CHECK_EQ(live, before);
    }
    CHECK(refused > 3);
    end_story();
}

static void has_many(void)
{
    for (int i = 0; i < 40; i++)
        has(G);
}

/* There is memory for the first list of what is claimed, and for no longer one. */
STORY(suspending_releases_claims_if_it_cannot_claim_all, has_many(), live_before = live,
      may_make = 1, fails_once = true, fails("out of host memory"), fails_once = false,
      may_make = 1000000, EQUALS(live, live_before))

/* --- what comes back needs room */

STORY(coming_back_without_room_takes_nothing_from_others, open_log(MS_ERROR), fills(0, 3 * G, 5),
      suspends(), fake.calls[FAKE_mem_create] = 0, fake.total_bytes = 3 * G - 1, pauses = 0,
      EQUALS(ms_suspend_take_back(), CUDA_ERROR_OUT_OF_MEMORY),
      IS(ms_suspend_is_active() && all[0]->notes.was_resident),
      EQUALS(fake.calls[FAKE_mem_create], 0), EQUALS(pauses, 0),
      said(1, "this process is suspended, and the device has no memory"), fake.total_bytes = 3 * G,
      fake.calls[FAKE_mem_get_info] = fake.calls[FAKE_ctx_push_current] = 0, resumes(),
      finds(0, 3 * G, 5), said(1, "suspended"),
      EQUALS(fake.calls[FAKE_mem_get_info], 1) /* for the one device that needs some */)
STORY(memory_is_waited_for_up_to_a_time, fills(0, 3 * G, 5), suspends(), fake.total_bytes = G,
      ms_config.resume_ms = 3, EQUALS(ms_suspend_take_back(), CUDA_ERROR_OUT_OF_MEMORY),
      ms_config.resume_ms = 600000, pauses = 0, pauses_until_room = 3, room = 3 * G, resumes(),
      EQUALS(pauses, 3))

/* Another one has bytes that can be restored, as many granules as that. */
static void has_restorable(size_t granules)
{
    has(granules * G);
    writes(1, 0, granules * G, cached);
}

STORY(coming_back_makes_room_with_restorable_memory, fills(0, 3 * G, 5), suspends(),
      has_restorable(2), fake.total_bytes = 3 * G, resumes(), has_memory(1, 0), finds(0, 3 * G, 5))
STORY(too_little_room_is_none, fills(0, 3 * G, 5), suspends(), has_restorable(1),
      fake.calls[FAKE_mem_create] = 0, fake.total_bytes = 2 * G,
      EQUALS(ms_suspend_take_back(), CUDA_ERROR_OUT_OF_MEMORY), has_memory(1, 0),
      EQUALS(fake.calls[FAKE_mem_create], 0), fake.total_bytes = 3 * G, resumes())
STORY(room_that_goes_meanwhile_is_made_again, fills(0, 3 * G, 5), suspends(), has_restorable(1),
      fake_fail(FAKE_mem_create, 1, CUDA_ERROR_OUT_OF_MEMORY), resumes(), IS(fake_has_failed()),
      has_memory(1, 0))

static const struct ms_content remote = {.kind = MS_FILL, .locality = MS_REMOTE};

/* Bytes in memory, bytes for others to receive, and bytes that hold nothing need no room. */
STORY(coming_back_needs_room_for_resident_bytes_alone, has(BYTES),
      writes(1, 0, BYTES, sevens) /* was not resident */, fills(0, 3 * G, 5), suspends(),
      fills(0, G, 6) /* copied to meanwhile */, writes(0, 4 * G, 6 * G, remote),
      fake.calls[FAKE_mem_create] = 0, fake.total_bytes = 3 * G - 1,
      EQUALS(ms_suspend_take_back(), CUDA_ERROR_OUT_OF_MEMORY),
      EQUALS(fake.calls[FAKE_mem_create], 0), fake.total_bytes = 3 * G, resumes(), finds(0, G, 6),
      finds(G, 3 * G, 5), EQUALS(at(4 * G).content.kind, MS_FILL),
      writes(0, 4 * G, 6 * G, undefined))

static void comes_back_without(enum fake_call call, CUcontext context)
{
    fills(0, G, 5), suspends(), lies_in(0, context), driver_fails(call), resumes();
    CHECK(fake_has_failed());
    CHECK_EQ(fake.pushed_contexts, 0);
    lies_in(0, FAKE_CONTEXT);
}

STORY(a_driver_that_does_not_tell_what_is_unused_is_tried,
      comes_back_without(FAKE_mem_get_info, FAKE_CONTEXT),
      comes_back_without(FAKE_ctx_push_current, (CUcontext)2))

static CUresult (*create)(CUmemGenericAllocationHandle *handle, size_t bytes,
                          const CUmemAllocationProp *prop, unsigned long long flags);

static CUresult create_nothing(CUmemGenericAllocationHandle *handle, size_t bytes,
                               const CUmemAllocationProp *prop, unsigned long long flags)
{
    (void)handle, (void)bytes, (void)prop, (void)flags;
    return CUDA_ERROR_UNKNOWN;
}

STORY(another_error_is_answered_and_it_stays_suspended, open_log(MS_DEBUG), fills(0, G, 5),
      suspends(), create = ms_driver.mem_create, ms_driver.mem_create = create_nothing,
      ms_config.resume_ms = 1000, pauses = 0, EQUALS(ms_suspend_take_back(), CUDA_ERROR_UNKNOWN),
      IS(ms_suspend_is_active()), EQUALS(pauses, 0), ms_driver.mem_create = create,
      EQUALS(count_log_lines("is back") + count_log_lines("has no memory"), 0), resumes(),
      finds(0, G, 5))
