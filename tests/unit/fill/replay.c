/* SPDX-License-Identifier: Apache-2.0 */
/* Over a device that is late: nothing runs before somebody waits for it. */
#include "runtime/fill/replay.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/log.h"
#include "runtime/files/host_snapshot.h"
#include "runtime/fill/loaded.h"
#include "runtime/fill/scratch.h"
#include "runtime/kernel/call.h"
#include "runtime/memory/backing.h"
#include "runtime/memory/recorded_launch.h"
#include "runtime/memory/space.h"
#include "runtime/state/counters.h"
#include "tests/state/page_folder.h"
#include "tests/unit/between.h"
#include "tests/unit/counted_heap.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/files/files.h"
#include "tests/unit/parked_of.h"
#include "tests/unit/snapshot_of.h"

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

/* Records a launch on a block that is gone by now. `in`: the block that it reads; 0: its own. */
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

static CUresult replay_launch(const struct ms_recorded_launch *recorded, CUdeviceptr address,
                              size_t begin, size_t end, CUstream stream)
{
    CUresult result;
    CHECK(ms_replay_launch(recorded, address, (struct ms_range){begin, end},
                           (struct ms_range){0, 0}, stream, &result));
    return result;
}

MS_TEST_AFTER(start, scratch_memory_stays_until_the_launch_has_read_it)
{
    const CUdeviceptr memory = fake_program_memory(BYTES);
    const struct ms_recorded_launch *recorded = record(1 << 20, 1 << 30, 12);
    CHECK_EQ(replay_launch(recorded, memory, 0, BYTES, FAKE_STREAM), CUDA_SUCCESS);
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
    CHECK_EQ(replay_launch(recorded, memory, 0, BYTES, FAKE_STREAM), CUDA_SUCCESS);
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
    CHECK_EQ(replay_launch(recorded, memory, 0, BYTES, FAKE_STREAM), CUDA_SUCCESS);
    check_words(memory, BYTES, 0);
    CHECK_EQ(fake.calls[FAKE_mem_create], made);
    fake_allocation_free(input);
    fake_program_memory_free(memory);
}

/* It holds what somebody else has left there, and each replay must give the same. */
MS_TEST_AFTER(start, a_replay_defines_unwritten_bytes_of_an_input_in_place)
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
    CHECK_EQ(replay_launch(recorded, memory, 0, BYTES, FAKE_STREAM), CUDA_SUCCESS);
    check_words(memory, WRITTEN, 0);
    CHECK_EQ(fake.calls[FAKE_mem_create], made);
    CHECK_EQ(*(unsigned char *)host(memory + WRITTEN), 0);
    CHECK_EQ(*(unsigned char *)host(memory + BYTES - 1), 0);
    fake_allocation_free(input);
    fake_program_memory_free(memory);
}

/* A small block may be unwritten as a whole. */
MS_TEST_AFTER(start, an_input_that_was_never_written_has_scratch_memory_too)
{
    struct ms_allocation *input = fake_allocation(BYTES);
    const CUdeviceptr memory = fake_program_memory(BYTES);
    const struct ms_content undefined = {.kind = MS_UNDEFINED};
    const struct ms_recorded_launch *recorded = record(1 << 20, input->address, input->id);
    CHECK(ms_lineage_set(&recorded->input->lineage, 0, BYTES, &undefined));
    CHECK_EQ(replay_launch(recorded, memory, 0, BYTES, FAKE_STREAM), CUDA_SUCCESS);
    CHECK_EQ(stream_synchronize(FAKE_STREAM), CUDA_SUCCESS);
    CHECK_EQ(*(unsigned char *)host(memory + BYTES - 1), 0);
    CHECK_EQ(ms_allocation_backing(input)->backed_bytes, 0);
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

/* --- over a device that does all at once */

static size_t launches;
static CUresult launch_result;
static CUdeviceptr launched[2]; /* what the last one wrote to, and read */

static CUresult launch_at_once(CUfunction function, unsigned grid_x, unsigned grid_y,
                               unsigned grid_z, unsigned block_x, unsigned block_y,
                               unsigned block_z, unsigned shared, CUstream stream, void **params,
                               void **extra)
{
    (void)function, (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y;
    (void)block_z, (void)shared, (void)stream, (void)extra;
    memcpy(&launched[0], params[0], 8);
    memcpy(&launched[1], params[1], 8);
    launches++;
    return launch_result;
}

static void start_at_once(void)
{
    fake_start();
    ms_driver.launch_kernel = launch_at_once;
}

/* Whatever its bytes and where they begin. */
MS_TEST_AFTER(start_at_once, a_pattern_begins_where_its_block_does)
{
    enum { MOST_BYTES = 13 };
    const CUdeviceptr memory = fake_program_memory(FAKE_GRANULE);
    const struct ms_content content = {.kind = MS_FILL, .pattern = 0x04030201};
    for (size_t offset = 0; offset < 8; offset++) {
        for (size_t at = 0; at < 4; at++) {
            for (size_t bytes = 1; bytes < MOST_BYTES; bytes++) {
                unsigned char *place = host(memory + 16 + at);
                memset(place - 8, 0xee, 32);
                CHECK_EQ(ms_replay(&content, offset, memory + 16 + at, bytes, FAKE_STREAM),
                         CUDA_SUCCESS);
                for (size_t i = 0; i < bytes; i++)
                    CHECK_EQ(place[i], 1 + (offset + i) % 4);
                CHECK(place[-1] == 0xee && place[bytes] == 0xee);
            }
        }
    }
    const struct ms_content byte = {.kind = MS_FILL, .pattern = 0x05050505};
    const size_t work = fake.work_count;
    CHECK_EQ(ms_replay(&byte, 3, memory + 1, 30, FAKE_STREAM), CUDA_SUCCESS);
    CHECK_EQ(fake.work_count, work + 1); /* of one byte, that is one set */
    CHECK(*(unsigned char *)host(memory + 1) == 5 && *(unsigned char *)host(memory + 30) == 5);
    fake_program_memory_free(memory);
}

MS_TEST_AFTER(start_at_once, a_pattern_ends_with_the_first_failure)
{
    const CUdeviceptr memory = fake_program_memory(FAKE_GRANULE);
    const struct ms_content content = {.kind = MS_FILL, .pattern = 0x04030201};
    for (unsigned nth = 1;; nth++) {
        fake_fail(FAKE_ANY, nth, CUDA_ERROR_UNKNOWN);
        const size_t work = fake.work_count;
        const CUresult result = ms_replay(&content, 0, memory + 3, 18, FAKE_STREAM);
        if (!fake_has_failed())
            break;
        CHECK_EQ(result, CUDA_ERROR_UNKNOWN);
        CHECK_EQ(fake.work_count, work + nth - 1);
    }
    fake_fail(FAKE_ANY, 0, CUDA_SUCCESS);
    fake_program_memory_free(memory);
}

MS_TEST_AFTER(start_at_once, a_replay_counts_the_bytes_of_sources_it_sent)
{
    static struct test_file file;
    make_test_file(&file, "/tmp", FAKE_GRANULE);
    const CUdeviceptr memory = fake_program_memory(FAKE_GRANULE);
    struct ms_source *snapshot = snapshot_of(file.data, 1000);
    const struct ms_content content = {.kind = MS_SOURCE, .source = snapshot, .source_offset = 10},
                            of_file = {.kind = MS_SOURCE, .source = file.source};
    CHECK_EQ(ms_replay(&content, 0, memory, 100, FAKE_STREAM), CUDA_SUCCESS);
    CHECK_BYTES(host(memory), file.data + 10, 100);
    CHECK_EQ(ms_counter_get(MS_COUNT_H2D_BYTES), 100);
    fake.wait_result = CUDA_ERROR_LAUNCH_FAILED;
    CHECK_EQ(ms_replay(&of_file, 0, memory, 100, FAKE_STREAM), CUDA_ERROR_LAUNCH_FAILED);
    fake.wait_result = CUDA_SUCCESS;
    fake_fail(FAKE_memcpy_htod_async, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(ms_replay(&of_file, 0, memory, 100, FAKE_STREAM), CUDA_ERROR_UNKNOWN);
    CHECK_EQ(ms_counter_get(MS_COUNT_H2D_BYTES), 100);
    CHECK_EQ(truncate(file.path, 50), 0);
    CHECK(ms_replay(&of_file, 0, memory, 100, FAKE_STREAM) != CUDA_SUCCESS);
    CHECK_EQ(ms_counter_get(MS_COUNT_H2D_BYTES), 100);
    ms_source_drop(snapshot);
    ms_source_drop(file.source);
    fake_program_memory_free(memory);
}

enum { MIB = 1 << 20, PIECE = 8 * MIB /* of a file, at most */ };

MS_TEST_AFTER(start_at_once, files_come_in_pieces_and_snapshots_at_once)
{
    static const struct {
        size_t bytes;
        unsigned pieces;
    } rows[] = {{1, 1}, {PIECE, 1}, {PIECE + 1, 2}, {2 * PIECE, 2}};
    static struct test_file file;
    make_test_file(&file, "/tmp", (size_t)2 * PIECE);
    const CUdeviceptr memory = fake_program_memory((size_t)2 * PIECE);
    const struct ms_content content = {.kind = MS_SOURCE, .source = file.source};
    for (size_t i = 0; i < 4; i++) {
        const unsigned before = fake.calls[FAKE_memcpy_htod_async];
        const int there = live;
        CHECK_EQ(ms_replay(&content, 0, memory, rows[i].bytes, FAKE_STREAM), CUDA_SUCCESS);
        CHECK_EQ(live, there);
        CHECK_EQ(fake.calls[FAKE_memcpy_htod_async], before + rows[i].pieces);
        CHECK_BYTES(host(memory), file.data, rows[i].bytes);
    }
    unsigned before = fake.calls[FAKE_memcpy_htod_async];
    fake_fail(FAKE_memcpy_htod_async, 1, CUDA_ERROR_UNKNOWN); /* what follows is not sent */
    CHECK_EQ(ms_replay(&content, 0, memory, PIECE + 1, FAKE_STREAM), CUDA_ERROR_UNKNOWN);
    CHECK_EQ(fake.calls[FAKE_memcpy_htod_async], before + 1);
    may_make = 0;
    CHECK_EQ(ms_replay(&content, 0, memory, 1, FAKE_STREAM), CUDA_ERROR_OUT_OF_MEMORY);
    may_make = 1000000;
    CHECK_EQ(fake.calls[FAKE_memcpy_htod_async], before + 1);

    struct ms_source *snapshot = snapshot_of(file.data, PIECE + 1);
    const struct ms_content of_host = {.kind = MS_SOURCE, .source = snapshot};
    before = fake.calls[FAKE_memcpy_htod_async];
    memset(host(memory), 0, PIECE + 1);
    CHECK_EQ(ms_replay(&of_host, 0, memory, PIECE + 1, FAKE_STREAM), CUDA_SUCCESS);
    CHECK_EQ(fake.calls[FAKE_memcpy_htod_async], before + 1);
    CHECK_BYTES(host(memory), file.data, PIECE + 1);
    ms_source_drop(snapshot);
    ms_source_drop(file.source);
    fake_program_memory_free(memory);
}

MS_TEST_AFTER(start_at_once, parked_bytes_are_copied_when_they_are_written)
{
    struct ms_parked *parked;
    CUevent event;
    const CUdeviceptr memory = fake_program_memory(FAKE_GRANULE);
    CHECK_EQ(ms_parked_create(FAKE_CONTEXT, 0, FAKE_GRANULE, false, &parked), CUDA_SUCCESS);
    memset(bytes_of_parked(parked) + 100, 5, 10);
    const struct ms_content content = {.kind = MS_PARKED, .parked = parked, .source_offset = 100};
    CHECK_EQ(ms_replay(&content, 0, memory, 10, FAKE_STREAM), CUDA_ERROR_NOT_PERMITTED);
    CHECK_EQ(fake.work_count, 0);
    CHECK_EQ(ms_driver.event_create(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    ms_parked_attach_event(parked, event);
    CHECK_EQ(ms_replay(&content, 0, memory, 10, FAKE_STREAM), CUDA_SUCCESS);
    CHECK_EQ(fake.calls[FAKE_event_synchronize], 1);
    CHECK(*(unsigned char *)host(memory) == 5 && *(unsigned char *)host(memory + 9) == 5);
    ms_parked_drop(parked);
    fake_program_memory_free(memory);
}

/* --- streams */

static CUstream stream_of(uintptr_t context)
{
    CUstream stream = NULL;
    CHECK_EQ(ms_replay_stream((CUcontext)context, &stream), CUDA_SUCCESS);
    CHECK(stream != NULL);
    return stream;
}

MS_TEST_AFTER(start_at_once, each_context_has_a_stream)
{
    const CUstream one = stream_of(1), two = stream_of(2), three = stream_of(3);
    CHECK(one != two && two != three && one != three);
    CHECK(stream_of(1) == one && stream_of(2) == two && stream_of(3) == three);
    CHECK_EQ(fake.streams, 3);
    ms_replay_forget_stream((CUcontext)1);
    ms_replay_forget_stream((CUcontext)4);
    CHECK(stream_of(2) == two && stream_of(3) == three);
    CHECK_EQ(fake.streams, 3);
    const CUstream again = stream_of(1); /* of a new context */
    CHECK(again != one && stream_of(1) == again);
    CHECK_EQ(fake.streams, 4);
    ms_replay_forget_stream((CUcontext)1); /* the last one of the table */
    CHECK(stream_of(1) != again);
    CHECK_EQ(fake.streams, 5);
    fake_fail(FAKE_stream_create, 1, CUDA_ERROR_OUT_OF_MEMORY);
    CUstream none;
    CHECK_EQ(ms_replay_stream((CUcontext)5, &none), CUDA_ERROR_OUT_OF_MEMORY);
}

/* Each context gets a stream, even if there are more contexts than notes. */
MS_TEST_AFTER(start_at_once, very_many_contexts_have_streams)
{
    enum { MANY = 1000 };
    for (uintptr_t context = 1; context <= MANY; context++)
        stream_of(context);
    CHECK_EQ(fake.streams, MANY);
    for (uintptr_t context = 1; context <= 8; context++)
        stream_of(context);
    CHECK_EQ(fake.streams, MANY);
    for (uintptr_t context = 1; context <= MANY; context++)
        ms_replay_forget_stream((CUcontext)context);
    stream_of(1);
    CHECK_EQ(fake.streams, MANY + 1);
}

/* --- a launch, and the block that it has read */

static struct ms_allocation *input;
static CUdeviceptr memory;
static struct ms_content input_now;

static void start_with_input(void)
{
    start_at_once();
    input = fake_allocation(BYTES);
    memory = fake_program_memory(BYTES);
    input_now = ones;
    input_now.cached = true;
    fake_set(input, 0, BYTES, &input_now);
}

static void end_with_input(void)
{
    fake_allocation_free(input);
    fake_program_memory_free(memory);
    fake_check_empty();
}

/* Records a launch that reads the input from this offset on. */
static struct ms_recorded_launch *record_reader(size_t offset)
{
    return record(1 << 20, input->address + offset, input->id);
}

static CUresult run(const struct ms_recorded_launch *recorded)
{
    return replay_launch(recorded, memory, 0, BYTES, FAKE_STREAM);
}

/* Whether it has read the input in its place. */
static bool runs_beside_input(const struct ms_recorded_launch *recorded)
{
    launched[1] = 0;
    const size_t before = launches;
    CHECK_EQ(run(recorded), CUDA_SUCCESS);
    CHECK_EQ(launches, before + 1);
    CHECK_EQ(launched[0], memory);
    return launched[1] == input->address;
}

MS_TEST_BETWEEN(start_with_input, end_with_input, only_the_same_bytes_are_read_in_their_place)
{
    struct ms_recorded_launch *recorded = record_reader(0);
    CHECK(runs_beside_input(recorded));
    recorded->input->allocation_id++;
    CHECK(!runs_beside_input(recorded));
    recorded->input->allocation_id--;
    fake_set(input, BYTES - 4, BYTES, &ones); /* cannot be played from memory: not cached */
    CHECK(!runs_beside_input(recorded));
    fake_set(input, BYTES - 4, BYTES, &input_now);
    CHECK(runs_beside_input(recorded));
    fake_set(input, BYTES - 4, BYTES, &(struct ms_content){.kind = MS_RESIDENT});
    CHECK(!runs_beside_input(recorded));
    struct ms_content other = twos;
    other.cached = true;
    fake_set(input, BYTES - 4, BYTES, &other);
    CHECK(!runs_beside_input(recorded));
}

/* The same pattern, from other offsets on. */
MS_TEST_BETWEEN(start_with_input, end_with_input, a_pattern_is_the_same_where_it_stands_the_same)
{
    struct ms_content shifted = input_now;
    shifted.pattern = ms_lineage_move_pattern(ones.pattern, 0, 2);
    fake_set(input, 0, BYTES, &shifted);
    struct ms_recorded_launch *recorded = record_reader(2);
    ms_lineage_cleanup(&recorded->input->lineage);
    CHECK(ms_lineage_init(&recorded->input->lineage, 100));
    CHECK(ms_lineage_set(&recorded->input->lineage, 0, 100, &ones));
    CHECK_EQ(run(recorded), CUDA_SUCCESS);
    CHECK_EQ(launched[1], input->address + 2);
    fake_set(input, 0, BYTES, &input_now);
    CHECK_EQ(run(recorded), CUDA_SUCCESS);
    CHECK(launched[1] != input->address + 2);
}

MS_TEST_BETWEEN(start_with_input, end_with_input, a_replay_reads_no_input_beyond_its_allocation)
{
    struct ms_recorded_launch *recorded = record_reader(4);
    CHECK_EQ(run(recorded), CUDA_SUCCESS);
    CHECK(launched[1] != input->address + 4);
    recorded = record_reader(4);
    ms_lineage_cleanup(&recorded->input->lineage);
    CHECK(ms_lineage_init(&recorded->input->lineage, BYTES - 4));
    CHECK(ms_lineage_set(&recorded->input->lineage, 0, BYTES - 4, &ones));
    CHECK_EQ(run(recorded), CUDA_SUCCESS);
    CHECK_EQ(launched[1], input->address + 4);
}

MS_TEST_BETWEEN(start_with_input, end_with_input, a_replay_reads_no_input_partly_without_memory)
{
    const struct ms_content undefined = {.kind = MS_UNDEFINED};
    struct ms_recorded_launch *recorded = record_reader(0);
    CHECK(ms_lineage_set(&recorded->input->lineage, FAKE_GRANULE, BYTES, &undefined));
    fake_set(input, 0, BYTES, &undefined);
    ms_backing_uncover(ms_allocation_memory(input), 0, BYTES, false);
    fake_set(input, 0, FAKE_GRANULE, &input_now);
    CHECK(!runs_beside_input(recorded));
    CHECK(ms_space_claim(input->address) == input);
    CHECK_EQ(ms_backing_cover(ms_allocation_memory(input), FAKE_GRANULE, BYTES), CUDA_SUCCESS);
    ms_space_release(input);
    CHECK(runs_beside_input(recorded));
}

MS_TEST_BETWEEN(start_with_input, end_with_input,
                a_replay_reads_no_input_without_memory_at_its_start)
{
    const struct ms_content undefined = {.kind = MS_UNDEFINED};
    struct ms_recorded_launch *recorded = record_reader(0);
    CHECK(ms_lineage_set(&recorded->input->lineage, 0, FAKE_GRANULE, &undefined));
    fake_set(input, 0, BYTES, &undefined);
    ms_backing_uncover(ms_allocation_memory(input), 0, BYTES, false);
    fake_set(input, FAKE_GRANULE, BYTES, &input_now);
    CHECK(!runs_beside_input(recorded));
    fake_set(input, 0, BYTES, &input_now);
    fake_set(input, 0, FAKE_GRANULE, &undefined);
    CHECK(runs_beside_input(recorded));
}

/* A source must have the same bytes. */
MS_TEST_BETWEEN(start_with_input, end_with_input, a_source_is_the_same_at_the_same_offset)
{
    static struct test_file file, other;
    make_test_file(&file, "/tmp", BYTES);
    make_test_file(&other, "/tmp", BYTES);
    const struct ms_content then = {.kind = MS_SOURCE, .source = file.source, .source_offset = 8};
    struct ms_content now = then;
    struct ms_recorded_launch *recorded = record_reader(0);
    CHECK(ms_lineage_set(&recorded->input->lineage, 0, 1000, &then));
    CHECK(!runs_beside_input(recorded));
    now.cached = true;
    fake_set(input, 0, 1000, &now);
    CHECK(runs_beside_input(recorded));
    now.source_offset = 4;
    fake_set(input, 0, 1000, &now);
    CHECK(!runs_beside_input(recorded));
    now.source_offset = 8;
    now.source = other.source;
    fake_set(input, 0, 1000, &now);
    CHECK(!runs_beside_input(recorded));
    fake_set(input, 0, BYTES, &input_now);
    ms_lineage_cleanup(&recorded->input->lineage);
    ms_source_drop(file.source);
    ms_source_drop(other.source);
}

static void *run_elsewhere(void *recorded)
{
    CHECK(!runs_beside_input(recorded));
    return NULL;
}

MS_TEST_BETWEEN(start_with_input, end_with_input, a_replay_reads_no_input_another_thread_works_on)
{
    struct ms_recorded_launch *recorded = record_reader(0);
    pthread_t other;
    CHECK(ms_space_claim(input->address) == input);
    CHECK_EQ(pthread_create(&other, NULL, run_elsewhere, recorded), 0);
    CHECK_EQ(pthread_join(other, NULL), 0);
    ms_space_release(input);
    CHECK(runs_beside_input(recorded));
    CHECK(ms_space_try_claim(input->address) == input); /* nor is it held afterwards */
    ms_space_release(input);
}

/* Where it runs in its own place, its allocation is claimed by who asked. */
MS_TEST_BETWEEN(start_with_input, end_with_input,
                a_replay_reads_an_input_beside_it_in_its_allocation)
{
    struct ms_recorded_launch *recorded = record_reader(0);
    ms_lineage_cleanup(&recorded->input->lineage);
    CHECK(ms_lineage_init(&recorded->input->lineage, FAKE_GRANULE));
    CHECK(ms_lineage_set(&recorded->input->lineage, 0, FAKE_GRANULE, &ones));
    ms_lineage_cleanup(&recorded->before);
    CHECK(ms_lineage_init(&recorded->before, FAKE_GRANULE));
    recorded->allocation_id = input->id;
    recorded->address = input->address + FAKE_GRANULE;
    CHECK(ms_space_claim(input->address) == input);
    CUresult result;
    CHECK(ms_replay_launch(recorded, recorded->address, (struct ms_range){0, FAKE_GRANULE},
                           (struct ms_range){0, 0}, FAKE_STREAM, &result));
    CHECK_EQ(result, CUDA_SUCCESS);
    ms_space_release(input);
    CHECK_EQ(launched[1], input->address);
}

/* As where the result belongs into the allocation of the input. */
MS_TEST_BETWEEN(start_with_input, end_with_input,
                a_replay_reads_an_input_that_its_thread_has_claimed)
{
    struct ms_recorded_launch *recorded = record_reader(0);
    CHECK(ms_space_claim(input->address) == input);
    CHECK(runs_beside_input(recorded));
    CHECK(ms_space_try_claim(input->address) == NULL); /* the claim goes on */
    ms_space_release(input);
    CHECK(runs_beside_input(recorded));
}

/* The sink of the output may lie there. */
MS_TEST_BETWEEN(start_with_input, end_with_input, a_claimed_input_has_all_of_its_memory)
{
    const struct ms_content undefined = {.kind = MS_UNDEFINED};
    struct ms_recorded_launch *recorded = record_reader(0);
    recorded->input->loads =
        (struct ms_loads){.bytes = BYTES, .in_row = 4, .in_step = 4, .out_step = 4};
    fake_set(input, 0, BYTES, &undefined);
    ms_backing_uncover(ms_allocation_memory(input), 0, BYTES, false);
    fake_set(input, 0, FAKE_GRANULE, &input_now);
    CHECK_EQ(replay_launch(recorded, memory, 0, FAKE_GRANULE, FAKE_STREAM), CUDA_SUCCESS);
    CHECK_EQ(launched[1], input->address);
    CHECK(ms_space_claim(input->address) == input);
    CHECK_EQ(replay_launch(recorded, memory, 0, FAKE_GRANULE, FAKE_STREAM), CUDA_SUCCESS);
    CHECK(launched[1] != input->address);
    ms_space_release(input);
}

MS_TEST_BETWEEN(start_with_input, end_with_input, each_piece_of_an_input_is_looked_at)
{
    enum { AT = FAKE_GRANULE + 4, MIDDLE = 100, LENGTH = 300 };
    const struct ms_content one = {.kind = MS_FILL, .pattern = 0x01010101, .cached = true},
                            two = {.kind = MS_FILL, .pattern = 0x02020202, .cached = true};
    struct ms_recorded_launch *recorded = record_reader(AT);
    ms_lineage_cleanup(&recorded->input->lineage);
    CHECK(ms_lineage_init(&recorded->input->lineage, LENGTH));
    struct ms_content then = one;
    then.cached = false;
    CHECK(ms_lineage_set(&recorded->input->lineage, 0, MIDDLE, &then));
    then.pattern = two.pattern;
    CHECK(ms_lineage_set(&recorded->input->lineage, MIDDLE, LENGTH, &then));
    fake_set(input, AT, AT + MIDDLE, &one);
    fake_set(input, AT + MIDDLE, AT + LENGTH, &two);
    CHECK_EQ(run(recorded), CUDA_SUCCESS);
    CHECK_EQ(launched[1], input->address + AT);
    static const size_t changed[] = {0, MIDDLE - 1, MIDDLE, LENGTH - 1};
    for (size_t i = 0; i < 4; i++) {
        fake_set(input, AT + changed[i], AT + changed[i] + 1, &input_now);
        CHECK_EQ(run(recorded), CUDA_SUCCESS);
        CHECK(launched[1] != input->address + AT);
        fake_set(input, AT + changed[i], AT + changed[i] + 1, i < 2 ? &one : &two);
    }
    fake_set(input, AT - 1, AT, &one); /* beside it */
    fake_set(input, AT + LENGTH, AT + LENGTH + 1, &one);
    CHECK_EQ(run(recorded), CUDA_SUCCESS);
    CHECK_EQ(launched[1], input->address + AT);
}

/* In both ways: the failure is answered, nothing stays, and what is first wins. */
MS_TEST_BETWEEN(start_with_input, end_with_input, a_launch_that_cannot_run_again_is_told)
{
    open_log(MS_ERROR);
    struct ms_recorded_launch *recorded = record_reader(0);
    for (int i = 0; i < 2; i++) {
        recorded->input->allocation_id += (uint64_t)i; /* 1: is not read in its place */
        const size_t before = launches;
        launch_result = CUDA_ERROR_LAUNCH_FAILED;
        CHECK_EQ(run(recorded), CUDA_ERROR_LAUNCH_FAILED);
        fake.wait_result = CUDA_ERROR_ILLEGAL_ADDRESS;
        CHECK_EQ(run(recorded), CUDA_ERROR_LAUNCH_FAILED);
        launch_result = CUDA_SUCCESS;
        CHECK_EQ(run(recorded), CUDA_ERROR_ILLEGAL_ADDRESS);
        fake.wait_result = CUDA_SUCCESS;
        CHECK_EQ(launches, before + 3);
        fake_check_allocation(input);
    }
    CHECK_EQ(count_log_lines("the recorded launch of multiply cannot be run again: CUDA error 719"),
             4);
    CHECK_EQ(count_log_lines("the recorded launch of multiply cannot be run again: CUDA error 700"),
             2);
    CHECK_EQ(ms_counter_get(MS_COUNT_REPLAYED_LAUNCHES), 0);
    launch_result = CUDA_ERROR_OUT_OF_MEMORY; /* told by who handles it */
    CHECK_EQ(run(recorded), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(count_log_lines("cannot be run again"), 6);
}

/* No call that replays what the launch has met, and read, may fail. */
MS_TEST_BETWEEN(start_with_input, end_with_input, a_replay_without_its_input_launches_nothing)
{
    struct ms_recorded_launch *recorded = record_reader(0);
    recorded->input->allocation_id++;
    for (unsigned nth = 1;; nth++) {
        const size_t before = launches, reservations = fake.reservations;
        fake_fail(FAKE_ANY, nth, CUDA_ERROR_OUT_OF_MEMORY);
        const CUresult result = run(recorded);
        const bool has_failed = fake_has_failed();
        fake_fail(FAKE_ANY, 0, CUDA_SUCCESS);
        CHECK_EQ(fake.reservations, reservations);
        CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_EQ(launches, before + (result == CUDA_SUCCESS));
        if (!has_failed)
            break;
    }
}

MS_TEST_BETWEEN(start_with_input, end_with_input,
                a_replay_that_cannot_define_its_input_launches_nothing)
{
    const struct ms_content undefined = {.kind = MS_UNDEFINED};
    struct ms_recorded_launch *recorded = record_reader(0);
    fake_set(input, 0, BYTES, &undefined); /* and has memory */
    CHECK(ms_lineage_set(&recorded->input->lineage, 0, BYTES, &undefined));
    fake_fail(FAKE_memset_d8_async, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(run(recorded), CUDA_ERROR_UNKNOWN);
    CHECK_EQ(launches, 0);
    CHECK(runs_beside_input(recorded));
}

MS_TEST_BETWEEN(start_with_input, end_with_input, a_replayed_launch_is_counted_and_an_event)
{
    size_t replays = 0;
    page_folder_make();
    page_start(MS_STATE_LEAST_BYTES);
    CHECK_EQ(replay_launch(record_reader(0), memory, 16, 48, FAKE_STREAM), CUDA_SUCCESS);
    CHECK_EQ(ms_counter_get(MS_COUNT_REPLAYED_LAUNCHES), 1);
    struct ms_snapshot snapshot = page_read(getpid());
    for (size_t i = 0; i < snapshot.event_count; i++) {
        const struct ms_state_event *event = &snapshot.events[i];
        if (event->kind != MS_EVENT_REPLAY)
            continue;
        replays++;
        CHECK(event->block == 4711 && event->address == (1 << 20) + 16 && event->bytes == 32);
        CHECK(strcmp(event->text, "multiply") == 0);
    }
    CHECK_EQ(replays, 1);
    ms_snapshot_cleanup(&snapshot);
}

/* --- parts of a launch, in scratch memory */

enum { LARGE = 40 * MIB };

static struct {
    size_t offset, bytes;
} uses[MOST];
static size_t used;
static CUresult use_result;

static CUresult note_use(CUdeviceptr made, size_t offset, size_t bytes, CUstream stream,
                         void *argument)
{
    CHECK(made != 0 && stream == FAKE_STREAM && argument == uses && used < MOST);
    CHECK_EQ(made - launched[0], offset);
    uses[used].offset = offset;
    uses[used++].bytes = bytes;
    return use_result;
}

static struct ms_recorded_launch *record_large(void)
{
    struct ms_recorded_launch *recorded = record(1 << 20, 0, 0);
    ms_lineage_cleanup(&recorded->before);
    CHECK(ms_lineage_init(&recorded->before, LARGE));
    return recorded;
}

/* At most, and without the shim: all of it is freed. */
static void the_program_had(int64_t bytes)
{
    ms_space_count_promised(0, bytes);
    ms_space_count_promised(0, -bytes);
}

static CUresult use_part(const struct ms_recorded_launch *recorded, size_t offset, size_t bytes)
{
    used = 0;
    return ms_replay_in_scratch(recorded, offset, bytes, FAKE_STREAM, note_use, uses);
}

/* They follow each other, each but the last of so many bytes. */
static void check_uses(size_t offset, size_t bytes, size_t each)
{
    size_t done = 0;
    for (size_t i = 0; i < used; i++) {
        CHECK_EQ(uses[i].offset, offset + done);
        CHECK_EQ(uses[i].bytes, bytes - done < each ? bytes - done : each);
        done += uses[i].bytes;
    }
    CHECK_EQ(done, bytes);
}

/* Another tensor has the middle of the bytes in memory. */
static void check_sent(struct ms_source *source, const unsigned char *data, size_t begin,
                       size_t end, size_t sent)
{
    struct ms_recorded_launch *recorded = record_large();
    struct ms_allocation *other = fake_allocation(MIB);
    struct ms_content content = {.kind = MS_SOURCE, .source = source};
    const CUdeviceptr block = fake_program_memory(LARGE);
    CHECK(ms_lineage_set(&recorded->before, 0, MIB, &content));
    content.cached = true;
    content.source_offset = begin;
    fake_set(other, 0, end - begin, &content);
    memcpy(host(other->address), data + begin, end - begin);
    ms_loaded_note(&(struct ms_loaded_place){source, begin, end - begin, other->address},
                   MS_LOADED_IS_THERE);
    const uint64_t before = ms_counter_get(MS_COUNT_H2D_BYTES);
    CHECK_EQ(replay_launch(recorded, block, 0, MIB, FAKE_STREAM), CUDA_SUCCESS);
    CHECK_EQ(ms_counter_get(MS_COUNT_H2D_BYTES) - before, sent);
    CHECK_BYTES(host(block), data, MIB);
    fake_program_memory_free(block);
    fake_allocation_free(other);
    ms_lineage_cleanup(&recorded->before);
}

MS_TEST_AFTER(start_at_once, a_replay_copies_bytes_of_a_source_that_are_in_memory)
{
    static struct test_file file;
    make_test_file(&file, "/tmp", MIB);
    struct ms_source *snapshot = snapshot_of(file.data, MIB);
    check_sent(file.source, file.data, MIB / 4, MIB / 2, MIB - MIB / 4);
    ms_host_snapshot_share(snapshot);
    check_sent(snapshot, file.data, MIB / 4, MIB / 2, MIB - MIB / 4);
    ms_source_drop(snapshot);
    ms_source_drop(file.source);
}

MS_TEST_AFTER(start_at_once, a_large_part_is_made_in_four_windows)
{
    const struct ms_recorded_launch *recorded = record_large();
    the_program_had(2 * LARGE);
    CHECK_EQ(use_part(recorded, 3 * MIB, 36 * MIB), CUDA_SUCCESS);
    check_uses(3 * MIB, 36 * MIB, 9 * MIB);
    CHECK_EQ(use_part(recorded, 0, 4 * MIB), CUDA_SUCCESS);
    check_uses(0, 4 * MIB, 4 * MIB);
    CHECK_EQ(use_part(recorded, 16, 0), CUDA_SUCCESS);
    CHECK_EQ(used, 0);
    ms_scratch_drop();
    fake_check_empty();
}

/* The first one would be the ninth MiB. */
MS_TEST_AFTER(start_at_once, windows_are_small_where_the_program_had_little)
{
    const struct ms_recorded_launch *recorded = record_large();
    the_program_had(9 * MIB - 1);
    CHECK_EQ(use_part(recorded, 3 * MIB, 36 * MIB), CUDA_SUCCESS);
    check_uses(3 * MIB, 36 * MIB, 8 * MIB - MS_SCRATCH_ALIGNMENT);
    ms_scratch_drop();
    fake_check_empty();
}

/* Who allows it gets the refusal, and no smaller window. */
MS_TEST_AFTER(start_at_once, a_refusal_ends_the_replay)
{
    const struct ms_recorded_launch *recorded = record_large();
    ms_scratch_may_refuse(true);
    CHECK_EQ(use_part(recorded, 0, 4 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(used, 0);
    CHECK(ms_scratch_take_refusal().bytes > 0);
    CHECK_EQ(use_part(recorded, 0, 4 * MIB), CUDA_SUCCESS);
    ms_scratch_drop();
    fake_check_empty();
}

/* After it the old content would be sent once more. */
MS_TEST_AFTER(start, the_input_is_asked_for_before_the_old_content_is_made)
{
    const CUdeviceptr place = fake_program_memory(BYTES);
    const struct ms_recorded_launch *recorded = record(1 << 20, 1 << 30, 12);
    ms_scratch_may_refuse(true);
    CHECK_EQ(replay_launch(recorded, place, 0, BYTES, FAKE_STREAM), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(queued, 0);
    CHECK(ms_scratch_take_refusal().bytes > 0);
    CHECK_EQ(replay_launch(recorded, place, 0, BYTES, FAKE_STREAM), CUDA_SUCCESS);
    check_words(place, BYTES, 0);
    fake_program_memory_free(place);
}

MS_TEST_AFTER(start_at_once, a_window_has_a_least_size)
{
    const struct ms_recorded_launch *recorded = record_large();
    the_program_had(2 * LARGE);
    CHECK_EQ(use_part(recorded, 0, 20 * MIB), CUDA_SUCCESS);
    check_uses(0, 20 * MIB, 8 * MIB - MS_SCRATCH_ALIGNMENT);
    CHECK_EQ(use_part(recorded, 0, 32 * MIB), CUDA_SUCCESS);
    check_uses(0, 32 * MIB, 8 * MIB - MS_SCRATCH_ALIGNMENT);
    CHECK_EQ(use_part(recorded, 0, 32 * MIB + 4), CUDA_SUCCESS);
    check_uses(0, 32 * MIB + 4, 8 * MIB + 1);
    ms_scratch_drop();
    fake_check_empty();
}

MS_TEST_AFTER(start_at_once, a_replay_has_smaller_windows_where_memory_is_short)
{
    const struct ms_recorded_launch *recorded = record_large();
    the_program_had(2 * LARGE);
    fake.total_bytes = 9 * MIB;
    CHECK_EQ(use_part(recorded, 0, LARGE), CUDA_SUCCESS);
    check_uses(0, LARGE, 8 * MIB);
    ms_scratch_drop();
    fake.total_bytes = 4 * MIB;
    CHECK_EQ(use_part(recorded, 0, LARGE), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(used, 0);
    ms_scratch_drop();
    fake_check_empty();
}

/* To no less than half, if that is a multiple of the least size. */
MS_TEST_AFTER(start_at_once, a_replay_halves_a_window_where_memory_is_short_once)
{
    const struct ms_recorded_launch *recorded = record_large();
    the_program_had(2 * LARGE);
    fake.total_bytes = (size_t)256 * 16 * MIB;
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(use_part(recorded, 0, LARGE), CUDA_SUCCESS);
    CHECK(fake_has_failed());
    check_uses(0, LARGE, 8 * MIB);
    ms_scratch_drop();
    fake_check_empty();
}

MS_TEST_AFTER(start_at_once, a_replay_in_parts_ends_at_the_first_failure)
{
    const struct ms_recorded_launch *recorded = record_large();
    use_result = CUDA_ERROR_UNKNOWN;
    CHECK_EQ(use_part(recorded, 0, 40 * MIB), CUDA_ERROR_UNKNOWN);
    CHECK_EQ(used, 1);
    fake.wait_result = CUDA_ERROR_LAUNCH_FAILED;
    CHECK_EQ(use_part(recorded, 0, 40 * MIB), CUDA_ERROR_UNKNOWN);
    use_result = CUDA_SUCCESS;
    CHECK_EQ(use_part(recorded, 0, 40 * MIB), CUDA_ERROR_LAUNCH_FAILED);
    fake.wait_result = CUDA_SUCCESS;
    launch_result = CUDA_ERROR_LAUNCH_FAILED;
    CHECK_EQ(use_part(recorded, 0, 40 * MIB), CUDA_ERROR_LAUNCH_FAILED);
    CHECK_EQ(used, 0);
    launch_result = CUDA_SUCCESS;
    CHECK_EQ(use_part(recorded, 0, 8), CUDA_SUCCESS);
    ms_scratch_drop();
    fake_check_empty();
}

/* The replays of the page: where they begin, and their bytes. */
static size_t list_replays(struct ms_range *ranges, size_t most)
{
    struct ms_snapshot snapshot = page_read(getpid());
    size_t count = 0;
    for (size_t i = 0; i < snapshot.event_count; i++) {
        const struct ms_state_event *event = &snapshot.events[i];
        if (event->kind != MS_EVENT_REPLAY)
            continue;
        CHECK(count < most);
        ranges[count++] = (struct ms_range){event->address, event->address + event->bytes};
    }
    ms_snapshot_cleanup(&snapshot);
    return count;
}

/* Elements have at most 16 bytes; the last one ends with the block. */
MS_TEST_AFTER(start_at_once, a_window_is_of_whole_elements)
{
    enum { BLOCK = 1004, PARTS = 4 };
    static const size_t parts[PARTS][4] = {
        {96, 32, 96, 128}, {97, 30, 96, 128}, {95, 34, 80, 144}, {1000, 4, 992, BLOCK}};
    struct ms_range replays[PARTS];
    struct ms_recorded_launch *recorded = record(1 << 20, 0, 0);
    ms_lineage_cleanup(&recorded->before);
    CHECK(ms_lineage_init(&recorded->before, BLOCK));
    page_folder_make();
    page_start(MS_STATE_LEAST_BYTES);
    for (size_t i = 0; i < PARTS; i++) {
        CHECK_EQ(use_part(recorded, parts[i][0], parts[i][1]), CUDA_SUCCESS);
        check_uses(parts[i][0], parts[i][1], parts[i][1]);
    }
    CHECK_EQ(list_replays(replays, PARTS), PARTS);
    for (size_t i = 0; i < PARTS; i++) {
        CHECK_EQ(replays[i].begin, (1 << 20) + parts[i][2]);
        CHECK_EQ(replays[i].end, (1 << 20) + parts[i][3]);
    }
    ms_scratch_drop();
    fake_check_empty();
}

/* --- launches before a launch */

/* What `of` has made, from an offset on. */
static struct ms_content made_by(struct ms_recorded_launch *of, size_t offset)
{
    return (struct ms_content){.kind = MS_LAUNCHED, .recorded = of, .source_offset = offset};
}

MS_TEST_AFTER(start_at_once, a_launch_before_runs_once_in_its_place)
{
    const CUdeviceptr block = fake_program_memory(BYTES);
    struct ms_recorded_launch *first = record(1 << 20, 0, 0), *second = record(1 << 20, 0, 0);
    const struct ms_content made = made_by(first, 0), later = made_by(first, 200);
    CHECK(ms_lineage_set(&second->before, 0, 100, &made));
    CHECK(ms_lineage_set(&second->before, 200, 300, &later));
    CHECK_EQ(replay_launch(second, block, 0, BYTES, FAKE_STREAM), CUDA_SUCCESS);
    CHECK_EQ(launches, 2);
    CHECK_EQ(fake.reservations, 1); /* without scratch memory */
    CHECK_EQ(*(unsigned char *)host(block + 101), 0xf3);
    CHECK_EQ(replay_launch(second, block, 100, 200, FAKE_STREAM), CUDA_SUCCESS);
    CHECK_EQ(launches, 3); /* nothing of the first is in that */
    const unsigned sets = fake.calls[FAKE_memset_d8_async] + fake.calls[FAKE_memset_d32_async];
    launch_result = CUDA_ERROR_LAUNCH_FAILED; /* what is behind the part of the first is not made */
    CHECK_EQ(replay_launch(second, block, 0, BYTES, FAKE_STREAM), CUDA_ERROR_LAUNCH_FAILED);
    launch_result = CUDA_SUCCESS;
    CHECK_EQ(launches, 4);
    CHECK(fake.calls[FAKE_memset_d8_async] + fake.calls[FAKE_memset_d32_async] <= sets + 1);
    fake_program_memory_free(block);
}

/* Moved, of another block, of another place, or of a larger one. */
MS_TEST_AFTER(start_at_once, a_replay_makes_launched_bytes_of_elsewhere_in_scratch_memory)
{
    const CUdeviceptr block = fake_program_memory(BYTES);
    for (int i = 0; i < 4; i++) {
        struct ms_recorded_launch *first = record(1 << 20, 0, 0), *second = record(1 << 20, 0, 0);
        first->allocation_id += i == 1;
        first->address += i == 2 ? 256 : 0;
        if (i == 3) {
            ms_lineage_cleanup(&first->before);
            CHECK(ms_lineage_init(&first->before, (size_t)2 * BYTES));
        }
        const struct ms_content made = made_by(first, i == 0 ? 16 : 0);
        CHECK(ms_lineage_set(&second->before, 0, 100, &made));
        const size_t copies = fake.calls[FAKE_memcpy_dtod_async];
        CHECK_EQ(replay_launch(second, block, 0, BYTES, FAKE_STREAM), CUDA_SUCCESS);
        CHECK_EQ(launches, 2);
        CHECK_EQ(fake.calls[FAKE_memcpy_dtod_async], copies + 1);
        launches = 0;
    }
    ms_scratch_drop();
    fake_program_memory_free(block);
}

/* --- what a part of the output needs of the input */

static void check_needed(const struct ms_recorded_launch *recorded, size_t begin, size_t behind,
                         uint64_t wanted_begin, uint64_t wanted_behind)
{
    const struct ms_range needed = ms_replay_needed(recorded, begin, behind);
    CHECK_EQ(needed.begin, wanted_begin);
    CHECK_EQ(needed.end, wanted_behind);
}

MS_TEST(a_part_of_the_output_needs_its_rows_whole)
{
    struct ms_launch_input read = {
        .loads = {.bytes = 4000, .in_row = 4, .in_step = 4, .out_step = 2}};
    const struct ms_recorded_launch recorded = {.input = &read};
    check_needed(&recorded, 0, 2000, 0, 4000);
    check_needed(&recorded, 0, 1, 0, 4);
    check_needed(&recorded, 1, 3, 0, 8);
    check_needed(&recorded, 100, 102, 200, 204);
    check_needed(&recorded, 1999, 2000, 3996, 4000);
    check_needed(&recorded, 1999, 9000, 3996, 4000); /* also behind the output */
    check_needed(&recorded, 2000, 9000, 0, 0);
    check_needed(&recorded, 100, 100, 0, 0);
    read.loads = (struct ms_loads){.bytes = 2440, .in_row = 40, .in_step = 400, .out_step = 20};
    check_needed(&recorded, 20, 40, 400, 440);
    check_needed(&recorded, 19, 41, 0, 840);
    check_needed(&recorded, 120, 140, 2400, 2440);
}

/* The block begins before the output does. */
MS_TEST(the_output_may_begin_within_its_block)
{
    struct ms_launch_input read = {
        .loads = {.bytes = 4000, .in_row = 4, .in_step = 4, .out_step = 2}, .written_at = 100};
    const struct ms_recorded_launch recorded = {.input = &read};
    check_needed(&recorded, 0, 100, 0, 0);
    check_needed(&recorded, 0, 101, 0, 4);
    check_needed(&recorded, 99, 104, 0, 8);
    check_needed(&recorded, 102, 104, 4, 8);
}

MS_TEST(a_launch_needs_all_of_an_input_whose_rows_are_unknown)
{
    struct ms_launch_input read = {.loads = {.bytes = 4000}, .lineage = {.bytes = 5000}};
    const struct ms_recorded_launch recorded = {.input = &read};
    check_needed(&recorded, 100, 102, 0, 5000);
}
