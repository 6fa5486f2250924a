/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks that PyTorch's caching allocator reports. The loader and libc10 are the test's. */
#include "shim/observer.h"

#include <dlfcn.h>
#include <string.h>

#include "runtime/calls/blocks.h"
#include "runtime/memory/ready.h"
#include "shim/nccl_wrappers.h"
#include "tests/unit/between.h"
#include "tests/unit/logged.h"
#include "tests/unit/shim/called_in_order.h"
#include "tests/unit/shim/real_side.h"

enum { BLOCK = 0x10000, BYTES = 0x400 };
struct device {
    int8_t type, index;
};
typedef void report_function(void *block, int64_t size, size_t allocated, size_t reserved,
                             struct device device);
report_function _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE,
    _ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE;

static char libc10;
static bool has_libc10 = true, has_report = true, has_libc10_cuda = true;
static int64_t size; /* of the block that is reported */
static unsigned asked;

/* --- libc10: R, or O for that of older ones */

static void must_be(void *block, int64_t bytes, size_t allocated, size_t reserved,
                    struct device device)
{
    CHECK(block == (void *)BLOCK && bytes == size && allocated == 5 && reserved == 6);
    CHECK(device.type == 1 && device.index == 2);
}

static void report(void *block, int64_t bytes, size_t allocated, size_t reserved,
                   struct device device)
{
    must_be(block, bytes, allocated, reserved, device);
    CHECK_EQ(ms_calls_inside, 0);
    note('R');
}

static void report_of_1_13(void *block, int64_t bytes, size_t allocated, size_t reserved,
                           struct device device)
{
    must_be(block, bytes, allocated, reserved, device);
    note('O');
}

static void *find(void *handle, const char *name)
{
    CHECK(handle == (has_libc10 ? (void *)&libc10 : RTLD_NEXT));
    note('l');
    if (!has_report)
        return NULL;
    if (strcmp(name, "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE") == 0)
        return (void *)report;
    CHECK(strcmp(name, "_ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE") == 0);
    return (void *)report_of_1_13;
}

ms_dlsym *ms_libc_dlsym(void)
{
    return find;
}

WRAPS(dlopen, ms_block_report);
void *__wrap_dlopen(const char *name, int flags)
{
    CHECK_EQ(flags, RTLD_LAZY | RTLD_NOLOAD);
    CHECK(strcmp(name, "libc10.so") == 0); /* no other library is searched for */
    return has_libc10 ? &libc10 : NULL;
}

bool ms_image_is_loaded(const char *name)
{
    CHECK(strcmp(name, "libc10_cuda.so") == 0);
    asked++;
    return has_libc10_cuda;
}

/* --- the runtime */

void __wrap_ms_block_report(CUdeviceptr address, int64_t bytes)
{
    CHECK(address == BLOCK && bytes == size);
    CHECK(ms_calls_inside == 1 && strcmp(ms_caller, "the caching allocator") == 0);
    note('b');
}

void ms_nccl_prepare_detection(void)
{
    note('n');
}

static void start(void)
{
    own_something(true);
    size = BYTES;
}

static void must_report(const char *calls)
{
    const struct device device = {1, 2};
    _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE((void *)BLOCK, size, 5, 6, device);
    must_have(calls);
    CHECK_EQ(ms_calls_inside, 0);
}

/* --- reports */

MS_TEST_AFTER(start, a_block_is_noted_and_the_report_goes_on)
{
    must_report("lbR");
    must_report("bR"); /* libc10's function is looked up once */
    size = -BYTES;
    must_report("bR");
}

STORY_AFTER(start, a_block_is_not_noted_when_nothing_is_owned, own_something(false),
            must_report("lR"), must_report("R"))

MS_TEST_AFTER(start, a_libc10_that_is_not_there_is_looked_for_again)
{
    has_report = false;
    must_report("lb");
    must_report("lb");
    has_libc10 = false; /* Python did not open it: behind the shim */
    must_report("lb");
    has_report = true;
    must_report("lbR");
    must_report("bR");
}

MS_TEST_AFTER(start, an_older_libc10_gets_its_own_report)
{
    const struct device device = {1, 2};
    for (int i = 0; i < 2; i++) {
        _ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE((void *)BLOCK, BYTES, 5, 6, device);
        must_have(i == 0 ? "lbO" : "bO");
    }
    must_report("lbR");
}

static struct ms_ready *make_ready(void)
{
    struct ms_ready *one = ms_ready_set(BLOCK);
    *one = (struct ms_ready){.address = BLOCK, .room = BYTES, .granule = 2 * BYTES};
    atomic_store(&ms_ready.is_any, true);
    return one;
}

MS_TEST_AFTER(start, a_ready_block_is_handed_out_without_the_runtime)
{
    const struct ms_ready *one = make_ready();
    must_report("lbR"); /* but not before libc10's function is known */
    must_report("R");
    CHECK_EQ(one->bytes, BYTES);
    size = -BYTES;
    must_report("R");
    CHECK_EQ(one->bytes, 0);
    own_something(false); /* not looked at: each block went with its allocation */
    size = BYTES;
    must_report("R");
    CHECK_EQ(one->bytes, 0);
}

/* --- what is made ready behind some allocations */

static void allocate(int count, bool is_pooled)
{
    for (int i = 0; i < count; i++)
        ms_observer_prepare(is_pooled);
}

STORY_AFTER(start, a_pytorch_that_reports_no_block_is_told_of_once, allocate(15, false),
            must_have(""), allocate(1, false), must_have("n"), IS(lines == 1 && asked == 1),
            IS(logged_level == MS_WARN && strstr(logged, "does not report the blocks") != NULL),
            allocate(20, false), must_have(""), IS(lines == 1 && asked == 1))

STORY_AFTER(start, nothing_is_told_without_pytorch, has_libc10_cuda = false, allocate(16, false),
            must_have("n"), IS(lines == 0 && asked == 1))

STORY_AFTER(start, nothing_is_told_when_blocks_are_reported, must_report("lbR"),
            allocate(16, false), must_have("n"), IS(lines == 0 && asked == 0))

STORY_AFTER(start, a_report_of_other_memory_is_no_report_of_a_block, own_something(false),
            must_report("lR"), allocate(16, false), EQUALS(lines, 1))

STORY_AFTER(start, nothing_is_told_of_a_pool, allocate(15, false), allocate(1, true),
            must_have("n"), IS(lines == 0 && asked == 0))
