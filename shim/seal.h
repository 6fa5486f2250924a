/* SPDX-License-Identifier: Apache-2.0 */
/* The function that the thunks (assembly) call. */
#pragma once

/* A bit beside the entry: the runtime, not the program, calls the driver's function. */
#define MS_FIND_ONLY 0x10000

#ifndef __ASSEMBLER__
#include <stdint.h>

/* Returned in two registers. If result != 0, the program gets that result; otherwise the thunk
 * jumps to `real` with the program's arguments untouched. */
struct ms_sealed {
    uintptr_t result;
    void *real;
};

/* Called by the thunk of an entry or spare slot if bytes are deferred or the real function is not
 * known. With MS_FIND_ONLY in the index, materialises nothing. */
struct ms_sealed ms_seal_enter(uint32_t index);

#endif
