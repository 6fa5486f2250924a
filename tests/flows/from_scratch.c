/* SPDX-License-Identifier: Apache-2.0 */
/*
 * from_scratch KERNELS RANK RANKS [DIM LAYERS VOCAB]: one rank of a program that initialises a model of
 * the shape of Llama 3 8B, scaled, on the device and then shards it by rows. Every parameter is
 * allocated whole, initialised by kernels over the whole tensor, this rank's rows are copied into an
 * allocation of their own, and the whole is freed; so values do not depend on the number of
 * ranks. A plain CUDA program: it knows nothing of the shim.
 *
 * Prints the rank's bytes, the largest shard's bytes, and a hash of every shard.
 */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/kernels/torch_kernels.h"

enum { MAX_TENSORS = 1024, THREADS = 256, MAX_GRID = 1056 };

static void check(CUresult result, const char *call, int line)
{
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "from_scratch: line %d: %s is %d\n", line, call, (int)result);
        exit(1);
    }
}
#define OK(call) check(call, #call, __LINE__)

static CUmodule module;
static CUstream stream;
static uint64_t philox_offset;

static CUfunction function(const char *name)
{
    CUfunction found;
    OK(cuModuleGetFunction(&found, module, name));
    return found;
}

/* The grid that the framework takes: no more blocks than the device runs at once. */
static void launch(const char *name, uint64_t count, void **params)
{
    const uint64_t blocks = (count + THREADS - 1) / THREADS;
    const unsigned grid = (unsigned)(blocks < MAX_GRID ? blocks : MAX_GRID);
    OK(cuLaunchKernel(function(name), grid, 1, 1, THREADS, 1, 1, 0, stream, params, NULL));
}

static void draw(const char *name, CUdeviceptr tensor, int64_t count, float low, float high)
{
    struct torch_philox philox = {.seed.value = 1234, .offset.value = philox_offset};
    struct torch_transform transform = {.out = tensor, .low = low, .high = high};
    char dist = 0;
    void *params[] = {&count, &philox, &dist, &transform};
    launch(name, (uint64_t)count, params);
    philox_offset += 4;
}

static void in_place(const char *name, CUdeviceptr tensor, int64_t count, float operand)
{
    int numel = (int)count;
    CUdeviceptr data[2] = {tensor, tensor};
    void *params[] = {&numel, &operand, data};
    launch(name, (uint64_t)count, params);
}

static void clamp(CUdeviceptr tensor, int64_t count, float low, float high)
{
    int numel = (int)count;
    struct torch_clamp limits = {.data = {tensor, tensor}, .low = low, .high = high};
    void *params[] = {&numel, &limits};
    launch(TORCH_NAME(TORCH_CLAMP), (uint64_t)count, params);
}

static void init_normal(CUdeviceptr tensor, int64_t count)
{
    draw(TORCH_NAME(TORCH_NORMAL), tensor, count, 0.0F, 0.02F);
}

static void init_uniform(CUdeviceptr tensor, int64_t count)
{
    draw(TORCH_NAME(TORCH_UNIFORM), tensor, count, -0.05F, 0.05F);
    in_place(TORCH_NAME(TORCH_MUL), tensor, count, 0.70710678F);
}

/* trunc_normal_ of older releases: a uniform draw and a chain of elementwise kernels. */
static void init_truncated(CUdeviceptr tensor, int64_t count)
{
    draw(TORCH_NAME(TORCH_UNIFORM), tensor, count, -1.0F, 1.0F);
    in_place(TORCH_NAME(TORCH_MUL), tensor, count, 0.028284271F);
    in_place(TORCH_NAME(TORCH_ADD), tensor, count, 0.001F);
    clamp(tensor, count, -0.02F, 0.02F);
}

static void init_ones(CUdeviceptr tensor, int64_t count)
{
    int numel = (int)count;
    float value = 1.0F;
    void *params[] = {&numel, &value, &tensor};
    launch(TORCH_NAME(TORCH_FILL), (uint64_t)count, params);
}

typedef void init(CUdeviceptr tensor, int64_t count);

struct shard {
    char name[48];
    CUdeviceptr address; /* 0: this rank has no rows of it */
    size_t bytes;
};
static struct shard shards[MAX_TENSORS];
static int shard_count;
static int64_t rank, ranks;

/* torch.chunk's rule: equal parts, rounded up; the last ones are shorter or empty. */
static void shard_rows(struct shard *shard, CUdeviceptr whole, int64_t rows, int64_t columns)
{
    const int64_t part = (rows + ranks - 1) / ranks;
    const int64_t begin = rank * part < rows ? rank * part : rows;
    const int64_t end = begin + part < rows ? begin + part : rows;
    shard->bytes = (size_t)((end - begin) * columns) * sizeof(float);
    if (shard->bytes == 0)
        return;
    OK(cuMemAlloc(&shard->address, shard->bytes));
    OK(cuMemcpyDtoDAsync(shard->address, whole + (size_t)(begin * columns) * sizeof(float),
                         shard->bytes, stream));
}

static void parameter(const char *name, int layer, int64_t rows, int64_t columns, init *initialise)
{
    CUdeviceptr whole;
    struct shard *shard = &shards[shard_count++];
    if (shard_count == MAX_TENSORS)
        exit(2);
    snprintf(shard->name, sizeof(shard->name), "layers.%d.%s", layer, name);
    OK(cuMemAlloc(&whole, (size_t)(rows * columns) * sizeof(float)));
    initialise(whole, rows * columns);
    shard_rows(shard, whole, rows, columns);
    OK(cuMemFree(whole));
}

static uint64_t hash_of(const unsigned char *bytes, size_t count)
{
    uint64_t hash = UINT64_C(1469598103934665603); /* FNV-1a over words */
    for (size_t i = 0; i + 8 <= count; i += 8) {
        uint64_t word;
        memcpy(&word, bytes + i, sizeof(word));
        hash = (hash ^ word) * UINT64_C(1099511628211);
        hash ^= hash >> 29;
    }
    return hash;
}

/* Work of another kind, as a rotary embedding's table: it is run, whatever is deferred. */
static void rotary_table(int columns)
{
    CUdeviceptr table, sums;
    float host[2];
    int rows = 2;
    struct torch_range range = {0.0F, 0.5F};
    int count = rows * columns;
    OK(cuMemAlloc(&table, (size_t)count * sizeof(float)));
    OK(cuMemAlloc(&sums, sizeof(host)));
    void *params[] = {&count, &range, &table};
    launch(TORCH_NAME(TORCH_ARANGE), (uint64_t)count, params);
    void *sum_params[] = {&sums, &table, &rows, &columns};
    launch(TORCH_NAME(TORCH_ROW_SUM), (uint64_t)rows, sum_params);
    OK(cuMemcpyDtoHAsync(host, sums, sizeof(host), stream));
    OK(cuStreamSynchronize(stream));
    printf("rotary %.1f %.1f\n", (double)host[0], (double)host[1]);
    OK(cuMemFree(table));
    OK(cuMemFree(sums));
}

static void build(int64_t dim, int layers, int64_t vocab)
{
    const int64_t hidden = dim * 7 / 2;
    const int64_t kv = dim / 4; /* 8 of 32 heads */
    parameter("tok_embeddings", -1, vocab, dim, init_normal);
    for (int layer = 0; layer < layers; layer++) {
        parameter("attention_norm", layer, 1, dim, init_ones);
        parameter("wq", layer, dim, dim, init_truncated);
        parameter("wk", layer, kv, dim, init_truncated);
        parameter("wv", layer, kv, dim, init_truncated);
        parameter("wo", layer, dim, dim, init_truncated);
        parameter("ffn_norm", layer, 1, dim, init_ones);
        parameter("w1", layer, hidden, dim, init_uniform);
        parameter("w2", layer, dim, hidden, init_uniform);
        parameter("w3", layer, hidden, dim, init_normal);
        rotary_table(128);
    }
    parameter("norm", layers, 1, dim, init_ones);
    parameter("output", layers, vocab, dim, init_truncated);
}

static void report(void)
{
    size_t total = 0;
    size_t largest = 0;
    for (int i = 0; i < shard_count; i++) {
        total += shards[i].bytes;
        if (shards[i].bytes > largest)
            largest = shards[i].bytes;
    }
    printf("bytes %zu largest %zu\n", total, largest);
    unsigned char *host = malloc(largest + 1);
    for (int i = 0; i < shard_count; i++) {
        if (shards[i].bytes > 0)
            OK(cuMemcpyDtoH(host, shards[i].address, shards[i].bytes));
        printf("%s %016llx\n", shards[i].name, (unsigned long long)hash_of(host, shards[i].bytes));
    }
    for (int i = 0; i < shard_count; i++) {
        if (shards[i].bytes > 0)
            OK(cuMemFree(shards[i].address));
    }
    free(host);
}

int main(int count, char **arguments)
{
    CUcontext context;
    if (count != 4 && count != 7) {
        fprintf(stderr, "usage: from_scratch KERNELS RANK RANKS [DIM LAYERS VOCAB]\n");
        return 2;
    }
    rank = atoll(arguments[2]);
    ranks = atoll(arguments[3]);
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoad(&module, arguments[1]));
    if (count == 7)
        build(atoll(arguments[4]), atoi(arguments[5]), atoll(arguments[6]));
    else
        build(1024, 4, 16032);
    report();
    return 0;
}
