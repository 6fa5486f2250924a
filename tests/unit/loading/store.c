/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/loading/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/headroom.h"
#include "runtime/loading/source_read.h"
#include "tests/unit/counted_heap.h"
#include "tests/unit/descriptors.h"
#include "tools/simcuda/harness/deny.h"
#include "tools/simcuda/harness/test.h"
#include "tests/unit/between.h"

enum { BYTES = 3 << 20, ODD = 12345 };

static unsigned char bytes[BYTES];
static struct ms_fault fault;

static void fill(unsigned seed)
{
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (unsigned char)(seed + i + i / 251);
}

static const unsigned char *read_back(const struct ms_source *source)
{
    const void *seen = NULL;
    CHECK(ms_source_file(source) == NULL);
    CHECK_EQ(ms_source_read(source, 0, NULL, 1, &seen), CUDA_SUCCESS);
    return seen;
}

static struct ms_source *add(struct ms_store *store, unsigned seed, size_t count)
{
    fill(seed);
    struct ms_source *source = ms_store_add(store, bytes, count, &fault);
    if (source == NULL)
        ms_test_fail(__FILE__, __LINE__, "%s", fault.text);
    return source;
}

static void check(const struct ms_source *source, unsigned seed, size_t count)
{
    fill(seed);
    CHECK_BYTES(read_back(source), bytes, count);
}

/* The store goes with its last source. */
static void keep_and_read(const char *folder)
{
    struct ms_store *store = ms_store_create(folder, 4 * (size_t)BYTES, 0, &fault);
    CHECK(store != NULL);
    struct ms_source *first = add(store, 1, ODD), *second = add(store, 2, BYTES);
    CHECK(ms_store_finish(store, &fault));
    ms_store_drop(store);
    check(first, 1, ODD);
    check(second, 2, BYTES);
    ms_source_drop(first);
    check(second, 2, BYTES);
    ms_source_drop(second);
}

MS_TEST(a_store_keeps_bytes_in_host_memory)
{
    keep_and_read(NULL);
}

static void check_empty(const char *folder)
{
    CHECK_EQ(rmdir(folder), 0);
}

MS_TEST(a_store_keeps_bytes_in_a_folder)
{
    char folder[] = "/tmp/store-XXXXXX";
    CHECK(mkdtemp(folder) != NULL);
    keep_and_read(folder);
    check_empty(folder);
}

/* Nothing but the room that was asked for goes with a source. */
static void check_pages_go(const char *folder)
{
    struct ms_store *store = ms_store_create(folder, 2 * (size_t)BYTES, 0, &fault);
    struct ms_source *source = add(store, 1, BYTES);
    unsigned char *seen = (unsigned char *)(uintptr_t)read_back(source);
    ms_source_drop(source); /* the store is still there */
    for (size_t i = 0; i < BYTES; i++)
        CHECK_EQ(seen[i], 0);
    ms_store_drop(store);
}

MS_TEST(pages_go_with_their_source)
{
    check_pages_go(NULL);
}

MS_TEST(pages_of_a_file_in_memory_go_with_their_source)
{
    if (access("/dev/shm", W_OK) != 0)
        ms_test_skip("no /dev/shm here");
    if (ms_test_is_watched())
        ms_test_skip("an emulator does not take pages out of a file");
    check_pages_go("/dev/shm");
}

/* Sources of a few bytes share pages, so their number needs no room. */
static void check_small_sources(const char *folder)
{
    enum { SOURCES = 3 * 4096, COUNT = 3 };
    struct ms_store *store = ms_store_create(folder, (size_t)SOURCES * COUNT, 0, &fault);
    CHECK(store != NULL);
    struct ms_source **sources = calloc(SOURCES, sizeof(struct ms_source *));
    for (unsigned i = 0; i < SOURCES; i++) {
        const unsigned char some[COUNT] = {(unsigned char)i, (unsigned char)(i >> 8), 7};
        sources[i] = ms_store_add(store, some, COUNT, &fault);
        CHECK(sources[i] != NULL);
    }
    CHECK(ms_store_finish(store, &fault));
    ms_store_drop(store);
    for (unsigned i = 1; i < SOURCES; i += 2)
        ms_source_drop(sources[i]);
    for (unsigned i = 0; i < SOURCES; i += 2) {
        const unsigned char some[COUNT] = {(unsigned char)i, (unsigned char)(i >> 8), 7};
        CHECK_BYTES(read_back(sources[i]), some, COUNT);
        ms_source_drop(sources[i]);
    }
    free(sources);
}

MS_TEST(sources_of_a_few_bytes_share_pages)
{
    check_small_sources(NULL);
    check_small_sources("/tmp");
}

/* Two sources share the page between them, which stays for the second. */
MS_TEST(a_source_takes_no_byte_of_its_neighbour_along)
{
    enum { PAGE = 4096 };
    struct ms_store *store = ms_store_create(NULL, (size_t)BYTES, 0, &fault);
    struct ms_source *first = add(store, 1, 2 * PAGE + 1), *second = add(store, 2, 2 * PAGE);
    const unsigned char *seen = read_back(first);
    ms_source_drop(first);
    CHECK_EQ(seen[0], 0);
    CHECK_EQ(seen[2 * PAGE - 1], 0);
    check(second, 2, 2 * PAGE);
    ms_source_drop(second);
    ms_store_drop(store);
}

static bool is_mapped(const void *memory)
{
    unsigned char state;
    return mincore((void *)((uintptr_t)memory & ~(uintptr_t)4095), 1, &state) == 0 ||
           errno != ENOMEM;
}

/* In a child of this process. */
static bool is_mapped_after_fork(const void *memory)
{
    int status;
    const pid_t child = fork();
    if (child == 0)
        _exit(is_mapped(memory));
    CHECK_EQ(waitpid(child, &status, 0), child);
    return status != 0;
}

static void check_left(const char *folder)
{
    const int before = open_descriptors(), pieces = live;
    struct ms_store *store = ms_store_create(folder, BYTES, 0, &fault);
    CHECK(store != NULL);
    CHECK_EQ(open_descriptors(), before + (folder != NULL));
    struct ms_source *source = add(store, 1, ODD);
    const unsigned char *seen = read_back(source);
    CHECK(is_mapped(seen));
    CHECK(ms_test_is_watched() || !is_mapped_after_fork(seen)); /* an emulator forgets that */
    CHECK(ms_store_finish(store, &fault));
    CHECK_EQ(open_descriptors(), before);
    CHECK(ms_store_finish(store, &fault)); /* once is enough */
    CHECK_EQ(open_descriptors(), before);
    ms_store_drop(store);
    CHECK(is_mapped(seen));
    ms_source_drop(source);
    CHECK(!is_mapped(seen));
    CHECK_EQ(live, pieces);
    store = ms_store_create(folder, BYTES, 0, &fault); /* one that is never finished */
    CHECK(store != NULL);
    ms_store_drop(store);
    CHECK_EQ(open_descriptors(), before);
    CHECK_EQ(live, pieces);
}

STORY_ALONE(a_store_leaves_no_memory_and_nothing_open, check_left(NULL), check_left("/tmp"))

/* As in a program that has closed its standard input. */
static void check_lowest(void (*check_it)(void))
{
    const int input = dup(0);
    close(0);
    check_it();
    CHECK_EQ(dup2(input, 0), 0);
    close(input);
}

static void check_left_by_both(void)
{
    check_left(NULL);
    check_left("/tmp");
}

MS_TEST(a_store_may_have_the_lowest_descriptor)
{
    check_lowest(check_left_by_both);
}

/* The host memory and addresses that there are, if a test says so. */
static struct {
    bool is_faked, is_private;
    uint64_t memory, addresses;
    unsigned asked;
} host;

WRAPS(ms_headroom_find, madvise);
struct ms_headroom __wrap_ms_headroom_find(enum ms_headroom_kind kind)
{
    const bool is_memory = kind == MS_HEADROOM_MEMORY;
    host.asked += is_memory;
    host.is_private = is_memory ? host.is_private : kind == MS_HEADROOM_PRIVATE;
    if (!host.is_faked)
        return __real_ms_headroom_find(kind);
    return is_memory ? (struct ms_headroom){host.memory, "the test"}
                     : (struct ms_headroom){host.addresses, "the process"};
}

static void fake_host(uint64_t memory, uint64_t addresses)
{
    host.is_faked = true;
    host.memory = memory;
    host.addresses = addresses;
    host.asked = 0;
}

/* The advice about the memory of a store. */
static struct {
    int huge, not_forked;
    size_t bytes;
} advised;

int __wrap_madvise(void *address, size_t count, int advice)
{
    advised.huge += advice == MADV_HUGEPAGE && count > BYTES;
    advised.bytes = count;
    advised.not_forked += advice == MADV_DONTFORK && count > BYTES;
    return __real_madvise(address, count, advice);
}

STORY_ALONE(host_memory_gets_huge_pages_and_a_file_does_not,
            ms_store_drop(ms_store_create(NULL, BYTES, 0, &fault)),
            IS(advised.huge == 1 && advised.not_forked == 1),
            ms_store_drop(ms_store_create("/tmp", BYTES, 0, &fault)),
            IS(advised.huge == 1 && advised.not_forked == 2))

/* One lies behind the other; refused bytes take no room. */
MS_TEST(a_store_without_memory_adds_nothing)
{
    struct ms_store *store;
    may_make = 0;
    CHECK(ms_store_create(NULL, BYTES, 0, &fault) == NULL);
    CHECK(strcmp(fault.text, "out of host memory") == 0);
    may_make = 1;
    CHECK((store = ms_store_create(NULL, BYTES, 0, &fault)) != NULL);
    CHECK(ms_store_add(store, bytes, ODD, &fault) == NULL);
    CHECK(strcmp(fault.text, "out of host memory") == 0);
    may_make = 2;
    struct ms_source *one = add(store, 1, ODD), *other = add(store, 2, 1);
    const uintptr_t first = (uintptr_t)read_back(one), second = (uintptr_t)read_back(other);
    CHECK_EQ(first % 4096, 0);
    CHECK_EQ(second - first, ODD);
    check(one, 1, ODD);
    ms_source_drop(one);
    check(other, 2, 1);
    ms_source_drop(other);
    ms_store_drop(store);
    CHECK_EQ(live, 0);
}

MS_TEST(a_store_that_cannot_be_mapped_is_none)
{
    static const char *const folders[] = {NULL, "/tmp"};
    fake_host(UINT64_MAX, UINT64_MAX); /* else no more is mapped than there is */
    for (int i = 0; i < 2; i++) {
        const int before = open_descriptors();
        CHECK(ms_store_create(folders[i], (size_t)1 << 60, 0, &fault) == NULL);
        CHECK(strncmp(fault.text, i == 0 ? "host memory: " : "/tmp: ", 6) == 0);
        CHECK_EQ(open_descriptors(), before);
        CHECK_EQ(live, 0);
    }
}

/* --- how many bytes */

static void refuse(struct ms_store *store, size_t count, const char *why)
{
    CHECK(ms_store_add(store, bytes, count, &fault) == NULL);
    if (strstr(fault.text, why) == NULL)
        ms_test_fail(__FILE__, __LINE__, "expected %s, found %s", why, fault.text);
}

MS_TEST(a_limit_may_be_reached_and_the_capacity_as_well)
{
    enum { PAGE = 4096 };
    struct ms_store *store = ms_store_create(NULL, BYTES, 2 * PAGE, &fault);
    ms_source_drop(add(store, 1, PAGE));
    refuse(store, PAGE + 1,
           "more than 8192 bytes would have to wait outside of the device: raise "
           "METASHARD_SUSPEND_BYTES, or name a folder");
    ms_source_drop(add(store, 1, PAGE));
    refuse(store, 1, "more than 8192 bytes");
    ms_store_drop(store);
    store = ms_store_create("/tmp", BYTES, PAGE, &fault);
    refuse(store, PAGE + 1, "more than 4096 bytes");
    CHECK(strstr(fault.text, "name a folder") == NULL);
    ms_store_drop(store);
    store = ms_store_create(NULL, PAGE, UINT64_MAX / 2, &fault);
    refuse(store, 2 * PAGE + 1, "the device holds more than was expected");
    ms_source_drop(add(store, 1, 2 * PAGE)); /* a page more than was asked for */
    refuse(store, 1, "the device holds more than was expected");
    ms_store_drop(store);
}

static uint64_t memory_of(const char *wanted)
{
    char line[128];
    uint64_t kib = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    CHECK(file != NULL);
    while (kib == 0 && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, wanted, strlen(wanted)) == 0)
            kib = strtoull(line + strlen(wanted), NULL, 10);
    }
    fclose(file);
    return kib << 10;
}

/* An eighth of what is available stays; a folder has as much room as it has. */
MS_TEST(a_store_without_a_limit_leaves_an_eighth_of_host_memory)
{
    const uint64_t all = memory_of("MemTotal:"), available = memory_of("MemAvailable:");
    struct ms_store *store = ms_store_create(NULL, BYTES, 0, &fault);
    if (available == 0)
        ms_test_skip("this kernel does not tell what is available");
    refuse(store, (size_t)1 << 50, "more than ");
    const uint64_t limit = strtoull(fault.text + strlen("more than "), NULL, 10);
    CHECK(limit <= all - all / 8 && limit > available / 4);
    ms_store_drop(store);
    store = ms_store_create("/tmp", BYTES, 0, &fault);
    refuse(store, (size_t)1 << 50, "the device holds more than was expected");
    ms_store_drop(store);
}

/* Pages that the store has taken already are not there any more, and were for it. */
static void take_page(struct ms_store *store)
{
    enum { PAGE = 4096 };
    ms_store_add(store, bytes, PAGE, &fault);
    host.memory -= PAGE;
}

MS_TEST(seven_eighths_of_host_memory_are_taken_and_no_more)
{
    enum { PAGE = 4096 };
    fake_host(8 * PAGE, UINT64_MAX);
    struct ms_store *store = ms_store_create(NULL, BYTES, 0, &fault);
    CHECK(host.is_private);
    for (int i = 0; i < 7; i++)
        take_page(store);
    refuse(store, 1,
           "more than 28672 bytes would have to wait outside of the device, where the test leaves "
           "no room for more: name a folder on a disk");
    ms_store_drop(store);
    store = ms_store_create(NULL, BYTES, 4 * BYTES, &fault); /* a limit is no memory */
    refuse(store, PAGE, "more than 3584 bytes");
    ms_store_drop(store);
    fake_host(64 * PAGE, UINT64_MAX);
    store = ms_store_create(NULL, BYTES, PAGE, &fault);
    refuse(store, PAGE + 1, "more than 4096 bytes would have to wait outside of the device: raise");
    ms_store_drop(store);
}

/* Others take memory while a store is filled. */
MS_TEST(host_memory_is_asked_for_again)
{
    enum { ASK_BYTES = 16 << 20 };
    const size_t pieces = ASK_BYTES / BYTES + 2;
    fake_host((uint64_t)1 << 40, UINT64_MAX);
    struct ms_store *store = ms_store_create(NULL, (size_t)ASK_BYTES + 8 * BYTES, 0, &fault);
    struct ms_source *sources[8];
    CHECK(pieces <= 8);
    for (size_t i = 0; i < pieces; i++) {
        sources[i] = add(store, 1, BYTES);
        CHECK_EQ(host.asked, i == 0 ? 2 : i < pieces - 1 ? 2 : 3);
    }
    host.memory = BYTES;
    while (ms_store_add(store, bytes, BYTES, &fault) != NULL)
        CHECK(host.asked == 3);
    CHECK(host.asked == 4 && strstr(fault.text, "the test leaves no room") != NULL);
    check(sources[0], 1, BYTES);
    ms_store_drop(store);
}

MS_TEST(host_memory_is_asked_for_sooner_as_it_gets_short)
{
    enum { PIECES = 6 };
    fake_host((uint64_t)32 * BYTES, UINT64_MAX); /* a piece is taken without a question */
    struct ms_store *store = ms_store_create(NULL, (size_t)PIECES * BYTES, 0, &fault);
    for (int i = 0; i < PIECES; i++) {
        ms_source_drop(add(store, 1, BYTES));
        CHECK_EQ(host.asked, 2 + i / 2);
    }
    ms_store_drop(store);
}

MS_TEST(a_folder_that_lies_in_memory_is_host_memory)
{
    enum { PAGE = 4096 };
    fake_host(0, UINT64_MAX);
    ms_source_drop(add(ms_store_create("/var/tmp", BYTES, 0, &fault), 1, BYTES));
    CHECK(host.asked == 0 && !host.is_private);
    if (access("/dev/shm", W_OK) != 0)
        ms_test_skip("no /dev/shm here");
    refuse(ms_store_create("/dev/shm", BYTES, 0, &fault), PAGE, "more than 0 bytes");
    fake_host(4 * PAGE, UINT64_MAX);
    refuse(ms_store_create("/dev/shm", BYTES, 0, &fault), 4 * (size_t)PAGE,
           "more than 14336 bytes");
}

/* The program needs addresses too: seven eighths while a store is filled, then what it has. */
MS_TEST(no_more_addresses_are_taken_than_there_are)
{
    static const char *const folders[] = {NULL, "/tmp"};
    enum { PAGE = 4096 };
    for (int i = 0; i < 2; i++) {
        fake_host(UINT64_MAX, 64 * PAGE);
        struct ms_store *store = ms_store_create(folders[i], BYTES, 0, &fault);
        const size_t mapped = advised.bytes;
        struct ms_source *source = add(store, 1, 2 * PAGE);
        const char *memory = (const char *)read_back(source);
        CHECK_EQ(mapped, 57 * PAGE); /* a page more */
        refuse(store, 55 * (size_t)PAGE, "where the process leaves no room for more");
        CHECK(ms_store_finish(store, &fault));
        CHECK(is_mapped(memory + PAGE) && !is_mapped(memory + 2 * PAGE));
        check(source, 1, 2 * PAGE);
        ms_store_drop(store);
        ms_source_drop(source);
    }
}

/* --- file systems without files that have no name */

static void check_named(int error, bool is_made)
{
    enum { NO_NAME = 020000000 }; /* the bit of O_TMPFILE that no other flag has */
    char folder[] = "/tmp/store-XXXXXX";
    CHECK(mkdtemp(folder) != NULL);
    const int before = open_descriptors();
    deny_with(SYS_openat, 2, NO_NAME, error);
    struct ms_store *store = ms_store_create(folder, BYTES, 0, &fault);
    CHECK_EQ(store != NULL, is_made);
    if (store != NULL) {
        struct ms_source *source = add(store, 1, ODD);
        check_empty(folder); /* the name is gone */
        CHECK(ms_store_finish(store, &fault));
        check(source, 1, ODD);
        ms_source_drop(source);
        ms_store_drop(store);
    } else {
        CHECK(strstr(fault.text, strerror(error)) != NULL);
        check_empty(folder);
    }
    CHECK_EQ(open_descriptors(), before);
    CHECK_EQ(live, 0);
}

MS_TEST(a_file_loses_its_name_where_it_must_have_one)
{
    check_named(EOPNOTSUPP, true);
}

static void check_other(void)
{
    check_named(EOPNOTSUPP, true);
}

MS_TEST(a_file_that_loses_its_name_may_have_the_lowest_descriptor)
{
    check_lowest(check_other);
}

MS_TEST(a_file_loses_its_name_on_an_older_kernel)
{
    check_named(EISDIR, true);
}

MS_TEST(a_file_loses_its_name_where_the_flag_is_unknown)
{
    check_named(EINVAL, true);
}

MS_TEST(a_folder_that_takes_no_file_is_none)
{
    check_named(ENOSPC, false);
}

MS_TEST(a_store_takes_no_more_than_its_limit)
{
    struct ms_store *store = ms_store_create(NULL, 4 * (size_t)BYTES, BYTES + 1, &fault);
    struct ms_source *source = add(store, 1, BYTES);
    CHECK(ms_store_add(store, bytes, 1 << 20, &fault) == NULL);
    CHECK(strstr(fault.text, "METASHARD_SUSPEND_BYTES") != NULL);
    check(source, 1, BYTES);
    ms_source_drop(source);
    ms_store_drop(store);
}

MS_TEST(a_folder_that_is_not_there)
{
    CHECK(ms_store_create("/nowhere/at/all", BYTES, 0, &fault) == NULL);
    CHECK(strstr(fault.text, "/nowhere/at/all: No such file") != NULL);
}

/* As a folder that is full; and no signal ends the process. */
MS_TEST(a_file_that_cannot_grow)
{
    const struct rlimit limit = {.rlim_cur = BYTES / 2, .rlim_max = BYTES / 2};
    char folder[] = "/tmp/store-XXXXXX";
    CHECK(mkdtemp(folder) != NULL);
    struct ms_store *store = ms_store_create(folder, BYTES, 0, &fault);
    CHECK(store != NULL);
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    CHECK(ms_store_add(store, bytes, BYTES, &fault) == NULL);
    CHECK(strstr(fault.text, strerror(EFBIG)) != NULL);
    ms_store_drop(store);
    check_empty(folder);
}
