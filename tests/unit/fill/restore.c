/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/restore.h"

#include <string.h>

#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/source/files.h"

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
    return ms_lineage_at(&allocation->lineage, offset);
}

/* --- what becomes resident again */

MS_TEST_BETWEEN(start, end, what_was_resident_becomes_so_where_it_was_written)
{
    struct ms_allocation *other = fake_allocation(BYTES);
    fake_set(allocation, G, 2 * G, &fill);
    fake_set(allocation, 2 * G, 3 * G, &(struct ms_content){.kind = MS_FILL});
    fake_set(allocation, 6 * G, BYTES, &fill);
    fake_set(other, 0, BYTES, &fill);
    CHECK(!ms_restore_is_due(allocation));
    ms_restore_mark(allocation);
    CHECK(ms_restore_is_due(allocation) && !ms_restore_is_due(other));
    CHECK_EQ(ms_restore_keep(), CUDA_SUCCESS);
    CHECK(!ms_restore_is_due(allocation));
    CHECK_EQ(allocation->lineage.resident_bytes, 4 * G);
    CHECK_EQ(allocation->backing.backed_bytes, 4 * G);
    CHECK(byte_at(G)[0] == 7 && byte_at(2 * G)[0] == 0 && byte_at(BYTES)[-1] == 7);
    CHECK_EQ(other->lineage.resident_bytes + other->backing.backed_bytes, 0);
    fake_allocation_free(other);
}

MS_TEST_BETWEEN(start, end, one_that_cannot_stays_as_it_is)
{
    struct ms_allocation *other = fake_allocation(G);
    struct ms_allocation *first = allocation->address < other->address ? allocation : other;
    struct ms_allocation *last = first == other ? allocation : other;
    fake_set(first, 0, G, &fill);
    fake_set(last, 0, G, &fill);
    ms_restore_mark(first);
    ms_restore_mark(last);
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(ms_restore_keep(), CUDA_ERROR_UNKNOWN);
    CHECK(ms_restore_is_due(first) && !ms_restore_is_due(last));
    CHECK_EQ(ms_restore_keep(), CUDA_SUCCESS);
    CHECK(!ms_restore_is_due(first) && first->lineage.resident_bytes == G);
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

MS_TEST_BETWEEN(start, end, where_nothing_is_known_there_is_nothing_to_end)
{
    struct ms_restoring restoring;
    CHECK(!ms_restore_begin(&restoring, false));
    CHECK_EQ(ms_restore_all(), 0);
}

MS_TEST_BETWEEN(read_file, forget_file, what_is_still_the_files_is_cached)
{
    CHECK_EQ(restore(), 4 * G);
    CHECK(ms_restore_is_due(allocation));
    CHECK_EQ(allocation->lineage.cached_bytes, 4 * G);
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
    ms_backing_uncover(&allocation->backing, 0, BYTES, false);
    fake_set(allocation, 2 * G, 3 * G, &resident);
    fake_set(allocation, 3 * G, 5 * G, &resident);
    memcpy(byte_at(2 * G), file.data + G, 3 * G);
    ms_backing_chunk(&allocation->backing, 2 * G)->is_pinned = true;
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
    CHECK(!ms_restore_is_due(allocation));
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
    CHECK_EQ(allocation->lineage.resident_bytes, 4 * G);
}

MS_TEST_BETWEEN(read_file, forget_file, of_all_what_a_graph_may_use_stays)
{
    allocation->keeps_dead = true;
    CHECK_EQ(ms_restore_all(), 0);
    allocation->keeps_dead = false;
    CHECK_EQ(ms_restore_all(), 4 * G);
    CHECK_EQ(allocation->lineage.cached_bytes, 4 * G);
}
