/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file that was copied to the device is changed from where the driver may not be called: in
 * children that share the program's memory or were forked from it, in signal handlers, in host
 * functions. The device must hold what was copied. Runs the same alone and under the shim.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/robust/overwrite/checkpoint.h"
#include "tools/simcuda/driver/hook.h"

enum { TOO_LONG_S = 100 }; /* more than lease-break-time; a test that hangs is ended by SIGALRM */

/* --- ways to change it, one row each; true if the file was opened and changed */

static bool ends_well(int file)
{
    return file >= 0 && close(file) == 0;
}

static bool by_open(void)
{
    return ends_well(open(path, O_WRONLY | O_TRUNC | O_CLOEXEC));
}

static bool by_open64(void)
{
    return ends_well(open64(path, O_WRONLY | O_CREAT | O_TRUNC, 0600));
}

static bool by_openat(void)
{
    return ends_well(openat(AT_FDCWD, path, O_RDWR | O_TRUNC | O_CLOEXEC));
}

static bool by_openat64(void)
{
    return ends_well(openat64(AT_FDCWD, path, O_RDWR | O_TRUNC | O_CLOEXEC));
}

static bool by_creat(void)
{
    return ends_well(creat(path, 0600));
}

static bool by_truncate(void)
{
    return truncate(path, 0) == 0;
}

static bool by_pwrite(void)
{
    const int file = open(path, O_WRONLY | O_CLOEXEC);
    return file >= 0 && pwrite(file, scratch, WRITTEN, 7) == WRITTEN && close(file) == 0;
}

static bool by_fopen(void)
{
    FILE *file = fopen(path, "r+");
    return file != NULL && fwrite(scratch, 1, WRITTEN, file) == WRITTEN && fclose(file) == 0;
}

static bool by_ftruncate(void)
{
    const int file = open(path, O_RDWR | O_CLOEXEC);
    return file >= 0 && ftruncate(file, 5) == 0 && close(file) == 0;
}

static bool by_store(void)
{
    const int file = open(path, O_RDWR | O_CLOEXEC);
    unsigned char *mapped = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || mapped == MAP_FAILED)
        return false;
    memcpy(mapped, scratch, WRITTEN);
    return munmap(mapped, BYTES) == 0 && close(file) == 0;
}

static const struct {
    const char *name;
    bool (*run)(void);
} ways[] = {
    {"open", by_open},         {"open64", by_open64}, {"openat", by_openat},
    {"openat64", by_openat64}, {"creat", by_creat},   {"truncate", by_truncate},
    {"pwrite", by_pwrite},     {"fopen", by_fopen},   {"ftruncate", by_ftruncate},
    {"a store", by_store},
};
enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

/* Runs a test for each way, in a process of its own: a file that has changed is no source. */
static void for_each_way(void (*test)(bool (*way)(void)))
{
    for (int i = 0; i < WAYS; i++) {
        const pid_t child = fork();
        if (child == 0) {
            alarm(TOO_LONG_S);
            test(ways[i].run);
            exit(0);
        }
        int status;
        CHECK_EQ(waitpid(child, &status, 0), child);
        if (status != 0)
            ms_test_fail(__FILE__, __LINE__, "%s: status %x", ways[i].name, (unsigned)status);
    }
}

static CUdeviceptr begin(void)
{
    make_files();
    device_start();
    return load();
}

/* --- children */

static void expect_child(pid_t child, int wanted)
{
    int status;
    CHECK(child > 0);
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), wanted);
}

static void in_a_vfork_child(bool (*way)(void))
{
    const CUdeviceptr block = begin();
    const pid_t child = vfork();
    if (child == 0)
        _exit(way() ? 0 : 9);
    expect_child(child, 0);
    check_device(block);
}

MS_TEST(a_vfork_child_changes_it)
{
    for_each_way(in_a_vfork_child);
}

static void in_a_forked_child(bool (*way)(void))
{
    const CUdeviceptr block = begin();
    const pid_t child = fork();
    if (child == 0)
        _exit(way() ? 0 : 9);
    expect_child(child, 0);
    check_device(block);
}

MS_TEST(a_forked_child_changes_it)
{
    for_each_way(in_a_forked_child);
}

static int run_way(void *way)
{
    return (*(bool (**)(void))way)() ? 0 : 9;
}

/* It shares the memory, and the program goes on meanwhile. */
static void in_a_cloned_child(bool (*way)(void))
{
    static _Alignas(64) char stack[256 << 10];
    const CUdeviceptr block = begin();
    const pid_t child = clone(run_way, stack + sizeof(stack), CLONE_VM | SIGCHLD, &way);
    expect_child(child, 0);
    check_device(block);
}

MS_TEST(a_child_with_the_same_memory_changes_it)
{
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    ms_test_skip("sanitizers know no such children");
#endif
    for_each_way(in_a_cloned_child);
}

/* As subprocess and shells do: the standard output of a program. */
MS_TEST(a_vfork_child_redirects_and_executes)
{
    alarm(TOO_LONG_S);
    const CUdeviceptr block = begin();
    const pid_t child = vfork();
    if (child == 0) {
        const int file = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
        if (file < 0 || dup2(file, STDOUT_FILENO) < 0)
            _exit(9);
        execl("/bin/echo", "echo", "new", (char *)NULL);
        _exit(8);
    }
    expect_child(child, 0);
    check_device(block);
}

/* A child that opens nothing brings nothing in. */
MS_TEST(a_vfork_child_executes_at_once)
{
    const CUdeviceptr block = begin();
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(8);
    }
    expect_child(child, 0);
    child = vfork();
    if (child == 0) {
        execl("/nowhere/true", "true", (char *)NULL);
        _exit(127);
    }
    expect_child(child, 127);
    CHECK(!device_has_shim() || backed_bytes() == 0);
    check_device(block);
}

MS_TEST(a_spawned_process_redirects_to_it)
{
    alarm(TOO_LONG_S);
    posix_spawn_file_actions_t actions;
    char *const arguments[] = {"echo", "new", NULL};
    const CUdeviceptr block = begin();
    pid_t child;
    CHECK_EQ(posix_spawn_file_actions_init(&actions), 0);
    CHECK_EQ(posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, path, O_WRONLY | O_TRUNC, 0),
             0);
    CHECK_EQ(posix_spawn(&child, "/bin/echo", &actions, NULL, arguments, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    expect_child(child, 0);
    check_device(block);
}

static void check_shell(bool is_stream)
{
    char line[128];
    alarm(TOO_LONG_S);
    const CUdeviceptr block = begin();
    snprintf(line, sizeof(line), "cat >'%s' </dev/null", path);
    if (is_stream) {
        FILE *stream = popen(line, "w");
        CHECK(stream != NULL);
        CHECK_EQ(pclose(stream), 0);
    } else {
        CHECK_EQ(system(line), 0);
    }
    check_device(block);
}

MS_TEST(a_command_of_system_changes_it)
{
    check_shell(false);
}

MS_TEST(a_command_of_popen_changes_it)
{
    check_shell(true);
}

/* --- signal handlers, in a thread that is stopped within a call of the driver */

static bool (*volatile handled)(void);
static sem_t is_handled;
static volatile bool is_changed;

static void change_it(int number)
{
    (void)number;
    is_changed = handled();
    sem_post(&is_handled);
}

struct call {
    void (*run)(CUdeviceptr block);
    CUdeviceptr block;
    CUcontext context;
};

static void *run_call(void *argument)
{
    const struct call *call = argument;
    CHECK_EQ(cuCtxSetCurrent(call->context), CUDA_SUCCESS);
    call->run(call->block);
    return NULL;
}

static void read_all(CUdeviceptr block)
{
    check_device(block);
}

static void free_it(CUdeviceptr block)
{
    CHECK_EQ(cuMemFree(block), CUDA_SUCCESS);
}

/* The thread is in a call with one of two blocks when its handler runs. */
static void interrupt(void (*run)(CUdeviceptr), const char *function, bool (*way)(void))
{
    pthread_t thread;
    struct call call = {.run = run};
    const struct sigaction action = {.sa_handler = change_it};
    alarm(TOO_LONG_S);
    make_files();
    call.context = device_start();
    call.block = load();
    const CUdeviceptr block = load();
    handled = way;
    CHECK_EQ(sem_init(&is_handled, 0, 0), 0);
    CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
    CHECK(simcuda_gate_close(function, 1));
    CHECK_EQ(pthread_create(&thread, NULL, run_call, &call), 0);
    CHECK(simcuda_gate_wait(10000));
    CHECK_EQ(pthread_kill(thread, SIGUSR1), 0);
    while (sem_wait(&is_handled) != 0)
        ;
    simcuda_gate_open();
    CHECK(is_changed);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    check_device(block);
}

MS_TEST(a_signal_handler_during_a_read)
{
    interrupt(read_all, "cuMemcpyDtoH_v2", by_open);
}

MS_TEST(a_signal_handler_while_memory_is_made)
{
    expect_shim();
    interrupt(read_all, "cuMemCreate", by_open);
}

MS_TEST(a_signal_handler_while_memory_is_mapped)
{
    expect_shim();
    interrupt(read_all, "cuMemMap", by_truncate);
}

MS_TEST(a_signal_handler_while_bytes_are_copied)
{
    expect_shim();
    interrupt(read_all, "cuMemcpyHtoDAsync_v2", by_pwrite);
}

MS_TEST(a_signal_handler_during_a_free)
{
    expect_shim();
    interrupt(free_it, "cuMemAddressFree", by_open);
}

/* The thread itself is about to change another file. */
static void change_other(CUdeviceptr block)
{
    (void)block;
    CHECK(by_open());
}

MS_TEST(a_signal_handler_while_the_file_is_prepared)
{
    expect_shim();
    interrupt(change_other, "cuMemCreate", by_truncate);
}

/* --- host functions */

static void CUDA_CB change_in_function(void *way)
{
    is_changed = ((bool (*)(void))way)();
}

static void CUDA_CB change_in_callback(CUstream stream, CUresult result, void *way)
{
    (void)stream;
    is_changed = result == CUDA_SUCCESS && ((bool (*)(void))way)();
}

typedef void start_function(CUstream stream, bool (*way)(void));

static void start_host_function(CUstream stream, bool (*way)(void))
{
    CHECK_EQ(cuLaunchHostFunc(stream, change_in_function, (void *)way), CUDA_SUCCESS);
}

static void start_callback(CUstream stream, bool (*way)(void))
{
    CHECK_EQ(cuStreamAddCallback(stream, change_in_callback, (void *)way, 0), CUDA_SUCCESS);
}

static void start_graph(CUstream stream, bool (*way)(void))
{
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec executable;
    const CUDA_HOST_NODE_PARAMS function = {.fn = change_in_function, .userData = (void *)way};
    CHECK_EQ(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
    CHECK_EQ(cuGraphAddHostNode(&node, graph, NULL, 0, &function), CUDA_SUCCESS);
    CHECK_EQ(cuGraphInstantiate(&executable, graph, 0), CUDA_SUCCESS);
    CHECK_EQ(cuGraphLaunch(executable, stream), CUDA_SUCCESS);
}

static start_function *start_work;

static CUstream make_stream(void)
{
    CUstream stream;
    CHECK_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    return stream;
}

/* One block as a whole, one of which a part was read, and a copy of a part. */
static void in_a_host_function(bool (*way)(void))
{
    enum { PART = BYTES / 4, COPIED = 8192 };
    const CUdeviceptr block = begin();
    const CUdeviceptr read_before = load(), part = device_allocate(PART);
    CHECK_EQ(cuMemcpyDtoH(seen, read_before + PART, PART), CUDA_SUCCESS);
    CHECK_EQ(cuMemcpyDtoD(part, block + COPIED, COPIED), CUDA_SUCCESS);
    const CUstream stream = make_stream();
    start_work(stream, way);
    CHECK_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    CHECK(is_changed);
    CHECK_EQ(cuMemcpyDtoH(seen, part, COPIED), CUDA_SUCCESS);
    CHECK_BYTES(seen, original + COPIED, COPIED);
    check_device(read_before);
    check_device(block);
}

MS_TEST(a_host_function_changes_it)
{
    start_work = start_host_function;
    for_each_way(in_a_host_function);
}

MS_TEST(a_stream_callback_changes_it)
{
    start_work = start_callback;
    for_each_way(in_a_host_function);
}

MS_TEST(a_host_node_of_a_graph_changes_it)
{
    start_work = start_graph;
    for_each_way(in_a_host_function);
}

/* The output of a recorded launch cannot be kept on the host; its input can. */
MS_TEST(a_host_function_changes_what_a_kernel_was_given)
{
    alarm(TOO_LONG_S);
    make_files();
    setenv("METASHARD_KERNEL_RULES", getenv("OVERWRITE_RULES"), 1);
    device_start();
    CUmodule module;
    CUfunction copy;
    CHECK_EQ(cuModuleLoad(&module, getenv("OVERWRITE_KERNELS")), CUDA_SUCCESS);
    CHECK_EQ(cuModuleGetFunction(&copy, module, "copy32"), CUDA_SUCCESS);
    CUdeviceptr block = load(), made = device_allocate(BYTES);
    uint64_t count = BYTES / 4;
    void *copy_arguments[] = {&made, &block, &count};
    CHECK_EQ(cuLaunchKernel(copy, 1, 1, 1, 1, 1, 1, 0, NULL, copy_arguments, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuMemFree(block), CUDA_SUCCESS);
    const CUstream stream = make_stream();
    start_host_function(stream, by_open);
    CHECK_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    CHECK(is_changed);
    check_device(made);
}

/* Another thread waits in cuMemFree for the stream of the host function. */
static void *free_block(void *argument)
{
    const struct call *call = argument;
    CHECK_EQ(cuCtxSetCurrent(call->context), CUDA_SUCCESS);
    CHECK_EQ(cuMemFree(call->block), CUDA_SUCCESS);
    return NULL;
}

static bool after_a_while(void)
{
    usleep(300000); /* the other thread waits by then */
    return by_open();
}

MS_TEST(a_host_function_that_another_thread_waits_for)
{
    pthread_t thread;
    alarm(TOO_LONG_S);
    struct call call = {0};
    make_files();
    call.context = device_start();
    call.block = load();
    const CUdeviceptr block = load();
    CHECK_EQ(cuMemcpyDtoH(seen, call.block, BYTES), CUDA_SUCCESS); /* so that it has memory */
    const CUstream stream = make_stream();
    start_host_function(stream, after_a_while);
    CHECK_EQ(pthread_create(&thread, NULL, free_block, &call), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    CHECK(is_changed);
    check_device(block);
}

/* --- what only the shim has */

static volatile int function_error;

static bool try_to_open(void)
{
    const int file = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    function_error = file < 0 ? errno : 0;
    return ends_well(file);
}

/* Without room for a host copy the open fails, and the file is what it was. */
MS_TEST(a_host_function_without_room)
{
    struct stat stat_;
    expect_shim();
    setenv("METASHARD_SNAPSHOT_BYTES", "1M", 1);
    const CUdeviceptr block = begin();
    const CUstream stream = make_stream();
    start_host_function(stream, try_to_open);
    CHECK_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    CHECK_EQ(function_error, ETXTBSY);
    CHECK_EQ(stat(path, &stat_), 0);
    CHECK_EQ(stat_.st_size, BYTES);
    check_device(block);
}

/* Without a lease nobody waits, and the program is told. */
static void lose(void (*change)(void))
{
    expect_shim();
    alarm(TOO_LONG_S);
    setenv("METASHARD_LEASES", "off", 1);
    const CUdeviceptr block = begin();
    change();
    CHECK_EQ(cuMemcpyDtoH(seen, block, BYTES), CUDA_ERROR_OPERATING_SYSTEM);
}

static void in_vfork(void)
{
    const pid_t child = vfork();
    if (child == 0)
        _exit(by_open() ? 0 : 9);
    expect_child(child, 0);
}

MS_TEST(a_change_by_a_vfork_child_without_a_lease_is_told)
{
    lose(in_vfork);
}
