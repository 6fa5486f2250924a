/* SPDX-License-Identifier: Apache-2.0 */
/* The answers that the dlsym trampoline (assembly) asks for. */
#pragma once

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
