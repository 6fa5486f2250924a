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

/* The process ends by itself. */
void ms_state_end(void);

/* The page as it is now, made if there is none, or NULL and 0 bytes. */
const void *ms_state_page(size_t *bytes_out);

/* The file of the page, or "". */
const char *ms_state_path(void);

/* Nanoseconds since ms_state_prepare, or 0 without a page. */
uint64_t ms_state_now(void);

/* Sets the rank that a communicator gives. It replaces none: a communicator may number processes
 * differently. */
void ms_state_set_rank(uint32_t rank, uint32_t world);

/* Its rank is that of the process, if a plan is active. `sequence` is ignored. */
void ms_state_set_plan(const struct ms_state_plan *plan);
void ms_state_set_device(uint32_t device, const char *name);
void ms_state_set_check(uint32_t device, enum ms_check_state check, bool steps_aside,
                        const char *unmet);

/* The number of a file, or 0 if the table is full. Slow the first time for a path. */
uint32_t ms_state_file(const char *path);

/*
 * Writes a block's record. `place` belongs to the caller, is zero before the first call, and is
 * guarded as the block is. If the table is full, the biggest blocks have a record. The reason for
 * the block's memory is the call that the thread is in when its backed_bytes first grow.
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

/* Writes an event, with the call and the kernel that the thread is in. `began` (ms_state_now) gives
 * the duration; 0: none. If `text` is NULL, the kernel takes its place. */
void ms_state_event(enum ms_event_kind kind, uint64_t block, uint64_t address, uint64_t bytes,
                    uint64_t began, const char *text);

/* The same, for another reason than the thread's. */
void ms_state_event_for(enum ms_event_kind kind, enum ms_reason reason, uint64_t block,
                        uint64_t address, uint64_t bytes, uint64_t began, const char *text);

/* An event that belongs to no call: counted as a cause, and nothing else. */
void ms_state_cause(enum ms_event_kind kind, enum ms_reason reason, const char *text);

/* Calls visit with each sentence that explains a fallback, the most bytes first. For the exit. */
typedef void ms_state_visitor(void *context, const struct ms_state_cause *cause);
void ms_state_visit_causes(ms_state_visitor *visit, void *context);
