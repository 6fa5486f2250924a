#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""page.py PAGE RECORD...: the page of what run --record has written: how many calls failed in which flow, and which."""
import collections
import json
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "harness"))
import result_page  # noqa: E402

MADE_BY = ("tests/robust/faults/run --record FILE", "tests/robust/faults/page.py PAGE FILE")
HEAD = """The simulated driver is of this repository. `tests/robust/faults/run` alone runs everything, for about an hour and a half on
two cores that are busy. What was found was mended on the way, and the rows that it concerned were run again.

A flow is run again and again; in the n-th run the n-th call that the shim makes fails, until a run ends in which none did:
*all*. How many calls there are differs from run to run, since threads ask again as time goes.

*right*: the program noticed nothing. *told*: a call of the program failed with an error, and then all was right, or the
program ended with a line, as it does at errors. *faults*: anything else, which is a wrong byte, a crash, a hang of more than
90 s, device memory, descriptors or files that are left over, or a complaint of the simulated driver.

| kind | what fails |
| --- | --- |
| driver | a call of the driver's, with `CUDA_ERROR_OUT_OF_MEMORY` |
| driver-unknown | the same, with `CUDA_ERROR_UNKNOWN` |
| driver-sticky | the same, with `CUDA_ERROR_LAUNCH_FAILED`, which every later call has as well |
| heap | an allocation of the shim's heap (a shim that is linked with libc's) |
| files | a call of libc's: files, mappings, sockets, threads |
| heap-lasting | the n-th allocation of the shim's heap, and all that follow |
| descriptors | the n-th call that makes a descriptor, and all that follow (`EMFILE`) |
| short | a read or a write moves half of its bytes |
| signals | a call is interrupted by a signal (`EINTR`) |
| nccl | a call of NCCL's, with `ncclInternalError` |

"""

PATHS = """
*paths*: with `--distinct` the first call of each path fails, which is where in the shim a call is made and where the program
had called the shim; a path that three runs did not meet, as threads differ, is not counted as failed.
"""

KINDS = re.findall(r"^\| ([a-z-]+) \| (?!what)", HEAD, re.M)


def read(paths):
    points = []
    for path in paths:
        with open(path) as file:
            points += [json.loads(line) for line in file]
    return list({(point["flow"], point["kind"], point["number"]): point for point in points}.values())


def extent(last, counts):
    """How many calls there are, and which of them failed."""
    if "paths" in last:
        return last["calls"], f"{last['failed']} of {last['paths']} paths"
    if last.get("every", 1) > 1:
        return f"at least {last['number']}", f"one in {last['every']}"
    return sum(counts.values()), "all"


def tables(points):
    cells = collections.defaultdict(collections.Counter)
    for point in points:
        cells[point["flow"], point["kind"]][point["outcome"]] += 1
    lasts = {}
    for point in points:
        key = point["flow"], point["kind"]
        if key not in lasts or point["number"] > lasts[key]["number"]:
            lasts[key] = point
    yield "| flow | kind | calls | of them failed | right | told | faults |\n| --- | --- | --: | --- | --: | --: | --: |\n"
    flows = list(dict.fromkeys(flow for flow, _ in cells))
    for (flow, kind), counts in sorted(cells.items(), key=lambda cell: (flows.index(cell[0][0]), KINDS.index(cell[0][1]))):
        calls, failed = extent(lasts[flow, kind], counts)
        yield f"| {flow} | {kind} | {calls} | {failed} | {counts['right']} | {counts['told']} | {counts['fault']} |\n"
    total = collections.Counter(point["outcome"] for point in points)
    yield f"| together | | | {len(points)} | {total['right']} | {total['told']} | {total['fault']} |\n"
    if any("paths" in last for last in lasts.values()):
        yield PATHS


FOUND = """
## What was found and mended

Each of these is made to fail in every `./check` (`KNOWN` in `tests/robust/faults/flows.py`), or has a unit test.

| call that failed | what came of it | now |
| --- | --- | --- |
| `cuFuncGetParamInfo`, when a layout was asked for the second time | the parameter's pointer was not seen: **other bytes**, or an illegal access | no layout, so the launch materialises everything |
| `cuStreamSynchronize` of a fill stream | memory was unmapped under queued work | asked for once more before anything is taken away |
| `cuMemRelease`, `cuMemUnmap`, `cuMemAddressFree` | device memory or addresses kept for ever, the first without a word | called once more, and told |
| `listen` | the socket's name stayed | removed |
| `eventfd`, `pthread_create`, `atexit` of the thread for plans | the socket took connections that nobody served: `metashard-plan send` waited for ever | no socket |
| `accept4`, for want of descriptors, of the control socket | one processor at full load | a pause; a line |
| `malloc`, when a plan's tensors had become more | the old sheet was read beyond its end: a crash at exit | the plan is not followed, as the line says |
| the first `mmap` of the private heap | a crash in jemalloc 5.3.0 | a spare page |
| a write of the dump, but the last | a dump cut off, and no line | told |
| any allocation of the heap, any own call of the driver's, device memory for a copy's bytes | an error of the program's call, and no line | told |
| `fstat` of a file, after its bytes were read by several threads | an error of the program's call, and no line: the second look, which would have told, found nothing wrong | asked twice |
| `dlopen` of the driver | `cuInit` failed, and no line | told |

Beside these: a driver without virtual memory management was told of in eight lines; threads of our own had the stack that
`ulimit -s` left, and overran it; a forked child looked deferred memory up, under a lock that a thread of its parent could
have held (`tests/robust/hostile`).
"""


def lists(points):
    yield "\n## What failed\n\nHow often each function was the one, in all flows together; how often the program was told.\n\n"
    by_call = collections.defaultdict(collections.Counter)
    for point in points:
        family = "driver" if point["kind"].startswith("driver") else point["kind"]
        by_call[family, point["call"]][point["outcome"]] += 1
    yield "| kind | function | times | told |\n| --- | --- | --: | --: |\n"
    for (family, call), counts in sorted(by_call.items(), key=lambda item: (item[0][0], -sum(item[1].values()))):
        yield f"| {family} | `{call}` | {sum(counts.values())} | {counts['told']} |\n"


def main():
    points = read(sys.argv[2:])
    with open(sys.argv[1], "w") as file:
        file.write(result_page.head("Every call fails once, on the simulated driver", MADE_BY, "those of each flow; granules of 2 MiB"))
        file.write(HEAD + "".join(tables(points)) + FOUND + "".join(lists(points)))


if __name__ == "__main__":
    main()
