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

/*
 * The bound: all of the shim's memory on a device together is no more than the program would have
 * had there at most, so far, without the shim. It holds for scratch memory as far as other memory
 * can go. True if so many bytes more keep it. In verify mode, shadows break it anyway.
 */
bool ms_scratch_fits(CUdevice device, size_t bytes);

/* Before so much memory of another kind is taken: frees what is kept, and the sink, if they would
 * stand beside it beyond the bound. */
void ms_scratch_make_way(CUdevice device, size_t bytes);

/*
 * Before so much scratch memory is taken. Beyond the bound what is kept goes first. Then it is
 * refused (CUDA_ERROR_OUT_OF_MEMORY), once, if the thread allows that: it takes the refusal, frees
 * so many other bytes of the device, and tries again.
 */
struct ms_scratch_refusal {
    CUdevice device;
    uint64_t bytes; /* 0: nothing was refused */
};
CUresult ms_scratch_ask(CUdevice device, size_t bytes);

/* Of this thread, for the functions here. */
struct ms_scratch_refusing {
    bool may;
    struct ms_scratch_refusal refusal;
};
extern _Thread_local struct ms_scratch_refusing ms_scratch_refusing
    __attribute__((tls_model("initial-exec")));

static inline void ms_scratch_may_refuse(bool may)
{
    ms_scratch_refusing.may = may;
}

static inline bool ms_scratch_has_refused(void)
{
    return ms_scratch_refusing.refusal.bytes > 0;
}

static inline struct ms_scratch_refusal ms_scratch_take_refusal(void)
{
    const struct ms_scratch_refusal taken = ms_scratch_refusing.refusal;
    ms_scratch_refusing.refusal = (struct ms_scratch_refusal){0};
    return taken;
}
