/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/collective/communicator.h"

#include <pthread.h>
#include <stdint.h>

#include "runtime/fill/prefetch.h"
#include "runtime/shard/active_plan.h"

/* A communicator for which there is no room is asked for its rank each time. */
enum { MAX_COMMUNICATORS = 1024 };

static struct {
    pthread_mutex_t lock; /* guards the table; held across nothing */
    struct {
        const void *handle;
        struct ms_communicator is;
    } entries[MAX_COMMUNICATORS];
    int count;
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int find_locked(const void *handle)
{
    int at = 0;
    while (at < table.count && table.entries[at].handle != handle)
        at++;
    return at;
}

static void note_and_tell(const void *handle, const struct ms_communicator *communicator,
                          bool (*tell)(uint32_t ranks, uint32_t rank))
{
    const bool is_first = !ms_shard_is_active();
    ms_communicator_add(handle, communicator);
    if (communicator->ranks > 0 && communicator->rank >= 0 &&
        tell((uint32_t)communicator->ranks, (uint32_t)communicator->rank))
        ms_prefetch_begin(is_first);
}

void ms_communicator_made(const void *handle, const struct ms_communicator *communicator)
{
    note_and_tell(handle, communicator, ms_shard_set_rank);
}

void ms_communicator_split_off(const void *handle, const struct ms_communicator *communicator)
{
    note_and_tell(handle, communicator, ms_shard_add_group);
}

void ms_communicator_add(const void *handle, const struct ms_communicator *communicator)
{
    pthread_mutex_lock(&table.lock);
    const int at = find_locked(handle);
    if (at < MAX_COMMUNICATORS) {
        table.entries[at].handle = handle;
        table.entries[at].is = *communicator;
        table.count += at == table.count;
    }
    pthread_mutex_unlock(&table.lock);
}

bool ms_communicator_find(const void *handle, struct ms_communicator *communicator_out)
{
    pthread_mutex_lock(&table.lock);
    const int at = find_locked(handle);
    const bool found = at < table.count;
    if (found)
        *communicator_out = table.entries[at].is;
    pthread_mutex_unlock(&table.lock);
    return found;
}

void ms_communicator_forget(const void *handle)
{
    pthread_mutex_lock(&table.lock);
    const int at = find_locked(handle);
    if (at < table.count)
        table.entries[at] = table.entries[--table.count];
    pthread_mutex_unlock(&table.lock);
}
