/* SPDX-License-Identifier: Apache-2.0 */
/* The text of kernel-rules.txt as a C string. The build gives its path. */
        .section .rodata
        .globl  ms_builtin_rules
        .hidden ms_builtin_rules
        .type   ms_builtin_rules, %object
ms_builtin_rules:
        .incbin MS_RULES_FILE
        .byte   0
        .size   ms_builtin_rules, . - ms_builtin_rules
        .section .note.GNU-stack, "", %progbits
