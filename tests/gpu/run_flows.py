#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of tests/frameworks/flows on the device, several at a time, each for some of its ranks.

    run_flows.py --shim libmetashard.so [--out FILE] [--seconds S] [--flows NAME...]

`tests/frameworks/flows/run` runs all ranks of all flows one after the other, which takes half an hour. Here every flow
is a process of its own, for two of eight ranks, so a flow that fails or hangs leaves the others alone. Writes
one JSON object after each flow.
"""
import os
import re
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor

from part_script import Measurement, run_part
from run_tools import SOURCE, last_line, read_json, run_limited, without_shim

PROGRAM = os.path.join(SOURCE, "tests", "frameworks", "flows", "run")
WORLD = 8
COUNTED = re.compile(r"^(ok|not ok) \d+ (.*)$")


def run_flow(name, options, limit):
    """{"result", "failed", "skipped", "records"} of one flow."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "flows.json")
        done = run_limited([sys.executable, PROGRAM, name, "--world", str(WORLD), "--ranks", options.ranks,
                            "--jobs", "2", "--shim", options.shim, "--device", options.device,
                            "--scale", str(options.scale), "--json", out], limit, without_shim())
        records = read_json(out).get("flows", [])
    lines = [match.groups() for match in map(COUNTED.match, done.out.splitlines()) if match]
    skipped = [text for kind, text in lines if kind == "ok" and " # SKIP" in text]
    failed = [text for kind, text in lines if kind == "not ok"]
    passed = len(lines) - len(skipped) - len(failed)
    if done.timed_out:
        result = "no time left"
    elif failed or done.status != 0:
        result = "failed"
    else:
        result = "passed" if passed > 0 else "skipped"
    record = {"flow": name, "result": result, "seconds": round(done.seconds, 1), "failed": failed,
              "skipped": skipped, "records": records}
    if result == "failed":
        record["said"] = [line for line in done.out.splitlines() if line.startswith("#")][:40]
        record["error"] = last_line(done.error) if done.error.strip() else None
    return record


def measure(options):
    if not os.path.exists(PROGRAM):
        return {"skipped": "tests/frameworks/flows/run is not there"}
    listed = run_limited([sys.executable, PROGRAM, "--list", *options.flows], 60)
    if listed.status != 0:
        raise SystemExit("tests/frameworks/flows/run cannot be used: " + last_line(listed.error))
    names, lock = listed.out.split(), threading.Lock()
    measurement = Measurement(options, "metashard-flows-1", world=WORLD, ranks=options.ranks, scale=options.scale, counts={},
                              flows=[])
    result = measurement.result

    def one(name):
        left = measurement.left()
        if left < 5:
            record = {"flow": name, "result": "no time left"}
        else:
            record = run_flow(name, options, left)
        with lock:
            result["flows"].append(record)
            results = [flow["result"] for flow in result["flows"]]
            result["counts"] = {kind: results.count(kind) for kind in sorted(set(results))}
            result["complete"] = len(results) == len(names) and "no time left" not in results
            measurement.write()
            print(f"{record['flow']:30} {record['result']}", flush=True)

    with ThreadPoolExecutor(max(1, min(4, (os.cpu_count() or 1) // 4))) as pool:
        list(pool.map(one, names))
    return result


if __name__ == "__main__":
    run_part(__doc__, measure, 600, ("--scale", 1.0), ("--ranks", "0,5", {"help": "of eight"}), ("--flows", "", {"nargs": "*"}),
             told=lambda result: result.get("skipped") or result["counts"])
