/* SPDX-License-Identifier: Apache-2.0 */
/*
 * WRAPS(free, ms_log); a test sees these calls of the product first, by the linker's --wrap
 * (meson.build). Declares __wrap_free and __real_free as what the function is, so that no test has
 * other parameters than the function. Up to six names.
 */
#pragma once

#define WRAPS(...) \
    WRAPS_PICK(__VA_ARGS__, WRAPS_6, WRAPS_5, WRAPS_4, WRAPS_3, WRAPS_2, WRAPS_1, )(__VA_ARGS__)
#define WRAPS_PICK(a, b, c, d, e, f, macro, ...) macro
#define WRAPS_1(name)                      \
    extern __typeof__(name) __wrap_##name; \
    extern __typeof__(name) __real_##name
#define WRAPS_2(name, ...) \
    WRAPS_1(name);         \
    WRAPS_1(__VA_ARGS__)
#define WRAPS_3(name, ...) \
    WRAPS_1(name);         \
    WRAPS_2(__VA_ARGS__)
#define WRAPS_4(name, ...) \
    WRAPS_1(name);         \
    WRAPS_3(__VA_ARGS__)
#define WRAPS_5(name, ...) \
    WRAPS_1(name);         \
    WRAPS_4(__VA_ARGS__)
#define WRAPS_6(name, ...) \
    WRAPS_1(name);         \
    WRAPS_5(__VA_ARGS__)
