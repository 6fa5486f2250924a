/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that processes share by cuIpcGetMemHandle. Each test gives orders to processes of its own
 * (partners), which say what the driver answered. Runs with the shim and without it.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shim/metashard.h"
#include "tests/driver/differential/mappings.h"

extern char **environ;

#define BYTES (6 * MIB + 12344)

enum what {
    START,    /* at: the device */
    ALLOCATE, /* -> at */
    ALLOCATE_POOLED,
    FREE,
    FREE_LATER, /* in the order of a stream */
    SHARE,      /* at -> handle */
    SHARE_NOWHERE,
    OPEN, /* handle, flags -> at */
    OPEN_OLD,
    OPEN_TWICE, /* by two threads at once -> at; value: the other one's */
    OPEN_NOWHERE,
    CLOSE,
    PUT,         /* bytes at `at`: words from seed on, by a copy */
    PUT_LATER,   /* the same by a copy on the device, in a stream, from new memory */
    ADD,         /* seed, to each word, by a kernel */
    CHECK_WORDS, /* -> value: words that are others */
    COPY,        /* from at to a new allocation -> at */
    ATTRIBUTE,   /* flags: which -> value */
    RANGE,       /* -> at, bytes */
    FREE_BYTES,  /* -> bytes */
    BEGIN_CAPTURE,
    END_CAPTURE,
    LEAVE_CONTEXT, /* none is current */
    ENTER_CONTEXT,
    END_CONTEXT, /* and another one is current */
    UNMAP,
    RETAIN,
    FORK, /* a child that ends at once, by exit */
    FORK_AND_STAY,
    SUSPEND, /* -> bytes: that were given back; value: that stay, as others use them */
    RESUME,
    END,
};

struct order {
    enum what what;
    unsigned flags;
    uint32_t seed;
    CUdeviceptr at;
    size_t bytes;
    CUipcMemHandle handle;
};

struct report {
    CUresult result;
    CUdeviceptr at;
    size_t bytes;
    uint64_t value;
    CUipcMemHandle handle;
};

/* --- in a partner */

static struct {
    CUcontext context;
    CUstream captured;
    CUfunction add;
    CUdevice device;
} own;

static CUresult begin(CUdevice device)
{
    own.device = device;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&own.context, device));
    OK(cuCtxSetCurrent(own.context));
    own.add = kernel("add_in_place32");
    return CUDA_SUCCESS;
}

static uint64_t number_behind(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    CHECK(at != NULL);
    return strtoull(at + strlen(key), NULL, 10);
}

static CUresult suspend(struct report *report)
{
    char told[1024];
    if (metashard_suspend(NULL, told, sizeof(told)) != 0)
        return CUDA_ERROR_UNKNOWN;
    report->bytes = number_behind(told, "\"freed_bytes\": ");
    report->value = number_behind(told, "\"stays_exported_bytes\": ");
    return CUDA_SUCCESS;
}

static uint64_t count_others(CUdeviceptr at, size_t bytes, uint32_t seed)
{
    uint64_t count = 0;
    CHECK(bytes <= sizeof(mappings_words) * 2);
    static uint32_t words[2 * MAPPINGS_WORDS];
    OK(cuMemcpyDtoH(words, at, bytes));
    for (size_t i = 0; i < bytes / 4; i++)
        count += words[i] != word_of(seed, i);
    return count;
}

static CUresult put_later(CUdeviceptr at, size_t bytes, uint32_t seed)
{
    CUstream stream;
    CUdeviceptr from;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&from, bytes));
    put_words(from, bytes, seed);
    const CUresult result = cuMemcpyDtoDAsync(at, from, bytes, stream);
    OK(cuStreamSynchronize(stream));
    OK(cuMemFree(from));
    OK(cuStreamDestroy(stream));
    return result;
}

/* The other processes wait for none of this one's streams. */
static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    const CUresult result = cuMemcpyDtoD(to, from, bytes);
    return result == CUDA_SUCCESS ? cuCtxSynchronize() : result;
}

struct opening {
    const struct order *order;
    CUdeviceptr at;
    CUresult result;
};

static void *open_here(void *argument)
{
    struct opening *opening = argument;
    OK(cuCtxSetCurrent(own.context));
    opening->result =
        cuIpcOpenMemHandle_v2(&opening->at, opening->order->handle, opening->order->flags);
    return NULL;
}

static CUresult open_twice(const struct order *order, struct report *report)
{
    pthread_t threads[2];
    struct opening openings[2] = {{.order = order}, {.order = order}};
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, open_here, &openings[i]), 0);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    report->at = openings[0].at;
    report->value = openings[1].at;
    return openings[0].result != CUDA_SUCCESS ? openings[0].result : openings[1].result;
}

/* By the name of CUDA 4.1. */
static CUresult open_as_before(const struct order *order, struct report *report)
{
    CUresult (*before)(CUdeviceptr *, CUipcMemHandle, unsigned);
    *(void **)&before = dlsym(RTLD_DEFAULT, "cuIpcOpenMemHandle");
    CHECK(before != NULL);
    return before(&report->at, order->handle, order->flags);
}

static CUresult begin_capture(void)
{
    OK(cuStreamCreate(&own.captured, CU_STREAM_NON_BLOCKING));
    return cuStreamBeginCapture(own.captured, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

static CUresult end_capture(void)
{
    CUgraph graph = NULL;
    const CUresult result = cuStreamEndCapture(own.captured, &graph);
    if (graph != NULL)
        OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(own.captured));
    return result;
}

static CUresult end_context(void)
{
    OK(cuDevicePrimaryCtxReset(own.device));
    OK(cuDevicePrimaryCtxRetain(&own.context, own.device));
    return cuCtxSetCurrent(own.context);
}

static CUresult fork_child(bool stays, struct report *report)
{
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        if (stays)
            sleep(60);
        exit(0);
    }
    report->value = (uint64_t)child;
    if (!stays)
        CHECK_EQ(waitpid(child, NULL, 0), child);
    return CUDA_SUCCESS;
}

static CUresult obey(const struct order *order, struct report *report)
{
    CUmemGenericAllocationHandle handle;
    switch (order->what) {
    case START:
        return begin((CUdevice)order->at);
    case ALLOCATE:
        return cuMemAlloc(&report->at, order->bytes);
    case ALLOCATE_POOLED:
        OK(cuMemAllocAsync(&report->at, order->bytes, NULL));
        return cuCtxSynchronize();
    case FREE:
        return cuMemFree(order->at);
    case FREE_LATER:
        return cuMemFreeAsync(order->at, NULL);
    case SHARE:
        return cuIpcGetMemHandle(&report->handle, order->at);
    case SHARE_NOWHERE:
        return cuIpcGetMemHandle(NULL, order->at);
    case OPEN:
        return cuIpcOpenMemHandle_v2(&report->at, order->handle, order->flags);
    case OPEN_OLD:
        return open_as_before(order, report);
    case OPEN_TWICE:
        return open_twice(order, report);
    case OPEN_NOWHERE:
        return cuIpcOpenMemHandle_v2(NULL, order->handle, order->flags);
    case CLOSE:
        return cuIpcCloseMemHandle(order->at);
    case PUT:
        put_words(order->at, order->bytes, order->seed);
        return CUDA_SUCCESS;
    case PUT_LATER:
        return put_later(order->at, order->bytes, order->seed);
    case ADD:
        OK(try_add(own.add, order->at, order->bytes, order->seed, NULL));
        return cuCtxSynchronize();
    case CHECK_WORDS:
        report->value = count_others(order->at, order->bytes, order->seed);
        return CUDA_SUCCESS;
    case COPY:
        OK(cuMemAlloc(&report->at, order->bytes));
        return copy(report->at, order->at, order->bytes);
    case ATTRIBUTE:
        return cuPointerGetAttribute(&report->value, (CUpointer_attribute)order->flags, order->at);
    case RANGE:
        return cuMemGetAddressRange(&report->at, &report->bytes, order->at);
    case FREE_BYTES:
        return cuMemGetInfo(&report->bytes, &(size_t){0});
    case BEGIN_CAPTURE:
        return begin_capture();
    case END_CAPTURE:
        return end_capture();
    case LEAVE_CONTEXT:
        return cuCtxSetCurrent(NULL);
    case ENTER_CONTEXT:
        return cuCtxSetCurrent(own.context);
    case END_CONTEXT:
        return end_context();
    case UNMAP:
        return cuMemUnmap(order->at, order->bytes);
    case RETAIN:
        return cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)order->at);
    case SUSPEND:
        return suspend(report);
    case RESUME:
        return metashard_resume() == 0 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
    case FORK:
    case FORK_AND_STAY:
        return fork_child(order->what == FORK_AND_STAY, report);
    default:
        exit(0);
    }
}

/* Before main, where there is the variable: this process is a partner. */
__attribute__((constructor(65535))) static void be_partner(void)
{
    struct order order;
    const char *channel = getenv("IPC_PARTNER");
    if (channel == NULL)
        return;
    const int file = atoi(channel);
    while (read(file, &order, sizeof(order)) == sizeof(order)) {
        struct report report = {0};
        report.result = obey(&order, &report);
        if (write(file, &report, sizeof(report)) != sizeof(report))
            break;
    }
    exit(0);
}

/* --- in a test */

struct partner {
    pid_t process;
    int channel;
};

static struct partner start_partner_with(const char *variable)
{
    int pair[2];
    char channel[32], *environment[256];
    size_t count = 0;
    struct partner partner;
    posix_spawn_file_actions_t actions;
    char *arguments[] = {(char *)"partner", NULL};
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    snprintf(channel, sizeof(channel), "IPC_PARTNER=3");
    environment[count++] = channel;
    if (variable != NULL)
        environment[count++] = (char *)(uintptr_t)variable;
    for (char **at = environ; *at != NULL && count < 255; at++)
        environment[count++] = *at;
    environment[count] = NULL;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pair[1], 3);
    CHECK_EQ(
        posix_spawn(&partner.process, "/proc/self/exe", &actions, NULL, arguments, environment), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(pair[1]);
    partner.channel = pair[0];
    return partner;
}

static struct report give(struct partner partner, struct order order)
{
    struct report report;
    CHECK_EQ(write(partner.channel, &order, sizeof(order)), sizeof(order));
    CHECK_EQ(read(partner.channel, &report, sizeof(report)), sizeof(report));
    return report;
}

static struct report fine(int line, struct partner partner, struct order order)
{
    const struct report report = give(partner, order);
    if (report.result != CUDA_SUCCESS)
        ms_test_fail(__FILE__, line, "the driver answers %d", (int)report.result);
    return report;
}

#define GIVE(partner, ...) give(partner, (struct order){__VA_ARGS__})
#define FINE(partner, ...) fine(__LINE__, partner, (struct order){__VA_ARGS__})
#define LAZY .flags = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS

static struct partner start_partner_on(CUdevice device)
{
    const struct partner partner = start_partner_with(NULL);
    FINE(partner, START, .at = (CUdeviceptr)device);
    return partner;
}

static struct partner start_partner(void)
{
    return start_partner_on(0);
}

static void end_partner(struct partner partner)
{
    int status;
    const struct order end = {END};
    CHECK_EQ(write(partner.channel, &end, sizeof(end)), sizeof(end));
    CHECK_EQ(waitpid(partner.process, &status, 0), partner.process);
    CHECK_EQ(status, 0);
    close(partner.channel);
}

static void kill_partner(struct partner partner)
{
    kill(partner.process, SIGKILL);
    CHECK_EQ(waitpid(partner.process, NULL, 0), partner.process);
    close(partner.channel);
}

static void check_there(struct partner partner, CUdeviceptr at, size_t bytes, uint32_t seed)
{
    CHECK_EQ(FINE(partner, CHECK_WORDS, .at = at, .bytes = bytes, .seed = seed).value, 0);
}

/* An allocation with words from the seed on, which is deferred where the shim is there. */
static CUdeviceptr make(struct partner partner, uint32_t seed)
{
    const CUdeviceptr at = FINE(partner, ALLOCATE, .bytes = BYTES).at;
    FINE(partner, PUT, .at = at, .bytes = BYTES, .seed = seed);
    return at;
}

static CUipcMemHandle share(struct partner partner, CUdeviceptr at)
{
    return FINE(partner, SHARE, .at = at).handle;
}

static CUdeviceptr open_in(struct partner partner, CUipcMemHandle handle)
{
    return FINE(partner, OPEN, .handle = handle, LAZY).at;
}

MS_TEST(an_opened_allocation_has_bytes_copied_before)
{
    const struct partner owner = start_partner(), other = start_partner();
    const CUdeviceptr at = make(owner, 5);
    const CUdeviceptr there = open_in(other, share(owner, at));
    check_there(other, there, BYTES, 5);
    check_there(owner, at, BYTES, 5);
    FINE(other, CLOSE, .at = there);
    end_partner(other);
    end_partner(owner);
}

/* Its memory comes in several handles of the driver's. */
MS_TEST(an_opened_allocation_partly_in_memory_is_there)
{
    const struct partner owner = start_partner(), other = start_partner();
    const CUdeviceptr at = make(owner, 9);
    FINE(owner, CHECK_WORDS, .at = at + 2 * MIB, .bytes = 64, .seed = 9);
    FINE(owner, CHECK_WORDS, .at = at + 6 * MIB, .bytes = 64, .seed = 9);
    const CUdeviceptr there = open_in(other, share(owner, at));
    check_there(other, there, BYTES, 9);
    FINE(other, PUT, .at = there, .bytes = BYTES, .seed = 10);
    check_there(owner, at, BYTES, 10);
    end_partner(other);
    end_partner(owner);
}

MS_TEST(each_sees_what_the_other_writes)
{
    const struct partner owner = start_partner(), other = start_partner();
    const CUdeviceptr at = make(owner, 1);
    const CUdeviceptr there = open_in(other, share(owner, at));
    FINE(owner, PUT, .at = at, .bytes = BYTES, .seed = 100);
    check_there(other, there, BYTES, 100);
    FINE(other, PUT, .at = there, .bytes = BYTES, .seed = 200);
    check_there(owner, at, BYTES, 200);
    FINE(owner, PUT_LATER, .at = at, .bytes = BYTES, .seed = 300);
    check_there(other, there, BYTES, 300);
    FINE(other, PUT_LATER, .at = there, .bytes = BYTES, .seed = 400);
    check_there(owner, at, BYTES, 400);
    FINE(other, ADD, .at = there, .bytes = BYTES, .seed = 7);
    check_there(owner, at, BYTES, 407);
    FINE(owner, ADD, .at = at, .bytes = BYTES, .seed = 7);
    check_there(other, there, BYTES, 414);
    end_partner(other);
    end_partner(owner);
}

/* A copy of it is what it was then. */
MS_TEST(a_copy_of_opened_memory_is_made_at_once)
{
    const struct partner owner = start_partner(), other = start_partner();
    const CUdeviceptr at = make(owner, 1);
    const CUdeviceptr there = open_in(other, share(owner, at));
    const CUdeviceptr copy = FINE(other, COPY, .at = there, .bytes = BYTES).at;
    const CUdeviceptr own_copy = FINE(owner, COPY, .at = at, .bytes = BYTES).at;
    FINE(other, PUT, .at = there, .bytes = BYTES, .seed = 50);
    check_there(other, copy, BYTES, 1);
    check_there(owner, own_copy, BYTES, 1);
    end_partner(other);
    end_partner(owner);
}

MS_TEST(the_handle_of_an_allocation_is_always_the_same)
{
    const struct partner owner = start_partner();
    const CUdeviceptr at = make(owner, 1), second = make(owner, 2);
    const CUipcMemHandle one = share(owner, at), again = share(owner, at + 5 * MIB);
    const CUipcMemHandle another = share(owner, second);
    CHECK_BYTES(&one, &again, sizeof(one));
    CHECK(memcmp(&one, &another, sizeof(one)) != 0);
    end_partner(owner);
}

MS_TEST(users_are_counted)
{
    const struct partner owner = start_partner(), other = start_partner();
    const CUipcMemHandle handle = share(owner, make(owner, 3));
    const CUdeviceptr there = open_in(other, handle);
    CHECK_EQ(open_in(other, handle), there);
    CHECK_EQ(FINE(other, OPEN_OLD, .handle = handle, LAZY).at, there);
    FINE(other, CLOSE, .at = there);
    FINE(other, CLOSE, .at = there);
    check_there(other, there, BYTES, 3);
    FINE(other, CLOSE, .at = there);
    FAILS(GIVE(other, CLOSE, .at = there).result, CUDA_ERROR_INVALID_VALUE);
    FAILS(GIVE(other, RANGE, .at = there).result, CUDA_ERROR_NOT_FOUND);
    const CUdeviceptr again = open_in(other, handle);
    check_there(other, again, BYTES, 3);
    end_partner(other);
    end_partner(owner);
}

MS_TEST(two_threads_open_the_same)
{
    const struct partner owner = start_partner(), other = start_partner();
    const CUipcMemHandle handle = share(owner, make(owner, 3));
    const struct report both = FINE(other, OPEN_TWICE, .handle = handle, LAZY);
    CHECK_EQ(both.at, both.value);
    FINE(other, CLOSE, .at = both.at);
    check_there(other, both.at, BYTES, 3);
    FINE(other, CLOSE, .at = both.at);
    FAILS(GIVE(other, CLOSE, .at = both.at).result, CUDA_ERROR_INVALID_VALUE);
    end_partner(other);
    end_partner(owner);
}

MS_TEST(wrong_calls_fail_as_the_drivers)
{
    const struct partner owner = start_partner(), other = start_partner();
    const CUdeviceptr at = make(owner, 3);
    const CUipcMemHandle handle = share(owner, at);
    FAILS(GIVE(owner, SHARE_NOWHERE, .at = at).result, CUDA_ERROR_INVALID_VALUE);
    FAILS(GIVE(owner, OPEN, .handle = handle, LAZY).result, CUDA_ERROR_INVALID_CONTEXT);
    FAILS(GIVE(other, OPEN, .handle = handle).result, CUDA_ERROR_INVALID_VALUE);
    FAILS(GIVE(other, OPEN, .handle = handle, .flags = 6).result, CUDA_ERROR_INVALID_VALUE);
    FAILS(GIVE(other, OPEN_NOWHERE, .handle = handle, LAZY).result, CUDA_ERROR_INVALID_VALUE);
    FAILS(GIVE(owner, CLOSE, .at = at).result, CUDA_ERROR_INVALID_VALUE);
    const CUdeviceptr there = open_in(other, handle);
    FINE(other, LEAVE_CONTEXT);
    FAILS(GIVE(other, OPEN, .handle = handle, LAZY).result, CUDA_ERROR_INVALID_CONTEXT);
    FAILS(GIVE(other, CLOSE, .at = there).result, CUDA_ERROR_INVALID_CONTEXT);
    FINE(other, ENTER_CONTEXT);
    FINE(owner, LEAVE_CONTEXT);
    FAILS(GIVE(owner, SHARE, .at = at).result, CUDA_ERROR_INVALID_CONTEXT);
    FINE(owner, ENTER_CONTEXT);
    FAILS(GIVE(other, CLOSE, .at = there + 4096).result, CUDA_ERROR_INVALID_VALUE);
    check_there(other, there, BYTES, 3);
    end_partner(other);
    end_partner(owner);
}

static uint64_t ask(struct partner partner, CUpointer_attribute which, CUdeviceptr at)
{
    return FINE(partner, ATTRIBUTE, .flags = (unsigned)which, .at = at).value;
}

MS_TEST(opened_memory_is_described_as_the_drivers)
{
    const struct partner owner = start_partner(), other = start_partner();
    const CUdeviceptr at = make(owner, 3);
    CHECK_EQ(ask(owner, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at), 1);
    const CUdeviceptr there = open_in(other, share(owner, at)), inside = there + 3 * MIB + 8;
    const struct report range = FINE(other, RANGE, .at = inside);
    CHECK_EQ(range.at, there);
    CHECK_EQ(range.bytes, BYTES);
    CHECK_EQ(ask(other, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside), CU_MEMORYTYPE_DEVICE);
    CHECK_EQ(ask(other, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside), there);
    CHECK_EQ(ask(other, CU_POINTER_ATTRIBUTE_RANGE_SIZE, inside), BYTES);
    CHECK_EQ(ask(other, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, inside), 0);
    CHECK_EQ(ask(other, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, inside), 0);
    CHECK_EQ(ask(other, CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, inside), 0);
    CHECK_EQ(ask(other, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, inside), 0);
    CHECK_EQ(ask(other, CU_POINTER_ATTRIBUTE_MAPPED, inside), 1);
    CHECK(ask(other, CU_POINTER_ATTRIBUTE_CONTEXT, inside) != 0);
    FAILS(GIVE(other, RANGE, .at = there + BYTES).result, CUDA_ERROR_NOT_FOUND);
    end_partner(other);
    end_partner(owner);
}

/* A range of addresses of the driver's own stands behind it, and the last granule. */
MS_TEST(opened_memory_is_nothing_else)
{
    const struct partner owner = start_partner(), other = start_partner();
    const CUipcMemHandle handle = share(owner, make(owner, 3));
    const CUdeviceptr there = open_in(other, handle);
    FAILS(GIVE(other, SHARE, .at = there).result, CUDA_ERROR_INVALID_VALUE);
    FAILS(GIVE(other, UNMAP, .at = there, .bytes = 2 * MIB).result, CUDA_ERROR_INVALID_VALUE);
    FAILS(GIVE(other, RETAIN, .at = there).result, CUDA_ERROR_INVALID_VALUE);
    FAILS(GIVE(other, FREE, .at = there).result, CUDA_ERROR_INVALID_VALUE);
    FAILS(GIVE(other, FREE_LATER, .at = there).result, CUDA_ERROR_INVALID_VALUE);
    FAILS(GIVE(other, COPY, .at = there + BYTES - 64, .bytes = 128).result,
          CUDA_ERROR_INVALID_VALUE);
    check_there(other, there, BYTES, 3);
    end_partner(other);
    end_partner(owner);
}

MS_TEST(opened_memory_takes_none_of_the_device)
{
    const struct partner owner = start_partner(), other = start_partner();
    const CUipcMemHandle handle = share(owner, make(owner, 3));
    const size_t before = FINE(other, FREE_BYTES).bytes;
    const CUdeviceptr there = open_in(other, handle);
    CHECK_EQ(FINE(other, FREE_BYTES).bytes, before);
    FINE(other, CLOSE, .at = there);
    CHECK_EQ(FINE(other, FREE_BYTES).bytes, before);
    end_partner(other);
    end_partner(owner);
}

MS_TEST(three_processes_share_one_allocation)
{
    const struct partner owner = start_partner();
    const struct partner others[] = {start_partner(), start_partner(), start_partner()};
    CUdeviceptr there[3];
    const CUdeviceptr at = make(owner, 3);
    const CUipcMemHandle handle = share(owner, at);
    for (int i = 0; i < 3; i++)
        there[i] = open_in(others[i], handle);
    for (uint32_t i = 0; i < 3; i++) {
        FINE(others[i], PUT, .at = there[i], .bytes = BYTES, .seed = 1000 * i);
        check_there(owner, at, BYTES, 1000 * i);
        check_there(others[(i + 1) % 3], there[(i + 1) % 3], BYTES, 1000 * i);
    }
    for (int i = 0; i < 3; i++)
        end_partner(others[i]);
    check_there(owner, at, BYTES, 2000);
    end_partner(owner);
}

MS_TEST(several_allocations_are_opened_and_closed_in_any_order)
{
    enum { COUNT = 5 };
    const struct partner owner = start_partner(), other = start_partner();
    CUdeviceptr there[COUNT];
    for (uint32_t i = 0; i < COUNT; i++)
        there[i] = open_in(other, share(owner, make(owner, i)));
    FINE(other, CLOSE, .at = there[2]);
    FINE(other, CLOSE, .at = there[0]);
    FAILS(GIVE(other, CLOSE, .at = there[2]).result, CUDA_ERROR_INVALID_VALUE);
    check_there(other, there[1], BYTES, 1);
    FINE(other, CLOSE, .at = there[4]);
    check_there(other, there[3], BYTES, 3);
    check_there(other, there[1], BYTES, 1);
    end_partner(other);
    end_partner(owner);
}

MS_TEST(the_owner_frees_it_first)
{
    const struct partner owner = start_partner(), other = start_partner();
    const CUdeviceptr at = make(owner, 3);
    const CUipcMemHandle handle = share(owner, at);
    const CUdeviceptr there = open_in(other, handle);
    FINE(owner, FREE, .at = at);
    const CUdeviceptr next = make(owner, 77);
    check_there(owner, next, BYTES, 77);
    check_there(other, there, BYTES, 3);
    FINE(other, PUT, .at = there, .bytes = BYTES, .seed = 500);
    check_there(owner, next, BYTES, 77);
    FINE(other, CLOSE, .at = there);
    if (device_has_shim()) /* the driver says nothing of that */
        FAILS(GIVE(other, OPEN, .handle = handle, LAZY).result, CUDA_ERROR_MAP_FAILED);
    check_there(other, open_in(other, share(owner, next)), BYTES, 77);
    end_partner(other);
    end_partner(owner);
}

/* Where addresses come again soon. */
MS_TEST(the_handle_of_a_freed_allocation_opens_nothing_else)
{
    if (!device_has_shim())
        ms_test_skip("the driver says nothing of that");
    setenv("SIMCUDA_HINTS", "0", 1);
    const struct partner owner = start_partner(), other = start_partner();
    const CUdeviceptr at = make(owner, 3);
    const CUipcMemHandle handle = share(owner, at);
    FINE(owner, FREE, .at = at);
    const CUdeviceptr next = make(owner, 4);
    CHECK_EQ(next, at);
    share(owner, next);
    FAILS(GIVE(other, OPEN, .handle = handle, LAZY).result, CUDA_ERROR_MAP_FAILED);
    end_partner(other);
    end_partner(owner);
}

MS_TEST(the_owner_dies)
{
    const struct partner owner = start_partner(), other = start_partner();
    const CUipcMemHandle handle = share(owner, make(owner, 3));
    const CUdeviceptr there = open_in(other, handle);
    kill_partner(owner);
    check_there(other, there, BYTES, 3);
    FINE(other, PUT, .at = there, .bytes = BYTES, .seed = 4);
    check_there(other, there, BYTES, 4);
    CHECK_EQ(open_in(other, handle), there);
    FINE(other, CLOSE, .at = there);
    FINE(other, CLOSE, .at = there);
    FAILS(GIVE(other, OPEN, .handle = handle, LAZY).result, CUDA_ERROR_MAP_FAILED);
    end_partner(other);
}

/* A child that was forked has the owner's descriptors, and answers nobody. */
MS_TEST(the_owner_dies_and_its_child_lives)
{
    const struct partner owner = start_partner(), other = start_partner();
    struct timespec before, after;
    const CUipcMemHandle handle = share(owner, make(owner, 3));
    const pid_t child = (pid_t)FINE(owner, FORK_AND_STAY).value;
    kill_partner(owner);
    clock_gettime(CLOCK_MONOTONIC, &before);
    FAILS(GIVE(other, OPEN, .handle = handle, LAZY).result, CUDA_ERROR_MAP_FAILED);
    clock_gettime(CLOCK_MONOTONIC, &after);
    kill(child, SIGKILL);
    CHECK(after.tv_sec - before.tv_sec < 20);
    end_partner(other);
}

MS_TEST(the_owner_ends)
{
    const struct partner owner = start_partner(), other = start_partner();
    const CUipcMemHandle handle = share(owner, make(owner, 3));
    const CUdeviceptr there = open_in(other, handle);
    end_partner(owner);
    check_there(other, there, BYTES, 3);
    FINE(other, CLOSE, .at = there);
    FAILS(GIVE(other, OPEN, .handle = handle, LAZY).result, CUDA_ERROR_MAP_FAILED);
    end_partner(other);
}

MS_TEST(an_opener_dies)
{
    const struct partner owner = start_partner(), other = start_partner(), third = start_partner();
    const CUdeviceptr at = make(owner, 3);
    const CUipcMemHandle handle = share(owner, at);
    const CUdeviceptr there = open_in(third, handle);
    open_in(other, handle);
    kill_partner(other);
    check_there(third, there, BYTES, 3);
    FINE(owner, PUT, .at = at, .bytes = BYTES, .seed = 4);
    check_there(third, there, BYTES, 4);
    const struct partner next = start_partner();
    check_there(next, open_in(next, handle), BYTES, 4);
    FINE(owner, FREE, .at = at);
    end_partner(next);
    end_partner(third);
    end_partner(owner);
}

MS_TEST(a_child_of_the_opener_ends)
{
    const struct partner owner = start_partner(), other = start_partner();
    const CUdeviceptr at = make(owner, 3);
    const CUipcMemHandle handle = share(owner, at);
    const CUdeviceptr there = open_in(other, handle);
    FINE(other, FORK);
    check_there(other, there, BYTES, 3);
    FINE(owner, FORK);
    FINE(other, CLOSE, .at = there);
    check_there(other, open_in(other, handle), BYTES, 3);
    check_there(owner, at, BYTES, 3);
    end_partner(other);
    end_partner(owner);
}

MS_TEST(nothing_is_opened_or_closed_during_a_capture)
{
    const struct partner owner = start_partner(), other = start_partner();
    const CUdeviceptr at = make(owner, 3), second = make(owner, 4);
    const CUipcMemHandle handle = share(owner, at);
    const CUdeviceptr there = open_in(other, handle);
    FINE(other, BEGIN_CAPTURE);
    FAILS(GIVE(other, OPEN, .handle = handle, LAZY).result, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    FAILS(GIVE(other, END_CAPTURE).result, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    FINE(other, BEGIN_CAPTURE);
    FAILS(GIVE(other, CLOSE, .at = there).result, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    FAILS(GIVE(other, END_CAPTURE).result, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    check_there(other, there, BYTES, 3);
    /* The owner's capture meanwhile is not disturbed. */
    FINE(owner, BEGIN_CAPTURE);
    const CUipcMemHandle next = share(owner, second);
    check_there(other, open_in(other, next), BYTES, 4);
    FINE(owner, END_CAPTURE);
    end_partner(other);
    end_partner(owner);
}

MS_TEST(the_context_that_has_opened_it_ends)
{
    const struct partner owner = start_partner(), other = start_partner();
    const CUipcMemHandle handle = share(owner, make(owner, 3));
    const CUdeviceptr there = open_in(other, handle);
    FINE(other, END_CONTEXT);
    FAILS(GIVE(other, RANGE, .at = there).result, CUDA_ERROR_NOT_FOUND);
    if (device_has_shim()) /* the simulated driver counts on */
        check_there(other, open_in(other, handle), BYTES, 3);
    end_partner(other);
    end_partner(owner);
}

MS_TEST(memory_of_another_device_is_opened)
{
    setenv("SIMCUDA_DEVICES", "2", 1);
    const struct partner owner = start_partner_on(1), other = start_partner_on(0);
    const CUdeviceptr at = make(owner, 3);
    const CUdeviceptr there = open_in(other, share(owner, at));
    CHECK_EQ(ask(other, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, there), 1);
    check_there(other, there, BYTES, 3);
    FINE(other, ADD, .at = there, .bytes = BYTES, .seed = 5);
    check_there(owner, at, BYTES, 8);
    end_partner(other);
    end_partner(owner);
}

/* Memory that the process has shared stays; so does memory that it has opened. */
MS_TEST(a_process_that_shares_is_suspended)
{
    if (!device_has_shim())
        ms_test_skip("the driver cannot");
    const struct partner owner = start_partner(), other = start_partner();
    const CUdeviceptr at = make(owner, 3), own_at = make(owner, 4), others = make(other, 5);
    FINE(owner, ADD, .at = own_at, .bytes = BYTES, .seed = 1);
    FINE(other, ADD, .at = others, .bytes = BYTES, .seed = 1);
    const CUdeviceptr there = open_in(other, share(owner, at));
    for (int round = 0; round < 2; round++) {
        const struct partner first = round == 0 ? owner : other;
        const struct report told = FINE(first, SUSPEND);
        CHECK(told.bytes >= BYTES / 4096 * 4096);
        CHECK(told.value >= BYTES);
        check_there(round == 0 ? other : owner, round == 0 ? there : at, BYTES, 3);
        FINE(first, RESUME);
    }
    FINE(owner, SUSPEND);
    FINE(other, SUSPEND);
    FINE(other, PUT, .at = there, .bytes = BYTES, .seed = 9);
    check_there(owner, at, BYTES, 9);
    FINE(owner, RESUME);
    check_there(owner, own_at, BYTES, 5);
    check_there(other, others, BYTES, 6);
    end_partner(other);
    end_partner(owner);
}

MS_TEST(an_allocation_of_a_suspended_process_is_opened)
{
    if (!device_has_shim())
        ms_test_skip("the driver cannot");
    const struct partner owner = start_partner(), other = start_partner();
    const CUdeviceptr early = make(owner, 3), late = make(owner, 4);
    FINE(owner, ADD, .at = late, .bytes = BYTES, .seed = 1);
    const CUipcMemHandle handle = share(owner, early);
    FINE(owner, SUSPEND);
    check_there(other, open_in(other, handle), BYTES, 3);
    const CUdeviceptr there = open_in(other, share(owner, late));
    check_there(other, there, BYTES, 5);
    FINE(other, PUT, .at = there, .bytes = BYTES, .seed = 7);
    FINE(owner, RESUME);
    check_there(owner, late, BYTES, 7);
    FINE(owner, FREE, .at = late);
    check_there(other, there, BYTES, 7);
    end_partner(other);
    end_partner(owner);
}

/* Memory that the driver has allocated itself. */
MS_TEST(memory_of_the_drivers_own_is_shared_by_its_handle)
{
    const struct partner owner = start_partner(), other = start_partner();
    const CUdeviceptr at = FINE(owner, ALLOCATE, .bytes = 64 << 10).at;
    FINE(owner, PUT, .at = at, .bytes = 64 << 10, .seed = 3);
    const CUipcMemHandle handle = share(owner, at);
    const CUdeviceptr there = open_in(other, handle);
    CHECK_EQ(open_in(other, handle), there);
    check_there(other, there, 64 << 10, 3);
    FINE(other, CLOSE, .at = there);
    FINE(other, CLOSE, .at = there);
    const CUdeviceptr pooled = FINE(owner, ALLOCATE_POOLED, .bytes = 4 * MIB).at;
    FAILS(GIVE(owner, SHARE, .at = pooled).result, CUDA_ERROR_INVALID_VALUE);
    end_partner(other);
    end_partner(owner);
}

/* Asks by hand. runtime/calls/ipc.c has the parts of a handle. */
static bool is_answered(const CUipcMemHandle *handle, bool knows_secret)
{
    const unsigned char *parts = (const unsigned char *)handle;
    unsigned char message[80] = {0}, answer[64];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = sprintf(address.sun_path + 1, "metashard-");
    for (int i = 16; i < 32; i++)
        length += sprintf(address.sun_path + 1 + length, "%02x", parts[i]);
    memcpy(message, parts + 32, 32); /* the secret, the address, the id; offset 0 */
    message[0] = (unsigned char)(message[0] + !knows_secret);
    const int peer = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK_EQ(connect(peer, (const struct sockaddr *)&address,
                     (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length)),
             0);
    /* Who may not ask finds the connection closed, before the question or behind it. */
    const bool is_good = send(peer, message, sizeof(message), MSG_NOSIGNAL) == sizeof(message) &&
                         recv(peer, answer, sizeof(answer), 0) == sizeof(answer);
    close(peer);
    return is_good;
}

MS_TEST(a_process_without_the_secret_or_of_another_user_gets_nothing)
{
    if (!device_has_shim())
        ms_test_skip("there is no shim");
    int status = 0;
    const struct partner owner = start_partner();
    const CUipcMemHandle handle = share(owner, make(owner, 3));
    CHECK(is_answered(&handle, true));
    CHECK(!is_answered(&handle, false));
    const pid_t child = geteuid() == 0 ? fork() : -1;
    if (child == 0)
        _exit(setresuid(65534, 65534, 65534) == 0 && is_answered(&handle, true));
    if (child > 0)
        CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    CHECK(is_answered(&handle, true));
    end_partner(owner);
}

MS_TEST(a_process_without_the_shim_gets_the_drivers_error)
{
    if (!device_has_shim())
        ms_test_skip("there is no shim");
    const struct partner owner = start_partner(), other = start_partner_with("METASHARD=off");
    FINE(other, START);
    const CUipcMemHandle handle = share(owner, make(owner, 3));
    FAILS(GIVE(other, OPEN, .handle = handle, LAZY).result, CUDA_ERROR_INVALID_HANDLE);
    end_partner(other);
    end_partner(owner);
}
