/* SPDX-License-Identifier: Apache-2.0 */
/* A table of how far things are from its own beginning: it needs no relocation, unlike pointers. */
.macro table name
        .section .rodata
        .globl  \name
        .hidden \name
        .type   \name, %object
        .p2align 2
\name:
.endm
