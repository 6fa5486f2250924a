/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/ranks/flows/cache.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* c10::reportMemoryUsageToProfiler, of libc10 */
#define REPORT _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE
struct device {
    int8_t type, index; /* c10::Device; type 1 is CUDA */
};
__attribute__((weak)) void REPORT(void *block, int64_t size, size_t allocated, size_t reserved,
                                  struct device device);

enum { LEAST = 512, MANY = 10 };

/* Pieces of a segment follow one another; two free ones never do. */
struct piece {
    CUdeviceptr segment, address; /* the first piece of a segment lies where that begins */
    size_t bytes;
    bool is_small, is_used;
};

static struct {
    size_t granule;
    bool reports;
    struct piece *pieces;
    size_t count, capacity;
} cache;

void cache_start(size_t granule, bool reports)
{
    cache.granule = granule;
    cache.reports = reports;
}

static void report(const struct piece *piece, bool is_taken)
{
    const int64_t bytes = (int64_t)piece->bytes;
    if (cache.reports && REPORT != NULL)
        REPORT((void *)(uintptr_t)piece->address, is_taken ? bytes : -bytes, 0, 0,
               (struct device){.type = 1});
}

static bool make_room(void)
{
    if (cache.count < cache.capacity)
        return true;
    const size_t capacity = 2 * cache.capacity + 64;
    struct piece *pieces = realloc(cache.pieces, capacity * sizeof(*pieces));
    if (pieces == NULL)
        return false;
    cache.pieces = pieces;
    cache.capacity = capacity;
    return true;
}

static void insert(size_t at, struct piece piece)
{
    memmove(&cache.pieces[at + 1], &cache.pieces[at], (cache.count++ - at) * sizeof(piece));
    cache.pieces[at] = piece;
}

static void take_out(size_t at)
{
    memmove(&cache.pieces[at], &cache.pieces[at + 1], (--cache.count - at) * sizeof(struct piece));
}

static size_t rounded(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* The smallest free piece of that pool that is large enough; cache.count if there is none. */
static size_t best_fit(size_t bytes, bool is_small)
{
    size_t best = cache.count;
    for (size_t i = 0; i < cache.count; i++) {
        const struct piece *piece = &cache.pieces[i];
        if (!piece->is_used && piece->is_small == is_small && piece->bytes >= bytes &&
            (best == cache.count || piece->bytes < cache.pieces[best].bytes))
            best = i;
    }
    return best;
}

static bool add_segment(size_t bytes, bool is_small)
{
    const size_t granule = cache.granule;
    const size_t many = bytes < MANY / 2 * granule ? MANY * granule : rounded(bytes, granule);
    struct piece piece = {.bytes = is_small ? granule : many, .is_small = is_small};
    if (!make_room() || cuMemAlloc(&piece.segment, piece.bytes) != CUDA_SUCCESS)
        return false;
    piece.address = piece.segment;
    insert(cache.count, piece);
    return true;
}

/* The rest of a large piece stays with the piece unless the rest is more than a small tensor. */
static void split(size_t at, size_t bytes)
{
    struct piece rest = cache.pieces[at];
    rest.address += bytes;
    rest.bytes -= bytes;
    if (rest.is_small ? rest.bytes < LEAST : rest.bytes <= cache.granule / 2)
        return;
    cache.pieces[at].bytes = bytes;
    insert(at + 1, rest);
}

bool cache_allocate(size_t bytes, CUdeviceptr *address_out)
{
    const size_t needed = rounded(bytes, LEAST);
    const bool is_small = needed <= cache.granule / 2;
    if (best_fit(needed, is_small) == cache.count && !add_segment(needed, is_small))
        return false;
    const size_t at = best_fit(needed, is_small);
    if (!make_room())
        return false;
    split(at, needed);
    cache.pieces[at].is_used = true;
    report(&cache.pieces[at], true);
    *address_out = cache.pieces[at].address;
    return true;
}

static void merge(size_t first)
{
    struct piece *pieces = cache.pieces;
    if (first + 1 >= cache.count || pieces[first].segment != pieces[first + 1].segment ||
        pieces[first].is_used || pieces[first + 1].is_used)
        return;
    pieces[first].bytes += pieces[first + 1].bytes;
    take_out(first + 1);
}

size_t cache_free(CUdeviceptr address)
{
    size_t at = 0;
    while (cache.pieces[at].address != address)
        at++;
    const size_t bytes = cache.pieces[at].bytes;
    report(&cache.pieces[at], false);
    cache.pieces[at].is_used = false;
    merge(at);
    if (at > 0)
        merge(at - 1);
    return bytes;
}

void cache_release(void)
{
    for (size_t i = 0; i < cache.count; i++) {
        if (cache.pieces[i].address == cache.pieces[i].segment)
            cuMemFree(cache.pieces[i].segment);
    }
    free(cache.pieces);
    memset(&cache, 0, sizeof(cache));
}
