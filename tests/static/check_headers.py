#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_headers.py BUILD [NCCL_H]: everything compiles with the headers that a bare machine has.

A machine that has much installed hides what is missing on others. So each file that the build folder compiles is
checked once more (syntax only), with no include folder but the project's own, the compiler's, and one with the
files of libc's packages and the kernel's, and the headers of CUDA as ./quickstart fetches them, in .headers/.
Exit status 77, with a line that says why, where those cannot be told apart.
"""
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FETCHED = os.path.join(SOURCE, ".headers", "nvidia", "cu13", "include")
# Built only where the headers of a library are that a bare machine has no use for.
OPTIONAL = tuple(os.path.join(SOURCE, *name) for name in (
    ("tools", "simcuda", "cublas", ""), ("tools", "simcuda", "tests", "test_cublas.c"),
    ("tests", "robust", "overwrite", "server.c")))
PACKAGES = ["libc6-dev", "linux-libc-dev"]
DROPPED_WITH_NEXT = ("-o", "-MQ", "-MF", "-isystem")


def cannot(why):
    print(f"skipped: {why}")
    sys.exit(77)


def libc_headers(folder):
    """Links in folder to what Debian's packages put into /usr/include; returns the include folders."""
    listed = subprocess.run(["dpkg", "-L", *PACKAGES], capture_output=True, text=True, check=False).stdout
    names = [name for name in listed.splitlines() if name.startswith("/usr/include/")]
    if "/usr/include/stdio.h" not in names:
        cannot("dpkg does not tell which headers are libc's")
    for name in names:
        if not os.path.isdir(name):
            os.makedirs(os.path.dirname(folder + name), exist_ok=True)
            os.symlink(name, folder + name)
    # Debian 13's linux-libc-dev has the headers of all processors.
    return [folder + "/usr/include", os.path.join(folder + "/usr/include", sysconfig.get_config_var("MULTIARCH") or "")]


def compiler_headers(compiler):
    """gcc and clang have their own beside what they call their resources."""
    for question in (["-print-file-name=include"], ["-print-resource-dir"]):
        answer = subprocess.run([*compiler, *question], capture_output=True, text=True, check=False).stdout.strip()
        for place in (answer, answer + "/include"):
            if os.path.exists(place + "/stddef.h"):
                return place
    cannot(f"{compiler} does not tell where its headers are")
    return None


def is_ours(build, directory, flag):
    path = os.path.realpath(os.path.join(directory, flag[len("-I"):]))
    return any(os.path.commonpath([path, place]) == place for place in (SOURCE, build))


def bare_command(entry, build, includes):
    """The compiler's command, less its output and every include folder that is not the project's."""
    words = shlex.split(entry["command"])
    if os.path.basename(words[0]) == "ccache":
        words = words[1:]
    first = next(i for i, word in enumerate(words) if word.startswith("-"))
    kept, skip = words[:first], False
    kept += ["-fsyntax-only", "-fdiagnostics-color=never", "-nostdinc"]
    for word in words[first:]:
        if skip or word in ("-MD", "-c", "-fdiagnostics-color=always"):
            skip = False
        elif word in DROPPED_WITH_NEXT:
            skip = True
        elif not word.startswith("-I") or is_ours(build, entry["directory"], word):
            kept.append(word)
    for place in includes:
        kept += ["-isystem", place]
    return kept


def check(job):
    name, directory, command = job
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"{name}:\n{done.stderr}"


def main():
    build = os.path.realpath(sys.argv[1])
    if not os.path.exists(os.path.join(FETCHED, "crt", "host_defines.h")):
        cannot(f"the headers of CUDA are not in {FETCHED} (./check fetches them)")
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        entries = {os.path.realpath(os.path.join(entry["directory"], entry["file"])): entry for entry in json.load(file)}
    entries = {name: entry for name, entry in entries.items() if name.endswith(".c") and not name.startswith(OPTIONAL)}
    with tempfile.TemporaryDirectory() as folder:
        compiler = [word for word in shlex.split(next(iter(entries.values()))["command"])[:2] if word[0] != "-"][-1:]
        includes = [FETCHED, compiler_headers(compiler), *libc_headers(folder)]
        if len(sys.argv) > 2:
            shutil.copy(sys.argv[2], folder)
            includes.append(folder)
        jobs = [(os.path.relpath(name, SOURCE), entry["directory"], bare_command(entry, build, includes))
                for name, entry in sorted(entries.items())]
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            faults = [fault for fault in pool.map(check, jobs) if fault is not None]
    print(f"{len(jobs)} files, {len(faults)} do not compile with the headers of a bare machine")
    print("\n".join(faults))
    return 1 if faults or len(jobs) < 100 else 0


if __name__ == "__main__":
    sys.exit(main())
