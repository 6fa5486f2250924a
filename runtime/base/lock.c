/* SPDX-License-Identifier: Apache-2.0 */
/* The check of ranks. Each thread records what it holds in its own memory, so nothing waits or
 * allocates here. */
#include "runtime/base/lock.h"

#include "runtime/base/log.h"

static const char *const names[] = {
#define MS_LOCK(name, file, guards, held) #name,
#include "runtime/base/locks.def"
#undef MS_LOCK
};

enum { MOST = 8 };
static _Thread_local struct {
    const struct ms_lock *locks[MOST];
    unsigned lock_count, claim_count;
    uint64_t claimed_end; /* the highest end of all claims since the thread last held none */
} held __attribute__((tls_model("initial-exec")));

static _Noreturn void fail(enum ms_lock_rank wanted, enum ms_lock_rank lowest)
{
    ms_fatal("lock order: %s (rank %d) is wanted while %s (rank %d) is held; docs/locking.md has "
             "the order",
             names[wanted], (int)wanted, names[lowest], (int)lowest);
}

static void check_rank(enum ms_lock_rank wanted)
{
    for (unsigned i = 0; i < held.lock_count; i++) {
        if (held.locks[i]->rank >= wanted)
            fail(wanted, held.locks[i]->rank);
    }
}

void ms_lock_check(const struct ms_lock *lock)
{
    check_rank(lock->rank);
    if (held.claim_count > 0 && lock->rank < MS_LOCK_claim)
        fail(lock->rank, MS_LOCK_claim);
}

void ms_lock_add(const struct ms_lock *lock)
{
    if (held.lock_count == MOST)
        ms_fatal("lock order: %s is lock number %d of this thread", names[lock->rank], MOST + 1);
    held.locks[held.lock_count++] = lock;
}

void ms_lock_remove(const struct ms_lock *lock)
{
    unsigned at = held.lock_count;
    while (at > 0 && held.locks[at - 1] != lock)
        at--;
    if (at == 0)
        ms_fatal("lock order: %s is released and not held", names[lock->rank]);
    for (held.lock_count--; at <= held.lock_count; at++)
        held.locks[at - 1] = held.locks[at];
}

void ms_claim_check(uint64_t address)
{
    check_rank(MS_LOCK_claim);
    if (held.claim_count > 0 && address < held.claimed_end)
        ms_fatal("lock order: a claim at 0x%llx is wanted while one up to 0x%llx is held; "
                 "docs/locking.md has the "
                 "order",
                 (unsigned long long)address, (unsigned long long)held.claimed_end);
}

void ms_claim_add(uint64_t end)
{
    if (held.claim_count++ == 0 || end > held.claimed_end)
        held.claimed_end = end;
}

void ms_claim_remove(void)
{
    if (held.claim_count-- == 0)
        ms_fatal("lock order: a claim is given up that this thread does not have");
}
