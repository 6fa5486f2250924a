/* SPDX-License-Identifier: Apache-2.0 */
/* One handle mapped at many addresses: the sink under what a rank does not own. */
#include "tests/gpu/probe.h"

#include <stdlib.h>

static size_t alias_count(void)
{
    return probe_quick ? 64 : 4096;
}

static struct samples map_aliases(CUdeviceptr address, CUmemGenericAllocationHandle handle,
                                  size_t count, size_t bytes)
{
    struct samples maps = {0};
    for (size_t i = 0; i < count; i++)
        TIMED(&maps, cuMemMap, address + i * bytes, bytes, 0, handle, 0);
    return maps;
}

static void give_access(CUdeviceptr address, size_t bytes)
{
    const int64_t start_ns = probe_clock_ns();
    probe_give_access(address, bytes);
    js_us("set_access_over_all_us", probe_clock_ns() - start_ns);
}

static uint32_t read_word(CUdeviceptr address)
{
    uint32_t word = 0;
    TRY(cuMemcpyDtoH_v2, &word, address, sizeof(word));
    return word;
}

/* Every alias must show what was written through any other. */
static void check_coherence(CUdeviceptr address, size_t count, size_t bytes)
{
    const CUdeviceptr last = address + (count - 1) * bytes;
    TRY(cuMemsetD32_v2, address, 0x11111111, bytes / 4);
    js_bool("memset_seen_through_last", read_word(last) == 0x11111111);
    TRY(cuMemsetD32_v2, last, 0x22222222, bytes / 4);
    js_bool("memset_seen_through_first", read_word(address + bytes - 4) == 0x22222222);
    const uint32_t word = 0x33333333;
    TRY(cuMemcpyHtoD_v2, address + bytes, &word, sizeof(word));
    js_bool("copy_seen_through_all", read_word(address) == word && read_word(last) == word);
    if (!busy_kernel_available())
        return;
    probe_require("cuLaunchKernel", probe_kernel_store(last, 0x44444444, NULL));
    js_bool("kernel_store_seen", read_word(address) == 0x44444444);
}

static double memset_gib_per_second(CUdeviceptr address, size_t bytes)
{
    TRY(cuMemsetD8_v2, address, 1, bytes);
    TRY(cuCtxSynchronize);
    const int64_t start_ns = probe_clock_ns();
    TRY(cuMemsetD8_v2, address, 2, bytes);
    TRY(cuCtxSynchronize);
    return (double)bytes / (double)GIB / ((double)(probe_clock_ns() - start_ns) / 1e9);
}

static void many_aliases(size_t handle_bytes)
{
    const size_t count = alias_count() * (2 * MIB) / (handle_bytes), total = handle_bytes * count;
    const CUdeviceptr address = probe_reserve(total);
    const int64_t before = probe_free_bytes();
    const CUmemGenericAllocationHandle handle = probe_create(handle_bytes);
    js_int("mappings", (long long)count);
    struct samples maps = map_aliases(address, handle, count, handle_bytes);
    samples_print(&maps, "map");
    give_access(address, total);
    js_int("physical", before - probe_free_bytes());
    check_coherence(address, count, handle_bytes);
    js_number("memset_gib_per_second", memset_gib_per_second(address, total));
    const int64_t start_ns = probe_clock_ns();
    TRY(cuMemUnmap, address, total);
    js_us("unmap_all_in_one_us", probe_clock_ns() - start_ns);
    TRY(cuMemRelease, handle);
    TRY(cuMemAddressFree, address, total);
}

static void access_one_by_one(size_t unused)
{
    const size_t count = probe_quick ? 16 : 256;
    const CUdeviceptr address = probe_reserve(count * GRANULE);
    const CUmemGenericAllocationHandle handle = probe_create(GRANULE);
    const CUmemAccessDesc access = {probe_location(), CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    struct samples accesses = {0};
    map_aliases(address, handle, count, GRANULE);
    for (size_t i = 0; i < count; i++)
        TIMED(&accesses, cuMemSetAccess, address + i * GRANULE, GRANULE, &access, 1);
    samples_print(&accesses, "set_access_each");
    TRY(cuMemUnmap, address, count * GRANULE);
    TRY(cuMemRelease, handle);
}

/* Which sizes and offsets of a handle can be mapped. */
static void partial(size_t unused)
{
    const CUdeviceptr address = probe_reserve(256 * MIB);
    const CUmemGenericAllocationHandle handle = probe_create(64 * MIB);
    static const struct {
        const char *key;
        size_t bytes, offset;
    } cases[] = {
        {"first_2_of_64_mib", 2 * MIB, 0},
        {"first_62_of_64_mib", 62 * MIB, 0},
        {"whole", 64 * MIB, 0},
        {"more_than_the_handle", 66 * MIB, 0},
        {"offset_2_mib", 2 * MIB, 2 * MIB},
        {"half_a_granule", MIB, 0},
        {"offset_of_half", 32 * MIB, 32 * MIB},
    };
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        const CUresult result = CU(cuMemMap, address, cases[i].bytes, cases[i].offset, handle, 0);
        js_result(cases[i].key, result);
        if (result == CUDA_SUCCESS)
            TRY(cuMemUnmap, address, cases[i].bytes);
    }
    if (CU(cuMemMap, address, 2 * MIB, 0, handle, 0) != CUDA_SUCCESS)
        return;
    probe_map(address + 2 * MIB, 64 * MIB, handle);
    give_access(address, 66 * MIB);
    TRY(cuMemsetD32_v2, address, 0x55555555, 2 * MIB / 4);
    js_bool("part_and_whole_share_bytes", read_word(address + 2 * MIB) == 0x55555555);
    TRY(cuMemUnmap, address, 66 * MIB);
    TRY(cuMemRelease, handle);
}

/* Owned and sink granules in turn, as under a tensor of which a rank keeps every second granule. */
static void interleaved(size_t unused)
{
    const size_t count = probe_quick ? 16 : 512, total = count * GRANULE;
    const CUdeviceptr address = probe_reserve(total);
    const CUmemGenericAllocationHandle sink = probe_create(GRANULE);
    for (size_t i = 0; i < count; i++)
        probe_map(address + i * GRANULE, GRANULE, i % 2 ? sink : probe_create(GRANULE));
    give_access(address, total);
    js_number("memset_gib_per_second", memset_gib_per_second(address, total));
    uint32_t *const pattern = probe_malloc(total);
    for (size_t i = 0; i < total / 4; i++)
        pattern[i] = (uint32_t)i * 2654435761u;
    TRY(cuMemcpyHtoD_v2, address, pattern, total);
    size_t wrong = 0;
    for (size_t i = 0; i < count; i += 2)
        for (size_t word = 0; word < GRANULE / 4; word += GRANULE / 8)
            wrong +=
                read_word(address + i * GRANULE + word * 4) != pattern[i * (GRANULE / 4) + word];
    js_int("owned_words_wrong", (long long)wrong);
    free(pattern);
    const CUdeviceptr plain = probe_mapped(total);
    js_number("memset_gib_per_second_one_handle", memset_gib_per_second(plain, total));
}

const struct probe_row section_alias[] = {
    {"sink_of_2_mib", many_aliases, GRANULE},
    {"sink_of_64_mib", many_aliases, 64 * MIB},
    {"access_one_by_one", access_one_by_one},
    {"partial", partial},
    {"interleaved", interleaved},
    {NULL},
};
