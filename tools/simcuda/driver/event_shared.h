/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state that processes share of an event made with CU_EVENT_INTERPROCESS: how often it was
 * recorded, and which of its records are done. A page of a memory file, which an opener finds
 * through the exporter's process and descriptor.
 *
 * Records are numbered over all processes, from 1. To wait for the event is to wait for the record
 * that is the newest when the call is made.
 */
#pragma once

#include "tools/simcuda/driver/sim.h"

/* Counted: the event's reference and one of each piece of work. The counts are guarded by
 * sim_lock. */
struct sim_shared_event;

/* NULL: the system gives none. */
struct sim_shared_event *sim_shared_event_create(void);
void sim_shared_event_keep_locked(struct sim_shared_event *shared);
void sim_shared_event_drop_locked(struct sim_shared_event *shared);

/* A handle that another process can open, while this process has the event. */
void sim_shared_event_export(const struct sim_shared_event *shared, CUipcEventHandle *handle_out);
/* CUDA_ERROR_INVALID_HANDLE: no event's handle, or its process is gone. CUDA_ERROR_INVALID_CONTEXT:
 * the handle is of this process. */
CUresult sim_shared_event_open(const CUipcEventHandle *handle, struct sim_shared_event **out);

/* The number of the newest record; 0: it was never recorded. */
uint64_t sim_shared_event_newest(const struct sim_shared_event *shared);
bool sim_shared_event_is_done(const struct sim_shared_event *shared, uint64_t number);
/* Waits, on any thread and without the lock. False: the process ends, or work has failed. */
bool sim_shared_event_wait(const struct sim_shared_event *shared, uint64_t number);

/* Work for a stream: a new record, which is done when the stream gets there; or waiting for a
 * record. */
struct sim_work *sim_shared_event_record_locked(struct sim_shared_event *shared);
struct sim_work *sim_shared_event_wait_work_locked(struct sim_shared_event *shared,
                                                   uint64_t number);
