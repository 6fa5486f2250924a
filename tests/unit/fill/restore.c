/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/restore.h"

#include <string.h>

#include "runtime/files/file_internal.h"
#include "runtime/kernel/call.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/memory/recorded_launch.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/files/files.h"

enum { G = FAKE_GRANULE, GRANULES = 8, BYTES = GRANULES * G };

static const struct ms_content fill = {.kind = MS_FILL, .pattern = 0x07070707},
                               resident = {.kind = MS_RESIDENT}, undefined = {.kind = MS_UNDEFINED};
static struct ms_allocation *allocation;
static struct test_file file;

static void start(void)
{
    fake_start();
    allocation = fake_allocation(BYTES);
}

static void end(void)
{
    fake_check_allocation(allocation);
    fake_allocation_free(allocation);
    fake_check_empty();
}

static unsigned char *byte_at(size_t offset)
{
    return (unsigned char *)(uintptr_t)(allocation->address + offset);
}

static struct ms_extent at(size_t offset)
{
    return ms_lineage_at(ms_allocation_lineage(allocation), offset);
}

/* --- what becomes resident again */

MS_TEST_BETWEEN(start, end, a_restore_makes_written_bytes_resident_again)
{
    struct ms_allocation *other = fake_allocation(BYTES);
    fake_set(allocation, G, 2 * G, &fill);
    fake_set(allocation, 2 * G, 3 * G, &(struct ms_content){.kind = MS_FILL});
    fake_set(allocation, 6 * G, BYTES, &fill);
    fake_set(other, 0, BYTES, &fill);
    CHECK(!allocation->notes.was_resident);
    allocation->notes.was_resident = true;
    CHECK(allocation->notes.was_resident && !other->notes.was_resident);
    CHECK_EQ(ms_restore_keep(), CUDA_SUCCESS);
    CHECK(!allocation->notes.was_resident);
    CHECK_EQ(ms_allocation_lineage(allocation)->resident_bytes, 4 * G);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 4 * G);
    CHECK(byte_at(G)[0] == 7 && byte_at(2 * G)[0] == 0 && byte_at(BYTES)[-1] == 7);
    CHECK_EQ(ms_allocation_lineage(other)->resident_bytes +
                 ms_allocation_backing(other)->backed_bytes,
             0);
    fake_allocation_free(other);
}

MS_TEST_BETWEEN(start, end, an_allocation_that_cannot_be_restored_stays_as_it_is)
{
    struct ms_allocation *other = fake_allocation(G);
    struct ms_allocation *first = allocation->address < other->address ? allocation : other;
    struct ms_allocation *last = first == other ? allocation : other;
    fake_set(first, 0, G, &fill);
    fake_set(last, 0, G, &fill);
    first->notes.was_resident = true;
    last->notes.was_resident = true;
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(ms_restore_keep(), CUDA_ERROR_UNKNOWN);
    CHECK(first->notes.was_resident && !last->notes.was_resident);
    CHECK_EQ(ms_restore_keep(), CUDA_SUCCESS);
    CHECK(!first->notes.was_resident && ms_allocation_lineage(first)->resident_bytes == G);
    fake_allocation_free(other);
}

/* --- what gets its lineage back */

/* The file's bytes are resident from a granule on, and that they came from there is known. */
static void read_file(void)
{
    start();
    make_test_file(&file, "/tmp", 4 * G);
    const struct ms_content content = {
        .kind = MS_SOURCE, .cached = true, .source = file.source, .source_offset = 0};
    fake_set(allocation, G, 5 * G, &content);
    memcpy(byte_at(G), file.data, 4 * G);
    const struct ms_extent extent = at(G);
    ms_origins_note(allocation, &extent);
    fake_set(allocation, G, 5 * G, &resident);
}

static void forget_file(void)
{
    end();
    ms_source_drop(file.source);
}

/* Returns how many bytes were found. */
static size_t restore(void)
{
    struct ms_restoring restoring;
    CHECK(ms_restore_begin(&restoring, false));
    CHECK(ms_space_claim(allocation->address) == allocation);
    ms_restore(allocation, &restoring);
    ms_space_release(allocation);
    ms_restore_end(&restoring);
    CHECK_EQ(fake.pushed_contexts, 0);
    return restoring.bytes;
}

MS_TEST_BETWEEN(start, end, a_restore_without_origins_begins_nothing)
{
    struct ms_restoring restoring;
    CHECK(!ms_restore_begin(&restoring, false));
    CHECK_EQ(ms_restore_all(), 0);
}

MS_TEST_BETWEEN(read_file, forget_file, a_restore_caches_bytes_that_are_still_the_files)
{
    CHECK_EQ(restore(), 4 * G);
    CHECK(allocation->notes.was_resident);
    CHECK_EQ(ms_allocation_lineage(allocation)->cached_bytes, 4 * G);
    const struct ms_extent extent = at(2 * G + 5);
    CHECK(extent.content.kind == MS_SOURCE && extent.content.source_offset == G + 5);
    CHECK_EQ(extent.end, 5 * G);
    fake_set(allocation, G, 5 * G, &resident);
    CHECK_EQ(restore(), 4 * G); /* its origin is still known */
}

MS_TEST_BETWEEN(read_file, forget_file, a_granule_of_other_bytes_stays)
{
    byte_at(3 * G)[-1] ^= 1;
    CHECK_EQ(restore(), 3 * G);
    CHECK(at(G).content.cached && at(G).end == 2 * G);
    CHECK(at(2 * G).content.kind == MS_RESIDENT && at(2 * G).end == 3 * G);
    CHECK(at(3 * G).content.cached && at(3 * G).end == 5 * G);
}

MS_TEST_BETWEEN(read_file, forget_file, only_resident_bytes_that_can_go_are_compared)
{
    fake_set(allocation, G, 2 * G, &fill);
    fake_set(allocation, 2 * G, BYTES, &undefined);
    ms_backing_uncover(ms_allocation_memory(allocation), 0, BYTES, false);
    fake_set(allocation, 2 * G, 3 * G, &resident);
    fake_set(allocation, 3 * G, 5 * G, &resident);
    memcpy(byte_at(2 * G), file.data + G, 3 * G);
    ms_backing_chunk(&MS_OWN(allocation)->backing, 2 * G)->is_pinned = true;
    CHECK_EQ(restore(), 2 * G);
    CHECK(at(G).content.kind == MS_FILL && at(2 * G).content.kind == MS_RESIDENT);
    CHECK(at(3 * G).content.cached && at(3 * G).content.source_offset == 2 * G);
}

/* It is not looked at again. */
MS_TEST_BETWEEN(read_file, forget_file, an_origin_that_gives_other_bytes_is_forgotten)
{
    struct ms_restoring restoring;
    for (size_t offset = G; offset < 5 * G; offset += G)
        byte_at(offset)[0] ^= 1;
    CHECK_EQ(restore(), 0);
    CHECK(!allocation->notes.was_resident);
    CHECK(!ms_restore_begin(&restoring, false));
}

MS_TEST_BETWEEN(read_file, forget_file, a_failed_copy_is_no_reason_to_take_them_for_the_same)
{
    fake_fail(FAKE_memcpy_dtoh_async, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(restore(), 3 * G);
    CHECK(at(G).content.kind == MS_RESIDENT && at(G).end == 2 * G);
}

MS_TEST_BETWEEN(read_file, end, a_file_that_is_gone_restores_nothing)
{
    ms_source_drop(file.source); /* nobody has it open */
    unlink(file.path);
    CHECK_EQ(restore(), 0);
    CHECK_EQ(ms_allocation_lineage(allocation)->resident_bytes, 4 * G);
}

MS_TEST_BETWEEN(read_file, forget_file, a_restore_of_all_spares_bytes_a_graph_may_use)
{
    allocation->notes.keeps_dead = true;
    CHECK_EQ(ms_restore_all(), 0);
    allocation->notes.keeps_dead = false;
    CHECK_EQ(ms_restore_all(), 4 * G);
    CHECK_EQ(ms_allocation_lineage(allocation)->cached_bytes, 4 * G);
}

/* --- which origins are looked at, and how often */

static void note(const struct ms_source *source, size_t begin, size_t end_, uint64_t offset)
{
    const struct ms_extent extent = {.begin = begin,
                                     .end = end_,
                                     .content = {.kind = MS_SOURCE,
                                                 .source = (struct ms_source *)(uintptr_t)source,
                                                 .source_offset = offset}};
    ms_origins_note(allocation, &extent);
}

MS_TEST_BETWEEN(read_file, forget_file, an_origin_that_was_noted_twice_is_compared_once)
{
    note(file.source, G, 5 * G, 0);
    for (size_t offset = G; offset < 5 * G; offset += G)
        byte_at(offset)[0] ^= 1;
    CHECK_EQ(restore(), 0);
    CHECK_EQ(fake.calls[FAKE_memcpy_dtoh_async], 4);
}

/* Whatever tells them apart. */
MS_TEST_BETWEEN(read_file, forget_file, other_origins_of_the_same_place_are_compared_too)
{
    static struct test_file other;
    make_test_file(&other, "/tmp", 4 * G);
    note(other.source, G, 5 * G, 0);
    CHECK_EQ(restore(), 4 * G);
    CHECK_EQ(fake.calls[FAKE_memcpy_dtoh_async], 8);
    fake_set(allocation, G, 5 * G, &resident);
    note(file.source, G, 4 * G, G);
    CHECK_EQ(restore(), 4 * G);
    fake_set(allocation, G, 5 * G, &resident);
    note(file.source, G, 2 * G, 0); /* a part of it, and the newest */
    CHECK_EQ(restore(), 4 * G);
    CHECK_EQ(at(G).content.source_offset, 0);
    ms_source_drop(other.source);
}

MS_TEST_BETWEEN(read_file, forget_file, a_restore_without_origins_enters_no_context)
{
    struct ms_allocation *other = fake_allocation(BYTES), *mine = allocation;
    fake_set(other, 0, BYTES, &resident);
    const unsigned asked = fake.calls[FAKE_ctx_get_current];
    allocation = other;
    CHECK_EQ(restore(), 0);
    CHECK_EQ(fake.calls[FAKE_ctx_get_current], asked);
    CHECK(!other->notes.was_resident);
    allocation = mine;
    fake_allocation_free(other);
    CHECK_EQ(restore(), 4 * G);
}

static int name_references(void)
{
    struct ms_origins copy;
    CHECK(ms_origins_copy(&copy));
    const int references = (int)copy.list[0].content.source->counted.references;
    ms_origins_cleanup(&copy);
    return references;
}

MS_TEST_BETWEEN(read_file, forget_file, names_of_files_are_held_as_long_as_they_are_used)
{
    const int before = name_references();
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(restore(), 4 * G);
        fake_set(allocation, G, 5 * G, &resident);
        CHECK_EQ(name_references(), before);
    }
}

/* --- pieces */

MS_TEST_BETWEEN(read_file, forget_file, a_piece_ends_with_its_granule)
{
    static const struct {
        size_t changed, begin, end; /* what changed, and the piece that stays for it */
    } rows[] = {{G + 200, G, 2 * G}, {2 * G, 2 * G, 3 * G - 50}, {3 * G - 51, 2 * G, 3 * G - 50}};
    struct ms_origins copy;
    CHECK(ms_origins_copy(&copy));
    ms_origins_forget(&copy.list[0]);
    ms_origins_cleanup(&copy);
    for (size_t i = 0; i < 3; i++) {
        note(file.source, G + 100, 3 * G - 50, 100);
        byte_at(rows[i].changed)[0] ^= 1;
        const size_t stays = rows[i].end - (rows[i].begin > G ? rows[i].begin : G + 100);
        CHECK_EQ(restore(), 2 * G - 150 - stays);
        const size_t other = rows[i].begin == G ? 2 * G : G + 100;
        CHECK_EQ(at(rows[i].changed).content.kind, MS_RESIDENT);
        CHECK(at(other).content.cached);
        CHECK_EQ(at(other).content.source_offset, other - G);
        CHECK(at(3 * G - 50).content.kind == MS_RESIDENT && at(G).content.kind == MS_RESIDENT);
        byte_at(rows[i].changed)[0] ^= 1;
        fake_set(allocation, G, 5 * G, &resident);
    }
}

/* A larger one lay there before. */
STORY_BETWEEN(read_file, forget_file, an_origin_ends_with_its_allocation,
              note(file.source, 6 * G, 10 * G, 0), fake_set(allocation, 6 * G, BYTES, &resident),
              memcpy(byte_at(6 * G), file.data, 2 * G), EQUALS(restore(), 6 * G),
              EQUALS(at(6 * G).end, BYTES), IS(at(6 * G).content.cached))

MS_TEST_BETWEEN(read_file, forget_file, a_restore_finds_the_rest_of_a_file_that_became_shorter)
{
    CHECK_EQ(truncate(file.path, 100), 0);
    CHECK_EQ(restore(), 0);
    CHECK_EQ(ms_allocation_lineage(allocation)->resident_bytes, 4 * G);
}

static void check_nothing_is_found(void)
{
    CHECK_EQ(restore(), 0);
    CHECK(fake_has_failed());
    CHECK_EQ(ms_allocation_lineage(allocation)->resident_bytes, 4 * G);
    CHECK(!allocation->notes.was_resident);
}

/* And is found the next time: nothing was compared. */
STORY_BETWEEN(read_file, forget_file, a_restore_finds_nothing_where_it_cannot_compare,
              fake_fail(FAKE_ctx_get_current, 1, CUDA_ERROR_INVALID_CONTEXT),
              check_nothing_is_found(), fake_fail(FAKE_stream_create, 1, CUDA_ERROR_OUT_OF_MEMORY),
              check_nothing_is_found(), EQUALS(restore(), 4 * G))

STORY_BETWEEN(read_file, forget_file, a_copy_that_cannot_be_waited_for_is_no_comparison,
              fake.wait_result = CUDA_ERROR_LAUNCH_FAILED, EQUALS(restore(), 0),
              fake.wait_result = CUDA_SUCCESS,
              EQUALS(ms_allocation_lineage(allocation)->resident_bytes, 4 * G))

/* --- keeping */

MS_TEST_BETWEEN(start, end, runs_of_what_was_written_are_kept_each_by_itself)
{
    const struct ms_content other = {.kind = MS_FILL, .pattern = 0x08080808};
    fake_set(allocation, 0, 100, &fill);
    fake_set(allocation, 100, G, &other);
    fake_set(allocation, 3 * G, 4 * G, &fill);
    fake_set(allocation, 6 * G, 7 * G, &other);
    allocation->notes.was_resident = true;
    CHECK_EQ(ms_restore_keep(), CUDA_SUCCESS);
    CHECK(byte_at(99)[0] == 7 && byte_at(100)[0] == 8 && byte_at(3 * G)[0] == 7);
    CHECK_EQ(byte_at(6 * G)[0], 8);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 3 * G);
    CHECK_EQ(at(4 * G).content.kind, MS_UNDEFINED);
}

/* The first of several failures is answered, and the others are tried. */
MS_TEST_BETWEEN(start, end, keeping_allocations_goes_on_after_a_failure)
{
    struct ms_allocation *all[3] = {allocation, fake_allocation(G), fake_allocation(G)};
    for (int i = 0; i < 3; i++) {
        fake_set(all[i], 0, G, &fill);
        all[i]->notes.was_resident = true;
    }
    fake_fail(FAKE_mem_create, 2, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(ms_restore_keep(), CUDA_ERROR_UNKNOWN);
    int due = 0;
    for (int i = 0; i < 3; i++)
        due += all[i]->notes.was_resident;
    CHECK_EQ(due, 1);
    fake.total_bytes = fake.physical_bytes;
    CHECK_EQ(ms_restore_keep(), CUDA_ERROR_OUT_OF_MEMORY);
    fake.total_bytes = (size_t)1 << 30;
    CHECK_EQ(ms_restore_keep(), CUDA_SUCCESS);
    fake_allocation_free(all[1]);
    fake_allocation_free(all[2]);
}

/* --- what launches made */

enum { MADE = 2 << 20 };

static struct ms_recorded_launch *recorded;
static size_t launches;
static CUresult launch_result;

/* Adds 9 to each byte of its block. */
static CUresult launch_kernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                              unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                              unsigned shared, CUstream stream, void **params, void **extra)
{
    CUdeviceptr block;
    (void)function, (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y;
    (void)block_z, (void)shared, (void)stream, (void)extra;
    memcpy(&block, params[0], sizeof(block));
    launches++;
    for (size_t i = 0; i < MADE && launch_result == CUDA_SUCCESS; i++)
        ((unsigned char *)(uintptr_t)block)[i] += 9;
    return launch_result;
}

static CUresult load_nothing(CUlibrary *library, const void *code, CUjit_option *jit_options,
                             void **jit_values, unsigned jit_count, CUlibraryOption *options,
                             void **values, unsigned count)
{
    (void)library, (void)code, (void)jit_options, (void)jit_values, (void)jit_count;
    (void)options, (void)values, (void)count;
    return CUDA_ERROR_NOT_SUPPORTED;
}

static void record(void)
{
    static char name[] = "add_nine";
    static struct ms_param_layout *layout;
    layout = calloc(1, sizeof(*layout) + sizeof(layout->params[0]));
    *layout = (struct ms_param_layout){
        .counted = {.references = 1000}, .known = true, .count = 1, .bytes = 8, .name = name};
    layout->params[0] = (struct ms_param){0, 8};
    const CUdeviceptr pointer = allocation->address;
    const struct ms_packed packed = {.bytes = (const unsigned char *)&pointer, .count = 8};
    const struct ms_call call = {.function = (CUfunction)1, .grid = {1, 1, 1}, .block = {1, 1, 1}};
    const size_t offset = 0;
    recorded = ms_recorded_launch_create();
    recorded->launch = ms_call_record(&call, layout, &packed, &offset, 1);
    recorded->allocation_id = allocation->id;
    recorded->address = allocation->address;
    recorded->context = FAKE_CONTEXT;
    recorded->depth = 1;
    CHECK(ms_lineage_init(&recorded->before, MADE));
}

static void note_launched(size_t begin, size_t end_)
{
    const struct ms_extent extent = {
        .begin = begin,
        .end = end_,
        .content = {.kind = MS_LAUNCHED, .recorded = recorded, .source_offset = begin}};
    ms_origins_note(allocation, &extent);
}

/* All that a launch made is resident, and was there since. */
static void start_launched(void)
{
    fake_start();
    ms_driver.launch_kernel = launch_kernel;
    ms_driver.library_load_data = load_nothing;
    allocation = fake_allocation(MADE);
    record();
    fake_set(allocation, 0, MADE, &resident);
    memset(byte_at(0), 9, MADE);
}

static void end_launched(void)
{
    ms_recorded_launch_drop(recorded);
    end();
}

static size_t restore_launched(bool with_launches)
{
    struct ms_restoring restoring;
    if (!ms_restore_begin(&restoring, with_launches))
        return 0;
    CHECK(ms_space_claim(allocation->address) == allocation);
    ms_restore(allocation, &restoring);
    ms_space_release(allocation);
    ms_restore_end(&restoring);
    CHECK_EQ(fake.pushed_contexts, 0);
    return restoring.bytes;
}

MS_TEST_BETWEEN(start_launched, end_launched, a_restore_caches_bytes_a_launch_would_make_again)
{
    note_launched(0, MADE);
    CHECK_EQ(restore_launched(false), 0);
    CHECK_EQ(launches, 0);
    CHECK_EQ(restore_launched(true), MADE);
    CHECK_EQ(launches, 1);
    const struct ms_extent extent = at(3 * G + 7);
    CHECK(extent.content.kind == MS_LAUNCHED && extent.content.cached && extent.end == MADE);
    CHECK_EQ(extent.content.source_offset, 3 * G + 7);
    CHECK(allocation->notes.was_resident);
}

MS_TEST_BETWEEN(start_launched, end_launched, a_restore_leaves_changed_bytes_of_a_launch_alone)
{
    note_launched(0, MADE);
    byte_at(2 * G)[0]++;
    byte_at(MADE - 1)[0]++;
    CHECK_EQ(restore_launched(true), MADE - 2 * G);
    CHECK(at(0).content.cached && at(0).end == 2 * G);
    CHECK(at(2 * G).content.kind == MS_RESIDENT && at(2 * G).end == 3 * G);
    CHECK(at(3 * G).content.cached && at(3 * G).content.source_offset == 3 * G);
    CHECK_EQ(at(3 * G).end, MADE - G);
    fake_set(allocation, 0, MADE, &resident);
    memset(byte_at(0), 8, MADE);
    CHECK_EQ(restore_launched(true), 0);
    CHECK_EQ(launches, 2);
    CHECK_EQ(restore_launched(true), 0); /* that is not tried again */
    CHECK_EQ(launches, 2);
}

/* In the middle, and without what is pinned. */
MS_TEST_BETWEEN(start_launched, end_launched, a_part_of_a_launch_is_compared_where_it_stands)
{
    fake_set(allocation, 0, MADE, &undefined);
    ms_backing_uncover(ms_allocation_memory(allocation), 0, MADE, false);
    fake_set(allocation, G, 3 * G, &resident);
    fake_set(allocation, 3 * G, MADE, &resident);
    memset(byte_at(G), 9, MADE - G);
    ms_backing_chunk(&MS_OWN(allocation)->backing, G)->is_pinned = true;
    note_launched(G, MADE - G);
    CHECK_EQ(restore_launched(true), MADE - 4 * G);
    CHECK(at(G).content.kind == MS_RESIDENT && at(G).end == 3 * G);
    CHECK(at(3 * G).content.cached && at(3 * G).content.source_offset == 3 * G);
    CHECK(at(3 * G).end == MADE - G && at(MADE - G).content.kind == MS_RESIDENT);
}

STORY_BETWEEN(start_launched, end_launched, a_launch_of_another_context_is_not_run,
              recorded->context = (CUcontext)2, note_launched(0, MADE),
              EQUALS(restore_launched(true), 0), EQUALS(launches, 0))

STORY_BETWEEN(start_launched, end_launched, a_launch_that_fails_makes_nothing_and_is_tried_again,
              note_launched(0, MADE), launch_result = CUDA_ERROR_LAUNCH_FAILED,
              EQUALS(restore_launched(true), 0), launch_result = CUDA_SUCCESS,
              EQUALS(restore_launched(true), MADE))

/* It has read a file. */
static void note_reader(void)
{
    make_test_file(&file, "/tmp", MADE);
    const struct ms_content content = {.kind = MS_SOURCE, .source = file.source};
    CHECK(ms_lineage_set(&recorded->before, 0, MADE, &content));
    for (size_t i = 0; i < MADE; i++)
        byte_at(i)[0] = (unsigned char)(file.data[i] + 9);
    note_launched(0, MADE);
}

MS_TEST_BETWEEN(start_launched, end_launched, the_files_behind_a_launch_are_opened_again)
{
    note_reader();
    CHECK_EQ(restore_launched(true), MADE);
    fake_set(allocation, 0, MADE, &resident);
    CHECK_EQ(restore_launched(true), MADE);
    const struct ms_content content = at(0).content;
    CHECK(ms_source_file(ms_lineage_at(&content.recorded->before, 0).content.source) != NULL);
    fake_set(allocation, 0, MADE, &resident);
    ms_source_drop(file.source);
}

MS_TEST_BETWEEN(start_launched, end_launched, a_launch_is_not_run_with_a_file_that_looks_other)
{
    note_reader();
    ms_lineage_set(&recorded->before, 0, MADE, &undefined);
    ms_source_drop(file.source);
    const int descriptor = open(file.path, O_WRONLY);
    CHECK(descriptor >= 0);
    CHECK_EQ(write(descriptor, file.data, 1), 1);
    close(descriptor);
    CHECK_EQ(restore_launched(true), 0);
    CHECK_EQ(launches, 0);
    CHECK_EQ(unlink(file.path), 0);
    CHECK_EQ(restore_launched(true), 0);
    CHECK_EQ(launches, 0);
}
