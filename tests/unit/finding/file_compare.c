/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/finding/file_compare.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>

#include "runtime/config/config.h"
#include "runtime/files/file_thread.h"
#include "tests/unit/between.h"
#include "tests/unit/files/files.h"
#include "tools/simcuda/harness/deny.h"

enum { MIB = 1 << 20, BYTES = 9 * MIB + 12345 };

static struct test_file file;
static unsigned char *memory;

static void set_up(void)
{
    make_test_file(&file, "/var/tmp", BYTES);
    memory = malloc(BYTES + MIB);
    memcpy(memory, file.data, BYTES);
}

/* A single thread, but for those that the test starts. */
static void set_up_one_core(void)
{
    cpu_set_t cores;
    CHECK_EQ(sched_getaffinity(0, sizeof(cores), &cores), 0);
    for (int core = 0; CPU_COUNT(&cores) > 1; core++)
        CPU_CLR(core, &cores);
    CHECK_EQ(sched_setaffinity(0, sizeof(cores), &cores), 0);
    set_up();
}

struct call {
    const void *address;
    size_t bytes;
    uint64_t offset;
    enum ms_comparing compared;
    bool is_same;
};

static void compare_now(void *call_)
{
    struct call *call = call_;
    call->is_same =
        ms_file_compare(file.opened, call->offset, call->address, call->bytes, call->compared);
}

static bool is_same_as(const void *address, size_t bytes, uint64_t offset,
                       enum ms_comparing compared)
{
    struct call call = {address, bytes, offset, compared, false};
    CHECK(ms_file_thread_call(compare_now, &call));
    return call.is_same;
}

static bool is_same(const void *address, size_t bytes, uint64_t offset, bool only_cached)
{
    return is_same_as(address, bytes, offset, only_cached ? MS_COMPARING_CACHED : MS_COMPARING_ALL);
}

static void check_parts(void)
{
    static const size_t sizes[] = {1, 511, 512, 513, MIB - 1, 2 * MIB, 4 * MIB + 1, 9 * MIB};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const size_t offset = i * 1001;
        CHECK(is_same(memory + offset, sizes[i], offset, false));
        CHECK(is_same(memory + offset, sizes[i], offset, true));
    }
    CHECK(is_same(memory, BYTES, 0, false));
    CHECK(!is_same(memory, BYTES, 1, false));
}

MS_TEST_AFTER(set_up_one_core, the_bytes_of_a_file)
{
    check_parts();
}

MS_TEST_AFTER(set_up, the_bytes_of_a_file_by_threads)
{
    check_parts();
}

static void check_other_bits(void)
{
    static const size_t ats[] = {0,       511, 512,     65535,   65536,
                                 MIB - 1, MIB, 5 * MIB, 9 * MIB, BYTES - 1};
    for (size_t i = 0; i < sizeof(ats) / sizeof(ats[0]); i++) {
        memory[ats[i]] ^= 0x40;
        CHECK(!is_same(memory, BYTES, 0, false));
        memory[ats[i]] ^= 0x40;
    }
    CHECK(is_same(memory, BYTES, 0, false));
}

MS_TEST_AFTER(set_up_one_core, a_comparison_sees_one_other_bit_anywhere)
{
    check_other_bits();
}

MS_TEST_AFTER(set_up, a_comparison_by_threads_sees_one_other_bit_anywhere)
{
    check_other_bits();
}

/* Bytes are compared at several places in turn, and then those that are left. */
MS_TEST_AFTER(set_up_one_core, a_comparison_of_any_size_sees_one_other_bit_anywhere)
{
    static const size_t sizes[] = {513, 2047, 2048, 2049, 4096 + 57, MIB, MIB + 2048 + 511};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const size_t step = sizes[i] < MIB ? 61 : 16411;
        for (size_t at = (sizes[i] - 1) % step; at < sizes[i]; at += step) {
            memory[at] ^= 1;
            CHECK(!is_same(memory, sizes[i], 0, false));
            memory[at] ^= 1;
        }
        CHECK(is_same(memory, sizes[i], 0, false));
    }
}

MS_TEST_AFTER(set_up, bytes_past_the_end_are_not_the_files)
{
    CHECK(!is_same(memory, BYTES + 1, 0, false));
    CHECK(!is_same(memory + MIB, BYTES, MIB, false));
}

/* In the piece of another thread. */
MS_TEST_AFTER(set_up, memory_that_may_not_be_read)
{
    unsigned char *own =
        mmap(NULL, 10 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(own != MAP_FAILED);
    memcpy(own, memory, BYTES);
    CHECK_EQ(mprotect(own + 7 * MIB, 4096, PROT_NONE), 0);
    CHECK(is_same(own, 7 * MIB, 0, false));
    CHECK(!is_same(own, BYTES, 0, false));
}

MS_TEST_AFTER(set_up, a_comparison_may_leave_out_what_is_not_in_the_page_cache)
{
    if (!make_cold(&file) || !can_tell_cold(&file))
        ms_test_skip("the file stays in the page cache, or nobody tells");
    CHECK(!is_same(memory, BYTES, 0, true));
    CHECK(count_cached(&file) < BYTES / 4096 / 2);
    CHECK(is_same(memory, BYTES, 0, false));
}

/* The kernel marks a page where a program has read in order, and reads ahead when the page is read.
 * The comparison does not read a page just because it comes into the page cache meanwhile. */
MS_TEST_AFTER(set_up, a_sample_is_small_whatever_the_kernel_reads_ahead)
{
    enum { READ = 64 << 10 };
    char byte;
    if (!make_cold(&file) || !can_tell_cold(&file))
        ms_test_skip("nobody tells what is in the page cache here");
    const int reader = open(file.path, O_RDONLY);
    for (off_t at = 0; at < READ; at += 4096)
        CHECK_EQ(pread(reader, &byte, 1, at), 1);
    close(reader);
    CHECK(count_cached(&file) < BYTES / 4096 / 4);
    CHECK(is_same_as(memory, BYTES, 0, MS_COMPARING_SAMPLED));
    CHECK(count_cached(&file) < BYTES / 4096 / 2);
}

/* One other bit, which no sample has, where the page cache has the part, and where it does not. */
MS_TEST_AFTER(set_up, a_sample_has_all_bytes_that_are_in_the_page_cache)
{
    static const size_t parts[] = {3, 20, 37, 100};
    enum { PART = 64 << 10 };
    char cached[PART];
    if (!make_cold(&file) || !can_tell_cold(&file))
        ms_test_skip("nobody tells what is in the page cache here");
    posix_fadvise(file.descriptor, 0, 0, POSIX_FADV_RANDOM);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        const size_t place = parts[i] * PART + PART / 2;
        memory[place] ^= 1;
        CHECK_EQ(pread(file.descriptor, cached, PART, (off_t)(parts[i] * PART)), PART);
        CHECK(!is_same_as(memory, BYTES, 0, MS_COMPARING_SAMPLED));
        CHECK(!is_same_as(memory + PART + 1, BYTES - PART - 1, PART + 1, MS_COMPARING_SAMPLED));
        CHECK(make_cold(&file));
        memory[place] ^= 1;
    }
    memory[parts[0] * PART + PART / 2] ^= 1;
    CHECK(is_same_as(memory, BYTES, 0, MS_COMPARING_SAMPLED));
}

/* --- what the kernel is asked */

static struct {
    _Atomic size_t reads, copies, questions; /* of the file; of memory; of the page cache */
    _Atomic size_t others;
    size_t ends_at; /* the nth read finds that the file is empty; 0: none */
} seen;

/* As in find.c. */
__attribute__((no_sanitize_address)) long syscall(long number, ...)
{
    enum { CACHESTAT = 451 };
    static long (*real)(long, ...);
    long words[6];
    va_list arguments;
    va_start(arguments, number);
    for (size_t i = 0; i < 6; i++)
        words[i] = va_arg(arguments, long);
    va_end(arguments);
    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "syscall");
    if (number == SYS_pread64 && ++seen.reads == seen.ends_at)
        CHECK_EQ(truncate(file.path, 0), 0);
    seen.copies += number == SYS_process_vm_readv;
    seen.questions += number == CACHESTAT;
    seen.others += number == SYS_ioctl || number == SYS_madvise;
    return real(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}

static bool can_load_in_place(void)
{
    seen.copies = 0;
    CHECK(is_same(memory, BYTES, 0, false));
    return seen.copies <= 1;
}

/* A comparison asks about the first bytes, before the rest, about the mapping, and each MiB. */
MS_TEST_AFTER(set_up, a_comparison_asks_little)
{
    if (ms_test_is_watched())
        ms_test_skip("an emulator hides what memory is, and more is read");
    CHECK(is_same(memory, BYTES, 0, true));
    seen.reads = seen.copies = seen.questions = seen.others = 0;
    CHECK(is_same(memory, BYTES, 0, true));
    CHECK_EQ(seen.reads, 1 + 10);
    CHECK(seen.questions == 1 || !can_tell_cold(&file));
    if (!can_load_in_place())
        ms_test_skip("nobody tells of what memory is, or whether it can be loaded");
    seen.reads = seen.copies = seen.questions = seen.others = 0;
    CHECK(is_same(memory, BYTES, 0, false));
    CHECK_EQ(seen.copies, 1);
    CHECK(seen.questions == 0 && seen.others <= 1 + 5 + 1);
}

MS_TEST_AFTER(set_up, memory_that_is_not_there_yet_is_brought_in)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *own =
        mmap(NULL, 10 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(own != MAP_FAILED);
    memcpy(own, memory, BYTES);
    CHECK_EQ(madvise(own + 5 * MIB, page, MADV_DONTNEED), 0);
    CHECK(!is_same(own, BYTES, 0, false)); /* zeros */
    memcpy(own + 5 * MIB, memory + 5 * MIB, page);
    CHECK(is_same(own, BYTES, 0, false));
}

/* Somebody may make the file shorter, and who loads what is missing gets SIGBUS. */
MS_TEST_AFTER(set_up, memory_of_a_file_is_copied)
{
    struct test_file other;
    make_test_file(&other, "/var/tmp", BYTES);
    const int writer = open(other.path, O_RDWR);
    unsigned char *own = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, writer, 0);
    CHECK(own != MAP_FAILED);
    memcpy(own, memory, BYTES);
    seen.copies = 0;
    CHECK(is_same(own, BYTES, 0, false));
    CHECK(seen.copies > BYTES / MIB);
    CHECK_EQ(ftruncate(writer, 5 * MIB), 0);
    CHECK(!is_same(own, BYTES, 0, false));
    CHECK(is_same(own, 5 * MIB, 0, false));
}

STORY_AFTER(set_up, a_comparison_works_where_no_memory_can_be_brought_in, deny(SYS_madvise, EINVAL),
            check_parts(), check_other_bits())

STORY_AFTER(set_up, a_comparison_works_where_nobody_tells_what_memory_is, deny(SYS_ioctl, ENOTTY),
            check_parts(), check_other_bits())

/* --- trouble */

static void set_up_without_leases(void)
{
    ms_config.leases = false; /* who makes the file shorter would wait */
    set_up();
}

MS_TEST_AFTER(set_up_without_leases, a_file_that_is_truncated_meanwhile)
{
    seen.reads = 0;
    seen.ends_at = 5;
    CHECK(!is_same(memory, BYTES, 0, false));
    CHECK(seen.reads >= 5);
}

/* The first bytes, of which there are few, can be read. */
MS_TEST_AFTER(set_up, a_disk_that_fails)
{
    deny_with(SYS_pread64, 2, MIB, EIO);
    CHECK(!is_same(memory, BYTES, 0, false));
    CHECK(is_same(memory, 512, 0, false));
}
