/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flow KERNELS TORCH_KERNELS FILE [--large]: a plain CUDA program that does not give up at the
 * first error. Every call that fails is made once more, as a program may after an error that is not
 * sticky; the second one has to succeed. All that it reads must be right, and in the end everything
 * is given back.
 *
 * It loads tensors from a mapped file and keeps rows of them, fills and computes with kernels that
 * may be recorded and with others, sends bytes of its own, fills a device that is too small for
 * all, asks, captures. Twice, so that what went wrong in the first round is not in the way of the
 * second. With --large it loads and fills alone, with tensors that are large enough to be read by
 * threads.
 *
 * On standard output: "errors N", the calls that failed, each by a line before; and "descriptors
 * N", that are open in the end. Exit status 0, or 3 after an error that is sticky, or 4 with a line
 * about what is wrong.
 */
#include <cuda.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tools/simcuda/kernels/torch_kernels.h"

enum { KIB = 1024, FILE_BYTES = 12 * 1024 * KIB, STICKY = 3, WRONG = 4 };

static _Atomic int errors;
static bool is_large;
static const unsigned char *file_bytes;
static CUmodule plain_module, torch_module;
static CUstream stream;

static bool is_sticky(CUresult result)
{
    return result == CUDA_ERROR_ILLEGAL_ADDRESS || result == CUDA_ERROR_LAUNCH_FAILED;
}

static void tell(CUresult result, const char *call)
{
    errors++;
    printf("%s is %d\n", call, (int)result);
    if (!is_sticky(result))
        return;
    printf("the error is sticky\n");
    fflush(stdout);
    _exit(STICKY); /* another thread may be told at the same time */
}

static void again(CUresult first, CUresult second, const char *call)
{
    if (second == CUDA_SUCCESS)
        return;
    printf("%s is %d, and then %d\n", call, (int)first, (int)second);
    fflush(stdout);
    _exit(is_sticky(second) ? STICKY : WRONG);
}

#define TRY(call)                         \
    do {                                  \
        const CUresult first_ = (call);   \
        if (first_ != CUDA_SUCCESS) {     \
            tell(first_, #call);          \
            again(first_, (call), #call); \
        }                                 \
    } while (0)

/* An address that was given back in spite of the error is not known any more. */
static void give_back(CUdeviceptr address)
{
    const CUresult first = cuMemFree(address);
    if (first == CUDA_SUCCESS)
        return;
    tell(first, "cuMemFree");
    const CUresult second = cuMemFree(address);
    if (second != CUDA_ERROR_INVALID_VALUE)
        again(first, second, "cuMemFree");
}

static void expect(bool is_right, const char *what)
{
    if (is_right)
        return;
    printf("wrong: %s\n", what);
    fflush(stdout);
    exit(WRONG);
}

static CUdeviceptr take(size_t bytes)
{
    CUdeviceptr address = 0;
    TRY(cuMemAlloc(&address, bytes));
    return address;
}

static unsigned char *read_back(CUdeviceptr address, size_t bytes)
{
    unsigned char *host = malloc(bytes);
    if (host == NULL)
        exit(WRONG);
    memset(host, 0x5a, bytes);
    TRY(cuMemcpyDtoH(host, address, bytes));
    return host;
}

static void expect_bytes(CUdeviceptr address, const unsigned char *wanted, size_t bytes,
                         const char *what)
{
    unsigned char *host = read_back(address, bytes);
    expect(memcmp(host, wanted, bytes) == 0, what);
    free(host);
}

static CUfunction function(CUmodule module, const char *name)
{
    CUfunction found;
    TRY(cuModuleGetFunction(&found, module, name));
    return found;
}

/* --- the parts */

/* Whole tensors from the mapping, a part of each copied out, the whole freed. */
static void load(void)
{
    const size_t sizes[] = {200 * KIB, 70 * KIB + 12, is_large ? 9 * 1024 * KIB : 300 * KIB};
    CUdeviceptr parts[3];
    for (size_t i = 0; i < 3; i++) {
        const CUdeviceptr whole = take(sizes[i]);
        TRY(cuMemcpyHtoD(whole, file_bytes + i * 4096, sizes[i]));
        parts[i] = take(sizes[i] - sizes[i] / 16);
        TRY(cuMemcpyDtoD(parts[i], whole + sizes[i] / 16, sizes[i] - sizes[i] / 16));
        give_back(whole);
    }
    for (size_t i = 0; i < 3; i++)
        expect_bytes(parts[i], file_bytes + i * 4096 + sizes[i] / 16, sizes[i] - sizes[i] / 16,
                     "bytes of the file");
    for (size_t i = 0; i < 3; i++)
        give_back(parts[i]);
}

/* Bytes that are in no file, patterns, and rows of what was written. */
static void snapshots(void)
{
    enum { BYTES = 150 * KIB, ROW = 300, PITCH = 500, ROWS = 100 };
    unsigned char *own = malloc(BYTES);
    if (own == NULL)
        exit(WRONG);
    for (size_t i = 0; i < BYTES; i++)
        own[i] = (unsigned char)(i * 7 + i / 256);
    const CUdeviceptr a = take(BYTES), b = take(BYTES);
    TRY(cuMemcpyHtoDAsync(a, own, BYTES, stream));
    TRY(cuMemsetD8Async(b, 0x11, BYTES, stream));
    TRY(cuMemsetD32Async(b + 4000, 0x01020304, 1000, stream));
    TRY(cuMemcpyDtoDAsync(b + 10000, a + 20000, 30000, stream));
    CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = a,
                          .srcPitch = PITCH,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = b + 60000,
                          .dstPitch = ROW,
                          .WidthInBytes = ROW,
                          .Height = ROWS};
    TRY(cuMemcpy2DAsync(&rows, stream));
    TRY(cuStreamSynchronize(stream));
    expect_bytes(a, own, BYTES, "bytes of a snapshot");
    unsigned char *seen = read_back(b, BYTES);
    expect(seen[0] == 0x11 && seen[3999] == 0x11 && seen[8000] == 0x11 && seen[BYTES - 1] == 0x11,
           "a pattern");
    expect(seen[4000] == 4 && seen[7999] == 1, "a pattern of words");
    expect(memcmp(seen + 10000, own + 20000, 30000) == 0, "bytes copied within the device");
    for (size_t row = 0; row < ROWS; row++)
        expect(memcmp(seen + 60000 + row * ROW, own + row * PITCH, ROW) == 0, "rows");
    free(seen);
    free(own);
    give_back(a);
    give_back(b);
}

/* A fill that may be recorded, a part copied out, and a kernel without a rule. */
static void kernels(void)
{
    enum { COUNT = 50000, BLOCK = 128, PART = 10000 };
    CUfunction fill = function(torch_module, TORCH_NAME(TORCH_FILL));
    CUfunction multiply = function(torch_module, TORCH_NAME(TORCH_MUL));
    CUfunction copy = function(plain_module, "copy32");
    CUdeviceptr whole = take(COUNT * sizeof(float));
    int count = COUNT;
    float value = 1.5F, factor = 3.0F;
    CUdeviceptr both[2] = {whole, whole};
    void *fill_params[] = {&count, &value, &whole};
    void *multiply_params[] = {&count, &factor, both};
    TRY(cuLaunchKernel(fill, COUNT / (BLOCK * 8) + 1, 1, 1, BLOCK, 1, 1, 0, stream, fill_params,
                       NULL));
    /* Once more would multiply once more: whether it ran is read back below. */
    const CUresult result = cuLaunchKernel(multiply, COUNT / (BLOCK * 8) + 1, 1, 1, BLOCK, 1, 1, 0,
                                           stream, multiply_params, NULL);
    if (result != CUDA_SUCCESS)
        tell(result, "cuLaunchKernel of a product");
    const float wanted = result == CUDA_SUCCESS ? 4.5F : 1.5F;
    CUdeviceptr part = take(PART * sizeof(float)), other = take(PART * sizeof(float));
    TRY(cuMemcpyDtoDAsync(part, whole + 5000 * sizeof(float), PART * sizeof(float), stream));
    uint64_t words = PART;
    void *copy_params[] = {&other, &part, &words};
    TRY(cuLaunchKernel(copy, 1, 1, 1, 1, 1, 1, 0, stream, copy_params, NULL));
    give_back(whole);
    TRY(cuCtxSynchronize());
    float *seen = (float *)(void *)read_back(other, PART * sizeof(float));
    for (size_t i = 0; i < PART; i++)
        expect(seen[i] == wanted, "what a kernel has computed");
    free(seen);
    give_back(part);
    give_back(other);
}

/* Memory may really be out: a stream that was busy for long has its writes run, and what was
 * written by the driver stays. Then a program makes do with less. */
static bool is_out(CUresult result, size_t *failures)
{
    if (result == CUDA_SUCCESS)
        return false;
    tell(result, "a call under pressure");
    if (++*failures > 1 && result != CUDA_ERROR_OUT_OF_MEMORY)
        again(result, result, "a call under pressure");
    return true;
}

/* More than the device has, all of the file: what was only read goes, and comes again. */
static void pressure(void)
{
    enum { BLOCKS = 10 };
    const size_t bytes = is_large ? 3 * 1024 * KIB : 512 * KIB;
    CUdeviceptr blocks[BLOCKS];
    size_t count = 0, failures = 0;
    while (count < BLOCKS && failures < 2) {
        if (is_out(cuMemAlloc(&blocks[count], bytes), &failures))
            continue;
        if (is_out(cuMemcpyHtoD(blocks[count], file_bytes + count * 8192, bytes), &failures))
            give_back(blocks[count]);
        else
            count++;
    }
    unsigned char *seen = malloc(bytes);
    for (size_t i = 0; i < 2 * count; i++) {
        const size_t at = i % count;
        failures = 0;
        while (at < count && is_out(cuMemcpyDtoH(seen, blocks[at], bytes), &failures)) {
            if (failures > 1)
                give_back(blocks[--count]);
            expect(count > 2, "memory is out with two blocks");
        }
        expect(at >= count || memcmp(seen, file_bytes + at * 8192, bytes) == 0,
               "bytes under pressure");
    }
    free(seen);
    for (size_t i = 0; i < count; i++)
        give_back(blocks[i]);
}

/* A graph with a kernel and a copy, of memory that was deferred when the capture began. */
static void capture(void)
{
    enum { COUNT = 3000 };
    CUdeviceptr a = take(200 * KIB), b = take(200 * KIB);
    CUgraph graph;
    CUgraphExec launchable;
    CUfunction copy = function(plain_module, "copy32");
    uint64_t words = COUNT;
    void *params[] = {&b, &a, &words};
    TRY(cuMemcpyHtoD(a, file_bytes + 512, COUNT * 4));
    for (int i = 0;; i++) {
        CUresult result = cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
        if (result == CUDA_SUCCESS) {
            const CUresult launched =
                cuLaunchKernel(copy, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
            result = cuStreamEndCapture(stream, &graph);
            if (launched != CUDA_SUCCESS && result == CUDA_SUCCESS)
                cuGraphDestroy(graph);
            result = launched != CUDA_SUCCESS ? launched : result;
            if (result != CUDA_SUCCESS && cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS)
                cuGraphDestroy(graph); /* it was the end of it that had failed */
        }
        if (result == CUDA_SUCCESS)
            break;
        tell(result, "a capture");
        if (i > 0)
            again(result, result, "a capture");
    }
    TRY(cuGraphInstantiateWithFlags(&launchable, graph, 0));
    TRY(cuGraphLaunch(launchable, stream));
    TRY(cuStreamSynchronize(stream));
    expect_bytes(b, file_bytes + 512, COUNT * 4, "what a graph has copied");
    TRY(cuGraphExecDestroy(launchable));
    TRY(cuGraphDestroy(graph));
    give_back(a);
    give_back(b);
}

/* Queries about addresses, and exporting. */
static void queries(void)
{
    CUdeviceptr block = take(100 * KIB), base;
    size_t bytes, all;
    int device;
    TRY(cuMemcpyHtoD(block, file_bytes, 100 * KIB));
    TRY(cuMemGetAddressRange(&base, &bytes, block + 77));
    expect(base == block && bytes == 100 * KIB, "cuMemGetAddressRange");
    TRY(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, block));
    expect(device == 0, "the device of an address");
    TRY(cuMemGetInfo(&bytes, &all));
    TRY(cuMemcpyHtoD(block, file_bytes + 64, 100 * KIB));
    expect_bytes(block, file_bytes + 64, 100 * KIB, "bytes that were written again");
    give_back(block);
}

static void *load_in_thread(void *context)
{
    TRY(cuCtxSetCurrent(context));
    load();
    return NULL;
}

static void two_threads(CUcontext context)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, load_in_thread, context) != 0)
        exit(WRONG);
    snapshots();
    pthread_join(thread, NULL);
}

/* --- */

static int open_descriptors(void)
{
    DIR *list = opendir("/proc/self/fd");
    int count = 0;
    while (list != NULL && readdir(list) != NULL)
        count++;
    if (list != NULL)
        closedir(list);
    return count;
}

static void map_file(const char *path)
{
    const int file = open(path, O_RDONLY);
    file_bytes = file < 0 ? MAP_FAILED : mmap(NULL, FILE_BYTES, PROT_READ, MAP_PRIVATE, file, 0);
    if (file_bytes == MAP_FAILED)
        exit(2);
    close(file);
}

int main(int count, char **arguments)
{
    CUcontext context;
    is_large = count == 5 && strcmp(arguments[4], "--large") == 0;
    if (count != 4 && !is_large) {
        fprintf(stderr, "usage: flow KERNELS TORCH_KERNELS FILE [--large]\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    map_file(arguments[3]);
    TRY(cuInit(0));
    TRY(cuDevicePrimaryCtxRetain(&context, 0));
    TRY(cuCtxSetCurrent(context));
    TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    if (is_large) {
        load();
        pressure();
    }
    for (int round = 0; round < 2 && !is_large; round++) {
        TRY(cuModuleLoad(&plain_module, arguments[1]));
        TRY(cuModuleLoad(&torch_module, arguments[2]));
        load();
        snapshots();
        kernels();
        pressure();
        queries();
        capture();
        two_threads(context);
        TRY(cuModuleUnload(torch_module));
        TRY(cuModuleUnload(plain_module));
    }
    TRY(cuStreamDestroy(stream));
    printf("errors %d\n", errors);
    printf("descriptors %d\n", open_descriptors());
    return 0;
}
