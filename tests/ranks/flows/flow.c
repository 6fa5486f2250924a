/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/ranks/flows/cache.h"
#include "tests/ranks/flows/flow.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shim/metashard.h"
#include "tests/demo/safetensors.h"
#include "tools/simcuda/kernels/torch_kernels.h"

enum { ELEMENT = sizeof(float), POLLS = 60000, NAME_BYTES = 128 };

struct flow flow = {.bucket_bytes = (size_t)250 << 20, .replicas = 1};

static struct {
    const char *id, *model, *out, *kernels;
    bool names, late, unreported;
    size_t cached;
} options;

static CUfunction copy_kernel, fill_kernel;

struct observed {
    char name[NAME_BYTES];
    struct region region;
};
static struct observed *observed;
static size_t observed_count;

static _Noreturn void fail(const char *what, const char *which)
{
    fprintf(stderr, "flow: rank %d: %s: %s\n", flow.rank, what, which);
    exit(1);
}

void flow_check(int result, const char *call, const char *file, int line)
{
    if (result != 0) {
        fprintf(stderr, "%s:%d: rank %d: %s is %d\n", file, line, flow.rank, call, result);
        exit(1);
    }
}

static void *grown(void *array, size_t count, size_t size)
{
    void *memory = realloc(array, (count + 1) * size);
    if (memory == NULL)
        fail("no memory", "realloc");
    return memory;
}

/* --- start */

enum option_letter {
    RANK = 1,
    RANKS,
    ID,
    MODEL,
    OUT,
    KERNELS,
    CAT,
    BUCKET,
    KEEP,
    COLUMNS,
    COPIES,
    PER_UNIT,
    LATE,
    CACHED,
    UNREPORTED,
    REPLICAS,
    NAMES
};

static const struct option option_rows[] = {
    {"rank", required_argument, NULL, RANK},
    {"ranks", required_argument, NULL, RANKS},
    {"id", required_argument, NULL, ID},
    {"model", required_argument, NULL, MODEL},
    {"out", required_argument, NULL, OUT},
    {"kernels", required_argument, NULL, KERNELS},
    {"cat", required_argument, NULL, CAT},
    {"bucket-bytes", required_argument, NULL, BUCKET},
    {"keep", no_argument, NULL, KEEP},
    {"columns", no_argument, NULL, COLUMNS},
    {"copies", no_argument, NULL, COPIES},
    {"per-unit", no_argument, NULL, PER_UNIT},
    {"late", no_argument, NULL, LATE},
    {"replicas", required_argument, NULL, REPLICAS},
    {"names", no_argument, NULL, NAMES},
    {"cached", required_argument, NULL, CACHED},
    {"unreported", no_argument, NULL, UNREPORTED},
    {NULL, 0, NULL, 0},
};

static void read_options(int count, char **arguments)
{
    bool *const flags[] = {[KEEP] = &flow.keep,
                           [COLUMNS] = &flow.columns,
                           [COPIES] = &flow.copies,
                           [PER_UNIT] = &flow.per_unit,
                           [LATE] = &options.late,
                           [NAMES] = &options.names,
                           [UNREPORTED] = &options.unreported};
    int *const numbers[] = {
        [RANK] = &flow.rank, [RANKS] = &flow.ranks, [REPLICAS] = &flow.replicas};
    const char **const texts[] = {[ID] = &options.id,
                                  [MODEL] = &options.model,
                                  [OUT] = &options.out,
                                  [KERNELS] = &options.kernels,
                                  [CAT] = &flow.cat};
    for (int letter; (letter = getopt_long(count, arguments, "", option_rows, NULL)) != -1;) {
        if (letter == '?')
            exit(2);
        if (letter == BUCKET || letter == CACHED)
            *(letter == BUCKET ? &flow.bucket_bytes : &options.cached) = strtoull(optarg, NULL, 10);
        else if (optarg == NULL)
            *flags[letter] = true;
        else if (letter == RANK || letter == RANKS || letter == REPLICAS)
            *numbers[letter] = atoi(optarg);
        else
            *texts[letter] = optarg;
    }
    if (optind != count || options.id == NULL || options.model == NULL || flow.rank < 0 ||
        flow.rank >= flow.ranks || flow.replicas < 1 || flow.ranks % flow.replicas != 0) {
        fprintf(stderr, "flow: expected --rank R --ranks N --id FILE --model FOLDER\n");
        exit(2);
    }
}

static void add_parameter(char *line)
{
    struct parameter parameter = {.shape = {1, 1}};
    char *rest;
    parameter.name = strdup(strtok_r(line, " \n", &rest));
    for (char *word; (word = strtok_r(NULL, " \n", &rest)) != NULL && parameter.dims < 2;)
        parameter.shape[parameter.dims++] = strtoull(word, NULL, 10);
    parameter.bytes = parameter.shape[0] * parameter.shape[1] * ELEMENT;
    flow.parameters = grown(flow.parameters, flow.count, sizeof(*flow.parameters));
    flow.parameters[flow.count++] = parameter;
}

/* Reads the names and shapes of the model, which every rank knows. */
static void read_shapes(void)
{
    char path[4096], *line = NULL;
    size_t space = 0;
    snprintf(path, sizeof(path), "%s/tensors.txt", options.model);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        fail("cannot be opened", path);
    while (getline(&line, &space, file) > 1)
        add_parameter(line);
    free(line);
    fclose(file);
}

static void map_values(void)
{
    struct checkpoint checkpoint;
    checkpoint_open(&checkpoint, options.model);
    for (size_t i = 0; i < flow.count; i++) {
        struct parameter *parameter = &flow.parameters[i];
        for (size_t j = 0; j < checkpoint.count; j++) {
            const struct tensor *tensor = &checkpoint.tensors[j];
            if (strcmp(tensor->name, parameter->name) == 0 &&
                tensor->rows * tensor->row_bytes == parameter->bytes)
                parameter->data = tensor->data;
        }
        if (parameter->data == NULL)
            fail("not in the checkpoint", parameter->name);
    }
}

/* As a launcher's store: rank 0 publishes, the others wait. */
static void exchange_id(ncclUniqueId *id)
{
    char path[4096];
    if (flow.rank == 0) {
        snprintf(path, sizeof(path), "%s.new", options.id);
        NCCL(ncclGetUniqueId(id));
        FILE *file = fopen(path, "w");
        if (file == NULL || fwrite(id, sizeof(*id), 1, file) != 1 || fclose(file) != 0 ||
            rename(path, options.id) != 0)
            fail("cannot be written", options.id);
        return;
    }
    FILE *file = NULL;
    for (int i = 0; i < POLLS && file == NULL; i++) {
        const struct timespec pause = {0, 1000000};
        file = fopen(options.id, "r");
        if (file == NULL)
            nanosleep(&pause, NULL);
    }
    if (file == NULL || fread(id, sizeof(*id), 1, file) != 1)
        fail("no id of NCCL", options.id);
    fclose(file);
}

static void load_kernels(void)
{
    CUmodule module;
    if (options.kernels == NULL)
        return;
    CU(cuModuleLoad(&module, options.kernels));
    CU(cuModuleGetFunction(&copy_kernel, module, TORCH_NAME(TORCH_COPY)));
    CU(cuModuleGetFunction(&fill_kernel, module, TORCH_NAME(TORCH_FILL)));
}

void flow_open(int count, char **arguments)
{
    CUcontext context;
    ncclUniqueId id;
    read_options(count, arguments);
    read_shapes();
    cache_start(options.cached, !options.unreported);
    CU(cuInit(0));
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
    CU(cuStreamCreate(&flow.transfers, CU_STREAM_NON_BLOCKING));
    load_kernels();
    if (flow.rank == 0)
        map_values();
    exchange_id(&id);
    NCCL(ncclCommInitRank(&flow.world, flow.ranks, id, flow.rank));
}

/* --- memory */

CUdeviceptr flow_allocate(size_t bytes)
{
    CUdeviceptr address = 0;
    if (bytes > 0 && options.cached == 0)
        CU(cuMemAlloc(&address, bytes));
    else if (bytes > 0 && !cache_allocate(bytes, &address))
        fail("no memory", "cache");
    return address;
}

static struct {
    CUdeviceptr *addresses;
    size_t count;
} late;

void flow_free(CUdeviceptr address)
{
    if (address == 0)
        return;
    if (options.cached > 0) {
        const size_t bytes = cache_free(address);
        if (options.names && metashard_unname != NULL)
            metashard_unname(address, bytes);
        return;
    }
    if (!options.late) {
        CU(cuMemFree(address));
        return;
    }
    late.addresses = grown(late.addresses, late.count, sizeof(*late.addresses));
    late.addresses[late.count++] = address;
}

static void free_late(void)
{
    while (late.count > 0)
        CU(cuMemFree(late.addresses[--late.count]));
    free(late.addresses);
}

void flow_zero(CUdeviceptr address, size_t bytes)
{
    if (bytes > 0)
        CU(cuMemsetD8Async(address, 0, bytes, flow.stream));
}

void flow_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    if (bytes > 0 && to != from)
        CU(cuMemcpyDtoDAsync(to, from, bytes, flow.stream));
}

static void launch(CUfunction function, size_t count, void **params)
{
    enum { BLOCK = 128, WORK = 4 };
    const size_t grid = (count + BLOCK * WORK - 1) / (BLOCK * WORK);
    CU(cuLaunchKernel(function, (unsigned)grid, 1, 1, BLOCK, 1, 1, 0, flow.stream, params, NULL));
}

/* As copy_ of tensors of two dimensions, one of which is not dense. */
static void copy_by_kernel(const struct region *to, const struct region *from)
{
    int count = (int)(from->rows * (from->row_bytes / ELEMENT));
    struct torch_copy copy = {
        .data = {to->address, from->address},
        .offsets = {.dims = 2,
                    .sizes = {{.divisor = (uint32_t)(from->row_bytes / ELEMENT)},
                              {.divisor = (uint32_t)from->rows}},
                    .strides = {{ELEMENT, ELEMENT}, {(uint32_t)to->pitch, (uint32_t)from->pitch}}}};
    void *params[] = {&count, &copy};
    launch(copy_kernel, (size_t)count, params);
}

static bool is_dense(const struct region *region)
{
    return region->rows == 1 || region->pitch == region->row_bytes;
}

void flow_copy_region(const struct region *to, const struct region *from)
{
    const struct region target = {to->address, from->rows, from->row_bytes, to->pitch};
    if (flow_region_bytes(from) == 0)
        return;
    if (is_dense(from) && is_dense(&target)) {
        flow_copy(to->address, from->address, flow_region_bytes(from));
        return;
    }
    if (copy_kernel != NULL) {
        copy_by_kernel(&target, from);
        return;
    }
    const CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                .srcDevice = from->address,
                                .srcPitch = from->pitch,
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = to->address,
                                .dstPitch = to->pitch,
                                .WidthInBytes = from->row_bytes,
                                .Height = from->rows};
    CU(cuMemcpy2DAsync(&copy, flow.stream));
}

/* --- tensors */

static void name_tensor(const struct parameter *parameter, CUdeviceptr address)
{
    /* Fails for what is too small to be deferred, which needs no name. */
    if (options.names && flow.rank != 0 && metashard_name != NULL)
        metashard_name(address, parameter->bytes, parameter->name, "F32", parameter->shape,
                       parameter->dims);
}

CUdeviceptr flow_whole(const struct parameter *parameter)
{
    const CUdeviceptr address = flow_allocate(parameter->bytes);
    name_tensor(parameter, address);
    if (parameter->data != NULL) {
        CU(cuMemcpyHtoDAsync(address, parameter->data, parameter->bytes, flow.stream));
        CU(cuStreamSynchronize(flow.stream));
    }
    return address;
}

CUdeviceptr flow_initialised(const struct parameter *parameter)
{
    CUdeviceptr address = flow_whole(parameter);
    int count = (int)(parameter->bytes / ELEMENT);
    float value = 1.0F + (float)flow.rank;
    void *params[] = {&count, &value, &address};
    if (parameter->data == NULL && fill_kernel != NULL)
        launch(fill_kernel, (size_t)count, params);
    return address;
}

void flow_broadcast(CUdeviceptr address, size_t bytes, int root, ncclComm_t comm, CUstream stream)
{
    NCCL(ncclBcast((void *)address, bytes / ELEMENT, ncclFloat, root, comm, (cudaStream_t)stream));
}

uint64_t flow_chunk_length(uint64_t length, int ways)
{
    return (length + (uint64_t)ways - 1) / (uint64_t)ways;
}

struct range flow_chunk(uint64_t length, int index, int ways)
{
    const uint64_t chunk = flow_chunk_length(length, ways);
    const uint64_t begin = (uint64_t)index * chunk;
    const uint64_t end = begin + chunk;
    return (struct range){begin < length ? begin : length, end < length ? end : length};
}

bool flow_by_columns(const struct parameter *parameter)
{
    return flow.columns && parameter->dims == 2 &&
           (strstr(parameter->name, "o_proj") != NULL ||
            strstr(parameter->name, "down_proj") != NULL);
}

struct region flow_part(const struct parameter *parameter, CUdeviceptr whole, int index, int ways)
{
    const size_t pitch = parameter->shape[1] * ELEMENT;
    if (flow_by_columns(parameter)) {
        const struct range range = flow_chunk(parameter->shape[1], index, ways);
        return (struct region){whole + range.begin * ELEMENT, parameter->shape[0],
                               (range.end - range.begin) * ELEMENT, pitch};
    }
    const struct range range = flow_chunk(parameter->shape[0], index, ways);
    return (struct region){whole + range.begin * pitch, range.end - range.begin, pitch, pitch};
}

size_t flow_region_bytes(const struct region *region)
{
    return region->rows * region->row_bytes;
}

/* --- what is left in the end */

void flow_observe(const char *name, const struct region *region)
{
    if (flow_region_bytes(region) == 0)
        return;
    observed = grown(observed, observed_count, sizeof(*observed));
    struct observed *next = &observed[observed_count++];
    snprintf(next->name, sizeof(next->name), "%s", name);
    next->region = *region;
}

void flow_observe_bytes(const char *name, CUdeviceptr address, size_t bytes)
{
    const struct region region = {address, 1, bytes, bytes};
    flow_observe(name, &region);
}

void flow_take_part(const struct parameter *parameter, CUdeviceptr whole, int index, int ways)
{
    const struct region part = flow_part(parameter, whole, index, ways);
    if (flow.keep) {
        flow_observe(parameter->name, &part);
        return;
    }
    const struct region own = {flow_allocate(flow_region_bytes(&part)), part.rows, part.row_bytes,
                               part.row_bytes};
    flow_copy_region(&own, &part);
    flow_observe(parameter->name, &own);
}

/* FNV-1a over the elements' bits. */
static uint64_t hash_of(const unsigned char *bytes, size_t count)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t i = 0; i + ELEMENT <= count; i += ELEMENT) {
        uint32_t word;
        memcpy(&word, bytes + i, sizeof(word));
        hash = (hash ^ word) * UINT64_C(1099511628211);
    }
    return hash;
}

static void read_region(unsigned char *host, const struct region *region)
{
    if (is_dense(region)) {
        CU(cuMemcpyDtoH(host, region->address, flow_region_bytes(region)));
        return;
    }
    const CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                .srcDevice = region->address,
                                .srcPitch = region->pitch,
                                .dstMemoryType = CU_MEMORYTYPE_HOST,
                                .dstHost = host,
                                .dstPitch = region->row_bytes,
                                .WidthInBytes = region->row_bytes,
                                .Height = region->rows};
    CU(cuMemcpy2D(&copy));
}

static void report(const struct observed *part, FILE *out)
{
    const size_t bytes = flow_region_bytes(&part->region);
    unsigned char *host = malloc(bytes);
    if (host == NULL)
        fail("no memory", part->name);
    read_region(host, &part->region);
    printf("part %s %zu %016llx\n", part->name, bytes, (unsigned long long)hash_of(host, bytes));
    if (out != NULL && fwrite(host, bytes, 1, out) != 1)
        fail("cannot be written", options.out);
    free(host);
}

static size_t largest_part(int ways)
{
    size_t largest = 0;
    for (size_t i = 0; i < flow.count; i++) {
        const size_t part = flow_chunk_length(flow.parameters[i].bytes, ways);
        largest = part > largest ? part : largest;
    }
    return largest;
}

int flow_close(int ways)
{
    ncclResult_t state;
    FILE *out = options.out != NULL ? fopen(options.out, "w") : NULL;
    if (options.out != NULL && out == NULL)
        fail("cannot be opened", options.out);
    CU(cuStreamSynchronize(flow.stream));
    CU(cuStreamSynchronize(flow.transfers));
    free_late();
    NCCL(ncclCommGetAsyncError(flow.world, &state));
    NCCL(state);
    printf("largest %zu\n", largest_part(ways));
    for (size_t i = 0; i < observed_count; i++)
        report(&observed[i], out);
    if (out != NULL && fclose(out) != 0)
        fail("cannot be written", options.out);
    cache_release();
    NCCL(ncclCommDestroy(flow.world));
    return 0;
}
