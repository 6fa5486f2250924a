/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/publish.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/files/host_snapshot.h"
#include "runtime/files/source.h"
#include "runtime/fill/materialise.h"
#include "runtime/finding/find.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/state/caller.h"
#include "runtime/state/counters.h"
#include "runtime/state/device.h"
#include "runtime/state/why.h"
#include "tests/state/page_folder.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/snapshot_of.h"

enum { GRANULES = 8, BYTES = GRANULES * FAKE_GRANULE };

static const struct ms_content fill = {.kind = MS_FILL};
static const struct ms_content cached = {.kind = MS_FILL, .cached = true};
static const struct ms_content resident = {.kind = MS_RESIDENT};
static const struct ms_content absent = {.kind = MS_ABSENT, .locality = MS_REMOTE};
static struct ms_allocation *allocation;

static void start(bool with_page)
{
    fake_start();
    if (with_page) {
        page_folder_make();
        page_start(1 << 20);
    }
    allocation = fake_allocation(BYTES);
}

static void start_with_page(void)
{
    start(true);
}

static void end(void)
{
    fake_allocation_free(allocation);
    fake_check_empty();
}

static void set(size_t first, size_t behind, const struct ms_content *content)
{
    fake_set(allocation, first * FAKE_GRANULE, behind * FAKE_GRANULE, content);
}

/* As a caching allocator hands out granules [first, behind). */
static void take_block(size_t first, size_t behind)
{
    CHECK(ms_space_claim(allocation->address) == allocation);
    struct ms_lineage *lineage = &MS_OWN(allocation)->lineage;
    const struct ms_range all = {0, BYTES}, block = {first * FAKE_GRANULE, behind * FAKE_GRANULE};
    if (!ms_carve_has_begun(allocation))
        CHECK(ms_lineage_change(lineage, &all, 1, ms_carve_make_dead));
    CHECK(ms_carve_add_block(allocation, block.begin, block.end));
    CHECK(ms_lineage_change(lineage, &block, 1, ms_carve_make_undefined));
    ms_space_release(allocation);
}

/* When a record was written last. */
static uint64_t written(size_t block)
{
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK(block < snapshot.block_count);
    const uint64_t changed_ns = snapshot.blocks[block].changed_ns;
    ms_snapshot_cleanup(&snapshot);
    return changed_ns;
}

static size_t count_records(void)
{
    struct ms_snapshot snapshot = page_read(getpid());
    const size_t count = snapshot.block_count;
    ms_snapshot_cleanup(&snapshot);
    return count;
}

/* The last event; its kind is MS_EVENT_NONE where there is none. */
static struct ms_state_event last_event(void)
{
    struct ms_snapshot snapshot = page_read(getpid());
    struct ms_state_event event = {0};
    if (snapshot.event_count > 0)
        event = snapshot.events[snapshot.event_count - 1];
    ms_snapshot_cleanup(&snapshot);
    return event;
}

/* --- records */

MS_TEST(an_allocation_is_not_noted_without_a_page)
{
    start(false);
    set(0, 1, &fill);
    CHECK(!MS_OWN(allocation)->published.place.is_counted);
    CHECK_EQ(ms_counter_get(MS_GAUGE_LIVE), 0);
    CHECK_EQ(ms_allocation_lineage(allocation)->changed_end,
             BYTES); /* for a page that comes later */
    ms_publish_freed(allocation);
    CHECK_EQ(ms_state_now(), 0);
    end();
}

MS_TEST_BETWEEN(start_with_page, end, a_record_has_the_bytes_of_each_kind)
{
    static unsigned char bytes[FAKE_GRANULE];
    ms_host_snapshot_set_limit(BYTES);
    const struct ms_content snapshot_content = {.kind = MS_SOURCE,
                                                .source = snapshot_of(bytes, sizeof(bytes))};
    set(0, 1, &fill);
    set(1, 2, &snapshot_content);
    set(2, 3, &cached);
    set(3, 5, &resident);
    set(5, 6, &absent);
    ms_source_drop(snapshot_content.source);
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK_EQ(snapshot.block_count, 1);
    const struct ms_state_block *block = &snapshot.blocks[0];
    CHECK(block->id == allocation->id && block->address == allocation->address);
    CHECK_EQ(block->bytes, BYTES);
    CHECK_EQ(block->kind_bytes[MS_BYTES_FILL], 2 * FAKE_GRANULE);
    CHECK_EQ(block->kind_bytes[MS_BYTES_SNAPSHOT], FAKE_GRANULE);
    CHECK_EQ(block->kind_bytes[MS_BYTES_FILE], 0);
    CHECK_EQ(block->kind_bytes[MS_BYTES_RESIDENT], 2 * FAKE_GRANULE);
    CHECK_EQ(block->kind_bytes[MS_BYTES_ABSENT], FAKE_GRANULE);
    CHECK_EQ(block->kind_bytes[MS_BYTES_UNDEFINED], 2 * FAKE_GRANULE);
    CHECK_EQ(block->backed_bytes, 3 * FAKE_GRANULE);
    CHECK_EQ(block->cached_bytes, FAKE_GRANULE);
    CHECK_EQ(block->remote_bytes, FAKE_GRANULE);
    CHECK_EQ(block->deferred_bytes, 5 * FAKE_GRANULE);
    CHECK_EQ(block->flags, 0);
    CHECK_EQ(ms_snapshot_figure(&snapshot, "deferred_bytes"), 5 * FAKE_GRANULE);
    CHECK_EQ(ms_snapshot_figure(&snapshot, "live_bytes"), BYTES);
    ms_snapshot_cleanup(&snapshot);

    ms_publish_freed(allocation);
    snapshot = page_read(getpid());
    CHECK_EQ(snapshot.block_count, 0);
    CHECK_EQ(ms_snapshot_figure(&snapshot, "deferred_bytes"), 0);
    CHECK_EQ(ms_snapshot_figure(&snapshot, "live_bytes"), 0);
    ms_snapshot_cleanup(&snapshot);
    CHECK(ms_space_claim(allocation->address) == allocation);
    ms_space_remove(allocation);
    CHECK(ms_space_add(allocation));
}

MS_TEST_BETWEEN(start_with_page, end, a_record_is_written_again_for_changes_alone)
{
    set(0, 1, &fill);
    const uint64_t before = written(0);
    ms_space_release(ms_space_claim(allocation->address));
    CHECK_EQ(written(0), before);
    set(1, 2, &fill);
    const uint64_t after = written(0);
    CHECK(after > before);
    CHECK(ms_space_claim(allocation->address) == allocation);
    CHECK_EQ(ms_backing_cover(ms_allocation_memory(allocation), 0, 1), CUDA_SUCCESS);
    ms_space_release(allocation); /* memory alone */
    CHECK(written(0) > after);
}

MS_TEST_BETWEEN(start_with_page, end, parts_have_records_of_their_own)
{
    take_block(1, 3);
    take_block(5, 6);
    set(1, 2, &fill);
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK_EQ(snapshot.block_count, 3);
    CHECK_EQ(snapshot.blocks[0].flags, MS_BLOCK_CARVED);
    CHECK_EQ(snapshot.blocks[0].kind_bytes[MS_BYTES_DEAD], 5 * FAKE_GRANULE);
    const struct ms_state_block *part = &snapshot.blocks[1];
    CHECK_EQ(part->flags, MS_BLOCK_PART);
    CHECK_EQ(part->address, allocation->address + FAKE_GRANULE);
    CHECK_EQ(part->bytes, 2 * FAKE_GRANULE);
    CHECK_EQ(part->kind_bytes[MS_BYTES_FILL], FAKE_GRANULE);
    CHECK_EQ(part->kind_bytes[MS_BYTES_UNDEFINED], FAKE_GRANULE);
    CHECK_EQ(part->deferred_bytes, 2 * FAKE_GRANULE);
    CHECK_EQ(snapshot.blocks[2].bytes, FAKE_GRANULE);
    ms_snapshot_cleanup(&snapshot);
    ms_publish_freed(allocation);
    snapshot = page_read(getpid());
    CHECK_EQ(snapshot.block_count, 0);
    ms_snapshot_cleanup(&snapshot);
}

MS_TEST_BETWEEN(start_with_page, end, a_part_has_the_bytes_of_each_kind)
{
    static unsigned char bytes[FAKE_GRANULE];
    struct ms_content remote = fill;
    remote.locality = MS_REMOTE;
    ms_host_snapshot_set_limit(BYTES);
    const struct ms_content snapshot_content = {.kind = MS_SOURCE,
                                                .source = snapshot_of(bytes, sizeof(bytes))};
    take_block(0, 7);
    set(0, 1, &fill);
    set(1, 2, &snapshot_content);
    set(2, 3, &cached);
    set(3, 5, &resident);
    set(5, 6, &absent);
    set(6, 7, &remote);
    ms_source_drop(snapshot_content.source);
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK_EQ(snapshot.block_count, 2);
    const struct ms_state_block *part = &snapshot.blocks[1];
    CHECK(part->id == allocation->id && part->address == allocation->address);
    CHECK_EQ(part->kind_bytes[MS_BYTES_FILL], 3 * FAKE_GRANULE);
    CHECK_EQ(part->kind_bytes[MS_BYTES_SNAPSHOT], FAKE_GRANULE);
    CHECK_EQ(part->kind_bytes[MS_BYTES_FILE], 0);
    CHECK_EQ(part->kind_bytes[MS_BYTES_RESIDENT], 2 * FAKE_GRANULE);
    CHECK_EQ(part->kind_bytes[MS_BYTES_ABSENT], FAKE_GRANULE);
    CHECK_EQ(part->cached_bytes, FAKE_GRANULE);
    CHECK_EQ(part->remote_bytes, 2 * FAKE_GRANULE);
    CHECK_EQ(part->deferred_bytes, 4 * FAKE_GRANULE);
    CHECK_EQ(part->file, 0);
    ms_snapshot_cleanup(&snapshot);
}

/* A loop that trains takes and returns blocks all the time. */
MS_TEST_BETWEEN(start_with_page, end, parts_are_not_told_while_nothing_is_deferred)
{
    take_block(0, 2);
    set(0, 4, &resident);
    take_block(2, 4);
    set(2, 4, &resident);
    CHECK_EQ(count_records(), 2);
    set(0, 1, &fill); /* then all that has changed since is told */
    CHECK_EQ(count_records(), 3);
}

/* The file is that of the first bytes, or else of the first changed bytes, not of those before. */
MS_TEST_BETWEEN(start_with_page, end, a_record_has_the_file_of_what_has_changed)
{
    char path[] = "/tmp/publish-XXXXXX";
    int file = mkstemp(path);
    CHECK(file >= 0);
    CHECK_EQ(ftruncate(file, BYTES), 0);
    close(file);
    file = open(path, O_RDONLY);
    void *mapped = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, file, 0);
    CHECK(mapped != MAP_FAILED);
    struct ms_content content = {.kind = MS_SOURCE};
    content.source = ms_file_source(ms_find_file(mapped, BYTES, &content.source_offset));
    CHECK(content.source != NULL);
    CHECK(ms_space_claim(allocation->address) == allocation);
    MS_OWN(allocation)->lineage.changed_begin = MS_OWN(allocation)->lineage.changed_end = 0;
    ms_space_release(allocation);
    set(2, 3, &content);
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK(snapshot.blocks[0].file != 0);
    ms_snapshot_cleanup(&snapshot);
    ms_source_drop(content.source);
    CHECK_EQ(munmap(mapped, BYTES), 0);
    close(file);
    unlink(path);
}

static bool name_it(const struct ms_allocation *named, size_t begin, size_t behind, char *name_out,
                    size_t bytes)
{
    CHECK(named == allocation);
    snprintf(name_out, bytes, "tensor %zu to %zu", begin / FAKE_GRANULE, behind / FAKE_GRANULE);
    return true;
}

MS_TEST_BETWEEN(start_with_page, end, a_record_has_the_name_of_its_tensor)
{
    ms_publish_set_namer(name_it);
    CHECK(ms_space_claim(allocation->address) == allocation);
    MS_OWN(allocation)->lineage.changed_begin = MS_OWN(allocation)->lineage.changed_end = 0;
    ms_space_release(allocation);
    set(2, 3, &fill);
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK(strcmp(snapshot.blocks[0].name, "tensor 2 to 3") == 0);
    ms_snapshot_cleanup(&snapshot);
}

/* --- events */

static CUresult materialise(size_t first, size_t behind)
{
    MS_CLAIMED struct ms_allocation *claimed = ms_space_claim(allocation->address);
    return ms_materialise(claimed, first * FAKE_GRANULE, behind * FAKE_GRANULE, MS_NEED_READ);
}

MS_TEST_BETWEEN(start_with_page, end, a_materialisation_is_told_when_it_succeeds)
{
    set(0, 4, &fill);
    CHECK(ms_state_now() > 0);
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(materialise(1, 3), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(last_event().kind, MS_EVENT_NONE);
    CHECK_EQ(materialise(1, 3), CUDA_SUCCESS);
    const struct ms_state_event event = last_event();
    CHECK_EQ(event.kind, MS_EVENT_MATERIALISE);
    CHECK_EQ(event.block, allocation->id);
    CHECK_EQ(event.address, allocation->address + FAKE_GRANULE);
    CHECK_EQ(event.bytes, 2 * FAKE_GRANULE);
}

MS_TEST_BETWEEN(start_with_page, end,
                the_outer_reason_counts_and_is_a_fallback_when_something_was_materialised)
{
    set(0, 8, &fill);
    struct ms_why outer = ms_why_begin(MS_REASON_SEALED);
    CHECK_EQ(ms_caller_reason, MS_REASON_SEALED);
    ms_why_end(&outer);
    CHECK_EQ(ms_counter_get(MS_COUNT_FALLBACKS), 0); /* nothing was */

    outer = ms_why_begin(MS_REASON_SEALED);
    const struct ms_why inner = ms_why_begin(MS_REASON_EXPORT);
    materialise(0, 2);
    CHECK_EQ(last_event().reason, MS_REASON_SEALED);
    ms_why_end(&inner);
    CHECK_EQ(ms_caller_reason, MS_REASON_SEALED);
    CHECK_EQ(ms_counter_get(MS_COUNT_FALLBACKS), 0);
    ms_why_end(&outer);
    CHECK_EQ(ms_caller_reason, MS_REASON_CALL);
    CHECK_EQ(ms_counter_get(MS_COUNT_FALLBACKS), 1);
    const struct ms_state_event event = last_event();
    CHECK_EQ(event.kind, MS_EVENT_FALLBACK);
    CHECK_EQ(event.reason, MS_REASON_SEALED);
    CHECK_EQ(event.bytes, 2 * FAKE_GRANULE);

    const struct ms_why settling = ms_why_begin(MS_REASON_SETTLE);
    materialise(4, 5);
    ms_why_end(&settling);
    CHECK_EQ(ms_counter_get(MS_COUNT_FALLBACKS), 1); /* that is none */
}

/* The fallbacks are one thread's. */
MS_TEST_BETWEEN(start_with_page, end, each_fallback_has_its_own_bytes)
{
    set(0, 8, &fill);
    for (size_t i = 1; i <= 3; i++) {
        const struct ms_why why = ms_why_begin(MS_REASON_SEALED);
        materialise(2 * i - 2, 3 * i - 2);
        ms_why_end(&why);
        const struct ms_state_event event = last_event();
        CHECK(event.kind == MS_EVENT_FALLBACK && event.reason == MS_REASON_SEALED);
        CHECK_EQ(event.bytes, i * FAKE_GRANULE);
    }
}

MS_TEST_BETWEEN(start_with_page, end, other_events_are_counted_and_told)
{
    ms_publish_event(MS_EVENT_EVICT, allocation, FAKE_GRANULE, 5, "a text");
    struct ms_state_event event = last_event();
    CHECK(event.kind == MS_EVENT_EVICT && event.bytes == 5);
    CHECK_EQ(event.address, allocation->address + FAKE_GRANULE);
    CHECK(strcmp(event.text, "a text") == 0);
    ms_publish_remote_read(allocation, 0, 7, "w");
    event = last_event();
    CHECK(event.kind == MS_EVENT_REMOTE_READ && event.reason == MS_REASON_REMOTE_READ &&
          event.bytes == 7);
    CHECK_EQ(ms_counter_get(MS_COUNT_REMOTE_READS), 1);
    CHECK_EQ(ms_counter_get(MS_COUNT_REMOTE_READ_BYTES), 7);
    ms_why_fall_back(MS_REASON_BUSY_STREAM, 3);
    event = last_event();
    CHECK(event.kind == MS_EVENT_FALLBACK && event.reason == MS_REASON_BUSY_STREAM);
    CHECK_EQ(ms_counter_get(MS_COUNT_FALLBACKS), 1);
    ms_publish_filled(9, ms_state_now());
    event = last_event();
    CHECK(event.kind == MS_EVENT_MATERIALISE && event.bytes == 9);
}

MS_TEST_BETWEEN(start_with_page, end, a_device_is_asked_for_its_name_and_memory_once)
{
    ms_device_publish(1);
    ms_device_publish(1);
    CHECK_EQ(fake.calls[FAKE_device_get_name], 1);
    CHECK_EQ(fake.calls[FAKE_device_total_mem], 1);
    CHECK_EQ(ms_counter_get(MS_COUNT_DEVICE_BYTES), fake.total_bytes);
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK_EQ(snapshot.device_count, 2);
    CHECK(strcmp(snapshot.devices[1].name, "fake device 1") == 0);
    ms_snapshot_cleanup(&snapshot);
}

MS_TEST_BETWEEN(start_with_page, end, a_page_leaves_out_what_a_device_does_not_tell)
{
    fake_fail(FAKE_device_total_mem, 1, CUDA_ERROR_INVALID_DEVICE);
    ms_device_publish(0);
    CHECK_EQ(ms_counter_get(MS_COUNT_DEVICE_BYTES), 0);
    fake_fail(FAKE_device_get_name, 1, CUDA_ERROR_INVALID_DEVICE);
    ms_device_publish(2);
    CHECK_EQ(ms_counter_get(MS_COUNT_DEVICE_BYTES), fake.total_bytes);
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK_EQ(snapshot.device_count, 1);
    CHECK(strcmp(snapshot.devices[0].name, "fake device 0") == 0);
    ms_snapshot_cleanup(&snapshot);
}
