/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds words in bytes: any 8 bytes, wherever they begin, whose value lies in a window of
 * addresses. Fast if there are none: it compares 64 of them at a time, by their upper four bytes.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/range.h"

enum { MS_WORD_WINDOWS = 3, MS_WORD_GROUP = 64 };

/* 16 bytes at a time, as a type of which compilers always make vector instructions. */
typedef unsigned char ms_lanes __attribute__((vector_size(16)));

/* Started by ms_words_begin; the fields belong to word_scan.c. */
struct ms_words {
    const unsigned char *bytes;
    size_t count;
    struct ms_word_window {
        struct ms_range range;
        unsigned probe;           /* the upper byte that excludes most */
        ms_lanes low[4], span[4]; /* of the upper bytes, the lowest first: low .. low + span */
    } windows[MS_WORD_WINDOWS];
    unsigned window_count;
    size_t group; /* where the words of `marks` begin; at first before the bytes */
    ms_lanes
        marks[MS_WORD_GROUP / 16]; /* a byte other than 0: the word that begins there may match */
    unsigned at;                   /* in marks */
};

/* An empty window holds nothing. The bytes remain the caller's. */
void ms_words_begin(struct ms_words *words, const void *bytes, size_t count,
                    const struct ms_range windows[MS_WORD_WINDOWS]);

/* Finds the next word, in ascending order. Returns false if there is none. */
bool ms_words_next(struct ms_words *words, size_t *offset_out, uint64_t *word_out);
