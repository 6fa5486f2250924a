#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""readme_figures.py [--write]: the table of README.md, from docs/results. It stands between marks and is made here, whole.
Figures in sentences are those of tests/install/claims.txt (check_claims.py).

Without --write it compares, and fails when a figure is another one.
"""
import json
import os
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SOURCE, "tests", "harness"))
from text import read  # noqa: E402

README = os.path.join(SOURCE, "README.md")
GPU = os.path.join("docs", "results", "large-nvidia-h200.json")
BEGIN, END = "<!-- Made by tests/static/readme_figures.py --write: gpu -->\n", "<!-- until here -->\n"
HEAD = ["model", "ranks", "without MetaShard", "with", "this rank's shard"]
# The README's word for a case of tests/gpu/large.py.
LARGE = (("Llama 70B", "70B from scratch"), ("Llama 405B", "405B from scratch"))


def gib(mib):
    return f"{mib / 1024:.1f}"


def gpu_row(name, case):
    without = gib(case["without"]["device_mib"]) if "without" in case else "does not fit"
    return [name, str(case["ranks"]), without, gib(case["with"]["device_mib"]), f"{case['with']['shard_bytes'] / 2**30:.2f}"]


def gpu_table():
    cases = {case["case"]: case for case in json.loads(read(SOURCE, GPU))["cases"]}
    rows = [HEAD, ["---"] * len(HEAD), *(gpu_row(name, cases[key]) for name, key in LARGE)]
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def with_figures(text):
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        sys.exit(f"README.md: expected once the lines\n{BEGIN}{END}")
    return head + begin + gpu_table() + end + tail


def main():
    text = read(README)
    wanted = with_figures(text)
    if "--write" in sys.argv:
        with open(README, "w", encoding="utf-8") as file:
            file.write(wanted)
    elif text != wanted:
        sys.exit("the table of README.md is not what docs/results has: tests/static/readme_figures.py --write")
    print("the table of README.md is that of docs/results")


if __name__ == "__main__":
    main()
