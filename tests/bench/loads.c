/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loads WAY CHECKPOINT TENSORS: copies the tensors of a checkpoint to the device as loaders do, and
 * reads them back there. loads.py makes the checkpoint, and runs this under strace without and with
 * the preload. WAY is where the copied bytes lie:
 *
 *     mapped    in a buffer of pinned memory, copied from a mapping of the file (safetensors 0.8)
 *     pinned    the same, read into it
 *     read      in pageable memory, read into it (torch.load)
 *
 * Looks for files that are not there say in the trace where the loading begins and ends. The exit
 * status is 1 if a byte differs.
 */
#include <cuda.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
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

static struct {
    int file;
    const char *mapped; /* NULL: it is read */
    size_t first, tensor_bytes;
    char *buffer;
} load;

/* The first copy, and the work that the shim starts with the copy, are no part of loading. */
static void copy_other(void)
{
    CUdeviceptr copy;
    memset(load.buffer, 1, load.tensor_bytes);
    must(cuMemAlloc(&copy, load.tensor_bytes));
    must(cuMemcpyHtoD(copy, load.buffer, load.tensor_bytes));
    must(cuMemFree(copy));
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
    if (strcmp(way, "read") == 0)
        load.buffer = malloc(load.tensor_bytes);
    else
        must(cuMemHostAlloc((void **)&load.buffer, load.tensor_bytes, 0));
    copy_other();
    mark("/begin");
    if (strcmp(way, "mapped") == 0)
        load.mapped = mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_PRIVATE, load.file, 0);
    require(load.mapped != MAP_FAILED, path);
}

static void stage(size_t number)
{
    const size_t at = load.first + number * load.tensor_bytes;
    if (load.mapped != NULL)
        memcpy(load.buffer, load.mapped + at, load.tensor_bytes);
    else
        require(pread(load.file, load.buffer, load.tensor_bytes, (off_t)at) ==
                    (ssize_t)load.tensor_bytes,
                "pread");
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
    for (size_t i = 0; i < tensors; i++) {
        must(cuMemAlloc(&copies[i], load.tensor_bytes));
        stage(i);
        must(cuMemcpyHtoD(copies[i], load.buffer, load.tensor_bytes));
    }
    mark("/loaded");
    char *found = malloc(load.tensor_bytes);
    for (size_t i = 0; i < tensors; i++) {
        must(cuMemcpyDtoH(found, copies[i], load.tensor_bytes));
        stage(i);
        if (memcmp(found, load.buffer, load.tensor_bytes) != 0)
            return 1;
    }
    mark("/end");
    return 0;
}
