#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""instructions.py PROGRAM KERNELS DRIVER PRELOAD [--check]: instructions the shim adds to a call.

Callgrind counts what runs on the calling thread while the program makes its calls. Added are
all instructions in the shim and in everything that the shim calls, except the driver's function of
the same name: that function would have run anyway, and its cost varies with the driver's own threads.

Prints a table, by deferred blocks that the call does not touch. With --check: nothing is deferred,
and a launch or a copy that adds more than LIMIT instructions is a failure; where there are blocks, a copy or set asks
for their bounds, and may add BOUNDS_LIMIT; while another block is deferred, a launch may add LAUNCH_LIMIT, and WORD_LIMIT
for each word of its parameters, all of which are addresses. Without valgrind or objcopy the exit status is 77.
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

LIMIT = 12
BOUNDS_LIMIT = 600
LAUNCH_LIMIT = 1100
WORD_LIMIT = 18
POINTERS_LIMIT = 8000
BLOCKS = ("0", "1", "100000")
# Each block takes three granules of addresses, and under valgrind a process has 128 GiB of them.
SMALL_GRANULES = {"SIMCUDA_GRANULE_KIB": "64", "METASHARD_MIN_BYTES": str(128 << 10),
                  "METASHARD_SETTLE_MS": "0", "METASHARD_OVERCOMMIT": "1000"}
NAME = re.compile(r"^(ob|fn|cob|cfn)=(.*)$")


def costs(part):
    """The cost lines of a part: what they are the cost of, and instructions. A call's lines, which
    have a callee, say what was spent in the callee and behind it."""
    names, is_call = {}, False
    with open(part) as file:
        for line in file:
            match = NAME.match(line)
            if match:
                names[match[1]] = match[2]
            elif line.startswith("calls="):
                is_call = True
            elif re.match(r"^\d+ \d+$", line) and "fn" in names:
                callee = (names.get("cob", names["ob"]), names["cfn"]) if is_call else None
                yield names["ob"], callee, int(line.split()[1])
                names.pop("cob", None)
                is_call = False


def added_instructions(part, shim, driver, entry):
    """The instructions added in a part that callgrind wrote, and whether the driver was called through the shim. Functions of
    libc that the shim exports, too, count as the simulated driver's own where the driver calls them."""
    added, forwarded = 0, False
    for place, callee, instructions in costs(part):
        if place == driver and callee is not None and callee[0] == shim:
            added -= instructions
        if place != shim or callee is not None and callee[0] == shim:
            continue
        if callee is not None and callee[1] == entry:
            forwarded = True
        else:
            added += instructions
    return added, forwarded


def without_debug_information(folder, *files):
    """Copies, because compilers write debug information that valgrind fails to read."""
    copies = [os.path.join(folder, os.path.basename(file)) for file in files]
    for file, copy in zip(files, copies):
        subprocess.run(["objcopy", "--strip-debug", file, copy], check=True)
    return copies


def count(files, *state, settings=None, is_forwarded=True):
    """By name of the call: instructions added to one, or why they were not counted. Some calls the shim may answer
    itself: then all of its instructions count."""
    with tempfile.TemporaryDirectory() as folder:
        program, kernels, driver, shim, *_ = without_debug_information(folder, *files)
        out = os.path.join(folder, "out")
        run = subprocess.run(
            ["valgrind", "--quiet", "--tool=callgrind", "--toggle-collect=measured",
             "--dump-after=measured", "--compress-strings=no", "--compress-pos=no", "--demangle=no",
             f"--callgrind-out-file={out}", program, kernels, *state],
            env=dict(os.environ, LD_PRELOAD=shim, LD_LIBRARY_PATH=folder,
                     **{**SMALL_GRANULES, **(settings or {})}),
            capture_output=True, text=True)
        if run.returncode != 0:
            sys.exit(f"{program} {' '.join(state)}: exit {run.returncode}\n{run.stderr}")
        parts = iter(sorted(glob.glob(out + ".*"), key=lambda name: int(name.split(".")[-1])))
        counts = {}
        for line in run.stdout.splitlines():
            name, rounds = line.split("\t")
            counts[name] = rounds[1:]
            if rounds[0] != "-":
                added, forwarded = added_instructions(next(parts), shim, driver, name.split(",")[0])
                if is_forwarded and not forwarded:
                    sys.exit(f"{name}: the driver was not called through the shim")
                counts[name] = added / int(rounds)
        return counts


def check_scan(files):
    """Launches while one block is deferred, which they do not reach."""
    faults = 0
    for name, added in count(files, "1").items():
        size = re.search(r", (\d+) bytes$", name)
        if size is None:
            continue
        limit = LAUNCH_LIMIT + WORD_LIMIT * int(size[1]) // 8
        good = isinstance(added, float) and added <= limit
        faults += not good
        print(f"{'ok' if good else 'TOO MANY':8} {name}, another block deferred: {added} of {limit}")
    return faults


def check_pointers(files):
    """Launches with 512 pointers to allocations that have memory, while another is deferred."""
    faults = 0
    for blocks in ("1", "64", "1000"):
        for name, added in count(files, blocks, "pointers").items():
            good = added <= POINTERS_LIMIT
            faults += not good
            print(f"{'ok' if good else 'TOO MANY':8} {name}, {blocks} allocations: {added} of {POINTERS_LIMIT}")
    return faults


def check(files):
    faults = check_scan(files) + check_pointers(files)
    for state in ("0", "1 resident", "1000 resident"):
        for name, added in count(files, *state.split()).items():
            is_launch = name.startswith("cuLaunch")
            limit = LIMIT if is_launch or state == "0" else BOUNDS_LIMIT
            good = isinstance(added, float) and added <= limit
            faults += not good
            print(f"{'ok' if good else 'TOO MANY':8} {name}, {state}: {added}")
    return faults > 0


def table(files):
    columns = [count(files, blocks) for blocks in BLOCKS]
    print("instructions added to a call, by deferred blocks that it does not touch")
    print(f"{'':32}" + "".join(f"{blocks:>14}" for blocks in BLOCKS))
    for name in columns[0]:
        cells = [column[name] for column in columns]
        print(f"{name:32}" + "".join(
            f"{cell:>14}" if isinstance(cell, str) else f"{cell:>14.1f}" for cell in cells))
    return 0


def main():
    for tool in ("valgrind", "objcopy"):
        if shutil.which(tool) is None:
            print(f"skipped: {tool} is not installed")
            return 77
    return (check if "--check" in sys.argv else table)(sys.argv[1:5])


if __name__ == "__main__":
    sys.exit(main())
