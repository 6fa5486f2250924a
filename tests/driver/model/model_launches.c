/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels, those that may be recorded and others, host functions that are late, and graphs. */
#include "tests/driver/model/model.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/simcuda/kernels/torch_kernels.h"

enum { MOST = 64 << 10, LATE_BYTES = 2048, GATHERED = 16 };

static CUmodule kernels;
static const char *torch_path;
static _Thread_local CUmodule torch;

void model_launches_init(const char *kernels_path, const char *path_of_torch)
{
    OK(cuModuleLoad(&kernels, kernels_path));
    torch_path = path_of_torch;
}

void model_launches_begin(void)
{
    OK(cuModuleLoad(&torch, torch_path));
}

/* The results of recorded launches outlive the code. */
static void reload(void)
{
    model_wait();
    OK(cuModuleUnload(torch));
    model_launches_begin();
}

/* A launch whose parameters are given by pointers or packed. */
struct launch {
    CUmodule module;
    const char *name;
    unsigned grid;
    int count;
    void *params[4];
};

static void launch(struct launch launch, CUstream stream)
{
    unsigned char packed[1024] = {0};
    size_t bytes = 0;
    CUfunction function;
    OK(cuModuleGetFunction(&function, launch.module, launch.name));
    for (int i = 0; i < launch.count; i++) {
        size_t at, size;
        OK(cuFuncGetParamInfo(function, (size_t)i, &at, &size));
        memcpy(packed + at, launch.params[i], size);
        bytes = at + size;
    }
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    const bool is_packed = model_one_in(4);
    void **given = is_packed ? NULL : launch.params, **more = is_packed ? extra : NULL;
    if (model_one_in(3)) {
        const CUlaunchConfig config = {.gridDimX = launch.grid,
                                       .gridDimY = 1,
                                       .gridDimZ = 1,
                                       .blockDimX = 64,
                                       .blockDimY = 1,
                                       .blockDimZ = 1,
                                       .hStream = stream};
        OK(cuLaunchKernelEx(&config, function, given, more));
    } else {
        OK(cuLaunchKernel(function, launch.grid, 1, 1, 64, 1, 1, 0, stream, given, more));
    }
}

static unsigned draw_grid(void)
{
    return 1 + (unsigned)model_below(8);
}

/* --- kernels that write every element of a range, from their parameters alone */

typedef void fill_kernel(struct model_range range, float *values, size_t count, CUstream stream);

static void fill_words(struct model_range range, float *values, size_t count, CUstream stream)
{
    CUdeviceptr at = model_address(range);
    uint32_t value = (uint32_t)model_random();
    uint64_t number = count;
    launch((struct launch){kernels, "fill32", draw_grid(), 3, {&at, &value, &number}}, stream);
    for (size_t i = 0; i < count; i++)
        memcpy(values + i, &value, 4);
}

static void fill_floats(struct model_range range, float *values, size_t count, CUstream stream)
{
    CUdeviceptr at = model_address(range);
    int number = (int)count;
    float value = (float)model_below(100);
    launch((struct launch){torch, TORCH_NAME(TORCH_FILL), draw_grid(), 3, {&number, &value, &at}},
           stream);
    for (size_t i = 0; i < count; i++)
        values[i] = value;
}

static void count_up(struct model_range range, float *values, size_t count, CUstream stream)
{
    CUdeviceptr at = model_address(range);
    int number = (int)count;
    struct torch_range from = {(float)model_below(10), 0.5F};
    launch((struct launch){torch, TORCH_NAME(TORCH_ARANGE), draw_grid(), 3, {&number, &from, &at}},
           stream);
    for (size_t i = 0; i < count; i++)
        values[i] = from.start + from.step * (float)i;
}

static void draw_numbers(struct model_range range, float *values, size_t count, CUstream stream)
{
    const unsigned grid = draw_grid();
    const bool is_normal = model_one_in(2);
    int64_t number = (int64_t)count;
    struct torch_philox philox = {.seed.value = model_below(1000),
                                  .offset.value = 4 * model_below(1000)};
    char dist = 0;
    struct torch_transform to = {.out = model_address(range), .low = -1.0F, .high = 0.5F};
    launch((struct launch){torch,
                           is_normal ? TORCH_NAME(TORCH_NORMAL) : TORCH_NAME(TORCH_UNIFORM),
                           grid,
                           4,
                           {&number, &philox, &dist, &to}},
           stream);
    for (size_t i = 0; i < count; i++)
        values[i] = torch_draw(philox.seed.value, philox.offset.value, grid * UINT64_C(64), i,
                               to.low, to.high, is_normal);
}

static void initialise_range(struct model_range range)
{
    static fill_kernel *const ways[] = {fill_words, fill_floats, count_up, draw_numbers,
                                        draw_numbers};
    const CUstream stream = model_stream();
    float *values = malloc(range.bytes);
    model_order(range, stream);
    ways[model_below(5)](range, values, range.bytes / 4, stream);
    model_write(range, values);
    model_done(range, stream);
    free(values);
}

static void initialise(void)
{
    struct model_range range = model_range(MOST, 4);
    if (model_one_in(2) && range.block->bytes <= 4 * (size_t)MOST) {
        range.at = 0; /* the whole block, as a framework does */
        range.bytes = range.block->bytes / 4 * 4;
    }
    initialise_range(range);
}

/* --- kernels from one element to the same or another */

static void forget_words(struct model_range to, struct model_range from)
{
    /* A word is known when all of it was. */
    for (size_t i = 0; i < to.bytes; i += 4) {
        uint32_t known;
        memcpy(&known, from.block->known + from.at + i, 4);
        memset(to.block->known + to.at + i, known == 0x01010101, 4);
    }
}

static void apply_floats(struct model_range to, struct model_range from, float operand,
                         bool multiplies)
{
    for (size_t i = 0; i < to.bytes; i += 4) {
        float value;
        memcpy(&value, from.block->content + from.at + i, 4);
        value = multiplies ? value * operand : value + operand;
        memcpy(to.block->content + to.at + i, &value, 4);
    }
    forget_words(to, from);
}

static void change_floats(struct model_range to, struct model_range from, CUstream stream)
{
    const bool multiplies = model_one_in(2);
    int count = (int)(to.bytes / 4);
    float operand = 0.25F * (float)(1 + model_below(8));
    CUdeviceptr data[2] = {model_address(to), model_address(from)};
    launch((struct launch){torch,
                           multiplies ? TORCH_NAME(TORCH_MUL) : TORCH_NAME(TORCH_ADD),
                           draw_grid(),
                           3,
                           {&count, &operand, data}},
           stream);
    apply_floats(to, from, operand, multiplies);
}

static void change_range(struct model_range range)
{
    const CUstream stream = model_stream();
    model_order(range, stream);
    change_floats(range, range, stream);
    model_done(range, stream);
}

static void change_in_place(void)
{
    change_range(model_range(MOST, 4));
}

/* As constructors make it: drawn, and changed a few times; at times much larger than the rest. */
static void new_tensor(void)
{
    const size_t most = model_one_in(8) ? 1 << 20 : MOST / 4;
    const struct model_range range = model_new_range(4 * (16 + model_below(most)));
    initialise_range(range);
    for (size_t changes = model_below(4); changes > 0; changes--)
        change_range(range);
}

static void change_other(void)
{
    struct model_range from, to;
    if (!model_ranges(&from, &to, MOST, 4))
        return;
    const CUstream stream = model_stream();
    model_order(from, stream);
    model_order(to, stream);
    if (model_one_in(3)) {
        CUdeviceptr to_at = model_address(to), from_at = model_address(from);
        uint64_t count = to.bytes / 4;
        launch((struct launch){kernels, "copy32", draw_grid(), 3, {&to_at, &from_at, &count}},
               stream);
        model_move(to, from);
    } else {
        change_floats(to, from, stream);
    }
    model_done(to, stream);
    model_done(from, stream);
}

struct add_args {
    CUdeviceptr address;
    uint64_t count;
    uint32_t value;
};

static void apply_add(struct model_range range, uint32_t value)
{
    for (size_t i = 0; i < range.bytes; i += 4) {
        uint32_t word;
        memcpy(&word, range.block->content + range.at + i, 4);
        word += value;
        memcpy(range.block->content + range.at + i, &word, 4);
    }
    forget_words(range, range);
}

static void add(void)
{
    const struct model_range range = model_range(MOST, 4);
    const CUstream stream = model_stream();
    struct add_args args;
    memset(&args, 0, sizeof(args));
    args = (struct add_args){model_address(range), range.bytes / 4, (uint32_t)model_random()};
    model_order(range, stream);
    launch((struct launch){kernels, "add_in_place32", 4, 1, {&args}}, stream);
    apply_add(range, args.value);
    model_done(range, stream);
}

/* Rows of the source, as they are, side by side in the result: a slice of columns. */
static void slice_columns(void)
{
    struct model_range from, to;
    if (!model_ranges(&from, &to, MOST, 4))
        return;
    const size_t words = to.bytes / 4, pitch = 1 + model_below(words),
                 width = 1 + model_below(pitch);
    const size_t rows = words / pitch, first = model_below(pitch - width + 1);
    const CUstream stream = model_stream();
    struct torch_copy copy = {
        .data = {model_address(to), model_address(from) + 4 * first},
        .offsets = {.dims = 2,
                    .sizes = {{.divisor = (uint32_t)width}, {.divisor = (uint32_t)rows}},
                    .strides = {{4, 4}, {4 * (uint32_t)width, 4 * (uint32_t)pitch}}}};
    int count = (int)(rows * width);
    model_order(from, stream);
    model_order(to, stream);
    launch((struct launch){torch, TORCH_NAME(TORCH_COPY), draw_grid(), 2, {&count, &copy}}, stream);
    for (size_t row = 0; row < rows; row++)
        model_move((struct model_range){to.block, to.at + 4 * row * width, 4 * width},
                   (struct model_range){from.block, from.at + 4 * (row * pitch + first),
                                        4 * width});
    model_done(to, stream);
    model_done(from, stream);
}

/* --- addresses that the launch does not show */

/* out[i] = *table[i], the table being in device memory, or in pinned memory. */
static void gather(void)
{
    enum { COUNT = 4 };
    struct model_range words[COUNT];
    CUdeviceptr table[COUNT];
    const struct model_range places = model_own_range(sizeof(table), 32);
    const struct model_range out = model_own_range(4 * COUNT, 16);
    const CUstream stream = model_stream();
    if (places.block == out.block)
        return;
    for (int i = 0; i < COUNT; i++) {
        words[i] = model_own_range(4, 4);
        if (words[i].block == places.block || words[i].block == out.block)
            return;
        table[i] = model_address(words[i]);
        model_order(words[i], stream);
    }
    const void *pinned = memcpy(model_pinned(sizeof(table)), table, sizeof(table));
    CUdeviceptr out_at = model_address(out), table_at = model_address(places);
    uint64_t count = COUNT;
    model_order(places, stream);
    model_order(out, stream);
    if (model_one_in(2)) {
        table_at = (CUdeviceptr)(uintptr_t)pinned;
    } else {
        OK(cuMemcpyHtoDAsync(table_at, pinned, sizeof(table), stream));
        model_write(places, table);
    }
    launch((struct launch){kernels, "gather32", 1, 3, {&out_at, &table_at, &count}}, stream);
    for (int i = 0; i < COUNT; i++)
        model_move((struct model_range){out.block, out.at + 4 * (size_t)i, 4}, words[i]);
    for (int i = 0; i < COUNT; i++)
        model_done(words[i], stream);
    model_done(places, stream);
    model_done(out, stream);
}

/* Nothing tells the driver the parameters. */
static void unknown(void)
{
    const struct model_range range = model_range(4, 4);
    const CUstream stream = model_stream();
    CUfunction function;
    struct {
        CUdeviceptr address;
        uint32_t value, unused;
    } args = {model_address(range), (uint32_t)model_random(), 0};
    size_t bytes = sizeof(args);
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &args, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    model_order(range, stream);
    OK(cuModuleGetFunction(&function, kernels, "unknown_layout"));
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, extra));
    model_write(range, &args.value);
    model_done(range, stream);
}

/* --- host functions */

struct late {
    unsigned char *bytes;
    unsigned microseconds;
    unsigned char value;
};

static void CUDA_CB write_late(void *argument)
{
    const struct late *late = argument;
    usleep(late->microseconds);
    memset(late->bytes, late->value, LATE_BYTES);
}

/* A host function writes the copied bytes before the copy in the stream. */
static void copy_late(void)
{
    const struct model_range whole = model_range(LATE_BYTES, 1);
    const CUstream stream = model_own_stream();
    struct late *late = (struct late *)model_pinned(sizeof(*late));
    *late = (struct late){model_pinned(LATE_BYTES), (unsigned)model_below(2000),
                          (unsigned char)model_random()};
    memset(late->bytes, 0x11, LATE_BYTES);
    model_order(whole, stream);
    model_launch_host_function(stream, write_late, late);
    OK(cuMemcpyHtoDAsync(model_address(whole), late->bytes, whole.bytes, stream));
    model_fill(whole, &late->value, 1);
    model_done(whole, stream);
}

/* The stream is held up, and the next operations queue behind. */
static void hold(void)
{
    struct late *late = (struct late *)model_pinned(sizeof(*late));
    *late = (struct late){model_pinned(LATE_BYTES), (unsigned)model_below(3000), 0};
    const struct model_range range = model_range(MOST, 1);
    const CUstream stream = model_own_stream();
    model_order(range, stream);
    model_launch_host_function(stream, write_late, late);
    model_done(range, stream);
}

/* --- graphs: captured, or of nodes made one by one */

struct step {
    enum { STEP_SET, STEP_COPY, STEP_ADD, STEP_UPLOAD, STEPS } kind;
    struct model_range to, from;
    uint32_t value;
    const unsigned char *bytes; /* pinned */
};

static struct step draw_step(void)
{
    struct step step = {.kind = model_below(STEPS), .value = (uint32_t)model_random() & 0xff};
    step.to = model_own_range(MOST, 4);
    step.from = model_own_range(MOST, 4);
    step.from.bytes = step.to.bytes =
        step.from.bytes < step.to.bytes ? step.from.bytes : step.to.bytes;
    if (step.kind == STEP_COPY && step.from.block == step.to.block)
        step.kind = STEP_SET;
    if (step.kind == STEP_UPLOAD) {
        unsigned char *bytes = model_pinned(step.to.bytes);
        for (size_t i = 0; i < step.to.bytes; i++)
            bytes[i] = (unsigned char)(step.value + i);
        step.bytes = bytes;
    }
    return step;
}

static void apply(const struct step *step)
{
    const unsigned char byte = (unsigned char)step->value;
    switch (step->kind) {
    case STEP_SET:
        model_fill(step->to, &byte, 1);
        break;
    case STEP_COPY:
        model_move(step->to, step->from);
        break;
    case STEP_ADD:
        apply_add(step->to, step->value);
        break;
    default:
        model_write(step->to, step->bytes);
    }
}

static CUfunction add_function(void)
{
    CUfunction function;
    OK(cuModuleGetFunction(&function, kernels, "add_in_place32"));
    return function;
}

static void queue(const struct step *step, CUstream stream)
{
    const CUdeviceptr to = model_address(step->to);
    struct add_args args;
    void *params[] = {&args};
    memset(&args, 0, sizeof(args));
    args = (struct add_args){to, step->to.bytes / 4, step->value};
    switch (step->kind) {
    case STEP_SET:
        OK(cuMemsetD8Async(to, (unsigned char)step->value, step->to.bytes, stream));
        break;
    case STEP_COPY:
        OK(cuMemcpyDtoDAsync(to, model_address(step->from), step->to.bytes, stream));
        break;
    case STEP_ADD:
        OK(cuLaunchKernel(add_function(), 1, 1, 1, 64, 1, 1, 0, stream, params, NULL));
        break;
    default:
        OK(cuMemcpyHtoDAsync(to, step->bytes, step->to.bytes, stream));
    }
}

static CUDA_MEMSET_NODE_PARAMS set_of(const struct step *step)
{
    return (CUDA_MEMSET_NODE_PARAMS){.dst = model_address(step->to),
                                     .value = step->value,
                                     .elementSize = 1,
                                     .width = step->to.bytes,
                                     .height = 1};
}

static CUgraphNode add_node(CUgraph graph, const struct step *step, CUgraphNode before)
{
    CUgraphNode node;
    const size_t count = before != NULL;
    const CUdeviceptr to = model_address(step->to);
    struct add_args args;
    void *params[] = {&args};
    memset(&args, 0, sizeof(args));
    args = (struct add_args){to, step->to.bytes / 4, step->value};
    const CUDA_MEMSET_NODE_PARAMS set = set_of(step);
    const CUDA_KERNEL_NODE_PARAMS kernel = {.func = add_function(),
                                            .gridDimX = 1,
                                            .gridDimY = 1,
                                            .gridDimZ = 1,
                                            .blockDimX = 64,
                                            .blockDimY = 1,
                                            .blockDimZ = 1,
                                            .kernelParams = params};
    const bool is_upload = step->kind == STEP_UPLOAD;
    const CUDA_MEMCPY3D copy = {.srcMemoryType =
                                    is_upload ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
                                .srcHost = step->bytes,
                                .srcDevice = is_upload ? 0 : model_address(step->from),
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = to,
                                .WidthInBytes = step->to.bytes,
                                .Height = 1,
                                .Depth = 1};
    if (step->kind == STEP_SET)
        OK(cuGraphAddMemsetNode(&node, graph, &before, count, &set, model_context));
    else if (step->kind == STEP_ADD)
        OK(cuGraphAddKernelNode(&node, graph, &before, count, &kernel));
    else
        OK(cuGraphAddMemcpyNode(&node, graph, &before, count, &copy, model_context));
    return node;
}

/* Changes a node of a graph that is executable already. */
static void change_set(CUgraphExec executable, CUgraphNode node, struct step *step)
{
    step->value = (uint32_t)model_random() & 0xff;
    const CUDA_MEMSET_NODE_PARAMS set = set_of(step);
    OK(cuGraphExecMemsetNodeSetParams(executable, node, &set, model_context));
}

static void graph(void)
{
    enum { MOST_STEPS = 5 };
    struct step steps[MOST_STEPS];
    CUgraphNode nodes[MOST_STEPS] = {NULL};
    const size_t count = 1 + model_below(MOST_STEPS);
    const CUstream stream = model_own_stream();
    CUgraph graph;
    CUgraphExec executable;
    for (size_t i = 0; i < count; i++) {
        steps[i] = draw_step();
        model_order(steps[i].to, stream);
        model_order(steps[i].from, stream);
    }
    if (model_one_in(2)) {
        OK(cuStreamBeginCapture(stream, model_one_in(2) ? CU_STREAM_CAPTURE_MODE_RELAXED
                                                        : CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        for (size_t i = 0; i < count; i++)
            queue(&steps[i], stream);
        OK(cuStreamEndCapture(stream, &graph));
    } else {
        OK(cuGraphCreate(&graph, 0));
        for (size_t i = 0; i < count; i++)
            nodes[i] = add_node(graph, &steps[i], i > 0 ? nodes[i - 1] : NULL);
    }
    OK(cuGraphInstantiate(&executable, graph, 0));
    for (size_t i = 0; i < count; i++) {
        if (nodes[i] != NULL && steps[i].kind == STEP_SET && model_one_in(2))
            change_set(executable, nodes[i], &steps[i]);
    }
    for (size_t times = 1 + model_below(3); times > 0; times--) {
        OK(cuGraphLaunch(executable, stream));
        for (size_t i = 0; i < count; i++)
            apply(&steps[i]);
        const struct model_range seen = steps[model_below(count)].to;
        unsigned char *landing = model_pinned(seen.bytes);
        OK(cuMemcpyDtoHAsync(landing, model_address(seen), seen.bytes, stream));
        model_compare_later(seen, landing);
    }
    for (size_t i = 0; i < count; i++) {
        model_done(steps[i].to, stream);
        model_done(steps[i].from, stream);
    }
    if (model_one_in(2))
        OK(cuStreamSynchronize(stream));
    OK(cuGraphExecDestroy(executable));
    OK(cuGraphDestroy(graph));
}

/* --- work that is queued before there is what it reads */

/* Words of a block, by addresses that a kernel finds in memory. */
static void queue_gather(CUdeviceptr table, CUdeviceptr *pinned, CUdeviceptr out, CUstream stream)
{
    uint64_t count = GATHERED;
    OK(cuMemcpyHtoDAsync(table, pinned, GATHERED * sizeof(*pinned), stream));
    launch((struct launch){kernels, "gather32", 1, 3, {&out, &table, &count}}, stream);
}

static void make_in_memory(CUdeviceptr *at)
{
    unsigned char seen[GATHERED * sizeof(CUdeviceptr)];
    OK(cuMemAlloc(at, sizeof(seen)));
    OK(cuMemsetD8(*at, 0, sizeof(seen)));
    OK(cuMemcpyDtoH(seen, *at, sizeof(seen)));
}

/* Written in the default stream, which is done then; some of it may be in memory. */
static struct model_range make_late_block(void)
{
    const struct model_range range = model_own_range(MODEL_MOST, 64);
    unsigned char *bytes = model_pinned(range.bytes), seen[64];
    model_draw_content(bytes, range.bytes);
    model_order(range, CU_STREAM_LEGACY);
    OK(cuMemcpyHtoD(model_address(range), bytes, range.bytes));
    model_write(range, bytes);
    model_done(range, CU_STREAM_LEGACY);
    if (model_one_in(2)) {
        OK(cuMemcpyDtoH(seen, model_address(range), sizeof(seen)));
        model_compare((struct model_range){range.block, range.at, sizeof(seen)}, seen);
    }
    OK(cuStreamSynchronize(CU_STREAM_LEGACY));
    return range;
}

/*
 * A copy of pinned memory and a kernel are queued, where nothing is deferred that the thread has;
 * then a block is made, and its addresses are put into the pinned memory. Where the device has no
 * threads, the work comes last.
 */
static void queued_before(void)
{
    static _Thread_local CUstream held; /* no block is made in it */
    CUdeviceptr out, table;
    struct model_gate gate = {0};
    uint32_t seen[GATHERED];
    size_t words[GATHERED];
    model_wait();
    model_free_all();
    if (held == NULL)
        OK(cuStreamCreate(&held, CU_STREAM_NON_BLOCKING));
    CUdeviceptr *pinned = (CUdeviceptr *)model_pinned(GATHERED * sizeof(*pinned));
    memset(pinned, 0, GATHERED * sizeof(*pinned));
    make_in_memory(&out);
    make_in_memory(&table);
    if (model_device_has_threads) {
        model_queue_gate(&gate, held);
        queue_gather(table, pinned, out, held);
    }
    const struct model_range range = make_late_block();
    for (int i = 0; i < GATHERED; i++) {
        words[i] = model_below(range.bytes / 4);
        pinned[i] = model_address(range) + 4 * words[i];
    }
    model_open_gate(&gate);
    if (!model_device_has_threads)
        queue_gather(table, pinned, out, held);
    OK(cuStreamSynchronize(held));
    OK(cuMemcpyDtoH(seen, out, sizeof(seen)));
    for (int i = 0; i < GATHERED; i++)
        model_compare((struct model_range){range.block, range.at + 4 * words[i], 4},
                      (unsigned char *)&seen[i]);
    OK(cuMemFree(table));
    OK(cuMemFree(out));
}

const struct model_operation model_launches[] = {
    {"initialise", initialise, 60},
    {"change in place", change_in_place, 25},
    {"new tensor", new_tensor, 12},
    {"load the kernels anew", reload, 3},
    {"change another", change_other, 30},
    {"add", add, 15},
    {"slice columns", slice_columns, 15},
    {"gather", gather, 4},
    {"a kernel of unknown parameters", unknown, 1},
    {"copy late", copy_late, 6},
    {"hold a stream", hold, 6},
    {"graph", graph, 3},
    {"queued before the allocation", queued_before, 4},
    {NULL, NULL, 0},
};
