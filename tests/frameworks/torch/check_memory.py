#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_memory.py SHIM [HOW...]: programs that find out how much fits (memory_program.py), without and with the shim: the same
number of tries, the same batch, the same sums and parameters. On a simulated device of 128 MiB. TAP.

accelerate is in the environment of tests/frameworks/systems/venv.sh ($SYSTEMS_VENV); it is skipped where that is not there.
"""
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from check_wheel import Tap

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "memory_program.py")
SYSTEMS = os.environ.get("SYSTEMS_VENV") or os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "metashard", "systems")
BATCH = {"halve": 16, "first": 40, "inside": 8, "accelerate": 6, "info": 0, "fraction": 8, "whole": 8}


def python_of(how):
    return os.path.join(SYSTEMS, "bin", "python") if how == "accelerate" else sys.executable


def run(how, shim, memory_mib):
    environment = dict(os.environ, SIMCUDA_POISON="1", SIMCUDA_MEMORY_MIB=str(memory_mib))
    environment["LD_PRELOAD"] = ":".join(filter(None, [shim, os.environ.get("LD_PRELOAD")]))
    return subprocess.run([python_of(how), PROGRAM, how, str(BATCH[how])], env=environment, capture_output=True, text=True,
                          timeout=1200, check=False)


def both(how, shim):
    """(good, what to show when it is not). A model larger than the device cannot be made without the shim."""
    if how == "whole":
        alone, seen = run(how, "", 1024), run(how, shim, 128)
    else:
        alone, seen = run(how, "", 128), run(how, shim, 128)
    good = alone.returncode == 0 and (seen.returncode, seen.stdout) == (0, alone.stdout)
    return good, f"{alone.stdout}{alone.stderr[-600:]}\n{seen.stdout}{seen.stderr[-1200:]}"


def main():
    tap = Tap()
    shim = os.path.abspath(sys.argv[1])
    wanted = sys.argv[2:] or [how for how in BATCH if os.path.exists(python_of(how))]
    for how in BATCH if not sys.argv[2:] else ():
        if how not in wanted:
            print(f"# {how} is left out: there is no {python_of(how)}")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for how, (good, detail) in zip(wanted, pool.map(lambda how: both(how, shim), wanted)):
            tap.check(f"{how}: as without the shim", good, detail)
    tap.end()


main()
