/* SPDX-License-Identifier: Apache-2.0 */
/* Prefetching the bytes that a plan gives to this rank; and a plan in mode enforce that comes when
 * everything is in memory. */
#include "runtime/fill/prefetch.h"

#include "runtime/base/log.h"
#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/driver/quiesce.h"
#include "runtime/files/change.h"
#include "runtime/fill/hold_up.h"
#include "runtime/fill/materialise.h"
#include "runtime/fill/restore.h"
#include "runtime/fill/shadow.h"
#include "runtime/loading/transfer.h"
#include "runtime/memory/allocation.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/state/counters.h"
#include "tests/unit/between.h"
#include "tests/unit/counted_heap.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/files/files.h"
#include "tests/unit/snapshot_of.h"
#include "tests/unit/use_plan.h"

enum { GRANULES = 8, BYTES = GRANULES * FAKE_GRANULE, HALF = BYTES / 2 };

/* A batch is one transfer. */
enum { MOST_TRANSFERS = 8 };
static struct {
    size_t count, runs[MOST_TRANSFERS];
    CUcontext contexts[MOST_TRANSFERS];
    bool is_pretended; /* it moves no bytes */
} transfers;
WRAPS(ms_transfer, ms_shard_publish, ms_hold_up_begin, ms_quiesce_end);
CUresult __wrap_ms_transfer(struct ms_read_request *runs, size_t count, CUcontext context,
                            CUstream stream)
{
    CHECK(transfers.count < MOST_TRANSFERS);
    transfers.runs[transfers.count] = count;
    transfers.contexts[transfers.count++] = context;
    return transfers.is_pretended ? CUDA_SUCCESS : __real_ms_transfer(runs, count, context, stream);
}

/* The published texts about the plan. */
static const char *told[4];
static size_t told_count;
void __wrap_ms_shard_publish(const char *what, uint64_t began)
{
    told[told_count++ % 4] = what;
    __real_ms_shard_publish(what, began);
}

/* How often calls are held up, and are not any more. */
static unsigned held_up, let_go;
bool __wrap_ms_hold_up_begin(struct ms_fault *fault)
{
    const bool is_held_up = __real_ms_hold_up_begin(fault);
    held_up += is_held_up;
    return is_held_up;
}

void __wrap_ms_quiesce_end(void)
{
    let_go++;
    __real_ms_quiesce_end();
}

static struct test_file file;
static struct stat stat_of_file;
static struct ms_allocation *allocation;

/* All of a tensor came from a file, which is let go. Rank 1 keeps its second half. */
static void start(void)
{
    fake_start();
    make_test_file(&file, "/tmp", BYTES);
    CHECK_EQ(fstat(file.descriptor, &stat_of_file), 0);
    allocation = fake_allocation(BYTES);
    fake_set(allocation, 0, BYTES, &(struct ms_content){.kind = MS_SOURCE, .source = file.source});
    CHECK(ms_space_claim(allocation->address) == allocation);
    CHECK_EQ(ms_materialise(allocation, 0, BYTES, MS_NEED_KEEP), CUDA_SUCCESS);
    ms_space_release(allocation);
    ms_source_drop(file.source);
    ms_config.plan_mode = MS_ENFORCE;
    use_plan(1, BYTES);
    name_tensor(allocation->address, BYTES, "w");
    open_log(MS_ERROR);
}

static void end(void)
{
    fake_check_allocation(allocation);
    fake_allocation_free(allocation);
    fake_check_empty();
    CHECK_EQ(count_log_lines(file.path), 0);
    CHECK_EQ(held_up, let_go);
}

static void check_all_is_resident(void)
{
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, BYTES);
    CHECK_EQ(ms_allocation_lineage(allocation)->resident_bytes, BYTES);
    CHECK_BYTES((void *)(uintptr_t)allocation->address, file.data, BYTES);
}

MS_TEST_BETWEEN(start, end, a_plan_frees_remote_bytes_that_equal_their_file)
{
    ms_prefetch_arrive(true, true);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, HALF);
    CHECK_EQ(ms_allocation_lineage(allocation)->resident_bytes, HALF);
    CHECK_EQ(held_up, 1);
}

STORY_BETWEEN(start, end, a_file_that_has_become_shorter_is_no_failure,
              EQUALS(truncate(file.path, 100), 0), ms_prefetch_arrive(true, true),
              check_all_is_resident())

/* As when another process is about to write to it. */
static void close_file(void)
{
    char path[MS_PATH_BYTES];
    ms_change_begin(stat_of_file.st_dev, stat_of_file.st_ino, false, path);
}

STORY_BETWEEN(start, end, nothing_comes_to_depend_on_a_file_that_is_about_to_change,
              fake.on_wait = close_file, ms_prefetch_arrive(true, true), fake.on_wait = NULL,
              check_all_is_resident())

/* --- several tensors, of which this rank keeps the first half each */

enum { TENSORS = 3, BROKEN = 1 };

static struct test_file other;
static struct ms_allocation *tensors[TENSORS];

static void start_tensors(void)
{
    static const char *const names[TENSORS] = {"a", "b", "c"};
    fake_start();
    make_test_file(&file, "/tmp", BYTES);
    make_test_file(&other, "/tmp", BYTES);
    use_plan(0, BYTES);
    for (int i = 0; i < TENSORS; i++) {
        tensors[i] = fake_allocation(BYTES);
        fake_set(tensors[i], 0, BYTES,
                 &(struct ms_content){.kind = MS_SOURCE,
                                      .source = i == BROKEN ? other.source : file.source});
        name_tensor(tensors[i]->address, BYTES, names[i]);
    }
    open_log(MS_ERROR);
}

static void end_tensors(void)
{
    for (int i = 0; i < TENSORS; i++) {
        fake_check_allocation(tensors[i]);
        fake_allocation_free(tensors[i]);
    }
    fake_check_empty();
    ms_source_drop(file.source);
    ms_source_drop(other.source);
}

static void check_filled(int tensor, bool is_filled)
{
    const struct ms_lineage *lineage = &MS_OWN(tensors[tensor])->lineage;
    CHECK_EQ(ms_lineage_at(lineage, 0).content.cached, is_filled);
    CHECK(!ms_lineage_at(lineage, HALF).content.cached);
    if (!is_filled)
        return;
    CHECK_EQ(ms_allocation_backing(tensors[tensor])->backed_bytes, HALF);
    CHECK_BYTES((void *)(uintptr_t)tensors[tensor]->address,
                tensor == BROKEN ? other.data : file.data, HALF);
}

MS_TEST_BETWEEN(start_tensors, end_tensors, a_prefetch_fills_the_bytes_of_this_rank_once)
{
    const uint64_t read = ms_counter_get(MS_COUNT_H2D_BYTES);
    CHECK(ms_prefetch_run("a test"));
    for (int i = 0; i < TENSORS; i++)
        check_filled(i, true);
    CHECK_EQ(ms_counter_get(MS_COUNT_H2D_BYTES) - read, TENSORS * HALF);
    CHECK_EQ(ms_counter_get(MS_COUNT_MATERIALISED_BYTES), TENSORS * HALF);
    CHECK(ms_prefetch_run("a test"));
    CHECK_EQ(ms_counter_get(MS_COUNT_H2D_BYTES) - read, TENSORS * HALF);
    CHECK_EQ(ms_counter_get(MS_COUNT_PREFETCHES), 2);
}

MS_TEST_BETWEEN(start_tensors, end_tensors, a_tensor_that_cannot_be_read_keeps_no_other_deferred)
{
    CHECK_EQ(truncate(other.path, 100), 0);
    CHECK(!ms_prefetch_run("a test"));
    for (int i = 0; i < TENSORS; i++)
        check_filled(i, i != BROKEN);
    CHECK(ms_prefetch_run("a test") == false); /* and is tried again */
}

MS_TEST_BETWEEN(start_tensors, end_tensors, memory_that_is_short_once_is_asked_for_again)
{
    fake_fail(FAKE_mem_create, 2, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(ms_prefetch_run("a test"));
    CHECK(fake_has_failed());
    CHECK_EQ(transfers.count, 2); /* what is left is one batch */
    for (int i = 0; i < TENSORS; i++)
        check_filled(i, true);
}

MS_TEST_BETWEEN(start_tensors, end_tensors, a_call_that_fails_once_is_made_again)
{
    fake_fail(FAKE_mem_map, 2, CUDA_ERROR_UNKNOWN);
    CHECK(ms_prefetch_run("a test"));
    CHECK(fake_has_failed());
    for (int i = 0; i < TENSORS; i++)
        check_filled(i, true);
}

/* Nor is what stands behind it taken for filled. */
MS_TEST_BETWEEN(start_tensors, end_tensors, a_part_that_fails_once_is_filled_with_all_behind_it)
{
    static const struct ms_content fill = {.kind = MS_FILL, .pattern = 0x07070707},
                                   other_fill = {.kind = MS_FILL, .pattern = 0x05050505};
    fake_set(tensors[0], 0, FAKE_GRANULE, &fill);
    fake_set(tensors[0], FAKE_GRANULE, HALF, &other_fill);
    fake_fail(FAKE_memset_d8_async, 1, CUDA_ERROR_UNKNOWN);
    CHECK(ms_prefetch_run("a test"));
    CHECK(fake_has_failed());
    CHECK_EQ(ms_allocation_lineage(tensors[0])->cached_bytes, HALF);
    const unsigned char *bytes = (const unsigned char *)(uintptr_t)tensors[0]->address;
    CHECK(bytes[0] == 7 && bytes[FAKE_GRANULE] == 5 && bytes[HALF - 1] == 5);
}

/* One that cannot have memory keeps those behind it from trying: they would only take it. */
MS_TEST_BETWEEN(start_tensors, end_tensors, a_prefetch_ends_where_memory_is_short)
{
    fake.total_bytes = FAKE_GRANULE;
    CHECK(!ms_prefetch_run("a test"));
    for (int i = 0; i < TENSORS; i++)
        check_filled(i, false);
    CHECK_EQ(fake.physical_bytes, 0);
    CHECK(fake.calls[FAKE_mem_create] < 10);
    fake.total_bytes = (size_t)1 << 30;
    CHECK(ms_prefetch_run("a test"));
}

/* A batch is of one context. */
MS_TEST_BETWEEN(start_tensors, end_tensors, each_context_fills_its_own)
{
    tensors[BROKEN]->context = (CUcontext)2;
    CHECK(ms_prefetch_run("a test"));
    CHECK_EQ(fake.pushed_contexts, 0);
    CHECK(fake.calls[FAKE_ctx_push_current] > 0);
    size_t of_others = 0, runs = 0;
    for (size_t i = 0; i < transfers.count; i++) {
        of_others += transfers.contexts[i] == (CUcontext)2 ? transfers.runs[i] : 0;
        runs += transfers.runs[i];
    }
    CHECK(of_others == 1 && runs == TENSORS);
    for (int i = 0; i < TENSORS; i++)
        check_filled(i, true);
    CHECK_EQ(ms_counter_get(MS_COUNT_H2D_BYTES), TENSORS * HALF);
    tensors[BROKEN]->context = FAKE_CONTEXT;
}

MS_TEST_BETWEEN(start_tensors, end_tensors, a_context_that_cannot_be_used_is_a_failure)
{
    for (int i = 0; i < TENSORS; i++)
        tensors[i]->context = (CUcontext)2;
    fake_fail(FAKE_ctx_push_current, 1, CUDA_ERROR_INVALID_CONTEXT);
    CHECK(ms_prefetch_run("a test")); /* one by one they are filled */
    CHECK(fake_has_failed());
    for (int i = 0; i < TENSORS; i++) {
        tensors[i]->context = FAKE_CONTEXT;
        check_filled(i, true);
    }
}

MS_TEST_BETWEEN(start_tensors, end_tensors, a_failure_is_told)
{
    open_log(MS_DEBUG);
    CHECK(ms_prefetch_run("a test"));
    CHECK_EQ(count_log_lines("materialising what the plan gives to this rank: a test"), 1);
    CHECK_EQ(count_log_lines("not everything that the plan gives"), 0);
    for (int i = 0; i < TENSORS; i++)
        fake_set(tensors[i], 0, BYTES,
                 &(struct ms_content){.kind = MS_SOURCE, .source = other.source});
    CHECK_EQ(truncate(other.path, 100), 0);
    CHECK(!ms_prefetch_run("a test"));
    CHECK_EQ(count_log_lines("not everything that the plan gives"), 1);
}

/* Bytes that no file has are replayed; bytes that were never written need no fill. */
MS_TEST_BETWEEN(start_tensors, end_tensors, all_kinds_of_lineage_are_filled)
{
    const struct ms_content fill = {.kind = MS_FILL, .pattern = 0x07070707},
                            undefined = {.kind = MS_UNDEFINED};
    struct ms_source *snapshot = snapshot_of(file.data, FAKE_GRANULE);
    const struct ms_content copied = {.kind = MS_SOURCE, .source = snapshot};
    fake_set(tensors[0], FAKE_GRANULE, 2 * FAKE_GRANULE, &fill);
    fake_set(tensors[0], 2 * FAKE_GRANULE, 3 * FAKE_GRANULE, &undefined);
    fake_set(tensors[0], 3 * FAKE_GRANULE, HALF, &copied);
    ms_source_drop(snapshot);
    CHECK(ms_prefetch_run("a test"));
    const unsigned char *bytes = (const unsigned char *)(uintptr_t)tensors[0]->address;
    CHECK_EQ(ms_allocation_backing(tensors[0])->backed_bytes, 3 * FAKE_GRANULE);
    CHECK_BYTES(bytes, file.data, FAKE_GRANULE);
    CHECK(bytes[FAKE_GRANULE] == 7 && bytes[2 * FAKE_GRANULE - 1] == 7);
    CHECK_EQ(fake_memory_at(tensors[0]->address + 2 * FAKE_GRANULE), 0);
    CHECK_BYTES(bytes + 3 * FAKE_GRANULE, file.data, FAKE_GRANULE);
    CHECK_EQ(ms_counter_get(MS_COUNT_MATERIALISED_BYTES), TENSORS * HALF - FAKE_GRANULE);
}

/* Granules that touch get one handle, also where what they hold does not touch. */
MS_TEST_BETWEEN(start_tensors, end_tensors, granules_side_by_side_get_one_handle)
{
    const struct ms_content undefined = {.kind = MS_UNDEFINED}, fill = {.kind = MS_FILL};
    struct ms_allocation *other_kind = fake_allocation(BYTES);
    fake_set(other_kind, 0, BYTES, &fill);
    fake_set(other_kind, 100, 200, &undefined);
    name_tensor(other_kind->address, BYTES, "d");
    fake_set(tensors[0], 100, 200, &undefined);
    fake_set(tensors[1], FAKE_GRANULE - 100, FAKE_GRANULE, &undefined);
    fake_set(tensors[2], FAKE_GRANULE, 2 * FAKE_GRANULE, &undefined);
    CHECK(ms_prefetch_run("a test"));
    CHECK_EQ(ms_allocation_backing(other_kind)->chunks.count, 1);
    fake_allocation_free(other_kind);
    CHECK_EQ(ms_allocation_backing(tensors[0])->chunks.count, 1);
    CHECK_EQ(ms_allocation_backing(tensors[1])->chunks.count, 1);
    CHECK_EQ(ms_allocation_backing(tensors[2])->chunks.count, 2);
    CHECK_EQ(ms_allocation_backing(tensors[2])->backed_bytes, HALF - FAKE_GRANULE);
}

static void start_without_plan(void)
{
    fake_start();
    make_test_file(&file, "/tmp", BYTES);
    allocation = fake_allocation(BYTES);
    fake_set(allocation, 0, BYTES, &(struct ms_content){.kind = MS_SOURCE, .source = file.source});
}

static void end_without_plan(void)
{
    fake_check_allocation(allocation);
    fake_allocation_free(allocation);
    fake_check_empty();
    ms_source_drop(file.source);
}

MS_TEST_BETWEEN(start_without_plan, end_without_plan, a_prefetch_without_a_plan_fetches_nothing)
{
    CHECK(ms_prefetch_run("a test"));
    ms_prefetch_arrive(true, true);
    CHECK_EQ(ms_counter_get(MS_COUNT_PREFETCHES), 0);
    CHECK_EQ(fake.physical_bytes, 0);
    CHECK_EQ(told_count, 1);
}

STORY_ALONE(a_plan_comes_into_force_where_nothing_is_there, fake_start(), use_plan(1, BYTES),
            ms_prefetch_arrive(true, true), IS(ms_prefetch_run("a test")),
            EQUALS(ms_counter_get(MS_COUNT_PREFETCHES), 0),
            IS(told_count == 1 && strcmp(told[0], "a plan came into force") == 0))

/* More tensors than a batch has. The file has the second half of each tensor's granule. */
MS_TEST(very_many_tensors_are_all_filled)
{
    enum { MANY = 600, MOST = 256, FROM = FAKE_GRANULE / 2 };
    static struct ms_allocation *many[MANY];
    fake_start();
    make_test_file(&file, "/tmp", BYTES);
    use_plan(0, 2 * FAKE_GRANULE);
    for (size_t i = 0; i < MANY; i++) {
        char name[16];
        many[i] = fake_allocation((size_t)2 * FAKE_GRANULE);
        fake_set(many[i], 0, 2 * FAKE_GRANULE,
                 &(struct ms_content){.kind = MS_FILL, .pattern = (uint32_t)i});
        fake_set(many[i], FROM, FAKE_GRANULE,
                 &(struct ms_content){.kind = MS_SOURCE, .source = file.source});
        snprintf(name, sizeof(name), "t%zu", i);
        name_tensor(many[i]->address, 2 * FAKE_GRANULE, name);
    }
    CHECK(ms_prefetch_run("a test"));
    CHECK_EQ(transfers.count, 3);
    CHECK(transfers.runs[0] == MOST && transfers.runs[1] == MOST);
    CHECK_EQ(transfers.runs[2], MANY - 2 * MOST);
    for (size_t i = 0; i < MANY; i++) {
        const unsigned char *bytes = (const unsigned char *)(uintptr_t)many[i]->address;
        CHECK_EQ(*(const uint32_t *)(uintptr_t)many[i]->address, i);
        CHECK_BYTES(bytes + FROM, file.data, 100);
        CHECK_EQ(ms_allocation_backing(many[i])->backed_bytes, FAKE_GRANULE);
        fake_allocation_free(many[i]);
    }
    fake_check_empty();
    ms_source_drop(file.source);
}

/* --- what was resident, with or without a plan */

/* Two that are in the file in the other order. */
MS_TEST_BETWEEN(start_without_plan, end_without_plan, residents_are_read_in_the_order_of_the_file)
{
    struct ms_allocation *first = fake_allocation(HALF), *stays = fake_allocation(HALF);
    struct ms_content content = {.kind = MS_SOURCE, .source = file.source, .source_offset = HALF};
    struct ms_allocation *low = first->address < allocation->address ? first : allocation;
    struct ms_allocation *high = low == first ? allocation : first;
    const struct ms_content undefined = {.kind = MS_UNDEFINED}, fill = {.kind = MS_FILL};
    fake_set(allocation, HALF, BYTES, &undefined);
    fake_set(low, 0, HALF, &content);
    content.source_offset = 0;
    fake_set(high, 0, HALF, &content);
    fake_set(stays, 0, HALF, &fill);
    low->notes.was_resident = true;
    high->notes.was_resident = true;
    const struct ms_content remote = {.kind = MS_FILL, .locality = MS_REMOTE};
    fake_set(allocation, HALF, HALF + FAKE_GRANULE, &remote);
    CHECK(ms_prefetch_residents());
    CHECK_EQ(ms_allocation_backing(stays)->backed_bytes, 0);
    CHECK_EQ(fake_memory_at(allocation->address + HALF), 0);
    CHECK(fake.work_count > 1);
    CHECK(fake.work[0].address == high->address);
    CHECK(fake.work[fake.work_count - 1].address < low->address + HALF &&
          fake.work[fake.work_count - 1].address >= low->address);
    CHECK_BYTES((void *)(uintptr_t)low->address, file.data + HALF, HALF);
    CHECK_BYTES((void *)(uintptr_t)high->address, file.data, HALF);
    CHECK(low->notes.was_resident &&
          high->notes.was_resident); /* who asked knows what is missing */
    fake_set(allocation, HALF, HALF + FAKE_GRANULE, &undefined);
    fake_allocation_free(first);
    fake_allocation_free(stays);
}

MS_TEST_BETWEEN(start_without_plan, end_without_plan, residents_that_cannot_be_read_are_told)
{
    allocation->notes.was_resident = true;
    CHECK_EQ(truncate(file.path, 100), 0);
    CHECK(!ms_prefetch_residents());
    CHECK_EQ(ms_allocation_lineage(allocation)->cached_bytes, 0);
}

/* A batch ends with the part that brings it to a GiB. */
static void check_batches(size_t left_out, size_t batches)
{
    enum { ALL = 3, PIECE = 4 << 20 };
    static const size_t bytes = (size_t)512 << 20;
    struct ms_allocation *all[ALL];
    const uint64_t before = ms_counter_get(MS_COUNT_MATERIALISED_BYTES);
    fake_start();
    fake.total_bytes = (size_t)4 << 30;
    make_test_file(&file, "/tmp", PIECE);
    transfers.count = 0;
    transfers.is_pretended = true;
    for (int i = 0; i < ALL; i++) {
        all[i] = fake_allocation(bytes);
        for (size_t at = 0; at < bytes; at += PIECE)
            fake_set(all[i], at, at + PIECE - (at > 0 ? 0 : left_out),
                     &(struct ms_content){.kind = MS_SOURCE, .source = file.source});
        all[i]->notes.was_resident = true;
    }
    CHECK(ms_prefetch_residents());
    transfers.is_pretended = false;
    CHECK_EQ(transfers.count, batches);
    CHECK_EQ(transfers.runs[0], (batches == 1 ? ALL : ALL - 1) * bytes / PIECE);
    CHECK_EQ(ms_counter_get(MS_COUNT_MATERIALISED_BYTES) - before, ALL * (bytes - left_out));
    for (int i = 0; i < ALL; i++) {
        CHECK_EQ(ms_allocation_lineage(all[i])->cached_bytes, bytes - left_out);
        fake_allocation_free(all[i]);
    }
    fake_check_empty();
    ms_source_drop(file.source);
}

STORY_ALONE(so_many_bytes_are_read_at_once, check_batches(0, 2), check_batches(1, 1))

static CUresult load_nothing(CUlibrary *library, const void *code, CUjit_option *jit_options,
                             void **jit_values, unsigned jit_count, CUlibraryOption *options,
                             void **values, unsigned count)
{
    (void)library, (void)code, (void)jit_options, (void)jit_values, (void)jit_count;
    (void)options, (void)values, (void)count;
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
}

/* Compares the first granule and the third, whose last byte should be another one. */
MS_TEST_BETWEEN(start_without_plan, end_without_plan, a_prefetch_compares_its_bytes_in_verify_mode)
{
    static const struct ms_content undefined = {.kind = MS_UNDEFINED};
    const struct ms_content content = {.kind = MS_SOURCE,
                                       .source = file.source,
                                       .is_shadowed = true};
    ms_config.mode = MS_VERIFY;
    ms_config.verify_percent = 100;
    ms_driver.library_load_data = load_nothing; /* no kernel compares */
    fake_set(allocation, 0, BYTES, &undefined);
    for (size_t at = 0; at < 3 * FAKE_GRANULE; at += 2 * FAKE_GRANULE) {
        struct ms_extent written = {at, at + FAKE_GRANULE, {.kind = MS_FILL}};
        ms_shadow_write(allocation, &written, file.data, FAKE_STREAM);
        CHECK(written.content.is_shadowed);
        fake_set(allocation, at, at + FAKE_GRANULE, &content);
    }
    *((unsigned char *)(uintptr_t)ms_shadow_address(allocation, 3 * FAKE_GRANULE) - 1) ^= 1;
    allocation->notes.was_resident = true;
    CHECK(ms_prefetch_residents());
    CHECK_EQ(ms_counter_get(MS_COUNT_VERIFY_RANGES), 2);
    CHECK_EQ(ms_counter_get(MS_COUNT_VERIFY_BYTES), 2 * FAKE_GRANULE);
    CHECK_EQ(ms_counter_get(MS_COUNT_VERIFY_DIFFER), 1);
    CHECK_EQ(ms_counter_get(MS_COUNT_MATERIALISED_BYTES), 2 * FAKE_GRANULE);
}

/* For each piece of it: what cannot be listed stays deferred, and comes later. */
MS_TEST_BETWEEN(start_without_plan, end_without_plan, a_prefetch_without_host_memory_loses_nothing)
{
    const struct ms_content fill = {.kind = MS_FILL, .pattern = 0x07070707},
                            of_file = {.kind = MS_SOURCE, .source = file.source};
    allocation->notes.was_resident = true;
    int refused = 0, before = 0;
    bool has_all = false;
    for (int pieces = -1; !has_all || !fails_once; pieces++) {
        if (has_all) { /* then once more, with one that fails and none behind it */
            fails_once = true;
            pieces = 0;
        }
        fake_set(allocation, 0, BYTES, &of_file);
        fake_set(allocation, FAKE_GRANULE, 2 * FAKE_GRANULE, &fill);
        transfers.count = 0;
        may_make = pieces >= 0 ? pieces : 1000000; /* the first time makes what is kept */
        const bool is_good = ms_prefetch_residents();
        has_all = pieces >= 0 && may_make >= 0;
        may_make = 1000000;
        refused += !is_good && !fails_once;
        CHECK(is_good ? ms_allocation_lineage(allocation)->cached_bytes == BYTES : !has_all);
        CHECK(ms_prefetch_residents());
        CHECK_BYTES((void *)(uintptr_t)allocation->address, file.data, FAKE_GRANULE);
        CHECK_EQ(*(const char *)(uintptr_t)(allocation->address + 2 * FAKE_GRANULE - 1), 7);
        CHECK_BYTES((void *)(uintptr_t)(allocation->address + 2 * FAKE_GRANULE),
                    file.data + 2 * FAKE_GRANULE, BYTES - 2 * FAKE_GRANULE);
        CHECK(pieces < 0 || live == before);
        before = live;
    }
    CHECK(refused > 2);
}

/* --- a plan that comes when all was read, and could be read again */

static void read_all(void)
{
    CHECK(ms_space_claim(allocation->address) == allocation);
    for (size_t at = 0; at < BYTES; at += 2 * FAKE_GRANULE) /* chunks of two granules */
        CHECK_EQ(ms_materialise(allocation, at, at + 2 * FAKE_GRANULE, MS_NEED_READ), CUDA_SUCCESS);
    ms_space_release(allocation);
}

static void start_cached(void)
{
    start_without_plan();
    read_all();
    CHECK_EQ(ms_allocation_lineage(allocation)->cached_bytes, BYTES);
    open_log(MS_INFO);
}

static void give_plan(unsigned rank)
{
    use_plan(rank, BYTES);
    name_tensor(allocation->address, BYTES, "w");
}

static enum ms_locality locality(size_t offset)
{
    return ms_lineage_at(ms_allocation_lineage(allocation), offset).content.locality;
}

MS_TEST_BETWEEN(start_cached, end_without_plan, a_plan_frees_cached_bytes_other_ranks_keep)
{
    give_plan(1);
    ms_prefetch_arrive(true, true);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, HALF);
    CHECK_EQ(ms_allocation_lineage(allocation)->cached_bytes, HALF);
    CHECK_EQ(fake_memory_at(allocation->address), 0);
    CHECK_BYTES((void *)(uintptr_t)(allocation->address + HALF), file.data + HALF, HALF);
    CHECK_EQ(ms_counter_get(MS_COUNT_PLAN_FREED_BYTES), HALF);
    CHECK_EQ(count_log_lines("262144 bytes of memory were given back, 0 stay"), 1);
    CHECK_EQ(ms_counter_get(MS_COUNT_PREFETCHES), 1);
    CHECK_EQ(ms_counter_get(MS_COUNT_H2D_BYTES), BYTES); /* nothing was read again */
}

/* The rank's own part of the chunk is read again: a granule for each rank. */
MS_TEST(a_chunk_goes_as_a_whole)
{
    for (size_t rank = 0; rank < 3; rank++) {
        char text[512];
        start_cached();
        snprintf(
            text, sizeof(text),
            "{\"format\": \"metashard-plan/1\", \"mesh\": {\"r\": 8}, \"rank\": %zu, \"tensors\": ["
            "{\"name\": \"w\", \"dtype\": \"U8\", \"shape\": [%d], \"placements\": "
            "[{\"shard\": 0}]}]}",
            rank, BYTES);
        use_plan_text(text);
        name_tensor(allocation->address, BYTES, "w");
        const uint64_t freed = ms_counter_get(MS_COUNT_PLAN_FREED_BYTES),
                       read = ms_counter_get(MS_COUNT_H2D_BYTES);
        ms_prefetch_arrive(rank == 0, true);
        CHECK_EQ(ms_counter_get(MS_COUNT_PLAN_FREED_BYTES) - freed, BYTES);
        CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, FAKE_GRANULE);
        CHECK_EQ(ms_counter_get(MS_COUNT_H2D_BYTES) - read, FAKE_GRANULE);
        CHECK_BYTES((void *)(uintptr_t)(allocation->address + rank * FAKE_GRANULE),
                    file.data + rank * FAKE_GRANULE, FAKE_GRANULE);
        end_without_plan();
    }
}

/* For each piece of it: what cannot be listed stays in memory as it was, or is as the plan says. */
MS_TEST_BETWEEN(start_cached, end_without_plan, a_plan_that_comes_without_host_memory_loses_nothing)
{
    const struct ms_content of_file = {.kind = MS_SOURCE, .source = file.source};
    bool has_all = false;
    give_plan(1);
    for (int pieces = 0; !has_all; pieces++) {
        may_make = pieces;
        ms_prefetch_arrive(false, true);
        has_all = may_make >= 0;
        may_make = 1000000;
        CHECK(ms_prefetch_run("a test"));
        CHECK(ms_lineage_at(ms_allocation_lineage(allocation), HALF).content.cached);
        CHECK_BYTES((void *)(uintptr_t)(allocation->address + HALF), file.data + HALF, HALF);
        if (ms_lineage_at(ms_allocation_lineage(allocation), 0).content.cached)
            CHECK_BYTES((void *)(uintptr_t)allocation->address, file.data, HALF);
        fake_check_allocation(allocation);
        fake_set(allocation, 0, BYTES, &of_file);
        read_all();
    }
}

/* The last granule is none of this rank's, and only a part of it is the allocation's. */
MS_TEST_BETWEEN(start_without_plan, end_without_plan, the_last_part_of_a_granule_goes_as_well)
{
    enum { ROW = FAKE_GRANULE / 2, ROWS = 3 };
    struct ms_allocation *odd = fake_allocation(ROWS * ROW);
    struct ms_fault fault;
    struct ms_tensor tensor = {.name = "w", .dtype = MS_DTYPE_U8, .dims = 2, .shape = {ROWS, ROW}};
    char text[512];
    fake_set(odd, 0, ROWS * ROW, &(struct ms_content){.kind = MS_SOURCE, .source = file.source});
    CHECK(ms_space_claim(odd->address) == odd);
    CHECK_EQ(ms_materialise(odd, 0, ROWS * ROW, MS_NEED_READ), CUDA_SUCCESS);
    ms_space_release(odd);
    snprintf(text, sizeof(text),
             "{\"format\": \"metashard-plan/1\", \"mesh\": {\"r\": 2}, \"rank\": 0, \"tensors\": ["
             "{\"name\": \"w\", \"dtype\": \"U8\", \"shape\": [%d, %d], \"placements\": "
             "[{\"shard\": 0}]}]}",
             ROWS, ROW);
    use_plan_text(text);
    CHECK(ms_tensor_measure(&tensor) == NULL);
    CHECK(ms_shard_name(odd->address, ROWS * ROW, "w", &tensor, &fault));
    ms_prefetch_arrive(true, true);
    CHECK_EQ(ms_counter_get(MS_COUNT_PLAN_FREED_BYTES), 2 * FAKE_GRANULE);
    CHECK_EQ(ms_allocation_backing(odd)->backed_bytes, FAKE_GRANULE);
    CHECK_BYTES((void *)(uintptr_t)odd->address, file.data, FAKE_GRANULE);
    fake_allocation_free(odd);
}

/* Each rank keeps a half of each granule: none can go. */
MS_TEST_BETWEEN(start_cached, end_without_plan, granules_of_which_a_part_is_needed_stay)
{
    enum { MISSING = FAKE_GRANULE / 2 + 100 }; /* which stands in the first of them */
    static const struct ms_content fill = {.kind = MS_FILL, .pattern = 0x07070707};
    char text[512];
    snprintf(text, sizeof(text),
             "{\"format\": \"metashard-plan/1\", \"mesh\": {\"r\": 2}, \"rank\": 1, \"tensors\": ["
             "{\"name\": \"w\", \"dtype\": \"U8\", \"shape\": [%d, %d], \"placements\": "
             "[{\"shard\": 1}]}]}",
             GRANULES, FAKE_GRANULE);
    use_plan_text(text);
    fake_set(allocation, MISSING, MISSING + 16, &fill);
    struct ms_fault fault;
    struct ms_tensor tensor = {
        .name = "w", .dtype = MS_DTYPE_U8, .dims = 2, .shape = {GRANULES, FAKE_GRANULE}};
    CHECK(ms_tensor_measure(&tensor) == NULL);
    CHECK(ms_shard_name(allocation->address, BYTES, "w", &tensor, &fault));
    ms_prefetch_arrive(true, true);
    CHECK_EQ(ms_counter_get(MS_COUNT_PLAN_FREED_BYTES), 0);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, BYTES);
    CHECK_EQ(ms_allocation_lineage(allocation)->cached_bytes,
             BYTES); /* it is in memory as before */
    CHECK_EQ(*(const char *)(uintptr_t)(allocation->address + MISSING), 7); /* it came */
    CHECK_EQ(ms_counter_get(MS_COUNT_H2D_BYTES), BYTES);
    CHECK_EQ(count_log_lines("given back"), 0); /* nothing goes, and nothing was written */
}

MS_TEST_BETWEEN(start_cached, end_without_plan, a_plan_keeps_bytes_that_may_have_been_written)
{
    fake_set(allocation, 0, 10, &(struct ms_content){.kind = MS_RESIDENT});
    give_plan(1);
    ms_prefetch_arrive(true, true);
    CHECK_EQ(ms_counter_get(MS_COUNT_PLAN_FREED_BYTES), HALF - 2 * FAKE_GRANULE);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, HALF + 2 * FAKE_GRANULE);
    CHECK_EQ(count_log_lines("131072 bytes of memory were given back, 393216 stay"), 1);
    CHECK_EQ(count_log_lines("METASHARD_PLAN_MODE=enforce"), 1);
    CHECK_EQ(ms_lineage_at(ms_allocation_lineage(allocation), 0).content.kind, MS_RESIDENT);
    CHECK(ms_lineage_at(ms_allocation_lineage(allocation), 10).content.cached);
}

MS_TEST_BETWEEN(start_cached, end_without_plan, a_plan_keeps_bytes_that_cannot_be_read_again)
{
    give_plan(1);
    CHECK_EQ(truncate(file.path, 100), 0);
    ms_prefetch_arrive(true, true);
    CHECK_EQ(ms_counter_get(MS_COUNT_PLAN_FREED_BYTES), 0);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, BYTES);
    CHECK_BYTES((void *)(uintptr_t)allocation->address, file.data, BYTES);
}

MS_TEST_BETWEEN(start_cached, end_without_plan, a_plan_may_only_be_learnt)
{
    fake_set(allocation, 0, BYTES, &(struct ms_content){.kind = MS_SOURCE, .source = file.source});
    give_plan(1);
    ms_prefetch_arrive(true, false);
    CHECK(locality(0) == MS_REMOTE && locality(HALF) == MS_LOCAL);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, BYTES);
    CHECK_EQ(ms_counter_get(MS_COUNT_PREFETCHES), 0);
    CHECK_EQ(ms_counter_get(MS_COUNT_H2D_BYTES), BYTES);
}

STORY_BETWEEN(start_without_plan, end_without_plan, a_later_plan_is_asked_anew, give_plan(1),
              ms_prefetch_arrive(true, false),
              IS(locality(0) == MS_REMOTE && locality(HALF) == MS_LOCAL), use_plan(0, BYTES),
              ms_prefetch_arrive(false, false),
              IS(locality(0) == MS_LOCAL && locality(HALF) == MS_REMOTE),
              ms_prefetch_prepare(false),
              IS(locality(0) == MS_UNKNOWN && locality(HALF) == MS_UNKNOWN),
              ms_prefetch_prepare(false), IS(ms_prefetch_run("a test")),
              EQUALS(ms_allocation_backing(allocation)->backed_bytes, HALF),
              IS(fake_memory_at(allocation->address) > 0))

STORY_BETWEEN(
    start, end, a_plan_compares_nothing_in_a_program_not_held_up, open_log(MS_WARN),
    atomic_store(&ms_hot.captures, 1), ms_prefetch_arrive(true, true),
    atomic_store(&ms_hot.captures, 0), check_all_is_resident(),
    EQUALS(count_log_lines("bytes in memory are not compared with their files: a stream of the "
                           "program is being captured"),
           1),
    EQUALS(count_log_lines("0 bytes of memory were given back, 524288 stay"), 1),
    EQUALS(count_log_lines("METASHARD_PLAN_MODE"), 0))

/* Who asks for it back has to have room for all of it. */
STORY_BETWEEN(start_without_plan, end_without_plan, a_plan_leaves_suspended_bytes_suspended,
              ms_config.plan_mode = MS_ENFORCE, allocation->notes.was_resident = true, give_plan(1),
              ms_prefetch_arrive(true, true), IS(allocation->notes.was_resident),
              EQUALS(ms_allocation_lineage(allocation)->resident_bytes, 0),
              EQUALS(ms_allocation_backing(allocation)->backed_bytes, HALF))

/* Nor is it where nothing is fetched: nobody waits. */
STORY_BETWEEN(start, end, a_plan_that_only_arrives_compares_nothing, open_log(MS_WARN),
              ms_prefetch_arrive(true, false), check_all_is_resident(),
              EQUALS(count_log_lines(""), 0), EQUALS(fake.calls[FAKE_memcpy_dtoh_async], 0),
              EQUALS(held_up, 0))

/* In the mode that does not enforce it, too. */
STORY_BETWEEN(start, end, a_plan_that_is_not_enforced_compares_nothing,
              ms_config.plan_mode = MS_ADVISE, ms_prefetch_arrive(true, true),
              check_all_is_resident(), EQUALS(fake.calls[FAKE_memcpy_dtoh_async], 0))
