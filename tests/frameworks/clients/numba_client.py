# SPDX-License-Identifier: Apache-2.0
"""numba's device arrays, without and with the shim: the same output, line by line.

It opens the driver by its path (NUMBA_CUDA_DRIVER) and looks for the newest suffix of each name
first, so it needs the exports of CUDA 12.
"""
import os
import subprocess
import sys

from client import Run, Tap, is_clean, skip, skip_under_sanitizers

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "numba_program.py")

SHIM_SETTINGS = {
    "with the shim": {},
    "deferring everything": {"METASHARD_MIN_BYTES": "1"},
    "without snapshots": {"METASHARD_MIN_BYTES": "1", "METASHARD_SNAPSHOT_BYTES": "0"},
    "switched off": {"METASHARD": "off"},
}


def find_python():
    """A Python that has numba: this one, or the distribution's."""
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            probe = subprocess.run([python, "-c", "import numba.cuda"], check=False,
                                   capture_output=True)
        except OSError:
            continue
        if probe.returncode == 0:
            return python
    return None


def main():
    skip_under_sanitizers()
    python = find_python()
    if python is None:
        skip("no Python with numba")
    folder = os.environ["SIM_FOLDER_12"]
    driver = {"NUMBA_CUDA_DRIVER": os.path.join(folder, "libcuda.so.1")}
    argv = [python, PROGRAM]
    tap = Tap()
    plain = Run(argv, folder=folder, settings=driver)
    tap.check("the program without the shim", plain.status == 0 and "WRONG" not in plain.output
              and plain.output.endswith("done\n") and is_clean(plain), plain.tell(), plain.stats)
    for how, settings in SHIM_SETTINGS.items():
        run = Run(argv, shim=True, folder=folder, settings={**driver, **settings})
        tap.check(how, run.output == plain.output and run.status == 0 and is_clean(run),
                  run.differences(plain), run.stats)
        if how == "deferring everything":
            tap.check(f"{how}: was deferred", run.dump.get("deferred_allocations", 0) > 10,
                      run.dump)
    tap.end()


main()
