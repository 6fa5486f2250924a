/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What C cannot express: a tail jump to a function found at run time with every argument register
 * as the program left it; and dlsym without a stack frame, so that libc still sees the real caller
 * (RTLD_NEXT and RTLD_DEFAULT depend on it).
 */
#include "runtime/driver/flags.h"

#define SPARE_COUNT 128

.macro begin name
        .type   \name, %function
        .p2align 4
\name:
        .cfi_startproc
.endm

.macro end name
        .cfi_endproc
        .size   \name, . - \name
.endm

        .text
/*
 * The functions dlsym and seal_common, to which thunks jump, and the macros
 *
 *     thunk name      one thunk: puts ms_index in a scratch register and jumps to seal_common
 *     guard symbol    an entry with arguments on the stack: jumps to the driver while nothing is
 *                     deferred, else to ms_guarded_symbol (launch_entries.c)
 */
#ifdef __x86_64__
#include "shim/trampoline_x86_64.S"
#else
#include "shim/trampoline_aarch64.S"
#endif

        .set    ms_index, 0
#define THUNK_OWN(symbol) .set ms_entry_##symbol, ms_index;
#define THUNK_OBSERVE(symbol)
#define THUNK_FORWARD(symbol)
#define THUNK_SEAL(symbol) .globl symbol; thunk symbol;
#define MS_ENTRY(class, symbol, base, version, per_thread, reason)                                 \
        THUNK_##class(symbol) .set ms_index, ms_index + 1;
#include "shim/entries.def"
#undef MS_ENTRY

        .irp    symbol, cuLaunchKernel, cuLaunchKernel_ptsz, cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz
        .globl  \symbol
        guard   \symbol
        .endr

/* Thunks for functions that the table does not know, and the table of their addresses. */
.macro spare number
        .section .data.rel.ro.local, "aw", %progbits
        .quad   spare_\number
        .text
        thunk   spare_\number
        .set    ms_index, ms_index + 1
.endm

        .section .data.rel.ro.local, "aw", %progbits
        .globl  ms_spare_thunks
        .hidden ms_spare_thunks
        .type   ms_spare_thunks, %object
        .size   ms_spare_thunks, 8 * SPARE_COUNT
        .p2align 3
ms_spare_thunks:
        .text
        .altmacro
        .set    spare_number, 0
        .rept   SPARE_COUNT
        spare   %spare_number
        .set    spare_number, spare_number + 1
        .endr
        .noaltmacro

        .section .note.GNU-stack, "", %progbits
