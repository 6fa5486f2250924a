#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_units.py: tests/unit mirrors runtime, and in its folders shim and tools, for what has one, these.

Each runtime/FOLDER/NAME.c and shim/NAME.c has tests/unit/FOLDER/NAME.c, which tests/unit/meson.build builds, or a row in
tests/unit/without.txt. A row names a file without a unit test, and a test that exists and notices a fault in it.
"""
import glob
import os
import re
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def list_names(folder, base=None):
    return {os.path.relpath(path, base or folder) for path in glob.glob(os.path.join(folder, "*.c" if base else "*/*.c"))}


def read_text(*path):
    with open(os.path.join(SOURCE, *path), encoding="utf-8") as file:
        return file.read()


def check_row(number, line, files, tests):
    parts = line.split(": ", 2)
    if len(parts) < 3:
        return [f"without.txt:{number}: expected FILE: TEST: WHY"]
    name, test, _ = parts
    faults = []
    if name not in files:
        faults.append(f"without.txt:{number}: there is no {name} in runtime or shim")
    if name in tests:
        faults.append(f"without.txt:{number}: {name} has a unit test: take the row out")
    if not os.path.isfile(os.path.join(SOURCE, test)):
        faults.append(f"without.txt:{number}: there is no {test}")
    return faults


def main():
    files = list_names(os.path.join(SOURCE, "runtime")) | list_names(os.path.join(SOURCE, "shim"), SOURCE)
    tests = list_names(os.path.join(SOURCE, "tests", "unit"))
    tests -= {name for name in tests if os.path.isfile(os.path.join(SOURCE, name)) and name.startswith("tools/")}
    lines = [(number, line) for number, line in enumerate(read_text("tests", "unit", "without.txt").splitlines(), 1)
             if line and not line.startswith("#")]
    rows = [line.split(":")[0] for _, line in lines]
    built = set(re.findall(r"'(\w+/\w+)(?:\.c)?'", read_text("tests", "unit", "meson.build")))
    faults = [fault for number, line in lines for fault in check_row(number, line, files, tests)]
    faults += [f"{name} has neither a unit test nor a row in tests/unit/without.txt"
               for name in sorted(files - tests - set(rows))]
    faults += [f"tests/unit/{name} tests no file of that name in runtime or shim" for name in sorted(tests - files)]
    faults += [f"tests/unit/{name} is not built" for name in sorted(tests) if name[:-2] not in built]
    if rows != sorted(set(rows)):
        faults.append("without.txt: expected each file once, in order")
    if len(files) < 110:
        faults.append(f"only {len(files)} files found, that cannot be right")
    print("\n".join(faults) or f"{len(files)} files, {len(tests)} unit tests")
    return len(faults) > 0


if __name__ == "__main__":
    sys.exit(main())
