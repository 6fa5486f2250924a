#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_from_scratch.py PROGRAM KERNELS SHIM [--ranks N,N...]: init, then shard, on every rank.

Runs each rank of from_scratch without and with the shim. All lines must be the same; with the shim
the device's memory must never hold more than the rank's shard, the largest tensor's shard (the room to
play it in) and a little. Prints a table, and TAP.
"""
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

MIB = 1 << 20
SLACK_BYTES = 32 * MIB


def run(program, kernels, shim, rank, ranks):
    """Output and peak of device memory."""
    with tempfile.TemporaryDirectory() as folder:
        stats = os.path.join(folder, "stats")
        environment = dict(os.environ, SIMCUDA_STATS=stats, SIMCUDA_POISON="1")
        if shim is not None:
            environment["LD_PRELOAD"] = shim
        done = subprocess.run([program, kernels, str(rank), str(ranks)], env=environment,
                              capture_output=True, text=True, timeout=600)
        if done.returncode != 0 or done.stderr:
            return f"exit status {done.returncode}: {done.stderr}", 0
        with open(stats) as file:
            return done.stdout, json.load(file)["physical_bytes_peak"]


def main():
    program, kernels, shim = sys.argv[1:4]
    counts = [int(n) for n in sys.argv[5].split(",")] if len(sys.argv) > 5 else [1, 2, 3, 8]
    work = [(rank, ranks) for ranks in counts for rank in range(ranks)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        alone = list(pool.map(lambda at: run(program, kernels, None, *at), work))
        under = list(pool.map(lambda at: run(program, kernels, shim, *at), work))

    print("# ranks  rank  shard MiB  peak without  peak with  ratio to the shard")
    number = failed = 0
    for (rank, ranks), (wanted, peak_alone), (seen, peak) in zip(work, alone, under):
        same = wanted == seen and "bytes " in wanted
        facts = wanted[wanted.index("bytes "):].split() if same else [0] * 4
        ideal, largest = int(facts[1]), int(facts[3])
        bound = 1.05 * ideal + largest + SLACK_BYTES
        print(f"# {ranks:5} {rank:5} {ideal / MIB:10.1f} {peak_alone / MIB:13.1f} "
              f"{peak / MIB:10.1f} {peak / max(ideal, 1):8.3f}")
        for name, good in ((f"rank {rank} of {ranks}: values", same),
                           (f"rank {rank} of {ranks}: memory", same and peak <= bound)):
            number += 1
            failed += not good
            print(f"{'ok' if good else 'not ok'} {number} {name}")
        if not same:
            print("# " + f"{wanted[:300]}\n{seen[:2000]}".replace("\n", "\n# "))
    print(f"1..{number}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
