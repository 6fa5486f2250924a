/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state FOLDER: what keeping the state page costs, on the simulated driver: the same work with and
 * without it, in turns. Each figure is the median of thousands; the ratio is with over without. The
 * promise is at most 1.02 where memory is filled. Prints and asserts nothing.
 *
 * STATE_SCALE (default 1) makes it longer or shorter.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "runtime/calls/alloc.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/access.h"
#include "runtime/fill/evict.h"
#include "runtime/start/lifetime.h"
#include "runtime/state/state.h"
#include "tests/bench/movements.h"

#define MIB ((size_t)1 << 20)
enum { MAX_ROUNDS = 1000000, FILE_MIB = 128 };

static CUcontext context;
static const char *mapped; /* FILE_MIB of a file */
static unsigned char bytes[2 << 20];

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* --- the work */

static void read_back(CUdeviceptr address, size_t size)
{
    must(ms_access(address, size, MS_NEED_READ) == CUDA_SUCCESS, "reading");
    ms_evict_let_go();
}

/* A block of one granule, which is set and read: the most that is kept for each byte. */
static void fill_block(void)
{
    const CUdeviceptr block = allocate(2 * MIB);
    must(set_is_recorded(block, 1, 2 * MIB), "cuMemsetD32");
    read_back(block, 2 * MIB);
    release(block);
}

/* A tensor of a checkpoint. */
static void fill_from_file(void)
{
    static size_t at;
    const CUdeviceptr tensor = allocate(8 * MIB);
    must(copy_is_recorded(MS_COPY_FROM_HOST, tensor, ms_side_of_host(mapped + at), 8 * MIB),
         "cuMemcpyHtoD");
    read_back(tensor, 8 * MIB);
    release(tensor);
    at = (at + 8 * MIB) % (FILE_MIB * MIB);
}

/* A block that is set and freed: nothing is materialised. */
static void record_fill(void)
{
    const CUdeviceptr block = allocate(2 * MIB);
    must(set_is_recorded(block, 1, 2 * MIB), "cuMemsetD32");
    release(block);
}

static const struct way {
    const char *name;
    void (*work)(void);
    int rounds;
} ways[] = {
    {"materialise a fill of 2 MiB", fill_block, 1500},
    {"materialise 8 MiB of a file", fill_from_file, 100},
    {"record a fill, materialise none", record_fill, 20000},
};

/* --- rounds */

static int by_value(const void *a, const void *b)
{
    const double left = *(const double *)a, right = *(const double *)b;
    return left < right ? -1 : left > right;
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof(*values), by_value);
    return values[count / 2];
}

/* The flag decides everything: without it no page is kept, as with an empty
 * METASHARD_STATE_DIR. Nothing is alive while the flag changes. */
static void measure(const struct way *way, double scale)
{
    static double times[2][MAX_ROUNDS];
    int rounds = (int)(way->rounds * scale);
    rounds = rounds < 1 ? 1 : rounds > MAX_ROUNDS ? MAX_ROUNDS : rounds;
    way->work();
    for (int i = 0; i < 2 * rounds; i++) {
        const bool is_kept = (i + i / 2) % 2 == 0; /* neither is always the first */
        atomic_store(&ms_hot.recorded, is_kept);
        const double began = now();
        way->work();
        times[is_kept][i / 2] = now() - began;
        atomic_store(&ms_hot.recorded, 1);
    }
    const double with = median(times[1], rounds), without = median(times[0], rounds);
    printf("  %-32s with %9.2f us, without %9.2f us, ratio %.4f\n", way->name, with * 1e6,
           without * 1e6, with / without);
    fflush(stdout);
}

static void remove_file(__attribute__((unused)) int status, void *path)
{
    unlink(path);
    free(path);
}

static void make_file(const char *folder)
{
    char path[400];
    snprintf(path, sizeof(path), "%s/metashard-bench-XXXXXX", folder);
    const int file = mkstemp(path);
    must(file >= 0, path);
    memset(bytes, 5, sizeof(bytes));
    for (int i = 0; i < FILE_MIB / 2; i++)
        must(write(file, bytes, sizeof(bytes)) == (ssize_t)sizeof(bytes), "write");
    must(fsync(file) == 0, "fsync");
    mapped = mmap(NULL, FILE_MIB * MIB, PROT_READ, MAP_PRIVATE, file, 0);
    must(mapped != MAP_FAILED, "mmap");
    on_exit(remove_file, strdup(path)); /* what has no name is copied at once */
    usleep(50000);                      /* a file that was changed just now is not trusted yet */
}

int main(int argc, char **argv)
{
    const char *text = getenv("STATE_SCALE");
    const double scale = text != NULL ? strtod(text, NULL) : 1;
#define MS_DRIVER(field, symbol) ms_driver.field = symbol;
#define MS_DRIVER_OPTIONAL MS_DRIVER
#include "runtime/driver/driver.def"
#undef MS_DRIVER_OPTIONAL
#undef MS_DRIVER
    must(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
             cuCtxSetCurrent(context) == CUDA_SUCCESS,
         "a context");
    ms_lifetime_begin(environ, "");
    must(ms_is_recorded(), "no state page is kept");
    make_file(argc > 1 ? argv[1] : "/tmp");
    printf("state page of %llu bytes:\n", (unsigned long long)ms_config.state_bytes);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
        measure(&ways[i], scale);
    return 0;
}
