/* SPDX-License-Identifier: Apache-2.0 */
/* The answers that the trampolines of dlsym and dlvsym (assembly) ask for. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Returned in two registers. If given != 0, `address` is the answer (it may be NULL); otherwise the
 * trampoline jumps to the next dlsym, as it would be without the shim. */
struct ms_answer {
    uintptr_t given;
    void *address;
};

/* ms_next_dlsym_address and ms_libc_dlsym_address are set when it returns. */
struct ms_answer ms_answer_dlsym(void *handle, const char *name);

/* True if dlvsym answers the caller with that return address with libc's dlsym, which then has the
 * answers above; else the trampoline jumps to the next dlvsym, and ms_next_dlvsym_address is
 * set. */
bool ms_answer_dlvsym(void *handle, const char *name, const void *return_address);
