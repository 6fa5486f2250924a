# SPDX-License-Identifier: Apache-2.0
"""
Runs the scenarios of a program (scenario.h) without and with the shim, and reports as TAP. With METASHARD=verify in the
environment outputs are compared, and nothing may differ; figures are those of the shadows too, and are not checked.
"""
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
import tap  # noqa: E402
from state_page import read_dump  # noqa: E402

RULES = """# for the tests
write-only fill32
write-only  uniform32

writeonly other
in-place
write-only copy32
"""
SMALL = {"SIMCUDA_MEMORY_MIB": "64"}
SECONDS = 600 if {"ASAN_OPTIONS", "TSAN_OPTIONS"} & set(os.environ) else 120  # for what hangs; a sanitizer takes its time


class Scenarios:
    """PROGRAM KERNELS SHIM from the command line; every check is a line of TAP."""

    def __init__(self, folder):
        self.program, self.kernels, self.shim = sys.argv[1:4]
        self.folder = folder
        self.compared = 0
        self.alone = {}  # by scenario and settings of the driver: what it does without the shim
        self.verifies = os.environ.get("METASHARD") == "verify"
        with open(os.path.join(folder, "rules"), "w") as file:
            file.write(RULES)

    def check(self, name, condition, detail=""):
        if not self.verifies:
            tap.check(name, condition, detail)

    def run(self, scenario, settings=None, with_shim=True):
        """The finished process, and the dump of the shim or nothing."""
        environment = dict(os.environ, SIMCUDA_POISON="1")
        if with_shim:
            environment.update(LD_PRELOAD=self.shim,
                               METASHARD_DUMP=os.path.join(self.folder, "dump"),
                               METASHARD_KERNEL_RULES=os.path.join(self.folder, "rules"),
                               METASHARD_SETTLE_MS="100")
        environment.update(settings or {})
        done = subprocess.run([self.program, self.kernels, scenario,
                               os.path.join(self.folder, "data")],
                              env=environment, capture_output=True, text=True, timeout=SECONDS)
        if not with_shim:
            return done, {}
        return done, read_dump(os.path.join(self.folder, "dump"))

    def run_alone(self, scenario, settings):
        """Once for all settings of the shim, which is not there."""
        settings = {name: value for name, value in (settings or {}).items() if not name.startswith("METASHARD")}
        key = (scenario, *sorted(settings.items()))
        if key not in self.alone:
            self.alone[key], _ = self.run(scenario, settings, with_shim=False)
        return self.alone[key]

    def both(self, scenario, settings=None, alone=None):
        """Runs it with the shim, and alone with the same settings or others; outputs are compared."""
        wanted = self.run_alone(scenario, settings if alone is None else alone)
        seen, dump = self.run(scenario, settings)
        tap.check(f"{scenario}: same output", wanted.returncode == 0 and
                  (wanted.returncode, wanted.stdout) == (seen.returncode, seen.stdout),
                  f"{wanted.stdout}\n{seen.stdout}{seen.stderr}")
        if self.verifies:
            sums = re.search(r"verify: (\d+) ranges, \d+ bytes compared, (\d+) differ", seen.stderr)
            tap.check(f"{scenario}: nothing differs", sums is not None and sums[2] == "0", seen.stderr)
            self.compared += int(sums[1]) if sums else 0
        return seen, dump


def main(scenarios):
    with tempfile.TemporaryDirectory() as folder:
        test = Scenarios(folder)
        scenarios(test)
        if test.verifies:
            tap.check("something was compared", test.compared > 0)
        sys.exit(tap.end())
