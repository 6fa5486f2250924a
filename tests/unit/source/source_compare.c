/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/source/source_compare.h"

#include "runtime/config/config.h"
#include "runtime/source/file_thread.h"
#include "tests/unit/between.h"
#include "tests/unit/source/files.h"

enum { MIB = 1 << 20, BYTES = 9 * MIB + 12345 };

static struct test_file file;
static unsigned char *memory;

static void set_up(void)
{
    make_test_file(&file, "/var/tmp", BYTES);
    memory = malloc(BYTES + MIB);
    memcpy(memory, file.data, BYTES);
}

static void set_up_threads(void)
{
    set_up();
    ms_config.read_threads = 4;
}

struct call {
    const void *address;
    size_t bytes;
    uint64_t offset;
    bool only_cached, is_same;
};

static void compare_now(void *call_)
{
    struct call *call = call_;
    call->is_same = ms_source_compare(file.source, call->offset, call->address, call->bytes,
                                      call->only_cached ? MS_COMPARING_CACHED : MS_COMPARING_ALL);
}

static bool is_same(const void *address, size_t bytes, uint64_t offset, bool only_cached)
{
    struct call call = {address, bytes, offset, only_cached, false};
    CHECK(ms_file_thread_call(compare_now, &call));
    return call.is_same;
}

static void check_parts(void)
{
    static const size_t sizes[] = {1, 511, 512, 513, MIB - 1, 2 * MIB, 4 * MIB + 1, 9 * MIB};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const size_t offset = i * 1001;
        CHECK(is_same(memory + offset, sizes[i], offset, false));
        CHECK(is_same(memory + offset, sizes[i], offset, true));
    }
    CHECK(is_same(memory, BYTES, 0, false));
    CHECK(!is_same(memory, BYTES, 1, false));
}

MS_TEST_AFTER(set_up, the_bytes_of_a_file)
{
    check_parts();
}

MS_TEST_AFTER(set_up_threads, the_bytes_of_a_file_by_threads)
{
    check_parts();
}

static void check_other_bits(void)
{
    static const size_t ats[] = {0,       511, 512,     65535,   65536,
                                 MIB - 1, MIB, 5 * MIB, 9 * MIB, BYTES - 1};
    for (size_t i = 0; i < sizeof(ats) / sizeof(ats[0]); i++) {
        memory[ats[i]] ^= 0x40;
        CHECK(!is_same(memory, BYTES, 0, false));
        memory[ats[i]] ^= 0x40;
    }
    CHECK(is_same(memory, BYTES, 0, false));
}

MS_TEST_AFTER(set_up, one_other_bit_anywhere)
{
    check_other_bits();
}

MS_TEST_AFTER(set_up_threads, one_other_bit_anywhere_by_threads)
{
    check_other_bits();
}

MS_TEST_AFTER(set_up_threads, what_is_past_the_end)
{
    CHECK(!is_same(memory, BYTES + 1, 0, false));
    CHECK(!is_same(memory + MIB, BYTES, MIB, false));
}

/* In the piece of another thread. */
MS_TEST_AFTER(set_up_threads, memory_that_may_not_be_read)
{
    unsigned char *own =
        mmap(NULL, 10 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(own != MAP_FAILED);
    memcpy(own, memory, BYTES);
    CHECK_EQ(mprotect(own + 7 * MIB, 4096, PROT_NONE), 0);
    CHECK(is_same(own, 7 * MIB, 0, false));
    CHECK(!is_same(own, BYTES, 0, false));
}

MS_TEST_AFTER(set_up_threads, what_is_not_in_the_page_cache)
{
    if (!make_cold(&file) || !can_tell_cold(&file))
        ms_test_skip("the file stays in the page cache, or nobody tells");
    CHECK(!is_same(memory, BYTES, 0, true));
    CHECK(count_cached(&file) < BYTES / 4096 / 2);
    CHECK(is_same(memory, BYTES, 0, false));
}
