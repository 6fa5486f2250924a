/* SPDX-License-Identifier: Apache-2.0 */
/* The answers that the dlsym trampoline (assembly) asks for. */
#pragma once

#include <stdint.h>

/* Returned in two registers. If given != 0, `address` is the answer (it may be NULL); otherwise the
 * trampoline jumps to the next dlsym, as it would be without the shim. */
struct ms_answer {
    uintptr_t given;
    void *address;
};

/* ms_next_dlsym_address is set when it returns. */
struct ms_answer ms_answer_dlsym(void *handle, const char *name);
