/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scratch memory: where a recorded launch runs when only a part of its output is needed. A few MiB
 * of memory have the sink on either side:
 *
 *     |  sink  |  sink  |  memory  |  sink  |  sink  |  sink  |
 *          | what the launch writes           |
 *                       | part |
 *
 * The part always begins in the memory, so the sink is mapped once, as far as the largest block
 * needs it, and not once a replay. Each device keeps two for the next replays: a launch runs in
 * one, and what it has read is made in the other.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/driver/driver.h"
#include "runtime/memory/backing.h"

/* The alignment that a block keeps in scratch memory, more than any access of a kernel depends on.
 * So the memory begins up to that much before the part. */
enum { MS_SCRATCH_ALIGNMENT = 64 << 10 };

struct ms_scratch {
    struct ms_backing room; /* 0 bytes: none */
    size_t memory_bytes;    /* from the middle of the room on */
    size_t begin, end;      /* the range with memory or the sink */
    bool is_kept;           /* one that its device keeps */
};

/*
 * Takes scratch memory of the device for [begin, end) of a block. All of the block, which begins at
 * *address_out, can be written. Two threads never share scratch memory: while both kept ones are in
 * use, the function fills in `own`. The caller waits for the work that uses the memory before
 * giving it back.
 */
CUresult ms_scratch_take(CUdevice device, size_t block_bytes, size_t begin, size_t end,
                         struct ms_scratch *own, struct ms_scratch **scratch_out,
                         CUdeviceptr *address_out);
void ms_scratch_give_back(struct ms_scratch *scratch);

/* Frees kept scratch memory that is not in use. False, and cheap, if there is none. */
bool ms_scratch_drop(void);

/*
 * The bound: the shim's memory on a device never exceeds the peak that the program would have had
 * there so far without the shim, or two granules more while that peak is less than eight granules.
 * Scratch memory keeps the bound as far as other memory can go. True if `bytes` more keep the
 * bound, and always in verify mode, where shadows break it anyway.
 */
bool ms_scratch_fits(CUdevice device, size_t bytes);

/* To be called before `bytes` of other memory are taken: frees kept scratch memory and the sink if
 * all together would break the bound. */
void ms_scratch_make_way(CUdevice device, size_t bytes);

/*
 * To be called before `bytes` of scratch memory are taken. Frees kept scratch memory if the bound
 * would break. Refuses once (CUDA_ERROR_OUT_OF_MEMORY) if that is not enough and the thread allows
 * refusals: the thread then takes the refusal, frees so many other bytes of the device, and tries
 * again.
 */
struct ms_scratch_refusal {
    CUdevice device;
    uint64_t bytes; /* 0: nothing was refused */
};
CUresult ms_scratch_ask(CUdevice device, size_t bytes);

/* The thread's state, for the functions here. */
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
