#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""entries_page.py [--write]: docs/entry-points.md, made from shim/entries.def.

Without --write it compares, and fails when the committed page is stale.
"""
import collections
import os
import sys

from check_entries import SOURCE, read_rows

PAGE = os.path.join(SOURCE, "docs", "entry-points.md")
CLASSES = {
    "OWN": "the shim answers or transforms the call for deferred ranges",
    "OBSERVE": "the shim materialises or tracks all that the call can touch, then forwards the call",
    "SEAL": "not modelled: the shim materialises everything deferred, then calls the driver",
    "FORWARD": "the program gets the driver's own function",
}
HEAD = """# Entry points

This page lists each symbol that `libcuda.so.1` of CUDA 13.0 exports, except those of the debugger (`cudbg`), and each
function that `cuda.h` of 13.1 to 13.5 added, with its class and the reason for the class. The shim seals a function that
the list lacks when a program looks the function up, and also a newer ABI of a listed name ([design](design/calls.md#entry)).

- Symbols of a chapter that have the same class and reason share a row. If only their suffix differs, the row gives the
  first in full, and the suffix of the others: `cuMemcpy`, `_ptds`.
- *Allocation* means an allocation that the shim defers.
- A kernel that gets *tracked* memory can reach anything, because the host or another API can write addresses there
  without a call that the shim sees.
- After a call that sets the *gate*, the shim records a write only on an idle stream.
- `tests/static/entries_page.py --write` makes this page from `shim/entries.def`, the table that also makes the shim's
  entry points.

"""


def count_table(rows):
    symbols = collections.Counter(row.class_ for row in rows)
    lines = ["| class | symbols | names | what it means |\n|---|---|---|---|\n"]
    for class_, meaning in CLASSES.items():
        names = {row.base for row in rows if row.class_ == class_}
        lines.append(f"| {class_.lower()} | {symbols[class_]} | {len(names)} | {meaning} |\n")
    lines.append(f"| all | {len(rows)} | {len({row.base for row in rows})} | a name whose versions "
                 "differ in class counts in each |\n")
    return "".join(lines)


def symbols_of(twins):
    """`cuX_v2`, `_v2_ptsz`: the first in full. One without a suffix is always the first."""
    twins = sorted(twins, key=lambda row: row.symbol != row.base)
    names = [twins[0].symbol] + [row.symbol[len(row.base):] for row in twins[1:]]
    return ", ".join(f"`{name}`" for name in names)


def chapter_table(rows):
    groups = {}
    for row in rows:
        groups.setdefault((row.class_, row.reason), {}).setdefault(row.base, []).append(row)
    lines = ["| symbols | class | reason |\n|---|---|---|\n"]
    for class_ in CLASSES:
        lines += [f"| {', '.join(map(symbols_of, names.values()))} | {class_.lower()} | {reason} |\n"
                  for (of, reason), names in groups.items() if of == class_]
    return "".join(lines)


def page():
    rows = read_rows()
    chapters = {}
    for row in rows:
        chapters.setdefault(row.chapter, []).append(row)
    parts = [HEAD + count_table(rows)]
    parts += [f"## {chapter}\n\n{chapter_table(members)}" for chapter, members in chapters.items()]
    return "\n".join(parts)


def main():
    if "--write" in sys.argv:
        with open(PAGE, "w") as file:
            file.write(page())
        return 0
    fresh = False
    if os.path.exists(PAGE):
        with open(PAGE) as file:
            fresh = file.read() == page()
    print("docs/entry-points.md is " + ("as the table says" if fresh else
          "stale: run tests/static/entries_page.py --write"))
    return not fresh


if __name__ == "__main__":
    sys.exit(main())
