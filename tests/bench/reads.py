#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""reads.py PROGRAM DRIVER PRELOAD [--check]: what the shim adds to a read of 64 KiB, in instructions (callgrind).

For the note alone, by how many files or places in memory are noted already; and for the program's own call, before and after
cuInit, as the difference of two runs, without and with the preload. More than LIMIT is a failure with --check. Without
valgrind or objcopy the exit status is 77.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

from instructions import without_debug_information

LIMIT = 500
NOTES = ("files 1000", "files 100000", "places 1000", "places 1000000")
CALLS = ("before 2000", "used 2000")


def count(program, way, environment):
    run = subprocess.run(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=measured",
                          program, *way.split()], env=environment, capture_output=True, text=True)
    found = re.search(r"Collected : (\d+)", run.stderr)
    if run.returncode != 0 or not found:
        sys.exit(f"{program} {way}: exit {run.returncode}\n{run.stderr}")
    return int(found[1]) / int(run.stdout)


def measure(program, shim, folder):
    """By way: instructions that are added to a read."""
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    plain["LD_LIBRARY_PATH"] = folder
    for way in NOTES:
        yield "a note, " + way, count(program, way, plain)
    for way in CALLS:
        yield "read, " + way, count(program, way, dict(plain, LD_PRELOAD=shim)) - count(program, way, plain)


def main():
    for tool in ("valgrind", "objcopy"):
        if shutil.which(tool) is None:
            print(f"skipped: {tool} is not installed")
            return 77
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        program, _, shim = without_debug_information(folder, *sys.argv[1:4])
        for way, added in measure(program, shim, folder):
            good = added <= LIMIT
            faults += not good
            print(f"{'ok' if good else 'TOO MANY':8} {way}: {added:.0f} of {LIMIT}")
    return "--check" in sys.argv and faults > 0


if __name__ == "__main__":
    sys.exit(main())
