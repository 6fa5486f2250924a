/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual memory management. */
#include "tools/simcuda/tests/program.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define READWRITE CU_MEM_ACCESS_FLAGS_PROT_READWRITE

MS_TEST(granularity)
{
    start();
    size_t granularity;
    CUmemAllocationProp prop = device_prop(0);
    OK(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CHECK_EQ(granularity, 2 * MIB);
    OK(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    CHECK_EQ(granularity, 2 * MIB);
    /* Whether there is such a device is asked when memory is created. */
    prop.location.id = 5;
    OK(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
}

MS_TEST(wrong_handles)
{
    start();
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = device_prop(0);
    FAILS(cuMemCreate(&handle, MIB, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemCreate(&handle, 0, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemCreate(&handle, 2 * MIB, NULL, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemCreate(&handle, 2 * MIB, &prop, 1), CUDA_ERROR_INVALID_VALUE);
    prop.type = CU_MEM_ALLOCATION_TYPE_INVALID;
    FAILS(cuMemCreate(&handle, 2 * MIB, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    prop = device_prop(1);
    FAILS(cuMemCreate(&handle, 2 * MIB, &prop, 0), CUDA_ERROR_INVALID_DEVICE);
    prop = device_prop(0);
    FAILS(cuMemCreate(&handle, (size_t)1 << 40, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    FAILS(cuMemRelease(0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemRelease(12345), CUDA_ERROR_INVALID_VALUE);
    handle = create(2 * MIB);
    OK(cuMemRelease(handle));
    FAILS(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
}

MS_TEST(memory_lives_while_it_has_a_handle_or_a_mapping)
{
    start();
    const size_t before = free_bytes();
    const CUdeviceptr address = reserve(4 * MIB);
    CHECK_EQ(free_bytes(), before);
    const CUmemGenericAllocationHandle handle = create(2 * MIB);
    CHECK_EQ(before - free_bytes(), 2 * MIB);
    OK(cuMemMap(address, 2 * MIB, 0, handle, 0));
    OK(cuMemRelease(handle));
    CHECK_EQ(before - free_bytes(), 2 * MIB);
    CUmemGenericAllocationHandle retained;
    OK(cuMemRetainAllocationHandle(&retained, (void *)(address + 100)));
    OK(cuMemUnmap(address, 2 * MIB));
    CHECK_EQ(before - free_bytes(), 2 * MIB);
    OK(cuMemRelease(retained));
    CHECK_EQ(free_bytes(), before);
    FAILS(cuMemRetainAllocationHandle(&retained, (void *)address), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAddressFree(address, 4 * MIB));
}

MS_TEST(reservations)
{
    start();
    CUdeviceptr address;
    CUdeviceptr other;
    FAILS(cuMemAddressReserve(&address, 0, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemAddressReserve(&address, 100, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemAddressReserve(&address, 2 * MIB, 3, 0, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemAddressReserve(&address, 2 * MIB, 0, 0, 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAddressReserve(&address, 32 * MIB, 64 * MIB, 0, 0));
    CHECK_EQ(address % (64 * MIB), 0);
    FAILS(cuMemAddressFree(address, 16 * MIB), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemAddressFree(address + 16 * MIB, 16 * MIB), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAddressReserve(&other, 32 * MIB, 0, address, 0));
    CHECK(other != address);
    OK(cuMemAddressFree(address, 32 * MIB));
    FAILS(cuMemAddressFree(address, 32 * MIB), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAddressFree(other, 32 * MIB));
    OK(cuMemAddressReserve(&other, 32 * MIB, 0, address, 0));
#ifndef __SANITIZE_THREAD__
    CHECK_EQ(other, address);
#endif
}

#define FAR ((CUdeviceptr)0x5a5b00000000)

/* A reservation that fits into the rest of an area comes there, whatever its hint. */
MS_TEST(addresses_come_in_areas)
{
    enum { COUNT = 64 };
    start();
    CUdeviceptr large, behind, small[COUNT];
    int far = 0;
    OK(cuMemAddressReserve(&large, 36 * MIB, 0, FAR + 2 * MIB, 0));
    OK(cuMemAddressReserve(&behind, 36 * MIB, 0, FAR + 96 * MIB, 0));
#ifndef __SANITIZE_THREAD__
    CHECK_EQ(large, FAR + 32 * MIB);
    CHECK_EQ(behind, FAR + 96 * MIB);
#endif
    for (int i = 0; i < COUNT; i++) {
        const CUdeviceptr wanted = FAR + ((CUdeviceptr)(i + 1) << 32);
        OK(cuMemAddressReserve(&small[i], 4 * MIB, 0, wanted, 0));
        far += small[i] == wanted;
    }
    CHECK(small[0] != FAR + ((CUdeviceptr)1 << 32));
#ifndef __SANITIZE_THREAD__
    CHECK(far > COUNT / 2);
#endif
    for (int i = 0; i < COUNT; i++)
        OK(cuMemAddressFree(small[i], 4 * MIB));
    OK(cuMemAddressFree(large, 36 * MIB));
    OK(cuMemAddressFree(behind, 36 * MIB));
}

MS_TEST(a_hint_outside_of_what_is_known)
{
    start();
    CUdeviceptr address;
    const CUdeviceptr hint = (CUdeviceptr)0x200000000000;
    OK(cuMemAddressReserve(&address, 32 * MIB, 0, hint, 0));
#ifndef __SANITIZE_THREAD__
    CHECK_EQ(address, hint);
#endif
    back(address, 2 * MIB);
    OK(cuMemsetD8(address, 1, 2 * MIB));
    OK(cuCtxSynchronize());
}

MS_TEST(reservations_may_be_huge)
{
    /* QEMU keeps a record of every page that is reserved: it is out of memory before the end. */
    if (getenv("MESON_EXE_WRAPPER") != NULL)
        ms_test_skip("an emulator needs memory for addresses");
    start();
    const size_t bytes = (size_t)16 << 40;
    CUdeviceptr address;
    const CUresult result = cuMemAddressReserve(&address, bytes, 0, 0, 0);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        ms_test_skip("this process has not that many addresses");
    OK(result);
    back(address + bytes - 2 * MIB, 2 * MIB);
    OK(cuMemsetD8(address + bytes - 2 * MIB, 1, 2 * MIB));
    OK(cuCtxSynchronize());
    OK(cuMemUnmap(address + bytes - 2 * MIB, 2 * MIB));
    OK(cuMemAddressFree(address, bytes));
}

MS_TEST(mapping_rules)
{
    start();
    const CUdeviceptr address = reserve(8 * MIB);
    const CUmemGenericAllocationHandle handle = create(4 * MIB);
    FAILS(cuMemMap(address, 4 * MIB, 0, handle, 1), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemMap(address + MIB, 4 * MIB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemMap(address + 64 * MIB, 4 * MIB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemMap(address, 4 * MIB, 0, 77, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemMap(address, 4 * MIB, 0, handle, 0));
    FAILS(cuMemMap(address + 2 * MIB, 4 * MIB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemAddressFree(address, 8 * MIB), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemUnmap(address, 2 * MIB), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemUnmap(address + 2 * MIB, 2 * MIB), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemUnmap(address + 2 * MIB, 6 * MIB), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemMap(address + 4 * MIB, 4 * MIB, 0, handle, 0));
    FAILS(cuMemUnmap(address, 6 * MIB), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemUnmap(address, 8 * MIB));
    OK(cuMemAddressFree(address, 8 * MIB));
    FAILS(cuMemUnmap(address, 8 * MIB), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemRelease(handle));
}

MS_TEST(handles_are_mapped_whole)
{
    start();
    const CUdeviceptr address = reserve(8 * MIB);
    const CUmemGenericAllocationHandle handle = create(4 * MIB);
    FAILS(cuMemMap(address, 4 * MIB, 2 * MIB, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    FAILS(cuMemMap(address, 2 * MIB, 2 * MIB, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    FAILS(cuMemMap(address, 2 * MIB, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    FAILS(cuMemMap(address, MIB, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    FAILS(cuMemMap(address, 6 * MIB, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    OK(cuMemMap(address, 4 * MIB, 0, handle, 0));
    FAILS(cuMemMap(address + 4 * MIB, 2 * MIB, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    OK(cuMemUnmap(address, 4 * MIB));
    OK(cuMemRelease(handle));
    OK(cuMemAddressFree(address, 8 * MIB));
}

MS_TEST(a_mapping_ends_before_its_reservation_does)
{
    start();
    const CUdeviceptr address = reserve(8 * MIB);
    const CUmemGenericAllocationHandle handle = create(4 * MIB);
    FAILS(cuMemMap(address + 6 * MIB, 4 * MIB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemMap(address + 4 * MIB, 4 * MIB, 0, handle, 0));
}

MS_TEST(there_may_be_holes_in_what_is_unmapped)
{
    start();
    const CUdeviceptr address = reserve(16 * MIB);
    const size_t before = free_bytes();
    back(address + 2 * MIB, 4 * MIB);
    back(address + 8 * MIB, 4 * MIB);
    FAILS(set_access(address, 16 * MIB, 0, READWRITE), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemUnmap(address, 10 * MIB), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemUnmap(address, 8 * MIB));
    FAILS(set_access(address + 2 * MIB, 4 * MIB, 0, READWRITE), CUDA_ERROR_INVALID_VALUE);
    OK(set_access(address + 8 * MIB, 4 * MIB, 0, READWRITE));
    OK(cuMemUnmap(address + 6 * MIB, 10 * MIB));
    CHECK_EQ(free_bytes(), before);
    OK(cuMemUnmap(address, 16 * MIB));
    OK(cuMemAddressFree(address, 16 * MIB));
}

MS_TEST(memory_of_other_calls_is_not_mapped_or_unmapped)
{
    start();
    CUdeviceptr address;
    const CUmemGenericAllocationHandle handle = create(2 * MIB);
    OK(cuMemAlloc(&address, 2 * MIB));
    FAILS(cuMemUnmap(address, 2 * MIB), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemMap(address, 2 * MIB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(set_access(address, 2 * MIB, 0, READWRITE), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemAddressFree(address, 2 * MIB), CUDA_ERROR_INVALID_VALUE);
    address = reserve(2 * MIB);
    FAILS(cuMemFree(address), CUDA_ERROR_INVALID_VALUE);
}

MS_TEST(access_is_off_after_every_map)
{
    start();
    const CUdeviceptr address = reserve(4 * MIB);
    const CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    unsigned long long flags;
    FAILS(set_access(address, 2 * MIB, 0, READWRITE), CUDA_ERROR_INVALID_VALUE);
    back(address, 2 * MIB);
    OK(cuMemGetAccess(&flags, &location, address));
    CHECK_EQ(flags, READWRITE);
    OK(cuMemUnmap(address, 2 * MIB));
    FAILS(cuMemGetAccess(&flags, &location, address), CUDA_ERROR_INVALID_VALUE);
    const CUmemGenericAllocationHandle handle = create(2 * MIB);
    OK(cuMemMap(address, 2 * MIB, 0, handle, 0));
    OK(cuMemGetAccess(&flags, &location, address));
    CHECK_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    FAILS(set_access(address, 4 * MIB, 0, READWRITE), CUDA_ERROR_INVALID_VALUE);
    FAILS(set_access(address, MIB, 0, READWRITE), CUDA_ERROR_INVALID_VALUE);
    FAILS(set_access(address, 2 * MIB, 3, READWRITE), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemMap(address + 2 * MIB, 2 * MIB, 0, handle, 0));
    OK(set_access(address, 4 * MIB, 0, READWRITE));
    OK(cuMemsetD8(address, 0, 4 * MIB));
    OK(cuCtxSynchronize());
}

MS_TEST(a_handle_lies_at_several_addresses)
{
    start();
    const CUdeviceptr address = reserve(8 * MIB);
    const CUmemGenericAllocationHandle handle = create(2 * MIB);
    unsigned seen;
    for (size_t at = 0; at < 8 * MIB; at += 2 * MIB)
        OK(cuMemMap(address + at, 2 * MIB, 0, handle, 0));
    OK(cuMemRelease(handle));
    OK(set_access(address, 8 * MIB, 0, READWRITE));
    OK(cuMemsetD32(address + 4 * MIB + 40, 77, 1));
    for (size_t at = 0; at < 8 * MIB; at += 2 * MIB) {
        OK(cuMemcpyDtoH(&seen, address + at + 40, sizeof(seen)));
        CHECK_EQ(seen, 77);
    }
    OK(cuMemUnmap(address, 8 * MIB));
}

MS_TEST(content_stays_with_the_handle)
{
    start();
    const CUdeviceptr address = reserve(4 * MIB);
    const CUmemGenericAllocationHandle handle = create(2 * MIB);
    unsigned seen;
    OK(cuMemMap(address, 2 * MIB, 0, handle, 0));
    OK(set_access(address, 2 * MIB, 0, READWRITE));
    OK(cuMemsetD32(address, 1234, MIB / 2));
    OK(cuCtxSynchronize());
    OK(cuMemUnmap(address, 2 * MIB));
    OK(cuMemMap(address + 2 * MIB, 2 * MIB, 0, handle, 0));
    OK(set_access(address + 2 * MIB, 2 * MIB, 0, READWRITE));
    OK(cuMemcpyDtoH(&seen, address + 4 * MIB - 4, sizeof(seen)));
    CHECK_EQ(seen, 1234);
}

/* A kernel that touches them ends all (launch.illegal_access_is_sticky). */
MS_TEST(copies_and_fills_of_unmapped_addresses_are_refused)
{
    start();
    const CUdeviceptr address = reserve(8 * MIB);
    static char host[4 * MIB];
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    back(address, 2 * MIB);
    OK(cuMemsetD8(address, 1, 2 * MIB));
    FAILS(cuMemsetD8(address + MIB, 2, 2 * MIB), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemsetD8(address + 4 * MIB, 2, 1), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemsetD8Async(address + 4 * MIB, 2, 2 * MIB, stream), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemcpyHtoD(address + MIB, host, 2 * MIB), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemcpyHtoDAsync(address + MIB, host, 2 * MIB, stream), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemcpyDtoHAsync(host, address + MIB, 2 * MIB, stream), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemcpyDtoDAsync(address, address + 2 * MIB, 4, stream), CUDA_ERROR_INVALID_VALUE);
    OK(cuStreamSynchronize(stream));
    OK(cuCtxSynchronize());
    OK(cuMemcpyDtoH(host, address, 2 * MIB)); /* nothing of them was done */
    CHECK_EQ(host[2 * MIB - 1], 1);
    CHECK_EQ(host[0], 1);
}

/* A call whose addresses may be the host's takes them for that, as no memory of the device is
 * there: the process ends. */
MS_TEST(a_unified_copy_of_unmapped_addresses_is_one_of_the_host)
{
    int status, ends[2];
    char ready;
    CHECK_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        uint32_t word = 0;
        start();
        const CUdeviceptr address = reserve(2 * MIB);
        CHECK_EQ(write(ends[1], "x", 1), 1);
        (void)cuMemcpy(address, (CUdeviceptr)&word, sizeof(word));
        _exit(0);
    }
    close(ends[1]);
    CHECK_EQ(read(ends[0], &ready, 1), 1);
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(status != 0);
}

MS_TEST(memory_without_access_is_not_copied_or_filled)
{
    start();
    const CUdeviceptr address = reserve(2 * MIB);
    const CUmemGenericAllocationHandle handle = create(2 * MIB);
    char host[16];
    OK(cuMemMap(address, 2 * MIB, 0, handle, 0));
    FAILS(cuMemcpyDtoH(host, address, sizeof(host)), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemcpyHtoD(address, host, sizeof(host)), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemsetD8(address, 1, 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuCtxSynchronize());
}

MS_TEST(read_only_access)
{
    start();
    const CUdeviceptr address = reserve(2 * MIB);
    char host[16];
    back(address, 2 * MIB);
    OK(set_access(address, 2 * MIB, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
    OK(cuMemcpyDtoH(host, address, sizeof(host)));
    FAILS(cuMemsetD8(address, 1, 1), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemcpyHtoD(address, host, sizeof(host)), CUDA_ERROR_INVALID_VALUE);
    OK(cuCtxSynchronize());
}

MS_TEST(unmapping_under_queued_work_is_a_race)
{
    start();
    CUstream stream;
    struct gate gate;
    const CUdeviceptr address = reserve(2 * MIB);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    back(address, 2 * MIB);
    close_gate(&gate, stream);
    OK(cuMemsetD8Async(address, 1, 2 * MIB, stream));
    OK(cuMemUnmap(address, 2 * MIB));
    open_gate(&gate);
    FAILS(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}

MS_TEST(properties_of_handles)
{
    start();
    CUmemAllocationProp prop = device_prop(0);
    CUmemAllocationProp seen;
    CUmemGenericAllocationHandle handle;
    int file;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.allocFlags.gpuDirectRDMACapable = 1;
    OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    OK(cuMemGetAllocationPropertiesFromHandle(&seen, handle));
    CHECK_EQ(seen.allocFlags.gpuDirectRDMACapable, 1);
    CHECK_EQ(seen.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    OK(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    close(file);
    FAILS(cuMemExportToShareableHandle(&file, create(2 * MIB),
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
          CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0),
          CUDA_ERROR_INVALID_VALUE);
}

static void send_file(int channel, int file)
{
    char byte = 'f';
    struct iovec data = {&byte, 1};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(file));
    memcpy(CMSG_DATA(header), &file, sizeof(file));
    CHECK_EQ(sendmsg(channel, &message, 0), 1);
}

static int receive_file(int channel)
{
    char byte;
    int file;
    struct iovec data = {&byte, 1};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control)};
    CHECK_EQ(recvmsg(channel, &message, 0), 1);
    memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(file));
    return file;
}

MS_TEST(handles_go_to_other_processes)
{
    int channel[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, channel), 0);
    const pid_t child = fork();
    CHECK(child >= 0);
    start();
    CUmemGenericAllocationHandle handle;
    const CUdeviceptr address = reserve(4 * MIB);
    unsigned seen;
    char byte;
    int file;
    if (child == 0) {
        CUmemAllocationProp prop = device_prop(0);
        prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        create(2 * MIB);
        OK(cuMemCreate(&handle, 4 * MIB, &prop, 0));
        OK(cuMemMap(address, 4 * MIB, 0, handle, 0));
        OK(set_access(address, 4 * MIB, 0, READWRITE));
        OK(cuMemsetD32(address + 3 * MIB, 0xABCD, 1));
        OK(cuCtxSynchronize());
        OK(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                        0));
        send_file(channel[0], file);
        CHECK_EQ(read(channel[0], &byte, 1), 1);
        OK(cuMemcpyDtoH(&seen, address, sizeof(seen)));
        CHECK_EQ(seen, 0x5555);
        exit(0);
    }
    file = receive_file(channel[1]);
    OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)file,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(file);
    FAILS(cuMemMap(address, 6 * MIB, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    OK(cuMemMap(address, 4 * MIB, 0, handle, 0));
    OK(set_access(address, 4 * MIB, 0, READWRITE));
    OK(cuMemcpyDtoH(&seen, address + 3 * MIB, sizeof(seen)));
    CHECK_EQ(seen, 0xABCD);
    OK(cuMemsetD32(address, 0x5555, 1));
    OK(cuCtxSynchronize());
    CHECK_EQ(write(channel[1], "x", 1), 1);
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    OK(cuMemRelease(handle));
    OK(cuMemUnmap(address, 4 * MIB));
    FAILS(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)channel[0],
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
          CUDA_ERROR_UNKNOWN);
}

MS_TEST(dma_buf_of_a_range)
{
    start();
    int file;
    unsigned seen;
    const CUdeviceptr address = reserve(4 * MIB);
    back(address, 2 * MIB);
    OK(cuMemsetD32(address + MIB, 31, MIB / 4));
    OK(cuCtxSynchronize());
    OK(cuMemGetHandleForAddressRange(&file, address + MIB, MIB, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                                     0));
    CHECK_EQ(read(file, &seen, sizeof(seen)), sizeof(seen));
    CHECK_EQ(seen, 31);
    close(file);
    FAILS(cuMemGetHandleForAddressRange(&file, address + MIB, 2 * MIB,
                                        CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
          CUDA_ERROR_INVALID_VALUE);
}

MS_TEST(other_devices_need_access_of_their_own)
{
    setenv("SIMCUDA_DEVICES", "2", 1);
    start();
    CUcontext other;
    CUstream stream;
    int can;
    const CUdeviceptr address = reserve(4 * MIB);
    back(address, 2 * MIB);
    OK(cuDeviceCanAccessPeer(&can, 0, 1));
    CHECK_EQ(can, 1);
    OK(cuCtxCreate(&other, NULL, 0, 1));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(set_access(address, 2 * MIB, 1, READWRITE));
    OK(cuMemsetD8Async(address, 1, 2 * MIB, stream));
    OK(cuStreamSynchronize(stream));
    back(address + 2 * MIB, 2 * MIB);
    FAILS(cuMemsetD8Async(address + 2 * MIB, 1, 2 * MIB, stream), CUDA_ERROR_INVALID_VALUE);
    OK(cuStreamSynchronize(stream));
}

MS_TEST(peer_access_is_for_allocations)
{
    setenv("SIMCUDA_DEVICES", "2", 1);
    const CUcontext first = start();
    CUcontext second;
    CUdeviceptr address;
    OK(cuMemAlloc(&address, MIB));
    OK(cuCtxCreate(&second, NULL, 0, 1));
    FAILS(cuCtxDisablePeerAccess(first), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    OK(cuCtxEnablePeerAccess(first, 0));
    FAILS(cuCtxEnablePeerAccess(first, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    OK(cuMemsetD8(address, 1, MIB));
    OK(cuCtxSynchronize());
    OK(cuCtxDisablePeerAccess(first));
    FAILS(cuMemsetD8(address, 1, MIB), CUDA_ERROR_INVALID_VALUE);
}
