#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""snapshots.py PROGRAM KERNELS PRELOAD: processor time of copies that become snapshots, without and with the preload.

User and system time of all threads, until a kernel has the bytes: to make the snapshot, and to bring it into memory.
"""
import os
import subprocess
import sys


def run(program, kernels, preload):
    """The best of three runs, by row."""
    environment = dict(os.environ, METASHARD_SETTLE_MS="0")
    if preload:
        environment["LD_PRELOAD"] = preload
    best = {}
    for _ in range(3):
        text = subprocess.run([program, kernels], env=environment, check=True, capture_output=True, text=True).stdout
        for line in text.splitlines():
            name, value = line.split("\t")
            best[name] = min(best.get(name, float("inf")), float(value))
    return best


def main():
    program, kernels, preload = sys.argv[1:]
    without, with_shim = run(program, kernels, None), run(program, kernels, os.path.abspath(preload))
    for name, value in without.items():
        print(f"{name:44} without {value * 1e3:8.2f} ms, with {with_shim[name] * 1e3:8.2f} ms, "
              f"ratio {with_shim[name] / value:.2f}")


if __name__ == "__main__":
    main()
