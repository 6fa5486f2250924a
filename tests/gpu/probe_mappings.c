/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that a program maps itself: what many handles cost, and whether it matters in which order
 * they are created. */
#include "tests/gpu/probe.h"

#define HANDLE (20 * MIB) /* as PyTorch's expandable segments have them */
enum { HANDLES_MOST = 64 };

static size_t handle_count(void)
{
    return probe_quick ? 4 : HANDLES_MOST;
}

static int run_count(void)
{
    return probe_quick ? 3 : 20;
}

/* Which handle is created at step i, of count. */
enum order { ASCENDING, DESCENDING, SHUFFLED, ORDER_COUNT };
static const char *const order_keys[ORDER_COUNT] = {"ascending", "descending", "shuffled"};

static size_t handle_at(enum order order, size_t step, size_t count)
{
    /* Any odd number is one step through a power of two, which the counts are. */
    return order == ASCENDING ? step : order == DESCENDING ? count - 1 - step : step * 27 % count;
}

/* Handles side by side, one call of cuMemSetAccess for all. */
static void map_range(CUdeviceptr address, size_t bytes, size_t piece, enum order order)
{
    const size_t count = bytes / piece;
    CUmemGenericAllocationHandle handles[HANDLES_MOST];
    for (size_t i = 0; i < count; i++)
        handles[handle_at(order, i, count)] = probe_create(piece);
    for (size_t i = 0; i < count; i++)
        probe_map(address + i * piece, piece, handles[i]);
    for (size_t i = 0; i < count; i++)
        TRY(cuMemRelease, handles[i]);
    probe_give_access(address, bytes);
}

/* --- what it costs */

/* As the shim does it when the first byte is needed, and as the program does it at once. */
static void cost_of_handles(size_t count)
{
    struct samples mapped = {0}, unmapped = {0}, allocated = {0}, freed = {0};
    const size_t bytes = count * HANDLE;
    const CUdeviceptr address = probe_reserve(bytes);
    for (int i = 0; i < run_count(); i++) {
        CUdeviceptr other;
        const int64_t start_ns = probe_clock_ns();
        map_range(address, bytes, HANDLE, ASCENDING);
        samples_add(&mapped, probe_clock_ns() - start_ns);
        TIMED(&unmapped, cuMemUnmap, address, bytes);
        TIMED(&allocated, cuMemAlloc_v2, &other, bytes);
        TIMED(&freed, cuMemFree_v2, other);
    }
    js_int("handles", (long long)count);
    samples_print(&mapped, "create_map_set_access");
    samples_print(&unmapped, "unmap");
    samples_print(&allocated, "alloc");
    samples_print(&freed, "free");
    TRY(cuMemAddressFree, address, bytes);
}

/* --- what one more costs, among others that are mapped */

/* A program's mapping that was put off is made when the first byte is needed: late, between others,
 * and perhaps while the device works. */
static void cost_of_a_late_one(size_t is_busy)
{
    struct samples created = {0}, mapped = {0}, given = {0};
    const size_t count = handle_count(), bytes = count * HANDLE;
    const CUdeviceptr address = probe_reserve(bytes), late = address + count / 2 * HANDLE;
    const CUstream stream = probe_stream(CU_STREAM_NON_BLOCKING);
    const CUmemAllocationProp property = probe_property();
    const CUmemAccessDesc access = {property.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    int waited = 0;
    map_range(address, bytes, HANDLE, ASCENDING);
    for (int i = 0; i < run_count(); i++) {
        TRY(cuMemUnmap, late, HANDLE);
        if (is_busy)
            busy_start(stream, busy_best(), 40);
        TIMED(&created, cuMemCreate, &handle, HANDLE, &property, 0);
        TIMED(&mapped, cuMemMap, late, HANDLE, 0, handle, 0);
        TIMED(&given, cuMemSetAccess, late, HANDLE, &access, 1);
        waited += is_busy && CU(cuStreamQuery, stream) == CUDA_SUCCESS;
        TRY(cuMemRelease, handle);
        TRY(cuCtxSynchronize);
    }
    js_int("handles", (long long)count);
    js_bool("waited_for_the_device", 2 * waited > run_count());
    samples_print(&created, "create");
    samples_print(&mapped, "map");
    samples_print(&given, "set_access");
    TRY(cuMemUnmap, address, bytes);
    TRY(cuMemAddressFree, address, bytes);
}

/* --- whether order matters */

static void time_range(const char *key, CUdeviceptr address, size_t bytes)
{
    struct samples sets = {0}, copies = {0};
    TRY(cuMemsetD8_v2, address, 1, bytes);
    TRY(cuCtxSynchronize);
    js_open(key);
    for (int i = 0; i < run_count(); i++) {
        const int64_t start_ns = probe_clock_ns();
        TRY(cuMemsetD8_v2, address, (unsigned char)i, bytes);
        TRY(cuCtxSynchronize);
        const int64_t set_ns = probe_clock_ns();
        TRY(cuMemcpyDtoD_v2, address, address + bytes / 2, bytes / 2);
        TRY(cuCtxSynchronize);
        samples_add(&sets, set_ns - start_ns);
        samples_add(&copies, probe_clock_ns() - set_ns);
    }
    samples_print(&sets, "set");
    samples_print(&copies, "copy_of_half");
    js_close();
}

static void speed_of_orders(size_t piece)
{
    const size_t bytes = handle_count() * piece;
    const CUdeviceptr address = probe_reserve(bytes), whole = probe_alloc(bytes);
    js_int("bytes", (long long)bytes);
    time_range("alloc", whole, bytes);
    TRY(cuMemFree_v2, whole);
    for (int order = 0; order < ORDER_COUNT; order++) {
        const int64_t before = probe_free_bytes();
        map_range(address, bytes, piece, (enum order)order);
        js_open(order_keys[order]);
        js_int("taken_bytes", before - probe_free_bytes());
        time_range("speed", address, bytes);
        js_close();
        TRY(cuMemUnmap, address, bytes);
    }
    TRY(cuMemAddressFree, address, bytes);
}

/* How many handles of 20 MiB there is room for, of those that the free memory has room for, when
 * every other granule of it is taken. */
static void room_between_granules(size_t unused)
{
    enum { GRANULES = 256, PAIRS = 40 };
    const int64_t left = GRANULES * (int64_t)GRANULE;
    const int64_t all = probe_free_bytes() - left;
    CUmemGenericAllocationHandle small[GRANULES], large;
    size_t count = 0, fitting = 0;
    if (all < left)
        probe_fail("there is too little memory");
    const CUmemGenericAllocationHandle rest = probe_create((size_t)all / GRANULE * GRANULE);
    const CUmemAllocationProp property = probe_property();
    while (count < GRANULES && CU(cuMemCreate, &small[count], GRANULE, &property, 0) == 0)
        count++;
    for (size_t i = 0; i < count; i += 2)
        TRY(cuMemRelease, small[i]);
    js_int("granules", (long long)count);
    js_int("free_bytes", probe_free_bytes());
    CUmemGenericAllocationHandle fitted[PAIRS];
    while (fitting < PAIRS && CU(cuMemCreate, &large, HANDLE, &property, 0) == CUDA_SUCCESS)
        fitted[fitting++] = large;
    js_int("handles_of_20_mib_that_fit", (long long)fitting);
    for (size_t i = 0; i < fitting; i++)
        TRY(cuMemRelease, fitted[i]);
    for (size_t i = 1; i < count; i += 2)
        TRY(cuMemRelease, small[i]);
    TRY(cuMemRelease, rest);
}

const struct probe_row section_mappings[] = {
    {"cost_of_1", cost_of_handles, 1},
    {"cost_of_4", cost_of_handles, 4},
    {"cost_of_32", cost_of_handles, 32, NOT_QUICK},
    {"late_on_an_idle_device", cost_of_a_late_one, false},
    {"late_on_a_busy_device", cost_of_a_late_one, true},
    {"order_of_granules", speed_of_orders, GRANULE},
    {"order_of_handles_of_20_mib", speed_of_orders, HANDLE},
    {"room_between_granules", room_between_granules},
    {NULL},
};
