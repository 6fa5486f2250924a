/* SPDX-License-Identifier: Apache-2.0 */
/* The answers that the trampolines of dlsym and dlvsym (assembly) ask for. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Returned in two registers. If given != 0, `address`, which may be NULL, is the answer; otherwise
 * the trampoline jumps to the next dlsym, as if there were no shim. */
struct ms_answer {
    uintptr_t given;
    void *address;
};

/* On return, ms_next_dlsym_address and ms_libc_dlsym_address are set. */
struct ms_answer ms_answer_dlsym(void *handle, const char *name);

/* True if dlvsym answers this caller with ms_answering_dlsym, which is libc's dlsym with the
 * answers above. Otherwise the trampoline jumps to the next dlvsym, by ms_next_dlvsym_address,
 * which is set. */
bool ms_answer_dlvsym(void *handle, const char *name, const void *return_address);
