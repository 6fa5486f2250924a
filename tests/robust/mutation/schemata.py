# SPDX-License-Identifier: Apache-2.0
"""All mutants in one build: each place becomes a choice that one number makes at run time.

A file of 8 bytes and one per mutant is mapped by each process of the build, wherever it comes from and whatever is left
of its environment: what is done (RECORD, MUTATE), which mutant there is, and a mark for each place that was reached.
A process that is killed has left its marks, too.
"""
import os
import struct

OFF, RECORD, MUTATE = range(3)

# No header of libc: files of the project say what they want of them. Weak, because a library has one copy of it.
HEADER = """/* SPDX-License-Identifier: Apache-2.0 */
#ifndef __ASSEMBLER__
#ifndef MS_MUTANT
#define MS_MUTANT_WEAK __attribute__((weak, visibility("hidden")))
extern char *getenv(const char *name);
extern long syscall(long number, ...);
#include <sys/syscall.h>
MS_MUTANT_WEAK volatile unsigned ms_mutants_mode;
MS_MUTANT_WEAK volatile unsigned ms_mutants_one;
MS_MUTANT_WEAK unsigned char *volatile ms_mutants_reached;
MS_MUTANT_WEAK void ms_mutants_begin(void);
MS_MUTANT_WEAK __attribute__((constructor(101))) void ms_mutants_begin(void)
{
    if (ms_mutants_reached)
        return;
    const char *one = getenv("MS_MUTANT"); /* for a debugger */
    const long file = syscall(SYS_openat, -100, "%(path)s", 02000002, 0);
    const long at = file >= 0 ? syscall(SYS_mmap, 0L, %(bytes)dL, 3L, 1L, file, 0L) : -1;
    if (file >= 0)
        syscall(SYS_close, file);
    if (at < 0 && at > -4096)
        return;
    ms_mutants_reached = (unsigned char *)at + 8;
    ms_mutants_mode = one ? 2 : ((const unsigned *)at)[0];
    ms_mutants_one = ((const unsigned *)at)[1];
    if (one)
        for (ms_mutants_one = 0; *one; one++)
            ms_mutants_one = 10 * ms_mutants_one + (unsigned)(*one - '0');
}
MS_MUTANT_WEAK int ms_mutants_is(unsigned mutant);
MS_MUTANT_WEAK __attribute__((noinline)) int ms_mutants_is(unsigned mutant)
{
    ms_mutants_reached[mutant] = 1;
    return ms_mutants_one == mutant;
}
#define MS_MUTANT(mutant) (__builtin_expect(ms_mutants_mode != 0, 0) && ms_mutants_is(mutant))
#endif
#endif
"""


class Control:
    def __init__(self, path, count):
        self.path, self.count = path, count

    def set(self, mode, mutant=0):
        """In the same file, which processes may have mapped: they have read theirs."""
        if not os.path.exists(self.path) or os.path.getsize(self.path) != 8 + self.count:
            with open(self.path, "wb") as file:
                file.truncate(8 + self.count)
        with open(self.path, "r+b") as file:
            file.write(struct.pack("=II", mode, mutant) + bytes(self.count))

    def reached(self):
        with open(self.path, "rb") as file:
            marks = file.read()[8:]
        return [at for at, mark in enumerate(marks) if mark]


def one_line(text):
    return " ".join(text.split())


def places_of(mutants):
    """[(begin, end, form, [mutant])], an outer one before those within it."""
    places = {}
    for mutant in mutants:
        key = (mutant["begin"], -mutant["end"], mutant["form"] == "expression", mutant["form"])
        places.setdefault(key, []).append(mutant)
    return [(key[0], -key[1], key[3], places[key]) for key in sorted(places)]


def render(text, mutants):
    """The text with its mutants; it keeps its lines."""
    out, _ = render_range(text, places_of(mutants), 0, 0, len(text))
    return out


def render_range(text, places, at, begin, end):
    """(text[begin:end] with the places from index `at` that lie in it, the first index behind them)"""
    out = []
    while at < len(places) and places[at][0] < end and places[at][1] <= end:
        first, last, form, here = places[at]
        at += 1
        if first < begin:
            continue  # half in another place
        out.append(text[begin:first].decode())
        inner, at = render_range(text, places, at, first, last) if last > first else ("", at)
        out.append(wrap(form, here, inner))
        begin = last
    out.append(text[begin:end].decode())
    return "".join(out), at


def wrap(form, mutants, inner):
    if form == "entry":
        return "".join(f" if (MS_MUTANT({each['number']})) {each['change']}" for each in mutants)
    if form == "statement":
        return f"{{ if (!MS_MUTANT({mutants[0]['number']})) {inner} }}"
    choices = "".join(f"MS_MUTANT({each['number']}) ? ({one_line(each['change'])}) : " for each in mutants)
    return f"({choices}({inner}))"


def instrument(text, mutants, header):
    return f'#include "{header}"\n#line 1\n' + render(text, mutants)
