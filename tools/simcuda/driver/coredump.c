/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings of core dumps, of the whole process and of a context, which begins with the former: kept
 * and given back. Nothing is ever dumped.
 */
#include "tools/simcuda/driver/state.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_BYTES = 1024 };
struct settings {
    struct settings *next; /* of another context */
    uint64_t context_id;
    bool on_exception, trigger_host, lightweight, user_trigger;
    char file[TEXT_BYTES], pipe[TEXT_BYTES];
    int flags;
    bool is_started;
};
static struct settings of_all, *of_contexts; /* guarded by sim_lock */

static struct settings *of_all_locked(void)
{
    char host[256] = "";
    if (of_all.is_started)
        return &of_all;
    of_all.is_started = true;
    of_all.trigger_host = true;
    gethostname(host, sizeof(host) - 1);
    snprintf(of_all.file, sizeof(of_all.file), "core.cuda.%s.%d", host, (int)getpid());
    snprintf(of_all.pipe, sizeof(of_all.pipe), "corepipe.cuda.%s.%d", host, (int)getpid());
    return &of_all;
}

static struct settings *of_context_locked(uint64_t context_id)
{
    struct settings *own = of_contexts;
    while (own != NULL && own->context_id != context_id)
        own = own->next;
    if (own == NULL) {
        own = sim_zalloc(sizeof(*own));
        *own = *of_all_locked();
        own->context_id = context_id;
        own->next = of_contexts;
        of_contexts = own;
    }
    return own;
}

static void *find_in(struct settings *settings, CUcoredumpSettings attribute, size_t *bytes_out)
{
    *bytes_out = sizeof(bool);
    switch ((int)attribute) {
    case CU_COREDUMP_ENABLE_ON_EXCEPTION:
        return &settings->on_exception;
    case CU_COREDUMP_TRIGGER_HOST:
        return &settings->trigger_host;
    case CU_COREDUMP_LIGHTWEIGHT:
        return &settings->lightweight;
    case CU_COREDUMP_ENABLE_USER_TRIGGER:
        return &settings->user_trigger;
    case CU_COREDUMP_FILE:
        *bytes_out = TEXT_BYTES;
        return settings->file;
    case CU_COREDUMP_PIPE:
        *bytes_out = TEXT_BYTES;
        return settings->pipe;
    case CU_COREDUMP_GENERATION_FLAGS:
        *bytes_out = sizeof(int);
        return &settings->flags;
    default:
        return NULL;
    }
}

/* Without a value both functions say how many bytes one has. */
static CUresult exchange_locked(struct settings *settings, CUcoredumpSettings attribute,
                                void *value, size_t *size, bool is_set)
{
    size_t bytes;
    void *place = find_in(settings, attribute, &bytes);
    CUresult result = CUDA_SUCCESS;
    if (place == NULL || (value != NULL && *size > bytes && is_set))
        result = CUDA_ERROR_INVALID_VALUE;
    else if (value == NULL)
        *size = bytes;
    else if (is_set && attribute == CU_COREDUMP_PIPE && settings->user_trigger)
        result = CUDA_ERROR_NOT_PERMITTED;
    else if (is_set && bytes == TEXT_BYTES)
        snprintf(place, TEXT_BYTES, "%.*s", (int)*size, (const char *)value);
    else if (is_set)
        memcpy(place, value, *size);
    else
        memcpy(value, place, *size < bytes ? *size : bytes);
    return result;
}

static CUresult exchange(CUcoredumpSettings attribute, void *value, size_t *size, bool is_set)
{
    if (size == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    const CUresult result = exchange_locked(of_all_locked(), attribute, value, size, is_set);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

static CUresult exchange_own(CUcoredumpSettings attribute, void *value, size_t *size, bool is_set)
{
    struct CUctx_st *context;
    CUresult result = sim_context_get(&context);
    if (result != CUDA_SUCCESS || size == NULL)
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    result = exchange_locked(of_context_locked(context->id), attribute, value, size, is_set);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuCoredumpGetAttributeGlobal(CUcoredumpSettings attrib, void *value, size_t *size)
{
    SIM_ENTER(cuCoredumpGetAttributeGlobal);
    return exchange(attrib, value, size, false);
}

CUresult cuCoredumpSetAttributeGlobal(CUcoredumpSettings attrib, void *value, size_t *size)
{
    SIM_ENTER(cuCoredumpSetAttributeGlobal);
    return exchange(attrib, value, size, true);
}

CUresult cuCoredumpGetAttribute(CUcoredumpSettings attrib, void *value, size_t *size)
{
    SIM_ENTER(cuCoredumpGetAttribute);
    return exchange_own(attrib, value, size, false);
}

CUresult cuCoredumpSetAttribute(CUcoredumpSettings attrib, void *value, size_t *size)
{
    SIM_ENTER(cuCoredumpSetAttribute);
    return exchange_own(attrib, value, size, true);
}
