/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/hashes/live_blocks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/array.h"
#include "runtime/base/heap.h"
#include "runtime/base/lock.h"
#include "runtime/base/sorted.h"

/* How many blocks of a size a thread has made. */
struct size {
    enum ms_live_kind kind;
    uint32_t thread;
    size_t bytes;
    uint32_t count;
};

static struct {
    struct ms_lock lock;       /* guards all of this */
    struct ms_sorted lists[2]; /* of ms_live_block */
    struct size *sizes;        /* sorted */
    size_t size_count, size_capacity;
    struct ms_live_thread *threads;
    size_t thread_count, thread_capacity;
} live = {.lock = MS_LOCK_INIT(live_blocks),
          .lists = {{.item_bytes = sizeof(struct ms_live_block)},
                    {.item_bytes = sizeof(struct ms_live_block)}}};

static _Thread_local uint32_t thread_number; /* from 1 on; 0: none yet */

/* The first block that ends behind address. */
static struct ms_position behind(const struct ms_sorted *list, CUdeviceptr address)
{
    const struct ms_position at = ms_sorted_find(list, address);
    const struct ms_live_block *block = ms_sorted_item(list, at);
    return block != NULL && block->address + block->bytes <= address ? ms_sorted_next(list, at)
                                                                     : at;
}

/* The block that begins there, or NULL. */
static struct ms_live_block *at_address(const struct ms_sorted *list, CUdeviceptr address)
{
    struct ms_live_block *block = ms_sorted_item(list, ms_sorted_find(list, address));
    return block != NULL && block->address == address ? block : NULL;
}

static void remove_overlaps(struct ms_sorted *list, CUdeviceptr address, size_t bytes)
{
    const struct ms_position begin = behind(list, address);
    struct ms_position at = begin;
    size_t count = 0;
    for (const struct ms_live_block *block;
         (block = ms_sorted_item(list, at)) != NULL && block->address < address + bytes;
         at = ms_sorted_next(list, at))
        count++;
    ms_sorted_remove(list, begin, count);
}

static int compare_names(enum ms_live_kind kind, uint32_t thread, size_t bytes,
                         enum ms_live_kind other_kind, uint32_t other_thread, size_t other_bytes)
{
    if (kind != other_kind)
        return kind < other_kind ? -1 : 1;
    if (thread != other_thread)
        return thread < other_thread ? -1 : 1;
    return bytes < other_bytes ? -1 : bytes > other_bytes;
}

/* The number of a new block. False if out of memory. */
MS_HOLDS(live.lock) static bool count_size_locked(struct ms_live_block *block)
{
    size_t low = 0;
    size_t high = live.size_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const struct size *size = &live.sizes[middle];
        const int order = compare_names(size->kind, size->thread, size->bytes, block->kind,
                                        block->thread, block->bytes);
        if (order == 0) {
            block->number = live.sizes[middle].count++;
            return true;
        }
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (!MS_ARRAY_GROW(live.sizes, live.size_count, live.size_capacity))
        return false;
    memmove(&live.sizes[low + 1], &live.sizes[low],
            (live.size_count++ - low) * sizeof(*live.sizes));
    live.sizes[low] = (struct size){block->kind, block->thread, block->bytes, 1};
    block->number = 0;
    return true;
}

MS_HOLDS(live.lock) static bool name_locked(struct ms_live_block *block)
{
    if (thread_number == 0) {
        if (!MS_ARRAY_GROW(live.threads, live.thread_count, live.thread_capacity))
            return false;
        live.threads[live.thread_count++] = (struct ms_live_thread){0};
        thread_number = (uint32_t)live.thread_count;
    }
    struct ms_live_thread *thread = &live.threads[thread_number - 1];
    thread->count++;
    thread->sequence = (thread->sequence ^ block->bytes ^ (uint64_t)block->kind << 63) *
                       UINT64_C(0x9e3779b97f4a7c15);
    thread->sequence ^= thread->sequence >> 32;
    block->thread = thread_number - 1;
    return count_size_locked(block);
}

MS_HOLDS(live.lock) static void carve_locked(CUdeviceptr address, size_t bytes)
{
    struct ms_sorted *wholes = &live.lists[MS_LIVE_WHOLE];
    struct ms_position at = behind(wholes, address);
    for (struct ms_live_block *block;
         (block = ms_sorted_item(wholes, at)) != NULL && block->address < address + bytes;
         at = ms_sorted_next(wholes, at))
        block->is_carved = true;
}

void ms_live_add(enum ms_live_kind kind, CUdeviceptr address, size_t bytes)
{
    struct ms_live_block block = {.address = address, .bytes = bytes, .kind = kind};
    ms_driver.ctx_get_current(&block.context);
    ms_lock_take(&live.lock);
    struct ms_sorted *list = &live.lists[kind];
    remove_overlaps(list, address, bytes);
    if (kind == MS_LIVE_PART)
        carve_locked(address, bytes);
    if (name_locked(&block))
        ms_sorted_insert(list, behind(list, address), &block, 1);
    ms_lock_drop(&live.lock);
}

void ms_live_remove(enum ms_live_kind kind, CUdeviceptr address)
{
    ms_lock_take(&live.lock);
    struct ms_sorted *list = &live.lists[kind];
    const struct ms_live_block *block = at_address(list, address);
    if (block != NULL) {
        if (kind == MS_LIVE_WHOLE)
            remove_overlaps(&live.lists[MS_LIVE_PART], address, block->bytes);
        ms_sorted_remove(list, ms_sorted_find(list, address), 1);
    }
    ms_lock_drop(&live.lock);
}

void ms_live_set_label(CUdeviceptr address, const char *label)
{
    ms_lock_take(&live.lock);
    for (int kind = 0; kind < 2; kind++) {
        struct ms_live_block *block = at_address(&live.lists[kind], address);
        if (block != NULL)
            snprintf(block->label, sizeof(block->label), "%s", label);
    }
    ms_lock_drop(&live.lock);
}

/* The next block of either kind; *kind and *at begin with 0. NULL: that was the last. */
MS_HOLDS(live.lock)
static struct ms_live_block *next_locked(int *kind, struct ms_position *at)
{
    struct ms_live_block *block = NULL;
    while (*kind < 2 && (block = ms_sorted_item(&live.lists[*kind], *at)) == NULL) {
        ++*kind;
        *at = (struct ms_position){0, 0};
    }
    if (block != NULL)
        *at = ms_sorted_next(&live.lists[*kind], *at);
    return block;
}

void ms_live_forget(CUcontext context)
{
    ms_lock_take(&live.lock);
    for (int kind = 0; kind < 2; kind++) {
        struct ms_sorted *list = &live.lists[kind];
        struct ms_position at = {0, 0};
        for (const struct ms_live_block *block; (block = ms_sorted_item(list, at)) != NULL;) {
            const CUdeviceptr end = block->address + block->bytes;
            if (block->context == context)
                ms_sorted_remove(list, at, 1);
            at = behind(list, end);
        }
    }
    ms_lock_drop(&live.lock);
}

bool ms_live_has(CUcontext context)
{
    int kind = 0;
    struct ms_position at = {0, 0};
    const struct ms_live_block *block;
    ms_lock_take(&live.lock);
    while ((block = next_locked(&kind, &at)) != NULL && block->context != context)
        ;
    ms_lock_drop(&live.lock);
    return block != NULL;
}

int ms_live_compare(const struct ms_live_block *left, const struct ms_live_block *right)
{
    const int order = compare_names(left->kind, left->thread, left->bytes, right->kind,
                                    right->thread, right->bytes);
    return order != 0                      ? order
           : left->number == right->number ? 0
           : left->number < right->number  ? -1
                                           : 1;
}

static int by_name(const void *a, const void *b)
{
    return ms_live_compare(a, b);
}

bool ms_live_copy(struct ms_live_block **blocks_out, size_t *count_out)
{
    ms_lock_take(&live.lock);
    struct ms_live_block *blocks = ms_heap_alloc((live.lists[0].count + live.lists[1].count + 1) *
                                                 sizeof(struct ms_live_block));
    const struct ms_live_block *block;
    struct ms_position at = {0, 0};
    size_t count = 0;
    for (int kind = 0; blocks != NULL && (block = next_locked(&kind, &at)) != NULL;) {
        if (!block->is_carved)
            blocks[count++] = *block;
    }
    ms_lock_drop(&live.lock);
    if (blocks != NULL)
        qsort(blocks, count, sizeof(*blocks), by_name);
    *blocks_out = blocks;
    *count_out = count;
    return blocks != NULL;
}

bool ms_live_thread(uint32_t thread, struct ms_live_thread *thread_out)
{
    ms_lock_take(&live.lock);
    const bool is_there = thread < live.thread_count;
    if (is_there)
        *thread_out = live.threads[thread];
    ms_lock_drop(&live.lock);
    return is_there;
}
