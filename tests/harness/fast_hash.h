/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hash of bytes that tests compare, eight at a time: with one byte at a time the hash is a third
 * of what such a test takes. A change of any one word changes the hash.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tools/simcuda/harness/range_access.h"

RANGE_ACCESS static inline uint64_t fast_hash(const void *bytes, size_t count)
{
    range_read(bytes, count);
    const unsigned char *at = bytes;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; count >= sizeof(hash); at += sizeof(hash), count -= sizeof(hash)) {
        uint64_t word;
        memcpy(&word, at, sizeof(word));
        hash = (hash ^ word) * UINT64_C(0x9fb21c651e98df25);
        hash ^= hash >> 32;
    }
    for (; count > 0; at++, count--)
        hash = (hash ^ *at) * UINT64_C(0x100000001b3);
    return hash;
}
