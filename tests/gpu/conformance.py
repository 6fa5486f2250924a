#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the simulated driver's own tests on it and on the real driver, and compares what they saw.

    conformance.py --build DIR [--simulated NAME=VALUE]... [--only PATTERN] [--faults HOW] [--out FILE]

A test is a process of its own with a limit; its checks write down their answers and it goes on
after one that differs (conformance.h). An answer is the same when every check saw on the real
driver what it saw on the simulated one. Tests that are about the simulated driver are listed in
conformance_rows.py. Kernels are those of conformance_kernels.ptx on the real driver. With
--simulated the simulated driver with these settings takes the real one's place. With "--faults
without", a test that makes the simulated device fault is not run on the real one; with "--faults
only", no other is.
"""
import collections
import fnmatch
import os
import tempfile

from build_all import SUBJECTS
from conformance_rows import NOT_COMPARED
from part_script import BUILD_ROW, Measurement, options_of
from run_tools import SOURCE, end_of, last_line, run_limited, without_shim

# They may leave a process hanging: after all others.
LAST = {"stream.exit_does_not_wait_for_ever", "stream.streams_wait_for_values"}
Run = collections.namedtuple("Run", "library checks notes end")


def is_left_out(name, text=None):
    """Whether the test is not compared, or its check of this text."""
    return any(fnmatch.fnmatchcase(name, tests) and (check is None or text is not None and fnmatch.fnmatchcase(text, check))
               for tests, check, _ in NOT_COMPARED)


def shorter(text):
    return text.replace("((size_t)1 << 20)", "MIB")


class Side:
    """One of the two drivers."""

    def __init__(self, build, simulated, settings=()):
        self.build = build
        libraries = os.path.join(build, "tools", "simcuda")
        if simulated:
            environment = {"LD_LIBRARY_PATH": libraries, "SIM_KERNELS": os.path.join(libraries, "test_kernels.so"),
                           "SIM_LIBRARY": os.path.join(libraries, "libcuda.so.1")}
        else:  # the tests know one device
            environment = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0],
                           "SIM_KERNELS": os.path.join(SOURCE, "tests/gpu/conformance_kernels.ptx"),
                           "SIM_LIBRARY": "libcuda.so.1"}
        self.environment = without_shim(SIM_DATA=os.path.join(SOURCE, "tools", "simcuda", "data"), **environment)
        self.environment.update(setting.split("=", 1) for setting in settings)
        self.simulated = simulated

    def run(self, name, limit):
        subject, test = name.split(".")
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "log")
            done = run_limited([program(self.build, subject), test, log], limit, self.environment)
            lines = []
            if os.path.exists(log):
                with open(log, encoding="utf-8", errors="replace") as file:
                    lines = [line.rstrip("\n").split("\t") for line in file]
        return self.read(lines, done, limit)

    def read(self, lines, done, limit):
        checks, notes, skipped, library = {}, [], None, None
        for kind, *fields in lines:
            if kind == "check":
                place, text, wanted, seen = fields
                key = (place, shorter(text))
                checks.setdefault(key, collections.Counter())[shorter(wanted) if seen == "ok" else seen] += 1
            elif kind == "note":
                notes.append(" ".join(fields))
            elif kind == "skip":
                skipped = fields[0]
            elif kind == "library":
                library = fields[0]
        end = end_of(done, limit) if skipped is None else "skipped: " + skipped
        if ["end"] not in lines and skipped is None:
            end += ", not at the end of the test"
        is_own = library is not None and library.startswith(os.path.realpath(self.build) + os.sep)
        if library is not None and is_own != self.simulated:
            raise SystemExit(f"the {'simulated' if self.simulated else 'real'} driver was wanted, "
                             f"and {library} answered")
        return Run(library, checks, notes, end)


def program(build, subject):
    return os.path.join(build, "tests", "gpu", "conformance_" + subject)


def tests_of(build, subject, environment):
    done = run_limited([program(build, subject), "--list"], 20, environment)
    if done.status != 0:
        raise SystemExit(f"conformance_{subject} cannot be run: {last_line(done.error)}")
    return [f"{subject}.{test}" for test in done.out.split()]


def told(answers):
    """{"CUDA_SUCCESS": 3} as a text; a number only where there are several answers."""
    if len(answers) == 1:
        return next(iter(answers))
    return ", ".join(f"{answer} ({times} times)" for answer, times in answers.most_common(5))


def compare(name, simulated, real):
    """The differences, in the order of the test."""
    differences = []
    unreached = [key for key in simulated.checks if key not in real.checks]
    for key, wanted in simulated.checks.items():
        seen = real.checks.get(key)
        # How often a loop goes round is not an answer.
        if seen is None or set(seen) == set(wanted) or is_left_out(name, key[1]):
            continue
        differences.append({"at": key[0], "check": key[1], "simulated": told(wanted), "real": told(seen)})
    for key in real.checks:
        if key not in simulated.checks:
            differences.append({"at": key[0], "check": key[1], "simulated": "not reached",
                                "real": told(real.checks[key])})
    for note in real.notes[:20]:
        if note not in simulated.notes:
            differences.append({"check": "what the test says", "simulated": "nothing", "real": note})
    if simulated.end != real.end:
        differences.append({"check": "its end", "simulated": simulated.end, "real": real.end})
    if unreached:
        differences.append({"at": unreached[0][0], "check": unreached[0][1], "simulated": "reached",
                            "real": f"not reached, as {len(unreached)} of {len(simulated.checks)} checks"})
    return differences


def record_of(name, simulated, real):
    """The answers of both drivers: where all are the same, only how many checks there were."""
    differences = compare(name, simulated, real)
    first = differences[0] if differences else None
    return {"test": name, "same": not differences, "checks": len(simulated.checks),
            "simulated": first["simulated"] if first else simulated.end,
            "real": first["real"] if first else real.end, "differences": differences}


class Comparison(Measurement):
    """rows: tests that are not compared."""

    def __init__(self, options, form, rows, **result):
        told = [dict(zip(("tests", "check", "reason"), row)) for row in rows]
        super().__init__(options, form, counts={}, tests=[], not_run=[], not_compared=told, **result)

    def tests_in_time(self, wanted):
        """Those that are begun before the time is over; the result is written after each."""
        for name in wanted:
            if self.left() < 0:
                self.result["not_run"].append(name)
            else:
                yield name
                self.write()

    def count(self, **more):
        same = [record["same"] for record in self.result["tests"]].count(True)
        self.result["counts"] = {"same": same, "different": len(self.result["tests"]) - same, **more}

    def end(self, **more):
        self.result["counts"].update(not_run=len(self.result["not_run"]), **more)
        return self.finish(not self.result["not_run"])


def measure(options):
    simulated = Side(options.build, True)
    real = Side(options.build, bool(options.simulated), options.simulated or ())
    names = [name for subject in SUBJECTS for name in tests_of(options.build, subject, simulated.environment)]
    wanted = [name for name in names if not is_left_out(name) and fnmatch.fnmatchcase(name, options.only)]
    wanted.sort(key=lambda name: name in LAST)
    comparison = Comparison(options, "metashard-conformance-1", NOT_COMPARED, real_driver=None, faults=options.faults,
                            left_out=[])
    result, checks = comparison.result, []
    for name in comparison.tests_in_time(wanted):
        with_simulated = simulated.run(name, options.limit)
        checks += [(name, text) for _, text in with_simulated.checks]
        # A test that touches memory which is not there, on purpose, says so by what the simulated driver answers.
        is_faulting = any("ILLEGAL_ADDRESS" in answer for answers in with_simulated.checks.values() for answer in answers)
        if options.faults != "with" and is_faulting != (options.faults == "only"):
            result["left_out"].append(name)
            continue
        with_real = real.run(name, options.limit)
        result["real_driver"] = result["real_driver"] or with_real.library
        result["tests"].append(record_of(name, with_simulated, with_real))
        comparison.count(not_run=len(wanted) - len(result["tests"]) - len(result["left_out"]),
                         not_compared=sum(map(is_left_out, names)))
    result["stale_rows"] = stale_rows(names, checks)
    return comparison.end(left_out=len(result["left_out"]))


def stale_rows(names, checks):
    """Rows of the table that stand for no test or no check any more. One program is not built here."""
    ran = {name for name, _ in checks}
    stale = [tests for tests, _, _ in NOT_COMPARED if not tests.startswith("torch_kernels.") and not fnmatch.filter(names, tests)]
    return stale + [f"{tests}: {check}" for tests, check, _ in NOT_COMPARED if check is not None and tests in ran
                    and not any(name == tests and fnmatch.fnmatchcase(text, check) for name, text in checks)]


def counts_in_short(result):
    return ", ".join(f"{number} {what.replace('_', ' ')}" for what, number in result["counts"].items())


def details(result):
    """The first difference of each test, and of each that differs under the shim."""
    return [f"{test['test']}: {first['check']}: {one} {first['simulated']}, {other} {first['real']}" for test in result["tests"]
            for differences, one, other in ((test["differences"], "simulated", "real"),
                                            (test.get("shim_differences", []), "without the shim", "with"))
            for first in differences[:1]]


def show(result):
    print("\n".join([*details(result), counts_in_short(result)]))


if __name__ == "__main__":
    show(measure(options_of(__doc__, 600, BUILD_ROW, ("--simulated", None, {"action": "append", "metavar": "NAME=VALUE"}),
                            ("--only", "*", {"help": "tests, as vmm.*"}),
                            ("--faults", "with", {"choices": ("with", "without", "only")}),
                            ("--limit", 20.0, {"help": "seconds for one test"}))))
