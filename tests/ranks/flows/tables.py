# SPDX-License-Identifier: Apache-2.0
"""The tables of check_flows.py: what a flow took without the preload, with it, and with a plan."""
import datetime
import os
import platform

MIB = 1 << 20


def bound(run, rank, slack):
    return 1.05 * run.parts[rank] + run.largest[rank] + slack


def mib(size):
    return f"{size / MIB:.1f}"


def ways(case, figure):
    """A figure of each way to run it, and once if all are equal; none of ranks that are not there."""
    figures = [figure(run) for run in case.runs.values()]
    return figures[0] if len(set(figures)) == 1 else " / ".join(figures)


def ratio(case, slack):
    """The worst rank but 0, with a plan, to its bound."""
    run = case.runs["plan"]
    return max(run.peaks[rank] / bound(run, rank, slack) for rank in range(1, case.ranks))


COLUMNS = (
    ("flow", lambda case, slack: case.flow.name),
    ("ranks", lambda case, slack: str(case.ranks)),
    ("shard", lambda case, slack: mib(max(case.runs["without"].parts))),
    ("peak of others", lambda case, slack: ways(case, lambda run: mib(max(run.peaks[1:])) if case.ranks > 1 else "")),
    ("plan to bound", lambda case, slack: f"{ratio(case, slack):.2f}" if case.ranks > 1 else ""),
    ("peak of rank 0", lambda case, slack: ways(case, lambda run: mib(run.peaks[0]))),
    ("to the device", lambda case, slack: ways(case, lambda run: mib(sum(run.sent)))),
    ("between ranks", lambda case, slack: ways(case, lambda run: mib(sum(run.links.values())))),
    ("into one", lambda case, slack: ways(case, lambda run: mib(max(run.into[1:], default=0)))),
    ("busiest link", lambda case, slack: ways(case, lambda run: mib(max(run.links.values(), default=0)))),
    ("seconds", lambda case, slack: ways(case, lambda run: f"{run.seconds:.1f}")),
)


def row(case, slack):
    return [figure(case, slack) for _, figure in COLUMNS]


def text(rows):
    rows = [[name for name, _ in COLUMNS], *rows]
    widths = [max(len(line[column]) for line in rows) for column in range(len(COLUMNS))]
    return ["  ".join(word.ljust(width) for word, width in zip(line, widths)).rstrip() for line in rows]


def markdown(head, rows):
    return "\n".join("| " + " | ".join(words) + " |" for words in [head, ["---"] * len(head), *rows]) + "\n"


def links_of(run):
    return ", ".join(f"{begin}→{end} {mib(size)}" for (begin, end), size in run.links.items())


def links_table(cases):
    rows = []
    for case in cases:
        for way, run in case.runs.items():
            if case.ranks == 4 and (way == "without" or links_of(run) != links_of(case.runs["without"])):
                rows.append([case.flow.name, way, links_of(run)])
    return markdown(["flow", "", "bytes from rank to rank, MiB"], rows)


PAGE = """# Flows over NCCL, simulated driver and NCCL

{date}: {cores} cores, {memory} GiB of memory, no GPU, Python {python}; the simulated driver and the simulated NCCL,
both of this repository. Made by `ninja -C build nccl-results` (`tests/ranks/flows/check_flows.py --write`): {passed}
checks passed, {failed} failed.

Each program of `tests/ranks/flows` does on the wire what a framework does to bring a model from rank 0 to all ranks,
each rank a process of its own with a simulated device of its own. Each ran without the preload, with it, and with it
and a plan, for which all ranks but 0 tell the names of their whole tensors. Three figures are these three; one is all
of them. Granules have 64 KiB and FSDP1's buckets 1 MiB, with the larger model 2 MiB and 64 MiB. Every byte that a
rank read in the end is that of the file in every run, also with uneven shapes (3 and 8 ranks, some of which have
nothing of a tensor). No figure here is one of a GPU.

Figures in MiB are of the worst rank. *Shard* is what a rank reads in the end; *peak of others* the device memory of
the ranks but 0; *plan to bound* that peak with a plan, divided by 1.05 x shard + one tensor's shard + {slacks};
*to the device* what all ranks copied there; *between ranks* what went over all links together, *into one* what a rank
but 0 received, *busiest link* from one rank to another.

A flow that frees whole tensors copies its parts out of them first. One *in place* leaves them where they are and reads
its part there: only the plan tells what is needed. A flow is at its bound where *plan to bound* is at most 1.
"""

EXPLAINED = """
`same`: without a plan no rank takes more memory than without the preload. `plan`: *plan to bound* is at most 1.
`known`: where tensors stay in place, every rank finds some of the plan's.
`bus`: without a plan no more is copied to all devices together than without the preload.
In place, `plan` is held of the smaller model alone: with granules of 2 MiB many parts of the larger one are less
than a granule.
"""


def held(cases):
    """Which bounds are asserted, by flow."""
    rows = {}
    for case in cases:
        rows.setdefault(case.flow.bounds, []).append(case.flow.name)
    return "\n".join(f"- {', '.join(f'`{name}`' for name in bounds)}: {'; '.join(dict.fromkeys(flows))}."
                     for bounds, flows in rows.items()) + "\n"


def write_page(path, sizes, report):
    with open("/proc/meminfo") as file:
        memory = round(int(file.readline().split()[1]) / (1 << 20))
    now = datetime.date.today()
    page = PAGE.format(date=f"{now.day} {now:%B %Y}", cores=os.cpu_count(), memory=memory,
                       python=platform.python_version().rpartition(".")[0], passed=report.number - report.failed,
                       failed=report.failed or "none",
                       slacks=" and ".join(f"{slack // MIB:g} MiB" for _, slack in sizes))
    for cases, slack in sizes:
        model = cases[0].model
        page += f"\n## {mib(model.bytes)} MiB in {len(model.tensors)} tensors, the largest {mib(model.largest)} MiB\n\n"
        page += markdown([name for name, _ in COLUMNS[:-1]], [row(case, slack)[:-1] for case in cases])
    page += "\n## Links, of the smaller model, with 4 ranks\n\n" + links_table(sizes[0][0])
    page += "\n## What the test holds\n\n" + held(sizes[0][0]) + EXPLAINED
    with open(path, "w") as file:
        file.write(page)
