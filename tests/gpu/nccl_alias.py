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
from concurrent.futures import ThreadPoolExecutor

import build_all
from nccl_tools import NO_NCCL, PYTHON_ROW, json_lines, library_of, nccl_environment, refuse_simulated, ways_of
from part_script import BUILD_ROW, Measurement, options_of
from run_tools import end_of, last_line, read_json, run_limited, without_shim, write_json

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nccl_rank.py")
RANKS = 3
PROTOCOLS = ("Simple", "LL", "LL128")
TENSOR_BYTES, QUICK_TENSOR_BYTES = 192 << 20, 24 << 20


class Experiment(Measurement):
    def __init__(self, options, library):
        super().__init__(options, "metashard-nccl-alias-1", nccl=library._asdict(), ranks=RANKS)
        self.program = [sys.executable, PROGRAM, os.path.join(options.build, build_all.PROBE)]
        self.quick, self.ways = ["quick"] if options.simulated else [], ways_of(library)
        self.libraries = nccl_environment(library, os.path.join(options.build, "tools", "simcuda") if options.simulated else None)

    def run_ranks(self, arguments, way, more, limit):
        """The lines of the ranks, figures of the shim's dumps, and how the ranks end."""
        settings, own_hosts = self.ways[way]
        what, *others = arguments
        with tempfile.TemporaryDirectory() as folder:
            def run_rank(rank):
                environment = without_shim(**self.libraries, **settings, **more(rank, folder))
                environment.update({"NCCL_HOSTID": f"rank{rank}"} if own_hosts else {})
                command = [*self.program, what, str(RANKS), str(rank), os.path.join(folder, "id"), *others]
                return run_limited(command, limit, environment)

            with ThreadPoolExecutor(RANKS) as pool:
                ended = list(pool.map(run_rank, range(RANKS)))
            dumps = [read_json(os.path.join(folder, f"dump-{rank}")) for rank in range(RANKS)]
        rows = [row | {"rank": rank} for rank, done in enumerate(ended) for row in json_lines(done.out)]
        rows += [{"rank": rank, "backed_bytes_peak": dump.get("backed_bytes_peak"),
                  "backed_bytes": sum(block.get("backed_bytes", 0) for block in dump.get("blocks", []))}
                 for rank, dump in enumerate(dumps) if dump]
        return {"ends": [end_of(done, limit) for done in ended], "rows": rows}

    def measure_map(self):
        done = run_limited([*self.program, "map", *self.quick], min(60, self.left()), without_shim(**self.libraries))
        self.result["map"] = json_lines(done.out) or [{"error": last_line(done.error)}]
        self.write()

    def measure_broadcasts(self):
        self.result["broadcast"] = []
        for way in self.ways:
            for number, protocol in enumerate(PROTOCOLS):
                if self.left() < 10:
                    return False
                # The slower protocols may not come to the largest sizes; what they print until then counts. LL over sockets
                # takes 25 s.
                share = self.left() / (len(PROTOCOLS) - number)
                seen = self.run_ranks(["broadcast", *self.quick], way, lambda rank, folder: {"NCCL_PROTO": protocol},
                                      max(20, share))
                self.result["broadcast"].append({"way": way, "protocol": protocol, **seen})
                self.write()
        return True

    def measure_shim(self):
        """Without it, with the shim alone, and with a plan."""
        size = QUICK_TENSOR_BYTES if self.options.simulated else TENSOR_BYTES
        plan = {"format": "metashard-plan/1", "mesh": {"dp": RANKS},
                "tensors": [{"name": "t", "dtype": "U8", "shape": [size], "placements": [{"shard": 0}]}]}
        shim = os.path.join(self.options.build, build_all.SHIM)

        def under_shim(rank, folder):
            return {"LD_PRELOAD": shim, "METASHARD_DUMP": os.path.join(folder, f"dump-{rank}"), "RANK": str(rank),
                    "WORLD_SIZE": str(RANKS)}

        def under_plan(rank, folder):
            path = os.path.join(folder, f"plan-{rank}.json")
            write_json(path, plan)
            return under_shim(rank, folder) | {"METASHARD_PLAN": path}

        self.result["shim"] = []
        for name, more in (("without", lambda rank, folder: {}), ("with", under_shim), ("with a plan", under_plan)):
            if self.left() < 10:
                return False
            seen = self.run_ranks(["tensor", str(size)], "hosts", more, min(60, self.left()))
            self.result["shim"].append({"preload": name, "bytes": size, **seen})
            self.write()
        return True

    def run(self):
        self.measure_map()
        return self.finish(all([self.measure_shim(), self.measure_broadcasts()]))


def problems(result):
    """Lines for what is not as hoped: wrong bytes, and ranks that did not end."""
    lines = []
    for run in result.get("broadcast", []) + result.get("shim", []):
        name = f"shim {run['preload']}" if "preload" in run else f"{run['way']}, {run['protocol']}"
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
    library = library_of(options, options.simulated)
    if library is None:
        write_json(options.out, NO_NCCL)
        return
    refuse_simulated(library, options.build, options.simulated)
    result = Experiment(options, library).run()
    if not options.out:
        print(json.dumps(result, indent=1))
    for line in problems(result):
        print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
