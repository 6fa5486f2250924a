/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Put before the tests of the simulated driver, with -include: the same programs, but a check
 * writes down what it saw and the test goes on, so that one answer that differs does not hide those
 * behind it.
 *
 *     conformance_vmm --list           names of the tests
 *     conformance_vmm TEST LOG         runs one; appends a line to LOG for every check
 *
 * Lines of the log, fields separated by tabs: "library PATH" (the driver), "nccl PATH", "check
 * PLACE TEXT WANTED SEEN" (SEEN is "ok", a value, or "signal N"), "note PLACE MESSAGE", "skip
 * MESSAGE", and "end" when the test came to its end.
 */
#pragma once

#include "tools/simcuda/harness/test.h"

#include <setjmp.h>
#include <signal.h>

struct observe_place {
    const char *file;
    int line;
    const char *text, *wanted;
};

/* Where to go on when the expression of a check ends with a signal. */
struct observe_point {
    sigjmp_buf jump;
    volatile sig_atomic_t number; /* of the signal */
    struct observe_point *outer;
};

extern _Thread_local struct observe_point *observe_innermost;
void observe_value(const struct observe_place *place, long long seen, long long wanted);
void observe_bytes(const struct observe_place *place, const void *seen, const void *wanted,
                   size_t length);
void observe_signal(const struct observe_place *place, const struct observe_point *point);
/* In place of ms_test_fail: the test goes on. */
void observe_note(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Compiled without optimisation: a local variable has to survive the jump. */
#define OBSERVE(text_, wanted_text_, ...)                                                     \
    do {                                                                                      \
        static const struct observe_place place_ = {__FILE__, __LINE__, text_, wanted_text_}; \
        struct observe_point point_ = {.outer = observe_innermost};                           \
        observe_innermost = &point_;                                                          \
        if (sigsetjmp(point_.jump, 1) == 0) {                                                 \
            __VA_ARGS__;                                                                      \
        } else {                                                                              \
            observe_signal(&place_, &point_);                                                 \
        }                                                                                     \
        observe_innermost = point_.outer;                                                     \
    } while (0)

#undef CHECK
#undef CHECK_EQ
#undef CHECK_BYTES
#define CHECK(condition) OBSERVE(#condition, "true", observe_value(&place_, (condition) ? 1 : 0, 1))
#define CHECK_EQ(seen, wanted)                                         \
    OBSERVE(#seen, #wanted, const long long seen_ = (long long)(seen); \
            const long long wanted_ = (long long)(wanted); observe_value(&place_, seen_, wanted_))
#define CHECK_BYTES(seen, wanted, length) \
    OBSERVE(#seen, "the bytes of " #wanted, observe_bytes(&place_, (seen), (wanted), (length)))
#define ms_test_fail observe_note
