/* SPDX-License-Identifier: Apache-2.0 */
/* Names of kernels for people. A mangled C++ name is reduced to the function and the first name
 * among its template arguments, which tells kernels of one template apart. */
#pragma once

#include <stddef.h>

/*
 * Copies the text and replaces each mangled name, as in
 * "vectorized_elementwise_kernel<FillFunctor>". All else stays, and so does a name that cannot be
 * read. The copy is cut to `bytes` with the NUL. A demangler does not take names that were cut, and
 * should not be given another user's.
 */
void ms_kernel_name_shorten(const char *text, char *out, size_t bytes);
