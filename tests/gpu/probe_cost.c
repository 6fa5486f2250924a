/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of the VMM calls, on an idle device. */
#include "tests/gpu/probe.h"

#include <string.h>

enum cost { CREATE, MAP, SET_ACCESS, UNMAP, RELEASE, COST_COUNT };
static const char *const cost_keys[COST_COUNT] = {"create", "map", "set_access", "unmap",
                                                  "release"};
static struct samples costs[COST_COUNT];

static void costs_print(void)
{
    for (int i = 0; i < COST_COUNT; i++)
        if (costs[i].count > 0)
            samples_print(&costs[i], cost_keys[i]);
}

static void one_handle(CUdeviceptr address, size_t bytes)
{
    const CUmemAllocationProp property = probe_property();
    const CUmemAccessDesc access = {.location = property.location,
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    TIMED(&costs[CREATE], cuMemCreate, &handle, bytes, &property, 0);
    TIMED(&costs[MAP], cuMemMap, address, bytes, 0, handle, 0);
    TIMED(&costs[SET_ACCESS], cuMemSetAccess, address, bytes, &access, 1);
    TIMED(&costs[UNMAP], cuMemUnmap, address, bytes);
    TIMED(&costs[RELEASE], cuMemRelease, handle);
}

static void cost_of_size(size_t bytes)
{
    memset(costs, 0, sizeof(costs));
    const int runs = probe_quick ? 5 : bytes > 64 * MIB ? 20 : 100;
    const CUdeviceptr address = probe_reserve(bytes);
    for (int i = 0; i < runs; i++)
        one_handle(address, bytes);
    costs_print();
    TRY(cuMemAddressFree, address, bytes);
}

/* 256 granules side by side; calls that can span them do so when `spanning`. */
static void batch(size_t spanning)
{
    const size_t count = probe_quick ? 32 : 256, pieces = spanning ? 1 : count;
    const size_t bytes = count * GRANULE, piece_bytes = bytes / pieces;
    CUmemGenericAllocationHandle handles[256];
    const CUmemAllocationProp property = probe_property();
    const CUmemAccessDesc access = {.location = property.location,
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const CUdeviceptr address = probe_reserve(bytes);
    memset(costs, 0, sizeof(costs));
    const int64_t start_ns = probe_clock_ns();
    for (size_t i = 0; i < count; i++)
        TIMED(&costs[CREATE], cuMemCreate, &handles[i], GRANULE, &property, 0);
    for (size_t i = 0; i < count; i++)
        TIMED(&costs[MAP], cuMemMap, address + i * GRANULE, GRANULE, 0, handles[i], 0);
    for (size_t i = 0; i < pieces; i++)
        TIMED(&costs[SET_ACCESS], cuMemSetAccess, address + i * piece_bytes, piece_bytes, &access,
              1);
    const int64_t backed_ns = probe_clock_ns();
    for (size_t i = 0; i < pieces; i++)
        TIMED(&costs[UNMAP], cuMemUnmap, address + i * piece_bytes, piece_bytes);
    for (size_t i = 0; i < count; i++)
        TIMED(&costs[RELEASE], cuMemRelease, handles[i]);
    const int64_t dropped_ns = probe_clock_ns();
    js_int("handles", (long long)count);
    js_us("back_all_us", backed_ns - start_ns);
    js_us("drop_all_us", dropped_ns - backed_ns);
    costs_print();
    TRY(cuMemAddressFree, address, bytes);
}

/* The calls that the shim replaces, for comparison. */
static void cost_of_alloc(size_t bytes)
{
    struct samples alloc = {0}, release = {0};
    for (int i = 0; i < (probe_quick ? 5 : 50); i++) {
        CUdeviceptr address = 0;
        TIMED(&alloc, cuMemAlloc_v2, &address, bytes);
        TIMED(&release, cuMemFree_v2, address);
    }
    samples_print(&alloc, "alloc");
    samples_print(&release, "free");
}

/* First with the properties the runtime will ask for, to see whether they cost anything. */
static void cost_of_properties(size_t unused)
{
    struct samples plain = {0}, shared = {0};
    CUmemAllocationProp property = probe_property();
    for (int i = 0; i < (probe_quick ? 10 : 100); i++) {
        CUmemGenericAllocationHandle handle = 0;
        property.requestedHandleTypes = i % 2 ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
        property.allocFlags.gpuDirectRDMACapable = i % 2;
        TIMED(i % 2 ? &shared : &plain, cuMemCreate, &handle, GRANULE, &property, 0);
        TRY(cuMemRelease, handle);
    }
    samples_print(&plain, "plain");
    samples_print(&shared, "posix_fd_and_rdma");
}

const struct probe_row section_cost[] = {
    {"handle_2_mib", cost_of_size, 2 * MIB},   {"handle_20_mib", cost_of_size, 20 * MIB},
    {"handle_64_mib", cost_of_size, 64 * MIB}, {"handle_512_mib", cost_of_size, 512 * MIB},
    {"granules_one_call_each", batch, false},  {"granules_spanning_calls", batch, true},
    {"alloc_2_mib", cost_of_alloc, 2 * MIB},   {"alloc_20_mib", cost_of_alloc, 20 * MIB},
    {"alloc_64_mib", cost_of_alloc, 64 * MIB}, {"alloc_512_mib", cost_of_alloc, 512 * MIB},
    {"handle_properties", cost_of_properties}, {NULL},
};
