/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of core dumps of the whole process: kept, and given back. Nothing is ever dumped. */
#include "tests/simcuda/driver/sim.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_BYTES = 1024 };
static struct {
    bool on_exception, trigger_host, lightweight, user_trigger;
    char file[TEXT_BYTES], pipe[TEXT_BYTES];
    int flags;
    bool is_started;
} settings; /* guarded by sim_lock */

static void start_locked(void)
{
    char host[256] = "";
    if (settings.is_started)
        return;
    settings.is_started = true;
    settings.trigger_host = true;
    gethostname(host, sizeof(host) - 1);
    snprintf(settings.file, sizeof(settings.file), "core.cuda.%s.%d", host, (int)getpid());
    snprintf(settings.pipe, sizeof(settings.pipe), "corepipe.cuda.%s.%d", host, (int)getpid());
}

static void *find_locked(CUcoredumpSettings attribute, size_t *bytes_out)
{
    start_locked();
    *bytes_out = sizeof(bool);
    switch ((int)attribute) {
    case CU_COREDUMP_ENABLE_ON_EXCEPTION:
        return &settings.on_exception;
    case CU_COREDUMP_TRIGGER_HOST:
        return &settings.trigger_host;
    case CU_COREDUMP_LIGHTWEIGHT:
        return &settings.lightweight;
    case CU_COREDUMP_ENABLE_USER_TRIGGER:
        return &settings.user_trigger;
    case CU_COREDUMP_FILE:
        *bytes_out = TEXT_BYTES;
        return settings.file;
    case CU_COREDUMP_PIPE:
        *bytes_out = TEXT_BYTES;
        return settings.pipe;
    case CU_COREDUMP_GENERATION_FLAGS:
        *bytes_out = sizeof(int);
        return &settings.flags;
    default:
        return NULL;
    }
}

/* Without a value both functions say how many bytes one has. */
static CUresult exchange(CUcoredumpSettings attribute, void *value, size_t *size, bool is_set)
{
    size_t bytes;
    if (size == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    void *place = find_locked(attribute, &bytes);
    CUresult result = CUDA_SUCCESS;
    if (place == NULL || (value != NULL && *size > bytes && is_set))
        result = CUDA_ERROR_INVALID_VALUE;
    else if (value == NULL)
        *size = bytes;
    else if (is_set && attribute == CU_COREDUMP_PIPE && settings.user_trigger)
        result = CUDA_ERROR_NOT_PERMITTED;
    else if (is_set && bytes == TEXT_BYTES)
        snprintf(place, TEXT_BYTES, "%.*s", (int)*size, (const char *)value);
    else if (is_set)
        memcpy(place, value, *size);
    else
        memcpy(value, place, *size < bytes ? *size : bytes);
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
