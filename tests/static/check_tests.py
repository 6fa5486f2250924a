#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_tests.py [--write | --list FIGURE]: how many tests there are, and how much of the inside of the runtime they name.

MEANINGS says what is counted. tests.txt has a row for each figure: how much there is, and how much is wanted. A figure that is
above what is wanted may only shrink: more is a fault, and so is a row that says more than there is. --write sets the rows to
what is found, --list prints what is counted.
"""
import os
import re
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIMITS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tests.txt")
MEANINGS = {
    "lines": "lines of C, Python and shell in tests/",
    "functions": "public functions of runtime/ and shim/ that tests/unit names",
    "members": "places in tests/unit that name a member of a lineage or of a backing",
    "wraps": "functions of the runtime that tests/unit/meson.build lets the linker wrap",
    "random": "lines of the testers that draw programs (DRAWN): the fuzzer, the model tester, the ranks' tester",
    "gpu": "lines of tests/gpu",
    "state": "lines of tools/dump and tests/state",
}
DRAWN = ("tests/driver/differential/fuzz", "tests/driver/differential/run", "tests/driver/model/", "tests/ranks/random/")
SUFFIXES = (".c", ".h", ".py", ".sh", ".def")
DECLARED = re.compile(r"^[A-Za-z][\w\s\*]*?\b(ms_\w+)\(", re.M)
NAMED = re.compile(r"\bms_\w+\b")
MEMBERS = re.compile(r"(?:->|\.)(?:lineage|backing)\.")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)


def is_source(path):
    if path.endswith(SUFFIXES):
        return True
    if "." in os.path.basename(path):
        return False
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


def read_texts(*folders):
    """{path below the source: its text} of all sources in the folders"""
    texts = {}
    for folder in folders:
        for place, folders_here, names in os.walk(os.path.join(SOURCE, folder)):
            folders_here[:] = [name for name in folders_here if name != "__pycache__"]
            for name in names:
                path = os.path.join(place, name)
                if is_source(path):
                    with open(path, encoding="utf-8") as file:
                        texts[os.path.relpath(path, SOURCE)] = file.read()
    return texts


def list_lines(texts):
    return [f"{path}:{number}" for path, text in sorted(texts.items()) for number in range(1, text.count("\n") + 1)]


def find():
    """{figure: what is counted}"""
    tests, unit = read_texts("tests"), read_texts("tests/unit")
    ours = read_texts("runtime", "shim")
    public = {name for path, text in ours.items() if path.endswith(".h") for name in DECLARED.findall(COMMENT.sub("", text))}
    named = {name for text in unit.values() for name in NAMED.findall(COMMENT.sub("", text))}
    with open(os.path.join(SOURCE, "tests", "unit", "meson.build"), encoding="utf-8") as file:
        build = file.read()
    calls = re.findall(r"^(\w+_calls) = \[(.*?)\]", build, re.M | re.S)
    wraps = set(re.findall(r"--wrap=(\w+)", build)) | {name for _, names in calls for name in re.findall(r"'(\w+)'", names)}
    wraps |= {name for row in re.findall(r"^wrapped = \{(.*?)^\}", build, re.M | re.S)
              for names in re.findall(r": \[(.*?)\]", row, re.S) for name in re.findall(r"'(\w+)'", names)}
    return {
        "lines": list_lines(tests),
        "functions": sorted(public & named),
        "members": [f"{path}: {match[0]}" for path, text in sorted(unit.items()) for match in MEMBERS.finditer(text)],
        "wraps": sorted(name for name in wraps if name.startswith("ms_")),
        "random": list_lines({path: text for path, text in tests.items() if path.startswith(DRAWN)}),
        "gpu": list_lines(read_texts("tests/gpu")),
        "state": list_lines(read_texts("tools/dump", "tests/state")),
    }


def read_rows():
    """{figure: (how much there is, how much is wanted)}"""
    with open(LIMITS, encoding="utf-8") as file:
        rows = [line.split(None, 3) for line in file if line.strip() and not line.startswith("#")]
    return {row[0]: (int(row[1]), int(row[2])) for row in rows}


def write_rows(found, rows):
    with open(LIMITS, "w", encoding="utf-8") as file:
        print("# How many tests there are, and what they name. Made by tests/static/check_tests.py --write.", file=file)
        print("# figure, how much there is, how much is wanted at most", file=file)
        for name, meaning in MEANINGS.items():
            print(f"{name:<9} {len(found[name]):>6} {rows[name][1]:>6}  {meaning}", file=file)


def check(found, rows):
    if set(rows) != set(MEANINGS):
        return ["expected in tests.txt a row for each of " + ", ".join(MEANINGS)]
    faults = [f"{name}: {len(found[name])} {MEANINGS[name]}; at most {max(limit)} expected (--list {name} prints what is counted)"
              for name, limit in rows.items() if len(found[name]) > max(limit)]
    faults += [f"{name}: there are {len(found[name])}: tests/static/check_tests.py --write"
               for name, (most, wanted) in rows.items() if wanted < most != len(found[name]) <= most]
    return faults + [f"{name}: none found, that cannot be right" for name in MEANINGS if not found[name]]


def main():
    found = find()
    if sys.argv[1:2] == ["--list"]:
        print("\n".join(found[sys.argv[2]]))
        return 0
    if sys.argv[1:2] == ["--write"]:
        write_rows(found, read_rows())
    faults = check(found, read_rows())
    print("\n".join(faults) or ", ".join(f"{name} {len(found[name])}" for name in MEANINGS))
    return len(faults) > 0


if __name__ == "__main__":
    sys.exit(main())
