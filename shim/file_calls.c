/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libc's calls by which the program reads, changes and deletes files. Large reads are noted,
 * because their bytes may be copied to a device (finding/reads.h); smaller reads cost one
 * comparison more than libc's function. While bytes on a device still come from a file, a call that
 * opens the file for writing, or changes it through a descriptor, first brings those bytes into
 * memory, then calls libc's function. Writes and stores are not watched: they need a descriptor
 * that was opened for writing. Calls that remove a link call libc's function first: while the shim
 * has the file open, its bytes stay, but so does its space, so the shim lets the file go if the
 * link was the last.
 *
 * While there is no such file, an entry costs one load more than libc's function. Nothing here
 * allocates or takes a lock before the file's inode is found among the needed ones, so open stays
 * async-signal-safe. The exception: until a process allocates device memory, its first call of a
 * function takes the loader's lock. The functions called are those that the program would have
 * called without the shim (RTLD_NEXT); they remain cancellation points.
 */
#include "shim/file_calls.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "runtime/base/log.h"
#include "runtime/calls/file_writes.h"
#include "runtime/driver/flags.h"
#include "runtime/files/read_ahead.h"
#include "runtime/finding/held_files.h"
#include "runtime/finding/reads.h"
#include "shim/off.h"
#include "shim/real.h"

enum call {
#define MS_FILE_CALL(name) CALL_##name,
#include "shim/file_calls.def"
#undef MS_FILE_CALL
    CALL_COUNT
};

enum { NAME_BYTES = sizeof("__fread_unlocked_chk") };
static const char names[CALL_COUNT][NAME_BYTES] = {
#define MS_FILE_CALL(name) #name,
#include "shim/file_calls.def"
#undef MS_FILE_CALL
};

static void *_Atomic real[CALL_COUNT];

/* Two threads may look up a function at the same time; both find the same one. */
static void *find(enum call call)
{
    void *found = ms_libc_dlsym()(RTLD_NEXT, names[call]);
    if (found == NULL)
        ms_fatal("the C library has no function that the program calls");
    atomic_store_explicit(&real[call], found, memory_order_relaxed);
    return found;
}

/* Until this runs, each function is looked up at its first call. */
void ms_file_calls_find(void)
{
    for (int call = 0; call < CALL_COUNT; call++)
        find((enum call)call);
}

static inline void *real_of(enum call call)
{
    void *found = atomic_load_explicit(&real[call], memory_order_relaxed);
    return found != NULL ? found : find(call);
}

/* --- may the call go on? If not, errno has the reason */

static bool prepare(enum call call, bool is_known, const struct stat *file, int before)
{
    const int error =
        is_known ? ms_file_writes_prepare(MS_FILE_CHANGES, names[call], file->st_dev, file->st_ino)
                 : 0;
    errno = error != 0 ? error : before;
    return error == 0;
}

static inline bool is_needed(void)
{
    return __builtin_expect(ms_has_files(), false);
}

__attribute__((noinline)) static bool prepare_path(enum call call, int folder, const char *path)
{
    struct stat file;
    const int before = errno;
    return prepare(call, fstatat(folder, path, &file, 0) == 0, &file, before);
}

__attribute__((noinline)) static bool prepare_descriptor(enum call call, int descriptor)
{
    struct stat file;
    const int before = errno;
    return prepare(call, fstat(descriptor, &file) == 0, &file, before);
}

/* True if opening with these flags may change a file. With O_EXCL the file does not exist yet. */
static bool may_change(int flags)
{
    if ((flags & O_PATH) != 0 || (flags & O_TMPFILE) == O_TMPFILE ||
        (flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL))
        return false;
    return (flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC) != 0;
}

static bool may_open(enum call call, int folder, const char *path, int flags)
{
    return !is_needed() || !may_change(flags) || prepare_path(call, folder, path);
}

static bool may_open_stream(enum call call, const char *path, const char *mode)
{
    return !is_needed() || (mode[0] == 'r' && strchr(mode, '+') == NULL) ||
           prepare_path(call, AT_FDCWD, path);
}

static bool may_change_path(enum call call, const char *path)
{
    return !is_needed() || prepare_path(call, AT_FDCWD, path);
}

static bool may_change_descriptor(enum call call, int descriptor)
{
    return !is_needed() || prepare_descriptor(call, descriptor);
}

/* --- the calls. Asm labels name the symbols, because headers may redirect one name to another. */

#define CALL(type, name, parameters)                                                      \
    type ms_file_##name parameters __asm__(#name) __attribute__((visibility("default"))); \
    type ms_file_##name parameters
#define REAL_CALL(name) ((__typeof__(&ms_file_##name))real_of(CALL_##name))

/* A call, and its twin for programs built with -D_FILE_OFFSET_BITS=64 (file_calls.def). */
#define WITH_64(row, name, ...) row(name, ##__VA_ARGS__) row(name##64, ##__VA_ARGS__)

/* A call that fails with `failed` unless `may`, an expression of `call`, is true. */
#define CALL_IF(name, type, failed, parameters, arguments, may) \
    CALL(type, name, parameters)                                \
    {                                                           \
        const enum call call = CALL_##name;                     \
        if (!(may))                                             \
            return failed;                                      \
        return REAL_CALL(name) arguments;                       \
    }

static bool has_mode(int flags)
{
    return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
}

/* Reads the mode, which the caller passes only if the flags require it. */
#define READ_MODE                         \
    mode_t mode = 0;                      \
    if (has_mode(flags)) {                \
        va_list arguments;                \
        va_start(arguments, flags);       \
        mode = va_arg(arguments, mode_t); \
        va_end(arguments);                \
    }

/* --- files that may be read unseen: past the page cache, or checkpoints by their name */

static bool may_be_read_unseen(const char *path, int flags)
{
    static const char end[] = ".safetensors";
    const size_t length = strlen(path), end_length = sizeof(end) - 1;
    return (flags & O_ACCMODE) == O_RDONLY && (flags & (O_PATH | O_DIRECTORY)) == 0 &&
           ((flags & O_DIRECT) != 0 ||
            (length >= end_length && memcmp(path + length - end_length, end, end_length) == 0));
}

/* Returns the descriptor. */
static int note_open(const char *path, int flags, int file)
{
    if (file >= 0 && may_be_read_unseen(path, flags) && !ms_is_off())
        ms_reads_note_open(file);
    return file;
}

/* A call that opens `path` in `folder`. `read_mode`: READ_MODE, or nothing if the call has none. */
#define OPEN(name, parameters, read_mode, folder, arguments)      \
    CALL(int, name, parameters)                                   \
    {                                                             \
        read_mode;                                                \
        if (!may_open(CALL_##name, folder, path, flags))          \
            return -1;                                            \
        return note_open(path, flags, REAL_CALL(name) arguments); \
    }
WITH_64(OPEN, open, (const char *path, int flags, ...), READ_MODE, AT_FDCWD, (path, flags, mode))
WITH_64(OPEN, openat, (int folder, const char *path, int flags, ...), READ_MODE, folder,
        (folder, path, flags, mode))
OPEN(__open_2, (const char *path, int flags), , AT_FDCWD, (path, flags))
OPEN(__open64_2, (const char *path, int flags), , AT_FDCWD, (path, flags))
OPEN(__openat_2, (int folder, const char *path, int flags), , folder, (folder, path, flags))
OPEN(__openat64_2, (int folder, const char *path, int flags), , folder, (folder, path, flags))

WITH_64(CALL_IF, creat, int, -1, (const char *path, mode_t mode), (path, mode),
        may_change_path(call, path))

WITH_64(CALL_IF, fopen, FILE *, NULL, (const char *path, const char *mode), (path, mode),
        may_open_stream(call, path, mode))

/* Without a path, freopen opens the stream's own file again. */
static bool may_open_again(enum call call, const char *path, const char *mode, FILE *stream)
{
    if (path != NULL || !is_needed())
        return may_open_stream(call, path, mode);
    return (mode[0] == 'r' && strchr(mode, '+') == NULL) ||
           prepare_descriptor(call, fileno(stream));
}

WITH_64(CALL_IF, freopen, FILE *, NULL, (const char *path, const char *mode, FILE *stream),
        (path, mode, stream), may_open_again(call, path, mode, stream))

WITH_64(CALL_IF, truncate, int, -1, (const char *path, off_t bytes), (path, bytes),
        may_change_path(call, path))

WITH_64(CALL_IF, ftruncate, int, -1, (int file, off_t bytes), (file, bytes),
        may_change_descriptor(call, file))

WITH_64(CALL_IF, fallocate, int, -1, (int file, int mode, off_t at, off_t bytes),
        (file, mode, at, bytes), may_change_descriptor(call, file))

/* posix_fallocate returns the error, and leaves errno alone. */
#define POSIX_FALLOCATE(name)                            \
    CALL(int, name, (int file, off_t at, off_t bytes))   \
    {                                                    \
        const int before = errno;                        \
        if (!may_change_descriptor(CALL_##name, file)) { \
            const int error = errno;                     \
            errno = before;                              \
            return error;                                \
        }                                                \
        return REAL_CALL(name)(file, at, bytes);         \
    }
WITH_64(POSIX_FALLOCATE, posix_fallocate)

CALL_IF(copy_file_range, ssize_t, -1,
        (int from, off_t *from_at, int file, off_t *at, size_t bytes, unsigned flags),
        (from, from_at, file, at, bytes, flags), may_change_descriptor(call, file))

WITH_64(CALL_IF, sendfile, ssize_t, -1, (int file, int from, off_t *at, size_t bytes),
        (file, from, at, bytes), may_change_descriptor(call, file))

/* The kernel refuses a write lease while others have a lease. The shim gives up its own lease, and
 * takes none later, so this runs even if no file is needed. */
static void prepare_lease(enum call call, int descriptor)
{
    struct stat file;
    const int before = errno;
    if (fstat(descriptor, &file) == 0)
        ms_file_writes_prepare(MS_FILE_LEASED, names[call], file.st_dev, file.st_ino);
    errno = before;
}

/* Reads the argument, as libc does, even if the caller passed none. */
#define FCNTL(name)                                                      \
    CALL(int, name, (int file, int command, ...))                        \
    {                                                                    \
        va_list arguments;                                               \
        va_start(arguments, command);                                    \
        void *argument = va_arg(arguments, void *);                      \
        va_end(arguments);                                               \
        if (command == F_SETLEASE && (int)(intptr_t)argument == F_WRLCK) \
            prepare_lease(CALL_##name, file);                            \
        return REAL_CALL(name)(file, command, argument);                 \
    }
WITH_64(FCNTL, fcntl)

/* --- removed links; if the path is a symbolic link, that link itself */

static bool find_link(int folder, const char *path, struct stat *file_out)
{
    const int before = errno;
    const bool is_found = fstatat(folder, path, file_out, AT_SYMLINK_NOFOLLOW) == 0;
    errno = before;
    return is_found;
}

/* Runs after the call, so that a failed call brings nothing into memory. If the path still leads to
 * the file, the file was renamed to itself. */
__attribute__((noinline)) static void let_go(enum call call, int folder, const char *path,
                                             const struct stat *file)
{
    struct stat now;
    const int before = errno;
    if (!find_link(folder, path, &now) || now.st_dev != file->st_dev || now.st_ino != file->st_ino)
        ms_file_writes_prepare(MS_FILE_DELETED, names[call], file->st_dev, file->st_ino);
    errno = before;
}

/* A call that, if it succeeds and `may_remove` is true, removes the link `path` in `folder`. */
#define REMOVE(name, parameters, arguments, may_remove, folder, path)                            \
    CALL(int, name, parameters)                                                                  \
    {                                                                                            \
        struct stat file;                                                                        \
        const bool is_last =                                                                     \
            is_needed() && (may_remove) && find_link(folder, path, &file) && file.st_nlink <= 1; \
        const int result = REAL_CALL(name) arguments;                                            \
        if (is_last && result == 0)                                                              \
            let_go(CALL_##name, folder, path, &file);                                            \
        return result;                                                                           \
    }
REMOVE(unlink, (const char *path), (path), true, AT_FDCWD, path)
REMOVE(unlinkat, (int folder, const char *path, int flags), (folder, path, flags), true, folder,
       path)
REMOVE(remove, (const char *path), (path), true, AT_FDCWD, path)
REMOVE(rename, (const char *from, const char *path), (from, path), true, AT_FDCWD, path)
REMOVE(renameat, (int from_folder, const char *from, int folder, const char *path),
       (from_folder, from, folder, path), true, folder, path)

/* An exchange leaves both files their links. */
REMOVE(renameat2, (int from_folder, const char *from, int folder, const char *path, unsigned flags),
       (from_folder, from, folder, path, flags), (flags & RENAME_EXCHANGE) == 0, folder, path)

/* --- reads: large ones are noted. A read may be the first call here, as from an allocator. */

static inline void note(int file, const void *buffer, ssize_t got, off_t offset, uint32_t held)
{
    if (__builtin_expect(got >= MS_READS_LEAST, false) && !ms_is_off())
        ms_reads_note(file, buffer, (size_t)got, offset, held);
}

/* Only for calls that name an offset: other threads may move a descriptor's offset, so where
 * another read began is not certain. */
static inline uint32_t hold(int file)
{
    return ms_is_started() ? ms_held_files_hold(file) : 0;
}

__attribute__((noinline)) static void note_parts(int file, const struct iovec *parts, int count,
                                                 ssize_t got, off_t offset, uint32_t held)
{
    const int before = errno;
    if (offset < 0)
        offset = lseek(file, 0, SEEK_CUR) - got;
    errno = before;
    if (offset < 0)
        return;
    for (int i = 0; i < count && got > 0; i++) {
        const ssize_t bytes = got < (ssize_t)parts[i].iov_len ? got : (ssize_t)parts[i].iov_len;
        note(file, parts[i].iov_base, bytes, offset, held);
        offset += bytes;
        got -= bytes;
    }
}

__attribute__((noinline)) static void note_stream(FILE *stream, const void *buffer, size_t bytes)
{
    const int before = errno;
    const off_t end = ftello(stream);
    if (end >= (off_t)bytes)
        note(fileno(stream), buffer, (ssize_t)bytes, end - (off_t)bytes, 0);
    errno = before;
}

#define READ(name, parameters, arguments)              \
    CALL(ssize_t, name, parameters)                    \
    {                                                  \
        const ssize_t got = REAL_CALL(name) arguments; \
        note(file, buffer, got, -1, 0);                \
        return got;                                    \
    }
#define READ_AT(name, parameters, arguments)                \
    CALL(ssize_t, name, parameters)                         \
    {                                                       \
        if (__builtin_expect(bytes < MS_READS_LEAST, true)) \
            return REAL_CALL(name) arguments;               \
        const uint32_t held = hold(file);                   \
        const ssize_t got = REAL_CALL(name) arguments;      \
        note(file, buffer, got, offset, held);              \
        return got;                                         \
    }
READ(read, (int file, void *buffer, size_t bytes), (file, buffer, bytes))
READ(__read_chk, (int file, void *buffer, size_t bytes, size_t room), (file, buffer, bytes, room))
WITH_64(READ_AT, pread, (int file, void *buffer, size_t bytes, off_t offset),
        (file, buffer, bytes, offset))
READ_AT(__pread_chk, (int file, void *buffer, size_t bytes, off_t offset, size_t room),
        (file, buffer, bytes, offset, room))
READ_AT(__pread64_chk, (int file, void *buffer, size_t bytes, off_t offset, size_t room),
        (file, buffer, bytes, offset, room))

#define READ_PARTS(name, parameters, arguments, offset)                     \
    CALL(ssize_t, name, parameters)                                         \
    {                                                                       \
        const uint32_t held = (offset) >= 0 ? hold(file) : 0;               \
        const ssize_t got = REAL_CALL(name) arguments;                      \
        if (__builtin_expect(got >= MS_READS_LEAST, false) && !ms_is_off()) \
            note_parts(file, parts, count, got, offset, held);              \
        return got;                                                         \
    }
READ_PARTS(readv, (int file, const struct iovec *parts, int count), (file, parts, count), -1)
WITH_64(READ_PARTS, preadv, (int file, const struct iovec *parts, int count, off_t offset),
        (file, parts, count, offset), offset)
READ_PARTS(preadv2, (int file, const struct iovec *parts, int count, off_t offset, int flags),
           (file, parts, count, offset, flags), offset)
READ_PARTS(preadv64v2, (int file, const struct iovec *parts, int count, off_t offset, int flags),
           (file, parts, count, offset, flags), offset)

#define READ_STREAM(name, parameters, arguments)                                    \
    CALL(size_t, name, parameters)                                                  \
    {                                                                               \
        const size_t got = REAL_CALL(name) arguments;                               \
        if (__builtin_expect(got * bytes >= MS_READS_LEAST, false) && !ms_is_off()) \
            note_stream(stream, buffer, got *bytes);                                \
        return got;                                                                 \
    }
READ_STREAM(fread, (void *buffer, size_t bytes, size_t count, FILE *stream),
            (buffer, bytes, count, stream))
READ_STREAM(fread_unlocked, (void *buffer, size_t bytes, size_t count, FILE *stream),
            (buffer, bytes, count, stream))
READ_STREAM(__fread_chk, (void *buffer, size_t room, size_t bytes, size_t count, FILE *stream),
            (buffer, room, bytes, count, stream))
READ_STREAM(__fread_unlocked_chk,
            (void *buffer, size_t room, size_t bytes, size_t count, FILE *stream),
            (buffer, room, bytes, count, stream))

/* --- mappings */

/* Stores change a file only through a shared mapping of a writable descriptor. */
static bool may_map(enum call call, int flags, int file)
{
    return !is_needed() || (flags & MAP_SHARED) == 0 || file < 0 ||
           (fcntl(file, F_GETFL) & O_ACCMODE) != O_RDWR || prepare_descriptor(call, file);
}

/* An allocator may map before libc's function was looked up, even from within dlsym. */
static void *map(enum call call, void *address, size_t bytes, int protection, int flags, int file,
                 off_t offset)
{
    typedef void *mmap_call(void *, size_t, int, int, int, off_t);
    mmap_call *const found = (mmap_call *)atomic_load_explicit(&real[call], memory_order_relaxed);
    if (found == NULL)
        return (void *)syscall(SYS_mmap, address, bytes, protection, flags, file, offset);
    return found(address, bytes, protection, flags, file, offset);
}

/* Counts mappings of a file from offset 0, where a checkpoint has its header
 * (finding/mapped_tensors.c). */
#define MMAP(name)                                                                         \
    CALL(void *, name,                                                                     \
         (void *address, size_t bytes, int protection, int flags, int file, off_t offset)) \
    {                                                                                      \
        if (!may_map(CALL_##name, flags, file))                                            \
            return MAP_FAILED;                                                             \
        void *mapped = map(CALL_##name, address, bytes, protection, flags, file, offset);  \
        if (file >= 0)                                                                     \
            ms_reads_note_map(file);                                                       \
        if (file >= 0 && offset == 0 && ms_is_started()) {                                 \
            atomic_fetch_add(&ms_hot.mapped, 1);                                           \
            ms_read_ahead_note_map(file, mapped, bytes);                                   \
        }                                                                                  \
        return mapped;                                                                     \
    }
WITH_64(MMAP, mmap)
