/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the machine tells the state page (state/state.h): a line at each place where something happens. All of
 * it does nothing without a page. Functions that are given an allocation want it claimed.
 */
#ifndef METASHARD_RUNTIME_MEMORY_PUBLISH_H
#define METASHARD_RUNTIME_MEMORY_PUBLISH_H

#include "runtime/memory/allocations.h"
#include "runtime/state/state.h"

/* Who knows the names of tensors: that of what [begin, end) begins with, cut to `bytes`. False: there is none. Once, before
 * the first claim. */
typedef bool ms_tensor_namer(const struct ms_allocation *allocation, size_t begin, size_t end,
                             char *name_out, size_t bytes);
void ms_publish_set_namer(ms_tensor_namer *namer);

/* The claim is about to end: the records of the allocation and of its parts, where something has changed. */
void ms_publish_allocation(struct ms_allocation *allocation);

/* The allocation is about to go. */
void ms_publish_freed(struct ms_allocation *allocation);

/* Before something is materialised, and afterwards: counts the time, and tells the event and its bytes. */
struct ms_publish_timer {
    uint64_t began, present_bytes;
};
struct ms_publish_timer ms_publish_begin(const struct ms_allocation *allocation);
void ms_publish_materialised(const struct ms_publish_timer *note,
                             const struct ms_allocation *allocation, size_t begin, CUresult result);

/* [begin, begin + bytes) of an allocation; text may be NULL. */
void ms_publish_event(enum ms_event_kind kind, const struct ms_allocation *allocation, size_t begin,
                      size_t bytes, const char *text);

/* Something could not stay deferred; `text` (may be NULL) as ms_explain has it. */
void ms_publish_fallback(enum ms_reason reason, uint64_t bytes, const char *text);

/* A pass has filled so many bytes from files. */
void ms_publish_filled(uint64_t bytes, uint64_t began);

/* A recorded launch was run for [begin, end) of what it writes. */
void ms_publish_replay(const struct ms_recorded_launch *recorded, size_t begin, size_t end);

/* The call reads so many bytes that a plan gives to other ranks. */
void ms_publish_remote_read(const struct ms_allocation *allocation, size_t begin, uint64_t bytes,
                            const char *tensor);

/* Its name is asked for once. */
void ms_publish_device(CUdevice device);

/*
 * What the thread materialises until the end is for this reason, unless there is one already. When something
 * was, and the reason is one that can be explained, it is a fallback.
 */
struct ms_why {
    uint32_t before;
    uint64_t began, bytes;
};
struct ms_why ms_why_begin(enum ms_reason reason);
void ms_why_end(struct ms_why why);

#endif
