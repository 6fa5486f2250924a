/* SPDX-License-Identifier: Apache-2.0 */
/* Handles and reservations of the program's own, which have no memory yet. */
#include <unistd.h>

#include "tests/driver/groups/groups.h"
#include "tools/simcuda/driver/hook.h"

static const CUmemAllocationProp on_device = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                              .requestedHandleTypes =
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
static const CUmemAccessDesc read_write = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                           .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

static CUmemGenericAllocationHandle create(size_t bytes)
{
    CUmemGenericAllocationHandle handle;
    MUST(cuMemCreate(&handle, bytes, &on_device, 0));
    return handle;
}

/* groups.py looks at how much memory the device had to have. */
static void reserved(void)
{
    CUdeviceptr place;
    SEEN(TESTED(cuMemAddressReserve)(&place, 64 * MIB, 0, 0, 0));
    MUST(cuMemMap(place, 64 * MIB, 0, create(64 * MIB), 0));
    MUST(cuMemSetAccess(place, 64 * MIB, &read_write, 1));
    MUST(cuMemsetD8_v2(place, 1, 64 * MIB));
    print_device("a part", place + MIB, MIB);
}

static void mapped(void)
{
    CUdeviceptr place;
    MUST(cuMemAddressReserve(&place, BLOCK_BYTES, 0, 0, 0));
    SEEN(TESTED(cuMemMap)(place, BLOCK_BYTES, 0, create(BLOCK_BYTES), 0));
    MUST(cuMemSetAccess(place, BLOCK_BYTES, &read_write, 1));
    MUST(cuMemsetD8_v2(place, 1, BLOCK_BYTES));
    print_device("mapped", place, BLOCK_BYTES);
}

static void released(void)
{
    const CUmemGenericAllocationHandle handle = create(BLOCK_BYTES);
    SEEN(TESTED(cuMemRelease)(handle));
    SEEN(TESTED(cuMemRelease)(handle));
}

static void exported(void)
{
    int descriptor = -1;
    const CUmemGenericAllocationHandle handle = create(BLOCK_BYTES);
    SEEN(TESTED(cuMemExportToShareableHandle)(&descriptor, handle,
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    printf("%d\n", close(descriptor));
}

static void described(void)
{
    CUmemAllocationProp prop = {0};
    SEEN(TESTED(cuMemGetAllocationPropertiesFromHandle)(&prop, create(BLOCK_BYTES)));
    printf("%d %d %d\n", (int)prop.type, (int)prop.requestedHandleTypes, (int)prop.location.type);
}

static CUmemGenericAllocationHandle make_multicast(void)
{
    CUmemGenericAllocationHandle object;
    const CUmulticastObjectProp prop = {.numDevices = 1, .size = 2 * MIB};
    MUST(cuMulticastCreate(&object, &prop));
    MUST(cuMulticastAddDevice(object, 0));
    return object;
}

static void bound_to_a_switch(void)
{
    const CUmemGenericAllocationHandle object = make_multicast();
    SEEN(TESTED(cuMulticastBindMem)(object, 0, create(2 * MIB), 0, 2 * MIB, 0));
}

static void bound_to_a_switch_2(void)
{
    const CUmemGenericAllocationHandle object = make_multicast();
    SEEN(TESTED(cuMulticastBindMem_v2)(object, 0, 0, create(2 * MIB), 0, 2 * MIB, 0));
}

static void bound_to_an_endpoint(void)
{
    SEEN(TESTED(cuLogicalEndpointBindMem)(1, 0, 0, create(2 * MIB), 0, 2 * MIB, 0));
}

const struct scenario mapping_scenarios[] = {
    {"cuMemAddressReserve", reserved, NULL},
    {"cuMemMap:deferred", mapped, NULL},
    {"cuMemRelease", released, NULL},
    {"cuMemExportToShareableHandle", exported, NULL},
    {"cuMemGetAllocationPropertiesFromHandle", described, NULL},
    {"cuMulticastBindMem", bound_to_a_switch, NULL},
    {"cuMulticastBindMem_v2", bound_to_a_switch_2, NULL},
    {"cuLogicalEndpointBindMem", bound_to_an_endpoint, NULL},
    {NULL, NULL, NULL},
};
