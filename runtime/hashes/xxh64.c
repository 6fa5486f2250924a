/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/hashes/xxh64.h"

#include <string.h>

#define PRIME_1 UINT64_C(0x9e3779b185ebca87)
#define PRIME_2 UINT64_C(0xc2b2ae3d27d4eb4f)
#define PRIME_3 UINT64_C(0x165667b19e3779f9)
#define PRIME_4 UINT64_C(0x85ebca77c2b2ae63)
#define PRIME_5 UINT64_C(0x27d4eb2f165667c5)

static uint64_t rotate(uint64_t value, unsigned bits)
{
    return value << bits | value >> (64 - bits);
}

static uint64_t mix(uint64_t lane, uint64_t word)
{
    return rotate(lane + word * PRIME_2, 31) * PRIME_1;
}

static uint64_t merge(uint64_t sum, uint64_t lane)
{
    return (sum ^ mix(0, lane)) * PRIME_1 + PRIME_4;
}

/* Both architectures are little-endian, as the hash is. */
static uint64_t load(const unsigned char *bytes, size_t count)
{
    uint64_t word = 0;
    memcpy(&word, bytes, count);
    return word;
}

void ms_xxh64_begin(struct ms_xxh64 *hash)
{
    *hash = (struct ms_xxh64){.lanes = {PRIME_1 + PRIME_2, PRIME_2, 0, 0 - PRIME_1}};
}

static void add_stripes(struct ms_xxh64 *hash, const unsigned char *bytes, size_t count)
{
    uint64_t lanes[4];
    memcpy(lanes, hash->lanes, sizeof(lanes));
    for (; count > 0; count--, bytes += 32) {
        for (int i = 0; i < 4; i++)
            lanes[i] = mix(lanes[i], load(bytes + 8 * i, 8));
    }
    memcpy(hash->lanes, lanes, sizeof(lanes));
}

void ms_xxh64_add(struct ms_xxh64 *hash, const void *bytes, size_t count)
{
    const unsigned char *at = bytes;
    hash->total += count;
    if (hash->rest_bytes > 0) {
        const size_t room = sizeof(hash->rest) - hash->rest_bytes;
        const size_t now = count < room ? count : room;
        memcpy(hash->rest + hash->rest_bytes, at, now);
        hash->rest_bytes += now;
        at += now;
        count -= now;
        if (hash->rest_bytes < sizeof(hash->rest))
            return;
        add_stripes(hash, hash->rest, 1);
        hash->rest_bytes = 0;
    }
    add_stripes(hash, at, count / 32);
    hash->rest_bytes = count % 32;
    memcpy(hash->rest, at + count / 32 * 32, hash->rest_bytes);
}

uint64_t ms_xxh64_end(const struct ms_xxh64 *hash)
{
    const unsigned char *at = hash->rest;
    size_t left = hash->rest_bytes;
    uint64_t sum = PRIME_5;
    if (hash->total >= 32) {
        const uint64_t *lanes = hash->lanes;
        sum =
            rotate(lanes[0], 1) + rotate(lanes[1], 7) + rotate(lanes[2], 12) + rotate(lanes[3], 18);
        for (int i = 0; i < 4; i++)
            sum = merge(sum, lanes[i]);
    }
    sum += hash->total;
    for (; left >= 8; left -= 8, at += 8)
        sum = rotate(sum ^ mix(0, load(at, 8)), 27) * PRIME_1 + PRIME_4;
    for (; left >= 4; left -= 4, at += 4)
        sum = rotate(sum ^ load(at, 4) * PRIME_1, 23) * PRIME_2 + PRIME_3;
    for (; left > 0; left--, at++)
        sum = rotate(sum ^ *at * PRIME_5, 11) * PRIME_1;
    sum = (sum ^ sum >> 33) * PRIME_2;
    sum = (sum ^ sum >> 29) * PRIME_3;
    return sum ^ sum >> 32;
}
