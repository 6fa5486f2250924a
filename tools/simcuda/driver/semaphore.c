/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Semaphores of other APIs. Here an eventfd stands for a semaphore with two states (signaled: it
 * can be read), and a memory file that begins with a number of 64 bits for a semaphore that counts
 * (a timeline).
 */
#include "tools/simcuda/driver/state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct CUextSemaphore_st {
    struct sim_region region; /* begin: the handle */
    int file;
    uint64_t *counter; /* of a timeline; else NULL */
    unsigned users;    /* the program, and work that names it */
    bool is_destroyed;
};
static struct sim_table semaphores;

/* One signal, or one wait. */
struct step {
    struct CUextSemaphore_st *semaphore;
    uint64_t value; /* of a timeline */
};
struct semaphore_work {
    struct sim_work work;
    unsigned count;
    struct step steps[];
};

/* --- importing */

static bool is_timeline(const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC *desc)
{
    return desc->type == CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD;
}

/* The file is the driver's from a success on. It is read and written without waiting, so that a
 * wait can be ended. */
static struct CUextSemaphore_st *take(int file, bool has_counter)
{
    uint64_t *counter = NULL;
    if (has_counter) {
        counter = mmap(NULL, sizeof(*counter), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (counter == MAP_FAILED)
            return NULL;
    } else {
        const int flags = fcntl(file, F_GETFL);
        if (flags < 0 || fcntl(file, F_SETFL, flags | O_NONBLOCK) != 0)
            return NULL;
    }
    struct CUextSemaphore_st *semaphore = sim_zalloc(sizeof(*semaphore));
    semaphore->region = (struct sim_region){(uint64_t)semaphore, 1};
    semaphore->file = file;
    semaphore->counter = counter;
    semaphore->users = 1;
    return semaphore;
}

static void drop_locked(struct CUextSemaphore_st *semaphore)
{
    if (--semaphore->users > 0)
        return;
    if (semaphore->counter != NULL)
        munmap(semaphore->counter, sizeof(*semaphore->counter));
    close(semaphore->file);
    free(semaphore);
}

CUresult cuImportExternalSemaphore(CUexternalSemaphore *extSem_out,
                                   const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC *semHandleDesc)
{
    SIM_ENTER(cuImportExternalSemaphore);
    struct CUctx_st *context;
    const CUresult result = sim_context_get(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (extSem_out == NULL || semHandleDesc == NULL || semHandleDesc->flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (semHandleDesc->type != CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD &&
        !is_timeline(semHandleDesc))
        return CUDA_ERROR_NOT_SUPPORTED;
    struct CUextSemaphore_st *semaphore =
        take(semHandleDesc->handle.fd, is_timeline(semHandleDesc));
    if (semaphore == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&sim_lock);
    sim_table_add(&semaphores, &semaphore->region);
    pthread_mutex_unlock(&sim_lock);
    *extSem_out = semaphore;
    return CUDA_SUCCESS;
}

static struct CUextSemaphore_st *find_locked(CUexternalSemaphore handle)
{
    const struct sim_region *row = sim_table_find(&semaphores, (uint64_t)handle);
    return row != NULL && row == &handle->region ? handle : NULL;
}

CUresult cuDestroyExternalSemaphore(CUexternalSemaphore extSem)
{
    SIM_ENTER(cuDestroyExternalSemaphore);
    pthread_mutex_lock(&sim_lock);
    struct CUextSemaphore_st *semaphore = find_locked(extSem);
    if (semaphore != NULL) {
        sim_table_remove(&semaphores, &semaphore->region);
        semaphore->is_destroyed = true;
        drop_locked(semaphore);
    }
    pthread_mutex_unlock(&sim_lock);
    return semaphore != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* --- in streams */

/* "Any outstanding signals or waits must have completed before the semaphore is destroyed." */
static bool is_usable(const struct CUextSemaphore_st *semaphore, const char *what)
{
    pthread_mutex_lock(&sim_lock);
    const bool is_destroyed = semaphore->is_destroyed;
    pthread_mutex_unlock(&sim_lock);
    if (is_destroyed)
        sim_complain("%s of an external semaphore that was destroyed", what);
    return !is_destroyed;
}

static void signal_one(const struct step *step)
{
    const uint64_t one = 1;
    if (step->semaphore->counter != NULL)
        __atomic_store_n(step->semaphore->counter, step->value, __ATOMIC_RELEASE);
    else if (write(step->semaphore->file, &one, sizeof(one)) != sizeof(one))
        sim_complain("an external semaphore could not be signaled: %s", strerror(errno));
}

/* A semaphore of two states is not signaled afterwards. */
static bool try_wait(const struct step *step)
{
    uint64_t count;
    if (step->semaphore->counter != NULL)
        return __atomic_load_n(step->semaphore->counter, __ATOMIC_ACQUIRE) >= step->value;
    return read(step->semaphore->file, &count, sizeof(count)) == sizeof(count);
}

static void run_signals(struct sim_work *work)
{
    const struct semaphore_work *job = (struct semaphore_work *)work;
    for (unsigned i = 0; i < job->count; i++) {
        if (is_usable(job->steps[i].semaphore, "a signal"))
            signal_one(&job->steps[i]);
    }
}

static void run_waits(struct sim_work *work)
{
    const struct timespec pause = {0, 20000};
    const struct semaphore_work *job = (struct semaphore_work *)work;
    for (unsigned i = 0; i < job->count; i++) {
        while (is_usable(job->steps[i].semaphore, "a wait") && !try_wait(&job->steps[i])) {
            if (sim_sticky_error() != CUDA_SUCCESS || sim_streams_are_stopping())
                return;
            nanosleep(&pause, NULL);
        }
    }
}

static void destroy(struct sim_work *work)
{
    const struct semaphore_work *job = (struct semaphore_work *)work;
    pthread_mutex_lock(&sim_lock);
    for (unsigned i = 0; i < job->count; i++)
        drop_locked(job->steps[i].semaphore);
    pthread_mutex_unlock(&sim_lock);
    free(work);
}

/* The semaphores are held from here on; NULL: one of them is none. */
static struct semaphore_work *make(const CUexternalSemaphore *handles, unsigned count)
{
    struct semaphore_work *job = sim_zalloc(sizeof(*job) + count * sizeof(job->steps[0]));
    job->work.destroy = destroy;
    job->work.may_wait = true;
    pthread_mutex_lock(&sim_lock);
    for (; job->count < count; job->count++) {
        struct CUextSemaphore_st *semaphore = find_locked(handles[job->count]);
        if (semaphore == NULL)
            break;
        semaphore->users++;
        job->steps[job->count].semaphore = semaphore;
    }
    pthread_mutex_unlock(&sim_lock);
    if (job->count == count)
        return job;
    destroy(&job->work);
    return NULL;
}

static CUresult signal_all(const CUexternalSemaphore *handles,
                           const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *params, unsigned count,
                           CUstream stream, bool per_thread)
{
    if (handles == NULL || params == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct semaphore_work *job = make(handles, count);
    if (job == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    job->work.run = run_signals;
    job->work.name = "cuSignalExternalSemaphoresAsync";
    for (unsigned i = 0; i < count; i++)
        job->steps[i].value = params[i].params.fence.value;
    return sim_stream_submit(stream, per_thread, &job->work);
}

static CUresult wait_for_all(const CUexternalSemaphore *handles,
                             const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *params, unsigned count,
                             CUstream stream, bool per_thread)
{
    if (handles == NULL || params == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct semaphore_work *job = make(handles, count);
    if (job == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    job->work.run = run_waits;
    job->work.name = "cuWaitExternalSemaphoresAsync";
    for (unsigned i = 0; i < count; i++)
        job->steps[i].value = params[i].params.fence.value;
    return sim_stream_submit(stream, per_thread, &job->work);
}

#define CALLS(suffix, is_per_thread)                                                       \
    CUresult cuSignalExternalSemaphoresAsync##suffix(                                      \
        const CUexternalSemaphore *extSemArray,                                            \
        const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *paramsArray, unsigned int numExtSems, \
        CUstream stream)                                                                   \
    {                                                                                      \
        SIM_ENTER(cuSignalExternalSemaphoresAsync##suffix);                                \
        return signal_all(extSemArray, paramsArray, numExtSems, stream, is_per_thread);    \
    }                                                                                      \
    CUresult cuWaitExternalSemaphoresAsync##suffix(                                        \
        const CUexternalSemaphore *extSemArray,                                            \
        const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *paramsArray, unsigned int numExtSems,   \
        CUstream stream)                                                                   \
    {                                                                                      \
        SIM_ENTER(cuWaitExternalSemaphoresAsync##suffix);                                  \
        return wait_for_all(extSemArray, paramsArray, numExtSems, stream, is_per_thread);  \
    }

CALLS(, false)
CALLS(_ptsz, true)
