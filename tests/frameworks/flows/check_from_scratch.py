#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_from_scratch.py PROGRAM KERNELS SHIM [--ranks N,N...]: init, then shard, on every rank.

Runs each rank of from_scratch without and with the shim. All lines must be the same. With the shim
the device's memory must never hold more than the rank's shards, a quarter of the largest of them
(the room to play it in) and a little; and a rank that reads nothing back needs next to none. Prints a table,
and TAP.
"""
import argparse
import os
import sys
import tempfile
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
import ledger  # noqa: E402
from state_page import read_facts  # noqa: E402

MIB = 1 << 20
SLACK_BYTES = 32 * MIB
GRANULE = 2 * MIB
FIXED_MAPS = 128  # the largest tensor's granules are 32, and each of 91 allocations takes one
# Shards of a few rows, an odd number of them, and none; small, so that everything is deferred.
ODD_SHAPE = ["--dim", "36", "--layers", "1", "--vocab", "9"]
ODD_RANKS = 8

Case = namedtuple("Case", "rank ranks arguments environment")
# figures: of the ledger (tests/harness/ledger.py).
Result = namedtuple("Result", "lines error peak backed recorded figures")


def read_json(path):
    try:
        return read_facts(path)
    except (OSError, ValueError):
        return {}


def run(options, case, shim):
    with tempfile.TemporaryDirectory() as folder:
        stats, dump = os.path.join(folder, "stats"), os.path.join(folder, "dump")
        # Settling would make the peak depend on how fast this machine is.
        environment = dict(os.environ, SIMCUDA_STATS=stats, SIMCUDA_POISON="1",
                           METASHARD_SETTLE_MS="0", METASHARD_IDLE_MS="5000", METASHARD_DUMP=dump, **case.environment)
        if shim:
            environment["LD_PRELOAD"] = options.shim
        done, seen = ledger.run([options.program, "--kernels", options.kernels, "--rank", str(case.rank), "--ranks",
                                 str(case.ranks), *case.arguments], environment)
        error = done.stderr
        if done.returncode != 0:
            error = f"exit status {done.returncode}: {error}"
        found, figures = read_json(dump), ledger.measured(read_json(stats), seen)
        return Result(done.stdout.splitlines(), error, figures["peak_bytes"], found.get("backed_bytes_peak"),
                      found.get("recorded_launches"), figures)


class Report:
    def __init__(self):
        self.number = self.failed = 0

    def check(self, good, name, *why):
        self.number += 1
        self.failed += not good
        print(f"{'ok' if good else 'not ok'} {self.number} {name}")
        if not good:
            for line in why:
                print("# " + str(line).replace("\n", "\n# "))

    def values(self, name, alone, under):
        """The same output without and with the shim, and nothing said on the way."""
        differences = [f"without the shim: {a}\nwith the shim:    {b}"
                       for a, b in zip(alone.lines, under.lines) if a != b]
        self.check(alone.lines == under.lines and len(alone.lines) > 1 and
                   not alone.error and not under.error, f"{name}: values",
                   f"without the shim {len(alone.lines)} lines {alone.error}",
                   f"with the shim {len(under.lines)} lines {under.error}", *differences[:5])

    def ledger(self, name, alone, under, kept_bytes, beside):
        self.check(under.backed is not None, f"{name}: a dump was written")
        ledger.tell(self.check, name, ledger.compare(f"init, then shard, {name}", alone.figures, under.figures,
                                                     ledger.Kept(kept_bytes, {"peak_bytes": beside})))


def sizes(result):
    """Bytes of the rank's shards, and of the largest."""
    for line in result.lines:
        if line.startswith("bytes "):
            words = line.split()
            return int(words[1]), int(words[3])
    return 0, 0


def check_shards(report, pool, options, counts):
    cases = [Case(rank, ranks, ["--end"], {}) for ranks in counts for rank in range(ranks)]
    alone = list(pool.map(lambda case: run(options, case, False), cases))
    under = list(pool.map(lambda case: run(options, case, True), cases))
    totals = {}
    print("# ranks rank  shards MiB  peak without  peak with  ratio  behind deferred  recorded")
    for case, before, after in zip(cases, alone, under):
        ideal, largest = sizes(before)
        totals[case.ranks] = totals.get(case.ranks, 0) + ideal
        if None not in (before.peak, after.peak, after.backed):
            print(f"# {case.ranks:5} {case.rank:4} {ideal / MIB:11.1f} {before.peak / MIB:13.1f} "
                  f"{after.peak / MIB:10.1f} {after.peak / max(ideal, 1):6.3f} "
                  f"{after.backed / MIB:16.1f} {after.recorded or 0:9}")
        name = f"rank {case.rank} of {case.ranks}"
        report.values(name, before, after)
        report.ledger(name, before, after, ideal, largest / 4 + SLACK_BYTES)
    report.check(len(set(totals.values())) == 1 and 0 not in totals.values(),
                 "the ranks' shards add up to the same model", f"bytes by ranks: {totals}")


def check_unread(report, pool, options):
    cases = [Case(0, ranks, [], {}) for ranks in (1, 2)]
    for case, before, after in zip(cases, pool.map(lambda case: run(options, case, False), cases),
                                   pool.map(lambda case: run(options, case, True), cases)):
        name = f"rank {case.rank} of {case.ranks}, nothing read back"
        report.values(name, before, after)
        report.ledger(name, before, after, 0, SLACK_BYTES)  # nothing large has to be there


def check_looked_at(report, options):
    """A program that looks at parameters while it makes a model takes the memory of one parameter at a time."""
    case = Case(3, 8, ["--end", "--look", "--layers", "9"], {})
    before, after = run(options, case, False), run(options, case, True)
    ideal, largest = sizes(before)
    name = "rank 3 of 8, looks at what it makes"
    report.values(name, before, after)
    # The multiple of a parameter is 8 times as large as the largest shard, and so is what it is made of, while it is made.
    report.ledger(name, before, after, ideal, 2 * 8 * largest + 4 * GRANULE)


def check_odd_shapes(report, pool, options):
    cases = [Case(rank, ODD_RANKS, ["--end", *ODD_SHAPE], {"METASHARD_MIN_BYTES": "1"})
             for rank in range(ODD_RANKS)]
    empty = 0
    for case, before, after in zip(cases, pool.map(lambda case: run(options, case, False), cases),
                                   pool.map(lambda case: run(options, case, True), cases)):
        report.values(f"rank {case.rank} of {case.ranks}, odd shapes", before, after)
        nothing = "cbf29ce484222325"  # the hash of no elements
        empty += any(line.endswith(nothing) for line in before.lines)
    report.check(empty > 0, "odd shapes: some ranks have an empty shard")


def read_calls(path):
    with open(path) as file:
        return [line.split()[0] for line in file]


def check_questions(report, options):
    """Whether all queued work is done is asked when something begins to be deferred, and not for each layer: the calls
    for that are at most one in a hundred of the program's launches, copies and sets. Where no kernel can read host
    memory, nothing is asked."""
    calls_of_one = 7  # of which the last, the event's query, may be made more often where it is not complete at once
    has_choice = "SIMCUDA_PAGEABLE" not in os.environ.get("SIM_SETTINGS", "")
    for pageable in (0, 1) if has_choice else (1,):
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "log")
            shape = ["--end", "--dim", "36", "--layers", "64", "--vocab", "9"]
            case = Case(0, ODD_RANKS, shape, {"METASHARD_MIN_BYTES": "1", "SIMCUDA_LOG": log,
                                              "SIMCUDA_PAGEABLE": str(pageable)})
            before = run(options, case, False)
            work = sum(call.startswith(("cuLaunch", "cuMemcpy", "cuMemset")) for call in read_calls(log))
            os.remove(log)
            report.values(f"many layers, pageable {pageable}", before, run(options, case, True))
            calls = read_calls(log)
        asked = sum(pair == ("cuCtxRecordEvent", "cuEventQuery") for pair in zip(calls, calls[1:]))
        report.check(pageable <= asked * calls_of_one <= pageable * work / 100, "questions whether queued work is done",
                     f"pageable {pageable}: {asked} questions, {work} launches, copies and sets")
        print(f"# pageable {pageable}: {asked} questions whether queued work is done, {work} launches, copies and sets")


def check_maps(report, options):
    """Calls that map memory follow what a rank keeps, not what the model has: a replay finds the sink where it was."""
    for ranks in (8, 32):
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "log")
            case = Case(1, ranks, ["--end", "--layers", "8"], {"METASHARD_MIN_BYTES": "1", "SIMCUDA_LOG": log})
            before = run(options, case, False)
            os.remove(log)
            report.values(f"rank 1 of {ranks}, eight layers", before, run(options, case, True))
            calls = read_calls(log)
        counts = {name: calls.count(name) for name in ("cuMemMap", "cuMemSetAccess", "cuMemUnmap")}
        most = 3 * sizes(before)[0] // GRANULE + FIXED_MAPS
        report.check(max(counts.values()) <= most, f"rank 1 of {ranks}: calls that map memory", f"{counts}, at most {most} each")
        print(f"# rank 1 of {ranks}: {counts}, at most {most} each")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("kernels")
    parser.add_argument("shim", help="value of LD_PRELOAD")
    parser.add_argument("--ranks", default="1,2,3,8", help="numbers of ranks")
    options = parser.parse_args()
    report = Report()
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 4)) as pool:
        check_shards(report, pool, options, [int(n) for n in options.ranks.split(",")])
        check_unread(report, pool, options)
        check_odd_shapes(report, pool, options)
    check_looked_at(report, options)
    check_questions(report, options)
    check_maps(report, options)
    print(f"1..{report.number}")
    return report.failed > 0


if __name__ == "__main__":
    sys.exit(main())
