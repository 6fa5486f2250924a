#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""verify.py --build DIR --driver FILE --preload FILE --kernels FILE --compare FILE: what METASHARD=verify costs.

Two whole programs on one rank of 8: the main job (tests/demo/client.c), and a model that is initialised on the device and then
sharded (tests/frameworks/flows/from_scratch.c). A line a figure: peak device memory, bytes copied to the device and within
it, launches, and seconds, with the mode over without MetaShard. The output must be the same, and nothing may differ.

VERIFY_MIB (default 256) is the size of the checkpoint.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time

RANK, RANKS = 3, 8
MODEL = ["--dim", "512", "--layers", "2", "--vocab", "8016"]
SUMS = re.compile(r"verify: (\d+) ranges, (\d+) bytes compared, (\d+) differ")


def run(options, command, folder, mode):
    """(what it printed, statistics of the driver with the seconds); mode None: without MetaShard"""
    stats = os.path.join(folder, "stats")
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("METASHARD", "SIMCUDA")) and name != "LD_PRELOAD"}
    environment.update(LD_LIBRARY_PATH=os.path.dirname(options.driver), SIMCUDA_STATS=stats)
    if mode:
        environment.update(SIMCUDA_PTX_KERNELS=options.compare, METASHARD_SETTLE_MS="0", METASHARD=mode,
                           LD_PRELOAD=options.preload)
    began = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    seconds = time.monotonic() - began
    sums = SUMS.search(done.stderr)
    if done.returncode != 0 or (mode and (sums is None or sums[1] == "0" or sums[3] != "0")):
        sys.exit(f"{command}: exit {done.returncode}\n{done.stderr}")
    with open(stats) as file:
        return done.stdout, dict(json.load(file), seconds=seconds)


def compare(options, name, command, folder):
    (text, without), (verified, seen) = (run(options, command, folder, mode) for mode in (None, "verify"))
    if text != verified:
        sys.exit(f"{name}: other output with METASHARD=verify")
    for figure, what in (("physical_bytes_peak", "peak memory"), ("h2d_bytes", "bytes copied to the device"),
                         ("d2d_bytes", "bytes copied within it"), ("launches", "launches"), ("seconds", "seconds")):
        if without[figure] > 0:
            print(f"{name}: {what:28} ratio {seen[figure] / without[figure]:.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    for name in ("build", "driver", "preload", "kernels", "compare"):
        parser.add_argument("--" + name, required=True)
    options = parser.parse_args()
    size = os.environ.get("VERIFY_MIB", "256")
    demo = os.path.join(options.build, "tests", "demo")
    with tempfile.TemporaryDirectory(prefix="metashard-verify-", dir=os.environ.get("TMPDIR") or options.build) as folder:
        checkpoint = os.path.join(folder, "checkpoint")
        os.makedirs(checkpoint)
        subprocess.run([os.path.join(demo, "make_checkpoint"), checkpoint, size], check=True, stdout=subprocess.DEVNULL)
        compare(options, f"main job, {size} MiB", [os.path.join(demo, "client"), str(RANK), str(RANKS), checkpoint], folder)
        compare(options, "init, then shard",
                [os.path.join(options.build, "tests", "frameworks", "flows", "from_scratch"), "--kernels", options.kernels,
                 "--rank", str(RANK), "--ranks", str(RANKS), "--end", *MODEL], folder)


if __name__ == "__main__":
    main()
