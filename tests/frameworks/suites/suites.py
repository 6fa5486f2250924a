#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""suites.py [--json FOLDER] [--write PAGE] [--checkout CLONE [--part TEXT]] [NAME...]: test suites that others wrote for GPUs
(table.py), on the simulated driver: without the preload, with it, and with everything deferred. No outcome may differ.

The environment is that of tests/frameworks/clients/client.py. Each suite has a virtual environment in the user's cache.
Parts that cannot be fetched, compiled, or found in the clone of a repository that --checkout names are skipped. Output is TAP.
"""
import argparse
import datetime
import fcntl
import glob
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import urllib.request

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "clients")]

import page  # noqa: E402
from client import Run, Tap, skip, skip_under_sanitizers  # noqa: E402
from table import CLONE, PYTEST, SUITES  # noqa: E402

WAYS = {"without": {}, "with": {}, "everything deferred": {"METASHARD_MIN_BYTES": "1"}}
FETCH_SECONDS = 600


class Missing(Exception):
    """A suite cannot be had here."""


# --- where a suite is installed


def call(suite, argv):
    try:
        result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=FETCH_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise Missing(f"{suite.title}: pip took more than {FETCH_SECONDS} s") from error
    if result.returncode != 0:
        errors = [line for line in result.stderr.splitlines() if line.lower().startswith("error")] or ["no venv"]
        raise Missing(f"{suite.title} cannot be installed: {errors[-1]}")


def unpack_source(suite, folder):
    """The package and its tests, below folder."""
    try:
        with urllib.request.urlopen(suite.source.url, timeout=60) as answer:
            data = answer.read()
    except OSError as error:
        raise Missing(f"{suite.title} cannot be fetched: {error}") from error
    if hashlib.sha256(data).hexdigest() != suite.source.sha256:
        raise Missing(f"{suite.title}: {suite.source.url} does not have the checksum of table.py")
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(folder)
    for name, text in suite.source.files.items():
        with open(os.path.join(source_folder(suite, folder), name), "w", encoding="ascii") as file:
            file.write(text)


def name_source(suite):
    """The archive and the compiler, with their versions."""
    if not suite.source:
        return []
    shown = subprocess.run([suite.source.program, "--version"], capture_output=True, text=True, check=True).stdout
    return [os.path.basename(suite.source.url), f"{suite.source.program} {re.search('V([0-9.]+)', shown)[1]}"]


def source_folder(suite, folder):
    return os.path.join(folder, os.path.basename(suite.source.url).removesuffix(".tar.gz"))


def install(suite, folder):
    """Once for each list of packages; two that come at the same time take turns."""
    if suite.source and shutil.which(suite.source.program) is None:
        raise Missing(f"{suite.title} is compiled with a CUDA toolkit: {suite.source.program} is not on PATH")
    wanted = "\n".join([*suite.packages, *PYTEST, *([suite.source.sha256] if suite.source else [])])
    done = os.path.join(folder, "packages.txt")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(done) and open(done, encoding="ascii").read() == wanted:
            return
        pip = [os.path.join(folder, "venv", "bin", "python"), "-m", "pip", "install", "--quiet", "--no-deps",
               "--disable-pip-version-check", "--retries", "1"]
        call(suite, [sys.executable, "-m", "venv", "--clear", os.path.join(folder, "venv")])
        call(suite, [*pip, "--only-binary", ":all:", *suite.packages, *PYTEST])
        if suite.source:
            unpack_source(suite, folder)
            call(suite, [*pip, "--no-build-isolation", source_folder(suite, folder)])
        with open(done, "w", encoding="ascii") as file:
            file.write(wanted)


def find_tests(suite, folder, clone):
    """The folder that the paths of the tests are in."""
    if suite.source:
        return source_folder(suite, folder)
    if not suite.tag:
        return glob.glob(os.path.join(folder, "venv", "lib", "python*", "site-packages"))[0]
    place = os.path.join(folder, "clone")
    archive = subprocess.run(["git", "-C", clone, "archive", suite.tag], capture_output=True, check=False)
    if archive.returncode != 0:
        raise Missing(f"{suite.title}: git archive {suite.tag} in {clone}: {archive.stderr.decode().strip()}")
    shutil.rmtree(place, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(place)
    return place


def cache():
    return os.environ.get("SUITES_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "metashard", "suites")


# --- running it


def test_files(suite, base):
    """A process each: what a file leaves behind, a current context among it, is not the next one's."""
    for path in suite.tests:
        place = os.path.join(base, path)
        pattern = "*.py" if suite.scripts else "test_*.py"
        found = sorted(glob.glob(os.path.join(place, pattern))) if os.path.isdir(place) else [place]
        if suite.module:  # by name: it has another one than its place
            found = [f"{suite.module}.{os.path.basename(file).removesuffix('.py')}" for file in found]
        yield from found


def read_outcomes(path, base):
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    os.unlink(path)
    return {record["test"].replace(base + "/", ""): (record["outcome"], record["why"]) for record in records}


def outcome_of_script(run):
    """A module of someone else that is not there leaves a script out."""
    last = (run.errors.strip().splitlines() or ["no message"])[-1]
    if run.status == 0:
        return "passed", ""
    return "skipped" if re.search("No module named '(?!cuda)", last) else "failed", last


class Way:
    """A suite, run in one of the ways: what each test ended with, and what the driver and the shim counted."""

    def __init__(self, suite, folder, base, way):
        packages = glob.glob(os.path.join(folder, "venv", "lib", "python*", "site-packages"))[0]
        python = os.path.join(folder, "venv", "bin", "python")
        outcomes = os.path.join(folder, f"outcomes-{os.getpid()}")
        driver = os.environ["SIM_FOLDER_12" if suite.driver == 12 else "SIM_FOLDER"]
        libraries = glob.glob(os.path.join(packages, "nvidia", "*", "lib"))
        # The package of helpers is that of CLONE.
        settings = {"SUITE_OUTCOMES": outcomes, "PYTHONDONTWRITEBYTECODE": "1",
                    "PYTHONPATH": ":".join([HERE, os.path.join(base, "cuda_python_test_helpers")]),
                    "LD_LIBRARY_PATH": ":".join([driver, *libraries]),
                    "SIMCUDA_PTX_KERNELS": os.environ["SUITE_KERNELS"],
                    "SIMCUDA_FREE_ANYWHERE": "1", **WAYS[way]}
        self.outcomes, self.deferred, self.broken, self.trouble = {}, 0, 0, []
        started = time.monotonic()
        for path in test_files(suite, base):
            argv = [python, path] if suite.scripts else [
                python, "-m", "pytest", "-q", "-p", "outcomes", "-p", "no:cacheprovider", "--rootdir", base,
                *suite.options, path]
            run = Run(argv, shim=way != "without", folder=driver, settings=settings)
            if suite.scripts:
                found = {path.replace(base + "/", ""): outcome_of_script(run)}
            else:
                found = read_outcomes(outcomes, base)
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


def name_files(outcomes):
    return sorted({os.path.basename(test.partition("::")[0]) for test in outcomes})


def run_suite(suite, tap, clone, part):
    if suite.tag and not clone:
        raise Missing(f"{suite.title}: no package has it; git clone {CLONE}, then run with --checkout CLONE {suite.name}")
    folder = os.path.join(cache(), suite.name)
    install(suite, folder)
    base = find_tests(suite, folder, clone)
    record = {"name": suite.name, "title": suite.title, "packages": [*suite.packages, *name_source(suite)],
              "driver": suite.driver, "made": datetime.date.today().isoformat(), "ways": {}}
    plain = None
    for way in WAYS:
        run = Way(suite, folder, base, way)
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
    if suite.tag:
        record.update(tag=suite.tag, files=name_files(plain), part=part)
    return record


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FOLDER", help="what was found, a file for each suite")
    parser.add_argument("--write", metavar="PAGE", help="the page, of all files in FOLDER")
    parser.add_argument("--checkout", metavar="CLONE", help=f"a clone of {CLONE}, with its tags")
    parser.add_argument("--part", metavar="TEXT", help="what is in CLONE, where that is not the whole repository")
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *(suite.name for suite in SUITES)])
    options = parser.parse_args()
    skip_under_sanitizers()
    tap = Tap()
    for suite in SUITES:
        if options.names and suite.name not in options.names:
            continue
        try:
            record = run_suite(suite, tap, options.checkout, options.part)
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
