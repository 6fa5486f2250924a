/* SPDX-License-Identifier: Apache-2.0 */
/* job SCENARIO KERNELS: programs for metashard-verify (check_verify.py). */
#define METASHARD_API __attribute__((weak))
#include "shim/metashard.h"

#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/driver/differential/c10.h"

#define MIB ((size_t)1 << 20)
#define MUST(call) must(call, #call, __LINE__)

static const char *kernels;
static CUcontext context;

static void must(CUresult result, const char *call, int line)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "line %d: %s is %d\n", line, call, (int)result);
    exit(4);
}

/* A planted fault: the program behaves otherwise under the shim. */
static bool is_planted(void)
{
    return getenv("PLANT") != NULL && getenv("METASHARD_HASHES_LIKE") == NULL;
}

static void start(void)
{
    CUdevice device;
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
}

static CUdeviceptr allocate(size_t bytes)
{
    CUdeviceptr address;
    MUST(cuMemAlloc(&address, bytes));
    return address;
}

/* Writes the bytes of [address, address + bytes). */
static void write_bytes(CUdeviceptr address, size_t bytes, unsigned seed)
{
    unsigned char *host = malloc(bytes);
    for (size_t i = 0; i < bytes; i++)
        host[i] = (unsigned char)((i + seed) * 2654435761U >> 11);
    if (is_planted())
        host[bytes / 2]++;
    MUST(cuMemcpyHtoD(address, host, bytes));
    free(host);
}

static CUfunction find_kernel(const char *name)
{
    CUmodule module;
    CUfunction kernel;
    MUST(cuModuleLoad(&module, kernels));
    MUST(cuModuleGetFunction(&kernel, module, name));
    return kernel;
}

static void add(CUdeviceptr address, uint32_t value, uint64_t count)
{
    struct {
        CUdeviceptr address;
        uint64_t count;
        uint32_t value;
    } args = {address, count, value};
    void *params[] = {&args};
    MUST(cuLaunchKernel(find_kernel("add_in_place32"), 4, 1, 1, 64, 1, 1, 0, NULL, params, NULL));
    MUST(cuCtxSynchronize());
}

/* Bytes that nobody writes: at the beginning, in between, at the end, and in a copy. */
static void plain(void)
{
    const CUdeviceptr whole = allocate(8 * MIB), holes = allocate(8 * MIB), small = allocate(4096);
    const CUdeviceptr copy = allocate(8 * MIB), freed = allocate(4 * MIB);
    CUdeviceptr pooled;
    write_bytes(whole, 8 * MIB, 1);
    write_bytes(holes + 3, MIB, 2);
    write_bytes(holes + 2 * MIB + 1, 4095, 3);
    write_bytes(small + 1, 100, 4);
    MUST(cuMemcpyDtoD(copy + MIB, holes, 4 * MIB));
    add(copy, 1, MIB);
    MUST(cuMemAllocAsync(&pooled, 3 * MIB, NULL));
    MUST(cuMemsetD8Async(pooled, 7, MIB, NULL));
    MUST(cuMemFree(freed));
    MUST(cuMemAllocAsync(&pooled, 300, NULL));
    MUST(cuMemsetD8Async(pooled, 7, 100, NULL));
}

static CUdeviceptr part(CUdeviceptr address, int64_t bytes)
{
    REPORT((void *)(uintptr_t)address, bytes, 1, 2, (struct c10_device){1, 0});
    return address;
}

/* A caching allocator hands memory out again, in which another block's bytes are. */
static void parts(void)
{
    const CUdeviceptr whole = allocate(20 * MIB);
    write_bytes(part(whole, 8 * MIB), 8 * MIB, 1);
    add(whole, 1, 2 * MIB);
    part(whole, -(int64_t)(8 * MIB));
    write_bytes(part(whole, 512) + 1, 500, 2);
    write_bytes(part(whole + MIB, 4 * MIB) + 100, 3 * MIB, 3);
    add(whole + MIB, 1, 1000);
    part(whole + 8 * MIB, 12 * MIB);
}

/* A kernel reads, through a tensor map, what is overwritten later; a rule that says that it reads
 * nothing lets it run then. */
static void kernel(void)
{
    static const uint64_t shape[] = {MIB};
    static const cuuint64_t dim = MIB / 4;
    static const cuuint32_t box = 64, step = 1;
    CUtensorMap map;
    const CUdeviceptr in = allocate(4 * MIB), out = allocate(4 * MIB);
    write_bytes(in, 4 * MIB, 1);
    if (metashard_name != NULL && metashard_name(out, 4 * MIB, "layer.0.weight", "F32", shape, 1))
        fprintf(stderr, "%s\n", metashard_error());
    MUST(cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 1, (void *)(uintptr_t)in,
                                &dim, NULL, &box, &step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    void *params[] = {(void *)&out, &map};
    MUST(cuLaunchKernel(find_kernel("sum_map32"), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    MUST(cuCtxSynchronize());
    MUST(cuMemsetD8(in, 9, 4 * MIB));
}

/* A plan gives a half of it to another rank. */
static void planned(void)
{
    static const uint64_t shape[] = {2 * MIB};
    const CUdeviceptr weight = allocate(8 * MIB);
    if (metashard_name != NULL && metashard_name(weight, 8 * MIB, "w", "F32", shape, 1) != 0)
        fprintf(stderr, "%s\n", metashard_error());
    MUST(cuMemsetD32(weight, is_planted() ? 7 : 3, 2 * MIB));
}

static void mark(const char *name)
{
    if (metashard_mark != NULL && metashard_mark(name) != 0)
        fprintf(stderr, "mark: %s\n", metashard_error());
}

/* At the end everything is equal. */
static void marks(void)
{
    const CUdeviceptr block = allocate(4 * MIB);
    mark("nothing written");
    write_bytes(block, 4 * MIB, 1);
    mark("a step");
    MUST(cuMemsetD8(block, 1, 4 * MIB));
    mark("a step");
    mark("two\nlines");
    mark("");
}

static void status(void)
{
    plain();
    exit(is_planted() || getenv("PLANT") == NULL ? 3 : 0);
}

static void reset(void)
{
    write_bytes(allocate(4 * MIB), 4 * MIB, 1);
    MUST(cuDevicePrimaryCtxReset(0));
}

static void *in_thread(void *seed)
{
    MUST(cuCtxSetCurrent(context));
    write_bytes(allocate(4 * MIB), 4 * MIB, *(unsigned *)seed);
    return NULL;
}

static void threads(void)
{
    pthread_t thread;
    unsigned seeds[] = {1, 2};
    for (int i = 0; i < 2; i++) {
        pthread_create(&thread, NULL, in_thread, &seeds[i]);
        pthread_join(thread, NULL);
    }
}

/* Asks for sizes that depend on time. */
static void by_time(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    write_bytes(allocate((size_t)now.tv_nsec + 4096), 4096, 1);
}

/* Ranks that end in another order than they began. */
static void ranks(char *program)
{
    char rank[2] = "0";
    for (; rank[0] < '3'; rank[0]++) {
        if (fork() != 0)
            continue;
        setenv("RANK", rank, 1);
        setenv("WORLD_SIZE", "3", 1);
        if (rank[0] != '1')
            unsetenv("PLANT");
        usleep((useconds_t)('2' - rank[0]) * 50000);
        execl(program, program, "plain", kernels, NULL);
        _exit(5);
    }
    while (wait(NULL) > 0)
        ;
}

static void killed(void)
{
    plain();
    _exit(0);
}

int main(int count, char **arguments)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } scenarios[] = {{"plain", plain},  {"parts", parts},     {"kernel", kernel},
                     {"marks", marks},  {"planned", planned}, {"status", status},
                     {"reset", reset},  {"threads", threads}, {"by_time", by_time},
                     {"killed", killed}};
    if (count != 3)
        return 2;
    kernels = arguments[2];
    if (strcmp(arguments[1], "ranks") == 0) {
        ranks(arguments[0]);
        return 0;
    }
    for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
        if (strcmp(scenarios[i].name, arguments[1]) == 0) {
            start();
            scenarios[i].run();
            return 0;
        }
    }
    return 2;
}
