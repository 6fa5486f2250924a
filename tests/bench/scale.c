/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scale KERNELS FOLDER [LARGEST [SECONDS]]: what the runtime's work costs by the number of things
 * it holds, from 100 to LARGEST (default 1000000): deferred allocations, blocks of one allocation,
 * tensors in files. A line each: what, how many, and seconds of processor time for all of them, or
 * nanoseconds for one call. growth.py fits the growth. A measurement that would last longer than
 * SECONDS (default 60), going by the two sizes before, is left out: its line has "-".
 *
 * The driver is the simulated one, but addresses of allocations come from a counter that goes down,
 * as the kernel's mmap does, and nothing waits for the device: the tables of the simulated driver
 * are not what is measured. Where memory is filled everything is the simulated driver's.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "runtime/calls/alloc.h"
#include "runtime/calls/blocks.h"
#include "runtime/calls/copy.h"
#include "runtime/calls/launch.h"
#include "runtime/calls/vmm.h"
#include "runtime/fill/access.h"
#include "runtime/fill/evict.h"
#include "runtime/kernel/call.h"
#include "runtime/memory/space.h"
#include "runtime/plan/plan.h"
#include "runtime/start/lifetime.h"
#include "runtime/state/counters.h"
#include "tests/bench/counted_driver.h"
#include "tests/bench/movements.h"

#define GRANULE ((size_t)64 << 10) /* SIMCUDA_GRANULE_KIB, which growth.py sets */
enum { CALLS = 20000, PIECE = 512, PARAMETER_BYTES = 1024 };

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* --- the calls */

static CUfunction kernel;

enum { WORDS = PARAMETER_BYTES / sizeof(CUdeviceptr) };

/* A launch that reaches no block, though every word of its parameters lies among them. */
static void launch(CUdeviceptr between[WORDS])
{
    void *places[] = {between};
    const struct ms_call call = {.function = kernel,
                                 .grid = {1, 1, 1},
                                 .block = {1, 1, 1},
                                 .stream = CU_STREAM_LEGACY,
                                 .params = places};
    CUresult result;
    must(!ms_launch(&call, &result), "a launch that reaches nothing is forwarded");
}

/* --- what is measured, for one count: the clock runs between begin() and end() */

enum { ROWS_MAX = 32 };
static struct row {
    const char *name;
    double before, seconds; /* at the two sizes before; 0: none */
    bool is_over;
} rows[ROWS_MAX];
static double limit = 60;
static size_t count;
static double began;

static struct row *row_of(const char *name)
{
    struct row *row = rows;
    while (row->name != NULL && strcmp(row->name, name) != 0)
        row++;
    must(row < rows + ROWS_MAX - 1, "too many rows");
    row->name = name;
    return row;
}

/* False: it would last too long. Sizes go by tens. */
static bool may_last(const char *name)
{
    struct row *row = row_of(name);
    if (row->before > 1e-3 && row->seconds * (row->seconds / row->before) > limit)
        row->is_over = true;
    if (row->is_over)
        printf("%s\t%zu\t-\n", name, count);
    return !row->is_over;
}

static void begin(void)
{
    began = now();
}

static void tell(const char *name, double seconds, size_t calls)
{
    struct row *row = row_of(name);
    row->before = row->seconds;
    row->seconds = seconds;
    if (calls == 0)
        printf("%s\t%zu\t%.6f s\n", name, count, seconds);
    else
        printf("%s\t%zu\t%.1f ns\n", name, count, seconds / (double)calls * 1e9);
    fflush(stdout);
}

static void end(const char *name, size_t calls)
{
    tell(name, now() - began, calls);
}

/* One in the middle goes, and its address with it; or as many as there are words. */
static void measure_launches(CUdeviceptr *addresses)
{
    CUdeviceptr between[WORDS];
    for (size_t i = 0; i < WORDS; i++)
        between[i] = addresses[count / 2];
    release(addresses[count / 2]);
    begin();
    for (size_t i = 0; i < CALLS / 10; i++)
        launch(between);
    end("allocations: launch, 1 KiB of pointers between them", CALLS / 10);
    addresses[count / 2] = allocate(GRANULE);
    if (count < 4 * (size_t)WORDS)
        return;
    for (size_t i = 0; i < WORDS; i++) {
        between[i] = addresses[i * (count / WORDS)];
        release(between[i]);
    }
    begin();
    for (size_t i = 0; i < CALLS / 10; i++)
        launch(between);
    end("allocations: launch, 1 KiB of pointers, each between others", CALLS / 10);
    for (size_t i = 0; i < WORDS; i++)
        addresses[i * (count / WORDS)] = allocate(GRANULE);
}

static void measure_allocations(void)
{
    static const char all[] = "allocations: make";
    CUdeviceptr *addresses = calloc(count, sizeof(*addresses));
    struct ms_allocation_facts facts;
    must(addresses != NULL, "memory");
    if (!may_last(all) || !may_last("allocations: free, oldest first"))
        goto done;
    use_counted_addresses(true);
    next_address = (CUdeviceptr)0x7e0000000000;
    begin();
    for (size_t i = 0; i < count; i++)
        addresses[i] = allocate(GRANULE);
    end(all, 0);
    begin();
    for (size_t i = 0; i < count; i++)
        set(addresses[i], i, GRANULE);
    end("allocations: memset each", 0);
    begin();
    for (size_t i = 0; i < CALLS; i++)
        must(ms_space_look_up(addresses[random_below(count)] + 4096, &facts), "a block");
    end("allocations: look up an address", CALLS);
    begin();
    for (size_t i = 0; i < CALLS; i++)
        must(ms_space_find_pointed(addresses[random_below(count)] + 4096, &facts), "a block");
    end("allocations: which one does a pointer mean", CALLS);
    measure_launches(addresses);
    begin();
    for (size_t i = 0; i < CALLS; i++) {
        const size_t from = random_below(count), to = (from + 1) % count;
        must(copy_is_recorded(MS_COPY_ON_DEVICE, addresses[to], ms_side_of_device(addresses[from]),
                              GRANULE / 2),
             "cuMemcpyDtoD");
    }
    end("allocations: copy from one to another", CALLS);
    begin();
    for (size_t i = 0; i < count; i++)
        release(addresses[i]);
    end("allocations: free, oldest first", 0);
done:
    use_counted_addresses(false);
    free(addresses);
}

/* 0 to count - 1, in some order. Freed by the caller. */
static uint32_t *shuffled(void)
{
    uint32_t *order = calloc(count, sizeof(*order));
    must(order != NULL, "memory");
    for (size_t i = 0; i < count; i++)
        order[i] = (uint32_t)i;
    for (size_t i = count - 1; i > 0; i--) {
        const size_t at = random_below(i + 1);
        const uint32_t one = order[i];
        order[i] = order[at];
        order[at] = one;
    }
    return order;
}

/* As a caching allocator reports them; all in one allocation, which nobody writes. */
static void measure_blocks(void)
{
    static const char take[] = "blocks of one allocation: take";
    static const char give[] = "blocks of one allocation: return, lowest first";
    static const char mixed[] = "blocks of one allocation: return, in any order";
    struct ms_allocation_facts facts;
    if (!may_last(take) || !may_last(give))
        return;
    use_counted_addresses(true);
    next_address = (CUdeviceptr)0x7e0000000000;
    const CUdeviceptr segment = allocate(count * 2 * PIECE);
    begin();
    for (size_t i = 0; i < count; i++)
        ms_block_report(segment + i * 2 * PIECE, PIECE);
    end(take, 0);
    begin();
    for (size_t i = 0; i < CALLS; i++)
        must(ms_space_find_pointed(segment + random_below(count) * 2 * PIECE, &facts), "a block");
    end("blocks of one allocation: which one does a pointer mean", CALLS);
    begin();
    for (size_t i = 0; i < count; i++)
        ms_block_report(segment + i * 2 * PIECE, 0);
    end(give, 0);
    if (may_last(mixed)) {
        uint32_t *order = shuffled();
        for (size_t i = 0; i < count; i++)
            ms_block_report(segment + i * 2 * PIECE, PIECE);
        begin();
        for (size_t i = 0; i < count; i++)
            ms_block_report(segment + (size_t)order[i] * 2 * PIECE, 0);
        end(mixed, 0);
        free(order);
    }
    release(segment);
    use_counted_addresses(false);
}

/* The same in any order, and written. */
static void measure_written_blocks(void)
{
    static const char take[] = "blocks of one allocation: take and memset each, in any order";
    static const char give[] =
        "blocks of one allocation: return each that was written, in any order";
    if (!may_last(take) || !may_last(give))
        return;
    use_counted_addresses(true);
    next_address = (CUdeviceptr)0x7e0000000000;
    const CUdeviceptr segment = allocate(count * 2 * PIECE);
    uint32_t *order = shuffled();
    begin();
    for (size_t i = 0; i < count; i++) {
        const CUdeviceptr block = segment + (size_t)order[i] * 2 * PIECE;
        ms_block_report(block, PIECE);
        set(block, i, PIECE);
    }
    end(take, 0);
    begin();
    for (size_t i = 0; i < CALLS; i++) {
        const size_t one = random_below(count);
        set(segment + one * 2 * PIECE, one, PIECE);
    }
    end("blocks of one allocation: memset one again", CALLS);
    begin();
    for (size_t i = 0; i < count; i++)
        ms_block_report(segment + (size_t)order[count - 1 - i] * 2 * PIECE, 0);
    end(give, 0);
    free(order);
    release(segment);
    use_counted_addresses(false);
}

/* One block that stays deferred in all of them. */
static void measure_pieces(void)
{
    enum { MOST = 100000, SMALL = 512 };
    static const char first[] = "pieces of one block: memset each, in any order";
    if (count > MOST || !may_last(first))
        return;
    use_counted_addresses(true);
    const CUdeviceptr block = allocate(count * SMALL > GRANULE ? count * SMALL : GRANULE);
    uint32_t *order = shuffled();
    begin();
    for (size_t i = 0; i < count; i++)
        set(block + (size_t)order[i] * SMALL, i, SMALL);
    end(first, 0);
    begin();
    for (size_t i = 0; i < CALLS; i++) {
        const size_t one = random_below(count);
        set(block + one * SMALL, one, SMALL);
    }
    end("pieces of one block: memset one again", CALLS);
    free(order);
    release(block);
    use_counted_addresses(false);
}

/* The same in segments. */
static void measure_segments(void)
{
    enum { BLOCKS = 4096, SEGMENT = BLOCKS * 2 * PIECE };
    static const char take[] = "blocks of segments: take and memset each";
    static const char give[] = "blocks of segments: return each, and free";
    const size_t segments = (count + BLOCKS - 1) / BLOCKS;
    CUdeviceptr *addresses = calloc(segments, sizeof(*addresses));
    must(addresses != NULL, "memory");
    if (!may_last(take) || !may_last(give))
        goto done;
    use_counted_addresses(true);
    next_address = (CUdeviceptr)0x7e0000000000;
#define BLOCK(i) (addresses[(i) / BLOCKS] + (i) % BLOCKS * 2 * PIECE)
    begin();
    for (size_t i = 0; i < count; i++) {
        if (i % BLOCKS == 0)
            addresses[i / BLOCKS] = allocate(SEGMENT);
        ms_block_report(BLOCK(i), PIECE);
        set(BLOCK(i), i, PIECE);
    }
    end(take, 0);
    begin();
    for (size_t i = 0; i < CALLS; i++) {
        const size_t one = random_below(count);
        set(BLOCK(one), one, PIECE);
    }
    end("blocks of segments: memset one again", CALLS);
    begin();
    for (size_t i = 0; i < count; i++)
        ms_block_report(BLOCK(i), 0);
    for (size_t i = 0; i < segments; i++)
        release(addresses[i]);
    end(give, 0);
#undef BLOCK
done:
    use_counted_addresses(false);
    free(addresses);
}

/* --- files */

#define TENSOR_BYTES ((size_t)64 << 10) /* the least that is looked up in files without a plan */
#define FILE_TENSORS ((size_t)8192)
static const char *folder;

static void remove_file(__attribute__((unused)) int status, void *path)
{
    unlink(path);
    free(path);
}

/* A file with `bytes` of data, mapped as a loader does; it goes when the program ends. */
static const unsigned char *map_file(size_t bytes)
{
    static uint32_t words[1 << 18];
    char path[400];
    snprintf(path, sizeof(path), "%s/metashard-scale-XXXXXX", folder);
    int file = mkstemp(path);
    must(file >= 0, path);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        words[i] = (uint32_t)i * 2654435761u | 0x80000000u; /* no address */
    for (size_t done = 0; done < bytes; done += sizeof(words))
        must(write(file, words, sizeof(words)) == (ssize_t)sizeof(words), "write");
    must(fsync(file) == 0, "fsync");
    close(file); /* nobody writes */
    file = open(path, O_RDONLY);
    void *mapped = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, file, 0);
    must(mapped != MAP_FAILED, "mmap");
    close(file);
    on_exit(remove_file, strdup(path)); /* what has no name is copied at once */
    usleep(50000);                      /* a file that was changed just now is not trusted yet */
    return mapped;
}

enum { SEGMENT_TENSORS = 256, STEP = TENSOR_BYTES + PIECE /* so that two are not one extent */ };

/* The bytes of tensor i. The file has at most 512 MiB, so tensors share bytes. */
static const unsigned char *tensor_of(const unsigned char *mapped, size_t i)
{
    return mapped + i % FILE_TENSORS * TENSOR_BYTES;
}

/* The tensors of a segment from number `first` on into memory, some compared, and all given back.
 * In seconds. */
static double fill_segment(CUdeviceptr segment, size_t first, const unsigned char *mapped)
{
    const size_t tensors = count - first < SEGMENT_TENSORS ? count - first : SEGMENT_TENSORS;
    const double before = now();
    must(ms_access(segment, tensors * STEP, MS_NEED_READ) == CUDA_SUCCESS, "reading");
    ms_evict_let_go();
    const double seconds = now() - before;
    for (size_t i = 0; i < tensors; i += 1 + tensors / 8)
        must(memcmp((const void *)(uintptr_t)(segment + i * STEP), tensor_of(mapped, first + i),
                    TENSOR_BYTES) == 0,
             "the bytes of a tensor");
    return seconds;
}

/* Tensors of a file, each into a block of its own, and then into memory, of which a segment's is
 * there at a time. */
static void measure_tensors(void)
{
    static const char copy[] = "tensors of a file: copy each";
    static const char fill[] = "tensors of a file: bring into memory";
    const size_t segments = (count + SEGMENT_TENSORS - 1) / SEGMENT_TENSORS;
    const bool may_copy = may_last(copy), may_fill = may_last(fill);
    if (!may_copy)
        return;
    const size_t file_bytes = (count < FILE_TENSORS ? count : FILE_TENSORS) * TENSOR_BYTES;
    CUdeviceptr *addresses = calloc(segments, sizeof(*addresses));
    const unsigned char *mapped = map_file(file_bytes);
    must(addresses != NULL, "memory");
#define TENSOR(i) (addresses[(i) / SEGMENT_TENSORS] + (i) % SEGMENT_TENSORS * STEP)
    for (size_t i = 0; i < count; i++) {
        if (i % SEGMENT_TENSORS == 0)
            addresses[i / SEGMENT_TENSORS] = allocate((size_t)SEGMENT_TENSORS * STEP);
        ms_block_report(TENSOR(i), TENSOR_BYTES);
    }
    const uint64_t before = ms_counter_get(MS_COUNT_RECORDED_FILE_BYTES);
    use_idle_streams(true);
    begin();
    for (size_t i = 0; i < count; i++)
        copy_from(TENSOR(i), tensor_of(mapped, i), TENSOR_BYTES);
    end(copy, 0);
    use_idle_streams(false);
#undef TENSOR
    must(ms_counter_get(MS_COUNT_RECORDED_FILE_BYTES) - before == count * TENSOR_BYTES,
         "the file was not trusted");
    double seconds = 0;
    for (size_t i = 0; i < segments; i++) {
        if (may_fill)
            seconds += fill_segment(addresses[i], i * SEGMENT_TENSORS, mapped);
        release(addresses[i]);
    }
    if (may_fill)
        tell(fill, seconds, 0);
    munmap((void *)(uintptr_t)mapped, file_bytes);
    free(addresses);
}

/* A kernel before Linux 6.11, for good: it answers no queries about mappings. */
static void become_older(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOTTY),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {sizeof(code) / sizeof(code[0]), code};
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
             syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) ==
                 0,
         "a seccomp filter");
}

/* The least of several rounds: one copy makes system calls, which other work delays. */
static void measure_copies(const char *name, CUdeviceptr tensor, const unsigned char *source,
                           size_t count_there)
{
    enum { ROUNDS = 8, COPIES = 50 };
    double least = 0;
    for (size_t round = 0; round < ROUNDS; round++) {
        begin();
        for (size_t i = 0; i < COPIES; i++)
            copy_from(tensor, source + i % count_there * TENSOR_BYTES, TENSOR_BYTES);
        const double seconds = now() - began;
        least = round == 0 || seconds < least ? seconds : least;
    }
    tell(name, least, COPIES);
}

static void measure_mappings(bool is_older)
{
    enum { MOST = 20000 }; /* Linux allows 65530 of them */
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (count > MOST)
        return;
    const unsigned char *mapped = map_file(16 * TENSOR_BYTES);
    unsigned char *memory = malloc(TENSOR_BYTES);
    must(memory != NULL, "memory");
    memset(memory, 1, TENSOR_BYTES);
    const CUdeviceptr tensor = allocate(TENSOR_BYTES);
    unsigned char *pages =
        mmap(NULL, 2 * count * page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(pages != MAP_FAILED, "mmap");
    for (size_t i = 0; i < count; i++)
        must(mprotect(pages + 2 * i * page, page, PROT_NONE) == 0, "mprotect");
    use_idle_streams(true);
    measure_copies(is_older ? "mappings, before Linux 6.11: copy a tensor of a file"
                            : "mappings of the process: copy a tensor of a file",
                   tensor, mapped, 16);
    measure_copies(is_older ? "mappings, before Linux 6.11: copy memory of no file"
                            : "mappings of the process: copy memory of no file",
                   tensor, memory, 1);
    use_idle_streams(false);
    munmap(pages, 2 * count * page);
    release(tensor);
    free(memory);
    munmap((void *)(uintptr_t)mapped, 16 * TENSOR_BYTES);
}

/* As an allocator that grows: each mapping is a handle of its own. No bytes are due for the memory
 * that is brought in. */
static void measure_reservation(void)
{
    enum { MOST = 100000 };
    static const char make[] = "mappings of a reservation: create, map and give access to each",
                      bring[] = "mappings of a reservation: bring each into memory, in any order",
                      unmap[] = "mappings of a reservation: unmap each, lowest first";
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = access.location};
    const CUdeviceptr address = (CUdeviceptr)0x7e0000000000;
    CUresult result = CUDA_SUCCESS;
    if (count > MOST || !may_last(make) || !may_last(bring) || !may_last(unmap))
        return;
    use_counted_addresses(true);
    use_no_memory(true);
    ms_vmm_reserved(address, count * GRANULE);
    begin();
    for (size_t i = 0; i < count; i++) {
        CUmemGenericAllocationHandle handle;
        const CUdeviceptr at = address + i * GRANULE;
        must(ms_vmm_defer(GRANULE, &prop, &handle, &result) &&
                 ms_vmm_map(at, GRANULE, 0, handle, 0, &result) && result == CUDA_SUCCESS &&
                 ms_vmm_set_access(at, GRANULE, &access, 1, &result) && result == CUDA_SUCCESS &&
                 ms_vmm_release(handle, &result) && result == CUDA_SUCCESS,
             "a mapping");
    }
    end(make, 0);
    uint32_t *order = shuffled();
    begin();
    for (size_t i = 0; i < count; i++)
        must(ms_access(address + order[i] * GRANULE, GRANULE, MS_NEED_READ_WRITE) == CUDA_SUCCESS,
             "memory");
    end(bring, 0);
    free(order);
    begin();
    for (size_t i = 0; i < count; i++)
        must(ms_vmm_unmap(address + i * GRANULE, GRANULE, &result) && result == CUDA_SUCCESS,
             "cuMemUnmap");
    end(unmap, 0);
    must(ms_vmm_free_addresses(address, count * GRANULE, &result) && result == CUDA_SUCCESS,
         "cuMemAddressFree");
    use_no_memory(false);
    use_counted_addresses(false);
}

/* --- headers, and plans by pattern */

static char *make_header(size_t *bytes_out)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, bytes_out);
    must(out != NULL, "memory");
    for (size_t i = 0; i < count; i++)
        fprintf(out,
                "%c\"l%zu.part%zu.weight\":{\"dtype\":\"BF16\",\"shape\":[16,16],"
                "\"data_offsets\":[%zu,%zu]}",
                i == 0 ? '{' : ',', i / 8, i % 8, i * 512, (i + 1) * 512);
    fputc('}', out);
    fclose(out);
    return text;
}

static void measure_headers(void)
{
    static const char parse[] = "header of a file: parse",
                      lay[] = "header of a file: lay a plan over it";
    static const char text[] =
        "{\"format\":\"metashard-plan/1\",\"mesh\":{\"dp\":16},\"tensors\":["
        "{\"name\":\"*.part3.weight\",\"placements\":{\"dp\":{\"shard\":1}}},"
        "{\"name\":\"*\",\"placements\":{\"dp\":{\"shard\":0}}}]}";
    struct ms_checkpoint *checkpoint;
    struct ms_layout *layout;
    struct ms_plan *plan;
    struct ms_fault fault;
    size_t bytes;
    if (!may_last(parse) || !may_last(lay))
        return;
    char *header = make_header(&bytes), path[64];
    const int file = memfd_create("header", MFD_CLOEXEC);
    const uint64_t length = bytes;
    must(write(file, &length, 8) == 8 && write(file, header, bytes) == (ssize_t)bytes &&
             ftruncate(file, (off_t)(8 + bytes + count * 512)) == 0,
         "a file");
    snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    begin();
    must(ms_checkpoint_open(path, &checkpoint, &fault), "a header");
    end(parse, 0);
    must(ms_plan_parse(text, strlen(text), "plan", &plan, &fault), "a plan");
    begin();
    must(ms_layout_create(plan, checkpoint, &layout, &fault), "a layout");
    end(lay, 0);
    ms_layout_destroy(layout);
    ms_plan_destroy(plan);
    ms_checkpoint_close(checkpoint);
    close(file);
    free(header);
}

/* --- */

static void open_device(const char *kernels)
{
    CUcontext context;
    CUmodule module;
    char name[40];
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
    ms_lifetime_begin(environ, "");
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: scale KERNELS FOLDER [LARGEST [SECONDS]]\n");
        return 2;
    }
    const size_t largest = argc > 3 ? strtoull(argv[3], NULL, 10) : 1000000;
    if (argc > 4)
        limit = strtod(argv[4], NULL);
    folder = argv[2];
    open_device(argv[1]);
    for (count = 100; count <= largest; count *= 10) {
        measure_allocations();
        measure_blocks();
        measure_written_blocks();
        measure_pieces();
        measure_segments();
        measure_tensors();
        measure_mappings(false);
        measure_reservation();
        measure_headers();
    }
    become_older();
    for (count = 100; count <= largest; count *= 10)
        measure_mappings(true);
    return 0;
}
