/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/real.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "runtime/base/log.h"

/* dlsym moved to libc.so in glibc 2.34; its first version differs by architecture. Our own export
 * of that name must not be found, hence dlvsym. */
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

/*
 * From real address to entry: open addressing, filled once. Several names may share an address; the
 * first one that has a wrapper stands for all.
 */
enum { SLOTS = 4096 };
static struct {
    const void *address;
    int entry;
} by_address[SLOTS];

static size_t slot_of(const void *address)
{
    const uint64_t mixed = (uint64_t)(uintptr_t)address * UINT64_C(0x9e3779b97f4a7c15);
    size_t slot = mixed >> 52;
    while (by_address[slot].address != NULL && by_address[slot].address != address)
        slot = (slot + 1) % SLOTS;
    return slot;
}

static void file_address(const void *address, int entry)
{
    const size_t slot = slot_of(address);
    if (by_address[slot].address == NULL || ms_entries[by_address[slot].entry].wrapper == NULL) {
        by_address[slot].entry = entry;
        by_address[slot].address = address;
    }
}

/* Guards publishing and the spare slots. Nothing is called under it. */
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_loaded;          /* atomic, release on publish */
static const void *driver_base; /* where the driver is mapped; written before is_loaded */

static bool loaded(void)
{
    return __atomic_load_n(&is_loaded, __ATOMIC_ACQUIRE);
}

/* The loader's answers; asked for without a lock of ours, because the loader has one of its own that
 * another thread may hold while it waits for ours. */
static void look_up_all(void *handle, void **found_out)
{
    for (int i = 0; i < MS_ENTRY_COUNT; i++)
        found_out[i] = ms_libc_dlsym()(handle, ms_entries[i].symbol);
}

static void publish_locked(void *const *found, const void *base)
{
    for (int i = 0; i < MS_ENTRY_COUNT; i++) {
        void *real = (void *)ms_missing;
        if (found[i] != NULL && found[i] != ms_entries[i].wrapper) {
            real = found[i];
            file_address(real, i);
        }
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

/* The handle is kept: pointers into the driver are out, so it must stay. */
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
    pthread_mutex_lock(&load_lock);
    if (!is_loaded)
        publish_locked(found, base);
    pthread_mutex_unlock(&load_lock);
    return true;
}

void *ms_real_get(enum ms_entry entry)
{
    if (!ms_real_load(NULL)) {
        ms_log(MS_ERROR, "%s is called, and no libcuda.so.1 can be found",
               ms_entries[entry].symbol);
        return (void *)ms_missing;
    }
    return __atomic_load_n(&ms_real[entry], __ATOMIC_ACQUIRE);
}

CUresult ms_missing(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

bool ms_is_wrapper(const void *address)
{
    for (int i = 0; i < MS_ENTRY_COUNT; i++) {
        if (ms_entries[i].wrapper == address)
            return true;
    }
    for (int i = 0; i < MS_SPARE_COUNT; i++) {
        if (ms_spare_thunks[i] == address)
            return true;
    }
    return false;
}

/* The entry that (base, version, per_thread) means: the newest ABI not newer than asked for. */
static int find_entry(const char *base, int version, bool per_thread)
{
    int best = -1;
    for (int i = 0; i < MS_ENTRY_COUNT; i++) {
        const struct ms_entry_facts *facts = &ms_entries[i];
        if (facts->version > version || strcmp(facts->base, base) != 0)
            continue;
        if (best < 0 ||
            (facts->per_thread == per_thread) > (ms_entries[best].per_thread == per_thread) ||
            (facts->per_thread == ms_entries[best].per_thread &&
             facts->version > ms_entries[best].version))
            best = i;
    }
    return best;
}

/* A function the table does not know is sealed: it might touch anything. */
static void *seal_unknown(void *real, const char *name)
{
    void *thunk = NULL;
    pthread_mutex_lock(&load_lock);
    for (int i = 0; i < MS_SPARE_COUNT && thunk == NULL; i++) {
        void **slot = &ms_real[MS_ENTRY_COUNT + i];
        if (*slot == NULL)
            __atomic_store_n(slot, real, __ATOMIC_RELEASE);
        if (*slot == real)
            thunk = ms_spare_thunks[i];
    }
    pthread_mutex_unlock(&load_lock);
    if (thunk == NULL) {
        ms_log(MS_WARN,
               "%s is unknown and there are more than %d such functions: it is not watched", name,
               (int)MS_SPARE_COUNT);
        return real;
    }
    return thunk;
}

static void *wrapper_or(const struct ms_entry_facts *facts, void *real)
{
    return facts->wrapper != NULL ? facts->wrapper : real;
}

void *ms_substitute(void *real, const char *base, int version, bool per_thread)
{
    if (!ms_real_load(real) || ms_is_wrapper(real))
        return real;
    const size_t slot = slot_of(real);
    if (by_address[slot].address != NULL)
        return wrapper_or(&ms_entries[by_address[slot].entry], real);
    if (base_of(real) != driver_base)
        return real; /* another library, or a second driver */

    /* The driver answered with an address that it does not export, or with a newer function. */
    const int entry = find_entry(base, version, per_thread);
    return entry >= 0 ? wrapper_or(&ms_entries[entry], real) : seal_unknown(real, base);
}
