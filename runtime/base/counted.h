/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reference count for objects with several owners. It is the first member of their struct, so the
 * owner that drops the last reference need not know their type. Usable from any thread.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct ms_counted {
    _Atomic uint32_t references;
    void (*destroy)(struct ms_counted *counted); /* called when the last reference is dropped */
};

/* Starts with one reference. */
static inline void ms_counted_init(struct ms_counted *counted,
                                   void (*destroy)(struct ms_counted *counted))
{
    atomic_init(&counted->references, 1);
    counted->destroy = destroy;
}

static inline void ms_counted_take(struct ms_counted *counted)
{
    atomic_fetch_add_explicit(&counted->references, 1, memory_order_relaxed);
}

/* For a caller that has no reference, but keeps the object's memory from being freed. False: no
 * reference is left. */
static inline bool ms_counted_try_take(struct ms_counted *counted)
{
    uint32_t references = atomic_load(&counted->references);
    while (references != 0) {
        if (atomic_compare_exchange_weak(&counted->references, &references, references + 1))
            return true;
    }
    return false;
}

static inline void ms_counted_drop(struct ms_counted *counted)
{
    if (atomic_fetch_sub(&counted->references, 1) == 1)
        counted->destroy(counted);
}
