/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/addresses.h"

#include <stdatomic.h>

#include "runtime/base/log.h"
#include "runtime/base/number.h"
#include "runtime/driver/device_memory.h"
#include "runtime/memory/far_address.h"
#include "runtime/memory/space.h"

/*
 * Both areas lie between the addresses that Linux gives to loaded programs (x86-64: up to
 * 0x565555554000, and their heap) and to mappings (from 0x7fff... downwards), outside of the shadow
 * of sanitizers, and within 47 bits, which each device and each Linux kernel with 48-bit addresses
 * has. A Linux kernel with fewer (aarch64: 39) declines them.
 */
static struct area {
    const uint64_t first, end;
    /* Cycles through the area, so that no allocation gets an address that was just freed. */
    _Atomic uint64_t next;
    _Atomic unsigned misses; /* hints in a row that were not honoured */
} ours = {UINT64_C(0x5a5b00000000), UINT64_C(0x5e5b00000000), UINT64_C(0x5a5b00000000), 0},
  programs = {UINT64_C(0x5e5b00000000), UINT64_C(0x625b00000000), UINT64_C(0x5e5b00000000), 0};

/* After MOST_MISSES hints in a row that led to no far address the shim gives no more hints. A
 * single hint may fail because other code has taken the addresses. */
enum { MOST_MISSES = 4, MOST_STEPS = 64 };
#define STEP (UINT64_C(64) << 30)

/* The end of the shim's reservation, guards included, that meets [at, at + bytes), or 0. */
static uint64_t behind_taken(uint64_t at, size_t bytes, size_t granule)
{
    struct ms_allocation_facts facts;
    for (uint64_t from = at - 2 * granule;
         ms_space_first_behind(from, &facts) && facts.address - granule < at + bytes;
         from = facts.address + facts.bytes) {
        const uint64_t behind = ms_round_up(facts.address + facts.bytes, granule) + granule;
        if (behind > at)
            return behind;
    }
    return 0;
}

/* An address where the shim has nothing, or 0. If two threads get the same address, the driver
 * declines one hint. */
static uint64_t choose(struct area *area, size_t bytes, size_t granule)
{
    if (bytes > area->end - area->first - granule || atomic_load(&area->misses) >= MOST_MISSES)
        return 0;
    const uint64_t unit = granule > MS_AREA_BYTES ? granule : MS_AREA_BYTES;
    for (int i = 0; i < MOST_STEPS; i++) {
        const uint64_t at =
            ms_round_up(atomic_fetch_add(&area->next, ms_round_up(bytes, unit)), unit);
        if (at < area->first || at > area->end - bytes) {
            atomic_store(&area->next, area->first);
            continue;
        }
        const uint64_t behind = behind_taken(at, bytes, granule);
        if (behind == 0)
            return at;
        atomic_store(&area->next, behind);
    }
    return 0;
}

static void note(struct area *area, bool honoured, CUdeviceptr address)
{
    if (honoured || ms_address_is_far(address)) {
        atomic_store(&area->misses, 0);
        return;
    }
    atomic_fetch_add(&area->next, STEP);
    if (atomic_fetch_add(&area->misses, 1) + 1 == MOST_MISSES && !ms_address_is_far(address))
        ms_log(MS_INFO,
               "the driver reserves at 0x%llx whatever address is asked for: numbers among the "
               "parameters of kernels may be taken for addresses, which costs memory",
               address);
}

CUresult ms_addresses_reserve(CUdeviceptr *address_out, size_t bytes, size_t alignment,
                              bool for_program)
{
    enum { GRANULE = 2 << 20 }; /* of a program that asks for less */
    struct area *area = for_program ? &programs : &ours;
    const size_t granule = for_program && alignment < GRANULE ? GRANULE : alignment;
    const uint64_t wish = choose(area, bytes, granule);
    if (wish != 0) {
        const CUresult result =
            ms_driver.mem_address_reserve(address_out, bytes, alignment, wish, 0);
        note(area, result == CUDA_SUCCESS && *address_out == wish,
             result == CUDA_SUCCESS ? *address_out : 0);
        if (result == CUDA_SUCCESS)
            return result;
    }
    return ms_driver.mem_address_reserve(address_out, bytes, alignment, 0, 0);
}

CUresult ms_addresses_reserve_backing(struct ms_backing *backing, CUdevice device, size_t bytes)
{
    const CUmemAllocationProp prop = ms_device_memory_properties(device);
    size_t granule;
    CUresult result =
        ms_driver.mem_get_granularity(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    if (result != CUDA_SUCCESS)
        return result;
    if (bytes > SIZE_MAX - 3 * granule - MS_AREA_BYTES)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const size_t rounded = ms_round_up(bytes, granule);
    CUdeviceptr address;
    result = ms_addresses_reserve(&address, ms_backing_reserved(rounded, granule), granule, false);
    if (result != CUDA_SUCCESS)
        return result;
    *backing = (struct ms_backing){.address = address + granule,
                                   .bytes = rounded,
                                   .granule = granule,
                                   .device = device,
                                   .mapped_bytes = rounded};
    return CUDA_SUCCESS;
}
