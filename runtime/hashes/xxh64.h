/* SPDX-License-Identifier: Apache-2.0 */
/* XXH64 of a stream of bytes, with seed 0: a hash that is fast and not cryptographic
 * (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md). */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct ms_xxh64 {
    uint64_t lanes[4];
    uint64_t total; /* bytes so far */
    unsigned char rest[32];
    size_t rest_bytes;
};

void ms_xxh64_begin(struct ms_xxh64 *hash);
void ms_xxh64_add(struct ms_xxh64 *hash, const void *bytes, size_t count);
uint64_t ms_xxh64_end(const struct ms_xxh64 *hash);
