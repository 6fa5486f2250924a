/* SPDX-License-Identifier: Apache-2.0 */
/* Suspending, as it is asked for: what is refused, and what is told. */
#include "runtime/control/suspension.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/collective/collective.h"
#include "runtime/fill/suspend.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"

static const struct ms_suspended what = {1, 2, 8, 3, 4, 5, 6, 7};
static const char *folder; /* that the runtime got */
static unsigned suspended;
static bool refuses, is_in_group;
static CUresult taking_back;
static uint64_t own_bytes;

WRAPS(ms_suspend, ms_suspend_take_back, ms_collective_is_in_group, ms_space_sums);

bool __wrap_ms_suspend(const char *into, struct ms_suspended *told_out, struct ms_fault *fault)
{
    folder = into;
    suspended++;
    *told_out = what;
    return !refuses || ms_fault_set(fault, "it cannot be suspended");
}

CUresult __wrap_ms_suspend_take_back(void)
{
    return taking_back;
}

bool __wrap_ms_collective_is_in_group(void)
{
    return is_in_group;
}

struct ms_space_sums __wrap_ms_space_sums(CUdevice device)
{
    CHECK_EQ(device, 0);
    return (struct ms_space_sums){.held = own_bytes};
}

static struct ms_allocation *allocation;
static struct ms_fault fault;
static char text[512];

static void start(void)
{
    fake_start();
    allocation = fake_allocation(FAKE_GRANULE);
}

static void end(void)
{
    fake_allocation_free(allocation);
    fake_check_empty();
}
#define SUSPENSION_TEST(name) MS_TEST_BETWEEN(start, end, name)

static void must_tell(unsigned long long others)
{
    char expected[512];
    CHECK(ms_suspension_begin(NULL, text, sizeof(text), &fault));
    snprintf(expected, sizeof(expected),
             "{\"freed_bytes\": 1, \"replayed_bytes\": 2, \"made_bytes\": 8, "
             "\"stored_bytes\": 3, \"zero_bytes\": 4, "
             "\"stays_exported_bytes\": 5, \"stays_mapped_bytes\": 6, \"stays_bytes\": 7, "
             "\"others_bytes\": %llu}",
             others);
    if (strcmp(text, expected) != 0)
        ms_test_fail(__FILE__, __LINE__, "%s, expected %s", text, expected);
}

SUSPENSION_TEST(a_suspension_tells_how_much_memory_stays_in_use)
{
    fake.physical_bytes = 100;
    must_tell(100); /* somebody else's */
    own_bytes = 30;
    must_tell(70);
    own_bytes = 100;
    must_tell(0);
    own_bytes = 101; /* the driver counts by pages */
    must_tell(0);
    own_bytes = 0;
    fake_fail(FAKE_mem_get_info, 1, CUDA_ERROR_UNKNOWN);
    must_tell(0);
    CHECK_EQ(fake.pushed_contexts, 0);
    fake.physical_bytes = 0;
}

STORY_BETWEEN(start, end, a_suspension_without_allocations_asks_no_device,
              fake_allocation_free(allocation), fake.physical_bytes = 100, must_tell(0),
              EQUALS(fake.calls[FAKE_mem_get_info], 0), fake.physical_bytes = 0,
              allocation = fake_allocation(FAKE_GRANULE))

SUSPENSION_TEST(the_text_is_cut)
{
    CHECK(ms_suspension_begin("", text, 10, &fault));
    CHECK(strcmp(text, "{\"freed_b") == 0);
    CHECK(ms_suspension_begin("", NULL, 0, &fault));
}

static void must_refuse(const char *path, const char *expected)
{
    const unsigned before = suspended;
    CHECK(!ms_suspension_begin(path, text, sizeof(text), &fault));
    CHECK(strstr(fault.text, expected) != NULL);
    CHECK_EQ(suspended, before);
}

SUSPENSION_TEST(a_folder_is_one_that_can_be_written_by_its_whole_path)
{
    static const char expected[] = ": expected the absolute path of a folder that can be written";
    char made[] = "/tmp/metashard-suspend-XXXXXX", file[64];
    CHECK(mkdtemp(made) != NULL);
    CHECK(ms_suspension_begin(made, text, sizeof(text), &fault));
    CHECK(strcmp(folder, made) == 0);
    CHECK(ms_suspension_begin("", text, sizeof(text), &fault));
    CHECK(folder == NULL);
    must_refuse("tmp", expected);
    CHECK_EQ(chdir("/"), 0);
    must_refuse("tmp", expected); /* it is there, but where that is may change */
    must_refuse("/nowhere", expected);
    snprintf(file, sizeof(file), "%s/file", made);
    close(open(file, O_CREAT | O_WRONLY, 0700));
    must_refuse(file, expected);
    unlink(file);
    if (geteuid() != 0) {
        CHECK_EQ(chmod(made, 0500), 0);
        must_refuse(made, expected);
    }
    CHECK_EQ(rmdir(made), 0);
}

STORY_BETWEEN(start, end, a_suspension_fails_while_a_group_is_open, is_in_group = true,
              must_refuse(NULL, "an NCCL group of the program is open"))

STORY_BETWEEN(start, end, a_process_that_cannot_be_suspended_says_why, refuses = true,
              text[0] = '\0', IS(!ms_suspension_begin(NULL, text, sizeof(text), &fault)),
              IS(strcmp(fault.text, "it cannot be suspended") == 0 && text[0] == '\0'))

SUSPENSION_TEST(a_resumption_says_why_memory_cannot_come_back)
{
    CHECK(ms_suspension_end(&fault));
    taking_back = CUDA_ERROR_OUT_OF_MEMORY;
    CHECK(!ms_suspension_end(&fault));
    CHECK(strstr(fault.text, "the device has no memory for the suspended data") != NULL);
    taking_back = CUDA_ERROR_ILLEGAL_ADDRESS;
    CHECK(!ms_suspension_end(&fault));
    CHECK(strcmp(fault.text, "the suspended data cannot be restored: CUDA error 700") == 0);
}
