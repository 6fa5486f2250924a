#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_options.py --meson 'COMMAND introspect' --cuda DIR: what configuring makes of a machine's packages. TAP.

A compiler that does not find the archive of jemalloc stands for a machine where nobody installs it.
"""
import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
from tap import check, end  # noqa: E402

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COMPILER = """#!/bin/sh
case " $* " in
*" -print-file-name=libjemalloc_pic.a "*) echo "${1#*=}" ;;
*) exec %s "$@" ;;
esac
"""


class Machine:
    def __init__(self, folder, meson, cuda):
        self.folder, self.meson = folder, meson
        self.options = ["-Dtests=false", f"-Dcuda-headers={cuda}"]
        self.compiler = os.path.join(folder, "cc")
        with open(self.compiler, "w", encoding="utf-8") as file:
            file.write(COMPILER % shutil.which("cc"))
        os.chmod(self.compiler, 0o755)

    def configure(self, *options, compiler=None):
        """(exit status, output, names of the targets)"""
        build = tempfile.mkdtemp(dir=self.folder)
        done = subprocess.run([*self.meson, "setup", build, SOURCE, *self.options, *options],
                              env=dict(os.environ, CC=compiler or self.compiler, CFLAGS="", LDFLAGS=""), capture_output=True,
                              text=True, check=False)
        targets = []
        if done.returncode == 0:
            text = subprocess.run([*self.meson, "introspect", build, "--targets"], capture_output=True, text=True,
                                  check=True).stdout
            targets = [target["name"] for target in json.loads(text)]
        return done.returncode, done.stdout + done.stderr, targets


def summary_of(text, key):
    found = re.search(rf"^ +{key} *: (.*)$", text, re.M)
    return found[1] if found else "(nothing)"


def check_without_packages(machine):
    status, text, targets = machine.configure()
    check("a build without the package of jemalloc is configured", status == 0, text)
    check("the heap is libc's, and the summary says why",
          summary_of(text, "heap").startswith("libc: libjemalloc_pic.a was not found"), text)
    check("the tools are built", {"metashard-plan", "metashard-dump"} <= set(targets), targets)
    status, text, _ = machine.configure("-Dheap=jemalloc")
    check("a heap that is asked for and cannot be had is an error", status != 0 and "libjemalloc_pic.a was not found" in text, text)


def check_switched_off(machine):
    status, text, _ = machine.configure("-Dheap=libc")
    check("jemalloc can be switched off", status == 0 and summary_of(text, "heap") == "libc", text)


def check_without_nccl(machine):
    """Where its header cannot be used, what needs it is left out, and all else is there."""
    headers = tempfile.mkdtemp(dir=machine.folder)
    with open(os.path.join(headers, "nccl.h"), "w", encoding="utf-8") as file:
        file.write("#error missing\n")
    status, text, targets = machine.configure("-Dtests=true", f"-Dnccl-headers={headers}", compiler="cc")
    check("the tests can be built without the header of NCCL", status == 0 and "fuzz" in targets and
          "nccl" not in targets, text if status else targets)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--meson", required=True)
    parser.add_argument("--cuda", required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(folder, shlex.split(options.meson)[:-1], options.cuda)
        check_without_packages(machine)
        check_switched_off(machine)
        check_without_nccl(machine)
    return end()


if __name__ == "__main__":
    raise SystemExit(main())
