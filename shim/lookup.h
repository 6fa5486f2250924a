/* SPDX-License-Identifier: Apache-2.0 */
/* The answers that the dlsym trampoline (assembly) asks for. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returned in two registers. If given != 0, `address` is the answer (it may be NULL); otherwise the
 * trampoline jumps to libc's dlsym, as it would without the shim. */
struct ms_answer {
    uintptr_t given;
    void *address;
};

struct ms_answer ms_answer_dlsym(void *handle, const char *name);

/* libc's dlsym; set before ms_answer_dlsym returns. */
extern void *ms_libc_dlsym_address;

/*
 * Asks cuGetProcAddress for each function that the shim handles. False if it answers with one
 * outside of the driver, so that the program's calls would not be seen; `seen` says which.
 */
bool ms_resolver_is_right(char *seen, size_t bytes);
