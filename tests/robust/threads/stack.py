#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""stack.py PROGRAM KERNELS SHIM: a thread needs little more stack under the shim than without it (docs/limits.md). TAP."""
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
from state_page import read_dump  # noqa: E402
from tap import check, end  # noqa: E402

MIB = 1 << 20
MOST = 48 << 10


def measure(program, kernels, folder, **settings):
    environment = dict(os.environ, SIMCUDA_MEMORY_MIB="150", **settings)
    done = subprocess.run([program, kernels, f"{folder}/data"], env=environment, capture_output=True, text=True, timeout=120)
    return int(done.stdout) if done.returncode == 0 else f"exit status {done.returncode}: {done.stderr[-600:]}"


def main():
    program, kernels, shim = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/data", "wb") as file:
            file.write(os.urandom(16 * MIB))
        os.utime(f"{folder}/data", (1, 1))
        with open(f"{folder}/rules", "w") as file:
            file.write("write-only uniform32\n")
        seen = measure(program, kernels, folder, LD_PRELOAD=shim, METASHARD_KERNEL_RULES=f"{folder}/rules",
                       METASHARD_DUMP=f"{folder}/dump", METASHARD_LOG="debug")
        dump = {}
        if isinstance(seen, int):
            dump = read_dump(f"{folder}/dump")
    print(f"# {seen} bytes of stack with the shim")
    is_good = isinstance(seen, int) and seen <= MOST and dump["recorded_launches"] == 16 and dump["evicted_bytes"] > 0
    check(f"no call needs more than {MOST} bytes of stack, all in all", is_good, dump)
    return end()


if __name__ == "__main__":
    sys.exit(main())
