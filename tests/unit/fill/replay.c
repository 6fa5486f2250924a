/* SPDX-License-Identifier: Apache-2.0 */
/* Over a device that is late: nothing runs before somebody waits for it. */
#include "runtime/fill/replay.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/fill/scratch.h"
#include "runtime/kernel/call.h"
#include "runtime/memory/space.h"
#include "runtime/memory/recorded_launch.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/source/files.h"

enum { BYTES = 2 * FAKE_GRANULE };

/* --- the device */

enum { MOST = 64 };
static struct work {
    void (*run)(const struct work *work);
    CUdeviceptr to;
    uint64_t from;
    size_t bytes;
    uint32_t value;
} queue[MOST];
static size_t queued;

static void *host(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

static CUresult add(struct work work)
{
    CHECK(queued < MOST);
    queue[queued++] = work;
    return CUDA_SUCCESS;
}

static void copy(const struct work *work)
{
    memcpy(host(work->to), host(work->from), work->bytes);
}

static void set(const struct work *work)
{
    for (size_t i = 0; i < work->bytes; i += 4)
        memcpy(host(work->to + i), &work->value, work->bytes - i < 4 ? work->bytes - i : 4);
}

/* out[i] = 3 * in[i], of words: all bytes of a word depend on each other. */
static void multiply(const struct work *work)
{
    for (size_t i = 0; i < work->bytes; i += 4) {
        uint32_t word;
        memcpy(&word, host(work->from + i), 4);
        word *= 3;
        memcpy(host(work->to + i), &word, 4);
    }
}

static CUresult memcpy_htod_async(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    CHECK(stream == FAKE_STREAM);
    return add((struct work){copy, to, (uintptr_t)from, bytes, 0});
}

static CUresult memcpy_dtod_async(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    CHECK(stream == FAKE_STREAM);
    return add((struct work){copy, to, from, bytes, 0});
}

static CUresult memset_d8_async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream)
{
    CHECK(stream == FAKE_STREAM);
    return add((struct work){set, to, 0, count, value * UINT32_C(0x01010101)});
}

static CUresult memset_d32_async(CUdeviceptr to, unsigned value, size_t count, CUstream stream)
{
    CHECK(stream == FAKE_STREAM);
    return add((struct work){set, to, 0, 4 * count, value});
}

static CUresult launch_kernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                              unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                              unsigned shared, CUstream stream, void **params, void **extra)
{
    CUdeviceptr pointers[2];
    CHECK(function != NULL && stream == FAKE_STREAM && extra == NULL);
    CHECK_EQ(grid_x + grid_y + grid_z + block_x + block_y + block_z + shared, 6);
    memcpy(&pointers[0], params[0], 8);
    memcpy(&pointers[1], params[1], 8);
    return add((struct work){multiply, pointers[0], pointers[1], BYTES, 0});
}

static CUresult stream_synchronize(CUstream stream)
{
    CHECK(stream == FAKE_STREAM);
    for (size_t i = 0; i < queued; i++)
        queue[i].run(&queue[i]);
    queued = 0;
    return CUDA_SUCCESS;
}

static void start(void)
{
    fake_start();
    ms_driver.memcpy_htod_async = memcpy_htod_async;
    ms_driver.memcpy_dtod_async = memcpy_dtod_async;
    ms_driver.memset_d8_async = memset_d8_async;
    ms_driver.memset_d32_async = memset_d32_async;
    ms_driver.launch_kernel = launch_kernel;
    ms_driver.stream_synchronize = stream_synchronize;
}

/* --- files */

MS_TEST(the_next_piece_of_a_file_waits_until_the_last_one_was_copied)
{
    enum { FILE_BYTES = 20 << 20 }; /* three pieces */
    static struct test_file file;
    start();
    make_test_file(&file, "/tmp", FILE_BYTES);
    const CUdeviceptr memory = fake_program_memory(FILE_BYTES);
    const struct ms_content content = {.kind = MS_SOURCE, .source = file.source};
    CHECK_EQ(ms_replay(&content, 0, memory, FILE_BYTES, FAKE_STREAM), CUDA_SUCCESS);
    CHECK_EQ(stream_synchronize(FAKE_STREAM), CUDA_SUCCESS);
    CHECK_BYTES(host(memory), file.data, FILE_BYTES);
    fake_program_memory_free(memory);
    ms_source_drop(file.source);
}

/* --- recorded launches */

static const struct ms_content ones = {.kind = MS_FILL, .pattern = 0xf1f2f3f4};
static const struct ms_content twos = {.kind = MS_FILL, .pattern = 0x22232425};

/* Of a block that was there, and is gone. `in`: the block that it reads; 0: its own. */
static struct ms_recorded_launch *record(CUdeviceptr out, CUdeviceptr in, uint64_t in_id)
{
    static char name[] = "multiply";
    struct ms_param_layout *layout = calloc(1, sizeof(*layout) + 2 * sizeof(layout->params[0]));
    *layout = (struct ms_param_layout){
        .counted = {.references = 1000}, .known = true, .count = 2, .bytes = 16, .name = name};
    layout->params[0] = (struct ms_param){0, 8};
    layout->params[1] = (struct ms_param){8, 8};
    const CUdeviceptr pointers[2] = {out, in != 0 ? in : out};
    const struct ms_packed packed = {.bytes = (const unsigned char *)pointers, .count = 16};
    const struct ms_call call = {
        .function = (CUfunction)1, .grid = {1, 1, 1}, .block = {1, 1, 1}, .stream = FAKE_STREAM};
    const size_t offsets[2] = {0, 8};
    struct ms_recorded_launch *recorded = ms_recorded_launch_create();
    recorded->launch = ms_call_record(&call, layout, &packed, offsets, 2);
    recorded->allocation_id = 4711;
    recorded->address = out;
    recorded->context = FAKE_CONTEXT;
    recorded->depth = 1;
    CHECK(ms_lineage_init(&recorded->before, BYTES));
    CHECK(ms_lineage_set(&recorded->before, 0, BYTES, &ones));
    if (in == 0)
        return recorded;
    recorded->input = calloc(1, sizeof(*recorded->input)); /* not dropped: it is not the heap's */
    recorded->input->allocation_id = in_id;
    recorded->input->address = in;
    CHECK(ms_lineage_init(&recorded->input->lineage, BYTES));
    CHECK(ms_lineage_set(&recorded->input->lineage, 0, BYTES, &ones));
    return recorded;
}

static void check_words(CUdeviceptr at, size_t bytes, size_t offset)
{
    unsigned char wanted[BYTES];
    const uint32_t word = 3 * UINT32_C(0xf1f2f3f4);
    for (size_t i = 0; i < bytes; i++)
        wanted[i] = (unsigned char)(word >> 8 * ((offset + i) & 3));
    CHECK_EQ(stream_synchronize(FAKE_STREAM), CUDA_SUCCESS);
    CHECK_BYTES(host(at), wanted, bytes);
}

MS_TEST_AFTER(start, scratch_memory_stays_until_the_launch_has_read_it)
{
    const CUdeviceptr memory = fake_program_memory(BYTES);
    const struct ms_recorded_launch *recorded = record(1 << 20, 1 << 30, 12);
    CHECK_EQ(ms_replay_launch(recorded, memory, 0, BYTES, FAKE_STREAM), CUDA_SUCCESS);
    check_words(memory, BYTES, 0);
    CHECK_EQ(fake.reservations, 1); /* the program's */
    fake_program_memory_free(memory);
}

MS_TEST_AFTER(start, an_input_that_was_written_since_is_not_read_in_its_place)
{
    struct ms_allocation *input = fake_allocation(BYTES);
    const CUdeviceptr memory = fake_program_memory(BYTES);
    struct ms_content now = twos;
    now.cached = true;
    fake_set(input, 0, BYTES, &now);
    memset(host(input->address), 0x22, BYTES);
    const struct ms_recorded_launch *recorded = record(1 << 20, input->address, input->id);
    const unsigned made = fake.calls[FAKE_mem_create];
    CHECK_EQ(ms_replay_launch(recorded, memory, 0, BYTES, FAKE_STREAM), CUDA_SUCCESS);
    check_words(memory, BYTES, 0);
    CHECK(fake.calls[FAKE_mem_create] > made);
    fake_allocation_free(input);
    fake_program_memory_free(memory);
}

MS_TEST_AFTER(start, an_input_that_is_what_it_was_is_read_in_its_place)
{
    struct ms_allocation *input = fake_allocation(BYTES);
    const CUdeviceptr memory = fake_program_memory(BYTES);
    struct ms_content now = ones;
    now.cached = true;
    fake_set(input, 0, BYTES, &now);
    CHECK_EQ(add((struct work){set, input->address, 0, BYTES, ones.pattern}), CUDA_SUCCESS);
    const struct ms_recorded_launch *recorded = record(1 << 20, input->address, input->id);
    const unsigned made = fake.calls[FAKE_mem_create];
    CHECK_EQ(ms_replay_launch(recorded, memory, 0, BYTES, FAKE_STREAM), CUDA_SUCCESS);
    check_words(memory, BYTES, 0);
    CHECK_EQ(fake.calls[FAKE_mem_create], made);
    fake_allocation_free(input);
    fake_program_memory_free(memory);
}

/* It holds what somebody else has left there, and each replay must give the same. */
MS_TEST_AFTER(start, what_an_input_in_its_place_never_got_is_defined)
{
    enum { WRITTEN = 64 };
    struct ms_allocation *input = fake_allocation(BYTES);
    const CUdeviceptr memory = fake_program_memory(BYTES);
    const struct ms_content undefined = {.kind = MS_UNDEFINED};
    struct ms_content now = ones;
    now.cached = true;
    fake_set(input, 0, BYTES, &now); /* so that it has memory */
    fake_set(input, WRITTEN, BYTES, &undefined);
    CHECK_EQ(add((struct work){set, input->address, 0, WRITTEN, ones.pattern}), CUDA_SUCCESS);
    memset(host(input->address + WRITTEN), 0x89, BYTES - WRITTEN);
    const struct ms_recorded_launch *recorded = record(1 << 20, input->address, input->id);
    CHECK(ms_lineage_set(&recorded->input->lineage, WRITTEN, BYTES, &undefined));
    const unsigned made = fake.calls[FAKE_mem_create];
    CHECK_EQ(ms_replay_launch(recorded, memory, 0, BYTES, FAKE_STREAM), CUDA_SUCCESS);
    check_words(memory, WRITTEN, 0);
    CHECK_EQ(fake.calls[FAKE_mem_create], made);
    CHECK_EQ(*(unsigned char *)host(memory + WRITTEN), 0);
    CHECK_EQ(*(unsigned char *)host(memory + BYTES - 1), 0);
    fake_allocation_free(input);
    fake_program_memory_free(memory);
}

/* Of a small block this may be all of it. */
MS_TEST_AFTER(start, an_input_that_was_never_written_has_scratch_memory_too)
{
    struct ms_allocation *input = fake_allocation(BYTES);
    const CUdeviceptr memory = fake_program_memory(BYTES);
    const struct ms_content undefined = {.kind = MS_UNDEFINED};
    const struct ms_recorded_launch *recorded = record(1 << 20, input->address, input->id);
    CHECK(ms_lineage_set(&recorded->input->lineage, 0, BYTES, &undefined));
    CHECK_EQ(ms_replay_launch(recorded, memory, 0, BYTES, FAKE_STREAM), CUDA_SUCCESS);
    CHECK_EQ(stream_synchronize(FAKE_STREAM), CUDA_SUCCESS);
    CHECK_EQ(*(unsigned char *)host(memory + BYTES - 1), 0);
    CHECK_EQ(input->backing.backed_bytes, 0);
    fake_allocation_free(input);
    fake_program_memory_free(memory);
}

/* Its window begins within a word, and ends within one. */
MS_TEST_AFTER(start, a_part_of_a_launch_is_replayed_by_whole_elements)
{
    enum { AT = 4097, PART = 30 };
    const CUdeviceptr memory = fake_program_memory(BYTES);
    const struct ms_content launched = {.kind = MS_LAUNCHED,
                                        .recorded = record(1 << 20, 0, 0),
                                        .source_offset = AT};
    CHECK_EQ(ms_replay_any(&launched, 0, memory, PART, FAKE_STREAM), CUDA_SUCCESS);
    check_words(memory, PART, AT);
    ms_scratch_drop();
    CHECK_EQ(fake.reservations, 1);
    fake_program_memory_free(memory);
}
