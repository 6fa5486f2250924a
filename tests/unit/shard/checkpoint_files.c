/* SPDX-License-Identifier: Apache-2.0 */
/* The line that explains a copy which waits while headers are read. Nothing here measures time. */
#include "runtime/shard/checkpoint_files.h"

#include "tests/unit/source/files.h"

static struct ms_source *make_checkpoint(char path_out[64])
{
    static const char header[] = "{\"x\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}";
    const uint64_t length = sizeof(header) - 1;
    strcpy(path_out, "/tmp/metashard-unit-XXXXXX.safetensors");
    const int file = mkstemps(path_out, (int)strlen(".safetensors"));
    CHECK(file >= 0);
    CHECK_EQ(write(file, &length, sizeof(length)), sizeof(length));
    CHECK_EQ(write(file, header, length), (ssize_t)length);
    CHECK_EQ(write(file, "data", 4), 4);
    close(file);
    struct stat stat_;
    CHECK_EQ(stat(path_out, &stat_), 0);
    struct ms_mapping mapping = {.device = stat_.st_dev, .inode = stat_.st_ino};
    snprintf(mapping.path, sizeof(mapping.path), "%s", path_out);
    struct ms_source *source = ms_source_from_file(&mapping, sizeof(length) + length + 4);
    CHECK(source != NULL);
    return source;
}

/* How many lines say that headers took long, when so many nanoseconds are too long. */
static int count_slow_lines(uint64_t slow_ns)
{
    char path[64];
    open_log(MS_WARN);
    ms_checkpoint_files_slow_ns = slow_ns;
    struct ms_source *source = make_checkpoint(path);
    CHECK(ms_checkpoint_files_find(source) != NULL);
    unlink(path);
    ms_source_drop(source);
    return count_log_lines("s to read the names and places of its tensors");
}

MS_TEST(headers_that_take_longer_than_a_second_are_a_line)
{
    CHECK_EQ(ms_checkpoint_files_slow_ns, 1000000000);
    CHECK_EQ(count_slow_lines(0), 1);
}

MS_TEST(others_are_none)
{
    CHECK_EQ(count_slow_lines(UINT64_MAX), 0);
}
