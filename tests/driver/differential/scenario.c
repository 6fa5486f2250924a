/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/driver/differential/scenario.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/driver/differential/c10.h"
#include "tests/harness/fast_hash.h"
#include "tests/harness/scrambled.h"

static const char *kernels_path, *data_path;

void scenario_check(CUresult result, const char *call, int line)
{
    if (result != CUDA_SUCCESS) {
        printf("line %d: %s is %d\n", line, call, (int)result);
        exit(1);
    }
}

CUdeviceptr allocate(size_t bytes)
{
    CUdeviceptr address;
    OK(cuMemAlloc(&address, bytes));
    return address;
}

void print_host(const char *name, const void *bytes, size_t count)
{
    printf("%s: hash %016llx\n", name, (unsigned long long)fast_hash(bytes, count));
}

void print_bytes(const char *name, CUdeviceptr address, size_t bytes)
{
    unsigned char *host = calloc(1, bytes);
    const CUresult result = cuMemcpyDtoH(host, address, bytes);
    printf("%s: result %d, hash %016llx\n", name, (int)result,
           (unsigned long long)fast_hash(host, result == CUDA_SUCCESS ? bytes : 0));
    free(host);
}

static CUmodule module;

CUfunction function(const char *name)
{
    CUfunction found;
    if (module == NULL)
        OK(cuModuleLoad(&module, kernels_path));
    OK(cuModuleGetFunction(&found, module, name));
    return found;
}

void unload_kernels(void)
{
    OK(cuModuleUnload(module));
    module = NULL;
}

void fill(CUdeviceptr address, uint32_t value, uint64_t count)
{
    void *params[] = {&address, &value, &count};
    OK(cuLaunchKernel(function("fill32"), 16, 1, 1, 64, 1, 1, 0, NULL, params, NULL));
}

void uniform(CUdeviceptr address, uint64_t count, uint64_t seed)
{
    uint64_t offset = 5;
    void *params[] = {&address, &count, &seed, &offset};
    OK(cuLaunchKernel(function("uniform32"), 16, 1, 1, 64, 1, 1, 0, NULL, params, NULL));
}

CUresult try_add(CUdeviceptr address, uint32_t value, uint64_t count, CUstream stream)
{
    struct {
        CUdeviceptr address;
        uint64_t count;
        uint32_t value;
    } args = {address, count, value};
    void *params[] = {&args};
    return cuLaunchKernel(function("add_in_place32"), 4, 1, 1, 64, 1, 1, 0, stream, params, NULL);
}

void copy_words(CUdeviceptr to, CUdeviceptr from, uint64_t count, CUstream stream)
{
    void *params[] = {&to, &from, &count};
    OK(cuLaunchKernel(function("copy32"), 4, 1, 1, 64, 1, 1, 0, stream, params, NULL));
}

void send_words(CUdeviceptr from, CUdeviceptr to, uint64_t count, CUstream stream)
{
    void *params[] = {&from, &to, &count};
    OK(cuLaunchKernel(function("send32"), 4, 1, 1, 64, 1, 1, 0, stream, params, NULL));
}

void gather_words(CUdeviceptr to, CUdeviceptr table, uint64_t count, CUstream stream)
{
    void *params[] = {&to, &table, &count};
    OK(cuLaunchKernel(function("gather32"), 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}

CUstream make_stream(void)
{
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static atomic_bool may_go;

static void CUDA_CB wait_until_it_may_go(void *unused)
{
    (void)unused;
    while (!atomic_load(&may_go))
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

void hold(CUstream stream)
{
    atomic_store(&may_go, false);
    OK(cuLaunchHostFunc(stream, wait_until_it_may_go, NULL));
}

void let_go(void)
{
    atomic_store(&may_go, true);
}

void report(CUdeviceptr block, int64_t bytes)
{
    __typeof__(&REPORT) tell =
        (__typeof__(tell))dlsym(RTLD_DEFAULT,
                                "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
    if (tell != NULL)
        tell((void *)(uintptr_t)block, bytes, 1, 2, (struct c10_device){1, 0});
}

struct capture {
    CUcontext context;
    pthread_barrier_t begun, done;
};

static void *capture(void *argument)
{
    struct capture *beside = argument;
    CUstream stream;
    CUgraph graph;
    OK(cuCtxSetCurrent(beside->context));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    pthread_barrier_wait(&beside->begun);
    pthread_barrier_wait(&beside->done);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphDestroy(graph));
    return NULL;
}

void beside_capture(void (*then)(CUdeviceptr), CUdeviceptr block)
{
    struct capture beside;
    pthread_t thread;
    OK(cuCtxGetCurrent(&beside.context));
    pthread_barrier_init(&beside.begun, NULL, 2);
    pthread_barrier_init(&beside.done, NULL, 2);
    pthread_create(&thread, NULL, capture, &beside);
    pthread_barrier_wait(&beside.begun);
    then(block);
    pthread_barrier_wait(&beside.done);
    pthread_join(thread, NULL);
}

/* A file of distinct bytes, mapped. */
const char *scenario_file(void)
{
    return data_path;
}

void *map_file(size_t bytes)
{
    unsigned char *content = malloc(bytes);
    scramble(content, bytes, 0, 13);
    int file = open(data_path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || write(file, content, bytes) != (ssize_t)bytes)
        exit(2);
    free(content);
    close(file); /* nobody writes: else it would be no source */
    file = open(data_path, O_RDONLY);
    void *mapped = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    return mapped;
}

static void overwrite(int file, size_t bytes)
{
    unsigned char *content = calloc(1, bytes);
    if (file < 0 || write(file, content, bytes) != (ssize_t)bytes)
        exit(2);
    close(file);
    free(content);
}

void overwrite_file(size_t bytes)
{
    overwrite(open(data_path, O_WRONLY), bytes);
}

void overwrite_file_unseen(size_t bytes)
{
    overwrite((int)syscall(SYS_openat, AT_FDCWD, data_path, O_WRONLY), bytes);
}

CUdeviceptr load_file(size_t bytes)
{
    const CUdeviceptr block = allocate(bytes);
    OK(cuMemcpyHtoD(block, map_file(bytes), bytes));
    return block;
}

static struct scenario *scenarios;

void scenario_register(struct scenario *scenario)
{
    scenario->next = scenarios;
    scenarios = scenario;
}

int main(int count, char **arguments)
{
    CUcontext context;
    if (count != 4)
        return 2;
    kernels_path = arguments[1];
    data_path = arguments[3];
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    for (const struct scenario *scenario = scenarios; scenario != NULL; scenario = scenario->next) {
        if (strcmp(scenario->name, arguments[2]) == 0) {
            scenario->run();
            return 0;
        }
    }
    return 2;
}
