#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""calls.py PROGRAM KERNELS PRELOAD: nanoseconds per intercepted call, without and with the preload."""
import os
import subprocess
import sys


def run(program, kernels, preload):
    """The best of five runs, by call."""
    environment = dict(os.environ, METASHARD_SETTLE_MS="0")
    if preload:
        environment["LD_PRELOAD"] = preload
    best = {}
    for _ in range(5):
        text = subprocess.run([program, kernels], env=environment, check=True, capture_output=True,
                              text=True).stdout
        for line in text.splitlines():
            name, value = line.split("\t")
            best[name] = min(best.get(name, float("inf")), float(value))
    return best


def main():
    program, kernels, preload = sys.argv[1:]
    without, with_shim = run(program, kernels, None), run(program, kernels, os.path.abspath(preload))
    for name, value in without.items():
        print(f"{name:68} without {value:8.1f} ns, with {with_shim[name]:8.1f} ns, "
              f"ratio {with_shim[name] / value:.2f}")


if __name__ == "__main__":
    main()
