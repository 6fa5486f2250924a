/* SPDX-License-Identifier: Apache-2.0 */
/* What the thunks (assembly) call. */
#pragma once

/* Beside an entry: the runtime calls the driver's function. No thunk of a program has it. */
#define MS_FIND_ONLY 0x10000

#ifndef __ASSEMBLER__
#include <stdint.h>

/* Returned in two registers. If result != 0, the program gets that result; otherwise the thunk
 * jumps to `real` with the program's arguments untouched. */
struct ms_sealed {
    uintptr_t result;
    void *real;
};

/* The thunk of an entry or spare slot calls it if bytes are deferred or `real` is not known. With
 * MS_FIND_ONLY in the index, nothing is materialised. */
struct ms_sealed ms_seal_enter(uint32_t index);

#endif
