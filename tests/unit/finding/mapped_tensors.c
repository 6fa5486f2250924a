/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/finding/mapped_tensors.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/driver/flags.h"
#include "runtime/files/mapping.h"
#include "runtime/files/source.h"
#include "runtime/finding/find.h"
#include "runtime/loading/source_read.h"
#include "tests/unit/between.h"
#include "tests/unit/files/kernel.h"
#include "tools/simcuda/harness/deny.h"

/* Three tensors, of which two have the same size and differ late. */
enum { LARGE = 300000, SMALL = 70000, DATA = 2 * LARGE + SMALL };

static const char header[] =
    "{\"a\":{\"dtype\":\"U8\",\"shape\":[300000],\"data_offsets\":[0,300000]},"
    "\"b\": {\"dtype\":\"U8\",\"data_offsets\" : [ 300000 , 600000 ]},"
    "\"c\":{\"data_offsets\":[600000,670000]}}";
static char path[] = "/tmp/metashard-content-XXXXXX";
static unsigned char data[DATA];
static int file;
static unsigned char *mapped;

static void remove_file(void)
{
    unlink(path);
}

static void write_all(const void *bytes, size_t count)
{
    CHECK_EQ(write(file, bytes, count), count);
}

/* A safetensors file with this header, and mapped. It is older than a tick of the file system's
 * clock. */
static void make_file(const char *text)
{
    const uint64_t length = strlen(text);
    for (size_t i = 0; i < DATA; i++)
        data[i] = (unsigned char)(i % LARGE * 7 >> 3);
    data[2 * LARGE - 1] ^= 1;
    file = mkstemp(path);
    CHECK(file >= 0);
    atexit(remove_file);
    write_all(&length, sizeof(length));
    write_all(text, length);
    write_all(data, DATA);
    nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL);
    close(file); /* nobody writes */
    file = open(path, O_RDONLY);
    mapped = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0);
    CHECK(mapped != MAP_FAILED);
    atomic_fetch_add(&ms_hot.mapped, 1); /* as the shim does */
}

static void start(void)
{
    make_file(header);
}

/* Where these bytes are found in the data, or -1. They lie in memory of their own, as staged bytes
 * do. */
static int64_t find(const unsigned char *bytes, size_t count)
{
    unsigned char *staged = malloc(count);
    uint64_t offset;
    memcpy(staged, bytes, count);
    struct ms_file *source = ms_find_file(staged, count, &offset);
    if (source != NULL) {
        unsigned char *buffer = malloc(count);
        const void *read;
        CHECK_EQ(ms_source_read(ms_file_source(source), offset, buffer, count, &read),
                 CUDA_SUCCESS);
        CHECK_BYTES(read, staged, count);
        free(buffer);
        ms_file_drop(source);
    }
    free(staged);
    return source != NULL ? (int64_t)(offset - 8 - strlen(header)) : -1;
}

MS_TEST_AFTER(start, staged_bytes_are_found_in_the_file)
{
    needs_mappings(find(data, LARGE) == 0, path);
    CHECK_EQ(find(data + LARGE, LARGE), LARGE);
    CHECK_EQ(find(data + 2 * LARGE, SMALL), 2 * LARGE);
    CHECK_EQ(find(data, LARGE), 0);
}

MS_TEST_AFTER(start, a_tensor_with_one_other_bit_is_another_tensor)
{
    static const size_t places[] = {0, 63, 64, 65, 200000, 262208, LARGE - 1};
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        unsigned char *bytes = malloc(LARGE);
        memcpy(bytes, data, LARGE);
        bytes[places[i]] ^= 128;
        CHECK_EQ(find(bytes, LARGE), -1);
        free(bytes);
    }
    CHECK_EQ(find(data, LARGE - 1), -1); /* no tensor has that size */
}

STORY_AFTER(start, a_file_that_is_not_mapped_is_not_looked_at, munmap(mapped, 4096),
            EQUALS(find(data, LARGE), -1))

MS_TEST_AFTER(start, a_file_that_has_changed_is_read_anew)
{
    needs_mappings(find(data, LARGE) == 0, path);
    data[5] ^= 1;
    const int writer = open(path, O_WRONLY);
    CHECK_EQ(pwrite(writer, data, 100, (off_t)(8 + strlen(header))), 100);
    close(writer);
    data[5] ^= 1;
    CHECK_EQ(find(data, LARGE), -1);
    /* Files are looked for again after a second, or after longer where looking takes long. */
    for (int i = 0; i < 60 && find(data + 2 * LARGE, SMALL) < 0; i++)
        nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 50 * 1000 * 1000}, NULL);
    CHECK_EQ(find(data, LARGE), -1);
    CHECK_EQ(find(data + 2 * LARGE, SMALL), 2 * LARGE);
}

MS_TEST_AFTER(start, a_file_that_can_be_stored_to_is_left_alone)
{
    const int writer = open(path, O_RDWR);
    void *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, writer, 0);
    close(writer);
    CHECK(shared != MAP_FAILED);
    CHECK_EQ(find(data, LARGE), -1);
}

MS_TEST(headers_that_lie_do_no_harm)
{
    static const char *const headers[] = {
        "{\"a\":{\"data_offsets\":[0,99999999999]}}",
        "{\"a\":{\"data_offsets\":[300000,0]}}",
        "{\"a\":{\"data_offsets\":[-5,300000]}}",
        "{\"a\":{\"data_offsets\":[18446744073709551615,300000]}}",
        "{\"a\":{\"data_offsets\":[",
        "{\"a\":{\"data_offsets\"",
        "{\"data_offsets\":{\"data_offsets\":[1,300001]}}",
        "{",
        "no object",
    };
    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
        strcpy(path, "/tmp/metashard-content-XXXXXX");
        make_file(headers[i]);
        CHECK_EQ(find(data, LARGE), -1);
        munmap(mapped, 4096);
        unlink(path);
        close(file);
    }
}

/* --- what is opened */

static int watch(const char *watched)
{
    const int events = inotify_init1(IN_NONBLOCK);
    CHECK(events >= 0);
    CHECK(inotify_add_watch(events, watched, IN_OPEN) >= 0);
    return events;
}

static bool was_opened(int events)
{
    char buffer[4096];
    return read(events, buffer, sizeof(buffer)) > 0;
}

MS_TEST(a_file_that_is_no_checkpoint_is_not_opened)
{
    make_file("no object");
    const int events = watch(path);
    CHECK_EQ(find(data, LARGE), -1);
    CHECK(!was_opened(events));
}

MS_TEST_AFTER(start, a_pipe_in_the_place_of_a_file_is_not_opened)
{
    unlink(path);
    CHECK_EQ(mkfifo(path, 0600), 0);
    const int events = watch(path);
    CHECK_EQ(find(data, LARGE), -1);
    uint64_t offset;
    CHECK(ms_find_file(mapped, 4096, &offset) == NULL ||
          geteuid() == 0); /* by the link of the mapping */
    CHECK(!was_opened(events));
}

MS_TEST_AFTER(start, a_mapping_that_lost_its_pages_does_no_harm)
{
    CHECK_EQ(truncate(path, 0), 0);
    CHECK_EQ(find(data, LARGE), -1);
}

STORY_AFTER(start, a_header_is_looked_at_where_other_processes_cannot_be,
            deny(SYS_process_vm_readv, EPERM), needs_mappings(find(data, LARGE) == 0, path))

/* --- when files are looked for */

static _Atomic unsigned visits, visit_ms; /* how many, and how long one takes */
static _Atomic uint64_t later_ns;         /* by so much the clock is ahead */

WRAPS(clock_gettime, ms_mapping_visit);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    static struct timespec begin; /* it stands, but for what the test adds */
    if (clock != CLOCK_MONOTONIC || begin.tv_sec == 0 || later_ns == 0) {
        const int result = __real_clock_gettime(clock, now);
        if (clock == CLOCK_MONOTONIC)
            begin = *now;
        return result;
    }
    const uint64_t ns = (uint64_t)begin.tv_nsec + later_ns;
    *now = (struct timespec){begin.tv_sec + (time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    return 0;
}

bool __wrap_ms_mapping_visit(ms_mapping_visitor *visit, void *context)
{
    visits++;
    later_ns += (uint64_t)visit_ms * 1000 * 1000;
    return __real_ms_mapping_visit(visit, context);
}

/* Whether a copy of bytes that are nowhere lets files be looked for. */
static bool visits_after(unsigned ms)
{
    static unsigned char nothing[LARGE];
    const unsigned before = visits;
    later_ns += (uint64_t)ms * 1000 * 1000;
    CHECK_EQ(find(nothing, LARGE), -1);
    CHECK(visits <= before + 1);
    return visits > before;
}

static void check_visits(bool has_file)
{
    later_ns = 1;
    visit_ms = 5;
    CHECK(visits_after(0));
    CHECK(!visits_after(0));
    CHECK(!visits_after(999)); /* a second, though it took but 5 ms */
    CHECK(visits_after(1));
    visit_ms = 20;
    CHECK(!visits_after(999));
    CHECK(visits_after(1));
    CHECK(!visits_after(1999)); /* a hundred times what it took */
    CHECK(visits_after(1));
    atomic_fetch_add(&ms_hot.mapped, 1);
    CHECK(visits_after(0));
    CHECK(!visits_after(0));
    if (has_file)
        CHECK_EQ(find(data, LARGE), 0);
}

MS_TEST(files_are_looked_for_once_a_while_and_when_something_is_mapped)
{
    check_visits(false);
}

MS_TEST_AFTER(start, a_checkpoint_makes_no_more_searches_for_files)
{
    needs_mappings(find(data, LARGE) == 0, path);
    later_ns = 1;
    atomic_fetch_add(&ms_hot.mapped, 1);
    check_visits(true);
}

MS_TEST(a_search_looks_at_known_new_mappings_alone)
{
    enum { TOO_MANY = MS_MAPPING_NEW + 1 };
    later_ns = 1;
    CHECK(visits_after(0));
    make_file(header);
    ms_mapping_note_new(mapped);
    const unsigned before = visits;
    const bool is_found = find(data, LARGE) == 0;
    CHECK_EQ(visits, before);
    needs_mappings(is_found, path);
    atomic_fetch_add(&ms_hot.mapped, 1);
    ms_mapping_note_new(NULL);
    CHECK(!visits_after(0));
    atomic_fetch_add(&ms_hot.mapped, 2);
    ms_mapping_note_new(NULL);
    CHECK(visits_after(0)); /* of one nobody knows */
    for (int i = 0; i < TOO_MANY; i++) {
        atomic_fetch_add(&ms_hot.mapped, 1);
        ms_mapping_note_new(NULL);
    }
    CHECK(visits_after(0));
    CHECK(!visits_after(0));
    CHECK_EQ(find(data, LARGE), 0);
}
