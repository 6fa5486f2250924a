/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers to the two ways of looking up a driver function: dlsym and cuGetProcAddress. The real
 * resolver is called first; its answer is replaced only if that is the driver's own function.
 */
#include "shim/lookup.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>

#include "runtime/state/counters.h"
#include "shim/libc.h"
#include "shim/nccl_wrappers.h"
#include "shim/off.h"
#include "shim/real.h"
#include "shim/substitute.h"

static const struct ms_answer ask_next = {.given = false};

static void *substitute(void *real, const char *base, int version, bool per_thread)
{
    if (ms_is_off())
        return real;
    void *given = ms_substitute(real, base, version, per_thread);
    if (given != real)
        ms_counter_add(MS_COUNT_SUBSTITUTIONS, 1);
    return given;
}

/*
 * The lookup found one of the shim's exports, through RTLD_DEFAULT or a handle of the main program.
 * The export stands for the driver's function only if the driver is loaded; otherwise a program
 * that probes for CUDA would find CUDA on a machine without it.
 */
static struct ms_answer answer_for_own_export(void *own, const char *name)
{
    if (ms_real_load(NULL))
        return (struct ms_answer){.given = true, .address = own};
    /* Looks up behind the shim, and leaves the message for dlerror(). */
    return (struct ms_answer){.given = true, .address = ms_libc_dlsym()(RTLD_NEXT, name)};
}

static struct ms_answer answer_driver_name(void *handle, const char *name)
{
    ms_counter_add(MS_COUNT_LOOKUPS, 1);
    void *found = ms_libc_dlsym()(handle, name);
    if (found == NULL)
        return ask_next;
    if (ms_is_own(found))
        return answer_for_own_export(found, name);
    if (ms_is_off())
        return ask_next;
    /* For an exported name that the table does not know, the name is the base. */
    return (struct ms_answer){.given = true, .address = substitute(found, name, 0, false)};
}

/* RTLD_DEFAULT finds the shim's export even without NCCL. */
static struct ms_answer answer_nccl_name(void *handle, const char *name)
{
    void *found = ms_libc_dlsym()(handle, name);
    if (found == NULL || ms_is_off())
        return ask_next;
    if (!ms_is_own(found))
        return (struct ms_answer){.given = true, .address = ms_nccl_substitute(found, name)};
    void *real = ms_libc_dlsym()(RTLD_NEXT, name);
    return (struct ms_answer){.given = true, .address = real != NULL ? found : NULL};
}

MS_EARLY struct ms_answer ms_answer_dlsym(void *handle, const char *name)
{
    ms_find_next_dlsym(); /* sets the address that the trampoline jumps to */
    const bool is_driver_name =
        name != NULL && name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
    if (is_driver_name && handle != RTLD_NEXT)
        return answer_driver_name(handle, name);
    if (handle != RTLD_NEXT && name != NULL && strncmp(name, "nccl", 4) == 0)
        return answer_nccl_name(handle, name);
    return ask_next;
}

/*
 * A library that answers dlsym itself looks up libc's dlsym by dlvsym with a version, so as not to
 * find its own. The shim's dlsym has no version: the library would pass over it, and the program's
 * lookups would go around the shim. So a library that stands before the shim gets libc's dlsym with
 * the shim's answers.
 */
MS_EARLY bool ms_answer_dlvsym(void *handle, const char *name, const void *return_address)
{
    Dl_info info;
    struct link_map *library = NULL;
    ms_find_next_dlvsym();
    return handle == RTLD_NEXT && name != NULL && ms_libc_is_equal(name, "dlsym") && !ms_is_off() &&
           dladdr1(return_address, &info, (void **)&library, RTLD_DL_LINKMAP) != 0 &&
           ms_libc_stands_before(library);
}

static CUresult published(CUresult result, const char *symbol, void **pfn, int version,
                          cuuint64_t flags)
{
    if (result == CUDA_SUCCESS && pfn != NULL && *pfn != NULL)
        *pfn = substitute(*pfn, symbol, version,
                          (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0);
    return result;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
    ms_counter_add(MS_COUNT_LOOKUPS, 1);
    return published(MS_REAL(cuGetProcAddress)(symbol, pfn, cudaVersion, flags), symbol, pfn,
                     cudaVersion, flags);
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *symbolStatus)
{
    ms_counter_add(MS_COUNT_LOOKUPS, 1);
    return published(MS_REAL(cuGetProcAddress_v2)(symbol, pfn, cudaVersion, flags, symbolStatus),
                     symbol, pfn, cudaVersion, flags);
}
