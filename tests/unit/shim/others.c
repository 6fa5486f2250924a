/* SPDX-License-Identifier: Apache-2.0 */
/* Which library that stands behind the shim is told of. The loader is the test's. */
#include "shim/others.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include "shim/libc.h"
#include "tests/unit/logged.h"
#include "tests/unit/shim/real_side.h"
#include "tests/unit/between.h"

/* Libraries: each function is a byte of one of them. */
enum { BYTES = 16 };
static char driver[BYTES], other[BYTES], second[BYTES];
static bool has_path = true;
static unsigned missed, forgotten;

struct symbols {
    const char *name;
    void *function;
};
static struct symbols behind[4];  /* what stands behind the shim */
static struct symbols front[4];   /* what is found first; else it is the shim's */
static struct symbols given[4];   /* the answers of a dlsym that stands before */
static char own[BYTES];           /* the shim */
static const char *front_version; /* metashard_version that is found first */

static void *find_in(const struct symbols *symbols, const char *name, void *other_)
{
    for (int i = 0; i < 4; i++) {
        if (symbols[i].name != NULL && strcmp(symbols[i].name, name) == 0)
            return symbols[i].function;
    }
    return other_;
}

static void *find(void *handle, const char *name)
{
    if (handle == RTLD_DEFAULT && strcmp(name, "metashard_version") == 0)
        return front_version != NULL ? (void *)front_version : &own[7];
    if (handle == RTLD_DEFAULT)
        return find_in(front, name, &own[1]);
    CHECK(handle == RTLD_NEXT);
    void *found = find_in(behind, name, NULL);
    missed += found == NULL;
    return found;
}

/* The dlsym of a library that stands before the shim. */
static void *answer(void *handle, const char *name)
{
    CHECK(handle == &driver[5]);
    void *found = find_in(given, name, &own[2]);
    missed += found == NULL;
    return found;
}

void *ms_real_handle(void)
{
    return &driver[5];
}

ms_dlsym *ms_libc_dlsym(void)
{
    return find;
}

bool ms_libc_is_before(const char *name)
{
    return find_in(front, name, NULL) != NULL;
}

static bool is_in(const void *address, const char *library)
{
    return (const char *)address >= library && (const char *)address < library + BYTES;
}

bool ms_is_driver(const void *address)
{
    return is_in(address, driver);
}

bool ms_is_own(const void *address)
{
    return is_in(address, own);
}

struct ms_image ms_image_of(const void *address)
{
    char *const library = is_in(address, second)                               ? second
                          : is_in(address, other) || address == (void *)answer ? other
                                                                               : driver;
    return (struct ms_image){(uintptr_t)library, (uintptr_t)library + BYTES};
}

WRAPS(dlerror, dladdr, dladdr1);
char *__wrap_dlerror(void)
{
    forgotten++;
    return NULL;
}

int __wrap_dladdr(const void *address, Dl_info *info_out)
{
    info_out->dli_fname = is_in(address, second) ? "/lib/second.so" : "/lib/quota.so";
    return has_path;
}

static struct link_map map;

int __wrap_dladdr1(const void *address, Dl_info *info_out, void **map_out, int flags)
{
    CHECK_EQ(flags, RTLD_DL_LINKMAP);
    map.l_name =
        (char *)(is_in(address, second) ? "" : "/lib/quota.so"); /* the second: a program */
    *map_out = &map;
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

STORY_ALONE(nothing_is_told_of_the_driver_alone, must_tell(NULL, NULL), EQUALS(missed, 7),
            put(0, "cuMemAlloc_v2", &driver[0]), put(1, "cuInit", &driver[BYTES - 1]),
            must_tell(NULL, NULL))

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

STORY_ALONE(the_line_names_the_first_library_that_has_a_name, put(0, "cuMemAlloc_v2", &driver[1]),
            put(1, "cuMemCreate", &second[1]), put(2, "cuInit", &other[1]),
            must_tell("/lib/second.so", "cuMemCreate"), has_path = false, must_tell(NULL, NULL))

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

/* --- what stands before the shim */

static void put_in(struct symbols *symbols, int i, const char *name, void *function)
{
    symbols[i].name = name;
    symbols[i].function = function;
}

static bool is_before(const char *path)
{
    const unsigned was = missed - forgotten;
    const bool is_it = strcmp(ms_others_before(), path) == 0;
    CHECK_EQ(missed - forgotten, was);
    return is_it;
}

MS_TEST(a_library_before_the_shim_is_known_by_each_of_its_functions)
{
    static const char *const names[] = {"dlsym",
                                        "cuMemAlloc_v2",
                                        "cuMemCreate",
                                        "cuMemGetInfo_v2",
                                        "cuGetProcAddress_v2",
                                        "cuGetProcAddress",
                                        "cuLaunchKernel",
                                        "cuInit"};
    CHECK(is_before(""));
    for (int i = 0; i < 8; i++) {
        put_in(front, 0, names[i], &other[1]);
        CHECK(is_before("/lib/quota.so"));
    }
    has_path = false;
    CHECK(is_before(""));
}

STORY_ALONE(neither_the_driver_nor_the_program_nor_a_metashard_stands_before,
            put_in(front, 0, "dlsym", &driver[1]), IS(is_before("")),
            put_in(front, 0, "dlsym", &second[1]), IS(is_before("")),
            put_in(front, 0, "dlsym", &other[1]), IS(is_before("/lib/quota.so")),
            front_version = &other[0], IS(is_before("")))

/* Where calls go around; and `left_out`: the function that the line names, or NULL. */
static void must_find(const char *around, const char *left_out)
{
    char expected[128];
    lines = missed = forgotten = 0;
    CHECK_EQ(strcmp(ms_others_around(), around), 0);
    CHECK_EQ(lines, 0);
    ms_others_tell();
    CHECK_EQ(lines, left_out != NULL);
    CHECK_EQ(forgotten, missed);
    if (left_out == NULL)
        return;
    snprintf(expected, sizeof(expected), "/lib/quota.so has functions of the driver (%s) and ",
             left_out);
    CHECK_EQ(logged_level, MS_WARN);
    CHECK(strncmp(logged, expected, strlen(expected)) == 0);
}

STORY_ALONE(calls_come_through_a_library_that_answers_with_its_own, must_find("", NULL),
            put_in(front, 0, "dlsym", (void *)answer), must_find("", NULL),
            put_in(front, 1, "cuInit", &other[2]), put_in(given, 0, "cuInit", &other[2]),
            put_in(given, 1, "cuMemCreate", NULL), must_find("", NULL))

MS_TEST(calls_go_around_a_library_that_answers_with_the_drivers)
{
    put_in(front, 0, "dlsym", (void *)answer);
    put_in(given, 0, "cuLaunchKernel", &driver[3]);
    must_find("/lib/quota.so", NULL);
    front[0].name = NULL; /* the shim's dlsym is the first */
    must_find("", NULL);
}

STORY_ALONE(a_library_whose_functions_are_not_handed_out_is_told_of,
            put_in(front, 0, "dlsym", (void *)answer), put_in(front, 1, "cuInit", &other[2]),
            put_in(front, 2, "cuMemCreate", &other[3]), must_find("", "cuMemCreate"),
            put_in(given, 0, "cuMemCreate", &other[3]), must_find("", "cuInit"))
