#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""analyze.py TOOL --build DIR [--jobs N] [--all] [FILE...]: an analyzer over shim/, runtime/ and tools/.

TOOL is clang-tidy (checks in .clang-tidy, where each one that is left out has its reason), cppcheck (suppressions in
tests/static/cppcheck.txt) or gcc (-fanalyzer). Each file is analyzed as the build folder compiles it. Any finding is a
failure. A file that has not changed since it was found clean, with all that it includes, is left out (--all: not); what is known
of that is in the build folder. Without the tool, or with another version of it than the one that decides, the exit status is 77.
"""
import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDERS = ("shim/", "runtime/", "tools/")
SIMULATED = "tools/simcuda/"  # runs in tests
# The versions that decide: another one has other findings of C that is right.
VERSIONS = {"clang-tidy": "LLVM version 14.", "cppcheck": "Cppcheck 2.10", "gcc": " 12."}
SUPPRESSIONS = os.path.join(SOURCE, "tests", "static", "cppcheck.txt")
# False findings of gcc 12's analyzer, by file.
GCC_OFF = {
    # The analyzer takes a pointer that is copied with memcpy, as a value or to a pointer's place, for a number that was never set.
    "runtime/kernel/call.c": ["-Wno-analyzer-use-of-uninitialized-value"],
    "runtime/loading/transfer.c": ["-Wno-analyzer-use-of-uninitialized-value"],
    "tools/dump/find_pages.c": ["-Wno-analyzer-malloc-leak"],  # what a list that grew holds
    # There are three values on the stack, so there is a stack.
    "runtime/checkpoint/pickle.c": ["-Wno-analyzer-null-dereference"],
    # Each letter is that of a row, which tests/static/check_manuals.py holds; getopt_long gives no others.
    "tools/command_line.c": ["-Wno-analyzer-null-dereference"],
    # There are as many moments as it is told, more than two.
    "tools/dump/merge.c": ["-Wno-analyzer-use-of-uninitialized-value"],
}
CPPCHECK = ("--std=c11", "--enable=warning,performance,portability", "--inline-suppr", "--quiet", "--error-exitcode=1",
            f"--suppressions-list={SUPPRESSIONS}", "--template={file}:{line}:{column}: {severity}: {message} [{id}]",
            "-D__linux__", "-D__x86_64__", "-D__GNUC__=12", "-D_GNU_SOURCE")


def compilations(build):
    """{file below SOURCE: (folder, compiler's arguments)}"""
    with open(os.path.join(build, "compile_commands.json")) as file:
        entries = json.load(file)
    found = {}
    for entry in entries:
        path = os.path.normpath(os.path.join(entry["directory"], entry["file"]))
        name = os.path.relpath(path, SOURCE)
        if name.startswith(FOLDERS) and not name.startswith(SIMULATED) and name.endswith(".c"):
            arguments = shlex.split(entry["command"])
            found[name] = (entry["directory"], arguments)
    return found


def without_output(arguments):
    """The command without what says where things go."""
    kept, skip = [], False
    for word in arguments:
        if skip or word in ("-c", "-MD", "-MMD"):
            skip = False
        elif word in ("-o", "-MQ", "-MF"):
            skip = True
        else:
            kept.append(word)
    return kept


def command_of(tool, build, name, arguments):
    path = os.path.join(SOURCE, name)
    if tool == "clang-tidy":
        return [tool, "-p", build, "--quiet", "--warnings-as-errors=*", path]
    if tool == "cppcheck":
        includes = [word for word in arguments if word.startswith("-D") and "_FORTIFY" not in word]
        return [tool, *CPPCHECK, *includes, f"-I{SOURCE}", path]
    # Optimised code has little left to say anything about.
    return [*without_output(arguments), "-O0", "-U_FORTIFY_SOURCE", "-Wno-error", "-fdiagnostics-color=never",
            "-fanalyzer", *GCC_OFF.get(name, []), "-S", "-o", "/dev/null"]


def fingerprint(tool, version, folder, arguments, command):
    """A hash of all that the finding depends on: the preprocessed source, the command, the settings."""
    text = subprocess.run([*without_output(arguments), "-E"], cwd=folder, capture_output=True, check=False).stdout
    digest = hashlib.sha256(text)
    for part in (tool, version, *command):
        digest.update(part.encode() + b"\0")
    for path in (os.path.join(SOURCE, ".clang-tidy"), SUPPRESSIONS):
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def is_finding(line):
    return re.search(r": (warning|error|performance|portability|style)\b", line) is not None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tool", choices=("clang-tidy", "cppcheck", "gcc"))
    parser.add_argument("--build", required=True)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("files", nargs="*")
    options = parser.parse_intermixed_args()
    options.build = os.path.abspath(options.build)
    if shutil.which(options.tool) is None:
        print(f"skipped: {options.tool} is not installed")
        return 77
    version = subprocess.run([options.tool, "--version"], capture_output=True, text=True, check=True).stdout
    if VERSIONS[options.tool] not in version:
        print(f"skipped: only {options.tool} of version {VERSIONS[options.tool].strip()} decides; this is\n{version}")
        return 77
    sources = compilations(options.build)
    if options.tool == "gcc" and not any("gcc" in arguments[0] or arguments[0] in ("cc", "ccache")
                                         for _, arguments in sources.values()):
        print("skipped: the build folder is not one of gcc")
        return 77
    wanted = [name for name in sorted(sources) if not options.files or name in options.files]
    if not options.files and len(wanted) < 100:
        sys.exit(f"only {len(wanted)} files in {options.build}, that cannot be right")
    stamps = os.path.join(options.build, "analysis", options.tool)
    os.makedirs(stamps, exist_ok=True)

    def analyze(name):
        """(findings, was it analyzed)"""
        folder, arguments = sources[name]
        command = command_of(options.tool, options.build, name, arguments)
        stamp = os.path.join(stamps, name.replace("/", "-"))
        mark = fingerprint(options.tool, version, folder, arguments, command)
        if not options.all and os.path.exists(stamp):
            with open(stamp) as file:
                if file.read() == mark:
                    return "", False
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        text = done.stdout + (done.stderr if options.tool != "clang-tidy" else "")
        if any(is_finding(line) for line in text.splitlines()) or done.returncode != 0:
            return text or f"{name}: exit status {done.returncode}\n{done.stderr}", True
        with open(stamp, "w") as file:
            file.write(mark)
        return "", True

    began, analyzed, faults = time.monotonic(), 0, 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for name, (text, fresh) in zip(wanted, pool.map(analyze, wanted)):
            analyzed += fresh
            faults += bool(text)
            if text:
                print(text, flush=True)
    used = os.times()
    print(f"{options.tool}: {len(wanted)} files, {analyzed} of them analyzed, {faults} with findings; "
          f"{time.monotonic() - began:.0f} s, {used.children_user + used.children_system:.0f} s of processor time")
    return faults > 0


if __name__ == "__main__":
    sys.exit(main())
