/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The 34 legal states of an extent: kind x locality x cached x remote copy. The marks of the rooms
 * are checked separately: no mark makes a state legal.
 */
#pragma once

#include "runtime/memory/lineage.h"

/* Content that may carry the mark is_in_sequence: a copy of several tensors that can be copied on
 * without memory. */
static inline bool ms_content_is_passing(const struct ms_content *content)
{
    return content->kind == MS_FILL || content->kind == MS_SOURCE || content->kind == MS_LAUNCHED
               ? !content->cached
               : content->kind == MS_PARKED;
}

static inline bool ms_content_state_is_legal(const struct ms_content *content)
{
    enum {
        UNKNOWN = 1 << MS_UNKNOWN,
        LOCAL = 1 << MS_LOCAL,
        REMOTE = 1 << MS_REMOTE,
        ANY = UNKNOWN | LOCAL | REMOTE,
        /* Present bytes are never remote, and local bytes are never a copy of remote ones. */
        PRESENT = UNKNOWN | LOCAL,
        COPIED = UNKNOWN | REMOTE,
    };
    /* plain: the localities of content that is neither cached nor a remote copy; cached and copy:
     * of content that is. No content is both. */
    static const struct {
        unsigned char plain, cached, copy;
    } states[MS_KIND_COUNT] = {
        /* There is nothing to replay. A copy turns undefined bytes into a fill before it marks them
         * as a remote copy. */
        [MS_UNDEFINED] = {.plain = ANY},
        /* The plan is not asked about bytes outside of blocks. */
        [MS_DEAD] = {.plain = UNKNOWN},
        /* Nobody can use unmapped bytes. */
        [MS_UNMAPPED] = {.plain = UNKNOWN},
        /* A replay can give these bytes, so memory may hold them too. Only shared snapshots are
         * cached. */
        [MS_FILL] = {.plain = ANY, .cached = PRESENT, .copy = COPIED},
        [MS_SOURCE] = {.plain = ANY, .cached = PRESENT, .copy = COPIED},
        [MS_LAUNCHED] = {.plain = ANY, .cached = PRESENT, .copy = COPIED},
        /* Parked bytes have memory at another address. At their own they become resident. */
        [MS_PARKED] = {.plain = ANY, .copy = COPIED},
        /* Absent bytes stay remote whatever the plan says later. */
        [MS_ABSENT] = {.plain = REMOTE, .copy = REMOTE},
        /* The plan no longer matters. */
        [MS_RESIDENT] = {.plain = UNKNOWN},
    };
    if (content->kind >= MS_KIND_COUNT || (content->cached && content->is_remote_copy))
        return false;
    const unsigned localities = content->cached           ? states[content->kind].cached
                                : content->is_remote_copy ? states[content->kind].copy
                                                          : states[content->kind].plain;
    return (localities >> content->locality & 1) != 0;
}

/* A shadow is compared with replayed bytes, so only content that a replay gives may have one. */
static inline bool ms_content_may_have_shadow(const struct ms_content *content)
{
    return content->kind == MS_FILL || content->kind == MS_SOURCE || content->kind == MS_LAUNCHED;
}

static inline bool ms_content_marks_are_legal(const struct ms_content *content)
{
    return (!content->is_shadowed || ms_content_may_have_shadow(content)) &&
           (!content->is_in_sequence || ms_content_is_passing(content));
}
