#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_imports.py NM SHIM: every function of libc that the shim calls can be made to fail, or a reason why not is given."""
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
from tap import end, report  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))


def plain(name):
    """Without the C library's own twins: of the standard's version, and with checks."""
    name = re.sub(r"^__isoc\d\d_", "", name.partition("@")[0])
    return re.sub(r"^__(\w+)_chk$", r"\1", name)


def interposed():
    with open(os.path.join(HERE, "interpose.c")) as file:
        text = re.sub(r"^#define.*(\\\n.*)*", "", file.read(), flags=re.M)
    rows = re.findall(r"^(?:FILE_ROW|OPENS|RETURNS|MOVES|FUNCTION|STREAM_ROW|ROW)\(.*?(\w+),\s*\(", text, flags=re.M | re.S)
    return set(rows)


def main():
    nm, shim = sys.argv[1:3]
    imported = {plain(line.split()[-1]) for line in subprocess.run(
        [nm, "-D", "--undefined-only", shim], capture_output=True, text=True, check=True).stdout.splitlines()}
    with open(os.path.join(HERE, "imports.txt")) as file:
        excused = {word for line in file if not line.startswith("#") for word in line.split()}
    missing = sorted(imported - interposed() - excused)
    both = sorted(interposed() & excused)
    report("every import can fail, or cannot for a reason",
           "\n".join(f"neither in interpose.c nor in imports.txt: {name}" for name in missing))
    report("no import is both", "\n".join(f"in both: {name}" for name in both))
    return end()


if __name__ == "__main__":
    sys.exit(main())
