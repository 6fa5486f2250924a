/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels: initialisation that may be recorded, words changed and copied, and tables of
 * addresses. */
#include "tests/driver/differential/program.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/simcuda/kernels/torch_kernels.h"

static const char *torch_path;
static CUmodule kernels, torch;

void program_kernels_init(const char *path, const char *path_of_torch)
{
    torch_path = path_of_torch;
    program_must(cuModuleLoad(&kernels, path), "cuModuleLoad");
    program_must(cuModuleLoad(&torch, torch_path), "cuModuleLoad");
}

/* Results of recorded launches must outlive the code. */
void program_reload_kernels(void)
{
    program_streams_wait();
    program_must(cuModuleUnload(torch), "cuModuleUnload");
    program_must(cuModuleLoad(&torch, torch_path), "cuModuleLoad");
    printf("reload\n");
}

static CUfunction kernel(const char *name)
{
    CUfunction function;
    program_must(cuModuleGetFunction(&function, kernels, name), name);
    return function;
}

/* A launch of a kernel of the framework: by parameters or packed, by the plain call or the extended
 * one. */
static void launch(const char *name, unsigned grid, void **params, const size_t *sizes,
                   const size_t *offsets, int count)
{
    CUfunction function;
    unsigned char packed[1024];
    size_t bytes = 0;
    CUstream stream = program_next_stream();
    program_must(cuModuleGetFunction(&function, torch, name), name);
    for (int i = 0; i < count; i++) {
        memcpy(packed + offsets[i], params[i], sizes[i]);
        bytes = offsets[i] + sizes[i];
    }
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    const bool is_packed = program_one_in(4);
    void **given = is_packed ? NULL : params;
    void **more = is_packed ? extra : NULL;
    if (program_one_in(3)) {
        const CUlaunchConfig config = {.gridDimX = grid,
                                       .gridDimY = 1,
                                       .gridDimZ = 1,
                                       .blockDimX = 128,
                                       .blockDimY = 1,
                                       .blockDimZ = 1,
                                       .hStream = stream};
        program_must(cuLaunchKernelEx(&config, function, given, more), "cuLaunchKernelEx");
    } else {
        program_must(cuLaunchKernel(function, grid, 1, 1, 128, 1, 1, 0, stream, given, more),
                     "cuLaunchKernel");
    }
}

/* Whole floats of a range, often all of a block. */
static bool float_range(struct program_range *range_out)
{
    if (!program_range(range_out, SIZE_MAX))
        return false;
    if (program_one_in(2))
        *range_out =
            (struct program_range){.block = range_out->block, .bytes = range_out->block->bytes};
    range_out->at -= range_out->at % 4;
    range_out->bytes -= range_out->bytes % 4;
    return range_out->bytes > 0;
}

static void draw(const struct program_range *range)
{
    const unsigned grid = 1 + (unsigned)program_below(50);
    const bool is_normal = program_one_in(2);
    int64_t count = (int64_t)(range->bytes / 4);
    struct torch_philox philox = {.seed.value = program_below(1000),
                                  .offset.value = 4 * program_below(1000)};
    char dist = 0;
    struct torch_transform to = {.out = program_address(range), .low = -1.0F, .high = 0.5F};
    void *params[] = {&count, &philox, &dist, &to};
    static const size_t sizes[] = {8, sizeof(philox), 1, sizeof(to)};
    static const size_t offsets[] = {0, 8, 32, 40};
    launch(is_normal ? TORCH_NAME(TORCH_NORMAL) : TORCH_NAME(TORCH_UNIFORM), grid, params, sizes,
           offsets, 4);
    for (uint64_t i = 0; i < (uint64_t)count; i++) {
        const float value = torch_draw(philox.seed.value, philox.offset.value, grid * 128ULL, i,
                                       to.low, to.high, is_normal);
        memcpy(range->block->model + range->at + 4 * i, &value, 4);
    }
}

static void fill(const struct program_range *range)
{
    int count = (int)(range->bytes / 4);
    float value = (float)program_below(100);
    CUdeviceptr out = program_address(range);
    void *params[] = {&count, &value, &out};
    static const size_t sizes[] = {4, 4, 8};
    static const size_t offsets[] = {0, 4, 8};
    launch(TORCH_NAME(TORCH_FILL), 1 + (unsigned)program_below(9), params, sizes, offsets, 3);
    for (int i = 0; i < count; i++)
        memcpy(range->block->model + range->at + 4 * (size_t)i, &value, 4);
}

static void count_up(const struct program_range *range)
{
    int count = (int)(range->bytes / 4);
    struct torch_range from = {(float)program_below(10), 0.5F};
    CUdeviceptr out = program_address(range);
    void *params[] = {&count, &from, &out};
    static const size_t sizes[] = {4, 8, 8};
    static const size_t offsets[] = {0, 4, 16};
    launch(TORCH_NAME(TORCH_ARANGE), 1 + (unsigned)program_below(9), params, sizes, offsets, 3);
    for (int i = 0; i < count; i++) {
        const float value = from.start + from.step * (float)i;
        memcpy(range->block->model + range->at + 4 * (size_t)i, &value, 4);
    }
}

static void initialise(const struct program_range *range)
{
    static void (*const ways[])(const struct program_range *) = {draw, draw, fill, count_up};
    const size_t way = program_below(4);
    ways[way](range);
    memset(range->block->defined + range->at, 1, range->bytes);
    printf("initialise %zu, way %zu\n", range->bytes, way);
}

void program_initialise(void)
{
    struct program_range range;
    if (float_range(&range))
        initialise(&range);
}

static void change(struct program_range out, struct program_range in)
{
    const bool adds = program_one_in(2);
    int count = (int)(out.bytes / 4);
    float operand = 0.25F * (float)(1 + program_below(8));
    CUdeviceptr data[2] = {program_address(&out), program_address(&in)};
    void *params[] = {&count, &operand, data};
    static const size_t sizes[] = {4, 4, 16};
    static const size_t offsets[] = {0, 4, 8};
    launch(adds ? TORCH_NAME(TORCH_ADD) : TORCH_NAME(TORCH_MUL), 3, params, sizes, offsets, 3);
    for (size_t i = 0; i < (size_t)count; i++) {
        float value;
        memcpy(&value, in.block->model + in.at + 4 * i, 4);
        value = adds ? value + operand : value * operand;
        memcpy(out.block->model + out.at + 4 * i, &value, 4);
        const unsigned char *defined = in.block->defined + in.at + 4 * i;
        memset(out.block->defined + out.at + 4 * i,
               defined[0] & defined[1] & defined[2] & defined[3], 4);
    }
    printf("change %d in place\n", count);
}

/* Elements from one range to another, or usually the same. */
void program_change_in_place(void)
{
    struct program_range out, in;
    if (!float_range(&out))
        return;
    in = out;
    if (program_one_in(5)) {
        if (!float_range(&in))
            return;
        out.bytes = in.bytes = out.bytes < in.bytes ? out.bytes : in.bytes;
        if (!program_is_disjoint(&in, &out))
            return;
    }
    change(out, in);
}

/* A new tensor, as constructors make it: drawn, and changed a few times. */
void program_build(struct program_block *block)
{
    const struct program_range whole = {.block = block, .bytes = block->bytes / 4 * 4};
    if (whole.bytes == 0)
        return;
    initialise(&whole);
    for (size_t changes = program_below(4); changes > 0; changes--)
        change(whole, whole);
}

/* Words that a kernel reaches through addresses in memory: in a device table, or in pinned
 * memory. */
void program_follow_table(void)
{
    enum { COUNT = 8 };
    static CUdeviceptr device_table, out;
    static CUdeviceptr *pinned_table;
    CUdeviceptr table[COUNT];
    uint32_t wanted[COUNT], seen[COUNT];
    uint64_t count = 0;
    if (out == 0) {
        program_must(cuMemAlloc(&device_table, sizeof(table)), "cuMemAlloc");
        program_must(cuMemAlloc(&out, sizeof(seen)), "cuMemAlloc");
        program_must(cuMemHostAlloc((void **)&pinned_table, sizeof(table), 0), "cuMemHostAlloc");
    }
    for (int i = 0; i < COUNT; i++) {
        struct program_range range;
        if (!program_range(&range, 4) || range.bytes < 4)
            continue;
        range.at -= range.at % 4;
        if (memchr(range.block->defined + range.at, 0, 4) != NULL)
            continue;
        table[count] = program_address(&range);
        memcpy(&wanted[count++], range.block->model + range.at, 4);
    }
    const bool is_pinned = program_one_in(2);
    program_streams_wait();
    if (is_pinned)
        memcpy(pinned_table, table, count * sizeof(table[0]));
    else if (count > 0)
        program_must(cuMemcpyHtoD(device_table, table, count * sizeof(table[0])), "cuMemcpyHtoD");
    CUdeviceptr from = is_pinned ? (CUdeviceptr)(uintptr_t)pinned_table : device_table;
    void *params[] = {&out, &from, &count};
    program_must(cuLaunchKernel(kernel("gather32"), 1, 1, 1, 1, 1, 1, 0, program_next_stream(),
                                params, NULL),
                 "cuLaunchKernel");
    program_streams_wait();
    if (count > 0)
        program_must(cuMemcpyDtoH(seen, out, count * 4), "cuMemcpyDtoH");
    for (uint64_t i = 0; i < count; i++) {
        if (seen[i] != wanted[i]) {
            printf("word %d of a table is %08x, expected %08x\n", (int)i, seen[i], wanted[i]);
            exit(1);
        }
    }
    printf("follow %d addresses\n", (int)count);
}

/* Two threads, each with a stream and a range of its own: a set, a copy of a part, a launch. */
struct task {
    struct program_range range;
    CUcontext context;
    unsigned char value;
    CUresult result;
};

static void *work(void *argument)
{
    struct task *task = argument;
    const CUdeviceptr address = program_address(&task->range);
    const size_t half = task->range.bytes / 8 * 4;
    uint64_t count = half / 4;
    CUstream stream;
    CUdeviceptr place = address;
    uint32_t word = task->value * UINT32_C(0x01010101);
    void *params[] = {&place, &word, &count};
    CUfunction function;
    CUresult result = cuCtxSetCurrent(task->context);
    if (result == CUDA_SUCCESS)
        result = cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS)
        result = cuMemsetD8Async(address, task->value ^ 0xff, task->range.bytes, stream);
    if (result == CUDA_SUCCESS)
        result = cuModuleGetFunction(&function, kernels, "fill32");
    if (result == CUDA_SUCCESS && count > 0)
        result = cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
    if (result == CUDA_SUCCESS)
        result = cuMemcpyDtoDAsync(address + half, address, half, stream);
    if (result == CUDA_SUCCESS)
        result = cuStreamSynchronize(stream);
    task->result = result;
    return NULL;
}

void program_work_in_threads(void)
{
    struct task tasks[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        if (!float_range(&tasks[i].range))
            return;
        tasks[i].value = (unsigned char)program_below(256);
        program_must(cuCtxGetCurrent(&tasks[i].context), "cuCtxGetCurrent");
    }
    if (!program_is_disjoint(&tasks[0].range, &tasks[1].range))
        return;
    program_streams_wait();
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, work, &tasks[i]);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        program_must(tasks[i].result, "work in a thread");
        const struct program_range *range = &tasks[i].range;
        const size_t half = range->bytes / 8 * 4;
        memset(range->block->model + range->at, tasks[i].value ^ 0xff, range->bytes);
        memset(range->block->model + range->at, tasks[i].value, 2 * half);
        memset(range->block->defined + range->at, 1, range->bytes);
    }
    printf("work on %zu and %zu in threads\n", tasks[0].range.bytes, tasks[1].range.bytes);
}

void program_add(void)
{
    struct program_range range;
    if (!program_range(&range, 1 << 20))
        return;
    range.at -= range.at % 4;
    struct {
        CUdeviceptr address;
        uint64_t count;
        uint32_t value;
    } add = {.address = program_address(&range),
             .count = range.bytes / 4,
             .value = (uint32_t)program_random()};
    void *arguments[] = {&add};
    CUstream stream = program_next_stream();
    program_must(cuLaunchKernel(kernel("add_in_place32"), 1, 1, 1, 1, 1, 1, 0, stream, arguments,
                                NULL),
                 "cuLaunchKernel");
    for (size_t i = 0; i < add.count; i++) {
        uint32_t word;
        unsigned char *model = range.block->model + range.at + 4 * i;
        unsigned char *defined = range.block->defined + range.at + 4 * i;
        memcpy(&word, model, 4);
        word += add.value;
        memcpy(model, &word, 4);
        const unsigned char all = defined[0] & defined[1] & defined[2] & defined[3];
        memset(defined, all, 4);
    }
    printf("add to %zu words\n", (size_t)add.count);
}

void program_copy_words(void)
{
    struct program_range from, to;
    if (!program_range(&from, 1 << 20) || !program_range(&to, 1 << 20))
        return;
    from.at -= from.at % 4;
    to.at -= to.at % 4;
    uint64_t count = (from.bytes < to.bytes ? from.bytes : to.bytes) / 4;
    from.bytes = to.bytes = 4 * count;
    if (count == 0 || !program_is_disjoint(&from, &to))
        return;
    CUdeviceptr source = program_address(&from), destination = program_address(&to);
    void *arguments[] = {&destination, &source, &count};
    CUstream stream = program_next_stream();
    program_must(cuLaunchKernel(kernel("copy32"), 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL),
                 "cuLaunchKernel");
    memcpy(to.block->model + to.at, from.block->model + from.at, from.bytes);
    memcpy(to.block->defined + to.at, from.block->defined + from.at, from.bytes);
    printf("copy %zu words by a kernel\n", (size_t)count);
}
