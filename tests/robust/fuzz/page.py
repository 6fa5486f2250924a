#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""page.py SECONDS FOLDER TARGET...: rows of docs/results/fuzzing.md, from the logs that run left in the folder.

A row has the commit and the minutes of the target's own latest run, because the targets do not all run at once.
"""
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
import result_page  # noqa: E402

PAGE = os.path.join(result_page.PAGES, "fuzzing.md")


def figures(log):
    """(inputs run, edges covered); the targets in Python count no edges. None: the log has no figures."""
    runs = re.search(r"stat::number_of_executed_units:\s*(\d+)", log)
    covered = re.findall(r"\bcov: (\d+)", log)
    if runs and covered:
        return f"{int(runs[1]):,}", f"{int(covered[-1]):,}"
    changes = re.findall(r"^# (\d+) changes", log, re.M)
    return (f"{sum(map(int, changes)):,}", "not counted") if changes else None


def row(line, log, commit, seconds):
    """Keeps the words about what the target reads."""
    cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
    found = figures(log)
    if found is None:
        raise SystemExit(f"page.py: the log of {cells[0]} has no figures: is the build one of clang?")
    return f"| {cells[0]} | {cells[1]} | {commit} | {int(seconds) / 60:.0f} | {found[0]} | {found[1]} |"


def main():
    seconds, folder, targets = sys.argv[1], sys.argv[2], sys.argv[3:]
    with open(PAGE, encoding="utf-8") as file:
        text = file.read()
    head = result_page.read(text)
    command = f"tests/robust/fuzz/run --build build-fuzz --seconds {seconds} --write"
    text = result_page.replace(text, command, head["settings"])
    commit = re.search(r"commit (\w+)", text)[1]
    for target in targets:
        with open(os.path.join(folder, target + ".log"), encoding="utf-8", errors="replace") as file:
            log = file.read()
        text = re.sub(rf"^\| `{target}` \|.*$", lambda line: row(line[0], log, commit, seconds), text, flags=re.M)
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
