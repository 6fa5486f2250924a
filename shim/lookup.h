/* SPDX-License-Identifier: Apache-2.0 */
/* Between the dlsym trampoline (assembly) and its answers. */
#ifndef METASHARD_SHIM_LOOKUP_H
#define METASHARD_SHIM_LOOKUP_H

#include <stdint.h>

/* Returned in two registers: given != 0 means that address is the answer (it may be NULL);
 * otherwise the trampoline jumps to libc's dlsym as if we were not there. */
struct ms_answer {
    uintptr_t given;
    void *address;
};

struct ms_answer ms_answer_dlsym(void *handle, const char *name);

/* libc's dlsym; set before ms_answer_dlsym returns. */
extern void *ms_libc_dlsym_address;

#endif
