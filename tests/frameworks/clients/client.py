# SPDX-License-Identifier: Apache-2.0
"""Runs programs that nobody here wrote on the simulated driver, without and with the shim.

The environment says where things are: SIM_FOLDER (of libcuda.so.1), SIM_FOLDER_12 (the same with
the exports of CUDA 12.9), SIM_PRELOAD (what LD_PRELOAD has to be for the shim) and SIM_SANITIZER.
Output is TAP.
"""
import difflib
import glob
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
from state_page import read_facts  # noqa: E402

TIMEOUT_SECONDS = 300


class Tap:
    """Numbered results; end() prints the plan and ends the program."""

    def __init__(self):
        self.count = 0
        self.failed = 0

    def check(self, name, passed, *details):
        self.count += 1
        self.failed += not passed
        print(f"{'ok' if passed else 'not ok'} {self.count} {name}")
        for detail in details if not passed else ():
            for line in str(detail).splitlines():
                print(f"# {line}")

    def equal(self, name, seen, wanted):
        self.check(name, seen == wanted, f"seen:   {seen}", f"wanted: {wanted}")

    def end(self):
        print(f"1..{self.count}")
        sys.exit(self.failed > 0 or self.count == 0)


def skip(why):
    """The whole test is skipped, visibly."""
    print(f"1..0 # SKIP {why}")
    sys.exit(0)


def skip_under_sanitizers():
    if os.environ.get("SIM_SANITIZER", "none") != "none":
        skip("a program built without the sanitizer cannot load instrumented libraries")


class Run:
    """One run: its output, the statistics and call log of the driver, the dump of the shim."""

    def __init__(self, argv, shim=False, folder=None, settings=None):
        folder = folder or os.environ["SIM_FOLDER"]
        with tempfile.TemporaryDirectory(prefix="metashard-client-") as scratch:
            environment = dict(os.environ)
            environment.pop("LD_PRELOAD", None)
            # The program's own files are found as before, the driver before them.
            inherited = os.environ.get("LD_LIBRARY_PATH", "")
            environment["LD_LIBRARY_PATH"] = folder + (":" + inherited if inherited else "")
            environment["SIMCUDA_LOG"] = os.path.join(scratch, "log.%p")
            environment["SIMCUDA_STATS"] = os.path.join(scratch, "stats.%p")
            if shim:
                environment["LD_PRELOAD"] = os.environ["SIM_PRELOAD"]
                environment["METASHARD_DUMP"] = os.path.join(scratch, "dump.%p")
            environment.update(settings or {})
            done = subprocess.run(argv, env=environment, capture_output=True, check=False,
                                  timeout=TIMEOUT_SECONDS, stdin=subprocess.DEVNULL)
            self.status = done.returncode
            self.output = done.stdout.decode(errors="replace")
            self.errors = done.stderr.decode(errors="replace")
            self.log = "".join(read_all(scratch, "log")).splitlines()
            self.stats = merge(scratch, "stats")
            self.dump = merge(scratch, "dump")

    def tell(self):
        """For the details of a failed check."""
        return f"exit status {self.status}\n{self.output}{self.errors}"

    def differences(self, plain):
        """The same, but of the output only where it differs from that of another run."""
        changed = difflib.unified_diff(plain.output.splitlines(), self.output.splitlines(),
                                       "without the shim", "this run", n=0, lineterm="")
        return "\n".join([f"exit status {self.status}", *changed, self.errors])


def read_all(folder, kind):
    for path in sorted(glob.glob(os.path.join(folder, kind + ".*"))):
        with open(path, encoding="utf-8") as file:
            yield file.read()


def merge(folder, kind):
    """The sums over the processes of a run; empty when none of them wrote such a file."""
    total = {}
    for path in glob.glob(os.path.join(folder, kind + ".*")):
        for key, value in read_facts(path).items():
            if isinstance(value, int):
                total[key] = total.get(key, 0) + value
    return total


def is_clean(run):
    """The program used the driver, and broke none of its rules."""
    return bool(run.stats) and run.stats["illegal_accesses"] == 0 and run.stats["races"] == 0
