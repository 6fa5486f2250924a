/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/compare.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/fill/shadow.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/memory/recorded_launch.h"
#include "runtime/order/order.h"
#include "runtime/state/counters.h"
#include "tests/state/page_folder.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/files/files.h"
#include "tests/unit/snapshot_of.h"

enum { G = FAKE_GRANULE, GRANULES = 40, BYTES = GRANULES * G, MIB = 1 << 20 };

/* --- the shim's kernel, on the device */

static bool has_kernel;
static unsigned launches, blocks;
static CUresult launch_result;

static CUresult library_load_data(CUlibrary *library, const void *code, CUjit_option *jit_options,
                                  void **jit_values, unsigned jit_count, CUlibraryOption *options,
                                  void **values, unsigned count)
{
    CHECK(code != NULL && jit_count + count == 0);
    CHECK(jit_options == NULL && jit_values == NULL && options == NULL && values == NULL);
    *library = (CUlibrary)4;
    return has_kernel ? CUDA_SUCCESS : CUDA_ERROR_NO_BINARY_FOR_GPU;
}

static CUresult library_get_kernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    CHECK(library == (CUlibrary)4 && strcmp(name, "metashard_compare") == 0);
    *kernel = (CUkernel)5;
    return CUDA_SUCCESS;
}

static CUresult launch_kernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                              unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                              unsigned shared, CUstream stream, void **params, void **extra)
{
    uint64_t words[4], *found;
    CHECK(function == (CUfunction)5 && grid_y + grid_z + block_y + block_z == 4 && shared == 0);
    CHECK(block_x == 256 && stream != NULL && extra == NULL);
    for (size_t i = 0; i < 4; i++)
        memcpy(&words[i], params[i], 8);
    launches++;
    blocks = grid_x;
    if (launch_result != CUDA_SUCCESS)
        return launch_result;
    const unsigned char *one = (const unsigned char *)(uintptr_t)words[0],
                        *other = (const unsigned char *)(uintptr_t)words[1];
    found = (uint64_t *)(uintptr_t)words[3];
    for (size_t i = 0; i < words[2]; i++) {
        if (one[i] == other[i])
            continue;
        found[0]++;
        found[1] = found[1] < i ? found[1] : i;
    }
    return CUDA_SUCCESS;
}

/* --- an allocation and its shadow */

static uint64_t patience_ms; /* for the device, the last time */
WRAPS(ms_order_context_ends_within);
bool __wrap_ms_order_context_ends_within(CUcontext context, uint64_t ms)
{
    CHECK(context == FAKE_CONTEXT);
    patience_ms = ms;
    return !fake.is_busy;
}

static struct ms_allocation *allocation;
static CUdeviceptr copy; /* memory of the program */

static void start(void)
{
    fake_start();
    ms_driver.library_load_data = library_load_data;
    ms_driver.library_get_kernel = library_get_kernel;
    ms_driver.launch_kernel = launch_kernel;
    launch_result = CUDA_SUCCESS;
    has_kernel = true;
    ms_config.mode = MS_VERIFY;
    ms_config.verify_percent = 100;
    allocation = fake_allocation(BYTES);
    copy = fake_program_memory(BYTES);
    open_log(MS_ERROR);
}

static void start_without_kernel(void)
{
    start();
    has_kernel = false;
}

static void end(void)
{
    fake_allocation_free(allocation);
    fake_program_memory_free(copy);
    CHECK_EQ(fake.pushed_contexts, 0);
    fake_check_empty();
}

static unsigned char *memory(size_t offset)
{
    return (unsigned char *)(uintptr_t)allocation->address + offset;
}

static unsigned char *shadow(size_t offset)
{
    return (unsigned char *)(uintptr_t)ms_shadow_address(allocation, offset);
}

/* Zeros in memory, and in the shadow. */
static void set(size_t begin, size_t end, struct ms_content content)
{
    struct ms_extent fill = {begin, end, {.kind = MS_FILL}};
    ms_shadow_write(allocation, &fill, NULL, FAKE_STREAM);
    CHECK(fill.content.is_shadowed);
    CHECK_EQ(ms_backing_cover(ms_allocation_memory(allocation), begin, end), CUDA_SUCCESS);
    content.is_shadowed = true;
    CHECK(ms_lineage_set(&MS_OWN(allocation)->lineage, begin, end, &content));
}

static const struct ms_content cached = {.kind = MS_FILL, .cached = true},
                               replayed = {.kind = MS_FILL};

static void check_counts(uint64_t ranges, uint64_t bytes, uint64_t differ, uint64_t left_out)
{
    CHECK_EQ(ms_counter_get(MS_COUNT_VERIFY_RANGES), ranges);
    CHECK_EQ(ms_counter_get(MS_COUNT_VERIFY_BYTES), bytes);
    CHECK_EQ(ms_counter_get(MS_COUNT_VERIFY_DIFFER), differ);
    CHECK_EQ(ms_counter_get(MS_COUNT_VERIFY_LEFT_OUT_BYTES), left_out);
}

/* --- two ranges */

static bool is_equal(size_t begin, size_t bytes)
{
    return ms_compare_is_equal(copy + begin, copy + BYTES / 2 + begin, bytes, FAKE_CONTEXT,
                               FAKE_STREAM);
}

/* A byte of the first one, which is wrong for a moment. */
static bool differs_at(size_t begin, size_t bytes, size_t at)
{
    unsigned char *byte = (unsigned char *)(uintptr_t)copy + at;
    *byte ^= 1;
    const bool differs = !is_equal(begin, bytes);
    *byte ^= 1;
    return differs;
}

static void check_bytes(size_t bytes)
{
    CHECK(is_equal(10, bytes));
    CHECK(differs_at(10, bytes, 10) && differs_at(10, bytes, 10 + bytes - 1));
    CHECK(!differs_at(10, bytes, 9) && !differs_at(10, bytes, 10 + bytes));
}

MS_TEST_BETWEEN(start, end, each_byte_is_compared_by_the_kernel)
{
    check_bytes(1);
    CHECK_EQ(blocks, 1);
    check_bytes(256);
    CHECK_EQ(blocks, 1);
    check_bytes(257);
    CHECK_EQ(blocks, 2);
    check_bytes(MIB);
    CHECK_EQ(blocks, 4096);
    check_bytes(MIB + 1);
    CHECK(blocks == 4096 && fake.work_count == 0);
    CHECK_EQ(fake.calls[FAKE_mem_host_alloc], 1); /* the area is kept */
}

MS_TEST_BETWEEN(start_without_kernel, end, each_byte_is_compared_on_the_host)
{
    check_bytes(1);
    check_bytes(MIB - 1);
    check_bytes(MIB);
    CHECK(differs_at(0, MIB + 1, MIB - 1) && differs_at(0, MIB + 1, MIB));
    check_bytes(MIB + 1);
    CHECK(launches == 0 && fake.calls[FAKE_mem_host_alloc] == 1);
    fake_fail(FAKE_memcpy_dtoh_async, 1, CUDA_ERROR_UNKNOWN); /* the rest does not help */
    CHECK(!is_equal(0, MIB + 1));
}

MS_TEST_BETWEEN(start, end, the_host_compares_where_the_kernel_cannot_run)
{
    fake_fail(FAKE_mem_host_alloc, 1, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(differs_at(0, 100, 5) && launches == 0); /* it could not write what it finds */
    launch_result = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    check_bytes(100);
    CHECK(launches > 0 && fake.work_count > 0);
    fake_fail(FAKE_memcpy_dtoh_async, 1, CUDA_ERROR_UNKNOWN);
    CHECK(!is_equal(0, 100));
    fake_fail(FAKE_memcpy_dtoh_async, 2, CUDA_ERROR_UNKNOWN);
    CHECK(!is_equal(0, 100));
    fake.wait_result = CUDA_ERROR_LAUNCH_FAILED;
    CHECK(!is_equal(0, 100));
    launch_result = CUDA_SUCCESS;
    CHECK(!is_equal(0, 100));
    fake.wait_result = CUDA_SUCCESS;
    CHECK(is_equal(0, 100));
}

/* --- memory and its shadow */

MS_TEST_BETWEEN(start, end, neighbouring_ranges_are_compared_at_once)
{
    ms_compare(allocation, 0, BYTES, MS_COMPARE_CACHED); /* there is no shadow */
    check_counts(0, 0, 0, 0);
    set(G, 2 * G, cached);
    set(2 * G, 3 * G, (struct ms_content){.kind = MS_FILL, .pattern = 5, .cached = true});
    set(3 * G, 4 * G, replayed);
    set(5 * G, 6 * G, cached);
    set(7 * G, 8 * G, cached);
    CHECK(ms_lineage_set(&MS_OWN(allocation)->lineage, 7 * G, 8 * G, &cached)); /* not shadowed */
    ms_compare(allocation, 0, BYTES, MS_COMPARE_CACHED);
    check_counts(2, 3 * G, 0, 0);
    ms_compare(allocation, 2 * G, 5 * G, MS_COMPARE_REPLAYED);
    check_counts(3, 4 * G, 0, 0);
    ms_compare(allocation, G + 5, 2 * G + 5, MS_COMPARE_CACHED);
    check_counts(4, 5 * G, 0, 0);
    ms_compare(allocation, 8 * G, BYTES, MS_COMPARE_CACHED);
    check_counts(4, 5 * G, 0, 0);
    CHECK_EQ(count_log_lines(""), 0);
}

MS_TEST_BETWEEN(start, end, a_difference_is_told_once)
{
    set(G, 3 * G, cached);
    memory(2 * G)[0] = 0xab;
    shadow(2 * G)[1] = 0xcd;
    memory(3 * G)[-1] = 9;
    ms_compare(allocation, G + 5, BYTES, MS_COMPARE_CACHED);
    check_counts(1, 2 * G - 5, 1, 0);
    CHECK_EQ(count_log_lines("verify: 3 of the bytes 65541 to 196608 of the allocation of 2621440 "
                             "bytes"),
             1);
    CHECK_EQ(count_log_lines("not what the program wrote: from byte 131072 on "
                             "ab 00 00 00 00 00 00 00 instead of 00 cd 00 00 00 00 00 00; by the "
                             "lineage they are a fill with 0x00000000; a call needs them"),
             1);
    CHECK_EQ(count_log_lines("tensor"), 0); /* no plan says what it is */
    CHECK(ms_lineage_at(ms_allocation_lineage(allocation), G).content.is_shadowed);
    CHECK(!ms_lineage_at(ms_allocation_lineage(allocation), G + 5).content.is_shadowed);
    ms_compare(allocation, G + 5, BYTES, MS_COMPARE_CACHED);
    check_counts(1, 2 * G - 5, 1, 0);
}

MS_TEST_BETWEEN(start_without_kernel, end, the_host_tells_the_first_of_all_differences)
{
    set(0, 17 * G, cached);
    memory(MIB)[5] = 1;
    memory(MIB)[6] = 2;
    memory(17 * G)[-1] = 3;
    ms_compare(allocation, 0, 17 * G, MS_COMPARE_CACHED);
    CHECK_EQ(count_log_lines("verify: 3 of the bytes 0 to 1114112"), 1);
    CHECK_EQ(count_log_lines("from byte 1048581 on 01 02 00 00 00 00 00 00 instead of 00 00"), 1);
}

static struct ms_recorded_launch *record(char *name)
{
    static struct ms_param_layout layout = {.counted = {.references = 1000}};
    layout.name = name;
    const struct ms_packed packed = {.count = 0};
    const struct ms_call call = {.function = (CUfunction)1};
    struct ms_recorded_launch *recorded = ms_recorded_launch_create();
    recorded->launch = ms_call_record(&call, &layout, &packed, NULL, 0);
    return recorded;
}

/* The content of the last bytes of a range, of which few are shown. */
static void check_lineage(struct ms_content content, const char *text)
{
    set(0, G, content);
    memory(G)[-3] = 0x11;
    ms_compare(allocation, 0, G, MS_COMPARE_REPLAYED);
    CHECK_EQ(count_log_lines(text), 1);
}

MS_TEST_BETWEEN(start, end, the_log_tells_the_lineage_of_bytes_that_differ)
{
    static struct test_file file;
    char text[160];
    make_test_file(&file, "/tmp", 4 * G);
    struct ms_source *snapshot = snapshot_of(file.data, G);
    check_lineage((struct ms_content){.kind = MS_FILL, .pattern = 0x1020304},
                  "from byte 65533 on 11 00 00 instead of 00 00 00; by the lineage they are a fill "
                  "with 0x01020304;");
    snprintf(text, sizeof(text), "byte %d of %s;", G - 3 + 77, file.path);
    check_lineage(
        (struct ms_content){.kind = MS_SOURCE, .source = file.source, .source_offset = 77}, text);
    check_lineage((struct ms_content){.kind = MS_SOURCE, .source = snapshot},
                  "a host copy of what the program wrote;");
    char name[] = "a_kernel";
    struct ms_recorded_launch *recorded = record(name);
    check_lineage(
        (struct ms_content){.kind = MS_LAUNCHED, .recorded = recorded, .source_offset = 10},
        "byte 65543 of a recorded launch of a_kernel;");
    ms_recorded_launch_drop(recorded);
    check_lineage((struct ms_content){.kind = MS_RESIDENT}, "what the call has just put there;");
    ms_source_drop(file.source);
    ms_source_drop(snapshot);
}

/* The 511 characters that there is room for, one way or the other. */
MS_TEST_BETWEEN(start, end, the_log_tells_the_start_of_a_long_name)
{
    enum { SHOWN = 511, NAME = 600 };
    char name[NAME + 1], text[NAME + 100];
    memset(name, 'k', NAME);
    name[NAME] = '\0';
    struct ms_recorded_launch *recorded = record(name);
    const int before = snprintf(text, sizeof(text), "byte 65533 of a recorded launch of ");
    snprintf(text + before, sizeof(text) - (size_t)before, "%.*s;", SHOWN - before, name);
    check_lineage((struct ms_content){.kind = MS_LAUNCHED, .recorded = recorded}, text);
    ms_recorded_launch_drop(recorded);
}

static void add_folder(char *path)
{
    memset(path + strlen(path), 'f', 200);
    CHECK_EQ(mkdir(path, 0700), 0);
    strcat(path, "/");
}

/* A file of so many zeros. */
static struct ms_source *open_new(const char *path, size_t bytes)
{
    struct stat found;
    const int file = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(file >= 0);
    CHECK_EQ(ftruncate(file, (off_t)bytes), 0);
    CHECK_EQ(fstat(file, &found), 0);
    close(file);
    struct ms_mapping mapping = {.device = found.st_dev, .inode = found.st_ino};
    snprintf(mapping.path, sizeof(mapping.path), "%s", path);
    return ms_file_source(ms_trust_open(&mapping, bytes));
}

MS_TEST_BETWEEN(start, end, the_log_tells_the_start_of_a_long_path)
{
    enum { SHOWN = 511 };
    char path[MS_PATH_BYTES] = "/tmp/metashard-XXXXXX", text[1024], command[64];
    CHECK(mkdtemp(path) != NULL);
    snprintf(command, sizeof(command), "rm -rf '%.40s'", path);
    strcat(path, "/");
    for (int i = 0; i < 2; i++)
        add_folder(path);
    memset(path + strlen(path), 'f', sizeof(path) - 1 - strlen(path)); /* the longest of all */
    struct ms_source *source = open_new(path, G);
    CHECK_EQ(system(command), 0);
    CHECK(source != NULL);
    const int before = snprintf(text, sizeof(text), "byte 65533 of ");
    snprintf(text + before, sizeof(text) - (size_t)before, "%.*s;", SHOWN - before, path);
    check_lineage((struct ms_content){.kind = MS_SOURCE, .source = source}, text);
    ms_source_drop(source);
}

MS_TEST_BETWEEN(start, end, a_difference_is_an_event)
{
    page_folder_make();
    page_start(MS_STATE_LEAST_BYTES);
    set(G, 2 * G, cached);
    memset(memory(G) + 10, 1, 20);
    ms_compare(allocation, G, 2 * G, MS_COMPARE_CACHED);
    struct ms_snapshot snapshot = page_read(getpid());
    uint64_t bytes = 0;
    for (size_t i = 0; i < snapshot.event_count; i++)
        bytes += snapshot.events[i].kind == MS_EVENT_DIFFER ? snapshot.events[i].bytes : 0;
    CHECK_EQ(bytes, 20);
    ms_snapshot_cleanup(&snapshot);
}

MS_TEST_BETWEEN(start, end, a_range_that_cannot_be_compared_is_left_out)
{
    set(0, G, cached);
    launch_result = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    fake_fail(FAKE_memcpy_dtoh_async, 1, CUDA_ERROR_UNKNOWN);
    ms_compare(allocation, 0, G, MS_COMPARE_CACHED);
    check_counts(0, 0, 0, G);
    launch_result = CUDA_SUCCESS;
    fake_fail(FAKE_ctx_get_current, 1, CUDA_ERROR_DEINITIALIZED);
    ms_compare(allocation, 0, G, MS_COMPARE_CACHED);
    check_counts(0, 0, 0, G);
    CHECK(ms_lineage_at(ms_allocation_lineage(allocation), 0).content.is_shadowed);
    memory(0)[0] = 1;
    fake_fail(FAKE_memcpy_dtoh_async, 1, CUDA_ERROR_UNKNOWN); /* of what is shown */
    ms_compare(allocation, 0, G, MS_COMPARE_CACHED);
    check_counts(1, G, 1, G);
    CHECK_EQ(count_log_lines("on ? instead of ?;"), 1);
}

/* Not what differs before the failure. */
MS_TEST_BETWEEN(start_without_kernel, end, the_log_tells_nothing_of_a_range_read_in_part)
{
    set(0, 17 * G, cached);
    memory(0)[5] = 1;
    fake_fail(FAKE_memcpy_dtoh_async, 3, CUDA_ERROR_UNKNOWN);
    ms_compare(allocation, 0, 17 * G, MS_COMPARE_CACHED);
    check_counts(0, 0, 0, 17 * G);
    CHECK_EQ(count_log_lines("verify"), 0);
}

/* --- a copy */

static void compare_copy(bool is_plain)
{
    const struct ms_extent extent = {G + 4, G + 54, {.kind = MS_FILL, .is_shadowed = true}};
    ms_compare_copy(allocation, &extent, copy, is_plain, FAKE_STREAM);
}

MS_TEST_BETWEEN(start, end, a_copy_is_compared_when_the_stream_is_done)
{
    set(G, 2 * G, cached);
    const struct ms_extent without = {G + 4, G + 54, {.kind = MS_FILL}};
    ms_compare_copy(allocation, &without, copy, true, FAKE_STREAM);
    CHECK_EQ(fake.calls[FAKE_event_synchronize], 1); /* of the write */
    fake.wait_result = CUDA_ERROR_LAUNCH_FAILED;
    compare_copy(true);
    check_counts(0, 0, 0, 0);
    fake.wait_result = CUDA_SUCCESS;
    shadow(G + 4)[50] = shadow(G + 4)[-1] = 1; /* around it */
    compare_copy(true);
    CHECK_EQ(launches, 1);
    compare_copy(false); /* of any memory */
    CHECK_EQ(launches, 1);
    check_counts(2, 100, 0, 0);
    shadow(G + 4)[49] = 1;
    compare_copy(true);
    check_counts(3, 150, 1, 0);
    CHECK_EQ(count_log_lines("verify: 1 of the bytes 65540 to 65590 "), 1);
    CHECK(ms_lineage_at(ms_allocation_lineage(allocation), G).content.is_shadowed);
    CHECK(!ms_lineage_at(ms_allocation_lineage(allocation), G + 53).content.is_shadowed);
    CHECK(ms_lineage_at(ms_allocation_lineage(allocation), G + 54).content.is_shadowed);
}

/* --- the end of the process */

MS_TEST_BETWEEN(start, end, cached_bytes_are_compared_at_the_end_of_the_process)
{
    struct ms_allocation *other = fake_allocation(G);
    set(0, G, cached);
    set(G, 2 * G, replayed);
    ms_config.mode = MS_ON;
    ms_compare_finish();
    CHECK_EQ(count_log_lines(""), 0);
    ms_config.mode = MS_VERIFY;
    memory(0)[7] = 1;
    ms_compare_finish();
    check_counts(1, G, 1, 0);
    CHECK_EQ(count_log_lines("the end of the process needs them"), 1);
    CHECK_EQ(count_log_lines("1 ranges, 65536 bytes compared, 1 differ"), 1);
    CHECK_EQ(count_log_lines("left out"), 0);
    CHECK(ms_space_try_claim(allocation->address) == allocation);
    ms_compare_finish(); /* somebody has it */
    check_counts(1, G, 1, BYTES);
    CHECK_EQ(count_log_lines("1 differ; 2621440 bytes were left out"), 1);
    ms_space_release(allocation);
    fake_allocation_free(other);
}

STORY_BETWEEN(start, end, a_comparison_without_a_shadow_waits_for_nothing,
              fake_set(allocation, 0, G, &cached), fake.is_busy = true, ms_compare_finish(),
              check_counts(0, 0, 0, 0))

MS_TEST_BETWEEN(start, end, a_device_that_stays_busy_is_waited_for_once)
{
    set(0, G, replayed);
    fake.is_busy = true;
    ms_compare_finish(); /* nothing is cached, and nobody waits */
    check_counts(0, 0, 0, 0);
    set(0, G, cached);
    struct ms_allocation *first = allocation;
    allocation = fake_allocation(BYTES);
    set(0, G, cached);
    patience_ms = 0;
    fake.is_busy = false;
    ms_compare_finish();
    check_counts(2, 2 * G, 0, 0);
    CHECK_EQ(patience_ms, 1000);
    fake.is_busy = true;
    ms_compare_finish();
    check_counts(2, 2 * G, 0, 2 * (uint64_t)BYTES);
    CHECK_EQ(patience_ms, 0);
    fake_allocation_free(allocation);
    allocation = first;
}
