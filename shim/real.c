/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/real.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>

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

/* The beginning and the end of this library; the linker defines both symbols. */
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

static int is_named(struct dl_phdr_info *info, __attribute__((unused)) size_t size, void *name)
{
    return ms_image_is_named(info->dlpi_name, name);
}

bool ms_image_is_loaded(const char *name)
{
    return dl_iterate_phdr(is_named, (void *)name) != 0;
}

/* --- the driver */

/* The driver's handle; NULL: not loaded. It stays open: pointers into the driver are in use.
 * Threads that set it at the same time set the same handle. */
static void *_Atomic driver;
static _Atomic uintptr_t driver_begin, driver_end; /* 0: not looked up yet */

static void *handle_of(const void *address)
{
    if (address == NULL)
        return dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    Dl_info info;
    if (dladdr(address, &info) == 0 || info.dli_fname == NULL ||
        !ms_image_is_named(info.dli_fname, "libcuda.so"))
        return NULL;
    return dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
}

/* ms_missing if the loader finds nothing, or the shim's own export. Clears dlerror: the program
 * must not see the failure. */
static void *look_up(void *handle, enum ms_entry entry)
{
    /* When off, the shim must not hide functions of a library behind it. */
    void *found = ms_is_off() ? ms_libc_dlsym()(RTLD_NEXT, ms_entry_symbol(entry)) : NULL;
    if (found == NULL)
        found = ms_libc_dlsym()(handle, ms_entry_symbol(entry));
    if (found == NULL)
        dlerror();
    return found != NULL && !ms_is_own(found) ? found : (void *)ms_missing;
}

bool ms_real_load(const void *address)
{
    if (atomic_load_explicit(&driver, memory_order_relaxed) != NULL)
        return true;
    void *handle = handle_of(address), *before = NULL;
    if (handle != NULL)
        atomic_compare_exchange_strong(&driver, &before, handle);
    return handle != NULL;
}

static void find_driver_image(void)
{
    void *handle = atomic_load(&driver);
    const struct ms_image image =
        handle != NULL ? ms_image_of(look_up(handle, MS_ENTRY_cuInit)) : (struct ms_image){0, 0};
    atomic_store(&driver_end, image.end);
    atomic_store(&driver_begin, image.begin);
}

void *ms_real_handle(void)
{
    return atomic_load(&driver);
}

bool ms_is_driver(const void *address)
{
    if (atomic_load(&driver_begin) == 0)
        find_driver_image();
    return (uintptr_t)address >= atomic_load(&driver_begin) &&
           (uintptr_t)address < atomic_load(&driver_end);
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
    real = look_up(atomic_load(&driver), entry);
    __atomic_store_n(&ms_real[entry], real, __ATOMIC_RELEASE);
    return real;
}

CUresult ms_missing(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}
