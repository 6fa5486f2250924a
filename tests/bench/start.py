#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""start.py PROGRAM DRIVER PRELOAD [--check]: what the preload adds to the start of a process.

Instructions in user space, the dynamic linker's included (callgrind counts all threads), and system calls (strace): of
/bin/true, which does not use CUDA; of PROGRAM (context.c), which makes a context and allocates nothing; and of PROGRAM when it
allocates, beside as many pages of ended processes as are kept. Both sides run under the same tool, so what the tool itself
adds goes away in the difference. --check: compares with LIMITS. Without valgrind, objcopy or strace the exit status is 77.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

from instructions import without_debug_information

# At most so many added; none: no limit. How many there are without depends on the machine, and on where the dynamic linker
# looks for libraries first.
LIMITS = {
    ("/bin/true", "instructions"): 30_000,
    ("/bin/true", "system calls"): 20,
    ("cuInit and a context", "instructions"): 60_000,
    ("cuInit and a context", "system calls"): 30,
}
KEPT_PAGES = 16  # by METASHARD_STATE_KEPT_BYTES


def run(command, environment, *tool):
    done = subprocess.run([*tool, *command], env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join([*tool, *command])}: exit {done.returncode}\n{done.stderr}")
    return done.stderr


def instructions(command, environment):
    found = re.search(r"Collected : (\d+)", run(command, environment, "valgrind", "--tool=callgrind",
                                                "--callgrind-out-file=/dev/null"))
    return int(found[1])


def system_calls(command, environment, folder):
    """Those of the program itself: from its execve on, which strace reports as well."""
    log = os.path.join(folder, "calls")
    # Not as `strace -E`: the preload is the program's alone.
    preload = environment.get("LD_PRELOAD")
    tool = ["strace", "-f", "-qq", "-o", log] + (["-E", f"LD_PRELOAD={preload}"] if preload else [])
    run(command, {name: value for name, value in environment.items() if name != "LD_PRELOAD"}, *tool)
    with open(log) as file:
        return sum(bool(re.match(r"\d+ +\w+\(", line)) for line in file)


def fill(folder, program, environment):
    """Leaves pages of ended processes, and what a self-check found."""
    for _ in range(KEPT_PAGES + 1):
        run([program, "allocate"], environment)
    pages = len([name for name in os.listdir(os.path.join(folder, "state")) if name.endswith(".state")])
    if not KEPT_PAGES <= pages <= KEPT_PAGES + 1:
        sys.exit(f"{pages} pages of ended processes in the folder of the state page, not {KEPT_PAGES}")


def measure(folder, program, shim):
    """By case: what, without and with."""
    plain = {name: value for name, value in os.environ.items()
             if name != "LD_PRELOAD" and not name.startswith("METASHARD")}
    plain.update(LD_LIBRARY_PATH=folder, METASHARD_STATE_DIR=os.path.join(folder, "state"), SIMCUDA_GRANULE_KIB="64", METASHARD_MIN_BYTES="128K",
                 METASHARD_STATE_KEPT_BYTES=f"{4 * KEPT_PAGES}M")
    preloaded = dict(plain, LD_PRELOAD=shim)
    fill(folder, program, preloaded)
    cases = {"/bin/true": ["/bin/true"], "cuInit and a context": [program], "the first allocation": [program, "allocate"]}
    for name, command in cases.items():
        yield name, "instructions", *(instructions(command, one) for one in (plain, preloaded))
        yield name, "system calls", *(system_calls(command, one, folder) for one in (plain, preloaded))


def main():
    for tool in ("valgrind", "objcopy", "strace"):
        if shutil.which(tool) is None:
            print(f"skipped: {tool} is not installed")
            return 77
    if subprocess.run(["strace", "-o", "/dev/null", "/bin/true"], capture_output=True).returncode != 0:
        print("skipped: strace does not work here")
        return 77
    files = map(os.path.abspath, sys.argv[1:4])
    faults = 0
    print(f"{'':24}{'':14}{'without':>12}{'with':>12}{'added':>12}")
    with tempfile.TemporaryDirectory() as folder:
        program, _, shim = without_debug_information(folder, *files)
        for name, what, without, with_shim in measure(folder, program, shim):
            added, limit = with_shim - without, LIMITS.get((name, what))
            is_over = limit is not None and added > limit
            faults += is_over
            print(f"{name:24}{what:14}{without:12,}{with_shim:12,}{added:12,}"
                  + (f"  TOO MANY: at most {limit:,}" if is_over and "--check" in sys.argv else ""))
    return "--check" in sys.argv and faults > 0


if __name__ == "__main__":
    sys.exit(main())
