#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_page.py: cells of earlier runs stay on docs/results/values.md with their commits, and README, FAQ and changelog say what the page
has. TAP."""
import copy
import os
import re
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "harness")]
import page  # noqa: E402
from tap import end, equal  # noqa: E402

OWN = ("`nn.", "own layers")  # titles of models that are nobody's
NUMBERS = {"README.md": r"\[(\d+) public models\]\(docs/results/values\.md\)", "docs/faq.md": r"\[digests of (\d+) models\]\(results/values\.md\)",
           "CHANGELOG.md": r"(\d+) public ones"}


def found(digest, *differ, buffers=()):
    return {"digest": digest, "differ": list(differ), "buffers": list(buffers)}


def check_rows():
    old = {"title": "a", "parallel": "fsdp2", "one": "0123456789abcdef", "buffers": 2, "commit": "aaaaaaaa",
           "plain": {"1": found("0123456789abcdef"), "8": found("0123456789abcdef")},
           "meta": {"2": found("fedcba9876543210", "weight", "turns", buffers=["turns"])}}
    row = page.line(old)
    again = page.record_of(row)
    equal("a row that is read is the row that was written", page.line(again), row)
    new = {**copy.deepcopy(old), "commit": "bbbbbbbb", "plain": {"2": found("0123456789abcdef")}, "meta": {}}
    page.joined(again, new)
    equal("cells of both runs, and both commits", page.line(new), "| a | FSDP2 | 01234567 | 1, 2, 8 ranks: as one device | | fedcba98 | | | "
                                                                  "1 of 2 | aaaaaaaa, bbbbbbbb |")
    page.joined(page.record_of(page.line(new)), more := {**copy.deepcopy(old), "commit": "bbbbbbbb", "plain": {}, "meta": {}})
    equal("a commit that the row has already stays beside the other", more["commit"], "aaaaaaaa, bbbbbbbb")
    page.joined(again, whole := {**copy.deepcopy(old), "commit": "bbbbbbbb"})
    equal("a row whose cells are all made again has the new commit alone", whole["commit"], "bbbbbbbb")
    wrong = {**copy.deepcopy(old), "plain": {"2": found("1111111111111111", "weight")}}
    equal("a row with a difference under MetaShard is made anew", page.record_of(page.line(wrong)), None)


def check_errors():
    for parallel, words in page.TITLES.items():
        record = {"title": "a, b, c", "parallel": parallel, "plain": {}, "meta": {"4": {"error": "no end"}}}
        equal(f"an error that is read is the one that was written: {parallel}", page.FAILED.findall("\n".join(page.errors([record]))),
              [("a, b, c", words, "4", "no end")])


def check_numbers():
    records = page.Page([], list(page.TITLES)).records.values()
    public = {record["title"] for record in records if not record["title"].startswith(OWN)}
    equal("at least twenty public models", len(public) >= 20, True)
    source = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
    for name, pattern in NUMBERS.items():
        with open(os.path.join(source, name), encoding="utf-8") as file:
            equal(f"{name} says how many", [int(number) for number in re.findall(pattern, file.read())], [len(public)])
    equal("the most ranks", max(int(ranks) for record in records for ranks in record["plain"]), 8)
    equal("each ran on four ranks, sharded by FSDP2, in both ways", sorted(
        record["title"] for record in records if record["parallel"] == "fsdp2" and not ("4" in record["plain"] and "4" in record["meta"])), [])
    equal("after a meta device FSDP2 gives all other values", [
        record["title"] for record in records if record["parallel"] == "fsdp2" and any(not one["differ"] for one in record["meta"].values())], [])


def check_cells():
    records = page.Page([], list(page.TITLES)).records.values()
    ways = [(way, record) for record in records for way in ("plain", "meta") if (way, record["parallel"]) != ("meta", page.WITHOUT_META)]
    equal("no cell is missing", [f"{record['title']}, {record['parallel']}, {ranks} ranks, {way}" for way, record in ways
                                 for ranks in page.WORLDS[record["parallel"]] if str(ranks) not in record[way]], [])
    parallel = {record["title"]: set() for record in records}
    for record in records:
        parallel[record["title"]].add(record["parallel"])
    equal("each model has the ways to shard that need nothing of it", [title for title, ways in parallel.items()
                                                                      if not {"fsdp1", "fsdp2", "pipeline", "offload", "replicas"} <= ways], [])


check_rows()
check_errors()
check_numbers()
check_cells()
sys.exit(end())
