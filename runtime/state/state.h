/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state page of this process (format.h): what metashard-dump shows, also when the process was killed.
 * Made when the shim starts, in a process that uses CUDA; a forked child keeps none.
 *
 * Everything here does nothing when there is no page (one load: ms_is_recorded), calls no driver function,
 * allocates nothing, and is safe from any thread. state.lock, a leaf, guards the tables; events and figures
 * need no lock.
 */
#ifndef METASHARD_RUNTIME_STATE_STATE_H
#define METASHARD_RUNTIME_STATE_STATE_H

#include <stdbool.h>

#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/state/format.h"

/* Makes the page; with METASHARD_EXPLAIN or METASHARD_DUMP, in memory if there can be no file.
 * Without one, a line in the log says why. Once, before anything is deferred. */
void ms_state_start(const struct ms_config *config);

/* The process ends by itself. */
void ms_state_end(void);

/* The page as it is now; NULL and 0 bytes when there is none. */
const void *ms_state_page(size_t *bytes_out);

/* Nanoseconds since the page was made; 0 when there is none. */
uint64_t ms_state_now(void);

/* The rank, when something later than the start tells it. */
void ms_state_set_rank(uint32_t rank, uint32_t world);

/* The same, where nothing better tells it: a communicator may number processes differently. */
void ms_state_set_default_rank(uint32_t rank, uint32_t world);

/* sequence is left to the page. */
void ms_state_set_plan(const struct ms_state_plan *plan);
void ms_state_set_device(uint32_t device, const char *name);

/* The number of a file, as blocks have it; 0 when there is no room. Slow the first time for a path. */
uint32_t ms_state_file(const char *path);

/*
 * A block's record. `place` is the caller's, zero before the first call, and guarded as the block is. When
 * the table is full the biggest blocks have one. What the block was backed for is found out here: the call
 * that the thread is in when its backed_bytes first grow.
 */
struct ms_state_place {
    uint64_t token; /* 0: none */
    uint32_t slot;
    bool is_counted; /* in the gauges */
};
void ms_state_put(struct ms_state_place *place, const struct ms_state_block *block);
void ms_state_remove(struct ms_state_place *place);

/* The figures have changed: a sample, unless the last one is very young. */
void ms_state_sample(void);

/*
 * Something has happened: in the call, and with the kernel, that the thread is in. `began` (ms_state_now)
 * gives the duration; 0: none. `text` may be NULL: then it is the kernel.
 */
void ms_state_event(enum ms_event_kind kind, uint64_t block, uint64_t address, uint64_t bytes,
                    uint64_t began, const char *text);

/* The same, for another reason than the thread's. */
void ms_state_event_for(enum ms_event_kind kind, enum ms_reason reason, uint64_t block,
                        uint64_t address, uint64_t bytes, uint64_t began, const char *text);

/* Something that has happened in no call, counted among the causes alone. */
void ms_state_cause(enum ms_event_kind kind, enum ms_reason reason, const char *text);

/* Calls visit with each sentence that explains a fallback, the most bytes first. For the end. */
typedef void ms_state_visitor(void *context, const struct ms_state_cause *cause);
void ms_state_visit_causes(ms_state_visitor *visit, void *context);

#endif
