/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/trust.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/config/config.h"
#include "runtime/files/file_thread.h"
#include "runtime/files/file_internal.h"
#include "runtime/finding/find.h"
#include "runtime/loading/source_read.h"
#include "tests/unit/between.h"
#include "tests/unit/files/files.h"
#include "tests/unit/files/kernel.h"
#include "tools/simcuda/harness/deny.h"

enum { BYTES = 256 << 10 };

static char path[100];

static void remove_file(void)
{
    unlink(path);
}

static void write_file(int file)
{
    static unsigned char bytes[BYTES];
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (unsigned char)(i * 7 >> 3);
    CHECK_EQ(write(file, bytes, BYTES), BYTES);
}

/* A file that nobody has open. */
static void make_file(const char *folder)
{
    snprintf(path, sizeof(path), "%s/metashard-trust-XXXXXX", folder);
    const int file = mkstemp(path);
    if (file < 0)
        ms_test_skip("no such folder here");
    atexit(remove_file);
    write_file(file);
    close(file);
}

static unsigned char *map(int flags, int protection, int sharing)
{
    const int file = open(path, flags);
    unsigned char *address = mmap(NULL, BYTES, protection, sharing, file, 0);
    CHECK(address != MAP_FAILED);
    close(file);
    return address;
}

/* Another file system than the tests have, by what the kernel answers. */
static struct {
    uint32_t type;   /* 0: what it is */
    int asked_error; /* of the question that goes to the file system itself */
    int kept_error;  /* of the one that the kernel answers by what it keeps */
    time_t asked_later_s;
    bool has_no_modified, has_no_changed;
} pretended;

enum { REMOTE = 0x6969 };

static void answer_times(struct stat *kept, struct statx *asked)
{
    if (kept != NULL && pretended.has_no_modified)
        kept->st_mtim.tv_sec = 0;
    if (kept != NULL && pretended.has_no_changed)
        kept->st_ctim.tv_sec = 0;
    if (asked == NULL)
        return;
    asked->stx_mtime.tv_sec = pretended.has_no_modified ? 0 : asked->stx_mtime.tv_sec;
    asked->stx_ctime.tv_sec = pretended.has_no_changed ? 0 : asked->stx_ctime.tv_sec;
    asked->stx_mtime.tv_sec += pretended.asked_later_s;
}

WRAPS(nanosleep);
long __real_syscall(long number, ...);
long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f);
long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f)
{
    const int error = number == SYS_statx   ? pretended.asked_error
                      : number == SYS_fstat ? pretended.kept_error
                                            : 0;
    if (error != 0) {
        errno = error;
        return -1;
    }
    const long result = __real_syscall(number, a, b, c, d, e, f);
    if (number == SYS_fstatfs && pretended.type != 0)
        ((struct statfs *)b)->f_type = pretended.type;
    if (number == SYS_fstat)
        answer_times((struct stat *)b, NULL);
    if (number == SYS_statx)
        answer_times(NULL, (struct statx *)e);
    return result;
}

static struct ms_file *find(const unsigned char *address)
{
    uint64_t offset;
    return ms_find_file(address, BYTES, &offset);
}

/* A test that has none cannot be done here. */
static struct ms_file *find_first(void)
{
    struct ms_file *source = find(map(O_RDONLY, PROT_READ, MAP_PRIVATE));
    needs_mappings(source != NULL, path);
    return source;
}

static CUresult read_all(struct ms_file *source)
{
    static unsigned char buffer[BYTES];
    const void *bytes;
    return ms_source_read(ms_file_source(source), 0, buffer, BYTES, &bytes);
}

/* --- times */

static bool is_settled(long long modified_ms, long long changed_ms, bool is_coarse)
{
    const long long now_ms = 1700000000500;
    const struct timespec now = {now_ms / 1000, now_ms % 1000 * 1000000};
    const long long m = now_ms - modified_ms, c = now_ms - changed_ms;
    const struct stat stat = {
        .st_mtim = {m / 1000, is_coarse ? 0 : m % 1000 * 1000000 + 1},
        .st_ctim = {c / 1000, is_coarse ? 0 : c % 1000 * 1000000 + 1},
    };
    return ms_trust_is_settled(&stat, &now);
}

MS_TEST(both_times_must_be_older_than_a_tick)
{
    CHECK(is_settled(30, 30, false));
    CHECK(!is_settled(10, 30, false));
    CHECK(!is_settled(30, 10, false));
    CHECK(!is_settled(1000000, 10, false));  /* set back by hand, just now */
    CHECK(is_settled(-1000000, 30, false));  /* set ahead by hand */
    CHECK(!is_settled(-1000, -1000, false)); /* another machine's clock */
}

/* Another machine's clock. One that is ahead is told by a change time that is still to come. One
 * that is behind by more than a tick is not: a file that was written just now looks old, and a
 * second write within that clock's tick changes no time. */
MS_TEST(a_clock_that_is_behind_hides_a_write_within_its_tick)
{
    CHECK(!is_settled(-30, -30, false));
    CHECK(!is_settled(0, 0, false));
    CHECK(!is_settled(15, 15, false));
    CHECK(is_settled(30, 30, false));
    CHECK(!is_settled(1500, 1500, true));
    CHECK(is_settled(3200, 3200, true));
    struct stat written = {.st_size = 1, .st_nlink = 1}, again = written;
    CHECK(ms_trust_is_unchanged(&written, &again));
    again.st_mtim.tv_nsec++;
    CHECK(!ms_trust_is_unchanged(&written, &again));
    again = written;
    again.st_ctim.tv_nsec++;
    CHECK(!ms_trust_is_unchanged(&written, &again));
}

/* A nanosecond away from the bound on each side. Where seconds are counted all times are whole, so
 * one with a fraction tells that they are counted finer. */
MS_TEST(a_time_is_old_when_more_than_a_tick_has_passed)
{
    enum { TICK = 20000000 };
    static const struct {
        long long modified_ns, changed_ns; /* ago */
        bool is_settled;
    } rows[] =
        {
            {TICK + 1, TICK + 1, true},
            {TICK, TICK + 1, false},
            {TICK + 1, TICK, false},
            {-TICK - 1, TICK + 1, true},
            {-TICK, TICK + 1, false},
            {0, TICK + 1, false},
            {TICK + 1, -TICK - 1, false},
            {1500000000, 1000000000, true}, /* the latter a whole second */
            {1000000000, 1500000000, true},
            {2000000000, 2000000000, false},
        };
    const struct timespec now = {1700000000, 0};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const long long now_ns = now.tv_sec * 1000000000LL;
        const long long modified = now_ns - rows[i].modified_ns;
        const long long changed = now_ns - rows[i].changed_ns;
        const struct stat stat = {.st_mtim = {modified / 1000000000, modified % 1000000000},
                                  .st_ctim = {changed / 1000000000, changed % 1000000000}};
        if (ms_trust_is_settled(&stat, &now) != rows[i].is_settled)
            ms_test_fail(__FILE__, __LINE__, "row %zu", i);
    }
}

/* Each field in turn has another value, with and without another link count. */
MS_TEST(a_file_is_unchanged_when_all_but_its_links_is)
{
    const struct stat then = {.st_dev = 1,
                              .st_ino = 2,
                              .st_size = 3,
                              .st_nlink = 4,
                              .st_mtim = {5, 6},
                              .st_ctim = {7, 8},
                              .st_mode = S_IFREG};
    struct stat now[9];
    for (int i = 0; i < 9; i++)
        now[i] = then;
    now[0].st_dev++;
    now[1].st_ino++;
    now[2].st_size++;
    now[3].st_mtim.tv_sec++;
    now[4].st_mtim.tv_nsec++;
    now[5].st_ctim.tv_sec++;
    now[6].st_ctim.tv_nsec++;
    now[7].st_mode |= 0600;
    for (int i = 0; i < 9; i++) {
        CHECK_EQ(ms_trust_is_unchanged(&then, &now[i]), i >= 7);
        CHECK_EQ(ms_trust_is_unchanged(&now[i], &then), i >= 7);
        now[i].st_nlink--;
        CHECK_EQ(ms_trust_is_unchanged(&then, &now[i]), i >= 5);
    }
}

MS_TEST(a_file_is_older_than_the_process_by_its_change_time)
{
    struct timespec now;
    struct ms_file file = {.recorded.st_mtim.tv_sec = 1};
    clock_gettime(CLOCK_REALTIME, &now);
    file.recorded.st_ctim.tv_sec = now.tv_sec + 1;
    CHECK(!ms_trust_is_older(&file));
    file.recorded.st_ctim.tv_sec = now.tv_sec - 24 * 3600;
    CHECK(ms_trust_is_older(&file));
}

MS_TEST(times_of_whole_seconds_must_be_older)
{
    CHECK(!is_settled(30, 30, true));
    CHECK(!is_settled(1500, 1500, true));
    CHECK(is_settled(3000, 3000, true));
    CHECK(is_settled(1000000, 1000000, true));
}

static void (*on_sleep)(void);
static int sleeps;

int __wrap_nanosleep(const struct timespec *wanted, struct timespec *left)
{
    const int result = __real_nanosleep(wanted, left);
    sleeps++;
    if (on_sleep != NULL)
        on_sleep();
    return result;
}

static void write_again(void)
{
    const int file = open(path, O_WRONLY);
    CHECK_EQ(pwrite(file, "x", 1, 5), 1);
    close(file);
}

/* Within a tick of its clock a file system gives two writes the same time. */
MS_TEST(a_file_that_was_just_written_is_looked_at_again_after_a_tick)
{
    struct stat stat;
    make_file("/tmp");
    const int file = open(path, O_RDONLY);
    CHECK_EQ(fstat(file, &stat), 0);
    if (stat.st_mtim.tv_nsec == 0)
        ms_test_skip("times of whole seconds here");
    struct stat before = stat;
    CHECK(ms_trust_wait(file, &stat));
    for (int tries = 0; sleeps == 0 && tries < 100; tries++) { /* this thread had to wait itself */
        write_again();
        CHECK_EQ(fstat(file, &stat), 0);
        before = stat;
        CHECK(ms_trust_wait(file, &stat));
    }
    CHECK_EQ(sleeps, 1);
    CHECK(ms_trust_is_unchanged(&before, &stat));
    CHECK(ms_trust_wait(file, &stat)); /* it is older than that now */
    CHECK_EQ(sleeps, 1);
}

MS_TEST(a_file_that_changes_all_the_time_is_not_waited_for)
{
    struct stat stat;
    make_file("/tmp");
    const int file = open(path, O_RDONLY);
    CHECK_EQ(fstat(file, &stat), 0);
    if (stat.st_mtim.tv_nsec == 0)
        ms_test_skip("times of whole seconds here");
    on_sleep = write_again;
    CHECK(!ms_trust_wait(file, &stat));
    CHECK_EQ(sleeps, 5);
    on_sleep = NULL;
}

static void change_mode(void)
{
    CHECK_EQ(chmod(path, sleeps % 2 == 0 ? 0600 : 0640), 0);
}

MS_TEST(a_file_whose_change_time_alone_changes_is_not_waited_for)
{
    struct stat stat;
    make_file("/tmp");
    const int file = open(path, O_RDONLY);
    change_mode();
    CHECK_EQ(fstat(file, &stat), 0);
    if (stat.st_ctim.tv_nsec == 0)
        ms_test_skip("times of whole seconds here");
    on_sleep = change_mode;
    CHECK(!ms_trust_wait(file, &stat));
    CHECK_EQ(sleeps, 5);
    on_sleep = NULL;
}

/* Seconds would have to pass, and nobody is held up for so long. */
MS_TEST(a_new_time_of_whole_seconds_is_not_waited_for)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    struct stat stat = {.st_mtim.tv_sec = now.tv_sec, .st_ctim.tv_sec = now.tv_sec};
    CHECK(!ms_trust_wait(-1, &stat));
    CHECK_EQ(sleeps, 0);
    stat.st_mtim.tv_sec = stat.st_ctim.tv_sec = now.tv_sec - 100;
    CHECK(ms_trust_wait(-1, &stat));
    CHECK_EQ(sleeps, 0);
}

MS_TEST(a_file_that_tells_no_times_is_not_waited_for)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    struct stat stat = {.st_mtim = now, .st_ctim = now};
    stat.st_mtim.tv_nsec |= 1;
    CHECK(!ms_trust_wait(-1, &stat));
    CHECK(sleeps <= 1);
}

/* --- others at work */

/* NFS without a delegation, and CIFS without an oplock, refuse a lease by the error that means a
 * writer elsewhere; FUSE, Lustre and others grant one and know nothing of the other machines
 * (fs/nfs/nfs4proc.c, fs/smb/client/cifsfs.c, fs/locks.c). */
MS_TEST(leases_mean_something_on_local_file_systems_alone)
{
    const uint32_t local[] = {0xef53, 0x58465342, 0x9123683e, 0x01021994, 0x794c7630, 0x2fc12fc1};
    const uint32_t remote[] = {0x6969,     0xff534d42, 0xfe534d42, 0x65735546, 0x0bd00bd0,
                               0x00c36400, 0x01021997, 0x47504653, 0x19830326, 0};
    for (size_t i = 0; i < sizeof(local) / sizeof(local[0]); i++)
        CHECK(ms_trust_is_local_type(local[i]));
    for (size_t i = 0; i < sizeof(remote) / sizeof(remote[0]); i++)
        CHECK(!ms_trust_is_local_type(remote[i]));
}

/* The kernel's list of pages is of the emulator's addresses, so no page of a file in memory is
 * known to be the file's. */
static void skip_without_pagemap(void)
{
    if (ms_test_is_watched())
        ms_test_skip("an emulator hides which pages are a file's");
}

static void check_system(const char *folder)
{
    struct statfs system;
    make_file(folder);
    CHECK_EQ(statfs(path, &system), 0);
    const struct ms_file *source = find_first();
    const uint32_t type = (uint32_t)system.f_type;
    CHECK_EQ(source->system.is_local, ms_trust_is_local_type(type));
    CHECK_EQ(source->system.is_overlay, type == OVERLAYFS_SUPER_MAGIC);
    CHECK_EQ(source->system.is_in_memory, type == TMPFS_MAGIC);
    CHECK_EQ(source->system.hides_stores, type == TMPFS_MAGIC);
}

STORY_ALONE(a_source_knows_its_file_system, check_system("/tmp"), skip_without_pagemap(),
            check_system("/dev/shm"))

/* A new file, of such a file system. */
static bool is_source(void)
{
    struct stat stat_of;
    make_file("/tmp");
    CHECK_EQ(stat(path, &stat_of), 0);
    struct ms_mapping mapping = {.device = stat_of.st_dev, .inode = stat_of.st_ino};
    snprintf(mapping.path, sizeof(mapping.path), "%s", path);
    struct ms_file *source = ms_trust_open(&mapping, BYTES);
    if (source != NULL)
        ms_file_drop(source);
    unlink(path);
    return source != NULL;
}

static void skip_without_mappings(void)
{
    needs_mappings(is_source(), path);
}

/* The kernel's copy of the file may be older than the other machine's. */
MS_TEST(a_file_of_another_machine_is_what_that_machine_says)
{
    skip_without_mappings();
    pretended.asked_later_s = 1;
    CHECK(is_source()); /* of a local one the kernel knows all */
    pretended.type = REMOTE;
    CHECK(!is_source());
    CHECK(!ms_trust_was_not_asked());
    pretended.asked_later_s = 0;
    CHECK(is_source());
    pretended.type = OVERLAYFS_SUPER_MAGIC; /* it may lie over such a one */
    CHECK(is_source());
    pretended.asked_later_s = 1;
    CHECK(!is_source());
}

MS_TEST(a_file_of_another_machine_has_times)
{
    static const uint32_t types[] = {0, REMOTE, OVERLAYFS_SUPER_MAGIC};
    skip_without_mappings();
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        pretended.type = types[i];
        for (int none = 0; none < 4; none++) {
            pretended.has_no_modified = (none & 1) != 0;
            pretended.has_no_changed = (none & 2) != 0;
            CHECK_EQ(is_source(), none < 3 || types[i] == 0);
        }
    }
}

/* Where statx(2) is denied. */
MS_TEST(a_file_of_another_machine_that_nobody_can_ask_is_no_source)
{
    skip_without_mappings();
    pretended.asked_error = EPERM;
    CHECK(is_source());
    CHECK(!ms_trust_was_not_asked());
    pretended.type = OVERLAYFS_SUPER_MAGIC;
    CHECK(is_source());
    CHECK(!ms_trust_was_not_asked());
    pretended.type = REMOTE;
    CHECK(!is_source());
    CHECK(ms_trust_was_not_asked());
    CHECK(!ms_trust_was_not_asked()); /* it is told once */
}

MS_TEST(a_file_that_tells_nothing_of_itself_is_no_source)
{
    skip_without_mappings();
    for (int is_remote = 0; is_remote < 2; is_remote++) {
        pretended.type = is_remote ? REMOTE : 0;
        pretended.asked_error = EIO;
        CHECK(!is_source());
        pretended.asked_error = 0;
        pretended.kept_error = EIO;
        CHECK(!is_source());
        pretended.kept_error = 0;
        CHECK(is_source());
        CHECK(!ms_trust_was_not_asked());
    }
}

/* A file of an overlay that is younger than the process may be a copy, made since. */
MS_TEST(a_new_file_of_an_overlay_may_be_a_copy)
{
    skip_without_mappings();
    for (int kind = 0; kind < 3; kind++) {
        pretended.type = kind > 0 ? OVERLAYFS_SUPER_MAGIC : EXT4_SUPER_MAGIC;
        pretended.has_no_changed = kind == 2;
        make_file("/tmp");
        struct ms_file *source = find_first();
        CHECK_EQ(source->system.may_be_copy, kind == 1);
        CHECK_EQ(ms_trust_is_older(source), kind == 2);
        ms_file_drop(source);
        unlink(path);
    }
}

/* As where files in memory have no seals. */
MS_TEST(stores_to_a_file_in_memory_without_seals_are_hidden)
{
    skip_without_mappings();
    pretended.type = TMPFS_MAGIC;
    make_file("/tmp");
    const struct ms_file *source = find_first();
    CHECK(source->system.is_in_memory && source->system.hides_stores);
}

/* --- who uses it */

static struct ms_file *open_by(const char *by_path, const struct stat *stat_of, uint64_t end)
{
    struct ms_mapping mapping = {.device = stat_of->st_dev, .inode = stat_of->st_ino};
    snprintf(mapping.path, sizeof(mapping.path), "%s", by_path);
    return ms_trust_open(&mapping, end);
}

/* Then the file does not become a source, whatever its name. */
static bool is_in_use(int file)
{
    char name[40];
    struct stat stat_of;
    CHECK_EQ(fstat(file, &stat_of), 0);
    snprintf(name, sizeof(name), "/proc/self/fd/%d", file);
    struct ms_file *source = open_by(name, &stat_of, 0);
    if (source != NULL)
        ms_file_drop(source);
    return source == NULL;
}

MS_TEST(a_file_is_in_use_by_a_writer_a_lock_or_when_it_is_deleted)
{
    static const uint32_t types[] = {0, REMOTE, OVERLAYFS_SUPER_MAGIC};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        pretended.type = types[i];
        make_file("/tmp");
        const int file = open(path, O_RDONLY), reader = open(path, O_RDONLY);
        CHECK(!is_in_use(file));
        struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
        CHECK_EQ(fcntl(reader, F_OFD_SETLK, &lock), 0);
        CHECK(is_in_use(file));
        lock.l_type = F_UNLCK;
        CHECK_EQ(fcntl(reader, F_OFD_SETLK, &lock), 0);
        CHECK(!is_in_use(file));
        const int writer = open(path, O_WRONLY | O_NONBLOCK);
        CHECK(writer >= 0);                            /* what was asked by is given back */
        CHECK_EQ(is_in_use(file), types[i] != REMOTE); /* there the kernel does not know */
        close(writer);
        CHECK(!is_in_use(file));
        unlink(path);
        CHECK(is_in_use(file)); /* who has deleted it wants its space */
        close(reader);
        close(file);
    }
}

STORY_ALONE(a_file_that_nobody_uses_is_a_source, make_file("/tmp"),
            IS(find(map(O_RDONLY, PROT_READ, MAP_PRIVATE)) != NULL), skip_without_pagemap(),
            make_file("/dev/shm"), IS(find(map(O_RDONLY, PROT_READ, MAP_PRIVATE)) != NULL))

static void check_locked(int command, short type)
{
    make_file("/tmp");
    unsigned char *address = map(O_RDONLY, PROT_READ, MAP_PRIVATE);
    const int file = open(path, type == F_WRLCK ? O_RDWR : O_RDONLY);
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = 1, .l_len = 1};
    CHECK_EQ(fcntl(file, command, &lock), 0);
    CHECK(find(address) == NULL);
    const pid_t child = fork();
    if (child == 0) {
        lock = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET};
        _exit(fcntl(open(path, O_RDWR), F_SETLK, &lock) == 0);
    }
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0); /* the lock is still held */
}

STORY_ALONE(a_locked_file_is_no_source_and_stays_locked, check_locked(F_SETLK, F_RDLCK),
            check_locked(F_SETLK, F_WRLCK), check_locked(F_OFD_SETLK, F_RDLCK))

MS_TEST(a_lock_on_a_source_stays)
{
    make_file("/tmp");
    struct ms_file *source = find(map(O_RDONLY, PROT_READ, MAP_PRIVATE));
    CHECK(source != NULL);
    const int file = open(path, O_RDONLY);
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    CHECK_EQ(fcntl(file, F_SETLK, &lock), 0);
    CHECK_EQ(read_all(source), CUDA_SUCCESS);
    ms_file_drop(source);
    const pid_t child = fork();
    if (child == 0) {
        lock.l_type = F_WRLCK;
        _exit(fcntl(open(path, O_RDWR), F_SETLK, &lock) == 0);
    }
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
}

static void check_writer(const char *folder)
{
    make_file(folder);
    unsigned char *address = map(O_RDONLY, PROT_READ, MAP_PRIVATE);
    const int file = open(path, O_RDWR);
    CHECK(find(address) == NULL);
    close(file);
    CHECK(find(address) != NULL);
}

STORY_ALONE(a_file_that_is_open_for_writing_is_no_source, check_writer("/tmp"),
            skip_without_pagemap(), check_writer("/dev/shm"))

/* Its page is dirty, so a store changes no time; nor does any on tmpfs. */
static void check_stores_of_another_process(const char *folder)
{
    int ready[2], go[2], status;
    char byte = 0;
    make_file(folder);
    unsigned char *address = map(O_RDONLY, PROT_READ, MAP_PRIVATE);
    CHECK(pipe(ready) == 0 && pipe(go) == 0);
    const pid_t child = fork();
    if (child == 0) {
        close(go[1]); /* it ends with its parent */
        unsigned char *shared = map(O_RDWR, PROT_READ | PROT_WRITE, MAP_SHARED);
        shared[5] ^= 1;
        _exit(write(ready[1], &byte, 1) != 1 || read(go[0], &byte, 1) != 1);
    }
    CHECK_EQ(read(ready[0], &byte, 1), 1);
    CHECK(find(address) == NULL);
    CHECK_EQ(write(go[1], &byte, 1), 1);
    CHECK_EQ(waitpid(child, &status, 0), child);
}

STORY_ALONE(a_file_that_another_process_can_store_to_is_no_source,
            check_stores_of_another_process("/tmp"), check_stores_of_another_process("/dev/shm"))

/* The first store to a page changes the times, unless it was read before, or stored to. */
static unsigned char *store_unseen(void)
{
    struct stat before, after;
    unsigned char *shared = map(O_RDWR, PROT_READ | PROT_WRITE, MAP_SHARED);
    CHECK_EQ(stat(path, &before), 0);
    const unsigned char byte = *(volatile unsigned char *)&shared[5];
    *(volatile unsigned char *)&shared[5] = byte ^ 1;
    CHECK_EQ(stat(path, &after), 0);
    if (!ms_trust_is_unchanged(&before, &after))
        ms_test_skip("stores show in the times here");
    return shared;
}

MS_TEST(stores_on_tmpfs_are_refused)
{
    make_file("/dev/shm");
    struct ms_file *source = find_first();
    CHECK_EQ(read_all(source), CUDA_SUCCESS);
    store_unseen(); /* by this process, in a mapping that is made after the look */
    CHECK_EQ(read_all(source), CUDA_ERROR_OPERATING_SYSTEM);
}

MS_TEST(stores_on_tmpfs_in_between_are_refused)
{
    make_file("/dev/shm");
    struct ms_file *source = find_first();
    CHECK_EQ(read_all(source), CUDA_SUCCESS);
    munmap(store_unseen(), BYTES);
    CHECK_EQ(read_all(source), CUDA_ERROR_OPERATING_SYSTEM);
}

static unsigned char *make_memory_file(int seals)
{
    const int file = memfd_create("checkpoint", MFD_ALLOW_SEALING);
    CHECK(file >= 0);
    write_file(file);
    CHECK_EQ(fcntl(file, F_ADD_SEALS, seals), 0);
    unsigned char *address = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, file, 0);
    CHECK(address != MAP_FAILED);
    return address;
}

MS_TEST(memory_files_are_sources_when_they_are_sealed)
{
    CHECK(find(make_memory_file(F_SEAL_SHRINK | F_SEAL_GROW)) == NULL);
    struct ms_file *source = find(make_memory_file(F_SEAL_WRITE));
    if (source == NULL)
        ms_test_skip("a file without a name cannot be opened here");
    CHECK_EQ(read_all(source), CUDA_SUCCESS);
}

/* The kernel does not count who can store to them. */
static void check_seal(unsigned flags, uint32_t type, bool is_sealed)
{
    char link[40];
    struct statfs system;
    const int writer = memfd_create("checkpoint", MFD_ALLOW_SEALING | flags);
    if (writer < 0)
        ms_test_skip("no such memory files here");
    if (is_sealed)
        CHECK_EQ(fcntl(writer, F_ADD_SEALS, F_SEAL_WRITE), 0);
    snprintf(link, sizeof(link), "/proc/self/fd/%d", writer);
    const int file = open(link, O_RDONLY);
    CHECK(file >= 0);
    close(writer);
    CHECK_EQ(fstatfs(file, &system), 0);
    if ((uint32_t)system.f_type != type)
        ms_test_skip("memory files are on another file system here");
    CHECK_EQ(is_in_use(file), !is_sealed);
    close(file);
}

STORY_ALONE(a_memory_file_without_a_seal_is_in_use, check_seal(0, TMPFS_MAGIC, false),
            check_seal(0, TMPFS_MAGIC, true))

STORY_ALONE(a_memory_file_of_huge_pages_without_a_seal_is_in_use,
            check_seal(MFD_HUGETLB, HUGETLBFS_MAGIC, false),
            check_seal(MFD_HUGETLB, HUGETLBFS_MAGIC, true))

/* --- which source it is */

static struct ms_file *open_again(uint64_t end)
{
    struct stat stat_of;
    CHECK_EQ(stat(path, &stat_of), 0);
    return open_by(path, &stat_of, end);
}

MS_TEST(a_file_is_a_source_of_as_many_bytes_as_it_has)
{
    make_file("/tmp");
    CHECK(open_again(BYTES + 1) == NULL);
    struct ms_file *source = open_again(BYTES);
    CHECK(source != NULL);
    CHECK(open_again(BYTES + 1) == NULL);
    CHECK(open_again(BYTES) == source && open_again(0) == source);
    for (int i = 0; i < 3; i++)
        ms_file_drop(source);
}

/* For files of other machines and of overlays, the kernel's numbers of a mapping are not enough. */
MS_TEST(a_file_is_one_source_by_each_of_its_names)
{
    static const uint32_t types[] = {EXT4_SUPER_MAGIC, REMOTE, OVERLAYFS_SUPER_MAGIC};
    char link_path[sizeof(path) + 1];
    struct stat stat_of;
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        pretended.type = types[i];
        make_file("/tmp");
        snprintf(link_path, sizeof(link_path), "%s2", path);
        CHECK_EQ(link(path, link_path), 0);
        CHECK_EQ(stat(path, &stat_of), 0);
        struct ms_file *source = open_by(path, &stat_of, BYTES);
        CHECK(source != NULL);
        const int before = count_open_there();
        CHECK(open_by(path, &stat_of, BYTES) == source);
        CHECK(open_by(link_path, &stat_of, BYTES) == source);
        CHECK_EQ(count_open_there(), before);
        for (int drop = 0; drop < 3; drop++)
            ms_file_drop(source);
        CHECK_EQ(count_open_there(), before - 1);
        unlink(link_path);
        unlink(path);
    }
}

/* Only its name is gone: a local file is known by its numbers. */
MS_TEST(a_local_file_that_is_held_needs_no_name)
{
    struct stat stat_of;
    for (int is_remote = 0; is_remote < 2; is_remote++) {
        pretended.type = is_remote ? REMOTE : EXT4_SUPER_MAGIC;
        make_file("/tmp");
        CHECK_EQ(stat(path, &stat_of), 0);
        struct ms_file *source = open_by(path, &stat_of, BYTES);
        CHECK(source != NULL);
        CHECK(open_by("/nowhere/at/all", &stat_of, BYTES) == (is_remote ? NULL : source));
        struct stat another = stat_of;
        another.st_ino++;
        CHECK(open_by(path, &another, BYTES) == NULL);
        another = stat_of;
        another.st_dev++;
        CHECK(open_by(path, &another, BYTES) == NULL);
        ms_file_drop(source);
        if (!is_remote)
            ms_file_drop(source);
        unlink(path);
    }
}

MS_TEST(a_file_that_was_given_up_or_has_changed_becomes_another_source)
{
    static const uint32_t types[] = {EXT4_SUPER_MAGIC, REMOTE, OVERLAYFS_SUPER_MAGIC};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        pretended.type = types[i];
        make_file("/tmp");
        struct ms_file *first = open_again(BYTES);
        CHECK(first != NULL);
        atomic_store(&first->state, MS_FILE_IS_LOST);
        struct ms_file *second = open_again(BYTES);
        CHECK(second != NULL && second != first);
        write_again();
        struct ms_file *third = open_again(BYTES);
        CHECK(third != NULL && third != second && third != first);
        CHECK(open_again(BYTES) == third);
        ms_file_drop(first);
        ms_file_drop(second);
        ms_file_drop(third);
        ms_file_drop(third);
        unlink(path);
    }
}

MS_TEST(a_file_that_is_refused_leaves_nothing_open)
{
    make_file("/tmp");
    pretended.type = REMOTE;
    struct ms_file *source = open_again(BYTES); /* what is kept open for all is, by now */
    CHECK(source != NULL);
    ms_file_drop(source);
    pretended.type = 0;
    const int before = count_open_there(), writer = open(path, O_WRONLY);
    CHECK(open_again(BYTES) == NULL);
    close(writer);
    CHECK(open_again(BYTES + 1) == NULL);
    pretended.asked_error = EIO;
    CHECK(open_again(BYTES) == NULL);
    pretended.asked_error = 0;
    pretended.type = REMOTE;
    unsigned char *shared = map(O_RDWR, PROT_READ | PROT_WRITE, MAP_SHARED);
    CHECK(open_again(BYTES) == NULL);
    CHECK_EQ(munmap(shared, BYTES), 0);
    CHECK_EQ(count_open_there(), before);
    CHECK(ms_files.first == NULL);
}

/* --- mappings, where the kernel does not know who writes */

static bool is_known_to_be_sure;

static void ask_there(void *source)
{
    is_known_to_be_sure = ms_trust_is_sure(source);
}

static bool is_sure(struct ms_file *source)
{
    CHECK(ms_file_thread_call(ask_there, source));
    return is_known_to_be_sure;
}

static void check_mapped(uint32_t type, bool looks_later)
{
    skip_without_mappings();
    pretended.type = type;
    make_file("/tmp");
    unsigned char *address = map(O_RDONLY, PROT_READ, MAP_PRIVATE);
    unsigned char *shared = map(O_RDWR, PROT_READ | PROT_WRITE, MAP_SHARED);
    CHECK(find(address) == NULL);
    CHECK_EQ(munmap(shared, BYTES), 0);
    struct ms_file *source = find(address);
    CHECK(source != NULL);
    CHECK(is_sure(source));
    shared = map(O_RDWR, PROT_READ | PROT_WRITE, MAP_SHARED);
    CHECK_EQ(is_sure(source), !looks_later);
    struct ms_file *again = find(address);
    CHECK_EQ(again == NULL, looks_later); /* the same question */
    if (again != NULL)
        ms_file_drop(again);
    CHECK_EQ(munmap(shared, BYTES), 0);
    CHECK(is_sure(source));
    CHECK(ms_trust_check_mappings(source, &(struct ms_file_failure){0}));
    atomic_store(&source->state, MS_FILE_IS_LOST);
    CHECK(!is_sure(source));
    atomic_store(&source->state, MS_FILE_IS_OPEN);
    ms_file_drop(source);
}

/* A mapping that is made later shows by its first store. */
MS_TEST(a_file_of_another_machine_that_is_mapped_to_be_stored_to_is_no_source)
{
    check_mapped(REMOTE, false);
}

/* The mapping is of the file below, whose times are other ones. */
MS_TEST(a_file_of_an_overlay_is_looked_at_each_time)
{
    check_mapped(OVERLAYFS_SUPER_MAGIC, true);
}

MS_TEST(a_local_file_that_is_mapped_to_be_stored_to_is_not_sure)
{
    check_mapped(EXT4_SUPER_MAGIC, true);
}

/* --- what has changed */

/* Its links are the one innocent reason for a new change time, and each explains one. */
MS_TEST(a_new_link_explains_one_new_change_time)
{
    char link_path[sizeof(path) + 1];
    make_file("/tmp");
    struct ms_file *source = find_first();
    snprintf(link_path, sizeof(link_path), "%s2", path);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(link(path, link_path), 0);
        CHECK_EQ(read_all(source), CUDA_SUCCESS);
        CHECK_EQ(unlink(link_path), 0);
        CHECK_EQ(read_all(source), CUDA_SUCCESS);
    }
    CHECK_EQ(chmod(path, 0640), 0);
    CHECK_EQ(read_all(source), CUDA_ERROR_OPERATING_SYSTEM);
    ms_file_drop(source);
}

MS_TEST(a_file_loses_its_links_once)
{
    const struct ms_file had = {.recorded.st_nlink = 1}, never = {.recorded.st_nlink = 0};
    CHECK(ms_file_has_lost_links(&had, &(struct stat){.st_nlink = 0}));
    CHECK(!ms_file_has_lost_links(&had, &(struct stat){.st_nlink = 1}));
    CHECK(!ms_file_has_lost_links(&never, &(struct stat){.st_nlink = 0}));
    CHECK(!ms_file_has_lost_links(&never, &(struct stat){.st_nlink = 1}));
}

MS_TEST(a_file_that_loses_its_links_is_noted_as_deleted)
{
    make_file("/tmp");
    struct ms_file *source = find_first();
    CHECK_EQ(read_all(source), CUDA_SUCCESS);
    CHECK(!atomic_load(&source->is_deleted));
    CHECK_EQ(unlink(path), 0);
    CHECK_EQ(read_all(source), CUDA_SUCCESS);
    CHECK(atomic_load(&source->is_deleted));
    ms_file_drop(source);
}

static struct ms_file_failure failure;
static bool is_same;

static void check_there(void *source)
{
    is_same = ms_trust_check(source, &failure);
}

/* MS_SOURCE_KINDS: it is the same. */
static int check_kind(struct ms_file *source)
{
    memset(&failure, 0x5a, sizeof(failure));
    CHECK(ms_file_thread_call(check_there, source));
    CHECK(failure.file == source);
    return is_same ? -1 : (int)failure.kind;
}

MS_TEST(a_check_says_why_a_file_is_not_as_it_was)
{
    make_file("/tmp");
    struct ms_file *source = find_first();
    CHECK_EQ(check_kind(source), -1);
    pretended.asked_error = EIO;
    CHECK_EQ(check_kind(source), MS_FAILURE_LOST);
    CHECK_EQ(failure.error, EIO);
    pretended.asked_error = 0;
    write_again();
    CHECK_EQ(check_kind(source), MS_FAILURE_CHANGED);
    CHECK_EQ(failure.now.st_size, BYTES);
    atomic_store(&source->copy, 0); /* it is not read any more */
    CHECK_EQ(check_kind(source), -1);
    atomic_store(&source->copy, -1);
    CHECK_EQ(check_kind(source), MS_FAILURE_CHANGED);
    atomic_store(&source->state, MS_FILE_IS_LOST);
    CHECK_EQ(check_kind(source), MS_FAILURE_GIVEN_UP);
    atomic_store(&source->state, MS_FILE_IS_OPEN);
    ms_file_drop(source);
}

MS_TEST(stores_that_show_in_no_time_are_told_by_their_writer)
{
    pretended.type = TMPFS_MAGIC;
    make_file("/tmp");
    struct ms_file *source = find_first();
    CHECK_EQ(check_kind(source), -1);
    const int writer = open(path, O_WRONLY);
    CHECK_EQ(check_kind(source), MS_FAILURE_WRITTEN);
    close(writer);
    CHECK_EQ(check_kind(source), MS_FAILURE_WRITTEN); /* it had one */
    ms_file_drop(source);
}

/* --- without a table of its own */

static void deny_table(void)
{
    deny(436, EPERM); /* close_range */
    deny(SYS_unshare, EPERM);
}

static bool can_others_lock(void)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    const pid_t child = fork();
    if (child == 0)
        _exit(fcntl(open(path, O_RDWR), F_SETLK, &lock) == 0);
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    return status != 0;
}

static int first_free(void)
{
    const int descriptor = dup(0);
    close(descriptor);
    return descriptor;
}

MS_TEST_AFTER(deny_table, locks_stay_in_the_programs_table)
{
    make_file("/tmp");
    unsigned char *address = map(O_RDONLY, PROT_READ, MAP_PRIVATE);
    const int file = open(path, O_RDONLY);
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    CHECK_EQ(fcntl(file, F_SETLK, &lock), 0);
    const int before = first_free();
    for (int i = 0; i < 100; i++)
        CHECK(find(address) == NULL);
    CHECK(first_free() <= before + 1);
    CHECK(!can_others_lock());
}

MS_TEST_AFTER(deny_table, a_lock_on_a_source_stays_in_the_programs_table)
{
    make_file("/tmp");
    struct ms_file *source = find_first();
    CHECK(source->descriptor >= 512);
    const int file = open(path, O_RDONLY);
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    CHECK_EQ(fcntl(file, F_SETLK, &lock), 0);
    CHECK_EQ(read_all(source), CUDA_SUCCESS);
    ms_file_drop(source);
    CHECK(!can_others_lock());
}

MS_TEST_AFTER(deny_table, a_number_that_the_program_took_is_not_closed)
{
    make_file("/tmp");
    struct ms_file *source = find_first();
    const int number = source->descriptor;
    CHECK_EQ(dup2(0, number), number);
    CHECK_EQ(read_all(source), CUDA_ERROR_OPERATING_SYSTEM);
    ms_file_drop(source);
    CHECK(fcntl(number, F_GETFD) >= 0);
}

/* A lease was seen a moment ago, but it went with the descriptor. The other file may have one. */
MS_TEST_AFTER(deny_table, a_number_that_is_another_files_is_not_read)
{
    ms_config.leases = true;
    for (int has_lease = 0; has_lease < 2; has_lease++) {
        char first[sizeof(path)];
        make_file("/tmp");
        struct ms_file *source = find_first();
        CHECK_EQ(read_all(source), CUDA_SUCCESS);
        memcpy(first, path, sizeof(path));
        make_file("/tmp");
        const int other = open(path, O_RDONLY);
        if (has_lease && fcntl(other, F_SETLEASE, F_RDLCK) != 0)
            ms_test_skip("no leases here");
        CHECK_EQ(dup2(other, source->descriptor), source->descriptor);
        CHECK_EQ(read_all(source), CUDA_ERROR_OPERATING_SYSTEM);
        unlink(first);
        unlink(path);
    }
}

/* --- leases */

/* As the kernel does when somebody has waited for lease-break-time. */
static void take_lease_away(void *argument)
{
    struct ms_file *source = argument;
    CHECK_EQ(syscall(SYS_fcntl, source->descriptor, F_SETLEASE, F_UNLCK), 0);
    atomic_store(&source->lease.held_ns, 0);
}

MS_TEST(a_writer_that_has_waited_too_long_is_told_of)
{
    ms_config.leases = true;
    make_file("/tmp");
    struct ms_file *source = find_first();
    needs_lease(atomic_load(&source->lease.is_taken), path);
    open_log(MS_WARN);
    CHECK(ms_file_thread_call(take_lease_away, source));
    CHECK_EQ(read_all(source), CUDA_SUCCESS); /* nobody has changed it yet */
    CHECK_EQ(truncate(path, 100), 0);
    CHECK_EQ(read_all(source), CUDA_ERROR_OPERATING_SYSTEM);
    CHECK_EQ(count_log_lines("(size 100, was "), 1);
    CHECK_EQ(count_log_lines("lease-break-time"), 1);
    ms_file_drop(source);
}

/* Nobody else can have changed a local file under a lease, but another machine may have changed the
 * file of a layer. */
MS_TEST(times_under_a_lease_count_for_overlays_alone)
{
    ms_config.leases = true;
    for (int is_overlay = 0; is_overlay < 2; is_overlay++) {
        pretended.type = is_overlay ? OVERLAYFS_SUPER_MAGIC : EXT4_SUPER_MAGIC;
        make_file("/tmp");
        struct ms_file *source = open_again(BYTES);
        CHECK(source != NULL);
        needs_lease(atomic_load(&source->lease.is_taken), path);
        CHECK_EQ(chmod(path, 0640), 0);
        CHECK_EQ(check_kind(source), -1);
        pretended.asked_later_s = 1;
        CHECK_EQ(check_kind(source), is_overlay ? (int)MS_FAILURE_CHANGED : -1);
        pretended.asked_later_s = 2;
        CHECK(ms_file_thread_call(take_lease_away, source));
        CHECK_EQ(check_kind(source), is_overlay ? MS_FAILURE_CHANGED : MS_FAILURE_UNANSWERED);
        pretended.asked_later_s = 0;
        ms_file_drop(source);
        unlink(path);
    }
}

static void drop_lease(void *argument)
{
    struct ms_file *source = argument;
    ms_lease_drop(&source->lease, source->descriptor);
}

/* A change under the lease is no reason to refuse the file when the lease is gone. */
MS_TEST(times_that_change_under_a_lease_are_known_afterwards)
{
    ms_config.leases = true;
    make_file("/tmp");
    struct ms_file *source = find_first();
    needs_lease(atomic_load(&source->lease.is_taken), path);
    CHECK_EQ(chmod(path, 0640), 0);
    CHECK_EQ(read_all(source), CUDA_SUCCESS);
    CHECK(ms_file_thread_call(drop_lease, source));
    CHECK_EQ(read_all(source), CUDA_SUCCESS);
    CHECK_EQ(chmod(path, 0600), 0);
    CHECK_EQ(read_all(source), CUDA_ERROR_OPERATING_SYSTEM);
    ms_file_drop(source);
}
