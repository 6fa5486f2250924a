#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_results.py: each page of docs/results says in its head what made it, of which version, when, where, and at which settings,
and is in the table from which it is made again (tests/setup/result_pages.txt). Its programs are there, and the commits that
it names.
"""
import glob
import os
import re
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(SOURCE, "tests", "harness"))
import result_page  # noqa: E402

# Pages that compare memory or bytes without and with the preload: whose settings are these?
COMPARED = ("allocators-simulated", "flows-simulated", "loaders-simulated", "nccl-simulated", "scale-simulated", "serving-simulated",
            "systems-default-simulated", "systems-large-simulated", "systems-simulated", "training", "benchmarks-simulated")
SETTINGS = re.compile(re.escape(result_page.DEFAULTS) + r"|METASHARD_\w+=")
COMMIT = re.compile(r"\bcommit ([0-9a-f]{8,40})\b")


def programs(commands):
    for command in commands:
        for word in command.split():
            if word.startswith("tests/"):
                yield word


def absent(commits):
    """Those that the history lacks; none where there is no history, or only its end."""
    if result_page.output_of("git", "rev-parse", "--is-shallow-repository") != "false":
        return []
    return [commit for commit in sorted(commits) if result_page.output_of("git", "cat-file", "-t", commit) != "commit"]


def check(page, text):
    """Its faults."""
    head = result_page.read(text)
    if head is None:
        yield "expected a head as tests/harness/result_page.py makes it"
        return
    if not result_page.VERSION.match(head["version"]):
        yield f"the version is \"{head['version']}\"; expected \"0.2.0, commit 1a2b3c4d, 2026-11-27\""
    for commit in absent(set(COMMIT.findall(text))):
        yield f"it names the commit {commit}, which is not in the history"
    for command in re.findall(r"`([^`]+)`", head["made_by"]):
        for program in programs([command]):
            if not os.path.exists(os.path.join(SOURCE, program)):
                yield f"it is made by {program}, which is not there"
    if page in COMPARED and not (SETTINGS.match(head["settings"]) and "granules of" in head["settings"]):
        yield f"its settings are \"{head['settings']}\"; expected those of the preload, and the granules"


def main():
    table = result_page.read_table()
    pages = {os.path.basename(path)[:-3]: path for path in glob.glob(os.path.join(result_page.PAGES, "*.md")) if "README" not in path}
    faults = [f"docs/results/{page}.md: it has no row in tests/setup/result_pages.txt" for page in sorted(pages.keys() - table.keys())]
    faults += [f"tests/setup/result_pages.txt: {page}: there is no such page" for page in sorted(table.keys() - pages.keys())]
    faults += [f"tests/setup/result_pages.txt: {page}: {program} is not there" for page, (_, _, commands) in table.items()
               for program in programs(commands) if not os.path.exists(os.path.join(SOURCE, program))]
    for page, path in sorted(pages.items()):
        with open(path, encoding="utf-8") as file:
            faults += [f"docs/results/{page}.md: {fault}" for fault in check(page, file.read())]
    print("\n".join(faults) or f"{len(pages)} pages")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
