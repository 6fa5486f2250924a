#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""needed_by.py BUILD-FOLDER SUITE...: the files that ninja has to make there for the tests of these suites, and what is
installed. Tests of a suite with - before its name are left out; where all have that, the others are all tests."""
import json
import os
import sys


def main():
    folder = os.path.abspath(sys.argv[1])
    suites = {word for word in sys.argv[2:] if not word.startswith("-")}
    left_out = {word[1:] for word in sys.argv[2:] if word.startswith("-")}

    def read(name):
        with open(os.path.join(folder, "meson-info", f"intro-{name}.json")) as file:
            return json.load(file)

    def is_meant(test):
        its = {suite.rpartition(":")[2] for suite in test["suite"]}
        return not left_out & its and (not suites or bool(suites & its))

    needed = {target for test in read("tests") if is_meant(test) for target in test["depends"]}
    for target in read("targets"):
        if target["installed"] or target["id"] in needed:
            print(*(os.path.relpath(path, folder) for path in target["filename"]))


if __name__ == "__main__":
    main()
