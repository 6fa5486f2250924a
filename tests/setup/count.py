#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""count.py NAME=LOG...: counts the test cases in meson's JSON logs.
count.py --again LOG: names of the tests that failed, if they are few enough to be run again.

A test that speaks TAP counts with its cases, any other as one. Failed cases are named, with what they
said, after what was skipped and the counts of each build. If a test was run again (its log is beside, again- instead of
log-) the second run counts; failures that it did not confirm are named as unstable, and are faults to be looked for. The
last line is "N passed, N failed", or "N passed, N failed, N skipped". Exit status 1 when a case failed, or when nothing ran.
"""
import itertools
import json
import os
import re
import sys

CASE = re.compile(r"^(not )?ok\b\s*(\d*)\s*([^#]*)(#\s*SKIP.*)?", re.I)
SAID = 12  # lines of what a failed case said
FRESH = re.compile(r"fuzz|random|\bmodel\b")  # what they draw is new each time: to pass then says nothing of what was found
AGAIN = 3  # tests of a build, at most: more is no accident
LEAST = {"gcc": 5000}  # cases of a build: with fewer, whole suites were forgotten
GOOD = ("OK", "EXPECTEDFAIL", "SKIP")


def last_words(test, *streams):
    return "".join(test.get(stream, "") for stream in streams).splitlines()[-SAID:]


def cases_of(test):
    """(name, outcome, what it said) for each case; outcome is passed, failed or skipped."""
    cases = []
    lines = test.get("stdout", "").splitlines()
    for i, line in enumerate(lines):
        match = CASE.match(line)
        if match:
            outcome = "failed" if match[1] else "skipped" if match[4] else "passed"
            said = itertools.takewhile(lambda line: line.startswith("#"), lines[i + 1:])
            cases.append((match[3].strip(), outcome, list(said)[:SAID] or last_words(test, "stderr")))
    result = test["result"]
    good = result in GOOD
    if not cases:
        reason = re.search(r"^1\.\.0 # SKIP (.*)", test.get("stdout", ""), re.M)
        cases = [(reason[1] if reason else "", "skipped" if result == "SKIP" else "passed" if good else "failed", last_words(test, "stdout", "stderr"))]
    elif not good and all(outcome != "failed" for _, outcome, _ in cases):
        cases.append((f"ended with {result}", "failed", last_words(test, "stdout", "stderr")))
    return cases


def tests_of(path):
    """The tests in a log; one that failed when meson did not get as far as writing it."""
    try:
        with open(path) as file:
            return [json.loads(line) for line in file]
    except FileNotFoundError:
        return [{"name": f"{path} is not there", "result": "ERROR"}]


def failed_tests(path):
    return [test for test in tests_of(path) if test["result"] not in GOOD]


def print_again(path):
    """Meson's name for a test begins with the project and the suites."""
    names = [test["name"].rpartition(" / ")[2] for test in failed_tests(path)]
    if 0 < len(names) <= AGAIN and os.path.exists(path) and not any(map(FRESH.search, names)):
        print("\n".join(names))


def second_runs(path):
    """{name: the test}, as far as it was run again."""
    again = os.path.join(os.path.dirname(path), os.path.basename(path).replace("log-", "again-", 1))
    return {test["name"]: test for test in tests_of(again)} if os.path.exists(again) else {}


def unstable_cases(build, first, second):
    """The first run's lines about cases that did not fail in the second one."""
    still = {name for name, outcome, _ in cases_of(second) if outcome == "failed"}
    return [line for name, outcome, said in cases_of(first) if outcome == "failed" and name not in still
            for line in (f"UNSTABLE {build}: {first['name']}: {name}", *("    " + line for line in said))]


def main():
    if sys.argv[1] == "--again":
        print_again(sys.argv[2])
        return 0
    totals = {"passed": 0, "failed": 0, "skipped": 0}
    failures = []
    for argument in sys.argv[1:]:
        build, path = argument.split("=", 1)
        counts = dict.fromkeys(totals, 0)
        again = second_runs(path)
        for first in tests_of(path):
            test = again.get(first["name"], first)
            if test is not first:
                failures += unstable_cases(build, first, test)
            for name, outcome, said in cases_of(test):
                counts[outcome] += 1
                if outcome == "failed":
                    failures += [f"FAILED {build}: {test['name']}: {name}", *("    " + line for line in said)]
                if outcome == "skipped":
                    print(f"skipped {build}: {test['name']}: {name}")
        if sum(counts.values()) < LEAST.get(build, 0):
            failures.append(f"FAILED {build}: {sum(counts.values())} cases, at least {LEAST[build]} expected")
            counts["failed"] += 1
        print(f"{build}: {counts['passed']} passed, {counts['failed']} failed, "
              f"{counts['skipped']} skipped")
        for outcome, count in counts.items():
            totals[outcome] += count
    for line in failures:
        print(line)
    skipped = f", {totals['skipped']} skipped" if totals["skipped"] else ""
    print(f"{totals['passed']} passed, {totals['failed']} failed{skipped}")
    return totals["failed"] > 0 or totals["passed"] == 0


if __name__ == "__main__":
    sys.exit(main())
