#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""unused.py PRELOAD: a process that never uses CUDA pays nothing.

Under the preload, with every setting given, such a process has no more threads, no more open
files, prints nothing, leaves no file behind, and maps nothing but the library itself.
"""
import os
import subprocess
import sys
import tempfile

SCRIPT = ("import os; print(len(os.listdir('/proc/self/task'))); "
          "print(len(os.listdir('/proc/self/fd')))")


def run(folder, preload):
    environment = dict(os.environ, METASHARD_LOG=f"trace:{folder}/log",
                       METASHARD_DUMP=f"{folder}/dump", METASHARD_MIN_BYTES="nonsense",
                       METASHARD_NO_SUCH="1", METASHARD_PLAN="nowhere")
    if preload:
        environment["LD_PRELOAD"] = preload
    done = subprocess.run([sys.executable, "-S", "-c", SCRIPT], env=environment, check=True,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return done.stdout, done.stderr, sorted(os.listdir(folder))


def main():
    with tempfile.TemporaryDirectory() as folder:
        wanted = run(folder, None)
        seen = run(folder, sys.argv[1])
    if seen != wanted:
        print(f"without the preload: {wanted}\nwith it: {seen}")
    return seen != wanted


if __name__ == "__main__":
    sys.exit(main())
