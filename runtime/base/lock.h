/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mutex with a rank. locks.def lists all locks, and docs/locking.md is made from that list.
 *
 * A thread takes a lock only while all locks that it holds have lower ranks. A claim on an
 * allocation (space.h) ranks as a lock: a thread that waits for a claim holds no lock of a higher
 * rank. A thread may hold several claims; it waits for claims in the order of addresses.
 *
 * With MS_DEBUG_CHECKS, a thread that breaks this order ends the process with a line that names
 * both locks, even if no other thread is in the way. Without it a lock is only a mutex. clang
 * checks at compile time that each lock is dropped on every path, and that MS_HOLDS and
 * MS_GUARDED_BY are obeyed.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __clang__
#define MS_LOCK_ATTRIBUTE(...) __attribute__((__VA_ARGS__))
#else
#define MS_LOCK_ATTRIBUTE(...)
#endif
/* MS_HOLDS, before a function: the caller holds the lock. MS_GUARDED_BY, behind a variable: the
 * user holds the lock. */
#define MS_HOLDS(lock) MS_LOCK_ATTRIBUTE(requires_capability(lock))
#define MS_GUARDED_BY(lock) MS_LOCK_ATTRIBUTE(guarded_by(lock))

enum ms_lock_rank {
#define MS_LOCK(name, file, guards, held) MS_LOCK_##name,
#include "runtime/base/locks.def"
#undef MS_LOCK
};

struct MS_LOCK_ATTRIBUTE(capability("lock")) ms_lock {
    pthread_mutex_t mutex; /* also passed to pthread_cond_wait, which releases it while waiting */
    enum ms_lock_rank rank;
};

#define MS_LOCK_INIT(name)                                          \
    {                                                               \
        .mutex = PTHREAD_MUTEX_INITIALIZER, .rank = MS_LOCK_##name, \
    }

#if MS_DEBUG_CHECKS
void ms_lock_check(const struct ms_lock *lock);
void ms_lock_add(const struct ms_lock *lock);
void ms_lock_remove(const struct ms_lock *lock);

/* Call before the thread waits for a claim on an allocation at `address`. */
void ms_claim_check(uint64_t address);

/* The thread has got a claim on an allocation that ends at `end`, or has given up a claim. */
void ms_claim_add(uint64_t end);
void ms_claim_remove(void);
#else
#define ms_lock_check(lock) ((void)(lock))
#define ms_lock_add(lock) ((void)(lock))
#define ms_lock_remove(lock) ((void)(lock))
#define ms_claim_check(address) ((void)(address))
#define ms_claim_add(end) ((void)(end))
#define ms_claim_remove() ((void)0)
#endif

static inline void ms_lock_take(struct ms_lock *lock)
    MS_LOCK_ATTRIBUTE(acquire_capability(*lock), no_thread_safety_analysis);
static inline void ms_lock_take(struct ms_lock *lock)
{
    ms_lock_check(lock);
    pthread_mutex_lock(&lock->mutex);
    ms_lock_add(lock);
}

/* False: another thread has the lock. Never waits, so ranks do not matter. */
static inline bool ms_lock_try(struct ms_lock *lock)
    MS_LOCK_ATTRIBUTE(try_acquire_capability(true, *lock), no_thread_safety_analysis);
static inline bool ms_lock_try(struct ms_lock *lock)
{
    const bool is_taken = pthread_mutex_trylock(&lock->mutex) == 0;
    if (is_taken)
        ms_lock_add(lock);
    return is_taken;
}

static inline void ms_lock_drop(struct ms_lock *lock)
    MS_LOCK_ATTRIBUTE(release_capability(*lock), no_thread_safety_analysis);
static inline void ms_lock_drop(struct ms_lock *lock)
{
    ms_lock_remove(lock);
    pthread_mutex_unlock(&lock->mutex);
}
