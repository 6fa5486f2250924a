/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/checksum.h"

#include <string.h>

static const uint64_t prime_1 = UINT64_C(0x9e3779b185ebca87);
static const uint64_t prime_2 = UINT64_C(0xc2b2ae3d27d4eb4f);
static const uint64_t prime_3 = UINT64_C(0x165667b19e3779f9);

enum { LANES = 4 };

static inline uint64_t rotate(uint64_t word, int by)
{
    return word << by | word >> (64 - by);
}

static inline uint64_t step(uint64_t lane, uint64_t word)
{
    return rotate(lane + word * prime_2, 31) * prime_1;
}

static uint64_t finish(const uint64_t lanes[LANES], size_t count)
{
    uint64_t sum = count * prime_1;
    for (int i = 0; i < LANES; i++)
        sum = rotate((sum ^ step(0, lanes[i])) * prime_1 + prime_2, 27);
    sum = (sum ^ sum >> 33) * prime_2;
    sum = (sum ^ sum >> 29) * prime_3;
    return sum ^ sum >> 32;
}

/* Pads the last block with zeros; the count in the sum tells them from zeros of the input. */
uint64_t ms_checksum(const void *bytes, size_t count)
{
    uint64_t lanes[LANES] = {prime_1 + prime_2, prime_2, 0, -prime_1}, words[LANES];
    const unsigned char *at = bytes;
    size_t left = count;
    for (; left >= sizeof(words); left -= sizeof(words), at += sizeof(words)) {
        memcpy(words, at, sizeof(words));
        for (int i = 0; i < LANES; i++)
            lanes[i] = step(lanes[i], words[i]);
    }
    if (left > 0) {
        memset(words, 0, sizeof(words));
        memcpy(words, at, left);
        for (int i = 0; i < LANES; i++)
            lanes[i] = step(lanes[i], words[i]);
    }
    return finish(lanes, count);
}
