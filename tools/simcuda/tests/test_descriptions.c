/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptions that the driver keeps and gives back: advice, textures, core dumps, resources. */
#include "tools/simcuda/driver/simcuda.h"
#include "tools/simcuda/harness/test.h"

#include <stdbool.h>
#include <string.h>

#define OK(call) CHECK_EQ(call, CUDA_SUCCESS)
#define FAILS(call, error) CHECK_EQ(call, error)

enum { PAGE = 4096 };

static void start(void)
{
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
}

static int attribute(CUmem_range_attribute name, CUdeviceptr address, size_t bytes)
{
    int value;
    OK(cuMemRangeGetAttribute(&value, sizeof value, name, address, bytes));
    return value;
}

MS_TEST(advice)
{
    const CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    const CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST};
    CUdeviceptr memory;
    int accessors[3];
    start();
    OK(cuMemAllocManaged(&memory, 4 * PAGE, CU_MEM_ATTACH_GLOBAL));
    CHECK_EQ(attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, memory, 4 * PAGE),
             CU_DEVICE_INVALID);
    OK(cuMemAdvise(memory, 2 * PAGE, CU_MEM_ADVISE_SET_READ_MOSTLY, device));
    CHECK_EQ(attribute(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, memory, 2 * PAGE), 1);
    CHECK_EQ(attribute(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, memory, 2 * PAGE + 1), 0);
    OK(cuMemAdvise(memory, 4 * PAGE, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host));
    CHECK_EQ(attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, memory, 4 * PAGE), CU_DEVICE_CPU);
    OK(cuMemAdvise(memory, 4 * PAGE, CU_MEM_ADVISE_SET_ACCESSED_BY, host));
    OK(cuMemAdvise(memory, 4 * PAGE, CU_MEM_ADVISE_SET_ACCESSED_BY, device));
    OK(cuMemRangeGetAttribute(accessors, sizeof accessors, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY,
                              memory, 4 * PAGE));
    CHECK_EQ(accessors[0], 0);
    CHECK_EQ(accessors[1], CU_DEVICE_CPU);
    CHECK_EQ(accessors[2], CU_DEVICE_INVALID);
    OK(cuMemPrefetchAsync(memory, PAGE, device, 0, NULL));
    CHECK_EQ(attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, memory, PAGE), 0);
    CHECK_EQ(attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, memory, 2 * PAGE),
             CU_DEVICE_INVALID);
    OK(cuMemAdvise(memory, PAGE, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, device));
    CHECK_EQ(attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, memory, 4 * PAGE),
             CU_DEVICE_INVALID);
    FAILS(cuMemAdvise(memory, PAGE, (CUmem_advise)99, device), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree(memory));
}

MS_TEST(memsets_of_host_memory_are_over)
{
    unsigned char *pinned;
    CUdeviceptr managed;
    start();
    OK(cuMemAllocHost((void **)&pinned, PAGE));
    OK(cuMemsetD8((CUdeviceptr)pinned, 7, PAGE));
    CHECK_EQ(pinned[PAGE - 1], 7);
    OK(cuMemAllocManaged(&managed, PAGE, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemsetD8(managed, 8, PAGE));
    CHECK_EQ(((unsigned char *)managed)[PAGE - 1], 8);
}

MS_TEST(textures)
{
    CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_ARRAY};
    CUDA_TEXTURE_DESC texture = {.flags = CU_TRSF_READ_AS_INTEGER, .maxAnisotropy = 3};
    CUDA_TEXTURE_DESC seen;
    CUDA_RESOURCE_VIEW_DESC view;
    CUtexObject object;
    const CUDA_ARRAY_DESCRIPTOR shape = {.Width = 16,
                                         .Format = CU_AD_FORMAT_UNSIGNED_INT8,
                                         .NumChannels = 1};
    start();
    FAILS(cuTexObjectCreate(&object, &resource, &texture, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuArrayCreate(&resource.res.array.hArray, &shape));
    OK(cuTexObjectCreate(&object, &resource, &texture, NULL));
    OK(cuTexObjectGetTextureDesc(&seen, object));
    CHECK_EQ(memcmp(&seen, &texture, sizeof seen), 0);
    FAILS(cuTexObjectGetResourceViewDesc(&view, object), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuSurfObjectDestroy(object), CUDA_ERROR_INVALID_VALUE);
    OK(cuTexObjectDestroy(object));
    FAILS(cuTexObjectDestroy(object), CUDA_ERROR_INVALID_VALUE);
}

MS_TEST(core_dumps)
{
    bool yes = true;
    char text[1024];
    size_t bytes = 0;
    start();
    OK(cuCoredumpGetAttributeGlobal(CU_COREDUMP_FILE, NULL, &bytes));
    CHECK_EQ(bytes, sizeof text);
    OK(cuCoredumpGetAttributeGlobal(CU_COREDUMP_FILE, text, &bytes));
    CHECK_EQ(strncmp(text, "core.cuda.", 10), 0);
    bytes = 4;
    OK(cuCoredumpSetAttributeGlobal(CU_COREDUMP_PIPE, (void *)"pipe", &bytes));
    bytes = sizeof text;
    OK(cuCoredumpGetAttributeGlobal(CU_COREDUMP_PIPE, text, &bytes));
    CHECK_EQ(strcmp(text, "pipe"), 0);
    bytes = sizeof yes;
    OK(cuCoredumpSetAttributeGlobal(CU_COREDUMP_LIGHTWEIGHT, &yes, &bytes));
    yes = false;
    OK(cuCoredumpGetAttributeGlobal(CU_COREDUMP_LIGHTWEIGHT, &yes, &bytes));
    CHECK(yes);
    FAILS(cuCoredumpGetAttributeGlobal((CUcoredumpSettings)99, NULL, &bytes),
          CUDA_ERROR_INVALID_VALUE);
}

MS_TEST(core_dumps_of_a_context)
{
    bool yes = true;
    size_t bytes = sizeof yes;
    FAILS(cuCoredumpSetAttribute(CU_COREDUMP_LIGHTWEIGHT, &yes, &bytes),
          CUDA_ERROR_NOT_INITIALIZED);
    OK(cuInit(0));
    FAILS(cuCoredumpSetAttribute(CU_COREDUMP_LIGHTWEIGHT, &yes, &bytes),
          CUDA_ERROR_INVALID_CONTEXT);
    start();
    OK(cuCoredumpSetAttribute(CU_COREDUMP_LIGHTWEIGHT, &yes, &bytes));
    yes = false;
    OK(cuCoredumpGetAttribute(CU_COREDUMP_LIGHTWEIGHT, &yes, &bytes));
    CHECK(yes);
    OK(cuCoredumpGetAttributeGlobal(CU_COREDUMP_LIGHTWEIGHT, &yes, &bytes));
    CHECK(!yes);
}

MS_TEST(groups_of_multiprocessors)
{
    CUdevResource all;
    CUdevResource groups[4];
    CUdevResource rest;
    unsigned count = 0;
    start();
    OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    OK(cuDevSmResourceSplitByCount(NULL, &count, &all, &rest, 0, 2));
    CHECK_EQ(count, all.sm.smCount / 2);
    count = 1;
    OK(cuDevSmResourceSplitByCount(groups, &count, &all, &rest, 0, 1));
    CHECK_EQ(count, 1);
    CHECK_EQ(groups[0].sm.smCount, 2);
    CHECK_EQ(rest.sm.smCount, all.sm.smCount - 2);
    FAILS(cuDevSmResourceSplitByCount(NULL, &count, &all, NULL, 0, all.sm.smCount + 1),
          CUDA_ERROR_INVALID_VALUE);
}
