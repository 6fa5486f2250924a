/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/real.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>

#include "runtime/base/lock.h"
#include "runtime/base/log.h"
#include "shim/libc.h"
#include "shim/off.h"

void *ms_real[MS_ENTRY_COUNT + MS_SPARE_COUNT];

/* The trampolines jump through these. */
void *ms_libc_dlsym_address, *ms_next_dlsym_address, *ms_next_dlvsym_address;

ms_dlsym *ms_libc_dlsym(void)
{
    void *found = __atomic_load_n(&ms_libc_dlsym_address, __ATOMIC_ACQUIRE);
    if (found == NULL) {
        found = ms_libc_find("dlsym");
        if (found == NULL)
            ms_fatal("the C library has no dlsym");
        __atomic_store_n(&ms_libc_dlsym_address, found, __ATOMIC_RELEASE);
    }
    return (ms_dlsym *)found;
}

MS_EARLY static void find_next(void **address, const char *name)
{
    if (__atomic_load_n(address, __ATOMIC_ACQUIRE) != NULL)
        return;
    void *found = ms_libc_dlsym()(RTLD_NEXT, name);
    if (found == NULL) {
        dlerror();
        found = ms_libc_find(name);
    }
    __atomic_store_n(address, found, __ATOMIC_RELEASE);
}

MS_EARLY void ms_find_next_dlsym(void)
{
    find_next(&ms_next_dlsym_address, "dlsym");
}

MS_EARLY void ms_find_next_dlvsym(void)
{
    find_next(&ms_next_dlvsym_address, "dlvsym");
}

/* The beginning and the end of this library; the linker defines them. */
extern const char __ehdr_start[], _end[] __attribute__((visibility("hidden")));

bool ms_is_own(const void *address)
{
    return (uintptr_t)address >= (uintptr_t)__ehdr_start && (uintptr_t)address < (uintptr_t)_end;
}

/* --- where a library is mapped */

struct search {
    uintptr_t inside;
    struct ms_image *found;
};

static int find_image(struct dl_phdr_info *info, __attribute__((unused)) size_t size, void *context)
{
    const struct search *search = context;
    uintptr_t begin = UINTPTR_MAX, end = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        const uintptr_t at = info->dlpi_addr + segment->p_vaddr;
        if (segment->p_type != PT_LOAD)
            continue;
        begin = at < begin ? at : begin;
        end = at + segment->p_memsz > end ? at + segment->p_memsz : end;
    }
    *search->found = (struct ms_image){begin, end};
    return search->inside >= begin && search->inside < end;
}

struct ms_image ms_image_of(const void *address)
{
    struct ms_image found;
    struct search search = {(uintptr_t)address, &found};
    return dl_iterate_phdr(find_image, &search) != 0 ? found : (struct ms_image){0, 0};
}

/* --- the driver */

static struct ms_lock load_lock = MS_LOCK_INIT(real); /* guards publishing; a leaf */
static bool is_loaded;                                /* atomic, release on publish */
/* Immutable once it is_loaded. The handle stays open: pointers into the driver are in use. */
static struct {
    void *handle;
    struct ms_image image;
} driver;

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

/* Asks the loader, which may also say that there is none, or find the shim's own export. The
 * program must not see that something was not found (dlerror). */
static void *look_up(void *handle, enum ms_entry entry)
{
    /* A shim that is off hides nothing that stands behind it. */
    void *found = ms_is_off() ? ms_libc_dlsym()(RTLD_NEXT, ms_entry_symbol(entry)) : NULL;
    if (found == NULL)
        found = ms_libc_dlsym()(handle, ms_entry_symbol(entry));
    if (found == NULL)
        dlerror();
    return found != NULL && !ms_is_own(found) ? found : (void *)ms_missing;
}

/* The loader is asked without a lock of the shim: it has a lock of its own, which another thread
 * may hold while it waits for the shim's. */
bool ms_real_load(const void *address)
{
    if (__atomic_load_n(&is_loaded, __ATOMIC_ACQUIRE))
        return true;
    void *handle = handle_of(address);
    if (handle == NULL)
        return false;
    const struct ms_image image = ms_image_of(look_up(handle, MS_ENTRY_cuInit));
    ms_lock_take(&load_lock);
    if (!is_loaded) {
        driver.handle = handle;
        driver.image = image;
        __atomic_store_n(&is_loaded, true, __ATOMIC_RELEASE);
    }
    ms_lock_drop(&load_lock);
    return true;
}

static int is_of_driver(struct dl_phdr_info *info, __attribute__((unused)) size_t size,
                        __attribute__((unused)) void *context)
{
    return is_driver_file(info->dlpi_name);
}

bool ms_real_is_loaded(void)
{
    return dl_iterate_phdr(is_of_driver, NULL) != 0;
}

void *ms_real_handle(void)
{
    return driver.handle;
}

bool ms_is_driver(const void *address)
{
    return (uintptr_t)address >= driver.image.begin && (uintptr_t)address < driver.image.end;
}

void *ms_real_get(enum ms_entry entry)
{
    void *real = __atomic_load_n(&ms_real[entry], __ATOMIC_ACQUIRE);
    if (real != NULL)
        return real;
    if (!ms_real_load(NULL)) {
        ms_log(MS_ERROR, "%s was called, but no libcuda.so.1 can be found", ms_entry_symbol(entry));
        return (void *)ms_missing;
    }
    real = look_up(driver.handle, entry);
    __atomic_store_n(&ms_real[entry], real, __ATOMIC_RELEASE);
    return real;
}

CUresult ms_missing(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}
