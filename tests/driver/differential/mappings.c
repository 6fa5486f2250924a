/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the program maps itself, as allocators do it: torch_memory_saver, vLLM, RMM, kvcached
 * and what NCCL asks of it. Runs with the shim and without it.
 */
#include "tests/driver/differential/mappings.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- one allocation, one reservation: torch_memory_saver and vLLM's sleep */

struct saved {
    CUdeviceptr address;
    size_t bytes;
    CUmemGenericAllocationHandle handle;
    void *backup; /* NULL: its content may go */
};

static struct saved save_allocate(size_t bytes, bool has_backup)
{
    struct saved saved = {.address = reserve(bytes), .bytes = bytes};
    saved.handle = map_new(saved.address, bytes);
    if (has_backup)
        OK(cuMemAllocHost(&saved.backup, bytes));
    return saved;
}

static void save_pause(const struct saved *saved)
{
    if (saved->backup != NULL)
        OK(cuMemcpyDtoH(saved->backup, saved->address, saved->bytes));
    unmap(saved->address, saved->bytes, saved->handle);
}

static void save_resume(struct saved *saved)
{
    saved->handle = map_new(saved->address, saved->bytes);
    check_deferred(saved->address);
    if (saved->backup != NULL)
        OK(cuMemcpyHtoD(saved->address, saved->backup, saved->bytes));
}

static void save_free(const struct saved *saved)
{
    OK(cuCtxSynchronize());
    unmap(saved->address, saved->bytes, saved->handle);
    OK(cuMemAddressFree(saved->address, saved->bytes));
}

MS_TEST(paused_memory_is_free_and_comes_back_at_its_address)
{
    start();
    const size_t before = free_bytes();
    struct saved kept = save_allocate(8 * MIB, true), lost = save_allocate(6 * MIB, false);
    check_deferred(kept.address);
    check_deferred(lost.address + 4 * MIB);
    put_words(kept.address, kept.bytes, 5);
    OK(cuMemsetD32(lost.address, 9, lost.bytes / 4));
    check_same(lost.address, lost.bytes, 9);
    CHECK_EQ(before - free_bytes(), 14 * MIB);
    for (int i = 0; i < 3; i++) {
        OK(cuCtxSynchronize());
        save_pause(&kept);
        save_pause(&lost);
        CHECK_EQ(free_bytes(), before);
        CHECK(!is_in_memory(kept.address) && !is_in_memory(lost.address));
        save_resume(&lost);
        save_resume(&kept);
        CHECK_EQ(before - free_bytes(), 14 * MIB);
        check_words(kept.address, kept.bytes, 5);
        put_words(lost.address, lost.bytes, 77);
        check_words(lost.address, lost.bytes, 77);
    }
    save_free(&kept);
    save_free(&lost);
    CHECK_EQ(free_bytes(), before);
}

/* Memory that comes later must not show bytes that were written before. */
MS_TEST(a_fill_does_not_outlive_its_mapping)
{
    start();
    struct saved saved = save_allocate(4 * MIB, false);
    OK(cuMemsetD32(saved.address, 0x11111111, MIB));
    OK(cuCtxSynchronize());
    save_pause(&saved);
    save_resume(&saved);
    check_deferred(saved.address);
    OK(cuMemsetD32(saved.address, 0x22222222, MIB / 2));
    check_deferred(saved.address);
    check_same(saved.address, 2 * MIB, 0x22222222);
    save_free(&saved);
}

/* vLLM captures its graphs before it sleeps, and launches them afterwards. */
MS_TEST(a_graph_finds_what_came_back_at_its_addresses)
{
    start();
    CUstream stream;
    CUgraph graph;
    CUgraphExec executable;
    const CUfunction add = kernel("add_in_place32");
    struct saved weights = save_allocate(4 * MIB, true), cache = save_allocate(8 * MIB, false);
    put_words(weights.address, weights.bytes, 100);
    OK(cuMemsetD32(cache.address, 7, cache.bytes / 4));
    check_deferred(cache.address + 6 * MIB);
    OK(cuCtxSynchronize());
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(try_add(add, weights.address, weights.bytes, 1, stream));
    OK(try_add(add, cache.address, cache.bytes, 1, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiate(&executable, graph, 0));
    OK(cuGraphLaunch(executable, stream));
    OK(cuGraphLaunch(executable, stream));
    OK(cuStreamSynchronize(stream));
    check_words(weights.address, weights.bytes, 102);
    check_same(cache.address, cache.bytes, 9);
    save_pause(&weights);
    save_pause(&cache);
    save_resume(&weights);
    save_resume(&cache);
    OK(cuMemsetD32(cache.address, 70, cache.bytes / 4));
    OK(cuCtxSynchronize());
    OK(cuGraphLaunch(executable, stream));
    OK(cuStreamSynchronize(stream));
    check_words(weights.address, weights.bytes, 103);
    check_same(cache.address, cache.bytes, 71);
    OK(cuGraphExecDestroy(executable));
    OK(cuGraphDestroy(graph));
    save_free(&weights);
    save_free(&cache);
}

/* Mapping does not end a capture. */
MS_TEST(mapping_during_a_capture_leaves_it_alone_as_ever)
{
    start();
    CUstream stream;
    CUgraph graph = NULL;
    struct saved saved = save_allocate(4 * MIB, false);
    OK(cuMemsetD32(saved.address, 3, MIB));
    OK(cuCtxSynchronize());
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuMemUnmap(saved.address, saved.bytes));
    const CUmemGenericAllocationHandle handle = map_new(saved.address, saved.bytes);
    OK(cuMemsetD32(saved.address, 4, MIB));
    check_same(saved.address, saved.bytes, 4);
    unmap(saved.address, saved.bytes, handle);
    map(saved.address, saved.bytes, saved.handle);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphDestroy(graph));
    check_same(saved.address, saved.bytes, 3);
    save_free(&saved);
}

MS_TEST(all_goes_to_sleep_and_wakes_up_in_parts)
{
    enum { COUNT = 12 };
    start();
    const size_t before = free_bytes();
    struct saved all[COUNT];
    size_t bytes = 0;
    for (uint32_t i = 0; i < COUNT; i++) {
        all[i] = save_allocate((2 + 2 * (i % 4)) * MIB, i % 2 == 0); /* weights, caches */
        bytes += all[i].bytes;
        check_deferred(all[i].address);
        if (i % 2 == 0)
            put_words(all[i].address, all[i].bytes, i * 1000003);
        else
            OK(cuMemsetD32(all[i].address, i, all[i].bytes / 4));
    }
    CHECK_EQ(before - free_bytes(), bytes);
    OK(cuCtxSynchronize());
    for (int i = 0; i < COUNT; i++)
        save_pause(&all[i]);
    CHECK_EQ(free_bytes(), before);
    for (int tag = 0; tag < 2; tag++)
        for (uint32_t i = (uint32_t)tag; i < COUNT; i += 2) {
            save_resume(&all[i]);
            if (tag == 1)
                OK(cuMemsetD32(all[i].address, i + 1, all[i].bytes / 4));
        }
    for (uint32_t i = 0; i < COUNT; i++) {
        if (i % 2 == 0)
            check_words(all[i].address, all[i].bytes, i * 1000003);
        else
            check_same(all[i].address, all[i].bytes, i + 1);
        save_free(&all[i]);
    }
    CHECK_EQ(free_bytes(), before);
}

/* --- one reservation that grows: RMM's arena and others */

enum { PIECE = 8 << 20 };

MS_TEST(an_arena_grows_at_its_end_and_shrinks_there)
{
    start();
    CUmemGenericAllocationHandle handles[8];
    const size_t before = free_bytes();
    const CUdeviceptr arena = reserve((size_t)64 * PIECE);
    CUdeviceptr base;
    size_t bytes;
    for (size_t i = 0; i < 8; i++)
        handles[i] = map_new(arena + i * PIECE, PIECE);
    CHECK_EQ(before - free_bytes(), 8 * PIECE);
    for (size_t i = 0; i < 8; i++)
        check_deferred(arena + i * PIECE + PIECE / 2);
    /* Blocks that nobody tells of, over borders of mappings. */
    const size_t block = 3 * PIECE / 2;
    for (uint32_t i = 0; i < 5; i++)
        put_words(arena + i * block, block, i * 50000017);
    for (uint32_t i = 0; i < 5; i++)
        check_words(arena + i * block, block, i * 50000017);
    check_deferred(arena + (size_t)7 * PIECE + PIECE / 2);
    /* From one of them into another. */
    OK(cuMemcpyDtoD(arena + 5 * block - 12, arena + block - 400, 800));
    CHECK_EQ(read_word(arena + 5 * block - 12 + 396), word_of(0, block / 4 - 1));
    CHECK_EQ(read_word(arena + 5 * block - 12 + 400), word_of(50000017, 0));
    OK(cuMemGetAddressRange(&base, &bytes, arena + 2 * PIECE + 5));
    CHECK_EQ(base, arena + 2 * PIECE);
    CHECK_EQ(bytes, PIECE);
    OK(cuCtxSynchronize());
    for (size_t i = 8; i > 3; i--)
        unmap(arena + (i - 1) * PIECE, PIECE, handles[i - 1]);
    CHECK_EQ(before - free_bytes(), 3 * PIECE);
    check_words(arena, block, 0);
    for (size_t i = 3; i < 8; i++) {
        handles[i] = map_new(arena + i * PIECE, PIECE);
        check_deferred(arena + i * PIECE);
    }
    check_words(arena + block, block, 50000017);
    OK(cuMemsetD32(arena + 2 * PIECE + 100, 6, 2 * PIECE / 4));
    check_same(arena + 2 * PIECE + 100, 2 * PIECE, 6);
    OK(cuCtxSynchronize());
    OK(cuMemUnmap(arena, 8 * PIECE));
    for (int i = 0; i < 8; i++)
        OK(cuMemRelease(handles[i]));
    OK(cuMemAddressFree(arena, (size_t)64 * PIECE));
    CHECK_EQ(free_bytes(), before);
}

/* Calls that reach past the end of the mapping fail as ever: a fill at once, a kernel for good; all
 * else is intact before. */
MS_TEST(a_hole_in_an_arena_is_a_hole)
{
    start();
    const CUfunction add = kernel("add_in_place32");
    const CUdeviceptr arena = reserve((size_t)8 * PIECE);
    CUdeviceptr block;
    OK(cuMemAlloc(&block, 4 * MIB));
    OK(cuMemsetD8(block, 1, 4 * MIB));
    map_new(arena, PIECE);
    map_new(arena + 2 * PIECE, PIECE);
    put_words(arena, PIECE, 1);
    put_words(arena + 2 * PIECE, PIECE, 2);
    OK(try_add(add, arena, PIECE, 10, NULL));
    OK(try_add(add, arena + 2 * PIECE, PIECE, 10, NULL));
    check_words(arena, PIECE, 11);
    check_words(arena + 2 * PIECE, PIECE, 12);
    FAILS(cuMemsetD8(arena + PIECE - 4, 1, 8), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemsetD8Async(arena + PIECE - 4, 1, 8, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuCtxSynchronize());
    check_words(arena, PIECE, 11);
    CHECK(try_add(add, arena, 2 * PIECE, 10, NULL) != CUDA_SUCCESS ||
          cuCtxSynchronize() != CUDA_SUCCESS);
    FAILS(cuMemsetD8(block, 2, 4 * MIB), CUDA_ERROR_ILLEGAL_ADDRESS);
    FAILS(cuMemAlloc(&block, 4 * MIB), CUDA_ERROR_ILLEGAL_ADDRESS);
    FAILS(cuMemFree(block), CUDA_ERROR_ILLEGAL_ADDRESS);
}

/* --- pages that come and go: kvcached */

MS_TEST(a_page_is_mapped_at_many_addresses)
{
    enum { PAGES = 16, PAGE = 2 << 20 };
    start();
    const size_t before = free_bytes();
    const CUdeviceptr cache = reserve((size_t)PAGES * PAGE);
    const CUmemGenericAllocationHandle zero = create(PAGE);
    for (size_t i = 0; i < PAGES; i++)
        map(cache + i * PAGE, PAGE, zero);
    CHECK_EQ(before - free_bytes(), PAGE);
    OK(cuMemsetD32(cache + (size_t)3 * PAGE, 0, PAGE / 4));
    for (size_t i = 0; i < PAGES; i++)
        CHECK_EQ(identity(cache + i * PAGE), identity(cache));
    check_same(cache, (size_t)PAGES * PAGE, 0);
    OK(cuMemsetD32(cache + (size_t)9 * PAGE + 40, 0xabc, 1));
    for (size_t i = 0; i < PAGES; i++)
        CHECK_EQ(read_word(cache + i * PAGE + 40), 0xabc);
    for (uint32_t turn = 0; turn < 3; turn++) {
        CUmemGenericAllocationHandle pages[PAGES] = {0};
        OK(cuCtxSynchronize());
        for (size_t i = turn; i < PAGES; i += 3) {
            OK(cuMemUnmap(cache + i * PAGE, PAGE));
            pages[i] = map_new(cache + i * PAGE, PAGE);
            check_deferred(cache + i * PAGE);
            put_words(cache + i * PAGE, PAGE, (uint32_t)(turn * 1000 + i));
        }
        for (size_t i = 0; i < PAGES; i++) {
            if (i % 3 == turn)
                check_words(cache + i * PAGE, PAGE, (uint32_t)(turn * 1000 + i));
            else
                CHECK_EQ(read_word(cache + i * PAGE + 40), 0xabc);
        }
        OK(cuCtxSynchronize());
        for (size_t i = turn; i < PAGES; i += 3) {
            unmap(cache + i * PAGE, PAGE, pages[i]);
            map(cache + i * PAGE, PAGE, zero);
        }
        CHECK_EQ(before - free_bytes(), PAGE);
    }
    for (size_t i = 0; i < PAGES; i++)
        CHECK_EQ(read_word(cache + i * PAGE + 40), 0xabc);
    OK(cuMemUnmap(cache, (size_t)PAGES * PAGE));
    OK(cuMemRelease(zero));
    OK(cuMemAddressFree(cache, (size_t)PAGES * PAGE));
    CHECK_EQ(free_bytes(), before);
}

/* The content is written while the page has one address. */
MS_TEST(a_second_address_sees_what_was_written_at_the_first)
{
    start();
    const CUdeviceptr first = reserve(8 * MIB), second = reserve(8 * MIB);
    const CUmemGenericAllocationHandle handle = create(8 * MIB);
    map(first, 8 * MIB, handle);
    put_words(first, 4 * MIB, 1234);
    OK(cuMemsetD32(first + 4 * MIB, 55, MIB));
    check_deferred(first + 6 * MIB);
    map(second, 8 * MIB, handle);
    OK(cuMemRelease(handle));
    CHECK_EQ(identity(first + 6 * MIB), identity(second));
    check_words(second, 4 * MIB, 1234);
    check_same(second + 4 * MIB, 4 * MIB, 55);
    put_words(second, 8 * MIB, 9);
    check_words(first, 8 * MIB, 9);
    OK(cuCtxSynchronize());
    OK(cuMemUnmap(first, 8 * MIB));
    check_words(second, 8 * MIB, 9);
    OK(cuMemUnmap(second, 8 * MIB));
}

/* A handle that the program keeps keeps its content. */
MS_TEST(a_handle_moves_with_what_was_written)
{
    start();
    const CUdeviceptr first = reserve(8 * MIB), second = reserve(8 * MIB);
    const CUmemGenericAllocationHandle handle = create(8 * MIB);
    map(first, 8 * MIB, handle);
    OK(cuMemsetD32(first, 31, 2 * MIB));
    check_deferred(first);
    OK(cuCtxSynchronize());
    OK(cuMemUnmap(first, 8 * MIB));
    map(second, 8 * MIB, handle);
    check_same(second, 8 * MIB, 31);
    OK(cuCtxSynchronize());
    unmap(second, 8 * MIB, handle);
}

MS_TEST(a_range_that_is_unmapped_may_have_holes)
{
    start();
    const size_t before = free_bytes();
    const CUdeviceptr address = reserve(32 * MIB);
    const CUmemGenericAllocationHandle first = map_new(address + 2 * MIB, 4 * MIB),
                                       second = map_new(address + 8 * MIB, 4 * MIB),
                                       last = map_new(address + 16 * MIB, 4 * MIB);
    put_words(address + 2 * MIB, 4 * MIB, 11);
    put_words(address + 16 * MIB, 4 * MIB, 13);
    OK(cuCtxSynchronize());
    FAILS(set_access(address, 32 * MIB, 0, READWRITE), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemUnmap(address, 4 * MIB), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemUnmap(address + 4 * MIB, 4 * MIB), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemUnmap(address, 64 * MIB), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemUnmap(address, 2 * MIB));
    OK(cuMemUnmap(address, 16 * MIB));
    check_words(address + 16 * MIB, 4 * MIB, 13);
    OK(cuMemUnmap(address, 16 * MIB));
    OK(cuMemUnmap(address + 14 * MIB, 18 * MIB));
    OK(cuMemUnmap(address, 32 * MIB));
    /* The unmapped bytes are in their handle. */
    map(address + 20 * MIB, 4 * MIB, first);
    check_words(address + 20 * MIB, 4 * MIB, 11);
    OK(cuCtxSynchronize());
    unmap(address, 32 * MIB, first);
    OK(cuMemRelease(second));
    OK(cuMemRelease(last));
    OK(cuMemAddressFree(address, 32 * MIB));
    CHECK_EQ(free_bytes(), before);
}

MS_TEST(handles_are_mapped_whole)
{
    start();
    const CUdeviceptr address = reserve(16 * MIB);
    const CUmemGenericAllocationHandle handle = create(8 * MIB), mapped = map_new(address, 4 * MIB);
    FAILS(cuMemMap(address + 8 * MIB, 4 * MIB, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    FAILS(cuMemMap(address + 8 * MIB, 4 * MIB, 4 * MIB, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    FAILS(cuMemMap(address, 4 * MIB, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    FAILS(cuMemMap(address + 4 * MIB, 16 * MIB, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    FAILS(cuMemMap(address, 8 * MIB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    map(address + 8 * MIB, 8 * MIB, handle);
    put_words(address + 8 * MIB, 8 * MIB, 5);
    check_words(address + 8 * MIB, 8 * MIB, 5);
    OK(cuCtxSynchronize());
    unmap(address, 4 * MIB, mapped);
    unmap(address + 8 * MIB, 8 * MIB, handle);
}

/* --- memory for others */

/* One of two processes of one program: the first one has the memory. */
struct side {
    int channel;
    bool is_owner;
};

static struct side two_sides(void)
{
    int channel[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, channel), 0);
    const pid_t child = fork();
    CHECK(child >= 0);
    close(channel[child != 0]); /* so that either one notices when the other has failed */
    return (struct side){channel[child == 0], child != 0};
}

static void tell(struct side side)
{
    OK(cuCtxSynchronize());
    CHECK_EQ(write(side.channel, "x", 1), 1);
}

static void listen_to(struct side side)
{
    char byte;
    CHECK_EQ(read(side.channel, &byte, 1), 1);
}

/* A descriptor; -1: it is received. */
static int pass_file(struct side side, int file)
{
    char byte = 'f';
    struct iovec data = {&byte, 1};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control)};
    memcpy(CMSG_DATA(&control.header), &file, sizeof(file));
    if (file >= 0) {
        CHECK_EQ(sendmsg(side.channel, &message, 0), 1);
        return file;
    }
    CHECK_EQ(recvmsg(side.channel, &message, 0), 1);
    memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(file));
    return file;
}

static CUmemGenericAllocationHandle import_from(struct side side)
{
    CUmemGenericAllocationHandle handle;
    const int file = pass_file(side, -1);
    OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)file,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(file);
    return handle;
}

static int export_handle(CUmemGenericAllocationHandle handle)
{
    int file;
    OK(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    return file;
}

/* The first process works on with memory into which the second one writes. */
static void own_shared(struct side side)
{
    int status;
    const CUdeviceptr address = reserve(8 * MIB), other = reserve(8 * MIB);
    const CUmemGenericAllocationHandle handle = create_shareable(8 * MIB);
    map(address, 8 * MIB, handle);
    map_new(other, 8 * MIB);
    put_words(address, 4 * MIB, 7);
    OK(cuMemsetD32(address + 4 * MIB, 8, MIB));
    check_deferred(address + 6 * MIB);
    OK(cuCtxSynchronize()); /* the other process waits for no stream of this one */
    close(pass_file(side, export_handle(handle)));
    CHECK(is_in_memory(address) && is_in_memory(address + 6 * MIB));
    for (uint32_t turn = 0; turn < 5; turn++) {
        listen_to(side);
        check_words(address + turn * MIB, MIB, 100 * turn);
        check_same(address + 7 * MIB, MIB, turn == 0 ? 8 : 20 + turn);
        OK(cuMemcpyDtoD(other, address + turn * MIB, MIB));
        OK(cuMemsetD32(address + turn * MIB, turn, MIB / 4));
        tell(side);
        listen_to(side);
        check_words(other, MIB, 100 * turn); /* as it was when it was copied */
        OK(cuMemsetD32(address + 7 * MIB, 21 + turn, MIB / 4));
        tell(side);
    }
    wait(&status);
    CHECK_EQ(status, 0);
    unmap(address, 8 * MIB, handle);
    OK(cuMemAddressFree(address, 8 * MIB));
}

static void use_shared(struct side side)
{
    const CUdeviceptr address = reserve(8 * MIB);
    const CUmemGenericAllocationHandle handle = import_from(side);
    map(address, 8 * MIB, handle);
    check_words(address, 4 * MIB, 7);
    check_same(address + 4 * MIB, 4 * MIB, 8);
    for (uint32_t turn = 0; turn < 5; turn++) {
        put_words(address + turn * MIB, MIB, 100 * turn);
        tell(side);
        listen_to(side);
        check_same(address + turn * MIB, MIB, turn);
        put_words(address + turn * MIB, MIB, 5);
        tell(side);
        listen_to(side);
        check_same(address + 7 * MIB, MIB, 21 + turn);
    }
    exit(0);
}

MS_TEST(another_process_writes_while_this_one_goes_on)
{
    const struct side side = two_sides();
    start();
    if (side.is_owner)
        own_shared(side);
    else
        use_shared(side);
}

MS_TEST(mapped_memory_has_no_legacy_handle)
{
    start();
    CUipcMemHandle legacy;
    unsigned capable = 7;
    const CUdeviceptr address = reserve(4 * MIB);
    map_new(address, 4 * MIB);
    OK(cuMemsetD32(address, 6, MIB));
    FAILS(cuIpcGetMemHandle(&legacy, address), CUDA_ERROR_INVALID_VALUE);
    OK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address));
    CHECK_EQ(capable, 0);
    check_deferred(address);
    check_same(address, 4 * MIB, 6);
}

/* NCCL registers a buffer by exporting what is mapped under it, piece by piece. */
MS_TEST(each_mapping_of_a_buffer_is_exported)
{
    start();
    const CUdeviceptr buffer = reserve(12 * MIB), there = reserve(12 * MIB);
    for (size_t at = 0; at < 12 * MIB; at += 4 * MIB) {
        const CUmemGenericAllocationHandle handle = create_shareable(4 * MIB);
        map(buffer + at, 4 * MIB, handle);
        OK(cuMemRelease(handle));
    }
    put_words(buffer, 12 * MIB, 40);
    check_words(buffer + 2 * MIB, 4 * MIB, 40 + 2 * MIB / 4);
    check_deferred(buffer + 8 * MIB);
    for (CUdeviceptr at = buffer + 100; at < buffer + 12 * MIB;) {
        CUdeviceptr base;
        size_t bytes;
        CUmemGenericAllocationHandle handle, imported;
        CUmemAllocationProp prop;
        OK(cuMemGetAddressRange(&base, &bytes, at));
        CHECK_EQ((base - buffer) % (4 * MIB), 0);
        CHECK_EQ(bytes, 4 * MIB);
        OK(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)at));
        OK(cuMemGetAllocationPropertiesFromHandle(&prop, handle));
        CHECK_EQ(prop.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        CHECK_EQ(prop.allocFlags.gpuDirectRDMACapable, 1);
        const int file = export_handle(handle);
        OK(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)file,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
        close(file);
        OK(cuMemRelease(handle));
        map(there + (base - buffer), bytes, imported);
        OK(cuMemRelease(imported));
        at = base + bytes;
    }
    check_words(there, 12 * MIB, 40);
    put_words(there, 12 * MIB, 50);
    check_words(buffer, 12 * MIB, 50);
    OK(cuMemcpyDtoD(buffer, buffer + 4 * MIB, 4 * MIB));
    check_words(there, 4 * MIB, 50 + (uint32_t)MIB);
    OK(cuCtxSynchronize());
    OK(cuMemUnmap(buffer, 12 * MIB));
    OK(cuMemUnmap(there, 12 * MIB));
}

MS_TEST(a_handle_that_was_not_created_for_it_is_not_exported)
{
    start();
    int file;
    const CUdeviceptr address = reserve(4 * MIB);
    const CUmemGenericAllocationHandle handle = map_new(address, 4 * MIB);
    OK(cuMemsetD32(address, 6, MIB));
    FAILS(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
          CUDA_ERROR_INVALID_VALUE);
    check_deferred(address);
    check_same(address, 4 * MIB, 6);
}

MS_TEST(a_network_card_reads_and_writes_a_range)
{
    start();
    int file;
    uint32_t seen;
    const CUdeviceptr address = reserve(8 * MIB);
    for (size_t at = 0; at < 8 * MIB; at += 4 * MIB)
        map(address + at, 4 * MIB, create_shareable(4 * MIB));
    OK(cuMemsetD32(address, 31, 2 * MIB));
    check_deferred(address);
    OK(cuCtxSynchronize());
    OK(cuMemGetHandleForAddressRange(&file, address + 5 * MIB, MIB,
                                     CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    const off_t place = lseek(file, 0, SEEK_CUR);
    CHECK_EQ(pread(file, &seen, sizeof(seen), place), sizeof(seen));
    CHECK_EQ(seen, 31);
    check_deferred(address + MIB);
    seen = 32;
    CHECK_EQ(pwrite(file, &seen, sizeof(seen), place), sizeof(seen));
    CHECK_EQ(read_word(address + 5 * MIB), 32);
    OK(cuMemsetD32(address + 5 * MIB, 33, 1));
    OK(cuCtxSynchronize());
    CHECK_EQ(pread(file, &seen, sizeof(seen), place), sizeof(seen));
    CHECK_EQ(seen, 33);
    close(file);
    /* The simulated driver refuses; a real one may give one handle for both. */
    FAILS(cuMemGetHandleForAddressRange(&file, address + 3 * MIB, 2 * MIB,
                                        CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
          CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(read_word(address + 5 * MIB), 33);
    check_same(address, 5 * MIB, 31);
}

MS_TEST(memory_behind_a_switch)
{
    setenv("SIMCUDA_MULTICAST", "1", 1);
    start();
    const CUmulticastObjectProp prop = {.numDevices = 1, .size = 8 * MIB};
    CUmemGenericAllocationHandle object;
    const CUdeviceptr address = reserve(8 * MIB);
    const CUmemGenericAllocationHandle first = map_new(address, 4 * MIB),
                                       second = map_new(address + 4 * MIB, 4 * MIB);
    OK(cuMemsetD32(address, 1, 2 * MIB));
    check_deferred(address);
    OK(cuCtxSynchronize());
    OK(cuMulticastCreate(&object, &prop));
    OK(cuMulticastAddDevice(object, 0));
    OK(cuMulticastBindMem(object, 0, first, 0, 4 * MIB, 0));
    CHECK(is_in_memory(address));
    check_deferred(address + 4 * MIB);
    OK(cuMulticastBindAddr(object, 4 * MIB, address + 4 * MIB, 4 * MIB, 0));
    for (uint32_t i = 0; i < 3; i++) {
        for (size_t at = MIB; at < 8 * MIB; at += 4 * MIB) {
            const uint32_t word = 90 + i;
            OK(simcuda_multicast_store(object, at, &word, sizeof(word)));
            CHECK_EQ(read_word(address + at), word);
            CHECK_EQ(read_word(address + at + 4), 1);
        }
    }
    OK(cuMulticastUnbind(object, 0, 0, 4 * MIB));
    OK(cuMulticastUnbind(object, 0, 4 * MIB, 4 * MIB));
    OK(cuMemRelease(object));
    unmap(address, 4 * MIB, first);
    unmap(address + 4 * MIB, 4 * MIB, second);
}

/* --- exhaustion and faults */

MS_TEST(memory_runs_out_in_a_batch_of_maps)
{
    enum { COUNT = 8 };
    setenv("SIMCUDA_MEMORY_MIB", "64", 1);
    start();
    const CUmemAllocationProp prop = device_prop(0);
    const size_t before = free_bytes();
    const CUdeviceptr address = reserve(COUNT * 16 * MIB), second = reserve(COUNT * 16 * MIB);
    CUmemGenericAllocationHandle handles[COUNT];
    size_t count = 0, twice = 0;
    CUresult result = CUDA_SUCCESS;
    while (count < COUNT && result == CUDA_SUCCESS) {
        result = cuMemCreate(&handles[count], 16 * MIB, &prop, 0);
        if (result == CUDA_SUCCESS) {
            map(address + count * 16 * MIB, 16 * MIB, handles[count]);
            put_words(address + count * 16 * MIB, 512 << 10, (uint32_t)count);
            count++;
        }
    }
    /* The shim promises more than there is. */
    CHECK_EQ(result, device_has_shim() ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(count, device_has_shim() ? COUNT : 4);
    /* A second address of each, which needs all of its memory. */
    for (result = CUDA_SUCCESS; twice < count && result == CUDA_SUCCESS;) {
        result = cuMemMap(second + twice * 16 * MIB, 16 * MIB, 0, handles[twice], 0);
        if (result == CUDA_SUCCESS) {
            OK(set_access(second + twice * 16 * MIB, 16 * MIB, 0, READWRITE));
            twice++;
        }
    }
    CHECK_EQ(result, device_has_shim() ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS);
    CHECK(device_has_shim() ? twice >= 2 && twice <= 4 : twice == 4);
    for (size_t i = 0; i < twice; i++)
        check_words(second + i * 16 * MIB, 512 << 10, (uint32_t)i);
    CHECK(!is_in_memory(second + twice * 16 * MIB));
    OK(cuCtxSynchronize()); /* not sticky */
    /* It is undone, and what was refused then works. */
    for (size_t i = 0; i < twice; i++) {
        OK(cuMemUnmap(second + i * 16 * MIB, 16 * MIB));
        check_words(address + i * 16 * MIB, 512 << 10, (uint32_t)i);
        unmap(address + i * 16 * MIB, 16 * MIB, handles[i]);
    }
    for (size_t i = twice; i < count; i++) {
        check_words(address + i * 16 * MIB, 512 << 10, (uint32_t)i);
        OK(cuMemMap(second + i * 16 * MIB, 16 * MIB, 0, handles[i], 0));
        OK(set_access(second + i * 16 * MIB, 16 * MIB, 0, READWRITE));
        check_words(second + i * 16 * MIB, 512 << 10, (uint32_t)i);
        OK(cuMemUnmap(second + i * 16 * MIB, 16 * MIB));
        unmap(address + i * 16 * MIB, 16 * MIB, handles[i]);
    }
    OK(cuMemAddressFree(address, COUNT * 16 * MIB));
    OK(cuMemAddressFree(second, COUNT * 16 * MIB));
    CHECK_EQ(free_bytes(), before);
}

/* Makes a handle real while a call of the driver fails. Ends with 0 if nothing failed, and with 3
 * if the program was told, and all is as it was. */
static void make_real_with_fault(bool in_parts)
{
    start();
    int file = -1;
    CUdeviceptr other;
    const size_t before = free_bytes();
    const CUdeviceptr address = reserve(8 * MIB);
    const CUmemGenericAllocationHandle handle = create_shareable(8 * MIB);
    CUresult results[3] = {CUDA_SUCCESS, CUDA_SUCCESS, CUDA_SUCCESS};
    OK(cuMemMap(address, 8 * MIB, 0, handle, 0));
    OK(set_access(address, 8 * MIB, 0, READWRITE));
    OK(cuMemsetD32(address, 17, 2 * MIB));
    if (in_parts) {
        /* Two pieces of memory, with a gap between them. */
        uint32_t word;
        results[0] = cuMemcpyDtoH(&word, address, 4);
        results[1] = cuMemcpyDtoH(&word, address + 6 * MIB, 4);
    }
    results[2] =
        cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    const bool has_failed =
        results[0] != CUDA_SUCCESS || results[1] != CUDA_SUCCESS || results[2] != CUDA_SUCCESS;
    if (results[2] != CUDA_SUCCESS)
        file = export_handle(handle);
    check_same(address, 8 * MIB, 17);
    OK(cuMemAddressReserve(&other, 8 * MIB, 0, 0, 0));
    OK(cuMemMap(other, 8 * MIB, 0, handle, 0));
    OK(set_access(other, 8 * MIB, 0, READWRITE));
    check_same(other, 8 * MIB, 17);
    OK(cuMemsetD32(other, 18, 2 * MIB));
    check_same(address, 8 * MIB, 18);
    close(file);
    OK(cuCtxSynchronize());
    OK(cuMemUnmap(other, 8 * MIB));
    unmap(address, 8 * MIB, handle);
    OK(cuMemAddressFree(address, 8 * MIB));
    OK(cuMemAddressFree(other, 8 * MIB));
    CHECK_EQ(free_bytes(), before);
    exit(has_failed ? 3 : 0);
}

/* How many calls of that function the program was told of, of the first ones. */
static int count_faults(const char *function, int result, bool in_parts, int most)
{
    int count = 0;
    for (int nth = 1; nth <= most; nth++) {
        int status;
        char setting[100];
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            snprintf(setting, sizeof(setting), "%s:%d=%d", function, nth, result);
            setenv("SIMCUDA_FAULTS", setting, 1);
            setenv("METASHARD_SELFCHECK", "off", 1); /* its calls would count */
            make_real_with_fault(in_parts);
        }
        CHECK_EQ(waitpid(child, &status, 0), child);
        if (!WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 3))
            ms_test_fail(__FILE__, __LINE__, "call %d of %s that fails with %d: status %d", nth,
                         function, result, status);
        count += WEXITSTATUS(status) == 3;
    }
    return count;
}

MS_TEST(the_driver_fails_while_a_handle_is_made_real)
{
    if (!device_has_shim())
        ms_test_skip("without the shim each handle is the driver's from the start");
    static const char *const functions[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess",
                                            "cuMemRetainAllocationHandle"};
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(count_faults(functions[i], CUDA_ERROR_OPERATING_SYSTEM, false, 1), 1);
        CHECK_EQ(count_faults(functions[i], CUDA_ERROR_OUT_OF_MEMORY, false, 1), 1);
    }
}

/* Its memory is there in parts, which become one. */
MS_TEST(the_driver_fails_while_parts_are_joined)
{
    if (!device_has_shim())
        ms_test_skip("without the shim each handle is the driver's from the start");
    static const char *const functions[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess"};
    /* Two parts, the gap between them, and all in one, which is tried again. */
    for (int i = 0; i < 3; i++)
        CHECK_EQ(count_faults(functions[i], CUDA_ERROR_OPERATING_SYSTEM, true, 4), 3);
}

/* Memory runs out while parts are joined, for one call after another: it is refused, and nothing is
 * lost. */
MS_TEST(memory_runs_out_while_parts_are_joined)
{
    enum { FIRST = 3, MOST = 3 }; /* behind the two parts and the gap between them */
    if (!device_has_shim())
        ms_test_skip("without the shim each handle is the driver's from the start");
    int told = 0;
    for (int count = 1; count <= MOST; count++) {
        int status, used = 0;
        char setting[200] = "";
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            for (int i = 0; i < count; i++)
                used += snprintf(setting + used, sizeof(setting) - (size_t)used,
                                 "%scuMemCreate:%d=2", i > 0 ? "," : "", FIRST + 1 + i);
            setenv("SIMCUDA_FAULTS", setting, 1);
            setenv("METASHARD_SELFCHECK", "off", 1); /* its calls would count */
            make_real_with_fault(true);
        }
        CHECK_EQ(waitpid(child, &status, 0), child);
        if (!WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 3))
            ms_test_fail(__FILE__, __LINE__, "%d calls fail: status %d", count, status);
        told += WEXITSTATUS(status) == 3;
    }
    CHECK(told > 0 && told < MOST);
}

/* --- content that a handle keeps in pieces */

/* Mapped memory of one word, of which the first and the last granule came into memory. */
static CUmemGenericAllocationHandle map_in_pieces(CUdeviceptr address, uint32_t word)
{
    uint32_t seen;
    const CUmemGenericAllocationHandle handle = create_shareable(8 * MIB);
    map(address, 8 * MIB, handle);
    OK(cuMemsetD32(address, word, 2 * MIB));
    OK(cuMemcpyDtoH(&seen, address, 4));
    OK(cuMemcpyDtoH(&seen, address + 6 * MIB, 4));
    check_deferred(address + 4 * MIB);
    OK(cuCtxSynchronize());
    return handle;
}

MS_TEST(content_in_pieces_moves_with_its_handle)
{
    start();
    const size_t before = free_bytes();
    const CUdeviceptr first = reserve(8 * MIB), second = reserve(24 * MIB);
    const CUmemGenericAllocationHandle handle = map_in_pieces(first, 31);
    for (int turn = 0; turn < 3; turn++) {
        OK(cuMemUnmap(first, 8 * MIB));
        CHECK_EQ(before - free_bytes(), 8 * MIB);
        OK(cuMemMap(second + 8 * MIB, 8 * MIB, 0, handle, 0));
        OK(cuMemUnmap(second + 8 * MIB, 8 * MIB)); /* without access in between */
        map(second + 8 * MIB, 8 * MIB, handle);
        CHECK_EQ(before - free_bytes(), 8 * MIB);
        check_same(second + 8 * MIB, 8 * MIB, 31 + (uint32_t)turn);
        OK(cuMemsetD32(second + 8 * MIB, 32 + (uint32_t)turn, 2 * MIB));
        OK(cuCtxSynchronize());
        OK(cuMemUnmap(second + 8 * MIB, 8 * MIB));
        map(first, 8 * MIB, handle);
        check_same(first, 8 * MIB, 32 + (uint32_t)turn);
    }
    OK(cuCtxSynchronize());
    OK(cuMemUnmap(first, 8 * MIB));
    OK(cuMemRelease(handle));
    CHECK_EQ(free_bytes(), before);
    OK(cuMemAddressFree(first, 8 * MIB));
    OK(cuMemAddressFree(second, 24 * MIB));
}

/* Exported, mapped in two places, or asked for a part, which the driver refuses: it must be one
 * memory then. */
MS_TEST(content_in_pieces_becomes_one_memory_when_others_need_it)
{
    start();
    const size_t before = free_bytes();
    const CUdeviceptr first = reserve(8 * MIB), second = reserve(8 * MIB);
    for (int how = 0; how < 4; how++) {
        const CUmemGenericAllocationHandle handle = map_in_pieces(first, 50 + (uint32_t)how);
        if (how != 3) /* while it is mapped */
            OK(cuMemUnmap(first, 8 * MIB));
        if (how == 1) /* mapped, and not to be used yet */
            OK(cuMemMap(first, 8 * MIB, 0, handle, 0));
        if (how != 2)
            close(export_handle(handle));
        if (how == 0)
            map(first, 8 * MIB, handle);
        if (how == 1)
            OK(set_access(first, 8 * MIB, 0, READWRITE));
        if (how == 2) {
            FAILS(cuMemMap(first, 4 * MIB, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
            map(first, 8 * MIB, handle);
        }
        map(second, 8 * MIB, handle);
        check_same(second, 8 * MIB, 50 + (uint32_t)how);
        OK(cuMemsetD32(second, 9, MIB));
        check_same(first, 4 * MIB, 9);
        CHECK_EQ(before - free_bytes(), 8 * MIB);
        OK(cuCtxSynchronize());
        OK(cuMemUnmap(first, 8 * MIB));
        unmap(second, 8 * MIB, handle);
        CHECK_EQ(free_bytes(), before);
    }
    OK(cuMemAddressFree(first, 8 * MIB));
    OK(cuMemAddressFree(second, 8 * MIB));
}

/* --- what is told of it */

/* The flags have 4 bytes. Memory that may not be used has no device address. */
static void check_access(CUdeviceptr address, uint64_t wanted, bool is_current)
{
    const uint64_t untouched = UINT64_C(99) << 32;
    const bool is_usable = is_current && wanted != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    uint64_t flags = untouched, all[3] = {untouched, 99, 99};
    CUdeviceptr base;
    size_t bytes;
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_ACCESS_FLAGS,
                                        CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
                                        CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
    void *data[] = {&all[0], &all[1], &all[2]};
    OK(cuPointerGetAttribute(&flags, attributes[0], address));
    CHECK_EQ(flags, untouched | wanted);
    OK(cuPointerGetAttributes(3, attributes, data, address));
    CHECK_EQ(all[0], untouched | wanted);
    CHECK_EQ(all[1], 4 * MIB);
    if (!is_current)
        return;
    CHECK_EQ(all[2], is_usable ? address : 0);
    all[2] = 99;
    FAILS(cuPointerGetAttribute(&all[2], attributes[2], address),
          is_usable ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(all[2], is_usable ? address : 0);
    FAILS(cuMemGetAddressRange(&base, &bytes, address),
          is_usable ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND);
}

MS_TEST(access_is_told_with_and_without_a_current_context)
{
    unsigned long long flags = 99;
    const CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    const CUcontext context = start();
    const CUdeviceptr address = reserve(16 * MIB);
    map_new(address, 4 * MIB);
    OK(cuMemMap(address + 8 * MIB, 4 * MIB, 0, create(4 * MIB), 0));
    check_access(address + MIB, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, true);
    check_deferred(address + 2 * MIB);
    for (int i = 0; i < 2; i++) {
        OK(cuCtxSetCurrent(i == 0 ? NULL : context));
        check_access(address + MIB, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, i == 1);
        check_access(address + 8 * MIB, CU_MEM_ACCESS_FLAGS_PROT_NONE, i == 1);
        OK(cuMemGetAccess(&flags, &location, address + MIB));
        CHECK_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        OK(cuMemGetAccess(&flags, &location, address + 8 * MIB));
        CHECK_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    }
}

/* The program has given it back, while its memory is mapped. */
MS_TEST(a_released_handle_has_no_properties)
{
    int file;
    uint64_t types = 99;
    CUmemAllocationProp prop;
    start();
    const CUdeviceptr address = reserve(4 * MIB), other = reserve(4 * MIB);
    const CUmemGenericAllocationHandle handle = create_shareable(4 * MIB);
    map(address, 4 * MIB, handle);
    OK(cuMemGetAllocationPropertiesFromHandle(&prop, handle));
    OK(cuMemRelease(handle));
    FAILS(cuMemGetAllocationPropertiesFromHandle(&prop, handle), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemMap(other, 4 * MIB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
          CUDA_ERROR_INVALID_VALUE);
    OK(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, address));
    CHECK_EQ(types, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

/* --- threads */

static struct {
    CUcontext context;
    CUdeviceptr shared[2]; /* what is copied */
    _Atomic int running;
} threads;

#ifdef __SANITIZE_THREAD__
enum { TURNS = 6 }; /* of two seconds each */
#else
enum { TURNS = 30 };
#endif

static void *map_and_unmap(void *seed_)
{
    const uint32_t seed = *(const uint32_t *)seed_;
    OK(cuCtxSetCurrent(threads.context));
    const CUdeviceptr own = reserve(32 * MIB);
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        CUmemGenericAllocationHandle handles[4];
        uint32_t words[256];
        for (size_t i = 0; i < 4; i++)
            handles[i] = map_new(own + i * 8 * MIB, 8 * MIB);
        for (uint32_t i = 0; i < 256; i++)
            words[i] = word_of(seed + turn * 1000, i);
        OK(cuMemcpyHtoD(own + 16 * MIB - 512, words, sizeof(words)));
        OK(cuMemsetD32(own + 24 * MIB, turn, 64));
        memset(words, 0, sizeof(words));
        OK(cuMemcpyDtoH(words, own + 16 * MIB - 512, sizeof(words)));
        for (uint32_t i = 0; i < 256; i++)
            CHECK_EQ(words[i], word_of(seed + turn * 1000, i));
        OK(cuMemcpyDtoH(words, own + 24 * MIB + 100, 4));
        CHECK_EQ(words[0], turn);
        OK(cuCtxSynchronize());
        for (size_t i = 0; i < 4; i++)
            unmap(own + i * 8 * MIB, 8 * MIB, handles[i]);
    }
    OK(cuMemAddressFree(own, 32 * MIB));
    threads.running--;
    return NULL;
}

static _Atomic bool captures;

/* A capture that forbids other threads nothing. */
static void *capture_for_a_while(void *unused)
{
    CUstream stream;
    CUgraph graph;
    (void)unused;
    OK(cuCtxSetCurrent(threads.context));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    captures = true;
    usleep(30000);
    OK(cuStreamEndCapture(stream, &graph));
    captures = false;
    OK(cuGraphDestroy(graph));
    return NULL;
}

/* Its memory came in two pieces, with a gap between them. */
MS_TEST(memory_is_unmapped_and_its_handle_kept_while_another_thread_captures)
{
    pthread_t capturer;
    uint32_t word;
    threads.context = start();
    const CUdeviceptr address = reserve(8 * MIB);
    const CUmemGenericAllocationHandle handle = map_new(address, 8 * MIB);
    OK(cuMemsetD32(address, 21, 2 * MIB));
    OK(cuMemcpyDtoH(&word, address, 4));
    OK(cuMemcpyDtoH(&word, address + 6 * MIB, 4));
    CHECK_EQ(pthread_create(&capturer, NULL, capture_for_a_while, NULL), 0);
    while (!captures)
        usleep(100);
    OK(cuMemUnmap(address, 8 * MIB));
    CHECK_EQ(pthread_join(capturer, NULL), 0);
    map(address, 8 * MIB, handle);
    check_same(address, 8 * MIB, 21);
    unmap(address, 8 * MIB, handle);
    OK(cuMemAddressFree(address, 8 * MIB));
}

/* It becomes one memory when the capture has ended. */
MS_TEST(memory_in_pieces_is_exported_while_another_thread_captures)
{
    pthread_t capturer;
    threads.context = start();
    const CUdeviceptr address = reserve(8 * MIB);
    const CUmemGenericAllocationHandle handle = map_in_pieces(address, 21);
    CHECK_EQ(pthread_create(&capturer, NULL, capture_for_a_while, NULL), 0);
    while (!captures)
        usleep(100);
    close(export_handle(handle));
    CHECK_EQ(pthread_join(capturer, NULL), 0);
    check_same(address, 8 * MIB, 21);
    OK(cuCtxSynchronize());
    unmap(address, 8 * MIB, handle);
}

static _Atomic bool is_unmapped;

/* A capture that goes on until the other thread's call has returned, and maps memory meanwhile. */
static void *capture_and_map(void *unused)
{
    CUstream stream;
    CUgraph graph;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    (void)unused;
    OK(cuCtxSetCurrent(threads.context));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    captures = true;
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    const CUdeviceptr own = reserve(8 * MIB);
    const CUmemGenericAllocationHandle handle = map_new(own, 8 * MIB);
    while (!is_unmapped)
        usleep(100);
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphDestroy(graph));
    captures = false;
    unmap(own, 8 * MIB, handle);
    return NULL;
}

MS_TEST(memory_in_pieces_is_unmapped_and_mapped_while_a_capture_goes_on)
{
    pthread_t capturer;
    threads.context = start();
    const CUdeviceptr address = reserve(8 * MIB), other = reserve(8 * MIB);
    const CUmemGenericAllocationHandle handle = map_in_pieces(address, 21);
    CHECK_EQ(pthread_create(&capturer, NULL, capture_and_map, NULL), 0);
    while (!captures)
        usleep(100);
    const CUresult unmapped = cuMemUnmap(address, 8 * MIB);
    const CUresult mapped = cuMemMap(other, 8 * MIB, 0, handle, 0);
    const CUresult accessible = set_access(other, 8 * MIB, 0, READWRITE);
    is_unmapped = true;
    CHECK_EQ(pthread_join(capturer, NULL), 0);
    OK(unmapped);
    OK(mapped);
    OK(accessible);
    check_same(other, 8 * MIB, 21);
    OK(cuCtxSynchronize());
    unmap(other, 8 * MIB, handle);
}

/* A handle in pieces is exported behind work that waits for what another thread does later: no lock
 * is held meanwhile. */
static void *map_and_open(void *gate)
{
    OK(cuCtxSetCurrent(threads.context));
    usleep(20000); /* so that the other thread mostly waits by then */
    const CUdeviceptr own = reserve(8 * MIB);
    const CUmemGenericAllocationHandle handle = map_new(own, 8 * MIB);
    OK(cuMemUnmap(own, 8 * MIB));
    OK(cuMemRelease(handle));
    open_gate(gate);
    return NULL;
}

MS_TEST(others_map_while_an_export_waits_for_the_device)
{
    pthread_t opener;
    CUstream stream;
    struct gate gate;
    threads.context = start();
    const CUdeviceptr address = reserve(8 * MIB);
    const CUmemGenericAllocationHandle handle = map_in_pieces(address, 21);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    close_gate(&gate, stream);
    CHECK_EQ(pthread_create(&opener, NULL, map_and_open, &gate), 0);
    close(export_handle(handle));
    CHECK_EQ(pthread_join(opener, NULL), 0);
    check_same(address, 8 * MIB, 21);
    OK(cuCtxSynchronize());
    unmap(address, 8 * MIB, handle);
}

MS_TEST(two_threads_map_while_a_third_copies)
{
    pthread_t mappers[2];
    static const uint32_t seeds[2] = {1000000, 2000000};
    threads.context = start();
    threads.running = 2;
    for (int i = 0; i < 2; i++) {
        threads.shared[i] = reserve(8 * MIB);
        map_new(threads.shared[i], 8 * MIB);
    }
    put_words(threads.shared[0], 8 * MIB, 11);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_create(&mappers[i], NULL, map_and_unmap, (void *)&seeds[i]), 0);
    for (int turn = 0; threads.running > 0; turn++) {
        OK(cuMemcpyDtoD(threads.shared[(turn + 1) % 2], threads.shared[turn % 2], 8 * MIB));
        check_words(threads.shared[(turn + 1) % 2] + 4 * MIB, 64 << 10, 11 + (uint32_t)MIB);
        OK(cuMemsetD32(threads.shared[turn % 2], 0, 2 * MIB));
    }
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_join(mappers[i], NULL), 0);
}
