#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""suites.py [--json FOLDER] [--write PAGE] [NAME...]: test suites that others wrote for GPUs (table.py), on the simulated
driver: without the preload, with it, and with everything deferred. No outcome may differ.

The environment is that of tests/frameworks/clients/client.py. Each suite has a virtual environment in the user's cache.
What cannot be fetched is skipped. Output is TAP.
"""
import argparse
import fcntl
import glob
import json
import os
import subprocess
import sys
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "clients")]

import page  # noqa: E402
from client import Run, Tap, skip, skip_under_sanitizers  # noqa: E402
from table import PYTEST, SUITES  # noqa: E402

WAYS = {"without": {}, "with": {}, "everything deferred": {"METASHARD_MIN_BYTES": "1"}}
FETCH_SECONDS = 600


class Missing(Exception):
    """A suite cannot be had here."""


# --- where a suite is installed


def install(suite, folder):
    """Once for each list of packages; two that come at the same time take turns."""
    wanted = "\n".join([*suite.packages, *PYTEST])
    done = os.path.join(folder, "packages.txt")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(done) and open(done, encoding="ascii").read() == wanted:
            return
        for argv in ([sys.executable, "-m", "venv", "--clear", os.path.join(folder, "venv")],
                     [os.path.join(folder, "venv", "bin", "python"), "-m", "pip", "install", "--quiet", "--no-deps",
                      "--only-binary", ":all:", "--disable-pip-version-check", "--retries", "1", *suite.packages, *PYTEST]):
            try:
                result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=FETCH_SECONDS)
            except subprocess.TimeoutExpired as error:
                raise Missing(f"{suite.title}: pip took more than {FETCH_SECONDS} s") from error
            if result.returncode != 0:
                errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR")] or ["no venv"]
                raise Missing(f"{suite.title} cannot be fetched: {errors[-1]}")
        with open(done, "w", encoding="ascii") as file:
            file.write(wanted)


def cache():
    return os.environ.get("SUITES_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "metashard", "suites")


# --- running it


def test_files(suite, packages):
    """A process each: what a file leaves behind, a current context among it, is not the next one's."""
    for path in suite.tests:
        place = os.path.join(packages, path)
        found = sorted(glob.glob(os.path.join(place, "test_*.py"))) if os.path.isdir(place) else [place]
        if suite.module:  # by name: it has another one than its place
            found = [f"{suite.module}.{os.path.basename(file).removesuffix('.py')}" for file in found]
        yield from found


def read_outcomes(path, packages):
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    os.unlink(path)
    return {record["test"].replace(packages + "/", ""): (record["outcome"], record["why"]) for record in records}


class Way:
    """A suite, run in one of the ways: what each test ended with, and what the driver and the shim counted."""

    def __init__(self, suite, folder, way):
        packages = glob.glob(os.path.join(folder, "venv", "lib", "python*", "site-packages"))[0]
        outcomes = os.path.join(folder, f"outcomes-{os.getpid()}")
        driver = os.environ["SIM_FOLDER_12" if suite.driver == 12 else "SIM_FOLDER"]
        libraries = glob.glob(os.path.join(packages, "nvidia", "*", "lib"))
        settings = {"SUITE_OUTCOMES": outcomes, "PYTHONPATH": HERE, "PYTHONDONTWRITEBYTECODE": "1",
                    "LD_LIBRARY_PATH": ":".join([driver, *libraries]),
                    "SIMCUDA_PTX_KERNELS": os.environ["SUITE_KERNELS"],
                    "SIMCUDA_FREE_ANYWHERE": "1", **WAYS[way]}
        self.outcomes, self.deferred, self.broken, self.trouble = {}, 0, 0, []
        started = time.monotonic()
        for path in test_files(suite, packages):
            argv = [os.path.join(folder, "venv", "bin", "python"), "-m", "pytest", "-q", "-p", "outcomes", "-p",
                    "no:cacheprovider", "--rootdir", packages, *suite.options, path]
            run = Run(argv, shim=way != "without", folder=driver, settings=settings)
            found = read_outcomes(outcomes, packages)
            self.outcomes.update(found)
            self.deferred += run.dump.get("deferred_allocations", 0)
            self.broken += run.stats.get("illegal_accesses", 0) + run.stats.get("races", 0)
            if run.status not in (0, 1, 5) or (not found and run.status != 5):  # 5: the file has no tests
                self.trouble.append(f"{path}: {run.tell()[-2000:]}")
        self.seconds = round(time.monotonic() - started, 1)


def judge(suite, test, outcome):
    """An outcome, with what cannot pass told apart."""
    for part, why in suite.impossible:
        if part in test and outcome[0] == "passed":
            return "possible after all", why
        if outcome[0] == "failed" and (part in test or part in outcome[1]):
            return "impossible", why
    return outcome


def run_suite(suite, tap):
    folder = os.path.join(cache(), suite.name)
    install(suite, folder)
    record = {"name": suite.name, "title": suite.title, "packages": suite.packages, "driver": suite.driver, "ways": {}}
    plain = None
    for way in WAYS:
        run = Way(suite, folder, way)
        judged = {test: judge(suite, test, outcome) for test, outcome in run.outcomes.items()}
        plain = plain or judged
        bad = [f"{test}: {what}: {why.split(chr(10))[0]}" for test, (what, why) in judged.items()
               if what not in ("passed", "skipped", "impossible")]
        tap.check(f"{suite.name}, {way}: {len(judged)} tests ran, and passed but where it is impossible",
                  judged and not bad and not run.trouble, *bad, *run.trouble)
        tap.check(f"{suite.name}, {way}: no unmapped memory was touched", run.broken == 0, run.broken)
        if way != "without":
            different = [f"{test}: {plain.get(test)} without the shim, {judged.get(test)} with it"
                         for test in sorted({*plain, *judged})
                         if plain.get(test, ("",))[0] != judged.get(test, ("",))[0]]
            tap.check(f"{suite.name}, {way}: every outcome is that without the shim", not different, *different)
        if way == "everything deferred":
            tap.check(f"{suite.name}, {way}: allocations were deferred", run.deferred > 0, run.deferred)
        record["ways"][way] = {"outcomes": judged, "seconds": run.seconds, "deferred": run.deferred}
    return record


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FOLDER", help="what was found, a file for each suite")
    parser.add_argument("--write", metavar="PAGE", help="the page, of all files in FOLDER")
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *(suite.name for suite in SUITES)])
    options = parser.parse_args()
    skip_under_sanitizers()
    tap = Tap()
    for suite in SUITES:
        if options.names and suite.name not in options.names:
            continue
        try:
            record = run_suite(suite, tap)
        except Missing as error:
            if len(options.names) == 1:
                skip(str(error))
            tap.count += 1
            print(f"ok {tap.count} {suite.name} # SKIP {error}")
            continue
        if options.json:
            os.makedirs(options.json, exist_ok=True)
            with open(os.path.join(options.json, suite.name + ".json"), "w", encoding="utf-8") as file:
                json.dump(record, file, indent=1)
    if options.write:
        page.write(options.write, options.json)
    tap.end()


main()
