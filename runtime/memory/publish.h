/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publishing to the state page (state/state.h): one call at each place where something happens.
 * The functions do nothing without a page. The caller has claimed the allocation that it passes in.
 */
#pragma once

#include "runtime/memory/space.h"
#include "runtime/state/counters.h"
#include "runtime/state/state.h"

/* Sets the function that names tensors. The namer writes the name of the tensor at the start of
 * [begin, end), cut to `bytes`, or returns false. To be called once, before the first claim. */
typedef bool ms_tensor_namer(const struct ms_allocation *allocation, size_t begin, size_t end,
                             char *name_out, size_t bytes);
void ms_publish_set_namer(ms_tensor_namer *namer);

/* Publishes changes of the allocation and its blocks. To be called before the claim ends. The
 * record of a block in many pieces lags behind by one change for each 64 pieces. */
void ms_publish_allocation(struct ms_allocation *allocation);

/* The allocation is about to be freed. */
void ms_publish_freed(struct ms_allocation *allocation);

/* Brackets materialising: counts the time, and publishes an event with the bytes. */
struct ms_publish_timer {
    uint64_t began, present_bytes;
};
struct ms_publish_timer ms_publish_begin(const struct ms_allocation *allocation);
void ms_publish_materialised(const struct ms_publish_timer *note,
                             const struct ms_allocation *allocation, size_t begin, CUresult result);

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

/* Something could not stay deferred. `text` is the text of ms_explain, or NULL. */
static inline void ms_publish_fallback(enum ms_reason reason, uint64_t bytes, const char *text)
{
    ms_counter_add(MS_COUNT_FALLBACKS, 1);
    ms_state_event(&(struct ms_event){
        .kind = MS_EVENT_FALLBACK, .reason = reason, .bytes = bytes, .text = text});
}

/* A prefetch has filled `bytes` bytes from files. */
void ms_publish_filled(uint64_t bytes, uint64_t began);

/* The program's call reads `bytes` remote bytes. */
void ms_publish_remote_read(const struct ms_allocation *allocation, size_t begin, uint64_t bytes,
                            const char *tensor);

/* Publishes the device's name, once. */
void ms_publish_device(CUdevice device);

/*
 * Gives the bytes that the thread materialises this reason, unless an outer reason is set, until
 * the end of the C block in which the variable stands:
 *
 *     MS_WHY const struct ms_why why = ms_publish_why_begin(MS_REASON_SETTLE);
 *
 * The end publishes a fallback if the thread has materialised anything and ms_explain knows the
 * reason.
 */
#define MS_WHY __attribute__((cleanup(ms_publish_why_end), unused))
struct ms_why {
    uint32_t before;
    uint64_t began, bytes;
};
struct ms_why ms_publish_why_begin(enum ms_reason reason);
void ms_publish_why_end(const struct ms_why *why);
