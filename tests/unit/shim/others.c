/* SPDX-License-Identifier: Apache-2.0 */
/* Which library that stands behind the shim is told of. The loader is the test's. */
#include "shim/others.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/logged.h"
#include "tests/unit/shim/real_side.h"

/* Libraries: each function is a byte of one of them. */
enum { BYTES = 16 };
static char driver[BYTES], other[BYTES], second[BYTES];
static struct {
    const char *name;
    void *function;
} behind[4]; /* what stands behind the shim */
static bool has_path = true;
static unsigned missed, forgotten;

static void *find(void *handle, const char *name)
{
    CHECK(handle == RTLD_NEXT);
    for (int i = 0; i < 4; i++) {
        if (behind[i].name != NULL && strcmp(behind[i].name, name) == 0)
            return behind[i].function;
    }
    missed++;
    return NULL;
}

ms_dlsym *ms_libc_dlsym(void)
{
    return find;
}

static bool is_in(const void *address, const char *library)
{
    return (const char *)address >= library && (const char *)address < library + BYTES;
}

bool ms_is_driver(const void *address)
{
    return is_in(address, driver);
}

struct ms_image ms_image_of(const void *address)
{
    char *const library = is_in(address, second) ? second : is_in(address, other) ? other : driver;
    return (struct ms_image){(uintptr_t)library, (uintptr_t)library + BYTES};
}

char *__wrap_dlerror(void);
char *__wrap_dlerror(void)
{
    forgotten++;
    return NULL;
}

int __wrap_dladdr(const void *address, Dl_info *info_out);
int __wrap_dladdr(const void *address, Dl_info *info_out)
{
    info_out->dli_fname = is_in(address, second) ? "/lib/second.so" : "/lib/quota.so";
    return has_path;
}

/* The library and the function that the line names; NULL: there is no line. The program sees no
 * error of the lookups. */
static void must_tell(const char *library, const char *function)
{
    char expected[128] = "";
    lines = missed = forgotten = 0;
    ms_others_tell();
    CHECK_EQ(lines, library != NULL);
    CHECK_EQ(forgotten, missed);
    if (library == NULL)
        return;
    snprintf(expected, sizeof(expected), "%s replaces functions of the driver (%s) and ", library,
             function);
    CHECK_EQ(logged_level, MS_WARN);
    CHECK(strncmp(logged, expected, strlen(expected)) == 0);
}

static void put(int i, const char *name, void *function)
{
    behind[i].name = name;
    behind[i].function = function;
}

MS_TEST(nothing_is_told_of_the_driver_alone)
{
    must_tell(NULL, NULL);
    CHECK_EQ(missed, 7);
    put(0, "cuMemAlloc_v2", &driver[0]);
    put(1, "cuInit", &driver[BYTES - 1]);
    must_tell(NULL, NULL);
}

MS_TEST(each_function_tells_of_a_library)
{
    static const char *const names[] = {
        "cuMemAlloc_v2",    "cuMemCreate",    "cuMemGetInfo_v2", "cuGetProcAddress_v2",
        "cuGetProcAddress", "cuLaunchKernel", "cuInit"};
    for (int i = 0; i < 7; i++) {
        put(0, names[i], &other[i]);
        must_tell("/lib/quota.so", names[i]);
    }
}

MS_TEST(one_line_is_of_the_first_that_has_a_name)
{
    put(0, "cuMemAlloc_v2", &driver[1]);
    put(1, "cuMemCreate", &second[1]);
    put(2, "cuInit", &other[1]);
    must_tell("/lib/second.so", "cuMemCreate");
    has_path = false;
    must_tell(NULL, NULL);
}

MS_TEST(a_second_metashard_is_no_other)
{
    const int places[] = {0, BYTES - 1};
    put(0, "cuInit", &second[3]);
    for (int i = 0; i < 2; i++) {
        put(1, "metashard_version", &second[places[i]]);
        must_tell(NULL, NULL);
    }
    put(1, "metashard_version", second + BYTES); /* the first byte behind it */
    must_tell("/lib/second.so", "cuInit");
    put(1, "metashard_version", &other[0]); /* another library is one */
    must_tell("/lib/second.so", "cuInit");
    put(2, "cuMemCreate", &other[3]);
    must_tell("/lib/second.so", "cuInit");
}
