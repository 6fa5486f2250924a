/* SPDX-License-Identifier: Apache-2.0 */
/* Between the seal thunks (assembly) and the runtime. */
#ifndef METASHARD_SHIM_SEAL_H
#define METASHARD_SHIM_SEAL_H

#include <stdint.h>

/* Returned in two registers: a result other than 0 is returned to the program; otherwise the thunk
 * jumps to real with the program's arguments untouched. */
struct ms_sealed {
    uintptr_t result;
    void *real;
};

/* Called by the thunk of entry (or of a spare slot) when something is deferred, or when the real
 * function is not known yet. */
struct ms_sealed ms_seal_enter(uint32_t entry);

#endif
