# SPDX-License-Identifier: Apache-2.0
"""The tables of check_flows.py: what a flow took without the preload, with it, and with a plan."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
import result_page  # noqa: E402

MIB = 1 << 20


def bound(run, rank, slack):
    return 1.05 * run.parts[rank] + run.largest[rank] + slack


def goal(run, rank, bucket):
    return 1.25 * run.parts[rank] + bucket


def mib(size):
    return f"{size / MIB:.1f}"


def ways(case, figure):
    """A figure of each way to run it, and once if all are equal; none of ranks that are not there."""
    figures = [figure(run) for run in case.runs.values()]
    return figures[0] if len(set(figures)) == 1 else " / ".join(figures)


COLUMNS = (
    ("flow", lambda case: case.flow.name),
    ("ranks", lambda case: str(case.ranks)),
    ("shard", lambda case: mib(max(case.runs["without"].parts))),
    ("peak of others", lambda case: ways(case, lambda run: mib(max(run.peaks[1:])) if case.ranks > 1 else "")),
    ("peak of rank 0", lambda case: ways(case, lambda run: mib(run.peaks[0]))),
    ("to the device", lambda case: ways(case, lambda run: mib(sum(run.sent)))),
    ("between ranks", lambda case: ways(case, lambda run: mib(sum(run.links.values())))),
    ("into one", lambda case: ways(case, lambda run: mib(max(run.into[1:], default=0)))),
    ("busiest link", lambda case: ways(case, lambda run: mib(max(run.links.values(), default=0)))),
)
# The wire has more than the model if a program pads, or sends twice.
ON_PAGE = ("flow", "ranks", "shard", "peak of others", "peak of rank 0", "to the device", "into one")


def text(cases):
    rows = [[name for name, _ in COLUMNS], *([figure(case) for _, figure in COLUMNS] for case in cases)]
    widths = [max(len(line[column]) for line in rows) for column in range(len(COLUMNS))]
    return ["  ".join(word.ljust(width) for word, width in zip(line, widths)).rstrip() for line in rows]


def markdown(head, rows):
    return "\n".join("| " + " | ".join(words) + " |" for words in [head, ["---"] * len(head), *rows]) + "\n"


PAGE = """{passed} checks passed, {failed} failed. The simulated driver and the simulated NCCL are both of this repository. Programs
allocate as PyTorch's caching allocator does, and tell no names of tensors; FSDP1's buckets have {bucket}.

Each program of `tests/ranks/flows` does on the wire what a framework does to bring a model from rank 0 to all ranks,
each rank a process of its own with a simulated device of its own. Each ran without the preload, with it, and with it
and a plan. Three figures are these three; one is all of them. Every byte that a rank read in the end is that of the file in
every run. No figure here is one of a GPU.

Figures in MiB are of the worst rank. *Shard* is what a rank reads in the end; *peak of others* the device memory of
the ranks but 0; *to the device* what all ranks copied there; *into one* what a rank but 0 received.

## {size} MiB in {count} tensors, the largest {largest} MiB

{table}
## What the run holds

{held}
`never`: neither without nor with a plan does any rank take more memory than without the preload.
`goal`: with a plan no rank of 8 but 0 takes more than 1.25 x its shard and a bucket, which has {bucket}, or is one larger
tensor.
`bus`: neither without nor with a plan is more copied to all devices together than without the preload. The self-check
of the driver and the build was made by a process before them.
`once`: without a plan no rank, rank 0 included, takes more than 1.25 x its shard and two buckets, of a model whose tensors
all fit into one.
`said`: with a plan the worst rank but 0 takes what `metashard-plan estimate` says, within 5 %, and at most a segment of
the allocator (20 MiB) more.

Where a model is sharded on some ranks and repeated on others, a rank receives its part from two communicators, neither of
which has all ranks, and a plan changes nothing yet. Rank 0 has the whole model in turn, with a plan too.
"""


def held(cases):
    """Which bounds are asserted, by flow."""
    rows = {}
    for case in cases:
        rows.setdefault(case.flow.bounds, []).append(case.flow.name)
    return "\n".join(f"- {', '.join(f'`{name}`' for name in bounds)}: {'; '.join(dict.fromkeys(flows))}."
                     for bounds, flows in rows.items()) + "\n"


def settings(options, cases):
    """The preload's variables in the environment of the runs, but for those that say where a file is."""
    paths = ("METASHARD_DUMP", "METASHARD_PLAN")
    found = {name: value for case in cases for run in case.runs.values() for name, value in run.settings.items()
             if name not in paths}
    return result_page.settings_of(found, f"{options.granule / MIB:g} MiB")


def write_page(options, cases, report):
    model, chosen = cases[0].model, [row for row in COLUMNS if row[0] in ON_PAGE]
    page = result_page.head("Flows over NCCL, simulated driver and NCCL", "ninja -C build nccl-results", settings(options, cases))
    page += PAGE.format(passed=report.number - report.failed, failed=report.failed or "none", bucket=f"{options.bucket / MIB:g} MiB",
                        size=mib(model.bytes), count=len(model.tensors), largest=mib(model.largest), held=held(cases),
                        table=markdown([name for name, _ in chosen], [[figure(case) for _, figure in chosen] for case in cases]))
    with open(options.write, "w") as file:
        file.write(page)
