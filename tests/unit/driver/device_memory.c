/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/driver/device_memory.h"

#include "runtime/calls/handles.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"

static bool shares, has_rdma;

static CUresult get_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    if (device != 3)
        return CUDA_ERROR_INVALID_DEVICE;
    *value =
        attribute == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
            ? shares
            : attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED && has_rdma;
    return CUDA_SUCCESS;
}

MS_TEST(memory_can_do_all_that_the_device_can)
{
    fake_start();
    ms_driver.device_get_attribute = get_attribute;
    for (int i = 0; i < 4; i++) {
        shares = (i & 1) != 0;
        has_rdma = (i & 2) != 0;
        const CUmemAllocationProp prop = ms_device_memory_properties(3),
                                  none = ms_device_memory_properties(4);
        CHECK(prop.type == CU_MEM_ALLOCATION_TYPE_PINNED && prop.location.id == 3);
        CHECK(prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE);
        CHECK_EQ(prop.requestedHandleTypes,
                 shares ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE);
        CHECK_EQ(prop.allocFlags.gpuDirectRDMACapable, has_rdma);
        CHECK(none.requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE);
        CHECK_EQ(none.allocFlags.gpuDirectRDMACapable, 0);
    }
}

MS_TEST(a_backing_serves_properties_that_ask_for_no_more)
{
    fake_start();
    ms_driver.device_get_attribute = get_attribute;
    for (int i = 0; i < 2; i++) {
        shares = has_rdma = i == 1;
        const CUmemAllocationProp wanted = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE,
                                                         .id = 3}};
        CUmemAllocationProp prop = wanted;
        CHECK(ms_handle_serves(&prop, 3));
        CHECK(!ms_handle_serves(&prop, 2) && !ms_handle_serves(NULL, 3));
        prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        CHECK_EQ(ms_handle_serves(&prop, 3), shares);
        prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
        CHECK(!ms_handle_serves(&prop, 3));
        prop = wanted;
        prop.allocFlags.gpuDirectRDMACapable = 1;
        CHECK_EQ(ms_handle_serves(&prop, 3), has_rdma);
        prop = wanted;
        prop.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_GENERIC;
        CHECK(!ms_handle_serves(&prop, 3));
        prop = wanted;
        prop.allocFlags.usage = 1;
        CHECK(!ms_handle_serves(&prop, 3));
        prop = wanted;
        prop.win32HandleMetaData = &prop;
        CHECK(!ms_handle_serves(&prop, 3));
        prop = wanted;
        prop.location.type = CU_MEM_LOCATION_TYPE_HOST;
        CHECK(!ms_handle_serves(&prop, 3));
        prop = wanted;
        prop.type = CU_MEM_ALLOCATION_TYPE_INVALID;
        CHECK(!ms_handle_serves(&prop, 3));
    }
}

MS_TEST(a_size_that_cannot_be_rounded_stays_as_it_is)
{
    fake_start();
    CHECK_EQ(ms_device_memory_rounded(0, 0), 0);
    CHECK_EQ(ms_device_memory_rounded(0, 1), FAKE_GRANULE);
    CHECK_EQ(ms_device_memory_rounded(0, FAKE_GRANULE), FAKE_GRANULE);
    CHECK_EQ(ms_device_memory_rounded(0, SIZE_MAX - FAKE_GRANULE),
             SIZE_MAX / FAKE_GRANULE * FAKE_GRANULE);
    CHECK_EQ(ms_device_memory_rounded(0, SIZE_MAX - FAKE_GRANULE + 1), SIZE_MAX - FAKE_GRANULE + 1);
    fake_fail(FAKE_mem_get_granularity, 1, CUDA_ERROR_INVALID_DEVICE);
    CHECK_EQ(ms_device_memory_rounded(0, 5), 5);
}
