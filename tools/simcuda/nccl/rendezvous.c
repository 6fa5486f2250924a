/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How ranks meet. An id names a memory file by process and descriptor; the ranks open it through
 * /proc, so it is gone with the process that made it, and no name is left behind.
 */
#include "tools/simcuda/nccl/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ID_MAGIC 0x31444c43434e4d53ull
#define SEGMENT_MAGIC 0x31474553434e4d53ull

/* Contents of an id; the rest is zero. */
struct id {
    uint64_t magic;
    unsigned char nonce[16];
    int32_t process;
    int32_t file;
};

/* The files of ids that this process made, until all their ranks have come. */
static struct own_id {
    struct own_id *next;
    struct id id;
} * own_ids;                                                     /* guarded by own_ids_lock */
static pthread_mutex_t own_ids_lock = PTHREAD_MUTEX_INITIALIZER; /* held for nothing else */

static void remember_id(const struct id *id)
{
    struct own_id *own = nc_zalloc(sizeof(*own));
    own->id = *id;
    pthread_mutex_lock(&own_ids_lock);
    own->next = own_ids;
    own_ids = own;
    pthread_mutex_unlock(&own_ids_lock);
}

ncclResult_t nc_id_create(ncclUniqueId *id_out)
{
    struct id id = {.magic = ID_MAGIC, .process = getpid()};
    struct nc_segment head = {.magic = SEGMENT_MAGIC};
    if (getrandom(id.nonce, sizeof(id.nonce), 0) != (ssize_t)sizeof(id.nonce))
        return ncclSystemError;
    memcpy(head.nonce, id.nonce, sizeof(head.nonce));
    id.file = memfd_create("simnccl", MFD_CLOEXEC);
    if (id.file < 0 || write(id.file, &head, sizeof(head)) != (ssize_t)sizeof(head)) {
        nc_say("no memory file for an id: %s", strerror(errno));
        if (id.file >= 0)
            close(id.file);
        return ncclSystemError;
    }
    remember_id(&id);
    memset(id_out, 0, sizeof(*id_out));
    memcpy(id_out, &id, sizeof(id));
    return ncclSuccess;
}

static uint64_t hash_ids(const ncclUniqueId *ids, int count)
{
    uint64_t hash = (uint64_t)count;
    for (int i = 0; i < count; i++) {
        for (size_t at = 0; at < sizeof(ids[i]); at++)
            hash = nc_mix(hash ^ (unsigned char)ids[i].internal[at]);
    }
    return hash;
}

static ncclResult_t open_id(const struct ncclComm *comm, const ncclUniqueId *unique, int *file_out)
{
    struct id id;
    struct nc_segment head;
    char path[64];
    memcpy(&id, unique, sizeof(id));
    if (id.magic != ID_MAGIC) {
        nc_say("rank %d: this is no id of ncclGetUniqueId", comm->rank);
        return ncclInvalidArgument;
    }
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)id.process, (int)id.file);
    const int file = open(path, O_RDWR | O_CLOEXEC);
    if (file >= 0 && pread(file, &head, sizeof(head), 0) == (ssize_t)sizeof(head) &&
        head.magic == SEGMENT_MAGIC && memcmp(head.nonce, id.nonce, sizeof(id.nonce)) == 0) {
        *file_out = file;
        return ncclSuccess;
    }
    nc_say("rank %d: the id is used up, or process %d that made it is gone", comm->rank,
           (int)id.process);
    if (file >= 0)
        close(file);
    return ncclSystemError;
}

/*
 * The maker's own descriptor, when all ranks have come: nobody needs to find the file any more.
 * Once, though several ranks may be of this process.
 */
static void forget_id(const ncclUniqueId *unique)
{
    struct id id;
    memcpy(&id, unique, sizeof(id));
    pthread_mutex_lock(&own_ids_lock);
    struct own_id **link = &own_ids;
    while (*link != NULL && memcmp(&(*link)->id, &id, sizeof(id)) != 0)
        link = &(*link)->next;
    struct own_id *found = *link;
    /* A forked child has the list, but is not the maker. */
    if (found != NULL && id.process == getpid()) {
        *link = found->next;
        close(id.file);
        free(found);
    }
    pthread_mutex_unlock(&own_ids_lock);
}

/* --- entering */

static ncclResult_t map(struct ncclComm *comm, int file)
{
    comm->segment_bytes = nc_segment_bytes(comm->nranks);
    void *memory = mmap(NULL, comm->segment_bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_NORESERVE, file, 0);
    if (memory == MAP_FAILED) {
        nc_say("mmap of what ranks share failed: %s", strerror(errno));
        return ncclSystemError;
    }
    comm->segment = memory;
    return ncclSuccess;
}

/* Two ranks of one process need a device each. */
static int find_twin(const struct ncclComm *comm)
{
    for (int rank = 0; rank < comm->nranks; rank++) {
        const struct nc_rank *other = &comm->segment->ranks[rank];
        if (atomic_load(&other->state) != NC_ABSENT && atomic_load(&other->pid) == getpid() &&
            other->device == comm->device)
            return rank;
    }
    return -1;
}

/* With the file's lock held. */
static ncclResult_t take_place_locked(struct ncclComm *comm, uint64_t ids_hash)
{
    struct nc_segment *segment = comm->segment;
    struct nc_rank *own = &segment->ranks[comm->rank];
    const int twin = find_twin(comm);
    if (segment->ids_hash != ids_hash) {
        nc_say("rank %d: other ranks came with other ids", comm->rank);
        return ncclInvalidUsage;
    }
    if (atomic_load(&own->state) != NC_ABSENT) {
        nc_say("rank %d of %d is there twice", comm->rank, comm->nranks);
        return ncclInvalidUsage;
    }
    if (twin >= 0) {
        nc_say("duplicate GPU: rank %d and rank %d both on device %d", twin, comm->rank,
               comm->device);
        return ncclInvalidUsage;
    }
    own->device = comm->device;
    atomic_store(&own->pid, getpid());
    atomic_store(&own->state, NC_READY);
    atomic_fetch_add(&segment->attached, 1);
    nc_ring_all(comm);
    return ncclSuccess;
}

static ncclResult_t enter_locked(struct ncclComm *comm, int file, uint64_t ids_hash)
{
    struct nc_segment head;
    if (pread(file, &head, sizeof(head), 0) != (ssize_t)sizeof(head))
        return ncclSystemError;
    if (head.nranks == 0) {
        head.nranks = (uint32_t)comm->nranks;
        head.ids_hash = ids_hash;
        if (ftruncate(file, (off_t)nc_segment_bytes(comm->nranks)) != 0 ||
            pwrite(file, &head, sizeof(head), 0) != (ssize_t)sizeof(head))
            return ncclSystemError;
    } else if (head.nranks != (uint32_t)comm->nranks) {
        nc_say("rank %d has a communicator of %d ranks, others have one of %u", comm->rank,
               comm->nranks, head.nranks);
        return ncclInvalidUsage;
    }
    NC_TRY(map(comm, file));
    const ncclResult_t result = take_place_locked(comm, ids_hash);
    if (result != ncclSuccess) {
        int none = ncclSuccess;
        atomic_compare_exchange_strong(&comm->segment->error, &none, result);
        nc_ring_all(comm);
        munmap(comm->segment, comm->segment_bytes);
        comm->segment = NULL;
    }
    return result;
}

static ncclResult_t enter(struct ncclComm *comm, const ncclUniqueId *ids, int count)
{
    int file;
    NC_TRY(open_id(comm, &ids[0], &file));
    /* Taken by nobody who waits for something else, and gone with a process that dies. */
    while (flock(file, LOCK_EX) != 0 && errno == EINTR)
        ;
    const ncclResult_t result = enter_locked(comm, file, hash_ids(ids, count));
    flock(file, LOCK_UN);
    close(file);
    return result;
}

/* --- meeting */

static int watch(int process)
{
    return process == getpid() ? -1 : nc_watch(process);
}

static ncclResult_t find_processes(struct ncclComm *comm)
{
    comm->peers = nc_zalloc((size_t)comm->nranks * sizeof(comm->peers[0]));
    for (int rank = 0; rank < comm->nranks; rank++) {
        const int process = atomic_load(&comm->segment->ranks[rank].pid);
        comm->peers[rank] = watch(process);
        if (comm->peers[rank] < 0 && process != getpid()) {
            uint32_t ready = NC_READY;
            atomic_compare_exchange_strong(&comm->segment->ranks[rank].state, &ready, NC_GONE);
        }
    }
    return ncclSuccess;
}

/* A rank that has not come, and is gone from the communicator that this one is made from; -1:
 * none. */
static int find_lost(const struct ncclComm *comm, const struct nc_origin *origin)
{
    nc_find_dead(origin->parent);
    for (int rank = 0; rank < comm->nranks; rank++) {
        const struct nc_rank *before = &origin->parent->segment->ranks[origin->members[rank]];
        if (atomic_load(&before->state) == NC_GONE &&
            atomic_load(&comm->segment->ranks[rank].state) == NC_ABSENT)
            return rank;
    }
    return -1;
}

static ncclResult_t wait_for_all(struct ncclComm *comm, const struct nc_origin *origin)
{
    struct nc_wait wait = {.comm = comm, .what = "waiting for all ranks to come"};
    nc_wait_progress(&wait);
    for (;;) {
        const uint32_t bell = nc_bell(comm);
        if (atomic_load(&comm->segment->attached) == (uint32_t)comm->nranks)
            return ncclSuccess;
        const int lost = origin != NULL ? find_lost(comm, origin) : -1;
        if (lost >= 0) {
            nc_say("%s rank %d: rank %d is gone before it came", comm->name, comm->rank, lost);
            nc_comm_fail(comm, ncclRemoteError);
            return ncclRemoteError;
        }
        NC_TRY(nc_wait(&wait, bell));
    }
}

ncclResult_t nc_join(struct ncclComm *comm, const ncclUniqueId *ids, int count,
                     const struct nc_origin *origin)
{
    if (nc_settings()->mirror)
        return nc_mirror_join(comm);
    NC_TRY(enter(comm, ids, count));
    nc_comm_list(comm);
    NC_TRY(wait_for_all(comm, origin));
    for (int i = 0; i < count; i++)
        forget_id(&ids[i]);
    NC_TRY(nc_mirror_take_buffers(comm));
    return find_processes(comm);
}

void nc_leave(struct ncclComm *comm)
{
    nc_comm_unlist(comm);
    for (int rank = 0; comm->peers != NULL && rank < comm->nranks; rank++) {
        if (comm->peers[rank] >= 0)
            close(comm->peers[rank]);
    }
    free(comm->peers);
    if (comm->segment != NULL)
        munmap(comm->segment, comm->segment_bytes);
}
