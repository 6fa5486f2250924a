#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""growth.py SCALE KERNELS PLAN MEASURE FOLDER: how the work grows with blocks, tensors and ranks, from 100 to 1,000,000.

Runs tests/bench/scale and tests/plans/plan/bench-plan, and fits time = c * n^exponent by least squares on the logarithms:
over all sizes, and once more over the larger half of them, where what is spent once no longer counts. Prints a line for
each: the exponents, and the time of each size over that of the smallest. 0 is a time that does not depend on n, 1 one in
proportion to it; a sorted table costs a little more than 1, and 2 would be a fault. Rows of memory are bytes, from 1,000 on
(tests/plans/plan/measure-load).

GROWTH_LARGEST (default 1000000) ends it sooner. GROWTH_SECONDS (default 60): what would last longer, going
by the sizes before, is left out, and said ("-"). So is a plan for which there is not memory enough.
"""
import math
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "plans", "plan"))
from large_files import write_header, write_plan  # pylint: disable=wrong-import-position

LARGEST = int(os.environ.get("GROWTH_LARGEST", "1000000"))
SECONDS = float(os.environ.get("GROWTH_SECONDS", "60"))
SIZES = [10 ** power for power in range(2, 7) if 10 ** power <= LARGEST]
# Each deferred allocation takes three granules of addresses.
SMALL = {"SIMCUDA_GRANULE_KIB": "64", "METASHARD_MIN_BYTES": str(64 << 10), "METASHARD_SETTLE_MS": "0",
         "METASHARD_OVERCOMMIT": "1000000", "METASHARD_SELFCHECK": "off"}
# Two of bench-plan's rows, one with a shard for each rank and the one with the most ranges; its columns by name.
PLANS = ("fsdp2 over tp by columns", "fsdp1 over tp, a unit each")
COLUMNS = {"parse": 0, "list": 1, "one rank": 2, "all ranks": 4}
FIXED_RANKS, FIXED_TENSORS = 1024, 1000
LEAST = 1e-6  # what the clock tells apart
LEAST_PRINTED = 1e-5  # what bench-plan prints; below that there is nothing to fit


def exponent(points):
    """The slope of the line through (log n, log t) with the least squares."""
    points = [(math.log(n), math.log(max(t, LEAST * 1e-3))) for n, t in points]
    if len(points) < 2:
        return None
    mean_n, mean_t = (sum(point[i] for point in points) / len(points) for i in (0, 1))
    return (sum((n - mean_n) * (t - mean_t) for n, t in points) /
            sum((n - mean_n) ** 2 for n, _ in points))


def scale(program, kernels, folder):
    """{name: [(n, seconds or None)]}, and which of them are for one call."""
    run = subprocess.run([program, kernels, folder, str(LARGEST), str(SECONDS)], stdout=subprocess.PIPE, text=True,
                         env=dict(os.environ, **SMALL), check=True,
                         preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}))
    curves, calls = {}, set()
    for line in run.stdout.splitlines():
        name, count, value = line.split("\t")
        number = None if value == "-" else float(value.split()[0]) * (1e-9 if value.endswith("ns") else 1)
        if value.endswith("ns"):
            calls.add(name)
        curves.setdefault(name, []).append((int(count), number))
    return curves, calls


def resolve(program, tensors, ranks):
    """({(row, column): seconds}, most KiB of memory)"""
    with subprocess.Popen([program, str(tensors), str(ranks), *PLANS], stdout=subprocess.PIPE, text=True) as process:
        text = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{program}: exit {process.returncode}")
    found = {}
    for line in text.splitlines():
        match = re.match(r"(.+?)\s+((?:[\d.]+\s*){7})$", line)
        if match and match[1] in PLANS:
            figures = [float(word) for word in match[2].split()]
            for column, at in COLUMNS.items():
                found[match[1], column] = figures[at] * (1 if column == "all ranks" else 1e-3)
    return found, usage.ru_maxrss


def free_kib():
    with open("/proc/meminfo") as file:
        return int(re.search(r"MemAvailable:\s+(\d+) kB", file.read())[1])


def plans(program):
    """The same as scale(), of plans."""
    curves, once, kib = {}, 0, 0
    for size in SIZES:
        # Ten times as many tensors take ten times as long, and as much memory.
        if 10 * once > SECONDS or 12 * kib > free_kib():
            for points in curves.values():
                points.append((size, None))
            once = math.inf
            continue
        figures, kib = resolve(program, size, FIXED_RANKS)
        once = sum(figures.values())
        for (row, column), seconds in figures.items():
            if seconds >= LEAST_PRINTED:
                curves.setdefault(f"tensors of a plan, {row}: {column}", []).append((size, seconds))
    for size in SIZES:
        # Of 8 ranks along the second dimension; 2^20 is the largest world.
        for (row, column), seconds in resolve(program, FIXED_TENSORS, size // 8 * 8)[0].items():
            if "rank" in column and seconds >= LEAST_PRINTED:
                curves.setdefault(f"ranks of a plan, {row}: {column}", []).append((size, seconds))
    return curves


def memory(program, folder):
    """The same as scale(), of bytes."""
    curves = {}
    words = {"after": "after reading", "bound": "with the placement of a rank", "peak": "the most while reading"}
    for kind, write, what in (("plan", write_plan, "a plan"), ("checkpoint", write_header, "a header")):
        for size in (size for size in SIZES if size >= 1000):
            # A header has at most 100 MB.
            if kind == "checkpoint" and size > 750000:
                curves[f"memory of {what}: {words['after']}"].append((size, None))
                curves[f"memory of {what}: {words['peak']}"].append((size, None))
                continue
            with tempfile.NamedTemporaryFile(prefix="metashard-growth-", dir=folder) as file:
                write(file.name, size)
                text = subprocess.run([program, kind, file.name], stdout=subprocess.PIPE, text=True, check=True).stdout
            for key, number in (line.split() for line in text.splitlines()):
                if key in words:
                    curves.setdefault(f"memory of {what}: {words[key]}", []).append((size, float(number)))
    return curves


def print_curve(name, points, is_call):
    seen = [(n, t) for n, t in points if t is not None]
    fits = [exponent(seen), exponent(seen[len(seen) // 2:] if len(seen) > 3 else seen)]
    words = [f"{fit:9.2f}" if fit is not None else f"{'-':>9}" for fit in fits]
    times = dict(points)
    base = max(seen[0][1], LEAST * 1e-3)
    cells = []
    for size in SIZES:
        if size not in times:
            cells.append(f"{'<' if size < seen[0][0] else '':>11}")
        elif times[size] is None:
            cells.append(f"{'-':>11}")
        else:
            cells.append(f"{times[size] / base:11.4g}")
    unit = "call" if is_call else "all"
    print(f"{name:58} {unit:4}" + "".join(words) + "".join(cells), flush=True)


def main():
    program, kernels, plan, measure, folder = sys.argv[1:]
    curves, calls = scale(program, kernels, folder)
    print("growth of the processor time, to that of the smallest size; exponents of n, of all sizes and of the larger half")
    print(f"{'':58} {'of':4}{'exponent':>9}{'larger':>9}" + "".join(f"{size:>11}" for size in SIZES))
    for name, points in curves.items():
        print_curve(name, points, name in calls)
    for name, points in [*plans(plan).items(), *memory(measure, folder).items()]:
        print_curve(name, points, False)


if __name__ == "__main__":
    main()
