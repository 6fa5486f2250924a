/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A set of numbers, each for a thing that the caller knows, found by the thing's hash. The set does
 * not know the things: the caller compares them. Takes 10 bytes a number.
 */
#pragma once

#include <stdint.h>
#include <string.h>

#include "runtime/base/pages.h"

struct ms_hash_set {
    struct ms_pages slots;
    size_t size, count;
};

#define MS_NO_NUMBER UINT32_MAX

/* True if the number stands for the thing that the caller looks for. */
typedef bool ms_hash_equal(const void *context, uint32_t number);

/* MS_NO_NUMBER: none. */
uint32_t ms_hash_set_find(const struct ms_hash_set *set, uint64_t hash, ms_hash_equal *is_it,
                          const void *context);

/* Makes room for `count` numbers in all. Otherwise ms_hash_set_add doubles the room when needed. */
bool ms_hash_set_reserve(struct ms_hash_set *set, size_t count);
/* Adds a number below MS_NO_NUMBER that is not yet in the set. False: out of memory. */
bool ms_hash_set_add(struct ms_hash_set *set, uint64_t hash, uint32_t number);
void ms_hash_set_cleanup(struct ms_hash_set *set);

/* Hashes bytes one by one: begin, add each, end. Hashes differ from process to process, so nobody
 * can write a file of names that all collide. */
uint64_t ms_hash_set_begin(void);
static inline uint64_t ms_hash_add(uint64_t hash, unsigned char byte)
{
    return (hash ^ byte) * 0x9ddfea08eb382d69u;
}
static inline uint64_t ms_hash_end(uint64_t hash)
{
    hash = (hash ^ hash >> 32) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

uint64_t ms_hash_set_bytes(const void *bytes, size_t count);
static inline uint64_t ms_hash_set_text(const char *text)
{
    return ms_hash_set_bytes(text, strlen(text));
}
