/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loads WAY CHECKPOINT TENSORS: copies the tensors of a checkpoint to the device as loaders do, and
 * reads them back there. loads.py makes the checkpoint, and runs this under strace without and with
 * the preload. WAY is where the copied bytes lie:
 *
 *     mapped    in a buffer of pinned memory, copied from a mapping of the file (safetensors 0.8)
 *     pinned    the same, read into it
 *     read      in pageable memory, read into it (torch.load)
 *     by hand   in two buffers of pinned memory, by turns, so that a read and a copy overlap: the
 *               least that a program can do
 *
 * Prints the processor seconds of all threads, while it loads, then while it copies back. Looks for
 * files that are not there say in the trace where the loading begins and ends. The exit status is 1
 * if a byte differs.
 */
#include <cuda.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void must(CUresult result)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "loads: CUDA error %d\n", (int)result);
    exit(1);
}

static void require(int condition, const char *what)
{
    if (condition)
        return;
    perror(what);
    exit(1);
}

static void mark(const char *name)
{
    (void)!access(name, F_OK);
}

static double processor_s(void)
{
    struct timespec spent;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
    return (double)spent.tv_sec + (double)spent.tv_nsec * 1e-9;
}

enum { BUFFERS = 2 };

static struct {
    int file;
    const char *mapped; /* NULL: it is read */
    size_t first, tensor_bytes;
    char *buffers[BUFFERS];
    CUevent copied[BUFFERS];
    bool is_by_hand; /* else only the first buffer is used */
} load;

/* The first copy, and the work that the shim starts with the copy, are no part of loading. */
static void copy_other(void)
{
    CUdeviceptr copy;
    memset(load.buffers[0], 1, load.tensor_bytes);
    must(cuMemAlloc(&copy, load.tensor_bytes));
    must(cuMemcpyHtoD(copy, load.buffers[0], load.tensor_bytes));
    must(cuMemFree(copy));
}

static void make_buffers(bool are_pinned)
{
    for (size_t i = 0; i < BUFFERS; i++) {
        if (are_pinned)
            must(cuMemHostAlloc((void **)&load.buffers[i], load.tensor_bytes, 0));
        else
            load.buffers[i] = malloc(load.tensor_bytes);
        memset(load.buffers[i], 1, load.tensor_bytes);
        must(cuEventCreate(&load.copied[i], CU_EVENT_DISABLE_TIMING));
    }
}

static void begin(const char *way, const char *path, size_t tensors)
{
    struct stat stat;
    uint64_t header_bytes = 0;
    load.file = open(path, O_RDONLY);
    require(fstat(load.file, &stat) == 0 &&
                pread(load.file, &header_bytes, sizeof(header_bytes), 0) == sizeof(header_bytes),
            path);
    load.first = sizeof(header_bytes) + header_bytes;
    load.tensor_bytes = ((size_t)stat.st_size - load.first) / tensors;
    load.is_by_hand = strcmp(way, "by hand") == 0;
    make_buffers(strcmp(way, "read") != 0);
    copy_other();
    mark("/begin");
    if (strcmp(way, "mapped") == 0)
        load.mapped = mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_PRIVATE, load.file, 0);
    require(load.mapped != MAP_FAILED, path);
}

static void stage(size_t number, char *buffer)
{
    const size_t at = load.first + number * load.tensor_bytes;
    if (load.mapped != NULL)
        memcpy(buffer, load.mapped + at, load.tensor_bytes);
    else
        require(pread(load.file, buffer, load.tensor_bytes, (off_t)at) ==
                    (ssize_t)load.tensor_bytes,
                "pread");
}

/* A tensor is in its buffer until the copy is over. */
static void copy(CUdeviceptr to, size_t number)
{
    const size_t buffer = load.is_by_hand ? number % BUFFERS : 0;
    must(cuEventSynchronize(load.copied[buffer]));
    stage(number, load.buffers[buffer]);
    if (load.is_by_hand) {
        must(cuMemcpyHtoDAsync(to, load.buffers[buffer], load.tensor_bytes, NULL));
        must(cuEventRecord(load.copied[buffer], NULL));
    } else {
        must(cuMemcpyHtoD(to, load.buffers[buffer], load.tensor_bytes));
    }
}

/* Returns the processor seconds of the copies. */
static double copy_back(const CUdeviceptr *copies, size_t tensors)
{
    char *found = malloc(load.tensor_bytes);
    double spent_s = 0;
    memset(found, 1, load.tensor_bytes);
    for (size_t i = 0; i < tensors; i++) {
        const double before_s = processor_s();
        must(cuMemcpyDtoH(found, copies[i], load.tensor_bytes));
        spent_s += processor_s() - before_s;
        stage(i, load.buffers[0]);
        if (memcmp(found, load.buffers[0], load.tensor_bytes) != 0)
            exit(1);
    }
    return spent_s;
}

int main(int argc, char **argv)
{
    CUcontext context;
    if (argc != 4)
        return 2;
    const size_t tensors = strtoull(argv[3], NULL, 10);
    CUdeviceptr *copies = calloc(tensors, sizeof(*copies));
    must(cuInit(0));
    must(cuDevicePrimaryCtxRetain(&context, 0));
    must(cuCtxSetCurrent(context));
    begin(argv[1], argv[2], tensors);
    const double before_s = processor_s();
    for (size_t i = 0; i < tensors; i++) {
        must(cuMemAlloc(&copies[i], load.tensor_bytes));
        copy(copies[i], i);
    }
    must(cuCtxSynchronize());
    printf("%.6f\n", processor_s() - before_s);
    mark("/loaded");
    printf("%.6f\n", copy_back(copies, tensors));
    mark("/end");
    return 0;
}
