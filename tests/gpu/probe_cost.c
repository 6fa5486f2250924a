/* SPDX-License-Identifier: Apache-2.0 */
/* What the VMM calls cost, on an idle device. */
#include "tests/gpu/probe.h"

enum cost { CREATE, MAP, SET_ACCESS, UNMAP, RELEASE, COST_COUNT };
static const char *const cost_keys[COST_COUNT] = {"create", "map", "set_access", "unmap",
                                                  "release"};
static struct samples costs[COST_COUNT];

static void costs_reset(void)
{
    for (int i = 0; i < COST_COUNT; i++)
        costs[i].count = 0;
}

static void costs_print(void)
{
    for (int i = 0; i < COST_COUNT; i++)
        if (costs[i].count > 0)
            samples_print(&costs[i], cost_keys[i]);
}

#define TIMED(cost, name, ...)                                        \
    do {                                                              \
        const int64_t timed_start_ns = probe_clock_ns();              \
        const CUresult timed_result = CU(name, __VA_ARGS__);          \
        samples_add(&costs[cost], probe_clock_ns() - timed_start_ns); \
        probe_require(#name, timed_result);                           \
    } while (0)

static void one_handle(CUdeviceptr address, size_t bytes)
{
    const CUmemAllocationProp property = probe_property();
    const CUmemAccessDesc access = {.location = property.location,
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    TIMED(CREATE, cuMemCreate, &handle, bytes, &property, 0);
    TIMED(MAP, cuMemMap, address, bytes, 0, handle, 0);
    TIMED(SET_ACCESS, cuMemSetAccess, address, bytes, &access, 1);
    TIMED(UNMAP, cuMemUnmap, address, bytes);
    TIMED(RELEASE, cuMemRelease, handle);
}

static void cost_of_size(void *bytes_)
{
    const size_t bytes = *(const size_t *)bytes_;
    const int runs = probe_quick ? 5 : bytes > 64 * MIB ? 20 : 100;
    const CUdeviceptr address = probe_reserve(bytes);
    costs_reset();
    for (int i = 0; i < runs; i++)
        one_handle(address, bytes);
    costs_print();
    TRY(cuMemAddressFree, address, bytes);
}

static size_t batch_handles(void)
{
    return probe_quick ? 32 : 256;
}

static void batch_create(CUmemGenericAllocationHandle *handles)
{
    const CUmemAllocationProp property = probe_property();
    for (size_t i = 0; i < batch_handles(); i++)
        TIMED(CREATE, cuMemCreate, &handles[i], GRANULE, &property, 0);
}

/* 256 granules side by side; calls that can span them do so when `spanning`. */
static void batch(void *spanning_)
{
    const bool spanning = *(const bool *)spanning_;
    const size_t count = batch_handles(), pieces = spanning ? 1 : count;
    const size_t bytes = count * GRANULE, piece_bytes = bytes / pieces;
    CUmemGenericAllocationHandle handles[256];
    const CUmemAccessDesc access = {.location = probe_property().location,
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const CUdeviceptr address = probe_reserve(bytes);
    costs_reset();
    const int64_t start_ns = probe_clock_ns();
    batch_create(handles);
    for (size_t i = 0; i < count; i++)
        TIMED(MAP, cuMemMap, address + i * GRANULE, GRANULE, 0, handles[i], 0);
    for (size_t i = 0; i < pieces; i++)
        TIMED(SET_ACCESS, cuMemSetAccess, address + i * piece_bytes, piece_bytes, &access, 1);
    const int64_t backed_ns = probe_clock_ns();
    for (size_t i = 0; i < pieces; i++)
        TIMED(UNMAP, cuMemUnmap, address + i * piece_bytes, piece_bytes);
    for (size_t i = 0; i < count; i++)
        TIMED(RELEASE, cuMemRelease, handles[i]);
    js_int("handles", (long long)count);
    js_number("back_all_us", (double)(backed_ns - start_ns) / 1e3);
    js_number("drop_all_us", (double)(probe_clock_ns() - backed_ns) / 1e3);
    costs_print();
    TRY(cuMemAddressFree, address, bytes);
}

/* The calls that the shim replaces, for comparison. */
static void cost_of_alloc(void *bytes_)
{
    static struct samples alloc, release;
    const size_t bytes = *(const size_t *)bytes_;
    alloc.count = release.count = 0;
    for (int i = 0; i < (probe_quick ? 5 : 50); i++) {
        CUdeviceptr address = 0;
        const int64_t start_ns = probe_clock_ns();
        TRY(cuMemAlloc_v2, &address, bytes);
        const int64_t alloc_ns = probe_clock_ns();
        TRY(cuMemFree_v2, address);
        samples_add(&alloc, alloc_ns - start_ns);
        samples_add(&release, probe_clock_ns() - alloc_ns);
    }
    samples_print(&alloc, "alloc");
    samples_print(&release, "free");
}

/* First with the properties the runtime will ask for, to see whether they cost anything. */
static void cost_of_properties(void *unused)
{
    (void)unused;
    static struct samples plain, shared;
    CUmemAllocationProp property = probe_property();
    for (int i = 0; i < (probe_quick ? 10 : 100); i++) {
        CUmemGenericAllocationHandle handle = 0;
        property.requestedHandleTypes = i % 2 ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
        property.allocFlags.gpuDirectRDMACapable = i % 2;
        const int64_t start_ns = probe_clock_ns();
        TRY(cuMemCreate, &handle, GRANULE, &property, 0);
        samples_add(i % 2 ? &shared : &plain, probe_clock_ns() - start_ns);
        TRY(cuMemRelease, handle);
    }
    samples_print(&plain, "plain");
    samples_print(&shared, "posix_fd_and_rdma");
}

void section_cost(void *unused)
{
    (void)unused;
    static size_t sizes[] = {2 * MIB, 20 * MIB, 64 * MIB, 512 * MIB};
    static const char *const handle_keys[] = {"handle_2_mib", "handle_20_mib", "handle_64_mib",
                                              "handle_512_mib"};
    static const char *const alloc_keys[] = {"alloc_2_mib", "alloc_20_mib", "alloc_64_mib",
                                             "alloc_512_mib"};
    bool no = false, yes = true;
    probe_driver_start();
    for (size_t i = 0; i < ARRAY_COUNT(sizes); i++)
        probe_step(handle_keys[i], cost_of_size, &sizes[i]);
    probe_step("granules_one_call_each", batch, &no);
    probe_step("granules_spanning_calls", batch, &yes);
    for (size_t i = 0; i < ARRAY_COUNT(sizes); i++)
        probe_step(alloc_keys[i], cost_of_alloc, &sizes[i]);
    probe_step("handle_properties", cost_of_properties, NULL);
}
