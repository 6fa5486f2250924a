/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded before the shim: the n-th call that the shim makes to the C library fails, once. A call
 * is the shim's when it returns into a library whose name has FAULTS_CALLER in it; all other calls
 * go on untouched.
 *
 *   FAULTS_KIND=heap      malloc, calloc, realloc and what allocates in their stead: no memory. (The shim under test is
 *                         linked with libc's heap for this.)
 *   FAULTS_KIND=file      files, mappings, sockets, threads: the error of the row below
 *   FAULTS_KIND=short     reads and writes move half of what they could, or one byte
 *   FAULTS_KIND=signal    calls that wait or move bytes are interrupted (EINTR)
 *   FAULTS_KIND=heap-lasting, descriptors
 *                         the n-th of these and all that come after it: no memory, no descriptor is to be had any more
 *   FAULTS_ONLY=<name>    only calls of this function count
 *   FAULTS_NTH=<n>        from 1; 0: none fails
 *   FAULTS_REPORT=<path>  the name of the call that failed, a line
 *
 * imports.txt lists, with a reason, the functions that the shim imports and that are not here;
 * check_imports.py compares.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { HEAP = 1, FILES = 2, SHORT = 4, SIGNAL = 8, DESCRIPTORS = 16 };

static struct {
    pthread_once_t once;
    unsigned kinds;
    bool is_lasting;
    unsigned long long nth;
    const char *report, *caller, *only;
    uintptr_t begin, end; /* of the shim */
} settings = {.once = PTHREAD_ONCE_INIT};
static atomic_ullong seen;

static int find_shim(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size, (void)unused;
    const char *name = strrchr(info->dlpi_name, '/');
    if (strstr(name != NULL ? name : info->dlpi_name, settings.caller) == NULL)
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type == PT_LOAD && (segment->p_flags & PF_X) != 0) {
            settings.begin = info->dlpi_addr + segment->p_vaddr;
            settings.end = settings.begin + segment->p_memsz;
        }
    }
    return 1;
}

static void read_settings(void)
{
    static const struct {
        const char *name;
        unsigned kinds;
        bool is_lasting;
    } rows[] = {{"heap", HEAP, false},        {"file", FILES, false},
                {"short", SHORT, false},      {"signal", SIGNAL, false},
                {"heap-lasting", HEAP, true}, {"descriptors", DESCRIPTORS, true}};
    const char *kind = getenv("FAULTS_KIND"), *nth = getenv("FAULTS_NTH");
    settings.report = getenv("FAULTS_REPORT");
    settings.caller = getenv("FAULTS_CALLER");
    settings.only = getenv("FAULTS_ONLY");
    for (size_t i = 0; kind != NULL && i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (strcmp(kind, rows[i].name) == 0) {
            settings.kinds = rows[i].kinds;
            settings.is_lasting = rows[i].is_lasting;
        }
    }
    settings.nth = nth != NULL ? strtoull(nth, NULL, 10) : 0;
    if (settings.kinds != 0 && settings.nth != 0 && settings.caller != NULL)
        dl_iterate_phdr(find_shim, NULL);
}

/* With no function that is interposed. */
static void report(const char *name)
{
    const int file =
        settings.report == NULL
            ? -1
            : openat(AT_FDCWD, settings.report, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    char line[80];
    if (file < 0)
        return;
    const int length = snprintf(line, sizeof(line), "%s\n", name);
    struct iovec part = {line, (size_t)length};
    if (writev(file, &part, 1) < 0)
        abort();
    close(file);
}

/* Is this the call that fails? */
static bool fails(unsigned kinds, const char *name, const void *return_address)
{
    const int saved = errno;
    pthread_once(&settings.once, read_settings);
    const uintptr_t from = (uintptr_t)return_address;
    if ((settings.kinds & kinds) == 0 || from < settings.begin || from >= settings.end ||
        (settings.only != NULL && strcmp(settings.only, name) != 0))
        return false;
    const unsigned long long number = atomic_fetch_add(&seen, 1) + 1;
    if (number != settings.nth && !(settings.is_lasting && number > settings.nth))
        return false;
    if (number == settings.nth)
        report(name);
    errno = saved;
    return true;
}

#define CALLER __builtin_extract_return_addr(__builtin_return_address(0))

static void *find_real(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL)
        abort();
    return found;
}

/* ROW(kinds, error, value, type, name, (parameters), (arguments)): the call returns the value, with
 * the error. The names of the header may stand for others (open64), so the symbol is given to the
 * assembler. */
#define FUNCTION(type, name, parameters)                                                 \
    type faults_##name parameters __asm__(#name) __attribute__((visibility("default"))); \
    type faults_##name parameters
#define REAL(type, name, parameters)                                       \
    typedef type real_function parameters;                                 \
    static real_function *_Atomic real;                                    \
    real_function *to = atomic_load_explicit(&real, memory_order_relaxed); \
    if (to == NULL)                                                        \
    atomic_store_explicit(&real, to = (real_function *)find_real(#name), memory_order_relaxed)
#define ROW(kinds, error, value, type, name, parameters, arguments) \
    FUNCTION(type, name, parameters)                                \
    {                                                               \
        REAL(type, name, parameters);                               \
        if (fails(kinds, #name, CALLER)) {                          \
            errno = (error);                                        \
            return (value);                                         \
        }                                                           \
        return to arguments;                                        \
    }
#define OR_SIGNAL(error) ((settings.kinds & SIGNAL) != 0 ? EINTR : (error))
/* The same, of a function that returns its error. */
#define RETURNS(error, name, parameters, arguments) \
    ROW(FILES, errno, error, int, name, parameters, arguments)
#define OPENS(value, type, name, parameters, arguments) \
    ROW(FILES | DESCRIPTORS, EMFILE, value, type, name, parameters, arguments)
#define FILE_ROW(error, name, parameters, arguments) \
    ROW(FILES, error, -1, int, name, parameters, arguments)

/* --- descriptors and files */

OPENS(-1, int, open, (const char *path, int flags, mode_t mode), (path, flags, mode))
OPENS(-1, int, open64, (const char *path, int flags, mode_t mode), (path, flags, mode))
OPENS(-1, int, openat64, (int folder, const char *path, int flags, mode_t mode),
      (folder, path, flags, mode))
ROW(FILES, EIO, -1, ssize_t, getdents64, (int folder, void *out, size_t bytes),
    (folder, out, bytes))
FILE_ROW(EINVAL, fcntl64, (int file, int command, long argument), (file, command, argument))
FILE_ROW(EACCES, access, (const char *path, int mode), (path, mode))
FILE_ROW(EIO, stat64, (const char *path, void *out), (path, out))
FILE_ROW(EIO, lstat64, (const char *path, void *out), (path, out))
FILE_ROW(EIO, fstat64, (int file, void *out), (file, out))
FILE_ROW(EIO, fstatfs64, (int file, void *out), (file, out))
FILE_ROW(EIO, fstatat64, (int folder, const char *path, void *out, int flags),
         (folder, path, out, flags))
FILE_ROW(ENOSYS, statx, (int folder, const char *path, int flags, unsigned mask, void *out),
         (folder, path, flags, mask, out))
FILE_ROW(ENOSPC, mkdir, (const char *path, mode_t mode), (path, mode))
FILE_ROW(EACCES, linkat,
         (int from, const char *old, int to_folder, const char *new_path, int flags),
         (from, old, to_folder, new_path, flags))
FILE_ROW(EACCES, renameat, (int from, const char *old, int to_folder, const char *new_path),
         (from, old, to_folder, new_path))
FILE_ROW(EACCES, unlink, (const char *path), (path))
OPENS(-1, int, mkostemp64, (char *path, int flags), (path, flags))
FILE_ROW(ENOSPC, fdatasync, (int file), (file))
FILE_ROW(EACCES, unlinkat, (int folder, const char *path, int flags), (folder, path, flags))
FILE_ROW(EIO, ioctl, (int file, unsigned long request, void *out), (file, request, out))
FILE_ROW(EPERM, fchmod, (int file, mode_t mode), (file, mode))
OPENS(-1, int, eventfd, (unsigned initial, int flags), (initial, flags))
RETURNS(ENOSPC, posix_fallocate64, (int file, off_t at, off_t bytes), (file, at, bytes))
ROW(FILES, ERANGE, NULL, char *, getcwd, (char *text, size_t bytes), (text, bytes))
FILE_ROW(EINVAL, getrlimit64, (int which, void *out), (which, out))
FILE_ROW(EPERM, sched_getaffinity, (pid_t process, size_t bytes, cpu_set_t *out),
         (process, bytes, out))
ROW(FILES, EINVAL, -1, long, sysconf, (int name), (name))
FILE_ROW(EFAULT, gethostname, (char *name, size_t bytes), (name, bytes))

/* --- streams of stdio and folders */

/* A stream remembers that a write has failed. */
#define STREAM_ROW(value, type, name, parameters, arguments) \
    ROW(FILES, (file->_flags |= STREAM_FAILED, ENOSPC), value, type, name, parameters, arguments)
enum { STREAM_FAILED = 0x20 }; /* _IO_ERR_SEEN of glibc */

OPENS(NULL, FILE *, fopen, (const char *path, const char *mode), (path, mode))
OPENS(NULL, FILE *, fopen64, (const char *path, const char *mode), (path, mode))
ROW(FILES, ENOMEM, NULL, FILE *, fdopen, (int file, const char *mode), (file, mode))
ROW(FILES, ENOMEM, NULL, DIR *, fdopendir, (int file), (file))
OPENS(NULL, DIR *, opendir, (const char *path), (path))
ROW(FILES, EIO, NULL, void *, readdir64, (DIR * list), (list))
ROW(FILES | HEAP, ENOMEM, -1, ssize_t, __getdelim,
    (char **line, size_t *bytes, int end, FILE *file), (line, bytes, end, file))
STREAM_ROW(NULL, char *, fgets, (char *text, int bytes, FILE *file), (text, bytes, file))
STREAM_ROW(EOF, int, fputs, (const char *text, FILE *file), (text, file))
STREAM_ROW(EOF, int, fputc, (int letter, FILE *file), (letter, file))
STREAM_ROW(EOF, int, putc, (int letter, FILE *file), (letter, file))
STREAM_ROW(EOF, int, fgetc, (FILE * file), (file))
STREAM_ROW(0, size_t, fread, (void *to_bytes, size_t size, size_t count, FILE *file),
           (to_bytes, size, count, file))
STREAM_ROW(0, size_t, fwrite, (const void *bytes, size_t size, size_t count, FILE *file),
           (bytes, size, count, file))

FUNCTION(int, fprintf, (FILE * file, const char *format, ...))
{
    if (fails(FILES, "fprintf", CALLER)) {
        file->_flags |= STREAM_FAILED;
        errno = ENOSPC;
        return -1;
    }
    va_list arguments;
    va_start(arguments, format);
    const int length = vfprintf(file, format, arguments);
    va_end(arguments);
    return length;
}

/* The stream is closed, and what was buffered did not get out. */
FUNCTION(int, fclose, (FILE * file))
{
    REAL(int, fclose, (FILE *));
    const int result = to(file);
    if (!fails(FILES, "fclose", CALLER))
        return result;
    errno = ENOSPC;
    return EOF;
}

FUNCTION(int, close, (int file))
{
    REAL(int, close, (int));
    const int result = to(file);
    if (!fails(FILES, "close", CALLER))
        return result;
    errno = EIO;
    return -1;
}

/* --- bytes */

#define MOVES(error, name, parameters, arguments, shorter)            \
    FUNCTION(ssize_t, name, parameters)                               \
    {                                                                 \
        REAL(ssize_t, name, parameters);                              \
        if (fails(FILES | SIGNAL | SHORT, #name, CALLER)) {           \
            if ((settings.kinds & SHORT) != 0)                        \
                return to shorter;                                    \
            errno = (settings.kinds & SIGNAL) != 0 ? EINTR : (error); \
            return -1;                                                \
        }                                                             \
        return to arguments;                                          \
    }
#define LESS(count) ((count) > 1 ? (count) / 2 : (count))

MOVES(EIO, read, (int file, void *bytes, size_t count), (file, bytes, count),
      (file, bytes, LESS(count)))
MOVES(EIO, pread64, (int file, void *bytes, size_t count, off_t at), (file, bytes, count, at),
      (file, bytes, LESS(count), at))
MOVES(EIO, write, (int file, const void *bytes, size_t count), (file, bytes, count),
      (file, bytes, LESS(count)))
MOVES(ECONNRESET, recv, (int file, void *bytes, size_t count, int flags),
      (file, bytes, count, flags), (file, bytes, LESS(count), flags))
MOVES(EPIPE, send, (int file, const void *bytes, size_t count, int flags),
      (file, bytes, count, flags), (file, bytes, LESS(count), flags))
ROW(FILES | SIGNAL, OR_SIGNAL(EAGAIN), -1, ssize_t, preadv64v2,
    (int file, const struct iovec *parts, int count, off_t at, int flags),
    (file, parts, count, at, flags))

/* --- sockets */

OPENS(-1, int, socket, (int domain, int type, int protocol), (domain, type, protocol))
FILE_ROW(EADDRINUSE, bind, (int file, const struct sockaddr *address, socklen_t bytes),
         (file, address, bytes))
FILE_ROW(EADDRINUSE, listen, (int file, int backlog), (file, backlog))
FILE_ROW(ECONNREFUSED, connect, (int file, const struct sockaddr *address, socklen_t bytes),
         (file, address, bytes))
ROW(FILES | SIGNAL | DESCRIPTORS, OR_SIGNAL(EMFILE), -1, ssize_t, recvmsg,
    (int file, struct msghdr *message, int flags), (file, message, flags))
ROW(FILES | SIGNAL, OR_SIGNAL(EPIPE), -1, ssize_t, sendmsg,
    (int file, const struct msghdr *message, int flags), (file, message, flags))
ROW(FILES | SIGNAL, OR_SIGNAL(ENOSYS), -1, ssize_t, getrandom,
    (void *bytes, size_t count, unsigned flags), (bytes, count, flags))
ROW(FILES | SIGNAL | DESCRIPTORS, OR_SIGNAL(EMFILE), -1, int, accept4,
    (int file, struct sockaddr *address, socklen_t *bytes, int flags),
    (file, address, bytes, flags))
FILE_ROW(ENOPROTOOPT, getsockopt, (int file, int level, int name, void *value, socklen_t *bytes),
         (file, level, name, value, bytes))
ROW(FILES | SIGNAL, OR_SIGNAL(ENOMEM), -1, int, poll,
    (struct pollfd * list, nfds_t count, int milliseconds), (list, count, milliseconds))
ROW(SIGNAL, EINTR, -1, int, sem_wait, (sem_t * semaphore), (semaphore))

/* --- mappings */

ROW(FILES, ENOMEM, MAP_FAILED, void *, mmap,
    (void *place, size_t bytes, int protection, int flags, int file, off_t at),
    (place, bytes, protection, flags, file, at))
ROW(FILES, ENOMEM, MAP_FAILED, void *, mmap64,
    (void *place, size_t bytes, int protection, int flags, int file, off_t at),
    (place, bytes, protection, flags, file, at))
ROW(FILES, ENOMEM, MAP_FAILED, void *, mremap,
    (void *place, size_t before, size_t bytes, int flags, ...), (place, before, bytes, flags))
FILE_ROW(ENOMEM, mprotect, (void *place, size_t bytes, int protection), (place, bytes, protection))
FILE_ROW(EAGAIN, madvise, (void *place, size_t bytes, int advice), (place, bytes, advice))
FILE_ROW(EAGAIN, mincore, (void *place, size_t bytes, unsigned char *out), (place, bytes, out))
/* As in a container that does not allow it. */
ROW(FILES, EPERM, -1, ssize_t, process_vm_readv,
    (pid_t process, const struct iovec *here, unsigned long here_count, const struct iovec *there,
     unsigned long there_count, unsigned long flags),
    (process, here, here_count, there, there_count, flags))
FILE_ROW(ENOMEM, munmap, (void *place, size_t bytes), (place, bytes))

/* --- threads */

RETURNS(EAGAIN, pthread_create,
        (pthread_t * thread, const pthread_attr_t *attributes, void *(*run)(void *),
         void *argument),
        (thread, attributes, run, argument))

RETURNS(EAGAIN, pthread_key_create, (pthread_key_t * key, void (*destroy)(void *)), (key, destroy))
RETURNS(-1, __cxa_atexit, (void (*run)(void *), void *argument, void *library),
        (run, argument, library))
ROW(SIGNAL, EINTR, -1, int, nanosleep, (const struct timespec *time, struct timespec *left),
    (time, left))
/* --- the kernel itself, which the shim asks where it watches libc's functions */

static const struct kernel_call {
    long number;
    const char *name;
    unsigned kinds;
    int error;
} kernel_calls[] = {
    {SYS_openat, "openat", FILES | DESCRIPTORS, EMFILE},
    {SYS_memfd_create, "memfd_create", FILES | DESCRIPTORS, EMFILE},
    {SYS_inotify_init1, "inotify_init1", FILES | DESCRIPTORS, EMFILE},
    {SYS_read, "read", FILES | SIGNAL | SHORT, EIO},
    {SYS_pread64, "pread64", FILES | SIGNAL | SHORT, EIO},
    {SYS_pwrite64, "pwrite64", FILES | SIGNAL | SHORT, ENOSPC},
    {SYS_getdents64, "getdents64", FILES, EIO},
    {SYS_fstat, "fstat", FILES, EIO},
    {SYS_newfstatat, "newfstatat", FILES, EIO},
    {SYS_fcntl, "fcntl", FILES, EINVAL},
    {SYS_ioctl, "ioctl", FILES, EIO},
    {SYS_ftruncate, "ftruncate", FILES, ENOSPC},
    {SYS_unlinkat, "unlinkat", FILES, EACCES},
    {SYS_close, "close", FILES, EIO},
    /* As in a container that does not allow it. */
    {SYS_process_vm_readv, "process_vm_readv", FILES, EPERM},
};
static const struct kernel_call duplicating = {SYS_fcntl, "fcntl, to duplicate",
                                               FILES | DESCRIPTORS, EMFILE};
static const struct kernel_call any_other = {0, "syscall", FILES, ENOSYS};

static const struct kernel_call *find_call(long number, long second)
{
    if (number == SYS_fcntl && second == F_DUPFD_CLOEXEC)
        return &duplicating;
    for (size_t i = 0; i < sizeof(kernel_calls) / sizeof(kernel_calls[0]); i++) {
        if (kernel_calls[i].number == number)
            return &kernel_calls[i];
    }
    return &any_other;
}

/* A close that fails has closed. The shim maps one byte; more than that it maps for the program,
 * which may be there before the C library's function is looked up (shim/file_calls.c). */
FUNCTION(long, syscall, (long number, long a, long b, long c, long d, long e, long f))
{
    REAL(long, syscall, (long, long, long, long, long, long, long));
    const struct kernel_call *call = find_call(number, b);
    const bool is_programs = number == SYS_mmap && b > 1;
    if (is_programs || !fails(call->kinds, call->name, CALLER))
        return to(number, a, b, c, d, e, f);
    if ((settings.kinds & SHORT) != 0)
        return to(number, a, b, LESS(c), d, e, f);
    if (number == SYS_close)
        to(number, a, b, c, d, e, f);
    errno = (settings.kinds & SIGNAL) != 0 ? EINTR : call->error;
    return -1;
}

/* --- the loader */

ROW(FILES, 0, NULL, void *, dlopen, (const char *path, int flags), (path, flags))

/* --- the heap. Before libc's own is found, which allocates itself: __libc_malloc and its like. */

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);

FUNCTION(void *, malloc, (size_t bytes))
{
    if (fails(HEAP, "malloc", CALLER)) {
        errno = ENOMEM;
        return NULL;
    }
    return __libc_malloc(bytes);
}

FUNCTION(void *, calloc, (size_t count, size_t bytes))
{
    if (fails(HEAP, "calloc", CALLER)) {
        errno = ENOMEM;
        return NULL;
    }
    return __libc_calloc(count, bytes);
}

FUNCTION(void *, realloc, (void *memory, size_t bytes))
{
    if (fails(HEAP, "realloc", CALLER)) {
        errno = ENOMEM;
        return NULL;
    }
    return __libc_realloc(memory, bytes);
}
