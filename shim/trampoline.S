/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Code that C cannot express: a tail jump to a function found at run time, with every argument
 * register as the program left it; and dlsym and dlvsym without a stack frame, so that libc still
 * sees the real caller, on which RTLD_NEXT and RTLD_DEFAULT depend.
 */
#include "runtime/driver/flags.h"
#include "shim/seal.h"
#include "shim/table.S"

#define SPARE_COUNT 1024

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
 * The functions dlsym, ms_answering_dlsym, dlvsym, seal_common, to which thunks jump, and
 * seal_slowly; and the macros
 *
 *     thunk name      one thunk: puts ms_index in a scratch register and jumps to seal_common
 *     guard symbol    an entry with arguments on the stack: jumps to the driver while nothing is
 *                     deferred, else to ms_guarded_symbol (launch_entries.c)
 *     call_driver symbol
 *                     ms_call_symbol, which jumps to the driver's function, whatever is deferred
 */
#ifdef __x86_64__
#include "shim/trampoline_x86_64.S"
#else
#include "shim/trampoline_aarch64.S"
#endif

        .set    ms_index, 0
#define THUNK_OWN(symbol)
#define THUNK_OBSERVE(symbol)
#define THUNK_FORWARD(symbol)
#define THUNK_SEAL(symbol) .globl symbol; thunk symbol;
#define MS_ENTRY(class, symbol, base, version, per_thread, reason)                                 \
        THUNK_##class(symbol) .set .Lentry_##symbol, ms_index; .set ms_index, ms_index + 1;
#include "shim/entries.def"
#undef MS_ENTRY

        .irp    symbol, cuLaunchKernel, cuLaunchKernel_ptsz, cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz
        .globl  \symbol
        guard   \symbol
        .endr

/* The functions by which the runtime calls the driver. */
#define MS_DRIVER(field, symbol) call_driver symbol;
#define MS_DRIVER_OPTIONAL MS_DRIVER
#include "runtime/driver/driver.def"
#undef MS_DRIVER_OPTIONAL
#undef MS_DRIVER

        table   ms_calls
#define MS_DRIVER(field, symbol) .long ms_call_##symbol - ms_calls;
#define MS_DRIVER_OPTIONAL MS_DRIVER
#include "runtime/driver/driver.def"
#undef MS_DRIVER_OPTIONAL
#undef MS_DRIVER
        .size   ms_calls, . - ms_calls

/* Thunks for functions that the table does not know, and the table of these thunks. */
.macro spare number
        .section .rodata
        .long   spare_\number - ms_spare_thunks
        .text
        thunk   spare_\number
        .set    ms_index, ms_index + 1
.endm

        table   ms_spare_thunks
        .size   ms_spare_thunks, 4 * SPARE_COUNT
        .text
        .altmacro
        .set    spare_number, 0
        .rept   SPARE_COUNT
        spare   %spare_number
        .set    spare_number, spare_number + 1
        .endr
        .noaltmacro

        .section .note.GNU-stack, "", %progbits
