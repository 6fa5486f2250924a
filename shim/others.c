/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/others.h"

#include <dlfcn.h>
#include <link.h>

#include "runtime/base/log.h"
#include "shim/libc.h"
#include "shim/real.h"

static const char names[][24] = {
    "cuMemAlloc_v2",    "cuMemCreate",    "cuMemGetInfo_v2", "cuGetProcAddress_v2",
    "cuGetProcAddress", "cuLaunchKernel", "cuInit"};
enum { NAMES = sizeof(names) / sizeof(names[0]) };

/* Finds a function in all libraries in the search order (RTLD_DEFAULT), or in those behind the shim
 * (RTLD_NEXT); or NULL. Clears dlerror: the program must not see the failure. */
static void *find(void *where, const char *name)
{
    void *found = ms_libc_dlsym()(where, name);
    if (found == NULL)
        dlerror();
    return found;
}

/* True for another MetaShard, which does nothing behind the first. */
static bool is_metashard(void *where, const struct ms_image *image)
{
    const uintptr_t version = (uintptr_t)find(where, "metashard_version");
    return version >= image->begin && version < image->end;
}

static bool is_other(void *where, const void *function)
{
    if (ms_is_driver(function))
        return false;
    const struct ms_image image = ms_image_of(function);
    return !is_metashard(where, &image);
}

/* The library before the shim that has a function of that name; "" if there is none, or only the
 * program has it. */
static const char *before_with(const char *name)
{
    Dl_info info;
    struct link_map *library = NULL;
    const void *function = find(RTLD_DEFAULT, name);
    if (function == NULL || ms_is_own(function) || !is_other(RTLD_DEFAULT, function) ||
        dladdr1(function, &info, (void **)&library, RTLD_DL_LINKMAP) == 0)
        return "";
    return library->l_name;
}

const char *ms_others_before(void)
{
    const char *found = before_with("dlsym");
    for (size_t i = 0; i < NAMES && found[0] == '\0'; i++)
        found = before_with(names[i]);
    return found;
}

/* The function that a program gets when it asks the first dlsym. */
static const void *handed_out(const char *name)
{
    ms_dlsym *first = (ms_dlsym *)find(RTLD_DEFAULT, "dlsym");
    void *found = first(ms_real_handle(), name);
    if (found == NULL)
        dlerror();
    return found;
}

const char *ms_others_around(void)
{
    /* The list of libraries answers faster than the dynamic linker. */
    const char *library = ms_libc_is_before("dlsym") ? before_with("dlsym") : "";
    for (size_t i = 0; i < NAMES && library[0] != '\0'; i++) {
        const void *found = handed_out(names[i]);
        if (found != NULL && ms_is_driver(found))
            return library;
    }
    return "";
}

static void tell_of_one_before(void)
{
    const char *library = before_with("dlsym");
    for (size_t i = 0; i < NAMES && library[0] != '\0'; i++) {
        if (before_with(names[i])[0] == '\0' || !ms_is_own(handed_out(names[i])))
            continue;
        ms_log(MS_WARN,
               "%s has functions of the driver (%s) and does not hand them out, because it stands "
               "before MetaShard: it sees no call that a program looks up; leave it out, or set "
               "METASHARD=off",
               library, names[i]);
        return;
    }
}

static void tell_of_one_behind(void)
{
    for (size_t i = 0; i < NAMES; i++) {
        Dl_info info;
        const void *function = find(RTLD_NEXT, names[i]);
        if (function == NULL || !is_other(RTLD_NEXT, function) || dladdr(function, &info) == 0)
            continue;
        ms_log(MS_WARN,
               "%s replaces functions of the driver (%s) and stands behind MetaShard: it sees no "
               "call, and what it limits does not hold; preload it before MetaShard, or set "
               "METASHARD=off",
               info.dli_fname, names[i]);
        return;
    }
}

void ms_others_tell(void)
{
    tell_of_one_before();
    tell_of_one_behind();
}
