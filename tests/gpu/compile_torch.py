#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch.compile under the shim: are the losses those of a run without it?

    compile_torch.py --shim libmetashard.so [--out FILE] [--seconds S]

An MLP in bfloat16 is compiled and trained for a few steps: twice without the shim, each time with an empty cache of compiled
kernels; then with the shim, with the first one's cache and with an empty one. The compiler times kernels and takes the fastest,
so two runs with empty caches may differ by themselves; with one cache they should not. Prints, and writes after each run, one
JSON object.
"""
import json
import os
import shutil
import sys
import tempfile
import time

from part_script import failure_of, run_part
from run_tools import counters_of, run_limited, under_shim, without_shim, write_json

SCRIPT = """
import json, sys, torch
torch.manual_seed(0)
device, width = sys.argv[1], int(sys.argv[2])
layers = [torch.nn.Linear(width, 2 * width), torch.nn.GELU(), torch.nn.LayerNorm(2 * width), torch.nn.Linear(2 * width, width)]
model = torch.nn.Sequential(*layers).to(device).bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
compiled = torch.compile(model)
x = torch.randn(64, width, device=device, dtype=torch.bfloat16)
losses = []
for _ in range(6):
    loss = (compiled(x) - x).float().pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
json.dump(losses, sys.stdout)
"""
# name of a run: the shim, whose cache
RUNS = [("without", False, "first"), ("without, once more", False, "second"), ("with, and the first one's cache", True, "first"),
        ("with", True, "third")]


def run(options, shim, cache, limit):
    with tempfile.TemporaryDirectory() as folder:
        dump = os.path.join(folder, "dump")
        environment = under_shim(options.shim, dump) if shim else without_shim()
        environment["TORCHINDUCTOR_CACHE_DIR"] = cache
        width = "2048" if options.device == "cuda" else "64"
        done = run_limited([sys.executable, "-c", SCRIPT, options.device, width], limit, environment)
        record = {"seconds": round(done.seconds, 1), **(failure_of(done) or {"losses": json.loads(done.out)})}
        return record | ({"shim": counters_of(dump)} if shim else {})


def same(result, one, other):
    first, second = (result["runs"].get(name, {}).get("losses") for name in (one, other))
    return None if first is None or second is None else first == second


def measure(options):
    deadline = time.monotonic() + options.seconds
    result = {"format": "metashard-compile-1", "complete": False, "runs": {}}
    folder = tempfile.mkdtemp()
    try:
        for name, shim, cache in RUNS:
            if time.monotonic() > deadline - 5:
                return result
            result["runs"][name] = run(options, shim, os.path.join(folder, cache), deadline - time.monotonic())
            result["same_with_one_cache"] = same(result, RUNS[0][0], RUNS[2][0])
            result["same_without_twice"] = same(result, RUNS[0][0], RUNS[1][0])
            write_json(options.out, result)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result["complete"] = all("losses" in record for record in result["runs"].values())
    return result


def in_short(result):
    words = {True: "the same", False: "differ", None: "not known"}
    return (f"losses with and without, one cache: {words[result['same_with_one_cache']]}; twice without, each with its own: "
            f"{words[result['same_without_twice']]}")


def problems(result):
    return [f"{name}: {record['error']}" for name, record in result["runs"].items() if "error" in record]


if __name__ == "__main__":
    run_part(__doc__, measure, 200)
