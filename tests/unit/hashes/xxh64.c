/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/hashes/xxh64.h"

#include <string.h>

#include "tests/simcuda/harness/test.h"

static uint64_t hash_of(const void *bytes, size_t count, size_t piece)
{
    struct ms_xxh64 hash;
    ms_xxh64_begin(&hash);
    for (size_t at = 0; at < count; at += piece)
        ms_xxh64_add(&hash, (const char *)bytes + at, count - at < piece ? count - at : piece);
    return ms_xxh64_end(&hash);
}

static uint64_t hash_of_text(const char *text)
{
    return hash_of(text, strlen(text), 1);
}

/* As Python's xxhash.xxh64_hexdigest says. */
MS_TEST(known_hashes)
{
    CHECK_EQ(hash_of_text(""), UINT64_C(0xef46db3751d8e999));
    CHECK_EQ(hash_of_text("a"), UINT64_C(0xd24ec4f1a98c6e5b));
    CHECK_EQ(hash_of_text("abc"), UINT64_C(0x44bc2cf5ad770999));
    CHECK_EQ(hash_of_text("Nobody inspects the spammish repetition"), UINT64_C(0xfbcea83c8a378bf1));
}

MS_TEST(pieces_make_no_difference)
{
    unsigned char bytes[1000];
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (unsigned char)(i * 7 >> 2);
    for (size_t count = 0; count < 200; count++) {
        for (size_t piece = 1; piece < 70; piece++)
            CHECK_EQ(hash_of(bytes, count, piece), hash_of(bytes, count, sizeof(bytes)));
    }
    CHECK(hash_of(bytes, 999, 100) != hash_of(bytes, 1000, 100));
}
