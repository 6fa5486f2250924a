/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C library's own functions, and the order of libraries, from the dynamic linker's list
 * (link.h). A lookup by name could find the functions of the same names in this or another library.
 * Everything here works before the constructors.
 */
#pragma once

#include <stdbool.h>

#include "shim/real.h"

/* Returns a function of the C library, or NULL. Any version will do: all versions of dlsym, and of
 * dlvsym, are the same code. */
void *ms_libc_find(const char *name) MS_EARLY;

/* True if the program, or a library that stands before this one, has a function of that name. These
 * libraries are never unloaded. */
bool ms_libc_is_before(const char *name);

/* True if the library (a struct link_map) stands before this one in the search order. The program
 * does, too. */
bool ms_libc_stands_before(const void *library);

/* True if both strings are equal. strcmp may be a sanitizer's, which cannot compare strings before
 * it has looked up its functions. */
MS_EARLY static inline bool ms_libc_is_equal(const char *left, const char *right)
{
    while (*left != '\0' && *left == *right) {
        left++;
        right++;
    }
    return *left == *right;
}
