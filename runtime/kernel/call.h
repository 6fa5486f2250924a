/* SPDX-License-Identifier: Apache-2.0 */
/* One launch: as the program makes it, and as a record that can be run later. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/counted.h"
#include "runtime/base/heap.h"
#include "runtime/base/range.h"
#include "runtime/driver/driver.h"
#include "runtime/kernel/parameters.h"

/* The arguments of the program's call. */
struct ms_call {
    CUfunction function;
    unsigned grid[3], block[3], shared_bytes;
    CUstream stream;
    const CUlaunchAttribute *attributes;
    unsigned attribute_count;
    bool cooperative;
    bool is_prepared;       /* all that the launch reaches is in memory already */
    void **params, **extra; /* as in cuLaunchKernel */
};

/* The packed parameters of a call, in `local` if they fit. */
struct ms_packed {
    const unsigned char *bytes;
    size_t count;
    void *heap; /* NULL: in `local`, or the program's own */
    unsigned char local[4096];
};

/* The parameters of a launch. */
struct ms_arguments {
    struct ms_param_layout *layout; /* a reference */
    struct ms_packed *packed;
    struct ms_range numbers; /* in packed, where no pointer lies (strided_loop.h); may be empty */
};

/* Finds the parameters, in `room` if they fit. Returns false if their layout is unknown, or out of
 * memory. True: ms_call_end must follow. */
bool ms_call_begin(const struct ms_call *call, struct ms_packed *room,
                   struct ms_arguments *arguments_out);

/* For call.c and its unit test: the packing. */
bool ms_call_pack(const struct ms_call *call, const struct ms_param_layout *layout,
                  struct ms_packed *packed_out);

static inline void ms_call_unpack(struct ms_packed *packed)
{
    ms_heap_free(packed->heap);
}

/* Gives back the parameters and the layout that ms_call_begin has found. */
static inline void ms_call_end(const struct ms_arguments *arguments)
{
    ms_call_unpack(arguments->packed);
    ms_counted_drop(&arguments->layout->counted);
}

/* A recorded launch's call. By reference count; immutable. */
struct ms_launch;

/*
 * True if the driver would certainly accept the call, and running it later has the same effect: no
 * attribute ties it to other work, and the grid is within the limits of device and function. False
 * for device -1.
 */
bool ms_call_may_wait(const struct ms_call *call, const struct ms_param_layout *layout,
                      CUdevice device);

/* Records a call. pointers: the offsets of its pointers in the packed parameters. Returns NULL if
 * out of memory. */
enum { MS_MAX_POINTERS = 2 };
struct ms_launch *ms_call_record(const struct ms_call *call, struct ms_param_layout *layout,
                                 const struct ms_packed *packed, const size_t *pointers,
                                 size_t pointer_count);
/* Takes a reference. Returns NULL if code was unloaded since: the launch must not run again. */
struct ms_launch *ms_call_take(struct ms_launch *launch);

static inline void ms_call_forget(struct ms_launch *launch)
{
    ms_counted_drop((struct ms_counted *)launch);
}

/* Runs the launch on stream, with deltas[i] added to pointer i. The stream's context must be
 * current. */
CUresult ms_call_run(const struct ms_launch *launch, const uint64_t deltas[MS_MAX_POINTERS],
                     CUstream stream);

const char *ms_call_name(const struct ms_launch *launch);
