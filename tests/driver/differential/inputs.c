/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bad and odd input, and the edges of the driver's rules. Runs with the shim and without it; every
 * test must pass both ways, except those that only make sense with it and are skipped without.
 */
#include <cuda.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/harness/preload.h"
#include "tools/simcuda/harness/device.h"

static CUcontext context;

static void start(void)
{
    context = device_start();
}

/* A checkpoint of `bytes` bytes, mapped privately; the byte at i is i * 31 >> 4. */
static char path[] = "/tmp/metashard-inputs-XXXXXX";
static int file;

static void remove_file(void)
{
    unlink(path);
}

static unsigned char expected_byte(size_t i)
{
    return (unsigned char)(i * 31 >> 4);
}

static unsigned char *map_checkpoint(size_t bytes)
{
    file = mkstemp(path);
    CHECK(file >= 0);
    atexit(remove_file);
    unsigned char *content = malloc(bytes);
    for (size_t i = 0; i < bytes; i++)
        content[i] = expected_byte(i);
    CHECK_EQ(write(file, content, bytes), (ssize_t)bytes);
    free(content);
    close(file); /* nobody writes: else it would be no source */
    file = open(path, O_RDONLY);
    unsigned char *mapping = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    CHECK(mapping != MAP_FAILED);
    return mapping;
}

/* Nobody keeps another process from changing a checkpoint; it makes no call of libc that the shim
 * sees. */
static void start_without_leases(void)
{
    setenv("METASHARD_LEASES", "off", 1);
    start();
}

static unsigned char read_byte(CUdeviceptr address)
{
    unsigned char byte = 0;
    CHECK_EQ(cuMemcpyDtoH(&byte, address, 1), CUDA_SUCCESS);
    return byte;
}

MS_TEST(a_checkpoint_truncated_before_use_is_an_error_not_wrong_bytes)
{
    start_without_leases();
    if (!device_has_shim())
        ms_test_skip("without the shim the bytes are on the device already");
    unsigned char *mapping = map_checkpoint(8 * MIB);
    const CUdeviceptr tensor = device_allocate(8 * MIB);
    const CUdeviceptr other = device_allocate(4 * MIB);
    CHECK_EQ(cuMemcpyHtoD(tensor, mapping, 8 * MIB), CUDA_SUCCESS);
    CHECK_EQ(cuMemsetD8(other, 9, 4 * MIB), CUDA_SUCCESS);
    CHECK_EQ(syscall(SYS_truncate, path, 1 * MIB), 0);
    unsigned char byte = 42;
    CHECK_EQ(cuMemcpyDtoH(&byte, tensor + 5 * MIB, 1), CUDA_ERROR_OPERATING_SYSTEM);
    CHECK_EQ(byte, 42);
    CHECK_EQ(read_byte(other), 9); /* nothing else suffers */
    CHECK_EQ(cuMemcpyHtoD(tensor, "x", 1), CUDA_SUCCESS);
    CHECK_EQ(read_byte(tensor), 'x'); /* and the tensor can be written anew */
    CHECK_EQ(cuMemFree(tensor), CUDA_SUCCESS);
}

MS_TEST(a_checkpoint_overwritten_before_use_is_an_error_not_wrong_bytes)
{
    start_without_leases();
    if (!device_has_shim())
        ms_test_skip("without the shim the bytes are on the device already");
    unsigned char *mapping = map_checkpoint(4 * MIB);
    const CUdeviceptr tensor = device_allocate(4 * MIB);
    const CUdeviceptr shard = device_allocate(2 * MIB);
    CHECK_EQ(cuMemcpyHtoD(tensor, mapping, 4 * MIB), CUDA_SUCCESS);
    CHECK_EQ(cuMemcpyDtoD(shard, tensor + MIB, 2 * MIB), CUDA_SUCCESS);
    const int writer = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY);
    CHECK_EQ(pwrite(writer, "changed", 7, 3 * MIB), 7);
    close(writer);
    unsigned char byte;
    CHECK_EQ(cuMemcpyDtoH(&byte, shard, 1), CUDA_ERROR_OPERATING_SYSTEM);
    CHECK_EQ(cuMemcpyDtoH(&byte, tensor, 1), CUDA_ERROR_OPERATING_SYSTEM);
}

MS_TEST(bytes_written_to_a_private_mapping_win)
{
    start();
    unsigned char *mapping = map_checkpoint(4 * MIB);
    memset(mapping + 100, 0xee, 5000);
    const CUdeviceptr tensor = device_allocate(4 * MIB);
    CHECK_EQ(cuMemcpyHtoD(tensor, mapping, 4 * MIB), CUDA_SUCCESS);
    memset(mapping, 0x11, 4 * MIB); /* too late to matter */
    CHECK_EQ(read_byte(tensor + 99), expected_byte(99));
    CHECK_EQ(read_byte(tensor + 100), 0xee);
    CHECK_EQ(read_byte(tensor + 5099), 0xee);
    CHECK_EQ(read_byte(tensor + 5100), expected_byte(5100));
    CHECK_EQ(read_byte(tensor + 4 * MIB - 1), expected_byte(4 * MIB - 1));
}

MS_TEST(an_unlinked_checkpoint_still_works)
{
    start();
    unsigned char *mapping = map_checkpoint(4 * MIB);
    const CUdeviceptr before = device_allocate(4 * MIB);
    const CUdeviceptr after = device_allocate(4 * MIB);
    CHECK_EQ(cuMemcpyHtoD(before, mapping, 4 * MIB), CUDA_SUCCESS);
    CHECK_EQ(unlink(path), 0);
    CHECK_EQ(cuMemcpyHtoD(after, mapping, 4 * MIB), CUDA_SUCCESS);
    munmap(mapping, 4 * MIB);
    close(file);
    CHECK_EQ(read_byte(before + 12345), expected_byte(12345));
    CHECK_EQ(read_byte(after + 12345), expected_byte(12345));
}

MS_TEST(a_file_shorter_than_its_mapping)
{
    start();
    unsigned char *mapping = map_checkpoint(4 * MIB);
    CHECK_EQ(truncate(path, 2 * MIB + 10), 0);
    const CUdeviceptr tensor = device_allocate(4 * MIB);
    /* The rest of the last page reads as zeroes. */
    CHECK_EQ(cuMemcpyHtoD(tensor, mapping, 2 * MIB + 100), CUDA_SUCCESS);
    CHECK_EQ(read_byte(tensor + 2 * MIB + 9), expected_byte(2 * MIB + 9));
    CHECK_EQ(read_byte(tensor + 2 * MIB + 50), 0);
}

MS_TEST(the_mapping_may_go_away_after_the_copy)
{
    start();
    unsigned char *mapping = map_checkpoint(4 * MIB);
    const CUdeviceptr tensor = device_allocate(4 * MIB);
    CHECK_EQ(cuMemcpyHtoD(tensor, mapping + 3, 4 * MIB - 3), CUDA_SUCCESS);
    munmap(mapping, 4 * MIB);
    close(file);
    CHECK_EQ(read_byte(tensor + 1000), expected_byte(1003));
}

MS_TEST(a_plain_buffer_may_be_reused_after_the_copy)
{
    const char *whole_run = getenv("SIM_SETTINGS");
    if (getenv("SIMCUDA_LATE") != NULL ||
        (whole_run != NULL && strstr(whole_run, "SIMCUDA_LATE=1") != NULL))
        ms_test_skip("what the program itself copies is read late, too");
    start();
    unsigned char *buffer = malloc(4 * MIB);
    memset(buffer, 1, 4 * MIB);
    const CUdeviceptr tensor = device_allocate(4 * MIB);
    CHECK_EQ(cuMemcpyHtoDAsync(tensor, buffer, 4 * MIB, NULL), CUDA_SUCCESS);
    memset(buffer, 2, 4 * MIB);
    CHECK_EQ(read_byte(tensor + 4 * MIB - 1), 1);
    free(buffer);
}

MS_TEST(addresses_never_allocated_are_refused)
{
    start();
    unsigned char byte = 0;
    CUdeviceptr base;
    size_t size;
    const CUdeviceptr tensor = device_allocate(4 * MIB); /* something is deferred */
    CHECK_EQ(cuMemFree(0x1234000), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuMemFree(tensor + 512), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemcpyHtoD(0x1234000, &byte, 1) != CUDA_SUCCESS);
    CHECK(cuMemGetAddressRange(&base, &size, 0x1234000) != CUDA_SUCCESS);
}

MS_TEST(a_double_free_is_refused)
{
    start();
    const CUdeviceptr tensor = device_allocate(4 * MIB);
    CHECK_EQ(cuMemFree(tensor), CUDA_SUCCESS);
    CHECK_EQ(cuMemFree(tensor), CUDA_ERROR_INVALID_VALUE);
}

MS_TEST(zero_sizes)
{
    start();
    CUdeviceptr nothing = 7;
    CHECK_EQ(cuMemAlloc(&nothing, 0), CUDA_ERROR_INVALID_VALUE);
    const CUdeviceptr tensor = device_allocate(4 * MIB);
    CHECK_EQ(cuMemsetD8(tensor, 1, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemcpyHtoD(tensor, "x", 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemcpyDtoD(tensor, tensor + 8, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemcpyDtoH(&nothing, tensor, 0), CUDA_SUCCESS);
}

MS_TEST(overlapping_copies_deliver_bytes_of_the_source)
{
    start();
    unsigned char *mapping = map_checkpoint(4 * MIB);
    const CUdeviceptr tensor = device_allocate(4 * MIB);
    CHECK_EQ(cuMemcpyHtoD(tensor, mapping, 4 * MIB), CUDA_SUCCESS);
    CHECK_EQ(cuMemcpyDtoD(tensor + MIB, tensor, 2 * MIB), CUDA_SUCCESS);
    /* Bytes in the overlap are undefined; no others are. */
    CHECK_EQ(read_byte(tensor + 5), expected_byte(5));
    CHECK_EQ(read_byte(tensor + 3 * MIB + 5), expected_byte(3 * MIB + 5));
}

MS_TEST(out_of_memory_while_materialising)
{
    setenv("SIMCUDA_MEMORY_MIB", "64", 1);
    start();
    if (!device_has_shim())
        ms_test_skip("without the shim the allocation itself fails");
    const CUdeviceptr large = device_allocate(128 * MIB);
    unsigned char *seen = malloc(128 * MIB);
    CHECK_EQ(cuMemsetD32(large, 0x04030201, 32 * MIB), CUDA_SUCCESS);
    CHECK_EQ(cuMemcpyDtoH(seen, large, 128 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuCtxSynchronize(), CUDA_SUCCESS); /* not sticky */
    /* The state is intact: what fits can be read, and all of it after memory was freed. */
    CHECK_EQ(cuMemcpyDtoH(seen, large + 100 * MIB + 1, 3), CUDA_SUCCESS);
    CHECK_EQ(seen[0], 2);
    CHECK_EQ(seen[2], 4);
    /* From now on it is told where it asks. */
    CUdeviceptr second;
    CHECK_EQ(cuMemAlloc(&second, 40 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuMemFree(large), CUDA_SUCCESS);
    CHECK_EQ(cuMemAlloc(&second, 40 * MIB), CUDA_SUCCESS);
    CHECK_EQ(cuMemsetD8(second, 5, 40 * MIB), CUDA_SUCCESS);
    CHECK_EQ(read_byte(second), 5);
    CHECK_EQ(cuMemcpyDtoH(seen, second, 40 * MIB), CUDA_SUCCESS);
    CHECK_EQ(seen[40 * MIB - 1], 5);
}

MS_TEST(a_failing_driver_call_while_materialising_is_returned)
{
    setenv("SIMCUDA_FAULTS", "cuMemMap:1=2", 1);
    setenv("METASHARD_SELFCHECK", "off", 1); /* its calls would count */
    start();
    if (!device_has_shim())
        ms_test_skip("without the shim nothing is mapped");
    const CUdeviceptr tensor = device_allocate(4 * MIB);
    CHECK_EQ(cuMemsetD8(tensor, 6, 4 * MIB), CUDA_SUCCESS);
    unsigned char byte;
    CHECK_EQ(cuMemcpyDtoH(&byte, tensor, 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuMemcpyDtoH(&byte, tensor, 1), CUDA_SUCCESS);
    CHECK_EQ(byte, 6);
    CHECK_EQ(cuMemFree(tensor), CUDA_SUCCESS);
}

MS_TEST(deferred_memory_counts_as_used)
{
    start();
    size_t before, after, total;
    CHECK_EQ(cuMemGetInfo(&before, &total), CUDA_SUCCESS);
    device_allocate(64 * MIB);
    CHECK_EQ(cuMemGetInfo(&after, NULL), CUDA_SUCCESS);
    CHECK_EQ(before - after, 64 * MIB);
    CHECK_EQ(cuMemGetInfo(NULL, &total), CUDA_SUCCESS);
}

/* Exits with 3 if the program is told of an error. */
_Noreturn static void ask_with_fault(int nth)
{
    char setting[40];
    snprintf(setting, sizeof(setting), "cuCtxGetDevice:%d=999", nth);
    setenv("SIMCUDA_FAULTS", setting, 1);
    setenv("METASHARD_SELFCHECK", "off", 1); /* its calls would count */
    start();
    size_t before, after, bytes;
    CUdeviceptr base;
    const CUresult first = cuMemGetInfo(&before, NULL);
    const CUdeviceptr tensor = device_allocate(8 * MIB);
    CHECK_EQ(cuMemsetD8(tensor, 6, 8 * MIB), CUDA_SUCCESS);
    CHECK_EQ(read_byte(tensor), 6); /* a part of it has memory */
    const CUresult second = cuMemGetInfo(&after, NULL);
    const CUresult range = cuMemGetAddressRange(&base, &bytes, tensor + 9);
    CHECK(first != CUDA_SUCCESS || second != CUDA_SUCCESS || before - after == 8 * MIB);
    CHECK(range != CUDA_SUCCESS || (base == tensor && bytes == 8 * MIB));
    const bool is_told = first != CUDA_SUCCESS || second != CUDA_SUCCESS || range != CUDA_SUCCESS;
    exit(is_told ? 3 : 0);
}

MS_TEST(a_driver_that_does_not_tell_the_device_is_told_on)
{
    int told = 0, status;
    for (int nth = 1; nth <= 12; nth++) {
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0)
            ask_with_fault(nth);
        CHECK_EQ(waitpid(child, &status, 0), child);
        CHECK(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 3));
        told += WEXITSTATUS(status) == 3;
    }
    CHECK_EQ(told, device_has_shim() ? 3 : 0);
}

MS_TEST(a_forked_child_is_left_alone)
{
    start();
    const CUdeviceptr tensor = device_allocate(4 * MIB);
    CHECK_EQ(cuMemsetD8(tensor, 3, 4 * MIB), CUDA_SUCCESS);
    const pid_t child = fork();
    if (child == 0) {
        CUdeviceptr address;
        unsigned char byte;
        const bool refused = cuMemAlloc(&address, 4 * MIB) != CUDA_SUCCESS &&
                             cuMemcpyDtoH(&byte, tensor, 1) != CUDA_SUCCESS &&
                             cuMemFree(tensor) != CUDA_SUCCESS;
        _exit(refused ? 0 : 1);
    }
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    CHECK_EQ(read_byte(tensor), 3);
}

MS_TEST(memory_goes_with_its_context)
{
    start();
    CUcontext own;
    CHECK_EQ(cuCtxCreate(&own, NULL, 0, 0), CUDA_SUCCESS);
    const CUdeviceptr tensor = device_allocate(8 * MIB);
    CHECK_EQ(cuMemsetD8(tensor, 3, 8 * MIB), CUDA_SUCCESS);
    CHECK_EQ(read_byte(tensor), 3);
    size_t with, without;
    CHECK_EQ(cuMemGetInfo(&with, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuCtxDestroy(own), CUDA_SUCCESS);
    CHECK_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    CHECK_EQ(cuMemGetInfo(&without, NULL), CUDA_SUCCESS);
    CHECK_EQ(without - with, 8 * MIB);
    CHECK(cuMemFree(tensor) != CUDA_SUCCESS);
}

MS_TEST(memory_goes_with_a_reset)
{
    start();
    const CUdeviceptr tensor = device_allocate(8 * MIB);
    CHECK_EQ(cuMemsetD8(tensor, 3, 8 * MIB), CUDA_SUCCESS);
    CHECK_EQ(read_byte(tensor), 3);
    CHECK_EQ(cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
    CHECK_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    CHECK(cuMemFree(tensor) != CUDA_SUCCESS);
    const CUdeviceptr again = device_allocate(8 * MIB);
    CHECK_EQ(cuMemsetD8(again, 4, 8 * MIB), CUDA_SUCCESS);
    CHECK_EQ(read_byte(again + 5), 4);
}

MS_TEST(allocating_without_a_context_fails_as_ever)
{
    CHECK_EQ(cuInit(0), CUDA_SUCCESS);
    CUdeviceptr address;
    CHECK_EQ(cuMemAlloc(&address, 8 * MIB), CUDA_ERROR_INVALID_CONTEXT);
}

MS_TEST(a_block_cannot_be_taken_apart)
{
    start();
    const CUdeviceptr tensor = device_allocate(4 * MIB);
    CHECK(cuMemAddressFree(tensor, 4 * MIB) != CUDA_SUCCESS);
    CHECK(cuMemUnmap(tensor, 2 * MIB) != CUDA_SUCCESS);
    CHECK_EQ(cuMemsetD8(tensor, 8, 4 * MIB), CUDA_SUCCESS);
    CHECK_EQ(read_byte(tensor), 8);
    CHECK(cuMemUnmap(tensor, 2 * MIB) != CUDA_SUCCESS);
    CHECK_EQ(read_byte(tensor), 8);
}

/* Concurrent use: eight threads with blocks of their own and one they all read and write. */
enum { THREADS = 8, ROUNDS = 30 };
static CUdeviceptr shared_block;

static void *use_memory(void *argument)
{
    const unsigned char mine = (unsigned char)(1 + (uintptr_t)argument);
    CHECK_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    for (int round = 0; round < ROUNDS; round++) {
        const CUdeviceptr own = device_allocate(2 * MIB + mine);
        CHECK_EQ(cuMemsetD8(own, mine, 2 * MIB + mine), CUDA_SUCCESS);
        CHECK_EQ(cuMemcpyDtoD(shared_block + mine * MIB, own + 1000, MIB), CUDA_SUCCESS);
        CHECK_EQ(read_byte(shared_block + mine * MIB + (size_t)round * 1000), mine);
        CHECK_EQ(read_byte(own + (size_t)round), mine);
        CHECK_EQ(cuMemFree(own), CUDA_SUCCESS);
    }
    return NULL;
}

MS_TEST(threads)
{
    start();
    shared_block = device_allocate((THREADS + 1) * MIB);
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, use_memory, (void *)i), 0);
    for (int i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    for (size_t i = 1; i < THREADS; i++)
        CHECK_EQ(read_byte(shared_block + i * MIB + 77), i);
}

static void open_gate(void *gate)
{
    while (__atomic_load_n((int *)gate, __ATOMIC_ACQUIRE) == 0)
        usleep(100);
}

MS_TEST(a_write_behind_held_work_keeps_its_place)
{
    /* One stream is held back by a host function, and a later write on another comes first. */
    start();
    CUstream held, free_stream;
    CHECK_EQ(cuStreamCreate(&held, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CHECK_EQ(cuStreamCreate(&free_stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    const CUdeviceptr tensor = device_allocate(4 * MIB);
    static int gate;
    CHECK_EQ(cuLaunchHostFunc(held, open_gate, &gate), CUDA_SUCCESS);
    CHECK_EQ(cuMemsetD8Async(tensor, 2, 4 * MIB, held), CUDA_SUCCESS);
    CHECK_EQ(cuMemsetD8Async(tensor, 1, 4 * MIB, free_stream), CUDA_SUCCESS);
    CHECK_EQ(cuStreamSynchronize(free_stream), CUDA_SUCCESS);
    __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
    CHECK_EQ(cuStreamSynchronize(held), CUDA_SUCCESS);
    CHECK_EQ(read_byte(tensor + 9), 2);
}

MS_TEST(host_bytes_that_are_still_on_their_way)
{
    setenv("SIMCUDA_DELAY_US", "3000", 1);
    start();
    void *pinned;
    CUstream stream;
    CHECK_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CHECK_EQ(cuMemHostAlloc(&pinned, 4 * MIB, 0), CUDA_SUCCESS);
    memset(pinned, 1, 4 * MIB);
    const CUdeviceptr from = device_allocate(4 * MIB), to = device_allocate(4 * MIB);
    CHECK_EQ(cuMemsetD8Async(from, 2, 4 * MIB, stream), CUDA_SUCCESS);
    CHECK_EQ(cuMemcpyDtoHAsync(pinned, from, 4 * MIB, stream), CUDA_SUCCESS);
    CHECK_EQ(cuMemcpyHtoDAsync(to, pinned, 4 * MIB, stream), CUDA_SUCCESS);
    CHECK_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    CHECK_EQ(read_byte(to + MIB), 2);
}

/* A host function of one thread waits for another thread, which launches and copies meanwhile. */
static CUdeviceptr other_block;

static void *copy_and_open(void *gate)
{
    usleep(20000);
    CHECK_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    CUstream own;
    CHECK_EQ(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CHECK_EQ(cuStreamWriteValue32(own, other_block, 1, 0), CUDA_SUCCESS); /* not modelled */
    CHECK_EQ(cuStreamSynchronize(own), CUDA_SUCCESS);
    __atomic_store_n((int *)gate, 1, __ATOMIC_RELEASE);
    return NULL;
}

MS_TEST(a_free_that_waits_does_not_hold_up_other_threads)
{
    start();
    static int gate;
    CUstream held;
    pthread_t thread;
    CHECK_EQ(cuStreamCreate(&held, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    const CUdeviceptr freed = device_allocate(4 * MIB);
    other_block = device_allocate(4 * MIB);
    CHECK_EQ(pthread_create(&thread, NULL, copy_and_open, &gate), 0);
    CHECK_EQ(cuLaunchHostFunc(held, open_gate, &gate), CUDA_SUCCESS);
    CHECK_EQ(cuMemFree(freed), CUDA_SUCCESS);
    CHECK_EQ(pthread_join(thread, NULL), 0);
}

MS_TEST(a_misaligned_set_is_refused)
{
    start();
    const CUdeviceptr tensor = device_allocate(4 * MIB);
    CHECK_EQ(cuMemsetD32(tensor + 2, 1, 10), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuMemsetD16(tensor + 1, 1, 10), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuMemsetD16(tensor + 2, 0x0102, 10), CUDA_SUCCESS);
    CHECK_EQ(read_byte(tensor + 3), 1);
}

MS_TEST(a_stream_that_is_none_is_refused)
{
    start();
    CUstream stream;
    const CUdeviceptr tensor = device_allocate(4 * MIB);
    CHECK_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CHECK_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
    CHECK(cuMemsetD8Async(tensor, 1, 4 * MIB, stream) != CUDA_SUCCESS);
    CHECK(cuMemcpyDtoDAsync(tensor, tensor + 2 * MIB, MIB, stream) != CUDA_SUCCESS);
    CHECK(cuMemcpyHtoDAsync(tensor, "x", 1, stream) != CUDA_SUCCESS);
}
