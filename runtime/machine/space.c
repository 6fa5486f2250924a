/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/machine/space.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/hot.h"

static struct {
    pthread_mutex_t lock;
    pthread_cond_t released;
    struct ms_block **blocks; /* by address, guarded by lock */
    size_t count, capacity;   /* guarded by lock */
    /* Reserved minus backed bytes, by device; changed when a claim ends. */
    _Atomic int64_t unbacked_bytes[MS_MAX_DEVICES];
    _Atomic uint64_t live_bytes[MS_MAX_DEVICES];
    _Atomic CUdeviceptr begin, end; /* around all blocks and their guards */
} space = {.lock = PTHREAD_MUTEX_INITIALIZER, .released = PTHREAD_COND_INITIALIZER};

/* Index of the first block that ends behind address. */
static size_t lower_bound_locked(CUdeviceptr address)
{
    size_t low = 0;
    size_t high = space.count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (space.blocks[middle]->address + space.blocks[middle]->bytes <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct ms_block *find_locked(CUdeviceptr address)
{
    const size_t at = lower_bound_locked(address);
    if (at < space.count && space.blocks[at]->address <= address)
        return space.blocks[at];
    return NULL;
}

static void count_unbacked_locked(struct ms_block *block)
{
    const size_t unbacked = block->backing.bytes - block->backing.backed_bytes;
    atomic_fetch_add(&space.unbacked_bytes[block->device],
                     (int64_t)unbacked - (int64_t)block->counted_unbacked);
    block->counted_unbacked = unbacked;
}

/* The addresses that only this block's pointers can have. */
static CUdeviceptr reach_begin(const struct ms_block *block)
{
    return block->address - block->backing.granule;
}

static CUdeviceptr reach_end(const struct ms_block *block)
{
    return block->address + block->backing.bytes + block->backing.granule;
}

static void set_bounds_locked(void)
{
    const bool any = space.count > 0;
    atomic_store(&space.begin, any ? reach_begin(space.blocks[0]) : 0);
    atomic_store(&space.end, any ? reach_end(space.blocks[space.count - 1]) : 0);
}

bool ms_space_add(struct ms_block *block)
{
    pthread_mutex_lock(&space.lock);
    if (space.count == space.capacity) {
        const size_t capacity = 2 * space.capacity + 64;
        struct ms_block **grown = ms_heap_realloc(space.blocks, capacity * sizeof(*grown));
        if (grown == NULL) {
            pthread_mutex_unlock(&space.lock);
            return false;
        }
        space.blocks = grown;
        space.capacity = capacity;
    }
    const size_t at = lower_bound_locked(block->address);
    memmove(&space.blocks[at + 1], &space.blocks[at], (space.count - at) * sizeof(*space.blocks));
    space.blocks[at] = block;
    space.count++;
    block->claimed = false;
    block->counted_deferred = true;
    block->counted_unbacked = 0;
    count_unbacked_locked(block);
    atomic_fetch_add(&space.live_bytes[block->device], block->bytes);
    set_bounds_locked();
    atomic_fetch_add(&ms_hot.owned, 1);
    atomic_fetch_add(&ms_hot.deferred, 1);
    pthread_mutex_unlock(&space.lock);
    return true;
}

void ms_space_remove(struct ms_block *block)
{
    pthread_mutex_lock(&space.lock);
    const size_t at = lower_bound_locked(block->address);
    if (at == space.count || space.blocks[at] != block)
        ms_fatal("block 0x%llx is not in the index", block->address);
    memmove(&space.blocks[at], &space.blocks[at + 1],
            (space.count - at - 1) * sizeof(*space.blocks));
    space.count--;
    atomic_fetch_sub(&space.live_bytes[block->device], block->bytes);
    set_bounds_locked();
    atomic_fetch_sub(&space.unbacked_bytes[block->device], (int64_t)block->counted_unbacked);
    if (block->counted_deferred)
        atomic_fetch_sub(&ms_hot.deferred, 1);
    atomic_fetch_sub(&ms_hot.owned, 1);
    pthread_cond_broadcast(&space.released);
    pthread_mutex_unlock(&space.lock);
}

/* Waits until find(address) gives an unclaimed block, or none, and claims it. */
static struct ms_block *claim_locked(struct ms_block *(*find)(CUdeviceptr), CUdeviceptr address)
{
    struct ms_block *block;
    while ((block = find(address)) != NULL && block->claimed)
        pthread_cond_wait(&space.released, &space.lock);
    if (block != NULL)
        block->claimed = true;
    return block;
}

struct ms_block *ms_space_claim(CUdeviceptr address)
{
    pthread_mutex_lock(&space.lock);
    struct ms_block *block = claim_locked(find_locked, address);
    pthread_mutex_unlock(&space.lock);
    return block;
}

struct ms_block *ms_space_try_claim(CUdeviceptr address)
{
    pthread_mutex_lock(&space.lock);
    struct ms_block *block = find_locked(address);
    if (block != NULL && block->claimed)
        block = NULL;
    if (block != NULL)
        block->claimed = true;
    pthread_mutex_unlock(&space.lock);
    return block;
}

void ms_space_claim_two(CUdeviceptr a, CUdeviceptr b, struct ms_block **block_a_out,
                        struct ms_block **block_b_out)
{
    pthread_mutex_lock(&space.lock);
    if (a > b) {
        struct ms_block **swapped = block_a_out;
        block_a_out = block_b_out;
        block_b_out = swapped;
        const CUdeviceptr low = b;
        b = a;
        a = low;
    }
    struct ms_block *first = claim_locked(find_locked, a);
    *block_a_out = first;
    /* Both addresses may lie in one block, which must not be claimed twice. */
    *block_b_out = first != NULL && find_locked(b) == first ? first : claim_locked(find_locked, b);
    pthread_mutex_unlock(&space.lock);
}

static struct ms_block *next_locked(CUdeviceptr address)
{
    const size_t at = lower_bound_locked(address);
    return at < space.count ? space.blocks[at] : NULL;
}

struct ms_block *ms_space_claim_next(CUdeviceptr address)
{
    pthread_mutex_lock(&space.lock);
    struct ms_block *block = claim_locked(next_locked, address);
    pthread_mutex_unlock(&space.lock);
    return block;
}

void ms_space_release(struct ms_block *block)
{
    if (block == NULL)
        return;
    const bool deferred = block->lineage.resident_bytes < block->lineage.bytes;
    pthread_mutex_lock(&space.lock);
    if (deferred != block->counted_deferred) {
        if (deferred)
            atomic_fetch_add(&ms_hot.deferred, 1);
        else
            atomic_fetch_sub(&ms_hot.deferred, 1);
        block->counted_deferred = deferred;
    }
    count_unbacked_locked(block);
    block->claimed = false;
    pthread_cond_broadcast(&space.released);
    pthread_mutex_unlock(&space.lock);
}

static struct ms_block_facts facts_of(const struct ms_block *block)
{
    return (struct ms_block_facts){.address = block->address,
                                   .bytes = block->bytes,
                                   .context = block->context,
                                   .device = block->device,
                                   .id = block->id};
}

/* Copies the facts of what find(address) gives. */
static bool tell(struct ms_block *(*find)(CUdeviceptr), CUdeviceptr address,
                 struct ms_block_facts *facts_out)
{
    pthread_mutex_lock(&space.lock);
    const struct ms_block *block = find(address);
    if (block != NULL)
        *facts_out = facts_of(block);
    pthread_mutex_unlock(&space.lock);
    return block != NULL;
}

bool ms_space_look_up(CUdeviceptr address, struct ms_block_facts *facts_out)
{
    return tell(find_locked, address, facts_out);
}

bool ms_space_first_behind(CUdeviceptr address, struct ms_block_facts *facts_out)
{
    return tell(next_locked, address, facts_out);
}

void ms_space_bounds(CUdeviceptr *begin_out, CUdeviceptr *end_out)
{
    *begin_out = atomic_load_explicit(&space.begin, memory_order_relaxed);
    *end_out = atomic_load_explicit(&space.end, memory_order_relaxed);
}

/* The guards of neighbours do not overlap, so at most one of two blocks is meant. */
bool ms_space_reach(CUdeviceptr pointer, struct ms_block_facts *facts_out)
{
    pthread_mutex_lock(&space.lock);
    const struct ms_block *found = NULL;
    size_t at = lower_bound_locked(pointer);
    if (at > 0 && pointer < reach_end(space.blocks[at - 1]))
        at--;
    if (at < space.count && pointer >= reach_begin(space.blocks[at]) &&
        pointer < reach_end(space.blocks[at]) && space.blocks[at]->counted_deferred)
        found = space.blocks[at];
    if (found != NULL)
        *facts_out = facts_of(found);
    pthread_mutex_unlock(&space.lock);
    return found != NULL;
}

uint64_t ms_space_live_bytes(CUdevice device)
{
    return device >= 0 && device < MS_MAX_DEVICES ? atomic_load(&space.live_bytes[device]) : 0;
}

uint64_t ms_space_unbacked_bytes(CUdevice device)
{
    if (device < 0 || device >= MS_MAX_DEVICES)
        return 0;
    const int64_t bytes = atomic_load(&space.unbacked_bytes[device]);
    return bytes > 0 ? (uint64_t)bytes : 0;
}
