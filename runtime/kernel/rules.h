/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernel rules: which kernels may be recorded instead of run, by name. The built-in ones are in
 * kernel-rules.txt, which is installed and documents the format. The user may add a file with
 * METASHARD_KERNEL_RULES, whose rules come first. The first rule that matches decides.
 */
#pragma once

#include <stdbool.h>

/* kernel-rules.txt says what each class promises. */
enum ms_rule {
    MS_RULE_RUN,         /* nothing, or no rule: the kernel runs */
    MS_RULE_WRITE_ONLY,  /* stores through one pointer; loads no memory of the program */
    MS_RULE_IN_PLACE,    /* {out, in}, equal or of two blocks; element i needs only element i */
    MS_RULE_FROM_OTHER,  /* {out, in} of two blocks; an element may need any of the other's */
    MS_RULE_FROM_FIRST,  /* {in, out} of two blocks; else like from-other */
    MS_RULE_CONCATENATE, /* torch.cat (concatenate.h) */
    MS_RULE_EACH,        /* torch._foreach_* (tensor_list.h): in place, or {in, out} */
    MS_RULE_COUNT
};

/* Asked when a built-in rule matches: are the built-in rules true of the process's PyTorch? Set
 * before the first match. */
extern bool (*ms_rules_hold)(void);

extern const char *const ms_rule_names[MS_RULE_COUNT];

/* Reads the user's file; an empty path means none. An invalid line gives a warning with file, line
 * and what was expected, and is ignored. Called at most once, before the first match; without this
 * call, the first match reads the built-in rules. */
void ms_rules_read(const char *user_path);

/* kernel-rules.txt, ended by a zero. */
extern const char ms_builtin_rules[];

/* `name` is the kernel's name as the driver knows it: mangled. */
enum ms_rule ms_rules_match(const char *name);
