/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/others.h"

#include <dlfcn.h>

#include "runtime/base/log.h"
#include "shim/real.h"

/* What the next library in the search order has, or NULL. The program must not see that something
 * was not found (dlerror). */
static void *find_behind(const char *name)
{
    void *found = ms_libc_dlsym()(RTLD_NEXT, name);
    if (found == NULL)
        dlerror();
    return found;
}

/* A second MetaShard does nothing behind the first. */
static bool is_metashard(const struct ms_image *image)
{
    const uintptr_t version = (uintptr_t)find_behind("metashard_version");
    return version >= image->begin && version < image->end;
}

static bool is_other(const void *function)
{
    const struct ms_image image = ms_image_of(function);
    return !ms_is_driver(function) && !is_metashard(&image);
}

void ms_others_tell(void)
{
    static const char *const names[] = {
        "cuMemAlloc_v2",    "cuMemCreate",    "cuMemGetInfo_v2", "cuGetProcAddress_v2",
        "cuGetProcAddress", "cuLaunchKernel", "cuInit"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        Dl_info info;
        const void *function = find_behind(names[i]);
        if (function == NULL || !is_other(function) || dladdr(function, &info) == 0)
            continue;
        ms_log(MS_WARN,
               "%s replaces functions of the driver (%s) and stands behind MetaShard: it sees no "
               "call, and what it limits does not hold; preload it before MetaShard, or set "
               "METASHARD=off",
               info.dli_fname, names[i]);
        return;
    }
}
