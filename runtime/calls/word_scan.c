/* SPDX-License-Identifier: Apache-2.0 */

#include "runtime/calls/word_scan.h"

#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { GROUP = MS_WORD_GROUP, LANES = sizeof(ms_lanes), PARTS = GROUP / LANES, UPPER_AT = 4 };

/* Addresses whose byte 5 is the highest that is not zero: all far addresses, and those of Linux's
 * mappings. */
static const struct ms_range with_byte_5 = {UINT64_C(1) << 40, UINT64_C(1) << 48};

static ms_lanes spread(unsigned value)
{
    return (ms_lanes){0} + (unsigned char)value;
}

/* The values that upper byte i of addresses in the window can have: those between the bounds' bytes
 * if all bytes above are the same, else any. */
static inline void add_plane(struct ms_word_window *window, unsigned i)
{
    const uint64_t first = window->range.begin >> (32 + 8 * i);
    const uint64_t last = (window->range.end - 1) >> (32 + 8 * i);
    const bool is_same = first >> 8 == last >> 8;
    window->planes[window->plane_count++] = (struct ms_word_plane){
        .at = (unsigned char)i,
        .low = (unsigned char)(is_same ? first : 0),
        .span = (unsigned char)(is_same ? last - first : 0xff),
    };
}

/* The highest byte that is not zero excludes most words, with the byte below it. Where the lowest
 * of the upper four is the highest, it may be any small number, so the zeros above it are compared,
 * too. */
static inline void add_window(struct ms_words *words, struct ms_range range)
{
    struct ms_word_window *window = &words->windows[words->window_count++];
    const unsigned upper = (unsigned)((range.end - 1) >> 32);
    const unsigned top = upper > 0 ? (31 - (unsigned)__builtin_clz(upper)) / 8 : 0;
    window->range = range;
    window->plane_count = 0;
    add_plane(window, top);
    if (top > 0) {
        add_plane(window, top - 1);
        return;
    }
    for (unsigned i = 1; i < 4; i++)
        add_plane(window, i);
}

void ms_word_scan_begin(struct ms_words *words, const void *bytes, size_t count,
                        const struct ms_range windows[MS_WORD_WINDOWS])
{
    words->bytes = bytes;
    words->count = count;
    words->window_count = 0;
    for (unsigned i = 0; i < MS_WORD_WINDOWS; i++) {
        if (windows[i].end > windows[i].begin)
            add_window(words, windows[i]);
    }
    words->skipped = (struct ms_range){0, 0};
    words->group = -(size_t)GROUP;
    words->marks = 0;
}

/* A bit for each lane; a lane is 0 or 255. */
static inline uint64_t bits_of(ms_lanes lanes)
{
#ifdef __SSE2__
    return (unsigned)_mm_movemask_epi8((__m128i)lanes);
#else
    uint64_t halves[2];
    memcpy(halves, &lanes, sizeof(halves));
    for (unsigned i = 0; i < 2; i++)
        halves[i] = (halves[i] & 0x0101010101010101) * 0x0102040810204080 >> 56;
    return halves[0] | halves[1] << 8;
#endif
}

static inline bool is_any(ms_lanes lanes)
{
#ifdef __SSE2__
    return bits_of(lanes) != 0;
#else
    uint64_t halves[2];
    memcpy(halves, &lanes, sizeof(halves));
    return (halves[0] | halves[1]) != 0;
#endif
}

/* Marks those of 16 words whose byte of this plane is one of the window's values. */
static inline ms_lanes match(const struct ms_word_window *window, unsigned plane,
                             const unsigned char *bytes)
{
    ms_lanes value;
    memcpy(&value, bytes + UPPER_AT + window->planes[plane].at, sizeof(value));
    return (ms_lanes)(value - spread(window->planes[plane].low) <=
                      spread(window->planes[plane].span));
}

/* Most groups end at the first plane. */
static uint64_t mark(const struct ms_word_window *window, const unsigned char *bytes)
{
    ms_lanes found[PARTS], any = {0};
    uint64_t marks = 0;
    for (unsigned part = 0; part < PARTS; part++) {
        found[part] = match(window, 0, bytes + part * LANES);
        any |= found[part];
    }
    if (!is_any(any))
        return 0;
    for (unsigned plane = 1; plane < window->plane_count; plane++) {
        for (unsigned part = 0; part < PARTS; part++)
            found[part] &= match(window, plane, bytes + part * LANES);
    }
    for (unsigned part = 0; part < PARTS; part++)
        marks |= bits_of(found[part]) << part * LANES;
    return marks;
}

/*
 * True if all words at steps of 8 in a group, and the word behind the group, lie in a range of
 * addresses with byte 5, and no word between them is such an address. A word that begins 1 or 2
 * bytes behind one of them has a zero as byte 5. A word that begins 3 or 4, 5, or 6 or 7 bytes
 * behind one has, above its byte 5, byte 2, 4, or 5 of the next one, and these bytes are not zero.
 */
static inline bool is_skipped(const unsigned char *bytes, uint64_t begin, uint64_t count)
{
    enum { BYTE_2 = 2, BYTE_4 = 4, WORD = 8 };
    ms_lanes value, zeroes; /* places of two words where any of all has a zero */
    memcpy(&value, bytes + GROUP + WORD - LANES, sizeof(value));
    zeroes = (ms_lanes)(value == 0);
    for (unsigned part = 0; part < PARTS; part++) {
        memcpy(&value, bytes + part * LANES, sizeof(value));
        zeroes |= (ms_lanes)(value == 0);
    }
#pragma GCC unroll 9
    for (unsigned at = 0; at <= GROUP; at += WORD) {
        uint64_t word;
        memcpy(&word, bytes + at, sizeof(word));
        if (word - begin >= count)
            return false;
    }
    const uint64_t places = (1 << BYTE_2 | 1 << BYTE_4) * (1 | 1 << WORD);
    return (bits_of(zeroes) & places) == 0;
}

static inline struct ms_range meet(struct ms_range one, struct ms_range other)
{
    return (struct ms_range){one.begin > other.begin ? one.begin : other.begin,
                             one.end < other.end ? one.end : other.end};
}

static bool are_with_byte_5(const struct ms_words *words)
{
    for (unsigned i = 0; i < words->window_count; i++) {
        const struct ms_range *range = &words->windows[i].range;
        if (range->begin < with_byte_5.begin || range->end > with_byte_5.end)
            return false;
    }
    return true;
}

/* Passes over groups that are skipped whole. */
static __attribute__((noinline)) void skip_groups(struct ms_words *words)
{
    const struct ms_range range = meet(words->skipped, with_byte_5);
    if (range.end <= range.begin || !are_with_byte_5(words))
        return;
    while (words->group + GROUP + sizeof(uint64_t) <= words->count &&
           is_skipped(words->bytes + words->group, range.begin, range.end - range.begin))
        words->group += GROUP;
}

/* Finds the next group that may hold a match. The last group begins early enough to be whole; if
 * the bytes are fewer than a group, zeros follow them. */
static bool next_group(struct ms_words *words)
{
    enum { READ = GROUP + 7 };
    unsigned char only[READ + 1];
    for (words->group += GROUP; words->group + 8 <= words->count; words->group += GROUP) {
        if (words->skipped.end > 0)
            skip_groups(words);
        const size_t left = words->count - words->group;
        const size_t back = left < READ && words->count >= READ ? READ - left : 0;
        const unsigned char *bytes = words->bytes + words->group - back;
        if (words->count < READ) {
            memset(only, 0, sizeof(only));
            bytes = memcpy(only, bytes, left);
        }
        for (unsigned i = 0; i < words->window_count; i++)
            words->marks |= mark(&words->windows[i], bytes) >> back;
        if (words->marks != 0)
            return true;
    }
    return false;
}

static bool is_in(const struct ms_words *words, uint64_t word)
{
    for (unsigned i = 0; i < words->window_count; i++) {
        if (ms_word_is_in(&words->windows[i].range, word))
            return true;
    }
    return false;
}

bool ms_word_scan_next(struct ms_words *words, size_t *offset_out, uint64_t *word_out)
{
    const uint64_t skipped = words->skipped.begin, skipped_bytes = words->skipped.end - skipped;
    do {
        for (uint64_t marks = words->marks, word; marks != 0;) {
            const size_t at = words->group + (unsigned)__builtin_ctzll(marks);
            words->marks = marks &= marks - 1;
            if (at + sizeof(word) > words->count)
                return false;
            memcpy(&word, words->bytes + at, sizeof(word));
            if (word - skipped < skipped_bytes || !is_in(words, word))
                continue;
            *offset_out = at;
            *word_out = word;
            return true;
        }
    } while (next_group(words));
    return false;
}
