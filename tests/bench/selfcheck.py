#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""selfcheck.py PROGRAM DRIVER PRELOAD: what a self-check adds to the first allocation of a process.

*kept*: an earlier process has made it. Prints instructions of the shim (callgrind counts the calling thread; what the driver
does is left out), driver calls (but the questions whether work is done, of which a slow device gets more), and the median time.
Without valgrind or objcopy the exit status is 77.
"""
import glob
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

from instructions import costs, without_debug_information

RUNS = 21
CASES = {"none": "off", "kept": "on", "run": "fresh"}


def environment(folder, case, shim, **more):
    return dict(os.environ, LD_PRELOAD=shim, METASHARD_STATE_DIR=os.path.join(folder, "state"),
                METASHARD_SELFCHECK=CASES[case], **more)


def instructions(folder, case, program, driver, shim):
    out = os.path.join(folder, "out-" + case)
    subprocess.run(["valgrind", "--quiet", "--tool=callgrind", "--toggle-collect=measured", "--dump-after=measured",
                    "--compress-strings=no", "--compress-pos=no", f"--callgrind-out-file={out}", program],
                   env=environment(folder, case, shim, LD_LIBRARY_PATH=folder), check=True, capture_output=True)
    part = min(glob.glob(out + ".*"), key=lambda name: int(name.split(".")[-1]))
    return sum(count for place, callee, count in costs(part)
               if place == shim and (callee is None or callee[0] not in (shim, driver)))


def driver_calls(folder, case, program, shim):
    log = os.path.join(folder, "log-" + case)
    subprocess.run([program], env=environment(folder, case, shim, SIMCUDA_LOG=log), check=True, capture_output=True)
    with open(log) as file:
        return [name for name in (line.split()[0] for line in file) if name not in ("cuStreamQuery", "cuEventQuery")]


def microseconds(folder, case, program, shim):
    runs = (subprocess.run([program], env=environment(folder, case, shim), check=True, capture_output=True, text=True)
            for _ in range(RUNS))
    return statistics.median(float(run.stdout) for run in runs)


def main():
    for tool in ("valgrind", "objcopy"):
        if shutil.which(tool) is None:
            print(f"skipped: {tool} is not installed")
            return 77
    program, driver, shim = map(os.path.abspath, sys.argv[1:4])
    print(f"{'self-check':12} {'instructions':>14} {'driver calls':>14} {'of the resolver':>16} {'us':>10}")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program], env=environment(folder, "kept", shim), check=True, capture_output=True)
        none = driver_calls(folder, "none", program, shim)
        # Valgrind cannot read some debug information. The copies are another driver: they have a text of their own.
        with tempfile.TemporaryDirectory() as copies:
            files = without_debug_information(copies, program, driver, shim)
            subprocess.run([files[0]], env=environment(copies, "kept", files[2], LD_LIBRARY_PATH=copies), check=True,
                           capture_output=True)
            counted = {case: instructions(copies, case, *files) for case in CASES}
        for case in CASES:
            calls = driver_calls(folder, case, program, shim)
            asked = sum(call.startswith("cuGetProcAddress") for call in calls) - \
                sum(call.startswith("cuGetProcAddress") for call in none)
            print(f"{case:12} {counted[case] - counted['none']:>14,} {len(calls) - len(none) - asked:>14} {asked:>16} "
                  f"{microseconds(folder, case, program, shim):>10.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
