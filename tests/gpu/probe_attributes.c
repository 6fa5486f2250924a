/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's answers about an address, for every kind of memory side by side. */
#include "tests/gpu/probe.h"

#include <stdlib.h>
#include <string.h>

enum { KINDS_MAX = 16 };
static struct kind {
    const char *name;
    CUdeviceptr address; /* the one asked about */
    CUdeviceptr base;    /* addresses in answers are printed relative to it */
} kinds[KINDS_MAX];
static int kind_count;

static void add_kind(const char *name, CUdeviceptr base, size_t offset)
{
    if (base != 0)
        kinds[kind_count++] = (struct kind){name, base + offset, base};
}

/* Two handles mapped side by side, then a hole, in one reservation of 8 granules. */
static void add_vmm_kinds(void)
{
    const CUdeviceptr base = probe_reserve(8 * GRANULE);
    probe_map(base, GRANULE, probe_create(GRANULE));
    probe_map(base + GRANULE, 2 * GRANULE, probe_create(2 * GRANULE));
    probe_map(base + 6 * GRANULE, GRANULE, probe_create(GRANULE));
    probe_give_access(base, 3 * GRANULE);
    add_kind("reserved_never_mapped", probe_reserve(4 * GRANULE), GRANULE + 100);
    add_kind("mapped_first_handle", base, 100);
    add_kind("mapped_second_handle", base, 2 * GRANULE + 100);
    add_kind("hole_beside_mapped", base, 4 * GRANULE + 100);
    add_kind("mapped_without_access", base, 6 * GRANULE);
    const CUdeviceptr emptied = probe_mapped(GRANULE);
    TRY(cuMemUnmap, emptied, GRANULE);
    add_kind("unmapped_again", emptied, 100);
}

static void add_other_kinds(void)
{
    CUdeviceptr pool = 0, managed = 0;
    if (CU(cuMemAllocAsync, &pool, 4 * MIB, NULL) == CUDA_SUCCESS)
        add_kind("alloc_async", pool, 100);
    if (CU(cuMemAllocManaged, &managed, 4 * MIB, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS)
        add_kind("managed", managed, 100);
    add_kind("alloc_large", probe_alloc(20 * MIB), 3 * MIB + 100);
    add_kind("alloc_small", probe_alloc(1000), 100);
    const CUdeviceptr freed = probe_alloc(64 * MIB);
    TRY(cuMemFree_v2, freed);
    add_kind("freed", freed, 100);
    add_kind("pinned_host", (CUdeviceptr)(uintptr_t)probe_pinned(MIB), 100);
    add_kind("pageable_host", (CUdeviceptr)(uintptr_t)calloc(1, MIB), 100);
    add_kind("wild", 0x123456789000, 0);
}

/* The answer's bytes are told from what was there before by a pattern. */
static void print_answer(const unsigned char *answer, size_t capacity, const struct kind *kind)
{
    uint64_t value = 0;
    size_t bytes = capacity;
    while (bytes > 0 && answer[bytes - 1] == 0x5a)
        bytes--;
    memcpy(&value, answer, bytes < 8 ? bytes : 8);
    js_int("bytes", (long long)bytes);
    if (value >= kind->base && value - kind->base < GIB)
        js_format("value", "base+%llu", (unsigned long long)(value - kind->base));
    else
        js_address("value", value);
}

static void print_attribute(CUpointer_attribute attribute, const struct kind *kind)
{
    unsigned char answer[64];
    memset(answer, 0x5a, sizeof(answer));
    const CUresult result = CU(cuPointerGetAttribute, answer, attribute, kind->address);
    js_open(kind->name);
    js_result("result", result);
    if (result == CUDA_SUCCESS)
        print_answer(answer, sizeof(answer), kind);
    js_close();
}

static void print_address_range(const struct kind *kind)
{
    CUdeviceptr base = 0;
    size_t bytes = 0;
    const CUresult result = CU(cuMemGetAddressRange_v2, &base, &bytes, kind->address);
    js_open(kind->name);
    js_result("result", result);
    if (result == CUDA_SUCCESS) {
        js_int("base_minus_start", (long long)(base - kind->base));
        js_int("bytes", (long long)bytes);
    }
    js_close();
}

/* The plural form answers zeros where the singular one fails. */
static void print_plural(const struct kind *kind)
{
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                   CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                   CU_POINTER_ATTRIBUTE_MAPPED};
    unsigned type = 0x5a5a5a5a, managed = 0, mapped = 0;
    int ordinal = -7;
    CUdeviceptr pointer = 0;
    void *data[] = {&type, &pointer, &managed, &ordinal, &mapped};
    const CUresult result =
        CU(cuPointerGetAttributes, (unsigned)ARRAY_COUNT(which), which, data, kind->address);
    js_open(kind->name);
    js_result("result", result);
    js_int("memory_type", (int)type);
    js_bool("device_pointer_is_address", pointer == kind->address);
    js_int("device_ordinal", ordinal);
    js_int("mapped_first_byte", (int)(mapped & 0xff));
    js_close();
}

static void print_access(const struct kind *kind)
{
    const CUmemLocation location = probe_location();
    unsigned long long flags = 0;
    CUmemGenericAllocationHandle handle = 0;
    js_open(kind->name);
    js_result("get_access", CU(cuMemGetAccess, &flags, &location, kind->address));
    js_int("flags", (long long)flags);
    js_result("retain_handle",
              CU(cuMemRetainAllocationHandle, &handle, (void *)(uintptr_t)kind->address));
    js_close();
}

static void print_sync_memops(const struct kind *kind)
{
    unsigned on = 1;
    js_result(kind->name,
              CU(cuPointerSetAttribute, &on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, kind->address));
}

static void print_ipc(const struct kind *kind)
{
    CUipcMemHandle handle;
    js_result(kind->name, CU(cuIpcGetMemHandle, &handle, kind->address));
}

static void make_kinds(size_t unused)
{
    add_vmm_kinds();
    add_other_kinds();
}

static void ask_attribute(size_t attribute)
{
    for (int i = 0; i < kind_count; i++)
        print_attribute((CUpointer_attribute)attribute, &kinds[i]);
}

static void ask(size_t print)
{
    for (int i = 0; i < kind_count; i++)
        ((void (*)(const struct kind *))print)(&kinds[i]);
}

#define ATTRIBUTES(X)                                                                              \
    X(CONTEXT), X(MEMORY_TYPE), X(DEVICE_POINTER), X(HOST_POINTER), X(P2P_TOKENS), X(SYNC_MEMOPS), \
        X(BUFFER_ID), X(IS_MANAGED), X(DEVICE_ORDINAL), X(IS_LEGACY_CUDA_IPC_CAPABLE),             \
        X(RANGE_START_ADDR), X(RANGE_SIZE), X(MAPPED), X(ALLOWED_HANDLE_TYPES),                    \
        X(IS_GPU_DIRECT_RDMA_CAPABLE), X(ACCESS_FLAGS), X(MEMPOOL_HANDLE), X(MAPPING_SIZE),        \
        X(MAPPING_BASE_ADDR), X(MEMORY_BLOCK_ID), X(IS_HW_DECOMPRESS_CAPABLE)
#define ATTRIBUTE(name)                                   \
    {                                                     \
#name, ask_attribute, CU_POINTER_ATTRIBUTE_##name \
    }
#define ASK(key, print)           \
    {                             \
        key, ask, (size_t)(print) \
    }
const struct probe_row section_attributes[] = {
    {NULL, make_kinds},
    ATTRIBUTES(ATTRIBUTE),
    ASK("cuMemGetAddressRange", print_address_range),
    ASK("cuPointerGetAttributes", print_plural),
    ASK("access", print_access),
    ASK("cuIpcGetMemHandle", print_ipc),
    ASK("set_sync_memops", print_sync_memops),
    {NULL, probe_wait},
    {NULL},
};
