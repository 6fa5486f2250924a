/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hostile MODE FILE [PLUGIN]: the job (job.h) in surroundings that are hard on a preloaded library.
 * Each mode prints "right" for each job that was, and ends with 0; or says what was wrong.
 *
 *   job              the job alone
 *   fork-before      parent and child, both after the fork
 *   fork-after       the child of a process with deferred memory calls CUDA and ends; the parent goes on
 *   fork-threads     forks while other threads work, thirty times; each child calls CUDA, which fails and does not wait for
 *                    a lock that a thread of its parent has
 *   vfork            a process with deferred memory executes this program with vfork, and goes on
 *   clean            the same with posix_spawn, for a program with an environment of its own
 *   same-memory      the same with clone, in the memory of the process
 *   bare-fork SOCKET a child of the system call, of which no handler knows, calls CUDA and ends; socket and dump stay
 *   exec             a process with deferred memory becomes this program
 *   spawn N          N children, each a program of its own, four at a time
 *   signals          a timer's signals interrupt the job all the time, twenty times over: with SA_RESTART and without
 *   reload           libcuda.so.1 is opened, used and closed, three times
 *   exit-threads     main ends while threads work
 *   deepbind         the plugin is opened with RTLD_DEEPBIND, and works, and is given deferred memory
 *   dlmopen          the plugin is opened in a namespace of its own
 *   wait SOCKET      says a plan that is nested 2000 deep, of 100 KiB and more, over the control socket, and then "asked"
 *   looked-up        loads, copies and reads with functions that it has asked dlsym and cuGetProcAddress for
 *   unload           the plugin is opened, used and closed, three times
 *   stay             says "ready" with deferred memory, and goes on when its standard input ends
 */
#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/robust/hostile/job.h"

static const char *program, *file, *plugin;
static struct job job;

static int say(bool is_right)
{
    puts(is_right ? "right" : job.why);
    fflush(stdout);
    return is_right ? 0 : 1;
}

static bool load(void)
{
    job_map(&job, file);
    return job_start(&job) && job_load(&job);
}

static int wait_for(pid_t child)
{
    int status = -1;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFSIGNALED(status))
        printf("a child ended by signal %d\n", WTERMSIG(status));
    return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

/* --- processes */

static int fork_before(void)
{
    const pid_t child = fork();
    if (child == 0)
        return job_run(file);
    const int status = job_run(file);
    return status | wait_for(child);
}

/* CUDA does not work in a child. The child's calls fail, and the child's end leaves alone what is
 * its parent's. */
static int fork_after(void)
{
    if (!load())
        return say(false);
    const pid_t child = fork();
    if (child == 0) {
        CUdeviceptr address;
        unsigned char byte;
        exit(cuMemAlloc(&address, 4 << 20) == CUDA_SUCCESS ||
             cuMemcpyDtoH(&byte, job.part, 1) == CUDA_SUCCESS);
    }
    const int status = wait_for(child);
    return status | say(job_finish(&job));
}

static int run_vfork(void)
{
    if (!load())
        return say(false);
    const pid_t child = vfork();
    if (child == 0) {
        execl(program, program, "job", file, (char *)NULL);
        _exit(98);
    }
    const int status = wait_for(child);
    return status | say(job_finish(&job));
}

static int run_clean(void)
{
    char path[4096];
    char *const arguments[] = {(char *)(uintptr_t)program, (char *)"job", (char *)(uintptr_t)file,
                               NULL};
    char *const environment[] = {path, NULL};
    pid_t child;
    snprintf(path, sizeof(path), "LD_LIBRARY_PATH=%s", getenv("LD_LIBRARY_PATH"));
    if (!load())
        return say(false);
    if (posix_spawn(&child, program, NULL, NULL, arguments, environment) != 0)
        return 97;
    const int status = wait_for(child);
    return status | say(job_finish(&job));
}

static int execute(void *unused)
{
    (void)unused;
    execl(program, program, "job", file, (char *)NULL);
    _exit(98);
}

static int run_same_memory(void)
{
    static _Alignas(16) char stack[256 << 10];
    if (!load())
        return say(false);
    const pid_t child =
        clone(execute, stack + sizeof(stack), CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
    const int status = wait_for(child);
    return status | say(job_finish(&job));
}

/* The child runs all that runs at an exit. The driver's answers there are its own affair. */
static int run_bare_fork(void)
{
    const char *dump = getenv("METASHARD_DUMP");
    if (!load())
        return say(false);
    const pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        CUdeviceptr address;
        (void)cuMemAlloc(&address, 4 << 20);
        exit(0);
    }
    const int status = wait_for(child);
    if (access(plugin, F_OK) != 0 || dump == NULL || access(dump, F_OK) == 0) {
        puts("the child has removed the socket, or written the dump");
        return 1;
    }
    return status | say(job_finish(&job));
}

static int run_exec(void)
{
    if (!load())
        return say(false);
    execl(program, program, "job", file, (char *)NULL);
    return 98;
}

static int spawn(int count)
{
    extern char **environ;
    char *const arguments[] = {(char *)(uintptr_t)program, (char *)"job", (char *)(uintptr_t)file,
                               NULL};
    int running = 0, status = 0;
    for (int i = 0; i < count || running > 0;) {
        pid_t child;
        if (i < count && running < 4) {
            if (posix_spawn(&child, program, NULL, NULL, arguments, environ) != 0)
                return 97;
            i++;
            running++;
            continue;
        }
        status |= wait_for(-1);
        running--;
    }
    return status;
}

/* --- signals */

static _Atomic unsigned signals;

static void count_signal(int number)
{
    (void)number;
    signals++;
}

static bool under_signals(int flags)
{
    struct sigaction action = {.sa_handler = count_signal, .sa_flags = flags};
    const struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    bool is_right = true;
    for (int i = 0; i < 20 && is_right; i++)
        is_right = job_load(&job) && job_finish(&job);
    setitimer(ITIMER_REAL, &never, NULL);
    return is_right;
}

static int run_signals(void)
{
    job_map(&job, file);
    const bool is_right = job_start(&job) && under_signals(SA_RESTART) && under_signals(0);
    if (signals < 10)
        puts("there were no signals");
    return say(is_right) | (signals < 10);
}

/* --- libraries */

static CUresult call_driver(void *handle)
{
    CUdeviceptr address = 0;
    __typeof__(&cuMemAlloc_v2) allocate =
        (__typeof__(&cuMemAlloc_v2))dlsym(handle, "cuMemAlloc_v2");
    __typeof__(&cuMemFree_v2) release = (__typeof__(&cuMemFree_v2))dlsym(handle, "cuMemFree_v2");
    if (allocate == NULL || release == NULL)
        return CUDA_ERROR_NOT_FOUND;
    const CUresult result = allocate(&address, 4 << 20);
    return result != CUDA_SUCCESS ? result : release(address);
}

static int reload(void)
{
    job_map(&job, file);
    bool is_right = job_start(&job);
    for (int i = 0; i < 3 && is_right; i++) {
        void *handle = dlopen("libcuda.so.1", RTLD_NOW);
        is_right = handle != NULL && call_driver(handle) == CUDA_SUCCESS && job_load(&job) &&
                   job_finish(&job);
        if (handle != NULL)
            dlclose(handle);
    }
    return say(is_right);
}

/* Functions for a program that is not linked with the driver. */
struct functions {
    __typeof__(&cuMemAlloc_v2) allocate;
    __typeof__(&cuMemFree_v2) release;
    __typeof__(&cuMemcpyHtoD_v2) copy_in;
    __typeof__(&cuMemcpyDtoH_v2) copy_out;
};

static bool find_all(void *handle, bool by_driver, struct functions *functions)
{
    static const char *const names[] = {"cuMemAlloc", "cuMemFree", "cuMemcpyHtoD", "cuMemcpyDtoH"};
    void *found[4];
    CUdriverProcAddressQueryResult status;
    __typeof__(&cuGetProcAddress_v2) resolve =
        (__typeof__(&cuGetProcAddress_v2))dlsym(handle, "cuGetProcAddress_v2");
    for (int i = 0; i < 4; i++) {
        char name[32];
        snprintf(name, sizeof(name), "%s_v2", names[i]);
        found[i] = by_driver ? NULL : dlsym(handle, name);
        if (by_driver && resolve(names[i], &found[i], 13000, 0, &status) != CUDA_SUCCESS)
            return false;
    }
    memcpy(functions, found, sizeof(found));
    return found[0] != NULL && found[1] != NULL && found[2] != NULL && found[3] != NULL;
}

static int run_looked_up(void)
{
    static unsigned char seen[JOB_FILE_BYTES];
    void *handle = dlopen("libcuda.so.1", RTLD_NOW);
    job_map(&job, file);
    bool is_right = handle != NULL && job_start(&job);
    snprintf(job.why, sizeof(job.why), "a function that was looked up failed");
    for (int by_driver = 0; by_driver < 2 && is_right; by_driver++) {
        struct functions driver;
        CUdeviceptr at;
        is_right = find_all(handle, by_driver, &driver) &&
                   driver.allocate(&at, JOB_FILE_BYTES) == CUDA_SUCCESS &&
                   driver.copy_in(at, job.file, JOB_FILE_BYTES) == CUDA_SUCCESS &&
                   driver.copy_out(seen, at, JOB_FILE_BYTES) == CUDA_SUCCESS &&
                   driver.release(at) == CUDA_SUCCESS;
        if (is_right && memcmp(seen, job.file, JOB_FILE_BYTES) != 0) {
            snprintf(job.why, sizeof(job.why), "wrong bytes, by looked-up functions");
            is_right = false;
        }
    }
    return say(is_right);
}

typedef int run_plugin(const char *path);
typedef int read_plugin(unsigned long long address, void *to, size_t bytes);

static int complain(void)
{
    printf("%s\n", dlerror());
    return 96;
}

static int run_deepbind(void)
{
    void *handle = dlopen(plugin, RTLD_NOW | RTLD_DEEPBIND);
    if (handle == NULL)
        return complain();
    int status = ((run_plugin *)dlsym(handle, "plugin_run"))(file);
    if (!load())
        return say(false);
    /* Beside the shim, deferred memory is none: that must be an error, and no bytes. */
    unsigned char bytes[64];
    const int result =
        ((read_plugin *)dlsym(handle, "plugin_read"))(job.part, bytes, sizeof(bytes));
    if (result == CUDA_SUCCESS && memcmp(bytes, job.file + (1 << 20), sizeof(bytes)) != 0) {
        puts("wrong bytes beside the shim");
        return 1;
    }
    puts(result == CUDA_SUCCESS ? "read" : "refused");
    /* The illegal access, if it was one, has ended the context. */
    return result == CUDA_SUCCESS ? status | say(job_finish(&job)) : status;
}

static int run_dlmopen(void)
{
    void *handle = dlmopen(LM_ID_NEWLM, plugin, RTLD_NOW);
    if (handle == NULL)
        return complain();
    int status = ((run_plugin *)dlsym(handle, "plugin_run"))(file);
    return status | job_run(file);
}

static int run_unload(void)
{
    int status = 0;
    for (int i = 0; i < 3; i++) {
        void *handle = dlopen(plugin, RTLD_NOW);
        if (handle == NULL)
            return complain();
        status |= ((run_plugin *)dlsym(handle, "plugin_run"))(file);
        dlclose(handle);
    }
    return status;
}

/* --- the control socket, by a client in the same process */

enum { PLAN_DEPTH = 2000, PLAN_BYTES = 150000 };

/* The answer's first bytes; false when there is none. */
static bool ask(const char *path, const char *request, size_t bytes, char answer[16])
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
    bool is_good = connect(descriptor, (struct sockaddr *)&address, sizeof(address)) == 0;
    while (is_good && bytes > 0) {
        const ssize_t sent = send(descriptor, request, bytes, MSG_NOSIGNAL);
        is_good = sent > 0;
        request += is_good ? sent : 0;
        bytes -= is_good ? (size_t)sent : 0;
    }
    is_good = is_good && recv(descriptor, answer, 16, 0) > 3;
    close(descriptor);
    return is_good;
}

static int run_wait(void)
{
    static char text[64 + PLAN_BYTES];
    char answer[16] = "", status[16] = "";
    bool is_right = load();
    size_t length = (size_t)sprintf(text, "plan %d\n", PLAN_BYTES);
    memset(text + length, ' ', PLAN_BYTES);
    memset(text + length, '[', PLAN_DEPTH);
    if (is_right && ask(plugin, text, length + PLAN_BYTES, answer) &&
        ask(plugin, "status\n", 7, status) && strncmp(answer, "error", 5) == 0 &&
        strncmp(status, "ok", 2) == 0)
        puts("asked");
    return say(is_right && job_finish(&job));
}

static int run_stay(void)
{
    if (!load())
        return say(false);
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return say(job_finish(&job));
}

/* --- threads */

static void *work(void *unused)
{
    (void)unused;
    struct job own;
    job_map(&own, file);
    while (job_start(&own) && job_load(&own) && job_finish(&own))
        ;
    /* The driver is going down: whatever it says. But never other bytes. */
    if (strncmp(own.why, "wrong", 5) == 0) {
        puts(own.why);
        fflush(stdout);
        _exit(1);
    }
    return NULL;
}

static int exit_threads(void)
{
    pthread_t threads[3];
    job_map(&job, file);
    if (!job_start(&job))
        return say(false);
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, work, NULL);
    usleep(30000);
    puts("right");
    return 0;
}

static int fork_threads(void)
{
    enum { THREADS = 3, CHILDREN = 30 };
    pthread_t threads[THREADS];
    int status = 0;
    if (!load())
        return say(false);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < CHILDREN && status == 0; i++) {
        usleep(3000);
        const pid_t child = fork();
        if (child == 0) {
            unsigned char byte = 0;
            size_t bytes;
            CUdeviceptr address;
            alarm(10);
            const bool is_refused =
                cuMemcpyDtoH(&byte, job.part, 1) != CUDA_SUCCESS &&
                cuMemcpyHtoD(job.part, &byte, 1) != CUDA_SUCCESS &&
                cuMemsetD8(job.part, 1, 1) != CUDA_SUCCESS &&
                cuMemGetAddressRange(&address, &bytes, job.part) != CUDA_SUCCESS &&
                cuMemAlloc(&address, 4 << 20) != CUDA_SUCCESS &&
                cuCtxSynchronize() != CUDA_SUCCESS && cuMemFree(job.part) != CUDA_SUCCESS;
            _exit(!is_refused);
        }
        status = wait_for(child);
    }
    if (status != 0)
        puts("a child was not refused, or waited");
    status |= say(job_finish(&job));
    _exit(status); /* the threads work on */
}

int main(int count, char **arguments)
{
    const char *mode = count > 2 ? arguments[1] : "";
    program = "/proc/self/exe";
    file = count > 2 ? arguments[2] : NULL;
    plugin = count > 3 ? arguments[3] : NULL;
    if (strcmp(mode, "job") == 0)
        return job_run(file);
    if (strcmp(mode, "fork-before") == 0)
        return fork_before();
    if (strcmp(mode, "fork-after") == 0)
        return fork_after();
    if (strcmp(mode, "fork-threads") == 0)
        return fork_threads();
    if (strcmp(mode, "vfork") == 0)
        return run_vfork();
    if (strcmp(mode, "clean") == 0)
        return run_clean();
    if (strcmp(mode, "same-memory") == 0)
        return run_same_memory();
    if (strcmp(mode, "bare-fork") == 0 && plugin != NULL)
        return run_bare_fork();
    if (strcmp(mode, "exec") == 0)
        return run_exec();
    if (strcmp(mode, "spawn") == 0 && plugin != NULL)
        return spawn(atoi(plugin));
    if (strcmp(mode, "signals") == 0)
        return run_signals();
    if (strcmp(mode, "reload") == 0)
        return reload();
    if (strcmp(mode, "looked-up") == 0)
        return run_looked_up();
    if (strcmp(mode, "exit-threads") == 0)
        return exit_threads();
    if (strcmp(mode, "deepbind") == 0 && plugin != NULL)
        return run_deepbind();
    if (strcmp(mode, "dlmopen") == 0 && plugin != NULL)
        return run_dlmopen();
    if (strcmp(mode, "wait") == 0 && plugin != NULL)
        return run_wait();
    if (strcmp(mode, "unload") == 0 && plugin != NULL)
        return run_unload();
    if (strcmp(mode, "stay") == 0)
        return run_stay();
    fprintf(stderr, "usage: hostile MODE FILE [PLUGIN]\n");
    return 2;
}
