#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_gdb.py JOB PRELOAD: tools/gdb.py shows the allocation, claim and lineage of a stopped program. TAP."""
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
from tap import check, end, skip_all  # noqa: E402

GDB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "gdb.py")
JOB, PRELOAD = sys.argv[1:3]
# job.c of the launchers: 8 MiB that are set to one byte; the debugger stops where that is to be brought into memory.
COMMANDS = ["set breakpoint pending on", "set debuginfod enabled off", "break ms_materialise", "run", f"source {GDB}",
            "metashard allocations", "metashard claims", "metashard lineage allocation", "print *allocation",
            "metashard nothing", "kill"]
WANTED = [
    (r"^allocation \d+ at 0x[0-9a-f]+, 8 MiB, device 0, one block, 8 MiB deferred, 0 bytes backed, claimed$", 2,
     "allocations and claims"),
    (r"^\[0x0, 0x800000\) fill 04040404$", 1, "a lineage"),
    (r"^\$1 = allocation \d+ at .*$", 1, "print"),
    (r"usage: metashard allocations", 1, "a command that there is not"),
]


def main():
    gdb = shutil.which("gdb")
    if gdb is None or subprocess.run([gdb, "--batch", "-ex", "python print(1)"], capture_output=True,
                                     check=False).stdout.strip() != b"1":
        skip_all("no gdb with Python here")
    arguments = [gdb, "--batch", "--nx", "-iex", f"set exec-wrapper env LD_PRELOAD={PRELOAD} RANK=3"]
    for command in COMMANDS:
        arguments += ["-ex", command]
    done = subprocess.run([*arguments, JOB], capture_output=True, text=True, timeout=100, check=False)
    text = done.stdout + done.stderr
    if re.search(r"ptrace|not permitted", text):
        skip_all("no process may be traced here")
    for pattern, count, name in WANTED:
        check(name, len(re.findall(pattern, text, re.M)) == count, text)
    return end()


if __name__ == "__main__":
    sys.exit(main())
