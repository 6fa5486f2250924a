/* SPDX-License-Identifier: Apache-2.0 */
/* The legal states of an extent: kind x standing x cached x remote. No other file decides that. */
#ifndef METASHARD_RUNTIME_MEMORY_EXTENT_STATES_H
#define METASHARD_RUNTIME_MEMORY_EXTENT_STATES_H

#include "runtime/memory/lineage.h"

static inline bool ms_content_is_legal(const struct ms_content *content)
{
    enum {
        OPEN = 1 << MS_UNKNOWN,
        OURS = 1 << MS_LOCAL,
        AWAY = 1 << MS_REMOTE,
        ANY = OPEN | OURS | AWAY,
        /* What is in memory is never remote, and what is kept is never remote. */
        PRESENT = OPEN | OURS,
        REMOTE = OPEN | AWAY,
    };
    /* The standings of content that is neither cached nor remote, that is cached, that is remote.
     * None is both. */
    static const struct {
        unsigned char plain, cached, remote_parts;
    } states[MS_KIND_COUNT] = {
        /* There is nothing to replay again. A copy makes a fill of it before it marks it remote. */
        [MS_UNDEFINED] = {.plain = ANY},
        /* No plan is asked about what lies in no block. */
        [MS_DEAD] = {.plain = OPEN},
        /* These can be replayed again, so memory may hold them as well; but not a snapshot. */
        [MS_FILL] = {.plain = ANY, .cached = PRESENT, .is_remote_copy = REMOTE},
        [MS_SOURCE] = {.plain = ANY, .cached = PRESENT, .is_remote_copy = REMOTE},
        [MS_LAUNCHED] = {.plain = ANY, .cached = PRESENT, .is_remote_copy = REMOTE},
        /* It has memory, elsewhere: in its place it becomes resident. */
        [MS_PARKED] = {.plain = ANY, .is_remote_copy = REMOTE},
        /* It is remote whatever the plan says later. */
        [MS_ABSENT] = {.plain = AWAY, .is_remote_copy = AWAY},
        /* The plan has no say any more. */
        [MS_RESIDENT] = {.plain = OPEN},
    };
    if (content->kind >= MS_KIND_COUNT || (content->cached && content->is_remote_copy))
        return false;
    const unsigned standings = content->cached           ? states[content->kind].cached
                               : content->is_remote_copy ? states[content->kind].is_remote_copy
                                                         : states[content->kind].plain;
    return (standings >> content->locality & 1) != 0;
}

#endif
