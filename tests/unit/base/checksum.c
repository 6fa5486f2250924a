/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/checksum.h"

#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/harness/test.h"

enum { BYTES = 4096 + 32 + 7 };

static unsigned char bytes[BYTES + 1];

static void fill(void)
{
    srand(1);
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (unsigned char)rand();
}

MS_TEST(each_bit_counts)
{
    fill();
    const uint64_t sum = ms_checksum(bytes, BYTES);
    for (size_t bit = 0; bit < 8 * BYTES; bit++) {
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        CHECK(ms_checksum(bytes, BYTES) != sum);
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    CHECK_EQ(ms_checksum(bytes, BYTES), sum);
}

/* As a program swaps the bytes of numbers, or their order. */
MS_TEST(the_order_counts)
{
    fill();
    const uint64_t sum = ms_checksum(bytes, BYTES);
    for (size_t distance = 1; distance <= 64; distance++) {
        for (size_t i = 0; i + distance < BYTES; i += 97) {
            const unsigned char first = bytes[i], second = bytes[i + distance];
            bytes[i] = second;
            bytes[i + distance] = first;
            CHECK((ms_checksum(bytes, BYTES) == sum) == (first == second));
            bytes[i] = first;
            bytes[i + distance] = second;
        }
    }
}

MS_TEST(the_number_of_bytes_counts)
{
    memset(bytes, 0, sizeof(bytes));
    for (size_t count = 0; count < 100; count++)
        CHECK(ms_checksum(bytes, count) != ms_checksum(bytes, count + 1));
}

MS_TEST(a_checksum_does_not_depend_on_the_address)
{
    fill();
    const uint64_t sum = ms_checksum(bytes, BYTES);
    memmove(bytes + 1, bytes, BYTES);
    CHECK_EQ(ms_checksum(bytes + 1, BYTES), sum);
}

/* Half of the bits change with each bit, more or less: sums do not lie close together. */
MS_TEST(a_bit_changes_half_of_the_sum)
{
    enum { LEAST = 28, MOST = 36 };
    uint64_t changed = 0;
    fill();
    const uint64_t sum = ms_checksum(bytes, BYTES);
    for (size_t bit = 0; bit < 8 * BYTES; bit++) {
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        changed += (uint64_t)__builtin_popcountll(ms_checksum(bytes, BYTES) ^ sum);
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    CHECK(changed / (8 * BYTES) >= LEAST && changed / (8 * BYTES) <= MOST);
}
