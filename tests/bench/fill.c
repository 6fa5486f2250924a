/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fill FOLDER: MiB per second of a fill of device memory from a file in FOLDER
 * (runtime/loading/transfer.h), on the simulated driver, against plain read() into one buffer with
 * several block sizes, which copies nothing to the device, and against a copy from the mapped file;
 * cold (not in the page cache) and warm. The ways take turns; each figure is the median of its
 * rounds. Prints and asserts nothing.
 *
 * FILL_MIB (default 1024) and FILL_ROUNDS (default 5) choose another job; METASHARD_STAGING_BYTES
 * and METASHARD_READ_THREADS mean what they mean.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/config/config.h"
#include "runtime/files/mapping.h"
#include "runtime/files/trust.h"
#include "runtime/loading/transfer.h"

#define MIB ((size_t)1 << 20)
enum { MAX_ROUNDS = 99, COPY_MIB = 64 };

static int file;
static size_t bytes;
static CUcontext context;
static CUstream stream;
static CUdeviceptr memory;
static struct ms_file *source;

static void must(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "fill: %s: CUDA error %d\n", what, (int)result);
    exit(1);
}

static void require(bool condition, const char *what)
{
    if (condition)
        return;
    perror(what);
    exit(1);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* --- the ways */

struct way {
    const char *name;
    void (*run)(const struct way *way);
    size_t block;
    bool direct;
    double seconds[MAX_ROUNDS];
};

static void read_plainly(const struct way *way)
{
    char path[40];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    const int descriptor = open(path, O_RDONLY | (way->direct ? O_DIRECT : 0));
    if (descriptor < 0)
        return; /* no time is the best time; told as 0 */
    void *buffer = aligned_alloc(4096, way->block);
    size_t done = 0;
    ssize_t got;
    while ((got = read(descriptor, buffer, way->block)) > 0)
        done += (size_t)got;
    require(done == bytes, "read");
    free(buffer);
    close(descriptor);
}

static void copy_mapped(const struct way *way)
{
    (void)way;
    const unsigned char *mapped = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, file, 0);
    require(mapped != MAP_FAILED, "mmap");
    for (size_t done = 0; done < bytes; done += COPY_MIB * MIB) {
        const size_t left = bytes - done;
        must(cuMemcpyHtoD_v2(memory + done, mapped + done,
                             left < COPY_MIB * MIB ? left : COPY_MIB * MIB),
             "cuMemcpyHtoD");
    }
    munmap((void *)mapped, bytes);
}

static void fill(const struct way *way)
{
    (void)way;
    struct ms_read_request run = {source, 0, bytes, memory};
    must(ms_transfer(&run, 1, context, stream), "the transfer");
}

enum { FILL, MAPPED, FIRST_READ };
static struct way ways[] = {
    {.name = "fill", .run = fill},
    {.name = "mmap + cuMemcpyHtoD", .run = copy_mapped},
    {.name = "read, 128 KiB", .run = read_plainly, .block = 128 << 10},
    {.name = "read, 1 MiB", .run = read_plainly, .block = 1 << 20},
    {.name = "read, 8 MiB", .run = read_plainly, .block = 8 << 20},
    {.name = "read, 128 KiB, O_DIRECT", .run = read_plainly, .block = 128 << 10, .direct = true},
    {.name = "read, 1 MiB, O_DIRECT", .run = read_plainly, .block = 1 << 20, .direct = true},
    {.name = "read, 8 MiB, O_DIRECT", .run = read_plainly, .block = 8 << 20, .direct = true},
};
enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

/* --- the job */

static long number(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? atol(text) : otherwise;
}

static void make_file(const char *folder)
{
    char path[400];
    snprintf(path, sizeof(path), "%s/metashard-fill-XXXXXX", folder);
    file = mkstemp(path);
    require(file >= 0, path);
    uint32_t *block = malloc(MIB);
    uint32_t state = 1;
    for (size_t done = 0; done < bytes; done += MIB) {
        for (size_t i = 0; i < MIB / 4; i++)
            block[i] = state = state * 1664525 + 1013904223;
        require(write(file, block, MIB) == (ssize_t)MIB, "write");
    }
    free(block);
    require(fsync(file) == 0, "fsync");
    close(file); /* nobody writes */
    file = open(path, O_RDONLY);
    struct stat stat;
    fstat(file, &stat);
    struct ms_mapping mapping = {.device = stat.st_dev, .inode = stat.st_ino};
    snprintf(mapping.path, sizeof(mapping.path), "%s", path);
    source = ms_trust_open(&mapping, bytes);
    unlink(path);
    require(source != NULL, "the file as a source");
}

static size_t count_cached(void)
{
    unsigned char *states = malloc(bytes / 4096);
    void *mapped = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0);
    require(mapped != MAP_FAILED && mincore(mapped, bytes, states) == 0, "mincore");
    munmap(mapped, bytes);
    size_t count = 0;
    for (size_t i = 0; i < bytes / 4096; i++)
        count += states[i] & 1;
    free(states);
    return count;
}

/* Says so when the page cache is not as wanted. */
static void set_cache(bool cold)
{
    static const struct way reading = {.block = 1 << 20};
    if (cold)
        posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    else if (count_cached() < bytes / 4096)
        read_plainly(&reading);
    const size_t cached = count_cached();
    if (cached != (cold ? 0 : bytes / 4096))
        printf("(%zu of %zu pages are in the page cache)\n", cached, bytes / 4096);
}

static int by_value(const void *a, const void *b)
{
    const double left = *(const double *)a;
    const double right = *(const double *)b;
    return left < right ? -1 : left > right;
}

static double rate(struct way *way, int rounds)
{
    qsort(way->seconds, (size_t)rounds, sizeof(double), by_value);
    return (double)bytes / (double)MIB / way->seconds[rounds / 2];
}

static bool is_filled(void)
{
    const void *mapped = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0);
    const bool same = memcmp((const void *)memory, mapped, bytes) == 0;
    munmap((void *)mapped, bytes);
    return same;
}

static void measure(bool cold, int rounds)
{
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < WAYS; i++) {
            set_cache(cold);
            const double began = now();
            ways[i].run(&ways[i]);
            ways[i].seconds[round] = now() - began;
        }
    }
    printf("%s, %zu MiB, MiB/s:\n", cold ? "cold" : "warm", bytes / MIB);
    double best = 0;
    double rates[WAYS];
    for (int i = 0; i < WAYS; i++) {
        rates[i] = rate(&ways[i], rounds);
        if (i >= FIRST_READ && rates[i] > best)
            best = rates[i];
        printf("  %-26s %8.0f\n", ways[i].name, rates[i]);
    }
    printf("  fill/read %.2f, fill/(mmap+copy) %.2f\n", rates[FILL] / best,
           rates[FILL] / rates[MAPPED]);
    must(cuMemsetD8_v2(memory, 0, bytes), "cuMemsetD8");
    must(cuCtxSynchronize(),
         "cuCtxSynchronize"); /* the stream of the fill does not wait for a memset */
    fill(&ways[FILL]);
    printf("  values %s\n", is_filled() ? "same" : "DIFFERENT");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    bytes = (size_t)number("FILL_MIB", 1024) * MIB;
    long rounds = number("FILL_ROUNDS", 5);
    if (rounds < 1 || rounds > MAX_ROUNDS)
        rounds = 5;
#define MS_DRIVER(field, symbol) ms_driver.field = symbol;
#define MS_DRIVER_OPTIONAL MS_DRIVER
#include "runtime/driver/driver.def"
#undef MS_DRIVER_OPTIONAL
#undef MS_DRIVER
    ms_config_read(&ms_config, environ);
    must(cuInit(0), "cuInit");
    must(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    must(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    must(cuMemAlloc_v2(&memory, bytes), "cuMemAlloc");
    must(cuMemsetD8_v2(memory, 1, bytes), "cuMemsetD8");
    make_file(argc > 1 ? argv[1] : "/tmp");
    measure(true, (int)rounds);
    measure(false, (int)rounds);
    return 0;
}
