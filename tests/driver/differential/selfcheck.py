#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""selfcheck.py PROGRAM KERNELS SHIM: the self-check finds each fault of a driver, and what the program sees stays right.

SIMCUDA_BREAK plants the faults. Each gives one line, the same output as without the shim, and either nothing is deferred
or the shim does without what does not work.
"""
import glob
import json
import os
import random
import re
import sys

from scenarios import main

MIB = 1 << 20
# By fact: what breaks it, its level, and whether nothing is deferred then.
SLOW = {"SIMCUDA_DELAY_US": "1000"}
FAULTS = {
    "memory": ({"SIMCUDA_BREAK": "memory"}, "warn", True),
    "granularity": ({"SIMCUDA_BREAK": "granularity"}, "info", False),
    "hint": ({"SIMCUDA_HINTS": "0", "SIMCUDA_LOW": "1"}, "info", False),
    "alias": ({"SIMCUDA_BREAK": "alias"}, "warn", False),
    "set": ({"SIMCUDA_BREAK": "set"}, "warn", True),
    "copy": ({"SIMCUDA_BREAK": "copy"}, "warn", True),
    "copy2d": ({"SIMCUDA_BREAK": "copy2d"}, "warn", True),
    "source": ({"SIMCUDA_LATE": "1", **SLOW}, "info", False),
    "event": ({"SIMCUDA_BREAK": "event", **SLOW}, "warn", True),
    "context_event": ({"SIMCUDA_BREAK": "context_event", **SLOW}, "warn", False),
    "remap": ({"SIMCUDA_BREAK": "remap"}, "warn", True),
    "resolver": ({"SIMCUDA_BREAK": "resolver"}, "warn", True),
}
# Without the check these give the program wrong bytes, or errors.
HARMFUL = ("memory", "set", "copy", "copy2d", "remap")
HANDLES = 3  # that a check makes


class Place:
    """A folder for kept texts, and runs there."""

    def __init__(self, test, name):
        self.test = test
        self.folder = os.path.join(test.folder, name)
        self.stats = os.path.join(test.folder, "stats")

    def settings(self, **more):
        return {"METASHARD_STATE_DIR": self.folder, "METASHARD_LOG": "info", "METASHARD_SELFCHECK": "on",
                "SIMCUDA_STATS": self.stats, **more}

    def run(self, scenario="everything", **more):
        """The log lines of self-checks, the dump, and the handles that were made."""
        done, dump = self.test.run(scenario, self.settings(**more))
        self.test.check(f"{scenario} {more}: it runs", done.returncode == 0, done.stdout + done.stderr)
        with open(self.stats) as file:
            made = json.load(file)["create_calls"]
        return lines_of(done), dump, made

    def both(self, scenario="everything", **more):
        done, dump = self.test.both(scenario, self.settings(**more))
        return lines_of(done), dump

    def texts(self):
        return glob.glob(os.path.join(self.folder, ".selfcheck-*"))


def lines_of(done):
    return [line for line in done.stderr.splitlines() if "self-check" in line]


def is_sanitized():
    """Its library comes before the shim then."""
    return ":" in sys.argv[3]


def check_fault(test, fact):
    settings, level, steps_aside = FAULTS[fact]
    place = Place(test, fact)
    for state in ("run", "kept"):
        lines, dump = place.both(**settings)
        test.check(f"{fact}, {state}: one line says so", len(lines) == 1 and re.search(
            rf"{level}: self-check of device 0: .*\({fact}: .+\): \w", lines[0]) is not None, lines)
        test.check(f"{fact}, {state}: what is deferred", (dump["deferred_allocations"] == 0) == steps_aside, dump)
        seen = dump["self_checks"][0]
        # Memory that cannot be made, and who answers for the resolver, are asked each time.
        wanted = state if fact != "memory" else "incomplete"
        test.check(f"{fact}, {state}: the page says so", (seen["state"], seen["steps_aside"]) == (wanted, steps_aside) and
                   [text.split(":")[0] for text in seen["unmet"]] == [fact], seen)
    if fact == "alias":
        test.check("alias: no launch is recorded", dump["recorded_launches"] == 0, dump["recorded_launches"])
    if fact in HARMFUL:
        wanted = test.run_alone("everything", {})
        done, _ = test.run("everything", place.settings(METASHARD_SELFCHECK="off", **settings))
        test.check(f"{fact}: without the check it does harm", wanted.stdout != done.stdout)


def check_kept(test):
    place = Place(test, "kept")
    _, dump, first = place.run()
    test.check("the first process asks", dump["self_checks"] == [{"state": "run", "steps_aside": False, "unmet": []}],
               dump["self_checks"])
    test.check("and keeps one text", len(place.texts()) == 1, place.texts())
    _, dump, second = place.run()
    test.check("the second one does not ask", (dump["self_checks"][0]["state"], second) == ("kept", first - HANDLES),
               (dump["self_checks"], first, second))
    _, dump, made = place.run(METASHARD_SELFCHECK="fresh")
    test.check("but with fresh", (dump["self_checks"][0]["state"], made) == ("run", first), (made, first))
    _, dump, made = place.run(METASHARD_SELFCHECK="off")
    test.check("and off asks nothing", (dump["self_checks"][0]["state"], made) == ("off", second), (made, first))
    with open(place.texts()[0], "w") as file:
        file.write("nonsense")
    _, dump, made = place.run()
    test.check("a damaged text is ignored", (dump["self_checks"][0]["state"], made) == ("run", first), (made, first))
    _, dump, made = place.run()
    test.check("and replaced", dump["self_checks"][0]["state"] == "kept")
    _, dump, made = place.run(SIMCUDA_GRANULE_KIB="64")
    test.check("another device is asked", dump["self_checks"][0]["state"] == "run")
    test.check("and has a text of its own", len(place.texts()) == 2, place.texts())
    _, dump, made = place.run("none")
    test.check("nobody asks who defers nothing", (dump["self_checks"], made) == ([], 0), dump["self_checks"])


def check_moments(test):
    place = Place(test, "moments")
    for scenario, state, more in (
            ("in_capture", "run", {}), ("beside_captures", "run", {}), ("threads", "run", {}), ("busy", "incomplete", {}),
            ("mapped", "run", {}), ("mapped", "incomplete", {"SIMCUDA_MEMORY_MIB": "20"})):
        settings = {"METASHARD_SELFCHECK": "fresh", **more}
        _, dump = place.both(scenario, **settings)
        test.check(f"{scenario} {more}: the check is {state}", dump["self_checks"][0]["state"] == state or
                   scenario == "beside_captures", dump["self_checks"])
        test.check(f"{scenario} {more}: something is deferred", dump["deferred_allocations"] > 0, dump)
    _, dump, made = place.run("threads", METASHARD_SELFCHECK="fresh")
    test.check("many threads make one check", made == HANDLES, made)
    _, dump = place.both("two_devices", SIMCUDA_DEVICES="2", METASHARD_SELFCHECK="fresh")
    test.check("each device has its check", [check["state"] for check in dump["self_checks"]] == ["run"] * 2,
               dump["self_checks"])
    lines, dump = place.both("mapped", SIMCUDA_BREAK="granularity")
    test.check("a handle of less than the shim's granule is the driver's", dump["deferred_allocations"] == 1, dump)


def check_failing_calls(test):
    """Calls of a check that fail once. It makes more than a hundred, from the tenth one of the shim on."""
    place = Place(test, "failing")
    wanted, _ = test.run("mapped", with_shim=False)
    wrong = []
    for code in (1, 2, 999):
        for number in range(random.randrange(10, 14), 100, 4):
            done, dump = test.run("mapped", place.settings(
                METASHARD_SELFCHECK="fresh", METASHARD_LOG="warn", SIMCUDA_FAULT_CALLER="libmetashard",
                SIMCUDA_FAULTS=f"*:{number}={code}"))
            if done.stdout != wanted.stdout or "simcuda:" in done.stderr or lines_of(done) or \
                    dump["deferred_allocations"] != 2:
                wrong.append(f"call {number} fails with {code}: {done.stdout}{done.stderr}{dump['self_checks']}")
    test.check("a call of the check that fails does no harm", not wrong, "\n".join(wrong))


def check_all(test):
    for fact in FAULTS:
        if fact == "hint" and is_sanitized():
            print("# hint: the shadow memory of a sanitizer is where low addresses would be")
            continue
        check_fault(test, fact)
    check_kept(test)
    check_moments(test)
    check_failing_calls(test)


main(check_all)
