/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/real.h"

#include <dlfcn.h>
#include <string.h>

#include "runtime/base/lock.h"
#include "runtime/base/log.h"

const struct ms_entry_facts ms_entries[MS_ENTRY_COUNT] = {
#define MS_ENTRY(class, symbol, base, version, per_thread, reason) \
    {#symbol, #base, version, per_thread},
#include "shim/entries.def"
#undef MS_ENTRY
};

void *ms_real[MS_ENTRY_COUNT + MS_SPARE_COUNT];

/* dlsym moved to libc.so in glibc 2.34; its first version differs by architecture. dlvsym, because
 * a plain lookup would find the shim's own export of that name. */
MS_EARLY static void *find_libc_dlsym(void)
{
    void *found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (found == NULL)
        found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    if (found == NULL)
        found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17");
    if (found == NULL)
        ms_fatal("the C library has no dlsym");
    return found;
}

void *ms_libc_dlsym_address; /* the trampoline jumps through it */

ms_dlsym *ms_libc_dlsym(void)
{
    void *found = __atomic_load_n(&ms_libc_dlsym_address, __ATOMIC_ACQUIRE);
    if (found == NULL) {
        found = find_libc_dlsym();
        __atomic_store_n(&ms_libc_dlsym_address, found, __ATOMIC_RELEASE);
    }
    return (ms_dlsym *)found;
}

/* The beginning and the end of this library; the linker defines them. */
extern const char __ehdr_start[], _end[] __attribute__((visibility("hidden")));

bool ms_is_own(const void *address)
{
    return (uintptr_t)address >= (uintptr_t)__ehdr_start && (uintptr_t)address < (uintptr_t)_end;
}

static struct ms_lock load_lock = MS_LOCK_INIT(real); /* guards publishing; a leaf */
static bool is_loaded;                                /* atomic, release on publish */
static const void *driver_base; /* where the driver is mapped; written before is_loaded */

static bool loaded(void)
{
    return __atomic_load_n(&is_loaded, __ATOMIC_ACQUIRE);
}

/* Asks the loader, without a lock of the shim: the loader has a lock of its own, which another
 * thread may hold while it waits for the shim's. */
static void look_up_all(void *handle, void **found_out)
{
    for (int i = 0; i < MS_ENTRY_COUNT; i++)
        found_out[i] = ms_libc_dlsym()(handle, ms_entries[i].symbol);
}

MS_HOLDS(load_lock) static void publish_locked(void *const *found, const void *base)
{
    for (int i = 0; i < MS_ENTRY_COUNT; i++) {
        void *real = found[i] != NULL && !ms_is_own(found[i]) ? found[i] : (void *)ms_missing;
        __atomic_store_n(&ms_real[i], real, __ATOMIC_RELEASE);
    }
    driver_base = base;
    __atomic_store_n(&is_loaded, true, __ATOMIC_RELEASE);
}

static bool is_driver_file(const char *path)
{
    const char *name = strrchr(path, '/');
    return strncmp(name != NULL ? name + 1 : path, "libcuda.so", 10) == 0;
}

static void *handle_of(const void *address)
{
    if (address == NULL)
        return dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    Dl_info info;
    if (dladdr(address, &info) == 0 || info.dli_fname == NULL || !is_driver_file(info.dli_fname))
        return NULL;
    return dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
}

static const void *base_of(const void *address)
{
    Dl_info info;
    return dladdr(address, &info) != 0 ? info.dli_fbase : NULL;
}

/* The handle stays open: pointers into the driver are in use, so it must stay loaded. */
bool ms_real_load(const void *address)
{
    if (loaded())
        return true;
    void *handle = handle_of(address);
    if (handle == NULL)
        return false;
    void *found[MS_ENTRY_COUNT];
    look_up_all(handle, found);
    const void *base = base_of(found[MS_ENTRY_cuInit]);
    ms_lock_take(&load_lock);
    if (!is_loaded)
        publish_locked(found, base);
    ms_lock_drop(&load_lock);
    return true;
}

bool ms_is_driver(const void *address)
{
    return base_of(address) == driver_base;
}

void *ms_real_get(enum ms_entry entry)
{
    if (!ms_real_load(NULL)) {
        ms_log(MS_ERROR, "%s was called, but no libcuda.so.1 can be found",
               ms_entries[entry].symbol);
        return (void *)ms_missing;
    }
    return __atomic_load_n(&ms_real[entry], __ATOMIC_ACQUIRE);
}

CUresult ms_missing(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}
