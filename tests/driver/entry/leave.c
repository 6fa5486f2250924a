/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leave FILE: a program that ends with deferred memory of every kind: 8 MiB of FILE (its first byte
 * read back), 4 MiB of a pattern, 3 MiB from the heap, of which the last is zeros, and one
 * allocation that it frees. leave FILE pieces: the same, and 5 MiB set and 6 MiB copied in many
 * small pieces. leave FILE limited: the same, and in the end no file may grow beyond 100 bytes.
 */
#include <cuda.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define MIB ((size_t)1 << 20)

static void must(CUresult result)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "leave: CUDA error %d\n", result);
    exit(1);
}

static void write_pieces(CUdeviceptr pattern)
{
    CUdeviceptr set, copied;
    must(cuMemAlloc(&set, 5 * MIB));
    must(cuMemAlloc(&copied, 6 * MIB));
    for (size_t i = 0; i < 70000; i++) {
        must(cuMemsetD8(set + 70 * i, (unsigned char)i, 7));
        must(cuMemcpyDtoD(copied + 70 * i, pattern, 7));
    }
}

int main(int argc, char **argv)
{
    CUcontext context;
    CUdeviceptr of_file, of_pattern, of_heap, freed;
    unsigned char byte;
    const int file = argc >= 2 ? open(argv[1], O_RDONLY) : -1;
    void *mapping = mmap(NULL, 8 * MIB, PROT_READ, MAP_PRIVATE, file, 0);
    if (mapping == MAP_FAILED) {
        perror("leave");
        return 2;
    }
    must(cuInit(0));
    must(cuDevicePrimaryCtxRetain(&context, 0));
    must(cuCtxSetCurrent(context));
    must(cuMemAlloc(&of_file, 8 * MIB));
    must(cuMemAlloc(&of_pattern, 4 * MIB));
    must(cuMemAlloc(&of_heap, 3 * MIB));
    must(cuMemAlloc(&freed, 16 * MIB));
    must(cuMemcpyHtoD(of_file, mapping, 8 * MIB));
    must(cuMemsetD16(of_pattern, 0x1234, 2 * MIB));
    must(cuMemcpyHtoD(of_heap, memset(malloc(2 * MIB), 7, 2 * MIB), 2 * MIB));
    must(cuMemcpyHtoD(of_heap + 2 * MIB, calloc(1, MIB), MIB));
    must(cuMemcpyDtoH(&byte, of_file, 1));
    must(cuMemFree(freed));
    if (argc == 3 && strcmp(argv[2], "pieces") == 0)
        write_pieces(of_pattern);
    if (argc == 3 && strcmp(argv[2], "limited") == 0)
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){100, 100});
    return 0;
}
