/* SPDX-License-Identifier: Apache-2.0 */
/* Sets and copies of one range of bytes. */
#include "tests/driver/differential/fuzz.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void set_8(struct fuzz_range range, bool twin, bool async)
{
    const unsigned char value = (unsigned char)(fuzz_one_in(3) ? 0 : fuzz_random());
    if (async)
        SEE_QUEUED(twin, cuMemsetD8Async, range.at, value, range.bytes);
    else
        SEE_NOW(twin, cuMemsetD8_v2, range.at, value, range.bytes);
}

static void set_16(struct fuzz_range range, bool twin, bool async)
{
    const unsigned short value = (unsigned short)fuzz_random();
    if (async)
        SEE_QUEUED(twin, cuMemsetD16Async, range.at, value, range.bytes / 2);
    else
        SEE_NOW(twin, cuMemsetD16_v2, range.at, value, range.bytes / 2);
}

static void set_32(struct fuzz_range range, bool twin, bool async)
{
    const unsigned value = (unsigned)(fuzz_one_in(3) ? 0 : fuzz_random());
    if (async)
        SEE_QUEUED(twin, cuMemsetD32Async, range.at, value, range.bytes / 4);
    else
        SEE_NOW(twin, cuMemsetD32_v2, range.at, value, range.bytes / 4);
}

static void set(void)
{
    static void (*const ways[])(struct fuzz_range, bool, bool) = {set_8, set_16, set_32};
    const size_t way = fuzz_below(3);
    const struct fuzz_range range = fuzz_fresh_range(FUZZ_BLOCK_MOST, (size_t)1 << way);
    const bool twin = fuzz_one_in(2);
    ways[way](range, twin, fuzz_one_in(2));
}

/* A copy of either kind; order: in which the source is read. */
static void copy_async(bool twin, CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream,
                       CUmemcpySrcAccessOrder order)
{
    CUmemcpyAttributes attributes = {.srcAccessOrder = order};
    const bool is_legacy = stream == CU_STREAM_LEGACY || (stream == NULL && !twin);
    if (!is_legacy && bytes > 0 && fuzz_is_newer(FUZZ_cuMemcpyWithAttributesAsync))
        SEE(TWIN(twin, cuMemcpyWithAttributesAsync,
                 cuMemcpyWithAttributesAsync_ptsz)(to, from, bytes, &attributes, stream));
    else
        SEE(TWIN(twin, cuMemcpyAsync, cuMemcpyAsync_ptsz)(to, from, bytes, stream));
}

static void from_host(void)
{
    const struct fuzz_range range = fuzz_fresh_range(FUZZ_BLOCK_MOST, 1);
    const unsigned char *source = fuzz_source(range.bytes);
    const CUdeviceptr host = (CUdeviceptr)(uintptr_t)source;
    const bool twin = fuzz_one_in(2);
    CUstream stream;
    switch (fuzz_below(4)) {
    case 0:
        SEE_NOW(twin, cuMemcpyHtoD_v2, range.at, source, range.bytes);
        break;
    case 1:
        SEE_QUEUED(twin, cuMemcpyHtoDAsync_v2, range.at, source, range.bytes);
        break;
    case 2:
        SEE_NOW(twin, cuMemcpy, range.at, host, range.bytes);
        break;
    default:
        stream = fuzz_stream(twin);
        copy_async(twin, range.at, host, range.bytes, stream,
                   CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL);
    }
}

/* Pageable memory may be written again, or unmapped, when the call has returned. */
static void from_passing_memory(void)
{
    const struct fuzz_range range = fuzz_range(64 << 10, 1);
    const bool twin = fuzz_one_in(2);
    const bool is_file = fuzz_one_in(2);
    unsigned char *host = fuzz_scratch;
    if (is_file)
        host = fuzz_map_file();
    else
        memcpy(host, fuzz_source(range.bytes), range.bytes);
    const CUdeviceptr at = (CUdeviceptr)(uintptr_t)host;
    if (fuzz_one_in(2)) {
        SEE_NOW(twin, cuMemcpyHtoD_v2, range.at, host, range.bytes);
    } else {
        const CUstream stream = fuzz_stream(twin);
        copy_async(twin, range.at, at, range.bytes, stream,
                   CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL);
    }
    if (fuzz_driver_has("SIMCUDA_LATE"))
        /* there the driver may not have read it yet, and no program may rely on that */
        fuzz_wait();
    if (is_file)
        munmap(host, FUZZ_BUFFER_BYTES);
    else
        memset(host, 0x66, range.bytes);
}

/* Also where the ranges meet: then it is as the driver does it, which here copies what was
 * there. */
static void on_device(void)
{
    struct fuzz_range from, to;
    fuzz_two_ranges(&from, &to, FUZZ_BLOCK_MOST, 1);
    const bool twin = fuzz_one_in(2);
    CUstream stream;
    switch (fuzz_below(4)) {
    case 0:
        SEE_NOW(twin, cuMemcpyDtoD_v2, to.at, from.at, to.bytes);
        break;
    case 1:
        SEE_QUEUED(twin, cuMemcpyDtoDAsync_v2, to.at, from.at, to.bytes);
        break;
    case 2:
        SEE_NOW(twin, cuMemcpy, to.at, from.at, to.bytes);
        break;
    default:
        stream = fuzz_stream(twin);
        copy_async(twin, to.at, from.at, to.bytes, stream, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
    }
}

/* To pageable memory, or to pinned memory, which is there when the stream is done. */
static void to_host(void)
{
    const struct fuzz_range range = fuzz_fresh_range(FUZZ_BLOCK_MOST, 1);
    unsigned char *host = fuzz_one_in(2) ? fuzz_scratch : fuzz_landing;
    const CUdeviceptr place = (CUdeviceptr)(uintptr_t)host;
    const bool twin = fuzz_one_in(2);
    CUstream stream;
    switch (fuzz_below(4)) {
    case 0:
        SEE_NOW(twin, cuMemcpyDtoH_v2, host, range.at, range.bytes);
        break;
    case 1:
        SEE_QUEUED(twin, cuMemcpyDtoHAsync_v2, host, range.at, range.bytes);
        break;
    case 2:
        SEE_NOW(twin, cuMemcpy, place, range.at, range.bytes);
        break;
    default:
        stream = fuzz_stream(twin);
        copy_async(twin, place, range.at, range.bytes, stream, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
    }
    fuzz_wait();
    fuzz_see_bytes(host, range.bytes);
}

/* Device to pinned memory to device, in one stream: the host bytes come late. */
static void bounce(void)
{
    struct fuzz_range from, to;
    if (!fuzz_two_ranges(&from, &to, FUZZ_BLOCK_MOST / 4, 1))
        return;
    const bool twin = fuzz_one_in(2);
    unsigned char *host = fuzz_landing + fuzz_below(1000);
    const CUstream stream = fuzz_stream(twin);
    SEE(TWIN(twin, cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz)(host, from.at, from.bytes,
                                                                    stream));
    SEE(TWIN(twin, cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz)(to.at, host, to.bytes, stream));
    fuzz_wait();
}

static void between_peers(void)
{
    struct fuzz_range from, to;
    if (!fuzz_two_ranges(&from, &to, FUZZ_BLOCK_MOST, 1))
        return;
    const bool twin = fuzz_one_in(2);
    if (fuzz_one_in(2))
        SEE_NOW(twin, cuMemcpyPeer, to.at, fuzz_context, from.at, fuzz_context, to.bytes);
    else
        SEE_QUEUED(twin, cuMemcpyPeerAsync, to.at, fuzz_context, from.at, fuzz_context, to.bytes);
}

/* Calls that must be refused, or do nothing. */
static void misuse(void)
{
    const struct fuzz_range range = fuzz_range(FUZZ_BLOCK_MOST, 1);
    const CUdeviceptr end = range.block->at + range.block->bytes;
    const CUdeviceptr inside = range.at + (range.at == range.block->at);
    fuzz_wait();
    switch (fuzz_below(6)) {
    case 0:
        if (!range.block->is_part)
            SEE(CALL(cuMemFree_v2)(inside));
        break;
    case 1:
        SEE(CALL(cuMemcpyHtoD_v2)(range.at, fuzz_scratch, 0));
        break;
    case 2:
        SEE(CALL(cuMemsetD8_v2)(range.at, 1, 0));
        break;
    case 3:
        SEE(CALL(cuMemcpyDtoD_v2)(range.block->at, end - 1, (size_t)64 << 20));
        break;
    case 4:
        SEE(CALL(cuMemsetD32_v2)(range.block->at + 1, 7, 1)); /* not aligned */
        break;
    default:
        SEE(CALL(cuMemcpyDtoH_v2)(fuzz_scratch, 0, 16));
    }
}

const struct fuzz_operation fuzz_copies[] = {
    {"set", set, 120},
    {"copy from the host", from_host, 160},
    {"copy from passing memory", from_passing_memory, 20},
    {"copy on the device", on_device, 150},
    {"copy to the host", to_host, 120},
    {"bounce", bounce, 15},
    {"copy between peers", between_peers, 25},
    {"misuse", misuse, 15},
    {NULL, NULL, 0},
};
