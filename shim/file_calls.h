/* SPDX-License-Identifier: Apache-2.0 */
/* The calls by which a program changes files (file_calls.c). */
#pragma once

/* Finds libc's functions, so that none has to be looked up in a handler of a signal. */
void ms_file_calls_find(void);
