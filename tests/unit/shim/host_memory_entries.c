/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory that kernels can read, as programs get it and give it back. */
#include <stdio.h>
#include <string.h>

#include "runtime/calls/host_memory.h"
#include "runtime/calls/pointer.h"
#include "shim/graphics.h"
#include "tests/unit/between.h"
#include "tests/unit/shim/real_side.h"

enum { HOST = 0x1000, ALIAS = 0x2000, BYTES = 0x400 };

static char told[256];

static void must_be_told(const char *expected)
{
    if (strcmp(told, expected) != 0)
        ms_test_fail(__FILE__, __LINE__, "told: %s, expected %s", told, expected);
    told[0] = '\0';
}

WRAPS(ms_host_memory_add_alias, ms_host_memory_forget, ms_host_memory_add_reach, ms_pointer_is);

void __wrap_ms_host_memory_add_alias(uint64_t address, uint64_t alias, size_t bytes)
{
    const size_t used = strlen(told);
    snprintf(told + used, sizeof(told) - used, "%lx at %lx %lx; ", (unsigned long)address,
             (unsigned long)alias, (unsigned long)bytes);
}

void __wrap_ms_host_memory_forget(uint64_t address)
{
    const size_t used = strlen(told);
    snprintf(told + used, sizeof(told) - used, "not %lx; ", (unsigned long)address);
}

void __wrap_ms_host_memory_add_reach(enum ms_reason why)
{
    CHECK_EQ(why, MS_REASON_GLOBALS);
    strcat(told, "reach; ");
}

/* --- the driver */

static CUresult answer, alias_answer;
static CUdeviceptr alias = HOST, given = HOST;
static bool is_managed;

#define GIVES(symbol, parameters) REAL(symbol, parameters, *address = (void *)HOST; return answer)
GIVES(cuMemAllocHost, (void **address, unsigned bytes))
GIVES(cuMemAllocHost_v2, (void **address, size_t bytes))
GIVES(cuMemHostAlloc, (void **address, size_t bytes, unsigned flags))
REAL(cuMemHostRegister, (void *address, size_t bytes, unsigned flags), return answer)
REAL(cuMemHostRegister_v2, (void *address, size_t bytes, unsigned flags), return answer)
REAL(cuMemHostGetDevicePointer_v2, (CUdeviceptr * address, void *host, unsigned flags), {
    CHECK(host == (void *)HOST && flags == 0);
    *address = alias;
    return alias_answer;
})
REAL(cuMemFreeHost, (void *address), return answer)
REAL(cuMemHostUnregister, (void *address), return answer)
#define GIVES_DEVICE(symbol, parameters) \
    REAL(symbol, parameters, if (address != NULL) *address = given; return answer)
GIVES_DEVICE(cuMemAllocManaged, (CUdeviceptr * address, size_t bytes, unsigned flags))
GIVES_DEVICE(cuExternalMemoryGetMappedBuffer, (CUdeviceptr * address, CUexternalMemory memory,
                                               const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *buffer))
GIVES_DEVICE(cuModuleGetGlobal_v2,
             (CUdeviceptr * address, size_t *bytes, CUmodule module, const char *name))
GIVES_DEVICE(cuLibraryGetGlobal,
             (CUdeviceptr * address, size_t *bytes, CUlibrary library, const char *name))
GIVES_DEVICE(cuLibraryGetManaged,
             (CUdeviceptr * address, size_t *bytes, CUlibrary library, const char *name))
#define MAPS(symbol, parameters)                                   \
    REAL(symbol, parameters, if (address != NULL) *address = HOST; \
         if (bytes != NULL) *bytes = BYTES; return answer)
MAPS(cuGraphicsResourceGetMappedPointer_v2,
     (CUdeviceptr * address, size_t *bytes, CUgraphicsResource resource))
MAPS(cuGLMapBufferObject_v2, (CUdeviceptr * address, size_t *bytes, unsigned buffer))
MAPS(cuGLMapBufferObjectAsync_v2_ptsz,
     (CUdeviceptr * address, size_t *bytes, unsigned buffer, CUstream stream))

static struct ms_egl_frame the_frame;
REAL(cuGraphicsResourceGetMappedEglFrame,
     (struct ms_egl_frame * frame, CUgraphicsResource resource, unsigned index, unsigned level),
     *frame = the_frame;
     return answer)

bool __wrap_ms_pointer_is(CUdeviceptr address, unsigned kinds)
{
    CHECK(address == HOST && kinds == MS_MANAGED);
    return is_managed;
}

static void start(void)
{
    own_something(true);
}

static void end(void)
{
    must_be_told("");
}
#define HOST_TEST(name) MS_TEST_BETWEEN(start, end, name)

/* --- */

static CUresult get(int way)
{
    void *address;
    return way == 0   ? cuMemAllocHost(&address, BYTES)
           : way == 1 ? cuMemAllocHost_v2(&address, BYTES)
           : way == 2 ? cuMemHostAlloc(&address, BYTES, 0)
           : way == 3 ? cuMemHostRegister((void *)HOST, BYTES, 0)
                      : cuMemHostRegister_v2((void *)HOST, BYTES, 0);
}

HOST_TEST(host_memory_is_told_by_each_address_that_kernels_know)
{
    for (int way = 0; way < 5; way++) {
        alias = HOST;
        CHECK_EQ(get(way), CUDA_SUCCESS);
        must_be_told("1000 at 1000 400; ");
        alias = ALIAS;
        CHECK_EQ(get(way), CUDA_SUCCESS);
        must_be_told("1000 at 1000 400; 1000 at 2000 400; ");
        alias_answer = CUDA_ERROR_INVALID_VALUE;
        CHECK_EQ(get(way), CUDA_SUCCESS);
        must_be_told("1000 at 1000 400; ");
        alias_answer = CUDA_SUCCESS;
        answer = CUDA_ERROR_OUT_OF_MEMORY;
        CHECK_EQ(get(way), CUDA_ERROR_OUT_OF_MEMORY);
        answer = CUDA_SUCCESS;
        atomic_store(&ms_hot.started, 0);
        CHECK_EQ(get(way), CUDA_SUCCESS);
        must_be_told("");
        atomic_store(&ms_hot.started, 1);
    }
}

HOST_TEST(host_memory_that_is_given_back_is_forgotten)
{
    CHECK_EQ(cuMemFreeHost((void *)HOST), CUDA_SUCCESS);
    must_be_told("not 1000; ");
    CHECK_EQ(cuMemHostUnregister((void *)HOST), CUDA_SUCCESS);
    must_be_told("not 1000; ");
    answer = CUDA_ERROR_INVALID_VALUE;
    CHECK_EQ(cuMemFreeHost((void *)HOST), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuMemHostUnregister((void *)HOST), CUDA_ERROR_INVALID_VALUE);
}

HOST_TEST(memory_that_others_write_unseen_is_host_memory)
{
    CUdeviceptr address;
    const CUDA_EXTERNAL_MEMORY_BUFFER_DESC buffer = {.size = BYTES};
    for (int i = 0; i < 3; i++) {
        answer = i == 1 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
        atomic_store(&ms_hot.started, i != 2);
        CHECK_EQ(cuMemAllocManaged(&address, BYTES, 0), answer);
        must_be_told(i == 0 ? "1000 at 1000 400; " : "");
        CHECK_EQ(cuExternalMemoryGetMappedBuffer(&address, NULL, &buffer), answer);
        must_be_told(i == 0 ? "1000 at 1000 400; " : "");
    }
}

static CUresult map(int way, CUdeviceptr *address, size_t *bytes)
{
    return way == 0   ? cuGraphicsResourceGetMappedPointer_v2(address, bytes, NULL)
           : way == 1 ? cuGLMapBufferObject_v2(address, bytes, 0)
                      : cuGLMapBufferObjectAsync_v2_ptsz(address, bytes, 0, NULL);
}

HOST_TEST(memory_that_graphics_maps_is_host_memory)
{
    CUdeviceptr address;
    size_t bytes;
    for (int way = 0; way < 3; way++) {
        CHECK_EQ(map(way, &address, &bytes), CUDA_SUCCESS);
        must_be_told("1000 at 1000 400; ");
        CHECK_EQ(map(way, NULL, &bytes), CUDA_SUCCESS);
        CHECK_EQ(map(way, &address, NULL), CUDA_SUCCESS);
        answer = CUDA_ERROR_INVALID_VALUE;
        CHECK_EQ(map(way, &address, &bytes), CUDA_ERROR_INVALID_VALUE);
        answer = CUDA_SUCCESS;
        atomic_store(&ms_hot.started, 0);
        CHECK_EQ(map(way, &address, &bytes), CUDA_SUCCESS);
        must_be_told("");
        atomic_store(&ms_hot.started, 1);
    }
}

HOST_TEST(the_planes_of_a_frame_are_host_memory)
{
    struct ms_egl_frame frame;
    the_frame.type = MS_FRAME_PITCH;
    the_frame.pitch = 16;
    the_frame.height = 4;
    the_frame.plane_count = 2;
    for (int i = 0; i < MS_FRAME_PLANES; i++)
        the_frame.planes[i] = (void *)(uintptr_t)(HOST * (i + 1));
    CHECK_EQ(cuGraphicsResourceGetMappedEglFrame(&frame, NULL, 0, 0), CUDA_SUCCESS);
    must_be_told("1000 at 1000 40; 2000 at 2000 40; ");
    the_frame.plane_count = MS_FRAME_PLANES + 1;
    CHECK_EQ(cuGraphicsResourceGetMappedEglFrame(&frame, NULL, 0, 0), CUDA_SUCCESS);
    must_be_told("1000 at 1000 40; 2000 at 2000 40; 3000 at 3000 40; ");
    the_frame.type = !MS_FRAME_PITCH;
    CHECK_EQ(cuGraphicsResourceGetMappedEglFrame(&frame, NULL, 0, 0), CUDA_SUCCESS);
    the_frame.type = MS_FRAME_PITCH;
    answer = CUDA_ERROR_INVALID_VALUE;
    CHECK_EQ(cuGraphicsResourceGetMappedEglFrame(&frame, NULL, 0, 0), CUDA_ERROR_INVALID_VALUE);
    answer = CUDA_SUCCESS;
    atomic_store(&ms_hot.started, 0);
    CHECK_EQ(cuGraphicsResourceGetMappedEglFrame(&frame, NULL, 0, 0), CUDA_SUCCESS);
}

static CUresult find_global(int way, CUdeviceptr *address)
{
    size_t bytes;
    return way == 0   ? cuModuleGetGlobal_v2(address, &bytes, NULL, "name")
           : way == 1 ? cuLibraryGetGlobal(address, &bytes, NULL, "name")
                      : cuLibraryGetManaged(address, &bytes, NULL, "name");
}

HOST_TEST(kernels_may_reach_anything_through_a_managed_variable)
{
    CUdeviceptr address;
    for (int way = 0; way < 3; way++) {
        is_managed = true;
        CHECK_EQ(find_global(way, &address), CUDA_SUCCESS);
        must_be_told("reach; ");
        is_managed = false; /* that of a library is managed, whatever is asked */
        CHECK_EQ(find_global(way, &address), CUDA_SUCCESS);
        must_be_told(way < 2 ? "" : "reach; ");
        is_managed = true;
        CHECK_EQ(find_global(way, NULL), CUDA_SUCCESS);
        must_be_told(way < 2 ? "" : "reach; ");
        answer = CUDA_ERROR_NOT_FOUND;
        CHECK_EQ(find_global(way, &address), CUDA_ERROR_NOT_FOUND);
        answer = CUDA_SUCCESS;
        atomic_store(&ms_hot.started, 0);
        CHECK_EQ(find_global(way, &address), CUDA_SUCCESS);
        must_be_told("");
        atomic_store(&ms_hot.started, 1);
    }
}
