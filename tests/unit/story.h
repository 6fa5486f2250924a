/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A story is a test in one sentence: what happened, and what must be true then.
 *
 *     STORY(allocations_take_whole_granules, has(T / 2), settles(), tight(T / 2 - 1), refused(T))
 *
 * Its steps are expressions, mostly calls of words, and happen in this order. The words here are of
 * a program over the driver in memory; a file has its own besides, and a begin(), which comes
 * first. At the end of a story all allocations go, and the driver must have got everything back.
 */
#pragma once

#include "runtime/driver/flags.h"
#include "runtime/memory/allocation.h"
#include "runtime/memory/carve.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/files/files.h"
#include "tools/simcuda/harness/test.h"

#define STORY(name, ...) STORY_BETWEEN(begin, end_story, name, __VA_ARGS__)

#define G ((size_t)FAKE_GRANULE)

static const struct ms_content undefined = {.kind = MS_UNDEFINED};
static const struct ms_content resident = {.kind = MS_RESIDENT};
static const struct ms_content sevens = {.kind = MS_FILL, .pattern = 0x07070707};
static const struct ms_content cached = {.kind = MS_FILL, .pattern = 0x07070707, .cached = true};
static const struct ms_content absent = {.kind = MS_ABSENT, .locality = MS_REMOTE};

/* --- the program: its allocations have numbers, in the order in which they are made */

enum { STORY_MOST = 640 };
static struct ms_allocation *all[STORY_MOST];
static bool is_claimed[STORY_MOST];
static size_t all_count;
static CUdeviceptr others; /* of the device, which the shim knows nothing of */
static struct test_file story_file;

static inline void has_on(CUdevice device, size_t bytes)
{
    const struct ms_promise promise = {.bytes = bytes, .context = FAKE_CONTEXT, .device = device};
    CHECK(all_count < STORY_MOST);
    all[all_count] = fake_create(&promise);
    CHECK(all[all_count++] != NULL);
}

static inline void has(size_t bytes)
{
    has_on(0, bytes);
}

/* This thread works on it, until the end of the story at most. */
static inline void claims(size_t which)
{
    CHECK(ms_space_claim(all[which]->address) == all[which]);
    is_claimed[which] = true;
}

static inline void releases(size_t which)
{
    ms_space_release(all[which]);
    is_claimed[which] = false;
}

/* With memory if it is present. */
static inline void writes(size_t which, size_t begin, size_t end, struct ms_content content)
{
    if (is_claimed[which])
        fake_set_claimed(all[which], begin, end, &content);
    else
        fake_set(all[which], begin, end, &content);
}

/* Blocks of the first allocation, which nobody has claimed. */
static inline void takes_block(size_t begin, size_t end)
{
    claims(0);
    CHECK_EQ(ms_carve_take(all[0], begin, end), MS_CARVED);
    releases(0);
}

static inline void returns_block(size_t begin)
{
    size_t end;
    claims(0);
    CHECK(ms_carve_return(all[0], begin, &end));
    releases(0);
}

/* A file, again and again. */
static inline void reads_file(size_t which, size_t begin, size_t end, size_t bytes)
{
    if (story_file.source == NULL)
        make_test_file(&story_file, "/tmp", bytes);
    for (size_t at = begin; at < end; at += bytes)
        writes(which, at, at + bytes,
               (struct ms_content){.kind = MS_SOURCE, .source = story_file.source});
}

static inline void frees(size_t which)
{
    if (is_claimed[which])
        releases(which);
    fake_check_allocation(all[which]);
    fake_allocation_free(all[which]);
    all[which] = NULL;
}

/* Has this one, and none besides. */
static inline void has_only(size_t bytes)
{
    for (size_t i = 0; i < all_count; i++) {
        if (all[i] != NULL)
            frees(i);
    }
    all_count = 0;
    if (bytes > 0)
        has(bytes);
}

static inline void lies_in(size_t which, CUcontext context)
{
    all[which]->context = context;
}

static inline unsigned char *byte_of(size_t which, size_t offset)
{
    return (unsigned char *)(uintptr_t)(all[which]->address + offset);
}

static inline void others_have(size_t bytes)
{
    others = fake_program_memory(bytes);
}

static void (*at_end)(void); /* before they go, if there is one */

static inline void end_story(void)
{
    if (at_end != NULL)
        at_end();
    has_only(0);
    if (others != 0)
        fake_program_memory_free(others);
    if (story_file.source != NULL)
        ms_source_drop(story_file.source);
    CHECK_EQ(ms_carve_dead_memory(), 0);
    CHECK(!ms_defers_any());
    fake_check_empty();
}

/* --- the driver */

static inline void driver_fails(enum fake_call call)
{
    fake_fail(call, 1, CUDA_ERROR_UNKNOWN);
}

/* --- what must be true */

static inline void has_memory(size_t which, size_t bytes)
{
    CHECK_EQ(ms_allocation_backing(all[which])->backed_bytes, bytes);
}

static inline void has_resident(size_t which, size_t bytes)
{
    CHECK_EQ(ms_allocation_lineage(all[which])->resident_bytes, bytes);
}

static inline void has_cached(size_t which, size_t bytes)
{
    CHECK_EQ(ms_allocation_lineage(all[which])->cached_bytes, bytes);
}

/* At an offset lie the file's first bytes. */
static inline void has_bytes_of_file(size_t which, size_t begin, size_t bytes)
{
    CHECK_BYTES(byte_of(which, begin), story_file.data, bytes);
}

static inline void device_lends(size_t bytes)
{
    CHECK_EQ(fake.physical_bytes, bytes);
}

static inline void was_called(enum fake_call call, unsigned times)
{
    CHECK_EQ(fake.calls[call], times);
}

static inline void said(int lines, const char *text)
{
    CHECK_EQ(count_log_lines(text), lines);
}
