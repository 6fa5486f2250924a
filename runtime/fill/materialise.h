/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Materialising: backing granules and replaying the lineage into them. The caller holds the claim
 * on the allocation. On failure nothing that was deferred is lost: the lineage is as before.
 */
#pragma once

#include "runtime/memory/allocations.h"

/* Each row of needs.def says what holds for its need. */
enum ms_need {
#define MS_NEED(name, becomes, elsewhere, remote, absent, extents) MS_NEED_##name,
#include "runtime/fill/needs.def"
#undef MS_NEED
    MS_NEED_COUNT
};

struct ms_need_row {
    enum {
        MS_BECOMES_CACHED,
        MS_BECOMES_RESIDENT,
        MS_BECOMES_OVERWRITTEN,
        MS_BECOMES_PINNED
    } becomes;
    enum ms_need elsewhere;
    enum { MS_REMOTE_COUNTED, MS_REMOTE_ALLOWED, MS_REMOTE_LEFT, MS_REMOTE_FAULTS } remote;
    enum { MS_ABSENT_REFUSED, MS_ABSENT_LEFT } absent;
    enum { MS_EXTENTS_ALL, MS_EXTENTS_LIVE, MS_EXTENTS_LAUNCHED } extents;
};
extern const struct ms_need_row ms_needs[MS_NEED_COUNT];

/* Brings [begin, end) into memory as the row of the need says. Waits for the device. */
CUresult ms_materialise(struct ms_allocation *allocation, size_t begin, size_t end,
                        enum ms_need need);
