/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/collective/communicator.h"

#include <stdint.h>

#include "runtime/base/lock.h"
#include "runtime/fill/prefetch.h"
#include "runtime/shard/shard.h"

/* A communicator that does not fit into the table is asked for its rank each time. */
enum { MAX_COMMUNICATORS = 1024 };

static struct {
    struct ms_lock lock; /* guards the table; nothing is called while it is held */
    struct {
        const void *handle;
        struct ms_communicator is;
    } entries[MAX_COMMUNICATORS];
    int count;
} table = {.lock = MS_LOCK_INIT(communicators)};

MS_HOLDS(table.lock) static int find_locked(const void *handle)
{
    int at = 0;
    while (at < table.count && table.entries[at].handle != handle)
        at++;
    return at;
}

/* Tells the plan, which may wait for its rank. */
static void tell_plan(const struct ms_communicator *communicator)
{
    const bool is_first = !ms_shard_is_active();
    if (communicator->ranks > 0 && communicator->rank >= 0 &&
        ms_shard_add_communicator((uint32_t)communicator->ranks, (uint32_t)communicator->rank,
                                  communicator->origin == MS_SPLIT_OFF))
        ms_prefetch_prepare(is_first);
}

static void add(const void *handle, const struct ms_communicator *communicator)
{
    ms_lock_take(&table.lock);
    const int at = find_locked(handle);
    if (at < MAX_COMMUNICATORS) {
        table.entries[at].handle = handle;
        table.entries[at].is = *communicator;
        table.count += at == table.count;
    }
    ms_lock_drop(&table.lock);
}

static void forget(const void *handle)
{
    ms_lock_take(&table.lock);
    const int at = find_locked(handle);
    if (at < table.count)
        table.entries[at] = table.entries[--table.count];
    ms_lock_drop(&table.lock);
}

void ms_communicator_set(const void *handle, const struct ms_communicator *communicator)
{
    if (communicator == NULL) {
        forget(handle);
        return;
    }
    add(handle, communicator);
    if (communicator->origin != MS_MET)
        tell_plan(communicator);
}

bool ms_communicator_find(const void *handle, struct ms_communicator *communicator_out)
{
    ms_lock_take(&table.lock);
    const int at = find_locked(handle);
    const bool found = at < table.count;
    if (found)
        *communicator_out = table.entries[at].is;
    ms_lock_drop(&table.lock);
    return found;
}
