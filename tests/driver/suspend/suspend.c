/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Suspending and resuming a process (metashard_suspend, metashard_resume): which device memory
 * goes, what waits outside of the device, and that all bytes are there afterwards, whatever uses
 * them first.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shim/metashard.h"
#include "tests/driver/differential/mappings.h"
#include "tools/simcuda/driver/hook.h"

#define BYTES (16 * MIB)

/* The number behind a key of a JSON object in one line. */
static long long number_of(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    CHECK(at != NULL);
    return atoll(at + strlen(key) + strlen("\": "));
}

static long long status_of(const char *key)
{
    char text[2048];
    CHECK(metashard_status(text, sizeof(text)) < sizeof(text));
    return number_of(text, key);
}

struct told {
    long long freed, replayed, made, stored, zeros, exported, mapped, stays;
};

static bool is_suspended(void)
{
    char text[2048];
    metashard_status(text, sizeof(text));
    return strstr(text, "\"suspended\": true") != NULL;
}

static struct told suspend_to(const char *folder)
{
    char text[1024];
    if (metashard_suspend(folder, text, sizeof(text)) != 0)
        ms_test_fail(__FILE__, __LINE__, "metashard_suspend: %s", metashard_error());
    const struct told told = {
        number_of(text, "freed_bytes"),        number_of(text, "replayed_bytes"),
        number_of(text, "made_bytes"),         number_of(text, "stored_bytes"),
        number_of(text, "zero_bytes"),         number_of(text, "stays_exported_bytes"),
        number_of(text, "stays_mapped_bytes"), number_of(text, "\"stays_bytes")};
    CHECK_EQ(status_of("backed_bytes"), told.exported + told.mapped + told.stays);
    CHECK_EQ(told.stays, 0);
    return told;
}

static void fails_with(const char *folder, const char *why)
{
    const long long before = status_of("backed_bytes");
    CHECK_EQ(metashard_suspend(folder, NULL, 0), -1);
    if (strstr(metashard_error(), why) == NULL)
        ms_test_fail(__FILE__, __LINE__, "expected %s, found %s", why, metashard_error());
    CHECK_EQ(status_of("backed_bytes"), before);
}

static void resume(void)
{
    if (metashard_resume() != 0)
        ms_test_fail(__FILE__, __LINE__, "metashard_resume: %s", metashard_error());
}

static CUdeviceptr allocate(size_t bytes)
{
    CUdeviceptr address;
    OK(cuMemAlloc(&address, bytes));
    return address;
}

static void add(CUdeviceptr address, size_t bytes, uint32_t value)
{
    OK(try_add(kernel("add_in_place32"), address, bytes, value, NULL));
    OK(cuCtxSynchronize());
}

/* A mapped file of these words, that is old enough to be trusted. */
static const void *map_file(size_t bytes, uint32_t seed, char *path_out)
{
    const struct timespec moment = {.tv_nsec = 50 * 1000 * 1000};
    strcpy(path_out, "suspend-XXXXXX");
    const int file = mkstemp(path_out);
    CHECK(file >= 0);
    for (size_t done = 0; done < bytes; done += sizeof(mappings_words)) {
        make_words(sizeof(mappings_words) / 4, seed + (uint32_t)(done / 4));
        CHECK_EQ(write(file, mappings_words, sizeof(mappings_words)), sizeof(mappings_words));
    }
    close(file);
    nanosleep(&moment, NULL);
    const int again = open(path_out, O_RDONLY);
    const void *mapped = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, again, 0);
    close(again);
    CHECK(mapped != MAP_FAILED);
    return mapped;
}

MS_TEST(suspending_stores_written_bytes_and_brings_them_back)
{
    start();
    const CUdeviceptr address = allocate(BYTES);
    put_words(address, BYTES, 5);
    add(address, BYTES, 1);
    const struct told told = suspend_to(NULL);
    CHECK_EQ(told.freed, BYTES);
    CHECK_EQ(told.stored, BYTES);
    CHECK(!is_in_memory(address));
    CHECK(is_suspended());
    resume();
    CHECK(!is_suspended());
    CHECK(is_in_memory(address));
    check_words(address, BYTES, 6);
}

MS_TEST(a_launch_takes_everything_back)
{
    start();
    const CUfunction add_in_place = kernel("add_in_place32");
    const CUdeviceptr one = allocate(BYTES), other = allocate(BYTES);
    put_words(one, BYTES, 5);
    put_words(other, BYTES, 50);
    add(one, BYTES, 1);
    add(other, BYTES, 1);
    suspend_to(NULL);
    OK(try_add(add_in_place, one, BYTES, 1, NULL));
    CHECK(is_in_memory(other));
    check_words(one, BYTES, 7);
    check_words(other, BYTES, 51);
}

MS_TEST(a_copy_takes_what_it_uses)
{
    start();
    const CUdeviceptr one = allocate(BYTES), other = allocate(BYTES);
    put_words(one, BYTES, 5);
    put_words(other, BYTES, 50);
    add(one, BYTES, 1);
    add(other, BYTES, 1);
    suspend_to(NULL);
    CHECK_EQ(read_word(one + 4 * MIB), word_of(6, MIB));
    CHECK(!is_in_memory(other));
    put_words(other, 2 * MIB, 7);
    resume();
    check_words(one, BYTES, 6);
    check_words(other, 2 * MIB, 7);
    CHECK_EQ(read_word(other + 2 * MIB), word_of(51, MIB / 2));
}

MS_TEST(an_address_in_device_memory_means_memory)
{
    start();
    const CUfunction gather = kernel("gather32");
    const CUdeviceptr from = allocate(4 * MIB), to = allocate(4 * MIB), table = allocate(4 * MIB);
    CUdeviceptr addresses[8];
    uint64_t count = 8;
    put_words(from, 4 * MIB, 5);
    add(from, 4 * MIB, 1);
    for (int i = 0; i < 8; i++)
        addresses[i] = from + (size_t)i * 4;
    OK(cuMemcpyHtoD(table, addresses, sizeof(addresses)));
    add(to, 4 * MIB, 0);
    suspend_to(NULL);
    void *params[] = {(void *)&to, (void *)&table, &count};
    OK(cuLaunchKernel(gather, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    for (size_t i = 0; i < 8; i++)
        CHECK_EQ(read_word(to + 4 * i), word_of(6, i));
}

MS_TEST(zeros_wait_nowhere)
{
    start();
    const CUdeviceptr address = allocate(BYTES);
    OK(cuMemsetD8(address, 0, BYTES));
    add(address, BYTES, 0);
    const struct told told = suspend_to(NULL);
    CHECK_EQ(told.zeros, BYTES);
    CHECK_EQ(told.stored, 0);
    resume();
    check_same(address, BYTES, 0);
}

MS_TEST(bytes_of_a_file_are_dropped_again_and_again)
{
    char path[32];
    start();
    const CUfunction add_in_place = kernel("add_in_place32");
    const void *mapped = map_file(BYTES, 5, path);
    const CUdeviceptr weights = allocate(BYTES), cache = allocate(4 * MIB);
    OK(cuMemcpyHtoD(weights, mapped, BYTES));
    for (int round = 0; round < 100; round++) {
        /* A kernel of which nothing is known uses all, and changes nothing. */
        OK(try_add(add_in_place, weights, BYTES, 0, NULL));
        put_words(cache, 4 * MIB, (uint32_t)round);
        OK(try_add(add_in_place, cache, 4 * MIB, 1, NULL));
        const struct told told = suspend_to(NULL);
        CHECK_EQ(told.freed, BYTES + 4 * MIB);
        CHECK_EQ(told.stored, 4 * MIB);
        CHECK_EQ(told.replayed, BYTES);
        CHECK_EQ(told.made, 0);
        if (round % 2 == 0)
            resume();
        CHECK_EQ(read_word(cache), word_of((uint32_t)round + 1, 0));
    }
    resume();
    check_words(weights, BYTES, 5);
    CHECK_EQ(unlink(path), 0);
}

MS_TEST(suspending_stores_changed_bytes_of_a_file_alone)
{
    char path[32];
    start();
    const void *mapped = map_file(BYTES, 5, path);
    const CUdeviceptr weights = allocate(BYTES);
    OK(cuMemcpyHtoD(weights, mapped, BYTES));
    add(weights + 2 * MIB, 2 * MIB, 1);
    add(weights, 2 * MIB, 0);
    const struct told told = suspend_to(NULL);
    CHECK_EQ(told.stored, 2 * MIB);
    CHECK_EQ(told.replayed, BYTES - 2 * MIB);
    resume();
    check_words(weights, 2 * MIB, 5);
    CHECK_EQ(read_word(weights + 2 * MIB), word_of(6, MIB / 2));
    CHECK_EQ(read_word(weights + 4 * MIB), word_of(5, MIB));
    CHECK_EQ(unlink(path), 0);
}

MS_TEST(a_file_that_changes_comes_into_memory_before)
{
    char path[32];
    start();
    const void *mapped = map_file(BYTES, 5, path);
    const CUdeviceptr weights = allocate(BYTES);
    OK(cuMemcpyHtoD(weights, mapped, BYTES));
    add(weights, BYTES, 0);
    CHECK_EQ(suspend_to(NULL).replayed, BYTES);
    const int file = open(path, O_WRONLY | O_TRUNC);
    CHECK(file >= 0);
    CHECK_EQ(write(file, "other", 5), 5);
    close(file);
    resume();
    check_words(weights, BYTES, 5);
    CHECK_EQ(unlink(path), 0);
}

static void make(const char *name, void **params)
{
    OK(cuLaunchKernel(kernel(name), 64, 1, 1, 64, 1, 1, 0, NULL, params, NULL));
}

/* Launches that are recorded. */
static void make_copy(CUdeviceptr to, CUdeviceptr from, uint64_t count)
{
    make("copy32", (void *[]){&to, &from, &count});
}

static void make_drawn(CUdeviceptr to, uint64_t count)
{
    uint64_t seed = 7, philox = 0;
    make("uniform32", (void *[]){&to, &count, &seed, &philox});
}

/* Two of them were cast of a file's bytes, which nobody has any more, and one was drawn. */
static void make_three(CUdeviceptr made[3], const void *mapped)
{
    const CUdeviceptr whole = allocate(BYTES);
    for (int i = 0; i < 3; i++)
        made[i] = allocate(BYTES);
    OK(cuMemcpyHtoD(whole, mapped, BYTES));
    make_copy(made[0], whole, BYTES / 4);
    make_copy(made[1], made[0], BYTES / 4);
    make_drawn(made[2], BYTES / 4);
    CHECK(!is_in_memory(whole));
    OK(cuMemFree(whole));
    for (int i = 0; i < 3; i++)
        add(made[i], BYTES, 0);
    for (int i = 0; i < 3; i++)
        CHECK(is_in_memory(made[i]));
}

MS_TEST(suspending_drops_launched_bytes_again_and_again)
{
    char path[32];
    CUdeviceptr made[3];
    start();
    make_three(made, map_file(BYTES, 5, path));
    const uint32_t drawn = read_word(made[2] + 3 * MIB);
    for (int round = 0; round < 3; round++) {
        const struct told told = suspend_to(NULL);
        CHECK_EQ(told.stored, 0);
        CHECK_EQ(told.replayed, 3 * BYTES);
        CHECK_EQ(told.made, 3 * BYTES);
        resume();
        for (int i = 0; i < 3; i++)
            add(made[i], BYTES, 0);
    }
    check_words(made[0], BYTES, 5);
    check_words(made[1], BYTES, 5);
    CHECK_EQ(read_word(made[2] + 3 * MIB), drawn);
    CHECK_EQ(unlink(path), 0);
}

MS_TEST(suspending_stores_changed_bytes_of_launches_alone)
{
    char path[32];
    CUdeviceptr made[3];
    start();
    make_three(made, map_file(BYTES, 5, path));
    add(made[1] + 4 * MIB, 2 * MIB, 1);
    add(made[2], BYTES, 1);
    const uint32_t drawn = read_word(made[2]);
    for (int round = 0; round < 2; round++) {
        const struct told told = suspend_to(NULL);
        CHECK_EQ(told.stored, BYTES + 2 * MIB);
        CHECK_EQ(told.replayed, 2 * BYTES - 2 * MIB);
        CHECK_EQ(told.made, 2 * BYTES - 2 * MIB);
        resume();
    }
    check_words(made[1], 4 * MIB, 5);
    CHECK_EQ(read_word(made[1] + 4 * MIB), word_of(6, MIB));
    CHECK_EQ(read_word(made[1] + 6 * MIB), word_of(5, 6 * MIB / 4));
    CHECK_EQ(read_word(made[2]), drawn);
    CHECK_EQ(unlink(path), 0);
}

MS_TEST(a_file_behind_a_launch_that_changes_comes_into_memory_before)
{
    char path[32];
    CUdeviceptr made[3];
    start();
    make_three(made, map_file(BYTES, 5, path));
    CHECK_EQ(suspend_to(NULL).replayed, 3 * BYTES);
    const int file = open(path, O_WRONLY | O_TRUNC);
    CHECK(file >= 0);
    close(file);
    resume();
    check_words(made[0], BYTES, 5);
    check_words(made[1], BYTES, 5);
    CHECK_EQ(suspend_to(NULL).stored, 2 * BYTES);
    CHECK_EQ(unlink(path), 0);
}

/* Its handle may be that of another function by now. */
MS_TEST(a_launch_whose_code_was_unloaded_does_not_run_again)
{
    CUmodule other;
    start();
    const CUdeviceptr drawn = allocate(BYTES);
    make_drawn(drawn, BYTES / 4);
    add(drawn, BYTES, 0);
    OK(cuModuleLoad(&other, getenv("SIM_KERNELS")));
    OK(cuModuleUnload(other));
    CHECK_EQ(suspend_to(NULL).stored, BYTES);
    resume();
}

/* It needs no room. */
static const char plan[] = "{\"format\": \"metashard-plan/1\", \"world_size\": 2, \"rank\": 0, "
                           "\"tensors\": [{\"name\": \"t\", \"dtype\": \"U8\", \"shape\": "
                           "[16777216], \"placements\": [{\"shard\": 0}]}]}";

MS_TEST(suspending_works_with_unwritten_bytes_of_other_ranks)
{
    start();
    const CUdeviceptr tensor = allocate(BYTES);
    CHECK_EQ(metashard_name(tensor, BYTES, "t", "U8", (uint64_t[]){BYTES}, 1), 0);
    put_words(tensor, 4 * MIB, 5);
    CHECK_EQ(read_word(tensor), word_of(5, 0));
    CHECK_EQ(metashard_plan_text(plan, strlen(plan)), 0);
    CHECK_EQ(suspend_to(NULL).stored, 4 * MIB);
    resume();
    check_words(tensor, 4 * MIB, 5);
}

MS_TEST(a_captured_graph_replays)
{
    CUstream stream;
    CUgraph graph;
    CUgraphExec executable;
    start();
    const CUfunction add_in_place = kernel("add_in_place32");
    const CUdeviceptr address = allocate(BYTES);
    put_words(address, BYTES, 5);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(try_add(add_in_place, address, BYTES, 1, stream));
    fails_with(NULL, "captured");
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiate(&executable, graph, 0));
    OK(cuGraphLaunch(executable, stream));
    OK(cuStreamSynchronize(stream));
    for (int round = 0; round < 2; round++) {
        CHECK_EQ(suspend_to(NULL).stored, BYTES);
        if (round == 1)
            resume();
        OK(cuGraphLaunch(executable, stream));
        OK(cuStreamSynchronize(stream));
    }
    check_words(address, BYTES, 8);
}

MS_TEST(work_of_the_device_is_waited_for)
{
    start();
    const CUfunction add_in_place = kernel("add_in_place32");
    const CUdeviceptr address = allocate(BYTES);
    CUstream stream;
    put_words(address, BYTES, 5);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 50; i++)
        OK(try_add(add_in_place, address, BYTES, 1, stream));
    suspend_to(NULL);
    resume();
    check_words(address, BYTES, 55);
}

MS_TEST(an_open_group_of_collectives)
{
    void *nccl = getenv("SIM_NCCL") != NULL ? dlopen(getenv("SIM_NCCL"), RTLD_NOW) : NULL;
    if (nccl == NULL)
        ms_test_skip("no NCCL");
    int (*const begin)(void) = (int (*)(void))dlsym(nccl, "ncclGroupStart");
    int (*const end)(void) = (int (*)(void))dlsym(nccl, "ncclGroupEnd");
    start();
    const CUdeviceptr address = allocate(BYTES);
    put_words(address, BYTES, 5);
    add(address, BYTES, 1);
    CHECK_EQ(begin(), 0);
    fails_with(NULL, "an NCCL group of the program is open");
    CHECK_EQ(end(), 0);
    CHECK_EQ(suspend_to(NULL).stored, BYTES);
    resume();
    check_words(address, BYTES, 6);
}

MS_TEST(twice_is_once)
{
    start();
    const CUdeviceptr address = allocate(BYTES);
    put_words(address, BYTES, 5);
    add(address, BYTES, 1);
    CHECK_EQ(suspend_to(NULL).freed, BYTES);
    CHECK_EQ(suspend_to(NULL).freed, 0);
    CHECK_EQ(read_word(address), word_of(6, 0));
    CHECK(suspend_to(NULL).freed > 0);
    resume();
    resume();
    check_words(address, BYTES, 6);
}

MS_TEST(with_nothing_to_suspend)
{
    CHECK_EQ(metashard_suspend(NULL, NULL, 0), 0);
    CHECK_EQ(metashard_resume(), 0);
    start();
    CHECK_EQ(suspend_to(NULL).freed, 0);
    resume();
}

MS_TEST(stored_bytes_are_freed_with_their_allocation)
{
    start();
    const CUdeviceptr address = allocate(BYTES), other = allocate(BYTES);
    put_words(address, BYTES, 5);
    put_words(other, BYTES, 6);
    add(address, BYTES, 1);
    add(other, BYTES, 1);
    suspend_to(NULL);
    OK(cuMemFree(address));
    resume();
    check_words(other, BYTES, 7);
    OK(cuMemFree(other));
}

MS_TEST(a_folder_takes_what_waits)
{
    char folder[] = "/tmp/suspend-XXXXXX";
    start();
    CHECK(mkdtemp(folder) != NULL);
    const CUdeviceptr address = allocate(BYTES);
    put_words(address, BYTES, 5);
    add(address, BYTES, 1);
    for (int round = 0; round < 2; round++) {
        CHECK_EQ(suspend_to(folder).stored, BYTES);
        CHECK(!is_in_memory(address));
        CHECK_EQ(rmdir(folder), 0); /* the file has no name */
        CHECK_EQ(mkdir(folder, 0700), 0);
        add(address, BYTES, 1);
    }
    check_words(address, BYTES, 8);
    fails_with("/nowhere", "/nowhere");
    fails_with("here", "absolute");
    CHECK_EQ(rmdir(folder), 0);
}

MS_TEST(a_folder_that_is_full)
{
    char folder[] = "/tmp/suspend-XXXXXX";
    const struct rlimit limit = {.rlim_cur = 6 * MIB, .rlim_max = 6 * MIB};
    start();
    CHECK(mkdtemp(folder) != NULL);
    const CUdeviceptr address = allocate(BYTES);
    put_words(address, BYTES, 5);
    add(address, BYTES, 1);
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    fails_with(folder, "File too large");
    add(address, BYTES, 1);
    check_words(address, BYTES, 7);
    CHECK_EQ(suspend_to(NULL).stored, BYTES);
    resume();
    check_words(address, BYTES, 7);
    CHECK_EQ(rmdir(folder), 0);
}

MS_TEST(memory_of_others_stays)
{
    start();
    const CUdeviceptr shared = allocate(BYTES), own = allocate(BYTES);
    CUipcMemHandle handle;
    put_words(shared, BYTES, 5);
    put_words(own, BYTES, 6);
    OK(cuIpcGetMemHandle(&handle, shared));
    add(own, BYTES, 1);
    const struct told told = suspend_to(NULL);
    CHECK_EQ(told.exported, BYTES);
    CHECK_EQ(told.freed, BYTES);
    CHECK(is_in_memory(shared));
    resume();
    check_words(shared, BYTES, 5);
    check_words(own, BYTES, 7);
}

MS_TEST(a_handle_that_the_driver_knows_stays)
{
    int descriptor;
    start();
    const CUdeviceptr address = reserve(2 * BYTES);
    const CUmemGenericAllocationHandle shared = create_shareable(BYTES);
    map(address, BYTES, shared);
    map_new(address + BYTES, BYTES);
    put_words(address, 2 * BYTES, 5);
    OK(cuMemExportToShareableHandle(&descriptor, shared, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                    0));
    add(address, 2 * BYTES, 1);
    const struct told told = suspend_to(NULL);
    CHECK_EQ(told.mapped, BYTES);
    CHECK_EQ(told.freed, BYTES);
    CHECK(is_in_memory(address));
    CHECK(!is_in_memory(address + BYTES));
    resume();
    check_words(address, 2 * BYTES, 6);
    close(descriptor);
}

/* --- other threads */

static _Atomic bool is_over;

struct worker {
    CUcontext context;
    CUdeviceptr address;
    uint32_t launches;
};

static void *work(void *argument)
{
    struct worker *worker = argument;
    CUstream stream;
    OK(cuCtxSetCurrent(worker->context));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    const CUfunction add_in_place = kernel("add_in_place32");
    while (!is_over) {
        OK(try_add(add_in_place, worker->address, 4 * MIB, 1, stream));
        worker->launches++;
        if (worker->launches % 16 == 0)
            OK(cuStreamSynchronize(stream));
    }
    OK(cuStreamSynchronize(stream));
    return NULL;
}

MS_TEST(a_thread_that_launches_meanwhile)
{
    enum { THREADS = 2, ROUNDS = 20 };
    struct worker workers[THREADS];
    pthread_t threads[THREADS];
    const CUcontext context = start();
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){context, allocate(4 * MIB), 0};
        put_words(workers[i].address, 4 * MIB, 0);
        CHECK_EQ(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int round = 0; round < ROUNDS;
         round++) /* the first one does not know the calls under way */
        if (metashard_suspend(NULL, NULL, 0) != 0)
            ms_test_fail(__FILE__, __LINE__, "metashard_suspend: %s", metashard_error());
    is_over = true;
    for (int i = 0; i < THREADS; i++) {
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
        check_words(workers[i].address, 4 * MIB, workers[i].launches);
    }
}

static void be_slow(void *unused)
{
    (void)unused;
    nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
}

enum { AHEAD_BYTES = 64 << 10 };

/* The device always has some 80 ms to do. */
static void *work_ahead(void *argument)
{
    enum { AHEAD = 8 };
    struct worker *worker = argument;
    CUstream stream;
    CUevent events[AHEAD];
    OK(cuCtxSetCurrent(worker->context));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < AHEAD; i++)
        OK(cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
    const CUfunction add_in_place = kernel("add_in_place32");
    for (; !is_over; worker->launches++) {
        const CUevent event = events[worker->launches % AHEAD];
        OK(cuEventSynchronize(event));
        OK(cuLaunchHostFunc(stream, be_slow, NULL));
        OK(try_add(add_in_place, worker->address, AHEAD_BYTES, 1, stream));
        OK(cuEventRecord(event, stream));
    }
    OK(cuStreamSynchronize(stream));
    return NULL;
}

MS_TEST(a_thread_that_queues_more_than_the_device_does)
{
    enum { ROUNDS = 3 };
    pthread_t thread;
    const CUcontext context = start();
    struct worker worker = {context, allocate(AHEAD_BYTES), 0};
    put_words(worker.address, AHEAD_BYTES, 0);
    CHECK_EQ(pthread_create(&thread, NULL, work_ahead, &worker), 0);
    for (int round = 0; round < ROUNDS; round++) {
        nanosleep(&(struct timespec){.tv_nsec = 200 * 1000 * 1000}, NULL);
        if (metashard_suspend(NULL, NULL, 0) != 0)
            ms_test_fail(__FILE__, __LINE__, "metashard_suspend: %s", metashard_error());
    }
    is_over = true;
    CHECK_EQ(pthread_join(thread, NULL), 0);
    check_words(worker.address, AHEAD_BYTES, worker.launches);
}

/* The call of a thread that has passed the shim, and waits before the driver. */
struct late_call {
    const char *function;
    CUcontext context;
    CUdeviceptr address;
    const void *words;      /* NULL: it launches */
    _Atomic bool has_ended; /* what is to wait for the call */
};

static void *call_late(void *argument)
{
    struct late_call *call = argument;
    OK(cuCtxSetCurrent(call->context));
    if (call->words == NULL)
        OK(try_add(kernel("add_in_place32"), call->address, BYTES, 1, NULL));
    else
        OK(cuMemcpyHtoD(call->address, call->words, BYTES));
    return NULL;
}

static void *suspend_behind(void *argument)
{
    struct late_call *call = argument;
    OK(cuCtxSetCurrent(call->context));
    suspend_to(NULL);
    call->has_ended = true;
    return NULL;
}

static void check_late_call(struct late_call call)
{
    const struct timespec moment = {.tv_nsec = 200 * 1000 * 1000};
    pthread_t caller, suspender;
    put_words(call.address, BYTES, 5);
    add(call.address, BYTES, 0);
    CHECK(simcuda_gate_close(call.function, 1));
    CHECK_EQ(pthread_create(&caller, NULL, call_late, &call), 0);
    CHECK(simcuda_gate_wait(10000));
    CHECK_EQ(pthread_create(&suspender, NULL, suspend_behind, &call), 0);
    nanosleep(&moment, NULL);
    CHECK(!call.has_ended);
    simcuda_gate_open();
    CHECK_EQ(pthread_join(caller, NULL), 0);
    CHECK_EQ(pthread_join(suspender, NULL), 0);
    CHECK(!is_in_memory(call.address));
    resume();
    check_words(call.address, BYTES, 6);
}

/* However long it takes to reach the driver: nothing that it writes is lost. */
MS_TEST(a_call_under_way_is_waited_for)
{
    char path[16];
    const CUcontext context = start();
    const CUdeviceptr address = allocate(BYTES);
    const void *words = map_file(BYTES, 6, path);
    CHECK_EQ(unlink(path), 0);
    put_words(address, BYTES, 5);
    add(address, BYTES, 1);
    suspend_to(NULL); /* calls are counted from now on */
    resume();
    check_late_call((struct late_call){"cuLaunchKernel", context, address, .words = NULL});
    check_late_call((struct late_call){"cuMemcpyHtoD_v2", context, address, .words = words});
}

static void *take_plan(void *argument)
{
    struct late_call *call = argument;
    CHECK_EQ(metashard_plan_text(plan, strlen(plan)), 0);
    call->has_ended = true;
    return NULL;
}

/* A plan that comes late and enforces compares what is in memory, and gives back what is equal. */
MS_TEST(a_plan_waits_for_a_call_under_way)
{
    const char *mode = getenv("METASHARD_PLAN_MODE");
    if (mode == NULL || strcmp(mode, "enforce") != 0)
        ms_test_skip("for METASHARD_PLAN_MODE=enforce");
    const struct timespec moment = {.tv_nsec = 200 * 1000 * 1000};
    char path[16];
    pthread_t caller, planner;
    struct late_call call = {"cuLaunchKernel", start(), allocate(BYTES), .words = NULL};
    OK(cuMemcpyHtoD(call.address, map_file(BYTES, 5, path), BYTES));
    add(call.address, BYTES, 0);
    CHECK_EQ(metashard_name(call.address, BYTES, "t", "U8", (uint64_t[]){BYTES}, 1), 0);
    CHECK(simcuda_gate_close(call.function, 1));
    CHECK_EQ(pthread_create(&caller, NULL, call_late, &call), 0);
    CHECK(simcuda_gate_wait(10000));
    CHECK_EQ(pthread_create(&planner, NULL, take_plan, &call), 0);
    nanosleep(&moment, NULL);
    CHECK(!call.has_ended);
    simcuda_gate_open();
    CHECK_EQ(pthread_join(caller, NULL), 0);
    CHECK_EQ(pthread_join(planner, NULL), 0);
    check_words(call.address, BYTES, 6);
    CHECK_EQ(unlink(path), 0);
}

static void *suspend_again(void *unused)
{
    for (int i = 0; i < 10; i++) {
        CHECK_EQ(metashard_suspend(NULL, NULL, 0), 0);
        CHECK_EQ(metashard_resume(), 0);
    }
    return unused;
}

MS_TEST(two_callers)
{
    pthread_t threads[2];
    start();
    const CUdeviceptr address = allocate(BYTES);
    put_words(address, BYTES, 5);
    add(address, BYTES, 1);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, suspend_again, NULL), 0);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    check_words(address, BYTES, 6);
}
