/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the ranks of a communicator share, and their waits for each other. */
#include "tools/simcuda/nccl/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLICE_NS 10000000L /* between looks at what rings no bell */

const char *const nc_kind_names[NC_KINDS] = {
    "AllReduce", "Broadcast", "Reduce",  "AllGather", "ReduceScatter",
    "AlltoAll",  "Gather",    "Scatter", "Send",      "Recv",
};

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ncclComm *all_comms; /* guarded by list_lock */

/* --- places */

static size_t fifos_begin(int nranks)
{
    const size_t end = sizeof(struct nc_segment) + (size_t)nranks * sizeof(struct nc_rank);
    return (end + 4095) / 4096 * 4096;
}

size_t nc_segment_bytes(int nranks)
{
    return fifos_begin(nranks) +
           (size_t)NC_LANES * (size_t)nranks * (size_t)nranks * sizeof(struct nc_fifo);
}

struct nc_fifo *nc_fifo(const struct ncclComm *comm, int lane, int from, int to)
{
    struct nc_fifo *first =
        (struct nc_fifo *)((unsigned char *)comm->segment + fifos_begin(comm->nranks));
    return first + ((size_t)(lane * comm->nranks + from) * (size_t)comm->nranks + (size_t)to);
}

/* --- bells */

uint32_t nc_bell(const struct ncclComm *comm)
{
    return atomic_load(&comm->segment->ranks[comm->rank].bell);
}

void nc_ring(struct ncclComm *comm, int rank)
{
    struct nc_rank *other = &comm->segment->ranks[rank];
    atomic_fetch_add(&other->bell, 1);
    if (atomic_load(&other->sleepers) > 0)
        syscall(SYS_futex, &other->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void nc_ring_all(struct ncclComm *comm)
{
    for (int rank = 0; rank < comm->nranks; rank++)
        nc_ring(comm, rank);
}

static void sleep_on_bell(struct nc_rank *own, uint32_t bell)
{
    const struct timespec slice = {0, SLICE_NS};
    atomic_fetch_add(&own->sleepers, 1);
    if (atomic_load(&own->bell) == bell)
        syscall(SYS_futex, &own->bell, FUTEX_WAIT, bell, &slice, NULL, 0);
    atomic_fetch_sub(&own->sleepers, 1);
}

/* --- bytes */

static void copy_in(struct nc_fifo *fifo, uint64_t at, const unsigned char *bytes, size_t count)
{
    const size_t begin = at % NC_FIFO_BYTES;
    const size_t first = count < NC_FIFO_BYTES - begin ? count : NC_FIFO_BYTES - begin;
    memcpy(fifo->bytes + begin, bytes, first);
    memcpy(fifo->bytes, bytes + first, count - first);
}

static void copy_out(const struct nc_fifo *fifo, uint64_t at, unsigned char *bytes, size_t count)
{
    const size_t begin = at % NC_FIFO_BYTES;
    const size_t first = count < NC_FIFO_BYTES - begin ? count : NC_FIFO_BYTES - begin;
    memcpy(bytes, fifo->bytes + begin, first);
    memcpy(bytes + first, fifo->bytes, count - first);
}

size_t nc_fifo_put(struct ncclComm *comm, int lane, int to, const void *bytes, size_t count)
{
    struct nc_fifo *fifo = nc_fifo(comm, lane, comm->rank, to);
    const uint64_t written = atomic_load(&fifo->written);
    const size_t room = NC_FIFO_BYTES - (size_t)(written - atomic_load(&fifo->read));
    if (count > room)
        count = room;
    if (count == 0)
        return 0;
    copy_in(fifo, written, bytes, count);
    atomic_store(&fifo->written, written + count);
    nc_ring(comm, to);
    return count;
}

size_t nc_fifo_get(struct ncclComm *comm, int lane, int from, void *bytes, size_t count)
{
    struct nc_fifo *fifo = nc_fifo(comm, lane, from, comm->rank);
    const uint64_t read = atomic_load(&fifo->read);
    const size_t there = (size_t)(atomic_load(&fifo->written) - read);
    if (count > there)
        count = there;
    if (count == 0)
        return 0;
    copy_out(fifo, read, bytes, count);
    atomic_store(&fifo->read, read + count);
    nc_ring(comm, from);
    return count;
}

bool nc_fifo_is_empty(const struct ncclComm *comm, int lane, int to)
{
    const struct nc_fifo *fifo = nc_fifo(comm, lane, comm->rank, to);
    return atomic_load(&fifo->written) == atomic_load(&fifo->read);
}

/* --- errors */

static void set_async_error(struct ncclComm *comm, ncclResult_t error)
{
    int none = ncclSuccess;
    atomic_compare_exchange_strong(&comm->async_error, &none, error);
}

void nc_comm_fail(struct ncclComm *comm, ncclResult_t error)
{
    uint32_t ready = NC_READY;
    set_async_error(comm, error);
    if (comm->segment == NULL)
        return;
    atomic_compare_exchange_strong(&comm->segment->ranks[comm->rank].state, &ready, NC_GONE);
    nc_ring_all(comm);
}

void nc_comm_fail_all(struct ncclComm *comm, ncclResult_t error)
{
    int none = ncclSuccess;
    atomic_compare_exchange_strong(&comm->segment->error, &none, error);
    nc_comm_fail(comm, error);
}

void nc_comm_listen(struct ncclComm *comm)
{
    const int error = comm->segment == NULL ? ncclSuccess : atomic_load(&comm->segment->error);
    if (error != ncclSuccess)
        nc_comm_fail(comm, (ncclResult_t)error);
}

/* --- waiting */

/* Linux before 5.3 and valgrind before 3.22 have no pidfds, but a folder for each process, which
 * stays that of the same process. */
static atomic_bool has_no_pidfds;

int nc_watch(int process)
{
    char folder[40];
    const int file = (int)syscall(SYS_pidfd_open, process, 0);
    if (file >= 0 || errno != ENOSYS)
        return file;
    atomic_store(&has_no_pidfds, true);
    snprintf(folder, sizeof(folder), "/proc/%d", process);
    return open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* By its folder: that is empty, or the process only waits for its parent to ask. */
static bool is_stopped(int folder)
{
    char text[256];
    const int file = openat(folder, "stat", O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return errno == ENOENT || errno == ESRCH; /* else nobody can tell */
    const ssize_t got = read(file, text, sizeof(text) - 1);
    close(file);
    text[got < 0 ? 0 : got] = '\0';
    const char *name_end = strrchr(text, ')');
    return name_end == NULL || strchr("ZXx", name_end[2]) != NULL;
}

bool nc_has_ended(int watch)
{
    struct pollfd file = {.fd = watch, .events = POLLIN};
    return atomic_load(&has_no_pidfds) ? is_stopped(watch) : poll(&file, 1, 0) > 0;
}

/* Ranks whose process has ended without a word. */
void nc_find_dead(struct ncclComm *comm)
{
    for (int rank = 0; comm->peers != NULL && rank < comm->nranks; rank++) {
        uint32_t ready = NC_READY;
        if (comm->peers[rank] < 0 || atomic_load(&comm->segment->ranks[rank].state) != NC_READY ||
            !nc_has_ended(comm->peers[rank]))
            continue;
        if (atomic_compare_exchange_strong(&comm->segment->ranks[rank].state, &ready, NC_GONE)) {
            nc_say("%s rank %d: the process %d of rank %d has ended", comm->name, comm->rank,
                   atomic_load(&comm->segment->ranks[rank].pid), rank);
            nc_ring_all(comm);
        }
    }
}

/* A rank that will not do its part of this; -1: none. */
static int find_missing(const struct nc_wait *wait)
{
    const struct ncclComm *comm = wait->comm;
    for (int rank = 0; rank < comm->nranks; rank++) {
        const struct nc_rank *other = &comm->segment->ranks[rank];
        const uint32_t state = atomic_load(&other->state);
        if (rank == comm->rank || state == NC_READY || state == NC_ABSENT)
            continue;
        if (wait->is_collective ? atomic_load(&other->ended) <= wait->seq
                                : wait->peers == NULL || wait->peers[rank])
            return rank;
    }
    return -1;
}

void nc_wait_progress(struct nc_wait *wait)
{
    wait->deadline_ns = nc_now_ns() + (uint64_t)nc_settings()->timeout_ms * 1000000u;
}

static ncclResult_t give_up(struct nc_wait *wait)
{
    struct ncclComm *comm = wait->comm;
    nc_say("%s rank %d: %s did not get on for %u ms", comm->name, comm->rank, wait->what,
           nc_settings()->timeout_ms);
    nc_report_all();
    nc_comm_fail_all(comm, ncclSystemError);
    return ncclSystemError;
}

static ncclResult_t look_around(struct nc_wait *wait, uint32_t bell)
{
    struct ncclComm *comm = wait->comm;
    const int stop = atomic_load(&comm->stop);
    if (!wait->ignores_errors && stop != NC_RUN)
        return ncclInternalError;
    const int error = atomic_load(&comm->segment->error);
    if (!wait->ignores_errors && error != ncclSuccess) {
        nc_comm_fail(comm, (ncclResult_t)error);
        return (ncclResult_t)error;
    }
    const int missing = find_missing(wait);
    /* It may have done its part just before it went: then it has rung. */
    if (missing >= 0 && nc_bell(comm) != bell)
        return ncclSuccess;
    if (missing >= 0) {
        nc_say("%s rank %d: %s cannot end, rank %d is gone", comm->name, comm->rank, wait->what,
               missing);
        nc_comm_fail(comm, ncclRemoteError);
        return ncclRemoteError;
    }
    if (nc_cuda.is_over()) {
        nc_comm_fail(comm, ncclUnhandledCudaError);
        return ncclUnhandledCudaError;
    }
    return nc_now_ns() > wait->deadline_ns ? give_up(wait) : ncclSuccess;
}

ncclResult_t nc_wait(struct nc_wait *wait, uint32_t bell)
{
    struct nc_rank *own = &wait->comm->segment->ranks[wait->comm->rank];
    if (atomic_load(&own->bell) != bell)
        return ncclSuccess;
    const ncclResult_t result = look_around(wait, bell);
    if (result != ncclSuccess)
        return result;
    sleep_on_bell(own, bell);
    if (atomic_load(&own->bell) == bell)
        nc_find_dead(wait->comm);
    return ncclSuccess;
}

/* --- exchange */

static bool has_exchanged(struct ncclComm *comm, int which, const int *who, int count, uint64_t seq)
{
    for (int i = 0; i < count; i++) {
        if (atomic_load(&comm->segment->ranks[who[i]].exchanged[which]) < seq)
            return false;
    }
    return true;
}

/* The waiting side of an exchange looks only at those who take part. */
static int find_lost(struct ncclComm *comm, int which, const int *who, int count, uint64_t seq)
{
    for (int i = 0; i < count; i++) {
        const struct nc_rank *other = &comm->segment->ranks[who[i]];
        const uint32_t state = atomic_load(&other->state);
        if (atomic_load(&other->exchanged[which]) < seq && state == NC_LEFT)
            return who[i];
    }
    return -1;
}

static bool is_dead(const struct ncclComm *comm, int rank)
{
    const struct nc_rank *other = &comm->segment->ranks[rank];
    /* It may have ended before there was something to watch. */
    if (comm->peers[rank] < 0)
        return atomic_load(&other->pid) != getpid() && atomic_load(&other->state) == NC_GONE;
    return nc_has_ended(comm->peers[rank]);
}

static ncclResult_t wait_for_exchange(struct nc_wait *wait, int which, const int *who, int count,
                                      uint64_t seq)
{
    struct ncclComm *comm = wait->comm;
    for (;;) {
        const uint32_t bell = nc_bell(comm);
        if (has_exchanged(comm, which, who, count, seq))
            return ncclSuccess;
        int lost = find_lost(comm, which, who, count, seq);
        for (int i = 0; i < count && lost < 0; i++) {
            if (is_dead(comm, who[i]) && !has_exchanged(comm, which, &who[i], 1, seq))
                lost = who[i];
        }
        if (lost >= 0) {
            nc_say("%s rank %d: %s cannot end, rank %d is gone", comm->name, comm->rank, wait->what,
                   lost);
            return ncclRemoteError;
        }
        if (atomic_load(&comm->stop) == NC_ABORTED && !wait->ignores_errors)
            return ncclInternalError;
        if (nc_now_ns() > wait->deadline_ns)
            return give_up(wait);
        sleep_on_bell(&comm->segment->ranks[comm->rank], bell);
    }
}

ncclResult_t nc_exchange(struct ncclComm *comm, int which, const int *who, int count,
                         const void *mine, size_t bytes, void *all_out, bool ignores_errors)
{
    if (nc_settings()->mirror) {
        for (int i = 0; i < count; i++)
            memcpy((unsigned char *)all_out + (size_t)i * bytes, mine, bytes);
        return ncclSuccess;
    }
    struct nc_rank *own = &comm->segment->ranks[comm->rank];
    const uint64_t seq = atomic_load(&own->exchanged[which]) + 1;
    struct nc_wait wait = {.comm = comm,
                           .ignores_errors = ignores_errors,
                           .what = "meeting the other ranks"};
    /* Nobody is more than one exchange ahead of another: two places are enough. */
    memcpy(own->exchange[which][seq % 2], mine, bytes);
    atomic_store(&own->exchanged[which], seq);
    for (int i = 0; i < count; i++)
        nc_ring(comm, who[i]);
    nc_wait_progress(&wait);
    NC_TRY(wait_for_exchange(&wait, which, who, count, seq));
    for (int i = 0; i < count; i++)
        memcpy((unsigned char *)all_out + (size_t)i * bytes,
               comm->segment->ranks[who[i]].exchange[which][seq % 2], bytes);
    return ncclSuccess;
}

/* --- reports */

void nc_comm_list(struct ncclComm *comm)
{
    pthread_mutex_lock(&list_lock);
    comm->next = all_comms;
    all_comms = comm;
    pthread_mutex_unlock(&list_lock);
}

void nc_comm_unlist(struct ncclComm *comm)
{
    pthread_mutex_lock(&list_lock);
    struct ncclComm **link = &all_comms;
    while (*link != NULL && *link != comm)
        link = &(*link)->next;
    if (*link != NULL)
        *link = comm->next;
    pthread_mutex_unlock(&list_lock);
}

static void report_rank(const struct ncclComm *comm, int rank)
{
    static const char *const states[] = {"not there", "", "left", "gone"};
    const struct nc_rank *other = &comm->segment->ranks[rank];
    const int kind = atomic_load(&other->now_kind);
    const int peer = atomic_load(&other->now_peer);
    const uint32_t state = atomic_load(&other->state);
    const unsigned long long ended = atomic_load(&other->ended);
    if (kind == 0)
        nc_say("  %s rank %d (process %d): no operation, %llu collectives done %s", comm->name,
               rank, atomic_load(&other->pid), ended, states[state]);
    else
        nc_say(
            "  %s rank %d (process %d): in %s of %llu bytes, waits for rank %d, %llu collectives "
            "done %s",
            comm->name, rank, atomic_load(&other->pid), nc_kind_names[kind - 1],
            (unsigned long long)atomic_load(&other->now_bytes), peer, ended, states[state]);
}

void nc_report_all(void)
{
    pthread_mutex_lock(&list_lock);
    for (const struct ncclComm *comm = all_comms; comm != NULL; comm = comm->next) {
        for (int rank = 0; rank < comm->nranks; rank++)
            report_rank(comm, rank);
    }
    pthread_mutex_unlock(&list_lock);
}
