/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/machine/play.h"

#include <pthread.h>

#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/diag/counters.h"

enum { BOUNCE_BYTES = 8 << 20, MAX_CONTEXTS = 64 };

static CUresult set_bytes(uint32_t pattern, size_t offset, CUdeviceptr address, size_t bytes,
                          CUstream stream)
{
    for (size_t i = 0; i < bytes; i++) {
        const unsigned char value = (unsigned char)(pattern >> (8 * ((offset + i) & 3)));
        const CUresult result = ms_driver.memset_d8_async(address + i, value, 1, stream);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}

/* A pattern as words where the address allows, with up to three single bytes at either end. */
static CUresult play_fill(uint32_t pattern, size_t offset, CUdeviceptr address, size_t bytes,
                          CUstream stream)
{
    if (pattern == (pattern & 0xff) * UINT32_C(0x01010101))
        return ms_driver.memset_d8_async(address, (unsigned char)pattern, bytes, stream);

    size_t head = -address & 3;
    if (head > bytes)
        head = bytes;
    const size_t words = (bytes - head) / 4;
    const size_t tail_at = head + 4 * words;
    CUresult result = set_bytes(pattern, offset, address, head, stream);
    if (result == CUDA_SUCCESS && words > 0)
        result =
            ms_driver.memset_d32_async(address + head, ms_pattern_move(pattern, offset + head, 0),
                                       words, stream);
    if (result == CUDA_SUCCESS)
        result = set_bytes(pattern, offset + tail_at, address + tail_at, bytes - tail_at, stream);
    return result;
}

/* The driver has taken pageable host bytes when its asynchronous copy returns, so one bounce buffer
 * serves all pieces. */
static CUresult play_source(const struct ms_content *content, CUdeviceptr address, size_t bytes,
                            CUstream stream)
{
    const size_t bounce_bytes = bytes < BOUNCE_BYTES ? bytes : BOUNCE_BYTES;
    void *bounce = NULL;
    if (ms_source_is_file(content->source)) {
        bounce = ms_heap_alloc(bounce_bytes);
        if (bounce == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
    }

    CUresult result = CUDA_SUCCESS;
    for (size_t done = 0; done < bytes && result == CUDA_SUCCESS; done += bounce_bytes) {
        const size_t now = bytes - done < bounce_bytes ? bytes - done : bounce_bytes;
        const void *host;
        result = ms_source_read(content->source, content->source_offset + done, bounce, now, &host);
        if (result == CUDA_SUCCESS)
            result = ms_driver.memcpy_htod_async(address + done, host, now, stream);
        if (result == CUDA_SUCCESS)
            ms_count(MS_COUNT_H2D_BYTES, now);
    }
    ms_heap_free(bounce);
    return result;
}

CUresult ms_play(const struct ms_content *content, size_t offset, CUdeviceptr address, size_t bytes,
                 CUstream stream)
{
    switch (content->kind) {
    case MS_FILL:
        return play_fill(content->pattern, offset, address, bytes, stream);
    case MS_SOURCE:
        return play_source(content, address, bytes, stream);
    default:
        ms_fatal("lineage of kind %d cannot be played", (int)content->kind);
    }
}

static struct {
    pthread_mutex_t lock; /* guards the table; not held across driver calls */
    struct {
        CUcontext context;
        CUstream stream;
    } entries[MAX_CONTEXTS];
    int count;
} streams = {.lock = PTHREAD_MUTEX_INITIALIZER};

static CUstream find_stream_locked(CUcontext context)
{
    for (int i = 0; i < streams.count; i++) {
        if (streams.entries[i].context == context)
            return streams.entries[i].stream;
    }
    return NULL;
}

CUresult ms_fill_stream(CUcontext context, CUstream *stream_out)
{
    pthread_mutex_lock(&streams.lock);
    CUstream stream = find_stream_locked(context);
    pthread_mutex_unlock(&streams.lock);
    if (stream == NULL) {
        CUstream created;
        const CUresult result = ms_driver.stream_create(&created, CU_STREAM_NON_BLOCKING);
        if (result != CUDA_SUCCESS)
            return result;
        pthread_mutex_lock(&streams.lock);
        stream = find_stream_locked(context);
        if (stream == NULL && streams.count < MAX_CONTEXTS) {
            streams.entries[streams.count].context = context;
            streams.entries[streams.count++].stream = created;
        }
        pthread_mutex_unlock(&streams.lock);
        /* When another thread was faster, or the table is full, this one serves its call; it goes
         * with its context. */
        stream = created;
    }
    *stream_out = stream;
    return CUDA_SUCCESS;
}

void ms_fill_stream_forget(CUcontext context)
{
    pthread_mutex_lock(&streams.lock);
    for (int i = 0; i < streams.count; i++) {
        if (streams.entries[i].context == context)
            streams.entries[i--] = streams.entries[--streams.count];
    }
    pthread_mutex_unlock(&streams.lock);
}
