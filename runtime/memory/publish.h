/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publishing to the state page (state/state.h): one call at each place where something happens.
 * The functions do nothing without a page. The caller has claimed the allocation that it passes in.
 */
#pragma once

#include "runtime/memory/space.h"
#include "runtime/state/counters.h"
#include "runtime/state/state.h"
#include "runtime/state/why.h"

/* Sets the function that names tensors. The namer writes the name of the tensor at the start of
 * [begin, end), cut to `bytes`, or returns false. To be called once, before the first claim. */
typedef bool ms_tensor_namer(const struct ms_allocation *allocation, size_t begin, size_t end,
                             char *name_out, size_t bytes);
void ms_publish_set_namer(ms_tensor_namer *namer);

/* Publishes changes of the allocation and its blocks. To be called before the claim ends. The
 * record of a block in many pieces lags behind by one change for each 64 pieces. */
void ms_publish_allocation(struct ms_allocation *allocation);

/* The allocation is about to leave the index. */
void ms_publish_freed(struct ms_allocation *allocation);

/* Publishes an event of [begin, begin + bytes) of an allocation. text may be NULL. */
static inline void ms_publish_event(enum ms_event_kind kind, const struct ms_allocation *allocation,
                                    size_t begin, size_t bytes, const char *text)
{
    ms_state_event(&(struct ms_event){.kind = kind,
                                      .block = allocation->id,
                                      .address = allocation->address + begin,
                                      .bytes = bytes,
                                      .text = text});
}

/* A prefetch has filled `bytes` bytes from files, since `began`; 0: there was no page. */
static inline void ms_publish_filled(uint64_t bytes, uint64_t began)
{
    if (began == 0)
        return;
    ms_counter_add(MS_COUNT_MATERIALISE_NS, ms_state_now() - began);
    ms_why_add(bytes);
    ms_state_event(&(struct ms_event){.kind = MS_EVENT_MATERIALISE,
                                      .bytes = bytes,
                                      .began = began,
                                      .text = "files, of a batch of allocations"});
}

/* The program's call reads `bytes` remote bytes. */
static inline void ms_publish_remote_read(const struct ms_allocation *allocation, size_t begin,
                                          uint64_t bytes, const char *tensor)
{
    ms_counter_add(MS_COUNT_REMOTE_READS, 1);
    ms_counter_add(MS_COUNT_REMOTE_READ_BYTES, bytes);
    ms_state_event(&(struct ms_event){.kind = MS_EVENT_REMOTE_READ,
                                      .reason = MS_REASON_REMOTE_READ,
                                      .block = allocation->id,
                                      .address = allocation->address + begin,
                                      .bytes = bytes,
                                      .text = tensor});
}
