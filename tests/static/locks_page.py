#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""locks_page.py [--write]: docs/locking.md, made from runtime/base/locks.def.

Without --write it compares, and fails when the committed page is stale, when a mutex of the runtime or the shim is none of the
table's, or when a row has no lock in its file.
"""
import glob
import os
import re
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TABLE = os.path.join("runtime", "base", "locks.def")
PAGE = os.path.join("docs", "locking.md")
ROW = re.compile(r'^MS_LOCK\((\w+),\s*"(.*?)",\s*"(.*?)",\s*"(.*?)"\)$', re.M)
# A mutex has its rank from here.
WRAPPER = os.path.join("runtime", "base", "lock.h")
HEAD = """# Locks

Made from `runtime/base/locks.def` (`tests/static/locks_page.py --write`).

A thread takes a lock only while all locks that it holds have lower ranks. So no two threads wait for locks of each other.
A thread may always try a lock or a claim, because trying does not wait.

A *claim* on an allocation has a rank as well. A thread that waits for a claim holds only *turns*, which are locks of lower
ranks. A thread that takes a turn has no claim. A thread waits for several claims in the order of addresses.

clang checks at compile time that each lock is dropped on every path, and that functions whose name ends in `_locked` are
called with their lock. A build with `-Ddebug_checks=true` checks ranks at run time, and ends the process with a line
that names both locks; `./check --all` also runs the suites in this way, under the sanitizers.

| rank | lock | file | guards | held during |
|---|---|---|---|---|
"""


def read(path):
    with open(os.path.join(SOURCE, path), encoding="utf-8") as file:
        return file.read()


def read_rows():
    text = read(TABLE)
    rows = ROW.findall(text)
    if not rows or len(rows) != text.count("\nMS_LOCK("):
        sys.exit(f'{TABLE}: a row has another shape than MS_LOCK(name, "file", "guards", "held during")')
    return rows


def make_page(rows):
    names = [name for name, *_ in rows]
    return HEAD + "".join(
        f"| {rank} | `{name}`{', a turn' if rank < names.index('claim') else ''} | `{file}` | {guards} | {held} |\n"
        for rank, (name, file, guards, held) in enumerate(rows))


def check_sources(rows):
    faults = []
    owners = {}
    for folder in ("runtime", "shim"):
        for path in sorted(glob.glob(os.path.join(SOURCE, folder, "**", "*.[ch]"), recursive=True)):
            path = os.path.relpath(path, SOURCE)
            text = read(path)
            if path == WRAPPER:
                continue
            if re.search(r"pthread_(mutex|rwlock|spin)|PTHREAD_(MUTEX|RWLOCK)", text):
                faults.append(f"{path}: a lock without a rank; use struct ms_lock of {WRAPPER}")
            for name in re.findall(r"MS_LOCK_INIT\((\w+)\)", text):
                owners.setdefault(name, []).append(path)
    for name, file, *_ in rows:
        found = owners.pop(name, [file] if name == "claim" and "ms_claim_check(" in read(file) else [])
        if found != [file]:
            faults.append(f"{TABLE}: {name} is made in {', '.join(found) or 'no file'}; expected {file}")
    return faults + [f"{path}: no row in {TABLE}: {name}" for name, paths in owners.items() for path in paths]


def main():
    rows = read_rows()
    page = make_page(rows)
    if "--write" in sys.argv:
        with open(os.path.join(SOURCE, PAGE), "w", encoding="utf-8") as file:
            file.write(page)
        return 0
    faults = check_sources(rows)
    if read(PAGE) != page:
        faults.append(f"{PAGE} is stale: run tests/static/locks_page.py --write")
    print("\n".join(faults) or f"{len(rows)} locks have their rows, and {PAGE} is as {TABLE} says")
    return len(faults) > 0


if __name__ == "__main__":
    sys.exit(main())
