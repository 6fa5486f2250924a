/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading JSON documents (RFC 8259), with faults that name the place.
 *
 * The reader makes no objects: ms_json_check checks a document once, as a whole, and the other
 * functions walk the checked text. A value is the address of its first character in that text; NULL
 * is no value. Walking a checked text finds no faults and cannot leave the text. Nothing here
 * recurses.
 *
 * Other readers would need memory for each value, many times the text's size, and from the
 * program's malloc.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/arena.h"
#include "runtime/base/pages.h"
#include "runtime/document/fault.h"

enum { MS_JSON_DEPTH = 2048, MS_JSON_MAX_BYTES = 256 << 20 };

/*
 * Checks that a text of at most MS_JSON_MAX_BYTES is an object or a list by the grammar; in UTF-8,
 * without a NUL; with integers of 64 bits, nesting of at most MS_JSON_DEPTH, and no key twice in an
 * object.
 */
bool ms_json_check(const struct ms_fault_context *reading, const char *text, size_t bytes,
                   const char **root_out);

static inline bool ms_json_is_object(const char *value)
{
    return value != NULL && *value == '{';
}
static inline bool ms_json_is_list(const char *value)
{
    return value != NULL && *value == '[';
}
static inline bool ms_json_is_string(const char *value)
{
    return value != NULL && *value == '"';
}

/*
 * The members of an object or the elements of a list; other values have none:
 *
 *     struct ms_json_walk walk = {.in = value};
 *     while (ms_json_next(&walk))
 *         ... walk.key, walk.value
 */
struct ms_json_walk {
    const char *in;
    const char *key; /* a string; NULL in a list */
    const char *value;
};
bool ms_json_next(struct ms_json_walk *walk);

/* Where the value's text ends. */
const char *ms_json_end(const char *value);

/* The number of members or elements. */
size_t ms_json_size(const char *value);

/* Decodes a string. Returns the text, in the arena, or NULL if out of memory. */
char *ms_json_text(const char *string, struct ms_arena *arena);
bool ms_json_is_text(const char *string, const char *text); /* false for other values */
uint64_t ms_json_hash(const char *string);                  /* ms_hash_set_text() of the text */

/* Finds an object's members by `keys`, which ends with NULL; sets NULL for a missing member.
 * Another value than an object is a fault, and so is an unknown key if `expected`, the keys for the
 * message, is not NULL. */
bool ms_json_members(const struct ms_fault_context *reading, const struct ms_place *place,
                     const char *object, const char *const *keys, const char **values_out,
                     const char *expected);

/* Reads an integer from `least` to `most`. */
bool ms_json_count(const struct ms_fault_context *reading, const struct ms_place *place,
                   const char *value, uint64_t least, uint64_t most, uint64_t *count_out);

/* Sets a fault at the member of `place` whose key is `string`. */
bool ms_json_fault_at(const struct ms_fault_context *reading, const struct ms_place *place,
                      const char *string, const char *reason, const char *expected);

/* Reads a whole file of at most `most` bytes. The caller cleans up the text. */
bool ms_json_read_file(const char *path, size_t most, struct ms_pages *text_out, size_t *bytes_out,
                       struct ms_fault *fault);
