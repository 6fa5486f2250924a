/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An allocation: its immutable facts, and the life of it: making, covering and destroying it.
 *
 * The record of an allocation is closed: memory/ alone sees the inside (memory_internal.h). A
 * claim (space.h) guards the record and the notes. So outside of memory/ a pointer to an allocation
 * that is not const is a claim, or an allocation that is in no index; a function that changes an
 * allocation takes such a pointer.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/number.h"
#include "runtime/base/range.h"
#include "runtime/driver/driver.h"
#include "runtime/driver/pool.h"
#include "runtime/memory/backing.h"
#include "runtime/memory/lineage.h"

/* Notes of the rooms about an allocation; the claim guards them. */
struct ms_notes {
    struct ms_backing *shadow; /* owned, of ms_heap_alloc (fill/shadow.h); NULL: none */
    uint32_t touches;  /* how often queued work was about to begin to use the memory, or the blocks
                         changed: a thread that waited for the device before must wait again */
    bool has_tokens;   /* the program asked for P2P_TOKENS, which sets SYNC_MEMOPS */
    bool is_exported;  /* another process, or NCCL, uses the memory, which stays where it is */
    bool was_resident; /* before a plan came, or a suspension; not once resident again
                          (restore.h) */
    bool keeps_dead; /* a captured graph or an exported handle may use the memory of blocks that the
                        program has returned */
};

/* The facts: immutable after ms_space_add, but for `notes` and `freed`. Only memory/ makes an
 * allocation, because the inside lies behind the facts. */
struct ms_allocation {
    CUdeviceptr address;
    size_t bytes; /* as the program asked */
    /* NULL: the context has ended, but a pool's memory stays. The next thread that claims the
     * allocation puts its current context here. */
    _Atomic(CUcontext) context;
    uint64_t id;          /* unique in the process, never reused */
    struct ms_pool *pool; /* the pool that these bytes count in; NULL: cuMemAlloc */
    CUdevice device;
    /* The flags fill a hole: 8 bytes more, and the heap takes its next size. */
    bool is_programs;  /* the program has reserved the addresses (backing.h) */
    bool is_opened;    /* memory of another process (calls/ipc.h), all of it resident for good */
    bool is_recurring; /* takes the place of freed memory: no sign of a program that loads */
    size_t granule, granule_bytes; /* granule_bytes: whole granules, so it may exceed bytes */

    struct ms_notes notes;

    /* For the owner of an allocation that is in no index (delayed_free.h). */
    struct {
        struct ms_allocation *next;
        CUevent event;     /* follows the program's uses; or NULL */
        CUcontext context; /* whose work may use the memory; NULL: the allocation's own */
    } freed;
};

/* All granules that have a byte of [begin, end), cut to the allocation. */
static inline struct ms_range ms_allocation_granules(const struct ms_allocation *allocation,
                                                     size_t begin, size_t end)
{
    return (struct ms_range){ms_round_down(begin, allocation->granule),
                             ms_least(ms_round_up(end, allocation->granule), allocation->bytes)};
}

/* A range of a claimed allocation: a block, which may have been returned meanwhile, or two blocks
 * and the gap between them. */
struct ms_part {
    struct ms_allocation *allocation;
    size_t begin, end;
};

/* The record of a claimed allocation. Its content changes by the functions of bytes.h alone. */
const struct ms_lineage *ms_allocation_lineage(const struct ms_allocation *allocation);

/* The memory of a claimed allocation: to look at, and to change by the functions of backing.h. */
const struct ms_backing *ms_allocation_backing(const struct ms_allocation *allocation);
struct ms_backing *ms_allocation_memory(struct ms_allocation *allocation);

/* Memory that the shim promises to the program, or opens for it. */
struct ms_promise {
    size_t bytes;
    CUcontext context;
    CUdevice device;
    CUdeviceptr address;  /* the program has reserved these addresses, and mapped nothing there; 0:
                            the shim reserves */
    struct ms_pool *pool; /* NULL: none */
    bool is_recurring;    /* takes the place of memory freed in the pool or by cuMemFree */
    const struct ms_pieces *pieces; /* memory of another process, all of which the pieces are. They
                                       stay the caller's. NULL: there is no memory yet */
};

/* Makes an allocation, publishes it, and adds it to the index, unclaimed. All bytes are undefined,
 * resident in memory of another process, or unmapped in addresses that the program has reserved. */
CUresult ms_allocation_create(const struct ms_promise *promise,
                              const struct ms_allocation **allocation_out);

/* Frees an allocation that is in no index, with its memory. No queued work may use it. */
void ms_allocation_destroy(struct ms_allocation *allocation);

/* Waits for sinks, then gives memory to all granules of a claimed allocation that have a byte of
 * [begin, end). Logs when memory runs out; the granules that got memory before keep it. */
CUresult ms_allocation_cover(struct ms_allocation *allocation, size_t begin, size_t end);
