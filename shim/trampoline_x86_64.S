/* SPDX-License-Identifier: Apache-2.0 */
.macro save registers:vararg
        .irp    register, \registers
        pushq   %\register
        .cfi_adjust_cfa_offset 8
        .endr
.endm

.macro restore registers:vararg
        .irp    register, \registers
        popq    %\register
        .cfi_adjust_cfa_offset -8
        .endr
.endm

/* void *dlsym(void *handle, const char *name), which goes on to another dlsym. */
.macro lookup name, next
        .globl  \name
begin   \name
        endbr64
        save    rdi, rsi
        subq    $8, %rsp
        .cfi_adjust_cfa_offset 8
        call    ms_answer_dlsym
        addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        restore rsi, rdi
        testq   %rax, %rax
        jz      1f
        movq    %rdx, %rax
        ret
1:      jmpq    *\next(%rip)
end     \name
.endm

lookup  dlsym, ms_next_dlsym_address
        .hidden ms_answering_dlsym
lookup  ms_answering_dlsym, ms_libc_dlsym_address

/* void *dlvsym(void *handle, const char *name, const char *version) */
        .globl  dlvsym
begin   dlvsym
        endbr64
        save    rdi, rsi, rdx
        movq    24(%rsp), %rdx
        call    ms_answer_dlvsym
        restore rdx, rsi, rdi
        testb   %al, %al
        jz      1f
        leaq    ms_answering_dlsym(%rip), %rax
        ret
1:      jmpq    *ms_next_dlvsym_address(%rip)
end     dlvsym

.macro thunk name
begin   \name
        endbr64
        movl    $ms_index, %r11d
        jmp     seal_common
end     \name
.endm

.macro guard symbol
begin   \symbol
        endbr64
        cmpl    $0, ms_hot + MS_HOT_GATED(%rip)
        je      1f
        cmpl    $0, ms_hot + MS_HOT_DEFERRED(%rip)
        jne     1f
        movq    ms_real + 8 * .Lentry_\symbol(%rip), %r11
        testq   %r11, %r11
        jz      1f
        jmpq    *%r11
1:      jmp     ms_guarded_\symbol
end     \symbol
.endm

.macro call_driver symbol
begin   ms_call_\symbol
        endbr64
        movq    ms_real + 8 * .Lentry_\symbol(%rip), %r11
        testq   %r11, %r11
        jz      1f
        jmpq    *%r11
1:      movl    $MS_FIND_ONLY + .Lentry_\symbol, %r11d
        jmp     seal_slowly
end     ms_call_\symbol
.endm

/*
 * r11: the entry. If nothing is deferred and the driver is known: one load each and a jump. The
 * gate flag is stored only when it changes, so that its cache line stays shared.
 */
begin   seal_common
        leaq    ms_hot(%rip), %rax
        cmpl    $0, MS_HOT_GATED(%rax)
        jne     1f
        movl    $1, MS_HOT_GATED(%rax)
1:      cmpl    $0, MS_HOT_DEFERRED(%rax)
        jne     seal_slowly
        leaq    ms_real(%rip), %rax
        movq    (%rax, %r11, 8), %rax
        testq   %rax, %rax
        jz      seal_slowly
        jmpq    *%rax
end     seal_common

/* r11: the entry, perhaps with MS_FIND_ONLY. Asks ms_seal_enter what to do. */
begin   seal_slowly
        save    rdi, rsi, rdx, rcx, r8, r9
        subq    $136, %rsp
        .cfi_adjust_cfa_offset 136
        .irp    number, 0, 1, 2, 3, 4, 5, 6, 7
        movaps  %xmm\number, 16 * \number(%rsp)
        .endr
        movl    %r11d, %edi
        call    ms_seal_enter
        movq    %rdx, %r11
        .irp    number, 0, 1, 2, 3, 4, 5, 6, 7
        movaps  16 * \number(%rsp), %xmm\number
        .endr
        addq    $136, %rsp
        .cfi_adjust_cfa_offset -136
        restore r9, r8, rcx, rdx, rsi, rdi
        testl   %eax, %eax
        jnz     3f
        jmpq    *%r11
3:      ret
end     seal_slowly
