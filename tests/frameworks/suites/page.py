# SPDX-License-Identifier: Apache-2.0
"""The page of the suites, docs/results/suites.md, of what suites.py found."""
import collections
import datetime
import json
import os
import platform

from table import SUITES

HEAD = """# Suites that others wrote for GPUs, simulated driver

{date}: {cores} cores, no GPU, Python {python}; the simulated driver of this repository, with the exports of CUDA 12.9 or
13.0. Made by `tests/frameworks/suites/run --write`. No figure here is one of a GPU.

Each suite comes from its wheel, unchanged, and is run three times: without the preload, with it, and with it and
`METASHARD_MIN_BYTES=1`, which defers every allocation. A column with one figure says that all three gave it, test by test.
*Skipped* is what the suite itself leaves out. *Impossible* is what needs a GPU, or something that is not simulated; why is
said below. *Failed* has to be 0, and so has *changed*: the outcomes that differ between the three.

Not here: the tests of cuda-bindings 13 and the examples of cuda.core. Neither is in a wheel, and neither project has a
source package on PyPI; they are in the repository alone. Nor pycuda's: it is on PyPI as source alone, which is compiled
with a CUDA toolkit.

"""


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


def write(path, folder):
    records = []
    for suite in SUITES:
        try:
            with open(os.path.join(folder, suite.name + ".json"), encoding="utf-8") as file:
                records.append(json.load(file))
        except FileNotFoundError:
            continue
    lines = [HEAD.format(date=datetime.date.today().strftime("%-d %B %Y"), cores=os.cpu_count(),
                         python=platform.python_version()).rstrip("\n"), "",
             "| suite | exports | tests | passed | skipped | impossible | failed | changed | deferred allocations | seconds |",
             "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for record in records:
        row = [record["title"], "12.9" if record["driver"] == 12 else "13.0",
               each(record, lambda way: len(way["outcomes"])), each(record, lambda way: count(way, "passed")),
               each(record, lambda way: count(way, "skipped")), each(record, lambda way: count(way, "impossible")),
               each(record, lambda way: count(way, "failed", "broke off", "possible after all")), str(changed(record)),
               " / ".join(str(way["deferred"]) for way in record["ways"].values()),
               " / ".join(str(way["seconds"]) for way in record["ways"].values())]
        lines.append("| " + " | ".join(row) + " |")
    for record in records:
        lines += ["", f"## {record['title']}", "", "Packages: " + ", ".join(f"`{name}`" for name in record["packages"]) + "."]
        for kind in ("impossible", "skipped"):
            found = reasons(record, kind)
            if found:
                lines += ["", f"{kind.capitalize()}:", ""]
                lines += [f"- {number}: {why.splitlines()[0] if why else 'no reason is given'}" for why, number in found]
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
