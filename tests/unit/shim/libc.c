/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of the C library, and libraries that stand before it: here, the test's program. */
#include "shim/libc.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include "tools/simcuda/harness/test.h"

MS_TEST(libcs_functions_are_those_that_the_loader_finds)
{
    CHECK(ms_libc_find("dlsym") == (void *)dlsym);
    CHECK(ms_libc_find("dlvsym") == (void *)dlvsym);
    CHECK(ms_libc_find("getpid") == (void *)getpid); /* not dlopen, which sanitizers replace */
}

MS_TEST(a_name_that_is_not_there_or_not_whole_is_not_found)
{
    static const char *const names[] = {"",       "dlsy",         "dlsyn",
                                        "dlsym2", "ms_libc_find", "dl_iterate"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        CHECK(ms_libc_find(names[i]) == NULL);
}

/* The program is the first library, and this code is in it. */
MS_TEST(nothing_stands_before_the_program)
{
    const struct link_map *libraries = _r_debug.r_map;
    CHECK(libraries->l_next != NULL);
    CHECK(!ms_libc_stands_before(libraries));
    CHECK(!ms_libc_stands_before(libraries->l_next));
    CHECK(!ms_libc_stands_before(NULL));
    CHECK(!ms_libc_is_before("dlsym") && !ms_libc_is_before("main"));
}
