/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/loading/store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "runtime/base/headroom.h"
#include "runtime/base/heap.h"
#include "runtime/base/number.h"
#include "runtime/base/quiet.h"
#include "runtime/config/config.h"
#include "runtime/files/host_snapshot.h"

struct ms_store {
    struct ms_counted counted; /* first: ms_store_drop */
    int descriptor;            /* of the file, while it is filled; -1: host memory */
    unsigned char *memory;     /* mapped: `capacity` bytes */
    size_t capacity;           /* bytes, a multiple of the page */
    size_t used;               /* bytes; sources lie behind each other, without gaps */
    uint64_t limit;            /* of `used` */
    const char *bound;         /* what sets that limit; NULL: METASHARD_SUSPEND_BYTES */
    bool takes_memory;         /* false for a file on a disk */
    uint64_t known;            /* `used` was found to fit into memory up to here */
    char folder[MS_PATH_BYTES];
};

_Static_assert(offsetof(struct ms_store, counted) == 0, "as ms_store_drop wants it");

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t whole_pages(size_t bytes)
{
    return ms_round_up(bytes, page_bytes());
}

static void destroy_store(struct ms_counted *counted)
{
    struct ms_store *store = (struct ms_store *)counted;
    munmap(store->memory, store->capacity);
    if (store->descriptor >= 0)
        close(store->descriptor);
    ms_heap_free(store);
}

/* Not by libc: the shim watches its functions for the program's files. */
static int open_by_kernel(const char *path, int flags)
{
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0600L);
}

/* --- how much fits */

static bool is_in_memory(int descriptor)
{
    struct statfs found;
    return fstatfs(descriptor, &found) == 0 &&
           (found.f_type == TMPFS_MAGIC || found.f_type == RAMFS_MAGIC);
}

static void bound_by(struct ms_store *store, struct ms_headroom headroom)
{
    const uint64_t share = ms_headroom_share(headroom.bytes);
    if (share < store->limit) {
        store->limit = share;
        store->bound = headroom.bound;
    }
}

/* Maps no more than fits, because the program needs addresses too. */
static void find_limit(struct ms_store *store, uint64_t limit)
{
    store->limit = limit > 0 ? limit : UINT64_MAX;
    store->takes_memory = store->descriptor < 0 || is_in_memory(store->descriptor);
    if (store->takes_memory)
        bound_by(store, ms_headroom_find(MS_HEADROOM_MEMORY));
    bound_by(store,
             ms_headroom_find(store->descriptor < 0 ? MS_HEADROOM_PRIVATE : MS_HEADROOM_ADDRESSES));
    if (store->limit < store->capacity)
        store->capacity = whole_pages(store->limit) + page_bytes();
}

static bool refuse(const struct ms_store *store, struct ms_fault *fault)
{
    const bool is_host = store->folder[0] == '\0';
    if (store->bound == NULL)
        return ms_fault_set(fault,
                            "more than %" PRIu64 " bytes would have to wait outside of the device: "
                            "raise METASHARD_SUSPEND_BYTES%s",
                            store->limit, is_host ? ", or name a folder" : "");
    return ms_fault_set(fault,
                        "more than %" PRIu64 " bytes would have to wait outside of the device, "
                        "where %s leaves no room for more%s",
                        store->limit, store->bound,
                        store->takes_memory ? ": name a folder on a disk" : "");
}

/* Asks again after ASK_BYTES, because others take memory meanwhile: other ranks in the same
 * container may be suspended at the same time. Asks sooner as memory gets short, so that all of
 * them together take less between two questions than is left. */
static bool is_there(struct ms_store *store, size_t count, struct ms_fault *fault)
{
    enum { ASK_BYTES = 16 << 20, LEFT_PART = 32 };
    if (!store->takes_memory || store->used + count <= store->known)
        return true;
    struct ms_headroom headroom = ms_headroom_find(MS_HEADROOM_MEMORY);
    const uint64_t part = headroom.bytes / LEFT_PART;
    if (headroom.bytes < UINT64_MAX - store->used)
        headroom.bytes += store->used; /* this store has taken it already */
    bound_by(store, headroom);
    store->known = store->used + count + ms_least(part, ASK_BYTES);
    return store->used + count <= store->limit || refuse(store, fault);
}

static bool has_room(struct ms_store *store, size_t count, struct ms_fault *fault)
{
    if (store->used + count > store->limit)
        return refuse(store, fault);
    if (count > store->capacity - store->used)
        return ms_fault_set(fault, "the device holds more than was expected");
    return is_there(store, count, fault);
}

/* --- the memory of a store */

/* A file that has no name, or loses it at once. */
static int make_file(const char *folder)
{
    const int descriptor = open_by_kernel(folder, O_TMPFILE | O_RDWR);
    if (descriptor >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
        return descriptor;
    char path[MS_PATH_BYTES + sizeof("/metashard-XXXXXX")];
    snprintf(path, sizeof(path), "%s/metashard-XXXXXX", folder);
    const int named = mkostemp(path, O_CLOEXEC);
    if (named >= 0)
        syscall(SYS_unlinkat, AT_FDCWD, path, 0L);
    return named;
}

/* Maps beyond the end of a file, where nobody reads. A forked child has no use for the memory. */
static bool map(struct ms_store *store)
{
    const bool is_file = store->descriptor >= 0;
    void *memory = mmap(NULL, store->capacity, PROT_READ | PROT_WRITE,
                        is_file ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                        store->descriptor, 0);
    if (memory == MAP_FAILED)
        return false;
    store->memory = memory;
    madvise(memory, store->capacity, MADV_DONTFORK);
    if (!is_file)
        madvise(memory, store->capacity, MADV_HUGEPAGE);
    return true;
}

struct ms_store *ms_store_create(const char *folder, size_t capacity, uint64_t limit,
                                 struct ms_fault *fault)
{
    struct ms_store *store = ms_heap_zalloc(sizeof(*store));
    if (store == NULL) {
        ms_fault_set(fault, "out of host memory");
        return NULL;
    }
    ms_counted_init(&store->counted, destroy_store);
    store->descriptor = -1;
    store->capacity = whole_pages(capacity) + page_bytes();
    if (folder != NULL)
        snprintf(store->folder, sizeof(store->folder), "%s", folder);
    const bool is_open = folder == NULL || (store->descriptor = make_file(folder)) >= 0;
    if (is_open)
        find_limit(store, limit);
    if (is_open && map(store))
        return store;
    ms_fault_set(fault, "%s: %s", folder != NULL ? folder : "host memory", strerror(errno));
    if (store->descriptor >= 0)
        close(store->descriptor);
    ms_heap_free(store);
    return NULL;
}

static bool write_all(int descriptor, const unsigned char *bytes, size_t count, off_t at)
{
    while (count > 0) {
        const ssize_t written = syscall(SYS_pwrite64, descriptor, bytes, count, at);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return false;
        bytes += written;
        at += written;
        count -= (size_t)written;
    }
    return true;
}

/* Writes to a file by a call: a store would end the process when the folder is full. */
static bool put(const struct ms_store *store, const void *bytes, size_t count,
                struct ms_fault *fault)
{
    if (store->descriptor < 0) {
        memcpy(store->memory + store->used, bytes, count);
        return true;
    }
    struct ms_quiet quiet;
    ms_quiet_begin(&quiet); /* beyond RLIMIT_FSIZE a write raises a signal */
    const bool is_good = write_all(store->descriptor, bytes, count, (off_t)store->used);
    ms_quiet_end(&quiet, !is_good);
    return is_good || ms_fault_set(fault, "%s: %s", store->folder, strerror(errno));
}

struct ms_source *ms_store_add(struct ms_store *store, const void *bytes, size_t count,
                               struct ms_fault *fault)
{
    if (!has_room(store, count, fault) || !put(store, bytes, count, fault))
        return NULL;
    struct ms_host_snapshot *snapshot =
        ms_host_snapshot_create_stored(&(struct ms_stored){.memory = store->memory + store->used,
                                                           .bytes = count,
                                                           .store = &store->counted,
                                                           .is_file = store->descriptor >= 0});
    if (snapshot == NULL) {
        ms_fault_set(fault, "out of host memory");
        return NULL;
    }
    store->used += count;
    return ms_host_snapshot_source(snapshot);
}

/* The program may have use for the addresses. */
static void unmap_rest(struct ms_store *store)
{
    const size_t used = whole_pages(store->used);
    if (used == 0 || used == store->capacity)
        return;
    munmap(store->memory + used, store->capacity - used);
    store->capacity = used;
}

bool ms_store_finish(struct ms_store *store, struct ms_fault *fault)
{
    const int descriptor = store->descriptor;
    unmap_rest(store);
    if (descriptor < 0)
        return true;
    /* A mapped page must lie in the file as a whole. */
    const bool is_good = syscall(SYS_ftruncate, descriptor, whole_pages(store->used)) == 0 &&
                         fdatasync(descriptor) == 0;
    const int error = errno;
    store->descriptor = -1;
    close(descriptor);
    return is_good || ms_fault_set(fault, "%s: %s", store->folder, strerror(error));
}
