/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/calls/host_memory.h"
#include "runtime/driver/flags.h"
#include "runtime/files/host_snapshot.h"
#include "runtime/fill/access.h"
#include "runtime/fill/materialise.h"
#include "runtime/fill/overcommit.h"
#include "runtime/fill/replay.h"
#include "runtime/fill/scratch.h"
#include "runtime/fill/suspend.h"
#include "runtime/kernel/parameters.h"
#include "runtime/kernel/rules.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/recorded_launch.h"
#include "runtime/order/examining.h"
#include "runtime/order/order.h"
#include "runtime/state/caller.h"
#include "runtime/state/counters.h"
#include "runtime/state/state.h"
#include "tests/unit/between.h"
#include "tests/unit/counted_heap.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/files/files.h"
#include "tests/unit/snapshot_of.h"

enum { GRANULES = 4, BYTES = GRANULES * FAKE_GRANULE, ROUNDING = 512 };

/* --- kernels: most have two parameters of 8 bytes, of which the first is where it writes */

enum kernel {
    PUT,
    TAKE,
    PASS,
    OTHER,
    GIVE,
    TAKE_FOUR,
    CAST,
    LIST_ONE,
    LIST_TWO,
    LIST_COPIES,
    CAT,
    LOOP,
    KERNELS
};
static const char *const names[KERNELS] = {
    "put",
    "take",
    "pass",
    "other",
    "give", /* the first is what it reads */
    "take four",
    ("_ZN2at6native29vectorized_elementwise_kernelILi4EZNS0_27converting_copy_kernel_cudaIfN3c108"
     "BFloat16EEEvRNS_18TensorIteratorBaseEEUlfE_St5arrayIPcLm2EELb0EEEviT0_T1_"),
    "25multi_tensor_apply_kernelINS1_18TensorListMetadataILi1EEENS1_",
    "25multi_tensor_apply_kernelINS1_18TensorListMetadataILi2EEENS1_",
    ("25multi_tensor_apply_kernelINS1_18TensorListMetadataILi2EEENS1_14UnaryOpFunctorIfLi2ELi1ELi1E"
     "EEJNS0_4CopyIffEEEEEvT_T0_DpT1_"),
    "_ZN2at6native26CatArrayBatchedCopy_contigINS1_10OpaqueTypeILj4EEEjLi1ELi4ELi1EEEvPT_",
    ("_ZN2at6native18elementwise_kernelILi64ELi256EZNS0_22gpu_kernel_impl_nocastIZZZNS0_23direct_"
     "copy_kernel_cudaERNS_18TensorIteratorBaseEENKUlvE0_clEvENKUlvE_clEvEUlhE_EEvS5_")};

/* As PyTorch lays out what its kernels over lists of one and of two get, and of its cat, for four
 * inputs of one shape, and of its loop over two tensors. */
struct list_of_one {
    uint64_t addresses[1][110];
    int64_t bytes[110];
    uint8_t tensor_of_block[320];
    int32_t chunk_of_block[320], start;
};
struct list_of_two {
    uint64_t addresses[2][64];
    int64_t bytes[64];
    uint8_t tensor_of_block[320];
    int32_t chunk_of_block[320], start;
};
struct cat {
    uint64_t input[4];
    uint32_t words[3][4]; /* offset, size, count */
    unsigned char dense[4], shape_and_padding[36];
};
struct loop {
    uint64_t pointers[2];
    int dims;
    unsigned sizes[25][3], strides[25][2];
    int padding;
};

static const struct {
    size_t count, bytes[20];
} parameters[KERNELS] = {[PUT] = {2, {8, 8}},
                         [TAKE] = {2, {8, 8}},
                         [PASS] = {2, {8, 8}},
                         [OTHER] = {2, {8, 8}},
                         [GIVE] = {2, {8, 8}},
                         [TAKE_FOUR] = {4, {8, 8, 8, 8}},
                         [CAST] = {3, {4, 1, 16}},
                         [LIST_ONE] = {2, {sizeof(struct list_of_one), 8}},
                         [LIST_TWO] = {2, {sizeof(struct list_of_two), 8}},
                         [LIST_COPIES] = {2, {sizeof(struct list_of_two), 8}},
                         [CAT] = {5, {8, sizeof(struct cat), 32, 4, 4}},
                         [LOOP] = {2, {4, sizeof(struct loop)}}};
static size_t more_parameters; /* that lists have, each of 8 bytes */
static struct ms_call list_call;
static unsigned launches, blocks_wanted = 1; /* of a launch over a list */
static CUresult launch_result;

static CUresult func_get_name(const char **name, CUfunction function)
{
    *name = names[(uintptr_t)function - 1];
    return CUDA_SUCCESS;
}

static CUresult func_get_param_info(CUfunction function, size_t index, size_t *offset,
                                    size_t *bytes)
{
    const size_t kernel = (uintptr_t)function - 1, known = parameters[kernel].count;
    const bool is_list = kernel == LIST_ONE || kernel == LIST_TWO;
    *offset = 0;
    for (size_t i = 0; i <= index && i < known + more_parameters; i++) {
        *offset += i > 0 ? *bytes : 0;
        *bytes = i < known ? parameters[kernel].bytes[i] : 8;
        *offset = *bytes < 8 ? *offset : (*offset + 7) / 8 * 8;
    }
    return index < known + (is_list ? more_parameters : 0) ? CUDA_SUCCESS
                                                           : CUDA_ERROR_INVALID_VALUE;
}

static CUresult func_get_attribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
    CHECK(function != NULL);
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 256 : 0;
    return CUDA_SUCCESS;
}

static CUresult device_get_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    CHECK(device >= 0);
    *value = attribute >= CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X &&
                     attribute <= CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z
                 ? 256
                 : attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    return CUDA_SUCCESS;
}

static void run_on_one(const struct list_of_one *list, unsigned blocks, uint64_t value)
{
    for (unsigned block = 0; block < blocks; block++) {
        const unsigned tensor = list->tensor_of_block[block];
        CHECK(list->addresses[0][tensor] != 0);
        memset((void *)(uintptr_t)list->addresses[0][tensor], (int)value,
               (size_t)list->bytes[tensor]);
    }
}

static void run_on_two(const struct list_of_two *list, unsigned blocks)
{
    for (unsigned block = 0; block < blocks; block++) {
        const unsigned tensor = list->tensor_of_block[block];
        CHECK(list->addresses[0][tensor] != 0 && list->addresses[1][tensor] != 0);
        memmove((void *)(uintptr_t)list->addresses[1][tensor],
                (const void *)(uintptr_t)list->addresses[0][tensor], (size_t)list->bytes[tensor]);
    }
}

/* The upper halves of floats, as many as it says, from where it says. */
static void cast(void **params)
{
    int32_t count;
    CUdeviceptr pointers[2];
    memcpy(&count, params[0], sizeof(count));
    memcpy(pointers, params[2], sizeof(pointers));
    for (int32_t i = 0; i < count; i++)
        ((uint16_t *)(uintptr_t)pointers[0])[i] = ((uint16_t *)(uintptr_t)pointers[1])[2 * i + 1];
}

/* Writes all of the allocation, or of those of a list. */
static CUresult launch_kernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                              unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                              unsigned shared, CUstream stream, void **params, void **extra)
{
    uint64_t words[2];
    const enum kernel kernel = (enum kernel)((uintptr_t)function - 1);
    CHECK(grid_x == (kernel < LIST_ONE ? 1 : blocks_wanted) && grid_y + grid_z == 2);
    if (kernel >= LIST_ONE)
        CHECK(block_x == list_call.block[0] && block_y == list_call.block[1]);
    CHECK(block_x * block_y * block_z == 64 && shared == 0);
    CHECK(stream != NULL && extra == NULL);
    if (kernel == CAST) {
        launches++;
        cast(params);
        return CUDA_SUCCESS;
    }
    for (size_t i = 0; i < 2; i++)
        memcpy(&words[i], params[i], 8);
    launches++;
    if (launch_result != CUDA_SUCCESS)
        return launch_result;
    CHECK(kernel != OTHER && kernel < CAT);
    if (kernel == LIST_ONE) {
        run_on_one(params[0], grid_x, words[1]);
        return CUDA_SUCCESS;
    }
    if (kernel == LIST_TWO) {
        run_on_two(params[0], grid_x);
        return CUDA_SUCCESS;
    }
    if (kernel == PUT && words[0] < BYTES) /* the other way round */
        memset((void *)(uintptr_t)words[1], (int)words[0], BYTES);
    else if (kernel == GIVE)
        memmove((void *)(uintptr_t)words[1], (const void *)(uintptr_t)words[0], BYTES);
    else if (kernel == PUT)
        memset((void *)(uintptr_t)words[0], (int)words[1], BYTES);
    else
        memmove((void *)(uintptr_t)words[0], (const void *)(uintptr_t)words[1], BYTES);
    return CUDA_SUCCESS;
}

/* --- what it asks others for */

static struct {
    unsigned uses, notes;
    size_t count;
    struct ms_use last;
    const char *kernel;
    enum ms_overcommit_sign sign;
    CUdevice device;
    uint64_t used;
} asked;

CUresult __real_ms_access_uses(const struct ms_use *uses, size_t count);
CUresult __wrap_ms_access_uses(const struct ms_use *uses, size_t count);
CUresult __wrap_ms_access_uses(const struct ms_use *uses, size_t count)
{
    asked.uses++;
    asked.count = count;
    asked.last = uses[count - 1];
    asked.kernel = ms_caller_kernel;
    return __real_ms_access_uses(uses, count);
}

void __wrap_ms_overcommit_note(enum ms_overcommit_sign sign, CUdevice device, uint64_t bytes);
void __wrap_ms_overcommit_note(enum ms_overcommit_sign sign, CUdevice device, uint64_t bytes)
{
    asked.notes++;
    asked.sign = sign;
    asked.device = device;
    asked.used = bytes;
}

static struct ms_event event; /* the last record */
static unsigned records;
void __real_ms_state_event(const struct ms_event *happened);
void __wrap_ms_state_event(const struct ms_event *happened);
void __wrap_ms_state_event(const struct ms_event *happened)
{
    if (happened->kind == MS_EVENT_RECORD) {
        event = *happened;
        records++;
    }
    __real_ms_state_event(happened);
}

static CUresult taken_back = CUDA_SUCCESS;
CUresult __wrap_ms_suspend_take_back(void);
CUresult __wrap_ms_suspend_take_back(void)
{
    return taken_back;
}

/* --- two allocations, and what the program launches */

static const struct ms_content sevens = {.kind = MS_FILL, .pattern = 0x07070707};
static const struct ms_content absent = {.kind = MS_ABSENT, .locality = MS_REMOTE};
static struct ms_allocation *one, *other;
static CUdeviceptr program;

static void read_rules(void)
{
    static const char text[] = "write-only put\nfrom-other take\nin-place pass\n"
                               "each *TensorListMetadata*\nconcatenate *CatArray*\n"
                               "from-other *direct_copy*\nfrom-first give\nfrom-other take?four\n"
                               "in-place *vectorized*\n";
    char path[] = "/tmp/metashard-rules-XXXXXX";
    const int file = mkstemp(path);
    CHECK(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text));
    close(file);
    ms_rules_read(path);
    unlink(path);
}

static void start(void)
{
    fake_start();
    ms_driver.func_get_name = func_get_name;
    ms_driver.func_get_param_info = func_get_param_info;
    ms_driver.func_get_attribute = func_get_attribute;
    ms_driver.device_get_attribute = device_get_attribute;
    ms_driver.launch_kernel = launch_kernel;
    read_rules();
    one = fake_allocation(BYTES);
    other = fake_allocation(BYTES);
    program = fake_program_memory(BYTES);
    launches = 0;
    launch_result = CUDA_SUCCESS;
}

static void end(void)
{
    fake_check_allocation(one);
    fake_check_allocation(other);
    fake_allocation_free(one);
    fake_allocation_free(other);
    fake_program_memory_free(program);
    fake_check_empty();
}

static struct ms_call call_of(enum kernel kernel, void **params)
{
    return (struct ms_call){.function = (CUfunction)(uintptr_t)(kernel + 1),
                            .grid = {1, 1, 1},
                            .block = {64, 1, 1},
                            .stream = FAKE_STREAM,
                            .params = params};
}

/* True if it is answered. */
static bool launch(enum kernel kernel, uint64_t first, uint64_t second, CUresult *result_out)
{
    void *params[] = {&first, &second};
    const struct ms_call call = call_of(kernel, params);
    return ms_launch(&call, result_out);
}

static void check_recorded(enum kernel kernel, uint64_t first, uint64_t second)
{
    CUresult result = CUDA_ERROR_UNKNOWN;
    CHECK(launch(kernel, first, second, &result));
    CHECK_EQ(result, CUDA_SUCCESS);
    CHECK_EQ(ms_lineage_at(ms_allocation_lineage(one), 0).content.kind, MS_LAUNCHED);
    CHECK(launches == 0 && ms_allocation_lineage(one)->resident_bytes == 0 &&
          ms_allocation_lineage(one)->cached_bytes == 0);
}

/* The driver is to make it: what it reaches is in memory. */
static void check_forwarded(enum kernel kernel, uint64_t first, uint64_t second)
{
    CUresult result;
    CHECK(!launch(kernel, first, second, &result));
    CHECK_EQ(ms_allocation_lineage(one)->resident_bytes, BYTES);
    CHECK(ms_lineage_at(ms_allocation_lineage(one), 0).content.kind != MS_LAUNCHED);
}

static CUresult materialise(struct ms_allocation *allocation, size_t begin, size_t behind)
{
    CHECK(ms_space_claim(allocation->address) == allocation);
    const CUresult result = ms_materialise(allocation, begin, behind, MS_NEED_READ);
    ms_space_release(allocation);
    return result;
}

static void check_bytes(size_t begin, size_t behind, unsigned char value)
{
    CHECK_EQ(materialise(one, begin, behind), CUDA_SUCCESS);
    for (size_t i = begin; i < behind; i++)
        CHECK_EQ(((const unsigned char *)(uintptr_t)one->address)[i], value);
}

static void fill(struct ms_allocation *allocation, size_t begin, size_t behind)
{
    fake_set(allocation, begin, behind, &sevens);
}

/* --- a kernel that only writes */

MS_TEST_BETWEEN(start, end, a_launch_that_only_writes_is_recorded_and_made_where_read)
{
    check_recorded(PUT, one->address, 5);
    check_bytes(FAKE_GRANULE, 2 * FAKE_GRANULE, 5);
    CHECK(launches == 1 && ms_allocation_backing(one)->backed_bytes == FAKE_GRANULE);
    check_bytes(0, BYTES, 5);
}

MS_TEST_BETWEEN(start, end, a_recorded_launch_is_told_once_and_says_where_it_is)
{
    const uint64_t before = ms_counter_get(MS_COUNT_RECORDED_LAUNCHES);
    one->device = 1;
    check_recorded(PUT, one->address, 5);
    const struct ms_content content = ms_lineage_at(ms_allocation_lineage(one), 0).content;
    CHECK(content.recorded->device == 1 && content.recorded->context == FAKE_CONTEXT);
    CHECK(content.recorded->allocation_id == one->id && content.recorded->address == one->address);
    one->device = 0;
    CHECK(records == 1 && event.block == one->id && event.loads);
    CHECK(event.address == one->address && event.bytes == BYTES);
    CHECK_EQ(strcmp(event.text, "put"), 0);
    CHECK_EQ(ms_counter_get(MS_COUNT_RECORDED_LAUNCHES) - before, 1);
    CUresult result;
    CHECK(!launch(OTHER, program, 5, &result));
    CHECK_EQ(records, 1);
}

static struct ms_allocation *changing;
static CUresult change_meanwhile(CUstream stream)
{
    CHECK(stream == FAKE_STREAM);
    changing->id += 1000;
    return CUDA_SUCCESS;
}

/* The program has mapped nothing in the first half granule and in the fourth one. */
MS_TEST(a_launch_writes_what_is_mapped_around_its_pointer)
{
    enum { H = FAKE_GRANULE / 2 };
    static const struct ms_content unmapped = {.kind = MS_UNMAPPED},
                                   nothing = {.kind = MS_UNDEFINED};
    static const struct {
        size_t at;
        struct ms_range written;
    } rows[] = {{0, {0, 0}},
                {H - 1, {0, 0}},
                {H, {H, 3 * H}},
                {2 * H, {H, 3 * H}},
                {3 * H - 1, {H, 3 * H}},
                {3 * H, {0, 0}},
                {4 * H, {4 * H, BYTES}},
                {BYTES - 1, {4 * H, BYTES}}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct ms_range written = rows[i].written;
        CUresult result;
        start();
        one->is_programs = true;
        fake_set(one, 0, H, &unmapped);
        fake_set(one, 3 * H, 4 * H, &unmapped);
        CHECK_EQ(launch(PUT, one->address + rows[i].at, 5, &result), written.end > 0);
        const struct ms_extent extent = ms_lineage_at(ms_allocation_lineage(one), written.begin);
        CHECK_EQ(extent.content.kind == MS_LAUNCHED, written.end > 0);
        CHECK(written.end == 0 || extent.end == written.end);
        CHECK_EQ(ms_allocation_lineage(one)->kind_bytes[MS_LAUNCHED], written.end - written.begin);
        fake_set(one, 0, BYTES, &nothing);
        one->is_programs = false;
        end();
    }
}

/* Another one lies at the address by now. */
MS_TEST(a_launch_is_not_recorded_if_its_allocation_was_replaced)
{
    for (int way = 0; way < 2; way++) {
        CUresult result;
        start();
        fill(other, 0, BYTES);
        changing = way == 0 ? one : other;
        ms_driver.stream_query = change_meanwhile;
        CHECK(!launch(TAKE, one->address, other->address, &result));
        changing->id -= 1000;
        CHECK_EQ(result, CUDA_SUCCESS);
        CHECK(records == 0 &&
              ms_lineage_at(ms_allocation_lineage(one), 0).content.kind == MS_RESIDENT);
        end();
    }
}

/* Nothing is looked at, and nothing runs. */
MS_TEST_BETWEEN(start, end, a_launch_fails_if_suspended_memory_cannot_come_back)
{
    CUresult result;
    fill(one, 0, BYTES);
    taken_back = CUDA_ERROR_OUT_OF_MEMORY;
    CHECK(launch(OTHER, one->address, 5, &result));
    CHECK_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(asked.uses == 0 && !ms_is_gated());
}

MS_TEST_BETWEEN(start, end, a_replay_that_the_driver_refuses_is_an_error_and_can_be_tried_again)
{
    check_recorded(PUT, one->address, 5);
    launch_result = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    CHECK(materialise(one, 0, BYTES) != CUDA_SUCCESS);
    CHECK_EQ(ms_lineage_at(ms_allocation_lineage(one), 0).content.kind, MS_LAUNCHED);
    launch_result = CUDA_SUCCESS;
    check_bytes(0, BYTES, 5);
}

/* Where a launch with one address has it, all have it: another one may be left from before. */
MS_TEST_BETWEEN(start, end, a_kernel_is_learnt_to_have_its_pointer_at_one_place)
{
    check_recorded(PUT, one->address, 5);
    check_recorded(PUT, one->address, 5);
    check_recorded(PUT, one->address, other->address + 8);
}

MS_TEST_BETWEEN(start, end, a_launch_with_two_addresses_is_forwarded_before_learning)
{
    check_forwarded(PUT, one->address, other->address + 8);
}

MS_TEST_BETWEEN(start, end, a_kernel_that_has_it_in_two_places_has_it_nowhere)
{
    CUresult result;
    check_recorded(PUT, one->address, 5);
    CHECK(launch(PUT, 5, other->address, &result) && result == CUDA_SUCCESS);
    check_forwarded(PUT, one->address, other->address + 8);
}

MS_TEST_BETWEEN(start, end, a_launch_the_driver_would_refuse_is_forwarded)
{
    CUresult result;
    uint64_t first = one->address, second = 5;
    void *params[] = {&first, &second};
    struct ms_call call = call_of(PUT, params);
    call.block[0] = 257;
    CHECK(!ms_launch(&call, &result));
    call = call_of(PUT, params);
    call.grid[1] = 0;
    CHECK(!ms_launch(&call, &result));
    call = call_of(PUT, params);
    call.shared_bytes = 1;
    CHECK(!ms_launch(&call, &result));
    CHECK_EQ(ms_lineage_at(ms_allocation_lineage(one), 0).content.kind, MS_RESIDENT);
}

MS_TEST_BETWEEN(start, end, a_launch_with_other_memory_of_the_driver_is_forwarded)
{
    check_forwarded(PUT, one->address, program + 8);
}

MS_TEST_BETWEEN(start, end, a_launch_in_another_context_is_forwarded)
{
    CHECK_EQ(ms_driver.ctx_push_current((CUcontext)2), CUDA_SUCCESS);
    CUresult result;
    CHECK(!launch(PUT, one->address, 5, &result));
    CUcontext popped;
    CHECK_EQ(ms_driver.ctx_pop_current(&popped), CUDA_SUCCESS);
    CHECK_EQ(ms_allocation_lineage(one)->resident_bytes, BYTES);
}

MS_TEST_BETWEEN(start, end, a_launch_over_bytes_in_memory_runs)
{
    fake_set(one, 3 * FAKE_GRANULE, BYTES, &(struct ms_content){.kind = MS_RESIDENT});
    check_forwarded(PUT, one->address, 5);
}

MS_TEST_BETWEEN(start, end, a_launch_without_our_addresses_brings_nothing_in)
{
    CUresult result;
    fill(one, 0, BYTES);
    CHECK(!launch(OTHER, program, 5, &result));
    CHECK(ms_allocation_lineage(one)->resident_bytes == 0 &&
          ms_allocation_backing(one)->backed_bytes == 0);
}

/* --- one that reads another allocation */

MS_TEST_BETWEEN(start, end, a_launch_that_reads_another_allocation_keeps_its_content)
{
    fill(other, 0, BYTES);
    check_recorded(TAKE, one->address, other->address);
    fake_set(other, 0, BYTES, &(struct ms_content){.kind = MS_FILL, .pattern = 0x09090909});
    check_bytes(0, BYTES, 7);
    CHECK_EQ(ms_allocation_backing(other)->backed_bytes, 0);
}

MS_TEST_BETWEEN(start, end, a_launch_may_read_unwritten_bytes_that_round_its_input_up)
{
    fill(other, 0, BYTES - ROUNDING + 1);
    check_recorded(TAKE, one->address, other->address);
}

MS_TEST_BETWEEN(start, end, an_input_with_a_gap_runs)
{
    fill(other, 0, BYTES - ROUNDING);
    check_forwarded(TAKE, one->address, other->address);
}

MS_TEST_BETWEEN(start, end, an_input_that_is_in_memory_runs)
{
    fill(other, 0, BYTES);
    fake_set(other, 0, FAKE_GRANULE, &(struct ms_content){.kind = MS_RESIDENT});
    check_forwarded(TAKE, one->address, other->address);
}

/* --- one of which it is known what it loads */

enum { CASTS = FAKE_GRANULE / 4, LOADED = 4 * CASTS, STORED = 2 * CASTS };
static struct test_file cast_file;

/* The other one is loaded from a file. */
static void start_casts(void)
{
    start();
    make_test_file(&cast_file, "/tmp", BYTES);
    fake_set(other, 0, BYTES, &(struct ms_content){.kind = MS_SOURCE, .source = cast_file.source});
}

static void end_casts(void)
{
    ms_scratch_drop();
    ms_source_drop(cast_file.source);
    end();
}

static bool cast_is_recorded(CUdeviceptr out, CUdeviceptr in, int32_t count)
{
    const struct {
        CUdeviceptr out, in;
    } pointers = {out, in};
    unsigned char functor = 0;
    void *params[] = {&count, &functor, (void *)(uintptr_t)&pointers};
    const struct ms_call call = call_of(CAST, params);
    CUresult result;
    return ms_launch(&call, &result);
}

/* Returns the bytes that were sent. */
static uint64_t check_casts(size_t begin, size_t behind, size_t loaded_at)
{
    const uint64_t before = ms_counter_get(MS_COUNT_H2D_BYTES);
    CHECK_EQ(materialise(one, begin, behind), CUDA_SUCCESS);
    for (size_t i = begin; i < behind; i++)
        CHECK_EQ(((const unsigned char *)(uintptr_t)one->address)[i],
                 cast_file.data[loaded_at + i / 2 * 4 + 2 + i % 2]);
    return ms_counter_get(MS_COUNT_H2D_BYTES) - before;
}

MS_TEST_BETWEEN(start_casts, end_casts, a_launch_keeps_of_its_input_what_it_loads)
{
    CHECK(cast_is_recorded(one->address + 6, other->address + 100, CASTS));
    const struct ms_recorded_launch *recorded =
        ms_lineage_at(ms_allocation_lineage(one), 0).content.recorded;
    CHECK_EQ(recorded->input->address, other->address + 100);
    CHECK_EQ(recorded->input->lineage.bytes, LOADED);
    const struct ms_range needed = ms_replay_needed(recorded, 8, 12);
    CHECK(needed.begin == 4 && needed.end == 12);
    CHECK_EQ(ms_replay_needed(recorded, 0, 6).end, 0); /* before all that it stores */
}

/* It is not loaded. */
MS_TEST_BETWEEN(start_casts, end_casts, a_launch_is_recorded_if_memory_beside_its_loads_is_resident)
{
    fake_set(other, FAKE_GRANULE, BYTES, &(struct ms_content){.kind = MS_RESIDENT});
    CHECK(cast_is_recorded(one->address, other->address, CASTS));
    CHECK(!cast_is_recorded(one->address, other->address + 4, CASTS));
}

MS_TEST_BETWEEN(start_casts, end_casts, loads_end_where_the_block_ends)
{
    CHECK(cast_is_recorded(one->address, other->address + BYTES - 8, CASTS));
    const struct ms_content content = ms_lineage_at(ms_allocation_lineage(one), 0).content;
    CHECK_EQ(content.recorded->input->lineage.bytes, 8);
    CHECK_EQ(ms_replay_needed(content.recorded, 0, BYTES).end, 8);
    fill(one, 0, BYTES);
}

MS_TEST_BETWEEN(start_casts, end_casts, a_part_sends_its_rows_alone)
{
    CHECK(cast_is_recorded(one->address, other->address, BYTES / 4));
    fill(other, 0, BYTES); /* the launch does not depend on it any more */
    CHECK_EQ(check_casts(FAKE_GRANULE + 2, FAKE_GRANULE + 4, 0), 2 * FAKE_GRANULE);
    CHECK_EQ(ms_allocation_backing(other)->backed_bytes, 0);
    CHECK_EQ(ms_allocation_backing(one)->backed_bytes, FAKE_GRANULE);
}

/* For a part a launch has the rows of that part alone, and it writes all of its block. */
static void check_made_in_parts(void)
{
    enum { PARTS = 2 };
    for (size_t i = 0; i < PARTS; i++)
        CHECK_EQ(check_casts(i * FAKE_GRANULE, (i + 1) * FAKE_GRANULE, 0), 2 * FAKE_GRANULE);
    CHECK_EQ(check_casts(0, PARTS * FAKE_GRANULE, 0), 0);
}

MS_TEST_BETWEEN(start_casts, end_casts, parts_that_are_made_stay_where_the_input_is_gone)
{
    CHECK(cast_is_recorded(one->address, other->address, BYTES / 4));
    fill(other, 0, BYTES);
    check_made_in_parts();
}

MS_TEST_BETWEEN(start_casts, end_casts, parts_that_are_made_stay_where_the_input_lives)
{
    CHECK(cast_is_recorded(one->address, other->address, BYTES / 4));
    check_made_in_parts();
}

MS_TEST_BETWEEN(start_casts, end_casts, parts_that_are_made_stay_where_the_input_was_evicted)
{
    CHECK(cast_is_recorded(one->address, other->address, BYTES / 4));
    CHECK_EQ(check_casts(0, FAKE_GRANULE, 0), 2 * FAKE_GRANULE);
    fake_set(other, 0, BYTES, &(struct ms_content){.kind = MS_SOURCE, .source = cast_file.source});
    memset((void *)(uintptr_t)other->address, 0, 2 * FAKE_GRANULE);
    CHECK_EQ(check_casts(FAKE_GRANULE, 2 * FAKE_GRANULE, 0), 2 * FAKE_GRANULE);
    CHECK_EQ(check_casts(0, 2 * FAKE_GRANULE, 0), 0);
}

MS_TEST_BETWEEN(start_casts, end_casts, a_part_of_an_input_that_lives_comes_alone)
{
    CHECK(cast_is_recorded(one->address, other->address, BYTES / 4));
    CHECK_EQ(check_casts(FAKE_GRANULE + 2, FAKE_GRANULE + 4, 0), 2 * FAKE_GRANULE);
    CHECK_EQ(ms_allocation_lineage(other)->cached_bytes, 2 * FAKE_GRANULE);
    CHECK_EQ(ms_allocation_backing(other)->backed_bytes, 2 * FAKE_GRANULE);
}

/* Each is sent once, however many launches load it. */
MS_TEST_BETWEEN(start_casts, end_casts, an_input_that_lives_comes_into_memory_in_its_place)
{
    CHECK(cast_is_recorded(one->address, other->address, CASTS));
    CHECK_EQ(check_casts(0, STORED, 0), LOADED);
    CHECK_EQ(ms_allocation_lineage(other)->cached_bytes, LOADED);
    CHECK_EQ(ms_lineage_at(ms_allocation_lineage(other), 0).content.kind, MS_SOURCE);
    fill(one, 0, BYTES);
    CHECK(launches == 1 && materialise(other, 0, LOADED) == CUDA_SUCCESS);
    CHECK_EQ(ms_counter_get(MS_COUNT_H2D_BYTES), LOADED);
}

/* Random numbers, say: they are made again for each launch that loads them. */
MS_TEST_BETWEEN(start_casts, end_casts, an_input_for_which_nothing_is_sent_stays_out_of_memory)
{
    fill(other, 0, BYTES);
    CHECK(cast_is_recorded(one->address, other->address, CASTS));
    CHECK_EQ(materialise(one, 0, STORED), CUDA_SUCCESS);
    CHECK(ms_allocation_backing(other)->backed_bytes == 0 &&
          ms_allocation_lineage(other)->cached_bytes == 0);
}

MS_TEST_BETWEEN(start_casts, end_casts, an_input_that_a_launch_makes_of_a_file_comes_into_its_place)
{
    struct ms_allocation *between = fake_allocation(BYTES);
    CUresult result;
    fill(between, 0, BYTES);
    CHECK(cast_is_recorded(between->address, other->address, CASTS));
    CHECK(launch(TAKE, one->address, between->address, &result));
    CHECK_EQ(check_casts(0, STORED, 0), LOADED);
    CHECK_EQ(ms_allocation_lineage(other)->cached_bytes, LOADED);
    CHECK(ms_allocation_lineage(between)->cached_bytes >= STORED);
    fill(one, 0, BYTES);
    fake_allocation_free(between);
}

/* It is sent to where the launch finds it, and the block keeps what the program has put there. */
MS_TEST_BETWEEN(start_casts, end_casts, an_input_that_was_overwritten_stays_as_it_is)
{
    CHECK(cast_is_recorded(one->address, other->address, CASTS));
    fill(other, LOADED - 4, LOADED);
    CHECK_EQ(check_casts(0, STORED, 0), LOADED);
    CHECK(ms_allocation_backing(other)->backed_bytes == 0 &&
          ms_allocation_lineage(other)->cached_bytes == 0);
}

MS_TEST_BETWEEN(start_casts, end_casts, the_input_of_an_input_that_is_gone_comes_into_its_place)
{
    struct ms_allocation *between = fake_allocation(BYTES);
    CUresult result;
    fill(between, 0, BYTES);
    CHECK(cast_is_recorded(between->address, other->address, CASTS));
    CHECK(launch(TAKE, one->address, between->address, &result));
    fill(between, 0, BYTES);
    CHECK_EQ(check_casts(0, STORED, 0), LOADED);
    CHECK(ms_allocation_lineage(other)->cached_bytes == LOADED &&
          ms_allocation_backing(between)->backed_bytes == 0);
    fake_allocation_free(between);
}

MS_TEST_BETWEEN(start_casts, end_casts, the_input_of_what_a_launch_has_changed_comes_into_its_place)
{
    CUresult result;
    CHECK(cast_is_recorded(one->address, other->address, CASTS));
    CHECK(launch(PASS, one->address, one->address, &result));
    CHECK_EQ(check_casts(0, STORED, 0), LOADED);
    CHECK_EQ(ms_allocation_lineage(other)->cached_bytes, LOADED);
}

/* It is zero, in memory as well: the block is what it was, and is not sent once more. */
MS_TEST_BETWEEN(start_casts, end_casts, an_input_comes_with_the_bytes_that_round_it_up)
{
    CUresult result;
    fake_set(other, BYTES - ROUNDING + 1, BYTES, &(struct ms_content){.kind = MS_UNDEFINED});
    CHECK(launch(TAKE, one->address, other->address, &result));
    CHECK_EQ(materialise(one, 0, BYTES), CUDA_SUCCESS);
    CHECK_EQ(ms_counter_get(MS_COUNT_H2D_BYTES), BYTES - ROUNDING + 1);
    CHECK_BYTES((void *)(uintptr_t)one->address, cast_file.data, BYTES - ROUNDING + 1);
    CHECK_EQ(ms_allocation_lineage(other)->cached_bytes, BYTES);
}

/* A file, a cast of it, and a cast of that, none of which asks for another one again. */
MS_TEST_BETWEEN(start_casts, end_casts, inputs_in_one_granule_come_once)
{
    enum { PART = FAKE_GRANULE / 4 };
    CHECK(ms_space_claim(one->address) == one);
    for (size_t i = 0; i < 3; i++)
        CHECK_EQ(ms_carve_take(one, i * PART, i < 2 ? (i + 1) * PART : FAKE_GRANULE), MS_CARVED);
    ms_space_release(one);
    fake_set(one, 2 * PART, FAKE_GRANULE,
             &(struct ms_content){.kind = MS_SOURCE, .source = cast_file.source});
    CHECK(cast_is_recorded(one->address + PART, one->address + 2 * PART, PART / 2));
    CHECK(cast_is_recorded(one->address, one->address + PART, PART / 4));
    CHECK_EQ(materialise(one, 0, PART / 2), CUDA_SUCCESS);
    CHECK_EQ(ms_counter_get(MS_COUNT_H2D_BYTES), 2 * PART);
    for (size_t i = 0; i < PART / 2; i++)
        CHECK_EQ(((const unsigned char *)(uintptr_t)one->address)[i],
                 cast_file.data[i / 2 * 8 + 6 + i % 2]);
}

MS_TEST_BETWEEN(start_casts, end_casts, an_input_that_another_thread_works_on_is_sent_beside_it)
{
    CHECK(cast_is_recorded(one->address, other->address, CASTS));
    struct ms_allocation *low = one->address < other->address ? one : other;
    struct ms_allocation *high = low == one ? other : one; /* claims are taken in this order */
    CHECK(ms_space_claim(low->address) == low && ms_space_claim(high->address) == high);
    CHECK_EQ(ms_materialise(one, 0, STORED, MS_NEED_READ), CUDA_SUCCESS);
    ms_space_release(high);
    ms_space_release(low);
    CHECK_EQ(ms_allocation_backing(other)->backed_bytes, 0);
    CHECK_EQ(check_casts(0, STORED, 0), 0);
    CHECK_EQ(ms_counter_get(MS_COUNT_H2D_BYTES), LOADED);
}

/* --- what is made of a block that a kernel may change */

static CUresult plenty_of_memory(size_t *free_out, size_t *total_out)
{
    *free_out = *total_out = (size_t)1 << 30;
    return CUDA_SUCCESS;
}

static CUresult little_memory(size_t *free_out, size_t *total_out)
{
    *free_out = BYTES;
    *total_out = (size_t)1 << 30;
    return CUDA_SUCCESS;
}

/* A cast of all of the other one is recorded. */
static void start_with_result(void)
{
    start_casts();
    ms_driver.mem_get_info = plenty_of_memory;
    CHECK(cast_is_recorded(one->address, other->address, BYTES / 4));
}

/* A kernel may change the other one. Returns the bytes that are sent. */
static uint64_t change_other(void)
{
    const uint64_t before = ms_counter_get(MS_COUNT_H2D_BYTES);
    CUresult result;
    CHECK(!launch(OTHER, other->address, 0, &result));
    CHECK_EQ(ms_allocation_lineage(other)->resident_bytes, BYTES);
    return ms_counter_get(MS_COUNT_H2D_BYTES) - before;
}

MS_TEST_BETWEEN(start_with_result, end_casts, a_result_is_made_before_its_input_may_change)
{
    CHECK_EQ(change_other(), BYTES);
    CHECK_EQ(ms_allocation_lineage(one)->cached_bytes, BYTES);
    CHECK_EQ(check_casts(0, BYTES / 2, 0), 0);
}

MS_TEST_BETWEEN(start_with_result, end_casts, a_result_waits_where_memory_is_short)
{
    ms_driver.mem_get_info = little_memory;
    CHECK_EQ(change_other(), BYTES);
    CHECK_EQ(ms_allocation_backing(one)->backed_bytes, 0);
    CHECK_EQ(check_casts(0, BYTES / 2, 0), BYTES);
}

MS_TEST_BETWEEN(start_with_result, end_casts, a_result_waits_if_its_input_has_changed_already)
{
    fill(other, 0, 4);
    CHECK_EQ(change_other(), BYTES - 4);
    CHECK_EQ(ms_allocation_backing(one)->backed_bytes, 0);
    CHECK_EQ(check_casts(0, BYTES / 2, 0), BYTES);
}

MS_TEST_BETWEEN(start_with_result, end_casts, a_recorded_launch_of_another_input_waits)
{
    fill(one, 0, BYTES);
    CHECK_EQ(change_other(), BYTES);
    CHECK_EQ(ms_allocation_backing(one)->backed_bytes, 0);
}

MS_TEST_BETWEEN(start, end, a_launch_in_place_reads_the_content_before_it)
{
    fill(one, 0, BYTES);
    check_recorded(PASS, one->address, one->address);
    check_bytes(0, BYTES, 7);
}

MS_TEST_BETWEEN(start, end, a_launch_of_another_class_with_one_pointer_twice_runs)
{
    fill(one, 0, BYTES);
    check_forwarded(TAKE, one->address, one->address);
}

/* --- bytes of other ranks */

/* The driver makes it, and if the kernel goes there, it meets no memory. */
MS_TEST_BETWEEN(start, end, a_launch_over_absent_bytes_is_not_recorded)
{
    CUresult result;
    fake_set(one, 2 * FAKE_GRANULE, 3 * FAKE_GRANULE, &absent);
    CHECK(!launch(PUT, one->address, 5, &result));
    CHECK_EQ(ms_lineage_at(ms_allocation_lineage(one), 2 * FAKE_GRANULE).content.kind, MS_ABSENT);
    CHECK_EQ(ms_allocation_backing(one)->backed_bytes, 3 * FAKE_GRANULE);
}

MS_TEST_BETWEEN(start, end, a_launch_that_reads_absent_bytes_is_not_recorded)
{
    fill(other, 0, BYTES);
    fake_set(other, BYTES - FAKE_GRANULE, BYTES, &absent);
    check_forwarded(TAKE, one->address, other->address);
    CHECK_EQ(ms_allocation_backing(other)->backed_bytes, 3 * FAKE_GRANULE);
}

/* --- others */

MS_TEST_BETWEEN(start, end,
                a_kernel_without_a_rule_finds_in_memory_what_it_reaches_and_nothing_else)
{
    const uint64_t before = ms_counter_get(MS_COUNT_MATERIALISED_BYTES);
    fill(one, 0, BYTES);
    fill(other, 0, BYTES);
    check_forwarded(OTHER, one->address + 8, 0);
    CHECK_EQ(ms_allocation_lineage(other)->resident_bytes +
                 ms_allocation_lineage(other)->cached_bytes,
             0);
    CHECK_EQ(ms_counter_get(MS_COUNT_MATERIALISED_BYTES) - before, BYTES);
}

MS_TEST_BETWEEN(start, end, parameters_that_are_not_known_may_lead_anywhere)
{
    CUresult result;
    void *extra[] = {(void *)(uintptr_t)77, NULL, CU_LAUNCH_PARAM_END};
    struct ms_call call = call_of(OTHER, NULL);
    call.extra = extra;
    fill(one, 0, BYTES);
    fill(other, 0, BYTES);
    CHECK(!ms_launch(&call, &result));
    CHECK_EQ(ms_allocation_lineage(one)->resident_bytes, BYTES);
    CHECK_EQ(ms_allocation_lineage(other)->resident_bytes, BYTES);
}

MS_TEST_BETWEEN(start, end, too_few_bytes_of_parameters_are_not_recorded)
{
    CUresult result;
    uint64_t words[] = {one->address, 5};
    size_t bytes = sizeof(words);
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, words, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    struct ms_call call = call_of(PUT, NULL);
    call.extra = extra;
    bytes = 8;
    CHECK(!ms_launch(&call, &result));
    CHECK_EQ(ms_lineage_at(ms_allocation_lineage(one), 0).content.kind, MS_RESIDENT);
}

/* --- where a pointer leads */

MS_TEST_BETWEEN(start, end, a_pointer_beside_its_allocation_is_not_recorded)
{
    CUresult result;
    for (int i = 0; i < 2; i++) {
        CHECK(!launch(PUT, i == 0 ? one->address + BYTES : one->address - 1, 5, &result));
        CHECK_EQ(result, CUDA_SUCCESS);
        CHECK(ms_lineage_at(ms_allocation_lineage(one), 0).content.kind != MS_LAUNCHED);
    }
}

MS_TEST_BETWEEN(start, end, a_launch_over_a_part_of_its_input_is_forwarded)
{
    fill(other, 0, BYTES);
    check_recorded(TAKE, one->address, other->address);
    fill(one, 0, BYTES);
    check_forwarded(TAKE, one->address, one->address + 8);
}

MS_TEST_BETWEEN(start, end, an_input_of_another_context_is_not_recorded)
{
    fill(other, 0, BYTES);
    other->context = (CUcontext)2;
    check_forwarded(TAKE, one->address, other->address);
    other->context = FAKE_CONTEXT;
}

/* Any number may stand there. The driver is asked of those that can be an address: of what the
 * number and the end of the other pointer make, too. */
MS_TEST_BETWEEN(start, end, a_number_is_no_memory_of_the_driver)
{
    fake_needs_hints();
    static const struct {
        uint64_t number;
        unsigned questions;
    } numbers[] = {{0, 0},
                   {1, 0},
                   {(UINT64_C(1) << 24) - 1, 1},
                   {UINT64_C(1) << 24, 2},
                   {(UINT64_C(1) << 57) - 1, 1},
                   {UINT64_C(1) << 57, 0},
                   {UINT64_MAX, 0}};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        const unsigned before = fake.calls[FAKE_pointer_get_attribute];
        check_recorded(PUT, one->address, numbers[i].number);
        CHECK_EQ(fake.calls[FAKE_pointer_get_attribute] - before, numbers[i].questions);
    }
    fill(one, 0, BYTES);
}

/* --- without heap */

enum { MANY = 1000000 };

/* True if a piece of it was wanting. Recorded or not, the bytes are the kernel's. */
static bool launch_without(int pieces)
{
    CUresult result = CUDA_SUCCESS;
    const int before = live;
    start();
    fill(other, 0, BYTES);
    may_make = pieces;
    fails_once = true;
    const bool is_answered = launch(TAKE, one->address, other->address, &result);
    const bool has_failed = may_make < 0;
    may_make = MANY;
    fails_once = false;
    CHECK_EQ(result, CUDA_SUCCESS);
    CHECK_EQ(is_answered, ms_lineage_at(ms_allocation_lineage(one), 0).content.kind == MS_LAUNCHED);
    if (is_answered)
        check_bytes(0, BYTES, 7);
    end();
    CHECK(live == before || pieces == MANY);
    return has_failed;
}

MS_TEST(a_launch_that_cannot_be_kept_runs_and_leaves_nothing)
{
    launch_without(MANY); /* what is kept for each kernel */
    for (int pieces = 0; launch_without(pieces);)
        pieces++;
}

/* --- lists of tensors */

static struct list_of_one ones;
static struct list_of_two twos;
static uint64_t value; /* behind the list */

/* Three blocks: the first tensor has two. */
static bool launch_list(enum kernel kernel, CUresult *result_out)
{
    uint64_t more = 0;
    void *params[20] = {kernel == LIST_ONE ? (void *)&ones : (void *)&twos, &value};
    for (size_t i = 2; i < 20; i++)
        params[i] = &more;
    list_call.function = (CUfunction)(uintptr_t)(kernel + 1);
    list_call.params = params;
    return ms_launch(&list_call, result_out);
}

static void start_lists(void)
{
    start();
    ones = (struct list_of_one){.tensor_of_block = {0, 0, 1}, .chunk_of_block = {0, 1, 0}};
    twos = (struct list_of_two){.tensor_of_block = {0, 0, 1}, .chunk_of_block = {0, 1, 0}};
    ones.addresses[0][0] = one->address;
    ones.addresses[0][1] = other->address;
    ones.bytes[0] = ones.bytes[1] = twos.bytes[0] = BYTES;
    value = 5;
    list_call = (struct ms_call){.grid = {3, 1, 1}, .block = {16, 4, 1}, .stream = FAKE_STREAM};
}

static enum ms_kind kind_of(const struct ms_allocation *allocation)
{
    return ms_lineage_at(ms_allocation_lineage(allocation), 0).content.kind;
}

static void check_list_recorded(enum kernel kernel)
{
    CUresult result = CUDA_ERROR_UNKNOWN;
    CHECK(launch_list(kernel, &result));
    CHECK_EQ(result, CUDA_SUCCESS);
    CHECK(launches == 0 && kind_of(one) == MS_LAUNCHED);
}

static void check_list_forwarded(enum kernel kernel)
{
    CUresult result;
    CHECK(!launch_list(kernel, &result));
    CHECK(launches == 0 && kind_of(one) != MS_LAUNCHED && kind_of(other) != MS_LAUNCHED);
}

MS_TEST_BETWEEN(start_lists, end, a_list_records_each_of_its_tensors)
{
    check_list_recorded(LIST_ONE);
    CHECK(kind_of(other) == MS_LAUNCHED && ms_allocation_backing(other)->backed_bytes == 0);
    blocks_wanted = 2;
    check_bytes(0, BYTES, 5);
    CHECK(launches == 1 && ms_allocation_backing(other)->backed_bytes == 0);
    blocks_wanted = 1;
    CHECK_EQ(materialise(other, 0, BYTES), CUDA_SUCCESS);
    CHECK_EQ(((const unsigned char *)(uintptr_t)other->address)[BYTES - 1], 5);
}

/* Bytes in memory cannot be recorded over. */
MS_TEST_BETWEEN(start_lists, end, a_list_launches_the_tensors_that_cannot_be_recorded)
{
    CUresult result = CUDA_ERROR_UNKNOWN;
    atomic_store(&ms_hot.started, 1);
    fake_set(one, 0, FAKE_GRANULE, &(struct ms_content){.kind = MS_RESIDENT});
    blocks_wanted = 2;
    CHECK(launch_list(LIST_ONE, &result));
    CHECK_EQ(result, CUDA_SUCCESS);
    CHECK(launches == 1 && kind_of(other) == MS_LAUNCHED &&
          ms_allocation_backing(other)->backed_bytes == 0);
    CHECK(ms_is_gated());
    CHECK_EQ(ms_allocation_lineage(one)->resident_bytes, BYTES);
    CHECK_EQ(((const unsigned char *)(uintptr_t)one->address)[BYTES - 1], 5);
}

MS_TEST_BETWEEN(start_lists, end, a_list_returns_the_drivers_answer_for_its_rest)
{
    for (int i = 0; i < 2; i++) {
        CUresult result = CUDA_SUCCESS;
        fake_set(one, 0, FAKE_GRANULE, &(struct ms_content){.kind = MS_RESIDENT});
        fill(one, FAKE_GRANULE, BYTES);
        fill(other, 0, BYTES);
        blocks_wanted = 2;
        launch_result = i == 0 ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
        if (i == 0)
            fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
        CHECK(launch_list(LIST_ONE, &result));
        CHECK_EQ(result, i == 0 ? CUDA_ERROR_UNKNOWN : CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
        CHECK_EQ(launches, i);
        CHECK_EQ(kind_of(other), MS_LAUNCHED);
    }
}

/* One tensor of one chunk. */
static void start_listed_copy(void)
{
    start_lists();
    twos.bytes[0] = BYTES / 2 / 4; /* elements */
    twos.tensor_of_block[2] = 0;
    list_call.grid[0] = 1;
}

MS_TEST(a_list_that_only_copies_is_copies_of_lineage)
{
    CUresult result = CUDA_ERROR_UNKNOWN;
    start_listed_copy();
    twos.addresses[0][0] = other->address;
    twos.addresses[1][0] = one->address + FAKE_GRANULE;
    fill(other, 0, BYTES);
    CHECK(launch_list(LIST_COPIES, &result));
    CHECK_EQ(result, CUDA_SUCCESS);
    CHECK(launches == 0 &&
          ms_allocation_backing(one)->backed_bytes + ms_allocation_backing(other)->backed_bytes ==
              0);
    CHECK_EQ(kind_of(one), MS_UNDEFINED);
    const struct ms_extent there = ms_lineage_at(ms_allocation_lineage(one), FAKE_GRANULE);
    CHECK(there.content.kind == MS_FILL && there.end == FAKE_GRANULE + BYTES / 2);
    end();
}

/* The buffer of an all-gather, and two tensors to go there, of which one is in memory: the buffer
 * comes into memory for that one. */
MS_TEST(a_list_records_all_of_one_block_or_nothing)
{
    enum { PART = FAKE_GRANULE };
    static struct test_file file;
    start_listed_copy();
    make_test_file(&file, "/tmp", BYTES);
    twos.tensor_of_block[1] = 1;
    twos.chunk_of_block[1] = 0;
    list_call.grid[0] = 2;
    for (int way = 0; way < 2; way++) {
        CUresult result = CUDA_ERROR_UNKNOWN;
        struct ms_allocation *buffer = fake_allocation(BYTES);
        fake_set(other, 0, BYTES, &(struct ms_content){.kind = MS_SOURCE, .source = file.source});
        fake_set(one, 0, BYTES, way == 0 ? &sevens : &(struct ms_content){.kind = MS_RESIDENT});
        twos.addresses[0][0] = other->address;
        twos.addresses[0][1] = one->address;
        twos.addresses[1][0] = buffer->address;
        twos.addresses[1][1] = buffer->address + 2 * PART;
        twos.bytes[0] = twos.bytes[1] = PART / 4;
        const uint64_t before = ms_counter_get(MS_COUNT_H2D_BYTES);
        CHECK_EQ(launch_list(LIST_COPIES, &result), way == 0);
        CHECK_EQ(ms_lineage_at(ms_allocation_lineage(buffer), 0).content.kind,
                 way == 0 ? MS_SOURCE : MS_RESIDENT);
        CHECK_EQ(ms_counter_get(MS_COUNT_H2D_BYTES) - before, way == 0 ? 0 : BYTES);
        CHECK_EQ(ms_allocation_lineage(other)->resident_bytes, way == 0 ? 0 : BYTES);
        fake_allocation_free(buffer);
    }
    fill(one, 0, BYTES);
    fill(other, 0, BYTES);
    ms_source_drop(file.source);
    end();
}

MS_TEST_BETWEEN(start_lists, end, a_list_records_one_of_two_blocks)
{
    CUresult result = CUDA_ERROR_UNKNOWN;
    struct ms_allocation *third = fake_allocation(BYTES);
    fill(other, 0, BYTES);
    twos.addresses[0][0] = other->address;
    twos.addresses[1][0] = one->address;
    twos.addresses[0][1] = program;
    twos.addresses[1][1] = third->address;
    twos.bytes[1] = 1;
    blocks_wanted = 1;
    CHECK(launch_list(LIST_TWO, &result));
    CHECK(result == CUDA_SUCCESS && launches == 1 && kind_of(one) == MS_LAUNCHED);
    CHECK_EQ(ms_allocation_lineage(third)->resident_bytes, BYTES);
    fake_allocation_free(third);
    fill(one, 0, BYTES);
}

/* The output of a launch is the input of a launch that is recorded. */
MS_TEST(copies_of_what_launches_make_are_recorded_launches)
{
    CUresult result = CUDA_ERROR_UNKNOWN;
    start_listed_copy();
    twos.addresses[0][0] = other->address;
    twos.addresses[1][0] = one->address;
    CHECK(launch(PUT, other->address, 5, &result));
    CHECK(launch_list(LIST_COPIES, &result));
    CHECK(launches == 0 && kind_of(one) == MS_LAUNCHED);
    CHECK(ms_lineage_at(ms_allocation_lineage(one), 0).content.recorded->input != NULL);
    end();
}

MS_TEST_BETWEEN(start_lists, end, a_list_of_which_nothing_can_be_recorded_is_forwarded_whole)
{
    fake_set(one, 0, FAKE_GRANULE, &(struct ms_content){.kind = MS_RESIDENT});
    fake_set(other, 0, FAKE_GRANULE, &(struct ms_content){.kind = MS_RESIDENT});
    check_list_forwarded(LIST_ONE);
    CHECK(ms_allocation_lineage(one)->resident_bytes == BYTES &&
          ms_allocation_lineage(other)->resident_bytes == BYTES);
}

MS_TEST_BETWEEN(start_lists, end, a_launch_that_is_more_than_its_list_is_not_cut)
{
    const CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PRIORITY};
    list_call.attributes = &attribute;
    list_call.attribute_count = 1;
    check_list_forwarded(LIST_ONE);
    list_call.attribute_count = 0;
    fill(one, 0, BYTES);
    fill(other, 0, BYTES);
    list_call.cooperative = true;
    check_list_forwarded(LIST_ONE);
    list_call.cooperative = false;
    fill(one, 0, BYTES);
    fill(other, 0, BYTES);
    ms_order_set_capture(true);
    check_list_forwarded(LIST_ONE);
    ms_order_set_capture(false);
    fill(one, 0, BYTES);
    fill(other, 0, BYTES);
    check_list_recorded(LIST_ONE);
}

MS_TEST_BETWEEN(start_lists, end, a_list_with_many_parameters_behind_it_is_cut)
{
    fake_set(one, 0, FAKE_GRANULE, &(struct ms_content){.kind = MS_RESIDENT});
    more_parameters = 14;
    blocks_wanted = 2;
    CUresult result;
    CHECK(launch_list(LIST_ONE, &result) && result == CUDA_SUCCESS && launches == 1);
}

MS_TEST_BETWEEN(start_lists, end, a_list_with_more_parameters_is_forwarded)
{
    more_parameters = 15;
    check_list_forwarded(LIST_ONE);
}

/* An address behind the list is no tensor of the list. */
MS_TEST_BETWEEN(start_lists, end, an_address_behind_a_list_is_not_of_it)
{
    memset(ones.addresses, 0, sizeof(ones.addresses));
    value = one->address;
    check_list_forwarded(LIST_ONE);
    CHECK_EQ(ms_allocation_lineage(one)->resident_bytes, BYTES);
    fill(one, 0, BYTES);
    fill(other, 0, BYTES);
    twos.addresses[0][0] = other->address;
    value = one->address;
    list_call.grid[0] = 2;
    check_list_forwarded(LIST_TWO);
}

MS_TEST_BETWEEN(start_lists, end, the_second_of_two_lists_is_made_of_the_first)
{
    fill(other, 0, BYTES);
    list_call.grid[0] = blocks_wanted = 2;
    twos.addresses[0][0] = other->address;
    twos.addresses[1][0] = one->address;
    check_list_recorded(LIST_TWO);
    fake_set(other, 0, BYTES, &(struct ms_content){.kind = MS_FILL, .pattern = 0x09090909});
    check_bytes(0, BYTES, 7);
    CHECK(launches == 1 && ms_allocation_backing(other)->backed_bytes == 0);
}

MS_TEST_BETWEEN(start_lists, end, two_lists_may_have_the_same_tensor)
{
    fill(one, 0, BYTES);
    list_call.grid[0] = blocks_wanted = 2;
    twos.addresses[0][0] = twos.addresses[1][0] = one->address;
    check_list_recorded(LIST_TWO);
    check_bytes(0, BYTES, 7);
}

MS_TEST_BETWEEN(start_lists, end, two_lists_of_other_pairs_are_forwarded)
{
    list_call.grid[0] = 2;
    for (int i = 0; i < 3; i++) {
        fill(one, 0, BYTES);
        fill(other, 0, BYTES);
        twos.addresses[0][0] = i == 0 ? one->address + 8 : other->address + (i == 1 ? BYTES : 0);
        twos.addresses[1][0] = one->address;
        other->context = i == 2 ? (CUcontext)2 : FAKE_CONTEXT;
        check_list_forwarded(LIST_TWO);
    }
    other->context = FAKE_CONTEXT;
}

/* As launch_without. One of the two tensors may be recorded. */
static bool launch_list_without(int pieces)
{
    CUresult result = CUDA_SUCCESS;
    const int before = live;
    start_lists();
    list_call.grid[0] = 2;
    ones.tensor_of_block[1] = 1;
    ones.tensor_of_block[2] = 0;
    may_make = pieces;
    fails_once = true;
    const bool is_answered = launch_list(LIST_ONE, &result);
    const bool has_failed = may_make < 0;
    may_make = MANY;
    fails_once = false;
    CHECK_EQ(result, CUDA_SUCCESS);
    CHECK_EQ(is_answered, kind_of(one) == MS_LAUNCHED || kind_of(other) == MS_LAUNCHED);
    CHECK_EQ(launches,
             is_answered && (kind_of(one) != MS_LAUNCHED || kind_of(other) != MS_LAUNCHED));
    end();
    CHECK(live == before || pieces == MANY);
    return has_failed;
}

MS_TEST(a_list_without_heap_is_launched_and_leaves_nothing)
{
    launch_list_without(MANY);
    for (int pieces = 0; launch_list_without(pieces);)
        pieces++;
}

/* Another way changes the input, or the allocation at its address. */
MS_TEST_BETWEEN(start, end, an_input_comes_into_its_place_only_if_it_is_what_was_read)
{
    static struct test_file file;
    make_test_file(&file, "/tmp", 2 * BYTES);
    for (int way = 0; way < 3; way++) {
        struct ms_content content = {.kind = MS_SOURCE, .source = file.source};
        fake_set(one, 0, BYTES, &(struct ms_content){.kind = MS_UNDEFINED});
        fake_set(other, 0, BYTES, &content);
        check_recorded(TAKE, one->address, other->address);
        content.source_offset = 1;
        if (way == 1)
            fake_set(other, 0, BYTES, &content);
        other->id += way == 2;
        const uint64_t before = ms_counter_get(MS_COUNT_H2D_BYTES);
        CHECK_EQ(materialise(one, 0, BYTES), CUDA_SUCCESS);
        other->id -= way == 2;
        CHECK_EQ(ms_allocation_lineage(other)->cached_bytes, way == 0 ? BYTES : 0);
        CHECK_EQ(ms_counter_get(MS_COUNT_H2D_BYTES) - before, BYTES);
        CHECK_BYTES((void *)(uintptr_t)one->address, file.data, BYTES);
        launches = 0;
    }
    fake_set(other, 0, BYTES, &(struct ms_content){.kind = MS_UNDEFINED});
    fake_set(one, 0, BYTES, &(struct ms_content){.kind = MS_UNDEFINED});
    ms_source_drop(file.source);
}

/* --- launches that are copies */

static struct cat cat;
static struct loop loop;
static struct ms_allocation *joined; /* what they make */
static struct ms_call copy_call;
static bool is_cat;

/* One and the other, one behind the other: in elements of 4 bytes. */
static void start_copies(void)
{
    start();
    joined = fake_allocation(2 * BYTES);
    fill(one, 0, BYTES);
    fake_set(other, 0, BYTES, &(struct ms_content){.kind = MS_FILL, .pattern = 0x09090909});
    cat = (struct cat){.input = {one->address, other->address},
                       .words = {{0, BYTES / 4}, {BYTES / 4, BYTES / 4}, {BYTES / 4, BYTES / 4}},
                       .dense = {1, 1}};
    copy_call = (struct ms_call){.grid = {1, 2, 1}, .block = {64, 1, 1}, .stream = FAKE_STREAM};
}

static void end_copies(void)
{
    fake_check_allocation(joined);
    fake_allocation_free(joined);
    end();
}

static bool launch_cat(CUresult *result_out)
{
    uint64_t out = joined->address;
    uint32_t shape[8] = {2 * BYTES / 4, 0, 0, 0, 1}, dimension = 0, stride = 1;
    void *params[] = {&out, &cat, shape, &dimension, &stride};
    copy_call.function = (CUfunction)(uintptr_t)(CAT + 1);
    copy_call.params = params;
    return ms_launch(&copy_call, result_out);
}

/* Half rows of 128 bytes of one, to every other half row of the result. */
static bool launch_loop(CUdeviceptr to, CUdeviceptr from, unsigned rows, CUresult *result_out)
{
    uint32_t count = 128 * rows;
    loop = (struct loop){.pointers = {to, from},
                         .dims = 2,
                         .sizes = {{128}, {rows}},
                         .strides = {{1, 1}, {512, 256}}};
    void *params[] = {&count, &loop};
    copy_call.function = (CUfunction)(uintptr_t)(LOOP + 1);
    copy_call.params = params;
    copy_call.grid[1] = 1;
    return ms_launch(&copy_call, result_out);
}

static bool launch_copy(CUresult *result_out)
{
    *result_out = CUDA_ERROR_UNKNOWN;
    return is_cat ? launch_cat(result_out)
                  : launch_loop(joined->address, one->address, 100, result_out);
}

static uint32_t pattern_at(size_t offset)
{
    const struct ms_extent extent = ms_lineage_at(ms_allocation_lineage(joined), offset);
    return extent.content.kind == MS_FILL ? extent.content.pattern : 0;
}

MS_TEST_BETWEEN(start_copies, end_copies, a_concatenation_is_copied_by_lineage)
{
    CUresult result;
    CHECK(launch_cat(&result) && result == CUDA_SUCCESS);
    CHECK(launches == 0 && ms_allocation_backing(joined)->backed_bytes == 0 &&
          fake.work_count == 0);
    CHECK(pattern_at(0) == 0x07070707 && pattern_at(BYTES - 1) == 0x07070707);
    CHECK(pattern_at(BYTES) == 0x09090909 && pattern_at(2 * BYTES - 1) == 0x09090909);
}

MS_TEST_BETWEEN(start_copies, end_copies, a_copy_of_rows_is_copied_by_lineage)
{
    CUresult result;
    CHECK(launch_loop(joined->address, one->address, 100, &result) && result == CUDA_SUCCESS);
    CHECK(launches == 0 && ms_allocation_backing(joined)->backed_bytes == 0 &&
          fake.work_count == 0);
    CHECK(pattern_at(0) == 0x07070707 && pattern_at(127) == 0x07070707 && pattern_at(128) == 0);
    CHECK(pattern_at(99 * 512 + 127) == 0x07070707 && pattern_at(100 * 512) == 0);
}

MS_TEST_BETWEEN(start_copies, end_copies, a_loop_of_one_dimension_is_one_row)
{
    CUresult result;
    uint32_t count = 128;
    loop = (struct loop){.pointers = {joined->address, one->address},
                         .dims = 1,
                         .sizes = {{128}},
                         .strides = {{1, 1}}};
    void *params[] = {&count, &loop};
    copy_call.function = (CUfunction)(uintptr_t)(LOOP + 1);
    copy_call.params = params;
    copy_call.grid[1] = 1;
    CHECK(ms_launch(&copy_call, &result) && result == CUDA_SUCCESS);
    CHECK(pattern_at(127) == 0x07070707 && pattern_at(128) == 0);
}

MS_TEST_BETWEEN(start_copies, end_copies, a_launch_that_copies_one_row_is_a_copy_of_rows_too)
{
    CUresult result;
    CHECK(launch_loop(joined->address, one->address, 1, &result) && result == CUDA_SUCCESS);
    CHECK(pattern_at(127) == 0x07070707 && pattern_at(128) == 0);
}

static void check_copy_forwarded(void)
{
    CUresult result;
    CHECK(!launch_copy(&result));
    CHECK_EQ(result, CUDA_SUCCESS);
    CHECK(ms_allocation_lineage(one)->resident_bytes == BYTES &&
          ms_allocation_lineage(joined)->resident_bytes == 2 * BYTES);
}

/* It runs as any other kernel, and its memory is there. */
MS_TEST(a_copy_that_the_driver_may_refuse_or_that_is_captured_is_forwarded)
{
    for (int i = 0; i < 7; i++) { /* of rows a launch can be recorded */
        is_cat = i % 2 == 0;
        start_copies();
        if (i / 2 == 0)
            copy_call.grid[0] = 257;
        else if (i / 2 == 1)
            copy_call.cooperative = true;
        else if (i / 2 == 2)
            ms_order_set_capture(true);
        else
            fake_fail(FAKE_ctx_get_device, 1, CUDA_ERROR_UNKNOWN);
        check_copy_forwarded();
        if (i / 2 == 2)
            ms_order_set_capture(false);
        end_copies();
    }
}

MS_TEST_BETWEEN(start_copies, end_copies, a_concatenation_of_other_memory_is_forwarded)
{
    CUresult result;
    uint64_t out = program;
    uint32_t shape[8] = {64, 0, 0, 0, 1}, dimension = 0, stride = 1;
    void *params[] = {&out, &cat, shape, &dimension, &stride};
    cat = (struct cat){.input = {program + 4096, program + 8192},
                       .words = {{0, 32}, {32, 32}, {32, 32}},
                       .dense = {1, 1}};
    copy_call.function = (CUfunction)(uintptr_t)(CAT + 1);
    copy_call.params = params;
    CHECK(!ms_launch(&copy_call, &result));
    CHECK(fake.work_count == 0 && ms_allocation_backing(one)->backed_bytes == 0);
}

/* Only so can what is absent between the rows be left out. */
MS_TEST_BETWEEN(start_copies, end_copies, rows_to_other_memory_are_copied_around_what_is_absent)
{
    CUresult result;
    fake_set(one, 128, 256, &absent);
    CHECK(launch_loop(program, one->address, 2, &result) && result == CUDA_SUCCESS);
    CHECK_EQ(*(const unsigned char *)(uintptr_t)(program + 512 + 127), 7);
    CHECK_EQ(launches, 0);
    fill(one, 0, BYTES);
}

MS_TEST_BETWEEN(start_copies, end_copies, a_copy_that_fails_is_told)
{
    CUresult result;
    fake_set(one, 0, FAKE_GRANULE, &(struct ms_content){.kind = MS_RESIDENT});
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    CHECK(launch_cat(&result));
    CHECK_EQ(result, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(launches, 0);
}

/* --- what a launch may reach besides */

MS_TEST_BETWEEN(start, end, a_prepared_launch_is_not_looked_at)
{
    CUresult result;
    uint64_t first = one->address, second = 5;
    void *params[] = {&first, &second};
    struct ms_call call = call_of(PUT, params);
    fill(one, 0, BYTES);
    atomic_store(&ms_hot.started, 1);
    call.is_prepared = true;
    CHECK(!ms_launch(&call, &result) && ms_is_gated());
    CHECK_EQ(ms_allocation_backing(one)->backed_bytes, 0);
}

MS_TEST_BETWEEN(start, end, only_a_launch_that_runs_sets_the_gate)
{
    CUresult result;
    atomic_store(&ms_hot.started, 1);
    CHECK(launch(PUT, one->address, 5, &result) && !ms_is_gated());
    CHECK(!launch(OTHER, program, 5, &result) && ms_is_gated());
    fill(one, 0, BYTES);
}

MS_TEST_BETWEEN(start, end, a_launch_brings_all_in_where_kernels_may_reach_anything)
{
    fill(one, 0, BYTES);
    fill(other, 0, BYTES);
    ms_host_memory_add_reach(MS_REASON_GLOBALS);
    check_forwarded(OTHER, program, 5);
    CHECK_EQ(ms_allocation_lineage(other)->resident_bytes, BYTES);
}

MS_TEST_BETWEEN(start, end, a_launch_with_tracked_host_memory_may_reach_anything)
{
    static uint64_t words[4];
    fill(one, 0, BYTES);
    fill(other, 0, BYTES);
    ms_host_memory_add((uintptr_t)words, sizeof(words));
    check_forwarded(OTHER, program, (uintptr_t)&words[3]);
    CHECK_EQ(ms_allocation_lineage(other)->resident_bytes, BYTES);
}

MS_TEST_BETWEEN(start, end, a_launch_fails_if_memory_it_reaches_cannot_come_in)
{
    CUresult result = CUDA_SUCCESS;
    fill(one, 0, BYTES);
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    CHECK(launch(OTHER, one->address, 5, &result));
    CHECK_EQ(result, CUDA_ERROR_UNKNOWN);
    void *extra[] = {(void *)(uintptr_t)77, NULL, CU_LAUNCH_PARAM_END};
    struct ms_call call = call_of(OTHER, NULL);
    call.extra = extra;
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    CHECK(ms_launch(&call, &result));
    CHECK_EQ(result, CUDA_ERROR_UNKNOWN);
}

/* --- what is kept of a launch */

static struct ms_recorded_launch *recorded_at(const struct ms_allocation *allocation, size_t offset)
{
    const struct ms_extent extent = ms_lineage_at(ms_allocation_lineage(allocation), offset);
    CHECK_EQ(extent.content.kind, MS_LAUNCHED);
    return extent.content.recorded;
}

static bool is_recorded(enum kernel kernel, uint64_t first, uint64_t second)
{
    CUresult result;
    return launch(kernel, first, second, &result);
}

static void carve(struct ms_allocation *allocation, size_t first, size_t behind)
{
    CHECK(ms_space_claim(allocation->address) == allocation);
    CHECK_EQ(ms_carve_take(allocation, first * FAKE_GRANULE, behind * FAKE_GRANULE), MS_CARVED);
    ms_space_release(allocation);
    fill(allocation, first * FAKE_GRANULE, behind * FAKE_GRANULE);
}

MS_TEST_BETWEEN(start, end, a_launch_makes_one_block_of_another)
{
    carve(one, 1, 2);
    carve(one, 2, 4);
    for (int way = 0; way < 2; way++) {
        const size_t to = way == 0 ? 1 : 2, from = 3 - to;
        CHECK(is_recorded(TAKE, one->address + to * FAKE_GRANULE,
                          one->address + from * FAKE_GRANULE));
        const struct ms_recorded_launch *recorded = recorded_at(one, to * FAKE_GRANULE);
        CHECK_EQ(recorded->address, one->address + to * FAKE_GRANULE);
        CHECK(recorded->allocation_id == one->id && recorded->context == FAKE_CONTEXT);
        CHECK(recorded->device == 0 && recorded->input->allocation_id == one->id);
        CHECK_EQ(recorded->input->address, one->address + from * FAKE_GRANULE);
        CHECK_EQ(recorded->input->lineage.bytes, (way == 0 ? 2 : 1) * FAKE_GRANULE);
        CHECK_EQ(recorded->before.bytes, (way == 0 ? 1 : 2) * FAKE_GRANULE);
        CHECK_EQ(ms_lineage_at(ms_allocation_lineage(one), 0).content.kind, MS_DEAD);
        fill(one, FAKE_GRANULE, BYTES);
    }
}

MS_TEST_BETWEEN(start, end, within_one_block_nothing_is_made_of_another_part)
{
    CUresult result;
    carve(one, 1, 3);
    CHECK(!launch(TAKE, one->address + FAKE_GRANULE, one->address + 2 * FAKE_GRANULE, &result));
    CHECK(!launch(TAKE, one->address + 2 * FAKE_GRANULE, one->address + FAKE_GRANULE, &result));
    CHECK(ms_lineage_at(ms_allocation_lineage(one), FAKE_GRANULE).content.kind != MS_LAUNCHED);
}

MS_TEST_BETWEEN(start, end, a_launch_that_writes_its_second_operand_is_recorded_too)
{
    fill(other, 0, BYTES);
    CHECK(is_recorded(GIVE, other->address, one->address));
    CHECK_EQ(recorded_at(one, 0)->input->allocation_id, other->id);
    CHECK_EQ(ms_lineage_at(ms_allocation_lineage(other), 0).content.kind, MS_FILL);
    check_bytes(0, BYTES, 7);
    fill(one, 0, BYTES);
    check_forwarded(GIVE, one->address, one->address);
}

MS_TEST_BETWEEN(start, end, a_launch_with_more_parameters_has_its_operands_side_by_side)
{
    CUresult result;
    for (int i = 0; i < 4; i++) {
        uint64_t words[] = {one->address, 5, 5, 5};
        void *params[] = {&words[0], &words[1], &words[2], &words[3]};
        const struct ms_call call = call_of(TAKE_FOUR, params);
        words[i == 3 ? 1 : 2] = other->address;
        if (i == 0)
            words[1] = other->address;
        if (i == 1)
            words[2] = 5;
        fill(one, 0, BYTES);
        fill(other, 0, BYTES);
        CHECK_EQ(ms_launch(&call, &result), i == 3);
    }
    fill(one, 0, BYTES);
}

/* A replay runs all that are below it. */
MS_TEST_BETWEEN(start, end, so_many_launches_are_recorded_one_over_the_other)
{
    for (int i = 0; i < MS_MAX_LAUNCH_DEPTH; i++) {
        check_recorded(PUT, one->address, 5);
        CHECK_EQ(recorded_at(one, 0)->depth, i + 1);
    }
    check_forwarded(PUT, one->address, 5);
}

MS_TEST_BETWEEN(start, end, launches_below_the_input_count_too)
{
    fill(other, 0, BYTES);
    for (int i = 0; i < MS_MAX_LAUNCH_DEPTH - 1; i++)
        CHECK(is_recorded(PUT, other->address, 5));
    check_recorded(PUT, one->address, 5);
    check_recorded(TAKE, one->address, other->address);
    CHECK_EQ(recorded_at(one, 0)->depth, MS_MAX_LAUNCH_DEPTH);
    fill(one, 0, BYTES);
    CHECK(is_recorded(PUT, other->address, 5));
    check_forwarded(TAKE, one->address, other->address);
}

MS_TEST_BETWEEN(start, end, the_deeper_one_of_what_was_there_and_of_the_input_counts)
{
    fill(other, 0, BYTES);
    for (int i = 0; i < 5; i++)
        check_recorded(PUT, one->address, 5);
    CHECK(is_recorded(PUT, other->address, 5));
    check_recorded(TAKE, one->address, other->address);
    CHECK(recorded_at(one, 0)->depth == 6 && recorded_at(one, 0)->input_depth == 1);
    check_recorded(PASS, one->address, one->address);
    CHECK(recorded_at(one, 0)->depth == 7 && recorded_at(one, 0)->input_depth == 1);
}

/* Who unloads it may have looked at the block already. */
MS_TEST_BETWEEN(start, end, no_launch_is_recorded_while_code_is_unloaded)
{
    atomic_fetch_add(&ms_parameters_unloads, 1);
    check_forwarded(PUT, one->address, 5);
    atomic_fetch_sub(&ms_parameters_unloads, 1);
    fill(one, 0, BYTES);
    check_recorded(PUT, one->address, 5);
}

/* In the block that is written, in the input, and below launches there. */
MS_TEST_BETWEEN(start, end, a_launch_knows_whether_bytes_of_files_are_below)
{
    static struct test_file file;
    make_test_file(&file, "/tmp", BYTES);
    const struct ms_content of_file = {.kind = MS_SOURCE, .source = file.source};
    fill(one, 0, BYTES);
    fill(other, 0, BYTES);
    check_recorded(TAKE, one->address, other->address);
    CHECK(!recorded_at(one, 0)->has_sources);
    fake_set(other, 0, BYTES, &of_file);
    check_recorded(TAKE, one->address, other->address);
    CHECK(recorded_at(one, 0)->has_sources);
    check_recorded(PUT, one->address, 5);
    CHECK(recorded_at(one, 0)->has_sources);
    fill(one, 0, BYTES);
    CHECK(is_recorded(PUT, other->address, 5));
    check_recorded(TAKE, one->address, other->address);
    CHECK(recorded_at(one, 0)->has_sources);
    ms_source_drop(file.source);
    fill(one, 0, BYTES);
    fill(other, 0, BYTES);
}

/* Each takes memory in a replay. */
MS_TEST_BETWEEN(start, end, inputs_of_inputs_are_recorded_up_to_a_depth)
{
    struct ms_allocation *third = fake_allocation(BYTES), *fourth = fake_allocation(BYTES);
    fill(other, 0, BYTES);
    check_recorded(TAKE, one->address, other->address);
    check_recorded(TAKE, one->address, other->address); /* beside each other, not below */
    CHECK(is_recorded(TAKE, third->address, one->address));
    CHECK_EQ(recorded_at(third, 0)->input_depth, 2);
    CHECK(is_recorded(TAKE, third->address, other->address));
    CHECK_EQ(recorded_at(third, 0)->input_depth, 2);
    CHECK(!is_recorded(TAKE, fourth->address, third->address));
    CHECK_EQ(ms_allocation_lineage(fourth)->resident_bytes, BYTES);
    fake_allocation_free(third);
    fake_allocation_free(fourth);
}

/* It would be kept twice. */
MS_TEST_BETWEEN(start, end, an_input_that_is_a_snapshot_runs)
{
    static unsigned char bytes[BYTES];
    ms_host_snapshot_set_limit(2 * BYTES);
    memset(bytes, 3, sizeof(bytes));
    const struct ms_content content = {.kind = MS_SOURCE, .source = snapshot_of(bytes, BYTES)};
    fake_set(other, 0, BYTES, &content);
    ms_source_drop(content.source);
    check_forwarded(TAKE, one->address, other->address);
}

/* A recorded launch would send bytes again that are in memory already. */
MS_TEST_BETWEEN(start, end, an_input_out_of_a_file_of_which_less_than_half_is_in_memory_is_recorded)
{
    static struct test_file file;
    make_test_file(&file, "/tmp", BYTES);
    for (size_t cached = 0; cached <= GRANULES; cached++) {
        struct ms_content content = {.kind = MS_SOURCE, .source = file.source};
        fake_set(other, 0, BYTES, &content);
        content.cached = true;
        if (cached > 0)
            fake_set(other, 0, cached * FAKE_GRANULE, &content);
        CHECK_EQ(is_recorded(TAKE, one->address, other->address), cached < GRANULES / 2);
        fill(one, 0, BYTES);
        fill(other, 0, BYTES);
    }
    ms_source_drop(file.source);
}

/* A pointer at that place may be left from before in any number of launches. */
MS_TEST_BETWEEN(start, end, a_kernel_is_not_learnt_from_a_launch_with_two_addresses)
{
    CHECK(is_recorded(PUT, 5, one->address));
    for (int i = 0; i < 3; i++) {
        CHECK(is_recorded(PUT, other->address + 8, one->address));
        CHECK(ms_lineage_at(ms_allocation_lineage(other), 0).content.kind != MS_LAUNCHED);
    }
}

MS_TEST_BETWEEN(start, end, a_launch_that_may_reach_anything_is_not_recorded)
{
    static uint64_t words[4];
    fill(one, 0, BYTES);
    ms_host_memory_add((uintptr_t)words, sizeof(words));
    check_forwarded(PUT, one->address, (uintptr_t)words);
}

/* --- what runs */

MS_TEST_BETWEEN(start, end, a_launch_tells_why_memory_is_used_and_by_which_kernel)
{
    CUresult result;
    fill(one, 0, BYTES);
    fill(other, 0, BYTES);
    asked.uses = asked.notes = 0;
    CHECK(!launch(OTHER, one->address + 8, 0, &result));
    CHECK(asked.uses == 1 && asked.count == 1 && asked.last.why == MS_REASON_NO_RULE);
    CHECK(asked.last.begin == one->address && asked.last.bytes == BYTES);
    CHECK(strcmp(asked.kernel, "other") == 0 && ms_caller_kernel == NULL);
    CHECK(asked.notes == 1 && asked.sign == MS_OVERCOMMIT_USED && asked.used == BYTES);
    CHECK_EQ(asked.device, 0);
    CHECK(!launch(TAKE, other->address, program, &result));
    CHECK(asked.uses == 2 && asked.last.why == MS_REASON_RULE_MISSED);
    CHECK(asked.notes == 2 && asked.used == BYTES);
    fill(one, 0, BYTES);
    CHECK(!launch(OTHER, program, program, &result));
    CHECK(asked.uses == 2 && asked.notes == 2); /* it reaches nothing */
    ms_host_memory_add_reach(MS_REASON_GLOBALS);
    CHECK(!launch(OTHER, program, program, &result));
    CHECK(asked.notes == 3 && asked.used == BYTES);
}

MS_TEST_BETWEEN(start, end, the_layout_of_its_parameters_is_not_kept_longer)
{
    CUresult result;
    struct ms_param_layout *layout = ms_parameters_take((CUfunction)(uintptr_t)(OTHER + 1));
    const struct ms_counted before = layout->counted;
    fill(one, 0, BYTES);
    CHECK(!launch(OTHER, program, 0, &result));
    CHECK_EQ(layout->counted.references, before.references);
    ms_counted_drop(&layout->counted);
}

static CUresult tell_nothing(CUfunction function, size_t index, size_t *offset, size_t *bytes)
{
    CHECK(function != NULL && index == 0 && offset != NULL && bytes != NULL);
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* The program has packed all parameters of a kernel that tells nothing about them. */
MS_TEST_BETWEEN(start, end, parameters_that_the_program_packs_are_recorded_where_nothing_is_known)
{
    CUresult result;
    uint64_t words[] = {one->address, 5};
    size_t bytes = sizeof(words);
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, words, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    struct ms_call call = call_of(PUT, NULL);
    call.extra = extra;
    ms_driver.func_get_param_info = tell_nothing;
    CHECK(ms_launch(&call, &result) && result == CUDA_SUCCESS);
    CHECK_EQ(ms_lineage_at(ms_allocation_lineage(one), 0).content.kind, MS_LAUNCHED);
    fill(one, 0, BYTES);
}

MS_TEST_BETWEEN(start, end, granules_that_wait_for_a_launch_are_filled_before_it)
{
    CUresult result = CUDA_SUCCESS;
    fill(one, 0, BYTES);
    ms_examining_add_context(FAKE_CONTEXT, 0);
    CHECK(ms_space_claim(one->address) == one);
    CHECK_EQ(ms_materialise_for_copy(one, 0, FAKE_GRANULE / 2), CUDA_SUCCESS);
    ms_space_release(one);
    CHECK(ms_has_unfilled());
    CHECK(!launch(OTHER, program, 0, &result));
    CHECK(!ms_has_unfilled());
    CHECK_EQ(ms_allocation_lineage(one)->resident_bytes + ms_allocation_lineage(one)->cached_bytes,
             FAKE_GRANULE);
}

/* --- a device that reads all of the process's memory */

static int is_pageable;

static CUresult pageable_attribute(int *answer, CUdevice_attribute attribute, CUdevice device)
{
    if (attribute != CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS)
        return device_get_attribute(answer, attribute, device);
    *answer = is_pageable;
    return CUDA_SUCCESS;
}

static bool reaches_all(uint64_t word)
{
    CUresult result;
    fill(one, 0, BYTES);
    CHECK(!launch(OTHER, program, word, &result));
    return ms_allocation_lineage(one)->resident_bytes == BYTES;
}

/* The same word, half of it in each of two parameters. */
static bool reaches_across(uint64_t word)
{
    CUresult result;
    fill(one, 0, BYTES);
    CHECK(!launch(OTHER, word << 32, word >> 32, &result));
    return ms_allocation_lineage(one)->resident_bytes == BYTES;
}

MS_TEST_BETWEEN(start, end, an_address_of_the_host_may_lead_anywhere_if_the_device_reads_it)
{
    is_pageable = 1;
    ms_driver.device_get_attribute = pageable_attribute;
    void *closed = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *opened = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(closed != MAP_FAILED && opened != MAP_FAILED);
    CHECK(!reaches_all(5) && !reaches_all(program + 8) && !reaches_all((uintptr_t)closed));
    CHECK(reaches_all((uintptr_t)opened));
    is_pageable = 0; /* of the current device */
    CHECK(!reaches_all((uintptr_t)opened));
    munmap(closed, 4096);
    munmap(opened, 4096);
}

/* An address that may be a number is a pointer only where one can lie. */
MS_TEST_BETWEEN(start, end, a_near_address_lies_in_one_parameter)
{
    is_pageable = 1;
    ms_driver.device_get_attribute = pageable_attribute;
    void *near =
        mmap((void *)((uintptr_t)1 << 29), 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(near != MAP_FAILED);
    if ((uintptr_t)near >> 32 == 0) {
        CHECK(reaches_all((uintptr_t)near));
        CHECK(!reaches_across((uintptr_t)near));
    }
    munmap(near, 4096);
}
