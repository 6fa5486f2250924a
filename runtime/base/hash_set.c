/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/hash_set.h"

#include <string.h>
#include <sys/auxv.h>

struct slot {
    uint32_t hash;
    uint32_t number; /* plus 1; 0: free */
};

/* At least a fifth of the slots stays free, so that every search ends. */
static size_t slots_for(size_t count)
{
    return count + count / 4 + 8;
}

static uint32_t short_hash(uint64_t hash)
{
    return (uint32_t)(hash ^ hash >> 32);
}

static size_t first_slot(const struct ms_hash_set *set, uint32_t hash)
{
    return (size_t)((uint64_t)hash * set->size >> 32);
}

static void put(struct ms_hash_set *set, struct slot one)
{
    struct slot *slots = set->slots.memory;
    size_t at = first_slot(set, one.hash);
    while (slots[at].number != 0)
        at = at + 1 < set->size ? at + 1 : 0;
    slots[at] = one;
}

bool ms_hash_set_reserve(struct ms_hash_set *set, size_t count)
{
    struct ms_hash_set larger = {.size = slots_for(count), .count = set->count};
    const struct slot *slots = set->slots.memory;
    if (larger.size <= set->size)
        return true;
    if (!ms_pages_grow(&larger.slots, larger.size * sizeof(*slots)))
        return false;
    for (size_t i = 0; i < set->size; i++) {
        if (slots[i].number != 0)
            put(&larger, slots[i]);
    }
    ms_pages_cleanup(&set->slots);
    *set = larger;
    return true;
}

bool ms_hash_set_add(struct ms_hash_set *set, uint64_t hash, uint32_t number)
{
    if (slots_for(set->count + 1) > set->size && !ms_hash_set_reserve(set, 2 * set->count + 64))
        return false;
    put(set, (struct slot){short_hash(hash), number + 1});
    set->count++;
    return true;
}

uint32_t ms_hash_set_find(const struct ms_hash_set *set, uint64_t hash, ms_hash_equal *is_it,
                          const void *context)
{
    const struct slot *slots = set->slots.memory;
    const uint32_t wanted = short_hash(hash);
    if (set->count == 0)
        return MS_NO_NUMBER;
    for (size_t at = first_slot(set, wanted); slots[at].number != 0;
         at = at + 1 < set->size ? at + 1 : 0) {
        if (slots[at].hash == wanted && is_it(context, slots[at].number - 1))
            return slots[at].number - 1;
    }
    return MS_NO_NUMBER;
}

void ms_hash_set_cleanup(struct ms_hash_set *set)
{
    ms_pages_cleanup(&set->slots);
    *set = (struct ms_hash_set){0};
}

/* Seeded with the 16 random bytes that the kernel gives each process. */
uint64_t ms_hash_set_begin(void)
{
    static const uint64_t none = 0x243f6a8885a308d3u;
    const void *random = (const void *)(uintptr_t)getauxval(AT_RANDOM);
    uint64_t seed;
    memcpy(&seed, random != NULL ? random : &none, sizeof(seed));
    return seed;
}

uint64_t ms_hash_set_bytes(const void *bytes, size_t count)
{
    const unsigned char *at = bytes;
    uint64_t hash = ms_hash_set_begin();
    for (size_t i = 0; i < count; i++)
        hash = ms_hash_add(hash, at[i]);
    return ms_hash_end(hash);
}
