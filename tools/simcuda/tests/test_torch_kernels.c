/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels with PyTorch's names: every one is launched by parameters and by a packed buffer, and
 * its bytes are compared with what this file works out itself.
 */
#include "tools/simcuda/kernels/torch_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/driver/simcuda.h"
#include "tools/simcuda/harness/test.h"

#define OK(call) CHECK_EQ(call, CUDA_SUCCESS)

/* Elements of a test, and those behind them, which no kernel may touch. */
enum { COUNT = 1000, MORE = 24, ALL = COUNT + MORE, MAX_PARAMS = 8 };
#define UNTOUCHED 12345.0F

static CUmodule module;

static void start(void)
{
    CUcontext context;
    const char *path = getenv("SIM_KERNELS");
    if (path == NULL)
        ms_test_fail(__FILE__, __LINE__, "SIM_KERNELS is not set; run this with meson test");
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoad(&module, path));
}

/* A launch; `packed` is the parameters in a struct, which has to have the kernel's layout. */
struct launch {
    const char *name;
    unsigned grid, block;
    void *packed;
    size_t bytes;
};

static CUresult launch_by_params(CUfunction function, const struct launch *launch)
{
    void *params[MAX_PARAMS];
    size_t offset, size, count = 0;
    while (cuFuncGetParamInfo(function, count, &offset, &size) == CUDA_SUCCESS) {
        CHECK(offset + size <= launch->bytes && count < MAX_PARAMS);
        params[count++] = (char *)launch->packed + offset;
    }
    CHECK(count > 0);
    return cuLaunchKernel(function, launch->grid, 1, 1, launch->block, 1, 1, 0, NULL, params, NULL);
}

static CUresult run(const struct launch *launch, bool is_packed)
{
    CUfunction function;
    size_t bytes = launch->bytes;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, launch->packed, CU_LAUNCH_PARAM_BUFFER_SIZE,
                     &bytes, CU_LAUNCH_PARAM_END};
    OK(cuModuleGetFunction(&function, module, launch->name));
    const CUresult result = is_packed ? cuLaunchKernel(function, launch->grid, 1, 1, launch->block,
                                                       1, 1, 0, NULL, NULL, extra)
                                      : launch_by_params(function, launch);
    return result == CUDA_SUCCESS ? cuCtxSynchronize() : result;
}

#define LAUNCH(kernel, grid, block, params) \
    ((struct launch){TORCH_NAME(kernel), grid, block, &(params), sizeof(params)})

static CUdeviceptr upload(const void *host, size_t bytes)
{
    CUdeviceptr address;
    OK(cuMemAlloc(&address, bytes));
    OK(cuMemcpyHtoD(address, host, bytes));
    return address;
}

static void set(float *values, float value)
{
    for (int i = 0; i < ALL; i++)
        values[i] = value;
}

static CUdeviceptr new_floats(void)
{
    float values[ALL];
    set(values, UNTOUCHED);
    return upload(values, sizeof(values));
}

/* Values that are exact in every sum and product that is made of them here. */
static CUdeviceptr new_ramp(void)
{
    float values[ALL];
    for (int i = 0; i < ALL; i++)
        values[i] = 0.25F * (float)(i - 300);
    return upload(values, sizeof(values));
}

static void check_floats(CUdeviceptr address, const float *wanted)
{
    float seen[ALL];
    OK(cuMemcpyDtoH(seen, address, sizeof(seen)));
    CHECK_BYTES(seen, wanted, sizeof(seen));
}

/* Runs it both ways, each on fresh memory at *out, and compares. */
static void check_launch(const struct launch *launch, CUdeviceptr *out, const float *wanted)
{
    for (int is_packed = 0; is_packed < 2; is_packed++) {
        *out = new_floats();
        OK(run(launch, is_packed == 1));
        check_floats(*out, wanted);
        OK(cuMemFree(*out));
    }
}

MS_TEST(fill)
{
    float wanted[ALL];
    struct {
        int numel;
        float value;
        CUdeviceptr out;
    } params = {COUNT, 2.5F, 0};
    start();
    set(wanted, UNTOUCHED);
    for (int i = 0; i < COUNT; i++)
        wanted[i] = 2.5F;
    check_launch(&LAUNCH(TORCH_FILL, 1, 128, params), &params.out, wanted);
}

MS_TEST(fill_with_whole_numbers)
{
    int64_t numbers[ALL / 2];
    float wanted[ALL];
    struct {
        int numel;
        int64_t value;
        CUdeviceptr out;
    } params = {COUNT / 2, INT64_C(-81985529216486896), 0};
    start();
    set(wanted, UNTOUCHED);
    memcpy(numbers, wanted, sizeof(numbers));
    for (int i = 0; i < COUNT / 2; i++)
        numbers[i] = INT64_C(-81985529216486896);
    memcpy(wanted, numbers, sizeof(wanted));
    check_launch(&LAUNCH(TORCH_FILL_LONG, 1, 128, params), &params.out, wanted);
}

/* --- Draws. */

struct draw {
    int64_t numel;
    struct torch_philox philox;
    char dist;
    struct torch_transform to;
};

struct strided_draw {
    int64_t numel;
    struct torch_philox philox;
    char dist;
    struct torch_strided_transform to;
};

static uint64_t shuffle(uint64_t x)
{
    x += 0x9e3779b97f4a7c15U;
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9U;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebU;
    return x ^ x >> 31;
}

/*
 * The draws of a grid in the order in which a device makes them: thread by thread, step by step,
 * four numbers a step. With bounds of 0 and 1 no product or sum is rounded but the last.
 */
static void draw_all(float *values, size_t threads, uint64_t seed, uint64_t offset, bool is_normal)
{
    for (size_t thread = 0; thread < threads; thread++) {
        uint64_t place = offset;
        for (size_t first = thread; first < COUNT; first += 4 * threads, place += 4) {
            for (size_t lane = 0; lane < 4 && first + lane * threads < COUNT; lane++) {
                const uint64_t word = shuffle(shuffle(seed ^ shuffle(thread)) + place + lane);
                const float high = (float)(word >> 40) / 16777216.0F;
                const float low = (float)(word % 16777216) / 16777216.0F;
                values[first + lane * threads] = is_normal ? (high + low - 1) * 2.4494897F : high;
            }
        }
    }
}

MS_TEST(the_generator_is_splitmix64)
{
    CHECK_EQ(torch_mix(0), UINT64_C(0xe220a8397b1dcdaf)); /* its published first value */
}

static struct draw a_draw(float high)
{
    return (struct draw){.numel = COUNT,
                         .philox = {.seed.value = 1234, .offset.value = 8},
                         .to = {.low = 0, .high = high}};
}

MS_TEST(uniform_and_normal)
{
    float wanted[ALL];
    struct draw params = a_draw(1);
    start();
    set(wanted, UNTOUCHED);
    draw_all(wanted, 3 * 32, 1234, 8, false);
    check_launch(&LAUNCH(TORCH_UNIFORM, 3, 32, params), &params.to.out, wanted);
    draw_all(wanted, 3 * 32, 1234, 8, true);
    check_launch(&LAUNCH(TORCH_NORMAL, 3, 32, params), &params.to.out, wanted);
}

MS_TEST(bounds_of_a_uniform_draw)
{
    float values[ALL];
    struct draw params = a_draw(3);
    float least = 3, most = 1;
    start();
    params.to.low = 1;
    params.to.out = new_floats();
    OK(run(&LAUNCH(TORCH_UNIFORM, 2, 32, params), false));
    OK(cuMemcpyDtoH(values, params.to.out, sizeof(values)));
    for (int i = 0; i < COUNT; i++) {
        least = values[i] < least ? values[i] : least;
        most = values[i] > most ? values[i] : most;
    }
    CHECK(least >= 1 && least < 1.1F && most > 2.9F && most <= 3);
}

/* Each number of the generator's state, and the grid, makes another draw. */
MS_TEST(draws_depend_on_seed_offset_and_grid)
{
    float values[4][ALL];
    start();
    for (int i = 0; i < 4; i++) {
        struct draw params = a_draw(1);
        params.philox.seed.value += i == 1;
        params.philox.offset.value += i == 2 ? 4 : 0;
        params.to.out = new_floats();
        OK(run(&LAUNCH(TORCH_UNIFORM, i == 3 ? 4 : 3, 32, params), false));
        OK(cuMemcpyDtoH(values[i], params.to.out, sizeof(values[i])));
        for (int other = 0; other < i; other++)
            CHECK(memcmp(values[i], values[other], COUNT * sizeof(float)) != 0);
    }
}

/* Rows of 40 in memory that has 41 to a row. */
MS_TEST(strided_draws)
{
    enum { COLUMNS = 40, PITCH = 41, ROWS = COUNT / COLUMNS };
    float dense[ALL], wanted[PITCH * ROWS > ALL ? PITCH * ROWS : ALL];
    struct strided_draw params = {.numel = COLUMNS * (ROWS - 1),
                                  .philox = {.seed.value = 77, .offset.value = 4},
                                  .to = {.offsets = {.dims = 2}, .low = 0, .high = 1}};
    params.to.offsets.sizes[0].divisor = COLUMNS;
    params.to.offsets.sizes[1].divisor = ROWS - 1;
    params.to.offsets.strides[0] = sizeof(float);
    params.to.offsets.strides[1] = PITCH * sizeof(float);
    start();
    for (int is_normal = 0; is_normal < 2; is_normal++) {
        set(wanted, UNTOUCHED);
        draw_all(dense, 64, 77, 4, is_normal == 1);
        for (int i = 0; i < COLUMNS * (ROWS - 1); i++)
            wanted[i / COLUMNS * PITCH + i % COLUMNS] = dense[i];
        struct launch launch = LAUNCH(TORCH_UNIFORM_STRIDED, 2, 32, params);
        if (is_normal == 1)
            launch.name = TORCH_NAME(TORCH_NORMAL_STRIDED);
        check_launch(&launch, &params.to.out, wanted);
    }
}

/* Inside a captured graph, seed and offset are in device memory. */
MS_TEST(draws_with_the_state_in_memory)
{
    float wanted[ALL];
    const int64_t state[2] = {99, 12};
    struct draw params = a_draw(1);
    start();
    const CUdeviceptr place = upload(state, sizeof(state));
    params.philox = (struct torch_philox){.seed.place = place,
                                          .offset.place = place + sizeof(int64_t),
                                          .offset_intragraph = 8,
                                          .captured = true};
    set(wanted, UNTOUCHED);
    draw_all(wanted, 3 * 32, 99, 20, false);
    check_launch(&LAUNCH(TORCH_UNIFORM, 3, 32, params), &params.to.out, wanted);
    params.philox.offset.place = 0x1000;
    params.to.out = new_floats();
    CHECK_EQ(run(&LAUNCH(TORCH_UNIFORM, 3, 32, params), false), CUDA_ERROR_ILLEGAL_ADDRESS);
}

/* --- Elementwise loops. */

struct scaled {
    int numel;
    float operand;
    CUdeviceptr data[2];
};

struct clamped_dense {
    int numel;
    struct torch_limits limits;
    CUdeviceptr data[2];
};

struct clamped {
    int numel;
    struct torch_clamp clamp;
};

/* From one block to another, and in place; the rest of both stays as it was. */
static void check_map(const struct launch *launch, CUdeviceptr data[2], const float *wanted)
{
    float whole[ALL];
    for (int is_packed = 0; is_packed < 2; is_packed++) {
        data[0] = new_floats();
        data[1] = new_ramp();
        OK(cuMemcpyDtoH(whole, data[1], sizeof(whole)));
        OK(run(launch, is_packed == 1));
        check_floats(data[0], wanted);
        check_floats(data[1], whole);
        data[0] = data[1];
        OK(run(launch, is_packed == 1));
        memcpy(whole, wanted, COUNT * sizeof(float));
        check_floats(data[0], whole);
    }
}

MS_TEST(mul_and_add)
{
    float product[ALL], sum[ALL];
    struct scaled params = {.numel = COUNT, .operand = 1.5F};
    start();
    set(product, UNTOUCHED);
    set(sum, UNTOUCHED);
    for (int i = 0; i < COUNT; i++) {
        product[i] = 0.375F * (float)(i - 300);
        sum[i] = 0.25F * (float)(i - 294);
    }
    check_map(&LAUNCH(TORCH_MUL, 1, 128, params), params.data, product);
    check_map(&LAUNCH(TORCH_ADD, 1, 128, params), params.data, sum);
}

MS_TEST(clamp)
{
    float wanted[ALL];
    struct clamped params = {
        .numel = COUNT,
        .clamp = {.offsets = torch_dense(COUNT), .low = -10, .high = 99.5F},
    };
    start();
    set(wanted, UNTOUCHED);
    for (int i = 0; i < COUNT; i++) {
        const float value = 0.25F * (float)(i - 300);
        wanted[i] = i < 260 ? -10 : i > 698 ? 99.5F : value;
    }
    check_map(&LAUNCH(TORCH_CLAMP, 2, 128, params), params.clamp.data, wanted);
    struct clamped_dense dense = {.numel = COUNT, .limits = {-10, 99.5F}};
    check_map(&LAUNCH(TORCH_CLAMP_DENSE, 2, 128, dense), dense.data, wanted);
}

/* w[:] = w[0]: both pointers are the same, and every row is the first one. */
MS_TEST(copy_of_one_row_to_all)
{
    enum { COLUMNS = 100 };
    float wanted[ALL];
    struct {
        int numel;
        struct torch_copy copy;
    } params = {.numel = COUNT, .copy.offsets.dims = 2};
    struct torch_offsets2 *offsets = &params.copy.offsets;
    start();
    offsets->sizes[0].divisor = COLUMNS;
    offsets->sizes[1].divisor = COUNT / COLUMNS;
    offsets->strides[0][0] = offsets->strides[0][1] = sizeof(float);
    offsets->strides[1][0] = COLUMNS * sizeof(float);
    for (int i = 0; i < ALL; i++)
        wanted[i] = 0.25F * (float)((i < COUNT ? i % COLUMNS : i) - 300);
    for (int is_packed = 0; is_packed < 2; is_packed++) {
        params.copy.data[0] = params.copy.data[1] = new_ramp();
        OK(run(&LAUNCH(TORCH_COPY, 2, 128, params), is_packed == 1));
        check_floats(params.copy.data[0], wanted);
    }
}

MS_TEST(arange)
{
    float wanted[ALL];
    struct {
        int numel;
        struct torch_range range;
        CUdeviceptr out;
    } params = {COUNT, {-3, 0.5F}, 0};
    start();
    set(wanted, UNTOUCHED);
    for (int i = 0; i < COUNT; i++)
        wanted[i] = 0.5F * (float)(i - 6);
    check_launch(&LAUNCH(TORCH_ARANGE, 16, 64, params), &params.out, wanted);
}

MS_TEST(row_sum)
{
    enum { ROWS = 10, COLUMNS = 100 };
    float wanted[ALL];
    struct {
        CUdeviceptr out, in;
        int rows, columns;
    } params = {0, 0, ROWS, COLUMNS};
    start();
    params.in = new_ramp();
    set(wanted, UNTOUCHED);
    for (int row = 0; row < ROWS; row++)
        wanted[row] = 25.0F * (float)(100 * row - 300) + 0.25F * 4950;
    check_launch(&LAUNCH(TORCH_ROW_SUM, ROWS, 32, params), &params.out, wanted);
}

/* The block is the only one, so an element behind it has no memory. */
MS_TEST(elements_behind_the_memory_are_not_touched)
{
    enum { GRANULE = 2 << 20, FLOATS = GRANULE / 4 };
    struct scaled params = {.numel = FLOATS, .operand = 2};
    start();
    OK(cuMemAlloc(&params.data[0], GRANULE));
    OK(cuMemsetD8(params.data[0], 0, GRANULE));
    params.data[1] = params.data[0];
    OK(run(&LAUNCH(TORCH_MUL, 1, 128, params), false));
    params.data[1] += sizeof(float);
    CHECK_EQ(run(&LAUNCH(TORCH_MUL, 1, 128, params), false), CUDA_ERROR_ILLEGAL_ADDRESS);
}

MS_TEST(every_kernel_is_listed)
{
    static const char *const names[] = {
        TORCH_NAME(TORCH_FILL),    TORCH_NAME(TORCH_FILL_LONG),
        TORCH_NAME(TORCH_UNIFORM), TORCH_NAME(TORCH_UNIFORM_STRIDED),
        TORCH_NAME(TORCH_NORMAL),  TORCH_NAME(TORCH_NORMAL_STRIDED),
        TORCH_NAME(TORCH_MUL),     TORCH_NAME(TORCH_ADD),
        TORCH_NAME(TORCH_CLAMP),   TORCH_NAME(TORCH_CLAMP_DENSE),
        TORCH_NAME(TORCH_COPY),    TORCH_NAME(TORCH_ARANGE),
        TORCH_NAME(TORCH_ROW_SUM)};
    unsigned count;
    CUfunction function;
    start();
    OK(cuModuleGetFunctionCount(&count, module));
    CHECK_EQ(count, sizeof(names) / sizeof(names[0]));
    for (size_t i = 0; i < count; i++)
        OK(cuModuleGetFunction(&function, module, names[i]));
}
