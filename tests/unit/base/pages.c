/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/pages.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tools/simcuda/harness/test.h"

static struct ms_pages pages;

/* So many bytes, all of which may be written, and those that nobody has written are zero. */
static void check_pages(size_t least, size_t most)
{
    const unsigned char *memory = pages.memory;
    CHECK(pages.bytes >= least && pages.bytes <= most);
    CHECK_EQ(pages.bytes % (size_t)sysconf(_SC_PAGESIZE), 0);
    CHECK_EQ(memory[pages.bytes - 1], 0);
    memset(pages.memory, 0x5a, pages.bytes);
}

static bool is_mapped(void *memory)
{
    unsigned char state;
    return mincore(memory, 1, &state) == 0 || errno != ENOMEM;
}

MS_TEST(pages_grow_to_twice_as_much_at_least_and_keep_their_bytes)
{
    enum { STEP = 64 << 10 };
    CHECK(ms_pages_grow(&pages, 0));
    CHECK(pages.memory == NULL && pages.bytes == 0);
    CHECK(ms_pages_grow(&pages, 1));
    check_pages(1, STEP);
    const struct ms_pages before = pages;
    CHECK(ms_pages_grow(&pages, before.bytes));
    CHECK(pages.memory == before.memory && pages.bytes == before.bytes);
    CHECK(ms_pages_grow(&pages, before.bytes + 1));
    CHECK_EQ(((unsigned char *)pages.memory)[before.bytes - 1], 0x5a);
    CHECK_EQ(((unsigned char *)pages.memory)[before.bytes], 0);
    check_pages(2 * before.bytes, 2 * before.bytes);
    CHECK(ms_pages_grow(&pages, 10 * STEP + 1));
    check_pages(10 * STEP + 1, 11 * STEP);
    CHECK(ms_pages_grow(&pages, 40 * STEP));
    check_pages(40 * STEP, 40 * STEP);
    ms_pages_cleanup(&pages);
}

MS_TEST(pages_that_cannot_be_had_change_nothing)
{
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX / 2 + 1, SIZE_MAX / 2,
                                   SIZE_MAX / 4};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        CHECK(!ms_pages_grow(&pages, sizes[i]));
        CHECK(pages.memory == NULL && pages.bytes == 0);
    }
    CHECK(ms_pages_grow(&pages, 1));
    const struct ms_pages before = pages;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        CHECK(!ms_pages_grow(&pages, sizes[i]));
        CHECK(pages.memory == before.memory && pages.bytes == before.bytes);
    }
    ms_pages_cleanup(&pages);
}

MS_TEST(all_pages_go_back)
{
    CHECK(ms_pages_grow(&pages, 10 << 20));
    char *first = pages.memory, *last = first + pages.bytes - 1;
    last -= (uintptr_t)last % (uintptr_t)sysconf(_SC_PAGESIZE);
    CHECK(is_mapped(first) && is_mapped(last));
    ms_pages_cleanup(&pages);
    CHECK(pages.memory == NULL && pages.bytes == 0);
    CHECK(!is_mapped(first) && !is_mapped(last));
    ms_pages_cleanup(&pages); /* nothing more */
    CHECK(pages.memory == NULL && pages.bytes == 0);
}
