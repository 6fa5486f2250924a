/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of metashard.h: what they refuse, and what they hand on. */
#include <string.h>

#include "runtime/base/version.h"
#include "runtime/control/control.h"
#include "runtime/control/suspension.h"
#include "runtime/fill/settle.h"
#include "runtime/shard/placement_query.h"
#include "runtime/shard/shard.h"
#include "runtime/state/caller.h"
#include "shim/metashard.h"
#include "shim/off.h"
#include "tests/unit/between.h"

/* --- the runtime */

static bool is_off, succeeds = true;
static unsigned calls;
static struct ms_tensor named; /* as the runtime got it */

bool ms_is_off(void)
{
    return is_off;
}

WRAPS(ms_control_file, ms_control_text, ms_shard_name, ms_placement_query_unname, ms_settle_now);
WRAPS(ms_suspension_begin, ms_suspension_end, ms_control_status);

static bool answer(struct ms_fault *fault)
{
    calls++;
    CHECK_EQ(ms_calls_inside, 1);
    return succeeds || ms_fault_set(fault, "the runtime says why");
}

bool __wrap_ms_control_file(const char *path, struct ms_fault *fault)
{
    CHECK(strcmp(path, "/a/plan") == 0);
    return answer(fault);
}

bool __wrap_ms_control_text(const char *text, size_t bytes, const char *name,
                            struct ms_fault *fault)
{
    CHECK(strcmp(text, "{}") == 0 && bytes == 2 && strcmp(name, "metashard_plan_text") == 0);
    return answer(fault);
}

bool __wrap_ms_shard_name(CUdeviceptr address, size_t bytes, const char *name,
                          const struct ms_tensor *tensor, struct ms_fault *fault)
{
    CHECK(address == 0x1000 && bytes == 24 && strcmp(name, "a.tensor") == 0);
    named = *tensor;
    return answer(fault);
}

bool __wrap_ms_placement_query_unname(CUdeviceptr address, size_t bytes, struct ms_fault *fault)
{
    CHECK(address == 0x1000 && bytes == 24);
    return answer(fault);
}

void __wrap_ms_settle_now(const char *why)
{
    CHECK(strcmp(why, "the program asked for it") == 0);
    calls++;
}

static char *given_text;
static size_t given_bytes;

bool __wrap_ms_suspension_begin(const char *folder, char *text, size_t bytes,
                                struct ms_fault *fault)
{
    CHECK(folder == NULL || strcmp(folder, "/folder") == 0);
    given_text = text;
    given_bytes = bytes;
    return answer(fault);
}

bool __wrap_ms_suspension_end(struct ms_fault *fault)
{
    return answer(fault);
}

size_t __wrap_ms_control_status(char *text, size_t bytes)
{
    given_text = text;
    given_bytes = bytes;
    calls++;
    return 77;
}

static void start(void)
{
}

static void end(void)
{
    CHECK_EQ(ms_calls_inside, 0);
}
#define API_TEST(name) MS_TEST_BETWEEN(start, end, name)

static char text[16];
static const uint64_t shape[9] = {2, 3, 1, 1, 1, 1, 1, 1, 1};

static int call(int which)
{
    switch (which) {
    case 0:
        return metashard_plan_file("/a/plan");
    case 1:
        return metashard_plan_text("{}", 2);
    case 2:
        return metashard_name(0x1000, 24, "a.tensor", "F32", shape, 2);
    case 3:
        return metashard_unname(0x1000, 24);
    case 4:
        return metashard_suspend("/folder", text, sizeof(text));
    case 5:
        return metashard_resume();
    default:
        return metashard_materialise();
    }
}

static void must_refuse(int result, const char *why)
{
    CHECK_EQ(result, -1);
    if (strcmp(metashard_error(), why) != 0)
        ms_test_fail(__FILE__, __LINE__, "%s, expected %s", metashard_error(), why);
    CHECK_EQ(calls, 0);
}

/* --- */

API_TEST(a_call_that_succeeds_leaves_no_error)
{
    for (int i = 0; i < 7; i++) {
        calls = 0;
        succeeds = false;
        if (i < 6) {
            CHECK_EQ(call(i), -1);
            CHECK(strcmp(metashard_error(), "the runtime says why") == 0);
            CHECK_EQ(calls, 1);
        }
        calls = 0;
        succeeds = true;
        CHECK_EQ(call(i), 0);
        CHECK(strcmp(metashard_error(), "") == 0);
        CHECK_EQ(calls, 1);
    }
}

API_TEST(calls_fail_while_the_shim_is_off)
{
    is_off = true;
    for (int i = 0; i < 7; i++)
        must_refuse(call(i), "METASHARD is off");
    CHECK_EQ(metashard_status(text, sizeof(text)), 77); /* but this one */
}

STORY_BETWEEN(start, end, a_call_says_which_argument_is_missing,
              must_refuse(metashard_plan_file(NULL), "expected a path"),
              must_refuse(metashard_plan_text(NULL, 2), "expected a text"),
              must_refuse(metashard_name(0x1000, 24, NULL, "F32", shape, 2), "expected a name"),
              must_refuse(metashard_name(0x1000, 24, "", "F32", shape, 2), "expected a name"),
              must_refuse(metashard_name(0x1000, 24, "a.tensor", NULL, shape, 2),
                          "expected a dtype of safetensors, found none"),
              must_refuse(metashard_name(0x1000, 24, "a.tensor", "float", shape, 2),
                          "expected a dtype of safetensors, found float"),
              must_refuse(metashard_name(0x1000, 24, "a.tensor", "F32", shape, 9),
                          "expected a shape of at most 8 dimensions, found 9"),
              must_refuse(metashard_name(0x1000, 24, "a.tensor", "F32", NULL, 1),
                          "expected a shape of at most 8 dimensions, found 1"))

API_TEST(a_tensor_is_handed_on_with_its_measure)
{
    CHECK_EQ(call(2), 0);
    CHECK(named.dtype == MS_DTYPE_F32 && named.dims == 2);
    CHECK(named.shape[0] == 2 && named.shape[1] == 3 && named.bytes == 24);
    CHECK_EQ(metashard_name(0x1000, 24, "a.tensor", "F32", shape, 8), 0);
    CHECK(named.dims == 8 && named.shape[7] == 1 && named.bytes == 24);
    CHECK_EQ(metashard_name(0x1000, 24, "a.tensor", "F32", NULL, 0), 0); /* a scalar */
    CHECK(named.dims == 0 && named.bytes == 4);
}

API_TEST(a_tensor_that_cannot_be_measured_is_refused)
{
    const uint64_t large[] = {UINT64_MAX / 2, UINT64_MAX / 2};
    CHECK_EQ(metashard_name(0x1000, 24, "a.tensor", "F32", large, 2), -1);
    CHECK(metashard_error()[0] != '\0');
    CHECK_EQ(calls, 0);
}

API_TEST(a_text_that_is_not_wanted_has_no_bytes)
{
    CHECK_EQ(metashard_suspend(NULL, text, sizeof(text)), 0);
    CHECK(given_text == text && given_bytes == sizeof(text));
    CHECK_EQ(metashard_suspend(NULL, NULL, sizeof(text)), 0);
    CHECK(given_text == NULL && given_bytes == 0);
    CHECK_EQ(metashard_status(text, sizeof(text)), 77);
    CHECK(given_text == text && given_bytes == sizeof(text));
}

API_TEST(the_version_is_the_runtimes)
{
    CHECK(strcmp(metashard_version(), ms_version) == 0);
}
