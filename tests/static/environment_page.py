#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""environment_page.py [--write]: what the documents say of the variables, made from runtime/config/options.def:
docs/environment.md as a whole, and a part of docs/metashard.7.

Without --write it compares, and fails when a committed page is stale.
"""
import os
import re
import sys
import textwrap

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGE = os.path.join("docs", "environment.md")
MANUAL = os.path.join("docs", "metashard.7")
OPTION = re.compile(r'^MS_OPTION\((\w+), (\w+), (\w+), "(.*?)", "(.*?)",\s*((?:"[^"]*"\s*)+)\)',
                    re.M)
HEAD = """# Environment variables

Made from `runtime/config/options.def` by `tests/static/environment_page.py --write`.

MetaShard reads the environment once, at the program's first successful `cuInit`. It warns of a
value that it does not understand, and uses the default; it also warns of an unknown `METASHARD_`
name, and suggests a variable. Programs with raised privileges (setuid) get the defaults.

- on or off: also `1`, `true` and `yes`, or `0`, `false` and `no`.
- Bytes: a number, with K, M, G or T for powers of 1024; `80G`, `80GB` and `80GiB` are equal.

The parentheses show the kind of value and the default.

"""
# This script makes the text between these lines of the manual page.
BEGIN = '.\\" Made from runtime/config/options.def by tests/static/environment_page.py --write\n'
END = '.\\" End of what is made from runtime/config/options.def\n'


def read(path):
    with open(os.path.join(SOURCE, path)) as file:
        return file.read()


def options():
    """(variable, default, unit, meaning) of every row."""
    text = read(os.path.join("runtime", "config", "options.def"))
    rows = OPTION.findall(text)
    if len(rows) != text.count("\nMS_OPTION("):
        sys.exit("runtime/config/options.def: a row has another shape than MS_OPTION(type, field, "
                 "variable, \"default\", \"unit\", \"description\")")
    return [(variable, default, unit, "".join(re.findall(r'"([^"]*)"', description)))
            for _, _, variable, default, unit, description in rows]


def page():
    lines = []
    for variable, default, unit, meaning in options():
        lines.append(f"- `{variable}` ({unit}; {f'`{default}`' if default else 'none'}): {meaning}\n")
    return HEAD + "".join(lines)


def roff(text):
    """Text as lines of a manual page: a sentence begins a line, and none is a request."""
    lines = []
    for sentence in re.split(r"(?<=\.)\s+(?=[A-Z0-9])", text):
        lines += textwrap.wrap(sentence.replace("\\", "\\e"), 80, break_on_hyphens=False,
                               break_long_words=False)
    return "".join(("\\&" if line[0] in ".'" else "") + line + "\n" for line in lines)


def manual(text):
    """The page with its part made anew."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        sys.exit(f"{MANUAL}: expected once, and in this order, the lines\n{BEGIN}{END}")
    items = ""
    for variable, default, unit, meaning in options():
        items += f'.It Ev {variable} Ns = Ns Ar "{unit}"\n' + roff(meaning)
        items += roff(f"Default: {default}.") if default else "No default.\n"
    head, rest = text.split(BEGIN)
    return head + BEGIN + items + END + rest.split(END)[1]


def main():
    stale = 0
    for path, wanted in ((PAGE, page()), (MANUAL, manual(read(MANUAL)))):
        if "--write" in sys.argv:
            with open(os.path.join(SOURCE, path), "w") as file:
                file.write(wanted)
            continue
        is_stale = read(path) != wanted
        stale += is_stale
        print(f"{path} is " + ("stale: run tests/static/environment_page.py --write" if is_stale
                               else "as the table says"))
    return stale > 0


if __name__ == "__main__":
    sys.exit(main())
