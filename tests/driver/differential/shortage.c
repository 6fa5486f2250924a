/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs that look for an out-of-memory where it belongs: at the allocation. For a device of 64
 * MiB (shortage.py).
 */
#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tests/driver/differential/c10.h"
#include "tests/driver/differential/scenario.h"

enum { MOST = 64 };

/* A kernel that no rule knows. */
static CUresult use(CUdeviceptr address, size_t bytes)
{
    struct {
        CUdeviceptr address;
        uint64_t count;
        uint32_t value;
    } add = {address, bytes / 4, 5};
    void *params[] = {&add};
    return cuLaunchKernel(function("add_in_place32"), 16, 1, 1, 64, 1, 1, 0, NULL, params, NULL);
}

static void print_free(const char *when)
{
    size_t free, total;
    OK(cuMemGetInfo(&free, &total));
    printf("%s: %zu of %zu are free\n", when, free, total);
}

/* The blocks of one try. */
struct blocks {
    CUdeviceptr all[MOST];
    int count;
};

static CUresult take(struct blocks *blocks, size_t bytes)
{
    const CUresult result = cuMemAlloc(&blocks->all[blocks->count], bytes);
    if (result == CUDA_SUCCESS)
        blocks->count++;
    return result;
}

static void give_all(struct blocks *blocks)
{
    while (blocks->count > 0)
        OK(cuMemFree(blocks->all[--blocks->count]));
}

/*
 * Takes up to `layers` activations of `bytes`, and writes each of them at once. The result of the
 * first call that fails; *at_out tells which allocation did, 0 for a launch.
 */
static CUresult forward(struct blocks *blocks, int layers, size_t bytes, int *at_out)
{
    *at_out = 0;
    for (int layer = 1; layer <= layers; layer++) {
        CUresult result = take(blocks, bytes);
        if (result != CUDA_SUCCESS) {
            *at_out = layer;
            return result;
        }
        const CUdeviceptr newest = blocks->all[blocks->count - 1];
        OK(cuMemsetD8(newest, (unsigned char)layer, bytes));
        result = use(newest, bytes);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}

/* The model's parameters, initialised by kernels that are recorded. */
static void make_model(struct blocks *model, int count, size_t bytes)
{
    for (int i = 0; i < count; i++) {
        OK(take(model, bytes));
        uniform(model->all[i], bytes / 4, (uint64_t)i);
    }
}

static void search(struct blocks *model, size_t batch)
{
    for (; batch >= MIB; batch /= 2) {
        struct blocks blocks = {.count = 0};
        int at = 0;
        CUresult result = CUDA_SUCCESS;
        for (int i = 0; i < model->count && result == CUDA_SUCCESS; i++) {
            result = use(model->all[i], 2 * MIB);
            if (result == CUDA_SUCCESS)
                result = forward(&blocks, 2, batch, &at);
        }
        printf("batch %zu: result %d at allocation %d of block %d\n", batch >> 20, (int)result, at,
               blocks.count);
        print_free("then");
        give_all(&blocks);
        if (result == CUDA_SUCCESS)
            break;
    }
    for (int i = 0; i < model->count; i++)
        print_bytes("parameter", model->all[i], 2 * MIB);
}

/* The first steps of a training program, which halves its batch until it fits. */
SCENARIO(batch_search)
{
    struct blocks model = {.count = 0};
    make_model(&model, 4, 2 * MIB);
    search(&model, 32 * MIB);
    give_all(&model);
}

SCENARIO(model_in_search)
{
    for (size_t batch = 16; batch >= 4; batch /= 2) {
        struct blocks model = {.count = 0};
        make_model(&model, 4, 2 * MIB);
        search(&model, batch * MIB);
        give_all(&model);
    }
}

/* The state of an optimizer is made of zeros, which are recorded, after the first steps. */
SCENARIO(optimizer_state)
{
    struct blocks model = {.count = 0};
    int count = 0;
    make_model(&model, 6, 4 * MIB);
    for (int i = 0; i < 6; i++)
        OK(use(model.all[i], 4 * MIB));
    CUresult result = CUDA_SUCCESS;
    for (; result == CUDA_SUCCESS; count++) {
        result = take(&model, 4 * MIB);
        if (result == CUDA_SUCCESS)
            OK(cuMemsetD8(model.all[model.count - 1], 0, 4 * MIB));
    }
    printf("no room at state %d: %d\n", count, (int)result);
    print_free("then");
    give_all(&model);
}

SCENARIO(settled)
{
    struct blocks model = {.count = 0};
    make_model(&model, 3, 8 * MIB);
    const CUdeviceptr small = allocate(4096);
    for (int i = 0; i < 150; i++) {
        fill(small, (uint32_t)i, 1024);
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    print_free("settled");
    printf("too much: %d\n", (int)take(&model, 48 * MIB));
    printf("not too much: %d\n", (int)take(&model, 32 * MIB));
    printf("too much again: %d\n", (int)take(&model, 16 * MIB));
    print_bytes("parameter", model.all[1], 8 * MIB);
    give_all(&model);
}

/*
 * A model larger than the device: each tensor is cut down and freed at once, or all of them later.
 */
static void load(struct blocks *parts, bool at_once, bool with_helpers)
{
    struct blocks whole = {.count = 0};
    for (int i = 0; i < 10; i++) {
        OK(take(&whole, 16 * MIB));
        uniform(whole.all[whole.count - 1], 4 * MIB, (uint64_t)i);
        if (with_helpers) {
            struct blocks helper = {.count = 0};
            OK(take(&helper, 2 * MIB));
            OK(use(helper.all[0], 2 * MIB));
            give_all(&helper);
        }
        if (at_once) {
            OK(take(parts, 2 * MIB));
            OK(cuMemcpyDtoD(parts->all[i], whole.all[0] + 4 * MIB, 2 * MIB));
            give_all(&whole);
        }
    }
    for (int i = 0; i < whole.count; i++) {
        OK(take(parts, 2 * MIB));
        OK(cuMemcpyDtoD(parts->all[i], whole.all[i] + 4 * MIB, 2 * MIB));
    }
    give_all(&whole);
}

static void load_and_use(bool at_once, bool with_helpers)
{
    struct blocks parts = {.count = 0};
    load(&parts, at_once, with_helpers);
    for (int i = 0; i < parts.count; i++)
        OK(use(parts.all[i], 2 * MIB));
    print_free("loaded");
    printf("too much: %d\n", (int)take(&parts, 48 * MIB));
    for (int i = 0; i < 10; i++)
        print_bytes("part", parts.all[i], 2 * MIB);
    give_all(&parts);
}

SCENARIO(larger_model)
{
    load_and_use(false, false);
}

SCENARIO(larger_model_with_helpers)
{
    load_and_use(false, true);
}

/* The next model of the same process, which has computed before. */
SCENARIO(next_model)
{
    struct blocks parts = {.count = 0};
    load(&parts, false, false);
    for (int i = 0; i < parts.count; i++)
        OK(use(parts.all[i], 2 * MIB));
    give_all(&parts);
    load_and_use(false, false);
}

/* Whatever was taken, exactly what is free then can be used, and no granule more. */
SCENARIO(just_fits)
{
    for (unsigned seed = 1; seed <= 12; seed++) {
        struct blocks blocks = {.count = 0};
        size_t free, total;
        srand(seed);
        const int tensors = 1 + rand() % 5;
        for (int i = 0; i < tensors; i++) {
            const size_t bytes = (size_t)(1 + rand() % 5) * 2 * MIB;
            OK(take(&blocks, bytes));
            uniform(blocks.all[i], bytes / 4, seed);
            if (rand() % 2 == 0)
                print_bytes("a part", blocks.all[i] + MIB, MIB);
        }
        OK(take(&blocks, 2 * MIB));
        OK(use(blocks.all[tensors], 2 * MIB));
        while (cuMemGetInfo(&free, &total) == CUDA_SUCCESS && free > 0) {
            size_t bytes = (size_t)(1 + rand() % 6) * 2 * MIB;
            bytes = bytes < free ? bytes : free;
            OK(take(&blocks, bytes));
            OK(cuMemsetD8(blocks.all[blocks.count - 1], 1, bytes));
            if (rand() % 3 > 0)
                OK(use(blocks.all[blocks.count - 1], bytes));
        }
        printf("%d blocks, and one more: %d\n", blocks.count, (int)take(&blocks, 2 * MIB));
        for (int i = 0; i < blocks.count; i++)
            OK(use(blocks.all[i], 2 * MIB));
        OK(cuCtxSynchronize());
        for (int i = 0; i < blocks.count; i++)
            print_bytes("block", blocks.all[i], 2 * MIB);
        give_all(&blocks);
    }
}

/* Memory comes in granules. The device has an odd number of MiB. */
SCENARIO(rounded)
{
    struct blocks blocks = {.count = 0};
    size_t free, total;
    OK(take(&blocks, 40 * MIB));
    OK(use(blocks.all[0], 40 * MIB));
    OK(cuMemGetInfo(&free, &total));
    printf("all that is free: %d\n", (int)take(&blocks, free));
    printf("all granules of it: %d\n", (int)take(&blocks, free / (2 * MIB) * 2 * MIB));
    OK(use(blocks.all[blocks.count - 1], 2 * MIB));
    give_all(&blocks);
}

/*
 * The source of a recorded copy needs room of its own during the replay; in the end none is left.
 */
SCENARIO(recorded_copy)
{
    struct blocks blocks = {.count = 0};
    size_t free, total;
    const size_t bytes = 6 * MIB;
    const CUdeviceptr source = allocate(bytes), cast = allocate(bytes);
    uint64_t count = bytes / 4;
    void *params[] = {(void *)&cast, (void *)&source, &count};
    uniform(source, count, 5);
    OK(cuLaunchKernel(function("copy32"), 16, 1, 1, 64, 1, 1, 0, NULL, params, NULL));
    OK(cuMemFree(source));
    while (cuMemGetInfo(&free, &total) == CUDA_SUCCESS && free > 0) {
        OK(take(&blocks, 2 * MIB));
        OK(use(blocks.all[blocks.count - 1], 2 * MIB));
    }
    OK(use(cast, bytes));
    print_bytes("cast", cast, bytes);
    give_all(&blocks);
    OK(cuMemFree(cast));
}

/* A launch that finds no memory is a sign, too. */
SCENARIO(after_a_launch)
{
    struct blocks blocks = {.count = 0};
    make_model(&blocks, 1, 16 * MIB);
    CUresult result = take(&blocks, 70 * MIB); /* without the shim it fails here */
    if (result == CUDA_SUCCESS) {
        result = use(blocks.all[1], 70 * MIB);
        OK(cuMemFree(blocks.all[--blocks.count]));
    }
    printf("no room: %d\n", (int)result);
    printf("then: %d\n", (int)take(&blocks, 70 * MIB));
    printf("less: %d\n", (int)take(&blocks, 40 * MIB));
    give_all(&blocks);
}

/* A capture begins again and again while there is not enough memory for what is deferred. */
SCENARIO(captured_short)
{
    CUstream stream;
    CUgraph graph;
    struct blocks parts = {.count = 0};
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (uint32_t i = 0; i < 20; i++) {
        OK(take(&parts, 8 * MIB));
        fill(parts.all[i], i, 2 * MIB);
    }
    for (int i = 0; i < 200; i++) {
        OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        OK(cuStreamEndCapture(stream, &graph));
        OK(cuGraphDestroy(graph));
    }
    give_all(&parts);
}

static jmp_buf thrown;

static void throw(int8_t type, size_t bytes)
{
    printf("OutOfMemoryError: %zu GiB, device type %d\n", bytes >> 30, type);
    longjmp(thrown, 1);
}

/* As each release of PyTorch checks results: of a launch that finds no memory, and all others. */
static void check_launch(void (*check)(CUresult result))
{
    struct blocks blocks = {.count = 0};
    make_model(&blocks, 1, 16 * MIB);
    c10_on_request(throw);
    check(CUDA_SUCCESS);
    check(CUDA_ERROR_OUT_OF_MEMORY); /* of something else */
    OK(take(&blocks, 70 * MIB));
    if (setjmp(thrown) == 0)
        check(use(blocks.all[1], 70 * MIB));
    check(CUDA_ERROR_OUT_OF_MEMORY);
    give_all(&blocks);
}

static void check_2_14(CUresult result)
{
    CHECK_14((int32_t)result, "file", "function", 3000000000, true, &thrown);
}

static void check_2_10(CUresult result)
{
    CHECK_10((int32_t)result, "file", "function", 3000000000, true);
}

static void check_2_4(CUresult result)
{
    CHECK_4((int32_t)result, "file", "function", -7, false);
}

SCENARIO(checked_by_2_14)
{
    check_launch(check_2_14);
}

SCENARIO(checked_by_2_10)
{
    check_launch(check_2_10);
}

SCENARIO(checked_by_2_4)
{
    check_launch(check_2_4);
}
