/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words in bytes: each 8 bytes, wherever they begin, whose value lies in a window of addresses. Fast where
 * there are none: 64 of them are compared at a time, by their upper four bytes.
 */
#ifndef METASHARD_RUNTIME_CALLS_WORD_SCAN_H
#define METASHARD_RUNTIME_CALLS_WORD_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/range.h"

enum { MS_WORD_WINDOWS = 3, MS_WORD_GROUP = 64 };

/* 16 bytes at a time: compilers make vector instructions of it, whatever they think of loops. */
typedef unsigned char ms_lanes __attribute__((vector_size(16)));

/* Begun by ms_words_begin; the fields are word_scan.c's own. */
struct ms_words {
    const unsigned char *bytes;
    size_t count;
    struct ms_word_window {
        struct ms_range range;
        unsigned probe;           /* the upper byte that tells most */
        ms_lanes low[4], span[4]; /* of the upper bytes, the lowest first: low .. low + span */
    } windows[MS_WORD_WINDOWS];
    unsigned window_count;
    size_t group; /* where the words of `marks` begin; first before the bytes */
    ms_lanes
        marks[MS_WORD_GROUP / 16]; /* a byte that is not 0: the word that begins there may be one */
    unsigned at;                   /* in marks */
};

/* An empty window holds nothing. The bytes stay the caller's. */
void ms_words_begin(struct ms_words *words, const void *bytes, size_t count,
                    const struct ms_range windows[MS_WORD_WINDOWS]);

/* The next word, in ascending order. False: there is none. */
bool ms_words_next(struct ms_words *words, size_t *offset_out, uint64_t *word_out);

#endif
