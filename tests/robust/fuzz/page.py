#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""page.py SECONDS FOLDER TARGET...: rows of docs/results/fuzzing.md from the logs of libFuzzer that run left in the folder."""
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
import result_page  # noqa: E402

PAGE = os.path.join(result_page.PAGES, "fuzzing.md")


def row(line, log):
    """Keeps the words about what the target reads."""
    cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
    runs, covered = re.search(r"stat::number_of_executed_units:\s*(\d+)", log), re.findall(r"\bcov: (\d+)", log)
    if not runs or not covered:
        raise SystemExit(f"page.py: no figures of libFuzzer for {cells[0]}: is the build one of clang?")
    return f"| {cells[0]} | {cells[1]} | {int(runs[1]):,} | {int(covered[-1]):,} | |"


def main():
    seconds, folder, targets = sys.argv[1], sys.argv[2], sys.argv[3:]
    with open(PAGE, encoding="utf-8") as file:
        text = file.read()
    for target in targets:
        with open(os.path.join(folder, target + ".log"), encoding="utf-8", errors="replace") as file:
            log = file.read()
        text = re.sub(rf"^\| `{target}` \|.*$", lambda line: row(line[0], log), text, flags=re.M)
    head = result_page.read(text)
    command = f"tests/robust/fuzz/run --build build-fuzz --seconds {seconds} --write"
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(result_page.replace(text, command, head["settings"]))


if __name__ == "__main__":
    main()
