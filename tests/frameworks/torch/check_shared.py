#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_shared.py SHIM [HOW...]: CUDA tensors in several processes (shared_program.py), without and with the shim: each process
sees the same bytes. TAP.
"""
import os
import subprocess
import sys

from check_wheel import Tap

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shared_program.py")
WAYS = ("queue", "back", "reduce")
SETTINGS = ({}, {"METASHARD_MIN_BYTES": "1"}, {"METASHARD_MIN_BYTES": "1", "SIMCUDA_DELAY_US": "1000"},
            {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})


def run(how, shim, setting):
    environment = dict(os.environ, SIMCUDA_POISON="1", **setting)
    environment["LD_PRELOAD"] = ":".join(filter(None, [shim, os.environ.get("LD_PRELOAD")]))
    return subprocess.run([sys.executable, PROGRAM, how], env=environment, capture_output=True, text=True, timeout=600, check=False)


def main():
    tap = Tap()
    shim = os.path.abspath(sys.argv[1])
    for how in sys.argv[2:] or WAYS:
        alone = run(how, "", {})
        tap.check(f"{how}: without the shim", alone.returncode == 0 and "ends with 0" in alone.stdout, alone.stderr[-1500:])
        for setting in SETTINGS:
            seen = run(how, shim, setting)
            good = (seen.returncode, seen.stdout) == (0, alone.stdout)
            tap.check(f"{how}, {setting or 'as it is'}: as without the shim", good, f"{alone.stdout}\n{seen.stdout}{seen.stderr[-1500:]}")
    tap.end()


main()
