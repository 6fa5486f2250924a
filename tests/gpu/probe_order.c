/* SPDX-License-Identifier: Apache-2.0 */
/* Queries from which a program can learn about order, and when a copy has taken its source. */
#include "tests/gpu/probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int busy_ms(void)
{
    return probe_quick ? 30 : 40;
}

static void print_queries(CUstream idle_blocking, CUstream idle_nonblocking)
{
    js_result("query_0", CU(cuStreamQuery, NULL));
    js_result("query_legacy", CU(cuStreamQuery, CU_STREAM_LEGACY));
    js_result("query_per_thread", CU(cuStreamQuery, CU_STREAM_PER_THREAD));
    js_result("query_idle_blocking_stream", CU(cuStreamQuery, idle_blocking));
    js_result("query_idle_nonblocking_stream", CU(cuStreamQuery, idle_nonblocking));
}

/* An event recorded on the legacy stream: is it reached only after the other stream's work? */
static void print_legacy_event(void)
{
    CUevent event;
    TRY(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
    TRY(cuEventRecord, event, NULL);
    /* Even on an idle stream an event takes a moment. */
    usleep(10000);
    js_result("event_on_0", CU(cuEventQuery, event));
    js_result("query_0_after_the_event", CU(cuStreamQuery, NULL));
    TRY(cuEventDestroy_v2, event);
}

enum { LEGACY = 100 };

static void ask_while_busy(size_t flags)
{
    const CUstream idle_blocking = probe_stream(CU_STREAM_DEFAULT);
    const CUstream idle_nonblocking = probe_stream(CU_STREAM_NON_BLOCKING);
    const CUstream busy = flags == LEGACY ? NULL : probe_stream((unsigned)flags);
    busy_start(busy, busy_best(), busy_ms());
    js_result("query_itself", CU(cuStreamQuery, busy));
    print_queries(idle_blocking, idle_nonblocking);
    print_legacy_event();
    TRY(cuCtxSynchronize);
}

/* Work put on a blocking stream while the legacy stream is busy must wait, and the reverse. */
static void implicit_order(size_t unused)
{
    const CUdeviceptr word = probe_alloc(4);
    const CUstream blocking = probe_stream(CU_STREAM_DEFAULT);
    uint32_t *const seen = probe_pinned(8);
    TRY(cuMemsetD32_v2, word, 1, 1);
    TRY(cuCtxSynchronize);
    busy_start(NULL, busy_best(), busy_ms());
    TRY(cuMemcpyDtoHAsync_v2, seen, word, 4, blocking);
    js_result("blocking_after_legacy", CU(cuStreamQuery, blocking));
    TRY(cuCtxSynchronize);
    busy_start(blocking, busy_best(), busy_ms());
    TRY(cuMemcpyDtoHAsync_v2, seen, word, 4, NULL);
    js_result("legacy_after_blocking", CU(cuStreamQuery, NULL));
    TRY(cuCtxSynchronize);
}

const struct probe_row section_order[] = {
    {NULL, busy_print},
    {"blocking_stream_busy", ask_while_busy, CU_STREAM_DEFAULT},
    {"nonblocking_stream_busy", ask_while_busy, CU_STREAM_NON_BLOCKING},
    {"legacy_stream_busy", ask_while_busy, LEGACY},
    {"implicit_order", implicit_order},
    {NULL},
};

enum source { PAGEABLE, PINNED, REGISTERED, FILE_MAPPING };
enum { OLD = 0x11, NEW = 0x22, COPY_MAX = 16 << 20 };

static unsigned char *map_file(size_t bytes)
{
    FILE *const file = tmpfile();
    if (file == NULL || ftruncate(fileno(file), (off_t)bytes) != 0)
        probe_fail("no temporary file");
    unsigned char *const host =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fileno(file), 0);
    if (host == MAP_FAILED)
        probe_fail("mmap");
    return host;
}

static unsigned char *make_source(enum source source)
{
    if (source == PINNED)
        return probe_pinned(COPY_MAX);
    if (source == FILE_MAPPING)
        return map_file(COPY_MAX);
    unsigned char *const host = memset(probe_malloc(COPY_MAX), 0, COPY_MAX);
    if (source == REGISTERED)
        TRY(cuMemHostRegister_v2, host, COPY_MAX, 0);
    return host;
}

static const char *content(const unsigned char *bytes, size_t count)
{
    size_t old = 0, fresh = 0;
    for (size_t i = 0; i < count; i++) {
        old += bytes[i] == OLD;
        fresh += bytes[i] == NEW;
    }
    return old == count ? "old" : fresh == count ? "new" : "mixed";
}

struct copy {
    CUstream stream;
    size_t bytes;
};

/* The source is overwritten as soon as the call returns; which bytes arrive? */
static void copy_in(unsigned char *host, CUdeviceptr device, const struct copy *copy)
{
    memset(host, OLD, copy->bytes);
    busy_start(copy->stream, busy_best(), busy_ms());
    const int64_t start_ns = probe_clock_ns();
    const CUresult result = CU(cuMemcpyHtoDAsync_v2, device, host, copy->bytes, copy->stream);
    const int64_t call_ns = probe_clock_ns() - start_ns;
    const bool busy = CU(cuStreamQuery, copy->stream) == CUDA_ERROR_NOT_READY;
    memset(host, NEW, copy->bytes);
    TRY(cuCtxSynchronize);
    unsigned char *const back = probe_malloc(copy->bytes);
    TRY(cuMemcpyDtoH_v2, back, device, copy->bytes);
    js_result("in_result", result);
    js_us("in_us", call_ns);
    js_bool("in_returned_before_the_stream_got_there", busy);
    js_string("in_content", content(back, copy->bytes));
    free(back);
}

static void copy_out(unsigned char *host, CUdeviceptr device, const struct copy *copy)
{
    busy_start(copy->stream, busy_best(), busy_ms());
    const int64_t start_ns = probe_clock_ns();
    const CUresult result = CU(cuMemcpyDtoHAsync_v2, host, device, copy->bytes, copy->stream);
    const int64_t call_ns = probe_clock_ns() - start_ns;
    const bool busy = CU(cuStreamQuery, copy->stream) == CUDA_ERROR_NOT_READY;
    js_result("out_result", result);
    js_us("out_us", call_ns);
    js_bool("out_returned_before_the_stream_got_there", busy);
    TRY(cuCtxSynchronize);
}

static void copy_source(size_t source)
{
    static const struct {
        const char *key;
        size_t bytes;
    } sizes[] = {{"64_b", 64},           {"4_kib", 4 * KIB},
                 {"64_kib", 64 * KIB},   {"64_kib_and_4_b", 64 * KIB + 4},
                 {"128_kib", 128 * KIB}, {"256_kib", 256 * KIB},
                 {"1_mib", MIB},         {"16_mib", COPY_MAX}};
    unsigned char *const host = make_source((enum source)source);
    const CUdeviceptr device = probe_alloc(COPY_MAX);
    const CUstream streams[] = {probe_stream(CU_STREAM_NON_BLOCKING), NULL};
    for (size_t i = 0; i < 2; i++) {
        js_open(i == 0 ? "nonblocking_stream" : "legacy_stream");
        for (size_t j = 0; j < ARRAY_COUNT(sizes); j++) {
            const struct copy copy = {streams[i], sizes[j].bytes};
            js_open(sizes[j].key);
            copy_in(host, device, &copy);
            copy_out(host, device, &copy);
            js_close();
        }
        js_close();
    }
}

const struct probe_row section_pageable[] = {
    {NULL, busy_print},
    {"pageable", copy_source, PAGEABLE},
    {"pinned", copy_source, PINNED},
    {"registered", copy_source, REGISTERED},
    {"private_file_mapping", copy_source, FILE_MAPPING},
    {NULL},
};
