#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""needed_by.py BUILD-FOLDER SUITE...: the files that ninja has to make there for the tests of these suites, and what is
installed."""
import json
import os
import sys


def main():
    folder, suites = os.path.abspath(sys.argv[1]), set(sys.argv[2:])

    def read(name):
        with open(os.path.join(folder, "meson-info", f"intro-{name}.json")) as file:
            return json.load(file)

    tests = [test for test in read("tests") if suites & {suite.rpartition(":")[2] for suite in test["suite"]}]
    needed = {target for test in tests for target in test["depends"]}
    for target in read("targets"):
        if target["installed"] or target["id"] in needed:
            print(*(os.path.relpath(path, folder) for path in target["filename"]))


if __name__ == "__main__":
    main()
