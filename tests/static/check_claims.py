#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_claims.py: each sentence of README.md and docs/faq.md that has a figure, "never", "every", "no", "all" or "the same" is a
claim of tests/install/claims.txt, and a claim's figures are those of the row of docs/results that it names. A claim by an old row,
one at other settings than the default, or of sources that were not committed, says so. TAP."""
import datetime
import json
import os
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import result_page  # noqa: E402
from claims import SOURCE, claims, parts, sentences  # noqa: E402
from tap import check, end, equal, report  # noqa: E402
from text import read  # noqa: E402

WIDE = re.compile(r"\b(?:never|every|no|all|the same)\b", re.I)
FIGURE = re.compile(r"(?<![\w.-])\d[\d,]*(?:\.\d+)?")
DAY = re.compile(r"\b(\d{1,2}) (\w+) (20\d\d)\b")
TARGET = re.compile(r"\]\([^)\s]*\)|`[^`]*`")
UNCOMMITTED = re.compile(r"\b[0-9a-f]{8}\+")
WORDS = dict(enumerate("no one two three four five six seven eight nine ten eleven twelve".split()))
MOST_COMMITS = 100
OTHER_SETTINGS = "not at default settings"


def figures(text):
    return [figure.replace(",", "") for figure in FIGURE.findall(DAY.sub("", text))]


def days(text):
    """Days of a sentence, as the pages of results write them."""
    return [f"{datetime.datetime.strptime(' '.join(day), '%d %B %Y'):%Y-%m-%d}" for day in DAY.findall(text)]


def is_wide(sentence):
    words = TARGET.sub("]", sentence)
    return bool(WIDE.search(words) or FIGURE.search(words))


def bare(sentence, told):
    """The part of a wide sentence that stands in no claim: its figures, or all of the sentence."""
    texts = [text for text, kind, _ in told if kind != "says" and text in sentence]
    rest = sentence
    for text in texts:
        rest = rest.replace(text, "")
    return sentence if not texts else ", ".join(figures(TARGET.sub("]", rest)))


def cells_of(page, row):
    """(the row, whole; the page's head). A page of JSON is one row; a section is a row that has a day of its own."""
    text = read(SOURCE, "docs", "results", page)
    if row.startswith("## "):
        section = text.partition(f"\n{row}\n")[2].partition("\n## ")[0]
        return f"{row}\n{section}" if section else "", section
    if page.endswith(".json"):
        return text, json.dumps(json.loads(text).get("run", {}))
    lines = [line for line in text.splitlines() if line.lstrip("| -").startswith(row)]
    return "\n".join(lines), text[:result_page.HEAD.match(text).end()]


def total(page, column):
    """The sum of a column of the one table that has it."""
    lines = read(SOURCE, "docs", "results", page).splitlines()
    begin = next(number for number, line in enumerate(lines) if f"| {column} | code |" in line)
    at = lines[begin].split("|").index(f" {column} ")
    rows = lines[begin + 2:lines.index("", begin)]
    return sum(float(line.split("|")[at]) for line in rows)


def values(text):
    """Numbers of a row, the same in GiB, and how much less the later figures of a cell are than its first, in percent."""
    found = [float(figure) for figure in figures(text)]
    cells = [list(map(float, cell.split(" / "))) for cell in re.findall(r"(?<=\|) (\d[\d.]*(?: / \d[\d.]*)+) (?=\|)", text)]
    less = [100 * (1 - later / cell[0]) for cell in cells for later in cell[1:] if cell[0]]
    return found + [number / 1024 for number in found] + less


def has(figure, numbers):
    decimals = len(figure.partition(".")[2])
    return any(f"{number:.{decimals}f}" == figure for number in numbers)


def rows_of(by):
    return [tuple(word.strip() for word in one.partition(": ")[::2]) for one in by.split("; ")]


def row_faults(text, by):
    numbers, whole, faults = [], "", []
    for page, row in rows_of(by):
        cells, head = cells_of(page, row)
        faults += [] if cells else [f"{page} has no row {row}"]
        numbers += values(cells)
        whole += cells + head
    faults += [f"{figure} is not in {by}" for figure in figures(TARGET.sub("]", text)) if not has(figure, numbers)]
    return faults + [f"{day} is not the day of {by}" for day in days(text) if day not in whole]


def count_faults(text, by):
    page, heading = by.split(": ")
    table = read(SOURCE, page).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = len([line for line in table.splitlines() if line.startswith("|")]) - 2
    return [] if WORDS.get(rows, str(rows)) in text.lower().split() else [f"{by}: there are {rows}"]


def matching(page, pattern):
    """Rows of a page of results."""
    return [line for line in read(SOURCE, "docs", "results", page).splitlines() if re.match(rf"\| (?:{pattern})", line)]


def distinct_faults(text, by):
    count = len({row.split(" | ")[0] for row in matching(*by.split(": ", 1))})
    said = [*figures(TARGET.sub("]", text))[:1], *text.lower().split()]
    return [] if {str(count), WORDS.get(count)} & set(said) else [f"{by}: there are {count}"]


def sum_faults(text, by):
    return [] if has(figures(text)[0], [total(*by.split(": "))]) else [f"{by}: the sum is {total(*by.split(': '))}"]


COMPARED = {"row": row_faults, "count": count_faults, "distinct": distinct_faults, "sum": sum_faults}


def newer(head):
    """Commits to the product since the page's, or since its day; 0 where nobody can tell."""
    commit, day = re.search(r"commit ([0-9a-f]{8,40})", head), re.search(r"\b\d{4}-\d\d-\d\d\b", head)
    since = [commit[1] + "..HEAD"] if commit else [f"--since={day[0]}", "HEAD"] if day else []
    return int(since and result_page.output_of("git", "rev-list", "--count", *since, "--", "shim", "runtime") or 0)


def shown_by(kind, by):
    """(page, row, the row's text, the page's head) of a claim."""
    if kind == "row":
        for page, row in rows_of(by):
            yield page, row, *cells_of(page, row)
    elif kind == "distinct":
        page, pattern = by.split(": ", 1)
        yield page, pattern, "\n".join(matching(page, pattern)), cells_of(page, "")[1]


def untold(part, kind, by):
    """Facts of its claim's rows that a part has to state and does not."""
    for page, row, cells, head in shown_by(kind, by):
        if newer(head) > MOST_COMMITS and not days(part):
            yield f"{page} has {newer(head)} newer commits: measure again, or say the day"
        if UNCOMMITTED.search(cells) and "not committed" not in part:
            yield f"{page}, {row}: its sources were not committed: measure again, or say so"
        settings = (result_page.read(head) or {"settings": result_page.DEFAULTS})["settings"]
        if settings.startswith(result_page.DEFAULTS) == (OTHER_SETTINGS in part):
            yield f"{page}: {settings}: say \"{OTHER_SETTINGS}\" where they are not, and nowhere else"


def check_itself():
    told = [("10 of 20", "row", "x"), ("never", "says", "")]
    equal("a figure that no claim has is found", bare("It takes 10 of 20, or 30.", told), "30")
    equal("a word without a claim is found", bare("It never waits.", told), "It never waits.")
    check("sentences with wide words are found", [is_wide(text) for text in ("It waits.", "It never waits.", "2 wait", "[a](b/2)", "`a 2`")] ==
          [False, True, True, False, False])
    equal("numbers of a row", [has(figure, values("| a | 2,048 | 180.0 / 86.0 |")) for figure in ("2048", "2.0", "52", "53")],
          [True, True, True, False])
    check("a version has two figures", has("2.4", values("| 2.4.0 | 1 / 2 |")))
    equal("a claim that counts rows", distinct_faults("three models", "values.md: (transformers|timm), .*\\bResNet"), [
        "values.md: (transformers|timm), .*\\bResNet: there are 1"])
    check("the age of a section is that of its day", newer("2026-11-24, Debian") >= newer("2026-11-28, Debian"))
    equal("a day of a sentence", days("on 26 November 2026"), ["2026-11-26"])


def main():
    check_itself()
    told, there = list(claims()), list(parts())
    wide = [sentence for part in there for sentence in sentences(part) if is_wide(sentence)]
    missing = [f"{sentence}\n    in no claim: {bare(sentence, told)}" for sentence in wide if bare(sentence, told)]
    report("each figure, and each sentence with never, every, no, all or the same, is a claim", "\n".join(missing))
    check("there are some", len(wide) > 20, len(wide))
    faults = [f"{text}: {fault}" for text, kind, by in told if kind in COMPARED for fault in COMPARED[kind](text, by)]
    report("the figures of a claim are those of its row", "\n".join(faults))
    faults = [f"{text}: {fault}" for text, kind, by in told for part in there if text in part for fault in untold(part, kind, by)]
    report("an old row has its day, and one of other settings or of sources that were not committed says so", "\n".join(faults))
    faults = [f"{text}: {by}" for text, kind, by in told if kind == "hand" and figures(TARGET.sub("]", text))]
    report("a command that takes longer holds no figure: a row does", "\n".join(faults))
    return end()


if __name__ == "__main__":
    sys.exit(main())
