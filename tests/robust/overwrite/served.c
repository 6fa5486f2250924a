/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint on a file system that is mounted read-only here, and whose server changes it after
 * the copy. The kernel keeps its attributes for a while, so only the server knows. The device gets
 * what was copied, or the call fails. Under the shim alone.
 */
#include <errno.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/robust/overwrite/checkpoint.h"
#include "tools/simcuda/harness/deny.h"

/* The server's file, and what of it is seen here. */
static char served[sizeof(path)], mounted[80], layered[80];
static unsigned char changed[BYTES];

static int run(const char *command)
{
    char line[1024];
    snprintf(line, sizeof(line),
             "unset LD_PRELOAD; SERVED='%s' MOUNTED='%s' LAYERED='%s'; export SERVED; %s", served,
             mounted, layered, command);
    return system(line);
}

static void unmount(void)
{
    unlink(served);
    umount2(layered, MNT_DETACH);
    run("fusermount3 -u -z \"$MOUNTED\" 2>/dev/null; rm -rf \"$LAYERED.upper\" \"$LAYERED.work\"; "
        "rmdir \"$MOUNTED\" \"$LAYERED\" 2>/dev/null");
}

/* The file is older than any tick of a clock. */
static void make_old(const char *name)
{
    const struct timespec times[2] = {{.tv_sec = time(NULL) - 3600, .tv_nsec = 1},
                                      {.tv_sec = time(NULL) - 3600, .tv_nsec = 1}};
    CHECK_EQ(utimensat(AT_FDCWD, name, times, 0), 0);
    nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL);
}

struct server {
    const char *name, *command;
    bool tells_nothing; /* of changes: nothing can come from a file there */
};
static const struct server servers[] = {
    {"attributes are kept for a second", "KEPT_SECONDS=1 \"$SERVER\" -o ro \"$MOUNTED\""},
    {"attributes are kept for 30 s", "KEPT_SECONDS=30 \"$SERVER\" -o ro \"$MOUNTED\""},
    {"attributes are not kept", "KEPT_SECONDS=0 \"$SERVER\" -o ro \"$MOUNTED\""},
    {"pages are kept", "KEPT_PAGES=1 KEPT_SECONDS=30 \"$SERVER\" -o ro \"$MOUNTED\""},
    {"no times", "NO_TIMES=1 KEPT_SECONDS=1 \"$SERVER\" -o ro \"$MOUNTED\"", true},
    {"bindfs", "bindfs -r \"${SERVED%/*}\" \"$MOUNTED\""},
    {"bindfs that keeps attributes",
     "bindfs -r -o attr_timeout=30,entry_timeout=30 \"${SERVED%/*}\" \"$MOUNTED\""},
};
enum { SERVERS = sizeof(servers) / sizeof(servers[0]) };

RANGE_ACCESS static void make_changed(void)
{
    range_read(original, BYTES);
    range_write(changed, BYTES);
    for (int i = 0; i < BYTES; i++)
        changed[i] = (unsigned char)~original[i];
}

static bool serve(const struct server *server)
{
    make_files();
    snprintf(served, sizeof(served), "%s", path);
    snprintf(mounted, sizeof(mounted), "%s.mounted", folder);
    snprintf(layered, sizeof(layered), "%s.layered", folder);
    make_old(served);
    make_changed();
    CHECK_EQ(mkdir(mounted, 0700), 0);
    atexit(unmount);
    if (run(server->command) != 0)
        return false;
    snprintf(path, sizeof(path), "%s/checkpoint", mounted);
    return access(path, R_OK) == 0;
}

/* --- what the server does */

static void overwrite(void)
{
    const int file = open(served, O_WRONLY | O_CLOEXEC);
    CHECK_EQ(pwrite(file, changed, BYTES, 0), BYTES);
    close(file);
}

static void overwrite_a_part(void)
{
    const int file = open(served, O_WRONLY | O_CLOEXEC);
    CHECK_EQ(pwrite(file, changed, WRITTEN, BYTES / 2), WRITTEN);
    close(file);
}

static void overwrite_and_set_back(void)
{
    struct stat before;
    CHECK_EQ(stat(served, &before), 0);
    overwrite();
    const struct timespec times[2] = {before.st_atim, before.st_mtim};
    CHECK_EQ(utimensat(AT_FDCWD, served, times, 0), 0);
}

static void write_anew(void)
{
    write_file(served, changed, BYTES);
}

static void make_longer(void)
{
    const int file = open(served, O_WRONLY | O_APPEND | O_CLOEXEC);
    CHECK_EQ(write(file, changed, WRITTEN), WRITTEN);
    close(file);
    overwrite();
}

static void make_shorter(void)
{
    CHECK_EQ(truncate(served, BYTES / 2), 0);
}

static void replace(void)
{
    write_file(other, changed, BYTES);
    CHECK_EQ(rename(other, served), 0);
}

static void remove_it(void)
{
    CHECK_EQ(unlink(served), 0);
}

static const struct {
    const char *name;
    void (*run)(void);
} changes[] = {
    {"overwrite", overwrite},
    {"overwrite a part", overwrite_a_part},
    {"set the time back", overwrite_and_set_back},
    {"write anew", write_anew},
    {"make longer", make_longer},
    {"make shorter", make_shorter},
    {"replace", replace},
    {"delete", remove_it},
};
enum { CHANGES = sizeof(changes) / sizeof(changes[0]) };

/* --- */

/* Two uses: what a failed one has asked must not satisfy the next. */
static void check_old_bytes_or_error(CUdeviceptr block)
{
    for (int i = 0; i < 2; i++) {
        memset(seen, 0, sizeof(seen));
        const CUresult result = cuMemcpyDtoH(seen, block, BYTES);
        if (result == CUDA_SUCCESS)
            CHECK_BYTES(seen, original, BYTES);
        else
            CHECK_EQ(result, CUDA_ERROR_OPERATING_SYSTEM);
    }
}

enum { IS_SKIPPED = 77 };

/* In a child, with a mount of its own. */
static int run_child(void (*body)(const struct server *server, void (*change)(void)),
                     const struct server *server, void (*change)(void))
{
    int status;
    const pid_t child = fork();
    if (child == 0) {
        if (!serve(server))
            exit(IS_SKIPPED);
        device_start();
        body(server, change);
        exit(0);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void run_on_servers(void (*body)(const struct server *server, void (*change)(void)),
                           const char *what, void (*change)(void), int *ran)
{
    for (int i = 0; i < SERVERS; i++) {
        const int status = run_child(body, &servers[i], change);
        *ran += status != IS_SKIPPED;
        if (status != 0 && status != IS_SKIPPED)
            ms_test_fail(__FILE__, __LINE__, "%s, %s: status %d", servers[i].name, what, status);
    }
}

static void need(int ran)
{
    if (ran == 0)
        ms_test_skip(
            "no file system in user space can be mounted here (libfuse, bindfs, /dev/fuse)");
}

static void change_after_copy(__attribute__((unused)) const struct server *server,
                              void (*change)(void))
{
    const CUdeviceptr block = load();
    change();
    check_old_bytes_or_error(block);
}

MS_TEST(each_change_after_the_copy)
{
    int ran = 0;
    for (int i = 0; i < CHANGES; i++)
        run_on_servers(change_after_copy, changes[i].name, changes[i].run, &ran);
    need(ran);
}

/* The attributes are kept from just now. */
static void change_after_use(__attribute__((unused)) const struct server *server,
                             void (*change)(void))
{
    const CUdeviceptr block = load(), again = load();
    check_device(block);
    change();
    check_old_bytes_or_error(again);
}

MS_TEST(each_change_after_a_use)
{
    int ran = 0;
    for (int i = 0; i < CHANGES; i++)
        run_on_servers(change_after_use, changes[i].name, changes[i].run, &ran);
    need(ran);
}

/* It comes from the file: nothing is kept of it. */
static void do_not_change(__attribute__((unused)) const struct server *server,
                          __attribute__((unused)) void (*change)(void))
{
    const CUdeviceptr block = load();
    CHECK_EQ(backed_bytes(), 0);
    check_device(block);
}

/* Were there a copy of it, the bytes would still be there. */
static void change_for_an_error(const struct server *server, void (*change)(void))
{
    const CUdeviceptr block = load();
    change();
    if (server->tells_nothing)
        check_device(block);
    else
        CHECK_EQ(cuMemcpyDtoH(seen, block, BYTES), CUDA_ERROR_OPERATING_SYSTEM);
}

MS_TEST(a_file_that_does_not_change_is_a_source)
{
    int ran = 0;
    expect_shim();
    run_on_servers(do_not_change, "no change", NULL, &ran);
    run_on_servers(change_for_an_error, "overwrite", overwrite, &ran);
    need(ran);
}

/* The program sees old bytes, or new ones, or some of both, as the kernel kept pages: these. */
static void change_before_copy(__attribute__((unused)) const struct server *server,
                               void (*change)(void))
{
    static unsigned char copied[BYTES];
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(file >= 0);
    const unsigned char *mapped = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, file, 0);
    CHECK(mapped != MAP_FAILED);
    CHECK(memcmp(mapped, original, BYTES) == 0);
    change();
    const CUdeviceptr block = device_allocate(BYTES);
    CHECK_EQ(cuMemcpyHtoD(block, mapped, BYTES), CUDA_SUCCESS);
    memcpy(copied, mapped, BYTES);
    munmap((void *)(uintptr_t)mapped, BYTES);
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    close(file);
    CHECK_EQ(cuMemcpyDtoH(seen, block, BYTES), CUDA_SUCCESS);
    CHECK_BYTES(seen, copied, BYTES);
}

MS_TEST(a_change_before_the_copy)
{
    int ran = 0;
    run_on_servers(change_before_copy, "overwrite", overwrite, &ran);
    run_on_servers(change_before_copy, "overwrite a part", overwrite_a_part, &ran);
    need(ran);
}

/* Nobody can be asked: an old kernel, a sandbox. */
static void copy_without_statx(__attribute__((unused)) const struct server *server,
                               void (*change)(void))
{
    deny(SYS_statx, EPERM);
    const CUdeviceptr block = load();
    change();
    check_device(block);
}

MS_TEST(a_change_without_statx_is_noticed)
{
    int ran = 0;
    for (int i = 0; i < CHANGES; i++)
        run_on_servers(copy_without_statx, changes[i].name, changes[i].run, &ran);
    need(ran);
}

/* An overlay gives leases of its own file, of which the server knows nothing. */
static void change_below_an_overlay(const struct server *server, void (*change)(void))
{
    if (run("mkdir \"$LAYERED\" \"$LAYERED.upper\" \"$LAYERED.work\" && mount -t overlay overlay "
            "-o "
            "\"lowerdir=$MOUNTED,upperdir=$LAYERED.upper,workdir=$LAYERED.work\" \"$LAYERED\"") !=
        0)
        exit(IS_SKIPPED);
    snprintf(path, sizeof(path), "%s/checkpoint", layered);
    change_after_copy(server, change);
}

MS_TEST(below_an_overlay)
{
    int ran = 0;
    run_on_servers(change_below_an_overlay, "overwrite", overwrite, &ran);
    run_on_servers(change_below_an_overlay, "replace", replace, &ran);
    need(ran);
}
