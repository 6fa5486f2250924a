/* SPDX-License-Identifier: Apache-2.0 */
/* void *dlsym(void *handle, const char *name), which goes on to another dlsym. */
.macro lookup name, next
        .globl  \name
begin   \name
        hint    #34 /* bti c */
        stp     x29, x30, [sp, #-32]!
        .cfi_def_cfa_offset 32
        .cfi_offset 29, -32
        .cfi_offset 30, -24
        stp     x0, x1, [sp, #16]
        bl      ms_answer_dlsym
        mov     x16, x0
        mov     x17, x1
        ldp     x0, x1, [sp, #16]
        ldp     x29, x30, [sp], #32
        .cfi_restore 30
        .cfi_restore 29
        .cfi_def_cfa_offset 0
        cbz     x16, 1f
        mov     x0, x17
        ret
1:      adrp    x16, \next
        ldr     x16, [x16, #:lo12:\next]
        br      x16
end     \name
.endm

lookup  dlsym, ms_next_dlsym_address
        .hidden ms_answering_dlsym
lookup  ms_answering_dlsym, ms_libc_dlsym_address

/* void *dlvsym(void *handle, const char *name, const char *version) */
        .globl  dlvsym
begin   dlvsym
        hint    #34
        stp     x29, x30, [sp, #-48]!
        .cfi_def_cfa_offset 48
        .cfi_offset 29, -48
        .cfi_offset 30, -40
        stp     x0, x1, [sp, #16]
        str     x2, [sp, #32]
        mov     x2, x30
        bl      ms_answer_dlvsym
        and     w16, w0, #0xff
        ldp     x0, x1, [sp, #16]
        ldr     x2, [sp, #32]
        ldp     x29, x30, [sp], #48
        .cfi_restore 30
        .cfi_restore 29
        .cfi_def_cfa_offset 0
        cbz     w16, 1f
        adrp    x0, ms_answering_dlsym
        add     x0, x0, #:lo12:ms_answering_dlsym
        ret
1:      adrp    x16, ms_next_dlvsym_address
        ldr     x16, [x16, #:lo12:ms_next_dlvsym_address]
        br      x16
end     dlvsym

.macro thunk name
begin   \name
        hint    #34
        mov     w17, #ms_index
        b       seal_common
end     \name
.endm

.macro guard symbol
begin   \symbol
        bti     c
        adrp    x16, ms_hot
        add     x16, x16, #:lo12:ms_hot
        ldr     w15, [x16, #MS_HOT_GATED]
        cbz     w15, 1f
        ldr     w15, [x16, #MS_HOT_DEFERRED]
        cbnz    w15, 1f
        adrp    x16, ms_real + 8 * .Lentry_\symbol
        ldr     x16, [x16, #:lo12:ms_real + 8 * .Lentry_\symbol]
        cbz     x16, 1f
        br      x16
1:      b       ms_guarded_\symbol
end     \symbol
.endm

.macro call_driver symbol
begin   ms_call_\symbol
        bti     c
        adrp    x16, ms_real + 8 * .Lentry_\symbol
        ldr     x16, [x16, #:lo12:ms_real + 8 * .Lentry_\symbol]
        cbz     x16, 1f
        br      x16
1:      mov     w17, #.Lentry_\symbol
        orr     w17, w17, #MS_FIND_ONLY
        b       seal_slowly
end     ms_call_\symbol
.endm

/*
 * w17: the entry. If nothing is deferred and the driver is known: one load each and a jump. The
 * gate flag is stored only when it changes, so that its cache line stays shared.
 */
begin   seal_common
        adrp    x16, ms_hot
        add     x16, x16, #:lo12:ms_hot
        ldr     w15, [x16, #MS_HOT_GATED]
        cbnz    w15, 1f
        mov     w15, #1
        str     w15, [x16, #MS_HOT_GATED]
1:      ldr     w15, [x16, #MS_HOT_DEFERRED]
        cbnz    w15, seal_slowly
        adrp    x16, ms_real
        add     x16, x16, #:lo12:ms_real
        ldr     x16, [x16, w17, uxtw #3]
        cbz     x16, seal_slowly
        br      x16
end     seal_common

/* w17: the entry, perhaps with MS_FIND_ONLY. Asks ms_seal_enter what to do. */
begin   seal_slowly
        stp     x29, x30, [sp, #-224]!
        .cfi_def_cfa_offset 224
        .cfi_offset 29, -224
        .cfi_offset 30, -216
        stp     x0, x1, [sp, #16]
        stp     x2, x3, [sp, #32]
        stp     x4, x5, [sp, #48]
        stp     x6, x7, [sp, #64]
        str     x8, [sp, #80]
        stp     q0, q1, [sp, #96]
        stp     q2, q3, [sp, #128]
        stp     q4, q5, [sp, #160]
        stp     q6, q7, [sp, #192]
        mov     w0, w17
        bl      ms_seal_enter
        mov     x17, x0
        mov     x16, x1
        ldp     x0, x1, [sp, #16]
        ldp     x2, x3, [sp, #32]
        ldp     x4, x5, [sp, #48]
        ldp     x6, x7, [sp, #64]
        ldr     x8, [sp, #80]
        ldp     q0, q1, [sp, #96]
        ldp     q2, q3, [sp, #128]
        ldp     q4, q5, [sp, #160]
        ldp     q6, q7, [sp, #192]
        ldp     x29, x30, [sp], #224
        .cfi_restore 30
        .cfi_restore 29
        .cfi_def_cfa_offset 0
        cbnz    w17, 3f
        br      x16
3:      mov     w0, w17
        ret
end     seal_slowly
