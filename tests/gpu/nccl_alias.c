/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's broadcast into addresses that share memory: may a receiver map all that it does not keep
 * to one throw-away handle (the sink), and does every rank still get its own bytes? It may as long
 * as a rank forwards what came in, not what stands in its buffer. Ranks are processes;
 * nccl_alias.py starts them.
 *
 *     nccl_alias map [quick]                                what mapping one handle at thousands of addresses costs
 *     nccl_alias broadcast RANKS RANK ID-FILE [quick]       into buffers with a sink, of many sizes
 *     nccl_alias tensor RANKS RANK ID-FILE BYTES            into plain memory that is named "t" for the shim
 *
 * Prints a JSON object on a line for each measurement, as soon as it is there.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define ARRAY_COUNT(array) (sizeof(array) / sizeof((array)[0]))

static bool is_quick;

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void cuda(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return;
    printf("{\"error\": \"%s: CUDA error %d\"}\n", what, (int)result);
    exit(1);
}

static void nccl(ncclResult_t result, const char *what)
{
    if (result == ncclSuccess)
        return;
    printf("{\"error\": \"%s: %s\"}\n", what, ncclGetErrorString(result));
    exit(1);
}

#define CU(call) cuda(call, #call)
#define NCCL(call) nccl(call, #call)

/* --- mapping */

static size_t granule;

static CUmemAllocationProp properties(void)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
}

static CUmemGenericAllocationHandle create(size_t bytes)
{
    const CUmemAllocationProp prop = properties();
    CUmemGenericAllocationHandle handle;
    CU(cuMemCreate(&handle, bytes, &prop, 0));
    return handle;
}

static void give_access(CUdeviceptr address, size_t bytes)
{
    const CUmemAccessDesc access = {properties().location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CU(cuMemSetAccess(address, bytes, &access, 1));
}

static void start_device(void)
{
    const CUmemAllocationProp prop = properties();
    CUcontext context;
    setvbuf(stdout, NULL, _IOLBF, 0);
    CU(cuInit(0));
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
    CU(cuMemGetAllocationGranularity(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
}

/* --- what mapping costs */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void measure_maps(size_t sink_bytes, size_t count)
{
    const size_t total = sink_bytes * count;
    double *each_us = calloc(count, sizeof(*each_us)), all_us = 0;
    CUdeviceptr address;
    CU(cuMemAddressReserve(&address, total, 0, 0, 0));
    const CUmemGenericAllocationHandle sink = create(sink_bytes);
    for (size_t i = 0; i < count; i++) {
        const double start_us = now_us();
        CU(cuMemMap(address + i * sink_bytes, sink_bytes, 0, sink, 0));
        each_us[i] = now_us() - start_us;
        all_us += each_us[i];
    }
    double start_us = now_us();
    give_access(address, total);
    const double access_us = now_us() - start_us;
    start_us = now_us();
    CU(cuMemUnmap(address, total));
    const double unmap_us = now_us() - start_us;
    CU(cuMemRelease(sink));
    CU(cuMemAddressFree(address, total));
    qsort(each_us, count, sizeof(*each_us), by_value);
    printf("{\"sink_bytes\": %zu, \"maps\": %zu, \"map_us_median\": %.2f, \"map_us_p95\": %.2f, "
           "\"map_us_most\": %.2f, \"map_all_us\": %.1f, \"set_access_all_us\": %.1f, "
           "\"unmap_all_us\": %.1f}\n",
           sink_bytes, count, each_us[count / 2], each_us[count * 95 / 100], each_us[count - 1],
           all_us, access_us, unmap_us);
    free(each_us);
}

static void run_map(void)
{
    static const size_t sinks[] = {2 * MIB, 32 * MIB, 64 * MIB};
    start_device();
    for (size_t i = 0; i < ARRAY_COUNT(sinks); i++) {
        measure_maps(sinks[i], is_quick ? 16 : 1024);
        measure_maps(sinks[i], is_quick ? 32 : 4096);
    }
}

/* --- ranks */

static struct {
    int ranks, rank;
    ncclComm_t comm;
    CUstream stream;
    uint32_t *host; /* of the largest buffer */
} self;

static void write_id(const char *path)
{
    char part[1100];
    ncclUniqueId id;
    NCCL(ncclGetUniqueId(&id));
    snprintf(part, sizeof(part), "%s.part", path);
    FILE *file = fopen(part, "wb");
    if (file == NULL || fwrite(&id, sizeof(id), 1, file) != 1 || fclose(file) != 0 ||
        rename(part, path) != 0)
        nccl(ncclSystemError, path);
}

static ncclUniqueId read_id(const char *path)
{
    const struct timespec pause = {0, 5000000};
    ncclUniqueId id = {{0}};
    for (int i = 0; i < 12000 && access(path, R_OK) != 0; i++)
        nanosleep(&pause, NULL);
    FILE *file = fopen(path, "rb");
    if (file == NULL || fread(&id, sizeof(id), 1, file) != 1)
        nccl(ncclSystemError, path);
    fclose(file);
    return id;
}

static void start_rank(char **argv, size_t most_bytes)
{
    int version = 0;
    self.ranks = atoi(argv[2]);
    self.rank = atoi(argv[3]);
    start_device();
    if (self.rank == 0)
        write_id(argv[4]);
    const ncclUniqueId id = read_id(argv[4]);
    const double start_us = now_us();
    NCCL(ncclCommInitRank(&self.comm, self.ranks, id, self.rank));
    CU(cuStreamCreate(&self.stream, CU_STREAM_NON_BLOCKING));
    NCCL(ncclGetVersion(&version));
    self.host = malloc(most_bytes + 8);
    if (self.host == NULL)
        nccl(ncclSystemError, "malloc");
    printf("{\"nccl_version\": %d, \"granule\": %zu, \"init_us\": %.0f}\n", version, granule,
           now_us() - start_us);
}

/* The word that the root sends in this round. */
static uint32_t word_at(size_t index, unsigned round)
{
    return ((uint32_t)index + round * 977u) * 2654435761u;
}

static void fill(CUdeviceptr address, size_t bytes, unsigned round)
{
    for (size_t i = 0; i * 4 < bytes; i++)
        self.host[i] = word_at(i, round);
    CU(cuMemcpyHtoD(address, self.host, bytes));
}

/* Bytes of [begin, end) that are not the root's. */
static size_t count_wrong(CUdeviceptr address, size_t begin, size_t end, unsigned round)
{
    unsigned char *seen = (unsigned char *)self.host;
    size_t wrong = 0;
    if (begin >= end)
        return 0;
    CU(cuMemcpyDtoH(seen, address + begin, end - begin));
    for (size_t i = begin; i < end; i++) {
        const uint32_t word = word_at(i / 4, round);
        wrong += seen[i - begin] != (unsigned char)(word >> (8 * (i % 4)));
    }
    return wrong;
}

static double broadcast(CUdeviceptr address, size_t bytes, int root)
{
    ncclResult_t state = ncclSuccess;
    const double start_us = now_us();
    NCCL(ncclBroadcast((void *)address, (void *)address, bytes, ncclUint8, root, self.comm,
                       self.stream));
    CU(cuStreamSynchronize(self.stream));
    const double took_us = now_us() - start_us;
    NCCL(ncclCommGetAsyncError(self.comm, &state));
    nccl(state, "the broadcast");
    return took_us;
}

/* --- a buffer with a sink */

struct buffer {
    CUdeviceptr address;
    size_t granules, own_begin, own_end; /* in granules */
    size_t maps;
    bool has_tail; /* part of the sink could not be mapped */
    double map_us;
};

static void map_sink(struct buffer *buffer, size_t begin, size_t end,
                     CUmemGenericAllocationHandle sink, size_t sink_bytes)
{
    size_t at = begin * granule;
    while (at < end * granule) {
        const size_t left = end * granule - at;
        const size_t bytes = left < sink_bytes ? left : sink_bytes;
        CUmemGenericAllocationHandle handle = sink;
        CUresult result = cuMemMap(buffer->address + at, bytes, 0, handle, 0);
        if (result != CUDA_SUCCESS && bytes < sink_bytes) {
            buffer->has_tail = true;
            handle = create(bytes);
            result = cuMemMap(buffer->address + at, bytes, 0, handle, 0);
            CU(cuMemRelease(handle));
        }
        cuda(result, "cuMemMap of the sink");
        at += bytes;
        buffer->maps++;
    }
}

static void map_own(struct buffer *buffer)
{
    const size_t bytes = (buffer->own_end - buffer->own_begin) * granule;
    if (bytes == 0)
        return;
    const CUmemGenericAllocationHandle own = create(bytes);
    CU(cuMemMap(buffer->address + buffer->own_begin * granule, bytes, 0, own, 0));
    CU(cuMemRelease(own));
    buffer->maps++;
}

/* The root has all of it. The others have equal parts, in the order in which they stand behind the
 * root. */
static struct buffer make_buffer(size_t bytes, int root, size_t sink_bytes)
{
    struct buffer buffer = {.granules = (bytes + granule - 1) / granule};
    const size_t place = (size_t)((self.rank - root + self.ranks) % self.ranks);
    const size_t receivers = (size_t)self.ranks - 1;
    buffer.own_end = buffer.granules;
    if (place > 0) {
        buffer.own_begin = buffer.granules * (place - 1) / receivers;
        buffer.own_end = buffer.granules * place / receivers;
    }
    CU(cuMemAddressReserve(&buffer.address, buffer.granules * granule, 0, 0, 0));
    const CUmemGenericAllocationHandle sink = create(sink_bytes);
    const double start_us = now_us();
    map_sink(&buffer, 0, buffer.own_begin, sink, sink_bytes);
    map_own(&buffer);
    map_sink(&buffer, buffer.own_end, buffer.granules, sink, sink_bytes);
    give_access(buffer.address, buffer.granules * granule);
    buffer.map_us = now_us() - start_us;
    CU(cuMemRelease(sink));
    return buffer;
}

static void drop_buffer(const struct buffer *buffer)
{
    CU(cuMemUnmap(buffer->address, buffer->granules * granule));
    CU(cuMemAddressFree(buffer->address, buffer->granules * granule));
}

static void measure_broadcast(size_t bytes, int root, size_t sink_bytes)
{
    static unsigned round;
    struct buffer buffer = make_buffer(bytes, root, sink_bytes);
    const size_t begin = buffer.own_begin * granule;
    size_t end = buffer.own_end * granule, wrong = 0;
    double took_us[2];
    if (end > bytes)
        end = bytes;
    for (size_t i = 0; i < ARRAY_COUNT(took_us); i++) { /* the first one connects */
        round++;
        if (self.rank == root)
            fill(buffer.address, bytes, round);
        took_us[i] = broadcast(buffer.address, bytes, root);
        wrong += count_wrong(buffer.address, begin, end, round);
    }
    printf("{\"bytes\": %zu, \"root\": %d, \"sink_bytes\": %zu, \"own\": [%zu, %zu], "
           "\"wrong_bytes\": %zu, \"maps\": %zu, \"part_of_sink_maps\": %s, \"map_us\": %.1f, "
           "\"first_us\": %.1f, \"second_us\": %.1f}\n",
           bytes, root, sink_bytes, begin, end > begin ? end : begin, wrong, buffer.maps,
           buffer.has_tail ? "false" : "true", buffer.map_us, took_us[0], took_us[1]);
    drop_buffer(&buffer);
}

static void run_broadcast(char **argv)
{
    static const size_t sizes[] = {1024, 49160, MIB, 8 * MIB + 12, 64 * MIB + 4, 256 * MIB};
    static const size_t sinks[] = {2 * MIB, 32 * MIB, 64 * MIB};
    const size_t sizes_count = ARRAY_COUNT(sizes) - (is_quick ? 2 : 0);
    start_rank(argv, sizes[sizes_count - 1]);
    for (size_t i = 0; i < sizes_count; i++) {
        for (size_t k = 0; k < ARRAY_COUNT(sinks); k++) {
            if (k > 0 && sinks[k] > sizes[i])
                continue;
            for (int root = 0; root < self.ranks; root++)
                measure_broadcast(sizes[i], root, sinks[k]);
        }
    }
    NCCL(ncclCommDestroy(self.comm));
}

/* --- memory that the shim may defer */

static bool name_tensor(CUdeviceptr address, uint64_t bytes)
{
    typedef int name_call(uint64_t address, size_t bytes, const char *name, const char *dtype,
                          const uint64_t *shape, unsigned dims);
    void *found = dlsym(RTLD_DEFAULT, "metashard_name");
    return found != NULL && ((name_call *)found)(address, bytes, "t", "U8", &bytes, 1) == 0;
}

static void run_tensor(char **argv)
{
    const size_t bytes = strtoull(argv[5], NULL, 10);
    CUdeviceptr address;
    start_rank(argv, bytes);
    const size_t chunk = (bytes + (size_t)self.ranks - 1) / (size_t)self.ranks;
    const size_t begin = chunk * (size_t)self.rank < bytes ? chunk * (size_t)self.rank : bytes;
    const size_t end = begin + chunk < bytes ? begin + chunk : bytes;
    CU(cuMemAlloc(&address, bytes));
    const bool is_named = name_tensor(address, bytes);
    if (self.rank == 0)
        fill(address, bytes, 1);
    const double took_us = broadcast(address, bytes, 0);
    const size_t wrong = count_wrong(address, begin, end, 1);
    printf(
        "{\"bytes\": %zu, \"root\": 0, \"named\": %s, \"own\": [%zu, %zu], \"wrong_bytes\": %zu, "
        "\"first_us\": %.1f}\n",
        bytes, is_named ? "true" : "false", begin, end, wrong, took_us);
    NCCL(ncclCommDestroy(self.comm));
}

int main(int argc, char **argv)
{
    is_quick = argc > 2 && strcmp(argv[argc - 1], "quick") == 0;
    if (argc >= 2 && strcmp(argv[1], "map") == 0) {
        run_map();
    } else if (argc >= 5 && strcmp(argv[1], "broadcast") == 0) {
        run_broadcast(argv);
    } else if (argc == 6 && strcmp(argv[1], "tensor") == 0) {
        run_tensor(argv);
    } else {
        fprintf(stderr, "usage: %s map|broadcast|tensor ...\n", argv[0]);
        return 2;
    }
    return 0;
}
