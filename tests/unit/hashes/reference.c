/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/hashes/reference.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/config/config.h"
#include "tests/simcuda/harness/test.h"

static void open_text(const char *text)
{
    char path[MS_PATH_BYTES + 8];
    strcpy(ms_config.hashes_like, "/tmp/metashard-reference-XXXXXX");
    CHECK(mkdtemp(ms_config.hashes_like) != NULL);
    snprintf(path, sizeof(path), "%s/file", ms_config.hashes_like);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
    ms_reference_open("file");
    unlink(path);
    rmdir(ms_config.hashes_like);
}

/* The first range and the number of ranges. */
static size_t find(struct ms_reference *reference, enum ms_live_kind kind, uint32_t thread,
                   size_t bytes, uint32_t number, uint64_t begin, uint64_t end)
{
    struct ms_ranges ranges = {0};
    const struct ms_live_block block = {
        .kind = kind, .thread = thread, .bytes = bytes, .number = number};
    ms_reference_find(reference, &block, &ranges);
    const size_t count = ranges.count;
    if (count > 0) {
        CHECK_EQ(ranges.list[0].begin, begin);
        CHECK_EQ(ranges.list[0].end, end);
    }
    ms_ranges_cleanup(&ranges);
    return count;
}

MS_TEST(blocks_of_a_mark)
{
    struct ms_reference reference;
    open_text("metashard-hashes\t1\t77\n"
              "mark\tone\n"
              "thread\t0\t3\t0123456789abcdef\n"
              "block\twhole\t0\t4096\t0\t0x100\t0\t00\t0-4,8-12\ta name\n"
              "block\twhole\t0\t4096\t2\t0x100\t0\t00\t-\t\n"
              "block\tpart\t1\t512\t0\t0x100\t0\t00\t100-512\t\n"
              "done\t3\n"
              "mark\tone\n"
              "block\twhole\t0\t4096\t0\t0x100\t0\t00\t16-20\t\n"
              "done\t1\n"
              "end\t0\n");
    ms_reference_begin(&reference, "one");
    CHECK_EQ(find(&reference, MS_LIVE_WHOLE, 0, 4096, 0, 0, 4), 2);
    CHECK_EQ(find(&reference, MS_LIVE_WHOLE, 0, 4096, 1, 0, 0), 0);
    CHECK_EQ(find(&reference, MS_LIVE_WHOLE, 0, 4096, 2, 0, 0), 0);
    CHECK_EQ(find(&reference, MS_LIVE_PART, 0, 512, 0, 0, 0), 0);
    CHECK_EQ(find(&reference, MS_LIVE_PART, 1, 512, 0, 100, 512), 1);
    CHECK_EQ(find(&reference, MS_LIVE_PART, 2, 512, 0, 0, 0), 0);
    ms_reference_begin(&reference, "one");
    CHECK_EQ(find(&reference, MS_LIVE_WHOLE, 0, 4096, 0, 16, 20), 1);
    ms_reference_begin(&reference, "one");
    CHECK_EQ(find(&reference, MS_LIVE_WHOLE, 0, 4096, 0, 0, 0), 0);
}

MS_TEST(a_file_that_ends_in_a_line)
{
    struct ms_reference reference;
    open_text("mark\ton\nmark\tone\nblock\twhole\nblock\twhole\t0\t4096\t0\t0x100\t0\t00\t4-");
    ms_reference_begin(&reference, "one");
    CHECK_EQ(find(&reference, MS_LIVE_WHOLE, 0, 4096, 0, 0, 0), 0);
}

MS_TEST(no_file)
{
    struct ms_reference reference;
    strcpy(ms_config.hashes_like, "/nowhere");
    ms_reference_open("file");
    ms_reference_begin(&reference, "one");
    CHECK_EQ(find(&reference, MS_LIVE_WHOLE, 0, 4096, 0, 0, 0), 0);
}
