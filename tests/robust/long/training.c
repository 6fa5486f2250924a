/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/robust/long/training.h"

#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim/metashard.h"
#include "tools/simcuda/kernels/torch_kernels.h"

enum { IDLE_US = 30000 /* longer than the script's METASHARD_SETTLE_MS */ };

CUcontext context;
CUmodule kernels, torch;
const char *folder, *kernels_path;
_Atomic uint64_t compared_bytes;
static pthread_barrier_t barrier;
static bool is_over;

void fail(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fputc('\n', stderr);
    _exit(1);
}

void check(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS)
        fail("%s: CUDA error %d", what, result);
}

void compare(const char *what, const void *seen, const void *wanted, size_t bytes)
{
    if (memcmp(seen, wanted, bytes) != 0) {
        const unsigned char *one = seen, *other = wanted;
        size_t i = 0;
        while (one[i] == other[i])
            i++;
        fail("%s: byte %zu of %zu is %02x, expected %02x", what, i, bytes, one[i], other[i]);
    }
    compared_bytes += bytes;
}

uint32_t draw(struct worker *worker)
{
    worker->random = worker->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(worker->random >> 32);
}

CUdeviceptr allocate(size_t bytes)
{
    CUdeviceptr address;
    OK(cuMemAlloc(&address, bytes));
    return address;
}

void launch(CUmodule module, const char *name, void **params, CUstream stream)
{
    CUfunction function;
    OK(cuModuleGetFunction(&function, module, name));
    OK(cuLaunchKernel(function, 4, 1, 1, 64, 1, 1, 0, stream, params, NULL));
}

void add(CUdeviceptr at, uint32_t *words, size_t count, uint32_t value, CUstream stream)
{
    struct {
        CUdeviceptr address;
        uint64_t count;
        uint32_t value, unused;
    } args = {at, count, value, 0};
    launch(kernels, "add_in_place32", (void *[]){&args}, stream);
    for (size_t i = 0; i < count; i++)
        words[i] += value;
}

void read_back(struct worker *worker, const char *what, CUdeviceptr at, const void *wanted,
               size_t bytes, CUstream stream)
{
    if (worker->round % 2 == 0 && bytes <= 4 * checkpoint_words()) {
        OK(cuMemcpyDtoHAsync(worker->pinned, at, bytes, stream));
        OK(cuStreamSynchronize(stream));
        compare(what, worker->pinned, wanted, bytes);
        return;
    }
    void *pageable = malloc(bytes);
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH(pageable, at, bytes));
    compare(what, pageable, wanted, bytes);
    free(pageable);
}

/* --- one round */

/* Half of the tensor: the first half of the rows, or of the columns. */
static size_t shard_words(int tensor)
{
    return words_of(tensor) / 2;
}

static uint32_t *truth_of(struct worker *worker, int tensor, size_t word)
{
    const size_t columns = columns_of(tensor);
    const size_t place =
        tensor % 2 == 0 ? word : word / (columns / 2) * columns + word % (columns / 2);
    return worker->truth + place_of(tensor) + place;
}

/* Columns of a whole tensor, as a strided copy, or as PyTorch's kernel for it. */
static void slice_columns(struct worker *worker, int tensor, CUdeviceptr whole)
{
    const size_t columns = columns_of(tensor), half = columns / 2;
    if (worker->round % 4 < 2) {
        const CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                    .srcDevice = whole,
                                    .srcPitch = 4 * columns,
                                    .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                    .dstDevice = worker->shards[tensor],
                                    .dstPitch = 4 * half,
                                    .WidthInBytes = 4 * half,
                                    .Height = ROWS};
        OK(cuMemcpy2D(&copy));
        return;
    }
    struct torch_copy copy = {
        .data = {worker->shards[tensor], whole},
        .offsets = {.dims = 2,
                    .sizes = {{.divisor = (uint32_t)half}, {.divisor = ROWS}},
                    .strides = {{4, 4}, {4 * (uint32_t)half, 4 * (uint32_t)columns}}}};
    int count = (int)(ROWS * half);
    launch(torch, TORCH_NAME(TORCH_COPY), (void *[]){&count, &copy}, NULL);
}

/* Memory allocated while the other worker captures a stream is not deferred, and has no name. */
static void name_shard(struct worker *worker, int tensor)
{
    char name[64];
    const uint64_t shape = shard_words(tensor);
    snprintf(name, sizeof(name), "worker%u.shard%d", worker->index, tensor);
    if (metashard_name != NULL)
        (void)metashard_name(worker->shards[tensor], 4 * shape, name, "U32", &shape, 1);
}

static void load_tensor(struct worker *worker, int tensor, struct mapped file)
{
    const CUdeviceptr whole = allocate(4 * words_of(tensor));
    const void *from = file.at + file.data + 4 * place_of(tensor);
    worker->shards[tensor] = allocate(4 * shard_words(tensor));
    if (worker->round % 3 == 0) {
        OK(cuMemcpyHtoDAsync(whole, from, 4 * words_of(tensor), worker->streams[0]));
        OK(cuStreamSynchronize(worker->streams[0]));
    } else {
        OK(cuMemcpyHtoD(whole, from, 4 * words_of(tensor)));
    }
    if (tensor % 2 == 0)
        OK(cuMemcpyDtoD(worker->shards[tensor], whole, 4 * shard_words(tensor)));
    else
        slice_columns(worker, tensor, whole);
    OK(cuMemFree(whole));
    name_shard(worker, tensor);
    for (size_t i = 0; i < shard_words(tensor); i++)
        worker->expected[tensor][i] = *truth_of(worker, tensor, i);
}

static void load(struct worker *worker)
{
    const struct mapped file = checkpoint_map(worker->path);
    for (int i = 0; i < TENSORS; i++)
        load_tensor(worker, i, file);
    checkpoint_unmap(file);
}

/* Moments of an optimizer, in the order of a stream: one set, one filled by a kernel. */
static void make_moments(struct worker *worker)
{
    const size_t words = shard_words(0);
    const CUstream stream = worker->streams[1];
    for (int i = 0; i < 2; i++)
        OK(cuMemAllocAsync(&worker->moments[i], 4 * words, stream));
    OK(cuMemsetD32Async(worker->moments[0], 0, words, stream));
    int count = (int)words;
    float value = 0.5F;
    launch(torch, TORCH_NAME(TORCH_FILL), (void *[]){&count, &value, &worker->moments[1]}, stream);
}

static void check_moments(struct worker *worker, uint32_t added)
{
    const size_t words = shard_words(0);
    const CUstream stream = worker->streams[1];
    uint32_t *wanted = malloc(4 * words), half;
    memcpy(&half, &(float){0.5F}, 4);
    for (int i = 0; i < 2; i++) {
        for (size_t k = 0; k < words; k++)
            wanted[k] = i == 0 ? added : half;
        read_back(worker, "a moment", worker->moments[i], wanted, 4 * words, stream);
        OK(cuMemFreeAsync(worker->moments[i], stream));
    }
    free(wanted);
}

/* A bias that comes from the heap. */
static void load_bias(struct worker *worker, unsigned char *bytes, size_t count)
{
    memset(bytes, (int)(draw(worker) & 0xff), count);
    worker->bias = allocate(count);
    OK(cuMemcpyHtoD(worker->bias, bytes, count));
}

static void step(struct worker *worker, uint32_t *added)
{
    for (int i = 0; i < TENSORS; i++) {
        const CUstream stream = worker->streams[draw(worker) % STREAMS];
        OK(cuStreamWaitEvent(stream, worker->event, 0));
        if (i == 0 && worker->round % 4 == 1)
            memory_graph(worker, i, stream);
        else
            add(worker->shards[i], worker->expected[i], shard_words(i), draw(worker), stream);
        OK(cuEventRecord(worker->event, stream));
    }
    uint32_t *unused = malloc(4 * shard_words(0)), value = draw(worker) % 1000;
    memset(unused, 0, 4 * shard_words(0));
    OK(cuStreamWaitEvent(worker->streams[1], worker->event, 0));
    add(worker->moments[0], unused, shard_words(0), value, worker->streams[1]);
    OK(cuEventRecord(worker->event, worker->streams[1]));
    *added += value;
    free(unused);
}

/* No worker allocates for so long that the shim settles, once in each epoch. */
static void settle(struct worker *worker)
{
    if (worker->round % EPOCH != EPOCH - 1)
        return;
    pthread_barrier_wait(&barrier);
    usleep(IDLE_US);
    pthread_barrier_wait(&barrier);
}

/* The device's bytes of the shards become part of the saved bytes. */
static void collect(struct worker *worker)
{
    for (int i = 0; i < TENSORS; i++) {
        OK(cuStreamWaitEvent(worker->streams[2], worker->event, 0));
        read_back(worker, "a shard", worker->shards[i], worker->expected[i], 4 * shard_words(i),
                  worker->streams[2]);
        for (size_t k = 0; k < shard_words(i); k++)
            *truth_of(worker, i, k) = worker->expected[i][k];
    }
}

/* One tensor stays on the device, deferred, while its file is replaced. */
static void save(struct worker *worker)
{
    const size_t bytes = 4 * words_of(1);
    const struct mapped file = checkpoint_map(worker->path);
    const unsigned char *from = file.at + file.data + 4 * place_of(1);
    const CUdeviceptr held = allocate(bytes);
    unsigned char *before = malloc(bytes);
    memcpy(before, from, bytes);
    OK(cuMemcpyHtoD(held, from, bytes));
    checkpoint_unmap(file);
    checkpoint_save(worker);
    read_back(worker, "what was loaded before the file was replaced", held, before, bytes,
              worker->streams[0]);
    OK(cuMemFree(held));
    free(before);
}

static void make_round(struct worker *worker)
{
    const size_t bias_bytes = 96 << 10;
    unsigned char *bias = malloc(bias_bytes);
    uint32_t added = 0;
    load(worker);
    make_moments(worker);
    load_bias(worker, bias, bias_bytes);
    OK(cuEventRecord(worker->event, worker->streams[1]));
    step(worker, &added);
    settle(worker);
    for (unsigned steps = draw(worker) % 3; steps > 0; steps--)
        step(worker, &added);
    collect(worker);
    check_moments(worker, added);
    read_back(worker, "the bias", worker->bias, bias, bias_bytes, worker->streams[0]);
    save(worker);
    memory_small(worker);
    memory_mapped(worker);
    memory_reported(worker);
    if (worker->round % 4 == 3)
        torch_round(worker);
    if (worker->round % 16 == 5)
        memory_module(worker);
    if (worker->round % 16 == 6)
        memory_thread(worker);
    if (worker->round % 64 == 7)
        memory_plan(worker);
    OK(cuMemFree(worker->bias));
    for (int i = 0; i < TENSORS; i++)
        OK(cuMemFree(worker->shards[i]));
    free(bias);
    worker->round++;
}

/* --- workers */

/* Between two epochs: waits while it is looked at from outside. */
static void answer(struct worker *worker)
{
    struct pollfd input = {.fd = 0, .events = POLLIN};
    char byte;
    if (poll(&input, 1, 0) <= 0)
        return;
    if (read(0, &byte, 1) != 1) {
        is_over = true;
        return;
    }
    printf("rounds %lu bytes %llu\n", WORKERS * worker->round, (unsigned long long)compared_bytes);
    fflush(stdout);
    if (read(0, &byte, 1) != 1)
        is_over = true;
}

static void begin(struct worker *worker)
{
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&worker->streams[0], CU_STREAM_DEFAULT));
    for (int i = 1; i < STREAMS; i++)
        OK(cuStreamCreate(&worker->streams[i], CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&worker->event, CU_EVENT_DISABLE_TIMING));
    OK(cuMemHostAlloc(&worker->pinned, 4 * checkpoint_words(), 0));
    for (int i = 0; i < TENSORS; i++)
        worker->expected[i] = malloc(4 * shard_words(i));
    worker->random = worker->index + 1;
    checkpoint_make(worker);
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    begin(worker);
    do {
        for (int i = 0; i < EPOCH; i++)
            make_round(worker);
        OK(cuStreamSynchronize(worker->streams[1]));
        pthread_barrier_wait(&barrier);
        if (worker->index == 0)
            answer(worker);
        pthread_barrier_wait(&barrier);
    } while (!is_over);
    return NULL;
}

/* Once for all: what one read gives. */
static void read_torch_file(struct worker *worker, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        fail("%s cannot be opened", path);
    worker->torch_bytes = malloc(1 << 20);
    worker->torch_count = fread(worker->torch_bytes, 1, 1 << 20, file);
    fclose(file);
}

int main(int count, char **arguments)
{
    static struct worker workers[WORKERS];
    pthread_t threads[WORKERS];
    if (count < 4 || count > 5)
        fail("usage: training FOLDER KERNELS TORCH_KERNELS [TORCH_FILE]");
    folder = arguments[1];
    kernels_path = arguments[2];
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoad(&kernels, kernels_path));
    OK(cuModuleLoad(&torch, arguments[3]));
    pthread_barrier_init(&barrier, NULL, WORKERS);
    for (unsigned i = 0; i < WORKERS; i++) {
        workers[i].index = i;
        if (count == 5)
            read_torch_file(&workers[i], arguments[4]);
        pthread_create(&threads[i], NULL, work, &workers[i]);
    }
    for (unsigned i = 0; i < WORKERS; i++)
        pthread_join(threads[i], NULL);
    printf("rounds %lu bytes %llu\n", WORKERS * workers[0].round,
           (unsigned long long)compared_bytes);
    return 0;
}
