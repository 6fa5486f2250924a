#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pages.py [--write]: are docs/results/dry-run.md and fit.md those that the records of dry runs make, and does docs/dry-run.md count them
right? --write makes both pages, and leaves their heads."""
import os
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fit_page  # noqa: E402
import published_page  # noqa: E402
import result_page  # noqa: E402

COUNTED = [re.compile(pattern) for pattern in (
    r"compared (\d+) public figures", r"figures of (\d+) jobs", r"(\d+) differ by less than 5 %")]


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def parts(text):
    """The page's head, and its body."""
    at = result_page.HEAD.match(text).end()
    return text[:at], text[at:]


def check_page(path, body, wants_write):
    head, found = parts(read(path))
    if found != body and wants_write:
        with open(path, "w", encoding="utf-8") as file:
            file.write(head + body)
    elif found != body:
        wrong = next((line for line in found.splitlines() if line not in body.splitlines()), "a line is missing")
        yield f"{path}: not what its records make (tests/frameworks/dry_run/pages.py --write): {wrong[:160]}"


def check_counts(text, counts):
    for pattern, count in zip(COUNTED, counts):
        found = pattern.search(text)
        if found is None or int(found[1]) != count:
            yield f"docs/dry-run.md: \"{pattern.pattern}\": expected {count}, found {found and found[1]}"


def main():
    wants_write, records = "--write" in sys.argv[1:], published_page.read()
    faults = list(published_page.faults(records)) + list(fit_page.faults(fit_page.read()))
    if not faults:
        faults += check_page(published_page.PAGE, published_page.body(records), wants_write)
        faults += check_page(fit_page.PAGE, fit_page.body(fit_page.read()), wants_write)
        faults += check_counts(read(os.path.join(published_page.SOURCE, "docs", "dry-run.md")).replace("\n", " "),
                               published_page.counts(records))
    print("\n".join(faults) or "both pages are what their records make")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
