/* SPDX-License-Identifier: Apache-2.0 */
/* The shim's start: what cuInit and the first allocation begin, and when it steps aside. */
#include "shim/init.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/driver/driver.h"
#include "runtime/driver/flags.h"
#include "runtime/kernel/rules.h"
#include "runtime/start/lifetime.h"
#include "runtime/state/caller.h"
#include "runtime/state/state.h"
#include "shim/file_calls.h"
#include "shim/libc.h"
#include "shim/off.h"
#include "shim/others.h"
#include "shim/real.h"
#include "shim/torch_release.h"
#include "tests/unit/between.h"
#include "tests/unit/logged.h"
#include "tests/unit/shim/called_in_order.h"

enum { CALLS = sizeof(struct ms_driver) / sizeof(void *) };
const int32_t ms_calls[CALLS] = {[0] = 400, [1] = 420, [CALLS - 1] = 500};

void *ms_real[MS_ENTRY_COUNT + MS_SPARE_COUNT];
static bool is_off, starts = true, ends_here;
static CUresult answer;
static enum ms_entry absent[2] = {MS_ENTRY_COUNT, MS_ENTRY_COUNT}; /* what the driver lacks */

CUresult ms_missing(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

static unsigned asked;

void *ms_real_get(enum ms_entry entry)
{
    asked++;
    return entry == absent[0] || entry == absent[1] ? (void *)ms_missing : &ms_real[entry];
}

/* --- what is called, a letter each */

static const char *bypass;

WRAPS(ms_lifetime_begin, ms_lifetime_end, ms_state_open);
void __wrap_ms_lifetime_begin(char **environment, const char *library)
{
    CHECK(environment == environ && (ends_here || ms_calls_inside == 1));
    note('b');
    bypass = library;
    atomic_store(&ms_hot.started, starts && library[0] == '\0');
}

void __wrap_ms_lifetime_end(void)
{
    if (ends_here)
        _exit(bypass != NULL && strcmp(bypass, "/lib/other.so") == 0 ? 8 : 7);
}

bool __wrap_ms_state_open(void)
{
    note('s');
    return true;
}

void ms_file_calls_find(void)
{
    note('f');
}

void ms_others_tell(void)
{
    note('o');
}

static const char *before = "", *around = "";

const char *ms_others_around(void)
{
    note('a');
    return around;
}

const char *ms_others_before(void)
{
    return before;
}

bool ms_torch_release_is_proved(void)
{
    return true;
}

bool ms_is_off(void)
{
    return is_off;
}

static bool is_loaded, can_load = true;
static CUresult count_answer;

void *ms_libc_dlsym_address = &can_load; /* something has been looked up */
static const char *before_has;

bool ms_libc_is_before(const char *name)
{
    return before_has != NULL && strcmp(name, before_has) == 0;
}

bool ms_image_is_loaded(const char *name)
{
    CHECK(strcmp(name, "libcuda.so") == 0);
    return is_loaded;
}

bool ms_real_load(const void *address)
{
    CHECK(address == NULL && is_loaded);
    return can_load;
}

static CUresult count_devices(int *count)
{
    CHECK(is_loaded && can_load);
    *count = 1;
    return count_answer;
}

static CUresult init(unsigned flags)
{
    CHECK(flags == 3 && ms_calls_inside == 0);
    note('I');
    return answer;
}

static void must_init(const char *calls)
{
    CHECK_EQ(cuInit(3), answer);
    CHECK_EQ(ms_calls_inside, 0);
    must_have(calls);
}

static void prepare(void)
{
    ms_real[MS_ENTRY_cuInit] = (void *)init;
    ms_real[MS_ENTRY_cuDeviceGetCount] = (void *)count_devices;
    is_loaded = true;
}

MS_TEST_AFTER(prepare, the_program_s_own_init_starts_it_once)
{
    void *slots[CALLS];
    must_init("Iab");
    CHECK(ms_rules_hold == ms_torch_release_is_proved);
    memcpy(slots, &ms_driver, sizeof(slots));
    for (int i = 0; i < CALLS; i++)
        CHECK(slots[i] == (const char *)ms_calls + ms_calls[i]);
    must_init("I");
}

MS_TEST_AFTER(prepare, nothing_starts_that_may_not)
{
    answer = CUDA_ERROR_NO_DEVICE;
    must_init("I");
    answer = CUDA_SUCCESS;
    is_off = true;
    must_init("I");
    CHECK(!ms_ready_to_defer());
    must_have("");
    is_off = false;
    starts = false; /* the configuration says so */
    must_init("Iab");
    CHECK(!ms_ready_to_defer());
    must_have("");
}

STORY_AFTER(prepare, nothing_starts_while_calls_go_around, around = "/lib/other.so",
            must_init("Iab"), IS(bypass == around && !ms_is_started() && !ms_ready_to_defer()),
            must_init("I"))

MS_TEST_AFTER(prepare, the_needs_of_deferring_are_made_ready_once)
{
    must_init("Iab");
    enum {
        NEEDED = 0
#define MS_DRIVER(field, symbol) +1
#define MS_DRIVER_OPTIONAL(field, symbol)
#include "runtime/driver/driver.def"
#undef MS_DRIVER_OPTIONAL
#undef MS_DRIVER
    };
    CHECK(ms_ready_to_defer());
    must_have("ofs");
    CHECK_EQ(asked, NEEDED);
    CHECK(ms_ready_to_defer());
    must_have("");
    CHECK_EQ(lines, 0);
}

/* In a process that lacks them, which is a child for each. */
static void must_step_aside(bool steps_aside, const char *line)
{
    int status;
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        must_init("Iab");
        CHECK_EQ(ms_ready_to_defer(), !steps_aside);
        CHECK_EQ(ms_is_started(), !steps_aside);
        CHECK_EQ(ms_ready_to_defer(), !steps_aside);
        must_have(steps_aside ? "" : "ofs");
        CHECK_EQ(lines, steps_aside);
        CHECK(!steps_aside || (logged_level == MS_WARN && strcmp(logged, line) == 0));
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

MS_TEST_AFTER(prepare, a_driver_that_lacks_functions_is_left_alone)
{
    static const enum ms_entry needed[] = {
#define MS_DRIVER(field, symbol) MS_ENTRY_##symbol,
#define MS_DRIVER_OPTIONAL(field, symbol)
#include "runtime/driver/driver.def"
#undef MS_DRIVER_OPTIONAL
#undef MS_DRIVER
    };
    const size_t last = sizeof(needed) / sizeof(needed[0]) - 1;
    char line[256];
    for (size_t i = 0; i <= last; i += i == 0 ? last : 1) {
        absent[0] = needed[i];
        snprintf(line, sizeof(line), "the driver has no %s: MetaShard does nothing",
                 ms_entry_symbol(needed[i]));
        must_step_aside(true, line);
    }
    absent[1] = needed[1];
    snprintf(line, sizeof(line),
             "the driver has no %s, nor 1 more functions: MetaShard does nothing",
             ms_entry_symbol(needed[1]));
    must_step_aside(true, line);
    absent[0] = MS_ENTRY_cuCtxRecordEvent; /* it does without these */
    absent[1] = MS_ENTRY_cuDeviceGetName;
    must_step_aside(false, NULL);
}

/* In a child, which is bypassed then, or not. */
static void must_end(bool bypassed)
{
    int status;
    const pid_t child = fork();
    if (child == 0) {
        ends_here = true;
        exit(0);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == (bypassed ? 8 : 7));
}

MS_TEST_AFTER(prepare, the_end_of_the_process_is_its_end)
{
    must_end(false);
}

/* The driver was used, its library is loaded, and another one stands before the shim. */
STORY_AFTER(prepare, the_end_tells_of_one_that_kept_all_calls_from_the_shim,
            before = "/lib/other.so", must_end(false), before_has = "dlsym", must_end(true),
            before_has = "cuInit", must_end(true), ms_libc_dlsym_address = NULL, must_end(false),
            ms_libc_dlsym_address = &can_load, count_answer = CUDA_ERROR_DEINITIALIZED,
            must_end(true), count_answer = CUDA_ERROR_NOT_INITIALIZED, must_end(false),
            count_answer = CUDA_SUCCESS, is_loaded = false, must_end(false), is_loaded = true,
            can_load = false, must_end(false), can_load = true, before = "", must_end(false),
            before = "/lib/other.so", is_off = true, must_end(false), is_off = false,
            must_init("Iab"), must_end(false))
