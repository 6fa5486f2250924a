/* SPDX-License-Identifier: Apache-2.0 */
/* Finds words in bytes: any 8 bytes, wherever they begin, whose value lies in a window of
 * addresses. Fast if there are none: the scan compares 64 words at a time, by one of their upper
 * four bytes. Fast as well if all words found lie in one range that the caller skips. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/range.h"

enum { MS_WORD_WINDOWS = 3, MS_WORD_GROUP = 64 };

/* 16 bytes at a time: compilers always make vector instructions of this type. */
typedef unsigned char ms_lanes __attribute__((vector_size(16)));

/* Started by ms_word_scan_begin; the fields but `skipped` belong to word_scan.c. */
struct ms_words {
    const unsigned char *bytes;
    size_t count;
    struct ms_word_window {
        struct ms_range range;
        unsigned plane_count;
        struct ms_word_plane {
            unsigned char at; /* which of the upper bytes; first the one that excludes most */
            unsigned char low, span; /* its values: low .. low + span */
        } planes[4];
    } windows[MS_WORD_WINDOWS];
    unsigned window_count;
    struct ms_range skipped; /* words in it are not found; at first empty, changed by the caller */
    size_t group;            /* where the words of `marks` begin; at first before the bytes */
    uint64_t marks;          /* bit i: the word that begins at group + i may match */
};

static inline bool ms_word_is_in(const struct ms_range *range, uint64_t word)
{
    return word >= range->begin && word < range->end;
}

/* An empty window holds nothing. The bytes remain the caller's. */
void ms_word_scan_begin(struct ms_words *words, const void *bytes, size_t count,
                        const struct ms_range windows[MS_WORD_WINDOWS]);

/* Finds the next word, in ascending order. Returns false if there is none. */
bool ms_word_scan_next(struct ms_words *words, size_t *offset_out, uint64_t *word_out);
