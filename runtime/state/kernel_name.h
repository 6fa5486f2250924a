/* SPDX-License-Identifier: Apache-2.0 */
/* Names of kernels for people: of a mangled C++ name, the function and the first name among its
 * template arguments, which tells kernels of one template apart. */
#pragma once

#include <stddef.h>

/*
 * Copies the text, with each word that is a mangled name replaced, as in
 * "vectorized_elementwise_kernel<FillFunctor>". All else stays, and so does a name that cannot be
 * read. It is cut to `bytes` with the NUL. The name may have been cut, which a demangler does not
 * take, and may be another user's, which no demangler should be given.
 */
void ms_kernel_name_shorten(const char *text, char *out, size_t bytes);
