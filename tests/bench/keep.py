#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""keep.py FILE COMMAND...: runs the command (a program, or a script of Python), and keeps what it prints in the file as well, for table.py.

When the command fails the file goes: no figure of an older run stands in for one that could not be taken.
"""
import os
import subprocess
import sys


def main():
    path, command = sys.argv[1], sys.argv[2:]
    if command[0].endswith(".py"):
        command = [sys.executable, *command]
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w") as kept:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as process:
            for line in process.stdout:
                sys.stdout.write(line)
                sys.stdout.flush()
                kept.write(line)
    if process.returncode == 0:
        os.replace(path + ".new", path)
    else:
        os.unlink(path + ".new")
        if os.path.exists(path):
            os.unlink(path)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
