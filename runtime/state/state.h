/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state page of this process (format.h), which metashard-dump shows, even after the process was
 * killed. It is made for the first record, at the latest for the first allocation, so that a
 * process that only counts devices leaves none; a forked child keeps none.
 *
 * All functions here do nothing without a page (one load: ms_is_recorded), call no driver function,
 * and are safe from any thread. Once there is a page they allocate nothing. state.lock, a leaf,
 * guards the tables; events and figures need no lock.
 */
#pragma once

#include <stdbool.h>

#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/state/format.h"

/* From now on there can be records. `config` stays as it is. Called once. */
void ms_state_prepare(const struct ms_config *config);

/* Makes the page if there is none yet; with METASHARD_EXPLAIN or METASHARD_DUMP, in memory if there
 * can be no file. Logs why there is none. Returns true if there is one. Called before anything is
 * deferred: a figure that another thread changes just now may be missed. */
bool ms_state_open(void);

/* The page as it is now; NULL, 0 bytes and "" if there is none. */
struct ms_state_view {
    const void *page;
    size_t bytes;
    const char *path; /* of its file; "": it is in memory */
};
struct ms_state_view ms_state_view(void);

/* The process ends by itself. Calls `visit`, if it is not NULL, with each cause. */
typedef void ms_state_visitor(void *context, const struct ms_state_cause *cause);
void ms_state_end(ms_state_visitor *visit, void *context);

/* Nanoseconds since ms_state_prepare, or 0 without a page. */
uint64_t ms_state_now(void);

/* Sets the rank that a communicator gives, if none is known: a communicator may number processes
 * differently. */
void ms_state_set_rank(uint32_t rank, uint32_t world);

/* Sets the plan. The rank of an active plan becomes the process's. `sequence` is ignored. */
void ms_state_set_plan(const struct ms_state_plan *plan);

/* Members that are not known (NULL, MS_CHECK_NONE) leave the record as it is. */
struct ms_device_facts {
    const char *name;
    enum ms_check_state check;
    bool steps_aside;  /* this and `unmet` come with the check */
    const char *unmet; /* facts that do not hold */
};
void ms_state_set_device(uint32_t device, const struct ms_device_facts *facts);

/* The number of a file, or 0 if the table is full. Slow the first time for a path. */
uint32_t ms_state_file(const char *path);

/*
 * Writes a block's record. `place` belongs to the caller, is zero before the first call, and is
 * guarded as the block is. If the table is full, the biggest blocks have a record. The reason for
 * the block's memory is the call that the thread is in when backed_bytes first grow.
 */
struct ms_state_place {
    uint64_t token; /* 0: none */
    uint32_t slot;
    bool is_counted; /* in the gauges */
};
void ms_state_put(struct ms_state_place *place, const struct ms_state_block *block);
void ms_state_remove(struct ms_state_place *place);

/* The figures have changed: takes a sample, unless the last one is very recent. */
void ms_state_sample(void);

/* An event. Members that are not given are zero. */
struct ms_event {
    enum ms_event_kind kind;
    enum ms_reason reason; /* MS_REASON_CALL: ms_caller_reason */
    uint64_t block;        /* its id */
    uint64_t address, bytes;
    uint64_t began;     /* ms_state_now; gives the duration */
    const char *text;   /* NULL: the kernel that the thread launches */
    bool is_of_no_call; /* it is only counted as a cause */
    bool loads;         /* a record of what a program loads: of a launch, a file or host memory */
};
/* Writes the event, with the call and the kernel that the thread is in. */
void ms_state_event(const struct ms_event *happened);
