/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernel rules: which kernels may be recorded instead of run, by name. The built-in ones are
 * kernel-rules.txt (installed with the product, where the format is documented); the program's user
 * adds a file with METASHARD_KERNEL_RULES, which is asked first. The first rule that matches decides.
 */
#ifndef METASHARD_RUNTIME_KERNEL_RULES_H
#define METASHARD_RUNTIME_KERNEL_RULES_H

enum ms_rule {
    MS_RULE_RUN,        /* nothing is known: the kernel runs */
    MS_RULE_WRITE_ONLY, /* one pointer; reads no memory, writes elements */
    MS_RULE_IN_PLACE, /* {out, in}, the same or of two blocks; element i depends on element i alone */
    MS_RULE_FROM_OTHER,  /* {out, in} of two blocks; an element depends on any of the other's */
    MS_RULE_CONCATENATE, /* torch.cat (concatenate.h) */
    MS_RULE_COUNT
};

extern const char *const ms_rule_names[MS_RULE_COUNT];

/*
 * Reads the user's file; an empty path means none. A line that is not understood costs a warning with
 * file, line and what was expected, and is left out. Called once, before the first match.
 */
void ms_rules_read(const char *user_path);

/* `name` is the kernel's name as the driver knows it: mangled. */
enum ms_rule ms_rules_match(const char *name);

#endif
