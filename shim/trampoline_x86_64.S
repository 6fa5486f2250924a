/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What C cannot express: a tail jump to a function found at run time with every argument register
 * as the program left it; and dlsym without a stack frame, so that libc still sees the real caller
 * (RTLD_NEXT and RTLD_DEFAULT depend on it).
 */
#include "runtime/driver/flags.h"

#define SPARE_COUNT 128

        .text

/* void *dlsym(void *handle, const char *name) */
        .globl  dlsym
        .type   dlsym, @function
        .p2align 4
dlsym:
        .cfi_startproc
        endbr64
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        subq    $8, %rsp
        .cfi_adjust_cfa_offset 8
        call    ms_answer_dlsym
        addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        testq   %rax, %rax
        jz      1f
        movq    %rdx, %rax
        ret
1:      jmpq    *ms_libc_dlsym_address(%rip)
        .cfi_endproc
        .size   dlsym, . - dlsym

/* One thunk: puts the index in a scratch register and jumps to the common part. */
.macro thunk name
        .type   \name, @function
        .p2align 4
\name:
        .cfi_startproc
        endbr64
        movl    $ms_index, %r11d
        jmp     seal_common
        .cfi_endproc
        .size   \name, . - \name
.endm

        .set    ms_index, 0
#define THUNK_OWN(symbol) .set ms_entry_##symbol, ms_index;
#define THUNK_OBSERVE(symbol)
#define THUNK_FORWARD(symbol)
#define THUNK_SEAL(symbol) .globl symbol; thunk symbol;
#define MS_ENTRY(class, symbol, base, version, per_thread, reason)                                 \
        THUNK_##class(symbol) .set ms_index, ms_index + 1;
#include "shim/entries.def"
#undef MS_ENTRY

/* Entries with arguments on the stack (guarded.h): jump to the driver while nothing is deferred. */
.macro guard symbol
        .globl  \symbol
        .type   \symbol, @function
        .p2align 4
\symbol:
        .cfi_startproc
        endbr64
        cmpl    $0, ms_hot + MS_HOT_GATED(%rip)
        je      1f
        cmpl    $0, ms_hot + MS_HOT_DEFERRED(%rip)
        jne     1f
        movq    ms_real + 8 * ms_entry_\symbol(%rip), %r11
        testq   %r11, %r11
        jz      1f
        jmpq    *%r11
1:      jmp     ms_guarded_\symbol
        .cfi_endproc
        .size   \symbol, . - \symbol
.endm

        guard   cuLaunchKernel
        guard   cuLaunchKernel_ptsz
        guard   cuLaunchCooperativeKernel
        guard   cuLaunchCooperativeKernel_ptsz

/* Thunks for functions that the table does not know, and the table of their addresses. */
.macro spare number
        .section .data.rel.ro.local, "aw", @progbits
        .quad   spare_\number
        .text
        thunk   spare_\number
        .set    ms_index, ms_index + 1
.endm

        .section .data.rel.ro.local, "aw", @progbits
        .globl  ms_spare_thunks
        .hidden ms_spare_thunks
        .type   ms_spare_thunks, @object
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

/*
 * r11: the entry. If nothing is deferred and the driver is known: one load each and a jump. The
 * gate flag is stored only when it changes, so that its cache line stays shared.
 */
        .type   seal_common, @function
        .p2align 4
seal_common:
        .cfi_startproc
        leaq    ms_hot(%rip), %rax
        cmpl    $0, MS_HOT_GATED(%rax)
        jne     1f
        movl    $1, MS_HOT_GATED(%rax)
1:      cmpl    $0, MS_HOT_DEFERRED(%rax)
        jne     2f
        leaq    ms_real(%rip), %rax
        movq    (%rax, %r11, 8), %rax
        testq   %rax, %rax
        jz      2f
        jmpq    *%rax

2:      pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        pushq   %rdx
        .cfi_adjust_cfa_offset 8
        pushq   %rcx
        .cfi_adjust_cfa_offset 8
        pushq   %r8
        .cfi_adjust_cfa_offset 8
        pushq   %r9
        .cfi_adjust_cfa_offset 8
        subq    $136, %rsp
        .cfi_adjust_cfa_offset 136
        movaps  %xmm0, (%rsp)
        movaps  %xmm1, 16(%rsp)
        movaps  %xmm2, 32(%rsp)
        movaps  %xmm3, 48(%rsp)
        movaps  %xmm4, 64(%rsp)
        movaps  %xmm5, 80(%rsp)
        movaps  %xmm6, 96(%rsp)
        movaps  %xmm7, 112(%rsp)
        movl    %r11d, %edi
        call    ms_seal_enter
        movq    %rdx, %r11
        movaps  (%rsp), %xmm0
        movaps  16(%rsp), %xmm1
        movaps  32(%rsp), %xmm2
        movaps  48(%rsp), %xmm3
        movaps  64(%rsp), %xmm4
        movaps  80(%rsp), %xmm5
        movaps  96(%rsp), %xmm6
        movaps  112(%rsp), %xmm7
        addq    $136, %rsp
        .cfi_adjust_cfa_offset -136
        popq    %r9
        .cfi_adjust_cfa_offset -8
        popq    %r8
        .cfi_adjust_cfa_offset -8
        popq    %rcx
        .cfi_adjust_cfa_offset -8
        popq    %rdx
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        testl   %eax, %eax
        jnz     3f
        jmpq    *%r11
3:      ret
        .cfi_endproc
        .size   seal_common, . - seal_common

        .section .note.GNU-stack, "", @progbits
