/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Other processes change a file that was copied to the device. Where a read lease is held they wait
 * until its bytes are in memory; where none can be had, the program is told. Under the shim alone.
 */
#include <errno.h>
#include <grp.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/robust/overwrite/checkpoint.h"
#include "tests/unit/files/kernel.h"

/* Not through libc's functions that are watched here, nor with what is preloaded. */
static void run_shell(const char *command)
{
    char line[512];
    snprintf(line, sizeof(line), "LD_PRELOAD= FILE='%s' OTHER='%s' sh -c '%s'", path, other,
             command);
    CHECK_EQ(system(line), 0);
}

static bool has_lease(void)
{
    char text[4096];
    struct stat stat_;
    char number[64];
    FILE *locks = fopen("/proc/locks", "r");
    bool found = false;
    CHECK(locks != NULL);
    CHECK_EQ(stat(path, &stat_), 0);
    snprintf(number, sizeof(number), ":%llu ", (unsigned long long)stat_.st_ino);
    while (fgets(text, sizeof(text), locks) != NULL)
        found |= strstr(text, "LEASE") != NULL && strstr(text, number) != NULL;
    fclose(locks);
    return found;
}

static CUdeviceptr load_with_lease(void)
{
    make_files();
    device_start();
    const CUdeviceptr block = load();
    needs_lease(has_lease(), path);
    return block;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Each in a test of its own, because a fork of a process with a context knows nothing of it. */
static void change_by(const char *command)
{
    const CUdeviceptr block = load_with_lease();
    write_file(other, scratch, sizeof(scratch));
    const double begin = seconds();
    run_shell(command);
    CHECK(seconds() - begin < 20);
    CHECK(!has_lease());
    CHECK_EQ(backed_bytes(), BYTES);
    check_device(block);
    run_shell(command);
}

MS_TEST(another_process_copies_over_it)
{
    change_by("cp \"$OTHER\" \"$FILE\"");
}

MS_TEST(another_process_truncates_it)
{
    change_by(": > \"$FILE\"");
}

/* coreutils opens it with O_NONBLOCK, which does not wait, and fails (EAGAIN); but the lease is
 * given back. */
MS_TEST(another_process_does_not_wait)
{
    change_by("truncate -s 5 \"$FILE\" 2>/dev/null || { sleep 1; truncate -s 5 \"$FILE\"; }");
}

/* It opens the file for writing, and writes nothing. */
MS_TEST(another_process_touches_it)
{
    const CUdeviceptr block = load_with_lease();
    run_shell("touch \"$FILE\"");
    check_device(block);
}

MS_TEST(another_process_writes_into_it)
{
    change_by("dd if=\"$OTHER\" of=\"$FILE\" conv=notrunc 2>/dev/null");
}

MS_TEST(another_process_appends_to_it)
{
    change_by("cat \"$OTHER\" >> \"$FILE\"");
}

/* A child that was forked from this process is another one. */
MS_TEST(a_child_changes_it)
{
    const CUdeviceptr block = load_with_lease();
    const pid_t child = fork();
    if (child == 0)
        _exit(open(path, O_WRONLY | O_TRUNC | O_CLOEXEC) >= 0 ? 0 : 1);
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    check_device(block);
}

/* Nothing of this changes a byte. */
MS_TEST(a_call_that_changes_no_byte_is_harmless)
{
    const CUdeviceptr block = load_with_lease();
    run_shell(
        "chmod 640 \"$FILE\" && chown 0 \"$FILE\" && touch -c \"$FILE\" && ln \"$FILE\" \"$OTHER\" "
        "&& "
        "rm \"$OTHER\" && mv \"$FILE\" \"$OTHER\" && mv \"$OTHER\" \"$FILE\" && cat \"$FILE\" "
        ">/dev/null");
    CHECK_EQ(chmod(path, 0600), 0);
    CHECK_EQ(backed_bytes(), 0);
    CHECK(has_lease());
    check_device(block);
}

/* And a change of a byte after that is still seen. */
MS_TEST(touched_and_then_changed)
{
    const CUdeviceptr block = load_with_lease();
    run_shell("touch -c \"$FILE\"");
    run_shell(": > \"$FILE\"");
    check_device(block);
}

MS_TEST(nothing_is_left_behind)
{
    const CUdeviceptr block = load_with_lease();
    CHECK_EQ(cuMemFree(block), CUDA_SUCCESS);
    CHECK(!has_lease());
}

/* This process does not wait for itself, also where it would not wait at all. */
MS_TEST(own_opens_do_not_wait)
{
    const CUdeviceptr block = load_with_lease();
    const double begin = seconds();
    const int file = open(path, O_WRONLY | O_NONBLOCK | O_TRUNC | O_CLOEXEC);
    CHECK(file >= 0);
    close(file);
    CHECK(seconds() - begin < 10);
    check_device(block);
}

static volatile sig_atomic_t signals;

static void count_signal(int number)
{
    (void)number;
    signals++;
}

/* The kernel's signal is nobody's. */
MS_TEST(no_signal_comes)
{
    for (int number = 1; number <= SIGRTMAX; number++) {
        if (number != SIGCHLD && number != SIGALRM)
            signal(number, count_signal);
    }
    change_by(": > \"$FILE\"");
    CHECK_EQ(signals, 0);
}

/* --- where none can be had: the program is told, and what has changed */

static char log_path[128];

static void log_to_file(void)
{
    char setting[160];
    snprintf(log_path, sizeof(log_path), "%s/log", folder);
    snprintf(setting, sizeof(setting), "error:%s", log_path);
    setenv("METASHARD_LOG", setting, 1);
}

static void expect_line(const char *with)
{
    char text[8192] = "";
    const int file = open(log_path, O_RDONLY | O_CLOEXEC);
    CHECK(file >= 0);
    CHECK(read(file, text, sizeof(text) - 1) >= 0);
    close(file);
    unlink(log_path);
    if (strstr(text, with) == NULL)
        ms_test_fail(__FILE__, __LINE__, "no %s in: %s", with, text);
}

static void lose(const char *command, const char *line)
{
    make_files();
    log_to_file();
    setenv("METASHARD_LEASES", "off", 1);
    device_start();
    const CUdeviceptr block = load();
    CHECK(!has_lease());
    run_shell(command);
    CHECK_EQ(cuMemcpyDtoH(seen, block, BYTES), CUDA_ERROR_OPERATING_SYSTEM);
    expect_line(line);
}

MS_TEST(a_new_mode_without_a_lease_is_told)
{
    lose("chmod 640 \"$FILE\"", "(ctime ");
}

MS_TEST(a_touch_without_a_lease_is_told)
{
    lose("touch \"$FILE\"", "(mtime ");
}

MS_TEST(a_new_size_without_a_lease_is_told)
{
    lose("cat \"$FILE\" >> \"$FILE.\"; mv \"$FILE.\" \"$OTHER\"; cat \"$OTHER\" >> \"$FILE\"",
         "(size 8388608, was 4194304, mtime ");
}

/* Somebody else's file, and a user without rights. */
MS_TEST(the_file_of_another_user)
{
    if (geteuid() != 0)
        ms_test_skip("only root can become somebody else");
    make_files();
    CHECK_EQ(chmod(folder, 0755), 0);
    CHECK_EQ(chmod(path, 0644), 0);
    CHECK_EQ(setgroups(0, NULL), 0);
    CHECK_EQ(setresgid(65534, 65534, 65534), 0);
    CHECK_EQ(setresuid(65534, 65534, 65534), 0);
    device_start();
    const CUdeviceptr block = load();
    CHECK(!has_lease());
    check_device(block);
}

/* Another process may write it at any time: its bytes are copied at once, and nobody waits. */
MS_TEST(a_file_that_another_process_has_open)
{
    int ends[2];
    make_files();
    CHECK_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        char byte;
        const int file = open(path, O_RDWR | O_CLOEXEC);
        close(ends[1]);
        if (read(ends[0], &byte, 1) != 1 || pwrite(file, scratch, WRITTEN, 7) != WRITTEN)
            _exit(1);
        _exit(0);
    }
    usleep(200000);
    device_start();
    const CUdeviceptr block = load();
    CHECK(!has_lease());
    CHECK_EQ(write(ends[1], "x", 1), 1);
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    check_device(block);
}
