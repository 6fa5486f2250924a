/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that stands still within a driver call, for tests of what others do meanwhile
 * (hook.h). */
#include "tools/simcuda/driver/hook.h"

#include "tools/simcuda/driver/state.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

enum { NO_ENTRY = -1 };

static atomic_int closed_entry = NO_ENTRY;
static atomic_int calls_left; /* until the one that stops */
static atomic_bool is_reached;

static void sleep_ms(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* Sleeping is a point of cancellation, as a driver's waiting may be. No lock is held. */
void sim_gate_pass(enum sim_entry entry)
{
    if (atomic_load(&closed_entry) != (int)entry || atomic_fetch_sub(&calls_left, 1) != 1)
        return;
    atomic_store(&is_reached, true);
    while (atomic_load(&closed_entry) == (int)entry)
        sleep_ms();
}

EXPORT bool simcuda_gate_close(const char *function, unsigned nth)
{
    for (int i = 0; i < SIM_ENTRY_COUNT; i++) {
        if (strcmp(sim_entry_names[i], function) != 0)
            continue;
        atomic_store(&is_reached, false);
        atomic_store(&calls_left, (int)nth);
        atomic_store(&closed_entry, i);
        return true;
    }
    return false;
}

EXPORT bool simcuda_gate_wait(unsigned ms)
{
    for (unsigned i = 0; i < ms && !atomic_load(&is_reached); i++)
        sleep_ms();
    return atomic_load(&is_reached);
}

EXPORT void simcuda_gate_open(void)
{
    atomic_store(&closed_entry, NO_ENTRY);
}
