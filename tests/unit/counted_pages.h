/* SPDX-License-Identifier: Apache-2.0 */
/* The shim's heap as in counted_heap.h, and its pages (runtime/base/pages.h), which are pieces of
 * memory as well. For one file of a test. */
#pragma once

#include <sys/mman.h>

#include "runtime/base/pages.h"
#include "tests/unit/counted_heap.h"

WRAPS(ms_pages_grow, ms_pages_cleanup);

/* Behind them is a page that nobody may touch. */
enum { PAGE_BYTES = 4096 };

/* As the runtime's, in smaller steps. */
bool __wrap_ms_pages_grow(struct ms_pages *pages, size_t bytes)
{
    if (bytes <= pages->bytes)
        return true;
    if (!may_take())
        return false;
    const size_t wanted = bytes > 2 * pages->bytes ? bytes : 2 * pages->bytes;
    const size_t length = (wanted + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    char *grown =
        mmap(NULL, length + PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(grown != MAP_FAILED);
    CHECK_EQ(mprotect(grown + length, PAGE_BYTES, PROT_NONE), 0);
    live++;
    if (pages->memory != NULL)
        memcpy(grown, pages->memory, pages->bytes);
    __wrap_ms_pages_cleanup(pages);
    *pages = (struct ms_pages){grown, length};
    return true;
}

void __wrap_ms_pages_cleanup(struct ms_pages *pages)
{
    if (pages->memory == NULL)
        return;
    live--;
    CHECK_EQ(munmap(pages->memory, pages->bytes + PAGE_BYTES), 0);
    *pages = (struct ms_pages){0};
}

enum { PLENTY = 1000000 };

/* Runs it while the nth piece of memory cannot be had, and while none from the nth on can, for each
 * n until it has all that it wants: more than `least`. Returns that, and one more. `run` tells
 * whether it did what it has to, and gives all back either way. */
static inline int without_each_piece(bool (*run)(void), int least)
{
    int pieces = 0;
    for (int mode = 0; mode < 2; mode++) {
        bool has_all = false;
        for (pieces = 0; !has_all; pieces++) {
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
    return pieces;
}
