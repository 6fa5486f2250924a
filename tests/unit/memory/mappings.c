/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/mappings.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/driver/device_memory.h"
#include "runtime/files/host_snapshot.h"
#include "runtime/memory/allocation.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/memory/ready.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/files/files.h"

enum { G = FAKE_GRANULE, GRANULES = 8, BYTES = GRANULES * G };

/* --- a heap that may be out of memory */

static int may_grow = 1000000;
WRAPS(ms_heap_realloc);
void *__wrap_ms_heap_realloc(void *memory, size_t bytes)
{
    return may_grow-- > 0 ? __real_ms_heap_realloc(memory, bytes) : NULL;
}

/* --- an allocation at addresses of the program */

static CUdeviceptr place; /* reserved by the program */
static struct ms_allocation *allocation;
static struct ms_backing *backing;

static CUresult memcpy_dtoh(void *to, CUdeviceptr from, size_t bytes)
{
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return CUDA_SUCCESS;
}

static CUresult memcpy_htod(CUdeviceptr to, const void *from, size_t bytes)
{
    memcpy((void *)(uintptr_t)to, from, bytes);
    return CUDA_SUCCESS;
}

static CUresult refuse_htod(CUdeviceptr to, const void *from, size_t bytes)
{
    CHECK(to != 0 && from != NULL && bytes > 0);
    return CUDA_ERROR_LAUNCH_FAILED;
}

/* It is claimed. */
static void start(void)
{
    fake_start();
    ms_driver.memcpy_dtoh = memcpy_dtoh;
    ms_driver.memcpy_htod = memcpy_htod;
    CHECK_EQ(ms_driver.mem_address_reserve(&place, BYTES, G, 0, 0), CUDA_SUCCESS);
    allocation = fake_create(
        &(struct ms_promise){.bytes = BYTES, .context = FAKE_CONTEXT, .address = place});
    CHECK(allocation != NULL && ms_space_claim(place) == allocation);
    backing = &MS_OWN(allocation)->backing;
}

static void end(void)
{
    ms_space_release(allocation);
    fake_check_allocation(allocation);
    fake_allocation_free(allocation);
    CHECK_EQ(ms_driver.mem_address_free(place, BYTES), CUDA_SUCCESS);
    fake_check_empty();
}

static struct ms_program_mapping mapping_of(size_t begin, size_t end)
{
    return (struct ms_program_mapping){.begin = begin, .end = end, .handle = 5};
}

static struct ms_program_mapping promise(size_t begin, size_t end)
{
    const struct ms_program_mapping mapping = mapping_of(begin, end);
    CHECK(ms_mappings_add(allocation, &mapping));
    return mapping;
}

static void open_access(const struct ms_program_mapping *mapping)
{
    CHECK_EQ(ms_mappings_set_access(allocation, mapping, true, NULL), CUDA_SUCCESS);
}

/* One that the program may use. */
static struct ms_program_mapping promise_open(size_t begin, size_t end)
{
    struct ms_program_mapping mapping = promise(begin, end);
    open_access(&mapping);
    mapping.is_accessible = true;
    return mapping;
}

/* Two granules that are open, one that is not, a gap, and another one that is. */
MS_TEST_BETWEEN(start, end, a_range_fits_where_the_program_opened_it)
{
    static const struct {
        size_t begin, bytes;
        bool wanted;
    } rows[] = {
        {0, 1, false},     {0, 0, true},          {G - 1, 1, false},     {G, 1, true},
        {G - 1, 2, false}, {G, 2 * G, true},      {G, 2 * G + 1, false}, {3 * G - 1, 1, true},
        {3 * G, 1, false}, {3 * G, 0, true},      {4 * G, 1, false},     {4 * G, 2 * G, false},
        {5 * G, G, true},  {5 * G, G + 1, false}, {2 * G, 4 * G, false}, {6 * G, 1, false},
    };
    const struct ms_program_mapping first = promise_open(G, 2 * G),
                                    second = promise_open(2 * G, 3 * G),
                                    third = promise(3 * G, 4 * G),
                                    last = promise_open(5 * G, 6 * G);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (ms_fits(allocation, place + rows[i].begin, rows[i].bytes) != rows[i].wanted)
            ms_test_fail(__FILE__, __LINE__, "row %zu", i);
    }
    CHECK_EQ(ms_mappings_set_access(allocation, &second, false, NULL), CUDA_SUCCESS);
    CHECK(ms_fits(allocation, place + G, G) && !ms_fits(allocation, place + G, G + 1));
    CHECK(first.end == second.begin && third.end < last.begin);
}

/* Memory that the driver has mapped there for the program. */
static struct ms_program_mapping map_real(size_t begin, size_t end)
{
    const CUmemAllocationProp prop = ms_device_memory_properties(0);
    const CUmemAccessDesc access = {.location = prop.location,
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    struct ms_program_mapping mapping = mapping_of(begin, end);
    mapping.is_real = true;
    CHECK_EQ(ms_driver.mem_create(&mapping.handle, end - begin, &prop, 0), CUDA_SUCCESS);
    CHECK_EQ(ms_driver.mem_map(place + begin, end - begin, 0, mapping.handle, 0), CUDA_SUCCESS);
    CHECK_EQ(ms_driver.mem_set_access(place + begin, end - begin, &access, 1), CUDA_SUCCESS);
    CHECK_EQ(ms_driver.mem_release(mapping.handle), CUDA_SUCCESS);
    return mapping;
}

static void set(size_t begin, size_t end, const struct ms_content *content)
{
    if (ms_content_is_present(content))
        CHECK_EQ(ms_backing_cover(backing, begin, end), CUDA_SUCCESS);
    CHECK(ms_lineage_set(&MS_OWN(allocation)->lineage, begin, end, content));
}

static const struct ms_content resident = {.kind = MS_RESIDENT};

static void check(size_t begin, size_t end, enum ms_kind kind)
{
    const struct ms_extent extent = ms_lineage_at(ms_allocation_lineage(allocation), begin);
    CHECK_EQ(extent.content.kind, kind);
    CHECK_EQ(extent.end, end);
}

static unsigned char *byte_at(size_t offset)
{
    return (unsigned char *)(uintptr_t)(place + offset);
}

/* --- records */

static bool has_mapping(size_t begin, size_t end)
{
    const struct ms_program_mapping *mapping = ms_backing_mapping(backing, begin);
    return mapping != NULL && mapping->begin < end;
}

MS_TEST_BETWEEN(start, end, a_mapping_meets_what_has_a_byte_of_it)
{
    promise(2 * G, 4 * G);
    CHECK_EQ(backing->mapped_bytes, 2 * G);
    CHECK(!has_mapping(0, 2 * G) && has_mapping(0, 2 * G + 1));
    CHECK(has_mapping(4 * G - 1, 4 * G));
    CHECK(!has_mapping(4 * G, BYTES));
    promise(0, 2 * G);
    promise(4 * G, 5 * G);
    CHECK_EQ(backing->mapped_bytes, 5 * G);
    CHECK_EQ(backing->mappings.count, 3);
    CHECK(has_mapping(4 * G, BYTES));
    check(0, BYTES, MS_UNMAPPED); /* nobody can use it yet */
    CHECK_EQ(backing->backed_bytes, 0);
}

MS_TEST_BETWEEN(start, end, a_mapping_off_a_granule_or_without_a_record_is_refused)
{
    const struct ms_program_mapping odd = mapping_of(1, 1 + G), other = mapping_of(G, 2 * G);
    CHECK(!ms_mappings_add(allocation, &odd));
    may_grow = 0;
    CHECK(!ms_mappings_add(allocation, &other));
    may_grow = 1000000;
    CHECK_EQ(backing->mapped_bytes, 0);
    CHECK(!has_mapping(0, BYTES));
}

MS_TEST_BETWEEN(start, end, a_real_mapping_takes_the_place_of_a_promised_one)
{
    promise(0, G);
    const struct ms_program_mapping real = map_real(0, G);
    CHECK(ms_mappings_add(allocation, &real));
    CHECK_EQ(backing->mapped_bytes, G);
    CHECK_EQ(backing->mappings.count, 1);
    CHECK(ms_backing_mapping(backing, 0)->is_real && ms_backing_chunk(backing, 0)->is_pinned);
    CHECK_EQ(backing->backed_bytes, G);
    open_access(&real);
    check(0, G, MS_RESIDENT);
}

/* The driver has done its part already. */
MS_TEST_BETWEEN(start, end, a_mapping_of_the_driver_that_cannot_be_recorded_is_fatal)
{
    promise(0, G);
    const struct ms_program_mapping promised = promise(2 * G, 3 * G), real = map_real(0, G),
                                    other = map_real(G, 2 * G);
    static const size_t places[] = {0, G, 2 * G};
    open_log(MS_ERROR);
    for (int i = 0; i < 3; i++) {
        int status;
        char line[96];
        const pid_t child = fork();
        if (child == 0) {
            may_grow = 0;
            if (i == 2)
                ms_mappings_set_access(allocation, &promised, true, NULL);
            else
                ms_mappings_add(allocation, i == 0 ? &real : &other);
            _exit(0);
        }
        CHECK_EQ(waitpid(child, &status, 0), child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
        snprintf(line, sizeof(line), "there is no memory for the record of a mapping at 0x%llx\n",
                 place + places[i]);
        CHECK_EQ(count_log_lines(line), 1);
    }
    CHECK(ms_mappings_add(allocation, &real) && ms_mappings_add(allocation, &other));
    open_access(&real);
    open_access(&other);
}

/* --- making it real */

MS_TEST_BETWEEN(start, end, a_mapping_in_one_handle_becomes_real)
{
    CUmemGenericAllocationHandle real = 0;
    const struct ms_program_mapping mapping = promise_open(G, 3 * G);
    set(G, 2 * G, &resident);
    CHECK_EQ(ms_mappings_pin(allocation, &mapping, NULL, false, &real), CUDA_ERROR_INVALID_VALUE);
    set(2 * G, 3 * G, &resident); /* in two */
    CHECK_EQ(ms_mappings_pin(allocation, &mapping, NULL, false, &real), CUDA_ERROR_INVALID_VALUE);
    CHECK(!ms_backing_mapping(backing, G)->is_real);
    ms_backing_uncover(backing, G, 3 * G, false);
    set(G, 3 * G, &resident);
    fake_fail(FAKE_mem_retain, 1, CUDA_ERROR_NOT_SUPPORTED);
    CHECK_EQ(ms_mappings_pin(allocation, &mapping, NULL, false, &real), CUDA_ERROR_NOT_SUPPORTED);
    CHECK(!ms_backing_mapping(backing, G)->is_real && !ms_backing_chunk(backing, G)->is_pinned);
    CHECK_EQ(ms_mappings_pin(allocation, &mapping, NULL, false, &real), CUDA_SUCCESS);
    const struct ms_program_mapping *there = ms_backing_mapping(backing, G);
    CHECK(there->is_real && there->is_accessible && there->handle == 5);
    CHECK(ms_backing_chunk(backing, G)->is_pinned);
    CHECK_EQ(backing->mapped_bytes, 2 * G);
    CHECK_EQ(ms_driver.mem_release(real), CUDA_SUCCESS);
}

/* Two granules under handles of their own, of sevens and eights. */
static struct ms_program_mapping make_two(void)
{
    const struct ms_program_mapping mapping = promise_open(G, 3 * G);
    set(G, 2 * G, &resident);
    set(2 * G, 3 * G, &resident);
    memset(byte_at(G), 7, G);
    memset(byte_at(2 * G), 8, G);
    return mapping;
}

MS_TEST_BETWEEN(start, end, handles_are_joined_and_keep_their_bytes)
{
    const struct ms_program_mapping mapping = make_two();
    CUmemGenericAllocationHandle real;
    struct ms_host_snapshot *copy = ms_host_snapshot_create(2 * G, MS_SNAPSHOT_ANY);
    memset(ms_host_snapshot_data(copy), 0, 2 * G);
    CHECK_EQ(ms_mappings_pin(allocation, &mapping, copy, false, &real), CUDA_SUCCESS);
    CHECK_EQ(ms_driver.mem_release(real), CUDA_SUCCESS);
    ms_host_snapshot_drop(copy);
    CHECK(ms_backing_is_one_chunk(backing, G, 3 * G));
    check(G, 3 * G, MS_RESIDENT);
    CHECK(byte_at(G)[0] == 7 && byte_at(3 * G)[-1] == 8);
}

MS_TEST_BETWEEN(start, end, a_join_that_lost_memory_has_the_copy_as_its_source)
{
    const struct ms_program_mapping mapping = make_two();
    CUmemGenericAllocationHandle real;
    struct ms_host_snapshot *copy = ms_host_snapshot_create(2 * G, MS_SNAPSHOT_ANY);
    memset(ms_host_snapshot_data(copy), 0, 2 * G);
    fake.total_bytes = 3 * G; /* no room for both */
    CHECK_EQ(ms_mappings_pin(allocation, &mapping, copy, false, &real), CUDA_ERROR_OUT_OF_MEMORY);
    check(G, 3 * G, MS_RESIDENT);
    CHECK_EQ(backing->backed_bytes, 2 * G);
    ms_driver.memcpy_htod = refuse_htod;
    CHECK_EQ(ms_mappings_pin(allocation, &mapping, copy, true, &real), CUDA_ERROR_LAUNCH_FAILED);
    check(G, 3 * G, MS_SOURCE);
    CHECK_EQ(backing->backed_bytes, 0);
    const struct ms_content content =
        ms_lineage_at(ms_allocation_lineage(allocation), 2 * G).content;
    CHECK(content.source == ms_host_snapshot_source(copy) && content.source_offset == G);
    CHECK_EQ(((const unsigned char *)ms_host_snapshot_data(copy))[G], 8);
    ms_host_snapshot_drop(copy);
}

/* --- access */

MS_TEST_BETWEEN(start, end, a_mapping_is_unwritten_with_access_and_unmapped_without)
{
    const struct ms_program_mapping mapping = promise(G, 3 * G);
    open_access(&mapping);
    check(0, G, MS_UNMAPPED);
    check(G, 3 * G, MS_UNDEFINED);
    CHECK(ms_backing_mapping(backing, G)->is_accessible && !allocation->notes.keeps_dead);
    CHECK_EQ(ms_mappings_set_access(allocation, &mapping, false, NULL), CUDA_SUCCESS);
    check(0, BYTES, MS_UNMAPPED);
    CHECK(!ms_backing_mapping(backing, G)->is_accessible);
    CHECK_EQ(backing->mapped_bytes, 2 * G);
}

/* A block of an allocation that is carved by now. */
static void carve(size_t begin, size_t end)
{
    CHECK_EQ(ms_carve_take(allocation, begin, end), MS_CARVED);
}

STORY_BETWEEN(start, end, a_mapping_of_a_carved_allocation_is_dead, promise_open(0, 2 * G),
              carve(0, G), promise_open(2 * G, 3 * G), check(G, 3 * G, MS_DEAD))

MS_TEST_BETWEEN(start, end, no_block_is_ready_any_more)
{
    ms_hot.keeps_memory = 1;
    promise_open(0, G);
    carve(0, G);
    set(0, G, &resident);
    size_t block_end;
    CHECK(ms_carve_return(allocation, 0, &block_end));
    promise_open(2 * G, 3 * G);
    CHECK(!ms_ready_report(place, G));
}

/* --- pieces */

/* Keeps the second granule, of nines, of a mapping that is gone. */
static struct ms_pieces keep(void)
{
    struct ms_pieces pieces = {NULL, 0};
    const struct ms_program_mapping mapping = promise_open(0, 3 * G);
    set(G, 2 * G, &resident);
    memset(byte_at(G), 9, G);
    const uint32_t touches = allocation->notes.touches;
    CHECK_EQ(ms_mappings_remove(allocation, &mapping, &pieces), CUDA_SUCCESS);
    CHECK(allocation->notes.touches == touches + 1 && pieces.count == 1);
    CHECK_EQ(backing->mapped_bytes + backing->backed_bytes + backing->mappings.count, 0);
    check(0, BYTES, MS_UNMAPPED);
    return pieces;
}

MS_TEST_BETWEEN(start, end, a_mapping_gets_kept_pieces_back)
{
    struct ms_pieces pieces = keep();
    const struct ms_program_mapping mapping = promise(4 * G, 7 * G);
    CHECK_EQ(ms_mappings_set_access(allocation, &mapping, true, &pieces), CUDA_SUCCESS);
    CHECK(pieces.count == 0 && pieces.all == NULL && allocation->notes.keeps_dead);
    check(4 * G, 5 * G, MS_UNDEFINED);
    check(5 * G, 6 * G, MS_RESIDENT);
    check(6 * G, 7 * G, MS_UNDEFINED);
    CHECK_EQ(byte_at(5 * G)[0], 9);
    CHECK_EQ(fake.handles, 0);
}

MS_TEST_BETWEEN(start, end, a_mapping_without_pieces_keeps_nothing)
{
    struct ms_pieces none = {NULL, 0};
    const struct ms_program_mapping mapping = promise(0, G);
    CHECK_EQ(ms_mappings_set_access(allocation, &mapping, true, &none), CUDA_SUCCESS);
    CHECK(!allocation->notes.keeps_dead);
}

MS_TEST_BETWEEN(start, end, pieces_that_cannot_be_mapped_stay_and_nothing_may_be_used)
{
    struct ms_pieces pieces = keep();
    const struct ms_program_mapping mapping = promise(4 * G, 7 * G);
    fake_fail(FAKE_mem_map, 1, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(ms_mappings_set_access(allocation, &mapping, true, &pieces), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(pieces.count == 1 && !allocation->notes.keeps_dead);
    check(0, BYTES, MS_UNMAPPED);
    CHECK(!ms_backing_mapping(backing, 4 * G)->is_accessible && backing->backed_bytes == 0);
    ms_backing_end_pieces(&pieces, 0);
}

/* --- the end of a mapping */

MS_TEST_BETWEEN(start, end, a_mapping_that_was_written_is_alive)
{
    const struct ms_program_mapping mapping = promise_open(G, 3 * G),
                                    next = promise_open(3 * G, BYTES);
    const struct ms_content fill = {.kind = MS_FILL};
    CHECK(!ms_mappings_is_alive(allocation, &mapping));
    set(3 * G - 1, 3 * G, &fill);
    CHECK(ms_mappings_is_alive(allocation, &mapping) && !ms_mappings_is_alive(allocation, &next));
    set(3 * G - 1, 3 * G, &(struct ms_content){.kind = MS_UNDEFINED});
    set(3 * G, 4 * G, &resident);
    CHECK(!ms_mappings_is_alive(allocation, &mapping) && ms_mappings_is_alive(allocation, &next));
}

MS_TEST_BETWEEN(start, end, a_mapping_of_a_carved_allocation_is_alive_by_its_blocks)
{
    const struct ms_program_mapping first = promise_open(0, G), mapping = promise_open(G, 3 * G),
                                    last = promise_open(3 * G, BYTES);
    carve(G + 1, 3 * G);
    CHECK(ms_mappings_is_alive(allocation, &mapping));
    CHECK(!ms_mappings_is_alive(allocation, &first) && !ms_mappings_is_alive(allocation, &last));
    set(0, G, &resident); /* in no block */
    CHECK(!ms_mappings_is_alive(allocation, &first));
    size_t block_end;
    CHECK(ms_carve_return(allocation, G + 1, &block_end));
    carve(G, G + 1);
    CHECK(!ms_mappings_is_alive(allocation, &first) && ms_mappings_is_alive(allocation, &mapping));
    ms_carve_add_use(allocation, 0, 1); /* the program uses what is in none */
    CHECK(ms_mappings_is_alive(allocation, &first) && !ms_mappings_is_alive(allocation, &mapping));
}

MS_TEST_BETWEEN(start, end, a_block_that_was_handed_out_while_it_was_ready_is_alive)
{
    ms_hot.keeps_memory = 1;
    const struct ms_program_mapping mapping = promise_open(0, G);
    carve(0, G);
    set(0, G, &resident);
    size_t block_end;
    CHECK(ms_carve_return(allocation, 0, &block_end));
    CHECK(!ms_mappings_is_alive(allocation, &mapping));
    promise_open(G, 2 * G);
    carve(G, 2 * G);
    set(0, 2 * G, &resident);
    CHECK(ms_carve_return(allocation, G, &block_end));
    CHECK(!ms_mappings_is_alive(allocation, &mapping));
    CHECK(ms_ready_report(place + G, 1)); /* which is none of it */
    carve(0, G);
    CHECK(ms_carve_return(allocation, 0, &block_end));
    CHECK(ms_ready_report(place, 1));
    CHECK(ms_mappings_is_alive(allocation, &mapping));
}

MS_TEST_BETWEEN(start, end, a_real_mapping_goes_with_its_memory_and_blocks)
{
    struct ms_program_mapping real = map_real(2 * G, 3 * G);
    promise_open(0, 2 * G);
    carve(G, 4 * G);
    CHECK(ms_mappings_add(allocation, &real));
    open_access(&real);
    CHECK_EQ(ms_mappings_remove(allocation, &real, NULL), CUDA_SUCCESS);
    CHECK_EQ(fake.mappings, 0);
    check(2 * G, BYTES, MS_UNMAPPED);
    CHECK(backing->mapped_bytes == 2 * G && !has_mapping(2 * G, 3 * G));
    CHECK(ms_carve_is_block(allocation, G, 2 * G) && ms_carve_is_block(allocation, 3 * G, 4 * G));
    CHECK(!ms_carve_is_block(allocation, 2 * G, 2 * G + 1));
    CHECK(!ms_carve_is_block(allocation, 3 * G - 1, 3 * G));
}

MS_TEST_BETWEEN(start, end, an_unmap_leaves_the_mappings_beside_it)
{
    const struct ms_program_mapping mapping = promise_open(G, 2 * G);
    promise_open(0, G);
    promise_open(2 * G, 3 * G);
    for (size_t at = 0; at < 3 * G; at += G) {
        set(at, at + G, &resident);
        memset(byte_at(at), 5, G);
    }
    CHECK_EQ(ms_mappings_remove(allocation, &mapping, NULL), CUDA_SUCCESS);
    CHECK(byte_at(G - 1)[0] == 5 && byte_at(2 * G)[0] == 5);
    check(0, G, MS_RESIDENT);
    check(2 * G, 3 * G, MS_RESIDENT);
    CHECK_EQ(backing->backed_bytes, 2 * G);
}

MS_TEST_BETWEEN(start, end, a_failure_leaves_it_mapped)
{
    struct ms_sink_mapping *lent;
    struct ms_pieces pieces = {NULL, 0};
    const struct ms_range range = {0, G};
    const struct ms_program_mapping mapping = make_two(), other = promise_open(0, G);
    const uint32_t touches = allocation->notes.touches;
    CHECK_EQ(ms_backing_lend(backing, NULL, &range, 1, FAKE_CONTEXT, &lent), CUDA_SUCCESS);
    CHECK_EQ(ms_mappings_remove(allocation, &other, &pieces), CUDA_ERROR_NOT_PERMITTED);
    ms_backing_lent(backing, lent, NULL);
    fake_fail(FAKE_mem_retain, 2, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(ms_mappings_remove(allocation, &mapping, &pieces), CUDA_ERROR_UNKNOWN);
    CHECK(pieces.count == 0 && allocation->notes.touches == touches && fake.handles == 1);
    CHECK_EQ(backing->mapped_bytes, 3 * G);
    check(G, 3 * G, MS_RESIDENT);
    CHECK(byte_at(G)[0] == 7 && byte_at(2 * G)[0] == 8);
}
