/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/pages.h"

#include <stdint.h>
#include <sys/mman.h>

#include "runtime/base/heap.h"

/* A multiple of every page size. */
enum { STEP = 64 << 10 };

bool ms_pages_grow(struct ms_pages *pages, size_t bytes)
{
    if (bytes <= pages->bytes)
        return true;
    const size_t twice = 2 * pages->bytes, wanted = bytes > twice ? bytes : twice;
    if (wanted > SIZE_MAX / 2) /* too much for any machine; keeps the sums below from overflowing */
        return ms_heap_checked(NULL, bytes) != NULL;
    const size_t length = (wanted + STEP - 1) & ~(size_t)(STEP - 1);
    void *grown =
        pages->memory == NULL
            ? mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
            : mremap(pages->memory, pages->bytes, length, MREMAP_MAYMOVE);
    if (ms_heap_checked(grown != MAP_FAILED ? grown : NULL, length) == NULL)
        return false;
    *pages = (struct ms_pages){grown, length};
    return true;
}

void ms_pages_cleanup(struct ms_pages *pages)
{
    if (pages->memory != NULL)
        munmap(pages->memory, pages->bytes);
    *pages = (struct ms_pages){0};
}
