/* SPDX-License-Identifier: Apache-2.0 */
/* What the seal thunks (assembly) call. */
#pragma once

#include <stdint.h>

/* Returned in two registers. If result != 0, the program gets that result; otherwise the thunk
 * jumps to `real` with the program's arguments untouched. */
struct ms_sealed {
    uintptr_t result;
    void *real;
};

/* The thunk of an entry or spare slot calls it if bytes are deferred or `real` is not known. */
struct ms_sealed ms_seal_enter(uint32_t entry);
