/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/loading/transfer.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/wait.h>

#include "runtime/config/config.h"
#include "runtime/files/change.h"
#include "runtime/files/direct.h"
#include "runtime/files/kept_threads.h"
#include "runtime/files/file_internal.h"
#include "runtime/files/sums.h"
#include "runtime/finding/find.h"
#include "runtime/loading/pinned_pool.h"
#include "runtime/state/counters.h"
#include "tests/unit/between.h"
#include "tests/unit/counted_pages.h"
#include "tests/unit/files/files.h"
#include "tests/unit/files/kernel.h"
#include "tools/simcuda/harness/deny.h"
#include "tools/simcuda/harness/range_access.h"

enum { BLOCK = 4096, MAX_QUEUED = 1 << 17, MAX_EVENTS = 1024 };
#define MIB ((size_t)1 << 20)
#define KIB ((size_t)1 << 10)

/*
 * A driver with one stream, which does nothing before somebody waits or asks: so a slot that is
 * filled again too early, or staging that is freed too early, shows. Device memory is host memory.
 */
struct work {
    unsigned char *to;
    const unsigned char *from;
    size_t width, rows, to_pitch, from_pitch;
    size_t event; /* 0: a copy */
};
static struct work *queued;
static size_t queued_count, done_count;
static bool is_recorded[MAX_EVENTS]; /* but not done */
static int live_events, live_staging, copy_calls, row_calls, wait_calls, stream_waits, event_calls;
static size_t staging_bytes;
static bool refuses_pinned, has_refused_pinned;
static bool transfers;            /* then nothing may be done that waits for all of the device */
static int fail_at, driver_calls; /* the nth driver call fails; 0: none */
static pthread_t caller;
static uint64_t seed = 1;
static void (*on_copy)(void);

static unsigned char *memory, *wanted;
static size_t memory_bytes;

static bool fails(void)
{
    CHECK(pthread_equal(caller, pthread_self()));
    return ++driver_calls == fail_at;
}

#define ENTER()  \
    if (fails()) \
    return CUDA_ERROR_LAUNCH_FAILED

static void run_one(void)
{
    const struct work *work = &queued[done_count++];
    if (work->event > 0)
        is_recorded[work->event] = false;
    for (size_t i = 0; i < work->rows && work->event == 0; i++)
        memcpy(work->to + i * work->to_pitch, work->from + i * work->from_pitch, work->width);
}

static void add_work(const struct work *work)
{
    CHECK(queued_count < MAX_QUEUED);
    queued[queued_count++] = *work;
}

static CUresult ctx_get_current(CUcontext *context)
{
    *context = (CUcontext)1;
    return CUDA_SUCCESS;
}

static CUresult exchange_capture_mode(CUstreamCaptureMode *mode)
{
    *mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    return CUDA_SUCCESS;
}

static CUresult mem_host_alloc(void **memory_out, size_t bytes, unsigned flags)
{
    has_refused_pinned = fails();
    if (has_refused_pinned)
        return CUDA_ERROR_LAUNCH_FAILED;
    CHECK_EQ(flags, 0);
    if (refuses_pinned)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *memory_out = aligned_alloc(BLOCK, bytes);
    staging_bytes = bytes;
    live_staging++;
    return CUDA_SUCCESS;
}

static CUresult mem_free_host(void *freed)
{
    CHECK(!transfers);
    free(freed);
    live_staging--;
    return CUDA_SUCCESS;
}

static CUresult event_create(CUevent *event, unsigned flags)
{
    ENTER();
    CHECK_EQ(flags, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
    CHECK(live_events + 1 < MAX_EVENTS);
    event_calls++;
    *event = (CUevent)(uintptr_t)++live_events;
    return CUDA_SUCCESS;
}

static CUresult event_destroy(CUevent event)
{
    CHECK(event != NULL);
    live_events--;
    return CUDA_SUCCESS;
}

static CUresult event_record(CUevent event, CUstream stream)
{
    ENTER();
    CHECK_EQ((uintptr_t)stream, 7);
    is_recorded[(uintptr_t)event] = true;
    add_work(&(struct work){.event = (uintptr_t)event});
    return CUDA_SUCCESS;
}

static CUresult event_query(CUevent event)
{
    ENTER();
    for (uint64_t n = next_random(&seed) % 3; n > 0 && done_count < queued_count; n--)
        run_one();
    return is_recorded[(uintptr_t)event] ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult event_synchronize(CUevent event)
{
    ENTER();
    wait_calls++;
    while (is_recorded[(uintptr_t)event])
        run_one();
    return CUDA_SUCCESS;
}

static CUresult stream_synchronize(CUstream stream)
{
    CHECK_EQ((uintptr_t)stream, 7);
    stream_waits++;
    while (done_count < queued_count)
        run_one();
    return CUDA_SUCCESS;
}

static CUresult memcpy_htod_async(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    ENTER();
    CHECK_EQ((uintptr_t)stream, 7);
    copy_calls++;
    if (on_copy != NULL)
        on_copy();
    add_work(&(struct work){(unsigned char *)to, from, bytes, 1, bytes, bytes, 0});
    return CUDA_SUCCESS;
}

static CUresult memcpy_2d_async(const CUDA_MEMCPY2D *copy, CUstream stream)
{
    ENTER();
    CHECK_EQ((uintptr_t)stream, 7);
    CHECK_EQ(copy->srcMemoryType, CU_MEMORYTYPE_HOST);
    CHECK_EQ(copy->dstMemoryType, CU_MEMORYTYPE_DEVICE);
    CHECK(copy->srcPitch >= copy->WidthInBytes && copy->dstPitch >= copy->WidthInBytes);
    CHECK(copy->srcXInBytes + copy->srcY + copy->dstXInBytes + copy->dstY == 0);
    row_calls++;
    if (on_copy != NULL)
        on_copy();
    add_work(&(struct work){(unsigned char *)copy->dstDevice, copy->srcHost, copy->WidthInBytes,
                            copy->Height, copy->dstPitch, copy->srcPitch, 0});
    return CUDA_SUCCESS;
}

static void forget_work(void)
{
    queued_count = done_count = 0;
    copy_calls = row_calls = wait_calls = stream_waits = event_calls = driver_calls = 0;
}

static void start(size_t staging, unsigned threads)
{
    ms_driver.ctx_get_current = ctx_get_current;
    ms_driver.exchange_capture_mode = exchange_capture_mode;
    ms_driver.mem_host_alloc = mem_host_alloc;
    ms_driver.mem_free_host = mem_free_host;
    ms_driver.event_create = event_create;
    ms_driver.event_destroy = event_destroy;
    ms_driver.event_record = event_record;
    ms_driver.event_query = event_query;
    ms_driver.event_synchronize = event_synchronize;
    ms_driver.stream_synchronize = stream_synchronize;
    ms_driver.memcpy_htod_async = memcpy_htod_async;
    ms_driver.memcpy_2d_async = memcpy_2d_async;
    ms_config.staging_bytes = staging;
    ms_config.read_threads = threads;
    caller = pthread_self();
    if (queued == NULL)
        queued = malloc(MAX_QUEUED * sizeof(*queued));
    ms_pinned_pool_give_back((CUcontext)1);
    CHECK_EQ(live_staging, 0);
    forget_work();
}

/* Memory that no run writes must stay as it is. */
static void make_memory(size_t bytes)
{
    free(memory);
    free(wanted);
    memory_bytes = bytes;
    memory = malloc(bytes);
    wanted = malloc(bytes);
    fill_randomly(memory, bytes, 99);
    memcpy(wanted, memory, bytes);
}

static struct ms_read_request make_run(const struct test_file *file, size_t offset, size_t bytes,
                                       size_t at)
{
    CHECK(offset + bytes <= file->bytes && at + bytes <= memory_bytes);
    memcpy(wanted + at, file->data + offset, bytes);
    return (struct ms_read_request){file->opened, offset, bytes, (CUdeviceptr)(memory + at)};
}

static CUresult transfer(struct ms_read_request *requests, size_t count)
{
    transfers = true;
    const CUresult result = ms_transfer(requests, count, (CUcontext)1, (CUstream)7);
    transfers = false;
    CHECK_EQ(live_events, 0);
    CHECK(live_staging <= 1);
    CHECK_EQ(done_count, queued_count);
    return result;
}

static void check_transfer(struct ms_read_request *requests, size_t count)
{
    CHECK_EQ(transfer(requests, count), CUDA_SUCCESS);
    CHECK_BYTES(memory, wanted, memory_bytes);
}

/* --- bytes */

enum { FILES = 3, MAX_RUNS = 400 };
static struct test_file files[FILES];
static struct ms_read_request requests[MAX_RUNS];

static void make_files(void)
{
    make_test_file(&files[0], "/tmp", 6 * MIB + 1234);
    make_test_file(&files[1], "/tmp", 777);
    make_test_file(&files[2], "/tmp", 3 * MIB);
}

static size_t random_size(uint64_t *state)
{
    static const size_t limits[] = {1, 16, 5000, 100000, 2 << 20};
    return next_random(state) % (limits[next_random(state) % 5] + 1);
}

/* Neighbours, overlaps, the same again, holes of all sizes; in any order. */
static size_t make_random_runs(uint64_t *state)
{
    make_memory(24 * MIB);
    const size_t most = 1 + next_random(state) % MAX_RUNS;
    size_t count = 0;
    size_t at = next_random(state) % 100;
    size_t offset = 0;
    while (count < most) {
        const struct test_file *file = &files[next_random(state) % FILES];
        if (next_random(state) % 3 == 0)
            offset = next_random(state) % file->bytes;
        else
            offset += random_size(state) % 10000;
        size_t bytes = random_size(state);
        if (offset >= file->bytes)
            offset = file->bytes - 1;
        if (bytes > file->bytes - offset)
            bytes = file->bytes - offset;
        if (at + bytes > memory_bytes)
            break;
        requests[count++] = make_run(file, offset, bytes, at);
        at += bytes + (next_random(state) % 2 == 0 ? 0 : next_random(state) % 5000);
        offset += bytes;
    }
    for (size_t i = 0; i + 1 < count; i++) {
        const size_t j = i + next_random(state) % (count - i);
        const struct ms_read_request other = requests[i];
        requests[i] = requests[j];
        requests[j] = other;
    }
    return count;
}

/* The slow twin: every wanted byte once, and the gaps in which at most one block is nobody's. */
RANGE_ACCESS static size_t count_read(const struct test_file *file, size_t count)
{
    unsigned char *marks = calloc(file->bytes, 1);
    for (size_t i = 0; i < count; i++) {
        if (requests[i].file == file->opened)
            memset(marks + requests[i].offset, 1, requests[i].bytes);
    }
    size_t read = 0;
    size_t last = file->bytes; /* none */
    for (size_t i = 0; i < file->bytes; i++) {
        if (marks[i] == 0)
            continue;
        read += last < file->bytes && i / BLOCK <= last / BLOCK + 2 ? i - last : 1;
        last = i;
    }
    free(marks);
    return read;
}

static void check_random(uint64_t state)
{
    const size_t count = make_random_runs(&state);
    size_t read = 0;
    size_t bytes = 0;
    for (int i = 0; i < FILES; i++)
        read += count_read(&files[i], count);
    for (size_t i = 0; i < count; i++)
        bytes += requests[i].bytes;
    for (int i = 0; i < FILES && next_random(&state) % 2 == 0; i++)
        make_cold(&files[i]);
    const uint64_t read_before = ms_counter_get(MS_COUNT_FILE_READ_BYTES);
    const uint64_t copied_before = ms_counter_get(MS_COUNT_H2D_BYTES);
    check_transfer(requests, count);
    CHECK_EQ(ms_counter_get(MS_COUNT_FILE_READ_BYTES) - read_before, read);
    CHECK_EQ(ms_counter_get(MS_COUNT_H2D_BYTES) - copied_before, bytes);
    CHECK(staging_bytes <= ms_config.staging_bytes || staging_bytes == 256 * KIB);
}

MS_TEST_AFTER(make_files, a_transfer_of_random_runs_gets_right_bytes)
{
    static const size_t stagings[] = {0, 300 * 1024, 1 << 20, 64 << 20};
#ifdef __SANITIZE_THREAD__
    const unsigned rounds = 24; /* each combination once */
#else
    const unsigned rounds = ms_test_is_watched() ? 24 : 60;
#endif
    for (unsigned i = 0; i < rounds; i++) {
        start(stagings[i % 4], i / 4 % 6);
        check_random(1000 + i);
    }
}

/* The first run ends behind many others that lie in it. */
MS_TEST_AFTER(make_files, runs_within_a_run)
{
    make_memory(20 * MIB);
    start(2 * MIB, 4);
    size_t count = 0;
    requests[count++] = make_run(&files[0], 3, 6 * MIB, 5);
    for (size_t i = 0; i < 300; i++)
        requests[count++] = make_run(&files[0], 10 + 20000 * i, 30000, 7 * MIB + 30000 * i);
    const uint64_t before = ms_counter_get(MS_COUNT_FILE_READ_BYTES);
    check_transfer(requests, count);
    CHECK_EQ(ms_counter_get(MS_COUNT_FILE_READ_BYTES) - before, 6 * MIB);
}

STORY_AFTER(make_files, a_transfer_of_no_bytes_calls_no_driver, make_memory(MIB), start(MIB, 4),
            check_transfer(requests, 0), requests[0] = make_run(&files[0], 5, 0, 0),
            check_transfer(requests, 1), EQUALS(driver_calls, 0))

/* --- strides */

static uint64_t count_read_calls(void)
{
    FILE *file = fopen("/proc/self/io", "r");
    unsigned long long calls = 0;
    char line[200];
    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        sscanf(line, "syscr: %llu", &calls);
    if (file != NULL)
        fclose(file);
    return calls;
}

/* Rows of a matrix that lies in one file, into memory with another pitch. Returns how often the
 * kernel was asked. */
static uint64_t check_rows(struct test_file *file, size_t rows, size_t bytes, size_t stride,
                           size_t distance)
{
    make_memory(rows * distance + bytes);
    struct ms_read_request *strided = malloc(rows * sizeof(*strided));
    for (size_t i = 0; i < rows; i++)
        strided[i] = make_run(file, 100 + i * stride, bytes, 11 + i * distance);
    const uint64_t before = count_read_calls();
    check_transfer(strided, rows);
    free(strided);
    return count_read_calls() - before;
}

MS_TEST(rows_are_copied_together)
{
    static struct test_file file;
    make_test_file(&file, "/tmp", 32 * MIB);
    for (unsigned threads = 0; threads < 4; threads += 3) {
        start(64 * MIB, threads);
        const uint64_t calls = check_rows(&file, 8000, 1024, 4096, 1536);
        /* At most one cut row at either end of a slot. */
        CHECK(row_calls >= 8 && copy_calls + row_calls <= 3 * 64);
        CHECK(calls < 500 || ms_test_is_watched());
    }
}

MS_TEST(rows_that_meet_are_one_copy)
{
    static struct test_file file;
    make_test_file(&file, "/tmp", 32 * MIB);
    start(64 * MIB, 4);
    check_rows(&file, 400, 1024, 70000, 1024); /* too far apart to be read together */
    CHECK_EQ(row_calls, 0);
    CHECK(copy_calls < 20);
    forget_work();
    check_rows(&file, 400, 1024, 70000, 3000);
    CHECK(copy_calls + row_calls < 20);
}

/* No memory may be between them. */
MS_TEST(rows_far_apart_in_memory_are_copied_singly)
{
    static struct test_file file;
    make_test_file(&file, "/tmp", MIB);
    start(64 * MIB, 0);
    check_rows(&file, 50, 1024, 4096, 1024 + 64 * KIB);
    CHECK_EQ(row_calls, 0);
    CHECK_EQ(copy_calls, 50);
    forget_work();
    check_rows(&file, 50, 1024, 4096, 1024 + 64 * KIB - 1);
    CHECK_EQ(copy_calls, 0);
}

/* --- ways to read */

static void check_whole(struct test_file *file, unsigned threads)
{
    make_memory(file->bytes);
    start(8 * MIB, threads);
    requests[0] = make_run(file, 1, file->bytes - 2, 0);
    check_transfer(requests, 1);
}

/* With a slot for each batch it waits for nothing but its end. */
static void check_waits(size_t bytes, unsigned threads, size_t staging, bool waits_for_slots)
{
    make_memory(bytes);
    start(staging, threads);
    requests[0] = make_run(&files[0], 5, bytes, 0);
    check_transfer(requests, 1);
    CHECK_EQ(stream_waits, 1);
    CHECK((event_calls > 0) == waits_for_slots && (waits_for_slots || wait_calls == 0));
    CHECK(copy_calls > 1 || bytes < 256 * KIB);
}

MS_TEST_AFTER(make_files, a_small_transfer_waits_once)
{
    for (unsigned threads = 0; threads < 5; threads += 4) {
        for (size_t bytes = 128 * KIB; bytes < 4 * MIB; bytes *= 2)
            check_waits(bytes, threads, 64 * MIB, false);
        check_waits(5 * MIB, threads, MIB, true);
    }
}

static bool has_direct(const struct test_file *file)
{
    const int descriptor = open(file->path, O_RDONLY | O_DIRECT);
    char *block = aligned_alloc(BLOCK, BLOCK);
    const bool works = descriptor >= 0 && pread(descriptor, block, BLOCK, 0) == BLOCK;
    free(block);
    close(descriptor);
    return works;
}

MS_TEST_AFTER(make_files, a_transfer_leaves_a_cold_file_out_of_the_page_cache)
{
    struct test_file *file = &files[0];
    if (!has_direct(file))
        ms_test_skip("/tmp does not do without the page cache");
    for (unsigned threads = 0; threads < 5; threads += 4) {
        const bool is_cold = make_cold(file) && can_tell_cold(file);
        check_whole(file, threads);
        CHECK(!is_cold || count_cached(file) < 64);
    }
}

/* Later transfers have what the first has opened, until the file is let go. */
MS_TEST_AFTER(make_files, a_transfer_past_the_page_cache_opens_its_file_once)
{
    struct test_file *file = &files[0];
    if (!has_direct(file) || !make_cold(file) || !can_tell_cold(file))
        ms_test_skip("/tmp does not do without the page cache, or does not tell");
    check_whole(file, 4);
    deny_with(SYS_openat, 2, O_DIRECT, EINVAL);
    check_whole(file, 4);
    CHECK(count_cached(file) < 64);
    CHECK(file->opened->direct >= 0);
    const struct stat stat = *ms_file_stat(file->opened);
    char path[MS_PATH_BYTES];
    CHECK(ms_change_begin(stat.st_dev, stat.st_ino, false, path));
    ms_change_end(stat.st_dev, stat.st_ino, true);
    CHECK_EQ(file->opened->direct, MS_DIRECT_REFUSED);
    CHECK_EQ(transfer(requests, 1), CUDA_ERROR_OPERATING_SYSTEM);
}

/* A rank copies each tensor from the mapping, and then reads its rows. No other rows
 * come into the page cache, neither by looking for the file nor ahead of the rows that are read. */
static void check_rows_alone(struct test_file *file, size_t row_bytes)
{
    enum { TENSORS = 32, FIRST_ROW = 16 << 10 };
    uint64_t offset;
    if (!make_cold(file) || !can_tell_cold(file))
        ms_test_skip("this kernel does not tell what is in the page cache");
    const unsigned char *mapped =
        mmap(NULL, file->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file->descriptor, 0);
    CHECK(mapped != MAP_FAILED);
    make_memory(TENSORS * row_bytes);
    start(8 * MIB, 4);
    for (size_t i = 0; i < TENSORS; i++) {
        struct ms_file *source = ms_find_file(mapped + i * MIB, MIB, &offset);
        needs_mappings(source != NULL, file->path);
        CHECK(source == file->opened && offset == i * MIB);
        ms_file_drop(source);
        requests[i] = make_run(file, i * MIB + FIRST_ROW, row_bytes, i * row_bytes);
    }
    CHECK_EQ(count_cached(file), 0);
    check_transfer(requests, TENSORS);
    CHECK(count_cached(file) * BLOCK <= TENSORS * row_bytes * 11 / 10);
    munmap((void *)mapped, file->bytes);
}

MS_TEST(a_transfer_of_rows_reads_nothing_between_them_ahead)
{
    struct test_file file;
    make_test_file(&file, "/tmp", 32 * MIB);
    check_rows_alone(&file, 4 * KIB);
    check_rows_alone(&file, 48 * KIB);
    check_rows_alone(&file, 512 * KIB);
}

/* A part that has a checksum is read whole: those at the ends, but none in the middle, wherever the
 * range is cut for slots. */
MS_TEST(a_transfer_reads_more_at_its_ends_alone_for_checksums)
{
    /* counters, and the limits of the process's memory, are read as well */
    enum { PART = MS_SUMS_PART, TELLING = 16 * KIB };
    uint64_t draw = (uint64_t)time(NULL);
    struct test_file file;
    printf("# drawn with %llu\n", (unsigned long long)draw);
    make_test_file(&file, "/var/tmp", 32 * MIB);
    for (size_t i = 0; i < file.bytes / PART; i++) {
        const uint64_t sum = ms_sums_make(file.data + i * PART);
        CHECK(ms_sums_add(file.opened, i, &sum, 1));
    }
    const size_t bytes = 17 * MIB + next_random(&draw) % MIB;
    const size_t offset = 1 + next_random(&draw) % (14 * MIB);
    make_memory(bytes);
    start(64 * MIB, 4);
    requests[0] = make_run(&file, offset, bytes, 0);
    const uint64_t before = count_io("rchar");
    check_transfer(requests, 1);
    const uint64_t read = count_io("rchar") - before;
    CHECK(read <= bytes + 2 * (PART + BLOCK) + TELLING);
}

/* As from a kernel without cachestat: what is seen in the page cache is taken from there. */
MS_TEST_AFTER(make_files, kernels_that_do_not_tell_about_the_page_cache)
{
    deny(451, ENOSYS);
    const bool is_cold = make_cold(&files[0]);
    check_whole(&files[0], 4);
    CHECK(!is_cold || !has_direct(&files[0]) || count_cached(&files[0]) < 64);
    check_whole(&files[0], 4);
    make_cold(&files[0]);
    deny(SYS_mincore, ENOSYS);
    check_whole(&files[0], 4);
    check_whole(&files[0], 0);
    deny(SYS_preadv2, ENOSYS);
    CHECK_EQ(posix_fadvise(files[0].descriptor, 0, 0, POSIX_FADV_DONTNEED), 0);
    check_whole(&files[0], 4);
    check_whole(&files[0], 0);
}

MS_TEST_AFTER(make_files, a_file_half_in_the_page_cache)
{
    for (unsigned threads = 0; threads < 5; threads += 4) {
        make_cold(&files[0]);
        char *bytes = malloc(2 * MIB);
        CHECK_EQ(pread(files[0].descriptor, bytes, 2 * MIB, MIB + 300), 2 * MIB);
        free(bytes);
        check_whole(&files[0], threads);
    }
}

STORY_AFTER(make_files, file_systems_that_refuse_to_go_past_the_page_cache,
            deny_with(SYS_openat, 2, O_DIRECT, EINVAL), make_cold(&files[0]),
            check_whole(&files[0], 4), make_cold(&files[0]), check_whole(&files[0], 0))

MS_TEST(a_file_in_memory)
{
    static struct test_file file;
    if (access("/dev/shm", W_OK) != 0)
        ms_test_skip("no /dev/shm");
    make_test_file(&file, "/dev/shm", 9 * MIB + 5);
    check_whole(&file, 4);
    check_whole(&file, 0);
}

STORY_AFTER(make_files, a_transfer_works_without_pinned_memory, refuses_pinned = true,
            check_whole(&files[0], 4), check_whole(&files[0], 0))

MS_TEST_AFTER(make_files, staging_is_kept_until_it_is_given_back)
{
    check_whole(&files[0], 4);
    CHECK_EQ(live_staging, 1);
    requests[0] = make_run(&files[1], 0, files[1].bytes, 0);
    check_transfer(requests, 1);
    CHECK_EQ(live_staging, 1);
    ms_pinned_pool_give_back((CUcontext)2);
    CHECK_EQ(live_staging, 1);
    ms_pinned_pool_give_back((CUcontext)1);
    CHECK_EQ(live_staging, 0);
    check_transfer(requests, 1);
    ms_pinned_pool_forget((CUcontext)1); /* the driver has freed it */
    ms_pinned_pool_give_back((CUcontext)1);
    CHECK_EQ(live_staging, 1);
}

/* --- trouble */

static struct test_file *victim;
static int copies_left;

static void write_byte(const struct test_file *file)
{
    const int writer = open(file->path, O_WRONLY);
    CHECK_EQ(pwrite(writer, "x", 1, 5), 1);
    close(writer);
}

static void change_file(void)
{
    if (copies_left-- == 0)
        write_byte(victim);
}

static void truncate_file(void)
{
    if (copies_left-- == 0)
        CHECK_EQ(truncate(victim->path, (off_t)(victim->bytes / 4)), 0);
}

/* Whether the file is not cached: where there are few cores, the caller reads cached bytes. */
static bool is_cold;

/* Most of the file is not read yet when the third copy is queued. */
static struct test_file *start_trouble(void (*trouble)(void), unsigned threads)
{
    static struct test_file file;
    make_test_file(&file, "/tmp", 16 * MIB);
    make_memory(file.bytes);
    start(2 * MIB, threads);
    is_cold = threads > 0 && make_cold(&file) && can_tell_cold(&file);
    requests[0] = make_run(&file, 0, file.bytes, 0);
    victim = &file;
    copies_left = 2;
    on_copy = trouble;
    open_log(MS_INFO);
    return &file;
}

static void check_trouble(void (*trouble)(void), unsigned threads)
{
    start_trouble(trouble, threads);
    CHECK_EQ(transfer(requests, 1), CUDA_ERROR_OPERATING_SYSTEM);
    CHECK_EQ(count_log_lines("error: "), 1);
    CHECK_EQ(count_log_lines(victim->path), 1);
    CHECK(queued_count < 2 * 64);
    on_copy = NULL;
    CHECK_EQ(transfer(requests, 1), CUDA_ERROR_OPERATING_SYSTEM);
}

MS_TEST(a_file_that_changes_meanwhile)
{
    check_trouble(change_file, 0);
}

MS_TEST(a_file_that_changes_meanwhile_read_by_threads)
{
    check_trouble(change_file, 4);
}

MS_TEST(a_file_that_is_truncated_meanwhile)
{
    check_trouble(truncate_file, 0);
}

MS_TEST(a_file_that_is_truncated_meanwhile_read_by_threads)
{
    check_trouble(truncate_file, 4);
}

MS_TEST(a_file_that_was_truncated_before)
{
    struct test_file *file = start_trouble(NULL, 4);
    CHECK_EQ(truncate(file->path, 1), 0);
    CHECK_EQ(transfer(requests, 1), CUDA_ERROR_OPERATING_SYSTEM);
    CHECK_EQ(count_log_lines("(size 1, was "), 1);
    CHECK_EQ(count_log_lines("error: "), 1);
    CHECK_EQ(queued_count, 0);
}

MS_TEST(a_file_that_cannot_be_read)
{
    start_trouble(NULL, 4);
    deny(SYS_pread64, EIO);
    CHECK_EQ(transfer(requests, 1), CUDA_ERROR_OPERATING_SYSTEM);
    CHECK_EQ(count_log_lines("Input/output error"), 1);
    CHECK_EQ(count_log_lines("error: "), 1);
    CHECK_EQ(queued_count, 0);
}

static void cancel(void)
{
    if (copies_left-- == 0)
        ms_transfer_cancel();
}

static void check_cancel(unsigned threads)
{
    start_trouble(cancel, threads);
    copies_left = 0; /* the program's own transfers go on */
    CHECK_EQ(transfer(requests, 1), CUDA_SUCCESS);
    start_trouble(cancel, threads);
    ms_transfer_let_cancel();
    CHECK_EQ(transfer(requests, 1), CUDA_ERROR_DEINITIALIZED);
    CHECK(copies_left > -8);
    CHECK_EQ(count_log_lines("error: "), 0);
    forget_work();
    CHECK_EQ(transfer(requests, 1), CUDA_ERROR_DEINITIALIZED);
    CHECK_EQ(driver_calls, 0);
}

MS_TEST(a_cancelled_transfer_ends)
{
    check_cancel(0);
}

MS_TEST(a_transfer_ends_when_cancelled_while_threads_read)
{
    check_cancel(4);
}

/* Each driver call in its turn; nothing stays behind, and the next transfer works. Only pinned
 * memory can be done without. */
MS_TEST_AFTER(make_files, a_transfer_with_a_failing_driver_call_leaves_nothing)
{
    make_memory(files[0].bytes);
    CUresult result;
    int failed = 0;
    do {
        start(2 * MIB, failed % 2 == 0 ? 0 : 4);
        requests[0] = make_run(&files[0], 0, files[0].bytes, 0);
        fail_at = ++failed;
        has_refused_pinned = false;
        result = transfer(requests, 1);
        CHECK_EQ(result, fail_at <= driver_calls && !has_refused_pinned ? CUDA_ERROR_LAUNCH_FAILED
                                                                        : CUDA_SUCCESS);
    } while (fail_at <= driver_calls);
    CHECK(failed > 30);
    CHECK_BYTES(memory, wanted, memory_bytes);
}

/* Runs of two files in disorder, more than arrays have room for at first. */
static bool transfer_some(void)
{
    enum { RUNS = 100, RUN = 3000 };
    make_memory(2 * RUNS * RUN);
    for (size_t i = 0; i < RUNS; i++)
        requests[i] =
            make_run(&files[i % 2 == 0 ? 0 : 2], (RUNS - i) * 4 * BLOCK, RUN, 2 * i * RUN);
    const CUresult result = transfer(requests, RUNS);
    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
    if (result == CUDA_SUCCESS)
        CHECK_BYTES(memory, wanted, memory_bytes);
    return result == CUDA_SUCCESS;
}

STORY_AFTER(make_files, a_transfer_without_memory_reads_nothing_and_leaks_nothing,
            start(2 * MIB, 0), IS(transfer_some()), without_each_piece(transfer_some, 10))

static void wait_long(void)
{
    if (copies_left-- > 0)
        nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 100 * 1000 * 1000}, NULL);
}

STORY_ALONE(a_long_transfer_says_how_far_it_is, start_trouble(wait_long, 4),
            check_transfer(requests, 1),
            EQUALS(count_log_lines("filling device memory from files: 524288 of 16777216 bytes"),
                   1),
            EQUALS(count_log_lines(""), 1))

/* --- threads */

static int threads_seen;

/* Every thread that reads blocks all that can be blocked. Not looked at when they may be ending:
 * then none is told. */
static void look_at_threads(void)
{
    if (copies_left-- <= 0)
        return;
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *task;
    while ((task = readdir(tasks)) != NULL) {
        char path[300];
        char line[300];
        bool reads = false;
        snprintf(path, sizeof(path), "/proc/self/task/%s/status", task->d_name);
        FILE *file = fopen(path, "r");
        while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
            unsigned long long blocked;
            reads = reads || strcmp(line, "Name:\tmetashard-read\n") == 0;
            if (!reads || sscanf(line, "SigBlk: %llx", &blocked) != 1)
                continue;
            threads_seen++;
            /* All but KILL, STOP and libc's own two. */
            CHECK(ms_test_is_watched() || (blocked | 0x180040100) == ~0ull);
        }
        if (file != NULL)
            fclose(file);
    }
    closedir(tasks);
}

/* One for each 512 KiB. */
static void check_readers(size_t bytes, bool are_there)
{
    threads_seen = 0;
    copies_left = 1;
    make_memory(bytes);
    start(64 * MIB, 4);
    requests[0] = make_run(&files[0], 0, bytes, 0);
    on_copy = look_at_threads;
    const bool is_new = make_cold(&files[0]) && can_tell_cold(&files[0]);
    check_transfer(requests, 1);
    on_copy = NULL;
    CHECK((threads_seen > 0) == are_there || !is_new);
}

STORY_AFTER(make_files, a_megabyte_is_read_by_several_threads, check_readers(MIB - 1, false),
            check_readers(MIB, ms_kept_threads_cores() > 1))

MS_TEST(threads_that_read_take_no_signals)
{
    start_trouble(look_at_threads, 3);
    copies_left = 10;
    check_transfer(requests, 1);
    CHECK(threads_seen > 0 || !is_cold);
    DIR *descriptors = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(descriptors) != NULL)
        count++;
    closedir(descriptors);
    CHECK(count < 12 || ms_test_is_watched());
    /* They are kept for a while. */
    for (int i = 0; i < 100 && threads_seen > 0; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 100 * 1000 * 1000}, NULL);
        threads_seen = 0;
        copies_left = 1;
        look_at_threads();
        CHECK(threads_seen <= 3);
    }
    CHECK_EQ(threads_seen, 0);
}

static void *transfer_for_ever(void *unused)
{
    (void)unused;
    caller = pthread_self();
    ms_transfer_let_cancel();
    while (ms_transfer(requests, 1, (CUcontext)1, (CUstream)7) == CUDA_SUCCESS)
        queued_count = done_count = 0;
    return NULL;
}

/* A process may end while threads read for it. ThreadSanitizer calls those that have returned by
 * then a leak. */
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "report_thread_leaks=0";
}

MS_TEST(the_process_may_end_meanwhile)
{
    for (int i = 0; i < 10; i++) {
        fflush(NULL);
        const pid_t child = fork();
        if (child == 0) {
            pthread_t thread;
            start_trouble(NULL, 4);
            atexit(ms_transfer_cancel);
            pthread_create(&thread, NULL, transfer_for_ever, NULL);
            pthread_detach(thread);
            nanosleep(&(struct timespec){.tv_nsec = 3 * 1000 * 1000 * (i + 1)}, NULL);
            exit(0);
        }
        int status;
        CHECK_EQ(waitpid(child, &status, 0), child);
        CHECK_EQ(status, 0);
    }
}
