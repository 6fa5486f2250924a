/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that read, or do what is not modelled: what they reach is materialised first. */
#include "runtime/machine/machine.h"

#include "runtime/base/log.h"
#include "runtime/diag/counters.h"
#include "runtime/machine/materialise.h"
#include "runtime/machine/pressure.h"
#include "runtime/machine/record.h"

static CUresult materialise_range(CUdeviceptr address, size_t bytes, enum ms_access access)
{
    const CUdeviceptr end = bytes <= UINT64_MAX - address ? address + bytes : UINT64_MAX;
    for (CUdeviceptr at = address; at < end;) {
        struct ms_block *block = ms_space_claim_next(at);
        if (block == NULL || block->address >= end) {
            ms_space_release(block);
            break;
        }
        const CUdeviceptr block_end = block->address + block->bytes;
        const size_t from = block->address > at ? 0 : ms_offset(block, at);
        const size_t to = block_end < end ? block->bytes : ms_offset(block, end);
        const CUresult result = ms_materialise(block, from, to, access);
        ms_space_release(block);
        if (result != CUDA_SUCCESS)
            return result;
        at = block_end;
    }
    return CUDA_SUCCESS;
}

CUresult ms_prepare_touch(CUdeviceptr address, size_t bytes)
{
    int attempts = 0;
    CUresult result;
    do
        result = materialise_range(address, bytes, MS_WRITE);
    while (ms_try_again(result, &attempts));
    return result;
}

/* What can be taken away again is held for the call; not while we wait for memory ourselves. */
CUresult ms_prepare_read(CUdeviceptr address, size_t bytes)
{
    int attempts = 0;
    CUresult result;
    do {
        ms_read_begin();
        result = materialise_range(address, bytes, MS_READ);
        if (result != CUDA_SUCCESS)
            ms_read_end();
    } while (ms_try_again(result, &attempts));
    return result;
}

CUresult ms_prepare_touch_all(void)
{
    ms_count(MS_COUNT_SEALS, 1);
    return ms_prepare_touch(0, SIZE_MAX);
}

static CUresult export_block(CUdeviceptr address, bool *one_handle_out)
{
    struct ms_block *block = ms_space_claim(address);
    *one_handle_out = true;
    if (block == NULL)
        return CUDA_SUCCESS;
    const CUresult result = ms_materialise(block, 0, block->bytes, MS_WRITE);
    *one_handle_out = ms_backing_is_one_chunk(&block->backing);
    ms_space_release(block);
    return result;
}

CUresult ms_prepare_export(CUdeviceptr address, bool *one_handle_out)
{
    int attempts = 0;
    CUresult result;
    do
        result = export_block(address, one_handle_out);
    while (ms_try_again(result, &attempts));
    return result;
}

bool ms_overruns(CUdeviceptr address, size_t bytes)
{
    struct ms_block_facts facts;
    return ms_space_look_up(address, &facts) && bytes > facts.bytes - (address - facts.address);
}
