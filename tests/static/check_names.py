#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_names.py: one name, one thing; and lines that fit.

Over the shim, the runtime and the tools: no two headers define the same tag or macro, no file defines a tag of a header
again, and no two files have the same name, but for those in MANY. No line of C, the tests' included, is wider
than WIDTH: clang-format sees to code, and this to comments. Drawings and tables (a comment with runs of spaces) may be.
A name of a test is read alone, in a failure: its first word says who acts, and is no pronoun.
"""
import collections
import os
import re
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PARTS = ("shim", "runtime", "tools")
WIDTH = 100
OTHERS_FOLDERS = ("tests/", "tools/simcuda/")  # their names are their own
TESTS_FOLDERS = ("tests/", "tools/simcuda/tests/")
# Each folder has one.
MANY = {"main.c", "meson.build"}
# A table of rows (.def) is included more than once, each time with another meaning of its row.
ROWS = re.compile(r"MS_(COUNTER|DRIVER|DRIVER_OPTIONAL|ENTRY|FILE_CALL|LOCK|NCCL|NEED|OPTION|HOT_PAGE)$")
# Each tool defines its own for tools/command_line.h.
EACH_TOOLS = {"options"}
# Names that programs and the system's headers want to see.
OTHERS = {"METASHARD_API", "__CUDA_API_VERSION_INTERNAL"}

COMMENT = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)
TAG = re.compile(r"\b(?:struct|enum|union)\s+(\w+)\s*\{")
MACRO = re.compile(r"^\s*#\s*define\s+(\w+)", re.M)
# MS_TEST, a macro of the file that ends in it, or a story (tests/unit/between.h and story.h).
TEST = re.compile(r"^(?:[A-Z_]*TEST(?:_[A-Z]+)*\((?:[^()]*,)?\s*(\w+)\)|STORY(?:_ALONE)?\(\s*(\w+),"
                  r"|STORY_AFTER\(\s*\w+,\s*(\w+),|STORY_BETWEEN\(\s*\w+,\s*\w+,\s*(\w+),)", re.M)
PRONOUN = re.compile(r"(what|it|one|that|those|which)_")
# A drawing, a table, or a name that cannot be broken.
FREE = re.compile(r"\S {2,}\S|^ \* {2,}\S|\S{70}")


def find_faults(files):
    """files: {path: text}. One line a fault."""
    faults = []
    tags, macros, names = (collections.defaultdict(list) for _ in range(3))
    local_tags = []
    for path, text in sorted(files.items()):
        if not path.startswith(OTHERS_FOLDERS):
            names[os.path.basename(path)].append(path)
        if not path.endswith((".c", ".h", ".def")):
            continue
        for number, line in enumerate(text.split("\n"), 1):
            if not path.endswith(".def") and len(line) > WIDTH and not FREE.search(line):
                faults.append(f"{path}:{number}: {len(line)} columns, at most {WIDTH}")
        if path.startswith(TESTS_FOLDERS):
            faults += [f"{path}: the test {name} does not say who acts" for names_found in TEST.findall(text)
                       for name in names_found if PRONOUN.match(name)]
        if path.startswith(OTHERS_FOLDERS):
            continue
        code = COMMENT.sub("", text)
        found = set(TAG.findall(code)) - EACH_TOOLS
        if path.endswith(".c"):
            local_tags += [(tag, path) for tag in found]
            continue
        for tag in found:
            tags[tag].append(path)
        for macro in set(MACRO.findall(code)):
            if not ROWS.match(macro) and macro not in OTHERS:
                macros[macro].append(path)
    for what, table in (("the tag", tags), ("the macro", macros), ("the file name", names)):
        faults += [f"{what} {name} is taken twice: {', '.join(paths)}" for name, paths in sorted(table.items())
                   if len(paths) > 1 and not (what == "the file name" and name in MANY)]
    faults += [f"{path}: the tag {tag} is {tags[tag][0]}'s" for tag, path in local_tags if tag in tags]
    return faults


def must_see():
    """Each kind of fault, so that a check that sees nothing any more is noticed."""
    wrong = {"shim/a.h": "struct x {\n};\n#define Y 1\n", "runtime/a.h": "struct x {\n};\n#define Y 2\n",
             "runtime/b.c": "struct x {\n};\n/* " + "w " * 60 + "*/\n",
             "tools/simcuda/tests/c.c": "MS_TEST(those_that_are_none)\n",
             "tests/unit/b.c": "MS_TEST(what_is_buried_goes)\nMS_TEST_AFTER(start, it_waits)\n"
                               "MS_TEST_BETWEEN(start, end,\n                one_that_fails)\nMS_TEST(items_come)\n"
                               "PAGE_TEST(which_ends)\nSTORY(that_is_short, has(1))\n"
                               "STORY_AFTER(start, those_it_has, has(1))\nSTORY_BETWEEN(start, end, it_has, has(1))\n"
                               "STORY(items_go, has(1))\n"}
    return len(find_faults(wrong)) == 13


def main():
    paths = [os.path.relpath(os.path.join(folder, name), SOURCE) for part in (*PARTS, "tests")
             for folder, _, names in os.walk(os.path.join(SOURCE, part)) for name in names]
    files = {}
    for path in paths:
        if path.endswith((".c", ".h", ".def", ".build", ".py", ".sh")):
            with open(os.path.join(SOURCE, path), encoding="utf-8") as file:
                files[path] = file.read()
    faults = find_faults(files)
    print("\n".join(faults))
    if not must_see():
        print("check_names.py: does not see faults that it is given")
        return 1
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
