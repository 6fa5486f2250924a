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
import tempfile

from part_script import Measurement, failure_of, run_part, run_python

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
    width = "2048" if options.device == "cuda" else "64"
    done, counters = run_python(shim, ["-c", SCRIPT, options.device, width], limit, TORCHINDUCTOR_CACHE_DIR=cache)
    record = {"seconds": round(done.seconds, 1), **(failure_of(done) or {"losses": json.loads(done.out)})}
    return record | ({"shim": counters} if shim else {})


def same(result, one, other):
    first, second = (result["runs"].get(name, {}).get("losses") for name in (one, other))
    return None if first is None or second is None else first == second


def measure(options):
    measurement = Measurement(options, "metashard-compile-1", runs={})
    result = measurement.result
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for name, is_under, cache in RUNS:
            if measurement.left() < 5:
                return result
            shim = options.shim if is_under else None
            result["runs"][name] = run(options, shim, os.path.join(folder, cache), measurement.left())
            result["same_with_one_cache"] = same(result, RUNS[0][0], RUNS[2][0])
            result["same_without_twice"] = same(result, RUNS[0][0], RUNS[1][0])
            measurement.write()
    return measurement.finish(all("losses" in record for record in result["runs"].values()))


def in_short(result):
    words = {True: "the same", False: "differ", None: "not known"}
    return (f"losses with and without, one cache: {words[result['same_with_one_cache']]}; twice without, each with its own: "
            f"{words[result['same_without_twice']]}")


def problems(result):
    return [f"{name}: {record['error']}" for name, record in result["runs"].items() if "error" in record]


if __name__ == "__main__":
    run_part(__doc__, measure, 200)
