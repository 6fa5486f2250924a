/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the shim's functions, by entry. */
#include "shim/table.S"

        table   ms_wrappers
#define WRAPPER_OWN(symbol) .long symbol - ms_wrappers;
#define WRAPPER_OBSERVE(symbol) WRAPPER_OWN(symbol)
#define WRAPPER_SEAL(symbol) WRAPPER_OWN(symbol)
#define WRAPPER_FORWARD(symbol) .long 0;
#define MS_ENTRY(class, symbol, base, version, per_thread, reason) WRAPPER_##class(symbol)
#include "shim/entries.def"
#undef MS_ENTRY
        .size   ms_wrappers, . - ms_wrappers

        .section .note.GNU-stack, "", %progbits
