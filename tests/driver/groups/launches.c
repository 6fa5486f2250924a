/* SPDX-License-Identifier: Apache-2.0 */
/* Launches, and graphs: what a kernel or a node reaches. */
#include "tests/driver/groups/groups.h"

/* The parameters of add_in_place32, a struct by value with the address inside. */
struct add {
    CUdeviceptr address;
    uint64_t count;
    uint32_t value;
};

static void print_sum(CUdeviceptr block)
{
    seen("synchronised", cuCtxSynchronize());
    print_device("block", block, BLOCK_BYTES);
}

static void launched(void)
{
    const CUdeviceptr block = make_block(1);
    struct add add = {block + MIB, MIB, 77};
    void *params[] = {&add};
    SEEN(TESTED(cuLaunchKernel)(find_kernel("add_in_place32"), 4, 1, 1, 64, 1, 1, 0, NULL, params,
                                NULL));
    print_sum(block);
    /* The same with packed parameters, and with parameters whose places the driver does not
     * know. */
    const CUdeviceptr second = make_block(2);
    size_t bytes = sizeof(add);
    add.address = second;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &add, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    SEEN(TESTED(cuLaunchKernel)(find_kernel("add_in_place32"), 4, 1, 1, 64, 1, 1, 0, NULL, NULL,
                                extra));
    print_sum(second);
    const CUdeviceptr third = make_block(3);
    add.address = third;
    SEEN(TESTED(cuLaunchKernel)(find_kernel("unknown_layout"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL,
                                extra));
    print_sum(third);
    /* A handle that is a kernel, not a function. */
    CUlibrary library;
    CUkernel kernel;
    const CUdeviceptr fourth = make_block(4);
    add.address = fourth;
    MUST(cuLibraryLoadFromFile(&library, getenv("GROUPS_KERNELS"), NULL, NULL, 0, NULL, NULL, 0));
    MUST(cuLibraryGetKernel(&kernel, library, "add_in_place32"));
    SEEN(TESTED(cuLaunchKernel)((CUfunction)kernel, 4, 1, 1, 64, 1, 1, 0, NULL, params, NULL));
    print_sum(fourth);
}

/* A launch of add_in_place32 over a part of a block. */
#define ADDED(name, call)                        \
    static void name(void)                       \
    {                                            \
        const CUdeviceptr block = make_block(1); \
        struct add add = {block + MIB, MIB, 77}; \
        void *params[] = {&add};                 \
        SEEN(call);                              \
        print_sum(block);                        \
    }
#define ADD find_kernel("add_in_place32")

static const CUlaunchConfig *in_blocks(void)
{
    static const CUlaunchConfig config = {.gridDimX = 4,
                                          .gridDimY = 1,
                                          .gridDimZ = 1,
                                          .blockDimX = 64,
                                          .blockDimY = 1,
                                          .blockDimZ = 1};
    return &config;
}

static CUDA_LAUNCH_PARAMS *in_stream(void **params)
{
    static CUDA_LAUNCH_PARAMS launch = {.gridDimX = 4,
                                        .gridDimY = 1,
                                        .gridDimZ = 1,
                                        .blockDimX = 64,
                                        .blockDimY = 1,
                                        .blockDimZ = 1};
    launch.function = ADD;
    launch.kernelParams = params;
    MUST(cuStreamCreate(&launch.hStream, CU_STREAM_NON_BLOCKING));
    return &launch;
}
ADDED(launched_ex, TESTED(cuLaunchKernelEx)(in_blocks(), ADD, params, NULL))
ADDED(launched_together, TESTED(cuLaunchCooperativeKernel)(ADD, 4, 1, 1, 64, 1, 1, 0, NULL, params))
ADDED(launched_on_devices, TESTED(cuLaunchCooperativeKernelMultiDevice)(in_stream(params), 1, 0))

/*
 * As the kernels of other libraries are launched (Triton, FlashAttention, Transformer Engine):
 * in clusters, all blocks at once, before the kernel before has ended, with priorities, with packed
 * parameters, and where the driver does not know how parameters lie. No rule names them, so all
 * that they reach is in memory, and nothing else is asked of them.
 */
static CUlaunchAttribute *attributes(unsigned *count_out)
{
    static CUlaunchAttribute list[] = {
        {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value.clusterDim = {2, 1, 1}},
        {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
         .value.clusterSchedulingPolicyPreference = CU_CLUSTER_SCHEDULING_POLICY_SPREAD},
        {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1},
        {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
         .value.programmaticStreamSerializationAllowed = 1},
        {.id = CU_LAUNCH_ATTRIBUTE_PRIORITY, .value.priority = 0},
    };
    *count_out = sizeof(list) / sizeof(list[0]);
    return list;
}

static void launched_with_attributes(void)
{
    CUlaunchConfig config = *in_blocks();
    unsigned count;
    CUlaunchAttribute *list = attributes(&count);
    struct add add;
    size_t bytes = sizeof(add);
    void *params[] = {&add};
    void *packed[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &add, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                      CU_LAUNCH_PARAM_END};
    for (unsigned i = 0; i < count; i++) {
        add = (struct add){make_block(1 + i) + MIB, MIB, 77};
        config.attrs = &list[i];
        config.numAttrs = 1;
        SEEN(TESTED(cuLaunchKernelEx)(&config, ADD, params, NULL));
        print_sum(add.address - MIB);
    }
    config.attrs = list;
    config.numAttrs = count;
    add = (struct add){make_block(11), MIB, 5};
    SEEN(TESTED(cuLaunchKernelEx)(&config, ADD, NULL, packed));
    print_sum(add.address);
    add = (struct add){make_block(12), MIB, 6};
    SEEN(TESTED(cuLaunchKernelEx)(&config, find_kernel("unknown_layout"), NULL, packed));
    print_sum(add.address);
}

/* The oldest way: parameters are set one by one, and looked at then; the launch is looked at
 * too. */
static CUfunction set_parameters(const struct add *add)
{
    const CUfunction kernel = find_kernel("add_in_place32");
    MUST(cuFuncSetBlockShape(kernel, 64, 1, 1));
    MUST(cuParamSetSize(kernel, sizeof(*add)));
    MUST(cuParamSetv(kernel, 0, (void *)add, sizeof(*add)));
    return kernel;
}

static void parameters_set(void)
{
    const CUdeviceptr block = make_block(1);
    struct add add = {block, MIB, 3};
    const CUfunction kernel = find_kernel("add_in_place32");
    MUST(cuFuncSetBlockShape(kernel, 64, 1, 1));
    MUST(cuParamSetSize(kernel, sizeof(add)));
    SEEN(TESTED(cuParamSetv)(kernel, 0, &add, sizeof(add)));
    print_sum(block);
}

static void parameter_set(void)
{
    const CUdeviceptr block = make_block(1);
    const CUfunction kernel = find_kernel("add_in_place32");
    SEEN(TESTED(cuParamSeti)(kernel, 0, (unsigned)block));
    print_sum(block);
}

#define OLD(name, call)                                 \
    static void name(void)                              \
    {                                                   \
        const struct add add = {make_block(1), MIB, 3}; \
        SEEN(call);                                     \
        print_sum(add.address);                         \
    }
OLD(launched_the_old_way, TESTED(cuLaunch)(set_parameters(&add)))
OLD(launched_grid, TESTED(cuLaunchGrid)(set_parameters(&add), 4, 1))
OLD(launched_grid_async, TESTED(cuLaunchGridAsync)(set_parameters(&add), 4, 1, NULL))

/*
 * The parameters of a handle that is a kernel are asked for in another way. If the shim did not
 * know that it is one, all would have to be there; groups.py looks at the device's memory.
 */
static CUlibrary load_library(void)
{
    CUlibrary library;
    MUST(cuLibraryLoadFromFile(&library, getenv("GROUPS_KERNELS"), NULL, NULL, 0, NULL, NULL, 0));
    return library;
}

static void launch_beside_block(CUkernel kernel)
{
    CUdeviceptr block, small;
    MUST(cuMemAlloc_v2(&block, 64 * MIB));
    MUST(cuMemsetD8_v2(block, 1, 64 * MIB));
    MUST(cuMemAlloc_v2(&small, 4096));
    struct add add = {small, 1024, 3};
    void *params[] = {&add};
    MUST(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    MUST(cuCtxSynchronize());
}

static void kernel_of_library(void)
{
    CUkernel kernel;
    SEEN(TESTED(cuLibraryGetKernel)(&kernel, load_library(), "add_in_place32"));
    launch_beside_block(kernel);
}

static void kernels_of_library(void)
{
    CUkernel kernels[64];
    unsigned count;
    const char *name;
    const CUlibrary library = load_library();
    MUST(cuLibraryGetKernelCount(&count, library));
    SEEN(TESTED(cuLibraryEnumerateKernels)(kernels, count, library));
    for (unsigned i = 0; i < count; i++) {
        MUST(cuKernelGetName(&name, kernels[i]));
        if (strcmp(name, "add_in_place32") == 0)
            launch_beside_block(kernels[i]);
    }
}

/*
 * A graph that copies a table of addresses from the host and follows it. The table changes after
 * the graph was made, so only its launch can tell.
 */
static void graph_launched(void)
{
    CUcontext context;
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode copied, gathered;
    CUstream stream;
    CUdeviceptr *pinned;
    CUdeviceptr table, out;
    uint64_t count = 2;
    uint32_t words[2] = {0};
    MUST(cuCtxGetCurrent(&context));
    MUST(cuMemAllocHost_v2((void **)&pinned, 2 * sizeof(*pinned)));
    MUST(cuMemAlloc_v2(&table, 2 * sizeof(*pinned)));
    MUST(cuMemAlloc_v2(&out, sizeof(words)));
    const CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                                .srcHost = pinned,
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = table,
                                .WidthInBytes = 2 * sizeof(*pinned),
                                .Height = 1,
                                .Depth = 1};
    void *params[] = {&out, &table, &count};
    const CUDA_KERNEL_NODE_PARAMS_v2 node = {.func = find_kernel("gather32"),
                                             .gridDimX = 1,
                                             .gridDimY = 1,
                                             .gridDimZ = 1,
                                             .blockDimX = 1,
                                             .blockDimY = 1,
                                             .blockDimZ = 1,
                                             .kernelParams = params,
                                             .ctx = context};
    MUST(cuGraphCreate(&graph, 0));
    MUST(cuGraphAddMemcpyNode(&copied, graph, NULL, 0, &copy, context));
    MUST(cuGraphAddKernelNode_v2(&gathered, graph, &copied, 1, &node));
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));

    const CUdeviceptr block = make_block(1);
    pinned[0] = block + 4;
    pinned[1] = block + 3 * MIB;
    SEEN(TESTED(cuGraphLaunch)(exec, stream));
    seen("synchronised", cuStreamSynchronize(stream));
    MUST(cuMemcpyDtoH_v2(words, out, sizeof(words)));
    printf("gathered %08x %08x\n", words[0], words[1]);
}

const struct scenario launch_scenarios[] = {
    TWINS_PTSZ("cuLaunchKernel", "", launched),
    TWINS_PTSZ("cuLaunchKernelEx", "", launched_ex),
    TWINS_PTSZ("cuLaunchKernelEx", ":attributes", launched_with_attributes),
    TWINS_PTSZ("cuLaunchCooperativeKernel", "", launched_together),
    {"cuLaunchCooperativeKernelMultiDevice", launched_on_devices, NULL},
    {"cuParamSetv", parameters_set, NULL},
    {"cuParamSeti", parameter_set, NULL},
    {"cuLaunch", launched_the_old_way, NULL},
    {"cuLaunchGrid", launched_grid, NULL},
    {"cuLaunchGridAsync", launched_grid_async, NULL},
    {"cuLibraryGetKernel", kernel_of_library, NULL},
    {"cuLibraryEnumerateKernels", kernels_of_library, NULL},
    TWINS_PTSZ("cuGraphLaunch", "", graph_launched),
    {NULL, NULL, NULL},
};
