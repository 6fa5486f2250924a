/* SPDX-License-Identifier: Apache-2.0 */
/* Registered buffers, windows, and buffers whose addresses share memory. */
#include "tools/simcuda/tests/nccl/ranks.h"

#define GRANULE (2 * MIB)

static CUmemAllocationProp properties(void)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
}

static CUmemGenericAllocationHandle create(size_t bytes)
{
    CUmemGenericAllocationHandle handle;
    const CUmemAllocationProp prop = properties();
    CU(cuMemCreate(&handle, bytes, &prop, 0));
    return handle;
}

static void map(CUdeviceptr address, CUmemGenericAllocationHandle handle)
{
    const CUmemAccessDesc access = {properties().location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CU(cuMemMap(address, GRANULE, 0, handle, 0));
    CU(cuMemSetAccess(address, GRANULE, &access, 1));
}

/* Granules of memory; those whose bit is set in `shared` are all the same one. */
static CUdeviceptr reserve(int granules, unsigned shared)
{
    CUdeviceptr address;
    const CUmemGenericAllocationHandle sink = create(GRANULE);
    CU(cuMemAddressReserve(&address, (size_t)granules * GRANULE, 0, 0, 0));
    for (int i = 0; i < granules; i++)
        map(address + (size_t)i * GRANULE, shared >> i & 1 ? sink : create(GRANULE));
    return address;
}

static void fill(CUdeviceptr address, int granule, unsigned char value)
{
    CU(cuMemsetD8(address + (size_t)granule * GRANULE, value, GRANULE));
    CU(cuCtxSynchronize());
}

static unsigned char byte_at(CUdeviceptr address, size_t place)
{
    unsigned char value;
    CU(cuMemcpyDtoH(&value, address + place, 1));
    return value;
}

/* --- addresses that share memory: rank 1 keeps granule 1 of 4 only, rank 2 everything */

static CUdeviceptr make_filtered(const struct rank *rank)
{
    const CUdeviceptr buffer = reserve(4, rank->rank == 1 ? 0xDu : 0);
    for (int i = 0; rank->rank == 0 && i < 4; i++)
        fill(buffer, i, (unsigned char)(10 + i));
    return buffer;
}

static void run_filtered(struct rank *rank)
{
    const ncclComm_t comm = rank_start(rank);
    const CUstream stream = rank_stream();
    const CUdeviceptr buffer = make_filtered(rank);
    NCCL(ncclBcast((void *)buffer, 4 * GRANULE, ncclUint8, 0, comm, stream));
    sync_stream(stream);
    if (rank->rank == 1)
        CHECK_EQ(byte_at(buffer, GRANULE + 5), 11);
    for (size_t i = 0; rank->rank == 2 && i < 4; i++)
        CHECK_EQ(byte_at(buffer, i * GRANULE + 77), 10 + i);
    NCCL(ncclCommDestroy(comm));
}

MS_TEST(broadcast_into_shared_memory_forwards_what_came)
{
    ranks_run(3, run_filtered, NULL);
}

static void run_filtered_and_registered(struct rank *rank)
{
    const ncclComm_t comm = rank_start(rank);
    const CUstream stream = rank_stream();
    const CUdeviceptr buffer = make_filtered(rank);
    void *handle;
    NCCL(ncclCommRegister(comm, (void *)buffer, 4 * GRANULE, &handle));
    NCCL(ncclBcast((void *)buffer, 4 * GRANULE, ncclUint8, 0, comm, stream));
    sync_stream(stream);
    /* Rank 1 forwarded from its buffer, where the last granule lies over the first one. */
    if (rank->rank == 2) {
        CHECK_EQ(byte_at(buffer, 77), 13);
        CHECK_EQ(byte_at(buffer, GRANULE + 77), 11);
    }
    NCCL(ncclCommDeregister(comm, handle));
    NCCL(ncclCommDestroy(comm));
}

MS_TEST(broadcast_into_shared_registered_memory_breaks_the_next_rank)
{
    setenv("SIMNCCL_CHECK", "real", 1);
    ranks_run(3, run_filtered_and_registered, NULL);
}

/* --- the rule of one handle */

static void run_registered(struct rank *rank)
{
    const ncclComm_t comm = rank_start(rank);
    const CUstream stream = rank_stream();
    const CUdeviceptr buffer = reserve(2, 0);
    void *handle;
    CHECK_EQ(ncclCommRegister(comm, (void *)buffer, 2 * GRANULE, &handle), ncclInvalidUsage);
    CHECK_EQ(ncclCommRegister(comm, (void *)(buffer + GRANULE - 1), 2, &handle), ncclInvalidUsage);
    CHECK_EQ(ncclCommRegister(comm, (void *)16, 1, &handle), ncclInvalidArgument);
    NCCL(ncclCommRegister(comm, (void *)buffer, GRANULE, &handle));
    fill(buffer, 0, (unsigned char)(rank->rank + 1));
    NCCL(ncclBcast((void *)buffer, GRANULE, ncclUint8, 0, comm, stream));
    NCCL(ncclAllGather((void *)buffer, (void *)buffer, 1, ncclUint8, comm, stream));
    sync_stream(stream);
    CHECK_EQ(byte_at(buffer, GRANULE - 1), 1);
    NCCL(ncclCommDeregister(comm, handle));
    CHECK_EQ(ncclCommDeregister(comm, handle), ncclInvalidUsage);
    NCCL(ncclCommDestroy(comm));
}

MS_TEST(registration_takes_one_handle)
{
    ranks_run(3, run_registered, NULL);
}

static void run_one_registered(struct rank *rank)
{
    const ncclComm_t comm = rank_start(rank);
    const CUstream stream = rank_stream();
    const CUdeviceptr buffer = reserve(1, 0);
    void *handle;
    if (rank->rank == 0)
        NCCL(ncclCommRegister(comm, (void *)buffer, GRANULE, &handle));
    NCCL(ncclBcast((void *)buffer, 100, ncclUint8, 0, comm, stream));
    CHECK_EQ(async_error(comm), ncclInvalidUsage);
    sync_stream(stream);
    NCCL(ncclCommAbort(comm));
}

MS_TEST(all_ranks_register_or_none)
{
    ranks_run(2, run_one_registered, NULL);
}

static void run_remapped(struct rank *rank)
{
    const ncclComm_t comm = rank_start(rank);
    const CUstream stream = rank_stream();
    const CUdeviceptr buffer = reserve(1, 0);
    void *handle;
    NCCL(ncclCommRegister(comm, (void *)buffer, GRANULE, &handle));
    NCCL(ncclBcast((void *)buffer, 100, ncclUint8, 0, comm, stream));
    sync_stream(stream);
    if (rank->rank == 1) {
        CU(cuMemUnmap(buffer, GRANULE));
        map(buffer, create(GRANULE));
    }
    NCCL(ncclBcast((void *)buffer, 100, ncclUint8, 0, comm, stream));
    /* Rank 0 was through with it: only the next operation misses rank 1. */
    if (rank->rank == 0)
        NCCL(ncclAllReduce((void *)buffer, (void *)buffer, 1, ncclUint8, ncclSum, comm, stream));
    CHECK_EQ(async_error(comm), rank->rank == 1 ? ncclInvalidUsage : ncclRemoteError);
    sync_stream(stream);
    NCCL(ncclCommAbort(comm));
}

MS_TEST(registered_memory_may_not_be_mapped_anew)
{
    ranks_run(2, run_remapped, NULL);
}

/* --- windows */

static void run_windows(struct rank *rank)
{
    const ncclComm_t comm = rank_start(rank);
    const CUstream stream = rank_stream();
    void *memory;
    ncclWindow_t window;
    NCCL(ncclMemAlloc(&memory, 1000000));
    NCCL(ncclCommWindowRegister(comm, memory, 1000000, &window, NCCL_WIN_COLL_SYMMETRIC));
    CHECK(window != NULL);
    CU(cuMemsetD8((CUdeviceptr)memory, (unsigned char)(rank->rank + 3), 1000000));
    CU(cuCtxSynchronize());
    NCCL(ncclBcast(memory, 1000000, ncclUint8, 1, comm, stream));
    sync_stream(stream);
    CHECK_EQ(byte_at((CUdeviceptr)memory, 999999), 4);
    NCCL(ncclCommWindowDeregister(comm, window));
    CHECK_EQ(ncclCommWindowRegister(comm, (char *)memory + 16, 100, &window, NCCL_WIN_DEFAULT),
             ncclInvalidArgument);
    CHECK_EQ(ncclCommWindowRegister(comm, memory, 100 + (size_t)rank->rank, &window,
                                    NCCL_WIN_DEFAULT),
             ncclInvalidUsage);
    CHECK(window == NULL);
    NCCL(ncclCommDestroy(comm));
    NCCL(ncclMemFree(memory));
}

MS_TEST(windows_are_registered_together)
{
    ranks_run(3, run_windows, NULL);
}

/* All ranks find the bytes that were set and copied before the window was made, and those that are
 * set afterwards; bytes that the program has written to another part stay. */
static void use_window(const struct rank *rank, CUdeviceptr buffer, ncclComm_t comm)
{
    const CUstream stream = rank_stream();
    const unsigned char mine = (unsigned char)(rank->rank + 1);
    const size_t half = GRANULE;
    ncclWindow_t window;
    unsigned char *bytes = malloc(half);
    for (size_t i = 0; i < half; i++)
        bytes[i] = (unsigned char)(i * 31 + mine);
    CU(cuMemsetD8(buffer, mine, half));
    CU(cuMemcpyHtoD(buffer + half, bytes, half));
    NCCL(ncclCommWindowRegister(comm, (void *)buffer, 2 * half, &window, NCCL_WIN_COLL_SYMMETRIC));
    NCCL(ncclAllReduce((void *)buffer, (void *)buffer, half, ncclUint8, ncclSum, comm, stream));
    sync_stream(stream);
    CHECK_EQ(byte_at(buffer, 0), 3);
    CHECK_EQ(byte_at(buffer, half - 1), 3);
    CHECK_EQ(byte_at(buffer, half + 12345), bytes[12345]);
    fill(buffer, 0, (unsigned char)(10 * mine));
    NCCL(ncclAllReduce((void *)buffer, (void *)buffer, half, ncclUint8, ncclSum, comm, stream));
    NCCL(ncclBroadcast((void *)(buffer + half), (void *)(buffer + half), half, ncclUint8, 1, comm,
                       stream));
    sync_stream(stream);
    CHECK_EQ(byte_at(buffer, 777), 30);
    CHECK_EQ(byte_at(buffer, half + 12345), (unsigned char)(12345 * 31 + 2));
    NCCL(ncclCommWindowDeregister(comm, window));
    free(bytes);
}

static void run_windows_of_the_program(struct rank *rank)
{
    const ncclComm_t comm = rank_start(rank);
    const CUmemAccessDesc access = {properties().location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr allocated, mapped;
    CU(cuMemAlloc(&allocated, 2 * GRANULE));
    use_window(rank, allocated, comm);
    CU(cuMemAddressReserve(&mapped, 2 * GRANULE, 0, 0, 0));
    CU(cuMemMap(mapped, 2 * GRANULE, 0, create(2 * GRANULE), 0));
    CU(cuMemSetAccess(mapped, 2 * GRANULE, &access, 1));
    use_window(rank, mapped, comm);
    NCCL(ncclCommDestroy(comm));
    CU(cuMemFree(allocated));
}

MS_TEST(a_window_over_the_programs_memory_has_what_was_written_before)
{
    ranks_run(2, run_windows_of_the_program, NULL);
}
