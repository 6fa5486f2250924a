/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that read, change, delete or lease files, as programs make them: this program's own arrive
 * at the shim's. Checks what they tell the runtime, and what of it the program sees.
 */
#include "shim/file_calls.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "runtime/calls/file_writes.h"
#include "runtime/driver/flags.h"
#include "runtime/files/read_ahead.h"
#include "runtime/finding/held_files.h"
#include "runtime/finding/reads.h"
#include "shim/off.h"
#include "shim/real.h"
#include "tests/unit/between.h"

enum { LEAST = MS_READS_LEAST, FILE_BYTES = 4 * LEAST, BEFORE = 77, HELD = 5, FAKED = 100 };

/* By these names headers cannot turn a call into another one. */
int call_open(const char *name, int flags, ...) __asm__("open");
int call_open64(const char *name, int flags, ...) __asm__("open64");
int call_openat(int folder, const char *name, int flags, ...) __asm__("openat");
int call_openat64(int folder, const char *name, int flags, ...) __asm__("openat64");
int call_open_2(const char *name, int flags) __asm__("__open_2");
int call_open64_2(const char *name, int flags) __asm__("__open64_2");
int call_openat_2(int folder, const char *name, int flags) __asm__("__openat_2");
int call_openat64_2(int folder, const char *name, int flags) __asm__("__openat64_2");
int call_creat(const char *name, mode_t mode) __asm__("creat");
int call_creat64(const char *name, mode_t mode) __asm__("creat64");
FILE *call_fopen(const char *name, const char *mode) __asm__("fopen");
FILE *call_fopen64(const char *name, const char *mode) __asm__("fopen64");
FILE *call_freopen(const char *name, const char *mode, FILE *stream) __asm__("freopen");
FILE *call_freopen64(const char *name, const char *mode, FILE *stream) __asm__("freopen64");
int call_truncate(const char *name, off_t bytes) __asm__("truncate");
int call_truncate64(const char *name, off_t bytes) __asm__("truncate64");
int call_ftruncate(int to, off_t bytes) __asm__("ftruncate");
int call_ftruncate64(int to, off_t bytes) __asm__("ftruncate64");
int call_fallocate(int to, int mode, off_t at, off_t bytes) __asm__("fallocate");
int call_fallocate64(int to, int mode, off_t at, off_t bytes) __asm__("fallocate64");
int call_posix_fallocate(int to, off_t at, off_t bytes) __asm__("posix_fallocate");
int call_posix_fallocate64(int to, off_t at, off_t bytes) __asm__("posix_fallocate64");
ssize_t call_copy_file_range(int from, off_t *from_at, int to, off_t *at, size_t bytes,
                             unsigned flags) __asm__("copy_file_range");
ssize_t call_sendfile(int to, int from, off_t *at, size_t bytes) __asm__("sendfile");
ssize_t call_sendfile64(int to, int from, off_t *at, size_t bytes) __asm__("sendfile64");
void *call_mmap(void *address, size_t bytes, int protection, int flags, int of,
                off_t offset) __asm__("mmap");
void *call_mmap64(void *address, size_t bytes, int protection, int flags, int of,
                  off_t offset) __asm__("mmap64");

/* --- the runtime */

static struct {
    enum ms_file_change change;
    char call[32];
    dev_t device;
    ino_t inode;
    unsigned count;
} prepared;
static int refusal;
static bool is_off;
static unsigned lookups;

struct noted {
    int file;
    const void *address;
    size_t bytes;
    int64_t offset;
    uint32_t held;
};
static struct noted notes[8];
static unsigned note_count, hold_count, opened_count, mapped_count, ahead_count;
static int noted_file;

WRAPS(ms_file_writes_prepare, ms_reads_note, ms_reads_note_open, ms_reads_note_map);
WRAPS(ms_read_ahead_note_map, ms_held_files_hold);
int __wrap_ms_file_writes_prepare(enum ms_file_change change, const char *call, dev_t device,
                                  ino_t inode)
{
    prepared.change = change;
    snprintf(prepared.call, sizeof(prepared.call), "%s", call);
    prepared.device = device;
    prepared.inode = inode;
    prepared.count++;
    errno = EDOM; /* whatever it did */
    return refusal;
}

void __wrap_ms_reads_note(int file, const void *address, size_t bytes, int64_t offset,
                          uint32_t held)
{
    CHECK(note_count < 8);
    notes[note_count++] = (struct noted){file, address, bytes, offset, held};
}

void __wrap_ms_reads_note_open(int file)
{
    noted_file = file;
    opened_count++;
}

void __wrap_ms_reads_note_map(int file)
{
    noted_file = file;
    mapped_count++;
}

void __wrap_ms_read_ahead_note_map(int file, void *address, size_t bytes)
{
    CHECK(file == noted_file && address != NULL && bytes > 0);
    ahead_count++;
}

uint32_t __wrap_ms_held_files_hold(int file)
{
    CHECK(file >= 0);
    hold_count++;
    return HELD;
}

bool ms_is_off(void)
{
    return is_off;
}

/* --- libc. Where a test needs no file, or kernels differ, it is the test's */

static bool is_faked;
static int faked_result;
static mode_t faked_mode;
static ssize_t faked_got;
static struct {
    void *address;
    size_t bytes;
    int protection, flags, file;
    off_t offset;
} faked_map;

static int fake_open(const char *name, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    faked_mode = va_arg(arguments, mode_t);
    va_end(arguments);
    return name != NULL ? faked_result : -1;
}

static FILE *fake_fopen(const char *name, const char *mode)
{
    return name != NULL && mode != NULL ? stdout : NULL;
}

static FILE *fake_freopen(const char *name, const char *mode, FILE *stream)
{
    return mode != NULL && name != mode ? stream : NULL;
}

static int fake_fallocate(int to, int mode, off_t at, off_t bytes)
{
    return to >= 0 && mode == 0 && at == 0 && bytes == 1 ? 0 : -1;
}

static ssize_t fake_copy(int from, off_t *from_at, int to, off_t *at, size_t bytes, unsigned flags)
{
    return from >= 0 && from_at == NULL && to >= 0 && at == NULL && bytes == 1 && flags == 0;
}

static int fake_exchange(int from_folder, const char *from, int folder, const char *name,
                         unsigned flags)
{
    int (*real)(int, const char *, int, const char *) =
        (int (*)(int, const char *, int, const char *))dlsym(RTLD_NEXT, "renameat");
    return flags != 0 ? 0 : real(from_folder, from, folder, name);
}

static int fake_fcntl(int file, int command, ...)
{
    int (*real)(int, int, ...) = (int (*)(int, int, ...))dlsym(RTLD_NEXT, "fcntl");
    return command == F_SETLEASE ? 0 : real(file, command, 0);
}

static ssize_t fake_readv(int file, const struct iovec *parts, int count)
{
    CHECK(file >= 0 && parts != NULL && count > 0);
    return faked_got;
}

static size_t fake_fread(void *buffer, size_t bytes, size_t count, FILE *stream)
{
    CHECK(buffer != NULL && bytes > 0 && stream != NULL);
    return count;
}

static void *fake_mmap(void *address, size_t bytes, int protection, int flags, int file,
                       off_t offset)
{
    static char mapped;
    faked_map = (__typeof__(faked_map)){address, bytes, protection, flags, file, offset};
    return &mapped;
}

static const struct {
    const char *name;
    void *function;
    bool is_always; /* else in tests that ask for it */
} fakes[] = {
    {"open", (void *)fake_open, false},
    {"fopen", (void *)fake_fopen, false},
    {"freopen", (void *)fake_freopen, false},
    {"fallocate", (void *)fake_fallocate, true},
    {"fallocate64", (void *)fake_fallocate, true},
    {"copy_file_range", (void *)fake_copy, true},
    {"renameat2", (void *)fake_exchange, true},
    {"fcntl", (void *)fake_fcntl, true},
    {"fcntl64", (void *)fake_fcntl, true},
    {"readv", (void *)fake_readv, false},
    {"fread", (void *)fake_fread, false},
    {"mmap", (void *)fake_mmap, false},
};

static void *look_up(void *handle, const char *name)
{
    CHECK(handle == RTLD_NEXT);
    lookups++;
    for (size_t i = 0; i < sizeof(fakes) / sizeof(fakes[0]); i++) {
        if (strcmp(fakes[i].name, name) == 0 && (fakes[i].is_always || is_faked))
            return fakes[i].function;
    }
    return dlsym(RTLD_NEXT, name);
}

ms_dlsym *ms_libc_dlsym(void)
{
    return look_up;
}

/* --- the files of a test: "file", whose descriptor is `file`, and "other" */

static char folder_name[64], path[96], other_path[96];
static int folder, file, other;
static char buffer[FILE_BYTES];

static void make(char *path_out, const char *name, int *file_out)
{
    snprintf(path_out, 96, "%s/%s", folder_name, name);
    *file_out = call_open64(path_out, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    CHECK(*file_out >= 0 && ftruncate(*file_out, FILE_BYTES) == 0);
}

static void start(void)
{
    strcpy(folder_name, "/tmp/metashard-test-XXXXXX");
    CHECK(mkdtemp(folder_name) != NULL);
    folder = call_open64(folder_name, O_PATH | O_DIRECTORY);
    make(path, "file", &file);
    make(other_path, "other", &other);
    atomic_store(&ms_hot.files, 1);
    lookups = note_count = 0;
}

static void start_with_fakes(void)
{
    is_faked = true;
    start();
}

static void end(void)
{
    char command[96];
    atomic_store(&ms_hot.files, 0);
    snprintf(command, sizeof(command), "rm -r %s", folder_name);
    CHECK_EQ(system(command), 0);
    close(file);
    close(other);
    close(folder);
}

#define TEST(name) MS_TEST_BETWEEN(start, end, name)
#define TEST_WITH_FAKES(name) MS_TEST_BETWEEN(start_with_fakes, end, name)

/* A call was prepared, or none; errno is the program's. */
static void must_prepare(bool is_prepared, enum ms_file_change change, const char *call, int of)
{
    struct stat stat;
    CHECK_EQ(prepared.count, is_prepared);
    prepared.count = 0;
    if (!is_prepared)
        return;
    CHECK_EQ(fstat(of, &stat), 0);
    CHECK_EQ(prepared.change, change);
    if (strcmp(prepared.call, call) != 0)
        ms_test_fail(__FILE__, __LINE__, "prepared for %s, expected %s", prepared.call, call);
    CHECK(prepared.device == stat.st_dev && prepared.inode == stat.st_ino);
}

/* --- changes */

/* Zero if it was opened, which ends. */
static int closed(int opened)
{
    return opened >= 0 ? close(opened) : -1;
}

static int closed_stream(FILE *stream)
{
    return stream != NULL ? fclose(stream) : -1;
}

static int open_again(FILE *(*call)(const char *, const char *, FILE *))
{
    FILE *stream = fdopen(dup(other), "r"), *again = call(path, "r+", stream);
    const int error = errno;
    fclose(again != NULL ? again : stream);
    errno = error;
    return again != NULL ? 0 : -1;
}

static int map_shared(void *(*call)(void *, size_t, int, int, int, off_t))
{
    void *mapped = call(NULL, LEAST, PROT_READ, MAP_SHARED, file, 0);
    return mapped != MAP_FAILED ? munmap(mapped, LEAST) : -1;
}

#define CHANGES(X)                                                              \
    X(open, closed(call_open(path, O_WRONLY)))                                  \
    X(open64, closed(call_open64(path, O_WRONLY)))                              \
    X(openat, closed(call_openat(folder, "file", O_RDWR)))                      \
    X(openat64, closed(call_openat64(folder, "file", O_RDWR)))                  \
    X(__open_2, closed(call_open_2(path, O_RDWR)))                              \
    X(__open64_2, closed(call_open64_2(path, O_RDWR)))                          \
    X(__openat_2, closed(call_openat_2(folder, "file", O_RDWR)))                \
    X(__openat64_2, closed(call_openat64_2(folder, "file", O_RDWR)))            \
    X(creat, closed(call_creat(path, 0644)))                                    \
    X(creat64, closed(call_creat64(path, 0644)))                                \
    X(fopen, closed_stream(call_fopen(path, "r+")))                             \
    X(fopen64, closed_stream(call_fopen64(path, "r+")))                         \
    X(freopen, open_again(call_freopen))                                        \
    X(freopen64, open_again(call_freopen64))                                    \
    X(truncate, call_truncate(path, FILE_BYTES))                                \
    X(truncate64, call_truncate64(path, FILE_BYTES))                            \
    X(ftruncate, call_ftruncate(file, FILE_BYTES))                              \
    X(ftruncate64, call_ftruncate64(file, FILE_BYTES))                          \
    X(fallocate, call_fallocate(file, 0, 0, 1))                                 \
    X(fallocate64, call_fallocate64(file, 0, 0, 1))                             \
    X(copy_file_range, call_copy_file_range(other, NULL, file, NULL, 1, 0) - 1) \
    X(sendfile, call_sendfile(file, other, NULL, 1) - 1)                        \
    X(sendfile64, call_sendfile64(file, other, NULL, 1) - 1)                    \
    X(mmap, map_shared(call_mmap))                                              \
    X(mmap64, map_shared(call_mmap64))

#define DEFINE(name, call)         \
    static int change_##name(void) \
    {                              \
        return (int)(call);        \
    }
CHANGES(DEFINE)

static const struct {
    const char *name;
    int (*call)(void); /* below zero: it fails */
} changes[] = {
#define ROW(name, call) {#name, change_##name},
    CHANGES(ROW)};
enum { CHANGE_COUNT = sizeof(changes) / sizeof(changes[0]) };

TEST(a_change_of_a_file_is_prepared_and_then_made)
{
    for (int i = 0; i < CHANGE_COUNT; i++) {
        for (int again = 0; again < 2; again++) {
            errno = BEFORE;
            CHECK_EQ(changes[i].call(), 0);
            CHECK_EQ(errno, BEFORE);
            must_prepare(true, MS_FILE_CHANGES, changes[i].name, file);
        }
    }
}

TEST(a_change_that_cannot_be_prepared_is_not_made)
{
    refusal = EIO;
    for (int i = 0; i < CHANGE_COUNT; i++) {
        errno = BEFORE;
        CHECK(changes[i].call() < 0);
        CHECK_EQ(errno, EIO);
        must_prepare(true, MS_FILE_CHANGES, changes[i].name, file);
    }
    CHECK_EQ(lookups, 1); /* of fcntl, for the mappings, and of none of these */
    for (int i = 0; i < 2; i++) {
        errno = BEFORE;
        CHECK_EQ((i == 0 ? call_posix_fallocate : call_posix_fallocate64)(file, 0, 1), EIO);
        CHECK_EQ(errno, BEFORE);
        must_prepare(true, MS_FILE_CHANGES, i == 0 ? "posix_fallocate" : "posix_fallocate64", file);
    }
}

TEST(a_change_is_the_programs_alone_while_no_file_is_needed)
{
    atomic_store(&ms_hot.files, 0);
    refusal = EIO;
    for (int i = 0; i < CHANGE_COUNT; i++)
        CHECK_EQ(changes[i].call(), 0);
    CHECK_EQ(call_posix_fallocate(file, 0, 1), 0);
    CHECK_EQ(prepared.count, 0);
}

TEST(a_call_on_a_file_that_is_not_there_is_libcs)
{
    char name[128];
    snprintf(name, sizeof(name), "%s/new", folder_name);
    errno = BEFORE;
    CHECK_EQ(closed(call_open(name, O_WRONLY | O_CREAT, 0600)), 0);
    CHECK_EQ(errno, BEFORE);
    CHECK(call_truncate("/tmp/metashard-test/none", 0) == -1 && errno == ENOENT);
    CHECK(call_ftruncate(-1, 0) == -1 && errno == EBADF);
    CHECK_EQ(prepared.count, 0);
}

/* Finds all at once: none is looked up later. */
TEST(functions_are_found_when_they_are_called_or_before)
{
    CHECK_EQ(changes[1].call(), 0);
    CHECK_EQ(lookups, 0); /* start() has called it */
    CHECK_EQ(changes[0].call(), 0);
    CHECK_EQ(changes[0].call(), 0);
    CHECK_EQ(lookups, 1);
    ms_file_calls_find();
    enum {
        CALLS = 0
#define MS_FILE_CALL(name) +1
#include "shim/file_calls.def"
#undef MS_FILE_CALL
    };
    CHECK_EQ(lookups, 1 + CALLS);
    for (int i = 0; i < CHANGE_COUNT; i++)
        CHECK_EQ(changes[i].call(), 0);
    CHECK_EQ(lookups, 1 + CALLS);
}

/* --- which flags change a file, have a mode, and may be read unseen */

TEST_WITH_FAKES(flags_say_whether_a_file_may_change)
{
    static const struct {
        int flags;
        bool changes, has_mode;
    } cases[] = {
        {O_RDONLY, false, false},
        {O_WRONLY, true, false},
        {O_RDWR, true, false},
        {O_RDONLY | O_TRUNC, true, false},
        {O_RDONLY | O_CREAT, false, true},
        {O_WRONLY | O_CREAT, true, true},
        {O_WRONLY | O_EXCL, true, false},
        {O_WRONLY | O_CREAT | O_EXCL, false, true},
        {O_WRONLY | O_PATH, false, false},
        {O_WRONLY | O_DIRECTORY, true, false},
        {O_WRONLY | O_TMPFILE, false, true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        CHECK_EQ(call_open(path, cases[i].flags, 0640), 0);
        must_prepare(cases[i].changes, MS_FILE_CHANGES, "open", file);
        CHECK_EQ(faked_mode, cases[i].has_mode ? 0640 : 0);
    }
    CHECK_EQ(opened_count, 0);
}

static void must_be_unseen(const char *name, int flags, bool is_unseen)
{
    opened_count = 0;
    CHECK_EQ(call_open(name, flags), faked_result);
    CHECK_EQ(opened_count, is_unseen);
    CHECK(!is_unseen || noted_file == faked_result);
}

TEST_WITH_FAKES(checkpoints_and_direct_files_are_noted_when_they_are_opened)
{
    static const char end_of_name[] = ".safetensors";
    const int results[] = {FAKED, 0};
    for (int i = 0; i < 2; i++) {
        faked_result = results[i];
        must_be_unseen("/a/b.safetensors", O_RDONLY, true);
        must_be_unseen(end_of_name, O_RDONLY, true);
        must_be_unseen("x", O_RDONLY | O_DIRECT, true);
    }
    must_be_unseen(end_of_name + 1, O_RDONLY, false);
    must_be_unseen("", O_RDONLY, false);
    must_be_unseen("b.safetensorsx", O_RDONLY, false);
    must_be_unseen("b.Safetensors", O_RDONLY, false);
    must_be_unseen("a_long_name.bin", O_RDONLY, false);
    must_be_unseen("b.safetensors", O_RDWR, false);
    must_be_unseen("x", O_WRONLY | O_DIRECT, false);
    must_be_unseen("b.safetensors", O_RDONLY | O_PATH, false);
    must_be_unseen("b.safetensors", O_RDONLY | O_DIRECTORY, false);
    faked_result = -1;
    must_be_unseen("b.safetensors", O_RDONLY, false);
    faked_result = FAKED;
    is_off = true;
    must_be_unseen("b.safetensors", O_RDONLY, false);
}

/* --- streams */

static const struct {
    const char *mode;
    bool changes;
} modes[] = {{"r", false}, {"rb", false}, {"r+", true}, {"rb+", true},
             {"w", true},  {"a", true},   {"w+", true}};
enum { MODES = sizeof(modes) / sizeof(modes[0]) };

TEST_WITH_FAKES(modes_say_whether_a_stream_may_change_its_file)
{
    FILE *stream = fdopen(dup(other), "r");
    for (int i = 0; i < MODES; i++) {
        CHECK(call_fopen(path, modes[i].mode) == stdout);
        must_prepare(modes[i].changes, MS_FILE_CHANGES, "fopen", file);
        CHECK(call_freopen(path, modes[i].mode, stream) == stream);
        must_prepare(modes[i].changes, MS_FILE_CHANGES, "freopen", file);
        CHECK(call_freopen(NULL, modes[i].mode, stream) == stream); /* the stream's own */
        must_prepare(modes[i].changes, MS_FILE_CHANGES, "freopen", other);
    }
    refusal = EIO;
    CHECK(call_freopen(NULL, "r+", stream) == NULL);
    prepared.count = 0;
    atomic_store(&ms_hot.files, 0);
    CHECK(call_freopen(NULL, "r+", stream) == stream);
    CHECK(call_freopen(path, "r+", stream) == stream);
    CHECK_EQ(prepared.count, 0);
    fclose(stream);
}

/* --- leases */

TEST(a_write_lease_lets_the_file_go)
{
    for (int files = 0; files < 2; files++) {
        atomic_store(&ms_hot.files, files); /* none is taken later */
        errno = BEFORE;
        CHECK_EQ(fcntl(file, F_SETLEASE, F_WRLCK), 0);
        CHECK_EQ(errno, BEFORE);
        CHECK(strncmp(prepared.call, "fcntl", 5) == 0);
        must_prepare(true, MS_FILE_LEASED, prepared.call, file);
        CHECK_EQ(fcntl(file, F_SETLEASE, F_RDLCK), 0);
        CHECK(fcntl(file, F_GETFL, F_WRLCK) >= 0);
        CHECK_EQ(fcntl(-1, F_SETLEASE, F_WRLCK), 0);
        must_prepare(false, MS_FILE_LEASED, NULL, -1);
    }
}

/* --- links */

static int remove_by(int i)
{
    switch (i) {
    case 0:
        return unlink(path);
    case 1:
        return remove(path);
    case 2:
        return unlinkat(folder, "file", 0);
    case 3:
        return rename(other_path, path);
    case 4:
        return renameat(folder, "other", folder, "file");
    default:
        return renameat2(folder, "other", folder, "file", 0);
    }
}
static const char *const removers[] = {"unlink", "remove",   "unlinkat",
                                       "rename", "renameat", "renameat2"};
enum { REMOVERS = 6 };

/* Both files are there, and are new. */
static void make_again(void)
{
    close(file);
    close(other);
    unlink(path);
    unlink(other_path);
    make(path, "file", &file);
    make(other_path, "other", &other);
    prepared.count = 0;
}

TEST(a_file_is_let_go_with_its_last_link)
{
    char name[128];
    snprintf(name, sizeof(name), "%s/link", folder_name);
    for (int i = 0; i < REMOVERS; i++) {
        make_again();
        errno = BEFORE;
        CHECK_EQ(remove_by(i), 0);
        CHECK_EQ(errno, BEFORE);
        must_prepare(true, MS_FILE_DELETED, removers[i], file);
        make_again();
        CHECK_EQ(link(path, name), 0);
        CHECK_EQ(remove_by(i), 0);
        must_prepare(false, MS_FILE_DELETED, NULL, -1);
        unlink(name);
        make_again();
        atomic_store(&ms_hot.files, 0);
        CHECK_EQ(remove_by(i), 0);
        must_prepare(false, MS_FILE_DELETED, NULL, -1);
        atomic_store(&ms_hot.files, 1);
    }
}

TEST(a_file_stays_when_its_link_does)
{
    CHECK(unlinkat(folder, "file", AT_REMOVEDIR) != 0);
    errno = BEFORE;
    CHECK_EQ(rename(path, path), 0);
    CHECK_EQ(renameat2(folder, "other", folder, "file", RENAME_EXCHANGE), 0);
    CHECK_EQ(errno, BEFORE);
    must_prepare(false, MS_FILE_DELETED, NULL, -1);
}

TEST(a_link_that_is_not_there_is_none)
{
    CHECK_EQ(unlink(path), 0);
    prepared.count = 0;
    errno = BEFORE;
    CHECK_EQ(rename(other_path, path), 0);
    CHECK_EQ(errno, BEFORE);
    CHECK(unlink(other_path) == -1 && errno == ENOENT);
    must_prepare(false, MS_FILE_DELETED, NULL, -1);
}

TEST(a_symbolic_link_is_removed_and_not_its_file)
{
    char name[128];
    struct stat stat;
    snprintf(name, sizeof(name), "%s/link", folder_name);
    CHECK_EQ(symlink(path, name), 0);
    CHECK_EQ(lstat(name, &stat), 0);
    CHECK_EQ(unlink(name), 0);
    CHECK(prepared.count == 1 && prepared.inode == stat.st_ino);
}

/* --- reads */

static void must_note(unsigned i, const void *address, size_t bytes, int64_t offset, uint32_t held)
{
    CHECK(i < note_count);
    CHECK_EQ(notes[i].file, file);
    CHECK(notes[i].address == address);
    CHECK_EQ(notes[i].bytes, bytes);
    CHECK_EQ(notes[i].offset, offset);
    CHECK_EQ(notes[i].held, held);
}

static void forget_notes(void)
{
    note_count = hold_count = 0;
    errno = BEFORE;
}

TEST(large_reads_are_noted)
{
    forget_notes();
    CHECK_EQ(read(file, buffer, LEAST - 1), LEAST - 1);
    CHECK_EQ(note_count, 0);
    CHECK_EQ(read(file, buffer, LEAST), LEAST);
    CHECK_EQ(read(file, buffer + 1, FILE_BYTES - 1), FILE_BYTES - 2 * LEAST + 1);
    CHECK_EQ(read(file, buffer, LEAST), 0);
    CHECK_EQ(note_count, 2);
    must_note(0, buffer, LEAST, -1, 0);
    must_note(1, buffer + 1, FILE_BYTES - 2 * LEAST + 1, -1, 0);
    is_off = true;
    CHECK_EQ(lseek(file, 0, SEEK_SET), 0);
    CHECK_EQ(read(file, buffer, LEAST), LEAST);
    CHECK(note_count == 2 && hold_count == 0);
}

TEST(a_file_is_held_for_a_read_from_an_offset)
{
    atomic_store(&ms_hot.started, 1);
    for (int is_64 = 0; is_64 < 2; is_64++) {
        ssize_t (*const call)(int, void *, size_t, off_t) = is_64 ? pread64 : pread;
        forget_notes();
        CHECK_EQ(call(file, buffer, LEAST - 1, 7), LEAST - 1);
        CHECK_EQ(hold_count, 0);
        CHECK_EQ(call(file, buffer, LEAST, 7), LEAST);
        CHECK_EQ(call(file, buffer, LEAST, FILE_BYTES - 1), 1);
        CHECK_EQ(hold_count, 2);
        atomic_store(&ms_hot.started, 0);
        CHECK_EQ(call(file, buffer + 2, LEAST + 1, 0), LEAST + 1);
        atomic_store(&ms_hot.started, 1);
        CHECK(note_count == 2 && hold_count == 2);
        must_note(0, buffer, LEAST, 7, HELD);
        must_note(1, buffer + 2, LEAST + 1, 0, 0);
    }
    atomic_store(&ms_hot.started, 0);
}

/* Large parts are noted, each where it is in the file; what was not read is not. */
TEST(parts_of_a_read_are_noted)
{
    const struct iovec parts[] = {{buffer, LEAST},
                                  {buffer + LEAST, 100},
                                  {buffer + LEAST + 100, LEAST + 1},
                                  {buffer + 3 * LEAST, LEAST}};
    const size_t third = LEAST + 100;
    forget_notes();
    CHECK_EQ(lseek(file, 5, SEEK_SET), 5);
    CHECK_EQ(readv(file, parts, 3), 2 * LEAST + 101);
    CHECK(note_count == 2 && hold_count == 0);
    must_note(0, buffer, LEAST, 5, 0);
    must_note(1, buffer + third, LEAST + 1, 5 + (int64_t)third, 0);
    forget_notes();
    atomic_store(&ms_hot.started, 1);
    CHECK_EQ(preadv(file, parts, 4, 0), 3 * LEAST + 101);
    CHECK(note_count == 3 && hold_count == 1);
    must_note(0, buffer, LEAST, 0, HELD);
    must_note(2, buffer + 3 * LEAST, LEAST, 2 * LEAST + 101, HELD);
    forget_notes();
    CHECK_EQ(preadv(file, parts, 3, FILE_BYTES - LEAST - 50), LEAST + 50);
    CHECK_EQ(note_count, 1);
    CHECK_EQ(errno, BEFORE);
    atomic_store(&ms_hot.started, 0);
}

TEST_WITH_FAKES(reads_of_what_has_no_offsets_are_not_noted)
{
    const struct iovec parts[] = {{buffer, LEAST}, {buffer + LEAST, LEAST}};
    int pipes[2];
    CHECK_EQ(pipe(pipes), 0);
    FILE *stream = fdopen(pipes[0], "r");
    forget_notes();
    faked_got = LEAST;
    CHECK_EQ(readv(pipes[0], parts, 2), LEAST);
    CHECK_EQ(fread(buffer, 2, LEAST / 2, stream), LEAST / 2);
    CHECK_EQ(errno, BEFORE);
    CHECK_EQ(note_count, 0);
    fclose(stream);
    close(pipes[1]);
}

TEST(reads_of_a_stream_are_noted_where_they_began)
{
    FILE *stream = fdopen(dup(file), "r");
    forget_notes();
    CHECK_EQ(fread(buffer, 2, LEAST / 2 - 1, stream), LEAST / 2 - 1);
    CHECK_EQ(note_count, 0);
    CHECK_EQ(fseek(stream, 0, SEEK_SET), 0);
    CHECK_EQ(fread(buffer, 2, LEAST / 2, stream), LEAST / 2);
    CHECK_EQ(fread(buffer + 9, 1, LEAST + 3, stream), LEAST + 3);
    CHECK_EQ(errno, BEFORE);
    CHECK_EQ(note_count, 2);
    CHECK_EQ(notes[0].file, fileno(stream));
    notes[0].file = notes[1].file = file;
    must_note(0, buffer, LEAST, 0, 0);
    must_note(1, buffer + 9, LEAST + 3, LEAST, 0);
    is_off = true;
    CHECK_EQ(fread(buffer, 1, LEAST, stream), LEAST);
    CHECK_EQ(note_count, 2);
    fclose(stream);
}

/* --- mappings */

TEST_WITH_FAKES(a_mapping_may_change_a_file_that_is_open_for_both)
{
    const int kept = dup(0), read_only = call_open64(path, O_RDONLY),
              write_only = call_open64(path, O_WRONLY);
    prepared.count = 0;
    CHECK(call_mmap(NULL, LEAST, PROT_READ, MAP_SHARED, file, 0) != NULL);
    must_prepare(true, MS_FILE_CHANGES, "mmap", file);
    close(0);
    CHECK_EQ(dup2(file, 0), 0);
    CHECK(call_mmap(NULL, LEAST, PROT_READ, MAP_SHARED, 0, 0) != NULL);
    must_prepare(true, MS_FILE_CHANGES, "mmap", file);
    CHECK(call_mmap(NULL, LEAST, PROT_READ, MAP_PRIVATE, file, 0) != NULL);
    CHECK(call_mmap(NULL, LEAST, PROT_READ, MAP_SHARED, read_only, 0) != NULL);
    CHECK(call_mmap(NULL, LEAST, PROT_READ, MAP_SHARED, write_only, 0) != NULL);
    errno = BEFORE;
    CHECK(call_mmap(NULL, LEAST, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0) != NULL);
    CHECK_EQ(errno, BEFORE);
    must_prepare(false, MS_FILE_CHANGES, NULL, -1);
    close(read_only);
    close(write_only);
    close(0);
    if (kept >= 0)
        CHECK(dup2(kept, 0) == 0 && close(kept) == 0);
}

TEST_WITH_FAKES(mappings_of_files_are_noted)
{
    ms_file_calls_find();
    mapped_count = 0;
    CHECK(call_mmap(buffer, LEAST, PROT_EXEC, MAP_PRIVATE, file, 2 * LEAST) != NULL);
    CHECK(faked_map.address == buffer && faked_map.bytes == LEAST && faked_map.file == file);
    CHECK(faked_map.protection == PROT_EXEC && faked_map.flags == MAP_PRIVATE);
    CHECK_EQ(faked_map.offset, 2 * LEAST);
    CHECK(call_mmap(NULL, LEAST, PROT_READ, MAP_PRIVATE, file, 0) != NULL);
    CHECK(mapped_count == 2 && ahead_count == 0 && noted_file == file);
    CHECK_EQ(atomic_load(&ms_hot.mapped), 0);
    atomic_store(&ms_hot.started, 1);
    CHECK(call_mmap(NULL, LEAST, PROT_READ, MAP_PRIVATE, file, 0) != NULL);
    CHECK(call_mmap(NULL, LEAST, PROT_READ, MAP_PRIVATE, file, LEAST) != NULL);
    CHECK(call_mmap(NULL, LEAST, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != NULL);
    CHECK(mapped_count == 4 && ahead_count == 1);
    CHECK_EQ(atomic_load(&ms_hot.mapped), 1);
    atomic_store(&ms_hot.started, 0);
}

/* Its bytes lie there from the offset on, and what is behind them stays. */
static void must_map(char *at, size_t bytes, size_t page, off_t offset)
{
    char expected[8] = {0};
    const size_t end = (bytes + page - 1) / page * page;
    memset(at, 'x', 4 * page);
    CHECK(call_mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, offset) ==
          at);
    CHECK_EQ(pread(file, expected, 8, offset), 8);
    CHECK_BYTES(at, expected, 8);
    CHECK(at[end - 1] != 'x' && at[end] == 'x');
    CHECK_EQ(lookups, 0);
}

TEST(a_mapping_is_made_before_libc_can_be_asked)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *at =
        call_mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    CHECK_EQ(pwrite(file, "8 bytes!", 8, (off_t)page), 8);
    pread(file, buffer, 1, 0);
    lookups = 0;
    must_map(at, 2 * page, page, (off_t)page);
    must_map(at, page + 1, page, (off_t)page);
    must_map(at, 2 * page, page, 0);
    munmap(at, 4 * page);
}
