/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses, and bytes that only look like addresses: among parameters, and in bytes that are
 * copied to the device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/driver/differential/scenario.h"
#include "tools/simcuda/kernels/torch_kernels.h"

enum { ROWS = 2048, COLUMNS = 512, MATRIX_BYTES = ROWS * COLUMNS * 4 };

/* Leaves what may have been on the stack before: pairs of small numbers, and addresses of host
 * memory without access. */
static void litter(struct torch_copy *copy, CUdeviceptr deferred)
{
    static char *closed;
    if (closed == NULL)
        closed = mmap(NULL, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const uint64_t words[] = {(uint64_t)(uintptr_t)closed + 64, deferred,
                              (uint64_t)(uintptr_t)&words, UINT64_C(0x500000010)};
    unsigned char *bytes = (unsigned char *)copy;
    for (size_t at = 0; at + 8 <= sizeof(*copy); at += 8)
        memcpy(bytes + at, &words[at / 8 % 4], 8);
}

/* PyTorch's copy of a matrix that is transposed: no rows, and strides that look like low
 * addresses. */
static void transpose(CUdeviceptr to, CUdeviceptr from, CUdeviceptr deferred)
{
    static CUmodule module;
    CUfunction kernel;
    struct torch_copy copy;
    int count = ROWS * COLUMNS;
    void *params[] = {&count, &copy};
    if (module == NULL)
        OK(cuModuleLoad(&module, getenv("TORCH_KERNELS")));
    OK(cuModuleGetFunction(&kernel, module, TORCH_NAME(TORCH_COPY)));
    litter(&copy, deferred);
    copy.data[0] = to;
    copy.data[1] = from;
    copy.offsets.dims = 2;
    copy.offsets.sizes[0].divisor = COLUMNS;
    copy.offsets.sizes[1].divisor = ROWS;
    const uint32_t strides[2][2] = {{ROWS * 4, 4}, {4, COLUMNS * 4}};
    memcpy(copy.offsets.strides, strides, sizeof(strides));
    OK(cuLaunchKernel(kernel, count / 512, 1, 1, 128, 1, 1, 0, NULL, params, NULL));
}

/* GiBs that are deferred, which begin at whatever address the driver gives, or the shim wants; none
 * without the shim. */
static CUdeviceptr defer(void)
{
    CUdeviceptr last = 0;
    for (int i = 0; i < atoi(getenv("DEFERRED_GIB")); i++) {
        last = allocate(1024 * MIB);
        OK(cuMemsetD8(last, (unsigned char)i, 1024 * MIB));
    }
    return last;
}

/* Four strided copies beside what is deferred. */
SCENARIO(strided)
{
    const CUdeviceptr deferred = defer();
    for (unsigned i = 0; i < 4; i++) {
        const CUdeviceptr from = load_file(MATRIX_BYTES);
        const CUdeviceptr to = allocate(MATRIX_BYTES);
        transpose(to, from, deferred);
        OK(cuMemFree(from));
        print_bytes("transposed", to, MATRIX_BYTES);
    }
}

/* The source has memory already, or the destination has. */
SCENARIO(strided_in_memory)
{
    const CUdeviceptr deferred = defer();
    const CUdeviceptr from = load_file(MATRIX_BYTES);
    const CUdeviceptr to = allocate(MATRIX_BYTES);
    print_bytes("read", from, MATRIX_BYTES);
    OK(cuMemsetD8(from, 7, 4096)); /* nothing can restore it now */
    print_bytes("read", from, MATRIX_BYTES);
    transpose(to, from, deferred);
    print_bytes("from memory", to, MATRIX_BYTES);
    const CUdeviceptr other = load_file(MATRIX_BYTES);
    transpose(to, other, deferred);
    print_bytes("to memory", to, MATRIX_BYTES);
}

/* A kernel that no rule names, which is given an address of the host and looks at nothing. */
static void pass_host_address(int access)
{
    CUdeviceptr to = allocate(4096);
    uint64_t count = 0;
    const void *memory = mmap(NULL, 1 << 20, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *params[] = {&to, &memory, &count};
    defer();
    const CUdeviceptr block = load_file(4 * MIB);
    OK(cuLaunchKernel(function("gather32"), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    print_bytes("beside it", block, 4096);
}

SCENARIO(closed_memory)
{
    pass_host_address(PROT_NONE);
}

SCENARIO(open_memory)
{
    pass_host_address(PROT_READ);
}

/* --- addresses that are not words of their own */

struct record {
    char tag;
    CUdeviceptr address;
} __attribute__((packed));

static void print_word(CUdeviceptr at)
{
    uint32_t word = 0;
    const CUresult result = cuMemcpyDtoH(&word, at, sizeof(word));
    printf("result %d, word %x\n", (int)result, word);
}

static CUdeviceptr numbered(unsigned number)
{
    const CUdeviceptr block = allocate(4 * MIB);
    OK(cuMemsetD32(block, 0x1000 + number, MIB));
    return block;
}

SCENARIO(packed_parameter)
{
    CUdeviceptr out = allocate(4096);
    struct record record = {1, numbered(1) + MIB};
    void *params[] = {&out, &record};
    OK(cuLaunchKernel(function("read_packed32"), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    print_word(out);
}

static void read_records(CUdeviceptr table, uint64_t count)
{
    CUdeviceptr out = allocate(4096);
    void *params[] = {&out, &table, &count};
    OK(cuLaunchKernel(function("read_records32"), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    for (uint64_t i = 0; i < count; i++)
        print_word(out + 4 * i);
}

SCENARIO(packed_records)
{
    enum { COUNT = 20 };
    struct record records[COUNT];
    const CUdeviceptr table = allocate(4096);
    for (unsigned i = 0; i < COUNT; i++)
        records[i] = (struct record){(char)i, numbered(i) + 4 * i};
    OK(cuMemcpyHtoD(table, records, sizeof(records)));
    read_records(table, COUNT);
}

/* In a large copy, which becomes a snapshot, around the places where that is cut for the
 * processor's caches (pointer_scan.c). */
SCENARIO(records_of_a_snapshot)
{
    enum { COUNT = 9, PART = 32 << 10 };
    unsigned char *host = malloc(4 * MIB);
    const CUdeviceptr table = allocate(4 * MIB);
    memset(host, 3, 4 * MIB);
    for (unsigned i = 0; i < COUNT; i++) {
        const struct record record = {(char)i, numbered(i)};
        memcpy(host + (i + 1) * PART - i - 1, &record, sizeof(record));
    }
    OK(cuMemcpyHtoD(table, host, 4 * MIB));
    free(host);
    for (unsigned i = 0; i < COUNT; i++)
        read_records(table + (i + 1) * PART - i - 1, 1);
}

/* A copy has some bytes of each address, a second one the others; the later ones first, or last. */
SCENARIO(in_two_copies)
{
    for (unsigned first = 1; first < 8; first++) {
        for (unsigned order = 0; order < 2; order++) {
            const struct record record = {(char)first, numbered(first)};
            const char *bytes = (const char *)&record;
            const CUdeviceptr table = allocate(4096);
            const unsigned cut = 1 + first;
            if (order == 0)
                OK(cuMemcpyHtoD(table, bytes, cut));
            OK(cuMemcpyHtoD(table + cut, bytes + cut, sizeof(record) - cut));
            if (order == 1)
                OK(cuMemcpyHtoD(table, bytes, cut));
            read_records(table, 1);
        }
    }
}
