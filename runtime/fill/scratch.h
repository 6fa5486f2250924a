/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scratch memory: where a recorded launch runs for the sake of a part of what it writes. A few MiB
 * of memory have the sink on either side:
 *
 *     |  sink  |  sink  |  memory  |  sink  |  sink  |  sink  |
 *          | what the launch writes           |
 *                       | part |
 *
 * The part always begins in the memory, so the sink is mapped once, as far as the largest block
 * needs it, and not once a replay. One a device is kept for the next replay.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/driver/driver.h"
#include "runtime/memory/backing.h"

/* A block lies in scratch memory as it lies in its own, up to multiples of this, which is more than
 * any access of a kernel depends on. So the memory begins up to that much before the part. */
enum { MS_SCRATCH_ALIGNMENT = 64 << 10 };

struct ms_scratch {
    struct ms_backing room; /* no bytes: there is none */
    size_t memory_bytes;    /* from the middle of the room on */
    size_t begin, end;      /* what has memory or the sink */
    bool is_kept;           /* it is its device's */
};

/*
 * Scratch memory of the device for [begin, end) of a block, which all can be written from
 * *address_out on. Two threads never have the same: `own` is for that which is not kept. The work
 * that uses it is done when it is given back.
 */
CUresult ms_scratch_take(CUdevice device, size_t block_bytes, size_t begin, size_t end,
                         struct ms_scratch *own, struct ms_scratch **scratch_out,
                         CUdeviceptr *address_out);
void ms_scratch_give_back(struct ms_scratch *scratch);

/* Frees what is kept and not in use. False if there is none. Cheap then. */
bool ms_scratch_drop(void);
