#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""startup.py PRELOAD [RUNS]: what the preload costs a process that does not use CUDA.

Starts /bin/true without and with the preload, alternating, and prints the median time of each in
microseconds and their ratio.
"""
import os
import statistics
import sys
import time


def start(environment):
    began = time.perf_counter_ns()
    child = os.posix_spawn("/bin/true", ["/bin/true"], environment)
    os.waitpid(child, 0)
    return (time.perf_counter_ns() - began) / 1000


def main():
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    preloaded = dict(plain, LD_PRELOAD=os.path.abspath(sys.argv[1]))
    times = {"without": [], "with": []}
    for _ in range(runs):
        times["without"].append(start(plain))
        times["with"].append(start(preloaded))
    without, with_shim = (statistics.median(times[kind]) for kind in ("without", "with"))
    print(f"/bin/true, median of {runs} starts: without {without:.0f} us, with {with_shim:.0f} us, "
          f"{with_shim - without:+.0f} us, ratio {with_shim / without:.3f}")


if __name__ == "__main__":
    main()
