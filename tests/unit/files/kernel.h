/* SPDX-License-Identifier: Apache-2.0 */
/* Features that not every kernel has, and not every file system: a test that needs a feature asks
 * for it by itself. Else the test would skip the fault that it is to find. */
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/simcuda/harness/test.h"

/* Whether there is a lease for this file, and a writer would wait for it for long enough. */
static inline bool are_there_leases(const char *name)
{
    int seconds = 0;
    FILE *told = fopen("/proc/sys/fs/lease-break-time", "r");
    if (told != NULL && fscanf(told, "%d", &seconds) != 1)
        seconds = 0;
    if (told != NULL)
        fclose(told);
    const int file = open(name, O_RDONLY);
    const struct f_owner_ex owner = {F_OWNER_TID, (pid_t)syscall(SYS_gettid)};
    const bool is_given =
        fcntl(file, F_SETOWN_EX, &owner) == 0 && fcntl(file, F_SETLEASE, F_RDLCK) == 0;
    close(file); /* and so ends it */
    return is_given && seconds >= 5;
}

/* Skips the test if none was taken since there are none. */
static inline void needs_lease(bool is_taken, const char *name)
{
    if (is_taken)
        return;
    CHECK(!are_there_leases(name));
    ms_test_skip("no leases here");
}

/* As proc(5) lists it: the numbers of the file that is mapped there. */
static inline bool is_listed(const void *address, const struct stat *stat)
{
    char line[512], begin[32];
    unsigned major_number = 0, minor_number = 0;
    unsigned long inode = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    const int length = snprintf(begin, sizeof(begin), "%lx-", (unsigned long)address);
    while (maps != NULL && fgets(line, sizeof(line), maps) != NULL) {
        if (strncmp(line, begin, (size_t)length) == 0)
            sscanf(line, "%*s %*s %*s %x:%x %lu", &major_number, &minor_number, &inode);
    }
    if (maps != NULL)
        fclose(maps);
    return inode == stat->st_ino && makedev(major_number, minor_number) == stat->st_dev;
}

/* Whether it tells which file is mapped, and that a page is there and the file's. */
static inline bool are_mappings_told(const char *name)
{
    const uint64_t present_and_file = UINT64_C(5) << 61;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct stat stat;
    uint64_t entry = 0;
    const int file = open(name, O_RDONLY), pages = open("/proc/self/pagemap", O_RDONLY);
    const volatile char *mapped = mmap(NULL, page, PROT_READ, MAP_PRIVATE, file, 0);
    bool is_told = mapped != MAP_FAILED && fstat(file, &stat) == 0 && stat.st_size > 0;
    if (is_told) {
        (void)mapped[0];
        is_told = is_listed((const void *)mapped, &stat) &&
                  pread(pages, &entry, sizeof(entry),
                        (off_t)((uintptr_t)mapped / page * sizeof(entry))) == sizeof(entry) &&
                  (entry & present_and_file) == present_and_file;
    }
    if (mapped != MAP_FAILED)
        munmap((void *)mapped, page);
    close(file);
    close(pages);
    return is_told;
}

/* Skips the test if nothing was found since nothing is told. An emulator tells of its own pages. */
static inline void needs_mappings(bool is_found, const char *name)
{
    if (is_found)
        return;
    CHECK(ms_test_is_watched() || !are_mappings_told(name));
    ms_test_skip("this kernel does not tell about mappings (pagemap, or device numbers)");
}

/* Skips the test if the file thread has no table of its own since threads can have none. */
static inline void needs_own_table(bool has_one)
{
    int status = 1;
    if (has_one)
        return;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0)
        _exit(syscall(SYS_unshare, CLONE_FILES) == 0 ? 0 : 1);
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(status != 0);
    ms_test_skip("tables cannot be unshared here");
}
