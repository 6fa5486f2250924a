#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Broadcasts of the real NCCL into addresses that share memory, with three ranks on one GPU (nccl_rank.py).

    nccl_alias.py --build DIR [--python PYTHON] [--simulated] [--out FILE]

For each protocol and each root: does every rank get its own bytes when all others are mapped to one sink? What does
mapping cost? And the same through the shim, in plain memory under a plan. --simulated: the simulated NCCL and driver
take the place of the real ones, with small sizes; that shows that the experiment runs, and nothing about a GPU.
"""
import json
import os
import sys
import tempfile
import time

import build_all
from nccl_tools import NO_NCCL, PYTHON_ROW, find_nccl, json_lines, nccl_environment, refuse_simulated, run_ranks, ways_of, Library
from part_script import BUILD_ROW, options_of
from run_tools import counters_of, last_line, read_json, run_limited, without_shim, write_json

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nccl_rank.py")
RANKS = 3
PROTOCOLS = ("Simple", "LL", "LL128")
TENSOR_BYTES = 192 << 20
QUICK_TENSOR_BYTES = 24 << 20


class Experiment:
    def __init__(self, options):
        self.options = options
        self.program = [sys.executable, PROGRAM, os.path.join(options.build, build_all.PROBE)]
        self.quick = ["quick"] if options.simulated else []
        driver = None
        if options.simulated:
            self.library = Library(os.path.realpath(os.path.join(options.build, build_all.SIMULATED_NCCL)), 22809)
            driver = os.path.join(options.build, "tools", "simcuda")
        else:
            self.library = find_nccl(options.python)
            if self.library is None:
                return
        refuse_simulated(self.library, options.build, options.simulated)
        self.libraries = nccl_environment(self.library, driver)
        self.deadline = time.monotonic() + options.seconds
        self.result = {"format": "metashard-nccl-alias-1", "complete": False,
                       "nccl": self.library._asdict(), "ranks": RANKS}

    def write(self):
        write_json(self.options.out, self.result)

    def left(self):
        return self.deadline - time.monotonic()

    def start(self, arguments, way, more, limit):
        """Starts the ranks; returns what they print and how they end."""
        settings, own_hosts = ways_of(self.library)[way]
        with tempfile.TemporaryDirectory() as folder:
            commands, environments = [], []
            for rank in range(RANKS):
                host = {"NCCL_HOSTID": f"rank{rank}"} if own_hosts else {}
                commands.append([*self.program, arguments[0], str(RANKS), str(rank), os.path.join(folder, "id"), *arguments[1:]])
                environments.append(without_shim(**self.libraries, **settings, **host,
                                                 **(more(rank, folder) if callable(more) else more)))
            ended = run_ranks(commands, environments, limit)
            dumps = [counters_of(os.path.join(folder, f"dump-{rank}")) for rank in range(RANKS)]
            blocks = [read_json(os.path.join(folder, f"dump-{rank}")).get("blocks", []) for rank in range(RANKS)]
        ends = [f"no end in {limit:.0f} s" if one.timed_out else "ends" if one.status == 0 else
                f"exit status {one.status}: {one.error}" for one in ended]
        return ended, {"ends": ends, "rows": [row | {"rank": rank} for rank, one in enumerate(ended)
                                              for row in one.lines]}, dumps, blocks

    def measure_map(self):
        done = run_limited([*self.program, "map", *self.quick], min(60, self.left()), without_shim(**self.libraries))
        self.result["map"] = json_lines(done.out) or [{"error": last_line(done.error)}]
        self.write()

    def measure_broadcasts(self):
        self.result["broadcast"] = []
        for way in ways_of(self.library):
            for protocol in PROTOCOLS:
                if self.left() < 10:
                    return False
                # The slower protocols may not come to the largest sizes; what they print until then counts. LL over sockets
                # takes 25 s.
                share = self.left() / (len(PROTOCOLS) - PROTOCOLS.index(protocol))
                _, seen, _, _ = self.start(["broadcast", *self.quick], way, {"NCCL_PROTO": protocol}, max(20, share))
                self.result["broadcast"].append({"way": way, "protocol": protocol, **seen})
                self.write()
        return True

    def plan(self, folder, size):
        path = os.path.join(folder, "plan.json")
        if not os.path.exists(path):
            write_json(path, {"format": "metashard-plan/1", "mesh": {"dp": RANKS}, "tensors": [
                {"name": "t", "dtype": "U8", "shape": [size], "placements": [{"shard": 0}]}]})
        return path

    def measure_shim(self):
        """With a plan, with the shim alone, and without it."""
        size = QUICK_TENSOR_BYTES if self.options.simulated else TENSOR_BYTES
        shim = os.path.join(self.options.build, build_all.SHIM)

        def under(plan):
            def more(rank, folder):
                own = {"LD_PRELOAD": shim, "METASHARD_DUMP": os.path.join(folder, f"dump-{rank}"), "RANK": str(rank),
                       "WORLD_SIZE": str(RANKS)}
                return own | ({"METASHARD_PLAN": self.plan(folder, size)} if plan else {})
            return more
        self.result["shim"] = []
        for name, more in (("without", {}), ("with", under(False)), ("with a plan", under(True))):
            if self.left() < 10:
                return False
            _, seen, dumps, blocks = self.start(["tensor", str(size)], "hosts", more, min(60, self.left()))
            for rank, (dump, own) in enumerate(zip(dumps, blocks)):
                if dump:
                    seen["rows"].append({"rank": rank, "backed_bytes_peak": dump.get("backed_bytes_peak"),
                                         "backed_bytes": sum(block.get("backed_bytes", 0) for block in own)})
            self.result["shim"].append({"preload": name, "bytes": size, **seen})
            self.write()
        return True

    def run(self):
        self.measure_map()
        is_whole = self.measure_shim()
        is_whole = self.measure_broadcasts() and is_whole
        self.result["complete"] = is_whole
        self.write()
        return self.result


def problems(result):
    """Lines for what is not as hoped: wrong bytes, and ranks that did not end."""
    lines = []
    for run in result.get("broadcast", []) + result.get("shim", []):
        name = run.get("preload") or f"{run['way']}, {run['protocol']}"
        name = ("shim " + name) if "preload" in run else name
        for row in run["rows"]:
            if row.get("wrong_bytes"):
                lines.append(f"{name}: rank {row['rank']}: {row['wrong_bytes']} wrong bytes of "
                             f"{row['own'][1] - row['own'][0]} of its own, broadcast of {row['bytes']} from {row['root']}")
            if "error" in row:
                lines.append(f"{name}: rank {row['rank']}: {row['error']}")
        lines += [f"{name}: rank {rank}: {how}" for rank, how in enumerate(run["ends"]) if how != "ends"]
    return lines


def in_short(result):
    rows = [row for run in result["broadcast"] for row in run["rows"] if "wrong_bytes" in row]
    wrong = sum(row["wrong_bytes"] > 0 for row in rows)
    return f"{len(rows)} receipts, {wrong} with wrong bytes; {len(problems(result))} problems"


def main():
    options = options_of(__doc__, 200, BUILD_ROW, PYTHON_ROW, ("--simulated", False))
    experiment = Experiment(options)
    if experiment.library is None:
        write_json(options.out, NO_NCCL)
        return
    result = experiment.run()
    if not options.out:
        print(json.dumps(result, indent=1))
    for line in problems(result):
        print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
