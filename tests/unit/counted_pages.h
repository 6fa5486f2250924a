/* SPDX-License-Identifier: Apache-2.0 */
/* The shim's heap as in counted_heap.h, and its pages (runtime/base/pages.h), which are pieces of
 * memory as well. For one file of a test. */
#pragma once

#include "runtime/base/pages.h"
#include "tests/unit/counted_heap.h"

bool __real_ms_pages_grow(struct ms_pages *pages, size_t bytes);
void __real_ms_pages_cleanup(struct ms_pages *pages);
bool __wrap_ms_pages_grow(struct ms_pages *pages, size_t bytes);
void __wrap_ms_pages_cleanup(struct ms_pages *pages);

bool __wrap_ms_pages_grow(struct ms_pages *pages, size_t bytes)
{
    const bool is_new = pages->memory == NULL;
    if (bytes > pages->bytes && !may_take())
        return false;
    const bool is_grown = __real_ms_pages_grow(pages, bytes);
    live += is_new && pages->memory != NULL;
    return is_grown;
}

void __wrap_ms_pages_cleanup(struct ms_pages *pages)
{
    live -= pages->memory != NULL;
    __real_ms_pages_cleanup(pages);
}

enum { PLENTY = 1000000 };

/* Runs it while the nth piece of memory cannot be had, and while none from the nth on can, for each
 * n until it has all that it wants: more than `least`. It tells whether it did what it has to, and
 * gives all back either way. */
static inline void without_each_piece(bool (*run)(void), int least)
{
    for (int mode = 0; mode < 2; mode++) {
        bool has_all = false;
        int pieces = 0;
        for (; !has_all; pieces++) {
            const int before = live;
            fails_once = mode == 1;
            may_make = pieces;
            const bool is_done = run();
            has_all = may_make >= 0;
            may_make = PLENTY;
            CHECK_EQ(is_done, has_all);
            CHECK_EQ(live, before);
        }
        CHECK(pieces > least);
    }
}
