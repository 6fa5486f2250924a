#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""settled.py PROGRAM KERNELS DRIVER PRELOAD C10 [--check]: instructions that the shim adds to what a program that
computes does again and again: blocks that a caching allocator hands out and takes back, allocations that are freed.

Counted as in instructions.py. With --check more than LIMITS is a failure. Without valgrind or objcopy the exit status
is 77.
"""
import shutil
import sys

from instructions import count

# By way. Where it ends with a number, the ways of both numbers have the limit: the work does not grow with it.
LIMITS = {"settled": 70, "used": 70, "names 1000": 5000, "names 100000": 5000, "allocating": 100, "beside": 100}
SETTINGS = {"METASHARD_SETTLE_MS": "20"}


def main():
    for tool in ("valgrind", "objcopy"):
        if shutil.which(tool) is None:
            print(f"skipped: {tool} is not installed")
            return 77
    faults = 0
    for way in LIMITS:
        is_forwarded = way in ("settled", "used")
        for name, added in count(sys.argv[1:6], *way.split(), settings=SETTINGS, is_forwarded=is_forwarded).items():
            call = name.split(", ")[-1]
            good = added <= LIMITS[way]
            faults += not good and "--check" in sys.argv
            print(f"{'ok' if good else 'TOO MANY':8} {way}, {call}: {added} of {LIMITS[way]}")
    return faults > 0


if __name__ == "__main__":
    sys.exit(main())
