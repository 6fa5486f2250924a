/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of needs.def, by what becomes of an allocation that has one granule of each kind. */
#include "runtime/fill/access.h"

#include <pthread.h>
#include <semaphore.h>
#include <string.h>
#include <time.h>

#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/evict.h"
#include "runtime/fill/suspend.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/memory/recorded_launch.h"
#include "runtime/order/order.h"
#include "runtime/shard/shard.h"
#include "runtime/state/caller.h"
#include "runtime/state/counters.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/use_plan.h"

#define ADDRESS ((CUdeviceptr)0x5a5b00200000)
#define CONTEXT ((CUcontext)1)
#define ELSEWHERE ((CUcontext)2)
#define STREAM ((CUstream)7) /* of ELSEWHERE */
enum { GRANULE = 4096, PARTS = 5 };
enum part { FILLED, DEAD, LAUNCHED, AWAY, ABSENT };

/* --- a driver that only counts */

static size_t set_bytes;
static uint32_t set_reason;

static CUresult ctx_get_current(CUcontext *context)
{
    *context = CONTEXT;
    return CUDA_SUCCESS;
}

static CUresult stream_get_ctx(CUstream stream, CUcontext *context)
{
    CHECK(stream == STREAM);
    *context = ELSEWHERE;
    return CUDA_SUCCESS;
}

static CUresult exchange_capture_mode(CUstreamCaptureMode *mode)
{
    *mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    return CUDA_SUCCESS;
}

static CUresult get_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    *value = 0;
    return (int)attribute + device >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t bytes,
                       const CUmemAllocationProp *prop, unsigned long long flags)
{
    CHECK(bytes % GRANULE == 0 && prop != NULL && flags == 0);
    *handle = 1;
    return CUDA_SUCCESS;
}

static CUresult map(CUdeviceptr address, size_t bytes, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    CHECK(address % GRANULE == 0 && bytes > 0 && offset + flags == 0 && handle == 1);
    return CUDA_SUCCESS;
}

static CUresult unmap(CUdeviceptr address, size_t bytes)
{
    CHECK(address % GRANULE == 0 && bytes > 0);
    return CUDA_SUCCESS;
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
    CHECK_EQ(handle, 1);
    return CUDA_SUCCESS;
}

static CUresult set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *desc,
                           size_t count)
{
    CHECK(address % GRANULE == 0 && bytes > 0 && desc != NULL && count == 1);
    return CUDA_SUCCESS;
}

static CUresult stream_create(CUstream *stream, unsigned flags)
{
    CHECK(flags == CU_STREAM_NON_BLOCKING);
    *stream = (CUstream)9;
    return CUDA_SUCCESS;
}

static CUresult stream_synchronize(CUstream stream)
{
    CHECK(stream != NULL);
    return CUDA_SUCCESS;
}

static CUresult ctx_synchronize(void)
{
    return CUDA_SUCCESS;
}

static CUresult ctx_record_event(CUcontext context, CUevent event)
{
    CHECK(context == CONTEXT && event == NULL);
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult event_create(CUevent *event, unsigned flags)
{
    CHECK_EQ(flags, CU_EVENT_DISABLE_TIMING);
    *event = NULL;
    return CUDA_SUCCESS;
}

static CUresult event_destroy(CUevent event)
{
    CHECK(event == NULL);
    return CUDA_SUCCESS;
}

static CUresult memset_d8(CUdeviceptr address, unsigned char value, size_t bytes, CUstream stream)
{
    CHECK(address >= ADDRESS && value == 1 && stream != NULL);
    set_bytes += bytes;
    set_reason = ms_caller_reason;
    return CUDA_SUCCESS;
}

/* --- one allocation */

static struct ms_inside allocation;
static struct ms_recorded_launch recorded;

static void keep(struct ms_counted *counted)
{
    CHECK(counted == &recorded.counted);
}

static void set(enum part part, struct ms_content content)
{
    const size_t begin = part * (size_t)GRANULE;
    CHECK(ms_lineage_set(&allocation.lineage, begin, begin + GRANULE, &content));
}

static void cover(enum part part)
{
    const size_t begin = part * (size_t)GRANULE;
    CHECK_EQ(ms_backing_cover(&allocation.backing, begin, begin + GRANULE), CUDA_SUCCESS);
}

/* Nothing has memory but what the launch made, which was read. */
static void start(void)
{
    ms_driver = (struct ms_driver){
        .ctx_get_current = ctx_get_current,
        .stream_get_ctx = stream_get_ctx,
        .exchange_capture_mode = exchange_capture_mode,
        .device_get_attribute = get_attribute,
        .mem_create = create,
        .mem_map = map,
        .mem_unmap = unmap,
        .mem_address_free = unmap,
        .mem_release = release,
        .mem_set_access = set_access,
        .stream_create = stream_create,
        .stream_synchronize = stream_synchronize,
        .ctx_synchronize = ctx_synchronize,
        .ctx_record_event = ctx_record_event,
        .event_create = event_create,
        .event_destroy = event_destroy,
        .memset_d8_async = memset_d8,
    };
    ms_counted_init(&recorded.counted, keep);
    CHECK(ms_lineage_init(&recorded.before, GRANULE));
    allocation = (struct ms_inside){
        .facts = {.address = ADDRESS,
                  .bytes = PARTS * GRANULE,
                  .context = CONTEXT,
                  .id = 1,
                  .granule = GRANULE,
                  .granule_bytes = PARTS * GRANULE},
        .backing = {.address = ADDRESS, .bytes = PARTS * GRANULE, .granule = GRANULE}};
    CHECK(ms_lineage_init(&allocation.lineage, allocation.facts.bytes));
    CHECK(ms_carve_add_block(&allocation.facts, FILLED * GRANULE, DEAD * GRANULE));
    CHECK(ms_carve_add_block(&allocation.facts, LAUNCHED * GRANULE, PARTS * GRANULE));
    cover(LAUNCHED);
    set(FILLED, (struct ms_content){.kind = MS_FILL, .pattern = 0x01010101});
    set(DEAD, (struct ms_content){.kind = MS_DEAD});
    set(LAUNCHED, (struct ms_content){.kind = MS_LAUNCHED, .cached = true, .recorded = &recorded});
    set(AWAY, (struct ms_content){.kind = MS_FILL, .locality = MS_REMOTE, .pattern = 0x01010101});
    set(ABSENT, (struct ms_content){.kind = MS_ABSENT, .locality = MS_REMOTE});
    CHECK(ms_space_add(&allocation.facts));
    set_bytes = 0;
    set_reason = MS_REASON_CALL;
}

static void end(void)
{
    CHECK(ms_space_claim(ADDRESS) == &allocation.facts);
    ms_space_remove(&allocation.facts);
    ms_lineage_cleanup(&allocation.lineage);
    ms_sorted_cleanup(&allocation.blocks.all);
    ms_lineage_cleanup(&recorded.before);
    ms_backing_release(&allocation.backing);
}

static void put_plan_in_force(void)
{
    static const char text[] = "{\"format\": \"metashard-plan/1\", \"mesh\": {\"tp\": 2},"
                               " \"rank\": 0, \"tensors\": []}";
    struct ms_plan *plan;
    struct ms_fault fault;
    CHECK(ms_plan_parse(text, strlen(text), "plan", &plan, &fault));
    CHECK(ms_shard_set(plan, "plan", &fault));
    CHECK(ms_shard_is_active());
}

/* For the parts from first to last: r resident, c cached, - not in memory. */
static const char *placement(enum part first, enum part last)
{
    static char text[PARTS + 1];
    size_t count = 0;
    for (enum part part = first; part <= last; part++) {
        const struct ms_extent extent = ms_lineage_at(&allocation.lineage, part * (size_t)GRANULE);
        text[count++] = "-cr"[extent.content.kind == MS_RESIDENT ? 2 : extent.content.cached];
    }
    text[count] = 0;
    return text;
}

#define CHECK_PLACEMENT(need, first, last, wanted)                               \
    do {                                                                         \
        if (strcmp(placement(first, last), wanted) != 0)                         \
            ms_test_fail(__FILE__, __LINE__, "%s: %s, expected %s", names[need], \
                         placement(first, last), wanted);                        \
    } while (0)

static const char *const names[] = {
#define MS_NEED(name, ...) #name,
#include "runtime/fill/needs.def"
#undef MS_NEED
};

static CUresult get(enum ms_need need, enum part first, enum part last)
{
    const CUresult result =
        ms_access(ADDRESS + first * (size_t)GRANULE, (last - first + 1) * (size_t)GRANULE, need);
    if (result == CUDA_SUCCESS && ms_needs[need].becomes == MS_BECOMES_CACHED)
        ms_evict_let_go();
    return result;
}

/* --- what is to be seen of each row */

static const struct expected {
    const char *local;   /* of what is filled, dead, launched */
    size_t replayed;     /* of these, granules */
    const char *advised; /* of what other ranks keep; a remote read is only counted */
    size_t counted;      /* such reads */
    const char *refused; /* of the same in enforce mode; NULL: the call fails */
    const char *absent;  /* NULL: the call fails */
    bool is_use;         /* the program uses what is dead */
    bool is_pinned, is_held;
} expected[MS_NEED_COUNT] = {
    [MS_NEED_READ] = {"crc", 1, "c", 1, NULL, NULL, .is_use = true, .is_held = true},
    [MS_NEED_LOAD] = {"crc", 1, "c", 0, "c", NULL, .is_use = true, .is_held = true},
    [MS_NEED_SEND] = {"crc", 1, "c", 0, "c", NULL, .is_use = true, .is_held = true},
    [MS_NEED_SEND_LATER] = {"rrr", 1, "r", 0, "r", NULL, .is_use = true},
    [MS_NEED_READ_WRITE] = {"rrr", 1, "r", 1, NULL, NULL, .is_use = true},
    [MS_NEED_CONTRIBUTE] = {"rrr", 1, "r", 1, NULL, NULL, .is_use = true},
    [MS_NEED_OVERWRITE] = {"rrr", 0, "r", 0, "r", "r", .is_use = true},
    [MS_NEED_REACH] = {"rrr", 1, "r", 1, "-", "-", .is_use = true},
    [MS_NEED_DESCRIBE] = {"rrr", 1, "r", 1, "-", "-", .is_use = true, .is_pinned = true},
    [MS_NEED_REACH_LIVE] = {"r-r", 1, "r", 1, "-", "-"},
    [MS_NEED_KEEP] = {"r-r", 1, "-", 0, "-", "-"},
    [MS_NEED_GATHER] = {"r-r", 1, "-", 0, "-", "-"},
    [MS_NEED_LAUNCHED] = {"--r", 0, "-", 0, "-", "-"},
    [MS_NEED_PIN] = {"rrr", 1, "r", 1, NULL, NULL, .is_use = true, .is_pinned = true},
    [MS_NEED_HANDLE] = {"rrr", 1, "r", 1, NULL, NULL, .is_use = true},
};

MS_TEST(each_need_gets_bytes_this_rank_keeps)
{
    for (enum ms_need need = 0; need < MS_NEED_COUNT; need++) {
        start();
        CHECK_EQ(get(need, FILLED, LAUNCHED), CUDA_SUCCESS);
        CHECK_EQ(set_reason, set_bytes > 0 ? ms_needs[need].why : MS_REASON_CALL);
        CHECK_PLACEMENT(need, FILLED, LAUNCHED, expected[need].local);
        CHECK_EQ(set_bytes, expected[need].replayed * GRANULE);
        CHECK_EQ(allocation.blocks.uses_dead, expected[need].is_use);
        CHECK_EQ(allocation.facts.notes.keeps_dead, expected[need].is_pinned);
        end();
    }
}

MS_TEST_AFTER(put_plan_in_force, each_need_gets_bytes_other_ranks_keep)
{
    for (enum ms_need need = 0; need < MS_NEED_COUNT; need++) {
        const uint64_t before = ms_counter_get(MS_COUNT_REMOTE_READS);
        start();
        CHECK_EQ(get(need, AWAY, AWAY), CUDA_SUCCESS);
        CHECK_PLACEMENT(need, AWAY, AWAY, expected[need].advised);
        CHECK_EQ(ms_counter_get(MS_COUNT_REMOTE_READS) - before, expected[need].counted);
        end();
    }
}

/* NULL: the call fails, and nothing has changed. */
static void check_refusal(enum ms_need need, enum part part, const char *wanted)
{
    start();
    CHECK_EQ(get(need, part, part), wanted != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_PERMITTED);
    CHECK_PLACEMENT(need, part, part, wanted != NULL ? wanted : "-");
    end();
}

MS_TEST_AFTER(put_plan_in_force, an_enforced_plan_refuses_needs_of_bytes_other_ranks_keep)
{
    ms_config.plan_mode = MS_ENFORCE;
    for (enum ms_need need = 0; need < MS_NEED_COUNT; need++)
        check_refusal(need, AWAY, expected[need].refused);
}

MS_TEST_AFTER(put_plan_in_force, needs_of_absent_bytes_are_refused)
{
    for (enum ms_need need = 0; need < MS_NEED_COUNT; need++)
        check_refusal(need, ABSENT, expected[need].absent);
}

/* Rows that fault leave no wrong bytes where a kernel would not fault. */
MS_TEST_AFTER(put_plan_in_force, a_need_in_a_granule_with_memory_gets_remote_bytes_too)
{
    ms_config.plan_mode = MS_ENFORCE;
    for (enum ms_need need = 0; need < MS_NEED_COUNT; need++) {
        const bool faults =
            need == MS_NEED_REACH || need == MS_NEED_DESCRIBE || need == MS_NEED_REACH_LIVE;
        start();
        cover(AWAY);
        get(need, AWAY, AWAY);
        if (faults)
            CHECK_PLACEMENT(need, AWAY, AWAY, "r");
        else if (need == MS_NEED_KEEP)
            CHECK_PLACEMENT(need, AWAY, AWAY, "-");
        end();
    }
}

static size_t evict(__attribute__((unused)) struct ms_allocation *evicted,
                    __attribute__((unused)) void *argument)
{
    return 1;
}

MS_TEST(an_eviction_spares_held_memory)
{
    for (enum ms_need need = 0; need < MS_NEED_COUNT; need++) {
        start();
        CHECK_EQ(ms_access(ADDRESS, GRANULE, need), CUDA_SUCCESS);
        CHECK_EQ(ms_evict_all(NULL, evict, NULL), !expected[need].is_held);
        if (expected[need].is_held)
            ms_evict_let_go();
        CHECK_EQ(ms_evict_all(NULL, evict, NULL), 1);
        end();
    }
}

/* There it becomes resident; the rest of its contract is the same. */
MS_TEST(a_stream_of_another_context)
{
    const struct ms_use use = {MS_NEED_READ, ADDRESS, GRANULE, STREAM};
    start();
    for (enum ms_need need = 0; need < MS_NEED_COUNT; need++) {
        const enum ms_need elsewhere = ms_evict_need_in(&allocation.facts, need, STREAM);
        CHECK_EQ(ms_evict_need_in(&allocation.facts, need, CU_STREAM_LEGACY), need);
        CHECK_EQ(elsewhere == need, !expected[need].is_held);
        CHECK(!expected[elsewhere].is_held);
        CHECK_EQ(expected[elsewhere].is_pinned, expected[need].is_pinned);
        CHECK_EQ(ms_needs[elsewhere].remote, ms_needs[need].remote);
        CHECK_EQ(ms_needs[elsewhere].absent, ms_needs[need].absent);
        CHECK_EQ(ms_needs[elsewhere].extents, ms_needs[need].extents);
    }
    CHECK_EQ(ms_access_uses(&use, 1), CUDA_SUCCESS);
    CHECK_PLACEMENT(MS_NEED_READ, FILLED, FILLED, "r");
    CHECK_EQ(ms_evict_all(NULL, evict, NULL), 0);
    ms_evict_let_go();
    end();
}

MS_TEST_BETWEEN(put_plan_in_force, end, a_captured_overwrite_replays_its_bytes)
{
    ms_config.plan_mode = MS_ENFORCE;
    start();
    ms_order_set_capture(true);
    CHECK_EQ(get(MS_NEED_OVERWRITE, FILLED, ABSENT), CUDA_SUCCESS);
    CHECK_PLACEMENT(MS_NEED_OVERWRITE, FILLED, ABSENT, "rrrrr");
    CHECK_EQ(set_bytes, 2 * GRANULE);
    ms_order_set_capture(false);
}

MS_TEST(rows_leave_gaps_out_only_where_other_ranks_keep_something)
{
    const struct ms_rows rows = {.begin = ADDRESS,
                                 .width = GRANULE,
                                 .height = 2,
                                 .depth = 1,
                                 .pitch = AWAY * (size_t)GRANULE};
    start();
    CHECK_EQ(ms_access_rows(&rows), CUDA_SUCCESS);
    CHECK_PLACEMENT(MS_NEED_READ_WRITE, FILLED, AWAY, "rrrr");
    end();
    put_plan_in_force();
    start();
    CHECK_EQ(ms_access_rows(&rows), CUDA_SUCCESS);
    CHECK_PLACEMENT(MS_NEED_READ_WRITE, FILLED, AWAY, "r-cr");
    end();
    const struct ms_rows near = {.begin = ADDRESS,
                                 .width = GRANULE,
                                 .height = 1,
                                 .depth = 2,
                                 .slice = LAUNCHED * (size_t)GRANULE};
    start();
    CHECK_EQ(ms_access_rows(&near), CUDA_SUCCESS);
    CHECK_PLACEMENT(MS_NEED_READ_WRITE, FILLED, AWAY, "rrr-");
    end();
}

/* --- ranges, over several allocations */

enum { G = FAKE_GRANULE, SIZE = 4 * G };

static struct ms_allocation *low_one, *high_one; /* by address */
static const struct ms_content filled = {.kind = MS_FILL, .pattern = 0x07070707};

static void start_two(void)
{
    fake_start();
    struct ms_allocation *a = fake_allocation(SIZE), *b = fake_allocation(SIZE);
    low_one = a->address < b->address ? a : b;
    high_one = low_one == a ? b : a;
    fake_set(low_one, 0, SIZE, &filled);
    fake_set(high_one, 0, SIZE, &filled);
}

static void end_two(void)
{
    fake_allocation_free(low_one);
    fake_allocation_free(high_one);
    fake_check_empty();
}

static void check_backed(size_t low_granules, size_t high_granules)
{
    CHECK_EQ(ms_allocation_backing(low_one)->backed_bytes, low_granules * G);
    CHECK_EQ(ms_allocation_backing(high_one)->backed_bytes, high_granules * G);
}

static void access_from_to(CUdeviceptr from, CUdeviceptr to)
{
    CHECK_EQ(ms_access(from, to - from, MS_NEED_READ_WRITE), CUDA_SUCCESS);
}

STORY_BETWEEN(start_two, end_two, an_access_uses_a_part_of_each_allocation_it_meets,
              access_from_to(low_one->address + 3 * G, high_one->address), check_backed(1, 0),
              access_from_to(low_one->address + SIZE, high_one->address + 1), check_backed(1, 1),
              access_from_to(low_one->address + 3 * G - 1, high_one->address + 2 * G),
              check_backed(2, 2),
              EQUALS(ms_access(high_one->address + SIZE, SIZE_MAX, MS_NEED_READ_WRITE),
                     CUDA_SUCCESS),
              check_backed(2, 2),
              EQUALS(ms_access(low_one->address + G + 5, 0, MS_NEED_READ_WRITE), CUDA_SUCCESS),
              check_backed(2, 2),
              EQUALS(ms_access(low_one->address + G, SIZE_MAX, MS_NEED_READ_WRITE), CUDA_SUCCESS),
              check_backed(3, 4))

MS_TEST_BETWEEN(start_two, end_two, an_access_uses_nothing_after_a_failure)
{
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(ms_access(0, SIZE_MAX, MS_NEED_READ_WRITE), CUDA_ERROR_UNKNOWN);
    check_backed(0, 0);
    const struct ms_use uses[2] = {
        {.need = MS_NEED_READ_WRITE, .begin = low_one->address, .bytes = 1},
        {.need = MS_NEED_READ_WRITE, .begin = high_one->address, .bytes = 1}};
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(ms_access_uses(uses, 2), CUDA_ERROR_UNKNOWN);
    check_backed(0, 0);
    CHECK_EQ(ms_access_uses(uses, 2), CUDA_SUCCESS);
    check_backed(1, 1);
}

/* Another thread has one, too. */
MS_TEST_BETWEEN(start_two, end_two, a_failure_lets_go_of_what_the_call_held_alone)
{
    CHECK_EQ(ms_access(high_one->address, 1, MS_NEED_READ), CUDA_SUCCESS);
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(ms_access(low_one->address, 1, MS_NEED_READ_WRITE), CUDA_ERROR_UNKNOWN);
    CHECK_EQ(ms_evict_all(NULL, evict, NULL), 0);
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(ms_access(low_one->address, 1, MS_NEED_READ), CUDA_ERROR_UNKNOWN);
    CHECK_EQ(ms_evict_all(NULL, evict, NULL), 0);
    ms_evict_let_go();
    CHECK_EQ(ms_evict_all(NULL, evict, NULL), 1);
}

static sem_t is_claimed, is_used;

/* *waited_out: nobody has used the other one within two seconds. */
static void *claim_high(void *waited_out)
{
    struct timespec until;
    struct ms_allocation *claimed = ms_space_claim(high_one->address);
    sem_post(&is_claimed);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 2;
    *(bool *)waited_out = sem_timedwait(&is_used, &until) != 0;
    ms_space_release(claimed);
    return NULL;
}

MS_TEST_BETWEEN(start_two, end_two, an_access_does_not_wait_for_an_allocation_behind_it)
{
    pthread_t thread;
    bool waited = true;
    sem_init(&is_claimed, 0, 0);
    sem_init(&is_used, 0, 0);
    CHECK_EQ(pthread_create(&thread, NULL, claim_high, &waited), 0);
    sem_wait(&is_claimed);
    CHECK_EQ(ms_access(low_one->address, SIZE, MS_NEED_READ_WRITE), CUDA_SUCCESS);
    sem_post(&is_used);
    pthread_join(thread, NULL);
    CHECK(!waited);
    check_backed(4, 0);
}

MS_TEST_BETWEEN(start_two, end_two, a_use_of_a_block_is_one_of_its_bytes_alone)
{
    const CUdeviceptr address = low_one->address;
    CHECK(ms_space_claim(address) == low_one);
    CHECK(ms_lineage_set(&MS_OWN(low_one)->lineage, 0, SIZE,
                         &(struct ms_content){.kind = MS_UNDEFINED}));
    CHECK_EQ(ms_carve_take(low_one, G, 3 * G), MS_CARVED);
    ms_space_release(low_one);
    access_from_to(address + G, address + 3 * G);
    CHECK(!MS_OWN(low_one)->blocks.uses_dead);
    access_from_to(address + G, address + 3 * G + 1);
    CHECK(MS_OWN(low_one)->blocks.uses_dead);
    CHECK(ms_space_claim(high_one->address) == high_one);
    CHECK(ms_lineage_set(&MS_OWN(high_one)->lineage, 0, SIZE,
                         &(struct ms_content){.kind = MS_UNDEFINED}));
    CHECK_EQ(ms_carve_take(high_one, G, 3 * G), MS_CARVED);
    ms_space_release(high_one);
    access_from_to(address + 3 * G, high_one->address); /* what ends there meets nothing of it */
    CHECK(!MS_OWN(high_one)->blocks.uses_dead);
}

/* Rows of which the second one lies in another allocation, behind what other ranks keep. */
MS_TEST_BETWEEN(start_two, end_two, rows_leave_gaps_out_in_each_allocation)
{
    struct ms_content remote = filled;
    put_plan_in_force();
    remote.locality = MS_REMOTE;
    fake_set(high_one, 0, G, &remote);
    struct ms_rows rows = {.begin = low_one->address, .width = G, .height = 1, .depth = 2};
    rows.slice = high_one->address + (size_t)2 * G - rows.begin;
    CHECK_EQ(ms_access_rows(&rows), CUDA_SUCCESS);
    check_backed(1, 1);
    CHECK(ms_allocation_lineage(low_one)->resident_bytes == G &&
          ms_allocation_lineage(high_one)->resident_bytes == G);
    rows = (struct ms_rows){.begin = low_one->address + G, .width = G, .height = 2, .depth = 1};
    rows.pitch = high_one->address + (size_t)3 * G - rows.begin;
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(ms_access_rows(&rows), CUDA_ERROR_UNKNOWN);
    check_backed(1, 1);
}

/* Which the plan is asked first. Rank 1 keeps the second half of each. */
MS_TEST_BETWEEN(start_two, end_two, rows_leave_out_what_the_plan_gives_to_others)
{
    use_plan(1, SIZE);
    name_tensor(low_one->address, SIZE, "w");
    name_tensor(high_one->address, SIZE, "w2");
    struct ms_rows rows = {
        .begin = low_one->address + (size_t)2 * G, .width = G, .height = 2, .depth = 1};
    rows.pitch = high_one->address - low_one->address;
    CHECK_EQ(ms_access_rows(&rows), CUDA_SUCCESS);
    check_backed(1, 1);
}

/* Bytes right before the rows, or right behind, are none of theirs. */
MS_TEST_BETWEEN(start_two, end_two, rows_end_where_they_end)
{
    struct ms_content remote = filled;
    put_plan_in_force();
    remote.locality = MS_REMOTE;
    fake_set(low_one, 0, G, &remote);
    fake_set(high_one, 3 * G, SIZE, &remote);
    struct ms_rows rows = {
        .begin = low_one->address + G, .width = G, .height = 2, .depth = 1, .pitch = (size_t)2 * G};
    CHECK_EQ(ms_access_rows(&rows), CUDA_SUCCESS);
    check_backed(3, 0);
    rows.begin = high_one->address;
    CHECK_EQ(ms_access_rows(&rows), CUDA_SUCCESS);
    check_backed(3, 3);
}

/* --- exports */

/* The exports that were published. */
static uint64_t exported_ids[4];
static size_t exported_count;
WRAPS(ms_state_event);
void __wrap_ms_state_event(const struct ms_event *event)
{
    if (event->kind != MS_EVENT_PIN)
        return;
    CHECK_EQ(event->address, (event->block == low_one->id ? low_one : high_one)->address);
    CHECK(event->bytes == SIZE && strcmp(event->text, "an allocation that is exported") == 0);
    exported_ids[exported_count++ % 4] = event->block;
}

MS_TEST_BETWEEN(start_two, end_two, an_export_pins_whole_allocations)
{
    bool one_handle = false;
    CHECK_EQ(ms_access_export(low_one->address + SIZE - 1, 1, &one_handle), CUDA_SUCCESS);
    check_backed(4, 0);
    CHECK(one_handle && low_one->notes.keeps_dead && !high_one->notes.keeps_dead);
    CHECK_EQ(ms_access_export(high_one->address + G, 0, &one_handle), CUDA_SUCCESS);
    check_backed(4, 0); /* nothing of it */
    CHECK(one_handle);
    const size_t to_high = high_one->address - low_one->address;
    CHECK_EQ(ms_access_export(low_one->address, to_high, &one_handle), CUDA_SUCCESS);
    check_backed(4, 0);
    CHECK_EQ(ms_access_export(low_one->address, to_high + 1, &one_handle), CUDA_SUCCESS);
    check_backed(4, 4);
    CHECK(one_handle && high_one->notes.keeps_dead);
    CHECK(ms_allocation_lineage(low_one)->resident_bytes == SIZE &&
          ms_allocation_lineage(high_one)->resident_bytes == SIZE);
    CHECK_EQ(exported_count, 4);
    for (size_t i = 0; i < 4; i++)
        CHECK_EQ(exported_ids[i], (i < 3 ? low_one : high_one)->id);
}

MS_TEST_BETWEEN(start_two, end_two, an_export_tells_whether_one_handle_has_all)
{
    bool one_handle = true;
    access_from_to(low_one->address, low_one->address + G);
    const size_t all = high_one->address + SIZE - low_one->address;
    CHECK_EQ(ms_access_export(low_one->address, all, &one_handle), CUDA_SUCCESS);
    CHECK(!one_handle);
    CHECK_EQ(ms_access_export(high_one->address, SIZE, &one_handle), CUDA_SUCCESS);
    CHECK(one_handle);
}

MS_TEST_BETWEEN(start_two, end_two, an_export_that_fails_ends_there)
{
    bool one_handle = true;
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    const size_t all = high_one->address + SIZE - low_one->address;
    CHECK_EQ(ms_access_export(low_one->address, all, &one_handle), CUDA_ERROR_UNKNOWN);
    CHECK(!one_handle);
    check_backed(0, 0);
    CHECK(!high_one->notes.keeps_dead);
}

/* --- what a write has recorded in granules with memory */

MS_TEST_BETWEEN(start_two, end_two, a_recorded_write_fills_granules_with_memory_at_once)
{
    const struct ms_content resident = {.kind = MS_RESIDENT};
    fake_set(low_one, 0, G, &resident);
    fake_set(low_one, G - 100, G, &filled);
    fake_set(high_one, 0, G, &resident);
    fake_set(high_one, 0, 100, &filled);
    const CUdeviceptr from = low_one->address + G - 100;
    ms_access_granules_later(from, high_one->address + 100 - from);
    CHECK(ms_lineage_at(ms_allocation_lineage(low_one), G - 100).content.cached);
    CHECK(ms_lineage_at(ms_allocation_lineage(high_one), 0).content.cached);
    CHECK_EQ(*(unsigned char *)(uintptr_t)from, 7);
    check_backed(1, 1);
}

/* --- everything */

MS_TEST_BETWEEN(start_two, end_two, a_call_that_can_reach_anything_seals)
{
    const unsigned before = ms_hot.unexamined;
    CHECK_EQ(ms_access_all(MS_REASON_SEALED), CUDA_SUCCESS);
    check_backed(4, 4);
    CHECK_EQ(ms_counter_get(MS_COUNT_SEALS), 1);
    CHECK(ms_hot.unexamined > before);
}

/* It is suspended, and cannot have its memory back. */
MS_TEST_BETWEEN(start_two, end_two, an_access_brings_suspended_memory_back_first)
{
    ms_suspend_is_set = true;
    high_one->notes.was_resident = true;
    fake.total_bytes = SIZE - 1;
    CHECK_EQ(ms_access_all(MS_REASON_SEALED), CUDA_ERROR_OUT_OF_MEMORY);
    check_backed(0, 0);
    CHECK_EQ(fake.calls[FAKE_mem_create], 0);
    fake.total_bytes = (size_t)2 * SIZE;
    CHECK_EQ(ms_access_all(MS_REASON_SEALED), CUDA_SUCCESS);
    check_backed(4, 4);
    CHECK(!ms_suspend_is_set);
}
