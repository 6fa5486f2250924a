/* SPDX-License-Identifier: Apache-2.0 */
/*
 * footprint KERNELS FOLDER [LARGEST]: host memory that the shim takes for each thing that it holds,
 * from 1000 to LARGEST (default 100000) of them: what, how many, bytes for one, and the bound.
 * Above the bound, and 64 KiB for all of them, the line ends with TOO MUCH, and the exit status is
 * 1.
 *
 * Counted is what the heap gives for each request, so what it rounds up counts. The state page does
 * not: it has a size of its own (METASHARD_STATE_BYTES), and so have its tables.
 *
 * The driver is the simulated one, as for scale.c.
 */
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/calls/alloc.h"
#include "runtime/calls/blocks.h"
#include "runtime/calls/launch.h"
#include "runtime/fill/access.h"
#include "runtime/kernel/call.h"
#include "runtime/memory/space.h"
#include "runtime/start/lifetime.h"
#include "runtime/state/counters.h"
#include "tests/bench/counted_driver.h"
#include "runtime/base/heap.h"
#include "tests/bench/movements.h"
#include "tools/simcuda/harness/wraps.h"

#define GRANULE ((size_t)64 << 10)
#define TENSOR_BYTES ((size_t)64 << 10) /* the least that is looked up in files without a plan */
enum { PIECE = 512, PARAMETER_BYTES = 64, LEAST = 1000 };

/* --- the calls */

static CUfunction kernel;

static void launch_on(CUdeviceptr block)
{
    CUdeviceptr words[PARAMETER_BYTES / sizeof(CUdeviceptr)] = {block};
    void *places[] = {words};
    const struct ms_call call = {.function = kernel,
                                 .grid = {1, 1, 1},
                                 .block = {1, 1, 1},
                                 .stream = CU_STREAM_LEGACY,
                                 .params = places};
    CUresult result;
    must(ms_launch(&call, &result) && result == CUDA_SUCCESS, "a launch is recorded");
}

static size_t count_extents(CUdeviceptr address)
{
    struct ms_allocation *allocation = ms_space_claim(address);
    const size_t extents = ms_allocation_lineage(allocation)->extents.count;
    ms_space_release(allocation);
    return extents;
}

/* --- weighing */

/* The private heap's (heap_jemalloc.c); NULL if the shim is built with libc's. */
__attribute__((weak)) size_t ms_je_malloc_usable_size(const void *memory);

static size_t live_bytes; /* one thread works here */

static size_t size_of(void *memory)
{
    return ms_je_malloc_usable_size != NULL ? ms_je_malloc_usable_size(memory)
                                            : malloc_usable_size(memory);
}

static void *counted(void *memory)
{
    live_bytes += memory != NULL ? size_of(memory) : 0;
    return memory;
}

static void uncount(void *memory)
{
    live_bytes -= memory != NULL ? size_of(memory) : 0;
}

/* The linker puts these in place of the functions of heap.h. */
WRAPS(ms_heap_alloc, ms_heap_zalloc, ms_heap_realloc, ms_heap_free);

void *__wrap_ms_heap_alloc(size_t bytes)
{
    return counted(__real_ms_heap_alloc(bytes));
}

void *__wrap_ms_heap_zalloc(size_t bytes)
{
    return counted(__real_ms_heap_zalloc(bytes));
}

void *__wrap_ms_heap_realloc(void *memory, size_t bytes)
{
    uncount(memory);
    void *moved = __real_ms_heap_realloc(memory, bytes);
    return counted(moved != NULL ? moved : memory);
}

void __wrap_ms_heap_free(void *memory)
{
    uncount(memory);
    __real_ms_heap_free(memory);
}

static size_t count, empty;
static bool is_over, is_quiet;

static void begin(void)
{
    empty = live_bytes;
}

static void tell(const char *name, size_t things, double bound)
{
    const double bytes = (double)(live_bytes - empty) / (double)things;
    const bool is_too_much = bytes > bound + (double)(64 << 10) / (double)things;
    if (is_quiet)
        return;
    printf("%s\t%zu\t%.0f\t%.0f%s\n", name, things, bytes, bound, is_too_much ? "\tTOO MUCH" : "");
    fflush(stdout);
    is_over |= is_too_much;
}

/* --- what is weighed, for one count */

enum { BLOCK_BOUND = 256, PIECE_BOUND = 64, ALLOCATION_BOUND = 640, LAUNCH_BOUND = 640 };

static uint32_t *order; /* 0 to count - 1, in any order */

static void shuffle(void)
{
    for (size_t i = 0; i < count; i++)
        order[i] = (uint32_t)i;
    for (size_t i = count - 1; i > 0; i--) {
        const size_t at = random_below(i + 1);
        const uint32_t one = order[i];
        order[i] = order[at];
        order[at] = one;
    }
}

/* Blocks that a caching allocator reports, all in one allocation, with gaps. */
static void weigh_blocks(void)
{
    begin();
    const CUdeviceptr segment = allocate(count * 2 * PIECE);
    for (size_t i = 0; i < count; i++)
        ms_block_report(segment + (size_t)order[i] * 2 * PIECE, PIECE);
    tell("block of an allocation, never written", count, BLOCK_BOUND);
    for (size_t i = 0; i < count; i++)
        set(segment + (size_t)order[count - 1 - i] * 2 * PIECE, i, PIECE);
    tell("block of an allocation, of its own content", count, BLOCK_BOUND);
    for (size_t i = 0; i < count / 2; i++)
        ms_block_report(segment + (size_t)order[i] * 2 * PIECE, 0);
    tell("block of an allocation, when as many were returned", count - count / 2, BLOCK_BOUND);
    shuffle();
    for (size_t i = 0; i < count; i++) {
        ms_block_report(segment + (size_t)order[i] * 2 * PIECE, PIECE);
        set(segment + (size_t)order[i] * 2 * PIECE, i, PIECE);
    }
    tell("block of an allocation, when all were taken again", count, BLOCK_BOUND);
    release(segment);
}

static void weigh_small_copies(void)
{
    enum { BYTES = 64 };
    unsigned char bytes[BYTES];
    memset(bytes, 0x81, sizeof(bytes));
    begin();
    const CUdeviceptr segment = allocate(count * 2 * PIECE);
    for (size_t i = 0; i < count; i++) {
        ms_block_report(segment + (size_t)order[i] * 2 * PIECE, PIECE);
        copy_from(segment + (size_t)order[i] * 2 * PIECE, bytes, BYTES);
    }
    tell("block of an allocation, with a copy of 64 host bytes", count, 2 * BLOCK_BOUND);
    release(segment);
}

static void weigh_launches(void)
{
    begin();
    const CUdeviceptr segment = allocate(count * 2 * PIECE);
    for (size_t i = 0; i < count; i++) {
        ms_block_report(segment + (size_t)order[i] * 2 * PIECE, PIECE);
        launch_on(segment + (size_t)order[i] * 2 * PIECE);
    }
    tell("block of an allocation, with a recorded launch of 64 bytes", count, LAUNCH_BOUND);
    release(segment);
}

/* All from one file, which is mapped at `mapped`. */
static void weigh_file(const unsigned char *mapped)
{
    enum { STEP = TENSOR_BYTES + PIECE };
    begin();
    const CUdeviceptr segment = allocate(count * STEP);
    for (size_t i = 0; i < count; i++) {
        ms_block_report(segment + (size_t)order[i] * STEP, TENSOR_BYTES);
        copy_from(segment + (size_t)order[i] * STEP, mapped, TENSOR_BYTES);
    }
    tell("block of an allocation, with bytes of a file", count, BLOCK_BOUND);
    release(segment);
}

/* Pieces of one block. A set over some of them makes one piece of them. */
static void weigh_pieces(void)
{
    enum { MOST = 100000, JOINED = 8 };
    if (count > MOST)
        return;
    begin();
    const CUdeviceptr block = allocate(count * PIECE > GRANULE ? count * PIECE : GRANULE);
    for (size_t i = 0; i < count; i++)
        set(block + (size_t)order[i] * PIECE, i, PIECE);
    tell("piece of a block, written in any order", count, PIECE_BOUND);
    while (count_extents(block) > count / 2) {
        const size_t first = random_below(count - JOINED);
        set(block + first * PIECE, count + first, (size_t)JOINED * PIECE);
    }
    tell("piece of a block, when half were overwritten", count_extents(block), PIECE_BOUND);
    for (size_t i = 0; i < count; i++)
        set(block + (size_t)order[i] * PIECE, i, PIECE);
    tell("piece of a block, when each was written again", count, PIECE_BOUND);
    release(block);
}

static void weigh_allocations(void)
{
    CUdeviceptr *addresses = calloc(count, sizeof(*addresses));
    must(addresses != NULL, "memory");
    begin();
    for (size_t i = 0; i < count; i++)
        addresses[i] = allocate(GRANULE);
    tell("allocation, never written", count, ALLOCATION_BOUND);
    for (size_t i = 0; i < count; i++)
        set(addresses[i], i, GRANULE);
    tell("allocation, of one content", count, ALLOCATION_BOUND);
    for (size_t i = 0; i < count; i++)
        must(ms_access(addresses[i], GRANULE, MS_NEED_OVERWRITE) == CUDA_SUCCESS, "memory");
    tell("allocation, in memory", count, ALLOCATION_BOUND);
    for (size_t i = 0; i < count; i++)
        release(addresses[order[i]]);
    free(addresses);
}

static void remove_file(__attribute__((unused)) int status, void *path)
{
    unlink(path);
    free(path);
}

/* A file that the program maps and copies from; it goes when the program ends. */
static const unsigned char *map_file(const char *folder)
{
    unsigned char bytes[TENSOR_BYTES];
    char path[400];
    memset(bytes, 0x81, sizeof(bytes));
    snprintf(path, sizeof(path), "%s/metashard-footprint-XXXXXX", folder);
    int file = mkstemp(path);
    must(file >= 0 && write(file, bytes, sizeof(bytes)) == (ssize_t)sizeof(bytes), path);
    close(file); /* nobody writes */
    file = open(path, O_RDONLY);
    void *mapped = mmap(NULL, sizeof(bytes), PROT_READ, MAP_PRIVATE, file, 0);
    must(mapped != MAP_FAILED, "mmap");
    close(file);
    on_exit(remove_file, strdup(path)); /* what has no name is copied at once */
    usleep(50000);                      /* a file that was changed just now is not trusted yet */
    return mapped;
}

static void weigh_all(const unsigned char *mapped)
{
    enum { MOST_COPIES = 100000 }; /* the file is looked at for each */
    order = calloc(count, sizeof(*order));
    must(order != NULL, "memory");
    shuffle();
    weigh_blocks();
    weigh_small_copies();
    weigh_launches();
    if (count <= MOST_COPIES)
        weigh_file(mapped);
    weigh_pieces();
    weigh_allocations();
    free(order);
}

static void open_device(const char *kernels, const char *folder)
{
    CUcontext context;
    CUmodule module;
    char name[40], rules[400];
    setenv("SIMCUDA_GRANULE_KIB", "64", 1);
    setenv("METASHARD_MIN_BYTES", "65536", 1);
    setenv("METASHARD_OVERCOMMIT", "1000000", 1);
    setenv("METASHARD_SETTLE_MS", "0", 1);
#define MS_DRIVER(field, symbol) ms_driver.field = symbol;
#define MS_DRIVER_OPTIONAL MS_DRIVER
#include "runtime/driver/driver.def"
#undef MS_DRIVER_OPTIONAL
#undef MS_DRIVER
    snprintf(name, sizeof(name), "takes_%d", PARAMETER_BYTES);
    must(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
             cuCtxSetCurrent(context) == CUDA_SUCCESS &&
             cuModuleLoad(&module, kernels) == CUDA_SUCCESS &&
             cuModuleGetFunction(&kernel, module, name) == CUDA_SUCCESS,
         "a context and a kernel");
    snprintf(rules, sizeof(rules), "%s/metashard-footprint-rules-%d", folder, (int)getpid());
    FILE *file = fopen(rules, "w");
    must(file != NULL && fprintf(file, "write-only %s\n", name) > 0 && fclose(file) == 0, rules);
    setenv("METASHARD_KERNEL_RULES", rules, 1);
    ms_lifetime_begin(environ, "");
    unlink(rules);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: footprint KERNELS FOLDER [LARGEST]\n");
        return 2;
    }
    const size_t largest = argc > 3 ? strtoull(argv[3], NULL, 10) : 100000;
    open_device(argv[1], argv[2]);
    release(allocate(GRANULE)); /* what the shim asks of a driver it asks the simulated one */
    use_counted_addresses(true);
    use_no_memory(true);
    const unsigned char *mapped = map_file(argv[2]);
    is_quiet = true; /* what is made once, for each kind */
    count = LEAST;
    weigh_all(mapped);
    is_quiet = false;
    for (; count <= largest; count *= 10)
        weigh_all(mapped);
    return is_over ? 1 : 0;
}
