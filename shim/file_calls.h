/* SPDX-License-Identifier: Apache-2.0 */
/* The calls by which a program changes files (file_calls.c). */
#pragma once

/* Finds all of libc's functions now, so that no signal handler has to look one up. */
void ms_file_calls_find(void);
