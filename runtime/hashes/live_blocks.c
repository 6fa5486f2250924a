/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/hashes/live_blocks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/array.h"
#include "runtime/base/heap.h"
#include "runtime/base/lock.h"

struct list {
    struct ms_live_block *all; /* by address */
    size_t count, capacity;
};

/* How many blocks of a size a thread has made. */
struct size {
    enum ms_live_kind kind;
    uint32_t thread;
    size_t bytes;
    uint32_t count;
};

static struct {
    struct ms_lock lock; /* guards all of this */
    struct list lists[2];
    struct size *sizes; /* sorted */
    size_t size_count, size_capacity;
    struct ms_live_thread *threads;
    size_t thread_count, thread_capacity;
} live = {.lock = MS_LOCK_INIT(live_blocks)};

static _Thread_local uint32_t thread_number; /* from 1 on; 0: none yet */

/* The index of the first block that ends behind address. */
static size_t behind(const struct list *list, CUdeviceptr address)
{
    size_t low = 0;
    size_t high = list->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (list->all[middle].address + list->all[middle].bytes <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void remove_at(struct list *list, size_t at, size_t count)
{
    if (count == 0)
        return;
    list->count -= count;
    memmove(&list->all[at], &list->all[at + count], (list->count - at) * sizeof(*list->all));
}

static void remove_overlaps(struct list *list, CUdeviceptr address, size_t bytes)
{
    const size_t at = behind(list, address);
    size_t count = 0;
    while (at + count < list->count && list->all[at + count].address < address + bytes)
        count++;
    remove_at(list, at, count);
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
    struct list *wholes = &live.lists[MS_LIVE_WHOLE];
    for (size_t at = behind(wholes, address);
         at < wholes->count && wholes->all[at].address < address + bytes; at++)
        wholes->all[at].is_carved = true;
}

void ms_live_add(enum ms_live_kind kind, CUdeviceptr address, size_t bytes)
{
    struct ms_live_block block = {.address = address, .bytes = bytes, .kind = kind};
    ms_driver.ctx_get_current(&block.context);
    ms_lock_take(&live.lock);
    struct list *list = &live.lists[kind];
    remove_overlaps(list, address, bytes);
    if (kind == MS_LIVE_PART)
        carve_locked(address, bytes);
    if (name_locked(&block) && MS_ARRAY_GROW(list->all, list->count, list->capacity)) {
        const size_t at = behind(list, address);
        memmove(&list->all[at + 1], &list->all[at], (list->count++ - at) * sizeof(block));
        list->all[at] = block;
    }
    ms_lock_drop(&live.lock);
}

void ms_live_remove(enum ms_live_kind kind, CUdeviceptr address)
{
    ms_lock_take(&live.lock);
    struct list *list = &live.lists[kind];
    const size_t at = behind(list, address);
    if (at < list->count && list->all[at].address == address) {
        if (kind == MS_LIVE_WHOLE)
            remove_overlaps(&live.lists[MS_LIVE_PART], address, list->all[at].bytes);
        remove_at(list, at, 1);
    }
    ms_lock_drop(&live.lock);
}

void ms_live_set_label(CUdeviceptr address, const char *label)
{
    ms_lock_take(&live.lock);
    for (int kind = 0; kind < 2; kind++) {
        struct list *list = &live.lists[kind];
        const size_t at = behind(list, address);
        if (at < list->count && list->all[at].address == address)
            snprintf(list->all[at].label, sizeof(list->all[at].label), "%s", label);
    }
    ms_lock_drop(&live.lock);
}

void ms_live_forget(CUcontext context)
{
    ms_lock_take(&live.lock);
    for (int kind = 0; kind < 2; kind++) {
        struct list *list = &live.lists[kind];
        size_t kept = 0;
        for (size_t i = 0; i < list->count; i++) {
            if (list->all[i].context != context)
                list->all[kept++] = list->all[i];
        }
        list->count = kept;
    }
    ms_lock_drop(&live.lock);
}

bool ms_live_has(CUcontext context)
{
    bool has = false;
    ms_lock_take(&live.lock);
    for (int kind = 0; kind < 2; kind++) {
        for (size_t i = 0; i < live.lists[kind].count; i++)
            has = has || live.lists[kind].all[i].context == context;
    }
    ms_lock_drop(&live.lock);
    return has;
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
    size_t count = 0;
    for (int kind = 0; kind < 2 && blocks != NULL; kind++) {
        for (size_t i = 0; i < live.lists[kind].count; i++) {
            if (!live.lists[kind].all[i].is_carved)
                blocks[count++] = live.lists[kind].all[i];
        }
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
