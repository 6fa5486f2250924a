/* SPDX-License-Identifier: Apache-2.0 */
/* A table of distances from its own beginning. Unlike pointers, distances need no relocation. */
.macro table name
        .section .rodata
        .globl  \name
        .hidden \name
        .type   \name, %object
        .p2align 2
\name:
.endm
