/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts a copy's lookups until it has found its file: as many with 10 mappings as with 50,000. And
 * mappings that come, go and change behind its back. Nothing here calls the shim's mmap, so no
 * preload sees these mappings.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/driver/flags.h"
#include "runtime/files/file_thread.h"
#include "runtime/files/lease.h"
#include "runtime/files/lease_thread.h"
#include "runtime/files/file_internal.h"
#include "runtime/finding/find.h"
#include "runtime/finding/mapped_tensors.h"
#include "runtime/loading/source_read.h"
#include "tests/unit/between.h"
#include "tests/unit/files/kernel.h"
#include "tools/simcuda/harness/deny.h"

enum { PAGE = 4096, COPIED = 64 << 10, BYTES = 4 * COPIED };

static char path[] = "/tmp/metashard-find-XXXXXX";
static unsigned char data[BYTES];

static void remove_file(void)
{
    unlink(path);
}

/* The first 16 bytes of each page say which one it is. */
static void make_file(void)
{
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (unsigned char)(i % PAGE < 16 ? i / PAGE : i * 7 >> 3);
    const int file = mkstemp(path);
    CHECK(file >= 0);
    atexit(remove_file);
    CHECK_EQ(write(file, data, BYTES), BYTES);
    close(file); /* nobody writes */
}

static unsigned char *map_at(void *address, int opened, int protection, int sharing, off_t offset)
{
    const int file = open(path, opened | O_CLOEXEC);
    CHECK(file >= 0);
    void *mapped =
        mmap(address, BYTES, protection, sharing | (address != NULL ? MAP_FIXED : 0), file, offset);
    CHECK(mapped != MAP_FAILED);
    close(file);
    return mapped;
}

static unsigned char *map(void)
{
    return map_at(NULL, O_RDONLY, PROT_READ, MAP_PRIVATE, 0);
}

static unsigned char *map_to_store(void)
{
    return map_at(NULL, O_RDWR, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
}

static struct ms_file *find(const unsigned char *address)
{
    uint64_t offset;
    return ms_find_file(address, COPIED, &offset);
}

/* The source of the first copy; a test that has none cannot be done here. */
static struct ms_file *find_first(const unsigned char *address)
{
    struct ms_file *source = find(address);
    needs_mappings(source != NULL, path);
    return source;
}

static CUresult read_source(struct ms_file *source)
{
    static unsigned char buffer[COPIED];
    const void *bytes;
    return ms_source_read(ms_file_source(source), 0, buffer, COPIED, &bytes);
}

/* The kernel knows of no writers, as on a network file system, or of another user's file. */
static void deny_leases(void)
{
    deny_with(SYS_fcntl, 1, F_SETLEASE, EACCES);
}

static void make_file_without_leases(void)
{
    make_file();
    deny_leases();
}

/* --- counting */

/* As in mapping.c. */
enum { OR_THE_NEXT = 0x10 };
struct query {
    uint64_t size, flags, address;
};

/* Atomic, because the lease thread makes some, too. */
static struct seen {
    _Atomic size_t calls, opens, queries;
    _Atomic size_t walks;      /* queries for which the kernel may go through many */
    _Atomic size_t read_bytes; /* of the list */
    _Atomic bool answers;      /* the kernel knows the query: since Linux 6.11 */
    _Atomic bool scans;        /* and tells about pages in one answer: since 6.7 */
} seen;

static void forget_seen(void)
{
    seen.calls = seen.opens = seen.queries = seen.walks = seen.read_bytes = 0;
}

/* The runtime's system calls for files all go through this function of libc, which also takes six
 * words when there are fewer. */
__attribute__((no_sanitize_address)) long syscall(long number, ...)
{
    static long (*real)(long, ...);
    long words[6];
    va_list arguments;
    va_start(arguments, number);
    for (size_t i = 0; i < 6; i++)
        words[i] = va_arg(arguments, long);
    va_end(arguments);
    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "syscall");
    const long result = real(number, words[0], words[1], words[2], words[3], words[4], words[5]);
    seen.calls += number != SYS_futex;
    seen.opens += number == SYS_openat && (words[2] & O_PATH) == 0;
    if (number == SYS_ioctl && words[1] == (long)_IOWR('f', 17, char[104])) {
        seen.queries++;
        seen.answers = seen.answers || result >= 0;
        seen.walks += (((const struct query *)words[2])->flags & OR_THE_NEXT) != 0;
    }
    if (number == SYS_ioctl && words[1] == (long)_IOWR('f', 16, char[96]))
        seen.scans = seen.scans || result >= 0;
    if (number == SYS_read && result > 0)
        seen.read_bytes += (size_t)result;
    return result;
}

/* Every other page has other rights, so that each is a mapping. */
static void map_more(size_t count)
{
    unsigned char *pages = mmap(NULL, count * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED);
    for (size_t i = 0; i < count; i += 2)
        CHECK_EQ(mprotect(pages + i * PAGE, PAGE, PROT_NONE), 0);
}

static size_t most_mappings(void)
{
    return ms_test_is_watched() ? 2000 : 50000;
}

typedef void copy(const unsigned char *mapped);

static void copy_from_file(const unsigned char *mapped)
{
    struct ms_file *source = find(mapped + PAGE);
    CHECK(source != NULL);
    ms_file_drop(source);
}

static void copy_from_memory(const unsigned char *mapped)
{
    static unsigned char *memory;
    if (memory == NULL) {
        memory = malloc(COPIED);
        memset(memory, 7, COPIED);
    }
    (void)mapped;
    CHECK(find(memory) == NULL);
}

static void search_content(void *wanted)
{
    ms_mapped_tensors_find(wanted);
}

static void copy_from_other_memory(const unsigned char *mapped)
{
    struct ms_wanted_source wanted = {.address = mapped, .bytes = COPIED};
    ms_file_thread_call(search_content, &wanted);
    CHECK(wanted.found == NULL);
}

/* Counts the second copy's lookups: the first finds out about the kernel, and about the file. */
static void count_one(copy *run, const unsigned char *mapped)
{
    run(mapped);
    forget_seen();
    run(mapped);
}

enum { CALLS = 24, LIST_BYTES = 32 << 10 };

/* Another deferred copy holds the file, as it does in a program. */
static void check_flat(copy *run, size_t most_calls, size_t most_bytes)
{
    make_file();
    const unsigned char *mapped = map();
    struct ms_file *held = find_first(mapped);
    if (!seen.answers && most_bytes == 0 && run != copy_from_memory)
        most_bytes = LIST_BYTES; /* an older kernel, or an emulator */
    const size_t counts[] = {0, 10, 990, 9000, 40000};
    size_t all = 0;
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        if (all + counts[i] > most_mappings())
            break;
        all += counts[i];
        if (counts[i] > 0)
            map_more(counts[i]);
        count_one(run, mapped);
        CHECK(seen.calls > 0 && seen.calls <= most_calls);
        CHECK_EQ(seen.walks, 0);
        CHECK(seen.read_bytes <= most_bytes);
    }
    CHECK(all >= 1000);
    ms_file_drop(held);
}

MS_TEST(a_copy_from_a_file_is_flat)
{
    check_flat(copy_from_file, CALLS, 0);
}

STORY_ALONE(a_copy_from_a_file_with_a_lease_is_flat, ms_config.leases = true,
            check_flat(copy_from_file, CALLS, 0))

MS_TEST_AFTER(deny_leases, a_copy_from_a_file_of_unknown_writers_is_flat)
{
    check_flat(copy_from_file, CALLS, 0);
}

STORY_ALONE(a_copy_from_a_file_is_flat_by_reading, deny(SYS_ioctl, ENOTTY),
            check_flat(copy_from_file, CALLS, LIST_BYTES))

STORY_ALONE(a_copy_from_a_file_of_unknown_writers_is_flat_by_reading, deny(SYS_ioctl, ENOTTY),
            deny_leases(), check_flat(copy_from_file, CALLS, LIST_BYTES))

MS_TEST(a_copy_from_memory_is_flat)
{
    check_flat(copy_from_memory, CALLS, 0);
}

STORY_ALONE(a_copy_from_memory_is_flat_by_reading, deny(SYS_ioctl, ENOTTY),
            check_flat(copy_from_memory, CALLS, 0))

/* --- a file that is held: nothing is opened, and the file is not asked */

/* With a lease: which file is mapped there is one question; if the mapping is private, which of its
 * pages were written is another. */
static void check_held(int sharing, size_t most_calls)
{
    static const size_t places[] = {0, PAGE, COPIED, BYTES - COPIED};
    uint64_t offset;
    ms_config.leases = true;
    make_file();
    const unsigned char *mapped = map_at(NULL, O_RDONLY, PROT_READ, sharing, 0);
    struct ms_file *held = find_first(mapped);
    needs_lease(held->lease.is_taken, path);
    if (!seen.answers || (sharing == MAP_PRIVATE && !seen.scans))
        ms_test_skip("an older kernel");
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        forget_seen();
        struct ms_file *source = ms_find_file(mapped + places[i], COPIED, &offset);
        CHECK(source == held);
        CHECK_EQ(offset, places[i]);
        CHECK_EQ(seen.opens, 0);
        CHECK(seen.calls <= most_calls);
        ms_file_drop(source);
    }
    /* Another mapping of it is as good. */
    const unsigned char *other = map_at(NULL, O_RDONLY, PROT_READ, sharing, PAGE);
    forget_seen();
    CHECK(ms_find_file(other, COPIED, &offset) == held);
    CHECK_EQ(offset, PAGE);
    CHECK_EQ(seen.opens, 0);
    CHECK(seen.calls <= most_calls);
}

/* The lease thread does not run here: only a copy asks. */
MS_TEST(a_copy_from_a_held_file_in_a_shared_mapping_is_one_call)
{
    check_held(MAP_SHARED, 1);
}

MS_TEST(a_copy_from_a_held_file_in_a_private_mapping_is_two_calls)
{
    check_held(MAP_PRIVATE, 2);
}

/* Its size and times are asked for, and whether somebody writes. */
MS_TEST(a_copy_from_a_held_file_without_a_lease_opens_nothing)
{
    enum { MOST_CALLS = 7 };
    make_file();
    const unsigned char *mapped = map();
    struct ms_file *held = find_first(mapped);
    if (!seen.answers || !seen.scans)
        ms_test_skip("an older kernel");
    forget_seen();
    CHECK(find(mapped + PAGE) == held);
    CHECK_EQ(seen.opens, 0);
    CHECK(seen.calls <= MOST_CALLS);
}

static void do_nothing(__attribute__((unused)) void *unused)
{
}

/* A file is looked up (O_PATH) and opened once. Those of the kernel are two about this process, and
 * how long it keeps a writer waiting. */
MS_TEST(as_many_opens_as_files)
{
    enum { FILES = 4, ROUNDS = 8, OF_KERNEL = 3 };
    static char paths[FILES][sizeof(path)];
    const unsigned char *mapped[FILES];
    struct ms_file *held[FILES];
    ms_config.leases = true;
    ms_file_thread_call(do_nothing, NULL);
    for (int i = 0; i < FILES; i++) {
        memcpy(path, "/tmp/metashard-find-XXXXXX", sizeof(path));
        make_file();
        memcpy(paths[i], path, sizeof(path));
        mapped[i] = map();
    }
    forget_seen();
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < FILES; i++) {
            struct ms_file *source = round == 0 ? find_first(mapped[i]) : find(mapped[i] + PAGE);
            CHECK(source != NULL);
            if (round == 0)
                held[i] = source;
            CHECK(source == held[i]);
        }
    }
    for (int i = 0; i < FILES; i++)
        unlink(paths[i]);
    if (!seen.answers || !seen.scans || !held[0]->lease.is_taken)
        ms_test_skip("no lease here, or an older kernel");
    CHECK_EQ(seen.opens, FILES + OF_KERNEL);
}

/* --- a held file, and what else may be there */

static void set_leases(void)
{
    ms_config.leases = true;
}

static void write_byte(off_t at, unsigned char byte)
{
    const int file = open(path, O_WRONLY | O_CLOEXEC);
    CHECK(file >= 0);
    CHECK_EQ(pwrite(file, &byte, 1, at), 1);
    close(file);
}

static void check_found(const unsigned char *address, const struct ms_file *wanted,
                        bool is_the_same)
{
    static unsigned char buffer[COPIED];
    uint64_t offset;
    const void *bytes;
    struct ms_file *source = ms_find_file(address, COPIED, &offset);
    CHECK(source != NULL);
    CHECK_EQ(source == wanted, is_the_same);
    CHECK_EQ(ms_source_read(ms_file_source(source), offset, buffer, COPIED, &bytes), CUDA_SUCCESS);
    CHECK_BYTES(bytes, address, COPIED);
    ms_file_drop(source);
}

/* In place, without a lease: the held file's bytes are lost, but not those of a new copy. */
MS_TEST(a_held_file_that_has_changed_is_another_source)
{
    make_file();
    const unsigned char *mapped = map();
    struct ms_file *held = find_first(mapped);
    nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL);
    write_byte(5, 99);
    check_found(mapped, held, false);
    CHECK_EQ(read_source(held), CUDA_ERROR_OPERATING_SYSTEM);
}

MS_TEST(a_held_file_that_was_cut_off_is_no_source_of_what_is_gone)
{
    make_file();
    const unsigned char *mapped = map();
    struct ms_file *held = find_first(mapped);
    CHECK_EQ(truncate(path, PAGE), 0);
    CHECK(find(mapped + PAGE) == NULL);
    CHECK_EQ(read_source(held), CUDA_ERROR_OPERATING_SYSTEM);
}

/* Another file has its name by now. */
static void check_replaced(void)
{
    char other[sizeof(path)];
    make_file();
    const unsigned char *mapped = map();
    struct ms_file *held = find_first(mapped);
    memcpy(other, path, sizeof(path));
    memcpy(path, "/tmp/metashard-find-XXXXXX", sizeof(path));
    data[5] ^= 1;
    make_file();
    CHECK_EQ(rename(path, other), 0);
    memcpy(path, other, sizeof(path));
    check_found(mapped, held, true);
    check_found(map(), held, false);
    CHECK_EQ(read_source(held), CUDA_SUCCESS);
}

MS_TEST(a_held_file_that_was_replaced_is_still_itself)
{
    check_replaced();
}

MS_TEST_AFTER(set_leases, a_held_file_with_a_lease_that_was_replaced_is_still_itself)
{
    check_replaced();
}

static void check_unlinked(void)
{
    make_file();
    const unsigned char *mapped = map();
    struct ms_file *held = find_first(mapped);
    unlink(path);
    check_found(mapped + PAGE, held, true);
}

MS_TEST(a_held_file_without_a_name_is_still_itself)
{
    check_unlinked();
}

MS_TEST_AFTER(set_leases, a_held_file_with_a_lease_without_a_name_is_still_itself)
{
    check_unlinked();
}

/* At an address where the held file was mapped. */
MS_TEST_AFTER(set_leases, another_file_or_memory_where_a_held_file_was)
{
    char other[sizeof(path)];
    make_file();
    unsigned char *mapped = map_at(NULL, O_RDONLY, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0);
    struct ms_file *held = find_first(mapped);
    check_found(mapped, held, true);
    mapped[COPIED] ^= 1;
    check_found(mapped, held, true);
    CHECK(find(mapped + PAGE) == NULL); /* with a page that was written */
    memcpy(other, path, sizeof(path));
    memcpy(path, "/tmp/metashard-find-XXXXXX", sizeof(path));
    make_file();
    map_at(mapped, O_RDONLY, PROT_READ, MAP_PRIVATE, 0);
    check_found(mapped, held, false);
    CHECK(mmap(mapped, BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == mapped);
    CHECK(find(mapped) == NULL);
    unlink(other);
}

MS_TEST_AFTER(set_leases, a_held_file_whose_lease_was_given_back_is_asked)
{
    make_file();
    const unsigned char *mapped = map();
    struct ms_file *held = find_first(mapped);
    needs_lease(held->lease.is_taken, path);
    check_found(mapped, held, true);
    ms_lease_thread_give_back(held->recorded.st_dev, held->recorded.st_ino);
    nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL);
    write_byte(5, 99);
    check_found(mapped, held, false);
    CHECK_EQ(read_source(held), CUDA_ERROR_OPERATING_SYSTEM);
}

/* --- copies of other memory */

/* Calls of none is what it takes while nothing is mapped anew. */
static void check_staged_is_flat(void)
{
    make_file();
    const unsigned char *mapped = map();
    struct ms_file *held = find_first(mapped);
    map_more(1000);
    count_one(copy_from_other_memory, mapped);
    CHECK_EQ(seen.calls, 0);
    atomic_fetch_add(&ms_hot.mapped, 1); /* as the shim does */
    forget_seen();
    copy_from_other_memory(mapped);
    CHECK(seen.queries > 0 || seen.read_bytes > 0);
    ms_file_drop(held);
}

MS_TEST(a_staged_copy_is_flat)
{
    check_staged_is_flat();
}

STORY_ALONE(a_staged_copy_is_flat_by_reading, deny(SYS_ioctl, ENOTTY), check_staged_is_flat())

/* --- files that can be stored to, from some moment on */

MS_TEST_AFTER(make_file, a_mapping_to_store_is_noticed_by_the_next_copy)
{
    const unsigned char *mapped = map();
    struct ms_file *source = find_first(mapped);
    unsigned char *stored = map_to_store();
    CHECK(find(mapped) == NULL);
    munmap(stored, BYTES);
    CHECK(find(mapped) == source);
    CHECK_EQ(read_source(source), CUDA_SUCCESS);
}

MS_TEST_AFTER(make_file, a_store_after_the_copy_is_refused)
{
    struct ms_file *source = find_first(map());
    unsigned char *stored = map_to_store();
    stored[5] ^= 1;
    CHECK_EQ(read_source(source), CUDA_ERROR_OPERATING_SYSTEM);
    munmap(stored, BYTES);
    CHECK_EQ(read_source(source), CUDA_ERROR_OPERATING_SYSTEM);
}

/* Where the kernel does not say who writes, a mapping of this process is found when the bytes are
 * read; and when it has gone by then, the times have changed. */
MS_TEST_AFTER(make_file_without_leases, a_store_after_the_copy_is_refused_where_writers_are_unknown)
{
    struct ms_file *source = find_first(map());
    unsigned char *stored = map_to_store();
    CHECK_EQ(read_source(source), CUDA_ERROR_OPERATING_SYSTEM);
    munmap(stored, BYTES);
    CHECK_EQ(read_source(source), CUDA_SUCCESS);
    stored = map_to_store();
    stored[5] ^= 1;
    munmap(stored, BYTES);
    CHECK_EQ(read_source(source), CUDA_ERROR_OPERATING_SYSTEM);
}

enum { IN_THE_OLD_MAPPING, IN_A_NEW_MAPPING };

/* Another process, with the file mapped to store to since before the copy. It stores to a page when
 * it is told to, and says when it has. */
static void store_when_told(unsigned char *stored, const int *ends)
{
    unsigned char where;
    while (read(ends[0], &where, 1) == 1) {
        if (where == IN_A_NEW_MAPPING)
            stored = map_to_store();
        stored[5] ^= 1;
        CHECK_EQ(write(ends[1], &where, 1), 1);
    }
    _exit(0);
}

static void store_there(const int *ends, unsigned char where)
{
    CHECK_EQ(write(ends[1], &where, 1), 1);
    CHECK_EQ(read(ends[0], &where, 1), 1);
}

/* Where the kernel does not say who writes, its stores to pages that it had stored to before are
 * not seen. Those in a new mapping are. A page beside an old one may be as old: the kernel keeps
 * some together (large folios). */
MS_TEST_AFTER(make_file_without_leases, a_store_of_another_process_to_an_old_page_is_not_seen)
{
    int here[2], there[2];
    CHECK_EQ(pipe(here), 0);
    CHECK_EQ(pipe(there), 0);
    const pid_t child = fork();
    const int childs_ends[] = {there[0], here[1]}, ends[] = {here[0], there[1]};
    if (child == 0) {
        close(there[1]);
        store_when_told(map_to_store(), childs_ends);
    }
    store_there(ends, IN_THE_OLD_MAPPING);
    nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL);
    struct ms_file *source = find_first(map());
    store_there(ends, IN_THE_OLD_MAPPING);
    CHECK_EQ(read_source(source), CUDA_SUCCESS);
    store_there(ends, IN_A_NEW_MAPPING);
    CHECK_EQ(read_source(source), CUDA_ERROR_OPERATING_SYSTEM);
    close(there[1]);
    CHECK_EQ(waitpid(child, NULL, 0), child);
}

/* A page that was stored to stays so across mprotect, and changes no time any more. */
MS_TEST_AFTER(make_file_without_leases, a_mapping_that_can_become_writable_counts)
{
    const unsigned char *mapped = map();
    ms_file_drop(find_first(mapped));
    unsigned char *stored = map_to_store();
    *(volatile unsigned char *)&stored[5] ^= 1;
    CHECK_EQ(mprotect(stored, BYTES, PROT_READ), 0);
    nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL);
    CHECK(find(mapped) == NULL);
    CHECK_EQ(mprotect(stored, BYTES, PROT_READ | PROT_WRITE), 0);
    CHECK(find(mapped) == NULL);
}

/* safetensors maps files so. */
MS_TEST_AFTER(make_file_without_leases, a_shared_mapping_that_cannot_become_writable_does_not_count)
{
    unsigned char *shared = map_at(NULL, O_RDONLY, PROT_READ, MAP_SHARED, 0);
    ms_file_drop(find_first(map()));
    CHECK(find(shared) != NULL);
    CHECK_EQ(mprotect(shared, BYTES, PROT_READ | PROT_WRITE), -1);
}

MS_TEST_AFTER(make_file_without_leases, a_mapping_to_store_that_is_moved_counts)
{
    const unsigned char *mapped = map();
    ms_file_drop(find_first(mapped));
    unsigned char *stored = map_to_store();
    unsigned char *other = mremap(stored, 0, BYTES, MREMAP_MAYMOVE); /* a second one of the same */
    CHECK(other != MAP_FAILED);
    munmap(stored, BYTES);
    CHECK(find(mapped) == NULL);
    munmap(other, BYTES);
    CHECK(find(mapped) != NULL);
}

static void *store_in_thread(void *unused)
{
    unsigned char *stored = map_to_store();
    stored[5] ^= 1;
    munmap(stored, BYTES);
    return unused;
}

MS_TEST_AFTER(make_file_without_leases, a_store_of_another_thread_is_refused)
{
    struct ms_file *source = find_first(map());
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, store_in_thread, NULL), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(read_source(source), CUDA_ERROR_OPERATING_SYSTEM);
}

/* The mapping is the child's alone by then: the kernel knows of it. */
MS_TEST_AFTER(make_file, a_mapping_that_a_child_has_left_counts)
{
    int end[2], status;
    char byte;
    const unsigned char *mapped = map();
    ms_file_drop(find_first(mapped));
    unsigned char *stored = map_to_store();
    CHECK_EQ(pipe(end), 0);
    const pid_t child = fork();
    if (child == 0) {
        close(end[1]);
        _exit(read(end[0], &byte, 1) != 0);
    }
    munmap(stored, BYTES);
    CHECK(find(mapped) == NULL);
    close(end[1]);
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(find(mapped) != NULL);
}

/* --- what is mapped at an address changes, and the kernel has a list alone */

static void check_bytes_at(const unsigned char *address, bool must_be_found)
{
    static unsigned char buffer[COPIED];
    uint64_t offset;
    const void *bytes;
    struct ms_file *source = ms_find_file(address, COPIED, &offset);
    CHECK(source != NULL || !must_be_found);
    if (source == NULL)
        return;
    CHECK_EQ(ms_source_read(ms_file_source(source), offset, buffer, COPIED, &bytes), CUDA_SUCCESS);
    CHECK_BYTES(bytes, address, COPIED);
    ms_file_drop(source);
}

MS_TEST(another_place_of_the_file_at_the_same_address)
{
    deny(SYS_ioctl, ENOTTY);
    make_file();
    unsigned char *mapped = map();
    struct ms_file *held = find_first(mapped);
    map_more(1000);
    check_bytes_at(mapped, true);
    map_at(mapped, O_RDONLY, PROT_READ, MAP_PRIVATE, 2 * PAGE);
    check_bytes_at(mapped, true);
    check_bytes_at(mapped + PAGE, true);
    map_at(mapped, O_RDONLY, PROT_READ, MAP_PRIVATE, PAGE);
    check_bytes_at(mapped + PAGE, true);
    ms_file_drop(held);
}

MS_TEST(memory_of_its_own_at_the_same_address)
{
    deny(SYS_ioctl, ENOTTY);
    make_file();
    unsigned char *mapped = map_at(NULL, O_RDONLY, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0);
    struct ms_file *held = find_first(mapped);
    map_more(1000);
    check_bytes_at(mapped, true);
    mapped[5] ^= 1; /* no longer the file's */
    CHECK(find(mapped) == NULL);
    check_bytes_at(mapped + PAGE, true);
    CHECK(mmap(mapped, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
               0) == mapped);
    memset(mapped, 3, BYTES);
    CHECK(find(mapped) == NULL);
    memcpy(mapped, data, BYTES); /* whatever it is, these bytes are the file's */
    check_bytes_at(mapped, false);
    ms_file_drop(held);
}

/* --- descriptors of this process, where the kernel knows of no writers */

/* A file that nobody has copied from. */
static void make_next_file(void)
{
    unlink(path);
    strcpy(path, "/tmp/metashard-find-XXXXXX");
    make_file();
}

/* Whether it is a source while this process has a file open so. */
static bool is_source_while_open(const char *opened, int flags)
{
    const int held = open(opened != NULL ? opened : path, flags | O_CLOEXEC);
    CHECK(held >= 0);
    unsigned char *mapped = map();
    struct ms_file *source = find(mapped);
    CHECK_EQ(munmap(mapped, BYTES), 0);
    if (source != NULL)
        ms_file_drop(source);
    close(held);
    return source != NULL;
}

static void check_descriptors(void)
{
    static const struct {
        const char *opened; /* NULL: the file */
        int flags;
        bool is_source;
    } rows[] = {
        {NULL, O_RDONLY, true},      {NULL, O_WRONLY, false},          {NULL, O_RDWR, false},
        {NULL, O_PATH, true},        {NULL, O_RDWR | O_APPEND, false}, {"/dev/null", O_RDWR, true},
        {"/dev/zero", O_RDWR, true},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        make_next_file();
        if (is_source_while_open(rows[i].opened, rows[i].flags) != rows[i].is_source)
            ms_test_fail(__FILE__, __LINE__, "row %zu", i);
    }
}

STORY_AFTER(make_file_without_leases, a_file_that_this_process_can_write_is_no_source,
            find_first(map()), check_descriptors())

/* They are told in several parts. */
MS_TEST_AFTER(make_file_without_leases, a_file_that_is_open_among_many_is_found)
{
    enum { MANY = 300 };
    int many[MANY];
    find_first(map());
    for (int i = 0; i < MANY; i++)
        many[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    CHECK(many[MANY - 1] >= MANY);
    check_descriptors();
    for (int i = 0; i < MANY; i += 2) /* and with gaps */
        close(many[i]);
    check_descriptors();
}

/* A file that was looked at once is not looked at again: who opens it later is seen otherwise. */
MS_TEST_AFTER(make_file_without_leases, descriptors_are_looked_at_once)
{
    const unsigned char *mapped = map();
    struct ms_file *source = find_first(mapped);
    const int writer = open(path, O_WRONLY | O_CLOEXEC);
    CHECK(writer >= 0);
    CHECK(find(mapped) == source);
    close(writer);
    ms_file_drop(source);
    ms_file_drop(source);
}
