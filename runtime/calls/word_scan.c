/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/word_scan.h"

#include <string.h>

enum { GROUP = MS_WORD_GROUP, LANES = sizeof(ms_lanes), UPPER_AT = 4 };

static ms_lanes spread(unsigned value)
{
    return (ms_lanes){0} + (unsigned char)value;
}

/* The values that the upper bytes of addresses in the window can have: one value down to the byte
 * in which the bounds first differ, and any value below it. */
static void add_window(struct ms_words *words, struct ms_range range)
{
    const uint64_t first = range.begin, last = range.end - 1;
    struct ms_word_window *window = &words->windows[words->window_count++];
    bool is_same = true;
    window->range = range;
    window->probe = 0;
    for (unsigned i = UPPER_AT; i-- > 0;) {
        const unsigned low = (unsigned)(first >> (32 + 8 * i)) & 0xff;
        const unsigned high = (unsigned)(last >> (32 + 8 * i)) & 0xff;
        window->probe = window->probe == 0 && high > 0 ? i : window->probe;
        window->low[i] = spread(is_same ? low : 0);
        window->span[i] = spread(is_same ? high - low : 0xff);
        is_same = is_same && low == high;
    }
}

void ms_words_begin(struct ms_words *words, const void *bytes, size_t count,
                    const struct ms_range windows[MS_WORD_WINDOWS])
{
    words->bytes = bytes;
    words->count = count;
    words->window_count = 0;
    for (unsigned i = 0; i < MS_WORD_WINDOWS; i++) {
        if (windows[i].end > windows[i].begin)
            add_window(words, windows[i]);
    }
    memset(words->marks, 0, sizeof(words->marks));
    words->group = -(size_t)GROUP;
    words->at = GROUP;
}

/* Marks those of 16 words whose upper byte with this number is one of the window's. */
static inline ms_lanes match(const struct ms_word_window *window, unsigned i,
                             const unsigned char *bytes)
{
    ms_lanes value;
    memcpy(&value, bytes + UPPER_AT + i, sizeof(value));
    return (ms_lanes)(value - window->low[i] <= window->span[i]);
}

static inline bool is_any(ms_lanes lanes)
{
    uint64_t halves[2];
    memcpy(halves, &lanes, sizeof(halves));
    return (halves[0] | halves[1]) != 0;
}

/* A cheap test, false for most groups without a match: the top byte of addresses is not zero. */
static bool may_hold(const struct ms_word_window *window, const unsigned char *bytes)
{
    ms_lanes found = {0};
    for (unsigned at = 0; at < GROUP; at += LANES)
        found |= match(window, window->probe, bytes + at);
    return is_any(found);
}

static bool mark(struct ms_words *words, const struct ms_word_window *window,
                 const unsigned char *bytes)
{
    ms_lanes any = {0};
    for (unsigned i = 0; i < MS_WORD_GROUP / 16; i++, bytes += sizeof(any)) {
        const ms_lanes found = match(window, 0, bytes) & match(window, 1, bytes) &
                               match(window, 2, bytes) & match(window, 3, bytes);
        words->marks[i] |= found;
        any |= found;
    }
    return is_any(any);
}

static bool mark_group(struct ms_words *words, const unsigned char *bytes)
{
    bool is_marked = false;
    for (unsigned i = 0; i < words->window_count; i++) {
        const struct ms_word_window *window = &words->windows[i];
        if (may_hold(window, bytes) && mark(words, window, bytes))
            is_marked = true;
    }
    return is_marked;
}

/* Finds the next group that may hold a match. The bytes end with zeros, which never match. */
static bool next_group(struct ms_words *words)
{
    words->at = 0;
    for (words->group += GROUP; words->group + 8 <= words->count; words->group += GROUP) {
        const size_t left = words->count - words->group;
        unsigned char last[GROUP + 8] = {0};
        const unsigned char *bytes = words->bytes + words->group;
        if (left < sizeof(last))
            bytes = memcpy(last, bytes, left);
        if (mark_group(words, bytes))
            return true;
    }
    return false;
}

static bool is_in(const struct ms_words *words, uint64_t word)
{
    for (unsigned i = 0; i < words->window_count; i++) {
        if (word >= words->windows[i].range.begin && word < words->windows[i].range.end)
            return true;
    }
    return false;
}

/* Takes the next mark of this group. Returns false if there is none. */
static bool next_mark(struct ms_words *words, unsigned *index_out)
{
    unsigned char *marks = (unsigned char *)words->marks;
    for (; words->at < GROUP; words->at += 8) {
        uint64_t eight;
        memcpy(&eight, marks + words->at, sizeof(eight));
        if (eight != 0) {
            *index_out = words->at + (unsigned)__builtin_ctzll(eight) / 8;
            marks[*index_out] = 0;
            return true;
        }
    }
    return false;
}

bool ms_words_next(struct ms_words *words, size_t *offset_out, uint64_t *word_out)
{
    unsigned index;
    for (;;) {
        while (next_mark(words, &index)) {
            *offset_out = words->group + index;
            if (*offset_out + 8 > words->count)
                return false;
            memcpy(word_out, words->bytes + *offset_out, sizeof(*word_out));
            if (is_in(words, *word_out))
                return true;
        }
        if (!next_group(words))
            return false;
    }
}
