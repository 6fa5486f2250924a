/* SPDX-License-Identifier: Apache-2.0 */
/*
 * from_scratch --kernels FILE [--rank R --ranks N] [--dim D] [--layers L] [--vocab V] [--end]
 *              [--look]
 *
 * One rank of a program that initialises a model of the shape of Llama 3 8B, scaled, on the device
 * and then shards it by rows. Every parameter is allocated whole, initialised by kernels over the
 * whole tensor, this rank's rows are copied into an allocation of their own, and the whole is
 * freed; so values do not depend on the number of ranks. A plain CUDA program: it knows nothing of
 * the shim.
 *
 * With --look the model is made whole before it is sharded, and a kernel sums up a multiple of each
 * parameter when it has been drawn, as trunc_normal_ looks for values out of bounds.
 *
 * Prints the shards' bytes, the largest one's, and with --end reads every shard back and prints a
 * hash of each.
 */
#include <cuda.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/kernels/torch_kernels.h"

enum { MAX_TENSORS = 1024, MAX_GRID = 1056 };

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

static void launch(const char *name, uint64_t grid, unsigned block, void **params)
{
    OK(cuLaunchKernel(function(name), (unsigned)grid, 1, 1, block, 1, 1, 0, stream, params, NULL));
}

static uint64_t divide_up(uint64_t count, uint64_t by)
{
    return (count + by - 1) / by;
}

/* An elementwise loop: each thread of the framework's kernels does a few elements. */
static void launch_over(const char *name, int64_t count, unsigned block, unsigned work,
                        void **params)
{
    launch(name, divide_up((uint64_t)count, (uint64_t)block * work), block, params);
}

/* Random kernels have no more blocks than the device runs at once, and loop over the rest. */
static void draw(const char *name, CUdeviceptr tensor, int64_t count, float low, float high)
{
    enum { BLOCK = 256 };
    const uint64_t blocks = divide_up((uint64_t)count, BLOCK);
    const uint64_t grid = blocks < MAX_GRID ? blocks : MAX_GRID;
    struct torch_philox philox = {.seed.value = 1234, .offset.value = philox_offset};
    struct torch_transform transform = {.out = tensor, .low = low, .high = high};
    char dist = 0;
    void *params[] = {&count, &philox, &dist, &transform};
    launch(name, grid, BLOCK, params);
    philox_offset += 4 * divide_up((uint64_t)count, 4 * BLOCK * grid);
}

static void in_place(const char *name, CUdeviceptr tensor, int64_t count, float operand)
{
    int numel = (int)count;
    CUdeviceptr data[2] = {tensor, tensor};
    void *params[] = {&numel, &operand, data};
    launch_over(name, count, 128, 8, params);
}

static void clamp(CUdeviceptr tensor, int64_t count, float low, float high)
{
    int numel = (int)count;
    struct torch_limits limits = {low, high};
    CUdeviceptr data[2] = {tensor, tensor};
    void *params[] = {&numel, &limits, data};
    launch_over(TORCH_NAME(TORCH_CLAMP_DENSE), count, 128, 8, params);
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
    launch_over(TORCH_NAME(TORCH_FILL), count, 128, 8, params);
}

typedef void init(CUdeviceptr tensor, int64_t count);

struct shard {
    char name[48];
    CUdeviceptr address; /* 0: this rank has no rows of it */
    size_t bytes;
};
static struct shard shards[MAX_TENSORS];
static int shard_count;
static int64_t rank, ranks = 1;

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

static struct shard *add_shard(const char *name, int layer)
{
    if (shard_count == MAX_TENSORS) {
        fprintf(stderr, "from_scratch: more than %d tensors\n", MAX_TENSORS);
        exit(1);
    }
    struct shard *shard = &shards[shard_count++];
    snprintf(shard->name, sizeof(shard->name), "layers.%d.%s", layer, name);
    return shard;
}

static void parameter(const char *name, int layer, int64_t rows, int64_t columns, init *initialise)
{
    CUdeviceptr whole;
    struct shard *shard = add_shard(name, layer);
    OK(cuMemAlloc(&whole, (size_t)(rows * columns) * sizeof(float)));
    initialise(whole, rows * columns);
    shard_rows(shard, whole, rows, columns);
    OK(cuMemFree(whole));
}

/* FNV-1a over the elements' bits. */
static uint64_t hash_of(const unsigned char *bytes, size_t count)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t i = 0; i + sizeof(uint32_t) <= count; i += sizeof(uint32_t)) {
        uint32_t word;
        memcpy(&word, bytes + i, sizeof(word));
        hash = (hash ^ word) * UINT64_C(1099511628211);
    }
    return hash;
}

/* The program reads the sum of the first row. */
static float sum_rows(CUdeviceptr tensor, int rows, int columns)
{
    CUdeviceptr sums;
    float first;
    OK(cuMemAlloc(&sums, (size_t)rows * sizeof(float)));
    void *params[] = {&sums, &tensor, &rows, &columns};
    launch(TORCH_NAME(TORCH_ROW_SUM), (uint64_t)rows, 128, params);
    OK(cuMemcpyDtoHAsync(&first, sums, sizeof(first), stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemFree(sums));
    return first;
}

static void look_at(CUdeviceptr whole, int64_t rows, int64_t columns)
{
    CUdeviceptr multiple;
    int numel = (int)(rows * columns);
    float factor = 50.0F;
    OK(cuMemAlloc(&multiple, (size_t)numel * sizeof(float)));
    CUdeviceptr data[2] = {multiple, whole};
    void *params[] = {&numel, &factor, data};
    launch_over(TORCH_NAME(TORCH_MUL), numel, 128, 8, params);
    printf("looked %.6f\n", (double)sum_rows(multiple, (int)rows, (int)columns));
    OK(cuMemFree(multiple));
}

static void build_looking(int64_t dim, int layers)
{
    CUdeviceptr wholes[MAX_TENSORS];
    for (int layer = 0; layer < layers; layer++) {
        OK(cuMemAlloc(&wholes[layer], (size_t)(4 * dim * dim) * sizeof(float)));
        init_normal(wholes[layer], 4 * dim * dim);
        look_at(wholes[layer], 4 * dim, dim);
    }
    for (int layer = 0; layer < layers; layer++) {
        shard_rows(add_shard("w", layer), wholes[layer], 4 * dim, dim);
        OK(cuMemFree(wholes[layer]));
    }
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
    launch_over(TORCH_NAME(TORCH_ARANGE), count, 64, 1, params);
    void *sum_params[] = {&sums, &table, &rows, &columns};
    launch(TORCH_NAME(TORCH_ROW_SUM), (uint64_t)rows, 128, sum_params);
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
        parameter("attention_norm", layer, dim, 1, init_ones);
        parameter("wq", layer, dim, dim, init_truncated);
        parameter("wk", layer, kv, dim, init_truncated);
        parameter("wv", layer, kv, dim, init_truncated);
        parameter("wo", layer, dim, dim, init_truncated);
        parameter("ffn_norm", layer, dim, 1, init_ones);
        parameter("w1", layer, hidden, dim, init_uniform);
        parameter("w2", layer, dim, hidden, init_uniform);
        parameter("w3", layer, hidden, dim, init_normal);
        rotary_table(128);
    }
    parameter("norm", layers, dim, 1, init_ones);
    parameter("output", layers, vocab, dim, init_truncated);
}

/* Returns the largest shard's bytes. */
static size_t report_sizes(void)
{
    size_t total = 0;
    size_t largest = 0;
    for (int i = 0; i < shard_count; i++) {
        total += shards[i].bytes;
        if (shards[i].bytes > largest)
            largest = shards[i].bytes;
    }
    printf("bytes %zu largest %zu\n", total, largest);
    return largest;
}

static void report_values(size_t largest)
{
    unsigned char *host = malloc(largest + 1);
    if (host == NULL)
        exit(1);
    for (int i = 0; i < shard_count; i++) {
        if (shards[i].bytes > 0)
            OK(cuMemcpyDtoH(host, shards[i].address, shards[i].bytes));
        printf("%s %016llx\n", shards[i].name, (unsigned long long)hash_of(host, shards[i].bytes));
    }
    free(host);
}

static void free_shards(void)
{
    for (int i = 0; i < shard_count; i++) {
        if (shards[i].bytes > 0)
            OK(cuMemFree(shards[i].address));
    }
}

struct settings {
    const char *kernels;
    int64_t dim, layers, vocab;
    bool reads_back, looks;
};

static bool parse(int count, char **arguments, struct settings *settings)
{
    static const struct option options[] = {{"kernels", required_argument, NULL, 'k'},
                                            {"rank", required_argument, NULL, 'r'},
                                            {"ranks", required_argument, NULL, 'n'},
                                            {"dim", required_argument, NULL, 'd'},
                                            {"layers", required_argument, NULL, 'l'},
                                            {"vocab", required_argument, NULL, 'v'},
                                            {"end", no_argument, NULL, 'e'},
                                            {"look", no_argument, NULL, 'o'},
                                            {NULL, 0, NULL, 0}};
    int64_t *const numbers[] = {&rank, &ranks, &settings->dim, &settings->layers, &settings->vocab};
    static const char letters[] = "rndlv";
    for (int letter; (letter = getopt_long(count, arguments, "", options, NULL)) != -1;) {
        const char *known = strchr(letters, letter);
        if (known != NULL)
            *numbers[known - letters] = atoll(optarg);
        else if (letter == 'k')
            settings->kernels = optarg;
        else if (letter == 'e')
            settings->reads_back = true;
        else if (letter == 'o')
            settings->looks = true;
        else
            return false;
    }
    return optind == count && settings->kernels != NULL && ranks > 0 && rank >= 0 && rank < ranks &&
           settings->dim > 0 && settings->dim % 4 == 0 && settings->layers >= 0 &&
           settings->layers < MAX_TENSORS && settings->vocab > 0;
}

int main(int count, char **arguments)
{
    /* A third of a GiB, in tensors of which an eighth is still half a granule. */
    struct settings settings = {.dim = 1024, .layers = 4, .vocab = 16032};
    CUcontext context;
    if (!parse(count, arguments, &settings)) {
        fprintf(stderr, "usage: from_scratch --kernels FILE [--rank R --ranks N] [--dim D] "
                        "[--layers L] [--vocab V] [--end] [--look]\n");
        return 2;
    }
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoad(&module, settings.kernels));
    if (settings.looks)
        build_looking(settings.dim, (int)settings.layers);
    else
        build(settings.dim, (int)settings.layers, settings.vocab);
    const size_t largest = report_sizes();
    if (settings.reads_back)
        report_values(largest);
    free_shards();
    OK(cuModuleUnload(module));
    return 0;
}
