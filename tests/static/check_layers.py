#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_layers.py RUNTIME_ARCHIVE: who may know whom.

From source: runtime/ includes nothing of shim/, tools/ or tests/; shim/ nothing of tools/ or tests/; tools/simcuda
nothing of anybody's; nobody else but runtime/config, the launcher's rank and a plan's reads the environment; a number that is given to syscall() is a long,
as the kernel reads all of the register, or of the place on the stack. From the
object files: the runtime calls no cu*, nccl* or dl* function, which would come back into the shim.
"""
import os
import re
import subprocess
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FORBIDDEN = {"runtime": ("shim/", "tools/", "tests/"), "shim": ("tools/", "tests/"),
             "tools": ("shim/", "tests/")}
MAY_READ_ENVIRONMENT = {"runtime/config/config.c", "runtime/base/launcher.c", "runtime/plan/plan.c"}


SYSCALL = re.compile(r"\bsyscall\(((?:[^();]|\([^();]*\))*)\)")
INT = re.compile(r"0[0-7]*|[1-9][0-9]*|0x[0-9a-fA-F]+")


def sources(folder):
    for path, _, names in os.walk(os.path.join(SOURCE, folder)):
        for name in names:
            if name.endswith((".c", ".h", ".S", ".def")):
                yield os.path.relpath(os.path.join(path, name), SOURCE)


def int_of_syscall(text):
    """A number that leaves half of its place as it was: all of it is an address's or an offset's."""
    return next((number for call in SYSCALL.findall(text)
                 for number in re.sub(r"\([^()]*\)", "", call).split(",") if INT.fullmatch(number.strip())), None)


def check_sources():
    faults, files = [], 0
    if int_of_syscall("syscall(SYS_mmap, f(0, 0L), 1UL, at, \n 0);") is None:
        faults.append("an int of syscall() is not seen")
    for folder, forbidden in FORBIDDEN.items():
        for name in sources(folder):
            if name.startswith("tools/simcuda/"):
                continue
            files += 1
            with open(os.path.join(SOURCE, name)) as file:
                text = file.read()
            for included in re.findall(r'#include "([^"]+)"', text):
                if included.startswith(forbidden):
                    faults.append(f"{name} includes {included}")
                if not os.path.exists(os.path.join(SOURCE, included)):
                    faults.append(f"{name} includes {included}, not by its path in the project")
            if re.search(r"\bgetenv\s*\(|\bsecure_getenv\s*\(", text) and \
                    name not in MAY_READ_ENVIRONMENT and "heap_jemalloc" not in name:
                faults.append(f"{name} reads the environment")
            if int_of_syscall(text):
                faults.append(f"{name}: syscall() takes {int_of_syscall(text).strip()}, which is no long")
            if "SPDX-License-Identifier: Apache-2.0" not in text:
                faults.append(f"{name} has no SPDX line")
    for name in sources("tools/simcuda"):
        with open(os.path.join(SOURCE, name)) as file:
            faults += [f"{name} includes {included}, which is not the simulated driver's own" for included in
                       re.findall(r'#include "([^"]+)"', file.read()) if not included.startswith("tools/simcuda/")]
    if files < 20:
        faults.append(f"only {files} files found, that cannot be right")
    return faults


def check_objects(archive):
    text = subprocess.run(["nm", "--undefined-only", archive], check=True, capture_output=True,
                          text=True).stdout
    names = {line.split()[-1] for line in text.splitlines() if line.startswith(" ")}
    if "memcpy" not in names:
        return [f"{archive}: no undefined memcpy, that cannot be right"]
    return [f"the runtime calls {name}" for name in sorted(names)
            if re.match(r"cu[A-Z]|nccl|dlsym|dlopen|dlvsym", name)]


def main():
    faults = check_sources() + check_objects(sys.argv[1])
    print("\n".join(faults))
    return len(faults) > 0


if __name__ == "__main__":
    sys.exit(main())
