/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/collective/collective.h"

#include <stdint.h>

#include "runtime/hot.h"
#include "runtime/machine/machine.h"
#include "runtime/machine/space.h"

static CUdeviceptr address_of(const void *pointer)
{
    return (CUdeviceptr)(uintptr_t)pointer;
}

/* What is read and written at once keeps its bytes. */
static bool overlaps(const struct ms_operation *operation)
{
    const CUdeviceptr read = address_of(operation->read), written = address_of(operation->written);
    return operation->read_bytes > 0 && operation->written_bytes > 0 &&
           read < written + operation->written_bytes && written < read + operation->read_bytes;
}

CUresult ms_collective_prepare(const struct ms_operation *operation)
{
    CUresult result = CUDA_SUCCESS;
    if (!ms_defers_any())
        return CUDA_SUCCESS;
    if (operation->read_bytes > 0)
        result = ms_prepare_touch(address_of(operation->read), operation->read_bytes);
    if (result != CUDA_SUCCESS || operation->written_bytes == 0)
        return result;
    /* Of a partial overlap the rest is played too: it costs no more than a read. */
    return overlaps(operation)
               ? ms_prepare_touch(address_of(operation->written), operation->written_bytes)
               : ms_prepare_overwrite(address_of(operation->written), operation->written_bytes);
}

CUresult ms_collective_pin(const void *address, size_t bytes, bool *one_handle_out)
{
    const CUdeviceptr end = address_of(address) + bytes;
    struct ms_block_facts facts;
    CUresult result = CUDA_SUCCESS;
    *one_handle_out = true;
    for (CUdeviceptr at = address_of(address);
         result == CUDA_SUCCESS && at < end && ms_space_first_behind(at, &facts) &&
         facts.address < end;
         at = facts.address + facts.bytes) {
        bool is_one;
        result = ms_prepare_export(facts.address, &is_one);
        *one_handle_out &= is_one;
    }
    return result;
}
