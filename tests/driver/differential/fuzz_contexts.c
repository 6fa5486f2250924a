/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts that end, other devices, and the last acts of a process. */
#include "tests/driver/differential/fuzz.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BYTES = 64 << 10 };

static CUdeviceptr make_block(void)
{
    CUdeviceptr at = 0;
    SEE(CALL(cuMemAlloc_v2)(&at, BYTES));
    SEE(CALL(cuMemsetD32_v2)(at, (unsigned)fuzz_random(), BYTES / 4));
    return at;
}

static void ask_about(CUdeviceptr at)
{
    CUdeviceptr base = 0;
    size_t bytes = 0;
    SEE(CALL(cuMemGetAddressRange_v2)(&base, &bytes, at));
}

/* Memory of a context goes with it. */
static void destroy(void)
{
    CUcontext context = NULL;
    fuzz_wait();
    SEE(CALL(cuCtxCreate_v2)(&context, 0, (CUdevice)fuzz_below(2)));
    const CUdeviceptr at = make_block();
    if (fuzz_one_in(2))
        fuzz_read(at, BYTES);
    switch (fuzz_below(3)) {
    case 0:
        SEE(CALL(cuCtxDestroy)(context));
        break;
    case 1:
        SEE(CALL(cuCtxDestroy_v2)(context));
        break;
    default:
        SEE(CALL(cuCtxDetach)(context));
    }
    SEE(CALL(cuCtxSetCurrent)(fuzz_context));
    ask_about(at);
}

/* The same of the second device's primary context, which nothing else uses. */
static void end_primary(void)
{
    CUcontext context = NULL;
    const bool older = fuzz_one_in(2);
    fuzz_wait();
    SEE(CALL(cuDevicePrimaryCtxRetain)(&context, 1));
    SEE(CALL(cuCtxSetCurrent)(context));
    const CUdeviceptr at = make_block();
    if (fuzz_one_in(2)) {
        SEE(TWIN(older, cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease)(1));
        SEE(CALL(cuCtxSetCurrent)(fuzz_context));
        ask_about(at);
        return;
    }
    SEE(TWIN(older, cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset)(1));
    SEE(CALL(cuCtxSetCurrent)(fuzz_context));
    ask_about(at);
    SEE(CALL(cuDevicePrimaryCtxRelease_v2)(1));
}

/* Memory that is allocated in a green context is the primary one's, and outlives it. */
static void green(void)
{
    CUdevResource resource;
    CUdevResourceDesc description = NULL;
    CUgreenCtx handle = NULL;
    CUcontext context = NULL;
    fuzz_wait();
    memset(&resource, 0, sizeof(resource));
    SEE(CALL(cuDeviceGetDevResource)(0, &resource, CU_DEV_RESOURCE_TYPE_SM));
    SEE(CALL(cuDevResourceGenerateDesc)(&description, &resource, 1));
    SEE(CALL(cuGreenCtxCreate)(&handle, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    SEE(CALL(cuCtxFromGreenCtx)(&context, handle));
    SEE(CALL(cuCtxSetCurrent)(context));
    const CUdeviceptr at = make_block();
    SEE(CALL(cuCtxSynchronize)());
    SEE(CALL(cuCtxSetCurrent)(fuzz_context));
    SEE(CALL(cuGreenCtxDestroy)(handle));
    fuzz_read(at, BYTES);
    SEE(CALL(cuMemFree_v2)(at));
}

/* --- calls while another context is current than the memory's and the stream's */

static atomic_bool may_go;
static bool was_late;

static void CUDA_CB wait_for_program(void *unused)
{
    (void)unused;
    for (int i = 0; i < 50000 && !atomic_load(&may_go); i++)
        usleep(100);
    was_late = !atomic_load(&may_go);
}

/* Returns at once, whatever waits in the stream. */
static void free_elsewhere(CUdeviceptr at, CUstream stream, CUcontext other)
{
    SEE(CALL(cuCtxSetCurrent)(fuzz_context));
    atomic_store(&may_go, !fuzz_device_has_threads());
    SEE(CALL(cuLaunchHostFunc)(stream, wait_for_program, NULL));
    SEE(CALL(cuCtxSetCurrent)(other));
    SEE(CALL(cuMemFreeAsync)(at, stream));
    atomic_store(&may_go, true);
    SEE(CALL(cuStreamSynchronize)(stream));
    fuzz_see(was_late);
}

/* `at` is of BYTES bytes. */
static void copy_elsewhere(CUdeviceptr block, CUdeviceptr at, CUstream stream)
{
    SEE(CALL(cuMemsetD8Async)(block + fuzz_below(1024), 5, 1 + fuzz_below(1024), stream));
    SEE(CALL(cuMemcpyHtoDAsync_v2)(block + fuzz_below(2048), fuzz_buffers[FUZZ_PINNED],
                                   1 + fuzz_below(2048), stream));
    SEE(CALL(cuMemcpyDtoDAsync_v2)(at + fuzz_below(1024), block, 4096, stream));
    SEE(CALL(cuMemcpyDtoHAsync_v2)(fuzz_landing, at, BYTES, stream));
    SEE(CALL(cuStreamSynchronize)(stream));
    fuzz_see_bytes(fuzz_landing, BYTES);
}

static void call_elsewhere(void)
{
    static CUstream stream;
    CUcontext other = NULL;
    CUdeviceptr at = 0;
    const CUdevice device = (CUdevice)fuzz_below(2);
    fuzz_wait();
    if (stream == NULL)
        SEE(CALL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    const struct fuzz_block *block = fuzz_new_block(4096);
    SEE(CALL(cuMemAllocAsync)(&at, BYTES, stream));
    SEE(CALL(cuMemsetD8Async)(at, 3, BYTES, stream));
    fuzz_wait();
    SEE(CALL(cuCtxSynchronize)());
    SEE(CALL(cuCtxCreate_v2)(&other, 0, device));
    if (device == 0) /* the other device has no access */
        copy_elsewhere(block->at, at, stream);
    ask_about(at);
    free_elsewhere(at, stream, other);
    ask_about(at);
    SEE(CALL(cuCtxDestroy_v2)(other));
    SEE(CALL(cuCtxSetCurrent)(fuzz_context));
    fuzz_read(block->at, block->bytes);
}

/* --- a kernel of another device reads a block */

void fuzz_read_from(CUcontext reader, CUdeviceptr at)
{
    CUmodule module = NULL;
    CUfunction kernel = NULL;
    CUdeviceptr out = 0;
    uint64_t count = 64;
    unsigned char host[256] = {0};
    SEE(CALL(cuCtxSetCurrent)(reader));
    SEE(CALL(cuModuleLoad)(&module, fuzz_kernels_path));
    SEE(CALL(cuModuleGetFunction)(&kernel, module, "copy32"));
    SEE(CALL(cuMemAlloc_v2)(&out, sizeof(host)));
    void *params[] = {&out, &at, &count};
    SEE(CALL(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    SEE(CALL(cuCtxSynchronize)());
    SEE(CALL(cuMemcpyDtoH_v2)(host, out, sizeof(host)));
    fuzz_see_bytes(host, sizeof(host));
}

static void read_by_peer(void)
{
    CUcontext reader = NULL;
    fuzz_wait();
    const CUdeviceptr at = make_block();
    const bool is_early = fuzz_one_in(2);
    SEE(CALL(cuCtxSynchronize)()); /* nothing else orders the other context behind the set */
    if (is_early)
        fuzz_read(at, BYTES); /* mapped before the access is given */
    SEE(CALL(cuCtxCreate_v2)(&reader, 0, 1));
    SEE(CALL(cuCtxEnablePeerAccess)(fuzz_context, 0));
    fuzz_read_from(reader, at);
    SEE(CALL(cuCtxDisablePeerAccess)(fuzz_context));
    SEE(CALL(cuCtxDestroy_v2)(reader));
    SEE(CALL(cuCtxSetCurrent)(fuzz_context));
    fuzz_read(at, BYTES);
    SEE(CALL(cuMemFree_v2)(at));
}

const struct fuzz_operation fuzz_contexts[] = {
    {"destroy a context", destroy, 3},
    {"end a primary context", end_primary, 3},
    {"a green context", green, 2},
    {"read by a peer", read_by_peer, 3},
    {"another current context", call_elsewhere, 3},
    {NULL, NULL, 0},
};

/* --- last acts: what the process does not survive */

/* The access was given and taken away: an illegal access, from then on an error of all calls. */
static void read_without_access(void)
{
    CUcontext reader = NULL;
    fuzz_wait();
    const CUdeviceptr at = make_block();
    SEE(CALL(cuCtxCreate_v2)(&reader, 0, 1));
    SEE(CALL(cuCtxEnablePeerAccess)(fuzz_context, 0));
    SEE(CALL(cuCtxDisablePeerAccess)(fuzz_context));
    fuzz_read_from(reader, at);
}

static void read_illegally(void)
{
    CUdeviceptr at = 4096;
    uint64_t count = 1;
    CUdeviceptr out = fuzz_range(4, 4).at;
    void *params[] = {&out, &at, &count};
    fuzz_launch(fuzz_kernel("copy32"), params);
    fuzz_wait();
    fuzz_read(fuzz_range(64, 1).at, 1);
}

static void reset_device(void)
{
    fuzz_wait();
    const CUdeviceptr at = make_block();
    const bool older = fuzz_one_in(2);
    SEE(TWIN(older, cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset)(0));
    ask_about(at);
    SEE(CALL(cuMemsetD8_v2)(at, 1, 10));
}

static void release_device(void)
{
    fuzz_wait();
    const CUdeviceptr at = make_block();
    const bool older = fuzz_one_in(2);
    SEE(TWIN(older, cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease)(0));
    ask_about(at);
}

const struct fuzz_operation fuzz_last_acts[] = {
    {"read-without-access", read_without_access, 0},
    {"read-illegally", read_illegally, 0},
    {"reset-device", reset_device, 0},
    {"release-device", release_device, 0},
    {NULL, NULL, 0},
};
