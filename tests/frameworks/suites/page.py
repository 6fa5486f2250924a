# SPDX-License-Identifier: Apache-2.0
"""The page of the suites, docs/results/suites.md, of what suites.py found. Suites of an earlier page that were not run again
stay, with the day that they were run on, if the page is of the same machine."""
import collections
import datetime
import json
import os
import re
import sys

from table import SUITES

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
import result_page  # noqa: E402

HEAD = """The simulated driver of this repository, with the exports of CUDA 12.9 or 13.0. No figure here is one of a GPU.

Each suite is run unchanged, from its wheel, from a source package that is compiled with a CUDA toolkit (pycuda), or from a
clone of its repository (cuda-bindings 13, examples of cuda.core), three times: without the preload, with it, and with it and
`METASHARD_MIN_BYTES=1`, which defers every allocation. A column with one figure says that all three gave it, test by test.
Of a suite that was run *in part* not all files were at hand; its section names those that were run.
*Skipped* is what the suite itself leaves out, among it what it asks NVIDIA's runtime for, which does not start here.
*Impossible* is what needs a GPU, or something that is not simulated; why is said below. *Failed* has to be 0, and so has
*changed*: the outcomes that differ between the three.

"""

OUTSIDE = """Not run yet: {titles}. No package on PyPI has them;
`tests/frameworks/suites/run --checkout CLONE {names}` runs them from a clone of the repository.

"""

TABLE = """| suite | exports | tests | passed | skipped | impossible | failed | changed | deferred allocations | seconds | made |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


IN_PART = ", in part"


def count(way, *kinds):
    return sum(what in kinds for what, _ in way["outcomes"].values())


def each(record, figure):
    found = [str(figure(way)) for way in record["ways"].values()]
    return found[0] if len(set(found)) == 1 else " / ".join(found)


def changed(record):
    ways = [way["outcomes"] for way in record["ways"].values()]
    tests = {test for way in ways for test in way}
    return sum(len({tuple(way.get(test, ("absent", "")))[0] for way in ways}) > 1 for test in tests)


def reasons(record, kind):
    way = record["ways"]["without"]["outcomes"]
    return collections.Counter(why for what, why in way.values() if what == kind).most_common()


def row(record):
    cells = [record["title"] + (IN_PART if record.get("part") else ""), "12.9" if record["driver"] == 12 else "13.0",
             each(record, lambda way: len(way["outcomes"])), each(record, lambda way: count(way, "passed")),
             each(record, lambda way: count(way, "skipped")), each(record, lambda way: count(way, "impossible")),
             each(record, lambda way: count(way, "failed", "broke off", "possible after all")), str(changed(record)),
             " / ".join(str(way["deferred"]) for way in record["ways"].values()),
             " / ".join(str(way["seconds"]) for way in record["ways"].values()),
             datetime.date.fromisoformat(record["made"]).strftime("%-d %B %Y")]
    return "| " + " | ".join(cells) + " |\n"


def section(record):
    lines = [f"\n## {record['title']}\n", "Packages: " + ", ".join(f"`{name}`" for name in record["packages"]) + "."]
    if record.get("files"):
        files = ", ".join(f"`{name}`" for name in record["files"])
        lines += ["", f"Run: {files}, of the repository at tag `{record['tag']}`." if not record["part"] else
                  f"Run: {files}. {record['part']} All: `tests/frameworks/suites/run --checkout CLONE {record['name']}`."]
    for kind in ("impossible", "skipped"):
        found = reasons(record, kind)
        if found:
            lines += ["", f"{kind.capitalize()}:", ""]
            lines += [f"- {number}: {why.splitlines()[0] if why else 'no reason is given'}" for why, number in found]
    return "\n".join(lines) + "\n"


def read_earlier(path):
    """The text of a page, and its rows and sections by title."""
    if not os.path.exists(path):
        return "", {}
    with open(path, encoding="utf-8") as file:
        text = file.read()
    rows = {line.split(" | ")[0].removeprefix("| ").removesuffix(IN_PART): line + "\n"
            for line in text.splitlines() if line.startswith("| ")}
    sections = {part.split("\n")[0]: "\n## " + part.rstrip("\n") + "\n" for part in re.split("^## ", text, flags=re.M)[1:]}
    return text, {title: (rows[title], sections[title]) for title in sections}


def write(path, folder):
    earlier, parts = read_earlier(path)
    kept = set(parts)
    for suite in SUITES:
        try:
            with open(os.path.join(folder, suite.name + ".json"), encoding="utf-8") as file:
                record = json.load(file)
        except FileNotFoundError:
            continue
        parts[suite.title] = row(record), section(record)
        kept.discard(suite.title)
    head = result_page.head("Suites that others wrote for GPUs, simulated driver", "tests/frameworks/suites/run --write",
                            note="each row of the day in its last column")
    if kept and result_page.read(earlier)["machine"] not in head:
        sys.exit(f"{path} is of another machine or Python: run all suites")
    shown = [parts[suite.title] for suite in SUITES if suite.title in parts]
    head += HEAD
    absent = [suite for suite in SUITES if suite.tag and suite.title not in parts]
    if absent:
        head += OUTSIDE.format(titles="; ".join(suite.title for suite in absent), names=" ".join(suite.name for suite in absent))
    with open(path, "w", encoding="utf-8") as file:
        file.write(head + TABLE + "".join(line for line, _ in shown) + "".join(text for _, text in shown))
