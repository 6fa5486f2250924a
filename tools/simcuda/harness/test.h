/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small test program: MS_TEST(name) { ... } registers itself; ms_test_main() in test.c is the
 * program's main. Every test runs in a child of its own, so a crash or a leak stays in that test;
 * a test named on the command line runs in the process itself, for a debugger.
 *
 * Output is TAP: "ok 1 name", "not ok 2 name", "ok 3 name # SKIP why". The exit status is 0 when
 * every test passed or was skipped, else 1. A program in which no test is registered fails.
 */
#pragma once

#include "tools/simcuda/harness/wraps.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ms_test {
    const char *name;
    void (*body)(void);
    struct ms_test *next;
};

void ms_test_register(struct ms_test *test);

/* Both print file, line and what was seen, and end the running test as failed or skipped. */
_Noreturn void ms_test_fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void ms_test_skip(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* True under valgrind and under an emulator, where all takes long. Both have descriptors, reads and
 * signal masks of their own. */
bool ms_test_is_watched(void);

#define MS_TEST(test_name)                                                           \
    static void test_##test_name(void);                                              \
    static struct ms_test record_##test_name = {#test_name, test_##test_name, NULL}; \
    __attribute__((constructor)) static void register_##test_name(void)              \
    {                                                                                \
        ms_test_register(&record_##test_name);                                       \
    }                                                                                \
    static void test_##test_name(void)

#define CHECK(condition)                                                 \
    do {                                                                 \
        if (!(condition))                                                \
            ms_test_fail(__FILE__, __LINE__, "%s is false", #condition); \
    } while (0)

/* Integers of any width; both values are shown. */
#define CHECK_EQ(seen, wanted)                                                                     \
    do {                                                                                           \
        const long long seen_ = (long long)(seen);                                                 \
        const long long wanted_ = (long long)(wanted);                                             \
        if (seen_ != wanted_)                                                                      \
            ms_test_fail(__FILE__, __LINE__, "%s is %lld (0x%llx), expected %lld (0x%llx)", #seen, \
                         seen_, (unsigned long long)seen_, wanted_, (unsigned long long)wanted_);  \
    } while (0)

/* Bytes; the first difference is shown. */
#define CHECK_BYTES(seen, wanted, length) \
    ms_test_check_bytes(__FILE__, __LINE__, #seen, (seen), (wanted), (length))
void ms_test_check_bytes(const char *file, int line, const char *what, const void *seen,
                         const void *wanted, size_t length);
