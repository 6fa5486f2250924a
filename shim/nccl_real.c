/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/nccl_real.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

#include "runtime/base/lock.h"
#include "runtime/base/log.h"
#include "shim/nccl_wrappers.h"
#include "shim/real.h"

enum { MAX_COPIES = 8, MAX_KNOWN = 1280, MAX_PATH = 512 };

/* Copies are added under the lock and never change; the count is read without the lock. */
static struct ms_lock lock = MS_LOCK_INIT(nccl); /* guards adding copies, and `known` */
static struct ms_nccl copies[MAX_COPIES];
static _Atomic int copy_count;

/* The copy of NCCL of each communicator; and of each caller, which so keeps its copy, as with a
 * bound symbol. When the table is full, the loader is asked each time. */
static struct {
    const void *key; /* the handle, or the return address */
    const struct ms_nccl *nccl;
} known[MAX_KNOWN] MS_GUARDED_BY(lock);
static int known_count MS_GUARDED_BY(lock);

static const char names[MS_NCCL_COUNT][32] = {
#define MS_NCCL(name, parameters, arguments) #name,
#include "shim/nccl.def"
#undef MS_NCCL
};

/* Prefers the name with a "p", NCCL's own way around interposers. */
static void *find(void *handle, const char *name)
{
    char real_name[64];
    snprintf(real_name, sizeof(real_name), "p%s", name);
    void *found = ms_libc_dlsym()(handle, real_name);
    if (found == NULL)
        found = ms_libc_dlsym()(handle, name);
    return found != NULL && ms_is_own(found) ? NULL : found;
}

static bool holds(const struct ms_nccl *nccl, const void *address)
{
    return (uintptr_t)address >= nccl->image.begin && (uintptr_t)address < nccl->image.end;
}

const struct ms_nccl *ms_nccl_at(const void *address)
{
    const int count = atomic_load_explicit(&copy_count, memory_order_acquire);
    for (int i = 0; i < count; i++) {
        if (holds(&copies[i], address))
            return &copies[i];
    }
    return NULL;
}

/* Adds the copy of NCCL that the handle leads to, unless it is known. The handle stays open,
 * because pointers into the library remain in use. */
static const struct ms_nccl *add_copy(void *handle)
{
    void *start = find(handle, "ncclGroupStart");
    const struct ms_nccl *added = start != NULL ? ms_nccl_at(start) : NULL;
    if (start == NULL || added != NULL)
        return added;
    struct ms_nccl found = {0};
    for (int i = 0; i < MS_NCCL_COUNT; i++)
        found.functions[i] = find(handle, names[i]);
    found.comm_count = find(handle, "ncclCommCount");
    found.comm_user_rank = find(handle, "ncclCommUserRank");
    found.image = ms_image_of(found.functions[MS_NCCL_ncclGroupStart]);

    ms_lock_take(&lock);
    const int count = atomic_load(&copy_count);
    if (ms_nccl_at(start) == NULL && count < MAX_COPIES) {
        copies[count] = found;
        atomic_store_explicit(&copy_count, count + 1, memory_order_release);
    }
    added = ms_nccl_at(start);
    ms_lock_drop(&lock);
    return added;
}

static int find_library(struct dl_phdr_info *info, __attribute__((unused)) size_t size,
                        void *context)
{
    if (!ms_image_is_named(info->dlpi_name, "libnccl.so"))
        return 0;
    snprintf(context, MAX_PATH, "%s", info->dlpi_name);
    return 1;
}

/* Adds the copy of NCCL of a loaded library. */
static const struct ms_nccl *add_loaded(const char *path)
{
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    return library != NULL ? add_copy(library) : NULL;
}

const struct ms_nccl *ms_nccl_detect(const void *function)
{
    Dl_info info;
    const struct ms_nccl *found = ms_nccl_at(function);
    if (found != NULL || dladdr(function, &info) == 0 || info.dli_fname == NULL)
        return found;
    return add_loaded(info.dli_fname);
}

bool ms_nccl_is_first(const struct ms_nccl *nccl)
{
    return nccl == &copies[0];
}

/* The copy that the caller would have found: in the caller's dependencies, or behind the shim in
 * the global scope; or, if the caller has the address from elsewhere, the copy that is loaded. */
static const struct ms_nccl *find_for(const void *return_address)
{
    Dl_info info;
    struct link_map *map = NULL;
    const struct ms_nccl *found = NULL;
    char path[MAX_PATH];
    if (dladdr1(return_address, &info, (void **)&map, RTLD_DL_LINKMAP) != 0 && map != NULL &&
        map->l_name[0] != '\0')
        found = add_loaded(map->l_name);
    if (found == NULL)
        found = add_copy(RTLD_NEXT);
    if (found == NULL && atomic_load(&copy_count) > 0)
        found = &copies[0]; /* the caller used dlsym, which replaces only this copy's functions */
    if (found == NULL && dl_iterate_phdr(find_library, path) != 0)
        found = add_loaded(path);
    return found;
}

void ms_nccl_prepare_detection(void)
{
    char path[MAX_PATH];
    void *torch = ms_image_is_loaded("libtorch_cuda.so")
                      ? dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD)
                      : NULL;
    if (torch == NULL)
        return;
    /* Only a PyTorch with NCCL has this function. */
    const bool has_nccl =
        ms_libc_dlsym()(torch, "_ZN4c10d16ProcessGroupNCCL10groupStartEv") != NULL;
    dlclose(torch);
    if (has_nccl && dl_iterate_phdr(find_library, path) == 0)
        ms_log(MS_WARN, "this PyTorch has NCCL linked into it: its collectives are not seen, and "
                        "materialise whatever their kernels could reach");
}

MS_HOLDS(lock) static int find_known_locked(const void *key)
{
    int at = 0;
    while (at < known_count && known[at].key != key)
        at++;
    return at;
}

static const struct ms_nccl *find_known(const void *key)
{
    ms_lock_take(&lock);
    const int at = find_known_locked(key);
    const struct ms_nccl *found = at < known_count ? known[at].nccl : NULL;
    ms_lock_drop(&lock);
    return found;
}

static void add_known(const void *key, const struct ms_nccl *nccl)
{
    ms_lock_take(&lock);
    const int at = find_known_locked(key);
    if (at < MAX_KNOWN) {
        known[at].key = key;
        known[at].nccl = nccl;
        known_count += at == known_count;
    }
    ms_lock_drop(&lock);
}

const struct ms_nccl *ms_nccl_of(ncclComm_t comm, const void *return_address)
{
    const struct ms_nccl *found = comm != NULL ? find_known(comm) : NULL;
    if (found == NULL)
        found = find_known(return_address);
    if (found != NULL)
        return found;
    found = find_for(return_address);
    if (found != NULL)
        add_known(return_address, found);
    return found;
}

void ms_nccl_add_comm(ncclComm_t comm, const struct ms_nccl *nccl)
{
    add_known(comm, nccl);
}

void ms_nccl_forget_comm(ncclComm_t comm)
{
    ms_lock_take(&lock);
    const int at = find_known_locked(comm);
    if (at < known_count)
        known[at] = known[--known_count];
    ms_lock_drop(&lock);
}
