/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/simcuda/driver/event_shared.h"

#include "tools/simcuda/driver/order.h"
#include "tools/simcuda/driver/state.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAGE_MAGIC 0x53494d4556454e54ull
#define TICKET_MAGIC 0x53494d4556540001ull
enum { SLOTS = 256, PAGE_BYTES = 4096 };

struct page {
    uint64_t magic;
    _Atomic uint64_t recorded;
    /* By number modulo SLOTS: the newest record that is done. */
    _Atomic uint64_t done[SLOTS];
};
_Static_assert(sizeof(struct page) <= PAGE_BYTES, "a page holds it");

struct sim_shared_event {
    struct page *page;
    int file; /* -1: of another process */
    unsigned references;
};

struct ticket {
    uint64_t magic;
    int32_t process;
    int32_t file;
};
_Static_assert(sizeof(struct ticket) <= sizeof(CUipcEventHandle), "a ticket fits into a handle");

struct shared_work {
    struct sim_work work;
    struct sim_shared_event *shared;
    uint64_t number;
};

static struct sim_shared_event *map(int file)
{
    void *page = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (page == MAP_FAILED)
        return NULL;
    struct sim_shared_event *shared = sim_zalloc(sizeof(*shared));
    shared->page = page;
    shared->file = file;
    shared->references = 1;
    return shared;
}

struct sim_shared_event *sim_shared_event_create(void)
{
    const int file = memfd_create("simcuda-event", MFD_CLOEXEC);
    struct sim_shared_event *shared =
        file >= 0 && ftruncate(file, PAGE_BYTES) == 0 ? map(file) : NULL;
    if (shared != NULL)
        shared->page->magic = PAGE_MAGIC;
    else if (file >= 0)
        close(file);
    return shared;
}

void sim_shared_event_keep_locked(struct sim_shared_event *shared)
{
    shared->references++;
}

void sim_shared_event_drop_locked(struct sim_shared_event *shared)
{
    if (shared == NULL || --shared->references > 0)
        return;
    munmap(shared->page, PAGE_BYTES);
    if (shared->file >= 0)
        close(shared->file);
    free(shared);
}

void sim_shared_event_export(const struct sim_shared_event *shared, CUipcEventHandle *handle_out)
{
    const struct ticket ticket = {TICKET_MAGIC, (int32_t)getpid(), shared->file};
    memset(handle_out, 0, sizeof(*handle_out));
    memcpy(handle_out, &ticket, sizeof(ticket));
}

CUresult sim_shared_event_open(const CUipcEventHandle *handle, struct sim_shared_event **out)
{
    struct ticket ticket;
    char path[64];
    memcpy(&ticket, handle, sizeof(ticket));
    if (ticket.magic != TICKET_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    if (ticket.process == (int32_t)getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", ticket.process, ticket.file);
    const int file = open(path, O_RDWR | O_CLOEXEC);
    struct page page = {0};
    struct sim_shared_event *shared = NULL;
    if (file >= 0 && pread(file, &page, sizeof(page), 0) == sizeof(page) &&
        page.magic == PAGE_MAGIC)
        shared = map(file);
    if (file >= 0)
        close(file);
    if (shared == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    shared->file = -1;
    *out = shared;
    return CUDA_SUCCESS;
}

/* --- records */

uint64_t sim_shared_event_newest(const struct sim_shared_event *shared)
{
    return atomic_load(&shared->page->recorded);
}

bool sim_shared_event_is_done(const struct sim_shared_event *shared, uint64_t number)
{
    return number == 0 || atomic_load(&shared->page->done[number % SLOTS]) >= number;
}

bool sim_shared_event_wait(const struct sim_shared_event *shared, uint64_t number)
{
    const struct timespec pause = {0, 20000};
    while (!sim_shared_event_is_done(shared, number)) {
        if (sim_sticky_error() != CUDA_SUCCESS || sim_streams_are_stopping())
            return false;
        nanosleep(&pause, NULL);
    }
    sim_order_take();
    return true;
}

/* A slot tells of one record only: the one that had it before comes first. */
static void run_record(struct sim_work *work)
{
    const struct shared_work *job = (struct shared_work *)work;
    if (job->number > SLOTS && !sim_shared_event_wait(job->shared, job->number - SLOTS))
        return;
    atomic_store(&job->shared->page->done[job->number % SLOTS], job->number);
}

static void run_wait(struct sim_work *work)
{
    const struct shared_work *job = (struct shared_work *)work;
    sim_shared_event_wait(job->shared, job->number);
}

static void destroy(struct sim_work *work)
{
    pthread_mutex_lock(&sim_lock);
    sim_shared_event_drop_locked(((struct shared_work *)work)->shared);
    pthread_mutex_unlock(&sim_lock);
    free(work);
}

static struct sim_work *make_locked(struct sim_shared_event *shared, uint64_t number,
                                    void (*run)(struct sim_work *), const char *name)
{
    struct shared_work *job = sim_zalloc(sizeof(*job));
    job->work = (struct sim_work){.run = run, .destroy = destroy, .name = name, .may_wait = true};
    job->shared = shared;
    job->number = number;
    sim_shared_event_keep_locked(shared);
    return &job->work;
}

struct sim_work *sim_shared_event_record_locked(struct sim_shared_event *shared)
{
    const uint64_t number = atomic_fetch_add(&shared->page->recorded, 1) + 1;
    return make_locked(shared, number, run_record, "cuEventRecord");
}

struct sim_work *sim_shared_event_wait_work_locked(struct sim_shared_event *shared, uint64_t number)
{
    return make_locked(shared, number, run_wait, "cuStreamWaitEvent");
}
