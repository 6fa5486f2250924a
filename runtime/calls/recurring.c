/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/recurring.h"

#include "runtime/base/lock.h"
#include "runtime/base/log.h"

/* LEAST_FREES frees in a row, and TIMES the number of allocations at once, make a size recurring.
 * The shim first defers one again after FIRST_TURN, then each time after twice as many. */
enum { LEAST_FREES = 16, TIMES = 4, FIRST_TURN = 16, LAST_TURN = 16 << 10 };

struct ms_recurring ms_recurring;

static struct ms_lock recurring_lock = MS_LOCK_INIT(recurring);

/* The history of a size, at the index of its place. Guarded by the lock. */
static struct history {
    uint32_t live, most; /* deferred now; at most at once since a free last saved memory */
    uint32_t frees;      /* since a free last saved memory */
    int32_t limit;       /* how many the driver may serve at once; 0: the size does not recur */
} histories[MS_RECURRING_SIZES];

static struct ms_recurring_size *size_of(const struct history *history)
{
    return &ms_recurring.sizes[history - histories];
}

MS_HOLDS(recurring_lock) static size_t granted_bytes(void)
{
    size_t bytes = 0;
    for (unsigned i = 0; i < MS_RECURRING_SIZES; i++)
        bytes += (size_t)histories[i].limit * atomic_load(&ms_recurring.sizes[i].bytes);
    return bytes;
}

MS_HOLDS(recurring_lock) static void set_limit(struct history *history, int32_t limit)
{
    struct ms_recurring_size *one = size_of(history);
    atomic_fetch_add(&one->room, limit - history->limit);
    history->limit = limit;
}

/* The history of a size. With may_begin, takes the place of a size that does not recur and has no
 * live allocation. NULL: another size has the place. */
MS_HOLDS(recurring_lock) static struct history *history_of(size_t bytes, bool may_begin)
{
    const unsigned at = ms_recurring_hash(bytes, MS_RECURRING_SIZE_BITS);
    struct ms_recurring_size *one = &ms_recurring.sizes[at];
    struct history *history = &histories[at];
    if (atomic_load(&one->bytes) == bytes)
        return history;
    if (!may_begin || history->live > 0 || history->limit > 0 || atomic_load(&one->room) != 0)
        return NULL;
    *history = (struct history){0};
    atomic_store(&one->bytes, bytes);
    return history;
}

bool ms_recurring_expects(size_t bytes)
{
    ms_lock_take(&recurring_lock);
    const struct history *history = history_of(bytes, false);
    const bool is_expected = history != NULL &&
                             (int64_t)history->live < atomic_load(&size_of(history)->room) &&
                             atomic_load(&size_of(history)->turn) > 0;
    ms_lock_drop(&recurring_lock);
    return is_expected;
}

MS_HOLDS(recurring_lock) static void add_live(struct history *history)
{
    struct ms_recurring_size *one = size_of(history);
    if (++history->live > history->most)
        history->most = history->live;
    if (atomic_load(&one->turn) <= 0)
        atomic_store(&one->turn, atomic_load(&one->turns));
}

void ms_recurring_begin(size_t bytes)
{
    if (bytes > MS_RECURRING_BYTES)
        return;
    ms_lock_take(&recurring_lock);
    struct history *history = history_of(bytes, true);
    if (history != NULL)
        add_live(history);
    ms_lock_drop(&recurring_lock);
}

MS_HOLDS(recurring_lock) static void grant(struct history *history, size_t bytes)
{
    const size_t room = (MS_RECURRING_BYTES - granted_bytes()) / bytes;
    const uint32_t places = MS_RECURRING_PLACES / 2;
    const size_t wanted = history->most < places ? history->most : places;
    atomic_store(&size_of(history)->turn, FIRST_TURN);
    atomic_store(&size_of(history)->turns, FIRST_TURN);
    set_limit(history, (int32_t)(wanted < room ? wanted : room));
    if (history->limit > 0)
        ms_log(MS_DEBUG, "%d allocations of %zu bytes at a time are left to the driver",
               history->limit, bytes);
}

/* A recurring size had its turn to be deferred, and saved nothing: makes the next turn longer. */
static void add_turn(struct ms_recurring_size *one)
{
    const int32_t turns = atomic_load(&one->turns);
    const int32_t longer = turns < LAST_TURN ? 2 * turns : turns;
    atomic_store(&one->turns, longer);
    atomic_store(&one->turn, longer);
}

MS_HOLDS(recurring_lock) static void add_free(struct history *history, size_t bytes)
{
    history->frees++;
    if (history->limit > 0)
        add_turn(size_of(history));
    else if (history->frees >= LEAST_FREES && history->frees >= TIMES * history->most)
        grant(history, bytes);
}

void ms_recurring_end(size_t bytes, bool has_saved)
{
    if (bytes > MS_RECURRING_BYTES)
        return;
    ms_lock_take(&recurring_lock);
    struct history *history = history_of(bytes, false);
    if (history != NULL) {
        history->live -= history->live > 0;
        if (has_saved) {
            set_limit(history, 0);
            history->frees = 0;
            history->most = history->live;
        } else {
            add_free(history, bytes);
        }
    }
    ms_lock_drop(&recurring_lock);
}

/* Forgets all contexts' addresses: the driver frees the others as allocations unknown to the
 * shim. */
void ms_recurring_forget(void)
{
    for (unsigned i = 0; i < MS_RECURRING_PLACES; i++) {
        const CUdeviceptr address = atomic_load(&ms_recurring.places[i].address);
        if (address > MS_RECURRING_TAKING)
            ms_recurring_free(address);
    }
}
